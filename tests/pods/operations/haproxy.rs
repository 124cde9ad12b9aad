//! HAProxy as a process, with the rules of `compose/haproxy.cfg`.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::pod::{Setup, free_port};
use crate::wire::{Answer, Connection, ask, request};

/// Longest time until the proxy answers requests.
const STARTED_WITHIN: Duration = Duration::from_secs(60);

/// A running HAProxy.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    _child: Child,
}

impl Proxy {
    /// Starts HAProxy in front of these ports, with the rules that the repository ships.
    pub(crate) async fn start(setup: &Setup, servers: &[u16]) -> Proxy {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let shipped = std::fs::read_to_string(root.join("compose/haproxy.cfg")).expect("a file");
        let port = free_port();
        let mut config = String::new();
        for line in shipped.lines() {
            // Other addresses, no name server, and less patience. All rules stay.
            let line = match line.trim() {
                "bind :8080" => format!("    bind 127.0.0.1:{port}"),
                "timeout server 120s" => "    timeout server 2s".to_owned(),
                server if server.starts_with("server pod-") => continue,
                server if server.starts_with("default-server check") => {
                    "    default-server check inter 1s fall 2 rise 1".to_owned()
                }
                _ => line.to_owned(),
            };
            config += &format!("{line}\n");
        }
        for (at, port) in servers.iter().enumerate() {
            config += &format!("    server pod-{at} 127.0.0.1:{port}\n");
        }
        let file = setup.write("haproxy.cfg", config);
        let child = Command::new(root.join("tests/haproxy"))
            .arg("-db")
            .arg("-f")
            .arg(file)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        let proxy = Proxy { port, _child: child.expect("a script") };
        let began = Instant::now();
        // Each server has to pass its check first.
        while !timeout(Duration::from_secs(5), ask(port, &request("GET", "/readyz", &[], "")))
            .await
            .is_ok_and(|answer| answer.is_ok_and(|answer| answer.status == 200))
        {
            assert!(began.elapsed() < STARTED_WITHIN, "no answer");
            sleep(Duration::from_millis(100)).await;
        }
        proxy
    }

    /// Adds 1 to the counter at this path, with this id. The body comes after the headers, as many clients send it.
    /// Fails if the connection ends without an answer.
    pub(crate) async fn add(&self, path: &str, id: Option<&str>) -> io::Result<Answer> {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
        let mut headers = vec![("content-type", "application/json".to_owned())];
        if let Some(id) = id {
            headers.push(("idempotency-key", id.to_owned()));
            headers.push(("idempotency-time", now.to_string()));
        }
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
        let body = r#"{"op":"add"}"#;
        let whole = request("POST", path, &headers, body);
        let (head, body) = whole.split_at(whole.len() - body.len());
        let mut connection = Connection::open(self.port).await?;
        connection.send(head).await?;
        sleep(Duration::from_millis(20)).await;
        connection.ask(body).await
    }
}
