//! Runs one schedule: pods of shipped code, clients and faults. Then ends all faults, folds everything and reads again.

use std::sync::Arc;
use std::time::Duration;

use orderfree::engine::metrics::ReadFrom;
use orderfree::engine::resetter::{
    IdReused, Logged, Order, Ordered, Progress, ResetFailure, Resetter,
};
use orderfree::engine::service::{GroupQuery, ReservedValue};
use orderfree::engine::write::{self, Bounds, Refused, UpdateError};
use orderfree::pod::node::{Node, Parts};
use orderfree::policy::{Policies, Policy};
use orderfree::runtime::clock::Clock;
use orderfree::runtime::random::Random;
use orderfree::store::{ResetLog, Shards};
use orderfree_core::crdt::{Op, OpError, State};
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::op_id::{ClientId, NamedOp, Window};
use orderfree_core::protocol::reset::ResetError;
use orderfree_core::protocol::{
    Begin, Change, Durability, Finished, Key, Mutator, MutatorId, Now, Timestamp,
};
use rand::Rng;
use tokio::runtime::Builder;
use tokio::time::sleep;
use uuid::Uuid;

use crate::cluster::{Address, Piece, Range};
use crate::coverage::{Hazard, Met};
use crate::family::Family;
use crate::machine::Machine;
use crate::network;
use crate::oracle::{Stage as OpStage, Violation};
use crate::panics::watched;
use crate::plan::{Plan, Step, What};
use crate::sabotage::Sabotage;
use crate::store::{Alias, SimStore, name, stop};
use crate::weather::Weather;
use crate::world::{Request, Shared, Trap, World};

/// The result of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) violation: Option<Violation>,
    pub(crate) met: Met,
    /// The timeline, if it was requested.
    pub(crate) timeline: String,
}

/// A running pod.
#[derive(Clone)]
struct Pod {
    node: Arc<Node>,
    store: Arc<SimStore>,
    machine: Arc<Machine>,
    datacenter: usize,
    number: usize,
}

/// Runs a schedule from start to end, always in the same way.
pub(crate) fn play(plan: &Plan, trace: bool) -> Outcome {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let plan = Arc::new(plan.clone());
    let shared = runtime.block_on(async { Shared::new(&plan, trace) });
    let mut stage = Stage { shared: shared.clone(), pods: Vec::new(), plan };
    let played = watched(|| runtime.block_on(stage.play()));
    shared.with(|world| {
        if let Err(panic) = played {
            world.oracle.report(Violation::Panicked { panic });
        }
        Outcome {
            violation: world.oracle.violation.clone(),
            met: world.met,
            timeline: world.take_log(),
        }
    })
}

struct Stage {
    shared: Shared,
    plan: Arc<Plan>,
    pods: Vec<Pod>,
}

impl Stage {
    async fn play(&mut self) {
        if self.plan.nodes.iter().any(|node| node.datacenter > 0) {
            self.shared.met(Hazard::Datacenters);
        }
        for at in 0..self.plan.pods.len() {
            let skew_us = self.plan.pods[at].skew_us;
            let pod = self.boot(at, skew_us);
            self.pods.push(pod);
        }
        let steps = self.plan.steps.clone();
        for step in steps {
            let now = self.shared.with(|world| world.time.elapsed());
            sleep(step.at.saturating_sub(now)).await;
            self.perform(&step);
            if self.is_over() {
                return;
            }
        }
        self.end().await;
    }

    fn is_over(&self) -> bool {
        self.shared.with(|world| world.oracle.violation.is_some())
    }

