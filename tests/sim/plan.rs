//! What happens in one schedule: the installation, the weather and a list of timed steps, all drawn
//! from one seed.

use std::time::Duration;

use orderfree_core::protocol::consistency::{Level, Levels};
use orderfree_core::protocol::{Constants, Overrides};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::family::Family;
use crate::sabotage::Sabotage;

/// Ops of one key: each adds one digit of base 8 of its own, and an amount has 63 bits.
pub(crate) const OPS_MAX: usize = 20;

/// A pod and where it runs.
#[derive(Debug, Clone)]
pub(crate) struct PodPlan {
    pub(crate) datacenter: usize,
    pub(crate) skew_us: i64,
}

/// A node, with one replica of everything.
#[derive(Debug, Clone)]
pub(crate) struct NodePlan {
    pub(crate) datacenter: usize,
    pub(crate) skew_us: i64,
}

/// How badly messages travel; shares between 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Weather {
    /// Takes up to seconds.
    pub(crate) slow: f64,
    /// Becomes a hint, delivered much later.
    pub(crate) hinted: f64,
    /// Never arrives.
    pub(crate) lost: f64,
    /// A coordinator answers nothing, whatever it did.
    pub(crate) silent: f64,
    /// Of hints: never delivered.
    pub(crate) hint_lost: f64,
}

impl Weather {
    pub(crate) const CALM: Weather =
        Weather { slow: 0.0, hinted: 0.0, lost: 0.0, silent: 0.0, hint_lost: 0.0 };
}

/// One thing that happens.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum What {
    Update {
        pod: usize,
        name: u8,
        op: usize,
        in_memory: bool,
        gone_after: Option<Duration>,
    },
    Read {
        pod: usize,
        name: u8,
    },
    ReadGroup {
        pod: usize,
    },
    Fold {
        pod: usize,
        name: u8,
    },
    Sweep {
        pod: usize,
    },
    /// A fold that was sent before is sent again.
    FoldAgain {
        nth: usize,
    },
    /// Somebody looks at the newest shards of a key, without its tally.
    Peek {
        name: u8,
    },
    Stop {
        pod: usize,
        span: Duration,
    },
    /// Stops at its next send, after the last look at the clock. What it sends leaves it before,
    /// and is held by the network so long, or after.
    StopAtSend {
        pod: usize,
        span: Duration,
        held: Option<Duration>,
    },
    Kill {
        pod: usize,
    },
    Drain {
        pod: usize,
    },
    SetClock {
        pod: usize,
        skew_us: i64,
    },
    NodeDown {
        node: usize,
        span: Duration,
    },
    /// The node answers, but drops what it is told to write, as an overloaded one does.
    Drops {
        node: usize,
        span: Duration,
    },
    Purge {
        node: usize,
    },
    Sync,
    Forget,
    Damage {
        name: u8,
    },
}

/// A step and when.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    pub(crate) at: Duration,
    pub(crate) what: What,
}

/// A whole schedule.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// Another weather for the same steps.
    pub(crate) salt: u64,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) family: Family,
    pub(crate) constants: Constants,
    pub(crate) levels: Levels,
    pub(crate) gc_grace: Duration,
    pub(crate) nodes: Vec<NodePlan>,
    pub(crate) pods: Vec<PodPlan>,
    pub(crate) names: u8,
    pub(crate) mutators_max: usize,
    /// None, room for a key or two, or for all.
    pub(crate) resting_bytes: usize,
    pub(crate) chunk_rows: usize,
    pub(crate) background_folds: bool,
    pub(crate) row_deletes: bool,
    /// Node 0 may forget what it did not sync.
    pub(crate) forgetful: bool,
    /// Each key lies in a partition of its own, where updates are concerned.
    pub(crate) apart: bool,
    pub(crate) weather: Weather,
    pub(crate) steps: Vec<Step>,
}

