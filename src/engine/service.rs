//! What a pod can do, without HTTP: update, read a key, read a group, list shards, fold.

use std::sync::Arc;
use std::time::Duration;

use orderfree_core::crdt::envelope;
use orderfree_core::crdt::pack::United;
use orderfree_core::crdt::{Kind, State};
use orderfree_core::protocol::clock::ClockError;
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::generation::Remembered;
use orderfree_core::protocol::group::{self, Then};
use orderfree_core::protocol::op_id::NamedOp;
use orderfree_core::protocol::read::{self, Answer};
use orderfree_core::protocol::row_reader::{RowError, RowReader};
use orderfree_core::protocol::{
    BadSlice, Constants, Durability, Key, MutatorId, Name, Now, Row, Timestamp,
};
use thiserror::Error;

use crate::engine::Context;
use crate::engine::clock_gate::ClockGate;
use crate::engine::fold::{FoldFailure, FoldResult, Folder};
use crate::engine::metrics::Metrics;
use crate::engine::read::Reader;
pub use crate::engine::read::{KeyValue, ReadError, ReservedValue};
use crate::engine::watch::{Watcher, Watches, Write};
use crate::engine::write::{Mutators, Update, UpdateError, Updates};
use crate::limits;
use crate::policy::WatchRoom;
pub use crate::store::Sight;
use crate::store::{GroupCursor, GroupList, Operators, Placement, Reads, StoreError, prefix};

/// The operations of a pod.
pub struct Service {
    reads: Arc<dyn Reads>,
    operators: Arc<dyn Operators>,
    gate: Arc<ClockGate>,
    mutators: Arc<Mutators>,
    folder: Arc<Folder>,
    reader: Arc<Reader>,
    watches: Arc<Watches>,
    constants: Constants,
    metrics: Arc<Metrics>,
}

/// Which keys of a group to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupQuery {
    pub kind: Kind,
    pub group: Name,
    /// Only names with this prefix.
    pub prefix: Option<Name>,
    /// Only this name and later ones.
    pub from: Option<Name>,
    /// Only names before this one.
    pub to: Option<Name>,
    /// Only names after this one, the last name of the previous page.
    pub behind: Option<Name>,
    /// Maximum number of keys to return.
    pub limit: usize,
    /// `None` is the pod's default.
    pub level: Option<Level>,
}

/// The rows that make up a key's value.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardsReport {
    /// The time that the phases refer to.
    pub now: Timestamp,
    /// Shards that expired up to this time are final.
    pub cutoff: Timestamp,
    /// `None` before the first fold.
    pub tally: Option<TallyView>,
    /// All other rows, by ascending expiry.
    pub shards: Vec<read::ShardView>,
    /// The ops with ids among the rows that count. `None` if one of these rows can't be decoded or merged.
    pub united: Option<United>,
}

/// A tally, decoded or not.
#[derive(Debug, Clone, PartialEq)]
pub struct TallyView {
    /// The reset that it remembers.
    pub reset: Option<Remembered>,
    /// Its fence and state.
    pub content: Result<(Timestamp, State), RowError>,
    /// The tally has no room for another shard.
    pub is_full: bool,
    /// The key was forgotten. It stays absent until a shard counts.
    pub is_grave: bool,
}

impl Service {
    #[must_use]
    pub fn new(
        reads: Arc<dyn Reads>,
        operators: Arc<dyn Operators>,
        context: Context,
        mutators: Arc<Mutators>,
        folder: Arc<Folder>,
    ) -> Service {
        let reader = Reader::new(Arc::clone(&reads), context.clone(), Arc::clone(&folder));
        let reader = Arc::new(reader);
        let watches = Watches::new(Arc::clone(&reader), reads.levels().read, &context);
        let Context { gate, constants, metrics, .. } = context;
        Service { reads, operators, gate, mutators, folder, reader, watches, constants, metrics }
    }

    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Updates the metrics that are measured only on demand, and returns all.
    #[must_use]
    pub fn refresh_metrics(&self) -> &Metrics {
        self.gate.measure_offset();
        self.mutators.refresh_metrics();
        self.metrics.watched_keys.set(i64::try_from(self.watches.count()).unwrap_or(i64::MAX));
        &self.metrics
    }

    /// Reads the pod's clocks.
    #[must_use]
    pub fn now(&self) -> Now {
        self.gate.now()
    }

    /// The consistency level of reads that do not specify one.
    #[must_use]
    pub fn read_level(&self) -> Level {
        self.reads.levels().read
    }

