//! Native counters, native counters with group commit, and plain rows, on one session with the product's
//! configuration.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use futures::future::try_join_all;
use scylla::client::PoolSize;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::serialize::row::SerializeRow;
use scylla::statement::Consistency;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::Counter;
use tokio::sync::watch;
use uuid::Uuid;

use super::{Counters, Key};

/// Replicas of a key, if there are enough nodes.
const REPLICAS: usize = 3;

/// The product's number of connections per node, and its timeout of an attempt.
const CONNECTIONS_PER_NODE: NonZeroUsize = NonZeroUsize::new(2).expect("not zero");
const ATTEMPT: Duration = Duration::from_secs(2);

/// Statements per batch: the server warns about batches larger than 5 KiB.
const BATCH_ROWS: usize = 50;

/// Connects, and creates the keyspace and the tables.
pub(super) async fn connect(points: &[String], keyspace: &str) -> anyhow::Result<Arc<Session>> {
    let profile = ExecutionProfile::builder()
        .consistency(Consistency::LocalQuorum)
        .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
        .request_timeout(Some(ATTEMPT))
        .build();
    let session = SessionBuilder::new()
        .known_nodes(points)
        .compression(None)
        .tcp_nodelay(true)
        .pool_size(PoolSize::PerHost(CONNECTIONS_PER_NODE))
        .default_execution_profile_handle(profile.into_handle())
        .build()
        .await
        .with_context(|| format!("no Cassandra answers at {}", points.join(",")))?;
    let nodes = session.get_cluster_state().get_nodes_info().len();
    let datacenter = session.get_cluster_state().get_nodes_info()[0].datacenter.clone();
    let datacenter = datacenter.context("a node without a data centre")?;
    let replicas = nodes.min(REPLICAS);
    for statement in [
        format!(
            "CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = \
             {{'class': 'NetworkTopologyStrategy', '{datacenter}': {replicas}}}"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {keyspace}.native \
             (grp text, name text, c counter, PRIMARY KEY (grp, name))"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {keyspace}.plain (grp text, name text, writer uuid, \
             state bigint, PRIMARY KEY (grp, name, writer))"
        ),
    ] {
        session.query_unpaged(statement, ()).await?;
    }
    session.use_keyspace(keyspace, false).await?;
    Ok(Arc::new(session))
}

/// One `UPDATE … SET c = c + ?` per request.
pub(super) struct Native {
    session: Arc<Session>,
    add: PreparedStatement,
    get: PreparedStatement,
}

impl Native {
    pub(super) async fn new(session: &Arc<Session>) -> anyhow::Result<Native> {
        let add = "UPDATE native SET c = c + ? WHERE grp = ? AND name = ?";
        let get = "SELECT c FROM native WHERE grp = ? AND name = ?";
        Ok(Native {
            add: session.prepare(add).await?,
            get: session.prepare(get).await?,
            session: Arc::clone(session),
        })
    }
}

impl Counters for Native {
    async fn add(&self, key: Key, by: i64) -> anyhow::Result<()> {
        self.session.execute_unpaged(&self.add, (Counter(by), &key.group, &key.name)).await?;
        Ok(())
    }

    /// One counter batch per group, split after a fixed number of keys.
    async fn add_many(&self, adds: Vec<(Key, i64)>) -> anyhow::Result<()> {
        let batches = by_group(&adds).into_iter().map(|adds| async move {
            let values: Vec<_> =
                adds.iter().map(|(k, by)| (Counter(*by), &k.group, &k.name)).collect();
            send(&self.session, BatchType::Counter, &self.add, values).await
        });
        try_join_all(batches).await.map(drop)
    }

    async fn value(&self, key: Key) -> anyhow::Result<i64> {
        let rows = self.session.execute_unpaged(&self.get, (&key.group, &key.name)).await?;
        let row = rows.into_rows_result()?.maybe_first_row::<(Counter,)>()?;
        Ok(row.map_or(0, |(value,)| value.0))
    }
}

/// Increments of one group, up to the limit of a batch.
fn by_group(adds: &[(Key, i64)]) -> Vec<Vec<&(Key, i64)>> {
    let mut groups: HashMap<&str, Vec<&(Key, i64)>> = HashMap::new();
    adds.iter().for_each(|add| groups.entry(&add.0.group).or_default().push(add));
    let parts = groups.values().flat_map(|adds| adds.chunks(BATCH_ROWS));
    parts.map(<[_]>::to_vec).collect()
}

async fn send(
    session: &Session,
    of: BatchType,
    statement: &PreparedStatement,
    values: Vec<impl SerializeRow>,
) -> anyhow::Result<()> {
    let mut batch = Batch::new(of);
    values.iter().for_each(|_| batch.append_statement(statement.clone()));
    session.batch(&batch, values).await?;
    Ok(())
}