/// Room for one mutator at rest, and not for a large one.
const TINY_TABLE_BYTES: usize = 420;

const SECOND: Duration = Duration::from_secs(1);
const OFFSET_MAX: Duration = Duration::from_secs(4);

impl Plan {
    /// Draws a schedule.
    pub(crate) fn draw(seed: u64, sabotage: Option<Sabotage>) -> Plan {
        let mut dice = StdRng::seed_from_u64(seed);
        let dice = &mut dice;
        let constants = constants(dice);
        let datacenters: &[usize] =
            [&[3][..], &[3], &[3], &[5], &[3, 3], &[3, 2]].choose(dice).expect("some");
        let wrong_node = dice.random_bool(0.05);
        let mut nodes = Vec::new();
        for (datacenter, &replicas) in datacenters.iter().enumerate() {
            for _ in 0..replicas {
                let skew_us = if wrong_node && nodes.is_empty() {
                    skew(dice, 90 * SECOND)
                } else {
                    skew(dice, SECOND / 2)
                };
                nodes.push(NodePlan { datacenter, skew_us });
            }
        }
        let pods = (0..dice.random_range(2..=3))
            .map(|_| PodPlan {
                datacenter: dice.random_range(0..datacenters.len()),
                skew_us: skew(dice, OFFSET_MAX - SECOND / 2),
            })
            .collect();
        let forgetful = dice.random_bool(0.1);
        let mut levels = Levels::default();
        if datacenters.len() == 1 && !forgetful && dice.random_bool(0.4) {
            levels.fold = Level::Quorum;
        }
        let bad = |dice: &mut StdRng, most: f64| [0.0, most / 4.0, most][dice.random_range(0..3)];
        let weather = Weather {
            slow: bad(dice, 0.2),
            hinted: bad(dice, 0.3),
            lost: bad(dice, 0.15),
            silent: bad(dice, 0.1),
            hint_lost: bad(dice, 0.5),
        };
        let mut plan = Plan {
            seed,
            salt: 0,
            sabotage,
            family: Family::of(seed, sabotage),
            constants,
            levels,
            gc_grace: dice.random_range(5..45) * SECOND,
            nodes,
            pods,
            names: dice.random_range(1..=3),
            mutators_max: if dice.random_bool(0.3) { 1 } else { 1_000 },
            // Not drawn, so that schedules stay what they were.
            resting_bytes: [0, TINY_TABLE_BYTES, 1 << 20]
                [usize::try_from(seed / 4 % 3).expect("small")],
            chunk_rows: dice.random_range(2..=5),
            background_folds: dice.random_bool(0.3),
            row_deletes: dice.random_bool(0.1),
            forgetful,
            apart: (seed / 2) % 2 == 1,
            weather,
            steps: Vec::new(),
        };
        plan.steps = steps(&plan, dice);
        plan.break_rule();
        plan
    }

    /// What a broken rule changes in the installation.
    fn break_rule(&mut self) {
        match self.sabotage {
            Some(Sabotage::FolderAhead) => self.pods[0].skew_us = 40_000_000,
            Some(Sabotage::PodBehind) => self.pods[0].skew_us = -40_000_000,
            Some(Sabotage::QuorumFoldOneWrite) => {
                self.levels = Levels { write: Level::One, read: Level::All, fold: Level::Quorum };
            }
            Some(sabotage) if sabotage.flaw().is_some() => {
                (self.mutators_max, self.resting_bytes) = (1, 1 << 20);
            }
            _ => {}
        }
    }

    /// Other steps, in another weather.
    pub(crate) fn with_steps(&self, steps: Vec<Step>, salt: u64) -> Plan {
        Plan { steps, salt, ..self.clone() }
    }

    pub(crate) fn datacenter_name(datacenter: usize) -> String {
        format!("dc{datacenter}")
    }
}

