//! The write path of this pod: group commit, rest, drain.
//!
//! Each key has at most one mutator that takes ops. An update goes through these modules in order:
//!
//! 1. `accept`: its key's mutator takes the ops. The mutator is awake, wakes from rest, or is born.
//! 2. `queue`: a mutator with something to write waits for the next request to its first replica.
//! 3. `send`: a request begins the writes of mutators that wait together, and brings them to the store.
//! 4. `finish`: the mutators get the outcome. Those with more to write are queued again, after a pause if
//!    the write was not acknowledged. A dead mutator's successor accepts the ops that it leaves behind.
//! 5. `answer`: the client gets the outcome of its ops.
//!
//! Ops that arrive during a write go with the next write. So on a hot key an op needs fewer writes, and on a
//! busy pod a write needs fewer requests.
//!
//! An accepted op list belongs to its mutator: if the client disconnects, nothing is cancelled. A client
//! waits for the write of its ops until its deadline. Ops that were never sent are then withdrawn and
//! refused; ops that were sent are unknown.
//!
//! A mutator that was born before a reset of its key takes no more ops, and its acknowledgements stand only for a
//! while: see [`orderfree_core::protocol::reset`].
//!
//! A clean mutator that is not used goes to rest. It then takes only a few bytes, and the same mutator
//! wakes at its key's next op. If memory for mutators at rest runs out, one is evicted, and its key's next
//! op gets a new mutator and a new row.
//!
//! Lock order: shedding, then a map part, then an entry, then births, known keys or the log of resets. A task
//! never takes a map lock while it holds an entry's lock, and never holds a lock across an await.

mod accept;
mod alive_ids;
mod answer;
mod births;
mod bounds;
mod completion;
mod entry;
mod finish;
mod large_states;
mod queue;
mod refused;
mod resting;
mod send;
mod table;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use orderfree_core::crdt::Op;
use orderfree_core::protocol::hybrid::HybridClock;
use orderfree_core::protocol::op_id::NamedOp;
use orderfree_core::protocol::{Constants, Durability, Key, Timestamp};

use crate::engine::Context;
use crate::engine::changes::Changes;
use crate::engine::clock_gate::ClockGate;
use crate::engine::metrics::Metrics;
use crate::engine::resets::Resets;
use crate::policy::Policies;
use crate::runtime::latency::LatencyEstimate;
use crate::runtime::random::Random;
use crate::runtime::sync::{AtomicBool, Instant, Mutex, Ordering, consume_budget, sleep, timeout};
use crate::runtime::tasks::Tasks;
use crate::store::Shards;
use alive_ids::AliveIds;
pub use bounds::Bounds;
use entry::{Entry, Totals};
use queue::WriteQueue;
pub use refused::{Refused, UpdateError};
use table::{Moves, MutatorTable};

/// First and longest pause after a write that was not acknowledged.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How often unused mutators, and mutators that no longer take ops, are looked for.
const TIDY_EVERY: Duration = Duration::from_secs(10);

/// The pause between two looks at a write that is under way.
const UNDER_WAY_LOOK_EVERY: Duration = Duration::from_millis(1);

/// See the [module documentation](self).
pub struct Mutators {
    table: MutatorTable,
    store: Arc<dyn Shards>,
    gate: Arc<ClockGate>,
    constants: Constants,
    metrics: Arc<Metrics>,
    random: Random,
    /// All tasks that bring accepted ops to the store.
    flushers: Tasks,
    write_queue: Mutex<WriteQueue>,
    latency: LatencyEstimate,
    totals: Totals,
    alive_ids: AliveIds,
    closed: AtomicBool,
    /// Timestamps the ops of timed kinds.
    hybrid: Mutex<HybridClock>,
    policies: Policies,
    resets: Arc<Resets>,
    changes: Arc<Changes>,
}

/// One op list, applied all or none.
#[derive(Debug, Clone)]
pub struct Update {
    pub ops: Vec<Op>,
    /// The client's name for it, under which it counts once.
    pub name: Option<NamedOp>,
}

impl From<Vec<Op>> for Update {
    fn from(ops: Vec<Op>) -> Update {
        Update { ops, name: None }
    }
}

/// Updates of one key from one client request.
#[derive(Debug, Clone)]
pub struct Updates {
    pub key: Key,
    pub lists: Vec<Update>,
}

/// The mutators of some keys, which can have writes under way.
pub struct UnderWay(Vec<Arc<Entry>>);

impl UnderWay {
    /// Waits until these writes have ended, but at most for this long. The mutators must take no further ops.
    pub async fn end(self, wait_max: Duration) {
        let ended = async {
            for entry in self.0 {
                while entry.lock().is_flushing() {
                    sleep(UNDER_WAY_LOOK_EVERY).await;
                }
            }
        };
        let _ = timeout(wait_max, ended).await;
    }
}

impl Mutators {
    #[must_use]
    pub fn new(
        store: Arc<dyn Shards>,
        context: Context,
        bounds: Bounds,
        policies: Policies,
    ) -> Arc<Mutators> {
        let Context { gate, constants, metrics, random, resets, changes } = context;
        // Two honest clocks differ by twice the offset limit.
        let hybrid = HybridClock::new(2 * constants.clock_offset_max(), store.latest_stamp());
        let flushers = Tasks::counting(metrics.panics.clone());
        Arc::new(Mutators {
            table: MutatorTable::new(bounds, constants),
            gate,
            constants,
            metrics,
            random,
            flushers,
            write_queue: Mutex::new(WriteQueue::new(store.request_limits())),
            latency: LatencyEstimate::default(),
            totals: Totals::default(),
            alive_ids: AliveIds::default(),
            closed: AtomicBool::new(false),
            hybrid: Mutex::new(hybrid),
            policies,
            resets,
            changes,
            store,
        })
    }

