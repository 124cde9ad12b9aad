//! The command line of `orderfree load`, and which combinations make sense.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::builder::TypedValueParser as _;
use clap::{Args, ValueEnum};

use crate::cli::connect::ConnectArgs;

use super::chaos::Menace;
use super::client::PodClient;
use super::soak::SoakArgs;
use super::workload::{Mix, Shape, Turns};

/// Pods that are started at most: each is a process on this machine.
const PODS_MAX: usize = 64;
/// Connections at most: each holds a socket here and one at its pod.
const CONNECTIONS_MAX: usize = 4_096;
/// Keys at most: each is read from every pod.
const KEYS_MAX: usize = 1_000_000;
/// Updates in a request at most: what `/v1/batch` takes.
const BATCH_MAX: usize = 1_000;
/// Updates a second at most: beyond it the schedule itself would be the bottleneck.
const RATE_MAX: u32 = 10_000_000;
/// The shortest period of a fault, and of a background read.
const PERIOD_MIN: Duration = Duration::from_millis(10);
/// The longest load.
const DURATION_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Drive counters hard, break things on purpose, then prove every number.
///
/// Every update adds a random 60-bit weight. At the end each key is read from each pod: its value
/// must be the acknowledged sum plus some subset of the updates whose outcome is unknown. Exit
/// code 0: every number is right. 1: a number is wrong, or too much could not be proved. 2: the
/// arguments make no sense.
#[derive(Clone, Debug, Args)]
pub struct LoadArgs {
    /// Where the pods are, or how many to start
    #[command(flatten)]
    pub target: TargetArgs,
    /// What is sent
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// What is broken meanwhile
    #[command(flatten)]
    pub chaos: ChaosArgs,
    /// What is checked
    #[command(flatten)]
    pub check: CheckArgs,
    /// Everything at once, for long
    #[command(flatten)]
    pub soak: SoakArgs,
}

/// Which pods.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Pods")]
pub struct TargetArgs {
    /// Address of a running pod, such as http://127.0.0.1:8080; repeat it for several pods of one
    /// cluster. Where it has tokens, one must grant `load-` for read and write
    #[arg(long = "url", value_name = "URL")]
    pub urls: Vec<String>,
    /// How they are reached
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// Start this many pods on 127.0.0.1, with this environment; they are stopped at the end
    #[arg(long, value_name = "N", conflicts_with = "urls")]
    pub pods: Option<usize>,
    /// Contact points for the pods that are started; without them, one pod on the embedded store
    #[arg(long, value_name = "HOST:PORT,…", env = "ORDERFREE_CASSANDRA")]
    pub cassandra: Option<String>,
    /// File of the embedded store for the pod that is started; by default a new one in the folder
    /// of the logs
    #[arg(long = "data", value_name = "FILE", env = "ORDERFREE_DATA")]
    pub embedded_file: Option<PathBuf>,
    /// Program that is started as `PROGRAM serve`; by default this one
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Folder for the output of pods and commands; by default a temporary one, which is removed if
    /// every number is right. Pods log every request unless RUST_LOG=warn is set
    #[arg(long, value_name = "FOLDER")]
    pub log_dir: Option<PathBuf>,
    /// Time for pods to become ready, at the start and after every fault
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub ready_within: Duration,
}

/// What is sent.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Workload")]
pub struct WorkloadArgs {
    /// How long to send updates
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub duration: Duration,
    /// How often each key is chosen
    #[arg(long, value_enum, default_value_t = Shape::Mixed)]
    pub workload: Shape,
    /// Number of keys; `hot` has one, `mixed` has its hot key besides
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub keys: usize,
    /// Number of groups, that is partitions, over which the keys are spread; at most one for each
    /// key
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub groups: usize,
    /// Exponent of `zipf`
    #[arg(long, value_name = "X", default_value_t = 0.99)]
    pub zipf_exponent: f64,
    /// Share of the updates that go to the hot key of `mixed`, or to the hot keys of `tenth`
    #[arg(long, value_name = "X", default_value_t = 0.5)]
    pub hot_share: f64,
    /// The hot keys of `tenth` are others after this time, again and again
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub hot_for: Option<Duration>,
    /// Connections, spread over the pods; each has one request in flight
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub connections: usize,
    /// Updates a second, sent on time whatever the pods do (open loop); latency then counts from
    /// the intended time. Without it, each connection waits for its last answer (closed loop)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..).try_map(NonZeroU32::try_from))]
    pub rate: Option<NonZeroU32>,
    /// Updates in a request; above 1 they are sent to /v1/batch
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub batch: usize,
    /// Group name instead of a fresh one. Nobody else may write to it; the values it has are read
    /// first
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Time for one request; longer than a pod's own request budget
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = duration)]
    pub request_timeout: Duration,
    /// Seed of every choice; printed, so that a run can be repeated
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// What is broken meanwhile.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Faults")]
pub struct ChaosArgs {
    /// Kill a started pod with SIGKILL this often
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub kill_every: Option<Duration>,
    /// How long a killed pod stays down
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub restart_after: Duration,
    /// Pause a started pod with SIGSTOP this often
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub pause_every: Option<Duration>,
    /// How long a pause lasts
    #[arg(long, value_name = "TIME", default_value = "4s", value_parser = duration)]
    pub pause_for: Duration,
    /// Run the fault command this often
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "fault_command")]
    pub fault_every: Option<Duration>,
    /// Time from a fault command to its heal command
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub fault_for: Duration,
    /// Shell command that causes a fault, such as killing a Cassandra node
    #[arg(long, value_name = "COMMAND", requires = "fault_every")]
    pub fault_command: Option<String>,
    /// Shell command that undoes the fault
    #[arg(long, value_name = "COMMAND", requires = "fault_command")]
    pub heal_command: Option<String>,
}

