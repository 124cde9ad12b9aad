use std::time::Duration;

use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::crdt::envelope::encode_shard;
use crate::crdt::{Counter, CounterOp, Kind, Op};
use crate::protocol::row_reader::RowReader;
use crate::protocol::{Name, Overrides, Row};

const START_US: i64 = 1_700_000_000_000_000;

pub(super) fn constants() -> Constants {
    Constants::resolve(Overrides::default()).expect("defaults")
}

pub(super) fn at(seconds: u64) -> Now {
    let span = Duration::from_secs(seconds);
    Now { wall: Timestamp::from_micros(START_US).plus(span), boot: Duration::from_secs(9) + span }
}

fn mutator() -> Mutator {
    mutator_of(Kind::Counter)
}

pub(super) fn mutator_of(kind: Kind) -> Mutator {
    let id = MutatorId::new(Uuid::from_u128(7));
    Mutator::born(key_of(kind), id, None, at(0), &constants())
}

pub(super) fn key_of(kind: Kind) -> Key {
    let name = |text| Name::new(text).expect("name");
    Key { kind, group: name("g"), name: name("n") }
}

fn row_of(write: &ShardWrite) -> Row {
    let (expires_at, mutator_id) = (write.expires_at(), write.mutator_id());
    Row { expires_at, mutator_id, state: write.state().to_vec() }
}

fn add(by: i64) -> Vec<Op> {
    vec![Op::Counter(CounterOp::Add { by })]
}

fn queued(mutator: &mut Mutator, by: i64, durability: Durability) -> Ticket {
    match mutator.accept(add(by), durability, at(1)) {
        Ok(Accepted::Queued(ticket)) => ticket,
        other => panic!("{other:?}"),
    }
}

pub(super) fn begin(mutator: &mut Mutator, now: Now) -> ShardWrite {
    match mutator.begin_write(now) {
        Begin::Write(write) => write,
        other => panic!("{other:?}"),
    }
}

fn total(write: &ShardWrite) -> State {
    RowReader::of(write.key()).state(&row_of(write)).expect("own bytes")
}

fn counter(total: i128) -> State {
    State::Counter(Counter::from_total(total))
}

pub(super) fn refused() -> WriteOutcome {
    Err(WriteError::Refused("down".into()))
}

pub(super) fn unknown() -> WriteOutcome {
    Err(WriteError::Unknown("timeout".into()))
}

#[test]
fn what_arrives_during_a_flight_goes_with_the_next_write() {
    let mut mutator = mutator();
    queued(&mut mutator, 1, Durability::Stored);
    let first = begin(&mut mutator, at(1));
    queued(&mut mutator, 2, Durability::Stored);
    queued(&mut mutator, 4, Durability::Stored);
    assert_eq!(mutator.begin_write(at(1)), Begin::Idle, "one write in flight");
    assert_eq!(mutator.finish_write(Ok(()), at(1)), Finished::Acked);
    let second = begin(&mut mutator, at(1));
    assert_eq!((total(&first), total(&second)), (counter(1), counter(7)));
    assert!(second.timestamp() > first.timestamp(), "same clock reading, greater timestamp");
    assert!(!mutator.is_clean());
    mutator.finish_write(Ok(()), at(1));
    assert!(mutator.is_clean());
    assert_eq!(mutator.begin_write(at(2)), Begin::Idle);
}

#[test]
fn each_envelope_holds_the_number_of_its_write() {
    let mut mutator = mutator();
    for number in 1..=3 {
        queued(&mut mutator, 1, Durability::Stored);
        let write = begin(&mut mutator, at(number));
        let seal = KeySeal::of(write.key()).row(write.expires_at(), write.mutator_id());
        assert_eq!(write.state(), encode_shard(seal, &total(&write), number));
        mutator.finish_write(Ok(()), at(number));
    }
}

