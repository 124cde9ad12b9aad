//! Requests in flight: they write the mutators that wait in the write queue.

use std::pin::pin;
use std::sync::Arc;

use orderfree_core::protocol::{Begin, ShardWrite, WriteOutcome};

use super::table::{Entry, QueueId};
use super::write_queue::WriteQueue;
use super::{AfterWrite, BACKOFF, Mutators};
use crate::runtime::sync::{MutexGuard, Ordering, PoisonError, sleep, timeout, yield_now};
use crate::runtime::tasks::Task;

impl Mutators {
    /// Queues a mutator, and starts a request if one is due.
    pub(super) fn enqueue(self: &Arc<Self>, entry: Arc<Entry>) {
        let queue = entry.queue;
        if self.queue().push(entry) {
            self.start(queue);
        }
    }

    /// Starts a request that the write queue called for.
    fn start(self: &Arc<Self>, queue: QueueId) {
        self.flushers.spawn(Task::WriteRequest, Arc::clone(self).write_queued(queue));
    }

    fn queue(&self) -> MutexGuard<'_, WriteQueue> {
        self.write_queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends requests until no mutator waits in this queue.
    async fn write_queued(self: Arc<Self>, queue: QueueId) {
        let (mut is_first, mut is_overdue) = (true, false);
        while !is_overdue {
            if queue.is_small {
                self.gather().await;
            }
            let (queued, calls) = self.queue().take(queue, is_first);
            is_first = false;
            if queued.is_empty() {
                return;
            }
            if calls {
                self.start(queue);
            }
            let (entries, writes) = self.begin(queued);
            if !writes.is_empty() {
                let write = self.store.write_shards(&writes);
                is_overdue = self.send(queue, entries, write).await;
            }
        }
        if self.queue().finished(queue, true) {
            self.start(queue);
        }
    }

    /// Waits for more ops, because an op costs less in a fuller request. It is sent when no more ops
    /// come to the pod, or after half of the median time of a write.
    async fn gather(&self) {
        let most = (self.latency.median() / 2).min(self.latency.overdue() / 8);
        let until = self.gate.now().boot + most;
        let mut waiting = 0;
        while waiting < self.waiting.load(Ordering::Relaxed) && self.gate.now().boot < until {
            waiting = self.waiting.load(Ordering::Relaxed);
            yield_now().await;
        }
    }

    /// Waits for a write and passes its outcome on. True if the write was overdue, so another one may have
    /// been sent in its place.
    async fn send(
        self: &Arc<Self>,
        queue: QueueId,
        entries: Vec<Arc<Entry>>,
        write: impl Future<Output = WriteOutcome>,
    ) -> bool {
        let started = self.gate.now().boot;
        let mut write = pin!(write);
        let (outcome, is_overdue) = match timeout(self.latency.overdue(), &mut write).await {
            Ok(outcome) => (outcome, false),
            Err(_) => {
                if self.queue().mark_overdue(queue) {
                    self.start(queue);
                }
                (write.await, true)
            }
        };
        // Read after the answer: an ack counts only if the lease is still valid now (I3).
        let answered = self.gate.now();
        let took = answered.boot.saturating_sub(started);
        self.latency.took(took);
        self.metrics.flush_seconds.observe(took.as_secs_f64());
        for entry in entries {
            match self.finish(&entry, outcome.clone(), answered) {
                AfterWrite::WriteAgain if is_overdue => self.enqueue(entry),
                AfterWrite::WriteAgain => self.queue().wait(entry),
                AfterWrite::RetryLater => self.try_later(entry),
                AfterWrite::Done => self.rest(),
            }
        }
        is_overdue
    }

    /// Counts down `unwritten`: a mutator has nothing left to write.
    fn rest(&self) {
        self.unwritten.fetch_sub(1, Ordering::SeqCst);
    }

    fn try_later(self: &Arc<Self>, entry: Arc<Entry>) {
        let this = Arc::clone(self);
        self.flushers.spawn(Task::Retry, async move {
            let backoff = {
                let mut state = entry.lock();
                let backoff = state.backoff;
                state.backoff = (2 * backoff).min(BACKOFF.1);
                backoff
            };
            sleep(backoff).await;
            this.enqueue(entry);
        });
    }

    /// Begins the writes of a request. Skips mutators that have nothing to write or are dead.
    fn begin(self: &Arc<Self>, entries: Vec<Arc<Entry>>) -> (Vec<Arc<Entry>>, Vec<ShardWrite>) {
        let mut request = (Vec::with_capacity(entries.len()), Vec::with_capacity(entries.len()));
        for entry in entries {
            let mut state = entry.lock();
            let queued = state.mutator.queued();
            let (now, is_first) = (self.gate.now(), state.mutator.is_unwritten());
            match state.mutator.begin_write(now) {
                Begin::Write(write) => {
                    if is_first {
                        self.table.count_birth(&entry.key, now);
                    }
                    let sent = std::mem::take(&mut state.next_write);
                    state.sent_writes.push(sent);
                    let about = entry.key.kind.about();
                    if !about.is_small() {
                        entry.weight.set(about.memory_bytes(write.state().len()));
                    }
                    drop(state);
                    self.waiting.fetch_sub(queued, Ordering::Relaxed);
                    #[allow(clippy::cast_precision_loss, reason = "at most WAITING_OPS_MAX")]
                    self.metrics.flush_ops.observe(queued as f64);
                    request.0.push(entry);
                    request.1.push(write);
                }
                Begin::Idle => {
                    state.flushing = false;
                    drop(state);
                    self.rest();
                }
                Begin::Dead => {
                    self.waiting.fetch_sub(queued, Ordering::Relaxed);
                    let orphans = self.retire(&entry, &mut state);
                    drop(state);
                    let this = Arc::clone(self);
                    self.flushers.spawn(Task::Handover, async move {
                        this.readmit(&entry, orphans).await;
                        this.rest();
                    });
                }
            }
        }
        request
    }
}
