//! A scripted store for tests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use async_trait::async_trait;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::clock::ClockError;
use orderfree_core::protocol::consistency::{Level, Levels};
use orderfree_core::protocol::fold::Fold;
use orderfree_core::protocol::group::{Chunk, From as Start};
use orderfree_core::protocol::prefix::Part;
use orderfree_core::protocol::sweep::{GroupSize, Nomination};
use orderfree_core::protocol::{FullRead, Name, Row, ShardWrite, Timestamp, WholeSlice};
use tokio::sync::{mpsc, oneshot};

use super::*;
use crate::store::{Flights, GroupCursor, GroupList, Lane, Pause, StoreError, SweepPart};

/// A store in which each write waits until the test sets its outcome.
#[derive(Default)]
pub(super) struct Scripted {
    pub(super) flights: Mutex<VecDeque<(Vec<ShardWrite>, oneshot::Sender<WriteOutcome>)>>,
    arrived: tokio::sync::Notify,
    pub(super) shut: AtomicBool,
    pub(super) panics: AtomicBool,
}

impl Scripted {
    /// The next batch that the pod sends.
    pub(super) async fn flight(&self) -> (Vec<ShardWrite>, oneshot::Sender<WriteOutcome>) {
        loop {
            if let Some(flight) = self.flights.lock().unwrap().pop_front() {
                return flight;
            }
            self.arrived.notified().await;
        }
    }

    /// The next batch, which has one write.
    pub(super) async fn write(&self) -> (ShardWrite, oneshot::Sender<WriteOutcome>) {
        let (mut writes, reply) = self.flight().await;
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
impl Store for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }
    fn levels(&self) -> Levels {
        Levels::default()
    }
    fn lane(&self, _: &Key) -> Lane {
        Lane::default()
    }
    fn flights(&self) -> Flights {
        Flights { rows_max: 3, group_rows_max: 3, partitions_max: 2, free: 2, backlog: 1 }
    }
    async fn write_shards(&self, writes: &[ShardWrite]) -> WriteOutcome {
        assert!(!self.panics.load(Ordering::SeqCst), "a test wanted it");
        let (reply, outcome) = oneshot::channel();
        self.flights.lock().unwrap().push_back((writes.to_vec(), reply));
        self.arrived.notify_one();
        outcome.await.unwrap_or(WriteOutcome::Unknown("the test is over".into()))
    }
    async fn read_slice(
        &self,
        _: &Key,
        _: Option<Timestamp>,
        _: Level,
        _: usize,
    ) -> Result<WholeSlice, StoreError> {
        panic!("an update never reads")
    }
    async fn read_tally(&self, _: &Key) -> Result<Option<Row>, StoreError> {
        panic!("an update never reads")
    }
    async fn read_part(&self, _: &Key, _: Part) -> Result<Vec<Row>, StoreError> {
        panic!("an update never reads")
    }
    async fn read_chunk(
        &self,
        _: Kind,
        _: &Name,
        _: &Start,
        _: Level,
    ) -> Result<Chunk, StoreError> {
        panic!("an update never reads")
    }
    async fn read_for_folds(&self, _: &[Key]) -> Result<Vec<FullRead>, StoreError> {
        panic!("an update never reads")
    }
    async fn write_folds(&self, _: &[Fold]) -> WriteOutcome {
        panic!("an update never folds")
    }
    fn sweep_parts(&self) -> u32 {
        1
    }
    async fn sweep(
        &self,
        _: SweepPart,
        _: Timestamp,
        _: mpsc::Sender<Nomination>,
    ) -> Result<Option<GroupSize>, StoreError> {
        Ok(None)
    }
    async fn groups(
        &self,
        _: Kind,
        _: Option<&GroupCursor>,
        _: usize,
    ) -> Result<GroupList, StoreError> {
        panic!("no test lists groups")
    }
    async fn count_names(&self, _: Kind, _: &Name, _: usize) -> Result<usize, StoreError> {
        panic!("no test counts names")
    }

    async fn versions(&self) -> Result<BTreeMap<String, usize>, StoreError> {
        Ok(BTreeMap::new())
    }

    async fn remove_row(&self, _: &Key, _: &Row) -> WriteOutcome {
        panic!("no test removes rows")
    }
    fn check_clock(&self, _: Now) -> Result<(), ClockError> {
        if self.shut.load(Ordering::SeqCst) { Err(ClockError::Moved) } else { Ok(()) }
    }
    fn fold_time(&self, now: Now) -> Result<Timestamp, Pause> {
        Ok(now.wall)
    }
    fn clock_offset_us(&self) -> Option<i64> {
        None
    }
    async fn close(&self) {}
}
