//! The world's state: small, canonical, hashable.

use crate::replica::{Contents, Replica};
use crate::scope::{FOLDS_MAX, LIVES_MAX, LifeScope, OPS_MAX, REPLICAS, Scope};
use crate::tables::{Id, NONE};

/// The state on which all later events depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct World {
    /// The present instant.
    pub instant: u8,
    /// How many messages can still come late.
    pub late: u8,
    /// How many folds can still be sent again.
    pub resends: u8,
    /// How many deletions can still be purged.
    pub purges: u8,
    /// How many writes can still be refused.
    pub refusals: u8,
    /// The mutators.
    pub lives: [Life; LIVES_MAX],
    /// The planned folds in ascending order, then empty slots.
    pub folds: [Planned; FOLDS_MAX],
    /// The replicas in ascending order, because it does not matter which is which.
    pub replicas: [Replica; REPLICAS],
}

/// A mutator, and what its clients know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Life {
    /// Its state.
    pub mutator: Id,
    /// The instant of its birth plus one.
    pub born: u8,
    /// Number of writes sent.
    pub writes: u8,
    /// The write on its way.
    pub flight: Id,
    /// Replicas that the write on its way has reached.
    pub reached: u8,
    /// Nothing more can happen to the mutator, so its state is dropped.
    pub is_over: bool,
    /// Its ops.
    pub ops: [OpState; OPS_MAX],
}

/// The state of an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OpState {
    /// It was not requested yet.
    #[default]
    Unasked,
    /// It waits for the next write.
    Waiting,
    /// It is part of the write on its way.
    Flying,
    /// Its outcome is unknown.
    Unknown,
    /// It was acknowledged too late, and stays unknown.
    TooLate,
    /// It was acked.
    Acked,
    /// It was refused.
    Refused,
}

/// A planned fold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Planned {
    /// Its number, or none for an empty slot.
    pub id: Id,
    /// It was sent.
    pub sent: bool,
    /// A replica has applied it, so that a reader may have seen its fence.
    pub landed: bool,
}

impl OpState {
    /// Whether a read may count the op.
    #[must_use]
    pub fn may_count(self) -> bool {
        !matches!(self, OpState::Unasked | OpState::Waiting | OpState::Refused)
    }
}

impl Life {
    /// Drops the mutator if it has nothing left to do.
    pub fn settle(&mut self, scope: &LifeScope) {
        let has_work = self.ops[..scope.ops]
            .iter()
            .any(|op| matches!(op, OpState::Unasked | OpState::Waiting | OpState::Unknown));
        self.is_over |= self.flight == NONE && (self.writes == scope.writes || !has_work);
        if self.is_over {
            (self.mutator, self.writes) = (NONE, 0);
        }
    }
}

impl World {
    /// The world before the first event.
    #[must_use]
    pub fn new(scope: &Scope) -> World {
        World {
            instant: 0,
            late: scope.late,
            resends: scope.resends,
            purges: scope.purges,
            refusals: scope.refusals,
            lives: [Life::default(); LIVES_MAX],
            folds: [Planned::default(); FOLDS_MAX],
            replicas: [Replica::default(); REPLICAS],
        }
    }

    /// Sorts replicas and folds, because their order does not matter.
    #[must_use]
    pub fn canonical(mut self) -> World {
        self.replicas.sort_unstable();
        // Empty slots come last.
        self.folds.sort_unstable_by_key(|fold| (fold.id == NONE, *fold));
        self
    }

    /// The folds that were planned.
    pub fn planned(&self) -> impl Iterator<Item = &Planned> {
        self.folds.iter().filter(|fold| fold.id != NONE)
    }

    /// The choices of `count` replicas that differ by more than the order of equal replicas.
    #[must_use]
    pub fn quorums(&self, count: u32) -> Vec<Vec<Contents>> {
        let masks = (0_u8..1 << REPLICAS).filter(|mask| mask.count_ones() == count);
        let mut found: Vec<Vec<Contents>> = Vec::new();
        for mask in masks {
            let chosen = (0..REPLICAS).filter(|at| mask >> at & 1 == 1);
            let chosen: Vec<Contents> = chosen.map(|at| self.replicas[at].holds).collect();
            if !found.contains(&chosen) {
                found.push(chosen);
            }
        }
        found
    }
}
