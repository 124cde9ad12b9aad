//! Mutators of ops with ids.

use std::time::Duration;

use super::tests::{at, begin, key_of};
use super::*;
use crate::crdt::envelope::{Shard, decode_shard};
use crate::crdt::pack::{IdOp, OpId, PACK_BYTES_MAX};
use crate::crdt::{CounterOp, Kind, Op};
use crate::protocol::Overrides;
use uuid::Uuid;

fn constants() -> Constants {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let overrides = Overrides {
        request_budget: seconds(10),
        clock_offset_max: seconds(5),
        ..Overrides::default()
    };
    Constants::resolve(overrides).expect("consistent")
}

/// A mutator that expires 100 s after its birth.
fn mutator() -> Mutator {
    let id = MutatorId::new(Uuid::from_u128(7));
    let expires_at = at(100).wall;
    Mutator::born_until(key_of(Kind::Counter), id, None, expires_at, at(0), &constants())
}

fn op(number: u128, by: i64) -> Change {
    let id = OpId { id: number.to_be_bytes(), index: 0 };
    let add = [Op::Counter(CounterOp::Add { by })];
    Change::Named(IdOp::new(Kind::Counter, id, 0, &add).expect("an op"))
}

fn total(number: u128, sequence: u64) -> Change {
    let Change::Named(mut total) = op(number, 1) else { unreachable!("an op with an id") };
    total.sequence = sequence;
    Change::Named(total)
}

fn accept(mutator: &mut Mutator, change: Change, seconds: u64) -> Result<Accepted, Refusal> {
    mutator.accept(change, Durability::Stored, at(seconds))
}

fn ids_in(write: &ShardWrite) -> Vec<u128> {
    let shard = decode_shard(write.seal(), Kind::Counter, write.state()).expect("own bytes");
    let Shard::Pack(pack) = shard else { panic!("{shard:?}") };
    pack.entries.iter().map(|entry| u128::from_be_bytes(entry.id.id)).collect()
}

#[test]
fn ops_with_ids_are_written_together_and_once() {
    let mut mutator = mutator();
    assert!(mutator.is_pack());
    for number in [3, 1, 3] {
        assert!(matches!(accept(&mut mutator, op(number, 5), 1), Ok(Accepted::Queued(_))));
    }
    assert_eq!(ids_in(&begin(&mut mutator, at(1))), [1, 3]);
    assert!(matches!(accept(&mut mutator, op(1, 5), 1), Ok(Accepted::Queued(_))), "not stored yet");
    assert_eq!(mutator.finish_write(Ok(()), at(2)), Finished::Acked);
    begin(&mut mutator, at(2));
    assert_eq!(mutator.finish_write(Ok(()), at(2)), Finished::Acked);
    assert_eq!(accept(&mut mutator, op(1, 5), 3), Ok(Accepted::Stored));
    let refused = accept(&mut mutator, op(1, 6), 3);
    assert_eq!(refused, Err(Refusal::Op(OpError::IdReused)));
    assert!(mutator.is_clean());
}

/// A retry must not be acknowledged from memory once a fold may have taken the row.
#[test]
fn the_lease_ends_before_any_clock_can_see_the_row_as_final() {
    let mut mutator = mutator();
    accept(&mut mutator, op(1, 5), 1).expect("room");
    begin(&mut mutator, at(1));
    mutator.finish_write(Ok(()), at(1));
    assert_eq!(accept(&mut mutator, op(1, 5), 79), Ok(Accepted::Stored));
    // R + 2ε before the expiry.
    assert_eq!(accept(&mut mutator, op(1, 5), 80), Err(Refusal::Draining(op(1, 5))));
    let set_back = Now { wall: at(50).wall, boot: at(80).boot };
    let refused = mutator.accept(op(1, 5), Durability::Stored, set_back);
    assert!(matches!(refused, Err(Refusal::Draining(_))));
    accept(&mut mutator, op(2, 5), 79).expect("room");
    begin(&mut mutator, at(79));
    assert_eq!(mutator.finish_write(Ok(()), at(100)), Finished::TooLate);
}

