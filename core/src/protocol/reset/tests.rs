use super::*;
use crate::crdt::envelope::{KeySeal, encode_stamped_pack, encode_stamped_shard};
use crate::crdt::pack::{IdOp, Pack};
use crate::crdt::{Counter, CounterOp, Op};
use crate::protocol::fold::{self, FoldError, Grave, Idle, Plan};
use crate::protocol::read::{self, Answer};
use crate::protocol::{Mutator, MutatorId, Overrides, Slice, WholeSlice};
use uuid::Uuid;

/// ℓ is 2 s, M 7 s, C 30 s and ε 4 s.
fn constants() -> Constants {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let overrides = Overrides {
        lifetime: seconds(60),
        drain_margin: seconds(10),
        cutoff: seconds(30),
        ..Overrides::default()
    };
    let constants = Constants::resolve(overrides).expect("consistent");
    constants.check_resets().expect("long enough");
    constants
}

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn wall(seconds: i64) -> Timestamp {
    START.shifted(seconds * 1_000_000)
}

fn boot(seconds: u64) -> Duration {
    Duration::from_secs(1_000 + seconds)
}

fn at(seconds: u64) -> Now {
    Now { wall: wall(seconds.cast_signed()), boot: boot(seconds) }
}

fn generation(seconds: i64) -> Generation {
    Generation::at(wall(seconds))
}

fn key() -> Key {
    let name = |text| Name::new(text).expect("a name");
    Key { kind: Kind::Counter, group: name("g"), name: name("n") }
}

fn other() -> Key {
    Key { name: Name::new("o").expect("a name"), ..key() }
}

fn row(generation_s: i64, until_s: i64) -> LogRow {
    let Key { kind, group, name } = key();
    let (generation, until) = (generation(generation_s), wall(until_s));
    let (id, names, is_deletion) = (Uuid::nil(), vec![name], false);
    LogRow { id, kind, group, names, generation, until, is_deletion }
}

fn part() -> u8 {
    bucket(key().kind, &key().group)
}

fn looked(log: &mut Log, began: u64, rows: &[LogRow]) {
    let asked = Asked { after: ALL_ROWS, distrusts: log.distrusts };
    looked_for(log, began, asked, rows);
}

fn looked_for(log: &mut Log, began: u64, asked: Asked, rows: &[LogRow]) -> bool {
    rows.iter().for_each(|row| log.saw(part(), row));
    log.looked(part(), at(began), asked, rows)
}

fn admit(log: &Log, seconds: u64) -> Result<Option<Generation>, Shut> {
    log.admit(&key(), None, Side::Any, at(seconds), &constants())
}

fn fate(log: &Log, stamp: Option<Generation>, seconds: u64) -> Fate {
    log.fate(&key(), stamp, boot(seconds), &constants())
}

#[test]
fn updates_are_taken_only_under_a_fresh_look() {
    let mut log = Log::default();
    assert_eq!(admit(&log, 0), Err(Shut::NeverRead), "nothing was read yet");
    assert_eq!(log.age(boot(0)), None);
    looked(&mut log, 0, &[]);
    assert_eq!(admit(&log, 1), Ok(None));
    assert_eq!(admit(&log, 2), Err(Shut::Unread(Duration::from_secs(2))), "exactly ℓ");
    looked(&mut log, 3, &[row(1, 100)]);
    looked(&mut log, 2, &[]);
    assert_eq!(
        admit(&log, 4),
        Ok(Some(generation(1))),
        "an older look that ends late changes nothing"
    );
    let of_other = log.admit(&other(), None, Side::Any, at(4), &constants());
    assert_eq!(of_other, Ok(None), "another key of the part");
    log.distrust();
    assert_eq!(admit(&log, 4), Err(Shut::NeverRead));
    assert_eq!(log.stamp(&key()), Some(generation(1)), "what is known stays known");
}

/// Its own memory is the log, and what it began it knows at once.
#[test]
fn a_process_that_is_alone_needs_no_looks() {
    let mut log = Log::alone(&[row(1, 100)]);
    assert_eq!(
        (admit(&log, 50), log.age(boot(50))),
        (Ok(Some(generation(1))), Some(boot(0) - boot(0)))
    );
    assert_eq!(fate(&log, Some(generation(1)), 50), Fate::Stands);
    assert_eq!(fate(&log, None, 0), Fate::Over, "no row from before the start is written any more");
    log.begin(&row(60, 160), boot(60));
    assert_eq!(fate(&log, Some(generation(1)), 61), Fate::Stands, "it was taken before");
    assert_eq!(fate(&log, Some(generation(1)), 62), Fate::Over, "exactly ℓ");
    assert_eq!(log.remembered(), 2);
    log.close(&row(60, 160));
    assert_eq!(fate(&log, Some(generation(1)), 61), Fate::Over);
    assert_eq!(log.remembered(), 1);
    assert_eq!(
        (admit(&log, 61), log.takes(&key(), Some(generation(1)))),
        (Ok(Some(generation(60))), false)
    );
    let of_other = log.admit(&other(), None, Side::Any, at(61), &constants());
    assert_eq!(
        (of_other, log.fate(&other(), None, boot(61), &constants())),
        (Ok(None), Fate::Stands)
    );
}

#[test]
fn a_row_must_expire_after_the_reset_that_it_is_stamped_with() {
    let mut log = Log::default();
    looked(&mut log, 10, &[row(19, 100)]);
    let pack = |until| log.admit(&key(), Some(wall(until)), Side::Any, at(10), &constants());
    assert_eq!(pack(19), Err(Shut::Ahead));
    assert_eq!(pack(20), Ok(Some(generation(19))));
    // 2ε and a second.
    let mut behind = Log::default();
    looked(&mut behind, 9, &[row(19, 100)]);
    assert_eq!(admit(&behind, 9), Err(Shut::Ahead));
    assert_eq!(admit(&behind, 10), Ok(Some(generation(19))));
}

