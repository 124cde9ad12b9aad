//! Walks through keys with more rows than one answer can have. [`orderfree_core::protocol::prefix`] explains
//! why a walk is right.
//!
//! Public because the simulator uses it too.

use orderfree_core::protocol::prefix::{LAST_EXPIRY, Part, PrefixRead, Until, Walk, WalkError};
use orderfree_core::protocol::row_reader::RowError;
use orderfree_core::protocol::{Key, MutatorId, Row, Timestamp};
use thiserror::Error;

use super::{Reads, StoreError};
use crate::limits::LONG_VALUE_BYTES_MAX;

/// Most tries of a walk for a fold. A try fails if the tally or the rows to be folded change during it: another
/// pod is folding.
pub const FOLD_TRIES_MAX: usize = 3;

/// Most tries of a walk for a read. Each try is shorter while another pod folds the long key step by step.
pub const READ_TRIES_MAX: usize = 30;

/// Why a key could not be walked through.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Failed {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Row(#[from] RowError),
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

/// Reads the oldest shards of a key from every replica, and merges them into its tally. Shards that expire at
/// or before `cut` count as final.
///
/// # Errors
/// [`StoreError::Unavailable`] if a replica does not answer, or if folds changed the tally during every try.
pub async fn read(
    store: &dyn Reads,
    key: &Key,
    cut: Timestamp,
    until: Until,
    tries: usize,
) -> Result<PrefixRead, Failed> {
    let size = store.bounds(key.kind).part;
    let all = |error: StoreError| match error {
        StoreError::Unavailable(reason) => StoreError::Unavailable(format!(
            "the key has so many rows that every replica must answer: {reason}"
        )),
        error => error,
    };
    for _ in 0..tries {
        let tally = store.read_tally(key).await.map_err(all)?;
        let mut walk = Walk::begin(key.clone(), tally, cut, until, size)?;
        while let Some(part) = walk.next() {
            let rows = store.read_part(key, part).await.map_err(all)?;
            walk.take(rows)?;
            // A fold limits the tally's size itself.
            if until.tally_bytes.is_none() && walk.memory_bytes() > LONG_VALUE_BYTES_MAX {
                return Err(Failed::TooLarge);
            }
            // Merging a part takes a while.
            tokio::task::consume_budget().await;
        }
        let again = store.read_tally(key).await.map_err(all)?;
        let Some(mut recheck) = walk.end(again.as_ref()) else { continue };
        while let Some(part) = recheck.next() {
            let rows = store.read_part(key, part).await.map_err(all)?;
            recheck.take(rows)?;
            tokio::task::consume_budget().await;
        }
        let again = store.read_tally(key).await.map_err(all)?;
        if let Some(read) = recheck.end(again.as_ref()) {
            return Ok(read);
        }
    }
    let reason =
        "the key has many rows, and a fold changed it during every try to read it; try again";
    Err(StoreError::Unavailable(reason.to_owned()).into())
}

/// Finds the row of a mutator in a key with many rows, and asks every replica.
///
/// # Errors
/// [`StoreError`] if a replica does not answer, or if too many rows have the same expiry.
pub async fn find(
    store: &dyn Reads,
    key: &Key,
    mutator_id: MutatorId,
) -> Result<Option<Row>, StoreError> {
    let size = store.bounds(key.kind).part;
    let (limit, ids_only) = (size.rows.0, false);
    let mut part = Part { after: None, through: LAST_EXPIRY, limit, ids_only };
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
            // All rows have the same expiry, and more rows can have it.
            (false, true) => part.limit *= 2,
            // Rows after the last one can have the same expiry.
            (false, false) => part.after = Some(last.shifted(-1)),
        }
    }
}
