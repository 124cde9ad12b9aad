//! The clients of the demo. They count under ids, send each update again until it is acknowledged, and keep the books:
//! what was acknowledged, and what the pods count. Beside it they add to a native counter, which has no ids, so an update
//! whose answer is lost can be there twice.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::cluster::Cluster;
use super::pods::{Gone, PODS, Pods};
use crate::runtime::clock::{Clock, SystemClock};
use crate::runtime::random::{Random, update_id};

/// The group of the counters, and their names.
const GROUP: &str = "/v1/counter/shop";
const COUNTERS: [&str; 6] = ["orders", "visits", "carts", "refunds", "signups", "searches"];

/// How long a client waits for an answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(4);

/// The pause before an update is sent again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Updates that are not acknowledged yet, at most. Above this, clients wait.
const OPEN_MAX: usize = 5_000;

/// Most bytes of an answer.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// How many more times an acknowledged update is sent in a storm.
const STORM_REPEATS: usize = 2;

/// The clients, and what they know.
pub(super) struct Load {
    pods: Arc<Pods>,
    cluster: Arc<Cluster>,
    random: Random,
    is_on: AtomicBool,
    pub(super) storms: AtomicBool,
    /// Updates that were sent, acknowledged, and counted by the pods when they were read last.
    sent: AtomicI64,
    acked: AtomicI64,
    unknown: AtomicI64,
    counted: AtomicI64,
    /// Looks at the counters, and those that found another number than there can be.
    pub(super) looks: AtomicU64,
    pub(super) wrong: AtomicU64,
    attempts: AtomicU64,
    open: Arc<Semaphore>,
}

/// The books.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Books {
    pub(super) sent: i64,
    pub(super) acked: i64,
    /// Given up without an acknowledgement, because their ids had expired.
    pub(super) unknown: i64,
    pub(super) counted: i64,
    pub(super) native: i64,
    pub(super) attempts: u64,
}

impl Books {
    /// Whether the pods count what was acknowledged. What was given up can be counted or not.
    pub(super) fn are_right(&self) -> bool {
        (self.acked..=self.acked + self.unknown).contains(&self.counted)
    }
}

impl Load {
    pub(super) fn new(pods: Arc<Pods>, cluster: Arc<Cluster>) -> Arc<Load> {
        Arc::new(Load {
            pods,
            cluster,
            random: Random::system(),
            is_on: AtomicBool::new(true),
            storms: AtomicBool::new(false),
            sent: AtomicI64::new(0),
            acked: AtomicI64::new(0),
            unknown: AtomicI64::new(0),
            counted: AtomicI64::new(0),
            looks: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            attempts: AtomicU64::new(0),
            open: Arc::new(Semaphore::new(OPEN_MAX)),
        })
    }

    pub(super) fn books(&self) -> Books {
        let get = |count: &AtomicI64| count.load(Ordering::SeqCst);
        Books {
            // Acknowledged ones were sent before.
            acked: get(&self.acked),
            unknown: get(&self.unknown),
            counted: get(&self.counted),
            sent: get(&self.sent),
            native: self.cluster.native(),
            attempts: self.attempts.load(Ordering::Relaxed),
        }
    }

