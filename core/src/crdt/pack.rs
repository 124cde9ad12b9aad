//! The pack: ops that count once, each under the id that its client gave it.
//!
//! A client that does not know what became of an op sends it again, perhaps to another pod. So one op can be
//! stored several times, by several writers. A pack maps the [id](OpId) of each op to its *delta*: the
//! payload of an empty state after only this op. All rows that can hold an id have the same expiry (see
//! [`crate::protocol::op_id`]), so reads and folds meet all its copies at once, and count one of
//! them.
//!
//! The payload, in the envelope of a shard:
//!
//! ```text
//! varint  number of entries, at least 1
//! then for each entry, ascending by id and index:
//! 16      the id
//! varint  the index
//! varint  the sequence number
//! varint  length of the delta, then its bytes
//! ```

use std::collections::BTreeMap;
use std::ops::AddAssign;

use super::varint::{self, Reader};
use super::{DecodeError, Effect, Kind, Op, OpError, STATE_BYTES_MAX, State};

/// A pack that has more bytes than this takes no further id; its mutator gets a successor.
pub const PACK_BYTES_MAX: usize = 16 * 1024;

/// The fewest bytes of an entry: the id, and one byte each for the other parts.
const ENTRY_BYTES_MIN: usize = 16 + 3;

/// Names one op of a key: the client's id, and the op's place in a request that has one id for several ops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId {
    /// The client's id, in the form that [`crate::protocol::op_id`] gives it.
    pub id: [u8; 16],
    /// The place, from 0.
    pub index: u32,
}

/// An op list with an id, ready to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdOp {
    /// Its id.
    pub id: OpId,
    /// 0, or the number of a sender's running total. If several totals have one id, the one with the
    /// greatest number counts.
    pub sequence: u64,
    /// The payload of an empty state after this op list.
    delta: Box<[u8]>,
}

/// One entry of a stored pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The op's id.
    pub id: OpId,
    /// Its sequence number.
    pub sequence: u64,
    /// Its delta.
    pub delta: &'a [u8],
}

/// The content of a pack's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPack<'a> {
    /// The precision that the key had for the writer.
    pub precision: Option<u16>,
    /// Ascending by id.
    pub entries: Vec<Entry<'a>>,
}

/// What a mutator of ops with ids has accumulated.
#[derive(Debug, Clone, PartialEq)]
pub struct Pack {
    kind: Kind,
    precision: Option<u16>,
    entries: BTreeMap<OpId, (u64, Box<[u8]>)>,
    /// Size of the entries in the payload.
    bytes: usize,
    /// Size of those that are not running totals.
    bytes_of_ops: usize,
}

/// How many ops a union counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct United {
    /// Ids that count, each once.
    pub ids: usize,
    /// Ids that were stored with several deltas under one sequence number. One of these counts.
    pub conflicts: usize,
}

impl AddAssign for United {
    fn add_assign(&mut self, other: United) {
        self.ids += other.ids;
        self.conflicts += other.conflicts;
    }
}

impl IdOp {
    /// Prepares an op list. Its dots and times must be functions of the request, like the id: then every pod
    /// makes the same delta from the same request.
    ///
    /// # Errors
    /// [`OpError`] if an empty key would refuse the list.
    pub fn new(kind: Kind, id: OpId, sequence: u64, ops: &[Op]) -> Result<IdOp, OpError> {
        let mut state = State::identity(kind);
        state.apply_all(ops)?;
        let mut delta = Vec::new();
        state.encode_payload(&mut delta);
        if delta.len() > STATE_BYTES_MAX {
            return Err(OpError::TooLarge);
        }
        Ok(IdOp { id, sequence, delta: delta.into() })
    }

    /// Memory that it holds in addition to itself, in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.delta.len()
    }

    fn bytes(&self) -> usize {
        entry_bytes(self.id, self.sequence, &self.delta)
    }
}

impl Pack {
    /// An empty pack. Without a `precision` it has the kind's default.
    #[must_use]
    pub fn new(kind: Kind, precision: Option<u16>) -> Pack {
        let precision = State::new(kind, precision).precision();
        Pack { kind, precision, entries: BTreeMap::new(), bytes: 0, bytes_of_ops: 0 }
    }

    /// The kind of its key.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The precision that reads merge into the key.
    #[must_use]
    pub fn precision(&self) -> Option<u16> {
        self.precision
    }

    /// Size of its entries, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Size of its entries that are not running totals, in bytes. It has one entry for all running totals of a
    /// sender.
    #[must_use]
    pub fn bytes_of_ops(&self) -> usize {
        self.bytes_of_ops
    }

    /// Number of its entries.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "unused")]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has an entry with this id.
    #[must_use]
    pub fn has(&self, id: &OpId) -> bool {
        self.entries.contains_key(id)
    }