    fn boot(&self, at: usize, skew_us: i64) -> Pod {
        let (before, seed) = self.shared.with(|world| {
            let dice = &mut world.dice;
            (Duration::from_secs(dice.random_range(100..10_000)), dice.random())
        });
        let time = self.shared.with(|world| world.time);
        let tick = self.plan.lengths.tick;
        let (machine, random) = (Machine::boot(time, before, skew_us, tick), Random::seeded(seed));
        let store = SimStore::connect(&self.shared, &self.plan, at, &machine, random.clone());
        let (constants, clock) = (self.plan.constants_of(at), Arc::clone(&machine) as _);
        let policies = match self.plan.idle_ttl(at) {
            None => Policies::default(),
            Some(ttl) => {
                let text = format!(
                    "[[lifecycle]]\ngroup_prefix = ''\nidle_ttl = '{}us'\n",
                    ttl.as_micros()
                );
                text.parse::<Policy>().expect("a policy").into()
            }
        };
        let bounds = Bounds {
            mutators_max: self.plan.mutators_max,
            resting_bytes: self.plan.resting_bytes,
            little_bytes: self.plan.little_bytes(),
            flaw: self.plan.sabotage.and_then(Sabotage::flaw),
        };
        let reset_flaw = self.plan.sabotage.and_then(Sabotage::reset_flaw);
        let parts = Parts::new(store.clone(), constants, clock);
        let node = Arc::new(Node::new(Parts { random, bounds, policies, reset_flaw, ..parts }));
        match (store.has_resets(), self.plan.background_folds) {
            (true, true) => node.start_without_looks(),
            (false, true) => node.start(),
            (_, false) => {}
        }
        if store.has_resets() {
            tokio::spawn(look(self.shared.clone(), at, Arc::clone(&machine), Arc::clone(&node)));
        }
        Pod { node, store, machine, datacenter: self.plan.pods[at].datacenter, number: at }
    }

    /// A pod that is alive, booted again if it was killed.
    fn alive(&mut self, at: usize) -> Pod {
        if self.pods[at].machine.is_dead() {
            self.shared.log(|| format!("pod {at} starts again"));
            self.pods[at] = self.boot(at, self.plan.pods[at].skew_us);
        }
        self.pods[at].clone()
    }

    fn perform(&mut self, step: &Step) {
        let shared = self.shared.clone();
        shared.log(|| format!("{:?}", step.what));
        match step.what {
            What::Update { pod, name, op, in_memory, gone_after, made } => {
                let (pod, family) = (self.alive(pod), self.plan.family);
                let update = Update { shared, pod, family, name, op, version: 0, in_memory };
                tokio::spawn(update.send(gone_after, made));
            }
            What::Repeat { pod, name, op, version } => {
                let (pod, family, in_memory) = (self.alive(pod), self.plan.family, false);
                let update = Update { shared, pod, family, name, op, version, in_memory };
                tokio::spawn(update.repeat());
            }
            What::Read { pod, name } => {
                tokio::spawn(read(shared, self.alive(pod), name, None));
            }
            What::Reset { pod, name, is_deletion } => {
                let (pod, key) = (self.alive(pod), self.plan.family.key(name));
                tokio::spawn(reset(shared, pod, key, name, is_deletion));
            }
            What::Order { pod, name, number } => {
                let (pod, key) = (self.alive(pod), self.plan.family.key(name));
                tokio::spawn(order(shared, pod, key, name, number));
            }
            What::Deaf { pod, span } => {
                shared.with(|world| world.deaf_until[pod] = step.at + span);
            }
            What::ReadGroup { pod } => {
                tokio::spawn(read_group(shared, self.alive(pod), self.plan.names));
            }
            What::Fold { pod, name } => {
                let (pod, key) = (self.alive(pod), self.plan.family.key(name));
                tokio::spawn(async move {
                    let _ = pod.machine.run(pod.node.folder().fold(&key, false)).await;
                });
            }
            What::Sweep { pod } => {
                let pod = self.alive(pod);
                tokio::spawn(async move {
                    let _ = pod.machine.run(pod.node.folder().sweep_once()).await;
                });
            }
            What::FoldAgain { nth } => fold_again(&shared, nth),
            What::Peek { name } => {
                tokio::spawn(peek(shared, name));
            }
            What::Stop { pod, span } => {
                shared.met(Hazard::PodStopped);
                stop(&shared, &self.alive(pod).machine, span);
            }
            What::StopAtSend { pod, span, held } => {
                shared.with(|world| world.stops_at_send[pod] = Some((span, held)));
            }
            What::Kill { pod } => self.kill(pod),
            What::Drain { pod } => {
                let pod = self.alive(pod);
                tokio::spawn(async move {
                    pod.machine.run(pod.node.stop(Duration::from_secs(20))).await;
                    pod.machine.kill();
                    shared.met(Hazard::Drained);
                });
            }
            What::SetClock { pod, skew_us } => {
                shared.met(Hazard::ClockSet);
                self.alive(pod).machine.set_skew(skew_us);
            }
            What::NodeDown { node, span } => {
                shared.met(Hazard::NodeDown);
                shared.with(|world| world.nodes[node].is_up = false);
                tokio::spawn(async move {
                    sleep(span).await;
                    shared.with(|world| world.nodes[node].is_up = true);
                    shared.log(|| format!("node {node} is up again"));
                });
            }
            What::Drops { node, span } => {
                let until = step.at + span;
                shared.with(|world| world.nodes[node].drops_until = until);
            }
            What::Purge { node } => shared.with(|world| world.purge(node)),
            What::Sync => shared.with(World::sync),
            What::Forget => shared.with(World::forget),
            What::ForgetFold { folder, name, nth } => {
                let folder = self.alive(folder).machine;
                shared.with(|world| world.trap = Some(Trap { folder, name, nth, walk: None }));
            }
            What::Damage { name } => shared.with(|world| world.damage(name)),
        }
    }

