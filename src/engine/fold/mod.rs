//! Folding in the background: a bounded queue fed by reads, and a sweep for keys that are not read.
//!
//! Every pod folds, and any number of pods can fold one key at once, because a fold's batch is idempotent.
//! This module only limits the load: it folds keys of one partition together (`by_partition.rs`), runs one
//! fold of a key at a time, gives the store rests, and backs off while nodes are down (`pace.rs`).

mod busy;
mod by_partition;
mod largest;
mod looks;
mod pace;
mod purge;
mod results;

use std::collections::HashSet;
use std::slice;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use lru::LruCache;
use orderfree_core::protocol::clock::ClockError;
use orderfree_core::protocol::fold::{
    self, Fold, FoldError, Grave, Idle, Plan, Report, TALLY_BYTES_MAX,
};
use orderfree_core::protocol::prefix::Until;
use orderfree_core::protocol::sweep::{IdleRules, Nomination, Nominator};
use orderfree_core::protocol::{Constants, FullRead, Key, Now, Timestamp, WriteOutcome};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::engine::Context;
use crate::engine::clock_gate::ClockGate;
use crate::engine::metrics::{FoldEnd, IdConflict, Metrics};
use crate::engine::resets::Resets;
use crate::limits;
use crate::policy::Policies;
use crate::runtime::random::Random;
use crate::runtime::sync::lock;
use crate::runtime::tasks::{Task, Tasks};
use crate::store::{Folds, Pause, Reads, StoreError, SweepPart, prefix};
use busy::Busy;
use largest::Largest;
use looks::Looks;
use pace::Pace;
pub use purge::PurgeReport;
pub use results::{FoldFailure, FoldResult, SweepReport};

/// The shortest time between two sweeps of the whole key space.
const SWEEP_EVERY_MIN: Duration = Duration::from_secs(10);

/// The time between two writes of a young grave by one pod.
const GRAVE_AGAIN_AFTER: Duration = Duration::from_secs(6 * 3600);

/// Maximum number of keys of a sweep that wait for their fold.
const SWEEP_AHEAD_MAX: usize = 256;

/// When a pod folds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Folding {
    /// In the background and on request.
    InBackground,
    /// Only on request.
    WhenAsked,
    /// Never.
    Off,
}

/// Folds keys; see the [module documentation](self).
pub struct Folder {
    reads: Arc<dyn Reads>,
    folds: Arc<dyn Folds>,
    gate: Arc<ClockGate>,
    constants: Constants,
    metrics: Arc<Metrics>,
    random: Random,
    resets: Arc<Resets>,
    pace: Pace,
    /// Keys in the queue, so that a hot key is queued only once.
    queued: Mutex<HashSet<Key>>,
    queue: mpsc::Sender<Nomination>,
    /// The receiving end of the queue, until [`Folder::start`] takes it.
    nominations: Mutex<Option<mpsc::Receiver<Nomination>>>,
    busy: Mutex<HashSet<Key>>,
    /// Keys whose last fold was blocked, and when, by the boot-time clock. Reads can nominate them again
    /// as often as a sweep does.
    blocked: Mutex<LruCache<Key, Duration>>,
    folding: Folding,
    policies: Policies,
    looks: Looks,
    /// Contains the panics of folds.
    tasks: Tasks,
}

impl Folder {
    /// Creates a folder. Background folds begin with [`Folder::start`].
    #[must_use]
    pub fn new(
        reads: Arc<dyn Reads>,
        folds: Arc<dyn Folds>,
        context: Context,
        folding: Folding,
        policies: Policies,
    ) -> Arc<Folder> {
        let Context { gate, constants, metrics, random, resets, .. } = context;
        let (queue, nominations) = mpsc::channel(limits::FOLD_QUEUE_MAX);
        Arc::new(Folder {
            reads,
            folds,
            gate,
            constants,
            tasks: Tasks::counting(metrics.panics.clone()),
            metrics,
            pace: Pace::new(random.clone()),
            random,
            resets,
            queued: Mutex::default(),
            queue,
            nominations: Mutex::new(Some(nominations)),
            busy: Mutex::default(),
            blocked: Mutex::new(limits::cache(limits::FOLD_BLOCKED_MAX)),
            folding,
            policies,
            looks: Looks::default(),
        })
    }