    /// Applies a list of ops to a key, all or none, and waits for the outcome that `durability` requests.
    /// Dropping the future cancels nothing that was accepted. Returns the time of the last op for
    /// last-writer-wins kinds.
    ///
    /// # Errors
    /// [`UpdateError`]: refused (certainly not counted) or unknown (may be counted).
    pub async fn update(
        self: &Arc<Self>,
        key: &Key,
        update: impl Into<Update>,
        durability: Durability,
    ) -> Result<Option<Timestamp>, UpdateError> {
        let until = self.deadline();
        let accepted = self.accept(key, update.into(), durability);
        self.answer(accepted, 1, durability, until).await
    }

    /// Applies updates of many keys. Each update has its own outcome; outcomes keep the order of the
    /// updates. All updates are accepted or refused before the wait for the first write begins.
    pub async fn update_all(
        self: &Arc<Self>,
        keys: Vec<Updates>,
        durability: Durability,
    ) -> Vec<Result<Option<Timestamp>, UpdateError>> {
        self.update_or_leave(keys, durability, false).await.0
    }

    /// Like [`Mutators::update_all`], but with `leaves` it leaves updates that meet a limit of this pod, and
    /// the later ones of their keys. Returns them, each key with its place in `keys`. They have no outcome
    /// yet.
    pub async fn update_or_leave(
        self: &Arc<Self>,
        keys: Vec<Updates>,
        durability: Durability,
        leaves: bool,
    ) -> (Vec<Result<Option<Timestamp>, UpdateError>>, Vec<(usize, Updates)>) {
        let until = self.deadline();
        let (mut accepted, mut left) = (Vec::with_capacity(keys.len()), Vec::new());
        for (place, updates) in keys.into_iter().enumerate() {
            let rest = self.accept_all(updates, durability, leaves, &mut accepted);
            left.extend(rest.map(|rest| (place, rest)));
            // Many refused updates must not starve other tasks.
            consume_budget().await;
        }
        let mut outcomes = Vec::with_capacity(accepted.len());
        for (accepted, updates) in accepted {
            let outcome = self.answer(accepted, updates, durability, until).await;
            outcomes.extend(std::iter::repeat_n(outcome, updates));
        }
        (outcomes, left)
    }

    /// Puts unused mutators to rest, and drops those that no longer take ops, until the tasks stop.
    pub async fn tidy(self: Arc<Self>, tasks: Tasks) {
        while tasks.sleep(TIDY_EVERY).await {
            self.tidy_once();
        }
    }

    /// One pass of [`Mutators::tidy`].
    pub fn tidy_once(&self) {
        let moves = self.table.tidy(self.gate.now());
        self.count_moves(moves);
        self.count_mutators();
    }

    /// Sets the metrics that are computed only on demand.
    pub fn refresh_metrics(&self) {
        let (count, age) = self.alive_ids.look(self.gate.now(), &self.constants);
        self.metrics.ids_alive.set(i64::try_from(count).unwrap_or(i64::MAX));
        self.metrics.ids_age_seconds.set(age.as_secs_f64());
    }

    /// The keys, of those that `is_asked` accepts, to which this pod adds the most ops, hottest first. Each has its ops per
    /// second, measured over ten seconds that ended at most ten seconds ago.
    #[must_use]
    pub fn hottest(&self, limit: usize, is_asked: impl Fn(&Key) -> bool) -> Vec<(Key, f64)> {
        let keys = self.table.hottest(limit, is_asked);
        #[allow(clippy::cast_precision_loss, reason = "ops of ten seconds are fewer than 2^53")]
        let rate = |ops: usize| ops as f64 / TIDY_EVERY.as_secs_f64();
        keys.into_iter().map(|(key, ops)| (key, rate(ops))).collect()
    }

    /// The number of mutators being written. 0 if all updates answered from memory are stored.
    #[must_use]
    pub fn flushing(&self) -> usize {
        self.totals.flushing()
    }

    /// The writes of these keys that are under way.
    #[must_use]
    pub fn under_way(&self, keys: &[Key]) -> UnderWay {
        UnderWay(keys.iter().flat_map(|key| self.table.of_key(key)).collect())
    }

    /// Completes when a task that writes depend on has failed. Returns one sentence about it.
    pub async fn failed(&self) -> &str {
        self.flushers.failed().await
    }

    /// Takes no more ops and writes the pending ones. Returns the number of mutators that could not be
    /// written before the deadline; their last ops are unknown.
    pub async fn close(&self, deadline: Duration) -> usize {
        self.closed.store(true, Ordering::SeqCst);
        self.flushers.join(deadline).await;
        self.flushing()
    }

    /// The deadline of updates that arrive now.
    fn deadline(&self) -> Instant {
        Instant::now() + self.constants.request_budget()
    }

    fn count_moves(&self, moves: Moves) {
        self.metrics.rests.inc_by(moves.rested as u64);
        self.metrics.evictions.inc_by(moves.forgotten as u64);
    }

    fn count_mutators(&self) {
        let (resting, waiting) = (self.table.at_rest(), self.totals.waiting());
        for (gauge, count) in [
            (&self.metrics.mutators, self.table.len()),
            (&self.metrics.resting, resting.count),
            (&self.metrics.resting_bytes, resting.bytes),
            (&self.metrics.waiting, waiting),
        ] {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

#[cfg(test)]
mod tests;
