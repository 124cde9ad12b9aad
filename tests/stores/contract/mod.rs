//! One suite for all stores: the same tests run on the embedded file and on a real cluster.
//!
//! A store's test binary defines an async function `with_store(test)`. It makes an empty store on a new
//! [`TestClock`], calls `test` with it, and cleans up. Then the binary calls `every_test!(with_store);`.

#![allow(dead_code, reason = "each test binary uses its own part")]

mod batches;
mod graves;
mod long;
mod operators;
mod resets;
pub(crate) mod suite;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use orderfree::runtime::clock::{Clock, SystemClock};
use orderfree::store::cassandra::{CassandraConfig, CassandraStore};
use orderfree::store::{Store, StoreError};
use orderfree_core::crdt::{Counter, Kind, State};
use orderfree_core::protocol::fold::{self, Fold, Plan};
use orderfree_core::protocol::read::{Answer, Reading, assemble};
use orderfree_core::protocol::{
    Begin, Constants, Durability, Key, Mutator, MutatorId, Name, Now, Overrides, ShardWrite,
    Timestamp, WriteError,
};
use uuid::Uuid;

/// Writes in flight at once when a test writes many.
const WRITES_AT_ONCE: usize = 128;

/// How often one of many writes is sent before the test fails.
const WRITE_TRIES_MAX: u32 = 10;

/// The machine's clocks, which a test can move forwards.
#[derive(Debug, Default)]
pub(crate) struct TestClock {
    ahead_us: AtomicI64,
}

