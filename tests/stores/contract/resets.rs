//! The log of resets, and the markers of resets.

use std::time::Duration;

use orderfree::store::Receipt;
use orderfree_core::crdt::Kind;
use orderfree_core::crdt::envelope;
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::reset::{Draft, LOG_NAMES_MAX, LogRow, Reset, bucket};
use orderfree_core::protocol::{Key, Mutator, MutatorId, Timestamp};
use uuid::Uuid;

use super::{Subject, key, name, next_write, total_of};

/// A row of the log with this generation.
fn row(subject: &Subject, generation: Timestamp, names: &[&str]) -> LogRow {
    LogRow {
        id: Uuid::new_v4(),
        kind: Kind::Counter,
        group: name("g"),
        names: names.iter().map(|text| name(text)).collect(),
        generation: Generation::at(generation),
        until: generation.plus(subject.constants.reset_memory()),
        is_deletion: names.len() > 1,
    }
}

fn part() -> u8 {
    bucket(Kind::Counter, &name("g"))
}

async fn looked(subject: &Subject, part: u8, after: Timestamp) -> Vec<LogRow> {
    let mut rows = subject.store.read_resets(part, after).await.expect("a look");
    rows.sort_by_key(|row| row.generation);
    rows
}

pub(crate) async fn a_logged_reset_is_seen_by_every_later_look(subject: Subject) {
    assert!(subject.store.has_resets());
    let now = subject.now().wall;
    let rows = [row(&subject, now, &["a"]), row(&subject, now.next(), &["b ☃", "c"])];
    for row in &rows {
        assert_eq!(subject.store.write_reset(row, &Receipt::default()).await, Ok(()));
    }
    assert_eq!(looked(&subject, part(), now.shifted(-1)).await, rows);
    assert_eq!(looked(&subject, part(), now).await, rows[1..], "only later ones");
    assert_eq!(looked(&subject, part(), now.next()).await, []);
    for other in (0..8).filter(|other| *other != part()) {
        assert_eq!(looked(&subject, other, now.shifted(-1)).await, []);
    }
    // Two resets with one generation are two rows. One that is sent again is one.
    let third = row(&subject, now, &["a"]);
    for row in [&third, &third, &rows[0]] {
        assert_eq!(subject.store.write_reset(row, &Receipt::default()).await, Ok(()));
    }
    let found = looked(&subject, part(), now.shifted(-1)).await;
    assert_eq!((found.len(), found.contains(&third)), (3, true));
}

