//! The cost of ids: the same increments with an id each and without, in the same rounds; reads of a key whose ids are
//! all alive; and the bytes of an id in the rows of its key, before and after their fold.
//!
//! A key that gets all increments is replaced by a fresh one after a number of them, because ids make a key slower to
//! read until they are folded. Increments without ids move on in the same way.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use serde_json::json;
use tokio::time::sleep;

use crate::figures::{Spread, spread, thousands};
use crate::load::{self, Choice, ID_ROOM, Load, Pace, Prepared};
use crate::machine;
use crate::peers::{Key, Peer};
use crate::report::publish;
use crate::scenario::Scenario;
use crate::server::{self, Server, mark};
use crate::wire::{Connection, request, request_with};

/// Increments of a hot key until a fresh key takes over.
const HOT_INCREMENTS: usize = 40_000;
/// Fresh hot keys of a round: more than it can use.
const HOT_KEYS: usize = 100;
/// Keys of the streams, and lines in each stream.
const LINE_KEYS: usize = 1_000;
/// Connections that send streams.
const STREAMS: usize = 16;
/// Ids that are alive while a key is read.
const ALIVE: usize = 10_000;
/// Increments in a batch that fills a key.
const BATCH: usize = 1_000;
/// Reads of each key per round.
const READS: usize = 200;
/// How long the fold of a key's ids of a minute is waited for: two minutes, and the cutoff.
const FOLDED_WITHIN: Duration = Duration::from_secs(300);
/// The cutoff of the measured server, so that ids are folded while it runs.
const SETTINGS: [(&str, &str); 1] = [("ORDERFREE_CUTOFF", "30s")];

#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub(crate) struct IdsArgs {
    /// Cassandra's contact points.
    #[arg(long, value_delimiter = ',', required = true, value_name = "HOST:PORT")]
    cassandra: Vec<String>,
    /// A description of the store's configuration, shown above the figures.
    #[arg(long, value_name = "TEXT")]
    mode: String,
    /// Rounds per measurement.
    #[arg(long, default_value_t = 5, value_name = "COUNT")]
    rounds: usize,
    /// Length of a round.
    #[arg(long, default_value = "8s", value_parser = humantime::parse_duration, value_name = "TIME")]
    length: Duration,
    /// Length of the loads before the first round. The JVM takes minutes to compile hot code.
    #[arg(long, default_value = "120s", value_parser = humantime::parse_duration, value_name = "TIME")]
    warm_up: Duration,
    /// File for the table, which is also printed.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// What is incremented, with ids and without.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// One key at a time, one increment a request.
    Hot,
    /// 10,000 keys in 100 groups, one increment a request.
    Uniform,
    /// 1,000 keys, a line for each in every stream.
    Lines,
}

impl Shape {
    const ALL: [Shape; 3] = [Shape::Hot, Shape::Uniform, Shape::Lines];

