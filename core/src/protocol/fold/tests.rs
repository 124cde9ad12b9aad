use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::crdt::envelope::KeySeal;
use crate::crdt::item::Item;
use crate::crdt::{Counter, Dot, GSetOp, Kind, Op, Question, State};
use crate::protocol::constants::tests::constants;
use crate::protocol::key::tests::key;
use crate::protocol::prefix::{Part, PartSize, Until, Walk};
use crate::protocol::read::{Answer, assemble};
use crate::protocol::{MutatorId, Slice};

const SECOND_US: i64 = 1_000_000;
const NOW: Timestamp = Timestamp::from_micros(1_000_000 * SECOND_US);

/// Rows of one key in a store with last-write-wins cells: each `state` with its timestamp.
#[derive(Debug, Clone, Default, PartialEq)]
struct Rows(BTreeMap<(Timestamp, MutatorId), (Timestamp, Vec<u8>)>);

impl Rows {
    fn shard(&mut self, expires_at: Timestamp, id: u128, total: i128) {
        let id = MutatorId::new(Uuid::from_u128(id));
        let seal = KeySeal::of(&key(Kind::Counter)).row(expires_at, id);
        let state = envelope::encode_shard(seal, &State::Counter(Counter::from_total(total)), 1);
        self.0.insert((expires_at, id), (expires_at.shifted(-1), state));
    }

    fn read(&self) -> FullRead {
        let mut rows: Vec<Row> = self
            .0
            .iter()
            .map(|(&(expires_at, mutator_id), (_, state))| Row {
                expires_at,
                mutator_id,
                state: state.clone(),
            })
            .collect();
        rows.sort_by_key(|row| (std::cmp::Reverse(row.expires_at), row.mutator_id));
        let key = key(Kind::Counter);
        FullRead::at_fold_level(key, Slice::new(rows, None, 10_000).whole().expect("whole"))
    }

    /// Executes a fold like a store: at equal timestamps the greater bytes win.
    fn execute(&mut self, fold: &Fold) {
        self.0.retain(|&(expires_at, _), (timestamp, _)| {
            expires_at > fold.fence() || *timestamp > fold.timestamp()
        });
        let cell = (fold.tally_timestamp(), fold.tally().to_vec());
        let tally = self.0.entry((Timestamp::NEVER, MutatorId::TALLY)).or_insert(cell.clone());
        *tally = cell.max(tally.clone());
    }

    fn total(&self) -> i128 {
        match assemble(&key(Kind::Counter), self.read().slice(), NOW, &constants())
            .expect("readable")
        {
            Answer::Value(reading) => Counter::try_from(reading.state).expect("a counter").total(),
            Answer::Absent | Answer::Grave(..) => 0,
            Answer::ReadAgain => panic!("no fence was cached"),
        }
    }
}

fn planned(rows: &Rows, now: Timestamp) -> Fold {
    match plan(&rows.read(), now, &constants()) {
        Ok(Plan::Fold(fold)) => fold,
        other => panic!("{other:?}"),
    }
}

fn ago(seconds: u64) -> Timestamp {
    NOW.minus(Duration::from_secs(seconds))
}

#[test]
fn everything_final_is_folded_and_nothing_else() {
    let mut rows = Rows::default();
    rows.shard(ago(100), 1, 1);
    rows.shard(ago(30), 2, 2); // final to the microsecond
    rows.shard(ago(30).next(), 3, 4);
    rows.shard(ago(20), 4, 8);
    let fold = planned(&rows, NOW);
    assert_eq!(fold.fence(), ago(30));
    assert_eq!(fold.timestamp(), ago(30).next(), "above every folded expiry, not equal to it");
    assert_eq!((fold.report().folded, fold.report().kept), (2, 2));
    rows.execute(&fold);
    assert_eq!(rows.0.len(), 3);
    assert_eq!(rows.total(), 15);
    let again = plan(&rows.read(), NOW, &constants()).expect("a plan");
    assert!(matches!(again, Plan::Nothing(_)));
    let (fence_before, evidence_before) = (Some(ago(30)), Some(ago(30)));
    let saw = Report { fence_before, evidence_before, kept: 2, ..Report::default() };
    assert_eq!(*again.report(), saw);
}

