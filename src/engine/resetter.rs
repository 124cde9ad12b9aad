//! This pod's looks at the log of resets, and the resets that it makes. All decisions are in
//! [`orderfree_core::protocol::reset`].

mod orders;
mod receipt;

pub use orders::{IdReused, Logged, Order, Ordered, Progress, Ticket};

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use lru::LruCache;
use orderfree_core::crdt::{Kind, State};
use orderfree_core::protocol::clock::ClockError;
use orderfree_core::protocol::fold::Fold;
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::reset::{
    Attempt, BUCKETS, Draft, Fate, Log, LogRow, Reset, ResetError, ResetFlaw, bucket,
};
use orderfree_core::protocol::{
    Constants, ConstantsError, FullRead, Key, Name, Now, Timestamp, WriteError,
};
use thiserror::Error;
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

use crate::engine::Context;
use crate::engine::changes::Changes;
use crate::engine::clock_gate::ClockGate;
use crate::engine::health;
use crate::engine::metrics::Metrics;
use crate::engine::resets::Resets;
use crate::engine::write::Mutators;
use crate::limits::{
    self, LOG_ROWS_MAX, RESETS_AT_ONCE_MAX, RESETS_PER_SECOND_MAX, RESETS_REMEMBERED_MAX,
};
use crate::runtime::random::Random;
use crate::runtime::sync::lock;
use crate::runtime::tasks::Tasks;
use crate::store::{Pause, Reads, Receipt, ResetLog, StoreError};

/// Pause before a write is tried again that is not known to be stored.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// The time between two looks for a log that is not there.
const ABSENT_LOOK_EVERY: Duration = Duration::from_secs(10);

/// Then a row that could not be logged gets a new time. Looks reach back twice as long.
const LOST_OLD: Duration = Duration::from_secs(60);

/// How often resets are forgotten whose time is over. It takes a look at all of them.
const FORGET_EVERY: Duration = Duration::from_secs(10);

/// Lists of keys of one order that are read and marked at once.
const LISTS_AT_ONCE: usize = 4;

/// Which log is believed.
#[derive(Debug, Clone, Copy)]
enum Trust {
    /// One that has lost no reset.
    Whole,
    Any,
}

/// Looks at the log of resets, and resets keys.
pub struct Resetter {
    resets: Arc<Resets>,
    store: Arc<dyn ResetLog>,
    /// This process is alone with the store.
    is_alone: bool,
    reads: Arc<dyn Reads>,
    /// None if this process takes no updates.
    mutators: Option<Arc<Mutators>>,
    gate: Arc<ClockGate>,
    /// By the boot-time clock.
    begun: Duration,
    metrics: Arc<Metrics>,
    random: Random,
    constants: Constants,
    /// Why this pod makes no resets.
    closed: Option<&'static str>,
    /// Resets that clients ordered here, by their groups and ids.
    tickets: Mutex<LruCache<(Kind, Name, Uuid), Ticket>>,
    /// Orders with one id come one after another. Each lock is for a part of the ids.
    ids: Vec<tokio::sync::Mutex<()>>,
    /// Reads whose rows are in memory.
    rooms: Semaphore,
    /// When resets were forgotten last, by the boot-time clock.
    forgot: Mutex<Option<Duration>>,
    /// Held by the caller that looks because a look was due.
    looking: tokio::sync::Mutex<()>,
    /// Resets that run at once.
    turns: Arc<Semaphore>,
    /// Keys that are reset in a second.
    pace: DefaultDirectRateLimiter,
    changes: Arc<Changes>,
    tasks: Tasks,
    flaw: Option<ResetFlaw>,
}

/// A key was reset.
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    /// The time from which the reset counts.
    pub generation: Generation,
    /// The value that was cleared, if one key was reset.
    pub cleared: Option<State>,
    /// Bytes of that value in the log; 0 if the log does not keep it.
    pub kept_bytes: usize,
    /// Rows in it, without the tally.
    pub shards: usize,
}

