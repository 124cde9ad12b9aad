//! Resets of keys in a file that one process has for itself: they wait for nothing, and a restart finds them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orderfree::engine::write::{Bounds, Update};
use orderfree::pod::node::{Node, Parts};
use orderfree::runtime::clock::Clock;
use orderfree::store::embedded::{EmbeddedStore, repair};
use orderfree::store::{ResetLog, Store};
use orderfree_core::crdt::State;
use orderfree_core::protocol::{Durability, Key, Timestamp};
use redb::{Database, TableHandle};

use crate::world::{TurnedClock, add, constants, counter, key, value};

struct Pod {
    node: Node,
    store: Arc<EmbeddedStore>,
    clock: Arc<TurnedClock>,
}

impl Pod {
    fn open(path: &Path, clock: &Arc<TurnedClock>) -> Pod {
        let store = EmbeddedStore::open(path, constants(), clock.clone()).expect("opened");
        let store = Arc::new(store);
        let parts = Parts::new(store.clone(), constants(), clock.clone());
        let node = Node::new(Parts { bounds: Bounds::awake(10), ..parts });
        Pod { node, store, clock: clock.clone() }
    }

    async fn add(&self, key: &Key, by: i64) {
        let update = Update { ops: add(by), name: None };
        let done = self.node.service().update(key, update, Durability::Stored).await;
        done.expect("acked");
    }

    async fn reset(&self, key: &Key) -> State {
        self.node.resetter().reset(key, false).await.expect("reset").cleared.expect("one key")
    }

    async fn value(&self, key: &Key) -> State {
        value(&self.store, key, self.clock.now()).await.expect("it is there").state
    }

    async fn close(self) {
        self.node.stop(Duration::from_secs(5)).await;
        self.store.close().await;
    }
}

#[tokio::test]
async fn a_restart_finds_the_earlier_resets() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, clock, key) = (folder.path().join("a.redb"), TurnedClock::new(), key("n"));
    let first = Pod::open(&path, &clock);
    first.add(&key, 5).await;
    assert_eq!(first.reset(&key).await, counter(5));
    first.add(&key, 2).await;
    assert_eq!(first.value(&key).await, counter(2));
    first.close().await;
    // Without the log, the next mutator would have no stamp, and what it counts would be cleared.
    let lost = folder.path().join("lost.redb");
    std::fs::copy(&path, &lost).expect("copied");
    let file = Database::create(&lost).expect("opened");
    let transaction = file.begin_write().expect("begun");
    let log: Vec<_> = transaction
        .list_tables()
        .expect("tables")
        .filter(|table| table.name() == "resets")
        .collect();
    assert_eq!(log.len(), 1);
    transaction.delete_table(log.into_iter().next().expect("one")).expect("deleted");
    transaction.commit().expect("committed");
    drop(file);
    for (path, counts) in [(&path, counter(9)), (&lost, counter(2))] {
        let pod = Pod::open(path, &clock);
        pod.add(&key, 7).await;
        assert_eq!(pod.value(&key).await, counts);
        pod.close().await;
    }
}

/// A backup has both tables of one moment.
#[tokio::test]
async fn a_copy_from_before_a_reset_has_what_was_there_and_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let [path, copy] = ["a.redb", "copy.redb"].map(|name| folder.path().join(name));
    let (clock, key) = (TurnedClock::new(), key("n"));
    let pod = Pod::open(&path, &clock);
    pod.add(&key, 5).await;
    pod.close().await;
    std::fs::copy(&path, &copy).expect("copied");
    let pod = Pod::open(&path, &clock);
    assert_eq!(pod.reset(&key).await, counter(5));
    pod.add(&key, 2).await;
    pod.close().await;
    std::fs::copy(&copy, &path).expect("copied");
    let pod = Pod::open(&path, &clock);
    assert_eq!(pod.value(&key).await, counter(5));
    pod.add(&key, 3).await;
    assert_eq!(pod.reset(&key).await, counter(8));
    pod.add(&key, 1).await;
    assert_eq!(pod.value(&key).await, counter(1));
    pod.close().await;
}

#[tokio::test]
async fn a_reset_needs_no_time_here_and_the_next_one_is_above_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (clock, key) = (TurnedClock::new(), key("n"));
    let pod = Pod::open(&folder.path().join("a.redb"), &clock);
    // The clock stands still.
    for by in [1, 2, 3] {
        pod.add(&key, by).await;
        assert_eq!(pod.reset(&key).await, counter(by.into()));
        assert_eq!(pod.value(&key).await, counter(0));
    }
    let log = pod.store.own_resets().expect("the only process");
    let times: Vec<Timestamp> = log.iter().map(|row| row.generation.time()).collect();
    assert!(times.len() == 3 && times.windows(2).all(|pair| pair[0] < pair[1]), "{times:?}");
    pod.close().await;
}

/// A reset by a clock that was ahead would shut its key until that time.
#[tokio::test]
async fn a_repaired_copy_has_the_resets_of_a_right_clock_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, copy) = (folder.path().join("a.redb"), folder.path().join("b.redb"));
    let clock = TurnedClock::new();
    let pod = Pod::open(&path, &clock);
    for name in ["right", "ahead"] {
        pod.add(&key(name), 5).await;
    }
    pod.reset(&key("right")).await;
    let right = clock.now().wall;
    clock.set_wall(right.plus(Duration::from_secs(86_400)));
    pod.reset(&key("ahead")).await;
    pod.close().await;
    clock.set_wall(right.next());
    let found = repair(&path, &copy, right.next(), constants()).expect("repaired");
    assert!(found.is_some(), "it was ahead");
    let pod = Pod::open(&copy, &clock);
    let names: Vec<String> = pod
        .store
        .own_resets()
        .expect("the only process")
        .iter()
        .flat_map(|row| row.names.iter().map(ToString::to_string).collect::<Vec<_>>())
        .collect();
    assert_eq!(names, ["right"]);
    for name in ["right", "ahead"] {
        pod.add(&key(name), 3).await;
        assert_eq!(pod.value(&key(name)).await, counter(3), "{name}");
    }
    pod.close().await;
}
