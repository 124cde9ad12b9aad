//! A scripted store for tests.

use std::collections::VecDeque;
use std::sync::Mutex;

use async_trait::async_trait;
use orderfree_core::protocol::ShardWrite;
use orderfree_core::protocol::clock::ClockError;
use tokio::sync::oneshot;

use super::*;
use crate::store::{Pause, RequestLimits, StoreClock};

/// A store in which each write waits until the test sets its outcome.
#[derive(Default)]
pub(super) struct Scripted {
    pub(super) requests: Mutex<VecDeque<(Vec<ShardWrite>, oneshot::Sender<WriteOutcome>)>>,
    arrived: tokio::sync::Notify,
    pub(super) shut: AtomicBool,
    pub(super) panics: AtomicBool,
}

impl Scripted {
    /// The next request that the pod sends.
    pub(super) async fn request(&self) -> (Vec<ShardWrite>, oneshot::Sender<WriteOutcome>) {
        loop {
            if let Some(request) = self.requests.lock().unwrap().pop_front() {
                return request;
            }
            self.arrived.notified().await;
        }
    }

    /// The next request, which has one write.
    pub(super) async fn write(&self) -> (ShardWrite, oneshot::Sender<WriteOutcome>) {
        let (mut writes, reply) = self.request().await;
        assert_eq!(writes.len(), 1);
        (writes.remove(0), reply)
    }

    pub(super) async fn answer(&self, outcome: WriteOutcome) -> i128 {
        let (write, reply) = self.write().await;
        reply.send(outcome).expect("the flusher waits");
        total(&write)
    }
}

#[async_trait]
impl Shards for Scripted {
    fn request_limits(&self) -> RequestLimits {
        RequestLimits {
            rows_max: 3,
            group_rows_max: 3,
            partitions_max: 2,
            bytes_max: 4_096,
            free: 2,
            backlog: 1,
        }
    }

    async fn write_shards(&self, writes: &[ShardWrite]) -> WriteOutcome {
        assert!(!self.panics.load(Ordering::SeqCst), "a test wanted it");
        let (reply, outcome) = oneshot::channel();
        self.requests.lock().unwrap().push_back((writes.to_vec(), reply));
        self.arrived.notify_one();
        outcome.await.unwrap_or(Err(WriteError::Unknown("the test is over".into())))
    }
}

impl StoreClock for Scripted {
    fn check_clock(&self, _: Now) -> Result<(), ClockError> {
        if self.shut.load(Ordering::SeqCst) { Err(ClockError::Moved) } else { Ok(()) }
    }

    fn fold_time(&self, _: Now) -> Result<Timestamp, Pause> {
        panic!("an update never folds")
    }
}