/// What is checked, and how it is told.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Check")]
pub struct CheckArgs {
    /// Read from every pod this often during the load, and stop at the first value out of bounds
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub read_every: Option<Duration>,
    /// Consistency level of all reads; it has to overlap the level of the writes
    #[arg(long, value_name = "LEVEL", default_value = "quorum")]
    pub consistency: String,
    /// Fold every key after the load and check all values again
    #[arg(long)]
    pub fold_check: bool,
    /// Then wait until all shards are final (lifetime + cutoff + fence quantum, and a little),
    /// fold once more, and check that all pods agree on every value
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "fold_check")]
    pub settle: Option<Duration>,
    /// Form of the report
    #[arg(short = 'o', long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// The forms of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table.
    Text,
    /// One JSON object.
    Json,
}

pub(super) fn duration(text: &str) -> Result<Duration, humantime::DurationError> {
    humantime::parse_duration(text)
}

impl TargetArgs {
    /// Where Cassandra is, if it is to be used. An empty variable is as good as none.
    pub(super) fn contact_points(&self) -> Option<&str> {
        self.cassandra.as_deref().filter(|points| !points.is_empty())
    }
}

impl LoadArgs {
    /// Refuses what cannot work, with a sentence that says why.
    pub fn check(&self) -> anyhow::Result<()> {
        self.check_target()?;
        self.check_workload()?;
        self.check_periods()?;
        self.soak.check(self.workload.duration)
    }

    fn check_target(&self) -> anyhow::Result<()> {
        let TargetArgs { urls, pods, .. } = &self.target;
        let Some(pods) = *pods else {
            ensure!(
                !urls.is_empty(),
                "say what to load: --url http://host:port for running pods, or --pods N to start \
                 some"
            );
            ensure!(
                self.chaos.kill_every.is_none() && self.chaos.pause_every.is_none(),
                "--kill-every and --pause-every need --pods: only pods that were started here are \
                 ever signalled"
            );
            for url in urls {
                PodClient::new(url, &self.target.connect, self.workload.request_timeout)?;
            }
            return Ok(());
        };
        ensure!((1..=PODS_MAX).contains(&pods), "--pods takes 1 to {PODS_MAX}");
        ensure!(
            pods == 1 || self.target.contact_points().is_some(),
            "--pods {pods} needs --cassandra (or ORDERFREE_CASSANDRA): the embedded store is a \
             file of one process, so without Cassandra there can be only one pod"
        );
        Ok(())
    }

    fn check_workload(&self) -> anyhow::Result<()> {
        let work = &self.workload;
        ensure!((1..=KEYS_MAX).contains(&work.keys), "--keys takes 1 to {KEYS_MAX}");
        ensure!(work.groups > 0, "--groups takes 1 or more");
        ensure!(
            (1..=CONNECTIONS_MAX).contains(&work.connections),
            "--connections takes 1 to {CONNECTIONS_MAX}"
        );
        let pods = self.target.pods.unwrap_or(self.target.urls.len());
        ensure!(
            work.connections >= pods,
            "--connections {} leaves some of the {pods} pods without load",
            work.connections
        );
        ensure!((1..=BATCH_MAX).contains(&work.batch), "--batch takes 1 to {BATCH_MAX}");
        let rate = work.rate.map_or(1, NonZeroU32::get);
        ensure!(rate <= RATE_MAX, "--rate takes 1 to {RATE_MAX}");
        ensure!((0.0..=1.0).contains(&work.hot_share), "--hot-share takes 0 to 1");
        if let Some(length) = work.hot_for {
            ensure!(
                work.workload == Shape::Tenth,
                "--hot-for needs --workload tenth: other shapes have no hot keys that could change"
            );
            ensure!(
                !length.is_zero()
                    && self.turns(length).saturating_mul(work.keys.div_ceil(10)) <= KEYS_MAX,
                "--hot-for {length:?} makes more than {KEYS_MAX} hot keys: let it be longer"
            );
        }
        ensure!((0.0..=10.0).contains(&work.zipf_exponent), "--zipf-exponent takes 0 to 10");
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let group = work.group.as_deref().unwrap_or("load");
        ensure!(
            (1..=200).contains(&group.len()) && group.chars().all(plain),
            "--group takes up to 200 letters, digits, `-`, `_` and `.`"
        );
        let level = &self.check.consistency;
        ensure!(
            level.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
            "--consistency takes a level such as quorum or local_quorum"
        );
        Ok(())
    }

