//! How long a request to the store typically takes: a running estimate of the median. One hanging node
//! hardly moves it; an overloaded cluster surely does.
//!
//! Each sample moves the estimate by a fixed share, up if it was longer and down if it was shorter. The
//! estimate settles where half of the samples are longer (stochastic approximation, Robbins and Monro 1951).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The estimate before the first sample, in µs.
const FIRST_US: usize = 5_000;

/// Each sample moves the estimate by a fiftieth.
const STEP_SHARE: usize = 50;

/// A request is overdue after this many times the typical time.
const OVERDUE_TIMES: u32 = 4;

/// Bounds of the time after which a request is overdue: shortest and longest.
const OVERDUE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// See the [module documentation](self).
#[derive(Debug)]
pub struct LatencyEstimate(AtomicUsize);

impl Default for LatencyEstimate {
    fn default() -> LatencyEstimate {
        LatencyEstimate(AtomicUsize::new(FIRST_US))
    }
}

impl LatencyEstimate {
    /// Adds the time of one request. One of two concurrent samples can be lost.
    pub fn took(&self, took: Duration) {
        let typical = self.0.load(Ordering::Relaxed);
        let step = typical / STEP_SHARE + 1;
        let is_longer = took.as_micros() > typical as u128;
        let moved = if is_longer { typical + step } else { typical.saturating_sub(step) };
        self.0.store(moved, Ordering::Relaxed);
    }

    #[must_use]
    pub fn median(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed) as u64)
    }

    /// The time after which a request is overdue.
    #[must_use]
    pub fn overdue(&self) -> Duration {
        (OVERDUE_TIMES * self.median()).clamp(OVERDUE.0, OVERDUE.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time until a request is overdue, after many rounds of these samples.
    fn settled(round_ms: &[u64]) -> u128 {
        let typical = LatencyEstimate::default();
        for ms in round_ms.iter().cycle().take(400 * round_ms.len()) {
            typical.took(Duration::from_millis(*ms));
        }
        typical.overdue().as_millis()
    }

    #[test]
    fn overload_is_learned_and_one_hanging_node_of_three_is_not() {
        assert_eq!(settled(&[1]), 20, "never shorter");
        assert!((220..260).contains(&settled(&[60, 59, 61])), "{}", settled(&[60, 59, 61]));
        assert!((70..110).contains(&settled(&[20, 2_000, 19])), "{}", settled(&[20, 2_000, 19]));
        assert_eq!(settled(&[5_000]), 1_000, "never longer");
    }
}
