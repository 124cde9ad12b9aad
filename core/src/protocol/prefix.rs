//! Keys with more rows than one answer can hold: they are read and folded in parts, oldest rows first.
//!
//! Several queries are not a snapshot. A fold can land between two of them on one replica. Its deletion then
//! hides rows from the next queries, while another replica still answers with the old tally. So every query
//! asks all replicas, whatever the level of other reads, in this order:
//!
//! 1. the tally, with its fence F0;
//! 2. the shards with `F0 < expires_at`, oldest first, in parts, never splitting an expiry;
//! 3. the tally again;
//! 4. the ids of the shards of step 2 again, without their states (the recheck);
//! 5. the tally a third time.
//!
//! The result counts only if all three looks at the tally found the same bytes, and if step 4 found the ids
//! that step 2 took. Otherwise the walk begins again.
//!
//! This is right because a replica that has a deletion also has its tally (I7). If a deletion above F0 hid a
//! row from step 2, some replica already had that deletion, and so its tally. Step 3 asks that replica, so
//! the second look differs. A deletion up to F0 hides nothing that step 2 reads. For the same reason zombies
//! are never read here: a fold deletes them without looking.
//!
//! A replica that loses power can forget a deletion and its tally between step 2 and step 3, if it had not
//! synced them. Then the second look finds nothing. But the deletion no longer hides the row from step 4, and
//! the ids differ. If the deletion came again before step 4, its tally came with it, and step 5 finds that. So
//! a walk is right although a replica forgets once during it. Two losses during one walk can deceive it.
//!
//! Step 4 compares only ids up to [`Until::settled`]. Above that time new mutators are born while the walk
//! goes on, and no right fence lies there. The first write of an old mutator can come between steps 2 and 4.
//! That costs only another try.
//!
//! A row can be written between two parts. An op that was acknowledged before the walk began is in its row by
//! then, and the row's later states contain all that earlier ones held (I2).

use std::hash::{DefaultHasher, Hash, Hasher};

use thiserror::Error;

use super::gathered::Gathered;
use super::generation::Remembered;
use super::read::Reading;
use super::row_reader::{RowError, RowReader};
use super::{BadSlice, Key, Row, Timestamp};

/// Rows to request: those with `after < expires_at <= through`, oldest first, up to `limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Only rows that expire after this; all rows if none.
    pub after: Option<Timestamp>,
    /// Only rows that expire no later than this. It is below [`Timestamp::NEVER`], so the tally is never
    /// included.
    pub through: Timestamp,
    /// Maximum number of rows.
    pub limit: usize,
    /// Whether the rows come with empty states.
    pub ids_only: bool,
}

/// Only the tally expires later.
pub const LAST_EXPIRY: Timestamp = Timestamp::from_micros(Timestamp::NEVER.as_micros() - 1);

/// Where a walk ends at the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Until {
    /// Only shards that expire no later than this are taken.
    pub through: Timestamp,
    /// No fence above this time can be right, and no mutator born from now on expires up to it. The ids of
    /// shards up to here are read twice. A fold takes only final shards, so for it this is `through`.
    pub settled: Timestamp,
    /// After this many shards, no further part is requested.
    pub rows: usize,
    /// After this many bytes of their states, no further part is requested.
    pub bytes: usize,
    /// Largest envelope of a tally, in bytes; none if the walk is not for a tally.
    pub tally_bytes: Option<usize>,
}

/// Size limits of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartSize {
    /// Rows of the first part, and maximum rows of any part.
    pub rows: (usize, usize),
    /// Target size of a part in bytes, estimated from the mean row size of the previous part.
    pub bytes: usize,
    /// Maximum rows of one expiry, which is never split.
    pub expiry_rows: usize,
}

/// A walk through the shards of a key; see the [module documentation](self).
#[derive(Debug)]
pub struct Walk {
    key: Key,
    tally: Option<Row>,
    gathered: Gathered,
    until: Until,
    size: PartSize,
    cursor: Cursor,
    /// The ids in the shards that were taken, up to `until.settled`.
    ids: Ids,
    shards: usize,
    bytes: usize,
    /// Shards that expire up to here are final.
    cut: Timestamp,
    final_shards: usize,
}

