//! Many idle keys are forgotten while a pod counts others.
//!
//! `IDLE_KEYS` is their number, and `make idle` sets it for a release build.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tokio::time::sleep;

use crate::bystanders::Bystander;
use crate::machine;
use crate::pod::{Pod, Setup, metric};

const POLICY: &str = "[[lifecycle]]\ngroup_prefix = 'session:'\nidle_ttl = '65m'\n";
const TWO_HOURS: i64 = 2 * 3600;
const GROUPS: usize = 100;
const LINES: usize = 10_000;
const CLIENTS: usize = 8;

/// How long the pod is observed before the first key is forgotten, and after the last one.
const LOOK: Duration = Duration::from_secs(5);

/// The longest p99 of requests, however busy the machine is.
const P99_MAX: Duration = Duration::from_millis(500);

fn keys() -> usize {
    std::env::var("IDLE_KEYS").map_or(5_000, |keys| keys.parse().expect("a number of keys"))
}

async fn fill(pod: &Pod, keys: usize) {
    let line = |key| {
        let group = format!("session:{}", key % GROUPS);
        let add = json!({"kind": "counter", "group": group, "name": format!("k{key}"), "op": {"op": "add"}});
        format!("{add}\n")
    };
    for first in (0..keys).step_by(LINES) {
        let lines: String = (first..keys.min(first + LINES)).map(line).collect();
        let headers = [("content-type", "application/x-ndjson")];
        let answer = pod.ask("POST", "/v1/batch", &headers, &lines).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

async fn forgotten(pod: &Pod) -> u64 {
    let metrics = pod.get("/metrics").await.text();
    metric(&metrics, "orderfree_folds_total{end=\"forgotten\"}")
}

/// Other clients work until `is_over`, and are served in time.
async fn others_are_served(pod: &Pod, when: &str, is_over: impl AsyncFn(Duration) -> bool) {
    let start = |client| Bystander::of_key(pod.port(), &format!("{when}-{client}"));
    let bystanders: Vec<Bystander> = (0..CLIENTS).map(start).collect();
    let began = Instant::now();
    while !is_over(began.elapsed()).await {
        sleep(Duration::from_millis(100)).await;
    }
    println!("{when}: {:.1?}", began.elapsed());
    for bystander in bystanders {
        bystander.was_served(P99_MAX).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_forgotten_while_others_are_counted() {
    let _alone = machine::alone().await;
    let keys = keys();
    let setup = Setup::new().with_shifted_clock().policy("");
    let setup = setup.arg("--lifetime", "60s").arg("--drain-margin", "30s").arg("--cutoff", "60s");
    let setup = setup.arg("--sweep-every", "10s");
    let mut pod = setup.start().await;
    fill(&pod, keys).await;
    pod.signal(Signal::TERM);
    pod.ended(Duration::from_secs(60)).await;
    setup.shift_clock(TWO_HOURS);
    let pod = setup.start().await;

    let for_a_while = async |span| span >= LOOK;
    others_are_served(&pod, "before", for_a_while).await;
    assert_eq!(forgotten(&pod).await, 0);
    setup.write("policy.toml", POLICY);
    pod.signal(Signal::HUP);
    let all = keys as u64;
    others_are_served(&pod, "meanwhile", async |_| forgotten(&pod).await == all).await;
    others_are_served(&pod, "after", for_a_while).await;
    assert_eq!(forgotten(&pod).await, all, "each once");
    assert_eq!(pod.get("/v1/counter/session:7/k7").await.status, 404);
}
