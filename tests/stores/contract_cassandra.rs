//! The contract suite on a real cluster, and what only a cluster can get wrong.

#[path = "../cassandra/mod.rs"]
mod cassandra;
mod contract;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cassandra::{
    CLUSTER, Coordinators, DEFINING, Hints, Killed, config, cql, datacenter, drop_keyspace,
    eventually, fresh, fresh_on_own, script, session, unmade_on_own,
};
use contract::{Subject, key, next_write, short_constants};
use orderfree::runtime::clock::{Clock, SystemClock};
use orderfree::store::cassandra::{CassandraConfig, CassandraStore, ConnectError, Login, schema};
use orderfree::store::{Reads, RequestLimits, Store, StoreClock, StoreError};
use orderfree_core::crdt::State;
use orderfree_core::crdt::envelope::{KeySeal, encode_shard};
use orderfree_core::protocol::consistency::{Level, Levels};
use orderfree_core::protocol::row_reader::RowReader;
use orderfree_core::protocol::{Constants, Key, MutatorId, Overrides, Timestamp, WriteError};
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::statement::Consistency;
use scylla::statement::unprepared::Statement;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use uuid::Uuid;

/// What every store must do. `make scylla` runs these tests alone, on any cluster.
mod suite {
    crate::every_test!(super::with_store);
}

/// The defaults, for tests that kill nodes: a write has ten seconds.
fn patient_constants() -> Constants {
    Constants::resolve(Overrides::default()).expect("defaults")
}

async fn with_store(test: impl AsyncFnOnce(Subject)) {
    let _others_too = CLUSTER.read().await;
    let config = fresh(short_constants()).await;
    let subject = Subject::on_cluster(&config).await;
    test(subject.clone()).await;
    subject.store.close().await;
    drop_keyspace(&config).await;
}

/// The ancestor's defect 2: with one replica down, reads failed. Here, only folds wait, and catch up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regression_2_with_a_node_dead_updates_work_and_folds_wait() {
    let _alone = CLUSTER.write().await;
    let config = fresh_on_own(patient_constants()).await;
    let subject = Subject::on_cluster(&config).await;
    let key = key("g", "n");
    subject.put(&key, 1).await;
    let killed = Killed::nodes(&["3"]);
    for by in 2..=40 {
        subject.put(&key, by).await;
        assert_eq!(subject.total(&key).await, Some(i128::from(by * (by + 1) / 2)));
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    let error = subject.store.read_for_fold(&key).await.expect_err("one replica is missing");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    subject.store.check_clock(subject.now()).expect("two of three clocks are a majority");
    let started_meanwhile = Subject::on_cluster(&config).await;
    started_meanwhile.store.check_clock(subject.now()).expect("also for a new pod");
    assert_eq!(started_meanwhile.total(&key).await, Some(820));
    started_meanwhile.store.close().await;
    drop(killed);
    let read = eventually("a fold read after the restart", async || {
        subject.store.read_for_fold(&key).await
    })
    .await;
    assert_eq!(read.slice().len(), 40);
    subject.fold(&key, subject.when_final()).await;
    assert_eq!(subject.total(&key).await, Some(820));
    subject.store.close().await;
    drop_keyspace(&config).await;
}

/// The other half of defect 4: a write that was refused is certainly not applied, not even later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regression_4_writes_refused_without_a_quorum_never_apply() {
    let _alone = CLUSTER.write().await;
    let config = fresh_on_own(patient_constants()).await;
    let subject = Subject::on_cluster(&config).await;
    let key = key("g", "n");
    let mut outcomes = Vec::new();
    let acked = subject.put(&key, 1).await;
    outcomes.push((acked.mutator_id(), Ok(())));
    let killed = Killed::nodes(&["2", "3"]);
    let mut refused = 0;
    for _ in 0..60 {
        let write = subject.shard(&key, 1_000);
        let outcome = subject.store.write_shard(&write).await;
        refused += i32::from(matches!(outcome, Err(WriteError::Refused(_))));
        outcomes.push((write.mutator_id(), outcome));
        if refused == 3 {
            break;
        }
    }
    assert_eq!(refused, 3, "{outcomes:?}");
    let read = subject.store.read_key(&key, None, Level::LocalQuorum).await;
    assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
    drop(killed);
    let read = eventually("a read at ALL after the restarts", async || {
        subject.store.read_for_fold(&key).await
    })
    .await;
    let rows: Vec<_> = read.slice().shards().map(|row| row.mutator_id).collect();
    for (id, outcome) in outcomes {
        match outcome {
            Ok(()) => assert!(rows.contains(&id)),
            Err(WriteError::Refused(reason)) => assert!(!rows.contains(&id), "{reason}"),
            Err(WriteError::Unknown(_)) => {}
        }
    }
    subject.store.close().await;
    drop_keyspace(&config).await;
}

