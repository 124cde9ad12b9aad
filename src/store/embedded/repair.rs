//! Makes a copy of a file without the effects of a wrong clock.
//!
//! If a clock was ahead once, for one update, the file remembers its time. Then every later write is refused
//! until the right clock has caught up (`guard.rs`). The file also has rows that only the [core's
//! repair](orderfree_core::protocol::repair) can correct. The original file does not change, in case the
//! other clock turns out to be right.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use orderfree_core::protocol::repair::{Repair, Report, Written};
use orderfree_core::protocol::reset::LogRow;
use orderfree_core::protocol::{Constants, Key, Timestamp};
use redb::{Database, ReadableDatabase};
use thiserror::Error;

use super::file::{self, OpenError, Opened};
use super::guard::{ClockGuard, Highest};
use super::resets;
use super::rows::{self, ReadError, SHARDS};
use crate::runtime::random::Random;
use crate::store::Receipt;

/// A time before the first release. A clock that shows an earlier time was never set, and would make all rows
/// new.
const CLOCK_LEAST: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// The contents of a file that are ahead of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The latest time that the file remembers. `None` if it is not ahead.
    pub remembered: Option<Timestamp>,
    /// What the rows contain, and how the repair changes them.
    pub report: Report,
}

/// Why no copy was made.
#[derive(Debug, Error)]
pub enum RepairError {
    #[error(transparent)]
    Open(#[from] OpenError),
    /// This machine's clock is certainly wrong.
    #[error("this machine's clock shows a time before the end of 2023; correct the clock first")]
    Clock,
    /// A file with the copy's name exists.
    #[error("{copy} exists already; choose another name for the copy")]
    Exists { copy: String },
    /// Some rows are invalid.
    #[error("{file} can't be repaired: {reason}; restore it from a backup")]
    Damaged { file: String, reason: String },
    #[error("{copy} can't be written ({reason}); check its folder and the disk")]
    Copy {
        copy: String,
        /// From the operating system or redb.
        reason: String,
    },
}

/// Makes a repaired copy. Makes none and returns `None` if nothing is ahead of the clock `now`. Blocks for
/// the time of reading the file four times.
pub fn repair(
    file: &Path,
    copy: &Path,
    now: Timestamp,
    constants: Constants,
) -> Result<Option<Found>, RepairError> {
    if now < CLOCK_LEAST {
        return Err(RepairError::Clock);
    }
    let (name, copy_name) = (|| file.display().to_string(), || copy.display().to_string());
    // This also finds a broken link.
    if copy.symlink_metadata().is_ok() {
        return Err(RepairError::Exists { copy: copy_name() });
    }
    let opened = file::open(file, &Arc::default())?;
    let damaged = |reason: String| RepairError::Damaged { file: name(), reason };
    if opened.contents.broken_rows > 0 {
        return Err(damaged(format!("{} of its rows are damaged", opened.contents.broken_rows)));
    }
    let (database, highest) = (&opened.database, opened.highest);
    let read_failed = |error| match error {
        ReadError::Row(what) => damaged(what),
        ReadError::File(error) => damaged(error.to_string()),
    };
    // First only read: if nothing is wrong, write nothing.
    let report = each_key(database, now, constants, |_, _| Ok(())).map_err(read_failed)?;
    let found = Found { remembered: remembered(highest, now, constants), report };
    if found.remembered.is_none() && report.keys == 0 {
        return Ok(None);
    }
    let copy_failed = |reason: String| RepairError::Copy { copy: copy_name(), reason };
    let linked = file::create(copy, |new| write(&opened, new, now, constants));
    let linked = linked.map_err(|error| copy_failed(error.to_string()))?;
    let finished = linked.and_then(|()| {
        fs::set_permissions(copy, fs::metadata(file)?.permissions())?;
        file::sync_folder(file::folder_of(copy))
    });
    finished.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => RepairError::Exists { copy: copy_name() },
        _ => copy_failed(error.to_string()),
    })?;
    Ok(Some(found))
}

/// The latest time that the file remembers, if that time would make a pod refuse updates, or start with a
/// stamp for last-writer-wins ops that is ahead.
fn remembered(highest: Highest, now: Timestamp, constants: Constants) -> Option<Timestamp> {
    let Highest { wall, fence, stamp } = highest;
    let is_refused = ClockGuard::new(constants, highest).check(now).is_err();
    let is_ahead = is_refused || Repair::new(now, constants).is_ahead(stamp);
    is_ahead.then(|| wall.max(fence).max(stamp))
}

fn of_file(error: ReadError) -> redb::Error {
    match error {
        ReadError::Row(what) => redb::Error::Corrupted(what),
        ReadError::File(error) => error,
    }
}

/// Writes all repaired rows, and the highest times for the guard.
fn write(
    opened: &Opened,
    copy: &Database,
    now: Timestamp,
    constants: Constants,
) -> Result<(), redb::Error> {
    file::create_tables(copy)?;
    let transaction = copy.begin_write()?;
    let report = {
        let mut table = transaction.open_table(SHARDS)?;
        let written = each_key(&opened.database, now, constants, |key, rows| {
            rows.iter().try_for_each(|row| rows::insert(&mut table, key, row)).map_err(Into::into)
        });
        written.map_err(of_file)?
    };
    // The tallies of resets ahead of the clock are gone.
    let is_ahead = |row: &LogRow| Repair::new(now, constants).is_ahead(row.generation.time());
    let is_kept = |row: &&LogRow| !is_ahead(row) && resets::is_needed(row.until, now);
    for row in opened.resets.iter().filter(is_kept) {
        let partition = (row.kind, &row.group);
        let found = resets::read_receipt(&opened.database, partition, row.generation, row.id);
        let (_, receipt) =
            found.map_err(of_file)?.unwrap_or_else(|| (row.clone(), Receipt::default()));
        resets::write(&transaction, row, &receipt)?;
    }
    let fence = report.fence.unwrap_or(Highest::NONE.fence);
    let stamp = report.stamp.unwrap_or(Highest::NONE.stamp);
    file::write_highest(&transaction, Highest { wall: now, fence, stamp })?;
    Ok(transaction.commit()?)
}

/// Passes the repaired rows of each key to `take`.
fn each_key(
    database: &Database,
    now: Timestamp,
    constants: Constants,
    mut take: impl FnMut(&Key, Vec<Written>) -> Result<(), ReadError>,
) -> Result<Report, ReadError> {
    let table = database.begin_read()?.open_table(SHARDS)?;
    let (mut repair, random) = (Repair::new(now, constants), Random::system());
    rows::each_key(&table, |key, rows| {
        let repaired = repair.key(key, rows, random.mutator_id());
        take(key, repaired.map_err(|error| ReadError::Row(format!("{key}: {error}")))?)
    })?;
    Ok(*repair.report())
}
