//! Our own retries. The driver makes one attempt per call and never retries or speculates, because
//! it keeps only the last attempt's error; each further attempt here sends the same bytes with the
//! same timestamp, so that any number of them equals one.

use std::time::Duration;

use orderfree_core::protocol::{Constants, WriteOutcome};
use scylla::errors::ExecutionError;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::errors::Attempts;
use crate::store::StoreError;

/// Most attempts at one write: each may take a fifth of the budget.
const WRITE_ATTEMPTS_MAX: u32 = 5;

/// Most attempts at one read.
pub(super) const READ_ATTEMPTS_MAX: u32 = 3;

/// The first pause between attempts as a share of an attempt's budget; each further one doubles.
const FIRST_PAUSE_SHARE: u32 = 20;

/// Sends a write until it is acknowledged, may not be sent any more, or the budget is spent.
/// `may_be_sent` is asked right before every attempt.
pub(super) async fn write<Sent>(
    constants: &Constants,
    may_be_sent: impl Fn() -> bool,
    send: impl Fn() -> Sent,
) -> WriteOutcome
where
    Sent: Future<Output = Result<(), ExecutionError>>,
{
    let deadline = Instant::now() + constants.request_budget();
    let mut attempts = Attempts::default();
    for attempt in 0..WRITE_ATTEMPTS_MAX {
        if attempt > 0 && !paused(constants, attempt, deadline).await {
            break;
        }
        if !may_be_sent() {
            break;
        }
        match timeout_at(deadline, send()).await {
            Ok(Ok(())) => return WriteOutcome::Acked,
            Ok(Err(error)) => attempts.failed(&error),
            Err(_) => {
                attempts.left_open("no acknowledgement within the request budget");
                break;
            }
        }
    }
    attempts.outcome("the writer's lease was over before anything was sent")
}

/// Asks until there is an answer, the attempts are used up, or the budget is spent.
pub(super) async fn read<T, Sent>(
    constants: &Constants,
    send: impl Fn() -> Sent,
) -> Result<T, StoreError>
where
    Sent: Future<Output = Result<T, ExecutionError>>,
{
    let deadline = Instant::now() + constants.request_budget();
    let mut reason = String::from("no answer within the request budget");
    for attempt in 0..READ_ATTEMPTS_MAX {
        if attempt > 0 && !paused(constants, attempt, deadline).await {
            break;
        }
        match timeout_at(deadline, send()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => reason = error.to_string(),
            Err(_) => break,
        }
    }
    Err(StoreError::Unavailable(reason))
}

/// Waits before the given attempt. False if the deadline comes first.
async fn paused(constants: &Constants, attempt: u32, deadline: Instant) -> bool {
    let pause = pause(constants.attempt_budget(), attempt, rand::random_range(0.5..1.5));
    tokio::select! {
        biased;
        () = sleep_until(deadline) => false,
        () = sleep(pause) => true,
    }
}

fn pause(attempt_budget: Duration, attempt: u32, jitter: f64) -> Duration {
    (attempt_budget / FIRST_PAUSE_SHARE * (1 << (attempt - 1))).mul_f64(jitter)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use orderfree_core::protocol::Overrides;
    use scylla::errors::{DbError, RequestAttemptError};
    use scylla::frame::types::Consistency;

    use super::*;

    fn constants() -> Constants {
        Constants::resolve(Overrides::default()).expect("defaults")
    }

    fn unavailable() -> ExecutionError {
        let consistency = Consistency::LocalQuorum;
        let error = DbError::Unavailable { consistency, required: 2, alive: 1 };
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, String::new()))
    }

    fn timed_out() -> ExecutionError {
        ExecutionError::RequestTimeout(Duration::from_secs(2))
    }

    /// Plays the answers, the last of `answers` first, and returns the outcome and the number sent.
    async fn play(
        answers: Vec<Result<(), ExecutionError>>,
        may_be_sent: usize,
    ) -> (WriteOutcome, usize) {
        let (answers, sent) = (RefCell::new(answers), Cell::new(0));
        let send = async || {
            sent.set(sent.get() + 1);
            answers.borrow_mut().pop().unwrap_or(Err(unavailable()))
        };
        let outcome = write(&constants(), || sent.get() < may_be_sent, send).await;
        (outcome, sent.get())
    }

    #[tokio::test(start_paused = true)]
    async fn one_acknowledged_attempt_acknowledges_the_write() {
        let answers = vec![Ok(()), Err(timed_out()), Err(unavailable())];
        assert_eq!(play(answers, 99).await, (WriteOutcome::Acked, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_is_refused_only_if_every_attempt_was() {
        let (outcome, sent) = play(vec![], 99).await;
        assert!(matches!(outcome, WriteOutcome::Refused(_)));
        assert_eq!(sent, 5);
        let (outcome, _) = play(vec![Err(timed_out()), Err(unavailable())], 99).await;
        assert!(matches!(outcome, WriteOutcome::Unknown(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_sent_once_the_lease_is_over() {
        let (outcome, sent) = play(vec![Ok(())], 0).await;
        assert_eq!(sent, 0);
        assert!(matches!(outcome, WriteOutcome::Refused(_)));
        let (outcome, sent) = play(vec![Ok(()), Err(timed_out())], 1).await;
        assert_eq!(sent, 1);
        assert!(matches!(outcome, WriteOutcome::Unknown(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn no_attempt_outlives_the_request_budget() {
        let begun = Instant::now();
        let outcome = write(&constants(), || true, std::future::pending).await;
        assert!(matches!(outcome, WriteOutcome::Unknown(_)));
        assert_eq!(begun.elapsed(), constants().request_budget());
    }

    #[test]
    fn pauses_double_and_stay_within_the_budget() {
        let pauses: Duration = (1..WRITE_ATTEMPTS_MAX)
            .map(|attempt| pause(constants().attempt_budget(), attempt, 1.5))
            .sum();
        assert!(pauses < constants().request_budget() / 2, "{pauses:?}");
        assert_eq!(pause(Duration::from_secs(2), 3, 1.0), Duration::from_millis(400));
    }
}