    fn title(self) -> &'static str {
        match self {
            Shape::Hot => "hot key, one id an increment, 256 connections: increments/s",
            Shape::Uniform => "10,000 keys in 100 groups, 256 connections: increments/s",
            Shape::Lines => "NDJSON with an id a line on 1,000 keys, 16 streams: increments/s",
        }
    }

    fn targets(self) -> &'static str {
        match self {
            Shape::Hot => "0.5× | 0.8×",
            Shape::Uniform => "0.6× | 0.9×",
            Shape::Lines => "0.4× | 0.7×",
        }
    }

    /// The keys of a round. `mark` distinguishes them from others.
    fn keys(self, mark: &str) -> Vec<Key> {
        let (count, groups) = match self {
            Shape::Hot => (HOT_KEYS, HOT_KEYS),
            Shape::Uniform => return Scenario::Uniform.keys(mark, Peer::Ours),
            Shape::Lines => (LINE_KEYS, 100),
        };
        let key = |i: usize| Key { group: format!("{mark}-{}", i % groups), name: format!("k{i}") };
        (0..count).map(key).collect()
    }

    fn requests(self, keys: &[Key], with_ids: bool) -> (Vec<Prepared>, Choice) {
        let of_key = |(index, key): (usize, &Key)| {
            let path = Peer::Ours.path(key);
            let bytes = match with_ids {
                true => request_with("POST", &path, &format!("idempotency-key: {ID_ROOM}\r\n"), ""),
                false => request("POST", &path, "", ""),
            };
            Prepared::new(bytes, vec![(index, 1)])
        };
        match self {
            Shape::Hot => (
                keys.iter().enumerate().map(of_key).collect(),
                Choice::InTurn { times: HOT_INCREMENTS },
            ),
            Shape::Uniform => (keys.iter().enumerate().map(of_key).collect(), Choice::Uniform),
            Shape::Lines => {
                let lines = keys.iter().map(|key| item(key, with_ids).to_string() + "\n");
                let bytes = request(
                    "POST",
                    &Peer::Ours.batch_path(),
                    "application/x-ndjson",
                    &lines.collect::<String>(),
                );
                let adds = (0..keys.len()).map(|key| (key, 1)).collect();
                (vec![Prepared::new(bytes, adds)], Choice::Uniform)
            }
        }
    }

    fn connections(self) -> usize {
        match self {
            Shape::Hot | Shape::Uniform => 256,
            Shape::Lines => STREAMS,
        }
    }
}

/// One increment of a key in a batch.
fn item(Key { group, name }: &Key, with_id: bool) -> serde_json::Value {
    let mut item = json!({"kind": "counter", "group": group, "name": name, "op": {"op": "add"}});
    if with_id {
        item["id"] = json!(ID_ROOM);
    }
    item
}

struct Bench {
    server: Server,
    mark: String,
    length: Duration,
    /// For the bytes of rows.
    session: Session,
}

/// # Errors
/// If the store can't be used, or a value is not what was acknowledged.
pub(crate) async fn run(args: IdsArgs) -> anyhow::Result<()> {
    let mark = mark();
    let stores = server::stores(&args.cassandra, None);
    let server = Server::start(&mark, &stores, &SETTINGS).await?;
    let session = SessionBuilder::new().known_nodes(&args.cassandra).build().await?;
    session.use_keyspace("bench", false).await?;
    let mut bench = Bench { server, mark, length: args.length, session };
    let table = bench.measure(&args).await?;
    bench.server.kill().await?;
    publish(&table, args.output.as_deref())
}

impl Bench {
    async fn measure(&self, args: &IdsArgs) -> anyhow::Result<String> {
        let minute = self.fill("minute", Some("minute")).await?;
        let filled = self.bytes(&minute).await?;
        self.warm_up(args.warm_up).await?;
        let mut text = format!(
            "## Ids: {}\n\n{}; median (least to most) of {} rounds of {:?}; ratios within a round\n\n\
             | | without ids | with ids | ratio | at least | goal |\n| --- | --- | --- | --- | --- | --- |\n",
            args.mode,
            machine::describe(),
            args.rounds,
            args.length
        );
        for shape in Shape::ALL {
            let mut rates = [const { Vec::new() }; 2];
            for round in 0..args.rounds {
                // The order is reversed in every other round.
                for turn in 0..2 {
                    let with_ids = (turn + round) % 2 == 1;
                    machine::quiet().await?;
                    let rate = self.load(shape, &round.to_string(), with_ids, self.length).await?;
                    eprintln!("{round} {shape:?} with ids: {with_ids}: {rate:.0}/s");
                    rates[usize::from(with_ids)].push(rate);
                }
            }
            row(&mut text, shape.title(), &rates, shape.targets())?;
        }
        let (title, latencies) = self.reads(args.rounds).await?;
        row(&mut text, &title, &latencies, "10× | 4×")?;
        self.folded(&minute).await?;
        let each = |bytes: usize| bytes as f64 / ALIVE as f64;
        let left = self.bytes(&minute).await?;
        writeln!(
            text,
            "| bytes of an id in the rows of its key; after their fold | | {:.1}; {:.2} | | 40; 0 | 24; 0 |\n\n\
             After the fold the key has {left} bytes in all.",
            each(filled),
            each(left)
        )?;
        Ok(text)
    }