/// A key of a reset, and how it ended.
pub type End = (Key, Result<Done, ResetFailure>);

/// A key that is left out of a reset, and why.
pub type LeftOut = (Key, ResetFailure);

/// Why a key is not known to be reset.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ResetFailure {
    /// Nothing was changed.
    #[error(transparent)]
    Refused(#[from] ResetError),
    /// No key of this installation can be reset now.
    #[error("keys can't be reset: {0}")]
    Obstacle(String),
    /// Keys can't be reset with these time constants.
    #[error(transparent)]
    Constants(#[from] ConstantsError),
    /// The clock can't be trusted. Nothing was changed.
    #[error(transparent)]
    Clock(#[from] ClockError),
    /// The log or the key could not be read or written in time. Nothing was changed.
    #[error("the key could not be reset: {0}; reset it again")]
    Store(String),
    /// A reset reads a key as a whole. Nothing was changed.
    #[error(
        "the key has more than {limit} rows, and a reset reads all of them at once; folds take rows some minutes after \
         they have expired, so reset the key later"
    )]
    TooManyRows {
        /// The most that it can have.
        limit: usize,
    },
    /// The time of the order's id is further ahead than two right clocks can differ. Nothing was changed.
    #[error(
        "the time of this id is {:.1} s ahead of this pod's clock; set the client's clock, and only if the reset was \
         never sent before, take a new id from POST /v1/ids",
        .by.as_secs_f64()
    )]
    IdAhead {
        /// How far it is ahead.
        by: Duration,
    },
    /// The log does not keep resets for so long. This request changed nothing.
    #[error(
        "this id is so old that the log may have dropped its reset; an earlier request with it may have reset the key. \
         Read the key, and reset or delete it again with a new id"
    )]
    IdExpired,
    /// This pod has reset as many keys lately as it can. Nothing was changed.
    #[error(
        "this pod resets {RESETS_PER_SECOND_MAX} keys a second on average; send the request again in {} s",
        wait.as_secs() + 1
    )]
    TooFast {
        /// Time after which to try again.
        wait: Duration,
    },
    /// This pod makes as many resets as it can. Nothing was changed.
    #[error(
        "this pod makes {RESETS_AT_ONCE_MAX} resets at once; send the request again in a few seconds"
    )]
    TooManyAtOnce,
    /// This pod remembers as many resets as it can. Nothing was changed.
    #[error(
        "pods remember {RESETS_REMEMBERED_MAX} keys that were reset, and {LOG_ROWS_MAX} resets of an eighth of all \
         groups, each for two or three days; reset fewer keys, or reset them tomorrow"
    )]
    TooManyRemembered,
    /// It is not known whether the key was or will be reset.
    #[error("the key may or may not be reset: {0}; read it, or reset it again")]
    Unknown(String),
}

impl From<StoreError> for ResetFailure {
    fn from(error: StoreError) -> ResetFailure {
        match error {
            StoreError::TooManyRows { limit, .. } => ResetFailure::TooManyRows { limit },
            error => ResetFailure::Store(error.to_string()),
        }
    }
}

