//! Replicas in memory: the contents of one partition on a Cassandra node, and the answer that a coordinator makes from
//! those of several nodes. The simulator and the demo break them.
//!
//! The rules are Cassandra's. The greater write timestamp wins a cell, and a tie goes to the greater bytes. A deletion
//! hides everything at or below its timestamp, even later arrivals, until it is purged `gc_grace` after it was made. A
//! limited query asks again after a replica's last row.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use orderfree_core::protocol::{MutatorId, Timestamp};

/// The position of a row in the table's order: names ascending, expiries descending, ids ascending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address<N> {
    /// The name, or its index.
    pub name: N,
    pub expires_at: Reverse<Timestamp>,
    pub id: MutatorId,
}

impl<N> Address<N> {
    pub fn tally(name: N) -> Address<N> {
        Address { name, expires_at: Reverse(Timestamp::NEVER), id: MutatorId::TALLY }
    }

    pub fn is_tally(&self) -> bool {
        self.expires_at.0 == Timestamp::NEVER
    }
}

/// The one cell of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    pub timestamp: Timestamp,
    pub state: Arc<[u8]>,
}

/// A deletion of one row, or of every row of a name that expires in a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tombstone<N> {
    pub name: N,
    pub after: Timestamp,
    pub through: Timestamp,
    /// If set, only this mutator's row.
    pub id: Option<MutatorId>,
    pub timestamp: Timestamp,
    /// When its coordinator made it, in µs of true time. `gc_grace` counts from here.
    pub made_us: i64,
}

impl<N: Ord> Tombstone<N> {
    fn covers(&self, address: &Address<N>) -> bool {
        let expires_at = address.expires_at.0;
        address.name == self.name
            && self.after < expires_at
            && expires_at <= self.through
            && self.id.is_none_or(|id| id == address.id)
    }

    fn shadows(&self, address: &Address<N>, cell: &Cell) -> bool {
        self.timestamp >= cell.timestamp && self.covers(address)
    }

    fn supersedes(&self, other: &Tombstone<N>) -> bool {
        let is_wider = self.name == other.name
            && self.after <= other.after
            && self.through >= other.through
            && (self.id.is_none() || self.id == other.id);
        is_wider && self.timestamp >= other.timestamp && self.made_us >= other.made_us
    }
}

/// The change of one partition by a statement or batch. A replica applies it whole.
#[derive(Debug, Clone)]
pub struct Mutation<N> {
    pub cells: Vec<(Address<N>, Cell)>,
    pub tombstones: Vec<Tombstone<N>>,
}

/// The effect of a mutation's cells on a replica.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// An earlier deletion hid a cell.
    pub shadowed: bool,
    /// A newer cell was already there.
    pub older: bool,
}

/// The rows that a query asks for.
#[derive(Debug, Clone, Copy)]
pub struct Range<N> {
    pub from_name: N,
    pub to_name: N,
    /// Only names before this one.
    pub below: Option<N>,
    pub after: Option<Timestamp>,
    pub through: Option<Timestamp>,
    /// Only rows after this one.
    pub behind: Option<Address<N>>,
    pub limit: usize,
    /// In reverse order.
    pub is_backwards: bool,
}

impl<N: Ord + Clone> Range<N> {
    /// A whole key.
    pub fn key(name: N) -> Range<N> {
        Range::names(name.clone(), name)
    }

    /// All keys between two names.
    pub fn names(from_name: N, to_name: N) -> Range<N> {
        let (below, after, through, behind) = (None, None, None, None);
        let (limit, is_backwards) = (usize::MAX, false);
        Range { from_name, to_name, below, after, through, behind, limit, is_backwards }
    }

    fn contains(&self, address: &Address<N>) -> bool {
        let expires_at = address.expires_at.0;
        (&self.from_name..=&self.to_name).contains(&&address.name)
            && self.below.as_ref().is_none_or(|below| address.name < *below)
            && self.after.is_none_or(|after| expires_at > after)
            && self.through.is_none_or(|through| expires_at <= through)
            && self
                .behind
                .as_ref()
                .is_none_or(|behind| self.reaches(address, behind) && address != behind)
    }

