//! Repairs what a wrong clock wrote: rows in, rows out. Only for a whole store that nothing else has open and
//! that has no other replica, so that rows can be replaced and deleted permanently.
//!
//! A clock that once ran ahead leaves three things that an honest clock has to wait out: rows that expire far
//! in the future, and so are never folded; fences below which every honest row would count as folded (I12);
//! and times of last writers that every honest op loses against.
//!
//! **What is replaced.** A row written later than now + 2ε, which no honest clock allows; a tally whose
//! [fence proves a moved clock](fold::proves_moved_clock); and any row that holds a time of a last writer
//! that has to change. All replaced rows of a key are merged as a read merges them, and become one row,
//! packed as for an import: one write of a new mutator, at now, with one dot. A row that stays keeps its
//! bytes and its place, so that an imported line is still recognized when it is imported again. If a tally is
//! replaced, the rows at or below its fence go too: they are included in it.
//!
//! **Packs.** The expiry of a pack follows from the ids in it and not from the clock. So a pack that was written
//! too late stays, as a write at now: clients can still send its ids again. It goes like other rows if it
//! expires later than any pack of right clients, holds a time that has to change, or is in a key whose whole value
//! becomes one row. Its ids are then forgotten. So are ids that a fold by the wrong clock took: their windows are
//! still open, and the fence that kept them out goes. Until these windows end, such an id would count again.
//! [`Report::ids_until`] says when that is: no pod may take ids before.
//!
//! **Why the value stays the same.** A value is the merge of the tally and the rows above its fence, and
//! merging parts gives the merge of the whole. Two cases can differ, so the result is read and compared: the
//! parts of a kind that is [not exact](crate::crdt::Class) depend on their order, and in an `or_set` a row
//! can remove what another row added, which it can't do as the write of a new mutator. If the values differ,
//! the whole value of the key becomes the one row. The value then stays the same through all later folds:
//! above the fence of a tally that stays, the new row is folded like any other, and a key without a tally
//! gets a new tally from its rows.
//!
//! **Times of last writers.** If a key has one later than now + 2ε, its times after now become the
//! microseconds after now, in their order. So the same changes still win, none of them passes an honest time,
//! and the next op of an honest clock wins against all of them. The new row is a [parcel](super::transfer),
//! which raises adds that are too old for it.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use thiserror::Error;

use super::generation::{self, Generation, Remembered};
use super::op_id::Window;
use super::read::{self, Answer};
use super::row_reader::{RowError, RowReader};
use super::transfer::Parcel;
use super::{BadSlice, Constants, Key, MutatorId, Row, Slice, Timestamp, fold};
use crate::crdt::envelope::{self, Shard};
use crate::crdt::{Dot, State};

/// A row with its write timestamp.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The row.
    pub row: Row,
    /// The timestamp of its write.
    pub at: Timestamp,
}

/// Things of one sort whose times are ahead of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ahead {
    /// How many there are.
    pub count: u64,
    /// The latest of their times.
    pub latest: Option<Timestamp>,
}

/// What was found in all keys so far, and what was done about it.
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
    /// Rows that were removed, including tallies; each repaired key has one new row.
    pub gone: u64,
    /// The highest remaining fence, as it tells of clocks: see [`generation::evidence`].
    pub fence: Option<Timestamp>,
    /// The latest remaining time of a last writer.
    pub stamp: Option<Timestamp>,
    /// Until when ids of right clients that are counted and forgotten could be taken again, if that is later than
    /// now.
    pub ids_until: Option<Timestamp>,
}

