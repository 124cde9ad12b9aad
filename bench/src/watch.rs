//! The cost of watchers: the same paced increments of one hot key without watchers and with many, in the same rounds.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::figures::{Spread, thousands};
use crate::load::{Choice, Load, Pace, Prepared};
use crate::machine::{self, Processes};
use crate::peers::{Key, Peer};
use crate::report::publish;
use crate::scenario::ops_request;
use crate::server::{self, Server, mark};
use crate::wire::request;

/// Connections that increment.
const CONNECTIONS: usize = 64;

/// Bytes that each event has once.
const EVENT: &[u8] = b"\ndata: ";

/// As `nice` counts.
const LOWEST_PRIORITY: i32 = 19;

/// How long all watchers may take to connect.
const WATCHED_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub(crate) struct WatchArgs {
    /// Cassandra's contact points. Without them, the embedded store is measured.
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT")]
    cassandra: Vec<String>,
    /// A description of the store's configuration, shown above the figures.
    #[arg(long, value_name = "TEXT")]
    mode: String,
    /// Number of watchers, each with a connection of its own.
    #[arg(long, default_value_t = 1_000, value_name = "COUNT")]
    watchers: usize,
    /// Increments per second.
    #[arg(long, default_value_t = 10_000, value_name = "COUNT")]
    rate: u32,
    /// Increments per request, a divisor of the rate. With 1, two processors have little room for watchers.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..), value_name = "COUNT")]
    batch: u32,
    /// Rounds without watchers, and as many with them.
    #[arg(long, default_value_t = 5, value_name = "COUNT")]
    rounds: usize,
    /// Length of a round.
    #[arg(long, default_value = "8s", value_parser = humantime::parse_duration, value_name = "TIME")]
    length: Duration,
    /// File for the table, which is also printed.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// One round.
struct Round {
    p50_us: f64,
    p99_us: f64,
    /// CPU time of the server, in ms a second.
    cpu: f64,
    /// Events that all watchers received, per second.
    events: f64,
}

/// # Errors
/// If the server can't be started, an update was not acknowledged, or the watchers got no events.
pub(crate) async fn run(args: WatchArgs) -> anyhow::Result<()> {
    ensure!(
        args.rate.is_multiple_of(args.batch),
        "--rate {} is no multiple of --batch {}; the rate would be another one",
        args.rate,
        args.batch
    );
    let mark = mark();
    let mut arguments = server::stores(&args.cassandra, None);
    arguments.extend(["--keyspace".to_owned(), format!("bench_{mark}")]);
    let mut server = Server::start(&mark, &arguments, &[]).await?;
    let key = Key { group: mark, name: "hot".to_owned() };
    round(&args, &server, &key, 0).await?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        without.push(round(&args, &server, &key, 0).await?);
        with.push(round(&args, &server, &key, args.watchers).await?);
    }
    server.kill().await?;
    publish(&table(&args, &without, &with)?, args.output.as_deref())
}

async fn round(
    args: &WatchArgs,
    server: &Server,
    key: &Key,
    watchers: usize,
) -> anyhow::Result<Round> {
    let watchers = Watchers::start(server.address, key, watchers).await?;
    let increments = match args.batch {
        1 => request("POST", &Peer::Ours.path(key), "", ""),
        count => ops_request(key, count as usize),
    };
    let load = Load {
        address: server.address,
        requests: Rc::from([Prepared::new(increments, vec![(0, args.batch.into())])]),
        choice: Choice::Uniform,
        pace: Pace::Open(args.rate / args.batch),
        connections: CONNECTIONS,
        length: args.length,
        parts: Vec::new(),
        seed: 1,
    };
    let process = Processes::new("server", vec![server.pid]);
    let (cpu, events) = (process.cpu_seconds(), watchers.events());
    let figures = load.run().await?;
    let (cpu, events) = (process.cpu_seconds() - cpu, watchers.events() - events);
    watchers.end()?;
    let due = figures.all();
    ensure!(due.failed == 0, "{} updates failed: {:?}", due.failed, figures.failure);
    let at = |quantile| due.latency.value_at_quantile(quantile) as f64;
    let round = Round {
        p50_us: at(0.5),
        p99_us: at(0.99),
        cpu: cpu * 1e3 / figures.seconds,
        events: events as f64 / figures.seconds,
    };
    eprintln!(
        "p50 {:.0} µs, p99 {:.0} µs, CPU {:.0} ms/s, {:.0} events/s",
        round.p50_us, round.p99_us, round.cpu, round.events
    );
    Ok(round)
}

