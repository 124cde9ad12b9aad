//! What is measured, and how figures are summed up.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::load::Due;
use crate::machine::Spent;
use crate::peers::Peer;
use crate::scenario::Scenario;

/// Everything that was measured in one mode.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Comparison {
    /// How the stores were set up.
    pub mode: String,
    /// The machine.
    pub machine: String,
    /// Seconds of a round.
    pub round_seconds: f64,
    /// One for each round, peer and scenario.
    pub samples: Vec<Sample>,
    /// Values of other ways to count that were wrong after a node was in trouble.
    #[serde(default)]
    pub wrong: Vec<Wrong>,
}

/// A value that can't be right.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Wrong {
    /// What was sent.
    pub scenario: Scenario,
    /// Who says it.
    pub peer: Peer,
    /// What is wrong with it.
    pub what: String,
}

/// One round of one peer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// What was sent.
    pub scenario: Scenario,
    /// To whom.
    pub peer: Peer,
    /// Which round, from 0.
    pub round: usize,
    /// Increments acknowledged.
    pub increments: u64,
    /// From the first request to the last answer.
    pub seconds: f64,
    /// Latency of acknowledged requests in µs: median, 99th and 99.9th percentile, and the longest.
    pub latency_us: [u64; 4],
    /// Requests that were not acknowledged.
    pub failed: u64,
    /// The parts of the time, if a node was in trouble: before, meanwhile, and after.
    #[serde(default)]
    pub parts: Vec<Part>,
    /// The first answer of these.
    pub failure: Option<String>,
    /// Processor time of everyone who took part.
    pub spent: Vec<Spent>,
    /// Share of the machine that was busy just before.
    pub busy_before: f64,
}

/// What was due in one part of a round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Latency of acknowledged requests in µs: 99th and 99.9th percentile, and the longest.
    pub latency_us: [u64; 3],
    /// Requests that were not acknowledged.
    pub failed: u64,
}

impl Part {
    pub(crate) fn of(due: &Due) -> Part {
        let quantile = |q| due.latency.value_at_quantile(q);
        Part {
            latency_us: [quantile(0.99), quantile(0.999), due.latency.max()],
            failed: due.failed,
        }
    }
}

impl Sample {
    /// Increments acknowledged in a second.
    #[must_use]
    pub(crate) fn rate(&self) -> f64 {
        self.increments as f64 / self.seconds
    }
}

/// The median of the rounds, and the least and the greatest; a dash without any.
pub(crate) fn spread(rates: &[f64]) -> String {
    let spread = Spread::of(rates.iter().copied());
    spread.map_or_else(|| "–".to_owned(), |spread| spread.in_words())
}

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

    /// As whole numbers.
    #[must_use]
    pub(crate) fn in_words(&self) -> String {
        let [median, least, most] = [self.median, self.least, self.most].map(thousands);
        format!("{median} ({least} to {most})")
    }
}

impl Comparison {
    /// The rounds of a peer.
    pub(crate) fn of(&self, scenario: Scenario, peer: Peer) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |s| s.scenario == scenario && s.peer == peer)
    }

    /// What was measured.
    pub(crate) fn scenarios(&self) -> impl Iterator<Item = Scenario> + use<> {
        let all: BTreeSet<Scenario> = self.samples.iter().map(|s| s.scenario).collect();
        all.into_iter()
    }

    /// Who took part.
    pub(crate) fn peers(&self, scenario: Scenario) -> impl Iterator<Item = Peer> + use<> {
        let samples = self.samples.iter().filter(|s| s.scenario == scenario);
        let all: BTreeSet<Peer> = samples.map(|s| s.peer).collect();
        all.into_iter()
    }

    /// The ratio of our figure to another peer's, from the rounds that both took part in.
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

/// A whole number with commas.
pub(crate) fn thousands(figure: f64) -> String {
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
