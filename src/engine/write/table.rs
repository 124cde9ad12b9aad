//! The bounded map from writers to mutators, awake or at rest.
//!
//! One lock per part of the map guards both its awake mutators and its table of mutators at rest. So a mutator
//! that moves between them is always in one of them. All mutators of a key are in one part.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

use lru::LruCache;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::{Constants, Key, Mutator, Now, Predecessors, RestFlaw};

use super::births::{Births, KnownKeys};
use super::entry::{Entry, QueueId};
use super::large_states::LargeStates;
use super::resting::{HashesKeys, Record, Resting, Stay};
use super::writer::Writer;
use super::{Bounds, Refused};
use crate::limits;
use crate::policy::{Arrival, OverQuota, QuotaPermit, QuotaPermits, Tenant};
use crate::runtime::sync::{Mutex, lock};

/// Maximum number of independent parts of the map. With many parts, updates of different keys rarely contend
/// for a lock.
const PARTS_MAX: usize = 64;

/// Minimum number of mutators per part. With a small limit there is one part, which keeps the limit exactly.
const PART_MUTATORS_MIN: usize = 64;

/// How many of the least recently used mutators are checked to find a clean one.
pub(super) const EVICTION_LOOKS_MAX: usize = 64;

/// Pause in the search for states that can go to rest after none was found.
const SHED_PAUSE: Duration = Duration::from_millis(50);

/// One part of the map.
struct Part {
    /// The least recently used mutators go to rest first.
    awake: LruCache<Writer, Arc<Entry>>,
    resting: Resting,
}

/// All mutators that take ops.
pub(super) struct MutatorTable {
    parts: Vec<Mutex<Part>>,
    part_max: usize,
    hasher: Hashes,
    constants: Constants,
    little_bytes: usize,
    flaw: Option<RestFlaw>,
    births: Mutex<Births>,
    known: Mutex<KnownKeys>,
    large_states: LargeStates,
    /// Maximum memory of large states, in bytes.
    weight_max: usize,
    shedding: Mutex<Shedding>,
}

/// Where to look next for states that can go to rest.
#[derive(Default)]
struct Shedding {
    /// The next part.
    part: usize,
    /// Earliest time of the next search, since boot.
    not_before: Duration,
}

/// A key's entry, and the moves that made room for it.
pub(super) struct Found {
    pub(super) entry: Arc<Entry>,
    /// How it came to be awake. `None` if it was awake already.
    pub(super) arrival: Option<Arrival>,
    pub(super) moves: Moves,
}

/// Counts of mutators that made room for others, or were not used.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moves {
    /// Mutators that went to rest.
    pub(super) rested: usize,
    /// Mutators at rest that were evicted.
    pub(super) forgotten: usize,
}

impl AddAssign for Moves {
    fn add_assign(&mut self, other: Moves) {
        self.rested += other.rested;
        self.forgotten += other.forgotten;
    }
}

/// An entry that takes no more ops and whose key gets a successor.
#[derive(Clone)]
pub(super) struct Former {
    pub(super) entry: Arc<Entry>,
    /// The predecessors of the successor.
    pub(super) legacy: Predecessors,
    /// The quota permit, if the successor takes it over.
    pub(super) permit: Option<Arc<QuotaPermit>>,
}

/// Number and memory of mutators at rest.
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

impl Hashes {
    fn hash_writer(&self, writer: &Writer) -> u64 {
        let key = self.hash_key(&writer.key);
        writer.until.map_or(key, |until| self.0.hash_one((key, until.as_micros())))
    }
}

impl MutatorTable {
    pub(super) fn new(bounds: Bounds, constants: Constants) -> MutatorTable {
        let mutators_max = bounds.mutators_max;
        let parts = (mutators_max / PART_MUTATORS_MIN).clamp(1, PARTS_MAX);
        let part = || Part {
            awake: LruCache::unbounded(),
            resting: Resting::new(bounds.resting_bytes / parts),
        };
        MutatorTable {
            parts: (0..parts).map(|_| Mutex::new(part())).collect(),
            part_max: mutators_max / parts,
            hasher: Hashes(RandomState::new()),
            constants,
            little_bytes: bounds.little_bytes,
            flaw: bounds.flaw,
            births: Mutex::new(Births::new(&constants)),
            known: Mutex::new(KnownKeys::new()),
            large_states: LargeStates::default(),
            weight_max: mutators_max * limits::LARGE_STATES_BYTES_EACH,
            shedding: Mutex::default(),
        }
    }