#[test]
fn an_ack_stands_by_the_last_look_that_showed_no_newer_reset() {
    let mut log = Log::default();
    looked(&mut log, 0, &[]);
    assert_eq!(fate(&log, None, 1), Fate::Stands);
    assert_eq!(fate(&log, None, 2), Fate::Waits, "until the next look");
    looked(&mut log, 2, &[]);
    assert_eq!(fate(&log, None, 3), Fate::Stands);
    looked(&mut log, 3, &[row(2, 100)]);
    assert_eq!(fate(&log, None, 3), Fate::Stands, "the earlier look counts for ℓ");
    assert_eq!(fate(&log, None, 4), Fate::Over);
    assert_eq!(fate(&log, Some(generation(2)), 4), Fate::Stands, "born after the reset");
    assert!(!log.takes(&key(), None) && log.takes(&key(), Some(generation(2))));
    let mut fresh = Log::default();
    looked(&mut fresh, 0, &[row(2, 100)]);
    assert_eq!(fate(&fresh, None, 0), Fate::Over, "no look was without it");
}

/// The later generation can be seen first, if the other one was acknowledged late.
#[test]
fn of_several_newer_resets_the_earliest_seen_decides() {
    for rows in [[row(5, 100), row(4, 100)], [row(4, 100), row(5, 100)]] {
        let mut log = Log::default();
        looked(&mut log, 0, &[]);
        looked(&mut log, 1, &rows[..1]);
        looked(&mut log, 2, &rows);
        assert_eq!(fate(&log, None, 1), Fate::Stands);
        assert_eq!(fate(&log, None, 2), Fate::Over, "the look at 1 showed one of them");
        assert_eq!(log.stamp(&key()), Some(generation(5)));
    }
}

/// A key can be reset each minute for days.
#[test]
fn of_many_resets_of_a_key_the_last_one_is_kept() {
    let constants = constants();
    let mut log = Log::default();
    looked(&mut log, 0, &[]);
    looked(&mut log, 1, &[row(1, 100)]);
    looked(&mut log, 2, &[row(2, 110)]);
    log.forget(at(2), &constants);
    assert_eq!(log.remembered(), 2, "an ack can stand that the earlier one forbids");
    assert_eq!(fate(&log, None, 2), Fate::Over);
    assert_eq!(fate(&log, Some(generation(1)), 2), Fate::Stands, "by the look of 1");
    log.forget(at(3), &constants);
    assert_eq!((log.remembered(), log.stamp(&key())), (1, Some(generation(2))));
    for stamp in [None, Some(generation(1))] {
        assert_eq!(fate(&log, stamp, 3), Fate::Over);
    }
    looked(&mut log, 3, &[row(1, 100), row(2, 110)]);
    assert_eq!(log.remembered(), 1, "a look shows the earlier one again");
    let earlier = Remembered::stored(generation(1), wall(100), Vec::new()).expect("in order");
    assert_eq!(log.met(&key(), &earlier, wall(9), &constants), None, "the log has not lost it");
    // One that is remembered longer must stay: rows that it clears can come until then.
    let mut longer = Log::alone(&[row(1, 120), row(2, 110)]);
    longer.begin(&row(3, 115), boot(3));
    longer.close(&row(3, 115));
    assert_eq!((longer.remembered(), longer.stamp(&key())), (2, Some(generation(3))));
    longer.forget(at(116), &constants);
    assert_eq!((longer.remembered(), longer.stamp(&key())), (1, Some(generation(1))));
}

/// Only it counts as caused by the reset.
#[test]
fn a_key_has_one_first_birth_after_each_reset() {
    let mut log = Log::alone(&[row(1, 100)]);
    let is_first = |log: &mut Log, of| log.is_first_birth(&key(), of);
    assert!(!is_first(&mut log, None));
    assert!(is_first(&mut log, Some(generation(1))));
    assert!(!is_first(&mut log, Some(generation(1))));
    log.begin(&row(2, 101), boot(2));
    assert!(is_first(&mut log, Some(generation(2))));
    assert!(!is_first(&mut log, Some(generation(2))));
    assert!(!log.is_first_birth(&other(), Some(generation(2))));
}

#[test]
fn resets_are_forgotten_in_time_and_logged_again_if_lost() {
    let mut log = Log::default();
    looked(&mut log, 0, &[row(1, 100)]);
    log.forget(at(100), &constants());
    assert_eq!((log.stamp(&key()), log.remembered()), (Some(generation(1)), 1));
    log.forget(at(101), &constants());
    assert_eq!((log.stamp(&key()), log.remembered()), (None, 0));
    let reset = Remembered::stored(generation(2), wall(90), Vec::new()).expect("in order");
    let met = |log: &mut Log, now| log.met(&key(), &reset, wall(now), &constants());
    assert_eq!(met(&mut log, 91), None, "its time is over");
    let mut early = log.clone();
    looked(&mut early, 25, &[]);
    assert_eq!(met(&mut early, 90), None, "it may have been logged since");
    looked(&mut log, 26, &[]);
    assert_eq!(early.stamp(&key()), Some(generation(2)), "but now it is known");
    looked(&mut early, 26, &[]);
    assert!(met(&mut early, 90).is_some(), "it was not");
    assert_eq!(met(&mut early, 90), None, "told once");
    assert_eq!(met(&mut Log::default(), 90), None, "nothing was read yet");
    let lost = met(&mut log, 89).expect("the log has lost it");
    assert_eq!(lost, LogRow { id: lost.id, ..row(89, 90) });
    let mut other_pod = Log::default();
    looked(&mut other_pod, 88, &[]);
    assert!(other_pod.look_after(part(), at(89), &constants()).after < lost.generation.time());
    looked(&mut other_pod, 89, std::slice::from_ref(&lost));
    let stamp = admit(&other_pod, 89).expect("it has looked");
    assert!(reset.counts(stamp, wall(80)), "its rows count after the reset");
    assert_eq!(met(&mut other_pod, 90), None, "the log has it");
    let of_other = log.met(&other(), &reset, wall(90), &constants()).expect("it has lost this one");
    assert_ne!(lost.id, of_other.id, "one row would overwrite the other");
    assert_eq!(met(&mut log, 90), None, "told once");
    assert_eq!(admit(&log, 1), Ok(Some(generation(2))));
    assert_eq!(fate(&log, None, 0), Fate::Over);
}

