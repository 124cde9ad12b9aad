//! The pods as one service: what a client behind a load balancer sees.
//!
//! A request goes to the pod with the fewest that are out, of those that say that they are ready: a
//! pod that hangs soon gets none. An update that is refused is sent again, to another pod: refused
//! means that it was certainly not counted. An update whose outcome is unknown is never sent again. A
//! read that fails is asked of another pod.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use rand::Rng;
use rand::rngs::SmallRng;
use tokio::time::{Instant, sleep};

use super::super::checker::Outcome;
use super::super::client::{PodClient, Reply};
use super::super::drive::Run;
use super::super::workload::Key;
use super::Soak;
use super::twins::Twins;

/// How often pods are asked whether they are ready.
const PROBE_EVERY: Duration = Duration::from_millis(500);
/// An update is available if it is acknowledged within this time of its due time.
pub(super) const UPDATE_WITHIN: Duration = Duration::from_secs(5);
/// An update that found no free connection within this time of its due time is given up.
pub(super) const SEND_WITHIN: Duration = Duration::from_secs(1);
/// A read is available if some pod answers it within this time of its due time.
pub(super) const READ_WITHIN: Duration = Duration::from_secs(10);
/// Pause before a refused request goes to the next pod.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Updates of twins in a second, if that is no more than half of all.
const TWINS_PER_SECOND: u32 = 20;
/// One read in this many is one of a twin.
const TWIN_READS_ONE_IN: u32 = 4;

/// An update to send.
struct Update {
    of: Of,
    key: Key,
    weight: u64,
}

/// What an update is entered under.
enum Of {
    /// The update with this number of these twins.
    Twin(usize, usize),
    /// The ordinary key with this index.
    Key(usize),
}

/// A request that is out, until this is dropped.
struct Out<'a>(&'a AtomicUsize);

impl<'a> Out<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Out<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Of the pods that are ready, from `home` on the first with the fewest requests out, but not the one
/// that has just failed if there is another. Each pod is told by whether it is ready and how many
/// requests are out.
fn choose(pods: &[(bool, usize)], home: usize, failed: Option<usize>) -> usize {
    let ring = (0..pods.len()).map(|step| (home + step) % pods.len());
    let chosen = ring.min_by_key(|pod| (!pods[*pod].0, Some(*pod) == failed, pods[*pod].1));
    chosen.expect("invariant: there are pods")
}

/// The share of the updates that are of twins, at a rate in updates a second.
pub(super) fn twin_share(rate: u32) -> f64 {
    (f64::from(TWINS_PER_SECOND) / f64::from(rate)).min(0.5)
}

impl Soak {
    /// Keeps asking all pods whether they are ready.
    pub(in super::super) async fn probe(&self, run: &Run) {
        while !run.stop.is_cancelled() {
            let asks = run.pods.iter().zip(&self.ready).map(|(pod, ready)| async move {
                ready.store(pod.is_ready().await, Ordering::Relaxed);
            });
            join_all(asks).await;
            sleep(PROBE_EVERY).await;
        }
    }

