//! The product's `src/mutators`, compiled a second time: what its tasks meet at are here those of
//! [shuttle](https://docs.rs/shuttle), whose scheduler decides at each of them who goes on. Nothing
//! but `sync` and `tasks` is replaced.
// The modules' own tests are the product's.
#![cfg(not(test))]

use orderfree::{chance, gate, limits, metrics, policy, store, typical};

#[path = "../../../src/mutators/mod.rs"]
#[allow(dead_code, reason = "the product uses all of it")]
pub mod mutators;
mod sync;
mod tasks;
