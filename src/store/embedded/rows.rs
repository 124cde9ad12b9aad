//! Rows in the file: their layout, reads, writes and folds. The rows and rules are the same as in Cassandra's
//! table. Each operation is one transaction.

use std::ops::Bound::{Excluded, Included, Unbounded};
use std::ops::ControlFlow;

use orderfree_core::crdt::Kind;
use orderfree_core::crdt::envelope::KeySeal;
use orderfree_core::protocol::fold::Fold;
use orderfree_core::protocol::group::{self, Chunk};
use orderfree_core::protocol::prefix::Part;
use orderfree_core::protocol::repair::Written;
use orderfree_core::protocol::sweep::{GroupSize, Nomination, Nominator};
use orderfree_core::protocol::{Key, MutatorId, Name, Row, ShardWrite, Slice, Timestamp};
use redb::{ReadableTable, StorageError, Table, TableDefinition};
use uuid::Uuid;

use crate::limits::{SWEEP_STEP_ROWS, group_chunk_rows};

/// Kind, group, name, expiry (descending), mutator id: the primary key of Cassandra's table.
pub type RowKey<'a> = (&'a str, &'a str, &'a str, u64, u128);

/// Write timestamp and state.
pub type RowValue<'a> = (i64, &'a [u8]);

/// The only table of rows.
pub const SHARDS: TableDefinition<'static, RowKey<'static>, RowValue<'static>> =
    TableDefinition::new("shards");

/// Why rows could not be read.
#[derive(Debug)]
pub(super) enum ReadError {
    File(redb::Error),
    /// A row breaks a rule for all rows.
    Row(String),
}

impl<E: Into<redb::Error>> From<E> for ReadError {
    fn from(error: E) -> ReadError {
        ReadError::File(error.into())
    }
}

/// Reads up to `limit + 1` of a key's rows, with `expires_at > after`. Without `after`, reads all rows.
pub(super) fn read_slice(
    table: &impl ReadableTable<RowKey<'static>, RowValue<'static>>,
    key: &Key,
    after: Option<Timestamp>,
    limit: usize,
) -> Result<Slice, ReadError> {
    let oldest = match after {
        None => Included(at(key, u64::MAX, u128::MAX)),
        Some(after) => Excluded(at(key, descending(after), 0)),
    };
    let mut rows = Vec::new();
    for entry in table.range::<RowKey>((Included(at(key, 0, 0)), oldest))?.take(limit + 1) {
        let (key, value) = entry?;
        rows.push(checked_row(key.value(), value.value())?);
    }
    Ok(Slice::new(rows, after, limit))
}

pub(super) fn read_tally(
    table: &impl ReadableTable<RowKey<'static>, RowValue<'static>>,
    key: &Key,
) -> Result<Option<Row>, ReadError> {
    let place = at(key, descending(Timestamp::NEVER), id(MutatorId::TALLY));
    match table.get(place)? {
        Some(value) => checked_row(place, value.value()).map(Some),
        None => Ok(None),
    }
}

/// Reads a part of a key's rows, oldest first.
pub(super) fn read_part(
    table: &impl ReadableTable<RowKey<'static>, RowValue<'static>>,
    key: &Key,
    part: Part,
) -> Result<Vec<Row>, ReadError> {
    let newest = at(key, descending(part.through), 0);
    let oldest = match part.after {
        None => Included(at(key, u64::MAX, u128::MAX)),
        Some(after) => Excluded(at(key, descending(after), 0)),
    };
    let mut rows = Vec::new();
    for entry in table.range::<RowKey>((Included(newest), oldest))?.rev().take(part.limit) {
        let (key, value) = entry?;
        let mut row = checked_row(key.value(), value.value())?;
        if part.ids_only {
            row.state = Vec::new();
        }
        rows.push(row);
    }
    Ok(rows)
}

