//! Names a mutator of this pod.

use orderfree_core::protocol::{Key, Timestamp};

/// Approximate memory of a pack for each byte of its payload, measured and rounded up.
const PACK_MEMORY_FACTOR: usize = 8;

/// A key has one mutator of its state, and one mutator of a pack for each expiry that the ids of its ops lead
/// to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Writer {
    pub(super) key: Key,
    /// The expiry of a pack.
    pub(super) until: Option<Timestamp>,
}

/// How large the rows of a writer can be. This decides how they are written together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum RowSize {
    /// States of small kinds: limited by number only.
    Small,
    /// Packs: limited by their bytes, too.
    Pack,
    /// Other states: written alone.
    Large,
}

impl Writer {
    /// The mutator of the key's state.
    #[cfg(test)]
    pub(super) fn of_state(key: &Key) -> Writer {
        Writer { key: key.clone(), until: None }
    }

    pub(super) fn row_size(&self) -> RowSize {
        match (self.until, self.key.kind.about().is_small()) {
            (Some(_), _) => RowSize::Pack,
            (None, true) => RowSize::Small,
            (None, false) => RowSize::Large,
        }
    }

    /// Approximate memory of a mutator with this payload size, in bytes; 0 for those limited by number only.
    pub(super) fn memory_bytes(&self, payload_bytes: usize) -> usize {
        match self.until {
            Some(_) => PACK_MEMORY_FACTOR * payload_bytes,
            None => self.key.kind.about().memory_bytes(payload_bytes),
        }
    }
}
