//! What becomes of an update, and of a write that carries updates.

use serde::{Serialize, Serializer};
use thiserror::Error;

/// When the client gets its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// After the store has acknowledged a write that holds the op.
    Stored,
    /// At once. The op is lost if the pod dies before its write. For kinds that would count it twice, it is
    /// also lost if the outcome of that write is still unknown when the lease ends.
    Memory,
}

/// The outcome of an update, from the mutator to the client's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Stored by a write quorum in time.
    Acked,
    /// Held in memory only, as requested with [`Durability::Memory`].
    Accepted,
    /// Certainly not counted, now or later.
    Refused,
    /// May be counted, now or later.
    Unknown,
}

impl Outcome {
    /// Every outcome, in the order of declaration.
    pub const ALL: [Outcome; 4] =
        [Outcome::Acked, Outcome::Accepted, Outcome::Refused, Outcome::Unknown];

    /// The outcome of an update that succeeded.
    #[must_use]
    pub fn of(durability: Durability) -> Outcome {
        match durability {
            Durability::Stored => Outcome::Acked,
            Durability::Memory => Outcome::Accepted,
        }
    }

    /// Its name in answers and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Acked => "acked",
            Outcome::Accepted => "accepted",
            Outcome::Refused => "refused",
            Outcome::Unknown => "unknown",
        }
    }
}

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The outcome of a write, as the store reported it. `Ok`: the write consistency level was reached.
pub type WriteOutcome = Result<(), WriteError>;

/// Why a write was not acknowledged, with the store's reason.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WriteError {
    /// The write was certainly not applied and never will be.
    #[error("{0}")]
    Refused(String),
    /// The write may have been applied, or may still be.
    #[error("{0}")]
    Unknown(String),
}
