//! Folding: expired rows become a tally. Keeps invariants I5, I6, I7, I8, I10, I11 and I12.
//!
//! [`plan`] decides everything; a store executes the [`Fold`] as one batch at one timestamp:
//! the tally row is written with the fence F', and every row with `expires_at <= F'` is deleted by
//! one range, both at F' + 1. That timestamp is above every write of a deleted row (each is below
//! its own `expires_at`), and greater fences win over smaller ones whole, so a fold may be executed
//! any number of times, at any delay, by anyone.

use std::borrow::Borrow;

use thiserror::Error;

use super::prefix::PrefixRead;
use super::read::{RowError, RowReader};
use super::{Constants, FullRead, Key, Row, Timestamp};
use crate::crdt::{Kind, State, envelope};

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

/// Bytes that a state which is too large for a tally takes in before it is measured again: to encode it
/// after each expiry would cost far more than to merge.
const MEASURE_EVERY_BYTES: usize = 256 * 1024;

/// A tally's state with the shards that were merged into it, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Gathered {
    reader: RowReader,
    fence: Option<Timestamp>,
    was_full: bool,
    state: State,
    shards: usize,
    /// Its envelope has no more bytes, as far as is known without encoding it.
    bytes: usize,
    /// Its bytes when they were last counted.
    measured: usize,
    /// While the state is too large for a tally, or may be: what was not.
    fitting: Option<Fitting>,
}

/// As many of the oldest shards as fit into a tally.
#[derive(Debug, Clone, PartialEq)]
struct Fitting {
    state: State,
    shards: usize,
    /// Up to right before the expiry that does not fit.
    through: Timestamp,
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
    fn measure(&mut self, fence: Timestamp, max: usize) {
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
