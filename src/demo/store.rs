//! A pod's connection to the replicas of the demo: the shipped retries on a network in memory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::clock::{self, ClockError, NodeClock, Sample};
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::fold::{Fold, Grave};
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::group::{self, Chunk};
use orderfree_core::protocol::prefix::{LAST_EXPIRY, Part};
use orderfree_core::protocol::reset::{LogRow, bucket};
use orderfree_core::protocol::sweep::{GroupSize, Nomination, Nominator};
use orderfree_core::protocol::{
    Constants, FullRead, Key, MutatorId, Name, Now, Row, ShardWrite, Slice, Timestamp, WholeSlice,
    WriteError, WriteOutcome,
};
use orderfree_replicas::{Address, Mutation, Range, Tombstone};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::cluster::{Cluster, Health, Partition, cell};
use crate::limits::group_chunk_rows;
use crate::runtime::clock::{Clock, SystemClock};
use crate::runtime::random::Random;
use crate::store::cassandra::attempts::{Patience, Sending};
use crate::store::cassandra::chunk;
use crate::store::cassandra::reach::Reach;
use crate::store::{
    Folds, GroupCursor, GroupList, Operators, Pause, Reads, Receipt, ResetLog, Shards, Store,
    StoreClock, StoreError, SweepPart,
};

const DATACENTER: &str = "demo";

/// A pod's clock. It can be set ahead of the nodes' clocks.
#[derive(Debug, Default)]
pub(super) struct DemoClock {
    ahead_ms: AtomicI64,
}

impl DemoClock {
    pub(super) fn set_ahead(&self, ms: i64) {
        self.ahead_ms.store(ms, Ordering::Relaxed);
    }

    pub(super) fn ahead_ms(&self) -> i64 {
        self.ahead_ms.load(Ordering::Relaxed)
    }
}

impl Clock for DemoClock {
    fn now(&self) -> Now {
        let now = SystemClock.now();
        Now { wall: now.wall.shifted(1_000 * self.ahead_ms()), ..now }
    }
}

/// See the [module documentation](self).
pub(super) struct DemoStore {
    pub(super) cluster: Arc<Cluster>,
    pub(super) clock: Arc<DemoClock>,
    pub(super) constants: Constants,
    pub(super) random: Random,
}

impl DemoStore {
    fn sending(&self, patience: Patience) -> Sending<'_> {
        Sending { patience, hedges: None, random: &self.random }
    }

    async fn rows(
        &self,
        partition: &Partition,
        range: Range<String>,
        level: Level,
    ) -> Result<Vec<(Name, Row)>, StoreError> {
        let patience = Patience::OF_READS_AND_FOLDS;
        let ask = |_| self.cluster.read(partition, range.clone(), level, patience.attempt);
        self.sending(patience).read(ask).await
    }

    async fn of_key(
        &self,
        key: &Key,
        range: Range<String>,
        level: Level,
    ) -> Result<Vec<Row>, StoreError> {
        let rows = self.rows(&(key.kind, key.group.clone()), range, level).await?;
        Ok(rows.into_iter().map(|(_, row)| row).collect())
    }

    async fn write(
        &self,
        partition: &Partition,
        mutation: Mutation<String>,
        patience: Patience,
        may_be_sent: impl Fn() -> bool,
    ) -> WriteOutcome {
        let (mutation, level) = (Arc::new(mutation), self.levels().write);
        let send = |_| self.cluster.write(partition.clone(), &mutation, level, patience.attempt);
        self.sending(patience).write(Reach::OnePartition, may_be_sent, send).await
    }

    /// Removes one row.
    async fn remove(&self, key: &Key, row: &Row, timestamp: Timestamp) -> WriteOutcome {
        let tombstone = Tombstone {
            name: key.name.to_string(),
            after: row.expires_at.shifted(-1),
            through: row.expires_at,
            id: Some(row.mutator_id),
            timestamp,
            made_us: timestamp.as_micros(),
        };
        let mutation = Mutation { cells: Vec::new(), tombstones: vec![tombstone] };
        let partition = (key.kind, key.group.clone());
        self.write(&partition, mutation, Patience::OF_READS_AND_FOLDS, || true).await
    }

    fn node_clocks(&self, now: Now) -> Vec<NodeClock> {
        let sample = Sample { node: SystemClock.now().wall, taken: now.boot };
        let clock = |health: &Health| NodeClock {
            datacenter: DATACENTER.to_owned(),
            sample: (*health == Health::Up).then_some(sample),
        };
        self.cluster.health().iter().map(clock).collect()
    }
}

/// A text that no name is after.
const LAST: &str = "\u{10FFFF}\u{10FFFF}";