/// Why a key can't be repaired.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RepairError {
    /// The key's rows can't be read.
    #[error(transparent)]
    Row(#[from] RowError),
    /// The rows don't belong to one key.
    #[error(transparent)]
    Slice(#[from] BadSlice),
    /// The new rows would not have the value that was read.
    #[error("its rows can't be replaced without changing its value")]
    Changed,
}

/// A repair of many keys at one time of the clock; see the [module documentation](self).
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
    /// A repair by this clock, which is assumed to be right.
    #[must_use]
    pub fn new(now: Timestamp, constants: Constants) -> Repair {
        Repair { now, constants, report: Report::default() }
    }

    /// What was found so far.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Whether a time is further ahead than two honest clocks can differ.
    #[must_use]
    pub fn is_ahead(&self, time: Timestamp) -> bool {
        time > self.now.plus(2 * self.constants.clock_offset_max())
    }

    /// Takes all rows of a key, in the table's order, and returns the rows that must replace them, in that
    /// order. `id` must be fresh and random.
    ///
    /// # Errors
    /// [`RepairError`]; then write nothing.
    pub fn key(
        &mut self,
        key: &Key,
        rows: Vec<Written>,
        id: MutatorId,
    ) -> Result<Vec<Written>, RepairError> {
        let Some(mut value) = self.value(key, &rows)? else { return self.forgotten(key, rows) };
        let Looked { fence, evidence, late, goes } = self.look(key, &rows)?;
        let packs = if goes.contains(&true) { packs(key, &rows) } else { BTreeSet::new() };
        let listed = listed_until(&rows);
        let (count, rows) = (rows.len(), rows.into_iter().zip(goes));
        let (gone, kept): (Vec<_>, Vec<_>) = rows.partition(|(_, goes)| *goes);
        let written = |rows: Vec<(Written, bool)>| rows.into_iter().map(|(row, _)| row).collect();
        let (gone, mut kept): (Vec<Written>, Vec<Written>) = (written(gone), written(kept));
        let late_packs = kept.iter_mut().filter(|written| self.is_ahead(written.at));
        let stays_late = late_packs.map(|written| written.at = self.now).count() > 0;
        let mut fence_left = fence;
        if gone.iter().any(|written| written.row.is_tally()) {
            kept.retain(|written| Some(written.row.expires_at) > fence);
            fence_left = None;
        }
        // Nothing is gone, or only a grave.
        let Some(mut merged) = self.value(key, &gone)? else {
            self.report.keys += u64::from(stays_late || fence_left != fence);
            self.report.gone += (count - kept.len()) as u64;
            self.forget(BTreeSet::new(), listed.filter(|_| fence_left.is_none()), &kept);
            self.leave(fence_left.and(evidence), &value);
            return Ok(kept);
        };
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
        self.forget(packs, fence.max(listed).filter(|_| fence_left.is_none()), &kept);
        self.leave(fence_left.and(evidence), &value);
        Ok(kept)
    }

    /// A key without a value. Nothing of it stays if the fence of its grave proves a moved clock.
    fn forgotten(&mut self, key: &Key, rows: Vec<Written>) -> Result<Vec<Written>, RepairError> {
        let Looked { evidence, goes, .. } = self.look(key, &rows)?;
        let listed = listed_until(&rows);
        let (count, rows) = (rows.len(), rows.into_iter().zip(goes));
        let mut kept: Vec<Written> =
            rows.filter(|(_, goes)| !goes).map(|(written, _)| written).collect();
        match kept.first().is_some_and(|written| written.row.is_tally()) {
            true => self.report.fence = self.report.fence.max(evidence),
            false => {
                kept.clear();
                self.forget(BTreeSet::new(), listed, &kept);
            }
        }
        self.report.keys += u64::from(kept.len() < count);
        self.report.gone += (count - kept.len()) as u64;
        Ok(kept)
    }

    /// Finds and notes everything that is ahead of the clock.
    fn look(&mut self, key: &Key, rows: &[Written]) -> Result<Looked, RepairError> {
        let reader = RowReader::of(key);
        let (mut fence, mut times) = (None, Vec::new());
        for Written { row, .. } in rows {
            // The tally comes first.
            times.push(match (row.is_tally(), key.kind.is_timed()) {
                (true, _) => {
                    let (of_tally, state) = reader.tally(row)?;
                    fence = Some(of_tally);
                    state.times()
                }
                (false, true) if Some(row.expires_at) > fence => reader.state(row)?.times(),
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
        let tally = rows.iter().find(|written| written.row.is_tally());
        let reset = tally.and_then(|written| envelope::reset(&written.row.state));
        let generation = reset.as_ref().map(Remembered::generation);
        let evidence = fence.map(|fence| generation::evidence(fence, generation, &self.constants));
        let moved = evidence
            .filter(|evidence| fold::proves_moved_clock(*evidence, self.now, &self.constants));
        moved.into_iter().for_each(|evidence| self.report.fences.note(evidence));
        let mut goes = Vec::new();
        for (Written { row, at }, times) in rows.iter().zip(times) {
            let is_ahead = !row.is_tally() && self.is_ahead(*at);
            if is_ahead {
                self.report.rows.note(*at);
            }
            let has_late = times.iter().any(|time| late.binary_search(time).is_ok());
            let goes_alone = is_ahead && !self.is_pack_of_right_clients(reader, row);
            // A right clock would refuse every reset of the key until the time of the stamp.
            let stamp = envelope::stamp(&row.state).map(Generation::time);
            let ahead = stamp.filter(|stamp| !row.is_tally() && self.is_ahead(*stamp));
            ahead.into_iter().for_each(|stamp| self.report.rows.note(stamp));
            let is_stamped_ahead = ahead.is_some();
            let goes_with_tally = row.is_tally() && moved.is_some();
            goes.push(goes_alone || has_late || is_stamped_ahead || goes_with_tally);
        }
        Ok(Looked { fence, evidence, late, goes })
    }

    fn is_pack_of_right_clients(&self, reader: RowReader, row: &Row) -> bool {
        is_pack(reader, row) && row.expires_at <= self.last_expiry_of_right_clients()
    }

    fn last_expiry_of_right_clients(&self) -> Timestamp {
        self.now.plus(2 * self.constants.clock_offset_max()).plus(2 * Window::Long.length())
    }

    /// Notes the ids of these packs, except of those that were kept, and the ids up to this expiry that a fence or the
    /// list of a reset kept out.
    fn forget(&mut self, mut packs: BTreeSet<Place>, out: Option<Timestamp>, kept: &[Written]) {
        for Written { row, .. } in kept {
            packs.remove(&(row.expires_at, row.mutator_id));
        }
        let last_pack = packs.last().map(|(expires_at, _)| *expires_at);
        let until = last_pack.max(out).map(|until| until.min(self.last_expiry_of_right_clients()));
        self.report.ids_until = self.report.ids_until.max(until.filter(|until| *until > self.now));
    }

    /// The time that replaces `time`.
    fn new_time(&self, late: &[Timestamp], time: Timestamp) -> Timestamp {
        match late.binary_search(&time) {
            Ok(index) => self.now.plus(Duration::from_micros(index as u64 + 1)),
            Err(_) => time,
        }
    }

    /// Notes what remains of a key.
    fn leave(&mut self, evidence: Option<Timestamp>, value: &State) {
        self.report.fence = self.report.fence.max(evidence);
        self.report.stamp = self.report.stamp.max(value.times().into_iter().max());
    }

    /// The value of these rows; none if there are none.
    fn value(&self, key: &Key, rows: &[Written]) -> Result<Option<State>, RepairError> {
        let rows: Vec<Row> = rows.iter().map(|written| written.row.clone()).collect();
        let limit = rows.len();
        let slice = Slice::new(rows, None, limit).whole()?;
        Ok(match read::assemble(key, &slice, self.now, &self.constants)? {
            Answer::Value(reading) => Some(reading.state),
            Answer::Absent | Answer::Grave(..) | Answer::ReadAgain => None,
        })
    }

    /// Whether these rows have this value, regardless of which mutators added it. Old adds are raised on both
    /// sides, as in the new row.
    fn has_value(
        &self,
        key: &Key,
        rows: &[Written],
        expected: &State,
    ) -> Result<bool, RepairError> {
        let expires_at = self.now.plus(self.constants.lifetime());
        let any_pod = Dot { expires_at, mutator_id: MutatorId::TALLY, seq: 1 };
        let by_any_pod = |mut state: State| {
            state.attribute_to(any_pod);
            state
        };
        let found = self.value(key, rows)?.map(by_any_pod);
        Ok(found == Some(by_any_pod(expected.clone())))
    }

    /// The one row that replaces a state.
    fn packed(&self, key: &Key, id: MutatorId, state: &State) -> Written {
        let parcel = Parcel::pack(key.clone(), id, state, self.now, self.constants.lifetime());
        let write = parcel.write();
        let (expires_at, state) = (write.expires_at(), write.state().to_vec());
        let row = Row { expires_at, mutator_id: write.mutator_id(), state };
        Written { row, at: write.timestamp() }
    }
}

/// The last expiry of the ids that the reset in a key's tally lists.
fn listed_until(rows: &[Written]) -> Option<Timestamp> {
    let tally = rows.iter().find(|written| written.row.is_tally())?;
    let reset = envelope::reset(&tally.row.state)?;
    reset.ids().last().map(|(expires_at, _)| *expires_at)
}

/// The place of a row in its key.
type Place = (Timestamp, MutatorId);

fn packs(key: &Key, rows: &[Written]) -> BTreeSet<Place> {
    let reader = RowReader::of(key);
    let rows = rows.iter().map(|written| &written.row);
    rows.filter(|row| is_pack(reader, row)).map(|row| (row.expires_at, row.mutator_id)).collect()
}

fn is_pack(reader: RowReader, row: &Row) -> bool {
    matches!(reader.shard(row), Ok(Shard::Pack(_)))
}

/// What was found in a key.
struct Looked {
    /// The fence of its tally.
    fence: Option<Timestamp>,
    /// What that fence says about clocks; see [`generation::evidence`].
    evidence: Option<Timestamp>,
    /// Times of last writers that have to change, ascending; empty if none of them is ahead.
    late: Vec<Timestamp>,
    /// For each row, whether it must be replaced.
    goes: Vec<bool>,
}

#[cfg(test)]
mod tests;
