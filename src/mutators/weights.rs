//! How much memory the states of mutators take that may be large. Those of small kinds are bounded by their
//! number.

use std::sync::Arc;

use crate::sync::{AtomicUsize, Ordering};

/// What all of them hold together.
#[derive(Debug, Clone, Default)]
pub(super) struct Scales(Arc<AtomicUsize>);

/// What one of them holds, until it is dropped.
#[derive(Debug)]
pub(super) struct Weight {
    scales: Scales,
    own: AtomicUsize,
}

impl Scales {
    /// For a mutator that holds nothing yet.
    pub(super) fn weight(&self) -> Weight {
        Weight { scales: self.clone(), own: AtomicUsize::new(0) }
    }

    /// Bytes that all states take.
    pub(super) fn total(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Weight {
    /// Its state takes so many bytes from now on.
    pub(super) fn set(&self, bytes: usize) {
        let before = self.own.swap(bytes, Ordering::SeqCst);
        // One after the other: together they could wrap around.
        self.scales.0.fetch_add(bytes, Ordering::SeqCst);
        self.scales.0.fetch_sub(before, Ordering::SeqCst);
    }

    /// Bytes that its state takes.
    pub(super) fn get(&self) -> usize {
        self.own.load(Ordering::SeqCst)
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.scales.0.fetch_sub(self.get(), Ordering::SeqCst);
    }
}
