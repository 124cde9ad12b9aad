//! The log of resets, on the same replicas as the rows of keys, and what is broken about resets.

use std::cmp::Reverse;
use std::sync::Arc;

use async_trait::async_trait;
use orderfree::runtime::clock::Clock;
use orderfree::store::cassandra::attempts::Patience;
use orderfree::store::cassandra::reach::Reach;
use orderfree::store::{Receipt, ResetLog, StoreError};
use orderfree_core::crdt::envelope::{
    self, KeySeal, Shard, decode_shard, decode_tally, encode_reset_tally, encode_stamped_pack,
    encode_stamped_shard,
};
use orderfree_core::crdt::pack::Pack;
use orderfree_core::crdt::{Kind, State};
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::fold::{self, Fold};
use orderfree_core::protocol::generation::{Generation, Remembered};
use orderfree_core::protocol::reset::{LogRow, bucket};
use orderfree_core::protocol::{Key, MutatorId, Name, Row, ShardWrite, Timestamp, WriteOutcome};
use uuid::Uuid;

use super::{SimStore, index, name};
use crate::cluster::{Address, Cell, Mutation, Range};
use crate::coverage::Hazard;
use crate::network;
use crate::sabotage::Sabotage;
use crate::world::World;

/// The last name that a key can have.
pub(super) const LAST_NAME: u8 = 99;

/// What a row of the log says of its reset.
const STAGE_LOGGED: u8 = 0;
const STAGE_CLEARED: u8 = 1;
const STAGE_VOID: u8 = 2;
const STAGE_DONE: u8 = 3;

/// The rows of the log lie under this name.
const LOG_NAME: u8 = LAST_NAME + 1;

#[async_trait]
impl ResetLog for SimStore {
    fn has_resets(&self) -> bool {
        self.plan.resets && !(self.is(Sabotage::PodWithoutLooks) && self.pod == 1)
    }

    async fn read_resets(&self, part: u8, after: Timestamp) -> Result<Vec<LogRow>, StoreError> {
        let any = self.plan.family.key(0);
        // All keys are in one group.
        if part != bucket(any.kind, &any.group) {
            return Ok(Vec::new());
        }
        let range = Range { after: Some(after), ..Range::key(LOG_NAME) };
        let level = if self.is(Sabotage::LookedAtOne) { Level::One } else { Level::LocalQuorum };
        let ask = async |_| network::read(&self.shared, self.datacenter, level, range).await;
        let sending = self.sending(Patience::OF_READS_AND_FOLDS, None);
        let rows = self.machine.run(sending.read(ask)).await?;
        let was_before = |row: &LogRow| row.generation.time() < self.started;
        let is_shown = |row: &LogRow| !self.is(Sabotage::LogNotReadAtStart) || !was_before(row);
        Ok(rows.iter().map(|row| self.log_row(row).0).filter(is_shown).collect())
    }

    async fn read_receipt(
        &self,
        _: (Kind, &Name),
        generation: Generation,
        id: Uuid,
    ) -> Result<Option<(LogRow, Receipt)>, StoreError> {
        let time = generation.time();
        let (after, through) = (Some(time.shifted(-1)), Some(time));
        let range = Range { after, through, ..Range::key(LOG_NAME) };
        Ok(self.log_rows(range).await?.into_iter().find(|(row, _)| row.id == id))
    }

