//! The load itself: connections that send updates, and the readers beside them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::checker::{Ledger, Outcome};
use super::client::{PodClient, Reply};
use super::soak::Soak;
use super::workload::{Key, Op, Pace, Workload};

/// The longest latency that is told apart from longer ones: an hour, in µs.
const LATENCY_MAX_US: u64 = 3_600_000_000;
/// Decimal digits of a latency that are kept.
const LATENCY_DIGITS: u8 = 3;
/// Pause of a connection whose whole request was refused, so that a pod that is down is asked
/// about forty times a second, not as fast as the machine can.
const REFUSED_PAUSE: Duration = Duration::from_millis(25);
/// Kinds of reasons that are counted apart. There are few by nature.
const REASONS_MAX: usize = 50;
/// Wrong reads that are kept with their numbers.
const SIGHTINGS_MAX: usize = 20;

/// The state that connections and readers share: all of a run that changes while it lasts.
#[derive(Debug)]
pub(super) struct Run {
    /// Keys and how they are chosen.
    pub workload: Workload,
    /// The pods, in their order.
    pub pods: Vec<PodClient>,
    /// Consistency level of every read.
    pub consistency: String,
    /// Stops the load; what is in flight still gets its answer.
    pub stop: CancellationToken,
    /// What a soak needs besides.
    pub soak: Option<Soak>,
    started: Instant,
    ledgers: Vec<Mutex<Ledger>>,
    figures: Mutex<Figures>,
}

/// What is counted while the load runs.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    /// Updates by outcome.
    pub acked: u64,
    /// Updates that were certainly not counted.
    pub refused: u64,
    /// Updates that may have been counted.
    pub unknown: u64,
    /// Latency of the acknowledged updates in µs, all of them.
    pub latency: Histogram<u64>,
    /// The same since the last look at it.
    pub recent: Histogram<u64>,
    /// Why updates were not acknowledged.
    pub reasons: BTreeMap<String, Reason>,
    /// Reads during the load whose value was checked.
    pub reads: u64,
    /// Reads during the load that gave no value.
    pub reads_failed: u64,
    /// Values outside their bounds, as sentences.
    pub sightings: Vec<String>,
}

/// One reason for updates without acknowledgement.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Reason {
    /// What clients were told.
    pub outcome: Outcome,
    /// How many updates.
    pub count: u64,
    /// The first answer or error of this class.
    pub example: String,
}

/// How the load is driven.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drive {
    /// Connections: each has one request in flight at most.
    pub connections: usize,
    /// Updates in a request.
    pub batch: usize,
    /// How often each reader reads; one reader a pod. `None`: no readers.
    pub read_every: Option<Duration>,
    /// Every choice follows from it.
    pub seed: u64,
}

impl Figures {
    fn new() -> Self {
        let latency = Histogram::new_with_max(LATENCY_MAX_US, LATENCY_DIGITS)
            .expect("invariant: the bounds of the histogram are constants");
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

    /// Enters the outcomes of one request.
    pub(super) fn record(&mut self, replies: &[Reply], took: Duration) {
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

    /// All updates with an outcome.
    pub(super) fn attempted(&self) -> u64 {
        self.acked + self.refused + self.unknown
    }
}

impl Run {
    /// A run before its first update. `bases` are the values that the keys have already; `stop`
    /// ends the load.
    pub(super) fn new(
        workload: Workload,
        pods: Vec<PodClient>,
        consistency: String,
        bases: &[i128],
        soak: Option<Soak>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            workload,
            pods,
            consistency,
            stop,
            soak,
            started: Instant::now(),
            ledgers: bases.iter().map(|base| Mutex::new(Ledger::starting_at(*base))).collect(),
            figures: Mutex::new(Figures::new()),
        }
    }

    /// Time since the run was made, which is when its load starts.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The ledger of a key. Never held across an await.
    pub(super) fn ledger(&self, key: usize) -> MutexGuard<'_, Ledger> {
        locked(&self.ledgers[key])
    }

