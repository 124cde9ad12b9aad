//! Repairing what a wrong clock wrote: rows in, rows out. Only for a whole store that nothing else has
//! open and that has no other replica, so that rows may be replaced and deleted for good.
//!
//! A clock that once ran ahead leaves three things that an honest clock can't live with for as long:
//! rows that expire far ahead, and so are never folded; fences, behind which every honest row would
//! count as folded (I12); and times of last writers, which every honest op loses against.
//!
//! **What goes.** A row that was written later than now + 2ε, which no honest clock allows; a tally
//! whose [fence proves a moved clock](fold::proves_moved_clock); and whatever holds a time of a last
//! writer that has to change. All that goes from a key is merged as a read merges it, and becomes one
//! row, packed as for an import: a new mutator's one write, at now, of one dot. What of a key stays
//! keeps its bytes and its place, so that an imported line is still known when it is imported again.
//! If a tally goes, the rows at or below its fence go too: they are in it.
//!
//! **Why the value stays.** A value is the merge of the tally and of the rows above its fence, and a
//! merge of parts is the merge of the whole. Two sorts of kinds may differ, and so the result is read
//! and compared: the parts of a kind that is [not exact](crate::crdt::Class) depend on their order, and
//! in an `or_set` a row may remove what another one added, which it can't do as the write of a new
//! mutator. Where the values differ, the whole value of the key becomes the one row. The value then
//! stays through all later folds: above the fence of a tally that stays, the new row is folded like any
//! other, and a key without a tally gets a new one from the rows that there are.
//!
//! **Times of last writers.** If a key has one later than now + 2ε, its times after now become the
//! microseconds after now, in their order. So what won still wins, nothing of an honest time is
//! passed, and the next op of an honest clock wins against all of them. The new row is a
//! [parcel](super::transfer), which raises adds that are too old for it.

use std::cmp::Reverse;
use std::time::Duration;

use thiserror::Error;

use super::read::{self, Answer, RowError, RowReader};
use super::transfer::Parcel;
use super::{BadSlice, Constants, Key, MutatorId, Row, Slice, Timestamp, fold};
use crate::crdt::{Dot, State};

/// A row, and when it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The row.
    pub row: Row,
    /// Its write timestamp.
    pub at: Timestamp,
}

/// Things of one sort that are ahead of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ahead {
    /// How many.
    pub count: u64,
    /// The latest of them.
    pub latest: Option<Timestamp>,
}

/// What was found in all keys that were looked at, and what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Rows that were written ahead of the clock.
    pub rows: Ahead,
    /// Fences that prove a moved clock.
    pub fences: Ahead,
    /// Times of last writers ahead of the clock.
    pub stamps: Ahead,
    /// Keys that were repaired.
    pub keys: u64,
    /// Rows that went, tallies among them; each repaired key has one new row.
    pub gone: u64,
    /// The greatest fence that is left.
    pub fence: Option<Timestamp>,
    /// The latest time of a last writer, now.
    pub stamp: Option<Timestamp>,
}

