//! One awake mutator with its waiters, and the counts over all of them.

use std::sync::Arc;
use std::time::Duration;

use orderfree_core::protocol::{Mutator, Now};

use super::BACKOFF;
use super::completion::Completion;
use super::large_states::LargeState;
use super::writer::{RowSize, Writer};
use crate::policy::{QuotaPermit, QuotaPermits};
use crate::runtime::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering, PoisonError};
use crate::store::FirstReplica;

/// Names a write queue. Each first replica has one for each size of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct QueueId {
    pub(super) replica: FirstReplica,
    pub(super) row_size: RowSize,
}

impl QueueId {
    pub(super) fn of(replica: FirstReplica, writer: &Writer) -> QueueId {
        QueueId { replica, row_size: writer.row_size() }
    }
}

/// One mutator and its waiters.
pub(super) struct Entry {
    pub(super) writer: Writer,
    /// Its write queue, fixed for its life. If the ring changes, writes get slower, but stay correct.
    pub(super) queue: QueueId,
    /// Size of the state that it last wrote, if it can be large.
    pub(super) weight: LargeState,
    /// Bytes of its next write, if it writes packs.
    pack_bytes: AtomicUsize,
    /// Whether it was used since the last pass of `tidy`.
    is_used: AtomicBool,
    /// Ops that it took since the last pass of `tidy`, and between the two passes before.
    ops: AtomicUsize,
    ops_before: AtomicUsize,
    state: Mutex<EntryState>,
}

pub(super) struct EntryState {
    /// [`EntryState::change`] changes it.
    mutator: Mutator,
    /// Its permit from the quota of its group. A mutator that is full, or from before a reset, shares it with its
    /// successor. A mutator at rest has none, even if a task still holds the entry.
    pub(super) permit: Option<Arc<QuotaPermit>>,
    /// The completion of the queued ops.
    pub(super) next_write: Arc<Completion>,
    /// Unresolved completions of ops that were sent, oldest first. During a write, the last one belongs to
    /// it.
    pub(super) sent_writes: Vec<Arc<Completion>>,
    /// Whether a task has it: it is queued, in flight, waiting before a retry, or handing over its ops.
    is_flushing: bool,
    /// The wait after the next write that is not acknowledged.
    pub(super) backoff: Duration,
    /// It takes no more ops: it was put to rest, or its key has a successor.
    pub(super) retired: bool,
    /// It is retired because its state is full or its key was reset. Its successor takes over its quota permit.
    pub(super) hands_permit_on: bool,
    /// It took over the quota permit of one that was retired so.
    pub(super) took_permit_over: bool,
}

/// Counts over all mutators of a pod. Only [`EntryState`] changes them.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// Weight of the ops that wait for their write.
    waiting: AtomicUsize,
    /// Mutators that are flushing.
    flushing: AtomicUsize,
}

impl Totals {
    /// Weight of the ops that wait for their write.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Mutators that a task brings to the store.
    pub(super) fn flushing(&self) -> usize {
        self.flushing.load(Ordering::SeqCst)
    }
}

impl Entry {
    pub(super) fn new(
        queue: QueueId,
        writer: Writer,
        mutator: Mutator,
        (permit, took_permit_over): (Arc<QuotaPermit>, bool),
        weight: LargeState,
    ) -> Entry {
        Entry {
            writer,
            queue,
            weight,
            pack_bytes: AtomicUsize::new(0),
            is_used: AtomicBool::new(true),
            ops: AtomicUsize::new(0),
            ops_before: AtomicUsize::new(0),
            state: Mutex::new(EntryState {
                mutator,
                permit: Some(permit),
                next_write: Arc::default(),
                sent_writes: Vec::new(),
                is_flushing: false,
                backoff: BACKOFF.0,
                retired: false,
                hands_permit_on: false,
                took_permit_over,
            }),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, EntryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if it is locked.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, EntryState>> {
        self.state.try_lock().ok()
    }

    pub(super) fn note_pack_bytes(&self, bytes: usize) {
        self.pack_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Bytes of its next write, if it writes packs; otherwise 0.
    pub(super) fn pack_bytes(&self) -> usize {
        self.pack_bytes.load(Ordering::Relaxed)
    }

    /// Notes that it is used.
    pub(super) fn touch(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// Whether it was used since the last call.
    pub(super) fn take_used(&self) -> bool {
        self.ops_before.store(self.ops.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        self.is_used.swap(false, Ordering::Relaxed)
    }

    /// Notes that its mutator took ops.
    pub(super) fn count_ops(&self, count: usize) {
        self.ops.fetch_add(count, Ordering::Relaxed);
    }

    /// Goes on with the counts of the entry before it. Entries of updates with ids are replaced every few dozen ops.
    pub(super) fn count_on(&self, former: &Entry) {
        let of_former = [(&self.ops, &former.ops), (&self.ops_before, &former.ops_before)];
        for (own, of_former) in of_former {
            own.fetch_add(of_former.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Ops that it took between the last two passes of `tidy`.
    pub(super) fn recent_ops(&self) -> usize {
        self.ops_before.load(Ordering::Relaxed)
    }

    /// Whether its mutator is clean. False if the entry is locked.
    pub(super) fn is_clean(&self) -> bool {
        self.try_lock().is_some_and(|state| state.mutator.is_clean())
    }

    pub(super) fn has_permit_of(&self, permits: &QuotaPermits) -> bool {
        let is_of = |permit: &Arc<QuotaPermit>| permit.is_of(permits);
        self.try_lock().is_some_and(|state| state.permit.as_ref().is_some_and(is_of))
    }

    pub(super) fn is_writable(&self, now: Now) -> bool {
        self.try_lock().is_some_and(|state| state.mutator.lease().is_writable(now))
    }
}

impl EntryState {
    pub(super) fn mutator(&self) -> &Mutator {
        &self.mutator
    }

    /// Changes the mutator, and counts the ops that wait for its next write.
    pub(super) fn change<T>(
        &mut self,
        totals: &Totals,
        change: impl FnOnce(&mut Mutator) -> T,
    ) -> T {
        let before = self.mutator.queued();
        let result = change(&mut self.mutator);
        let after = self.mutator.queued();
        if after > before {
            totals.waiting.fetch_add(after - before, Ordering::Relaxed);
        } else if after < before {
            totals.waiting.fetch_sub(before - after, Ordering::Relaxed);
        }
        result
    }

    /// Notes that the mutator must be written. True if no task has it yet: then the caller must queue it.
    pub(super) fn begin_flushing(&mut self, totals: &Totals) -> bool {
        let begins = !std::mem::replace(&mut self.is_flushing, true);
        if begins {
            totals.flushing.fetch_add(1, Ordering::SeqCst);
        }
        begins
    }

    /// Whether a task has the mutator.
    pub(super) fn is_flushing(&self) -> bool {
        self.is_flushing
    }

    /// Notes that the task which had the mutator is done with it.
    pub(super) fn end_flushing(&mut self, totals: &Totals) {
        if std::mem::replace(&mut self.is_flushing, false) {
            totals.flushing.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
