//! Numbers for everything that a world can contain: mutations, and the states of the shipped [`Mutator`].
//!
//! A mutator's state is identified by its `Debug` output, which has every private field. Two histories that lead to the
//! same output are the same state. To continue from a state, its first history is replayed.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, RwLock};

use orderfree_core::crdt::envelope::{self, KeySeal, Shard};
use orderfree_core::crdt::pack::{IdOp, OpId, Pack};
use orderfree_core::crdt::{CounterOp, Kind, Op, State};
use orderfree_core::protocol::{
    Begin, Change, Constants, Durability, Finished, Key, Mutator, MutatorId, Name, Row, Timestamp,
    WriteError,
};
use uuid::Uuid;

use crate::judge::Seen;
use crate::replica::Contents;
use crate::sabotage::Sabotage;
use crate::scope::{self, OPS_MAX, Scope};

/// The number of a mutation or of a mutator's state.
pub type Id = u16;

/// No mutation, or a mutator that is not born yet.
pub const NONE: Id = 0;

/// A message to replicas.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// A write of a shard's row.
    Shard {
        /// The index of the row in [`Replica::shards`](crate::replica::Replica).
        place: u8,
        expires_at: Timestamp,
        mutator_id: MutatorId,
        timestamp: Timestamp,
        state: Vec<u8>,
    },
    /// A fold's batch: the tally, and the deletion up to its fence.
    Fold { fence: Timestamp, timestamp: Timestamp, tally: Vec<u8> },
}

/// An event of a mutator with its instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event {
    pub at: u8,
    pub what: What,
}

/// An event of a mutator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum What {
    /// It gets the op with this number. The first op creates it.
    Op(u8),
    /// It starts a write.
    Begin,
    /// Its write was acknowledged.
    Acked,
    /// Its write was refused.
    Refused,
    /// Its write's outcome is unknown.
    Unknown,
}

/// The result of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Became {
    /// The mutator accepts no more ops, or has nothing to write.
    Nothing,
    /// The op waits for a write.
    Queued,
    /// This message must be sent.
    Write(Id),
    /// The lease is over, and ops that were not sent are refused.
    Dead,
    /// All ops that were sent are acked.
    Acked,
    /// The acknowledgement came too late: all ops that were sent stay unknown.
    TooLate,
    /// The ops of this write are refused.
    Refused,
    /// All ops that were sent are unknown.
    Unknown,
}

/// See the [module documentation](self).
pub struct Tables {
    pub scope: Scope,
    /// The rule that is broken, if any.
    pub sabotage: Option<Sabotage>,
    pub constants: Constants,
    pub key: Key,
    /// The mutators' states by their number minus one, without a lock, because lookups are so frequent.
    mutations: Vec<OnceLock<Mutation>>,
    numbers: RwLock<HashMap<Mutation, Id>>,
    lives: Mutex<HashMap<String, Id>>,
    histories: Mutex<HashMap<Id, Vec<Event>>>,
    steps: RwLock<HashMap<Step, (Id, Became)>>,
    /// Planned folds, by merged answer and instant.
    pub(crate) plans: RwLock<HashMap<(Contents, u8), Id>>,
    /// Results of reads, by merged answer and cached fence.
    pub(crate) reads: RwLock<HashMap<(Contents, Option<Timestamp>), Seen>>,
}

/// An event of a life in a state of its mutator.
type Step = (usize, Id, Event);

/// Maximum number of different mutations in a run.
const MUTATIONS_MAX: usize = 4096;

impl Mutation {
    /// The timestamp of all its cells.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        match self {
            Mutation::Shard { timestamp, .. } | Mutation::Fold { timestamp, .. } => *timestamp,
        }
    }
}

/// A counter's total.
#[must_use]
pub fn total(state: &State) -> i128 {
    match state {
        State::Counter(counter) => counter.total(),
        other => panic!("{other:?} is not a counter"),
    }
}

