//! The cluster that tests run on: the one that `CASSANDRA_CONTACT_POINTS` names, or else the one of
//! the script `cluster`, which is started if it isn't running, and left running.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use orderfree::runtime::clock::Clock;
use orderfree::store::cassandra::{CassandraConfig, CassandraStore, schema};
use orderfree::store::{Flights, Store};
use orderfree_core::crdt::Counter;
use orderfree_core::crdt::envelope::{KeySeal, decode_shard};
use orderfree_core::protocol::consistency::Levels;
use orderfree_core::protocol::{Constants, Key, MutatorId, Timestamp};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::statement::Consistency;
use scylla::statement::unprepared::Statement;
use tokio::sync::{Mutex, RwLock};
use uuid::Uuid;

/// Held for reading by every test, for writing by those that kill nodes.
pub(crate) static CLUSTER: RwLock<()> = RwLock::const_new(());

/// Definitions one after the other: each waits for all nodes anyway.
pub(crate) static DEFINING: Mutex<()> = Mutex::const_new(());

/// The script's path.
pub(crate) fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cassandra/cluster")
}

/// Runs the script and returns what it prints.
pub(crate) fn script(arguments: &[&str]) -> String {
    let path = path();
    let output = Command::new(&path).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{} can't be run: {error}", path.display()));
    assert!(
        output.status.success(),
        "this test needs the Cassandra of tests/cassandra, and `cluster {}` failed: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr).trim(),
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Where the cluster is.
pub(crate) fn contact_points() -> Vec<String> {
    static POINTS: OnceLock<String> = OnceLock::new();
    let points = POINTS.get_or_init(|| {
        std::env::var("CASSANDRA_CONTACT_POINTS").unwrap_or_else(|_| own_cluster())
    });
    split(points)
}

/// Starts the script's own cluster, whose nodes may be killed, and says where it is.
pub(crate) fn own_cluster() -> String {
    script(&["start"]);
    script(&["contact-points"])
}

/// How to reach a keyspace.
pub(crate) fn config(keyspace: &str, constants: Constants) -> CassandraConfig {
    CassandraConfig {
        contact_points: contact_points(),
        keyspace: keyspace.to_owned(),
        user: None,
        password: None,
        tls: None,
        local_datacenter: None,
        levels: Levels::default(),
        constants,
        flights: Flights::default(),
    }
}

/// A fresh keyspace with the table.
pub(crate) async fn fresh(constants: Constants) -> CassandraConfig {
    fresh_at(contact_points(), constants).await
}

/// The same on the script's own cluster, for tests that meddle with nodes.
pub(crate) async fn fresh_on_own(constants: Constants) -> CassandraConfig {
    fresh_at(split(&own_cluster()), constants).await
}

/// A keyspace there that nobody has made yet.
pub(crate) fn unmade_on_own(constants: Constants) -> CassandraConfig {
    unmade_at(split(&own_cluster()), constants)
}

fn unmade_at(contact_points: Vec<String>, constants: Constants) -> CassandraConfig {
    let keyspace = format!("test_{}", Uuid::new_v4().simple());
    CassandraConfig { contact_points, ..config(&keyspace, constants) }
}

fn split(points: &str) -> Vec<String> {
    points.split(',').map(str::to_owned).collect()
}

async fn fresh_at(contact_points: Vec<String>, constants: Constants) -> CassandraConfig {
    let config = unmade_at(contact_points, constants);
    let _one_at_a_time = DEFINING.lock().await;
    schema::apply(&config, None).await.expect("a fresh keyspace");
    config
}

/// A session of the test's own, beside the product's.
pub(crate) async fn session(config: &CassandraConfig) -> Session {
    let session = SessionBuilder::new().known_nodes(&config.contact_points).build().await;
    session.expect("a session")
}

/// Runs one statement of definition or of sabotage.
pub(crate) async fn cql(config: &CassandraConfig, statement: &str) {
    let session = session(config).await;
    let _one_at_a_time = DEFINING.lock().await;
    session.query_unpaged(statement, ()).await.expect("the statement");
}

/// Removes a keyspace.
pub(crate) async fn drop_keyspace(config: &CassandraConfig) {
    cql(config, &format!("DROP KEYSPACE {}", config.keyspace)).await;
}

/// A store on the cluster.
pub(crate) async fn connect(config: &CassandraConfig, clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    Arc::new(CassandraStore::connect(config.clone(), clock).await.expect("a store"))
}

/// Whether a node sees so many nodes in a state, such as `UN`; else what it sees.
fn sees(node: &str, state: &str, wanted: usize) -> Result<(), String> {
    let status = script(&["nodetool", node, "status"]);
    let found = status.lines().filter(|line| line.starts_with(state)).count();
    if found == wanted { Ok(()) } else { Err(status) }
}

/// Nodes that a test killed; they run again when it ends, however it ends.
pub(crate) struct Killed(Vec<&'static str>);

impl Killed {
    /// Kills nodes by their numbers.
    pub(crate) fn nodes(nodes: &[&'static str]) -> Killed {
        let mut killed = Killed(Vec::new());
        for node in nodes {
            script(&["kill", node]);
            killed.0.push(node);
        }
        killed
    }

    /// Waits until the given node sees all of them down. Until then it keeps messages for them, and
    /// delivers those that have not expired when they come back.
    pub(crate) async fn noticed_by(&self, witness: &str) {
        let down = async || sees(witness, "DN", self.0.len());
        eventually("the nodes are seen to be down", down).await;
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        for node in &self.0 {
            script(&["restart", node]);
        }
    }
}

/// A node that is stopped and does not know it; it goes on when the test ends, however it ends.
pub(crate) struct Paused(&'static str);

impl Paused {
    /// Stops a node by its number.
    pub(crate) fn node(node: &'static str) -> Paused {
        script(&["pause", node]);
        Paused(node)
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        script(&["resume", self.0]);
    }
}

/// Nodes that do not deliver hints as they should.
pub(crate) struct Hints {
    nodes: Vec<&'static str>,
    /// What makes it good again.
    undo: &'static str,
}

impl Hints {
    /// Nodes, by their numbers, that keep their hints to themselves for a while, so that a replica
    /// which missed writes stays behind.
    pub(crate) fn paused_on(nodes: &[&'static str]) -> Hints {
        Hints::told(nodes, "pausehandoff", "resumehandoff")
    }

    /// Nodes, by their numbers, that keep no messages for others: what a replica misses meanwhile it
    /// never gets.
    pub(crate) fn off_on(nodes: &[&'static str]) -> Hints {
        Hints::told(nodes, "disablehandoff", "enablehandoff")
    }

    fn told(nodes: &[&'static str], command: &str, undo: &'static str) -> Hints {
        let mut told = Hints { nodes: Vec::new(), undo };
        for node in nodes {
            script(&["nodetool", node, command]);
            told.nodes.push(node);
        }
        told
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        for node in &self.nodes {
            script(&["nodetool", node, self.undo]);
        }
    }
}

/// One node that takes the others for dead, as they no longer gossip: what it answers at ONE is
/// what it has itself, and what it takes at ONE it keeps to itself (but for hints).
pub(crate) struct Alone(u8);

impl Alone {
    /// By its number.
    pub(crate) async fn on(node: u8) -> Alone {
        let alone = Alone(node);
        alone.tell_others("disablegossip");
        eventually("the node is alone", async || sees(&node.to_string(), "UN", 1)).await;
        alone
    }

    fn tell_others(&self, command: &str) {
        for other in (1..=3).filter(|other| *other != self.0) {
            script(&["nodetool", &other.to_string(), command]);
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.tell_others("enablegossip");
        for node in 1..=3 {
            let start = std::time::Instant::now();
            while let Err(status) = sees(&node.to_string(), "UN", 3) {
                // No second panic while a test already fails.
                if start.elapsed().as_secs() > 60 {
                    eprintln!("node {node} still sees: {status}");
                    return;
                }
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
        }
    }
}

/// Reads through a coordinator of one's choice, which a store leaves to the driver.
pub(crate) struct Coordinators {
    session: Session,
    cql: String,
}

impl Coordinators {
    /// Of a keyspace on the script's own cluster.
    pub(crate) async fn of(config: &CassandraConfig) -> Coordinators {
        let session = session(config).await;
        let columns = "kind = ? AND grp = ? AND name = ?";
        let cql = format!(
            "SELECT expires_at, mutator_id, state FROM {}.shards WHERE {columns}",
            config.keyspace
        );
        Coordinators { session, cql }
    }

    /// The total of a key that was never folded, by node `number`.
    pub(crate) async fn total(&self, number: u8, key: &Key, consistency: Consistency) -> i128 {
        let node = SocketAddr::from(([127, 0, 0, number], 9042));
        let only = SingleTargetLoadBalancingPolicy::new(NodeIdentifier::NodeAddress(node), None);
        let mut statement = Statement::new(self.cql.as_str());
        statement.set_consistency(consistency);
        statement.set_load_balancing_policy(Some(only));
        let place = (key.kind.name(), key.group.as_str(), key.name.as_str());
        let result = self.session.query_unpaged(statement, place).await.expect("an answer");
        let rows = result.into_rows_result().expect("rows");
        rows.rows::<(i64, Uuid, Vec<u8>)>()
            .expect("states")
            .map(|row| {
                let (expires_us, id, bytes) = row.expect("a row");
                let (expires_at, id) = (Timestamp::from_micros(expires_us), MutatorId::new(id));
                let seal = KeySeal::of(key).row(expires_at, id);
                let state = decode_shard(seal, key.kind, &bytes).expect("decodable");
                Counter::try_from(state).expect("a counter").total()
            })
            .sum()
    }
}

/// Asks again until it goes well, which it must within a minute.
pub(crate) async fn eventually<T, E: std::fmt::Display>(
    what: &str,
    attempt: impl AsyncFn() -> Result<T, E>,
) -> T {
    let mut last = String::new();
    for _ in 0..120 {
        match attempt().await {
            Ok(value) => return value,
            Err(error) => last = error.to_string(),
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    panic!("{what}: {last}");
}