    /// Checks whether a quorum of this pod's data centre has answered lately.
    ///
    /// # Errors
    /// Since when none has, for people.
    pub fn check_quorum(&self) -> Result<(), String> {
        self.gate.check_quorum()
    }

    /// Where the store's replicas are. `None` without replicas.
    #[must_use]
    pub fn placement(&self) -> Option<Arc<Placement>> {
        self.reads.placement()
    }

    /// The level of a read, and what it surely sees.
    #[must_use]
    pub fn sight(&self, level: Option<Level>) -> (Level, Sight) {
        let level = level.unwrap_or(self.read_level());
        (level, self.reader.sight(level))
    }

    /// Checks that this pod's clock can be trusted with updates now.
    pub fn check_clock(&self) -> Result<(), ClockError> {
        self.gate.open().map(|_| ())
    }

    /// Applies a list of ops to a key, all or none. Never reads the database. Dropping the future cancels
    /// nothing: accepted ops are written. Returns the time of the last op for last-writer-wins kinds.
    ///
    /// # Errors
    /// [`UpdateError`]: refused (certainly not counted) or unknown (may be counted).
    pub async fn update(
        &self,
        key: &Key,
        update: impl Into<Update>,
        durability: Durability,
    ) -> Result<Option<Timestamp>, UpdateError> {
        self.mutators.update(key, update, durability).await
    }

    /// Until when an update with this name can be sent again.
    #[must_use]
    pub fn retry_until(&self, name: &NamedOp, group: &Name) -> Timestamp {
        name.retry_until(group, &self.constants)
    }

    /// Applies updates of many keys. Each update has its own outcome; outcomes keep the order of the updates.
    pub async fn update_all(
        &self,
        keys: Vec<Updates>,
        durability: Durability,
    ) -> Vec<Result<Option<Timestamp>, UpdateError>> {
        self.mutators.update_all(keys, durability).await
    }

    /// Like [`Service::update_all`], but with `leaves` it leaves updates that meet a limit of this pod, and the
    /// later ones of their keys. Returns them, each key with its place in `keys`. They have no outcome yet.
    pub async fn update_or_leave(
        &self,
        keys: Vec<Updates>,
        durability: Durability,
        leaves: bool,
    ) -> (Vec<Result<Option<Timestamp>, UpdateError>>, Vec<(usize, Updates)>) {
        self.mutators.update_or_leave(keys, durability, leaves).await
    }

    /// Reads one key. Returns `None` if the key has no row, or was forgotten. Without a level, the pod's
    /// default applies.
    ///
    /// # Errors
    /// [`ReadError`]; never a partial value.
    pub async fn read(
        &self,
        key: &Key,
        level: Option<Level>,
    ) -> Result<Option<Arc<ReservedValue>>, ReadError> {
        self.reader.read(key, level.unwrap_or(self.read_level()), None).await
    }

    /// Like [`Service::read`], but the value can be up to `max_staleness` old.
    ///
    /// # Errors
    /// See [`Service::read`].
    pub async fn read_recent(
        &self,
        key: &Key,
        level: Option<Level>,
        max_staleness: Duration,
    ) -> Result<Option<Arc<ReservedValue>>, ReadError> {
        self.reader.read(key, level.unwrap_or(self.read_level()), Some(max_staleness)).await
    }

    /// Those of these keys that this pod updates most; see [`Mutators::hottest`].
    #[must_use]
    pub fn hottest(&self, limit: usize, is_asked: impl Fn(&Key) -> bool) -> Vec<(Key, f64)> {
        self.mutators.hottest(limit, is_asked)
    }

    /// A watcher of no keys yet; see [`Watches::watcher`]. They are read at the pod's default level.
    #[must_use]
    pub fn watcher(&self, write: Write, form: bool, room: Option<WatchRoom>) -> Watcher {
        self.watches.watcher(write, form, room)
    }

    /// Waits up to `within` for running reads.
    pub async fn close(&self, within: Duration) {
        self.reader.close(within).await;
    }

