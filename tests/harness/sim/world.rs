//! The simulated cluster: nodes, messages on their way, and the state that a schedule shares.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use orderfree_core::crdt::Kind;
use orderfree_core::crdt::envelope::{KeySeal, decode_tally, is_grave};
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::{MutatorId, Timestamp};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use tokio::task;
use uuid::Uuid;

use crate::cluster::{Address, Cell, Mutation, Replica};
use crate::coverage::{Hazard, Met};
use crate::family;
use crate::machine::{EPOCH_US, Machine, TrueTime, micros};
use crate::oracle::{Oracle, Violation};
use crate::plan::{OFFSET_MAX, Plan, skew};
use crate::sabotage::Sabotage;
use crate::weather::Weather;

/// A node and its disk.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) datacenter: usize,
    pub(crate) skew_us: i64,
    pub(crate) is_up: bool,
    /// Until when it drops writes.
    pub(crate) drops_until: Duration,
    pub(crate) disk: Replica,
    /// The data that survives if the node loses what is not synced.
    synced: Replica,
}

/// The shared state of a schedule.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) time: TrueTime,
    pub(crate) plan: Arc<Plan>,
    pub(crate) dice: StdRng,
    pub(crate) weather: Weather,
    /// All steps of the schedule are done.
    pub(crate) is_healing: bool,
    /// No more faults happen.
    pub(crate) is_healed: bool,
    pub(crate) nodes: Vec<Node>,
    pub(crate) oracle: Oracle,
    pub(crate) met: Met,
    /// What the clients sent with ids.
    pub(crate) requests: BTreeMap<(u8, usize), Request>,
    /// What clients ordered under ids, by the number of the order.
    pub(crate) orders: BTreeMap<usize, Order>,
    /// All folds that were sent.
    pub(crate) folds: Vec<Arc<Mutation>>,
    /// How long each pod stops at its next send, and how long the network holds what the pod sent before.
    pub(crate) stops_at_send: Vec<Option<(Duration, Option<Duration>)>>,
    pub(crate) trap: Option<Trap>,
    /// Until when each pod does not look at the log of resets.
    pub(crate) deaf_until: Vec<Duration>,
    /// Keys with a damaged row.
    pub(crate) damaged: Vec<bool>,
    /// For each key the last reset whose marker was sent, until a fold passes the time for which it is remembered.
    pub(crate) marked: Vec<Option<Generation>>,
    /// Keys that were forgotten, and not folded since.
    pub(crate) graves: BTreeSet<u8>,
    /// Running writes of folds, by key.
    pub(crate) folding: Vec<Within>,
    /// Group reads between their first and last chunk.
    pub(crate) group_reads: Within,
    /// Running sweeps.
    pub(crate) sweeps: Within,
    log: Option<String>,
}

/// What a client sends, the same each time.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) body: serde_json::Value,
    /// The time of its id, as soon as it has one.
    pub(crate) time: Option<Timestamp>,
}

impl Request {
    pub(crate) fn new(body: serde_json::Value, time: Option<Timestamp>) -> Request {
        Request { body, time }
    }
}

/// What a client ordered under an id.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    pub(crate) id: Uuid,
    pub(crate) time: Timestamp,
    /// Its number in the oracle.
    reset: usize,
    /// Attempts that may have an effect.
    open: usize,
    /// What it cleared, once an attempt was answered.
    cleared: Option<i128>,
}

/// Work that is running, by the machine on which it runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Within(Vec<Arc<Machine>>);

impl Within {
    pub(crate) fn enter(&mut self, machine: &Arc<Machine>) {
        // Work that was killed never leaves.
        self.0.retain(|other| !other.is_dead());
        self.0.push(Arc::clone(machine));
    }

    pub(crate) fn leave(&mut self, machine: &Arc<Machine>) {
        let at = self.0.iter().position(|other| Arc::ptr_eq(other, machine));
        self.0.swap_remove(at.expect("it entered"));
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().filter(|machine| !machine.is_dead()).count()
    }