#[test]
fn a_row_that_comes_back_at_the_fence_itself_is_a_zombie() {
    let mut rows = Rows::default();
    rows.shard(ago(30), 1, 1);
    rows.execute(&planned(&rows, NOW));
    rows.shard(ago(30), 1, 1);
    rows.shard(ago(40), 2, 2);
    assert_eq!(rows.total(), 1);
    let later = NOW.plus(Duration::from_secs(1));
    let fold = planned(&rows, later);
    assert_eq!((fold.report().folded, fold.report().zombies), (0, 2));
    rows.execute(&fold);
    assert_eq!((rows.0.len(), rows.total()), (1, 1));
}

#[test]
fn the_fence_is_on_the_quantum() {
    let mut rows = Rows::default();
    rows.shard(ago(100), 1, 1);
    assert_eq!(planned(&rows, NOW.shifted(999_999)).fence(), ago(30));
}

#[test]
fn an_undecodable_final_row_is_a_wall() {
    let mut rows = Rows::default();
    rows.shard(ago(100), 1, 1);
    rows.shard(ago(90), 2, 2);
    for (_, state) in rows.0.values_mut().take(1) {
        state[2] ^= 0xff;
    }
    let error = plan(&rows.read(), NOW, &constants()).expect_err("a wall");
    assert!(matches!(error, FoldError::Row(RowError::Undecodable { .. })), "{error}");
}

#[test]
fn an_undecodable_row_that_is_not_final_does_not_hinder() {
    let mut rows = Rows::default();
    rows.shard(ago(100), 1, 1);
    rows.shard(ago(0), 2, 2);
    rows.0.values_mut().last().expect("two rows").1[2] ^= 0xff;
    assert_eq!(planned(&rows, NOW).report().folded, 1);
}

/// The ancestor's defect 7: a row that came back after a fold was counted twice.
#[test]
fn regression_7_zombies_are_deleted_again_but_never_counted() {
    let mut rows = Rows::default();
    rows.shard(ago(100), 1, 1);
    rows.shard(ago(90), 2, 2);
    rows.execute(&planned(&rows, NOW));
    rows.shard(ago(100), 1, 1);
    assert_eq!(rows.total(), 3);
    let again = planned(&rows, NOW);
    assert_eq!((again.report().folded, again.report().zombies), (0, 1));
    rows.execute(&again);
    assert_eq!((rows.0.len(), rows.total()), (1, 3));
}

#[test]
fn a_folder_whose_clock_is_behind_never_writes_an_older_fence() {
    let mut rows = Rows::default();
    rows.shard(ago(100), 1, 1);
    rows.execute(&planned(&rows, NOW));
    rows.shard(ago(100), 1, 1);
    let behind = planned(&rows, NOW.minus(Duration::from_secs(5)));
    assert_eq!(behind.fence(), ago(30));
}

#[test]
fn a_fence_from_the_future_proves_a_moved_clock() {
    let mut rows = Rows::default();
    rows.shard(ago(100), 1, 1);
    rows.execute(&planned(&rows, NOW));
    let epsilon = constants().clock_offset_max();
    assert!(plan(&rows.read(), NOW.minus(2 * epsilon), &constants()).is_ok());
    let error = plan(&rows.read(), NOW.minus(2 * epsilon).shifted(-1), &constants());
    assert_eq!(error, Err(FoldError::ClockMoved { fence: ago(30), evidence: ago(30) }));
}

/// A key's rows, each of them a set of texts.
struct Sets(Vec<Row>);

impl Sets {
    fn add(&mut self, expires_at: Timestamp, texts: impl Iterator<Item = String>) {
        let items = texts.map(|text| Item::text(&text).expect("an item")).collect();
        let mut set = State::new(Kind::GSet, None);
        set.apply(&Op::GSet(GSetOp::Add { items })).expect("items");
        let mutator_id = MutatorId::new(Uuid::from_u128(1));
        let seal = KeySeal::of(&key(Kind::GSet)).row(expires_at, mutator_id);
        self.0.push(Row { expires_at, mutator_id, state: envelope::encode_shard(seal, &set, 1) });
    }

    fn plan(&self) -> Plan {
        let mut rows = self.0.clone();
        rows.sort_by_key(|row| std::cmp::Reverse(row.expires_at));
        let slice = Slice::new(rows, None, 10_000).whole().expect("whole");
        let read = FullRead::at_fold_level(key(Kind::GSet), slice);
        plan(&read, NOW, &constants()).expect("a plan")
    }