    fn kill(&self, at: usize) {
        let pod = &self.pods[at];
        if !pod.machine.is_dead() {
            self.shared.met(Hazard::PodKilled);
        }
        self.retire(pod);
    }

    /// Ends a pod, and collects its counters.
    fn retire(&self, pod: &Pod) {
        self.note(pod);
        pod.machine.kill();
    }

    fn note(&self, pod: &Pod) {
        let metrics = pod.node.service().metrics();
        if metrics.evictions.get() > 0 {
            self.shared.met(Hazard::Evicted);
        }
        if metrics.wakes.get() > 0 {
            self.shared.met(Hazard::Woke);
        }
        if metrics.rests.get() > 0 {
            self.shared.met(Hazard::Rested);
        }
        if metrics.reads_from(ReadFrom::Shared) > 0 {
            self.shared.met(Hazard::SharedRead);
        }
    }

    /// Ends all faults, waits until every shard is final, folds, and reads.
    async fn end(&mut self) {
        let constants = self.plan.constants;
        self.pods.iter().for_each(|pod| self.note(pod));
        self.shared.log(|| "everything heals".into());
        self.shared.with(|world| {
            world.is_healing = true;
            world.weather = Weather::CALM;
            world.nodes.iter_mut().for_each(|node| {
                (node.is_up, node.drops_until, node.skew_us) = (true, Duration::ZERO, 0);
            });
            world.stops_at_send.fill(None);
            world.deaf_until.fill(Duration::ZERO);
            world.trap = None;
        });
        self.pods.iter().for_each(|pod| pod.machine.resume(false));
        sleep(2 * constants.request_budget()).await;
        self.pods.iter().for_each(|pod| self.retire(pod));
        let margin = constants.clock_offset_max() * 3;
        sleep(self.plan.until_idle() + constants.fence_quantum() + margin).await;
        self.shared.with(|world| world.nodes.iter_mut().for_each(|node| node.is_up = true));
        // The first forgets what is idle, if any pod does.
        let first = if self.plan.idle_ttl.is_some() { self.plan.slowest() } else { 0 };
        let pods = [first, (first + 1) % self.plan.pods.len()].map(|at| self.boot(at, 0));
        self.shared.with(|world| world.is_healed = true);
        self.check(&pods).await;
        for round in 0..3 {
            for pod in &pods {
                self.fold_all(pod).await;
            }
            // A loss of unsynced data can bring a key back after it was seen absent.
            let settles = self.plan.idle_ttl.is_some() && !self.plan.forgetful;
            self.shared.with(|world| world.oracle.is_settled = settles);
            self.check(&pods).await;
            if self.is_over() {
                return;
            }
            let folds = self.shared.with(|world| world.folds.len());
            match round {
                0 => (0..folds).for_each(|nth| fold_again(&self.shared, nth)),
                1 => (0..self.plan.nodes.len())
                    .for_each(|node| self.shared.with(|world| world.purge(node))),
                _ => self.check_leftovers(),
            }
            sleep(self.plan.gc_grace + Duration::from_secs(5)).await;
        }
    }

