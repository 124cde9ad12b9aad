//! Many idle keys are forgotten while a pod counts others.
//!
//! `IDLE_KEYS` is their number, and `make idle` sets it for a release build.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::machine;
use crate::pod::{Pod, Setup};

const POLICY: &str = "[[lifecycle]]\ngroup_prefix = 'session:'\nidle_ttl = '65m'\n";
const TWO_HOURS: i64 = 2 * 3600;
const GROUPS: usize = 100;
const LINES: usize = 10_000;
const CLIENTS: usize = 8;

/// Between two updates of a client.
const PAUSE: Duration = Duration::from_millis(10);

/// How long the pod is observed before the first key is forgotten, and after the last one.
const LOOK: Duration = Duration::from_secs(5);

/// The longest p99 of updates, however busy the machine is.
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

async fn forgotten(pod: &Pod) -> usize {
    let metrics = pod.get("/metrics").await.text();
    let line = "orderfree_folds_total{end=\"forgotten\"} ";
    let count = metrics.lines().find_map(|text| text.strip_prefix(line));
    count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{line} in {metrics}"))
}

/// Counts other keys until `is_over`. Returns the number of updates, and prints how long they took.
async fn count(pod: &Pod, what: &str, is_over: impl AsyncFn(Duration) -> bool) -> u64 {
    let (port, mut clients) = (pod.port(), JoinSet::new());
    let (stop, stopped) = tokio::sync::watch::channel(false);
    for client in 0..CLIENTS {
        let stopped = stopped.clone();
        clients.spawn(async move {
            let mut times = Vec::new();
            let update =
                crate::wire::request("POST", &format!("/v1/counter/live/{client}"), &[], "");
            while !*stopped.borrow() {
                let began = Instant::now();
                let answer = crate::wire::ask(port, &update).await.expect("an answer");
                times.push(began.elapsed());
                assert_eq!(answer.status, 200, "{}", answer.text());
                sleep(PAUSE).await;
            }
            times
        });
    }
    let began = Instant::now();
    while !is_over(began.elapsed()).await {
        sleep(Duration::from_millis(100)).await;
    }
    stop.send(true).expect("clients listen");
    let mut times: Vec<Duration> = clients.join_all().await.into_iter().flatten().collect();
    times.sort_unstable();
    let of = |percent: usize| times[(times.len() - 1) * percent / 100];
    let (span, p99) = (began.elapsed(), of(99));
    println!("{what}: {:.1?}, {} updates, p50 {:.1?}, p99 {p99:.1?}", span, times.len(), of(50));
    assert!(p99 < P99_MAX, "{what}: {p99:?}");
    times.len() as u64
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
    let mut updates = count(&pod, "before", for_a_while).await;
    assert_eq!(forgotten(&pod).await, 0);
    setup.write("policy.toml", POLICY);
    pod.signal(Signal::HUP);
    updates +=
        count(&pod, "while keys are forgotten", async |_| forgotten(&pod).await == keys).await;
    updates += count(&pod, "after", for_a_while).await;

    let mut counted = 0;
    for client in 0..CLIENTS {
        counted += pod.count(&format!("/v1/counter/live/{client}")).await;
    }
    assert_eq!(counted, updates);
    assert_eq!(forgotten(&pod).await, keys, "each once");
    assert_eq!(pod.get("/v1/counter/session:7/k7").await.status, 404);
}
