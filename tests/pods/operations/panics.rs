//! A task panics. The pod continues if it can, and ends with one line if it can't. It never stays ready with a part
//! of it dead.

use std::time::Duration;

use clap::ValueEnum;
use orderfree::runtime::tasks::Task;

use crate::disk::SmallDisk;
use crate::pod::{Pod, Setup};
use crate::wire::{self, Answer, request};

const KEY: &str = "/v1/counter/site/home";
const ENDED_WITHIN: Duration = Duration::from_secs(20);

fn panicking(setup: &Setup, task: Task) -> Setup {
    setup.clone().env("ORDERFREE_PANIC_IN", task.name())
}

/// `None` if the connection ended instead.
async fn try_ask(
    pod: &Pod,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Option<Answer> {
    wire::ask(pod.port(), &request(method, path, headers, body)).await.ok()
}

/// Updates the key. The answer may never come.
async fn update(pod: &Pod) {
    let headers = [("content-type", "text/plain")];
    let update = try_ask(pod, "POST", KEY, &headers, "1");
    let _ = tokio::time::timeout(Duration::from_secs(5), update).await;
}

/// Gives a task of a pod on the embedded store something to do.
async fn provoke(task: Task, setup: &Setup) -> Pod {
    let mut pod = setup.spawn();
    if task.is_vital() && !matches!(task, Task::Update | Task::WriteRequest) {
        // It panics when it starts.
        return pod;
    }
    pod.logs("listening on", Duration::from_secs(20)).await;
    match task {
        Task::Connection => assert!(try_ask(&pod, "GET", "/livez", &[], "").await.is_none()),
        Task::Request => assert_eq!(pod.get("/livez").await.status, 500),
        Task::Read => assert_eq!(pod.get(KEY).await.status, 500),
        Task::Fold => {
            let answer = pod.ask("POST", &format!("{KEY}/fold"), &[], "").await;
            assert_eq!(answer.status, 500, "{}", answer.text());
        }
        Task::Reset => {
            update(&pod).await;
            let answer = pod.ask("POST", &format!("{KEY}/reset"), &[], "").await;
            assert_eq!(answer.status, 504, "{}", answer.text());
        }
        Task::Watch => {
            let url = format!("http://127.0.0.1:{}/v1/watch?key=counter/site/home", pod.port());
            let (mut stream, mut text) =
                (reqwest::get(url).await.expect("a stream"), String::new());
            while !text.contains("/problems/internal") {
                let piece = tokio::time::timeout(Duration::from_secs(10), stream.chunk()).await;
                let piece = piece.expect("in time").expect("a piece").expect("no end");
                text += std::str::from_utf8(&piece).expect("UTF-8");
            }
        }
        _ => update(&pod).await,
    }
    pod
}

async fn ends(task: Task, mut pod: Pod) {
    let (code, _) = pod.ended(ENDED_WITHIN).await;
    assert_eq!(code, Some(1), "{task:?}: {}", pod.log());
    let log = pod.log();
    let said: Vec<&str> = log.lines().filter(|line| line.starts_with("orderfree: ")).collect();
    assert_eq!(said.len(), 1, "{task:?}: {log}");
    let reason = "a test requested this panic";
    assert!(said[0].contains("can't go on: ") && said[0].contains(reason), "{task:?}: {log}");
    assert!(!log.contains("RUST_BACKTRACE"), "{task:?}: {log}");
}

async fn goes_on(task: Task, pod: &Pod) {
    let answer = pod.ask("POST", KEY, &[("content-type", "text/plain")], "1").await;
    assert_eq!(answer.status, 200, "{task:?}: {}", answer.text());
    assert_eq!(pod.get(KEY).await.status, 200, "{task:?}");
    assert_eq!(pod.get("/readyz").await.status, 200, "{task:?}");
    let metrics = pod.get("/metrics").await.text();
    let line = format!("orderfree_panics_total{{task=\"{}\"}} 1", task.name());
    assert!(metrics.contains(&line), "{task:?}: {metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_pod_stays_ready_with_a_dead_part() {
    for &task in Task::value_variants() {
        let setup = panicking(&Setup::new(), task);
        match task {
            // `processes` tests it on Cassandra.
            Task::ClockSampler => {}
            // These tasks work when the store takes no writes.
            Task::Retry | Task::Handover => {
                let disk = SmallDisk::new();
                let setup =
                    disk.holding(&panicking(&Setup::without_store(), task)).with_shifted_clock();
                let pod = setup.start().await;
                disk.fill();
                pod.ask("POST", &format!("{KEY}?ack=memory"), &[], "").await;
                // The lease of its mutator is over.
                setup.shift_clock(2 * 86_400);
                ends(task, pod).await;
            }
            _ if task.is_vital() => ends(task, provoke(task, &setup).await).await,
            _ => goes_on(task, &provoke(task, &setup).await).await,
        }
    }
}