    async fn fold_all(&self, pod: &Pod) {
        for at in 0..self.plan.names {
            let _ = pod.node.folder().fold(&self.plan.family.key(at), false).await;
        }
        sleep(Duration::from_secs(1)).await;
    }

    async fn check(&self, pods: &[Pod]) {
        let levels = [None, Some(Level::All), Some(Level::EachQuorum)];
        for (level, pod) in levels.into_iter().zip(pods.iter().cycle()) {
            for at in 0..self.plan.names {
                read(self.shared.clone(), pod.clone(), at, level).await;
            }
            read_group(self.shared.clone(), pod.clone(), self.plan.names).await;
        }
    }

    /// After folds of everything on a healthy cluster, each key has one row. Folds that read from a quorum may leave
    /// a write that was never acked and is on fewer replicas, until a fold asks one of them.
    fn check_leftovers(&self) {
        let asked = match self.plan.levels.fold {
            Level::All => self.plan.nodes.len(),
            _ => self.plan.nodes.len() / 2 + 1,
        };
        self.shared.with(|world| {
            for at in (0..self.plan.names).filter(|&at| !world.damaged[usize::from(at)]) {
                let answers = world.nodes.iter().map(|node| node.disk.answer(&Range::key(at)));
                let answers: Vec<_> = answers.collect();
                let merged = crate::cluster::merge(&answers, false);
                let is_met = |row: &Address| {
                    let has = |piece: &&Piece| piece.rows.iter().any(|(found, _)| found == row);
                    answers.iter().filter(has).count() + asked > answers.len()
                };
                let rows = merged.keys().filter(|row| !row.is_tally() && is_met(row)).count();
                if rows > 0 {
                    world.oracle.report(Violation::Leftover { name: at, rows });
                }
            }
        });
    }
}

/// One op, sent by a client that repeats it if it was refused.
struct Update {
    shared: Shared,
    pod: Pod,
    family: Family,
    name: u8,
    op: usize,
    version: usize,
    in_memory: bool,
}

impl Update {
    async fn send(self, gone_after: Option<Duration>, made: Option<Timestamp>) {
        match gone_after {
            None => self.insist(made).await,
            Some(patience) => {
                if tokio::time::timeout(patience, self.insist(made)).await.is_err() {
                    self.shared.met(Hazard::ClientGone);
                }
            }
        }
    }

    async fn insist(&self, made: Option<Timestamp>) {
        let (name, op) = (self.name, self.op);
        for attempt in 0..2 {
            if attempt > 0 {
                self.shared.met(Hazard::SentAgain);
                sleep(Duration::from_millis(300)).await;
            }
            let family = self.family;
            let target = family.key(name);
            let is_acked =
                |op| self.shared.with(|world| world.oracle.stage(name, op)) == OpStage::Acked;
            if family.follows(op).is_some_and(|removal| !is_acked(removal)) {
                return;
            }
            let seen = match family.removes(op) {
                Some(removed) => match self.look_for(&target, removed).await {
                    Some(token) => Some(token),
                    None => return,
                },
                None => None,
            };
            let request = Request::new(family.op(op, 1, seen.as_deref()), made);
            match self.attempt(request).await {
                None => return,
                Some(_) if attempt > 0 => return,
                Some(()) => {}
            }
        }
    }