pub(super) fn read_chunk(
    table: &impl ReadableTable<RowKey<'static>, RowValue<'static>>,
    kind: Kind,
    group: &Name,
    from: &group::From,
) -> Result<Chunk, ReadError> {
    let rows_max = group_chunk_rows(kind);
    let (kind, group) = (kind.name(), group.as_str());
    let start = match from {
        // No name is empty, so this is before the first.
        group::From::Start => Included((kind, group, "", 0, 0)),
        group::From::At(name) => Included((kind, group, name.as_str(), 0, 0)),
        group::From::Behind(name) => Excluded((kind, group, name.as_str(), u64::MAX, u128::MAX)),
    };
    let mut rows: Vec<(Name, Row)> = Vec::new();
    let mut strays = Strays::default();
    for entry in table.range::<RowKey>((start, Unbounded))? {
        let (key, value) = entry?;
        let key = key.value();
        if (key.0, key.1) != (kind, group) {
            match strays.end(key, value.value()) {
                true => break,
                false => continue,
            }
        }
        strays.check()?;
        if rows.len() == rows_max {
            break;
        }
        let name = match rows.last() {
            Some((last, _)) if last.as_str() == key.2 => last.clone(),
            _ => checked_name(key, key.2)?,
        };
        rows.push((name, checked_row(key, value.value())?));
    }
    group::split(rows, rows_max).map_err(|error| ReadError::Row(error.to_string()))
}

/// Writes a shard's row: the greater timestamp wins, then the greater bytes.
pub(super) fn write_shard(
    table: &mut Table<'_, RowKey<'static>, RowValue<'static>>,
    write: &ShardWrite,
) -> Result<(), StorageError> {
    let row = at(write.key(), descending(write.expires_at()), id(write.mutator_id()));
    upsert(table, row, (write.timestamp().as_micros(), write.state()))
}

/// Removes a row if it is still as it was read.
pub(super) fn remove(
    table: &mut Table<'_, RowKey<'static>, RowValue<'static>>,
    key: &Key,
    row: &Row,
) -> Result<(), StorageError> {
    let place = at(key, descending(row.expires_at), id(row.mutator_id));
    let is_same = table.get(place)?.is_some_and(|found| found.value().1 == row.state.as_slice());
    if is_same {
        table.remove(place)?;
    }
    Ok(())
}

/// Removes rows, whatever they hold.
pub(super) fn remove_all(
    table: &mut Table<'_, RowKey<'static>, RowValue<'static>>,
    key: &Key,
    rows: &[(Timestamp, MutatorId)],
) -> Result<(), StorageError> {
    for (expires_at, mutator_id) in rows {
        table.remove(at(key, descending(*expires_at), id(*mutator_id)))?;
    }
    Ok(())
}

/// Returns the groups of a kind in order, without the first `passed` ones.
pub(super) fn groups(
    table: &impl ReadableTable<RowKey<'static>, RowValue<'static>>,
    kind: Kind,
    passed: usize,
    limit: usize,
) -> Result<Vec<Name>, ReadError> {
    let (mut groups, mut seen, mut start) = (Vec::new(), 0, String::new());
    while groups.len() < limit {
        let from: RowKey<'_> = (kind.name(), &start, "", 0, 0);
        let Some(group) = first(table, from, |key| key.0 == kind.name(), |key| key.1)? else {
            break;
        };
        seen += 1;
        // No group has control characters, so this comes directly after all rows of the group.
        start = format!("{group}\0");
        if seen > passed {
            groups.push(group);
        }
    }
    Ok(groups)
}

/// Rows of other groups or kinds with a wrong checksum. Such a row can be misplaced, and requested rows can
/// follow it. So only a row with a correct checksum ends the requested range.
#[derive(Default)]
struct Strays(Option<String>);

impl Strays {
    /// Whether the requested range ends at this row, which is outside of it.
    fn end(&mut self, key: RowKey<'_>, value: RowValue<'_>) -> bool {
        match check_row(key, value) {
            Ok(()) => true,
            Err(wrong) => {
                self.0.get_or_insert(wrong);
                false
            }
        }
    }

