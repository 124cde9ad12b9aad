//! The events of the world: its transitions, decided by the shipped core.

use std::time::Duration;

use orderfree_core::crdt::envelope::{self, KeySeal};
use orderfree_core::protocol::fold::{self, Plan};
use orderfree_core::protocol::{FullRead, Row, Slice};
use stateright::{Model, Property};

use crate::judge;
use crate::replica::{Replica, merged};
use crate::sabotage::Sabotage;
use crate::scope::{INSTANTS, REPLICAS, Scope};
use crate::tables::{Became, Event, Id, Mutation, NONE, Tables, What};
use crate::world::{Life, OpState, Planned, World};

/// More rows than any world has.
pub(crate) const LIMIT: usize = 100;

/// One event. Replicas, lives and folds are given by their position in the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Time moves to the next instant.
    Tick,
    /// A client asks a mutator for its next op.
    Ask(usize),
    /// A mutator sends a write.
    Write(usize),
    /// A mutator's write is refused, because too few nodes are up.
    WriteRefused(usize),
    /// A mutator learns that a quorum has its write.
    Acked(usize),
    /// A mutator's write ends without an answer.
    Unknown(usize),
    /// A message reaches a replica.
    Deliver(usize, Id),
    /// A folder, whose clock shows instant `by`, reads the key and plans. If folds read from fewer than all replicas,
    /// the replica `without` does not answer.
    Plan {
        /// The instant that the folder's clock shows: now or earlier.
        by: u8,
        /// The replica that does not answer.
        without: Option<usize>,
    },
    /// A folder sends its batch.
    Send(usize),
    /// A batch is sent again.
    SendAgain(usize),
    /// A replica purges its deletion.
    Purge(usize),
    /// A read repair from one replica to another, by a query that omits the tally. Only if that rule is broken.
    Repair(usize, usize),
}

/// The world of one scope, with at most one rule broken.
pub struct Small {
    /// The bounds of the world.
    pub tables: Tables,
}

impl Small {
    /// A world in which the rule `sabotage`, if any, is broken.
    #[must_use]
    pub fn new(scope: Scope, sabotage: Option<Sabotage>) -> Small {
        Small { tables: Tables::new(scope, sabotage) }
    }

    fn scope(&self) -> &Scope {
        &self.tables.scope
    }

    fn is(&self, sabotage: Sabotage) -> bool {
        self.tables.sabotage == Some(sabotage)
    }

    /// Applies an event to a mutator and informs its clients.
    fn drive(&self, world: &mut World, at: usize, what: What) -> Became {
        let event = Event { at: world.instant, what };
        let life = &mut world.lives[at];
        let (mutator, became) = self.tables.step(at, life.mutator, event);
        if became == Became::Nothing {
            return became;
        }
        life.mutator = mutator;
        let mut turn = |from: &[OpState], to: OpState| {
            let ops = life.ops.iter_mut().filter(|op| from.contains(op));
            ops.for_each(|op| *op = to);
        };
        match became {
            Became::Nothing | Became::Queued => {}
            Became::Write(_) => turn(&[OpState::Waiting], OpState::Flying),
            Became::Dead => turn(&[OpState::Waiting], OpState::Refused),
            Became::Acked => turn(&[OpState::Flying, OpState::Unknown], OpState::Acked),
            Became::TooLate => turn(&[OpState::Flying, OpState::Unknown], OpState::TooLate),
            Became::Refused => turn(&[OpState::Flying], OpState::Refused),
            Became::Unknown => turn(&[OpState::Flying], OpState::Unknown),
        }
        became
    }

    fn ask(&self, world: &mut World, at: usize) -> Option<()> {
        let scope = self.scope().lives[at];
        let op = world.lives[at].ops[..scope.ops].iter().position(|op| *op == OpState::Unasked)?;
        let is_born = world.lives[at].born != 0;
        if !is_born && !(scope.births.0..=scope.births.1).contains(&world.instant) {
            return None;
        }
        let became = self.drive(world, at, What::Op(u8::try_from(op).expect("few")));
        if became != Became::Queued {
            return None;
        }
        let life = &mut world.lives[at];
        life.ops[op] = OpState::Waiting;
        if !is_born {
            life.born = 1 + world.instant;
        }
        Some(())
    }

