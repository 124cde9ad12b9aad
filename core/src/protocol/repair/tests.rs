use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use uuid::{Builder, Uuid};

use super::*;
use crate::crdt::envelope::{self, KeySeal};
use crate::crdt::pack::{OpId, Pack};
use crate::crdt::{Counter, Kind, Op, Question};
use crate::protocol::constants::tests::constants;
use crate::protocol::fold::Plan;
use crate::protocol::key::tests::key;
use crate::protocol::op_id::{ClientId, IdRefusal, NamedOp, Window};
use crate::protocol::{FullRead, OP_AGE_MAX};

/// When a history of a right clock begins.
const BEGIN: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
const YEARS: Duration = Duration::from_secs(74 * 365 * 86_400);

/// Random, as an id must be.
fn fresh(of: u128) -> MutatorId {
    MutatorId::new(Builder::from_random_bytes((of | 1 << 100).to_be_bytes()).into_uuid())
}

struct Mutator {
    expires_at: Timestamp,
    id: MutatorId,
    state: State,
    at: Timestamp,
    dots: u64,
}

/// One key of a file, written at the times that the clock shows.
struct World {
    key: Key,
    mutators: Vec<Mutator>,
    tally: Option<(Timestamp, State)>,
    keeps_zombies: bool,
    born: u128,
}

impl World {
    fn new(kind: Kind, keeps_zombies: bool) -> World {
        World { key: key(kind), mutators: Vec::new(), tally: None, keeps_zombies, born: 0 }
    }

    fn rows(&self) -> Vec<Written> {
        let seal = KeySeal::of(&self.key);
        let shard = |mutator: &Mutator| {
            let &Mutator { expires_at, id: mutator_id, ref state, at, .. } = mutator;
            let state = envelope::encode_shard(seal.row(expires_at, mutator_id), state, 7);
            Written { row: Row { expires_at, mutator_id, state }, at }
        };
        let tally = self.tally.iter().map(|(fence, state)| Written {
            row: Row {
                expires_at: Timestamp::NEVER,
                mutator_id: MutatorId::TALLY,
                state: envelope::encode_tally(seal, state, *fence),
            },
            at: fence.next(),
        });
        let mut rows: Vec<Written> = tally.chain(self.mutators.iter().map(shard)).collect();
        rows.sort_by_key(|Written { row, .. }| (Reverse(row.expires_at), row.mutator_id));
        rows
    }

    fn value(&self, now: Timestamp) -> State {
        value(&self.key, &self.rows(), now).unwrap_or_else(|| State::identity(self.key.kind))
    }

    /// An op by a mutator that is alive at this time. Ops with a refused token are skipped.
    fn update(&mut self, op: &Json, by: usize, at: Timestamp) {
        let mut op = self.key.kind.parse_op(op).expect("an op");
        if op.open(&self.key, at).is_err() {
            return;
        }
        let constants = constants();
        let lives = |mutator: &&mut Mutator| {
            mutator.at <= at && at < mutator.expires_at.minus(constants.drain_margin())
        };
        let alive = self.mutators.iter_mut().filter(lives).nth(by);
        let mutator = match alive {
            Some(mutator) => mutator,
            None => {
                self.born += 1;
                let (expires_at, id) = (at.plus(constants.lifetime()), Uuid::from_u128(self.born));
                let (id, state) = (MutatorId::new(id), State::new(self.key.kind, None));
                self.mutators.push(Mutator { expires_at, id, state, at, dots: 0 });
                self.mutators.last_mut().expect("it was born")
            }
        };
        mutator.at = at;
        let &mut Mutator { expires_at, id: mutator_id, .. } = mutator;
        op.stamp(at);
        op.assign(&mut || {
            mutator.dots += 1;
            Dot { expires_at, mutator_id, seq: mutator.dots }
        });
        mutator.state.apply(&op).expect("applied");
    }

    fn fold(&mut self, now: Timestamp) {
        let rows = self.rows();
        let Ok(Plan::Fold(fold)) = fold::plan(&full(&self.key, &rows), now, &constants()) else {
            return;
        };
        let seal = KeySeal::of(&self.key);
        let tally = envelope::decode_tally(seal, self.key.kind, fold.tally());
        self.tally = Some(tally.expect("a tally"));
        if !self.keeps_zombies {
            self.mutators.retain(|mutator| mutator.expires_at > fold.fence());
        }
    }
}

