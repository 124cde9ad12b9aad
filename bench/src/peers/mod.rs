//! The peers: ways to count, each with the same routes on the same server.
//!
//! * `noop`: counts nothing and shows the cost of HTTP;
//! * `plain`: one row write per request, of a sum in memory; no read and no group commit;
//! * `native`: Cassandra's counters, one `UPDATE … SET c = c + ?` per request;
//! * `coalesced`: the same with group commit: one update per key at a time, while the next one is gathered;
//! * `redis`: `INCRBY` over one multiplexed connection;
//! * `ours`: Orderfree's own routes, as in a pod.

mod cassandra;
mod redis;

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::{self, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::{Args, ValueEnum};
use orderfree::engine::write::Bounds;
use orderfree::net::listen::Listener;
use orderfree::pod::config::{StoreArgs, StoreConfig};
use orderfree::pod::node::{Node, Parts};
use orderfree::pod::start;
use orderfree::runtime::clock::SystemClock;
use orderfree::{limits, store::cassandra as rows};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A way to count.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Peer {
    /// Nothing is counted.
    Noop,
    /// One row write per request.
    Plain,
    /// A native counter.
    Native,
    /// A native counter with group commit.
    Coalesced,
    /// Redis.
    Redis,
    /// Orderfree.
    Ours,
}

impl Peer {
    /// The name, which is also the first part of the path.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::Noop => "noop",
            Peer::Plain => "plain",
            Peer::Native => "native",
            Peer::Coalesced => "coalesced",
            Peer::Redis => "redis",
            Peer::Ours => "ours",
        }
    }

    /// The path to read and increment one key.
    #[must_use]
    pub(crate) fn path(self, key: &Key) -> String {
        let Key { group, name } = key;
        match self {
            Peer::Ours => format!("/v1/counter/{group}/{name}"),
            other => format!("/{}/{group}/{name}", other.name()),
        }
    }

    /// The path to increment many keys in one request.
    #[must_use]
    pub(crate) fn batch_path(self) -> String {
        match self {
            Peer::Ours => "/v1/batch".to_owned(),
            other => format!("/{}/batch", other.name()),
        }
    }
}

/// One counter.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Key {
    /// The group, which is one partition on stores with partitions.
    pub group: String,
    /// The name in the group.
    pub name: String,
}

/// A store of counters.
trait Counters: Send + Sync + 'static {
    /// Adds to one key.
    fn add(&self, key: Key, by: i64) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Adds to many different keys.
    fn add_many(&self, adds: Vec<(Key, i64)>) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// The value of a key.
    fn value(&self, key: Key) -> impl Future<Output = anyhow::Result<i64>> + Send;
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ServeArgs {
    /// Address to listen on, which is the first line printed. With port 0 the kernel chooses a port.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "HOST:PORT")]
    listen: SocketAddr,
    /// Cassandra's contact points. Without them, Orderfree counts in a file and there are no native peers.
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT")]
    cassandra: Vec<String>,
    /// Keyspace, created if it is missing.
    #[arg(long, default_value = "bench", value_name = "NAME")]
    keyspace: String,
    /// File of the embedded store.
    #[arg(long, default_value = "bench.redb", value_name = "FILE")]
    data: PathBuf,
    /// Redis's address, such as redis://127.0.0.1:6379. Without it, there is no such peer.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// Orderfree's mutators that are awake.
    #[arg(long, default_value_t = limits::MUTATORS_MAX, value_name = "COUNT")]
    mutators_max: usize,
    /// Memory for resting mutators.
    #[arg(long, default_value_t = limits::RESTING_BYTES, value_name = "BYTES")]
    resting_bytes: usize,
    /// The keyspace has its tables already, with or without the table of resets.
    #[arg(long)]
    as_it_is: bool,
}

