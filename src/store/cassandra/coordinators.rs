//! Chooses the coordinator of a request: one of the partition's replicas in the local data centre, and not a
//! node that let requests wait recently. The driver notices a dead node by its connections. The requests
//! themselves show sooner that a node hangs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use orderfree_core::crdt::Kind;
use orderfree_core::protocol::Name;
use scylla::client::session::Session;
use scylla::cluster::Node;
use scylla::errors::{ExecutionError, RequestAttemptError};
use scylla::policies::load_balancing::{
    LoadBalancingPolicy, NodeIdentifier, SingleTargetLoadBalancingPolicy,
};
use scylla::routing::Shard;
use scylla::serialize::row::SerializeRow;
use scylla::statement::prepared::PreparedStatement;
use tokio::time::Instant;
use uuid::Uuid;

use super::TABLE;

/// How often one request tries a node that hung on its last request.
const TRY_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Coordinators {
    session: Arc<Session>,
    keyspace: String,
    datacenter: String,
    suspects: Suspects,
}

/// The nodes to try, in this order, then from the start again. If it is empty, the driver chooses.
pub(super) struct Route {
    nodes: Vec<(Arc<Node>, Shard)>,
    /// The number of the attempt that succeeded.
    won: OnceLock<u32>,
}

/// One attempt at one node.
pub(super) struct Attempt<'a> {
    suspects: &'a Suspects,
    route: &'a Route,
    number: u32,
    is_over: bool,
}

impl Coordinators {
    pub(super) fn new(session: Arc<Session>, keyspace: String, datacenter: String) -> Coordinators {
        Coordinators { session, keyspace, datacenter, suspects: Suspects::default() }
    }

    /// A partition's replicas in the local data centre, in the order of the ring. Empty while the driver does
    /// not know the table.
    pub(super) fn replicas(&self, partition: (Kind, &Name)) -> Vec<(Arc<Node>, Shard)> {
        self.replicas_in(TABLE, &(partition.0.name(), partition.1.as_str()))
    }

    fn replicas_in(&self, table: &str, partition: &dyn SerializeRow) -> Vec<(Arc<Node>, Shard)> {
        let state = self.session.get_cluster_state();
        let replicas = state.get_endpoints(&self.keyspace, table, &partition).unwrap_or_default();
        let is_local = |(node, _): &(Arc<Node>, Shard)| {
            node.datacenter.as_deref() == Some(self.datacenter.as_str())
        };
        replicas.into_iter().filter(is_local).collect()
    }

    /// The nodes to ask about a partition, starting with the replica of this number. Partitions that are
    /// written together share replica 0.
    pub(super) fn route(&self, partition: (Kind, &Name), first: u32) -> Route {
        self.route_over(self.replicas(partition), first)
    }

    /// The nodes to ask about a part of the log of resets, starting with the replica of this number.
    pub(super) fn route_of_log(&self, part: i8, first: u32) -> Route {
        self.route_over(self.replicas_in("resets", &(part,)), first)
    }

    fn route_over(&self, mut nodes: Vec<(Arc<Node>, Shard)>, first: u32) -> Route {
        let turn = first as usize % nodes.len().max(1);
        nodes.rotate_left(turn);
        // If none is connected, other nodes can tell whether enough replicas are up.
        nodes.retain(|(node, _)| node.is_connected());
        self.suspects.order(&mut nodes, |(node, _)| node.host_id);
        Route { nodes, won: OnceLock::new() }
    }

    pub(super) fn attempt<'a>(&'a self, route: &'a Route, number: u32) -> Attempt<'a> {
        Attempt { suspects: &self.suspects, route, number, is_over: false }
    }
}

