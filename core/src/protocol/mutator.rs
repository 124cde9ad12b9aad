//! The mutator: one writer's life for one key, as a state machine without I/O.
//!
//! Keeps invariants I1 (only it makes writes for its id), I2 (write timestamps strictly increase and stay
//! below the expiry, and a later state contains all that an earlier one held) and I3 (an op is acked only
//! after a write that holds it was acknowledged in time).
//!
//! ```text
//! accept ─▶ queue ─ begin_write ─▶ in flight ─ finish_write ─▶ settled
//!             ▲                        │ acked: everything up to this write is acked
//!             └───── kept ops ─────────┤ refused: the write is undone, the queue replayed
//!                                      │ unknown: settled, but written again until acked
//! ```
//!
//! Only one write is in flight at a time; ops that arrive during it go with the next one (group commit).
//! Maxima and sketches can't be subtracted, so undoing a write means replaying the waiting ops on the state
//! from before the write.

mod content;
mod resting;
mod succession;

use std::time::Duration;

pub use content::Change;
use content::MutatorContent;
pub use resting::RestFlaw;
pub use succession::{KEY_STATES_BYTES_MAX, PACK_BYTES_CHEAP, Predecessors};

use super::generation::Generation;
use super::{
    Constants, Durability, Key, Lease, MutatorId, Now, OP_AGE_MAX, Timestamp, WriteError,
    WriteOutcome,
};
use crate::crdt::envelope::{KeySeal, RowSeal};
use crate::crdt::pack::Pack;
use crate::crdt::{Dot, Effect, OpError, State};

/// Maximum number of op lists that wait for one mutator's next write; further lists are refused.
pub const QUEUE_MAX: usize = 65_536;

/// How long a mutator keeps answering from memory without an acknowledged write.
const MEMORY_PATIENCE: Duration = Duration::from_secs(1);

/// The mutator of one key; see the module documentation.
#[derive(Debug)]
pub struct Mutator {
    key: Key,
    id: MutatorId,
    seal: RowSeal,
    stamp: Option<Generation>,
    /// It was retired by a reset: ops that it has sent belong to the time before.
    was_reset: bool,
    lease: Lease,
    /// All ops that were sent and not certainly refused.
    settled: MutatorContent,
    /// `settled`, or what is in flight, with the queue applied.
    head: MutatorContent,
    /// Accepted but never sent. Ascending by ticket.
    queue: Vec<OpList>,
    /// The weight of the queue; see [`Mutator::queued`].
    queued: usize,
    in_flight: Option<Sent>,
    /// Whether `settled` holds ops that no write has acknowledged.
    unresolved: bool,
    /// Op lists that were answered from memory and whose write has an unknown outcome. Only for kinds in
    /// which adding twice is the same as adding once, and only without ids.
    unsure: Vec<OpList>,
    /// Number of other such lists. They are lost if they stay unresolved.
    at_risk: usize,
    /// When the first write since the last acknowledgement began, by the boot-time clock.
    unacked_since: Option<Duration>,
    /// Whether a write was ever acknowledged.
    persisted: bool,
    next_ticket: u64,
    /// Number of dots drawn. A dot is never drawn twice, whatever happens to its op.
    dots: u64,
    last_timestamp: Option<Timestamp>,
    writes: u64,
    /// Bytes that the last write added to a pack.
    added: usize,
    predecessors: Predecessors,
}

#[derive(Debug)]
struct OpList {
    ticket: Ticket,
    change: Change,
    durability: Durability,
}

#[derive(Debug)]
/// What the write in flight holds.
struct Sent {
    held: MutatorContent,
    /// The op lists that were answered from memory. If the write is refused, they wait again. If its outcome
    /// is unknown, they are unsure.
    kept: Vec<OpList>,
}

/// Identifies one accepted list of ops. Later tickets are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// The ops were accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// They change nothing, and the state that holds them is already stored: acked.
    Stored,
    /// They go with the next write.
    Queued(Ticket),
}

