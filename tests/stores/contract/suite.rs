//! The promises of every store; see [`orderfree::store`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use orderfree::limits::GROUP_CHUNK_ROWS;
use orderfree::store::{Pause, SweepPart};
use orderfree_core::crdt::Kind;
use orderfree_core::crdt::envelope::decode_state;
use orderfree_core::protocol::group::{From, Then};
use orderfree_core::protocol::read::{Answer, assemble};
use orderfree_core::protocol::row_reader::RowReader;
use orderfree_core::protocol::sweep::{Nomination, Nominator};
use orderfree_core::protocol::{Key, Mutator, MutatorId, Name, Now, Timestamp, WriteError};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::{Subject, key, name, next_write, total_of};
#[allow(unused_imports, reason = "test binaries that do not run the suite compile this too")]
pub(crate) use super::{batches::*, graves::*, long::*, operators::*, resets::*};

/// Makes a `#[tokio::test]` of each test in the suite. `$with_store` is an
/// `async fn(test: impl AsyncFnOnce(Subject))`.
#[macro_export]
macro_rules! every_test {
    ($with_store:path) => {
        $crate::every_test!($with_store:
            a_write_is_read_back_byte_for_byte,
            a_key_without_rows_is_absent,
            names_are_told_apart_byte_by_byte,
            a_later_state_replaces_an_earlier_one,
            an_older_write_that_arrives_later_loses,
            greater_bytes_win_a_tie_of_timestamps,
            a_slice_starts_behind_a_fence,
            rows_come_newest_first,
            more_rows_than_a_slice_takes_are_an_error,
            a_part_has_the_oldest_rows_between_two_expiries,
            a_long_key_is_read_whole_and_folded_step_by_step,
            a_fold_replaces_shards_by_a_tally_and_touches_nothing_else,
            a_fold_counts_beside_newer_shards,
            regression_7_a_row_below_the_fence_changes_nothing,
            folds_may_be_sent_again_at_any_time,
            two_folders_at_once_are_as_one,
            three_thousand_shards_are_read_and_folded,
            regression_11_a_group_is_read_in_chunks_that_tear_no_key,
            a_group_of_large_states_is_read_in_smaller_chunks,
            a_sweep_nominates_exactly_the_keys_worth_folding,
            a_sweep_ends_when_its_receiver_is_gone,
            keys_of_a_group_are_folded_together,
            rows_written_together_each_win_by_their_own_timestamp,
            keys_of_one_lane_share_their_replicas,
            an_expired_write_is_refused_and_never_sent,
            a_row_is_removed_as_it_was_read_and_nothing_else,
            a_grave_wins_over_folds_that_were_planned_before,
            a_grave_is_written_again_and_removed_once_it_is_old,
            a_key_is_not_forgotten_long_after_its_read,
            a_logged_reset_is_seen_by_every_later_look,
            the_largest_reset_is_logged_as_one_row,
            a_receipt_stays_with_its_reset,
            a_marker_clears_earlier_rows_forever,
            a_marker_is_not_sent_after_its_time,
            groups_of_a_kind_are_listed_page_by_page,
            names_of_a_group_are_counted_up_to_a_bound,
            the_clock_is_trusted_and_folds_never_go_by_a_later_one,
        );
    };
    ($with_store:path: $($test:ident),+ $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                $with_store($crate::contract::suite::$test).await;
            }
        )+
    };
}

pub(crate) async fn a_write_is_read_back_byte_for_byte(subject: Subject) {
    let key = key("page:home", "views ☃");
    let write = subject.put(&key, 5).await;
    for level in [subject.store.levels().read, subject.store.levels().write] {
        let slice = subject.store.read_key(&key, None, level).await.expect("a slice");
        let rows: Vec<_> = slice.shards().collect();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].expires_at, write.expires_at());
        assert_eq!(rows[0].mutator_id, write.mutator_id());
        assert_eq!(rows[0].state, write.state());
    }
    assert_eq!(subject.total(&key).await, Some(5));
    let read = subject.store.read_for_fold(&key).await.expect("a full read");
    assert_eq!((read.key(), read.slice().len()), (&key, 1));
}

