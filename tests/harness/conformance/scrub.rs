//! What `nodetool scrub` does to the table. Operators run it on files that they believe damaged.

use orderfree::store::cassandra::scrub_loses_rows;
use scylla::errors::ExecutionError::LastAttemptError;
use scylla::errors::{DbError, RequestAttemptError};
use scylla::statement::Consistency::All;

use crate::cassandra::{CLUSTER, release, script};
use crate::table::{GROUP, Row, TALLY, Table};

/// The rows of a name, or none if a replica says that it can't read its files.
async fn readable(table: &Table, group: &str) -> Vec<Row> {
    let text = "SELECT expires_at, state FROM shards \
                WHERE kind = 'counter' AND grp = ? AND name = 'n'";
    let answer = match table.run(1, All, text, (group,)).await {
        Err(LastAttemptError(RequestAttemptError::DbError(DbError::ReadFailure { .. }, _))) => {
            return Vec::new();
        }
        answer => answer.expect("every node is up"),
    };
    let rows = answer.into_rows_result().expect("rows");
    rows.rows::<Row>().expect("typed").map(|row| row.expect("a row")).collect()
}

/// From Cassandra 5.0 on, scrub takes the end of a range deletion for a row. It drops the partition and ends with exit code
/// 0. Documents and `orderfree doctor` warn of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scrub_loses_folded_partitions_from_5_0_on() {
    // Damaged files can make a node stop.
    let _alone = CLUSTER.write().await;
    let table = Table::fresh_on_own().await;
    table.write(1, All, "n", (20, &[1]), 5).await;
    table.fold(1, All, "n", 20, &[2]).await;
    table.write(1, All, "n", (30, &[3]), 5).await;
    let folded = [(TALLY, vec![2]), (30, vec![3])];
    for node in ["1", "2", "3"] {
        script(&["nodetool", node, "flush", &table.config.keyspace]);
    }
    assert_eq!(readable(&table, GROUP).await, folded);
    for node in ["1", "2", "3"] {
        script(&["nodetool", node, "scrub", &table.config.keyspace, "shards"]);
    }
    let (left, release) = (readable(&table, GROUP).await, release(&table.config).await);
    println!("scrub of Cassandra {release} left {left:?} of {folded:?}");
    if scrub_loses_rows(&release) {
        assert_ne!(
            left, folded,
            "scrub keeps folded partitions on Cassandra {release}: say so in \
             src/store/cassandra/checks.rs (scrub_loses_rows), docs/operate/cassandra.md and schema.cql"
        );
    } else {
        assert_eq!(left, folded, "scrub loses folded partitions on Cassandra {release}, too");
    }
    table.drop().await;
}