impl Resetter {
    #[must_use]
    pub fn new(
        store: Arc<dyn ResetLog>,
        reads: Arc<dyn Reads>,
        mutators: Option<Arc<Mutators>>,
        context: &Context,
        closed: Option<&'static str>,
        flaw: Option<ResetFlaw>,
    ) -> Arc<Resetter> {
        let resets = Arc::clone(&context.resets);
        let own = store.own_resets();
        let is_alone = own.is_some();
        *resets.log() = own.map_or_else(Log::default, |rows| Log::alone(&rows)).with_flaw(flaw);
        resets.is_on.store(store.has_resets(), Ordering::Relaxed);
        *lock(&resets.absent) = store.log_absent_at();
        let (gate, metrics) = (Arc::clone(&context.gate), Arc::clone(&context.metrics));
        let (random, constants) = (context.random.clone(), context.constants);
        let pace = Quota::per_second(RESETS_PER_SECOND_MAX).allow_burst(limits::RESETS_BURST_MAX);
        Arc::new(Resetter {
            resets,
            store,
            is_alone,
            reads,
            mutators,
            begun: gate.now().boot,
            gate,
            metrics,
            random,
            constants,
            closed,
            tickets: Mutex::new(limits::cache(limits::RESET_TICKETS_MAX)),
            ids: (0..limits::RESET_ID_LOCKS).map(|_| tokio::sync::Mutex::default()).collect(),
            rooms: Semaphore::new(limits::RESET_READS_MAX),
            forgot: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
            pace: RateLimiter::direct(pace),
            turns: Arc::new(Semaphore::new(RESETS_AT_ONCE_MAX)),
            changes: Arc::clone(&context.changes),
            tasks: Tasks::counting(context.metrics.panics.clone()),
            flaw,
        })
    }

    /// Looks at the log until the tasks stop.
    pub async fn poll(self: Arc<Self>, tasks: Tasks) {
        while self.is_alone || !self.resets.is_on() {
            self.look().await;
            let is_on = self.resets.is_on();
            let every = if is_on { self.constants.reset_poll() } else { ABSENT_LOOK_EVERY };
            if !tasks.sleep(every).await {
                return;
            }
        }
        // A part that is not answered must not delay the looks at the others.
        let parts = join_all((0..BUCKETS).map(|bucket| self.poll_part(bucket, &tasks)));
        futures::join!(parts, self.poll_lost(&tasks));
    }

    async fn poll_part(&self, bucket: u8, tasks: &Tasks) {
        loop {
            if let Err(error) = self.look_at(bucket, Trust::Whole).await {
                tracing::debug!(bucket, %error, "a part of the log of resets was not read");
            }
            if !tasks.sleep(self.constants.reset_poll()).await {
                return;
            }
        }
    }

    async fn poll_lost(&self, tasks: &Tasks) {
        while tasks.sleep(self.constants.reset_poll()).await {
            self.log_lost().await;
        }
    }

    /// Looks at all parts of the log. A part that can't be read keeps its last look. A process that is alone with its
    /// store only forgets what is over.
    pub async fn look(&self) {
        self.look_at_all(Trust::Whole).await;
    }

    /// Looks at all parts of the log, also if it has lost resets. For a tool that finds them in the keys.
    pub async fn look_for_lost(&self) {
        self.look_at_all(Trust::Any).await;
    }

    async fn look_at_all(&self, trust: Trust) {
        if !self.resets.is_on() {
            let began = self.gate.now().boot;
            match self.store.find_log().await {
                // From now on, no update is taken before the first look.
                Ok(true) => self.resets.is_on.store(true, Ordering::Relaxed),
                Ok(false) => {
                    let mut absent = lock(&self.resets.absent);
                    *absent = absent.map(|_| began);
                    return;
                }
                Err(error) => return tracing::warn!(%error, "the log of resets was not looked for"),
            }
        }
        if self.is_alone {
            if let Ok(now) = self.open() {
                self.forget(now);
            }
            self.log_lost().await;
            return;
        }
        let looks = join_all((0..BUCKETS).map(|bucket| self.look_at(bucket, trust))).await;
        if let Some(Err(error)) = looks.iter().find(|look| look.is_err()) {
            tracing::debug!(%error, "a part of the log of resets was not read");
        }
        self.log_lost().await;
    }

    /// Looks at the log, unless the last look was a moment ago. Callers at once have one look.
    pub async fn look_if_due(&self) {
        let _one = self.looking.lock().await;
        let age = self.resets.log().age(self.gate.now().boot);
        if !self.resets.is_on() || age.is_none_or(|age| age >= self.constants.reset_poll()) {
            self.look().await;
        }
    }

