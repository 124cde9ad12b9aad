//! Rows that belong to no key. Each has a time of the whole store, and the latest time wins: a row is written with its
//! time as the timestamp, which can be ahead of the clock. The rows are written at a quorum of every data centre and read
//! at a quorum of the local one. So every pod sees them, and while a data centre is away, pods of the others can still
//! start and serve.

use std::sync::Arc;
use std::time::Duration;

use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::{MutatorId, Timestamp, WriteOutcome};
use scylla::client::session::Session;
use scylla::statement::prepared::PreparedStatement;

use super::attempts::{Patience, Sending};
use super::connect_error::ConnectError;
use super::reach::Reach;
use super::{rows, statements};
use crate::runtime::random::Random;
use crate::store::StoreError;

/// Cassandra's limit of a TTL, in seconds: 20 years.
const TTL_MAX: i32 = 20 * 365 * 24 * 3600;

/// A row's `kind`, `grp` and `name`.
type Place<'a> = (&'a str, &'a str, &'a str);

/// See the [module documentation](self).
pub(super) struct OwnRows {
    session: Arc<Session>,
    read: PreparedStatement,
    read_all: PreparedStatement,
    write: PreparedStatement,
    random: Random,
}

impl OwnRows {
    pub(super) async fn open(
        session: &Arc<Session>,
        keyspace: &str,
        local_datacenter: &str,
    ) -> Result<Arc<OwnRows>, ConnectError> {
        let prepare = async |cql: String, level: Level| {
            let prepared = statements::prepare(session, local_datacenter, cql, level).await;
            prepared.map_err(ConnectError::question)
        };
        let key = "kind = ? AND grp = ? AND name = ? AND expires_at = ? AND mutator_id = ?";
        let read = format!("SELECT state FROM {keyspace}.shards WHERE {key}");
        let read_all =
            format!("SELECT name, state FROM {keyspace}.shards WHERE kind = ? AND grp = ?");
        let write = format!(
            "INSERT INTO {keyspace}.shards (kind, grp, name, expires_at, mutator_id, state) \
             VALUES (?, ?, ?, ?, ?, ?) USING TIMESTAMP ? AND TTL ?"
        );
        Ok(Arc::new(OwnRows {
            session: Arc::clone(session),
            read: prepare(read, Level::LocalQuorum).await?,
            read_all: prepare(read_all, Level::LocalQuorum).await?,
            write: prepare(write, Level::EachQuorum).await?,
            random: Random::system(),
        }))
    }

    /// The row's state; none if there is no row.
    pub(super) async fn read(
        &self,
        (kind, group, name): Place<'_>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let (never, nil) = (Timestamp::NEVER.as_micros(), MutatorId::TALLY.as_uuid());
        let place = (kind, group, name, never, nil);
        let ask = |_| self.session.execute_unpaged(&self.read, place);
        let found = rows::of_system::<(Option<Vec<u8>>,)>(self.sending().read(ask).await?)?;
        Ok(found.into_iter().next().map(|(state,)| state.unwrap_or_default()))
    }

    /// The name and the state of each row of a group.
    pub(super) async fn read_all(
        &self,
        place: (&str, &str),
    ) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let ask = |_| self.session.execute_unpaged(&self.read_all, place);
        let found: Vec<(String, Option<Vec<u8>>)> =
            rows::of_system(self.sending().read(ask).await?)?;
        Ok(found.into_iter().map(|(name, state)| (name, state.unwrap_or_default())).collect())
    }

    /// Writes the row, unless it has a later time. Without a time to stay, it is never removed.
    pub(super) async fn raise(
        &self,
        (kind, group, name): Place<'_>,
        state: Vec<u8>,
        time: Timestamp,
        stays: Option<Duration>,
    ) -> WriteOutcome {
        let (never, nil) = (Timestamp::NEVER.as_micros(), MutatorId::TALLY.as_uuid());
        let values = (kind, group, name, never, nil, state, time.as_micros(), ttl(stays));
        let send = async |_| self.session.execute_unpaged(&self.write, &values).await.map(drop);
        self.sending().write(Reach::OnePartition, || true, send).await
    }

    fn sending(&self) -> Sending<'_> {
        Sending { patience: Patience::OF_READS_AND_FOLDS, hedges: None, random: &self.random }
    }
}

/// A TTL in seconds. It is 0 if the row stays until it is deleted.
pub(super) fn ttl(stays: Option<Duration>) -> i32 {
    let seconds =
        |stays: Duration| i32::try_from(stays.as_secs()).unwrap_or(TTL_MAX).clamp(1, TTL_MAX);
    stays.map_or(0, seconds)
}
