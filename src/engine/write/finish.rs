//! Step 4: the outcome of a request reaches its mutators and their waiters, and each mutator goes on.

use std::sync::Arc;

use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::reset::{Fate, Shut, Side};
use orderfree_core::protocol::{
    Change, Durability, Estate, Finished, Key, Now, Rejected, WriteError, WriteOutcome,
};

use super::accept::Offer;
use super::completion::Completion;
use super::entry::{Entry, EntryState};
use super::table::Former;
use super::{BACKOFF, Mutators, Refused, UpdateError};
use crate::runtime::sync::sleep;
use crate::runtime::tasks::Task;

/// The store has it, and it can't be acknowledged.
fn unknown(why: &str) -> WriteOutcome {
    Err(WriteError::Unknown(why.to_owned()))
}

/// What a dead mutator leaves to its successor.
pub(super) struct LeftOps {
    lists: Vec<Change>,
    /// Number of the first lists, which were sent.
    sent: usize,
    /// The stamp of the dead mutator.
    stamp: Option<Generation>,
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

impl Mutators {
    /// Ends the writes of a request, and queues the mutators that have more to write. The task goes on with
    /// this queue, unless the request was overdue.
    pub(super) fn finish(
        self: &Arc<Self>,
        entries: Vec<Arc<Entry>>,
        outcome: &WriteOutcome,
        answered: Now,
        is_overdue: bool,
    ) {
        for entry in entries {
            match self.finish_write(&entry, outcome.clone(), answered) {
                AfterWrite::WriteAgain if is_overdue => self.enqueue(entry),
                AfterWrite::WriteAgain => self.queue().add(entry),
                AfterWrite::RetryLater => self.retry_later(entry),
                AfterWrite::Done => {}
            }
        }
    }

    /// Passes a write's outcome on to the waiters.
    fn finish_write(&self, entry: &Entry, outcome: WriteOutcome, now: Now) -> AfterWrite {
        let resolve = |writes: &mut Vec<Arc<Completion>>, outcome: &Result<(), UpdateError>| {
            writes.drain(..).for_each(|write| write.resolve(outcome.clone()));
        };
        let mut state = entry.lock();
        let fate = self.resets.fate(&entry.writer.key, state.mutator().stamp(), now);
        let outcome = match fate {
            Fate::Stands => outcome,
            Fate::Waits => outcome.and_then(|()| unknown("the log of resets was not read lately")),
            Fate::Over => outcome.and_then(|()| unknown("the key was reset meanwhile")),
        };
        let ids = state.mutator().stored_ids();
        let finished = state.change(&self.totals, |mutator| mutator.finish_write(outcome, now));
        if let Some(until) = entry.writer.until {
            let new = state.mutator().stored_ids().saturating_sub(ids);
            self.alive_ids.add(until, new, now, &self.constants);
        }
        match finished {
            Finished::Acked => {
                resolve(&mut state.sent_writes, &Ok(()));
                self.changes.happened(&entry.writer.key);
            }
            Finished::TooLate => {
                let reason = "the store acknowledged after the writer's lease had expired";
                resolve(&mut state.sent_writes, &Err(UpdateError::Unknown(reason.into())));
            }
            Finished::Refused { reason, rejected } => {
                self.metrics.count_store_error("write_refused");
                let write = state.sent_writes.pop().expect("invariant: a write was in flight");
                write.resolve(Err(Refused::Store(reason).into()));
                self.reject(entry, &state, rejected);
                return AfterWrite::RetryLater;
            }
            Finished::Unknown(reason) => {
                self.metrics.count_store_error("write_unknown");
                // Drop the completions whose waiters have all given up.
                state.sent_writes.retain(|write| Arc::strong_count(write) > 1);
                tracing::warn!(key = %entry.writer.key, reason, "a write's outcome is unknown");
                return AfterWrite::RetryLater;
            }
        }
        state.backoff = BACKOFF.0;
        // A mutator that needs another write is queued again. So is one whose lease is over, to end it.
        if !state.mutator().is_clean() {
            return AfterWrite::WriteAgain;
        }
        state.end_flushing(&self.totals);
        AfterWrite::Done
    }

