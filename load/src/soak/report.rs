//! What a soak found, in addition to the figures of the load, and whether it passes.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use serde::Serialize;

use crate::args::WorkloadArgs;
use crate::soak::args::SoakArgs;
use crate::soak::audited::{AuditedKeys, Wrongs};
use crate::soak::figures::{PodFigures, Rows, Shares};
use crate::soak::state::Soak;

/// See the [module documentation](self).
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SoakReport {
    pub(super) command: String,
    pub(super) machine: String,
    /// Ordinary keys in use at once.
    pub(super) keys_at_a_time: usize,
    /// How long a hot key is hot.
    pub(super) hot_for: Option<String>,
    /// Kinds of faults that this machine can cause.
    pub(super) kinds: Vec<String>,
    /// Kinds of faults of nodes that this machine cannot cause.
    pub(super) missing: Vec<String>,
    pub(super) targets: Targets,
    pub(super) updates: Shares,
    pub(super) reads: Shares,
    /// Updates that were not sent because no connection was free in time.
    pub(super) given_up: u64,
    /// Refusals after which the update went to another pod, by class.
    pub(super) retries: BTreeMap<String, u64>,
    /// Metrics of the pods.
    pub(super) metrics: BTreeMap<&'static str, u64>,
    /// Updates that a pod with a wrong clock refused.
    pub(super) gates_shut: u64,
    /// Updates of audited keys.
    pub(super) audited_updates: usize,
    /// Updates of audited keys that were acknowledged.
    pub(super) audited_acked: u64,
    pub(super) audited_keys: usize,
    /// Readings of an audited key from all pods.
    pub(super) audited_reads: usize,
    /// Values of audited keys that a pod did not return.
    pub(super) audited_unread: usize,
    pub(super) wrongs: Wrongs,
    pub(super) pods: Vec<PodFigures>,
    pub(super) rows_before: Rows,
    pub(super) rows_after: Rows,
    pub(super) tombstones: Vec<String>,
}

/// What a soak must reach.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Targets {
    pub(super) updates_percent: f64,
    pub(super) reads_percent: f64,
    pub(super) folds: Option<u64>,
}

impl SoakReport {
    /// The report of a soak. `kinds` are the faults that this machine can cause, `missing` those that
    /// it cannot.
    pub(crate) fn new(
        args: &SoakArgs,
        work: &WorkloadArgs,
        (kinds, missing): (Vec<String>, Vec<String>),
        soak: &Soak,
    ) -> Self {
        let figures = soak.figures();
        let audited = &soak.audited;
        let arguments = || std::env::args().skip(1).collect::<Vec<_>>().join(" ");
        Self {
            command: args.told_as.clone().unwrap_or_else(arguments),
            machine: machine(),
            keys_at_a_time: work.keys,
            hot_for: work.hot_for.map(|time| humantime::format_duration(time).to_string()),
            kinds,
            missing,
            targets: Targets {
                updates_percent: args.updates_available,
                reads_percent: args.reads_available,
                folds: args.folds_min.map(NonZeroU64::get),
            },
            updates: figures.updates,
            reads: figures.reads,
            given_up: figures.given_up,
            retries: figures.retries.clone(),
            metrics: figures.metrics(),
            gates_shut: figures.gates_shut,
            audited_updates: audited.iter().map(AuditedKeys::updates).sum(),
            audited_acked: audited.iter().map(AuditedKeys::acked).sum(),
            audited_keys: audited.iter().map(AuditedKeys::len).sum(),
            audited_reads: figures.audited_reads,
            audited_unread: figures.audited_unread,
            wrongs: figures.wrongs.clone(),
            pods: figures.pods.clone(),
            rows_before: figures.rows_before,
            rows_after: figures.rows_after,
            tombstones: figures.tombstones.clone(),
        }
    }

    /// Why the soak does not pass, in addition to the failures of the load.
    pub(crate) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let Wrongs { lost, doubled, phantom, unexplained } = &self.wrongs;
        for (name, count) in [
            ("updates were acknowledged and lost", lost.len()),
            ("updates were counted twice", doubled.len()),
            ("updates were refused or never sent, and counted", phantom.len()),
            (
                "audited keys have values that differ between pods or that no updates give",
                unexplained.len(),
            ),
            ("values of audited keys could not be read", self.audited_unread),
        ] {
            if count > 0 {
                failures.push(format!("{count} {name}"));
            }
        }
        for (what, share, target) in [
            ("updates", self.updates.all, self.targets.updates_percent),
            ("updates while a node was down", self.updates.node_down, self.targets.updates_percent),
            ("reads", self.reads.all, self.targets.reads_percent),
            ("reads while a node was down", self.reads.node_down, self.targets.reads_percent),
        ] {
            if share.percent() < target {
                failures
                    .push(format!("{:.3} % of {what} in time, below {target} %", share.percent()));
            }
        }
        let metric = |name| self.metrics.get(name).copied().unwrap_or(0);
        for met_by in ["id_conflicts_of_updates", "id_conflicts_of_reads", "id_conflicts_of_folds"]
        {
            let count = metric(met_by);
            if count > 0 {
                failures.push(format!("{count} {}", met_by.replace('_', " ")));
            }
        }
        let folds = metric("folds");
        if self.targets.folds.is_some_and(|least| folds < least) {
            failures.push(format!("only {folds} folds"));
        }
        failures
    }
}

/// The machine that the soak ran on.
fn machine() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let after = |text: &str, mark: &str| {
        let line = text.lines().find(|line| line.starts_with(mark));
        line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned())).unwrap_or_default()
    };
    let memory = after(&read("/proc/meminfo"), "MemTotal");
    let memory_kib: u64 = memory.trim_end_matches("kB").trim().parse().unwrap_or(0);
    let build = if cfg!(debug_assertions) { "dev" } else { "release" };
    format!(
        "{} × {}, {} GiB, Linux {}; pods, nodes and clients share it; {build} build",
        std::thread::available_parallelism().map_or(0, usize::from),
        after(&read("/proc/cpuinfo"), "model name"),
        memory_kib.div_ceil(1024 * 1024),
        read("/proc/sys/kernel/osrelease").trim(),
    )
}
