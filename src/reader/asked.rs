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
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use futures::future::join_all;
    use tokio::time::{Instant, sleep};

    use super::*;

    const TAKES: Duration = Duration::from_millis(10);

    /// A value that is acknowledged now and then, and how often it was fetched.
    #[derive(Default)]
    struct Source {
        asked: Asked<usize>,
        acked: AtomicUsize,
        fetches: AtomicUsize,
    }

    impl Source {
        /// Asks; the value must not be older than the question.
        async fn ask(&self) -> bool {
            let acked = self.acked.load(Ordering::SeqCst);
            let (value, is_shared) = self
                .asked
                .ask(async {
                    self.fetches.fetch_add(1, Ordering::SeqCst);
                    let value = self.acked.load(Ordering::SeqCst);
                    sleep(TAKES).await;
                    (value, Duration::ZERO)
                })
                .await;
            assert!(value >= acked, "{value} of {acked}");
            is_shared
        }

        fn fetches(&self) -> usize {
            self.fetches.load(Ordering::SeqCst)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_ask_while_it_is_being_answered_share_the_next_answer() {
        let (source, begun) = (Source::default(), Instant::now());
        let first = async {
            assert!(!source.ask().await);
            assert_eq!(begun.elapsed(), TAKES);
        };
        let others = async {
            sleep(TAKES / 2).await;
            source.acked.fetch_add(1, Ordering::SeqCst);
            let shared = join_all((0..100).map(|_| source.ask())).await;
            assert_eq!(shared.iter().filter(|shared| **shared).count(), 99);
            assert_eq!(begun.elapsed(), 2 * TAKES);
        };
        tokio::join!(first, others);
        assert_eq!(source.fetches(), 2);
        assert!(!source.ask().await, "nobody else asks");
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_goes_away_leaves_the_turn_to_another() {
        let source = Source::default();
        let gone = tokio::time::timeout(TAKES / 2, source.ask());
        let (gone, shared) = tokio::join!(gone, source.ask());
        assert!(gone.is_err() && !shared);
        assert_eq!(source.fetches(), 2);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_answer_is_older_than_its_question() {
        let source = Arc::new(Source::default());
        let tasks = (0..20).map(|at| {
            let source = Arc::clone(&source);
            tokio::spawn(async move {
                for _ in 0..20 {
                    source.acked.fetch_add(at % 2, Ordering::SeqCst);
                    source.ask().await;
                }
            })
        });
        for task in join_all(tasks).await {
            task.expect("no answer was too old");
        }
        assert!(source.fetches() < 200, "{}", source.fetches());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_as_young_as_its_beginning() {
        let (asked, at) = (Asked::default(), Duration::from_secs);
        assert_eq!(asked.since(at(0)), None);
        asked.ask(async { ('a', at(7)) }).await;
        assert_eq!((asked.since(at(7)), asked.since(at(8))), (Some('a'), None));
    }
}