/// A reset is remembered until the last row that it clears has expired. Pods can have other lifetimes, and an import
/// chooses its own.
#[test]
fn a_pod_that_starts_reads_resets_that_outlive_its_own_memory() {
    let (mut log, constants) = (Log::default(), constants());
    let longer = Rows::default().shard(1_000_000, None, 1);
    let reset = longer.attempt(10, false).expect("it exists");
    let row = reset.row();
    assert!(row.until > row.generation.time().plus(constants.reset_memory()));
    // A day before it is forgotten.
    let started = at(1_000_000 - 86_400);
    let asked = log.look_after(part(), started, &constants);
    assert!(row.generation.time() > asked.after, "the row is asked for");
    log.saw(part(), row);
    assert!(log.looked(part(), started, asked, std::slice::from_ref(row)));
    assert_eq!(log.admit(&key(), None, Side::Any, started, &constants), Ok(Some(generation(10))));
    log.distrust();
    assert_eq!(log.look_after(part(), started, &constants).after, asked.after);
}

#[test]
fn later_looks_reach_back_far_and_sometimes_read_all_rows() {
    let (mut log, constants) = (Log::default(), constants());
    looked(&mut log, 5, &[]);
    let after = |log: &mut Log, seconds| log.look_after(part(), at(seconds), &constants).after;
    let later = after(&mut log, 604);
    assert_eq!(later, wall(5).minus(Duration::from_secs(120)), "from the last look, not from now");
    assert_eq!(after(&mut log, 605), ALL_ROWS);
    assert_eq!(after(&mut log, 606), later, "if that one failed");
    looked_for(&mut log, 606, Asked { after: later, distrusts: 0 }, &[]);
    assert!(after(&mut log, 1_204) > ALL_ROWS);
    assert_eq!(after(&mut log, 1_205), ALL_ROWS);
}

/// The clock was found wrong while looks were under way.
#[test]
fn a_look_from_before_a_distrust_does_not_count() {
    let (mut log, constants) = (Log::default(), constants());
    let all = log.look_after(part(), at(0), &constants);
    log.distrust();
    assert!(!looked_for(&mut log, 0, all, &[]));
    looked(&mut log, 0, &[]);
    let some = log.look_after(part(), at(1), &constants);
    log.distrust();
    assert!(!looked_for(&mut log, 1, some, &[row(1, 100)]));
    assert_eq!(admit(&log, 1), Err(Shut::NeverRead));
    assert_eq!(log.stamp(&key()), Some(generation(1)), "what it showed is known");
    assert_eq!(log.look_after(part(), at(2), &constants).after, ALL_ROWS);
}

#[test]
fn rows_and_names_of_a_part_are_counted() {
    let mut log = Log::default();
    let size = |log: &Log| (log.size(part()).rows, log.size(part()).names);
    assert_eq!(size(&log), (0, 0));
    let names = vec![key().name, other().name];
    looked(&mut log, 0, &[row(1, 100), LogRow { names, ..row(3, 100) }, row(2, 100)]);
    assert_eq!(size(&log), (3, 4));
    let later = Asked { after: wall(1), distrusts: 0 };
    looked_for(&mut log, 4, later, &[row(2, 100), row(3, 100), row(4, 100)]);
    assert_eq!(size(&log), (4, 5), "later looks show rows again");
    looked_for(&mut log, 5, later, &[]);
    assert_eq!(size(&log), (4, 5));
    looked(&mut log, 700, &[row(4, 100)]);
    assert_eq!(size(&log), (1, 1), "of the others, the store keeps none");
}

/// Another pod has logged an old reset again, which the earlier looks did not ask for.
#[test]
fn no_ack_stands_by_a_look_that_did_not_ask_for_the_reset() {
    let mut log = Log::default();
    looked(&mut log, 300, &[]);
    let asked = log.look_after(part(), at(301), &constants());
    looked_for(&mut log, 301, asked, &[]);
    assert_eq!(fate(&log, None, 301), Fate::Stands);
    let mut recent = log.clone();
    looked(&mut log, 302, &[row(1, 1_000)]);
    assert_eq!(fate(&log, None, 302), Fate::Over);
    looked(&mut recent, 302, &[row(299, 1_000)]);
    assert_eq!(fate(&recent, None, 302), Fate::Stands, "the earlier look asked for this one");
}

