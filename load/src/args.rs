//! The flags of `orderfree load`, and which combinations of them are refused.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::builder::TypedValueParser as _;
use clap::{Args, ValueEnum};
use humantime::parse_duration;

use crate::chaos::plan::FaultPlan;
use crate::client::{Connect, PodClient};
use crate::soak::args::SoakArgs;
use crate::workload::{HotPeriods, Kind, Mix, Shape, Window};

/// Maximum number of started pods. Each is a process on this machine.
const PODS_MAX: usize = 64;
/// Maximum number of connections. Each needs one socket here and one at its pod.
const CONNECTIONS_MAX: usize = 4_096;
/// Maximum number of keys. Each is read from every pod.
const KEYS_MAX: usize = 1_000_000;
/// Maximum number of updates per request, which is the limit of `/v1/batch`.
const BATCH_MAX: usize = 1_000;
/// Maximum number of updates per second. Above it, the schedule itself would be the bottleneck.
const RATE_MAX: u32 = 10_000_000;
/// The shortest interval between faults or between background reads.
const PERIOD_MIN: Duration = Duration::from_millis(10);
/// The longest load.
const DURATION_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

/// The flags of the load test.
#[derive(Clone, Debug, Args)]
pub struct LoadArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    #[command(flatten)]
    pub(crate) chaos: ChaosArgs,
    #[command(flatten)]
    pub(crate) check: CheckArgs,
    #[command(flatten)]
    pub(crate) soak: SoakArgs,
}

/// The pods.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Pods")]
pub(crate) struct TargetArgs {
    /// Use the running pod at this address, such as http://127.0.0.1:8080. Repeat the flag for each
    /// pod of the cluster. If the pods require a token, it must grant read and write for groups whose
    /// names begin with `load-`, or with the name in --group
    #[arg(long = "url", value_name = "URL")]
    pub urls: Vec<String>,
    /// Start this number of pods on 127.0.0.1 (1 to 64), with the environment of this command. They
    /// are stopped at the end
    #[arg(long, value_name = "N", conflicts_with = "urls")]
    pub pods: Option<usize>,
    /// Contact points of Cassandra for the started pods. Default: none, and a single pod uses the
    /// embedded store
    #[arg(long, value_name = "HOST:PORT,…", env = "ORDERFREE_CASSANDRA")]
    pub cassandra: Option<String>,
    /// File of the embedded store for the started pod. Default: a new file in the log folder
    #[arg(long = "data", value_name = "FILE", env = "ORDERFREE_DATA")]
    pub embedded_file: Option<PathBuf>,
    /// Program of the pods, which is started as `PROGRAM serve`. Default: this program
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Folder for the output of started pods and of fault commands. Default: a temporary folder,
    /// which is removed if every number is right. Pods log every request; set RUST_LOG=warn to
    /// prevent this
    #[arg(long, value_name = "FOLDER")]
    pub log_dir: Option<PathBuf>,
    /// Time limit for all pods to become ready, such as 60s. It applies before the load and again
    /// after it
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub ready_within: Duration,
}

