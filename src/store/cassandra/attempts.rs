//! Our own retries. The driver makes one attempt per call and never retries or speculates, because
//! it keeps only the last attempt's error; each further attempt here sends the same bytes with the
//! same timestamp, so that any number of them equals one.
//!
//! Public because the simulator sends through it as well.

use std::time::Duration;

use orderfree_core::protocol::{Constants, ShardWrite, WriteOutcome};
use scylla::errors::ExecutionError;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::errors::Attempts;
use crate::chance::Chance;
use crate::limits::{READ_ATTEMPT_TIME_MAX, READ_TIME_MAX};
use crate::store::StoreError;

/// The first pause between attempts as a share of an attempt's time; each further one doubles.
const FIRST_PAUSE_SHARE: u32 = 20;

/// How long to try.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Most attempts.
    pub attempts_max: u32,
    /// Longest time of one attempt.
    pub attempt: Duration,
    /// Longest time of all attempts with the pauses between.
    pub total: Duration,
}

/// What a write touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// One partition: its replicas take all of it or nothing.
    OnePartition,
    /// Several: each is refused or applied by itself, whatever the answer says.
    Several,
}

impl Reach {
    /// Of shard rows in one request.
    #[must_use]
    pub fn of(writes: &[ShardWrite]) -> Reach {
        let mut partitions = writes.iter().map(|write| write.key().partition());
        let first = partitions.next();
        match partitions.all(|partition| Some(partition) == first) {
            true => Reach::OnePartition,
            false => Reach::Several,
        }
    }
}

impl Patience {
    /// Of reads, and of folds: nothing hangs on their time but somebody who waits.
    pub const RELAXED: Patience =
        Patience { attempts_max: 3, attempt: READ_ATTEMPT_TIME_MAX, total: READ_TIME_MAX };

    /// Of shard writes, none of which may outlive the request budget.
    #[must_use]
    pub fn of_writes(constants: &Constants) -> Patience {
        Patience {
            attempts_max: 5,
            attempt: constants.attempt_budget(),
            total: constants.request_budget(),
        }
    }

    /// Waits before the given attempt. False if there is no time or no attempt left.
    async fn pause(&self, attempt: u32, deadline: Instant, chance: &Chance) -> bool {
        if attempt == 0 || attempt >= self.attempts_max {
            return attempt == 0;
        }
        let pause = self.pause_before(attempt, chance.factor(0.5..1.5));
        tokio::select! {
            biased;
            () = sleep_until(deadline) => false,
            () = sleep(pause) => true,
        }
    }

    fn pause_before(&self, attempt: u32, jitter: f64) -> Duration {
        (self.attempt / FIRST_PAUSE_SHARE * (1 << (attempt - 1))).mul_f64(jitter)
    }
}

/// Sends a write until it is acknowledged, may not be sent any more, or patience ends.
/// `may_be_sent` is asked right before every attempt.
pub async fn write<Sent>(
    patience: Patience,
    reach: Reach,
    chance: &Chance,
    may_be_sent: impl Fn() -> bool,
    send: impl Fn() -> Sent,
) -> WriteOutcome
where
    Sent: Future<Output = Result<(), ExecutionError>>,
{
    let deadline = Instant::now() + patience.total;
    let mut attempts = Attempts::default();
    for attempt in 0.. {
        if !patience.pause(attempt, deadline, chance).await || !may_be_sent() {
            break;
        }
        match timeout_at(deadline, send()).await {
            Ok(Ok(())) => return WriteOutcome::Acked,
            Ok(Err(error)) => attempts.failed(&error, reach),
            Err(_) => {
                attempts.left_open("no acknowledgement in time");
                break;
            }
        }
    }
    attempts.outcome("the writer's lease was over before anything was sent")
}

/// Asks until there is an answer or patience ends.
///
/// # Errors
/// [`StoreError::Unavailable`] with the last reason.
pub async fn read<T, Sent>(chance: &Chance, send: impl Fn() -> Sent) -> Result<T, StoreError>
where
    Sent: Future<Output = Result<T, ExecutionError>>,
{
    let patience = Patience::RELAXED;
    let deadline = Instant::now() + patience.total;
    let mut reason = String::from("no answer in time");
    for attempt in 0.. {
        if !patience.pause(attempt, deadline, chance).await {
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

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use orderfree_core::protocol::Overrides;
    use scylla::errors::{DbError, RequestAttemptError};
    use scylla::frame::types::Consistency;

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
        let outcome = write(
            patience(),
            Reach::OnePartition,
            &Chance::system(),
            || sent.get() < may_be_sent,
            send,
        )
        .await;
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
        let outcome = write(
            patience(),
            Reach::OnePartition,
            &Chance::system(),
            || true,
            std::future::pending,
        )
        .await;
        assert!(matches!(outcome, WriteOutcome::Unknown(_)));
        assert_eq!(begun.elapsed(), patience().total);
    }

    #[test]
    fn pauses_double_and_stay_within_the_budget() {
        let pauses: Duration = (1..5).map(|attempt| patience().pause_before(attempt, 1.5)).sum();
        assert!(pauses < patience().total / 2, "{pauses:?}");
        assert_eq!(patience().pause_before(3, 1.0), Duration::from_millis(400));
    }
}