#[test]
fn ids_that_can_not_be_listed_are_refused_around_a_reset() {
    let (mut log, constants) = (Log::default(), constants());
    let admit =
        |log: &Log, key: &Key, time| log.admit(key, None, Side::OfId(time), at(1), &constants);
    looked(&mut log, 0, &[]);
    assert_eq!(admit(&log, &key(), wall(0)), Ok(None));
    looked(&mut log, 1, &[row(1, 100)]);
    let last = wall(1).plus(constants.reset_blur());
    assert_eq!(admit(&log, &key(), wall(0)), Err(Shut::OtherSide));
    assert_eq!(admit(&log, &key(), last), Err(Shut::OtherSide));
    assert_eq!(admit(&log, &key(), last.next()), Ok(Some(generation(1))));
    assert_eq!(admit(&log, &other(), wall(0)), Ok(None));
    // The pod has learned of a reset in between, and the mutator that takes the op was born after it.
    let check = |stamp| log.check_side(Side::OfId(last.next()), stamp, &constants);
    assert_eq!(check(Some(generation(1))), Ok(()));
    assert_eq!(check(Some(generation(2))), Err(Shut::OtherSide));
    assert_eq!(check(None), Ok(()), "a row from before the reset");
}

#[test]
fn ops_that_may_be_stored_go_to_no_row_of_a_later_reset() {
    let (mut log, constants) = (Log::default(), constants());
    looked(&mut log, 1, &[row(1, 100)]);
    let admit = |stamp| log.admit(&key(), None, Side::Stored(stamp), at(1), &constants);
    assert_eq!(admit(None), Err(Shut::OtherSide));
    assert_eq!(admit(Some(generation(1))), Ok(Some(generation(1))));
    let check = |stamp| log.check_side(Side::Stored(Some(generation(1))), stamp, &constants);
    assert_eq!(check(Some(generation(2))), Err(Shut::OtherSide));
}

/// Rows of the key. The first of two with one address is the earlier one.
#[derive(Default, Clone)]
struct Rows(Vec<Row>);

impl Rows {
    fn shard(mut self, expires_at: i64, stamp: Option<i64>, total: i128) -> Rows {
        let id = MutatorId::new(Uuid::from_u128(u128::try_from(self.0.len()).expect("few") + 1));
        let seal = KeySeal::of(&key()).row(wall(expires_at), id);
        let state = State::Counter(Counter::from_total(total));
        let state = encode_stamped_shard(seal, &state, 1, stamp.map(generation));
        self.0.push(Row { expires_at: wall(expires_at), mutator_id: id, state });
        self
    }

    fn pack(mut self, expires_at: i64, stamp: Option<i64>, ids: &[(u8, i64)]) -> Rows {
        let id = MutatorId::new(Uuid::from_u128(u128::try_from(self.0.len()).expect("few") + 1));
        let seal = KeySeal::of(&key()).row(wall(expires_at), id);
        let mut pack = Pack::new(Kind::Counter, None);
        for &(id, by) in ids {
            let add = [Op::Counter(CounterOp::Add { by })];
            pack.put(&IdOp::new(Kind::Counter, op(id), 0, &add).expect("an op")).expect("room");
        }
        let state = encode_stamped_pack(seal, &pack, 1, stamp.map(generation));
        self.0.push(Row { expires_at: wall(expires_at), mutator_id: id, state });
        self
    }

    fn slice(&self) -> WholeSlice {
        let mut rows = self.0.clone();
        rows.sort_by_key(|row| (std::cmp::Reverse(row.expires_at), row.mutator_id));
        Slice::new(rows, None, 10_000).whole().expect("whole")
    }

    fn read(&self) -> FullRead {
        FullRead::at_fold_level(key(), self.slice())
    }

    /// After a fold, with the rows that a replica kept although they were deleted.
    fn folded(&self, fold: &Fold, keeps: bool) -> Rows {
        let tally = Row {
            expires_at: Timestamp::NEVER,
            mutator_id: MutatorId::TALLY,
            state: fold.tally().to_vec(),
        };
        let stays = |row: &&Row| !row.is_tally() && (keeps || row.expires_at > fold.fence());
        Rows(std::iter::once(tally).chain(self.0.iter().filter(stays).cloned()).collect())
    }

    /// None if the key is absent.
    fn value(&self) -> Option<i128> {
        match read::assemble(&key(), &self.slice(), wall(0), &constants()).expect("readable") {
            Answer::Value(reading) => match reading.state {
                State::Counter(counter) => Some(counter.total()),
                other => panic!("{other:?}"),
            },
            Answer::Absent | Answer::Grave(..) => None,
            Answer::ReadAgain => panic!("nothing is cached"),
        }
    }

    fn attempt(&self, seconds: u64, is_deletion: bool) -> Result<Attempt, ResetError> {
        self.attempt_after(None, seconds, is_deletion)
    }

    /// The log has a reset of this generation.
    fn attempt_after(
        &self,
        known: Option<Generation>,
        seconds: u64,
        is_deletion: bool,
    ) -> Result<Attempt, ResetError> {
        let mut draft = Draft::begin(at(seconds));
        draft.add(&self.read(), known, &constants())?;
        Ok(draft.attempt(Uuid::nil(), is_deletion, &constants()).expect("a key"))
    }

    fn reset(&self, seconds: u64, is_deletion: bool) -> (Reset, i128) {
        let attempt = self.attempt(seconds, is_deletion).expect("it exists");
        let reset = attempt.plan(&self.read(), &constants()).expect("a plan");
        let State::Counter(cleared) = &reset.cleared else { panic!("{reset:?}") };
        let total = cleared.total();
        (reset, total)
    }

    fn fold(&self, seconds: i64) -> Fold {
        match fold::plan(&self.read(), wall(seconds), &constants()).expect("a plan") {
            Plan::Fold(fold) => fold,
            Plan::Nothing(report) => panic!("{report:?}"),
        }
    }
}

fn op(id: u8) -> OpId {
    OpId { id: [id; 16], index: 0 }
}

