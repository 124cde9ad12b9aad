//! One question that many ask, answered one after the other: whoever asks while it is being answered
//! gets the next answer, with all others who asked meanwhile. (Single flight, as in Go's `groupcache`,
//! but never the flight that is out already: its answer may be older than the question.)

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

/// See the [module documentation](self).
#[derive(Debug)]
pub(super) struct Asked<T> {
    /// How many answers were begun.
    begun: AtomicU64,
    turn: Semaphore,
    last: watch::Sender<Option<Last<T>>>,
}

/// The last answer.
#[derive(Debug)]
struct Last<T> {
    /// From 1.
    number: u64,
    /// When it was begun, by the asker's clock.
    since: Duration,
    answer: T,
}

impl<T> Default for Asked<T> {
    fn default() -> Asked<T> {
        Asked { begun: AtomicU64::new(0), turn: Semaphore::new(1), last: watch::Sender::new(None) }
    }
}

impl<T: Clone> Asked<T> {
    /// An answer that was begun after this call, by `fetch` or by that of another asker, and whether it
    /// is another's. `fetch` also says when it began. Dropping the future harms nobody: another of those
    /// who wait fetches.
    pub(super) async fn ask(&self, fetch: impl Future<Output = (T, Duration)>) -> (T, bool) {
        let before = self.begun.load(Ordering::SeqCst);
        let mut last = self.last.subscribe();
        let is_newer =
            |last: &Option<Last<T>>| last.as_ref().is_some_and(|last| last.number > before);
        let newer_said = async { drop(last.wait_for(is_newer).await) };
        tokio::select! {
            biased;
            () = newer_said => {}
            turn = self.turn.acquire() => {
                let _turn = turn.expect("invariant: it is never closed");
                if !is_newer(&self.last.borrow()) {
                    // Counted before it is begun: whoever asks from now on waits for the next one.
                    let number = 1 + self.begun.fetch_add(1, Ordering::SeqCst);
                    let (answer, since) = fetch.await;
                    let said = Last { number, since, answer: answer.clone() };
                    self.last.send_replace(Some(said));
                    return (answer, false);
                }
            }
        }
        let last = self.last.borrow();
        let newer = last.as_ref().expect("invariant: there is a newer one");
        (newer.answer.clone(), true)
    }

    /// The last answer, unless it was begun before that.
    pub(super) fn since(&self, oldest: Duration) -> Option<T> {
        let last = self.last.borrow();
        last.as_ref().filter(|last| last.since >= oldest).map(|last| last.answer.clone())
    }
}

#[cfg(test)]
mod tests;