fn full(key: &Key, rows: &[Written]) -> FullRead {
    let rows = rows.iter().map(|written| written.row.clone()).collect();
    let slice = Slice::new(rows, None, usize::MAX - 1).whole().expect("whole");
    FullRead::at_fold_level(key.clone(), slice)
}

fn value(key: &Key, rows: &[Written], now: Timestamp) -> Option<State> {
    match read::assemble(key, full(key, rows).slice(), now, &constants()).expect("readable") {
        Answer::Value(reading) => Some(reading.state),
        Answer::Absent | Answer::Grave(..) | Answer::ReadAgain => None,
    }
}

/// A state without the things that a repair may change: who added items, and the times except their order.
fn meaning(mut state: State) -> State {
    state.attribute_to(Dot { expires_at: BEGIN, mutator_id: MutatorId::TALLY, seq: 1 });
    let mut times = state.times();
    times.sort_unstable();
    times.dedup();
    let rank = |time| times.binary_search(&time).expect("one of them");
    state.retime(&|time| BEGIN.plus(Duration::from_micros(rank(time) as u64)));
    state
}

/// An op of a kind, from a small set, so that ops touch the same items.
fn op(world: &World, number: u8, now: Timestamp) -> Json {
    let item = number % 3;
    let question = Question { key: Some(world.key.clone()), ..Question::default() };
    let seen =
        || serde_json::to_value(world.value(now).value(&question).shown(false)).expect("JSON");
    match (world.key.kind, number) {
        (Kind::LwwSet, 0..3) => json!({"op": "remove", "item": item}),
        (Kind::Register, 0) => json!({"op": "unset"}),
        (Kind::OrSet, 0) => json!({"op": "clear", "context": seen()["context"]}),
        (Kind::OrSet, 1..4) => {
            let seen = seen();
            let first = &seen["items"][0];
            match first.is_null() {
                true => json!({"op": "add", "item": item}),
                false => json!({"op": "remove", "item": first["item"], "seen": first["seen"]}),
            }
        }
        (Kind::LwwSet | Kind::OrSet, _) => json!({"op": "add", "item": item}),
        (kind, _) => serde_json::from_str(&kind.bare_op(&number.to_string())).expect("JSON"),
    }
}

#[derive(Debug, Clone)]
struct Step {
    seconds: u64,
    is_ahead: bool,
    /// A fold, if none.
    update: Option<(u8, usize)>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let update = prop_oneof![4 => (0_u8..9, 0_usize..3).prop_map(Some), 1 => Just(None)];
    let step = (1_u64..60, any::<bool>(), update);
    let step = step.prop_map(|(seconds, is_ahead, update)| Step { seconds, is_ahead, update });
    vec(step, 1..16)
}

fn played(kind: Kind, keeps_zombies: bool, ahead: Duration, steps: &[Step]) -> (World, Timestamp) {
    let (mut world, mut now) = (World::new(kind, keeps_zombies), BEGIN);
    for step in steps {
        now = now.plus(Duration::from_secs(step.seconds));
        let shown = if step.is_ahead { now.plus(ahead) } else { now };
        match step.update {
            None => world.fold(shown),
            Some((number, by)) => {
                let op = op(&world, number, shown);
                world.update(&op, by, shown);
            }
        }
    }
    (world, now)
}

