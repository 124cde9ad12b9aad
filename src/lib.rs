//! Orderfree: counters over HTTP on Apache Cassandra, without coordination.

pub mod clock;
pub mod limits;
pub mod store;
