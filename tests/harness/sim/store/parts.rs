//! Slices with a limit, and keys that are read in parts.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::PoisonError;

use orderfree::store::StoreError;
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::prefix::{LAST_EXPIRY, Part};
use orderfree_core::protocol::{Key, MutatorId, Row, Timestamp};
use tokio::task;

use super::{SimStore, index};
use crate::cluster::Range;
use crate::coverage::Hazard;
use crate::sabotage::Sabotage;
use crate::world::Walk;

/// The walks that are running.
pub(super) type Walks = HashMap<Walk, Seen>;

/// The answers of a walk so far.
pub(super) struct Seen {
    looks: usize,
    /// The tally at the first look.
    tally: Option<Row>,
    /// The rows of its parts, in the order of answers.
    ids: BTreeSet<(Timestamp, Reverse<MutatorId>)>,
}

impl SimStore {
    /// A slice of one key. If keys are long, it has a limit and is read backwards.
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

    /// A look at a tally: the first, second or third one of a walk.
    pub(super) async fn look(&self, key: &Key) -> Result<Option<Row>, StoreError> {
        let walk = (index(&key.name), task::try_id());
        let looks = self.walks(|walks| walks.get(&walk).map_or(0, |seen| seen.looks));
        self.shared.with(|world| world.before_look(&walk, looks + 1));
        let tally = Range { after: Some(LAST_EXPIRY), ..Range::key(index(&key.name)) };
        let rows = self.rows(tally, Level::All).await;
        // A failed walk ends here, and one whose tally changed begins again.
        let before = self.walks(|walks| walks.remove(&walk));
        let found = rows?.into_iter().next().map(|(_, row)| row);
        let Some(mut seen) = before else {
            let seen = Seen { looks: 1, tally: found.clone(), ids: BTreeSet::new() };
            self.walks(|walks| walks.insert(walk, seen));
            self.shared.with(|world| world.after_first_look(&walk, &self.machine));
            return Ok(found);
        };
        seen.looks += 1;
        if seen.looks == 2 {
            self.shared.met(Hazard::ReadInParts);
        }
        let is_same = seen.tally == found;
        if !is_same {
            self.shared.met(Hazard::WalkAgain);
        }
        let is_one_look = self.is(Sabotage::OneLook);
        let shown = if is_one_look { seen.tally.clone() } else { found };
        if seen.looks == 2 && (is_same || is_one_look) {
            self.walks(|walks| walks.insert(walk, seen));
        }
        Ok(shown)
    }

    fn walks<T>(&self, look: impl FnOnce(&mut Walks) -> T) -> T {
        look(&mut self.walks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) async fn part(&self, key: &Key, part: Part) -> Result<Vec<Row>, StoreError> {
        let Part { after, through, limit, ids_only } = part;
        let (through, is_backwards) = (Some(through), true);
        let range = Range { after, through, limit, is_backwards, ..Range::key(index(&key.name)) };
        let level = if self.is(Sabotage::QuorumParts) { Level::Quorum } else { Level::All };
        let walk = (index(&key.name), task::try_id());
        let rows = self.rows(range, level).await;
        if rows.is_err() {
            self.walks(|walks| walks.remove(&walk));
        }
        let mut rows: Vec<Row> = rows?.into_iter().map(|(_, row)| row).collect();
        let expiries = |pair: &[Row]| pair[0].expires_at == pair[1].expires_at;
        if rows.windows(2).any(expiries) {
            self.shared.met(Hazard::SharedExpiry);
        }
        // Only an expiry with more rows than a part is asked for by itself.
        if self.is(Sabotage::SplitExpiry) && after == Some(part.through.shifted(-1)) {
            rows.truncate(1);
        }
        if self.is(Sabotage::CutPart) && rows.len() == limit {
            rows.pop();
        }
        if ids_only {
            rows.iter_mut().for_each(|row| row.state.clear());
        }
        self.walks(|walks| {
            let Some(seen) = walks.get_mut(&walk) else { return };
            let id = |row: &Row| (row.expires_at, Reverse(row.mutator_id));
            if !ids_only {
                // Rows that the last part may have divided come again.
                seen.ids.retain(|(expires_at, _)| Some(*expires_at) <= after);
                seen.ids.extend(rows.iter().map(id));
            // Code that divides an expiry does so both times.
            } else if self.is(Sabotage::NoRecheck) || self.is(Sabotage::SplitExpiry) {
                let asked = |expires_at| Some(expires_at) > after && Some(expires_at) <= through;
                let ids = seen.ids.iter().filter(|(expires_at, _)| asked(*expires_at));
                let row = |&(expires_at, Reverse(mutator_id)): &_| Row {
                    expires_at,
                    mutator_id,
                    state: Vec::new(),
                };
                rows = ids.take(limit).map(row).collect();
            }
        });
        Ok(rows)
    }
}