    /// Sends an op with an id that was sent before once more.
    async fn repeat(self) {
        let (name, op, version) = (self.name, self.op, self.version);
        let sent = self.shared.with(|world| {
            let mut sent = world.requests.get(&(name, op)).cloned()?;
            world.met(Hazard::Repeated);
            if world.oracle.stage(name, op) == OpStage::Acked {
                world.met(Hazard::RepeatedAcked);
            }
            let versions = world.plan.versions(op);
            if world.plan.is_total(op) && world.oracle.stage(name, op) == OpStage::Acked {
                match world.oracle.is_acked(name, op, version) {
                    false => world.met(Hazard::NewerTotal),
                    true if world.oracle.is_acked(name, op, version + 1) => {
                        world.met(Hazard::OlderTotal);
                    }
                    true => {}
                }
            } else if version > 0 {
                world.met(Hazard::OtherAmount);
            }
            if versions.len() > 1 {
                sent.body = world.plan.family.op(op, versions[version].times, None);
            }
            Some(sent)
        });
        if let Some(request) = sent {
            self.attempt(request).await;
        }
    }

    /// Sends the op. Returns `Some` if it was refused.
    async fn attempt(&self, request: Request) -> Option<()> {
        let (name, op, version) = (self.name, self.op, self.version);
        let target = self.family.key(name);
        let body = request.body.clone();
        let sent_us = self.shared.with(|world| world.time.now_us());
        let id = self.shared.with(|world| {
            world.oracle.sent(name, op, version);
            world.plan.has_id(op).then(|| world.remember(name, op, request).time)?
        });
        let is = |sabotage| self.shared.with(|world| world.is(sabotage));
        let durability = if self.in_memory { Durability::Memory } else { Durability::Stored };
        let ops = vec![target.kind.parse_op(&body).expect("an op")];
        let named = id.map(|time| self.named(time)).filter(|_| !is(Sabotage::IdsIgnored));
        let update = write::Update { ops: ops.clone(), name: named };
        let update = self.pod.node.service().update(&target, update, durability);
        let mut outcome = self.pod.machine.run(update).await;
        if let (Err(UpdateError::IdExpired { .. }), Some(named), true) =
            (&outcome, &named, is(Sabotage::TakenTooLate))
        {
            outcome = self.take_too_late(&target, named, ops).await;
        }
        self.shared.log(|| format!("  update {name}/{op} version {version}: {outcome:?}"));
        match outcome {
            Ok(_) if self.in_memory => self.shared.met(Hazard::MemoryOp),
            Ok(time) => {
                let datacenter = self.pod.datacenter;
                self.shared.with(|world| {
                    world.oracle.acked(name, op, version, datacenter, time);
                    world.oracle.timed(name, op, sent_us, world.time.now_us());
                });
            }
            Err(UpdateError::Unknown(_)) => self.shared.met(Hazard::Unknown),
            Err(UpdateError::IdBeforeReset) => self.shared.with(|world| {
                world.oracle.refused(name, op, version);
            }),
            // This attempt wrote nothing. An earlier one may count, and no later one can.
            Err(UpdateError::IdExpired { .. }) => self.shared.with(|world| {
                world.met(Hazard::IdExpired);
                world.oracle.refused(name, op, version);
            }),
            Err(UpdateError::Refused(refused)) => {
                self.shared.met(match refused {
                    Refused::IdAhead { .. } => Hazard::IdAhead,
                    Refused::Resets(_) => Hazard::ResetUnread,
                    Refused::Op(OpError::IdReused) => Hazard::IdReused,
                    _ => Hazard::Refused,
                });
                self.shared.with(|world| world.oracle.refused(name, op, version));
                return Some(());
            }
        }
        None
    }