    /// Takes an op, or finds that it has it already.
    ///
    /// # Errors
    /// [`OpError::IdReused`] if it has the id with another delta, or with a sequence number where the other
    /// has none, [`OpError::SequenceBehind`] if it has a greater number, and [`OpError::TooLarge`] if it has
    /// no room. Then it has not changed.
    pub fn put(&mut self, op: &IdOp) -> Result<Effect, OpError> {
        let mut replaced = 0;
        if let Some((sequence, delta)) = self.entries.get(&op.id) {
            if op.sequence == *sequence && op.delta == *delta {
                return Ok(Effect::Unchanged);
            }
            if op.sequence == *sequence || op.sequence == 0 || *sequence == 0 {
                return Err(OpError::IdReused);
            }
            // A late retry of an older total, which the newer one includes, or a sender that began again and
            // whose ops would be lost.
            if op.sequence < *sequence {
                return Err(OpError::SequenceBehind(*sequence));
            }
            replaced = entry_bytes(op.id, *sequence, delta);
        }
        let bytes = self.bytes - replaced + op.bytes();
        if bytes > PACK_BYTES_MAX && self.bytes > replaced {
            return Err(OpError::TooLarge);
        }
        self.bytes = bytes;
        if op.sequence == 0 {
            self.bytes_of_ops += op.bytes();
        }
        self.entries.insert(op.id, (op.sequence, op.delta.clone()));
        Ok(Effect::Changed)
    }

    /// Appends the payload.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.bytes + varint::U128_BYTES_MAX);
        varint::put(self.entries.len() as u128, out);
        for (id, (sequence, delta)) in &self.entries {
            out.extend_from_slice(&id.id);
            varint::put(u128::from(id.index), out);
            varint::put(u128::from(*sequence), out);
            varint::put(delta.len() as u128, out);
            out.extend_from_slice(delta);
        }
    }

    /// A pack that goes on from stored entries.
    #[must_use]
    pub fn resumed(kind: Kind, stored: &StoredPack<'_>) -> Pack {
        let entries = stored.entries.iter();
        let bytes = |entry: &Entry<'_>| entry_bytes(entry.id, entry.sequence, entry.delta);
        Pack {
            kind,
            precision: stored.precision,
            bytes: entries.clone().map(bytes).sum(),
            bytes_of_ops: entries.clone().filter(|entry| entry.sequence == 0).map(bytes).sum(),
            entries: entries
                .map(|entry| (entry.id, (entry.sequence, entry.delta.into())))
                .collect(),
        }
    }
}

impl<'a> StoredPack<'a> {
    /// Reads a payload. The deltas are read when they are merged.
    ///
    /// # Errors
    /// [`DecodeError`] for any bytes other than those that a [`Pack`] writes, except within the deltas.
    pub(crate) fn decode(
        precision: Option<u16>,
        payload: &'a [u8],
    ) -> Result<StoredPack<'a>, DecodeError> {
        let mut reader = Reader::new(payload);
        let count = reader.length()?;
        if count == 0 {
            return Err(DecodeError::NotCanonical);
        }
        let mut entries: Vec<Entry<'a>> =
            Vec::with_capacity(count.min(payload.len() / ENTRY_BYTES_MIN));
        for _ in 0..count {
            let id = reader.bytes(16)?.try_into().expect("invariant: 16 bytes");
            let index = u32::try_from(reader.u64()?).map_err(|_| DecodeError::NotCanonical)?;
            let (id, sequence) = (OpId { id, index }, reader.u64()?);
            let length = reader.length()?;
            if entries.last().is_some_and(|last| last.id >= id) {
                return Err(DecodeError::NotCanonical);
            }
            entries.push(Entry { id, sequence, delta: reader.bytes(length)? });
        }
        reader.end()?;
        Ok(StoredPack { precision, entries })
    }
}

impl Entry<'_> {
    /// The delta as a state.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not a payload of the kind.
    pub(crate) fn state(&self, kind: Kind) -> Result<State, DecodeError> {
        let finest = State::identity(kind).precision();
        State::decode_payload(kind, kind.format(), finest, self.delta)
    }
}

/// Chooses the entries that count among those of all packs with one expiry, in canonical order: of each id
/// the one with the greatest sequence number, then with the greatest bytes. So it does not matter which
/// copies a read meets, nor in which order.
pub(crate) fn unite<'a, 'b: 'a>(
    packs: impl Iterator<Item = &'a StoredPack<'b>>,
) -> (Vec<Entry<'b>>, United) {
    let mut entries: Vec<Entry<'b>> = packs.flat_map(|pack| &pack.entries).copied().collect();
    // Each pack is in order already, and the stable sort merges runs.
    entries.sort_by(|a, b| {
        // Nearly all ids differ, and this is most of the time of a read: compare no more than needed.
        let id = |entry: &Entry<'_>| (u128::from_be_bytes(entry.id.id), entry.id.index);
        id(a)
            .cmp(&id(b))
            .then_with(|| b.sequence.cmp(&a.sequence))
            .then_with(|| b.delta.cmp(a.delta))
    });
    let mut united = United::default();
    for copies in entries.chunk_by(|a, b| a.id == b.id) {
        let first = &copies[0];
        let is_other =
            |copy: &Entry<'_>| copy.sequence == first.sequence && copy.delta != first.delta;
        united.ids += 1;
        united.conflicts += usize::from(copies.iter().any(is_other));
    }
    entries.dedup_by_key(|entry| entry.id);
    (entries, united)
}

fn entry_bytes(id: OpId, sequence: u64, delta: &[u8]) -> usize {
    16 + varint::bytes(id.index.into())
        + varint::bytes(sequence.into())
        + varint::bytes(delta.len() as u128)
        + delta.len()
}

#[cfg(test)]
mod tests;
