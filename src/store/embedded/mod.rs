//! The embedded store: the same rows and rules as in Cassandra, in one file on one machine.
//!
//! * **Durable before the ack.** Every write is synced before it is acknowledged. One writer thread
//!   (`writer.rs`) commits many writes at once.
//! * **Reads** each use a blocking thread, because a page that is not in memory makes them wait for the disk.
//!   They see one snapshot of the file. One replica has all rows, so all consistency levels are accepted and
//!   mean the same.
//! * **No tombstones.** A fold deletes rows permanently, so a write that arrives later for a deleted row
//!   brings the row back. In Cassandra, the range tombstone would hide it. This is safe. A fold deletes only
//!   rows at or below the fence that it writes in the same transaction. The tally's timestamp orders fences,
//!   so the fence never goes back. Rows at or below the fence are zombies that no value and no fold counts
//!   (I6). The next fold deletes them again. Without tombstones there is nothing to purge, and the cost of a
//!   read depends only on live rows.
//! * **The clock** has no second clock to compare with; see `guard.rs`, and `repair.rs` for a file that a
//!   wrong clock wrote.
//! * **The file is verified** when it is opened; see `verify.rs`.
//! * **A full disk** stops only writes; see `disk_space.rs`.
//! * **After an error of the file** the store refuses everything until the process is restarted; see
//!   `writer.rs`.

mod disk_space;
mod file;
mod guard;
mod repair;
mod resets;
mod rows;
mod verify;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

use async_trait::async_trait;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::clock::ClockError;
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::fold::{Fold, Grave};
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::group::{self, Chunk};
use orderfree_core::protocol::prefix::Part;
use orderfree_core::protocol::reset::{LogRow, bucket};
use orderfree_core::protocol::sweep::{GroupSize, Nomination, Nominator};
use orderfree_core::protocol::{
    Constants, FullRead, Key, MutatorId, Name, Now, Row, ShardWrite, Timestamp, WholeSlice,
    WriteOutcome,
};
use redb::{Database, ReadOnlyTable, ReadableDatabase, StorageBackend};
use tokio::sync::{Semaphore, mpsc};
use uuid::Uuid;

use self::disk_space::DiskSpace;
use self::file::Opened;
use self::guard::ClockGuard;
use self::rows::{ReadError, SweepCursor};
use self::writer::{Queue, Write};
use super::{
    Folds, GroupCursor, GroupList, Operators, Pause, Reads, Receipt, RequestLimits, ResetLog,
    Shards, Store, StoreClock, StoreError, SweepPart,
};
use crate::limits::{AnswerBounds, EMBEDDED_READS_MAX, RESETS_REMEMBERED_MAX, WRITE_BATCH_MAX};
use crate::runtime::clock::Clock;
use crate::runtime::panics;
use crate::runtime::sync::lock;

pub use file::OpenError;
pub use repair::{Found, RepairError, repair};
pub use rows::{RowKey, RowValue, SHARDS};
pub use verify::{Contents, Progress};

/// A store in one file; see the [module documentation](self).
#[derive(Debug)]
pub struct EmbeddedStore {
    shared: Arc<Shared>,
    queue: Queue,
    contents: Contents,
    /// The log of resets, without receipts: these can be large.
    resets: Mutex<OwnLog>,
    /// Each read holds a permit; [`Store::close`] takes all of them.
    reads: Arc<Semaphore>,
    /// `None` after closing. The writer's thread holds the other reference, and drops it last.
    database: Mutex<Option<Arc<Database>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The log of resets in memory. Rows that are no longer needed go each hour.
#[derive(Debug, Default)]
struct OwnLog {
    rows: BTreeMap<(Generation, Uuid, Kind, Name), LogRow>,
    /// Number of names in them.
    names: usize,
    pruned: Option<Timestamp>,
}

impl OwnLog {
    fn of(rows: Vec<LogRow>) -> OwnLog {
        let mut log = OwnLog::default();
        rows.into_iter().for_each(|row| log.add(row));
        log
    }

    fn add(&mut self, row: LogRow) {
        let (place, names) =
            ((row.generation, row.id, row.kind, row.group.clone()), row.names.len());
        if self.rows.insert(place, row).is_none() {
            self.names += names;
        }
    }