/// As many names as one deletion takes, each as long as a name can be.
pub(crate) async fn the_largest_reset_is_logged_as_one_row(subject: Subject) {
    let now = subject.now().wall;
    let names: Vec<String> = (0..LOG_NAMES_MAX).map(|at| format!("{at:0256}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let row = row(&subject, now, &names);
    assert_eq!(subject.store.write_reset(&row, &Receipt::default()).await, Ok(()));
    assert_eq!(looked(&subject, part(), now.shifted(-1)).await, [row]);
}

pub(crate) async fn a_receipt_stays_with_its_reset(subject: Subject) {
    let now = subject.now().wall;
    let (row, other) = (row(&subject, now, &["a"]), row(&subject, now.next(), &["b"]));
    let cleared = Receipt { cleared: Some(vec![0, 7, 255]), ..Receipt::default() };
    for (row, receipt) in [
        (&row, Receipt::default()),
        (&other, Receipt::default()),
        (&row, cleared.clone()),
        (&row, Receipt { done: Some(true), ..cleared.clone() }),
        // What it lacks stays.
        (&row, Receipt { done: Some(true), ..Receipt::default() }),
    ] {
        assert_eq!(subject.store.write_reset(row, &receipt).await, Ok(()));
    }
    let group = name("g");
    let read = async |kind, row: &LogRow| {
        let found = subject.store.read_receipt((kind, &group), row.generation, row.id).await;
        found.expect("an answer")
    };
    let done = Receipt { done: Some(true), ..cleared };
    assert_eq!(read(Kind::Counter, &row).await, Some((row.clone(), done)));
    assert_eq!(read(Kind::Sum, &row).await, None, "another kind");
    let later = LogRow { generation: other.generation, ..row.clone() };
    assert_eq!(read(Kind::Counter, &later).await, None, "another time");
}

impl Subject {
    /// Plans a reset that began now.
    async fn reset(&self, key: &Key, is_deletion: bool) -> (LogRow, Reset) {
        let read = self.store.read_for_fold(key).await.expect("a full read");
        let (id, now) = (Uuid::new_v4(), self.now());
        let mut draft = Draft::begin(now);
        draft.add(&read, None, &self.constants).expect("it exists");
        let attempt = draft.attempt(id, is_deletion, &self.constants).expect("a key");
        let read = self.store.read_for_fold(key).await.expect("a full read");
        (attempt.row().clone(), attempt.plan(&read, &self.constants).expect("a plan"))
    }

    async fn mark(&self, (row, reset): &(LogRow, Reset)) {
        let markers = std::slice::from_ref(&reset.fold);
        // A marker is written only if the log has its reset.
        assert_eq!(self.store.write_reset(row, &Receipt::default()).await, Ok(()));
        let outcome = self.store.write_markers(row, &Receipt::default(), markers).await;
        assert_eq!(outcome, Ok(()));
    }

    /// Writes a new shard that was born after a reset.
    async fn put_after(&self, key: &Key, reset: &LogRow, by: i64) {
        let id = MutatorId::new(Uuid::new_v4());
        let (stamp, now) = (Some(reset.generation), self.now());
        let mut stamped = Mutator::born_after(stamp, key.clone(), id, None, now, &self.constants);
        self.write(&next_write(&mut stamped, by, now)).await;
    }
}

pub(crate) async fn a_marker_clears_earlier_rows_forever(subject: Subject) {
    let key = key("g", "n");
    subject.put(&key, 1).await;
    let late = subject.shard(&key, 2);
    let first = subject.reset(&key, false).await;
    assert_eq!(total_of(&first.1.cleared), 1);
    subject.mark(&first).await;
    subject.write(&late).await;
    assert_eq!(subject.total(&key).await, Some(0), "a late row from before the reset");
    subject.put_after(&key, &first.0, 4).await;
    assert_eq!(subject.total(&key).await, Some(4));
    subject.mark(&first).await;
    assert_eq!(subject.total(&key).await, Some(4), "the marker was sent again");
    let second = subject.reset(&key, true).await;
    assert_eq!(total_of(&second.1.cleared), 4);
    subject.mark(&second).await;
    assert_eq!(subject.total(&key).await, None, "it is deleted");
    subject.mark(&first).await;
    assert_eq!(subject.total(&key).await, None, "an older marker loses");
    subject.put_after(&key, &second.0, 8).await;
    let folded = subject.fold(&key, subject.when_final()).await;
    // A store with one copy has removed the cleared rows with the markers.
    let cleared = if subject.store.rows_never_return() { 0 } else { 3 };
    assert_eq!((folded.report().cleared, folded.report().folded), (cleared, 1));
    assert!(envelope::reset(folded.tally()).is_some() && !folded.report().is_grave);
    assert_eq!(subject.total(&key).await, Some(8));
    for reset in [&first, &second] {
        subject.mark(reset).await;
        assert_eq!(subject.total(&key).await, Some(8));
    }
    assert_eq!(subject.rows(&key).await.expect("rows"), 1);
}

pub(crate) async fn a_marker_is_not_sent_after_its_time(subject: Subject) {
    let key = key("g", "n");
    subject.put(&key, 7).await;
    let (row, reset) = subject.reset(&key, false).await;
    subject.clock.advance(subject.constants.reset_budget() + Duration::from_millis(1));
    let markers = std::slice::from_ref(&reset.fold);
    let outcome = subject.store.write_markers(&row, &Receipt::default(), markers).await;
    assert!(outcome.is_err(), "{outcome:?}");
    assert_eq!(subject.total(&key).await, Some(7));
}
