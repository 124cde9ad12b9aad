//! The tasks of the load: connections that send updates, and readers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use crate::checker::Outcome;
use crate::client::{Add, PodClient};
use crate::repeats;
use crate::reset_keys;
use crate::run::Run;
use crate::soak::{checks, service};
use crate::workload::{Op, Pace, Window};

/// Pause of a connection after a request that was refused as a whole. A pod that is down gets about
/// forty requests per second from it, instead of as many as the machine can send.
const REFUSED_PAUSE: Duration = Duration::from_millis(25);

/// How the load is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drive {
    /// Number of connections. Each has at most one request in flight.
    pub connections: usize,
    /// Updates per request.
    pub batch: usize,
    /// Time between two reads of each reader. There is one reader per pod, or none with `None`.
    pub read_every: Option<Duration>,
    /// Seed of all random choices.
    pub seed: u64,
}

/// Runs the load until `run.stop`. Every update has its outcome when this returns.
pub(crate) async fn drive(run: &Arc<Run>, pace: Pace, drive: Drive) -> anyhow::Result<Arc<Pace>> {
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
    for _ in 0..repeats::REPEATERS {
        let (run, rng) = (Arc::clone(run), SmallRng::seed_from_u64(seeds.random()));
        tasks.spawn(async move { repeats::repeat_acked(&run, rng).await });
    }
    let (resetting, rng) = (Arc::clone(run), SmallRng::seed_from_u64(seeds.random()));
    tasks.spawn(async move { reset_keys::reset_keys(&resetting, rng).await });
    let watched = Arc::clone(run);
    tasks.spawn(async move {
        if let Some(soak) = &watched.soak {
            tokio::join!(service::probe(&watched, soak), checks::scrape(&watched, soak));
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

/// One connection. It stays with its pod, so a pod that stalls delays only its share of the updates.
/// In a soak, a connection uses another pod while its own is not ready.
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
            service::update(&run, soak, number, intended, batch, &mut rng).await;
            continue;
        }
        let elapsed = run.elapsed();
        ops.clear();
        ops.extend((0..batch).map(|_| run.workload.draw(elapsed, &mut rng)));
        if send(&run, pod, &ops, intended, &mut rng).await {
            tokio::select! {
                biased;
                () = run.stop.cancelled() => return,
                () = tokio::time::sleep(REFUSED_PAUSE) => {}
            }
        }
    }
}

/// Sends one request and records its outcomes. Returns whether every update was refused.
async fn send(
    run: &Run,
    pod: &PodClient,
    ops: &[Op],
    intended: Instant,
    rng: &mut SmallRng,
) -> bool {
    for op in ops {
        run.ledger(op.key).begin(op.weight);
    }
    let keys = run.workload.keys();
    let window = run.ids.draw(rng);
    let mut named = |op: &Op| {
        let key = &keys[op.key];
        Add { key, weight: op.weight, id: run.make_id(key, window, rng) }
    };
    let wire: Vec<_> = ops.iter().map(&mut named).collect();
    let mut replies = pod.add(window, &wire).await;
    if window != Window::None {
        replies = repeats::insist(run, window, &wire, replies, rng).await;
    }
    let took = intended.elapsed();
    for (op, reply) in ops.iter().zip(&replies) {
        run.ledger(op.key).finish(op.weight, reply.outcome);
    }
    run.figures().record(&replies, took);
    replies.iter().all(|reply| reply.outcome == Outcome::Refused)
}

/// Reads random keys. A soak measures availability, so there a read does not wait for the one before.
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
                    service::read(&run, soak, number, due, rng).await;
                }
            });
        } else {
            run.watch(&run.pods[number], run.workload.draw_key(run.elapsed(), &mut rng)).await;
        }
    }
    reads.join_all().await;
}
