use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::crdt::envelope::{self, KeySeal};
use crate::crdt::{Counter, Kind, State};
use crate::protocol::constants::tests::constants;
use crate::protocol::fold::{self, Fold, Plan};
use crate::protocol::generation::Generation;
use crate::protocol::{FullRead, MutatorId, Name, Slice};

const NOW: Timestamp = Timestamp::from_micros(1_000_000_000_000);
const SIZE: PartSize = PartSize { rows: (2, 3), bytes: 1_000, expiry_rows: 4 };

fn cut() -> Timestamp {
    fold::cut(NOW, &constants())
}

fn key() -> Key {
    let name = |text| Name::new(text).expect("a name");
    Key { kind: Kind::Counter, group: name("g"), name: name("n") }
}

/// The rows of one key on one replica, oldest first.
#[derive(Debug, Clone, Default)]
struct Rows(BTreeMap<(Timestamp, MutatorId), Vec<u8>>);

impl Rows {
    /// This many microseconds before the cut, or after it if negative.
    fn shard(&mut self, before_cut: i64, id: u128, total: i128) {
        let (expires_at, id) = (cut().shifted(-before_cut), MutatorId::new(Uuid::from_u128(id)));
        let seal = KeySeal::of(&key()).row(expires_at, id);
        let state = State::Counter(Counter::from_total(total));
        self.0.insert((expires_at, id), envelope::encode_shard(seal, &state, 1));
    }

    fn tally(&self) -> Option<Row> {
        let state = self.0.get(&(Timestamp::NEVER, MutatorId::TALLY))?.clone();
        Some(Row { expires_at: Timestamp::NEVER, mutator_id: MutatorId::TALLY, state })
    }

    /// Answers like a store that reads the table backwards.
    fn part(&self, part: &Part) -> Vec<Row> {
        let row = |(&(expires_at, mutator_id), state): (&(Timestamp, MutatorId), &Vec<u8>)| Row {
            expires_at,
            mutator_id,
            state: if part.ids_only { Vec::new() } else { state.clone() },
        };
        let mut rows: Vec<Row> = self.0.iter().map(row).collect();
        rows.retain(|row| Some(row.expires_at) > part.after && row.expires_at <= part.through);
        rows.sort_by_key(|row| (row.expires_at, std::cmp::Reverse(row.mutator_id)));
        rows.truncate(part.limit);
        rows
    }

    fn full(&self) -> FullRead {
        let mut rows = self.part(&all(cut().plus(SPAN), 1_000));
        rows.sort_by_key(|row| (std::cmp::Reverse(row.expires_at), row.mutator_id));
        let rows = self.tally().into_iter().chain(rows).collect();
        FullRead::at_fold_level(key(), Slice::new(rows, None, 1_000).whole().expect("whole"))
    }

    fn execute(&mut self, fold: &Fold) {
        self.0.retain(|(expires_at, _), _| *expires_at > fold.fence());
        self.0.insert((Timestamp::NEVER, MutatorId::TALLY), fold.tally().to_vec());
    }

    fn walk(&self, until: Until, size: PartSize) -> Result<Walk, WalkError> {
        let mut walk = Walk::begin(key(), self.tally(), cut(), until, size)?;
        while let Some(part) = walk.next() {
            walk.take(self.part(&part))?;
        }
        Ok(walk)
    }

    /// Looks at the rows and the tally again, after a walk that ended.
    fn recheck(&self, mut recheck: Recheck) -> Result<Option<PrefixRead>, WalkError> {
        while let Some(part) = recheck.next() {
            assert!(part.ids_only);
            recheck.take(self.part(&part))?;
        }
        Ok(recheck.end(self.tally().as_ref()))
    }

    fn read(&self, until: Until, size: PartSize) -> PrefixRead {
        let walk = self.walk(until, size).expect("sound rows");
        let recheck = walk.end(self.tally().as_ref()).expect("nothing changed");
        self.recheck(recheck).expect("sound rows").expect("nothing changed")
    }

    fn planned(&self, until: Until, size: PartSize) -> Plan {
        let read = self.read(until, size);
        fold::plan_prefix(read, NOW, &constants()).expect("a plan")
    }
}

const SPAN: Duration = Duration::from_secs(1_000);

fn until(rows: usize) -> Until {
    Until::cut(cut(), (rows, usize::MAX), fold::TALLY_BYTES_MAX)
}

/// The oldest rows up to a time.
fn all(through: Timestamp, limit: usize) -> Part {
    Part { after: None, through, limit, ids_only: false }
}

fn some_shards() -> impl Strategy<Value = Rows> {
    // Few different expiries, so that many rows share one, and some that are not final.
    prop::collection::vec((-5..20_i64, 1..5_u128, -1000..1000_i128), 0..40).prop_map(|shards| {
        let mut rows = Rows::default();
        shards.into_iter().for_each(|(at, id, total)| rows.shard(at, id, total));
        rows
    })
}

