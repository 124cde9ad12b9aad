//! The mutators of this pod: lookup, group commit, rest, drain.
//!
//! Each key has at most one mutator that takes ops. One with something to write waits on the board
//! for a flight, which carries it with others to the store; what arrives meanwhile goes with its next
//! write. So the hotter a key, the fewer writes an op costs, and the busier a pod, the fewer requests
//! a write costs.
//!
//! An op list, once accepted, belongs to its mutator: a client that goes away cancels nothing.
//! Whoever waits does so on the batch that its ops go with, and gives up at its own deadline:
//! what was never sent is taken out and refused, what was sent is unknown.
//!
//! A clean mutator that is not used goes to rest: a few bytes, from which the same mutator wakes at its
//! key's next op. Only where there is no room for those either, one is forgotten, and its key's next op
//! has a new mutator, and a new row.
//!
//! Locks: a map lock is taken before a slot lock or not at all, that of shedding before both, that of births
//! after all others, and none is held across an await.

mod admission;
mod batch;
mod births;
mod board;
mod bounds;
mod flights;
mod refused;
mod resting;
mod slots;
mod weights;

use std::sync::Arc;
use std::time::Duration;

use orderfree_core::crdt::Op;
use orderfree_core::protocol::hybrid::HybridClock;
use orderfree_core::protocol::{
    Constants, Durability, Estate, Finished, Key, Now, Rejected, Ticket, Timestamp, WriteOutcome,
};

use crate::chance::Chance;
use crate::gate::Gate;
use crate::metrics::{Metrics, Outcome};
use crate::policy::Policies;
use crate::store::Store;
use crate::sync::{
    AtomicBool, AtomicUsize, Instant, Mutex, Ordering, consume_budget, sleep, timeout_at,
};
use crate::tasks::Tasks;
use crate::typical::Typical;
use batch::{Batch, Verdict};
use board::Board;
pub use bounds::Bounds;
pub use refused::{Refused, UpdateError};
use slots::{Former, Moves, Slot, SlotState, Slots};

/// First and longest pause after a write that was not acknowledged.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How often it is looked which mutators are not used, and which no longer take ops.
const TIDY_EVERY: Duration = Duration::from_secs(10);

/// See the [module documentation](self).
pub struct Mutators {
    slots: Slots,
    store: Arc<dyn Store>,
    gate: Arc<Gate>,
    constants: Constants,
    metrics: Arc<Metrics>,
    chance: Chance,
    /// Flights, and whatever else brings accepted ops to the store.
    flushers: Tasks,
    board: Mutex<Board>,
    typical: Typical,
    /// Mutators that wait for a flight, are on one, or wait before they try again.
    unwritten: AtomicUsize,
    waiting: AtomicUsize,
    closed: AtomicBool,
    /// Gives ops of timed kinds their times.
    hybrid: Mutex<HybridClock>,
    policies: Policies,
}

/// Updates of one key that came together, each a list of ops, all or none of which are applied.
#[derive(Debug, Clone)]
pub struct Updates {
    /// The key.
    pub key: Key,
    /// The ops of all of them, in their order.
    pub ops: Vec<Op>,
    /// How many ops each update has.
    pub lengths: Vec<usize>,
}

/// What became of a mutator's turn.
enum Turn {
    /// It has something to write at once.
    Again,
    /// It has to wait before it tries again.
    Later,
    /// There is nothing to write.
    Rest,
}

/// An accepted op list: the time of its last op, for kinds whose last writer wins, and the write that
/// it waits for, unless it is stored already.
type Taken = (Option<Timestamp>, Option<Waiting>);

/// An accepted op list that goes with a coming write.
struct Waiting {
    slot: Arc<Slot>,
    batch: Arc<Batch>,
    ticket: Ticket,
}

