//! The store of a simulated pod: the shipped retries on the simulated network. Broken rules are inserted here,
//! between the shipped code and the replicas.

mod parts;
mod requests;
mod resets;
mod tamper;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use orderfree::limits::AnswerBounds;
use orderfree::runtime::clock::Clock;
use orderfree::runtime::random::Random;
use orderfree::store::cassandra::attempts::Patience;
use orderfree::store::cassandra::chunk;
use orderfree::store::cassandra::hedges::Hedges;
use orderfree::store::cassandra::reach::Reach;
use orderfree::store::{
    Folds, GroupCursor, GroupList, Operators, Pause, Reads, RequestLimits, Shards, Store,
    StoreClock, StoreError, SweepPart,
};
use orderfree_core::crdt::Kind;
use orderfree_core::crdt::envelope::{KeySeal, decode_tally};
use orderfree_core::protocol::clock::{self, ClockError, NodeClock, SAMPLE_EVERY, Sample};
use orderfree_core::protocol::consistency::{Level, Levels};
use orderfree_core::protocol::fold::{Fold, Grave};
use orderfree_core::protocol::group::{self, Chunk};
use orderfree_core::protocol::prefix::Part;
use orderfree_core::protocol::sweep::{GroupSize, Nomination, Nominator};
use orderfree_core::protocol::{
    Constants, FullRead, Key, Name, Now, Row, ShardWrite, Slice, Timestamp, WholeSlice, WriteError,
    WriteOutcome,
};
use rand::Rng;
use tokio::sync::mpsc;

use crate::cluster::{Address, Mutation, Range};
use crate::coverage::Hazard;
use crate::machine::Machine;
use crate::network;
use crate::plan::Plan;
use crate::sabotage::Sabotage;
use crate::world::{Shared, seconds};

pub(crate) use tamper::Alias;

/// Rows per page, and rows of a fold's truncated answer, when a rule about them is broken.
const PAGE_ROWS: usize = 2;

/// A cutoff that breaks the rule C > 2ε + R.
const SHORT_CUTOFF: Duration = Duration::from_secs(1);

/// One in this many pods hedges, because the simulator needs as much time for a hedge as for a request.
const HEDGING_PODS: u32 = 4;

/// One pod's connection to the cluster.
pub(crate) struct SimStore {
    shared: Shared,
    plan: Arc<Plan>,
    pod: usize,
    datacenter: usize,
    machine: Arc<Machine>,
    random: Random,
    nodes: Mutex<Vec<NodeClock>>,
    /// Estimates for writes and for reads; `None` if the pod does not hedge.
    hedges: [Option<Hedges>; 2],
    /// When the pod started, by its clock.
    started: Timestamp,
    /// The last time that folds were given.
    fold_time: Mutex<Timestamp>,
    walks: Mutex<parts::Walks>,
    /// For each op, the alias under which it was sent last.
    attempted: Mutex<BTreeMap<(u8, usize), usize>>,
    /// The last answer about each key, and when it arrived.
    last_answers: Mutex<HashMap<(Key, Level), (Duration, WholeSlice)>>,
}

impl SimStore {
    /// Connects and measures the clocks, which are then measured again until the machine is killed.
    pub(crate) fn connect(
        shared: &Shared,
        plan: &Arc<Plan>,
        pod: usize,
        machine: &Arc<Machine>,
        random: Random,
    ) -> Arc<SimStore> {
        let nodes = plan.nodes.iter().map(|node| NodeClock {
            datacenter: Plan::datacenter_name(node.datacenter),
            sample: None,
        });
        let is_hedging = random.below(HEDGING_PODS) == 0;
        let hedges = || is_hedging.then(Hedges::default);
        let store = Arc::new(SimStore {
            shared: shared.clone(),
            plan: Arc::clone(plan),
            pod,
            datacenter: plan.pods[pod].datacenter,
            machine: Arc::clone(machine),
            random,
            nodes: Mutex::new(nodes.collect()),
            hedges: [hedges(), hedges()],
            started: machine.now().wall,
            fold_time: Mutex::new(Timestamp::NEVER),
            walks: Mutex::default(),
            attempted: Mutex::default(),
            last_answers: Mutex::default(),
        });
        store.sample();
        let sampler = Arc::clone(&store);
        tokio::spawn(async move {
            while !sampler.machine.is_dead() {
                tokio::time::sleep(SAMPLE_EVERY).await;
                sampler.machine.run(async { sampler.sample() }).await;
            }
        });
        store
    }