    /// Starts the queue's worker and the sweep, if this pod folds in the background.
    pub fn start(self: &Arc<Self>, tasks: &Tasks) {
        if self.folding != Folding::InBackground {
            return;
        }
        let Some(nominations) = lock(&self.nominations).take() else { return };
        tasks.spawn(Task::FoldQueue, Arc::clone(self).work(nominations, tasks.clone()));
        tasks.spawn(Task::FoldSweep, Arc::clone(self).sweep_forever(tasks.clone()));
    }

    /// Queues a key. A full queue drops the key; the sweep finds it again.
    pub fn nominate(&self, nomination: Nomination) {
        if self.folding != Folding::InBackground {
            return;
        }
        // A blocked key would be folded at every read, without effect.
        let blocked = lock(&self.blocked).get(&nomination.key).copied();
        if blocked.is_some_and(|since| self.gate.now().boot < since + self.constants.sweep_every())
        {
            return;
        }
        let is_new = lock(&self.queued).insert(nomination.key.clone());
        if is_new && let Err(error) = self.queue.try_send(nomination) {
            lock(&self.queued).remove(&error.into_inner().key);
            self.metrics.fold_dropped.inc();
        }
    }

    /// Folds one key now, or returns what a fold would do.
    ///
    /// # Errors
    /// [`FoldFailure`]: no value changed.
    pub async fn fold(&self, key: &Key, dry_run: bool) -> Result<FoldResult, FoldFailure> {
        let mut all = self.fold_step(key, dry_run).await?;
        for _ in 1..limits::FOLD_STEPS_MAX {
            if !all.written || !all.report.has_more {
                break;
            }
            // If this step fails, the earlier steps stand, and `has_more` stays set.
            let Ok(step) = self.fold_step(key, dry_run).await else { break };
            all.fence = step.fence;
            let Report { fence_before, evidence_before, reset, .. } = all.report;
            let mut report = Report { fence_before, evidence_before, reset, ..step.report };
            report.folded += all.report.folded;
            report.cleared += all.report.cleared;
            report.zombies += all.report.zombies;
            report.united += all.report.united;
            all.report = report;
        }
        Ok(all)
    }

    /// Folds a key, or the oldest part of a long one.
    async fn fold_step(&self, key: &Key, dry_run: bool) -> Result<FoldResult, FoldFailure> {
        let results = self.fold_together(slice::from_ref(key), dry_run).await;
        results.into_iter().next().expect("invariant: each key has its result")
    }

    /// Folds keys of one partition with one read and one write. Each key has its own result.
    async fn fold_together(
        &self,
        keys: &[Key],
        dry_run: bool,
    ) -> Vec<Result<FoldResult, FoldFailure>> {
        // Also on request: operators switch folds off while replicas move or are restored from a backup. A
        // fold then could read less than all replicas and miss their rows.
        if self.folding == Folding::Off && !dry_run {
            return vec![Err(Pause::Off.into()); keys.len()];
        }
        let mine: Vec<Option<Busy>> = keys.iter().map(|key| Busy::take(&self.busy, key)).collect();
        let free: Vec<Key> = mine.iter().flatten().map(|busy| busy.key.clone()).collect();
        let folding = self.tasks.contain(Task::Fold, self.fold_free(&free, dry_run));
        let of_free = folding.await.unwrap_or_else(|panic| Err(FoldFailure::Bug(panic)));
        let mut of_free =
            of_free.unwrap_or_else(|failure| vec![Err(failure); free.len()]).into_iter();
        let results = mine.iter().map(|busy| match busy {
            Some(_) => of_free.next().expect("invariant: each key has its result"),
            None => Err(FoldFailure::Busy),
        });
        let results: Vec<_> = results.collect();
        for (key, result) in keys.iter().zip(&results) {
            match result {
                // A full tally needs an operator too.
                Ok(FoldResult { report, .. }) if report.is_full => {
                    lock(&self.blocked).put(key.clone(), self.gate.now().boot);
                }
                Ok(_) => {
                    lock(&self.blocked).pop(key);
                }
                // It is not known which key failed.
                Err(FoldFailure::Read(_) | FoldFailure::Bug(_)) if keys.len() > 1 => {}
                Err(failure) if failure.is_blocked() => {
                    lock(&self.blocked).put(key.clone(), self.gate.now().boot);
                }
                Err(_) => {}
            }
        }
        results
    }

