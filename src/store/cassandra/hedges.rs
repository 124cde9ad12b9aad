//! When to send a request that is out for too long a second time, to another node, and how often to do so at
//! most. Hedges help when one node hangs. They must not add to the load when all nodes are slow.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::runtime::latency::LatencyEstimate;

/// A hedge costs ten answers: of a hundred requests, up to ten are sent twice.
const COST: usize = 10;

/// Maximum savings: after a quiet time, 32 hedges can be sent at once.
const SAVED_MAX: usize = 32 * COST;

/// The hedges of one type of request.
#[derive(Debug)]
pub struct Hedges {
    typical: LatencyEstimate,
    /// One per answer, up to [`SAVED_MAX`]. Each hedge spends [`COST`].
    saved: AtomicUsize,
}

impl Default for Hedges {
    fn default() -> Hedges {
        Hedges { typical: LatencyEstimate::default(), saved: AtomicUsize::new(SAVED_MAX) }
    }
}

impl Hedges {
    /// How long to wait for an answer before the hedge is sent.
    #[must_use]
    pub fn after(&self) -> Duration {
        self.typical.overdue()
    }

    /// Notes how long a request took from its first attempt to its answer.
    pub(super) fn took(&self, took: Duration) {
        self.typical.took(took);
        let more = |saved| (saved < SAVED_MAX).then_some(saved + 1);
        let _ = self.saved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Whether one more hedge may be sent. If so, it counts as sent.
    pub(super) fn spend(&self) -> bool {
        let less = |saved: usize| saved.checked_sub(COST);
        self.saved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_answers_pays_for_hedges() {
        let hedges = Hedges::default();
        assert_eq!((0..1_000).filter(|_| hedges.spend()).count(), 32);
        (0..100).for_each(|_| hedges.took(Duration::from_millis(1)));
        assert_eq!((0..1_000).filter(|_| hedges.spend()).count(), 10);
        (0..100_000).for_each(|_| hedges.took(Duration::from_millis(1)));
        assert_eq!((0..1_000).filter(|_| hedges.spend()).count(), 32);
    }
}