    /// Makes room if large states exceed their limit. Puts clean mutators with large states to rest, part
    /// by part, least recently used first. Also tells whether there is room now.
    pub(super) fn shed(&self, now: Now) -> (Moves, bool) {
        let has_room = || self.large_states.total() <= self.weight_max;
        if has_room() {
            return (Moves::default(), true);
        }
        let mut shedding = lock(&self.shedding);
        if now.boot < shedding.not_before {
            return (Moves::default(), has_room());
        }
        let over =
            || self.large_states.total().saturating_sub(self.weight_max - self.weight_max / 8);
        let (mut gone, mut moves) = (0, Moves::default());
        for _ in 0..self.parts.len() {
            let mut left = over();
            if left == 0 {
                break;
            }
            let mut part = lock(&self.parts[shedding.part]);
            shedding.part = (shedding.part + 1) % self.parts.len();
            let (of_part, moved) = self.retire_all(&mut part, now, |entry| {
                let weight = entry.weight.get();
                let goes = left > 0 && weight > 0;
                if goes && entry.is_clean() {
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

    /// Returns the writer's entry: the awake one, one that wakes, or a new one. A clean mutator makes room if
    /// necessary, one of the same quota if the quota is full. Refuses if the quota is exhausted or there is
    /// no room. `former` is a retired entry of the writer.
    pub(super) fn find_or_insert(
        &self,
        writer: &Writer,
        now: Now,
        former: Option<&Former>,
        permit: impl Fn(Arrival) -> Result<QuotaPermit, Refused>,
        born: impl FnOnce() -> Mutator,
        queue: impl FnOnce() -> QueueId,
    ) -> Result<Found, Refused> {
        let (key, hash) = (&writer.key, self.hasher.hash_key(&writer.key));
        let (mut own_permit, mut moves) = (None, Moves::default());
        let (mut part, arrival, own_permit) = loop {
            let mut part = lock(self.part(hash));
            if let Some(entry) = part.awake.get(writer)
                && !former.is_some_and(|former| Arc::ptr_eq(entry, &former.entry))
            {
                entry.touch();
                return Ok(Found { entry: Arc::clone(entry), arrival: None, moves });
            }
            let arrival = self.arrival(&part, hash, writer, now);
            if let Some(permit) = own_permit.take() {
                break (part, arrival, permit);
            }
            if let Some(permit) = former.and_then(|former| former.permit.clone()) {
                break (part, arrival, permit);
            }
            match permit(arrival) {
                Err(Refused::Quota(OverQuota::Live(permits))) => {
                    drop(part);
                    moves += self.evict_of(&permits, now);
                    own_permit = Some(Arc::new(permits.take()?));
                }
                permit => break (part, arrival, Arc::new(permit?)),
            }
        };
        // Remove it first: the next mutator that goes to rest could evict it.
        let rested = part.resting.remove(hash, writer, &self.hasher);
        if part.awake.len() >= self.part_max && !part.awake.contains(writer) {
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
        let weight = self.large_states.weight();
        let wake = |record: &Record| Mutator::wake(key.clone(), record.mutator(), &self.constants);
        let mutator = match (rested, arrival) {
            (Some((record, _)), Arrival::Woken) => {
                weight.set(writer.memory_bytes(record.mutator().len()));
                wake(&record)
            }
            (rested, _) => {
                let of_former = former.map(|former| former.legacy.clone());
                let of_rested = || rested.map(|(record, _)| wake(&record).legacy());
                let legacy = of_former.or_else(of_rested).unwrap_or_default();
                born().succeeding(legacy.unfolded(now.wall, &self.constants))
            }
        };
        let took_permit_over = former.is_some_and(|former| former.permit.is_some());
        let permit = (own_permit, took_permit_over);
        let entry = Arc::new(Entry::new(queue(), writer.clone(), mutator, permit, weight));
        if let Some(former) = former {
            entry.count_on(&former.entry);
        }
        part.awake.put(writer.clone(), Arc::clone(&entry));
        Ok(Found { entry, arrival: Some(arrival), moves })
    }

    /// Whether the writer has reached its daily limit of births.
    pub(super) fn is_born_too_often(&self, writer: &Writer, now: Now) -> bool {
        lock(&self.births).is_spent(self.hasher.hash_writer(writer), now)
    }

    /// Whether this pod wrote a row of the key today or yesterday.
    pub(super) fn is_known(&self, key: &Key, now: Now) -> bool {
        lock(&self.known).has(self.hasher.hash_key(key), now)
    }

    /// Counts a birth, when a new mutator begins its first write and so gets a row. Each expiry of packs has a
    /// limit of its own, because clients choose how many windows their ids have. Successors do not count: the bytes
    /// of their predecessors limit them, or the number of resets of the key.
    pub(super) fn count_birth(&self, writer: &Writer, is_successor: bool, now: Now) {
        lock(&self.known).note(self.hasher.hash_key(&writer.key), now);
        if !is_successor {
            lock(&self.births).note(self.hasher.hash_writer(writer), now);
        }
    }

    /// Puts a clean mutator to rest that holds a permit of this quota and is among the least recently used
    /// of its part.
    fn evict_of(&self, permits: &QuotaPermits, now: Now) -> Moves {
        for part in &self.parts {
            let mut part = lock(part);
            let part = &mut *part;
            let mut oldest = part.awake.iter().rev().take(EVICTION_LOOKS_MAX);
            let found = oldest.find_map(|(writer, entry)| {
                let retire = || self.retire(&mut part.resting, entry, now);
                let moves = entry.has_permit_of(permits).then(retire).flatten();
                moves.map(|moves| (writer.clone(), moves))
            });
            if let Some((writer, moves)) = found {
                part.awake.pop(&writer);
                return moves;
            }
        }
        Moves::default()
    }

    /// Removes this entry from the map, unless its writer has another one.
    pub(super) fn remove(&self, entry: &Arc<Entry>) {
        let writer = &entry.writer;
        let mut part = lock(self.part(self.hasher.hash_key(&writer.key)));
        if part.awake.peek(writer).is_some_and(|found| Arc::ptr_eq(found, entry)) {
            part.awake.pop(writer);
        }
    }

    /// Puts clean mutators to rest that were not used since the last pass. Drops mutators that take no more
    /// ops, awake or at rest.
    pub(super) fn tidy(&self, now: Now) -> Moves {
        let mut moves = Moves::default();
        for part in &self.parts {
            let mut part = lock(part);
            let (_, moved) = self
                .retire_all(&mut part, now, |entry| !entry.take_used() || !entry.is_writable(now));
            moves += moved;
            part.resting.tidy(&self.hasher, |mutator| {
                Mutator::is_over_at_rest(mutator, now, &self.constants, self.little_bytes)
            });
        }
        moves
    }

    /// The keys, of those that `is_asked` accepts, that took the most ops between the last two passes of `tidy`, each with
    /// the number of these ops.
    pub(super) fn hottest(
        &self,
        limit: usize,
        is_asked: impl Fn(&Key) -> bool,
    ) -> Vec<(Key, usize)> {
        // The coldest key is the first to leave the heap.
        let mut best = BinaryHeap::new();
        for part in &self.parts {
            let part = lock(part);
            // A key can have several writers, all in this part.
            let mut keys: HashMap<&Key, usize> = HashMap::new();
            for (writer, entry) in &part.awake {
                match entry.recent_ops() {
                    0 => {}
                    ops if is_asked(&writer.key) => *keys.entry(&writer.key).or_default() += ops,
                    _ => {}
                }
            }
            for (key, ops) in keys {
                let is_colder =
                    |Reverse((most, Reverse(other))): &Reverse<(usize, Reverse<Key>)>| {
                        (*most, Reverse(other)) < (ops, Reverse(key))
                    };
                if best.len() < limit {
                    best.push(Reverse((ops, Reverse(key.clone()))));
                } else if let Some(mut coldest) = best.peek_mut()
                    && is_colder(&coldest)
                {
                    *coldest = Reverse((ops, Reverse(key.clone())));
                }
            }
        }
        let best = best.into_sorted_vec().into_iter();
        best.map(|Reverse((ops, Reverse(key)))| (key, ops)).collect()
    }

    /// The awake mutators of a key.
    pub(super) fn of_key(&self, key: &Key) -> Vec<Arc<Entry>> {
        let part = lock(self.part(self.hasher.hash_key(key)));
        let of_key = part.awake.iter().filter(|(writer, _)| writer.key == *key);
        of_key.map(|(_, entry)| Arc::clone(entry)).collect()
    }

    /// The number of awake mutators.
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

    /// Whether the writer is at rest and can wake.
    fn arrival(&self, part: &Part, hash: u64, writer: &Writer, now: Now) -> Arrival {
        match part.resting.find(hash, writer) {
            Some(mutator) if Mutator::can_wake(mutator, now, &self.constants) => Arrival::Woken,
            _ => Arrival::Born,
        }
    }

    /// Puts the least recently used clean mutator to rest. Returns `None` if none of the checked ones is
    /// clean. These then count as just used, so the next search checks others.
    fn evict(&self, part: &mut Part, now: Now) -> Option<Moves> {
        for _ in 0..EVICTION_LOOKS_MAX.min(part.awake.len()) {
            let oldest = part.awake.peek_lru();
            let (writer, entry) =
                oldest.map(|(writer, entry)| (writer.clone(), Arc::clone(entry)))?;
            if let Some(moves) = self.retire(&mut part.resting, &entry, now) {
                part.awake.pop(&writer);
                return Some(moves);
            }
            part.awake.promote(&writer);
        }
        None
    }

    /// Removes clean mutators that `goes` selects, least recently used first. Returns their number.
    fn retire_all(
        &self,
        part: &mut Part,
        now: Now,
        mut goes: impl FnMut(&Entry) -> bool,
    ) -> (usize, Moves) {
        let (mut gone, mut moves) = (Vec::new(), Moves::default());
        for (writer, entry) in part.awake.iter().rev() {
            if goes(entry)
                && let Some(moved) = self.retire(&mut part.resting, entry, now)
            {
                gone.push(writer.clone());
                moves += moved;
            }
        }
        for writer in &gone {
            part.awake.pop(writer);
        }
        (gone.len(), moves)
    }

    /// Retires an entry whose mutator is clean, and puts the mutator to rest if it can take ops later.
    /// Returns `None` if the entry stays, for example because it is locked.
    fn retire(&self, resting: &mut Resting, entry: &Entry, now: Now) -> Option<Moves> {
        let mut state = entry.try_lock()?;
        if state.retired {
            return Some(Moves::default());
        }
        let rested = state.mutator().rest_with(self.flaw)?;
        state.retired = true;
        let tenant = state.permit.take().map_or(Tenant::OTHERS, |permit| permit.tenant());
        let rests = state.mutator().lease().is_writable(now);
        let left = match rests {
            true => Some(rested),
            false => state.mutator().remains(now.wall, &self.constants, self.little_bytes),
        };
        let Some(left) = left else { return Some(Moves::default()) };
        let (writer, lease) = (&entry.writer, *state.mutator().lease());
        let hash = self.hasher.hash_key(&writer.key);
        let record = Record::new(writer, Stay::of(writer, &lease), &left);
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
        // 64 bits of hash and at most 64 parts: the low bits also divide evenly if usize is shorter.
        #[allow(clippy::cast_possible_truncation, reason = "any bits of a hash will do")]
        let part = hash as usize % self.parts.len();
        &self.parts[part]
    }
}
