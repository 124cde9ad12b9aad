//! The command line: the server and its tools in one binary.
//!
//! Exit codes: 0 done; 1 refused, unreachable, a failed check, or an answer that can't be written; 2 bad
//! arguments; 3 the key does not exist; 4 the outcome of an update or a reset is unknown.

mod add;
mod client;
pub mod connect;
mod doctor;
mod fold;
mod input;
mod key;
mod list;
mod load;
pub mod output;
mod purge;
mod reload;
mod repair;
mod reset;
mod schema;
mod take;
mod token;
mod transfer;
mod update;
mod watch;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::pod::config::{self, ServeArgs};
use crate::pod::serve;
use crate::runtime::telemetry;
use crate::{demo, http, limits};

/// Counters and other mergeable data types over HTTP on Apache Cassandra, without coordination.
#[derive(Debug, Parser)]
#[command(version, about, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve HTTP. This is the default without a subcommand.
    Serve(Box<ServeArgs>),
    /// Run a whole installation in this process, for you to break: pods, replicas, and clients that check every number.
    ///
    /// The live page at the printed address has buttons that kill pods, cut off or pause replicas, set a pod's clock ahead,
    /// and make clients repeat all updates. Exit code: 0 if every number was right.
    Demo(demo::DemoArgs),
    /// Add to a key of a running server: `add counter/site/home 5`, `add distinct/site/visitors u1 u2`, or
    /// `add distinct/site/visitors -` for the lines of the standard input.
    Add(add::AddArgs),
    /// Take the total of a counter or a sum, for a bill or a quota: `take counter/bills/acme`.
    ///
    /// Reads the value, subtracts it, and prints the amount when the subtraction is acknowledged. Updates that come
    /// meanwhile stay in the key: what was taken and what is left is always what was added. The subtraction has an
    /// id, so an interrupted run can be resumed with the command that it printed, and subtracts once. Two runs for one
    /// key at the same time can both take the same amount. Then the value is negative until more is added, and the
    /// next run takes less.
    Take(take::TakeArgs),
    /// Reset a key of a running server, and print what it had: `reset counter/site/home`.
    ///
    /// Exit code 1: the reset was refused. 3: the key does not exist. 4: it is not known whether the key was reset; run the
    /// command that is printed.
    Reset(reset::ResetArgs),
    /// Delete a key of a running server, and print what it had: `delete counter/site/home`. Or delete keys of a group, and
    /// print their number: `delete counter/site --prefix 2026-11-`.
    ///
    /// Many keys are deleted up to 1000 at a time, with progress on standard error. If the command is interrupted, run it
    /// again: it deletes the keys that are left.
    ///
    /// Exit code 1: a key was not deleted. 3: the key does not exist. 4: it is not known whether a key was deleted; for a
    /// single key, run the command that is printed.
    Delete(reset::DeleteArgs),
    /// Print the value of a key of a running server: `get counter/site/home`.
    Get(client::GetArgs),
    /// Print the values of keys of a running server now and after each change: `watch counter/site/home`. Plain numbers have
    /// their rate.
    /// Runs until it is interrupted, and connects again after a restart of the server.
    Watch(watch::WatchArgs),
    /// List the keys of a group of a running server, with their values: `ls counter/site`.
    Ls(list::ListArgs),
    /// Merge keys of a group of a running server into one value, and print it: `merge distinct/site mon tue`.
    /// Nothing is written.
    Merge(list::MergeArgs),
    /// Fold the final shards of all keys once, without a server. For scheduled jobs.
    Fold(Box<fold::FoldArgs>),
    /// Remove the rows that forgotten keys leave in Cassandra, after a full repair.
    Purge(Box<purge::PurgeArgs>),
    /// Write keys to standard output, one JSON line each.
    #[command(mut_args(transfer::hide_from_export))]
    Export(Box<transfer::ExportArgs>),
    /// Import exported or converted keys from standard input. A line counts once, however often it is
    /// imported.
    #[command(mut_args(transfer::hide_from_import))]
    Import(Box<transfer::ImportArgs>),
    /// Convert CSV with group, name and amount (as `cqlsh` copies native counters) to lines for `import`.
    Convert(transfer::ConvertArgs),
    /// Print or apply the schema for Cassandra.
    Schema(Box<schema::SchemaArgs>),
    /// Check an installation: configuration, store, schema, levels, clocks and some keys.
    Doctor(Box<doctor::DoctorArgs>),
    /// Ask a running server whether it is ready. For container health checks.
    Health(client::HealthArgs),
    /// Copy an embedded store's file without the times that a wrong clock wrote into it. Use it when a pod
    /// says that its clock is behind although its clock is right.
    Repair(Box<repair::RepairArgs>),
    /// Send SIGHUP to a server, so that it reloads its policy file, its certificate and its files for Cassandra
    /// now. For images without `kill`.
    Reload(reload::ReloadArgs),
    /// Run a load test: send updates, break things on purpose, and check every number.
    ///
    /// Every update adds a random 60-bit weight. At the end, each key is read from each pod. Its
    /// value must be the sum of the acknowledged updates plus the sum of some of the updates with an
    /// unknown outcome. Exit codes: 0 if every number is right, 1 if a number is wrong or too little
    /// could be proved, 2 if the arguments make no sense.
    Load(Box<load::LoadCommand>),
    /// Create tokens for the policy file.
    Token(token::TokenArgs),
    /// Print the OpenAPI document.
    Openapi,
    /// Print a script that completes commands in a shell: `source <(orderfree completions bash)`.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// An error about arguments that the parser itself can't find. `main` shows it with the usage of its command, as the parser