#[test]
fn a_reset_clears_what_counts_and_every_later_row_counts() {
    let before = Rows::default().shard(5, None, 1).shard(60, None, 2).shard(70, None, 4);
    let (reset, cleared) = before.reset(10, false);
    assert_eq!((cleared, reset.shards), (7, 3));
    assert_eq!((reset.fold.fence(), reset.fold.timestamp()), (wall(10), wall(10).next()));
    let after = before.folded(&reset.fold, true);
    assert_eq!(after.value(), Some(0), "also the rows that expire later, and those that came back");
    let used = after.shard(75, Some(10), 8).shard(65, None, 16);
    assert_eq!(used.value(), Some(8), "a late row from before the reset does not count");
    let used = used.folded(&used.fold(96), false);
    assert_eq!(used.value(), Some(8), "a fold carries the reset on");
    assert_eq!(used.clone().shard(70, None, 32).value(), Some(8));
    let folded = used.folded(&used.clone().shard(80, Some(10), 32).fold(111), false);
    assert_eq!(folded.value(), Some(40));
}

#[test]
fn a_marker_is_remembered_until_the_fence_passed_its_rows() {
    let constants = constants();
    let before = Rows::default().shard(60, None, 1);
    let (reset, _) = before.reset(10, false);
    let until = envelope::reset(reset.fold.tally()).expect("a reset").until();
    assert_eq!(until, wall(10).plus(constants.reset_memory()));
    let longer = Rows::default().shard(1_000_000, None, 1);
    let marker = longer.reset(10, false).0.fold;
    let of_longer = envelope::reset(marker.tally()).expect("a reset").until();
    assert_eq!(of_longer, wall(1_000_000), "no cleared row expires later");
    // The last fold that has to remember it, and the first that has not.
    let after = before.folded(&reset.fold, false);
    for (fence, remembers) in [(until.shifted(-1_000_000), true), (until, false)] {
        let seconds = i64::try_from(fence.since(START).as_secs()).expect("small");
        let used = after.clone().shard(seconds - 5, Some(10), 8);
        let fold = used.fold(seconds + 30);
        assert_eq!(envelope::reset(fold.tally()).is_some(), remembers, "{fence:?}");
        assert_eq!(used.folded(&fold, true).value(), Some(8));
    }
}

/// A row stamped by the first reset must not be born while the tally remembers the second one.
#[test]
fn a_reset_is_logged_for_as_long_as_the_tally_remembers_it() {
    let longer = Rows::default().shard(1_000_000, None, 1);
    let after = longer.folded(&longer.reset(10, false).0.fold, true).shard(70, Some(10), 2);
    let second = after.attempt(20, false).expect("it exists");
    assert_eq!(second.row().until, wall(1_000_000));
    let marker = second.plan(&after.read(), &constants()).expect("a plan").fold;
    assert_eq!(envelope::reset(marker.tally()).expect("a reset").until(), wall(1_000_000));
    // A reset that began before the first one has chosen a shorter time.
    let before = Rows::default().shard(70, None, 2).attempt(20, false).expect("it exists");
    let overtaken = before.plan(&after.read(), &constants()).map(|reset| reset.shards);
    assert_eq!(overtaken, Err(ResetError::Overtaken));
}

#[test]
fn cleared_ids_count_nothing_if_they_come_again() {
    let before =
        Rows::default().pack(60, None, &[(1, 1), (2, 2)]).pack(60, None, &[(2, 2), (3, 4)]);
    let (reset, cleared) = before.reset(10, false);
    assert_eq!(cleared, 7);
    let listed = envelope::reset(reset.fold.tally()).expect("a reset").ids().to_vec();
    assert_eq!(listed, [1, 2, 3].map(|id| (wall(60), op(id))));
    let again = before.folded(&reset.fold, true).pack(60, Some(10), &[(2, 2), (4, 8)]);
    assert_eq!(again.value(), Some(8), "a retry counts nothing, and another id at once");
    // The second reset clears the new id only, and carries the list on.
    let (second, cleared) = again.reset(20, false);
    assert_eq!(cleared, 8);
    let listed = envelope::reset(second.fold.tally()).expect("a reset");
    assert_eq!(listed.ids().len(), 4);
    let again = again.folded(&second.fold, true).pack(60, Some(20), &[(1, 1), (4, 8), (5, 16)]);
    assert_eq!(again.value(), Some(16));
    // A fold drops what its fence has passed.
    let early = again.clone().shard(40, Some(20), 32).fold(75);
    assert_eq!(envelope::reset(early.tally()).expect("a reset").ids().len(), 4);
    let late = again.fold(95);
    assert_eq!(late.fence(), wall(65));
    assert_eq!(envelope::reset(late.tally()).expect("a reset").ids(), []);
    assert_eq!(again.folded(&late, true).value(), Some(16));
}

#[test]
fn ids_that_expire_before_the_reset_are_not_listed() {
    let before = Rows::default().pack(10, None, &[(1, 1)]).pack(11, None, &[(2, 2)]);
    let (reset, cleared) = before.reset(10, false);
    assert_eq!(cleared, 3);
    let listed = envelope::reset(reset.fold.tally()).expect("a reset");
    assert_eq!(listed.ids(), [(wall(11), op(2))]);
}

#[test]
fn a_deleted_key_is_absent_until_a_row_counts() {
    let before = Rows::default().shard(60, None, 7);
    let (reset, cleared) = before.reset(10, true);
    assert_eq!(cleared, 7);
    let after = before.folded(&reset.fold, true);
    assert_eq!(after.value(), None, "the cleared row is there, and does not count");
    assert_eq!(after.attempt(20, true), Err(ResetError::Absent));
    let folded = after.folded(&after.fold(95), false);
    assert_eq!(folded.value(), None, "a fold of rows that do not count keeps the grave");
    let used = folded.shard(75, Some(10), 0);
    assert_eq!(used.value(), Some(0), "a new life");
    let used = used.folded(&used.fold(106), false);
    assert_eq!(used.value(), Some(0));
    assert!(!envelope::is_grave(&used.0[0].state));
    assert_eq!(Rows::default().attempt(20, false), Err(ResetError::Absent));
}

