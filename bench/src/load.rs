//! The load: many keep-alive connections that send prepared requests, in a closed or an open loop, and count the
//! acknowledged increments of each key.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use hdrhistogram::Histogram;
use orderfree_load::workload::Schedule;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Builder;

use crate::wire::{Connection, request};

/// Longer latencies count as this one: an hour, in µs.
const LATENCY_MAX_US: u64 = 3_600_000_000;

/// Significant digits of a recorded latency.
const LATENCY_DIGITS: u8 = 3;

/// Pause after an error, so that a server in trouble is not flooded.
const TROUBLE_PAUSE: Duration = Duration::from_millis(20);

/// Where a prepared request has room for an id. Each time it is sent, it gets new ones.
pub(crate) const ID_ROOM: &str = "ffffffff-ffff-ffff-ffff-ffffffffffff";

/// A request that is sent many times.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// The bytes to send.
    pub bytes: Vec<u8>,
    /// The keys that the request increments, and by how much.
    pub adds: Vec<(usize, u64)>,
    /// Where it has room for ids.
    pub ids: Vec<usize>,
}

impl Prepared {
    /// A request that makes these increments.
    pub(crate) fn new(bytes: Vec<u8>, adds: Vec<(usize, u64)>) -> Prepared {
        let ids = memchr::memmem::find_iter(&bytes, ID_ROOM).collect();
        Prepared { bytes, adds, ids }
    }

    /// The bytes to send, with new ids, which are UUIDs of version 7. `buffer` is where they are written.
    pub(crate) fn with_new_ids<'a>(
        &'a self,
        buffer: &'a mut Vec<u8>,
        rng: &mut impl Rng,
    ) -> &'a [u8] {
        if self.ids.is_empty() {
            return &self.bytes;
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let millis = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        buffer.clone_from(&self.bytes);
        for at in &self.ids {
            let id = Builder::from_unix_timestamp_millis(millis, &rng.random()).into_uuid();
            id.hyphenated().encode_lower(&mut buffer[*at..*at + ID_ROOM.len()]);
        }
        buffer
    }
}

/// How often each request is sent.
#[derive(Debug, Clone)]
pub(crate) enum Choice {
    /// All requests are equally likely.
    Uniform,
    /// The probability that this request or one before it is chosen.
    Cumulative(Vec<f64>),
    /// Each request is sent this often, then the next one is, and the last one from then on.
    InTurn { times: usize },
}

impl Choice {
    /// Draws one of `count` requests after `sent` requests were sent.
    fn draw(&self, count: usize, sent: usize, rng: &mut SmallRng) -> usize {
        match self {
            Choice::InTurn { times } => (sent / times).min(count - 1),
            Choice::Uniform => rng.random_range(0..count),
            Choice::Cumulative(sums) => {
                let point: f64 = rng.random();
                sums.partition_point(|sum| *sum <= point).min(count - 1)
            }
        }
    }
}

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Pace {
    /// A connection sends its next request after the answer to the last one.
    Closed,
    /// This many requests per second over all connections, each due at a fixed time.
    Open(u32),
}

/// One run of the load.
#[derive(Debug)]
pub(crate) struct Load {
    pub address: SocketAddr,
    /// The requests to send.
    pub requests: Rc<[Prepared]>,
    pub choice: Choice,
    pub pace: Pace,
    /// The number of connections.
    pub connections: usize,
    pub length: Duration,
    /// The times at which the second and later parts begin. Each part has its own figures.
    pub parts: Vec<Duration>,
    /// Seed of the random choices.
    pub seed: u64,
}

/// Results of a run.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    /// Acknowledged increments by key.
    pub acked: Vec<u64>,
    /// Increments by key that may or may not be counted.
    pub unknown: Vec<u64>,
    /// Requests whose increments were all acknowledged.
    pub requests: u64,
    /// The first answer that was not an acknowledgement.
    pub failure: Option<String>,
    /// Time from the first request to the last answer.
    pub seconds: f64,
    /// The requests that were due in each part of the run.
    pub parts: Vec<Due>,
}

/// Results of some requests.
#[derive(Debug, Clone)]
pub(crate) struct Due {
    /// Latency of acknowledged requests in µs, from the time they were due.
    pub latency: Histogram<u64>,
    /// Requests that were refused or not answered.
    pub failed: u64,
}

impl Due {
    fn none() -> Due {
        let latency = Histogram::new_with_bounds(1, LATENCY_MAX_US, LATENCY_DIGITS);
        Due { latency: latency.expect("invariant: fixed bounds"), failed: 0 }
    }
}

