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

    /// Returns the newest replication, and why it does not fit the levels. Without an answer, returns the ones that
    /// were given.
    pub(super) async fn again(
        &self,
        placement: Arc<Placement>,
        unsound: Option<String>,
        limit: Duration,
    ) -> (Arc<Placement>, Option<String>) {
        match timeout(limit, self.ask()).await {
            Ok(Ok(found)) => return updated(placement, found, self.levels),
            Ok(Err(reason)) => tracing::debug!(reason, "the replication was not read"),
            Err(_) => tracing::debug!("the replication was not read in time"),
        }
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

/// The placement after an answer, and why it does not fit the levels. An error is the rule that the keyspace breaks.
fn updated(
    placement: Arc<Placement>,
    found: Result<Replication, String>,
    levels: Levels,
) -> (Arc<Placement>, Option<String>) {
    let replication = match found {
        // It can't be used. The one that folds were planned for stays.
        Err(rule) => return (placement, Some(rule)),
        Ok(replication) => replication,
    };
    if replication == placement.replication {
        let unsound = unsound(&placement, levels);
        return (placement, unsound);
    }
    tracing::warn!(
        before = %placement.replication,
        now = %replication,
        "the replication of the keyspace was changed"
    );
    let local_datacenter = placement.local_datacenter.clone();
    let placement = Placement { local_datacenter, replication };
    let unsound = unsound(&placement, levels);
    (Arc::new(placement), unsound)
}

fn unsound(placement: &Placement, levels: Levels) -> Option<String> {
    let Placement { local_datacenter, replication } = placement;
    match replication.factor(local_datacenter) {
        0 => Some(format!("data centre {local_datacenter} has no replica")),
        _ => placement.check(levels).err().map(|error| error.to_string()),
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

    #[test]
    fn folds_wait_while_the_keyspace_breaks_a_rule() {
        let replication = |factor| Replication::new([("a".to_owned(), factor)]);
        let local_datacenter = "a".to_owned();
        let begun = Arc::new(Placement { local_datacenter, replication: replication(3) });
        let (same, unsound) =
            updated(Arc::clone(&begun), Err("no SimpleStrategy".to_owned()), Levels::default());
        assert_eq!((&same, unsound.as_deref()), (&begun, Some("no SimpleStrategy")));
        let (same, unsound) = updated(same, Ok(replication(3)), Levels::default());
        assert_eq!((&same, unsound), (&begun, None));
        let (changed, unsound) = updated(same, Ok(replication(5)), Levels::default());
        assert_eq!((&changed.replication, unsound), (&replication(5), None));
    }
}
