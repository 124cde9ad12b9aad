//! What folds and sweeps come to.

use orderfree_core::protocol::fold::{FoldError, Report};
use orderfree_core::protocol::{Key, Timestamp};
use thiserror::Error;

use crate::metrics::FoldEnd;
use crate::store::{Pause, StoreError};

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
#[derive(Debug, Clone, Error)]
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
        /// What it is.
        error: FoldError,
    },
    /// The fold panicked. Nothing was written, or the next fold sees it.
    #[error("the fold met a bug: {0}")]
    Bug(String),
    /// The batch was not acknowledged. It may have been applied: the next fold sees.
    #[error("the fold's write was not acknowledged: {0}")]
    Write(String),
    /// Another fold of this key is running in this pod.
    #[error("this key is being folded already")]
    Busy,
}

impl FoldFailure {
    /// Whether it stays so until somebody does something about the key.
    pub(super) fn is_blocked(&self) -> bool {
        match self {
            FoldFailure::Blocked { .. } | FoldFailure::Bug(_) => true,
            FoldFailure::Read(error) => !matches!(error, StoreError::Unavailable(_)),
            FoldFailure::Paused(_) | FoldFailure::Write(_) | FoldFailure::Busy => false,
        }
    }
}

/// What one sweep of the whole key space did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Keys that were worth a fold.
    pub nominated: usize,
    /// Of these: tallies written.
    pub folded: usize,
    /// Of these: already folded by someone else.
    pub nothing: usize,
    /// Of these: not folded now, for a reason that passes.
    pub postponed: usize,
    /// Of these: not foldable without an operator.
    pub blocked: usize,
    /// Names of the largest group.
    pub largest_group: usize,
}

impl SweepReport {
    pub(super) fn count(&mut self, end: FoldEnd) {
        self.nominated += 1;
        match end {
            FoldEnd::Folded => self.folded += 1,
            FoldEnd::Nothing => self.nothing += 1,
            FoldEnd::Failed | FoldEnd::Paused => self.postponed += 1,
            FoldEnd::Blocked => self.blocked += 1,
        }
    }
}
