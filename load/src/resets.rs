//! What is known of the resets and deletions of a run: `reset_keys` makes them.
//!
//! Each returns what its key had, so the value of a key and everything that its resets returned must be the sum of its
//! acknowledged updates, each counted once. This needs an answer to every reset of the key, and no two of them at once.
//! A key with a reset that never got an answer is not reset again, and only the upper bound of its value is checked.
//!
//! Each reset is also checked by itself: it must return every update that was acknowledged before it, and none that was
//! sent after it. After that, the last acknowledged update of the key with an id is sent again, which must add nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::time::Instant;

use crate::ids::Repeat;
use crate::latency::{Latency, latencies};
use crate::locked::locked;
use crate::workload::Key;

/// The least share of resets that get an answer, and of keys all of whose resets do, in percent.
const ANSWERED_PERCENT: usize = 90;

/// The resets of a run.
#[derive(Debug)]
pub(crate) struct Resets {
    /// Time between two of them.
    pub every: Duration,
    figures: Mutex<Figures>,
    keys: Mutex<BTreeMap<Key, Times>>,
}

/// What happened to a key that was updated with ids or reset.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// When its last reset was answered.
    pub answered: Option<Instant>,
    /// Its last acknowledged update with an id.
    pub acked: Option<Repeat>,
}

#[derive(Debug)]
pub(crate) struct Figures {
    pub report: ResetReport,
    /// Time from the first request to the answer, in µs.
    pub latency: Histogram<u64>,
}

/// What became of the resets of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ResetReport {
    /// Resets and deletions.
    pub ordered: u64,
    /// The deletions among them.
    pub deletions: u64,
    /// Keys that began again.
    pub done: u64,
    /// Keys that had nothing.
    pub absent: u64,
    /// Resets that certainly changed nothing, although they were repeated for two minutes.
    pub refused: u64,
    /// Resets that may have taken effect.
    pub unknown: u64,
    /// Requests for resets.
    pub requests: u64,
    /// Requests whose answer was not final, by reason.
    pub reasons: BTreeMap<String, u64>,
    /// Time from the first request of a reset to its answer.
    pub latency: Latency,
    /// Keys that were reset.
    pub keys: usize,
    /// Keys with a reset that may have taken effect.
    pub keys_in_doubt: usize,
}

impl Resets {
    /// Resets at this interval.
    pub(crate) fn new(every: Duration) -> Self {
        let figures = Figures { report: ResetReport::default(), latency: latencies() };
        Self { every, figures: Mutex::new(figures), keys: Mutex::default() }
    }

    /// Notes an acknowledged update, to send it again after a reset of its key.
    pub(crate) fn note_acked(&self, update: Repeat) {
        let key = update.key.clone();
        self.keys().entry(key).or_default().acked = Some(update);
    }

    /// How many of these updates were acknowledged before the last reset of their key was answered.
    pub(crate) fn reset_since_ack(&self, updates: &[Repeat]) -> u64 {
        let keys = self.keys();
        let is_reset = |update: &&Repeat| {
            keys.get(&update.key).and_then(|times| times.answered) > Some(update.acked)
        };
        updates.iter().filter(is_reset).count() as u64
    }

    /// What became of the resets. `keys` are those that were reset, and those with a reset that has no answer.
    pub(crate) fn report(&self, (keys, keys_in_doubt): (usize, usize)) -> ResetReport {
        let figures = self.figures();
        let latency = Latency::of(&figures.latency);
        ResetReport { latency, keys, keys_in_doubt, ..figures.report.clone() }
    }

    /// Records a request, and why its answer was not final.
    pub(crate) fn record_request(&self, reason: Option<&str>) {
        let mut figures = self.figures();
        figures.report.requests += 1;
        if let Some(reason) = reason {
            *figures.report.reasons.entry(reason.to_owned()).or_default() += 1;
        }
    }

    pub(crate) fn figures(&self) -> MutexGuard<'_, Figures> {
        locked(&self.figures)
    }

    pub(crate) fn keys(&self) -> MutexGuard<'_, BTreeMap<Key, Times>> {
        locked(&self.keys)
    }
}

impl ResetReport {
    /// Why a run with these resets does not pass.
    pub(crate) fn failures(&self) -> Vec<String> {
        let Self { ordered, done, absent, keys, keys_in_doubt, .. } = *self;
        let mut failures = Vec::new();
        if done == 0 {
            failures.push("no key was reset".to_owned());
        }
        let least = ANSWERED_PERCENT as u64;
        if (done + absent) * 100 < ordered * least {
            failures.push(format!(
                "{} of {ordered} resets were answered, below {least} %",
                done + absent
            ));
        }
        if (keys - keys_in_doubt) * 100 < keys * ANSWERED_PERCENT {
            failures.push(format!(
                "{keys_in_doubt} of {keys} keys have a reset that may have taken effect: too little is proved"
            ));
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_proves_something_only_with_nearly_all_answers() {
        let good = ResetReport {
            ordered: 100,
            done: 80,
            absent: 10,
            keys: 50,
            keys_in_doubt: 5,
            ..ResetReport::default()
        };
        assert_eq!(good.failures(), Vec::<String>::new());
        for (spoiled, says) in [
            (ResetReport { done: 79, ..good.clone() }, "89 of 100 resets were answered"),
            (ResetReport { keys_in_doubt: 6, ..good.clone() }, "6 of 50 keys"),
            (ResetReport { ordered: 0, done: 0, absent: 0, ..good.clone() }, "no key was reset"),
        ] {
            let failures = spoiled.failures();
            assert!(failures.len() == 1 && failures[0].contains(says), "{failures:?}");
        }
    }
}