    fn prune(&mut self, now: Timestamp) {
        if self.pruned.is_none_or(|pruned| now >= pruned.plus(resets::PRUNE_EVERY)) {
            self.rows.retain(|_, row| resets::is_needed(row.until, now));
            self.names = self.rows.values().map(|row| row.names.len()).sum();
            self.pruned = Some(now);
        }
    }
}

/// State that the writer's thread and the readers share.
#[derive(Debug)]
struct Shared {
    file: String,
    room: DiskSpace,
    guard: ClockGuard,
    /// The first error of the file. It stays until the process ends.
    failure: OnceLock<String>,
    commits: AtomicU64,
}

impl EmbeddedStore {
    /// Opens and verifies a file, or creates it in an existing folder. Blocks for the time of reading the
    /// file twice.
    pub fn open(
        path: &Path,
        constants: Constants,
        clock: Arc<dyn Clock>,
    ) -> Result<EmbeddedStore, OpenError> {
        EmbeddedStore::open_telling(path, constants, clock, &Arc::default())
    }

    /// Like [`EmbeddedStore::open`], and reports its progress.
    pub fn open_telling(
        path: &Path,
        constants: Constants,
        clock: Arc<dyn Clock>,
        progress: &Arc<Progress>,
    ) -> Result<EmbeddedStore, OpenError> {
        let opened = file::open(path, progress)?;
        let (file, room) = (path.display().to_string(), DiskSpace::beside(path));
        EmbeddedStore::start(file, room, opened, constants, clock)
    }

    /// Like [`EmbeddedStore::open`], on any storage.
    pub fn open_backend(
        backend: impl StorageBackend,
        constants: Constants,
        clock: Arc<dyn Clock>,
    ) -> Result<EmbeddedStore, OpenError> {
        let name = "the storage backend";
        let opened = file::open_backend(name, backend, &Arc::default())?;
        EmbeddedStore::start(name.to_owned(), DiskSpace::ANY, opened, constants, clock)
    }

    fn start(
        file: String,
        room: DiskSpace,
        opened: Opened,
        constants: Constants,
        clock: Arc<dyn Clock>,
    ) -> Result<EmbeddedStore, OpenError> {
        let Opened { database, highest, contents, resets } = opened;
        let database = Arc::new(database);
        let shared = Arc::new(Shared {
            file,
            room,
            guard: ClockGuard::new(constants, highest),
            failure: OnceLock::new(),
            commits: AtomicU64::new(0),
        });
        let (queue, thread) =
            writer::start(database.clone(), shared.clone(), clock).map_err(|error| {
                OpenError::Io { file: shared.file.clone(), reason: error.to_string() }
            })?;
        Ok(EmbeddedStore {
            shared,
            queue,
            contents,
            resets: Mutex::new(OwnLog::of(resets)),
            reads: Arc::new(Semaphore::new(EMBEDDED_READS_MAX as usize)),
            database: Mutex::new(Some(database)),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Committed write transactions since the store was opened. Each is one sync.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.shared.commits.load(Ordering::Relaxed)
    }

    /// Runs a query on one snapshot of the rows. The query runs to its end even if the caller goes away.
    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&ReadOnlyTable<RowKey<'static>, RowValue<'static>>) -> Result<T, ReadError>
        + Send
        + 'static,
    ) -> Result<T, StoreError> {
        self.read_file(move |database| query(&database.begin_read()?.open_table(rows::SHARDS)?))
            .await
    }

    /// Runs a query on the file. It runs to its end even if the caller goes away.
    async fn read_file<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Database) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let closed = || StoreError::Unavailable("the store is closed".into());
        let permit = self.reads.clone().acquire_owned().await.map_err(|_| closed())?;
        self.shared.check_file().map_err(StoreError::Unavailable)?;
        let database = lock(&self.database).clone().ok_or_else(closed)?;
        let reading = tokio::task::spawn_blocking(move || {
            // After a panic the file is not used again; see below.
            let answer = panics::caught(|| query(&database));
            // Before the permit: if `close` holds all permits, no reader has the file open.
            drop(database);
            drop(permit);
            answer
        });
        match reading.await.map_err(|_| closed())? {
            Ok(answer) => answer.map_err(|error| self.shared.explain(error)),
            // redb found an invalid page. Its locks can be poisoned, and then no query would work. So the pod
            // must end, and verify the file at its next start.
            Err(panic) => Err(StoreError::Unavailable(self.shared.fail(&panic))),
        }
    }
}