#[test]
fn an_op_weighs_one_and_one_more_for_each_64_bytes() {
    let set = |letters| {
        let value = "x".repeat(letters);
        Kind::Register.parse_op(&serde_json::json!({"op": "set", "value": value})).expect("an op")
    };
    let bytes = set(0).heap_bytes();
    let (light, heavy) = (set(64 * 3 - 1 - bytes % 64), set(64 * 3 - bytes % 64));
    let weight = |ops: &[Op]| Change::from(ops.to_vec()).weight();
    assert_eq!(weight(&add(1)), 1);
    assert_eq!(weight(std::slice::from_ref(&light)), 1 + bytes / 64 + 2);
    assert_eq!(weight(std::slice::from_ref(&heavy)), 1 + bytes / 64 + 3);
    assert_eq!(weight(&[light, heavy]), 2 * (1 + bytes / 64) + 5);
    assert_eq!(weight(&[]), 0);
}

#[test]
fn each_op_that_needs_a_dot_gets_one_of_its_own() {
    let mut mutator = mutator_of(Kind::OrSet);
    let (expires_at, mutator_id) = (mutator.lease().expires_at(), mutator.id);
    let mut expected = State::new(Kind::OrSet, None);
    for (seq, item) in [(1, "a"), (2, "b"), (3, "a")] {
        let op = Kind::OrSet.parse_op(&serde_json::json!({"op": "add", "item": item}));
        let mut op = op.expect("an op");
        mutator.accept(vec![op.clone()], Durability::Stored, at(1)).expect("accepted");
        op.assign(&mut || Dot { expires_at, mutator_id, seq });
        expected.apply(&op).expect("room");
    }
    assert_eq!(total(&begin(&mut mutator, at(1))), expected);
}

#[test]
fn waiting_ops_count_and_a_write_is_unresolved_until_acked() {
    let mut mutator = mutator();
    assert_eq!((mutator.queued(), mutator.is_unresolved()), (0, false));
    queued(&mut mutator, 1, Durability::Stored);
    mutator.accept([add(2), add(3)].concat(), Durability::Stored, at(1)).expect("accepted");
    assert_eq!(mutator.queued(), 3);
    begin(&mut mutator, at(1));
    assert_eq!((mutator.queued(), mutator.is_unresolved()), (0, false));
    mutator.finish_write(unknown(), at(1));
    assert!(mutator.is_unresolved());
    begin(&mut mutator, at(2));
    mutator.finish_write(Ok(()), at(2));
    assert!(!mutator.is_unresolved());
}

#[test]
fn a_write_may_be_sent_until_the_lease_is_over() {
    let mut mutator = mutator();
    queued(&mut mutator, 1, Durability::Stored);
    let write = begin(&mut mutator, at(1));
    assert_eq!(write.expires_at(), mutator.lease().expires_at());
    assert!(write.may_be_sent(write.timestamp()));
    assert!(write.may_be_sent(write.expires_at().shifted(-1)));
    assert!(!write.may_be_sent(write.expires_at()));
    assert!(!write.may_be_sent(write.expires_at().next()));
}

#[test]
fn timestamps_rise_when_the_clock_is_set_back() {
    let mut mutator = mutator();
    queued(&mut mutator, 1, Durability::Stored);
    let first = begin(&mut mutator, at(100));
    mutator.finish_write(Ok(()), at(100));
    queued(&mut mutator, 1, Durability::Stored);
    let second = begin(&mut mutator, at(50));
    assert_eq!(second.timestamp(), first.timestamp().next());
}

#[test]
fn a_refused_write_is_undone_and_the_waiting_ops_replayed() {
    let mut mutator = mutator();
    queued(&mut mutator, 1, Durability::Stored);
    begin(&mut mutator, at(1));
    queued(&mut mutator, 2, Durability::Stored);
    let finished = mutator.finish_write(refused(), at(1));
    assert_eq!(finished, Finished::Refused { reason: "down".into(), rejected: vec![] });
    let next = begin(&mut mutator, at(2));
    assert_eq!(total(&next), counter(2));
}