    /// Called when the requested range continues. Fails if a row before was misplaced.
    fn check(&self) -> Result<(), ReadError> {
        match &self.0 {
            None => Ok(()),
            Some(wrong) => Err(ReadError::Row(format!("misplaced {wrong}"))),
        }
    }
}

/// Returns the name in the first row at or after `from`, if that row is `inside` the range.
fn first(
    table: &impl ReadableTable<RowKey<'static>, RowValue<'static>>,
    from: RowKey<'_>,
    inside: impl Fn(RowKey<'_>) -> bool,
    name: impl for<'a> Fn(RowKey<'a>) -> &'a str,
) -> Result<Option<Name>, ReadError> {
    let mut strays = Strays::default();
    for entry in table.range::<RowKey>((Included(from), Unbounded))? {
        let (key, value) = entry?;
        let key = key.value();
        if inside(key) {
            strays.check()?;
            return checked_name(key, name(key)).map(Some);
        }
        if strays.end(key, value.value()) {
            break;
        }
    }
    Ok(None)
}

/// Counts the names of a group, up to `most`.
pub(super) fn count_names(
    table: &impl ReadableTable<RowKey<'static>, RowValue<'static>>,
    kind: Kind,
    group: &Name,
    most: usize,
) -> Result<usize, ReadError> {
    let (mut names, mut start) = (0, String::new());
    while names < most {
        let from: RowKey<'_> = (kind.name(), group.as_str(), &start, 0, 0);
        let inside = |key: RowKey<'_>| (key.0, key.1) == (kind.name(), group.as_str());
        let Some(name) = first(table, from, inside, |key| key.2)? else { break };
        names += 1;
        // As with groups, this comes directly after all rows of the name.
        start = format!("{name}\0");
    }
    Ok(names)
}

/// Passes every key with all its rows to `take`. Keys and rows are in the table's order.
pub(super) fn each_key(
    table: &impl ReadableTable<RowKey<'static>, RowValue<'static>>,
    mut take: impl FnMut(&Key, Vec<Written>) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let mut last: Option<(Key, Vec<Written>)> = None;
    for entry in table.range::<RowKey>(..)? {
        let (at, value) = entry?;
        let (at, value) = (at.value(), value.value());
        let row = checked_row(at, value)?;
        let written = Written { row, at: Timestamp::from_micros(value.0) };
        match &mut last {
            Some((key, rows)) if is_key_of(key, at) => rows.push(written),
            _ => {
                let newer = || corrupt(at, "its kind belongs to a newer release");
                let key = checked_key(at)?.ok_or_else(newer)?;
                if let Some((key, rows)) = last.replace((key, vec![written])) {
                    take(&key, rows)?;
                }
            }
        }
    }
    last.map_or(Ok(()), |(key, rows)| take(&key, rows))
}

/// Writes a row at an empty place.
pub(super) fn insert(
    table: &mut Table<'_, RowKey<'static>, RowValue<'static>>,
    key: &Key,
    Written { row, at: written_at }: &Written,
) -> Result<(), StorageError> {
    let place = at(key, descending(row.expires_at), id(row.mutator_id));
    table.insert(place, (written_at.as_micros(), row.state.as_slice())).map(drop)
}

/// Executes a fold: writes the tally's row, and deletes all rows at or below the fence that were written at
/// or before the timestamp of the deletion. The transaction makes both one change.
pub(super) fn write_fold(
    table: &mut Table<'_, RowKey<'static>, RowValue<'static>>,
    fold: &Fold,
) -> Result<(), StorageError> {
    let tally = at(fold.key(), descending(Timestamp::NEVER), id(MutatorId::TALLY));
    let timestamp_us = fold.timestamp().as_micros();
    upsert(table, tally, (fold.tally_timestamp().as_micros(), fold.tally()))?;
    let newest = at(fold.key(), descending(fold.fence()), 0);
    let oldest = at(fold.key(), u64::MAX, u128::MAX);
    table.retain_in::<RowKey, _>(newest..=oldest, |_, (written_us, _)| written_us > timestamp_us)
}

