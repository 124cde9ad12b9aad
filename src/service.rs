//! The use cases of a pod, free of HTTP: update, read a key, read a group, look at shards, fold.

use std::sync::Arc;
use std::time::Duration;

use orderfree_core::crdt::envelope;
use orderfree_core::crdt::{Kind, Op, State};
use orderfree_core::protocol::clock::ClockError;
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::group::{self, Then};
use orderfree_core::protocol::read::{self, RowError, RowReader};
use orderfree_core::protocol::{
    BadSlice, Constants, Durability, Key, MutatorId, Name, Now, Row, Timestamp, WriteOutcome,
};
use thiserror::Error;

use crate::gate::Gate;
use crate::gc::{FoldFailure, FoldResult, Folder};
use crate::limits;
use crate::metrics::Metrics;
use crate::mutators::{Mutators, UpdateError, Updates};
use crate::reader::Reader;
pub use crate::reader::{Held, KeyValue, ReadError};
use crate::store::{GroupCursor, GroupList, Store, StoreError, prefix};

/// A pod's use cases.
pub struct Service {
    store: Arc<dyn Store>,
    gate: Arc<Gate>,
    mutators: Arc<Mutators>,
    folder: Arc<Folder>,
    reader: Arc<Reader>,
    constants: Constants,
    metrics: Arc<Metrics>,
}

/// Which keys of a group to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupQuery {
    /// Kind of the keys.
    pub kind: Kind,
    /// Their group.
    pub group: Name,
    /// Only names that begin so.
    pub prefix: Option<Name>,
    /// Only names from this one on.
    pub from: Option<Name>,
    /// Only names before this one.
    pub to: Option<Name>,
    /// Only names behind this one: the page before ended there.
    pub behind: Option<Name>,
    /// Most keys to return.
    pub limit: usize,
    /// Consistency level; the pod's default without.
    pub level: Option<Level>,
}

/// One page of a group. Each value is right; the page is not one snapshot.
#[derive(Debug, Default)]
pub struct GroupPage {
    /// By ascending name.
    pub keys: Vec<GroupEntry>,
    /// There may be more keys behind this one.
    pub next: Option<Name>,
}

/// A key of a group. One that can't be read does not hinder the others.
#[derive(Debug)]
pub struct GroupEntry {
    /// Its name.
    pub name: Name,
    /// Its value, or why there is none.
    pub value: Result<KeyValue, ReadError>,
}

/// Why a key's value is what it is.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardsReport {
    /// By the clock that judged the phases.
    pub now: Timestamp,
    /// Shards that expired up to then are final.
    pub cutoff: Timestamp,
    /// The tally; none before the first fold.
    pub tally: Option<TallyView>,
    /// Every other row, newest expiry last.
    pub shards: Vec<read::ShardView>,
}

/// A tally, decoded or not.
#[derive(Debug, Clone, PartialEq)]
pub struct TallyView {
    /// Its fence and state.
    pub content: Result<(Timestamp, State), RowError>,
    /// It takes no further shard.
    pub is_full: bool,
}

