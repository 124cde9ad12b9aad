//! The image of this build in real containers: pods as `k8s/` has them, rolled one after the other
//! under load on the three real nodes, and every number proved at the end.

use std::path::Path;
use std::process::Command;

/// The script says in one sentence what is missing where no containers can run.
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
