//! The `orderfree` binary: it parses the command line and runs the command.

#![warn(clippy::print_stderr, clippy::print_stdout)]

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;
use orderfree::cli::{self, Cli, output};
use orderfree::runtime::panics;

/// Requests allocate on one thread and free on another. glibc's allocator is slow at that.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    panics::log_them();
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(cli::run(cli));
            // A stuck blocking call must not keep the process alive.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(error.into()),
    };
    result.unwrap_or_else(|error| {
        if let Some(usage) = error.downcast_ref::<clap::Error>() {
            usage.exit();
        }
        output::note(format_args!("orderfree: {error:#}"));
        ExitCode::FAILURE
    })
}
