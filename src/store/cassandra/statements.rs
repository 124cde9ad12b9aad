//! All prepared statements of the store. Each write binds its timestamp: neither the driver's nor the
//! coordinator's clock may decide which state of a shard wins (invariant I2).
//!
//! Each statement has an execution profile that fixes its consistency level, the local data centre, one
//! attempt per call and no speculation.

use std::sync::Arc;
use std::time::Duration;

use orderfree_core::protocol::consistency::{Level, Levels};
use orderfree_core::protocol::fold::Fold;
use orderfree_core::protocol::{Constants, MutatorId, ShardWrite, Timestamp};
use scylla::client::execution_profile::{ExecutionProfile, ExecutionProfileHandle};
use scylla::client::session::Session;
use scylla::errors::PrepareError;
use scylla::frame::types::Consistency;
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::serialize::row::SerializeRow;
use scylla::statement::batch::{Batch, BatchStatement, BatchType};
use scylla::statement::prepared::PreparedStatement;

use super::attempts::Patience;
use crate::limits::STORE_SLOW_ATTEMPT_TIME_MAX;

/// Rows per page of a sweep and of a count of names.
const SWEEP_PAGE_ROWS: i32 = 5_000;

/// One prepared statement per consistency level.
pub(super) struct ByLevel([PreparedStatement; Level::ALL.len()]);

impl ByLevel {
    pub(super) fn at(&self, level: Level) -> &PreparedStatement {
        let at = Level::ALL.iter().position(|&other| other == level);
        &self.0[at.expect("invariant: every level is listed")]
    }
}

/// The prepared statements. Each comment lists the placeholders in their order.
pub(super) struct Statements {
    /// `kind, grp, name, expires_at, mutator_id, state, timestamp`
    pub(super) write: PreparedStatement,
    /// Two statements per fold: the one above for the tally, then a deletion with
    /// `timestamp, kind, grp, name, fence`.
    fold: [PreparedStatement; 2],
    /// `kind, grp, name, limit`
    pub(super) key: ByLevel,
    /// `kind, grp, name, after, limit`
    pub(super) key_after: ByLevel,
    /// Like [`Statements::key`], but the oldest row comes first and the tally last.
    pub(super) key_backwards: ByLevel,
    /// Like [`Statements::key_after`], but the oldest row comes first and the tally last.
    pub(super) key_after_backwards: ByLevel,
    /// `kind, grp, name, expiry of the tally`
    pub(super) tally: PreparedStatement,
    /// `kind, grp, name, after, through, limit`
    pub(super) part: PreparedStatement,
    /// Like [`Statements::part`], without states.
    pub(super) part_ids: PreparedStatement,
    /// `kind, grp, name, limit`; the oldest row comes first and the tally last.
    pub(super) fold_key: PreparedStatement,
    /// `kind, grp, names`
    pub(super) fold_keys: PreparedStatement,
    /// `kind, grp, lowest name, limit`
    pub(super) chunk_end: ByLevel,
    /// `kind, grp, lowest name, first name after the chunk`
    pub(super) chunk: ByLevel,
    /// `kind, grp, lowest name`
    pub(super) last_chunk: ByLevel,
    /// `token above, token up to`
    pub(super) sweep: PreparedStatement,
    /// `kind, grp`
    pub(super) names: PreparedStatement,
    /// `token above, limit`
    pub(super) groups: PreparedStatement,
    /// `kind, grp, name, expires_at, mutator_id`
    pub(super) written_at: PreparedStatement,
    /// `timestamp, kind, grp, name, expires_at, mutator_id`
    pub(super) remove: PreparedStatement,
    /// No placeholders. Each execution goes to one chosen node.
    pub(super) clock: PreparedStatement,
}

/// The values of one shard row, in the order of [`Statements::write`].
pub(super) fn values_of_write(write: &ShardWrite) -> impl SerializeRow {
    let key = write.key();
    (
        key.kind.name(),
        key.group.as_str(),
        key.name.as_str(),
        write.expires_at().as_micros(),
        write.mutator_id().as_uuid(),
        write.state(),
        write.timestamp().as_micros(),
    )
}

