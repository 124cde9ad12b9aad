//! The events of one schedule: the installation, the weather and a list of timed steps, all drawn from one seed.

use std::time::Duration;

use orderfree::limits;
use orderfree_core::protocol::consistency::{Level, Levels};
use orderfree_core::protocol::op_id::Window;
use orderfree_core::protocol::{Constants, Overrides, Timestamp};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::family::Family;
use crate::lengths::Lengths;
use crate::oracle::{AMOUNTS, TOTALS, Version};
use crate::sabotage::Sabotage;
use crate::script::steps;
use crate::weather::Weather;

/// Ops per key: each adds its own digit of base 8, and an amount has 63 bits.
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

/// One thing that happens.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum What {
    Update {
        pod: usize,
        name: u8,
        op: usize,
        in_memory: bool,
        gone_after: Option<Duration>,
        /// The time of its id, if its client does not make the id just now.
        made: Option<Timestamp>,
    },
    /// An op with an id is sent again, in this version, whatever became of it.
    Repeat {
        pod: usize,
        name: u8,
        op: usize,
        version: usize,
    },
    Read {
        pod: usize,
        name: u8,
    },
    /// A key is reset, or deleted.
    Reset {
        pod: usize,
        name: u8,
        is_deletion: bool,
    },
    /// A client orders a reset under an id. The same order is sent again under the same number.
    Order {
        pod: usize,
        name: u8,
        number: usize,
    },
    /// A pod does not look at the log of resets for this long.
    Deaf {
        pod: usize,
        span: Duration,
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
    /// A query reads the newest shards of a key, without its tally.
    Peek {
        name: u8,
    },
    Stop {
        pod: usize,
        span: Duration,
    },
    /// A pod stops at its next send, after its last look at the clock. Either the pod sends before it stops, and the
    /// network holds the message for this long, or it sends afterwards.
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
    /// The node answers, but drops writes, like an overloaded node.
    Drops {
        node: usize,
        span: Duration,
    },
    Purge {
        node: usize,
    },
    Sync,
    Forget,
    /// While a pod stops before it sends a fold of a key, another pod reads the tally of that key. Then the fold is
    /// sent, and node 0 loses unsynced data just before the nth look of that walk.
    ForgetFold {
        folder: usize,
        name: u8,
        nth: usize,
    },
    Damage {
        name: u8,
    },
}

/// A step with its time.
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
    /// Room in memory for no resting mutator, for one or two keys, or for all.
    pub(crate) resting_bytes: usize,
    pub(crate) chunk_rows: usize,
    pub(crate) lengths: Lengths,
    pub(crate) background_folds: bool,
    pub(crate) row_deletes: bool,
    /// Node 0 can lose what it did not sync.
    pub(crate) forgetful: bool,
    /// From when to when the data centres can't reach each other.
    pub(crate) cut: Option<(Duration, Duration)>,
    /// For updates, each key is in a partition of its own.
    pub(crate) apart: bool,
    /// Some ops have ids.
    pub(crate) has_ids: bool,
    /// Keys are reset.
    pub(crate) resets: bool,
    /// The rows of pod 1 live longer than the other pods' resets are remembered.
    pub(crate) has_longer_rows: bool,
    /// After how long without updates a key is forgotten, by pods with that rule.
    pub(crate) idle_ttl: Option<Duration>,
    pub(crate) weather: Weather,
    pub(crate) steps: Vec<Step>,
}

/// Room for one resting mutator, but not for a large one.
const TINY_TABLE_BYTES: usize = 420;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const OFFSET_MAX: Duration = Duration::from_secs(4);