pub(crate) async fn a_key_without_rows_is_absent(subject: Subject) {
    let key = key("g", "absent");
    assert_eq!(subject.total(&key).await, None);
    assert!(subject.store.read_for_fold(&key).await.expect("a full read").slice().is_empty());
    let level = subject.store.levels().read;
    let chunk = subject.store.read_chunk(Kind::Counter, &key.group, &From::Start, level).await;
    assert_eq!(chunk.expect("a chunk").then, Then::End);
}

pub(crate) async fn names_are_told_apart_byte_by_byte(subject: Subject) {
    let keys = ["a", "A", "ab", "a ", " a", "a/b", "é", "e\u{301}", "'; DROP TABLE shards"];
    for (by, text) in (1..).zip(keys) {
        subject.put(&key("g", text), by).await;
        subject.put(&key(text, "n"), 100 + by).await;
    }
    for (by, text) in (1..).zip(keys) {
        assert_eq!(subject.total(&key("g", text)).await, Some(by), "{text}");
        assert_eq!(subject.total(&key(text, "n")).await, Some(100 + by), "{text}");
    }
}

pub(crate) async fn a_later_state_replaces_an_earlier_one(subject: Subject) {
    let key = key("g", "n");
    let mut mutator = subject.born(&key);
    for total in 1..=5 {
        let write = next_write(&mut mutator, 1, subject.now());
        subject.write(&write).await;
        mutator.finish_write(Ok(()), subject.now());
        assert_eq!(subject.total(&key).await, Some(total));
    }
    assert_eq!(subject.rows(&key).await.expect("rows"), 1);
}

pub(crate) async fn an_older_write_that_arrives_later_loses(subject: Subject) {
    let key = key("g", "n");
    let mut mutator = subject.born(&key);
    let now = subject.now();
    let older = next_write(&mut mutator, 1, now);
    mutator.finish_write(Err(WriteError::Unknown("lost".into())), now);
    let newer = next_write(&mut mutator, 10, now);
    assert!(older.timestamp() < newer.timestamp());
    subject.write(&newer).await;
    subject.write(&older).await;
    assert_eq!(subject.total(&key).await, Some(11));
}

/// Two states with the same timestamp can only come from a broken clock. All readers must still see the same
/// state.
pub(crate) async fn greater_bytes_win_a_tie_of_timestamps(subject: Subject) {
    let (id, now) = (MutatorId::new(Uuid::new_v4()), subject.now());
    let write = |key: &Key, by| {
        next_write(&mut Mutator::born(key.clone(), id, None, now, &subject.constants), by, now)
    };
    for (text, first, second) in [("upwards", 3, 5), ("downwards", 5, 3)] {
        let key = key("g", text);
        let writes = [write(&key, first), write(&key, second)];
        assert_eq!(writes[0].timestamp(), writes[1].timestamp());
        for write in &writes {
            subject.write(write).await;
        }
        let greater = writes.iter().max_by_key(|write| write.state()).expect("two");
        let state = decode_state(greater.seal(), Kind::Counter, greater.state());
        let state = state.expect("own bytes");
        assert_eq!(subject.total(&key).await, Some(total_of(&state)), "{text}");
    }
}

pub(crate) async fn a_slice_starts_behind_a_fence(subject: Subject) {
    let key = key("g", "n");
    let mut writes = Vec::new();
    for by in [1, 10, 100] {
        writes.push(subject.put(&key, by).await);
    }
    let level = subject.store.levels().read;
    for (after, expected) in [
        (Timestamp::from_micros(1), 3),
        (writes[0].expires_at().shifted(-1), 3),
        (writes[0].expires_at(), 2),
        (writes[1].expires_at(), 1),
        (writes[2].expires_at(), 0),
    ] {
        let slice = subject.store.read_key(&key, Some(after), level).await.expect("a slice");
        assert_eq!((slice.len(), slice.after()), (expected, Some(after)));
        assert!(slice.shards().all(|row| row.expires_at > after));
    }
}

