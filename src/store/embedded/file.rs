//! Opens the file. Checks that it is an Orderfree file, in a format that this release knows, and not in use.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orderfree_core::protocol::Timestamp;
use orderfree_core::protocol::reset::LogRow;
use redb::backends::FileBackend;
use redb::{
    Builder, Database, ReadableDatabase, StorageBackend, TableDefinition, TableHandle,
    WriteTransaction,
};
use thiserror::Error;
use uuid::Uuid;

use super::guard::Highest;
use super::resets;
use super::rows::{ReadError, SHARDS};
use super::verify::{self, Contents, Counted, Progress};
use crate::limits::EMBEDDED_CACHE_BYTES;
use crate::runtime::panics;

/// The layout of the tables and of their contents. A release opens only its own format.
const FORMAT: i64 = 2;

/// Numbers about the file.
const META: TableDefinition<'static, &'static str, i64> = TableDefinition::new("meta");
const META_FORMAT: &str = "format";
const META_WALL: &str = "highest_wall_us";
const META_FENCE: &str = "highest_fence_us";
const META_STAMP: &str = "highest_stamp_us";

/// Why a file could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process, or another store in this process, has the file open.
    #[error("{file} is in use by another process; stop that process or choose another file")]
    Locked { file: String },
    #[error("{file} can't be created: its folder does not exist; create the folder first")]
    FolderMissing { file: String },
    /// The file has other contents.
    #[error("{file} is not an Orderfree file; choose another one")]
    NotOrderfree { file: String },
    /// The file is empty: another program created it, or its contents are lost.
    #[error(
        "{file} is empty, and a store's file never is; restore it from a backup, or delete it to start a \
         new store"
    )]
    Empty { file: String },
    /// Another release wrote it.
    #[error(
        "{file} has format {found}, and this release reads only format {FORMAT}; use the release that \
         wrote the file"
    )]
    OtherFormat { file: String, found: i64 },
    #[error("{file} is damaged ({reason}); restore it from a backup")]
    Corrupt { file: String, reason: String },
    /// The operating system refused.
    #[error("{file} can't be opened ({reason}); check its path and permissions, and the disk")]
    Io {
        file: String,
        /// From the operating system.
        reason: String,
    },
}

/// A file that was opened and verified.
pub(super) struct Opened {
    pub(super) database: Database,
    pub(super) highest: Highest,
    pub(super) contents: Contents,
    pub(super) resets: Vec<LogRow>,
}

/// Opens or creates the file, and verifies it.
pub(super) fn open(path: &Path, progress: &Arc<Progress>) -> Result<Opened, OpenError> {
    let file = path.display().to_string();
    let io_failed =
        |error: io::Error| OpenError::Io { file: file.clone(), reason: error.to_string() };
    let folder = folder_of(path);
    if !folder.is_dir() {
        return Err(OpenError::FolderMissing { file });
    }
    let is_new = !path.exists();
    if is_new {
        // If the file system has no links, or the file exists by now, opening continues without it.
        let _ = create(path, |_| Ok(())).map_err(|error| failed(&file, error))?;
    }
    let handle = OpenOptions::new().read(true).write(true).open(path).map_err(io_failed)?;
    let bytes = handle.metadata().map_err(io_failed)?.len();
    if bytes == 0 {
        return Err(OpenError::Empty { file });
    }
    progress.begin(bytes);
    let inner = FileBackend::new(handle).map_err(|error| failed(&file, error.into()))?;
    let opened = open_backend(&file, Counted { inner, progress: Arc::clone(progress) }, progress)?;
    // A new file can be missing after a power cut unless its folder was synced too. Sync it at every opening:
    // the process that created the file can have died before its sync.
    sync_folder(folder).map_err(io_failed)?;
    Ok(Opened { contents: Contents { is_new, ..opened.contents }, ..opened })
}

