//! The shards of one expiry become part of a value.
//!
//! Plain shards come first, by mutator. Then come the ops of all [packs](crate::crdt::pack), by id, each id
//! once. All copies of an op lie at one expiry (see [`super::op_id`]), so neither a read nor a fold can meet
//! some of them without the others.

use std::borrow::Borrow;

use super::Row;
use super::row_reader::{RowError, RowReader};
use crate::crdt::envelope::Shard;
use crate::crdt::pack::{self, StoredPack, United};
use crate::crdt::{Class, MergeError, State};

/// Merges the shards of one expiry into `state`, in canonical order.
pub(super) fn merge<R: Borrow<Row>>(
    reader: RowReader,
    state: &mut State,
    of_expiry: &[R],
) -> Result<United, RowError> {
    let mut packs: Vec<(&Row, StoredPack<'_>)> = Vec::new();
    for row in of_expiry {
        match reader.shard(row.borrow())? {
            Shard::Plain(other) => state.merge(&other)?,
            Shard::Pack(pack) => packs.push((row.borrow(), pack)),
        }
    }
    if packs.is_empty() {
        return Ok(United::default());
    }
    // The key becomes as coarse as its coarsest writer, whichever of its ops count.
    for (_, pack) in packs.iter().filter(|(_, pack)| pack.precision.is_some()) {
        state.merge(&State::new(reader.kind(), pack.precision))?;
    }
    let (entries, united) = pack::unite(packs.iter().map(|(_, pack)| pack));
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
    Ok(united)
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
    /// The merge of what a shard holds.
    ///
    /// # Errors
    /// [`RowError`].
    pub fn state(self, row: &Row) -> Result<State, RowError> {
        let mut state = State::identity(self.kind());
        merge(self, &mut state, &[row])?;
        Ok(state)
    }
}

#[cfg(test)]
mod tests;
