//! Keeps the highest fence in the cluster, so that a restarted pod knows what clocks have done (invariant
//! I12). [`orderfree_core::protocol::high_water`] decides what the row means.
//!
//! The row's write has the fence as its timestamp, so the highest fence wins. It is written at a quorum of every data
//! centre and read at a quorum of the local one. So every pod sees it. A node that is down stops only the folds of its own
//! keys. While a data centre is away, pods of the others can still start and serve.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use orderfree_core::protocol::clock::ClockError;
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::fold::proves_moved_clock;
use orderfree_core::protocol::high_water::{self, PLACE};
use orderfree_core::protocol::{Constants, MutatorId, Timestamp, WriteOutcome};
use scylla::client::session::Session;
use scylla::errors::PrepareError;
use scylla::statement::prepared::PreparedStatement;

use super::attempts::{Patience, Sending};
use super::connect_error::ConnectError;
use super::reach::Reach;
use super::{rows, statements};
use crate::runtime::random::Random;
use crate::store::StoreError;

/// See the [module documentation](self).
pub(super) struct HighWater {
    session: Arc<Session>,
    read: PreparedStatement,
    write: PreparedStatement,
    constants: Constants,
    /// The highest fence that this pod has seen, in µs.
    seen_us: AtomicI64,
    /// The highest fence whose write was acknowledged to this pod, in µs. A fence that was only seen can be
    /// on too few replicas for other pods to see it.
    stored_us: AtomicI64,
}

impl HighWater {
    /// Reads the row. A pod must not serve before it has read it.
    pub(super) async fn open(
        session: &Arc<Session>,
        keyspace: &str,
        local_datacenter: &str,
        constants: Constants,
    ) -> Result<Arc<HighWater>, ConnectError> {
        let prepare = async |cql: String, level: Level| {
            let mut statement = session.prepare(cql).await?;
            let attempt = Patience::OF_READS_AND_FOLDS.attempt;
            let profile = statements::profile(level, Some(local_datacenter), attempt);
            statement.set_execution_profile_handle(Some(profile));
            statement.set_is_idempotent(true);
            Ok::<_, PrepareError>(statement)
        };
        let key = "kind = ? AND grp = ? AND name = ? AND expires_at = ? AND mutator_id = ?";
        let read = format!("SELECT state FROM {keyspace}.shards WHERE {key}");
        let write = format!(
            "INSERT INTO {keyspace}.shards (kind, grp, name, expires_at, mutator_id, state) \
             VALUES (?, ?, ?, ?, ?, ?) USING TIMESTAMP ?"
        );
        let opened = HighWater {
            session: Arc::clone(session),
            read: prepare(read, Level::LocalQuorum).await.map_err(ConnectError::question)?,
            write: prepare(write, Level::EachQuorum).await.map_err(ConnectError::question)?,
            constants,
            seen_us: AtomicI64::new(i64::MIN),
            stored_us: AtomicI64::new(i64::MIN),
        };
        match opened.look().await {
            Ok(()) => Ok(Arc::new(opened)),
            Err(error @ StoreError::Corrupt(_)) => Err(ConnectError::HighWater(error.to_string())),
            Err(error) => Err(ConnectError::question(error)),
        }
    }

    /// Reads the row again: other pods write to it.
    pub(super) async fn look(&self) -> Result<(), StoreError> {
        let (kind, group, name) = PLACE;
        let (never, nil) = (Timestamp::NEVER.as_micros(), MutatorId::TALLY.as_uuid());
        let place = (kind, group, name, never, nil);
        let random = Random::system();
        let sending =
            Sending { patience: Patience::OF_READS_AND_FOLDS, hedges: None, random: &random };
        let answer = sending.read(|_| self.session.execute_unpaged(&self.read, place)).await?;
        for (state,) in rows::of_system::<(Option<Vec<u8>>,)>(answer)? {
            let fence = high_water::decode(&state.unwrap_or_default());
            self.note(fence.map_err(|error| StoreError::Corrupt(error.to_string()))?);
        }
        Ok(())
    }

    /// Stores the fence of a fold before the fold is written, unless the stored fence is already high enough.
    /// The fold must not be written unless this is acknowledged.
    pub(super) async fn raise(&self, fence: Timestamp) -> WriteOutcome {
        let stored = Timestamp::from_micros(self.stored_us.load(Ordering::SeqCst));
        if fence <= stored.plus(high_water::quantum(&self.constants)) {
            return Ok(());
        }
        let ((kind, group, name), state) = (PLACE, high_water::encode(fence));
        let (never, nil) = (Timestamp::NEVER.as_micros(), MutatorId::TALLY.as_uuid());
        let values = (kind, group, name, never, nil, state, fence.as_micros());
        let send = async |_| self.session.execute_unpaged(&self.write, &values).await.map(drop);
        let random = Random::system();
        let sending =
            Sending { patience: Patience::OF_READS_AND_FOLDS, hedges: None, random: &random };
        let outcome = sending.write(Reach::OnePartition, || true, send).await;
        if outcome.is_ok() {
            self.note(fence);
            self.stored_us.fetch_max(fence.as_micros(), Ordering::SeqCst);
        }
        outcome
    }

    /// Fails while the highest fence proves that a clock has moved.
    pub(super) fn check(&self, now: Timestamp) -> Result<(), ClockError> {
        let seen = Timestamp::from_micros(self.seen_us.load(Ordering::SeqCst));
        let is_moved = proves_moved_clock(seen, now, &self.constants);
        if is_moved { Err(ClockError::Moved) } else { Ok(()) }
    }

    fn note(&self, fence: Timestamp) {
        self.seen_us.fetch_max(fence.as_micros(), Ordering::SeqCst);
    }

    /// Reads the row again. If this fails, the next round tries again. Returns whether a quorum has answered.
    pub(super) async fn look_within(&self, limit: Duration) -> bool {
        match tokio::time::timeout(limit, self.look()).await {
            Ok(Ok(())) => true,
            Ok(Err(error @ StoreError::Corrupt(_))) => {
                tracing::error!(%error, "the highest fence can't be read");
                true
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "the highest fence was not read");
                false
            }
            Err(_) => {
                tracing::debug!("the highest fence was not read in time");
                false
            }
        }
    }
}
