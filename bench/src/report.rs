//! Tables of what was measured.
//!
//! A ratio is taken within each round, where the machine was the same for both, and the median of the
//! rounds is told with the least and the greatest.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::compare::{Comparison, Sample};
use crate::peers::Peer;
use crate::scenario::Scenario;

/// The middle of some figures, and their ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    /// The median; of an even number the mean of both in the middle.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub most: f64,
}

impl Spread {
    /// None of no figures.
    #[must_use]
    pub(crate) fn of(figures: impl Iterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = figures.collect();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
            _ => sorted[middle],
        };
        Some(Spread { median, least, most })
    }
}

impl Comparison {
    fn of(&self, scenario: Scenario, peer: Peer) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |s| s.scenario == scenario && s.peer == peer)
    }

    /// What a figure of ours is of another peer's, round by round.
    #[must_use]
    pub(crate) fn ratio(
        &self,
        scenario: Scenario,
        peer: Peer,
        figure: impl Fn(&Sample) -> f64,
    ) -> Option<Spread> {
        let pairs = self.of(scenario, Peer::Ours).filter_map(|ours| {
            let other = self.of(scenario, peer).find(|other| other.round == ours.round)?;
            Some(figure(ours) / figure(other))
        });
        Spread::of(pairs)
    }
}

/// One table for each scenario.
#[must_use]
pub(crate) fn tables(comparison: &Comparison) -> String {
    let mut text = format!(
        "## {}\n\n{}; rounds of {} s\n",
        comparison.mode, comparison.machine, comparison.round_seconds
    );
    let scenarios: BTreeSet<Scenario> = comparison.samples.iter().map(|s| s.scenario).collect();
    for scenario in scenarios {
        table(&mut text, comparison, scenario)
            .expect("invariant: writing to a String does not fail");
    }
    text
}

fn table(text: &mut String, comparison: &Comparison, scenario: Scenario) -> std::fmt::Result {
    let peers: BTreeSet<Peer> =
        comparison.samples.iter().filter(|s| s.scenario == scenario).map(|s| s.peer).collect();
    let names = |sample: &Sample| sample.spent.iter().map(|s| s.name.clone()).collect::<Vec<_>>();
    let processes = comparison.samples.first().map(names).unwrap_or_default();
    writeln!(text, "\n### {}\n", scenario.title())?;
    writeln!(
        text,
        "| | increments/s | ours against it | p50 | p99 | p99.9 | not acked | CPU µs an increment: {} |",
        processes.join(", ")
    )?;
    writeln!(text, "| --- | --- | --- | --- | --- | --- | --- | --- |")?;
    for peer in peers {
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
            "| {} | {} ({} to {}) | {ratio} | {} | {} | {} | {} | {} |",
            peer.name(),
            thousands(rate.median),
            thousands(rate.least),
            thousands(rate.most),
            latency(0),
            latency(1),
            latency(2),
            samples.iter().map(|s| s.failed).sum::<u64>(),
            cpu.join(", ")
        )?;
    }
    Ok(())
}

fn times(ratio: f64) -> String {
    if ratio >= 10.0 { format!("{ratio:.0}×") } else { format!("{ratio:.2}×") }
}

fn milliseconds(us: f64) -> String {
    if us >= 10_000.0 { format!("{:.0} ms", us / 1e3) } else { format!("{:.1} ms", us / 1e3) }
}

/// A whole number with commas.
fn thousands(figure: f64) -> String {
    let digits = format!("{figure:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let comparison =
            Comparison { mode: "m".into(), machine: "x".into(), round_seconds: 2.0, samples };
        let ratio = comparison.ratio(Scenario::Hot, Peer::Native, Sample::rate).expect("rounds");
        assert_eq!(ratio, Spread { median: 15.0, least: 10.0, most: 20.0 });
        let text = tables(&comparison);
        assert!(
            text.contains("| native | 75 (50 to 100) | 15× (10× to 20×) | 1.5 ms | 20 ms | 30 ms | 2 | 3750.0 |"),
            "{text}"
        );
        assert!(text.contains("| ours | 500 (300 to 2,000) |  |"), "{text}");
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
