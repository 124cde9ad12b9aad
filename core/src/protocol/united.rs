//! The shards of one expiry become part of a value.
//!
//! Plain shards come first, by mutator. Then come the ops of all [packs](crate::crdt::pack), by id, each id
//! once. All copies of an op lie at one expiry (see [`super::op_id`]), so neither a read nor a fold can meet
//! some of them without the others.
//!
//! Rows and ids that a [reset](super::reset) cleared count nothing, wherever they come from.

use std::borrow::Borrow;

use super::generation::{Generation, Remembered};
use super::row_reader::{RowError, RowReader};
use super::{Row, Timestamp};
use crate::crdt::envelope::{self, Shard};
use crate::crdt::pack::{self, OpId, StoredPack, United};
use crate::crdt::{Class, MergeError, State};

/// Which rows above the fence count.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Counting {
    reset: Option<Remembered>,
    before: Option<Generation>,
}

/// What was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    /// Rows that count.
    pub(super) shards: usize,
    /// The ops with ids in them.
    pub(super) united: United,
}

impl Counting {
    /// As a key's tally says. The row must be decodable.
    pub(super) fn of(tally: Option<&Row>) -> Counting {
        Counting { reset: tally.and_then(|row| envelope::reset(&row.state)), before: None }
    }

    /// Only rows that were born before a reset.
    pub(super) fn before(self, before: Option<Generation>) -> Counting {
        Counting { before, ..self }
    }

    /// The reset that the tally remembers.
    pub(super) fn reset(&self) -> Option<&Remembered> {
        self.reset.as_ref()
    }

    pub(super) fn into_reset(self) -> Option<Remembered> {
        self.reset
    }

    /// Whether a row counts that holds this.
    pub(super) fn has(&self, row: &Row, shard: &Shard<'_>) -> bool {
        if self.reset.is_none() && self.before.is_none() {
            return true;
        }
        let stamp = envelope::stamp(&row.state);
        self.reset.as_ref().is_none_or(|reset| {
            reset.counts(stamp, row.expires_at) && !self.has_cleared(row.expires_at, shard)
        }) && self.before.is_none_or(|before| stamp < Some(before))
    }

    /// Whether all ops in the row were cleared. A client can send ops with ids again after a reset. A key that was deleted must
    /// stay absent then.
    fn has_cleared(&self, expires_at: Timestamp, shard: &Shard<'_>) -> bool {
        let reset = self.reset.as_ref().filter(|reset| !reset.ids().is_empty());
        let (Some(reset), Shard::Pack(pack)) = (reset, shard) else { return false };
        pack.entries.iter().all(|entry| reset.has_cleared(expires_at, entry.id))
    }

    /// Merges the shards of one expiry into `state`, in canonical order. Notes the ids of the ops that count.
    pub(super) fn merge<R: Borrow<Row>>(
        &self,
        reader: RowReader,
        state: &mut State,
        of_expiry: &[R],
        ids: Option<&mut Vec<OpId>>,
    ) -> Result<Counts, RowError> {
        let mut packs: Vec<(&Row, StoredPack<'_>)> = Vec::new();
        let mut shards = 0;
        for row in of_expiry {
            let shard = reader.shard(row.borrow())?;
            if !self.has(row.borrow(), &shard) {
                continue;
            }
            shards += 1;
            match shard {
                Shard::Plain(other) => state.merge(&other)?,
                Shard::Pack(pack) => packs.push((row.borrow(), pack)),
            }
        }
        let Some((first, _)) = packs.first() else {
            return Ok(Counts { shards, united: United::default() });
        };
        let expires_at = first.expires_at;
        // The key becomes as coarse as its coarsest writer, whichever of its ops count.
        for (_, pack) in packs.iter().filter(|(_, pack)| pack.precision.is_some()) {
            state.merge(&State::new(reader.kind(), pack.precision))?;
        }
        let (mut entries, mut united) = pack::unite(packs.iter().map(|(_, pack)| pack));
        if let Some(reset) = self.reset.as_ref().filter(|reset| !reset.ids().is_empty()) {
            entries.retain(|entry| !reset.has_cleared(expires_at, entry.id));
            united.ids = entries.len();
        }
        if let Some(ids) = ids {
            ids.extend(entries.iter().map(|entry| entry.id));
        }
        let mut merged = Pairwise::default();
        for entry in entries {
            let delta = entry.state(reader.kind()).map_err(|error| {
                let holds = |(_, pack): &&(&Row, StoredPack<'_>)| pack.entries.contains(&entry);
                let (row, _) = packs.iter().find(holds).expect("invariant: it is from one of them");
                reader.undecodable(row, error)
            })?;
            match reader.kind().about().class {
                Class::Exact => merged.add(delta)?,
                Class::OrderCanonical => state.merge(&delta)?,
            }
        }
        merged.into_state(state)?;
        Ok(Counts { shards, united })
    }
}

/// Merges states of an exact kind in pairs, then the results in pairs, and so on: a merge costs as much as both
/// states, so one after another would cost the square of their number. For exact kinds the grouping makes no
/// difference.
#[derive(Default)]
struct Pairwise {
    /// Merges of 2^n states, with a smaller n each.
    parts: Vec<(u32, State)>,
}

impl Pairwise {
    fn add(&mut self, mut state: State) -> Result<(), MergeError> {
        let mut rank = 0;
        while let Some((_, mut before)) = self.parts.pop_if(|(of, _)| *of == rank) {
            before.merge(&state)?;
            (state, rank) = (before, rank + 1);
        }
        self.parts.push((rank, state));
        Ok(())
    }

    fn into_state(self, state: &mut State) -> Result<(), MergeError> {
        let mut parts = self.parts.into_iter().rev().map(|(_, part)| part);
        let Some(mut all) = parts.next() else { return Ok(()) };
        parts.try_for_each(|mut part| {
            std::mem::swap(&mut all, &mut part);
            all.merge(&part)
        })?;
        state.merge(&all)
    }
}

impl RowReader {
    /// The merge of what a shard holds, whether it counts or not.
    ///
    /// # Errors
    /// [`RowError`].
    pub fn state(self, row: &Row) -> Result<State, RowError> {
        let mut state = State::identity(self.kind());
        Counting::default().merge(self, &mut state, &[row], None)?;
        Ok(state)
    }
}

#[cfg(test)]
mod tests;
