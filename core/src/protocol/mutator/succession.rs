//! Succession: a mutator whose state is full hands its key to a new one.
//!
//! The new mutator begins empty, and reads merge both rows. So a key can take more than [`STATE_BYTES_MAX`]
//! in a mutator's lifetime, but not without limit: each read of the key reads all its states that folds can't
//! take yet. The size of the predecessors' states in such rows is counted here, and passed on to each
//! successor.

use super::Mutator;
use crate::crdt::varint::{self, Reader};
use crate::crdt::{DecodeError, Op, OpError, STATE_BYTES_MAX, State};
use crate::protocol::{Constants, Timestamp};

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

    /// Whether there is room for one more state of any size.
    #[must_use]
    pub fn leave_room(&self) -> bool {
        self.bytes() + STATE_BYTES_MAX <= KEY_STATES_BYTES_MAX
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

    /// The predecessors of a successor: this mutator's own predecessors, and this one. Small states are not
    /// counted, because any realistic number of them per day is small.
    #[must_use]
    pub fn legacy(&self) -> Predecessors {
        if self.key.kind.about().is_small() {
            return Predecessors::default();
        }
        let mut payload = Vec::new();
        self.head.encode_payload(&mut payload);
        let mut legacy = self.predecessors.clone();
        legacy.0.push((self.lease.expires_at(), payload.len()));
        legacy
    }

    /// Whether a new mutator would take these ops, which this one has no room for.
    pub(super) fn is_room_elsewhere(&self, ops: &[Op], error: &OpError) -> bool {
        let empty = || State::new(self.key.kind, self.head.precision());
        *error == OpError::TooLarge && empty().apply_all(ops).is_ok()
    }
}

#[cfg(test)]
mod tests;
