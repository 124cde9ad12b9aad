//! Our own retries and hedges. The driver makes one attempt per call, and never retries or speculates,
//! because it keeps only the last attempt's error. Each further attempt here sends the same bytes with the
//! same timestamp, so any number of attempts has the effect of one. A retry follows a failed attempt after a
//! pause. A hedge follows an attempt that is out for longer than typical (Dean and Barroso, "The Tail at
//! Scale", 2013).
//!
//! Public because the simulator uses it too.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use orderfree_core::protocol::{Constants, WriteOutcome};
use scylla::errors::ExecutionError;
use tokio::time::{Instant, sleep_until};

use super::errors::Attempts;
use super::hedges::Hedges;
use super::reach::Reach;
use crate::limits::{STORE_ATTEMPT_TIME_MAX, STORE_REQUEST_TIME_MAX};
use crate::runtime::random::Random;
use crate::store::StoreError;

/// The first pause between attempts, as a share of an attempt's time. Each further pause is twice as long.
const FIRST_PAUSE_SHARE: u32 = 20;

/// How often and how long to try.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Maximum attempts, each after the failure of the one before. Each can have one hedge.
    pub attempts_max: u32,
    /// Longest time for one attempt.
    pub attempt: Duration,
    /// Longest time for all attempts and the pauses between them.
    pub total: Duration,
}

impl Patience {
    /// For reads and folds. A hedge can prolong an attempt by up to a second. A client's read can make several such
    /// requests, and HTTP adds no limit.
    pub const OF_READS_AND_FOLDS: Patience = Patience {
        attempts_max: 3,
        attempt: STORE_ATTEMPT_TIME_MAX,
        total: STORE_REQUEST_TIME_MAX,
    };

    /// For shard writes. None may outlive the request budget.
    #[must_use]
    pub fn of_writes(constants: &Constants) -> Patience {
        Patience {
            attempts_max: 5,
            attempt: constants.attempt_budget(),
            total: constants.request_budget(),
        }
    }

    fn pause_before(&self, attempt: u32, jitter: f64) -> Duration {
        (self.attempt / FIRST_PAUSE_SHARE * (1 << (attempt - 1))).mul_f64(jitter)
    }
}

/// How to send a request: how often, at which times, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Sending<'a> {
    pub patience: Patience,
    /// When to send a hedge for an attempt that is out for too long. `None` waits until the attempt fails.
    pub hedges: Option<&'a Hedges>,
    /// Varies the pauses between attempts.
    pub random: &'a Random,
}

/// Why no attempt succeeded.
enum NoSuccess {
    /// All attempts failed, or none was sent.
    AllFailed,
    /// Patience ended while some attempts were still out.
    StillOut,
}