/// The ancestor's defect 8: it read at ONE, so counts went backwards. Node 3 misses all but the first write of each
/// key and gets no hints. Through any coordinator, a read must have everything that was acked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regression_8_reads_see_every_ack_through_any_coordinator() {
    let _alone = CLUSTER.write().await;
    let config = fresh_on_own(patient_constants()).await;
    let subject = Subject::on_cluster(&config).await;
    // Many partitions, so that each node is the first replica of some.
    let keys: Vec<Key> = (0..12).map(|at| key(&format!("g{at}"), "n")).collect();
    for key in &keys {
        subject.put(key, 1).await;
    }
    let _hints = Hints::paused_on(&["1", "2"]);
    let killed = Killed::nodes(&["3"]);
    killed.noticed_by("1").await;
    killed.noticed_by("2").await;
    let mut missed = 0;
    for by in 2..=6 {
        for key in &keys {
            subject.put(key, by).await;
        }
        missed += i128::from(by);
    }
    let mut acked = 1 + missed;
    drop(killed);
    let coordinators = Coordinators::of(&config).await;
    for round in 0..10 {
        for key in &keys {
            for node in 1..=3 {
                let total = coordinators.total(node, key, Consistency::LocalQuorum).await;
                assert_eq!(total, acked, "round {round}, node {node}");
            }
            assert_eq!(subject.total(key).await, Some(acked), "round {round}");
        }
        // Counting continues meanwhile, through a node that lacks the earlier writes.
        for key in &keys {
            subject.put(key, 100).await;
        }
        acked += 100;
    }
    // With one replica a read shows what that node has: node 3 lagged to the end.
    let here = datacenter(&config).await;
    let alone = format!("{{'class': 'NetworkTopologyStrategy', '{here}': 1}}");
    cql(&config, &format!("ALTER KEYSPACE {} WITH replication = {alone}", config.keyspace)).await;
    let mut behind = 0;
    for key in &keys {
        let total = coordinators.total(3, key, Consistency::LocalOne).await;
        behind += i32::from(total <= acked - missed);
    }
    println!("node 3 is behind with {behind} of the keys that it is the first replica of");
    assert!(behind > 0, "no replica lagged, so nothing was tested");
    subject.store.close().await;
    drop_keyspace(&config).await;
}

/// The ancestor's defect 3: without the writer's timestamps, the coordinators' clocks decide. Each pair of writes goes
/// through randomly chosen coordinators, and the older write arrives last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regression_3_timestamps_decide_through_any_coordinator() {
    with_store(async |subject: Subject| {
        for round in 0..30 {
            let key = key("g", &format!("n{round}"));
            let (mut mutator, now) = (subject.born(&key), subject.now());
            let older = next_write(&mut mutator, 1, now);
            mutator.finish_write(Err(WriteError::Unknown("slow".into())), now);
            let newer = next_write(&mut mutator, 10, now);
            subject.write(&newer).await;
            subject.write(&older).await;
            assert_eq!(subject.total(&key).await, Some(11), "round {round}");
        }
    })
    .await;
}

