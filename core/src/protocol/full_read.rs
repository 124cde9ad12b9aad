//! A whole key as a fold reads it.

use std::collections::HashMap;

use super::group::{self, BadRows};
use super::{BadSlice, Key, Name, Row, WholeSlice};

/// A key's whole slice, read at the fold's consistency level. A fold can be planned only from this or from a
/// [`PrefixRead`](super::prefix::PrefixRead), and only a store's fold read may make one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FullRead {
    key: Key,
    slice: WholeSlice,
}

impl FullRead {
    /// Only for a store's fold read: `slice` must have been read at the fold's consistency level and start at
    /// the key's oldest row.
    ///
    /// # Panics
    /// If the slice starts after a fence.
    #[must_use]
    pub fn at_fold_level(key: Key, slice: WholeSlice) -> FullRead {
        assert!(slice.after().is_none(), "invariant: a fold reads the key from its oldest row");
        FullRead { key, slice }
    }

    /// Makes the reads of several keys of one partition. `rows` are all rows that the query of their names
    /// returned, without a limit, in the table's order. A key without rows gets an empty slice.
    ///
    /// # Errors
    /// [`BadRows`] if a key has more than `limit` rows, if the rows are not in the table's order, or if a row
    /// belongs to a key that was not requested.
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
    use crate::protocol::row::tests::row;

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
        assert_eq!(other, Err(BadRows::Name(name("c"))), "c was not requested");
    }
}
