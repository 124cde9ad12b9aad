use proptest::prelude::*;
use serde_json::json;

use super::super::tests::{at, begin, constants, key_of, mutator_of, refused, unknown};
use super::*;
use crate::crdt::item::Item;
use crate::crdt::{Dot, Effect, Op, Question, Value};
use crate::protocol::{Accepted, Begin, Durability, Finished, Refusal, WriteOutcome};

#[derive(Debug, Clone)]
enum Step {
    Add(String),
    Remove(String),
    Begin,
    Finish(u8),
    Later(u64),
    Back(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let text = || prop_oneof!["[0-9]{1,3}", "[0-9]{1,2}\\.[0-9]", "[a-c]{1,2}"];
    prop_oneof![
        6 => text().prop_map(Step::Add),
        2 => text().prop_map(Step::Remove),
        4 => Just(Step::Begin),
        4 => (0..6u8).prop_map(Step::Finish),
        1 => (0..40u64).prop_map(Step::Later),
        1 => (0..40u64).prop_map(Step::Back),
    ]
}

/// The op, if this kind has it.
fn op(kind: Kind, step: &Step, state: &State, now: u64) -> Option<Op> {
    let key = key_of(kind);
    let json = match step {
        Step::Add(text) => serde_json::from_str(&kind.bare_op(text)).expect("JSON"),
        Step::Remove(text) if kind == Kind::OrSet => {
            let item = Item::parse(text).expect("an item");
            let contains = Some(item.clone());
            let question = Question { key: Some(key.clone()), contains, ..Question::default() };
            match state.value(&question).field("seen") {
                Some(Value::Text(seen)) => json!({"op": "remove", "item": item, "seen": seen}),
                _ => return None,
            }
        }
        Step::Remove(text) if kind == Kind::LwwSet => json!({"op": "remove", "item": text}),
        _ => return None,
    };
    let mut op = kind.parse_op(&json).ok()?;
    op.open(&key, at(now).wall).ok()?;
    op.stamp(at(now).wall);
    Some(op)
}

/// The answer without the tickets.
fn shape(accepted: &Result<Accepted, Refusal>) -> String {
    match accepted {
        Ok(Accepted::Queued(_)) => "queued".to_owned(),
        other => format!("{other:?}"),
    }
}

fn outcome(of: u8) -> WriteOutcome {
    match of {
        0 => refused(),
        1 => unknown(),
        _ => Ok(()),
    }
}

proptest! {
    /// The law of rest: the store can't tell a mutator that slept whenever it could from one that was always
    /// awake.
    #[test]
    fn a_mutator_that_rested_goes_on_as_one_that_stayed_awake(
        steps in prop::collection::vec(step(), 0..60),
    ) {
        for &kind in Kind::ALL {
            let (mut awake, mut sleeper) = (mutator_of(kind), mutator_of(kind));
            let mut clock = 100;
            for step in &steps {
                if let Some(rested) = sleeper.rest() {
                    sleeper = Mutator::wake(key_of(kind), &rested, &constants());
                }
                prop_assert_eq!(sleeper.is_clean(), awake.is_clean());
                prop_assert_eq!(sleeper.lease(), awake.lease());
                match step {
                    Step::Add(_) | Step::Remove(_) => {
                        let Some(op) = op(kind, step, awake.head.state(), clock) else { continue };
                        let accept = |mutator: &mut Mutator| {
                            mutator.accept(vec![op.clone()], Durability::Stored, at(clock))
                        };
                        let (one, other) = (accept(&mut awake), accept(&mut sleeper));
                        prop_assert_eq!(shape(&one), shape(&other), "{}", kind);
                    }
                    Step::Begin => {
                        let one = awake.begin_write(at(clock));
                        prop_assert_eq!(&one, &sleeper.begin_write(at(clock)), "{}", kind);
                    }
                    Step::Finish(of) if awake.in_flight.is_some() => {
                        let one = awake.finish_write(outcome(*of), at(clock));
                        prop_assert_eq!(&one, &sleeper.finish_write(outcome(*of), at(clock)));
                    }
                    Step::Finish(_) => {}
                    Step::Later(seconds) => clock += seconds,
                    Step::Back(seconds) => clock = clock.saturating_sub(*seconds),
                }
            }
            prop_assert_eq!(awake.rest(), sleeper.rest());
        }
    }

    #[test]
    fn everything_is_read_back(
        (expires_us, born_ns, id) in (1..i64::MAX / 2, any::<u64>(), any::<u128>()),
        (writes, dots, before) in (any::<u64>(), any::<u64>(), proptest::option::of(0..1_000_000i64)),
        (persisted, has_ended) in (any::<bool>(), any::<bool>()),
        (bytes, precision) in (proptest::option::of(0..1 << 20usize), 4..14u16),
    ) {
        let expires_at = Timestamp::from_micros(expires_us);
        let mut heir = mutator_of(Kind::GSet);
        if bytes.is_some() {
            heir = heir.succeeding(mutator_of(Kind::GSet).legacy());
        }
        for kind in [Kind::Counter, Kind::Distinct, Kind::GSet] {
            let stamp = before.map(|before| Generation::at(Timestamp::from_micros(before)));
            let lifetime = lifetime_of(stamp, &constants());
            let rested = Rested {
                expires_at,
                born_boot: Duration::from_nanos(born_ns),
                id: MutatorId::new(Uuid::from_u128(id)),
                stamp,
                persisted,
                last_timestamp: before.map(|before| expires_at.shifted(-before)),
                writes,
                dots,
                predecessors: heir.predecessors.clone(),
                lifetime,
                held: MutatorContent::State(State::new(kind, Some(precision))),
                has_ended,
            };
            let encoded = rested.encode();
            prop_assert_eq!(Rested::decode(kind, &encoded, &constants()), Ok(rested));
            let lease = Mutator::resting_lease(&encoded, &constants());
            let born = Duration::from_nanos(born_ns);
            let resumed = Lease::resumed(expires_at, born, lifetime, &constants());
            prop_assert_eq!(lease, resumed);
        }
    }
}

#[test]
fn only_a_clean_mutator_may_rest() {
    let mut mutator = mutator_of(Kind::Counter);
    let add = || vec![Kind::Counter.empty_op().expect("an op")];
    assert!(mutator.rest().is_some(), "newborn");
    mutator.accept(add(), Durability::Stored, at(1)).expect("accepted");
    assert_eq!(mutator.rest(), None, "an op waits");
    begin(&mut mutator, at(1));
    assert_eq!(mutator.rest(), None, "a write is in flight");
    mutator.finish_write(unknown(), at(1));
    assert_eq!(mutator.rest(), None, "its outcome is unknown");
    begin(&mut mutator, at(2));
    mutator.finish_write(Ok(()), at(2));
    assert!(mutator.rest().is_some());
}

#[test]
fn a_woken_mutator_has_what_was_left_of_its_lease() {
    let mutator = mutator_of(Kind::Counter);
    let rested = mutator.rest().expect("clean");
    let woken = Mutator::wake(key_of(Kind::Counter), &rested, &constants());
    assert_eq!(woken.lease(), mutator.lease());
    let drains = (constants().lifetime() - constants().drain_margin()).as_secs();
    assert!(woken.lease().is_writable(at(drains - 1)) && !woken.lease().is_writable(at(drains)));
}

#[test]
fn dots_and_timestamps_go_on_after_a_rest() {
    let mut mutator = mutator_of(Kind::OrSet);
    let add = |item: &str| vec![Kind::OrSet.parse_op(&json!({"op": "add", "item": item})).unwrap()];
    let mut expected = State::new(Kind::OrSet, None);
    let mut last = None;
    for (seq, item) in (1..).zip(["a", "b", "a", "c"]) {
        let mut ops = add(item);
        mutator.accept(ops.clone(), Durability::Stored, at(5)).expect("accepted");
        let write = begin(&mut mutator, at(5));
        assert!(last < Some(write.timestamp()), "the clock stands still, timestamps rise");
        last = Some(write.timestamp());
        mutator.finish_write(Ok(()), at(5));
        let (expires_at, mutator_id) = (mutator.lease().expires_at(), mutator.id);
        ops[0].assign(&mut || Dot { expires_at, mutator_id, seq });
        assert_eq!(expected.apply(&ops[0]), Ok(Effect::Changed));
        assert_eq!(mutator.head.state(), &expected, "no dot is drawn twice");
        mutator = Mutator::wake(key_of(Kind::OrSet), &mutator.rest().expect("clean"), &constants());
    }
}

/// Each flaw breaks something; otherwise it would prove nothing.
#[test]
fn each_flaw_is_one() {
    let mut mutator = mutator_of(Kind::OrSet);
    let add = vec![Kind::OrSet.parse_op(&json!({"op": "add", "item": 1})).expect("an op")];
    mutator.accept(add.clone(), Durability::Stored, at(5)).expect("accepted");
    begin(&mut mutator, at(5));
    mutator.finish_write(Ok(()), at(5));
    let wake = |mutator: &Mutator, flaw| {
        let rested = mutator.rest_with(Some(flaw)).expect("it rests");
        Mutator::wake(key_of(Kind::OrSet), &rested, &constants())
    };
    assert_eq!(wake(&mutator, RestFlaw::ForgetsLastTimestamp).last_timestamp, None);
    assert_eq!(wake(&mutator, RestFlaw::DrawsDotsAgain).dots, 0);
    let renewed = wake(&mutator, RestFlaw::RenewsLease);
    assert!(renewed.lease().expires_at() > mutator.lease().expires_at());
    mutator.accept(add, Durability::Stored, at(5)).expect("accepted");
    begin(&mut mutator, at(5));
    assert!(matches!(mutator.finish_write(unknown(), at(5)), Finished::Unknown(_)));
    let mut forgetful = wake(&mutator, RestFlaw::RestsUnclean);
    assert_eq!(forgetful.begin_write(at(6)), Begin::Idle, "nothing is left to write again");
}

/// A counter at rest takes few bytes: ten million of them must fit into a pod.
#[test]
fn a_counter_rests_in_fifty_bytes() {
    let mut mutator = mutator_of(Kind::Counter);
    for _ in 0..100 {
        let by = vec![Kind::Counter.read_bare_op("1000000").expect("an op")];
        mutator.accept(by, Durability::Stored, at(3_000)).expect("accepted");
        begin(&mut mutator, at(3_000));
        mutator.finish_write(Ok(()), at(3_000));
    }
    let bytes = mutator.rest().expect("clean").len();
    assert!(bytes <= 50, "{bytes}");
}

const LITTLE: usize = 16 * 1024;

#[test]
fn what_a_successor_has_to_know_remains_until_it_may_be_folded() {
    let item = |at: usize| format!("{at:0>1000}");
    let items =
        |count: usize| json!({"op": "add", "items": (0..count).map(item).collect::<Vec<_>>()});
    let (lifetime, cutoff) = (constants().lifetime().as_secs(), constants().cutoff().as_secs());
    for (count, is_much) in [(10, false), (200, true)] {
        let mut mutator = mutator_of(Kind::GSet);
        let op = vec![Kind::GSet.parse_op(&items(count)).expect("an op")];
        mutator.accept(op, Durability::Stored, at(1)).expect("room");
        begin(&mut mutator, at(1));
        mutator.finish_write(Ok(()), at(1));
        let rested = mutator.rest().expect("clean");
        let is_over =
            |bytes: &[u8], now| Mutator::is_over_at_rest(bytes, at(now), &constants(), LITTLE);
        assert!(!is_over(&rested, 2), "it may wake");
        assert_eq!(is_over(&rested, lifetime), !is_much);
        assert!(is_over(&rested, lifetime + cutoff));
        let remains = mutator.remains(at(lifetime).wall, &constants(), LITTLE);
        assert_eq!(remains.is_some(), is_much);
        assert_eq!(mutator.remains(at(lifetime + cutoff).wall, &constants(), LITTLE), None);
        let Some(remains) = remains else { continue };
        // Another look at a clock can find an earlier time.
        assert!(Mutator::can_wake(&rested, at(2), &constants()));
        assert!(!Mutator::can_wake(&remains, at(2), &constants()));
        assert!(remains.len() < 100 && !is_over(&remains, lifetime));
        assert!(is_over(&remains, lifetime + cutoff));
        let legacy = Mutator::wake(key_of(Kind::GSet), &remains, &constants()).legacy();
        assert!(legacy.bytes() > 200_000);
    }
}
