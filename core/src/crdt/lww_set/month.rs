//! A month of a set whose items come and go, with one fold per day.

use std::time::Duration;

use uuid::Uuid;

use crate::crdt::item::{ITEMS_MAX, Item};
use crate::crdt::{Kind, LwwSet, LwwSetOp, Op, STATE_BYTES_MAX, State};
use crate::protocol::fold::{self, Plan, TALLY_BYTES_MAX};
use crate::protocol::hybrid::HybridClock;
use crate::protocol::read::{self, Answer};
use crate::protocol::{
    Accepted, Begin, Constants, Durability, FullRead, Key, Mutator, MutatorId, Name, Now,
    OP_AGE_MAX, Overrides, Row, Slice, Timestamp,
};

const DAYS: u64 = 30;
const DAY: Duration = Duration::from_secs(24 * 3600);
const NAMES_A_DAY: usize = 8_000;
const BEGIN: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

/// Bytes of a mark in a payload here: 11 for the name and its frame, 9 for the time, 1 for what happened.
const MARK_BYTES: usize = 24;

/// A removal stays in a tally for [`OP_AGE_MAX`] and two days more: a row is folded a lifetime (one day) and
/// a cutoff after its birth, and folds come once per day.
const DAYS_KEPT: u64 = OP_AGE_MAX.as_secs() / DAY.as_secs() + 2;

fn names(day: u64) -> Vec<Item> {
    (0..NAMES_A_DAY).map(|at| Item::Text(format!("{day:02}-{at:05}").into())).collect()
}

fn survivor(day: u64) -> Item {
    Item::Text(format!("stays-{day:02}").into())
}

struct Place {
    key: Key,
    constants: Constants,
    rows: Vec<Row>,
    hybrid: HybridClock,
}

impl Place {
    /// One mutator's full day.
    fn day(&mut self, day: u64, changes: &[(bool, Vec<Item>)]) {
        let now = |seconds| {
            let age = DAY * u32::try_from(day).expect("few days") + Duration::from_secs(seconds);
            Now { wall: BEGIN.plus(age), boot: age }
        };
        let id = MutatorId::new(Uuid::from_u128(u128::from(day) + 1));
        let mut mutator = Mutator::born(self.key.clone(), id, None, now(0), &self.constants);
        for (at, (is_removal, items)) in changes.iter().enumerate() {
            let now = now(at as u64 + 1);
            for items in items.chunks(ITEMS_MAX) {
                let time = self.hybrid.tick(now.wall, None).expect("the clock's own");
                let op =
                    LwwSetOp { is_removal: *is_removal, items: items.to_vec(), after: None, time };
                let accepted = mutator.accept(vec![Op::LwwSet(op)], Durability::Stored, now);
                assert!(matches!(accepted, Ok(Accepted::Queued(_))), "{accepted:?} on day {day}");
            }
        }
        let Begin::Write(write) = mutator.begin_write(now(3_600)) else { panic!("no write") };
        assert!(write.state().len() <= STATE_BYTES_MAX);
        mutator.finish_write(Ok(()), now(3_601));
        let (expires_at, state) = (write.expires_at(), write.state().to_vec());
        let at = usize::from(self.rows.first().is_some_and(Row::is_tally));
        self.rows.insert(at, Row { expires_at, mutator_id: id, state });
    }

    fn read(&self) -> FullRead {
        let slice = Slice::new(self.rows.clone(), None, 1_000).whole().expect("whole");
        FullRead::at_fold_level(self.key.clone(), slice)
    }

    fn items(&self, now: Timestamp) -> Vec<Item> {
        let read = read::assemble(&self.key, self.read().slice(), now, &self.constants);
        let Ok(Answer::Value(reading)) = read else { panic!("{read:?}") };
        let State::LwwSet(LwwSet { marks, .. }) = reading.state else { panic!("another kind") };
        marks.into_iter().filter(|(_, mark)| !mark.is_removed).map(|(item, _)| item).collect()
    }

    /// Returns the bytes of the tally.
    fn fold(&mut self, now: Timestamp) -> Option<usize> {
        let Plan::Fold(fold) = fold::plan(&self.read(), now, &self.constants).expect("a plan")
        else {
            return None;
        };
        self.rows.retain(|row| !row.is_tally() && row.expires_at > fold.fence());
        let (expires_at, mutator_id) = (Timestamp::NEVER, MutatorId::TALLY);
        self.rows.insert(0, Row { expires_at, mutator_id, state: fold.tally().to_vec() });
        Some(fold.tally().len())
    }
}

/// If nothing were forgotten, it would pass the limit of a tally within the month, and could never be folded
/// again.
#[test]
fn a_month_of_8000_names_a_day_stays_below_the_limit_of_a_tally() {
    let name = |text| Name::new(text).expect("a name");
    let mut place = Place {
        key: Key { kind: Kind::LwwSet, group: name("g"), name: name("n") },
        constants: Constants::resolve(Overrides::default()).expect("defaults"),
        rows: Vec::new(),
        hybrid: HybridClock::new(Duration::from_secs(60), Timestamp::from_micros(0)),
    };
    let mut largest = 0;
    for day in 0..DAYS {
        let mut changes =
            vec![(false, names(day)), (false, vec![survivor(day)]), (true, names(day))];
        // Every third survivor leaves ten days later, when its add was folded long ago.
        let leaver = day.checked_sub(10).filter(|day| day.is_multiple_of(3));
        changes.extend(leaver.map(|day| (true, vec![survivor(day)])));
        place.day(day, &changes);
        let stays = |of: &u64| !(of.is_multiple_of(3) && of + 10 <= day);
        let expected: Vec<Item> = (0..=day).filter(stays).map(survivor).collect();
        let now =
            BEGIN.plus(DAY * u32::try_from(day).expect("few days") + Duration::from_secs(7_200));
        assert_eq!(place.items(now), expected, "on day {day}");
        largest = largest.max(place.fold(now).unwrap_or(0));
        assert_eq!(place.items(now), expected, "after the fold of day {day}");
    }
    assert_eq!(place.rows.len(), 2, "the tally and today's row");
    println!("{largest} bytes at most");
    let days = usize::try_from(DAYS_KEPT).expect("few days");
    let bound = days * NAMES_A_DAY * MARK_BYTES;
    assert!(largest <= bound && bound < TALLY_BYTES_MAX / 2, "{largest} bytes of {bound}");
}