/// The ops were not accepted and changed nothing.
#[derive(Debug, Clone, PartialEq)]
pub enum Refusal {
    /// The mutator takes no more ops; give these to its successor.
    Draining(Change),
    /// The mutator has no room for these ops, or its next write would mostly repeat others; give them to a successor.
    Full(Change),
    /// [`QUEUE_MAX`] op lists are already waiting.
    QueueFull,
    /// No write was acknowledged for more than a second, so nothing is answered from memory.
    Unacked,
    /// One of the ops can't be applied.
    Op(OpError),
}

/// One write of a shard's row: the whole state with its timestamp. Only [`Mutator::begin_write`] and a
/// [parcel](super::transfer) make one, so a shard can't be written outside its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardWrite {
    key: Key,
    expires_at: Timestamp,
    mutator_id: MutatorId,
    timestamp: Timestamp,
    state: Vec<u8>,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begin {
    /// Nothing to write, or a write is in flight.
    Idle,
    /// Send this, then call [`Mutator::finish_write`].
    Write(ShardWrite),
    /// The lease is over: no further write may be sent. Unresolved ops stay unknown. [`Mutator::end`]
    /// returns what the successor inherits.
    Dead,
}

/// An accepted op list that could not be applied again after the ops before it were undone.
#[derive(Debug, Clone, PartialEq)]
pub struct Rejected {
    /// The list's ticket.
    pub ticket: Ticket,
    /// Why it can't be applied.
    pub error: OpError,
    /// Whether its client already has an answer. Then the list is lost.
    pub was_answered: bool,
}

/// What a dead mutator leaves of the op lists that were answered from memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Estate {
    /// For its successor: lists that were never sent, or whose kind can take them twice.
    pub inherited: Vec<Change>,
    /// Number of op lists that no mutator can take any more. Those that were sent and never acknowledged are lost
    /// if they are not stored: adding them again could count them twice. Those with ids are lost because
    /// their expiry is over.
    pub lost: usize,
}

/// What a finished write means for its ops and for earlier unresolved ones. It is not the [`WriteOutcome`]:
/// a write that the store acknowledged can be too late, and a refused one can leave ops behind that no
/// longer apply.
#[derive(Debug, Clone, PartialEq)]
pub enum Finished {
    /// All of them are acked.
    Acked,
    /// The store acknowledged too late for the lease: all of them are unknown (I3).
    TooLate,
    /// The ops of this write are refused, with the reason; earlier ones stay as they were.
    Refused {
        /// The store's reason.
        reason: String,
        /// Queued ops that only fitted on top of the undone ops. Normally empty.
        rejected: Vec<Rejected>,
    },
    /// All of them are unresolved, with the reason, and are written again.
    Unknown(String),
}

/// The lifetime of a mutator of a state with this stamp.
fn lifetime_of(stamp: Option<Generation>, constants: &Constants) -> Duration {
    match stamp {
        None => constants.lifetime(),
        Some(_) => constants.lifetime_after_reset(),
    }
}

impl Mutator {
    /// A new mutator. `id` must be fresh and random. Without a `precision` it has the kind's default.
    #[must_use]
    pub fn born(
        key: Key,
        id: MutatorId,
        precision: Option<u16>,
        now: Now,
        constants: &Constants,
    ) -> Mutator {
        Mutator::born_after(None, key, id, precision, now, constants)
    }

    /// A new mutator with a stamp: its pod remembers resets of the key, of which this is the latest; see
    /// [`Log::admit`](super::reset::Log::admit). Its row expires sooner. The rest is as in [`Mutator::born`].
    #[must_use]
    pub fn born_after(
        stamp: Option<Generation>,
        key: Key,
        id: MutatorId,
        precision: Option<u16>,
        now: Now,
        constants: &Constants,
    ) -> Mutator {
        let empty = MutatorContent::State(State::new(key.kind, precision));
        let lease = Lease::begin(now, lifetime_of(stamp, constants), constants);
        Mutator::clean(key, id, lease, empty).stamped(stamp)
    }