    /// Whether a row is at or after another one.
    pub fn reaches(&self, address: &Address<N>, other: &Address<N>) -> bool {
        if self.is_backwards { address <= other } else { address >= other }
    }
}

/// One replica's answer.
#[derive(Debug, Clone)]
pub struct Piece<N> {
    pub rows: Vec<(Address<N>, Cell)>,
    pub tombstones: Vec<Tombstone<N>>,
    /// The answer stopped at its limit, so there may be more rows.
    pub is_cut: bool,
}

/// The contents of a node.
#[derive(Debug, Clone)]
pub struct Replica<N> {
    pub rows: BTreeMap<Address<N>, Cell>,
    pub tombstones: Vec<Tombstone<N>>,
}

impl<N> Default for Replica<N> {
    fn default() -> Replica<N> {
        Replica { rows: BTreeMap::new(), tombstones: Vec::new() }
    }
}

impl<N> Default for Mutation<N> {
    fn default() -> Mutation<N> {
        Mutation { cells: Vec::new(), tombstones: Vec::new() }
    }
}

impl<N: Ord + Clone> Replica<N> {
    /// Applies a mutation. With `split_tally`, the tally is in two cells, which breaks a rule.
    pub fn apply(&mut self, mutation: &Mutation<N>, split_tally: bool) -> Applied {
        let mut applied = Applied::default();
        for tombstone in &mutation.tombstones {
            self.rows.retain(|address, cell| !tombstone.shadows(address, cell));
            if !self.tombstones.iter().any(|old| old.supersedes(tombstone)) {
                self.tombstones.retain(|old| !tombstone.supersedes(old));
                self.tombstones.push(tombstone.clone());
            }
        }
        for (address, cell) in &mutation.cells {
            if self.tombstones.iter().any(|tombstone| tombstone.shadows(address, cell)) {
                applied.shadowed = true;
                continue;
            }
            match self.rows.get_mut(address) {
                None => {
                    self.rows.insert(address.clone(), cell.clone());
                }
                Some(old) => {
                    applied.older |= old.timestamp > cell.timestamp;
                    reconcile(old, cell, split_tally && address.is_tally());
                }
            }
        }
        applied
    }

    /// Purges deletions made before `before_us`. Returns whether there were any.
    pub fn purge(&mut self, before_us: i64) -> bool {
        let count = self.tombstones.len();
        self.tombstones.retain(|tombstone| tombstone.made_us >= before_us);
        self.tombstones.len() < count
    }

    /// Answers a query.
    pub fn answer(&self, range: &Range<N>) -> Piece<N> {
        let rows = self.rows.iter().filter(|(address, _)| range.contains(address));
        let mut found: Vec<_> =
            rows.map(|(address, cell)| (address.clone(), cell.clone())).collect();
        if range.is_backwards {
            found.reverse();
        }
        let is_cut = found.len() > range.limit;
        found.truncate(range.limit);
        let names = &range.from_name..=&range.to_name;
        let tombstones = self.tombstones.iter().filter(|old| names.contains(&&old.name));
        Piece { rows: found, tombstones: tombstones.cloned().collect(), is_cut }
    }
}

/// The last write wins. The greater bytes win a tie, cell by cell.
fn reconcile(old: &mut Cell, new: &Cell, as_two_cells: bool) {
    if as_two_cells && old.timestamp == new.timestamp {
        let (old_halves, new_halves) = (halves(&old.state), halves(&new.state));
        let state = [old_halves.0.max(new_halves.0), old_halves.1.max(new_halves.1)].concat();
        old.state = state.into();
    } else if (new.timestamp, &new.state) > (old.timestamp, &old.state) {
        *old = new.clone();
    }
}

fn halves(state: &[u8]) -> (&[u8], &[u8]) {
    state.split_at(state.len() / 2)
}

/// Merges the answers of replicas, before the limit.
pub fn merge<N: Ord + Clone>(pieces: &[Piece<N>], split_tally: bool) -> BTreeMap<Address<N>, Cell> {
    let mut merged = Replica::default();
    for piece in pieces {
        let (cells, tombstones) = (piece.rows.clone(), piece.tombstones.clone());
        merged.apply(&Mutation { cells, tombstones }, split_tally);
    }
    merged.rows
}

