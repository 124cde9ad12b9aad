//! The world's state: small, canonical, hashable.

use crate::replica::{Contents, Replica};
use crate::scope::{FOLDS_MAX, LIVES_MAX, LifeScope, OPS_MAX, REPLICAS, Scope};
use crate::tables::{Id, NONE};

/// Everything that matters for what may happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct World {
    /// The present instant.
    pub instant: u8,
    /// Messages that may still come late.
    pub late: u8,
    /// Folds that may still be sent again.
    pub resends: u8,
    /// Deletions that may still be purged.
    pub purges: u8,
    /// Writes that may still be refused.
    pub refusals: u8,
    /// The mutators.
    pub lives: [Life; LIVES_MAX],
    /// The folds that were planned, ascending by number, then nothing.
    pub folds: [Planned; FOLDS_MAX],
    /// The replicas, ascending: which is which makes no difference.
    pub replicas: [Replica; REPLICAS],
}

/// A mutator, and what its clients know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Life {
    /// Its state.
    pub mutator: Id,
    /// One more than the instant of its birth.
    pub born: u8,
    /// Writes it sent.
    pub writes: u8,
    /// The write in flight.
    pub flight: Id,
    /// Replicas that the write in flight has reached.
    pub reached: u8,
    /// Nothing can happen to it any more: its mutator is of no interest.
    pub is_over: bool,
    /// Its ops.
    pub ops: [OpState; OPS_MAX],
}

/// Where an op stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OpState {
    /// Nobody asked for it yet.
    #[default]
    Unasked,
    /// It waits for the next write.
    Waiting,
    /// It went with the write in flight.
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

/// A fold that was planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Planned {
    /// Its number; none if there is no such fold.
    pub id: Id,
    /// It was sent.
    pub sent: bool,
    /// A replica has taken it, so that a reader may have seen its fence.
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
    /// Forgets the mutator if it has nothing left to do.
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
    /// Before anything happened.
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

    /// Worlds that differ only in the order of replicas or folds are one.
    #[must_use]
    pub fn canonical(mut self) -> World {
        self.replicas.sort_unstable();
        // Nothing comes last.
        self.folds.sort_unstable_by_key(|fold| (fold.id == NONE, *fold));
        self
    }

    /// The folds that were planned.
    pub fn planned(&self) -> impl Iterator<Item = &Planned> {
        self.folds.iter().filter(|fold| fold.id != NONE)
    }

    /// Every choice of `count` replicas that are not all alike with one chosen before.
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
