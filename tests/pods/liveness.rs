//! Progress after an outage. When a quorum is back, updates and reads work again by themselves. When all nodes are
//! back, every final shard is folded.

#[path = "../cassandra/mod.rs"]
mod cassandra;
#[path = "../stores/contract/mod.rs"]
mod contract;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cassandra::{CLUSTER, Killed, connect, drop_keyspace, fresh_on_own};
use contract::{Subject, TestClock, brief_constants, key};
use futures::future::join_all;
use orderfree::engine::write::{Bounds, UpdateError};
use orderfree::pod::node::{Node, Parts};
use orderfree_core::crdt::{Counter, CounterOp, Op};
use orderfree_core::protocol::{Durability, Key};

/// Longer than a clock sample is valid (60 s), so pods must also measure their clocks again.
const OUTAGE: Duration = Duration::from_secs(65);

/// When a quorum is back, updates and reads work within this time.
const RESUMES_WITHIN: Duration = Duration::from_secs(30);

/// When all nodes are back, every final shard is folded within this time.
const FOLDED_WITHIN: Duration = Duration::from_secs(120);

const KEYS: usize = 50;

/// The number of updates of one key that were acked, and of those that are unknown.
#[derive(Clone, Copy, Default)]
struct Told {
    acked: i128,
    unknown: i128,
}

/// Adds one to a key through a pod.
async fn add(pod: &Node, key: &Key, told: &mut Told) {
    let ops = vec![Op::Counter(CounterOp::Add { by: 1 })];
    match pod.service().update(key, ops, Durability::Stored).await {
        Ok(_) => told.acked += 1,
        Err(
            UpdateError::Unknown(_) | UpdateError::IdExpired { .. } | UpdateError::IdBeforeReset,
        ) => told.unknown += 1,
        Err(UpdateError::Refused(_)) => {}
    }
}

async fn total(pod: &Node, key: &Key) -> Option<i128> {
    let read = pod.service().read(key, None).await.ok()??;
    Some(Counter::try_from(read.state.clone()).expect("a counter").total())
}

fn assert_right(total: i128, told: Told) {
    let right = told.acked..=told.acked + told.unknown;
    assert!(right.contains(&total), "{total} is not in {right:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_recover_with_a_quorum_and_fold_with_all_nodes() {
    let _alone = CLUSTER.write().await;
    let config = fresh_on_own(brief_constants()).await;
    let clock = Arc::new(TestClock::default());
    let store = connect(&config, Arc::clone(&clock) as _).await;
    let subject = Subject { store, clock, constants: config.constants };
    let mut pods = Vec::new();
    for _ in 0..3 {
        // Each pod has its own store, like separate processes: each must recover by itself.
        let clock = Arc::new(TestClock::default());
        let store = connect(&config, Arc::clone(&clock) as _).await;
        let pod = Node::new(Parts {
            bounds: Bounds::awake(1_000),
            ..Parts::new(store, brief_constants(), clock)
        });
        pod.start();
        pods.push(pod);
    }
    let keys: Vec<Key> = (0..KEYS).map(|at| key("g", &format!("n{at}"))).collect();
    let mut told = vec![Told::default(); KEYS];
    for (key, told) in keys.iter().zip(&mut told) {
        for pod in &pods {
            add(pod, key, told).await;
        }
        assert_eq!(told.acked, 3, "everything is well");
    }
    let only_1_is_left = Killed::nodes(&["3"]);
    let quorum_is_lost = Killed::nodes(&["2"]);
    let outage = Instant::now();
    while outage.elapsed() < OUTAGE {
        let attempts = pods.iter().zip(&keys).zip(&mut told).map(async |((pod, key), told)| {
            add(pod, key, told).await;
            assert_eq!(told.acked, 3, "acked without a quorum");
            assert_eq!(total(pod, key).await, None, "read without a quorum");
        });
        join_all(attempts).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }

    for pod in &pods {
        let told = pod.service().check_quorum().expect_err("half a minute without a quorum");
        assert!(told.starts_with("no quorum of data centre "), "{told}");
    }

    // Returns after the others see node 2 up.
    drop(quorum_is_lost);
    let back = Instant::now();
    for pod in &pods {
        for (key, told) in keys.iter().zip(&mut told) {
            loop {
                let acked = told.acked;
                add(pod, key, told).await;
                let value = total(pod, key).await;
                if let Some(value) = value.filter(|_| told.acked > acked) {
                    assert_right(value, *told);
                    break;
                }
                assert!(back.elapsed() < RESUMES_WITHIN, "{key}: no ack, or no value: {value:?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    println!("updates and reads went on {:?} after a quorum was back", back.elapsed());
    assert!(back.elapsed() < RESUMES_WITHIN);
    for pod in &pods {
        while pod.service().check_quorum().is_err() {
            assert!(back.elapsed() < RESUMES_WITHIN, "the quorum is still missed");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    let is_final = brief_constants().lifetime() + brief_constants().cutoff();
    assert!(is_final < outage.elapsed(), "the first shards are final");
    let report = pods[0].service().shards(&keys[0]).await.expect("readable");
    assert!(report.tally.is_none(), "folds wait for all replicas");

    drop(only_1_is_left);
    let whole = Instant::now();
    let mut left: Vec<&Key> = keys.iter().collect();
    while !left.is_empty() {
        assert!(whole.elapsed() < FOLDED_WITHIN + is_final, "not folded: {left:?}");
        let mut still = Vec::new();
        for key in left {
            if subject.rows(key).await.ok() != Some(1) {
                still.push(key);
            }
        }
        left = still;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    println!("everything was folded {:?} after all nodes were back", whole.elapsed());
    for pod in &pods {
        for (key, told) in keys.iter().zip(&told) {
            assert_right(total(pod, key).await.expect("readable"), *told);
        }
    }
    for pod in pods {
        assert_eq!(pod.stop(Duration::from_secs(5)).await, 0);
    }
    drop_keyspace(&config).await;
}