    /// The op's name, or what a broken rule makes of it.
    fn named(&self, time: Timestamp) -> NamedOp {
        let is = |sabotage| self.shared.with(|world| world.is(sabotage));
        let is_total = self.shared.with(|world| world.plan.is_total(self.op));
        let alias = match () {
            () if is(Sabotage::IdOverwritten) && !is_total => self.version,
            () if is(Sabotage::DotsOfPod) => self.pod.number,
            () => 0,
        };
        let alias = Alias { name: self.name, op: self.op, alias };
        self.pod.store.attempted(alias);
        let id = ClientId::parse(&alias.id()).expect("an id");
        let (wall, true_us) =
            (self.pod.machine.now().wall, self.shared.with(|world| world.time.now_us()));
        let window = match is(Sabotage::WindowsDiffer) && self.pod.number % 2 == 1 {
            true => Window::Short,
            false => self.shared.with(|world| world.plan.window()),
        };
        let group = self.family.key(self.name).group;
        let time = match () {
            () if is(Sabotage::ExpiryOfPod) => wall,
            () if is(Sabotage::TimeOfAttempt) => Timestamp::from_micros(true_us),
            // The expiry is right.
            () if is(Sabotage::TimeOfPod) => {
                let number = u64::try_from(self.pod.number).expect("few");
                let of_pod = [wall, time.plus(Duration::from_millis(number))];
                let expiry = |time: &Timestamp| window.expires_at(*time, &group);
                of_pod.into_iter().find(|of_pod| expiry(of_pod) == expiry(&time)).unwrap_or(time)
            }
            () => time,
        };
        let named = NamedOp::new(id, 0, time, window);
        match self.shared.with(|world| world.plan.versions(self.op)[self.version].sequence) {
            0 => named,
            sequence => named.with_sequence(sequence),
        }
    }

    /// What a pod would do that looks neither at the end of an id's window nor, after the write, at the expiry.
    async fn take_too_late(
        &self,
        target: &Key,
        named: &NamedOp,
        mut ops: Vec<Op>,
    ) -> Result<Option<Timestamp>, UpdateError> {
        let (constants, id) = self.shared.with(|world| (world.plan.constants, world.dice.random()));
        let last = named.retry_until(&target.group, &constants).shifted(-1);
        let now = Now { wall: last, boot: Duration::ZERO };
        let expires_at = named.expiry(&target.group, last, &constants)?;
        let op = named.prepare(target.kind, &target.group, &mut ops).map_err(Refused::from)?;
        let id = MutatorId::new(Uuid::from_u128(id));
        let mut mutator =
            Mutator::born_until(target.clone(), id, None, expires_at, now, &constants);
        mutator.accept(Change::Named(op), Durability::Stored, now).expect("room for one op");
        let Begin::Write(write) = mutator.begin_write(now) else { panic!("it has an op") };
        let outcome = self.pod.machine.run(self.pod.store.write_shards(&[write])).await;
        match mutator.finish_write(outcome, now) {
            Finished::Acked => Ok(None),
            other => Err(UpdateError::Unknown(format!("{other:?}"))),
        }
    }
}

impl Update {
    /// The token of an item, if a read shows it.
    async fn look_for(&self, target: &Key, op: usize) -> Option<String> {
        let read = self.pod.machine.run(self.pod.node.service().read(target, None)).await;
        read.ok().flatten().and_then(|found| self.family.seen(&found, op))
    }
}

/// Whether a read must see every ack of a data centre: its replicas overlap the write's quorum, and none of them loses
/// data.
fn must_see(world: &World, reader: usize, level: Level, writer: usize) -> bool {
    let is_in_reach = level == Level::EachQuorum || reader == writer;
    level == Level::All || (!world.plan.forgetful && is_in_reach)
}

async fn read(shared: Shared, pod: Pod, at: u8, level: Option<Level>) {
    let before = shared.with(|world| world.oracle.snapshot(at));
    let family = shared.with(|world| world.plan.family);
    let target = family.key(at);
    let answer = pod.machine.run(pod.node.service().read(&target, level)).await;
    let level = level.unwrap_or(Level::LocalQuorum);
    shared.with(|world| {
        let says = shown(world, at, &answer);
        world.log(|| format!("  read of {at} says {says}"));
    });
    shared.with(|world| match answer {
        Ok(value) => {
            let value = family.digits(value.as_deref().map(|held| &**held), at, &world.oracle);
            let sees: Vec<bool> =
                (0..2).map(|writer| must_see(world, pod.datacenter, level, writer)).collect();
            world.oracle.judge(at, value, &before, |writer| sees[writer]);
        }
        Err(error) if world.is_healed && !world.damaged[usize::from(at)] => {
            let error = error.to_string();
            world.oracle.report(Violation::Unreadable { name: at, error });
        }
        Err(_) => {}
    });
}

