//! Slices with a limit, and keys that are read in parts.

use std::sync::PoisonError;

use orderfree::store::StoreError;
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::prefix::Part;
use orderfree_core::protocol::{Key, Row, Timestamp};

use super::{SimStore, index};
use crate::cluster::Range;
use crate::coverage::Hazard;
use crate::sabotage::Sabotage;

impl SimStore {
    /// A slice of one key. Where keys are long, it has a limit, and is read backwards.
    pub(super) async fn slice(
        &self,
        range: Range,
        level: Level,
        limit: usize,
    ) -> Result<Vec<Row>, StoreError> {
        let range = match self.plan.lengths.slices {
            None => range,
            Some(_) => {
                let is_backwards = !self.is(Sabotage::NewestFirst);
                Range { limit: limit + 1, is_backwards, ..range }
            }
        };
        let rows = self.values(range, level, Sabotage::KeyPages).await?;
        let mut rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
        if range.is_backwards {
            rows.reverse();
        }
        Ok(rows)
    }

    /// A look at a tally: the first one of a walk, or the second.
    pub(super) async fn look(&self, key: &Key) -> Result<Option<Row>, StoreError> {
        let tally = Range { after: Some(just_before_never()), ..Range::key(index(&key.name)) };
        let rows = self.rows(tally, Level::All).await?;
        let found = rows.into_iter().next().map(|(_, row)| row);
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(first) = looks.remove(key) else {
            looks.insert(key.clone(), found.clone());
            return Ok(found);
        };
        self.shared.met(Hazard::ReadInParts);
        if first != found {
            self.shared.met(Hazard::WalkAgain);
        }
        Ok(if self.is(Sabotage::OneLook) { first } else { found })
    }

    pub(super) async fn part(&self, key: &Key, part: Part) -> Result<Vec<Row>, StoreError> {
        let Part { after, through, limit } = part;
        let (through, is_backwards) = (Some(through), true);
        let range = Range { after, through, limit, is_backwards, ..Range::key(index(&key.name)) };
        let level = if self.is(Sabotage::QuorumParts) { Level::Quorum } else { Level::All };
        let rows = self.rows(range, level).await?;
        let mut rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
        let expiries = |pair: &[Row]| pair[0].expires_at == pair[1].expires_at;
        if rows.windows(2).any(expiries) {
            self.shared.met(Hazard::SharedExpiry);
        }
        // Only an expiry that has more rows than a part is asked for by itself.
        if self.is(Sabotage::SplitExpiry) && after == Some(part.through.shifted(-1)) {
            rows.truncate(1);
        }
        if self.is(Sabotage::CutPart) && rows.len() == limit {
            rows.pop();
        }
        Ok(rows)
    }
}

/// Only the tally expires later.
fn just_before_never() -> Timestamp {
    Timestamp::NEVER.shifted(-1)
}
