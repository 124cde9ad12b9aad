//! The law suite, which each kind's own tests run: `laws::suite!(Type, strategy_of_ops())` for exact kinds,
//! only `laws::common!` for order-canonical ones. The [parent module](super) states the laws. `make laws`
//! runs them with many more cases.

use std::time::Duration;

use uuid::Uuid;

use super::envelope::{self, KeySeal};
use super::{Crdt, Dot, Effect, Kind, Op, OpError, State};
use crate::protocol::fold::{self, Plan};
use crate::protocol::{
    Constants, FullRead, Key, MutatorId, Name, OP_AGE_MAX, Overrides, Row, Slice, Timestamp,
};

/// One day between the expiries of the writers of two shards, so that a dozen of them span more than
/// [`OP_AGE_MAX`].
pub(super) const WRITER_EVERY_US: i64 = 24 * 3600 * 1_000_000;

/// Times of ops are multiples of this, so that shards of different writers have some times in common.
const TICK: Duration = Duration::from_secs(12 * 3600);

/// Applies the ops in order; refused ones leave no trace.
pub(super) fn accumulate<C: Crdt>(ops: &[C::Op]) -> C {
    accumulate_on(C::default(), ops)
}

/// Applies the ops to a state.
pub(super) fn accumulate_on<C: Crdt>(mut state: C, ops: &[C::Op]) -> C {
    for op in ops {
        let before = bytes(&state);
        match state.apply(op) {
            Ok(Effect::Changed) => assert_ne!(bytes(&state), before, "Changed, but same bytes"),
            Ok(Effect::Unchanged) => assert_eq!(bytes(&state), before, "Unchanged, but new bytes"),
            Err(_) => assert_eq!(bytes(&state), before, "a refused op left a trace"),
        }
    }
    state
}

pub(super) fn bytes<C: Crdt>(state: &C) -> Vec<u8> {
    let mut out = Vec::new();
    state.encode(&mut out);
    out
}

pub(super) fn merged<C: Crdt>(left: &C, right: &C) -> C {
    let mut out = left.clone();
    out.merge(right).expect("states made of ops merge");
    out
}

/// One trip through the store's bytes, as every state makes between two folds.
pub(super) fn stored<C: Crdt>(state: &C) -> C {
    let written = bytes(state);
    let read = C::decode(C::FORMAT, state.precision(), &written).expect("own bytes decode");
    assert_eq!(bytes(&read), written, "the codec is not canonical");
    read
}

/// Merges a state with itself up to this often, or until it leaves its range, for payloads of all sizes.
pub(super) fn grown<C: Crdt>(state: C, times: u32) -> C {
    let grow = |state: &C| {
        let mut next = state.clone();
        next.merge(state).ok().map(|()| next)
    };
    (0..times).fold(state, |state, _| grow(&state).unwrap_or(state))
}

