//! The log of resets is lost, and the keys are not.

use std::process::Output;
use std::time::Duration;

use orderfree::store::cassandra::CassandraConfig;
use serde_json::json;
use tokio::time::{Instant, sleep};

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

/// Otherwise it would acknowledge updates that do not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_takes_no_update_while_the_log_lacks_a_reset() {
    let _others_too = CLUSTER.read().await;
    let config = fresh_on_own(constants()).await;
    let [reset, deleted] = ["reset", "deleted"].map(|name| key("g", name));
    let by = |by: i64| json!({"op": "add", "by": by});
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
    assert!(why.contains("lacks the reset of"), "{why}");
    between.stop().await;
    // Nothing tells whether such a key was reset.
    let damaged = "('counter', 'g', 'damaged', 9000000000000000, uuid(), 0x00)";
    let columns = "(kind, grp, name, expires_at, mutator_id, state)";
    let shards = format!("{}.shards", config.keyspace);
    cql(&config, &format!("INSERT INTO {shards} {columns} VALUES {damaged}")).await;

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
    // A reset of the last moments looks like one that is not logged yet.
    let (output, said) = export(&config, &[]).await;
    assert!(!output.status.success() && said.contains("run the command again in "), "{said}");
    is_shut().await;
    let begun = Instant::now();
    let said = loop {
        let (_, said) = export(&config, &[]).await;
        if said.contains("the log of resets is whole again") {
            break said;
        }
        assert!(begun.elapsed() < 2 * WAIT_MAX && said.contains("run the command again"), "{said}");
        sleep(Duration::from_secs(5)).await;
    };
    assert!(said.contains("1 could not be read"), "{said}");
    for key in [&reset, &deleted] {
        after.update(key, &by(7)).await;
    }
    let begun = Instant::now();
    while after.check_log().as_deref() != Ok("ok") {
        assert!(begun.elapsed() < WAIT_MAX, "{:?}", after.check_log());
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!((after.total(&reset).await, after.total(&deleted).await), (Some(10), Some(7)));
    after.stop().await;
    drop_keyspace(&config).await;
}
