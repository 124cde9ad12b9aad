//! Points in time, passed as parameters: nothing in the core reads a clock.

use std::time::Duration;

/// A wall-clock time in microseconds since the Unix epoch, the unit of Cassandra's write timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The tally's `expires_at`: never.
    pub const NEVER: Timestamp = Timestamp(i64::MAX);

    /// From microseconds since the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Timestamp {
        Timestamp(micros)
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This time plus `span`, at most [`Timestamp::NEVER`].
    #[must_use]
    pub fn plus(self, span: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(micros(span)))
    }

    /// This time minus `span`.
    #[must_use]
    pub fn minus(self, span: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(micros(span)))
    }

    /// This time shifted by `offset_us` microseconds, which may be negative.
    #[must_use]
    pub fn shifted(self, offset_us: i64) -> Timestamp {
        Timestamp(self.0.saturating_add(offset_us))
    }

    /// The next microsecond.
    #[must_use]
    pub fn next(self) -> Timestamp {
        self.shifted(1)
    }

    /// This time rounded down to a multiple of `quantum`.
    ///
    /// # Panics
    /// If `quantum` is below one microsecond.
    #[must_use]
    pub fn floor_to(self, quantum: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(self.0.rem_euclid(micros(quantum))))
    }

    /// How long this time is after `earlier`; zero if it is not.
    #[must_use]
    pub fn since(self, earlier: Timestamp) -> Duration {
        let span = self.0.saturating_sub(earlier.0);
        Duration::from_micros(u64::try_from(span).unwrap_or(0))
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// One look at the two clocks of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The wall clock. It can be compared between machines, but it can be set forwards or backwards.
    pub wall: Timestamp,
    /// Time since boot, including suspension (`CLOCK_BOOTTIME`). It never goes back, but has a meaning only
    /// on this machine.
    pub boot: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_positive_and_times_saturate() {
        let (early, late) = (Timestamp::from_micros(-5), Timestamp::from_micros(7));
        assert_eq!(late.since(early), Duration::from_micros(12));
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!(late.plus(Duration::MAX), Timestamp::NEVER);
        assert_eq!(early.minus(Duration::MAX), Timestamp::from_micros(i64::MIN));
    }

    #[test]
    fn times_are_rounded_towards_the_past() {
        let floor = |micros| Timestamp::from_micros(micros).floor_to(Duration::from_micros(10));
        assert_eq!([floor(20), floor(29), floor(-1)].map(Timestamp::as_micros), [20, 20, -10]);
    }
}
