//! Measures the cost of resets while no key is reset: the CPU time of the nodes and of a pod with 1, 10 and 50 pods that only
//! look at the log of resets, against pods of a keyspace without a log. And the time of a reset.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use futures::future::try_join_all;
use orderfree::pod::config::StoreConfig;
use orderfree::store::cassandra::schema;
use scylla::client::session_builder::SessionBuilder;
use serde_json::Value;
use tokio::time::sleep;

use crate::compare::pids_with;
use crate::machine::{self, Processes};
use crate::peers::{Key, Peer, store_args};
use crate::report::publish;
use crate::scenario::batch_request;
use crate::server::{self, Server, mark};
use crate::wire::{Connection, request, request_with};

/// Numbers of pods.
const PODS: [usize; 3] = [1, 10, 50];

/// Pods of the keyspace while keys are reset.
const PODS_OF_RESETS: usize = 10;

/// Resets at once.
const AT_ONCE: usize = 20;

/// No key is reset before the table of resets is that old.
const TABLE_AGE_MIN: Duration = Duration::from_secs(310);

/// Time for pods that were just started to come to rest.
const SETTLE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub(crate) struct ResetsArgs {
    /// Cassandra's contact points.
    #[arg(long, value_delimiter = ',', required = true, value_name = "HOST:PORT")]
    cassandra: Vec<String>,
    /// A description of the store's configuration, shown above the figures.
    #[arg(long, value_name = "TEXT")]
    mode: String,
    /// Length of each measurement of CPU time.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration, value_name = "TIME")]
    length: Duration,
    /// Number of resets, each of a key of its own.
    #[arg(long, default_value_t = 200, value_name = "COUNT")]
    resets: usize,
    /// File for the tables, which are also printed.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// CPU time in ms a second.
#[derive(Debug, Clone, Copy)]
struct Spent {
    /// CPU time of all nodes together.
    nodes: f64,
    /// CPU time of one pod.
    pod: f64,
}

struct Bench<'a> {
    args: &'a ResetsArgs,
    nodes: Processes,
}

/// # Errors
/// If the store can't be used, or a reset did not return what was counted.
pub(crate) async fn run(args: ResetsArgs) -> anyhow::Result<()> {
    let nodes = Processes::new("Cassandra", pids_with("CassandraDaemon"));
    let (bench, mark) = (Bench { args: &args, nodes }, mark());
    let keyspaces = [format!("bench_plain_{mark}"), format!("bench_log_{mark}")];
    for (keyspace, has_log) in keyspaces.iter().zip([false, true]) {
        let store = store_args(&args.cassandra, keyspace, Path::new(""))?;
        let StoreConfig::Cassandra(config) = store.resolve()? else {
            unreachable!("invariant: contact points are required")
        };
        schema::apply(&config, None, has_log).await?;
    }
    let made = Instant::now();
    let measured = bench.measure(&keyspaces, made).await;
    let session = SessionBuilder::new().known_nodes(&args.cassandra).build().await?;
    for keyspace in &keyspaces {
        session.query_unpaged(format!("DROP KEYSPACE {keyspace}"), ()).await?;
    }
    publish(&measured?, args.output.as_deref())
}

