//! Where rows are stored. Two stores with the same rows and rules: Cassandra for production, and an embedded
//! file for one machine. One contract suite (`tests/stores/contract`) runs on both.
//!
//! Each part of the engine gets the traits that it needs: mutators [`Shards`], readers [`Reads`], folders
//! [`Reads`] and [`Folds`], the clock gate [`StoreClock`], resets [`ResetLog`], operators' requests
//! [`Operators`]. A [`Store`] is all of them.
//!
//! Stores execute; they decide nothing about the protocol. They promise:
//!
//! * the last write of a row wins, by the bound timestamp; the greater bytes win a tie;
//! * a read of a key is one unpaged slice, which is one snapshot of each replica, or a [`prefix`] walk;
//! * a [`Fold`], or several folds that are written together, are applied whole or not at all, and no read
//!   sees a part of them;
//! * a write that is refused is certainly not applied, now or later.

pub mod cassandra;
pub mod embedded;
pub mod prefix;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::clock::ClockError;
use orderfree_core::protocol::consistency::{Level, Levels, NoOverlap, Replication};
use orderfree_core::protocol::fold::{Fold, Grave};
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::group::{self, BadRows, Chunk};
use orderfree_core::protocol::prefix::Part;
use orderfree_core::protocol::reset::LogRow;
use orderfree_core::protocol::sweep::{GroupSize, Nomination, Nominator};
use orderfree_core::protocol::{
    BadSlice, FullRead, Key, Name, Now, Row, ShardWrite, Timestamp, WholeSlice, WriteError,
    WriteOutcome,
};
use thiserror::Error;
use tokio::sync::mpsc;
use uuid::Uuid;

use self::embedded::Contents;
use crate::limits::{self, AnswerBounds};
use crate::runtime::random::Random;

/// Why a store could not answer. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum StoreError {
    /// Too few nodes answered in time. The same call can work later.
    #[error("the store can't answer now: {0}")]
    Unavailable(String),
    /// The key has more rows than the limit, and a partial sum would be a wrong sum.
    #[error("the key has more than {limit} rows")]
    TooManyRows {
        limit: usize,
        /// Bytes of the rows in the answer.
        bytes: usize,
    },
    /// A row or an answer breaks a rule for all rows.
    #[error("the store returned invalid data: {0}")]
    Corrupt(String),
}

impl From<BadSlice> for StoreError {
    fn from(error: BadSlice) -> StoreError {
        match error {
            BadSlice::Cut { limit, bytes } => StoreError::TooManyRows { limit, bytes },
            BadSlice::Disordered { .. } => StoreError::Corrupt(error.to_string()),
        }
    }
}

impl From<BadRows> for StoreError {
    fn from(error: BadRows) -> StoreError {
        match error {
            BadRows::Slice(error) => error.into(),
            BadRows::Name(_) => StoreError::Corrupt(error.to_string()),
        }
    }
}

impl StoreError {
    /// The error's class, for metrics.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self {
            StoreError::Unavailable(_) => "unavailable",
            StoreError::TooManyRows { .. } => "too_many_rows",
            StoreError::Corrupt(_) => "corrupt",
        }
    }
}

/// Why folds must wait.
#[derive(Debug, Clone, Error)]
pub enum Pause {
    /// The clock can't be trusted.
    #[error(transparent)]
    Clock(#[from] ClockError),
    #[error("folding is switched off (ORDERFREE_FOLD=off)")]
    Off,
    /// The keyspace's replication was changed, and folds could now miss what was counted.
    #[error("folding waits because of the keyspace's replication: {0}")]
    Replication(String),
    /// Nodes disagree on the schema, so they could interpret a deletion and a tally differently.
    #[error("the nodes disagree on the schema; folding waits until they agree")]
    Schema,
}

/// Where a store keeps its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The data centre of this pod, whose replicas answer local levels.
    pub local_datacenter: String,
    pub replication: Replication,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "data centre {}, replicas {}", self.local_datacenter, self.replication)
    }
}

/// Which acknowledged updates a read surely sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sight {
    /// The updates of all pods.
    All,
    /// The updates of the pods in this data centre. Others have replicas, too.
    Local(String),
    /// None: the replicas that answer may have missed any of them.
    Nothing,
}

impl Placement {
    /// Checks the levels of a pod that is here.
    ///
    /// # Errors
    /// [`NoOverlap`] names two levels that could miss each other.
    pub fn check(&self, levels: Levels) -> Result<(), NoOverlap> {
        self.replication.check(levels, &self.local_datacenter)
    }

    /// Whether several data centres have replicas.
    #[must_use]
    pub fn is_spread(&self) -> bool {
        self.replication.datacenters().count() > 1
    }

