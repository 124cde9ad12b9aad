//! The table of mutators at rest, with a memory limit. An entry holds what a key needs to continue its row.
//!
//! There can be ten million entries, so entries are small, and no part of the table grows by doubling. The
//! index is a linear hash table (Litwin, "Linear hashing", 1980): each new entry splits one bucket, so no
//! update ever waits until millions of entries are moved.
//!
//! If the table is full, the oldest entry of the list with the most bytes is evicted (max-min fairness). Each
//! tenant has a list for mutators of states, and one for each [`Stay`] of mutators of packs. A list within its
//! share loses nothing to others.

use std::collections::BTreeMap;

use std::time::Duration;

use orderfree_core::crdt::Kind;
use orderfree_core::protocol::{Key, Lease, Mutator, Name};

use super::writer::Writer;
use crate::policy::Tenant;

/// No entry.
const NONE: u32 = u32::MAX;

/// Memory of a tenant's list, with its share of the map.
const LIST_BYTES: usize = 64;

/// Maximum number of kept entries to pass over in the search for one to evict.
const KEPT_LOOKS_MAX: usize = 64;

/// One part of the table; see the [module documentation](self).
pub(super) struct Resting {
    bytes_max: usize,
    entries: Vec<RestingEntry>,
    /// The first unused entry.
    free: u32,
    /// The first entry of each chain.
    buckets: Vec<u32>,
    lists: BTreeMap<ListId, List>,
    len: usize,
    records_bytes: usize,
}

struct RestingEntry {
    /// The key and the mutator. Empty if the entry is unused.
    record: Box<[u8]>,
    older: u32,
    newer: u32,
    /// The next entry of the bucket, or the next unused entry.
    chain: u32,
    tenant: Tenant,
    /// Some bits of the hash, so that records of other keys are rarely compared.
    tag: u16,
}

const _: () = assert!(size_of::<RestingEntry>() == 32);

/// How long mutators of one list stay at most. Packs of a minute must not wait behind those of a day until they
/// are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stay {
    /// The mutator of a state.
    State,
    /// A pack whose lease has at most two minutes.
    Minutes,
    /// A pack whose lease has at most half an hour.
    Half,
    /// Any other pack.
    Days,
}

type ListId = (Tenant, Stay);

/// The entries of one list, in the order in which they went to rest.
struct List {
    oldest: u32,
    newest: u32,
    bytes: usize,
}

impl Stay {
    const ALL: [Stay; 4] = [Stay::State, Stay::Minutes, Stay::Half, Stay::Days];

    pub(super) fn of(writer: &Writer, lease: &Lease) -> Stay {
        match (writer.until, lease.lifetime()) {
            (None, _) => Stay::State,
            (_, lifetime) if lifetime <= Duration::from_secs(2 * 60) => Stay::Minutes,
            (_, lifetime) if lifetime <= Duration::from_secs(30 * 60) => Stay::Half,
            _ => Stay::Days,
        }
    }
}

/// A writer and the bytes of its mutator, in the format of the table.
pub(super) struct Record(Box<[u8]>);

impl Record {
    pub(super) fn new(writer: &Writer, stay: Stay, mutator: &[u8]) -> Record {
        let key = &writer.key;
        let mut record = Vec::with_capacity(HEADER_BYTES + key_bytes(key) + mutator.len());
        let [code, group, name] = header(key);
        record.extend_from_slice(&[code | ((stay as u8) << STAY_SHIFT), group, name]);
        record.extend_from_slice(key.group.as_str().as_bytes());
        record.extend_from_slice(key.name.as_str().as_bytes());
        record.extend_from_slice(mutator);
        Record(record.into_boxed_slice())
    }

    /// The output of [`Mutator::rest`](orderfree_core::protocol::Mutator::rest).
    pub(super) fn mutator(&self) -> &[u8] {
        mutator_of(&self.0)
    }
}

/// The kind's code and the stay, and the lengths of group and name, each minus one.
const HEADER_BYTES: usize = 3;