    /// Whether this pod knows what to do with updates: it has read the log, or found that there is none. A pod that can't
    /// read the log any more stays ready, because it answers reads, and says so.
    ///
    /// # Errors
    /// Why it knows nothing yet.
    pub fn check_log(&self) -> Result<String, String> {
        let Now { wall, boot: now } = self.gate.now();
        let gap = || self.store.log_gap(wall).map(|gap| gap.to_string());
        let unread = || gap().unwrap_or_else(|| "the log of resets was not read yet".to_owned());
        if !self.resets.is_on() {
            return match self.resets.absence_age(now) {
                None => Ok(health::OK.to_owned()),
                Some(_) => Err(unread()),
            };
        }
        let age = self.resets.log().age(now).ok_or_else(unread)?;
        if self.is_alone || age < self.constants.reset_lease() {
            return Ok(health::OK.to_owned());
        }
        Ok(match gap() {
            Some(gap) => format!("updates are refused: {gap}"),
            None => format!(
                "the log of resets was not read for {} s, so updates are refused",
                age.as_secs()
            ),
        })
    }

    /// Logs a reset of a key whose rows do not tell whether it was reset. It clears nothing: rows of the key that are born
    /// from now on count after any reset.
    pub fn log_in_doubt(&self, key: &Key, until: Timestamp) {
        let now = self.gate.now().wall;
        lock(&self.resets.lost).push(LogRow {
            id: self.random.mutator_id().as_uuid(),
            kind: key.kind,
            group: key.group.clone(),
            names: vec![key.name.clone()],
            generation: Generation::at(now),
            until,
            is_deletion: false,
        });
    }

    /// Sets the metrics that are not set where they change.
    pub fn refresh_metrics(&self) {
        let age = self.unread_for(self.gate.now().boot);
        self.metrics.reset_log_age_seconds.set(age.as_secs_f64());
        let remembered = self.resets.log().remembered();
        self.metrics.resets_remembered.set(i64::try_from(remembered).unwrap_or(i64::MAX));
    }

    /// The time since this pod knew what to do with updates.
    fn unread_for(&self, boot: Duration) -> Duration {
        let age = match self.resets.is_on() {
            true => self.resets.log().age(boot).or(Some(boot)),
            false => self.resets.absence_age(boot),
        };
        age.unwrap_or_default().min(boot.saturating_sub(self.begun))
    }

    /// Logs again what the tallies of keys that were read here remember, and the log has lost. The next call tries those
    /// again that were not logged. Returns how many were logged, and how many were not.
    pub async fn log_lost(&self) -> (usize, usize) {
        let Ok(Now { wall, .. }) = self.open() else { return (0, lock(&self.resets.lost).len()) };
        let lost = std::mem::take(&mut *lock(&self.resets.lost));
        let (count, mut failed) = (lost.len(), 0);
        for mut row in lost {
            // Looks of other pods do not reach far back. If a write can be stored, another try has the same time.
            if wall.since(row.generation.time()) > LOST_OLD {
                row.generation = Generation::at(wall);
            }
            if self.store.write_reset(&row, &Receipt::default()).await.is_err() {
                lock(&self.resets.lost).push(row);
                failed += 1;
            }
        }
        self.metrics.resets_lost.inc_by((count - failed) as u64);
        (count - failed, failed)
    }

    async fn look_at(&self, bucket: u8, trust: Trust) -> Result<(), ResetFailure> {
        let began = self.open()?;
        let asked = self.resets.log().look_after(bucket, began, &self.constants);
        // Before the read, which can have shown less than the log has when the gap is closed.
        let gap = self.store.log_gap(began.wall);
        let rows = self.store.read_resets(bucket, asked.after).await?;
        if let (Trust::Whole, Some(gap)) = (trust, gap) {
            return Err(ResetFailure::Obstacle(gap.to_string()));
        }
        let now = self.open()?;
        // The log keeps rows for their clients when no pod needs them. Updates wait for the lock.
        for row in rows.iter().filter(|row| row.until >= now.wall) {
            self.resets.log().saw(bucket, row);
        }
        if self.resets.log().looked(bucket, began, asked, &rows) {
            self.forget(now);
        }
        Ok(())
    }