impl TestClock {
    /// Moves the clock forwards.
    pub(crate) fn advance(&self, span: Duration) {
        let span_us = i64::try_from(span.as_micros()).expect("short");
        self.ahead_us.fetch_add(span_us, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Now {
        let (now, ahead_us) = (SystemClock.now(), self.ahead_us.load(Ordering::SeqCst));
        let ahead = Duration::from_micros(u64::try_from(ahead_us).expect("only forwards"));
        Now { wall: now.wall.plus(ahead), boot: now.boot + ahead }
    }
}

/// A store under test, and its clock.
#[derive(Clone)]
pub(crate) struct Subject {
    /// Initially empty.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<TestClock>,
    pub(crate) constants: Constants,
}

/// Lifetime 60 s, drain margin 10 s, cutoff 30 s.
pub(crate) fn short_constants() -> Constants {
    let seconds = |count| Some(Duration::from_secs(count));
    let short = Overrides {
        lifetime: seconds(60),
        drain_margin: seconds(10),
        cutoff: seconds(30),
        // Long enough on a busy machine.
        request_budget: seconds(5),
        clock_offset_max: seconds(2),
        // Short enough for resets.
        fence_quantum: Some(Duration::from_millis(900)),
        ..Overrides::default()
    };
    let constants = Constants::resolve(short).expect("consistent");
    constants.check_resets().expect("keys can be reset");
    constants
}

/// For tests in which real time must pass before anything is final: all times are short.
pub(crate) fn brief_constants() -> Constants {
    let seconds = |count| Some(Duration::from_secs(count));
    Constants::resolve(Overrides {
        lifetime: seconds(40),
        drain_margin: seconds(8),
        cutoff: seconds(8),
        request_budget: seconds(3),
        clock_offset_max: seconds(2),
        ..Overrides::default()
    })
    .expect("consistent")
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

pub(crate) fn key(group: &str, text: &str) -> Key {
    Key { kind: Kind::Counter, group: name(group), name: name(text) }
}

/// The mutator's next write. It adds `by`: an amount or an item.
pub(crate) fn next_write(mutator: &mut Mutator, by: i64, now: Now) -> ShardWrite {
    let kind = mutator.key().kind;
    let mut op = kind.read_bare_op(&by.to_string()).expect("an op");
    op.stamp(now.wall);
    mutator.accept(vec![op], Durability::Stored, now).expect("accepted");
    match mutator.begin_write(now) {
        Begin::Write(write) => write,
        other => panic!("no write but {other:?}"),
    }
}

impl Subject {
    /// A store on a keyspace of the cluster.
    pub(crate) async fn on_cluster(config: &CassandraConfig) -> Subject {
        let clock = Arc::new(TestClock::default());
        let store = CassandraStore::connect(config.clone(), Arc::clone(&clock) as _).await;
        Subject { store: Arc::new(store.expect("a store")), clock, constants: config.constants }
    }

    pub(crate) fn now(&self) -> Now {
        self.clock.now()
    }

    /// A new mutator, born now.
    pub(crate) fn born(&self, key: &Key) -> Mutator {
        let id = MutatorId::new(Uuid::new_v4());
        Mutator::born(key.clone(), id, None, self.now(), &self.constants)
    }

    /// The first write of a new mutator that adds `by`.
    pub(crate) fn shard(&self, key: &Key, by: i64) -> ShardWrite {
        next_write(&mut self.born(key), by, self.now())
    }

    /// Writes, and panics unless the write is acknowledged.
    pub(crate) async fn write(&self, write: &ShardWrite) {
        assert_eq!(self.store.write_shard(write).await, Ok(()));
    }

    /// Writes a new shard.
    pub(crate) async fn put(&self, key: &Key, by: i64) -> ShardWrite {
        let write = self.shard(key, by);
        self.write(&write).await;
        write
    }

    /// Writes many shards, many at once. On a busy machine some can get no answer in time. Sent again, they
    /// are the same writes.
    pub(crate) async fn write_all(&self, writes: Vec<ShardWrite>) {
        let results = stream::iter(writes).map(|write| async move {
            for _ in 0..WRITE_TRIES_MAX {
                match self.store.write_shard(&write).await {
                    Err(WriteError::Unknown(_)) => {}
                    outcome => return assert_eq!(outcome, Ok(())),
                }
            }
            panic!("no answer to {WRITE_TRIES_MAX} tries");
        });
        results.buffer_unordered(WRITES_AT_ONCE).collect::<Vec<()>>().await;
    }

    /// A key's value and its sources. `None` if it has no row.
    pub(crate) async fn reading(&self, key: &Key, after: Option<Timestamp>) -> Option<Reading> {
        let slice = self.store.read_key(key, after, self.store.levels().read).await;
        let slice = slice.expect("a slice");
        match assemble(key, &slice, self.now().wall, &self.constants).expect("decodable") {
            Answer::Value(reading) => Some(reading),
            Answer::Absent | Answer::Grave(..) => None,
            Answer::ReadAgain => panic!("the tally is older than the fence {after:?}"),
        }
    }

    /// A key's total. `None` if it has no row.
    pub(crate) async fn total(&self, key: &Key) -> Option<i128> {
        self.reading(key, None).await.map(|reading| total_of(&reading.state))
    }

    /// A time at which everything written until now has been final for a while.
    pub(crate) fn when_final(&self) -> Timestamp {
        let age = self.constants.lifetime() + self.constants.cutoff();
        self.now().wall.plus(age + 2 * self.constants.fence_quantum())
    }

    /// Plans a key's fold by a clock at `now`.
    pub(crate) async fn plan(&self, key: &Key, now: Timestamp) -> Fold {
        let read = self.store.read_for_fold(key).await.expect("a full read");
        match fold::plan(&read, now, &self.constants).expect("a plan") {
            Plan::Fold(fold) => fold,
            Plan::Nothing(report) => panic!("nothing to fold: {report:?}"),
        }
    }

    /// Executes a fold, and panics unless it is acknowledged.
    pub(crate) async fn execute(&self, fold: &Fold) {
        assert_eq!(self.store.write_fold(fold).await, Ok(()));
    }

    /// Folds a key by a clock at `now`.
    pub(crate) async fn fold(&self, key: &Key, now: Timestamp) -> Fold {
        let fold = self.plan(key, now).await;
        self.execute(&fold).await;
        fold
    }

    /// The number of a key's rows, including the tally.
    pub(crate) async fn rows(&self, key: &Key) -> Result<usize, StoreError> {
        let read = self.store.read_for_fold(key).await?;
        Ok(read.slice().len())
    }
}

pub(crate) fn total_of(state: &State) -> i128 {
    Counter::try_from(state.clone()).expect("a counter").total()
}
