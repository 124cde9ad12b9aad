//! A pod that must end while its store does not answer, or during folds.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use orderfree::engine::service::{GroupQuery, KeyValue};
use orderfree::limits::DRAIN_MAX;
use orderfree::pod::config::Switch;
use orderfree::pod::node::Node;
use orderfree::store::cassandra::CassandraConfig;
use orderfree_core::crdt::{Counter, Kind};
use rustix::process::Signal;
use serde_json::json;
use tokio::time::sleep;

use crate::cassandra::{CLUSTER, Paused, drop_keyspace, fresh, fresh_on_own, own_cluster};
use crate::contract::{Subject, brief_constants, key, name};
use crate::pod::Pod;
use crate::wire::{Answer, ask, request};
use crate::{GRACE, READY_WITHIN, defaults, is_refused, pods, ready, write_final};

/// Keys that each have an open write when the pod must end.
const OPEN_KEYS: usize = 20;

/// Updates per key that clients wait for.
const OPEN_UPDATES: usize = 2;

/// Time that the end of a process takes after its time limit.
const A_LITTLE: Duration = Duration::from_secs(3);

/// Outcomes of a key's updates.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    acked: u64,
    /// Updates that may be counted, now or later.
    perhaps: u64,
}

impl Counted {
    fn possible(self) -> RangeInclusive<u64> {
        self.acked..=self.acked + self.perhaps
    }