impl Plan {
    /// Draws a schedule.
    pub(crate) fn draw(seed: u64, sabotage: Option<Sabotage>) -> Plan {
        let mut dice = StdRng::seed_from_u64(seed);
        let dice = &mut dice;
        let mut constants = constants(dice);
        let family = Family::of(seed, sabotage);
        let forgets = sabotage.map_or(seed / 4 % 2 == 1, Sabotage::is_about_forgetting)
            && family == Family::Counter;
        if forgets {
            constants = that_forget(&constants);
        }
        let idle_slack = [0, 0, 5, 20][usize::try_from(seed / 16 % 4).expect("small")] * SECOND;
        let datacenters: &[usize] =
            [&[3][..], &[3], &[3], &[5], &[3, 3], &[3, 2]].choose(dice).expect("some");
        let datacenters = match sabotage {
            Some(sabotage) if sabotage.is_about_datacenters() => &[3, 3],
            _ => datacenters,
        };
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
        // Not drawn, so that the schedules of other seeds do not change.
        let resets = sabotage.map_or(seed / 4 % 4 >= 2, Sabotage::is_about_resets)
            && family == Family::Counter
            && (datacenters.len() == 1 || sabotage.is_some() || (seed / 256).is_multiple_of(2));
        let has_longer_rows = match sabotage {
            None => resets && !forgets && seed / 64 % 4 == 1,
            Some(sabotage) => {
                [Sabotage::RowsOutlive, Sabotage::FirstLookIsShort].contains(&sabotage)
            }
        };
        let forgetful = dice.random_bool(0.1) && !resets;
        let mut levels = Levels::default();
        if datacenters.len() == 1 && !forgetful && dice.random_bool(0.4) {
            levels.fold = Level::Quorum;
        }
        // Not drawn, so that the schedules of other seeds do not change.
        if datacenters.len() > 1 && !forgetful && (seed / 128).is_multiple_of(2) {
            levels.fold = Level::EachQuorum;
        }
        let cut = (datacenters.len() > 1 && seed % 4 == 2).then(|| {
            let from = u32::try_from(seed / 3 % 16).expect("small");
            let length = [5, 20, 60, 200][usize::try_from(seed / 4 % 4).expect("small")];
            (from * SECOND, (from + length) * SECOND)
        });
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
            family,
            constants,
            levels,
            gc_grace: dice.random_range(5..45) * SECOND,
            nodes,
            pods,
            names: dice.random_range(1..=3),
            mutators_max: if dice.random_bool(0.3) { 1 } else { 1_000 },
            // Not drawn, so that the schedules of seeds do not change.
            resting_bytes: [0, TINY_TABLE_BYTES, 1 << 20]
                [usize::try_from(seed / 4 % 3).expect("small")],
            chunk_rows: dice.random_range(2..=5),
            lengths: Lengths::of(seed),
            background_folds: dice.random_bool(0.3),
            row_deletes: dice.random_bool(0.1),
            forgetful,
            cut,
            apart: (seed / 2) % 2 == 1,
            has_ids: match sabotage {
                None => seed / 10 % 3 == 1 || (resets && seed / 16 % 2 == 1),
                Some(sabotage) => sabotage.needs_ids() || (resets && seed % 3 == 1),
            },
            resets,
            has_longer_rows: has_longer_rows && resets,
            idle_ttl: forgets.then(|| constants.cutoff() + idle_slack),
            weather,
            steps: Vec::new(),
        };
        if resets {
            plan.constants = that_reset(&plan);
            plan.idle_ttl = forgets.then(|| plan.constants.cutoff() + idle_slack);
            if sabotage.is_some() || !(seed / 32).is_multiple_of(4) {
                plan.lengths.slices = None;
            }
        }
        plan.steps = steps(&plan, dice);
        plan.break_rule();
        plan
    }

    /// The changes that a broken rule needs in the installation.
    fn break_rule(&mut self) {
        match self.sabotage {
            Some(Sabotage::FolderAhead) => self.pods[0].skew_us = 40_000_000,
            Some(Sabotage::PodBehind) => self.pods[0].skew_us = -40_000_000,
            Some(Sabotage::QuorumFoldOneWrite) => {
                self.levels = Levels { write: Level::One, read: Level::All, fold: Level::Quorum };
            }
            Some(Sabotage::QuorumFoldTwoSides) => self.levels.fold = Level::Quorum,
            Some(Sabotage::FoldWrittenHere | Sabotage::LoggedHere) => {
                self.levels.fold = Level::EachQuorum;
            }
            Some(Sabotage::ExpiryIgnoresReset) => self.levels.fold = Level::Quorum,
            Some(sabotage) if sabotage.flaw().is_some() => {
                (self.mutators_max, self.resting_bytes) = (1, 1 << 20);
            }
            _ => {}
        }
    }

    /// Bytes of states that successors need not know about. States of a schedule are small, so it is nothing if
    /// there is room at rest for what mutators leave.
    pub(crate) fn little_bytes(&self) -> usize {
        if self.resting_bytes > TINY_TABLE_BYTES { 0 } else { limits::LITTLE_BYTES }
    }

    /// Whether an op has an id.
    pub(crate) fn has_id(&self, op: usize) -> bool {
        self.has_ids && !op.is_multiple_of(2)
    }

    /// Whether an op is a sender's running total.
    pub(crate) fn is_total(&self, op: usize) -> bool {
        self.has_id(op) && op % 4 == 3 && self.family.has_amounts()
    }

    /// What a client sends under the id of an op.
    pub(crate) fn versions(&self, op: usize) -> &'static [Version] {
        match (self.is_total(op), self.has_id(op) && self.family == Family::Counter) {
            (true, _) => TOTALS,
            (false, true) => AMOUNTS,
            (false, false) => &AMOUNTS[..1],
        }
    }

    /// The window of all ids.
    pub(crate) fn window(&self) -> Window {
        Window::Minute
    }

    /// From the sending of an op until every shard that holds it is final.
    pub(crate) fn until_final(&self) -> Duration {
        let window = match self.sabotage {
            Some(Sabotage::WindowsDiffer) => Window::Short,
            _ => self.window(),
        };
        let ids = if self.has_ids { 2 * window.length() + 3 * OFFSET_MAX } else { Duration::ZERO };
        let longer = if self.has_longer_rows { self.longer_lifetime() } else { Duration::ZERO };
        self.constants.lifetime().max(longer).max(ids) + self.constants.cutoff()
    }

    /// From the last update of a key until it is idle for long enough, if it is ever forgotten. A key is not forgotten
    /// while it needs a reset.
    pub(crate) fn until_idle(&self) -> Duration {
        let Some(idle_ttl) = self.idle_ttl else { return self.until_final() };
        let memory = match self.resets {
            true => self.constants.reset_memory() + self.constants.cutoff(),
            false => Duration::ZERO,
        };
        self.until_final().max(memory) + idle_ttl - self.constants.cutoff()
    }

    /// A lifetime after which no reset is remembered.
    fn longer_lifetime(&self) -> Duration {
        self.constants.reset_memory() + 60 * SECOND
    }

    /// The constants of a pod: all have the same, but for the lifetime.
    pub(crate) fn constants_of(&self, pod: usize) -> Constants {
        match self.has_longer_rows && pod == 1 {
            true => with(
                &self.constants,
                Overrides {
                    lifetime: Some(self.longer_lifetime()),
                    reset_memory: Some(SECOND),
                    ..Overrides::default()
                },
            ),
            false => self.constants,
        }
    }

    /// The rule of a pod, if it has one. Pods need not have the same.
    pub(crate) fn idle_ttl(&self, pod: usize) -> Option<Duration> {
        self.idle_ttl.filter(|_| pod == self.slowest() || (self.seed / 64).is_multiple_of(3))
    }

    /// The pods whose clocks are behind and ahead of all others.
    pub(crate) fn slowest(&self) -> usize {
        (0..self.pods.len()).min_by_key(|&pod| self.pods[pod].skew_us).expect("pods")
    }

    pub(crate) fn fastest(&self) -> usize {
        (0..self.pods.len()).max_by_key(|&pod| self.pods[pod].skew_us).expect("pods")
    }

    /// Other steps, with another weather.
    pub(crate) fn with_steps(&self, steps: Vec<Step>, salt: u64) -> Plan {
        Plan { steps, salt, ..self.clone() }
    }

    /// The same in the first data centre alone, where all pods then run. `None` if there is no other one.
    pub(crate) fn in_one_datacenter(&self) -> Option<Plan> {
        // Its nodes have the lowest numbers.
        let left = self.nodes.iter().filter(|node| node.datacenter == 0).count();
        if left == self.nodes.len() {
            return None;
        }
        let mut plan = Plan { cut: None, ..self.clone() };
        plan.nodes.truncate(left);
        plan.pods.iter_mut().for_each(|pod| pod.datacenter = 0);
        plan.steps.retain(|step| match step.what {
            What::NodeDown { node, .. } | What::Drops { node, .. } | What::Purge { node } => {
                node < left
            }
            _ => true,
        });
        Some(plan)
    }

    pub(crate) fn datacenter_name(datacenter: usize) -> String {
        format!("dc{datacenter}")
    }
}

