//! Opening and closing: which files are refused, and what a restart finds.

use std::path::Path;
use std::time::Duration;

use orderfree::runtime::clock::Clock;
use orderfree::store::embedded::{EmbeddedStore, OpenError};
use orderfree::store::{Folds, Pause, Reads, Shards, Store, StoreClock};
use orderfree_core::protocol::WriteError;
use orderfree_core::protocol::clock::ClockError;
use orderfree_core::protocol::fold::{self, Plan};
use redb::{Database, TableDefinition};

use crate::world::{TurnedClock, constants, counter, key, mutator, value, write};

const META: TableDefinition<&str, i64> = TableDefinition::new("meta");

fn open(path: &Path) -> Result<EmbeddedStore, OpenError> {
    EmbeddedStore::open(path, constants(), TurnedClock::new())
}

fn refusal(path: &Path) -> OpenError {
    open(path).expect_err("refused")
}

#[tokio::test]
async fn a_file_in_use_is_refused_until_it_is_closed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("counters.redb");
    let first = open(&path).expect("a new file");
    let error = refusal(&path);
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("in use by another process"), "{error}");
    first.close().await;
    open(&path).expect("free again, though the closed store is not dropped yet").close().await;
    let files = std::fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(files, 1, "nothing else is left behind");
    first.close().await;
}

#[tokio::test]
async fn a_foreign_file_is_refused_in_one_sentence() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let says = |error: &OpenError, part: &str| assert!(error.to_string().contains(part), "{error}");

    let error = refusal(&path("missing/counters.redb"));
    says(&error, "its folder does not exist");
    assert!(!path("missing").exists());

    std::fs::write(path("text"), "a note, far from a database".repeat(100)).expect("written");
    says(&refusal(&path("text")), "is not an Orderfree file");
    assert!(std::fs::read_to_string(path("text")).expect("text").starts_with("a note"));

    let foreign = Database::create(path("foreign")).expect("created");
    let transaction = foreign.begin_write().expect("begun");
    transaction.open_table(TableDefinition::<u64, u64>::new("cats")).expect("created");
    transaction.commit().expect("committed");
    drop(foreign);
    says(&refusal(&path("foreign")), "is not an Orderfree file");

    open(&path("newer")).expect("created").close().await;
    let newer = Database::create(path("newer")).expect("opened");
    let transaction = newer.begin_write().expect("begun");
    transaction.open_table(META).expect("there").insert("format", 3).expect("written");
    transaction.commit().expect("committed");
    drop(newer);
    says(&refusal(&path("newer")), "has format 3, and this release reads only format 2");

    says(&refusal(folder.path()), "can't be opened");

    std::fs::write(path("empty"), "").expect("written");
    says(&refusal(&path("empty")), "empty is empty, and a store's file never is");
    assert_eq!(path("empty").metadata().expect("there").len(), 0, "nothing was made of it");

    open(&path("cut")).expect("created").close().await;
    let cut = std::fs::OpenOptions::new().write(true).open(path("cut")).expect("opened");
    cut.set_len(9_000).expect("cut");
    says(&refusal(&path("cut")), "is damaged");
}

#[tokio::test]
async fn a_restart_finds_rows_folds_and_times() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("counters.redb");
    let clock = TurnedClock::new();
    let store = EmbeddedStore::open(&path, constants(), clock.clone()).expect("a new file");
    let (folded, live) = (key("folded"), key("live"));
    let born = clock.now();
    let mut first = mutator(&folded, born);
    assert_eq!(store.write_shard(&write(&mut first, 5, born)).await, Ok(()));
    clock.advance(Duration::from_secs(120));
    let read = store.read_for_fold(&folded).await.expect("readable");
    let time = store.fold_time(clock.now()).expect("an honest clock");
    let Ok(Plan::Fold(plan)) = fold::plan(&read, time, &constants()) else { panic!("due") };
    assert_eq!(store.write_fold(&plan).await, Ok(()));
    let now = clock.now();
    let mut second = mutator(&live, now);
    assert_eq!(store.write_shard(&write(&mut second, 7, now)).await, Ok(()));
    store.close().await;
    assert!(matches!(
        store.write_shard(&write(&mut mutator(&live, now), 1, now)).await,
        Err(WriteError::Refused(_))
    ));

    // The next start has a clock that was set back.
    clock.set_wall(born.wall);
    let store = EmbeddedStore::open(&path, constants(), clock.clone()).expect("the same file");
    assert_eq!(value(&store, &folded, now).await.expect("rows").state, counter(5));
    assert_eq!(value(&store, &live, now).await.expect("rows").state, counter(7));
    let behind = ClockError::Behind { behind: Duration::from_secs(120) };
    assert_eq!(store.check_clock(clock.now()), Err(behind.clone()));
    assert!(matches!(store.fold_time(clock.now()), Err(Pause::Clock(error)) if error == behind));
    let mut third = mutator(&live, clock.now());
    let outcome = store.write_shard(&write(&mut third, 9, clock.now())).await;
    assert!(matches!(&outcome, Err(WriteError::Refused(reason)) if reason.contains("behind")));
    clock.set_wall(now.wall.minus(constants().clock_offset_max()));
    assert_eq!(store.check_clock(clock.now()), Ok(()));
    store.close().await;

    // A fence that the time does not explain, such as one from a backup or from a longer cutoff.
    let file = Database::create(&path).expect("opened");
    let transaction = file.begin_write().expect("begun");
    let fence = clock.now().wall.minus(Duration::from_secs(20)).as_micros();
    transaction.open_table(META).expect("there").insert("highest_fence_us", fence).expect("set");
    transaction.commit().expect("committed");
    drop(file);
    let store = EmbeddedStore::open(&path, constants(), clock.clone()).expect("the same file");
    assert_eq!(store.check_clock(clock.now()), Err(ClockError::Moved));
    assert!(matches!(store.fold_time(clock.now()), Err(Pause::Clock(ClockError::Moved))));
    store.close().await;
}
