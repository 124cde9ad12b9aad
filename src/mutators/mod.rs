//! The live mutators of this pod: lookup, group commit, eviction, drain.
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
//! Locks: a map lock is taken before a slot lock or not at all, that of shedding before both, and none is
//! held across an await.

mod board;
mod flights;
mod refused;
mod slots;
mod weights;

use std::sync::Arc;
use std::time::Duration;

use orderfree_core::crdt::{Op, OpError};
use orderfree_core::protocol::hybrid::HybridClock;
use orderfree_core::protocol::{
    Accepted, Constants, Durability, Estate, Finished, Key, Mutator, Now, Refusal, Rejected,
    Ticket, Timestamp, WriteOutcome, weight,
};

use crate::chance::Chance;
use crate::gate::Gate;
use crate::limits;
use crate::metrics::{Metrics, Outcome};
use crate::policy::{OverQuota, Policies, Seat};
use crate::store::Store;
use crate::sync::{
    AtomicBool, AtomicUsize, Instant, Mutex, Ordering, PoisonError, consume_budget, sleep,
    timeout_at,
};
use crate::tasks::{Task, Tasks};
use crate::typical::Typical;
use board::{Board, Queue};
pub use refused::{Refused, UpdateError};
use slots::{Batch, Slot, SlotState, Slots, Verdict};

