//! The mutators of this pod: lookup, group commit, rest, drain.
//!
//! Each key has at most one mutator that takes ops. A mutator with something to write waits in the write
//! queue. A request writes it to the store together with others. Ops that arrive during a write go with the
//! next write. So on a hot key an op needs fewer writes, and on a busy pod a write needs fewer requests.
//!
//! An accepted op list belongs to its mutator: if the client disconnects, nothing is cancelled. A request
//! waits for the write of its ops and gives up at its own deadline. Ops that were never sent are then
//! withdrawn and refused; ops that were sent are unknown.
//!
//! A clean mutator that is not used goes to rest. It then takes only a few bytes, and the same mutator
//! wakes at its key's next op. If memory for mutators at rest runs out, one is evicted, and its key's next
//! op gets a new mutator and a new row.
//!
//! Lock order: shedding, then a map part, then an entry, then births. A task never takes a map lock while it
//! holds an entry lock, and never holds a lock across an await.

mod admission;
mod births;
mod bounds;
mod completion;
mod large_states;
mod refused;
mod resting;
mod table;
mod write_queue;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use orderfree_core::crdt::Op;
use orderfree_core::protocol::hybrid::HybridClock;
use orderfree_core::protocol::{
    Constants, Durability, Estate, Finished, Key, Now, Rejected, Ticket, Timestamp, WriteOutcome,
};

use crate::engine::Context;
use crate::engine::clock_gate::ClockGate;
use crate::engine::metrics::{Metrics, Outcome};
use crate::policy::Policies;
use crate::runtime::latency::LatencyEstimate;
use crate::runtime::random::Random;
use crate::runtime::sync::{
    AtomicBool, AtomicUsize, Instant, Mutex, Ordering, consume_budget, sleep, timeout_at,
};
use crate::runtime::tasks::Tasks;
use crate::store::Shards;
pub use bounds::Bounds;
use completion::{Completion, Verdict};
pub use refused::{Refused, UpdateError};
use table::{Entry, EntryState, Former, Moves, MutatorTable};
use write_queue::WriteQueue;

/// First and longest pause after a write that was not acknowledged.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How often unused mutators, and mutators that no longer take ops, are looked for.
const TIDY_EVERY: Duration = Duration::from_secs(10);

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
    /// Mutators that are queued, in flight, or waiting before a retry.
    unwritten: AtomicUsize,
    waiting: AtomicUsize,
    closed: AtomicBool,
    /// Timestamps the ops of timed kinds.
    hybrid: Mutex<HybridClock>,
    policies: Policies,
}

/// Updates of one key from one request. Each is a list of ops that are applied all or none.
#[derive(Debug, Clone)]
pub struct Updates {
    pub key: Key,
    /// The ops of all updates, in order.
    pub ops: Vec<Op>,
    /// The number of ops of each update.
    pub lengths: Vec<usize>,
}

/// What a mutator does after a write.
enum AfterWrite {
    /// It has more to write at once.
    WriteAgain,
    /// It must wait before a retry.
    RetryLater,
    /// It has nothing to write.
    Done,
}

/// An accepted op list: the time of its last op, for last-writer-wins kinds, and the write to wait for,
/// unless the ops are stored already.
type Taken = (Option<Timestamp>, Option<PendingOps>);

/// An accepted op list that waits for its write.
struct PendingOps {
    entry: Arc<Entry>,
    completion: Arc<Completion>,
    ticket: Ticket,
}

impl Mutators {
    #[must_use]
    pub fn new(
        store: Arc<dyn Shards>,
        context: Context,
        bounds: Bounds,
        policies: Policies,
    ) -> Arc<Mutators> {
        let Context { gate, constants, metrics, random } = context;
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
            unwritten: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            hybrid: Mutex::new(hybrid),
            policies,
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
        ops: Vec<Op>,
        durability: Durability,
    ) -> Result<Option<Timestamp>, UpdateError> {
        let until = self.deadline();
        let accepted = self.accept(key, ops, durability);
        self.outcome(accepted, 1, durability, until).await
    }

