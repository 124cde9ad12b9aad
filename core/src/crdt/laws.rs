//! The law suite: what every kind must satisfy, run by each kind's own tests as
//! `laws::suite!(Type, strategy_of_ops())`. The laws are stated in the [parent module](super).

use super::{Crdt, Effect, Kind, State, envelope};
use crate::protocol::Timestamp;

/// Applies the ops in order; refused ones leave no trace.
pub(super) fn accumulate<C: Crdt>(ops: &[C::Op]) -> C {
    let mut state = C::default();
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
    assert!(out.len() <= state.payload_bytes_max(), "payload_bytes_max is no upper bound");
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
    let read = C::decode(C::FORMAT, &written).expect("own bytes decode");
    assert_eq!(bytes(&read), written, "the codec is not canonical");
    read
}

/// Merges a state with itself this often, or until it leaves its range, for payloads of all sizes.
pub(super) fn grown<C: Crdt>(state: C, times: u32) -> C {
    let grow = |state: &C| {
        let mut next = state.clone();
        next.merge(state).ok().map(|()| next)
    };
    (0..times).fold(state, |state, _| grow(&state).unwrap_or(state))
}

/// Flips each bit of the state's shard and of its tally: nothing may decode as either.
pub(super) fn check_bit_flips<C: Crdt + Into<State>>(state: C, mark: u64) {
    let kind = Kind::from_name(C::NAME).expect("a registered kind");
    let state: State = state.into();
    let fence = Timestamp::from_micros((mark >> 1).cast_signed());
    let (shard, tally) =
        (envelope::encode_shard(&state, mark), envelope::encode_tally(&state, fence));
    assert_eq!(envelope::decode_shard(kind, &shard), Ok(state.clone()));
    assert_eq!(envelope::decode_tally(kind, &tally), Ok((fence, state)));
    for mut bytes in [shard, tally] {
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(envelope::decode_shard(kind, &bytes).is_err(), "bit {bit} of {bytes:x?}");
            assert!(envelope::decode_tally(kind, &bytes).is_err(), "bit {bit} of {bytes:x?}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

macro_rules! suite {
    ($kind:ty, $ops:expr) => {
        mod law {
            use super::*;
            use crate::crdt::Crdt;
            use crate::crdt::laws::{accumulate, bytes, check_bit_flips, grown, merged, stored};
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
                        split = merged(&split, &accumulate(&own));
                    }
                    prop_assert_eq!(bytes(&split), bytes(&one));
                    prop_assert_eq!(split.value(), one.value());
                }

                /// Any chain of folds, with the store's bytes between, equals one fold of all.
                #[test]
                fn fold_path_independence(
                    shards in vec(vec($ops, 0..8), 0..12), cuts in vec(any::<bool>(), 12),
                ) {
                    let shards: Vec<$kind> = shards.iter().map(|ops| accumulate(ops)).collect();
                    let mut at_once = <$kind>::default();
                    for shard in &shards {
                        at_once = merged(&at_once, shard);
                    }
                    let (mut tally, mut pass) = (<$kind>::default(), <$kind>::default());
                    for (shard, cut) in shards.iter().zip(&cuts) {
                        pass = merged(&pass, &stored(shard));
                        if *cut {
                            tally = stored(&merged(&tally, &pass));
                            pass = <$kind>::default();
                        }
                    }
                    prop_assert_eq!(bytes(&merged(&tally, &pass)), bytes(&at_once));
                }

                #[test]
                fn canonical_codec(ops in vec($ops, 0..20)) {
                    let state: $kind = accumulate(&ops);
                    prop_assert_eq!(&stored(&state), &state);
                    prop_assert_eq!(stored(&state).value(), state.value());
                }

                #[test]
                fn whatever_decodes_is_canonical(payload in vec(any::<u8>(), 0..40)) {
                    if let Ok(state) = <$kind>::decode(<$kind>::FORMAT, &payload) {
                        prop_assert_eq!(bytes(&state), payload);
                    }
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
pub(super) use suite;
