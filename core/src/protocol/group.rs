//! Reading a group in chunks without ever tearing a key.
//!
//! A chunk is one unpaged query of `limit` rows from a name on. Its last name may be cut off in the
//! middle, so it is dropped and the next chunk starts again at it. A full chunk with one name only
//! holds a key with more rows than a chunk: that key is read alone.
//!
//! That is the whole story where one query is one snapshot. Where a coordinator merges replicas, a
//! limited query asks a replica a second time behind its last row if the others' deletions made the
//! answer short. A fold that arrives between the two can hide a key altogether: its deletion shadows
//! the rows of the first answer, and its tally lies before the second. So such a store believes of
//! the limited query only [where it stopped](Then), and reads the rows from the chunk's
//! [beginning](From::lowest) up to [there](Then::below) again, without a limit.

use super::{Name, Row, Slice, WholeSlice};

/// Where a chunk of a group starts, in the order of names' UTF-8 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum From {
    /// At the first name.
    Start,
    /// At this name.
    At(Name),
    /// At the first name behind this one.
    Behind(Name),
}

/// What a chunk's rows say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Complete keys, by ascending name.
    pub keys: Vec<(Name, WholeSlice)>,
    /// How to go on.
    pub then: Then,
}

/// How to go on after a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// The group has no more rows.
    End,
    /// Read the next chunk from this name on.
    Chunk(Name),
    /// Read this key alone, then go on [behind](From::Behind) it.
    Key(Name),
}

impl From {
    /// The lowest text that is no lower than any name of the chunk.
    #[must_use]
    pub fn lowest(&self) -> String {
        match self {
            From::Start => String::new(),
            From::At(name) => name.to_string(),
            // No text lies between a name and the same with the lowest character.
            From::Behind(name) => format!("{name}\0"),
        }
    }
}

impl Then {
    /// The chunk's keys are below this name; none if it reaches to the end.
    #[must_use]
    pub fn below(&self) -> Option<&Name> {
        match self {
            Then::End => None,
            Then::Chunk(name) | Then::Key(name) => Some(name),
        }
    }
}

/// Splits a chunk's rows, which are ordered as in the table, into complete keys and the rest. The
/// query must have asked for `limit` rows.
///
/// # Panics
/// If there are more than `limit` rows, if `limit` is zero, or if a name comes twice or after a greater
/// one.
#[must_use]
pub fn split(rows: Vec<(Name, Row)>, limit: usize) -> Chunk {
    assert!(rows.len() <= limit && limit > 0, "invariant: a store honours the limit");
    let full = rows.len() == limit;
    let mut keys = by_name(rows);
    let cut = if full { keys.pop() } else { None };
    let then = match cut {
        None => Then::End,
        Some((name, _)) if keys.is_empty() => Then::Key(name),
        Some((name, _)) => Then::Chunk(name),
    };
    Chunk { keys: keys.into_iter().map(whole_key).collect(), then }
}

/// The complete keys of an answer that no limit could cut, its rows ordered as in the table.
///
/// # Panics
/// If a name comes twice or after a greater one.
#[must_use]
pub fn whole(rows: Vec<(Name, Row)>) -> Vec<(Name, WholeSlice)> {
    by_name(rows).into_iter().map(whole_key).collect()
}

fn by_name(rows: Vec<(Name, Row)>) -> Vec<(Name, Vec<Row>)> {
    let mut keys: Vec<(Name, Vec<Row>)> = Vec::new();
    for (name, row) in rows {
        match keys.last_mut() {
            Some((last, rows)) if *last == name => rows.push(row),
            _ => keys.push((name, vec![row])),
        }
    }
    let is_ordered = keys.is_sorted_by(|(before, _), (behind, _)| before < behind);
    assert!(is_ordered, "invariant: names come in ascending order, the rows of each together");
    keys
}

fn whole_key((name, rows): (Name, Vec<Row>)) -> (Name, WholeSlice) {
    let limit = rows.len();
    let slice = Slice::new(rows, None, limit).whole();
    (name, slice.expect("invariant: as many rows as there are"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{MutatorId, Timestamp};
    use uuid::Uuid;

    fn name(text: &str) -> Name {
        Name::new(text).expect("name")
    }

    /// Rows of keys by name and count, as the table orders them.
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
        chunk.keys.iter().map(|(name, slice)| (name.to_string(), slice.len())).collect()
    }

    #[test]
    fn a_chunk_below_its_limit_ends_the_group() {
        let chunk = split(rows(&[("a", 2), ("b", 1)]), 4);
        assert_eq!(sizes(&chunk), [("a".into(), 2), ("b".into(), 1)]);
        assert_eq!(chunk.then, Then::End);
        assert_eq!(split(vec![], 4).then, Then::End);
        assert_eq!(whole(rows(&[("a", 2), ("b", 1)])), chunk.keys);
    }

    #[test]
    #[should_panic(expected = "invariant: names come in ascending order")]
    fn a_name_that_comes_twice_is_a_bug() {
        let _ = whole(rows(&[("a", 1), ("b", 1), ("a", 1)]));
    }

    #[test]
    fn a_full_chunk_drops_its_last_name_and_starts_again_at_it() {
        let chunk = split(rows(&[("a", 2), ("b", 2)]), 4);
        assert_eq!(sizes(&chunk), [("a".into(), 2)]);
        assert_eq!(chunk.then, Then::Chunk(name("b")));
        assert_eq!(chunk.then.below(), Some(&name("b")));
    }

    #[test]
    fn a_full_chunk_of_one_name_reads_that_key_alone() {
        let chunk = split(rows(&[("a", 4)]), 4);
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
