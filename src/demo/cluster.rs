//! Three replicas in memory, and the network between them and the pods. Each node can be cut off or paused.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use orderfree_core::crdt::Kind;
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::reset::LogRow;
use orderfree_core::protocol::{MutatorId, Name, Row, Timestamp};
use orderfree_replicas::{Address, Cell, Mutation, Piece, Range, Replica, merge};
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use scylla::statement::Consistency;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::runtime::random::Random;
use crate::runtime::sync::lock;
use crate::store::Receipt;

/// Number of nodes. Each has a replica of every row.
pub(super) const NODES: usize = 3;

/// How long a message takes, in µs: from the least to the most.
const TRAVEL_US: (u32, u32) = (300, 2_500);

/// How long a message waits at a paused node. After that the other nodes keep what it says.
const MESSAGE_TIME_MAX: Duration = Duration::from_secs(10);

/// The log of resets. It is never lost here.
pub(super) type Log = BTreeMap<(Generation, Uuid), (LogRow, Receipt)>;

/// The partition of a group.
pub(super) type Partition = (Kind, Name);

/// The nodes; see the [module documentation](self).
pub(super) struct Cluster {
    nodes: Vec<Node>,
    log: Mutex<Log>,
    random: Random,
    /// Messages go on when the pod that sent them is killed.
    network: Handle,
}

#[derive(Default)]
struct Node {
    state: Mutex<State>,
    /// Notified when its health changes.
    changed: Notify,
}

#[derive(Default)]
struct State {
    health: Health,
    partitions: HashMap<Partition, Replica<String>>,
    /// What it missed. Other nodes keep it, the latest cell of each row.
    hints: HashMap<Partition, Replica<String>>,
    /// Its part of the native counter.
    native: i64,
}

/// What is wrong with a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Health {
    #[default]
    Up,
    /// Nothing reaches it. Others know, and keep what it misses.
    Cut,
    /// It answers nothing, and does everything once it goes on. Others do not know.
    Paused,
}

impl Cluster {
    pub(super) fn new(network: Handle) -> Arc<Cluster> {
        let nodes = std::iter::repeat_with(Node::default).take(NODES).collect();
        Arc::new(Cluster { nodes, log: Mutex::default(), random: Random::system(), network })
    }

    pub(super) fn health(&self) -> [Health; NODES] {
        std::array::from_fn(|at| lock(&self.nodes[at].state).health)
    }

    /// Changes a node's health. A node that is back first gets what it missed.
    pub(super) fn set_health(&self, at: usize, health: Health) {
        let node = &self.nodes[at];
        let mut state = lock(&node.state);
        state.health = health;
        if health == Health::Up {
            for (partition, Replica { rows, tombstones }) in std::mem::take(&mut state.hints) {
                let missed = Mutation { cells: rows.into_iter().collect(), tombstones };
                state.partitions.entry(partition).or_default().apply(&missed, false);
            }
        }
        drop(state);
        node.changed.notify_waiters();
    }

    /// Writes to all nodes. Returns when as many have it as the level asks for.
    pub(super) async fn write(
        self: &Arc<Self>,
        partition: Partition,
        mutation: &Arc<Mutation<String>>,
        level: Level,
        patience: Duration,
    ) -> Result<(), ExecutionError> {
        let quota = self.quota(level).ok_or_else(unavailable)?;
        let acks = Arc::new(Semaphore::new(0));
        for at in 0..NODES {
            let (this, acks) = (Arc::clone(self), Arc::clone(&acks));
            let (partition, mutation) = (partition.clone(), Arc::clone(mutation));
            self.network.spawn(async move {
                this.arrive(at).await;
                let mut state = lock(&this.nodes[at].state);
                // Looked at again under the lock: a node that is up takes no more hints.
                if state.health == Health::Up {
                    state.partitions.entry(partition).or_default().apply(&mutation, false);
                    acks.add_permits(1);
                } else {
                    state.hints.entry(partition).or_default().apply(&mutation, false);
                }
            });
        }
        let acked = timeout(patience, acks.acquire_many(permits(quota))).await;
        acked.map(drop).map_err(|_| ExecutionError::RequestTimeout(patience))?;
        self.travel().await;
        Ok(())
    }

    /// Reads rows of a partition, in the table's order, as the answers of as many nodes as the level asks for.
    pub(super) async fn read(
        self: &Arc<Self>,
        partition: &Partition,
        range: Range<String>,
        level: Level,
        patience: Duration,
    ) -> Result<Vec<(Name, Row)>, ExecutionError> {
        let quota = self.quota(level).ok_or_else(unavailable)?;
        let (told, mut answers) = mpsc::channel(NODES);
        for at in 0..NODES {
            let (this, told) = (Arc::clone(self), told.clone());
            // A replica answers without the limit, which is the coordinator's.
            let range = Range { limit: usize::MAX, ..range.clone() };
            let partition = partition.clone();
            self.network.spawn(async move {
                if this.arrive(at).await {
                    let state = lock(&this.nodes[at].state);
                    let piece =
                        state.partitions.get(&partition).map(|replica| replica.answer(&range));
                    drop(state);
                    let _ = told.try_send(piece);
                }
            });
        }
        drop(told);
        let mut pieces: Vec<Piece<String>> = Vec::new();
        let gathered = timeout(patience, async {
            for _ in 0..quota {
                // Nodes that were cut off meanwhile do not answer.
                pieces.extend(answers.recv().await.ok_or_else(unavailable)?);
            }
            Ok::<_, ExecutionError>(())
        });
        gathered.await.map_err(|_| ExecutionError::RequestTimeout(patience))??;
        self.travel().await;
        let mut rows: Vec<_> = merge(&pieces, false).into_iter().collect();
        if range.is_backwards {
            rows.reverse();
        }
        rows.truncate(range.limit);
        Ok(rows.into_iter().map(row).collect())
    }

