//! The metrics of a pod. Each node object has its own registry. Keys are never labels.

use std::sync::atomic::{AtomicI64, AtomicU64};

use clap::ValueEnum;
use orderfree_core::protocol::{Key, Outcome};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::runtime::tasks::{Task, TaskLabel};

/// [`Metrics::updates`] is indexed by outcome.
const _: () = {
    let mut at = 0;
    while at < Outcome::ALL.len() {
        assert!(Outcome::ALL[at] as usize == at);
        at += 1;
    }
};

/// Labels of [`Metrics::updates`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

/// Labels of [`Metrics::requests`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabel {
    /// The matched route's template, never the path.
    pub route: String,
    pub method: &'static str,
    pub status: u16,
}

/// Where the answer to a read of a key came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFrom {
    /// A read of the store.
    Store,
    /// Another request's read, which began after this request.
    Shared,
    /// A cached answer that is recent enough.
    Recent,
}

impl ReadFrom {
    fn label(self) -> ReadLabel {
        let from = match self {
            ReadFrom::Store => "store",
            ReadFrom::Shared => "shared",
            ReadFrom::Recent => "recent",
        };
        ReadLabel { from }
    }
}

/// Labels of [`Metrics::reads`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReadLabel {
    /// `store`, `shared` or `recent`.
    pub from: &'static str,
}

/// How a fold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoldEnd {
    /// A tally was written.
    Folded,
    /// The key was forgotten.
    Forgotten,
    /// There was nothing to do.
    Nothing,
    /// The store could not answer, or the write's outcome is unknown. The fold is retried later.
    Failed,
    /// An operator must act: a row can't be decoded or merged, the key has too many rows or too large a
    /// tally, or its fold hit a bug.
    Blocked,
    /// The clock or the schema did not allow the fold.
    Paused,
}

impl FoldEnd {
    fn name(self) -> &'static str {
        match self {
            FoldEnd::Folded => "folded",
            FoldEnd::Forgotten => "forgotten",
            FoldEnd::Nothing => "nothing",
            FoldEnd::Failed => "failed",
            FoldEnd::Blocked => "blocked",
            FoldEnd::Paused => "paused",
        }
    }
}

/// How a reset ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetEnd {
    /// The keys begin again.
    Done,
    /// Nothing was changed.
    Refused,
    /// It did not begin, because this pod makes no more resets now.
    Limited,
    /// It is not known.
    Unknown,
}

impl ResetEnd {
    fn label(self) -> ResetLabel {
        let end = match self {
            ResetEnd::Done => "done",
            ResetEnd::Refused => "refused",
            ResetEnd::Limited => "limited",
            ResetEnd::Unknown => "unknown",
        };
        ResetLabel { end }
    }
}

/// Labels of [`Metrics::resets`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ResetLabel {
    /// `done`, `refused`, `limited` or `unknown`.
    pub end: &'static str,
}

/// What met an id with several contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdConflict {
    /// An update, which was refused.
    Update,
    /// A read of the key. Each read meets it again until a fold has taken it.
    Read,
    /// A fold.
    Fold,
}

impl IdConflict {
    fn label(self) -> IdConflictLabel {
        let by = match self {
            IdConflict::Update => "update",
            IdConflict::Read => "read",
            IdConflict::Fold => "fold",
        };
        IdConflictLabel { by }
    }
}

/// Labels of [`Metrics::id_conflicts`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct IdConflictLabel {
    /// `update`, `read` or `fold`.
    pub by: &'static str,
}

/// Labels of [`Metrics::folds`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FoldLabel {
    /// `folded`, `forgotten`, `nothing`, `failed`, `blocked` or `paused`.
    pub end: &'static str,
}

/// Labels of [`Metrics::store_errors`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StoreErrorLabel {
    /// `write_refused`, `write_unknown`, `unavailable`, `too_many_rows` or `corrupt`.
    pub class: &'static str,
}

/// Labels of [`Metrics::denied`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DeniedLabel {
    /// `unauthenticated`, `forbidden`, `rate` or `quota`.
    pub reason: &'static str,
}

