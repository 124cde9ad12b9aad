//! The bounded map from keys to mutators, and the batches that waiters wait on.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use lru::LruCache;
use orderfree_core::crdt::OpError;
use orderfree_core::protocol::{Key, Mutator, Now, Rejected, Ticket};

use super::board::Queue;
use super::weights::{Scales, Weight};
use super::{BACKOFF, Refused, UpdateError};
use crate::limits;
use crate::policy::{OverQuota, Seat, SeatsOf};
use crate::sync::{Mutex, MutexGuard, PoisonError, SetOnce};

/// Most independent parts of the map, so that updates of different keys seldom meet at a lock.
const PARTS_MAX: usize = 64;

/// Fewest mutators of a part: a small limit is kept exactly, by one part.
const PART_MUTATORS_MIN: usize = 64;

/// How many of the least recently used mutators are looked at to find a clean one.
const EVICTION_LOOKS_MAX: usize = 64;

/// How long nobody looks for states to forget after none was found.
const SHED_PAUSE: Duration = Duration::from_millis(50);

/// One key's mutator and those who wait on it.
pub(super) struct Slot {
    pub(super) key: Key,
    /// Where it waits for flights, all its life: a ring that changes makes it slower, not wrong.
    pub(super) queue: Queue,
    /// Its place in its group's quota.
    seat: Seat,
    /// What it last wrote, if that may be large.
    pub(super) weight: Weight,
    state: Mutex<SlotState>,
}

pub(super) type Guard<'a> = MutexGuard<'a, SlotState>;

pub(super) struct SlotState {
    pub(super) mutator: Mutator,
    /// What the queued ops go with.
    pub(super) open: Arc<Batch>,
    /// Sent and not resolved, oldest first; while a write is in flight the last one is its own.
    pub(super) sent: Vec<Arc<Batch>>,
    /// It waits for a flight, is on one, or waits before it tries again.
    pub(super) flushing: bool,
    /// How long it waits after the next write that is not acknowledged.
    pub(super) backoff: Duration,
    /// No longer in the map: takes no more ops.
    pub(super) retired: bool,
}

impl Slot {
    pub(super) fn lock(&self) -> Guard<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Verdict {
    Acked,
    Refused(Refused),
    Unknown(String),
}

/// The op lists that go with one write: one completion for all who wait.
#[derive(Debug, Default)]
pub(super) struct Batch {
    verdict: SetOnce<Verdict>,
    /// Lists that could not be applied again after a refused write. Almost always empty.
    rejected: Mutex<Vec<Rejected>>,
}

impl Batch {
    pub(super) async fn verdict(&self) -> &Verdict {
        self.verdict.wait().await
    }

    pub(super) fn verdict_now(&self) -> Option<&Verdict> {
        self.verdict.get()
    }

    pub(super) fn resolve(&self, verdict: Verdict) {
        self.verdict.set(verdict).expect("invariant: a batch is resolved once");
    }

    pub(super) fn reject(&self, rejected: Vec<Rejected>) {
        if !rejected.is_empty() {
            self.rejections().extend(rejected);
        }
    }

    pub(super) fn rejection(&self, ticket: Ticket) -> Option<OpError> {
        let rejections = self.rejections();
        rejections.iter().find(|list| list.ticket == ticket).map(|list| list.error.clone())
    }

    /// The outcome of one list of the batch.
    pub(super) fn of(&self, ticket: Ticket, verdict: &Verdict) -> Result<(), UpdateError> {
        if let Some(error) = self.rejection(ticket) {
            return Err(Refused::Op(error).into());
        }
        match verdict {
            Verdict::Acked => Ok(()),
            Verdict::Refused(refused) => Err(refused.clone().into()),
            Verdict::Unknown(reason) => Err(UpdateError::Unknown(reason.clone())),
        }
    }

    fn rejections(&self) -> MutexGuard<'_, Vec<Rejected>> {
        self.rejected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Part = LruCache<Key, Arc<Slot>>;

/// All mutators that take ops, the least recently used ones first to go.
pub(super) struct Slots {
    parts: Vec<Mutex<Part>>,
    part_max: usize,
    hasher: RandomState,
    scales: Scales,
    /// Most bytes of memory of large states.
    weight_max: usize,
    shedding: Mutex<Shedding>,
}

/// Where states are looked for that can be forgotten.
#[derive(Default)]
struct Shedding {
    /// The part that is next.
    part: usize,
    /// Not before this time since boot.
    not_before: Duration,
}

impl Slots {
    pub(super) fn new(mutators_max: usize) -> Slots {
        let parts = (mutators_max / PART_MUTATORS_MIN).clamp(1, PARTS_MAX);
        Slots {
            parts: (0..parts).map(|_| Mutex::new(LruCache::unbounded())).collect(),
            part_max: mutators_max / parts,
            hasher: RandomState::new(),
            scales: Scales::default(),
            weight_max: mutators_max * limits::LARGE_STATES_BYTES_EACH,
            shedding: Mutex::default(),
        }
    }

