//! Updates that came together: those of one key become one op list, so that a hot key costs one
//! update of its mutator, whatever their number.

use std::collections::HashMap;

use futures::future::join_all;
use orderfree_core::crdt::Op;
use orderfree_core::protocol::{Durability, Key, Timestamp};

use crate::mutators::{Refused, UpdateError};
use crate::service::Service;

/// Updates of one key, each with its place among those it came with.
type Updates = Vec<(usize, Vec<Op>)>;

/// An update's place, and what became of it.
type Placed = (usize, Result<Option<Timestamp>, UpdateError>);

/// See the [module documentation](self).
#[derive(Default)]
pub(super) struct Together {
    /// In the order in which the keys came first, and so do their mutators take them.
    keys: Vec<(Key, Updates)>,
    at: HashMap<Key, usize>,
}

impl Together {
    /// Adds an update; the order of those of one key is kept.
    pub(super) fn add(&mut self, place: usize, key: Key, ops: Vec<Op>) {
        let at = *self.at.entry(key.clone()).or_insert(self.keys.len());
        if at == self.keys.len() {
            self.keys.push((key, Vec::new()));
        }
        self.keys[at].1.push((place, ops));
    }

    /// Applies all at once. A bad op spoils only its own update.
    pub(super) async fn apply(self, service: &Service, durability: Durability) -> Vec<Placed> {
        let keys = self.keys.into_iter();
        let keys = keys.map(|(key, updates)| apply_key(service, key, updates, durability));
        join_all(keys).await.into_iter().flatten().collect()
    }
}

async fn apply_key(
    service: &Service,
    key: Key,
    updates: Updates,
    durability: Durability,
) -> Vec<Placed> {
    // Where the last writer wins, each is told the time of its own.
    if updates.len() > 1 && !key.kind.is_timed() {
        let ops = updates.iter().flat_map(|(_, ops)| ops.iter().cloned()).collect();
        let result = service.update_together(&key, ops, updates.len(), durability).await;
        if !matches!(result, Err(UpdateError::Refused(Refused::Op(_)))) {
            return updates.into_iter().map(|(place, _)| (place, result.clone())).collect();
        }
    }
    let key = &key;
    let alone = updates
        .into_iter()
        .map(|(place, ops)| async move { (place, service.update(key, ops, durability).await) });
    join_all(alone).await
}