fn table(args: &WatchArgs, without: &[Round], with: &[Round]) -> anyhow::Result<String> {
    let mut text = format!(
        "## Watchers: {}\n\n{}; one hot key, {} increments/s in requests of {}; {} rounds of {:?} without \
         watchers and with {}; median (least to most)\n\n| | without | with | ratio of the medians |\n| --- | --- | --- | --- |\n",
        args.mode,
        machine::describe(),
        thousands(f64::from(args.rate)),
        args.batch,
        args.rounds,
        args.length,
        thousands(args.watchers as f64)
    );
    type Of = fn(&Round) -> f64;
    let rows: [(&str, Of); 4] = [
        ("latency of an update, p50, µs", |round| round.p50_us),
        ("latency of an update, p99, µs", |round| round.p99_us),
        ("CPU time of the server, ms a second", |round| round.cpu),
        ("events a second", |round| round.events),
    ];
    for (title, of) in rows {
        let spread = |rounds: &[Round]| Spread::of(rounds.iter().map(of)).context("no rounds");
        let (before, after) = (spread(without)?, spread(with)?);
        let ratio = match before.median > 0.0 {
            true => format!("{:.2}×", after.median / before.median),
            false => String::new(),
        };
        writeln!(text, "| {title} | {} | {} | {ratio} |", before.in_words(), after.in_words())?;
    }
    let cpu =
        |rounds: &[Round]| Spread::of(rounds.iter().map(|round| round.cpu)).map(|all| all.median);
    let more = cpu(with).context("no rounds")? - cpu(without).context("no rounds")?;
    writeln!(
        text,
        "\nA watcher takes {:.0} µs of CPU time a second.",
        more * 1e3 / args.watchers as f64
    )?;
    Ok(text)
}

/// Watchers in a thread of their own, because the load has one, too. The thread has the lowest priority: in production,
/// watchers run on other machines and take no processor time from the pod and its clients.
struct Watchers {
    stop: CancellationToken,
    events: Arc<AtomicU64>,
    thread: thread::JoinHandle<anyhow::Result<()>>,
}

impl Watchers {
    /// Returns when each has its first event.
    async fn start(address: SocketAddr, key: &Key, count: usize) -> anyhow::Result<Watchers> {
        let (stop, events) = (CancellationToken::new(), Arc::new(AtomicU64::new(0)));
        let path = format!("/v1/watch?key=counter/{}/{}", key.group, key.name);
        let bytes = request("GET", &path, "", "");
        let (told, seen) = (stop.clone(), Arc::clone(&events));
        let thread = thread::spawn(move || {
            // On Linux, this is the priority of the calling thread alone.
            rustix::process::nice(LOWEST_PRIORITY)?;
            Builder::new_current_thread().enable_all().build()?.block_on(async {
                let mut all = JoinSet::new();
                for _ in 0..count {
                    all.spawn(watch(address, bytes.clone(), told.clone(), Arc::clone(&seen)));
                }
                while let Some(ended) = all.join_next().await {
                    ended??;
                }
                Ok(())
            })
        });
        let (watchers, began) = (Watchers { stop, events, thread }, Instant::now());
        while watchers.events() < count as u64 {
            ensure!(began.elapsed() < WATCHED_WITHIN, "the watchers get no events");
            sleep(Duration::from_millis(50)).await;
        }
        Ok(watchers)
    }

    fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    fn end(self) -> anyhow::Result<()> {
        self.stop.cancel();
        self.thread.join().map_err(|_| anyhow::anyhow!("the watchers panicked"))?
    }
}

/// Counts events until it is stopped.
async fn watch(
    address: SocketAddr,
    request: Vec<u8>,
    stop: CancellationToken,
    events: Arc<AtomicU64>,
) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(&request).await?;
    let mut buffer = vec![0; 16 << 10];
    loop {
        let count = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            count = stream.read(&mut buffer) => count?,
        };
        ensure!(count > 0, "a stream ended");
        let found = memmem::find_iter(&buffer[..count], EVENT).count() as u64;
        events.fetch_add(found, Ordering::Relaxed);
    }
}