    /// Reads one page of a group and passes its keys to `take` by ascending name, one value in memory at a
    /// time. Each value is correct, but the page is not a snapshot. `take` returns the size in bytes of its
    /// output so far. The page ends when the output or the rows reach the size limit of an answer, or after
    /// many keys, also if they were all forgotten. Returns the last name if there can be more keys after it.
    ///
    /// # Errors
    /// [`ReadError`] if the store can't answer. The error of a single key is passed to `take`.
    pub async fn read_group(
        &self,
        query: &GroupQuery,
        mut take: impl FnMut(Name, Result<KeyValue, ReadError>) -> usize,
    ) -> Result<Option<Name>, ReadError> {
        let level = query.level.unwrap_or(self.read_level());
        let (mut last, mut taken, mut passed) = (None, 0, 0);
        let (mut rows_bytes, mut taken_bytes) = (0, 0);
        let mut from = query.start();
        loop {
            let as_of = self.gate.now().wall;
            let chunk = self.reads.read_chunk(query.kind, &query.group, &from, level).await?;
            let checked = |slice: Result<_, BadSlice>| {
                slice.map_err(|bad| ReadError::from(StoreError::from(bad)))
            };
            let keys = chunk.keys.into_iter().map(|(name, slice)| (name, Some(checked(slice))));
            let (next, alone) = match chunk.then {
                Then::End => (None, None),
                Then::Chunk(name) => (Some(group::From::At(name)), None),
                Then::Key(name) => (Some(group::From::Behind(name.clone())), Some((name, None))),
            };
            for (name, slice) in keys.chain(alone) {
                if query.is_past(&name) {
                    return Ok(None);
                }
                let has_enough = taken == query.limit || passed == limits::PAGE_MAX;
                if has_enough || rows_bytes.max(taken_bytes) > limits::ANSWER_BYTES_MAX {
                    return Ok(last);
                }
                let key = query.key(name.clone());
                let value = match slice {
                    Some(slice) => slice.and_then(|slice| {
                        rows_bytes += slice.bytes();
                        self.reader.value(&key, &slice, as_of, level)
                    }),
                    // An error goes to `take`. If the store is down, reading the next chunk fails too.
                    None => self.reader.alone(&key, level).await,
                };
                if let Some(value) = value.transpose() {
                    taken_bytes = take(name.clone(), value);
                    taken += 1;
                }
                (last, passed) = (Some(name), passed + 1);
            }
            match next {
                Some(next) => from = next,
                None => return Ok(None),
            }
        }
    }

    /// Reads a key's rows unmerged, at the pod's read level.
    ///
    /// # Errors
    /// [`ReadError`] if the store can't answer. Undecodable rows are part of the report.
    pub async fn shards(&self, key: &Key) -> Result<ShardsReport, ReadError> {
        let slice = self.reader.slice(key, None, self.read_level(), None).await?;
        let now = self.gate.now().wall;
        Ok(ShardsReport {
            now,
            cutoff: now.minus(self.constants.cutoff()),
            tally: read::tally(key, &slice).map(|content| TallyView {
                reset: slice.tally().and_then(|row| envelope::reset(&row.state)),
                is_grave: slice.has_grave(),
                is_full: slice.has_full_tally(),
                content,
            }),
            shards: read::shards(key, &slice, now, &self.constants),
            united: match read::assemble(key, &slice, now, &self.constants) {
                Ok(Answer::Value(reading)) => Some(reading.united),
                Ok(Answer::Absent | Answer::Grave(..) | Answer::ReadAgain) => {
                    Some(United::default())
                }
                Err(_) => None,
            },
        })
    }

    /// Finds a row that can be discarded: no release can decode it, and no mutator can write it any more.
    pub async fn discardable(
        &self,
        key: &Key,
        mutator_id: MutatorId,
    ) -> Result<Discardable, DiscardError> {
        if mutator_id == MutatorId::TALLY {
            return Err(DiscardError::Tally);
        }
        // At the level of folds, a replica with a newer version that can be decoded need not be asked.
        let row = prefix::find(&*self.reads, key, mutator_id).await?;
        let now = self.gate.now().wall;
        let row = row.ok_or(DiscardError::NoRow(mutator_id))?;
        let error = RowReader::of(key).state(&row).err().ok_or(DiscardError::Decodable)?;
        if matches!(&error, RowError::Undecodable { error, .. } if error.may_be_newer()) {
            return Err(DiscardError::Newer);
        }
        let is_final_at = row.expires_at.plus(self.constants.cutoff());
        if now < is_final_at {
            return Err(DiscardError::NotFinal(is_final_at.since(now)));
        }
        Ok(Discardable { row, error })
    }