/// What the rows hold that an honest clock could not have written.
fn ahead(key: &Key, rows: &[Written], now: Timestamp) -> Report {
    let mut repair = Repair::new(now, constants());
    let same = repair.key(key, rows.to_vec(), fresh(2)).expect("readable");
    assert_eq!(same, rows, "nothing is left to repair");
    Report { fence: None, stamp: None, ..*repair.report() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_048))]
    #[test]
    fn a_repair_keeps_the_value_through_all_later_folds(
        kind in proptest::sample::select(Kind::ALL),
        keeps_zombies: bool,
        seconds in prop_oneof![Just(YEARS.as_secs()), 9_u64..200],
        steps in steps(),
    ) {
        let (world, now) = played(kind, keeps_zombies, Duration::from_secs(seconds), &steps);
        let (key, before) = (&world.key, meaning(world.value(now)));
        let mut repair = Repair::new(now, constants());
        let mut rows = repair.key(key, world.rows(), fresh(1)).expect("repaired");
        let report = *repair.report();
        let is_changed = rows != world.rows();
        prop_assert_eq!(is_changed, report.keys > 0);
        let found = report.rows.count + report.fences.count + report.stamps.count;
        prop_assert_eq!(is_changed, found > 0, "{:?}", report);
        prop_assert_eq!(ahead(key, &rows, now), Report::default());
        prop_assert!(rows.iter().all(|written| written.at < written.row.expires_at));
        for row in rows.iter().filter(|written| written.row.mutator_id != fresh(1)) {
            prop_assert!(world.rows().contains(row), "what stays keeps its bytes");
        }
        let mut later = now;
        for wait in [0, 20, 50, 60, 100, 500] {
            later = later.plus(Duration::from_secs(wait));
            if let Plan::Fold(fold) =
                fold::plan(&full(key, &rows), later, &constants()).expect("no clock has moved")
            {
                rows.retain(|Written { row, .. }| !row.is_tally() && row.expires_at > fold.fence());
                let (expires_at, mutator_id) = (Timestamp::NEVER, MutatorId::TALLY);
                let row = Row { expires_at, mutator_id, state: fold.tally().to_vec() };
                rows.insert(0, Written { row, at: fold.timestamp() });
            }
            let value = value(key, &rows, later).unwrap_or_else(|| State::identity(kind));
            prop_assert_eq!(meaning(value), before.clone(), "after {}", wait);
        }
        prop_assert!(rows.len() <= 1, "all is folded");
    }
}

fn years_later(seconds: u64) -> Timestamp {
    BEGIN.plus(YEARS).plus(Duration::from_secs(seconds))
}

fn repaired(world: &World, now: Timestamp) -> (Vec<Written>, Report) {
    let mut repair = Repair::new(now, constants());
    let rows = repair.key(&world.key, world.rows(), fresh(1)).expect("repaired");
    (rows, *repair.report())
}

#[test]
fn what_a_right_clock_wrote_keeps_its_bytes() {
    let mut world = World::new(Kind::Counter, true);
    let add = |world: &mut World, by: i64, at| world.update(&json!({"op": "add", "by": by}), 0, at);
    add(&mut world, 1, BEGIN);
    let now = BEGIN.plus(Duration::from_secs(100));
    world.fold(now);
    add(&mut world, 10, now);
    assert_eq!(
        repaired(&world, now),
        (world.rows(), {
            let fence = world.tally.as_ref().map(|(fence, _)| *fence);
            Report { fence, ..Report::default() }
        })
    );
    add(&mut world, 100, years_later(0));
    add(&mut world, 1_000, years_later(70));
    let (before, now) = (world.rows(), now.next());
    let (rows, report) = repaired(&world, now);
    let (tally, others) = (&before[0], &before[3..]);
    assert_eq!((&rows[0], &rows[2..]), (tally, others), "with a row above its fence and one below");
    assert_eq!((report.rows.count, report.keys, report.gone), (2, 1, 2));
    assert_eq!(report.rows.latest, Some(years_later(70)));
    let (new, lifetime) = (&rows[1], constants().lifetime());
    assert_eq!((new.at, new.row.expires_at), (now, now.plus(lifetime)));
}

#[test]
fn a_fence_ahead_takes_its_tally_and_what_it_covers() {
    let mut world = World::new(Kind::Counter, true);
    let add = |world: &mut World, by: i64, at| world.update(&json!({"op": "add", "by": by}), 0, at);
    add(&mut world, 1, BEGIN);
    add(&mut world, 10, years_later(0));
    world.fold(years_later(100));
    add(&mut world, 100, years_later(100));
    let (rows, report) = repaired(&world, BEGIN);
    assert_eq!(rows.len(), 1);
    assert_eq!((report.fences.count, report.rows.count, report.gone), (1, 2, 4));
    assert_eq!(report.fence, None);
    let state = value(&world.key, &rows, BEGIN).expect("a value");
    assert_eq!(state.value(&Question::default()).to_string(), "111");
}

