//! Memory of the states of mutators that can be large. Small states need no accounting: the number of
//! mutators bounds them.

use std::sync::Arc;

use crate::runtime::sync::{AtomicUsize, Ordering};

/// The total memory of large states.
#[derive(Debug, Clone, Default)]
pub(super) struct LargeStates(Arc<AtomicUsize>);

/// The memory of one large state, subtracted from the total on drop.
#[derive(Debug)]
pub(super) struct LargeState {
    large_states: LargeStates,
    own: AtomicUsize,
}

impl LargeStates {
    /// The entry of a new mutator, with 0 bytes.
    pub(super) fn weight(&self) -> LargeState {
        LargeState { large_states: self.clone(), own: AtomicUsize::new(0) }
    }

    /// Bytes of all large states.
    pub(super) fn total(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl LargeState {
    /// Sets the size of the state.
    pub(super) fn set(&self, bytes: usize) {
        let before = self.own.swap(bytes, Ordering::SeqCst);
        // Add, then subtract: in the other order the total could wrap around.
        self.large_states.0.fetch_add(bytes, Ordering::SeqCst);
        self.large_states.0.fetch_sub(before, Ordering::SeqCst);
    }

    /// The size of the state in bytes.
    pub(super) fn get(&self) -> usize {
        self.own.load(Ordering::SeqCst)
    }
}

impl Drop for LargeState {
    fn drop(&mut self) {
        self.large_states.0.fetch_sub(self.get(), Ordering::SeqCst);
    }
}