    async fn warm_up(&self, length: Duration) -> anyhow::Result<()> {
        let each = length / u32::try_from(2 * Shape::ALL.len())?;
        for shape in Shape::ALL {
            for with_ids in [false, true] {
                eprintln!("warm-up: {shape:?}, with ids: {with_ids}");
                self.load(shape, "warm-up", with_ids, each).await?;
            }
        }
        Ok(())
    }

    /// Loads fresh keys, checks their values and returns the increments per second.
    async fn load(
        &self,
        shape: Shape,
        round: &str,
        with_ids: bool,
        length: Duration,
    ) -> anyhow::Result<f64> {
        let mark = format!("{}-{shape:?}-{round}-{with_ids}", self.mark);
        let keys = shape.keys(&mark);
        let (requests, choice) = shape.requests(&keys, with_ids);
        let load = Load {
            address: self.server.address,
            requests: Rc::from(requests),
            choice,
            pace: Pace::Closed,
            connections: shape.connections(),
            length,
            parts: Vec::new(),
            seed: 1,
        };
        let figures = load.run().await?;
        if let Some(failure) = &figures.failure {
            eprintln!("{shape:?}, with ids: {with_ids}: {failure}");
        }
        let used: Vec<usize> =
            (0..keys.len()).filter(|key| figures.acked[*key] + figures.unknown[*key] > 0).collect();
        let paths = used.iter().map(|key| Peer::Ours.path(&keys[*key])).collect();
        let values = load::values(self.server.address, paths).await?;
        for (key, value) in used.into_iter().zip(values) {
            let least = i64::try_from(figures.acked[key])?;
            let most = least + i64::try_from(figures.unknown[key])?;
            let Key { group, name } = &keys[key];
            ensure!(
                (least..=most).contains(&value),
                "{group}/{name} is {value}, which is not in {least}..={most}"
            );
        }
        Ok(figures.increments() as f64 / figures.seconds)
    }

    /// A key with [`ALIVE`] increments: with ids of this window, or without.
    async fn fill(&self, name: &str, window: Option<&str>) -> anyhow::Result<Key> {
        let key = Key { group: format!("{}-{name}", self.mark), name: name.to_owned() };
        let updates = vec![item(&key, window.is_some()); BATCH];
        let body = json!({ "updates": updates }).to_string();
        let mut headers = "content-type: application/json\r\n".to_owned();
        if let Some(window) = window {
            write!(headers, "idempotency-window: {window}\r\n")?;
        }
        let batch = request_with("POST", &Peer::Ours.batch_path(), &headers, &body);
        let prepared = Prepared::new(batch, vec![(0, BATCH as u64)]);
        let mut connection = Connection::open(self.server.address).await?;
        let mut bytes = Vec::new();
        for _ in 0..ALIVE / BATCH {
            let answer =
                connection.ask(prepared.with_new_ids(&mut bytes, &mut rand::rng())).await?;
            let text = String::from_utf8_lossy(answer.body);
            ensure!(
                answer.status == 200 && load::are_all_acked(answer.body),
                "the increments of {name} were answered {}: {text:.300}",
                answer.status
            );
        }
        let value = load::values(self.server.address, vec![Peer::Ours.path(&key)]).await?[0];
        ensure!(value == i64::try_from(ALIVE)?, "{name} is {value}");
        Ok(key)
    }

