//! The log of resets: a table of its own, which need not exist.
//!
//! It is written at a quorum of every data centre and read at a quorum of the local one. So a look that began after a row
//! was acknowledged shows that row, and no pod waits for another data centre before it takes updates. A new data centre has
//! the older rows only after a repair.
//!
//! **The table can appear while pods run.** A pod that does not know of it neither looks at the log nor stamps rows. So a
//! pod looks for the table again and again, and takes no updates if it has not found out for a minute
//! (`resets` of the engine). No key is reset before the table is [older](AGE_MIN) than that.
//!
//! **The table can be lost**, with `shards` kept or restored. [`orderfree_core::protocol::latest_reset`] says how a pod
//! that starts notices it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures::future::join_all;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::latest_reset::{self, LatestReset, PLACE};
use orderfree_core::protocol::reset::{LogRow, bucket};
use orderfree_core::protocol::{Constants, Name, Now, Timestamp, WriteError, WriteOutcome};
use scylla::client::session::Session;
use scylla::errors::PrepareError;
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::MaybeUnset;
use uuid::Uuid;

use super::attempts::{Patience, Sending};
use super::connect_error::ConnectError;
use super::coordinators::Coordinators;
use super::hedges::Hedges;
use super::own_rows::{OwnRows, ttl};
use super::reach::Reach;
use super::rows;
use super::statements::prepare;
use crate::runtime::random::Random;
use crate::runtime::sync::lock;
use crate::store::{BETWEEN_NAMES, LogGap, RESET_KEPT_FOR, Receipt, StoreError, joined};

/// The time between the making of the table and the first reset. Every pod has found the table by then, or has
/// stopped taking updates.
const AGE_MIN: Duration = Duration::from_secs(300);

// A log that has lost nothing has each reset that it must have, with an hour to spare.
const _: () = assert!(latest_reset::SLOT.as_secs() + 3600 <= RESET_KEPT_FOR.as_secs());

/// Rows of the log that are read at once. Each can have a thousand names.
const LOOK_PAGE_ROWS: i32 = 500;

/// See the [module documentation](self).
pub(super) struct Log {
    session: Arc<Session>,
    keyspace: String,
    local_datacenter: String,
    random: Random,
    /// No update is acknowledged without looks, so one node that hangs must not delay them.
    hedges: Hedges,
    find: PreparedStatement,
    /// When the first look for the table began, by the boot-time clock.
    looked_at: Duration,
    /// None until the table was found.
    table: OnceLock<Table>,
    own_rows: Arc<OwnRows>,
    /// The resets beside the keys that the log did not have when it was asked for them last.
    lost: Mutex<Vec<LatestReset>>,
    /// For each slot and part, the latest reset that this pod has stored beside the keys.
    raised: Mutex<BTreeMap<(i64, u8), Timestamp>>,
}

/// The prepared statements. Each comment lists the placeholders in their order.
struct Table {
    /// When it was made, or altered for the last time.
    made: Timestamp,
    /// `bucket, after`
    look: PreparedStatement,
    /// `bucket, at, kind, grp, id, names, until, deletes, cleared, done, timestamp, ttl`
    write: PreparedStatement,
    /// `bucket, at, kind, grp, id`
    receipt: PreparedStatement,
    /// `bucket, at`
    any_at: PreparedStatement,
}

/// `at, kind, grp, id, names, until, deletes`
type Row = (i64, String, String, Uuid, Option<String>, Option<i64>, Option<bool>);

/// A row with `cleared` and `done`.
type ReceiptRow = (
    i64,
    String,
    String,
    Uuid,
    Option<String>,
    Option<i64>,
    Option<bool>,
    Option<Vec<u8>>,
    Option<bool>,
);

impl Log {
    pub(super) async fn open(
        session: &Arc<Session>,
        keyspace: &str,
        local_datacenter: &str,
        own_rows: Arc<OwnRows>,
        now: Now,
    ) -> Result<Log, ConnectError> {
        let find = "SELECT WRITETIME(gc_grace_seconds) FROM system_schema.tables \
                    WHERE keyspace_name = ? AND table_name = 'resets'";
        let log = Log {
            find: prepare(session, local_datacenter, find.to_owned(), Level::One)
                .await
                .map_err(ConnectError::question)?,
            session: Arc::clone(session),
            keyspace: keyspace.to_owned(),
            local_datacenter: local_datacenter.to_owned(),
            random: Random::system(),
            hedges: Hedges::default(),
            looked_at: now.boot,
            table: OnceLock::new(),
            own_rows,
            lost: Mutex::default(),
            raised: Mutex::default(),
        };
        log.find().await.map_err(ConnectError::question)?;
        // The log has each reset before these rows do.
        let rows = log.own_rows.read_all(PLACE).await.map_err(ConnectError::question)?;
        let resets = rows.iter().map(|(name, state)| decoded(name, state));
        let resets = resets.collect::<Result<Vec<_>, _>>()?;
        *lock(&log.lost) = log.lacks(&resets, now.wall).await.map_err(ConnectError::question)?;
        if let Some(gap) = log.gap(now.wall) {
            if !log.exists() {
                return Err(ConnectError::LogMissing { keyspace: keyspace.to_owned() });
            }
            tracing::error!("{gap}");
        }
        Ok(log)
    }

