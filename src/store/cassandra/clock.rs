//! Measures every node's clock, and checks whether the nodes agree on the schema.
//! [`orderfree_core::protocol::clock`] decides what the samples mean.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::future::{join, join_all};
use orderfree_core::protocol::clock::{NodeClock, SAMPLE_EVERY, Sample, TRIP_SHARE, WARN_SHARE};
use orderfree_core::protocol::{Now, Timestamp};
use scylla::client::session::Session;
use scylla::cluster::Node;
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use tokio::time::timeout;
use uuid::Uuid;

use super::high_water::HighWater;
use super::placement::{Found, Look};
use super::quorum::{self, Quorum};
use super::rows;
use crate::runtime::clock::Clock;
use crate::runtime::tasks::Tasks;
use crate::store::Placement;

/// Time limit for one sample: a slower node has no sample in this round. Half of the limit is also the
/// maximum error of a sample.
const SAMPLE_TIME_MAX: Duration = Duration::from_secs(3);

/// Time between rounds while the nodes disagree on the schema.
const DISAGREEMENT_LOOK_EVERY: Duration = Duration::from_secs(1);

/// The results of the last round.
#[derive(Debug)]
pub(super) struct View {
    /// The nodes of all data centres with replicas, each with its newest sample.
    pub(super) nodes: Vec<NodeClock>,
    pub(super) found: Found,
    /// The nodes that did not answer in the last round, each with its data centre.
    pub(super) silent: Vec<String>,
    /// How many nodes of the local data centre did.
    pub(super) local_answers: usize,
    pub(super) quorum: Quorum,
    /// Whether two nodes that answered in the last round have different schemas.
    pub(super) schema_disagrees: bool,
}

impl View {
    /// How many nodes the local data centre has.
    fn local_nodes(&self) -> usize {
        let local = &self.found.placement.local_datacenter;
        self.nodes.iter().filter(|node| node.datacenter == *local).count()
    }
}

/// The newest [`View`], shared by the sampler and the store.
pub(super) type SharedView = Arc<RwLock<View>>;

pub(super) struct Sampler {
    session: Arc<Session>,
    statement: PreparedStatement,
    high_water: Arc<HighWater>,
    clock: Arc<dyn Clock>,
    offset_max: Duration,
    /// The newest sample of each node that has answered.
    samples: HashMap<Uuid, Sample>,
    look: Look,
    view: SharedView,
}

impl Sampler {
    pub(super) fn new(
        session: Arc<Session>,
        statement: PreparedStatement,
        high_water: Arc<HighWater>,
        clock: Arc<dyn Clock>,
        offset_max: Duration,
        look: Look,
        placement: Arc<Placement>,
    ) -> Sampler {
        let view = View {
            nodes: Vec::new(),
            found: Found::first(placement),
            silent: Vec::new(),
            local_answers: 0,
            quorum: Quorum::default(),
            schema_disagrees: false,
        };
        Sampler {
            session,
            statement,
            high_water,
            clock,
            offset_max,
            samples: HashMap::new(),
            look,
            view: Arc::new(RwLock::new(view)),
        }
    }

    pub(super) fn view(&self) -> SharedView {
        Arc::clone(&self.view)
    }

    /// Takes samples until the tasks stop.
    pub(super) async fn run(mut self, tasks: Tasks) {
        let mut disagrees = read(&self.view, |view| view.schema_disagrees);
        while tasks.sleep(if disagrees { DISAGREEMENT_LOOK_EVERY } else { SAMPLE_EVERY }).await {
            let (high_water, began) = (Arc::clone(&self.high_water), self.clock.now().boot);
            let look = high_water.look_within(SAMPLE_TIME_MAX);
            let is_read;
            (disagrees, is_read) = join(self.round(), look).await;
            let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
            let is_there = quorum::is_there(is_read, view.local_answers, view.local_nodes());
            view.quorum.note(is_there, began, self.clock.now().boot);
        }
    }

    /// Samples every current member of a data centre with replicas. Returns true if the nodes that answered disagree on
    /// the schema.
    pub(super) async fn round(&mut self) -> bool {
        // While the nodes disagree, one of them could still have the replication from before a change.
        if !read(&self.view, |view| view.schema_disagrees) {
            self.look.again(SAMPLE_TIME_MAX).await;
        }
        let found = self.look.found.clone();
        let placement = &found.placement;
        let cluster = self.session.get_cluster_state();
        let has_replicas = |node: &&Arc<Node>| {
            let name = node.datacenter.as_deref().unwrap_or_default();
            placement.replication.factor(name) > 0
        };
        let nodes: Vec<&Arc<Node>> = cluster.get_nodes_info().iter().filter(has_replicas).collect();
        let answers = join_all(nodes.iter().map(|node| self.ask(node))).await;
        let (mut schemas, mut silent, mut local_answers) = (Vec::new(), Vec::new(), 0);
        let known: Vec<Uuid> = nodes.iter().map(|node| node.host_id).collect();
        self.samples.retain(|host, _| known.contains(host));
        for (node, answer) in nodes.iter().zip(answers) {
            match answer {
                Ok((sample, schema)) => {
                    self.samples.insert(node.host_id, sample);
                    schemas.push(schema);
                    let datacenter = node.datacenter.as_deref();
                    local_answers += usize::from(datacenter == Some(&placement.local_datacenter));
                }
                Err(reason) => {
                    tracing::debug!(node = %node.address, reason, "no clock sample");
                    let datacenter = node.datacenter.as_deref().unwrap_or("an unknown data centre");
                    silent.push(format!("{} in {datacenter}", node.address.ip()));
                }
            }
        }
        let schema_disagrees = schemas.windows(2).any(|pair| pair[0] != pair[1]);
        let clock_of = |node: &&Arc<Node>| NodeClock {
            datacenter: node.datacenter.clone().unwrap_or_default(),
            sample: self.samples.get(&node.host_id).copied(),
        };
        self.warn_early();
        let nodes = nodes.iter().map(clock_of).collect();
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let quorum = view.quorum;
        *view = View { nodes, found, silent, local_answers, quorum, schema_disagrees };
        schema_disagrees
    }