/// Native counters with group commit: while one update of a key is being written, the increments that arrive are
/// gathered for the next.
pub(super) struct Coalesced {
    native: Arc<Native>,
    keys: Arc<Mutex<HashMap<Key, Gathering>>>,
}

/// The increments that wait for the current update.
struct Gathering {
    sum: i64,
    done: watch::Sender<Option<Result<(), String>>>,
}

impl Coalesced {
    pub(super) async fn new(session: &Arc<Session>) -> anyhow::Result<Coalesced> {
        Ok(Coalesced { native: Arc::new(Native::new(session).await?), keys: Arc::default() })
    }

    /// Sends gathered increments until none are left.
    async fn flush(native: Arc<Native>, keys: Arc<Mutex<HashMap<Key, Gathering>>>, key: Key) {
        loop {
            let gathered = {
                let mut keys = keys.lock().unwrap_or_else(PoisonError::into_inner);
                let gathering = keys.get_mut(&key).expect("invariant: only its flush removes it");
                if gathering.sum == 0 {
                    keys.remove(&key);
                    return;
                }
                std::mem::replace(gathering, Gathering::empty())
            };
            let sent = native.add(key.clone(), gathered.sum).await;
            gathered.done.send_replace(Some(sent.map_err(|error| format!("{error:#}"))));
        }
    }
}

impl Gathering {
    fn empty() -> Gathering {
        Gathering { sum: 0, done: watch::Sender::new(None) }
    }
}

impl Counters for Coalesced {
    async fn add(&self, key: Key, by: i64) -> anyhow::Result<()> {
        let mut done = {
            let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
            let gathering = keys.entry(key.clone()).or_insert_with(|| {
                let (native, keys) = (Arc::clone(&self.native), Arc::clone(&self.keys));
                tokio::spawn(Coalesced::flush(native, keys, key));
                Gathering::empty()
            });
            gathering.sum += by;
            gathering.done.subscribe()
        };
        let result = done.wait_for(Option::is_some).await?.clone();
        result.expect("invariant: waited for").map_err(|error| anyhow!(error))
    }

    async fn add_many(&self, adds: Vec<(Key, i64)>) -> anyhow::Result<()> {
        try_join_all(adds.into_iter().map(|(key, by)| self.add(key, by))).await.map(drop)
    }

    async fn value(&self, key: Key) -> anyhow::Result<i64> {
        self.native.value(key).await
    }
}

/// One row per key of this process. Each request overwrites it with the sum: the cost of writing a shard per
/// request.
pub(super) struct Plain {
    session: Arc<Session>,
    put: PreparedStatement,
    get: PreparedStatement,
    writer: Uuid,
    sums: Mutex<(HashMap<Key, i64>, i64)>,
}

impl Plain {
    pub(super) async fn new(session: &Arc<Session>) -> anyhow::Result<Plain> {
        let put = "INSERT INTO plain (grp, name, writer, state) VALUES (?, ?, ?, ?) \
                   USING TIMESTAMP ?";
        let get = "SELECT state FROM plain WHERE grp = ? AND name = ?";
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
        Ok(Plain {
            put: session.prepare(put).await?,
            get: session.prepare(get).await?,
            session: Arc::clone(session),
            writer: Uuid::new_v4(),
            sums: Mutex::new((HashMap::new(), i64::try_from(now)?)),
        })
    }

    /// The sum with this increment, and a timestamp above all earlier ones.
    fn sum(&self, key: &Key, by: i64) -> (i64, i64) {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let (of_key, timestamp) = &mut *sums;
        *timestamp += 1;
        let sum = of_key.entry(key.clone()).or_insert(0);
        *sum += by;
        (*sum, *timestamp)
    }
}

impl Counters for Plain {
    async fn add(&self, key: Key, by: i64) -> anyhow::Result<()> {
        let (sum, timestamp) = self.sum(&key, by);
        let values = (&key.group, &key.name, self.writer, sum, timestamp);
        self.session.execute_unpaged(&self.put, values).await?;
        Ok(())
    }

    /// One unlogged batch per group, split after a fixed number of keys.
    async fn add_many(&self, adds: Vec<(Key, i64)>) -> anyhow::Result<()> {
        let batches = by_group(&adds).into_iter().map(|adds| async move {
            let values = adds.iter().map(|(key, by)| {
                let (sum, timestamp) = self.sum(key, *by);
                (&key.group, &key.name, self.writer, sum, timestamp)
            });
            send(&self.session, BatchType::Unlogged, &self.put, values.collect()).await
        });
        try_join_all(batches).await.map(drop)
    }

    async fn value(&self, key: Key) -> anyhow::Result<i64> {
        let rows = self.session.execute_unpaged(&self.get, (&key.group, &key.name)).await?;
        let rows = rows.into_rows_result()?;
        let values: Result<Vec<(i64,)>, _> = rows.rows::<(i64,)>()?.collect();
        Ok(values?.into_iter().map(|(value,)| value).sum())
    }
}
