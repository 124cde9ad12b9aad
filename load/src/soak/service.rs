//! The pods as one service, as a client of a load balancer sees them.
//!
//! A request goes to the ready pod with the fewest requests in flight, so a pod that hangs soon gets
//! none. A refused update is sent again to another pod, because a refused update was certainly not
//! counted. An update with an unknown outcome is sent again only if it has an id. A read that fails is
//! sent to another pod.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use rand::Rng;
use rand::rngs::SmallRng;
use tokio::time::{Instant, sleep};

use crate::checker::Outcome;
use crate::client::{Add, PodClient, Reply};
use crate::repeats;
use crate::run::Run;
use crate::soak::audited::AuditedKeys;
use crate::soak::state::Soak;
use crate::workload::{Key, Window};

/// Time between two readiness checks of a pod.
const PROBE_EVERY: Duration = Duration::from_millis(500);
/// An update is available if it is acknowledged within this time after it was due.
pub(super) const UPDATE_WITHIN: Duration = Duration::from_secs(5);
/// An update is given up if no connection was free within this time after it was due.
pub(super) const SEND_WITHIN: Duration = Duration::from_secs(1);
/// A read is available if a pod answers it within this time after it was due.
pub(super) const READ_WITHIN: Duration = Duration::from_secs(10);
/// Pause before a refused request goes to the next pod.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// One in this number of reads reads an audited key.
const AUDITED_READS_ONE_IN: u32 = 4;

/// An update to send.
struct Update {
    source: Source,
    key: Key,
    weight: u64,
}

/// Where the outcome of an update is recorded.
enum Source {
    /// At the update of this number, in the audited keys of this index.
    Audited(usize, usize),
    /// In the ledger of the ordinary key of this index.
    Ordinary(usize),
}

/// A request in flight, until this value is dropped.
struct InFlight<'a>(&'a AtomicUsize);

impl<'a> InFlight<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Chooses a pod. For each pod, `pods` holds whether it is ready and how many requests are in flight
/// at it. Ready pods come first, then pods other than `failed`, then those with fewer requests. The
/// first of equal pods wins, counted from `home`.
fn choose(pods: &[(bool, usize)], home: usize, failed: Option<usize>) -> usize {
    let ring = (0..pods.len()).map(|step| (home + step) % pods.len());
    let chosen = ring.min_by_key(|pod| (!pods[*pod].0, Some(*pod) == failed, pods[*pod].1));
    chosen.expect("invariant: there are pods")
}

/// Keeps asking all pods whether they are ready, until the load stops.
pub(crate) async fn probe(run: &Run, soak: &Soak) {
    while !run.stop.is_cancelled() {
        let checks = run.pods.iter().zip(&soak.ready).map(|(pod, ready)| async move {
            ready.store(pod.is_ready().await, Ordering::Relaxed);
        });
        join_all(checks).await;
        sleep(PROBE_EVERY).await;
    }
}

/// Picks a pod by [`choose`] and counts one more request in flight at it.
fn pick<'a>(
    run: &'a Run,
    soak: &'a Soak,
    home: usize,
    failed: Option<usize>,
) -> (usize, &'a PodClient, InFlight<'a>) {
    let pods = soak.ready.iter().zip(&soak.in_flight).map(|(ready, in_flight)| {
        (ready.load(Ordering::Relaxed), in_flight.load(Ordering::Relaxed))
    });
    let chosen = choose(&pods.collect::<Vec<_>>(), home, failed);
    (chosen, &run.pods[chosen], InFlight::begin(&soak.in_flight[chosen]))
}

/// Sends `count` updates in one request and records their outcomes.
pub(crate) async fn update(
    run: &Run,
    soak: &Soak,
    home: usize,
    intended: Instant,
    count: usize,
    rng: &mut SmallRng,
) {
    let node_was_down = soak.is_node_down();
    if intended.elapsed() >= SEND_WITHIN {
        // If these were sent, they would delay the later updates until all of them are too late.
        let mut figures = soak.figures();
        for _ in 0..count {
            figures.given_up += 1;
            figures.updates.record(false, node_was_down);
        }
        return;
    }
    let drawn: Vec<Update> = (0..count).flat_map(|_| draw(run, soak, rng)).collect();
    let window = run.ids.draw(rng);
    let ops: Vec<_> = drawn
        .iter()
        .map(|Update { source, key, weight }| {
            let id = match source {
                Source::Ordinary(_) => run.make_id(key, window, rng),
                Source::Audited(..) => run.ids.make(window, rng),
            };
            Add { key, weight: *weight, id }
        })
        .collect();
    let replies = match window {
        Window::None => deliver(run, soak, home, intended, &ops).await,
        window => {
            let (_, pod, in_flight) = pick(run, soak, home, None);
            let replies = pod.add(window, &ops).await;
            drop(in_flight);
            repeats::insist(run, window, &ops, replies, rng).await
        }
    };
    let took = intended.elapsed();
    let node_was_down = node_was_down || soak.is_node_down();
    for (update, reply) in drawn.iter().zip(&replies) {
        match update.source {
            Source::Audited(kind, number) => soak.audited[kind].finish(number, reply.outcome),
            Source::Ordinary(key) => run.ledger(key).finish(update.weight, reply.outcome),
        }
        let is_available = reply.outcome == Outcome::Acked && took <= UPDATE_WITHIN;
        soak.figures().updates.record(is_available, node_was_down);
    }
    run.figures().record(&replies, took);
}