/// The ancestor's defect 5: the batch's timestamp was equal to the highest expiry, not above it. Rows forged around the
/// timestamps show where the tally and the deletion are, because deletions win ties.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regression_5_a_fold_is_written_just_above_its_fence() {
    let _others_too = CLUSTER.read().await;
    let config = fresh(short_constants()).await;
    let subject = Subject::on_cluster(&config).await;
    let key = key("g", "n");
    subject.put(&key, 1).await;
    let first = subject.put(&key, 2).await;
    let fold = subject.fold(&key, subject.when_final()).await;
    let forge = async |key: &Key, expires_at: Timestamp, id: Uuid, timestamp: Timestamp| {
        let (group, name) = (&key.group, &key.name);
        let (expires_at, timestamp) = (expires_at.as_micros(), timestamp.as_micros());
        let seal = KeySeal::of(key).row(Timestamp::from_micros(expires_at), MutatorId::new(id));
        let state = encode_shard(seal, &State::identity(key.kind), 1);
        let state = state.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        cql(&config, &format!(
            "INSERT INTO {}.shards (kind, grp, name, expires_at, mutator_id, state) VALUES \
             ('counter', '{group}', '{name}', {expires_at}, {id}, 0x{state}) USING TIMESTAMP {timestamp}",
            config.keyspace
        ))
        .await;
        subject.rows(key).await.expect("rows")
    };
    let above = fold.fence().next();
    assert_eq!(forge(&key, first.expires_at(), Uuid::from_u128(1), above).await, 1);
    assert_eq!(forge(&key, fold.fence(), Uuid::from_u128(1), above).await, 1);
    assert_eq!(forge(&key, fold.fence(), Uuid::from_u128(1), above.next()).await, 2);
    // A tally forged at the fence loses, whatever its bytes are. One just above the fold's own wins.
    forge(&key, Timestamp::NEVER, Uuid::nil(), fold.fence()).await;
    assert_eq!(subject.total(&key).await, Some(3));
    forge(&key, Timestamp::NEVER, Uuid::nil(), above.next()).await;
    let level = subject.store.levels().read;
    let slice = subject.store.read_key(&key, None, level).await.expect("a slice");
    let tally = slice.tally().expect("a tally");
    assert!(RowReader::of(&key).tally(tally).is_err(), "the forged one");
    subject.store.close().await;
    drop_keyspace(&config).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_no_release_can_have_written_is_an_error() {
    let _others_too = CLUSTER.read().await;
    let config = fresh(short_constants()).await;
    let subject = Subject::on_cluster(&config).await;
    for (name, expires_at, id, state) in [
        ("no state", 1, Uuid::from_u128(1), "null"),
        ("no time", 0, Uuid::from_u128(1), "0x00"),
        ("half a tally", i64::MAX, Uuid::from_u128(1), "0x00"),
    ] {
        let key = key(name, name);
        subject.put(&key, 1).await;
        cql(
            &config,
            &format!(
                "INSERT INTO {}.shards (kind, grp, name, expires_at, mutator_id, state) VALUES \
             ('counter', '{name}', '{name}', {expires_at}, {id}, {state})",
                config.keyspace
            ),
        )
        .await;
        let error = subject.store.read_for_fold(&key).await.expect_err(name);
        assert!(matches!(error, StoreError::Corrupt(_)), "{name}: {error}");
    }
    subject.store.close().await;
    drop_keyspace(&config).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_schema_may_be_applied_by_many_pods_at_once_and_again() {
    let _others_too = CLUSTER.read().await;
    let config = config(&format!("contract_{}", Uuid::new_v4().simple()), short_constants());
    {
        let _one_at_a_time = DEFINING.lock().await;
        let replication = format!("{}:3", datacenter(&config).await);
        let apply = || schema::apply(&config, Some(replication.as_str()), true);
        let (a, b, c, d) = tokio::join!(apply(), apply(), apply(), apply());
        for applied in [a, b, c, d, apply().await] {
            applied.expect("applied");
        }
    }
    let subject = Subject::on_cluster(&config).await;
    subject.put(&key("g", "n"), 1).await;
    subject.store.close().await;
    drop_keyspace(&config).await;
}

async fn refusal(config: &CassandraConfig) -> ConnectError {
    match CassandraStore::connect(config.clone(), Arc::new(SystemClock)).await {
        Ok(_) => panic!("{config:?} connects"),
        Err(error) => error,
    }
}

/// The number of writes to the table, added up over all nodes.
async fn writes_taken(config: &CassandraConfig) -> i64 {
    let session = session(config).await;
    let mut count = 0;
    for node in session.get_cluster_state().get_nodes_info() {
        let only = NodeIdentifier::Node(Arc::clone(node));
        // Each node knows only its own writes.
        let mut question = Statement::new(
            "SELECT count FROM system_views.local_write_latency \
             WHERE keyspace_name = ? AND table_name = 'shards'",
        );
        question.set_load_balancing_policy(Some(SingleTargetLoadBalancingPolicy::new(only, None)));
        // A request for all tables fails if another test drops one meanwhile.
        let ask = async || session.query_unpaged(question.clone(), (&config.keyspace,)).await;
        let answer = eventually("the writes of a node", ask).await;
        let rows = answer.into_rows_result().expect("rows");
        count += rows.single_row::<(i64,)>().expect("one row").0;
    }
    count
}

/// Starts used to delete a row that can't exist, at the lowest timestamp. Where that deletion was, Cassandra kept the
/// deletions of folds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_starts_writes_nothing() {
    let _others_too = CLUSTER.read().await;
    let config = fresh(short_constants()).await;
    for _ in 0..3 {
        Subject::on_cluster(&config).await.store.close().await;
    }
    assert_eq!(writes_taken(&config).await, 0);
    let subject = Subject::on_cluster(&config).await;
    subject.put(&key("g", "n"), 1).await;
    assert!(writes_taken(&config).await > 0, "writes are not seen");
    subject.store.close().await;
    drop_keyspace(&config).await;
}

