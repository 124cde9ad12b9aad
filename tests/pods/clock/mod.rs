//! A clock for pods in the process of a test.

use std::sync::atomic::{AtomicI64, Ordering};

use orderfree::runtime::clock::{Clock, SystemClock};
use orderfree_core::protocol::Now;

/// The clocks of the machine. A test can shift the wall clock.
#[derive(Debug, Default)]
pub(crate) struct ShiftedClock {
    ahead_us: AtomicI64,
}

impl ShiftedClock {
    pub(crate) fn set_ahead(&self, seconds: i64) {
        self.ahead_us.store(seconds * 1_000_000, Ordering::SeqCst);
    }
}

impl Clock for ShiftedClock {
    fn now(&self) -> Now {
        let Now { wall, boot } = SystemClock.now();
        Now { wall: wall.shifted(self.ahead_us.load(Ordering::SeqCst)), boot }
    }
}
