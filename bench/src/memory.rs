//! Memory of a pod: what an active key costs, what is left of it once it is idle, and what a bound on
//! live mutators does to both.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use futures::future::try_join_all;
use tokio::time::Instant;

use crate::load;
use crate::machine::{self, resident_bytes};
use crate::peers::{Key, Peer};
use crate::report::{publish, thousands};
use crate::scenario::batch_request;
use crate::server::{self, Server, mark};
use crate::wire::{Connection, request};

/// Updates of one request, and requests on their way at once.
const BATCH: usize = 1_000;
const AT_ONCE: usize = 8;

/// Keys of a group.
const GROUP_KEYS: usize = 100;

/// Visits of each key.
const VISITS: u32 = 2;

/// One key in so many is read in the end.
const READ_EVERY: usize = 20;

/// Lives long enough to visit all keys, and short enough to wait for their end.
const TIMES: [(&str, &str); 3] =
    [("ORDERFREE_LIFETIME", "8m"), ("ORDERFREE_DRAIN_MARGIN", "3m"), ("ORDERFREE_CUTOFF", "2m")];

/// Longest wait until all mutators are gone: a lifetime, and until the pod has noticed.
const IDLE_WITHIN: Duration = Duration::from_secs(520);

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
    /// Live mutators of the bounded pod.
    #[arg(long, default_value_t = 100_000, value_name = "COUNT")]
    bound: usize,
    /// Where the table goes; besides, it is printed.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Measures and prints.
///
/// # Errors
/// If the store can't be used, or a value is wrong.
pub(crate) async fn run(args: MemoryArgs) -> anyhow::Result<()> {
    let warm = BATCH * AT_ONCE;
    let least = args.bound.min(2 * args.keys);
    ensure!(
        least > warm,
        "--bound, and twice --keys, must be above the {warm} keys to warm up with"
    );
    let mut text = format!(
        "## Memory of a pod: {}\n\n{}; {} keys, visited {VISITS} times, {BATCH} in a request\n\n\
         | live mutators, most | MiB at first | MiB with all keys | bytes a live key | MiB once all are idle | \
         shards for these keys |\n\
         | --- | --- | --- | --- | --- | --- |\n",
        args.mode,
        machine::describe(),
        thousands(args.keys as f64)
    );
    for mutators_max in [2 * args.keys, args.bound] {
        let line = pod(&args, mutators_max).await?;
        eprintln!("{line}");
        writeln!(text, "{line}")?;
    }
    publish(&text, args.output.as_deref())
}

/// One pod with so many live mutators at most.
async fn pod(args: &MemoryArgs, mutators_max: usize) -> anyhow::Result<String> {
    let mark = mark();
    let mut arguments = server::stores(&args.cassandra, None);
    arguments.extend(["--mutators-max".to_owned(), mutators_max.to_string()]);
    // Another pod's shards must not be folded meanwhile.
    arguments.extend(["--keyspace".to_owned(), format!("bench_{mark}")]);
    let mut server = Server::start(&mark, &arguments, &TIMES).await?;
    let memory = || resident_bytes(server.pid).context("the server is gone");
    // What the first requests cost a pod is no key's.
    let warm = keys("warm", BATCH * AT_ONCE);
    visit(&server, &warm).await?;
    let before = memory()?;
    let keys = keys("key", args.keys);
    for _ in 0..VISITS {
        visit(&server, &keys).await?;
    }
    let after = memory()?;
    let births = metric(&server, "orderfree_births_total").await? - warm.len() as f64;
    at_rest(&server).await?;
    let left = memory()?;
    let paths = keys.iter().step_by(READ_EVERY).map(|key| Peer::Ours.path(key));
    for value in load::values(server.address, paths.collect()).await? {
        ensure!(value == i64::from(VISITS), "a key says {value} instead of {VISITS}");
    }
    server.kill().await?;
    let mib = |bytes: f64| format!("{:.0}", bytes / f64::from(1 << 20));
    // Where there is a bound, those that came first had to go.
    let more = args.keys.min(mutators_max - warm.len()) as f64;
    Ok(format!(
        "| {} | {} | {} | {:.0} | {} | {} |",
        thousands(mutators_max as f64),
        mib(before),
        mib(after),
        (after - before) / more,
        mib(left),
        thousands(births)
    ))
}

fn keys(name: &str, count: usize) -> Vec<Key> {
    let key = |at| Key { group: format!("{name}-{}", at / GROUP_KEYS), name: format!("k{at}") };
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

/// Waits until the pod has noticed its mutators, and none of them is left.
async fn at_rest(server: &Server) -> anyhow::Result<()> {
    let (begun, mut were_seen) = (Instant::now(), false);
    loop {
        let is_none = metric(server, "orderfree_mutators").await? == 0.0;
        if were_seen && is_none {
            return Ok(());
        }
        were_seen |= !is_none;
        ensure!(begun.elapsed() < IDLE_WITHIN, "mutators are still alive");
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// What a pod says of itself.
async fn metric(server: &Server, name: &str) -> anyhow::Result<f64> {
    let mut connection = Connection::open(server.address).await?;
    let answer = connection.ask(&request("GET", "/metrics", "", "")).await?;
    let text = String::from_utf8_lossy(answer.body);
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.with_context(|| format!("no metric {name}"))?.trim().parse().context("not a number")
}