impl Figures {
    fn new(keys: usize, parts: usize) -> Figures {
        Figures {
            acked: vec![0; keys],
            unknown: vec![0; keys],
            requests: 0,
            failure: None,
            seconds: 0.0,
            parts: vec![Due::none(); parts],
        }
    }

    /// Acknowledged increments.
    #[must_use]
    pub(crate) fn increments(&self) -> u64 {
        self.acked.iter().sum()
    }

    /// The results of all parts together.
    #[must_use]
    pub(crate) fn all(&self) -> Due {
        let mut all = Due::none();
        for part in &self.parts {
            all.latency += &part.latency;
            all.failed += part.failed;
        }
        all
    }

    fn acknowledged(&mut self, prepared: &Prepared, part: usize, took: Duration) {
        prepared.adds.iter().for_each(|(key, by)| self.acked[*key] += by);
        self.requests += 1;
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.parts[part].latency.saturating_record(us);
    }

    /// Records an answer that leaves the outcome open. Refusals are recorded here too: they are certainly not counted,
    /// but the bounds only become wider.
    fn in_doubt(&mut self, prepared: &Prepared, part: usize, why: String) {
        prepared.adds.iter().for_each(|(key, by)| self.unknown[*key] += by);
        self.parts[part].failed += 1;
        self.failure.get_or_insert(why);
    }
}

impl Load {
    /// Sends requests until the time is over and every answer has arrived. Uses only the caller's thread.
    ///
    /// # Errors
    /// If no connection to the server can be opened at the start.
    pub(crate) async fn run(self) -> anyhow::Result<Figures> {
        let keys = self.requests.iter().flat_map(|r| &r.adds).map(|(key, _)| key + 1).max();
        let mut seeds = SmallRng::seed_from_u64(self.seed);
        let mut connections = Vec::with_capacity(self.connections);
        for _ in 0..self.connections {
            connections.push(Connection::open(self.address).await?);
        }
        let start = Instant::now();
        let stop = CancellationToken::new();
        let schedule = match self.pace {
            Pace::Closed => None,
            Pace::Open(rate) => Some(Arc::new(Schedule::new(start, rate, 1))),
        };
        let pacer = schedule.clone().map(|schedule| {
            let stop = stop.clone();
            std::thread::spawn(move || schedule.release_until(&stop))
        });
        let length = self.length;
        let run = Rc::new(Run {
            figures: RefCell::new(Figures::new(keys.unwrap_or(0), 1 + self.parts.len())),
            sent: Cell::new(0),
            load: self,
            start,
            stop: stop.clone(),
            schedule,
        });
        let local = LocalSet::new();
        let tasks: Vec<_> = connections
            .into_iter()
            .map(|connection| {
                let rng = SmallRng::seed_from_u64(seeds.random());
                let run = Rc::clone(&run);
                local.spawn_local(async move { run.connection(connection, rng).await })
            })
            .collect();
        let ended = local.run_until(async {
            tokio::time::sleep_until(start + length).await;
            stop.cancel();
            for task in tasks {
                task.await.context("a connection of the load panicked")?;
            }
            anyhow::Ok(())
        });
        ended.await?;
        if let Some(pacer) = pacer {
            pacer.join().map_err(|_| anyhow::anyhow!("the pacer panicked"))?;
        }
        let mut figures = run.figures.replace(Figures::new(0, 0));
        figures.seconds = start.elapsed().as_secs_f64();
        Ok(figures)
    }
}

/// State that the connections of one run share.
struct Run {
    load: Load,
    start: Instant,
    stop: CancellationToken,
    schedule: Option<Arc<Schedule>>,
    figures: RefCell<Figures>,
    /// The number of requests so far.
    sent: Cell<usize>,
}

impl Run {
    async fn connection(&self, mut connection: Connection, mut rng: SmallRng) {
        let (requests, mut buffer) = (&self.load.requests, Vec::new());
        while let Some(intended) = self.next().await {
            let sent = self.sent.replace(self.sent.get() + 1);
            let prepared = &requests[self.load.choice.draw(requests.len(), sent, &mut rng)];
            let due = intended.saturating_duration_since(self.start);
            let part = self.load.parts.partition_point(|begin| *begin <= due);
            let trouble = match connection.ask(prepared.with_new_ids(&mut buffer, &mut rng)).await {
                Ok(answer) if answer.status == 200 && are_all_acked(answer.body) => {
                    let took = intended.elapsed();
                    self.figures.borrow_mut().acknowledged(prepared, part, took);
                    continue;
                }
                Ok(answer) => {
                    let body = String::from_utf8_lossy(answer.body);
                    format!("{}: {body:.300}", answer.status)
                }
                Err(error) => {
                    // A late answer on the old connection would be taken for that of the next request.
                    match Connection::open(self.load.address).await {
                        Ok(another) => connection = another,
                        Err(again) => {
                            let trouble = format!("{error:#}; {again:#}");
                            self.figures.borrow_mut().in_doubt(prepared, part, trouble);
                            return;
                        }
                    }
                    format!("{error:#}")
                }
            };
            self.figures.borrow_mut().in_doubt(prepared, part, trouble);
            tokio::time::sleep(TROUBLE_PAUSE).await;
        }
    }

