//! `reload`: has a running server read its policy file and its certificate anew, where there is no shell
//! to send a signal with.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use rustix::process::{Pid, RawPid, Signal, kill_process};

use super::output::say;

/// Arguments of `reload`.
#[derive(Debug, Args)]
pub(super) struct ReloadArgs {
    /// The server's process; in a container that runs nothing else, 1.
    #[arg(value_parser = clap::value_parser!(RawPid).range(1..))]
    pid: RawPid,
}

pub(super) fn run(args: &ReloadArgs) -> anyhow::Result<ExitCode> {
    let pid = args.pid;
    let process = Pid::from_raw(pid).expect("invariant: the parser takes no 0");
    let sent = kill_process(process, Signal::HUP);
    sent.with_context(|| format!("no SIGHUP could be sent to the process {pid}"))?;
    say(format_args!("process {pid} was told; its log says what it has read anew or refused"));
    Ok(ExitCode::SUCCESS)
}
