//! Flights: how mutators that wait on the board are written.

use std::pin::pin;
use std::sync::Arc;

use orderfree_core::protocol::{Begin, ShardWrite, WriteOutcome};

use super::board::{Board, Queue};
use super::slots::Slot;
use super::{BACKOFF, Mutators, Turn};
use crate::sync::{MutexGuard, Ordering, PoisonError, sleep, timeout, yield_now};
use crate::tasks::Task;

impl Mutators {
    /// Has a mutator wait for a flight.
    pub(super) fn board(self: &Arc<Self>, slot: Arc<Slot>) {
        let queue = slot.queue;
        if self.queues().board(slot) {
            self.call(queue);
        }
    }

    /// Sends out a flight that the board has called.
    fn call(self: &Arc<Self>, queue: Queue) {
        self.flushers.spawn(Task::Flight, Arc::clone(self).fly(queue));
    }

    fn queues(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries mutators to the store until none waits in this queue.
    async fn fly(self: Arc<Self>, queue: Queue) {
        let (mut is_first, mut is_overdue) = (true, false);
        while !is_overdue {
            if queue.is_small {
                self.gather().await;
            }
            let (load, calls) = self.queues().take(queue, is_first);
            is_first = false;
            if load.is_empty() {
                return;
            }
            if calls {
                self.call(queue);
            }
            let (slots, writes) = self.begin(load);
            if !writes.is_empty() {
                let write = self.store.write_shards(&writes);
                is_overdue = self.carry(queue, slots, write).await;
            }
        }
        if self.queues().landed(queue, true) {
            self.call(queue);
        }
    }

    /// Lets those come along who are just about to have something to write: the fuller a flight, the
    /// less an op costs. It departs when no more come to the pod, or after half of the time that it takes.
    async fn gather(&self) {
        let most = (self.typical.median() / 2).min(self.typical.overdue() / 8);
        let departs = self.gate.now().boot + most;
        let mut waiting = 0;
        while waiting < self.waiting.load(Ordering::Relaxed) && self.gate.now().boot < departs {
            waiting = self.waiting.load(Ordering::Relaxed);
            yield_now().await;
        }
    }

    /// Waits for a write and passes its outcome on. True if it took so long that another flight may
    /// have departed meanwhile.
    async fn carry(
        self: &Arc<Self>,
        queue: Queue,
        slots: Vec<Arc<Slot>>,
        write: impl Future<Output = WriteOutcome>,
    ) -> bool {
        let started = self.gate.now().boot;
        let mut write = pin!(write);
        let (outcome, is_overdue) = match timeout(self.typical.overdue(), &mut write).await {
            Ok(outcome) => (outcome, false),
            Err(_) => {
                if self.queues().overdue(queue) {
                    self.call(queue);
                }
                (write.await, true)
            }
        };
        // Read after the answer: an ack counts only if the lease still stands now (I3).
        let answered = self.gate.now();
        let took = answered.boot.saturating_sub(started);
        self.typical.took(took);
        self.metrics.flush_seconds.observe(took.as_secs_f64());
        for slot in slots {
            match self.finish(&slot, outcome.clone(), answered) {
                Turn::Again if is_overdue => self.board(slot),
                Turn::Again => self.queues().wait(slot),
                Turn::Later => self.try_later(slot),
                Turn::Rest => self.rest(),
            }
        }
        is_overdue
    }

    /// A mutator has nothing to write any more.
    fn rest(&self) {
        self.unwritten.fetch_sub(1, Ordering::SeqCst);
    }

    fn try_later(self: &Arc<Self>, slot: Arc<Slot>) {
        let this = Arc::clone(self);
        self.flushers.spawn(Task::Retry, async move {
            let backoff = {
                let mut state = slot.lock();
                let backoff = state.backoff;
                state.backoff = (2 * backoff).min(BACKOFF.1);
                backoff
            };
            sleep(backoff).await;
            this.board(slot);
        });
    }

    /// The writes of those on a flight that have something to write.
    fn begin(self: &Arc<Self>, load: Vec<Arc<Slot>>) -> (Vec<Arc<Slot>>, Vec<ShardWrite>) {
        let mut flight = (Vec::with_capacity(load.len()), Vec::with_capacity(load.len()));
        for slot in load {
            let mut state = slot.lock();
            let queued = state.mutator.queued();
            let (now, is_first) = (self.gate.now(), state.mutator.is_unwritten());
            match state.mutator.begin_write(now) {
                Begin::Write(write) => {
                    if is_first {
                        self.slots.count_birth(&slot.key, now);
                    }
                    let sent = std::mem::take(&mut state.open);
                    state.sent.push(sent);
                    let about = slot.key.kind.about();
                    if !about.is_small() {
                        slot.weight.set(about.memory_bytes(write.state().len()));
                    }
                    drop(state);
                    self.waiting.fetch_sub(queued, Ordering::Relaxed);
                    #[allow(clippy::cast_precision_loss, reason = "at most WAITING_OPS_MAX")]
                    self.metrics.flush_ops.observe(queued as f64);
                    flight.0.push(slot);
                    flight.1.push(write);
                }
                Begin::Idle => {
                    state.flushing = false;
                    drop(state);
                    self.rest();
                }
                Begin::Dead => {
                    self.waiting.fetch_sub(queued, Ordering::Relaxed);
                    let orphans = self.bury(&slot, &mut state);
                    drop(state);
                    let this = Arc::clone(self);
                    self.flushers.spawn(Task::Handover, async move {
                        this.adopt(&slot, orphans).await;
                        this.rest();
                    });
                }
            }
        }
        flight
    }
}