/// Draws an ordinary update, or one audited update of each kind, and records that it begins.
fn draw(run: &Run, soak: &Soak, rng: &mut SmallRng) -> Vec<Update> {
    if rng.random_bool(soak.audited_share) {
        return (0..soak.audited.len()).map(|kind| begin_audited(soak, kind)).collect();
    }
    let op = run.workload.draw(run.elapsed(), rng);
    run.ledger(op.key).begin(op.weight);
    let key = run.workload.keys()[op.key].clone();
    vec![Update { source: Source::Ordinary(op.key), key, weight: op.weight }]
}

fn begin_audited(soak: &Soak, kind: usize) -> Update {
    let number = soak.audited[kind].begin();
    let (key, weight) = soak.audited[kind].op(number);
    Update { source: Source::Audited(kind, number), key, weight }
}

/// Sends updates to one pod, and refused updates again to another pod, until none is refused or the
/// time is over.
async fn deliver(
    run: &Run,
    soak: &Soak,
    home: usize,
    intended: Instant,
    ops: &[Add<'_>],
) -> Vec<Reply> {
    let (mut chosen, pod, in_flight) = pick(run, soak, home, None);
    let mut replies = pod.add(Window::None, ops).await;
    drop(in_flight);
    loop {
        let is_refused = |index: &usize| replies[*index].outcome == Outcome::Refused;
        let refused: Vec<usize> = (0..ops.len()).filter(is_refused).collect();
        if refused.is_empty() || intended.elapsed() >= UPDATE_WITHIN {
            return replies;
        }
        for index in &refused {
            soak.figures().record_retry(&replies[*index]);
        }
        sleep(RETRY_PAUSE).await;
        let (next, pod, _in_flight) = pick(run, soak, home, Some(chosen));
        chosen = next;
        let again: Vec<_> = refused.iter().map(|index| ops[*index]).collect();
        for (index, reply) in refused.into_iter().zip(pod.add(Window::None, &again).await) {
            replies[index] = reply;
        }
    }
}

/// Sends the next update of the audited counters to this pod, once.
pub(crate) async fn try_audited(soak: &Soak, pod: &PodClient) -> Reply {
    let counters = &soak.audited[0];
    let number = counters.begin();
    let (key, weight) = counters.op(number);
    let op = Add { key: &key, weight, id: None };
    let reply = pod.add(Window::None, &[op]).await.swap_remove(0);
    counters.finish(number, reply.outcome);
    reply
}

/// Reads a key and checks the value against what was known before and after the read.
pub(crate) async fn read(run: &Run, soak: &Soak, home: usize, due: Instant, mut rng: SmallRng) {
    let node_was_down = soak.is_node_down();
    let audited = &soak.audited[rng.random_range(0..soak.audited.len())];
    let is_audited = audited.len() > 0 && rng.random_ratio(1, AUDITED_READS_ONE_IN);
    let index = match is_audited {
        true => rng.random_range(0..audited.len()),
        false => run.workload.draw_key(run.elapsed(), &mut rng),
    };
    let mut failed = None;
    let is_available = loop {
        let (chosen, pod, in_flight) = pick(run, soak, home, failed);
        let got_value = match is_audited {
            true => watch_audited(run, soak, pod, audited, index).await,
            false => run.watch(pod, index).await,
        };
        drop(in_flight);
        if got_value || due.elapsed() >= READ_WITHIN {
            break got_value && due.elapsed() <= READ_WITHIN;
        }
        failed = Some(chosen);
        sleep(RETRY_PAUSE).await;
    };
    soak.figures().reads.record(is_available, node_was_down || soak.is_node_down());
}

/// Reads an audited key once. Returns whether the pod returned a value. A wrong value stops the load.
async fn watch_audited(
    run: &Run,
    soak: &Soak,
    pod: &PodClient,
    audited: &AuditedKeys,
    index: usize,
) -> bool {
    let before = audited.known(index);
    let read = pod.value(&audited.key(index), &run.consistency).await;
    let after = audited.known(index);
    let Ok(value) = read else {
        run.figures().reads_failed += 1;
        return false;
    };
    run.figures().reads += 1;
    let wrongs = audited.judge(index, value.unwrap_or(0), &before, &after);
    if wrongs.count() > 0 {
        soak.figures().wrongs.merge(wrongs);
        run.stop.cancel();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_hangs_or_fails_gets_no_more_than_others() {
        let idle = [(true, 0); 3];
        assert_eq!(
            (0..6).map(|home| choose(&idle, home, None)).collect::<Vec<_>>(),
            [0, 1, 2, 0, 1, 2]
        );
        assert_eq!(choose(&[(true, 5), (true, 1), (true, 2)], 0, None), 1);
        assert_eq!(choose(&[(false, 0), (true, 9), (true, 9)], 0, None), 1);
        assert_eq!(choose(&idle, 0, Some(0)), 1);
        assert_eq!(choose(&[(true, 0), (false, 0)], 0, Some(0)), 0, "no other is ready");
        assert_eq!(choose(&[(false, 3), (false, 1)], 0, None), 1, "none is ready");
    }
}
