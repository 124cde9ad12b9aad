//! Compares Orderfree with other ways to count: in the same server, on the same stores, in the same run.
//!
//! * `peers`: the ways to count, as routes of one server;
//! * `wire`, `load`: the load;
//! * `scenario`: the requests;
//! * `machine`: CPU time, and waiting for a quiet machine;
//! * `server`: the measured server as a process;
//! * `compare`: the rounds of the comparison;
//! * `pods`: throughput by the number of pods;
//! * `ids`: the cost of ids;
//! * `resets`: the cost of the log of resets, and the time of a reset;
//! * `watch`: the cost of watchers;
//! * `folds`, `memory`, `opening`: the cost of folds, reads, keys and starts;
//! * `figures`, `report`, `plot`: results, tables and plots.

mod compare;
mod figures;
mod folds;
mod ids;
mod load;
mod machine;
mod memory;
mod opening;
mod peers;
mod plot;
mod pods;
mod report;
mod resets;
mod scenario;
mod server;
mod watch;
mod wire;

use std::future::Future;

use anyhow::bail;
use clap::{Parser, Subcommand};
use mimalloc::MiMalloc;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// The product's allocator, for every peer.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Compares Orderfree with other ways to count.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve all peers until killed.
    Serve(peers::ServeArgs),
    /// Start a server and compare its peers.
    Compare(compare::CompareArgs),
    /// Measure folds, reads after them, and the space that they leave on disk.
    Folds(folds::FoldsArgs),
    /// Compare increments with ids to increments without.
    Ids(ids::IdsArgs),
    /// Measure the memory of a pod's keys.
    Memory(memory::MemoryArgs),
    /// Measure the time to open large embedded files.
    Opening(opening::OpeningArgs),
    /// Measure one hot key with one, two and four pods.
    Pods(pods::PodsArgs),
    /// Measure pods that look at the log of resets, and the time of a reset.
    Resets(resets::ResetsArgs),
    /// Compare increments of a watched key to increments of one that is not watched.
    Watch(watch::WatchArgs),
    /// Write the figures of compare into the report.
    Report(report::ReportArgs),
}

fn main() -> anyhow::Result<()> {
    // One thread for a load, because it shares the cores with what it measures.
    let (mut one, mut many) = (Builder::new_current_thread(), Builder::new_multi_thread());
    match Cli::parse().command {
        Command::Serve(args) => run(&mut many, peers::serve(args)),
        Command::Compare(args) => run(&mut one, compare::run(args)),
        Command::Folds(args) => run(&mut many, folds::run(args)),
        Command::Ids(args) => run(&mut one, ids::run(args)),
        Command::Memory(args) => run(&mut one, memory::run(args)),
        Command::Opening(args) => run(&mut many, opening::run(args)),
        Command::Pods(args) => run(&mut one, pods::run(args)),
        Command::Resets(args) => run(&mut one, resets::run(args)),
        Command::Watch(args) => run(&mut one, watch::run(args)),
        Command::Report(args) => report::write(&args),
    }
}

/// Runs a command until it is done or a signal arrives. Either way, the processes it started end with it.
fn run(
    runtime: &mut Builder,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    runtime.enable_all().build()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => bail!("stopped by a signal"),
            _ = terminate.recv() => bail!("stopped by a signal"),
            done = work => done,
        }
    })
}
