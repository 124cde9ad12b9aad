//! Reads a group in chunks without ever splitting a key.
//!
//! A chunk is one unpaged query of `limit` rows, starting at a name. Its last name may be cut off, so it is
//! dropped, and the next chunk starts at it. A full chunk with only one name holds a key with more rows than
//! a chunk; that key is read alone.
//!
//! This is enough if one query is one snapshot. If a coordinator merges replicas, it is not: when the
//! deletions of other replicas leave a limited answer short, the coordinator asks a replica again, for rows
//! after its last one. A fold that arrives between the two queries can hide a key completely: its deletion
//! hides the rows of the first answer, and its tally comes before the rows of the second. So such a store
//! uses the limited query only to find [where it stopped](Then). It then reads the rows from the chunk's
//! [beginning](From::lowest) up to [there](Then::below) again, without a limit.

use thiserror::Error;

use super::row::BadSlice;
use super::{Name, Row, Slice, WholeSlice};

/// Where a chunk of a group starts, in the order of names' UTF-8 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum From {
    /// At the first name.
    Start,
    /// At this name.
    At(Name),
    /// At the first name after this one.
    Behind(Name),
}

/// Complete keys by ascending name. A key whose rows are out of order does not affect the others.
pub type Keys = Vec<(Name, Result<WholeSlice, BadSlice>)>;

/// The contents of a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Complete keys.
    pub keys: Keys,
    /// How to continue.
    pub then: Then,
}

/// Why the rows of several keys can't be used for any of them.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadRows {
    /// A name comes twice, comes after a greater one, or was not requested, so other rows could be missing.
    #[error("rows of {0:?} are out of order or were not requested")]
    Name(Name),
    /// The rows of one of the keys can't be used.
    #[error(transparent)]
    Slice(#[from] BadSlice),
}

/// How to continue after a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// The group has no more rows.
    End,
    /// Read the next chunk, starting at this name.
    Chunk(Name),
    /// Read this key alone, then continue [after](From::Behind) it.
    Key(Name),
}

impl From {
    /// The lowest text that is not above any name of the chunk.
    #[must_use]
    pub fn lowest(&self) -> String {
        match self {
            From::Start => String::new(),
            From::At(name) => name.to_string(),
            // There is no text between a name and that name with the lowest character appended.
            From::Behind(name) => format!("{name}\0"),
        }
    }
}

impl Then {
    /// The chunk's keys are below this name; none if the chunk reaches the end of the group.
    #[must_use]
    pub fn below(&self) -> Option<&Name> {
        match self {
            Then::End => None,
            Then::Chunk(name) | Then::Key(name) => Some(name),
        }
    }
}

/// Splits a chunk's rows, which are in the table's order, into complete keys and the rest. The query must
/// have had this `limit`.
///
/// # Errors
/// [`BadRows`] if a name comes twice or after a greater one.
///
/// # Panics
/// If there are more than `limit` rows, or if `limit` is zero.
pub fn split(rows: Vec<(Name, Row)>, limit: usize) -> Result<Chunk, BadRows> {
    assert!(rows.len() <= limit && limit > 0, "invariant: a store honours the limit");
    let full = rows.len() == limit;
    let mut keys = by_name(rows)?;
    let cut = if full { keys.pop() } else { None };
    let then = match cut {
        None => Then::End,
        Some((name, _)) if keys.is_empty() => Then::Key(name),
        Some((name, _)) => Then::Chunk(name),
    };
    Ok(Chunk { keys: keys.into_iter().map(whole_key).collect(), then })
}

/// The complete keys of an answer without a limit, whose rows are in the table's order.
///
/// # Errors
/// [`BadRows`] if a name comes twice or after a greater one.
pub fn whole(rows: Vec<(Name, Row)>) -> Result<Keys, BadRows> {
    Ok(by_name(rows)?.into_iter().map(whole_key).collect())
}

