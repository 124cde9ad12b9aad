use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use futures::future::join_all;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use super::*;

const TAKES: Duration = Duration::from_millis(10);

/// A value that grows, and how often it was fetched.
struct Source {
    asked: SharedReads<usize, ()>,
    begun: Instant,
    value: AtomicUsize,
    fetches: AtomicUsize,
}

impl Source {
    fn new() -> Arc<Source> {
        let (asked, begun) = (SharedReads::default(), Instant::now());
        let (value, fetches) = <(AtomicUsize, AtomicUsize)>::default();
        Arc::new(Source { asked, begun, value, fetches })
    }

    /// Requests the value; it must not be older than the request.
    async fn ask(self: &Arc<Self>) -> ReadFrom {
        let now = self.value.load(Ordering::SeqCst);
        let (said, from) = self.ask_of(None).await;
        assert!(said >= now, "{said} of {now}");
        from
    }

    async fn ask_of(self: &Arc<Self>, oldest: Option<Duration>) -> (usize, ReadFrom) {
        let source = Arc::clone(self);
        let call = move || {
            tokio::spawn(async move { source.answer().await });
        };
        let (said, from) = self.asked.ask(oldest, call).await;
        (said.expect("no panic").expect("no error"), from)
    }

    async fn answer(&self) {
        let fetch = || async {
            self.fetches.fetch_add(1, Ordering::SeqCst);
            let value = self.value.load(Ordering::SeqCst);
            sleep(TAKES).await;
            Ok(value)
        };
        self.asked.answer(|| self.begun.elapsed(), fetch).await;
    }

    fn fetches(&self) -> usize {
        self.fetches.load(Ordering::SeqCst)
    }
}

#[tokio::test(start_paused = true)]
async fn all_who_ask_while_it_is_being_answered_share_the_next_answer() {
    let source = Source::new();
    let first = async {
        assert_eq!(source.ask().await, ReadFrom::Store);
        assert_eq!(source.begun.elapsed(), TAKES);
    };
    let others = async {
        sleep(TAKES / 2).await;
        source.value.fetch_add(1, Ordering::SeqCst);
        let from = join_all((0..100).map(|_| source.ask())).await;
        assert_eq!(from.iter().filter(|from| **from == ReadFrom::Shared).count(), 99);
        assert_eq!(source.begun.elapsed(), 2 * TAKES);
    };
    tokio::join!(first, others);
    assert_eq!(source.fetches(), 2);
    assert_eq!(source.ask().await, ReadFrom::Store, "there is no other request");
}

#[tokio::test(start_paused = true)]
async fn clients_that_give_up_do_not_delay_others() {
    let source = Source::new();
    let impatient = || timeout(TAKES / 2, source.ask());
    for _ in 0..10 {
        assert!(impatient().await.is_err());
        assert!(source.fetches() > 0);
    }
    assert!(source.fetches() <= 6, "{} in {:?}", source.fetches(), source.begun.elapsed());
    let patient = timeout(2 * TAKES, source.ask());
    assert!(patient.await.is_ok(), "it waits for at most two reads");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_is_older_than_its_question() {
    let source = Source::new();
    let tasks = (0..20).map(|at| {
        let source = Arc::clone(&source);
        tokio::spawn(async move {
            for _ in 0..20 {
                source.value.fetch_add(at % 2, Ordering::SeqCst);
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
async fn a_recent_answer_is_reused_and_a_coming_one_is_awaited() {
    let source = Source::new();
    let (_, from) = source.ask_of(Some(Duration::ZERO)).await;
    assert_eq!(from, ReadFrom::Store, "there was none");
    source.value.store(1, Ordering::SeqCst);
    assert_eq!(source.ask_of(Some(Duration::ZERO)).await, (0, ReadFrom::Recent));
    let young = Some(TAKES);
    let (first, second) = tokio::join!(source.ask_of(young), async {
        sleep(TAKES / 2).await;
        source.value.store(2, Ordering::SeqCst);
        source.ask_of(young).await
    });
    assert_eq!((first, second), ((1, ReadFrom::Store), (1, ReadFrom::Shared)));
    assert_eq!(source.begun.elapsed(), 2 * TAKES);
    assert_eq!(source.ask_of(Some(2 * TAKES)).await, (2, ReadFrom::Store));
}

#[tokio::test(start_paused = true)]
async fn a_bug_is_told_to_all_who_wait_and_the_next_one_asks_again() {
    let asked: SharedReads<(), ()> = SharedReads::default();
    let meanwhile = async {
        sleep(TAKES / 2).await;
        asked.ask(None, || panic!("a task is running")).await
    };
    let (said, said_meanwhile, ()) = tokio::join!(asked.ask(None, || ()), meanwhile, async {
        let bug = asked.answer(Duration::default, || async {
            sleep(TAKES).await;
            panic!("a bug of this test")
        });
        let caught = std::panic::AssertUnwindSafe(bug).catch_unwind().await;
        assert!(caught.is_err());
    });
    assert_eq!((said, said_meanwhile), ((None, ReadFrom::Store), (None, ReadFrom::Store)));
    let (said, ()) =
        tokio::join!(asked.ask(None, || ()), asked.answer(Duration::default, || async { Err(()) }));
    assert_eq!(said, (Some(Err(())), ReadFrom::Store));
    assert_eq!(asked.kept(Duration::ZERO), None, "an error is not kept");
}

#[tokio::test]
async fn who_has_not_taken_an_answer_that_is_given_up_gets_the_next() {
    let asked: SharedReads<usize, ()> = SharedReads::default();
    let (gate, fetches) = (Semaphore::new(0), AtomicUsize::new(0));
    let fetch = || async {
        let number = fetches.fetch_add(1, Ordering::SeqCst) + 1;
        if number == 2 {
            asked.give_up_last();
        }
        gate.acquire().await.expect("open").forget();
        Ok(number)
    };
    let mut answering = pin!(asked.answer(Duration::default, fetch));
    let mut first = pin!(asked.ask(None, || ()));
    assert!(first.as_mut().now_or_never().is_none());
    assert!(answering.as_mut().now_or_never().is_none());
    let mut second = pin!(asked.ask(None, || panic!("a task is running")));
    assert!(second.as_mut().now_or_never().is_none());
    gate.add_permits(1);
    assert!(answering.as_mut().now_or_never().is_none(), "it does the second read");
    assert!(first.as_mut().now_or_never().is_none(), "the first answer is dropped");
    gate.add_permits(1);
    answering.as_mut().now_or_never().expect("there are no more requests");
    for waited in [first.now_or_never(), second.now_or_never()] {
        let (said, _) = waited.expect("an answer");
        assert_eq!(said, Some(Ok(2)));
    }
}
