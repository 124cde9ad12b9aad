//! Reads of single keys.
//!
//! Reads are shared. Requests for a key that is being read wait for the next read of the key and share its
//! answer. So the store reads a key only once at a time, however many requests come. Each read begins after
//! the requests that it answers, so its value includes every update acknowledged before.
//!
//! Requests that accept staleness get the last answer at once if it is recent enough.

pub(crate) mod shared_reads;
mod values;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lru::LruCache;
use orderfree_core::crdt::State;
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::generation::{self, Remembered};
use orderfree_core::protocol::prefix::Until;
use orderfree_core::protocol::read::{self, Answer, Reading};
use orderfree_core::protocol::row_reader::RowError;
use orderfree_core::protocol::sweep::Nomination;
use orderfree_core::protocol::{Constants, Key, Timestamp, WholeSlice};
use thiserror::Error;
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

use crate::engine::Context;
use crate::engine::clock_gate::ClockGate;
use crate::engine::fold::Folder;
use crate::engine::memory::MemoryPermit;
use crate::engine::metrics::{IdConflict, Metrics};
use crate::engine::resets::Resets;
use crate::limits;
use crate::runtime::sync::lock;
use crate::runtime::tasks::{Task, Tasks, panic_point};
use crate::store::{Reads, Sight, StoreError, prefix};
use shared_reads::SharedReads;
use values::Values;

pub use values::ReservedValue;

#[cfg(test)]
pub(crate) use values::tests::held;

/// Reads keys; see the [module documentation](self).
pub struct Reader {
    reads: Arc<dyn Reads>,
    gate: Arc<ClockGate>,
    folder: Arc<Folder>,
    constants: Constants,
    metrics: Arc<Metrics>,
    resets: Arc<Resets>,
    fences: Mutex<LruCache<Key, Timestamp>>,
    /// Keys that can't be decoded, each with the time since boot of its last line in the log.
    unreadable: Mutex<LruCache<Key, Duration>>,
    tasks: Tasks,
    /// Keys that are being read, or were read recently. If a key is evicted during its read, a second read
    /// can run at the same time.
    asked: Mutex<LruCache<KeyAtLevel, Known>>,
    values: Values,
}

/// The value of a key, and facts about its read.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyValue {
    pub key: Key,
    /// The merge of all rows.
    pub state: State,
    /// Number of merged shards above the fence.
    pub shards: usize,
    /// Size of the rows that were read.
    pub bytes: usize,
    /// The tally's fence. `None` without a tally.
    pub folded_through: Option<Timestamp>,
    /// The tally has no room for another shard.
    pub is_full: bool,
    /// When the read began. The value includes every op in `sight` that was acked before.
    pub as_of: Timestamp,
    pub level: Level,
    pub sight: Sight,
}

/// Why a value could not be read.
#[derive(Debug, Clone, Error)]
pub enum ReadError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// This pod has reached a limit of its reads.
    #[error("{0}")]
    Overloaded(&'static str),
    /// The value exceeds the memory limit for the value of one key.
    #[error("the value of this key is too large to read; fold the key or remove items from it")]
    TooLarge,
    /// The text of the value exceeds the limit for watched keys, or the memory for them.
    #[error("the value of this key is too large to watch; read the key instead")]
    TooLargeToWatch,
    /// The task of the read panicked.
    #[error("the read of the key hit a bug; see the log of this pod")]
    Bug,
    /// A row of the key can't be decoded or merged.
    #[error("{key}: {error}")]
    Row {
        key: Key,
        /// Which row, and why.
        error: RowError,
    },
}

type KeyAtLevel = (Key, Level);
type SharedRead = SharedReads<Option<Arc<ReservedValue>>, ReadError>;

/// A key that is being read, or was read recently.
#[derive(Default)]
struct Known {
    asked: Arc<SharedRead>,
    /// Memory of the cached last answer.
    kept: Option<MemoryPermit>,
}

/// The result of a read. `None` if the key has no row.
pub type ReadOutcome = Result<Option<Arc<ReservedValue>>, ReadError>;

