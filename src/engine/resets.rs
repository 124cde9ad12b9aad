//! What this pod knows of resets. Mutators and readers ask it; [`resetter`](super::resetter) keeps it up to date. Without
//! a log in the store it is switched off and costs one look at a flag.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use orderfree_core::crdt::envelope;
use orderfree_core::protocol::generation::{Generation, Remembered};
#[cfg(test)]
use orderfree_core::protocol::reset::bucket;
use orderfree_core::protocol::reset::{Fate, Log, LogRow, Shut, Side};
use orderfree_core::protocol::{Constants, FullRead, Key, Now, Timestamp};

use crate::runtime::sync::lock;

/// How long a pod that found no log may take updates without another look for it.
const ABSENT_LEASE: Duration = Duration::from_secs(60);

/// What this pod knows of resets.
pub struct Resets {
    /// Whether the store has a log.
    pub(super) is_on: AtomicBool,
    /// When the last look for a log began that found none. None if no log can appear.
    pub(super) absent: Mutex<Option<Duration>>,
    log: Mutex<Log>,
    /// Rows that tallies remember and the log has lost.
    pub(super) lost: Mutex<Vec<LogRow>>,
    constants: Constants,
}

impl Resets {
    /// Switched off.
    #[must_use]
    pub fn new(constants: Constants) -> Resets {
        Resets {
            is_on: AtomicBool::new(false),
            absent: Mutex::default(),
            log: Mutex::default(),
            lost: Mutex::default(),
            constants,
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Whether an update of the key with ops of this side can be taken now. Returns the least stamp for its mutator.
    /// `until` is the expiry of a pack.
    ///
    /// # Errors
    /// [`Shut`].
    pub fn admit(
        &self,
        key: &Key,
        until: Option<Timestamp>,
        side: Side,
        now: Now,
    ) -> Result<Option<Generation>, Shut> {
        match self.is_on() {
            true => self.log().admit(key, until, side, now, &self.constants),
            false => match self.absence_age(now.boot) {
                None => Ok(None),
                Some(age) => Err(Shut::Unread(age)),
            },
        }
    }

    /// The time since this pod last found that there is no log, if that is too long ago.
    pub(super) fn absence_age(&self, boot: Duration) -> Option<Duration> {
        let found = (*lock(&self.absent))?;
        Some(boot.saturating_sub(found)).filter(|age| *age >= ABSENT_LEASE)
    }

    /// The last reset of the key that is remembered.
    pub fn last(&self, key: &Key) -> Option<Generation> {
        self.is_on().then(|| self.log().stamp(key)).flatten()
    }

    /// Whether a mutator with this stamp takes further ops.
    pub fn takes(&self, key: &Key, stamp: Option<Generation>) -> bool {
        !self.is_on() || self.log().takes(key, stamp)
    }

    /// Whether a write of a row with this stamp can be acknowledged. `now` was read after the store's answer.
    pub fn fate(&self, key: &Key, stamp: Option<Generation>, now: Now) -> Fate {
        match self.is_on() {
            true => self.log().fate(key, stamp, now.boot, &self.constants),
            false if self.absence_age(now.boot).is_some() => Fate::Waits,
            false => Fate::Stands,
        }
    }

    /// Whether the row of a mutator with this stamp may hold ops of this side.
    ///
    /// # Errors
    /// [`Shut::OtherSide`].
    pub fn check_side(&self, side: Side, stamp: Option<Generation>) -> Result<(), Shut> {
        match side == Side::Any || !self.is_on() {
            true => Ok(()),
            false => self.log().check_side(side, stamp, &self.constants),
        }
    }

    /// Whether a mutator with this stamp is the first one of its key since that reset. Only the first call says so.
    pub fn is_first_birth(&self, key: &Key, stamp: Option<Generation>) -> bool {
        stamp.is_some() && self.is_on() && self.log().is_first_birth(key, stamp)
    }

    /// Notes the reset that a tally remembers.
    pub fn met(&self, key: &Key, reset: &Remembered, now: Timestamp) {
        if !self.is_on() {
            return;
        }
        let lost = self.log().met(key, reset, now, &self.constants);
        if let Some(row) = lost {
            tracing::error!(
                %key,
                generation = row.generation.time().as_micros(),
                "the log of resets has lost a reset of this key; was the table restored alone?"
            );
            lock(&self.lost).push(row);
        }
    }

    /// Notes the reset that the tally of a whole key remembers.
    pub fn met_in(&self, read: &FullRead, now: Timestamp) {
        let reset = read.slice().tally().and_then(|row| envelope::reset(&row.state));
        if let Some(reset) = reset {
            self.met(read.key(), &reset, now);
        }
    }

    pub(super) fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    /// The store has a log, and a look at the part of a key showed these rows.
    #[cfg(test)]
    pub(crate) fn see(&self, key: &Key, began: Now, rows: &[LogRow]) {
        self.is_on.store(true, Ordering::Relaxed);
        let part = bucket(key.kind, &key.group);
        let asked = self.log().look_after(part, began, &self.constants);
        rows.iter().for_each(|row| self.log().saw(part, row));
        self.log().looked(part, began, asked, rows);
    }

    /// The store has no log, as a look that began now has found, and one can appear.
    #[cfg(test)]
    pub(crate) fn see_no_log(&self, now: Now) {
        *lock(&self.absent) = Some(now.boot);
    }

    /// The store has a log, which was not read yet.
    #[cfg(test)]
    pub(crate) fn see_nothing(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }
}
