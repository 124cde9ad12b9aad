//! What a run found. The report is printed as a table or as JSON, and it decides the exit code.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter, Write as _};

use indicatif::HumanCount;
use serde::Serialize;

use crate::chaos::log::FaultLog;
use crate::ids::IdFigures;
use crate::latency::Latency;
use crate::resets::ResetReport;
use crate::run::Reason;
use crate::soak::report::SoakReport;
use crate::verify::{Finding, Folds, Pass};
use crate::workload::Shape;

/// A run proves too little if one in this number of keys is undecided.
const UNDECIDED_ONE_IN: usize = 100;
/// The limit of undecided keys in a soak. A hot key may get more unknown updates than the search can
/// decide before it is replaced. Its value must still be within its bounds, and audited keys are
/// always decided.
const UNDECIDED_ONE_IN_SOAK: usize = 20;

/// The report of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// The settings of the run.
    pub setup: Setup,
    /// Length of the load in seconds.
    pub seconds: f64,
    /// Updates with an outcome.
    pub attempted: u64,
    /// Updates that were acknowledged.
    pub acked: u64,
    /// Updates that were certainly not counted.
    pub refused: u64,
    /// Updates that may have been counted.
    pub unknown: u64,
    /// Requests that were due in an open loop and never sent.
    pub overdue: usize,
    /// Acknowledged updates per second.
    pub acked_per_second: f64,
    /// Latency of acknowledged updates.
    pub latency: Latency,
    /// What clients did with ids, if updates had some.
    pub ids: Option<IdFigures>,
    /// What became of resets, if there were some.
    pub resets: Option<ResetReport>,
    /// Why updates were not acknowledged.
    pub reasons: BTreeMap<String, Reason>,
    /// Reads during the load.
    pub reads: u64,
    /// Reads during the load that returned no value.
    pub reads_failed: u64,
    /// Values out of bounds during the load.
    pub sightings: Vec<String>,
    /// The faults.
    pub chaos: FaultLog,
    /// The results of the check, one for each time that everything was read.
    pub passes: Vec<Pass>,
    /// The results of the folds, one for each round.
    pub folds: Vec<Folds>,
    /// What the soak found, if the run was one.
    pub soak: Option<SoakReport>,
}

/// The settings of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Setup {
    /// Seed of every choice.
    pub seed: u64,
    /// Group name, or the beginning of all group names.
    pub group: String,
    /// Distribution of the updates over the keys.
    pub workload: Shape,
    /// Number of keys.
    pub keys: usize,
    /// Number of pods.
    pub pods: usize,
    /// The store, as far as it is known here.
    pub store: String,
    /// Number of connections.
    pub connections: usize,
    /// Updates per request.
    pub batch: usize,
    /// Updates per second in open loop, `None` in closed loop.
    pub rate: Option<u32>,
}

impl Report {
    /// Why the run does not pass, as sentences. The list is empty if and only if the run passes: every
    /// number is right, and enough was proved.
    pub(crate) fn failures(&self) -> Vec<String> {
        let mut failures = self.sightings.clone();
        let undecided_one_in =
            if self.soak.is_some() { UNDECIDED_ONE_IN_SOAK } else { UNDECIDED_ONE_IN };
        for pass in &self.passes {
            let name = &pass.name;
            if pass.wrong > 0 {
                failures.push(format!("{name}: {} keys have a wrong value", pass.wrong));
            }
            if pass.unread > 0 {
                failures.push(format!("{name}: {} keys could not be read", pass.unread));
            }
            if pass.undecided * undecided_one_in >= pass.keys() {
                failures.push(format!(
                    "{name}: {} of {} keys have too many unknown updates to be decided",
                    pass.undecided,
                    pass.keys()
                ));
            }
        }
        if self.passes.is_empty() {
            failures.push("nothing was checked".to_owned());
        }
        if self.acked == 0 {
            failures.push("no update was acknowledged".to_owned());
        }
        for folds in &self.folds {
            if folds.failed > 0 {
                failures.push(format!("{} keys could not be folded", folds.failed));
            }
            if folds.settled && folds.unfinished > 0 {
                failures.push(format!(
                    "{} keys still have shards that are not final: --settle is too short",
                    folds.unfinished
                ));
            }
        }
        failures.extend(self.chaos.problems.iter().cloned());
        failures.extend(self.ids.iter().flat_map(IdFigures::failures));
        failures.extend(self.resets.iter().flat_map(ResetReport::failures));
        let ids = self.ids.as_ref().filter(|_| self.resets.is_some());
        if ids.is_some_and(|ids| ids.repeats_after_ack > 0 && ids.repeats_after_reset == 0) {
            failures
                .push("no update was repeated after a reset that came after its ack".to_owned());
        }
        failures.extend(self.soak.iter().flat_map(SoakReport::failures));
        failures
    }