#[test]
fn a_grave_ahead_goes_and_a_right_one_stays() {
    let mut world = World::new(Kind::Counter, true);
    let add = |world: &mut World, at| world.update(&json!({"op": "add", "by": 1}), 0, at);
    add(&mut world, BEGIN);
    let graved = |world: &World, fence| {
        let mut rows = world.rows();
        let (expires_at, mutator_id) = (Timestamp::NEVER, MutatorId::TALLY);
        let state = envelope::encode_grave(KeySeal::of(&world.key), Kind::Counter, fence, None);
        rows.insert(0, Written { row: Row { expires_at, mutator_id, state }, at: fence.next() });
        rows
    };
    let repaired = |rows: Vec<Written>, now| {
        let mut repair = Repair::new(now, constants());
        let rows = repair.key(&key(Kind::Counter), rows, fresh(1)).expect("repaired");
        (rows, *repair.report())
    };
    let lifetime = constants().lifetime();
    let (fence, now) = (BEGIN.plus(lifetime), BEGIN.plus(2 * lifetime));
    let (rows, report) = repaired(graved(&world, fence), now);
    assert_eq!((rows, report.fence, report.keys), (graved(&world, fence), Some(fence), 0));
    let (rows, report) = repaired(graved(&world, years_later(0)), now);
    assert_eq!((rows, report.fence, report.gone), (vec![], None, 2), "with its zombie");
    // A row above the fence counts, and stays.
    add(&mut world, years_later(100));
    let (rows, report) = repaired(graved(&world, years_later(100)), years_later(100));
    assert_eq!((rows.len(), report.fence, report.gone), (1, None, 2));
    assert!(value(&world.key, &rows, years_later(100)).is_some());
}

/// The clock was 50 s ahead for one fold, so there are honest rows above and below its fence.
#[test]
fn a_row_above_a_fence_that_goes_keeps_its_bytes() {
    let mut world = World::new(Kind::Counter, true);
    let after = |seconds| BEGIN.plus(Duration::from_secs(seconds));
    world.update(&json!({"op": "add", "by": 1}), 0, BEGIN);
    world.fold(after(100));
    world.update(&json!({"op": "add", "by": 10}), 1, after(40));
    let before = world.rows();
    let (rows, report) = repaired(&world, after(51));
    assert_eq!((before.len(), rows.len(), report.gone), (3, 2, 2), "the tally and its zombie go");
    assert_eq!(rows[1], before[1]);
    let state = value(&world.key, &rows, after(51)).expect("a value");
    assert_eq!(state.value(&Question::default()).to_string(), "11");
}