    /// The median latency in ms of one reader of a plain key and of a key with ids, in each round.
    async fn reads(&self, rounds: usize) -> anyhow::Result<(String, [Vec<f64>; 2])> {
        let keys = [self.fill("plain", None).await?, self.fill("alive", Some("short")).await?];
        let mut connection = Connection::open(self.server.address).await?;
        let mut medians = [const { Vec::new() }; 2];
        // The first round warms up.
        for round in 0..=rounds {
            machine::quiet().await?;
            let mut latencies = [const { Vec::new() }; 2];
            for _ in 0..READS {
                for (key, latencies) in keys.iter().zip(&mut latencies) {
                    let read = request("GET", &Peer::Ours.path(key), "", "");
                    let begun = Instant::now();
                    let answer = connection.ask(&read).await?;
                    latencies.push(begun.elapsed().as_secs_f64() * 1e6);
                    ensure!(answer.status == 200, "a read was answered {}", answer.status);
                }
            }
            for (latencies, medians) in latencies.into_iter().zip(&mut medians) {
                let median = Spread::of(latencies.into_iter()).map_or(0.0, |spread| spread.median);
                if round > 0 {
                    medians.push(median);
                }
            }
            eprintln!("{round} reads: {medians:.0?} µs");
        }
        let title = format!("one reader of a key with {} ids alive: µs", thousands(ALIVE as f64));
        Ok((title, medians))
    }

    /// Folds a key until all its rows are in its tally.
    async fn folded(&self, key: &Key) -> anyhow::Result<()> {
        let begun = Instant::now();
        let path = format!("{}/fold", Peer::Ours.path(key));
        loop {
            let kept = self.ask("POST", &path).await?["kept"].as_u64();
            if kept == Some(0) {
                return Ok(());
            }
            ensure!(begun.elapsed() < FOLDED_WITHIN, "{kept:?} rows stay");
            sleep(Duration::from_secs(5)).await;
        }
    }

    async fn ask(&self, method: &str, path: &str) -> anyhow::Result<serde_json::Value> {
        let address: SocketAddr = self.server.address;
        let mut connection = Connection::open(address).await?;
        let answer = connection.ask(&request(method, path, "", "")).await?;
        ensure!(answer.status == 200, "{path} was answered {}", answer.status);
        serde_json::from_slice(answer.body).context("not JSON")
    }

    /// The bytes of all rows of a key.
    async fn bytes(&self, key: &Key) -> anyhow::Result<usize> {
        let query = "SELECT state FROM shards WHERE kind = 'counter' AND grp = ? AND name = ?";
        let rows = self.session.query_unpaged(query, (&key.group, &key.name)).await?;
        let rows = rows.into_rows_result()?;
        let mut bytes = 0;
        for row in rows.rows::<(Vec<u8>,)>()? {
            bytes += row?.0.len();
        }
        Ok(bytes)
    }
}

/// A line of the table: figures without ids and with them.
fn row(
    text: &mut String,
    title: &str,
    figures: &[Vec<f64>; 2],
    targets: &str,
) -> anyhow::Result<()> {
    let [without, with] = figures;
    let ratios = Spread::of(with.iter().zip(without).map(|(with, without)| with / without));
    let Spread { median, least, most } = ratios.context("no rounds")?;
    writeln!(
        text,
        "| {title} | {} | {} | {median:.2}× ({least:.2}× to {most:.2}×) | {targets} |",
        spread(without),
        spread(with)
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_increment_with_ids_has_an_id_of_its_own() {
        for shape in Shape::ALL {
            let keys = shape.keys("m");
            for with_ids in [false, true] {
                let (requests, _) = shape.requests(&keys, with_ids);
                let adds: u64 = requests.iter().flat_map(|one| &one.adds).map(|(_, by)| by).sum();
                let ids: usize = requests.iter().map(|one| one.ids.len()).sum();
                assert_eq!(ids as u64, if with_ids { adds } else { 0 }, "{shape:?}");
            }
        }
    }

    #[test]
    fn ids_are_new_in_each_request() {
        let keys = Shape::Lines.keys("m");
        let (requests, _) = Shape::Lines.requests(&keys[..3], true);
        let mut bytes = Vec::new();
        let first = requests[0].with_new_ids(&mut bytes, &mut rand::rng()).to_owned();
        let second = requests[0].with_new_ids(&mut bytes, &mut rand::rng()).to_owned();
        assert_eq!(first.len(), second.len());
        assert_ne!(first, second);
        assert!(memchr::memmem::find(&first, ID_ROOM.as_bytes()).is_none(), "no room is left");
    }
}