    /// Makes room where large states take more than they may: of clean mutators that have one, the least
    /// recently used ones of one part after the other are forgotten. Tells how many, and whether there is
    /// room now.
    pub(super) fn shed(&self, now: Duration) -> (usize, bool) {
        let has_room = || self.scales.total() <= self.weight_max;
        if has_room() {
            return (0, true);
        }
        let mut shedding = self.shedding.lock().unwrap_or_else(PoisonError::into_inner);
        if now < shedding.not_before {
            return (0, has_room());
        }
        let over = || self.scales.total().saturating_sub(self.weight_max - self.weight_max / 8);
        let mut evicted = 0;
        for _ in 0..self.parts.len() {
            let mut left = over();
            if left == 0 {
                break;
            }
            let part = &self.parts[shedding.part];
            shedding.part = (shedding.part + 1) % self.parts.len();
            evicted += forget(part, |slot| {
                let weight = slot.weight.get();
                let goes = left > 0 && weight > 0 && retire_if(slot, Mutator::is_clean);
                if goes {
                    left = left.saturating_sub(weight);
                }
                goes
            });
        }
        if evicted == 0 {
            shedding.not_before = now + SHED_PAUSE;
        }
        (evicted, has_room())
    }

    /// The key's slot, made if needed, and whether another one was evicted for it. Refused if its group's
    /// quota is used up, or if there is no room; a clean mutator makes room, of the same quota if that is
    /// what is full.
    pub(super) fn find_or_insert(
        &self,
        key: &Key,
        seat: impl FnOnce() -> Result<Seat, OverQuota>,
        born: impl FnOnce() -> (Mutator, Queue),
    ) -> Result<(Arc<Slot>, bool), Refused> {
        let mut part = self.part(key);
        if let Some(slot) = part.get(key) {
            return Ok((Arc::clone(slot), false));
        }
        let mut seat_of_another = false;
        let seat = match seat() {
            Err(OverQuota::Live(seats)) => {
                drop(part);
                seat_of_another = self.evict_of(&seats);
                part = self.part(key);
                if let Some(slot) = part.get(key) {
                    return Ok((Arc::clone(slot), seat_of_another));
                }
                seats.take()?
            }
            seat => seat?,
        };
        let is_full = part.len() >= self.part_max;
        if is_full {
            evict(&mut part).ok_or(Refused::Overloaded("too many keys with open writes"))?;
        }
        let (mutator, queue) = born();
        let state = Mutex::new(SlotState {
            mutator,
            open: Arc::default(),
            sent: Vec::new(),
            flushing: false,
            backoff: BACKOFF.0,
            retired: false,
        });
        let weight = self.scales.weight();
        let slot = Arc::new(Slot { key: key.clone(), queue, seat, weight, state });
        part.put(key.clone(), Arc::clone(&slot));
        Ok((slot, is_full || seat_of_another))
    }

    /// Takes a clean mutator out that has one of these seats, and is among the least recently used ones of
    /// its part of the map.
    fn evict_of(&self, seats: &SeatsOf) -> bool {
        self.parts.iter().any(|part| {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            let mut oldest = part.iter().rev().take(EVICTION_LOOKS_MAX);
            let found = oldest
                .find(|(_, slot)| slot.seat.is_of(seats) && retire_if(slot, Mutator::is_clean))
                .map(|(key, _)| key.clone());
            found.is_some_and(|key| part.pop(&key).is_some())
        })
    }

    /// Takes this very slot out of the map.
    pub(super) fn remove(&self, slot: &Arc<Slot>) {
        let mut part = self.part(&slot.key);
        if part.peek(&slot.key).is_some_and(|found| Arc::ptr_eq(found, slot)) {
            part.pop(&slot.key);
        }
    }

    /// Forgets clean mutators that take no more ops.
    pub(super) fn tidy(&self, now: Now) {
        for part in &self.parts {
            forget(part, |slot| {
                retire_if(slot, |mutator| mutator.is_clean() && !mutator.lease().is_writable(now))
            });
        }
    }

    pub(super) fn len(&self) -> usize {
        self.parts
            .iter()
            .map(|part| part.lock().unwrap_or_else(PoisonError::into_inner).len())
            .sum()
    }

    fn part(&self, key: &Key) -> MutexGuard<'_, Part> {
        // 64 bits of hash and at most 64 parts: where usize is shorter, the cut is even as well.
        #[allow(clippy::cast_possible_truncation, reason = "any bits of a hash will do")]
        let part = self.hasher.hash_one(key) as usize % self.parts.len();
        self.parts[part].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the least recently used clean mutator out. None if none of those looked at is clean; they
/// count as just used then, so that the next look meets others.
fn evict(part: &mut Part) -> Option<()> {
    for _ in 0..EVICTION_LOOKS_MAX.min(part.len()) {
        let (key, slot) = part.peek_lru().map(|(key, slot)| (key.clone(), Arc::clone(slot)))?;
        if retire_if(&slot, Mutator::is_clean) {
            part.pop(&key);
            return Some(());
        }
        part.promote(&key);
    }
    None
}

/// Takes those out that `goes` has retired, asked for the least recently used ones first. Tells how many.
fn forget(part: &Mutex<Part>, mut goes: impl FnMut(&Slot) -> bool) -> usize {
    let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
    let gone = part.iter().rev().filter(|(_, slot)| goes(slot));
    let gone: Vec<Key> = gone.map(|(key, _)| key.clone()).collect();
    for key in &gone {
        part.pop(key);
    }
    gone.len()
}

/// Retires a slot whose mutator satisfies `rule`. A slot in use just now is left alone.
fn retire_if(slot: &Slot, rule: impl FnOnce(&Mutator) -> bool) -> bool {
    let Ok(mut state) = slot.state.try_lock() else { return false };
    if rule(&state.mutator) {
        state.retired = true;
    }
    state.retired
}