    /// What a read at this level sees of updates at `write`.
    #[must_use]
    pub fn sight(&self, write: Level, read: Level) -> Sight {
        let Placement { local_datacenter: local, replication } = self;
        let meets = |writer| replication.meets(write, writer, read, local);
        match replication.datacenters().all(meets) {
            true => Sight::All,
            false if meets(local) => Sight::Local(local.clone()),
            false => Sight::Nothing,
        }
    }
}

/// The first replica of a key's partition. Keys with the same one cost less if they are written together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FirstReplica(pub u64);

/// How a pod combines writes with the same first replica into requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// Maximum rows of one request over several partitions.
    pub rows_max: usize,
    /// Maximum rows of one request for one partition, which is one mutation. Not less than `rows_max`.
    pub group_rows_max: usize,
    /// Maximum partitions of one request.
    pub partitions_max: usize,
    /// Maximum bytes of packs in one request over several partitions.
    pub bytes_max: usize,
    /// Requests that can be in flight at once, however few writes wait.
    pub free: usize,
    /// One more request can be in flight per this many full requests that wait.
    pub backlog: usize,
}

/// The values for Cassandra. It accepts requests of this size without a warning.
impl Default for RequestLimits {
    fn default() -> RequestLimits {
        RequestLimits {
            rows_max: limits::BATCH_ROWS_MAX.into(),
            group_rows_max: limits::GROUP_ROWS_MAX.into(),
            partitions_max: limits::BATCH_GROUPS_MAX.into(),
            bytes_max: limits::BATCH_PACK_BYTES_MAX,
            free: limits::WRITE_REQUESTS_OF_REPLICA,
            backlog: limits::WRITE_REQUEST_BACKLOG,
        }
    }
}

/// Where a list of groups ended. Only the store that made it can interpret it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupCursor(pub i64);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupList {
    /// Can be fewer than requested, or empty, even if there are more.
    pub groups: Vec<Name>,
    /// Where the next list starts; `None` at the end.
    pub next: Option<GroupCursor>,
}

/// One of the equal parts of the key space in a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SweepPart {
    /// From 0.
    pub index: u32,
    /// The number of parts: [`Folds::sweep_parts`].
    pub of: u32,
}

/// Stores the shards of mutators.
#[async_trait]
pub trait Shards: Send + Sync + 'static {
    /// All keys have one first replica, unless the store has several nodes.
    fn first_replica(&self, _: &Key) -> FirstReplica {
        FirstReplica::default()
    }

    fn request_limits(&self) -> RequestLimits {
        RequestLimits::default()
    }

    /// Writes shard rows with the same first replica in one request, each at its own timestamp. Retries send
    /// the same bytes within the request budget, and nothing is sent after a lease is over. All rows share
    /// one outcome: refused only if certainly none of them is applied, now or later.
    async fn write_shards(&self, writes: &[ShardWrite]) -> WriteOutcome;

    async fn write_shard(&self, write: &ShardWrite) -> WriteOutcome {
        self.write_shards(std::slice::from_ref(write)).await
    }

    /// The latest stamp of a last-writer-wins op that this store remembers. Stamps of this process start
    /// after it.
    fn latest_stamp(&self) -> Timestamp {
        Timestamp::from_micros(0)
    }

    /// Notes the stamp of a last-writer-wins op, before the op is written.
    fn note_stamp(&self, _: Timestamp) {}
}