    /// Whether some of the work is not stopped.
    pub(crate) fn is_running(&self) -> bool {
        self.0.iter().any(|machine| machine.is_running())
    }
}

/// A walk: the name of its key and its task.
pub(crate) type Walk = (u8, Option<task::Id>);

/// See [`What::ForgetFold`](crate::plan::What::ForgetFold).
#[derive(Debug)]
pub(crate) struct Trap {
    pub(crate) folder: Arc<Machine>,
    pub(crate) name: u8,
    pub(crate) nth: usize,
    /// The walk during which that happened.
    pub(crate) walk: Option<Walk>,
}

/// The fate of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It arrives, if the node is up then.
    Arrives(Duration),
    /// It is stored as a hint and delivered no earlier than this.
    Hinted(Duration),
    /// It never arrives.
    Lost,
}

/// The world, shared by everything that runs in one schedule.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<World>>);

impl Shared {
    pub(crate) fn new(plan: &Arc<Plan>, trace: bool) -> Shared {
        let node = |node: &crate::plan::NodePlan| Node {
            datacenter: node.datacenter,
            skew_us: node.skew_us,
            is_up: true,
            drops_until: Duration::ZERO,
            disk: Replica::default(),
            synced: Replica::default(),
        };
        let names = usize::from(plan.names);
        Shared(Arc::new(Mutex::new(World {
            time: TrueTime::begin(),
            plan: Arc::clone(plan),
            dice: StdRng::seed_from_u64(plan.seed ^ (plan.salt + 1).rotate_right(16)),
            weather: plan.weather,
            is_healing: false,
            is_healed: false,
            nodes: plan.nodes.iter().map(node).collect(),
            oracle: Oracle::new(plan.names, |op| plan.versions(op)),
            met: Met::default(),
            requests: BTreeMap::new(),
            orders: BTreeMap::new(),
            folds: Vec::new(),
            stops_at_send: vec![None; plan.pods.len()],
            trap: None,
            deaf_until: vec![Duration::ZERO; plan.pods.len()],
            damaged: vec![false; names],
            marked: vec![None; names],
            graves: BTreeSet::new(),
            folding: vec![Within::default(); names],
            group_reads: Within::default(),
            sweeps: Within::default(),
            log: trace.then(String::new),
        })))
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut World) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn met(&self, hazard: Hazard) {
        self.with(|world| world.met(hazard));
    }

    pub(crate) fn log(&self, line: impl FnOnce() -> String) {
        self.with(|world| world.log(line));
    }
}

impl World {
    /// Records a hazard, unless all faults have ended.
    pub(crate) fn met(&mut self, hazard: Hazard) {
        if !self.is_healing {
            self.met.note(hazard);
        }
    }

    /// Gives a request the time of its id when it is sent first. The client's clock may be wrong, too.
    pub(crate) fn remember(&mut self, name: u8, op: usize, mut request: Request) -> Request {
        let most = OFFSET_MAX * if self.dice.random_bool(0.9) { 1 } else { 5 };
        let now = Timestamp::from_micros(self.time.now_us() + skew(&mut self.dice, most));
        let made = request.time.unwrap_or(now);
        let first = self.requests.entry((name, op)).or_insert_with(|| {
            request.time = Some(made);
            request.clone()
        });
        Request { time: first.time, ..request }
    }

    /// An order is sent, for the first time or again.
    pub(crate) fn order(&mut self, number: usize, name: u8) -> Order {
        let (id, skew_us) = (self.dice.random(), skew(&mut self.dice, OFFSET_MAX));
        let time = Timestamp::from_micros(self.time.now_us() + skew_us);
        let oracle = &mut self.oracle;
        let order = self.orders.entry(number).or_insert_with(|| {
            let (id, reset) = (Uuid::from_u128(id), oracle.reset_began(name));
            Order { id, time, reset, open: 0, cleared: None }
        });
        order.open += 1;
        oracle.reset_goes_on(name, order.reset);
        *order
    }

