//! A short soak: `tests/pods/soak/run`, as `make soak` runs it, but for two minutes and with the build of the tests. Half
//! of the updates have ids, as in `make storm`.

#[path = "../../cassandra/mod.rs"]
mod cassandra;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use cassandra::{CLUSTER, own_cluster};
use serde_json::Value;

/// A rate that two cores can carry with three nodes, four pods and the clients in a debug build.
const RATE: &str = "150";

/// There is a fault every eight seconds, one of the deck's eleven kinds (nine if the network can't be changed). A
/// turn can pass without one while a node is slow to recover.
const FAULTS_MIN: u64 = 6;
const KINDS_MIN: usize = 5;

/// This test checks every number. How many requests are in time depends on the other work of the machine: `make soak`
/// demands 99 % and 99.9 %, this test only half of them.
const AVAILABLE_PERCENT: [(&str, &str); 2] =
    [("UPDATES_AVAILABLE", "50"), ("READS_AVAILABLE", "50")];

#[tokio::test]
async fn two_minutes_of_faults_lose_double_and_invent_nothing() {
    let _alone = CLUSTER.write().await;
    own_cluster();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("soak");
    let output = Command::new(root.join("tests/pods/soak/run"))
        .envs([
            ("MINUTES", "2"),
            ("RATE", RATE),
            ("BATCH", "1"),
            ("EVERY", "8"),
            ("IDS", "none,minute"),
            ("HINTS_LATE", "15"),
        ])
        .envs(AVAILABLE_PERCENT)
        .env("PROGRAM", env!("CARGO_BIN_EXE_orderfree"))
        .env("REPORT", &folder)
        .output()
        .expect("the soak runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let talk = String::from_utf8_lossy(&output.stderr);
    println!("{text}");
    assert!(output.status.success(), "logs are in {}; {talk}\n{text}", folder.display());

    let report = std::fs::read_to_string(folder.join("report.json")).expect("a report");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let cards: BTreeMap<String, u64> =
        serde_json::from_value(report["chaos"]["cards"].clone()).expect("faults by kind");
    assert!(cards.len() >= KINDS_MIN, "kinds: {cards:?}");
    assert!(cards.values().sum::<u64>() >= FAULTS_MIN, "faults: {cards:?}");
    assert!(report["soak"]["metrics"]["folds"].as_u64() > Some(0), "folds happened");
    assert!(report["soak"]["audited_updates"].as_u64() > Some(100), "updates checked one by one");
    let ids = |name: &str| report["ids"][name].as_u64();
    assert!(ids("repeats") > Some(0) && ids("repeats_after_ack") > Some(100), "{}", report["ids"]);
    assert_eq!((ids("unknown"), ids("conflicts")), (Some(0), Some(0)), "{}", report["ids"]);
    assert!(report["soak"]["reads"]["node_down"]["asked"].as_u64() > Some(0), "reads meanwhile");
    let page = std::fs::read_to_string(folder.join("report.md")).expect("a page");
    assert!(page.contains("Result: **passed**"), "{page}");
}
