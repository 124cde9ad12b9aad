//! What a soak tells: figures, targets, and a page of Markdown.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde::Serialize;

use super::super::args::WorkloadArgs;
use super::super::checker::DECIDABLE_UNKNOWN_MAX;
use super::super::report::{Report, millis};
use super::super::verify::{Pass, Rows};
use super::SoakArgs;
use super::figures::{Figures, Memory, PodFigures, Share, Shares};
use super::service::{READ_WITHIN, SEND_WITHIN, UPDATE_WITHIN};
use super::twins::{DIGITS, Twins, Wrongs};

/// What a soak found, beside the figures of the load.
#[derive(Clone, Debug, Serialize)]
pub(in super::super) struct SoakReport {
    command: String,
    machine: String,
    /// Ordinary keys that are in use at a time.
    keys_at_a_time: usize,
    /// How long a hot key is hot.
    hot_for: Option<String>,
    /// Kinds of faults that this machine can cause.
    kinds: Vec<String>,
    /// Kinds of faults of nodes that it can't.
    missing: Vec<String>,
    targets: Targets,
    updates: Shares,
    reads: Shares,
    /// Updates that were not sent because no connection was free in time.
    given_up: u64,
    /// Refusals after which the update went to another pod.
    retries: BTreeMap<String, u64>,
    /// Metrics of the pods.
    metrics: BTreeMap<&'static str, u64>,
    gates_shut: u64,
    /// Updates that are checked one by one, and their keys.
    twin_updates: usize,
    /// Those of them that were acknowledged.
    twins_acked: u64,
    twin_keys: usize,
    twin_reads: usize,
    twins_unread: usize,
    wrongs: Wrongs,
    pods: Vec<PodFigures>,
    rows_before: Rows,
    rows_after: Rows,
    tombstones: Vec<String>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Targets {
    updates_percent: f64,
    reads_percent: f64,
    folds: Option<u64>,
}

impl SoakReport {
    pub(super) fn new(
        args: &SoakArgs,
        work: &WorkloadArgs,
        (kinds, missing): (Vec<String>, Vec<String>),
        figures: &Figures,
        twins: &[Twins],
    ) -> Self {
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
                folds: args.folds_min.map(std::num::NonZeroU64::get),
            },
            updates: figures.updates,
            reads: figures.reads,
            given_up: figures.given_up,
            retries: figures.retries.clone(),
            metrics: figures.metrics(),
            gates_shut: figures.gates_shut,
            twin_updates: twins.iter().map(Twins::updates).sum(),
            twins_acked: twins.iter().map(Twins::acked).sum(),
            twin_keys: twins.iter().map(Twins::len).sum(),
            twin_reads: figures.twin_reads,
            twins_unread: figures.twins_unread,
            wrongs: figures.wrongs.clone(),
            pods: figures.pods.clone(),
            rows_before: figures.rows_before,
            rows_after: figures.rows_after,
            tombstones: figures.tombstones.clone(),
        }
    }

    /// Why the soak does not pass, besides what the load says.
    pub(in super::super) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let Wrongs { lost, doubled, phantom, unexplained } = &self.wrongs;
        for (name, count) in [
            ("updates were acknowledged and lost", lost.len()),
            ("updates were counted twice", doubled.len()),
            ("updates were refused or never sent, and counted", phantom.len()),
            ("twins have values that pods disagree on or no updates give", unexplained.len()),
            ("twins could not be read from some pod", self.twins_unread),
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
        let folds = self.metrics.get("folds").copied().unwrap_or(0);
        if self.targets.folds.is_some_and(|least| folds < least) {
            failures.push(format!("only {folds} folds"));
        }
        failures
    }
}

/// What it ran on.
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

/// The whole report as a page.
pub(in super::super) fn page(report: &Report, soak: &SoakReport) -> String {
    let mut page = String::new();
    write_page(&mut page, report, soak).expect("invariant: writing to a String does not fail");
    page
}

