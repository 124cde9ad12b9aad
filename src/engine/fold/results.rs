//! The results of folds and sweeps.

use orderfree_core::protocol::fold::{FoldError, Report};
use orderfree_core::protocol::{Key, Timestamp};
use thiserror::Error;

use crate::engine::metrics::FoldEnd;
use crate::store::{Pause, StoreError};

/// What a fold did, or would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoldResult {
    pub report: Report,
    /// The fence after the fold. `None` if the key has no tally.
    pub fence: Option<Timestamp>,
    /// Whether a tally was written.
    pub written: bool,
}

/// Why a key was not folded.
#[derive(Debug, Clone, Error)]
pub enum FoldFailure {
    /// The clock or the schema does not allow it now.
    #[error(transparent)]
    Paused(#[from] Pause),
    /// The key could not be read at the level of folds.
    #[error(transparent)]
    Read(#[from] StoreError),
    /// A row prevents the fold.
    #[error("{key}: {error}")]
    Blocked { key: Key, error: FoldError },
    /// The fold panicked. If something was written, the next fold reads it.
    #[error("the fold hit a bug: {0}")]
    Bug(String),
    /// The write was not acknowledged. It may have been applied; the next fold reads the result.
    #[error("the fold's write was not acknowledged: {0}")]
    Write(String),
    /// Another fold of this key is running in this pod.
    #[error("another fold of this key is running")]
    Busy,
}

impl FoldFailure {
    /// Whether folds of the key fail until an operator acts.
    pub(super) fn is_blocked(&self) -> bool {
        match self {
            FoldFailure::Blocked { .. } | FoldFailure::Bug(_) => true,
            FoldFailure::Read(error) => !matches!(error, StoreError::Unavailable(_)),
            FoldFailure::Paused(_) | FoldFailure::Write(_) | FoldFailure::Busy => false,
        }
    }
}

/// The result of one sweep of the whole key space.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Keys that needed a fold: the sum of the next five.
    pub nominated: usize,
    /// Keys whose tally was written.
    pub folded: usize,
    /// Keys that were forgotten because they were idle.
    pub forgotten: usize,
    /// Keys that had nothing left to fold, or that another fold had taken.
    pub nothing: usize,
    /// Keys not folded for a temporary reason.
    pub postponed: usize,
    /// Keys that can't be folded without an operator.
    pub blocked: usize,
    /// Number of names in the largest group.
    pub largest_group: usize,
}

impl SweepReport {
    pub(super) fn count(&mut self, end: FoldEnd) {
        self.nominated += 1;
        match end {
            FoldEnd::Folded => self.folded += 1,
            FoldEnd::Forgotten => self.forgotten += 1,
            FoldEnd::Nothing => self.nothing += 1,
            FoldEnd::Failed | FoldEnd::Paused => self.postponed += 1,
            FoldEnd::Blocked => self.blocked += 1,
        }
    }
}
