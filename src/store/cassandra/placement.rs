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
    pub(super) found: Found,
}

/// What the looks so far have found.
#[derive(Debug, Clone)]
pub(super) struct Found {
    /// The newest replication that can be used.
    pub(super) placement: Arc<Placement>,
    /// Why no fold is allowed.
    pub(super) unsound: Option<String>,
    /// The first change that folds can't see past. It stays, because only people know whether a repair has run since.
    gap: Option<String>,
}

impl Look {
    pub(super) async fn new(
        session: &Arc<Session>,
        keyspace: &str,
        levels: Levels,
        placement: Arc<Placement>,
    ) -> Result<Look, ConnectError> {
        let prepared = session.prepare(session::SELECT_REPLICATION).await;
        let mut statement = prepared.map_err(ConnectError::question)?;
        // The nodes of this data centre take the pod's requests, so their view of the replication counts.
        let local = Some(placement.local_datacenter.as_str());
        let attempt = Patience::OF_READS_AND_FOLDS.attempt;
        let profile = statements::profile(Level::LocalOne, local, attempt);
        statement.set_execution_profile_handle(Some(profile));
        let (session, keyspace) = (Arc::clone(session), keyspace.to_owned());
        Ok(Look { session, keyspace, levels, statement, found: Found::first(placement) })
    }

    /// Looks again. Without an answer, nothing has changed.
    pub(super) async fn again(&mut self, limit: Duration) {
        match timeout(limit, self.ask()).await {
            Ok(Ok(found)) => self.found.update(found, self.levels),
            Ok(Err(reason)) => tracing::debug!(reason, "the replication was not read"),
            Err(_) => tracing::debug!("the replication was not read in time"),
        }
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

impl Found {
    pub(super) fn first(placement: Arc<Placement>) -> Found {
        Found { placement, unsound: None, gap: None }
    }

    /// Notes an answer. An error is the rule that the keyspace breaks.
    fn update(&mut self, answer: Result<Replication, String>, levels: Levels) {
        let unsound = match answer {
            // It can't be used. The one that folds were planned for stays.
            Err(rule) => Some(rule),
            Ok(replication) => {
                if replication != self.placement.replication {
                    self.change(replication, levels);
                }
                self.gap.clone().or_else(|| unsound(&self.placement, levels))
            }
        };
        if unsound != self.unsound {
            match &unsound {
                Some(why) => tracing::warn!(why, "the replication of the keyspace stops folds"),
                None => tracing::info!("the replication of the keyspace no longer stops folds"),
            }
            self.unsound = unsound;
        }
    }

    fn change(&mut self, now: Replication, levels: Levels) {
        let Placement { local_datacenter, replication: before } = &*self.placement;
        tracing::warn!(%before, %now, "the replication of the keyspace was changed");
        if !before.folds_see_past(&now, levels, local_datacenter) {
            self.gap.get_or_insert_with(|| {
                format!(
                    "it was changed from {before} to {now}, so folds could miss earlier updates; set ORDERFREE_FOLD=off on \
                     all pods and jobs; docs/operate/regions.md says what to repair before you switch folds on"
                )
            });
        }
        let local_datacenter = local_datacenter.clone();
        self.placement = Arc::new(Placement { local_datacenter, replication: now });
    }
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

    fn placement(factors: &[(&str, usize)]) -> Placement {
        let factors = factors.iter().map(|(name, factor)| ((*name).to_owned(), *factor));
        Placement { local_datacenter: "a".to_owned(), replication: Replication::new(factors) }
    }

    #[test]
    fn folds_stop_when_the_replication_no_longer_fits_their_level() {
        let quorum = Levels { fold: Level::Quorum, ..Levels::default() };
        assert_eq!(unsound(&placement(&[("a", 3)]), quorum), None);
        let two = placement(&[("a", 3), ("b", 3)]);
        assert!(unsound(&two, quorum).expect("2 + 4 of 6").contains("fold consistency quorum"));
        assert_eq!(unsound(&two, Levels::default()), None);
        assert_eq!(unsound(&two, Levels { fold: Level::EachQuorum, ..quorum }), None);
        let gone = unsound(&placement(&[("b", 3)]), Levels::default());
        assert!(gone.expect("no replica").contains("data centre a has no replica"));
    }

    fn found(factor: usize) -> Found {
        Found::first(Arc::new(placement(&[("a", factor)])))
    }

    fn answer(factor: usize) -> Result<Replication, String> {
        Ok(placement(&[("a", factor)]).replication)
    }

    #[test]
    fn lone_rows_are_folded_with_several_data_centres() {
        assert!(!placement(&[("a", 3), ("b", 0)]).is_spread());
        assert!(placement(&[("a", 3), ("b", 1)]).is_spread());
    }

    #[test]
    fn folds_wait_while_the_keyspace_breaks_a_rule() {
        let (mut found, begun) = (found(3), found(3).placement);
        found.update(Err("no SimpleStrategy".to_owned()), Levels::default());
        assert_eq!(
            (&found.placement, found.unsound.as_deref()),
            (&begun, Some("no SimpleStrategy"))
        );
        found.update(answer(3), Levels::default());
        assert_eq!((&found.placement, &found.unsound), (&begun, &None));
        found.update(answer(5), Levels::default());
        assert_eq!((&found.placement.replication, &found.unsound), (&answer(5).expect("a"), &None));
    }

    /// A quorum of three replicas and one of five need not share one, and a single replica may be the third.
    #[test]
    fn folds_stop_for_good_after_a_change_that_they_can_t_see_past() {
        let quorum = Levels { fold: Level::EachQuorum, ..Levels::default() };
        for (before, now, levels, stops) in [
            (3, 4, quorum, false),
            (3, 5, quorum, true),
            (3, 5, Levels::default(), false),
            (3, 2, quorum, false),
            (3, 1, Levels::default(), true),
            (5, 3, Levels::default(), false),
            (5, 3, quorum, true),
        ] {
            let mut found = found(before);
            found.update(answer(now), levels);
            let why = found.unsound.clone().unwrap_or_default();
            assert_eq!(why.contains(&format!("from a:{before} to a:{now}")), stops, "{why}");
            found.update(answer(before), levels);
            assert_eq!(found.unsound.is_some(), stops, "back from {now} to {before} at {levels:?}");
        }
    }
}