/// shows its errors.
fn wrong_usage(kind: ErrorKind, message: impl std::fmt::Display) -> anyhow::Error {
    clap::Error::raw(kind, message).into()
}

/// Runs the chosen command.
///
/// # Errors
/// One sentence that says what is wrong and what to do.
pub async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        None => serve(cli.serve).await,
        Some(Command::Serve(args)) => serve(*args).await,
        Some(Command::Demo(args)) => {
            Ok(match demo::run(&args, |line| output::note(line)).await? {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            })
        }
        Some(Command::Add(args)) => add::add(args).await,
        Some(Command::Take(args)) => take::take(args).await,
        Some(Command::Reset(args)) => reset::reset(args).await,
        Some(Command::Delete(args)) => reset::delete(args).await,
        Some(Command::Get(args)) => client::get(args).await,
        Some(Command::Watch(args)) => watch::watch(args).await,
        Some(Command::Ls(args)) => list::ls(args).await,
        Some(Command::Merge(args)) => list::merge(args).await,
        Some(Command::Health(args)) => client::health(args).await,
        Some(Command::Fold(args)) => fold::run(*args).await,
        Some(Command::Purge(args)) => purge::run(*args).await,
        Some(Command::Export(args)) => transfer::export(*args).await,
        Some(Command::Import(args)) => transfer::import(*args).await,
        Some(Command::Convert(args)) => transfer::convert(&args),
        Some(Command::Schema(args)) => schema::run(*args).await,
        Some(Command::Doctor(args)) => doctor::run(*args).await,
        Some(Command::Repair(args)) => repair::run(*args).await,
        Some(Command::Reload(args)) => reload::run(&args),
        Some(Command::Load(args)) => load::run(*args).await,
        Some(Command::Token(args)) => token::run(args),
        Some(Command::Openapi) => {
            let document = serde_json::to_string_pretty(&http::openapi())?;
            output::show_all(&format!("{document}\n"))?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "orderfree", &mut script);
            output::show_all(&String::from_utf8(script)?)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The environment variables that any command knows.
#[must_use]
pub fn variables() -> BTreeSet<String> {
    fn collect(command: &clap::Command, names: &mut BTreeSet<String>) {
        let of_arguments = command.get_arguments().filter_map(clap::Arg::get_env);
        names.extend(of_arguments.filter_map(|name| name.to_str()).map(str::to_owned));
        command.get_subcommands().for_each(|command| collect(command, names));
    }
    let mut names = BTreeSet::new();
    collect(&Cli::command(), &mut names);
    names
}

/// Variables that look like settings but are not. Kubernetes also sets variables for a Service of this name;
/// they are left out.
fn unknown_settings(names: impl Iterator<Item = String>) -> Vec<String> {
    let settings = variables();
    let is_link = |name: &str| name.contains("_SERVICE_") || name.contains("_PORT");
    let mut unknown: Vec<String> = names
        .filter(|name| name.starts_with("ORDERFREE_"))
        .filter(|name| !settings.contains(name) && !is_link(name))
        .collect();
    unknown.sort();
    unknown
}

async fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let telemetry = telemetry::start();
    for name in unknown_settings(config::environment()) {
        tracing::warn!("unknown setting {name}; `orderfree serve --help` lists all settings");
    }
    let served = serve::serve(args).await;
    let is_over = served.as_ref().is_err_and(|error| error.is::<serve::SecondSignal>());
    let within = if is_over { Duration::ZERO } else { limits::LAST_SPANS_TIME_MAX };
    tokio::task::spawn_blocking(move || telemetry.end(within)).await?;
    served?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_setting_is_told_and_what_kubernetes_sets_is_not() {
        let names = [
            "ORDERFREE_LISTEN",
            "ORDERFREE_LISTN",
            "ORDERFREE_TOKEN_FILE",
            "ORDERFREE_SERVICE_HOST",
            "ORDERFREE_PORT_8080_TCP_ADDR",
            "ORDERFREE_ADMIN_SERVICE_PORT",
            "PATH",
        ];
        let unknown = unknown_settings(names.into_iter().map(str::to_owned));
        assert_eq!(unknown, ["ORDERFREE_LISTN"]);
    }
}