/// The ancestor's defect 4: a failed write stayed in memory without notice.
#[test]
fn regression_4_an_unknown_write_is_kept_and_written_again() {
    let mut mutator = mutator();
    queued(&mut mutator, 1, Durability::Stored);
    begin(&mut mutator, at(1));
    assert_eq!(mutator.finish_write(unknown(), at(1)), Finished::Unknown("timeout".into()));
    assert!(!mutator.is_clean());
    queued(&mut mutator, 2, Durability::Stored);
    let again = begin(&mut mutator, at(2));
    assert_eq!(total(&again), counter(3), "the unknown op is in every later state (I2)");
    let Finished::Refused { .. } = mutator.finish_write(refused(), at(2)) else { panic!() };
    let third = begin(&mut mutator, at(3));
    assert_eq!(total(&third), counter(1), "only the refused op is undone");
    assert_eq!(mutator.finish_write(Ok(()), at(3)), Finished::Acked);
    assert!(mutator.is_clean());
}

#[test]
fn an_ack_after_the_lease_is_no_ack() {
    let lifetime = constants().lifetime().as_secs();
    for late in [
        at(lifetime),
        Now { wall: at(1).wall, boot: at(lifetime).boot }, // suspended, wall clock set back
        Now { wall: at(lifetime).wall, boot: at(1).boot },
    ] {
        let mut mutator = mutator();
        queued(&mut mutator, 1, Durability::Stored);
        begin(&mut mutator, at(1));
        assert_eq!(mutator.finish_write(Ok(()), late), Finished::TooLate);
        assert_eq!(mutator.begin_write(late), Begin::Dead);
    }
}

#[test]
fn a_draining_mutator_takes_no_ops_but_writes_those_it_has() {
    let mut mutator = mutator();
    queued(&mut mutator, 1, Durability::Stored);
    let draining = at((constants().lifetime() - constants().drain_margin()).as_secs());
    let refusal = mutator.accept(add(5), Durability::Stored, draining);
    assert_eq!(refusal, Err(Refusal::Draining(add(5).into())));
    assert_eq!(total(&begin(&mut mutator, draining)), counter(1));
}

#[test]
fn a_successor_inherits_what_was_never_sent() {
    let mut mutator = mutator();
    queued(&mut mutator, 1, Durability::Stored);
    queued(&mut mutator, 2, Durability::Memory);
    let dead = at(constants().lifetime().as_secs());
    assert_eq!(mutator.begin_write(dead), Begin::Dead);
    assert_eq!(mutator.end(), Estate { inherited: vec![add(2).into()], lost: 0 });
}

/// If the outcome of a write is unknown, adding it again could count it twice.
#[test]
fn what_was_in_flight_is_inherited_only_where_twice_is_once() {
    let dead = at(constants().lifetime().as_secs());
    for &kind in Kind::ALL {
        let op = kind.parse_op(&serde_json::from_str(kind.about().example_op).expect("JSON"));
        let mut ops = vec![op.expect("an op")];
        ops.iter_mut().for_each(|op| op.stamp(at(1).wall));
        for outcome in [Some(unknown()), Some(Ok(())), None] {
            let mut mutator = mutator_of(kind);
            let mut answer = |durability| mutator.accept(ops.clone(), durability, at(1)).map(drop);
            answer(Durability::Memory).expect("accepted");
            answer(Durability::Stored).expect("accepted");
            begin(&mut mutator, at(1));
            match outcome {
                // The store's answer came too late to count.
                Some(outcome) => drop(mutator.finish_write(outcome, dead)),
                None => {
                    mutator.finish_write(unknown(), at(1));
                    begin(&mut mutator, at(2));
                    mutator.finish_write(Ok(()), at(2));
                }
            }
            let Estate { inherited, lost } = mutator.end();
            let expected =
                match (mutator.is_unresolved(), kind.about().is_idempotent || kind.is_timed()) {
                    (false, _) => (0, 0),
                    (true, true) => (1, 0),
                    (true, false) => (0, 1),
                };
            assert_eq!((inherited.len(), lost), expected, "{kind}");
        }
    }
}