/// The values of one fold's two statements, in the order of [`Statements::folds`].
pub(super) fn values_of_fold(fold: &Fold) -> [Box<dyn SerializeRow + Send + Sync + '_>; 2] {
    let (key, deleted_at) = (fold.key(), fold.timestamp().as_micros());
    let (kind, group, name) = (key.kind.name(), key.group.as_str(), key.name.as_str());
    let (never, id) = (Timestamp::NEVER.as_micros(), MutatorId::TALLY.as_uuid());
    let tally = (kind, group, name, never, id, fold.tally(), fold.tally_timestamp().as_micros());
    let deletion = (deleted_at, kind, group, name, fold.fence().as_micros());
    [Box::new(tally), Box::new(deletion)]
}

impl Statements {
    /// A batch of this many shard rows.
    pub(super) fn writes(&self, count: usize) -> Batch {
        together(vec![self.write.clone().into(); count], &self.write)
    }

    /// A batch of this many folds. In one partition, they are one mutation.
    pub(super) fn folds(&self, count: usize) -> Batch {
        let of_one = self.fold.iter().map(|statement| statement.clone().into());
        together(of_one.cycle().take(2 * count).collect(), &self.fold[0])
    }

    pub(super) async fn prepare(
        session: &Session,
        keyspace: &str,
        local_datacenter: &str,
        levels: Levels,
        constants: &Constants,
    ) -> Result<Statements, PrepareError> {
        let (writes, reads) = (Patience::of_writes(constants), Patience::OF_READS_AND_FOLDS);
        let profile = |level, time| profile(level, Some(local_datacenter), time);
        let by_level = |statement: PreparedStatement| {
            ByLevel(Level::ALL.map(|level| with(&statement, profile(level, reads.attempt))))
        };
        let prepare = async |cql: String| {
            let mut statement = session.prepare(cql).await?;
            statement.set_is_idempotent(true);
            Ok::<_, PrepareError>(statement)
        };
        let shards = format!("{keyspace}.shards");
        let key = "kind = ? AND grp = ? AND name = ?";
        let of_key = format!("SELECT expires_at, mutator_id, state FROM {shards} WHERE {key}");
        let of_group = format!(
            "SELECT name, expires_at, mutator_id, state FROM {shards} WHERE kind = ? AND grp = ?"
        );
        let insert = prepare(format!(
            "INSERT INTO {shards} (kind, grp, name, expires_at, mutator_id, state) \
             VALUES (?, ?, ?, ?, ?, ?) USING TIMESTAMP ?"
        ))
        .await?;
        let delete = prepare(format!(
            "DELETE FROM {shards} USING TIMESTAMP ? WHERE {key} AND expires_at <= ?"
        ))
        .await?;
        let whole_key = prepare(format!("{of_key} LIMIT ?")).await?;
        let mut sweep = prepare(format!(
            "SELECT kind, grp, name, expires_at FROM {shards} \
             WHERE token(kind, grp) > ? AND token(kind, grp) <= ?"
        ))
        .await?;
        sweep.set_page_size(SWEEP_PAGE_ROWS);
        let mut names =
            prepare(format!("SELECT name FROM {shards} WHERE kind = ? AND grp = ?")).await?;
        names.set_page_size(SWEEP_PAGE_ROWS);
        let groups = prepare(format!(
            "SELECT DISTINCT kind, grp, token(kind, grp) FROM {shards} \
             WHERE token(kind, grp) > ? LIMIT ?"
        ))
        .await?;
        let row = format!("{key} AND expires_at = ? AND mutator_id = ?");
        let written_at =
            prepare(format!("SELECT WRITETIME(state) FROM {shards} WHERE {row}")).await?;
        let remove = prepare(format!("DELETE FROM {shards} USING TIMESTAMP ? WHERE {row}")).await?;
        let of_names = prepare(format!("{of_group} AND name IN ?")).await?;
        let tally = prepare(format!("{of_key} AND expires_at = ?")).await?;
        let backwards = "ORDER BY expires_at ASC LIMIT ?";
        let between = format!("AND expires_at > ? AND expires_at <= ? {backwards}");
        let part = prepare(format!("{of_key} {between}")).await?;
        let part_ids =
            prepare(format!("SELECT expires_at, mutator_id FROM {shards} WHERE {key} {between}"))
                .await?;
        let whole_key_backwards = prepare(format!("{of_key} {backwards}")).await?;
        let after_backwards = prepare(format!("{of_key} AND expires_at > ? {backwards}")).await?;
        Ok(Statements {
            write: with(&insert, profile(levels.write, writes.attempt)),
            fold: [insert, delete]
                .map(|part| with(&part, profile(levels.fold_write(), reads.attempt))),
            // Not at the fold's level, because that can be a quorum.
            tally: with(&tally, profile(Level::All, STORE_SLOW_ATTEMPT_TIME_MAX)),
            part: with(&part, profile(Level::All, STORE_SLOW_ATTEMPT_TIME_MAX)),
            part_ids: with(&part_ids, profile(Level::All, STORE_SLOW_ATTEMPT_TIME_MAX)),
            fold_key: with(&whole_key_backwards, profile(levels.fold, STORE_SLOW_ATTEMPT_TIME_MAX)),
            key_backwards: by_level(whole_key_backwards),
            key_after_backwards: by_level(after_backwards),
            fold_keys: with(&of_names, profile(levels.fold, STORE_SLOW_ATTEMPT_TIME_MAX)),
            key: by_level(whole_key),
            key_after: by_level(prepare(format!("{of_key} AND expires_at > ? LIMIT ?")).await?),
            chunk_end: by_level(prepare(format!("{of_group} AND name >= ? LIMIT ?")).await?),
            chunk: by_level(prepare(format!("{of_group} AND name >= ? AND name < ?")).await?),
            last_chunk: by_level(prepare(format!("{of_group} AND name >= ?")).await?),
            groups: with(&groups, profile(levels.read, STORE_SLOW_ATTEMPT_TIME_MAX)),
            written_at: with(&written_at, profile(Level::All, STORE_SLOW_ATTEMPT_TIME_MAX)),
            // As folds: a data centre that missed it would keep the row.
            remove: with(&remove, profile(levels.fold_write(), STORE_SLOW_ATTEMPT_TIME_MAX)),
            sweep: with(&sweep, profile(Level::LocalOne, STORE_SLOW_ATTEMPT_TIME_MAX)),
            names: with(&names, profile(Level::LocalOne, STORE_SLOW_ATTEMPT_TIME_MAX)),
            clock: prepare(
                "SELECT toTimestamp(now()), schema_version FROM system.local WHERE key = 'local'"
                    .into(),
            )
            .await?,
        })
    }
}

