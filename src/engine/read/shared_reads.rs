//! Reads of one key, shared by many requests. A request that comes during a read shares the next read with
//! all others that come during it. (Single flight, as in Go's `groupcache`, but requests never join a running
//! read: its answer can be older than the request.)
//!
//! A separate task does the reads, so a request that gives up does not affect others.
//!
//! A `watch` channel would also work, but it wakes waiters in random order, and the simulator must repeat its
//! schedules exactly.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::engine::metrics::ReadFrom;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct SharedReads<V, E> {
    state: Mutex<State>,
    last: Mutex<Option<Last<V, E>>>,
    /// Notified after each answer.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Number of reads begun.
    begun: u64,
    phase: Phase,
}

/// What the reading task does.
#[derive(Debug, Default, Clone, Copy)]
enum Phase {
    /// There is no task.
    #[default]
    Idle,
    /// The task was started, and has not begun a read.
    Called,
    /// A read began at `since`, by the clock of the requests; `again` if a request came since.
    Out { since: Duration, again: bool },
}

/// The last answer.
#[derive(Debug)]
struct Last<V, E> {
    /// Counts from 1.
    number: u64,
    /// When its read began.
    since: Duration,
    /// `None` if its task panicked.
    said: Option<Result<V, E>>,
}

impl<V, E> Default for SharedReads<V, E> {
    fn default() -> SharedReads<V, E> {
        SharedReads { state: Mutex::default(), last: Mutex::new(None), changed: Notify::new() }
    }
}

impl<V: Clone, E: Clone> SharedReads<V, E> {
    /// Returns an answer whose read began after this call, or not before `oldest`, and where it came from.
    /// `None` if the task panicked. `call` starts [`SharedReads::answer`] as a task.
    pub(crate) async fn ask(
        &self,
        oldest: Option<Duration>,
        call: impl FnOnce(),
    ) -> (Option<Result<V, E>>, ReadFrom) {
        let (before, from) = {
            let mut state = self.state();
            if let Some(kept) = oldest.and_then(|oldest| self.kept(oldest)) {
                return (Some(Ok(kept)), ReadFrom::Recent);
            }
            let before = state.begun;
            match &mut state.phase {
                phase @ Phase::Idle => {
                    *phase = Phase::Called;
                    call();
                    (before, ReadFrom::Store)
                }
                Phase::Called => (before, ReadFrom::Shared),
                Phase::Out { since, .. } if oldest.is_some_and(|oldest| *since >= oldest) => {
                    (before - 1, ReadFrom::Shared)
                }
                Phase::Out { again, .. } => match std::mem::replace(again, true) {
                    true => (before, ReadFrom::Shared),
                    false => (before, ReadFrom::Store),
                },
            }
        };
        (self.newer_than(before).await, from)
    }

    /// Waits for an answer with a number greater than `before`.
    async fn newer_than(&self, before: u64) -> Option<Result<V, E>> {
        loop {
            // Enabled before the check, or an answer between the check and the wait would be missed.
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(newer) = self.last().as_ref().filter(|last| last.number > before) {
                return newer.said.clone();
            }
            changed.await;
        }
    }

    /// Reads again until no request came since the last read began.
    pub(crate) async fn answer<Fetch>(
        &self,
        clock: impl Fn() -> Duration,
        fetch: impl Fn() -> Fetch,
    ) where
        Fetch: Future<Output = Result<V, E>>,
    {
        loop {
            let mut begun = self.begin(clock());
            begun.said = Some(fetch().await);
            drop(begun);
            let mut state = self.state();
            if !matches!(state.phase, Phase::Out { again: true, .. }) {
                state.phase = Phase::Idle;
                return;
            }
        }
    }

    /// Drops the last answer during the next read. Requests that have not taken the last answer yet get the
    /// next one.
    pub(crate) fn give_up_last(&self) {
        *self.last() = None;
    }

    /// Counts the read before it queries the store: later requests wait for the next read.
    fn begin(&self, since: Duration) -> Begun<'_, V, E> {
        let mut state = self.state();
        state.begun += 1;
        state.phase = Phase::Out { since, again: false };
        Begun { asked: self, since, said: None }
    }

    /// The last answer, if its read did not begin before `oldest` and it is not an error.
    pub(crate) fn kept(&self, oldest: Duration) -> Option<V> {
        let last = self.last();
        let young = last.as_ref().filter(|last| last.since >= oldest)?;
        young.said.clone()?.ok()
    }

    fn last(&self) -> MutexGuard<'_, Option<Last<V, E>>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running read. Its drop wakes the waiters, also after a panic.
struct Begun<'a, V: Clone, E: Clone> {
    asked: &'a SharedReads<V, E>,
    since: Duration,
    said: Option<Result<V, E>>,
}

impl<V: Clone, E: Clone> Drop for Begun<'_, V, E> {
    fn drop(&mut self) {
        let said = self.said.take();
        let mut state = self.asked.state();
        if said.is_none() {
            // Requests that came during this read wait for the next one, but no task is left to do it.
            state.begun += u64::from(matches!(state.phase, Phase::Out { again: true, .. }));
            state.phase = Phase::Idle;
        }
        let last = Last { number: state.begun, since: self.since, said };
        // Under the lock: this answer must not replace a later one.
        let before = self.asked.last().replace(last);
        drop(state);
        self.asked.changed.notify_waiters();
        drop(before);
    }
}

#[cfg(test)]
mod tests;