impl Bench<'_> {
    async fn measure(&self, keyspaces: &[String; 2], made: Instant) -> anyhow::Result<String> {
        let [plain, with_log] = keyspaces;
        eprintln!("warming up");
        self.polls(with_log).await?;
        sleep(SETTLE).await;
        let alone = self.spent(&[]).await?;
        let without = self.polls(plain).await?;
        let with = self.polls(with_log).await?;
        let mut text = format!(
            "## Resets: {}\n\n{}; CPU time in ms a second, over {:?}; pods that get no requests\n\n\
             | pods | all nodes, without the log | with it | a pod, without the log | with it |\n\
             | --- | --- | --- | --- | --- |\n| 0 | {:.1} | | | |\n",
            self.args.mode,
            machine::describe(),
            self.args.length,
            alone.nodes
        );
        for ((pods, without), with) in PODS.into_iter().zip(without).zip(with) {
            writeln!(
                text,
                "| {pods} | {:.1} | {:.1} | {:.2} | {:.2} |",
                without.nodes, with.nodes, without.pod, with.pod
            )?;
        }
        sleep(TABLE_AGE_MIN.saturating_sub(made.elapsed())).await;
        let mut times = self.resets(with_log).await?;
        times.sort();
        let at = |percent: usize| times[(times.len() * percent).div_ceil(100).max(1) - 1];
        writeln!(
            text,
            "\nThe time of a reset from its request to its answer, {} resets, {AT_ONCE} at once, with {PODS_OF_RESETS} pods: \
             p50 {:.2?}, p99 {:.2?}, longest {:.2?}.",
            times.len(),
            at(50),
            at(99),
            at(100)
        )?;
        Ok(text)
    }

    /// Measures each number of pods of a keyspace.
    async fn polls(&self, keyspace: &str) -> anyhow::Result<Vec<Spent>> {
        let (mut servers, mut all) = (Vec::new(), Vec::new());
        for pods in PODS {
            self.start(keyspace, &mut servers, pods).await?;
            sleep(SETTLE).await;
            let spent = self.spent(&servers).await?;
            eprintln!("{pods} pods of {keyspace}: {spent:.2?} ms a second");
            all.push(spent);
        }
        for server in &mut servers {
            server.kill().await?;
        }
        Ok(all)
    }

    /// Starts pods until there are this many.
    async fn start(
        &self,
        keyspace: &str,
        servers: &mut Vec<Server>,
        pods: usize,
    ) -> anyhow::Result<()> {
        let mut arguments = server::stores(&self.args.cassandra, None);
        arguments.extend(["--keyspace".to_owned(), keyspace.to_owned(), "--as-it-is".to_owned()]);
        while servers.len() < pods {
            let mark = format!("{}-{}", mark(), servers.len());
            servers.push(Server::start(&mark, &arguments, &[]).await?);
        }
        Ok(())
    }

    async fn spent(&self, servers: &[Server]) -> anyhow::Result<Spent> {
        let pods = Processes::new("pods", servers.iter().map(|server| server.pid).collect());
        let cpu = || (self.nodes.cpu_seconds(), pods.cpu_seconds());
        let (before, began) = (cpu(), Instant::now());
        sleep(self.args.length).await;
        let (after, seconds) = (cpu(), began.elapsed().as_secs_f64());
        ensure!(after.0 > before.0, "the nodes are not processes of this machine");
        let each = servers.len().max(1) as f64;
        Ok(Spent {
            nodes: (after.0 - before.0) * 1e3 / seconds,
            pod: (after.1 - before.1) * 1e3 / seconds / each,
        })
    }

    /// Resets keys and returns how long each reset took.
    async fn resets(&self, keyspace: &str) -> anyhow::Result<Vec<Duration>> {
        let mut servers = Vec::new();
        self.start(keyspace, &mut servers, PODS_OF_RESETS).await?;
        sleep(SETTLE).await;
        let key = |at| Key { group: format!("g{}", at % 16), name: format!("k{at}") };
        let keys: Vec<Key> = (0..self.args.resets).map(key).collect();
        let mut connection = Connection::open(servers[0].address).await?;
        for keys in keys.chunks(1_000) {
            let answer = connection.ask(&batch_request(Peer::Ours, keys.iter())).await?;
            ensure!(answer.status == 200, "a batch was answered {}", answer.status);
        }
        let (servers, keys) = (&servers, &keys);
        let lanes = (0..AT_ONCE).map(|lane| async move {
            let mut times = Vec::new();
            let server = &servers[lane % servers.len()];
            let mut connection = Connection::open(server.address).await?;
            for key in keys.iter().skip(lane).step_by(AT_ONCE) {
                let path = format!("{}/reset", Peer::Ours.path(key));
                let began = Instant::now();
                let reset = request_with("POST", &path, "prefer: wait=25\r\n", "");
                let answer = connection.ask(&reset).await?;
                times.push(began.elapsed());
                let said = String::from_utf8_lossy(answer.body);
                ensure!(answer.status == 200, "a reset was answered {}: {said}", answer.status);
                let said: Value = serde_json::from_slice(answer.body).context("not JSON")?;
                ensure!(said["cleared"]["value"] == 1, "a reset returned {said}");
                let read = connection.ask(&request("GET", &Peer::Ours.path(key), "", "")).await?;
                let said: Value = serde_json::from_slice(read.body).context("not JSON")?;
                ensure!(said["value"] == 0, "after a reset, a key is {said}");
            }
            anyhow::Ok(times)
        });
        Ok(try_join_all(lanes).await?.concat())
    }
}
