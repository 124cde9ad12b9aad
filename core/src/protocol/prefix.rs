//! Keys with more rows than one answer can hold: they are read and folded in parts, oldest rows first.
//!
//! Several queries are not a snapshot. A fold can land between two of them on one replica. Its deletion then
//! hides rows from the next queries, while another replica still answers with the old tally. So every query
//! asks all replicas, whatever the level of other reads, in this order:
//!
//! 1. the tally, with its fence F0;
//! 2. the shards with `F0 < expires_at`, oldest first, in parts, never splitting an expiry;
//! 3. the tally again. The result counts only if both looks found the same bytes.
//!
//! This is right because a replica that has a deletion also has its tally (I7). If a deletion above F0 hid a
//! row from step 2, some replica already had that deletion, and so its tally. Step 3 asks that replica, so
//! the second look differs. A deletion up to F0 hides nothing that step 2 reads. For the same reason zombies
//! are never read here: a fold deletes them without looking.
//!
//! A row can be written between two parts. An op that was acknowledged before the walk began is in its row by
//! then, and the row's later states contain all that earlier ones held (I2).

use thiserror::Error;

use super::gathered::Gathered;
use super::read::{Reading, RowError, RowReader};
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
}

/// Where a walk ends at the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Until {
    /// Only shards that expire no later than this are taken.
    pub through: Timestamp,
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
    /// Every shard above the fence and up to here was taken.
    passed: Option<Timestamp>,
    /// Limit of the next part.
    limit: usize,
    /// An expiry with more rows than a part. It is read in one separate part.
    whole: Option<Timestamp>,
    is_over: bool,
    shards: usize,
    bytes: usize,
    /// Shards that expire up to here are final.
    cut: Timestamp,
    final_shards: usize,
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
/// only [`Walk::end`] makes one, after the second look at the tally.
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
        let fence = gathered.fence();
        Ok(Walk {
            key,
            tally,
            gathered,
            until,
            size,
            passed: fence,
            limit: size.rows.0,
            whole: None,
            is_over: fence >= Some(until.through),
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
        if self.is_over || (is_enough && self.whole.is_none()) {
            return None;
        }
        Some(match self.whole {
            // Request one row more than allowed, to notice an answer that was cut off.
            Some(expiry) => Part {
                after: Some(expiry.shifted(-1)),
                through: expiry,
                limit: self.size.expiry_rows + 1,
            },
            None => Part { after: self.passed, through: self.until.through, limit: self.limit },
        })
    }

    /// Takes the rows of the requested part. If the answer may have split the last expiry, its rows are left
    /// for the next part.
    ///
    /// # Errors
    /// [`WalkError`]; then the walk is unusable.
    pub fn take(&mut self, rows: Vec<Row>) -> Result<(), WalkError> {
        let Some(part) = self.next() else { return Ok(()) };
        let mut rows = in_order(rows, &part)?;
        let is_cut = rows.len() == part.limit;
        if self.whole.take().is_some() {
            if is_cut {
                let bytes = rows.iter().map(|row| row.state.len()).sum();
                return Err(BadSlice::Cut { limit: self.size.expiry_rows, bytes }.into());
            }
        } else if is_cut && let Some(last) = rows.last().map(|row| row.expires_at) {
            rows.retain(|row| row.expires_at < last);
            if rows.is_empty() {
                self.whole = Some(last);
                return Ok(());
            }
        }
        let before = (self.shards, self.bytes);
        for of_expiry in rows.chunk_by(|a, b| a.expires_at == b.expires_at) {
            let expires_at = of_expiry[0].expires_at;
            self.gathered.take(of_expiry, self.until.tally_bytes)?;
            self.passed = Some(expires_at);
            self.shards += of_expiry.len();
            self.bytes += of_expiry.iter().map(|row| row.state.len()).sum::<usize>();
            if expires_at <= self.cut {
                self.final_shards += of_expiry.len();
            }
        }
        if !is_cut {
            self.passed = Some(part.through);
            self.is_over = part.through == self.until.through;
        }
        let (shards, bytes) = (self.shards - before.0, self.bytes - before.1);
        if let Some(mean) = bytes.checked_div(shards) {
            // Later rows can be larger, so parts grow slowly.
            let most = self.size.rows.1.min(4 * self.limit);
            self.limit = (self.size.bytes / (mean + 1)).clamp(1, most);
        }
        Ok(())
    }

    /// Approximate memory of the state so far, in bytes; 0 for kinds with small states.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.gathered.memory_bytes()
    }

    /// The result, if the tally is still the same; none if the walk must begin again.
    #[must_use]
    pub fn end(self, again: Option<&Row>) -> Option<PrefixRead> {
        if self.tally.as_ref() != again {
            return None;
        }
        let is_complete = self.passed >= Some(self.until.through);
        // Nothing was taken, so the prefix ends with the tally.
        let through = self.passed.unwrap_or(Timestamp::from_micros(0));
        Some(PrefixRead {
            key: self.key,
            gathered: self.gathered,
            through,
            is_complete,
            final_shards: self.final_shards,
            bytes: self.bytes,
        })
    }
}

impl PrefixRead {
    /// The value of a key whose shards were all taken; none if the key has no rows.
    ///
    /// # Panics
    /// If the walk was not meant to take all shards, or ended early.
    #[must_use]
    pub fn into_reading(self) -> Option<Reading> {
        assert!(self.is_complete, "invariant: a value needs all shards");
        let (fence, is_full) = (self.gathered.fence(), self.gathered.was_full());
        let (state, shards) = self.gathered.into_state();
        let (final_shards, zombies) = (self.final_shards, 0);
        let is_there = fence.is_some() || shards > 0;
        is_there.then_some(Reading { state, fence, is_full, shards, final_shards, zombies })
    }

    /// Bytes of the rows that were taken.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Until {
    /// All shards, for a value.
    #[must_use]
    pub fn the_end() -> Until {
        let through = Timestamp::NEVER.shifted(-1);
        Until { through, rows: usize::MAX, bytes: usize::MAX, tally_bytes: None }
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