/// Where the stay begins in the first byte of the header.
const STAY_SHIFT: u32 = 5;

fn header(key: &Key) -> [u8; HEADER_BYTES] {
    let less_one =
        |name: &Name| u8::try_from(name.as_str().len() - 1).expect("invariant: 1 to 256");
    let code = u8::try_from(key.kind.code()).expect("invariant: there are few kinds");
    assert!(code < 1 << STAY_SHIFT, "invariant: there are few kinds");
    [code, less_one(&key.group), less_one(&key.name)]
}

fn key_bytes(key: &Key) -> usize {
    key.group.as_str().len() + key.name.as_str().len()
}

/// The ends of the group and of the name in a record.
fn ends(record: &[u8]) -> (usize, usize) {
    let group = HEADER_BYTES + usize::from(record[1]) + 1;
    (group, group + usize::from(record[2]) + 1)
}

fn mutator_of(record: &[u8]) -> &[u8] {
    &record[ends(record).1..]
}

/// The hashed parts of a record's key: kind, group and name.
fn parts_of(record: &[u8]) -> (Kind, &[u8], &[u8]) {
    let (group, name) = ends(record);
    let code = record[0] & ((1 << STAY_SHIFT) - 1);
    let kind = Kind::from_code(code.into()).expect("invariant: the code of a kind");
    (kind, &record[HEADER_BYTES..group], &record[group..name])
}

fn stay_of(record: &[u8]) -> Stay {
    Stay::ALL[usize::from(record[0] >> STAY_SHIFT)]
}

fn is_of(record: &[u8], writer: &Writer) -> bool {
    let key = &writer.key;
    let (group, name) = (key.group.as_str().as_bytes(), key.name.as_str().as_bytes());
    let (kind, of_group, of_name) = parts_of(record);
    let has_expiry = |until| Mutator::resting_expiry(mutator_of(record)) == until;
    kind == key.kind
        && of_group == group
        && of_name == name
        && (stay_of(record) == Stay::State) == writer.until.is_none()
        && writer.until.is_none_or(has_expiry)
}

/// Hashes keys, both as [`Key`] and as bytes in a record.
pub(super) trait HashesKeys {
    fn hash_parts(&self, kind: Kind, group: &[u8], name: &[u8]) -> u64;

    fn hash_key(&self, key: &Key) -> u64 {
        self.hash_parts(key.kind, key.group.as_str().as_bytes(), key.name.as_str().as_bytes())
    }
}