    /// The report as one JSON object, with its failures.
    pub(crate) fn to_json(&self) -> anyhow::Result<String> {
        #[derive(Serialize)]
        struct Judged<'a> {
            #[serde(flatten)]
            report: &'a Report,
            failures: Vec<String>,
        }
        Ok(serde_json::to_string_pretty(&Judged { report: self, failures: self.failures() })?)
    }

    fn write_setup(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Setup { seed, group, workload, keys, pods, store, connections, batch, rate } =
            &self.setup;
        let shape = format!("{workload:?}").to_lowercase();
        let pace = rate.map_or("closed loop".to_owned(), |rate| {
            format!("open loop at {} updates/s", HumanCount(rate.into()))
        });
        writeln!(out, "orderfree load")?;
        writeln!(out, "  pods         {pods}, {store}")?;
        writeln!(out, "  workload     {shape}, {} keys in {group}", count(*keys))?;
        writeln!(out, "  pace         {pace}, {connections} connections, {batch} per request")?;
        writeln!(out, "  seed         {seed}")
    }

    fn write_figures(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Latency { p50_us, p90_us, p99_us, p999_us, max_us } = self.latency;
        writeln!(
            out,
            "  updates      {} in {:.1} s: {} acked, {} refused, {} unknown",
            HumanCount(self.attempted),
            self.seconds,
            HumanCount(self.acked),
            HumanCount(self.refused),
            HumanCount(self.unknown),
        )?;
        writeln!(out, "  rate         {:.0} acked updates/s", self.acked_per_second)?;
        if self.overdue > 0 {
            writeln!(out, "  overdue      {} requests were never sent", count(self.overdue))?;
        }
        writeln!(
            out,
            "  latency      p50 {}   p90 {}   p99 {}   p99.9 {}   max {}",
            millis(p50_us),
            millis(p90_us),
            millis(p99_us),
            millis(p999_us),
            millis(max_us),
        )?;
        if let Some(ids) = &self.ids {
            let [distinct, sent, repeats, again] =
                [ids.ids, ids.sent, ids.repeats, ids.repeats_after_ack].map(HumanCount);
            writeln!(
                out,
                "  ids          {distinct}, sent {sent} times: {repeats} repeats until acked, {again} after \
                 that; {} unknown, {} expired, {} conflicts",
                ids.unknown, ids.expired, ids.conflicts
            )?;
        }
        if let Some(resets) = &self.resets {
            let ResetReport { ordered, deletions, done, absent, refused, unknown, .. } = *resets;
            writeln!(
                out,
                "  resets       {ordered}, {deletions} of them deletions: {done} done, {absent} absent, {refused} \
                 refused, {unknown} unknown; p50 {}   p99 {}",
                millis(resets.latency.p50_us),
                millis(resets.latency.p99_us),
            )?;
            writeln!(
                out,
                "               {} keys, {} of them in doubt; {} requests",
                count(resets.keys),
                count(resets.keys_in_doubt),
                HumanCount(resets.requests),
            )?;
        }
        for (class, reason) in &self.reasons {
            let outcome = format!("{:?}", reason.outcome).to_lowercase();
            let updates = HumanCount(reason.count);
            writeln!(out, "  {outcome:<12} {updates} × {class}: {}", reason.example)?;
        }
        Ok(())
    }

    fn write_faults(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let FaultLog { kills, pauses, faults, exits, events, .. } = &self.chaos;
        writeln!(
            out,
            "  faults       {kills} pods killed, {pauses} paused, {faults} fault commands, \
             {exits} pods ended unexpectedly"
        )?;
        for event in events {
            writeln!(out, "    {:>8.1} s  {}", event.at_s, event.what)?;
        }
        Ok(())
    }

    fn write_check(&self, out: &mut Formatter<'_>) -> fmt::Result {
        if self.reads + self.reads_failed > 0 {
            writeln!(
                out,
                "  read         {} values during the load, {} reads failed",
                HumanCount(self.reads),
                HumanCount(self.reads_failed)
            )?;
        }
        for Folds { done, unfinished, failed, errors, .. } in &self.folds {
            let (done, failed, unfinished) = (count(*done), count(*failed), count(*unfinished));
            writeln!(
                out,
                "  folds        {done} keys folded, {unfinished} of them with shards that are not \
                 final, {failed} failed"
            )?;
            for error in errors {
                writeln!(out, "    {error}")?;
            }
        }
        writeln!(out)?;
        writeln!(
            out,
            "  {:<22} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "keys", "read", "right", "undecided", "wrong", "unread", "unsettled"
        )?;
        for pass in &self.passes {
            let figures =
                [pass.keys(), pass.right, pass.undecided, pass.wrong, pass.unread, pass.unsettled];
            write!(out, "  {:<22}", pass.name)?;
            for figure in figures {
                write!(out, " {:>9}", count(figure).to_string())?;
            }
            writeln!(out)?;
        }
        for finding in self.passes.iter().flat_map(|pass| &pass.findings) {
            writeln!(out, "    {finding}")?;
        }
        Ok(())
    }
}

