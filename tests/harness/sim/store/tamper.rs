//! Changes what is written and read if a rule is broken.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;

use orderfree::runtime::clock::Clock;
use orderfree_core::crdt::Kind;
use orderfree_core::crdt::envelope::{
    KeySeal, RowSeal, Shard, decode_shard, decode_tally, encode_pack, encode_shard, encode_tally,
    is_grave, reset,
};
use orderfree_core::crdt::pack::{Entry, OpId, Pack, StoredPack};
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::fold::Fold;
use orderfree_core::protocol::{Key, MutatorId, Row, ShardWrite, Timestamp, WholeSlice};
use uuid::Uuid;

use super::{SimStore, index};
use crate::cluster::{Address, Cell, Mutation, Tombstone};
use crate::coverage::Hazard;
use crate::sabotage::Sabotage;
use crate::world::World;

/// The seal of every shard if checksums cover no address.
fn unplaced() -> RowSeal {
    KeySeal::NOWHERE.tally()
}

/// A shard with its seal replaced; `None` if it can't be decoded.
fn resealed(kind: Kind, (from, to): (RowSeal, RowSeal), state: &[u8]) -> Option<Vec<u8>> {
    match decode_shard(from, kind, state).ok()? {
        Shard::Plain(state) => Some(encode_shard(to, &state, 1)),
        Shard::Pack(stored) => Some(encode_pack(to, &Pack::resumed(kind, &stored), 1)),
    }
}

/// An op's id as a pod gets it. With a rule broken, several aliases become one id on their way to the replicas. An
/// alias is a UUID, because ids of this form are stored as they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Alias {
    pub(crate) name: u8,
    pub(crate) op: usize,
    pub(crate) alias: usize,
}

impl Alias {
    pub(crate) fn id(self) -> String {
        let Alias { name, op, alias } = self;
        let [op, alias] = [op, alias].map(|number| u8::try_from(number).expect("small"));
        Uuid::from_u128(u32::from_be_bytes([0, name, op, alias]).into()).to_string()
    }

    fn of(id: OpId) -> Alias {
        let [.., name, op, alias] = id.id;
        Alias { name, op: op.into(), alias: alias.into() }
    }
}

impl SimStore {
    /// A pod is about to take an op.
    pub(crate) fn attempted(&self, alias: Alias) {
        let mut attempted = self.attempted.lock().unwrap_or_else(PoisonError::into_inner);
        attempted.insert((alias.name, alias.op), alias.alias);
    }

    pub(super) fn is_pack(write: &ShardWrite) -> bool {
        let shard = decode_shard(write.seal(), write.key().kind, write.state());
        matches!(shard, Ok(Shard::Pack(_)))
    }

