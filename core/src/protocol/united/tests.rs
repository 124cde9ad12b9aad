use std::time::{Duration, Instant};

use uuid::Uuid;

use super::*;
use crate::crdt::envelope::{self, KeySeal};
use crate::crdt::pack::{IdOp, OpId, Pack};
use crate::crdt::{Counter, CounterOp, Kind, Op, envelope::encode_shard};
use crate::protocol::op_id::{ClientId, NamedOp, Window};
use crate::protocol::read::{Answer, assemble};
use crate::protocol::{Constants, Key, MutatorId, Name, Overrides, Slice, Timestamp, fold};
use crate::protocol::{FullRead, fold::Plan};

const FINAL: i64 = 1_000;

fn key() -> Key {
    let name = |text| Name::new(text).expect("a name");
    Key { kind: Kind::Counter, group: name("g"), name: name("n") }
}

fn row(expires_at: i64, mutator: u128, bytes: impl Fn(envelope::RowSeal) -> Vec<u8>) -> Row {
    let expires_at = Timestamp::from_micros(expires_at);
    let mutator_id = MutatorId::new(Uuid::from_u128(mutator));
    let seal = KeySeal::of(&key()).row(expires_at, mutator_id);
    Row { expires_at, mutator_id, state: bytes(seal) }
}

fn plain(expires_at: i64, mutator: u128, total: i128) -> Row {
    let state = State::Counter(Counter::from_total(total));
    row(expires_at, mutator, |seal| encode_shard(seal, &state, 1))
}

fn pack(expires_at: i64, mutator: u128, ops: &[(u128, u64, i64)]) -> Row {
    let mut pack = Pack::new(Kind::Counter, None);
    for &(id, sequence, by) in ops {
        let id = OpId { id: id.to_be_bytes(), index: 0 };
        let add = [Op::Counter(CounterOp::Add { by })];
        let op = IdOp::new(Kind::Counter, id, sequence, &add).expect("an op");
        pack.put(&op).expect("room");
    }
    row(expires_at, mutator, |seal| envelope::encode_pack(seal, &pack, 1))
}

fn constants() -> Constants {
    let quantum = Some(Duration::from_millis(1));
    let overrides = Overrides { fence_quantum: quantum, ..Overrides::default() };
    Constants::resolve(overrides).expect("consistent")
}

/// The time at which shards up to `through` are final.
fn now(through: i64) -> Timestamp {
    Timestamp::from_micros(through).plus(constants().cutoff())
}

fn total(rows: &[Row]) -> (i128, United) {
    let slice = Slice::new(sorted(rows), None, 100).whole().expect("whole");
    match assemble(&key(), &slice, now(FINAL), &constants()).expect("decodable") {
        Answer::Value(reading) => (total_of(&reading.state), reading.united),
        other => panic!("{other:?}"),
    }
}

fn total_of(state: &State) -> i128 {
    let State::Counter(counter) = state else { panic!("{state:?}") };
    counter.total()
}

fn sorted(rows: &[Row]) -> Vec<Row> {
    let mut rows = rows.to_vec();
    rows.sort_by_key(|row| (std::cmp::Reverse(row.expires_at), row.mutator_id));
    rows
}

/// The tally of a fold of these rows, as a row.
fn folded(rows: &[Row], through: i64) -> Row {
    let slice = Slice::new(sorted(rows), None, 100).whole().expect("whole");
    let read = FullRead::at_fold_level(key(), slice);
    let plan = fold::plan(&read, now(through), &constants()).expect("a plan");
    let Plan::Fold(fold) = plan else { panic!("{plan:?}") };
    Row { expires_at: Timestamp::NEVER, mutator_id: MutatorId::TALLY, state: fold.tally().to_vec() }
}

#[test]
fn an_op_that_several_pods_stored_counts_once() {
    let rows = [
        plain(5_000, 1, 1_000),
        pack(9_000, 2, &[(1, 0, 5), (2, 0, 7)]),
        pack(9_000, 3, &[(2, 0, 7), (3, 0, 11)]),
        plain(9_000, 4, 2_000),
    ];
    assert_eq!(total(&rows), (3_023, United { ids: 3, conflicts: 0 }));
}

