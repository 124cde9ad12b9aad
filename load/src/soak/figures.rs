//! What a soak counts in addition to the load: availability, rows, and the metrics and memory of pods.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;

use crate::client::Reply;
use crate::soak::audited::Wrongs;

/// Metrics of pods that are summed over restarts: the name in the report, and the line of `/metrics`.
const METRICS: [(&str, &str); 15] = [
    ("folds", "orderfree_folds_total{end=\"folded\"}"),
    ("folds_failed", "orderfree_folds_total{end=\"failed\"}"),
    ("folds_paused", "orderfree_folds_total{end=\"paused\"}"),
    ("folded_shards", "orderfree_folded_shards_total"),
    ("zombies", "orderfree_zombies_total"),
    ("births", "orderfree_births_total"),
    ("clock_moved", "orderfree_clock_moved_total"),
    ("id_repeats", "orderfree_id_repeats_total"),
    ("id_conflicts_of_updates", "orderfree_id_conflicts_total{by=\"update\"}"),
    ("id_conflicts_of_reads", "orderfree_id_conflicts_total{by=\"read\"}"),
    ("id_conflicts_of_folds", "orderfree_id_conflicts_total{by=\"fold\"}"),
    ("resets_done", "orderfree_resets_total{end=\"done\"}"),
    ("resets_refused", "orderfree_resets_total{end=\"refused\"}"),
    ("resets_unknown", "orderfree_resets_total{end=\"unknown\"}"),
    ("refused_without_the_log_of_resets", "orderfree_refused_total{reason=\"resets\"}"),
];

/// See the [module documentation](self).
#[derive(Clone, Debug)]
pub(super) struct Figures {
    pub(super) updates: Shares,
    pub(super) reads: Shares,
    /// Updates that were not sent because no connection was free in time.
    pub(super) given_up: u64,
    /// Refusals after which the update went to another pod, by class.
    pub(super) retries: BTreeMap<String, u64>,
    pub(super) pods: Vec<PodFigures>,
    /// Updates that a pod with a wrong clock refused.
    pub(super) gates_shut: u64,
    pub(super) wrongs: Wrongs,
    /// Readings of an audited key from all pods.
    pub(super) audited_reads: usize,
    /// Values of audited keys that a pod did not return.
    pub(super) audited_unread: usize,
    pub(super) rows_before: Rows,
    pub(super) rows_after: Rows,
    pub(super) tombstones: Vec<String>,
}

/// Requests, and how many were answered in time.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Share {
    /// All requests.
    pub(super) asked: u64,
    /// Requests that were answered in time.
    pub(super) available: u64,
}

/// The share that was answered in time, overall and while a node was down.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Shares {
    /// Overall.
    pub(super) all: Share,
    /// While a node was down.
    pub(super) node_down: Share,
}

impl Shares {
    /// Records a request.
    pub(super) fn record(&mut self, is_available: bool, node_was_down: bool) {
        self.all.record(is_available);
        if node_was_down {
            self.node_down.record(is_available);
        }
    }
}

impl Share {
    fn record(&mut self, is_available: bool) {
        self.asked += 1;
        self.available += u64::from(is_available);
    }

    /// The share in percent, which is 100 without any request.
    pub(super) fn percent(self) -> f64 {
        if self.asked == 0 { 100.0 } else { self.available as f64 * 100.0 / self.asked as f64 }
    }
}

/// The metrics and the memory of a pod, over all its processes.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct PodFigures {
    /// Metrics of the processes before the current one.
    #[serde(skip)]
    before: BTreeMap<&'static str, u64>,
    /// Metrics of the current process.
    #[serde(skip)]
    last: BTreeMap<&'static str, u64>,
    #[serde(skip)]
    process: Option<(u32, Instant)>,
    #[serde(skip)]
    memory: Memory,
    /// Memory of the process that was observed for the longest time.
    pub(super) longest: Memory,
    /// The largest memory of any process, in MiB.
    pub(super) most_mib: f64,
    /// The number of processes.
    pub(super) processes: u64,
}

/// Memory of one process.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Memory {
    /// When it was first measured, in MiB.
    pub(super) start_mib: f64,
    /// When it was last measured, in MiB.
    pub(super) end_mib: f64,
    /// Time between the two measurements, in seconds.
    pub(super) seconds: f64,
}

