//! Kinds: the mergeable data types.
//!
//! A kind is a commutative monoid with operations. Every shard of a key is merged exactly once, so kinds need
//! not be idempotent (a plain sum is enough). They must keep these laws, which `laws.rs` tests:
//!
//! * **identity, commutative, associative**: [`Crdt::merge`] gives the same bytes in any grouping;
//! * **homomorphism**: ops split over any number of mutators and merged equal one mutator that saw all of
//!   them, so the number does not depend on how many pods ran;
//! * **canonical codec**: `decode(encode(s))` behaves as `s`, and `encode(decode(b)) == b`;
//! * **fold-path independence**: any chain of folds, through the store's bytes, gives the bytes of one fold;
//! * **atomic apply**: a refused op, or a list with one bad op, leaves the state untouched;
//! * **honest effect**: [`Effect::Unchanged`] means that the bytes did not change.
//!
//! A kind that keeps all of them is [`Class::Exact`]. An [`Class::OrderCanonical`] kind is associative and
//! homomorphic only within its error bound. Every pod still reads the same value, because rows are merged in
//! one order.
//!
//! CONTRIBUTING.md lists what a new kind needs.

mod audience;
mod counter;
mod distinct;
mod dots;
pub mod envelope;
mod error;
mod exact;
mod extrema;
mod gset;
mod histogram;
pub mod item;
pub mod json;
#[cfg(test)]
mod laws;
mod lww_set;
mod number;
mod or_set;
pub mod pack;
mod register;
mod registry;
mod sketch;
mod span;
mod stats;
mod sum;
mod time;
mod topk;
mod value;
pub(crate) mod varint;

use std::fmt;

use serde::de::DeserializeOwned;

use crate::protocol::{Key, MutatorId, Timestamp};

pub use audience::{Audience, Expression, Selection};
pub use counter::{Counter, CounterOp};
pub use distinct::Distinct;
pub use dots::{Context, Token};
pub use error::{DecodeError, MergeError, OpError};
pub use extrema::{Extrema, ExtremaOp, LABEL_BYTES_MAX};
pub use gset::{GSet, GSetOp};
pub use histogram::{BUCKETS_MAX, Histogram, HistogramOp};
pub use lww_set::{LwwSet, LwwSetOp};
pub use or_set::{OrSet, OrSetOp};
pub use register::{Register, RegisterOp};
pub use registry::{Kind, Op, State};
pub use sketch::{SKETCH_TEXT_BYTES_MAX, Sketch, SketchOp};
pub use stats::{Stats, StatsOp};
pub use sum::{Decimal, Sum, SumOp};
pub use topk::{TopK, TopKOp};
pub use value::{BareValue, Form, Question, Value};

/// Largest payload of one mutator's state, in bytes. An op that would make it larger is refused.
pub const STATE_BYTES_MAX: usize = 256 * 1024;

/// What an op did to a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The encoded state differs from before.
    Changed,
    /// The encoded state is the same, byte for byte: no write is needed for this op.
    Unchanged,
}

impl Effect {
    /// `Changed` if `changed`.
    #[must_use]
    pub fn of(changed: bool) -> Effect {
        if changed { Effect::Changed } else { Effect::Unchanged }
    }
}

/// What a kind's state depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Only on the multiset of ops: the same bytes for any sharding, order and fold path.
    Exact,
    /// Also on how ops were spread over mutators, within the error bound. Every pod reads the same.
    OrderCanonical,
}

/// How large a kind's states can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Below about a kilobyte, so that a thousand can be read at once. They are limited by number only.
    Small,
    /// Limited by their memory, too.
    Large {
        /// Bytes of memory that a state needs for each byte of its payload, measured and rounded up.
        memory_factor: usize,
    },
}

