//! The clock guard. An embedded store has no second clock to compare with, so the file remembers the times of
//! its machine's clock. Keeps invariant I12.
//!
//! If a mutator is born at or below a fence, its acks are lost. At planning, a fence is below the wall clock,
//! so a new mutator can be below a fence only if the clock was set back since then. So memory holds the
//! highest wall time and the highest fence ever seen, and every transaction writes both: all contents of a
//! file were written at or before the time that it remembers. Checks cost no I/O.

use std::sync::atomic::{AtomicI64, Ordering};

use orderfree_core::protocol::clock::ClockError;
use orderfree_core::protocol::{Constants, Timestamp, fold};

/// The highest times that the store has seen.
#[derive(Debug)]
pub(super) struct ClockGuard {
    constants: Constants,
    wall_us: AtomicI64,
    fence_us: AtomicI64,
    stamp_us: AtomicI64,
}

/// The part of a guard that outlives the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Highest {
    pub(super) wall: Timestamp,
    pub(super) fence: Timestamp,
    /// The highest stamp of a last-writer-wins op.
    pub(super) stamp: Timestamp,
}

impl Highest {
    /// The values before anything was seen.
    pub(super) const NONE: Highest = {
        let never = Timestamp::from_micros(i64::MIN);
        Highest { wall: never, fence: never, stamp: never }
    };
}

impl ClockGuard {
    pub(super) fn new(constants: Constants, highest: Highest) -> ClockGuard {
        ClockGuard {
            constants,
            wall_us: AtomicI64::new(highest.wall.as_micros()),
            fence_us: AtomicI64::new(highest.fence.as_micros()),
            stamp_us: AtomicI64::new(highest.stamp.as_micros()),
        }
    }

    /// Notes a time unless it is behind. Later times are compared with it.
    ///
    /// # Errors
    /// [`ClockError::Behind`] if the clock is more than ε behind the highest time seen.
    pub(super) fn observe(&self, wall: Timestamp) -> Result<(), ClockError> {
        let before_us = self.wall_us.fetch_max(wall.as_micros(), Ordering::SeqCst);
        let behind = Timestamp::from_micros(before_us).since(wall);
        if behind > self.constants.clock_offset_max() {
            return Err(ClockError::Behind { behind });
        }
        Ok(())
    }

    /// Notes the fence of a fold before the fold is written: a fold that was possibly written also counts.
    pub(super) fn observe_fence(&self, fence: Timestamp) {
        self.fence_us.fetch_max(fence.as_micros(), Ordering::SeqCst);
    }

    /// Notes the stamp of a last-writer-wins op, before the op is written.
    pub(super) fn observe_stamp(&self, stamp: Timestamp) {
        self.stamp_us.fetch_max(stamp.as_micros(), Ordering::SeqCst);
    }

    /// Checks whether mutators may be born and folds planned at this time, and notes the time.
    ///
    /// # Errors
    /// [`ClockError::Behind`] or [`ClockError::Moved`].
    pub(super) fn check(&self, wall: Timestamp) -> Result<(), ClockError> {
        self.observe(wall)?;
        if fold::proves_moved_clock(self.highest().fence, wall, &self.constants) {
            return Err(ClockError::Moved);
        }
        Ok(())
    }

    pub(super) fn highest(&self) -> Highest {
        Highest {
            wall: Timestamp::from_micros(self.wall_us.load(Ordering::SeqCst)),
            fence: Timestamp::from_micros(self.fence_us.load(Ordering::SeqCst)),
            stamp: Timestamp::from_micros(self.stamp_us.load(Ordering::SeqCst)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orderfree_core::protocol::Overrides;

    const WALL: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    fn guard() -> (ClockGuard, Constants) {
        let constants = Constants::resolve(Overrides::default()).expect("defaults");
        (ClockGuard::new(constants, Highest::NONE), constants)
    }

    #[test]
    fn a_clock_may_be_behind_by_the_offset_limit_and_no_more() {
        let (guard, constants) = guard();
        assert_eq!(guard.check(WALL), Ok(()));
        let lowest = WALL.minus(constants.clock_offset_max());
        assert_eq!(guard.check(lowest), Ok(()));
        let behind = WALL.since(lowest.shifted(-1));
        assert_eq!(guard.check(lowest.shifted(-1)), Err(ClockError::Behind { behind }));
        assert_eq!(guard.highest().wall, WALL, "a time behind is not noted");
        assert_eq!(guard.check(WALL.next()), Ok(()));
    }

    #[test]
    fn a_fence_ahead_of_honest_clocks_shuts_until_time_catches_up() {
        let (guard, constants) = guard();
        let honest = WALL.minus(constants.cutoff()).plus(2 * constants.clock_offset_max());
        guard.observe_fence(honest);
        assert_eq!(guard.check(WALL), Ok(()));
        guard.observe_fence(honest.next());
        guard.observe_fence(honest);
        assert_eq!(guard.check(WALL), Err(ClockError::Moved));
        assert_eq!(guard.check(WALL.next()), Ok(()));
    }
}
