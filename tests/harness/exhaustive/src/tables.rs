//! Everything that a world may hold, each under a small number: mutations, and the states of the
//! shipped [`Mutator`].
//!
//! A mutator is known by what its `Debug` shows, which is every private field: two histories that
//! lead to the same mutator are one. To go on from it, its first history is played again.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, RwLock};

use orderfree_core::crdt::envelope::{self, KeySeal};
use orderfree_core::crdt::{CounterOp, Kind, Op, State};
use orderfree_core::protocol::{
    Begin, Constants, Durability, Finished, Key, Mutator, MutatorId, Name, Row, Timestamp,
    WriteOutcome,
};
use uuid::Uuid;

use crate::judge::Seen;
use crate::replica::Contents;
use crate::sabotage::Sabotage;
use crate::scope::{self, OPS_MAX, Scope};

/// The number of a mutation or of a mutator's state.
pub type Id = u16;

/// No mutation; or a mutator that is not born.
pub const NONE: Id = 0;

/// What is sent to replicas.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// A write of a shard's row.
    Shard {
        /// The row's place in [`Replica::shards`](crate::replica::Replica).
        place: u8,
        /// The row's expiry.
        expires_at: Timestamp,
        /// The row's mutator.
        mutator_id: MutatorId,
        /// The write's timestamp.
        timestamp: Timestamp,
        /// The envelope.
        state: Vec<u8>,
    },
    /// A fold's batch: the tally, and the deletion up to its fence.
    Fold {
        /// The fence.
        fence: Timestamp,
        /// The batch's timestamp.
        timestamp: Timestamp,
        /// The envelope.
        tally: Vec<u8>,
    },
}

/// Something that happens to a mutator, and at which instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event {
    /// The instant.
    pub at: u8,
    /// What happens.
    pub what: What,
}

/// Something that happens to a mutator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum What {
    /// It is given its op of this number; with the first one it is born.
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

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Became {
    /// The mutator takes no more ops, or has nothing to write.
    Nothing,
    /// The op waits.
    Queued,
    /// This is to be sent.
    Write(Id),
    /// The lease is over: what waits is refused.
    Dead,
    /// All that was sent is acked.
    Acked,
    /// The acknowledgement came too late: all that was sent stays unknown.
    TooLate,
    /// What went with this write is refused.
    Refused,
    /// All that was sent is unknown.
    Unknown,
}

/// See the [module documentation](self).
pub struct Tables {
    /// The scope.
    pub scope: Scope,
    /// The rule that is broken.
    pub sabotage: Option<Sabotage>,
    /// The protocol's constants.
    pub constants: Constants,
    /// The key.
    pub key: Key,
    /// By number less one: found without a lock, as that happens all the time.
    mutations: Vec<OnceLock<Mutation>>,
    numbers: RwLock<HashMap<Mutation, Id>>,
    lives: Mutex<HashMap<String, Id>>,
    histories: Mutex<HashMap<Id, Vec<Event>>>,
    steps: RwLock<HashMap<Step, (Id, Became)>>,
    /// What was planned for a merged answer by an instant.
    pub(crate) plans: RwLock<HashMap<(Contents, u8), Id>>,
    /// What was read from a merged answer, behind a cached fence.
    pub(crate) reads: RwLock<HashMap<(Contents, Option<Timestamp>), Seen>>,
}

/// An event of a life, in a state of its mutator.
type Step = (usize, Id, Event);

/// Most different mutations of a run.
const MUTATIONS_MAX: usize = 4096;

impl Mutation {
    /// The timestamp of every cell of it.
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
        other => panic!("{other:?} is no counter"),
    }
}

/// The op of a life: a digit of base 8 that no other op has.
#[must_use]
pub fn digit(life: usize, op: usize) -> i64 {
    1 << (3 * (life * OPS_MAX + op))
}

impl Tables {
    /// Nothing yet.
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

    /// The mutation of a number.
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
            Mutation::Shard { .. } => panic!("{fold} is no fold"),
        }
    }

    /// What a mutation writes into a state cell.
    #[must_use]
    pub fn bytes(&self, id: Id) -> &[u8] {
        match self.mutation(id) {
            Mutation::Shard { state, .. } => state,
            Mutation::Fold { tally, .. } => tally,
        }
    }

    /// What a fold would write into two cells: the body, and the checksum.
    #[must_use]
    pub fn halves(&self, fold: Id) -> (&[u8], &[u8]) {
        let bytes = self.bytes(fold);
        bytes.split_at(bytes.len() - 4)
    }

    /// The tally's bytes, by the folds that its halves come from.
    #[must_use]
    pub fn tally_bytes(&self, head: Id, tail: Id) -> Vec<u8> {
        [self.halves(head).0, self.halves(tail).1].concat()
    }

    /// The row that a shard's write leaves; none of [`NONE`].
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

    /// Drives a mutator on: the real one, rebuilt from its first history.
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
            // The tally's id is zero.
            let number = if self.sabotage == Some(Sabotage::IdReused) { 0 } else { life };
            let id = MutatorId::new(Uuid::from_u128(1 + number as u128));
            Mutator::born(self.key.clone(), id, None, now, &self.constants)
        });
        let outcome = match event.what {
            What::Op(op) => {
                let by = digit(life, usize::from(op));
                let ops = vec![Op::Counter(CounterOp::Add { by })];
                let accepted = mutator.accept(ops, Durability::Stored, now);
                return if accepted.is_ok() { Became::Queued } else { Became::Nothing };
            }
            What::Begin => return self.begin(mutator, life, event.at),
            What::Acked => {
                if self.sabotage == Some(Sabotage::NoCheckAfterAck) {
                    now = self.scope.pod_now(0);
                }
                WriteOutcome::Acked
            }
            What::Unknown if self.sabotage != Some(Sabotage::Rollback) => {
                WriteOutcome::Unknown(String::new())
            }
            What::Refused | What::Unknown => WriteOutcome::Refused(String::new()),
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
                mutator.bury();
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