/// A fold may have forgotten the removal that such an op lost against.
#[test]
fn an_op_that_waited_for_a_week_is_refused_where_folds_forget() {
    let born = at(0);
    for kind in [Kind::LwwSet, Kind::Register] {
        let oldest = born.wall.plus(constants().lifetime()).minus(OP_AGE_MAX);
        for (time, fits) in [(oldest, true), (oldest.shifted(-1), kind == Kind::Register)] {
            let mut op = kind.read_bare_op("7").expect("an op");
            op.stamp(time);
            let mut mutator = mutator_of(kind);
            let accepted = mutator.accept(vec![op], Durability::Memory, born);
            assert_eq!(accepted.is_ok(), fits, "{kind}: {accepted:?}");
            assert_eq!(mutator.queued() > 0, fits, "{kind}");
        }
    }
}

#[test]
fn no_answers_from_memory_after_a_second_without_an_ack() {
    let memory = |mutator: &mut Mutator, now| mutator.accept(add(1), Durability::Memory, now);
    let mut mutator = mutator();
    queued(&mut mutator, 1, Durability::Stored);
    begin(&mut mutator, at(1));
    assert!(memory(&mut mutator, at(2)).is_ok(), "the write is out for a second");
    let later = Now { boot: at(2).boot + Duration::from_millis(1), ..at(2) };
    assert_eq!(memory(&mut mutator, later), Err(Refusal::Unacked));
    assert!(mutator.accept(add(1), Durability::Stored, later).is_ok());
    mutator.finish_write(unknown(), later);
    begin(&mut mutator, at(3));
    assert_eq!(memory(&mut mutator, at(3)), Err(Refusal::Unacked), "since the first write");
    mutator.finish_write(Ok(()), at(3));
    assert!(memory(&mut mutator, at(9)).is_ok());
}

#[test]
fn a_refused_write_that_left_nothing_keeps_memory_answers() {
    let mut mutator = mutator();
    queued(&mut mutator, 1, Durability::Stored);
    begin(&mut mutator, at(1));
    mutator.finish_write(refused(), at(1));
    assert!(mutator.is_clean(), "its client has an answer");
    assert!(mutator.accept(add(1), Durability::Memory, at(10)).is_ok());
    begin(&mut mutator, at(10));
    mutator.finish_write(refused(), at(10));
    let waits = mutator.accept(add(1), Durability::Memory, at(12));
    assert_eq!(waits, Err(Refusal::Unacked), "the first one still waits");
}

#[test]
fn ops_answered_from_memory_survive_a_refused_write() {
    let mut mutator = mutator();
    queued(&mut mutator, 1, Durability::Memory);
    queued(&mut mutator, 2, Durability::Stored);
    begin(&mut mutator, at(1));
    mutator.finish_write(refused(), at(1));
    assert_eq!(total(&begin(&mut mutator, at(2))), counter(1));
}

#[test]
fn only_what_was_never_sent_can_be_withdrawn() {
    let mut mutator = mutator();
    let sent = queued(&mut mutator, 1, Durability::Stored);
    begin(&mut mutator, at(1));
    let waiting = queued(&mut mutator, 2, Durability::Stored);
    queued(&mut mutator, 4, Durability::Stored);
    assert_eq!(mutator.withdraw(sent), None);
    assert_eq!(mutator.withdraw(waiting), Some(vec![]));
    assert_eq!(mutator.withdraw(waiting), None);
    mutator.finish_write(Ok(()), at(1));
    assert_eq!(total(&begin(&mut mutator, at(2))), counter(5));
}