impl PodFigures {
    /// Reads the metrics of a pod. If a count fell, the process is a new one.
    pub(super) fn scrape(&mut self, text: &str) {
        let count = |name: &str| -> u64 {
            let rest = text.lines().find_map(|line| line.strip_prefix(name));
            rest.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
        };
        let now: BTreeMap<_, _> = METRICS.iter().map(|(name, line)| (*name, count(line))).collect();
        let is_new = self.last.iter().any(|(name, last)| now[name] < *last);
        if is_new {
            for (name, last) in &self.last {
                *self.before.entry(name).or_default() += last;
            }
        }
        self.last = now;
    }

    /// A metric, summed over all processes.
    fn total(&self, name: &str) -> u64 {
        let of = |counts: &BTreeMap<&str, u64>| counts.get(name).copied().unwrap_or(0);
        of(&self.before) + of(&self.last)
    }

    /// Measures the memory of the process.
    pub(super) fn weigh(&mut self, process: u32) {
        let status = std::fs::read_to_string(format!("/proc/{process}/status"));
        let Some(now_mib) = status.ok().as_deref().and_then(resident_mib) else { return };
        let since = match self.process {
            Some((same, since)) if same == process => since,
            _ => {
                self.processes += 1;
                self.memory = Memory { start_mib: now_mib, ..Memory::default() };
                self.process.insert((process, Instant::now())).1
            }
        };
        self.memory.end_mib = now_mib;
        self.memory.seconds = since.elapsed().as_secs_f64();
        if self.memory.seconds >= self.longest.seconds {
            self.longest = self.memory;
        }
        self.most_mib = self.most_mib.max(now_mib);
    }
}

/// The resident memory in `/proc/…/status`, in MiB.
fn resident_mib(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some((kib / 102.4).round() / 10.0)
}

/// Rows of the ordinary keys in the store.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Rows {
    /// Keys whose rows were counted.
    pub keys: usize,
    /// All their rows, tallies included.
    pub total: usize,
    /// The largest number of rows of one key.
    pub most: usize,
}

impl Rows {
    /// The average number of rows per key.
    pub(super) fn average(self) -> f64 {
        if self.keys == 0 { 0.0 } else { self.total as f64 / self.keys as f64 }
    }
}

impl Figures {
    /// The figures before the load.
    pub(super) fn new(pods: usize) -> Self {
        Self {
            updates: Shares::default(),
            reads: Shares::default(),
            given_up: 0,
            retries: BTreeMap::new(),
            pods: vec![PodFigures::default(); pods],
            gates_shut: 0,
            wrongs: Wrongs::default(),
            audited_reads: 0,
            audited_unread: 0,
            rows_before: Rows::default(),
            rows_after: Rows::default(),
            tombstones: Vec::new(),
        }
    }

    /// Records that a refused update goes to another pod.
    pub(super) fn record_retry(&mut self, reply: &Reply) {
        let class = reply.why.as_ref().map_or("", |why| why.class.as_str());
        *self.retries.entry(class.to_owned()).or_default() += 1;
    }

    /// The metrics, summed over all pods and all their processes.
    pub(super) fn metrics(&self) -> BTreeMap<&'static str, u64> {
        let total = |name| self.pods.iter().map(|pod| pod.total(name)).sum();
        METRICS.iter().map(|(name, _)| (*name, total(name))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_summed_over_restarts() {
        let text = |folds: u64, births: u64| {
            format!(
                "# TYPE orderfree_folds counter\norderfree_folds_total{{end=\"nothing\"}} 9\n\
                 orderfree_folds_total{{end=\"folded\"}} {folds}\norderfree_births_total {births}\n"
            )
        };
        let mut figures = Figures::new(2);
        for (folds, births) in [(0, 1), (5, 7), (8, 9), (2, 3), (4, 4)] {
            figures.pods[0].scrape(&text(folds, births));
        }
        figures.pods[1].scrape(&text(100, 1));
        let metrics = figures.metrics();
        assert_eq!((metrics["folds"], metrics["births"]), (8 + 4 + 100, 9 + 4 + 1));
    }

    #[test]
    fn memory_is_read_from_the_system() {
        assert_eq!(resident_mib("Name:\tx\nVmRSS:\t   10240 kB\n"), Some(10.0));
        assert_eq!(resident_mib("Name:\tx\n"), None);
        let mut pod = PodFigures::default();
        pod.weigh(std::process::id());
        assert!(pod.longest.start_mib > 1.0 && pod.processes == 1, "{pod:?}");
    }

    #[test]
    fn shares_count_what_came_in_time() {
        let mut shares = Shares::default();
        for number in 0..100 {
            shares.record(number != 7, number < 10);
        }
        assert_eq!((shares.all.percent(), shares.node_down.percent()), (99.0, 90.0));
        assert_eq!(Share::default().percent(), 100.0);
    }
}
