//! Writes, reads and sweeps.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use orderfree::engine::write::Bounds;
use orderfree::limits::SWEEP_STEP_ROWS;
use orderfree::pod::node::{Node, Parts};
use orderfree::runtime::clock::Clock;
use orderfree::store::embedded::{EmbeddedStore, SHARDS};
use orderfree::store::{Folds, Reads, Shards, Store, StoreError, SweepPart};
use orderfree_core::crdt::envelope::{KeySeal, encode_shard};
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::fold::{self, Fold, Plan};
use orderfree_core::protocol::sweep::{Nomination, Nominator};
use orderfree_core::protocol::{Key, Mutator, MutatorId, Timestamp, WriteError};
use redb::Database;
use tempfile::TempDir;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::crash_disk::CrashDisk;
use crate::world::{TurnedClock, constants, counter, key, mutator, value, write};

const WHOLE: SweepPart = SweepPart { index: 0, of: 1 };

fn on_disk(disk: &CrashDisk) -> (EmbeddedStore, Arc<TurnedClock>) {
    let clock = TurnedClock::new();
    let store = EmbeddedStore::open_backend(disk.clone(), constants(), clock.clone());
    (store.expect("opened"), clock)
}

/// A file with forged rows, each of which counts one: the name of the key, the expiry minus the clock's time in µs,
/// and the mutator.
struct Forged {
    _folder: TempDir,
    path: PathBuf,
    clock: Arc<TurnedClock>,
}

impl Forged {
    async fn new(rows: impl Iterator<Item = (String, i64, u128)>) -> Forged {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, clock) = (folder.path().join("forged.redb"), TurnedClock::new());
        let forged = Forged { _folder: folder, path, clock };
        forged.open().close().await;
        let file = Database::create(&forged.path).expect("opened");
        let transaction = file.begin_write().expect("begun");
        let mut table = transaction.open_table(SHARDS).expect("there");
        for (name, expires_in_us, id) in rows {
            let expires_us = forged.clock.now().wall.as_micros().saturating_add(expires_in_us);
            let descending = !(expires_us.cast_unsigned() ^ (1 << 63));
            let seal = KeySeal::of_parts("counter", "g", &name);
            let mutator_id = MutatorId::new(Uuid::from_u128(id));
            let seal = seal.row(Timestamp::from_micros(expires_us), mutator_id);
            let state = encode_shard(seal, &counter(1), 1);
            let row = ("counter", "g", name.as_str(), descending, id);
            table.insert(row, (expires_us - 1, state.as_slice())).expect("inserted");
        }
        drop(table);
        transaction.commit().expect("committed");
        forged
    }

    fn open(&self) -> EmbeddedStore {
        EmbeddedStore::open(&self.path, constants(), self.clock.clone()).expect("opened")
    }
}

#[tokio::test]
async fn many_writes_at_once_share_few_syncs() {
    const WRITES: usize = 1_000;
    let (store, clock) = on_disk(&CrashDisk::empty());
    let now = clock.now();
    let writes: Vec<_> = (0..WRITES)
        .map(|at| write(&mut mutator(&key(&format!("key {at}")), now), 1, now))
        .collect();
    let outcomes = join_all(writes.iter().map(|write| store.write_shard(write))).await;
    assert!(outcomes.iter().all(Result::is_ok));
    println!("{WRITES} writes in {} transactions", store.commits());
    // Some tens on a busy machine. Without group commit, one per write.
    assert!(store.commits() <= 100, "{} transactions", store.commits());
    assert_eq!(value(&store, &key("key 999"), now).await.expect("rows").state, counter(1));
}

#[tokio::test]
async fn an_older_write_that_comes_later_changes_nothing() {
    let (store, clock) = on_disk(&CrashDisk::empty());
    let (key, now) = (key("n"), clock.now());
    let mut mutator: Mutator = mutator(&key, now);
    let older = write(&mut mutator, 1, now);
    mutator.finish_write(Err(WriteError::Unknown("slow".into())), now);
    let newer = write(&mut mutator, 2, now);
    assert_eq!(store.write_shard(&newer).await, Ok(()));
    assert_eq!(store.write_shard(&older).await, Ok(()));
    assert_eq!(value(&store, &key, now).await.expect("rows").state, counter(3));
}