/// Reads the rows of keys.
#[async_trait]
pub trait Reads: Send + Sync + 'static {
    /// The consistency levels for requests that name none.
    fn levels(&self) -> Levels {
        Levels::default()
    }

    /// Where the replicas are. `None` for a store without replicas.
    fn placement(&self) -> Option<Arc<Placement>> {
        None
    }

    /// What a read at this level surely sees.
    fn sight(&self, level: Level) -> Sight {
        self.placement().map_or(Sight::All, |placement| placement.sight(self.levels().write, level))
    }

    /// How many rows of a key of this kind one answer can have.
    fn bounds(&self, kind: Kind) -> AnswerBounds {
        AnswerBounds::of(kind)
    }

    /// Reads a key's rows with `expires_at > after` as one unpaged slice of up to `limit` rows. Without
    /// `after`, reads all rows.
    async fn read_slice(
        &self,
        key: &Key,
        after: Option<Timestamp>,
        level: Level,
        limit: usize,
    ) -> Result<WholeSlice, StoreError>;

    /// Reads a key's rows as one unpaged slice with the limit of [`Reads::bounds`].
    async fn read_key(
        &self,
        key: &Key,
        after: Option<Timestamp>,
        level: Level,
    ) -> Result<WholeSlice, StoreError> {
        self.read_slice(key, after, level, self.bounds(key.kind).slice.0).await
    }

    /// Reads a key's tally, if there is one, from every replica, whatever the levels.
    async fn read_tally(&self, key: &Key) -> Result<Option<Row>, StoreError>;

    /// Reads rows of a key from every replica, whatever the levels. The oldest expiry comes first.
    /// If only ids are asked for, the states may be empty.
    async fn read_part(&self, key: &Key, part: Part) -> Result<Vec<Row>, StoreError>;

    /// Reads one chunk of a group, of up to [`crate::limits::group_chunk_rows`] rows.
    async fn read_chunk(
        &self,
        kind: Kind,
        group: &Name,
        from: &group::From,
        level: Level,
    ) -> Result<Chunk, StoreError>;

    /// Reads the whole slices of keys of one partition at the fold's level, in the order of the keys. If one
    /// read fails, all fail.
    async fn read_for_folds(&self, keys: &[Key]) -> Result<Vec<FullRead>, StoreError>;

    /// Reads a key's whole slice at the fold's level.
    async fn read_for_fold(&self, key: &Key) -> Result<FullRead, StoreError> {
        let reads = self.read_for_folds(std::slice::from_ref(key)).await?;
        Ok(reads.into_iter().next().expect("invariant: each key has its read"))
    }
}

/// Finds keys to fold, and stores their folds.
#[async_trait]
pub trait Folds: Send + Sync + 'static {
    /// The number of equal parts into which a sweep divides the key space.
    fn sweep_parts(&self) -> u32;

    /// Whether a key's only row is folded, too. Without read repair, a data centre whose hint for that row was lost misses
    /// the row for good. The fold's tally brings it there.
    fn folds_lone_rows(&self) -> bool {
        false
    }

    /// Scans the primary keys of one part, and sends the keys that are worth folding. The sweep only
    /// nominates keys, so a paged read of one replica is enough. It ends early, without an error, when the
    /// receiver is closed. Returns the largest group of the part.
    async fn sweep(
        &self,
        part: SweepPart,
        nominator: Nominator,
        found: mpsc::Sender<Nomination>,
    ) -> Result<Option<GroupSize>, StoreError>;

    /// Maximum folds of one request. A fold has two statements, and their total must not exceed the maximum
    /// rows of a request.
    fn folds_max(&self) -> usize;

    /// Executes folds of one partition as one batch. All folds share one outcome.
    async fn write_folds(&self, folds: &[Fold]) -> WriteOutcome;

    /// Whether a deleted row can never come back, because there is one replica. Graves then go once they are old.
    fn rows_never_return(&self) -> bool {
        false
    }

    /// Removes a grave. A tally written since then stays.
    async fn remove_grave(&self, grave: &Grave) -> WriteOutcome;

    /// Executes a fold as one batch.
    async fn write_fold(&self, fold: &Fold) -> WriteOutcome {
        self.write_folds(std::slice::from_ref(fold)).await
    }
}

/// Compares this pod's clock with the clocks and fences that the store knows.
pub trait StoreClock: Send + Sync + 'static {
    /// Checks whether this pod may accept updates by its clock.
    fn check_clock(&self, now: Now) -> Result<(), ClockError>;

    /// The time by which a fold may be planned now.
    fn fold_time(&self, now: Now) -> Result<Timestamp, Pause>;

    /// The worst measured clock offset, in µs. `None` if there is no second clock.
    fn clock_offset_us(&self) -> Option<i64> {
        None
    }

    /// The nodes with replicas that did not answer lately, each with its data centre, for people.
    fn silent_nodes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Checks whether a quorum of the local data centre has answered lately. The error says for how long none has.
    fn check_quorum(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Lists, counts and repairs for operators. No update, read or fold uses it.
#[async_trait]
pub trait Operators: Send + Sync + 'static {
    /// Lists the groups of a kind that have rows. The store chooses the order. Slow: it reads every
    /// partition.
    async fn groups(
        &self,
        kind: Kind,
        behind: Option<&GroupCursor>,
        limit: usize,
    ) -> Result<GroupList, StoreError>;

    /// Returns a random place in the list of groups, for a different sample each time. `None` if lists can
    /// only start at the beginning.
    fn groups_somewhere(&self, _: &Random) -> Option<GroupCursor> {
        None
    }

    /// Counts the names of a group, up to `most`. Like the sweep, it reads only primary keys from one
    /// replica, so the count can be approximate.
    async fn count_names(&self, kind: Kind, group: &Name, most: usize)
    -> Result<usize, StoreError>;

    /// The number of nodes per release. Empty if the store has no nodes.
    async fn versions(&self) -> Result<BTreeMap<String, usize>, StoreError> {
        Ok(BTreeMap::new())
    }

    /// Removes one row of a key as it was read. Later writes to the row stay. It is for rows that no release
    /// can decode, and decides nothing.
    async fn remove_row(&self, key: &Key, row: &Row) -> WriteOutcome;
}