proptest! {
    /// A fold in steps, with any size of steps and parts, gives the same bytes as a fold at once.
    #[test]
    fn a_key_is_folded_step_by_step_as_at_once(
        rows in some_shards(),
        first in 1..6_usize,
        most in 1..6_usize,
        steps in prop::collection::vec(1..9_usize, 1..4),
    ) {
        let size = PartSize { rows: (first, most), bytes: 100, ..SIZE };
        let mut by_steps = rows.clone();
        for step in 0..100 {
            let plan = by_steps.planned(until(steps[step % steps.len()]), size);
            let Plan::Fold(fold) = plan else {
                prop_assert!(!plan.report().has_more);
                break;
            };
            prop_assert!(fold.fence() <= cut());
            by_steps.execute(&fold);
            if !fold.report().has_more {
                break;
            }
        }
        let mut at_once = rows;
        if let Plan::Fold(fold) = fold::plan(&at_once.full(), NOW, &constants()).expect("a plan") {
            at_once.execute(&fold);
        }
        prop_assert_eq!(by_steps.0, at_once.0);
    }

    /// A read in parts gives the same value as a read of one slice.
    #[test]
    fn a_value_by_parts_is_the_value_of_a_slice(rows in some_shards(), first in 1..6_usize) {
        let size = PartSize { rows: (first, 5), ..SIZE };
        let reading = rows.read(Until::the_end(NOW), size).into_reading();
        let answer = crate::protocol::read::assemble(&key(), rows.full().slice(), NOW, &constants());
        match answer.expect("sound rows") {
            crate::protocol::read::Answer::Value(value) => prop_assert_eq!(reading, Some(value)),
            _ => prop_assert_eq!(reading, None),
        }
    }

    /// The second look notices a fold that lands after the first look.
    #[test]
    fn a_fold_in_between_makes_the_walk_begin_again(rows in some_shards(), at in 0..6_usize) {
        let mut changing = rows.clone();
        let mut walk = Walk::begin(key(), rows.tally(), cut(), until(usize::MAX), SIZE).expect("one");
        let (mut parts, mut folded) = (0, false);
        while let Some(part) = walk.next() {
            if parts == at && let Plan::Fold(fold) = changing.planned(until(3), SIZE) {
                changing.execute(&fold);
                folded = true;
            }
            walk.take(changing.part(&part)).expect("sound rows");
            parts += 1;
        }
        prop_assert_eq!(walk.end(changing.tally().as_ref()).is_none(), folded);
    }
}

/// Six rows of different expiries that are final, and two that are not.
fn eight() -> Rows {
    let mut rows = Rows::default();
    (-2..6).for_each(|at| rows.shard(at, 1, 1 << (at + 2)));
    rows
}

/// The rows as queries show them while one of the replicas has a fold of the oldest three.
fn with_a_fold(rows: &Rows) -> Rows {
    let mut folded = rows.clone();
    folded.execute(rows.planned(until(3), SIZE).fold().expect("a fold"));
    folded
}

/// The fold's deletion hides rows from the parts. Then the replica forgets it together with its tally, so the
/// second look finds nothing.
#[test]
fn a_walk_begins_again_if_a_deletion_was_forgotten_meanwhile() {
    let rows = eight();
    let folded = with_a_fold(&rows);
    for until in [until(2), until(usize::MAX), Until::the_end(NOW)] {
        let mut walk = Walk::begin(key(), rows.tally(), cut(), until, SIZE).expect("begun");
        while let Some(part) = walk.next() {
            walk.take(folded.part(&part)).expect("sound rows");
        }
        let recheck = walk.end(rows.tally().as_ref()).expect("the tally is the same");
        assert_eq!(rows.recheck(recheck).expect("sound rows"), None);
    }
}

/// As before, but the fold comes to the replica again, and hides the same rows from the recheck.
#[test]
fn a_deletion_that_came_again_is_found_by_the_third_look() {
    let rows = eight();
    let folded = with_a_fold(&rows);
    let mut walk = Walk::begin(key(), None, cut(), until(usize::MAX), SIZE).expect("begun");
    while let Some(part) = walk.next() {
        walk.take(folded.part(&part)).expect("sound rows");
    }
    let recheck = walk.end(None).expect("the tally is the same");
    assert_eq!(folded.recheck(recheck).expect("sound rows"), None);
}

/// Rows above the settled time come and go while a value is read.
#[test]
fn only_ids_up_to_the_settled_time_are_compared() {
    let rows = eight();
    let mut later = rows.clone();
    later.shard(-1, 2, 1);
    for (settled, is_used) in [(cut(), true), (cut().shifted(1), false)] {
        let walk = rows.walk(Until::the_end(settled), SIZE).expect("sound rows");
        let recheck = walk.end(None).expect("the tally is the same");
        let read = later.recheck(recheck).expect("sound rows");
        assert_eq!(read.is_some(), is_used);
        assert_eq!(
            read.and_then(PrefixRead::into_reading).map(|value| value.shards),
            is_used.then_some(8)
        );
    }
    // The last ids count as well, whatever the sizes of the parts are.
    let mut fewer = rows.clone();
    fewer.0.pop_first();
    for most in 2..9 {
        let size = PartSize { rows: (2, most), ..SIZE };
        let recheck = rows.walk(until(9), size).expect("sound rows").end(None).expect("the same");
        assert_eq!(fewer.recheck(recheck).expect("sound rows"), None);
    }
}

