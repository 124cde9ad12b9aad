//! Cells, timestamps, deletions and limits of one partition.

use scylla::statement::Consistency::All;

use crate::cassandra::CLUSTER;
use crate::table::{GROUP, TALLY, Table};

/// Two folds with the same fence write the same timestamp. One of their tallies must win whole, on every replica and in
/// either order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_equal_timestamps_the_greater_bytes_win_in_any_order() {
    let _others_too = CLUSTER.read().await;
    let table = Table::fresh().await;
    let (less, greater): (&[u8], &[u8]) = (&[1, 9, 9], &[2]);
    for (name, states) in [("rising", [less, greater]), ("falling", [greater, less])] {
        for state in states {
            table.write(1, All, name, (100, state), 7).await;
        }
        for node in [1, 2, 3] {
            assert_eq!(table.rows(node, All, name).await, [(100, greater.to_vec())], "{name}");
        }
    }
    table.drop().await;
}

/// A deletion wins over writes with its own timestamp. A fold's timestamp is above every write of its rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_hides_what_is_not_newer_whichever_comes_first() {
    let _others_too = CLUSTER.read().await;
    let table = Table::fresh().await;
    for (timestamp, is_seen) in [(49, false), (50, false), (51, true)] {
        let seen = if is_seen { vec![(40, vec![7])] } else { vec![] };
        let (before, after) = (format!("before {timestamp}"), format!("after {timestamp}"));
        table.write(1, All, &before, (40, &[7]), timestamp).await;
        table.delete_up_to(&before, 40, 50).await;
        table.delete_up_to(&after, 40, 50).await;
        table.write(1, All, &after, (40, &[7]), timestamp).await;
        for name in [&before, &after] {
            assert_eq!(table.rows(2, All, name).await, seen, "{name}");
        }
    }
    table.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fold_leaves_the_tally_newer_rows_and_the_neighbours() {
    let _others_too = CLUSTER.read().await;
    let table = Table::fresh().await;
    for name in ["a", "b", "c"] {
        for expires_at in [10, 20, 21] {
            table.write(1, All, name, (expires_at, &[1]), 5).await;
        }
    }
    table.fold(2, All, "b", 20, &[2]).await;
    let untouched = [(21, vec![1]), (20, vec![1]), (10, vec![1])];
    assert_eq!(table.rows(3, All, "a").await, untouched);
    assert_eq!(table.rows(3, All, "b").await, [(TALLY, vec![2]), (21, vec![1])]);
    assert_eq!(table.rows(3, All, "c").await, untouched);
    table.drop().await;
}

/// Every answer that has a row of a name has its tally too, however short the answer is. A limit drops the oldest rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_keeps_the_tally_and_drops_the_oldest_rows() {
    let _others_too = CLUSTER.read().await;
    let table = Table::fresh().await;
    for expires_at in 1..=10 {
        table.write(1, All, "n", (expires_at, &[1]), 0).await;
    }
    table.fold(1, All, "n", 4, &[4]).await;
    let [tally, newest] = [(TALLY, vec![4]), (10, vec![1])];
    assert_eq!(table.select(2, All, "n", "LIMIT 1").await, std::slice::from_ref(&tally));
    assert_eq!(table.select(2, All, "n", "LIMIT 2").await, [tally.clone(), newest.clone()]);
    let behind_a_fence = table.select(3, All, "n", "AND expires_at > 9 LIMIT 5").await;
    assert_eq!(behind_a_fence, [tally, newest]);
    table.drop().await;
}

/// Keys that are folded together are read with a list of names, without a limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_a_list_are_answered_once_each_in_the_tables_order() {
    let _others_too = CLUSTER.read().await;
    let table = Table::fresh().await;
    for name in ["a", "b", "bb", "c"] {
        for expires_at in [10, 20] {
            table.write(1, All, name, (expires_at, &[1]), 5).await;
        }
    }
    table.fold(1, All, "b", 10, &[2]).await;
    let text = "SELECT name, expires_at, state FROM shards \
                WHERE kind = 'counter' AND grp = ? AND name IN ?";
    let names = ["c", "absent", "a", "c", "b"].as_slice();
    let answer = table.run(2, All, text, (GROUP, names)).await.expect("an answer");
    let answer = answer.into_rows_result().expect("rows");
    let rows: Vec<(String, i64, Vec<u8>)> =
        answer.rows().expect("typed").map(|row| row.expect("a row")).collect();
    let row = |name: &str, expires_at, state| (name.to_owned(), expires_at, vec![state]);
    let of_a = [row("a", 20, 1), row("a", 10, 1)];
    let of_b = [row("b", TALLY, 2), row("b", 20, 1)];
    let of_c = [row("c", 20, 1), row("c", 10, 1)];
    assert_eq!(rows, [of_a, of_b, of_c].concat());
    table.drop().await;
}
