//! Whether this pod wants traffic. It does not follow the store's momentary state, or all pods would
//! drop out at once: a store that is down is answered with 503 by pods that are ready.

use std::sync::atomic::{AtomicBool, Ordering};

/// Set by the server, read by `/readyz`.
#[derive(Debug, Default)]
pub struct Health {
    started: AtomicBool,
    draining: AtomicBool,
}

impl Health {
    /// The pod serves from now on.
    pub fn set_started(&self) {
        self.started.store(true, Ordering::SeqCst);
    }

    /// The pod will end: no more traffic, please.
    pub fn set_draining(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    /// Whether the pod has started.
    #[must_use]
    pub fn is_started(&self) -> bool {
        self.started.load(Ordering::SeqCst)
    }

    /// Whether the pod is ending.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }
}