    /// An attempt of an order has certainly changed nothing.
    pub(crate) fn order_refused(&mut self, number: usize, name: u8) {
        let order = self.orders.get_mut(&number).expect("it was sent");
        order.open -= 1;
        if order.open == 0 && order.cleared.is_none() {
            self.oracle.reset_failed(name, order.reset);
        }
    }

    /// An attempt of an order was answered with what the reset cleared.
    pub(crate) fn order_done(&mut self, number: usize, name: u8, cleared: i128) {
        let order = self.orders.get_mut(&number).expect("it was sent");
        match order.cleared.replace(cleared) {
            None => self.oracle.reset_done(name, order.reset, cleared),
            Some(before) if before == cleared => {}
            Some(_) => self.oracle.report(Violation::TwoAnswers { name }),
        }
    }

    /// Writes a line of the timeline, if it was requested.
    pub(crate) fn log(&mut self, line: impl FnOnce() -> String) {
        let at = self.time.elapsed();
        if let Some(log) = &mut self.log {
            writeln!(log, "{:>9.3} s  {}", at.as_secs_f64(), line()).expect("memory");
        }
    }

    pub(crate) fn take_log(&mut self) -> String {
        self.log.take().unwrap_or_default()
    }

    pub(crate) fn is(&self, sabotage: Sabotage) -> bool {
        self.plan.sabotage == Some(sabotage)
    }

    /// The nodes that can answer at a level, and how many of them must. For `each_quorum` every data centre is a part of
    /// its own. Otherwise the only part has the nodes of one data centre, or all nodes.
    pub(crate) fn parts(&self, level: Level, datacenter: usize) -> Vec<(Vec<usize>, usize)> {
        let of = |is_in: &dyn Fn(usize) -> bool| {
            let all = self.nodes.iter().enumerate();
            let reach: Vec<usize> =
                all.filter(|(_, node)| is_in(node.datacenter)).map(|(at, _)| at).collect();
            let quota = match level {
                Level::One | Level::LocalOne => 1,
                Level::LocalQuorum | Level::Quorum | Level::EachQuorum => reach.len() / 2 + 1,
                Level::All => reach.len(),
            };
            (reach, quota)
        };
        match level {
            Level::One | Level::Quorum | Level::All => vec![of(&|_| true)],
            Level::LocalOne | Level::LocalQuorum => vec![of(&|home| home == datacenter)],
            Level::EachQuorum => {
                let last = self.nodes.iter().map(|node| node.datacenter).max().unwrap_or(0);
                (0..=last).map(|own| of(&|home| home == own)).collect()
            }
        }
    }

    /// Whether a message from a data centre can come to a node.
    pub(crate) fn reaches(&self, datacenter: usize, node: usize) -> bool {
        let node = &self.nodes[node];
        let is_cut = self.plan.cut.is_some_and(|(from, to)| {
            !self.is_healing && (from..to).contains(&self.time.elapsed())
        });
        node.is_up && !(is_cut && node.datacenter != datacenter)
    }

    /// The fate of a message from a data centre to a node.
    pub(crate) fn fate(&mut self, datacenter: usize, node: usize) -> Fate {
        let weather = self.weather;
        if self.nodes[node].is_up && !self.reaches(datacenter, node) {
            self.met(Hazard::CutOff);
        }
        let (is_up, roll) = (self.reaches(datacenter, node), self.dice.random::<f64>());
        let drops = self.time.elapsed() < self.nodes[node].drops_until;
        if !is_up || drops || roll < weather.hinted {
            return self.hint();
        }
        if roll < weather.hinted + weather.lost {
            return Fate::Lost;
        }
        Fate::Arrives(self.travel())
    }

    /// The fate of a message that was not delivered.
    pub(crate) fn hint(&mut self) -> Fate {
        if self.dice.random_bool(self.weather.hint_lost) {
            return Fate::Lost;
        }
        let most = self.plan.gc_grace;
        let share: f64 = self.dice.random();
        // Usually soon, sometimes as late as a hint may come.
        Fate::Hinted(most.mul_f64(share * share))
    }

