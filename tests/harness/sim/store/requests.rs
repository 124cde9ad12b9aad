//! The requests of a pod's store: every attempt, with the shipped retries and hedges.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use orderfree::runtime::clock::Clock;
use orderfree::store::cassandra::attempts::{Patience, Sending};
use orderfree::store::cassandra::hedges::Hedges;
use orderfree::store::cassandra::reach::Reach;
use orderfree::store::{Reads, StoreError};
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::{Row, ShardWrite, WriteOutcome};
use rand::Rng;
use scylla::errors::ExecutionError;

use super::{SimStore, stop};
use crate::cluster::{Address, Cell, Mutation, Range};
use crate::coverage::Hazard;
use crate::network;
use crate::sabotage::Sabotage;

impl SimStore {
    async fn send_shards(&self, rows: &[(Address, Cell)]) -> Result<(), ExecutionError> {
        // A pod may be stopped between its last look at the clock and the send, or just after the send, while the
        // network holds the message.
        let held = match self.stop_if_told() {
            Some(Some(held)) => held,
            _ => {
                tokio::task::yield_now().await;
                Duration::ZERO
            }
        };
        let mut rows = rows.to_vec();
        if self.is(Sabotage::CoordinatorTimestamps) {
            for (_, cell) in &mut rows {
                cell.timestamp = self.shared.with(|world| {
                    let coordinator = world.dice.random_range(0..world.nodes.len());
                    world.node_now(coordinator)
                });
            }
        }
        let parts = self.parts(rows);
        let (level, patience) = (self.levels().write, self.plan.constants.attempt_budget());
        let (shared, datacenter) = (self.shared.clone(), self.datacenter);
        // A request that has left the pod continues without it.
        let sent = tokio::spawn(async move {
            tokio::time::sleep(held).await;
            network::write_parts(&shared, datacenter, level, parts, patience).await
        });
        sent.await.expect("no panic")
    }

    /// Sends one mutation per partition.
    pub(super) fn parts(&self, rows: Vec<(Address, Cell)>) -> Vec<Arc<Mutation>> {
        let mutation = |cells| Arc::new(Mutation { cells, tombstones: Vec::new() });
        match self.plan.apart {
            true => rows.into_iter().map(|row| mutation(vec![row])).collect(),
            false => vec![mutation(rows)],
        }
    }

    /// Stops the pod if a step says so. Returns for how long the network holds the message that the pod sent before;
    /// `None` if it sent none.
    pub(super) fn stop_if_told(&self) -> Option<Option<Duration>> {
        let (span, held) = self.shared.with(|world| world.stops_at_send[self.pod].take())?;
        self.shared.met(Hazard::StoppedAtSend);
        self.shared.log(|| format!("pod {} stops before a send, for {span:?}", self.pod));
        stop(&self.shared, &self.machine, span);
        Some(held)
    }

    pub(super) async fn write_rows(&self, writes: &[ShardWrite]) -> WriteOutcome {
        let rows: Vec<_> = writes.iter().map(|write| self.shard_of(write)).collect();
        let may_be_sent = || {
            let now = self.machine.now().wall;
            self.is(Sabotage::TakenTooLate) || writes.iter().all(|write| write.may_be_sent(now))
        };
        let is_apart = self.plan.apart && !self.is(Sabotage::PartsTakenForOne);
        let reach = match writes.len() > 1 && is_apart {
            true => Reach::Several,
            false => Reach::OnePartition,
        };
        let patience = Patience::of_writes(&self.plan.constants);
        let out = AtomicUsize::new(0);
        let send = async |_| {
            let _one = self.one_more(&out, Hazard::Hedged);
            self.send_shards(&rows).await
        };
        let sending = self.sending(patience, self.hedges[0].as_ref());
        self.machine.run(sending.write(reach, may_be_sent, send)).await
    }

    /// Counts an attempt as running until the result is dropped.
    fn one_more<'a>(&self, out: &'a AtomicUsize, hazard: Hazard) -> Out<'a> {
        if out.fetch_add(1, Ordering::Relaxed) > 0 {
            self.shared.met(hazard);
        }
        Out(out)
    }

    pub(super) fn sending<'a>(
        &'a self,
        patience: Patience,
        hedges: Option<&'a Hedges>,
    ) -> Sending<'a> {
        Sending { patience, hedges, random: &self.random }
    }

    pub(super) async fn rows(
        &self,
        range: Range,
        level: Level,
    ) -> Result<Vec<(u8, Row)>, StoreError> {
        let out = AtomicUsize::new(0);
        let ask = async |_| {
            let _one = self.one_more(&out, Hazard::HedgedRead);
            network::read(&self.shared, self.datacenter, level, range).await
        };
        let hedges = self.hedges[1].as_ref().filter(|_| level != self.levels().fold);
        let rows =
            self.machine.run(self.sending(Patience::OF_READS_AND_FOLDS, hedges).read(ask)).await?;
        let mut rows: Vec<_> = rows.into_iter().filter_map(|row| self.row_of(row)).collect();
        if self.is(Sabotage::LastRowWins) {
            self.give_last_copies(&mut rows);
        }
        Ok(rows)
    }
}

/// A running attempt.
struct Out<'a>(&'a AtomicUsize);

impl Drop for Out<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
