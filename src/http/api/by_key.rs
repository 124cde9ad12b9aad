//! Groups the updates of one request by key.

use std::collections::HashMap;

use orderfree_core::protocol::{Durability, Key, Timestamp};

use crate::engine::service::Service;
use crate::engine::write::{Update, UpdateError, Updates};

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct ByKey {
    /// In the order of each key's first update. The mutators take them in this order.
    keys: Vec<Updates>,
    /// For each key, the places of its updates in the request.
    places: Vec<Vec<usize>>,
    at: HashMap<Key, usize>,
}

/// An update's place in the request, and its outcome.
pub(crate) type Placed = (usize, Result<Option<Timestamp>, UpdateError>);

impl ByKey {
    /// Adds an update. The updates of one key keep their order.
    pub(crate) fn add(&mut self, place: usize, key: Key, update: Update) {
        let at = *self.at.entry(key.clone()).or_insert(self.keys.len());
        if at == self.keys.len() {
            self.keys.push(Updates { key, lists: Vec::new() });
            self.places.push(Vec::new());
        }
        self.keys[at].lists.push(update);
        self.places[at].push(place);
    }

    /// Each update with its place and its key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Key, &Update)> {
        self.keys.iter().zip(&self.places).flat_map(|(updates, places)| {
            places.iter().zip(&updates.lists).map(|(place, update)| (*place, &updates.key, update))
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.places.iter().map(Vec::len).sum()
    }

    /// Applies all updates at once. A bad op affects only its own update.
    pub(crate) async fn apply(self, service: &Service, durability: Durability) -> Vec<Placed> {
        let outcomes = service.update_all(self.keys, durability).await;
        self.places.into_iter().flatten().zip(outcomes).collect()
    }

    /// Like [`ByKey::apply`], but with `leaves` it leaves updates that meet a limit of this pod, and the later
    /// ones of their keys. Returns them, to be applied again.
    pub(crate) async fn apply_or_leave(
        mut self,
        service: &Service,
        durability: Durability,
        leaves: bool,
    ) -> (Vec<Placed>, ByKey) {
        let (outcomes, left) = service.update_or_leave(self.keys, durability, leaves).await;
        let mut again = ByKey::default();
        for (at, updates) in left {
            let places = &mut self.places[at];
            again.places.push(places.split_off(places.len() - updates.lists.len()));
            again.at.insert(updates.key.clone(), again.keys.len());
            again.keys.push(updates);
        }
        (self.places.into_iter().flatten().zip(outcomes).collect(), again)
    }
}
