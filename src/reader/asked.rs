//! One question that many ask, answered one after the other: whoever asks while it is being answered
//! gets the next answer, with all others who asked meanwhile. (Single flight, as in Go's `groupcache`,
//! but never the flight that is out already: its answer may be older than the question.)
//!
//! Answers are found by a task of their own, so that whoever gives up waiting takes nothing from others.
//!
//! A `watch` channel would do the same, but it wakes those who wait in a random order, and the simulator
//! repeats its schedules exactly.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::metrics::ReadFrom;

/// See the [module documentation](self).
#[derive(Debug)]
pub(super) struct Asked<V, E> {
    state: Mutex<State>,
    last: Mutex<Option<Last<V, E>>>,
    /// Tells those who wait that there is another answer.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// How many answers were begun.
    begun: u64,
    phase: Phase,
}

/// What the answering task does.
#[derive(Debug, Default, Clone, Copy)]
enum Phase {
    /// There is none.
    #[default]
    Idle,
    /// It was started, and has not begun.
    Called,
    /// It began an answer then, by the askers' clock; `again` if somebody has asked since.
    Out { since: Duration, again: bool },
}

/// The last answer.
#[derive(Debug)]
struct Last<V, E> {
    /// From 1.
    number: u64,
    /// When it was begun.
    since: Duration,
    /// None if its task panicked.
    said: Option<Result<V, E>>,
}

impl<V, E> Default for Asked<V, E> {
    fn default() -> Asked<V, E> {
        Asked { state: Mutex::default(), last: Mutex::new(None), changed: Notify::new() }
    }
}

impl<V: Clone, E: Clone> Asked<V, E> {
    /// An answer that was begun after this call, or one that was begun no earlier than `oldest`, and
    /// where it came from. None if its task panicked. `call` starts [`Asked::answer`] as a task.
    pub(super) async fn ask(
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

    /// Waits for an answer with a greater number.
    async fn newer_than(&self, before: u64) -> Option<Result<V, E>> {
        loop {
            // Enabled before the look, so that no answer is missed between the look and the wait.
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(newer) = self.last().as_ref().filter(|last| last.number > before) {
                return newer.said.clone();
            }
            changed.await;
        }
    }

    /// Answers until nobody has asked since the last answer was begun.
    pub(super) async fn answer<Fetch>(
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

    /// Lets go of the last answer while the next one is being found, which also does for those who have not
    /// taken the last one yet.
    pub(super) fn give_up_last(&self) {
        *self.last() = None;
    }

    /// Counted before the store is asked: whoever asks from now on waits for the next answer.
    fn begin(&self, since: Duration) -> Begun<'_, V, E> {
        let mut state = self.state();
        state.begun += 1;
        state.phase = Phase::Out { since, again: false };
        Begun { asked: self, since, said: None }
    }

    /// The last answer, if it was begun no earlier than `oldest` and is no error.
    pub(super) fn kept(&self, oldest: Duration) -> Option<V> {
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

/// An answer that is being found. Whatever ends it, those who wait are told.
struct Begun<'a, V: Clone, E: Clone> {
    asked: &'a Asked<V, E>,
    since: Duration,
    said: Option<Result<V, E>>,
}

impl<V: Clone, E: Clone> Drop for Begun<'_, V, E> {
    fn drop(&mut self) {
        let said = self.said.take();
        let mut state = self.asked.state();
        if said.is_none() {
            // Those who asked meanwhile wait for the next answer, and nobody is left to find it.
            state.begun += u64::from(matches!(state.phase, Phase::Out { again: true, .. }));
            state.phase = Phase::Idle;
        }
        let last = Last { number: state.begun, since: self.since, said };
        // Within the lock, lest a later answer be replaced by this one.
        let before = self.asked.last().replace(last);
        drop(state);
        self.asked.changed.notify_waiters();
        drop(before);
    }
}

#[cfg(test)]
mod tests;
