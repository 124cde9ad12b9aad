//! `purge`: removes the graves of forgotten keys, once no row of such a key can come back.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, ensure};
use chrono::DateTime;
use clap::Args;
use orderfree_core::protocol::Timestamp;

use super::output::say;
use crate::pod::config::{StoreArgs, StoreConfig, Switch};
use crate::pod::node::Node;
use crate::pod::start;
use crate::runtime::clock::{Clock, SystemClock};
use crate::runtime::telemetry;

/// Arguments of `purge`.
#[derive(Debug, Args)]
pub(super) struct PurgeArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// When the last full repair of the table began (RFC 3339). It must have repaired every replica, and have
    /// ended without an error.
    #[arg(long, value_name = "TIME", value_parser = time_of)]
    repaired_since: Timestamp,
    /// Only count the graves, and remove none.
    #[arg(long)]
    dry_run: bool,
    /// The same setting as for pods, for jobs that share their environment. `off` refuses to purge, as a read at
    /// the level of folds may miss rows now.
    #[arg(long, env = "ORDERFREE_FOLD", default_value = "on", value_name = "ON|MANUAL|OFF")]
    fold: Switch,
}

pub(super) async fn run(args: PurgeArgs) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start();
    ensure!(
        args.fold != Switch::Off,
        "folding is switched off, and so is purging: replicas may be incomplete now; when they are not, set \
         ORDERFREE_FOLD to `on`, or to `manual` if only jobs fold"
    );
    let clock = Arc::new(SystemClock);
    ensure!(
        args.repaired_since <= clock.now().wall,
        "--repaired-since lies in the future; give the time when the last full repair began"
    );
    let (config, constants) = (args.store.resolve()?.existing()?, args.store.constants()?);
    ensure!(
        matches!(config, StoreConfig::Cassandra(_)),
        "an embedded store removes old graves itself; it needs no purge"
    );
    let store = start::open_store(config, constants, clock.clone()).await?;
    let node = Node::for_tool(&store, constants, clock, args.fold);
    let purged = node.folder().purge(args.repaired_since, args.dry_run).await;
    store.close().await;
    let report = purged?;
    let (what, would) =
        if args.dry_run { ("can be removed", " (dry run)") } else { ("removed", "") };
    say(format_args!(
        "{} graves: {} {what}{would}, {} not checked; the others are too young, or have rows that a fold deletes first",
        report.graves, report.removed, report.postponed
    ));
    Ok(if report.postponed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn time_of(text: &str) -> anyhow::Result<Timestamp> {
    let time = DateTime::parse_from_rfc3339(text)
        .ok()
        .context("it is not a time such as 2026-11-20T08:00:00Z")?;
    Ok(Timestamp::from_micros(time.timestamp_micros()))
}
