//! A key that ten pods count and delete again and again is read as fast as a new one.
//!
//! `DELETES` is how many times, and `make deletes` sets it for a release build.

use std::time::{Duration, Instant};

use orderfree_core::crdt::Kind;
use orderfree_core::protocol::reset::bucket;
use orderfree_core::protocol::{Key, Timestamp};
use serde_json::json;
use tokio::time::sleep;

use crate::cassandra::{CLUSTER, drop_keyspace, eventually, fresh_on_own, script};
use crate::contract::{key, total_of};
use crate::pod::{Pod, constants, until_final};

const PODS: usize = 10;

/// Rows of the key right after the last deletion. Rows from before it wait for their fold.
const ROWS_MAX: usize = 250;

/// Most tombstones that a node met in one read.
const TOMBSTONES_MAX: f64 = 250.0;

/// Reads of each key that are timed, in turn.
const READS: usize = 300;

/// How much longer the median read of the key may take than that of a new one.
const RATIO_MAX: f64 = 2.0;

fn deletions() -> usize {
    std::env::var("DELETES").map_or(5, |times| times.parse().expect("a number of deletions"))
}

/// The median times of reads of the key and of another one, in turn.
async fn times(pod: &Pod, keys: &[Key; 2]) -> [Duration; 2] {
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..READS {
        for (key, times) in keys.iter().zip(&mut times) {
            let began = Instant::now();
            let state = pod.state(key).await.expect("it is there");
            times.push(began.elapsed());
            assert_eq!(total_of(&state), 7);
        }
    }
    times.map(|mut times| {
        times.sort();
        times[READS / 2]
    })
}

/// The most tombstones that one read of a table met on a node, in the last five minutes.
fn tombstones(node: &str, table: &str) -> f64 {
    let said = script(&["nodetool", node, "tablestats", table]);
    let line = said.lines().find(|line| line.contains("Maximum tombstones per slice"));
    let figure = line.and_then(|line| line.rsplit(':').next()?.trim().parse().ok());
    figure.unwrap_or_else(|| panic!("no tombstones in {said}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_ten_pods_deleted_often_is_as_fast_as_a_new_one() {
    let _others_too = CLUSTER.read().await;
    let config = fresh_on_own(constants()).await;
    let mut pods = Vec::new();
    for _ in 0..PODS {
        pods.push(Pod::start(&config).await);
    }
    let (keys, deletions) = ([key("g", "deleted"), key("g", "new")], deletions());
    let [deleted, new] = &keys;
    let mut took = Vec::new();
    for time in 0..deletions {
        for (step, by) in [1, 2].into_iter().enumerate() {
            pods[(2 * time + step) % PODS].update(deleted, &json!({"op": "add", "by": by})).await;
        }
        let began = Instant::now();
        let cleared = pods[(3 * time + 5) % PODS].delete(deleted).await;
        took.push(began.elapsed());
        assert_eq!(total_of(&cleared), 3, "{time}");
        assert_eq!(pods[(7 * time + 1) % PODS].state(deleted).await, None, "{time}");
    }
    took.sort();
    let at_once = pods[0].rows(deleted).await;
    let (median, longest) = (took[deletions / 2], took[deletions - 1]);
    println!(
        "{deletions} deletions: median {median:.1?}, longest {longest:.1?}; {at_once} rows at once"
    );
    assert!(at_once <= ROWS_MAX, "{at_once} rows");

    for key in &keys {
        pods[0].update(key, &json!({"op": "add", "by": 7})).await;
    }
    sleep(until_final()).await;
    for key in &keys {
        pods[0].fold(key).await;
    }
    let reads = times(&pods[1], &keys).await;
    let ratio = reads[0].as_secs_f64() / reads[1].as_secs_f64();
    println!("reads of this key and of a new one: {reads:.1?}, {ratio:.2} times; a row each");
    let table = format!("{}.shards", config.keyspace);
    for node in ["1", "2", "3"] {
        let met = tombstones(node, &table);
        println!("node {node}: at most {met} tombstones in a read");
        assert!(met <= TOMBSTONES_MAX, "node {node}: {met} tombstones");
    }
    let part = bucket(Kind::Counter, &new.group);
    let log = eventually("the log is read", async || {
        pods[0].store.read_resets(part, Timestamp::from_micros(0)).await
    })
    .await;
    println!("{} lines in the log", log.len());
    assert!(log.len() >= deletions, "each is logged");
    assert!(ratio <= RATIO_MAX, "{reads:?}");
    for pod in pods {
        pod.stop().await;
    }
    drop_keyspace(&config).await;
}