    fn fold(&mut self) -> Report {
        let Plan::Fold(fold) = self.plan() else { panic!("nothing to fold") };
        self.0.retain(|row| row.expires_at > fence_of(&fold) && !row.is_tally());
        let (expires_at, mutator_id) = (Timestamp::NEVER, MutatorId::TALLY);
        self.0.push(Row { expires_at, mutator_id, state: fold.tally().to_vec() });
        *fold.report()
    }
}

fn fence_of(fold: &Fold) -> Timestamp {
    let (fence, _) = envelope::decode_tally(KeySeal::of(fold.key()), fold.key().kind, fold.tally())
        .expect("a tally");
    assert_eq!(fence, fold.fence());
    fence
}

/// Each is almost as large as a shard can be; sixteen almost fill a tally.
fn sixteen() -> Sets {
    let mut sets = Sets(Vec::new());
    for id in 0..16 {
        let texts = (0..250).map(|item| format!("{id:02}-{item:0>1020}"));
        sets.add(ago(100).shifted(id), texts);
    }
    sets
}

/// Cassandra would refuse a larger batch, and every read carries the tally.
#[test]
fn a_tally_has_at_most_four_mebibytes() {
    let folded = |small: usize, last: usize| {
        let mut sets = sixteen();
        let texts = (0..small).map(|item| format!("{item:0>512}"));
        sets.add(ago(90), texts.chain([format!("{:a>last$}", "")]));
        match sets.plan() {
            Plan::Fold(fold) => (fold.tally().len(), *fold.report()),
            Plan::Nothing(report) => panic!("nothing to fold: {report:?}"),
        }
    };
    // As many whole items as fit, and a last one that fills the rest.
    let missing = TALLY_BYTES_MAX - folded(0, 128).0;
    let whole = folded(1, 128).0 - folded(0, 128).0;
    let (small, last) = (missing / whole, 128 + missing % whole);
    let (bytes, report) = folded(small, last);
    assert_eq!((bytes, report.folded, report.is_full), (TALLY_BYTES_MAX, 17, false));
    let (bytes, report) = folded(small, last + 1);
    assert!(bytes < TALLY_BYTES_MAX);
    assert_eq!((report.folded, report.is_full, report.has_more), (16, true, false));
}

#[test]
fn a_full_tally_says_so_until_it_takes_more() {
    let mut sets = sixteen();
    sets.add(ago(80), (0..200).map(|item| format!("{item:0>1020}")));
    let report = sets.fold();
    assert_eq!((report.folded, report.is_full), (16, true));
    assert_eq!(sets.0.len(), 2, "what does not fit stays");
    assert!(envelope::is_full(&sets.0[1].state));
    assert!(matches!(sets.plan(), Plan::Nothing(Report { is_full: true, folded: 0, .. })));
    // As if the row had been too large alone, and had been discarded.
    sets.0.remove(0);
    sets.add(ago(70), ["a".to_owned()].into_iter());
    let report = sets.fold();
    assert_eq!((report.folded, report.is_full, sets.0.len()), (1, false, 1));
    assert!(!envelope::is_full(&sets.0[0].state));
}

/// The tally is written again at its own fence, and the bytes with the "full" flag must win.
#[test]
fn of_two_tallies_with_one_fence_the_full_one_wins() {
    let mut sets = sixteen();
    let fence = ago(80).shifted(-1);
    let mut tally = sets.plan().fold().expect("a fold").tally().to_vec();
    let (_, state) =
        envelope::decode_tally(KeySeal::of(&key(Kind::GSet)), Kind::GSet, &tally).expect("ours");
    tally = envelope::encode_tally(KeySeal::of(&key(Kind::GSet)), &state, fence);
    let (expires_at, mutator_id) = (Timestamp::NEVER, MutatorId::TALLY);
    sets.0 = vec![Row { expires_at, mutator_id, state: tally.clone() }];
    sets.add(ago(80), (0..200).map(|item| format!("{item:0>1020}")));
    let plan = sets.plan();
    let again = plan.fold().expect("a fold that says so");
    assert_eq!((again.fence(), again.report().folded), (fence, 0));
    assert!(again.tally() > tally.as_slice());
}