impl Shared {
    /// Checks whether the file may be used.
    fn check_file(&self) -> Result<(), String> {
        self.failure.get().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// Notes an error after which the file must not be used, and returns the first such error.
    fn fail(&self, error: &dyn fmt::Display) -> String {
        let first = self.failure.get_or_init(|| {
            let failure = format!("{} failed: {error}; check the disk and start again", self.file);
            tracing::error!("{failure}");
            failure
        });
        first.clone()
    }

    fn explain(&self, error: ReadError) -> StoreError {
        match error {
            ReadError::Row(what) => StoreError::Corrupt(what),
            ReadError::File(redb::Error::Corrupted(what)) => StoreError::Corrupt(what),
            ReadError::File(error) => StoreError::Unavailable(self.fail(&error)),
        }
    }
}

#[async_trait]
impl Shards for EmbeddedStore {
    fn request_limits(&self) -> RequestLimits {
        let rows_max = WRITE_BATCH_MAX;
        let (group_rows_max, partitions_max) = (rows_max, usize::MAX);
        let bytes_max = usize::MAX;
        RequestLimits { rows_max, group_rows_max, partitions_max, bytes_max, free: 2, backlog: 1 }
    }

    async fn write_shards(&self, writes: &[ShardWrite]) -> WriteOutcome {
        let is_shard = |write: &ShardWrite| {
            write.mutator_id() != MutatorId::TALLY
                && write.expires_at() != Timestamp::NEVER
                && write.timestamp() < write.expires_at()
        };
        let rule = "invariant: a shard has a mutator, and is written before its expiry";
        assert!(writes.iter().all(is_shard), "{rule}");
        self.queue.write(Write::Shards(writes.to_vec())).await
    }

    fn latest_stamp(&self) -> Timestamp {
        self.shared.guard.highest().stamp
    }

    fn note_stamp(&self, stamp: Timestamp) {
        self.shared.guard.observe_stamp(stamp);
    }
}

#[async_trait]
impl Reads for EmbeddedStore {
    async fn read_slice(
        &self,
        key: &Key,
        after: Option<Timestamp>,
        _level: Level,
        limit: usize,
    ) -> Result<WholeSlice, StoreError> {
        let key = key.clone();
        let slice = self.read(move |table| rows::read_slice(table, &key, after, limit)).await?;
        Ok(slice.whole()?)
    }

    async fn read_tally(&self, key: &Key) -> Result<Option<Row>, StoreError> {
        let key = key.clone();
        self.read(move |table| rows::read_tally(table, &key)).await
    }

    async fn read_part(&self, key: &Key, part: Part) -> Result<Vec<Row>, StoreError> {
        let key = key.clone();
        self.read(move |table| rows::read_part(table, &key, part)).await
    }

    async fn read_chunk(
        &self,
        kind: Kind,
        group: &Name,
        from: &group::From,
        _level: Level,
    ) -> Result<Chunk, StoreError> {
        let (group, from) = (group.clone(), from.clone());
        self.read(move |table| rows::read_chunk(table, kind, &group, &from)).await
    }

    async fn read_for_folds(&self, keys: &[Key]) -> Result<Vec<FullRead>, StoreError> {
        let asked = keys.to_vec();
        let slices = self.read(move |table| {
            let slice = |key: &Key| {
                rows::read_slice(table, key, None, AnswerBounds::of(key.kind).fold_rows)
            };
            asked.iter().map(slice).collect::<Result<Vec<_>, _>>()
        });
        let reads = keys.iter().zip(slices.await?).map(|(key, slice)| {
            let slice = slice.whole()?;
            Ok(FullRead::at_fold_level(key.clone(), slice))
        });
        reads.collect()
    }
}

#[async_trait]
impl Folds for EmbeddedStore {
    fn sweep_parts(&self) -> u32 {
        1
    }

    async fn sweep(
        &self,
        part: SweepPart,
        nominator: Nominator,
        found: mpsc::Sender<Nomination>,
    ) -> Result<Option<GroupSize>, StoreError> {
        assert_eq!(part, SweepPart { index: 0, of: 1 }, "invariant: there is one part");
        let mut cursor = SweepCursor::new(nominator);
        loop {
            let (nominated, then) = self.read(move |table| cursor.step(table)).await?;
            for nomination in nominated {
                if found.send(nomination).await.is_err() {
                    return Ok(None);
                }
            }
            match then {
                ControlFlow::Continue(_) if found.is_closed() => return Ok(None),
                ControlFlow::Continue(next) => cursor = next,
                ControlFlow::Break(largest) => return Ok(largest),
            }
        }
    }

    fn folds_max(&self) -> usize {
        WRITE_BATCH_MAX / 2
    }

    async fn write_folds(&self, folds: &[Fold]) -> WriteOutcome {
        let is_past = |fold: &Fold| fold.tally_timestamp() < Timestamp::NEVER;
        assert!(folds.iter().all(is_past), "invariant: a fence lies in the past");
        self.queue.write(Write::Folds(folds.to_vec())).await
    }

