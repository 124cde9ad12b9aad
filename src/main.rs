//! The `orderfree` binary: parses the command line and hands over.

#![warn(clippy::print_stderr, clippy::print_stdout)]

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;
use orderfree::cli::{self, Cli, output};
use orderfree::panics;

/// Every request allocates in one thread and is freed in another, which glibc's allocator does slowly.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    panics::log_them();
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(cli::run(cli));
            // A blocking call that is stuck must not keep the process.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(error.into()),
    };
    result.unwrap_or_else(|error| {
        output::note(format_args!("orderfree: {error:#}"));
        ExitCode::FAILURE
    })
}