    /// The figures so far. Never held across an await.
    pub(super) fn figures(&self) -> MutexGuard<'_, Figures> {
        locked(&self.figures)
    }

    fn key(&self, index: usize) -> &Key {
        &self.workload.keys()[index]
    }

    /// Sends one request and enters its outcomes. Says whether all of it was refused.
    async fn send(&self, pod: &PodClient, ops: &[Op], intended: Instant) -> bool {
        for op in ops {
            self.ledger(op.key).begin(op.weight);
        }
        let wire: Vec<_> = ops.iter().map(|op| (self.key(op.key), op.weight)).collect();
        let replies = pod.add(&wire).await;
        let took = intended.elapsed();
        for (op, reply) in ops.iter().zip(&replies) {
            self.ledger(op.key).finish(op.weight, reply.outcome);
        }
        self.figures().record(&replies, took);
        replies.iter().all(|reply| reply.outcome == Outcome::Refused)
    }

    /// Reads one key and compares it with what was known before and after the read. Says whether
    /// there was a value.
    pub(super) async fn watch(&self, pod: &PodClient, index: usize) -> bool {
        let least = *self.ledger(index).bounds().start();
        let read = pod.value(self.key(index), &self.consistency).await;
        let greatest = *self.ledger(index).bounds().end();
        let mut figures = self.figures();
        let Ok(value) = read else {
            figures.reads_failed += 1;
            return false;
        };
        figures.reads += 1;
        let value = value.unwrap_or(0);
        if (least..=greatest).contains(&value) {
            return true;
        }
        if figures.sightings.len() < SIGHTINGS_MAX {
            let Key { group, name, .. } = self.key(index);
            figures.sightings.push(format!(
                "{group}/{name} read as {value} from {} while it had to lie between {least} and \
                 {greatest}",
                pod.shown()
            ));
        }
        self.stop.cancel();
        true
    }
}

/// A poisoned lock means that a task panicked; joining the tasks reports that panic.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the load until `run.stop`; every update has its outcome when it returns.
pub(super) async fn drive(run: &Arc<Run>, pace: Pace, drive: Drive) -> anyhow::Result<Arc<Pace>> {
    let pace = Arc::new(pace);
    let mut tasks = JoinSet::new();
    if let Pace::Open(_) = *pace {
        let (pace, stop) = (Arc::clone(&pace), run.stop.clone());
        tasks.spawn_blocking(move || {
            if let Pace::Open(schedule) = &*pace {
                schedule.release_until(&stop);
            }
        });
    }
    let mut seeds = SmallRng::seed_from_u64(drive.seed);
    for number in 0..drive.connections {
        let rng = SmallRng::seed_from_u64(seeds.random());
        tasks.spawn(connection(Arc::clone(run), Arc::clone(&pace), number, drive.batch, rng));
    }
    if let Some(every) = drive.read_every {
        for pod in 0..run.pods.len() {
            let rng = SmallRng::seed_from_u64(seeds.random());
            tasks.spawn(reader(Arc::clone(run), pod, every, rng));
        }
    }
    let watched = Arc::clone(run);
    tasks.spawn(async move {
        if let Some(soak) = &watched.soak {
            tokio::join!(soak.probe(&watched), soak.scrape(&watched));
        }
    });
    while let Some(ended) = tasks.join_next().await {
        if ended.is_err() {
            run.stop.cancel();
        }
        ended.context("a task of the load panicked")?;
    }
    Ok(pace)
}

/// One connection: bound to its pod, so that a pod that stalls holds up its own share only. In a
/// soak it leaves its pod while that is not ready.
async fn connection(
    run: Arc<Run>,
    pace: Arc<Pace>,
    number: usize,
    batch: usize,
    mut rng: SmallRng,
) {
    let pod = &run.pods[number % run.pods.len()];
    let mut ops = Vec::with_capacity(batch);
    loop {
        let intended = tokio::select! {
            biased;
            () = run.stop.cancelled() => return,
            intended = pace.next() => intended,
        };
        if let Some(soak) = &run.soak {
            soak.update(&run, number, intended, batch, &mut rng).await;
            continue;
        }
        let elapsed = run.elapsed();
        ops.clear();
        ops.extend((0..batch).map(|_| run.workload.draw(elapsed, &mut rng)));
        if run.send(pod, &ops, intended).await {
            tokio::select! {
                biased;
                () = run.stop.cancelled() => return,
                () = tokio::time::sleep(REFUSED_PAUSE) => {}
            }
        }
    }
}

/// Reads keys by chance. In a soak, which measures availability, no read waits for the one before it.
async fn reader(run: Arc<Run>, number: usize, every: Duration, mut rng: SmallRng) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(match run.soak {
        Some(_) => MissedTickBehavior::Burst,
        None => MissedTickBehavior::Delay,
    });
    let mut reads = JoinSet::new();
    loop {
        let due = tokio::select! {
            biased;
            () = run.stop.cancelled() => break,
            due = ticks.tick() => due,
        };
        if run.soak.is_some() {
            let (run, rng) = (Arc::clone(&run), SmallRng::from_rng(&mut rng));
            reads.spawn(async move {
                if let Some(soak) = &run.soak {
                    soak.read(&run, number, due, rng).await;
                }
            });
        } else {
            run.watch(&run.pods[number], run.workload.draw_key(run.elapsed(), &mut rng)).await;
        }
    }
    reads.join_all().await;
}
