//! A soak: the load of `orderfree load` for a long time, under a deck of all faults that are known,
//! with clients that fail over as those of a load balancer do.
//!
//! - `args`: its flags;
//! - `service`: how updates and reads find a pod;
//! - `twins`: single updates, each checked by itself;
//! - `figures`: what is counted besides;
//! - `report`: what is told, as Markdown, and whether it passes.

mod args;
mod figures;
mod report;
mod service;
mod twins;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::process::Command;
use tokio::time::sleep;

pub use self::args::SoakArgs;
use self::figures::Figures;
pub(super) use self::report::{SoakReport, page};
use self::twins::Twins;
use super::args::WorkloadArgs;
use super::chaos::NodeFault;
use super::drive::Run;
use super::verify;
use super::workload::{Key, Kind};

/// How often the metrics of pods are read.
const SCRAPE_EVERY: Duration = Duration::from_secs(2);

/// The state of a soak that clients, faults and the check share.
#[derive(Debug)]
pub(super) struct Soak {
    /// Which pods said last that they are ready.
    ready: Vec<AtomicBool>,
    /// How many requests are out at each pod.
    out: Vec<AtomicUsize>,
    node_is_down: AtomicBool,
    twins: [Twins; 2],
    /// The share of the updates that are of twins.
    twin_share: f64,
    figures: Mutex<Figures>,
}

impl Soak {
    /// A soak of so many pods, all of them ready, by so many updates a second.
    pub(super) fn new(group: &str, pods: usize, rate: u32) -> Self {
        Self {
            ready: (0..pods).map(|_| AtomicBool::new(true)).collect(),
            out: (0..pods).map(|_| AtomicUsize::new(0)).collect(),
            node_is_down: AtomicBool::new(false),
            twins: [Kind::Counter, Kind::Set].map(|kind| Twins::new(kind, group)),
            twin_share: service::twin_share(rate),
            figures: Mutex::new(Figures::new(pods)),
        }
    }

    fn figures(&self) -> MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says whether a node is as good as down from now on.
    pub(super) fn set_node_down(&self, is_down: bool) {
        self.node_is_down.store(is_down, Ordering::SeqCst);
    }

    fn is_node_down(&self) -> bool {
        self.node_is_down.load(Ordering::SeqCst)
    }

    /// A pod with a wrong clock refused an update.
    pub(super) fn gate_was_shut(&self) {
        self.figures().gates_shut += 1;
    }

    /// Looks up the memory of a pod.
    pub(super) fn weigh(&self, pod: usize, process: Option<u32>) {
        if let Some(process) = process {
            self.figures().pods[pod].weigh(process);
        }
    }

    /// Keeps reading the metrics of all pods. Figures of a pod that is killed are a little old.
    pub(super) async fn scrape(&self, run: &Run) {
        while !run.stop.is_cancelled() {
            tokio::select! {
                biased;
                () = run.stop.cancelled() => return,
                () = self.scrape_once(run) => {}
            }
            sleep(SCRAPE_EVERY).await;
        }
    }

    /// Reads the metrics of all pods now. One that does not answer keeps its last figures.
    pub(super) async fn scrape_once(&self, run: &Run) {
        for (number, pod) in run.pods.iter().enumerate() {
            if self.ready[number].load(Ordering::Relaxed)
                && let Ok(text) = pod.metrics().await
            {
                self.figures().pods[number].scrape(&text);
            }
        }
    }

    /// The keys of all twins.
    pub(super) fn twin_keys(&self) -> Vec<Key> {
        self.twins.iter().flat_map(Twins::keys).collect()
    }

    /// Reads every twin from every pod and enters what is wrong.
    pub(super) async fn check_twins(&self, run: &Run, settled: bool) {
        for twins in &self.twins {
            let answers = verify::read_all(run, &twins.keys()).await;
            let mut figures = self.figures();
            figures.twin_reads += answers.len();
            for (index, values) in answers {
                let known = twins.known(index);
                for value in values.iter().flatten() {
                    figures.wrongs.merge(twins.judge(index, *value, &known, &known));
                }
                figures.twins_unread += values.iter().filter(|value| value.is_err()).count();
                if settled && values.iter().flatten().min() != values.iter().flatten().max() {
                    figures.wrongs.merge(twins.differ(index));
                }
            }
        }
    }

    /// Counts the rows of the ordinary keys.
    pub(super) async fn count_rows(&self, run: &Run, is_last: bool) {
        let rows = verify::count_rows(run).await;
        let mut figures = self.figures();
        if is_last { figures.rows_after = rows } else { figures.rows_before = rows }
    }

    /// Notes the tombstones that reads of the nodes met lately.
    pub(super) async fn count_tombstones(&self, script: &Path) -> anyhow::Result<()> {
        let lines = ask(script, "tombstones").await?;
        self.figures().tombstones = lines;
        Ok(())
    }

    /// What was found.
    pub(super) fn report(
        &self,
        args: &SoakArgs,
        work: &WorkloadArgs,
        kinds: Vec<String>,
        missing: Vec<String>,
    ) -> SoakReport {
        SoakReport::new(args, work, (kinds, missing), &self.figures(), &self.twins)
    }
}

/// The faults of nodes that a script knows.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeFaults {
    /// Those that it can cause on this machine.
    pub possible: Vec<NodeFault>,
    /// The names of those that it can't.
    pub missing: Vec<String>,
}

impl NodeFaults {
    /// Asks the script.
    pub(super) async fn of(script: &Path) -> anyhow::Result<Self> {
        let lines = ask(script, "faults").await?;
        let mut faults = Self::default();
        for line in &lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                [name, "missing"] => faults.missing.push((*name).to_owned()),
                [name, effect @ ("down" | "up"), nodes @ ..] if !nodes.is_empty() => {
                    let nodes: Result<_, _> = nodes.iter().map(|node| node.parse()).collect();
                    faults.possible.push(NodeFault {
                        name: (*name).to_owned(),
                        is_down: *effect == "down",
                        nodes: nodes.with_context(|| format!("no nodes: `{line}`"))?,
                    });
                }
                _ => bail!("`{} faults` says `{line}`", script.display()),
            }
        }
        Ok(faults)
    }
}

async fn ask(script: &Path, what: &str) -> anyhow::Result<Vec<String>> {
    let script: PathBuf = script.canonicalize().context("no such script")?;
    let output = Command::new(&script)
        .arg(what)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("cannot run {}", script.display()))?;
    ensure!(output.status.success(), "`{} {what}` failed: {}", script.display(), output.status);
    let text = String::from_utf8(output.stdout).context("not UTF-8")?;
    Ok(text.lines().map(str::to_owned).collect())
}