    /// A pack with one entry for each op, the one that the pod got last, under the op's id.
    fn unaliased(&self, write: &ShardWrite) -> Option<Vec<u8>> {
        let kind = write.key().kind;
        let Ok(Shard::Pack(mut pack)) = decode_shard(write.seal(), kind, write.state()) else {
            return None;
        };
        let attempted = self.attempted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_last = |entry: &Entry<'_>| {
            let Alias { name, op, alias } = Alias::of(entry.id);
            attempted.get(&(name, op)) == Some(&alias)
        };
        let place = |entry: &Entry<'_>| Alias { alias: 0, ..Alias::of(entry.id) }.id();
        pack.entries.sort_by_key(|entry| (place(entry), !is_last(entry)));
        pack.entries.dedup_by_key(|entry| place(entry));
        pack.entries.iter_mut().for_each(|entry| entry.id.id[15] = 0);
        Some(encode_pack(write.seal(), &Pack::resumed(kind, &pack), 1))
    }

    /// Gives all copies of an id the content of the one in the last row.
    pub(super) fn give_last_copies(&self, rows: &mut [(u8, Row)]) {
        let kind = self.plan.family.kind();
        let pack_of = |name: u8, row: &Row| {
            let seal = self.seal(name).row(row.expires_at, row.mutator_id);
            let Ok(Shard::Pack(pack)) = decode_shard(seal, kind, &row.state) else { return None };
            let entries = pack.entries.iter();
            Some((
                seal,
                pack.precision,
                entries.map(|entry| (entry.id, entry.sequence, entry.delta.to_vec())).collect(),
            ))
        };
        type Pieces = (RowSeal, Option<u16>, Vec<(OpId, u64, Vec<u8>)>);
        let packs: Vec<Option<Pieces>> =
            rows.iter().map(|(name, row)| pack_of(*name, row)).collect();
        let mut last = BTreeMap::new();
        for ((name, row), pack) in rows.iter().zip(&packs) {
            for (id, sequence, delta) in pack.iter().flat_map(|(_, _, entries)| entries) {
                let place = (*name, row.expires_at, *id);
                let found = (row.mutator_id, *sequence, delta);
                let known = last.entry(place).or_insert(found);
                *known = (*known).max(found);
            }
        }
        for ((name, row), pack) in rows.iter_mut().zip(&packs) {
            let Some((seal, precision, entries)) = pack else { continue };
            let entry = |(id, ..): &(OpId, u64, Vec<u8>)| {
                let (_, sequence, delta) = last[&(*name, row.expires_at, *id)];
                Entry { id: *id, sequence, delta }
            };
            let entries = entries.iter().map(entry).collect();
            let stored = StoredPack { precision: *precision, entries };
            row.state = encode_pack(*seal, &Pack::resumed(kind, &stored), 1);
        }
    }

    /// The position and content of a shard, as written by the shipped code or with a broken rule.
    pub(super) fn shard_of(&self, write: &ShardWrite) -> (Address, Cell) {
        let mut address = Address {
            name: index(&write.key().name),
            expires_at: Reverse(write.expires_at()),
            id: write.mutator_id(),
        };
        let mut cell = Cell { timestamp: write.timestamp(), state: write.state().into() };
        if self.is(Sabotage::IdReused) {
            let shared_life = Duration::from_secs(20);
            address.id = MutatorId::new(Uuid::from_u128(1));
            let rounded = write.expires_at().plus(shared_life).floor_to(shared_life);
            address.expires_at = Reverse(rounded);
            // Such a mutator would seal its row for its new place.
            let seals = (write.seal(), KeySeal::of(write.key()).row(rounded, address.id));
            let state = resealed(write.key().kind, seals, write.state());
            cell.state = state.expect("just made").into();
        }
        if self.is(Sabotage::AddressUnchecked) {
            let state = resealed(write.key().kind, (write.seal(), unplaced()), write.state());
            cell.state = state.expect("just made").into();
        }
        if SimStore::is_pack(write) {
            self.shared.met(Hazard::PackWritten);
        }
        if self.is(Sabotage::NoStamps) {
            cell.state = SimStore::unstamped(write).into();
        }
        if self.is(Sabotage::IdOverwritten) || self.is(Sabotage::DotsOfPod) {
            cell.state = self.unaliased(write).map_or(cell.state, Into::into);
        }
        if self.is(Sabotage::FallingTimestamps) {
            cell.timestamp = self.machine.now().wall;
        }
        (address, cell)
    }

    fn seal(&self, name: u8) -> KeySeal {
        KeySeal::of(&self.plan.family.key(name))
    }

    /// A row as it is read, or as a broken rule shows it; `None` if the rule skips it.
    pub(super) fn row_of(&self, (address, cell): (Address, Cell)) -> Option<(u8, Row)> {
        let mut state = cell.state.to_vec();
        let (kind, key) = (self.plan.family.kind(), self.seal(address.name));
        let seal = key.row(address.expires_at.0, address.id);
        if address.is_tally() && self.is(Sabotage::FenceIgnored) {
            let (_, value) = decode_tally(key, kind, &state).ok()?;
            state = encode_tally(key, &value, Timestamp::from_micros(0));
        }
        if self.is(Sabotage::AddressUnchecked) && !address.is_tally() {
            state = resealed(kind, (unplaced(), seal), &state).unwrap_or(state);
        }
        if self.is(Sabotage::UndecodableSkipped) {
            let is_sound = match address.is_tally() {
                true => decode_tally(key, kind, &state).is_ok(),
                false => decode_shard(seal, kind, &state).is_ok(),
            };
            is_sound.then_some(())?;
        }
        let mut row = Row { expires_at: address.expires_at.0, mutator_id: address.id, state };
        if self.is(Sabotage::ReadsCountCopies) {
            self.with_own_ids(address.name, &mut row);
        }
        Some((address.name, row))
    }

    /// Gives the ops of a pack ids that no other pack has, or their own ids back. Other shards stay as they are.
    pub(super) fn with_own_ids(&self, name: u8, row: &mut Row) {
        let (kind, seal) = (self.plan.family.kind(), self.seal(name));
        let seal = seal.row(row.expires_at, row.mutator_id);
        if let Ok(Shard::Pack(mut stored)) = decode_shard(seal, kind, &row.state) {
            let mask = row.mutator_id.as_uuid().as_u128();
            for entry in &mut stored.entries {
                entry.id.id = (u128::from_be_bytes(entry.id.id) ^ mask).to_be_bytes();
            }
            row.state = encode_pack(seal, &Pack::resumed(kind, &stored), 1);
        }
    }

    /// For a broken rule: the answer of a read that ended at this instant, which is when the read that was requested
    /// meanwhile begins. `None` if the rule is kept, or if that read left out more rows.
    pub(super) fn shared_too_late(
        &self,
        key: &Key,
        after: Option<Timestamp>,
        level: Level,
    ) -> Option<WholeSlice> {
        if !self.is(Sabotage::SharedTooLate) {
            return None;
        }
        let last = self.last_answers.lock().unwrap_or_else(PoisonError::into_inner);
        let (ended, slice) = last.get(&(key.clone(), level))?;
        (*ended == self.elapsed() && slice.after() <= after).then(|| slice.clone())
    }

    /// Keeps an answer for [`SimStore::shared_too_late`].
    pub(super) fn remember(&self, key: &Key, level: Level, slice: &WholeSlice) {
        if self.is(Sabotage::SharedTooLate) {
            let mut last = self.last_answers.lock().unwrap_or_else(PoisonError::into_inner);
            last.insert((key.clone(), level), (self.elapsed(), slice.clone()));
        }
    }

    fn elapsed(&self) -> Duration {
        self.shared.with(|world| world.time.elapsed())
    }

    /// The mutation of a fold, as planned or with a broken rule.
    pub(super) fn mutation_of(&self, fold: &Fold) -> Mutation {
        let name = index(&fold.key().name);
        let (mut fence, mut timestamp) = (fold.fence(), fold.timestamp());
        let mut state = fold.tally().to_vec();
        if self.is(Sabotage::OlderFence) && fold.report().folded == 0 {
            // The fence of its own time, not the greater of that and the earlier one.
            let time = *self.fold_time.lock().unwrap_or_else(PoisonError::into_inner);
            let constants = &self.plan.constants;
            fence = time.minus(constants.cutoff()).floor_to(constants.fence_quantum());
            timestamp = fence.next();
            let key = KeySeal::of(fold.key());
            let (_, value) = decode_tally(key, fold.key().kind, &state).expect("just made");
            state = encode_tally(key, &value, fence);
        }
        if let Some((tally, at)) = self.broken_tally(fold) {
            (state, fence, timestamp) = (tally, at, at.next());
        }
        if self.is(Sabotage::LowFoldTimestamp) {
            timestamp = timestamp.minus(2 * self.plan.constants.lifetime());
        }
        let mut tally_timestamp = match timestamp == fold.timestamp() {
            true => fold.tally_timestamp(),
            false => timestamp,
        };
        if self.is(Sabotage::LowGraveTimestamp) {
            tally_timestamp = timestamp;
        }
        if self.is(Sabotage::DeletionHasHeadStart) && is_grave(fold.tally()) {
            tally_timestamp = fence.plus(self.plan.constants.grave_head_start());
        }
        let leaves_nothing = self.is(Sabotage::NoGrave) && fold.report().forgotten;
        self.shared.with(|world| {
            let range = Tombstone {
                name,
                after: Timestamp::from_micros(i64::MIN),
                through: fence,
                id: None,
                timestamp,
                made_us: world.time.now_us(),
            };
            let mut tombstones = match self.plan.row_deletes {
                false => vec![range.clone()],
                true => row_deletes(world, &range),
            };
            if leaves_nothing {
                let after = Timestamp::from_micros(Timestamp::NEVER.as_micros() - 1);
                let (through, id) = (Timestamp::NEVER, Some(MutatorId::TALLY));
                tombstones.push(Tombstone { after, through, id, ..range });
                return Mutation { cells: Vec::new(), tombstones };
            }
            let tally = Cell { timestamp: tally_timestamp, state: state.into() };
            Mutation { cells: vec![(Address::tally(name), tally)], tombstones }
        })
    }
}

