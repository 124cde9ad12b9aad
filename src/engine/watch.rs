//! Watched keys: each is read while it has watchers, and they get its new values.
//!
//! A key has one task and one read at a time, however many watch it. The task reads when an update of this pod was
//! acknowledged, and once a second for the updates of other pods. A watcher that takes nothing costs no more than its
//! list of keys: it holds no values, and finds the latest ones when it comes back.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use orderfree_core::protocol::Key;
use orderfree_core::protocol::consistency::Level;
use thiserror::Error;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::engine::Context;
use crate::engine::changes::Changes;
use crate::engine::read::{Held, ReadError, Reader};
use crate::limits;
use crate::runtime::tasks::{Task, Tasks, panic_point};

/// The keys that are watched here.
pub struct Watches {
    reader: Arc<Reader>,
    changes: Arc<Changes>,
    level: Level,
    keys: Mutex<Keys>,
    /// Reads of watched keys that run at once.
    turns: Semaphore,
    tasks: Tasks,
}

#[derive(Default)]
struct Keys {
    watched: HashMap<Key, Arc<Watched>>,
    /// Number of keys of all watchers.
    places: usize,
}

/// A key that is watched.
struct Watched {
    key: Key,
    changed: Arc<Notify>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// None before the first read.
    seen: Option<Arc<Seen>>,
    /// The watchers of the key, each with the key's place in its list.
    watchers: Vec<(Arc<Inbox>, usize)>,
}

/// What a read of a watched key has shown. The read before has shown something else.
pub struct Seen {
    pub key: Key,
    /// None if the key has no row.
    pub read: Result<Option<Arc<Held>>, ReadError>,
    /// Its texts, which all watchers share.
    texts: [OnceLock<Arc<str>>; 2],
}

/// Watches keys for one client, until it is dropped.
pub struct Watcher {
    watches: Arc<Watches>,
    inbox: Arc<Inbox>,
    keys: Vec<Arc<Watched>>,
}

/// The places of a watcher's keys that have changed.
#[derive(Debug, Default)]
struct Inbox {
    changed: Mutex<BTreeSet<usize>>,
    /// Notified if there is one.
    any: Notify,
}

/// The pod watches as many keys as it can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "this pod watches up to {} keys, and up to {} for all its watchers together; watch fewer keys, or ask again later",
    limits::WATCHED_KEYS_MAX,
    limits::WATCHED_PLACES_MAX
)]
pub struct TooManyWatched;

impl Watches {
    #[must_use]
    pub fn new(reader: Arc<Reader>, level: Level, context: &Context) -> Arc<Watches> {
        let changes = Arc::clone(&context.changes);
        let tasks = Tasks::counting(context.metrics.panics.clone());
        let turns = Semaphore::new(limits::WATCH_READS_AT_ONCE);
        Arc::new(Watches { reader, changes, level, keys: Mutex::default(), turns, tasks })
    }

    /// Watches no key yet.
    #[must_use]
    pub fn watcher(self: &Arc<Self>) -> Watcher {
        Watcher { watches: Arc::clone(self), inbox: Arc::default(), keys: Vec::new() }
    }

    /// Number of keys that are watched.
    #[must_use]
    pub fn count(&self) -> usize {
        lock(&self.keys).watched.len()
    }

    /// Reads a key until it has no watchers.
    async fn follow(self: Arc<Self>, watched: Arc<Watched>) {
        let following = Following { watches: &self, watched: &watched };
        panic_point(Task::Watch);
        loop {
            let turn =
                self.turns.acquire().await.expect("invariant: the semaphore is never closed");
            let read = self.reader.read(&watched.key, self.level, None).await;
            drop(turn);
            let begun = Instant::now();
            // Few at a time, so that updates need not wait until a thousand watchers have theirs.
            for some in watched.show(read).chunks(limits::WATCHERS_AT_ONCE) {
                some.iter().for_each(|inbox| inbox.any.notify_one());
                sleep(limits::WATCHERS_PAUSE).await;
            }
            // First the pause: many updates are one event.
            sleep_until(begun + limits::WATCH_EVENT_PAUSE).await;
            let _ = timeout_at(begun + limits::WATCH_READ_EVERY, watched.changed.notified()).await;
            let mut keys = lock(&self.keys);
            if lock(&watched.state).watchers.is_empty() {
                self.remove(&mut keys, &watched);
                return mem::forget(following);
            }
        }
    }

