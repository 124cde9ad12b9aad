//! Load on a pod, from connections that each send one request after another: as fast as it answers (closed loop), or
//! at a fixed rate (open loop), where requests that can't be sent in time are dropped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout_at};

use crate::wire::{Answer, Connection, request};

pub(crate) const GROUP: &str = "/v1/counter/pressure";
const KEYS: u64 = 1_000;

/// Different batches.
const BATCHES: u64 = 20;

/// Pause between two new connections.
const CONNECT_EVERY: Duration = Duration::from_micros(250);

/// Interval in which the open loop distributes due requests.
const TICK: Duration = Duration::from_millis(2);

/// Longest time to connect.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// Longest wait for answers to the last requests: a busy machine has thousands of them.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// Outcomes of requests.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    /// Answers by status.
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// Updates in batches with a problem, by its status.
    pub(crate) within: BTreeMap<u16, u64>,
    /// Updates by outcome.
    pub(crate) acked: u64,
    pub(crate) unknown: u64,
    /// Connections that ended without an answer, by reason.
    pub(crate) resets: BTreeMap<String, u64>,
    /// Requests without an answer at the end.
    pub(crate) unanswered: u64,
    pub(crate) not_connected: u64,
    /// Requests that could not be sent when they were due.
    pub(crate) dropped: u64,
    pub(crate) times: Vec<Duration>,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        for (status, count) in other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        for (status, count) in other.within {
            *self.within.entry(status).or_default() += count;
        }
        self.acked += other.acked;
        self.unknown += other.unknown;
        for (why, count) in other.resets {
            *self.resets.entry(why).or_default() += count;
        }
        self.unanswered += other.unanswered;
        self.not_connected += other.not_connected;
        self.dropped += other.dropped;
        self.times.extend(other.times);
    }

    pub(crate) fn answers(&self) -> u64 {
        self.statuses.values().sum()
    }

    /// The latency that this percentage of the answers did not exceed.
    pub(crate) fn percentile(&mut self, percent: usize) -> Duration {
        self.times.sort_unstable();
        let at = (self.times.len() * percent).div_ceil(100).saturating_sub(1);
        self.times.get(at).copied().unwrap_or_default()
    }
}

/// What a request does.
#[derive(Debug, Clone, Copy)]
enum Sort {
    Update,
    Read,
    /// Updates, by their number.
    Batch(u64),
}

impl Sort {
    fn updates(self) -> u64 {
        match self {
            Sort::Update => 1,
            Sort::Read => 0,
            Sort::Batch(updates) => updates,
        }
    }
}

/// The mix of requests.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Mix {
    /// Mostly updates of one key, some of many, reads, and one in a hundred is a batch of this many updates.
    Usual,
    /// Always batches of the maximum size.
    Batches,
}

/// Sends requests to a pod.
#[derive(Clone)]
pub(crate) struct Pressure {
    port: u16,
    bearer: Arc<str>,
    mix: Mix,
    /// Made once, because they are long.
    batches: Arc<[Vec<u8>]>,
}

impl Pressure {
    pub(crate) fn on(port: u16, bearer: &str, mix: Mix) -> Pressure {
        let updates = match mix {
            Mix::Usual => 100,
            Mix::Batches => 1_000,
        };
        let batches = (0..BATCHES).map(|first| batch(bearer, first * KEYS / BATCHES, updates));
        Pressure { port, bearer: bearer.into(), mix, batches: batches.collect() }
    }

    /// The request with this number.
    fn request(&self, number: u64) -> (Sort, Vec<u8>) {
        let headers = [("authorization", &*self.bearer)];
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let name = key % KEYS;
        let updates = match (self.mix, number % 100) {
            (Mix::Batches, _) => Some(1_000),
            (Mix::Usual, 0) => Some(100),
            _ => None,
        };
        if let Some(updates) = updates {
            let which = usize::try_from(key % BATCHES).expect("less than a hundred");
            return (Sort::Batch(updates), self.batches[which].clone());
        }
        match number % 100 {
            1..=20 => (Sort::Update, request("POST", &format!("{GROUP}/{name}"), &headers, "")),
            21..=30 => {
                let path = format!("{GROUP}/{name}?default=0");
                (Sort::Read, request("GET", &path, &headers, ""))
            }
            _ => (Sort::Update, request("POST", &format!("{GROUP}/hot"), &headers, "")),
        }
    }

    /// Closed loop: this many connections, with a pause before each request.
    pub(crate) async fn closed(&self, connections: u64, pause: Duration, span: Duration) -> Tally {
        let until = Instant::now() + span;
        let clients = (0..connections).map(|client| {
            let pressure = self.clone();
            tokio::spawn(async move {
                let (mut tally, mut connection, mut number) = (Tally::default(), None, client);
                while Instant::now() < until {
                    sleep(pause).await;
                    pressure
                        .send(number, &mut connection, until + ANSWERED_WITHIN, &mut tally)
                        .await;
                    number += connections;
                }
                tally
            })
        });
        sum(clients.collect::<Vec<_>>()).await
    }