    /// A deletion removes rows from the file for good, and the writer refuses a shard after its expiry.
    fn rows_never_return(&self) -> bool {
        true
    }

    async fn remove_grave(&self, grave: &Grave) -> WriteOutcome {
        self.queue.write(Write::Removal(grave.key().clone(), grave.row().clone())).await
    }
}

impl StoreClock for EmbeddedStore {
    fn check_clock(&self, now: Now) -> Result<(), ClockError> {
        self.shared.guard.check(now.wall)
    }

    fn fold_time(&self, now: Now) -> Result<Timestamp, Pause> {
        self.check_clock(now)?;
        Ok(now.wall)
    }
}

#[async_trait]
impl Operators for EmbeddedStore {
    async fn groups(
        &self,
        kind: Kind,
        behind: Option<&GroupCursor>,
        limit: usize,
    ) -> Result<GroupList, StoreError> {
        // The cursor is an offset, so it leaks no group names. A concurrent insert can repeat an entry.
        let passed = behind.map_or(0, |cursor| usize::try_from(cursor.0).unwrap_or(0));
        let groups = self.read(move |table| rows::groups(table, kind, passed, limit)).await?;
        let next = i64::try_from(passed + limit).ok().filter(|_| groups.len() == limit);
        let next = next.map(GroupCursor);
        Ok(GroupList { groups, next })
    }

    async fn count_names(
        &self,
        kind: Kind,
        group: &Name,
        most: usize,
    ) -> Result<usize, StoreError> {
        let group = group.clone();
        self.read(move |table| rows::count_names(table, kind, &group, most)).await
    }

    async fn remove_row(&self, key: &Key, row: &Row) -> WriteOutcome {
        self.queue.write(Write::Removal(key.clone(), row.clone())).await
    }
}

#[async_trait]
impl ResetLog for EmbeddedStore {
    fn has_resets(&self) -> bool {
        true
    }

    fn own_resets(&self) -> Option<Vec<LogRow>> {
        Some(lock(&self.resets).rows.values().cloned().collect())
    }

    fn reset_obstacle(&self, now: Now) -> Option<String> {
        let mut log = lock(&self.resets);
        log.prune(now.wall);
        (log.names >= RESETS_REMEMBERED_MAX).then(|| {
            format!(
                "the file keeps {RESETS_REMEMBERED_MAX} names of keys that were reset, each for three days or longer"
            )
        })
    }

    async fn read_resets(&self, part: u8, after: Timestamp) -> Result<Vec<LogRow>, StoreError> {
        let log = lock(&self.resets);
        let newer = log.rows.values().rev().take_while(|row| row.generation.time() > after);
        Ok(newer.filter(|row| bucket(row.kind, &row.group) == part).cloned().collect())
    }

    async fn write_reset(&self, row: &LogRow, receipt: &Receipt) -> WriteOutcome {
        self.write_markers(row, receipt, &[]).await
    }

    async fn write_markers(
        &self,
        row: &LogRow,
        receipt: &Receipt,
        markers: &[Fold],
    ) -> WriteOutcome {
        let write = Write::Reset(Box::new((row.clone(), receipt.clone())), markers.to_vec());
        let outcome = self.queue.write(write).await;
        if outcome.is_ok() {
            let mut log = lock(&self.resets);
            log.prune(row.generation.time());
            log.add(row.clone());
        }
        outcome
    }

    async fn read_receipt(
        &self,
        (kind, group): (Kind, &Name),
        generation: Generation,
        id: Uuid,
    ) -> Result<Option<(LogRow, Receipt)>, StoreError> {
        let group = group.clone();
        self.read_file(move |database| {
            resets::read_receipt(database, (kind, &group), generation, id)
        })
        .await
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    fn name(&self) -> &'static str {
        "embedded"
    }

    fn contents(&self) -> Option<Contents> {
        Some(self.contents)
    }

    fn failure(&self) -> Option<&str> {
        self.shared.failure.get().map(String::as_str)
    }

    /// Waits for accepted reads and writes, then closes the file and releases its lock.
    async fn close(&self) {
        let running = self.reads.acquire_many(EMBEDDED_READS_MAX).await;
        self.reads.close();
        drop(running);
        // The thread drops the last reference: closing syncs, which blocks.
        drop(lock(&self.database).take());
        self.queue.close().await;
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            let ended = tokio::task::spawn_blocking(move || thread.join()).await;
            if !matches!(ended, Ok(Ok(()))) {
                tracing::error!("the store's writer thread panicked");
            }
        }
    }
}