    /// Forgets resets whose time is over. The clock gate is open.
    fn forget(&self, now: Now) {
        let mut last = lock(&self.forgot);
        let is_due = last.is_none_or(|last| now.boot >= last + FORGET_EVERY);
        if is_due || self.flaw == Some(ResetFlaw::ForgetsEarly) {
            *last = Some(now.boot);
            self.resets.log().forget(now, &self.constants);
            self.forget_tickets(now);
        }
    }

    /// The time, if the clock can be trusted. If it was found wrong, what was read by it is not believed.
    fn open(&self) -> Result<Now, ClockError> {
        let opened = self.gate.open();
        if self.flaw == Some(ResetFlaw::ForgetsWhileShut) {
            return Ok(self.gate.now());
        }
        if opened.as_ref().is_err_and(ClockError::is_measured) {
            self.resets.log().distrust();
        }
        opened
    }

    /// Whether a reset of the key is remembered. A parcel of an import has no stamp, so it would not count.
    #[must_use]
    pub fn was_reset(&self, key: &Key) -> bool {
        self.resets.last(key).is_some()
    }

    /// Whether a parcel that the store has acknowledged counts. `now` was read after the store's answer.
    #[must_use]
    pub fn parcel_stands(&self, key: &Key, now: Now) -> bool {
        self.resets.fate(key, None, now) == Fate::Stands
    }

    /// Resets a key, or deletes it. Returns what it had.
    ///
    /// # Errors
    /// [`ResetFailure`].
    pub async fn reset(&self, key: &Key, is_deletion: bool) -> Result<Done, ResetFailure> {
        let (attempt, _) = self.begin(std::slice::from_ref(key), None, is_deletion).await?;
        let ends = self.finish(&attempt, None, || ()).await?;
        ends.into_iter().next().expect("invariant: the key has its end").1
    }

    /// Reads the keys, and chooses the generation of their reset, and its id if it has none. They are keys of one group.
    /// Also returns those that are left out. Nothing is changed.
    ///
    /// # Errors
    /// [`ResetFailure`] of the first key, if all are left out.
    pub async fn begin(
        &self,
        keys: &[Key],
        id: Option<Uuid>,
        is_deletion: bool,
    ) -> Result<(Attempt, Vec<LeftOut>), ResetFailure> {
        self.constants.check_resets()?;
        self.check()?;
        let begun = self.open()?;
        let Some(first) = keys.first() else { return Err(ResetError::Absent.into()) };
        if !self.is_alone {
            self.look_at(bucket(first.kind, &first.group), Trust::Whole).await?;
        }
        let draft = Mutex::new(Draft::begin(begun).with_flaw(self.flaw));
        // The same time is left for the second read of each key. Keys that are not read by then are left out.
        let budget = self.constants.reset_budget();
        let until = begun.boot + budget.saturating_sub(self.constants.reset_lease()) / 2;
        let add = async |some: &[Key]| {
            let _room = self.room().await;
            let mut left_out = Vec::new();
            for (key, read) in self.read(some, until).await {
                let known = self.resets.log().stamp(&key);
                let added = read.and_then(|read| {
                    self.resets.met_in(&read, self.gate.now().wall);
                    lock(&draft).add(&read, known, &self.constants).map_err(ResetFailure::from)
                });
                left_out.extend(added.err().map(|failure| (key, failure)));
            }
            left_out
        };
        let (size, mut left_out) = (self.list_max(keys), Vec::new());
        for some in keys.chunks(size * LISTS_AT_ONCE) {
            let lists: Vec<_> = some.chunks(size).map(&add).collect();
            left_out.extend(join_all(lists).await.into_iter().flatten());
        }
        let draft = draft.into_inner().unwrap_or_else(PoisonError::into_inner);
        if left_out.len() == keys.len() {
            return Err(left_out.swap_remove(0).1);
        }
        // A reset that is refused draws nothing.
        let id = id.unwrap_or_else(|| self.random.mutator_id().as_uuid());
        let attempt = draft.attempt(id, is_deletion, &self.constants);
        Ok((attempt.expect("invariant: a key is left"), left_out))
    }