fn upsert(
    table: &mut Table<'_, RowKey<'static>, RowValue<'static>>,
    key: RowKey<'_>,
    value: RowValue<'_>,
) -> Result<(), StorageError> {
    if table.get(key)?.is_none_or(|stored| stored.value() < value) {
        table.insert(key, value)?;
    }
    Ok(())
}

/// The position of a sweep between two steps.
#[derive(Debug)]
pub(super) struct SweepCursor {
    nominator: Nominator,
    last: Option<Passed>,
}

/// The last row that a sweep passed.
#[derive(Debug)]
struct Passed {
    kind: String,
    group: String,
    name: String,
    descending: u64,
    id: u128,
    /// `None` for a kind of a newer release: only that release can fold it.
    key: Option<Key>,
}

/// The cursor for the next step, or the largest group if the table has ended.
pub(super) type Then = ControlFlow<Option<GroupSize>, SweepCursor>;

impl SweepCursor {
    pub(super) fn new(nominator: Nominator) -> SweepCursor {
        SweepCursor { nominator, last: None }
    }

    /// Scans up to [`SWEEP_STEP_ROWS`] primary keys, and returns the nominated keys. Rows that change between
    /// steps do no harm: a nomination promises nothing.
    pub(super) fn step(
        mut self,
        table: &impl ReadableTable<RowKey<'static>, RowValue<'static>>,
    ) -> Result<(Vec<Nomination>, Then), ReadError> {
        let mut nominated = Vec::new();
        let mut passed = 0;
        // The range borrows its start, which the loop replaces.
        let before = self.last.take();
        let start = match &before {
            None => Unbounded,
            Some(row) => Excluded((&*row.kind, &*row.group, &*row.name, row.descending, row.id)),
        };
        let rows = table.range::<RowKey>((start, Unbounded))?;
        let mut key = before.as_ref().and_then(|row| row.key.clone());
        for entry in rows {
            let (row, value) = entry?;
            let row = row.value();
            if !key.as_ref().is_some_and(|key| is_key_of(key, row)) {
                key = checked_key(row)?;
            }
            if let Some(key) = &key {
                let expires_at = ascending(row.3);
                nominated.extend(self.nominator.pass(key.clone(), expires_at));
                if expires_at == Timestamp::NEVER {
                    self.nominator.look_at(value.value().1);
                }
            }
            passed += 1;
            if passed == SWEEP_STEP_ROWS {
                let (kind, group, name) = (row.0.into(), row.1.into(), row.2.into());
                self.last = Some(Passed { kind, group, name, descending: row.3, id: row.4, key });
                return Ok((nominated, ControlFlow::Continue(self)));
            }
        }
        let (last, largest) = self.nominator.finish();
        nominated.extend(last);
        Ok((nominated, ControlFlow::Break(largest)))
    }
}

fn is_key_of(key: &Key, row: RowKey<'_>) -> bool {
    (key.kind.name(), key.group.as_str(), key.name.as_str()) == (row.0, row.1, row.2)
}

fn at(key: &Key, descending: u64, id: u128) -> RowKey<'_> {
    (key.kind.name(), key.group.as_str(), key.name.as_str(), descending, id)
}

fn id(id: MutatorId) -> u128 {
    id.as_uuid().as_u128()
}

/// Maps later times to lower numbers, so that the tally comes first.
fn descending(time: Timestamp) -> u64 {
    !(time.as_micros().cast_unsigned() ^ (1 << 63))
}

fn ascending(descending: u64) -> Timestamp {
    Timestamp::from_micros((!descending ^ (1 << 63)).cast_signed())
}

/// Returns the row if it keeps the rules for all rows: only the tally never expires and has the nil id, and
/// every row was written before it expires.
fn checked_row(key: RowKey<'_>, (timestamp_us, state): RowValue<'_>) -> Result<Row, ReadError> {
    let (expires_at, mutator_id) = (ascending(key.3), MutatorId::new(Uuid::from_u128(key.4)));
    let row = Row { expires_at, mutator_id, state: state.to_vec() };
    if row.is_tally() != (mutator_id == MutatorId::TALLY) {
        return Err(corrupt(key, "only the tally has no expiry and no mutator"));
    }
    if timestamp_us >= expires_at.as_micros() {
        return Err(corrupt(key, "it was written after its expiry"));
    }
    Ok(row)
}

