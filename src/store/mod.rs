//! Where rows lie. One trait, two stores with the same rows and rules: Cassandra for production, an
//! embedded file for one machine. One contract suite (`tests/contract`) runs on both.
//!
//! Stores execute; they decide nothing about the protocol. What they promise:
//!
//! * rows are last-write-wins by the bound timestamp, ties won by the greater bytes;
//! * a key is read as one unpaged slice, which is one snapshot of each replica, or by a [`prefix`] walk;
//! * a [`Fold`], or several that are written together, are applied whole or not at all, and never
//!   partly seen;
//! * [`WriteOutcome::Refused`] means certainly not applied, now or later.

pub mod cassandra;
pub mod embedded;
pub mod prefix;

use std::collections::BTreeMap;

use async_trait::async_trait;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::clock::ClockError;
use orderfree_core::protocol::consistency::{Level, Levels};
use orderfree_core::protocol::fold::Fold;
use orderfree_core::protocol::group::{self, BadRows, Chunk};
use orderfree_core::protocol::prefix::Part;
use orderfree_core::protocol::sweep::{GroupSize, Nomination};
use orderfree_core::protocol::{
    BadSlice, FullRead, Key, Name, Now, Row, ShardWrite, Timestamp, WholeSlice, WriteOutcome,
};
use thiserror::Error;
use tokio::sync::mpsc;

use crate::limits::{self, AnswerBounds};
use crate::runtime::random::Random;

/// Why a store could not answer. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum StoreError {
    /// Too few nodes answered in time; it may work again later.
    #[error("the store can't answer now: {0}")]
    Unavailable(String),
    /// The key has more rows than the limit: a partial sum would be a wrong sum.
    #[error("the key has more than {limit} rows")]
    TooManyRows {
        /// The limit.
        limit: usize,
        /// Bytes of the rows that came.
        bytes: usize,
    },
    /// A row or an answer breaks a rule that every row must keep.
    #[error("the store returned what it must not: {0}")]
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
    /// Name of the class, for metrics.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self {
            StoreError::Unavailable(_) => "unavailable",
            StoreError::TooManyRows { .. } => "too_many_rows",
            StoreError::Corrupt(_) => "corrupt",
        }
    }
}

/// Why no fold may be planned now.
#[derive(Debug, Clone, Error)]
pub enum Pause {
    /// The clock can't be trusted.
    #[error(transparent)]
    Clock(#[from] ClockError),
    /// The operator switched folding off.
    #[error("folding is switched off (ORDERFREE_FOLD=off)")]
    Off,
    /// Nodes disagree on the schema: a deletion and a tally might be understood differently.
    #[error("the nodes disagree on the schema; folding waits until they agree")]
    Schema,
}

/// Keys with one lane share their first replica, so that writing them together costs less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Lane(pub u64);

/// How writes of one lane go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flights {
    /// Most rows of one request over several partitions.
    pub rows_max: usize,
    /// Most rows of one request of one partition, which is one mutation; not less than `rows_max`.
    pub group_rows_max: usize,
    /// Most partitions of one request.
    pub partitions_max: usize,
    /// So many requests are on their way at once whoever waits.
    pub free: usize,
    /// A further one is for each so many full loads that wait.
    pub backlog: usize,
}

/// What Cassandra takes without a warning.
impl Default for Flights {
    fn default() -> Flights {
        Flights {
            rows_max: limits::BATCH_ROWS_MAX.into(),
            group_rows_max: limits::GROUP_ROWS_MAX.into(),
            partitions_max: limits::BATCH_GROUPS_MAX.into(),
            free: limits::FLIGHTS_OF_LANE,
            backlog: limits::FLIGHT_BACKLOG_LOADS,
        }
    }
}

/// Where a list of groups ended: means something to the store that made it alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupCursor(pub i64);

/// Some of the groups of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupList {
    /// Fewer than were asked for, or none, does not mean that there are no more.
    pub groups: Vec<Name>,
    /// Where to go on; none at the end.
    pub next: Option<GroupCursor>,
}

/// One of the equal parts of the key space that a sweep goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SweepPart {
    /// From 0.
    pub index: u32,
    /// How many parts there are: [`Store::sweep_parts`].
    pub of: u32,
}