/// The tightest constants that the rules allow, or a little more.
fn constants(dice: &mut StdRng) -> Constants {
    let slack = 2 * SECOND + 2 * OFFSET_MAX;
    let some = |dice: &mut StdRng| SECOND * [0, 0, 5, 20][dice.random_range(0..4)];
    let drain_margin = slack + some(dice);
    let quantum_ms = [1, 1_000, 8_000, 8_000, 20_000][dice.random_range(0..5)];
    let chosen = Overrides {
        lifetime: Some(drain_margin + SECOND + some(dice)),
        drain_margin: Some(drain_margin),
        cutoff: Some(slack + Duration::from_millis(1) + some(dice)),
        request_budget: Some(2 * SECOND),
        clock_offset_max: Some(OFFSET_MAX),
        fence_quantum: Some(Duration::from_millis(quantum_ms)),
        hint_window: None,
    };
    Constants::resolve(chosen).expect("consistent")
}

/// A clock's error, up to `most` in either direction, often the most.
fn skew(dice: &mut StdRng, most: Duration) -> i64 {
    let most_us = i64::try_from(most.as_micros()).expect("short");
    match dice.random_range(0..4) {
        0 => -most_us,
        1 => most_us,
        _ => dice.random_range(-most_us..=most_us),
    }
}

/// Draws what happens.
struct Script<'a> {
    plan: &'a Plan,
    dice: &'a mut StdRng,
    /// Ops drawn for each key.
    ops: Vec<usize>,
    steps: Vec<Step>,
}

fn steps(plan: &Plan, dice: &mut StdRng) -> Vec<Step> {
    let span = plan.constants.lifetime() * dice.random_range(2..=6) + plan.constants.cutoff();
    let (ops, steps) = (vec![0; usize::from(plan.names)], Vec::new());
    let damage = dice.random_bool(0.05);
    let mut script = Script { plan, dice, ops, steps };
    for _ in 0..script.dice.random_range(20..=70) {
        let at = span.mul_f64(script.dice.random());
        script.scene(at);
    }
    if damage {
        let at = span.mul_f64(script.dice.random());
        let name = script.name();
        script.add(at, What::Damage { name });
    }
    script.steps.sort_by_key(|step| step.at);
    script.steps
}

