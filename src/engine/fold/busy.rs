//! The keys that this pod is folding. Only one fold of a key runs at a time.

use std::collections::HashSet;
use std::sync::Mutex;

use orderfree_core::protocol::Key;

use super::lock;

/// The right to fold one key in this pod, returned on drop.
pub(super) struct Busy<'a> {
    all: &'a Mutex<HashSet<Key>>,
    pub(super) key: &'a Key,
}

impl<'a> Busy<'a> {
    pub(super) fn take(all: &'a Mutex<HashSet<Key>>, key: &'a Key) -> Option<Busy<'a>> {
        let is_mine = lock(all).insert(key.clone());
        is_mine.then(|| Busy { all, key })
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        lock(self.all).remove(self.key);
    }
}