    /// Removes a discardable row from its key. Everything it counted is lost.
    ///
    /// # Errors
    /// [`DiscardError::Unknown`].
    pub async fn discard(&self, key: &Key, row: &Discardable) -> Result<(), DiscardError> {
        let removed = self.operators.remove_row(key, &row.row).await;
        removed.map_err(|error| DiscardError::Unknown(error.to_string()))
    }

    /// Lists groups of a kind, for operators.
    pub async fn groups(
        &self,
        kind: Kind,
        behind: Option<&GroupCursor>,
        limit: usize,
    ) -> Result<GroupList, StoreError> {
        self.operators.groups(kind, behind, limit).await
    }

    /// Folds one key now, or returns what a fold would do.
    ///
    /// # Errors
    /// [`FoldFailure`]: the key is unchanged or completely folded.
    pub async fn fold(&self, key: &Key, dry_run: bool) -> Result<FoldResult, FoldFailure> {
        self.folder.fold(key, dry_run).await
    }
}

/// A row that no value includes; see [`Service::discardable`].
#[derive(Debug, Clone, PartialEq)]
pub struct Discardable {
    pub row: Row,
    /// Why the row could not be decoded.
    pub error: RowError,
}

/// Why a row can't be discarded.
#[derive(Debug, Clone, Error)]
pub enum DiscardError {
    /// A replica did not answer.
    #[error(transparent)]
    Read(#[from] StoreError),
    #[error("the key has no row of mutator {0}")]
    NoRow(MutatorId),
    /// A tally holds the folded shards and the fence.
    #[error(
        "a tally can't be discarded: rows below its fence that come back would count again; see the \
         runbook (docs/operate/backup.md)"
    )]
    Tally,
    /// The row counts.
    #[error("the row can be decoded, so it counts; only unreadable rows can be discarded")]
    Decodable,
    /// The row can count in a newer release.
    #[error(
        "the row may come from a newer release that can decode it; run that release on every pod"
    )]
    Newer,
    /// The row's mutator can still be alive.
    #[error("the row's mutator can still write it; the row can be discarded in {0:?}")]
    NotFinal(Duration),
    /// The row may or may not be removed.
    #[error("the removal was not acknowledged ({0}); check the key's shards")]
    Unknown(String),
}

impl GroupQuery {
    /// All keys of a group, `limit` per page, at the pod's default level.
    #[must_use]
    pub fn all(kind: Kind, group: Name, limit: usize) -> GroupQuery {
        let (prefix, from, to, behind, level) = (None, None, None, None, None);
        GroupQuery { kind, group, prefix, from, to, behind, limit, level }
    }

    fn key(&self, name: Name) -> Key {
        Key { kind: self.kind, group: self.group.clone(), name }
    }

    /// The first name that can match.
    fn start(&self) -> group::From {
        let at = self.prefix.iter().chain(&self.from).max();
        match (&self.behind, at) {
            (Some(behind), at) if Some(behind) >= at => group::From::Behind(behind.clone()),
            (_, Some(at)) => group::From::At(at.clone()),
            (_, None) => group::From::Start,
        }
    }

    /// Whether neither this name nor any later one can match.
    fn is_past(&self, name: &Name) -> bool {
        let past_prefix =
            |prefix: &Name| name > prefix && !name.as_str().starts_with(prefix.as_str());
        self.to.as_ref().is_some_and(|to| name >= to)
            || self.prefix.as_ref().is_some_and(past_prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("name")
    }

    fn query(prefix: Option<&str>, from: Option<&str>, behind: Option<&str>) -> GroupQuery {
        GroupQuery {
            kind: Kind::Counter,
            group: name("g"),
            prefix: prefix.map(name),
            from: from.map(name),
            to: Some(name("m")),
            behind: behind.map(name),
            limit: 10,
            level: None,
        }
    }

    #[test]
    fn a_page_starts_at_the_latest_of_its_bounds() {
        assert_eq!(query(None, None, None).start(), group::From::Start);
        assert_eq!(query(Some("b"), Some("a"), None).start(), group::From::At(name("b")));
        assert_eq!(query(Some("b"), Some("bc"), Some("bb")).start(), group::From::At(name("bc")));
        assert_eq!(query(Some("b"), None, Some("b")).start(), group::From::Behind(name("b")));
    }

    #[test]
    fn a_page_ends_behind_its_bounds() {
        let query = query(Some("ab"), None, None);
        assert!(!query.is_past(&name("ab")) && !query.is_past(&name("abz")));
        assert!(query.is_past(&name("ac")) && query.is_past(&name("m")));
    }
}