#[test]
fn an_expiry_is_never_divided() {
    let mut rows = Rows::default();
    rows.shard(9, 1, 1);
    (1..=4).for_each(|id| rows.shard(5, id, 10));
    rows.shard(1, 1, 100);
    let plan = rows.planned(until(2), SIZE);
    let fold = plan.fold().expect("a fold");
    assert_eq!((fold.report().folded, fold.report().has_more), (5, true));
    assert_eq!(fold.fence(), cut().shifted(-5));
    // An expiry with more rows than allowed is an error, and is not split.
    rows.shard(5, 5, 10);
    let error = rows.walk(until(2), SIZE).expect_err("too many");
    assert!(matches!(error, WalkError::Answer(BadSlice::Cut { limit: 4, .. })), "{error:?}");
}

#[test]
fn parts_are_as_large_as_their_rows_let_expect() {
    let mut rows = Rows::default();
    (0..100).for_each(|at| rows.shard(at, 1, 1));
    let bytes = rows.part(&all(cut(), 1))[0].state.len();
    let size = PartSize { rows: (10, 1_000), bytes: 20 * (bytes + 1), ..SIZE };
    let mut walk = Walk::begin(key(), None, cut(), until(1_000), size).expect("begun");
    let mut limits = Vec::new();
    while let Some(part) = walk.next() {
        limits.push(part.limit);
        walk.take(rows.part(&part)).expect("sound rows");
    }
    assert_eq!(limits[..4], [10, 20, 20, 20]);
}

#[test]
fn a_step_ends_once_it_has_enough_bytes() {
    let mut rows = Rows::default();
    (0..100).for_each(|at| rows.shard(at, 1, 1));
    let plan = rows.planned(Until { bytes: 1, ..until(1_000) }, SIZE);
    assert_eq!((plan.report().folded, plan.report().has_more), (1, true));
}

#[test]
fn zombies_of_a_long_key_are_deleted_by_a_fence_that_rises() {
    let mut rows = Rows::default();
    rows.shard(9, 1, 1);
    rows.execute(
        rows.clone()
            .planned(Until::cut(cut().shifted(-2), (9, usize::MAX), fold::TALLY_BYTES_MAX), SIZE)
            .fold()
            .expect("a fold"),
    );
    let plan = rows.planned(until(9), SIZE);
    let fold = plan.fold().expect("a fold of nothing else");
    assert_eq!((fold.fence(), fold.report().folded), (cut(), 0));
    rows.execute(fold);
    assert!(matches!(rows.planned(until(9), SIZE), Plan::Nothing(_)));
    assert!(
        matches!(Rows::default().planned(until(9), SIZE), Plan::Nothing(_)),
        "no tally, no zombie"
    );
}

#[test]
fn rows_that_were_not_asked_for_are_no_answer() {
    let mut rows = Rows::default();
    [(9, 1), (8, 1), (8, 2), (7, 1)].iter().for_each(|&(at, id)| rows.shard(at, id, 1));
    let asked = |limit| Part { after: Some(cut().shifted(-9)), ..all(cut().shifted(-8), limit) };
    let answer = rows.part(&all(cut(), 9));
    let takes = |rows: &[Row]| in_order(rows.to_vec(), &asked(9));
    let order: Vec<_> = takes(&answer[1..3])
        .expect("those")
        .iter()
        .map(|row| row.mutator_id.as_uuid().as_u128())
        .collect();
    assert_eq!(order, [1, 2], "in the order of merges");
    for stray in [
        &answer[..2],
        &answer[2..4],
        &[answer[2].clone(), answer[1].clone()],
        &[answer[1].clone(), answer[1].clone()],
    ] {
        assert!(matches!(takes(stray), Err(BadSlice::Disordered { .. })), "{stray:?}");
    }
    let error = in_order(answer[1..3].to_vec(), &asked(1));
    assert!(matches!(error, Err(BadSlice::Cut { limit: 1, .. })), "a store honours the limit");
}

/// A key without a value can have a grave, which the reader must know of.
#[test]
fn a_walk_tells_what_a_grave_remembers() {
    let (fence, until) = (cut(), cut().plus(SPAN));
    let reset = Remembered::stored(Generation::at(fence), until, Vec::new()).expect("in order");
    let mut rows = Rows::default();
    rows.shard(-5, 1, 7);
    let grave = envelope::encode_grave(KeySeal::of(&key()), Kind::Counter, fence, Some(&reset));
    rows.0.insert((Timestamp::NEVER, MutatorId::TALLY), grave);
    let read = rows.read(Until::the_end(NOW), SIZE);
    assert_eq!(read.tally(), Some((fence, Some(&reset))));
    assert_eq!(read.into_reading(), None, "the row is from before the deletion");
    let none = Rows::default().read(Until::the_end(NOW), SIZE);
    assert_eq!(none.tally(), None);
}
