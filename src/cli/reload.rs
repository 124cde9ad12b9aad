//! `reload`: makes a running server reload the files that can change, in images without a shell to send a
//! signal.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use rustix::process::{Pid, RawPid, Signal, kill_process};

use super::output::say;

/// Arguments of `reload`.
#[derive(Debug, Args)]
pub(super) struct ReloadArgs {
    /// Process id of the server. In a container that runs only the server it is 1.
    #[arg(value_parser = clap::value_parser!(RawPid).range(1..))]
    pid: RawPid,
}

pub(super) fn run(args: &ReloadArgs) -> anyhow::Result<ExitCode> {
    let pid = args.pid;
    let process = Pid::from_raw(pid).expect("invariant: the parser takes no 0");
    let sent = kill_process(process, Signal::HUP);
    sent.with_context(|| format!("SIGHUP can't be sent to process {pid}; check the process id"))?;
    say(format_args!("sent SIGHUP to process {pid}; its log says what it reloaded or refused"));
    Ok(ExitCode::SUCCESS)
}