/// Why a key can't be repaired.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RepairError {
    /// Its rows have no value.
    #[error(transparent)]
    Row(#[from] RowError),
    /// They are not those of one key.
    #[error(transparent)]
    Slice(#[from] BadSlice),
    /// What would be written does not have the value that was read.
    #[error("its rows can't be replaced without a change of its value")]
    Changed,
}

/// A repair of many keys by one look at the clock; see the [module documentation](self).
#[derive(Debug)]
pub struct Repair {
    now: Timestamp,
    constants: Constants,
    report: Report,
}

impl Ahead {
    fn note(&mut self, time: Timestamp) {
        self.count += 1;
        self.latest = self.latest.max(Some(time));
    }
}

impl Repair {
    /// A repair by a clock that is taken as right.
    #[must_use]
    pub fn new(now: Timestamp, constants: Constants) -> Repair {
        Repair { now, constants, report: Report::default() }
    }

    /// What was found up to now.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Whether a time is later than two honest clocks may differ.
    #[must_use]
    pub fn is_ahead(&self, time: Timestamp) -> bool {
        time > self.now.plus(2 * self.constants.clock_offset_max())
    }

    /// Takes all rows of a key, in the table's order, and returns what it shall have instead, in that
    /// order. `id` must be fresh and random.
    ///
    /// # Errors
    /// [`RepairError`]; nothing may be written then.
    pub fn key(
        &mut self,
        key: &Key,
        rows: Vec<Written>,
        id: MutatorId,
    ) -> Result<Vec<Written>, RepairError> {
        let Some(mut value) = self.value(key, &rows)? else { return Ok(rows) };
        let Looked { fence, late, goes } = self.look(key, &rows)?;
        let (count, rows) = (rows.len(), rows.into_iter().zip(goes));
        let (gone, kept): (Vec<_>, Vec<_>) = rows.partition(|(_, goes)| *goes);
        let written = |rows: Vec<(Written, bool)>| rows.into_iter().map(|(row, _)| row).collect();
        let (gone, mut kept): (Vec<Written>, Vec<Written>) = (written(gone), written(kept));
        let Some(mut merged) = self.value(key, &gone)? else {
            self.leave(fence, &value);
            return Ok(kept);
        };
        let mut fence_left = fence;
        if gone.iter().any(|written| written.row.is_tally()) {
            kept.retain(|written| Some(written.row.expires_at) > fence);
            fence_left = None;
        }
        for state in [&mut value, &mut merged] {
            state.retime(&|time| self.new_time(&late, time));
        }
        kept.push(self.packed(key, id, &merged));
        kept.sort_by_key(|written| (Reverse(written.row.expires_at), written.row.mutator_id));
        if !self.has_value(key, &kept, &value)? {
            (kept, fence_left) = (vec![self.packed(key, id, &value)], None);
            if !self.has_value(key, &kept, &value)? {
                return Err(RepairError::Changed);
            }
        }
        self.report.keys += 1;
        self.report.gone += (count + 1 - kept.len()) as u64;
        self.leave(fence_left, &value);
        Ok(kept)
    }

    /// Looks for what is ahead, and notes it.
    fn look(&mut self, key: &Key, rows: &[Written]) -> Result<Looked, RepairError> {
        let reader = RowReader::of(key);
        let (mut fence, mut times) = (None, Vec::new());
        for Written { row, .. } in rows {
            // The tally is the first.
            times.push(match (row.is_tally(), key.kind.is_timed()) {
                (true, _) => {
                    let (of_tally, state) = reader.tally(row)?;
                    fence = Some(of_tally);
                    state.times()
                }
                (false, true) if Some(row.expires_at) > fence => reader.shard(row)?.times(),
                (false, _) => Vec::new(),
            });
        }
        let mut late: Vec<Timestamp> = times.iter().flatten().copied().collect();
        late.retain(|time| *time > self.now);
        late.sort_unstable();
        late.dedup();
        if !late.last().is_some_and(|time| self.is_ahead(*time)) {
            late.clear();
        }
        for &time in &late {
            if self.is_ahead(time) {
                self.report.stamps.note(time);
            }
        }
        let moved =
            fence.filter(|fence| fold::proves_moved_clock(*fence, self.now, &self.constants));
        moved.into_iter().for_each(|fence| self.report.fences.note(fence));
        let mut goes = Vec::new();
        for (Written { row, at }, times) in rows.iter().zip(times) {
            let is_ahead = !row.is_tally() && self.is_ahead(*at);
            if is_ahead {
                self.report.rows.note(*at);
            }
            let has_late = times.iter().any(|time| late.binary_search(time).is_ok());
            goes.push(is_ahead || has_late || (row.is_tally() && moved.is_some()));
        }
        Ok(Looked { fence, late, goes })
    }

    /// What a time becomes.
    fn new_time(&self, late: &[Timestamp], time: Timestamp) -> Timestamp {
        match late.binary_search(&time) {
            Ok(index) => self.now.plus(Duration::from_micros(index as u64 + 1)),
            Err(_) => time,
        }
    }

    /// Notes what a key has now.
    fn leave(&mut self, fence: Option<Timestamp>, value: &State) {
        self.report.fence = self.report.fence.max(fence);
        self.report.stamp = self.report.stamp.max(value.times().into_iter().max());
    }

    /// The value of these rows; none without rows.
    fn value(&self, key: &Key, rows: &[Written]) -> Result<Option<State>, RepairError> {
        let rows: Vec<Row> = rows.iter().map(|written| written.row.clone()).collect();
        let limit = rows.len();
        let slice = Slice::new(rows, None, limit).whole()?;
        Ok(match read::assemble(key, &slice, self.now, &self.constants)? {
            Answer::Value(reading) => Some(reading.state),
            Answer::Absent | Answer::ReadAgain => None,
        })
    }

    /// Whether rows are this together, whoever added it. Old adds are raised on both sides, as in the new row.
    fn has_value(
        &self,
        key: &Key,
        rows: &[Written],
        expected: &State,
    ) -> Result<bool, RepairError> {
        let expires_at = self.now.plus(self.constants.lifetime());
        let anybody = Dot { expires_at, mutator_id: MutatorId::TALLY, seq: 1 };
        let by_anybody = |mut state: State| {
            state.attribute_to(anybody);
            state
        };
        let found = self.value(key, rows)?.map(by_anybody);
        Ok(found == Some(by_anybody(expected.clone())))
    }

    /// The one row that a state becomes.
    fn packed(&self, key: &Key, id: MutatorId, state: &State) -> Written {
        let parcel = Parcel::pack(key.clone(), id, state, self.now, self.constants.lifetime());
        let write = parcel.write();
        let (expires_at, state) = (write.expires_at(), write.state().to_vec());
        let row = Row { expires_at, mutator_id: write.mutator_id(), state };
        Written { row, at: write.timestamp() }
    }
}

/// What was found in a key.
struct Looked {
    /// Of its tally.
    fence: Option<Timestamp>,
    /// Times of last writers that have to change, ascending; none if none is ahead.
    late: Vec<Timestamp>,
    /// For each row, whether it has to go.
    goes: Vec<bool>,
}

#[cfg(test)]
mod tests;