impl SimStore {
    /// For a broken rule: the rows of keys whose tally is old, without those above its fence.
    pub(super) fn without_rows_above_old_tallies(&self, rows: Vec<(u8, Row)>) -> Vec<(u8, Row)> {
        let Some(ttl) = self.plan.idle_ttl(self.pod) else { return rows };
        let old = self.machine.now().wall.minus(ttl);
        let kind = self.plan.family.kind();
        let tallies = rows.iter().filter(|(_, row)| row.is_tally() && !is_grave(&row.state));
        let fences = tallies.filter_map(|(name, row)| {
            Some((*name, decode_tally(self.seal(*name), kind, &row.state).ok()?.0))
        });
        let fences: BTreeMap<u8, Timestamp> = fences.filter(|(_, fence)| *fence <= old).collect();
        let stays = |name: &u8, row: &Row| {
            row.is_tally() || fences.get(name).is_none_or(|fence| row.expires_at <= *fence)
        };
        rows.into_iter().filter(|(name, row)| stays(name, row)).collect()
    }

    /// Ops that were sent up to this time, in µs, are forgotten by a fold: the latest time of its read minus the
    /// time for which the key was idle, by the worst clocks.
    fn forgotten_us(&self, fold: &Fold) -> i64 {
        let constants = &self.plan.constants;
        let planned = fold.fence().plus(constants.cutoff() + constants.fence_quantum());
        let idle = self.plan.idle_ttl.expect("a rule");
        planned.minus(idle).plus(2 * constants.clock_offset_max()).as_micros()
    }