    fn sample(&self) {
        let now = self.machine.now();
        let mut clocks = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.with(|world| {
            for (at, clock) in clocks.iter_mut().enumerate() {
                if world.reaches(self.datacenter, at) {
                    let error = Duration::from_micros(world.dice.random_range(0..2_000));
                    let taken = now.boot.saturating_sub(error);
                    clock.sample = Some(Sample { node: world.node_now(at), taken });
                }
            }
        });
    }

    fn is(&self, sabotage: Sabotage) -> bool {
        self.plan.sabotage == Some(sabotage)
    }

    /// Whether the pods' clocks go unchecked.
    fn is_unchecked(&self) -> bool {
        self.is(Sabotage::FolderAhead) || self.is(Sabotage::PodBehind)
    }

    fn local(&self) -> String {
        Plan::datacenter_name(self.datacenter)
    }

    /// Values by the driver's pages, each of which is another read.
    async fn paged(&self, mut range: Range, level: Level) -> Result<Vec<(u8, Row)>, StoreError> {
        range.limit = PAGE_ROWS;
        let mut all = Vec::new();
        loop {
            let page = self.rows(range, level).await?;
            let is_last = page.len() < PAGE_ROWS;
            all.extend(page);
            let Some((name, row)) = all.last() else { return Ok(all) };
            let (name, expires_at, id) = (*name, Reverse(row.expires_at), row.mutator_id);
            range.behind = Some(Address { name, expires_at, id });
            if is_last {
                return Ok(all);
            }
        }
    }

    async fn values(
        &self,
        range: Range,
        level: Level,
        by_pages: Sabotage,
    ) -> Result<Vec<(u8, Row)>, StoreError> {
        match self.is(by_pages) {
            true => self.paged(range, level).await,
            false => self.rows(range, level).await,
        }
    }
}

#[async_trait]
impl Shards for SimStore {
    fn request_limits(&self) -> RequestLimits {
        // With one request at a time, a few keys are enough for some to wait and go together.
        RequestLimits {
            rows_max: 4,
            group_rows_max: 6,
            free: 1,
            backlog: 1,
            ..RequestLimits::default()
        }
    }

    async fn write_shards(&self, writes: &[ShardWrite]) -> WriteOutcome {
        let sent = self.machine.now();
        if writes.len() > 1 {
            self.shared.met(Hazard::Together);
        }
        if self.is(Sabotage::AckBeforeWrite) {
            let parts = self.parts(writes.iter().map(|write| self.shard_of(write)).collect());
            let (shared, datacenter) = (self.shared.clone(), self.datacenter);
            let (level, patience) = (self.levels().write, self.plan.constants.attempt_budget());
            tokio::spawn(async move {
                let _ = network::write_parts(&shared, datacenter, level, parts, patience).await;
            });
            return Ok(());
        }
        let outcome = self.write_rows(writes).await;
        let now = self.machine.now().wall;
        let lease_is_over = writes.iter().any(|write| now >= write.expires_at());
        let has_pack = writes.iter().any(SimStore::is_pack);
        if outcome.is_ok() && lease_is_over {
            self.shared.met(Hazard::TooLate);
            if has_pack {
                self.shared.met(Hazard::PackTooLate);
            }
        }
        if outcome.is_ok() {
            self.note_late_rows(writes);
        }
        if self.is(Sabotage::NoCheckAfterAck)
            || (self.is(Sabotage::NoCheckAfterPackAck) && has_pack)
        {
            self.machine.show_once(sent);
        }
        match outcome {
            Err(WriteError::Unknown(reason)) if self.is(Sabotage::Rollback) => {
                Err(WriteError::Refused(reason))
            }
            outcome => outcome,
        }
    }
}

#[async_trait]
impl Reads for SimStore {
    fn levels(&self) -> Levels {
        self.plan.levels
    }

    fn bounds(&self, _: Kind) -> AnswerBounds {
        self.plan.lengths.bounds()
    }