impl Tables {
    /// Tables without entries.
    #[must_use]
    pub fn new(scope: Scope, sabotage: Option<Sabotage>) -> Tables {
        let name = |text| Name::new(text).expect("a name");
        Tables {
            scope,
            sabotage,
            constants: scope::constants(),
            key: Key { kind: Kind::Counter, group: name("group"), name: name("name") },
            mutations: (0..MUTATIONS_MAX).map(|_| OnceLock::new()).collect(),
            numbers: RwLock::default(),
            lives: Mutex::default(),
            histories: Mutex::default(),
            steps: RwLock::default(),
            plans: RwLock::default(),
            reads: RwLock::default(),
        }
    }

    /// The op of a life: its own digit of base 8, or that of the one op with an id.
    #[must_use]
    pub fn digit(&self, life: usize, op: usize) -> i64 {
        let life = if self.scope.has_id { 0 } else { life };
        1 << (3 * (life * OPS_MAX + op))
    }

    fn change(&self, life: usize, op: usize) -> Change {
        let ops = vec![Op::Counter(CounterOp::Add { by: self.digit(life, op) })];
        if !self.scope.has_id {
            return ops.into();
        }
        let id = OpId { id: [7; 16], index: 0 };
        Change::Named(IdOp::new(self.key.kind, id, 0, &ops).expect("an op"))
    }

    /// The rows as code sees them that counts every copy of an id: as if each row had ids of its own.
    pub fn with_own_ids(&self, rows: &mut [Row]) {
        for row in rows {
            let seal = KeySeal::of(&self.key).row(row.expires_at, row.mutator_id);
            if let Ok(Shard::Pack(mut pack)) =
                envelope::decode_shard(seal, self.key.kind, &row.state)
            {
                let own = row.mutator_id.as_uuid().into_bytes();
                pack.entries.iter_mut().for_each(|entry| entry.id.id = own);
                let pack = Pack::resumed(self.key.kind, &pack);
                row.state = envelope::encode_pack(seal, &pack, 1);
            }
        }
    }

