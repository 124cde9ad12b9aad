//! Replicas that differ: late hints, purged deletions, and repairs that spread half of a fold.

use std::sync::Arc;
use std::time::Duration;

use scylla::statement::Consistency::{All, One, Quorum};

use crate::cassandra::{Alone, CLUSTER, Hints, Killed, connect, eventually, script};
use crate::contract::{Subject, TestClock, key};
use crate::table::{GROUP, TALLY, Table};

/// The ancestor's defect 7: no waiting time rules out a late row. The fold's deletion makes it harmless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hint_that_comes_after_the_fold_stays_hidden() {
    let _alone = CLUSTER.write().await;
    let table = Table::fresh_on_own().await;
    let killed = Killed::nodes(&["3"]);
    killed.noticed_by("1").await;
    let paused = Hints::paused_on(&["1"]);
    // The second name is never folded. It shows that node 3 got its hints.
    for name in ["folded", "marker"] {
        table.write(1, Quorum, name, (10, &[1]), 5).await;
    }
    // Hints are on disk only after their flush period.
    tokio::time::sleep(Duration::from_secs(2)).await;
    drop(killed);
    table.fold(2, All, "folded", 20, &[2]).await;
    let marker = async |table: &Table| {
        let only_3 = Alone::on(3).await;
        let found = table.rows(3, One, "marker").await;
        drop(only_3);
        found
    };
    assert_eq!(marker(&table).await, [], "node 3 missed it");
    drop(paused);
    eventually("node 3 gets its hints", async || {
        tokio::time::sleep(Duration::from_secs(5)).await;
        if marker(&table).await.is_empty() { Err("not yet") } else { Ok(()) }
    })
    .await;
    let only_3 = Alone::on(3).await;
    assert_eq!(table.rows(3, One, "folded").await, [(TALLY, vec![2])]);
    drop(only_3);
    table.drop().await;
}

/// A replica that missed a fold brings the rows back after the others have purged the deletion.
/// Cassandra allows that; the fence makes it harmless, and the next fold deletes them again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_come_back_when_a_deletion_was_purged_and_count_nothing() {
    let _alone = CLUSTER.write().await;
    let table = Table::with("gc_grace_seconds = 1").await;
    let clock = Arc::new(TestClock::default());
    let store = connect(&table.config, Arc::clone(&clock) as _).await;
    let subject = Subject { store, clock, constants: table.config.constants };
    let key = key(GROUP, "n");
    subject.put(&key, 5).await;
    // Node 3 never gets this fold, not even later.
    let fold = subject.plan(&key, subject.when_final()).await;
    let hints_off = Hints::off_on(&["1", "2"]);
    let killed = Killed::nodes(&["3"]);
    killed.noticed_by("1").await;
    killed.noticed_by("2").await;
    subject.execute(&fold).await;
    // After gc_grace the deletion may be purged together with the rows that it hides.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for node in ["1", "2"] {
        script(&["nodetool", node, "flush", &table.config.keyspace]);
        script(&["nodetool", node, "compact", &table.config.keyspace, "shards"]);
    }
    drop(killed);
    drop(hints_off);
    let fence = fold.fence().as_micros();
    let rows = table.rows(1, All, "n").await;
    assert_eq!(rows.len(), 2, "the shard is back, next to its tally: {rows:?}");
    assert!(rows[0].0 == TALLY && rows[1].0 <= fence, "{rows:?}");
    assert_eq!(subject.total(&key).await, Some(5), "it counts nothing");
    let again = subject.plan(&key, subject.when_final()).await;
    assert_eq!((again.report().zombies, again.report().folded), (1, 0));
    subject.execute(&again).await;
    assert_eq!(subject.rows(&key).await.expect("readable"), 1, "it is deleted again");
    assert_eq!(subject.total(&key).await, Some(5));
    subject.store.close().await;
    table.drop().await;
}

/// Writes a fold to node 1 only, runs a query that omits the tally, and returns what node 3 has then.
async fn after_a_query_without_the_tally(read_repair: &str) -> Vec<(i64, Vec<u8>)> {
    let table = Table::fresh_on_own().await;
    table.write(1, All, "n", (10, &[1]), 5).await;
    let hints_off = Hints::off_on(&["1"]);
    let only_1 = Alone::on(1).await;
    table.fold(1, One, "n", 20, &[2]).await;
    drop(only_1);
    drop(hints_off);
    table.alter(&format!("read_repair = '{read_repair}'")).await;
    let seen = table.select(2, All, "n", "AND expires_at <= 20").await;
    assert_eq!(seen, [], "the deletion of node 1 is newer");
    let only_3 = Alone::on(3).await;
    let rows = table.rows(3, One, "n").await;
    drop(only_3);
    table.drop().await;
    rows
}

/// Why the table says NONE: blocking repair copies what the query returned, and so spreads a deletion without its
/// tally. If node 1 were lost now, its counts would be lost too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_read_repair_spreads_a_deletion_without_its_tally() {
    let _alone = CLUSTER.write().await;
    assert_eq!(after_a_query_without_the_tally("BLOCKING").await, [], "neither shard nor tally");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_read_repair_a_query_changes_no_replica() {
    let _alone = CLUSTER.write().await;
    let untouched = [(10, vec![1])];
    assert_eq!(after_a_query_without_the_tally("NONE").await, untouched);
}
