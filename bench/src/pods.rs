//! Throughput on one hot key by the number of pods that count on it, each with the same number of connections. One pod
//! spends most of its time waiting, so several pods can do more.

use std::fmt::Write;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use futures::future::try_join_all;

use crate::figures::{Spread, spread};
use crate::load::{self, Load};
use crate::machine;
use crate::peers::{Key, Peer};
use crate::plot;
use crate::report::publish;
use crate::scenario::Scenario;
use crate::server::{self, Server, mark};

/// Numbers of pods.
const PODS: [usize; 3] = [1, 2, 4];

/// Connections per pod: few enough that one machine can serve those of several pods.
const CONNECTIONS: usize = 128;

/// The peers to compare.
const PEERS: [Peer; 3] = [Peer::Native, Peer::Coalesced, Peer::Ours];

#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub(crate) struct PodsArgs {
    /// Cassandra's contact points.
    #[arg(long, value_delimiter = ',', required = true, value_name = "HOST:PORT")]
    cassandra: Vec<String>,
    /// A description of the store's configuration, shown above the figures.
    #[arg(long, value_name = "TEXT")]
    mode: String,
    /// Rounds per measurement.
    #[arg(long, default_value_t = 3, value_name = "COUNT")]
    rounds: usize,
    /// Length of a round.
    #[arg(long, default_value = "8s", value_parser = humantime::parse_duration, value_name = "TIME")]
    length: Duration,
    /// Length of the load on all peers before the first round. The JVM takes minutes to compile hot code.
    #[arg(long, default_value = "90s", value_parser = humantime::parse_duration, value_name = "TIME")]
    warm_up: Duration,
    /// File for the table, which is also printed.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// File for the plot.
    #[arg(long, default_value = "docs/bench/pods.svg", value_name = "FILE")]
    plot: PathBuf,
}

/// One key of a peer, and the value it must have.
struct Hot {
    peer: Peer,
    key: Key,
    acked: u64,
    unknown: u64,
    /// Increments per second in each round, by number of pods.
    rates: [Vec<f64>; PODS.len()],
}

/// # Errors
/// If the store can't be used, or a value is not what was acknowledged.
pub(crate) async fn run(args: PodsArgs) -> anyhow::Result<()> {
    let mark = mark();
    let stores = server::stores(&args.cassandra, None);
    let mut servers = Vec::new();
    for number in 0..PODS[PODS.len() - 1] {
        servers.push(Server::start(&format!("{mark}-{number}"), &stores, &[]).await?);
    }
    let mut hot = PEERS.map(|peer| Hot {
        peer,
        key: Scenario::Hot.keys(&mark, peer).remove(0),
        acked: 0,
        unknown: 0,
        rates: Default::default(),
    });
    let warm_up = args.warm_up / u32::try_from(PEERS.len())?;
    for hot in &mut hot {
        eprintln!("warm-up: {}", hot.peer.name());
        hot.load(&servers, warm_up).await?;
    }
    for round in 0..args.rounds {
        for turn in 0..PODS.len() {
            let at = (turn + round) % PODS.len();
            for hot in &mut hot {
                machine::quiet().await?;
                let rate = hot.load(&servers[..PODS[at]], args.length).await?;
                eprintln!("{round} {:9} {} pods: {rate:.0}/s", hot.peer.name(), PODS[at]);
                hot.rates[at].push(rate);
            }
        }
    }
    for hot in &hot {
        hot.verify(&servers[0]).await?;
    }
    for server in &mut servers {
        server.kill().await?;
    }
    publish(&table(&args, &hot), args.output.as_deref())?;
    let lines = hot.map(|hot| (hot.peer, hot.rates.map(|rates| median(&rates))));
    plot::lines("One hot key: increments a second", "pods", &PODS, &lines, &args.plot)
}

impl Hot {
    /// Loads several pods equally. Returns the increments per second of all together.
    async fn load(&mut self, servers: &[Server], length: Duration) -> anyhow::Result<f64> {
        let (requests, choice) = Scenario::Hot.requests(self.peer, std::slice::from_ref(&self.key));
        let requests = Rc::from(requests);
        let loads = servers.iter().zip(1..).map(|(server, seed)| {
            let (address, requests, choice) =
                (server.address, Rc::clone(&requests), choice.clone());
            let (pace, connections) = (Scenario::Hot.pace(), CONNECTIONS);
            let parts = Vec::new();
            Load { address, requests, choice, pace, connections, length, parts, seed }.run()
        });
        let mut rate = 0.0;
        for figures in try_join_all(loads).await? {
            self.acked += figures.increments();
            self.unknown += figures.unknown.iter().sum::<u64>();
            rate += figures.increments() as f64 / figures.seconds;
        }
        Ok(rate)
    }

    async fn verify(&self, server: &Server) -> anyhow::Result<()> {
        let values = load::values(server.address, vec![self.peer.path(&self.key)]).await?;
        let range = i64::try_from(self.acked)?..=i64::try_from(self.acked + self.unknown)?;
        let (name, value) = (self.peer.name(), values[0]);
        ensure!(range.contains(&value), "{name} is {value}, which is not in {range:?}");
        Ok(())
    }
}

fn median(rates: &[f64]) -> f64 {
    Spread::of(rates.iter().copied()).map_or(0.0, |spread| spread.median)
}

fn table(args: &PodsArgs, hot: &[Hot]) -> String {
    let mut text = format!(
        "## Pods on one hot key: {}\n\n{}; {CONNECTIONS} connections to each pod, increments a second, median (least to \
         most) of {} rounds of {:?}\n\n| pods |",
        args.mode,
        machine::describe(),
        args.rounds,
        args.length
    );
    let cell = |text: &mut String, cell: &str| write!(text, " {cell} |").expect("a string grows");
    hot.iter().for_each(|hot| cell(&mut text, hot.peer.name()));
    text.push_str("\n| --- | --- | --- | --- |\n");
    for (at, pods) in PODS.iter().enumerate() {
        text.push('|');
        cell(&mut text, &pods.to_string());
        for hot in hot {
            cell(&mut text, &spread(&hot.rates[at]));
        }
        text.push('\n');
    }
    // The page of tables is in the same folder as the plots.
    let plot = args.plot.file_name().unwrap_or_default();
    writeln!(text, "\n![plot]({})", plot.display()).expect("a string grows");
    text
}
