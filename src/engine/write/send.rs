//! Step 3: one request to the store writes the mutators that wait together.

use std::pin::pin;
use std::sync::Arc;

use orderfree_core::protocol::reset::Fate;
use orderfree_core::protocol::{Begin, ShardWrite, WriteOutcome};

use super::Mutators;
use super::entry::{Entry, QueueId};
use super::writer::RowSize;
use crate::runtime::sync::{timeout, yield_now};
use crate::runtime::tasks::Task;

/// Mutators with a write in flight, and their writes, in the same order.
struct Request {
    entries: Vec<Arc<Entry>>,
    writes: Vec<ShardWrite>,
}

impl Mutators {
    /// Starts a task for a request that the write queue called for.
    pub(super) fn start_sending(self: &Arc<Self>, queue: QueueId) {
        self.flushers.spawn(Task::WriteRequest, Arc::clone(self).send_queued(queue));
    }

    /// Sends one request after the other until no mutator waits in this queue, or until one was overdue,
    /// because another task may have taken its place.
    async fn send_queued(self: Arc<Self>, queue: QueueId) {
        let (mut is_first, mut is_overdue) = (true, false);
        while !is_overdue {
            if queue.row_size != RowSize::Large {
                self.gather().await;
            }
            let (queued, calls) = self.queue().take(queue, is_first);
            is_first = false;
            if queued.is_empty() {
                return;
            }
            if calls {
                self.start_sending(queue);
            }
            let Request { entries, writes } = self.begin_writes(queued);
            if !writes.is_empty() {
                let write = self.store.write_shards(&writes);
                is_overdue = self.send(queue, entries, write).await;
            }
        }
        if self.queue().finished(queue, true) {
            self.start_sending(queue);
        }
    }

    /// Waits for more ops, because an op costs less in a fuller request. The wait ends when no more ops come
    /// to the pod, or after half of the median time of a write.
    async fn gather(&self) {
        let most = (self.latency.median() / 2).min(self.latency.overdue() / 8);
        let until = self.gate.now().boot + most;
        let mut waiting = 0;
        while waiting < self.totals.waiting() && self.gate.now().boot < until {
            waiting = self.totals.waiting();
            yield_now().await;
        }
    }

    /// Begins the writes of a request. Leaves out mutators that have nothing to write or are dead.
    fn begin_writes(self: &Arc<Self>, queued: Vec<Arc<Entry>>) -> Request {
        let mut request = Request {
            entries: Vec::with_capacity(queued.len()),
            writes: Vec::with_capacity(queued.len()),
        };
        for entry in queued {
            let mut state = entry.lock();
            let (ops, is_first) = (state.mutator().queued(), state.mutator().is_unwritten());
            let now = self.gate.now();
            let fate = self.resets.fate(&entry.writer.key, state.mutator().stamp(), now);
            let has_more = !state.mutator().is_clean();
            let begin = match has_more && fate == Fate::Over {
                // Nothing that it writes can be acknowledged any more.
                true => Begin::Dead,
                false => state.change(&self.totals, |mutator| mutator.begin_write(now)),
            };
            match begin {
                Begin::Write(write) => {
                    if is_first {
                        // The mutator from before the reset can be gone, and then there is no permit to take over.
                        let stamp = state.mutator().stamp();
                        let is_caused = self.resets.is_first_birth(&entry.writer.key, stamp);
                        let is_successor = state.mutator().is_successor() || state.took_permit_over;
                        self.table.count_birth(&entry.writer, is_successor || is_caused, now);
                    }
                    let sent = std::mem::take(&mut state.next_write);
                    state.sent_writes.push(sent);
                    if entry.queue.row_size != RowSize::Small {
                        entry.weight.set(entry.writer.memory_bytes(write.state().len()));
                    }
                    drop(state);
                    #[allow(clippy::cast_precision_loss, reason = "at most WAITING_OPS_MAX")]
                    self.metrics.flush_ops.observe(ops as f64);
                    request.entries.push(entry);
                    request.writes.push(write);
                }
                Begin::Idle => state.end_flushing(&self.totals),
                Begin::Dead => {
                    let left = self.end_mutator(&entry, &mut state, fate);
                    drop(state);
                    self.hand_over(entry, left);
                }
            }
        }
        request
    }

    /// Waits for the answer to a request and passes it on. True if the request was overdue, so another one
    /// may have been sent in its place.
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
                    self.start_sending(queue);
                }
                (write.await, true)
            }
        };
        // Read after the answer: an ack counts only if the lease is still valid now (I3).
        let answered = self.gate.now();
        let took = answered.boot.saturating_sub(started);
        self.latency.took(took);
        self.metrics.flush_seconds.observe(took.as_secs_f64());
        self.finish(entries, &outcome, answered, is_overdue);
        is_overdue
    }
}
