//! Opening the file: is it ours, of a format that this release knows, and not in use?

use std::fs::{self, File};
use std::io;
use std::path::Path;

use orderfree_core::protocol::Timestamp;
use redb::WriteTransaction;
use redb::{
    Builder, Database, DatabaseError, ReadableTable, StorageBackend, TableDefinition, TableHandle,
};
use thiserror::Error;
use uuid::Uuid;

use super::guard::Highest;
use super::rows::SHARDS;
use crate::limits::EMBEDDED_CACHE_BYTES;

/// The layout of the tables. A release opens its own format only.
const FORMAT: i64 = 1;

/// Numbers about the file itself.
const META: TableDefinition<'static, &'static str, i64> = TableDefinition::new("meta");
const META_FORMAT: &str = "format";
const META_WALL: &str = "highest_wall_us";
const META_FENCE: &str = "highest_fence_us";

/// Why a file could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process, or another store of this one, has it open.
    #[error("{file} is in use by another process; stop that one or choose another file")]
    Locked {
        /// The file.
        file: String,
    },
    /// The folder of the file does not exist.
    #[error("{file} can't be created: its folder does not exist; create it first")]
    FolderMissing {
        /// The file.
        file: String,
    },
    /// The file holds something else.
    #[error("{file} is not an Orderfree file; choose another one")]
    NotOrderfree {
        /// The file.
        file: String,
    },
    /// A later release wrote it.
    #[error("{file} has format {found}, this release knows format {FORMAT}; use a newer release")]
    NewerFormat {
        /// The file.
        file: String,
        /// Its format.
        found: i64,
    },
    /// The file is damaged.
    #[error("{file} is damaged ({reason}); restore it from a backup")]
    Corrupt {
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// The system refused.
    #[error("{file} can't be opened: {reason}")]
    Io {
        /// The file.
        file: String,
        /// The system's reason.
        reason: String,
    },
}

/// Opens or creates the file.
pub(super) fn open(path: &Path) -> Result<Database, OpenError> {
    let file = path.display().to_string();
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        return Err(OpenError::FolderMissing { file });
    }
    if !path.exists() {
        create(path).map_err(|error| failed(&file, error.into()))?;
    }
    let database = builder(&file).create(path).map_err(|error| failed(&file, error.into()))?;
    // A new file is not there after a power cut unless its folder was synced as well. Always, since
    // the process that created it may have died before.
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| OpenError::Io { file, reason: error.to_string() })?;
    Ok(database)
}

/// Makes a new file under another name first: a process that dies while redb lays it out would
/// leave something that is no file of ours. A link, unlike a rename, replaces no file that another
/// process made meanwhile.
fn create(path: &Path) -> Result<(), DatabaseError> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.new", Uuid::new_v4()));
    let new = Path::new(&name);
    let made = Builder::new().create(new).map(drop);
    if made.is_ok() {
        // Where there are no links, or the file is there by now, the caller goes on without.
        let _ = fs::hard_link(new, path);
    }
    // If it fails, a useless small file stays.
    let _ = fs::remove_file(new);
    made
}

/// Opens whatever a backend holds.
pub(super) fn open_backend(
    file: &str,
    backend: impl StorageBackend,
) -> Result<Database, OpenError> {
    builder(file).create_with_backend(backend).map_err(|error| failed(file, error.into()))
}

fn builder(file: &str) -> Builder {
    let mut builder = Builder::new();
    let file = file.to_owned();
    builder.set_cache_size(EMBEDDED_CACHE_BYTES).set_repair_callback(move |repair| {
        let percent = 100.0 * repair.progress();
        tracing::warn!("{file} was not closed properly; checking it: {percent:.0} %");
    });
    builder
}

/// Creates the tables of a new file, or checks those of an old one, and notes the time.
pub(super) fn prepare(
    file: &str,
    database: &Database,
    now: Timestamp,
) -> Result<Highest, OpenError> {
    let failed = |error| failed(file, error);
    let transaction = database.begin_write().map_err(|error| failed(error.into()))?;
    let highest = match read_meta(&transaction).map_err(failed)? {
        Meta::New => Highest::NONE,
        Meta::Foreign => return Err(OpenError::NotOrderfree { file: file.to_owned() }),
        Meta::Known { format: FORMAT, highest } => highest,
        Meta::Known { format: found, .. } if found > FORMAT => {
            return Err(OpenError::NewerFormat { file: file.to_owned(), found });
        }
        Meta::Known { format, .. } => {
            let reason = format!("there never was a format {format}");
            return Err(OpenError::Corrupt { file: file.to_owned(), reason });
        }
    };
    let highest = Highest { wall: highest.wall.max(now), ..highest };
    let create = || -> Result<(), redb::Error> {
        transaction.open_table(META)?.insert(META_FORMAT, FORMAT)?;
        transaction.open_table(SHARDS)?;
        write_highest(&transaction, highest)
    };
    create().map_err(failed)?;
    transaction.commit().map_err(|error| failed(error.into()))?;
    Ok(highest)
}

/// Writes the highest times seen, in the transaction of whatever was done at them.
pub(super) fn write_highest(
    transaction: &WriteTransaction,
    highest: Highest,
) -> Result<(), redb::Error> {
    let mut meta = transaction.open_table(META)?;
    meta.insert(META_WALL, highest.wall.as_micros())?;
    meta.insert(META_FENCE, highest.fence.as_micros())?;
    Ok(())
}

enum Meta {
    New,
    Foreign,
    Known { format: i64, highest: Highest },
}

fn read_meta(transaction: &WriteTransaction) -> Result<Meta, redb::Error> {
    let names: Vec<String> =
        transaction.list_tables()?.map(|table| table.name().to_owned()).collect();
    if names.is_empty() && transaction.list_multimap_tables()?.next().is_none() {
        return Ok(Meta::New);
    }
    if !names.iter().any(|name| name == META.name()) {
        return Ok(Meta::Foreign);
    }
    let meta = transaction.open_table(META)?;
    let read =
        |key| -> Result<Option<i64>, redb::Error> { Ok(meta.get(key)?.map(|value| value.value())) };
    let Some(format) = read(META_FORMAT)? else { return Ok(Meta::Foreign) };
    let time = |stored: Option<i64>, none| stored.map_or(none, Timestamp::from_micros);
    let wall = time(read(META_WALL)?, Highest::NONE.wall);
    let fence = time(read(META_FENCE)?, Highest::NONE.fence);
    Ok(Meta::Known { format, highest: Highest { wall, fence } })
}

fn failed(file: &str, error: redb::Error) -> OpenError {
    let file = file.to_owned();
    match error {
        redb::Error::DatabaseAlreadyOpen => OpenError::Locked { file },
        // No magic number, or tables of other types.
        redb::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
            OpenError::NotOrderfree { file }
        }
        redb::Error::TableTypeMismatch { .. }
        | redb::Error::TableIsMultimap(_)
        | redb::Error::TypeDefinitionChanged { .. }
        | redb::Error::UpgradeRequired(_) => OpenError::NotOrderfree { file },
        redb::Error::Corrupted(reason) => OpenError::Corrupt { file, reason },
        other => OpenError::Io { file, reason: other.to_string() },
    }
}
