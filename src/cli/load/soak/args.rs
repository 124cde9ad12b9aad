//! The flags of a soak.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use clap::builder::TypedValueParser as _;

/// A soak: a deck of faults, clients that fail over, single updates checked one by one.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Soak")]
pub struct SoakArgs {
    /// Soak the pods that are started: play a shuffled deck of faults, fail over from pods that
    /// refuse, check some updates one by one, and measure how many requests are answered in time.
    /// SCRIPT breaks nodes; `SCRIPT faults` names what it can do
    #[arg(long, value_name = "SCRIPT", requires_all = ["pods", "rate"], conflicts_with_all = ["fault_every", "kill_every", "pause_every", "group"])]
    pub soak: Option<PathBuf>,
    /// Draw a card of the deck this often
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = super::super::args::duration, requires = "soak")]
    pub draw_every: Duration,
    /// Percent of the updates that have to be acknowledged in time, also while a node is down
    #[arg(long, value_name = "PERCENT", default_value_t = 99.0, requires = "soak")]
    pub updates_available: f64,
    /// Percent of the reads that have to be answered in time, also while a node is down
    #[arg(long, value_name = "PERCENT", default_value_t = 99.9, requires = "soak")]
    pub reads_available: f64,
    /// Folds in the background that there have to be
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..).try_map(NonZeroU64::try_from), requires = "soak")]
    pub folds_min: Option<NonZeroU64>,
    /// Folder for the report as `report.md` and `report.json`
    #[arg(long, value_name = "FOLDER", requires = "soak")]
    pub report: Option<PathBuf>,
    /// The command that the report shows; by default the arguments
    #[arg(long, value_name = "TEXT", requires = "soak")]
    pub told_as: Option<String>,
}

impl SoakArgs {
    /// Refuses what cannot work.
    pub(in super::super) fn check(&self, length: Duration) -> anyhow::Result<()> {
        if self.soak.is_none() {
            return Ok(());
        }
        ensure!(
            !self.draw_every.is_zero() && self.draw_every < length,
            "--draw-every {:?} never happens in a load of {length:?}",
            self.draw_every
        );
        for (name, percent) in [
            ("--updates-available", self.updates_available),
            ("--reads-available", self.reads_available),
        ] {
            ensure!((0.0..=100.0).contains(&percent), "{name} takes 0 to 100");
        }
        Ok(())
    }
}