/// A kind's description, for people and machines.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// What it holds, in one sentence.
    pub summary: &'static str,
    /// What its state depends on.
    pub class: Class,
    /// Whether its value is exact, not an estimate.
    pub is_exact: bool,
    /// How large its states can be.
    pub size: Size,
    /// Its error bound and size, in one sentence.
    pub bound: &'static str,
    /// Whether sending an op again after an unknown outcome gives the same value as sending it once.
    pub is_idempotent: bool,
    /// Whether a sender can send its running total in place of each update: a later total replaces an earlier one
    /// of the same id. Not for idempotent kinds, whose ops need no id; not for kinds with times, because all
    /// totals would have the time of the id; not for an `or_set`, whose later total would have adds with the names
    /// of adds that a client may have removed.
    pub has_totals: bool,
    /// The op for bare text, and the field that takes the text; see [`Kind::bare_op`].
    pub bare: (&'static str, &'static str),
    /// The part of the value that is its bare text; see [`Value::bare`].
    pub bare_value: BareValue,
    /// An example op as JSON. The tests execute it: applied to the key site/home without ops, it gives
    /// `example_value`.
    pub example_op: &'static str,
    /// The value after `example_op`, as JSON.
    pub example_value: &'static str,
    /// JSON Schema (2020-12) of an op.
    pub op_schema: &'static str,
    /// JSON Schema of the value.
    pub value_schema: &'static str,
    /// The names of the query parameters that its reads take and not all kinds have, such as `q` for
    /// [`Question::quantiles`].
    pub parameters: &'static [&'static str],
}

impl About {
    /// Whether its states are [small](Size::Small).
    #[must_use]
    pub const fn is_small(&self) -> bool {
        matches!(self.size, Size::Small)
    }

    /// Approximate memory of a state with this payload size, in bytes; 0 for small states.
    #[must_use]
    pub const fn memory_bytes(&self, payload_bytes: usize) -> usize {
        match self.size {
            Size::Small => 0,
            Size::Large { memory_factor } => memory_factor * payload_bytes,
        }
    }
}

/// The one number that sets a kind's precision. Larger is finer. Two states of different precision merge to
/// the coarser one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Precision {
    /// Its name in the policy file and in values.
    pub name: &'static str,
    /// The coarsest value.
    pub min: u16,
    /// The finest value.
    pub max: u16,
    /// The value without a policy.
    pub default: u16,
}

/// Identifies one op that added something, so that a later op can remove exactly what its client saw: a
/// version vector entry (Preguiça et al., "Dotted version vectors", 2010) that includes its mutator's expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dot {
    /// When the mutator expires.
    pub expires_at: Timestamp,
    /// The mutator that took the op.
    pub mutator_id: MutatorId,
    /// Sequence number within the mutator, starting at 1.
    pub seq: u64,
}