/// The tightest constants that the rules allow, or slightly longer ones.
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
        ..Overrides::default()
    };
    Constants::resolve(chosen).expect("consistent")
}

/// Other constants. Those that are not chosen stay.
fn with(of: &Constants, chosen: Overrides) -> Constants {
    let all = Overrides {
        lifetime: chosen.lifetime.or(Some(of.lifetime())),
        drain_margin: Some(of.drain_margin()),
        cutoff: chosen.cutoff.or(Some(of.cutoff())),
        request_budget: Some(of.request_budget()),
        clock_offset_max: Some(OFFSET_MAX),
        fence_quantum: chosen.fence_quantum.or(Some(of.fence_quantum())),
        reset_memory: chosen.reset_memory,
        ..Overrides::default()
    };
    Constants::resolve(all).expect("consistent")
}

/// The tightest constants with which a key can be forgotten.
fn that_forget(of: &Constants) -> Constants {
    let quantum = of.fence_quantum().min(8 * SECOND);
    let slack = of.request_budget() + 2 * OFFSET_MAX;
    let chosen = Overrides {
        cutoff: Some(2 * (slack + quantum) + Duration::from_millis(1)),
        fence_quantum: Some(quantum),
        ..Overrides::default()
    };
    let constants = with(of, chosen);
    constants.check_idle_ttl(100 * 24 * 3600 * SECOND).expect("long enough");
    constants
}

