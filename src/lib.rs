//! Orderfree: counters over HTTP on Apache Cassandra, without coordination.
//!
//! A tour in reading order; each module relies only on those before it:
//!
//! * `orderfree_core`: the data types and the protocol, pure;
//! * [`store`]: where rows lie: [`store::cassandra`] and [`store::embedded`] behind one trait;
//! * [`gate`]: may this pod's clock be trusted;
//! * [`mutators`]: updates, gathered per key and written; [`gc`]: expired shards, folded;
//! * [`service`]: the use cases, free of HTTP;
//! * [`http`]: the use cases over HTTP;
//!
//! Beside them: [`clock`] (the only reader of clocks), [`tasks`] (the only spawner), [`config`],
//! [`limits`], [`metrics`], [`telemetry`].

pub mod clock;
pub mod config;
pub mod gate;
pub mod gc;
pub mod health;
pub mod http;
pub mod limits;
pub mod metrics;
pub mod mutators;
pub mod service;
pub mod store;
pub mod tasks;
pub mod telemetry;