/// How long the log keeps the row of a reset after pods have forgotten it, for its client.
pub const RESET_KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// The log of resets lacks a reset that the keys have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogGap {
    /// The generation of the latest one.
    pub at: Timestamp,
}

impl fmt::Display for LogGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = chrono::DateTime::from_timestamp_micros(self.at.as_micros()).unwrap_or_default();
        let at = at.to_rfc3339_opts(chrono::SecondsFormat::Micros, true);
        write!(
            f,
            "the log of resets lacks the reset of {at}; if the table resets was lost or restored alone, run `orderfree \
             export > /dev/null`, which logs lost resets again"
        )
    }
}

/// Between the names of a row of the log, as both stores keep them. No name has control characters.
pub(crate) const BETWEEN_NAMES: char = '\n';

/// Joins the names of a row of the log.
pub(crate) fn joined(names: &[Name]) -> String {
    let names: Vec<&str> = names.iter().map(Name::as_str).collect();
    names.join(&BETWEEN_NAMES.to_string())
}

/// What the log knows of a reset beyond what pods need.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Receipt {
    /// What was cleared, since before the markers were sent.
    pub cleared: Option<Vec<u8>>,
    /// Its end: the markers were acknowledged in time, or none was sent and none ever will be. None if neither is known.
    pub done: Option<bool>,
}

/// The log of resets. A store without one has nothing to implement.
#[async_trait]
pub trait ResetLog: Folds {
    /// Whether there is a log. Then every pod must look at it before it takes updates.
    fn has_resets(&self) -> bool {
        false
    }

    /// When the last look for a log began that found none, by the boot-time clock, if a log can appear while this
    /// process runs.
    fn log_absent_at(&self) -> Option<Duration> {
        None
    }

    /// Looks whether there is a log.
    async fn find_log(&self) -> Result<bool, StoreError> {
        Ok(self.has_resets())
    }

    /// Why no key can be reset now.
    fn reset_obstacle(&self, _: Now) -> Option<String> {
        None
    }

    /// The rows of the log when the store was opened, if this process is alone with the store. Then it needs no looks.
    fn own_resets(&self) -> Option<Vec<LogRow>> {
        None
    }

    /// Reads the rows of one part whose generation is above a time, from replicas that every acknowledged write of
    /// the log has reached.
    async fn read_resets(&self, _bucket: u8, _after: Timestamp) -> Result<Vec<LogRow>, StoreError> {
        Ok(Vec::new())
    }

    /// Writes a row. It stays until pods have forgotten it, and [`RESET_KEPT_FOR`] longer. What the receipt lacks stays as
    /// it is in the store.
    async fn write_reset(&self, _: &LogRow, _: &Receipt) -> WriteOutcome {
        Err(WriteError::Refused("the store has no log of resets".to_owned()))
    }

    /// What the log lacks. Then a process that takes updates must not trust it.
    fn log_gap(&self, _now: Timestamp) -> Option<LogGap> {
        None
    }

    /// Notes that the log has everything again. A tool calls it that looked at the log at this time, then read all keys, and
    /// has logged their resets.
    async fn close_log_gap(&self, _looked: Timestamp) -> WriteOutcome {
        Ok(())
    }

    /// Writes the markers of a reset. A process that is alone with its store also writes the log's row, in the same
    /// transaction.
    async fn write_markers(&self, _: &LogRow, _: &Receipt, markers: &[Fold]) -> WriteOutcome {
        self.write_folds(markers).await
    }

    /// The row of a reset of a group's keys, and its receipt.
    async fn read_receipt(
        &self,
        _: (Kind, &Name),
        _: Generation,
        _id: Uuid,
    ) -> Result<Option<(LogRow, Receipt)>, StoreError> {
        Ok(None)
    }
}

/// A whole store, from its opening to its end; see the [module documentation](self).
#[async_trait]
pub trait Store: Shards + Reads + Folds + StoreClock + ResetLog + Operators {
    /// `cassandra` or `embedded`, for people.
    fn name(&self) -> &'static str;

    /// What the file held when it was opened. `None` without a file.
    fn contents(&self) -> Option<Contents> {
        None
    }

    /// Why the store can't continue without a restart. `None` while it works.
    fn failure(&self) -> Option<&str> {
        None
    }

    /// Stops background work, and closes files and connections.
    async fn close(&self);
}
