//! Counts the ids that this pod stored and that no fold can have taken yet.
//!
//! A pod does not remember all of these ids: a full pack leaves its memory. So they are counted when they are
//! stored, by the expiry of their rows, and leave the count a cutoff after it.

use std::collections::BTreeMap;
use std::time::Duration;

use orderfree_core::protocol::{Constants, Now, Timestamp};

use crate::runtime::sync::{Mutex, PoisonError};

/// Expiries are rounded up to a multiple of this. So the count has a few thousand entries, however many groups
/// there are.
const STEP: Duration = Duration::from_secs(10);

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(super) struct AliveIds(Mutex<BTreeMap<Timestamp, Stored>>);

/// The ids of one expiry.
#[derive(Debug, Clone, Copy)]
struct Stored {
    count: usize,
    /// When the first one was stored, by the boot-time clock.
    since: Duration,
}

impl AliveIds {
    /// Counts ids that were stored in a row with this expiry.
    pub(super) fn add(&self, expires_at: Timestamp, count: usize, now: Now, constants: &Constants) {
        if count == 0 {
            return;
        }
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        forget(&mut all, now, constants);
        let step = expires_at.floor_to(STEP).plus(STEP);
        all.entry(step).or_insert(Stored { count: 0, since: now.boot }).count += count;
    }

    /// The number of ids, and the time since the first of them was stored.
    pub(super) fn look(&self, now: Now, constants: &Constants) -> (usize, Duration) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        forget(&mut all, now, constants);
        let oldest = all.values().map(|stored| stored.since).min();
        let age = oldest.map_or(Duration::ZERO, |since| now.boot.saturating_sub(since));
        (all.values().map(|stored| stored.count).sum(), age)
    }
}

/// Drops the ids that a fold can take.
fn forget(all: &mut BTreeMap<Timestamp, Stored>, now: Now, constants: &Constants) {
    let cut = now.wall.minus(constants.cutoff());
    while let Some(first) = all.first_entry()
        && *first.key() <= cut
    {
        first.remove();
    }
}

#[cfg(test)]
mod tests {
    use orderfree_core::protocol::Overrides;

    use super::*;

    #[test]
    fn ids_are_alive_until_a_fold_can_take_them() {
        let (alive, seconds) = (AliveIds::default(), Duration::from_secs);
        let constants = Constants::resolve(Overrides::default()).expect("consistent");
        let begin = Timestamp::from_micros(1_800_000_000_000_000);
        let at = |second| Now { wall: begin.plus(seconds(second)), boot: seconds(5 + second) };
        assert_eq!(alive.look(at(0), &constants), (0, seconds(0)));
        alive.add(begin.plus(seconds(95)), 2, at(0), &constants);
        alive.add(begin.plus(seconds(97)), 3, at(20), &constants);
        alive.add(begin.plus(seconds(300)), 4, at(30), &constants);
        alive.add(begin.plus(seconds(300)), 0, at(40), &constants);
        let end = constants.cutoff().as_secs();
        assert_eq!(alive.look(at(99 + end), &constants), (9, seconds(99 + end)));
        assert_eq!(alive.look(at(100 + end), &constants), (4, seconds(70 + end)));
        assert_eq!(alive.look(at(310 + end), &constants), (0, seconds(0)));
    }
}
