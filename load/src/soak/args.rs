//! The flags of a soak.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use clap::builder::TypedValueParser as _;

/// The flags of a soak.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Soak")]
pub(crate) struct SoakArgs {
    /// Run a soak on the started pods: draw faults from a shuffled deck, retry refused updates at
    /// other pods, check some updates one by one, and measure which share of the requests is
    /// answered in time. SCRIPT breaks nodes of Cassandra; `SCRIPT faults` lists the faults that it
    /// can cause
    #[arg(long, value_name = "SCRIPT", requires_all = ["pods", "rate", "faketime"], conflicts_with_all = ["fault_every", "kill_every", "pause_every", "group"])]
    pub soak: Option<PathBuf>,
    /// The library that shifts the clocks of the started pods: `libfaketimeMT.so.1` of libfaketime
    #[arg(long, value_name = "FILE", requires = "soak")]
    pub faketime: Option<PathBuf>,
    /// Draw a card from the deck of faults at this interval, such as 20s
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = humantime::parse_duration, requires = "soak")]
    pub draw_every: Duration,
    /// Percentage of updates that must be acknowledged in time, overall and while a node is down
    /// (0 to 100)
    #[arg(long, value_name = "PERCENT", default_value_t = 99.0, requires = "soak")]
    pub updates_available: f64,
    /// Percentage of reads that must be answered in time, overall and while a node is down (0 to
    /// 100)
    #[arg(long, value_name = "PERCENT", default_value_t = 99.9, requires = "soak")]
    pub reads_available: f64,
    /// Minimum number of folds that the pods must do in the background. Default: no minimum
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..).try_map(NonZeroU64::try_from), requires = "soak")]
    pub folds_min: Option<NonZeroU64>,
    /// Write the report to this folder, as `report.md` and `report.json`. Default: no files
    #[arg(long, value_name = "FOLDER", requires = "soak")]
    pub report: Option<PathBuf>,
    /// Show this command in `report.md` and `report.json`. Default: the arguments of this run
    #[arg(long, value_name = "TEXT", requires = "soak")]
    pub told_as: Option<String>,
}

impl SoakArgs {
    /// Refuses arguments that cannot work in a load of this length.
    pub(crate) fn check(&self, length: Duration) -> anyhow::Result<()> {
        if self.soak.is_none() {
            return Ok(());
        }
        ensure!(
            !self.draw_every.is_zero() && self.draw_every < length,
            "--draw-every {:?} never happens in a load of {length:?}",
            self.draw_every
        );
        // The dynamic linker would only warn, and every clock would be right.
        if let Some(library) = &self.faketime {
            ensure!(library.is_file(), "--faketime: there is no file {}", library.display());
        }
        for (name, percent) in [
            ("--updates-available", self.updates_available),
            ("--reads-available", self.reads_available),
        ] {
            ensure!((0.0..=100.0).contains(&percent), "{name} takes 0 to 100");
        }
        Ok(())
    }
}