/// The ancestor's defect 8, at start: consistency levels at which a read could miss an acked write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regression_8_levels_that_need_not_meet_are_refused_at_start() {
    let _others_too = CLUSTER.read().await;
    let good = fresh(short_constants()).await;
    for (write, read) in [
        (Level::One, Level::One),
        (Level::LocalOne, Level::LocalQuorum),
        (Level::LocalQuorum, Level::One),
    ] {
        let levels = Levels { write, read, fold: Level::All };
        let error = refusal(&CassandraConfig { levels, ..good.clone() }).await;
        assert!(matches!(error, ConnectError::Levels(_)), "{error}");
        let named = format!("write consistency {write} and read consistency {read}");
        assert!(error.to_string().contains(&named), "{error}");
    }
    drop_keyspace(&good).await;
}

/// With more or fewer replicas the levels of a pod can miss what was counted. Folds would then lose it for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folds_wait_while_the_replication_does_not_fit_the_levels() {
    let _others_too = CLUSTER.read().await;
    let good = fresh(short_constants()).await;
    let alter = async |replicas: usize| {
        let datacenter = datacenter(&good).await;
        let replication =
            format!("{{'class': 'NetworkTopologyStrategy', '{datacenter}': {replicas}}}");
        cql(&good, &format!("ALTER KEYSPACE {} WITH replication = {replication}", good.keyspace))
            .await;
    };
    alter(1).await;
    let levels = Levels { read: Level::LocalOne, ..Levels::default() };
    let store =
        CassandraStore::connect(CassandraConfig { levels, ..good.clone() }, Arc::new(SystemClock))
            .await
            .expect("one replica");
    let why_not = || store.fold_time(SystemClock.now()).err().map(|pause| pause.to_string());
    let replicas = || store.placement().expect("replicas").replication.total();
    let is_seen = async |altered: usize| {
        eventually("the new replication is seen", async || match replicas() {
            seen if seen == altered => Ok(()),
            other => Err(other),
        })
        .await;
    };
    assert_eq!((why_not(), replicas()), (None, 1));
    alter(3).await;
    is_seen(3).await;
    let why = why_not().expect("2 + 1 of 3");
    assert!(why.contains("write consistency local_quorum and read consistency local_one"), "{why}");
    alter(2).await;
    is_seen(2).await;
    alter(1).await;
    eventually("folds go on", async || why_not().map_or(Ok(()), Err)).await;
    // The replica that stays can be the one without an update that the two others have acknowledged.
    alter(3).await;
    is_seen(3).await;
    alter(1).await;
    is_seen(1).await;
    let why = why_not().expect("0 + 1 of 1");
    assert!(why.contains(":3 to ") && why.contains(":1, so folds could miss"), "{why}");
    store.close().await;
    drop_keyspace(&good).await;
}

