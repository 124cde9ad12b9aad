//! Resets and deletions of keys under load. A client repeats such a request, with its id and to random pods, until one
//! says what became of it.
//!
//! Each returns what its key had, so the value of a key and everything that its resets returned must be the sum of its
//! acknowledged updates, each counted once. This needs an answer to every reset of the key, and no two of them at once.
//! A key with a reset that never got an answer is not reset again, and only the upper bound of its value is checked.
//!
//! Each reset is also checked by itself: it must return every update that was acknowledged before it, and none that was
//! sent after it. After that, the last acknowledged update of the key with an id is sent again, which must add nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::client::{PodClient, ResetReply};
use crate::ids::{Repeat, uuid_v7};
use crate::report::Latency;
use crate::run::{Run, latencies, locked};
use crate::workload::Key;

/// How long a reset is repeated. Faults of nodes are over by then.
const PATIENCE: Duration = Duration::from_secs(120);
/// Pause before a reset with an unknown outcome is sent again. It doubles each time, so that resets that wait for a node
/// that is down do not add to the load of the others.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(8);
/// Keys that are drawn until one is found that is not being reset.
const DRAWS_MAX: usize = 20;
/// The least share of resets that get an answer, and of keys all of whose resets do, in percent.
const ANSWERED_PERCENT: usize = 90;

/// The resets of a run.
#[derive(Debug)]
pub(crate) struct Resets {
    /// Time between two of them.
    every: Duration,
    figures: Mutex<Figures>,
    keys: Mutex<BTreeMap<Key, Times>>,
}

/// What happened to a key that was updated with ids or reset.
#[derive(Debug, Default)]
struct Times {
    /// When its last reset was answered.
    answered: Option<Instant>,
    /// Its last acknowledged update with an id.
    acked: Option<Repeat>,
}

#[derive(Debug)]
struct Figures {
    report: ResetReport,
    latency: Histogram<u64>,
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
    fn record_request(&self, reason: Option<&str>) {
        let mut figures = self.figures();
        figures.report.requests += 1;
        if let Some(reason) = reason {
            *figures.report.reasons.entry(reason.to_owned()).or_default() += 1;
        }
    }

    fn figures(&self) -> MutexGuard<'_, Figures> {
        locked(&self.figures)
    }

    fn keys(&self) -> MutexGuard<'_, BTreeMap<Key, Times>> {
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

/// Resets a key in use at each interval, until the load stops and every reset has an answer.
pub(crate) async fn reset_keys(run: &Arc<Run>, mut rng: SmallRng) {
    let Some(resets) = &run.resets else { return };
    let mut ticks = interval(resets.every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = run.stop.cancelled() => break,
            _ = ticks.tick() => {}
        }
        while let Some(ended) = tasks.try_join_next() {
            ended.expect("invariant: no reset panics");
        }
        let (run, rng) = (Arc::clone(run), SmallRng::from_rng(&mut rng));
        tasks.spawn(async move {
            if let Some(resets) = &run.resets {
                reset_one(&run, resets, rng).await;
            }
        });
    }
    tasks.join_all().await;
}

/// Resets a random key, or deletes it.
async fn reset_one(run: &Run, resets: &Resets, mut rng: SmallRng) {
    let drawn = (0..DRAWS_MAX).find_map(|_| {
        let index = run.workload.draw_in_use(run.elapsed(), &mut rng);
        let known = run.ledger(index).begin_reset()?;
        Some((index, known))
    });
    // So many keys are being reset that one more would prove nothing new.
    let Some((index, known)) = drawn else { return };
    let key = &run.workload.keys()[index];
    let acked = resets.keys().get(key).and_then(|times| times.acked.clone());
    let is_deletion = rng.random_bool(0.5);
    let begun = Instant::now();
    let end = insist(run, resets, key, is_deletion, &mut rng).await;
    let took_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    let mut figures = resets.figures();
    figures.report.ordered += 1;
    figures.report.deletions += u64::from(is_deletion);
    let cleared = match end {
        ResetReply::Done(cleared) => {
            figures.report.done += 1;
            cleared
        }
        ResetReply::Absent => {
            figures.report.absent += 1;
            0
        }
        ResetReply::Refused(_) => {
            figures.report.refused += 1;
            run.ledger(index).refuse_reset();
            return;
        }
        ResetReply::Running | ResetReply::Unknown(_) => {
            figures.report.unknown += 1;
            return;
        }
    };
    figures.latency.saturating_record(took_us);
    drop(figures);
    let judged = run.ledger(index).finish_reset(&known, cleared);
    if let Err(right) = judged {
        let Key { group, name, .. } = key;
        let (least, greatest) = right.into_inner();
        run.sight(format!(
            "a reset of {group}/{name} returned {cleared} while it had to lie between {least} and {greatest}"
        ));
    }
    resets.keys().entry(key.clone()).or_default().answered = Some(Instant::now());
    if let Some(acked) = acked {
        run.ids.repeat(Repeat { due: Instant::now(), ..acked });
    }
}

/// Sends a reset to random pods until one says what became of it.
async fn insist(
    run: &Run,
    resets: &Resets,
    key: &Key,
    is_deletion: bool,
    rng: &mut SmallRng,
) -> ResetReply {
    let (id, begun, mut is_in_doubt) = (uuid_v7(rng), Instant::now(), false);
    let mut pause = RETRY_PAUSE;
    loop {
        let reply = pod(run, rng).reset(key, id, is_deletion).await;
        let reason = match &reply {
            ResetReply::Done(_) | ResetReply::Absent => None,
            ResetReply::Running => Some("running"),
            ResetReply::Refused(why) | ResetReply::Unknown(why) => Some(why.as_str()),
        };
        resets.record_request(reason);
        if reason.is_none() {
            return reply;
        }
        is_in_doubt |= !matches!(reply, ResetReply::Refused(_));
        if begun.elapsed() > PATIENCE {
            let last = format!("{reply:?}");
            return if is_in_doubt { ResetReply::Unknown(last) } else { reply };
        }
        if reply != ResetReply::Running {
            sleep(pause.mul_f64(rng.random_range(0.5..1.5))).await;
            pause = (2 * pause).min(RETRY_PAUSE_MAX);
        }
    }
}

/// A random pod. In a soak it is one that is ready, if there is one.
fn pod<'a>(run: &'a Run, rng: &mut SmallRng) -> &'a PodClient {
    let is_ready = |pod: &usize| run.soak.as_ref().is_none_or(|soak| soak.is_ready(*pod));
    let ready: Vec<usize> = (0..run.pods.len()).filter(is_ready).collect();
    let any = rng.random_range(0..run.pods.len());
    &run.pods[ready.choose(rng).copied().unwrap_or(any)]
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
