//! The only module that reads a clock. All other code takes the time as a parameter.

use std::path::PathBuf;
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

/// The machine's clocks with a shifted wall clock, for tests that shift it while a pod runs. The shift is
/// the number of ms in a file, or 0 without the file.
///
/// Each look at the clock reads the file, so a jump takes effect at once. No production pod uses this clock.
#[derive(Debug, Clone)]
pub struct ShiftedClock {
    file: PathBuf,
}

impl ShiftedClock {
    #[must_use]
    pub fn new(file: PathBuf) -> ShiftedClock {
        ShiftedClock { file }
    }
}

impl Clock for ShiftedClock {
    fn now(&self) -> Now {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        let shift_ms: i64 = text.trim().parse().unwrap_or(0);
        let Now { wall, boot } = SystemClock.now();
        let shifted = wall.as_micros().saturating_add(shift_ms.saturating_mul(1_000));
        Now { wall: Timestamp::from_micros(shifted), boot }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_off_by_what_its_file_says_and_only_on_the_wall() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("clock");
        let clock = ShiftedClock::new(file.clone());
        let is_off_by = |shift_ms: i64| {
            let (before, now, after) = (SystemClock.now(), clock.now(), SystemClock.now());
            assert!((before.boot..=after.boot).contains(&now.boot));
            let right = now.wall.shifted(-1_000 * shift_ms);
            assert!((before.wall..=after.wall).contains(&right), "off by {shift_ms} ms");
        };
        is_off_by(0);
        std::fs::write(&file, "-15000\n").expect("a file");
        is_off_by(-15_000);
        std::fs::write(&file, "nonsense").expect("a file");
        is_off_by(0);
    }
}