    fn write(&self, world: &mut World, at: usize, is_refused: bool) -> Option<()> {
        if world.lives[at].writes == self.scope().lives[at].writes {
            return None;
        }
        match self.drive(world, at, What::Begin) {
            Became::Write(id) => {
                world.lives[at].writes += 1;
                if is_refused {
                    world.refusals -= 1;
                    self.drive(world, at, What::Refused);
                    return Some(());
                }
                let life = &mut world.lives[at];
                (life.flight, life.reached) = (id, 0);
                world.replicas.iter_mut().for_each(|replica| replica.send(id));
                Some(())
            }
            Became::Dead => {
                world.lives[at].is_over = true;
                Some(())
            }
            _ => None,
        }
    }

    fn finish(&self, world: &mut World, at: usize, what: What) {
        self.drive(world, at, what);
        (world.lives[at].flight, world.lives[at].reached) = (NONE, 0);
    }

    fn deliver(&self, world: &mut World, at: usize, id: Id) {
        let is_late = world.replicas[at].pending().any(|pending| pending == (id, true));
        world.late -= u8::from(is_late);
        world.replicas[at].deliver(id, &self.tables);
        if let Some(life) = world.lives.iter_mut().find(|life| life.flight == id) {
            life.reached += 1;
        }
        if let Some(fold) = world.folds.iter_mut().find(|fold| fold.id == id) {
            fold.landed = true;
        }
    }

    fn plan(&self, world: &mut World, by: u8, without: Option<usize>) -> Option<()> {
        let answering = (0..REPLICAS).filter(|at| Some(*at) != without);
        let contents = merged(answering.map(|at| &world.replicas[at].holds), &self.tables);
        let known = self.tables.plans.read().expect("no panic").get(&(contents, by)).copied();
        let id = known.unwrap_or_else(|| {
            let id = self.fold(contents.query(None, &self.tables), by).unwrap_or(NONE);
            self.tables.plans.write().expect("no panic").insert((contents, by), id);
            id
        });
        if id == NONE || world.planned().any(|planned| planned.id == id) {
            return None;
        }
        let free = world.folds.iter_mut().find(|planned| planned.id == NONE)?;
        *free = Planned { id, sent: false, landed: false };
        Some(())
    }

    /// Plans a fold of these rows with the shipped rule.
    fn fold(&self, mut rows: Vec<Row>, by: u8) -> Option<Id> {
        let constants = &self.tables.constants;
        let mut now = self.scope().folder_now(by);
        if self.is(Sabotage::ShortCutoff) {
            // A shorter cutoff has the same effect as a later time.
            let short = 2 * constants.clock_offset_max() - Duration::from_millis(1);
            now = now.plus(constants.cutoff() - short);
        }
        if self.is(Sabotage::FoldSkipsRow) && rows.len() > 1 {
            rows.pop();
        }
        if self.is(Sabotage::FoldsCountCopies) {
            self.tables.with_own_ids(&mut rows);
        }
        let slice = Slice::new(rows, None, LIMIT).whole().expect("few rows");
        let read = FullRead::at_fold_level(self.tables.key.clone(), slice);
        let Ok(Plan::Fold(planned)) = fold::plan(&read, now, constants) else {
            return None;
        };
        let (mut fence, mut timestamp) = (planned.fence(), planned.timestamp());
        let mut tally = planned.tally().to_vec();
        if self.is(Sabotage::OlderFence) {
            fence = now.minus(constants.cutoff());
            timestamp = fence.next();
            let seal = KeySeal::of(&self.tables.key);
            let decoded = envelope::decode_tally(seal, self.tables.key.kind, &tally);
            tally = envelope::encode_tally(seal, &decoded.expect("a tally").1, fence);
        }
        if self.is(Sabotage::LowFoldTimestamp) {
            timestamp = timestamp.minus(constants.lifetime());
        }
        Some(self.tables.intern(Mutation::Fold { fence, timestamp, tally }))
    }

    fn tick(&self, world: &mut World) {
        world.instant += 1;
        world.replicas.iter_mut().for_each(Replica::delay);
    }

    /// Drops messages that can't arrive any more, or whose arrival would change nothing.
    fn forget(&self, world: &mut World) {
        let (lives, folds) = (world.lives, world.folds);
        let is_counted = |id| {
            lives.iter().any(|life| life.flight == id)
                || folds.iter().any(|fold| fold.id == id && !fold.landed)
        };
        let (may_be_late, may_purge) = (world.late > 0, world.purges > 0);
        for replica in &mut world.replicas {
            replica.forget(|holds, id, is_late| {
                (is_late && !may_be_late)
                    || (!may_purge && !is_counted(id) && holds.outlives(id, &self.tables))
            });
        }
    }

