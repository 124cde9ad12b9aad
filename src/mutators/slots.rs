//! The bounded map from keys to mutators, awake or at rest.
//!
//! Each part of the map has the mutators that are awake and the table of those at rest under one lock,
//! so that a key which goes from one to the other is never in neither.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

use lru::LruCache;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::{Constants, Key, Mutator, Now, Predecessors, RestFlaw};

use super::batch::Batch;
use super::births::Births;
use super::board::Queue;
use super::resting::{HashesKeys, Record, Resting};
use super::weights::{Scales, Weight};
use super::{BACKOFF, Bounds, Refused};
use crate::limits;
use crate::policy::{Arrival, OverQuota, Seat, SeatsOf, Tenant};
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, PoisonError};

/// Most independent parts of the map, so that updates of different keys seldom meet at a lock.
const PARTS_MAX: usize = 64;

/// Fewest mutators of a part: a small limit is kept exactly, by one part.
const PART_MUTATORS_MIN: usize = 64;

/// How many of the least recently used mutators are looked at to find a clean one.
const EVICTION_LOOKS_MAX: usize = 64;

/// How long nobody looks for states that can go to rest after none was found.
const SHED_PAUSE: Duration = Duration::from_millis(50);

/// One key's mutator and those who wait on it.
pub(super) struct Slot {
    pub(super) key: Key,
    /// Where it waits for flights, all its life: a ring that changes makes it slower, not wrong.
    pub(super) queue: Queue,
    /// Somebody asked for it since the last look of `tidy`.
    is_used: AtomicBool,
    /// What it last wrote, if that may be large.
    pub(super) weight: Weight,
    state: Mutex<SlotState>,
}

pub(super) type Guard<'a> = MutexGuard<'a, SlotState>;

pub(super) struct SlotState {
    pub(super) mutator: Mutator,
    /// Its place in its group's quota. A full mutator shares it with its successor, and one at rest has
    /// none, whoever still holds the slot.
    pub(super) seat: Option<Arc<Seat>>,
    /// What the queued ops go with.
    pub(super) open: Arc<Batch>,
    /// Sent and not resolved, oldest first; while a write is in flight the last one is its own.
    pub(super) sent: Vec<Arc<Batch>>,
    /// It waits for a flight, is on one, or waits before it tries again.
    pub(super) flushing: bool,
    /// How long it waits after the next write that is not acknowledged.
    pub(super) backoff: Duration,
    /// It takes no more ops: it was put to rest, or its key has a successor.
    pub(super) retired: bool,
    /// It is retired because its state is full, so that its successor takes over its seat.
    pub(super) was_full: bool,
}

impl Slot {
    pub(super) fn lock(&self) -> Guard<'_> {
        lock(&self.state)
    }

    /// Whether its mutator is clean; no if it is in use just now.
    fn is_clean(&self) -> bool {
        self.state.try_lock().is_ok_and(|state| state.mutator.is_clean())
    }

    fn has_seat_of(&self, seats: &SeatsOf) -> bool {
        let is_of = |seat: &Arc<Seat>| seat.is_of(seats);
        self.state.try_lock().is_ok_and(|state| state.seat.as_ref().is_some_and(is_of))
    }

    fn is_writable(&self, now: Now) -> bool {
        self.state.try_lock().is_ok_and(|state| state.mutator.lease().is_writable(now))
    }
}

/// One part of the map.
struct Part {
    /// The least recently used ones are the first to go to rest.
    awake: LruCache<Key, Arc<Slot>>,
    resting: Resting,
}

/// All mutators that take ops.
pub(super) struct Slots {
    parts: Vec<Mutex<Part>>,
    part_max: usize,
    hasher: Hashes,
    constants: Constants,
    flaw: Option<RestFlaw>,
    births: Mutex<Births>,
    scales: Scales,
    /// Most bytes of memory of large states.
    weight_max: usize,
    shedding: Mutex<Shedding>,
}

/// Where states are looked for that can go to rest.
#[derive(Default)]
struct Shedding {
    /// The part that is next.
    part: usize,
    /// Not before this time since boot.
    not_before: Duration,
}

/// A key's slot, and what became of others for it.
pub(super) struct Found {
    pub(super) slot: Arc<Slot>,
    /// How it came to be awake; none if it was already.
    pub(super) arrival: Option<Arrival>,
    pub(super) moves: Moves,
}

