//! The comparison: one server with all peers, loaded in interleaved rounds, every value checked.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use tokio::process::Command;

use crate::figures::{Comparison, Part, Sample, Wrong};
use crate::load::{self, Figures, Load};
use crate::machine::{self, Processes, Spent};
use crate::peers::{Key, Peer};
use crate::report;
use crate::scenario::{Scenario, TROUBLE};
use crate::server::{self, Server, mark};

/// What to compare, and how long.
#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub(crate) struct CompareArgs {
    /// Cassandra's contact points. Without them, the embedded store is measured.
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT")]
    cassandra: Vec<String>,
    /// Redis's address, such as redis://127.0.0.1:6379.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// The script tests/cassandra/cluster, for scenarios that stop or kill the third node.
    #[arg(long, value_name = "SCRIPT")]
    trouble: Option<PathBuf>,
    /// A description of the stores' configuration, shown beside every figure.
    #[arg(long, value_name = "TEXT")]
    mode: String,
    /// Peers to compare. By default, all whose store is given.
    #[arg(long, value_enum, value_delimiter = ',')]
    peers: Vec<Peer>,
    /// Scenarios to measure. By default, all.
    #[arg(long, value_enum, value_delimiter = ',')]
    scenarios: Vec<Scenario>,
    /// Rounds per peer and scenario.
    #[arg(long, default_value_t = 3, value_name = "COUNT")]
    rounds: usize,
    /// Length of a round.
    #[arg(long, default_value = "8s", value_parser = humantime::parse_duration, value_name = "TIME")]
    length: Duration,
    /// Length of the load on all peers before the first round. The JVM takes minutes to compile hot code.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration, value_name = "TIME")]
    warm_up: Duration,
    /// JSON file for the figures.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The values that the keys of one peer and scenario must have.
struct Counted {
    keys: Vec<Key>,
    acked: Vec<u64>,
    unknown: Vec<u64>,
}

