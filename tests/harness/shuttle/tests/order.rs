//! Locks, timestamps and acks of the mutators in thousands of interleavings: random ones, and ones with few but nasty
//! preemptions (probabilistic concurrency testing). A failure prints the schedule, which `shuttle::replay` repeats.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use orderfree::engine::Context;
use orderfree::policy::Policies;
use orderfree::runtime::clock::Clock;
use orderfree::runtime::random::Random;
use orderfree::store::{Pause, RequestLimits, Shards, StoreClock};
use orderfree_core::crdt::envelope::decode_state;
use orderfree_core::crdt::{Counter, CounterOp, Kind, Op};
use orderfree_core::protocol::clock::ClockError;
use orderfree_core::protocol::{
    Constants, Durability, Key, MutatorId, Name, Now, Overrides, ShardWrite, Timestamp, WriteError,
    WriteOutcome,
};
use orderfree_shuttle::engine::write::{Bounds, Mutators, UpdateError, Updates};
use shuttle::future::{block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};

/// Schedules of each kind in a plain `cargo test`.
const SCHEDULES: usize = 9_000;

const CLIENTS: u32 = 3;
const UPDATES: u32 = 3;

/// How often update `id` is in a total. It adds 8 to the power of its id.
fn times(total: i128, id: u32) -> i128 {
    (total >> (3 * id)) & 7
}

/// Whether `more` contains every update of `less`.
fn contains(more: i128, less: i128) -> bool {
    (0..CLIENTS * UPDATES).all(|id| times(more, id) >= times(less, id))
}

/// A mutator's row, and what clients were told about it.
#[derive(Default)]
struct Row {
    is_in_flight: bool,
    last_timestamp: Option<Timestamp>,
    /// The updates that every later state must contain. Only a refusal takes updates back.
    kept: i128,
    /// The total that a read would find.
    applied: i128,
}

/// Rows in memory. Each write takes a while and has one of the three outcomes.
#[derive(Default)]
struct Rows(Mutex<BTreeMap<MutatorId, Row>>);

impl Rows {
    fn with<T>(&self, write: &ShardWrite, look: impl FnOnce(&mut Row) -> T) -> T {
        look(self.0.lock().unwrap().entry(write.mutator_id()).or_default())
    }

    fn total(&self) -> i128 {
        self.0.lock().unwrap().values().map(|row| row.applied).sum()
    }
}

async fn a_while() {
    for _ in 0..thread_rng().gen_range(0..3) {
        yield_now().await;
    }
}

#[async_trait]
impl Shards for Rows {
    fn request_limits(&self) -> RequestLimits {
        RequestLimits {
            rows_max: 2,
            group_rows_max: 3,
            free: 1,
            backlog: 1,
            ..RequestLimits::default()
        }
    }

    async fn write_shards(&self, writes: &[ShardWrite]) -> WriteOutcome {
        let total = |write: &ShardWrite| {
            let state =
                decode_state(write.seal(), Kind::Counter, write.state()).expect("decodable");
            Counter::try_from(state).expect("a counter").total()
        };
        for write in writes {
            let total = total(write);
            self.with(write, |row| {
                assert!(!row.is_in_flight, "two writes of one mutator at once");
                assert!(row.last_timestamp < Some(write.timestamp()), "timestamps don't rise");
                assert!(contains(total, row.kept), "{total:o} lacks some of {:o}", row.kept);
                (row.is_in_flight, row.last_timestamp) = (true, Some(write.timestamp()));
            });
        }
        a_while().await;
        let luck = thread_rng().gen_range(0..8);
        let (is_applied, outcome) = match luck {
            0..4 => (true, Ok(())),
            4 | 5 => (false, Err(WriteError::Refused("down".into()))),
            _ => (luck == 6, Err(WriteError::Unknown("no answer".into()))),
        };
        for write in writes {
            self.with(write, |row| {
                if is_applied {
                    row.applied = total(write);
                }
                if !matches!(outcome, Err(WriteError::Refused(_))) {
                    row.kept = total(write);
                }
            });
        }
        a_while().await;
        for write in writes {
            self.with(write, |row| row.is_in_flight = false);
        }
        outcome
    }
}

impl StoreClock for Rows {
    fn check_clock(&self, _: Now) -> Result<(), ClockError> {
        Ok(())
    }

    fn fold_time(&self, _: Now) -> Result<Timestamp, Pause> {
        panic!("an update never folds")
    }
}

/// A clock that stands still until it is moved, so that timestamps must increase by themselves.
#[derive(Default)]
struct Still(AtomicI64);

impl Clock for Still {
    fn now(&self) -> Now {
        let us = self.0.load(Ordering::SeqCst);
        let boot = Duration::from_micros(us.unsigned_abs());
        Now { wall: Timestamp::from_micros(1_700_000_000_000_000 + us), boot }
    }
}

