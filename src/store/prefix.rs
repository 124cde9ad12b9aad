//! Walks through keys that have more rows than one answer may have: why they are right stands in
//! [`orderfree_core::protocol::prefix`].
//!
//! Public because the simulator walks through it as well.

use orderfree_core::protocol::prefix::{Part, PrefixRead, Until, Walk, WalkError};
use orderfree_core::protocol::read::RowError;
use orderfree_core::protocol::{Key, MutatorId, Row, Timestamp};
use thiserror::Error;

use super::{Store, StoreError};
use crate::limits::LONG_VALUE_BYTES_MAX;

/// How often a walk for a fold begins because the tally changed meanwhile: somebody else is folding.
pub const FOLD_TRIES_MAX: usize = 3;

/// The same for a read, whose walks get shorter while a long key is folded step by step.
pub const READ_TRIES_MAX: usize = 30;

/// Why a key could not be walked through.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Failed {
    /// A query failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A row can't be decoded or merged.
    #[error(transparent)]
    Row(#[from] RowError),
    /// The value would take more memory than the value of one key may.
    #[error("the value would take more than {LONG_VALUE_BYTES_MAX} bytes of memory")]
    TooLarge,
}

impl From<WalkError> for Failed {
    fn from(error: WalkError) -> Failed {
        match error {
            WalkError::Row(error) => Failed::Row(error),
            WalkError::Answer(error) => Failed::Store(error.into()),
        }
    }
}

/// Reads the oldest shards of a key from every replica, and merges them into its tally. Shards that
/// expire up to `cut` are counted as final.
///
/// # Errors
/// [`Failed`]. It is [`StoreError::Unavailable`] if a replica does not answer, and also if folds changed
/// the tally during each of so many tries.
pub async fn read(
    store: &dyn Store,
    key: &Key,
    cut: Timestamp,
    until: Until,
    tries: usize,
) -> Result<PrefixRead, Failed> {
    let size = store.bounds(key.kind).part;
    let all = |error: StoreError| match error {
        StoreError::Unavailable(reason) => StoreError::Unavailable(format!(
            "the key has so many rows that every replica has to answer: {reason}"
        )),
        error => error,
    };
    for _ in 0..tries {
        let tally = store.read_tally(key).await.map_err(all)?;
        let mut walk = Walk::begin(key.clone(), tally, cut, until, size)?;
        while let Some(part) = walk.next() {
            let rows = store.read_part(key, part).await.map_err(all)?;
            walk.take(rows)?;
            // A fold of what is too large for a tally ends by itself.
            if until.tally_bytes.is_none() && walk.memory_bytes() > LONG_VALUE_BYTES_MAX {
                return Err(Failed::TooLarge);
            }
            // Merging a part takes a while.
            tokio::task::consume_budget().await;
        }
        let again = store.read_tally(key).await.map_err(all)?;
        if let Some(read) = walk.end(again.as_ref()) {
            return Ok(read);
        }
    }
    let reason =
        "the key has many rows, and folds changed it each time that it was read; try again";
    Err(StoreError::Unavailable(reason.to_owned()).into())
}

/// The row of a mutator in a key with many rows, from every replica.
///
/// # Errors
/// [`StoreError`] if a replica does not answer, or if too many rows share an expiry.
pub async fn find(
    store: &dyn Store,
    key: &Key,
    mutator_id: MutatorId,
) -> Result<Option<Row>, StoreError> {
    let size = store.bounds(key.kind).part;
    let all = Until::the_end().through;
    let mut part = Part { after: None, through: all, limit: size.rows.0 };
    loop {
        let rows = store.read_part(key, part).await?;
        let (count, first, last) = match rows.as_slice() {
            [] => return Ok(None),
            [first, .., last] => (rows.len(), first.expires_at, last.expires_at),
            [only] => (1, only.expires_at, only.expires_at),
        };
        if let Some(row) = rows.into_iter().find(|row| row.mutator_id == mutator_id) {
            return Ok(Some(row));
        }
        match (count < part.limit, first == last) {
            (true, _) => return Ok(None),
            (false, true) if part.limit > size.expiry_rows => {
                return Err(StoreError::TooManyRows { limit: size.expiry_rows, bytes: 0 });
            }
            // All of one expiry: there may be more of it than that.
            (false, true) => part.limit *= 2,
            // The last expiry may go on behind the last row.
            (false, false) => part.after = Some(last.shifted(-1)),
        }
    }
}