/// What became of mutators that made room for others, or were not used.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moves {
    /// They went to rest.
    pub(super) rested: usize,
    /// They were at rest, and were forgotten.
    pub(super) forgotten: usize,
}

impl AddAssign for Moves {
    fn add_assign(&mut self, other: Moves) {
        self.rested += other.rested;
        self.forgotten += other.forgotten;
    }
}

/// A slot that takes no more ops, whose key gets a successor.
#[derive(Clone)]
pub(super) struct Former {
    pub(super) slot: Arc<Slot>,
    /// What the successor has before it.
    pub(super) legacy: Predecessors,
    /// Its place in the quota, if the successor takes that over.
    pub(super) seat: Option<Arc<Seat>>,
}

/// How many mutators there are at rest, and what they take.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct AtRest {
    pub(super) count: usize,
    pub(super) bytes: usize,
}

struct Hashes(RandomState);

impl HashesKeys for Hashes {
    fn hash_parts(&self, kind: Kind, group: &[u8], name: &[u8]) -> u64 {
        let mut hasher = self.0.build_hasher();
        kind.hash(&mut hasher);
        group.hash(&mut hasher);
        name.hash(&mut hasher);
        hasher.finish()
    }
}

impl Slots {
    pub(super) fn new(bounds: Bounds, constants: Constants) -> Slots {
        let mutators_max = bounds.mutators_max;
        let parts = (mutators_max / PART_MUTATORS_MIN).clamp(1, PARTS_MAX);
        let part = || Part {
            awake: LruCache::unbounded(),
            resting: Resting::new(bounds.resting_bytes / parts),
        };
        Slots {
            parts: (0..parts).map(|_| Mutex::new(part())).collect(),
            part_max: mutators_max / parts,
            hasher: Hashes(RandomState::new()),
            constants,
            flaw: bounds.flaw,
            births: Mutex::new(Births::new(&constants)),
            scales: Scales::default(),
            weight_max: mutators_max * limits::LARGE_STATES_BYTES_EACH,
            shedding: Mutex::default(),
        }
    }

    /// Makes room where large states take more than they may: of clean mutators that have one, the least
    /// recently used ones of one part after the other go to rest. Also tells whether there is room now.
    pub(super) fn shed(&self, now: Now) -> (Moves, bool) {
        let has_room = || self.scales.total() <= self.weight_max;
        if has_room() {
            return (Moves::default(), true);
        }
        let mut shedding = self.shedding.lock().unwrap_or_else(PoisonError::into_inner);
        if now.boot < shedding.not_before {
            return (Moves::default(), has_room());
        }
        let over = || self.scales.total().saturating_sub(self.weight_max - self.weight_max / 8);
        let (mut gone, mut moves) = (0, Moves::default());
        for _ in 0..self.parts.len() {
            let mut left = over();
            if left == 0 {
                break;
            }
            let mut part = lock(&self.parts[shedding.part]);
            shedding.part = (shedding.part + 1) % self.parts.len();
            let (of_part, moved) = self.retire_all(&mut part, now, |slot| {
                let weight = slot.weight.get();
                let goes = left > 0 && weight > 0;
                if goes && slot.is_clean() {
                    left = left.saturating_sub(weight);
                }
                goes
            });
            gone += of_part;
            moves += moved;
        }
        if gone == 0 {
            shedding.not_before = now.boot + SHED_PAUSE;
        }
        (moves, has_room())
    }