#[async_trait]
impl Shards for DemoStore {
    async fn write_shards(&self, writes: &[ShardWrite]) -> WriteOutcome {
        let mut partitions: Vec<(Partition, Mutation<String>)> = Vec::new();
        for write in writes {
            let key = write.key();
            let place = (write.expires_at(), write.mutator_id());
            let cell = cell(&key.name, place, write.timestamp(), write.state());
            let of = (key.kind, key.group.clone());
            match partitions.iter_mut().find(|(partition, _)| *partition == of) {
                Some((_, mutation)) => mutation.cells.push(cell),
                None => partitions.push((of, Mutation { cells: vec![cell], tombstones: vec![] })),
            }
        }
        let patience = Patience::of_writes(&self.constants);
        let may_be_sent = || {
            let now = self.clock.now().wall;
            writes.iter().all(|write| write.may_be_sent(now))
        };
        let count = partitions.len();
        let sent = partitions.into_iter().map(|(partition, mutation)| async move {
            self.write(&partition, mutation, patience, may_be_sent).await
        });
        let outcomes = futures::future::join_all(sent).await;
        let error = outcomes.into_iter().find_map(Result::err);
        match error {
            None => Ok(()),
            // The rows of another partition can be stored.
            Some(WriteError::Refused(why)) if count > 1 => Err(WriteError::Unknown(why)),
            Some(error) => Err(error),
        }
    }
}

#[async_trait]
impl Reads for DemoStore {
    async fn read_slice(
        &self,
        key: &Key,
        after: Option<Timestamp>,
        level: Level,
        limit: usize,
    ) -> Result<WholeSlice, StoreError> {
        let range = Range { after, ..Range::key(key.name.to_string()) };
        Ok(Slice::new(self.of_key(key, range, level).await?, after, limit).whole()?)
    }

    async fn read_tally(&self, key: &Key) -> Result<Option<Row>, StoreError> {
        let range = Range { after: Some(LAST_EXPIRY), ..Range::key(key.name.to_string()) };
        Ok(self.of_key(key, range, Level::All).await?.into_iter().next())
    }

    async fn read_part(&self, key: &Key, part: Part) -> Result<Vec<Row>, StoreError> {
        let Part { after, through, limit, ids_only } = part;
        let (through, is_backwards) = (Some(through), true);
        let range =
            Range { after, through, limit, is_backwards, ..Range::key(key.name.to_string()) };
        let mut rows = self.of_key(key, range, Level::All).await?;
        if ids_only {
            rows.iter_mut().for_each(|row| row.state.clear());
        }
        Ok(rows)
    }

    async fn read_chunk(
        &self,
        kind: Kind,
        group: &Name,
        from: &group::From,
        level: Level,
    ) -> Result<Chunk, StoreError> {
        let (partition, limit) = ((kind, group.clone()), group_chunk_rows(kind));
        let from_on = |lowest: String| Range::names(lowest, LAST.to_owned());
        let limited = async |lowest: String| {
            self.rows(&partition, Range { limit, ..from_on(lowest) }, level).await
        };
        let range = async |lowest: String, below: Option<Name>| {
            self.rows(
                &partition,
                Range { below: below.map(|name| name.to_string()), ..from_on(lowest) },
                level,
            )
            .await
        };
        chunk::read(from, limit, limited, range).await
    }

    async fn read_for_folds(&self, keys: &[Key]) -> Result<Vec<FullRead>, StoreError> {
        let names: BTreeSet<&Name> = keys.iter().map(|key| &key.name).collect();
        let (Some(first), Some(last)) = (names.first(), names.last()) else { return Ok(vec![]) };
        let partition = (keys[0].kind, keys[0].group.clone());
        let range = Range::names(first.to_string(), last.to_string());
        let mut rows = self.rows(&partition, range, self.levels().fold).await?;
        rows.retain(|(name, _)| names.contains(name));
        Ok(FullRead::all_at_fold_level(keys, rows, self.bounds(partition.0).fold_rows)?)
    }
}

#[async_trait]
impl Folds for DemoStore {
    fn sweep_parts(&self) -> u32 {
        1
    }

    async fn sweep(
        &self,
        _: SweepPart,
        mut nominator: Nominator,
        found: mpsc::Sender<Nomination>,
    ) -> Result<Option<GroupSize>, StoreError> {
        let mut nominated = Vec::new();
        for ((kind, group), rows) in self.cluster.partitions() {
            for Address { name, expires_at, .. } in rows {
                let name = Name::new(&name).expect("invariant: it was a name");
                let key = Key { kind, group: group.clone(), name };
                nominated.extend(nominator.pass(key, expires_at.0));
            }
        }
        let (last, largest) = nominator.finish();
        nominated.extend(last);
        for nomination in nominated {
            if found.send(nomination).await.is_err() {
                break;
            }
        }
        Ok(largest)
    }