    /// Folds keys that no other fold in this pod has taken.
    async fn fold_free(
        &self,
        keys: &[Key],
        dry_run: bool,
    ) -> Result<Vec<Result<FoldResult, FoldFailure>>, FoldFailure> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        // Take the time before the read: a write of a shard that is final now can't be acknowledged later.
        // A pause between the two must not make the time that is left for forgetting a key longer.
        let began = self.gate.now();
        let now = self.gate.fold_time()?;
        let plans: Vec<_> = match (self.reads.read_for_folds(keys).await, keys) {
            (Ok(reads), _) => {
                if self.folds.rows_never_return() && !dry_run {
                    self.remove_old_graves(&reads, now).await;
                }
                reads.iter().map(|read| self.plan(read, now, began)).collect()
            }
            (Err(StoreError::TooManyRows { .. }), [key]) => vec![self.plan_part(key, now).await],
            (Err(error), _) => return Err(error.into()),
        };
        let folds: Vec<Fold> = plans.iter().flatten().filter_map(Plan::fold).cloned().collect();
        let outcome = match dry_run || folds.is_empty() {
            true => None,
            false => {
                // One of the keys may have shown that a clock has moved (I12).
                self.gate.fold_time()?;
                Some(self.folds.write_folds(&folds).await)
            }
        };
        let results = keys.iter().zip(plans);
        let results = results.map(|(key, plan)| self.result(key, &plan?, outcome.as_ref()));
        Ok(results.collect())
    }

    fn plan(&self, read: &FullRead, now: Timestamp, began: Now) -> Result<Plan, FoldFailure> {
        // The time of folds is that of the slowest clock. If a node's clock is slower than allowed, a grave would lie too
        // low to win against folds by pods that do not ask this node.
        let is_sound = began.wall <= now.plus(2 * self.constants.clock_offset_max());
        let idle_ttl = self.policies.idle_ttl(read.key()).filter(|_| is_sound);
        let idle = idle_ttl.map(|ttl| Idle { ttl, read_at: began.boot });
        let plan = fold::plan_or_forget(read, idle, now, &self.constants)
            .map_err(|error| self.blocked(read.key(), error))?;
        self.note(read, plan.report(), now);
        Ok(plan)
    }

    /// A grave keeps rows from coming back. Where none can, an old grave has no use. If this fails, the next fold of
    /// the key tries again.
    async fn remove_old_graves(&self, reads: &[FullRead], now: Timestamp) {
        for grave in reads.iter().filter_map(|read| Grave::of(read, now, &self.constants)) {
            if let Err(error) = self.folds.remove_grave(&grave).await {
                tracing::debug!(key = %grave.key(), %error, "a grave was not removed");
            }
        }
    }

    /// Plans a fold of the oldest final shards of a key that has too many rows for one answer.
    async fn plan_part(&self, key: &Key, now: Timestamp) -> Result<Plan, FoldFailure> {
        let cut = fold::cut(now, &self.constants);
        let until = Until::cut(cut, self.reads.bounds(key.kind).fold_step, TALLY_BYTES_MAX);
        let blocked = |error| self.blocked(key, error);
        let read = prefix::read(&*self.reads, key, cut, until, prefix::FOLD_TRIES_MAX)
            .await
            .map_err(|error| match error {
                prefix::Failed::Store(error) => FoldFailure::Read(error),
                prefix::Failed::Row(error) => blocked(FoldError::Row(error)),
                prefix::Failed::TooLarge => unreachable!("invariant: a fold has no such bound"),
            })?;
        let reset = read.tally().and_then(|(_, reset)| reset.cloned());
        let plan = fold::plan_prefix(read, now, &self.constants).map_err(blocked)?;
        if let Some(evidence) = plan.report().evidence_before {
            self.gate.observe(evidence);
        }
        if let Some(reset) = reset {
            self.resets.met(key, &reset, self.gate.now().wall);
        }
        Ok(plan)
    }

    /// The result of a plan, or its expected result if nothing was written.
    fn result(
        &self,
        key: &Key,
        plan: &Plan,
        outcome: Option<&WriteOutcome>,
    ) -> Result<FoldResult, FoldFailure> {
        let report = *plan.report();
        if report.fence_before.is_some() || report.is_full {
            self.gate.observe_tally(key, report.is_full, report.reset);
        }
        match (plan, outcome) {
            (Plan::Nothing(_), _) => {
                Ok(FoldResult { report, fence: report.fence_before, written: false })
            }
            (Plan::Fold(fold), None) => {
                Ok(FoldResult { report, fence: Some(fold.fence()), written: false })
            }
            (Plan::Fold(fold), Some(Ok(()))) => {
                self.metrics.zombies.inc_by(report.zombies as u64);
                if report.forgotten {
                    tracing::debug!(%key, "a key was forgotten, because it was idle");
                } else {
                    self.metrics.folded_shards.inc_by(report.folded as u64);
                    self.metrics.note_conflicts(IdConflict::Fold, key, report.united.conflicts);
                }
                Ok(FoldResult { report, fence: Some(fold.fence()), written: true })
            }
            (Plan::Fold(_), Some(Err(error))) => Err(FoldFailure::Write(error.to_string())),
        }
    }

    /// Sweeps the whole key space once and folds the keys that need it. The sweep starts at a random part, so
    /// pods rarely work on the same keys at once.
    ///
    /// # Errors
    /// [`StoreError`] if a part could not be scanned, [`Pause`] if folding is not allowed now.
    pub async fn sweep_once(self: &Arc<Self>) -> Result<SweepReport, FoldFailure> {
        let mut report = SweepReport::default();
        self.sweep(&self.parts(), &mut report).await?;
        Ok(report)
    }

    /// Scans one part after the other, and folds the found keys during the scan.
    async fn sweep(
        &self,
        parts: &[SweepPart],
        report: &mut SweepReport,
    ) -> Result<(), FoldFailure> {
        let (found, nominations) = mpsc::channel(SWEEP_AHEAD_MAX);
        let scan = async move {
            let mut largest = 0;
            for &part in parts {
                let nominator = Nominator::new(self.gate.fold_time()?, self.constants)
                    .forgetting(Arc::new(self.policies.clone()))
                    .with_lone_rows(self.folds.folds_lone_rows());
                if let Some(size) = self.folds.sweep(part, nominator, found.clone()).await? {
                    largest::look_at(&size);
                    largest = largest.max(size.names);
                }
            }
            Ok::<usize, FoldFailure>(largest)
        };
        let nominations = by_partition::stream(nominations)
            .filter(|nomination| std::future::ready(self.is_worth_a_read(nomination)));
        let folds = by_partition::lists(nominations, self.folds.folds_max())
            .map(|keys| self.fold_politely(keys))
            .buffer_unordered(limits::FOLDS_AT_ONCE)
            .for_each(|ends| {
                ends.into_iter().for_each(|end| report.count(end));
                futures::future::ready(())
            });
        let (scanned, ()) = futures::join!(scan, folds);
        if report.forgotten > 0 {
            tracing::info!(keys = report.forgotten, "forgot idle keys");
        }
        report.largest_group = report.largest_group.max(scanned?);
        Ok(())
    }

    /// Whether to read the key. A key with only a tally is read only if it may be idle.
    fn is_worth_a_read(&self, nomination: &Nomination) -> bool {
        let Nomination { key, is_tally_alone, .. } = nomination;
        let idle_ttl = || self.policies.idle_ttl(key);
        let is_due = |ttl| self.looks.is_due(key, ttl, self.gate.now().wall);
        !is_tally_alone || idle_ttl().is_some_and(is_due)
    }

    /// Remembers since when a key can be idle at the earliest.
    fn note_look(&self, key: &Key, result: &FoldResult) {
        let (Some(fence), Some(ttl)) = (result.fence, self.policies.idle_ttl(key)) else { return };
        let now = self.gate.now().wall;
        let since = match result.report.is_grave || result.report.forgotten {
            false => fence,
            // It is written again while it is young. After that, anything that ends it has a later fence.
            true if now < fence.plus(self.constants.grave_repeats_for()) => {
                now.plus(GRAVE_AGAIN_AFTER).minus(ttl)
            }
            true => now,
        };
        self.looks.note(key, since);
    }

    async fn sweep_forever(self: Arc<Self>, tasks: Tasks) {
        let every = self.constants.sweep_every().max(SWEEP_EVERY_MIN);
        loop {
            let parts = self.parts();
            let mut largest = Largest::default();
            let pause = every / u32::try_from(parts.len()).unwrap_or(u32::MAX);
            for part in parts {
                if !tasks.sleep(pause.mul_f64(self.random.factor(0.5..1.5))).await {
                    return;
                }
                let mut report = SweepReport::default();
                let swept = tokio::select! {
                    biased;
                    () = tasks.stopped() => return,
                    swept = self.sweep(slice::from_ref(&part), &mut report) => swept,
                };
                match &swept {
                    Ok(()) if self.pace.is_allowed_again() => tracing::info!("folds go on"),
                    Ok(()) => {}
                    Err(error) => {
                        tracing::debug!(%error, "a part of the key space was not swept");
                        // Without reads, no key comes that a fold could fail for.
                        if matches!(error, FoldFailure::Paused(_)) {
                            self.went_wrong(error);
                        }
                    }
                }
                largest.of_part(swept.is_ok(), report.largest_group, &self.metrics.group_names);
            }
            largest.tell(&self.metrics.group_names);
        }
    }

    async fn work(self: Arc<Self>, nominations: mpsc::Receiver<Nomination>, tasks: Tasks) {
        let nominations = by_partition::stream(nominations);
        let lists = by_partition::lists(nominations, self.folds.folds_max());
        let folds = lists.for_each_concurrent(limits::FOLDS_AT_ONCE, |keys| {
            let folder = &self;
            async move {
                let waiting = {
                    let mut queued = lock(&folder.queued);
                    for key in &keys {
                        queued.remove(key);
                    }
                    queued.len()
                };
                folder.metrics.fold_queue.set(i64::try_from(waiting).unwrap_or(i64::MAX));
                folder.fold_politely(keys).await;
            }
        });
        // A fold that is dropped halfway is like one whose answer was lost: the next fold reads the result.
        tokio::select! {
            biased;
            () = tasks.stopped() => {}
            () = folds => {}
        }
    }

    /// Folds keys of one partition when the pace allows it. Returns the result of each.
    async fn fold_politely(&self, mut keys: Vec<Key>) -> Vec<FoldEnd> {
        self.pace.turn().await;
        let begun = Instant::now();
        let mut results = match keys.as_slice() {
            [key] => vec![self.fold(key, false).await],
            keys => self.fold_together(keys, false).await,
        };
        // One key can be the cause. It must not prevent folds of the others.
        let is_of_one = |end: &Result<FoldResult, FoldFailure>| {
            matches!(end, Err(FoldFailure::Read(_) | FoldFailure::Bug(_)))
        };
        if keys.len() > 1 && results.iter().any(is_of_one) {
            results = self.fold_alone(&mut keys).await;
        }
        let ends = keys.iter().zip(&results).map(|(key, result)| self.count(key, result));
        let ends: Vec<FoldEnd> = ends.collect();
        // A fold of the same key by another task says nothing of the store.
        let is_tried = !results.iter().all(|end| matches!(end, Err(FoldFailure::Busy)));
        match ends.iter().position(|end| matches!(end, FoldEnd::Failed | FoldEnd::Paused)) {
            Some(at) => results[at].as_ref().err().into_iter().for_each(|why| self.went_wrong(why)),
            None if is_tried && self.pace.went_well() => tracing::info!("folds go on"),
            None => {}
        }
        self.pace.rest(begun.elapsed()).await;
        ends
    }

    /// Makes folds wait after one that failed, or a sweep that was not allowed. The log says it if they wait for long.
    fn went_wrong(&self, why: &FoldFailure) {
        if self.pace.went_wrong(matches!(why, FoldFailure::Paused(_))) {
            let silent = self.gate.silent_nodes().join(", ");
            let why = why.to_string();
            tracing::warn!(why, silent, "folds wait; rows pile up meanwhile, and no count is lost");
        }
    }

    /// Folds keys one by one that could not be folded together. If the store does not answer, the remaining
    /// keys are postponed. The random start puts another key first the next time.
    async fn fold_alone(&self, keys: &mut [Key]) -> Vec<Result<FoldResult, FoldFailure>> {
        let count = u32::try_from(keys.len()).expect("invariant: a list is short");
        keys.rotate_left(self.random.below(count) as usize);
        let mut results = Vec::with_capacity(keys.len());
        for key in keys.iter() {
            let result = self.fold(key, false).await;
            if let Err(FoldFailure::Read(StoreError::Unavailable(_))) = result {
                results.resize(keys.len(), result);
                break;
            }
            results.push(result);
        }
        results
    }

    fn count(&self, key: &Key, result: &Result<FoldResult, FoldFailure>) -> FoldEnd {
        let end = match result {
            Ok(FoldResult { report, .. }) if report.is_full => FoldEnd::Blocked,
            Ok(FoldResult { written: true, report, .. }) if report.forgotten => FoldEnd::Forgotten,
            Ok(FoldResult { written: true, .. }) => FoldEnd::Folded,
            Ok(_) | Err(FoldFailure::Busy) => FoldEnd::Nothing,
            Err(FoldFailure::Paused(_)) => FoldEnd::Paused,
            Err(failure) if failure.is_blocked() => FoldEnd::Blocked,
            Err(_) => FoldEnd::Failed,
        };
        self.metrics.count_fold(end);
        match result {
            Err(error) if end == FoldEnd::Blocked => {
                tracing::error!(%key, %error, "a key can't be folded without an operator");
            }
            Err(error) => tracing::debug!(%key, %error, "a fold is postponed"),
            Ok(FoldResult { report, .. }) if report.is_full => tracing::error!(
                %key,
                "the tally of a key is full: nothing more can be folded or added to the key"
            ),
            Ok(FoldResult { report, .. }) if report.has_more => {
                let (key, rows) = (key.clone(), limits::ROWS_ALERT);
                self.nominate(Nomination { key, rows, is_tally_alone: false });
            }
            Ok(result) => self.note_look(key, result),
        }
        end
    }

    /// All parts of the key space, starting with a random one.
    fn parts(&self) -> Vec<SweepPart> {
        let of = self.folds.sweep_parts();
        let first = self.random.below(of);
        (0..of).map(|index| SweepPart { index: (first + index) % of, of }).collect()
    }

    fn blocked(&self, key: &Key, error: FoldError) -> FoldFailure {
        match error {
            FoldError::ClockMoved { evidence, .. } => {
                self.gate.observe(evidence);
                Pause::Clock(ClockError::Moved).into()
            }
            FoldError::Row(_) => {
                self.metrics.undecodable.inc();
                FoldFailure::Blocked { key: key.clone(), error }
            }
        }
    }

    fn note(&self, read: &FullRead, report: &Report, now: Timestamp) {
        if let Some(evidence) = report.evidence_before {
            self.gate.observe(evidence);
        }
        self.resets.met_in(read, self.gate.now().wall);
        let unfolded =
            |row: &&orderfree_core::protocol::Row| Some(row.expires_at) > report.fence_before;
        // A lone row that was forgotten needed no fold before.
        if report.folded > 0
            && !report.forgotten
            && let Some(oldest) = read.slice().shards().find(unfolded)
        {
            let final_since = oldest.expires_at.plus(self.constants.cutoff());
            self.metrics.fold_backlog_seconds.set(now.since(final_since).as_secs_f64());
        }
        if read.slice().len() > limits::ROWS_ALERT {
            tracing::warn!(key = %read.key(), rows = read.slice().len(), "a fold met many rows");
        }
    }
}

#[cfg(test)]
mod tests;
