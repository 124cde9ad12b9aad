//! Why an op, a merge or stored bytes were refused.

use thiserror::Error;

use super::STATE_BYTES_MAX;
use crate::protocol::KEY_STATES_BYTES_MAX;

/// Why an op was refused. The state has not changed.
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
    #[error(
        "the op would grow the state beyond {STATE_BYTES_MAX} bytes; send a smaller one, or spread \
         what is in the key over more keys"
    )]
    TooLarge,
    /// The states of the key that one pod has would pass [`KEY_STATES_BYTES_MAX`].
    #[error(
        "this pod has {KEY_STATES_BYTES_MAX} bytes of this key that are not folded yet, and takes no \
         more; send the op to another pod, send it again tomorrow, or spread what is in the key over \
         more keys"
    )]
    KeyFull,
    /// The key has an op with this id and other content.
    #[error(
        "this id was used for another op of this key; send the op that it was made for, give \
         a later running total a greater `sequence`, and give any other new op a new id"
    )]
    IdReused,
    /// The key has a later total under this id.
    #[error(
        "this pod has a later total under this id, with the sequence number {0}, so this one would change \
         nothing; drop it if it is a late retry, and begin again under a new id if the sender lost its total"
    )]
    SequenceBehind(u64),
    /// Its tally is as large as it can be.
    #[error(
        "the folded part of this key has reached its size limit, so nothing can be added; \
         remove items, spread them over more keys, or reset the key"
    )]
    TallyFull,
    /// The token was made for another item, or a clear came with the token of one item. It would remove
    /// nothing, or something else.
    #[error(
        "`{field}` is the token of another item; send the item's own `seen` or the `context` from a read \
         of this key, and to clear the key its `context`"
    )]
    OtherItem {
        /// The op's field.
        field: &'static str,
    },
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
    /// The sketches were accepted one by one, but together they contain more than items can make, so someone
    /// chose their content. This can't be seen earlier, because the writers do not know of each other.
    #[error("the {kind} sketches together have more coupons than items can make")]
    Implausible {
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

/// Why stored bytes are not a state. Undecodable bytes are never skipped: a partial sum is a wrong sum.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end too early, continue too long, or a length does not fit.
    #[error("the bytes are cut off or too long at byte {at}")]
    Framing {
        /// Offset of the first byte that does not fit.
        at: usize,
    },
    /// The first byte is not the envelope's magic byte.
    #[error("unknown magic byte {0:#04x}")]
    Magic(u8),
    /// The checksum does not match: the bytes or the row's address have changed.
    #[error("checksum {stored:#010x} stored, {computed:#010x} computed")]
    Checksum {
        /// The stored checksum.
        stored: u32,
        /// The checksum computed from the bytes.
        computed: u32,
    },
    /// This release has no kind with this code.
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
    /// The flags or the configuration contain something unknown in this release.
    #[error("unknown flags or configuration; it may have been written by a newer release")]
    Flags,
    /// A tally's bytes in a shard's row, or a shard's bytes in a tally's row.
    #[error("a {found} stored where a {expected} belongs")]
    Role {
        /// What the row should hold.
        expected: &'static str,
        /// What the envelope contains.
        found: &'static str,
    },
    /// A number is written in more bytes than it needs, or the payload is malformed.
    #[error("the payload is not canonical")]
    NotCanonical,
}

impl DecodeError {
    /// Whether a newer release may have written the bytes, and can decode them.
    #[must_use]
    pub fn may_be_newer(&self) -> bool {
        matches!(self, DecodeError::Kind(_) | DecodeError::Format(_) | DecodeError::Flags)
    }
}