    async fn read_slice(
        &self,
        key: &Key,
        after: Option<Timestamp>,
        level: Level,
        limit: usize,
    ) -> Result<WholeSlice, StoreError> {
        if let Some(slice) = self.shared_too_late(key, after, level) {
            return Ok(slice);
        }
        let range = Range { after, ..Range::key(index(&key.name)) };
        let rows = self.slice(range, level, limit).await?;
        let fence = rows.first().filter(|row| row.is_tally()).and_then(|row| {
            decode_tally(KeySeal::of(key), key.kind, &row.state).ok().map(|(fence, _)| fence)
        });
        if fence < after {
            self.shared.met(Hazard::ReadAgain);
        }
        if rows.iter().any(|row| Some(row.expires_at) <= fence) {
            self.shared.met(Hazard::ZombieRead);
        }
        let after = if self.is(Sabotage::CachedFenceTrusted) { None } else { after };
        self.note_cleared(key, &rows);
        let mut rows = rows;
        if self.is(Sabotage::ReadsIgnoreStamps) {
            self.stamp_again(key, &mut rows);
        }
        let slice = Slice::new(rows, after, limit).whole()?;
        self.remember(key, level, &slice);
        Ok(slice)
    }

    async fn read_tally(&self, key: &Key) -> Result<Option<Row>, StoreError> {
        self.look(key).await
    }

    async fn read_part(&self, key: &Key, part: Part) -> Result<Vec<Row>, StoreError> {
        self.part(key, part).await
    }

    async fn read_chunk(
        &self,
        _: Kind,
        _: &Name,
        from: &group::From,
        level: Level,
    ) -> Result<Chunk, StoreError> {
        let limit = self.plan.chunk_rows;
        let from_on = |lowest: &str| Range::names(index_from(lowest), resets::LAST_NAME);
        let named = |rows: Vec<(u8, Row)>| -> chunk::Rows {
            rows.into_iter().map(|(at, row)| (name(at), row)).collect()
        };
        let limited = async |lowest: String| {
            let rows = self.rows(Range { limit, ..from_on(&lowest) }, level).await?;
            Ok::<_, StoreError>(named(rows))
        };
        let range = async |lowest: String, below: Option<Name>| {
            let range = Range { below: below.as_ref().map(index), ..from_on(&lowest) };
            Ok(named(self.values(range, level, Sabotage::GroupPages).await?))
        };
        let chunk = if self.is(Sabotage::ListedKeys) {
            let mut chunk = group::split(limited(from.lowest()).await?, limit)?;
            if let (Some((first, _)), Some((last, _))) = (chunk.keys.first(), chunk.keys.last()) {
                let range = Range::names(index(first), index(last));
                chunk.keys = group::whole(named(self.rows(range, level).await?))?;
            }
            chunk
        } else {
            chunk::read(from, limit, limited, range).await?
        };
        self.shared.log(|| format!("  pod {}'s chunk from {from:?}: {:?}", self.pod, chunk.then));
        Ok(chunk)
    }

    async fn read_for_folds(&self, keys: &[Key]) -> Result<Vec<FullRead>, StoreError> {
        let names: BTreeSet<u8> = keys.iter().map(|key| index(&key.name)).collect();
        let (Some(first), Some(last)) = (names.first(), names.last()) else { return Ok(vec![]) };
        let (level, limit) = (self.levels().fold, self.plan.lengths.bounds().fold_rows);
        let rows = match keys {
            [_] => {
                let named = |row| (*first, row);
                let rows = self.slice(Range::key(*first), level, limit).await;
                rows.map(|rows| rows.into_iter().map(named).collect())
            }
            _ => self.values(Range::names(*first, *last), level, Sabotage::KeyPages).await,
        };
        if rows.is_err() {
            self.shared.met(Hazard::FoldFailed);
        }
        let mut rows = rows?;
        if self.is(Sabotage::AgeOfTallyAlone) {
            rows = self.without_rows_above_old_tallies(rows);
        }
        if self.is(Sabotage::ExpiryIgnoresReset) {
            self.without_needed_resets(&mut rows);
        }
        // The second time gives the ids back that every read was shown.
        if self.is(Sabotage::FoldsCountCopies) || self.is(Sabotage::ReadsCountCopies) {
            rows.iter_mut().for_each(|(at, row)| self.with_own_ids(*at, row));
        }
        if self.is(Sabotage::FoldsIgnoreStamps) {
            for key in keys {
                let (mut of_key, others): (Vec<_>, Vec<_>) =
                    rows.into_iter().partition(|(at, _)| *at == index(&key.name));
                let mut only: Vec<Row> = of_key.drain(..).map(|(_, row)| row).collect();
                self.stamp_again(key, &mut only);
                rows = others;
                rows.extend(only.into_iter().map(|row| (index(&key.name), row)));
            }
            rows.sort_by_key(|(at, _)| *at);
        }
        if self.is(Sabotage::FoldSplitsPacks) {
            rows.dedup_by_key(|(at, row)| (*at, row.expires_at));
        }
        if self.is(Sabotage::CutList) && keys.len() > 1 {
            rows.truncate(2 * PAGE_ROWS);
        }
        let of_keys = rows.chunk_by(|one, other| one.0 == other.0).flat_map(|of_key| {
            let count = match of_key.len() {
                count if self.is(Sabotage::CutFold) => count.min(PAGE_ROWS),
                count if self.is(Sabotage::FoldSkipsRow) => (count - 1).max(1),
                count => count,
            };
            of_key[..count].iter().filter(|(at, _)| names.contains(at))
        });
        let rows = of_keys.map(|(at, row)| (name(*at), row.clone())).collect();
        Ok(FullRead::all_at_fold_level(keys, rows, limit)?)
    }
}