/// The updates.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Workload")]
pub(crate) struct WorkloadArgs {
    /// Length of the load, such as 30s or 10min (up to 7 days)
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Distribution of the updates over the keys
    #[arg(long, value_enum, default_value_t = Shape::Mixed)]
    pub workload: Shape,
    /// Number of keys (1 to 1000000). `hot` always has one key, and `mixed` has its hot key in
    /// addition
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub keys: usize,
    /// Number of groups to spread the keys over. A group is a partition. There are never more groups
    /// than keys
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub groups: usize,
    /// Exponent of the `zipf` workload (0 to 10)
    #[arg(long, value_name = "X", default_value_t = 0.99)]
    pub zipf_exponent: f64,
    /// Share of the updates that go to the hot key of `mixed` or to the hot keys of `tenth` (0 to 1)
    #[arg(long, value_name = "X", default_value_t = 0.5)]
    pub hot_share: f64,
    /// Replace the hot keys of `tenth` with new keys at this interval, such as 150s. Default: the hot
    /// keys stay the same
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub hot_for: Option<Duration>,
    /// Number of connections, spread over the pods (1 to 4096). Each has at most one request in
    /// flight
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub connections: usize,
    /// Send this number of updates per second on a fixed schedule (open loop). Latency then counts
    /// from the scheduled time. Default: each connection sends its next request when the last one is
    /// answered (closed loop)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..).try_map(NonZeroU32::try_from))]
    pub rate: Option<NonZeroU32>,
    /// Number of updates per request (1 to 1000). Requests with more than one update go to /v1/batch
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub batch: usize,
    /// Give each update an id, a UUID of version 7, and repeat the update to random pods until it is
    /// acknowledged. One in ten is also repeated after that, at once and later. Each request draws one
    /// of these windows for its ids, or none; name one twice to draw it more often. Default: no ids, and
    /// no update is sent again
    #[arg(long, value_name = "WINDOW,…", value_enum, value_delimiter = ',')]
    pub ids: Vec<Window>,
    /// Reset a random key at this interval, such as 1s, or delete it. The value of a key and everything that its
    /// resets returned must then be the sum of its acknowledged updates. The keys are of the kinds with an exact total:
    /// counter, sum, stats, histogram, topk, gset, or_set and lww_set. The table of resets must be older than five minutes.
    /// Default: no resets
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "group")]
    pub reset_every: Option<Duration>,
    /// Name of the group, or the beginning of the group names if there are several. The values that
    /// its keys already have are read first. No other client may write to these groups. Default: a
    /// new random name
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Time limit of a request, such as 15s. It should exceed the pods' `ORDERFREE_REQUEST_BUDGET` and the 10 s of a
    /// read
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = parse_duration)]
    pub request_timeout: Duration,
    /// Seed of all random choices, to repeat a run. Default: a random seed, which the report shows
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// The faults.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Faults")]
pub(crate) struct ChaosArgs {
    /// Kill a started pod with SIGKILL at this interval, such as 7s. Default: never
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub kill_every: Option<Duration>,
    /// Time from the kill of a pod to its restart, such as 1s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub restart_after: Duration,
    /// Pause a started pod with SIGSTOP at this interval, such as 11s. Default: never
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub pause_every: Option<Duration>,
    /// Length of a pause, such as 4s
    #[arg(long, value_name = "TIME", default_value = "4s", value_parser = parse_duration)]
    pub pause_for: Duration,
    /// Run the fault command at this interval, such as 20s. Default: never
    #[arg(long, value_name = "TIME", value_parser = parse_duration, requires = "fault_command")]
    pub fault_every: Option<Duration>,
    /// Time from the fault command to the heal command, such as 10s. In a soak, this is the length
    /// of the faults of nodes
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub fault_for: Duration,
    /// Shell command that causes a fault, such as a command that kills a node of Cassandra
    #[arg(long, value_name = "COMMAND", requires = "fault_every")]
    pub fault_command: Option<String>,
    /// Shell command that undoes the fault. Default: none
    #[arg(long, value_name = "COMMAND", requires = "fault_command")]
    pub heal_command: Option<String>,
}

/// The check and the report.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Check")]
pub(crate) struct CheckArgs {
    /// Read a random key from every pod at this interval during the load, such as 500ms. The load
    /// stops at the first value out of bounds. Default: no reads during the load
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub read_every: Option<Duration>,
    /// Consistency level of all reads. It must overlap with the level of the writes
    #[arg(long, value_name = "LEVEL", default_value = "quorum")]
    pub consistency: String,
    /// Fold every key after the load, and check all values again
    #[arg(long)]
    pub fold_check: bool,
    /// Wait this long after the first fold, such as 150s, then fold and check again. All pods must
    /// then agree on every value. The time must be longer than lifetime + cutoff + fence quantum, so
    /// that all shards are final. Default: no second fold
    #[arg(long, value_name = "TIME", value_parser = parse_duration, requires = "fold_check")]
    pub settle: Option<Duration>,
    /// After the last fold, also read everything at this consistency level, such as local_quorum,
    /// which asks only the data centre of each pod. Default: only at the level of all other reads
    #[arg(long, value_name = "LEVEL", requires = "settle")]
    pub settled_consistency: Option<String>,
    /// Format of the report
    #[arg(short = 'o', long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// The formats of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A table.
    Text,
    /// One JSON object.
    Json,
}

impl TargetArgs {
    /// The contact points of Cassandra, if the pods use it. An empty variable counts as unset.
    pub(crate) fn contact_points(&self) -> Option<&str> {
        self.cassandra.as_deref().filter(|points| !points.is_empty())
    }
}

impl LoadArgs {
    /// The addresses of running pods.
    #[must_use]
    pub fn urls(&self) -> &[String] {
        &self.target.urls
    }

    /// Refuses arguments that cannot work, with a sentence that says why.
    pub(crate) fn check(&self, connect: Connect<'_>) -> anyhow::Result<()> {
        self.check_target(connect)?;
        self.check_workload()?;
        self.check_periods()?;
        self.soak.check(self.workload.duration)
    }