/// The row of a retry holds nothing that counts.
#[test]
fn a_deleted_key_stays_absent_if_a_cleared_op_is_sent_again() {
    let (marker, _) = Rows::default().pack(60, None, &[(1, 1)]).reset(10, true);
    let deleted = Rows::default().folded(&marker.fold, false);
    let again = deleted.clone().pack(60, Some(10), &[(1, 1)]);
    assert_eq!(again.value(), None);
    assert_eq!(again.attempt(20, true), Err(ResetError::Absent));
    let shards = read::shards(&key(), &again.slice(), wall(20), &constants());
    assert!(shards.len() == 1 && shards[0].is_cleared, "{shards:?}");
    let fold = again.fold(95);
    assert_eq!((fold.report().folded, fold.report().cleared), (0, 1));
    assert!(envelope::is_grave(fold.tally()));
    let with_another = deleted.pack(60, Some(10), &[(1, 1), (2, 2)]);
    assert_eq!(with_another.value(), Some(2));
}

/// Until then, cleared rows that come back would count again.
#[test]
fn an_idle_key_is_forgotten_once_it_needs_its_reset_no_more() {
    let constants = constants();
    let before = Rows::default().shard(60, None, 7);
    let (marker, until) = {
        let marker = before.reset(10, false).0.fold;
        let until = envelope::reset(marker.tally()).expect("a reset").until();
        (marker, until)
    };
    let after = before.folded(&marker, false);
    let idle = Some(Idle { ttl: Duration::from_secs(4_000), read_at: boot(9) });
    let plan = |now| fold::plan_or_forget(&after.read(), idle, now, &constants).expect("a plan");
    let last = until.plus(constants.cutoff());
    assert!(last > wall(4_010), "it would be idle before");
    let early = plan(last.shifted(-1_000_000));
    assert!(early.fold().is_none_or(|fold| !fold.report().forgotten), "{early:?}");
    let late = plan(last);
    let grave = late.fold().expect("idle");
    assert!(grave.report().forgotten && grave.fence() == until);
    assert_eq!(envelope::reset(grave.tally()), None);
    assert_eq!(grave.tally_timestamp(), until.plus(constants.grave_head_start()));
}

/// Rows that count can expire right above the fence of a deleted key, so its grave has no head start. The grave of an
/// idle key has one, and no reset.
#[test]
fn the_grave_of_a_deleted_key_has_the_timestamp_of_a_fold() {
    let constants = constants();
    let before = Rows::default().shard(60, None, 7);
    let marker = before.reset(10, true).0.fold;
    assert_eq!(marker.tally_timestamp(), marker.timestamp());
    let reset = envelope::reset(marker.tally()).expect("a reset");
    let again = |rows: &Rows, tally: &[u8], fence, now| {
        let plan = fold::plan(&rows.read(), now, &constants).expect("a plan");
        let fold = plan.fold().expect("written again").clone();
        assert_eq!((fold.tally(), fold.fence()), (tally, fence));
        assert_eq!(fold.tally_timestamp(), fold.timestamp());
        assert!(fold.report().is_grave && fold.may_be_sent(Duration::MAX));
    };
    // A cleared row is there, and a pod has begun the new life: its row is not final yet.
    let after = before.folded(&marker, true).shard(75, Some(10), 1);
    again(&after, marker.tally(), marker.fence(), wall(50));
    let folded = after.folded(&after.fold(95), false);
    assert_eq!(folded.value(), Some(1));
    let grave = folded.0[0].clone();
    assert!(envelope::is_grave(&grave.state), "the row of the new life was not final");
    again(&folded, &grave.state, wall(65), wall(95));
    // A fold with any greater fence replaces it.
    let fold = folded.fold(105);
    assert_eq!((fold.fence(), fold.report().folded), (wall(75), 1));
    // After its time the grave still says why it is one.
    let dead = before.folded(&marker, true).shard(80, None, 2);
    let late = dead.fold(i64::try_from(reset.until().since(START).as_secs()).expect("small") + 40);
    let dead = dead.folded(&late, false);
    let kept = envelope::reset(late.tally()).expect("it stays");
    assert!(late.fence() > reset.until() && kept.until() == reset.until());
    again(&dead, late.tally(), late.fence(), late.fence().plus(constants.cutoff()));
}

/// A purge must not remove what keeps cleared rows from counting.
#[test]
fn the_grave_of_a_deleted_key_is_removed_only_after_its_reset() {
    let constants = constants();
    let marker = Rows::default().shard(60, None, 7).reset(10, true).0.fold;
    let until = envelope::reset(marker.tally()).expect("a reset").until();
    let grave = Rows::default().folded(&marker, false);
    let settled = until.plus(constants.grave_repeats_for());
    assert_eq!(Grave::of(&grave.read(), settled.shifted(-1), &constants), None);
    let found = Grave::of(&grave.read(), settled, &constants).expect("no row can come back");
    assert_eq!(found.timestamp(), marker.timestamp());
}