/// A property of the keyspace in the schema.
async fn one_text(config: &CassandraConfig, question: &str) -> String {
    let answer = session(config)
        .await
        .query_unpaged(question, (&config.keyspace,))
        .await
        .expect("an answer");
    let rows = answer.into_rows_result().expect("rows");
    rows.single_row::<(String,)>().expect("one row").0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_can_not_be_used_is_refused_with_advice() {
    let _others_too = CLUSTER.read().await;
    let missing = config("contract_never_made", short_constants());
    let error = refusal(&missing).await.to_string();
    assert!(error.contains("contract_never_made") && error.contains("schema apply"), "{error}");

    let good = fresh(short_constants()).await;
    // With speculative retry, a coordinator asks one more replica.
    let question = "SELECT speculative_retry FROM system_schema.tables \
                    WHERE keyspace_name = ? AND table_name = 'shards'";
    assert_eq!(one_text(&good, question).await, "MIN(99p,500ms)");
    let far = Some("mars".to_owned());
    let error = refusal(&CassandraConfig { local_datacenter: far, ..good.clone() }).await;
    assert!(error.to_string().contains(&datacenter(&good).await), "{error}");

    let nowhere = vec!["127.0.0.1:1".to_owned()];
    let error = refusal(&CassandraConfig { contact_points: nowhere, ..good.clone() }).await;
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");

    cql(&good, &format!("ALTER TABLE {}.resets ADD note text", good.keyspace)).await;
    let error = refusal(&good).await.to_string();
    assert!(error.contains(".resets can't be used: column note is not part of"), "{error}");
    let again = schema::apply(&good, None, true).await.expect_err("the same table");
    assert!(again.to_string().contains("column note"), "{again}");
    cql(&good, &format!("ALTER TABLE {}.resets DROP note", good.keyspace)).await;

    cql(&good, &format!("ALTER TABLE {}.shards WITH read_repair = 'BLOCKING'", good.keyspace))
        .await;
    let error = refusal(&good).await.to_string();
    assert!(error.contains("read_repair is BLOCKING"), "{error}");
    let again =
        schema::apply(&good, None, true).await.expect_err("the table is as wrong as before");
    assert!(again.to_string().contains("read_repair"), "{again}");

    cql(&good, &format!("DROP TABLE {}.shards", good.keyspace)).await;
    let error = refusal(&good).await;
    assert!(matches!(error, ConnectError::TableMissing(_)), "{error}");
    drop_keyspace(&good).await;
}

/// The fate of the driver's first query about the nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trouble {
    /// The connection ends, so the driver takes the contact points for the cluster.
    Ends,
    /// The node refuses the query, so the driver continues without the node's peers.
    Refused,
}

/// A proxy to the cluster that causes one fault.
struct Way {
    contact_point: String,
    is_over: Arc<AtomicBool>,
    /// A task that ends with it.
    _listener: JoinSet<()>,
}

impl Way {
    async fn to(node: String, trouble: Trouble) -> Way {
        // The driver assumes that all nodes have the same port.
        let (_, port) = node.rsplit_once(':').expect("a port");
        let host = if trouble == Trouble::Ends { 21 } else { 22 };
        let contact_point = format!("127.0.0.{host}:{port}");
        let listener = TcpListener::bind(&contact_point).await.expect("a free address");
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.expect("a connection");
                let server = TcpStream::connect(&node).await.expect("the node");
                connections.spawn(carry(client, server, trouble, Arc::clone(&over)));
            }
        });
        Way { contact_point, is_over, _listener: task }
    }

    /// Causes the same fault again, after the last one.
    fn trouble_again(&self) {
        assert!(self.is_over.swap(false, Ordering::Relaxed), "the driver did not query the nodes");
    }
}

