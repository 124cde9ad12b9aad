//! Removes graves, for operators.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use orderfree_core::protocol::fold::Grave;
use orderfree_core::protocol::sweep::{IdleRules, Nominator};
use orderfree_core::protocol::{Key, Timestamp};
use tokio::sync::mpsc;

use super::{Folder, Folding, SWEEP_AHEAD_MAX, by_partition};
use crate::engine::fold::FoldFailure;
use crate::store::{Pause, StoreError};

/// The result of a purge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PurgeReport {
    /// Graves of keys that were forgotten.
    pub graves: usize,
    /// Graves that were removed, or would be.
    pub removed: usize,
    /// Keys that could not be read at the level of folds, or whose removal was not acknowledged.
    pub postponed: usize,
}

/// Makes a sweep find every key that has only a tally.
#[derive(Debug)]
struct EveryTally;

impl IdleRules for EveryTally {
    fn idle_ttl(&self, _: &Key) -> Option<Duration> {
        Some(Duration::ZERO)
    }
}

impl Folder {
    /// Removes the graves that every replica has had since `repaired_since`, when a full repair began. A dry run
    /// only counts them.
    ///
    /// # Errors
    /// [`FoldFailure`] if a part of the key space could not be scanned, or if no fold is allowed now.
    pub async fn purge(
        &self,
        repaired_since: Timestamp,
        dry_run: bool,
    ) -> Result<PurgeReport, FoldFailure> {
        // It reads as folds do. They are off while that may miss rows.
        if self.folding == Folding::Off {
            return Err(Pause::Off.into());
        }
        let (found, nominations) = mpsc::channel(SWEEP_AHEAD_MAX);
        let scan = async move {
            for part in self.parts() {
                let nominator = Nominator::new(self.gate.fold_time()?, self.constants);
                let nominator = nominator.forgetting(Arc::new(EveryTally));
                self.folds.sweep(part, nominator, found.clone()).await?;
            }
            Ok::<_, FoldFailure>(())
        };
        let nominations = by_partition::stream(nominations)
            .filter(|nomination| std::future::ready(nomination.is_tally_alone));
        let mut lists = std::pin::pin!(by_partition::lists(nominations, self.folds.folds_max()));
        let mut report = PurgeReport::default();
        let purge = async {
            while let Some(keys) = lists.next().await {
                self.purge_list(&keys, repaired_since, dry_run, &mut report).await;
            }
        };
        let (scanned, ()) = futures::join!(scan, purge);
        scanned.map(|()| report)
    }

    async fn purge_list(
        &self,
        keys: &[Key],
        repaired_since: Timestamp,
        dry_run: bool,
        report: &mut PurgeReport,
    ) {
        let reads = match self.reads.read_for_folds(keys).await {
            Ok(reads) => reads,
            // Rows came meanwhile.
            Err(StoreError::TooManyRows { .. }) => return,
            Err(error) => {
                tracing::debug!(%error, "graves were not read");
                report.postponed += keys.len();
                return;
            }
        };
        for read in &reads {
            if !read.slice().has_grave() {
                continue;
            }
            report.graves += 1;
            let Some(grave) = Grave::of(read, repaired_since, &self.constants) else { continue };
            let removed = match dry_run {
                true => Ok(()),
                false => self.folds.remove_grave(&grave).await,
            };
            match removed {
                Ok(()) => report.removed += 1,
                Err(error) => {
                    tracing::debug!(key = %read.key(), %error, "a grave was not removed");
                    report.postponed += 1;
                }
            }
        }
    }
}