#[test]
fn a_reset_gives_way_to_anything_newer() {
    let rows = Rows::default().shard(60, None, 1);
    let attempt = rows.attempt(10, false).expect("it exists");
    let plan = |rows: &Rows| attempt.plan(&rows.read(), &constants()).map(|reset| reset.shards);
    assert_eq!(plan(&rows), Ok(1));
    assert_eq!(plan(&rows.clone().shard(70, Some(10), 2)), Ok(1), "born after it");
    assert_eq!(plan(&rows.clone().shard(70, Some(11), 2)), Err(ResetError::Overtaken));
    let (newer, _) = rows.reset(11, false);
    assert_eq!(plan(&rows.folded(&newer.fold, true)), Err(ResetError::Overtaken));
    let late = wall(10).plus(constants().reset_memory()).since(START);
    let late = i64::try_from(late.as_secs()).expect("small") + 1;
    assert_eq!(plan(&rows.clone().shard(late, None, 2)), Err(ResetError::Overtaken));
    assert_eq!(plan(&rows.clone().shard(late, Some(10), 2)), Ok(1));
    let fold = rows.fold(100);
    assert!(fold.fence() >= wall(10));
    assert_eq!(plan(&rows.folded(&fold, false)), Err(ResetError::Overtaken));
    // A new attempt is above all of them.
    let stamped = rows.shard(70, Some(11), 2);
    let again = stamped.attempt_after(Some(generation(12)), 10, false).expect("it exists");
    assert_eq!(again.row().generation.time(), wall(12).next());
    let again = stamped.attempt(10, false).expect("it exists");
    assert_eq!(again.row().generation.time(), wall(11).next());
}

#[test]
fn a_reset_waits_for_the_lease_and_ends_after_its_time() {
    let constants = constants();
    let rows = Rows::default().shard(60, None, 1);
    let attempt = rows.attempt(10, false).expect("it exists");
    assert_eq!(attempt.read_from(boot(12), &constants), boot(14) + Duration::from_millis(2));
    let fold = attempt.plan(&rows.read(), &constants).expect("a plan").fold;
    assert!(fold.may_be_sent(boot(17)) && !fold.may_be_sent(boot(17) + Duration::from_nanos(1)));
    assert!(rows.fold(100).may_be_sent(Duration::MAX), "an ordinary fold always");
}

/// The fence of a marker is about now. Only one that is ahead of all honest clocks shuts the gate.
#[test]
fn a_marker_proves_a_moved_clock_only_if_it_is_ahead() {
    let rows = Rows::default().shard(60, None, 1);
    let after = rows.folded(&rows.reset(20, false).0.fold, true);
    let plan = |seconds| fold::plan(&after.read(), wall(seconds), &constants());
    // 2ε and a second.
    assert!(plan(11).is_ok());
    let (fence, moved) = (wall(20), plan(10).expect_err("it is ahead"));
    let shown = wall(20).minus(Duration::from_secs(31));
    assert_eq!(moved, FoldError::ClockMoved { fence, evidence: shown });
    assert!(moved.to_string().contains(&fence.as_micros().to_string()), "{moved}");
    let constants = constants();
    let fence = wall(20);
    let marker = evidence(fence, Some(Generation::at(fence)), &constants);
    assert!(fold::proves_moved_clock(fence, wall(20), &constants));
    assert!(!fold::proves_moved_clock(marker, wall(20), &constants));
    assert_eq!(evidence(fence, Some(generation(19)), &constants), fence, "an ordinary fold since");
    assert_eq!(evidence(fence, None, &constants), fence);
    // A fold over zombies writes the marker again, which says the same.
    let again = after.clone().shard(20, None, 9).fold(21);
    assert_eq!((again.fence(), again.evidence()), (fence, marker));
}

/// A reset above it would have a fence that proves a moved clock, and shuts all pods.
#[test]
fn a_reset_in_the_future_keeps_a_key_from_being_reset() {
    let rows = Rows::default().shard(60, None, 1);
    // 2ε and a second.
    for (ahead, attempt) in [(19, Ok(wall(19).next())), (20, Err(ResetError::Ahead))] {
        let generation_of = |begun: Result<Attempt, ResetError>| {
            begun.map(|attempt| attempt.row().generation.time())
        };
        let logged = rows.attempt_after(Some(generation(ahead)), 10, false);
        assert_eq!(generation_of(logged), attempt);
        let stamped = rows.clone().shard(70, Some(ahead), 2);
        assert_eq!(generation_of(stamped.attempt(10, false)), attempt);
    }
    let mut draft = Draft::begin(at(10));
    let stamped = rows.clone().shard(70, Some(20), 2);
    assert_eq!(draft.add(&stamped.read(), None, &constants()), Err(ResetError::Ahead));
    assert_eq!(draft.attempt(Uuid::nil(), false, &constants()), None, "no key is left");
}

/// A reset of a group has a generation above those of all its keys.
#[test]
fn a_draft_takes_the_latest_of_its_keys() {
    let (rows, constants) = (Rows::default().shard(60, Some(11), 1), constants());
    let mut draft = Draft::begin(at(10));
    for known in [None, Some(generation(12)), Some(generation(9))] {
        draft.add(&rows.read(), known, &constants).expect("it exists");
    }
    let attempt = draft.attempt(Uuid::nil(), false, &constants).expect("keys");
    assert_eq!((attempt.row().names.len(), attempt.row().generation.time()), (3, wall(12).next()));
}

