//! The log of resets in the file. One process has the file, so it reads the log once, when it opens the file. Each
//! row is written in the transaction of its reset's markers: a reset that is not in the log did not happen.

use std::time::Duration;

use orderfree_core::crdt::Kind;
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::reset::LogRow;
use orderfree_core::protocol::{Name, Timestamp};
use redb::{
    Database, ReadOnlyTable, ReadableDatabase, ReadableTable, TableDefinition, TableError,
    WriteTransaction,
};
use uuid::Uuid;

use super::rows::ReadError;
use crate::store::{BETWEEN_NAMES, RESET_KEPT_FOR, Receipt, joined};

/// Kind, group, generation in µs, id.
type ResetKey<'a> = (&'a str, &'a str, i64, u128);

/// Until when it is remembered, the names, whether they are deleted, and what was cleared.
type ResetValue<'a> = (i64, &'a str, bool, Option<&'a [u8]>);

/// A file without it has no resets.
const RESETS: TableDefinition<'static, ResetKey<'static>, ResetValue<'static>> =
    TableDefinition::new("resets");

/// How often rows that are no longer needed are looked for.
pub(super) const PRUNE_EVERY: Duration = Duration::from_secs(3600);

/// Whether a row is needed at this time, by pods or by its client.
pub(super) fn is_needed(until: Timestamp, now: Timestamp) -> bool {
    until >= now.minus(RESET_KEPT_FOR)
}

/// Removes the rows that are no longer needed at this time.
pub(super) fn prune(transaction: &WriteTransaction, now: Timestamp) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(RESETS)?;
    table.retain(|_, (until_us, ..)| is_needed(Timestamp::from_micros(until_us), now))?;
    Ok(())
}

/// Writes a row.
pub(super) fn write(
    transaction: &WriteTransaction,
    row: &LogRow,
    receipt: &Receipt,
) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(RESETS)?;
    let key = place((row.kind, &row.group), row.generation, row.id);
    let names = joined(&row.names);
    // What the receipt lacks stays.
    let stored = table.get(key)?.and_then(|value| value.value().3.map(<[u8]>::to_vec));
    let (until_us, cleared) = (row.until.as_micros(), receipt.cleared.as_deref());
    let value = (until_us, names.as_str(), row.is_deletion, cleared.or(stored.as_deref()));
    table.insert(key, value)?;
    Ok(())
}

fn place((kind, group): (Kind, &Name), generation: Generation, id: Uuid) -> ResetKey<'_> {
    (kind.name(), group.as_str(), generation.time().as_micros(), id.as_u128())
}

/// None in a file without resets.
fn open(
    database: &Database,
) -> Result<Option<ReadOnlyTable<ResetKey<'static>, ResetValue<'static>>>, ReadError> {
    match database.begin_read()?.open_table(RESETS) {
        Ok(table) => Ok(Some(table)),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads all rows of the log.
pub(super) fn read(database: &Database) -> Result<Vec<LogRow>, ReadError> {
    let mut rows = Vec::new();
    let Some(table) = open(database)? else { return Ok(rows) };
    for entry in table.range::<ResetKey>(..)? {
        let (key, value) = entry?;
        rows.extend(row(key.value(), value.value())?.map(|(row, _)| row));
    }
    Ok(rows)
}

/// Reads a row with what was cleared.
pub(super) fn read_receipt(
    database: &Database,
    group: (Kind, &Name),
    generation: Generation,
    id: Uuid,
) -> Result<Option<(LogRow, Receipt)>, ReadError> {
    let Some(table) = open(database)? else { return Ok(None) };
    let key = place(group, generation, id);
    match table.get(key)? {
        None => Ok(None),
        Some(value) => row(key, value.value()),
    }
}

/// None for a kind of a newer release.
fn row(
    (kind, group, generation_us, id): ResetKey<'_>,
    (until_us, names, is_deletion, cleared): ResetValue<'_>,
) -> Result<Option<(LogRow, Receipt)>, ReadError> {
    let Some(kind) = Kind::from_name(kind) else { return Ok(None) };
    let name = |text: &str| {
        let wrong = |error| ReadError::Row(format!("the log of resets has {text:?}: {error}"));
        Name::new(text).map_err(wrong)
    };
    let row = LogRow {
        id: Uuid::from_u128(id),
        kind,
        group: name(group)?,
        names: names.split(BETWEEN_NAMES).map(name).collect::<Result<_, _>>()?,
        generation: Generation::at(Timestamp::from_micros(generation_us)),
        until: Timestamp::from_micros(until_us),
        is_deletion,
    };
    let cleared = cleared.map(<[u8]>::to_vec);
    Ok(Some((row, Receipt { cleared, done: Some(true) })))
}