    /// Whether the log has a reset, or need not have it any more.
    async fn has(&self, latest: &LatestReset, now: Timestamp) -> Result<bool, StoreError> {
        if !latest.is_needed(now) {
            return Ok(true);
        }
        let Some(table) = self.table.get() else { return Ok(false) };
        let values = (latest.bucket.cast_signed(), latest.at.as_micros());
        let ask = |_| self.session.execute_unpaged(&table.any_at, values);
        let found: Vec<(i64,)> = rows::of_system(self.sending().read(ask).await?)?;
        Ok(!found.is_empty())
    }

    /// Those of these resets that the log lacks and must have.
    async fn lacks(
        &self,
        resets: &[LatestReset],
        now: Timestamp,
    ) -> Result<Vec<LatestReset>, StoreError> {
        let asked = join_all(resets.iter().map(|latest| self.has(latest, now))).await;
        let mut lost = Vec::new();
        for (latest, is_there) in resets.iter().zip(asked) {
            if !is_there? {
                lost.push(*latest);
            }
        }
        Ok(lost)
    }

    /// Looks again for the resets that the log did not have.
    async fn find_lost(&self, now: Timestamp) -> Result<(), StoreError> {
        let asked = lock(&self.lost).clone();
        let still = self.lacks(&asked, now).await?;
        lock(&self.lost).retain(|lost| still.contains(lost) || !asked.contains(lost));
        Ok(())
    }

    /// The latest reset that the log lacks and must have.
    pub(super) fn gap(&self, now: Timestamp) -> Option<LogGap> {
        let lost = lock(&self.lost);
        let at = lost.iter().filter(|lost| lost.is_needed(now)).map(|lost| lost.at).max();
        at.map(|at| LogGap { at })
    }

    /// Stores a reset beside the keys. The log has it, and its marker must not be written before this is acknowledged. Refused
    /// if the log lacks the one whose place it would take, because that would hide the loss.
    pub(super) async fn raise(&self, row: &LogRow, now: Now) -> WriteOutcome {
        let (at, until) = (row.generation.time(), row.until);
        let latest = LatestReset { at, until, bucket: bucket(row.kind, &row.group) };
        let place = (latest_reset::slot(until), latest.bucket);
        if lock(&self.raised).get(&place).is_some_and(|raised| at <= *raised) {
            return Ok(());
        }
        let (kind, group) = PLACE;
        let name = latest.name();
        let row = (kind, group, name.as_str());
        let unread = |error: StoreError| WriteError::Refused(error.to_string());
        if let Some(state) = self.own_rows.read(row).await.map_err(unread)? {
            let stored = decoded(&name, &state);
            let stored = stored.map_err(|error| WriteError::Refused(error.to_string()))?;
            if !self.has(&stored, now.wall).await.map_err(unread)? {
                let gap = LogGap { at: stored.at };
                let mut lost = lock(&self.lost);
                if !lost.contains(&stored) {
                    tracing::error!("{gap}");
                    lost.push(stored);
                }
                return Err(WriteError::Refused(gap.to_string()));
            }
        }
        let stays = until.since(now.wall) + RESET_KEPT_FOR;
        self.own_rows.raise(row, latest.encode(), at, Some(stays)).await?;
        let mut raised = lock(&self.raised);
        let newest = raised.entry(place).or_insert(at);
        *newest = at.max(*newest);
        let oldest = latest_reset::slot(now.wall);
        raised.retain(|(slot, _), _| *slot >= oldest);
        Ok(())
    }

