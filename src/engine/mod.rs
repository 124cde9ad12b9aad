//! What a pod does, without HTTP:
//!
//! * [`clock_gate`]: whether this pod's clock can be trusted;
//! * [`mod@write`]: updates, collected per key and written; [`read`]; [`fold`]: merges expired shards into
//!   tallies;
//! * [`resets`]: what this pod knows of resets; [`resetter`]: how it learns of them, and makes one;
//! * [`watch`]: reads of watched keys, told of by [`changes`];
//! * [`service`]: the operations that other folders call;
//! * [`health`]: whether the pod is ready; [`metrics`]; `memory`: budgets that requests share.
//!
//! Writes and folds of one pod interact only through the store, like those of different pods.

pub mod changes;
pub mod clock_gate;
mod context;
pub mod fold;
pub mod health;
pub(crate) mod memory;
pub mod metrics;
pub mod read;
pub mod resets;
pub mod resetter;
pub mod service;
pub mod watch;
pub mod write;

pub use context::Context;