impl Display for Report {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        self.write_setup(out)?;
        self.write_figures(out)?;
        self.write_faults(out)?;
        self.write_check(out)?;
        writeln!(out)?;
        let failures = self.failures();
        for failure in &failures {
            writeln!(out, "  FAILED: {failure}")?;
        }
        if failures.is_empty() {
            writeln!(out, "  every number is right")?;
        }
        Ok(())
    }
}

impl Display for Finding {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let mut what = String::new();
        match (&self.fault, &self.difference) {
            (Some(fault), Some(difference)) => {
                let fault = format!("{fault:?}").to_lowercase();
                write!(what, "{fault}, difference {difference}")?;
            }
            _ => what.push_str("unread"),
        }
        write!(out, "{}: {what}; acked {}; pods say", self.key, self.acked)?;
        for (pod, answer) in self.answers.iter().enumerate() {
            write!(out, " [{pod}] {answer}")?;
        }
        Ok(())
    }
}

fn count(number: usize) -> HumanCount {
    HumanCount(u64::try_from(number).unwrap_or(u64::MAX))
}

/// A latency in milliseconds, for people.
pub(crate) fn millis(us: u64) -> String {
    let millis = us as f64 / 1_000.0;
    if millis < 10.0 { format!("{millis:.2} ms") } else { format!("{millis:.0} ms") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(pass: Pass) -> Report {
        Report {
            setup: Setup {
                seed: 1,
                group: "load-1".to_owned(),
                workload: Shape::Mixed,
                keys: 1_000,
                pods: 1,
                store: "embedded store".to_owned(),
                connections: 1,
                batch: 1,
                rate: None,
            },
            seconds: 1.0,
            attempted: 1,
            acked: 1,
            refused: 0,
            unknown: 0,
            overdue: 0,
            acked_per_second: 1.0,
            latency: Latency::default(),
            ids: Some(IdFigures::default()),
            resets: Some(ResetReport { ordered: 1, done: 1, ..ResetReport::default() }),
            reasons: BTreeMap::new(),
            reads: 0,
            reads_failed: 0,
            sightings: Vec::new(),
            chaos: FaultLog::default(),
            passes: vec![pass],
            folds: vec![Folds::default()],
            soak: None,
        }
    }

    fn pass(right: usize, undecided: usize, wrong: usize, unread: usize) -> Pass {
        Pass {
            name: "after the load".to_owned(),
            right,
            undecided,
            wrong,
            unread,
            ..Pass::default()
        }
    }

    #[test]
    fn only_a_proof_passes() {
        let cases = [
            (pass(1_000, 0, 0, 0), true),
            (pass(991, 9, 0, 0), true),
            (pass(990, 10, 0, 0), false),
            (pass(999, 0, 1, 0), false),
            (pass(999, 0, 0, 1), false),
            (pass(0, 0, 0, 0), false),
        ];
        for (pass, passes) in cases {
            let failures = report(pass.clone()).failures();
            assert_eq!(failures.is_empty(), passes, "{pass:?}: {failures:?}");
        }
    }

    #[test]
    fn whatever_spoils_the_proof_fails() {
        let good = report(pass(1_000, 0, 0, 0));
        let spoilers: [fn(&mut Report); 9] = [
            |report| report.passes.clear(),
            |report| report.acked = 0,
            |report| report.folds[0].failed = 1,
            |report| (report.folds[0].settled, report.folds[0].unfinished) = (true, 1),
            |report| report.chaos.problems.push("no".to_owned()),
            |report| report.sightings.push("no".to_owned()),
            |report| report.ids = Some(IdFigures { unknown: 1, ..IdFigures::default() }),
            |report| report.ids = Some(IdFigures { conflicts: 1, ..IdFigures::default() }),
            |report| {
                report.resets = Some(ResetReport { done: 1, ordered: 2, ..ResetReport::default() })
            },
        ];
        for (number, spoil) in spoilers.into_iter().enumerate() {
            let mut spoiled = good.clone();
            spoil(&mut spoiled);
            assert_eq!(spoiled.failures().len(), 1, "spoiler {number}");
            assert!(spoiled.to_string().contains("FAILED"));
        }
        assert!(good.to_string().ends_with("every number is right\n"));
        assert!(good.to_json().expect("JSON").contains(r#""failures": []"#));
    }
}
