//! The load test that `orderfree load` runs.
//!
//! It starts pods or uses running ones, sends updates to their counters, breaks things on purpose,
//! and then checks every number. The modules, in the order of a run:
//!
//! - `args`: the flags, and which combinations of them are refused;
//! - `session`: one run from its start to its end;
//! - `pods`: the processes under load;
//! - `workload`: which key gets which weight, and when;
//! - `client`: one pod over HTTP, and what its answers mean;
//! - `run`: the state that the tasks of a run share;
//! - `drive`: the tasks: connections and readers;
//! - `ids`, `repeats`: updates with ids, which are repeated until they are acknowledged;
//! - `reset_keys`, `resets`: keys that are reset or deleted meanwhile, and what is known of them;
//! - `chaos`: pods are killed and paused, commands cause other faults;
//! - `progress`: what the terminal shows during the load;
//! - `verify`: every key is read from every pod, before and after folds;
//! - `checker`: which values are right. This module is pure, and the reason to trust the others;
//! - `report`: what the run found, and whether it passes;
//! - `soak`: a long load under all faults, with clients that fail over.
//!
//! The crate knows pods only by their HTTP interface. It uses no code of the server, so it cannot
//! share a misunderstanding with the code under test.

#![warn(clippy::print_stderr, clippy::print_stdout)]

mod args;
mod chaos;
mod checker;
mod client;
mod drive;
mod ids;
mod latency;
mod locked;
mod pods;
mod progress;
mod repeats;
mod report;
mod reset_keys;
mod resets;
mod run;
mod session;
mod soak;
#[cfg(test)]
mod stub;
mod verify;
pub mod workload;

pub use args::LoadArgs;
pub use session::run;