/// The tightest constants with which keys can be reset, or longer ones: with the tightest there is no time left in which
/// a pod could write the marker of another pod again.
fn that_reset(plan: &Plan) -> Constants {
    let of = &plan.constants;
    let quantum = of.fence_quantum().min(SECOND);
    // C > M + R + 2ε + Δ, where M has C / 6 and R, and Δ has R + 2ε and two quanta.
    let rest = 3 * of.request_budget() + 4 * OFFSET_MAX + 2 * quantum;
    let slack = SECOND * [0, 0, 5, 20][usize::try_from(plan.seed / 128 % 4).expect("small")];
    let chosen = Overrides {
        cutoff: Some(rest * 6 / 5 + SECOND / 100 + slack),
        fence_quantum: Some(quantum),
        reset_memory: Some(if plan.has_ids { 2 * plan.window().length() } else { SECOND }),
        ..Overrides::default()
    };
    let constants = with(of, chosen);
    constants.check_resets().expect("long enough");
    constants
}

/// A clock's error: at most `most` in either direction, and often exactly that.
pub(crate) fn skew(dice: &mut StdRng, most: Duration) -> i64 {
    let most_us = i64::try_from(most.as_micros()).expect("short");
    match dice.random_range(0..4) {
        0 => -most_us,
        1 => most_us,
        _ => dice.random_range(-most_us..=most_us),
    }
}