fn by_name(rows: Vec<(Name, Row)>) -> Result<Vec<(Name, Vec<Row>)>, BadRows> {
    let mut keys: Vec<(Name, Vec<Row>)> = Vec::new();
    for (name, row) in rows {
        match keys.last_mut() {
            Some((last, rows)) if *last == name => rows.push(row),
            _ => keys.push((name, vec![row])),
        }
    }
    match keys.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        Some(pair) => Err(BadRows::Name(pair[1].0.clone())),
        None => Ok(keys),
    }
}

fn whole_key((name, rows): (Name, Vec<Row>)) -> (Name, Result<WholeSlice, BadSlice>) {
    let limit = rows.len();
    (name, Slice::new(rows, None, limit).whole())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{MutatorId, Timestamp};
    use uuid::Uuid;

    fn name(text: &str) -> Name {
        Name::new(text).expect("name")
    }

    /// Rows of keys by name and count, in the table's order.
    fn rows(keys: &[(&str, i64)]) -> Vec<(Name, Row)> {
        let row = |expires_at| Row {
            expires_at: Timestamp::from_micros(expires_at),
            mutator_id: MutatorId::new(Uuid::from_u128(1)),
            state: Vec::new(),
        };
        let mut rows = Vec::new();
        for (text, count) in keys {
            rows.extend((0..*count).rev().map(|at| (name(text), row(at))));
        }
        rows
    }

    fn sizes(chunk: &Chunk) -> Vec<(String, usize)> {
        let size = |slice: &Result<WholeSlice, _>| slice.as_ref().expect("in order").len();
        chunk.keys.iter().map(|(name, slice)| (name.to_string(), size(slice))).collect()
    }

    #[test]
    fn a_chunk_below_its_limit_ends_the_group() {
        let chunk = split(rows(&[("a", 2), ("b", 1)]), 4).expect("in order");
        assert_eq!(sizes(&chunk), [("a".into(), 2), ("b".into(), 1)]);
        assert_eq!(chunk.then, Then::End);
        assert_eq!(split(vec![], 4).expect("no rows").then, Then::End);
        assert_eq!(whole(rows(&[("a", 2), ("b", 1)])), Ok(chunk.keys));
    }

    #[test]
    fn a_name_that_comes_twice_spoils_the_chunk() {
        let twice = rows(&[("a", 1), ("b", 1), ("a", 1)]);
        assert_eq!(whole(twice.clone()), Err(BadRows::Name(name("a"))));
        assert_eq!(split(twice, 4), Err(BadRows::Name(name("a"))));
    }

    #[test]
    fn a_key_whose_rows_are_out_of_order_hinders_no_other() {
        let mut rows = rows(&[("a", 2), ("b", 2)]);
        rows.swap(0, 1);
        let chunk = split(rows, 5).expect("the names are in order");
        assert!(matches!(chunk.keys[0].1, Err(BadSlice::Disordered { .. })));
        assert_eq!(chunk.keys[1].1.as_ref().map(WholeSlice::len), Ok(2));
    }

    #[test]
    fn a_full_chunk_drops_its_last_name_and_starts_again_at_it() {
        let chunk = split(rows(&[("a", 2), ("b", 2)]), 4).expect("in order");
        assert_eq!(sizes(&chunk), [("a".into(), 2)]);
        assert_eq!(chunk.then, Then::Chunk(name("b")));
        assert_eq!(chunk.then.below(), Some(&name("b")));
    }

    #[test]
    fn a_full_chunk_of_one_name_reads_that_key_alone() {
        let chunk = split(rows(&[("a", 4)]), 4).expect("in order");
        assert_eq!((sizes(&chunk), chunk.then.below()), (vec![], Some(&name("a"))));
        assert_eq!(chunk.then, Then::Key(name("a")));
    }

    #[test]
    fn a_chunk_begins_at_the_lowest_text_that_it_may_hold() {
        let (start, at) = (From::Start.lowest(), From::At(name("b")).lowest());
        let behind = From::Behind(name("b")).lowest();
        assert_eq!((start.as_str(), at.as_str()), ("", "b"));
        assert!(*"b" < *behind && *behind < *"b ", "between a name and the next possible one");
    }
}