impl Reader {
    #[must_use]
    pub fn new(reads: Arc<dyn Reads>, context: Context, folder: Arc<Folder>) -> Reader {
        let Context { gate, constants, metrics, resets, .. } = context;
        let fences = Mutex::new(limits::cache(limits::FENCES_MAX));
        let asked = Mutex::new(limits::cache(limits::RECENT_MAX));
        let tasks = Tasks::counting(metrics.panics.clone());
        Reader {
            reads,
            gate,
            folder,
            constants,
            metrics,
            resets,
            fences,
            unreadable: Mutex::new(limits::cache(limits::UNREADABLE_KEYS_MAX)),
            tasks,
            asked,
            values: Values::default(),
        }
    }

    /// Reads one key. Returns `None` if the key has no row. With `max_staleness`, accepts a read that began
    /// at most that long ago.
    ///
    /// # Errors
    /// [`ReadError`]; never a partial value.
    pub async fn read(
        self: &Arc<Self>,
        key: &Key,
        level: Level,
        max_staleness: Option<Duration>,
    ) -> ReadOutcome {
        if self.tasks.count() >= limits::READS_MAX {
            return Err(ReadError::Overloaded("this pod is reading too many keys"));
        }
        let question = (key.clone(), level);
        let asked =
            Arc::clone(&lock(&self.asked).get_or_insert_mut(question, Known::default).asked);
        let oldest = max_staleness.map(|span| self.gate.now().boot.saturating_sub(span));
        let call = || {
            let answer = Arc::clone(self).answer(Arc::clone(&asked), key.clone(), level);
            self.tasks.spawn(Task::Read, answer);
        };
        let asking = asked.ask(oldest, call);
        let (said, from) = match key.kind.about().is_small() {
            true => asking.await,
            // The read can wait repeatedly for memory that other answers hold.
            false => timeout(limits::LARGE_KEY_READ_TIME_MAX, asking)
                .await
                .map_err(|_| ReadError::Overloaded("the read of the key took too long"))?,
        };
        self.metrics.count_read(from);
        said.unwrap_or(Err(ReadError::Bug))
    }

    /// Waits up to `within` for running reads.
    pub async fn close(&self, within: Duration) {
        self.tasks.join(within).await;
    }

    /// Reads the key until no request waits for another answer.
    async fn answer(self: Arc<Self>, asked: Arc<SharedRead>, key: Key, level: Level) {
        asked.answer(|| self.gate.now().boot, || self.fetch(&asked, &key, level)).await;
        if !key.kind.about().is_small() {
            self.keep(&(key, level), &asked);
        }
    }

    /// Caches the last answer for requests that accept staleness. An answer that is too large lives only
    /// while a request waits for it.
    fn keep(&self, question: &KeyAtLevel, asked: &Arc<SharedRead>) {
        let mut all = lock(&self.asked);
        let known = all.peek_mut(question).filter(|known| Arc::ptr_eq(&known.asked, asked));
        let Some(known) = known else { return };
        known.kept = None;
        let bytes = asked.kept(Duration::ZERO).flatten().map_or(0, |held| held.memory_bytes());
        let room = self.values.keep(bytes, || all.pop_lru().is_some());
        match (room, all.peek_mut(question)) {
            (Some(room), Some(known)) => known.kept = Some(room),
            (None, Some(_)) => drop(all.pop(question)),
            (_, None) => {}
        }
    }

    /// Reads a key's rows as one slice.
    ///
    /// # Errors
    /// [`ReadError`] if the store can't answer, or if the rows exceed the limit of one slice.
    pub async fn slice(
        &self,
        key: &Key,
        after: Option<Timestamp>,
        level: Level,
        turn: Option<SemaphorePermit<'_>>,
    ) -> Result<WholeSlice, ReadError> {
        let bounds = self.reads.bounds(key.kind);
        let look = self.reads.read_slice(key, after, level, bounds.look_rows).await;
        let slice = match look {
            Err(StoreError::TooManyRows { limit, bytes }) => {
                // The size of a row is known now.
                let Some(rows) = bounds.second_rows(limit, bytes) else { return Ok(look?) };
                // Let other reads use the turn while this one waits.
                drop(turn);
                let _turn = self.values.long_turn().await?;
                self.reads.read_slice(key, after, level, rows).await
            }
            look => look,
        };
        slice.map_err(|error| self.store_error(error))
    }

