//! Watched keys: each is read while it has watchers, and they get its new values.
//!
//! A key has one task and one read at a time, however many watch it. The task reads when an update of this pod was
//! acknowledged, and once a second for the updates of other pods. It keeps the texts that it made of the last value, and not
//! the value. A watcher holds the places of keys that have changed, and gets their latest texts when its client takes more.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orderfree_core::protocol::Key;
use orderfree_core::protocol::consistency::Level;
use thiserror::Error;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::engine::Context;
use crate::engine::changes::Changes;
use crate::engine::memory::{MemoryBudget, MemoryPermit};
use crate::engine::read::{ReadError, ReadOutcome, Reader};
use crate::limits;
use crate::policy::WatchRoom;
use crate::runtime::sync::lock;
use crate::runtime::tasks::{Task, Tasks, panic_point};
use crate::store::Sight;

/// The keys that are watched here.
pub struct Watches {
    reader: Arc<Reader>,
    changes: Arc<Changes>,
    level: Level,
    keys: Mutex<Keys>,
    /// The room for keys of all watchers together, and for their groups.
    places: Arc<Semaphore>,
    /// Reads of watched keys that run at once.
    turns: Semaphore,
    /// Memory for texts.
    memory: MemoryBudget,
    tasks: Tasks,
}

/// Writes the result of a read, and what it surely saw, as a text in one of two forms.
pub type Write = fn(&Key, &ReadOutcome, &Sight, bool) -> Text;

/// The text that a pod sends to the watchers of a key.
#[derive(Debug, PartialEq, Eq)]
pub struct Text {
    pub data: String,
    /// The entity tag of the value. The data of equal values can differ. None if there is no value.
    pub tag: Option<String>,
    /// The key has no row.
    pub is_absent: bool,
    /// The key is not followed any more, because a bug made a read fail.
    pub is_last: bool,
}

type Keys = HashMap<Key, Arc<Watched>>;

/// A key that is watched.
struct Watched {
    key: Key,
    write: Write,
    changed: Arc<Notify>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The latest text of each form that a watcher wants. None before the first read.
    texts: [Option<Kept>; 2],
    watchers: Vec<Place>,
}

/// A text, with its part of the memory for texts.
struct Kept {
    text: Arc<Text>,
    _memory: Option<MemoryPermit>,
}

/// A watcher of a key.
struct Place {
    inbox: Arc<Inbox>,
    /// The place of the key in the watcher's list.
    place: usize,
    form: bool,
    /// The permit for this key from the watcher's token. All watchers of the token that watch the key share it.
    of_token: Option<Arc<OwnedSemaphorePermit>>,
    _permit: WatchPermit,
}

/// The room for a key of a watcher or for its group, until it is dropped.
#[must_use]
pub struct WatchPermit {
    _of_all: OwnedSemaphorePermit,
    _of_token: Option<OwnedSemaphorePermit>,
}

/// Watches keys for one client, until it is dropped.
pub struct Watcher {
    watches: Arc<Watches>,
    write: Write,
    form: bool,
    /// What the client's token can still watch.
    room: Option<WatchRoom>,
    inbox: Arc<Inbox>,
    /// By their places.
    keys: Vec<Option<Arc<Watched>>>,
    /// Places without a key.
    free: Vec<usize>,
    /// The place that was taken last.
    last: usize,
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
    "this pod watches up to {} keys, and up to {} for all its watchers together, and one token can have half of each; \
     watch fewer keys, or ask again later",
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
        let memory = MemoryBudget::new(limits::WATCHED_BYTES_MAX);
        let places = Arc::new(Semaphore::new(limits::WATCHED_PLACES_MAX));
        let keys = Mutex::default();
        Arc::new(Watches { reader, changes, level, keys, places, turns, memory, tasks })
    }

    /// Watches no key yet. `write` makes its texts, in this form. `room` is that of the client's token, if it has a limit.
    #[must_use]
    pub fn watcher(self: &Arc<Self>, write: Write, form: bool, room: Option<WatchRoom>) -> Watcher {
        let (watches, inbox) = (Arc::clone(self), Arc::default());
        let (keys, free) = (Vec::new(), Vec::new());
        Watcher { watches, write, form, room, inbox, keys, free, last: 0 }
    }

    /// Number of keys that are watched.
    #[must_use]
    pub fn count(&self) -> usize {
        lock(&self.keys).len()
    }

    /// Reads a key until it has no watchers.
    async fn follow(self: Arc<Self>, watched: Arc<Watched>) {
        let following = Following { watches: &self, watched: &watched };
        panic_point(Task::Watch);
        loop {
            let begun = Instant::now();
            let shown = self.read(&watched).await;
            let took = begun.elapsed();
            let told = watched.show(&shown, &self);
            drop(shown);
            for some in told.chunks(part_of(told.len())) {
                some.iter().for_each(|inbox| inbox.any.notify_one());
                sleep(limits::WATCHERS_PAUSE).await;
            }
            drop(told);
            // First the pause: many updates are one event. A key that is slow to read rests as long as its read took.
            sleep(limits::WATCH_EVENT_PAUSE.max(took)).await;
            // An update of another pod that came just too late for this read must be told by the next one in time.
            let until = begun + watched.read_within().saturating_sub(took).max(2 * took);
            let _ = timeout_at(until, watched.changed.notified()).await;
            let mut keys = lock(&self.keys);
            if lock(&watched.state).watchers.is_empty() {
                self.remove(&mut keys, &watched);
                return mem::forget(following);
            }
        }
    }

    /// Reads a key. Large ones have limits of their own, and need no turn.
    async fn read(&self, watched: &Watched) -> ReadOutcome {
        let _turn = match watched.key.kind.about().is_small() {
            true => Some(self.turns.acquire().await.expect("invariant: it is never closed")),
            false => None,
        };
        let read = self.reader.read(&watched.key, self.level, None);
        match timeout(limits::WATCH_READ_TIME_MAX, read).await {
            Ok(shown) => shown,
            Err(_) => Err(ReadError::Overloaded("the read of the key took too long")),
        }
    }

    fn remove(&self, keys: &mut Keys, watched: &Watched) {
        self.changes.forget(&watched.key);
        keys.remove(&watched.key);
    }
}