    /// Logs that clocks drift apart, long before the pod refuses updates because of it.
    fn warn_early(&self) {
        let now = self.clock.now();
        let offsets = self.samples.values().map(|sample| sample.offset_us(now));
        let worst_us = offsets.max_by_key(|offset| offset.unsigned_abs()).unwrap_or(0);
        let limit = self.offset_max / WARN_SHARE;
        if u128::from(worst_us.unsigned_abs()) > limit.as_micros() {
            tracing::warn!(worst_us, refused_beyond = ?self.offset_max, "clocks drift; check NTP");
        }
    }

    /// Returns one node's clock and schema version, or why there is no answer.
    async fn ask(&self, node: &Arc<Node>) -> Result<(Sample, Uuid), String> {
        let mut statement = self.statement.clone();
        let target = NodeIdentifier::Node(Arc::clone(node));
        let only = SingleTargetLoadBalancingPolicy::new(target, None);
        statement.set_load_balancing_policy(Some(only));
        let before = self.clock.now();
        let asked = timeout(SAMPLE_TIME_MAX, self.session.execute_unpaged(&statement, ()));
        let answer = asked.await.map_err(|_| "no answer in time")?;
        let after = self.clock.now();
        let answer = answer.map_err(|error| error.to_string())?;
        let rows = rows::of_system::<(CqlTimestamp, Uuid)>(answer);
        match rows.map_err(|error| error.to_string())?.as_slice() {
            [(CqlTimestamp(node_ms), schema)] => {
                let sample = sample(before, after, *node_ms, self.offset_max);
                Ok((sample.ok_or("the answer took too long to tell the time")?, *schema))
            }
            rows => Err(format!("{} rows instead of one", rows.len())),
        }
    }
}

/// Reads from the view, and releases the lock.
pub(super) fn read<T>(view: &RwLock<View>, look: impl FnOnce(&View) -> T) -> T {
    look(&view.read().unwrap_or_else(PoisonError::into_inner))
}

/// The node read its clock somewhere between the two reads of this pod's clock. We assume the middle. After a
/// long round trip that could be far off, so there is no sample, and the earlier one stays.
fn sample(before: Now, after: Now, node_ms: i64, offset_max: Duration) -> Option<Sample> {
    let trip = after.boot.saturating_sub(before.boot);
    let node = Timestamp::from_micros(node_ms.saturating_mul(1_000));
    (trip <= offset_max / TRIP_SHARE).then_some(Sample { node, taken: before.boot + trip / 2 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFSET_MAX: Duration = Duration::from_secs(5);

    fn at(wall_us: i64, boot_us: u64) -> Now {
        Now { wall: Timestamp::from_micros(wall_us), boot: Duration::from_micros(boot_us) }
    }

    #[test]
    fn a_sample_is_corrected_by_half_the_round_trip() {
        let (before, after) = (at(10_000_000, 500), at(10_004_000, 4_500));
        let offset_us = |node_ms| {
            let sample = sample(before, after, node_ms, OFFSET_MAX);
            sample.expect("a short round trip").offset_us(after)
        };
        assert_eq!(offset_us(10_002), 0);
        assert_eq!(offset_us(10_009), 7_000);
        assert_eq!(offset_us(9_000), -1_002_000);
    }

    #[test]
    fn a_wall_clock_set_during_a_sample_counts_as_after_it() {
        let (before, after) = (at(10_000_000, 500), at(99_000_000, 4_500));
        let sample = sample(before, after, 99_000, OFFSET_MAX).expect("a short round trip");
        assert_eq!(sample.offset_us(after), 2_000);
    }

    /// A busy machine must not shut its gate because answers wait in a queue.
    #[test]
    fn an_answer_that_took_long_is_no_sample() {
        let after = |trip_us: u64| at(10_000_000 + i64::try_from(trip_us).expect("short"), trip_us);
        assert!(sample(at(10_000_000, 0), after(1_000_000), 10_000, OFFSET_MAX).is_some());
        assert_eq!(sample(at(10_000_000, 0), after(1_000_001), 10_000, OFFSET_MAX), None);
    }
}