    fn add(&mut self, answer: &Answer) {
        match (answer.status, answer.json()["outcome"].as_str()) {
            (200, Some("acked")) => self.acked += 1,
            (202, Some("accepted")) | (504, Some("unknown")) => self.perhaps += 1,
            (503, Some("refused")) => {}
            _ => panic!("{}: {}", answer.status, answer.text()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_without_its_store_ends_in_time_and_logs_what_remains() {
    let _alone = CLUSTER.write().await;
    let config = fresh_on_own(defaults()).await;
    let mut pod = pods(&config).start().await;
    ready(&mut pod).await;
    let (port, mut counted) = (pod.port(), [Counted::default(); OPEN_KEYS]);
    let path = |at: usize| format!("/v1/counter/site-{at}/home");
    for (at, counted) in counted.iter_mut().enumerate() {
        counted.add(&pod.ask("POST", &path(at), &[], "").await);
        assert_eq!(counted.acked, 1);
    }

    let paused = ["1", "2", "3"].map(Paused::node);
    for (at, counted) in counted.iter_mut().enumerate().step_by(4) {
        let answer = pod.ask("POST", &format!("{}?ack=memory", path(at)), &[], "").await;
        assert_eq!(answer.status, 202, "{}", answer.text());
        counted.add(&answer);
    }
    let open: Vec<_> = (0..OPEN_UPDATES * OPEN_KEYS)
        .map(|index| {
            let at = index % OPEN_KEYS;
            let add = request("POST", &path(at), &[], "");
            (at, tokio::spawn(async move { ask(port, &add).await }))
        })
        .collect();
    sleep(Duration::from_millis(500)).await;
    assert!(open.iter().all(|(_, update)| !update.is_finished()), "they wait for the store");
    // The next pod knows only one node, and takes ten seconds to give up on each write.
    let one = config.contact_points[..1].to_vec();
    let mut next = pods(&CassandraConfig { contact_points: one, ..config.clone() }).spawn();

    pod.signal(Signal::TERM);
    let began = Instant::now();
    // Waiting clients are told what is known.
    for (at, update) in open {
        let answer = update.await.expect("no panic").expect("an answer");
        counted[at].add(&answer);
    }
    let told = began.elapsed();
    let (code, _) = pod.ended(DRAIN_MAX + GRACE + A_LITTLE).await;
    let took = began.elapsed();
    println!("all clients had answers after {told:?}, and the pod ended after {took:?}");
    assert_eq!(code, Some(1), "{}", pod.log());
    assert!(took < DRAIN_MAX + GRACE + A_LITTLE, "{took:?}");
    assert!(took > DRAIN_MAX, "it gave up after {took:?}");
    let log = pod.log();
    let sentence =
        format!("orderfree: {OPEN_KEYS} keys' last updates could not be written in time");
    assert_eq!(log.lines().last(), Some(sentence.as_str()));
    assert!(!log.contains("everything is written"), "{log}");

    // A pod that started meanwhile waits for nodes that do not answer, and serves when they do.
    assert!(next.log().contains("waiting for the store"), "{}", next.log());
    assert!(!next.log().contains("hung up"), "{}", next.log());
    assert!(is_refused(next.port()).await, "it can't serve yet");
    drop(paused);
    own_cluster();
    ready(&mut next).await;
    for (at, counted) in counted.iter_mut().enumerate() {
        let value = next.count(&path(at)).await;
        assert!(counted.possible().contains(&value), "{value}, but {counted:?}");
        counted.add(&next.ask("POST", &path(at), &[], "").await);
        let value = next.count(&path(at)).await;
        assert!(counted.possible().contains(&value), "{value}, but then {counted:?}");
        assert_eq!(counted.acked, 2);
    }
    drop(next);
    drop_keyspace(&config).await;
}

/// Keys with two final shards each, all in one group, and so in one part of a sweep.
const SWEPT_KEYS: usize = 3_000;

/// One in this many keys also has a living shard.
const LIVING_EVERY: usize = 10;

/// Folds that are seen before the pod is stopped: few of all keys, so that others are left even if the test is slow.
const FOLDS_SEEN: u64 = 20;

/// Longest time of a sweep that is not stopped, or of a drain.
const SWEEP_ENDS_WITHIN: Duration = Duration::from_secs(10);

const _: () = assert!(SWEEP_ENDS_WITHIN.as_secs() < DRAIN_MAX.as_secs());

/// Longest time until repeated sweeps have begun with that group and finished it.
const SWEPT_WITHIN: Duration = Duration::from_secs(90);

/// The total of a key of the sweep.
fn total(at: usize) -> i128 {
    let living = if at.is_multiple_of(LIVING_EVERY) { 7 } else { 0 };
    1_001 * (at as i128 + 1) + living
}

/// A value of the pod's metrics, by the beginning of its line.
async fn metric(pod: &Pod, line: &str) -> u64 {
    let all = pod.get("/metrics").await.text();
    let number = all.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok());
    number.unwrap_or_else(|| panic!("no {line} in {all}"))
}

/// How many keys of the sweep have a tally with all but living shards. Every value must be right.
async fn folded(subject: &Subject) -> usize {
    let (store, clock) = (&subject.store, subject.clock.clone());
    let reader = Node::for_tool(store, subject.constants, clock, Switch::Off);
    let mut query = GroupQuery::all(Kind::Counter, name("wide"), 1_000);
    let mut keys: Vec<KeyValue> = Vec::new();
    loop {
        let page = reader.service().read_group(&query, |_, value| {
            keys.push(value.expect("readable"));
            0
        });
        match page.await.expect("readable") {
            Some(last) => query.behind = Some(last),
            None => break,
        }
    }
    assert_eq!(keys.len(), SWEPT_KEYS);
    for (at, read) in keys.iter().enumerate() {
        let counter = Counter::try_from(read.state.clone()).expect("a counter");
        assert_eq!(counter.total(), total(at), "{}: {read:?}", read.key);
    }
    keys.iter().filter(|read| read.folded_through.is_some() && read.shards <= 1).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_ends_with_its_pod_and_another_pod_continues_it() {
    let _others_too = CLUSTER.read().await;
    let config = fresh(brief_constants()).await;
    let subject = Subject::on_cluster(&config).await;
    let member = |at: usize| key("wide", &format!("key-{at:04}"));
    let amount = |at: usize| i64::try_from(at).expect("small") + 1;
    let adds = (0..SWEPT_KEYS).flat_map(|at| [1, 1_000].map(|by| (member(at), by * amount(at))));
    write_final(&config, adds).await;
    // One row per request: each key is folded by itself, which takes longest.
    let mut pod = pods(&config).arg("--batch-rows", 1).start().await;
    let living = (0..SWEPT_KEYS).step_by(LIVING_EVERY).map(|at| {
        let key = member(at);
        let (group, name) = (key.group.as_str(), key.name.as_str());
        json!({"kind": "counter", "group": group, "name": name, "op": {"op": "add", "by": 7}})
    });
    let living = json!({"updates": living.collect::<Vec<_>>()}).to_string();
    ready(&mut pod).await;
    let json_body = [("content-type", "application/json")];
    let answer = pod.ask("POST", "/v1/batch", &json_body, &living).await;
    let acked = answer.text().matches("\"acked\"").count();
    assert_eq!((answer.status, acked), (200, SWEPT_KEYS / LIVING_EVERY), "{}", answer.text());

    let (began, folds) = (Instant::now(), r#"orderfree_folds_total{end="folded"}"#);
    while metric(&pod, folds).await < FOLDS_SEEN {
        assert!(began.elapsed() < SWEPT_WITHIN, "no sweep: {}", pod.get("/metrics").await.text());
        sleep(Duration::from_millis(10)).await;
    }
    pod.signal(Signal::TERM);
    let (code, took) = pod.ended(DRAIN_MAX + GRACE + A_LITTLE).await;
    assert_eq!(code, Some(0), "{}", pod.log());
    assert!(took < GRACE + SWEEP_ENDS_WITHIN, "{took:?}");
    assert!(pod.log().contains("everything is written; goodbye"), "{}", pod.log());
    let first = folded(&subject).await;
    println!("after {took:?} the pod ended with {first} of {SWEPT_KEYS} keys folded");
    assert!((1..SWEPT_KEYS).contains(&first), "the sweep was not ended: {first} keys folded");

    let mut pod = pods(&config).start().await;
    let began = Instant::now();
    let mut all = first;
    while all < SWEPT_KEYS {
        assert!(began.elapsed() < SWEPT_WITHIN, "{all} keys are folded");
        sleep(Duration::from_millis(500)).await;
        let before = std::mem::replace(&mut all, folded(&subject).await);
        assert!(all >= before, "{before} keys were folded, now {all}");
    }
    pod.signal(Signal::TERM);
    assert_eq!(pod.ended(DRAIN_MAX + GRACE + A_LITTLE).await.0, Some(0), "{}", pod.log());
    subject.store.close().await;
    drop_keyspace(&config).await;
}

/// The clocks are no longer compared, so the pod must not accept updates by its own clock.
#[cfg(debug_assertions)]
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_ends_with_its_clock_sampler() {
    let _others_too = CLUSTER.read().await;
    let config = fresh(defaults()).await;
    let mut pod = pods(&config).env("ORDERFREE_PANIC_IN", "clock-sampler").spawn();
    let (code, _) = pod.ended(READY_WITHIN).await;
    let log = pod.log();
    assert_eq!(code, Some(1), "{log}");
    let said: Vec<&str> = log.lines().filter(|line| line.starts_with("orderfree: ")).collect();
    assert!(said.len() == 1 && said[0].contains("its task \"clock-sampler\" panicked"), "{log}");
    drop_keyspace(&config).await;
}