impl Service {
    /// Puts the parts of a pod together.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        gate: Arc<Gate>,
        mutators: Arc<Mutators>,
        folder: Arc<Folder>,
        constants: Constants,
        metrics: Arc<Metrics>,
    ) -> Service {
        let reader = Arc::new(Reader::new(
            Arc::clone(&store),
            Arc::clone(&gate),
            Arc::clone(&folder),
            constants,
            Arc::clone(&metrics),
        ));
        Service { store, gate, mutators, folder, reader, constants, metrics }
    }

    /// What the pod counts about itself.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The same, with what is measured only when somebody looks: the clock offset.
    #[must_use]
    pub fn refresh_metrics(&self) -> &Metrics {
        if let Some(offset_us) = self.store.clock_offset_us() {
            self.metrics.clock_offset_us.set(offset_us);
        }
        &self.metrics
    }

    /// One look at the pod's clocks.
    #[must_use]
    pub fn now(&self) -> Now {
        self.gate.now()
    }

    /// The level of reads that name none.
    #[must_use]
    pub fn read_level(&self) -> Level {
        self.store.levels().read
    }

    /// Name of the store.
    #[must_use]
    pub fn store_name(&self) -> &'static str {
        self.store.name()
    }

    /// Whether this pod's clock may be trusted with updates now.
    ///
    /// # Errors
    /// [`ClockError`] says why not.
    pub fn check_clock(&self) -> Result<(), ClockError> {
        self.gate.open().map(|_| ())
    }

    /// Applies a list of ops to a key, all or none. Never reads the database. It goes on when the
    /// caller drops the future: what was accepted is written. Returns the time of the last op, for
    /// kinds whose last writer wins.
    ///
    /// # Errors
    /// [`UpdateError`]: refused (certainly not counted) or unknown (may be counted).
    pub async fn update(
        &self,
        key: &Key,
        ops: Vec<Op>,
        durability: Durability,
    ) -> Result<Option<Timestamp>, UpdateError> {
        self.mutators.update(key, ops, durability).await
    }

    /// The same for updates of many keys, each with its own outcome, in their order.
    pub async fn update_all(
        &self,
        keys: Vec<Updates>,
        durability: Durability,
    ) -> Vec<Result<Option<Timestamp>, UpdateError>> {
        self.mutators.update_all(keys, durability).await
    }

    /// Reads one key; none if it has no row. A level of none is the pod's default.
    ///
    /// # Errors
    /// [`ReadError`]; never a partial value.
    pub async fn read(
        &self,
        key: &Key,
        level: Option<Level>,
    ) -> Result<Option<Arc<Held>>, ReadError> {
        self.reader.read(key, level.unwrap_or(self.read_level()), None).await
    }

    /// The same, but a value that was right no longer than `max_staleness` ago will do.
    ///
    /// # Errors
    /// Those of [`Service::read`].
    pub async fn read_recent(
        &self,
        key: &Key,
        level: Option<Level>,
        max_staleness: Duration,
    ) -> Result<Option<Arc<Held>>, ReadError> {
        self.reader.read(key, level.unwrap_or(self.read_level()), Some(max_staleness)).await
    }

    /// Waits for the reads that are out, but not for longer than `within`.
    pub async fn close(&self, within: Duration) {
        self.reader.close(within).await;
    }

    /// Reads one page of a group, all of it in memory: for tools.
    ///
    /// # Errors
    /// Those of [`Service::read_group_to`].
    pub async fn read_group(&self, query: &GroupQuery) -> Result<GroupPage, ReadError> {
        let mut keys = Vec::new();
        let next = self.read_group_to(query, |name, value| {
            keys.push(GroupEntry { name, value });
            0
        });
        let next = next.await?;
        Ok(GroupPage { keys, next })
    }

    /// Reads one page of a group and gives its keys to `take` by ascending name, so that one value is in
    /// memory at a time. `take` returns the bytes of what it has made of all of them; the page ends when
    /// these, or those of the rows, are as many as one answer has. Returns the last name if there may be
    /// more keys behind it.
    ///
    /// # Errors
    /// [`ReadError`] if the store can't answer. What is wrong with one key stands at that key.
    pub async fn read_group_to(
        &self,
        query: &GroupQuery,
        mut take: impl FnMut(Name, Result<KeyValue, ReadError>) -> usize,
    ) -> Result<Option<Name>, ReadError> {
        let level = query.level.unwrap_or(self.store.levels().read);
        let (mut last, mut taken, mut rows_bytes, mut taken_bytes) = (None, 0, 0, 0);
        let mut from = query.start();
        loop {
            let as_of = self.gate.now().wall;
            let chunk = self.store.read_chunk(query.kind, &query.group, &from, level).await?;
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
                if taken == query.limit || rows_bytes.max(taken_bytes) > limits::ANSWER_BYTES_MAX {
                    return Ok(last);
                }
                let key = query.key(name.clone());
                let value = match slice {
                    Some(slice) => slice.and_then(|slice| {
                        rows_bytes += slice.bytes();
                        self.reader.value(&key, &slice, as_of, level)
                    }),
                    // A store that is down fails the next chunk, so that this error is of the key.
                    None => self.reader.alone(&key, level).await,
                };
                if let Some(value) = value.transpose() {
                    taken_bytes = take(name.clone(), value);
                    (last, taken) = (Some(name), taken + 1);
                }
            }
            match next {
                Some(next) => from = next,
                None => return Ok(None),
            }
        }
    }

    /// Reads a key's rows as they lie, at the pod's read level.
    ///
    /// # Errors
    /// [`ReadError`] if the store can't answer; undecodable rows are part of the report.
    pub async fn shards(&self, key: &Key) -> Result<ShardsReport, ReadError> {
        let slice = self.reader.slice(key, None, self.read_level(), None).await?;
        let now = self.gate.now().wall;
        Ok(ShardsReport {
            now,
            cutoff: now.minus(self.constants.cutoff()),
            tally: read::tally(key, &slice).map(|content| TallyView {
                is_full: slice.tally().is_some_and(|row| envelope::is_full(&row.state)),
                content,
            }),
            shards: read::shards(key, &slice, now, &self.constants),
        })
    }

    /// A row of a key that may be discarded: nobody can decode it, and nobody can write it any more.
    ///
    /// # Errors
    /// [`DiscardError`] says why it stays.
    pub async fn discardable(
        &self,
        key: &Key,
        mutator_id: MutatorId,
    ) -> Result<Discardable, DiscardError> {
        if mutator_id == MutatorId::TALLY {
            return Err(DiscardError::Tally);
        }
        // From every replica: none of them may have it decodable.
        let row = match self.store.read_for_fold(key).await {
            Ok(read) => read.slice().shards().find(|row| row.mutator_id == mutator_id).cloned(),
            Err(StoreError::TooManyRows { .. }) => {
                prefix::find(&*self.store, key, mutator_id).await?
            }
            Err(error) => return Err(error.into()),
        };
        let now = self.gate.now().wall;
        let row = row.ok_or(DiscardError::NoRow(mutator_id))?;
        let error = RowReader::of(key).shard(&row).err().ok_or(DiscardError::Decodable)?;
        if matches!(&error, RowError::Undecodable { error, .. } if error.may_be_newer()) {
            return Err(DiscardError::Newer);
        }
        let is_final_at = row.expires_at.plus(self.constants.cutoff());
        if now < is_final_at {
            return Err(DiscardError::NotFinal(is_final_at.since(now)));
        }
        Ok(Discardable { row, error })
    }

    /// Takes such a row out of its key. What it counted is lost.
    ///
    /// # Errors
    /// [`DiscardError::Unknown`].
    pub async fn discard(&self, key: &Key, row: &Discardable) -> Result<(), DiscardError> {
        match self.store.remove_row(key, &row.row).await {
            WriteOutcome::Acked => Ok(()),
            WriteOutcome::Refused(why) | WriteOutcome::Unknown(why) => {
                Err(DiscardError::Unknown(why))
            }
        }
    }

    /// Groups of a kind, for operators.
    ///
    /// # Errors
    /// [`StoreError`] if the store can't answer.
    pub async fn groups(
        &self,
        kind: Kind,
        behind: Option<&GroupCursor>,
        limit: usize,
    ) -> Result<GroupList, StoreError> {
        self.store.groups(kind, behind, limit).await
    }

    /// Folds one key now, or says what a fold would do.
    ///
    /// # Errors
    /// [`FoldFailure`] says why not; the key is then as it was, or as a fold leaves it.
    pub async fn fold(&self, key: &Key, dry_run: bool) -> Result<FoldResult, FoldFailure> {
        self.folder.fold(key, dry_run).await
    }
}

