//! Memory of a pod: the cost of an awake key and of a resting key. Also checks keys that wake up.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use futures::future::try_join_all;
use tokio::time::Instant;

use crate::figures::thousands;
use crate::load;
use crate::machine::{self, resident_bytes};
use crate::peers::{Key, Peer};
use crate::report::publish;
use crate::scenario::batch_request;
use crate::server::{self, Server, mark};
use crate::wire::{Connection, request};

/// Updates per request, and concurrent requests.
const BATCH: usize = 1_000;
const AT_ONCE: usize = 8;

/// Keys per group.
const GROUP_KEYS: usize = 100;

/// Longest wait until all mutators rest. Unused ones rest within 20 s.
const REST_WITHIN: Duration = Duration::from_secs(60);

/// At the end, one in this many keys wakes up and is read.
const WAKE_EVERY: usize = 50;

#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub(crate) struct MemoryArgs {
    /// Cassandra's contact points. Without them, the embedded store is measured, including its cache.
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT")]
    cassandra: Vec<String>,
    /// A description of the store's configuration, shown above the figures.
    #[arg(long, value_name = "TEXT")]
    mode: String,
    /// Number of keys.
    #[arg(long, default_value_t = 1_000_000, value_name = "COUNT")]
    keys: usize,
    /// Number of keys that are awake at the same time.
    #[arg(long, default_value_t = 100_000, value_name = "COUNT")]
    awake: usize,
    /// Memory for resting keys.
    #[arg(long, default_value_t = 2 << 30, value_name = "BYTES")]
    resting_bytes: usize,
    /// File for the table, which is also printed.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// # Errors
/// If the store can't be used, or a value is wrong.
pub(crate) async fn run(args: MemoryArgs) -> anyhow::Result<()> {
    ensure!(args.awake < args.keys, "--awake must be below --keys");
    let mark = mark();
    let mut arguments = server::stores(&args.cassandra, None);
    arguments.extend(["--mutators-max".to_owned(), (2 * args.awake).to_string()]);
    arguments.extend(["--resting-bytes".to_owned(), args.resting_bytes.to_string()]);
    // No other pod's shards may be folded during the measurement.
    arguments.extend(["--keyspace".to_owned(), format!("bench_{mark}")]);
    let mut server = Server::start(&mark, &arguments, &[]).await?;
    let memory = || resident_bytes(server.pid).context("the server is gone");
    // The memory that the first requests take does not belong to a key.
    let warm = keys("warm", BATCH * AT_ONCE);
    visit(&server, &warm).await?;
    let before = memory()?;
    // Count most keys before the pod first looks for unused mutators.
    let keys = keys("key", args.keys);
    visit(&server, &keys[..args.awake]).await?;
    let awake = memory()?;
    visit(&server, &keys[args.awake..]).await?;
    all_rest(&server, args.keys + warm.len()).await?;
    let resting = memory()?;
    let resting_bytes = metric(&server, "orderfree_resting_bytes").await?;

    // A key that wakes up must have its value at once: the old one plus one.
    let woken: Vec<Key> = keys.iter().step_by(WAKE_EVERY).cloned().collect();
    visit(&server, &woken).await?;
    for (from, expected) in [(0, 2), (1, 1)] {
        let sample = keys.iter().skip(from).step_by(WAKE_EVERY);
        let paths = sample.map(|key| Peer::Ours.path(key)).collect();
        for value in load::values(server.address, paths).await? {
            ensure!(value == expected, "a key is {value} instead of {expected}");
        }
    }
    let births = metric(&server, "orderfree_births_total").await? - warm.len() as f64;
    ensure!(births == args.keys as f64, "{births} shards: some keys were born twice");
    server.kill().await?;
    let mib = |bytes: f64| format!("{:.0}", bytes / f64::from(1 << 20));
    let text = format!(
        "## Memory of a pod: {}\n\n{}; {} keys, {BATCH} in a request; {} of them woke and were right\n\n\
         | keys | MiB before | MiB with {} awake | bytes of each | MiB with all at rest | bytes of each | \
         of them in the table |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n\
         | {} | {} | {} | {:.0} | {} | {:.0} | {:.0} |\n",
        args.mode,
        machine::describe(),
        thousands(args.keys as f64),
        thousands(woken.len() as f64),
        thousands(args.awake as f64),
        thousands(args.keys as f64),
        mib(before),
        mib(awake),
        (awake - before) / args.awake as f64,
        mib(resting),
        (resting - before) / args.keys as f64,
        resting_bytes / (args.keys + warm.len()) as f64,
    );
    publish(&text, args.output.as_deref())
}

/// Keys with names of 40 bytes.
fn keys(name: &str, count: usize) -> Vec<Key> {
    let key = |at| Key {
        group: format!("{name:->4}-{:0>13}", at / GROUP_KEYS),
        name: format!("k{at:0>21}"),
    };
    (0..count).map(key).collect()
}

/// Adds one to each key, in batches of which several are sent at once.
async fn visit(server: &Server, keys: &[Key]) -> anyhow::Result<()> {
    let lanes = (0..AT_ONCE).map(|lane| async move {
        let mut connection = Connection::open(server.address).await?;
        for batch in keys.chunks(BATCH).skip(lane).step_by(AT_ONCE) {
            let answer = connection.ask(&batch_request(Peer::Ours, batch.iter())).await?;
            let body = String::from_utf8_lossy(answer.body);
            let is_acked = answer.status == 200 && load::are_all_acked(answer.body);
            ensure!(is_acked, "a batch was answered {}: {body:.300}", answer.status);
        }
        anyhow::Ok(())
    });
    try_join_all(lanes).await.map(drop)
}

/// Waits until this many mutators rest.
async fn all_rest(server: &Server, count: usize) -> anyhow::Result<()> {
    let begun = Instant::now();
    while metric(server, "orderfree_mutators_resting").await? < count as f64 {
        ensure!(begun.elapsed() < REST_WITHIN, "some mutators are still awake, or were forgotten");
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    Ok(())
}

/// The value of a pod's metric.
async fn metric(server: &Server, name: &str) -> anyhow::Result<f64> {
    let mut connection = Connection::open(server.address).await?;
    let answer = connection.ask(&request("GET", "/metrics", "", "")).await?;
    let text = String::from_utf8_lossy(answer.body);
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.with_context(|| format!("no metric {name}"))?.trim().parse().context("not a number")
}
