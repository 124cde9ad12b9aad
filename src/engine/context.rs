//! What every part of the engine works with.

use std::sync::Arc;

use orderfree_core::protocol::Constants;

use crate::engine::changes::Changes;
use crate::engine::clock_gate::ClockGate;
use crate::engine::metrics::Metrics;
use crate::engine::resets::Resets;
use crate::runtime::clock::Clock;
use crate::runtime::random::Random;
use crate::store::StoreClock;

/// What all parts of a pod share, apart from the store. Clones share everything.
#[derive(Clone)]
pub struct Context {
    pub gate: Arc<ClockGate>,
    pub constants: Constants,
    pub metrics: Arc<Metrics>,
    pub random: Random,
    /// What this pod knows of resets.
    pub resets: Arc<Resets>,
    /// Tells of acknowledged updates.
    pub changes: Arc<Changes>,
}

impl Context {
    /// A context with metrics and a clock gate of its own.
    #[must_use]
    pub fn new(
        store: Arc<dyn StoreClock>,
        constants: Constants,
        clock: Arc<dyn Clock>,
        random: Random,
    ) -> Context {
        let metrics = Arc::new(Metrics::new());
        let gate = ClockGate::new(clock, store, constants, Arc::clone(&metrics));
        let resets = Arc::new(Resets::new(constants));
        let changes = Arc::default();
        Context { gate: Arc::new(gate), constants, metrics, random, resets, changes }
    }
}
