//! When the next fold may start: a bounded rate, and patience while folds can't succeed.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::chance::Chance;

/// First and longest wait after a fold that could not be done now.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

pub(super) struct Pace {
    every: Duration,
    chance: Chance,
    state: Mutex<State>,
}

struct State {
    /// The first free turn.
    next: Instant,
    /// The wait after the next fold that goes wrong.
    backoff: Duration,
}

impl Pace {
    pub(super) fn new(per_second: u32, chance: Chance) -> Pace {
        let state = Mutex::new(State { next: Instant::now(), backoff: BACKOFF.0 });
        Pace { every: Duration::from_secs(1) / per_second, chance, state }
    }

    /// Waits for the next free turn.
    pub(super) async fn turn(&self) {
        let at = self.with(|state| {
            let at = state.next.max(Instant::now());
            state.next = at + self.every;
            at
        });
        tokio::time::sleep_until(at).await;
    }

    pub(super) fn went_well(&self) {
        self.with(|state| state.backoff = BACKOFF.0);
    }

    /// Nobody folds for a while, and longer the next time.
    pub(super) fn went_wrong(&self) {
        self.with(|state| {
            let until = Instant::now() + state.backoff.mul_f64(self.chance.factor(0.5..1.0));
            if until > state.next {
                state.next = until;
                state.backoff = (2 * state.backoff).min(BACKOFF.1);
            }
        });
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn turns_keep_the_rate_and_wait_after_trouble() {
        let pace = Pace::new(100, Chance::system());
        let start = Instant::now();
        for _ in 0..11 {
            pace.turn().await;
        }
        assert_eq!(start.elapsed(), Duration::from_millis(100));
        pace.went_wrong();
        pace.turn().await;
        let waited = start.elapsed();
        assert!(waited >= Duration::from_millis(350), "{waited:?}");
    }
}