    fn check_periods(&self) -> anyhow::Result<()> {
        let load = self.workload.duration;
        ensure!(!load.is_zero() && load <= DURATION_MAX, "--duration takes up to seven days");
        ensure!(!self.workload.request_timeout.is_zero(), "--request-timeout must not be zero");
        let periods = [
            ("--kill-every", self.chaos.kill_every),
            ("--pause-every", self.chaos.pause_every),
            ("--fault-every", self.chaos.fault_every),
            ("--read-every", self.check.read_every),
        ];
        for (name, period) in periods {
            let Some(period) = period else { continue };
            ensure!(period >= PERIOD_MIN, "{name} must be at least {PERIOD_MIN:?}");
            ensure!(period < load, "{name} {period:?} never happens in a load of {load:?}");
        }
        ensure!(
            self.chaos.fault_every.is_none_or(|every| self.chaos.fault_for < every),
            "--fault-for must be shorter than --fault-every, or faults overlap"
        );
        ensure!(
            self.chaos.pause_every.is_none_or(|every| self.chaos.pause_for < every),
            "--pause-for must be shorter than --pause-every, or pauses overlap"
        );
        Ok(())
    }

    /// How many turns of this length the load has; the last may be shorter.
    fn turns(&self, length: Duration) -> usize {
        let turns = self.workload.duration.as_nanos().div_ceil(length.as_nanos());
        usize::try_from(turns).unwrap_or(usize::MAX)
    }

    /// The shape of the workload.
    pub fn mix(&self) -> Mix {
        Mix {
            shape: self.workload.workload,
            key_count: self.workload.keys,
            zipf_exponent: self.workload.zipf_exponent,
            hot_share: self.workload.hot_share,
            turns: self.workload.hot_for.map(|length| Turns { length, count: self.turns(length) }),
        }
    }

    /// What is to be broken.
    pub fn menace(&self) -> Menace {
        Menace {
            kill_every: self.chaos.kill_every,
            restart_after: self.chaos.restart_after,
            pause_every: self.chaos.pause_every,
            pause_for: self.chaos.pause_for,
            fault_every: self.chaos.fault_every,
            fault_for: self.chaos.fault_for,
            draw_every: self.soak.soak.is_some().then_some(self.soak.draw_every),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        load: LoadArgs,
    }

    pub(in super::super) fn parse(line: &str) -> Result<LoadArgs, clap::Error> {
        let words = std::iter::once("load").chain(line.split_whitespace());
        Cli::try_parse_from(words).map(|cli| cli.load)
    }

    #[test]
    fn sensible_arguments_are_taken() {
        for line in [
            "--url http://a:1",
            "--url http://a:1 --url http://b:1 --rate 500 --workload zipf",
            "--url http://a:1 --workload tenth --hot-for 10s",
            "--pods 1",
            "--pods 10 --cassandra 127.0.0.1:9042 --kill-every 7s --pause-every 11s",
            "--url http://a:1 --fold-check --settle 150s --read-every 50ms -o json",
            "--url http://a:1 --fault-every 20s --fault-command false --heal-command true",
        ] {
            let args = parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            args.check().unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn bad_combinations_get_a_sentence() {
        for (line, says) in [
            ("", "say what to load"),
            ("--pods 3", "only one pod"),
            ("--pods 0", "--pods takes"),
            ("--url http://a:1 --kill-every 7s", "need --pods"),
            ("--url a:1", "must look like"),
            ("--url http://a:1 --keys 0", "--keys takes"),
            ("--url http://a:1 --groups 0", "--groups takes"),
            ("--url http://a:1 --url http://b:1 --connections 1", "without load"),
            ("--url http://a:1 --batch 1001", "--batch takes"),
            ("--url http://a:1 --group a/b", "--group takes"),
            ("--url http://a:1 --hot-share 2", "--hot-share takes"),
            ("--url http://a:1 --hot-for 10s", "needs --workload tenth"),
            ("--url http://a:1 --workload tenth --hot-for 0s", "be longer"),
            ("--url http://a:1 --workload tenth --hot-for 1us", "be longer"),
            ("--url http://a:1 --consistency quorum&x", "--consistency takes"),
            ("--pods 1 --kill-every 31s", "never happens"),
            ("--pods 1 --kill-every 0s", "at least"),
            ("--pods 1 --pause-every 3s", "overlap"),
        ] {
            let args = parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            let error = args.check().expect_err(line).to_string();
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn flags_that_need_each_other_are_asked_for_together() {
        for line in [
            "--url http://a:1 --pods 1",
            "--url http://a:1 --settle 10s",
            "--url http://a:1 --fault-every 10s",
            "--url http://a:1 --heal-command true",
            "--url http://a:1 --duration soon",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