    /// The travel time of a message or an answer.
    pub(crate) fn travel(&mut self) -> Duration {
        if self.dice.random_bool(self.weather.slow) {
            Duration::from_millis(self.dice.random_range(20..3_000))
        } else {
            Duration::from_micros(self.dice.random_range(200..4_000))
        }
    }

    /// The replicas that a read asks, with the delay of each answer; `None` if too few are up.
    pub(crate) fn asked(
        &mut self,
        level: Level,
        datacenter: usize,
    ) -> Option<Vec<(Duration, usize)>> {
        let mut asked = Vec::new();
        for (mut reach, quota) in self.parts(level, datacenter) {
            reach.retain(|&node| self.reaches(datacenter, node));
            if reach.len() < quota {
                return None;
            }
            reach.shuffle(&mut self.dice);
            reach.truncate(quota);
            asked.extend(reach.into_iter().map(|node| (self.travel(), node)));
        }
        asked.sort_unstable();
        Some(asked)
    }

    /// A mutation arrives, directly or as a hint. Returns false if the node is down.
    pub(crate) fn arrive(&mut self, node: usize, mutation: &Mutation, is_hint: bool) -> bool {
        if !self.nodes[node].is_up {
            return false;
        }
        self.notice(node, mutation);
        let split = self.is(Sabotage::SplitTally);
        let applied = self.nodes[node].disk.apply(mutation, split);
        let is_fold = !mutation.tombstones.is_empty();
        if applied.shadowed && !is_fold {
            self.met(Hazard::LateWrite);
            if is_hint {
                self.met(Hazard::LateHint);
            }
        }
        if is_fold && self.group_reads.is_running() {
            self.met(Hazard::FoldInsideGroupRead);
        }
        self.log(|| {
            let what = if is_fold { "fold" } else { "write" };
            let fate = match (applied.shadowed, applied.older) {
                (true, _) => ", shadowed",
                (false, true) => ", older than what is there",
                _ => "",
            };
            format!("  node {node} takes {what} {}{fate}", describe(mutation))
        });
        true
    }

    /// Whether a node has a newer cell.
    pub(crate) fn is_outdated(&self, address: &Address, cell: &Cell) -> bool {
        let newer = |node: &Node| {
            node.disk.rows.get(address).is_some_and(|old| old.timestamp > cell.timestamp)
        };
        self.nodes.iter().any(newer)
    }

    /// Records the hazards that an arrival shows.
    fn notice(&mut self, node: usize, mutation: &Mutation) {
        for (address, cell) in mutation.cells.iter().filter(|(address, _)| address.is_tally()) {
            let Some(old) = self.nodes[node].disk.rows.get(address) else { continue };
            let (is_stale, is_tie) =
                (old.timestamp > cell.timestamp, old.timestamp == cell.timestamp);
            let differs = old.state != cell.state;
            let fence = |cell: &Cell| self.fence_of(address, &cell.state);
            let is_above_grave = is_grave(&old.state) && fence(cell) > fence(old);
            if is_stale {
                self.met(Hazard::StaleFold);
            }
            if is_stale && is_above_grave {
                self.met(Hazard::StaleFoldOnGrave);
            }
            if is_tie && differs {
                self.met(Hazard::SameFence);
            }
        }
    }

    fn fence_of(&self, address: &Address, state: &[u8]) -> Option<Timestamp> {
        let key = KeySeal::of(&self.plan.family.key(address.name));
        decode_tally(key, self.plan.family.kind(), state).ok().map(|(fence, _)| fence)
    }

    pub(crate) fn node_now(&self, node: usize) -> Timestamp {
        Timestamp::from_micros(self.time.now_us() + self.nodes[node].skew_us)
    }

    pub(crate) fn purge(&mut self, node: usize) {
        let before_us = self.time.now_us() - micros(self.plan.gc_grace);
        if self.nodes[node].disk.purge(before_us) {
            self.met(Hazard::Purged);
            self.log(|| format!("node {node} purges deletions"));
        }
    }

    /// The first node writes everything to disk, or loses what it had not written.
    pub(crate) fn sync(&mut self) {
        self.nodes[0].synced = self.nodes[0].disk.clone();
    }