/// One mergeable data type; see the [module documentation](self) for its laws.
///
/// The default is the identity: empty and of the finest precision, so merging anything into it gives that
/// thing.
pub trait Crdt: Clone + fmt::Debug + PartialEq + Default + Send + Sync + 'static {
    /// Name in addresses, for example `counter`.
    const NAME: &'static str;
    /// Number in the envelope. Never reused.
    const CODE: u64;
    /// Format number of the payload that [`Crdt::encode`] writes.
    const FORMAT: u64;
    /// Its description.
    const ABOUT: About;
    /// Its configurable precision; none for kinds without.
    const PRECISION: Option<Precision> = None;
    /// Whether ops carry a time of the pod's hybrid logical clock.
    const IS_TIMED: bool = false;
    /// Whether [`Crdt::settle`] drops what only an op older than [`OP_AGE_MAX`] could need. Then no row may
    /// hold an op that is further before the row's expiry.
    ///
    /// [`OP_AGE_MAX`]: crate::protocol::OP_AGE_MAX
    const FORGETS: bool = false;
    /// One requested change.
    type Op: Clone + fmt::Debug + PartialEq + DeserializeOwned + Send + Sync;

    /// An empty state of some precision within [`Crdt::PRECISION`].
    #[must_use]
    fn with_precision(_precision: u16) -> Self {
        Self::default()
    }

    /// The precision of this state; none for kinds without.
    fn precision(&self) -> Option<u16> {
        None
    }

    /// The op that an empty body means.
    fn empty_op() -> Option<Self::Op> {
        None
    }

    /// Parses a value of this kind for absent keys, as people write it.
    fn parse_value(_text: &str) -> Option<Value> {
        None
    }

    /// Memory that an op holds in addition to itself, in bytes.
    fn heap_bytes(_op: &Self::Op) -> usize {
        0
    }

    /// Whether a key with a full tally refuses this op: it adds something that only a removal can take out
    /// again, so that a state can grow without limit.
    fn is_refused_when_full(_op: &Self::Op) -> bool {
        false
    }

    /// The latest time that the client has seen, for kinds that are [timed](Crdt::IS_TIMED).
    fn after(_op: &Self::Op) -> Option<Timestamp> {
        None
    }

    /// The op's time, for kinds that are [timed](Crdt::IS_TIMED).
    fn time(_op: &Self::Op) -> Option<Timestamp> {
        None
    }

    /// Sets the op's time, for kinds that are [timed](Crdt::IS_TIMED).
    fn stamp(_op: &mut Self::Op, _time: Timestamp) {}

    /// Opens the op's sealed parts, such as a token from an earlier read of this key.
    ///
    /// # Errors
    /// [`OpError::Invalid`] if a token is not from this key, or claims to have seen something impossible.
    fn open(_op: &mut Self::Op, _key: &Key, _now: Timestamp) -> Result<(), OpError> {
        Ok(())
    }

    /// Gives the op its dot, drawn by `next`, if it needs one.
    fn assign(_op: &mut Self::Op, _next: &mut dyn FnMut() -> Dot) {}

    /// Applies one op completely or, with an error, not at all.
    ///
    /// # Errors
    /// [`OpError`] if the result is out of range or too large; then the state has not changed.
    fn apply(&mut self, op: &Self::Op) -> Result<Effect, OpError>;

    /// Merges `other` into `self`.
    ///
    /// # Errors
    /// [`MergeError`] if the result is out of range; then `self` is unspecified. States made by ops can
    /// always be merged, except for [`MergeError::Implausible`].
    fn merge(&mut self, other: &Self) -> Result<(), MergeError>;

    /// Drops what no later merge can need once every shard with `expires_at <= fence` is in this state.
    fn settle(&mut self, _fence: Timestamp) {}

    /// Merges the state of another key for a reader, without the parts that have a meaning only among the
    /// rows of one key.
    ///
    /// # Errors
    /// As for [`Crdt::merge`].
    fn merge_key(&mut self, other: &Self) -> Result<(), MergeError> {
        self.merge(other)
    }

    /// Turns it into the state of a shard whose one op, with this dot, added everything in it. What other
    /// mutators added and removed, perhaps at another key, is forgotten. Adds that are too old for a row with
    /// the dot's expiry get the oldest allowed time.
    fn attribute_to(&mut self, _dot: Dot) {}

    /// The times of the changes in it, for kinds in which the last writer wins.
    fn times(&self) -> Vec<Timestamp> {
        Vec::new()
    }

    /// Replaces each of its times by another. Later times must stay later.
    fn retime(&mut self, _new: &dyn Fn(Timestamp) -> Timestamp) {}

    /// Whether it holds a change of the same thing as `op` that is later than `time`.
    fn supersedes(&self, _op: &Self::Op, _time: Timestamp) -> bool {
        false
    }

    /// The state in the format of another library, for kinds that have one.
    fn export(&self) -> Option<Vec<u8>> {
        None
    }

    /// The value that a read returns for this state.
    fn value(&self, question: &Question) -> Value;

    /// Appends the canonical payload.
    fn encode(&self, out: &mut Vec<u8>);

    /// Decodes a complete payload. `precision` is within [`Crdt::PRECISION`], or none for kinds without.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not exactly what [`Crdt::encode`] writes.
    fn decode(format: u64, precision: Option<u16>, payload: &[u8]) -> Result<Self, DecodeError>;
}

