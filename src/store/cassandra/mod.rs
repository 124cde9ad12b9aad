//! The store on Cassandra: the protocol's rows and rules on a real cluster.
//!
//! The counts rely on these rules. The module that keeps each rule is in parentheses.
//!
//! * Every write binds its timestamp (`statements`). A retry sends the same bytes with the same timestamp,
//!   and never after the lease is over (`attempts`).
//! * A request that is out for too long is sent a second time, to another node (`hedges`, `coordinators`).
//! * An outcome is refused only if nothing can ever be applied (`errors`).
//! * A read of a key is one unpaged slice. It requests one row more than its limit, which shows whether the
//!   answer was cut. Or the key is one of several keys that are read together without a limit. Or it is read
//!   in parts ([`super::prefix`]). Only the sweep and the count of a group's names are paged: the sweep only
//!   nominates, and the count only warns.
//! * If one replica's deletions shadow another replica's rows, a query with LIMIT asks that other replica a
//!   second time, for the rows after its last one (short-read protection). A fold that arrives between the
//!   two answers must not tear the key. So a slice with a limit that a key can easily have on a replica is
//!   read backwards, oldest row first. Then the second answer contains the tally, which is the last row, and
//!   with it everything that the fold's deletion hid. Keys of a group come from a range of names without
//!   LIMIT. Slices of small states begin with the newest row, which is faster: only a replica with more than
//!   [`SLICE_ROWS_MAX`] rows of the key could tear them.
//! * A fold, alone or with others of its group, is one mutation of one partition. So a replica applies its
//!   deletion and its tally together or not at all (invariant I7).
//! * The tables, the replication and the consistency levels are as required (`checks`).
//! * No write is accepted and no fold is planned if the nodes' clocks contradict this pod's clock (`clock`),
//!   or if the highest fence of all folds proves that a clock has moved (`high_water`).

pub mod attempts;
mod checks;
pub mod chunk;
mod clock;
mod connect_error;
mod coordinators;
mod errors;
pub mod hedges;
mod high_water;
mod login;
mod operators;
mod own_rows;
mod placement;
mod quorum;
pub mod reach;
mod resets;
mod rows;
pub mod schema;
mod session;
mod settings;
mod statements;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::clock::{self as gate, ClockError};
use orderfree_core::protocol::consistency::{Level, Levels};
use orderfree_core::protocol::fold::{Fold, Grave};
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::group::{self, Chunk};
use orderfree_core::protocol::prefix::Part;
use orderfree_core::protocol::reset::LogRow;
use orderfree_core::protocol::sweep::{GroupSize, Nomination, Nominator};
use orderfree_core::protocol::{
    Constants, FullRead, Key, Name, Now, Row, ShardWrite, Slice, Timestamp, WholeSlice, WriteError,
    WriteOutcome,
};
use scylla::client::session::Session;
use scylla::response::query_result::QueryResult;
use scylla::serialize::row::SerializeRow;
use scylla::statement::prepared::PreparedStatement;
use tokio::sync::mpsc;
use uuid::Uuid;

use self::attempts::{Patience, Sending};
pub use self::checks::scrub_loses_rows;
use self::clock::{Sampler, SharedView};
pub use self::connect_error::ConnectError;
use self::coordinators::Coordinators;
use self::hedges::Hedges;
use self::high_water::HighWater;
pub use self::login::Login;
use self::own_rows::OwnRows;
use self::reach::Reach;
pub use self::settings::CassandraConfig;
use self::statements::Statements;
use super::{
    FirstReplica, Folds, GroupCursor, GroupList, LogGap, Operators, Pause, Placement, Reads,
    Receipt, RequestLimits, ResetLog, Shards, Store, StoreClock, StoreError, SweepPart,
};
use crate::limits::{AnswerBounds, SLICE_ROWS_MAX, group_chunk_rows};
use crate::runtime::clock::Clock;
use crate::runtime::random::Random;
use crate::runtime::tasks::{Task, Tasks};

/// The number of token ranges into which a sweep divides the ring.
const SWEEP_PARTS: u32 = 256;

const TABLE: &str = "shards";

/// How long closing waits for a round of clock samples to end.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// The store on a cluster. Its connections close when it is dropped.
pub struct CassandraStore {
    session: Arc<Session>,
    statements: Statements,
    levels: Levels,
    constants: Constants,
    coordinators: Coordinators,
    local_datacenter: String,
    request_limits: RequestLimits,
    hedges: AllHedges,
    clock: Arc<dyn Clock>,
    random: Random,
    view: SharedView,
    high_water: Arc<HighWater>,
    resets: resets::Log,
    tasks: Tasks,
}

