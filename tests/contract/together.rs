//! Rows that are written together, on any store.

use std::collections::HashSet;

use orderfree_core::protocol::{Key, Mutator, ShardWrite, WriteOutcome};

use super::{Subject, key, next_write};

pub(crate) async fn rows_written_together_are_all_there_each_by_its_own_timestamp(
    subject: Subject,
) {
    let keys: Vec<Key> = (0..9).map(|at| key(&format!("g{}", at % 3), &format!("n{at}"))).collect();
    let mut mutators: Vec<Mutator> = keys.iter().map(|key| subject.born(key)).collect();
    let mut write = |at: usize, by| next_write(&mut mutators[at], by, subject.now());
    let first: Vec<ShardWrite> = (0..9).map(|at| write(at, 1)).collect();
    assert_eq!(subject.store.write_shards(&first).await, WriteOutcome::Acked);
    // One group alone; an older state of one of its rows comes late, with a row of another group.
    mutators[0].finish_write(WriteOutcome::Acked, subject.now());
    let newer = next_write(&mut mutators[0], 10, subject.now());
    assert_eq!(subject.store.write_shards(&[newer]).await, WriteOutcome::Acked);
    assert_eq!(subject.store.write_shards(&first[..2]).await, WriteOutcome::Acked);
    for (at, key) in keys.iter().enumerate() {
        assert_eq!(subject.total(key).await, Some(if at == 0 { 11 } else { 1 }), "{key}");
    }
}

pub(crate) async fn keys_of_one_lane_share_their_replicas(subject: Subject) {
    let lane = |group: &str, name: &str| subject.store.lane(&key(group, name));
    assert_eq!(lane("g", "a"), lane("g", "b"), "one group is one partition");
    let lanes: HashSet<_> = (0..100).map(|at| lane(&at.to_string(), "n")).collect();
    assert!(lanes.len() <= 3, "at most one for each node of these tests: {lanes:?}");
}