    /// Sends this many updates a second, until [`Load::stop`].
    pub(super) async fn run(self: Arc<Self>, rate: u32) {
        let mut ticks = interval(Duration::from_secs(1) / rate.max(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        while self.is_on.load(Ordering::Relaxed) {
            ticks.tick().await;
            let Ok(open) = Arc::clone(&self.open).acquire_owned().await else { return };
            let this = Arc::clone(&self);
            tokio::spawn(async move {
                this.count_one().await;
                drop(open);
            });
            let this = Arc::clone(&self);
            tokio::spawn(async move { this.add_color().await });
        }
    }

    /// Sends no more new updates, and waits until the open ones are acknowledged.
    pub(super) async fn stop(&self) {
        self.is_on.store(false, Ordering::Relaxed);
        let all = u32::try_from(OPEN_MAX).unwrap_or(u32::MAX);
        let _ = self.open.acquire_many(all).await;
    }

    /// One update, under one id, as often as it takes.
    async fn count_one(&self) {
        self.sent.fetch_add(1, Ordering::SeqCst);
        let (id, name) = (update_id(SystemClock.now().wall).to_string(), self.pick(COUNTERS.len()));
        let path = format!("{GROUP}/{}", COUNTERS[name]);
        loop {
            match self.post(&path, Some(&id), "1").await {
                Some(StatusCode::OK) => break,
                Some(StatusCode::UNPROCESSABLE_ENTITY) => {
                    self.unknown.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                // Certainly not counted.
                Some(StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) => {}
                // The answer is lost. A native counter was increased before that or not, and is increased again.
                _ if self.random.below(2) == 0 => {
                    let _ = self.cluster.count_natively(ANSWER_TIME_MAX).await;
                }
                _ => {}
            }
            sleep(AGAIN_AFTER).await;
        }
        self.acked.fetch_add(1, Ordering::SeqCst);
        while self.cluster.count_natively(ANSWER_TIME_MAX).await.is_none() {
            sleep(AGAIN_AFTER).await;
        }
        if self.storms.load(Ordering::Relaxed) {
            // A client that did not hear the answer sends the update again. For a native counter it is another one.
            for _ in 0..STORM_REPEATS {
                let again = self.post(&path, Some(&id), "1");
                futures::join!(again, self.cluster.count_natively(ANSWER_TIME_MAX));
            }
        }
    }

    /// Now and then an op of another kind, so that there is something to look at.
    async fn add_color(&self) {
        let visitor = self.random.below(5_000);
        let (path, body) = match self.random.below(40) {
            0 => ("/v1/distinct/shop/visitors", format!("visitor-{visitor}")),
            1 => ("/v1/topk/shop/products", format!("product-{}", visitor % 7 * (visitor % 11))),
            2 => {
                let ms = self.random.factor(0.2..1.0).powi(3) * 400.0;
                ("/v1/histogram/shop/answer_ms", format!("{ms:.2}"))
            }
            3 => {
                ("/v1/gset/shop/countries", ["DE", "FR", "IN", "JP", "BR"][self.pick(5)].to_owned())
            }
            _ => return,
        };
        let _ = self.post(path, None, &body).await;
    }

    async fn post(&self, path: &str, id: Option<&str>, body: &str) -> Option<StatusCode> {
        let mut request = Request::builder().method(Method::POST).uri(path).header("host", "demo");
        request = request.header("content-type", "text/plain");
        if let Some(id) = id {
            self.attempts.fetch_add(1, Ordering::Relaxed);
            // The shortest window, so that folds take the ids within minutes.
            request = request.header("idempotency-key", format!("\"{id}\""));
            request = request.header("idempotency-window", "minute");
        }
        let request = request.body(Body::from(body.to_owned())).expect("invariant: a request");
        let answer = timeout(ANSWER_TIME_MAX, self.pods.send(self.pick(PODS), request)).await;
        match answer.ok()? {
            Ok(answer) => Some(answer.status()),
            // As the server of an address that is closed.
            Err(Gone::Before) => Some(StatusCode::SERVICE_UNAVAILABLE),
            Err(Gone::Meanwhile) => None,
        }
    }

    /// Reads the counters. The sum must be at least what was acknowledged before, and at most what was sent.
    pub(super) async fn look(&self) -> Option<i64> {
        let before = self.acked.load(Ordering::SeqCst);
        let request = Request::builder().uri(GROUP).header("host", "demo").body(Body::empty());
        let request = request.expect("invariant: a request");
        let answer = timeout(ANSWER_TIME_MAX, self.pods.send_to_any(request)).await.ok()?.ok()?;
        let is_ok = answer.status() == StatusCode::OK;
        let body = to_bytes(answer.into_body(), ANSWER_BYTES_MAX).await.ok()?;
        let page: Value = serde_json::from_slice(&body).ok().filter(|_| is_ok)?;
        let keys: HashMap<&str, i64> = page["keys"]
            .as_array()?
            .iter()
            .map(|key| Some((key["name"].as_str()?, key["value"].as_i64()?)))
            .collect::<Option<_>>()?;
        let counted = COUNTERS.iter().filter_map(|name| keys.get(name)).sum();
        let after = self.sent.load(Ordering::SeqCst);
        self.counted.store(counted, Ordering::SeqCst);
        self.looks.fetch_add(1, Ordering::Relaxed);
        if !(before..=after).contains(&counted) {
            self.wrong.fetch_add(1, Ordering::Relaxed);
            tracing::error!(before, counted, after, "the counters are wrong");
        }
        Some(counted)
    }

    /// Folds one of the counters. A fold that has to wait is no mistake.
    pub(super) async fn fold(&self) {
        let path = format!("{GROUP}/{}/fold", COUNTERS[self.pick(COUNTERS.len())]);
        let request = Request::builder().method(Method::POST).uri(path).header("host", "demo");
        let request = request.body(Body::empty()).expect("invariant: a request");
        let _ = timeout(ANSWER_TIME_MAX, self.pods.send_to_any(request)).await;
    }

    fn pick(&self, count: usize) -> usize {
        let count = u32::try_from(count).expect("invariant: few");
        self.random.below(count) as usize
    }
}
