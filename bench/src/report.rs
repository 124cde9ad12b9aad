//! Tables of the results.
//!
//! A ratio is computed within each round, when the machine was the same for both peers. Tables show the median, the
//! least and the greatest of the rounds.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;

use crate::figures::{Comparison, Part, Sample, Spread};
use crate::peers::Peer;
use crate::plot;
use crate::scenario::Scenario;

/// This program writes the text between these marks.
const MARKS: (&str, &str) = ("<!-- measured -->", "<!-- end of what was measured -->");

#[derive(Debug, Clone, Args)]
pub(crate) struct ReportArgs {
    /// Files written by `compare --output`, one per mode. Texts of other measurements end in .md.
    #[arg(required = true, value_name = "FILE")]
    figures: Vec<PathBuf>,
    /// The page of tables. The text around the figures is kept.
    #[arg(long, default_value = "docs/bench/tables.md", value_name = "FILE")]
    report: PathBuf,
    /// Folder for the plots.
    #[arg(long, default_value = "docs/bench", value_name = "FOLDER")]
    plots: PathBuf,
}

/// Writes tables and plots of all modes into the report.
///
/// # Errors
/// If a file can't be read or written, or the report has no place for the figures.
pub(crate) fn write(args: &ReportArgs) -> anyhow::Result<()> {
    let mut text = String::new();
    let folder = args.report.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(&args.plots)?;
    for file in &args.figures {
        let figures = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        if file.extension().is_some_and(|extension| extension == "md") {
            writeln!(text, "{}\n", String::from_utf8(figures)?)?;
            continue;
        }
        let comparison: Comparison = serde_json::from_slice(&figures)?;
        let name = Path::new(file.file_stem().context("the figures' file has no name")?);
        let plot = args.plots.join(name).with_extension("svg");
        plot::draw(&comparison, &plot)?;
        // Links are relative to the page that has them.
        let link = plot.strip_prefix(folder).unwrap_or(&plot);
        writeln!(text, "{}\n![plot]({})\n", tables(&comparison), link.display())?;
    }
    let old = fs::read_to_string(&args.report);
    let old = old.with_context(|| format!("cannot read {}", args.report.display()))?;
    fs::write(&args.report, between_marks(&old, &text)?)?;
    Ok(())
}

fn between_marks(old: &str, text: &str) -> anyhow::Result<String> {
    let parts = old.split_once(MARKS.0).zip(old.split_once(MARKS.1));
    let ((before, _), (_, after)) =
        parts.with_context(|| format!("the report needs `{}` and `{}`", MARKS.0, MARKS.1))?;
    ensure!(before.len() < old.len() - after.len(), "the report's marks are in the wrong order");
    Ok(format!("{before}{}\n\n{}\n\n{}{after}", MARKS.0, text.trim(), MARKS.1))
}

