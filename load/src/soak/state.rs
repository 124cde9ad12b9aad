//! The state of a soak that clients, faults and the check share.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::locked::locked;
use crate::soak::audited::AuditedKeys;
use crate::soak::figures::Figures;
use crate::workload::{Key, Kind};

/// Audited updates per second, unless that is more than half of all updates.
const AUDITED_PER_SECOND: u32 = 20;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Soak {
    /// Which pods were ready when they were last asked.
    pub(super) ready: Vec<AtomicBool>,
    /// The number of requests in flight at each pod.
    pub(super) in_flight: Vec<AtomicUsize>,
    /// The audited counters, and the audited sets.
    pub(super) audited: [AuditedKeys; 2],
    /// The share of the updates that are audited.
    pub(super) audited_share: f64,
    node_is_down: AtomicBool,
    figures: Mutex<Figures>,
}

impl Soak {
    /// A soak of `pods` pods, all of them ready, at a rate in updates per second.
    pub(crate) fn new(group: &str, pods: usize, rate: u32) -> Self {
        Self {
            ready: (0..pods).map(|_| AtomicBool::new(true)).collect(),
            in_flight: (0..pods).map(|_| AtomicUsize::new(0)).collect(),
            audited: [Kind::Counter, Kind::Set].map(|kind| AuditedKeys::new(kind, group)),
            audited_share: audited_share(rate),
            node_is_down: AtomicBool::new(false),
            figures: Mutex::new(Figures::new(pods)),
        }
    }

    /// The figures so far. Never held across an await.
    pub(super) fn figures(&self) -> MutexGuard<'_, Figures> {
        locked(&self.figures)
    }

    /// Whether a pod was ready when it was last asked.
    pub(crate) fn is_ready(&self, pod: usize) -> bool {
        self.ready[pod].load(Ordering::Relaxed)
    }

    /// Records whether a node is as good as down from now on.
    pub(crate) fn set_node_down(&self, is_down: bool) {
        self.node_is_down.store(is_down, Ordering::SeqCst);
    }

    /// Whether a node is as good as down now.
    pub(super) fn is_node_down(&self) -> bool {
        self.node_is_down.load(Ordering::SeqCst)
    }

    /// Counts an update that a pod with a wrong clock refused.
    pub(crate) fn count_shut_gate(&self) {
        self.figures().gates_shut += 1;
    }

    /// Measures the memory of a pod, if it runs.
    pub(crate) fn weigh(&self, pod: usize, process: Option<u32>) {
        if let Some(process) = process {
            self.figures().pods[pod].weigh(process);
        }
    }

    /// All audited keys.
    pub(crate) fn audited_keys(&self) -> Vec<Key> {
        self.audited.iter().flat_map(AuditedKeys::keys).collect()
    }
}

/// The share of the updates that are audited, at a rate in updates per second.
fn audited_share(rate: u32) -> f64 {
    (f64::from(AUDITED_PER_SECOND) / f64::from(rate)).min(0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audited_updates_are_a_small_share_of_many() {
        assert!((audited_share(2_000) - 0.01).abs() < 1e-9);
        assert!((audited_share(10) - 0.5).abs() < 1e-9);
    }
}