    /// Most keys of a list that are read and marked together.
    fn list_max(&self, keys: &[Key]) -> usize {
        let is_small = keys.first().is_some_and(|key| key.kind.about().is_small());
        if is_small { self.store.folds_max() } else { 1 }
    }

    /// Waits until the rows of a read have room in memory. Folds bound theirs in the same way.
    async fn room(&self) -> SemaphorePermit<'_> {
        self.rooms.acquire().await.expect("invariant: the semaphore is never closed")
    }

    /// Reads whole keys. One that can't be read does not keep others from being read. Nothing is read after this time.
    async fn read(
        &self,
        keys: &[Key],
        until: Duration,
    ) -> Vec<(Key, Result<FullRead, ResetFailure>)> {
        match (self.read_together(keys, until).await, keys) {
            (Ok(reads), _) => return keys.iter().cloned().zip(reads.into_iter().map(Ok)).collect(),
            // A second read would only add to the load of nodes that did not answer the first.
            (Err(failure), [key]) => return vec![(key.clone(), Err(failure))],
            (Err(_), _) => {}
        }
        let mut all = Vec::with_capacity(keys.len());
        for key in keys {
            let read = self.read_together(std::slice::from_ref(key), until).await;
            all.push((key.clone(), read.map(|mut reads| reads.remove(0))));
        }
        all
    }

    async fn read_together(
        &self,
        keys: &[Key],
        until: Duration,
    ) -> Result<Vec<FullRead>, ResetFailure> {
        if self.gate.now().boot > until {
            return Err(out_of_time());
        }
        Ok(self.reads.read_for_folds(keys).await?)
    }

    /// Makes a reset that has begun. Each key has an end of its own. `since` is the time from which another reset can have
    /// the same id, if a client chose it. `logged` is called once other pods can find the reset.
    ///
    /// # Errors
    /// [`ResetFailure`] if nothing was changed.
    pub async fn finish(
        &self,
        attempt: &Attempt,
        since: Option<Timestamp>,
        logged: impl FnOnce(),
    ) -> Result<Vec<End>, ResetFailure> {
        let keys: Vec<Key> = attempt.row().keys().collect();
        if self.is_alone {
            logged();
            self.close(attempt.row(), &keys).await;
        } else {
            let logged_at = self.log(attempt, &Receipt::default()).await?;
            logged();
            self.sleep_until(attempt.read_from(logged_at, &self.constants)).await;
            if let Some(since) = since
                && self.has_rival(attempt.row(), since).await?
            {
                return Err(ResetError::Overtaken.into());
            }
        }
        self.check()?;
        let ends = match &keys[..] {
            [key] => vec![(key.clone(), self.finish_one(attempt, key).await)],
            _ => self.finish_many(attempt, &keys).await?,
        };
        Ok(ends)
    }

    /// Closes the rows from before a reset, if this process is alone. The updates that they have taken are acknowledged
    /// first, unless their writes take long.
    async fn close(&self, row: &LogRow, keys: &[Key]) {
        let under_way = self.mutators.as_ref().map(|mutators| mutators.under_way(keys));
        self.resets.log().begin(row, self.gate.now().boot);
        if let Some(under_way) = under_way {
            under_way.end(self.constants.reset_lease() / 2).await;
        }
        self.resets.log().close(row);
    }

    async fn finish_one(&self, attempt: &Attempt, key: &Key) -> Result<Done, ResetFailure> {
        let room = self.room().await;
        let mut reads = self.read(std::slice::from_ref(key), self.send_until(attempt)).await;
        let reset = attempt.plan(&reads.remove(0).1?, &self.constants)?;
        drop(room);
        let Reset { fold, cleared, shards } = reset;
        let generation = attempt.row().generation;
        let kept = receipt::encode(&[(key, &cleared)], generation);
        let kept_bytes = kept.len();
        // Before this, the log must not say that a marker may have been sent.
        let receipt = Receipt { cleared: Some(kept), ..Receipt::default() };
        if !self.is_alone {
            self.log(attempt, &receipt).await?;
        }
        self.mark(attempt, &receipt, &[fold]).await?;
        self.note_done(attempt.row(), receipt).await;
        Ok(Done { generation, cleared: Some(cleared), kept_bytes, shards })
    }

    /// Resets keys together. What they had is not kept: it can be much.
    async fn finish_many(&self, attempt: &Attempt, keys: &[Key]) -> Result<Vec<End>, ResetFailure> {
        let receipt = Receipt { cleared: Some(Vec::new()), ..Receipt::default() };
        if !self.is_alone {
            self.log(attempt, &receipt).await?;
        }
        let (size, mut ends) = (self.list_max(keys), Vec::with_capacity(keys.len()));
        for some in keys.chunks(size * LISTS_AT_ONCE) {
            let lists: Vec<_> =
                some.chunks(size).map(|list| self.finish_list(attempt, &receipt, list)).collect();
            ends.extend(join_all(lists).await.into_iter().flatten());
        }
        if ends.iter().all(|(_, end)| end.is_ok()) {
            self.note_done(attempt.row(), receipt).await;
        }
        Ok(ends)
    }

    async fn finish_list(&self, attempt: &Attempt, receipt: &Receipt, keys: &[Key]) -> Vec<End> {
        let room = self.room().await;
        let (generation, mut ends) = (attempt.row().generation, Vec::with_capacity(keys.len()));
        let (mut markers, mut shards) = (Vec::new(), Vec::new());
        for (key, read) in self.read(keys, self.send_until(attempt)).await {
            let reset = read.and_then(|read| Ok(attempt.plan(&read, &self.constants)?));
            match reset {
                Ok(reset) => {
                    markers.push(reset.fold);
                    shards.push(reset.shards);
                }
                Err(failure) => ends.push((key, Err(failure))),
            }
        }
        drop(room);
        let mut shards = shards.into_iter();
        for batch in batches(&markers) {
            let outcome = self.mark(attempt, receipt, batch).await;
            ends.extend(batch.iter().zip(shards.by_ref()).map(|(marker, shards)| {
                let done = Done { generation, cleared: None, kept_bytes: 0, shards };
                (marker.key().clone(), outcome.clone().map(|()| done))
            }));
        }
        ends
    }

    fn send_until(&self, attempt: &Attempt) -> Duration {
        attempt.send_until(&self.constants)
    }

    /// Notes that all markers were acknowledged. Without it, a request for the reset looks at the keys.
    async fn note_done(&self, row: &LogRow, receipt: Receipt) {
        let done = Receipt { done: Some(true), ..receipt };
        if !self.is_alone
            && let Err(error) = self.store.write_reset(row, &done).await
        {
            tracing::debug!(%error, "a reset was not noted as done");
        }
    }

    /// Whether folds and resets are safe now.
    fn check(&self) -> Result<(), ResetFailure> {
        if let Some(obstacle) = self.store.reset_obstacle(self.gate.now()) {
            return Err(ResetFailure::Obstacle(obstacle));
        }
        if let Some(why) = self.closed {
            return Err(ResetFailure::Obstacle(why.to_owned()));
        }
        match self.gate.fold_time() {
            Ok(_) => Ok(()),
            Err(Pause::Clock(error)) => Err(error.into()),
            Err(pause) => Err(ResetFailure::Obstacle(pause.to_string())),
        }
    }

    /// Writes the reset's row to the log. Returns the time after that, by the boot-time clock.
    async fn log(&self, attempt: &Attempt, receipt: &Receipt) -> Result<Duration, ResetFailure> {
        loop {
            let outcome = self.store.write_reset(attempt.row(), receipt).await;
            let now = self.gate.now().boot;
            match outcome {
                Ok(()) => return Ok(now),
                Err(error) if now >= attempt.send_until(&self.constants) => {
                    return Err(ResetFailure::Store(error.to_string()));
                }
                Err(_) => tokio::time::sleep(RETRY_AFTER).await,
            }
        }
    }

    /// Writes markers, until they are acknowledged or their time is over.
    async fn mark(
        &self,
        attempt: &Attempt,
        receipt: &Receipt,
        markers: &[Fold],
    ) -> Result<(), ResetFailure> {
        let may_be_sent = || {
            let boot = self.gate.now().boot;
            markers.iter().all(|marker| marker.may_be_sent(boot))
        };
        let (mut may_be_stored, mut why) = (false, "its time is over".to_owned());
        loop {
            let outcome = match may_be_sent() {
                true => self.store.write_markers(attempt.row(), receipt, markers).await,
                false => Err(WriteError::Refused(why)),
            };
            let boot = self.gate.now().boot;
            let is_late = !markers.iter().all(|marker| marker.ack_stands(boot, &self.constants));
            let Err(error) = outcome else {
                return match is_late && self.flaw != Some(ResetFlaw::NoLookAfterMarker) {
                    // A fold that does not know of the reset can lie above the marker.
                    true => Err(ResetFailure::Unknown(
                        "its marker was acknowledged too late".to_owned(),
                    )),
                    false => {
                        markers.iter().for_each(|marker| self.changes.happened(marker.key()));
                        Ok(())
                    }
                };
            };
            may_be_stored |= matches!(error, WriteError::Unknown(_));
            let gap = self.store.log_gap(self.gate.now().wall);
            if gap.is_some() || !may_be_sent() {
                return Err(match (may_be_stored, gap) {
                    (true, _) => ResetFailure::Unknown(error.to_string()),
                    (false, Some(gap)) => ResetFailure::Obstacle(gap.to_string()),
                    (false, None) => ResetFailure::Store(error.to_string()),
                });
            }
            why = error.to_string();
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }

    /// The boot-time clock goes on while the process or the machine stands still, and timers may not.
    async fn sleep_until(&self, boot: Duration) {
        while let Some(left) = boot.checked_sub(self.gate.now().boot).filter(|left| !left.is_zero())
        {
            tokio::time::sleep(left).await;
        }
    }
}

fn out_of_time() -> ResetFailure {
    ResetFailure::Store("its time is over".to_owned())
}

/// Divides markers into batches that a store takes as one mutation. A marker lists ids, so it can be large.
fn batches(markers: &[Fold]) -> Vec<&[Fold]> {
    by_bytes(markers, limits::RESET_BATCH_BYTES_MAX, |marker| marker.tally().len())
}

fn by_bytes<T>(all: &[T], bytes_max: usize, bytes_of: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let (mut batches, mut rest) = (Vec::new(), all);
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |one: &&T| {
            bytes += bytes_of(one);
            bytes <= bytes_max
        };
        let count = rest.iter().take_while(fits).count().max(1);
        let (batch, others) = rest.split_at(count);
        batches.push(batch);
        rest = others;
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_bounded_by_bytes_and_lose_nothing() {
        let all = [3, 4, 3, 1, 20, 9, 1, 1];
        let batches = by_bytes(&all, 10, |bytes| *bytes);
        assert_eq!(batches, [&[3, 4, 3][..], &[1], &[20], &[9, 1], &[1]]);
        assert!(by_bytes(&[], 10, |bytes: &usize| *bytes).is_empty());
    }
}
