//! Memory of a pod: what a key costs that is awake, and one at rest; and whether keys that wake are right.

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

/// Updates of one request, and requests on their way at once.
const BATCH: usize = 1_000;
const AT_ONCE: usize = 8;

/// Keys of a group.
const GROUP_KEYS: usize = 100;

/// Longest wait until all mutators rest: those that are not used do within 20 s.
const REST_WITHIN: Duration = Duration::from_secs(60);

/// One key in so many wakes in the end, and is read.
const WAKE_EVERY: usize = 50;

/// What to measure.
#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub(crate) struct MemoryArgs {
    /// Cassandra's contact points; without them the embedded store is measured, with its cache.
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT")]
    cassandra: Vec<String>,
    /// How the store is set up: stands above the figures.
    #[arg(long, value_name = "TEXT")]
    mode: String,
    /// Keys.
    #[arg(long, default_value_t = 1_000_000, value_name = "COUNT")]
    keys: usize,
    /// Keys that are awake together.
    #[arg(long, default_value_t = 100_000, value_name = "COUNT")]
    awake: usize,
    /// Memory of keys at rest.
    #[arg(long, default_value_t = 2 << 30, value_name = "BYTES")]
    resting_bytes: usize,
    /// Where the table goes; besides, it is printed.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Measures and prints.
///
/// # Errors
/// If the store can't be used, or a value is wrong.
pub(crate) async fn run(args: MemoryArgs) -> anyhow::Result<()> {
    ensure!(args.awake < args.keys, "--awake must be below --keys");
    let mark = mark();
    let mut arguments = server::stores(&args.cassandra, None);
    arguments.extend(["--mutators-max".to_owned(), (2 * args.awake).to_string()]);
    arguments.extend(["--resting-bytes".to_owned(), args.resting_bytes.to_string()]);
    // Another pod's shards must not be folded meanwhile.
    arguments.extend(["--keyspace".to_owned(), format!("bench_{mark}")]);
    let mut server = Server::start(&mark, &arguments, &[]).await?;
    let memory = || resident_bytes(server.pid).context("the server is gone");
    // What the first requests cost a pod is no key's.
    let warm = keys("warm", BATCH * AT_ONCE);
    visit(&server, &warm).await?;
    let before = memory()?;
    // Most of them before the pod looks for the first time who is not used.
    let keys = keys("key", args.keys);
    visit(&server, &keys[..args.awake]).await?;
    let awake = memory()?;
    visit(&server, &keys[args.awake..]).await?;
    all_rest(&server, args.keys + warm.len()).await?;
    let resting = memory()?;
    let resting_bytes = metric(&server, "orderfree_resting_bytes").await?;

    // Each that wakes has its number at once: what it had, and one more.
    let woken: Vec<Key> = keys.iter().step_by(WAKE_EVERY).cloned().collect();
    visit(&server, &woken).await?;
    for (from, expected) in [(0, 2), (1, 1)] {
        let sample = keys.iter().skip(from).step_by(WAKE_EVERY);
        let paths = sample.map(|key| Peer::Ours.path(key)).collect();
        for value in load::values(server.address, paths).await? {
            ensure!(value == expected, "a key says {value} instead of {expected}");
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

/// Keys of 40 bytes.
fn keys(name: &str, count: usize) -> Vec<Key> {
    let key = |at| Key {
        group: format!("{name:->4}-{:0>13}", at / GROUP_KEYS),
        name: format!("k{at:0>21}"),
    };
    (0..count).map(key).collect()
}

/// Adds one to each key, in batches, some of them at once.
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

/// Waits until so many mutators rest.
async fn all_rest(server: &Server, count: usize) -> anyhow::Result<()> {
    let begun = Instant::now();
    while metric(server, "orderfree_mutators_resting").await? < count as f64 {
        ensure!(begun.elapsed() < REST_WITHIN, "some mutators are still awake, or were forgotten");
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    Ok(())
}

/// What a pod says of itself.
async fn metric(server: &Server, name: &str) -> anyhow::Result<f64> {
    let mut connection = Connection::open(server.address).await?;
    let answer = connection.ask(&request("GET", "/metrics", "", "")).await?;
    let text = String::from_utf8_lossy(answer.body);
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.with_context(|| format!("no metric {name}"))?.trim().parse().context("not a number")
}
