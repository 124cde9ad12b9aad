//! Random work and a crash at a random moment. The next boot must find every acknowledged write, nothing that was
//! refused, and each fold whole or not at all.
//!
//! A seed fixes the work, the crash and what survives it. Which writes share a transaction depends on the machine, so a
//! failing seed may need a few replays.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use orderfree::runtime::clock::Clock;
use orderfree::store::embedded::EmbeddedStore;
use orderfree::store::{Folds, Reads, Shards, Store, StoreClock};
use orderfree_core::crdt::State;
use orderfree_core::protocol::clock::ClockError;
use orderfree_core::protocol::fold::{self, Plan};
use orderfree_core::protocol::{
    Begin, Durability, Key, Mutator, Timestamp, WriteError, WriteOutcome,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::crash_disk::{CrashDisk, Survives};
use crate::world::{TurnedClock, add, constants, key, mutator, value};

const SEEDS: u64 = 200;
const BOOTS: usize = 3;
const ROUNDS: usize = 40;
const KEYS: usize = 5;
/// Maximum number of changes and syncs before the disk crashes. A longer life ends with a crash too.
const FUSE_MAX: u64 = 1_200;

/// A key, and what its clients were told.
struct Watched {
    key: Key,
    mutators: Vec<Mutator>,
    acked: i128,
    unknown: Vec<i128>,
    fence: Option<Timestamp>,
}

struct World {
    random: StdRng,
    clock: Arc<TurnedClock>,
    keys: Vec<Watched>,
    acked_writes: usize,
    acked_folds: usize,
    unknown: usize,
    crashes_at_work: usize,
}

enum Told {
    Write { key: usize, mutator: usize, weight: i128, outcome: WriteOutcome },
    Fold { key: usize, fence: Timestamp, outcome: WriteOutcome },
    Nothing,
}

impl World {
    fn new(seed: u64) -> World {
        let watched = |at| Watched {
            key: key(&format!("key {at}")),
            mutators: Vec::new(),
            acked: 0,
            unknown: Vec::new(),
            fence: None,
        };
        World {
            random: StdRng::seed_from_u64(seed),
            clock: TurnedClock::new(),
            keys: (0..KEYS).map(watched).collect(),
            acked_writes: 0,
            acked_folds: 0,
            unknown: 0,
            crashes_at_work: 0,
        }
    }

    fn open(&self, disk: &CrashDisk) -> Result<EmbeddedStore, String> {
        EmbeddedStore::open_backend(disk.clone(), constants(), self.clock.clone())
            .map_err(|error| error.to_string())
    }

    /// A pod's life: rounds of concurrent writes and folds, until one is not acknowledged.
    async fn live(&mut self, store: &EmbeddedStore) -> Result<(), String> {
        self.keys.iter_mut().for_each(|watched| watched.mutators.clear());
        for _ in 0..ROUNDS {
            self.clock.advance(Duration::from_millis(self.random.random_range(0..12_000)));
            let mut work: Vec<BoxFuture<'_, Told>> = Vec::new();
            for _ in 0..self.random.random_range(1..8) {
                let key = self.random.random_range(0..KEYS);
                let task = if self.random.random_bool(0.3) {
                    self.fold(store, key)
                } else {
                    self.write(store, key)
                };
                work.extend(task);
            }
            let mut all_acked = true;
            for told in join_all(work).await {
                all_acked &= self.note(told);
            }
            if !all_acked {
                self.crashes_at_work += 1;
                return self.refuses_from_now_on(store).await;
            }
        }
        Ok(())
    }

    fn write<'a>(&mut self, store: &'a EmbeddedStore, at: usize) -> Option<BoxFuture<'a, Told>> {
        let (now, weight) = (self.clock.now(), self.random.random_range(1..1_i64 << 60));
        let watched = &mut self.keys[at];
        let takes = |mutator: &Mutator| mutator.is_clean() && mutator.lease().is_writable(now);
        let one = match watched.mutators.iter().position(takes) {
            Some(one) if self.random.random_bool(0.8) => one,
            _ => {
                watched.mutators.push(mutator(&watched.key, now));
                watched.mutators.len() - 1
            }
        };
        let mutator = &mut watched.mutators[one];
        mutator.accept(add(weight), Durability::Stored, now).expect("it takes ops");
        let Begin::Write(write) = mutator.begin_write(now) else { panic!("a write is due") };
        Some(Box::pin(async move {
            let outcome = store.write_shard(&write).await;
            Told::Write { key: at, mutator: one, weight: weight.into(), outcome }
        }))
    }

    fn fold<'a>(&self, store: &'a EmbeddedStore, at: usize) -> Option<BoxFuture<'a, Told>> {
        let (key, now) = (self.keys[at].key.clone(), self.clock.now());
        Some(Box::pin(async move {
            // The disk can't be read after it crashed.
            let Ok(read) = store.read_for_fold(&key).await else { return Told::Nothing };
            let time = store.fold_time(now).expect("an honest clock");
            match fold::plan(&read, time, &constants()).expect("decodable") {
                Plan::Nothing(_) => Told::Nothing,
                Plan::Fold(fold) => {
                    let outcome = store.write_fold(&fold).await;
                    Told::Fold { key: at, fence: fold.fence(), outcome }
                }
            }
        }))
    }

    /// Records what a client was told. Returns whether it was acked.
    fn note(&mut self, told: Told) -> bool {
        match told {
            Told::Nothing => true,
            Told::Fold { key, fence, outcome } => {
                let is_acked = outcome.is_ok();
                if is_acked {
                    self.acked_folds += 1;
                    self.keys[key].fence = self.keys[key].fence.max(Some(fence));
                }
                is_acked
            }
            Told::Write { key, mutator, weight, outcome } => {
                let watched = &mut self.keys[key];
                match &outcome {
                    Ok(()) => {
                        self.acked_writes += 1;
                        watched.acked += weight;
                    }
                    Err(WriteError::Unknown(_)) => {
                        self.unknown += 1;
                        watched.unknown.push(weight);
                    }
                    Err(WriteError::Refused(_)) => {}
                }
                let is_acked = outcome.is_ok();
                watched.mutators[mutator].finish_write(outcome, self.clock.now());
                is_acked
            }
        }
    }

    async fn refuses_from_now_on(&mut self, store: &EmbeddedStore) -> Result<(), String> {
        let told = self.write(store, 0).expect("a write").await;
        let Told::Write { outcome: Err(WriteError::Refused(reason)), .. } = told else {
            return Err("a failed file took another write".into());
        };
        if store.failure() != Some(&reason) { Err(reason) } else { Ok(()) }
    }

    /// Compares the store with what the clients were told.
    async fn check(&mut self, store: &EmbeddedStore) -> Result<(), String> {
        let now = self.clock.now();
        for watched in &mut self.keys {
            let reading = value(store, &watched.key, now).await;
            let total = match reading.as_ref().map(|reading| &reading.state) {
                Some(State::Counter(counter)) => counter.total(),
                _ => 0,
            };
            if !is_subset_sum(total - watched.acked, &watched.unknown) {
                return Err(format!(
                    "{}: acked {}, unknown {:?}, read {total}",
                    watched.key, watched.acked, watched.unknown
                ));
            }
            (watched.acked, watched.unknown) = (total, Vec::new());
            let fence = reading.as_ref().and_then(|reading| reading.fence);
            if fence < watched.fence {
                return Err(format!("{}: an acked fold is gone", watched.key));
            }
            watched.fence = fence;
            // A tally without its deletions would leave rows below its fence.
            if let Some(reading) = reading.filter(|reading| reading.zombies > 0) {
                return Err(format!("{}: half a fold: {reading:?}", watched.key));
            }
        }
        Ok(())
    }
}

