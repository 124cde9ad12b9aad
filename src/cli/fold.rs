//! `fold --once`: one sweep over all keys, for a scheduled job.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::ensure;
use clap::Args;

use super::output::say;
use crate::pod::config::{StoreArgs, Switch};
use crate::pod::node::Node;
use crate::pod::start;
use crate::policy::Policies;
use crate::runtime::clock::SystemClock;
use crate::runtime::telemetry;

/// Arguments of `fold`.
#[derive(Debug, Args)]
pub(super) struct FoldArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Sweep all keys once, then exit. Servers fold in the background without this command.
    #[arg(long, required = true)]
    once: bool,
    /// The same setting as for pods, for jobs that share their environment. `off` refuses to fold, as a fold
    /// would do harm now.
    #[arg(long, env = "ORDERFREE_FOLD", default_value = "on", value_name = "ON|MANUAL|OFF")]
    fold: Switch,
    /// The policy file of the pods. Its `lifecycle` says which idle keys are forgotten.
    #[arg(long, env = "ORDERFREE_POLICY", value_name = "FILE")]
    policy: Option<PathBuf>,
}

pub(super) async fn run(args: FoldArgs) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start();
    ensure!(
        args.fold != Switch::Off,
        "folding is switched off, as it would do harm now; when it is safe again, set ORDERFREE_FOLD to `on`, or to \
         `manual` if only jobs fold"
    );
    let (config, constants) = (args.store.resolve()?.existing()?, args.store.constants()?);
    let policies = Policies::open(args.policy.as_deref(), constants)?;
    let clock = Arc::new(SystemClock);
    let store = start::open_store(config, constants, clock.clone()).await?;
    let node = Node::for_folds(&store, constants, clock, args.fold, policies);
    let swept = node.folder().sweep_once().await;
    store.close().await;
    let report = swept?;
    say(format_args!(
        "{} keys nominated: {} folded, {} forgotten, {} already done, {} postponed, {} blocked",
        report.nominated,
        report.folded,
        report.forgotten,
        report.nothing,
        report.postponed,
        report.blocked
    ));
    if report.largest_group > 0 {
        say(format_args!("the largest group has {} names", report.largest_group));
    }
    let is_complete = report.postponed == 0 && report.blocked == 0;
    Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