impl Mutators {
    /// No mutators yet.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        gate: Arc<Gate>,
        constants: Constants,
        metrics: Arc<Metrics>,
        chance: Chance,
        bounds: Bounds,
        policies: Policies,
    ) -> Arc<Mutators> {
        // Two honest clocks differ by twice the offset limit.
        let hybrid = HybridClock::new(2 * constants.clock_offset_max(), store.latest_stamp());
        let flushers = Tasks::counting(metrics.panics.clone());
        Arc::new(Mutators {
            slots: Slots::new(bounds, constants),
            gate,
            constants,
            metrics,
            chance,
            flushers,
            board: Mutex::new(Board::new(store.flights())),
            typical: Typical::default(),
            unwritten: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            hybrid: Mutex::new(hybrid),
            policies,
            store,
        })
    }

    /// Applies a list of ops to a key, all or none, and waits for the outcome that `durability`
    /// asks for. Dropping the future cancels nothing that was accepted. Returns the time of the last
    /// op, for kinds whose last writer wins.
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

    /// The same for updates of many keys, each with its own outcome, in their order. All that can be are
    /// accepted before any is waited for.
    pub async fn update_all(
        self: &Arc<Self>,
        keys: Vec<Updates>,
        durability: Durability,
    ) -> Vec<Result<Option<Timestamp>, UpdateError>> {
        let until = self.deadline();
        let mut accepted = Vec::with_capacity(keys.len());
        for updates in keys {
            self.accept_all(updates, durability, &mut accepted);
            // Many that are refused must not keep others from their turn.
            consume_budget().await;
        }
        let mut outcomes = Vec::with_capacity(accepted.len());
        for (accepted, updates) in accepted {
            let outcome = self.outcome(accepted, updates, durability, until).await;
            outcomes.extend(std::iter::repeat_n(outcome, updates));
        }
        outcomes
    }

    /// Puts mutators to rest that are not used, and forgets those that no longer take ops, until the
    /// tasks stop.
    pub async fn tidy(self: Arc<Self>, tasks: Tasks) {
        while tasks.sleep(TIDY_EVERY).await {
            let moves = self.slots.tidy(self.gate.now());
            self.count_moves(moves);
            self.count_mutators();
        }
    }

    /// How many mutators are being written now; 0 if all that was answered from memory is stored.
    #[must_use]
    pub fn flushing(&self) -> usize {
        self.unwritten.load(Ordering::SeqCst)
    }

    /// Ready once a task has ended that nothing is written without, with one sentence about it.
    pub async fn failed(&self) -> &str {
        self.flushers.failed().await
    }

    /// Takes no more ops and writes what there is. Returns how many mutators could not be written
    /// before the deadline: their last ops are unknown.
    pub async fn close(&self, deadline: Duration) -> usize {
        self.closed.store(true, Ordering::SeqCst);
        self.flushers.join(deadline).await;
        self.flushing()
    }

    /// When those give up who come now.
    fn deadline(&self) -> Instant {
        Instant::now() + self.constants.request_budget()
    }

    /// Waits for what becomes of an op list, until a deadline, and counts its updates.
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
    async fn stored(&self, waiting: Waiting, until: Instant) -> Result<(), UpdateError> {
        let Waiting { slot, batch, ticket } = waiting;
        if let Ok(verdict) = timeout_at(until, batch.verdict()).await {
            return batch.of(ticket, verdict);
        }
        let budget = self.constants.request_budget();
        let mut state = slot.lock();
        if let Some(verdict) = batch.verdict_now() {
            return batch.of(ticket, verdict);
        }
        let queued = state.mutator.queued();
        match state.mutator.withdraw(ticket) {
            Some(rejected) => {
                self.waiting.fetch_sub(queued - state.mutator.queued(), Ordering::Relaxed);
                self.reject(&slot, &state, rejected);
                Err(Refused::Deadline(budget).into())
            }
            None => match batch.rejection(ticket) {
                Some(error) => Err(Refused::Op(error).into()),
                None => Err(UpdateError::Unknown(format!(
                    "it was sent, but the store did not acknowledge it within {budget:?}"
                ))),
            },
        }
    }

    /// Passes a write's outcome on to those who wait.
    fn finish(&self, slot: &Slot, outcome: WriteOutcome, now: Now) -> Turn {
        let mut state = slot.lock();
        let queued = state.mutator.queued();
        let finished = state.mutator.finish_write(outcome, now);
        let resolve = |batches: &mut Vec<Arc<Batch>>, verdict: &Verdict| {
            batches.drain(..).for_each(|batch| batch.resolve(verdict.clone()));
        };
        let mut went_well = false;
        match finished {
            Finished::Acked => {
                resolve(&mut state.sent, &Verdict::Acked);
                went_well = true;
            }
            Finished::TooLate => {
                let reason = "the store acknowledged after the writer's lease was over";
                resolve(&mut state.sent, &Verdict::Unknown(reason.into()));
                went_well = true;
            }
            Finished::Refused { reason, rejected } => {
                self.metrics.count_store_error("write_refused");
                let flight = state.sent.pop().expect("invariant: a batch was in flight");
                flight.resolve(Verdict::Refused(Refused::Store(reason)));
                // More wait than before if ops answered from memory were in the undone write, fewer
                // if some only fitted on top of it.
                self.waiting.fetch_add(state.mutator.queued(), Ordering::Relaxed);
                self.waiting.fetch_sub(queued, Ordering::Relaxed);
                self.reject(slot, &state, rejected);
            }
            Finished::Unknown(reason) => {
                self.metrics.count_store_error("write_unknown");
                // Nobody waits any more on those whose deadline has passed.
                state.sent.retain(|batch| Arc::strong_count(batch) > 1);
                tracing::warn!(key = %slot.key, reason, "a write's outcome is unknown");
            }
        }
        if !went_well {
            return Turn::Later;
        }
        state.backoff = BACKOFF.0;
        // What needs another write boards again; a mutator whose lease is over as well, to be buried.
        state.flushing = !state.mutator.is_clean();
        if state.flushing { Turn::Again } else { Turn::Rest }
    }

    /// Tells those who wait that their ops can't be applied any more, and counts what nobody waits for.
    fn reject(&self, slot: &Slot, state: &SlotState, rejected: Vec<Rejected>) {
        let lost = rejected.iter().filter(|list| list.was_answered);
        if let Some(first) = lost.clone().next() {
            self.lost(&slot.key, lost.count(), &first.error.to_string());
        }
        state.open.reject(rejected);
    }

    /// Counts op lists that were answered from memory and are lost.
    fn lost(&self, key: &Key, lists: usize, why: &str) {
        self.metrics.memory_lost.inc_by(lists as u64);
        tracing::error!(%key, lists, why, "updates that were answered from memory are lost");
    }

    /// Ends a mutator whose lease is over. Returns what its successor inherits.
    fn bury(&self, slot: &Slot, state: &mut SlotState) -> Vec<Vec<Op>> {
        let reason = "the writer's lease was over before the store acknowledged";
        for batch in state.sent.drain(..) {
            batch.resolve(Verdict::Unknown(reason.into()));
        }
        state.open.resolve(Verdict::Refused(Refused::Store(reason.into())));
        self.metrics.unresolved_deaths.inc_by(u64::from(state.mutator.is_unresolved()));
        (state.retired, state.flushing) = (true, false);
        let Estate { inherited, lost } = state.mutator.bury();
        if lost > 0 {
            self.lost(&slot.key, lost, "their write was never acknowledged; they may be stored");
        }
        inherited
    }

    /// Gives a dead mutator's orphaned ops to its successor, however long the gate is shut or the
    /// pod full, and also while it stops: they were answered already.
    async fn adopt(self: &Arc<Self>, slot: &Arc<Slot>, orphans: Vec<Vec<Op>>) {
        let key = &slot.key;
        self.slots.remove(slot);
        let legacy = slot.lock().mutator.legacy();
        let former = Former { slot: Arc::clone(slot), legacy, seat: None };
        // Without a quota: they were answered, and the dead mutator may have the last seat.
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
        let (resting, waiting) = (self.slots.at_rest(), self.waiting.load(Ordering::Relaxed));
        for (gauge, count) in [
            (&self.metrics.mutators, self.slots.len()),
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