    /// The pod for a try, as [`choose`] says, with one more request out at it.
    fn pick<'run>(
        &'run self,
        run: &'run Run,
        home: usize,
        failed: Option<usize>,
    ) -> (usize, &'run PodClient, Out<'run>) {
        let pods = self.ready.iter().zip(&self.out);
        let pods =
            pods.map(|(ready, out)| (ready.load(Ordering::Relaxed), out.load(Ordering::Relaxed)));
        let chosen = choose(&pods.collect::<Vec<_>>(), home, failed);
        (chosen, &run.pods[chosen], Out::begin(&self.out[chosen]))
    }

    /// Sends so many updates in one request and enters their outcomes.
    pub(in super::super) async fn update(
        &self,
        run: &Run,
        home: usize,
        intended: Instant,
        count: usize,
        rng: &mut SmallRng,
    ) {
        let node_was_down = self.is_node_down();
        if intended.elapsed() >= SEND_WITHIN {
            // Sent this late, they would delay those behind them until all of them are too late.
            let mut figures = self.figures();
            for _ in 0..count {
                figures.given_up += 1;
                figures.updates.enter(false, node_was_down);
            }
            return;
        }
        let drawn: Vec<Update> = (0..count).flat_map(|_| self.draw(run, rng)).collect();
        let ops: Vec<_> = drawn.iter().map(|update| (&update.key, update.weight)).collect();
        let replies = self.deliver(run, home, intended, &ops).await;
        let took = intended.elapsed();
        let node_was_down = node_was_down || self.is_node_down();
        for (update, reply) in drawn.iter().zip(&replies) {
            match update.of {
                Of::Twin(twins, number) => self.twins[twins].finish(number, reply.outcome),
                Of::Key(key) => run.ledger(key).finish(update.weight, reply.outcome),
            }
            let is_available = reply.outcome == Outcome::Acked && took <= UPDATE_WITHIN;
            self.figures().updates.enter(is_available, node_was_down);
        }
        run.figures().record(&replies, took);
    }

    /// Draws an update, or one for each kind of twins, and enters that it begins.
    fn draw(&self, run: &Run, rng: &mut SmallRng) -> Vec<Update> {
        if rng.random_bool(self.twin_share) {
            return (0..self.twins.len()).map(|twins| self.begin_twin(twins)).collect();
        }
        let op = run.workload.draw(run.elapsed(), rng);
        run.ledger(op.key).begin(op.weight);
        let key = run.workload.keys()[op.key].clone();
        vec![Update { of: Of::Key(op.key), key, weight: op.weight }]
    }

    fn begin_twin(&self, twins: usize) -> Update {
        let number = self.twins[twins].begin();
        let (key, weight) = self.twins[twins].op(number);
        Update { of: Of::Twin(twins, number), key, weight }
    }

    /// Sends updates to one pod, and those that it refuses to another, until none is refused.
    async fn deliver(
        &self,
        run: &Run,
        home: usize,
        intended: Instant,
        ops: &[(&Key, u64)],
    ) -> Vec<Reply> {
        let (mut chosen, pod, out) = self.pick(run, home, None);
        let mut replies = pod.add(ops).await;
        drop(out);
        loop {
            let is_refused = |index: &usize| replies[*index].outcome == Outcome::Refused;
            let refused: Vec<usize> = (0..ops.len()).filter(is_refused).collect();
            if refused.is_empty() || intended.elapsed() >= UPDATE_WITHIN {
                return replies;
            }
            for index in &refused {
                self.figures().enter_retry(&replies[*index]);
            }
            sleep(RETRY_PAUSE).await;
            let (next, pod, _out) = self.pick(run, home, Some(chosen));
            chosen = next;
            let again: Vec<_> = refused.iter().map(|index| ops[*index]).collect();
            for (index, reply) in refused.into_iter().zip(pod.add(&again).await) {
                replies[index] = reply;
            }
        }
    }

    /// Sends the next update of the first twins to this pod, once.
    pub(in super::super) async fn try_twin(&self, pod: &PodClient) -> Reply {
        let twins = &self.twins[0];
        let number = twins.begin();
        let (key, weight) = twins.op(number);
        let reply = pod.add(&[(&key, weight)]).await.swap_remove(0);
        twins.finish(number, reply.outcome);
        reply
    }

    /// Reads a key and compares the value with what was known before and after.
    pub(in super::super) async fn read(
        &self,
        run: &Run,
        home: usize,
        due: Instant,
        mut rng: SmallRng,
    ) {
        let node_was_down = self.is_node_down();
        let twins = &self.twins[rng.random_range(0..self.twins.len())];
        let is_of_twin = twins.len() > 0 && rng.random_ratio(1, TWIN_READS_ONE_IN);
        let index = match is_of_twin {
            true => rng.random_range(0..twins.len()),
            false => run.workload.draw_key(run.elapsed(), &mut rng),
        };
        let mut failed = None;
        let is_available = loop {
            let (chosen, pod, out) = self.pick(run, home, failed);
            let got_value = match is_of_twin {
                true => self.watch_twin(run, pod, twins, index).await,
                false => run.watch(pod, index).await,
            };
            drop(out);
            if got_value || due.elapsed() >= READ_WITHIN {
                break got_value && due.elapsed() <= READ_WITHIN;
            }
            failed = Some(chosen);
            sleep(RETRY_PAUSE).await;
        };
        self.figures().reads.enter(is_available, node_was_down || self.is_node_down());
    }

    async fn watch_twin(&self, run: &Run, pod: &PodClient, twins: &Twins, index: usize) -> bool {
        let before = twins.known(index);
        let read = pod.value(&twins.key(index), &run.consistency).await;
        let after = twins.known(index);
        let Ok(value) = read else {
            run.figures().reads_failed += 1;
            return false;
        };
        run.figures().reads += 1;
        let wrongs = twins.judge(index, value.unwrap_or(0), &before, &after);
        if wrongs.count() > 0 {
            self.figures().wrongs.merge(wrongs);
            run.stop.cancel();
        }
        true
    }
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

    #[test]
    fn twins_are_a_small_share_of_many_updates() {
        assert!((twin_share(2_000) - 0.01).abs() < 1e-9 && (twin_share(10) - 0.5).abs() < 1e-9);
    }
}