    /// Applies updates of many keys. Each update has its own outcome; outcomes keep the order of the
    /// updates. All updates are accepted or refused before the wait for the first write begins.
    pub async fn update_all(
        self: &Arc<Self>,
        keys: Vec<Updates>,
        durability: Durability,
    ) -> Vec<Result<Option<Timestamp>, UpdateError>> {
        let until = self.deadline();
        let mut accepted = Vec::with_capacity(keys.len());
        for updates in keys {
            self.accept_all(updates, durability, &mut accepted);
            // Many refused updates must not starve other tasks.
            consume_budget().await;
        }
        let mut outcomes = Vec::with_capacity(accepted.len());
        for (accepted, updates) in accepted {
            let outcome = self.outcome(accepted, updates, durability, until).await;
            outcomes.extend(std::iter::repeat_n(outcome, updates));
        }
        outcomes
    }

    /// Puts unused mutators to rest, and drops those that no longer take ops, until the tasks stop.
    pub async fn tidy(self: Arc<Self>, tasks: Tasks) {
        while tasks.sleep(TIDY_EVERY).await {
            let moves = self.table.tidy(self.gate.now());
            self.count_moves(moves);
            self.count_mutators();
        }
    }

    /// The number of mutators being written. 0 if all updates answered from memory are stored.
    #[must_use]
    pub fn flushing(&self) -> usize {
        self.unwritten.load(Ordering::SeqCst)
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

    /// Waits for the outcome of an op list, until a deadline, and counts its updates.
    async fn outcome(
        &self,
        accepted: Result<Taken, Refused>,
        updates: usize,
        durability: Durability,
        until: Instant,
    ) -> Result<Option<Timestamp>, UpdateError> {
        let result = match accepted {
            Err(refused) => Err(refused.into()),
            Ok((time, Some(waiting))) if durability == Durability::Stored => {
                self.stored(waiting, until).await.map(|()| time)
            }
            Ok((time, _)) => Ok(time),
        };
        let outcome = match (&result, durability) {
            (Ok(_), Durability::Stored) => Outcome::Acked,
            (Ok(_), Durability::Memory) => Outcome::Accepted,
            (Err(UpdateError::Refused(why)), _) => {
                self.metrics.count_refused(why.reason(), updates as u64);
                Outcome::Refused
            }
            (Err(UpdateError::Unknown(_)), _) => Outcome::Unknown,
        };
        self.metrics.count_updates(outcome, updates as u64);
        result
    }

    /// Waits for the write, until a deadline.
    async fn stored(&self, waiting: PendingOps, until: Instant) -> Result<(), UpdateError> {
        let PendingOps { entry, completion, ticket } = waiting;
        if let Ok(verdict) = timeout_at(until, completion.verdict()).await {
            return completion.of(ticket, verdict);
        }
        let budget = self.constants.request_budget();
        let mut state = entry.lock();
        if let Some(verdict) = completion.verdict_now() {
            return completion.of(ticket, verdict);
        }
        let queued = state.mutator.queued();
        match state.mutator.withdraw(ticket) {
            Some(rejected) => {
                self.waiting.fetch_sub(queued - state.mutator.queued(), Ordering::Relaxed);
                self.reject(&entry, &state, rejected);
                Err(Refused::Deadline(budget).into())
            }
            None => match completion.rejection(ticket) {
                Some(error) => Err(Refused::Op(error).into()),
                None => Err(UpdateError::Unknown(format!(
                    "it was sent, but the store did not acknowledge it within {budget:?}"
                ))),
            },
        }
    }

    /// Passes a write's outcome on to the waiters.
    fn finish(&self, entry: &Entry, outcome: WriteOutcome, now: Now) -> AfterWrite {
        let mut state = entry.lock();
        let queued = state.mutator.queued();
        let finished = state.mutator.finish_write(outcome, now);
        let resolve = |writes: &mut Vec<Arc<Completion>>, verdict: &Verdict| {
            writes.drain(..).for_each(|write| write.resolve(verdict.clone()));
        };
        let mut went_well = false;
        match finished {
            Finished::Acked => {
                resolve(&mut state.sent_writes, &Verdict::Acked);
                went_well = true;
            }
            Finished::TooLate => {
                let reason = "the store acknowledged after the writer's lease had expired";
                resolve(&mut state.sent_writes, &Verdict::Unknown(reason.into()));
                went_well = true;
            }
            Finished::Refused { reason, rejected } => {
                self.metrics.count_store_error("write_refused");
                let write = state.sent_writes.pop().expect("invariant: a write was in flight");
                write.resolve(Verdict::Refused(Refused::Store(reason)));
                // More ops wait than before if the undone write had ops answered from memory. Fewer
                // wait if some ops fitted only on top of the undone write.
                self.waiting.fetch_add(state.mutator.queued(), Ordering::Relaxed);
                self.waiting.fetch_sub(queued, Ordering::Relaxed);
                self.reject(entry, &state, rejected);
            }
            Finished::Unknown(reason) => {
                self.metrics.count_store_error("write_unknown");
                // Drop the completions whose waiters have all given up.
                state.sent_writes.retain(|write| Arc::strong_count(write) > 1);
                tracing::warn!(key = %entry.key, reason, "a write's outcome is unknown");
            }
        }
        if !went_well {
            return AfterWrite::RetryLater;
        }
        state.backoff = BACKOFF.0;
        // A mutator that needs another write is queued again. So is one whose lease is over, to be buried.
        state.flushing = !state.mutator.is_clean();
        if state.flushing { AfterWrite::WriteAgain } else { AfterWrite::Done }
    }

    /// Rejects op lists that can no longer be applied. Counts lists already answered from memory as lost.
    fn reject(&self, entry: &Entry, state: &EntryState, rejected: Vec<Rejected>) {
        let lost = rejected.iter().filter(|list| list.was_answered);
        if let Some(first) = lost.clone().next() {
            self.lost(&entry.key, lost.count(), &first.error.to_string());
        }
        state.next_write.reject(rejected);
    }

    /// Counts and logs lost op lists that were answered from memory.
    fn lost(&self, key: &Key, lists: usize, why: &str) {
        self.metrics.memory_lost.inc_by(lists as u64);
        tracing::error!(%key, lists, why, "updates that were answered from memory are lost");
    }

    /// Ends a mutator whose lease is over. Returns the op lists that its successor inherits.
    fn retire(&self, entry: &Entry, state: &mut EntryState) -> Vec<Vec<Op>> {
        let reason = "the writer's lease expired before the store acknowledged";
        for write in state.sent_writes.drain(..) {
            write.resolve(Verdict::Unknown(reason.into()));
        }
        state.next_write.resolve(Verdict::Refused(Refused::Store(reason.into())));
        self.metrics.unresolved_deaths.inc_by(u64::from(state.mutator.is_unresolved()));
        (state.retired, state.flushing) = (true, false);
        let Estate { inherited, lost } = state.mutator.bury();
        if lost > 0 {
            self.lost(&entry.key, lost, "their write was never acknowledged; they may be stored");
        }
        inherited
    }

    /// Gives a dead mutator's orphaned ops to its successor. Retries while the clock gate is shut or the
    /// pod is full, and also while the pod stops, because the ops were answered already.
    async fn readmit(self: &Arc<Self>, entry: &Arc<Entry>, orphans: Vec<Vec<Op>>) {
        let key = &entry.key;
        self.table.remove(entry);
        let legacy = entry.lock().mutator.legacy();
        let former = Former { entry: Arc::clone(entry), legacy, seat: None };
        // Without a quota: the ops were answered, and the dead mutator can hold the last quota permit.
        let free = |_| Ok(self.policies.uncounted_seat(&key.group));
        let admit = |ops| {
            let now = self.gate.open()?;
            self.admit(key, ops, Durability::Memory, now, Some(former.clone()), free)
        };
        for ops in orphans {
            while let Err(error) = admit(ops.clone()) {
                if matches!(error, Refused::Op(_)) {
                    self.lost(key, 1, &error.to_string());
                    break;
                }
                sleep(BACKOFF.1).await;
            }
        }
    }

    fn count_moves(&self, moves: Moves) {
        self.metrics.rests.inc_by(moves.rested as u64);
        self.metrics.evictions.inc_by(moves.forgotten as u64);
    }

    fn count_mutators(&self) {
        let (resting, waiting) = (self.table.at_rest(), self.waiting.load(Ordering::Relaxed));
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
