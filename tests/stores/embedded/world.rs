//! A clock that tests set, keys, and pods that write them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use orderfree::runtime::clock::Clock;
use orderfree::store::Reads;
use orderfree::store::embedded::EmbeddedStore;
use orderfree_core::crdt::{Counter, CounterOp, Kind, Op, State};
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::read::{self, Answer, Reading};
use orderfree_core::protocol::{
    Begin, Constants, Durability, Key, Mutator, MutatorId, Name, Now, Overrides, ShardWrite,
    Timestamp,
};
use uuid::Uuid;

/// L = 60 s, D = 10 s, C = 30 s, ε = 4 s, fences every second.
pub(crate) fn constants() -> Constants {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let overrides = Overrides {
        lifetime: seconds(60),
        drain_margin: seconds(10),
        cutoff: seconds(30),
        ..Overrides::default()
    };
    Constants::resolve(overrides).expect("the test profile")
}

/// A clock that stands still until it is set.
#[derive(Debug)]
pub(crate) struct TurnedClock {
    wall_us: AtomicI64,
    boot_us: AtomicI64,
}

impl TurnedClock {
    pub(crate) fn new() -> Arc<TurnedClock> {
        let wall_us = AtomicI64::new(1_700_000_000_000_000);
        Arc::new(TurnedClock { wall_us, boot_us: AtomicI64::new(1_000_000_000) })
    }

    pub(crate) fn advance(&self, span: Duration) {
        let span_us = i64::try_from(span.as_micros()).expect("short");
        self.wall_us.fetch_add(span_us, Ordering::SeqCst);
        self.boot_us.fetch_add(span_us, Ordering::SeqCst);
    }

    /// Sets the wall clock. The time since boot continues.
    pub(crate) fn set_wall(&self, wall: Timestamp) {
        self.wall_us.store(wall.as_micros(), Ordering::SeqCst);
    }
}

impl Clock for TurnedClock {
    fn now(&self) -> Now {
        let boot_us = u64::try_from(self.boot_us.load(Ordering::SeqCst)).expect("positive");
        let wall = Timestamp::from_micros(self.wall_us.load(Ordering::SeqCst));
        Now { wall, boot: Duration::from_micros(boot_us) }
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

pub(crate) fn key(text: &str) -> Key {
    Key { kind: Kind::Counter, group: name("g"), name: name(text) }
}

pub(crate) fn mutator(key: &Key, now: Now) -> Mutator {
    Mutator::born(key.clone(), MutatorId::new(Uuid::new_v4()), None, now, &constants())
}

pub(crate) fn add(by: i64) -> Vec<Op> {
    vec![Op::Counter(CounterOp::Add { by })]
}

/// Adds to a mutator, which must accept it, and begins the write.
pub(crate) fn write(mutator: &mut Mutator, by: i64, now: Now) -> ShardWrite {
    mutator.accept(add(by), Durability::Stored, now).expect("accepted");
    match mutator.begin_write(now) {
        Begin::Write(write) => write,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn counter(total: i128) -> State {
    State::Counter(Counter::from_total(total))
}

/// The key's value; `None` without rows.
pub(crate) async fn value(store: &EmbeddedStore, key: &Key, now: Now) -> Option<Reading> {
    let slice = store.read_key(key, None, Level::LocalQuorum).await.expect("readable");
    match read::assemble(key, &slice, now.wall, &constants()).expect("mergeable") {
        Answer::Absent | Answer::Grave(..) => None,
        Answer::Value(reading) => Some(reading),
        Answer::ReadAgain => panic!("nothing was left out"),
    }
}