/// Labels of [`Metrics::refused`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RefusedLabel {
    /// `op`, `clock`, `limit`, `quota`, `births`, `ids`, `store`, `unsent` or `stopping`.
    pub reason: &'static str,
}

/// Labels of [`Metrics::policy_reloads`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReloadLabel {
    /// `ok` or `refused`.
    pub result: &'static str,
}

/// The metrics of one node.
pub struct Metrics {
    registry: Registry,
    /// Op lists by [`Outcome`]. An array avoids a label lookup for each update.
    updates: [Counter; Outcome::ALL.len()],
    /// Refused op lists by reason.
    pub refused: Family<RefusedLabel, Counter>,
    /// HTTP requests by route, method and status.
    pub requests: Family<RequestLabel, Counter>,
    /// Duration of a request in seconds.
    pub request_seconds: Histogram,
    /// Weight of the new ops in one shard write.
    pub flush_ops: Histogram,
    /// Duration of one shard write in seconds.
    pub flush_seconds: Histogram,
    /// Mutators that are awake.
    pub mutators: Gauge,
    /// Mutators at rest.
    pub resting: Gauge,
    /// Memory of mutators at rest, in bytes.
    pub resting_bytes: Gauge,
    /// Limit of `resting_bytes`.
    pub resting_bytes_max: Gauge,
    /// Mutators that went to rest.
    pub rests: Counter,
    /// Mutators that woke from rest.
    pub wakes: Counter,
    /// New mutators. Each adds a row that a fold must remove.
    pub births: Counter,
    /// Mutators at rest that were evicted to make room.
    pub evictions: Counter,
    /// Keys whose tally was full when this pod last saw it.
    pub full_tallies: Gauge,
    /// Weight of the ops that wait for their write.
    pub waiting: Gauge,
    /// Mutators that died before their last write was acknowledged.
    pub unresolved_deaths: Counter,
    /// Op lists answered from memory that no acknowledged write includes and no successor inherited.
    pub memory_lost: Counter,
    /// Updates with an id that went into a pack, with repeats.
    pub id_updates: Counter,
    /// Updates with an id whose id was in the pack already.
    pub id_repeats: Counter,
    /// Ids with several contents, by where they were found.
    pub id_conflicts: Family<IdConflictLabel, Counter>,
    /// Ids in packs of this pod that no fold can have taken yet.
    pub ids_alive: Gauge,
    /// Age in seconds of the oldest of these ids.
    pub ids_age_seconds: Gauge<f64, AtomicU64>,
    /// Resets and deletions of keys by result.
    pub resets: Family<ResetLabel, Counter>,
    /// Resets that keys remembered and the log had lost.
    pub resets_lost: Counter,
    /// Resets that this pod remembers.
    pub resets_remembered: Gauge,
    /// Keys that are watched.
    pub watched_keys: Gauge,
    /// Time in seconds since the oldest last look at a part of the log of resets.
    pub reset_log_age_seconds: Gauge<f64, AtomicU64>,
    /// Panics by task.
    pub panics: Family<TaskLabel, Counter>,
    /// Reads of single keys by source of the answer.
    pub reads: Family<ReadLabel, Counter>,
    /// Shards merged by one read of one key.
    pub read_shards: Histogram,
    /// Folds by result.
    pub folds: Family<FoldLabel, Counter>,
    /// Shards merged into tallies by folds.
    pub folded_shards: Counter,
    /// Rows at or below a fence that came back and were deleted again.
    pub zombies: Counter,
    /// Keys that wait to be folded.
    pub fold_queue: Gauge,
    /// Number of names in the largest group that the last sweep found.
    pub group_names: Gauge,
    /// Keys whose nomination was dropped because the queue was full.
    pub fold_dropped: Counter,
    /// Age in seconds of the oldest final shard in this pod's latest fold.
    pub fold_backlog_seconds: Gauge<f64, AtomicU64>,
    /// Times that a read or fold met a row that can't be decoded or merged.
    pub undecodable: Counter,
    /// Store errors by class.
    pub store_errors: Family<StoreErrorLabel, Counter>,
    /// Largest measured clock offset in µs.
    pub clock_offset_us: Gauge<i64, AtomicI64>,
    /// 1 while a quorum of the local data centre answers, else 0.
    pub store_quorum: Gauge,
    /// Times that a fence proved that a clock has moved.
    pub clock_moved: Counter,
    /// Denied requests and denied updates of batches, by reason.
    pub denied: Family<DeniedLabel, Counter>,
    /// Reloads of files by result.
    pub policy_reloads: Family<ReloadLabel, Counter>,
    /// Open connections.
    pub connections: Gauge,
    /// Limit of `connections`.
    pub connections_max: Gauge,
    /// Limit of `mutators`.
    pub mutators_max: Gauge,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl Metrics {
    #[must_use]
    pub fn new() -> Metrics {
        let seconds = || Histogram::new(exponential_buckets(0.000_25, 2.0, 16));
        let counts = || Histogram::new(exponential_buckets(1.0, 2.0, 16));
        let updates = Family::<OutcomeLabel, Counter>::default();
        let mut metrics = Metrics {
            registry: Registry::with_prefix("orderfree"),
            updates: Outcome::ALL.map(|outcome| {
                updates.get_or_create_owned(&OutcomeLabel { outcome: outcome.name() })
            }),
            refused: Family::default(),
            requests: Family::default(),
            request_seconds: seconds(),
            flush_ops: counts(),
            flush_seconds: seconds(),
            mutators: Gauge::default(),
            resting: Gauge::default(),
            resting_bytes: Gauge::default(),
            resting_bytes_max: Gauge::default(),
            rests: Counter::default(),
            wakes: Counter::default(),
            births: Counter::default(),
            evictions: Counter::default(),
            full_tallies: Gauge::default(),
            waiting: Gauge::default(),
            unresolved_deaths: Counter::default(),
            memory_lost: Counter::default(),
            id_updates: Counter::default(),
            id_repeats: Counter::default(),
            id_conflicts: Family::default(),
            ids_alive: Gauge::default(),
            ids_age_seconds: Gauge::default(),
            resets: Family::default(),
            resets_lost: Counter::default(),
            resets_remembered: Gauge::default(),
            watched_keys: Gauge::default(),
            reset_log_age_seconds: Gauge::default(),
            panics: Family::default(),
            reads: Family::default(),
            read_shards: counts(),
            folds: Family::default(),
            folded_shards: Counter::default(),
            zombies: Counter::default(),
            fold_queue: Gauge::default(),
            group_names: Gauge::default(),
            fold_dropped: Counter::default(),
            fold_backlog_seconds: Gauge::default(),
            undecodable: Counter::default(),
            store_errors: Family::default(),
            clock_offset_us: Gauge::default(),
            store_quorum: Gauge::default(),
            clock_moved: Counter::default(),
            denied: Family::default(),
            policy_reloads: Family::default(),
            connections: Gauge::default(),
            connections_max: Gauge::default(),
            mutators_max: Gauge::default(),
        };
        metrics.register(updates);
        metrics.begin_at_zero();
        metrics
    }

    fn register(&mut self, updates: Family<OutcomeLabel, Counter>) {
        let r = &mut self.registry;
        r.register("updates", "Updates by outcome; an update has one or more ops", updates);
        r.register("refused", "Refused updates by reason", self.refused.clone());
        r.register("requests", "HTTP requests", self.requests.clone());
        let seconds = Unit::Seconds;
        r.register_with_unit(
            "request",
            "Duration of a request",
            seconds,
            self.request_seconds.clone(),
        );
        r.register(
            "flush_ops",
            "New ops in one shard write; a long op counts as several",
            self.flush_ops.clone(),
        );
        let seconds = Unit::Seconds;
        r.register_with_unit(
            "flush",
            "Duration of a shard write",
            seconds,
            self.flush_seconds.clone(),
        );
        r.register("mutators", "Mutators that are awake", self.mutators.clone());
        r.register("mutators_resting", "Mutators at rest", self.resting.clone());
        let help = "Memory of mutators at rest in bytes";
        r.register("resting_bytes", help, self.resting_bytes.clone());
        let help = "Limit of the memory of mutators at rest in bytes";
        r.register("resting_bytes_max", help, self.resting_bytes_max.clone());
        r.register("rests", "Mutators that went to rest", self.rests.clone());
        r.register("wakes", "Mutators that woke from rest", self.wakes.clone());
        r.register("births", "New mutators", self.births.clone());
        let help = "Mutators at rest that were evicted to make room";
        r.register("evictions", help, self.evictions.clone());
        let help = "Keys whose tally was full when this pod last saw it";
        r.register("full_tallies", help, self.full_tallies.clone());
        r.register(
            "waiting",
            "Ops that wait for their write; a long op counts as several",
            self.waiting.clone(),
        );
        let help = "Mutators that died before their last write was acknowledged";
        r.register("unresolved_deaths", help, self.unresolved_deaths.clone());
        r.register(
            "memory_lost",
            "Lost updates that were answered from memory",
            self.memory_lost.clone(),
        );
        let help = "Updates with an id that this pod took, with repeats; kinds that need no id are not counted";
        r.register("id_updates", help, self.id_updates.clone());
        let help = "Repeated updates whose id was still in the pack that this pod writes for the key; it does \
                    not see others";
        r.register("id_repeats", help, self.id_repeats.clone());
        let help = "Ids with several contents, by where they were found (update, fold or read); each read \
                    counts them again";
        r.register("id_conflicts", help, self.id_conflicts.clone());
        let help = "Ids that this pod stored since its start and that no fold can have taken yet";
        r.register("ids_alive", help, self.ids_alive.clone());
        let help = "Time since this pod stored the oldest id that no fold can have taken yet";
        let (unit, gauge) = (Unit::Seconds, self.ids_age_seconds.clone());
        r.register_with_unit("ids_oldest_age", help, unit, gauge);
        r.register("resets", "Resets and deletions of keys by result", self.resets.clone());
        let help = "Resets that keys remembered and the log had lost; they are logged again";
        r.register("resets_lost", help, self.resets_lost.clone());
        let help = "Resets that this pod remembers because cleared rows can reappear";
        r.register("resets_remembered", help, self.resets_remembered.clone());
        r.register("watched_keys", "Keys that clients watch", self.watched_keys.clone());
        let help =
            "Time since this pod read the log of resets; it takes no updates above a few seconds";
        let (unit, gauge) = (Unit::Seconds, self.reset_log_age_seconds.clone());
        r.register_with_unit("reset_log_age", help, unit, gauge);
        r.register("panics", "Panics by task", self.panics.clone());
        let help = "Reads of single keys by source of the answer";
        r.register("reads", help, self.reads.clone());
        r.register("read_shards", "Shards merged by one read of a key", self.read_shards.clone());
        r.register("folds", "Folds by result", self.folds.clone());
        r.register("folded_shards", "Shards merged into tallies", self.folded_shards.clone());
        r.register("zombies", "Rows below a fence that came back", self.zombies.clone());
        r.register("fold_queue", "Keys that wait to be folded", self.fold_queue.clone());
        let help = "Number of names in the largest group that the last sweep found";
        r.register("group_names", help, self.group_names.clone());
        r.register(
            "fold_dropped",
            "Keys not queued for a fold because the queue was full",
            self.fold_dropped.clone(),
        );
        let help = "Age of the oldest final shard in the latest fold";
        let (unit, gauge) = (Unit::Seconds, self.fold_backlog_seconds.clone());
        r.register_with_unit("fold_backlog_age", help, unit, gauge);
        r.register(
            "undecodable",
            "Reads and folds of keys whose rows can't be decoded or merged",
            self.undecodable.clone(),
        );
        r.register("store_errors", "Store errors by class", self.store_errors.clone());
        let help = "Largest measured clock offset in microseconds";
        r.register("clock_offset_us", help, self.clock_offset_us.clone());
        let help = "1 while a quorum of the local data centre answers, else 0";
        r.register("store_quorum", help, self.store_quorum.clone());
        r.register(
            "clock_moved",
            "Fences that proved that a clock has moved",
            self.clock_moved.clone(),
        );
        let help = "Denied requests and denied updates of batches, by reason";
        r.register("denied", help, self.denied.clone());
        let help =
            "Reloads of the policy file, the certificate and the access to Cassandra by result";
        r.register("policy_reloads", help, self.policy_reloads.clone());
        r.register("connections", "Open connections", self.connections.clone());
        let help = "Limit of open connections";
        r.register("connections_max", help, self.connections_max.clone());
        r.register("mutators_max", "Limit of mutators that are awake", self.mutators_max.clone());
    }

    /// Creates the series that alerts watch at zero, so their first event shows as an increase. The series of
    /// updates exist already.
    fn begin_at_zero(&self) {
        for from in [ReadFrom::Store, ReadFrom::Shared, ReadFrom::Recent] {
            self.reads.get_or_create(&from.label()).inc_by(0);
        }
        use FoldEnd::{Blocked, Failed, Folded, Forgotten, Paused};
        for end in [Folded, Forgotten, Failed, Blocked, Paused] {
            self.folds.get_or_create(&FoldLabel { end: end.name() }).inc_by(0);
        }
        for met in [IdConflict::Update, IdConflict::Read, IdConflict::Fold] {
            self.id_conflicts.get_or_create(&met.label()).inc_by(0);
        }
        for end in [ResetEnd::Done, ResetEnd::Refused, ResetEnd::Limited, ResetEnd::Unknown] {
            self.resets.get_or_create(&end.label()).inc_by(0);
        }
        for class in ["write_refused", "write_unknown", "unavailable", "too_many_rows", "corrupt"] {
            self.store_errors.get_or_create(&StoreErrorLabel { class }).inc_by(0);
        }
        for reason in [
            "op", "clock", "resets", "limit", "quota", "births", "ids", "store", "unsent",
            "stopping",
        ] {
            self.refused.get_or_create(&RefusedLabel { reason }).inc_by(0);
        }
        for reason in ["unauthenticated", "forbidden", "rate", "quota"] {
            self.denied.get_or_create(&DeniedLabel { reason }).inc_by(0);
        }
        for task in Task::value_variants().iter().filter(|task| !task.is_vital()) {
            self.panics.get_or_create(&TaskLabel { task: task.name() }).inc_by(0);
        }
        for result in ["ok", "refused"] {
            self.policy_reloads.get_or_create(&ReloadLabel { result }).inc_by(0);
        }
    }

    /// Counts op lists by outcome.
    pub fn count_updates(&self, outcome: Outcome, count: u64) {
        self.updates[outcome as usize].inc_by(count);
    }

    /// Counts refused op lists.
    pub fn count_refused(&self, reason: &'static str, count: u64) {
        self.refused.get_or_create(&RefusedLabel { reason }).inc_by(count);
    }

    /// Counts a read of a key.
    pub fn count_read(&self, from: ReadFrom) {
        self.reads.get_or_create(&from.label()).inc();
    }

    /// The number of reads answered from this source.
    #[must_use]
    pub fn reads_from(&self, from: ReadFrom) -> u64 {
        self.reads.get_or_create(&from.label()).get()
    }

    /// Counts a fold by result.
    pub fn count_fold(&self, end: FoldEnd) {
        self.folds.get_or_create(&FoldLabel { end: end.name() }).inc();
    }

    /// Counts a reset by result.
    pub fn count_reset(&self, end: ResetEnd) {
        self.resets.get_or_create(&end.label()).inc();
    }

    /// Counts ids with several contents.
    pub fn count_conflicts(&self, met: IdConflict, count: usize) {
        self.id_conflicts.get_or_create(&met.label()).inc_by(count as u64);
    }

    /// Counts a key's ids with several contents. The log names the key and never an id, which can be a secret.
    pub fn note_conflicts(&self, met: IdConflict, key: &Key, count: usize) {
        if count > 0 {
            self.count_conflicts(met, count);
            tracing::warn!(%key, ids = count, "ids were used for several contents; one of each counts");
        }
    }

    /// Counts a store error.
    pub fn count_store_error(&self, class: &'static str) {
        self.store_errors.get_or_create(&StoreErrorLabel { class }).inc();
    }

    /// Returns all metrics in the OpenMetrics text format.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)
            .expect("invariant: writing to a String does not fail");
        text
    }
}
