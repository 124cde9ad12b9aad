//! Kinds: the mergeable data types.
//!
//! A kind is a commutative monoid with operations. Every shard of a key is merged exactly once, so
//! idempotence is not needed (a plain sum will do), but these laws are, and `laws.rs` tests them:
//!
//! * **identity, commutative, associative**: [`State::merge`] gives the same bytes in any grouping;
//! * **homomorphism**: ops split over any number of mutators and merged equal one mutator that saw
//!   them all, so the number does not depend on how many pods ran;
//! * **canonical codec**: `decode(encode(s)) == s` and `encode(decode(b)) == b`;
//! * **atomic apply**: a refused op, or a list with one bad op, leaves the state untouched;
//! * **honest effect**: [`Effect::Unchanged`] means that the bytes did not change.
//!
//! Adding a kind is one file that implements [`Crdt`] and one line in the `kinds!` registry below.

mod counter;
pub mod envelope;
#[cfg(test)]
mod laws;
pub(crate) mod varint;

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

pub use counter::{Counter, CounterOp};

/// Largest payload of one state, in bytes; an op that would grow a state beyond it is refused.
pub const STATE_BYTES_MAX: usize = 256 * 1024;

/// What an op did to a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The encoded state differs from before.
    Changed,
    /// The encoded state is the same, byte for byte: no write is needed for this op.
    Unchanged,
}

/// Why an op was refused. The state is untouched.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OpError {
    /// The result would not fit the state's number range.
    #[error("the op would take this {kind} beyond its range; add a smaller amount")]
    Overflow {
        /// Kind of the state.
        kind: &'static str,
    },
    /// The op belongs to another kind than the key.
    #[error("an op of kind {op} can't be applied to a key of kind {state}")]
    WrongKind {
        /// Kind of the op.
        op: &'static str,
        /// Kind of the key.
        state: &'static str,
    },
    /// The state would pass [`STATE_BYTES_MAX`].
    #[error("the op would grow the state beyond {STATE_BYTES_MAX} bytes; spread it over more keys")]
    TooLarge,
    /// The op's JSON is not an op of this kind.
    #[error("{0}")]
    Invalid(String),
}

/// Why two states could not be merged.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MergeError {
    /// The merged value does not fit the state's number range.
    #[error("the merged {kind} is beyond its range")]
    Overflow {
        /// Kind of the states.
        kind: &'static str,
    },
    /// The states are of different kinds.
    #[error("a state of kind {right} can't be merged into one of kind {left}")]
    WrongKind {
        /// Kind of the receiving state.
        left: &'static str,
        /// Kind of the merged state.
        right: &'static str,
    },
}

/// Why stored bytes are not a state. Undecodable bytes are never skipped: a partial sum is a wrong
/// sum.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end too early, go on too long, or a length does not fit.
    #[error("the bytes are cut or too long at byte {at}")]
    Framing {
        /// Offset of the first byte that does not fit.
        at: usize,
    },
    /// The first byte is not the envelope's magic byte.
    #[error("unknown magic byte {0:#04x}")]
    Magic(u8),
    /// The checksum does not match.
    #[error("checksum {stored:#010x} stored, {computed:#010x} computed")]
    Checksum {
        /// As stored.
        stored: u32,
        /// Of the bytes.
        computed: u32,
    },
    /// No kind has this code in this release.
    #[error("unknown kind code {0}; it may have been written by a newer release")]
    Kind(u64),
    /// The kind is known, but is not the kind of the key.
    #[error("a state of kind {found} in a key of kind {expected}")]
    KindMismatch {
        /// Kind of the key.
        expected: &'static str,
        /// Kind in the envelope.
        found: &'static str,
    },
    /// The payload's format number is unknown in this release.
    #[error("unknown payload format {0}; it may have been written by a newer release")]
    Format(u64),
    /// The flags or the configuration hold something unknown in this release.
    #[error("unknown flags or configuration; it may have been written by a newer release")]
    Flags,
    /// A tally's bytes in a shard's row, or the reverse.
    #[error("a {found} stored where a {expected} belongs")]
    Role {
        /// What the row should hold.
        expected: &'static str,
        /// What the envelope says.
        found: &'static str,
    },
    /// A number is written in more bytes than it needs, or the payload is malformed.
    #[error("the payload is not canonical")]
    NotCanonical,
}