/// The plan of all final shards, made from a walk in parts.
fn plan_in_parts(key: &Key, rows: &[Row], now: Timestamp) -> Plan {
    let cut = cut(now, &constants());
    let (shards, tally): (Vec<_>, Vec<_>) = rows.iter().cloned().partition(|row| !row.is_tally());
    let until = Until::cut(cut, (usize::MAX, usize::MAX), TALLY_BYTES_MAX);
    let size = PartSize { rows: (3, 1_000), bytes: usize::MAX, expiry_rows: 1_000 };
    let tally = tally.into_iter().next();
    let answer = |part: Part| {
        let mut rows = shards.clone();
        rows.retain(|row| Some(row.expires_at) > part.after && row.expires_at <= part.through);
        rows.sort_by_key(|row| row.expires_at);
        rows.truncate(part.limit);
        rows
    };
    let mut walk = Walk::begin(key.clone(), tally.clone(), cut, until, size).expect("begun");
    while let Some(part) = walk.next() {
        walk.take(answer(part)).expect("sound rows");
    }
    let mut recheck = walk.end(tally.as_ref()).expect("nothing changed");
    while let Some(part) = recheck.next() {
        recheck.take(answer(part)).expect("sound rows");
    }
    let read = recheck.end(tally.as_ref()).expect("nothing changed");
    plan_prefix(read, now, &constants()).expect("a plan")
}

#[test]
fn a_walk_takes_what_fits_then_nothing_until_more_fits() {
    let mut sets = sixteen();
    sets.add(ago(80), (0..200).map(|item| format!("{item:0>1020}")));
    let key = key(Kind::GSet);
    let plan = plan_in_parts(&key, &sets.0, NOW);
    assert_eq!(plan, sets.plan(), "as at once, except for what it does not look at");
    sets.fold();
    // The fence can't rise, so a new fold would say nothing new.
    let again = plan_in_parts(&key, &sets.0, NOW);
    assert!(matches!(again, Plan::Nothing(Report { is_full: true, folded: 0, .. })), "{again:?}");
}

/// A full key takes no adds, so no later row brings a later time.
#[test]
fn a_full_set_has_room_again_once_its_removals_are_old() {
    let key = key(Kind::LwwSet);
    let row_of = |op: &str, batch: i64, expires_at: Timestamp| {
        let items: Vec<_> = (0..230).map(|item| format!("{batch:02}-{item:0>1000}")).collect();
        let body = serde_json::json!({"op": op, "items": items});
        let mut op = Kind::LwwSet.parse_op(&body).expect("an op");
        op.stamp(expires_at.minus(Duration::from_secs(50)));
        let mut state = State::new(Kind::LwwSet, None);
        state.apply(&op).expect("within the bound");
        let mutator_id = MutatorId::new(Uuid::from_u128(1));
        let seal = KeySeal::of(&key).row(expires_at, mutator_id);
        Row { expires_at, mutator_id, state: envelope::encode_shard(seal, &state, 1) }
    };
    let adds = (0..20).map(|batch| row_of("add", batch, ago(100).shifted(batch)));
    let removals = (0..5).map(|batch| row_of("remove", batch, ago(90).shifted(batch)));
    let rows: Vec<Row> = adds.chain(removals).collect();
    let planned = |now: Timestamp| {
        let slice = rows.iter().rev().cloned().collect();
        let slice = Slice::new(slice, None, 10_000).whole().expect("whole");
        let read = FullRead::at_fold_level(key.clone(), slice);
        let report = *plan(&read, now, &constants()).expect("a plan").report();
        assert_eq!(report.is_full, plan_in_parts(&key, &rows, now).report().is_full);
        report
    };
    assert!(planned(NOW).is_full);
    let later = planned(NOW.plus(Duration::from_secs(9 * 24 * 3600)));
    assert_eq!((later.is_full, later.folded), (false, 25));
}

