//! Keys with more rows than one answer may have: they are read and folded oldest first, in parts.
//!
//! Several queries are no snapshot. A fold may land between two of them on one replica, and its
//! deletion hides rows from the queries that follow, while another replica still answers with the
//! old tally. So every query asks all replicas, whatever the level of other reads, in this order:
//!
//! 1. the tally, with its fence F0;
//! 2. the shards with `F0 < expires_at`, oldest first, part by part, each expiry whole;
//! 3. the tally again. Only if both looks found the same bytes is anything believed.
//!
//! This is right because a deletion lies on a replica together with its tally (I7). If a deletion
//! above F0 hid a row from step 2, some replica had it by then, and its tally with it. Step 3 asks
//! that replica, so the second look differs. A deletion up to F0 hides nothing that step 2 asks for.
//! It is also why zombies are never read here: a fold deletes them without looking.
//!
//! A row may be written between two parts. An op that was acknowledged before the walk began is in
//! its row by then, and a row's later states only hold more (I2).

use thiserror::Error;

use super::gathered::Gathered;
use super::read::{Reading, RowError, RowReader};
use super::{BadSlice, Key, Row, Timestamp};

/// Rows to ask for: those with `after < expires_at <= through`, oldest first, at most `limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Only rows that expire after it; none for all.
    pub after: Option<Timestamp>,
    /// Only rows that expire no later. Below [`Timestamp::NEVER`], so never the tally.
    pub through: Timestamp,
    /// Most rows of the answer.
    pub limit: usize,
}

/// Where a walk ends, at the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Until {
    /// Only shards that expire no later are taken.
    pub through: Timestamp,
    /// Once so many shards were taken, no further part is asked for.
    pub rows: usize,
    /// The same for bytes of their states.
    pub bytes: usize,
    /// Largest envelope of a tally, in bytes; none if no tally is to be made.
    pub tally_bytes: Option<usize>,
}

/// How large one answer may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartSize {
    /// Rows of the first part, and most rows of any.
    pub rows: (usize, usize),
    /// Bytes that parts aim at, going by the mean of the part before.
    pub bytes: usize,
    /// Most rows of one expiry, which is never divided.
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
    /// Rows of the next part.
    limit: usize,
    /// The expiry that has more rows than a part.
    whole: Option<Timestamp>,
    is_over: bool,
    shards: usize,
    bytes: usize,
    /// Shards that expire up to there are final.
    cut: Timestamp,
    final_shards: usize,
}

/// Why a walk can't go on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WalkError {
    /// A row can't be decoded or merged.
    #[error(transparent)]
    Row(#[from] RowError),
    /// An answer is none to what was asked.
    #[error(transparent)]
    Answer(#[from] BadSlice),
}

/// The oldest shards of a key, merged into its tally: all that a fold of a long key can be planned
/// from. Only [`Walk::end`] makes one, after the second look at the tally.
#[derive(Debug, Clone, PartialEq)]
pub struct PrefixRead {
    pub(super) key: Key,
    pub(super) gathered: Gathered,
    /// Every shard above the tally's fence and up to here was taken.
    pub(super) through: Timestamp,
    /// Whether that is as far as the walk was to go.
    pub(super) is_complete: bool,
    final_shards: usize,
    bytes: usize,
}

impl Walk {
    /// Begins behind the tally's fence. Shards that expire up to `cut` are final.
    ///
    /// # Errors
    /// [`RowError`] if the tally can't be decoded.
    ///
    /// # Panics
    /// If `until` would take in the tally itself.
    pub fn begin(
        key: Key,
        tally: Option<Row>,
        cut: Timestamp,
        until: Until,
        size: PartSize,
    ) -> Result<Walk, RowError> {
        assert!(until.through < Timestamp::NEVER, "invariant: a walk takes shards alone");
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

    /// What to ask for next; none once nothing more is to be taken.
    #[must_use]
    pub fn next(&self) -> Option<Part> {
        // What does not fit into a tally may fit with what later shards remove.
        let more = if self.gathered.is_too_large() { 2 } else { 1 };
        let is_enough = self.shards >= self.until.rows.saturating_mul(more)
            || self.bytes >= self.until.bytes.saturating_mul(more);
        if self.is_over || (is_enough && self.whole.is_none()) {
            return None;
        }
        Some(match self.whole {
            // One row more than it may have, so that an answer that was cut is seen to be.
            Some(expiry) => Part {
                after: Some(expiry.shifted(-1)),
                through: expiry,
                limit: self.size.expiry_rows + 1,
            },
            None => Part { after: self.passed, through: self.until.through, limit: self.limit },
        })
    }

    /// Takes the rows of the part that was asked for. An expiry that the answer may have split is
    /// left for the next part.
    ///
    /// # Errors
    /// [`WalkError`]; the walk is of no use then.
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
            // Later rows may be larger, so that parts grow slowly.
            let most = self.size.rows.1.min(4 * self.limit);
            self.limit = (self.size.bytes / (mean + 1)).clamp(1, most);
        }
        Ok(())
    }

    /// About what the state takes in memory so far, in bytes; 0 for kinds whose states are small.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.gathered.memory_bytes()
    }

    /// What was read, if the tally is still the same; none if the walk has to begin again.
    #[must_use]
    pub fn end(self, again: Option<&Row>) -> Option<PrefixRead> {
        if self.tally.as_ref() != again {
            return None;
        }
        let is_complete = self.passed >= Some(self.until.through);
        // Nothing was taken: the prefix ends where the tally's does.
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
    /// The value of a key whose every shard was taken; none if it has no row.
    ///
    /// # Panics
    /// If the walk was not to take all shards, or ended before that.
    #[must_use]
    pub fn into_reading(self) -> Option<Reading> {
        assert!(self.is_complete, "invariant: a value is made of all shards");
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
    /// Every shard, for a value.
    #[must_use]
    pub fn the_end() -> Until {
        let through = Timestamp::NEVER.shifted(-1);
        Until { through, rows: usize::MAX, bytes: usize::MAX, tally_bytes: None }
    }
}

/// Rows in the canonical order of merges, if they can be the answer.
fn in_order(mut rows: Vec<Row>, part: &Part) -> Result<Vec<Row>, BadSlice> {
    let is_asked = |row: &Row| Some(row.expires_at) > part.after && row.expires_at <= part.through;
    // Stores turn the table's order around, and with it the order of ids.
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