/// First and longest pause after a write that was not acknowledged.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How often clean mutators that no longer take ops are forgotten.
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
    /// No mutators yet; at most `mutators_max` at once.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        gate: Arc<Gate>,
        constants: Constants,
        metrics: Arc<Metrics>,
        chance: Chance,
        mutators_max: usize,
        policies: Policies,
    ) -> Arc<Mutators> {
        // Two honest clocks differ by twice the offset limit.
        let hybrid = HybridClock::new(2 * constants.clock_offset_max(), store.latest_stamp());
        let flushers = Tasks::counting(metrics.panics.clone());
        Arc::new(Mutators {
            slots: Slots::new(mutators_max),
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

    /// Forgets clean mutators that no longer take ops, until the tasks stop.
    pub async fn tidy(self: Arc<Self>, tasks: Tasks) {
        while tasks.sleep(TIDY_EVERY).await {
            self.slots.tidy(self.gate.now());
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

    /// Takes new ops, unless the pod is stopping, with the time of the last of them. Nothing waits if
    /// they are stored already.
    fn accept(
        self: &Arc<Self>,
        key: &Key,
        mut ops: Vec<Op>,
        durability: Durability,
    ) -> Result<Taken, Refused> {
        // Held until a flusher runs, so that `close` waits for whatever passed this check.
        let _pending = self.flushers.token();
        if self.closed.load(Ordering::SeqCst) {
            return Err(Refused::Stopping);
        }
        let now = self.gate.open()?;
        let time = self.prepare(key, &mut ops, now.wall)?;
        let seat = || self.policies.seat(&key.group);
        // A panic in between would leave a mutator that nobody writes.
        let admit = || self.admit(key, ops, durability, now, seat);
        Ok((time, self.flushers.vital(Task::Update, admit)?))
    }

    /// Accepts updates of one key as one op list, so that a hot key costs one update of its mutator,
    /// whatever their number; or each alone if an op is bad, which spoils only its own update, and where
    /// the last writer wins, as each is told the time of its own. Appends what was accepted, and the number
    /// of updates that it stands for.
    fn accept_all(
        self: &Arc<Self>,
        updates: Updates,
        durability: Durability,
        accepted: &mut Vec<(Result<Taken, Refused>, usize)>,
    ) {
        let Updates { key, ops, lengths } = updates;
        if lengths.len() == 1 {
            return accepted.push((self.accept(&key, ops, durability), 1));
        }
        if !key.kind.is_timed() {
            let together = self.accept(&key, ops.clone(), durability);
            if !matches!(together, Err(Refused::Op(_))) {
                return accepted.push((together, lengths.len()));
            }
        }
        let mut ops = ops.into_iter();
        let alone = |length| self.accept(&key, ops.by_ref().take(length).collect(), durability);
        accepted.extend(lengths.into_iter().map(alone).map(|accepted| (accepted, 1)));
    }

    /// Opens what clients hold sealed, and gives the ops their times; returns the last.
    fn prepare(
        &self,
        key: &Key,
        ops: &mut [Op],
        wall: Timestamp,
    ) -> Result<Option<Timestamp>, Refused> {
        ops.iter_mut().try_for_each(|op| op.open(key, wall))?;
        if !key.kind.is_timed() {
            return Ok(None);
        }
        let mut hybrid = self.hybrid.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last = None;
        for op in ops {
            let time = hybrid.tick(wall, op.after());
            let time = time.map_err(|ahead| OpError::Invalid(ahead.to_string()))?;
            op.stamp(time);
            last = Some(time);
        }
        if let Some(last) = last {
            self.store.note_stamp(last);
        }
        Ok(last)
    }

    /// Gives the ops to the key's mutator, old or newborn.
    fn admit(
        self: &Arc<Self>,
        key: &Key,
        mut ops: Vec<Op>,
        durability: Durability,
        now: Now,
        seat: impl Fn() -> Result<Seat, OverQuota>,
    ) -> Result<Option<Waiting>, Refused> {
        if self.waiting.load(Ordering::Relaxed) >= limits::WAITING_OPS_MAX {
            return Err(Refused::Overloaded("too many updates waiting"));
        }
        if !key.kind.about().is_small() {
            let (evicted, has_room) = self.slots.shed(now.boot);
            self.metrics.evictions.inc_by(evicted as u64);
            if !has_room {
                return Err(Refused::Overloaded("too much memory in states with open writes"));
            }
        }
        loop {
            let slot = self.live_slot(key, now, &seat)?;
            let mut state = slot.lock();
            if state.retired {
                drop(state);
                // Whoever retired it may not have come to this yet; waiting for that would be a spin.
                self.slots.remove(&slot);
                continue;
            }
            let count = weight(&ops);
            match state.mutator.accept(ops, durability, now) {
                Ok(Accepted::Stored) => return Ok(None),
                Ok(Accepted::Queued(ticket)) => {
                    self.waiting.fetch_add(count, Ordering::Relaxed);
                    let batch = Arc::clone(&state.open);
                    let must_board = !std::mem::replace(&mut state.flushing, true);
                    drop(state);
                    if must_board {
                        self.unwritten.fetch_add(1, Ordering::SeqCst);
                        self.board(Arc::clone(&slot));
                    }
                    return Ok(Some(Waiting { slot, batch, ticket }));
                }
                Err(Refusal::Op(error)) => return Err(error.into()),
                Err(Refusal::Unacked) => return Err(Refused::Unacked),
                Err(Refusal::QueueFull) => {
                    return Err(Refused::Overloaded("too many updates of this key waiting"));
                }
                Err(Refusal::Draining(back)) => {
                    ops = back;
                    state.retired = true;
                }
            }
        }
    }

    fn live_slot(
        &self,
        key: &Key,
        now: Now,
        seat: impl Fn() -> Result<Seat, OverQuota>,
    ) -> Result<Arc<Slot>, Refused> {
        let (slot, evicted) = self.slots.find_or_insert(key, seat, || {
            self.metrics.births.inc();
            let precision = self.policies.precision(key);
            let id = self.chance.mutator_id();
            let queue = Queue::of(self.store.lane(key), key);
            (Mutator::born(key.clone(), id, precision, now, &self.constants), queue)
        })?;
        self.metrics.evictions.inc_by(u64::from(evicted));
        Ok(slot)
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
        // Without a quota: they were answered, and the dead mutator may have the last seat.
        let free = || Ok(Seat::free());
        let admit = |ops| self.admit(key, ops, Durability::Memory, self.gate.open()?, free);
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

    fn count_mutators(&self) {
        self.metrics.mutators.set(i64::try_from(self.slots.len()).unwrap_or(i64::MAX));
        let waiting = self.waiting.load(Ordering::Relaxed);
        self.metrics.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests;