#[test]
fn an_op_that_only_fitted_on_an_undone_one_is_rejected() {
    let mut mutator = mutator();
    let huge = State::Counter(Counter::from_total(i128::MAX));
    (mutator.settled, mutator.head) =
        (MutatorContent::State(huge.clone()), MutatorContent::State(huge));
    let down = queued(&mut mutator, -5, Durability::Stored);
    let up = queued(&mut mutator, 3, Durability::Stored);
    let rejected = mutator.withdraw(down).expect("never sent");
    let error = OpError::Overflow { kind: "counter" };
    assert_eq!(rejected, vec![Rejected { ticket: up, error: error.clone(), was_answered: false }]);
    let down = queued(&mut mutator, -5, Durability::Stored);
    let up = queued(&mut mutator, 3, Durability::Memory);
    let rejected = mutator.withdraw(down).expect("never sent");
    assert_eq!(rejected, vec![Rejected { ticket: up, error, was_answered: true }], "it is lost");
}

#[test]
fn an_op_without_effect_is_acked_at_once_iff_it_is_stored() {
    let mut mutator = mutator();
    queued(&mut mutator, 0, Durability::Stored); // creates the key
    begin(&mut mutator, at(1));
    mutator.finish_write(unknown(), at(1));
    queued(&mut mutator, 0, Durability::Stored); // not known to be stored
    begin(&mut mutator, at(2));
    mutator.finish_write(Ok(()), at(2));
    assert_eq!(mutator.accept(add(0), Durability::Stored, at(3)), Ok(Accepted::Stored));
}

#[test]
fn the_queue_is_bounded() {
    let mut mutator = mutator();
    for _ in 0..QUEUE_MAX {
        queued(&mut mutator, 1, Durability::Stored);
    }
    let refusal = mutator.accept(add(1), Durability::Stored, at(1));
    assert_eq!(refusal, Err(Refusal::QueueFull));
}

#[derive(Debug, Clone)]
enum Step {
    Accept(i64),
    WithdrawLast,
    Begin,
    Acked,
    Refused,
    Unknown,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<i64>().prop_map(Step::Accept),
        1 => Just(Step::WithdrawLast),
        3 => Just(Step::Begin),
        2 => Just(Step::Acked),
        1 => Just(Step::Refused),
        1 => Just(Step::Unknown),
    ]
}

proptest! {
    /// Compared with a list of ops: each written state is the sum of exactly the ops that were sent and not
    /// refused, whatever the order of events.
    #[test]
    fn written_states_hold_exactly_what_was_sent_and_not_refused(
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let mut mutator = mutator();
        let (mut waiting, mut flying, mut settled) = (Vec::<(Ticket, i64)>::new(), Vec::new(), 0i128);
        let mut last = None;
        let mut in_flight = false;
        for step in steps {
            match step {
                Step::Accept(by) => match mutator.accept(add(by), Durability::Stored, at(1)) {
                    Ok(Accepted::Queued(ticket)) => waiting.push((ticket, by)),
                    Ok(Accepted::Stored) => prop_assert_eq!(by, 0),
                    Err(refusal) => prop_assert!(false, "{:?}", refusal),
                },
                Step::WithdrawLast => if let Some((ticket, _)) = waiting.pop() {
                    prop_assert_eq!(mutator.withdraw(ticket), Some(vec![]));
                },
                Step::Begin => if let Begin::Write(write) = mutator.begin_write(at(1)) {
                    flying = std::mem::take(&mut waiting);
                    in_flight = true;
                    let sum = settled + flying.iter().map(|(_, by)| i128::from(*by)).sum::<i128>();
                    prop_assert_eq!(total(&write), counter(sum));
                    prop_assert!(last < Some(write.timestamp()), "timestamps rise (I2)");
                    last = Some(write.timestamp());
                },
                Step::Acked | Step::Unknown if in_flight => {
                    let acked = matches!(step, Step::Acked);
                    mutator.finish_write(if acked { Ok(()) } else { unknown() }, at(1));
                    settled += flying.drain(..).map(|(_, by)| i128::from(by)).sum::<i128>();
                    in_flight = false;
                }
                Step::Refused if in_flight => {
                    mutator.finish_write(refused(), at(1));
                    flying.clear();
                    in_flight = false;
                }
                Step::Acked | Step::Unknown | Step::Refused => {}
            }
        }
    }
}