impl Script<'_> {
    /// Something, or a few things that meet each other half-way.
    fn scene(&mut self, at: Duration) {
        let (pod, name, node) = (self.pod(), self.name(), self.node());
        match self.dice.random_range(0..100) {
            0..5 => self.missed_fold(at, name),
            5..11 => self.dying_write(at, name),
            11..15 => self.brink(at, name),
            15..30 => {
                for _ in 0..self.dice.random_range(1..=3) {
                    let soon = self.soon(at);
                    self.update(soon, name);
                }
            }
            30..38 => {
                for _ in 0..self.dice.random_range(1..=2) {
                    let soon = self.soon(at);
                    self.add(soon, What::Read { pod, name });
                }
            }
            38..43 => {
                for name in 0..self.plan.names {
                    let (pod, soon) = (self.pod(), self.within(at, 12_000));
                    self.add(soon, What::Fold { pod, name });
                }
                for _ in 0..2 {
                    let (pod, soon) = (self.pod(), self.within(at, 16_000));
                    self.add(soon, What::ReadGroup { pod });
                }
            }
            43..57 => {
                if self.dice.random_bool(0.2) {
                    let span = self.long(2);
                    self.stop_at_send(pod, at, span);
                }
                self.add(at, What::Fold { pod, name });
                for _ in 0..self.dice.random_range(0..=2) {
                    let (pod, soon) = (self.pod(), self.soon(at));
                    self.add(soon, What::Fold { pod, name });
                }
            }
            57..59 => self.add(at, What::Sweep { pod }),
            59..62 => {
                let nth = self.dice.random_range(0..8);
                self.add(at, What::FoldAgain { nth });
            }
            62..66 => self.add(at, What::Peek { name }),
            66..68 => {
                let span = self.long(2);
                self.add(at, What::Stop { pod, span });
            }
            68..72 => {
                let span = self.long(3);
                self.stop_at_send(pod, at, span);
                self.update_by(pod, at, name);
            }
            72..74 => self.add(at, What::Kill { pod }),
            74..75 => self.add(at, What::Drain { pod }),
            75..77 => {
                let most = OFFSET_MAX * if self.dice.random_bool(0.7) { 1 } else { 4 };
                let skew_us = skew(self.dice, most);
                self.update_by(pod, at, name);
                let soon = at + Duration::from_millis(20);
                self.add(soon, What::SetClock { pod, skew_us });
                self.update_by(pod, soon, name);
            }
            77..81 => {
                let span = self.long(1);
                self.add(at, What::NodeDown { node, span });
            }
            81..89 => {
                let span = self.long(1);
                self.add(at, What::Drops { node, span });
            }
            89..94 => self.add(at, What::Purge { node }),
            94..97 => self.turns(at),
            97 if self.plan.forgetful => self.add(at, What::Sync),
            98 if self.plan.forgetful => self.add(at, What::Forget),
            _ => self.add(at, What::Read { pod, name }),
        }
    }

    /// Some nodes miss a fold; the others purge its deletion when they may, or not.
    fn missed_fold(&mut self, at: Duration, name: u8) {
        for node in 0..self.plan.nodes.len() {
            if self.dice.random_bool(0.5) {
                let span = self.plan.gc_grace + SECOND;
                self.add(at, What::Drops { node, span });
            }
        }
        let (folder, reader) = (self.pod(), self.pod());
        self.add(at, What::Fold { pod: folder, name });
        let mut then = at + Duration::from_millis(50);
        if self.dice.random_bool(0.7) {
            then = at + self.plan.gc_grace + self.long(1) / 4;
            for node in 0..self.plan.nodes.len() {
                self.add(then, What::Purge { node });
            }
        }
        if self.dice.random_bool(0.3) {
            then = self.soon(then);
            self.add(then, What::Peek { name });
        }
        for _ in 0..3 {
            then = self.soon(then);
            self.add(then, What::Read { pod: reader, name });
        }
        if self.dice.random_bool(0.5) {
            let pod = self.pod();
            self.add(then, What::Fold { pod, name });
        }
    }

    /// A pod dies while some nodes have its last write.
    fn dying_write(&mut self, at: Duration, name: u8) {
        let pod = self.pod();
        for node in 0..self.plan.nodes.len() {
            if self.dice.random_bool(0.6) {
                self.add(at, What::Drops { node, span: SECOND });
            }
        }
        self.update_by(pod, at, name);
        self.add(at + Duration::from_millis(5), What::Kill { pod });
        // Once its row is final, folds that see it meet folds that don't.
        let finals = at + self.plan.constants.lifetime() + self.plan.constants.cutoff();
        let then = finals + self.plan.constants.fence_quantum() + OFFSET_MAX;
        for _ in 0..2 {
            let (pod, span) = (self.pod(), self.plan.constants.fence_quantum() / 2);
            let soon = self.soon(then);
            self.stop_at_send(pod, soon, span);
            self.add(soon, What::Fold { pod, name });
        }
    }

    /// Two keys take turns in one pod, where each may put the other to rest. Its clock may be set back
    /// between two turns.
    fn turns(&mut self, at: Duration) {
        let (pod, first) = (self.pod(), self.name());
        let other = (first + 1) % self.plan.names;
        let set_back = self.dice.random_bool(0.3).then(|| self.dice.random_range(1..6));
        let mut then = at;
        for turn in 0..self.dice.random_range(3..=6) {
            if Some(turn) == set_back {
                let behind = OFFSET_MAX.mul_f64(self.dice.random());
                let skew_us = -i64::try_from(behind.as_micros()).expect("short");
                self.add(then, What::SetClock { pod, skew_us });
            }
            self.update_by(pod, then, if turn % 2 == 0 { first } else { other });
            then = self.within(then + Duration::from_millis(10), 60_000);
        }
    }

    /// A pod stops with its first write of a mutator on the way, and wakes shortly before the lease
    /// is over, or once the shard is final.
    fn brink(&mut self, at: Duration, name: u8) {
        let (pod, constants) = (self.pod(), self.plan.constants);
        let folder = (pod + 1) % self.plan.pods.len();
        // Without another row there would be nothing to fold.
        self.update_by(folder, at, name);
        self.add(at, What::Kill { pod });
        let mut span = constants.lifetime();
        if self.dice.random_bool(0.5) {
            span -= (OFFSET_MAX / 2).mul_f64(self.dice.random());
            let behind = OFFSET_MAX - SECOND / 2;
            let behind_us = i64::try_from(behind.as_micros()).expect("short");
            self.add(at, What::SetClock { pod, skew_us: -behind_us });
        } else {
            span += constants.cutoff() + constants.fence_quantum();
            span += OFFSET_MAX.mul_f64(1.0 + self.dice.random::<f64>());
        }
        let sent = at + Duration::from_millis(5);
        let held = Some(span - Duration::from_millis(100));
        self.add(sent, What::StopAtSend { pod, span, held });
        self.update_by(pod, sent, name);
        // A fold that was planned before the write arrives, and one after, may be sent in any order.
        let before = sent + span - SECOND / 2;
        if self.dice.random_bool(0.5) {
            self.add(before, What::StopAtSend { pod: folder, span: 2 * SECOND, held: None });
            self.add(sent + span + SECOND / 4, What::Fold { pod, name });
        }
        self.add(before, What::Fold { pod: folder, name });
        self.add(sent + span + SECOND, What::Read { pod: folder, name });
    }

    fn stop_at_send(&mut self, pod: usize, at: Duration, span: Duration) {
        let is_held = self.dice.random_bool(0.5);
        let held = is_held.then(|| span.mul_f64(self.dice.random()));
        self.add(at, What::StopAtSend { pod, span, held });
    }

    fn update(&mut self, at: Duration, name: u8) {
        let pod = self.pod();
        self.update_by(pod, at, name);
    }

    fn update_by(&mut self, pod: usize, at: Duration, name: u8) {
        let op = self.ops[usize::from(name)];
        if op == OPS_MAX {
            return;
        }
        self.ops[usize::from(name)] += 1;
        let in_memory = self.dice.random_bool(0.04);
        let is_gone = self.dice.random_bool(0.04);
        let gone_after = is_gone.then(|| Duration::from_millis(self.dice.random_range(0..100)));
        self.add(at, What::Update { pod, name, op, in_memory, gone_after });
    }

    fn add(&mut self, at: Duration, what: What) {
        self.steps.push(Step { at, what });
    }

    /// A moment later, often a very short one.
    fn soon(&mut self, at: Duration) -> Duration {
        let most_us = [2_000, 10_000, 1_000_000][self.dice.random_range(0..3)];
        self.within(at, most_us)
    }

    fn within(&mut self, at: Duration, most_us: u64) -> Duration {
        at + Duration::from_micros(self.dice.random_range(0..most_us))
    }

    /// Up to so many halves of the time from a mutator's birth until its shard is final.
    fn long(&mut self, halves: u32) -> Duration {
        let most = (self.plan.constants.lifetime() + self.plan.constants.cutoff()) * halves / 2;
        most.mul_f64(self.dice.random())
    }

    fn pod(&mut self) -> usize {
        self.dice.random_range(0..self.plan.pods.len())
    }

    fn name(&mut self) -> u8 {
        self.dice.random_range(0..self.plan.names)
    }

    fn node(&mut self) -> usize {
        self.dice.random_range(0..self.plan.nodes.len())
    }
}