/// Blocking read repair: the mutation for every replica that was asked. It contains no more than the query returned.
pub fn repair<N: Ord + Clone>(
    pieces: &[Piece<N>],
    range: &Range<N>,
    through: Option<&Address<N>>,
) -> Mutation<N> {
    let mut clipped = Vec::new();
    for tombstone in pieces.iter().flat_map(|piece| &piece.tombstones) {
        let mut part = tombstone.clone();
        part.after = range.after.map_or(part.after, |after| part.after.max(after));
        part.through = range.through.map_or(part.through, |end| part.through.min(end));
        if let Some(last) = through
            && last.name == part.name
            && range.is_backwards
        {
            part.through = part.through.min(last.expires_at.0);
        } else if let Some(last) = through
            && last.name == part.name
        {
            // Rows come by descending expiry: the query did not look below the last one.
            part.after = part.after.max(Timestamp::from_micros(last.expires_at.0.as_micros() - 1));
        }
        if part.after < part.through {
            clipped.push(part);
        }
    }
    let merged = merge(pieces, false);
    let returned = |address: &Address<N>| through.is_none_or(|last| range.reaches(last, address));
    let cells = merged.into_iter().filter(|(address, _)| returned(address)).collect();
    Mutation { cells, tombstones: clipped }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn at(expires_at: i64) -> Address<u8> {
        let expires_at = Reverse(Timestamp::from_micros(expires_at));
        Address { name: 0, expires_at, id: MutatorId::new(Uuid::from_u128(1)) }
    }

    fn write(expires_at: i64, timestamp: i64, state: &[u8]) -> Mutation<u8> {
        let cell = Cell { timestamp: Timestamp::from_micros(timestamp), state: state.into() };
        Mutation { cells: vec![(at(expires_at), cell)], tombstones: vec![] }
    }

    fn delete(through: i64, timestamp: i64, made_us: i64) -> Mutation<u8> {
        let (through, timestamp) =
            (Timestamp::from_micros(through), Timestamp::from_micros(timestamp));
        let after = Timestamp::from_micros(i64::MIN);
        let range = Tombstone { name: 0, after, through, id: None, timestamp, made_us };
        Mutation { cells: vec![], tombstones: vec![range] }
    }

    #[test]
    fn a_replica_keeps_cassandras_rules() {
        let mut replica = Replica::default();
        replica.apply(&write(10, 5, b"b"), false);
        replica.apply(&write(10, 5, b"a"), false);
        assert_eq!(&*replica.rows[&at(10)].state, b"b", "the greater bytes win a tie");
        replica.apply(&write(20, 10, b"x"), false);
        replica.apply(&delete(15, 16, 100), false);
        assert_eq!(replica.rows.keys().copied().collect::<Vec<_>>(), [at(20)]);
        assert!(replica.apply(&write(10, 9, b"late"), false).shadowed);
        replica.apply(&delete(12, 13, 90), false);
        assert_eq!(replica.tombstones.len(), 1, "a wider, newer deletion covers it");
        assert!(!replica.purge(100) && replica.purge(101));
        assert!(!replica.apply(&write(10, 9, b"zombie"), false).shadowed);
    }

    #[test]
    fn a_coordinator_lets_one_replicas_deletion_shadow_anothers_row() {
        let (mut with, mut without) = (Replica::default(), Replica::default());
        without.apply(&write(10, 5, b"a"), false);
        with.apply(&delete(10, 11, 0), false);
        let range = Range::key(0);
        let pieces = [with.answer(&range), without.answer(&range)];
        assert!(merge(&pieces, false).is_empty());
        let told = repair(&pieces, &range, None);
        without.apply(&told, false);
        assert!(without.rows.is_empty());
        let limited = Range { limit: 1, ..range };
        without.apply(&write(30, 1, b"c"), false);
        without.apply(&write(40, 1, b"c"), false);
        assert!(without.answer(&limited).is_cut);
    }
}