impl Attempt<'_> {
    /// `None` leaves the choice to the driver.
    fn node(&self) -> Option<&(Arc<Node>, Shard)> {
        let nodes = &self.route.nodes;
        nodes.get(self.number as usize % nodes.len().max(1))
    }

    /// The policy that makes the driver send to this attempt's node.
    pub(super) fn policy(&self) -> Option<Arc<dyn LoadBalancingPolicy>> {
        let (node, shard) = self.node()?.clone();
        Some(SingleTargetLoadBalancingPolicy::new(NodeIdentifier::Node(node), Some(shard)))
    }

    /// Returns a copy of the statement that goes to this attempt's node.
    pub(super) fn aim(&self, statement: &PreparedStatement) -> PreparedStatement {
        let mut statement = statement.clone();
        statement.set_load_balancing_policy(self.policy());
        statement
    }

    /// Notes how the attempt ended.
    pub(super) fn ended<T>(mut self, answer: &Result<T, ExecutionError>) {
        use ExecutionError::LastAttemptError;
        use RequestAttemptError::DbError;
        self.is_over = true;
        if answer.is_ok() {
            let _ = self.route.won.set(self.number);
        }
        if let Some((node, _)) = self.node() {
            match answer {
                Ok(_) | Err(LastAttemptError(DbError(..))) => self.suspects.clear(node.host_id),
                Err(_) => self.suspects.suspect(node.host_id),
            }
        }
    }
}

impl Drop for Attempt<'_> {
    /// The attempt was given up. Its node hangs if a later attempt succeeded first. If the caller went away,
    /// or an earlier attempt succeeded after all, the drop proves nothing.
    fn drop(&mut self) {
        let was_overtaken = self.route.won.get().is_some_and(|won| *won > self.number);
        if let Some((node, _)) = self.node()
            && !self.is_over
            && was_overtaken
        {
            self.suspects.suspect(node.host_id);
        }
    }
}

/// Nodes that let requests wait, and the time at which one request tries each again.
#[derive(Debug, Default)]
struct Suspects(Mutex<HashMap<Uuid, Instant>>);

impl Suspects {
    fn suspect(&self, host: Uuid) {
        self.all().insert(host, Instant::now() + TRY_EVERY);
    }

    fn clear(&self, host: Uuid) {
        self.all().remove(&host);
    }

    /// Puts suspects last. But a suspect that is due for a try goes first, and then no other request tries it
    /// until it is due again.
    fn order<T>(&self, nodes: &mut [T], host: impl Fn(&T) -> Uuid) {
        let mut all = self.all();
        if all.is_empty() {
            return;
        }
        nodes.sort_by_key(|node| all.contains_key(&host(node)));
        let now = Instant::now();
        let is_due = |node: &T| all.get(&host(node)).is_some_and(|due| now >= *due);
        if let Some(at) = nodes.iter().position(is_due) {
            all.insert(host(&nodes[at]), now + TRY_EVERY);
            nodes[..=at].rotate_right(1);
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Uuid, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(suspects: &Suspects) -> Vec<u128> {
        let mut nodes = [1, 2, 3];
        suspects.order(&mut nodes, |node| Uuid::from_u128(*node));
        nodes.to_vec()
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_hangs_is_asked_last_and_tried_once_in_a_while() {
        let suspects = Suspects::default();
        assert_eq!(order(&suspects), [1, 2, 3]);
        suspects.suspect(Uuid::from_u128(1));
        assert_eq!(order(&suspects), [2, 3, 1]);
        tokio::time::advance(TRY_EVERY).await;
        assert_eq!(order(&suspects), [1, 2, 3], "this request tries it");
        assert_eq!(order(&suspects), [2, 3, 1], "no other one does");
        tokio::time::advance(TRY_EVERY).await;
        suspects.suspect(Uuid::from_u128(3));
        assert_eq!(order(&suspects), [1, 2, 3]);
        suspects.clear(Uuid::from_u128(1));
        assert_eq!(order(&suspects), [1, 2, 3], "it answered");
        tokio::time::advance(TRY_EVERY).await;
        assert_eq!(order(&suspects), [3, 1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn where_all_hang_all_are_asked() {
        let suspects = Suspects::default();
        (1..=3).for_each(|node| suspects.suspect(Uuid::from_u128(node)));
        assert_eq!(order(&suspects), [1, 2, 3]);
    }
}