/// A row that counts nowhere; see [`Service::discardable`].
#[derive(Debug, Clone, PartialEq)]
pub struct Discardable {
    /// The row as it was.
    pub row: Row,
    /// Why it could not be decoded.
    pub error: RowError,
}

/// Why a row stays where it is.
#[derive(Debug, Clone, Error)]
pub enum DiscardError {
    /// The key can't be read at the fold's level, which needs every replica.
    #[error(transparent)]
    Read(#[from] StoreError),
    /// The key has no row of this mutator.
    #[error("the key has no row of mutator {0}")]
    NoRow(MutatorId),
    /// A tally says what was folded, and up to when.
    #[error(
        "a tally can't be discarded: rows below its fence that come back would count again; the runbook \
         (docs/operate/backup.md) says how to go on"
    )]
    Tally,
    /// The row counts.
    #[error(
        "the row can be decoded, so that it counts; only rows that nobody can read are discarded"
    )]
    Decodable,
    /// It may count.
    #[error(
        "the row may have been written by a newer release, which can decode it; run that one on every pod"
    )]
    Newer,
    /// Its mutator may be alive.
    #[error("the row's mutator may still write it; it is final, and can be discarded, in {0:?}")]
    NotFinal(Duration),
    /// The row may be there or gone.
    #[error("the removal was not acknowledged ({0}); look at the key's shards")]
    Unknown(String),
}

impl GroupQuery {
    /// Every key of a group, so many at a time, at the pod's own level.
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
