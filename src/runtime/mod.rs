//! What a pod takes from its machine: clocks, random numbers, tasks, locks, logs and spans. Each has one module
//! here.

pub mod clock;
pub mod latency;
pub mod panics;
pub mod random;
pub(crate) mod sync;
pub mod tasks;
pub mod telemetry;
