//! Every statement of the store, prepared. Each write binds its timestamp: neither the driver's nor
//! the coordinator's clock may decide which state of a shard wins (invariant I2).
//!
//! Each statement carries an execution profile that pins its consistency level, the local data
//! centre, one attempt per call and no speculation.

use std::sync::Arc;
use std::time::Duration;

use orderfree_core::protocol::consistency::{Level, Levels};
use orderfree_core::protocol::{Constants, ShardWrite};
use scylla::client::execution_profile::{ExecutionProfile, ExecutionProfileHandle};
use scylla::client::session::Session;
use scylla::errors::PrepareError;
use scylla::frame::types::Consistency;
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::serialize::row::SerializeRow;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;

use super::attempts::Patience;

/// Rows of one page of a sweep.
const SWEEP_PAGE_ROWS: i32 = 5_000;

/// One prepared statement for each consistency level.
pub(super) struct ByLevel([PreparedStatement; Level::ALL.len()]);

impl ByLevel {
    pub(super) fn at(&self, level: Level) -> &PreparedStatement {
        let at = Level::ALL.iter().position(|&other| other == level);
        &self.0[at.expect("invariant: every level is listed")]
    }
}

/// The prepared statements; placeholders in the order of the text.
pub(super) struct Statements {
    /// `kind, grp, name, expires_at, mutator_id, state, timestamp`
    pub(super) write: PreparedStatement,
    /// Two statements in one mutation: the one above for the tally, then
    /// `timestamp, kind, grp, name, fence`.
    pub(super) fold: Batch,
    /// `kind, grp, name, limit`
    pub(super) key: ByLevel,
    /// `kind, grp, name, after, limit`
    pub(super) key_after: ByLevel,
    /// `kind, grp, name, limit`
    pub(super) fold_key: PreparedStatement,
    /// `kind, grp, lowest name, limit`
    pub(super) chunk_end: ByLevel,
    /// `kind, grp, lowest name, name behind the last`
    pub(super) chunk: ByLevel,
    /// `kind, grp, lowest name`
    pub(super) last_chunk: ByLevel,
    /// `token above, token up to`
    pub(super) sweep: PreparedStatement,
    /// Asked of one given node at a time.
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

impl Statements {
    /// So many shard rows in one request.
    pub(super) fn writes(&self, count: usize) -> Batch {
        let rows = vec![self.write.clone().into(); count];
        let mut batch = Batch::new_with_statements(BatchType::Unlogged, rows);
        batch.set_is_idempotent(true);
        batch.set_execution_profile_handle(self.write.get_execution_profile_handle().cloned());
        batch
    }

    pub(super) async fn prepare(
        session: &Session,
        keyspace: &str,
        local_datacenter: &str,
        levels: Levels,
        constants: &Constants,
    ) -> Result<Statements, PrepareError> {
        let (writes, reads) = (Patience::of_writes(constants), Patience::RELAXED);
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
        let mut fold = Batch::new_with_statements(
            BatchType::Unlogged,
            vec![insert.clone().into(), delete.into()],
        );
        fold.set_is_idempotent(true);
        fold.set_execution_profile_handle(Some(profile(levels.write, reads.attempt)));
        Ok(Statements {
            write: with(&insert, profile(levels.write, writes.attempt)),
            fold,
            fold_key: with(&whole_key, profile(levels.fold, reads.total)),
            key: by_level(whole_key),
            key_after: by_level(prepare(format!("{of_key} AND expires_at > ? LIMIT ?")).await?),
            chunk_end: by_level(prepare(format!("{of_group} AND name >= ? LIMIT ?")).await?),
            chunk: by_level(prepare(format!("{of_group} AND name >= ? AND name < ?")).await?),
            last_chunk: by_level(prepare(format!("{of_group} AND name >= ?")).await?),
            sweep: with(&sweep, profile(Level::LocalOne, reads.total)),
            clock: prepare(
                "SELECT toTimestamp(now()), schema_version FROM system.local WHERE key = 'local'"
                    .into(),
            )
            .await?,
        })
    }
}

/// One attempt at one level, routed to the local data centre's replicas.
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
        Level::All => Consistency::All,
    }
}