/// Serves the peers until it is killed.
///
/// # Errors
/// If a store can't be used, or the address is taken.
pub(crate) async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let mut router = routes(Peer::Noop, Noop);
    if !args.cassandra.is_empty() {
        let session = cassandra::connect(&args.cassandra, &args.keyspace).await?;
        router = router
            .merge(routes(Peer::Plain, cassandra::Plain::new(&session).await?))
            .merge(routes(Peer::Native, cassandra::Native::new(&session).await?))
            .merge(routes(Peer::Coalesced, cassandra::Coalesced::new(&session).await?));
    }
    if let Some(url) = &args.redis {
        router = router.merge(routes(Peer::Redis, redis::Redis::connect(url).await?));
    }
    let node = ours(&args).await?;
    // The rest of the stack is the same for all peers.
    let router = node.router_with(router);
    let listener = TcpListener::bind(args.listen).await;
    let listener = listener.with_context(|| format!("cannot listen at {}", args.listen))?;
    println!("http://{}", listener.local_addr()?);
    let listener = Listener {
        port: listener.into(),
        tasks: orderfree::runtime::tasks::Tasks::new(),
        tls: None,
        connections_max: limits::CONNECTIONS_MAX,
        open: node.metrics().connections.clone(),
    };
    listener.serve(router, CancellationToken::new()).await;
    Ok(())
}

/// A complete pod.
async fn ours(args: &ServeArgs) -> anyhow::Result<Node> {
    let store = store_args(&args.cassandra, &args.keyspace, &args.data)?;
    let (config, constants) = (store.resolve()?, store.constants()?);
    if let StoreConfig::Cassandra(config) = &config
        && !args.as_it_is
    {
        rows::schema::apply(config, None, true).await?;
    }
    let clock = Arc::new(SystemClock);
    let store = start::open_store(config, constants, clock.clone()).await?;
    let node = Node::new(Parts {
        bounds: Bounds { resting_bytes: args.resting_bytes, ..Bounds::awake(args.mutators_max) },
        ..Parts::new(store, constants, clock)
    });
    node.start();
    Ok(node)
}

/// The product's settings of a store, from the environment.
///
/// # Errors
/// If the environment has a value that can't be parsed.
pub(crate) fn store_args(
    cassandra: &[String],
    keyspace: &str,
    data: &path::Path,
) -> anyhow::Result<StoreArgs> {
    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        store: StoreArgs,
    }
    let Cli { mut store } = <Cli as clap::Parser>::try_parse_from(["ours"])?;
    store.data = data.to_owned();
    store.cassandra = cassandra.to_vec();
    store.keyspace = keyspace.to_owned();
    Ok(store)
}

/// Every peer's answer to an update, which has the form of ours.
#[derive(Serialize)]
struct Acked {
    outcome: &'static str,
    #[serde(flatten)]
    key: Option<Key>,
}

/// Every peer's answer to a read.
#[derive(Serialize)]
struct Value {
    value: i64,
}

struct Failed(anyhow::Error);

impl<E: Into<anyhow::Error>> From<E> for Failed {
    fn from(error: E) -> Failed {
        Failed(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        (StatusCode::SERVICE_UNAVAILABLE, format!("{:#}", self.0)).into_response()
    }
}

fn routes<C: Counters>(peer: Peer, counters: C) -> Router {
    let path = format!("/{}/{{group}}/{{name}}", peer.name());
    Router::new()
        .route(&path, post(add::<C>).merge(get(value::<C>)))
        .route(&peer.batch_path(), post(add_many::<C>))
        .with_state(Arc::new(counters))
}

async fn add<C: Counters>(
    State(counters): State<Arc<C>>,
    Path((group, name)): Path<(String, String)>,
) -> Result<Json<Acked>, Failed> {
    let key = Key { group, name };
    counters.add(key.clone(), 1).await?;
    Ok(Json(Acked { outcome: "acked", key: Some(key) }))
}

async fn value<C: Counters>(
    State(counters): State<Arc<C>>,
    Path((group, name)): Path<(String, String)>,
) -> Result<Json<Value>, Failed> {
    Ok(Json(Value { value: counters.value(Key { group, name }).await? }))
}

/// A list of keys to increment by one each, with repeated keys added up.
async fn add_many<C: Counters>(
    State(counters): State<Arc<C>>,
    Json(keys): Json<Vec<Key>>,
) -> Result<Json<Acked>, Failed> {
    let mut sums = HashMap::with_capacity(keys.len());
    keys.into_iter().for_each(|key| *sums.entry(key).or_insert(0) += 1);
    counters.add_many(sums.into_iter().collect()).await?;
    Ok(Json(Acked { outcome: "acked", key: None }))
}

/// Counts nothing.
struct Noop;

impl Counters for Noop {
    async fn add(&self, _: Key, _: i64) -> anyhow::Result<()> {
        Ok(())
    }

    async fn add_many(&self, _: Vec<(Key, i64)>) -> anyhow::Result<()> {
        Ok(())
    }

    async fn value(&self, _: Key) -> anyhow::Result<i64> {
        Ok(0)
    }
}