/// Rejects a format that this release does not know.
fn check_format<C: Crdt>(format: u64) -> Result<(), DecodeError> {
    if format == C::FORMAT { Ok(()) } else { Err(DecodeError::Format(format)) }
}

/// Rejects a payload larger than [`STATE_BYTES_MAX`].
fn check_size(payload_bytes: usize) -> Result<(), OpError> {
    if payload_bytes > STATE_BYTES_MAX { Err(OpError::TooLarge) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Name;

    #[test]
    fn names_and_codes_are_unique_and_round_trip() {
        for &kind in Kind::ALL {
            assert_eq!(Kind::from_name(kind.name()), Some(kind));
            assert_eq!(Kind::from_code(kind.code()), Some(kind));
            assert_eq!(kind.to_string(), kind.name());
        }
        assert_eq!(Kind::from_name("Counter"), None, "names are exact");
    }

    /// The state of a key that got this op alone.
    fn applied(mut op: Op) -> State {
        op.stamp(Timestamp::from_micros(1_795_248_000_123_456));
        op.assign(&mut || Dot {
            expires_at: Timestamp::from_micros(1_795_334_400_000_000),
            mutator_id: MutatorId::new(uuid::Uuid::from_u128(1)),
            seq: 1,
        });
        let mut state = State::new(op.kind(), None);
        assert_eq!(state.apply(&op), Ok(Effect::Changed));
        state
    }

    #[test]
    fn examples_do_what_they_say() {
        for &kind in Kind::ALL {
            let about = kind.about();
            let json = |text| serde_json::from_str::<serde_json::Value>(text).expect(text);
            let op = kind.parse_op(&json(about.example_op)).expect("an example is an op");
            assert_eq!(op.kind(), kind);
            let state = applied(op);
            // The key of the examples. Tokens are valid only for it.
            let name = |text| Name::new(text).expect("a name");
            let key = Key { kind, group: name("site"), name: name("home") };
            let question = Question { key: Some(key), ..Question::default() };
            let value = serde_json::to_value(state.value(&question).shown(false));
            assert_eq!(value.expect("JSON"), json(about.example_value), "{kind}");
            json(about.op_schema);
            json(about.value_schema);
        }
    }

    #[test]
    fn bare_text_stands_for_an_op() {
        let op = |kind: Kind, text| kind.bare_op(text);
        assert_eq!(op(Kind::Counter, "-5"), r#"{"op":"add","by":"-5"}"#);
        assert_eq!(op(Kind::GSet, "7"), r#"{"op":"add","item":7}"#);
        assert_eq!(op(Kind::GSet, "\"7\""), r#"{"op":"add","item":"7"}"#);
        assert!(Kind::GSet.read_bare_op("\"\"").is_err(), "an empty item");
        assert_eq!(op(Kind::GSet, "[1]"), r#"{"op":"add","item":"[1]"}"#);
        assert_eq!(
            op(Kind::TopK, "12345678901234567890"),
            r#"{"op":"add","item":"12345678901234567890"}"#
        );
        assert_eq!(op(Kind::Register, "a b"), r#"{"op":"set","value":"a b"}"#);
        assert_eq!(op(Kind::Register, " a b\n"), r#"{"op":"set","value":"a b"}"#);
        assert_eq!(op(Kind::Register, "[1e-400]\n"), r#"{"op":"set","value":[1e-400]}"#);
        let version = "1.22.333.4444.55555.666666";
        let expected = format!(r#"{{"op":"set","value":"{version}"}}"#);
        assert_eq!(op(Kind::Register, version), expected);
        let error = Kind::Stats.read_bare_op("18446744073709551617").expect_err("no double");
        assert!(error.to_string().ends_with("a string"), "{error}");
        for &kind in Kind::ALL {
            assert_eq!(kind.read_bare_op(" 7\n").map(|op| op.kind()), Ok(kind));
        }
    }

    /// A client can send what it reads.
    #[test]
    fn the_bare_text_of_a_value_is_read_as_its_op() {
        for &kind in Kind::ALL {
            let part = kind.about().bare_value;
            if part == BareValue::Nothing || !kind.about().is_exact {
                continue;
            }
            for text in ["7", "-12", "\"7\"", "a b", "[true]", "\" a\\n\""] {
                let Ok(op) = kind.read_bare_op(text) else { continue };
                let value = applied(op).value(&Question::default());
                assert_eq!(value.bare(part), Some(format!("{text}\n")), "{kind}");
            }
        }
    }

    #[test]
    fn only_sketches_have_a_foreign_format() {
        for &kind in Kind::ALL {
            let expected = match kind {
                Kind::Distinct => Some(Distinct::with_precision(11).to_datasketches()),
                Kind::Audience => Some(Audience::with_precision(11).to_datasketches()),
                Kind::Counter
                | Kind::Sum
                | Kind::Stats
                | Kind::Extrema
                | Kind::Histogram
                | Kind::GSet
                | Kind::LwwSet
                | Kind::OrSet
                | Kind::Register
                | Kind::TopK => None,
            };
            assert_eq!(State::new(kind, None).export(), expected);
        }
    }

    #[test]
    fn an_op_weighs_what_it_holds_apart_from_itself() {
        for &kind in Kind::ALL {
            let bytes = |text| kind.read_bare_op(text).map(|op| op.heap_bytes());
            match kind {
                Kind::Counter | Kind::Sum | Kind::Stats | Kind::Extrema | Kind::Histogram => {
                    assert_eq!(bytes("7"), Ok(0), "{kind}");
                }
                // A list of items, or one item within the op.
                Kind::TopK => assert_eq!(bytes("abcd"), Ok(4)),
                Kind::Register => assert!(bytes("abcd").is_ok_and(|bytes| bytes >= 4)),
                Kind::Distinct | Kind::Audience | Kind::GSet | Kind::LwwSet | Kind::OrSet => {
                    assert_eq!(bytes("abcd"), Ok(size_of::<item::Item>() + 4), "{kind}");
                }
            }
        }
    }

    #[test]
    fn only_counters_have_an_op_of_an_empty_body() {
        for &kind in Kind::ALL {
            let one = (kind == Kind::Counter).then_some(Op::Counter(CounterOp::Add { by: 1 }));
            assert_eq!(kind.empty_op(), one);
        }
    }

    #[test]
    fn values_are_read_as_they_would_be_shown() {
        for (kind, text, value) in [
            (Kind::Counter, "+007", Some(Value::Integer(7))),
            (Kind::Counter, "1.5", None),
            (Kind::Sum, "+007.50", Some(Value::text("7.50"))),
            (Kind::Sum, "-0", Some(Value::text("0"))),
            (Kind::Sum, "a", None),
            (Kind::GSet, "7", None),
        ] {
            assert_eq!(kind.parse_value(text), value, "{kind} {text}");
        }
    }

    #[test]
    fn a_state_may_have_256_kib() {
        assert_eq!(check_size(262_144), Ok(()));
        assert_eq!(check_size(262_145), Err(OpError::TooLarge));
    }

    #[test]
    fn a_list_of_ops_is_applied_all_or_none() {
        let mut state = State::Counter(Counter::from_total(i128::MAX - 5));
        let before = state.clone();
        let add = |by| Op::Counter(CounterOp::Add { by });
        let error = state.apply_all(&[add(5), add(1)]).expect_err("over the range");
        assert_eq!(error, OpError::Overflow { kind: "counter" });
        assert_eq!(state, before);
        assert_eq!(state.apply_all(&[add(0), add(5)]), Ok(Effect::Changed));
        for zeros in 0..3 {
            assert_eq!(state.apply_all(&vec![add(0); zeros]), Ok(Effect::Unchanged));
        }
        assert_eq!(state.apply_all(&[add(-5), add(5)]), Ok(Effect::Changed));
        assert_eq!(state, State::Counter(Counter::from_total(i128::MAX)));
    }
}