/// Requests of one type share an estimate, however many rows they have.
#[derive(Default)]
struct AllHedges {
    writes: Hedges,
    reads: Hedges,
    chunks: Hedges,
}

/// Checks that the nodes let new connections in.
pub async fn check_access(config: &CassandraConfig) -> Result<(), ConnectError> {
    session::open(config).await.map(drop)
}

impl CassandraStore {
    /// Connects, checks the cluster, and measures the nodes' clocks once.
    pub async fn connect(
        config: CassandraConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<CassandraStore, ConnectError> {
        let session = Arc::new(session::open(&config).await?);
        let CassandraConfig { keyspace, levels, constants, request_limits, .. } = config;
        let replication = session::replication(&session, &keyspace).await?;
        let replication =
            replication.ok_or_else(|| ConnectError::KeyspaceMissing(keyspace.clone()))?;
        let local_datacenter = checks::local_datacenter(
            &replication,
            config.local_datacenter.as_deref(),
            &session::datacenters(&session),
        )?;
        replication.check(levels, &local_datacenter)?;
        let engine = session::engine(&session).await?;
        engine.check(levels)?;
        session::check(&session, &keyspace, engine).await?;
        let statements =
            Statements::prepare(&session, &keyspace, &local_datacenter, levels, &constants)
                .await
                .map_err(ConnectError::question)?;
        session::check_rights(&session, &statements, levels).await?;
        let own_rows = OwnRows::open(&session, &keyspace, &local_datacenter).await?;
        let high_water = HighWater::open(&own_rows, constants).await?;
        let resets =
            resets::Log::open(&session, &keyspace, &local_datacenter, own_rows, clock.now())
                .await?;
        let placement =
            Arc::new(Placement { local_datacenter: local_datacenter.clone(), replication });
        let mut sampler = Sampler::new(
            Arc::clone(&session),
            statements.clock.clone(),
            Arc::clone(&high_water),
            Arc::clone(&clock),
            constants.clock_offset_max(),
            placement::Look::new(&session, &keyspace, levels, Arc::clone(&placement)).await?,
            placement,
        );
        sampler.round().await;
        let view = sampler.view();
        let tasks = Tasks::new();
        tasks.spawn(Task::ClockSampler, sampler.run(tasks.clone()));
        let coordinators =
            Coordinators::new(Arc::clone(&session), keyspace, local_datacenter.clone());
        Ok(CassandraStore {
            session,
            statements,
            levels,
            constants,
            coordinators,
            local_datacenter,
            request_limits,
            hedges: Default::default(),
            clock,
            random: Random::system(),
            view,
            high_water,
            resets,
            tasks,
        })
    }

    /// Reads rows of one partition.
    async fn ask(
        &self,
        partition: (Kind, &Name),
        statement: &PreparedStatement,
        values: impl SerializeRow + Sync,
        hedges: Option<&Hedges>,
    ) -> Result<QueryResult, StoreError> {
        let route = self.coordinators.route(partition, self.any());
        let send = async |number| {
            let attempt = self.coordinators.attempt(&route, number);
            let statement = attempt.aim(statement);
            let answer = self.session.execute_unpaged(&statement, &values).await;
            attempt.ended(&answer);
            answer
        };
        self.sending(Patience::OF_READS_AND_FOLDS, hedges).read(send).await
    }

    fn sending<'a>(&'a self, patience: Patience, hedges: Option<&'a Hedges>) -> Sending<'a> {
        Sending { patience, hedges, random: &self.random }
    }

    /// A random replica's number: any replica will do.
    fn any(&self) -> u32 {
        self.random.below(1 << 16)
    }
}

#[async_trait]
impl Shards for CassandraStore {
    fn first_replica(&self, key: &Key) -> FirstReplica {
        let replicas = self.coordinators.replicas(key.partition());
        // If none is known, any value will do.
        let first = replicas.first().map(|(node, _)| node.host_id.as_u64_pair());
        FirstReplica(first.map_or(0, |(high, low)| high ^ low))
    }

    fn request_limits(&self) -> RequestLimits {
        self.request_limits
    }

