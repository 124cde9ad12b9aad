//! Every kind on many pods as processes, on real Cassandra, with kills and folds. Exact kinds end with the bytes of one
//! process that saw every op, the others within their bounds, and every pod reads the same.
//!
//! `make kinds` runs this with ten pods and 100,000 ops per kind. `KINDS_PODS` and `KINDS_OPS` set these numbers.

#[path = "../../cassandra/mod.rs"]
mod cassandra;
mod pods;
mod work;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cassandra::{CLUSTER, connect, contact_points, drop_keyspace, fresh};
use orderfree::runtime::clock::{Clock, SystemClock};
use orderfree::store::Store;
use orderfree::store::cassandra::CassandraConfig;
use orderfree_core::crdt::{Kind, State};
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::read::{Answer, assemble};
use orderfree_core::protocol::{Constants, Key, Name, Overrides};
use pods::{Outcome, Pod};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use work::{Reference, Work};

/// Ops per request.
const CHUNK: usize = 200;
/// Requests of a kind between two times at which a pod may be killed.
const ROUND: usize = 20;

fn number(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a whole number"))
}

/// The pods, their table, and direct access to it.
struct Stage {
    pods: Vec<Pod>,
    config: CassandraConfig,
    store: Arc<dyn Store>,
    dice: SmallRng,
}

impl Stage {
    async fn set(count: usize) -> Stage {
        let second = |seconds| Some(Duration::from_secs(seconds));
        let constants = Constants::resolve(Overrides {
            lifetime: second(40),
            drain_margin: second(15),
            cutoff: second(16),
            ..Overrides::default()
        });
        let config = fresh(constants.expect("consistent")).await;
        let dice = SmallRng::seed_from_u64(5);
        let points = contact_points().join(",");
        let pods = (0..count).map(|_| Pod::start(&points, &config.keyspace)).collect();
        let store = connect(&config, Arc::new(SystemClock)).await;
        let stage = Stage { pods, config, store, dice };
        for pod in &stage.pods {
            pod.wait_ready().await;
        }
        stage
    }

    /// The merged state of a key and its number of shards, read at a quorum without a pod.
    async fn state(&self, key: &Key) -> (State, usize) {
        let slice = self.store.read_key(key, None, Level::Quorum).await.expect("readable");
        let now = SystemClock.now().wall;
        match assemble(key, &slice, now, &self.config.constants).expect("decodable") {
            Answer::Value(reading) => (reading.state, reading.shards),
            other => panic!("{key}: {other:?}"),
        }
    }