    /// Adds 1 to the native counter, as Cassandra does: a node that is chosen as leader adds it to its own part, and
    /// nothing tells one attempt from another. None if there was no answer.
    pub(super) async fn count_natively(self: &Arc<Self>, patience: Duration) -> Option<()> {
        let quota = self.quota(Level::LocalQuorum)?;
        let alive: Vec<usize> = (0..NODES).filter(|at| self.health()[*at] != Health::Cut).collect();
        let leader = alive[self.random.below(u32::try_from(alive.len()).ok()?) as usize];
        let acks = Arc::new(Semaphore::new(0));
        let (this, counted) = (Arc::clone(self), Arc::clone(&acks));
        self.network.spawn(async move {
            if !this.arrive(leader).await {
                return;
            }
            lock(&this.nodes[leader].state).native += 1;
            counted.add_permits(1);
            for other in (0..NODES).filter(|at| *at != leader) {
                let (this, counted) = (Arc::clone(&this), Arc::clone(&counted));
                this.network.clone().spawn(async move {
                    if this.arrive(other).await {
                        counted.add_permits(1);
                    }
                });
            }
        });
        timeout(patience, acks.acquire_many(permits(quota))).await.ok()?.ok().map(drop)
    }

    pub(super) fn native(&self) -> i64 {
        self.nodes.iter().map(|node| lock(&node.state).native).sum()
    }

    /// The partitions of a node that is up.
    pub(super) fn partitions(&self) -> Vec<(Partition, Vec<Address<String>>)> {
        let up = self
            .nodes
            .iter()
            .map(|node| lock(&node.state))
            .find(|state| state.health == Health::Up);
        let mut all: Vec<_> = up.iter().flat_map(|state| &state.partitions).collect();
        all.sort_by(|one, other| one.0.cmp(other.0));
        let rows = |replica: &Replica<String>| replica.rows.keys().cloned().collect();
        all.into_iter().map(|(partition, replica)| (partition.clone(), rows(replica))).collect()
    }

    /// The log of resets. None if no quorum can be asked.
    pub(super) fn log(&self) -> Option<MutexGuard<'_, Log>> {
        let up = self.health().iter().filter(|health| **health == Health::Up).count();
        (up > NODES / 2).then(|| lock(&self.log))
    }

    /// How many nodes must answer. None if too few are not cut off.
    fn quota(&self, level: Level) -> Option<usize> {
        let quota = match level {
            Level::One | Level::LocalOne => 1,
            Level::LocalQuorum | Level::Quorum | Level::EachQuorum => NODES / 2 + 1,
            Level::All => NODES,
        };
        let reachable = self.health().iter().filter(|health| **health != Health::Cut).count();
        (reachable >= quota).then_some(quota)
    }

    /// A message travels to a node, and waits there while the node is paused. False if the node takes it no more.
    async fn arrive(&self, at: usize) -> bool {
        self.travel().await;
        let node = &self.nodes[at];
        let taken = async {
            loop {
                // Notified from here on, also by a change before the wait.
                let changed = node.changed.notified();
                let health = lock(&node.state).health;
                match health {
                    Health::Up => return true,
                    Health::Cut => return false,
                    Health::Paused => changed.await,
                }
            }
        };
        timeout(MESSAGE_TIME_MAX, taken).await.unwrap_or(false)
    }

    async fn travel(&self) {
        let (least, most) = TRAVEL_US;
        let span = least + self.random.below(most - least);
        sleep(Duration::from_micros(span.into())).await;
    }
}

/// A row of the table, as a cell with its address.
pub(super) fn cell(
    name: &Name,
    (expires_at, id): (Timestamp, MutatorId),
    timestamp: Timestamp,
    state: &[u8],
) -> (Address<String>, Cell) {
    let (name, expires_at) = (name.to_string(), Reverse(expires_at));
    (Address { name, expires_at, id }, Cell { timestamp, state: state.into() })
}

fn row((address, cell): (Address<String>, Cell)) -> (Name, Row) {
    let Address { name, expires_at: Reverse(expires_at), id: mutator_id } = address;
    let name = Name::new(&name).expect("invariant: it was a name");
    (name, Row { expires_at, mutator_id, state: cell.state.to_vec() })
}

fn permits(count: usize) -> u32 {
    u32::try_from(count).expect("invariant: few nodes")
}

fn unavailable() -> ExecutionError {
    let consistency = Consistency::LocalQuorum;
    let error = DbError::Unavailable { consistency, required: 2, alive: 1 };
    ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, String::new()))
}
