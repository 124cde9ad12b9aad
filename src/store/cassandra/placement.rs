//! Where the keyspace's replicas are. Operators change the replication while pods run, so each round of clock samples looks
//! again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use orderfree_core::protocol::consistency::{Level, Levels, Replication};
use scylla::client::session::Session;
use scylla::statement::prepared::PreparedStatement;
use tokio::time::timeout;

use super::attempts::Patience;
use super::connect_error::ConnectError;
use super::{checks, rows, session, statements};
use crate::store::Placement;

/// Looks at the replication of one keyspace.
pub(super) struct Look {
    session: Arc<Session>,
    keyspace: String,
    levels: Levels,
    statement: PreparedStatement,
}

impl Look {
    pub(super) async fn new(
        session: &Arc<Session>,
        keyspace: &str,
        levels: Levels,
    ) -> Result<Look, ConnectError> {
        let cql = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?";
        let mut statement = session.prepare(cql).await.map_err(ConnectError::question)?;
        let attempt = Patience::OF_READS_AND_FOLDS.attempt;
        statement.set_execution_profile_handle(Some(statements::profile(
            Level::One,
            None,
            attempt,
        )));
        Ok(Look { session: Arc::clone(session), keyspace: keyspace.to_owned(), levels, statement })
    }

    /// Returns the newest replication, and why it does not fit the levels. Without an answer it is that of before.
    pub(super) async fn again(
        &self,
        mut placement: Arc<Placement>,
        limit: Duration,
    ) -> (Arc<Placement>, Option<String>) {
        match timeout(limit, self.ask()).await {
            Err(_) => tracing::debug!("the replication was not read in time"),
            Ok(Err(reason)) => tracing::debug!(reason, "the replication was not read"),
            // What can't be used is not what folds were planned for.
            Ok(Ok(Err(rule))) => return (placement, Some(rule)),
            Ok(Ok(Ok(found))) if found == placement.replication => {}
            Ok(Ok(Ok(replication))) => {
                tracing::warn!(
                    before = %placement.replication,
                    now = %replication,
                    "the replication of the keyspace was changed"
                );
                let local_datacenter = placement.local_datacenter.clone();
                placement = Arc::new(Placement { local_datacenter, replication });
            }
        }
        let unsound = unsound(&placement, self.levels);
        (placement, unsound)
    }

    async fn ask(&self) -> Result<Result<Replication, String>, String> {
        let answer = self.session.execute_unpaged(&self.statement, (self.keyspace.as_str(),)).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let found = rows::of_system::<(BTreeMap<String, String>,)>(answer);
        let found = found.map_err(|error| error.to_string())?.into_iter().next();
        let (options,) = found.ok_or("the node does not know the keyspace")?;
        Ok(checks::replication(&options, &session::datacenters(&self.session)))
    }
}

fn unsound(placement: &Placement, levels: Levels) -> Option<String> {
    let Placement { local_datacenter, replication } = placement;
    match replication.factor(local_datacenter) {
        0 => Some(format!("data centre {local_datacenter} has no replica")),
        _ => replication.check(levels, local_datacenter).err().map(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folds_stop_when_the_replication_no_longer_fits_their_level() {
        let placement = |factors: &[(&str, usize)]| Placement {
            local_datacenter: "a".to_owned(),
            replication: Replication::new(
                factors.iter().map(|(name, factor)| ((*name).to_owned(), *factor)),
            ),
        };
        let quorum = Levels { fold: Level::Quorum, ..Levels::default() };
        assert_eq!(unsound(&placement(&[("a", 3)]), quorum), None);
        let two = placement(&[("a", 3), ("b", 3)]);
        assert!(unsound(&two, quorum).expect("2 + 4 of 6").contains("fold consistency quorum"));
        assert_eq!(unsound(&two, Levels::default()), None);
        assert_eq!(unsound(&two, Levels { fold: Level::EachQuorum, ..quorum }), None);
        let gone = unsound(&placement(&[("b", 3)]), Levels::default());
        assert!(gone.expect("no replica").contains("data centre a has no replica"));
    }
}