    fn check_target(&self, connect: Connect<'_>) -> anyhow::Result<()> {
        let TargetArgs { urls, pods, .. } = &self.target;
        let Some(pods) = *pods else {
            ensure!(
                !urls.is_empty(),
                "say what to load: --url http://host:port for running pods, or --pods N to start \
                 some"
            );
            ensure!(
                self.chaos.kill_every.is_none() && self.chaos.pause_every.is_none(),
                "--kill-every and --pause-every need --pods: only started pods can be killed or \
                 paused"
            );
            for url in urls {
                PodClient::new(url, connect, self.workload.request_timeout)?;
            }
            return Ok(());
        };
        ensure!((1..=PODS_MAX).contains(&pods), "--pods takes 1 to {PODS_MAX}");
        ensure!(
            pods == 1 || self.target.contact_points().is_some(),
            "--pods {pods} needs --cassandra (or ORDERFREE_CASSANDRA): the file of the embedded \
             store belongs to one process, so without Cassandra there can be only one pod"
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
                "--hot-for needs --workload tenth: the hot keys of other workloads do not change"
            );
            ensure!(
                !length.is_zero()
                    && self.turns(length).saturating_mul(work.keys.div_ceil(10)) <= KEYS_MAX,
                "--hot-for {length:?} makes more than {KEYS_MAX} hot keys: it must be longer"
            );
        }
        ensure!((0.0..=10.0).contains(&work.zipf_exponent), "--zipf-exponent takes 0 to 10");
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let group = work.group.as_deref().unwrap_or("load");
        ensure!(
            (1..=200).contains(&group.len())
                && group.chars().all(plain)
                && !matches!(group, "." | ".."),
            "--group takes up to 200 letters, digits, `-`, `_` and `.`, but not `.` or `..` alone"
        );
        let CheckArgs { consistency, settled_consistency, .. } = &self.check;
        let settled = settled_consistency.as_ref().map(|level| ("--settled-consistency", level));
        for (name, level) in [("--consistency", consistency)].into_iter().chain(settled) {
            ensure!(
                level.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
                "{name} takes a level such as quorum or local_quorum"
            );
        }
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
            ("--reset-every", self.workload.reset_every),
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

    /// The number of turns of this length in the load. The last turn may be shorter.
    fn turns(&self, length: Duration) -> usize {
        let turns = self.workload.duration.as_nanos().div_ceil(length.as_nanos());
        usize::try_from(turns).unwrap_or(usize::MAX)
    }

    /// The shape of the workload.
    pub(crate) fn mix(&self) -> Mix {
        Mix {
            shape: self.workload.workload,
            key_count: self.workload.keys,
            zipf_exponent: self.workload.zipf_exponent,
            hot_share: self.workload.hot_share,
            turns: self
                .workload
                .hot_for
                .map(|length| HotPeriods { length, count: self.turns(length) }),
            kinds: match self.workload.reset_every {
                Some(_) => &Kind::WITH_TOTAL,
                None => &[Kind::Counter],
            },
        }
    }

    /// Which faults happen, and how often.
    pub(crate) fn fault_plan(&self) -> FaultPlan {
        FaultPlan {
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
pub(crate) mod tests {
    use clap::Parser;
    use reqwest::Client;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        load: LoadArgs,
    }

    /// Parses the arguments after `orderfree load`.
    pub(crate) fn parse(line: &str) -> Result<LoadArgs, clap::Error> {
        let words = std::iter::once("load").chain(line.split_whitespace());
        Cli::try_parse_from(words).map(|cli| cli.load)
    }

    #[test]
    fn sensible_arguments_are_taken() {
        for line in [
            "--url http://a:1",
            "--url http://a:1 --url http://b:1 --rate 500 --workload zipf",
            "--url http://a:1 --workload tenth --hot-for 10s",
            "--url http://a:1 --ids minute,short,none,none",
            "--url http://a:1 --reset-every 1s",
            "--pods 1",
            "--pods 10 --cassandra 127.0.0.1:9042 --kill-every 7s --pause-every 11s",
            "--url http://a:1 --fold-check --settle 150s --read-every 50ms -o json",
            "--url http://a:1 --fold-check --settle 1s --settled-consistency local_quorum",
            "--url http://a:1 --fault-every 20s --fault-command false --heal-command true",
        ] {
            let args = parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            let checked = args.check(&|_| Ok(Client::builder()));
            checked.unwrap_or_else(|error| panic!("{line}: {error}"));
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
            ("--url http://a:1 --group ..", "--group takes"),
            ("--url http://a:1 --hot-share 2", "--hot-share takes"),
            ("--url http://a:1 --hot-for 10s", "needs --workload tenth"),
            ("--url http://a:1 --workload tenth --hot-for 0s", "be longer"),
            ("--url http://a:1 --workload tenth --hot-for 1us", "be longer"),
            ("--url http://a:1 --consistency quorum&x", "--consistency takes"),
            (
                "--url http://a:1 --fold-check --settle 1s --settled-consistency x&y",
                "--settled-consistency takes",
            ),
            ("--pods 1 --kill-every 31s", "never happens"),
            ("--pods 1 --kill-every 0s", "at least"),
            ("--pods 1 --pause-every 3s", "overlap"),
            ("--url http://a:1 --reset-every 0s", "at least"),
        ] {
            let args = parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            let checked = args.check(&|_| Ok(Client::builder()));
            let error = checked.expect_err(line).to_string();
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn flags_that_need_each_other_are_asked_for_together() {
        for line in [
            "--url http://a:1 --pods 1",
            "--url http://a:1 --settle 10s",
            "--url http://a:1 --settled-consistency local_quorum",
            "--url http://a:1 --fault-every 10s",
            "--url http://a:1 --heal-command true",
            "--url http://a:1 --duration soon",
            "--url http://a:1 --ids hour",
            "--url http://a:1 --reset-every 1s --group g",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