async fn read_group(shared: Shared, pod: Pod, names: u8) {
    let before: Vec<_> =
        (0..names).map(|at| shared.with(|world| world.oracle.snapshot(at))).collect();
    let family = shared.with(|world| world.plan.family);
    let query = GroupQuery {
        kind: family.kind(),
        group: family.key(0).group,
        prefix: None,
        from: None,
        to: None,
        behind: None,
        limit: 100,
        level: None,
    };
    shared.with(|world| world.group_reads.enter(&pod.machine));
    let mut keys = Vec::new();
    let read = pod.node.service().read_group(&query, |name, value| {
        keys.push((name, value));
        0
    });
    let answer = pod.machine.run(read).await;
    shared.with(|world| world.group_reads.leave(&pod.machine));
    shared.with(|world| {
        if let Err(error) = answer {
            if world.is_healed {
                let error = format!("its group: {error}");
                world.oracle.report(Violation::Unreadable { name: 0, error });
            }
            return;
        }
        for at in 0..names {
            let found = match keys.iter().find(|(found, _)| *found == name(at)) {
                None => None,
                Some((_, Ok(found))) => Some(found),
                Some((_, Err(error))) => {
                    if world.is_healed && !world.damaged[usize::from(at)] {
                        let error = format!("in its group: {error}");
                        world.oracle.report(Violation::Unreadable { name: at, error });
                    }
                    continue;
                }
            };
            let value = family.digits(found, at, &world.oracle);
            world.log(|| format!("  group read of {at} finds {value:o}"));
            let sees: Vec<bool> = (0..2)
                .map(|writer| must_see(world, pod.datacenter, Level::LocalQuorum, writer))
                .collect();
            world.oracle.judge(at, value, &before[usize::from(at)], |writer| sees[writer]);
        }
    });
}

fn shown<E: std::fmt::Display>(
    world: &World,
    at: u8,
    answer: &Result<Option<Arc<ReservedValue>>, E>,
) -> String {
    match answer {
        Ok(Some(found)) => {
            let digits = world.plan.family.digits(Some(found), at, &world.oracle);
            format!("{digits:o} from {} shards", found.shards)
        }
        Ok(None) => "nothing".into(),
        Err(error) => format!("error: {error}"),
    }
}

/// A pod looks at the log of resets again and again, unless it is deaf.
async fn look(shared: Shared, at: usize, machine: Arc<Machine>, node: Arc<Node>) {
    let every = shared.with(|world| world.plan.constants.reset_poll());
    while !machine.is_dead() {
        let is_deaf = |world: &mut World| world.time.elapsed() < world.deaf_until[at];
        if !shared.with(is_deaf) {
            machine.run(node.resetter().look()).await;
        }
        sleep(every).await;
    }
}

async fn reset(shared: Shared, pod: Pod, key: Key, at: u8, is_deletion: bool) {
    let number = shared.with(|world| world.oracle.reset_began(at));
    let done = pod.machine.run(pod.node.resetter().reset(&key, is_deletion)).await;
    shared.with(|world| {
        world.log(|| format!("  reset {number} of {at}: {done:?}"));
        match done {
            Ok(done) => {
                world.met(Hazard::ResetDone);
                let Some(State::Counter(cleared)) = done.cleared else { panic!("{done:?}") };
                world.oracle.reset_done(at, number, cleared.total());
            }
            Err(ResetFailure::Unknown(_)) => world.met(Hazard::ResetUnknown),
            Err(_) => {
                world.met(Hazard::ResetFailed);
                world.oracle.reset_failed(at, number);
            }
        }
    });
}

