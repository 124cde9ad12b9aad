//! Pods in one process over one embedded store: whole lives of keys, with clocks that tests set.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use orderfree::engine::fold::FoldFailure;
use orderfree::engine::service::{GroupQuery, KeyValue};
use orderfree::engine::write::{Bounds, Refused, UpdateError};
use orderfree::pod::config::Switch;
use orderfree::pod::node::{Node, Parts};
use orderfree::runtime::clock::{Clock, SystemClock};
use orderfree::store::Store;
use orderfree::store::embedded::EmbeddedStore;
use orderfree_core::crdt::{Counter, CounterOp, Kind, Op};
use orderfree_core::protocol::{Constants, Durability, Key, Name, Now, Overrides};
use tempfile::TempDir;

/// The machine's clocks, with an offset.
#[derive(Default)]
struct Shifted {
    both: Mutex<Duration>,
    wall_back: Mutex<Duration>,
}

impl Clock for Shifted {
    fn now(&self) -> Now {
        let (now, shift) = (SystemClock.now(), *self.both.lock().unwrap());
        let wall = now.wall.plus(shift).minus(*self.wall_back.lock().unwrap());
        Now { wall, boot: now.boot + shift }
    }
}

/// A store and the time of all its pods.
struct World {
    _folder: TempDir,
    clock: Arc<Shifted>,
    store: Arc<dyn Store>,
    constants: Constants,
}

impl World {
    fn new() -> World {
        let second = |seconds| Some(Duration::from_secs(seconds));
        let constants = Constants::resolve(Overrides {
            lifetime: second(60),
            drain_margin: second(10),
            cutoff: second(30),
            ..Overrides::default()
        });
        let (folder, constants) = (TempDir::new().expect("a folder"), constants.expect("rules"));
        let clock = Arc::new(Shifted::default());
        let dyn_clock: Arc<dyn Clock> = clock.clone();
        let path = folder.path().join("rows.redb");
        let store = EmbeddedStore::open(&path, constants, dyn_clock).expect("a store");
        World { _folder: folder, clock, store: Arc::new(store), constants }
    }

    fn pod(&self) -> Node {
        self.pod_that_folds(Switch::On)
    }

    fn pod_that_folds(&self, fold: Switch) -> Node {
        Node::new(Parts {
            bounds: Bounds::awake(1_000),
            fold,
            ..Parts::new(self.store.clone(), self.constants, self.clock.clone())
        })
    }

    fn advance(&self, span: Duration) {
        *self.clock.both.lock().unwrap() += span;
    }

