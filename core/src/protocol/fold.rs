//! Folding: expired rows become a tally. Keeps invariants I5, I6, I7, I8, I10, I11 and I12.
//!
//! [`plan`] decides everything; a store executes the [`Fold`] as one batch at one timestamp:
//! the tally row is written with the fence F', and every row with `expires_at <= F'` is deleted by
//! one range, both at F' + 1. That timestamp is above every write of a deleted row (each is below
//! its own `expires_at`), and greater fences win over smaller ones whole, so a fold may be executed
//! any number of times, at any delay, by anyone.

use thiserror::Error;

use super::read::{RowError, RowReader};
use super::{Constants, FullRead, Key, Row, Timestamp};
use crate::crdt::{State, envelope};

/// Largest envelope of a tally, in bytes. A fold beyond it is not executed: Cassandra refuses a batch
/// above half a segment of its commit log, 16 MiB by default, and every read carries the tally.
pub const TALLY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What to do with a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// No row is final, and none lies below the fence.
    Nothing(Report),
    /// Execute this.
    Fold(Fold),
}

/// One batch over one key's rows. Only [`plan`] makes one, from a [`FullRead`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fold {
    key: Key,
    fence: Timestamp,
    tally: Vec<u8>,
    report: Report,
}

/// What a plan saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// The fence before; none without a tally.
    pub fence_before: Option<Timestamp>,
    /// Shards that go into the tally.
    pub folded: usize,
    /// Rows at or below the old fence that are deleted again without being counted.
    pub zombies: usize,
    /// Shards that are not final yet and stay.
    pub kept: usize,
}

/// Why a key can't be folded. It is left alone.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FoldError {
    /// A row can't be decoded or merged: a wall for the fold (I10).
    #[error(transparent)]
    Row(#[from] RowError),
    /// The rows together have too much in them: sets grow without a bound.
    #[error(
        "its tally would have {bytes} bytes, more than {TALLY_BYTES_MAX}; \
         spread its items over more keys"
    )]
    TooLarge {
        /// Of the tally's envelope.
        bytes: usize,
    },
    /// The key's fence lies further ahead than any honest clock could have put it (I12).
    #[error(
        "the key's fence {} lies in this clock's future: a clock has moved",
        .fence.as_micros()
    )]
    ClockMoved {
        /// The fence.
        fence: Timestamp,
    },
}

/// Whether a fence proves that some clock moved: it is above `now - C + 2ε` (I12). Mutators born by
/// such a clock would be behind the fence, and their acks lost.
#[must_use]
pub fn proves_moved_clock(fence: Timestamp, now: Timestamp, constants: &Constants) -> bool {
    fence.plus(constants.cutoff()) > now.plus(2 * constants.clock_offset_max())
}

/// Plans the fold of one key. `now` is the minimum of the own clock and of every fresh sample.
///
/// # Errors
/// [`FoldError`]; nothing may be written then.
pub fn plan(read: &FullRead, now: Timestamp, constants: &Constants) -> Result<Plan, FoldError> {
    let (reader, slice) = (RowReader::of(read.key()), read.slice());
    let tally = slice.tally().map(|row| reader.tally(row)).transpose()?;
    let before = tally.as_ref().map(|(fence, _)| *fence);
    if let Some(fence) = before.filter(|&fence| proves_moved_clock(fence, now, constants)) {
        return Err(FoldError::ClockMoved { fence });
    }
    let cut = now.minus(constants.cutoff()).floor_to(constants.fence_quantum());
    // Never an older fence, not even over zombies alone (I8).
    let fence = before.map_or(cut, |before| before.max(cut));
    let is_zombie = |row: &&Row| Some(row.expires_at) <= before;
    let is_final = |row: &&Row| Some(row.expires_at) > before && row.expires_at <= fence;
    let report = Report {
        fence_before: before,
        folded: slice.shards().filter(is_final).count(),
        zombies: slice.shards().filter(is_zombie).count(),
        kept: slice.shards().filter(|row| row.expires_at > fence).count(),
    };
    if report.folded == 0 && report.zombies == 0 {
        return Ok(Plan::Nothing(report));
    }
    slice.shards().filter(is_zombie).try_for_each(|row| reader.check(row))?;
    let mut state = tally.map_or_else(|| State::identity(read.key().kind), |(_, state)| state);
    for row in slice.shards().filter(is_final) {
        state.merge(&reader.shard(row)?).map_err(RowError::Merge)?;
    }
    state.settle(fence);
    let tally = envelope::encode_tally(reader.seal(), &state, fence);
    if tally.len() > TALLY_BYTES_MAX {
        return Err(FoldError::TooLarge { bytes: tally.len() });
    }
    Ok(Plan::Fold(Fold { key: read.key().clone(), fence, tally, report }))
}

impl Plan {
    /// What to execute, if anything.
    #[must_use]
    pub fn fold(&self) -> Option<&Fold> {
        match self {
            Plan::Nothing(_) => None,
            Plan::Fold(fold) => Some(fold),
        }
    }

    /// What the plan saw.
    #[must_use]
    pub fn report(&self) -> &Report {
        match self {
            Plan::Nothing(report) | Plan::Fold(Fold { report, .. }) => report,
        }
    }
}

impl Fold {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// F': delete every row of the key with `expires_at <= fence`.
    #[must_use]
    pub fn fence(&self) -> Timestamp {
        self.fence
    }

    /// F' + 1: the timestamp of the tally's write and of the deletion.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        self.fence.next()
    }

    /// The tally's envelope.
    #[must_use]
    pub fn tally(&self) -> &[u8] {
        &self.tally
    }

    /// What the plan saw.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }
}

#[cfg(test)]
mod tests;