    /// The key's slot: the one that is awake, one that wakes, or a new one. Refused if its group's quota is
    /// used up, or if there is no room; a clean mutator makes room, of the same quota if that is what is
    /// full. `former` is a slot that its key no longer has.
    pub(super) fn find_or_insert(
        &self,
        key: &Key,
        now: Now,
        former: Option<&Former>,
        seat: impl Fn(Arrival) -> Result<Seat, Refused>,
        born: impl FnOnce() -> Mutator,
        queue: impl FnOnce() -> Queue,
    ) -> Result<Found, Refused> {
        let hash = self.hasher.hash_key(key);
        let (mut own_seat, mut moves) = (None, Moves::default());
        let (mut part, arrival, own_seat) = loop {
            let mut part = lock(self.part(hash));
            if let Some(slot) = part.awake.get(key)
                && !former.is_some_and(|former| Arc::ptr_eq(slot, &former.slot))
            {
                slot.is_used.store(true, Ordering::Relaxed);
                return Ok(Found { slot: Arc::clone(slot), arrival: None, moves });
            }
            let arrival = self.arrival(&part, hash, key, now);
            if let Some(seat) = own_seat.take() {
                break (part, arrival, seat);
            }
            if let Some(seat) = former.and_then(|former| former.seat.clone()) {
                break (part, arrival, seat);
            }
            match seat(arrival) {
                Err(Refused::Quota(OverQuota::Live(seats))) => {
                    drop(part);
                    moves += self.evict_of(&seats, now);
                    own_seat = Some(Arc::new(seats.take()?));
                }
                seat => break (part, arrival, Arc::new(seat?)),
            }
        };
        // Before another one goes to rest, for which it might be forgotten.
        let rested = part.resting.remove(hash, key, &self.hasher);
        if part.awake.len() >= self.part_max && !part.awake.contains(key) {
            match self.evict(&mut part, now) {
                Some(moved) => moves += moved,
                None => {
                    if let Some((record, tenant)) = rested {
                        self.insert(&mut part.resting, hash, tenant, record, now);
                    }
                    return Err(Refused::Overloaded("too many keys with open writes"));
                }
            }
        }
        let weight = self.scales.weight();
        let wake = |record: &Record| Mutator::wake(key.clone(), record.mutator(), &self.constants);
        let mutator = match (rested, arrival) {
            (Some((record, _)), Arrival::Woken) => {
                weight.set(key.kind.about().memory_bytes(record.mutator().len()));
                wake(&record)
            }
            (rested, _) => {
                let of_former = former.map(|former| former.legacy.clone());
                let of_rested = || rested.map(|(record, _)| wake(&record).legacy());
                let legacy = of_former.or_else(of_rested).unwrap_or_default();
                born().succeeding(legacy.unfolded(now.wall, &self.constants))
            }
        };
        let state = Mutex::new(SlotState {
            mutator,
            seat: Some(own_seat),
            open: Arc::default(),
            sent: Vec::new(),
            flushing: false,
            backoff: BACKOFF.0,
            retired: false,
            was_full: false,
        });
        let is_used = AtomicBool::new(true);
        let (key, queue) = (key.clone(), queue());
        let slot = Slot { key: key.clone(), queue, is_used, weight, state };
        let slot = Arc::new(slot);
        part.awake.put(key, Arc::clone(&slot));
        Ok(Found { slot, arrival: Some(arrival), moves })
    }

    /// Whether the key was born so often today that it must not be born again.
    pub(super) fn is_born_too_often(&self, key: &Key, now: Now) -> bool {
        lock(&self.births).is_spent(self.hasher.hash_key(key), now)
    }

    /// A key's new mutator begins its first write, and so gets a row.
    pub(super) fn count_birth(&self, key: &Key, now: Now) {
        lock(&self.births).note(self.hasher.hash_key(key), now);
    }

    /// Puts a clean mutator to rest that has one of these seats, and is among the least recently used ones
    /// of its part of the map.
    fn evict_of(&self, seats: &SeatsOf, now: Now) -> Moves {
        for part in &self.parts {
            let mut part = lock(part);
            let part = &mut *part;
            let mut oldest = part.awake.iter().rev().take(EVICTION_LOOKS_MAX);
            let found = oldest.find_map(|(key, slot)| {
                let retire = || self.retire(&mut part.resting, slot, now);
                let moves = slot.has_seat_of(seats).then(retire).flatten();
                moves.map(|moves| (key.clone(), moves))
            });
            if let Some((key, moves)) = found {
                part.awake.pop(&key);
                return moves;
            }
        }
        Moves::default()
    }

    /// Takes this very slot out of the map.
    pub(super) fn remove(&self, slot: &Arc<Slot>) {
        let mut part = lock(self.part(self.hasher.hash_key(&slot.key)));
        if part.awake.peek(&slot.key).is_some_and(|found| Arc::ptr_eq(found, slot)) {
            part.awake.pop(&slot.key);
        }
    }

