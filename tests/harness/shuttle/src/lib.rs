//! The product's `src/engine/write`, compiled again with [shuttle](https://docs.rs/shuttle), whose scheduler decides at
//! each lock, atomic and task switch which task runs next. Only `sync` and `tasks` are replaced.
// The modules' own tests run with the product.
#![cfg(not(test))]

use orderfree::{limits, policy, store};

pub mod engine;
mod sync;
mod tasks;

/// The product's runtime, with shuttle's locks and tasks.
mod runtime {
    pub(crate) use orderfree::runtime::{latency, random};

    pub(crate) use crate::{sync, tasks};
}