    /// Reads a key of any length, without sharing and its limits. Returns `None` if the key has no row.
    ///
    /// # Errors
    /// [`ReadError`]; never a partial value.
    pub async fn alone(&self, key: &Key, level: Level) -> Result<Option<KeyValue>, ReadError> {
        let as_of = self.gate.now().wall;
        match self.slice(key, None, level, None).await {
            Ok(slice) => self.value(key, &slice, as_of, level),
            Err(ReadError::Store(StoreError::TooManyRows { .. })) => {
                let _turn = self.values.long_turn().await?;
                self.by_parts(key).await
            }
            Err(error) => Err(error),
        }
    }

    /// Reads a key with too many rows for one slice. The caller holds a turn for long keys. Every replica
    /// must answer.
    async fn by_parts(&self, key: &Key) -> Result<Option<KeyValue>, ReadError> {
        let as_of = self.gate.now().wall;
        let cut = as_of.minus(self.constants.cutoff());
        let until = Until::the_end(as_of);
        let walk = prefix::read(&*self.reads, key, cut, until, prefix::READ_TRIES_MAX);
        let read = timeout(limits::LONG_KEY_READ_TIME_MAX, walk).await.map_err(|_| {
            let reason = "the key has too many rows to read in time";
            self.store_error(StoreError::Unavailable(reason.to_owned()))
        })?;
        let read = read.map_err(|error| match error {
            prefix::Failed::Store(error) => self.store_error(error),
            prefix::Failed::Row(error) => self.row_error(key, error),
            prefix::Failed::TooLarge => ReadError::TooLarge,
        })?;
        let (bytes, tally) = (read.bytes(), read.tally());
        let grave = tally.map(|(fence, reset)| Answer::Grave(fence, reset.cloned()));
        let answer = read.into_reading().map_or(grave.unwrap_or(Answer::Absent), Answer::Value);
        Ok(self.interpret(key, answer, bytes, as_of, Level::All))
    }

    fn store_error(&self, error: StoreError) -> ReadError {
        self.metrics.count_store_error(error.class());
        error.into()
    }

    /// Merges a slice that begins at the oldest row. Returns `None` if the slice is empty.
    ///
    /// # Errors
    /// [`ReadError::Row`].
    pub fn value(
        &self,
        key: &Key,
        slice: &WholeSlice,
        as_of: Timestamp,
        level: Level,
    ) -> Result<Option<KeyValue>, ReadError> {
        let answer = self.assemble(key, slice)?;
        Ok(self.interpret(key, answer, slice.bytes(), as_of, level))
    }

    async fn fetch(&self, asked: &SharedRead, key: &Key, level: Level) -> ReadOutcome {
        panic_point(Task::Read);
        let as_of = self.gate.now().wall;
        let cached = lock(&self.fences).get(key).copied();
        // If the answering replicas are older than the cached fence, start again at the oldest row.
        for after in [cached, None] {
            let turn = self.values.turn(key.kind).await?;
            let slice = self.slice(key, after, level, turn).await;
            // The last answer can hold the memory that this read waits for.
            let let_go = || asked.give_up_last();
            if let Err(ReadError::Store(StoreError::TooManyRows { .. })) = slice {
                let _turn = self.values.long_turn().await?;
                // The size of the value is not known, so reserve all the memory. Packs are merged part by part.
                let bytes = match key.kind.about().is_small() {
                    true => self.reads.bounds(key.kind).part.bytes,
                    false => limits::VALUES_BYTES_MAX,
                };
                let room = self.values.room(key.kind, bytes, let_go).await?;
                let value = self.by_parts(key).await?;
                return Ok(value.map(|value| Arc::new(ReservedValue::new(value, room, usize::MAX))));
            }
            let slice = slice?;
            let room = self.values.room(key.kind, slice.bytes(), let_go).await?;
            match self.assemble(key, &slice)? {
                Answer::ReadAgain => {}
                answer => {
                    let value = self.interpret(key, answer, slice.bytes(), as_of, level);
                    return Ok(
                        value.map(|value| Arc::new(ReservedValue::new(value, room, slice.len())))
                    );
                }
            }
        }
        unreachable!("invariant: only a slice after a fence is read again")
    }

