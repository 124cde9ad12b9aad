//! `repair`: a copy of an embedded store's file without the times that a wrong clock wrote into it.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::bail;
use clap::Args;
use humantime::{format_duration, format_rfc3339_seconds};
use orderfree_core::protocol::Timestamp;
use orderfree_core::protocol::repair::{Ahead, Report};

use super::output::say;
use crate::pod::config::{StoreArgs, StoreConfig};
use crate::runtime::clock::{Clock, SystemClock};
use crate::runtime::telemetry;
use crate::store::embedded::{self, Found};

/// Arguments of `repair`.
#[derive(Debug, Args)]
pub(super) struct RepairArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// File for the repaired copy. The original file is not changed. Check this machine's clock first:
    /// `repair` treats every time ahead of it as wrong.
    #[arg(long, value_name = "COPY")]
    into: PathBuf,
}

pub(super) async fn run(args: RepairArgs) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start();
    let StoreConfig::Embedded { path } = args.store.resolve()?.existing()? else {
        bail!("only a file of the embedded store can be repaired; this store is Cassandra");
    };
    let (constants, now, copy) = (args.store.constants()?, SystemClock.now().wall, args.into);
    let (file, copy_name) = (path.display().to_string(), copy.display().to_string());
    let repair = move || embedded::repair(&path, &copy, now, constants);
    let found = tokio::task::spawn_blocking(repair).await??;
    say(format_args!("this machine's clock, taken as right: {}", rfc3339(now)));
    let Some(Found { remembered, report }) = found else {
        say(format_args!(
            "nothing in {file} is ahead of this clock, so there is nothing to repair and no copy was made"
        ));
        return Ok(ExitCode::SUCCESS);
    };
    let Report { rows, fences, stamps, keys, gone, ids_until, .. } = report;
    if let Some(time) = remembered {
        say(format_args!("{file} has seen a time {} ahead of this clock", ahead(time, now)));
    }
    say_found("rows that were written ahead of it", rows, now);
    let folded_at =
        Ahead { latest: fences.latest.map(|fence| fence.plus(constants.cutoff())), ..fences };
    say_found("folds by a clock ahead of it", folded_at, now);
    say_found("times of last writers ahead of it", stamps, now);
    say(format_args!(
        "repaired: {keys} keys, in which {gone} rows became {keys}; no value changed"
    ));
    say(format_args!("{copy_name} is the repaired copy; {file} is unchanged"));
    say(format_args!(
        "next: keep {file} under another name, move {copy_name} to its place, and start the pod"
    ));
    if let Some(until) = ids_until {
        say(format_args!(
            "if clients send ids: start the pod after {}, or ids that are sent again before then can count twice",
            rfc3339(until)
        ));
    }
    if keys > 0 {
        say(
            "do not import lines again that were imported before: lines of repaired keys may count twice",
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn say_found(what: &str, Ahead { count, latest }: Ahead, now: Timestamp) {
    if let Some(latest) = latest {
        say(format_args!("{what}: {count}, by up to {}", ahead(latest, now)));
    }
}

fn rfc3339(time: Timestamp) -> impl Display {
    format_rfc3339_seconds(UNIX_EPOCH + Duration::from_micros(time.as_micros().unsigned_abs()))
}

/// How far a time is ahead, in its two largest units: 73years 11months.
fn ahead(time: Timestamp, now: Timestamp) -> String {
    let exact = format_duration(Duration::from_secs(time.since(now).as_secs())).to_string();
    exact.split(' ').take(2).collect::<Vec<_>>().join(" ")
}
