//! The state that the tasks of a run share: everything that changes during the load.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use serde::Serialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::checker::{Ledger, Outcome};
use crate::client::{PodClient, Reply};
use crate::ids::Ids;
use crate::latency::latencies;
use crate::locked::locked;
use crate::resets::Resets;
use crate::soak::state::Soak;
use crate::workload::{Key, Window, Workload};

/// Kinds of reasons that are counted. Normally there are few.
const REASONS_MAX: usize = 50;
/// Wrong reads that are kept with their numbers.
const SIGHTINGS_MAX: usize = 20;

/// The shared state. See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Run {
    /// The keys, and how updates choose them.
    pub workload: Workload,
    /// The pods, in their order.
    pub pods: Vec<PodClient>,
    /// Consistency level of every read.
    pub consistency: String,
    /// Stops the load. Requests in flight still get their answers.
    pub stop: CancellationToken,
    /// The ids of updates, if they have some.
    pub ids: Ids,
    /// The resets of keys, if there are some.
    pub resets: Option<Resets>,
    /// The state of a soak, if this run is one.
    pub soak: Option<Soak>,
    started: Instant,
    ledgers: Vec<Mutex<Ledger>>,
    figures: Mutex<Figures>,
}

/// The counts of a load.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    /// Updates that were acknowledged.
    pub acked: u64,
    /// Updates that were certainly not counted.
    pub refused: u64,
    /// Updates that may have been counted.
    pub unknown: u64,
    /// Latency of all acknowledged updates, in µs.
    pub latency: Histogram<u64>,
    /// Latency of the updates acknowledged since the last line of progress, in µs.
    pub recent: Histogram<u64>,
    /// Why updates were not acknowledged.
    pub reasons: BTreeMap<String, Reason>,
    /// Reads during the load whose value was checked.
    pub reads: u64,
    /// Reads during the load that returned no value.
    pub reads_failed: u64,
    /// Values outside their bounds, one sentence each.
    pub sightings: Vec<String>,
}

/// A reason why updates were not acknowledged.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Reason {
    /// The outcome that clients got.
    pub outcome: Outcome,
    /// The number of updates.
    pub count: u64,
    /// The first answer or error of this class.
    pub example: String,
}

impl Figures {
    fn new() -> Self {
        let latency = latencies();
        Self {
            acked: 0,
            refused: 0,
            unknown: 0,
            recent: latency.clone(),
            latency,
            reasons: BTreeMap::new(),
            reads: 0,
            reads_failed: 0,
            sightings: Vec::new(),
        }
    }

    /// Records the outcomes of one request.
    pub(crate) fn record(&mut self, replies: &[Reply], took: Duration) {
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        for reply in replies {
            match reply.outcome {
                Outcome::Acked => {
                    self.acked += 1;
                    self.latency.saturating_record(took_us);
                    self.recent.saturating_record(took_us);
                }
                Outcome::Refused => self.refused += 1,
                Outcome::Unknown => self.unknown += 1,
            }
            self.record_reason(reply);
        }
    }

    fn record_reason(&mut self, reply: &Reply) {
        let Some(why) = &reply.why else { return };
        if let Some(reason) = self.reasons.get_mut(&why.class) {
            reason.count += 1;
        } else if self.reasons.len() < REASONS_MAX {
            let reason = Reason { outcome: reply.outcome, count: 1, example: why.detail.clone() };
            self.reasons.insert(why.class.clone(), reason);
        }
    }

    /// The number of updates with an outcome.
    pub(crate) fn attempted(&self) -> u64 {
        self.acked + self.refused + self.unknown
    }
}

impl Run {
    /// A run before its first update. `bases` are the values that the keys already have. `stop` ends
    /// the load.
    pub(crate) fn new(
        workload: Workload,
        pods: Vec<PodClient>,
        consistency: String,
        bases: &[i128],
        ids: Ids,
        soak: Option<Soak>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            workload,
            pods,
            consistency,
            stop,
            ids,
            resets: None,
            soak,
            started: Instant::now(),
            ledgers: bases.iter().map(|base| Mutex::new(Ledger::starting_at(*base))).collect(),
            figures: Mutex::new(Figures::new()),
        }
    }

    /// Adds resets to the run.
    pub(crate) fn with_resets(self, resets: Option<Resets>) -> Self {
        Self { resets, ..self }
    }

    /// Time since the run was created, which is when its load starts.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Makes the id of a new update of a key that can be reset.
    pub(crate) fn make_id(&self, key: &Key, window: Window, rng: &mut SmallRng) -> Option<Uuid> {
        match self.resets.is_some() && key.kind.ignores_ids() {
            true => None,
            false => self.ids.make(window, rng),
        }
    }

    /// The ledger of a key. Never held across an await.
    pub(crate) fn ledger(&self, key: usize) -> MutexGuard<'_, Ledger> {
        locked(&self.ledgers[key])
    }

    /// The number of keys that were reset, and of those with a reset that has no answer.
    pub(crate) fn keys_reset(&self) -> (usize, usize) {
        let ledgers = || (0..self.ledgers.len()).map(|key| self.ledger(key));
        (
            ledgers().filter(|ledger| ledger.was_reset()).count(),
            ledgers().filter(|ledger| ledger.is_resetting()).count(),
        )
    }

    /// The figures so far. Never held across an await.
    pub(crate) fn figures(&self) -> MutexGuard<'_, Figures> {
        locked(&self.figures)
    }

    /// Reads a key and checks the value against the bounds known before and after the read. Returns
    /// whether the pod returned a value. A wrong value stops the load.
    pub(crate) async fn watch(&self, pod: &PodClient, index: usize) -> bool {
        let key = &self.workload.keys()[index];
        let before = self.ledger(index).known();
        let read = pod.value(key, &self.consistency).await;
        let bounds = before.until(&self.ledger(index).known());
        let mut figures = self.figures();
        let Ok(value) = read else {
            figures.reads_failed += 1;
            return false;
        };
        figures.reads += 1;
        let value = value.unwrap_or(0);
        if bounds.contains(&value) {
            return true;
        }
        drop(figures);
        let Key { group, name, .. } = key;
        let (least, greatest) = bounds.into_inner();
        self.sight(format!(
            "{group}/{name} read as {value} from {} while it had to lie between {least} and {greatest}",
            pod.shown()
        ));
        true
    }

    /// Records something wrong that was seen during the load, and stops the load.
    pub(crate) fn sight(&self, what: String) {
        let mut figures = self.figures();
        if figures.sightings.len() < SIGHTINGS_MAX {
            figures.sightings.push(what);
        }
        self.stop.cancel();
    }
}