    /// A new mutator of ops with ids, whose row has the expiry that follows from these ids; see
    /// [`NamedOp::expiry`](super::op_id::NamedOp::expiry). `id` and `precision` are as in [`Mutator::born`].
    #[must_use]
    pub fn born_until(
        key: Key,
        id: MutatorId,
        precision: Option<u16>,
        expires_at: Timestamp,
        now: Now,
        constants: &Constants,
    ) -> Mutator {
        let empty = MutatorContent::Pack(Pack::new(key.kind, precision));
        Mutator::clean(key, id, Lease::until(expires_at, now, constants), empty)
    }

    /// A mutator that holds this and has not drawn a dot or written anything yet.
    fn clean(key: Key, id: MutatorId, lease: Lease, held: MutatorContent) -> Mutator {
        let seal = KeySeal::of(&key).row(lease.expires_at(), id);
        Mutator {
            key,
            id,
            seal,
            stamp: None,
            was_reset: false,
            lease,
            settled: held.clone(),
            head: held,
            queue: Vec::new(),
            queued: 0,
            in_flight: None,
            unresolved: false,
            unsure: Vec::new(),
            at_risk: 0,
            unacked_since: None,
            persisted: false,
            next_ticket: 0,
            dots: 0,
            last_timestamp: None,
            writes: 0,
            added: 0,
            predecessors: Predecessors::default(),
        }
    }

    /// The key that it writes.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Its lease.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Gives this mutator the stamp that [`Mutator::born_after`] returns. The expiry of a pack follows from its ids.
    #[must_use]
    pub fn stamped(self, stamp: Option<Generation>) -> Mutator {
        Mutator { stamp, ..self }
    }

    /// Its stamp.
    #[must_use]
    pub fn stamp(&self) -> Option<Generation> {
        self.stamp
    }

    /// Number of op lists that [`Mutator::end`] hands on first although they were sent, and may be stored.
    #[must_use]
    pub fn sent_to_inherit(&self) -> usize {
        self.unsure.len()
    }

    /// Notes that the key was reset. If it dies with ops that were sent and never acknowledged, these may be
    /// cleared, so no successor may take them again.
    pub fn note_reset(&mut self) {
        self.was_reset = true;
        self.at_risk += std::mem::take(&mut self.unsure).len();
    }

    /// Whether it takes ops with ids.
    #[must_use]
    pub fn is_pack(&self) -> bool {
        matches!(self.head, MutatorContent::Pack(_))
    }

    /// The size of what its next write holds, if it takes ops with ids; otherwise 0.
    #[must_use]
    pub fn pack_bytes(&self) -> usize {
        self.head.pack_bytes()
    }

    /// Whether it takes ops with ids and has the id of this one.
    #[must_use]
    pub fn has_id_of(&self, change: &Change) -> bool {
        match (&self.head, change) {
            (MutatorContent::Pack(pack), Change::Named(op)) => pack.has(&op.id),
            _ => false,
        }
    }

    /// Number of ids in its row, as far as it knows: those that were sent and not certainly refused.
    #[must_use]
    pub fn stored_ids(&self) -> usize {
        match &self.settled {
            MutatorContent::Pack(pack) => pack.len(),
            MutatorContent::State(_) => 0,
        }
    }

