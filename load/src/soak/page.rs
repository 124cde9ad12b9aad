//! The report of a soak as a page of Markdown.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use crate::checker::DECIDABLE_UNKNOWN_MAX;
use crate::ids::IdFigures;
use crate::report::{Report, millis};
use crate::resets::ResetReport;
use crate::soak::audited::{DIGITS, Wrongs};
use crate::soak::figures::{Memory, PodFigures, Share};
use crate::soak::report::{SoakReport, Targets};
use crate::soak::service::{READ_WITHIN, SEND_WITHIN, UPDATE_WITHIN};
use crate::verify::Pass;

/// The report of a load with a soak, as a page.
pub(crate) fn page(report: &Report, soak: &SoakReport) -> String {
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
    let hot_for = soak.hot_for.as_ref().map(|hot_for| format!(" for {hot_for}, then replaced"));
    writeln!(
        out,
        "- Load: {} pods, {} keys at a time (a tenth of them hot{}), {rate} updates/s in open loop \
         for {:.0} s, {} per request, {} connections",
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
    if let Some(resets) = &report.resets {
        write_resets(out, report, resets)?;
    }
    write_availability(out, soak)?;
    write_faults(out, report, soak)?;
    write_store(out, report, soak)
}

fn write_counts(out: &mut String, report: &Report, soak: &SoakReport) -> fmt::Result {
    let Wrongs { lost, doubled, phantom, unexplained } = &soak.wrongs;
    writeln!(out, "\n## Counts\n\n| what | count |\n| --- | ---: |")?;
    let proved = soak.audited_acked + report.passes.last().map_or(0, |pass| pass.proved);
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
            "acknowledged updates that the last check proved, by their digit or by the sum of their \
             key",
            format!("{proved} ({:.2} %)", proved as f64 * 100.0 / report.acked as f64),
        ),
        ("audited updates, checked one by one", soak.audited_updates.to_string()),
        ("**lost**", lost.len().to_string()),
        ("**doubled**", doubled.len().to_string()),
        ("**phantom**", phantom.len().to_string()),
    ];
    for (what, count) in rows {
        writeln!(out, "| {what} | {count} |")?;
    }
    writeln!(out, "| audited keys without an explanation | {} |", unexplained.len())?;
    if let Some(ids) = &report.ids {
        write_ids(out, ids)?;
    }
    for (name, count) in &soak.metrics {
        writeln!(out, "| {} (metrics of all pods) | {count} |", name.replace('_', " "))?;
    }
    write_passes(out, report, soak)?;
    writeln!(
        out,
        "\nAn update of an ordinary key adds a random 60-bit weight. The value of the key must be the \
         sum of the acknowledged weights plus the sum of some unknown ones. With more than \
         {DECIDABLE_UNKNOWN_MAX} unknown weights, the check only tests the bounds of the value, and \
         the key counts as undecided. An audited key takes {DIGITS} updates. Each adds a different \
         power of eight, so each update has a digit. A digit of 0 for an acknowledged update is a \
         loss. A digit of 2 or more is a double count. A digit above 0 for an update that was refused \
         or never sent is a phantom. For each audited counter there is an audited set, which gets the same numbers as \
         items. Every key is read from every pod after the load, after a fold, and after all shards \
         became final and were folded. Then all pods must agree. With ids of a window longer than a \
         minute, the last reads come after everything else was folded, and ask all replicas. An \
         update with an id is sent to random pods until it is acknowledged, so it adds to the value \
         exactly once. Latency of acknowledged updates since they were due: p50 {}, p99 {}, p99.9 {}, max {}.",
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

fn write_ids(out: &mut String, ids: &IdFigures) -> fmt::Result {
    for (what, count) in [
        ("distinct ids, each of one update", ids.ids),
        ("times that an update with an id was sent", ids.sent),
        ("repeats to random pods, until the update was acknowledged", ids.repeats),
        ("repeats of acknowledged updates, at once and later", ids.repeats_after_ack),
        ("of these, after a reset of their key", ids.repeats_after_reset),
        (
            "repeats of acknowledged updates, refused because the window was over",
            ids.expired_after_ack,
        ),
        ("**unknown with an id**", ids.unknown),
        ("of these, because the window was over", ids.expired),
        ("refused with an id", ids.refused),
        ("**conflicts**: an id taken for another update", ids.conflicts),
    ] {
        writeln!(out, "| {what} | {count} |")?;
    }
    Ok(())
}

fn write_resets(out: &mut String, report: &Report, resets: &ResetReport) -> fmt::Result {
    writeln!(out, "\n## Resets\n\n| what | count |\n| --- | ---: |")?;
    let last = report.passes.last().cloned().unwrap_or_default();
    for (what, count) in [
        ("resets and deletions", resets.ordered),
        ("deletions among them", resets.deletions),
        ("done: the answer said what was cleared", resets.done),
        ("the key had nothing", resets.absent),
        ("refused for two minutes", resets.refused),
        ("**unknown**", resets.unknown),
        ("requests for them, to random pods", resets.requests),
        ("keys that were reset", resets.keys as u64),
        (
            "keys with an unknown reset, of which only the upper bound was checked",
            resets.keys_in_doubt as u64,
        ),
        ("keys with a right sum, those that were never reset included", last.right as u64),
        ("**keys with a wrong sum**", last.wrong as u64),
    ] {
        writeln!(out, "| {what} | {count} |")?;
    }
    let share = (resets.done + resets.absent) as f64 * 100.0 / resets.ordered.max(1) as f64;
    writeln!(
        out,
        "\n{share:.2} % of the resets were answered. Time from the first request of a reset to its answer: p50 {}, p99 \
         {}, max {}.\n\nA key in use is reset or deleted at each interval, never twice at once. The request has an id and \
         is repeated to random pods until one says what became of it. The keys are of the eight kinds with an exact total: \
         counter, sum, stats, histogram, topk, gset, or_set and lww_set. Updates of a gset have no ids, because pods would \
         refuse them for a minute after each reset. The value of a key and everything that its resets returned must be the \
         sum of its acknowledged updates, each counted once, plus that of some unknown ones. A reset must also return every \
         update that was acknowledged before it, and none that was sent after it. After a reset, the last acknowledged \
         update of its key with an id is sent again. Audited keys are not reset.",
        millis(resets.latency.p50_us),
        millis(resets.latency.p99_us),
        millis(resets.latency.max_us),
    )?;
    if !resets.reasons.is_empty() {
        writeln!(out, "\nRequests whose answer was not final: {}.", sum(&resets.reasons))?;
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
        "\nThe {} audited keys were read from all pods at the same times: {} readings of a key, {} \
         values missing.",
        soak.audited_keys, soak.audited_reads, soak.audited_unread
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
        "\nAn update is available if it is acknowledged within {} s after it was due. A refused \
         update is sent to the next pod. An update with an unknown outcome is sent again only if it \
         has an id; otherwise it is not available. An update that found no free connection within {} s is not available \
         either. A read is available if a pod answers it within {} s after it was due. A read that \
         fails is sent to the next pod. The clients check every half second whether each pod is \
         ready. A pod that is not ready gets no new requests, as in a Kubernetes service. A node \
         counts as down from the fault (killed, paused, cut off, its client port shut) until it is \
         whole again.",
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
        writeln!(out, "| node-{kind} | left out: this machine cannot cause it |")?;
    }
    let total: u64 = report.chaos.cards.values().sum();
    writeln!(out, "| all | {total} |\n")?;
    writeln!(
        out,
        "Pods with a clock beyond the limit refused a test update {} times. Pods that ended \
         unexpectedly: {}.",
        soak.gates_shut, report.chaos.exits
    )
}

fn write_store(out: &mut String, report: &Report, soak: &SoakReport) -> fmt::Result {
    writeln!(out, "\n## Memory and rows\n")?;
    writeln!(
        out,
        "| pod | processes | most memory | longest observed process | memory at the start | at the \
         end |"
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
    writeln!(out, "\n| rows per key, tally included | average | most |\n| --- | ---: | ---: |")?;
    for (what, rows) in [("after the load", soak.rows_before), ("at the end", soak.rows_after)] {
        writeln!(out, "| {what} | {:.2} | {} |", rows.average(), rows.most)?;
    }
    writeln!(out, "\nTombstones per read in the last five minutes of the load, by node:\n")?;
    for line in &soak.tombstones {
        writeln!(out, "- {line}")?;
    }
    writeln!(out, "\n## Events\n\n```text")?;
    for event in &report.chaos.events {
        writeln!(out, "{:>8.1} s  {}", event.at_s, event.what)?;
    }
    writeln!(out, "```")
}