    /// Queues a mutator again after a pause.
    fn retry_later(self: &Arc<Self>, entry: Arc<Entry>) {
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

    /// Rejects op lists that can no longer be applied. Counts lists already answered from memory as lost.
    pub(super) fn reject(&self, entry: &Entry, state: &EntryState, rejected: Vec<Rejected>) {
        let lost = rejected.iter().filter(|list| list.was_answered);
        if let Some(first) = lost.clone().next() {
            self.lost(&entry.writer.key, lost.count(), &first.error.to_string());
        }
        state.next_write.reject(rejected);
    }

    /// Ends a mutator whose lease is over, or whose row belongs to the time before a reset. Returns the op lists that
    /// its successor inherits: after a reset, only those that were never sent.
    pub(super) fn end_mutator(&self, entry: &Entry, state: &mut EntryState, fate: Fate) -> LeftOps {
        let reason = match fate {
            Fate::Over => "the key was reset before the store acknowledged",
            _ => "the writer's lease expired before the store acknowledged",
        };
        for write in state.sent_writes.drain(..) {
            write.resolve(Err(UpdateError::Unknown(reason.into())));
        }
        state.next_write.resolve(Err(Refused::Store(reason.into()).into()));
        self.metrics.unresolved_deaths.inc_by(u64::from(state.mutator().is_unresolved()));
        state.retired = true;
        let stamp = state.mutator().stamp();
        let was_reset = fate == Fate::Over || !self.resets.takes(&entry.writer.key, stamp);
        let (sent, Estate { inherited, lost }) = state.change(&self.totals, |mutator| {
            if was_reset {
                mutator.note_reset();
            }
            (mutator.sent_to_inherit(), mutator.end())
        });
        if lost > 0 {
            self.lost(
                &entry.writer.key,
                lost,
                "their write was never acknowledged; they may be stored",
            );
        }
        LeftOps { lists: inherited, sent, stamp }
    }

    /// Gives a dead mutator's orphaned ops to its successor. Retries while the clock gate is shut or the
    /// pod is full, and also while the pod stops, because the ops were answered already.
    pub(super) fn hand_over(self: &Arc<Self>, entry: Arc<Entry>, left: LeftOps) {
        let this = Arc::clone(self);
        self.flushers.spawn(Task::Handover, async move {
            this.readmit(&entry, left).await;
            entry.lock().end_flushing(&this.totals);
        });
    }

    async fn readmit(self: &Arc<Self>, entry: &Arc<Entry>, left: LeftOps) {
        let key = &entry.writer.key;
        self.table.remove(entry);
        let legacy = entry.lock().mutator().legacy();
        let former = Former { entry: Arc::clone(entry), legacy, permit: None };
        // Without a quota: the ops were answered, and the dead mutator can hold the last quota permit.
        let free = |_| Ok(self.policies.uncounted_permit(&key.group));
        let admit = |change, side| {
            let (now, former) = (self.gate.open()?, Some(former.clone()));
            let offer = Offer { change, side, durability: Durability::Memory };
            self.admit(&entry.writer, offer, now, former, free)
        };
        for (place, change) in left.lists.into_iter().enumerate() {
            // What may be stored before a reset must not count after it. For kinds that ignore ids, that is any op:
            // it can have come with an id, and to another pod too.
            let may_be_stored = place < left.sent || key.kind.about().is_idempotent;
            let side = if may_be_stored { Side::Stored(left.stamp) } else { Side::Any };
            loop {
                match admit(change.clone(), side) {
                    Ok(_) => break,
                    Err(Refused::Resets(Shut::OtherSide)) => {
                        self.lost(key, 1, "the key was reset, and they may be stored");
                        break;
                    }
                    Err(Refused::Op(error)) => {
                        self.lost(key, 1, &error.to_string());
                        break;
                    }
                    Err(_) => sleep(BACKOFF.1).await,
                }
            }
        }
    }

    /// Counts and logs lost op lists that were answered from memory.
    fn lost(&self, key: &Key, lists: usize, why: &str) {
        self.metrics.memory_lost.inc_by(lists as u64);
        tracing::error!(%key, lists, why, "updates that were answered from memory are lost");
    }
}