    /// A fold is about to be sent.
    pub(super) fn note_grave(&self, world: &mut World, fold: &Fold) {
        let report = fold.report();
        if report.is_grave {
            world.met(Hazard::GraveAgain);
            if reset(fold.tally()).is_some() {
                world.met(Hazard::DeletionAgain);
            }
        }
        if report.forgotten {
            let name = index(&fold.key().name);
            world.oracle.forgets(name, self.forgotten_us(fold));
            world.met(Hazard::Forgotten);
            if world.oracle.was_reset(name) {
                world.met(Hazard::ForgottenAfterReset);
            }
            let is_above = |row: &Address| {
                row.name == name && !row.is_tally() && row.expires_at.0 > fold.fence()
            };
            if world.nodes.iter().any(|node| node.disk.rows.keys().any(is_above)) {
                world.met(Hazard::ForgottenInUse);
            }
        } else if report.folded > 0 && world.graves.contains(&index(&fold.key().name)) {
            world.graves.remove(&index(&fold.key().name));
            world.met(Hazard::GraveEnded);
        }
    }

    /// A grave was acknowledged. It is certain if every fold that was planned from a read before that loses against it.
    pub(super) fn note_forgotten(&self, world: &mut World, fold: &Fold) {
        let name = index(&fold.key().name);
        world.graves.insert(name);
        let constants = &self.plan.constants;
        let acked = Timestamp::from_micros(world.time.now_us());
        let highest = acked.plus(constants.clock_offset_max()).minus(constants.cutoff());
        if highest < fold.fence().plus(constants.grave_head_start()) {
            let idle = self.plan.idle_ttl.expect("a rule");
            let until = fold.fence().plus(constants.cutoff()).minus(idle);
            let until_us = until.minus(constants.clock_offset_max()).as_micros();
            world.oracle.forgot(name, until_us, self.datacenter);
        }
    }
}

/// One deletion for each row of a range.
fn row_deletes(world: &mut World, range: &Tombstone) -> Vec<Tombstone> {
    world.met(Hazard::RowDeletes);
    let rows = world.nodes.iter().flat_map(|node| node.disk.rows.keys());
    let covered = rows.filter(|row| row.name == range.name && row.expires_at.0 <= range.through);
    let mut deletes: Vec<Tombstone> = covered
        .map(|row| Tombstone {
            after: Timestamp::from_micros(row.expires_at.0.as_micros() - 1),
            through: row.expires_at.0,
            id: Some(row.id),
            ..range.clone()
        })
        .collect();
    deletes.dedup();
    deletes
}
