//! Rows as a store returns them, and slices of them, complete or cut.

use std::collections::HashMap;
use std::fmt;

use uuid::{Uuid, Variant, Version};

use super::group::{self, BadRows};
use super::{Key, Name, Timestamp};

/// Identity of one mutator: random, drawn at birth, never persisted, never reused (invariant I1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MutatorId(Uuid);

impl MutatorId {
    /// The tally's place in the mutator column.
    pub const TALLY: MutatorId = MutatorId(Uuid::nil());

    /// An id from a version 4 UUID, or from the store.
    #[must_use]
    pub const fn new(uuid: Uuid) -> MutatorId {
        MutatorId(uuid)
    }

    /// Whether it is a random UUID: version 4 of RFC 9562.
    #[must_use]
    pub fn is_random(self) -> bool {
        self.0.get_version() == Some(Version::Random) && self.0.get_variant() == Variant::RFC4122
    }

    /// The UUID.
    #[must_use]
    pub const fn as_uuid(self) -> Uuid {
        self.0
    }
}

impl fmt::Display for MutatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One row of a key: a shard, or the tally.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// When its mutator expires; [`Timestamp::NEVER`] for the tally.
    pub expires_at: Timestamp,
    /// Who writes it; [`MutatorId::TALLY`] for the tally.
    pub mutator_id: MutatorId,
    /// The [envelope](crate::crdt::envelope).
    pub state: Vec<u8>,
}

impl Row {
    /// Whether this is the tally's row.
    #[must_use]
    pub fn is_tally(&self) -> bool {
        self.expires_at == Timestamp::NEVER
    }
}

/// The answer to a query of one key's rows with `LIMIT limit + 1`: unpaged, newest expiry first, so
/// that any answer with a row of the key has its tally.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    rows: Vec<Row>,
    after: Option<Timestamp>,
    limit: usize,
}

/// Why a slice says nothing about its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadSlice {
    /// It had more rows than its limit. Under descending order the missing ones are the oldest.
    #[error("the key has more than {limit} rows")]
    Cut {
        /// The limit that was passed.
        limit: usize,
        /// Bytes of the states of the rows that came.
        bytes: usize,
    },
    /// Its rows are not in the table's order, so that some may be missing. A mutator whose id is no
    /// version 4 UUID lies elsewhere in Cassandra's order than in ours.
    #[error(
        "row (expires_at {}, mutator {mutator_id}) of the key is not where the table's order puts it",
        .expires_at.as_micros()
    )]
    Disordered {
        /// Expiry of the first row that is out of order.
        expires_at: Timestamp,
        /// Its mutator.
        mutator_id: MutatorId,
    },
}

impl Slice {
    /// Wraps a store's answer: the rows with `expires_at > after` (all rows without), at most
    /// `limit + 1` of them.
    #[must_use]
    pub fn new(rows: Vec<Row>, after: Option<Timestamp>, limit: usize) -> Slice {
        Slice { rows, after, limit }
    }

    /// The slice, if and only if nothing was cut off and its rows are in order.
    ///
    /// # Errors
    /// [`BadSlice`].
    pub fn whole(self) -> Result<WholeSlice, BadSlice> {
        if self.rows.len() > self.limit {
            let bytes = self.rows.iter().map(|row| row.state.len()).sum();
            return Err(BadSlice::Cut { limit: self.limit, bytes });
        }
        // Descending expiry, then ascending mutator.
        let in_order =
            |a: &Row, b: &Row| (b.expires_at, a.mutator_id) < (a.expires_at, b.mutator_id);
        match self.rows.windows(2).find(|pair| !in_order(&pair[0], &pair[1])) {
            Some([_, Row { expires_at, mutator_id, .. }]) => {
                Err(BadSlice::Disordered { expires_at: *expires_at, mutator_id: *mutator_id })
            }
            _ => Ok(WholeSlice { rows: self.rows, after: self.after }),
        }
    }
}

/// Every row of a key with `expires_at > after`: nothing is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeSlice {
    rows: Vec<Row>,
    after: Option<Timestamp>,
}

impl WholeSlice {
    /// Of a key without rows.
    fn empty() -> WholeSlice {
        WholeSlice { rows: Vec::new(), after: None }
    }

    /// The fence behind which the slice starts; none if it holds the whole key.
    #[must_use]
    pub fn after(&self) -> Option<Timestamp> {
        self.after
    }

    /// The tally's row, if there is one.
    #[must_use]
    pub fn tally(&self) -> Option<&Row> {
        self.rows.first().filter(|row| row.is_tally())
    }

    /// The shards in canonical merge order: ascending by `(expires_at, mutator_id)`.
    pub fn shards(&self) -> impl Iterator<Item = &Row> {
        let shards = &self.rows[usize::from(self.tally().is_some())..];
        // Stored order is descending by expiry but ascending by id: reverse the runs of one expiry.
        shards.chunk_by(|a, b| a.expires_at == b.expires_at).rev().flatten()
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Bytes of the states of its rows.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.rows.iter().map(|row| row.state.len()).sum()
    }

    /// Whether the key has no row in this slice.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// A key's whole slice, read at the fold's consistency level: the only thing a fold can be planned
/// from. Only a store's fold read may make one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FullRead {
    key: Key,
    slice: WholeSlice,
}