    async fn write_shards(&self, writes: &[ShardWrite]) -> WriteOutcome {
        let Some(first) = writes.first() else { return Ok(()) };
        let reach = Reach::of(writes);
        // Several partitions share only their first replica.
        let turn = if reach == Reach::Several { 0 } else { self.any() };
        let route = self.coordinators.route(first.key().partition(), turn);
        let values: Vec<_> = writes.iter().map(statements::values_of_write).collect();
        let send = async |number| {
            let attempt = self.coordinators.attempt(&route, number);
            let answer = match values.as_slice() {
                [alone] => {
                    let statement = attempt.aim(&self.statements.write);
                    self.session.execute_unpaged(&statement, alone).await.map(drop)
                }
                all => {
                    let mut batch = self.statements.writes(all.len());
                    batch.set_load_balancing_policy(attempt.policy());
                    self.session.batch(&batch, all).await.map(drop)
                }
            };
            attempt.ended(&answer);
            answer
        };
        let may_be_sent = || {
            let now = self.clock.now().wall;
            writes.iter().all(|write| write.may_be_sent(now))
        };
        let patience = Patience::of_writes(&self.constants);
        self.sending(patience, Some(&self.hedges.writes)).write(reach, may_be_sent, send).await
    }
}

#[async_trait]
impl Reads for CassandraStore {
    fn levels(&self) -> Levels {
        self.levels
    }

    fn placement(&self) -> Option<Arc<Placement>> {
        Some(clock::read(&self.view, |view| Arc::clone(&view.found.placement)))
    }

    async fn read_slice(
        &self,
        key: &Key,
        after: Option<Timestamp>,
        level: Level,
        limit: usize,
    ) -> Result<WholeSlice, StoreError> {
        let (kind, group, name) = (key.kind.name(), key.group.as_str(), key.name.as_str());
        let (rows_max, partition) = (one_more(limit), key.partition());
        let hedges = Some(&self.hedges.reads);
        let statements = &self.statements;
        // Newest first is safe only for a limit that hardly any key reaches on any replica.
        let (whole, behind) = match limit < SLICE_ROWS_MAX {
            true => (&statements.key_backwards, &statements.key_after_backwards),
            false => (&statements.key, &statements.key_after),
        };
        let answer = match after {
            None => {
                let values = (kind, group, name, rows_max);
                self.ask(partition, whole.at(level), values, hedges).await
            }
            Some(after) => {
                let values = (kind, group, name, after.as_micros(), rows_max);
                self.ask(partition, behind.at(level), values, hedges).await
            }
        };
        let mut rows = rows::of_key(answer?)?;
        if limit < SLICE_ROWS_MAX {
            rows.reverse();
        }
        Ok(Slice::new(rows, after, limit).whole()?)
    }

    // No hedges here or for folds: every replica must answer, and a second coordinator would wait for the
    // same replica.
    async fn read_tally(&self, key: &Key) -> Result<Option<Row>, StoreError> {
        let (kind, group, name) = (key.kind.name(), key.group.as_str(), key.name.as_str());
        let values = (kind, group, name, Timestamp::NEVER.as_micros());
        let answer = self.ask(key.partition(), &self.statements.tally, values, None).await?;
        Ok(rows::of_key(answer)?.pop())
    }

    async fn read_part(&self, key: &Key, part: Part) -> Result<Vec<Row>, StoreError> {
        let (kind, group, name) = (key.kind.name(), key.group.as_str(), key.name.as_str());
        // No row expires before 1970.
        let after = part.after.map_or(i64::MIN, Timestamp::as_micros);
        let values = (kind, group, name, after, part.through.as_micros(), count(part.limit));
        if part.ids_only {
            let answer = self.ask(key.partition(), &self.statements.part_ids, values, None).await?;
            return rows::ids_of_key(answer);
        }
        let answer = self.ask(key.partition(), &self.statements.part, values, None).await?;
        rows::of_key(answer)
    }

    async fn read_chunk(
        &self,
        kind: Kind,
        group: &Name,
        from: &group::From,
        level: Level,
    ) -> Result<Chunk, StoreError> {
        let (rows_max, partition) = (group_chunk_rows(kind), (kind, group));
        let (kind, group, statements) = (kind.name(), group.as_str(), &self.statements);
        let hedges = Some(&self.hedges.chunks);
        let limited = async |lowest: String| {
            let values = (kind, group, lowest.as_str(), count(rows_max));
            let statement = statements.chunk_end.at(level);
            rows::of_group(self.ask(partition, statement, values, hedges).await?)
        };
        let range = async |lowest: String, below: Option<Name>| {
            let lowest = lowest.as_str();
            let answer = match &below {
                Some(end) => {
                    let values = (kind, group, lowest, end.as_str());
                    self.ask(partition, statements.chunk.at(level), values, hedges).await
                }
                None => {
                    let statement = statements.last_chunk.at(level);
                    self.ask(partition, statement, (kind, group, lowest), hedges).await
                }
            };
            rows::of_group(answer?)
        };
        chunk::read(from, rows_max, limited, range).await
    }

