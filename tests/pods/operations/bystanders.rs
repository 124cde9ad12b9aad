//! Ordinary clients that count and read while something else happens to the pod. All must be served in time, with right
//! values.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::wire::{self, request};

/// With fewer answers, a 99th percentile says nothing.
const LOOKS_LEAST: usize = 100;

const PAUSE: Duration = Duration::from_millis(10);

/// A client that works until its results are requested.
pub(crate) struct Bystander {
    port: u16,
    key: String,
    enough: Arc<AtomicBool>,
    task: JoinHandle<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    times: Vec<Duration>,
    acked: u64,
    trouble: Vec<String>,
}

impl Bystander {
    /// Counts and reads, each time on a new connection.
    pub(crate) fn start(port: u16) -> Bystander {
        Bystander::of_key(port, "n")
    }

    /// The same with a key of its own.
    pub(crate) fn of_key(port: u16, name: &str) -> Bystander {
        let key = format!("/v1/counter/bystanders/{name}");
        let enough = Arc::new(AtomicBool::new(false));
        let (until, of_task) = (Arc::clone(&enough), key.clone());
        let task = tokio::spawn(async move {
            let mut seen = Seen::default();
            while !until.load(Ordering::Relaxed) || seen.times.len() < LOOKS_LEAST {
                seen.look(port, &of_task).await;
                sleep(PAUSE).await;
            }
            seen
        });
        Bystander { port, key, enough, task }
    }

    /// Stops the client. Every request was answered with 200, 99 of 100 within `most`, and each update counts once.
    pub(crate) async fn was_served(self, most: Duration) {
        self.enough.store(true, Ordering::Relaxed);
        let mut seen = self.task.await.expect("no panic");
        assert!(seen.trouble.is_empty(), "a bystander was not served: {:?}", seen.trouble);
        seen.times.sort();
        let nearly_all = seen.times[(seen.times.len() * 99).div_ceil(100) - 1];
        let median = seen.times[seen.times.len() / 2];
        println!(
            "{}: {} requests, p50 {median:.1?}, p99 {nearly_all:.1?}",
            self.key,
            seen.times.len()
        );
        assert!(
            nearly_all <= most,
            "bystanders waited {nearly_all:?}, at most {:?}; {most:?} are allowed",
            seen.times.last()
        );
        let value =
            wire::ask(self.port, &request("GET", &self.key, &[], "")).await.expect("an answer");
        assert_eq!(value.json()["value"], seen.acked, "what was acked counts, once");
    }
}

impl Seen {
    async fn look(&mut self, port: u16, key: &str) {
        for (method, acked) in [("POST", 1), ("GET", 0)] {
            let began = Instant::now();
            match wire::ask(port, &request(method, key, &[], "")).await {
                Ok(answer) if answer.status == 200 => self.acked += acked,
                other => self.trouble.push(format!("{method}: {other:?}")),
            }
            self.times.push(began.elapsed());
        }
    }
}