/// The second look at the ids of a walk's shards; see the [module documentation](self). Only [`Walk::end`]
/// makes one.
#[derive(Debug)]
pub struct Recheck {
    tally: Option<Row>,
    /// What the first look at the rows took.
    first: Ids,
    again: Ids,
    cursor: Cursor,
    read: PrefixRead,
}

/// How far a walk has come, in parts that never split an expiry.
#[derive(Debug)]
struct Cursor {
    /// Every shard above the fence and up to here was taken.
    passed: Option<Timestamp>,
    /// Where it ends.
    through: Timestamp,
    /// Limit of the next part.
    limit: usize,
    /// Maximum rows of one expiry.
    expiry_rows: usize,
    /// An expiry with more rows than a part. It is read in one separate part.
    whole: Option<Timestamp>,
    is_over: bool,
}

/// The ids of rows in canonical order: their number, and a hash in place of a list of up to millions.
#[derive(Debug, Clone, Default)]
struct Ids {
    count: usize,
    /// Its keys are fixed. A difference that it misses needs both a forgetful replica and a chance of one in
    /// 2^64.
    hasher: DefaultHasher,
}

/// Why a walk can't go on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WalkError {
    /// A row can't be decoded or merged.
    #[error(transparent)]
    Row(#[from] RowError),
    /// An answer does not match its query.
    #[error(transparent)]
    Answer(#[from] BadSlice),
}

/// The oldest shards of a key, merged into its tally. A fold of a long key can be planned only from this, and
/// only [`Recheck::end`] makes one, after the second look at the rows and the third look at the tally.
#[derive(Debug, Clone, PartialEq)]
pub struct PrefixRead {
    pub(super) key: Key,
    pub(super) gathered: Gathered,
    /// Every shard above the tally's fence and up to here was taken.
    pub(super) through: Timestamp,
    /// Whether the walk went as far as it was meant to.
    pub(super) is_complete: bool,
    final_shards: usize,
    bytes: usize,
}

impl Walk {
    /// Begins after the tally's fence. Shards that expire up to `cut` are final.
    ///
    /// # Errors
    /// [`RowError`] if the tally can't be decoded.
    ///
    /// # Panics
    /// If `until` would include the tally itself.
    pub fn begin(
        key: Key,
        tally: Option<Row>,
        cut: Timestamp,
        until: Until,
        size: PartSize,
    ) -> Result<Walk, RowError> {
        assert!(until.through < Timestamp::NEVER, "invariant: a walk takes only shards");
        let gathered = Gathered::of(RowReader::of(&key), key.kind, tally.as_ref())?;
        let cursor = Cursor::begin(gathered.fence(), until.through, size.rows.0, size.expiry_rows);
        Ok(Walk {
            key,
            tally,
            gathered,
            until,
            size,
            cursor,
            ids: Ids::default(),
            shards: 0,
            bytes: 0,
            cut,
            final_shards: 0,
        })
    }

    /// The next part to request; none when the walk is over.
    #[must_use]
    pub fn next(&self) -> Option<Part> {
        // A state that does not fit into a tally may fit after later shards remove items.
        let more = if self.gathered.is_too_large() { 2 } else { 1 };
        let is_enough = self.shards >= self.until.rows.saturating_mul(more)
            || self.bytes >= self.until.bytes.saturating_mul(more);
        match is_enough && self.cursor.whole.is_none() {
            true => None,
            false => self.cursor.next(false),
        }
    }

    /// Takes the rows of the requested part. If the answer may have split the last expiry, its rows are left
    /// for the next part.
    ///
    /// # Errors
    /// [`WalkError`]; then the walk is unusable.
    pub fn take(&mut self, rows: Vec<Row>) -> Result<(), WalkError> {
        let Some(part) = self.next() else { return Ok(()) };
        let rows = self.cursor.take(rows, &part)?;
        let mut bytes = 0;
        for of_expiry in rows.chunk_by(|a, b| a.expires_at == b.expires_at) {
            self.gathered.take(of_expiry, self.until.tally_bytes)?;
            bytes += of_expiry.iter().map(|row| row.state.len()).sum::<usize>();
            if of_expiry[0].expires_at <= self.cut {
                self.final_shards += of_expiry.len();
            }
        }
        self.ids.take(&rows, self.until.settled);
        self.shards += rows.len();
        self.bytes += bytes;
        if let Some(mean) = bytes.checked_div(rows.len()) {
            // Later rows can be larger, so parts grow slowly.
            let most = self.size.rows.1.min(4 * self.cursor.limit);
            self.cursor.limit = (self.size.bytes / (mean + 1)).clamp(1, most);
        }
        Ok(())
    }

    /// Approximate memory of the state so far, in bytes; 0 for kinds with small states.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.gathered.memory_bytes()
    }

    /// The second look at the rows, if the tally is still the same; none if the walk must begin again.
    #[must_use]
    pub fn end(self, again: Option<&Row>) -> Option<Recheck> {
        if self.tally.as_ref() != again {
            return None;
        }
        let passed = self.cursor.passed;
        let is_complete = passed >= Some(self.until.through);
        // Nothing was taken, so the prefix ends with the tally.
        let through = passed.unwrap_or(Timestamp::from_micros(0));
        // Ids are small, so parts are as large as they may be.
        let (fence, most, expiry_rows) =
            (self.gathered.fence(), self.size.rows.1, self.size.expiry_rows);
        Some(Recheck {
            tally: self.tally,
            first: self.ids,
            again: Ids::default(),
            cursor: Cursor::begin(fence, through.min(self.until.settled), most, expiry_rows),
            read: PrefixRead {
                key: self.key,
                gathered: self.gathered,
                through,
                is_complete,
                final_shards: self.final_shards,
                bytes: self.bytes,
            },
        })
    }
}

