//! Updates that came together: those of one key become one op list, so that a hot key costs one
//! update of its mutator, whatever their number.

use std::collections::HashMap;
use std::mem;

use orderfree_core::crdt::Op;
use orderfree_core::protocol::{Durability, Key, Timestamp};

use crate::mutators::{OpList, Refused, UpdateError};
use crate::service::Service;

/// See the [module documentation](self).
#[derive(Default)]
pub(super) struct Together {
    /// In the order in which the keys came first, and so do their mutators take them.
    keys: Vec<Updates>,
    at: HashMap<Key, usize>,
}

/// Updates of one key, in their order.
struct Updates {
    key: Key,
    /// Of all of them.
    ops: Vec<Op>,
    /// Of each its place among those it came with, and the number of its ops.
    each: Vec<(usize, usize)>,
}

/// An update's place, and what became of it.
type Placed = (usize, Result<Option<Timestamp>, UpdateError>);

impl Together {
    /// Adds an update; the order of those of one key is kept.
    pub(super) fn add(&mut self, place: usize, key: Key, ops: impl IntoIterator<Item = Op>) {
        let at = *self.at.entry(key.clone()).or_insert(self.keys.len());
        if at == self.keys.len() {
            self.keys.push(Updates { key, ops: Vec::new(), each: Vec::new() });
        }
        let updates = &mut self.keys[at];
        let before = updates.ops.len();
        updates.ops.extend(ops);
        updates.each.push((place, updates.ops.len() - before));
    }

    /// Applies all at once. A bad op spoils only its own update.
    pub(super) async fn apply(self, service: &Service, durability: Durability) -> Vec<Placed> {
        let mut lists = Vec::with_capacity(self.keys.len());
        for updates in self.keys {
            // Where the last writer wins, each is told the time of its own.
            match updates.key.kind.is_timed() {
                true => lists.extend(updates.split()),
                false => lists.push(updates),
            }
        }
        let mut placed = Vec::new();
        while !lists.is_empty() {
            let together = lists.iter_mut().map(Updates::list).collect();
            let results = service.update_all(together, durability).await;
            let mut again = Vec::new();
            for (updates, result) in lists.into_iter().zip(results) {
                let is_for_an_op = matches!(result, Err(UpdateError::Refused(Refused::Op(_))));
                if is_for_an_op && updates.each.len() > 1 {
                    again.extend(updates.split());
                } else {
                    placed.extend(updates.each.iter().map(|(place, _)| (*place, result.clone())));
                }
            }
            lists = again;
        }
        placed
    }
}

impl Updates {
    /// One list of all; it is kept if it may have to be split.
    fn list(&mut self) -> OpList {
        let updates = self.each.len();
        let ops = if updates == 1 { mem::take(&mut self.ops) } else { self.ops.clone() };
        OpList { key: self.key.clone(), ops, updates }
    }

    /// Each update alone.
    fn split(self) -> impl Iterator<Item = Updates> {
        let Updates { key, ops, each } = self;
        let mut ops = ops.into_iter();
        each.into_iter().map(move |(place, count)| {
            let ops = ops.by_ref().take(count).collect();
            Updates { key: key.clone(), ops, each: vec![(place, count)] }
        })
    }
}
