//! The product's `src/engine/write`, compiled a second time against [shuttle](https://docs.rs/shuttle): its scheduler
//! decides at each lock, atomic and task switch which task runs next. Only `sync` and `tasks` are replaced.
// The modules' own tests are the product's.
#![cfg(not(test))]

use orderfree::{limits, policy, store};

pub mod engine;
mod sync;
mod tasks;

/// The product's, with shuttle's locks and tasks.
mod runtime {
    pub(crate) use orderfree::runtime::{latency, random};

    pub(crate) use crate::{sync, tasks};
}
