//! Rows that are written, read or folded together.

use std::collections::HashSet;

use orderfree::store::SweepPart;
use orderfree_core::protocol::fold::{self, Fold};
use orderfree_core::protocol::sweep::Nominator;
use orderfree_core::protocol::{Key, Mutator, ShardWrite};
use tokio::sync::mpsc;

use super::{Subject, key, next_write};

pub(crate) async fn rows_written_together_each_win_by_their_own_timestamp(subject: Subject) {
    let keys: Vec<Key> = (0..9).map(|at| key(&format!("g{}", at % 3), &format!("n{at}"))).collect();
    let mut mutators: Vec<Mutator> = keys.iter().map(|key| subject.born(key)).collect();
    let mut write = |at: usize, by| next_write(&mut mutators[at], by, subject.now());
    let first: Vec<ShardWrite> = (0..9).map(|at| write(at, 1)).collect();
    assert_eq!(subject.store.write_shards(&first).await, Ok(()));
    // A write to one group only. Then an older state of its row arrives late, with a row of another group.
    mutators[0].finish_write(Ok(()), subject.now());
    let newer = next_write(&mut mutators[0], 10, subject.now());
    assert_eq!(subject.store.write_shards(&[newer]).await, Ok(()));
    assert_eq!(subject.store.write_shards(&first[..2]).await, Ok(()));
    for (at, key) in keys.iter().enumerate() {
        assert_eq!(subject.total(key).await, Some(if at == 0 { 11 } else { 1 }), "{key}");
    }
}

pub(crate) async fn keys_of_one_lane_share_their_replicas(subject: Subject) {
    let first = |group: &str, name: &str| subject.store.first_replica(&key(group, name));
    assert_eq!(first("g", "a"), first("g", "b"), "one group is one partition");
    let replicas: HashSet<_> = (0..100).map(|at| first(&at.to_string(), "n")).collect();
    assert!(replicas.len() <= 3, "up to one per node of these tests: {replicas:?}");
}

pub(crate) async fn a_sweep_ends_when_its_receiver_is_gone(subject: Subject) {
    for at in 0..20 {
        for _ in 0..2 {
            subject.put(&key("g", &format!("n{at}")), 1).await;
        }
    }
    let now = subject.when_final();
    let of = subject.store.sweep_parts();
    let (sender, receiver) = mpsc::channel(1);
    drop(receiver);
    for index in 0..of {
        let part = SweepPart { index, of };
        subject
            .store
            .sweep(part, Nominator::new(now, subject.constants), sender.clone())
            .await
            .expect("an early end");
    }
}

pub(crate) async fn keys_of_a_group_are_folded_together(subject: Subject) {
    let keys = ["a", "b", "c", "d", "e"].map(|text| key("g", text));
    let [a, b, c, d, e] = &keys;
    // Two keys with only final rows, one with a tally and a final row, a young one, and one without rows.
    for (key, shards) in [(a, 2), (b, 3), (c, 2), (&key("g", "bb"), 2), (&key("h", "a"), 2)] {
        for by in 1..=shards {
            subject.put(key, by).await;
        }
    }
    subject.fold(c, subject.when_final()).await;
    subject.clock.advance(subject.constants.lifetime() + subject.constants.cutoff());
    subject.put(c, 10).await;
    let now = subject.when_final();
    subject.clock.advance(subject.constants.lifetime() + subject.constants.cutoff());
    subject.put(d, 7).await;

    // The keys are not in the order of their names.
    let asked = [d, b, e, a, c].map(Key::clone);
    let reads = subject.store.read_for_folds(&asked).await.expect("full reads");
    let seen: Vec<_> = reads.iter().map(|read| (read.key(), read.slice().len())).collect();
    assert_eq!(seen, [(d, 1), (b, 3), (e, 0), (a, 2), (c, 2)]);
    let plans = reads.iter().map(|read| fold::plan(read, now, &subject.constants).expect("plans"));
    let folds: Vec<Fold> = plans.filter_map(|plan| plan.fold().cloned()).collect();
    assert_eq!(folds.iter().map(Fold::key).collect::<Vec<_>>(), [b, a, c]);
    for _ in 0..2 {
        assert_eq!(subject.store.write_folds(&folds).await, Ok(()), "twice is once");
        for (key, total, rows) in
            [(a, 3, 1), (b, 6, 1), (c, 13, 1), (d, 7, 1), (&key("g", "bb"), 3, 2)]
        {
            assert_eq!(subject.total(key).await, Some(total), "{key}");
            assert_eq!(subject.rows(key).await.expect("rows"), rows, "{key}");
        }
    }
    assert_eq!(subject.total(e).await, None);
    assert_eq!(subject.rows(&key("h", "a")).await.expect("rows"), 2, "another group");
}
