//! Counts how often each key was born today, in little memory.
//!
//! Each birth adds a row, and every read of the key must merge it until it is folded. If mutators at rest
//! are evicted for lack of memory, a key can be born again and again; this module detects such keys. With
//! short lifetimes, the count restarts more often than daily, so a key that is always in use is never
//! refused for its births.
//!
//! A count-min sketch (Cormode and Muthukrishnan, "An improved data stream summary", 2005) with
//! conservative update (Estan and Varghese, "New directions in traffic measurement and accounting",
//! 2002) never counts too little. It counts too much if keys share cells, so the limit rises with the average
//! of a row. A pod with very many births a day therefore limits fewer keys, never wrong ones.

use std::time::Duration;

use orderfree_core::protocol::{Constants, Now};

use crate::limits::BIRTHS_MAX;

const ROWS: usize = 4;

/// Cells of a row and of a page. A page is allocated on first use.
const CELLS: usize = 1 << 20;
const PAGE: usize = 1 << 12;

const DAY: Duration = Duration::from_secs(24 * 3600);

type Page = Box<[u8; PAGE]>;

/// See the [module documentation](self).
pub(super) struct Births {
    /// A day, or less with short lifetimes.
    period: Duration,
    /// Number of the period since boot.
    current: u64,
    total: u64,
    /// Whether any key has reached the limit.
    has_spent: bool,
    pages: Vec<Option<Page>>,
}

impl Births {
    pub(super) fn new(constants: &Constants) -> Births {
        let takes_ops = constants.lifetime() - constants.drain_margin();
        let ordinary = u32::from(BIRTHS_MAX) / 2;
        Births::of_period(DAY.min(takes_ops.saturating_mul(ordinary)))
    }

    fn of_period(period: Duration) -> Births {
        let pages = (0..ROWS * CELLS / PAGE).map(|_| None).collect();
        Births { period, current: 0, total: 0, has_spent: false, pages }
    }

    /// Counts a birth of the key with this hash.
    pub(super) fn note(&mut self, hash: u64, now: Now) {
        let current = self.period_of(now);
        if self.current != current {
            *self = Births { current, ..Births::of_period(self.period) };
        }
        self.total += 1;
        let least = self.count(hash);
        for cell in cells(hash) {
            let page = self.pages[cell / PAGE].get_or_insert_with(|| Box::new([0; PAGE]));
            let count = &mut page[cell % PAGE];
            // A higher cell already includes other keys.
            *count = (*count).max(least.saturating_add(1));
        }
        self.has_spent |= self.is_at_limit(hash);
    }

    /// Whether the key has reached its daily limit of births.
    pub(super) fn is_spent(&self, hash: u64, now: Now) -> bool {
        self.has_spent && self.current == self.period_of(now) && self.is_at_limit(hash)
    }

    fn period_of(&self, now: Now) -> u64 {
        // Lifetimes are milliseconds at least.
        let periods = now.boot.as_millis() / self.period.as_millis().max(1);
        u64::try_from(periods).unwrap_or(u64::MAX)
    }

    fn is_at_limit(&self, hash: u64) -> bool {
        u64::from(self.count(hash)) >= u64::from(BIRTHS_MAX) + self.total / CELLS as u64
    }

    fn count(&self, hash: u64) -> u8 {
        let count =
            |cell: usize| self.pages[cell / PAGE].as_ref().map_or(0, |page| page[cell % PAGE]);
        cells(hash).map(count).min().unwrap_or(0)
    }
}

/// Keys that got a row today or yesterday. A pack of such a key is no new key: a key has a pack for each window
/// of its ids. Two days, because at the end of a day all keys in use would be new at once. If keys share
/// cells, a new key can look known, and no known key looks new.
pub(super) struct KnownKeys {
    today: Births,
    yesterday: Births,
}

impl KnownKeys {
    pub(super) fn new() -> KnownKeys {
        KnownKeys { today: Births::of_period(DAY), yesterday: Births::of_period(DAY) }
    }

    /// Notes that the key with this hash gets a row.
    pub(super) fn note(&mut self, hash: u64, now: Now) {
        let current = self.today.period_of(now);
        if self.today.current != current {
            let today = Births { current, ..Births::of_period(DAY) };
            self.yesterday = std::mem::replace(&mut self.today, today);
        }
        self.today.note(hash, now);
    }