#[async_trait]
impl Folds for SimStore {
    fn folds_lone_rows(&self) -> bool {
        self.plan.nodes.iter().any(|node| node.datacenter > 0)
    }

    fn sweep_parts(&self) -> u32 {
        2
    }

    async fn sweep(
        &self,
        part: SweepPart,
        mut nominator: Nominator,
        found: mpsc::Sender<Nomination>,
    ) -> Result<Option<GroupSize>, StoreError> {
        self.shared.with(|world| {
            world.sweeps.enter(&self.machine);
            if world.sweeps.count() > 1 {
                world.met(Hazard::SweepsAtOnce);
            }
        });
        let rows = self.rows(Range::names(0, resets::LAST_NAME), Level::LocalOne).await;
        self.shared.with(|world| world.sweeps.leave(&self.machine));
        let rows = rows?;
        let mut nominated = Vec::new();
        // Neighbours are in one part, so that some are folded together.
        let is_in_part = |at: u8| u32::from(at) / 2 % part.of == part.index;
        for (at, row) in rows.iter().filter(|(at, _)| is_in_part(*at)) {
            nominated.extend(nominator.pass(self.plan.family.key(*at), row.expires_at));
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
        2
    }

    async fn remove_grave(&self, _: &Grave) -> WriteOutcome {
        panic!("the simulator never removes graves")
    }

    async fn write_folds(&self, folds: &[Fold]) -> WriteOutcome {
        if self.is(Sabotage::GraveOnce) && folds.iter().any(|fold| fold.report().is_grave) {
            return Ok(());
        }
        let names = || folds.iter().map(|fold| usize::from(index(&fold.key().name)));
        if folds.len() > 1 {
            self.shared.met(Hazard::FoldedTogether);
        }
        let is_held = || {
            let told = self.shared.with(|world| world.stops_at_send[self.pod]);
            told.is_some_and(|(_, held)| held.is_some())
        };
        let sent = self.machine.run(async {
            if !is_held() {
                self.stop_if_told();
            }
            tokio::task::yield_now().await;
        });
        self.shared.with(|world| {
            for name in names() {
                world.folding[name].enter(&self.machine);
                if world.folding[name].count() > 1 {
                    world.met(Hazard::FoldsAtOnce);
                }
            }
        });
        sent.await;
        let mut mutation = Mutation::default();
        for fold in folds {
            let of_key = self.mutation_of(fold);
            mutation.cells.extend(of_key.cells);
            mutation.tombstones.extend(of_key.tombstones);
        }
        let mutation = Arc::new(mutation);
        let has_marker = folds.iter().any(SimStore::is_marker);
        self.shared.with(|world| {
            // A marker of which nothing was sent must never be sent.
            if !has_marker {
                world.folds.push(Arc::clone(&mutation));
            }
            for fold in folds {
                let report = fold.report();
                self.note_grave(world, fold);
                if report.folded > 0 {
                    world.met(Hazard::Folded);
                }
                self.note_fold_of_reset(world, fold);
                if report.has_more {
                    world.met(Hazard::FoldedInPart);
                }
                world.log(|| {
                    format!(
                        "pod {} folds {} to fence {}: {} shards, {} zombies, {} kept",
                        self.pod,
                        fold.key().name,
                        seconds(fold.fence()),
                        report.folded,
                        report.zombies,
                        report.kept
                    )
                });
            }
        });
        let level = match self.is(Sabotage::FoldWrittenHere) {
            true => Level::LocalQuorum,
            false => self.levels().fold_write(),
        };
        let patience = Patience::OF_READS_AND_FOLDS;
        let send = async |_| {
            let held = if is_held() { self.stop_if_told().flatten() } else { None };
            let (shared, datacenter) = (self.shared.clone(), self.datacenter);
            let mutation = Arc::clone(&mutation);
            let write = async move {
                if let Some(held) = held {
                    tokio::time::sleep(held).await;
                }
                network::write(&shared, datacenter, level, &mutation, patience.attempt).await
            };
            // The network holds a request that has left the pod.
            if held.is_some() { tokio::spawn(write).await.expect("no panic") } else { write.await }
        };
        let sending = self.sending(patience, None);
        let may_be_sent = || {
            let boot = self.machine.now().boot;
            folds.iter().all(|fold| fold.may_be_sent(boot))
        };
        let outcome = self.machine.run(sending.write(Reach::OnePartition, may_be_sent, send)).await;
        self.shared.with(|world| {
            let forgotten = folds.iter().filter(|fold| fold.report().forgotten);
            forgotten.filter(|_| outcome.is_ok()).for_each(|fold| self.note_forgotten(world, fold));
            names().for_each(|name| world.folding[name].leave(&self.machine));
            if has_marker && !matches!(outcome, Err(WriteError::Refused(_))) {
                world.folds.push(Arc::clone(&mutation));
            }
        });
        if outcome.is_err() {
            self.shared.met(Hazard::FoldUnacked);
        }
        outcome
    }
}

impl StoreClock for SimStore {
    fn check_clock(&self, now: Now) -> Result<(), ClockError> {
        if self.is_unchecked() {
            return Ok(());
        }
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let checked = clock::check_writes(&nodes, &self.local(), now, &self.plan.constants);
        if checked.as_ref().is_err_and(ClockError::is_measured) {
            self.shared.met(Hazard::GateShut);
        }
        checked
    }

