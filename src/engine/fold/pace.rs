//! When the next fold can start: after a rest for the store, and not while folds can't succeed.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::runtime::random::Random;

/// First and longest wait after a fold that failed for a temporary reason.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// If folds have failed for this long and none has succeeded, the log has a line about it.
const WORTH_A_LINE: Duration = Duration::from_secs(60);

pub(super) struct Pace {
    random: Random,
    state: Mutex<State>,
}

struct State {
    /// No fold starts before this time.
    until: Instant,
    /// The wait after the next failure.
    backoff: Duration,
    /// Since when folds fail.
    failing_since: Option<Instant>,
    /// The last one failed because folds were not allowed.
    is_paused: bool,
    /// Whether the log says that folds wait.
    was_told: bool,
}

impl Pace {
    pub(super) fn new(random: Random) -> Pace {
        let state = State {
            until: Instant::now(),
            backoff: BACKOFF.0,
            failing_since: None,
            is_paused: false,
            was_told: false,
        };
        Pace { random, state: Mutex::new(state) }
    }

    /// Waits until folds can succeed again.
    pub(super) async fn turn(&self) {
        let until = self.with(|state| state.until);
        // Even an expired timer fires a millisecond or two late.
        if until > Instant::now() {
            tokio::time::sleep_until(until).await;
        }
    }

    /// Rests about as long as a fold took. A worker folds for half of the time, so a slower store gets fewer
    /// folds.
    pub(super) async fn rest(&self, took: Duration) {
        tokio::time::sleep(took.mul_f64(self.random.factor(0.5..1.5))).await;
    }

    /// Returns true if the last line in the log says that folds wait, so that it must now say that they go on.
    pub(super) fn went_well(&self) -> bool {
        self.with(|state| {
            state.backoff = BACKOFF.0;
            state.failing_since = None;
            state.is_paused = false;
            std::mem::take(&mut state.was_told)
        })
    }

    /// Records that folds are allowed again. Returns true if the log has to say that folds go on.
    pub(super) fn is_allowed_again(&self) -> bool {
        self.with(|state| state.is_paused) && self.went_well()
    }

    /// Stops folds for a while, and for longer the next time. Failures of folds that were already running
    /// change nothing. Returns true if the log has to say that folds wait.
    pub(super) fn went_wrong(&self, is_paused: bool) -> bool {
        self.with(|state| {
            state.is_paused = is_paused;
            let now = Instant::now();
            if now >= state.until {
                state.until = now + state.backoff.mul_f64(self.random.factor(0.5..1.0));
                state.backoff = (2 * state.backoff).min(BACKOFF.1);
            }
            let since = *state.failing_since.get_or_insert(now);
            let is_long = now.duration_since(since) >= WORTH_A_LINE;
            is_long && !std::mem::replace(&mut state.was_told, true)
        })
    }

    /// Whether the log says that folds wait.
    #[cfg(test)]
    pub(super) fn was_told(&self) -> bool {
        self.with(|state| state.was_told)
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_rest_is_about_as_long_as_the_fold() {
        let (pace, start) = (Pace::new(Random::system()), Instant::now());
        pace.turn().await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        pace.rest(Duration::from_millis(100)).await;
        let rested = start.elapsed().as_millis();
        assert!((50..=150).contains(&rested), "{rested} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn the_log_says_once_that_folds_wait_and_once_that_they_go_on() {
        let pace = Pace::new(Random::system());
        let went_wrong = || pace.went_wrong(false);
        assert!(!went_wrong() && !pace.went_well(), "one failure is not worth a line");
        assert!(!went_wrong());
        tokio::time::advance(WORTH_A_LINE).await;
        assert!(went_wrong() && !went_wrong());
        assert!(!pace.is_allowed_again(), "they were allowed, and failed");
        assert!(pace.went_well() && !pace.went_well());
    }

    #[tokio::test(start_paused = true)]
    async fn folds_go_on_when_they_are_allowed_again() {
        let pace = Pace::new(Random::system());
        assert!(!pace.went_wrong(true));
        tokio::time::advance(WORTH_A_LINE).await;
        assert!(pace.went_wrong(true));
        assert!(pace.is_allowed_again() && !pace.is_allowed_again());
    }

    #[tokio::test(start_paused = true)]
    async fn waits_after_trouble_grow_and_count_once() {
        let pace = Pace::new(Random::system());
        let wait = async || {
            let start = Instant::now();
            pace.turn().await;
            start.elapsed()
        };
        for least_ms in [250, 500, 1_000] {
            (0..8).for_each(|_| _ = pace.went_wrong(false));
            let waited = wait().await.as_millis();
            assert!((least_ms..=2 * least_ms).contains(&waited), "{waited} ms");
        }
        pace.went_well();
        pace.went_wrong(false);
        let waited = wait().await.as_millis();
        assert!((250..=500).contains(&waited), "{waited} ms");
    }
}