    async fn read_for_folds(&self, keys: &[Key]) -> Result<Vec<FullRead>, StoreError> {
        let Some(first) = keys.first() else { return Ok(Vec::new()) };
        let (partition, kind, group) = (first.partition(), first.kind.name(), first.group.as_str());
        let rows_max = AnswerBounds::of(first.kind).fold_rows;
        if let [key] = keys {
            let values = (kind, group, key.name.as_str(), one_more(rows_max));
            let answer = self.ask(partition, &self.statements.fold_key, values, None).await?;
            let mut rows = rows::of_key(answer)?;
            rows.reverse();
            let slice = Slice::new(rows, None, rows_max).whole()?;
            return Ok(vec![FullRead::at_fold_level(key.clone(), slice)]);
        }
        let names: Vec<&str> = keys.iter().map(|key| key.name.as_str()).collect();
        let values = (kind, group, names);
        let answer = self.ask(partition, &self.statements.fold_keys, values, None).await?;
        Ok(FullRead::all_at_fold_level(keys, rows::of_group(answer)?, rows_max)?)
    }
}

#[async_trait]
impl Folds for CassandraStore {
    fn sweep_parts(&self) -> u32 {
        SWEEP_PARTS
    }

    fn folds_lone_rows(&self) -> bool {
        clock::read(&self.view, |view| view.found.placement.is_spread())
    }

    async fn sweep(
        &self,
        part: SweepPart,
        nominator: Nominator,
        found: mpsc::Sender<Nomination>,
    ) -> Result<Option<GroupSize>, StoreError> {
        let range = (token_bound(part.index, part.of), token_bound(part.index + 1, part.of));
        operators::sweep(&self.session, &self.statements, range, nominator, found).await
    }

    fn folds_max(&self) -> usize {
        (self.request_limits.rows_max / 2).max(1)
    }

    async fn write_folds(&self, folds: &[Fold]) -> WriteOutcome {
        let Some(first) = folds.first() else { return Ok(()) };
        let partition = first.key().partition();
        let is_one = folds.iter().all(|fold| fold.key().partition() == partition);
        assert!(is_one, "invariant: only the folds of one partition are one mutation");
        let highest = folds.iter().map(Fold::evidence).max().unwrap_or(first.evidence());
        if let Err(why) = self.high_water.raise(highest).await {
            return Err(WriteError::Refused(format!("its fence could not be stored: {why}")));
        }
        let values: Vec<_> = folds.iter().flat_map(statements::values_of_fold).collect();
        let route = self.coordinators.route(partition, self.any());
        let send = async |number| {
            let attempt = self.coordinators.attempt(&route, number);
            let mut batch = self.statements.folds(folds.len());
            batch.set_load_balancing_policy(attempt.policy());
            let answer = self.session.batch(&batch, &values).await.map(drop);
            attempt.ended(&answer);
            answer
        };
        // Any pod may execute a fold at any time (invariant I8), unless it forgets a key or is the marker of a reset.
        // No client waits for it.
        let may_be_sent = || {
            let boot = self.clock.now().boot;
            folds.iter().all(|fold| fold.may_be_sent(boot))
        };
        self.sending(Patience::OF_READS_AND_FOLDS, None)
            .write(Reach::OnePartition, may_be_sent, send)
            .await
    }

    async fn remove_grave(&self, grave: &Grave) -> WriteOutcome {
        operators::remove_grave(&self.session, &self.statements, grave).await
    }
}

impl StoreClock for CassandraStore {
    fn check_clock(&self, now: Now) -> Result<(), ClockError> {
        self.high_water.check(now.wall)?;
        clock::read(&self.view, |view| {
            gate::check_writes(&view.nodes, &self.local_datacenter, now, &self.constants)
        })
    }

    fn fold_time(&self, now: Now) -> Result<Timestamp, Pause> {
        self.high_water.check(now.wall)?;
        clock::read(&self.view, |view| {
            if let Some(why) = &view.found.unsound {
                return Err(Pause::Replication(why.clone()));
            }
            let time = gate::fold_time(&view.nodes, &self.local_datacenter, now, &self.constants)?;
            if view.schema_disagrees { Err(Pause::Schema) } else { Ok(time) }
        })
    }

    fn silent_nodes(&self) -> Vec<String> {
        clock::read(&self.view, |view| view.silent.clone())
    }

    fn check_quorum(&self) -> Result<(), String> {
        let now = self.clock.now().boot;
        clock::read(&self.view, |view| view.quorum.check(now)).map_err(|missed| {
            let (local, seconds) = (&self.local_datacenter, missed.as_secs());
            format!("no quorum of data centre {local} has answered for {seconds} s")
        })
    }

