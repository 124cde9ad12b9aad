//! The table of mutators at rest, with a memory limit. An entry holds what a key needs to continue its row.
//!
//! There can be ten million entries, so entries are small, and no part of the table grows by doubling. The
//! index is a linear hash table (Litwin, "Linear hashing", 1980): each new entry splits one bucket, so no
//! update ever waits until millions of entries are moved.
//!
//! If the table is full, the oldest entry of the tenant with the most bytes is evicted (max-min fairness). A
//! tenant within its share loses nothing to others.

use std::collections::BTreeMap;

use orderfree_core::crdt::Kind;
use orderfree_core::protocol::{Key, Name};

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
    lists: BTreeMap<Tenant, List>,
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

/// The entries of one tenant, in the order in which they went to rest.
struct List {
    oldest: u32,
    newest: u32,
    bytes: usize,
}

/// A key and the bytes of its mutator, in the format of the table.
pub(super) struct Record(Box<[u8]>);

impl Record {
    pub(super) fn new(key: &Key, mutator: &[u8]) -> Record {
        let mut record = Vec::with_capacity(HEADER_BYTES + key_bytes(key) + mutator.len());
        record.extend_from_slice(&header(key));
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

/// The kind's code, and the lengths of group and name, each minus one.
const HEADER_BYTES: usize = 3;

fn header(key: &Key) -> [u8; HEADER_BYTES] {
    let less_one =
        |name: &Name| u8::try_from(name.as_str().len() - 1).expect("invariant: 1 to 256");
    let code = u8::try_from(key.kind.code()).expect("invariant: there are few kinds");
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
    let kind = Kind::from_code(record[0].into()).expect("invariant: the code of a kind");
    (kind, &record[HEADER_BYTES..group], &record[group..name])
}

fn is_of(record: &[u8], key: &Key) -> bool {
    let (group, name) = (key.group.as_str().as_bytes(), key.name.as_str().as_bytes());
    record[..HEADER_BYTES] == header(key) && {
        let (_, of_group, of_name) = parts_of(record);
        of_group == group && of_name == name
    }
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
        while self.bytes() + self.growth(tenant) + own > self.bytes_max {
            let Some(oldest) = self.victim(tenant, own, hasher, &keeps) else {
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

    /// The record of a key's mutator.
    pub(super) fn find(&self, hash: u64, key: &Key) -> Option<&[u8]> {
        self.index(hash, key).map(|at| mutator_of(&self.entries[at as usize].record))
    }

    /// Removes a key.
    pub(super) fn remove(
        &mut self,
        hash: u64,
        key: &Key,
        hasher: &impl HashesKeys,
    ) -> Option<(Record, Tenant)> {
        let at = self.index(hash, key)?;
        let tenant = self.entries[at as usize].tenant;
        Some((Record(self.take(at, hasher)), tenant))
    }

    /// Drops entries from the old end of each list while `is_over` holds for their bytes.
    pub(super) fn tidy(&mut self, hasher: &impl HashesKeys, is_over: impl Fn(&[u8]) -> bool) {
        let tenants: Vec<Tenant> = self.lists.keys().copied().collect();
        for tenant in tenants {
            while let Some(oldest) = self.lists.get(&tenant).map(|list| list.oldest)
                && is_over(mutator_of(&self.entries[oldest as usize].record))
            {
                self.take(oldest, hasher);
            }
        }
    }

    fn index(&self, hash: u64, key: &Key) -> Option<u32> {
        if self.buckets.is_empty() {
            return None;
        }
        let mut at = self.buckets[self.bucket(hash)];
        while at != NONE {
            let entry = &self.entries[at as usize];
            if entry.tag == tag(hash) && is_of(&entry.record, key) {
                return Some(at);
            }
            at = entry.chain;
        }
        None
    }

    /// Memory of one more entry without its record.
    fn growth(&self, tenant: Tenant) -> usize {
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
        let list = if self.lists.contains_key(&tenant) { 0 } else { LIST_BYTES };
        entries + buckets + list
    }

    /// The entry to evict for a newcomer: the oldest one of the tenant that would have the most bytes, except
    /// entries that keep their place. Of tenants with equal bytes, the newcomer's tenant loses.
    fn victim(
        &mut self,
        newcomer: Tenant,
        own: usize,
        hasher: &impl HashesKeys,
        keeps: &impl Fn(u64) -> bool,
    ) -> Option<u32> {
        let has = |(tenant, list): &(&Tenant, &List)| {
            let is_own = **tenant == newcomer;
            (list.bytes + if is_own { own } else { 0 }, is_own)
        };
        let (&tenant, _) = self.lists.iter().max_by_key(has)?;
        for _ in 0..KEPT_LOOKS_MAX {
            let oldest = self.lists[&tenant].oldest;
            let record = &self.entries[oldest as usize].record;
            let (kind, group, name) = parts_of(record);
            if !keeps(hasher.hash_parts(kind, group, name)) {
                return Some(oldest);
            }
            let own = allocated(record.len());
            self.unlink(oldest, own);
            self.append(oldest, own);
        }
        Some(self.lists[&tenant].oldest)
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

    /// Appends an entry to its tenant's list as the newest.
    fn append(&mut self, at: u32, own: usize) {
        let tenant = self.entries[at as usize].tenant;
        let empty = List { oldest: NONE, newest: NONE, bytes: 0 };
        let list = self.lists.entry(tenant).or_insert(empty);
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
        let RestingEntry { older, newer, tenant, .. } = self.entries[at as usize];
        let list = self.lists.get_mut(&tenant).expect("invariant: an entry is in a list");
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
            self.lists.remove(&tenant);
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