    /// Whether it can be forgotten: nothing is in flight, waiting or unresolved.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.in_flight.is_none() && self.queue.is_empty() && !self.unresolved
    }

    /// Weight of the ops that wait for the next write; see [`Change::weight`].
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Whether it has never begun a write, so it has no row.
    #[must_use]
    pub fn is_unwritten(&self) -> bool {
        self.writes == 0
    }

    /// Whether it has sent ops that no write has acknowledged.
    #[must_use]
    pub fn is_unresolved(&self) -> bool {
        self.unresolved
    }

    /// Takes all ops of a change, or none.
    ///
    /// # Errors
    /// [`Refusal`]; then nothing has changed.
    ///
    /// # Panics
    /// If ops with an id come to a mutator without, or the reverse.
    pub fn accept(
        &mut self,
        change: impl Into<Change>,
        durability: Durability,
        now: Now,
    ) -> Result<Accepted, Refusal> {
        let mut change = change.into();
        if !self.lease.is_writable(now) {
            return Err(Refusal::Draining(change));
        }
        if self.queue.len() >= QUEUE_MAX {
            return Err(Refusal::QueueFull);
        }
        // After a refused write there may be nothing left to write, and so nothing to acknowledge.
        if self.is_clean() {
            self.unacked_since = None;
        }
        let is_late = |since: Duration| now.boot.saturating_sub(since) > MEMORY_PATIENCE;
        if durability == Durability::Memory && self.unacked_since.is_some_and(is_late) {
            return Err(Refusal::Unacked);
        }
        if self.repeats_too_much(&change) {
            return Err(Refusal::Full(change));
        }
        // Only an op that waited in memory for a week can be this old.
        let oldest = self.lease.expires_at().minus(OP_AGE_MAX);
        let mut times = change.ops().iter().filter_map(|op| op.time());
        if self.key.kind.forgets() && times.any(|time| time < oldest) {
            let why =
                "the op waited too long: a later op that overrides it may already be forgotten";
            return Err(Refusal::Op(OpError::Invalid(why.into())));
        }
        let (expires_at, mutator_id, dots) = (self.lease.expires_at(), self.id, &mut self.dots);
        let mut next_dot = || {
            *dots += 1;
            Dot { expires_at, mutator_id, seq: *dots }
        };
        if let Change::Ops(ops) = &mut change {
            ops.iter_mut().for_each(|op| op.assign(&mut next_dot));
        }
        let effect = match self.head.apply(&change) {
            Ok(effect) => effect,
            Err(error) if self.is_room_elsewhere(&change, &error) => {
                return Err(Refusal::Full(change));
            }
            Err(error) => return Err(Refusal::Op(error)),
        };
        if effect == Effect::Unchanged && self.persisted && self.is_clean() {
            return Ok(Accepted::Stored);
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.queued += change.weight();
        self.queue.push(OpList { ticket, change, durability });
        Ok(Accepted::Queued(ticket))
    }

    /// Starts the next write, if there is something to write and the lease allows it.
    pub fn begin_write(&mut self, now: Now) -> Begin {
        if self.in_flight.is_some() || (self.queue.is_empty() && !self.unresolved) {
            return Begin::Idle;
        }
        let timestamp = match self.last_timestamp {
            Some(last) => last.next().max(now.wall),
            None => now.wall,
        };
        if timestamp >= self.lease.expires_at() || !self.lease.ack_stands(now) {
            return Begin::Dead;
        }
        self.last_timestamp = Some(timestamp);
        self.unacked_since.get_or_insert(now.boot);
        self.writes += 1;
        self.queued = 0;
        self.added = self.head.pack_bytes().saturating_sub(self.settled.pack_bytes());
        let kept = self.queue.drain(..).filter(|list| list.durability == Durability::Memory);
        self.in_flight = Some(Sent { kept: kept.collect(), held: self.head.clone() });
        Begin::Write(ShardWrite {
            key: self.key.clone(),
            expires_at: self.lease.expires_at(),
            mutator_id: self.id,
            timestamp,
            state: self.head.encode(self.seal, self.writes, self.stamp),
        })
    }

    /// Ends the write in flight. `now` must have been read after the store answered (I3).
    ///
    /// # Panics
    /// If no write is in flight.
    pub fn finish_write(&mut self, outcome: WriteOutcome, now: Now) -> Finished {
        let sent = self.in_flight.take().expect("invariant: a write was in flight");
        match outcome {
            Ok(()) => {
                self.settled = sent.held;
                self.persisted = true;
                self.unresolved = !self.lease.ack_stands(now);
                if self.unresolved {
                    self.doubt(sent.kept);
                    return Finished::TooLate;
                }
                self.unsure.clear();
                self.at_risk = 0;
                self.unacked_since = None;
                Finished::Acked
            }
            Err(WriteError::Unknown(reason)) => {
                self.settled = sent.held;
                self.unresolved = true;
                self.doubt(sent.kept);
                Finished::Unknown(reason)
            }
            Err(WriteError::Refused(reason)) => {
                self.queue.splice(0..0, sent.kept);
                Finished::Refused { reason, rejected: self.replay() }
            }
        }
    }

    /// Removes an accepted list that was never sent, so it is certainly not counted. Returns the lists that
    /// can't be applied without it; none if it is too late to withdraw.
    pub fn withdraw(&mut self, ticket: Ticket) -> Option<Vec<Rejected>> {
        let at = self.queue.binary_search_by_key(&ticket, |list| list.ticket).ok()?;
        self.queue.remove(at);
        Some(self.replay())
    }

    /// Ends a dead mutator and says what happens to the op lists that were answered from memory.
    pub fn end(&mut self) -> Estate {
        self.head = self.settled.clone();
        self.queued = 0;
        let (again, lost) = (std::mem::take(&mut self.unsure), std::mem::take(&mut self.at_risk));
        let never_sent = self.queue.drain(..);
        let never_sent = never_sent.filter(|list| list.durability == Durability::Memory);
        let inherited: Vec<Change> =
            again.into_iter().chain(never_sent).map(|list| list.change).collect();
        match self.is_pack() {
            true => Estate { lost: lost + inherited.len(), inherited: Vec::new() },
            false => Estate { inherited, lost },
        }
    }

    /// Notes that lists answered from memory may or may not be stored.
    fn doubt(&mut self, lists: Vec<OpList>) {
        let kind = self.key.kind;
        // Ops of timed kinds keep their times, so they win or lose as they did before.
        let is_inherited = !self.is_pack() && !self.was_reset;
        match is_inherited && (kind.about().is_idempotent || kind.is_timed()) {
            true => self.unsure.extend(lists),
            false => self.at_risk += lists.len(),
        }
    }

    /// Rebuilds the head from the sent ops and the queue, and drops ops that no longer apply.
    fn replay(&mut self) -> Vec<Rejected> {
        let mut head = match &self.in_flight {
            Some(sent) => sent.held.clone(),
            None => self.settled.clone(),
        };
        let mut rejected = Vec::new();
        self.queue.retain(|list| match head.apply(&list.change) {
            Ok(_) => true,
            Err(error) => {
                let was_answered = list.durability == Durability::Memory;
                rejected.push(Rejected { ticket: list.ticket, error, was_answered });
                false
            }
        });
        self.queued = self.queue.iter().map(|list| list.change.weight()).sum();
        self.head = head;
        rejected
    }
}

impl ShardWrite {
    /// The one write of a [parcel](super::transfer).
    pub(super) fn fixed(
        key: Key,
        expires_at: Timestamp,
        mutator_id: MutatorId,
        timestamp: Timestamp,
        state: Vec<u8>,
    ) -> ShardWrite {
        ShardWrite { key, expires_at, mutator_id, timestamp, state }
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The row's expiry.
    #[must_use]
    pub fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    /// The row's mutator.
    #[must_use]
    pub fn mutator_id(&self) -> MutatorId {
        self.mutator_id
    }

    /// The write timestamp, below the expiry.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// The start of the envelope's checksum.
    #[must_use]
    pub fn seal(&self) -> RowSeal {
        KeySeal::of(&self.key).row(self.expires_at, self.mutator_id)
    }

    /// The state's envelope.
    #[must_use]
    pub fn state(&self) -> &[u8] {
        &self.state
    }

    /// Whether this write can still be sent, for the first time or again. Checked before every attempt.
    #[must_use]
    pub fn may_be_sent(&self, now: Timestamp) -> bool {
        now < self.expires_at
    }
}

#[cfg(test)]
mod pack_tests;
#[cfg(test)]
mod tests;