/// Removals in later rows can make room for earlier ones.
#[test]
fn rows_that_fit_only_together_are_folded_together() {
    let key = key(Kind::OrSet);
    let row_of = |body: serde_json::Value, expires_at: Timestamp| {
        let mutator_id = MutatorId::new(Uuid::from_u128(1));
        let mut op = Kind::OrSet.parse_op(&body).expect("an op");
        op.open(&key, NOW).expect("a token of this key");
        op.assign(&mut || Dot { expires_at, mutator_id, seq: 1 });
        let mut state = State::new(Kind::OrSet, None);
        state.apply(&op).expect("within the bound");
        let seal = KeySeal::of(&key).row(expires_at, mutator_id);
        Row { expires_at, mutator_id, state: envelope::encode_shard(seal, &state, 1) }
    };
    let mut rows: Vec<Row> = (0..20_i64)
        .map(|number| {
            let items: Vec<_> = (0..230).map(|item| format!("{number:02}-{item:0>1000}")).collect();
            let add = serde_json::json!({"op": "add", "items": items});
            row_of(add, ago(100).shifted(number))
        })
        .collect();
    let planned = |rows: &[Row]| {
        let rows = rows.iter().rev().cloned().collect();
        let slice = Slice::new(rows, None, 10_000).whole().expect("whole");
        let read = FullRead::at_fold_level(key.clone(), slice);
        *plan(&read, NOW, &constants()).expect("a plan").report()
    };
    let before = planned(&rows);
    assert!(before.is_full && before.folded < 20, "{before:?}");
    // A client has read the first five rows, and clears the items in them.
    let mut seen = State::identity(Kind::OrSet);
    for row in &rows[..5] {
        seen.merge(&RowReader::of(&key).state(row).expect("ours")).expect("mergeable");
    }
    let question = Question { key: Some(key.clone()), ..Question::default() };
    let shown = serde_json::to_value(seen.value(&question).shown(false)).expect("JSON");
    let clear = serde_json::json!({"op": "clear", "context": shown["context"]});
    rows.push(row_of(clear, ago(90)));
    let after = planned(&rows);
    assert_eq!((after.is_full, after.folded), (false, 21), "{after:?}");
}

proptest! {
    /// The ancestor's defect 6: folds that ran concurrently, or met rows that came back, counted twice. Here
    /// folds are planned at any time and executed in any order, more than once, over rows that keep coming
    /// back. Every read stays right (I5, I6, I8), and equal shards give equal bytes (I11).
    #[test]
    fn regression_6_any_schedule_of_folds_reads_right(
        shards in prop::collection::vec((0..200u64, 1..4u128, -1000..1000i128), 1..20),
        folds in prop::collection::vec((0..60u64, any::<prop::sample::Index>(), any::<bool>()), 1..12),
    ) {
        let mut rows = Rows::default();
        for &(seconds, id, total) in &shards {
            rows.shard(ago(seconds), id, total);
        }
        let (original, total) = (rows.clone(), rows.total());
        let mut plans = Vec::new();
        for (late, pick, returns) in folds {
            let now = NOW.minus(Duration::from_secs(late % 8));
            if let Ok(Plan::Fold(fold)) = plan(&rows.read(), now, &constants()) {
                plans.push(fold);
            }
            if !plans.is_empty() {
                rows.execute(pick.get(&plans));
                prop_assert_eq!(rows.total(), total);
            }
            if returns {
                // Everything below the fence comes back at once, as if all tombstones were purged.
                for (place, cell) in &original.0 {
                    rows.0.entry(*place).or_insert(cell.clone());
                }
                prop_assert_eq!(rows.total(), total);
            }
        }
        // Later, one more shard is final, so both ways end with the same fence.
        let mut at_once = original;
        for rows in [&mut rows, &mut at_once] {
            rows.shard(ago(25), 9, 5);
            let last = planned(rows, NOW.plus(Duration::from_secs(10)));
            rows.execute(&last);
        }
        prop_assert_eq!(rows, at_once);
    }
}

/// Longer than L + C + 1 h.
const IDLE_TTL: Duration = Duration::from_secs(4_000);

fn idle() -> Option<Idle> {
    constants().check_idle_ttl(IDLE_TTL).expect("long enough");
    Some(Idle { ttl: IDLE_TTL, read_at: Duration::from_secs(9) })
}

fn forgotten(rows: &Rows, now: Timestamp) -> Option<Fold> {
    let plan = plan_or_forget(&rows.read(), idle(), now, &constants()).expect("a plan");
    plan.fold().filter(|fold| fold.report().forgotten).cloned()
}

impl Rows {
    fn is_absent(&self) -> bool {
        let read = assemble(&key(Kind::Counter), self.read().slice(), NOW, &constants());
        matches!(read.expect("readable"), Answer::Grave(..))
    }
}