/// C is 30 s, 2ε 8 s, Δ 12 s and R 2 s.
#[test]
fn a_marker_is_rewritten_only_while_no_fold_can_be_above_it() {
    let constants = constants();
    let before = Rows::default().shard(60, None, 1);
    let (reset, _) = before.reset(10, false);
    let after = before.folded(&reset.fold, true);
    let again = |rows: &Rows, of: i64, seconds| {
        marker_again(&rows.read(), generation(of), at(seconds), &constants)
    };
    let marker = again(&after, 10, 12).expect("a marker");
    assert_eq!(marker.tally(), reset.fold.tally());
    assert_eq!((marker.fence(), marker.timestamp()), (reset.fold.fence(), reset.fold.timestamp()));
    assert_eq!(marker.tally_timestamp(), reset.fold.tally_timestamp());
    assert!(
        marker.may_be_sent(boot(18)) && !marker.may_be_sent(boot(18) + Duration::from_nanos(1))
    );
    assert!(marker.ack_stands(boot(20), &constants));
    assert!(!marker.ack_stands(boot(20) + Duration::from_nanos(1), &constants));
    assert!(again(&after, 10, 18).is_some());
    assert_eq!(again(&after, 10, 19), None, "a fold of now could lie above it");
    assert_eq!(again(&after, 9, 12), None, "the marker of another reset");
    assert_eq!(again(&before, 10, 12), None, "no marker");
    let folded = after.folded(&after.fold(96), false);
    assert_eq!(again(&folded, 10, 12), None, "a fold has come");
    let deleted = before.folded(&before.reset(10, true).0.fold, true);
    let grave = again(&deleted, 10, 12).expect("a marker");
    assert_eq!(grave.tally_timestamp(), wall(10).next());
}

#[test]
fn the_acknowledgement_of_a_marker_stands_for_a_time() {
    let constants = constants();
    let rows = Rows::default().shard(60, None, 1);
    let (reset, _) = rows.reset(10, false);
    // M is 7 s, R 2 s.
    assert!(reset.fold.ack_stands(boot(19), &constants));
    assert!(!reset.fold.ack_stands(boot(19) + Duration::from_nanos(1), &constants));
    assert!(rows.fold(100).ack_stands(Duration::MAX, &constants), "that of a fold always");
}

#[test]
fn too_many_ids_keep_a_key_from_being_reset() {
    let mut rows = Rows::default();
    let mut pack = Pack::new(Kind::Counter, None);
    let add = [Op::Counter(CounterOp::Add { by: 1 })];
    let mut packs = Vec::new();
    for number in 0..=u32::try_from(CLEARED_IDS_MAX).expect("small") {
        let id = OpId { id: u128::from(number).to_be_bytes(), index: 0 };
        let named = IdOp::new(Kind::Counter, id, 0, &add).expect("an op");
        if pack.put(&named).is_err() {
            packs.push(std::mem::replace(&mut pack, Pack::new(Kind::Counter, None)));
            pack.put(&named).expect("room");
        }
    }
    for pack in packs.iter().chain([&pack]) {
        let id = MutatorId::new(Uuid::from_u128(rows.0.len() as u128 + 1));
        let seal = KeySeal::of(&key()).row(wall(60), id);
        let state = encode_stamped_pack(seal, pack, 1, None);
        rows.0.push(Row { expires_at: wall(60), mutator_id: id, state });
    }
    let refused = |rows: &Rows| {
        let attempt = rows.attempt(10, false).expect("it exists");
        attempt.plan(&rows.read(), &constants()).map(|reset| reset.fold.tally().len())
    };
    assert_eq!(refused(&rows), Err(ResetError::TooManyIds));
    rows.0.pop();
    assert!(refused(&rows).expect("few enough") < fold::TALLY_BYTES_MAX / 2);
}

#[test]
fn an_undecodable_row_keeps_a_key_from_being_reset() {
    let mut rows = Rows::default().shard(60, None, 1);
    rows.0[0].state[3] ^= 1;
    assert!(matches!(rows.attempt(10, false), Err(ResetError::Row(_))));
}

#[test]
fn the_parts_of_the_log_are_used_alike() {
    let mut counts = [0; BUCKETS as usize];
    for number in 0..800 {
        let group = Name::new(&format!("group {number}")).expect("a name");
        counts[usize::from(bucket(Kind::Counter, &group))] += 1;
    }
    assert!(counts.iter().all(|count| (60..140).contains(count)), "{counts:?}");
    assert_ne!(bucket(Kind::Sum, &key().group), bucket(Kind::Counter, &key().group));
}

/// Ten pods update a key that one of them resets each minute, for a day. Folds come each hour.
#[test]
fn a_key_that_is_reset_each_minute_stays_below_a_slice() {
    let constants = Constants::resolve(Overrides::default()).expect("defaults");
    let (mut rows, mut stamp, mut ids, mut most) = (Rows::default(), None, 0, 0);
    for minute in 0..24 * 60 {
        for _pod in 0..10 {
            ids += 1;
            let id = MutatorId::new(Uuid::from_u128(ids));
            let now = at(60 * minute);
            let born = Mutator::born_after(stamp, key(), id, None, now, &constants);
            let expires_at = born.lease().expires_at();
            let seal = KeySeal::of(&key()).row(expires_at, id);
            let one = State::Counter(Counter::from_total(1));
            let state = encode_stamped_shard(seal, &one, 1, stamp);
            rows.0.push(Row { expires_at, mutator_id: id, state });
        }
        most = most.max(rows.0.len());
        let now = at(60 * minute + 30);
        let mut draft = Draft::begin(now);
        draft.add(&rows.read(), stamp, &constants).expect("it exists");
        let attempt = draft.attempt(Uuid::nil(), false, &constants).expect("a key");
        let reset = attempt.plan(&rows.read(), &constants).expect("a plan");
        let State::Counter(cleared) = &reset.cleared else { panic!("{reset:?}") };
        assert_eq!((cleared.total(), reset.shards), (10, 10));
        rows = rows.folded(&reset.fold, false);
        stamp = Some(attempt.row().generation);
        let plan = fold::plan(&rows.read(), now.wall, &constants).expect("a plan");
        if let Plan::Fold(fold) = plan
            && minute % 60 == 59
        {
            rows = rows.folded(&fold, false);
        }
    }
    // The rows of two hours, of the cutoff, and of the time until the next fold.
    assert!((1_200..2_000).contains(&most), "{most}");
}