impl Recheck {
    /// The next part to request, without states; none when all rows were looked at again.
    #[must_use]
    pub fn next(&self) -> Option<Part> {
        self.cursor.next(true)
    }

    /// Takes the rows of the requested part, as [`Walk::take`] does.
    ///
    /// # Errors
    /// [`WalkError`]; then the walk is unusable.
    pub fn take(&mut self, rows: Vec<Row>) -> Result<(), WalkError> {
        let Some(part) = self.next() else { return Ok(()) };
        let rows = self.cursor.take(rows, &part)?;
        self.again.take(&rows, self.cursor.through);
        Ok(())
    }

    /// The result, if the same rows are there and the tally is still the same; none if the walk must begin
    /// again.
    ///
    /// # Panics
    /// If parts are still to be requested.
    #[must_use]
    pub fn end(self, again: Option<&Row>) -> Option<PrefixRead> {
        assert!(self.next().is_none(), "invariant: all rows are looked at again");
        (self.first.is(&self.again) && self.tally.as_ref() == again).then_some(self.read)
    }
}

impl Cursor {
    fn begin(
        fence: Option<Timestamp>,
        through: Timestamp,
        limit: usize,
        expiry_rows: usize,
    ) -> Cursor {
        let is_over = fence >= Some(through);
        Cursor { passed: fence, through, limit, expiry_rows, whole: None, is_over }
    }

    fn next(&self, ids_only: bool) -> Option<Part> {
        if self.is_over {
            return None;
        }
        Some(match self.whole {
            // Request one row more than allowed, to notice an answer that was cut off.
            Some(expiry) => Part {
                after: Some(expiry.shifted(-1)),
                through: expiry,
                limit: self.expiry_rows + 1,
                ids_only,
            },
            None => Part { after: self.passed, through: self.through, limit: self.limit, ids_only },
        })
    }

    /// The rows of whole expiries in an answer, in canonical order. An expiry that the answer may have split
    /// is left for the next part.
    fn take(&mut self, rows: Vec<Row>, part: &Part) -> Result<Vec<Row>, BadSlice> {
        let mut rows = in_order(rows, part)?;
        let is_cut = rows.len() == part.limit;
        if self.whole.take().is_some() {
            if is_cut {
                let bytes = rows.iter().map(|row| row.state.len()).sum();
                return Err(BadSlice::Cut { limit: self.expiry_rows, bytes });
            }
        } else if is_cut && let Some(last) = rows.last().map(|row| row.expires_at) {
            rows.retain(|row| row.expires_at < last);
            if rows.is_empty() {
                self.whole = Some(last);
            }
        }
        if !is_cut {
            self.passed = Some(part.through);
            self.is_over = part.through == self.through;
        } else if let Some(last) = rows.last() {
            self.passed = Some(last.expires_at);
        }
        Ok(rows)
    }
}