/// One mergeable data type; see the [module documentation](self) for its laws.
pub trait Crdt: Clone + fmt::Debug + PartialEq + Default + Send + Sync + 'static {
    /// Name in addresses, for example `counter`.
    const NAME: &'static str;
    /// Number in the envelope. Never reused.
    const CODE: u64;
    /// Format number of the payload that [`Crdt::encode`] writes.
    const FORMAT: u64;
    /// One sentence for people, shown by `/v1/kinds`.
    const SUMMARY: &'static str;
    /// An op as JSON, as people send it.
    const EXAMPLE_OP: &'static str;
    /// One requested change.
    type Op: Clone + fmt::Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync;
    /// What a read answers.
    type Value: Clone + fmt::Debug + PartialEq;

    /// Applies one op completely or, with an error, not at all.
    ///
    /// # Errors
    /// [`OpError`] if the result is out of range; the state is then untouched.
    fn apply(&mut self, op: &Self::Op) -> Result<Effect, OpError>;

    /// Merges `other` into `self`.
    ///
    /// # Errors
    /// [`MergeError`] if the result is out of range; `self` is then unspecified.
    fn merge(&mut self, other: &Self) -> Result<(), MergeError>;

    /// The value that a read answers for this state.
    fn value(&self) -> Self::Value;

    /// Appends the canonical payload.
    fn encode(&self, out: &mut Vec<u8>);

    /// Upper bound of the payload's length in bytes.
    fn payload_bytes_max(&self) -> usize;

    /// Reads a whole payload.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not exactly what [`Crdt::encode`] writes.
    fn decode(format: u64, payload: &[u8]) -> Result<Self, DecodeError>;
}

/// Generates the closed set of kinds and the enums that dispatch over it.
macro_rules! kinds {
    ($($variant:ident = $type:ty),+ $(,)?) => {
        /// The data type of a key. It is part of the key's address, so no two pods can disagree.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind { $(#[doc = concat!("See [`", stringify!($type), "`].")] $variant),+ }

        /// One requested change to a key of some kind.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Op { $(#[doc = concat!("For [`", stringify!($type), "`].")] $variant(<$type as Crdt>::Op)),+ }

        /// What a mutator accumulated, or what a fold merged.
        #[derive(Debug, Clone, PartialEq)]
        pub enum State { $(#[doc = concat!("Of [`", stringify!($type), "`].")] $variant($type)),+ }

        /// The answer of a read.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Value { $(#[doc = concat!("Of [`", stringify!($type), "`].")] $variant(<$type as Crdt>::Value)),+ }

        impl Kind {
            /// Every kind of this release.
            pub const ALL: &'static [Kind] = &[$(Kind::$variant),+];

            /// Name in addresses.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Kind::$variant => <$type>::NAME),+ }
            }
            /// Number in the envelope.
            #[must_use]
            pub fn code(self) -> u64 {
                match self { $(Kind::$variant => <$type>::CODE),+ }
            }
            /// Number of the payload format that this release writes.
            #[must_use]
            pub fn format(self) -> u64 {
                match self { $(Kind::$variant => <$type>::FORMAT),+ }
            }
            /// One sentence for people.
            #[must_use]
            pub fn summary(self) -> &'static str {
                match self { $(Kind::$variant => <$type>::SUMMARY),+ }
            }
            /// An op as JSON.
            #[must_use]
            pub fn example_op(self) -> &'static str {
                match self { $(Kind::$variant => <$type>::EXAMPLE_OP),+ }
            }
            /// Reads one op of this kind from JSON.
            ///
            /// # Errors
            /// [`OpError::Invalid`] with a sentence that says what is wrong and what would be right.
            pub fn parse_op(self, json: &serde_json::Value) -> Result<Op, OpError> {
                match self {
                    $(Kind::$variant => <$type as Crdt>::Op::deserialize_op(json).map(Op::$variant)),+
                }
            }
        }

        impl Op {
            /// The kind that this op belongs to.
            #[must_use]
            pub fn kind(&self) -> Kind {
                match self { $(Op::$variant(_) => Kind::$variant),+ }
            }
        }

        $(impl From<$type> for State {
            fn from(state: $type) -> State {
                State::$variant(state)
            }
        })+

        impl State {
            /// The state of a key without ops.
            #[must_use]
            pub fn identity(kind: Kind) -> State {
                match kind { $(Kind::$variant => State::$variant(<$type>::default())),+ }
            }
            /// The kind of this state.
            #[must_use]
            pub fn kind(&self) -> Kind {
                match self { $(State::$variant(_) => Kind::$variant),+ }
            }
            /// Applies one op completely or, with an error, not at all.
            ///
            /// # Errors
            /// [`OpError`]; the state is then untouched.
            pub fn apply(&mut self, op: &Op) -> Result<Effect, OpError> {
                match (self, op) {
                    $((State::$variant(state), Op::$variant(op)) => state.apply(op),)+
                    #[allow(unreachable_patterns, reason = "reachable once there are two kinds")]
                    (state, op) => Err(OpError::WrongKind {
                        op: op.kind().name(),
                        state: state.kind().name(),
                    }),
                }
            }
            /// Merges `other` into `self`.
            ///
            /// # Errors
            /// [`MergeError`]; `self` is then unspecified.
            pub fn merge(&mut self, other: &State) -> Result<(), MergeError> {
                match (self, other) {
                    $((State::$variant(left), State::$variant(right)) => left.merge(right),)+
                    #[allow(unreachable_patterns, reason = "reachable once there are two kinds")]
                    (left, right) => Err(MergeError::WrongKind {
                        left: left.kind().name(),
                        right: right.kind().name(),
                    }),
                }
            }
            /// The value that a read answers.
            #[must_use]
            pub fn value(&self) -> Value {
                match self { $(State::$variant(state) => Value::$variant(state.value())),+ }
            }
            /// Upper bound of the payload's length in bytes.
            #[must_use]
            pub fn payload_bytes_max(&self) -> usize {
                match self { $(State::$variant(state) => state.payload_bytes_max()),+ }
            }
            pub(crate) fn encode_payload(&self, out: &mut Vec<u8>) {
                match self { $(State::$variant(state) => state.encode(out)),+ }
            }
            pub(crate) fn decode_payload(
                kind: Kind, format: u64, payload: &[u8],
            ) -> Result<State, DecodeError> {
                match kind {
                    $(Kind::$variant => <$type>::decode(format, payload).map(State::$variant)),+
                }
            }
        }
    };
}

