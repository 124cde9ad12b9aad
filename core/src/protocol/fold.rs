//! Folding: expired rows become a tally. Keeps invariants I5, I6, I7, I8, I10, I11 and I12.
//!
//! [`plan`] decides everything. A store executes the [`Fold`] as one batch at one timestamp: it writes the
//! tally row with the fence F', and deletes every row with `expires_at <= F'` by one range, both at F' + 1.
//! That timestamp is above every write of a deleted row, because each write is below its row's `expires_at`.
//! A greater fence replaces a smaller one as a whole. So any pod can execute a fold, any number of times,
//! after any delay.

use thiserror::Error;

use super::gathered::{Fitting, Gathered};
use super::prefix::PrefixRead;
use super::row_reader::{RowError, RowReader};
use super::{Constants, FullRead, Key, Row, Timestamp};
use crate::crdt::envelope;
use crate::crdt::pack::United;

/// Largest envelope of a tally, in bytes. A larger fold is not executed: Cassandra refuses a batch above half
/// a segment of its commit log (16 MiB by default), and every read carries the tally.
pub const TALLY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What to do with a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// No row is final, and none lies below the fence.
    Nothing(Report),
    /// Execute this.
    Fold(Fold),
}

/// One batch over one key's rows. Only [`plan`] makes one, from a [`FullRead`], and [`plan_prefix`], from a
/// [`PrefixRead`].
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
    /// The fence before the fold; none without a tally.
    pub fence_before: Option<Timestamp>,
    /// Shards that go into the tally.
    pub folded: usize,
    /// Rows at or below the old fence that are deleted again without being counted.
    pub zombies: usize,
    /// Shards that are not final yet and stay. 0 for a partial fold of a long key, which looks at neither
    /// these nor zombies.
    pub kept: usize,
    /// The fold takes only the oldest final shards of a long key. The next fold takes more.
    pub has_more: bool,
    /// The tally can't take the next final shard: it would be larger than [`TALLY_BYTES_MAX`].
    pub is_full: bool,
    /// The ops with ids among the shards that go into the tally.
    pub united: United,
}

/// Why a key can't be folded. Its rows stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FoldError {
    /// A row can't be decoded or merged, so the fold stops (I10).
    #[error(transparent)]
    Row(#[from] RowError),
    /// The key's fence is further ahead than any honest clock could have put it (I12).
    #[error(
        "the key's fence {} lies in this clock's future: a clock has moved; check NTP",
        .fence.as_micros()
    )]
    ClockMoved {
        /// The fence.
        fence: Timestamp,
    },
}

/// Whether a fence proves that some clock moved: it is above `now - C + 2ε` (I12). A mutator born by this
/// clock could expire at or below the fence, and its acknowledged updates would be lost.
#[must_use]
pub fn proves_moved_clock(fence: Timestamp, now: Timestamp, constants: &Constants) -> bool {
    fence.plus(constants.cutoff()) > now.plus(2 * constants.clock_offset_max())
}

/// The latest expiry at which a shard is final. `now` is the minimum of this pod's clock and every fresh
/// sample.
#[must_use]
pub fn cut(now: Timestamp, constants: &Constants) -> Timestamp {
    now.minus(constants.cutoff()).floor_to(constants.fence_quantum())
}

/// Plans the fold of one key. `now` is the same as for [`cut`].
///
/// # Errors
/// [`FoldError`]; then write nothing.
pub fn plan(read: &FullRead, now: Timestamp, constants: &Constants) -> Result<Plan, FoldError> {
    let (reader, slice) = (RowReader::of(read.key()), read.slice());
    let mut gathered = Gathered::of(reader, read.key().kind, slice.tally())?;
    let before = gathered.checked_fence(now, constants)?;
    let cut = cut(now, constants);
    // The fence never goes back, not even to delete only zombies (I8).
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

/// Plans the fold of a key with more rows than one answer can hold. It also deletes the key's zombies, which
/// the walk did not read.
///
/// # Errors
/// [`FoldError`]; then write nothing.
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
    assert!(through <= final_through, "invariant: a fold takes only final shards");
    let report = Report { has_more: !is_complete, ..Report::default() };
    Ok(gathered.into_plan(&key, through, report, Zombies::Unseen))
}

/// Rows at or below the earlier fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Zombies {
    /// This many.
    Seen(usize),
    /// Not counted. If the fence does not rise, the fold that wrote it has deleted them already.
    Unseen,
}

impl Gathered {
    /// The tally's fence, unless it proves that a clock moved.
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

    /// `through` is the fence if the fold takes everything that was gathered.
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
            // The fence can be far above the last expiry, and then the state forgets more.
            self.measure(fence_of(through), TALLY_BYTES_MAX);
        }
        let is_full = self.fitting.is_some();
        let (shards, united) = (self.shards, self.united);
        let all = Fitting { state: self.state, shards, united, through };
        let Fitting { mut state, shards, united, through } = self.fitting.unwrap_or(all);
        let fence = fence_of(through);
        let report = Report {
            fence_before: before,
            folded: shards,
            has_more: report.has_more && !is_full,
            is_full,
            united,
            ..report
        };
        // At an equal fence the greater bytes win: those with the "full" flag.
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
    /// The fold to execute, if there is one.
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

    /// F': the fold deletes every row of the key with `expires_at <= fence`.
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
