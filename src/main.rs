//! The `orderfree` binary: it parses the command line and runs the command.

#![warn(clippy::print_stderr, clippy::print_stdout)]

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use mimalloc::MiMalloc;
use orderfree::cli::{self, Cli, output};
use orderfree::runtime::panics;

/// Requests allocate on one thread and free on another. glibc's allocator is slow at that.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    panics::log_them();
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
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
    result.unwrap_or_else(|error| match error.downcast::<clap::Error>() {
        Ok(error) => {
            let mut command = Cli::command();
            command.build();
            let name = matches.subcommand_name();
            match name.and_then(|name| command.find_subcommand_mut(name)) {
                Some(command) => error.format(command).exit(),
                None => error.format(&mut command).exit(),
            }
        }
        Err(error) => {
            output::note(format_args!("orderfree: {error:#}"));
            ExitCode::FAILURE
        }
    })
}