    fn clock_offset_us(&self) -> Option<i64> {
        let now = self.clock.now();
        clock::read(&self.view, |view| {
            let offsets = view.nodes.iter().filter_map(|node| node.fresh_offset_us(now));
            offsets.max_by_key(|offset| offset.unsigned_abs())
        })
    }
}

#[async_trait]
impl Operators for CassandraStore {
    async fn groups(
        &self,
        kind: Kind,
        behind: Option<&GroupCursor>,
        limit: usize,
    ) -> Result<GroupList, StoreError> {
        operators::groups(&self.session, &self.statements, kind, behind, limit).await
    }

    fn groups_somewhere(&self, random: &Random) -> Option<GroupCursor> {
        Some(GroupCursor(token_bound(random.below(SWEEP_PARTS), SWEEP_PARTS)))
    }

    async fn count_names(
        &self,
        kind: Kind,
        group: &Name,
        most: usize,
    ) -> Result<usize, StoreError> {
        operators::count_names(&self.session, &self.statements, kind, group, most).await
    }

    async fn versions(&self) -> Result<BTreeMap<String, usize>, StoreError> {
        operators::versions(&self.session).await
    }

    async fn remove_row(&self, key: &Key, row: &Row) -> WriteOutcome {
        operators::remove_row(&self.session, &self.statements, key, row).await
    }
}

#[async_trait]
impl ResetLog for CassandraStore {
    fn has_resets(&self) -> bool {
        self.resets.exists()
    }

    fn log_absent_at(&self) -> Option<Duration> {
        Some(self.resets.looked_at())
    }

    async fn find_log(&self) -> Result<bool, StoreError> {
        self.resets.find().await
    }

    fn reset_obstacle(&self, now: Now) -> Option<String> {
        self.resets.obstacle(now)
    }

    async fn read_resets(&self, part: u8, after: Timestamp) -> Result<Vec<LogRow>, StoreError> {
        self.resets.read(&self.coordinators, part, after, self.clock.now()).await
    }

    async fn write_reset(&self, row: &LogRow, receipt: &Receipt) -> WriteOutcome {
        self.resets.write(row, receipt, self.clock.now()).await
    }

    async fn write_markers(&self, row: &LogRow, _: &Receipt, markers: &[Fold]) -> WriteOutcome {
        if let Err(why) = self.resets.raise(row, self.clock.now()).await {
            return Err(WriteError::Refused(format!(
                "it could not be stored beside the keys: {why}"
            )));
        }
        self.write_folds(markers).await
    }

    fn log_gap(&self, now: Timestamp) -> Option<LogGap> {
        self.resets.gap(now)
    }

    async fn close_log_gap(&self, looked: Timestamp) -> WriteOutcome {
        self.resets.close_gap(looked, self.clock.now(), &self.constants).await
    }

    async fn read_receipt(
        &self,
        group: (Kind, &Name),
        generation: Generation,
        id: Uuid,
    ) -> Result<Option<(LogRow, Receipt)>, StoreError> {
        self.resets.receipt(group, generation, id).await
    }
}

#[async_trait]
impl Store for CassandraStore {
    fn name(&self) -> &'static str {
        "cassandra"
    }

    fn failure(&self) -> Option<&str> {
        self.tasks.failure()
    }

    async fn close(&self) {
        self.tasks.join(CLOSE_MAX).await;
    }
}

/// The lower bound of part `index` of `of` equal parts. A part contains the tokens above its bound, up to and
/// including the next bound. No key has the smallest token, so the first part misses nothing.
fn token_bound(index: u32, of: u32) -> i64 {
    let ring = 1i128 << 64;
    let bound = i128::from(i64::MIN) + ring * i128::from(index) / i128::from(of);
    i64::try_from(bound).unwrap_or(i64::MAX)
}

/// One row more than the limit, which shows whether the answer was cut.
fn one_more(limit: usize) -> i32 {
    count(limit + 1)
}

fn count(rows: usize) -> i32 {
    i32::try_from(rows).expect("invariant: row limits fit CQL's int")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_parts_cover_the_ring_without_gap_or_overlap() {
        for of in [1, 3, SWEEP_PARTS] {
            assert_eq!((token_bound(0, of), token_bound(of, of)), (i64::MIN, i64::MAX));
            let bounds: Vec<i64> = (0..=of).map(|index| token_bound(index, of)).collect();
            assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]), "{of}");
        }
        assert_eq!(token_bound(128, 256), 0);
    }
}
