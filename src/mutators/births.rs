//! How often each key was born today, counted in little memory.
//!
//! Each birth makes a row, and a key with too many rows can't be read. Where mutators that rest are
//! forgotten because there is no room, a key may be born again and again; here such keys are known.
//!
//! A count-min sketch (Cormode and Muthukrishnan, "An improved data stream summary", 2005) with
//! conservative update (Estan and Varghese, "New directions in traffic measurement and accounting",
//! 2002) never counts too little. It counts too much where keys share cells, so the limit rises with
//! the average of a row: a pod with very many births a day limits fewer keys, not other ones.

use std::time::Duration;

use orderfree_core::protocol::Now;

use crate::limits::BIRTHS_MAX;

const ROWS: usize = 4;

/// Cells of a row, and of a page, which takes memory only once it is needed.
const CELLS: usize = 1 << 20;
const PAGE: usize = 1 << 12;

const DAY: Duration = Duration::from_secs(24 * 3600);

type Page = Box<[u8; PAGE]>;

/// See the [module documentation](self).
pub(super) struct Births {
    /// Since boot.
    day: u64,
    total: u64,
    /// Whether any key has reached the limit.
    has_spent: bool,
    pages: Vec<Option<Page>>,
}

impl Births {
    pub(super) fn new() -> Births {
        let pages = (0..ROWS * CELLS / PAGE).map(|_| None).collect();
        Births { day: 0, total: 0, has_spent: false, pages }
    }

    /// One more birth of the key with this hash.
    pub(super) fn note(&mut self, hash: u64, now: Now) {
        let day = day_of(now);
        if self.day != day {
            *self = Births { day, ..Births::new() };
        }
        self.total += 1;
        let least = self.count(hash);
        for cell in cells(hash) {
            let page = self.pages[cell / PAGE].get_or_insert_with(|| Box::new([0; PAGE]));
            let count = &mut page[cell % PAGE];
            // A cell that is higher already has counted others.
            *count = (*count).max(least.saturating_add(1));
        }
        self.has_spent |= self.is_at_limit(hash);
    }

    /// Whether the key was born so often today that it may not be born again.
    pub(super) fn is_spent(&self, hash: u64, now: Now) -> bool {
        self.has_spent && self.day == day_of(now) && self.is_at_limit(hash)
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

fn day_of(now: Now) -> u64 {
    now.boot.as_secs() / DAY.as_secs()
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
    use orderfree_core::protocol::Timestamp;

    fn on_day(day: u32) -> Now {
        Now { wall: Timestamp::from_micros(1), boot: day * DAY + Duration::from_secs(5) }
    }

    /// Hashes as a random key would make them.
    fn hash(of: u64) -> u64 {
        of.wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(32) ^ of
    }

    #[test]
    fn a_key_is_spent_after_so_many_births_and_again_fresh_the_next_day() {
        let mut births = Births::new();
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

    /// However many keys are born, only the one that thrashes is limited.
    #[test]
    fn millions_of_births_limit_no_other_key() {
        let mut births = Births::new();
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
    fn a_flood_of_births_limits_nobody_rather_than_everybody() {
        let mut births = Births::new();
        births.total = 300 * CELLS as u64;
        births.pages.iter_mut().for_each(|page| *page = Some(Box::new([u8::MAX; PAGE])));
        births.note(hash(1), on_day(0));
        assert!(!births.is_spent(hash(1), on_day(0)) && !births.is_spent(hash(2), on_day(0)));
    }
}