/// Flips each bit of the state's shard and of its tally: the result must not decode as either.
pub(super) fn check_bit_flips<C: Crdt + Into<State>>(state: C, mark: u64) {
    let kind = Kind::from_name(C::NAME).expect("a registered kind");
    let state: State = state.into();
    let fence = Timestamp::from_micros((mark >> 1).cast_signed());
    let (key, (expires_at, id)) = (KeySeal::of(&key(kind)), writer(0));
    let row = key.row(expires_at, id);
    let (shard, tally) =
        (envelope::encode_shard(row, &state, mark), envelope::encode_tally(key, &state, fence));
    assert_eq!(envelope::decode_state(row, kind, &shard), Ok(state.clone()));
    assert_eq!(envelope::decode_tally(key, kind, &tally), Ok((fence, state)));
    for mut bytes in [shard, tally] {
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(envelope::decode_state(row, kind, &bytes).is_err(), "bit {bit} of {bytes:x?}");
            assert!(envelope::decode_tally(key, kind, &bytes).is_err(), "bit {bit} of {bytes:x?}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// Either all ops of a list are applied or none, whichever op is the bad one.
pub(super) fn check_list<C: Crdt + Into<State>>(state: C, ops: Vec<Op>) {
    let mut one_by_one: State = state.into();
    let mut at_once = one_by_one.clone();
    let before = at_once.clone();
    let applied: Result<Vec<Effect>, OpError> = ops.iter().map(|op| one_by_one.apply(op)).collect();
    match (at_once.apply_all(&ops), applied) {
        (Ok(_), Ok(_)) => assert_eq!(at_once, one_by_one),
        (Err(error), Err(first)) => {
            assert_eq!(error, first);
            assert_eq!(at_once, before, "a refused list left a trace");
        }
        (at_once, one_by_one) => panic!("{at_once:?} at once, {one_by_one:?} one by one"),
    }
}

/// The key of [`folded`].
fn key(kind: Kind) -> Key {
    let name = |text| Name::new(text).expect("a name");
    Key { kind, group: name("group"), name: name("name") }
}

/// The writer of the shard at this place of [`folded`].
pub(super) fn writer(index: usize) -> (Timestamp, MutatorId) {
    let day = i64::try_from(index).expect("few shards") + 1;
    let expires_at = Timestamp::from_micros(day * WRITER_EVERY_US);
    (expires_at, MutatorId::new(Uuid::from_u128(index as u128 + 1)))
}

/// A time that a row with this expiry can hold: from the oldest allowed one up to a day after the expiry,
/// because a pod's hybrid clock can run ahead.
fn possible(time: Timestamp, expires_at: Timestamp) -> Timestamp {
    let ticks = 1 + (OP_AGE_MAX.as_secs() + 24 * 3600) / TICK.as_secs();
    let tick = time.as_micros().rem_euclid(ticks.cast_signed());
    let after = TICK * u32::try_from(tick).expect("few ticks");
    expires_at.minus(OP_AGE_MAX).plus(after)
}

/// The ops as the mutator of the shard at this place of [`folded`] takes them: with its dots, and with times
/// from its life.
pub(super) fn assigned<C: Crdt>(index: usize, ops: &[C::Op]) -> Vec<C::Op> {
    let (expires_at, mutator_id) = writer(index);
    let mut seq = 0;
    let mut next = || {
        seq += 1;
        Dot { expires_at, mutator_id, seq }
    };
    let mut ops = ops.to_vec();
    for op in &mut ops {
        C::assign(op, &mut next);
        if let Some(time) = C::time(op) {
            C::stamp(op, possible(time, expires_at));
        }
    }
    ops
}

/// Folds the first shards at each of the fences, once all at once and once from every earlier tally: the
/// bytes must be the same. So they are the same for every way to take the fences in steps.
///
/// The fences ascend. Each is given by the number of shards at or below it, and by its distance after the
/// expiry of the last of these, in 256ths of the time to the next one.
pub(super) fn check_steps<C: Crdt>(shards: &[C], fences: &[(usize, u8)]) {
    let fold = |mut state: C, shards: &[C], fence: Timestamp| {
        shards.iter().for_each(|shard| state.merge(shard).expect("states made of ops merge"));
        state.settle(fence);
        stored(&state)
    };
    let mut tallies: Vec<(usize, C)> = Vec::new();
    for &(count, share) in fences {
        let behind = WRITER_EVERY_US * i64::from(share) / 256;
        let last = i64::try_from(count).expect("few shards") * WRITER_EVERY_US;
        let fence = Timestamp::from_micros(last + behind);
        let at_once = fold(C::default(), &shards[..count], fence);
        for (before, tally) in &tallies {
            let in_steps = fold(tally.clone(), &shards[*before..count], fence);
            assert_eq!(bytes(&in_steps), bytes(&at_once), "{before} shards, then up to {count}");
        }
        tallies.push((count, at_once));
    }
}

/// Folds shards that expire one after another: once for each `true` of `cuts` and once at the end, through
/// the store's bytes, with the shards of earlier folds coming back as zombies. Returns the last tally.
pub(super) fn folded<C: Crdt + Into<State>>(shards: &[C], cuts: &[bool], zombies: bool) -> Vec<u8> {
    let key = key(Kind::from_name(C::NAME).expect("a registered kind"));
    let seal = KeySeal::of(&key);
    let constants = Constants::resolve(Overrides::default()).expect("the defaults");
    let mut rows: Vec<Row> = Vec::new();
    let mut tally = Vec::new();
    for (index, shard) in shards.iter().enumerate() {
        let (expires_at, mutator_id) = writer(index);
        rows.push(Row {
            expires_at,
            mutator_id,
            state: envelope::encode_shard(
                seal.row(expires_at, mutator_id),
                &shard.clone().into(),
                1,
            ),
        });
        if !cuts[index] && index + 1 < shards.len() {
            continue;
        }
        // Rows expire at multiples of the fence quantum, so all of them are final.
        let now = expires_at.plus(constants.cutoff()).plus(constants.fence_quantum());
        let mut slice: Vec<Row> = rows.iter().rev().cloned().collect();
        if !tally.is_empty() {
            let state = tally.clone();
            slice.insert(
                0,
                Row { expires_at: Timestamp::NEVER, mutator_id: MutatorId::TALLY, state },
            );
        }
        let slice = Slice::new(slice, None, usize::MAX - 1).whole().expect("whole");
        let read = FullRead::at_fold_level(key.clone(), slice);
        match fold::plan(&read, now, &constants).expect("a plan") {
            Plan::Fold(fold) => tally = fold.tally().to_vec(),
            Plan::Nothing(report) => panic!("nothing to fold: {report:?}"),
        }
        if !zombies {
            rows.clear();
        }
    }
    tally
}

/// The laws that every kind keeps.
macro_rules! common {
    ($kind:ty, $ops:expr) => {
        mod law {
            use super::*;
            use crate::crdt::laws::{
                accumulate, accumulate_on, assigned, bytes, check_bit_flips, check_list,
                check_steps, folded, grown, merged, stored,
            };
            use crate::crdt::registry::Wrap;
            use crate::crdt::{Crdt, Kind, Question};
            use proptest::collection::vec;

            proptest! {
                #[test]
                fn identity(ops in vec($ops, 0..20)) {
                    let state: $kind = accumulate(&ops);
                    prop_assert_eq!(bytes(&merged(&state, &<$kind>::default())), bytes(&state));
                    prop_assert_eq!(bytes(&merged(&<$kind>::default(), &state)), bytes(&state));
                }

                #[test]
                fn commutative(a in vec($ops, 0..20), b in vec($ops, 0..20)) {
                    let (a, b): ($kind, $kind) = (accumulate(&a), accumulate(&b));
                    prop_assert_eq!(bytes(&merged(&a, &b)), bytes(&merged(&b, &a)));
                }

                #[test]
                fn canonical_codec(ops in vec($ops, 0..20), more in vec($ops, 0..20)) {
                    let state: $kind = accumulate(&ops);
                    let (mut kept, mut read) = (state.clone(), stored(&state));
                    prop_assert_eq!(&read, &kept);
                    let question = Question::default();
                    prop_assert_eq!(read.value(&question), kept.value(&question));
                    for op in &more {
                        prop_assert_eq!(read.apply(op), kept.apply(op));
                    }
                    prop_assert_eq!(bytes(&read), bytes(&kept));
                }

                #[test]
                fn whatever_decodes_is_canonical(payload in vec(any::<u8>(), 0..40)) {
                    let range = Kind::from_name(<$kind>::NAME).expect("a kind").precision();
                    let precision = range.map(|range| range.default);
                    if let Ok(state) = <$kind>::decode(<$kind>::FORMAT, precision, &payload) {
                        prop_assert_eq!(bytes(&state), payload);
                    }
                }

                /// Any chain of folds gives the bytes of one fold, whatever rows come back during it.
                #[test]
                fn fold_path_independence(
                    shards in vec(vec($ops, 0..8), 1..12), cuts in vec(any::<bool>(), 12),
                    zombies: bool,
                ) {
                    let shards: Vec<$kind> = shards.iter().enumerate()
                        .map(|(index, ops)| accumulate(&assigned::<$kind>(index, ops)))
                        .collect();
                    let at_once = folded(&shards, &[false; 12], false);
                    prop_assert_eq!(folded(&shards, &cuts, zombies), at_once);
                }

                /// A fold can take the rows in any number of steps, each with its own fence.
                #[test]
                fn settling_in_steps_gives_the_bytes_of_one_fold(
                    shards in vec(vec($ops, 0..8), 1..10),
                    mut fences in vec(any::<(usize, u8)>(), 1..10), coarse in vec(any::<bool>(), 10),
                ) {
                    let empty = |is_coarse: bool| match <$kind>::PRECISION {
                        Some(range) if is_coarse => <$kind>::with_precision(range.min),
                        _ => <$kind>::default(),
                    };
                    let shards: Vec<$kind> = shards.iter().enumerate()
                        .map(|(at, ops)| {
                            accumulate_on(empty(coarse[at]), &assigned::<$kind>(at, ops))
                        })
                        .collect();
                    fences.iter_mut().for_each(|fence| fence.0 %= shards.len() + 1);
                    fences.sort_unstable();
                    check_steps(&shards, &fences);
                }

                #[test]
                fn lists_are_atomic(ops in vec($ops, 0..8), list in vec($ops, 0..8)) {
                    let list = list.iter().map(<$kind as Wrap>::wrap).collect();
                    check_list(accumulate::<$kind>(&ops), list);
                }
            }

            proptest! {
                // 500 shards and 500 tallies, whatever the environment says.
                #![proptest_config(ProptestConfig::with_cases(500))]

                #[test]
                fn every_single_bit_flip_of_1000_envelopes_is_detected(
                    ops in vec($ops, 0..20), times in 0..64u32, mark: u64, short in 0..64u32,
                ) {
                    check_bit_flips(grown(accumulate::<$kind>(&ops), times), mark >> short);
                }
            }
        }
    };
}
pub(super) use common;

/// The law that only exact kinds keep: the state depends only on the multiset of ops.
macro_rules! suite {
    ($kind:ty, $ops:expr) => {
        $crate::crdt::laws::common!($kind, $ops);

        mod exact_law {
            use super::*;
            use crate::crdt::laws::{accumulate, bytes, merged, stored};
            use crate::crdt::{Crdt, Question};
            use proptest::collection::vec;

            proptest! {
                #[test]
                fn associative(
                    a in vec($ops, 0..20), b in vec($ops, 0..20), c in vec($ops, 0..20),
                ) {
                    let (a, b, c): ($kind, $kind, $kind) =
                        (accumulate(&a), accumulate(&b), accumulate(&c));
                    let left = merged(&merged(&a, &b), &c);
                    prop_assert_eq!(bytes(&left), bytes(&merged(&a, &merged(&b, &c))));
                }

                #[test]
                fn homomorphism(ops in vec(($ops, 0..5usize), 0..60)) {
                    let all: Vec<_> = ops.iter().map(|(op, _)| op.clone()).collect();
                    let one: $kind = accumulate(&all);
                    let mut split = <$kind>::default();
                    for mutator in 0..5 {
                        let own: Vec<_> = ops.iter()
                            .filter(|(_, of)| *of == mutator)
                            .map(|(op, _)| op.clone())
                            .collect();
                        split = merged(&split, &stored(&accumulate(&own)));
                    }
                    prop_assert_eq!(bytes(&split), bytes(&one));
                    let question = Question::default();
                    prop_assert_eq!(split.value(&question), one.value(&question));
                }

                /// Folds in any order and grouping.
                #[test]
                fn any_tree_of_merges_gives_the_same_bytes(
                    mut shards in vec(vec($ops, 0..8), 1..12), picks in vec(any::<(usize, usize)>(), 12),
                ) {
                    let mut states: Vec<$kind> = shards.drain(..).map(|ops| accumulate(&ops)).collect();
                    let mut in_order = <$kind>::default();
                    for state in &states {
                        in_order = merged(&in_order, state);
                    }
                    for (left, right) in picks {
                        if states.len() > 1 {
                            let left = states.swap_remove(left % states.len());
                            let right = states.swap_remove(right % states.len());
                            states.push(stored(&merged(&stored(&left), &stored(&right))));
                        }
                    }
                    let mut state = <$kind>::default();
                    for rest in &states {
                        state = merged(&state, rest);
                    }
                    prop_assert_eq!(bytes(&state), bytes(&in_order));
                }
            }
        }
    };
}
pub(super) use suite;