    /// Puts clean mutators to rest that nobody asked for since the last look, and forgets those that take
    /// no more ops, awake or at rest.
    pub(super) fn tidy(&self, now: Now) -> Moves {
        let mut moves = Moves::default();
        for part in &self.parts {
            let mut part = lock(part);
            let (_, moved) = self.retire_all(&mut part, now, |slot| {
                !slot.is_used.swap(false, Ordering::Relaxed) || !slot.is_writable(now)
            });
            moves += moved;
            part.resting.tidy(&self.hasher, |mutator| {
                Mutator::is_over_at_rest(mutator, now, &self.constants)
            });
        }
        moves
    }

    /// How many are awake.
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(|part| lock(part).awake.len()).sum()
    }

    pub(super) fn at_rest(&self) -> AtRest {
        let mut all = AtRest::default();
        for part in &self.parts {
            let part = lock(part);
            all.count += part.resting.len();
            all.bytes += part.resting.bytes();
        }
        all
    }

    /// Whether the key has a mutator at rest that may go on.
    fn arrival(&self, part: &Part, hash: u64, key: &Key, now: Now) -> Arrival {
        let lease = |mutator: &[u8]| Mutator::resting_lease(mutator, &self.constants);
        match part.resting.find(hash, key).map(lease) {
            Some(lease) if lease.is_writable(now) => Arrival::Woken,
            _ => Arrival::Born,
        }
    }

    /// Puts the least recently used clean mutator to rest. None if none of those looked at is clean; they
    /// count as just used then, so that the next look meets others.
    fn evict(&self, part: &mut Part, now: Now) -> Option<Moves> {
        for _ in 0..EVICTION_LOOKS_MAX.min(part.awake.len()) {
            let oldest = part.awake.peek_lru();
            let (key, slot) = oldest.map(|(key, slot)| (key.clone(), Arc::clone(slot)))?;
            if let Some(moves) = self.retire(&mut part.resting, &slot, now) {
                part.awake.pop(&key);
                return Some(moves);
            }
            part.awake.promote(&key);
        }
        None
    }

    /// Takes those out of the map that `goes` names and that are clean, the least recently used ones first.
    /// Tells how many.
    fn retire_all(
        &self,
        part: &mut Part,
        now: Now,
        mut goes: impl FnMut(&Slot) -> bool,
    ) -> (usize, Moves) {
        let (mut gone, mut moves) = (Vec::new(), Moves::default());
        for (key, slot) in part.awake.iter().rev() {
            if goes(slot)
                && let Some(moved) = self.retire(&mut part.resting, slot, now)
            {
                gone.push(key.clone());
                moves += moved;
            }
        }
        for key in &gone {
            part.awake.pop(key);
        }
        (gone.len(), moves)
    }

    /// Retires a slot whose mutator is clean, and puts the mutator to rest if it may take ops later. None if
    /// the slot stays, as one does that is in use just now.
    fn retire(&self, resting: &mut Resting, slot: &Slot, now: Now) -> Option<Moves> {
        let mut state = slot.state.try_lock().ok()?;
        if state.retired {
            return Some(Moves::default());
        }
        let rested = state.mutator.rest_with(self.flaw)?;
        state.retired = true;
        let tenant = state.seat.take().map_or(Tenant::OTHERS, |seat| seat.tenant());
        let rests = state.mutator.lease().is_writable(now);
        let left = match rests {
            true => Some(rested),
            false => state.mutator.remains(now.wall, &self.constants),
        };
        let Some(left) = left else { return Some(Moves::default()) };
        let (hash, record) = (self.hasher.hash_key(&slot.key), Record::new(&slot.key, &left));
        let forgotten = self.insert(resting, hash, tenant, record, now);
        Some(Moves { rested: usize::from(rests), forgotten })
    }

    fn insert(
        &self,
        resting: &mut Resting,
        hash: u64,
        tenant: Tenant,
        record: Record,
        now: Now,
    ) -> usize {
        let keeps = |hash| lock(&self.births).is_spent(hash, now);
        resting.insert(hash, tenant, record, &self.hasher, keeps)
    }

    fn part(&self, hash: u64) -> &Mutex<Part> {
        // 64 bits of hash and at most 64 parts: where usize is shorter, the cut is even as well.
        #[allow(clippy::cast_possible_truncation, reason = "any bits of a hash will do")]
        let part = hash as usize % self.parts.len();
        &self.parts[part]
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