    /// Sends chunks to pods concurrently, and records the outcome of each. A refused chunk goes to another pod. A
    /// chunk with an unknown outcome is sent again if that is safe.
    async fn send(&mut self, work: &Work, chunks: Vec<Vec<Value>>, reference: &mut Reference) {
        let mut waiting = chunks;
        for _ in 0..100 {
            let chosen: Vec<usize> =
                waiting.iter().map(|_| self.dice.random_range(0..self.pods.len())).collect();
            let path = work.path();
            let sent =
                waiting.iter().zip(&chosen).map(|(ops, pod)| self.pods[*pod].update(&path, ops));
            let outcomes = futures::future::join_all(sent).await;
            let mut again = Vec::new();
            for (ops, outcome) in waiting.into_iter().zip(outcomes) {
                match outcome {
                    Outcome::Acked(time) => reference.acked(&ops, time),
                    Outcome::Unknown if !work.is_safe_to_repeat() => reference.unknown(ops),
                    Outcome::Refused | Outcome::Unknown => again.push(ops),
                }
            }
            if again.is_empty() {
                return;
            }
            waiting = again;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        panic!("all pods refused a chunk a hundred times");
    }

    /// The state of a key that has only one row: all its shards are folded.
    async fn folded(&self, work: &Work) -> State {
        for _ in 0..30 {
            // Another fold of the key may be running.
            self.pods[0].fold(&work.path()).await;
            let (state, shards) = self.state(work.key()).await;
            if shards == 0 {
                return state;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("{} still has shards next to its tally", work.path());
    }

    async fn kill_one(&mut self) {
        let number = self.dice.random_range(0..self.pods.len());
        self.pods[number].kill_and_restart();
    }

    /// Checks that all pods have the same value of a key. Tokens are left out, because a fold between two reads makes
    /// them shorter.
    async fn value_of_all(&self, path: &str) -> Value {
        let first = without_tokens(self.pods[0].value(path).await);
        for pod in &self.pods[1..] {
            assert_eq!(without_tokens(pod.value(path).await), first, "{path}: pods differ");
        }
        first
    }
}

fn key(kind: Kind, name: &str) -> Key {
    let checked = |text| Name::new(text).expect("a name");
    Key { kind, group: checked("kinds"), name: checked(name) }
}

/// The value of an `or_set` without its knowledge of mutators; any other value unchanged.
fn without_tokens(mut value: Value) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.remove("context");
        for item in fields.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
            item.as_object_mut().map(|item| item.remove("seen"));
        }
    }
    value
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_on_many_pods_equals_one_process() {
    let _shared = CLUSTER.read().await;
    let (count, ops) = (number("KINDS_PODS", 3), number("KINDS_OPS", 2_000));
    let mut stage = Stage::set(count).await;
    let mut kills = 0;
    let mut works: BTreeMap<&str, (Work, Reference)> = BTreeMap::new();
    for &kind in Kind::ALL {
        works.insert(kind.name(), (Work::new(key(kind, "n")), Reference::new(kind)));
    }
    // All kinds run side by side, so that each experiences every kill and fold.
    let rounds = ops.div_ceil(CHUNK * ROUND).max(4);
    let per_round = ops.div_ceil(rounds);
    for round in 0..rounds {
        for (work, reference) in works.values_mut() {
            let size = per_round.min(ops - reference.ops());
            let mut drawn = work.draw(size, &mut stage.dice);
            let removals = work.removals(&stage.pods, &mut stage.dice).await;
            reference.will_remove(&removals);
            drawn.splice(0..0, removals);
            let chunks = drawn.chunks(CHUNK).map(<[Value]>::to_vec).collect();
            stage.send(work, chunks, reference).await;
        }
        if round + 1 < rounds {
            stage.kill_one().await;
            kills += 1;
        }
        let pod = stage.pods.choose(&mut stage.dice).expect("a pod");
        for (work, _) in works.values() {
            pod.fold(&work.path()).await;
        }
    }
    for pod in &stage.pods {
        pod.wait_ready().await;
    }
    for (work, reference) in works.values() {
        let (state, _) = stage.state(work.key()).await;
        reference.check(&state, "while shards are young");
        let value = stage.value_of_all(&work.path()).await;
        work.check_value(&value, reference);
    }
    // Until every shard is final: the lifetime and the cutoff.
    tokio::time::sleep(Duration::from_secs(60)).await;
    for (work, reference) in works.values() {
        let state = stage.folded(work).await;
        reference.check(&state, "after the last fold");
        work.check_value(&stage.value_of_all(&work.path()).await, reference);
    }
    println!(
        "{count} pods, {ops} ops a kind, {kills} kills, {} kinds are one row each",
        works.len()
    );
    drop_keyspace(&stage.config).await;
}

/// The ancestor's only test with several processes, made stricter: overlapping ranges on different pods, counted
/// exactly and by estimate, and read from a pod that wrote nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regression_12_what_three_pods_saw_a_fourth_one_reads() {
    let _shared = CLUSTER.read().await;
    let stage = Stage::set(4).await;
    let ranges: [(usize, std::ops::RangeInclusive<i64>); 5] =
        [(0, 1..=1_000), (1, 1_001..=5_000), (0, 1..=5_000), (1, 1..=5_000), (2, 1..=5_000)];
    let mut sent = 0;
    for (pod, range) in ranges {
        let numbers: Vec<i64> = range.collect();
        sent += numbers.len();
        for chunk in numbers.chunks(1_000) {
            for (kind, ops) in [
                ("distinct", vec![json!({"op": "add", "items": chunk})]),
                ("counter", chunk.iter().map(|_| json!({"op": "add"})).collect()),
                ("extrema", chunk.iter().map(|n| json!({"op": "observe", "value": n})).collect()),
            ] {
                let outcome = stage.pods[pod].update(&format!("/v1/{kind}/ancestor/n"), &ops).await;
                assert!(matches!(outcome, Outcome::Acked(_)), "{kind}: {outcome:?}");
            }
        }
    }
    let third = &stage.pods[3];
    assert_eq!(third.value("/v1/counter/ancestor/n").await, json!(sent));
    let extrema = third.value("/v1/extrema/ancestor/n").await;
    assert_eq!((&extrema["min"]["value"], &extrema["max"]["value"]), (&json!(1.0), &json!(5000.0)));
    let distinct = third.value("/v1/distinct/ancestor/n").await;
    let of = |field: &str| distinct[field].as_f64().expect("a number");
    assert!(of("lower") <= 5_000.0 && 5_000.0 <= of("upper"), "{distinct}");
    for kind in ["counter", "extrema", "distinct"] {
        stage.value_of_all(&format!("/v1/{kind}/ancestor/n")).await;
    }
    drop_keyspace(&stage.config).await;
}
