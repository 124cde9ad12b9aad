//! What a mutator accumulates: a state, or ops by their ids.

use crate::crdt::envelope::{self, RowSeal};
use crate::crdt::pack::{IdOp, Pack};
use crate::crdt::{Effect, Kind, Op, OpError, State};
use crate::protocol::generation::Generation;

/// Ops that a mutator takes all or none.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// For a mutator of a state.
    Ops(Vec<Op>),
    /// For a mutator of a pack.
    Named(IdOp),
}

/// See the module documentation.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum MutatorContent {
    State(State),
    Pack(Pack),
}

impl Change {
    /// The weight, used to limit waiting ops: one per op, plus one per 64 bytes that it holds.
    #[must_use]
    pub fn weight(&self) -> usize {
        let weight = |heap_bytes: usize| 1 + heap_bytes / 64;
        match self {
            Change::Ops(ops) => ops.iter().map(|op| weight(op.heap_bytes())).sum(),
            Change::Named(op) => weight(op.heap_bytes()),
        }
    }

    /// Number of ops. A list with an id is one.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Change::Ops(ops) => ops.len(),
            Change::Named(_) => 1,
        }
    }

    pub(super) fn ops(&self) -> &[Op] {
        match self {
            Change::Ops(ops) => ops,
            Change::Named(_) => &[],
        }
    }
}

impl From<Vec<Op>> for Change {
    fn from(ops: Vec<Op>) -> Change {
        Change::Ops(ops)
    }
}

impl MutatorContent {
    #[cfg(test)]
    pub(super) fn state(&self) -> &State {
        match self {
            MutatorContent::State(state) => state,
            MutatorContent::Pack(pack) => panic!("{pack:?}"),
        }
    }

    /// Nothing, with the same kind and precision.
    pub(super) fn emptied(&self) -> MutatorContent {
        match self {
            MutatorContent::State(state) => {
                MutatorContent::State(State::new(state.kind(), state.precision()))
            }
            MutatorContent::Pack(pack) => {
                MutatorContent::Pack(Pack::new(pack.kind(), pack.precision()))
            }
        }
    }

    pub(super) fn precision(&self) -> Option<u16> {
        match self {
            MutatorContent::State(state) => state.precision(),
            MutatorContent::Pack(pack) => pack.precision(),
        }
    }

    /// Whether the size of what earlier mutators of this sort left has to be known. Small states are not
    /// counted, because any realistic number of them per day is small.
    pub(super) fn is_counted(&self, kind: Kind) -> bool {
        matches!(self, MutatorContent::Pack(_)) || !kind.about().is_small()
    }

    /// Takes all of a change or nothing.
    pub(super) fn apply(&mut self, change: &Change) -> Result<Effect, OpError> {
        match (self, change) {
            (MutatorContent::State(state), Change::Ops(ops)) => state.apply_all(ops),
            (MutatorContent::Pack(pack), Change::Named(op)) => pack.put(op),
            // Without their contents: an id can be a secret.
            (MutatorContent::State(_), Change::Named(_)) => {
                unreachable!("invariant: a state takes plain ops")
            }
            (MutatorContent::Pack(_), Change::Ops(_)) => {
                unreachable!("invariant: a pack takes ops with ids")
            }
        }
    }

    pub(super) fn encode_payload(&self, out: &mut Vec<u8>) {
        match self {
            MutatorContent::State(state) => state.encode_payload(out),
            MutatorContent::Pack(pack) => pack.encode(out),
        }
    }

    pub(super) fn payload_bytes(&self) -> usize {
        match self {
            MutatorContent::State(state) => {
                let mut payload = Vec::new();
                state.encode_payload(&mut payload);
                payload.len()
            }
            MutatorContent::Pack(pack) => pack.bytes(),
        }
    }

    /// The size of a pack's entries; 0 for a state.
    pub(super) fn pack_bytes(&self) -> usize {
        match self {
            MutatorContent::State(_) => 0,
            MutatorContent::Pack(pack) => pack.bytes(),
        }
    }

    pub(super) fn encode(&self, seal: RowSeal, write: u64, stamp: Option<Generation>) -> Vec<u8> {
        match self {
            MutatorContent::State(state) => {
                envelope::encode_stamped_shard(seal, state, write, stamp)
            }
            MutatorContent::Pack(pack) => envelope::encode_stamped_pack(seal, pack, write, stamp),
        }
    }
}