    fn fold_time(&self, now: Now) -> Result<Timestamp, Pause> {
        if self.is_unchecked() {
            return Ok(now.wall);
        }
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let constants: &Constants = &self.plan.constants;
        let time = clock::fold_time(&nodes, &self.local(), now, constants)?;
        if self.is(Sabotage::ShortCutoff) {
            return Ok(time.plus(constants.cutoff() - SHORT_CUTOFF));
        }
        *self.fold_time.lock().unwrap_or_else(PoisonError::into_inner) = time;
        Ok(time)
    }
}

#[async_trait]
impl Operators for SimStore {
    async fn groups(
        &self,
        _: Kind,
        _: Option<&GroupCursor>,
        _: usize,
    ) -> Result<GroupList, StoreError> {
        panic!("the simulator never lists groups")
    }

    async fn count_names(&self, _: Kind, _: &Name, _: usize) -> Result<usize, StoreError> {
        panic!("the simulator never counts names")
    }

    async fn remove_row(&self, _: &Key, _: &Row) -> WriteOutcome {
        panic!("the simulator never removes rows")
    }
}

#[async_trait]
impl Store for SimStore {
    fn name(&self) -> &'static str {
        "simulated"
    }

    async fn close(&self) {}
}

/// Stops a pod for a while.
pub(crate) fn stop(shared: &Shared, machine: &Arc<Machine>, span: Duration) {
    machine.stop();
    let (shared, machine) = (shared.clone(), Arc::clone(machine));
    tokio::spawn(async move {
        tokio::time::sleep(span).await;
        machine.resume(shared.with(|world| world.dice.random()));
    });
}

pub(crate) fn name(at: u8) -> Name {
    Name::new(&char::from(b'a' + at).to_string()).expect("a name")
}

/// The index of a name.
fn index(name: &Name) -> u8 {
    name.as_str().as_bytes()[0] - b'a'
}

/// The index of the first name that is not lower than a text.
fn index_from(lowest: &str) -> u8 {
    match lowest.as_bytes() {
        [] => 0,
        [name] => name - b'a',
        [name, ..] => name - b'a' + 1,
    }
}