/// Plans a fold two minutes after the rows were written.
async fn fold_later(store: &EmbeddedStore, key: &Key, written: Timestamp) -> Fold {
    let read = store.read_for_fold(key).await.expect("readable");
    match fold::plan(&read, written.plus(Duration::from_secs(120)), &constants()) {
        Ok(Plan::Fold(fold)) => fold,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn rows_that_come_back_below_the_fence_are_deleted_again() {
    let (store, clock) = on_disk(&CrashDisk::empty());
    let (key, now) = (key("n"), clock.now());
    let late = write(&mut mutator(&key, now), 5, now);
    let read = async || {
        let reading = value(&store, &key, now).await.expect("rows");
        assert_eq!(reading.state, counter(5));
        (reading.shards, reading.zombies)
    };
    assert_eq!(store.write_shard(&late).await, Ok(()));
    assert_eq!(read().await, (1, 0));
    let first = fold_later(&store, &key, now.wall).await;
    assert_eq!(store.write_fold(&first).await, Ok(()));
    assert_eq!(read().await, (0, 0));
    assert_eq!(store.write_fold(&first).await, Ok(()), "twice is once");
    assert_eq!(read().await, (0, 0));

    assert_eq!(store.write_shard(&late).await, Ok(()));
    assert_eq!(read().await, (0, 1));
    let second = fold_later(&store, &key, now.wall.shifted(2_000_000)).await;
    assert_eq!(store.write_fold(&second).await, Ok(()));
    assert_eq!(read().await, (0, 0));
    assert_eq!(store.write_fold(&first).await, Ok(()), "an old fold changes nothing");
    let tally = value(&store, &key, now).await.expect("rows");
    assert_eq!(tally.fence, Some(second.fence()));
}

#[tokio::test]
async fn a_write_after_its_lease_is_refused() {
    let (store, clock) = on_disk(&CrashDisk::empty());
    let now = clock.now();
    let late = write(&mut mutator(&key("n"), now), 5, now);
    clock.set_wall(late.expires_at());
    let outcome = store.write_shard(&late).await;
    assert_eq!(outcome, Err(WriteError::Refused("its lease is over".into())));
    assert!(value(&store, &key("n"), now).await.is_none());
    assert_eq!(store.commits(), 0);
}

#[tokio::test]
async fn after_a_failed_sync_everything_is_refused() {
    let disk = CrashDisk::empty();
    let (store, clock) = on_disk(&disk);
    let (key, now) = (key("n"), clock.now());
    let mut mutator = mutator(&key, now);
    assert_eq!(store.write_shard(&write(&mut mutator, 1, now)).await, Ok(()));
    mutator.finish_write(Ok(()), now);
    assert_eq!(store.failure(), None);
    disk.fail_syncs();
    let second = write(&mut mutator, 2, now);
    let outcome = store.write_shard(&second).await;
    assert!(
        matches!(&outcome, Err(WriteError::Unknown(why)) if why.contains("input/output error"))
    );
    assert!(matches!(store.write_shard(&second).await, Err(WriteError::Refused(_))));
    let read = store.read_key(&key, None, Level::One).await;
    assert!(matches!(read, Err(StoreError::Unavailable(why)) if why.contains("start again")));
    assert!(store.failure().is_some());
    store.close().await;
}

#[tokio::test]
async fn a_read_beyond_its_limit_is_an_error_and_never_a_number() {
    let rows = (0..11).map(|id| ("n".to_owned(), 7, id + 1));
    let forged = Forged::new(rows).await;
    let (store, key) = (forged.open(), key("n"));
    let read = |after, limit| store.read_slice(&key, after, Level::One, limit);
    let cut = read(None, 10).await;
    assert!(matches!(cut, Err(StoreError::TooManyRows { limit: 10, .. })), "{cut:?}");
    assert_eq!(read(None, 11).await.expect("within the limit").len(), 11);
    let after = forged.clock.now().wall.shifted(7);
    assert!(read(Some(after), 10).await.expect("no rows").is_empty(), "expiries must be greater");
    let all = read(Some(after.shifted(-1)), 10).await;
    assert!(matches!(all, Err(StoreError::TooManyRows { .. })));
}

#[tokio::test]
async fn a_row_that_breaks_a_rule_is_an_error_that_names_it() {
    let forged = Forged::new([("n".to_owned(), 7, 0)].into_iter()).await;
    let store = forged.open();
    let read = store.read_key(&key("n"), None, Level::One).await;
    assert!(matches!(read, Err(StoreError::Corrupt(what)) if what.contains("counter/g/n")));
    assert!(store.read_key(&key("m"), None, Level::One).await.is_ok());
}

#[tokio::test]
async fn a_sweep_goes_through_all_keys_in_steps() {
    // Three rows per key, so that steps end within keys. A third of the keys has only young rows.
    const KEYS: usize = SWEEP_STEP_ROWS;
    let old_us = -i64::try_from(constants().cutoff().as_micros()).expect("short");
    let rows = (0..KEYS).flat_map(|at| {
        let last_us = if at % 3 == 0 { 1 } else { old_us };
        [(0, i64::MAX), (1, 5), (2, last_us)]
            .map(|(id, expires_in_us)| (format!("{at:05}"), expires_in_us, id))
    });
    let forged = Forged::new(rows).await;
    let (store, now) = (forged.open(), forged.clock.now().wall);
    let (sender, mut receiver) = mpsc::channel(KEYS);
    let nominator = |now| Nominator::new(now, constants());
    let largest = store.sweep(WHOLE, nominator(now), sender).await.expect("swept");
    assert_eq!(largest.map(|size| size.names), Some(KEYS), "across steps");
    let mut found = Vec::new();
    while let Some(nomination) = receiver.recv().await {
        found.push(nomination);
    }
    let is_tally_alone = false;
    let nomination = |at| Nomination { key: key(&format!("{at:05}")), rows: 3, is_tally_alone };
    let due: Vec<_> = (0..KEYS).filter(|at| at % 3 != 0).map(nomination).collect();
    assert_eq!(found.len(), due.len());
    assert_eq!(found, due);

    let (sender, mut receiver) = mpsc::channel(1);
    let first = async {
        let first = receiver.recv().await;
        receiver.close();
        first
    };
    let (swept, first) = tokio::join!(store.sweep(WHOLE, nominator(now), sender), first);
    assert_eq!(first, Some(due[0].clone()));
    swept.expect("ending early is not an error");
    let (sender, _) = mpsc::channel(1);
    store
        .sweep(WHOLE, nominator(Timestamp::from_micros(0)), sender)
        .await
        .expect("nothing is final");
}

#[tokio::test]
async fn keys_of_a_group_share_one_sync_and_a_bad_one_stops_itself() {
    let age = constants().cutoff() + 2 * constants().fence_quantum();
    let old_us = -i64::try_from(age.as_micros()).expect("short");
    // Far more keys than are folded at once.
    let names = || (0..40).map(|at| format!("n{at:02}"));
    let sound: Vec<_> =
        names().flat_map(|name| [1, 2].map(|id| (name.clone(), old_us, id))).collect();
    // A row that has the expiry of a shard and the id of a tally.
    let broken = [sound.clone(), vec![("n07".to_owned(), old_us, 0)]].concat();
    for (rows, folded, syncs) in [(sound, 40, 1), (broken, 39, 39)] {
        let forged = Forged::new(rows.into_iter()).await;
        let (store, clock) = (Arc::new(forged.open()), forged.clock.clone());
        let node = Node::new(Parts {
            bounds: Bounds::awake(1),
            ..Parts::new(store.clone(), constants(), clock)
        });
        let report = node.folder().sweep_once().await.expect("swept");
        assert_eq!((report.nominated, report.folded, report.blocked), (40, folded, 40 - folded));
        assert_eq!(store.commits(), syncs);
        for name in names().filter(|name| folded == 40 || name != "n07") {
            let reading = value(&store, &key(&name), forged.clock.now()).await.expect("a tally");
            assert_eq!((reading.state, reading.shards), (counter(2), 0), "{name}");
        }
    }
}
