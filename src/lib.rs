//! Orderfree: counters over HTTP on Apache Cassandra, without coordination.

pub mod clock;
pub mod gate;
pub mod gc;
pub mod limits;
pub mod metrics;
pub mod mutators;
pub mod service;
pub mod store;
pub mod tasks;
