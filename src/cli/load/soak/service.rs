//! The pods as one service: what a client behind a load balancer sees.
//!
//! A pod that does not say that it is ready gets no new requests. An update that is refused is sent
//! again, to the next pod: refused means that it was certainly not counted. An update whose outcome
//! is unknown is never sent again. A read that fails is asked of the next pod.

use std::sync::atomic::Ordering;
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
use super::twins::Wrongs;

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
/// One update in this many is one of a twin.
const TWINS_ONE_IN: u32 = 100;
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
    /// The update of the twins with this number.
    Twin(usize),
    /// The ordinary key with this index.
    Key(usize),
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

    /// The pod for a try: from `home` on, the first that is ready, else the next one.
    fn pick<'run>(&self, run: &'run Run, home: usize) -> (usize, &'run PodClient) {
        let count = run.pods.len();
        let mut ring = (0..count).map(|step| (home + step) % count);
        let chosen = ring.find(|pod| self.ready[*pod].load(Ordering::Relaxed));
        let chosen = chosen.unwrap_or(home % count);
        (chosen, &run.pods[chosen])
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
        let drawn: Vec<Update> = (0..count).map(|_| self.draw(run, rng)).collect();
        let ops: Vec<_> = drawn.iter().map(|update| (&update.key, update.weight)).collect();
        let replies = self.deliver(run, home, intended, &ops).await;
        let took = intended.elapsed();
        let node_was_down = node_was_down || self.is_node_down();
        for (update, reply) in drawn.iter().zip(&replies) {
            match update.of {
                Of::Twin(number) => self.twins.finish(number, reply.outcome),
                Of::Key(key) => run.ledger(key).finish(update.weight, reply.outcome),
            }
            let is_available = reply.outcome == Outcome::Acked && took <= UPDATE_WITHIN;
            self.figures().updates.enter(is_available, node_was_down);
        }
        run.figures().record(&replies, took);
    }

    /// Draws an update and enters that it begins.
    fn draw(&self, run: &Run, rng: &mut SmallRng) -> Update {
        if rng.random_ratio(1, TWINS_ONE_IN) {
            let number = self.twins.begin();
            let (key, weight) = self.twins.op(number);
            return Update { of: Of::Twin(number), key, weight };
        }
        let op = run.workload.draw(rng);
        run.ledger(op.key).begin(op.weight);
        let key = run.workload.keys()[op.key].clone();
        Update { of: Of::Key(op.key), key, weight: op.weight }
    }

    /// Sends updates to one pod, and those that it refuses to the next, until none is refused.
    async fn deliver(
        &self,
        run: &Run,
        home: usize,
        intended: Instant,
        ops: &[(&Key, u64)],
    ) -> Vec<Reply> {
        let (mut chosen, pod) = self.pick(run, home);
        let mut replies = pod.add(ops).await;
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
            let (next, pod) = self.pick(run, chosen + 1);
            chosen = next;
            let again: Vec<_> = refused.iter().map(|index| ops[*index]).collect();
            for (index, reply) in refused.into_iter().zip(pod.add(&again).await) {
                replies[index] = reply;
            }
        }
    }

    /// Sends the next update of the twins to this pod, once.
    pub(in super::super) async fn try_twin(&self, pod: &PodClient) -> Reply {
        let number = self.twins.begin();
        let (key, weight) = self.twins.op(number);
        let reply = pod.add(&[(&key, weight)]).await.swap_remove(0);
        self.twins.finish(number, reply.outcome);
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
        let mut home = home;
        let twins = self.twins.len();
        let is_of_twin = twins > 0 && rng.random_ratio(1, TWIN_READS_ONE_IN);
        let index = match is_of_twin {
            true => rng.random_range(0..twins),
            false => run.workload.draw_key(&mut rng),
        };
        let is_available = loop {
            let (chosen, pod) = self.pick(run, home);
            let got_value = match is_of_twin {
                true => self.watch_twin(run, pod, index).await,
                false => run.watch(pod, index).await,
            };
            if got_value || due.elapsed() >= READ_WITHIN {
                break got_value && due.elapsed() <= READ_WITHIN;
            }
            home = chosen + 1;
            sleep(RETRY_PAUSE).await;
        };
        self.figures().reads.enter(is_available, node_was_down || self.is_node_down());
    }

    async fn watch_twin(&self, run: &Run, pod: &PodClient, index: usize) -> bool {
        let before = self.twins.known(index);
        let read = pod.value(&self.twins.key(index), &run.consistency).await;
        let after = self.twins.known(index);
        let Ok(value) = read else {
            run.figures().reads_failed += 1;
            return false;
        };
        run.figures().reads += 1;
        let mut wrongs = Wrongs::default();
        wrongs.judge(index, value.unwrap_or(0), &before, &after);
        if wrongs.count() > 0 {
            self.figures().wrongs.merge(wrongs);
            run.stop.cancel();
        }
        true
    }
}
