//! Rows as a store returns them, and slices of them, complete or cut off.

use std::fmt;

use uuid::{Uuid, Variant, Version};

use super::Timestamp;
use crate::crdt::envelope;

/// Identity of one mutator: random, drawn at birth, never persisted, never reused (invariant I1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MutatorId(Uuid);

impl MutatorId {
    /// The tally's value in the mutator column.
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
    /// The expiry of its mutator; [`Timestamp::NEVER`] for the tally.
    pub expires_at: Timestamp,
    /// The mutator that writes it; [`MutatorId::TALLY`] for the tally.
    pub mutator_id: MutatorId,
    /// The state's [envelope].
    pub state: Vec<u8>,
}

impl Row {
    /// Whether this is the tally's row.
    #[must_use]
    pub fn is_tally(&self) -> bool {
        self.expires_at == Timestamp::NEVER
    }
}

/// The answer to a query of one key's rows with `LIMIT limit + 1`: unpaged, newest expiry first. So any
/// answer that has a row of the key also has its tally.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    rows: Vec<Row>,
    after: Option<Timestamp>,
    limit: usize,
}

/// Why a slice can't be used for its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadSlice {
    /// The key has more rows than the limit. Rows come in descending order, so the oldest are missing.
    #[error("the key has more than {limit} rows")]
    Cut {
        /// The limit of the query.
        limit: usize,
        /// Bytes of the states of the rows that were read.
        bytes: usize,
    },
    /// The rows are not in the table's order, so some could be missing. Cassandra sorts a mutator id that is
    /// not a version 4 UUID differently from this crate.
    #[error(
        "row (expires_at {}, mutator {mutator_id}) of the key is not in the table's order",
        .expires_at.as_micros()
    )]
    Disordered {
        /// Expiry of the first row that is out of order.
        expires_at: Timestamp,
        /// Mutator of that row.
        mutator_id: MutatorId,
    },
}

impl Slice {
    /// Wraps a store's answer: the rows with `expires_at > after` (all rows if `after` is none), up to `limit
    /// + 1` of them.
    #[must_use]
    pub fn new(rows: Vec<Row>, after: Option<Timestamp>, limit: usize) -> Slice {
        Slice { rows, after, limit }
    }

    /// The slice, if nothing was cut off and its rows are in order.
    ///
    /// # Errors
    /// [`BadSlice`] says what is wrong with it.
    pub fn whole(self) -> Result<WholeSlice, BadSlice> {
        if self.rows.len() > self.limit {
            let bytes = self.rows.iter().map(|row| row.state.len()).sum();
            return Err(BadSlice::Cut { limit: self.limit, bytes });
        }
        // Descending by expiry, then ascending by mutator.
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

/// Every row of a key with `expires_at > after`; none is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeSlice {
    rows: Vec<Row>,
    after: Option<Timestamp>,
}

impl WholeSlice {
    /// The slice of a key without rows.
    pub(super) fn empty() -> WholeSlice {
        WholeSlice { rows: Vec::new(), after: None }
    }

    /// The fence after which the slice starts; none if it holds the whole key.
    #[must_use]
    pub fn after(&self) -> Option<Timestamp> {
        self.after
    }

    /// The tally's row, if there is one.
    #[must_use]
    pub fn tally(&self) -> Option<&Row> {
        self.rows.first().filter(|row| row.is_tally())
    }

    /// Whether its tally is a grave. The tally may not be decodable.
    #[must_use]
    pub fn has_grave(&self) -> bool {
        self.tally().is_some_and(|row| envelope::is_grave(&row.state))
    }

    /// Whether its tally is full. The tally may not be decodable.
    #[must_use]
    pub fn has_full_tally(&self) -> bool {
        self.tally().is_some_and(|row| envelope::is_full(&row.state))
    }

    /// The shards in canonical merge order: ascending by `(expires_at, mutator_id)`.
    pub fn shards(&self) -> impl Iterator<Item = &Row> {
        let shards = &self.rows[usize::from(self.tally().is_some())..];
        // The stored order is descending by expiry but ascending by id, so reverse the runs of equal expiry.
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

    /// Whether the slice has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::protocol) fn row(expires_at: i64, id: u128) -> Row {
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