/// Prints a text, and writes it to a file if one is given.
///
/// # Errors
/// If the file can't be written.
pub(crate) fn publish(text: &str, output: Option<&Path>) -> anyhow::Result<()> {
    println!("{text}");
    if let Some(file) = output {
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// One table per scenario.
#[must_use]
pub(crate) fn tables(comparison: &Comparison) -> String {
    let mut text = format!("## {}\n\n{}", comparison.mode, comparison.machine);
    // Rounds with a fault have their own length, which is in their titles.
    if comparison.scenarios().any(|scenario| scenario.trouble().is_none()) {
        let _ = write!(text, "; rounds of {} s", comparison.round_seconds);
    }
    text.push('\n');
    for scenario in comparison.scenarios() {
        table(&mut text, comparison, scenario)
            .expect("invariant: writing to a String does not fail");
    }
    text
}

fn table(text: &mut String, comparison: &Comparison, scenario: Scenario) -> std::fmt::Result {
    let names = |sample: &Sample| sample.spent.iter().map(|s| s.name.clone()).collect::<Vec<_>>();
    let processes = comparison.samples.first().map(names).unwrap_or_default();
    writeln!(text, "\n### {}\n", scenario.title())?;
    writeln!(
        text,
        "| | increments/s | ours against it | p50 | p99 | p99.9 | not acked | CPU µs an increment: {} |",
        processes.join(", ")
    )?;
    writeln!(text, "| --- | --- | --- | --- | --- | --- | --- | --- |")?;
    for peer in comparison.peers(scenario) {
        let samples: Vec<&Sample> = comparison.of(scenario, peer).collect();
        let median = |figure: &dyn Fn(&Sample) -> f64| {
            Spread::of(samples.iter().map(|s| figure(s))).map_or(0.0, |spread| spread.median)
        };
        let rate = Spread::of(samples.iter().map(|s| s.rate())).expect("invariant: it has samples");
        let ratio = match comparison.ratio(scenario, peer, Sample::rate) {
            Some(spread) if peer != Peer::Ours => {
                format!(
                    "{} ({} to {})",
                    times(spread.median),
                    times(spread.least),
                    times(spread.most)
                )
            }
            _ => String::new(),
        };
        let latency = |index: usize| milliseconds(median(&|s| s.latency_us[index] as f64));
        let cpu: Vec<String> = (0..processes.len())
            .map(|index| {
                let each =
                    |s: &Sample| s.spent[index].cpu_seconds * 1e6 / s.increments.max(1) as f64;
                format!("{:.1}", median(&each))
            })
            .collect();
        writeln!(
            text,
            "| {} | {} | {ratio} | {} | {} | {} | {} | {} |",
            peer.name(),
            rate.in_words(),
            latency(0),
            latency(1),
            latency(2),
            samples.iter().map(|s| s.failed).sum::<u64>(),
            // The CPU time of a killed node is lost.
            if scenario.trouble().is_some() { String::new() } else { cpu.join(", ") }
        )?;
    }
    if scenario.trouble().is_some() {
        parts(text, comparison, scenario)?;
    }
    for wrong in comparison.wrong.iter().filter(|wrong| wrong.scenario == scenario) {
        writeln!(text, "\n**Wrong**: {}.", wrong.what)?;
    }
    Ok(())
}

/// The requests due before, during and after the fault.
fn parts(text: &mut String, comparison: &Comparison, scenario: Scenario) -> std::fmt::Result {
    const PARTS: [&str; 3] = ["before", "meanwhile", "after"];
    writeln!(text, "\n| p99, p99.9, longest, not acked | {} |", PARTS.join(" | "))?;
    writeln!(text, "| --- | --- | --- | --- |")?;
    for peer in comparison.peers(scenario) {
        let samples: Vec<&Sample> = comparison.of(scenario, peer).collect();
        let cells = (0..PARTS.len()).map(|part| {
            let parts: Vec<&Part> = samples.iter().filter_map(|s| s.parts.get(part)).collect();
            let latency = |index: usize| {
                let all = parts.iter().map(|part| part.latency_us[index] as f64);
                milliseconds(Spread::of(all).map_or(0.0, |spread| spread.median))
            };
            let failed: u64 = parts.iter().map(|part| part.failed).sum();
            format!("{}, {}, {}, {failed}", latency(0), latency(1), latency(2))
        });
        writeln!(text, "| {} | {} |", peer.name(), cells.collect::<Vec<_>>().join(" | "))?;
    }
    Ok(())
}

fn times(ratio: f64) -> String {
    if ratio >= 10.0 { format!("{ratio:.0}×") } else { format!("{ratio:.2}×") }
}

fn milliseconds(us: f64) -> String {
    if us >= 10_000.0 { format!("{:.0} ms", us / 1e3) } else { format!("{:.1} ms", us / 1e3) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Wrong, thousands};
    use crate::machine::Spent;

    fn sample(peer: Peer, round: usize, increments: u64) -> Sample {
        Sample {
            scenario: Scenario::Hot,
            peer,
            round,
            increments,
            seconds: 2.0,
            latency_us: [1_500, 20_000, 30_000, 40_000],
            failed: 1,
            parts: Vec::new(),
            failure: None,
            spent: vec![Spent { name: "server".into(), cpu_seconds: 0.5 }],
            busy_before: 0.1,
        }
    }

    #[test]
    fn a_ratio_is_taken_within_its_round() {
        let samples = vec![
            sample(Peer::Ours, 0, 1_000),
            sample(Peer::Native, 0, 100),
            sample(Peer::Ours, 1, 4_000),
            sample(Peer::Native, 1, 200),
            sample(Peer::Ours, 2, 600),
        ];
        let comparison = Comparison {
            mode: "m".into(),
            machine: "x".into(),
            round_seconds: 2.0,
            samples,
            wrong: vec![Wrong { scenario: Scenario::Hot, peer: Peer::Native, what: "90".into() }],
        };
        let ratio = comparison.ratio(Scenario::Hot, Peer::Native, Sample::rate).expect("rounds");
        assert_eq!(ratio, Spread { median: 15.0, least: 10.0, most: 20.0 });
        let text = tables(&comparison);
        assert!(
            text.contains("| native | 75 (50 to 100) | 15× (10× to 20×) | 1.5 ms | 20 ms | 30 ms | 2 | 3750.0 |"),
            "{text}"
        );
        assert!(text.contains("| ours | 500 (300 to 2,000) |  |"), "{text}");
        assert!(text.ends_with("\n**Wrong**: 90.\n"), "{text}");
    }

    #[test]
    fn the_text_around_the_figures_stays() {
        let (begin, end) = MARKS;
        let old = format!("head\n{begin}\nold\n{end}\ntail\n");
        let new = between_marks(&old, "new\n").expect("both marks");
        assert_eq!(new, format!("head\n{begin}\n\nnew\n\n{end}\ntail\n"));
        assert!(between_marks("no marks", "new").is_err());
        assert!(between_marks(&format!("{end}{begin}"), "new").is_err());
    }

    #[test]
    fn numbers_have_commas() {
        for (figure, text) in
            [(0.0, "0"), (999.4, "999"), (1_000.0, "1,000"), (1_234_567.0, "1,234,567")]
        {
            assert_eq!(thousands(figure), text);
        }
    }
}
