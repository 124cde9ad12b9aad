//! Updates that came together, brought together by their keys.

use std::collections::HashMap;

use orderfree_core::crdt::Op;
use orderfree_core::protocol::{Durability, Key, Timestamp};

use crate::mutators::{UpdateError, Updates};
use crate::service::Service;

/// See the [module documentation](self).
#[derive(Default)]
pub(super) struct Together {
    /// In the order in which the keys came first, and so do their mutators take them.
    keys: Vec<Updates>,
    /// Of each key's updates their places among those they came with.
    places: Vec<Vec<usize>>,
    at: HashMap<Key, usize>,
}

/// An update's place, and what became of it.
type Placed = (usize, Result<Option<Timestamp>, UpdateError>);

impl Together {
    /// Adds an update; the order of those of one key is kept.
    pub(super) fn add(&mut self, place: usize, key: Key, ops: impl IntoIterator<Item = Op>) {
        let at = *self.at.entry(key.clone()).or_insert(self.keys.len());
        if at == self.keys.len() {
            self.keys.push(Updates { key, ops: Vec::new(), lengths: Vec::new() });
            self.places.push(Vec::new());
        }
        let updates = &mut self.keys[at];
        let before = updates.ops.len();
        updates.ops.extend(ops);
        updates.lengths.push(updates.ops.len() - before);
        self.places[at].push(place);
    }

    /// The updates' places among those they came with.
    pub(super) fn into_places(self) -> impl Iterator<Item = usize> {
        self.places.into_iter().flatten()
    }

    /// How many updates there are.
    pub(super) fn len(&self) -> usize {
        self.places.iter().map(Vec::len).sum()
    }

    /// Applies all at once. A bad op spoils only its own update.
    pub(super) async fn apply(self, service: &Service, durability: Durability) -> Vec<Placed> {
        let outcomes = service.update_all(self.keys, durability).await;
        self.places.into_iter().flatten().zip(outcomes).collect()
    }
}
