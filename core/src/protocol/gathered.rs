//! What a fold or a read gathers of a key: the tally, and the shards that were merged into it.

use std::borrow::Borrow;

use super::read::{RowError, RowReader};
use super::{Row, Timestamp};
use crate::crdt::{Kind, State, envelope};

/// Bytes that a state which is too large for a tally takes in before it is measured again: to encode it
/// after each expiry would cost far more than to merge.
const MEASURE_EVERY_BYTES: usize = 256 * 1024;

/// A tally's state with the shards that were merged into it, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Gathered {
    pub(super) reader: RowReader,
    pub(super) fence: Option<Timestamp>,
    pub(super) was_full: bool,
    pub(super) state: State,
    pub(super) shards: usize,
    /// Its envelope has no more bytes, as far as is known without encoding it.
    pub(super) bytes: usize,
    /// Its bytes when they were last counted.
    pub(super) measured: usize,
    /// While the state is too large for a tally, or may be: what was not.
    pub(super) fitting: Option<Fitting>,
}

/// As many of the oldest shards as fit into a tally.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fitting {
    pub(super) state: State,
    pub(super) shards: usize,
    /// Up to right before the expiry that does not fit.
    pub(super) through: Timestamp,
}

impl Gathered {
    /// Nothing but the tally, if there is one.
    pub(super) fn of(
        reader: RowReader,
        kind: Kind,
        tally: Option<&Row>,
    ) -> Result<Gathered, RowError> {
        let (bytes, was_full) =
            tally.map_or((0, false), |row| (row.state.len(), envelope::is_full(&row.state)));
        let (fence, state) = match tally.map(|row| reader.tally(row)).transpose()? {
            None => (None, State::identity(kind)),
            Some((fence, state)) => (Some(fence), state),
        };
        let (shards, measured) = (0, bytes);
        Ok(Gathered { reader, fence, was_full, state, shards, bytes, measured, fitting: None })
    }

    pub(super) fn fence(&self) -> Option<Timestamp> {
        self.fence
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.state.memory_bytes()
    }

    /// Whether the state is too large for a tally, as far as is known.
    pub(super) fn is_too_large(&self) -> bool {
        self.fitting.is_some()
    }

    pub(super) fn was_full(&self) -> bool {
        self.was_full
    }

    /// Merges the shards of one expiry, in canonical order. If a tally with them would be too large,
    /// it remembers what fitted, and goes on: later shards may remove what earlier ones added.
    pub(super) fn take<R: Borrow<Row>>(
        &mut self,
        of_expiry: &[R],
        tally_bytes_max: Option<usize>,
    ) -> Result<(), RowError> {
        let Some(expires_at) = of_expiry.first().map(|row| row.borrow().expires_at) else {
            return Ok(());
        };
        self.bytes += of_expiry.iter().map(|row| row.borrow().state.len()).sum::<usize>();
        let doubted = tally_bytes_max.filter(|&max| self.bytes > max);
        if doubted.is_some() && self.fitting.is_none() {
            let (state, shards) = (self.state.clone(), self.shards);
            self.fitting = Some(Fitting { state, shards, through: expires_at.shifted(-1) });
        }
        for row in of_expiry {
            self.state.merge(&self.reader.shard(row.borrow())?).map_err(RowError::Merge)?;
        }
        self.shards += of_expiry.len();
        // The first one always, so that each fold takes as much if it fits.
        let is_first = self.shards == of_expiry.len();
        if let Some(max) = doubted
            && (is_first || self.bytes >= self.measured + MEASURE_EVERY_BYTES)
        {
            self.measure(expires_at, max);
        }
        Ok(())
    }

    /// Counts the bytes of a tally with everything that was merged, and this fence.
    pub(super) fn measure(&mut self, fence: Timestamp, max: usize) {
        // What a fold would drop must not count. Dropping it now makes no other tally later: settling
        // step by step is settling at once.
        self.state.settle(fence);
        self.bytes = envelope::encode_tally(self.reader.seal(), &self.state, fence).len();
        self.measured = self.bytes;
        if self.bytes <= max {
            self.fitting = None;
        }
    }

    /// The state of a value, which may be larger than a tally, and how many shards it has.
    pub(super) fn into_state(self) -> (State, usize) {
        (self.state, self.shards)
    }
}
