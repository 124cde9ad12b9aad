//! stub
use crate::store::{Pause, StoreError};
use orderfree_core::protocol::Key;
use orderfree_core::protocol::Timestamp;
use orderfree_core::protocol::fold::{FoldError, Report};
use thiserror::Error;

/// Folds keys.
pub struct Folder {}

/// What a fold did, or would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoldResult {
    /// What was seen.
    pub report: Report,
    /// The fence after; none if the key has no tally.
    pub fence: Option<Timestamp>,
    /// Whether a tally was written.
    pub written: bool,
}

/// Why a key was not folded.
#[derive(Debug, Error)]
pub enum FoldFailure {
    /// The clock or the schema does not allow it now.
    #[error(transparent)]
    Paused(#[from] Pause),
    /// The key could not be read at the fold's level.
    #[error(transparent)]
    Read(#[from] StoreError),
    /// A row stands in the way.
    #[error("{key}: {error}")]
    Blocked {
        /// The key.
        key: Key,
        /// Why.
        error: FoldError,
    },
    /// The batch was not acknowledged. It may have been applied: the next fold sees.
    #[error("the fold's write was not acknowledged: {0}")]
    Write(String),
    /// Another fold of this key is running in this pod.
    #[error("this key is being folded already")]
    Busy,
}

impl Folder {
    /// Puts a key on the queue.
    pub fn nominate(&self, _: Key) {}
    /// x
    pub async fn fold(&self, _: &Key, _: bool) -> Result<FoldResult, FoldFailure> {
        Err(FoldFailure::Busy)
    }
}
