//! The only module that reads a clock. All other code takes the time as a parameter.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use orderfree_core::protocol::{Now, Timestamp};
use rustix::time::{ClockId, clock_gettime};

/// A source of time. Tests inject their own.
pub trait Clock: Send + Sync + 'static {
    /// Reads the wall clock and the time since boot.
    fn now(&self) -> Now;
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Unlike CLOCK_MONOTONIC, it also runs while the machine is suspended: a lease must end then too.
        let boot = clock_gettime(ClockId::Boottime);
        Now {
            wall: Timestamp::from_micros(i64::try_from(wall.as_micros()).unwrap_or(i64::MAX)),
            boot: Duration::new(
                u64::try_from(boot.tv_sec).unwrap_or(0),
                u32::try_from(boot.tv_nsec).unwrap_or(0),
            ),
        }
    }
}
