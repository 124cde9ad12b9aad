//! The cluster for tests: the one that `CASSANDRA_CONTACT_POINTS` names, or else that of the script `cluster`, which is
//! started if necessary and keeps running.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use orderfree::runtime::clock::Clock;
use orderfree::store::cassandra::{CassandraConfig, CassandraStore, schema};
use orderfree::store::{RequestLimits, Store};
use orderfree_core::crdt::Counter;
use orderfree_core::crdt::envelope::{KeySeal, decode_state};
use orderfree_core::protocol::consistency::Levels;
use orderfree_core::protocol::{Constants, Key, MutatorId, Timestamp};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::statement::Consistency;
use scylla::statement::unprepared::Statement;
use tokio::sync::{Mutex, RwLock};
use uuid::Uuid;

/// Every test locks it for reading; tests that kill nodes lock it for writing.
pub(crate) static CLUSTER: RwLock<()> = RwLock::const_new(());

/// Schema changes run one at a time. Each waits for all nodes anyway.
pub(crate) static DEFINING: Mutex<()> = Mutex::const_new(());

pub(crate) fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cassandra/cluster")
}

/// Runs the script and returns its output.
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

/// The addresses of the cluster.
pub(crate) fn contact_points() -> Vec<String> {
    static POINTS: OnceLock<String> = OnceLock::new();
    let points = POINTS.get_or_init(|| {
        std::env::var("CASSANDRA_CONTACT_POINTS").unwrap_or_else(|_| own_cluster())
    });
    split(points)
}

/// Starts the script's own cluster, whose nodes may be killed, and returns its addresses.
pub(crate) fn own_cluster() -> String {
    script(&["start"]);
    script(&["contact-points"])
}

/// The configuration for a keyspace.
pub(crate) fn config(keyspace: &str, constants: Constants) -> CassandraConfig {
    CassandraConfig {
        contact_points: contact_points(),
        keyspace: keyspace.to_owned(),
        login: None,
        tls: None,
        local_datacenter: None,
        levels: Levels::default(),
        constants,
        request_limits: RequestLimits::default(),
    }
}

/// A new keyspace with the table.
pub(crate) async fn fresh(constants: Constants) -> CassandraConfig {
    fresh_at(contact_points(), constants).await
}

/// A new keyspace on the script's own cluster, for tests that break nodes.
pub(crate) async fn fresh_on_own(constants: Constants) -> CassandraConfig {
    fresh_at(split(&own_cluster()), constants).await
}

/// The name of a keyspace on the script's own cluster that does not exist yet.
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
    schema::apply(&config, None, true).await.expect("a fresh keyspace");
    config
}

/// A session of the test, separate from the product's.
pub(crate) async fn session(config: &CassandraConfig) -> Session {
    let session = SessionBuilder::new().known_nodes(&config.contact_points).build().await;
    session.expect("a session")
}

/// The name of the data centre of the node that answers. The clusters of tests have one.
pub(crate) async fn datacenter(config: &CassandraConfig) -> String {
    of_local_node(config, "data_center").await
}

/// The release of the node that answers.
pub(crate) async fn release(config: &CassandraConfig) -> String {
    of_local_node(config, "release_version").await
}

/// A text in `system.local`.
async fn of_local_node(config: &CassandraConfig, column: &str) -> String {
    let question = format!("SELECT {column} FROM system.local");
    let answer = session(config).await.query_unpaged(question, ()).await.expect("an answer");
    let rows = answer.into_rows_result().expect("rows");
    rows.single_row::<(String,)>().expect("one row").0
}

/// Runs one statement that changes the schema or breaks something.
pub(crate) async fn cql(config: &CassandraConfig, statement: &str) {
    let session = session(config).await;
    let _one_at_a_time = DEFINING.lock().await;
    session.query_unpaged(statement, ()).await.expect("the statement");
}

/// Drops a keyspace.
pub(crate) async fn drop_keyspace(config: &CassandraConfig) {
    cql(config, &format!("DROP KEYSPACE {}", config.keyspace)).await;
}

/// A store on the cluster.
pub(crate) async fn connect(config: &CassandraConfig, clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    Arc::new(CassandraStore::connect(config.clone(), clock).await.expect("a store"))
}

/// Checks that a node sees this many nodes in a state, such as `UN`. The error is what it sees.
fn sees(node: &str, state: &str, wanted: usize) -> Result<(), String> {
    let status = script(&["nodetool", node, "status"]);
    let found = status.lines().filter(|line| line.starts_with(state)).count();
    if found == wanted { Ok(()) } else { Err(status) }
}

/// Nodes that a test killed. They are started again when the test ends or panics.
pub(crate) struct Killed(Vec<&'static str>);

impl Killed {
    /// Kills the nodes with these numbers.
    pub(crate) fn nodes(nodes: &[&'static str]) -> Killed {
        let mut killed = Killed(Vec::new());
        for node in nodes {
            script(&["kill", node]);
            killed.0.push(node);
        }
        killed
    }

    /// Waits until the given node sees all of them as down. Before that it queues messages for them, and delivers those
    /// that have not expired when they come back.
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

/// A paused node, which the others do not notice at first. It is resumed when the test ends or panics.
pub(crate) struct Paused(&'static str);

impl Paused {
    /// Pauses the node with this number.
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

/// Nodes that do not deliver hints as they should, until this is dropped.
pub(crate) struct Hints {
    nodes: Vec<&'static str>,
    /// The command that restores delivery.
    undo: &'static str,
}

impl Hints {
    /// Stops delivery on the nodes with these numbers, so that a replica that missed writes stays behind for a while.
    pub(crate) fn paused_on(nodes: &[&'static str]) -> Hints {
        Hints::told(nodes, "pausehandoff", "resumehandoff")
    }

    /// Stops storing hints on the nodes with these numbers: a replica never gets what it misses meanwhile.
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

/// One node that takes the others for dead because it no longer gossips. It answers at ONE from its own data, and
/// what it accepts at ONE stays on it, except for hints.
pub(crate) struct Alone(u8);

impl Alone {
    /// Isolates the node with this number.
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
                // A second panic would abort the test that already fails.
                if start.elapsed().as_secs() > 60 {
                    eprintln!("node {node} still sees: {status}");
                    return;
                }
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
        }
    }
}

/// Reads through a chosen coordinator. The store leaves that choice to the driver.
pub(crate) struct Coordinators {
    session: Session,
    cql: String,
}

impl Coordinators {
    /// For a keyspace on the script's own cluster.
    pub(crate) async fn of(config: &CassandraConfig) -> Coordinators {
        let session = session(config).await;
        let columns = "kind = ? AND grp = ? AND name = ?";
        let cql = format!(
            "SELECT expires_at, mutator_id, state FROM {}.shards WHERE {columns}",
            config.keyspace
        );
        Coordinators { session, cql }
    }

    /// The total of a key that was never folded, read through node `number`.
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
                let state = decode_state(seal, key.kind, &bytes).expect("decodable");
                Counter::try_from(state).expect("a counter").total()
            })
            .sum()
    }
}

/// Repeats a check until it succeeds, for at most a minute.
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
