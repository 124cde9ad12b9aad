//! Tells of acknowledged updates of the keys that are watched.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use orderfree_core::protocol::Key;
use tokio::sync::Notify;

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub struct Changes {
    /// Number of keys, so that updates need no lock while there are none.
    count: AtomicUsize,
    keys: RwLock<HashMap<Key, Arc<Notify>>>,
}

impl Changes {
    /// Notifies `changed` after each acknowledged update of the key, until [`Changes::forget`].
    pub(crate) fn follow(&self, key: Key, changed: Arc<Notify>) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        keys.insert(key, changed);
        self.count.store(keys.len(), Ordering::Relaxed);
    }

    pub(crate) fn forget(&self, key: &Key) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        keys.remove(key);
        self.count.store(keys.len(), Ordering::Relaxed);
    }

    /// An update of the key was acknowledged.
    pub fn happened(&self, key: &Key) {
        if self.count.load(Ordering::Relaxed) > 0
            && let Some(changed) = self.keys.read().unwrap_or_else(PoisonError::into_inner).get(key)
        {
            changed.notify_one();
        }
    }
}
