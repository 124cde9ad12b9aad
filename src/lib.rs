//! Orderfree: counters over HTTP on Apache Cassandra, without coordination.
//!
//! A tour in reading order; each room relies only on those before it:
//!
//! * `orderfree_core`: the data types and the protocol, pure;
//! * [`runtime`]: clocks, random numbers, tasks, logs; [`limits`]: every bound in one place;
//! * [`store`]: where rows live: [`store::cassandra`] and [`store::embedded`] implement one trait;
//! * [`policy`]: who may do what;
//! * [`engine`]: updates, reads and folds, behind [`engine::service`];
//! * [`net`]: from a port to requests; [`http`]: the interface;
//! * [`pod`]: one pod from start to end;
//! * [`demo`]: a whole installation in one process, to be broken;
//! * [`cli`]: the command line.

// See `cli::output`.
#![warn(clippy::print_stderr, clippy::print_stdout)]

pub mod cli;
pub mod demo;
pub mod engine;
pub mod http;
pub mod limits;
pub mod net;
pub mod pod;
pub mod policy;
pub mod runtime;
pub mod store;