/// A batch of statements, with the execution profile of `like`.
fn together(statements: Vec<BatchStatement>, like: &PreparedStatement) -> Batch {
    let mut batch = Batch::new_with_statements(BatchType::Unlogged, statements);
    batch.set_is_idempotent(true);
    batch.set_execution_profile_handle(like.get_execution_profile_handle().cloned());
    batch
}

/// Prepares a statement that can be sent again, with the profile of reads and folds.
pub(super) async fn prepare(
    session: &Session,
    local_datacenter: &str,
    cql: String,
    level: Level,
) -> Result<PreparedStatement, PrepareError> {
    let mut statement = session.prepare(cql).await?;
    let attempt = Patience::OF_READS_AND_FOLDS.attempt;
    statement.set_execution_profile_handle(Some(profile(level, Some(local_datacenter), attempt)));
    statement.set_is_idempotent(true);
    Ok(statement)
}

/// A profile for one attempt at one level, routed to the local data centre's replicas.
pub(super) fn profile(
    level: Level,
    local_datacenter: Option<&str>,
    time: Duration,
) -> ExecutionProfileHandle {
    let routing = DefaultPolicy::builder().token_aware(true).permit_dc_failover(false);
    let routing = match local_datacenter {
        Some(datacenter) => routing.prefer_datacenter(datacenter.to_owned()),
        None => routing,
    };
    ExecutionProfile::builder()
        .consistency(consistency(level))
        .load_balancing_policy(routing.build())
        .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
        .speculative_execution_policy(None)
        .request_timeout(Some(time))
        .build()
        .into_handle()
}

fn with(statement: &PreparedStatement, profile: ExecutionProfileHandle) -> PreparedStatement {
    let mut statement = statement.clone();
    statement.set_execution_profile_handle(Some(profile));
    statement
}

fn consistency(level: Level) -> Consistency {
    match level {
        Level::One => Consistency::One,
        Level::LocalOne => Consistency::LocalOne,
        Level::LocalQuorum => Consistency::LocalQuorum,
        Level::Quorum => Consistency::Quorum,
        Level::EachQuorum => Consistency::EachQuorum,
        Level::All => Consistency::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_is_the_one_of_its_name() {
        for level in Level::ALL {
            let of_driver = consistency(level).to_string().to_lowercase();
            assert_eq!(of_driver.replace('_', ""), level.name().replace('_', ""));
        }
    }
}
