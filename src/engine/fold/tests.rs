use std::sync::atomic::{AtomicU64, Ordering};

use orderfree_core::crdt::{CounterOp, Kind, Op};
use orderfree_core::protocol::op_id::{ClientId, NamedOp, Window};
use orderfree_core::protocol::reset::Side;
use orderfree_core::protocol::{Begin, Change, Durability, Mutator, Name, Now, Overrides};
use tempfile::TempDir;

use super::*;
use crate::engine::resetter::Resetter;
use crate::policy::Policy;
use crate::runtime::clock::{Clock, SystemClock};
use crate::store::Shards;
use crate::store::embedded::EmbeddedStore;

/// The machine's clocks plus this many seconds.
#[derive(Debug, Default)]
struct Ahead(AtomicU64);

impl Clock for Ahead {
    fn now(&self) -> Now {
        let ahead = Duration::from_secs(self.0.load(Ordering::SeqCst));
        let Now { wall, boot } = SystemClock.now();
        Now { wall: wall.plus(ahead), boot: boot + ahead }
    }
}

/// A store on a clock that can be moved.
fn store() -> (TempDir, Arc<EmbeddedStore>, Arc<Ahead>, Constants) {
    let directory = TempDir::new().expect("a directory");
    let constants = Constants::resolve(Overrides::default()).expect("defaults");
    let clock = Arc::new(Ahead::default());
    let store = EmbeddedStore::open(&directory.path().join("rows"), constants, clock.clone());
    (directory, Arc::new(store.expect("a store")), clock, constants)
}

fn key(group: &str, text: &str) -> Key {
    let name = |text| Name::new(text).expect("a name");
    Key { kind: Kind::Counter, group: name(group), name: name(text) }
}

/// Adds 1 in a row of its own.
async fn add(store: &EmbeddedStore, clock: &Ahead, constants: &Constants, key: Key) {
    let (id, now) = (Random::system().mutator_id(), clock.now());
    let mut mutator = Mutator::born(key, id, None, now, constants);
    let ops = vec![Op::Counter(CounterOp::Add { by: 1 })];
    mutator.accept(ops, Durability::Stored, now).expect("accepted");
    let Begin::Write(write) = mutator.begin_write(now) else { panic!("nothing to write") };
    assert_eq!(store.write_shard(&write).await, Ok(()));
}

fn resetter(store: &Arc<EmbeddedStore>, context: &Context) -> Arc<Resetter> {
    Resetter::new(store.clone(), store.clone(), None, context, None, None)
}

