//! The hybrid logical clock of a pod (Kulkarni et al., "Logical physical clocks", 2014), in one number: µs
//! that follow the wall clock but never repeat or go back.
//!
//! Kinds in which the last writer wins take their times from it. A client that sends a time it has seen with
//! its next op gets a later time for that op, from any pod.

use std::time::Duration;

use thiserror::Error;

use super::Timestamp;

/// A hybrid logical clock; see the [module documentation](self).
#[derive(Debug)]
pub struct HybridClock {
    last: Timestamp,
    ahead_max: Duration,
}

/// A time that a client claims to have seen is further ahead than any honest pod could have put it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "`after` is {} ms ahead of this pod's clock, at most {} ms are allowed; send the `timestamp` of \
     an earlier answer, in µs since 1970",
    .ahead.as_millis(),
    .ahead_max.as_millis()
)]
pub struct Ahead {
    /// How far it is ahead.
    pub ahead: Duration,
    /// How far it is allowed to be ahead.
    pub ahead_max: Duration,
}

impl HybridClock {
    /// A clock whose times are later than `last`. It accepts seen times up to `ahead_max` beyond the wall
    /// clock; the clocks of two pods within the offset limit ε of true time differ by up to 2ε.
    #[must_use]
    pub fn new(ahead_max: Duration, last: Timestamp) -> HybridClock {
        HybridClock { last, ahead_max }
    }

    /// Takes in a time that did not come from this clock. Later times are later than it.
    pub fn note(&mut self, time: Timestamp) {
        self.last = self.last.max(time);
    }

    /// The next time: later than every earlier one and than `after`, and not before the wall clock.
    ///
    /// # Errors
    /// [`Ahead`]; then the clock has not changed.
    pub fn tick(&mut self, wall: Timestamp, after: Option<Timestamp>) -> Result<Timestamp, Ahead> {
        let ahead_max = self.ahead_max;
        if let Some(after) = after {
            if after > wall.plus(ahead_max) {
                return Err(Ahead { ahead: after.since(wall), ahead_max });
            }
            self.last = self.last.max(after);
        }
        self.last = self.last.next().max(wall);
        Ok(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    const BEGINNING: Timestamp = Timestamp::from_micros(0);

    #[test]
    fn a_new_clock_goes_on_where_another_one_ended() {
        let mut clock = HybridClock::new(Duration::from_micros(100), at(1_080));
        assert_eq!(clock.tick(at(1_000), None), Ok(at(1_081)));
    }

    #[test]
    fn time_follows_the_wall_and_never_stands_still() {
        let mut clock = HybridClock::new(Duration::from_micros(100), BEGINNING);
        let walls = [10, 10, 5, 12, 50];
        let times: Vec<_> = walls.iter().map(|wall| clock.tick(at(*wall), None)).collect();
        assert_eq!(times, [10, 11, 12, 13, 50].map(|time| Ok(at(time))));
    }

    #[test]
    fn a_client_that_hops_between_pods_is_never_behind_itself() {
        let (mut ahead, mut behind) = (
            HybridClock::new(Duration::from_micros(100), BEGINNING),
            HybridClock::new(Duration::from_micros(100), BEGINNING),
        );
        let seen = ahead.tick(at(1_080), None).expect("a time");
        let next = behind.tick(at(1_000), Some(seen)).expect("a time");
        assert_eq!(next, at(1_081));
        assert_eq!(behind.tick(at(1_001), None), Ok(at(1_082)));
    }

    #[test]
    fn a_time_from_the_future_is_refused_and_moves_nothing() {
        let mut clock = HybridClock::new(Duration::from_micros(100), BEGINNING);
        let error = clock.tick(at(1_000), Some(at(1_101))).expect_err("too far ahead");
        assert_eq!(error.ahead, Duration::from_micros(101));
        assert_eq!(clock.tick(at(1_000), Some(at(1_100))), Ok(at(1_101)));
        assert_eq!(clock.tick(at(1_000), None), Ok(at(1_102)), "its own time may run ahead");
    }
}
