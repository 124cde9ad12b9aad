//! Pods as processes, which can be killed at any time.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use reqwest::Client;
use serde_json::Value;

/// Lifetimes so short that folds happen all the time, with 3 s for a write. The defaults of other settings follow.
const SHORT_LIVES: [(&str, &str); 3] =
    [("ORDERFREE_LIFETIME", "40s"), ("ORDERFREE_DRAIN_MARGIN", "15s"), ("ORDERFREE_CUTOFF", "16s")];

/// Longer than the pods' own time limits of a write and of a read.
const TIMEOUT: Duration = Duration::from_secs(20);
const READY_WITHIN: Duration = Duration::from_secs(60);

/// The outcome of an update.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    /// Stored, with the time of the last op for kinds that have times.
    Acked(Option<i64>),
    /// Certainly not counted.
    Refused,
    /// May be counted.
    Unknown,
}

/// One pod, which keeps its port when it is started again.
pub(crate) struct Pod {
    environment: Vec<(String, String)>,
    port: u16,
    child: Option<Child>,
    client: Client,
}

impl Pod {
    /// Starts a pod on a free port.
    pub(crate) fn start(cassandra: &str, keyspace: &str) -> Pod {
        // Below the ports that the kernel gives to outgoing connections, and never the same twice: requests to a pod
        // that can't listen would go to that of another test.
        static NEXT_PORT: AtomicU16 = AtomicU16::new(18_000);
        let port = std::iter::repeat_with(|| NEXT_PORT.fetch_add(1, Ordering::Relaxed))
            .take_while(|port| *port < 32_000)
            .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
        let port = port.expect("a free port");
        let set = [
            ("ORDERFREE_CASSANDRA", cassandra),
            ("ORDERFREE_KEYSPACE", keyspace),
            ("ORDERFREE_LISTEN", &format!("127.0.0.1:{port}")),
            ("RUST_LOG", "error"),
        ];
        let environment = SHORT_LIVES.iter().chain(&set);
        let environment = environment.map(|(name, value)| ((*name).into(), (*value).into()));
        let client = Client::builder().timeout(TIMEOUT).build().expect("a client");
        let mut pod = Pod { environment: environment.collect(), port, child: None, client };
        pod.spawn();
        pod
    }

    fn spawn(&mut self) {
        let child = Command::new(env!("CARGO_BIN_EXE_orderfree"))
            .arg("serve")
            .envs(self.environment.iter().cloned())
            .stdout(Stdio::null())
            .spawn();
        self.child = Some(child.expect("the program runs"));
    }

    /// Kills the pod, and starts another one in its place.
    pub(crate) fn kill_and_restart(&mut self) {
        self.kill();
        self.spawn();
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it runs");
            child.wait().expect("it ended");
        }
    }

    pub(crate) async fn wait_ready(&self) {
        let began = Instant::now();
        let url = self.url("/readyz");
        while !self.client.get(&url).send().await.is_ok_and(|answer| answer.status().is_success()) {
            assert!(began.elapsed() < READY_WITHIN, "pod {} is not ready", self.port);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Sends ops of one key, which are applied together or not at all.
    pub(crate) async fn update(&self, path: &str, ops: &[Value]) -> Outcome {
        let body = serde_json::json!({"ops": ops});
        let answer = match self.client.post(self.url(path)).json(&body).send().await {
            Ok(answer) => answer,
            Err(error) if error.is_connect() => return Outcome::Refused,
            Err(_) => return Outcome::Unknown,
        };
        let status = answer.status();
        let Ok(answer) = answer.json::<Value>().await else { return Outcome::Unknown };
        match answer["outcome"].as_str() {
            Some("acked") => Outcome::Acked(answer["timestamp"].as_i64()),
            Some("refused") if status.is_server_error() => Outcome::Refused,
            Some("unknown") => Outcome::Unknown,
            _ => panic!("{path}: {status} {answer}"),
        }
    }

    /// Reads a key's value, and waits until that is possible.
    pub(crate) async fn value(&self, path: &str) -> Value {
        for _ in 0..60 {
            if let Ok(answer) = self.client.get(self.url(path)).send().await
                && answer.status().is_success()
                && let Ok(answer) = answer.json::<Value>().await
            {
                return answer["value"].clone();
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        panic!("{path} can't be read from pod {}", self.port);
    }

    /// Folds a key, if that is possible now.
    pub(crate) async fn fold(&self, path: &str) {
        let _ = self.client.post(self.url(&format!("{path}/fold"))).send().await;
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.kill();
    }
}
