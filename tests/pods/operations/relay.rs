//! A relay between clients and pods. Each test says what it does with a request: forward it, lose its answer, answer
//! itself.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::net::TcpListener;

use crate::wire::{Connection, ask};

/// A request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    head: String,
    body: Vec<u8>,
}

impl Request {
    /// Its method and path.
    pub(crate) fn line(&self) -> &str {
        let line = self.head.lines().next().unwrap_or_default();
        line.rsplit_once(' ').map_or(line, |(line, _)| line)
    }

    /// The id of its update, with its quotes.
    pub(crate) fn id(&self) -> Option<String> {
        self.header("idempotency-key")
    }

    /// The first header with this name.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        let found = lines.find(|(of, _)| of.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim().to_owned())
    }

    /// Sends it to a pod. Returns the answer as it can be sent on; none if the pod gave none.
    pub(crate) async fn to(&self, port: u16) -> Option<Vec<u8>> {
        let answer = ask(port, &[self.head.as_bytes(), &self.body].concat()).await.ok()?;
        let more = ["content-type", "retry-after"]
            .map(|name| (name, answer.header(name)))
            .into_iter()
            .filter(|(_, value)| !value.is_empty());
        let more: String = more.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        Some(answered(answer.status, &more, &answer.body))
    }
}

/// An answer as bytes. `headers` are whole lines.
pub(crate) fn answered(status: u16, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status} Said\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// See the [module documentation](self).
pub(crate) struct Relay {
    pub(crate) port: u16,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Relay {
    /// Answers each request, given with its number from 0, by the bytes that `answer` returns. On `None` the
    /// connection is closed without an answer.
    pub(crate) async fn start<F, R>(answer: F) -> Relay
    where
        F: Fn(usize, Request) -> R + Send + Sync + 'static,
        R: Future<Output = Option<Vec<u8>>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let seen: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (answer, number, all) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)), seen.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, number, all) = (answer.clone(), number.clone(), all.clone());
                tokio::spawn(async move {
                    let mut connection = Connection::over(stream);
                    let Ok((head, body)) = connection.request().await else { return };
                    let request = Request { head, body };
                    all.lock().expect("not poisoned").push(request.clone());
                    let number = number.fetch_add(1, Ordering::Relaxed);
                    if let Some(bytes) = answer(number, request).await {
                        // The client may have gone.
                        let _ = connection.send(&bytes).await;
                    }
                });
            }
        });
        Relay { port, seen }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// All requests so far.
    pub(crate) fn seen(&self) -> Vec<Request> {
        self.seen.lock().expect("not poisoned").clone()
    }

    /// The methods and paths of all requests so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.seen().iter().map(|request| request.line().to_owned()).collect()
    }
}