    fn remove(&self, keys: &mut Keys, watched: &Watched) {
        self.changes.forget(&watched.key);
        keys.watched.remove(&watched.key);
    }
}

/// The task that follows a key. It is dropped only by a panic.
struct Following<'a> {
    watches: &'a Watches,
    watched: &'a Watched,
}

impl Drop for Following<'_> {
    /// Those who watch the key learn of the bug, and later ones begin again.
    fn drop(&mut self) {
        self.watches.remove(&mut lock(&self.watches.keys), self.watched);
        let told = self.watched.show(Err(ReadError::Bug));
        told.iter().for_each(|inbox| inbox.any.notify_one());
    }
}

impl Watched {
    /// Notes the value for the watchers if it is another one, and returns those to be notified.
    fn show(&self, read: Result<Option<Arc<Held>>, ReadError>) -> Vec<Arc<Inbox>> {
        let mut state = lock(&self.state);
        if state.seen.as_ref().is_some_and(|seen| seen.is_like(&read)) {
            return Vec::new();
        }
        let seen = Seen { key: self.key.clone(), read, texts: [const { OnceLock::new() }; 2] };
        let before = state.seen.replace(Arc::new(seen));
        let told = |(inbox, place): &(Arc<Inbox>, usize)| {
            inbox.put(*place);
            Arc::clone(inbox)
        };
        let told = state.watchers.iter().map(told).collect();
        drop(state);
        drop(before);
        told
    }
}

impl Seen {
    fn is_like(&self, read: &Result<Option<Arc<Held>>, ReadError>) -> bool {
        match (&self.read, read) {
            (Ok(None), Ok(None)) => true,
            (Ok(Some(before)), Ok(Some(now))) => before.state == now.state,
            (Err(before), Err(now)) => before.to_string() == now.to_string(),
            _ => false,
        }
    }

    /// Its text in one of two forms, which is made once.
    pub fn text(&self, form: bool, make: impl FnOnce(&Seen) -> String) -> &Arc<str> {
        self.texts[usize::from(form)].get_or_init(|| make(self).into())
    }
}

impl Inbox {
    fn put(&self, place: usize) {
        lock(&self.changed).insert(place);
    }
}

impl Watcher {
    /// Watches one more key.
    ///
    /// # Errors
    /// [`TooManyWatched`]; the keys of before are still watched.
    pub fn add(&mut self, key: Key) -> Result<(), TooManyWatched> {
        let watches = &self.watches;
        let mut keys = lock(&watches.keys);
        let known = keys.watched.get(&key).cloned();
        if keys.places >= limits::WATCHED_PLACES_MAX
            || (known.is_none() && keys.watched.len() >= limits::WATCHED_KEYS_MAX)
        {
            return Err(TooManyWatched);
        }
        keys.places += 1;
        let place = self.keys.len();
        let watched = known.unwrap_or_else(|| {
            let changed = Arc::<Notify>::default();
            watches.changes.follow(key.clone(), Arc::clone(&changed));
            let watched = Watched { key: key.clone(), changed, state: Mutex::default() };
            let watched = Arc::new(watched);
            keys.watched.insert(key, Arc::clone(&watched));
            watches.tasks.spawn(Task::Watch, Arc::clone(watches).follow(Arc::clone(&watched)));
            watched
        });
        let mut state = lock(&watched.state);
        state.watchers.push((Arc::clone(&self.inbox), place));
        if state.seen.is_some() {
            self.inbox.put(place);
            self.inbox.any.notify_one();
        }
        drop(state);
        self.keys.push(watched);
        Ok(())
    }

    pub fn keys(&self) -> impl ExactSizeIterator<Item = &Key> {
        self.keys.iter().map(|watched| &watched.key)
    }

    /// Waits until keys have changed since the last call, and returns what they are now. At first, all keys have.
    pub async fn changed(&self) -> Vec<Arc<Seen>> {
        loop {
            let places = mem::take(&mut *lock(&self.inbox.changed));
            if !places.is_empty() {
                let seen = |place: usize| lock(&self.keys[place].state).seen.clone();
                return places.into_iter().filter_map(seen).collect();
            }
            self.inbox.any.notified().await;
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        lock(&self.watches.keys).places -= self.keys.len();
        for watched in &self.keys {
            let is_other = |(inbox, _): &(Arc<Inbox>, usize)| !Arc::ptr_eq(inbox, &self.inbox);
            lock(&watched.state).watchers.retain(is_other);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