#[tokio::test]
async fn a_key_being_folded_is_skipped_and_others_have_their_results() {
    let (_directory, store, clock, constants) = store();
    let keys = ["one", "busy", "none", "three"].map(|text| key("g", text));
    for (key, shards) in keys.iter().zip([1, 2, 0, 3]) {
        for _ in 0..shards {
            add(&store, &clock, &constants, key.clone()).await;
        }
    }
    let age = constants.lifetime() + constants.cutoff() + 2 * constants.fence_quantum();
    clock.0.store(age.as_secs(), Ordering::SeqCst);

    let context = Context::new(store.clone(), constants, clock, Random::system());
    let folder =
        Folder::new(store.clone(), store, context, Folding::InBackground, Policies::default());
    let taken = Busy::take(&folder.busy, &keys[1]).expect("no fold runs yet");
    let results = folder.fold_together(&keys, false).await;
    assert!(matches!(results[1], Err(FoldFailure::Busy)), "{results:?}");
    let seen = |result: &Result<FoldResult, FoldFailure>| {
        result.as_ref().ok().map(|result| (result.report.folded, result.written))
    };
    let seen: Vec<_> = results.iter().map(seen).collect();
    assert_eq!(seen, [Some((1, true)), None, Some((0, false)), Some((3, true))]);
    drop(taken);
    assert_eq!(folder.fold(&keys[1], false).await.expect("folded").report.folded, 2);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_another_task_folds_does_not_say_that_folds_go_on() {
    let (_directory, store, clock, constants) = store();
    let (one, other) = (key("g", "one"), key("g", "other"));
    let context = Context::new(store.clone(), constants, clock, Random::system());
    let folder =
        Folder::new(store.clone(), store, context, Folding::InBackground, Policies::default());
    for _ in 0..2 {
        folder.pace.went_wrong(false);
        tokio::time::sleep(Duration::from_secs(61)).await;
    }
    let _taken = Busy::take(&folder.busy, &one).expect("no fold runs yet");
    folder.fold_politely(vec![one.clone()]).await;
    assert!(folder.pace.was_told());
    folder.fold_politely(vec![other]).await;
    assert!(!folder.pace.was_told());
}

/// No key is read here, so no fold of one can fail.
#[tokio::test(start_paused = true)]
async fn the_log_says_that_folds_wait_while_sweeps_are_not_allowed() {
    let (_directory, store, clock, constants) = store();
    clock.0.store(3_600, Ordering::SeqCst);
    add(&store, &clock, &constants, key("g", "one")).await;
    clock.0.store(0, Ordering::SeqCst);
    let context = Context::new(store.clone(), constants, clock.clone(), Random::system());
    let folder =
        Folder::new(store.clone(), store, context, Folding::InBackground, Policies::default());
    assert!(matches!(folder.sweep_once().await, Err(FoldFailure::Paused(_))));
    let tasks = Tasks::new();
    let sweeps = tokio::spawn(Arc::clone(&folder).sweep_forever(tasks.clone()));
    let waits = async |is_told: bool| {
        let until = Instant::now() + 3 * constants.sweep_every();
        while folder.pace.was_told() != is_told {
            assert!(Instant::now() < until, "{is_told}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    waits(true).await;
    clock.0.store(3_600, Ordering::SeqCst);
    waits(false).await;
    tasks.stop();
    sweeps.await.expect("it ends");
}

/// No rule says how long the key can be idle. Rows that the deletion cleared expire later than it.
#[tokio::test]
async fn the_grave_of_a_deleted_key_goes_once_no_row_needs_it() {
    let (_directory, store, clock, constants) = store();
    let context = Context::new(store.clone(), constants, clock.clone(), Random::system());
    let resetter = resetter(&store, &context);
    let folding = Folding::InBackground;
    let folder = Folder::new(store.clone(), store.clone(), context, folding, Policies::default());
    let (key, wait) =
        (key("g", "n"), |hours: u64| clock.0.fetch_add(hours * 3600, Ordering::SeqCst));
    add(&store, &clock, &constants, key.clone()).await;
    resetter.reset(&key, true).await.expect("deleted");
    let rows = async || {
        folder.sweep_once().await.expect("a sweep");
        let read = store.read_for_fold(&key).await.expect("a full read");
        (read.slice().has_grave(), read.slice().len())
    };
    assert_eq!(rows().await, (true, 1), "the cleared row went with the marker");
    wait(50);
    assert_eq!(rows().await, (true, 1), "cleared rows could still come back");
    wait(26);
    assert_eq!(rows().await, (false, 0));
}

/// No client reads the key, and a pod that does not know of the reset would give its rows no stamp.
#[tokio::test]
async fn a_fold_notes_a_reset_that_the_log_has_lost() {
    let (_directory, store, clock, constants) = store();
    let context = || Context::new(store.clone(), constants, clock.clone(), Random::system());
    let resetter = resetter(&store, &context());
    let key = key("g", "n");
    add(&store, &clock, &constants, key.clone()).await;
    resetter.reset(&key, false).await.expect("reset");
    let other = context();
    other.resets.see(&key, clock.now(), &[]);
    let stamp = || other.resets.admit(&key, None, Side::Any, clock.now()).expect("a look");
    assert_eq!(stamp(), None);
    let folding = Folding::WhenAsked;
    let folder =
        Folder::new(store.clone(), store.clone(), other.clone(), folding, Policies::default());
    folder.fold(&key, false).await.expect("a look at the key");
    assert!(stamp().is_some());
}

/// Cleared rows can come back in Cassandra, so only an operator knows that a grave may go.
#[tokio::test]
async fn a_purge_removes_graves_that_are_older_than_the_repair() {
    let (_directory, store, clock, constants) = store();
    let policy = "[[lifecycle]]\ngroup_prefix = 'g'\nidle_ttl = '26h'\n";
    let policies = Policies::from(policy.parse::<Policy>().expect("a policy"));
    let context = Context::new(store.clone(), constants, clock.clone(), Random::system());
    let folder = Folder::new(store.clone(), store.clone(), context, Folding::WhenAsked, policies);
    let add = async |key: Key| add(&store, &clock, &constants, key).await;
    let wait = |hours: u64| clock.0.fetch_add(hours * 3600, Ordering::SeqCst);
    for text in ["a", "b"] {
        add(key("g", text)).await;
        add(key("h", text)).await;
    }
    wait(24 + 27);
    let swept = folder.sweep_once().await.expect("swept");
    assert_eq!((swept.nominated, swept.forgotten), (2, 2), "no rule is about the others");
    let forgotten = clock.now().wall;
    wait(25);
    add(key("g", "c")).await;
    add(key("g", "a")).await;
    wait(24 + 27);
    for text in ["a", "c"] {
        let result = folder.fold(&key("g", text), false).await.expect("folded");
        assert!(result.report.forgotten, "{result:?}");
    }

    // "a" and "c" were forgotten just now, and "b" two days before.
    let purge = async |since, dry_run| {
        let PurgeReport { graves, removed, postponed } =
            folder.purge(since, dry_run).await.expect("purged");
        assert_eq!(postponed, 0);
        (graves, removed)
    };
    let day_after = forgotten.plus(Duration::from_secs(25 * 3600));
    assert_eq!(purge(forgotten, true).await, (3, 0));
    assert_eq!(purge(day_after, true).await, (3, 1));
    assert_eq!(purge(day_after, false).await, (3, 1));
    assert_eq!(purge(clock.now().wall, false).await, (2, 0));
    let rows = async |key: Key| store.read_for_fold(&key).await.expect("a full read");
    assert!(rows(key("g", "b")).await.slice().is_empty());
    assert!(rows(key("g", "a")).await.slice().has_grave());
    assert_eq!(rows(key("h", "a")).await.slice().len(), 1);
}

/// Five pods with their maximum of packs: no expiry can be folded in parts.
#[tokio::test]
async fn an_expiry_with_many_packs_is_folded() {
    const PACKS: usize = 300;
    let (_directory, store, clock, constants) = store();
    let key = Key { kind: Kind::OrSet, ..key("g", "n") };
    let (random, now) = (Random::system(), clock.now());
    let mut writes = Vec::new();
    for at in 0..PACKS {
        let id = ClientId::parse(&format!("{at}")).expect("an id");
        let named = NamedOp::new(id, 0, now.wall, Window::Minute);
        let until = named.expiry(&key.group, now.wall, &constants).expect("in time");
        let op = serde_json::json!({"op": "add", "items": [at.to_string()]});
        let mut ops = vec![Kind::OrSet.parse_op(&op).expect("an op")];
        let op = named.prepare(key.kind, &key.group, &mut ops).expect("valid");
        let id = random.mutator_id();
        let mut mutator = Mutator::born_until(key.clone(), id, None, until, now, &constants);
        mutator.accept(Change::Named(op), Durability::Stored, now).expect("accepted");
        let Begin::Write(write) = mutator.begin_write(now) else { panic!("nothing to write") };
        writes.push(write);
    }
    assert_eq!(store.write_shards(&writes).await, Ok(()));
    let age = 2 * Window::Minute.length() + constants.cutoff() + 2 * constants.fence_quantum();
    clock.0.store(age.as_secs(), Ordering::SeqCst);
    let context = Context::new(store.clone(), constants, clock, random);
    let folder =
        Folder::new(store.clone(), store, context, Folding::WhenAsked, Policies::default());
    let report = folder.fold(&key, false).await.expect("folded").report;
    assert_eq!((report.folded, report.united.ids, report.has_more), (PACKS, PACKS, false));
}
