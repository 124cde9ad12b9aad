//! Succession: a mutator whose state is full hands its key to a new one.
//!
//! The new mutator begins empty, and reads merge both rows. So a key can take more than [`STATE_BYTES_MAX`]
//! in a mutator's lifetime, but not without limit: each read of the key reads all its states that folds can't
//! take yet. The size of the predecessors' states in such rows is counted here, and passed on to each
//! successor. Mutators of ops with ids have a chain of their own for each expiry.

use super::Mutator;
use super::content::{Change, MutatorContent};
use crate::crdt::pack::PACK_BYTES_MAX;
use crate::crdt::varint::{self, Reader};
use crate::crdt::{DecodeError, OpError, STATE_BYTES_MAX};
use crate::protocol::{Constants, Timestamp};

/// A pack of a small kind that has more bytes than this takes a new id only if the last write added enough to it.
/// Each write repeats the whole pack, so large packs would make small writes costly. Small packs leave more rows,
/// which slows down reads.
pub const PACK_BYTES_CHEAP: usize = 1024;

/// How much of such a pack the last write must have added, as a divisor.
const PACK_GROWTH: usize = 8;

/// Maximum bytes of states that one pod can have of one key in rows that folds can't take yet.
pub const KEY_STATES_BYTES_MAX: usize = 4 * STATE_BYTES_MAX;

/// What this pod's earlier mutators of a key have in rows that folds can't take yet: the expiry of each row
/// and the size of its state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Predecessors(Vec<(Timestamp, usize)>);

impl Predecessors {
    /// Whether there are no such rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets the rows that a fold can take by now.
    #[must_use]
    pub fn unfolded(mut self, now: Timestamp, constants: &Constants) -> Predecessors {
        self.0.retain(|(expires_at, _)| now < expires_at.plus(constants.cutoff()));
        self
    }

    /// Total bytes of their states.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|(_, bytes)| bytes).sum()
    }

    fn add(&mut self, expires_at: Timestamp, bytes: usize) {
        match self.0.last_mut().filter(|last| last.0 == expires_at) {
            Some(last) => last.1 += bytes,
            None => self.0.push((expires_at, bytes)),
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        varint::put(self.0.len() as u128, out);
        for (expires_at, bytes) in &self.0 {
            varint::put_signed(i128::from(expires_at.as_micros()), out);
            varint::put(*bytes as u128, out);
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Predecessors, DecodeError> {
        let mut all = Vec::new();
        for _ in 0..reader.length()? {
            let micros = i64::try_from(reader.signed()?).map_err(|_| DecodeError::NotCanonical)?;
            let bytes = usize::try_from(reader.u64()?).map_err(|_| DecodeError::NotCanonical)?;
            all.push((Timestamp::from_micros(micros), bytes));
        }
        Ok(Predecessors(all))
    }
}

impl Mutator {
    /// Makes this mutator the successor of these.
    #[must_use]
    pub fn succeeding(self, predecessors: Predecessors) -> Mutator {
        Mutator { predecessors, ..self }
    }

    /// Whether the size of what it succeeds is counted.
    #[must_use]
    pub fn is_successor(&self) -> bool {
        !self.predecessors.is_empty()
    }

    /// The predecessors of a successor: this mutator's own predecessors, and this one.
    #[must_use]
    pub fn legacy(&self) -> Predecessors {
        if !self.head.is_counted(self.key.kind) {
            return Predecessors::default();
        }
        let mut legacy = self.predecessors.clone();
        legacy.add(self.lease.expires_at(), self.head.payload_bytes());
        legacy
    }

    /// Whether this pod can have a successor of this mutator, of any size, in addition to the rows that folds
    /// can't take yet.
    #[must_use]
    pub fn leaves_room(&self, now: Timestamp, constants: &Constants) -> bool {
        let next = if self.is_pack() { PACK_BYTES_MAX } else { STATE_BYTES_MAX };
        self.legacy().unfolded(now, constants).bytes() + next <= KEY_STATES_BYTES_MAX
    }

    /// Whether the next write would mostly repeat ids that are stored or on their way. A running total stays in its
    /// pack, where the next one replaces it.
    pub(super) fn repeats_too_much(&self, change: &Change) -> bool {
        let MutatorContent::Pack(head) = &self.head else { return false };
        let repeated = head.bytes_of_ops();
        let is_costly = || repeated > PACK_BYTES_CHEAP && repeated / PACK_GROWTH > self.added;
        let is_new =
            || matches!(change, Change::Named(op) if op.sequence == 0 && !head.has(&op.id));
        // Unknown writes are repeated anyway, and a successor would not know for how long.
        let is_free = self.queue.is_empty() && !self.unresolved;
        is_free && self.key.kind.about().is_small() && is_costly() && is_new()
    }

    /// Whether a new mutator would take this change, which this one has no room for.
    pub(super) fn is_room_elsewhere(&self, change: &Change, error: &OpError) -> bool {
        *error == OpError::TooLarge && self.head.emptied().apply(change).is_ok()
    }
}

#[cfg(test)]
mod tests;
