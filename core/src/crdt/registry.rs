//! The closed set of kinds, and the enums that dispatch over it.

use std::fmt;

use serde::de::{Deserialize, IgnoredAny};

use super::item::Item;
use super::{
    About, Audience, Counter, Crdt, DecodeError, Distinct, Dot, Effect, Extrema, GSet, Histogram,
    LwwSet, MergeError, OpError, OrSet, Precision, Question, Register, Stats, Sum, TopK, Value,
    json,
};
use crate::protocol::{Key, Timestamp};

/// Generates the enums from the list of kinds.
macro_rules! kinds {
    ($($variant:ident = $type:ty),+ $(,)?) => {
        /// The data type of a key. It is part of the key's address, so no two pods can disagree about it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind { $(#[doc = concat!("See [`", stringify!($type), "`].")] $variant),+ }

        /// One requested change to a key of some kind.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Op { $(#[doc = concat!("For [`", stringify!($type), "`].")] $variant(<$type as Crdt>::Op)),+ }

        /// The state that a mutator accumulated or a fold merged.
        #[derive(Debug, Clone, PartialEq)]
        pub enum State { $(#[doc = concat!("Of [`", stringify!($type), "`].")] $variant($type)),+ }

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
            /// Its description.
            #[must_use]
            pub fn about(self) -> About {
                match self { $(Kind::$variant => <$type>::ABOUT),+ }
            }
            /// Its configurable precision; none for kinds without.
            #[must_use]
            pub fn precision(self) -> Option<Precision> {
                match self { $(Kind::$variant => <$type>::PRECISION),+ }
            }
            /// Whether its ops carry a time of the pod's hybrid logical clock.
            #[must_use]
            pub fn is_timed(self) -> bool {
                match self { $(Kind::$variant => <$type>::IS_TIMED),+ }
            }
            /// Whether its folds drop what only too old ops could need; see [`Crdt::FORGETS`].
            #[must_use]
            pub fn forgets(self) -> bool {
                match self { $(Kind::$variant => <$type>::FORGETS),+ }
            }
            /// Reads one op of this kind from the text of JSON. All digits of its numbers count.
            ///
            /// # Errors
            /// They say what is wrong and what would be right.
            pub fn read_op(self, text: &str) -> Result<Op, serde_json::Error> {
                match self { $(Kind::$variant => json::read(text).map(Op::$variant)),+ }
            }
            /// Reads one op of this kind from JSON.
            ///
            /// # Errors
            /// [`OpError::Invalid`] says what is wrong and what would be right.
            pub fn parse_op(self, json: &serde_json::Value) -> Result<Op, OpError> {
                let op = match self { $(
                    Kind::$variant => <$type as Crdt>::Op::deserialize(json).map(Op::$variant)
                ),+ };
                op.map_err(|error| OpError::Invalid(error.to_string()))
            }
            /// The op that an empty body means.
            #[must_use]
            pub fn empty_op(self) -> Option<Op> {
                match self { $(Kind::$variant => <$type>::empty_op().map(Op::$variant)),+ }
            }
            /// Parses a value of this kind, as people write it; see [`Crdt::parse_value`].
            #[must_use]
            pub fn parse_value(self, text: &str) -> Option<Value> {
                match self { $(Kind::$variant => <$type>::parse_value(text)),+ }
            }
        }

        impl Op {
            /// The kind that this op belongs to.
            #[must_use]
            pub fn kind(&self) -> Kind {
                match self { $(Op::$variant(_) => Kind::$variant),+ }
            }
            /// Whether a key with a full tally refuses it.
            #[must_use]
            pub fn is_refused_when_full(&self) -> bool {
                match self { $(Op::$variant(op) => <$type>::is_refused_when_full(op)),+ }
            }
            /// Memory that it holds in addition to itself, in bytes.
            #[must_use]
            pub fn heap_bytes(&self) -> usize {
                match self { $(Op::$variant(op) => <$type>::heap_bytes(op)),+ }
            }
            /// The latest time that the client has seen; see [`Crdt::after`].
            #[must_use]
            pub fn after(&self) -> Option<Timestamp> {
                match self { $(Op::$variant(op) => <$type>::after(op)),+ }
            }
            /// Its time; see [`Crdt::time`].
            #[must_use]
            pub fn time(&self) -> Option<Timestamp> {
                match self { $(Op::$variant(op) => <$type>::time(op)),+ }
            }
            /// Sets its time; see [`Crdt::stamp`].
            pub fn stamp(&mut self, time: Timestamp) {
                match self { $(Op::$variant(op) => <$type>::stamp(op, time)),+ }
            }
            /// Opens its sealed parts; see [`Crdt::open`].
            ///
            /// # Errors
            /// [`OpError::Invalid`] if a token is not from this key, or claims to have seen something
            /// impossible.
            pub fn open(&mut self, key: &Key, now: Timestamp) -> Result<(), OpError> {
                match self { $(Op::$variant(op) => <$type>::open(op, key, now)),+ }
            }
            /// Gives it its dot; see [`Crdt::assign`].
            pub fn assign(&mut self, next: &mut dyn FnMut() -> Dot) {
                match self { $(Op::$variant(op) => <$type>::assign(op, next)),+ }
            }
        }

        $(#[cfg(test)]
        impl Wrap for $type {
            fn wrap(op: &Self::Op) -> Op {
                Op::$variant(op.clone())
            }
        })+

        $(impl From<$type> for State {
            fn from(state: $type) -> State {
                State::$variant(state)
            }
        })+

        $(impl TryFrom<State> for $type {
            /// The given state, if it is of another kind.
            type Error = State;

            fn try_from(state: State) -> Result<$type, State> {
                match state {
                    State::$variant(state) => Ok(state),
                    other => Err(other),
                }
            }
        })+

        impl State {
            /// The state of a key without ops, of the finest precision; other states are merged into it.
            #[must_use]
            pub fn identity(kind: Kind) -> State {
                match kind { $(Kind::$variant => State::$variant(<$type>::default())),+ }
            }
            /// The kind of this state.
            #[must_use]
            pub fn kind(&self) -> Kind {
                match self { $(State::$variant(_) => Kind::$variant),+ }
            }
            /// Its precision; none for kinds without.
            #[must_use]
            pub fn precision(&self) -> Option<u16> {
                match self { $(State::$variant(state) => state.precision()),+ }
            }
            /// Applies one op completely or, with an error, not at all.
            ///
            /// # Errors
            /// [`OpError`]; then the state has not changed.
            pub fn apply(&mut self, op: &Op) -> Result<Effect, OpError> {
                match (self, op) {
                    $((State::$variant(state), Op::$variant(op)) => state.apply(op),)+
                    (state, op) => Err(OpError::WrongKind {
                        op: op.kind().name(),
                        state: state.kind().name(),
                    }),
                }
            }
            /// Merges `other` into `self`.
            ///
            /// # Errors
            /// [`MergeError`]; then `self` is unspecified.
            pub fn merge(&mut self, other: &State) -> Result<(), MergeError> {
                match (self, other) {
                    $((State::$variant(left), State::$variant(right)) => left.merge(right),)+
                    (left, right) => Err(left.differs_from(right)),
                }
            }
            /// Merges the state of another key for a reader; see [`Crdt::merge_key`].
            ///
            /// # Errors
            /// As for [`State::merge`].
            pub fn merge_key(&mut self, other: &State) -> Result<(), MergeError> {
                match (self, other) {
                    $((State::$variant(left), State::$variant(right)) => left.merge_key(right),)+
                    (left, right) => Err(left.differs_from(right)),
                }
            }
            /// Drops what no later merge can need once every shard with `expires_at <= fence` is in it.
            pub fn settle(&mut self, fence: Timestamp) {
                match self { $(State::$variant(state) => state.settle(fence)),+ }
            }
            /// Attributes everything in it to one dot; see [`Crdt::attribute_to`].
            pub fn attribute_to(&mut self, dot: Dot) {
                match self { $(State::$variant(state) => state.attribute_to(dot)),+ }
            }
            /// The times of the changes in it; see [`Crdt::times`].
            #[must_use]
            pub fn times(&self) -> Vec<Timestamp> {
                match self { $(State::$variant(state) => state.times()),+ }
            }
            /// Replaces each of its times by another; see [`Crdt::retime`].
            pub fn retime(&mut self, new: &dyn Fn(Timestamp) -> Timestamp) {
                match self { $(State::$variant(state) => state.retime(new)),+ }
            }
            /// Whether it holds a later change than `op` at `time`; see [`Crdt::supersedes`].
            #[must_use]
            pub fn supersedes(&self, op: &Op, time: Timestamp) -> bool {
                match (self, op) {
                    $((State::$variant(state), Op::$variant(op)) => state.supersedes(op, time),)+
                    _ => false,
                }
            }
            /// The state in the format of another library, for kinds that have one.
            #[must_use]
            pub fn export(&self) -> Option<Vec<u8>> {
                match self { $(State::$variant(state) => state.export()),+ }
            }
            /// The value that a read returns.
            #[must_use]
            pub fn value(&self, question: &Question) -> Value {
                match self { $(State::$variant(state) => state.value(question)),+ }
            }
            /// Appends the canonical payload: the envelope's content without its frame.
            pub fn encode_payload(&self, out: &mut Vec<u8>) {
                match self { $(State::$variant(state) => state.encode(out)),+ }
            }
            pub(crate) fn decode_payload(
                kind: Kind, format: u64, precision: Option<u16>, payload: &[u8],
            ) -> Result<State, DecodeError> {
                match kind {
                    $(Kind::$variant =>
                        <$type>::decode(format, precision, payload).map(State::$variant)),+
                }
            }
            fn with_precision(kind: Kind, precision: u16) -> State {
                match kind { $(Kind::$variant => State::$variant(<$type>::with_precision(precision))),+ }
            }
        }
    };
}

kinds! {
    Counter = Counter,
    Sum = Sum,
    Stats = Stats,
    Extrema = Extrema,
    Histogram = Histogram,
    Distinct = Distinct,
    Audience = Audience,
    GSet = GSet,
    LwwSet = LwwSet,
    OrSet = OrSet,
    Register = Register,
    TopK = TopK,
}

impl Kind {
    /// The kind with this name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// The op, as the text of JSON, that bare text means: the amount of a `counter`, the item of a set. An
    /// amount is used as it is. An item is the number or the JSON string in the text, or else the text itself.
    /// For other kinds, text that is JSON is that JSON, and any other text is a string. White space around the
    /// text is no part of it.
    #[must_use]
    pub fn bare_op(self, text: &str) -> String {
        let text = text.trim();
        let (op, field) = self.about().bare;
        let string = || serde_json::Value::from(text).to_string();
        let value = match field {
            "by" => string(),
            "item" => match Item::parse(text) {
                Ok(item) => serde_json::json!(item).to_string(),
                Err(_) => match serde_json::from_str::<String>(text) {
                    Ok(_) => text.to_owned(),
                    Err(_) => string(),
                },
            },
            _ => match serde_json::from_str::<IgnoredAny>(text) {
                Ok(_) => text.to_owned(),
                Err(_) => string(),
            },
        };
        format!(r#"{{"op":"{op}","{field}":{value}}}"#)
    }

    /// Reads the op that bare text means; see [`Kind::bare_op`].
    ///
    /// # Errors
    /// As for [`Kind::parse_op`].
    pub fn read_bare_op(self, text: &str) -> Result<Op, OpError> {
        self.read_op(&self.bare_op(text)).map_err(|error| OpError::Invalid(json::rule(&error)))
    }

    /// The kind with this envelope code, if there is one.
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
    fn differs_from(&self, other: &State) -> MergeError {
        MergeError::WrongKind { left: self.kind().name(), right: other.kind().name() }
    }

    /// Approximate memory of the state, in bytes; 0 for kinds with small states. Costs as much as a write.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let about = self.kind().about();
        if about.is_small() {
            return 0;
        }
        let mut payload = Vec::new();
        self.encode_payload(&mut payload);
        about.memory_bytes(payload.len())
    }

    /// The first state of a new mutator: empty, with this precision or the kind's default.
    #[must_use]
    pub fn new(kind: Kind, precision: Option<u16>) -> State {
        match kind.precision() {
            Some(range) => State::with_precision(kind, precision.unwrap_or(range.default)),
            None => State::identity(kind),
        }
    }

    /// Applies all ops or none.
    ///
    /// # Errors
    /// The [`OpError`] of the first op that fails; then the state has not changed.
    pub fn apply_all(&mut self, ops: &[Op]) -> Result<Effect, OpError> {
        if let [op] = ops {
            return self.apply(op);
        }
        let mut next = self.clone();
        let mut effect = Effect::Unchanged;
        for op in ops {
            if next.apply(op)? == Effect::Changed {
                effect = Effect::Changed;
            }
        }
        *self = next;
        Ok(effect)
    }
}

/// Wraps a kind's own op into the registry's op, for the law suite.
#[cfg(test)]
pub(super) trait Wrap: Crdt {
    fn wrap(op: &Self::Op) -> Op;
}
