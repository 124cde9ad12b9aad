use std::time::Duration;

use super::super::tests::{at, begin, constants, key_of, mutator_of};
use super::*;
use crate::crdt::{Kind, Op};
use crate::protocol::{Durability, Key, MutatorId, Refusal};

/// An op that adds this many items of about 1,000 bytes each, starting at a number.
fn add(kind: Kind, from: usize, count: usize) -> Vec<Op> {
    let items: Vec<_> = (from..from + count).map(|n| format!("{n:0>1000}")).collect();
    let mut op = kind.parse_op(&serde_json::json!({"op": "add", "items": items})).expect("an op");
    op.stamp(at(1).wall);
    vec![op]
}

const KINDS: [Kind; 3] = [Kind::GSet, Kind::LwwSet, Kind::OrSet];

#[test]
fn a_full_mutator_gives_back_what_a_new_one_has_room_for() {
    for kind in KINDS {
        let mut mutator = mutator_of(kind);
        let accept = |mutator: &mut Mutator, ops| mutator.accept(ops, Durability::Stored, at(1));
        accept(&mut mutator, add(kind, 0, 200)).expect("room");
        let before = mutator.head.clone();
        let refused = accept(&mut mutator, add(kind, 200, 200));
        assert!(matches!(&refused, Err(Refusal::Full(ops)) if ops.ops().len() == 1), "{kind}");
        assert_eq!(mutator.head, before, "nothing is half applied");
        let alone = accept(&mut mutator, add(kind, 0, 300));
        assert_eq!(alone, Err(Refusal::Op(OpError::TooLarge)), "{kind}: no state has room for it");
        let Err(Refusal::Full(ops)) = refused else { unreachable!() };
        let mut heir = mutator_of(kind).succeeding(mutator.legacy());
        heir.accept(ops, Durability::Stored, at(1)).expect("an empty state has room");
        assert!(heir.legacy().bytes() > 400_000);
    }
}

#[test]
fn four_full_states_are_all_that_a_pod_has_of_a_key() {
    let mut mutator = mutator_of(Kind::GSet);
    for heirs in 0..4 {
        mutator.accept(add(Kind::GSet, 0, 250), Durability::Stored, at(1)).expect("room");
        assert_eq!(mutator.leaves_room(at(1).wall, &constants()), heirs < 3, "{heirs}");
        mutator = mutator_of(Kind::GSet).succeeding(mutator.legacy());
    }
}

/// They are read until a fold takes them.
#[test]
fn predecessors_count_until_their_rows_may_be_folded() {
    let mut mutator = mutator_of(Kind::GSet);
    mutator.accept(add(Kind::GSet, 0, 250), Durability::Stored, at(1)).expect("room");
    let legacy = mutator.legacy();
    let final_at = mutator.lease().expires_at().plus(constants().cutoff());
    let just_before = final_at.minus(Duration::from_micros(1));
    assert_eq!(legacy.clone().unfolded(just_before, &constants()), legacy);
    assert!(legacy.unfolded(final_at, &constants()).is_empty());
}

#[test]
fn predecessors_travel_through_rest() {
    let mut first = mutator_of(Kind::GSet);
    first.accept(add(Kind::GSet, 0, 250), Durability::Stored, at(1)).expect("room");
    let mut heir = mutator_of(Kind::GSet).succeeding(first.legacy());
    heir.accept(add(Kind::GSet, 250, 10), Durability::Stored, at(1)).expect("room");
    begin(&mut heir, at(1));
    heir.finish_write(Ok(()), at(1));
    let rested = heir.rest().expect("clean");
    let woken = Mutator::wake(key_of(Kind::GSet), &rested, &constants());
    assert_eq!(woken.legacy(), heir.legacy());
}

#[test]
fn small_states_are_not_counted() {
    let mut mutator = mutator_of(Kind::Counter);
    let op = vec![Kind::Counter.empty_op().expect("an op")];
    mutator.accept(op, Durability::Stored, at(1)).expect("accepted");
    assert!(mutator.legacy().is_empty());
}

/// A successor can remove items wherever they were added.
#[test]
fn a_successor_removes_what_its_predecessor_has_added() {
    for kind in [Kind::LwwSet, Kind::OrSet] {
        let key: Key = key_of(kind);
        let mut first = mutator_of(kind);
        first.accept(add(kind, 0, 1), Durability::Stored, at(1)).expect("room");
        let question = crate::crdt::Question { key: Some(key.clone()), ..Default::default() };
        let item = format!("{:0>1000}", 0);
        let mut remove = match kind {
            Kind::OrSet => {
                let value = serde_json::to_value(first.head.state().value(&question).shown(false));
                let seen = value.expect("JSON")["items"][0]["seen"].clone();
                serde_json::json!({"op": "remove", "item": item, "seen": seen})
            }
            _ => serde_json::json!({"op": "remove", "item": item}),
        };
        let mut op = kind.parse_op(&remove.take()).expect("an op");
        op.open(&key, at(2).wall).expect("of this key");
        op.stamp(at(2).wall);
        let id = MutatorId::new(uuid::Uuid::from_u128(8));
        let born = Mutator::born(key, id, None, at(2), &constants());
        let mut heir = born.succeeding(first.legacy());
        heir.accept(vec![op], Durability::Stored, at(2)).expect("accepted");
        let mut read = first.head.state().clone();
        read.merge(heir.head.state()).expect("one kind");
        let size = serde_json::to_value(read.value(&question).shown(false)).expect("JSON");
        assert_eq!(size["size"], 0, "{kind}");
    }
}