    /// One cell has all columns of a row. Those of later writes have greater bytes and win: the stage comes first.
    async fn write_reset(&self, row: &LogRow, receipt: &Receipt) -> WriteOutcome {
        let stage = match receipt {
            Receipt { done: Some(true), .. } => STAGE_DONE,
            Receipt { done: Some(false), .. } => STAGE_VOID,
            Receipt { cleared: Some(_), .. } => STAGE_CLEARED,
            Receipt { cleared: None, .. } => STAGE_LOGGED,
        };
        let cells = row.names.iter().map(|name| {
            let at = index(name);
            let of_name = row.id.as_u128() ^ (u128::from(at) + 1);
            let id = MutatorId::new(Uuid::from_u128(of_name));
            let expires_at = Reverse(row.generation.time());
            let mut state = vec![stage, at];
            state.extend(row.until.as_micros().to_be_bytes());
            state.extend(row.id.as_bytes());
            state.extend(receipt.cleared.iter().flatten());
            let timestamp = row.generation.time();
            (Address { name: LOG_NAME, expires_at, id }, Cell { timestamp, state: state.into() })
        });
        let mutation = Arc::new(Mutation { cells: cells.collect(), tombstones: Vec::new() });
        let level = match self.plan.sabotage {
            Some(Sabotage::LoggedAtOne) => Level::One,
            Some(Sabotage::LoggedHere) => Level::LocalQuorum,
            _ => Level::EachQuorum,
        };
        let patience = Patience::OF_READS_AND_FOLDS;
        let send =
            |_| network::write(&self.shared, self.datacenter, level, &mutation, patience.attempt);
        let sending = self.sending(patience, None);
        self.machine.run(sending.write(Reach::OnePartition, || true, send)).await
    }
}

impl SimStore {
    async fn log_rows(&self, range: Range) -> Result<Vec<(LogRow, Receipt)>, StoreError> {
        let ask =
            async |_| network::read(&self.shared, self.datacenter, Level::LocalQuorum, range).await;
        let sending = self.sending(Patience::OF_READS_AND_FOLDS, None);
        let rows = self.machine.run(sending.read(ask)).await?;
        Ok(rows.iter().map(|row| self.log_row(row)).collect())
    }

    fn log_row(&self, (address, cell): &(Address, Cell)) -> (LogRow, Receipt) {
        let (head, rest) = cell.state.split_at(2);
        let (until, rest) = rest.split_at(8);
        let (id, cleared) = rest.split_at(16);
        let any = self.plan.family.key(0);
        let until = i64::from_be_bytes(until.try_into().expect("eight bytes"));
        let row = LogRow {
            id: Uuid::from_slice(id).expect("sixteen bytes"),
            kind: any.kind,
            group: any.group,
            names: vec![name(head[1])],
            generation: Generation::at(address.expires_at.0),
            until: Timestamp::from_micros(until),
            is_deletion: false,
        };
        let done = match head[0] {
            STAGE_DONE => Some(true),
            STAGE_VOID => Some(false),
            _ => None,
        };
        let has_cleared = [STAGE_CLEARED, STAGE_DONE].contains(&head[0]);
        (row, Receipt { cleared: has_cleared.then(|| cleared.to_vec()), done })
    }

    /// Rows of a key that its reset cleared.
    fn is_cleared(reset: &Remembered, row: &Row) -> bool {
        !row.is_tally() && !reset.counts(envelope::stamp(&row.state), row.expires_at)
    }

    /// Records the hazards that the rows of a key show.
    pub(super) fn note_cleared(&self, key: &Key, rows: &[Row]) {
        let tally = rows.first().filter(|row| row.is_tally());
        let Some(reset) = tally.and_then(|row| envelope::reset(&row.state)) else { return };
        let Ok((fence, _)) = decode_tally(KeySeal::of(key), key.kind, &rows[0].state) else {
            return;
        };
        let above = || rows.iter().filter(move |row| row.expires_at > fence);
        if above().any(|row| SimStore::is_cleared(&reset, row)) {
            self.shared.met(Hazard::ClearedRead);
        }
        let has_id = |row: &&Row| {
            let seal = KeySeal::of(key).row(row.expires_at, row.mutator_id);
            let Ok(Shard::Pack(pack)) = decode_shard(seal, key.kind, &row.state) else {
                return false;
            };
            pack.entries.iter().any(|entry| reset.has_cleared(row.expires_at, entry.id))
        };
        let of_after = above().filter(|row| !row.is_tally() && !SimStore::is_cleared(&reset, row));
        if of_after.filter(has_id).count() > 0 {
            self.shared.met(Hazard::ClearedIdAgain);
        }
    }

    /// Whether a fold writes the marker of a reset, for the first time or again.
    pub(super) fn is_marker(fold: &Fold) -> bool {
        let reset = envelope::reset(fold.tally());
        reset.is_some_and(|reset| reset.generation().time() == fold.fence())
    }