    /// Notes that the log has everything again, by a row in the place of each reset that it lacks. No pod knows its kind, so
    /// no key is reset by it.
    pub(super) async fn close_gap(
        &self,
        looked: Timestamp,
        now: Now,
        constants: &Constants,
    ) -> WriteOutcome {
        let Some(table) = self.table.get() else { return Ok(()) };
        let lost = lock(&self.lost).clone();
        for latest in lost.iter().filter(|lost| lost.is_needed(now.wall)) {
            // A look that began earlier does not tell a reset that was lost from one that is not logged yet.
            let from = latest.at.plus(constants.reset_blur());
            if looked <= from {
                let wait = from.since(now.wall).as_secs() + 1;
                let why = format!("a reset was just made; run the command again in {wait} s");
                return Err(WriteError::Refused(why));
            }
            let (kind, group) = PLACE;
            let left = latest.until.since(now.wall) + RESET_KEPT_FOR;
            let values = (
                latest.bucket.cast_signed(),
                latest.at.as_micros(),
                kind,
                group,
                Uuid::nil(),
                "!",
                latest.until.as_micros(),
                false,
                MaybeUnset::<&[u8]>::Unset,
                MaybeUnset::<bool>::Unset,
                // Above a deletion by which the log may have lost its rows.
                now.wall.as_micros(),
                ttl(Some(left)),
            );
            let send =
                async |_| self.session.execute_unpaged(&table.write, &values).await.map(drop);
            self.sending().write(Reach::OnePartition, || true, send).await?;
        }
        let unread = |error: StoreError| WriteError::Refused(error.to_string());
        self.find_lost(now.wall).await.map_err(unread)?;
        match self.gap(now.wall) {
            Some(gap) => Err(WriteError::Refused(gap.to_string())),
            None => Ok(()),
        }
    }

    pub(super) fn looked_at(&self) -> Duration {
        self.looked_at
    }

    pub(super) fn exists(&self) -> bool {
        self.table.get().is_some()
    }

    /// Whether there is a table.
    pub(super) async fn find(&self) -> Result<bool, StoreError> {
        if self.exists() {
            return Ok(true);
        }
        let place = (self.keyspace.as_str(),);
        let sending = self.sending();
        let answer = sending.read(|_| self.session.execute_unpaged(&self.find, place)).await?;
        let found: Vec<(Option<i64>,)> = rows::of_system(answer)?;
        let Some((made_us,)) = found.first() else { return Ok(false) };
        // A time that is missing is as good as now.
        let made = made_us.map_or(Timestamp::NEVER, Timestamp::from_micros);
        let table = self.prepared(made).await.map_err(|error| {
            StoreError::Corrupt(format!(
                "table {}.resets can't be used: {error}; drop it and run `orderfree schema apply`",
                self.keyspace
            ))
        })?;
        let _ = self.table.set(table);
        Ok(true)
    }

    async fn prepared(&self, made: Timestamp) -> Result<Table, PrepareError> {
        let (table, row) =
            (format!("{}.resets", self.keyspace), "at, kind, grp, id, names, until, deletes");
        let prepare = async |cql: String, level: Level| {
            prepare(&self.session, &self.local_datacenter, cql, level).await
        };
        let look = format!("SELECT {row} FROM {table} WHERE bucket = ? AND at > ?");
        let mut look = prepare(look, Level::LocalQuorum).await?;
        look.set_page_size(LOOK_PAGE_ROWS);
        let write = format!(
            "INSERT INTO {table} (bucket, {row}, cleared, done) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ? AND TTL ?"
        );
        let receipt = format!(
            "SELECT {row}, cleared, done FROM {table} \
             WHERE bucket = ? AND at = ? AND kind = ? AND grp = ? AND id = ?"
        );
        let any_at = format!("SELECT at FROM {table} WHERE bucket = ? AND at = ? LIMIT 1");
        Ok(Table {
            made,
            any_at: prepare(any_at, Level::LocalQuorum).await?,
            look,
            write: prepare(write, Level::EachQuorum).await?,
            receipt: prepare(receipt, Level::LocalQuorum).await?,
        })
    }

    /// Why no key can be reset now.
    pub(super) fn obstacle(&self, now: Now) -> Option<String> {
        let Some(table) = self.table.get() else {
            return Some(
                "the keyspace has no table for it; run `orderfree schema apply`".to_owned(),
            );
        };
        if let Some(gap) = self.gap(now.wall) {
            return Some(gap.to_string());
        }
        let from = match table.made {
            Timestamp::NEVER => Timestamp::NEVER,
            made => made.plus(AGE_MIN),
        };
        (now.wall < from).then(|| {
            format!(
                "the table resets was made or altered less than {} minutes ago; wait, so that every pod \
                 has found it",
                AGE_MIN.as_secs() / 60
            )
        })
    }

    pub(super) async fn read(
        &self,
        coordinators: &Coordinators,
        part: u8,
        after: Timestamp,
        now: Now,
    ) -> Result<Vec<LogRow>, StoreError> {
        let Some(table) = self.table.get() else { return Ok(Vec::new()) };
        self.find_lost(now.wall).await?;
        let values = (part.cast_signed(), after.as_micros());
        let sending = Sending { hedges: Some(&self.hedges), ..self.sending() };
        // Each page is a query of its own, which begins after the look has begun. So what was acknowledged before that is in
        // the page where it belongs.
        let (mut rows, mut page) = (Vec::new(), PagingState::start());
        loop {
            let route = coordinators.route_of_log(values.0, self.random.below(1 << 16));
            let ask = async |number| {
                let attempt = coordinators.attempt(&route, number);
                let look = attempt.aim(&table.look);
                let answer = self.session.execute_single_page(&look, values, page.clone()).await;
                attempt.ended(&answer);
                answer
            };
            let (answer, state) = sending.read(ask).await?;
            let found: Vec<Row> = rows::of_system(answer)?;
            for (at, kind, group, id, names, until, deletes) in found {
                rows.extend(log_row(at, &kind, &group, id, names, until, deletes)?);
            }
            match state.into_paging_control_flow() {
                ControlFlow::Break(()) => return Ok(rows),
                ControlFlow::Continue(next) => page = next,
            }
        }
    }