    /// Until every shard written so far is final.
    fn advance_to_final(&self) {
        self.advance(self.constants.lifetime() + self.constants.cutoff() + Duration::from_secs(2));
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("name")
}

fn key(text: &str) -> Key {
    Key { kind: Kind::Counter, group: name("g"), name: name(text) }
}

async fn add(pod: &Node, text: &str, by: i64) -> Result<(), UpdateError> {
    let ops = vec![Op::Counter(CounterOp::Add { by })];
    pod.service().update(&key(text), ops, Durability::Stored).await.map(drop)
}

async fn get(pod: &Node, text: &str) -> Option<KeyValue> {
    let read = pod.service().read(&key(text), None).await.expect("readable");
    read.map(|read| KeyValue::clone(&read))
}

async fn total(pod: &Node, text: &str) -> i128 {
    Counter::try_from(get(pod, text).await.expect("present").state).expect("a counter").total()
}

async fn shards(pod: &Node, text: &str) -> (bool, usize) {
    let report = pod.service().shards(&key(text)).await.expect("readable");
    (report.tally.is_some(), report.shards.len())
}

/// Polls for a state that background work will reach.
async fn eventually(what: &str, mut reached: impl AsyncFnMut() -> bool) {
    for _ in 0..200 {
        if reached().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("not within 10 s: {what}");
}

#[tokio::test]
async fn many_pods_count_one_key_and_every_pod_reads_the_same() {
    let world = World::new();
    let pods: Vec<Node> = (0..5).map(|_| world.pod()).collect();
    let updates = (0..100).map(|at| add(&pods[at % 5], "n", i64::try_from(at).expect("small")));
    for result in futures::future::join_all(updates).await {
        assert_eq!(result, Ok(()));
    }
    for pod in &pods {
        assert_eq!(total(pod, "n").await, 4950);
        assert_eq!(shards(pod, "n").await, (false, 5));
    }
}

/// The ancestor's defect 1: after the first fold, every later read of the key failed.
#[tokio::test]
async fn regression_1_a_key_works_after_its_first_and_second_fold() {
    let world = World::new();
    let pod = world.pod();
    let mut expected = 0;
    for round in 1..=3 {
        for _ in 0..2 {
            add(&world.pod(), "n", round).await.expect("acked");
            expected += i128::from(round);
        }
        world.advance_to_final();
        let folded = pod.service().fold(&key("n"), false).await.expect("folded");
        assert!(folded.written);
        assert_eq!(shards(&pod, "n").await, (true, 0));
        assert_eq!(total(&pod, "n").await, expected);
        add(&pod, "n", 100).await.expect("acked");
        expected += 100;
        assert_eq!(total(&pod, "n").await, expected);
    }
}

#[tokio::test]
async fn a_read_that_finds_final_shards_requests_a_fold() {
    let world = World::new();
    let pod = world.pod();
    pod.start();
    for by in 1..=3 {
        add(&world.pod(), "n", by).await.expect("acked");
    }
    world.advance_to_final();
    assert_eq!(total(&pod, "n").await, 6);
    eventually("the queue folds", async || shards(&pod, "n").await == (true, 0)).await;
    assert_eq!(total(&pod, "n").await, 6);
    assert_eq!(pod.stop(Duration::from_secs(5)).await, 0);
}

#[tokio::test]
async fn with_folds_off_not_even_a_request_folds() {
    let world = World::new();
    let pod = world.pod_that_folds(Switch::Off);
    pod.start();
    for by in 1..=3 {
        add(&world.pod(), "n", by).await.expect("acked");
    }
    world.advance_to_final();
    assert_eq!(total(&pod, "n").await, 6);
    let error = pod.service().fold(&key("n"), false).await.expect_err("switched off");
    assert!(matches!(error, FoldFailure::Paused(_)), "{error}");
    assert!(pod.folder().sweep_once().await.expect("swept").postponed > 0);
    assert_eq!(shards(&pod, "n").await, (false, 3));
    assert_eq!(pod.service().fold(&key("n"), true).await.expect("planned").report.folded, 3);
}

#[tokio::test]
async fn with_manual_folds_only_a_request_folds() {
    let world = World::new();
    let pod = world.pod_that_folds(Switch::Manual);
    pod.start();
    for by in 1..=3 {
        add(&world.pod(), "n", by).await.expect("acked");
    }
    world.advance_to_final();
    // A read that would request a fold of the key.
    assert_eq!(total(&pod, "n").await, 6);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(shards(&pod, "n").await, (false, 3));
    assert!(pod.service().fold(&key("n"), false).await.expect("folded").written);
    assert_eq!(shards(&pod, "n").await, (true, 0));
    assert_eq!(total(&pod, "n").await, 6);
    assert_eq!(pod.stop(Duration::from_secs(5)).await, 0);
}

#[tokio::test]
async fn a_sweep_folds_unread_keys_and_then_has_nothing_to_do() {
    let world = World::new();
    for text in ["a", "b", "c"] {
        for by in 1..=2 {
            add(&world.pod(), text, by).await.expect("acked");
        }
    }
    add(&world.pod(), "lone", 9).await.expect("acked");
    world.advance_to_final();
    let pod = world.pod();
    let report = pod.folder().sweep_once().await.expect("swept");
    assert_eq!((report.nominated, report.folded), (3, 3));
    let again = pod.folder().sweep_once().await.expect("swept");
    assert_eq!(again.nominated, 0);
    assert_eq!((total(&pod, "b").await, total(&pod, "lone").await), (3, 9));
}

#[tokio::test]
async fn a_dry_run_says_what_a_fold_would_do_and_does_nothing() {
    let world = World::new();
    let pod = world.pod();
    add(&pod, "n", 1).await.expect("acked");
    world.advance_to_final();
    let said = pod.service().fold(&key("n"), true).await.expect("planned");
    assert_eq!((said.report.folded, said.written), (1, false));
    assert_eq!(shards(&pod, "n").await, (false, 1));
}

#[tokio::test]
async fn concurrent_folders_write_one_tally() {
    let world = World::new();
    for by in 1..=20 {
        add(&world.pod(), "n", by).await.expect("acked");
    }
    world.advance_to_final();
    let pods: Vec<Node> = (0..8).map(|_| world.pod()).collect();
    let key = key("n");
    let folds = pods.iter().map(|pod| pod.service().fold(&key, false));
    for fold in futures::future::join_all(folds).await {
        fold.expect("folded, or nothing to do");
    }
    assert_eq!(shards(&pods[0], "n").await, (true, 0));
    assert_eq!(total(&pods[0], "n").await, 210);
}

#[tokio::test]
async fn a_pod_folds_a_key_once_at_a_time() {
    let world = World::new();
    let pod = world.pod();
    add(&pod, "n", 1).await.expect("acked");
    world.advance_to_final();
    let key = key("n");
    let fold = || pod.service().fold(&key, false);
    let (first, second, third) = futures::join!(fold(), fold(), fold());
    assert!(first.expect("folded").written);
    assert!(matches!(second, Err(FoldFailure::Busy)));
    assert!(matches!(third, Err(FoldFailure::Busy)), "a refused fold leaves the mark alone");
    assert!(!fold().await.expect("the mark is gone").written);
}

#[tokio::test]
async fn a_draining_mutator_is_replaced() {
    let world = World::new();
    let pod = world.pod();
    for round in 1..=4 {
        add(&pod, "n", 1).await.expect("acked");
        assert_eq!(shards(&pod, "n").await, (false, round));
        world.advance(Duration::from_secs(50));
    }
    assert_eq!(total(&pod, "n").await, 4);
}

/// Invariant I12 and the embedded store's own guard: updates are refused after the clock was set back.
#[tokio::test]
async fn a_clock_set_back_stops_updates_and_folds_but_not_reads() {
    let world = World::new();
    let pod = world.pod();
    add(&pod, "n", 1).await.expect("acked");
    *world.clock.wall_back.lock().unwrap() = Duration::from_secs(3600);
    let error = add(&pod, "n", 1).await.expect_err("shut");
    assert!(matches!(error, UpdateError::Refused(Refused::Clock(_))), "{error}");
    let error = pod.service().fold(&key("n"), false).await.expect_err("shut");
    assert!(matches!(error, FoldFailure::Paused(_)), "{error}");
    assert_eq!(total(&pod, "n").await, 1);
    *world.clock.wall_back.lock().unwrap() = Duration::ZERO;
    add(&pod, "n", 1).await.expect("acked: time has caught up");
}

#[tokio::test]
async fn a_group_is_paged_in_order_and_filtered() {
    let world = World::new();
    let pod = world.pod();
    for at in 0..25 {
        add(&pod, &format!("day-{at:02}"), at).await.expect("acked");
    }
    add(&pod, "other", 1).await.expect("acked");
    let mut query = GroupQuery {
        kind: Kind::Counter,
        group: name("g"),
        prefix: Some(name("day-")),
        from: Some(name("day-03")),
        to: None,
        behind: None,
        limit: 10,
        level: None,
    };
    let mut pages = Vec::new();
    let mut names: Vec<String> = Vec::new();
    loop {
        let before = names.len();
        let page = pod.service().read_group(&query, |name, _| {
            names.push(name.to_string());
            0
        });
        let next = page.await.expect("readable");
        pages.push(names.len() - before);
        match next {
            Some(last) => query.behind = Some(last),
            None => break,
        }
    }
    assert_eq!(pages, [10, 10, 2]);
    let expected: Vec<String> = (3..25).map(|at| format!("day-{at:02}")).collect();
    assert_eq!(names, expected);
}