/// Checks whether a row is at the address where it was written. A damaged address must not look like the end
/// of a group, or like a group that never existed.
pub(super) fn check_row(key: RowKey<'_>, (_, state): RowValue<'_>) -> Result<(), String> {
    let id = MutatorId::new(Uuid::from_u128(key.4));
    let seal = KeySeal::of_parts(key.0, key.1, key.2).row(ascending(key.3), id);
    seal.check(state).map_err(|error| named(key, &error.to_string()))
}

fn checked_key(row: RowKey<'_>) -> Result<Option<Key>, ReadError> {
    let Some(kind) = Kind::from_name(row.0) else { return Ok(None) };
    Ok(Some(Key { kind, group: checked_name(row, row.1)?, name: checked_name(row, row.2)? }))
}

fn checked_name(row: RowKey<'_>, text: &str) -> Result<Name, ReadError> {
    Name::new(text).map_err(|error| corrupt(row, &format!("{text:?} {error}")))
}

fn corrupt(key: RowKey<'_>, what: &str) -> ReadError {
    ReadError::Row(named(key, what))
}

/// The row's address, followed by what is wrong.
fn named(key: RowKey<'_>, what: &str) -> String {
    format!(
        "row (expires_at {}, mutator {}) of {}/{}/{}: {what}",
        ascending(key.3).as_micros(),
        Uuid::from_u128(key.4),
        key.0,
        key.1,
        key.2
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use orderfree_core::crdt::State;
    use orderfree_core::crdt::envelope::encode_shard;

    #[test]
    fn later_expiries_come_first_and_the_tally_before_all() {
        let times = [i64::MAX, i64::MAX - 1, 1, 0, -1, i64::MIN].map(Timestamp::from_micros);
        assert_eq!(descending(Timestamp::NEVER), 0);
        assert!(times.windows(2).all(|pair| descending(pair[0]) < descending(pair[1])));
        assert!(times.iter().all(|&time| ascending(descending(time)) == time));
    }

    /// One flipped bit in a row's address once made the 979 of 1,000 keys after it invisible.
    #[test]
    fn only_a_row_with_a_right_checksum_ends_a_page() {
        let id = MutatorId::new(Uuid::from_u128(7));
        let seal = KeySeal::of_parts("counter", "h", "n").row(Timestamp::from_micros(9), id);
        let state = encode_shard(seal, &State::identity(Kind::Counter), 1);
        let key = |group| ("counter", group, "n", descending(Timestamp::from_micros(9)), 7);
        let mut strays = Strays::default();
        assert!(strays.end(key("h"), (8, &state)), "another group begins here");
        assert!(strays.check().is_ok());
        assert!(!strays.end(key("i"), (8, &state)), "this is not its place");
        match strays.check() {
            Err(ReadError::Row(text)) => assert!(text.contains("misplaced row"), "{text}"),
            other => panic!("the range continues after it: {other:?}"),
        }
        assert!(strays.end(key("h"), (8, &state)), "nothing came between");
    }

    #[test]
    fn a_row_that_breaks_a_rule_is_named() {
        let row = |expires_at: i64, id, timestamp_us| {
            let key = ("counter", "g", "n", descending(Timestamp::from_micros(expires_at)), id);
            checked_row(key, (timestamp_us, b"s"))
        };
        assert!(row(9, 1, 8).is_ok());
        assert!(row(i64::MAX, 0, 8).is_ok());
        for broken in [row(9, 1, 9), row(9, 0, 8), row(i64::MAX, 1, 8)] {
            match broken {
                Err(ReadError::Row(text)) => assert!(text.contains("of counter/g/n: "), "{text}"),
                other => panic!("{other:?}"),
            }
        }
    }
}