impl FullRead {
    /// For a store's fold read, and nothing else: `slice` must come from the fold's consistency
    /// level and start at the key's oldest row.
    ///
    /// # Panics
    /// If the slice starts behind a fence.
    #[must_use]
    pub fn at_fold_level(key: Key, slice: WholeSlice) -> FullRead {
        assert!(slice.after.is_none(), "invariant: a fold reads the key from its oldest row");
        FullRead { key, slice }
    }

    /// The same for several keys of one partition: `rows` are all that the query of their names
    /// returned, without a limit, ordered as in the table. A key without rows has an empty slice.
    ///
    /// # Errors
    /// [`BadRows`] if one of the keys has more than `limit` rows, or if the rows are not in the
    /// table's order or of a key that was not asked for.
    pub fn all_at_fold_level(
        keys: &[Key],
        rows: Vec<(Name, Row)>,
        limit: usize,
    ) -> Result<Vec<FullRead>, BadRows> {
        let mut found = HashMap::new();
        for (name, slice) in group::whole(rows)? {
            let slice = slice?;
            if slice.len() > limit {
                return Err(BadSlice::Cut { limit, bytes: slice.bytes() }.into());
            }
            found.insert(name, slice);
        }
        let reads = keys.iter().map(|key| {
            let slice = found.remove(&key.name).unwrap_or_else(WholeSlice::empty);
            FullRead::at_fold_level(key.clone(), slice)
        });
        let reads = reads.collect();
        match found.into_keys().next() {
            Some(stranger) => Err(BadRows::Name(stranger)),
            None => Ok(reads),
        }
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Its rows.
    #[must_use]
    pub fn slice(&self) -> &WholeSlice {
        &self.slice
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crdt::Kind;

    fn row(expires_at: i64, id: u128) -> Row {
        Row {
            expires_at: Timestamp::from_micros(expires_at),
            mutator_id: MutatorId::new(Uuid::from_u128(id)),
            state: Vec::new(),
        }
    }

    #[test]
    fn a_cut_slice_never_becomes_whole() {
        let rows = vec![row(9, 1), row(8, 1), row(7, 1)];
        assert_eq!(
            Slice::new(rows.clone(), None, 2).whole(),
            Err(BadSlice::Cut { limit: 2, bytes: 0 })
        );
        assert!(Slice::new(rows, None, 3).whole().is_ok());
    }

    #[test]
    fn a_mutators_id_is_shown_as_its_uuid() {
        let id = MutatorId::new(Uuid::from_u128(7));
        assert_eq!(id.to_string(), "00000000-0000-0000-0000-000000000007");
    }

    #[test]
    fn shards_come_in_canonical_order() {
        let rows = vec![row(i64::MAX, 0), row(9, 1), row(9, 5), row(8, 3), row(7, 4)];
        let whole = Slice::new(rows, None, 10).whole().expect("whole");
        assert!(whole.tally().is_some());
        let order: Vec<_> = whole
            .shards()
            .map(|row| (row.expires_at.as_micros(), row.mutator_id.as_uuid().as_u128()))
            .collect();
        assert_eq!(order, [(7, 4), (8, 3), (9, 1), (9, 5)]);
    }

    #[test]
    fn the_rows_of_several_keys_go_to_their_keys() {
        let name = |text| Name::new(text).expect("name");
        let key = |text| Key { kind: Kind::Counter, group: name("g"), name: name(text) };
        let rows = || vec![(name("a"), row(9, 1)), (name("a"), row(8, 1)), (name("c"), row(7, 1))];
        let asked = [key("c"), key("b"), key("a")];
        assert_eq!(
            FullRead::all_at_fold_level(&asked, rows(), 1),
            Err(BadSlice::Cut { limit: 1, bytes: 0 }.into())
        );
        let reads = FullRead::all_at_fold_level(&asked, rows(), 2).expect("no key has more");
        let seen: Vec<_> =
            reads.iter().map(|read| (read.key().name.as_str(), read.slice().len())).collect();
        assert_eq!(seen, [("c", 1), ("b", 0), ("a", 2)]);
        let other = FullRead::all_at_fold_level(&[key("a")], rows(), 2);
        assert_eq!(other, Err(BadRows::Name(name("c"))), "nobody asked for c");
    }

    #[test]
    fn the_bytes_of_a_slice_are_those_of_its_states() {
        let with = |expires_at, bytes| Row { state: vec![0; bytes], ..row(expires_at, 1) };
        let slice = Slice::new(vec![with(9, 5), with(8, 0), with(7, 7)], None, 10);
        assert_eq!(slice.whole().expect("whole").bytes(), 12);
    }

    #[test]
    fn rows_out_of_order_are_no_slice() {
        for rows in [[row(9, 1), row(9, 1)], [row(8, 1), row(9, 1)], [row(9, 2), row(9, 1)]] {
            let Row { expires_at, mutator_id, .. } = rows[1];
            let disordered = BadSlice::Disordered { expires_at, mutator_id };
            assert_eq!(Slice::new(rows.into(), None, 10).whole(), Err(disordered));
        }
    }
}
