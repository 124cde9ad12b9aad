//! The log of resets is lost, and the keys are not.

use std::process::Output;
use std::time::Duration;

use orderfree::runtime::clock::{Clock, SystemClock};
use orderfree::store::cassandra::CassandraConfig;
use orderfree_core::protocol::latest_reset::{LatestReset, PLACE};
use serde_json::json;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::cassandra::{CLUSTER, cql, drop_keyspace, fresh_on_own};
use crate::contract::key;
use crate::pod::{Pod, constants, run};

/// The longest that the command asks to wait.
const WAIT_MAX: Duration = Duration::from_secs(60);

async fn export(config: &CassandraConfig, more: &[&str]) -> (Output, String) {
    let output = run(config, "export", more).await;
    let said = String::from_utf8(output.stderr.clone()).expect("UTF-8");
    (output, said)
}

/// Stores a reset beside the keys that the log never had. Pods need it for so many hours from now.
async fn store_lost(config: &CassandraConfig, hours: i64) {
    let now = SystemClock.now().wall;
    let [at, until] = [-200, hours].map(|hours| now.shifted(hours * 3_600_000_000));
    let latest = LatestReset { at, until, bucket: 3 };
    let state: String = latest.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    let ((kind, group), name, never) = (PLACE, latest.name(), i64::MAX);
    let row = format!("'{kind}', '{group}', '{name}', {never}, {}, 0x{state}", Uuid::nil());
    insert(config, &row).await;
}

async fn insert(config: &CassandraConfig, row: &str) {
    let columns = "kind, grp, name, expires_at, mutator_id, state";
    cql(config, &format!("INSERT INTO {}.shards ({columns}) VALUES ({row})", config.keyspace))
        .await;
}

/// Waits until the pod is ready, and says this of its log.
async fn until_says(pod: &Pod, text: &str) {
    let begun = Instant::now();
    while !pod.check_log().is_ok_and(|says| says.starts_with(text)) {
        assert!(begun.elapsed() < WAIT_MAX, "{:?}", pod.check_log());
        sleep(Duration::from_millis(100)).await;
    }
}

/// Otherwise it would acknowledge updates that do not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_takes_no_update_while_the_log_lacks_a_reset() {
    let _others_too = CLUSTER.read().await;
    let config = fresh_on_own(constants()).await;
    let [reset, deleted] = ["reset", "deleted"].map(|name| key("g", name));
    let by = |by: i64| json!({"op": "add", "by": by});
    // No pod needs it any more, so the log need not have it.
    store_lost(&config, -13).await;
    let before = Pod::start(&config).await;
    for key in [&reset, &deleted] {
        before.update(key, &by(5)).await;
    }
    before.reset(&reset).await;
    before.delete(&deleted).await;
    before.update(&reset, &by(2)).await;
    // The log has the latest reset, so a pod that starts takes updates.
    let between = Pod::start(&config).await;
    between.update(&reset, &by(1)).await;
    before.stop().await;
    cql(&config, &format!("TRUNCATE {}.resets", config.keyspace)).await;
    // A later reset would hide that.
    let why = between.try_reset(&reset).await.expect_err("refused");
    assert!(why.starts_with("keys can't be reset: the log of resets lacks the reset of"), "{why}");
    until_says(&between, "updates are refused: the log of resets lacks").await;
    between.stop().await;
    // Nothing tells whether such a key was reset.
    insert(&config, "'counter', 'g', 'damaged', 9000000000000000, uuid(), 0x00").await;

    let after = Pod::start(&config).await;
    let is_shut = async || {
        let why = after.check_log().expect_err("the log lacks a reset");
        assert!(why.contains("lacks the reset of") && why.contains("orderfree export"), "{why}");
        let why = after.try_update(&reset, &by(7)).await.expect_err("refused");
        assert!(why.contains("log of resets"), "{why}");
        let why = after.try_reset(&reset).await.expect_err("refused");
        assert!(why.contains("lacks the reset of"), "{why}");
        assert_eq!(after.total(&reset).await, Some(3));
        assert_eq!(after.total(&deleted).await, None);
    };
    is_shut().await;
    let (output, said) = export(&config, &["--kind", "counter"]).await;
    assert!(!output.status.success() && said.contains("not all keys were read"), "{said}");
    is_shut().await;
    let (_, said) = export(&config, &[]).await;
    assert!(said.contains("the log of resets is whole again"), "{said}");
    assert!(said.contains("1 could not be read"), "{said}");
    for key in [&reset, &deleted] {
        after.update(key, &by(7)).await;
    }
    until_says(&after, "ok").await;
    assert_eq!((after.total(&reset).await, after.total(&deleted).await), (Some(10), Some(7)));
    after.stop().await;

    // Later resets, which the log has, do not hide one that is needed longer.
    store_lost(&config, 500).await;
    let last = Pod::start(&config).await;
    let why = last.check_log().expect_err("the log lacks a reset");
    assert!(why.contains("lacks the reset of"), "{why}");
    let (_, said) = export(&config, &[]).await;
    assert!(said.contains("the log of resets is whole again"), "{said}");
    until_says(&last, "ok").await;
    last.reset(&reset).await;
    last.stop().await;
    drop_keyspace(&config).await;
}