impl Resting {
    pub(super) fn new(bytes_max: usize) -> Resting {
        Resting {
            bytes_max,
            entries: Vec::new(),
            free: NONE,
            buckets: Vec::new(),
            lists: BTreeMap::new(),
            len: 0,
            records_bytes: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Total memory of the table.
    pub(super) fn bytes(&self) -> usize {
        self.records_bytes
            + self.entries.capacity() * size_of::<RestingEntry>()
            + self.buckets.capacity() * size_of::<u32>()
            + self.lists.len() * LIST_BYTES
    }

    /// Adds a key that is not in the table. If there is no room, evicts other entries, or drops this one.
    /// Returns how many were evicted or dropped. `keeps` tells, by hash, which keys should keep their
    /// place.
    pub(super) fn insert(
        &mut self,
        hash: u64,
        tenant: Tenant,
        Record(record): Record,
        hasher: &impl HashesKeys,
        keeps: impl Fn(u64) -> bool,
    ) -> usize {
        let own = allocated(record.len());
        let mut forgotten = 0;
        if own > self.bytes_max / 4 {
            return 1;
        }
        let list = (tenant, stay_of(&record));
        while self.bytes() + self.growth(list) + own > self.bytes_max {
            let Some(oldest) = self.victim(list, own, hasher, &keeps) else {
                return forgotten + 1;
            };
            self.take(oldest, hasher);
            forgotten += 1;
        }
        if self.len == self.buckets.len() {
            self.split(hasher);
        }
        let bucket = self.bucket(hash);
        let chain = std::mem::replace(&mut self.buckets[bucket], NONE);
        let entry =
            RestingEntry { record, older: NONE, newer: NONE, chain, tenant, tag: tag(hash) };
        let at = self.place(entry);
        self.buckets[bucket] = at;
        self.len += 1;
        self.records_bytes += own;
        self.append(at, own);
        forgotten
    }

    /// The bytes of a writer's mutator.
    pub(super) fn find(&self, hash: u64, writer: &Writer) -> Option<&[u8]> {
        self.index(hash, writer).map(|at| mutator_of(&self.entries[at as usize].record))
    }

    /// Removes a writer.
    pub(super) fn remove(
        &mut self,
        hash: u64,
        writer: &Writer,
        hasher: &impl HashesKeys,
    ) -> Option<(Record, Tenant)> {
        let at = self.index(hash, writer)?;
        let tenant = self.entries[at as usize].tenant;
        Some((Record(self.take(at, hasher)), tenant))
    }

    /// Drops entries from the old end of each list while `is_over` holds for their bytes.
    pub(super) fn tidy(&mut self, hasher: &impl HashesKeys, is_over: impl Fn(&[u8]) -> bool) {
        let lists: Vec<ListId> = self.lists.keys().copied().collect();
        for list in lists {
            while let Some(oldest) = self.lists.get(&list).map(|list| list.oldest)
                && is_over(mutator_of(&self.entries[oldest as usize].record))
            {
                self.take(oldest, hasher);
            }
        }
    }

    fn index(&self, hash: u64, writer: &Writer) -> Option<u32> {
        if self.buckets.is_empty() {
            return None;
        }
        let mut at = self.buckets[self.bucket(hash)];
        while at != NONE {
            let entry = &self.entries[at as usize];
            if entry.tag == tag(hash) && is_of(&entry.record, writer) {
                return Some(at);
            }
            at = entry.chain;
        }
        None
    }

    /// Memory of one more entry without its record.
    fn growth(&self, list: ListId) -> usize {
        let of = |len: usize, capacity: usize, each: usize| {
            if len == capacity { step(capacity) * each } else { 0 }
        };
        let entries = match self.free {
            NONE => of(self.entries.len(), self.entries.capacity(), size_of::<RestingEntry>()),
            _ => 0,
        };
        let buckets = match self.len == self.buckets.len() {
            true => of(self.buckets.len(), self.buckets.capacity(), size_of::<u32>()),
            false => 0,
        };
        let list = if self.lists.contains_key(&list) { 0 } else { LIST_BYTES };
        entries + buckets + list
    }

    /// The entry to evict for a newcomer: the oldest one of the list that would have the most bytes, except
    /// entries that keep their place. If lists have equal bytes, the newcomer's list loses.
    fn victim(
        &mut self,
        newcomer: ListId,
        own: usize,
        hasher: &impl HashesKeys,
        keeps: &impl Fn(u64) -> bool,
    ) -> Option<u32> {
        let has = |(id, list): &(&ListId, &List)| {
            let is_own = **id == newcomer;
            (list.bytes + if is_own { own } else { 0 }, is_own)
        };
        let (&fullest, _) = self.lists.iter().max_by_key(has)?;
        for _ in 0..KEPT_LOOKS_MAX {
            let oldest = self.lists[&fullest].oldest;
            let record = &self.entries[oldest as usize].record;
            let (kind, group, name) = parts_of(record);
            if !keeps(hasher.hash_parts(kind, group, name)) {
                return Some(oldest);
            }
            let own = allocated(record.len());
            self.unlink(oldest, own);
            self.append(oldest, own);
        }
        Some(self.lists[&fullest].oldest)
    }

    /// Removes an entry and returns its record.
    fn take(&mut self, at: u32, hasher: &impl HashesKeys) -> Box<[u8]> {
        let (kind, group, name) = parts_of(&self.entries[at as usize].record);
        let bucket = self.bucket(hasher.hash_parts(kind, group, name));
        let chain = self.entries[at as usize].chain;
        let mut before = self.buckets[bucket];
        if before == at {
            self.buckets[bucket] = chain;
        } else {
            while self.entries[before as usize].chain != at {
                before = self.entries[before as usize].chain;
            }
            self.entries[before as usize].chain = chain;
        }
        let own = allocated(self.entries[at as usize].record.len());
        self.unlink(at, own);
        self.len -= 1;
        self.records_bytes -= own;
        let entry = &mut self.entries[at as usize];
        entry.chain = std::mem::replace(&mut self.free, at);
        std::mem::take(&mut entry.record)
    }

    fn place(&mut self, entry: RestingEntry) -> u32 {
        if self.free != NONE {
            let at = self.free;
            self.free = self.entries[at as usize].chain;
            self.entries[at as usize] = entry;
            return at;
        }
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact(step(self.entries.capacity()));
        }
        self.entries.push(entry);
        u32::try_from(self.entries.len() - 1).expect("invariant: 4 billion would not fit in memory")
    }

    /// Appends an entry to its list as the newest.
    fn append(&mut self, at: u32, own: usize) {
        let id = self.entries[at as usize].list();
        let empty = List { oldest: NONE, newest: NONE, bytes: 0 };
        let list = self.lists.entry(id).or_insert(empty);
        list.bytes += own;
        let before = std::mem::replace(&mut list.newest, at);
        match before {
            NONE => list.oldest = at,
            _ => self.entries[before as usize].newer = at,
        }
        let entry = &mut self.entries[at as usize];
        (entry.older, entry.newer) = (before, NONE);
    }

    fn unlink(&mut self, at: u32, own: usize) {
        let id = self.entries[at as usize].list();
        let RestingEntry { older, newer, .. } = self.entries[at as usize];
        let list = self.lists.get_mut(&id).expect("invariant: an entry is in a list");
        list.bytes -= own;
        match older {
            NONE => list.oldest = newer,
            _ => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => list.newest = older,
            _ => self.entries[newer as usize].older = older,
        }
        if list.oldest == NONE {
            self.lists.remove(&id);
        }
    }

    /// Adds a bucket and moves its entries there from another bucket.
    fn split(&mut self, hasher: &impl HashesKeys) {
        if self.buckets.len() == self.buckets.capacity() {
            self.buckets.reserve_exact(step(self.buckets.capacity()));
        }
        let new = self.buckets.len();
        self.buckets.push(NONE);
        if new == 0 {
            return;
        }
        let old = new - (1 << new.ilog2());
        let mut at = std::mem::replace(&mut self.buckets[old], NONE);
        while at != NONE {
            let (kind, group, name) = parts_of(&self.entries[at as usize].record);
            let bucket = self.bucket(hasher.hash_parts(kind, group, name));
            let next = self.entries[at as usize].chain;
            self.entries[at as usize].chain = std::mem::replace(&mut self.buckets[bucket], at);
            at = next;
        }
    }

    fn bucket(&self, hash: u64) -> usize {
        let all = self.buckets.len().next_power_of_two();
        // The low bits select the part of the map.
        let bucket = (hash >> 32) as usize & (all - 1);
        if bucket < self.buckets.len() { bucket } else { bucket - all / 2 }
    }
}

impl RestingEntry {
    fn list(&self) -> ListId {
        (self.tenant, stay_of(&self.record))
    }
}

/// By how much a full vector grows: an eighth.
fn step(capacity: usize) -> usize {
    (capacity / 8).max(8)
}

fn tag(hash: u64) -> u16 {
    #[allow(clippy::cast_possible_truncation, reason = "some bits of a hash")]
    let tag = (hash >> 16) as u16;
    tag
}

/// The allocator's size for this many bytes: a multiple of 16 up to 64, then four sizes per doubling.
fn allocated(bytes: usize) -> usize {
    let words = bytes.div_ceil(16) * 2;
    if words <= 8 {
        return words * 8;
    }
    words.next_multiple_of(1 << ((words - 1).ilog2() - 2)) * 8
}

#[cfg(test)]
mod tests;