async fn carry(client: TcpStream, server: TcpStream, trouble: Trouble, is_over: Arc<AtomicBool>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let there = async {
        let (mut piece, asked) = (vec![0; 1 << 16], b"system.peers");
        while let Ok(len @ 1..) = from_client.read(&mut piece).await {
            let at = piece[..len].windows(asked.len()).position(|part| part == asked);
            if let Some(at) = at
                && !is_over.swap(true, Ordering::Relaxed)
            {
                match trouble {
                    Trouble::Ends => return,
                    // This table does not exist.
                    Trouble::Refused => {
                        piece[at..at + asked.len()].copy_from_slice(b"system.nobod")
                    }
                }
            }
            if to_server.write_all(&piece[..len]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        () = there => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_first_look_at_the_cluster_is_repeated() {
    let _others_too = CLUSTER.read().await;
    for trouble in [Trouble::Ends, Trouble::Refused] {
        let plain = unmade_on_own(short_constants());
        let way = Way::to(plain.contact_points[0].clone(), trouble).await;
        let by_way =
            CassandraConfig { contact_points: vec![way.contact_point.clone()], ..plain.clone() };
        {
            let _one_at_a_time = DEFINING.lock().await;
            schema::apply(&by_way, None, true).await.expect("replicas in the data centre there is");
        }
        way.trouble_again();
        let here = datacenter(&plain).await;
        let question = format!(
            "SELECT replication['{here}'] FROM system_schema.keyspaces WHERE keyspace_name = ?"
        );
        assert_eq!(one_text(&plain, &question).await, "3", "{trouble:?}");
        let subject = Subject::on_cluster(&by_way).await;
        way.trouble_again();
        subject.put(&key("g", "n"), 1).await;
        let read = subject.store.read_for_fold(&key("g", "n")).await.expect("rows");
        assert_eq!(read.slice().len(), 1);
        subject.store.close().await;
        drop_keyspace(&plain).await;
    }
}

/// Until this is dropped, every node of the script's own cluster has a false release of the others in its table of peers.
struct FalsePeers {
    /// What all nodes run.
    release: String,
}

impl FalsePeers {
    async fn saying(release: &str, config: &CassandraConfig) -> FalsePeers {
        let peers = FalsePeers { release: cassandra::release(config).await };
        say_of_peers(release);
        peers
    }
}

impl Drop for FalsePeers {
    fn drop(&mut self) {
        say_of_peers(&self.release);
    }
}

fn say_of_peers(release: &str) {
    for (node, peer) in [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)] {
        let statement = format!(
            "UPDATE system.peers SET release_version = '{release}' WHERE peer = '127.0.0.{peer}'"
        );
        script(&["cql", &node.to_string(), &statement]);
    }
}

/// The table of peers can have a release from before an upgrade.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_tells_its_release_and_its_peers_do_while_it_is_down() {
    let _alone = CLUSTER.write().await;
    let config = unmade_on_own(patient_constants());
    let peers = FalsePeers::saying("3.11.0", &config).await;
    schema::apply(&config, None, true).await.expect("no node runs 3.11.0");
    Subject::on_cluster(&config).await.store.close().await;
    let killed = Killed::nodes(&["3"]);
    killed.noticed_by("1").await;
    let error = refusal(&config).await;
    assert!(matches!(&error, ConnectError::EngineTooOld(said) if said == "3.11.0"), "{error}");
    drop(killed);
    drop(peers);
    drop_keyspace(&config).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_are_used_and_wrong_ones_are_named() {
    let _others_too = CLUSTER.read().await;
    script(&["start-auth"]);
    let contact_points = vec!["127.0.0.11:9042".to_owned()];
    let keyspace = format!("contract_{}", Uuid::new_v4().simple());
    let with = |login: Option<(&str, &str)>| CassandraConfig {
        contact_points: contact_points.clone(),
        keyspace: keyspace.clone(),
        login: login
            .map(|(user, password)| Arc::new(Login::new(user.to_owned(), password.to_owned()))),
        tls: None,
        local_datacenter: None,
        levels: Levels::default(),
        constants: short_constants(),
        request_limits: RequestLimits::default(),
    };
    for wrong in [with(Some(("cassandra", "wrong"))), with(None)] {
        let error = refusal(&wrong).await;
        assert!(matches!(error, ConnectError::Credentials { .. }), "{error}");
    }
    let right = with(Some(("cassandra", "cassandra")));
    eventually("the schema with credentials", async || schema::apply(&right, None, true).await)
        .await;
    let subject = Subject::on_cluster(&right).await;
    subject.put(&key("g", "n"), 1).await;
    subject.store.close().await;
    drop(subject);
    script(&["stop-auth"]);
}
