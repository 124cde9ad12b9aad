//! What a fold or a read collects from a key: the tally and the shards merged into it.

use std::borrow::Borrow;

use super::generation::Remembered;
use super::row_reader::{RowError, RowReader};
use super::united::Counting;
use super::{Row, Timestamp};
use crate::crdt::pack::United;
use crate::crdt::{Kind, State, envelope};

/// How many more bytes a state that is too large for a tally takes before it is measured again. Encoding it
/// after each expiry would cost far more than merging.
const MEASURE_EVERY_BYTES: usize = 256 * 1024;

/// A tally's state and the shards that were merged into it, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Gathered {
    pub(super) reader: RowReader,
    pub(super) fence: Option<Timestamp>,
    pub(super) was_full: bool,
    /// The tally is a grave.
    pub(super) is_grave: bool,
    pub(super) counting: Counting,
    pub(super) state: State,
    pub(super) shards: usize,
    /// The number of merged shards that a reset cleared. They are in no state.
    pub(super) cleared: usize,
    /// The ops with ids among them.
    pub(super) united: United,
    /// Upper bound of its envelope's size, known without encoding it.
    pub(super) bytes: usize,
    /// Its size when it was last measured.
    pub(super) measured: usize,
    /// While the state is, or may be, too large for a tally: the last state that fits.
    pub(super) fitting: Option<Fitting>,
}

/// The largest number of oldest shards that fit into a tally.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fitting {
    pub(super) state: State,
    pub(super) shards: usize,
    pub(super) cleared: usize,
    pub(super) united: United,
    /// Just before the expiry that does not fit.
    pub(super) through: Timestamp,
}

impl Gathered {
    /// Only the tally, if there is one.
    pub(super) fn of(
        reader: RowReader,
        kind: Kind,
        tally: Option<&Row>,
    ) -> Result<Gathered, RowError> {
        let (bytes, was_full) =
            tally.map_or((0, false), |row| (row.state.len(), envelope::is_full(&row.state)));
        let is_grave = tally.is_some_and(|row| envelope::is_grave(&row.state));
        let (fence, state) = match tally.map(|row| reader.tally(row)).transpose()? {
            None => (None, State::identity(kind)),
            Some((fence, state)) => (Some(fence), state),
        };
        Ok(Gathered {
            reader,
            fence,
            was_full,
            is_grave,
            counting: Counting::of(tally),
            state,
            shards: 0,
            cleared: 0,
            united: United::default(),
            bytes,
            measured: bytes,
            fitting: None,
        })
    }

    pub(super) fn fence(&self) -> Option<Timestamp> {
        self.fence
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.state.memory_bytes()
    }

    /// Whether the state is too large for a tally, as far as known.
    pub(super) fn is_too_large(&self) -> bool {
        self.fitting.is_some()
    }

    /// Merges the shards of one expiry, in canonical order. If they make the tally too large, it remembers
    /// the state before them and continues: later shards can remove what earlier ones added.
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
            self.fitting = Some(Fitting {
                state: self.state.clone(),
                shards: self.shards,
                cleared: self.cleared,
                united: self.united,
                through: expires_at.shifted(-1),
            });
        }
        let counts = self.counting.merge(self.reader, &mut self.state, of_expiry, None)?;
        self.united += counts.united;
        self.shards += of_expiry.len();
        self.cleared += of_expiry.len() - counts.shards;
        // Always measure after the first expiry, so that each fold takes the same shards if they fit.
        let is_first = self.shards == of_expiry.len();
        if let Some(max) = doubted
            && (is_first || self.bytes >= self.measured + MEASURE_EVERY_BYTES)
        {
            self.measure(expires_at, max);
        }
        Ok(())
    }

    /// Measures a tally of everything merged so far, with this fence.
    pub(super) fn measure(&mut self, fence: Timestamp, max: usize) {
        // Leave out what a fold would drop. Dropping it now does not change any later tally: settling in
        // steps gives the same state as settling at once.
        self.state.settle(fence);
        let reset = self.reset_after(fence);
        let (seal, is_full) = (self.reader.seal(), false);
        self.bytes =
            envelope::encode_reset_tally(seal, &self.state, fence, is_full, reset.as_ref()).len();
        self.measured = self.bytes;
        if self.bytes <= max {
            self.fitting = None;
        }
    }

    /// The part of the key's reset that a tally with this fence must remember.
    pub(super) fn reset_after(&self, fence: Timestamp) -> Option<Remembered> {
        self.counting.reset().cloned().and_then(|reset| reset.after(fence))
    }
}
