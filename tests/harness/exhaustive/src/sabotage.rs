//! Rules of the protocol, each broken on purpose between the shipped core and the replicas, where the
//! effect is that of code which forgot it.

use crate::scope::{LifeScope, Scope};

/// A rule to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Readers count rows at or below the fence.
    FenceIgnored,
    /// Readers believe the rows behind a cached fence, whatever the tally's fence.
    CachedFenceTrusted,
    /// A fold that meets zombies writes the fence of its own time.
    OlderFence,
    /// Folds read at a quorum, writes are acknowledged by one.
    QuorumFoldOneWrite,
    /// A fold's timestamp lies a lifetime below its fence.
    LowFoldTimestamp,
    /// A fold skips the oldest final row, and deletes it.
    FoldSkipsRow,
    /// The cutoff is 1 ms shorter than 2ε.
    ShortCutoff,
    /// Acknowledged before any replica has the write.
    AckBeforeWrite,
    /// No look at the clocks after the acknowledgement.
    NoCheckAfterAck,
    /// The state is rolled back after an unknown outcome.
    Rollback,
    /// Write timestamps fall.
    FallingTimestamps,
    /// Two mutators have one id.
    IdReused,
    /// Blocking read repair, for a query without the tally's row.
    BlockingRepair,
    /// The tally lies in two cells.
    SplitTally,
}

impl Sabotage {
    /// Every rule that a small world can break.
    pub const ALL: [Sabotage; 14] = [
        Sabotage::FenceIgnored,
        Sabotage::CachedFenceTrusted,
        Sabotage::OlderFence,
        Sabotage::QuorumFoldOneWrite,
        Sabotage::LowFoldTimestamp,
        Sabotage::FoldSkipsRow,
        Sabotage::ShortCutoff,
        Sabotage::AckBeforeWrite,
        Sabotage::NoCheckAfterAck,
        Sabotage::Rollback,
        Sabotage::FallingTimestamps,
        Sabotage::IdReused,
        Sabotage::BlockingRepair,
        Sabotage::SplitTally,
    ];

    /// The scope in which the broken rule shows.
    #[must_use]
    pub fn scope(self) -> Scope {
        let mut scope = Scope::quick();
        match self {
            Sabotage::QuorumFoldOneWrite => {
                (scope.write_acks, scope.reads, scope.fold_reads) = (1, 3, 2);
            }
            // One expiry: the row is the same.
            Sabotage::IdReused => {
                scope.lives = vec![LifeScope { births: (0, 0), ops: 1, writes: 1 }; 2];
            }
            // The acknowledgement of two replicas that the fold did not see.
            Sabotage::NoCheckAfterAck => scope.late = 2,
            // Only a second write shows it.
            Sabotage::FallingTimestamps => scope = Scope::writer(),
            _ => {}
        }
        scope
    }
}