fn is_subset_sum(sum: i128, weights: &[i128]) -> bool {
    match weights.split_first() {
        None => sum == 0,
        Some((weight, rest)) => is_subset_sum(sum, rest) || is_subset_sum(sum - weight, rest),
    }
}

#[allow(clippy::disallowed_methods, reason = "a test has no configuration")]
fn seeds() -> Vec<u64> {
    match std::env::var("ORDERFREE_SEED") {
        Ok(seed) => vec![seed.parse().expect("ORDERFREE_SEED is a number")],
        Err(_) => (0..SEEDS).collect(),
    }
}

async fn crash_and_boot(
    seed: u64,
    survives: Survives,
    sums: &mut [usize; 4],
) -> Result<(), String> {
    let mut world = World::new(seed);
    let mut disk = CrashDisk::empty();
    for _ in 0..BOOTS {
        let store = world.open(&disk)?;
        world.check(&store).await?;
        disk.crash_after(world.random.random_range(0..FUSE_MAX));
        world.live(&store).await?;
        disk = disk.reboot(survives, &mut world.random);
    }
    let store = world.open(&disk)?;
    world.check(&store).await?;
    if world.acked_writes > 0 {
        let earlier = world.clock.now().wall.minus(Duration::from_secs(3600));
        world.clock.set_wall(earlier);
        let guarded = store.check_clock(world.clock.now());
        if !matches!(guarded, Err(ClockError::Behind { .. })) {
            return Err(format!("the time was forgotten: {guarded:?}"));
        }
    }
    let World { acked_writes, acked_folds, unknown, crashes_at_work, .. } = world;
    for (sum, more) in sums.iter_mut().zip([acked_writes, acked_folds, unknown, crashes_at_work]) {
        *sum += more;
    }
    Ok(())
}

async fn crash_with(survives: Survives) {
    let mut sums = [0; 4];
    for seed in seeds() {
        if let Err(wrong) = crash_and_boot(seed, survives, &mut sums).await {
            panic!("{survives:?}: {wrong}; replay it with ORDERFREE_SEED={seed}");
        }
    }
    let [writes, folds, unknown, at_work] = sums;
    println!(
        "{survives:?}: {writes} acked writes, {folds} acked folds, {unknown} unknown writes, \
         {at_work} crashes at work, the others at rest"
    );
    assert!(writes > 0, "nothing was tested");
}

#[tokio::test]
async fn no_ack_is_lost_with_all_unsynced_writes() {
    crash_with(Survives::Nothing).await;
}

#[tokio::test]
async fn no_ack_is_lost_with_a_random_part_of_the_unsynced_writes() {
    crash_with(Survives::RandomSubset).await;
}

/// The two tests above can fail: without syncs they do.
#[tokio::test]
async fn a_disk_that_ignores_syncs_loses_acked_writes() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let disk = CrashDisk::empty();
        let store = world.open(&disk).expect("a new file");
        disk.ignore_syncs();
        world.live(&store).await.expect("it looks well");
        assert!(world.acked_writes > 0 && world.unknown == 0);
        let disk = disk.reboot(Survives::Nothing, &mut world.random);
        let store = world.open(&disk).expect("the file as it was opened");
        let wrong = world.check(&store).await.expect_err("acked writes are lost");
        assert!(wrong.contains("acked"), "{wrong}");
    }
}
