//! The image of this build in real containers: pods from the manifests in `k8s/` are rolled under load on three real
//! nodes, and every number is checked at the end.

use std::path::Path;
use std::process::Command;

/// If containers can't run here, the script says in one sentence what is missing.
#[test]
fn containers_roll_without_loss() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("containers");
    let output = Command::new(root.join("tests/pods/containers/run"))
        .arg(env!("CARGO_BIN_EXE_orderfree"))
        .env("REPORT", &folder)
        .output()
        .expect("the script runs");
    let report = String::from_utf8_lossy(&output.stdout);
    let talk = String::from_utf8_lossy(&output.stderr);
    println!("{report}");
    assert!(output.status.success(), "logs are in {}; {talk}\n{report}", folder.display());
}