    /// The mutation with this number.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn mutation(&self, id: Id) -> &Mutation {
        self.mutations[usize::from(id) - 1].get().expect("a number that was given")
    }

    /// The number of a mutation.
    ///
    /// # Panics
    /// If there are too many.
    pub fn intern(&self, mutation: Mutation) -> Id {
        if let Some(id) = self.numbers.read().expect("no panic").get(&mutation) {
            return *id;
        }
        let mut numbers = self.numbers.write().expect("no panic");
        let next = Id::try_from(numbers.len()).expect("few") + 1;
        *numbers.entry(mutation.clone()).or_insert_with(|| {
            self.mutations[usize::from(next) - 1].set(mutation).expect("a new number");
            next
        })
    }

    /// A fold's fence.
    ///
    /// # Panics
    /// If it is no fold.
    #[must_use]
    pub fn fence(&self, fold: Id) -> Timestamp {
        match self.mutation(fold) {
            Mutation::Fold { fence, .. } => *fence,
            Mutation::Shard { .. } => panic!("{fold} is not a fold"),
        }
    }

    /// The bytes that a mutation writes into a state cell.
    #[must_use]
    pub fn bytes(&self, id: Id) -> &[u8] {
        match self.mutation(id) {
            Mutation::Shard { state, .. } => state,
            Mutation::Fold { tally, .. } => tally,
        }
    }

    /// The bytes that a fold would write into two cells: the body and the checksum.
    #[must_use]
    pub fn halves(&self, fold: Id) -> (&[u8], &[u8]) {
        let bytes = self.bytes(fold);
        bytes.split_at(bytes.len() - 4)
    }

    /// The tally's bytes, given by the folds that its halves come from.
    #[must_use]
    pub fn tally_bytes(&self, head: Id, tail: Id) -> Vec<u8> {
        [self.halves(head).0, self.halves(tail).1].concat()
    }

    /// The row after a shard's write; `None` for [`NONE`].
    #[must_use]
    pub fn row(&self, id: Id) -> Option<Row> {
        if id == NONE {
            return None;
        }
        match self.mutation(id) {
            Mutation::Shard { expires_at, mutator_id, state, .. } => {
                Some(Row { expires_at: *expires_at, mutator_id: *mutator_id, state: state.clone() })
            }
            Mutation::Fold { .. } => None,
        }
    }

    /// Applies an event to a mutator: the shipped one, rebuilt by replaying its first history.
    ///
    /// # Panics
    /// If the event can't happen, such as a second write in flight.
    pub fn step(&self, life: usize, from: Id, event: Event) -> (Id, Became) {
        if let Some(known) = self.steps.read().expect("no panic").get(&(life, from, event)) {
            return *known;
        }
        let mut history =
            self.histories.lock().expect("no panic").get(&from).cloned().unwrap_or_default();
        let mut mutator: Option<Mutator> = None;
        for past in &history {
            self.play(&mut mutator, life, *past);
        }
        let became = self.play(&mut mutator, life, event);
        history.push(event);
        let shown = format!("{life} {mutator:?}");
        let mut lives = self.lives.lock().expect("no panic");
        let next = Id::try_from(lives.len()).expect("few") + 1;
        let to = *lives.entry(shown).or_insert(next);
        self.histories.lock().expect("no panic").entry(to).or_insert(history);
        self.steps.write().expect("no panic").insert((life, from, event), (to, became));
        (to, became)
    }

    fn play(&self, mutator: &mut Option<Mutator>, life: usize, event: Event) -> Became {
        let mut now = self.scope.pod_now(event.at);
        let mutator = mutator.get_or_insert_with(|| {
            // The mutator id of a tally is zero.
            let number = if self.sabotage == Some(Sabotage::IdReused) { 0 } else { life };
            let id = MutatorId::new(Uuid::from_u128(1 + number as u128));
            let (key, constants) = (self.key.clone(), &self.constants);
            match self.scope.has_id {
                false => Mutator::born(key, id, None, now, constants),
                true => {
                    let expires_at = self.scope.expires_at(event.at, constants);
                    Mutator::born_until(key, id, None, expires_at, now, constants)
                }
            }
        });
        let outcome = match event.what {
            What::Op(op) => {
                let change = self.change(life, usize::from(op));
                let accepted = mutator.accept(change, Durability::Stored, now);
                return if accepted.is_ok() { Became::Queued } else { Became::Nothing };
            }
            What::Begin => return self.begin(mutator, life, event.at),
            What::Acked => {
                if self.sabotage == Some(Sabotage::NoCheckAfterAck) {
                    now = self.scope.pod_now(0);
                }
                Ok(())
            }
            What::Unknown if self.sabotage != Some(Sabotage::Rollback) => {
                Err(WriteError::Unknown(String::new()))
            }
            What::Refused | What::Unknown => Err(WriteError::Refused(String::new())),
        };
        match mutator.finish_write(outcome, now) {
            Finished::Acked => Became::Acked,
            Finished::TooLate => Became::TooLate,
            Finished::Refused { .. } => Became::Refused,
            Finished::Unknown(_) => Became::Unknown,
        }
    }

    fn begin(&self, mutator: &mut Mutator, life: usize, at: u8) -> Became {
        let write = match mutator.begin_write(self.scope.pod_now(at)) {
            Begin::Idle => return Became::Nothing,
            Begin::Dead => {
                mutator.end();
                return Became::Dead;
            }
            Begin::Write(write) => write,
        };
        let shared = self.sabotage == Some(Sabotage::IdReused);
        let mut timestamp = write.timestamp();
        if self.sabotage == Some(Sabotage::FallingTimestamps) {
            let start = self.scope.pod_now(0).wall;
            timestamp = start.shifted(start.as_micros() - timestamp.as_micros());
        }
        Became::Write(self.intern(Mutation::Shard {
            place: if shared { 0 } else { u8::try_from(life).expect("few") },
            expires_at: write.expires_at(),
            mutator_id: write.mutator_id(),
            timestamp,
            state: write.state().to_vec(),
        }))
    }

    /// A tally's fence and total.
    #[must_use]
    pub fn tally(&self, fold: Id) -> (Timestamp, i128) {
        let seal = KeySeal::of(&self.key);
        let decoded = envelope::decode_tally(seal, Kind::Counter, self.bytes(fold));
        let (fence, state) = decoded.expect("what a fold wrote");
        (fence, total(&state))
    }
}
