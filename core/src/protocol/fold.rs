//! Folding: expired rows become a tally. Keeps invariants I5, I6, I7, I8, I10, I11 and I12.
//!
//! [`plan`] decides everything; a store executes the [`Fold`] as one batch at one timestamp:
//! the tally row is written with the fence F', and every row with `expires_at <= F'` is deleted by
//! one range, both at F' + 1. That timestamp is above every write of a deleted row (each is below
//! its own `expires_at`), and greater fences win over smaller ones whole, so a fold may be executed
//! any number of times, at any delay, by anyone.

use thiserror::Error;

use super::gathered::{Fitting, Gathered};
use super::prefix::PrefixRead;
use super::read::{RowError, RowReader};
use super::{Constants, FullRead, Key, Row, Timestamp};
use crate::crdt::envelope;

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

/// One batch over one key's rows. Only [`plan`] makes one, from a [`FullRead`], and [`plan_prefix`],
/// from a [`PrefixRead`].
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
    /// Shards that are not final yet and stay. A fold of a part of a long key looks at none of them,
    /// nor at zombies, and counts 0.
    pub kept: usize,
    /// The fold takes only the oldest final shards of a long key. The next fold takes more.
    pub has_more: bool,
    /// The tally can't take the next final shard: it would be larger than [`TALLY_BYTES_MAX`].
    pub is_full: bool,
}

/// Why a key can't be folded. It is left alone.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FoldError {
    /// A row can't be decoded or merged: a wall for the fold (I10).
    #[error(transparent)]
    Row(#[from] RowError),
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

/// Up to which expiry shards are final. `now` is the minimum of the own clock and of every fresh
/// sample.
#[must_use]
pub fn cut(now: Timestamp, constants: &Constants) -> Timestamp {
    now.minus(constants.cutoff()).floor_to(constants.fence_quantum())
}

/// Plans the fold of one key. `now` is that of [`cut`].
///
/// # Errors
/// [`FoldError`]; nothing may be written then.
pub fn plan(read: &FullRead, now: Timestamp, constants: &Constants) -> Result<Plan, FoldError> {
    let (reader, slice) = (RowReader::of(read.key()), read.slice());
    let mut gathered = Gathered::of(reader, read.key().kind, slice.tally())?;
    let before = gathered.checked_fence(now, constants)?;
    let cut = cut(now, constants);
    // Never an older fence, not even over zombies alone (I8).
    let fence = before.map_or(cut, |before| before.max(cut));
    let is_zombie = |row: &&Row| Some(row.expires_at) <= before;
    let is_final = |row: &&Row| Some(row.expires_at) > before && row.expires_at <= fence;
    let finals: Vec<&Row> = slice.shards().filter(is_final).collect();
    let zombies = slice.shards().filter(is_zombie).count();
    let kept = slice.shards().count() - finals.len() - zombies;
    slice.shards().filter(is_zombie).try_for_each(|row| reader.check(row))?;
    for of_expiry in finals.chunk_by(|a, b| a.expires_at == b.expires_at) {
        gathered.take(of_expiry, Some(TALLY_BYTES_MAX))?;
    }
    let report = Report { zombies, kept, ..Report::default() };
    Ok(gathered.into_plan(read.key(), fence, report, Zombies::Seen(zombies)))
}

/// Plans the fold of a key whose rows don't fit into one answer. It also deletes the key's zombies,
/// which the walk did not read.
///
/// # Errors
/// [`FoldError`]; nothing may be written then.
///
/// # Panics
/// If the walk took shards that are not final.
pub fn plan_prefix(
    read: PrefixRead,
    now: Timestamp,
    constants: &Constants,
) -> Result<Plan, FoldError> {
    let PrefixRead { key, gathered, through, is_complete, .. } = read;
    let before = gathered.checked_fence(now, constants)?;
    let cut = cut(now, constants);
    let final_through = before.map_or(cut, |before| cut.max(before));
    assert!(through <= final_through, "invariant: a fold takes final shards alone");
    let report = Report { has_more: !is_complete, ..Report::default() };
    Ok(gathered.into_plan(&key, through, report, Zombies::Unseen))
}

/// Rows at or below the fence before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Zombies {
    /// So many.
    Seen(usize),
    /// Nobody has looked. Where the fence does not rise, whoever wrote it has deleted them.
    Unseen,
}

impl Gathered {
    /// The fence, unless it proves that a clock moved.
    fn checked_fence(
        &self,
        now: Timestamp,
        constants: &Constants,
    ) -> Result<Option<Timestamp>, FoldError> {
        match self.fence.filter(|&fence| proves_moved_clock(fence, now, constants)) {
            Some(fence) => Err(FoldError::ClockMoved { fence }),
            None => Ok(self.fence),
        }
    }

    /// `through` is the fence of a fold that takes everything that was gathered.
    fn into_plan(
        mut self,
        key: &Key,
        through: Timestamp,
        report: Report,
        zombies: Zombies,
    ) -> Plan {
        let before = self.fence;
        let fence_of = |through: Timestamp| before.map_or(through, |before| through.max(before));
        if self.fitting.is_some() {
            // The fence may be far above the last expiry, so that more is forgotten.
            self.measure(fence_of(through), TALLY_BYTES_MAX);
        }
        let is_full = self.fitting.is_some();
        let all = Fitting { state: self.state, shards: self.shards, through };
        let Fitting { mut state, shards, through } = self.fitting.unwrap_or(all);
        let fence = fence_of(through);
        let report = Report {
            fence_before: before,
            folded: shards,
            has_more: report.has_more && !is_full,
            is_full,
            ..report
        };
        // At an equal fence the greater bytes win: those that say so.
        let says_other = match (self.was_full, is_full) {
            (false, true) => true,
            (true, false) => Some(fence) > before,
            _ => false,
        };
        let has_zombies = match zombies {
            Zombies::Seen(count) => count > 0,
            Zombies::Unseen => before.is_some_and(|before| fence > before),
        };
        if shards == 0 && !has_zombies && !says_other {
            return Plan::Nothing(report);
        }
        state.settle(fence);
        let seal = self.reader.seal();
        let tally = match is_full {
            true => envelope::encode_full_tally(seal, &state, fence),
            false => envelope::encode_tally(seal, &state, fence),
        };
        Plan::Fold(Fold { key: key.clone(), fence, tally, report })
    }
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
