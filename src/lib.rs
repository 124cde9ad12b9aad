//! Orderfree: counters over HTTP on Apache Cassandra, without coordination.
//!
//! A tour in reading order; each module relies only on those before it:
//!
//! * `orderfree_core`: the data types and the protocol, pure;
//! * [`store`]: where rows lie: [`store::cassandra`] and [`store::embedded`] behind one trait;
//! * [`gate`]: may this pod's clock be trusted;
//! * [`mutators`]: updates, gathered per key and written; [`gc`]: expired shards, folded;
//! * [`service`]: the use cases, free of HTTP;
//! * [`http`]: the interface; [`health`]: is the pod ready;
//! * [`listen`]: from a port to requests; [`tls`]; [`server`]: one pod from start to end;
//! * [`cli`]: the command line, with the load test in [`cli::load`].
//!
//! Beside them: [`clock`] (the only reader of clocks), [`chance`] (the only dice), [`tasks`] (the only spawner), [`panics`],
//! [`config`], [`limits`], `room` (memory that requests share), [`metrics`], [`policy`] (who may do what), [`telemetry`].

// See `cli::output`.
#![warn(clippy::print_stderr, clippy::print_stdout)]

pub mod chance;
pub mod cli;
pub mod clock;
pub mod config;
pub mod gate;
pub mod gc;
pub mod health;
pub mod http;
pub mod limits;
mod linger;
pub mod listen;
pub mod metrics;
pub mod mutators;
pub mod panics;
pub mod policy;
pub mod reader;
mod room;
pub mod server;
pub mod service;
pub mod store;
mod sync;
pub mod tasks;
pub mod telemetry;
pub mod tls;
pub mod typical;