impl Sending<'_> {
    /// Sends a write until it is acknowledged, must not be sent any more, or patience ends. Calls
    /// `may_be_sent` right before every attempt. `send` gets the number of the attempt, from 0.
    pub async fn write<Sent>(
        &self,
        reach: Reach,
        may_be_sent: impl Fn() -> bool,
        send: impl Fn(u32) -> Sent,
    ) -> WriteOutcome
    where
        Sent: Future<Output = Result<(), ExecutionError>>,
    {
        let mut attempts = Attempts::default();
        let failed = |error: &ExecutionError| attempts.failed(error, reach);
        match self.first(may_be_sent, send, failed).await {
            Ok(()) => return Ok(()),
            Err(NoSuccess::StillOut) => attempts.left_open("no acknowledgement in time"),
            Err(NoSuccess::AllFailed) => {}
        }
        attempts.outcome("the writer's lease was over before anything was sent")
    }

    /// Sends a read until there is an answer or patience ends.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] with the last reason.
    pub async fn read<T, Sent>(&self, send: impl Fn(u32) -> Sent) -> Result<T, StoreError>
    where
        Sent: Future<Output = Result<T, ExecutionError>>,
    {
        let mut reason = String::from("no answer in time");
        let failed = |error: &ExecutionError| reason = error.to_string();
        let answer = self.first(|| true, send, failed).await;
        answer.map_err(|_| StoreError::Unavailable(reason))
    }

    /// Returns the first success of any attempt.
    async fn first<T, Sent>(
        &self,
        may_be_sent: impl Fn() -> bool,
        send: impl Fn(u32) -> Sent,
        mut failed: impl FnMut(&ExecutionError),
    ) -> Result<T, NoSuccess>
    where
        Sent: Future<Output = Result<T, ExecutionError>>,
    {
        let begun = Instant::now();
        let deadline = begun + self.patience.total;
        let mut out = FuturesUnordered::new();
        let (mut sent, mut tries, mut next) = (0, 0, Some(begun));
        loop {
            // Without a timer: even an expired one fires a millisecond or two later.
            if next.is_some_and(|next| next <= Instant::now()) {
                next = None;
                let is_hedge = !out.is_empty();
                let is_paid = || self.hedges.is_some_and(Hedges::spend);
                if may_be_sent() && (!is_hedge || is_paid()) {
                    out.push(send(sent));
                    sent += 1;
                    if !is_hedge {
                        tries += 1;
                        next = self.hedges.map(|hedges| Instant::now() + hedges.after());
                    }
                }
            }
            if out.is_empty() && next.is_none() {
                break;
            }
            tokio::select! {
                biased;
                Some(answer) = out.next() => match answer {
                    Ok(answer) => {
                        if let Some(hedges) = self.hedges {
                            hedges.took(begun.elapsed());
                        }
                        return Ok(answer);
                    }
                    Err(error) => {
                        failed(&error);
                        if out.is_empty() {
                            next = self.after_failure(tries);
                        }
                    }
                },
                () = sleep_until(deadline) => break,
                () = sleep_until(next.unwrap_or(deadline)), if next.is_some() => {}
            }
        }
        Err(if out.is_empty() { NoSuccess::AllFailed } else { NoSuccess::StillOut })
    }

    /// When to send again after all attempts have failed.
    fn after_failure(&self, tries: u32) -> Option<Instant> {
        let pause = || self.patience.pause_before(tries, self.random.factor(0.5..1.5));
        (tries < self.patience.attempts_max).then(|| Instant::now() + pause())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use orderfree_core::protocol::{Overrides, WriteError};
    use scylla::errors::{DbError, RequestAttemptError};
    use scylla::frame::types::Consistency;
    use tokio::time::sleep;

    use super::*;

    fn patience() -> Patience {
        let defaults = Constants::resolve(Overrides::default()).expect("defaults");
        Patience::of_writes(&defaults)
    }

    fn unavailable() -> ExecutionError {
        let consistency = Consistency::LocalQuorum;
        let error = DbError::Unavailable { consistency, required: 2, alive: 1 };
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, String::new()))
    }

    fn timed_out() -> ExecutionError {
        ExecutionError::RequestTimeout(Duration::from_secs(2))
    }

    /// Plays the answers, last one first, and returns the outcome and the number of attempts.
    async fn play(
        answers: Vec<Result<(), ExecutionError>>,
        may_be_sent: usize,
    ) -> (WriteOutcome, usize) {
        let (answers, sent) = (RefCell::new(answers), Cell::new(0));
        let send = async |attempt| {
            assert_eq!(attempt as usize, sent.replace(sent.get() + 1));
            answers.borrow_mut().pop().unwrap_or(Err(unavailable()))
        };
        let may_be_sent = || sent.get() < may_be_sent;
        let random = Random::system();
        let sending = Sending { patience: patience(), hedges: None, random: &random };
        let outcome = sending.write(Reach::OnePartition, may_be_sent, send).await;
        (outcome, sent.get())
    }

    #[tokio::test(start_paused = true)]
    async fn one_acknowledged_attempt_acknowledges_the_write() {
        let answers = vec![Ok(()), Err(timed_out()), Err(unavailable())];
        assert_eq!(play(answers, 99).await, (Ok(()), 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_is_refused_only_if_every_attempt_was() {
        let (outcome, sent) = play(vec![], 99).await;
        assert!(matches!(outcome, Err(WriteError::Refused(_))));
        assert_eq!(sent, 5);
        let (outcome, _) = play(vec![Err(timed_out()), Err(unavailable())], 99).await;
        assert!(matches!(outcome, Err(WriteError::Unknown(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_sent_once_the_lease_is_over() {
        let (outcome, sent) = play(vec![Ok(())], 0).await;
        assert_eq!(sent, 0);
        assert!(matches!(outcome, Err(WriteError::Refused(_))));
        let (outcome, sent) = play(vec![Ok(()), Err(timed_out())], 1).await;
        assert_eq!(sent, 1);
        assert!(matches!(outcome, Err(WriteError::Unknown(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn no_attempt_outlives_the_request_budget() {
        let (hedges, random) = (Hedges::default(), Random::system());
        for hedges in [None, Some(&hedges)] {
            let begun = Instant::now();
            let sending = Sending { patience: patience(), hedges, random: &random };
            let never = |_| std::future::pending();
            let outcome = sending.write(Reach::OnePartition, || true, never).await;
            assert!(matches!(outcome, Err(WriteError::Unknown(_))));
            assert_eq!(begun.elapsed(), patience().total);
        }
    }

    /// Sends a write whose attempts end as in `ends`. Returns the outcome, the number of attempts and the
    /// time.
    async fn hedge(
        hedges: &Hedges,
        ends: &[(u64, Result<(), ExecutionError>)],
        leases: usize,
    ) -> (WriteOutcome, usize, Duration) {
        let (sent, random, begun) = (Cell::new(0), Random::system(), Instant::now());
        let send = async |attempt: u32| {
            sent.set(sent.get() + 1);
            match ends.get(attempt as usize) {
                Some((ms, end)) => {
                    sleep(Duration::from_millis(*ms)).await;
                    end.clone()
                }
                None => std::future::pending().await,
            }
        };
        let may_be_sent = || sent.get() < leases;
        let sending = Sending { patience: patience(), hedges: Some(hedges), random: &random };
        let outcome = sending.write(Reach::OnePartition, may_be_sent, send).await;
        (outcome, sent.get(), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_attempt_waits_for_no_tick_of_the_timer() {
        tokio::time::advance(Duration::from_micros(300)).await;
        let (hedges, random, begun) = (Hedges::default(), Random::system(), Instant::now());
        let sending = Sending { patience: patience(), hedges: Some(&hedges), random: &random };
        let outcome = sending.write(Reach::OnePartition, || true, async |_| Ok(())).await;
        assert_eq!((outcome, begun.elapsed()), (Ok(()), Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hedge_answers_for_an_attempt_that_hangs() {
        let hedges = Hedges::default();
        let after = hedges.after();
        let (outcome, sent, took) = hedge(&hedges, &[(99_000, Ok(())), (3, Ok(()))], 9).await;
        assert_eq!((outcome, sent), (Ok(()), 2));
        assert_eq!(took, after + Duration::from_millis(3));
        let (outcome, sent, _) = hedge(&hedges, &[(1, Ok(()))], 9).await;
        assert_eq!((outcome, sent), (Ok(()), 1), "nothing hangs");
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_still_out_is_unknown_even_if_its_hedge_is_refused() {
        let hedges = Hedges::default();
        let (outcome, sent, _) =
            hedge(&hedges, &[(99_000, Ok(())), (1, Err(unavailable()))], 2).await;
        assert_eq!(sent, 2);
        assert!(matches!(outcome, Err(WriteError::Unknown(_))), "{outcome:?}");
        let late = [(1_500, Ok(())), (1, Err(unavailable()))];
        let (outcome, ..) = hedge(&hedges, &late, 2).await;
        assert_eq!(outcome, Ok(()), "the first one counts when it comes");
        let (outcome, ..) = hedge(&hedges, &[(50, Err(unavailable()))], 1).await;
        assert!(matches!(outcome, Err(WriteError::Refused(_))), "{outcome:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn hedges_take_no_attempt_from_those_that_follow_a_failure() {
        let mut ends = vec![(600, Err(timed_out())); 9];
        ends.push((1, Ok(())));
        let (outcome, sent, took) = hedge(&Hedges::default(), &ends, 99).await;
        assert_eq!((outcome, sent), (Ok(()), 10), "five attempts, each with a hedge");
        assert!(took > 4 * Duration::from_millis(600), "{took:?}");
        let broke = Hedges::default();
        while broke.spend() {}
        let ends = [(600, Err(timed_out())), (1, Ok(()))];
        let (outcome, sent, took) = hedge(&broke, &ends, 99).await;
        assert_eq!((outcome, sent), (Ok(()), 2), "no hedge is left, but a retry is");
        assert!(took > Duration::from_millis(600), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn no_hedge_is_sent_once_the_lease_is_over() {
        let (outcome, sent, _) = hedge(&Hedges::default(), &[(1_000, Ok(()))], 1).await;
        assert_eq!((outcome, sent), (Ok(()), 1));
    }

    #[test]
    fn pauses_double_and_stay_within_the_budget() {
        let pauses: Duration = (1..5).map(|attempt| patience().pause_before(attempt, 1.5)).sum();
        assert!(pauses < patience().total / 2, "{pauses:?}");
        assert_eq!(patience().pause_before(3, 1.0), Duration::from_millis(400));
    }
}