pub(crate) async fn rows_come_newest_first(subject: Subject) {
    let key = key("g", "n");
    let now = subject.now();
    // Some have the same expiry, and they are not in order.
    let births_us = [30, 10, 20, 10, 40, 20, 10];
    let writes = births_us.iter().map(|&after_us| {
        let born = Now { wall: now.wall.shifted(after_us - 1_000_000), boot: now.boot };
        let id = MutatorId::new(Uuid::new_v4());
        next_write(&mut Mutator::born(key.clone(), id, None, born, &subject.constants), 1, born)
    });
    subject.write_all(writes.collect()).await;
    // Making a slice that is out of order panics. `shards` reverses the order.
    let read = subject.store.read_for_fold(&key).await.expect("a full read");
    let order: Vec<_> = read.slice().shards().map(|row| (row.expires_at, row.mutator_id)).collect();
    assert_eq!(order.len(), births_us.len());
    assert!(order.is_sorted(), "{order:?}");
}

pub(crate) async fn a_fold_replaces_shards_by_a_tally_and_touches_nothing_else(subject: Subject) {
    let folded = key("g", "b");
    for by in [1, 10, 100] {
        subject.put(&folded, by).await;
    }
    let neighbours = [key("g", "a"), key("g", "b "), key("g", "ba"), key("g", "c"), key("h", "b")];
    for neighbour in &neighbours {
        subject.put(neighbour, 7).await;
    }
    let fold = subject.fold(&folded, subject.when_final()).await;
    assert_eq!(fold.report().folded, 3);
    let reading = subject.reading(&folded, None).await.expect("a value");
    assert_eq!((total_of(&reading.state), reading.shards), (111, 0));
    assert_eq!(reading.fence, Some(fold.fence()));
    assert_eq!(subject.rows(&folded).await.expect("rows"), 1);
    for neighbour in &neighbours {
        let reading = subject.reading(neighbour, None).await.expect("a value");
        assert_eq!((total_of(&reading.state), reading.shards, reading.fence), (7, 1, None));
    }
}

pub(crate) async fn a_fold_counts_beside_newer_shards(subject: Subject) {
    let key = key("g", "n");
    subject.put(&key, 1).await;
    subject.put(&key, 2).await;
    let first = subject.when_final();
    // Its lease overlaps those of the folded rows. It is written before the fold's timestamp, and stays.
    subject.clock.advance(Duration::from_secs(5));
    let overlapping = subject.put(&key, 40).await;
    let fold = subject.fold(&key, first).await;
    assert_eq!((fold.report().folded, fold.report().kept), (2, 1));
    assert!(overlapping.timestamp() < fold.timestamp());
    let reading = subject.reading(&key, Some(fold.fence())).await.expect("a value");
    assert_eq!((total_of(&reading.state), reading.shards), (43, 1));
    subject.clock.advance(subject.constants.lifetime() + subject.constants.cutoff());
    subject.put(&key, 500).await;
    assert_eq!(subject.total(&key).await, Some(543));
    let second = subject.fold(&key, subject.when_final()).await;
    assert!(second.fence() > fold.fence());
    assert_eq!(subject.total(&key).await, Some(543));
    assert_eq!(subject.rows(&key).await.expect("rows"), 1);
}