/// The task that follows a key. It is dropped only by a panic.
struct Following<'a> {
    watches: &'a Watches,
    watched: &'a Watched,
}

impl Drop for Following<'_> {
    /// The watchers of the key learn of the bug, and later ones begin again.
    fn drop(&mut self) {
        self.watches.remove(&mut lock(&self.watches.keys), self.watched);
        let told = self.watched.show(&Err(ReadError::Bug), self.watches);
        told.iter().for_each(|inbox| inbox.any.notify_one());
    }
}

impl Watched {
    /// Notes the texts for the watchers if they are other ones, and returns those to be notified.
    fn show(&self, shown: &ReadOutcome, watches: &Watches) -> Vec<Arc<Inbox>> {
        let wanted = |form: bool| lock(&self.state).watchers.iter().any(|place| place.form == form);
        let texts = [false, true].map(|form| wanted(form).then(|| self.text(shown, form, watches)));
        let mut state = lock(&self.state);
        let State { texts: kept, watchers } = &mut *state;
        let mut told = Vec::new();
        for (form, text) in [false, true].into_iter().zip(texts) {
            let kept = &mut kept[usize::from(form)];
            if let (Some(text), Some(kept)) = (&text, &*kept)
                && text.is_like(kept)
            {
                continue;
            }
            *kept = text;
            for place in watchers.iter().filter(|place| place.form == form) {
                place.inbox.put(place.place);
                told.push(Arc::clone(&place.inbox));
            }
        }
        told
    }

    /// The time in which an update of another pod must have been read, so that all watchers are told in time.
    fn read_within(&self) -> Duration {
        let count = lock(&self.state).watchers.len();
        let parts = u32::try_from(count.div_ceil(part_of(count))).unwrap_or(u32::MAX);
        limits::WATCH_TOLD_WITHIN.saturating_sub(limits::WATCHERS_PART_TIME * parts)
    }

    /// Removes a watcher's place if the key is absent, and the watcher has taken that text.
    fn leave_if_absent(&self, inbox: &Arc<Inbox>, place: usize, form: bool) -> bool {
        let mut state = lock(&self.state);
        let kept = state.texts[usize::from(form)].as_ref();
        let leaves = kept.is_some_and(|kept| kept.text.is_absent) && !inbox.has(place);
        if leaves {
            state.watchers.retain(|at| at.place != place || !Arc::ptr_eq(&at.inbox, inbox));
        }
        leaves
    }

    fn text(&self, shown: &ReadOutcome, form: bool, watches: &Watches) -> Kept {
        let sight = watches.reader.sight(watches.level);
        let text = (self.write)(&self.key, shown, &sight, form);
        let memory = match text.data.len() <= limits::WATCHED_TEXT_BYTES_MAX {
            true => watches.memory.take(text.data.len()),
            false => None,
        };
        match memory {
            None if shown.is_ok() => {
                let too_large = Err(ReadError::TooLargeToWatch);
                let text = (self.write)(&self.key, &too_large, &sight, form);
                Kept { text: Arc::new(text), _memory: None }
            }
            memory => Kept { text: Arc::new(text), _memory: memory },
        }
    }
}

/// How many of this many watchers are told at once.
fn part_of(watchers: usize) -> usize {
    watchers.div_ceil(limits::WATCHERS_PARTS_MAX).max(limits::WATCHERS_AT_ONCE)
}

impl Kept {
    fn is_like(&self, other: &Kept) -> bool {
        match (&self.text.tag, &other.text.tag) {
            (Some(one), Some(other)) => one == other,
            _ => self.text == other.text,
        }
    }
}

impl Inbox {
    fn put(&self, place: usize) {
        lock(&self.changed).insert(place);
    }