/// Measures, prints the tables, and writes the figures.
///
/// # Errors
/// If a store can't be used, or a value is not what was acknowledged.
pub(crate) async fn run(args: CompareArgs) -> anyhow::Result<()> {
    let mut bench = Bench::start(&args).await?;
    let (samples, wrong) = bench.measure(&args).await?;
    bench.server.kill().await?;
    let comparison = Comparison {
        mode: args.mode.clone(),
        machine: machine::describe(),
        round_seconds: args.length.as_secs_f64(),
        samples,
        wrong,
    };
    if let Some(file) = &args.output {
        let text = serde_json::to_string_pretty(&comparison)?;
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    println!("{}", report::tables(&comparison));
    Ok(())
}

struct Bench {
    server: Server,
    mark: String,
    counted: HashMap<(Scenario, Peer), Counted>,
    trouble: Option<PathBuf>,
}

impl Bench {
    async fn start(args: &CompareArgs) -> anyhow::Result<Bench> {
        let mark = mark();
        let arguments = server::stores(&args.cassandra, args.redis.as_ref());
        let server = Server::start(&mark, &arguments, &[]).await?;
        Ok(Bench { server, mark, counted: HashMap::new(), trouble: args.trouble.clone() })
    }

    async fn measure(&mut self, args: &CompareArgs) -> anyhow::Result<(Vec<Sample>, Vec<Wrong>)> {
        let peers = peers(args);
        let scenarios = scenarios(args)?;
        self.warm_up(args, &peers).await?;
        let (mut samples, mut wrong) = (Vec::new(), Vec::new());
        for scenario in scenarios {
            for round in 0..args.rounds {
                // The order of peers is reversed in every other round.
                for turn in 0..peers.len() {
                    let peer = peers[(turn + round) % peers.len()];
                    let sample = self.round(scenario, peer, round, args.length).await?;
                    let [p50, p99, ..] = sample.latency_us;
                    eprintln!(
                        "{} {round} {:9} {:9.0}/s  p50 {p50} µs  p99 {p99} µs  failed {}  busy {:.2}",
                        scenario.name(),
                        peer.name(),
                        sample.rate(),
                        sample.failed,
                        sample.busy_before
                    );
                    samples.push(sample);
                }
            }
            for &peer in &peers {
                for what in self.wrong(scenario, peer).await? {
                    // For other peers, wrong values are a result of a comparison under faults.
                    ensure!(peer != Peer::Ours && scenario.trouble().is_some(), what);
                    wrong.push(Wrong { scenario, peer, what });
                }
            }
        }
        Ok((samples, wrong))
    }

    /// Loads each peer once, and checks its counts.
    async fn warm_up(&mut self, args: &CompareArgs, peers: &[Peer]) -> anyhow::Result<()> {
        const STEPS: [Scenario; 2] = [Scenario::Hot, Scenario::UniformGroups];
        let length = args.warm_up / u32::try_from(peers.len() * STEPS.len())?;
        for scenario in STEPS {
            for &peer in peers {
                eprintln!("warm-up: {} {}", scenario.name(), peer.name());
                self.load(scenario, peer, length).await?;
            }
        }
        for (scenario, peer) in self.counted.keys().copied().collect::<Vec<_>>() {
            if let Some(what) = self.wrong(scenario, peer).await?.pop() {
                bail!(what);
            }
        }
        Ok(())
    }

    async fn round(
        &mut self,
        scenario: Scenario,
        peer: Peer,
        round: usize,
        length: Duration,
    ) -> anyhow::Result<Sample> {
        let busy_before = machine::quiet().await?;
        let processes = self.processes();
        let before: Vec<f64> = processes.iter().map(Processes::cpu_seconds).collect();
        let figures = self.load(scenario, peer, length).await?;
        let spent = processes.iter().zip(before).map(|(processes, before)| Spent {
            name: processes.name.clone(),
            cpu_seconds: processes.cpu_seconds() - before,
        });
        let all = figures.all();
        let quantile = |q| all.latency.value_at_quantile(q);
        Ok(Sample {
            scenario,
            peer,
            round,
            increments: figures.increments(),
            seconds: figures.seconds,
            latency_us: [quantile(0.5), quantile(0.99), quantile(0.999), all.latency.max()],
            failed: all.failed,
            parts: match scenario.trouble() {
                Some(_) => figures.parts.iter().map(Part::of).collect(),
                None => Vec::new(),
            },
            failure: figures.failure,
            spent: spent.collect(),
            busy_before,
        })
    }

    /// The processes whose CPU time is reported. A restarted node is a new process.
    fn processes(&self) -> Vec<Processes> {
        let mut processes = vec![Processes::new("server", vec![self.server.pid])];
        for (name, word) in [("Cassandra", "CassandraDaemon"), ("Redis", "redis-server")] {
            let pids = pids_with(word);
            if !pids.is_empty() {
                processes.push(Processes::new(name, pids));
            }
        }
        processes.push(Processes::new("load", vec![std::process::id()]));
        processes
    }

    async fn load(
        &mut self,
        scenario: Scenario,
        peer: Peer,
        length: Duration,
    ) -> anyhow::Result<Figures> {
        let counted = self.counted.entry((scenario, peer)).or_insert_with(|| {
            let keys = scenario.keys(&self.mark, peer);
            Counted { acked: vec![0; keys.len()], unknown: vec![0; keys.len()], keys }
        });
        let (requests, choice) = scenario.requests(peer, &counted.keys);
        let load = Load {
            address: self.server.address,
            requests: Rc::from(requests),
            choice,
            pace: scenario.pace(),
            connections: scenario.connections(),
            length: if scenario.trouble().is_some() { TROUBLE[0] } else { length },
            parts: scenario.trouble().map_or_else(Vec::new, |_| {
                let [_, begins, lasts] = TROUBLE;
                vec![begins, begins + lasts]
            }),
            seed: 1,
        };
        let trouble = trouble(&self.trouble, scenario);
        let (figures, ()) = tokio::try_join!(load.run(), trouble)?;
        for (sum, more) in
            [(&mut counted.acked, &figures.acked), (&mut counted.unknown, &figures.unknown)]
        {
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        ensure!(
            figures.requests > 0,
            "{} acknowledged nothing: {}",
            peer.name(),
            figures.failure.as_deref().unwrap_or("no answer")
        );
        Ok(figures)
    }

    /// Values below what was acknowledged, or above that plus what is unknown.
    async fn wrong(&self, scenario: Scenario, peer: Peer) -> anyhow::Result<Vec<String>> {
        let mut wrong = Vec::new();
        if peer == Peer::Noop {
            return Ok(wrong);
        }
        let counted = &self.counted[&(scenario, peer)];
        let paths = counted.keys.iter().map(|key| peer.path(key)).collect();
        let values = load::values(self.server.address, paths).await?;
        for (index, value) in values.into_iter().enumerate() {
            let least = i64::try_from(counted.acked[index])?;
            let most = least + i64::try_from(counted.unknown[index])?;
            if !(least..=most).contains(&value) {
                let Key { group, name } = &counted.keys[index];
                wrong.push(format!(
                    "{} says that {group}/{name} is {value}, but {least} increments of it were \
                     acknowledged, and {most} were sent",
                    peer.name()
                ));
            }
        }
        Ok(wrong)
    }
}

/// The scenarios to measure: by default all that are possible.
fn scenarios(args: &CompareArgs) -> anyhow::Result<Vec<Scenario>> {
    let can_be = |scenario: &Scenario| args.trouble.is_some() || scenario.trouble().is_none();
    if let Some(scenario) = args.scenarios.iter().find(|scenario| !can_be(scenario)) {
        bail!("{} needs --trouble tests/cassandra/cluster", scenario.name());
    }
    Ok(match args.scenarios.as_slice() {
        [] => Scenario::value_variants().iter().copied().filter(can_be).collect(),
        chosen => chosen.to_vec(),
    })
}

/// Stops or kills a node for a while, if the scenario has such a fault.
async fn trouble(script: &Option<PathBuf>, scenario: Scenario) -> anyhow::Result<()> {
    let (Some(script), Some([begin, end])) = (script, scenario.trouble()) else { return Ok(()) };
    let [_, after, lasts] = TROUBLE;
    for (wait, command) in [(after, begin), (lasts, end)] {
        tokio::time::sleep(wait).await;
        let status = Command::new(script).args([command, "3"]).stderr(Stdio::null()).status();
        ensure!(status.await?.success(), "`{} {command} 3` failed", script.display());
    }
    Ok(())
}

/// The peers to compare: by default all whose store is given.
fn peers(args: &CompareArgs) -> Vec<Peer> {
    let is_there = |peer: &Peer| match peer {
        Peer::Noop | Peer::Ours => true,
        Peer::Plain | Peer::Native | Peer::Coalesced => !args.cassandra.is_empty(),
        Peer::Redis => args.redis.is_some(),
    };
    match args.peers.as_slice() {
        [] => Peer::value_variants().iter().copied().filter(is_there).collect(),
        chosen => chosen.to_vec(),
    }
}

/// Processes of this machine whose command line contains a word.
pub(crate) fn pids_with(word: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let holds = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.split('\0').any(|arg| arg.contains(word)))
    };
    pids.filter(|pid| *pid != std::process::id()).filter(holds).collect()
}
