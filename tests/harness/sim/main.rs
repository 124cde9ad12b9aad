//! Deterministic simulation: the shipped mutators, folds, reads and retries on simulated replicas, in schedules in
//! which everything that can go wrong does. A seed repeats its schedule exactly.
//!
//! `make sim N=100000 SEED=0` runs schedules. A failing one is shrunk and printed as a timeline.

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

/// The product's allocator, because a schedule makes many small allocations.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
