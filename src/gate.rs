//! The gate: what keeps a pod from taking updates. It has one answer to "may this pod's clock be trusted
//! now?", from the store's samples and from every fence that was met (invariants I4 and I12). And it
//! remembers the keys whose tally was seen to be full.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lru::LruCache;
use orderfree_core::protocol::clock::{ClockError, FenceGuard};
use orderfree_core::protocol::{Constants, Key, Now, Timestamp};

use crate::clock::Clock;
use crate::limits;
use crate::metrics::Metrics;
use crate::store::{Pause, Store};

/// See the [module documentation](self).
pub struct Gate {
    clock: Arc<dyn Clock>,
    store: Arc<dyn Store>,
    constants: Constants,
    fences: Mutex<FenceGuard>,
    /// Whether the store's word that a clock moved was told.
    told: AtomicBool,
    /// When it was seen, by the boot-time clock.
    full: Mutex<LruCache<Key, Duration>>,
    /// How many they are, for updates of all other keys, which take no lock.
    full_count: AtomicUsize,
    metrics: Arc<Metrics>,
}

impl Gate {
    /// A gate over a store's samples.
    #[must_use]
    pub fn new(
        clock: Arc<dyn Clock>,
        store: Arc<dyn Store>,
        constants: Constants,
        metrics: Arc<Metrics>,
    ) -> Gate {
        Gate {
            clock,
            store,
            constants,
            fences: Mutex::default(),
            told: AtomicBool::default(),
            full: Mutex::new(limits::cache(limits::FULL_KEYS_MAX)),
            full_count: AtomicUsize::new(0),
            metrics,
        }
    }

    /// One look at the clocks.
    #[must_use]
    pub fn now(&self) -> Now {
        self.clock.now()
    }

    /// The time, if updates may be taken.
    ///
    /// # Errors
    /// [`ClockError`] says why not.
    pub fn open(&self) -> Result<Now, ClockError> {
        let now = self.now();
        let trusted = self.store.check_clock(now);
        self.fences().check(now.wall, &self.constants)?;
        self.tell(&trusted);
        trusted.map(|()| now)
    }

    /// Tells once that the store knows of a fence in this clock's future. Those that were read are told by
    /// [`Gate::observe`].
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

    /// The time that a fold may go by.
    ///
    /// # Errors
    /// [`Pause`] says why none may be planned.
    pub fn fold_time(&self) -> Result<Timestamp, Pause> {
        let now = self.open()?;
        self.store.fold_time(now)
    }

    /// Notes a fence that was read.
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

    /// Notes whether the tally of a key takes no further shard.
    pub fn observe_tally(&self, key: &Key, is_full: bool) {
        if !is_full && self.full_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        match is_full {
            true => drop(full.put(key.clone(), self.now().boot)),
            false => drop(full.pop(key)),
        }
        self.full_count.store(full.len(), Ordering::Relaxed);
        self.metrics.full_tallies.set(i64::try_from(full.len()).unwrap_or(i64::MAX));
    }

    /// Whether the tally of a key was full when it was last seen, not long ago: another pod may have
    /// made room since.
    #[must_use]
    pub fn is_full(&self, key: &Key) -> bool {
        if self.full_count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = full.get(key).copied();
        seen.is_some_and(|seen| self.now().boot < seen + limits::FULL_TIME_MAX)
    }

    fn fences(&self) -> std::sync::MutexGuard<'_, FenceGuard> {
        self.fences.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