fn write_page(out: &mut String, report: &Report, soak: &SoakReport) -> fmt::Result {
    let failures = report.failures();
    writeln!(out, "# Soak\n")?;
    writeln!(out, "- Command: `{}`", soak.command)?;
    writeln!(out, "- Seed: {}", report.setup.seed)?;
    writeln!(out, "- Machine: {}", soak.machine)?;
    let rate = report.setup.rate.unwrap_or(0);
    let hot_for = soak.hot_for.as_ref().map(|hot_for| format!(" for {hot_for}, then others"));
    writeln!(
        out,
        "- Load: {} pods, {} keys at a time (a tenth of them hot{}), {rate} updates/s in open loop \
         for {:.0} s, {} in a request, {} connections",
        report.setup.pods,
        soak.keys_at_a_time,
        hot_for.unwrap_or_default(),
        report.seconds,
        report.setup.batch,
        report.setup.connections
    )?;
    let verdict = if failures.is_empty() { "**passed**" } else { "**FAILED**" };
    writeln!(out, "- Result: {verdict}\n")?;
    for failure in &failures {
        writeln!(out, "- FAILED: {failure}")?;
    }
    write_counts(out, report, soak)?;
    write_availability(out, soak)?;
    write_faults(out, report, soak)?;
    write_store(out, report, soak)
}

fn write_counts(out: &mut String, report: &Report, soak: &SoakReport) -> fmt::Result {
    let Wrongs { lost, doubled, phantom, unexplained } = &soak.wrongs;
    writeln!(out, "\n## Counts\n\n| what | count |\n| --- | ---: |")?;
    let proved = soak.twins_acked + report.passes.last().map_or(0, |pass| pass.proved);
    let rows: [(&str, String); 14] = [
        ("updates with an outcome", report.attempted.to_string()),
        ("acknowledged", report.acked.to_string()),
        ("unknown", report.unknown.to_string()),
        ("refused in the end", report.refused.to_string()),
        ("given up: no connection was free in time", soak.given_up.to_string()),
        ("refusals after which the update went to another pod", sum(&soak.retries)),
        ("values read and checked during the load", report.reads.to_string()),
        ("reads that failed at one pod and went to the next", report.reads_failed.to_string()),
        ("values out of their bounds during the load", report.sightings.len().to_string()),
        (
            "acknowledged updates that the last check proved: by their own digit, or with the sum \
             of their key",
            format!("{proved} ({:.2} %)", proved as f64 * 100.0 / report.acked as f64),
        ),
        ("updates checked one by one (twins)", soak.twin_updates.to_string()),
        ("**lost**", lost.len().to_string()),
        ("**doubled**", doubled.len().to_string()),
        ("**phantom**", phantom.len().to_string()),
    ];
    for (what, count) in rows {
        writeln!(out, "| {what} | {count} |")?;
    }
    writeln!(out, "| twins without an explanation | {} |", unexplained.len())?;
    for (name, count) in &soak.metrics {
        writeln!(out, "| {} (metrics of all pods) | {count} |", name.replace('_', " "))?;
    }
    write_passes(out, report, soak)?;
    writeln!(
        out,
        "\nAn ordinary key takes random 60-bit weights: its value has to be the acknowledged sum \
         plus that of some unknown weights; with more than {DECIDABLE_UNKNOWN_MAX} unknown ones \
         it is only held to its bounds, and said to be undecided. A twin takes {DIGITS} updates, \
         each a power of eight of its own, so each is a digit: 0 though acknowledged is lost, 2 or \
         more doubled, 1 though refused or never sent a phantom. It has a set as its twin, to which \
         the same numbers are added as items. Every key is read from every pod \
         after the load, after a fold, and after all shards became final and were folded; then \
         all pods have to agree. \
         Latency of acknowledged updates from their due time: p50 {}, p99 {}, p99.9 {}, max {}.",
        millis(report.latency.p50_us),
        millis(report.latency.p99_us),
        millis(report.latency.p999_us),
        millis(report.latency.max_us),
    )?;
    for (class, reason) in &report.reasons {
        writeln!(
            out,
            "\n- {:?}, {} × {class}: `{}`",
            reason.outcome,
            reason.count,
            reason.example.replace('`', "'")
        )?;
    }
    Ok(())
}

fn write_passes(out: &mut String, report: &Report, soak: &SoakReport) -> fmt::Result {
    writeln!(out, "\n| ordinary keys, read from all pods | right | undecided | wrong | unread |")?;
    writeln!(out, "| --- | ---: | ---: | ---: | ---: |")?;
    for pass in &report.passes {
        let Pass { name, right, undecided, wrong, unread, .. } = pass;
        writeln!(out, "| {name} | {right} | {undecided} | {wrong} | {unread} |")?;
    }
    writeln!(
        out,
        "\nThe {} twin keys were read from all pods as often: {} readings of a key, {} values \
         missing.",
        soak.twin_keys, soak.twin_reads, soak.twins_unread
    )
}