    /// A walk is about to look at a tally for the nth time.
    pub(crate) fn before_look(&mut self, walk: &Walk, nth: usize) {
        if self
            .trap
            .as_ref()
            .is_some_and(|trap| trap.walk.as_ref() == Some(walk) && nth >= trap.nth)
        {
            self.trap = None;
            self.forget();
        }
    }

    /// A pod has looked at a tally for the first time.
    pub(crate) fn after_first_look(&mut self, walk: &Walk, machine: &Arc<Machine>) {
        let Some(trap) = &mut self.trap else { return };
        let is_other = trap.name == walk.0 && !Arc::ptr_eq(&trap.folder, machine);
        if trap.walk.is_none() && is_other && !trap.folder.is_running() {
            trap.walk = Some(*walk);
            trap.folder.resume(true);
        }
    }

    pub(crate) fn forget(&mut self) {
        if self.nodes[0].disk.rows != self.nodes[0].synced.rows {
            self.met(Hazard::Forgot);
        }
        self.nodes[0].disk = self.nodes[0].synced.clone();
        self.log(|| "node 0 forgets what it had not synced".into());
    }

    /// Flips one bit of a key's oldest shard on every replica that has it.
    pub(crate) fn damage(&mut self, name: u8) {
        let shards = self.nodes.iter().flat_map(|node| node.disk.rows.keys());
        let Some(address) =
            shards.filter(|address| address.name == name && !address.is_tally()).max().copied()
        else {
            return;
        };
        if self.dice.random_bool(0.5) {
            return self.misplace(address);
        }
        let bit = self.dice.random_range(0..8);
        for node in &mut self.nodes {
            if let Some(cell) = node.disk.rows.get_mut(&address) {
                let mut state = cell.state.to_vec();
                let middle = state.len() / 2;
                state[middle] ^= 1 << bit;
                cell.state = state.into();
            }
        }
        self.damaged[usize::from(name)] = true;
        self.met(Hazard::Damaged);
        self.log(|| format!("row {} is damaged", place(&address)));
    }
}

impl World {
    /// Flips one bit of a row's mutator id on every replica that has it.
    fn misplace(&mut self, address: Address) {
        let bit = self.dice.random_range(0..128);
        let id = MutatorId::new(Uuid::from_u128(address.id.as_uuid().as_u128() ^ (1 << bit)));
        for node in &mut self.nodes {
            if let Some(cell) = node.disk.rows.remove(&address) {
                node.disk.rows.insert(Address { id, ..address }, cell);
            }
        }
        self.damaged[usize::from(address.name)] = true;
        self.met(Hazard::Misplaced);
        self.log(|| format!("row {} is misplaced", place(&address)));
    }
}

/// Seconds since the start of the simulation, as text.
pub(crate) fn seconds(time: Timestamp) -> String {
    #[allow(clippy::cast_precision_loss, reason = "shown to milliseconds")]
    let since = (time.as_micros() - EPOCH_US) as f64 / 1e6;
    format!("{since:.3}")
}

/// A row's position as text.
pub(crate) fn place(address: &Address) -> String {
    if address.is_tally() {
        return format!("{}/tally", address.name);
    }
    let id = &address.id.to_string()[..4];
    format!("{}/{}/{id}", address.name, seconds(address.expires_at.0))
}

/// A mutation as text.
fn describe(mutation: &Mutation) -> String {
    let cell = |(address, cell): &(Address, Cell)| {
        let tally = |kind: &Kind| {
            let key = KeySeal::of(&family::key_of(*kind, address.name));
            decode_tally(key, *kind, &cell.state).ok()
        };
        let fence = Kind::ALL.iter().find_map(tally);
        let fence = fence.map(|(fence, _)| format!(" fence {}", seconds(fence)));
        format!("{} at {}{}", place(address), seconds(cell.timestamp), fence.unwrap_or_default())
    };
    mutation.cells.iter().map(cell).collect::<Vec<_>>().join(", ")
}