    fn folds_max(&self) -> usize {
        8
    }

    async fn write_folds(&self, folds: &[Fold]) -> WriteOutcome {
        let Some(first) = folds.first() else { return Ok(()) };
        let mut mutation = Mutation::default();
        for fold in folds {
            let name = &fold.key().name;
            mutation.tombstones.push(Tombstone {
                name: name.to_string(),
                after: Timestamp::from_micros(i64::MIN),
                through: fold.fence(),
                id: None,
                timestamp: fold.timestamp(),
                made_us: SystemClock.now().wall.as_micros(),
            });
            let place = (Timestamp::NEVER, MutatorId::TALLY);
            mutation.cells.push(cell(name, place, fold.tally_timestamp(), fold.tally()));
        }
        let may_be_sent = || {
            let boot = self.clock.now().boot;
            folds.iter().all(|fold| fold.may_be_sent(boot))
        };
        let partition = (first.key().kind, first.key().group.clone());
        self.write(&partition, mutation, Patience::OF_READS_AND_FOLDS, may_be_sent).await
    }

    async fn remove_grave(&self, grave: &Grave) -> WriteOutcome {
        self.remove(grave.key(), grave.row(), grave.timestamp()).await
    }
}

impl StoreClock for DemoStore {
    fn check_clock(&self, now: Now) -> Result<(), ClockError> {
        clock::check_writes(&self.node_clocks(now), DATACENTER, now, &self.constants)
    }

    fn fold_time(&self, now: Now) -> Result<Timestamp, Pause> {
        Ok(clock::fold_time(&self.node_clocks(now), DATACENTER, now, &self.constants)?)
    }

    fn clock_offset_us(&self) -> Option<i64> {
        Some(1_000 * self.clock.ahead_ms())
    }
}

#[async_trait]
impl Operators for DemoStore {
    async fn groups(
        &self,
        kind: Kind,
        _: Option<&GroupCursor>,
        _: usize,
    ) -> Result<GroupList, StoreError> {
        let all = self.cluster.partitions().into_iter();
        let groups = all.filter(|((of, _), _)| *of == kind).map(|((_, group), _)| group);
        Ok(GroupList { groups: groups.collect(), next: None })
    }

    async fn count_names(
        &self,
        kind: Kind,
        group: &Name,
        most: usize,
    ) -> Result<usize, StoreError> {
        let all = self.cluster.partitions().into_iter();
        let rows = all.filter(|(partition, _)| *partition == (kind, group.clone()));
        let names: BTreeSet<String> = rows.flat_map(|(_, rows)| rows).map(|row| row.name).collect();
        Ok(names.len().min(most))
    }

    async fn remove_row(&self, key: &Key, row: &Row) -> WriteOutcome {
        self.remove(key, row, self.clock.now().wall).await
    }
}

#[async_trait]
impl ResetLog for DemoStore {
    fn has_resets(&self) -> bool {
        true
    }

    async fn read_resets(&self, part: u8, after: Timestamp) -> Result<Vec<LogRow>, StoreError> {
        let log = self.cluster.log().ok_or_else(no_quorum)?;
        let rows = log.values().map(|(row, _)| row);
        let is_asked =
            |row: &&LogRow| row.generation.time() > after && bucket(row.kind, &row.group) == part;
        Ok(rows.filter(is_asked).cloned().collect())
    }

    async fn write_reset(&self, row: &LogRow, receipt: &Receipt) -> WriteOutcome {
        let mut log =
            self.cluster.log().ok_or_else(|| WriteError::Refused(NO_QUORUM.to_owned()))?;
        let place = (row.generation, row.id);
        let (_, kept) = log.entry(place).or_insert_with(|| (row.clone(), Receipt::default()));
        if receipt.cleared.is_some() {
            kept.cleared.clone_from(&receipt.cleared);
        }
        kept.done = receipt.done.or(kept.done);
        Ok(())
    }

    async fn read_receipt(
        &self,
        (kind, group): (Kind, &Name),
        generation: Generation,
        id: Uuid,
    ) -> Result<Option<(LogRow, Receipt)>, StoreError> {
        let log = self.cluster.log().ok_or_else(no_quorum)?;
        let found = log.get(&(generation, id)).cloned();
        Ok(found.filter(|(row, _)| row.kind == kind && row.group == *group))
    }
}

const NO_QUORUM: &str = "fewer than two nodes answer";

fn no_quorum() -> StoreError {
    StoreError::Unavailable(NO_QUORUM.to_owned())
}

#[async_trait]
impl Store for DemoStore {
    fn name(&self) -> &'static str {
        "demo"
    }

    async fn close(&self) {}
}