#[test]
fn a_key_is_forgotten_once_its_fence_and_its_rows_are_old() {
    let of_row = |seconds| {
        let mut rows = Rows::default();
        rows.shard(ago(seconds), 1, 1);
        rows
    };
    assert_eq!(forgotten(&of_row(3_999), NOW), None);
    let mut lone = of_row(4_000);
    let fold = forgotten(&lone, NOW).expect("idle to the microsecond");
    let head_start = Duration::from_secs(2 * 4 + 2 + 2);
    assert_eq!((fold.fence(), fold.timestamp()), (ago(30), ago(30).next()));
    assert_eq!(fold.tally_timestamp(), ago(30).plus(head_start));
    assert_eq!((fold.report().folded, fold.report().fence_before), (1, None));
    lone.execute(&fold);
    assert_eq!((lone.0.len(), lone.is_absent()), (1, true));

    // The fence of a tally is the time of its fold.
    let folded = |seconds: u64| {
        let mut rows = of_row(seconds + 100);
        rows.execute(&planned(&rows, ago(seconds - 30)));
        rows
    };
    assert_eq!(forgotten(&folded(3_999), NOW), None);
    assert_eq!(forgotten(&folded(4_000), NOW).expect("idle").report().folded, 0);
    let plan = plan_or_forget(&folded(4_000).read(), None, NOW, &constants());
    assert!(matches!(plan, Ok(Plan::Nothing(_))), "no rule says so");
    let mut zombies = folded(4_000);
    zombies.shard(ago(4_001), 2, 5);
    assert_eq!(forgotten(&zombies, NOW).expect("idle").report().zombies, 1);
    for (seconds, id) in [(3_999, 2), (30, 2), (29, 2), (0, 2)] {
        let mut used = folded(4_000);
        used.shard(ago(seconds), id, 5);
        assert_eq!(forgotten(&used, NOW), None, "a row that expired {seconds} s ago");
    }
}

#[test]
fn a_damaged_row_keeps_a_key_from_being_forgotten() {
    let mut rows = Rows::default();
    rows.shard(ago(5_000), 1, 1);
    rows.0.values_mut().next().expect("a row").1[3] ^= 1;
    let plan = plan_or_forget(&rows.read(), idle(), NOW, &constants());
    assert!(matches!(plan, Err(FoldError::Row(RowError::Undecodable { .. }))), "{plan:?}");
}

/// Sent later, the grave would lose against folds that were planned meanwhile, and the key would come back.
#[test]
fn a_key_is_forgotten_within_the_request_budget_after_its_read() {
    let mut rows = Rows::default();
    rows.shard(ago(5_000), 1, 1);
    let fold = forgotten(&rows, NOW).expect("idle");
    let last = Duration::from_secs(9) + constants().request_budget();
    assert!(fold.may_be_sent(last) && !fold.may_be_sent(last + Duration::from_nanos(1)));
    assert!(planned(&rows, NOW).may_be_sent(Duration::MAX));
}

#[test]
fn a_grave_stays_while_it_is_young_or_has_zombies() {
    let mut rows = Rows::default();
    rows.shard(ago(5_000), 1, 1);
    let zombie = rows.clone();
    let grave = forgotten(&rows, NOW).expect("idle");
    rows.execute(&grave);
    let same = |fold: &Fold| {
        assert_eq!((fold.fence(), fold.tally()), (grave.fence(), grave.tally()));
        assert_eq!(fold.tally_timestamp(), grave.tally_timestamp());
        assert!(fold.report().is_grave && !fold.report().forgotten);
        assert!(fold.may_be_sent(Duration::MAX));
    };
    // Rows up to its timestamp may not be final yet.
    let later = NOW.plus(constants().grave_head_start());
    let early = plan(&rows.read(), later.shifted(-1), &constants()).expect("a plan");
    assert!(matches!(early, Plan::Nothing(Report { is_grave: true, .. })), "{early:?}");
    same(&planned(&rows, later));
    let repeats_until = grave.fence().plus(constants().grave_repeats_for());
    same(&planned(&rows, repeats_until.shifted(-1)));
    let plan = plan_or_forget(&rows.read(), idle(), repeats_until, &constants()).expect("a plan");
    assert!(matches!(plan, Plan::Nothing(Report { is_grave: true, .. })), "{plan:?}");
    rows.0.extend(zombie.0);
    assert!(rows.is_absent());
    same(&planned(&rows, repeats_until));
    let all: Vec<Row> = rows.read().slice().tally().cloned().into_iter().collect();
    let parts = plan_in_parts(&key(Kind::Counter), &all, repeats_until);
    same(parts.fold().expect("it may have zombies"));
    rows.execute(&grave);
    assert_eq!(rows.0.len(), 1);
}