pub(super) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Creates a new file, first under another name: a process that dies while redb creates the file, or while
/// `fill` writes to it, would leave an incomplete file. Unlike a rename, a link does not replace a file that
/// another process has created since. Returns the result of the link.
pub(super) fn create(
    path: &Path,
    fill: impl FnOnce(&Database) -> Result<(), redb::Error>,
) -> Result<io::Result<()>, redb::Error> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.new", Uuid::new_v4()));
    let new = Path::new(&name);
    let made = Builder::new().set_cache_size(EMBEDDED_CACHE_BYTES).create(new);
    let filled = made.map_err(redb::Error::from).and_then(|database| fill(&database));
    let linked = filled.map(|()| fs::hard_link(new, path));
    // If this fails, a useless file stays.
    let _ = fs::remove_file(new);
    linked
}

/// Opens the database of a backend, and verifies it.
pub(super) fn open_backend(
    file: &str,
    backend: impl StorageBackend,
    progress: &Arc<Progress>,
) -> Result<Opened, OpenError> {
    let open = || {
        let repaired = Arc::new(AtomicBool::new(false));
        let mut database = builder(file, &repaired)
            .create_with_backend(backend)
            .map_err(|error| failed(file, error.into()))?;
        // First: a foreign file needs no verification.
        let highest = prepare(file, &database)?;
        // A repair has already checked every page.
        if !repaired.load(Ordering::Relaxed) {
            verify::pages(file, &mut database).map_err(|error| failed(file, error.into()))?;
        }
        let contents = verify::rows(&database, progress).map_err(|error| failed(file, error))?;
        let resets = resets::read(&database).map_err(|error| match error {
            ReadError::Row(reason) => OpenError::Corrupt { file: file.to_owned(), reason },
            ReadError::File(error) => failed(file, error),
        })?;
        Ok(Opened { database, highest, contents, resets })
    };
    // redb panics in many places if the file is damaged. The database is dropped then.
    let opened = verify::telling(file, progress, || panics::caught(open));
    opened.unwrap_or_else(|reason| Err(OpenError::Corrupt { file: file.to_owned(), reason }))
}

fn builder(file: &str, repaired: &Arc<AtomicBool>) -> Builder {
    let mut builder = Builder::new();
    let (file, repaired) = (file.to_owned(), Arc::clone(repaired));
    builder.set_cache_size(EMBEDDED_CACHE_BYTES).set_repair_callback(move |repair| {
        repaired.store(true, Ordering::Relaxed);
        let percent = 100.0 * repair.progress();
        tracing::warn!("{file} was not closed properly; checking it: {percent:.0} %");
    });
    builder
}

/// Creates the tables of a new file, or checks the tables of an existing file. This does not write to an
/// existing file, so it opens on a full disk too.
fn prepare(file: &str, database: &Database) -> Result<Highest, OpenError> {
    let failed = |error| failed(file, error);
    match read_meta(database).map_err(failed)? {
        Meta::New => create_tables(database).map(|()| Highest::NONE).map_err(failed),
        Meta::Foreign => Err(OpenError::NotOrderfree { file: file.to_owned() }),
        Meta::Known { format: FORMAT, highest } => Ok(highest),
        Meta::Known { format: found, .. } => {
            Err(OpenError::OtherFormat { file: file.to_owned(), found })
        }
    }
}

pub(super) fn create_tables(database: &Database) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(META)?.insert(META_FORMAT, FORMAT)?;
    transaction.open_table(SHARDS)?;
    Ok(transaction.commit()?)
}

/// Writes the highest times seen, in the same transaction as the writes at these times.
pub(super) fn write_highest(
    transaction: &WriteTransaction,
    highest: Highest,
) -> Result<(), redb::Error> {
    let mut meta = transaction.open_table(META)?;
    meta.insert(META_WALL, highest.wall.as_micros())?;
    meta.insert(META_FENCE, highest.fence.as_micros())?;
    meta.insert(META_STAMP, highest.stamp.as_micros())?;
    Ok(())
}

enum Meta {
    New,
    Foreign,
    Known { format: i64, highest: Highest },
}

fn read_meta(database: &Database) -> Result<Meta, redb::Error> {
    let transaction = database.begin_read()?;
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
    let stamp = time(read(META_STAMP)?, Highest::NONE.stamp);
    Ok(Meta::Known { format, highest: Highest { wall, fence, stamp } })
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