    /// Open loop: this many requests per second for a while, over this many connections.
    pub(crate) async fn open(&self, connections: usize, rate: f64, span: Duration) -> Tally {
        let (due, idle) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let numbers = Arc::new(AtomicU64::new(0));
        let until = Instant::now() + span;
        let clients = (0..connections).map(|index| {
            let (pressure, due, idle) = (self.clone(), Arc::clone(&due), Arc::clone(&idle));
            let numbers = Arc::clone(&numbers);
            tokio::spawn(async move {
                let (mut tally, mut connection) = (Tally::default(), None);
                sleep(CONNECT_EVERY.saturating_mul(u32::try_from(index).unwrap_or(0))).await;
                loop {
                    idle.fetch_add(1, Ordering::Relaxed);
                    let turn = timeout_at(until.into(), due.acquire()).await;
                    idle.fetch_sub(1, Ordering::Relaxed);
                    match turn {
                        Ok(turn) => turn.expect("it is never closed").forget(),
                        Err(_) => return tally,
                    }
                    let number = numbers.fetch_add(1, Ordering::Relaxed);
                    pressure
                        .send(number, &mut connection, until + ANSWERED_WITHIN, &mut tally)
                        .await;
                }
            })
        });
        let clients: Vec<_> = clients.collect();
        let (began, mut handed, mut dropped) = (Instant::now(), 0_u64, 0);
        while Instant::now() < until {
            sleep(TICK).await;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
            let all = (began.elapsed().as_secs_f64() * rate) as u64;
            let (wanted, free) = (all - handed, idle.load(Ordering::Relaxed));
            let free = free.saturating_sub(due.available_permits());
            let sent = usize::try_from(wanted).map_or(free, |wanted| wanted.min(free));
            due.add_permits(sent);
            dropped += wanted - sent as u64;
            handed = all;
        }
        let mut tally = sum(clients).await;
        tally.dropped = dropped;
        tally
    }

    /// Sends the request with this number, on this connection if it is still open.
    async fn send(
        &self,
        number: u64,
        connection: &mut Option<Connection<tokio::net::TcpStream>>,
        until: Instant,
        tally: &mut Tally,
    ) {
        if connection.is_none() {
            let opened = tokio::time::timeout(CONNECT_WITHIN, Connection::open(self.port)).await;
            *connection = opened.ok().and_then(Result::ok);
        }
        let Some(open) = connection.as_mut() else {
            tally.not_connected += 1;
            return;
        };
        let (sort, bytes) = self.request(number);
        let updates = sort.updates();
        let began = Instant::now();
        let answer = timeout_at(until.into(), async {
            // A request that is shed may be answered before it is sent completely.
            let sent = open.send(&bytes).await;
            open.answer().await.or_else(|error| sent.and(Err(error)))
        });
        match answer.await {
            Ok(Ok(answer)) => {
                tally.times.push(began.elapsed());
                let ends = answer.header("connection") == "close";
                tally.note(sort, &answer);
                if !ends {
                    return;
                }
            }
            Ok(Err(error)) => {
                *tally.resets.entry(error.kind().to_string()).or_default() += 1;
                tally.unknown += updates;
            }
            Err(_) => {
                tally.unanswered += 1;
                tally.unknown += updates;
            }
        }
        *connection = None;
    }
}

impl Tally {
    fn note(&mut self, sort: Sort, answer: &Answer) {
        *self.statuses.entry(answer.status).or_default() += 1;
        match (sort, answer.status) {
            (Sort::Update, 200) => self.acked += 1,
            (Sort::Batch(_), 200) => {
                let text = answer.text();
                self.acked += text.matches(r#""outcome":"acked""#).count() as u64;
                let unknown = text.matches(r#"{"outcome":"unknown""#).count() as u64;
                self.unknown += unknown;
                for (status, count) in statuses_within(&text) {
                    *self.within.entry(status).or_default() += count;
                }
            }
            (_, _) if answer.text().contains(r#""outcome":"unknown""#) => {
                self.unknown += sort.updates();
            }
            _ => {}
        }
    }
}

/// A batch of this many updates, of consecutive keys from the first on.
fn batch(bearer: &str, first: u64, updates: u64) -> Vec<u8> {
    let headers = [("authorization", bearer), ("content-type", "application/json")];
    let update = |index| {
        let name = (first + index) % KEYS;
        format!(r#"{{"kind":"counter","group":"pressure","name":"{name}","op":{{"op":"add"}}}}"#)
    };
    let all: Vec<String> = (0..updates).map(update).collect();
    request("POST", "/v1/batch", &headers, format!(r#"{{"updates":[{}]}}"#, all.join(",")))
}

/// Records the problems in a batch's answer.
fn statuses_within(text: &str) -> BTreeMap<u16, u64> {
    let mut found = BTreeMap::new();
    for (at, mark) in text.match_indices(r#""status":"#) {
        let digits = text[at + mark.len()..].get(..3).and_then(|digits| digits.parse().ok());
        *found.entry(digits.unwrap_or(0)).or_default() += 1;
    }
    found
}

async fn sum(clients: Vec<tokio::task::JoinHandle<Tally>>) -> Tally {
    let mut all = Tally::default();
    for client in clients {
        all.add(client.await.expect("no panic"));
    }
    all
}