#[test]
fn an_update_ends_a_grave() {
    let mut rows = Rows::default();
    rows.shard(ago(5_000), 1, 1);
    rows.execute(&forgotten(&rows, NOW).expect("idle"));
    rows.shard(NOW, 2, 7);
    assert_eq!((rows.is_absent(), rows.total()), (false, 7));
    let later = NOW.plus(Duration::from_secs(30));
    let fold = planned(&rows, later);
    assert_eq!((fold.fence(), fold.report().is_grave), (NOW, false));
    let all = |rows: &Rows| {
        let read = rows.read();
        read.slice().tally().into_iter().chain(read.slice().shards()).cloned().collect::<Vec<_>>()
    };
    let in_parts = plan_in_parts(&key(Kind::Counter), &all(&rows), later);
    assert_eq!(in_parts.fold().map(Fold::tally), Some(fold.tally()));
    rows.execute(&fold);
    assert_eq!((rows.0.len(), rows.is_absent(), rows.total()), (1, false, 7));
    let idle_again = NOW.plus(IDLE_TTL);
    assert_eq!(forgotten(&rows, idle_again.shifted(-1)), None);
    assert!(forgotten(&rows, idle_again).is_some());
}

/// The fold would delete the row, and its tally would lose against the grave.
#[test]
fn rows_right_above_a_grave_are_folded_once_the_fold_wins() {
    let mut rows = Rows::default();
    rows.shard(ago(5_000), 1, 1);
    rows.execute(&forgotten(&rows, NOW).expect("idle"));
    // No acknowledged row expires here, but one that was never acknowledged can.
    rows.shard(ago(29), 2, 7);
    let after = |seconds| NOW.plus(Duration::from_secs(seconds));
    let plan = plan(&rows.read(), after(11), &constants()).expect("a plan");
    assert!(matches!(plan, Plan::Nothing(Report { kept: 1, .. })), "{plan:?}");
    rows.execute(&planned(&rows, after(12)));
    assert_eq!((rows.0.len(), rows.total()), (1, 7));
}

proptest! {
    /// Folds of zombies that were planned up to R after a key was forgotten, by a clock up to 2ε ahead, and
    /// that are sent at any time, do not bring it back.
    #[test]
    fn no_earlier_fold_brings_a_forgotten_key_back(
        folds in prop::collection::vec((0..10_000u64, any::<bool>(), any::<bool>()), 1..8),
        sent in prop::collection::vec(any::<prop::sample::Index>(), 1..16),
    ) {
        let constants = constants();
        let mut rows = Rows::default();
        rows.shard(ago(6_000), 1, 1);
        rows.execute(&planned(&rows, ago(4_900)));
        rows.shard(ago(5_500), 2, 2);
        let grave = forgotten(&rows, NOW).expect("idle");
        let mut plans = vec![grave.clone()];
        for (ahead_ms, has_zombies, is_early) in folds {
            let mut seen = rows.clone();
            if !has_zombies {
                seen.0.retain(|(expires_at, _), _| *expires_at == Timestamp::NEVER);
                seen.shard(ago(4_500), 3, 4);
            }
            let ahead = Duration::from_millis(ahead_ms);
            prop_assert!(ahead <= 2 * constants.clock_offset_max() + constants.request_budget());
            let now = if is_early { NOW.minus(ahead) } else { NOW.plus(ahead) };
            plans.push(planned(&seen, now));
        }
        for index in sent {
            rows.execute(index.get(&plans));
        }
        rows.execute(&grave);
        prop_assert!(rows.is_absent());
        for fold in &plans {
            rows.execute(fold);
            prop_assert!(rows.is_absent());
        }
    }
}

/// A tool that does not know of the pods' shorter cutoff must not report their clocks as wrong.
#[test]
fn a_cutoff_that_is_only_assumed_proves_nothing() {
    let (known, assumed) = (constants(), constants().assumed());
    let young = NOW.minus(known.cutoff()).plus(2 * known.clock_offset_max()).next();
    assert!(proves_moved_clock(young, NOW, &known) && !proves_moved_clock(young, NOW, &assumed));
    let ahead = NOW.plus(2 * known.clock_offset_max());
    assert!(!proves_moved_clock(ahead, NOW, &assumed));
    assert!(proves_moved_clock(ahead.next(), NOW, &assumed));
}