    /// The time at which the next request is due; `None` after the end of the run.
    async fn next(&self) -> Option<Instant> {
        match &self.schedule {
            Some(schedule) => tokio::select! {
                biased;
                () = self.stop.cancelled() => None,
                intended = schedule.next() => Some(intended),
            },
            None => (!self.stop.is_cancelled()).then(Instant::now),
        }
    }
}

/// Whether an answer with status 200 acknowledges everything: a batch can also contain other outcomes. The summary of a
/// stream lists the lines that were not acknowledged.
pub(crate) fn are_all_acked(body: &[u8]) -> bool {
    let holds = |word: &[u8]| memchr::memmem::find(body, word).is_some();
    if body.starts_with(b"{\"lines\"") {
        return holds(b"\"errors\":[]");
    }
    !holds(b"\"refused\"") && !holds(b"\"unknown\"")
}

/// Reads the values of many keys concurrently.
///
/// # Errors
/// If a value can't be read or is not a number.
pub(crate) async fn values(address: SocketAddr, paths: Vec<String>) -> anyhow::Result<Vec<i64>> {
    const AT_ONCE: usize = 64;
    let paths: Rc<[String]> = paths.into();
    let lanes = AT_ONCE.min(paths.len());
    let local = LocalSet::new();
    local
        .run_until(async move {
            let tasks: Vec<_> = (0..lanes)
                .map(|lane| spawn_local(values_of_lane(address, Rc::clone(&paths), lane, lanes)))
                .collect();
            let mut values = vec![0; paths.len()];
            for (lane, task) in tasks.into_iter().enumerate() {
                let found = task.await.context("a reader panicked")??;
                found
                    .into_iter()
                    .enumerate()
                    .for_each(|(i, value)| values[lane + i * lanes] = value);
            }
            Ok(values)
        })
        .await
}

async fn values_of_lane(
    address: SocketAddr,
    paths: Rc<[String]>,
    lane: usize,
    lanes: usize,
) -> anyhow::Result<Vec<i64>> {
    let mut connection = Connection::open(address).await?;
    let mut values = Vec::new();
    for path in paths.iter().skip(lane).step_by(lanes) {
        let answer = connection.ask(&request("GET", path, "", "")).await?;
        values.push(value_of(path, answer.status, answer.body)?);
    }
    Ok(values)
}

/// The number in the answer to a read; zero if the key does not exist.
fn value_of(path: &str, status: u16, body: &[u8]) -> anyhow::Result<i64> {
    let text = String::from_utf8_lossy(body);
    if status == 404 {
        return Ok(0);
    }
    let value = (status == 200).then(|| serde_json::from_str::<serde_json::Value>(&text).ok());
    let value = value.flatten().and_then(|value| value.get("value")?.as_i64());
    value.with_context(|| format!("{path} answered {status}: {text:.300}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_acked_only_if_all_its_items_are() {
        assert!(are_all_acked(br#"{"outcome":"acked"}"#));
        assert!(!are_all_acked(br#"{"results":[{"outcome":"acked"},{"outcome":"refused"}]}"#));
        assert!(!are_all_acked(br#"{"outcome":"unknown"}"#));
        let summary =
            |errors| format!(r#"{{"lines":1,"acked":1,"refused":0,"errors":[{errors}]}}"#);
        assert!(are_all_acked(summary("").as_bytes()));
        assert!(!are_all_acked(summary(r#"{"first":1}"#).as_bytes()));
    }

    #[test]
    fn values_are_numbers_or_errors() {
        assert_eq!(value_of("/a", 200, br#"{"value":7}"#).expect("a number"), 7);
        assert_eq!(value_of("/a", 404, b"").expect("absent"), 0);
        assert!(value_of("/a", 200, b"{}").is_err());
        assert!(value_of("/a", 503, br#"{"value":7}"#).is_err());
    }
}