    fn has(&self, place: usize) -> bool {
        lock(&self.changed).contains(&place)
    }

    /// The next place after this one, or else the first.
    fn take(&self, after: usize) -> Option<usize> {
        let mut changed = lock(&self.changed);
        let next = changed.range((Bound::Excluded(after), Bound::Unbounded)).next();
        let place = *next.or(changed.first())?;
        changed.remove(&place);
        Some(place)
    }
}

impl Watcher {
    /// Takes the room for a key or for a group.
    ///
    /// # Errors
    /// [`TooManyWatched`].
    pub fn permit(&self) -> Result<WatchPermit, TooManyWatched> {
        let of_token = self.room.as_ref().map(|room| take(&room.places)).transpose()?;
        Ok(WatchPermit { _of_all: take(&self.watches.places)?, _of_token: of_token })
    }

    /// Watches one more key.
    ///
    /// # Errors
    /// [`TooManyWatched`]; the watcher keeps the keys that it has.
    pub fn add(&mut self, key: Key) -> Result<(), TooManyWatched> {
        let permit = self.permit()?;
        let watches = &self.watches;
        let mut keys = lock(&watches.keys);
        let known = keys.get(&key).cloned();
        if known.is_none() && keys.len() >= limits::WATCHED_KEYS_MAX {
            return Err(TooManyWatched);
        }
        let of_token = self.of_token(known.as_deref())?;
        let place = self.free.pop().unwrap_or(self.keys.len());
        let (write, form, is_known) = (self.write, self.form, known.is_some());
        let watched = known.unwrap_or_else(|| {
            let changed = Arc::<Notify>::default();
            watches.changes.follow(key.clone(), Arc::clone(&changed));
            let watched = Watched { key: key.clone(), write, changed, state: Mutex::default() };
            let watched = Arc::new(watched);
            keys.insert(key, Arc::clone(&watched));
            watches.tasks.spawn(Task::Watch, Arc::clone(watches).follow(Arc::clone(&watched)));
            watched
        });
        let mut state = lock(&watched.state);
        let inbox = Arc::clone(&self.inbox);
        state.watchers.push(Place { inbox, place, form, of_token, _permit: permit });
        match state.texts[usize::from(form)] {
            Some(_) => {
                self.inbox.put(place);
                self.inbox.any.notify_one();
            }
            // Others can watch the key in another form.
            None if is_known => watched.changed.notify_one(),
            None => {}
        }
        drop(state);
        match self.keys.get_mut(place) {
            Some(free) => *free = Some(watched),
            None => self.keys.push(Some(watched)),
        }
        Ok(())
    }

    /// The permit for a key from the client's token. The token's first watcher of the key takes it. Later ones share it.
    fn of_token(
        &self,
        known: Option<&Watched>,
    ) -> Result<Option<Arc<OwnedSemaphorePermit>>, TooManyWatched> {
        let Some(WatchRoom { keys, .. }) = &self.room else { return Ok(None) };
        let is_mine = |mine: &&Arc<OwnedSemaphorePermit>| Arc::ptr_eq(mine.semaphore(), keys);
        let mine = known.and_then(|watched| {
            let state = lock(&watched.state);
            let mut all = state.watchers.iter().filter_map(|place| place.of_token.as_ref());
            all.find(is_mine).cloned()
        });
        match mine {
            Some(mine) => Ok(Some(mine)),
            None => Ok(Some(Arc::new(take(keys)?))),
        }
    }

    /// Stops watching those of these keys that are absent, once the client knows it.
    pub fn leave_absent(&mut self, is_gone: impl Fn(&Key) -> bool) {
        for (place, slot) in self.keys.iter_mut().enumerate() {
            let is_left = slot.as_ref().is_some_and(|watched| {
                is_gone(&watched.key) && watched.leave_if_absent(&self.inbox, place, self.form)
            });
            if is_left {
                *slot = None;
                self.free.push(place);
            }
        }
    }

    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.keys.iter().flatten().map(|watched| &watched.key)
    }

    /// Waits until a key has changed since its text was taken last, and returns its place and its text. At first, all
    /// keys have. If several have, they take turns. Nothing is lost if this is dropped.
    pub async fn changed(&mut self) -> (usize, Arc<Text>) {
        loop {
            while let Some(place) = self.inbox.take(self.last) {
                self.last = place;
                let Some(watched) = &self.keys[place] else { continue };
                let texts = &lock(&watched.state).texts;
                if let Some(kept) = &texts[usize::from(self.form)] {
                    return (place, Arc::clone(&kept.text));
                }
            }
            self.inbox.any.notified().await;
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        for watched in self.keys.iter().flatten() {
            let is_other = |place: &Place| !Arc::ptr_eq(&place.inbox, &self.inbox);
            lock(&watched.state).watchers.retain(is_other);
        }
    }
}

fn take(room: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, TooManyWatched> {
    Arc::clone(room).try_acquire_owned().map_err(|_| TooManyWatched)
}