impl Ids {
    /// Adds the ids of rows in canonical order that expire up to a time.
    fn take(&mut self, rows: &[Row], through: Timestamp) {
        for row in rows.iter().take_while(|row| row.expires_at <= through) {
            self.count += 1;
            (row.expires_at, row.mutator_id).hash(&mut self.hasher);
        }
    }

    fn is(&self, other: &Ids) -> bool {
        (self.count, self.hasher.finish()) == (other.count, other.hasher.finish())
    }
}

impl PrefixRead {
    /// The fence of the tally, and the reset that it remembers.
    #[must_use]
    pub fn tally(&self) -> Option<(Timestamp, Option<&Remembered>)> {
        let fence = self.gathered.fence()?;
        Some((fence, self.gathered.counting.reset()))
    }

    /// The value of a key whose shards were all taken; none if the key has no rows, or only
    /// a grave and rows that do not count.
    ///
    /// # Panics
    /// If the walk was not meant to take all shards, or ended early.
    #[must_use]
    pub fn into_reading(self) -> Option<Reading> {
        assert!(self.is_complete, "invariant: a value needs all shards");
        let (final_shards, zombies) = (self.final_shards, 0);
        // The value can be larger than a tally.
        let Gathered { fence, was_full: is_full, is_grave, counting, state, shards, .. } =
            self.gathered;
        let (cleared, united) = (self.gathered.cleared, self.gathered.united);
        let (shards, reset) = (shards - cleared, counting.into_reset());
        let is_there = shards > 0 || (fence.is_some() && !is_grave);
        is_there.then_some(Reading {
            state,
            fence,
            reset,
            is_full,
            shards,
            final_shards,
            zombies,
            cleared,
            united,
        })
    }

    /// Bytes of the rows that were taken.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Until {
    /// All shards, for a value that is read from `now` on, by the wall clock. The fence of a right fold lies below `now`,
    /// and a mutator born later expires a lifetime after its birth. The marker of a reset that is made meanwhile can have a
    /// fence above `now`. Both looks at the tally find it, unless a replica loses it between them.
    #[must_use]
    pub fn the_end(now: Timestamp) -> Until {
        let (through, rows, bytes) = (LAST_EXPIRY, usize::MAX, usize::MAX);
        Until { through, settled: now.min(LAST_EXPIRY), rows, bytes, tally_bytes: None }
    }

    /// Final shards up to a cut, for a fold that takes about `rows` rows and `bytes` bytes.
    #[must_use]
    pub fn cut(through: Timestamp, (rows, bytes): (usize, usize), tally_bytes: usize) -> Until {
        Until { through, settled: through, rows, bytes, tally_bytes: Some(tally_bytes) }
    }
}

/// Rows in the canonical order of merges, if they match the query.
fn in_order(mut rows: Vec<Row>, part: &Part) -> Result<Vec<Row>, BadSlice> {
    let is_asked = |row: &Row| Some(row.expires_at) > part.after && row.expires_at <= part.through;
    // Stores read the table backwards, which also reverses the order of ids.
    let follows = |a: &Row, b: &Row| {
        a.expires_at < b.expires_at || (a.expires_at == b.expires_at && a.mutator_id > b.mutator_id)
    };
    let stray = match rows.iter().find(|row| !is_asked(row)) {
        Some(stray) => Some(stray),
        None => rows.windows(2).find(|pair| !follows(&pair[0], &pair[1])).map(|pair| &pair[1]),
    };
    if let Some(Row { expires_at, mutator_id, .. }) = stray {
        return Err(BadSlice::Disordered { expires_at: *expires_at, mutator_id: *mutator_id });
    }
    if rows.len() > part.limit {
        let bytes = rows.iter().map(|row| row.state.len()).sum();
        return Err(BadSlice::Cut { limit: part.limit, bytes });
    }
    rows.sort_by_key(|row| (row.expires_at, row.mutator_id));
    Ok(rows)
}

#[cfg(test)]
mod tests;