    pub(super) async fn write(&self, row: &LogRow, receipt: &Receipt, now: Now) -> WriteOutcome {
        let Some(table) = self.table.get() else {
            return Err(WriteError::Refused("the keyspace has no log of resets".to_owned()));
        };
        let generation_us = row.generation.time().as_micros();
        let left = row.until.since(now.wall) + RESET_KEPT_FOR;
        let cleared = receipt.cleared.as_deref().map_or(MaybeUnset::Unset, MaybeUnset::Set);
        let done = receipt.done.map_or(MaybeUnset::Unset, MaybeUnset::Set);
        let values = (
            bucket(row.kind, &row.group).cast_signed(),
            generation_us,
            row.kind.name(),
            row.group.as_str(),
            row.id,
            joined(&row.names),
            row.until.as_micros(),
            row.is_deletion,
            cleared,
            done,
            generation_us,
            ttl(Some(left)),
        );
        let send = async |_| self.session.execute_unpaged(&table.write, &values).await.map(drop);
        self.sending().write(Reach::OnePartition, || true, send).await
    }

    pub(super) async fn receipt(
        &self,
        (kind, group): (Kind, &Name),
        generation: Generation,
        id: Uuid,
    ) -> Result<Option<(LogRow, Receipt)>, StoreError> {
        let Some(table) = self.table.get() else { return Ok(None) };
        let part = bucket(kind, group).cast_signed();
        let values = (part, generation.time().as_micros(), kind.name(), group.as_str(), id);
        let ask = |_| self.session.execute_unpaged(&table.receipt, &values);
        let found: Vec<ReceiptRow> = rows::of_system(self.sending().read(ask).await?)?;
        let Some((at, kind, group, id, names, until, deletes, cleared, done)) =
            found.into_iter().next()
        else {
            return Ok(None);
        };
        let row = log_row(at, &kind, &group, id, names, until, deletes)?;
        Ok(row.map(|row| (row, Receipt { cleared, done })))
    }

    fn sending(&self) -> Sending<'_> {
        Sending { patience: Patience::OF_READS_AND_FOLDS, hedges: None, random: &self.random }
    }
}

/// The latest reset in a row beside the keys.
fn decoded(name: &str, state: &[u8]) -> Result<LatestReset, ConnectError> {
    let name = name.to_owned();
    LatestReset::decode(state).map_err(|error| ConnectError::LatestReset { name, error })
}

/// None for a kind of a newer release, which no pod of this one has updates of.
fn log_row(
    at: i64,
    kind: &str,
    group: &str,
    id: Uuid,
    names: Option<String>,
    until: Option<i64>,
    deletes: Option<bool>,
) -> Result<Option<LogRow>, StoreError> {
    let broken = |what: &dyn fmt::Display| {
        StoreError::Corrupt(format!("row {at} of {kind}/{group} in the table resets: {what}"))
    };
    let Some(known) = Kind::from_name(kind) else { return Ok(None) };
    let name = |text: &str| Name::new(text).map_err(|error| broken(&error));
    let names = names.ok_or_else(|| broken(&"it has no names"))?;
    Ok(Some(LogRow {
        id,
        kind: known,
        group: name(group)?,
        names: names.split(BETWEEN_NAMES).map(name).collect::<Result<_, _>>()?,
        generation: Generation::at(Timestamp::from_micros(at)),
        until: Timestamp::from_micros(until.ok_or_else(|| broken(&"it has no end"))?),
        is_deletion: deletes == Some(true),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_without_its_names_or_its_end_is_corrupt() {
        let row = |kind: &str, names: Option<&str>, until| {
            log_row(7, kind, "g", Uuid::nil(), names.map(str::to_owned), until, None)
        };
        let found = row("counter", Some("a\nb"), Some(9)).expect("right").expect("known");
        let names: Vec<&str> = found.names.iter().map(Name::as_str).collect();
        assert_eq!((names, found.until.as_micros(), found.is_deletion), (vec!["a", "b"], 9, false));
        assert_eq!(row("a kind of tomorrow", None, None), Ok(None));
        for (names, until) in [(None, Some(9)), (Some("a"), None), (Some("a\n"), Some(9))] {
            assert!(matches!(row("counter", names, until), Err(StoreError::Corrupt(_))));
        }
    }
}
