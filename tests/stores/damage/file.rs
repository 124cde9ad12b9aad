//! The intact file: keys of several kinds and groups, some of them folded, and the right value of each.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use orderfree::engine::service::{GroupQuery, KeyValue};
use orderfree::pod::config::Switch;
use orderfree::pod::node::Node;
use orderfree::runtime::clock::{Clock, SystemClock};
use orderfree::store::embedded::EmbeddedStore;
use orderfree::store::{Folds, Reads, Shards, Store, StoreClock};
use orderfree_core::crdt::{Kind, Op, Question};
use orderfree_core::protocol::fold::{self, Fold, Plan};
use orderfree_core::protocol::{
    Begin, Constants, Durability, Key, Mutator, MutatorId, Name, Now, Overrides, ShardWrite,
    Timestamp,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use uuid::Uuid;

/// Keys per MB of the file.
const KEYS_PER_MB: usize = 1_700;

/// Rows per transaction, and keys that are folded in one.
const ROWS_AT_ONCE: usize = 500;

/// Groups per kind.
const GROUPS: usize = 3;

/// Kinds, with the share of each in a hundred keys, and the number of ops per key that a mutator takes.
const KINDS: [(Kind, usize, usize); 8] = [
    (Kind::Counter, 36, 1),
    (Kind::Register, 16, 1),
    (Kind::Sum, 10, 1),
    (Kind::GSet, 14, 6),
    (Kind::TopK, 10, 12),
    (Kind::Distinct, 9, 60),
    (Kind::Histogram, 4, 40),
    // Rows that are larger than a page of the file.
    (Kind::Audience, 1, 450),
];

/// When mutators wrote, in hours before now. Rows of the first two eras are folded. Rows of the third could be folded
/// but are not. Rows of the last era are live.
const ERAS: [u64; 4] = [96, 72, 30, 0];

/// When the rows of the first two eras were folded, in hours before now.
const FOLDED: u64 = 40;

/// The eras in which a key was updated. Keys take these in turn.
const LIVES: [&[usize]; 8] = [
    &[0, 1, 3],
    &[0, 1, 2],
    &[0, 1, 3],
    &[0, 1, 2, 3],
    &[0, 1],
    // One final row is not worth a fold.
    &[0, 3],
    &[2],
    &[3],
];

/// The times of a pod with default settings.
pub(crate) fn constants() -> Constants {
    Constants::resolve(Overrides::default()).expect("the defaults")
}

/// A clock that shows a fixed time.
#[derive(Debug, Default)]
pub(crate) struct SetClock {
    wall_us: AtomicI64,
}

impl SetClock {
    /// This many hours before the last full hour, so that two files made in one hour are equal.
    fn set(&self, hours_ago: u64) {
        const HOUR_US: i64 = 3_600_000_000;
        let now = SystemClock.now().wall.as_micros() / HOUR_US;
        let ago = i64::try_from(hours_ago).expect("few");
        self.wall_us.store((now - ago) * HOUR_US, Ordering::SeqCst);
    }

    fn tick(&self) {
        self.wall_us.fetch_add(1_000, Ordering::SeqCst);
    }
}

impl Clock for SetClock {
    fn now(&self) -> Now {
        let wall_us = self.wall_us.load(Ordering::SeqCst);
        let boot = Duration::from_micros(u64::try_from(wall_us).expect("after 1970"));
        Now { wall: Timestamp::from_micros(wall_us), boot }
    }
}

/// The right value of a key.
#[derive(Debug, PartialEq)]
pub(crate) struct Right {
    /// As JSON with numbers as digits, which pods and exports show on request.
    pub(crate) value: Value,
    pub(crate) shards: usize,
    pub(crate) folded_through_us: Option<i64>,
}

impl Right {
    fn of(read: &KeyValue) -> Right {
        let question = Question { key: Some(read.key.clone()), ..Question::default() };
        Right {
            value: json!(read.state.value(&question).shown(true)),
            shards: read.shards,
            folded_through_us: read.folded_through.map(Timestamp::as_micros),
        }
    }
}

/// Every key, by kind, group and name.
#[derive(Debug, Default)]
pub(crate) struct Keys(pub(crate) BTreeMap<(String, String), BTreeMap<String, Right>>);

impl Keys {
    pub(crate) fn len(&self) -> usize {
        self.0.values().map(BTreeMap::len).sum()
    }

    pub(crate) fn get(&self, kind: &str, group: &str, name: &str) -> Option<&Right> {
        self.0.get(&(kind.to_owned(), group.to_owned()))?.get(name)
    }
}

/// A key, and the ops on it.
struct Subject {
    key: Key,
    index: usize,
    ops: usize,
    eras: &'static [usize],
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn subjects(mb: usize) -> Vec<Subject> {
    let mut all = Vec::new();
    for (kind, share, ops) in KINDS {
        for nth in 0..(mb * KEYS_PER_MB * share).div_ceil(100) {
            let index = all.len();
            let group = name(&format!("readers-of-shelf-{}", nth % GROUPS));
            // As long as the addresses of pages, which are often counted.
            let name = name(&format!("articles-{nth:06}-how-to-count-without-a-lock.html"));
            let (key, eras) = (Key { kind, group, name }, LIVES[index % LIVES.len()]);
            all.push(Subject { key, index, ops, eras });
        }
    }
    all
}

/// The amount that an era adds to a counter.
fn amount(index: usize, era: usize) -> i64 {
    i64::try_from((index + 1) * 1_000 + era * 7).expect("small")
}

impl Subject {
    fn ops(&self, era: usize) -> Vec<Op> {
        let Subject { key, index, .. } = self;
        let op = |nth: usize| match key.kind {
            Kind::Counter => json!({"op": "add", "by": amount(*index, era)}),
            Kind::Sum => json!({"op": "add", "by": format!("{index}.{era}25")}),
            Kind::Register => json!({"op": "set", "value": {"page": index, "era": era}}),
            Kind::TopK => json!({"op": "add", "item": format!("city-{nth}"), "by": index % 50 + 1}),
            Kind::Histogram => json!({"op": "record", "value": (nth * 37 + index + era) as f64}),
            _ => json!({"op": "add", "item": format!("reader-{index}-{era}-{nth}")}),
        };
        (0..self.ops).map(|nth| key.kind.parse_op(&op(nth)).expect("an op")).collect()
    }

    fn shard(&self, era: usize, id: u128, now: Now) -> ShardWrite {
        let id = MutatorId::new(Uuid::from_u128(id | 1));
        let mut mutator = Mutator::born(self.key.clone(), id, None, now, &constants());
        let mut ops = self.ops(era);
        ops.iter_mut().for_each(|op| op.stamp(now.wall));
        mutator.accept(ops, Durability::Stored, now).expect("accepted");
        match mutator.begin_write(now) {
            Begin::Write(write) => write,
            other => panic!("{other:?}"),
        }
    }
}

/// Makes a file of at least this many MB, and closes it.
pub(crate) async fn build(path: &Path, mb: usize) -> Keys {
    let (clock, subjects) = (Arc::new(SetClock::default()), subjects(mb));
    clock.set(ERAS[0] + 1);
    let store = EmbeddedStore::open(path, constants(), clock.clone()).expect("a new file");
    let mut ids = StdRng::seed_from_u64(1);
    for (era, hours_ago) in ERAS.into_iter().enumerate() {
        if hours_ago < FOLDED && ERAS[era - 1] > FOLDED {
            clock.set(FOLDED);
            fold(&store, &clock, &subjects).await;
        }
        clock.set(hours_ago);
        let of_era: Vec<_> = subjects.iter().filter(|one| one.eras.contains(&era)).collect();
        for some in of_era.chunks(ROWS_AT_ONCE) {
            clock.tick();
            let write = |one: &&Subject| one.shard(era, ids.random(), clock.now());
            let writes: Vec<_> = some.iter().map(write).collect();
            assert_eq!(store.write_shards(&writes).await, Ok(()));
        }
    }
    let store: Arc<dyn Store> = Arc::new(store);
    let keys = read(&store, &clock, &subjects).await;
    store.close().await;
    let bytes = path.metadata().expect("a file").len();
    assert!(bytes >= mb as u64 * 1_000_000, "the file has only {bytes} bytes");
    keys
}

/// Folds the keys that have two final rows.
async fn fold(store: &EmbeddedStore, clock: &SetClock, subjects: &[Subject]) {
    let keys: Vec<Key> = subjects
        .iter()
        .filter(|one| one.eras.starts_with(&[0, 1]))
        .map(|one| one.key.clone())
        .collect();
    for keys in keys.chunks(ROWS_AT_ONCE) {
        clock.tick();
        let now = store.fold_time(clock.now()).expect("an honest clock");
        let plan = |read| match fold::plan(read, now, &constants()) {
            Ok(Plan::Fold(fold)) => fold,
            other => panic!("{other:?}"),
        };
        let reads = store.read_for_folds(keys).await.expect("readable");
        let folds: Vec<Fold> = reads.iter().map(plan).collect();
        assert_eq!(store.write_folds(&folds).await, Ok(()));
    }
}

async fn read(store: &Arc<dyn Store>, clock: &Arc<SetClock>, subjects: &[Subject]) -> Keys {
    let node = Node::for_tool(store, constants(), clock.clone(), Switch::Off);
    let mut keys = Keys::default();
    let mut groups: Vec<_> = subjects.iter().map(|one| one.key.partition()).collect();
    groups.sort_unstable();
    groups.dedup();
    for (kind, group) in groups {
        let mut names = BTreeMap::new();
        let mut query = GroupQuery::all(kind, group.clone(), ROWS_AT_ONCE);
        loop {
            let page = node.service().read_group(&query, |name, value| {
                names.insert(name.to_string(), Right::of(&value.expect("readable")));
                0
            });
            match page.await.expect("readable") {
                Some(last) => query.behind = Some(last),
                None => break,
            }
        }
        keys.0.insert((kind.name().to_owned(), group.to_string()), names);
    }
    check(&keys, subjects);
    keys
}

/// Checks the service's reads: every key, the sums of counters, and which keys have a tally or shards.
fn check(keys: &Keys, subjects: &[Subject]) {
    assert_eq!(keys.len(), subjects.len());
    for Subject { key, index, eras, .. } in subjects {
        let right = keys.get(key.kind.name(), key.group.as_str(), key.name.as_str());
        let right = right.unwrap_or_else(|| panic!("{key} is missing"));
        if key.kind == Kind::Counter {
            let total: i64 = eras.iter().map(|&era| amount(*index, era)).sum();
            assert_eq!(right.value, json!(total.to_string()), "{key}");
        }
        let is_folded = eras.starts_with(&[0, 1]);
        let shards = eras.len() - if is_folded { 2 } else { 0 };
        let found = (right.folded_through_us.is_some(), right.shards);
        assert_eq!(found, (is_folded, shards), "{key}");
    }
}