/// The ancestor's defect 7: waiting does not make a row final, because a hint can come later. The fence does.
pub(crate) async fn regression_7_a_row_below_the_fence_changes_nothing(subject: Subject) {
    let key = key("g", "n");
    let mut mutator = subject.born(&key);
    let first = next_write(&mut mutator, 1, subject.now());
    subject.write(&first).await;
    mutator.finish_write(Ok(()), subject.now());
    // Two writes in flight: a later state of the folded row, and a row that the fold did not see.
    let later = next_write(&mut mutator, 10, subject.now());
    let unseen = subject.shard(&key, 100);
    let fold = subject.fold(&key, subject.when_final()).await;
    for late in [&later, &unseen, &first] {
        assert!(late.expires_at() <= fold.fence() && late.timestamp() < fold.timestamp());
        subject.write(late).await;
    }
    let reading = subject.reading(&key, None).await.expect("a value");
    assert_eq!((total_of(&reading.state), reading.shards), (1, 0));
    // The rows are shadowed, or zombies. The next fold deletes zombies again without counting them.
    let rows = subject.rows(&key).await.expect("rows");
    assert_eq!(reading.zombies, rows - 1);
    if rows > 1 {
        subject.fold(&key, subject.when_final()).await;
    }
    assert_eq!(subject.total(&key).await, Some(1));
}

pub(crate) async fn folds_may_be_sent_again_at_any_time(subject: Subject) {
    let key = key("g", "n");
    subject.put(&key, 1).await;
    subject.put(&key, 2).await;
    let first = subject.fold(&key, subject.when_final()).await;
    subject.execute(&first).await;
    assert_eq!(subject.total(&key).await, Some(3));
    subject.clock.advance(subject.constants.lifetime() + subject.constants.cutoff());
    subject.put(&key, 40).await;
    subject.execute(&first).await;
    assert_eq!(subject.total(&key).await, Some(43));
    let second = subject.fold(&key, subject.when_final()).await;
    subject.clock.advance(subject.constants.lifetime() + subject.constants.cutoff());
    subject.put(&key, 500).await;
    for fold in [&first, &second, &first] {
        subject.execute(fold).await;
        let reading = subject.reading(&key, None).await.expect("a value");
        assert_eq!((total_of(&reading.state), reading.shards), (543, 1));
        assert_eq!(reading.fence, Some(second.fence()));
    }
}

pub(crate) async fn two_folders_at_once_are_as_one(subject: Subject) {
    let key = key("g", "n");
    for by in [1, 10, 100] {
        subject.put(&key, by).await;
    }
    let now = subject.when_final();
    // Both folders read before either writes. The second folder's clock is a little ahead.
    let first = subject.plan(&key, now).await;
    let second = subject.plan(&key, now.plus(3 * subject.constants.fence_quantum())).await;
    tokio::join!(subject.execute(&second), subject.execute(&first));
    let read = subject.store.read_for_fold(&key).await.expect("a full read");
    assert_eq!(read.slice().len(), 1);
    let tally = read.slice().tally().expect("a tally");
    let (fence, state) = RowReader::of(&key).tally(tally).expect("own bytes");
    assert_eq!((fence, total_of(&state)), (second.fence(), 111));
}

pub(crate) async fn three_thousand_shards_are_read_and_folded(subject: Subject) {
    const SHARDS: i64 = 3_000;
    let key = key("g", "n");
    subject.write_all((1..=SHARDS).map(|by| subject.shard(&key, by)).collect()).await;
    let sum = i128::from(SHARDS * (SHARDS + 1) / 2);
    let reading = subject.reading(&key, None).await.expect("a value");
    assert_eq!((total_of(&reading.state), reading.shards), (sum, 3_000));
    let fold = subject.fold(&key, subject.when_final()).await;
    assert_eq!(fold.report().folded, 3_000);
    assert_eq!(subject.total(&key).await, Some(sum));
    assert_eq!(subject.rows(&key).await.expect("rows"), 1);
}

/// Compares totals, and prints only the first difference instead of thousands of names.
fn assert_same(found: &[(String, i128)], expected: &[(String, i128)]) {
    let differing = found.iter().zip(expected).find(|(found, expected)| found != expected);
    assert_eq!(differing, None, "first difference, of {} names", found.len());
    assert_eq!(found.len(), expected.len());
}

