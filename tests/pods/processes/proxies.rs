//! Proxies that send updates again, in front of two pods of one cluster.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{self, StreamExt};
use rustix::process::Signal;
use serde_json::json;
use tokio::time::sleep;

use crate::cassandra::{CLUSTER, drop_keyspace, fresh};
use crate::haproxy::Proxy;
use crate::relay::Relay;
use crate::wire::{ask, request};
use crate::{defaults, pods, ready};

/// Updates of each kind of key.
const UPDATES: usize = 300;

/// Clients that send at the same time.
const CLIENTS: usize = 16;

fn now() -> String {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970");
    since.as_millis().to_string()
}

/// A proxy that sends each `POST` one to three times, to any of two pods, one after the other or all at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_repeats_every_update_changes_nothing() {
    let _others_too = CLUSTER.read().await;
    let config = fresh(defaults()).await;
    let mut both = [pods(&config).spawn(), pods(&config).spawn()];
    for pod in &mut both {
        ready(pod).await;
    }
    let ports = both.each_ref().map(|pod| pod.port());
    let proxy = Relay::start(move |number, request| async move {
        // Which pods, and whether at once: each combination in turn.
        let to: Vec<u16> = (0..=number % 3).map(|at| ports[(number >> at) % 2]).collect();
        if number % 4 < 2 {
            return join_all(to.iter().map(|port| request.to(*port))).await.pop().flatten();
        }
        let mut answer = None;
        for port in to {
            answer = request.to(port).await;
        }
        answer
    });
    let proxy = proxy.await;
    let port = proxy.port;
    let updates = [
        ("/v1/counter/g/n", json!({"op": "add", "by": 3})),
        ("/v1/sum/g/n", json!({"op": "add", "by": "0.25"})),
        ("/v1/histogram/g/n", json!({"op": "record", "value": 2})),
        ("/v1/topk/g/n", json!({"op": "add", "item": "a"})),
        (
            "/v1/batch",
            json!({"updates": [
            {"kind": "counter", "group": "g", "name": "b", "op": {"op": "add", "by": 1}},
            {"kind": "counter", "group": "g", "name": "b", "op": {"op": "add", "by": 10}}]}),
        ),
    ];
    let sends = (0..UPDATES * updates.len()).map(|at| {
        let (path, body) = &updates[at % updates.len()];
        let (id, now) = (format!("\"update {at}\""), now());
        let headers = [
            ("content-type", "application/json"),
            ("idempotency-key", &*id),
            ("idempotency-time", &*now),
        ];
        let bytes = request("POST", path, &headers, body.to_string());
        async move {
            let answer = ask(port, &bytes).await.expect("an answer");
            assert_eq!(answer.status, 200, "{}", answer.text());
            let results = answer.json()["results"].clone();
            for result in results.as_array().into_iter().flatten() {
                assert_eq!(result["outcome"], "acked", "{result}");
            }
        }
    });
    stream::iter(sends).buffer_unordered(CLIENTS).collect::<()>().await;
    for pod in &both {
        let value = async |path: &str| pod.get(path).await.json()["value"].clone();
        assert_eq!(value("/v1/counter/g/n").await, json!(3 * UPDATES));
        assert_eq!(value("/v1/sum/g/n").await, json!("75.00"));
        assert_eq!(value("/v1/histogram/g/n").await["count"], json!(UPDATES));
        assert_eq!(value("/v1/topk/g/n").await["total"], json!(UPDATES));
        assert_eq!(value("/v1/counter/g/b").await, json!(11 * UPDATES));
    }
    drop(both);
    drop_keyspace(&config).await;
}

/// HAProxy in front of two pods, of which one is killed while it has requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_with_ids_survive_the_death_of_a_pod_behind_a_proxy() {
    let _others_too = CLUSTER.read().await;
    let config = fresh(defaults()).await;
    let (mut dies, mut lives) = (pods(&config).spawn(), pods(&config).spawn());
    for pod in [&mut dies, &mut lives] {
        ready(pod).await;
    }
    let proxy = Proxy::start(&lives.setup, &[dies.port(), lives.port()]).await;
    let proxy = Arc::new(proxy);
    // The proxy sends an update with an id again. A client does so only if its connection ends without an answer,
    // as may happen when the pod dies while the proxy passes its answer on.
    let client = |at: usize, is_keyed: bool| {
        let proxy = proxy.clone();
        tokio::spawn(async move {
            let path = if is_keyed { "/v1/counter/g/keyed" } else { "/v1/counter/g/plain" };
            let (mut acked, mut failed) = (0, 0);
            for round in 0..100 {
                let id = format!("\"{at} {round}\"");
                let add = || proxy.add(path, is_keyed.then_some(&*id));
                let mut answer = add().await;
                if is_keyed && answer.is_err() {
                    answer = add().await;
                }
                match answer.map(|answer| answer.status) {
                    Ok(200) => acked += 1,
                    Ok(502 | 504) | Err(_) if !is_keyed => failed += 1,
                    other => panic!("{id}: {other:?}"),
                }
            }
            (acked, failed)
        })
    };
    let clients: Vec<_> = (0..CLIENTS).map(|at| client(at, at % 2 == 0)).collect();
    sleep(Duration::from_millis(300)).await;
    // It holds requests for a moment, and then loses them.
    dies.signal(Signal::STOP);
    sleep(Duration::from_millis(300)).await;
    dies.signal(Signal::KILL);
    let (mut keyed, mut plain, mut failed) = (0, 0, 0);
    for (at, client) in clients.into_iter().enumerate() {
        let (acked, lost) = client.await.expect("no panic");
        if at % 2 == 0 {
            keyed += acked
        } else {
            plain += acked
        }
        failed += lost;
    }
    assert_eq!(keyed, CLIENTS as u64 / 2 * 100, "each update with an id was acked");
    assert_eq!(lives.count("/v1/counter/g/keyed").await, keyed);
    assert!(failed > 0, "the pod died with requests");
    let counted = lives.count("/v1/counter/g/plain").await;
    assert!((plain..=plain + failed).contains(&counted), "{counted}: {plain} and {failed}");
    println!(
        "{keyed} with ids; {plain} without, {failed} lost to their clients, {counted} counted"
    );
    drop((dies, lives));
    drop_keyspace(&config).await;
}