/// A client orders a reset under an id, and asks until its pod tells the end.
async fn order(shared: Shared, pod: Pod, key: Key, at: u8, number: usize) {
    let sent = shared.with(|world| world.order(number, at));
    let order =
        Order { keys: vec![key.clone()], is_deletion: false, id: Some((sent.id, sent.time)) };
    let resetter = Arc::clone(pod.node.resetter());
    let ordered = pod.machine.run(resetter.order(order)).await;
    let end = match ordered {
        Ok(Ok(Ordered::Here(mut ticket))) => {
            pod.machine.run(ticket.wait()).await;
            match ticket.ends().as_deref() {
                Some(Ok(ends)) => match &ends[0].1 {
                    Ok(done) => Ok(done.cleared.clone()),
                    Err(failure) => Err(failure.clone()),
                },
                Some(Err(failure)) => Err(failure.clone()),
                None => Err(ResetFailure::Unknown("its task is gone".to_owned())),
            }
        }
        Ok(Ok(Ordered::Logged(logged))) => {
            shared.met(Hazard::OrderFound);
            pod.machine.run(follow(&resetter, &key, logged)).await
        }
        Ok(Err(IdReused)) => panic!("each order has its own id"),
        Err(failure) => Err(failure),
    };
    shared.with(|world| {
        world.log(|| format!("  order {number} of {at}: {end:?}"));
        match end {
            Ok(cleared) => {
                world.met(Hazard::OrderDone);
                let Some(State::Counter(cleared)) = cleared else { panic!("{cleared:?}") };
                world.order_done(number, at, cleared.total());
            }
            Err(ResetFailure::Unknown(_) | ResetFailure::IdExpired) => {
                world.met(Hazard::OrderUnknown);
            }
            Err(_) => world.order_refused(number, at),
        }
    });
}

/// The end of a reset that the log has.
async fn follow(
    resetter: &Resetter,
    key: &Key,
    mut logged: Logged,
) -> Result<Option<State>, ResetFailure> {
    loop {
        match resetter.progress(&logged).await {
            Progress::Done(cleared) => {
                return Ok(cleared.and_then(|all| Some(all.into_iter().next()?.1)));
            }
            Progress::Refused => return Err(ResetError::Overtaken.into()),
            Progress::Unknown => return Err(ResetFailure::Unknown("too late".to_owned())),
            Progress::Running => sleep(Duration::from_millis(500)).await,
        }
        let (generation, id) = (logged.row.generation, logged.row.id);
        match resetter.find(key, generation, id).await {
            Ok(Some(Ordered::Logged(now))) => logged = now,
            // The log can't be read for a while.
            _ => return Err(ResetFailure::Unknown("it was not found".to_owned())),
        }
    }
}

/// Sends an earlier fold again, through a coordinator of now.
fn fold_again(shared: &Shared, nth: usize) {
    let Some(fold) = shared.with(|world| {
        let count = world.folds.len();
        let mut fold = (*world.folds.get(nth % count.max(1))?.clone()).clone();
        if fold.cells.iter().any(|(tally, cell)| world.is_outdated(tally, cell)) {
            world.met(Hazard::StaleFoldAgain);
        }
        let now_us = world.time.now_us();
        fold.tombstones.iter_mut().for_each(|tombstone| tombstone.made_us = now_us);
        world.met(Hazard::FoldAgain);
        Some(Arc::new(fold))
    }) else {
        return;
    };
    let shared = shared.clone();
    tokio::spawn(async move {
        let patience = Duration::from_secs(1);
        let _ = network::write(&shared, 0, Level::LocalQuorum, &fold, patience).await;
    });
}

/// A query that the product never sends: a key's newest shards at a quorum, without its tally.
async fn peek(shared: Shared, at: u8) {
    let now = shared.with(|world| world.node_now(0));
    let range =
        Range { through: Some(now.plus(Duration::from_secs(3600))), limit: 3, ..Range::key(at) };
    let _ = network::read(&shared, 0, Level::LocalQuorum, range).await;
}
