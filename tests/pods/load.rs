//! `orderfree load` on both stores: many pods as processes count over HTTP during faults, and every number is checked at
//! the end.

#[path = "../cassandra/mod.rs"]
mod cassandra;

use std::path::PathBuf;
use std::process::Command;

use cassandra::{CLUSTER, own_cluster, path};
use serde_json::Value;
use uuid::Uuid;

/// Lifetimes so short that folds happen all the time. The other constants follow.
const SHORT_LIVES: [(&str, &str); 3] =
    [("ORDERFREE_LIFETIME", "20s"), ("ORDERFREE_DRAIN_MARGIN", "5s"), ("ORDERFREE_CUTOFF", "10s")];

/// Keys can be reset.
const LONGER_CUTOFF: [(&str, &str); 3] =
    [("ORDERFREE_LIFETIME", "60s"), ("ORDERFREE_DRAIN_MARGIN", "10s"), ("ORDERFREE_CUTOFF", "30s")];

/// Runs `orderfree load` and returns its report. A wrong number is exit code 1.
fn load(arguments: &[&str], environment: &[(&str, &str)]) -> Value {
    let logs = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("load-{}", Uuid::new_v4()));
    let output = Command::new(env!("CARGO_BIN_EXE_orderfree"))
        .args(["load", "-o", "json", "--log-dir"])
        .arg(&logs)
        .args(arguments)
        .envs(SHORT_LIVES)
        .envs(environment.iter().copied())
        .output()
        .expect("the program runs");
    let (report, talk) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    println!("{report}");
    assert!(output.status.success(), "logs are in {}; {talk}\n{report}", logs.display());
    std::fs::remove_dir_all(&logs).expect("its logs are not needed");
    serde_json::from_str(&report).expect("a JSON report")
}

/// How often a fault was caused, according to the report.
fn count(report: &Value, what: &str) -> u64 {
    report["chaos"][what].as_u64().unwrap_or_else(|| panic!("no count of {what} in the report"))
}

/// Acknowledged means on disk, even if the server is killed again and again.
#[test]
fn the_embedded_store_loses_no_acked_update_in_twenty_kills() {
    let arguments = "--pods 1 --workload uniform --keys 300 --connections 16 --duration 45s \
                     --kill-every 2s --restart-after 300ms --fold-check";
    let report = load(&arguments.split_whitespace().collect::<Vec<_>>(), &[]);
    assert!(count(&report, "kills") >= 20, "twenty kills");
}

/// Keys of all kinds with a total are reset and deleted while the server is killed. Half of the updates have ids, and some
/// are sent again after a reset. What a key has and what its resets returned is the sum of its acknowledged updates.
#[test]
fn what_resets_return_and_what_is_left_is_the_sum_in_ten_kills() {
    let arguments = "--pods 1 --workload tenth --keys 200 --hot-share 0.8 --connections 16 --rate 600 --duration 30s \
                     --ids none,minute --reset-every 50ms --read-every 20ms --kill-every 2500ms --restart-after 300ms \
                     --fold-check";
    let report = load(&arguments.split_whitespace().collect::<Vec<_>>(), &LONGER_CUTOFF);
    assert!(count(&report, "kills") >= 10, "ten kills");
    let resets = |what: &str| report["resets"][what].as_u64().expect("a count");
    assert!(resets("done") > 100 && resets("deletions") > 50, "{}", report["resets"]);
    assert!(report["ids"]["repeats_after_reset"].as_u64() > Some(100), "{}", report["ids"]);
}

/// The main test: ten pods on three real nodes. Pods are killed and paused, a node is killed and restarted, and short
/// lifetimes make folds happen all the time. It also answers the ancestor's defect 12: its only test with several
/// processes counted distinct items, whose merge is idempotent, so it could not see a double count. Here each update
/// has its own weight.
#[tokio::test]
async fn regression_12_ten_pods_count_right_while_things_are_killed() {
    let _alone = CLUSTER.write().await;
    let points = own_cluster();
    let keyspace = format!("load_{}", Uuid::new_v4().simple());
    let script = path().display().to_string();
    let (kill, restart) = (format!("{script} kill 3"), format!("{script} restart 3"));
    let environment =
        [("ORDERFREE_CASSANDRA", points.as_str()), ("ORDERFREE_KEYSPACE", keyspace.as_str())];
    let applied = Command::new(env!("CARGO_BIN_EXE_orderfree"))
        .args(["schema", "apply"])
        .envs(SHORT_LIVES)
        .envs(environment)
        .status();
    assert!(applied.expect("the program runs").success(), "the schema is applied");
    // A pause is longer than drain margin and cutoff, so that a pod resumes after its leases.
    let arguments = "--pods 10 --workload mixed --keys 300 --connections 30 --duration 60s --kill-every 9s \
         --pause-every 20s --pause-for 17s --request-timeout 40s --fault-every 20s --fault-for 8s \
         --read-every 500ms --fold-check --settle 34s";
    let commands = ["--fault-command", &kill, "--heal-command", &restart];
    let report =
        load(&arguments.split_whitespace().chain(commands).collect::<Vec<_>>(), &environment);
    for (what, least) in [("kills", 5), ("pauses", 1), ("faults", 1)] {
        assert!(count(&report, what) >= least, "at least {least} {what}");
    }
}