/// A place for shards and tallies; see the [module documentation](self).
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Name for people and metrics: `cassandra` or `embedded`.
    fn name(&self) -> &'static str;

    /// The consistency levels that are used when a request names none.
    fn levels(&self) -> Levels;

    /// The lane of a key's writes.
    fn lane(&self, key: &Key) -> Lane;

    /// How writes go together.
    fn flights(&self) -> Flights;

    /// Writes shard rows of one lane in one request, each at its own timestamp, retrying the same
    /// bytes within the request budget, and never sending anything once a lease is over. One outcome
    /// for all: refused only if certainly none of them is applied, now or later.
    async fn write_shards(&self, writes: &[ShardWrite]) -> WriteOutcome;

    /// Writes one shard row.
    async fn write_shard(&self, write: &ShardWrite) -> WriteOutcome {
        self.write_shards(std::slice::from_ref(write)).await
    }

    /// How many rows of a key of this kind one answer may have.
    fn bounds(&self, kind: Kind) -> AnswerBounds {
        AnswerBounds::of(kind)
    }

    /// Reads a key's rows with `expires_at > after` (all without) as one unpaged slice of at most
    /// `limit` rows.
    async fn read_slice(
        &self,
        key: &Key,
        after: Option<Timestamp>,
        level: Level,
        limit: usize,
    ) -> Result<WholeSlice, StoreError>;

    /// Reads as many rows as one slice may have.
    async fn read_key(
        &self,
        key: &Key,
        after: Option<Timestamp>,
        level: Level,
    ) -> Result<WholeSlice, StoreError> {
        self.read_slice(key, after, level, self.bounds(key.kind).slice.0).await
    }

    /// Reads a key's tally from every replica, whatever the levels; none if it has none.
    async fn read_tally(&self, key: &Key) -> Result<Option<Row>, StoreError>;

    /// Reads rows of a key from every replica, whatever the levels, the oldest expiry first.
    async fn read_part(&self, key: &Key, part: Part) -> Result<Vec<Row>, StoreError>;

    /// Reads one chunk of a group of at most [`crate::limits::group_chunk_rows`] rows.
    async fn read_chunk(
        &self,
        kind: Kind,
        group: &Name,
        from: &group::From,
        level: Level,
    ) -> Result<Chunk, StoreError>;

    /// Reads the whole slices of keys of one partition at the fold's level, in the order of the keys.
    /// It fails for all if it fails for one.
    async fn read_for_folds(&self, keys: &[Key]) -> Result<Vec<FullRead>, StoreError>;

    /// Reads a key's whole slice at the fold's level.
    async fn read_for_fold(&self, key: &Key) -> Result<FullRead, StoreError> {
        let reads = self.read_for_folds(std::slice::from_ref(key)).await?;
        Ok(reads.into_iter().next().expect("invariant: each key has its read"))
    }

    /// Executes folds of one partition as one batch, with one outcome for all.
    async fn write_folds(&self, folds: &[Fold]) -> WriteOutcome;

    /// Executes a fold as one batch.
    async fn write_fold(&self, fold: &Fold) -> WriteOutcome {
        self.write_folds(std::slice::from_ref(fold)).await
    }

    /// Into how many equal parts a sweep divides the key space.
    fn sweep_parts(&self) -> u32;

    /// Scans the primary keys of one part and sends the keys worth folding. It only nominates, so
    /// it reads one replica, paged. Ends early, without error, when the receiver is closed. Returns the
    /// largest group that it met.
    async fn sweep(
        &self,
        part: SweepPart,
        now: Timestamp,
        found: mpsc::Sender<Nomination>,
    ) -> Result<Option<GroupSize>, StoreError>;

    /// Groups of a kind that have rows, in an order of the store's own, for operators. Slow: it looks at
    /// every partition.
    async fn groups(
        &self,
        kind: Kind,
        behind: Option<&GroupCursor>,
        limit: usize,
    ) -> Result<GroupList, StoreError>;

    /// Somewhere in a list of groups, for a sample that is another one each time; none where lists begin at
    /// their beginning alone.
    fn groups_somewhere(&self, _: &Random) -> Option<GroupCursor> {
        None
    }

    /// Counts the names of a group, up to `most`, by primary keys alone: as the sweep does, and as near.
    async fn count_names(&self, kind: Kind, group: &Name, most: usize)
    -> Result<usize, StoreError>;

    /// How many nodes run which release; none where this program is the store.
    async fn versions(&self) -> Result<BTreeMap<String, usize>, StoreError>;

    /// Removes one row of a key as it is; what is written to it later stays. It is for rows that nobody can
    /// decode, and decides nothing.
    async fn remove_row(&self, key: &Key, row: &Row) -> WriteOutcome;

    /// Whether this pod's clock may be trusted with updates.
    fn check_clock(&self, now: Now) -> Result<(), ClockError>;

    /// The time that a fold may go by, if one may be planned.
    fn fold_time(&self, now: Now) -> Result<Timestamp, Pause>;

    /// The worst measured clock offset, in µs; none where there is no second clock.
    fn clock_offset_us(&self) -> Option<i64>;

    /// The latest time by which a last writer won here, as far as this store remembers it: times of
    /// this process begin after it.
    fn latest_stamp(&self) -> Timestamp {
        Timestamp::from_micros(0)
    }

    /// Notes such a time before it is written.
    fn note_stamp(&self, _: Timestamp) {}

    /// What was found when the store was opened, for people.
    fn found(&self) -> Option<String> {
        None
    }

    /// Rows that were found damaged when the store was opened.
    fn damaged_rows(&self) -> u64 {
        0
    }

    /// Why the store can't go on without a restart, if so.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Stops background work and lets go of files and connections.
    async fn close(&self);
}