/// The removed row had removed an item that a remaining row had added.
#[test]
fn a_remove_by_a_wrong_clock_still_removes() {
    let mut world = World::new(Kind::OrSet, false);
    world.update(&json!({"op": "add", "item": "old"}), 0, BEGIN);
    let question = Question { key: Some(world.key.clone()), ..Question::default() };
    let seen = world.value(BEGIN).value(&question);
    let seen = serde_json::to_value(seen.shown(false)).expect("JSON");
    world.update(&json!({"op": "clear", "context": seen["context"]}), 0, years_later(0));
    world.update(&json!({"op": "add", "item": "new"}), 0, years_later(1));
    let (rows, report) = repaired(&world, BEGIN);
    assert_eq!((rows.len(), report.gone), (1, 2), "the good row went as well");
    let state = value(&world.key, &rows, BEGIN).expect("a value");
    assert_eq!(state.value(&Question::default()).to_string(), r#"{"size":1,"items":["new"]}"#);
}

#[test]
fn times_ahead_keep_their_order_and_lose_against_the_next() {
    let mut world = World::new(Kind::LwwSet, false);
    let honest = BEGIN.plus(constants().clock_offset_max());
    for (op, item, at) in [
        ("add", "a", BEGIN),
        ("add", "b", honest),
        ("remove", "a", years_later(0)),
        ("add", "c", years_later(1)),
    ] {
        world.update(&json!({"op": op, "item": item}), 0, at);
    }
    let (rows, report) = repaired(&world, BEGIN);
    assert_eq!(report.stamps, Ahead { count: 2, latest: Some(years_later(1)) });
    assert_eq!(report.stamp, Some(BEGIN.shifted(3)));
    let mut state = value(&world.key, &rows, BEGIN).expect("a value");
    let mut times = state.times();
    times.sort_unstable();
    assert_eq!(times, [1, 2, 3].map(|us| BEGIN.shifted(us)));
    let mut next: Op = Kind::LwwSet.parse_op(&json!({"op": "add", "item": "a"})).expect("an op");
    next.stamp(BEGIN.shifted(4));
    state.apply(&next).expect("applied");
    let shown = state.value(&Question::default()).to_string();
    assert_eq!(shown, r#"{"size":3,"items":["a","b","c"]}"#);
}

/// The new row holds no add that is too old for it: a fold may have forgotten the op that such an add lost
/// against.
#[test]
fn an_old_add_is_raised_in_the_new_row() {
    let mut world = World::new(Kind::LwwSet, false);
    let add = |world: &mut World, item, at| {
        world.update(&json!({"op": "add", "item": item}), 0, at);
    };
    add(&mut world, "old", BEGIN);
    let now = BEGIN.plus(Duration::from_secs(300 * 86_400));
    add(&mut world, "new", now.plus(YEARS));
    world.fold(now.plus(2 * YEARS));
    let (rows, _) = repaired(&world, now);
    let state = value(&world.key, &rows, now).expect("a value");
    let oldest = now.plus(constants().lifetime()).minus(OP_AGE_MAX);
    assert_eq!((rows.len(), state.times()), (1, vec![now.next(), oldest]));
    let shown = state.value(&Question::default()).to_string();
    assert_eq!(shown, r#"{"size":2,"items":["new","old"]}"#);
}

/// For example, an import brings such a time from a place where the clock was wrong.
#[test]
fn a_time_ahead_is_found_in_a_row_of_an_honest_time() {
    let mut world = World::new(Kind::Register, false);
    world.update(&json!({"op": "set", "value": "a"}), 0, BEGIN);
    let mutator = &mut world.mutators[0];
    mutator.state.retime(&|_| years_later(0));
    let (rows, report) = repaired(&world, BEGIN);
    assert_eq!((report.rows.count, report.stamps.count, report.keys), (0, 1, 1));
    let state = value(&world.key, &rows, BEGIN).expect("a value");
    assert_eq!((rows.len(), state.times()), (1, vec![BEGIN.next()]));
}

#[test]
fn a_row_that_can_not_be_decoded_ends_the_repair() {
    let mut world = World::new(Kind::Counter, false);
    world.update(&json!({"op": "add", "by": 1}), 0, BEGIN);
    let mut rows = world.rows();
    rows[0].row.state[3] ^= 1;
    let error = Repair::new(BEGIN, constants()).key(&world.key, rows, fresh(1));
    assert!(matches!(error, Err(RepairError::Row(RowError::Undecodable { .. }))), "{error:?}");
}

/// The pod's clock was hours ahead, those of its clients were right. Clients send their ids again.
#[test]
fn ids_that_a_wrong_clock_wrote_still_count_once() {
    let (key, now) = (key(Kind::Counter), BEGIN);
    let late = now.plus(Duration::from_secs(3 * 3600));
    let name = |text: &str| {
        let id = ClientId::parse(text).expect("an id");
        NamedOp::new(id, 0, now, Window::Long)
    };
    let expires_at = Window::Long.expires_at(now, &key.group);
    let pack = |of: u128, expires_at: Timestamp, ids: &[&str], at| {
        let mut pack = Pack::new(key.kind, None);
        for text in ids {
            let mut ops = vec![key.kind.read_bare_op("5").expect("an op")];
            let op = name(text).prepare(key.kind, &key.group, &mut ops).expect("an op");
            pack.put(&op).expect("room");
        }
        let mutator_id = fresh(of);
        let seal = KeySeal::of(&key).row(expires_at, mutator_id);
        let state = envelope::encode_pack(seal, &pack, 1);
        Written { row: Row { expires_at, mutator_id, state }, at }
    };
    let repair = |rows: Vec<Written>| {
        let mut repair = Repair::new(now, constants());
        let kept = repair.key(&key, rows, fresh(9)).expect("repaired");
        (kept, *repair.report())
    };
    let total = |rows: &[Written]| value(&key, rows, now).map(|state| format!("{state:?}"));

    let before = vec![pack(1, expires_at, &["a", "b"], late)];
    let (mut kept, report) = repair(before.clone());
    assert_eq!((report.rows.count, report.keys, report.gone), (1, 1, 0));
    assert_eq!(kept, [Written { at: now, ..before[0].clone() }]);
    assert_eq!(report.ids_until, None, "its ids are still known");
    // A pod that has forgotten them takes "a" once more.
    kept.push(pack(2, expires_at, &["a"], now));
    assert_eq!(total(&kept), total(&before));

    // A client whose clock was ahead, too: nothing of a right clock expires so late.
    let far = expires_at.plus(Duration::from_secs(7 * 86_400));
    let before = vec![pack(1, far, &["a", "b"], late)];
    let (kept, report) = repair(before.clone());
    assert_eq!((report.keys, report.gone), (1, 1));
    assert_eq!(total(&kept), total(&before));
    assert_eq!(kept[0].row.expires_at, now.plus(constants().lifetime()));
    assert!(report.ids_until.is_some_and(|until| until < far), "{report:?}");

    // A pod folded the ids while their window was open. The repair moves them out of reach of any fence.
    let rows = [pack(1, expires_at, &["a", "b"], late)];
    let folded_at = expires_at.plus(constants().cutoff()).plus(constants().fence_quantum());
    let Ok(Plan::Fold(fold)) = fold::plan(&full(&key, &rows), folded_at, &constants()) else {
        panic!("no fold");
    };
    let tally = Row {
        expires_at: Timestamp::NEVER,
        mutator_id: MutatorId::TALLY,
        state: fold.tally().to_vec(),
    };
    let (mut kept, report) = repair(vec![Written { row: tally, at: fold.fence().next() }]);
    assert_eq!((report.fences.count, report.fence), (1, None));
    let until = report.ids_until.expect("they are forgotten");
    assert!(until >= expires_at, "{until:?}");
    assert_eq!(total(&kept), total(&rows));
    assert!(name("a").expiry(&key.group, now, &constants()).is_ok(), "a pod would take it");
    kept.insert(0, pack(2, expires_at, &["a"], now));
    assert_ne!(total(&kept), total(&rows), "and would count it again");
    let after = name("a").expiry(&key.group, until, &constants());
    assert!(matches!(after, Err(IdRefusal::Expired { .. })), "{after:?}");
}

/// The list of the reset kept out ids whose windows are open, and goes with its tally.
#[test]
fn ids_that_a_reset_ahead_has_cleared_are_told() {
    let (key, now) = (key(Kind::Counter), BEGIN);
    let after = |seconds| now.plus(Duration::from_secs(seconds));
    let (ahead, listed) = (after(3_600), after(7_200));
    let ids = vec![(listed, OpId { id: [1; 16], index: 0 })];
    let reset = Remembered::stored(Generation::at(ahead), listed.next(), ids).expect("in order");
    let (seal, empty) = (KeySeal::of(&key), State::identity(key.kind));
    for state in [
        envelope::encode_reset_tally(seal, &empty, ahead, false, Some(&reset)),
        envelope::encode_grave(seal, key.kind, ahead, Some(&reset)),
    ] {
        let (expires_at, mutator_id) = (Timestamp::NEVER, MutatorId::TALLY);
        let row = Row { expires_at, mutator_id, state };
        let mut repair = Repair::new(now, constants());
        let kept = repair.key(&key, vec![Written { row, at: ahead.next() }], fresh(1));
        let kept = kept.expect("repaired");
        assert!(kept.iter().all(|written| !written.row.is_tally()), "{kept:?}");
        assert_eq!(repair.report().ids_until, Some(listed));
    }
}

/// It would keep the key from being reset until its time.
#[test]
fn a_row_with_a_stamp_ahead_is_replaced() {
    let (key, now) = (key(Kind::Counter), BEGIN);
    let ahead = now.plus(Duration::from_secs(3_600));
    let (expires_at, mutator_id) = (now.plus(constants().lifetime()), fresh(1));
    let seal = KeySeal::of(&key).row(expires_at, mutator_id);
    let five = State::Counter(Counter::from_total(5));
    for (stamp, is_kept) in [(now, true), (ahead, false)] {
        let state = envelope::encode_stamped_shard(seal, &five, 1, Some(Generation::at(stamp)));
        let before = vec![Written { row: Row { expires_at, mutator_id, state }, at: now }];
        let mut repair = Repair::new(now, constants());
        let kept = repair.key(&key, before.clone(), fresh(2)).expect("repaired");
        assert_eq!((kept == before, repair.report().rows.count == 0), (is_kept, is_kept));
        assert_eq!(value(&key, &kept, now), Some(five.clone()));
        assert_eq!(envelope::stamp(&kept[0].row.state).is_some(), is_kept);
    }
}