/// Reads a whole group as a pod does. Returns the names with totals, and the number of chunks.
async fn read_group(subject: &Subject, group: &Name) -> (Vec<(String, i128)>, usize) {
    let level = subject.store.levels().read;
    let (mut from, mut totals, mut chunks) = (From::Start, Vec::new(), 0);
    let now = subject.now().wall;
    loop {
        let chunk = subject.store.read_chunk(Kind::Counter, group, &from, level).await;
        let chunk = chunk.expect("a chunk");
        chunks += 1;
        for (name, slice) in &chunk.keys {
            let key = Key { kind: Kind::Counter, group: group.clone(), name: name.clone() };
            let slice = slice.as_ref().expect("in order");
            let answer = assemble(&key, slice, now, &subject.constants);
            match answer.expect("decodable") {
                Answer::Value(reading) => {
                    totals.push((name.to_string(), total_of(&reading.state)));
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        from = match chunk.then {
            Then::End => return (totals, chunks),
            Then::Chunk(name) => From::At(name),
            Then::Key(name) => {
                let whole = Key { kind: Kind::Counter, group: group.clone(), name: name.clone() };
                let total = subject.total(&whole).await.expect("a value");
                totals.push((name.to_string(), total));
                From::Behind(name)
            }
        };
    }
}

/// The ancestor's defect 11: driver paging tore the reads of a partition with many counters.
pub(crate) async fn regression_11_a_group_is_read_in_chunks_that_tear_no_key(subject: Subject) {
    const KEYS: usize = 2_000;
    // Exactly one chunk, more than a chunk, and more than a chunk at the group's end.
    let big: BTreeMap<usize, usize> =
        [(500, GROUP_CHUNK_ROWS), (1_000, GROUP_CHUNK_ROWS + 1), (KEYS - 1, 1_200)].into();
    let text = |at: usize| format!("n{at:04}");
    let mut writes = Vec::new();
    let mut expected = Vec::new();
    for at in 0..KEYS {
        let rows = big.get(&at).copied().unwrap_or(1);
        let by = i64::try_from(at).expect("small") + 1;
        writes.extend((0..rows).map(|_| subject.shard(&key("group", &text(at)), by)));
        expected.push((text(at), i128::from(by) * i128::try_from(rows).expect("small")));
    }
    // Groups with similar names do not belong to it.
    writes.push(subject.shard(&key("grou", "n"), 1));
    writes.push(subject.shard(&key("group2", "n"), 1));
    subject.write_all(writes).await;
    let (totals, chunks) = read_group(&subject, &name("group")).await;
    assert_same(&totals, &expected);
    assert!(chunks > 4, "{chunks} chunks");
    // Again with some keys folded: they have a tally, and no or few shards.
    for at in [0, 500, KEYS - 1] {
        subject.fold(&key("group", &text(at)), subject.when_final()).await;
    }
    assert_same(&read_group(&subject, &name("group")).await.0, &expected);
}

/// A thousand states of up to 256 KiB each would be too large for one answer.
pub(crate) async fn a_group_of_large_states_is_read_in_smaller_chunks(subject: Subject) {
    const KEYS: i64 = 250;
    let group = name("large");
    let key = |at| Key { kind: Kind::GSet, group: group.clone(), name: name(&format!("n{at:03}")) };
    subject.write_all((0..KEYS).map(|at| subject.shard(&key(at), at)).collect()).await;
    let (mut from, mut sizes) = (From::Start, Vec::new());
    loop {
        let level = subject.store.levels().read;
        let chunk = subject.store.read_chunk(Kind::GSet, &group, &from, level).await;
        let chunk = chunk.expect("a chunk");
        sizes.push(chunk.keys.len());
        match chunk.then {
            Then::Chunk(name) => from = From::At(name),
            Then::End => break,
            Then::Key(name) => panic!("{name} has one row"),
        }
    }
    assert_eq!(sizes, [[31; 8].as_slice(), &[2]].concat());
}

pub(crate) async fn a_sweep_nominates_exactly_the_keys_worth_folding(subject: Subject) {
    let (mut worth, mut not) = (Vec::new(), Vec::new());
    for group in 0..12 {
        let key = |text: &str| key(&format!("group {group}"), text);
        for (text, shards) in [("pair", 2), ("many", 9)] {
            for _ in 0..shards {
                subject.put(&key(text), 1).await;
            }
            worth.push(key(text));
        }
        subject.put(&key("lone"), 1).await;
        not.push(key("lone"));
        for text in ["tally", "tally and one", "tally and young"] {
            subject.put(&key(text), 1).await;
            subject.put(&key(text), 1).await;
            subject.fold(&key(text), subject.when_final()).await;
        }
        not.extend([key("tally"), key("tally and young")]);
    }
    // The following rows expire after the fences above.
    subject.clock.advance(subject.constants.lifetime() + subject.constants.cutoff());
    for group in 0..12 {
        let key = key(&format!("group {group}"), "tally and one");
        subject.put(&key, 1).await;
        worth.push(key);
    }
    let now = subject.when_final();
    subject.clock.advance(subject.constants.lifetime() + subject.constants.cutoff());
    for group in 0..12 {
        for text in ["young", "tally and young"] {
            let key = key(&format!("group {group}"), text);
            subject.put(&key, 1).await;
            subject.put(&key, 1).await;
            not.push(key);
        }
    }
    let of = subject.store.sweep_parts();
    assert!(of > 0);
    let nominator = || Nominator::new(now, subject.constants);
    let (sender, mut receiver) = mpsc::channel(1);
    let sweeping = async {
        let parts = stream::iter(0..of).map(|index| {
            let sender = sender.clone();
            let part = SweepPart { index, of };
            let store = &subject.store;
            async move { store.sweep(part, nominator(), sender).await.expect("swept") }
        });
        let largest: Vec<_> = parts.buffer_unordered(8).collect().await;
        drop(sender);
        largest.into_iter().flatten().max_by_key(|size| size.names)
    };
    let listening = async {
        let mut nominated = Vec::new();
        while let Some(Nomination { key, rows, .. }) = receiver.recv().await {
            assert_eq!(rows, if key.name.as_str() == "many" { 9 } else { 2 }, "{key}");
            nominated.push(key);
        }
        nominated
    };
    let (largest, mut nominated) = tokio::join!(sweeping, listening);
    let largest = largest.expect("there are groups");
    assert!(largest.names == 7 && largest.group.as_str().starts_with("group "), "{largest:?}");
    nominated.sort();
    worth.sort();
    assert_eq!(nominated, worth);
    let not: BTreeSet<Key> = not.into_iter().collect();
    assert!(nominated.iter().all(|key| !not.contains(key)));
}

pub(crate) async fn an_expired_write_is_refused_and_never_sent(subject: Subject) {
    let (key, fresh) = (key("g", "n"), key("g", "fresh"));
    let write = subject.shard(&key, 1);
    subject.clock.advance(subject.constants.lifetime());
    let late_and_fresh = [write.clone(), subject.shard(&fresh, 1)];
    for writes in [&[write][..], &late_and_fresh] {
        let outcome = subject.store.write_shards(writes).await;
        assert!(matches!(outcome, Err(WriteError::Refused(_))), "{outcome:?}");
    }
    assert_eq!(subject.total(&key).await, None);
    assert_eq!(subject.total(&fresh).await, None);
}

pub(crate) async fn the_clock_is_trusted_and_folds_never_go_by_a_later_one(subject: Subject) {
    subject.store.check_clock(subject.now()).expect("trusted");
    if let Some(offset_us) = subject.store.clock_offset_us() {
        assert!(offset_us.abs() < 1_000_000, "{offset_us} µs on one machine");
    }
    // Other tests define keyspaces, and then the nodes disagree on the schema for a moment.
    for _ in 0..60 {
        let now = subject.now();
        match subject.store.fold_time(now) {
            Ok(time) => {
                assert!(time <= now.wall && time > now.wall.minus(Duration::from_secs(1)));
                return;
            }
            Err(Pause::Schema) => tokio::time::sleep(Duration::from_millis(500)).await,
            Err(pause) => panic!("{pause}"),
        }
    }
    panic!("the nodes disagreed on the schema for half a minute");
}