/// Whichever copies a read meets of an op with two contents, it counts one of them, and the same one as all
/// reads that meet these copies.
#[test]
fn of_two_contents_of_an_id_one_counts() {
    let rows = [pack(9_000, 2, &[(1, 0, 5)]), pack(9_000, 3, &[(1, 0, 8)])];
    assert_eq!(total(&rows), (8, United { ids: 1, conflicts: 1 }));
    assert_eq!(total(&rows[..1]), (5, United { ids: 1, conflicts: 0 }));
    let rows = [pack(9_000, 2, &[(1, 1, 5)]), pack(9_000, 3, &[(1, 0, 8)])];
    assert_eq!(total(&rows), (5, United { ids: 1, conflicts: 0 }), "the later total");
}

#[test]
fn a_fold_takes_an_op_once_and_late_copies_never() {
    let early = [pack(900, 2, &[(1, 0, 5)]), pack(900, 3, &[(1, 0, 5), (2, 0, 7)])];
    let tally = folded(&early, FINAL);
    let late = pack(900, 4, &[(1, 0, 5), (3, 0, 100)]);
    let live = pack(9_000, 5, &[(4, 0, 1)]);
    let all = [tally.clone(), live.clone(), late, early[0].clone(), early[1].clone()];
    assert_eq!(total(&all).0, 13);
    let again = folded(&[tally, live], 10_000);
    assert_eq!(total(&[again]).0, 13);
}

#[test]
fn a_damaged_delta_names_its_row() {
    let id = OpId { id: [7; 16], index: 0 };
    let item = Kind::GSet.read_bare_op("no amount").expect("an op");
    let op = IdOp::new(Kind::GSet, id, 0, &[item]).expect("an op");
    let mut pack_of_strangers = Pack::new(Kind::Counter, None);
    pack_of_strangers.put(&op).expect("room");
    let broken = row(9_000, 3, |seal| envelope::encode_pack(seal, &pack_of_strangers, 1));
    let rows = [pack(9_000, 2, &[(1, 0, 5)]), broken];
    let slice = Slice::new(sorted(&rows), None, 100).whole().expect("whole");
    let error = assemble(&key(), &slice, now(FINAL), &constants()).expect_err("a damaged delta");
    let RowError::Undecodable { mutator_id, .. } = error else { panic!("{error}") };
    assert_eq!(mutator_id, rows[1].mutator_id);
}

/// A read decodes and merges each op with an id for itself.
#[test]
fn the_time_to_merge_ids_grows_with_their_number() {
    let rows = |kind: Kind, count: u32, item: &dyn Fn(u32) -> String| {
        let (mut rows, mut pack) = (Vec::new(), Pack::new(kind, None));
        let key = Key { kind, ..key() };
        let row = |pack: &Pack, at: usize| {
            let expires_at = Timestamp::from_micros(9_000);
            let mutator_id = MutatorId::new(Uuid::from_u128(at as u128));
            let seal = KeySeal::of(&key).row(expires_at, mutator_id);
            Row { expires_at, mutator_id, state: envelope::encode_pack(seal, pack, 1) }
        };
        for number in 0..count {
            let bare =
                if kind.about().bare.1 == "item" { item(number) } else { number.to_string() };
            let mut ops = [kind.read_bare_op(&bare).expect("an op")];
            let id = ClientId::parse(&format!("id {number}")).expect("an id");
            let name = NamedOp::new(id, 0, Timestamp::from_micros(1_000), Window::Short);
            let op = name.prepare(kind, &key.group, &mut ops).expect("an op");
            if pack.put(&op).is_err() {
                rows.push(row(&pack, rows.len()));
                pack = Pack::new(kind, None);
                pack.put(&op).expect("room");
            }
        }
        rows.push(row(&pack, rows.len()));
        rows
    };
    let time = |kind: Kind, rows: &[Row]| {
        let reader = RowReader::of(&Key { kind, ..key() });
        let run = || {
            let (begun, mut state) = (Instant::now(), State::identity(kind));
            Counting::default().merge(reader, &mut state, rows, None).expect("decodable");
            begun.elapsed()
        };
        // Other tests run at the same time. The shortest of several runs is one that they did not interrupt.
        (0..10).map(|_| run()).min().expect("ten runs")
    };
    let (distinct, same) = (|number| format!("i{number}"), |_| "i".to_owned());
    for kind in Kind::ALL.iter().filter(|kind| !kind.about().is_idempotent) {
        for item in [&distinct as &dyn Fn(u32) -> String, &same] {
            let (few, many) = (rows(*kind, 1_000, item), rows(*kind, 8_000, item));
            let (few, many) = (time(*kind, &few), time(*kind, &many));
            // Eight times as long, and 64 times if each merge looked at all items.
            assert!(many < few * 24 + Duration::from_millis(20), "{kind}: {few:?}, {many:?}");
        }
    }
}
