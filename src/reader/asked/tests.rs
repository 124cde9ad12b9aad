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
