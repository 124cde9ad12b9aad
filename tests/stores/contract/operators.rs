//! The promises of every store to operators.

use std::collections::BTreeSet;

use orderfree_core::crdt::Kind;

use super::{Subject, key, next_write};

pub(crate) async fn a_row_is_removed_as_it_was_read_and_nothing_else(subject: Subject) {
    let key = key("g", "n");
    let mut mutator = subject.born(&key);
    let write = next_write(&mut mutator, 1, subject.now());
    subject.write(&write).await;
    mutator.finish_write(Ok(()), subject.now());
    subject.put(&key, 10).await;
    let read = subject.store.read_for_fold(&key).await.expect("a full read");
    let rows = read.slice().shards().cloned().collect::<Vec<_>>();
    let row = rows.iter().find(|row| row.mutator_id == write.mutator_id()).expect("the row");
    for _ in 0..2 {
        assert_eq!(subject.store.remove_row(&key, row).await, Ok(()));
        assert_eq!(subject.total(&key).await, Some(10));
    }
    // Later writes of its mutator stay.
    subject.write(&next_write(&mut mutator, 100, subject.now())).await;
    assert_eq!(subject.total(&key).await, Some(111));
}

pub(crate) async fn groups_of_a_kind_are_listed_page_by_page(subject: Subject) {
    let groups: BTreeSet<String> = (0..7).map(|index| format!("group {index}")).collect();
    for group in &groups {
        subject.put(&key(group, "a"), 1).await;
        subject.put(&key(group, "b"), 1).await;
    }
    for limit in [1, 3, 100] {
        let (mut found, mut behind) = (Vec::new(), None);
        loop {
            let list = subject.store.groups(Kind::Counter, behind.as_ref(), limit).await;
            let list = list.expect("a list");
            assert!(list.groups.len() <= limit);
            found.extend(list.groups.iter().map(ToString::to_string));
            behind = list.next;
            if behind.is_none() {
                break;
            }
        }
        found.sort();
        assert_eq!(
            found,
            groups.iter().cloned().collect::<Vec<_>>(),
            "each once, {limit} at a time"
        );
    }
    let others = subject.store.groups(Kind::Sum, None, 100).await.expect("a list");
    assert!(others.groups.is_empty(), "of another kind");
}

pub(crate) async fn names_of_a_group_are_counted_up_to_a_bound(subject: Subject) {
    for name in ["a", "a b", "b", "é"] {
        subject.put(&key("g", name), 1).await;
        subject.put(&key("g", name), 2).await;
    }
    subject.put(&key("g2", "c"), 1).await;
    let group = key("g", "a").group;
    let count = async |kind, most| subject.store.count_names(kind, &group, most).await;
    for (most, counted) in [(0, 0), (1, 1), (3, 3), (4, 4), (100, 4)] {
        assert_eq!(count(Kind::Counter, most).await.expect("a count"), counted, "up to {most}");
    }
    assert_eq!(count(Kind::Sum, 100).await.expect("a count"), 0, "of another kind");
}