    fn act(&self, world: &mut World, action: Action) -> Option<()> {
        match action {
            Action::Tick => self.tick(world),
            Action::Ask(at) => self.ask(world, at)?,
            Action::Write(at) => self.write(world, at, false)?,
            Action::WriteRefused(at) => self.write(world, at, true)?,
            Action::Acked(at) => self.finish(world, at, What::Acked),
            Action::Unknown(at) => self.finish(world, at, What::Unknown),
            Action::Deliver(at, id) => self.deliver(world, at, id),
            Action::Plan { by, without } => self.plan(world, by, without)?,
            Action::Send(at) | Action::SendAgain(at) => {
                world.resends -= u8::from(matches!(action, Action::SendAgain(_)));
                world.folds[at].sent = true;
                let id = world.folds[at].id;
                world.replicas.iter_mut().for_each(|replica| replica.send(id));
            }
            Action::Purge(at) => {
                world.purges -= 1;
                world.replicas[at].holds.deletion = NONE;
            }
            Action::Repair(from, to) => {
                let source = world.replicas[from].holds;
                world.replicas[to].holds.merge_all_but_tally(&source, &self.tables);
            }
        }
        Some(())
    }

    fn actions_of_life(&self, world: &World, at: usize, life: &Life, actions: &mut Vec<Action>) {
        if life.is_over {
            return;
        }
        actions.push(Action::Ask(at));
        if life.flight == NONE {
            if life.born != 0 {
                actions.push(Action::Write(at));
            }
            if life.born != 0 && world.refusals > 0 {
                actions.push(Action::WriteRefused(at));
            }
            return;
        }
        actions.push(Action::Unknown(at));
        let is_acked = u32::from(life.reached) >= self.scope().write_acks;
        if is_acked || self.is(Sabotage::AckBeforeWrite) {
            actions.push(Action::Acked(at));
        }
    }

    fn actions_of_folders(&self, world: &World, actions: &mut Vec<Action>) {
        let in_hand = world.planned().filter(|planned| !planned.sent).count();
        if world.planned().count() < self.scope().folds && in_hand < self.scope().folders {
            let read_all = self.scope().fold_reads as usize == REPLICAS;
            for by in 0..=world.instant {
                if read_all {
                    actions.push(Action::Plan { by, without: None });
                    continue;
                }
                let without = (0..REPLICAS).map(|at| Action::Plan { by, without: Some(at) });
                actions.extend(without);
            }
        }
        for (at, planned) in world.folds.iter().enumerate().filter(|(_, fold)| fold.id != NONE) {
            if !planned.sent {
                actions.push(Action::Send(at));
            } else if world.resends > 0 {
                actions.push(Action::SendAgain(at));
            }
        }
    }

    fn actions_of_replica(&self, world: &World, at: usize, actions: &mut Vec<Action>) {
        let replica = &world.replicas[at];
        if at > 0 && *replica == world.replicas[at - 1] {
            return;
        }
        for (id, is_late) in replica.pending() {
            if !is_late || world.late > 0 {
                actions.push(Action::Deliver(at, id));
            }
        }
        let may_purge = |fold| self.scope().may_purge(self.tables.fence(fold), world.instant);
        if world.purges > 0 && replica.holds.deletion != NONE && may_purge(replica.holds.deletion) {
            actions.push(Action::Purge(at));
        }
        if self.is(Sabotage::BlockingRepair) {
            let others = (0..REPLICAS).filter(|to| *to != at);
            actions.extend(others.map(|to| Action::Repair(at, to)));
        }
    }
}

impl Model for Small {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.scope())]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.instant + 1 < INSTANTS {
            actions.push(Action::Tick);
        }
        for (at, life) in world.lives.iter().enumerate().take(self.scope().lives.len()) {
            self.actions_of_life(world, at, life, actions);
        }
        self.actions_of_folders(world, actions);
        for at in 0..REPLICAS {
            self.actions_of_replica(world, at, actions);
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = *last;
        self.act(&mut world, action)?;
        for (life, scope) in world.lives.iter_mut().zip(&self.scope().lives) {
            life.settle(scope);
        }
        self.forget(&mut world);
        let world = world.canonical();
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Small>> {
        judge::properties()
    }
}
