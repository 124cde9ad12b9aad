//! A log of resets in memory, over an embedded store that pods share. So a reset waits as it does with Cassandra.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use orderfree::store::{Folds, Receipt, ResetLog, StoreError, SweepPart};
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::fold::{Fold, Grave};
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::reset::{LogRow, bucket};
use orderfree_core::protocol::sweep::{GroupSize, Nomination, Nominator};
use orderfree_core::protocol::{Name, Timestamp, WriteError, WriteOutcome};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::pod::Ground;

pub(crate) struct Logged {
    pub(crate) ground: Arc<Ground>,
    rows: Mutex<BTreeMap<(Generation, Uuid), (LogRow, Receipt)>>,
    is_down: AtomicBool,
    is_silent: AtomicBool,
    is_slow: AtomicBool,
}

impl Logged {
    pub(crate) fn new() -> Arc<Logged> {
        Logged::on(Ground::new())
    }

    pub(crate) fn on(ground: Arc<Ground>) -> Arc<Logged> {
        Arc::new(Logged {
            ground,
            rows: Mutex::default(),
            is_down: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
            is_slow: AtomicBool::new(false),
        })
    }

    /// Whether the log can't be read or written.
    pub(crate) fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::SeqCst);
    }

    /// Whether markers are stored, and not acknowledged.
    pub(crate) fn set_silent(&self, is_silent: bool) {
        self.is_silent.store(is_silent, Ordering::SeqCst);
    }

    /// Whether writes of the log wait until this is over.
    pub(crate) fn set_slow(&self, is_slow: bool) {
        self.is_slow.store(is_slow, Ordering::SeqCst);
    }

    pub(crate) fn rows(&self) -> Vec<(LogRow, Receipt)> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Drops all rows, as a log does when their time is over.
    pub(crate) fn clear(&self) {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn check(&self) -> Result<(), StoreError> {
        match self.is_down.load(Ordering::SeqCst) {
            true => Err(StoreError::Unavailable("no node answers".to_owned())),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Folds for Logged {
    fn sweep_parts(&self) -> u32 {
        self.ground.store.sweep_parts()
    }

    async fn sweep(
        &self,
        part: SweepPart,
        nominator: Nominator,
        found: mpsc::Sender<Nomination>,
    ) -> Result<Option<GroupSize>, StoreError> {
        self.ground.store.sweep(part, nominator, found).await
    }

    // A deletion of a few keys has several lists of them.
    fn folds_max(&self) -> usize {
        2
    }

    async fn write_folds(&self, folds: &[Fold]) -> WriteOutcome {
        let outcome = self.ground.store.write_folds(folds).await;
        match self.is_silent.load(Ordering::SeqCst) {
            true => outcome.and_then(|()| Err(WriteError::Unknown("no answer came".to_owned()))),
            false => outcome,
        }
    }

    async fn remove_grave(&self, grave: &Grave) -> WriteOutcome {
        self.ground.store.remove_grave(grave).await
    }
}

#[async_trait]
impl ResetLog for Logged {
    fn has_resets(&self) -> bool {
        true
    }

    async fn read_resets(&self, part: u8, after: Timestamp) -> Result<Vec<LogRow>, StoreError> {
        self.check()?;
        let rows = self.rows().into_iter().map(|(row, _)| row);
        let is_asked =
            |row: &LogRow| bucket(row.kind, &row.group) == part && row.generation.time() > after;
        Ok(rows.filter(is_asked).collect())
    }

    async fn write_reset(&self, row: &LogRow, receipt: &Receipt) -> WriteOutcome {
        self.check().map_err(|error| WriteError::Refused(error.to_string()))?;
        while self.is_slow.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, kept) = rows
            .entry((row.generation, row.id))
            .or_insert_with(|| (row.clone(), Receipt::default()));
        kept.done = receipt.done.or(kept.done);
        if receipt.cleared.is_some() {
            kept.cleared.clone_from(&receipt.cleared);
        }
        Ok(())
    }

    async fn read_receipt(
        &self,
        (kind, group): (Kind, &Name),
        generation: Generation,
        id: Uuid,
    ) -> Result<Option<(LogRow, Receipt)>, StoreError> {
        self.check()?;
        let is_it = |(row, _): &(LogRow, Receipt)| {
            (row.kind, &row.group, row.generation, row.id) == (kind, group, generation, id)
        };
        Ok(self.rows().into_iter().find(is_it))
    }
}
