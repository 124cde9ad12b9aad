//! Orderfree beside other ways to count, in the same server, on the same stores, in the same run.
//!
//! * `peers`: the ways to count, as routes of one server;
//! * `wire`, `load`: the load;
//! * `scenario`: what is sent;
//! * `machine`: processor time and quiet;
//! * `compare`: the rounds;
//! * `report`, `plot`: tables and plots.

mod compare;
mod load;
mod machine;
mod peers;
mod plot;
mod report;
mod scenario;
mod wire;

use clap::{Parser, Subcommand};
use mimalloc::MiMalloc;
use tokio::runtime::Builder;

/// As in the product, for every peer.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Measures Orderfree beside other ways to count.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve all peers, until killed.
    Serve(peers::ServeArgs),
    /// Start a server and compare its peers.
    Compare(compare::CompareArgs),
    /// Write figures of `compare` into the report.
    Report(report::ReportArgs),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Serve(args) => {
            Builder::new_multi_thread().enable_all().build()?.block_on(peers::serve(args))
        }
        // One thread: the load shares its cores with what it measures.
        Command::Compare(args) => {
            Builder::new_current_thread().enable_all().build()?.block_on(compare::run(args))
        }
        Command::Report(args) => report::write(&args),
    }
}
