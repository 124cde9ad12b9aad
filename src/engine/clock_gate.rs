//! The clock gate decides whether a pod accepts updates. It answers "can this pod's clock be trusted now?"
//! from the store's samples and from every fence that was read (invariants I4 and I12). It also remembers the
//! keys whose tally is full, and those with too many ids.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lru::LruCache;
use orderfree_core::protocol::clock::{ClockError, FenceGuard};
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::{Constants, Key, Now, Timestamp};

use crate::engine::metrics::Metrics;
use crate::limits;
use crate::runtime::clock::Clock;
use crate::store::{Pause, StoreClock};

/// See the [module documentation](self).
pub struct ClockGate {
    clock: Arc<dyn Clock>,
    store: Arc<dyn StoreClock>,
    constants: Constants,
    fences: Mutex<FenceGuard>,
    /// Whether the store's finding that a clock moved was logged.
    told: AtomicBool,
    /// Keys with a full tally.
    full: SeenKeys,
    /// Keys with too many ids.
    crowded: SeenKeys,
    metrics: Arc<Metrics>,
}

/// Keys of which a read or a fold has seen something.
struct SeenKeys {
    /// When it was seen, by the boot-time clock, and the last reset that the tally remembered then.
    keys: Mutex<LruCache<Key, (Duration, Option<Generation>)>>,
    /// Length of `keys`. While it is 0, updates need no lock.
    count: AtomicUsize,
    /// How long it is remembered.
    time_max: Duration,
}

impl SeenKeys {
    fn new(keys_max: NonZeroUsize, time_max: Duration) -> SeenKeys {
        let keys = Mutex::new(limits::cache(keys_max));
        SeenKeys { keys, count: AtomicUsize::new(0), time_max }
    }

    /// Notes that it was seen of this key, or that it was not. Returns the number of keys.
    fn note(&self, key: &Key, is_seen: bool, reset: Option<Generation>, now: Now) -> usize {
        if !is_seen && self.count.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        match is_seen {
            true => drop(keys.put(key.clone(), (now.boot, reset))),
            false => drop(keys.pop(key)),
        }
        self.count.store(keys.len(), Ordering::Relaxed);
        keys.len()
    }

    /// Whether it was seen of this key since its last reset. Forgets after a while, because another pod can have changed it
    /// since.
    fn has(
        &self,
        key: &Key,
        last_reset: impl Fn() -> Option<Generation>,
        now: impl Fn() -> Now,
    ) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = keys.get(key).copied();
        seen.is_some_and(|(seen, reset)| now().boot < seen + self.time_max && last_reset() <= reset)
    }
}

impl ClockGate {
    #[must_use]
    pub fn new(
        clock: Arc<dyn Clock>,
        store: Arc<dyn StoreClock>,
        constants: Constants,
        metrics: Arc<Metrics>,
    ) -> ClockGate {
        ClockGate {
            clock,
            store,
            constants,
            fences: Mutex::default(),
            told: AtomicBool::default(),
            full: SeenKeys::new(limits::FULL_KEYS_MAX, limits::FULL_TIME_MAX),
            crowded: SeenKeys::new(limits::CROWDED_KEYS_MAX, limits::KEY_IDS_TIME_MAX),
            metrics,
        }
    }

    /// Reads the clocks.
    #[must_use]
    pub fn now(&self) -> Now {
        self.clock.now()
    }

    /// Returns the time if the pod can accept updates.
    ///
    /// # Errors
    /// [`ClockError`]: why the clock can't be trusted.
    pub fn open(&self) -> Result<Now, ClockError> {
        let now = self.now();
        let trusted = self.store.check_clock(now);
        self.fences().check(now.wall, &self.constants)?;
        self.tell(&trusted);
        trusted.map(|()| now)
    }

    /// Logs once that the store knows of a fence in this clock's future. [`ClockGate::observe`] logs fences
    /// that this pod read.
    fn tell(&self, trusted: &Result<(), ClockError>) {
        let is_moved = *trusted == Err(ClockError::Moved);
        if self.told.load(Ordering::Relaxed) == is_moved {
            return;
        }
        if !self.told.swap(is_moved, Ordering::Relaxed) && is_moved {
            self.metrics.clock_moved.inc();
            tracing::error!(
                "{}; updates and folds wait until this clock has caught up",
                ClockError::Moved
            );
        }
    }

    /// Returns the time to use for a fold.
    ///
    /// # Errors
    /// [`Pause`]: why no fold can be planned.
    pub fn fold_time(&self) -> Result<Timestamp, Pause> {
        let now = self.open()?;
        self.store.fold_time(now)
    }

    /// The nodes that did not answer lately, for people.
    #[must_use]
    pub fn silent_nodes(&self) -> Vec<String> {
        self.store.silent_nodes()
    }

    /// Checks whether a quorum of the local data centre has answered lately.
    ///
    /// # Errors
    /// Since when none has, for people.
    pub fn check_quorum(&self) -> Result<(), String> {
        self.store.check_quorum()
    }

    /// Measures the clock offset. Only the metrics need it.
    pub fn measure_offset(&self) {
        if let Some(offset_us) = self.store.clock_offset_us() {
            self.metrics.clock_offset_us.set(offset_us);
        }
        self.metrics.store_quorum.set(i64::from(self.check_quorum().is_ok()));
    }

    /// Records a fence that was read.
    pub fn observe(&self, fence: Timestamp) {
        let now = self.now().wall;
        if self.fences().observe(fence, now, &self.constants) {
            self.metrics.clock_moved.inc();
            tracing::error!(
                fence = fence.as_micros(),
                now = now.as_micros(),
                "a fold's fence lies in this clock's future: a clock has moved; updates and folds \
                 wait until this clock has caught up"
            );
        }
    }

    /// Records whether the tally of a key, which remembers this reset, has no room for another shard.
    pub fn observe_tally(&self, key: &Key, is_full: bool, reset: Option<Generation>) {
        let full = self.full.note(key, is_full, reset, self.now());
        self.metrics.full_tallies.set(i64::try_from(full).unwrap_or(i64::MAX));
    }

    /// Whether the tally of a key was full when last seen. A later reset has emptied it.
    #[must_use]
    pub fn is_full(&self, key: &Key, last_reset: impl Fn() -> Option<Generation>) -> bool {
        self.full.has(key, last_reset, || self.now())
    }

    /// Records how many ids are in the rows of a key.
    pub fn observe_ids(&self, key: &Key, ids: usize) {
        self.crowded.note(key, ids > limits::KEY_IDS_MAX, None, self.now());
    }

    /// Whether a key had too many ids when last read.
    #[must_use]
    pub fn has_too_many_ids(&self, key: &Key) -> bool {
        // A reset lists the ids of the key, and they stay in its rows.
        self.crowded.has(key, || None, || self.now())
    }

    fn fences(&self) -> std::sync::MutexGuard<'_, FenceGuard> {
        self.fences.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
