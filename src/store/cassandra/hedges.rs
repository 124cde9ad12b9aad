//! When a request that is out for too long is sent a second time, to another node, and how often at
//! most: hedges answer for one node that hangs, and must not add to the load of a cluster where all
//! are slow.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::runtime::latency::LatencyEstimate;

/// A hedge costs ten answers: of a hundred requests, ten are sent twice at most.
const COST: usize = 10;

/// So many hedges may be sent at once, after a quiet time.
const SAVED_MAX: usize = 32 * COST;

/// The hedges of one sort of request.
#[derive(Debug)]
pub struct Hedges {
    typical: LatencyEstimate,
    /// One for each answer that came, and not more than [`SAVED_MAX`].
    saved: AtomicUsize,
}

impl Default for Hedges {
    fn default() -> Hedges {
        Hedges { typical: LatencyEstimate::default(), saved: AtomicUsize::new(SAVED_MAX) }
    }
}

impl Hedges {
    /// How long a request is out before it is sent again.
    #[must_use]
    pub fn after(&self) -> Duration {
        self.typical.overdue()
    }

    /// A request was answered so long after it was first sent.
    pub(super) fn took(&self, took: Duration) {
        self.typical.took(took);
        let more = |saved| (saved < SAVED_MAX).then_some(saved + 1);
        let _ = self.saved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Whether one more hedge may be sent; it counts as sent then.
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
