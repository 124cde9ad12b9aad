//! What is atomic in a batch, and what is not.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use scylla::errors::ExecutionError;
use scylla::statement::Consistency;

use crate::cassandra::{CLUSTER, Killed};
use crate::table::Table;

/// Names that one batch writes, all in one group.
const NAMES: usize = 20;

/// The writes of folds, for several names in one batch: each name gets a tally, loses every row that expires before
/// `value`, and has one row that expires then. All of them contain the value.
fn batch(rows: &[(String, String)], value: i64) -> String {
    let rows = rows.iter().map(|(group, name)| {
        let row = |expires_at: i64| {
            format!(
                "INSERT INTO shards (kind, grp, name, expires_at, mutator_id, state) VALUES \
                 ('counter', '{group}', '{name}', {expires_at}, \
                 00000000-0000-0000-0000-000000000000, bigintAsBlob({value}));"
            )
        };
        let (tally, shard) = (row(i64::MAX), row(value));
        format!(
            "{tally} {shard} DELETE FROM shards WHERE kind = 'counter' AND grp = '{group}' AND \
             name = '{name}' AND expires_at < {value};"
        )
    });
    let rows: String = rows.collect();
    format!("BEGIN UNLOGGED BATCH USING TIMESTAMP {value} {rows} APPLY BATCH")
}

/// Finds the groups that are only on node 3. It is down, and each group has one replica.
async fn on_the_dead_node(table: &Table, group: &str) -> bool {
    let text = batch(&[(group.to_owned(), "probe".to_owned())], 1);
    match table.run(1, Consistency::One, &text, ()).await {
        Ok(_) => false,
        Err(ExecutionError::LastAttemptError(_)) => true,
        Err(error) => panic!("{group}: {error}"),
    }
}

async fn values(table: &Table, group: &str) -> Vec<i64> {
    let text = "SELECT blobAsBigint(state) FROM shards WHERE kind = 'counter' AND grp = ?";
    let answer = table.run(1, Consistency::One, text, (group,)).await.expect("an answer");
    let rows = answer.into_rows_result().expect("rows");
    rows.rows::<(i64,)>().expect("typed").map(|row| row.expect("a row").0).collect()
}

/// Why every error of a batch over several partitions is `unknown`, even one that says that a part of it had no
/// replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_batch_over_several_partitions_is_applied_in_part() {
    let _alone = CLUSTER.write().await;
    let table = Table::with_one_replica().await;
    let killed = Killed::nodes(&["3"]);
    killed.noticed_by("1").await;
    let (mut dead, mut alive) = (Vec::new(), Vec::new());
    for at in 0..64 {
        let group = format!("group-{at}");
        let place = if on_the_dead_node(&table, &group).await { &mut dead } else { &mut alive };
        place.push(group);
    }
    assert!(dead.len() >= 8 && alive.len() >= 8, "{} of 64 groups are on node 3", dead.len());
    let mut partly = 0;
    for (alive, dead) in alive.iter().zip(&dead) {
        let rows = [alive, dead].map(|group| (group.clone(), "n".to_owned()));
        let result = table.run(1, Consistency::One, &batch(&rows, 2), ()).await;
        assert!(result.is_err(), "node 3 has a part of this batch, and is down");
        partly += usize::from(values(&table, alive).await.contains(&2));
    }
    assert!(partly > 0, "none of {} batches was applied in part", dead.len());
    drop(killed);
    table.drop().await;
}

/// A mutation of one partition survives whole or not at all, and an acknowledged one survives. This holds for a fold's
/// tally and deletion, also of several keys of one group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_over_keys_of_one_group_is_whole_after_a_kill() {
    let _alone = CLUSTER.write().await;
    let table = Table::with_one_replica().await;
    let groups: Vec<String> = (0..24).map(|at| format!("group-{at}")).collect();
    let acked: Vec<AtomicI64> = groups.iter().map(|_| AtomicI64::new(0)).collect();
    let over = AtomicBool::new(false);
    let writer = async |at: usize| {
        let row = |name| (groups[at].clone(), format!("name-{name:02}"));
        let rows: Vec<_> = (0..NAMES).map(row).collect();
        for value in 1.. {
            if over.load(Ordering::Relaxed) {
                return;
            }
            if table.run(1, Consistency::One, &batch(&rows, value), ()).await.is_ok() {
                acked[at].store(value, Ordering::Relaxed);
            }
            // A dead replica refuses at once.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let kill = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        let killed = tokio::task::spawn_blocking(|| Killed::nodes(&["3"])).await;
        over.store(true, Ordering::Relaxed);
        killed.expect("killed")
    };
    let (_, killed) = tokio::join!(join_all((0..groups.len()).map(writer)), kill);
    // It starts again and replays its commit log.
    drop(killed);
    for (group, acked) in groups.iter().zip(&acked) {
        let (values, acked) = (values(&table, group).await, acked.load(Ordering::Relaxed));
        assert!(acked > 0, "{group}: something was written");
        assert_eq!(values.len(), 2 * NAMES, "{group} is torn: {values:?}");
        assert!(values.iter().all(|value| *value == values[0]), "{group} is torn: {values:?}");
        assert!(values[0] >= acked, "{group}: {acked} was acknowledged, {} is there", values[0]);
    }
    table.drop().await;
}