    /// Whether the key with this hash got a row today or yesterday.
    pub(super) fn has(&self, hash: u64, now: Now) -> bool {
        let current = self.today.period_of(now);
        let counts = |births: &Births| births.current + 1 >= current && births.count(hash) > 0;
        counts(&self.today) || counts(&self.yesterday)
    }
}

/// The cell of a key in each row.
fn cells(hash: u64) -> impl Iterator<Item = usize> {
    (0..ROWS).map(move |row| {
        // The finalizer of SplitMix64, with another seed for each row.
        let mut mixed = hash ^ (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        #[allow(clippy::cast_possible_truncation, reason = "any bits of a hash will do")]
        let cell = mixed as usize % CELLS;
        row * CELLS + cell
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use orderfree_core::protocol::{Overrides, Timestamp};

    fn on_day(day: u32) -> Now {
        Now { wall: Timestamp::from_micros(1), boot: day * DAY + Duration::from_secs(5) }
    }

    /// A hash as from a random key.
    fn hash(of: u64) -> u64 {
        of.wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(32) ^ of
    }

    #[test]
    fn a_key_that_is_used_all_the_time_is_never_spent() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let short = Overrides {
            lifetime: seconds(60),
            drain_margin: seconds(10),
            cutoff: seconds(30),
            ..Overrides::default()
        };
        let mut births = Births::new(&Constants::resolve(short).expect("consistent"));
        for birth in 0..5_000 {
            let boot = birth * Duration::from_secs(50);
            let now = Now { wall: Timestamp::from_micros(1), boot };
            assert!(!births.is_spent(hash(7), now), "after {birth}");
            births.note(hash(7), now);
        }
        let usual = Constants::resolve(Overrides::default()).expect("consistent");
        assert_eq!(Births::new(&usual).period, DAY);
    }

    #[test]
    fn a_key_is_known_for_a_day_at_least() {
        let mut known = KnownKeys::new();
        assert!(!known.has(hash(7), on_day(3)));
        known.note(hash(7), on_day(3));
        assert!(known.has(hash(7), on_day(3)) && known.has(hash(7), on_day(4)));
        assert!(!known.has(hash(8), on_day(3)) && !known.has(hash(7), on_day(5)));
        known.note(hash(8), on_day(4));
        assert!(known.has(hash(7), on_day(4)) && known.has(hash(8), on_day(5)));
        assert!(!known.has(hash(7), on_day(5)));
        known.note(hash(9), on_day(9));
        assert!(!known.has(hash(8), on_day(9)));
    }

    #[test]
    fn a_key_is_spent_after_many_births_and_fresh_the_next_day() {
        let mut births = Births::of_period(DAY);
        for at in 0..BIRTHS_MAX {
            assert!(!births.is_spent(hash(7), on_day(3)), "after {at}");
            births.note(hash(7), on_day(3));
        }
        assert!(births.is_spent(hash(7), on_day(3)));
        assert!(!births.is_spent(hash(8), on_day(3)));
        assert!(!births.is_spent(hash(7), on_day(4)));
        births.note(hash(7), on_day(4));
        assert_eq!(births.count(hash(7)), 1);
    }

    /// Only the key that is born repeatedly is limited, however many keys are born.
    #[test]
    fn millions_of_births_limit_no_other_key() {
        let mut births = Births::of_period(DAY);
        for key in 0..3_000_000 {
            births.note(hash(key), on_day(1));
            if key % 10_000 == 0 {
                births.note(hash(u64::MAX), on_day(1));
            }
        }
        assert!(births.is_spent(hash(u64::MAX), on_day(1)));
        let spent = (0..3_000_000).filter(|key| births.is_spent(hash(*key), on_day(1))).count();
        assert_eq!(spent, 0);
    }

    #[test]
    fn a_flood_of_births_limits_no_group_rather_than_all() {
        let mut births = Births::of_period(DAY);
        births.total = 300 * CELLS as u64;
        births.pages.iter_mut().for_each(|page| *page = Some(Box::new([u8::MAX; PAGE])));
        births.note(hash(1), on_day(0));
        assert!(!births.is_spent(hash(1), on_day(0)) && !births.is_spent(hash(2), on_day(0)));
    }
}
