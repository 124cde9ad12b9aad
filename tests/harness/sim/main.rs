//! Deterministic simulation: the shipped mutators, folds, reads and retries on simulated replicas,
//! through schedules in which everything goes wrong that may. One seed repeats a schedule exactly.
//!
//! `make sim N=100000 SEED=0` runs schedules; a failing seed is shrunk and told as a timeline.

mod cluster;
mod coverage;
mod family;
mod lengths;
mod machine;
mod network;
mod oracle;
mod panics;
mod plan;
mod run;
mod sabotage;
mod script;
mod search;
mod store;
mod weather;
mod world;

/// As in the product; a schedule is mostly small allocations.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