#[test]
fn a_full_mutator_hands_on_and_its_bytes_are_counted() {
    let mut mutator = mutator();
    let (mut next, mut heirs) = (0, 0);
    loop {
        match accept(&mut mutator, op(next, 1), 1) {
            Ok(_) => next += 1,
            Err(Refusal::Full(_)) if mutator.leaves_room(at(1).wall, &constants()) => {
                assert!(mutator.pack_bytes() <= PACK_BYTES_MAX);
                heirs += 1;
                mutator = self::mutator().succeeding(mutator.legacy());
            }
            Err(Refusal::Full(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(heirs, KEY_STATES_BYTES_MAX / PACK_BYTES_MAX - 1);
    assert!(next > 40_000, "{next}");
}

/// Adds ids until the mutator gets a successor, as many in each write as given. They come while the write before is in
/// flight, or after its end. Returns the mutator's bytes, and how often it wrote them on average.
fn until_succeeded(ids_of_write: u128, in_flight: bool) -> (usize, usize) {
    let mut mutator = mutator();
    let (mut number, mut written) = (0, 0);
    loop {
        for _ in 0..ids_of_write {
            match accept(&mut mutator, op(number, 1), 1) {
                Ok(_) => number += 1,
                Err(Refusal::Full(_)) => {
                    let bytes = mutator.pack_bytes();
                    return (bytes, written / bytes);
                }
                other => panic!("{other:?}"),
            }
        }
        if in_flight && written > 0 {
            mutator.finish_write(Ok(()), at(1));
        }
        begin(&mut mutator, at(1));
        written += mutator.pack_bytes();
        if !in_flight {
            mutator.finish_write(Ok(()), at(1));
        }
    }
}

#[test]
fn small_writes_go_to_small_packs() {
    for (ids_of_write, bytes, times) in
        [(1, 1_000..1_100, 26), (8, 1_200..1_500, 5), (100, 15_900..PACK_BYTES_MAX, 5)]
    {
        for in_flight in [false, true] {
            let (filled, average) = until_succeeded(ids_of_write, in_flight);
            let is_right = bytes.contains(&filled) && average <= times;
            assert!(is_right, "{ids_of_write}, {in_flight}: {filled}, {average}");
        }
    }
}

/// A sender has one entry in its pack, which each of its totals replaces.
#[test]
fn totals_close_no_pack() {
    let mut mutator = mutator();
    for sequence in 1..4 {
        for number in 0..60 {
            accept(&mut mutator, total(number, sequence), 1).expect("room");
        }
        accept(&mut mutator, op(u128::from(1_000 + sequence), 1), 1).expect("room");
        begin(&mut mutator, at(1));
        mutator.finish_write(Ok(()), at(1));
    }
    assert_eq!(mutator.stored_ids(), 63);
}

/// Each write repeats what is unknown, in however many packs it lies.
#[test]
fn a_pack_with_an_unknown_write_is_not_closed_early() {
    let mut mutator = mutator();
    for number in 0..60 {
        accept(&mut mutator, op(number, 1), 1).expect("room");
    }
    begin(&mut mutator, at(1));
    mutator.finish_write(Err(WriteError::Unknown("no answer".into())), at(1));
    begin(&mut mutator, at(1));
    mutator.finish_write(Err(WriteError::Unknown("no answer".into())), at(1));
    assert!(matches!(accept(&mut mutator, op(60, 1), 1), Ok(Accepted::Queued(_))));
}

/// Each mutator knows only the ids in its own row, and a running total is replaced only there.
#[test]
fn repeats_and_totals_stay_in_a_pack_that_takes_no_other_id() {
    let mut mutator = mutator();
    for number in 0..60 {
        accept(&mut mutator, op(number, 1), 1).expect("room");
    }
    begin(&mut mutator, at(1));
    mutator.finish_write(Ok(()), at(1));
    assert_eq!(accept(&mut mutator, op(7, 1), 2), Ok(Accepted::Stored));
    accept(&mut mutator, op(59, 1), 2).expect("a repeat");
    accept(&mut mutator, op(60, 1), 2).expect("the write before added much");
    begin(&mut mutator, at(2));
    mutator.finish_write(Ok(()), at(2));
    let full = accept(&mut mutator, op(61, 1), 2);
    assert_eq!(full, Err(Refusal::Full(op(61, 1))));
    for sequence in 1..3 {
        let taken = accept(&mut mutator, total(61, sequence), 2);
        assert!(matches!(taken, Ok(Accepted::Queued(_))));
        begin(&mut mutator, at(2));
        mutator.finish_write(Ok(()), at(2));
    }
    assert_eq!(mutator.stored_ids(), 62);
}

/// Writes of kinds with large states have few rows with one expiry.
#[test]
fn only_small_kinds_get_small_packs() {
    let topk = key_of(Kind::TopK);
    let id = MutatorId::new(Uuid::from_u128(7));
    let mut mutator = Mutator::born_until(topk, id, None, at(100).wall, at(0), &constants());
    for number in 0..60u128 {
        let id = OpId { id: number.to_be_bytes(), index: 0 };
        let add = Kind::TopK.read_op(r#"{"op":"add","item":"an item"}"#).expect("an op");
        let change = Change::Named(IdOp::new(Kind::TopK, id, 0, &[add]).expect("an op"));
        assert!(matches!(accept(&mut mutator, change, 1), Ok(Accepted::Queued(_))), "{number}");
        begin(&mut mutator, at(1));
        mutator.finish_write(Ok(()), at(1));
    }
    assert!(mutator.pack_bytes() > 1_500);
}

#[test]
fn a_mutator_that_rested_knows_its_ids() {
    let mut mutator = mutator().succeeding(self::mutator().legacy());
    let resting = |mutator: &Mutator| mutator.rest().expect("clean");
    for number in 0..3 {
        let rested = resting(&mutator);
        assert_eq!(Mutator::resting_expiry(&rested), at(100).wall);
        mutator = Mutator::wake(key_of(Kind::Counter), &rested, &constants());
        assert_eq!(resting(&mutator), rested);
        assert_eq!(mutator.lease(), self::mutator().lease());
        accept(&mut mutator, op(number, 5), 1).expect("room");
        let numbers: Vec<u128> = (0..=number).collect();
        assert_eq!(ids_in(&begin(&mut mutator, at(1))), numbers);
        mutator.finish_write(Ok(()), at(1));
        assert_eq!(accept(&mut mutator, op(0, 5), 2), Ok(Accepted::Stored));
    }
}

/// What was answered from memory can't go to another expiry, where its copies would count beside these.
#[test]
fn a_dead_mutator_leaves_nothing_to_a_successor() {
    let mut mutator = mutator();
    let memory = |mutator: &mut Mutator, number| {
        mutator.accept(op(number, 1), Durability::Memory, at(1)).expect("room");
    };
    memory(&mut mutator, 1);
    begin(&mut mutator, at(1));
    mutator.finish_write(Err(WriteError::Unknown("no answer".into())), at(1));
    memory(&mut mutator, 2);
    assert_eq!(mutator.begin_write(at(100)), Begin::Dead);
    assert_eq!(mutator.end(), Estate { inherited: Vec::new(), lost: 2 });
}
