//! Protocol rules that are broken on purpose. Each is broken between the shipped core and the replicas, with the effect
//! that code without the rule would have.

use crate::scope::{LifeScope, Scope};

/// A rule to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Readers count rows at or below the fence.
    FenceIgnored,
    /// Readers believe the rows after a cached fence, whatever the tally's fence is.
    CachedFenceTrusted,
    /// A fold that finds zombies writes the fence of its own time.
    OlderFence,
    /// Folds read from a quorum, and one replica acknowledges a write.
    QuorumFoldOneWrite,
    /// A fold's timestamp is a lifetime below its fence.
    LowFoldTimestamp,
    /// A fold skips the oldest final row but deletes it.
    FoldSkipsRow,
    /// The cutoff is 1 ms shorter than 2ε.
    ShortCutoff,
    /// Ops are acknowledged before any replica has the write.
    AckBeforeWrite,
    /// The clocks are not checked after the acknowledgement.
    NoCheckAfterAck,
    /// The state is rolled back after an unknown outcome.
    Rollback,
    /// Write timestamps decrease.
    FallingTimestamps,
    /// Two mutators have the same id.
    IdReused,
    /// Blocking read repair runs for a query without the tally's row.
    BlockingRepair,
    /// The tally is in two cells.
    SplitTally,
    /// A read counts every copy of an id.
    ReadsCountCopies,
    /// A fold counts every copy of an id.
    FoldsCountCopies,
}

impl Sabotage {
    /// Every rule that can be broken in a small world.
    pub const ALL: [Sabotage; 16] = [
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
        Sabotage::ReadsCountCopies,
        Sabotage::FoldsCountCopies,
    ];

    /// The scope in which the broken rule shows.
    #[must_use]
    pub fn scope(self) -> Scope {
        let mut scope = Scope::quick();
        match self {
            Sabotage::QuorumFoldOneWrite => {
                (scope.write_acks, scope.reads, scope.fold_reads) = (1, 3, 2);
            }
            // The same expiry, so that the row is the same.
            Sabotage::IdReused => {
                scope.lives = vec![LifeScope { births: (0, 0), ops: 1, writes: 1 }; 2];
            }
            // Two replicas acknowledge that the fold did not read from.
            Sabotage::NoCheckAfterAck => scope.late = 2,
            // Only a second write shows it.
            Sabotage::FallingTimestamps => scope = Scope::writer(),
            Sabotage::ReadsCountCopies | Sabotage::FoldsCountCopies => scope = Scope::id(),
            _ => {}
        }
        scope
    }
}
