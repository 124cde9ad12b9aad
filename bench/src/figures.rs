//! Results of measurements, and their summaries.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::load::Due;
use crate::machine::Spent;
use crate::peers::Peer;
use crate::scenario::Scenario;

/// All results of one mode.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Comparison {
    /// The configuration of the stores.
    pub mode: String,
    /// The machine.
    pub machine: String,
    /// Length of a round in seconds.
    pub round_seconds: f64,
    /// One sample per round, peer and scenario.
    pub samples: Vec<Sample>,
    /// Values of other peers that were wrong after a fault.
    #[serde(default)]
    pub wrong: Vec<Wrong>,
}

/// A wrong value.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Wrong {
    pub scenario: Scenario,
    /// The peer that returned it.
    pub peer: Peer,
    /// What is wrong with the value.
    pub what: String,
}

/// One round of one peer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub scenario: Scenario,
    pub peer: Peer,
    /// The number of the round, from 0.
    pub round: usize,
    /// Increments acknowledged.
    pub increments: u64,
    /// From the first request to the last answer.
    pub seconds: f64,
    /// Latency of acknowledged requests in µs: median, 99th and 99.9th percentile, and the longest.
    pub latency_us: [u64; 4],
    /// Requests that were refused or not answered.
    pub failed: u64,
    /// Figures before, during and after the fault, if there was one.
    #[serde(default)]
    pub parts: Vec<Part>,
    /// The first answer that was not an acknowledgement.
    pub failure: Option<String>,
    /// CPU time of all processes involved.
    pub spent: Vec<Spent>,
    /// The share of the machine that was busy just before.
    pub busy_before: f64,
}

/// The requests that were due in one part of a round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Latency of acknowledged requests in µs: 99th and 99.9th percentile, and the longest.
    pub latency_us: [u64; 3],
    /// Requests that were refused or not answered.
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
    /// Acknowledged increments per second.
    #[must_use]
    pub(crate) fn rate(&self) -> f64 {
        self.increments as f64 / self.seconds
    }
}

/// The median, least and greatest of the rounds; a dash if there are none.
pub(crate) fn spread(rates: &[f64]) -> String {
    let spread = Spread::of(rates.iter().copied());
    spread.map_or_else(|| "–".to_owned(), |spread| spread.in_words())
}

/// A median with the least and the greatest value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    /// The median: the mean of the two middle values if their number is even.
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    /// `None` if there are no values.
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

    /// Formats the values as whole numbers.
    #[must_use]
    pub(crate) fn in_words(&self) -> String {
        let [median, least, most] = [self.median, self.least, self.most].map(thousands);
        format!("{median} ({least} to {most})")
    }
}

impl Comparison {
    /// The samples of a peer.
    pub(crate) fn of(&self, scenario: Scenario, peer: Peer) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |s| s.scenario == scenario && s.peer == peer)
    }

    /// The scenarios that were measured.
    pub(crate) fn scenarios(&self) -> impl Iterator<Item = Scenario> + use<> {
        let all: BTreeSet<Scenario> = self.samples.iter().map(|s| s.scenario).collect();
        all.into_iter()
    }

    /// The peers that were measured.
    pub(crate) fn peers(&self, scenario: Scenario) -> impl Iterator<Item = Peer> + use<> {
        let samples = self.samples.iter().filter(|s| s.scenario == scenario);
        let all: BTreeSet<Peer> = samples.map(|s| s.peer).collect();
        all.into_iter()
    }

    /// Our figure divided by another peer's, in each round that has both.
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

/// Formats a whole number with commas.
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