impl Still {
    fn advance(&self, span: Duration) {
        self.0.fetch_add(i64::try_from(span.as_micros()).expect("short"), Ordering::SeqCst);
    }
}

/// An update, and what its client was told.
type Told = (Durability, Result<(), UpdateError>);

struct World {
    mutators: Arc<Mutators>,
    rows: Arc<Rows>,
    /// The updates by id.
    told: Mutex<BTreeMap<u32, Told>>,
}

async fn client(world: Arc<World>, number: u32) {
    let name = |text: &str| Name::new(text).expect("a name");
    let mut ids: Vec<u32> = (number * UPDATES..(number + 1) * UPDATES).collect();
    while !ids.is_empty() {
        // Some updates run concurrently.
        let count = if thread_rng().gen_bool(0.7) { 1 } else { 2.min(ids.len()) };
        let ids: Vec<u32> = ids.drain(..count).collect();
        let durability =
            if thread_rng().gen_bool(0.8) { Durability::Stored } else { Durability::Memory };
        let update = |id: &u32| {
            let key = if thread_rng().gen_bool(0.8) { "often" } else { "seldom" };
            let key = Key { kind: Kind::Counter, group: name("g"), name: name(key) };
            let ops = vec![Op::Counter(CounterOp::Add { by: 1 << (3 * id) })];
            Updates { key, lists: vec![ops.into()] }
        };
        let mut updates: Vec<Updates> = ids.iter().map(update).collect();
        let told = match count {
            1 => {
                let Updates { key, mut lists } = updates.remove(0);
                vec![world.mutators.update(&key, lists.remove(0), durability).await]
            }
            _ => world.mutators.update_all(updates, durability).await,
        };
        for (id, told) in ids.into_iter().zip(told) {
            let told = told.map(drop);
            if told.is_ok() && durability == Durability::Stored {
                assert_eq!(times(world.rows.total(), id), 1, "update {id} was acked: not stored");
            }
            world.told.lock().unwrap().insert(id, (durability, told));
        }
    }
}

/// One pod with room for one mutator, clients of two keys, a store that sometimes fails, time that jumps, and a stop
/// during the updates or after them.
fn one_pod() {
    let constants = Constants::resolve(Overrides::default()).expect("defaults");
    let (clock, rows) = (Arc::new(Still::default()), Arc::new(Rows::default()));
    let context = Context::new(rows.clone(), constants, clock.clone(), Random::seeded(1));
    let mutators = Mutators::new(rows.clone(), context, Bounds::awake(1), Policies::default());
    let world = Arc::new(World { mutators, rows, told: Mutex::default() });
    let lives_end = thread_rng().gen_bool(0.5);
    let clients: Vec<_> =
        (0..CLIENTS).map(|number| spawn(client(Arc::clone(&world), number))).collect();
    let time = spawn(async move {
        for _ in 0..3 {
            a_while().await;
            clock.advance(if lives_end {
                constants.lifetime() / 2
            } else {
                Duration::from_micros(1)
            });
        }
    });
    let stop = thread_rng().gen_bool(0.3).then(|| {
        let world = Arc::clone(&world);
        spawn(async move {
            a_while().await;
            world.mutators.close(Duration::ZERO).await;
        })
    });
    block_on(async {
        for task in clients.into_iter().chain([time]).chain(stop) {
            task.await.expect("no panic");
        }
        assert_eq!(world.mutators.close(Duration::ZERO).await, 0);
    });
    let total = world.rows.total();
    for (id, (durability, told)) in &*world.told.lock().unwrap() {
        let counted = times(total, *id);
        let is_right = match (told, durability) {
            (Ok(()), Durability::Stored) => counted == 1,
            // The update was sent, and its mutator died before it was acked or refused: it ends as unknown.
            (Ok(()), Durability::Memory) => counted == 1 || lives_end && counted == 0,
            (Err(UpdateError::Refused(_)), _) => counted == 0,
            (Err(UpdateError::Unknown(_)), _) => counted <= 1,
            (Err(UpdateError::IdExpired { .. } | UpdateError::IdBeforeReset), _) => {
                panic!("no update has an id")
            }
        };
        assert!(is_right, "update {id} counts {counted} times: {durability:?} {told:?}");
    }
}

fn schedules() -> usize {
    std::env::var("SHUTTLE_N").map_or(SCHEDULES, |text| text.parse().expect("SHUTTLE_N: a number"))
}

#[test]
fn random_interleavings_keep_every_promise() {
    shuttle::check_random(one_pod, schedules());
}

#[test]
fn few_nasty_preemptions_keep_every_promise() {
    for preemptions in [2, 3, 5] {
        shuttle::check_pct(one_pod, schedules() / 3, preemptions);
    }
}