kinds! {
    Counter = Counter,
}

impl Kind {
    /// The kind of this name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// The kind of this envelope code, if there is one.
    #[must_use]
    pub fn from_code(code: u64) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|kind| kind.code() == code)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl State {
    /// Applies all ops or none.
    ///
    /// # Errors
    /// The first op's [`OpError`], or [`OpError::TooLarge`]; the state is then untouched.
    pub fn apply_all(&mut self, ops: &[Op]) -> Result<Effect, OpError> {
        let mut next = self.clone();
        let mut effect = Effect::Unchanged;
        for op in ops {
            if next.apply(op)? == Effect::Changed {
                effect = Effect::Changed;
            }
        }
        check_size(next.payload_bytes_max())?;
        *self = next;
        Ok(effect)
    }
}

fn check_size(payload_bytes_max: usize) -> Result<(), OpError> {
    if payload_bytes_max > STATE_BYTES_MAX { Err(OpError::TooLarge) } else { Ok(()) }
}

/// JSON to op with a message for people, shared by every kind's op type.
trait DeserializeOp: Sized {
    fn deserialize_op(json: &serde_json::Value) -> Result<Self, OpError>;
}

impl<T: DeserializeOwned> DeserializeOp for T {
    fn deserialize_op(json: &serde_json::Value) -> Result<T, OpError> {
        T::deserialize(json).map_err(|error| OpError::Invalid(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_are_unique_and_round_trip() {
        for &kind in Kind::ALL {
            assert_eq!(Kind::from_name(kind.name()), Some(kind));
            assert_eq!(Kind::from_code(kind.code()), Some(kind));
            assert_eq!(kind.to_string(), kind.name());
            let example = serde_json::from_str(kind.example_op()).expect("example is JSON");
            assert_eq!(kind.parse_op(&example).expect("example is an op").kind(), kind);
        }
        assert_eq!(Kind::from_name("Counter"), None, "names are exact");
    }

    /// No state of today's kinds comes near the limit.
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
        let error = state.apply_all(&[add(3), add(3)]).expect_err("over the range");
        assert_eq!(error, OpError::Overflow { kind: "counter" });
        assert_eq!(state, before);
    }
}