    fn assemble(&self, key: &Key, slice: &WholeSlice) -> Result<Answer, ReadError> {
        let now = self.gate.now().wall;
        let answer = read::assemble(key, slice, now, &self.constants);
        answer.map_err(|error| self.row_error(key, error))
    }

    fn row_error(&self, key: &Key, error: RowError) -> ReadError {
        self.metrics.undecodable.inc();
        if self.is_log_due(key) {
            tracing::error!(%key, %error, "a key can't be read");
        }
        ReadError::Row { key: key.clone(), error }
    }

    /// Whether the log can have another line about this key, which can't be decoded.
    fn is_log_due(&self, key: &Key) -> bool {
        let now = self.gate.now().boot;
        let mut logged = lock(&self.unreadable);
        let is_recent = |at: &Duration| now.saturating_sub(*at) < limits::UNREADABLE_LOG_EVERY;
        let is_due = !logged.peek(key).is_some_and(is_recent);
        if is_due {
            logged.put(key.clone(), now);
        }
        is_due
    }

    fn interpret(
        &self,
        key: &Key,
        answer: Answer,
        bytes: usize,
        as_of: Timestamp,
        level: Level,
    ) -> Option<KeyValue> {
        let reading = match answer {
            Answer::Absent => return None,
            Answer::Grave(fence, reset) => {
                self.learn_fence(key, fence, reset.as_ref(), false);
                return None;
            }
            Answer::Value(reading) => reading,
            Answer::ReadAgain => {
                unreachable!("invariant: only a slice after a fence is read again")
            }
        };
        self.learn(key, &reading);
        Some(KeyValue {
            key: key.clone(),
            state: reading.state,
            shards: reading.shards,
            bytes,
            folded_through: reading.fence,
            is_full: reading.is_full,
            as_of,
            level,
            sight: self.sight(level),
        })
    }

    /// What a read at this level surely sees.
    pub fn sight(&self, level: Level) -> Sight {
        self.reads.sight(level)
    }

    /// Records what the read says about fences, full tallies and keys to fold.
    fn learn(&self, key: &Key, reading: &Reading) {
        #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
        self.metrics.read_shards.observe(reading.shards as f64);
        self.metrics.note_conflicts(IdConflict::Read, key, reading.united.conflicts);
        self.gate.observe_ids(key, reading.united.ids);
        if let Some(fence) = reading.fence {
            self.learn_fence(key, fence, reading.reset.as_ref(), reading.is_full);
        }
        if reading.shards > limits::ROWS_ALERT {
            tracing::warn!(%key, shards = reading.shards, "a key has many shards; do folds lag?");
        }
        if reading.final_shards > usize::from(reading.united.ids == 0) {
            let rows = reading.shards + usize::from(reading.fence.is_some());
            let is_tally_alone = false;
            self.folder.nominate(Nomination { key: key.clone(), rows, is_tally_alone });
        }
    }

    fn learn_fence(&self, key: &Key, fence: Timestamp, reset: Option<&Remembered>, is_full: bool) {
        let generation = reset.map(Remembered::generation);
        self.gate.observe(generation::evidence(fence, generation, &self.constants));
        self.gate.observe_tally(key, is_full, generation);
        lock(&self.fences).put(key.clone(), fence);
        if let Some(reset) = reset {
            self.resets.met(key, reset, self.gate.now().wall);
        }
    }
}