    /// Records the hazards of a fold of a key that was reset.
    pub(super) fn note_fold_of_reset(&self, world: &mut World, fold: &Fold) {
        let (reset, is_marker) = (envelope::reset(fold.tally()), SimStore::is_marker(fold));
        if fold.report().cleared > 0 && !is_marker {
            world.met(Hazard::ClearedFolded);
        }
        let at = usize::from(index(&fold.key().name));
        if is_marker {
            world.marked[at] = reset.map(|reset| reset.generation());
        } else if reset.is_none() && world.marked[at].take().is_some() {
            world.met(Hazard::ResetPassed);
        }
    }

    /// Records the hazards of shards that were stored.
    pub(super) fn note_late_rows(&self, writes: &[ShardWrite]) {
        self.shared.with(|world| {
            let is_late = |write: &ShardWrite| {
                let marked = world.marked[usize::from(index(&write.key().name))];
                envelope::stamp(write.state()) < marked
            };
            if writes.iter().any(is_late) {
                world.met(Hazard::LateRow);
            }
        });
    }

    /// For a broken rule: gives the rows that a reset cleared its stamp.
    pub(super) fn stamp_again(&self, key: &Key, rows: &mut [Row]) {
        let tally = rows.first().filter(|row| row.is_tally());
        let Some(reset) = tally.and_then(|row| envelope::reset(&row.state)) else { return };
        let stamp = Some(reset.generation());
        for row in rows.iter_mut().filter(|row| SimStore::is_cleared(&reset, row)) {
            let seal = KeySeal::of(key).row(row.expires_at, row.mutator_id);
            let stamped = match decode_shard(seal, key.kind, &row.state) {
                Ok(Shard::Plain(state)) => encode_stamped_shard(seal, &state, 1, stamp),
                Ok(Shard::Pack(pack)) => {
                    encode_stamped_pack(seal, &Pack::resumed(key.kind, &pack), 1, stamp)
                }
                Err(_) => continue,
            };
            row.state = stamped;
        }
    }

    /// For a broken rule: tallies of keys without shards, as if they needed no reset.
    pub(super) fn without_needed_resets(&self, rows: &mut [(u8, Row)]) {
        let kind = self.plan.family.kind();
        for of_key in rows.chunk_by_mut(|one, other| one.0 == other.0) {
            let [(at, row)] = of_key else { continue };
            let seal = KeySeal::of(&self.plan.family.key(*at));
            if !row.is_tally() || envelope::is_grave(&row.state) {
                continue;
            }
            let Ok((fence, state)) = decode_tally(seal, kind, &row.state) else { continue };
            row.state = encode_reset_tally(seal, &state, fence, false, None);
        }
    }

    /// For a broken rule: a shard without its stamp.
    pub(super) fn unstamped(write: &ShardWrite) -> Vec<u8> {
        match decode_shard(write.seal(), write.key().kind, write.state()).expect("just made") {
            Shard::Plain(state) => encode_stamped_shard(write.seal(), &state, 1, None),
            Shard::Pack(pack) => {
                let pack = Pack::resumed(write.key().kind, &pack);
                encode_stamped_pack(write.seal(), &pack, 1, None)
            }
        }
    }

    /// The tally and the fence of a fold with a rule about resets broken; `None` if it stays.
    pub(super) fn broken_tally(&self, fold: &Fold) -> Option<(Vec<u8>, Timestamp)> {
        let (seal, kind) = (KeySeal::of(fold.key()), fold.key().kind);
        let reset = envelope::reset(fold.tally())?;
        let is_marker = SimStore::is_marker(fold);
        let (fence, state) = decode_tally(seal, kind, fold.tally()).expect("just made");
        let tally = |state: &State, reset: Option<&Remembered>, fence| {
            (encode_reset_tally(seal, state, fence, false, reset), fence)
        };
        match self.plan.sabotage? {
            Sabotage::FoldsDropResets if !is_marker => Some(tally(&state, None, fence)),
            Sabotage::FoldsDropIds if !is_marker => {
                Some(tally(&state, Some(&reset.without_ids()), fence))
            }
            Sabotage::MarkerAtCut if is_marker => {
                let cut = fold::cut(self.machine.now().wall, &self.plan.constants);
                Some(tally(&state, Some(&reset), cut))
            }
            _ => None,
        }
    }
}
