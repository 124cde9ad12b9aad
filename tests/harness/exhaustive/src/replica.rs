//! The rows of the one key on a Cassandra replica, and the messages on their way to it.
//!
//! The last write wins in each cell: the greater timestamp, then a deletion over a write, then the greater bytes. A
//! fold's range deletion hides later arrivals that are not newer, until it is purged.

use orderfree_core::protocol::{MutatorId, Row, Timestamp};

use crate::sabotage::Sabotage;
use crate::scope::LIVES_MAX;
use crate::tables::{Id, Mutation, NONE, Tables};

/// Maximum number of messages on their way to one replica.
const PENDING_MAX: usize = 8;

/// Marks a message that was sent at an earlier instant.
const LATE: Id = 0x8000;

/// A replica. Equal contents have equal bytes, so that worlds can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Replica {
    /// Its rows and its deletion.
    pub holds: Contents,
    /// Messages on their way in descending order, then empty slots.
    pending: [Id; PENDING_MAX],
}

/// Rows and a deletion: those of a replica, or merged from several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Contents {
    /// The fold that wrote the tally.
    pub tally: Id,
    /// The fold that wrote the second half of the tally. It differs only if the tally has two cells.
    pub tally_tail: Id,
    /// The fold that wrote the range deletion. Greater fences cover smaller ones. Among equal fences, the smallest
    /// number stands for all.
    pub deletion: Id,
    /// The write in each shard's row.
    pub shards: [Id; LIVES_MAX],
}

impl Replica {
    /// Messages on their way, and whether each is late.
    pub fn pending(&self) -> impl Iterator<Item = (Id, bool)> {
        self.pending.into_iter().filter(|id| *id != NONE).map(|id| (id & !LATE, id & LATE != 0))
    }

    /// Adds a message on its way to this replica, unless it is already on its way.
    ///
    /// # Panics
    /// If there are more messages than any scope needs.
    pub fn send(&mut self, id: Id) {
        if self.pending().any(|(other, _)| other == id) {
            return;
        }
        let free = self.pending.last_mut().expect("room");
        assert_eq!(*free, NONE, "PENDING_MAX is enough for every scope");
        *free = id;
        self.sort();
    }

    /// Marks the messages on their way as late, because time has passed.
    pub fn delay(&mut self) {
        self.pending.iter_mut().filter(|id| **id != NONE).for_each(|id| *id |= LATE);
        self.sort();
    }

    /// A message arrives.
    pub fn deliver(&mut self, id: Id, tables: &Tables) {
        let arrived = self.pending.iter_mut().filter(|other| **other & !LATE == id);
        arrived.for_each(|other| *other = NONE);
        self.sort();
        self.holds.apply(id, tables);
    }

    /// Drops messages that can never arrive or change anything.
    pub fn forget(&mut self, is_futile: impl Fn(&Contents, Id, bool) -> bool) {
        for at in 0..PENDING_MAX {
            let (id, is_late) = (self.pending[at] & !LATE, self.pending[at] & LATE != 0);
            if id != NONE && is_futile(&self.holds, id, is_late) {
                self.pending[at] = NONE;
            }
        }
        self.sort();
    }

    fn sort(&mut self) {
        self.pending.sort_unstable_by(|a, b| b.cmp(a));
    }
}

impl Contents {
    /// Whether a mutation would leave no trace, as long as no deletion is purged.
    #[must_use]
    pub fn outlives(&self, id: Id, tables: &Tables) -> bool {
        let mut after = *self;
        after.apply(id, tables);
        after == *self
    }

    /// Applies a whole mutation.
    pub fn apply(&mut self, id: Id, tables: &Tables) {
        match tables.mutation(id) {
            Mutation::Shard { place, .. } => {
                if !self.shadows(id, tables) {
                    let cell = &mut self.shards[usize::from(*place)];
                    *cell = newer(*cell, id, |id| tables.bytes(id), tables);
                }
            }
            Mutation::Fold { .. } => {
                self.take_tally((id, id), tables);
                self.delete(id, tables);
            }
        }
    }

    /// Applies a tally, given by the folds that its two halves come from. They differ only if the rule that a tally
    /// is one cell is broken.
    fn take_tally(&mut self, (head, tail): (Id, Id), tables: &Tables) {
        if tables.sabotage == Some(Sabotage::SplitTally) {
            self.tally = newer(self.tally, head, |id| tables.halves(id).0, tables);
            self.tally_tail = newer(self.tally_tail, tail, |id| tables.halves(id).1, tables);
        } else {
            self.tally = newer(self.tally, head, |id| tables.bytes(id), tables);
            self.tally_tail = self.tally;
        }
    }

    /// Applies a fold's deletion.
    pub fn delete(&mut self, fold: Id, tables: &Tables) {
        if fold == NONE {
            return;
        }
        let rank = |id| (tables.fence(id), std::cmp::Reverse(id));
        if self.deletion == NONE || rank(fold) > rank(self.deletion) {
            self.deletion = fold;
        }
        for at in 0..LIVES_MAX {
            if self.shards[at] != NONE && self.shadows(self.shards[at], tables) {
                self.shards[at] = NONE;
            }
        }
    }

    fn shadows(&self, shard: Id, tables: &Tables) -> bool {
        let Mutation::Shard { expires_at, timestamp, .. } = tables.mutation(shard) else {
            return false;
        };
        self.deletion != NONE
            && *expires_at <= tables.fence(self.deletion)
            && *timestamp <= tables.mutation(self.deletion).timestamp()
    }

    /// Merges another replica's contents into this one, as a coordinator merges answers.
    fn merge(&mut self, other: &Contents, tables: &Tables) {
        self.take_tally((other.tally, other.tally_tail), tables);
        self.merge_all_but_tally(other, tables);
    }

    /// Merges what a query without the tally's row returned.
    pub fn merge_all_but_tally(&mut self, other: &Contents, tables: &Tables) {
        for shard in other.shards.into_iter().filter(|shard| *shard != NONE) {
            self.apply(shard, tables);
        }
        self.delete(other.deletion, tables);
    }
}

/// The merged contents of several replicas.
#[must_use]
pub fn merged<'a>(replicas: impl IntoIterator<Item = &'a Contents>, tables: &Tables) -> Contents {
    let mut merged = Contents::default();
    replicas.into_iter().for_each(|replica| merged.merge(replica, tables));
    merged
}

impl Contents {
    /// The answer to a query for the rows with `expires_at > after`, in the table's order.
    #[must_use]
    pub fn query(&self, after: Option<Timestamp>, tables: &Tables) -> Vec<Row> {
        let mut rows: Vec<Row> = self.shards.into_iter().filter_map(|id| tables.row(id)).collect();
        rows.retain(|row| Some(row.expires_at) > after);
        if self.tally != NONE {
            let state = tables.tally_bytes(self.tally, self.tally_tail);
            rows.push(Row { expires_at: Timestamp::NEVER, mutator_id: MutatorId::TALLY, state });
        }
        rows.sort_by(|a, b| b.expires_at.cmp(&a.expires_at).then(a.mutator_id.cmp(&b.mutator_id)));
        rows
    }
}

/// The winner of two writes of a cell: the later one, or else the one with the greater bytes.
fn newer<'a>(left: Id, right: Id, bytes: impl Fn(Id) -> &'a [u8], tables: &Tables) -> Id {
    if left == NONE || right == NONE {
        return left.max(right);
    }
    let rank = |id| (tables.mutation(id).timestamp(), bytes(id));
    if left == right || rank(left) >= rank(right) { left } else { right }
}
