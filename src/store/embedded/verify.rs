//! Verifies the file when it is opened: the checksum of every page, then of every row.
//!
//! redb does not check pages while it reads, so one flipped bit could hide rows or show them under another
//! key. A verified file can still decay on the disk. Then the checksum of a row, which covers its address,
//! detects damage of that row.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use redb::{
    BackendError, Database, DatabaseError, ReadableDatabase, ReadableTableMetadata, StorageBackend,
};

use super::rows::{self, RowKey, SHARDS};

/// How often the log shows the progress.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// The progress of a file's verification. A starting pod shows it in its answers.
#[derive(Debug, Default)]
pub struct Progress {
    bytes: AtomicU64,
    bytes_read: AtomicU64,
    rows: AtomicU64,
    rows_read: AtomicU64,
}

/// The contents of a verified file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Contents {
    pub is_new: bool,
    /// Number of keys with a row.
    pub keys: u64,
    /// Rows with a wrong checksum on a page with a correct one. Their keys can't be read.
    pub broken_rows: u64,
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_new {
            true => f.write_str("the file is new"),
            false => write!(f, "the file holds {} keys", self.keys),
        }
    }
}

impl Progress {
    pub(super) fn begin(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let percent = |part, all: u64| (100 * load(part)).checked_div(all).unwrap_or(0).min(99);
        let (bytes, rows) = (load(&self.bytes), load(&self.rows));
        match rows {
            0 => write!(f, "{} % of {} MiB", percent(&self.bytes_read, bytes), bytes >> 20),
            _ => write!(f, "{} % of {rows} rows", percent(&self.rows_read, rows)),
        }
    }
}

/// Runs `verify` and logs its progress if it takes long.
pub(super) fn telling<T>(file: &str, progress: &Arc<Progress>, verify: impl FnOnce() -> T) -> T {
    let done = Arc::new(());
    let (still, told, file) = (Arc::downgrade(&done), Arc::clone(progress), file.to_owned());
    let begun = Instant::now();
    // Without a join: the thread ends soon after the verification.
    let _ = thread::Builder::new().name("orderfree-verify".into()).spawn(move || {
        let mut next = TELL_EVERY;
        while still.upgrade().is_some() {
            thread::sleep(Duration::from_millis(50));
            if begun.elapsed() >= next {
                tracing::info!("verifying {file}: {told}");
                next += TELL_EVERY;
            }
        }
    });
    let result = verify();
    drop(done);
    result
}

/// Checks every page that is in use.
pub(super) fn pages(file: &str, database: &mut Database) -> Result<(), DatabaseError> {
    if !database.check_integrity()? {
        // Every page was right. Only the list of free pages was wrong, and redb has rebuilt it.
        tracing::warn!(
            "the list of free pages of {file} was wrong; it is rebuilt, nothing is lost"
        );
    }
    Ok(())
}

/// Checks every row, and counts the keys.
pub(super) fn rows(database: &Database, progress: &Progress) -> Result<Contents, redb::Error> {
    let transaction = database.begin_read()?;
    let table = transaction.open_table(SHARDS)?;
    progress.rows.store(table.len()?, Ordering::Relaxed);
    let mut contents = Contents::default();
    let mut last = (String::new(), String::new(), String::new());
    for entry in table.range::<RowKey>(..)? {
        let (key, value) = entry?;
        let (key, value) = (key.value(), value.value());
        if (&*last.0, &*last.1, &*last.2) != (key.0, key.1, key.2) {
            contents.keys += 1;
            last = (key.0.into(), key.1.into(), key.2.into());
        }
        if let Err(wrong) = rows::check_row(key, value) {
            if contents.broken_rows == 0 {
                tracing::error!("{wrong}; its key can't be read");
            }
            contents.broken_rows += 1;
        }
        progress.rows_read.fetch_add(1, Ordering::Relaxed);
    }
    Ok(contents)
}

/// A backend whose reads are counted.
#[derive(Debug)]
pub(super) struct Counted<B> {
    pub(super) inner: B,
    pub(super) progress: Arc<Progress>,
}

type Range = Bound<u64>;

impl<B: StorageBackend> StorageBackend for Counted<B> {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.progress.bytes_read.fetch_add(out.len() as u64, Ordering::Relaxed);
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Range, end: Range) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Range, end: Range) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Range, end: Range) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Range, end: Range) -> Result<(), BackendError> {
        self.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Range, end: Range) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Range, end: Range) -> Result<bool, BackendError> {
        self.inner.query_lock_range(start, end)
    }
}