fn sum(counts: &BTreeMap<String, u64>) -> String {
    let each: Vec<String> =
        counts.iter().map(|(class, count)| format!("{count} × {class}")).collect();
    format!("{} ({})", counts.values().sum::<u64>(), each.join(", "))
}

fn write_availability(out: &mut String, soak: &SoakReport) -> fmt::Result {
    writeln!(out, "\n## Availability\n\n| | in time | asked | share | target |")?;
    writeln!(out, "| --- | ---: | ---: | ---: | ---: |")?;
    let Targets { updates_percent, reads_percent, .. } = soak.targets;
    for (what, Share { asked, available }, target) in [
        ("updates", soak.updates.all, updates_percent),
        ("updates while a node was down", soak.updates.node_down, updates_percent),
        ("reads", soak.reads.all, reads_percent),
        ("reads while a node was down", soak.reads.node_down, reads_percent),
    ] {
        let percent = Share { asked, available }.percent();
        writeln!(out, "| {what} | {available} | {asked} | {percent:.3} % | {target} % |")?;
    }
    writeln!(
        out,
        "\nAn update is available if it is acknowledged within {} s of the time at which it was \
         due. A refused one is sent to the next pod; one whose outcome is unknown is never sent \
         again and is not available, nor is one that found no free connection within {} s. A read \
         is available if some pod answers within {} s of the time at which it was due; one that \
         fails is asked of the next pod. Pods that do not say every half second that they are \
         ready get no new requests, as behind a Kubernetes service. A node counts as down from the \
         fault (killed, paused, cut off, its client port shut) until it is whole again.",
        UPDATE_WITHIN.as_secs(),
        SEND_WITHIN.as_secs(),
        READ_WITHIN.as_secs()
    )
}

fn write_faults(out: &mut String, report: &Report, soak: &SoakReport) -> fmt::Result {
    writeln!(out, "\n## Faults\n\n| kind | count |\n| --- | ---: |")?;
    for kind in &soak.kinds {
        let count = report.chaos.cards.get(kind).copied().unwrap_or(0);
        writeln!(out, "| {kind} | {count} |")?;
    }
    for kind in &soak.missing {
        writeln!(out, "| node-{kind} | left out: this machine can't cause it |")?;
    }
    let total: u64 = report.chaos.cards.values().sum();
    writeln!(out, "| all | {total} |\n")?;
    writeln!(
        out,
        "Pods with a clock beyond the limit refused the update they were tried with {} times. Pods \
         that ended by themselves: {}.",
        soak.gates_shut, report.chaos.exits
    )
}

fn write_store(out: &mut String, report: &Report, soak: &SoakReport) -> fmt::Result {
    writeln!(out, "\n## Memory and rows\n")?;
    writeln!(
        out,
        "| pod | processes | most memory | process that was seen longest | memory at the start | at \
         the end |"
    )?;
    writeln!(out, "| --- | ---: | ---: | ---: | ---: | ---: |")?;
    for (number, pod) in soak.pods.iter().enumerate() {
        let PodFigures { longest, most_mib, processes, .. } = pod;
        let Memory { start_mib, end_mib, seconds } = longest;
        writeln!(
            out,
            "| {number} | {processes} | {most_mib} MiB | {seconds:.0} s | {start_mib} MiB | {end_mib} \
             MiB |"
        )?;
    }
    writeln!(out, "\n| rows of a key, tally included | average | most |\n| --- | ---: | ---: |")?;
    for (what, rows) in [("after the load", soak.rows_before), ("at the end", soak.rows_after)] {
        writeln!(out, "| {what} | {:.2} | {} |", rows.average(), rows.most)?;
    }
    writeln!(
        out,
        "\nTombstones in a read of the last five minutes, by each node, at the end of the load:\n"
    )?;
    for line in &soak.tombstones {
        writeln!(out, "- {line}")?;
    }
    writeln!(out, "\n## Events\n\n```text")?;
    for event in &report.chaos.events {
        writeln!(out, "{:>8.1} s  {}", event.at_s, event.what)?;
    }
    writeln!(out, "```")
}
