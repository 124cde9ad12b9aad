//! Faults on purpose: pods killed and paused, and whatever a command does to the rest.
//!
//! What happens when is decided before the load starts, from a seed, as a list of steps; in a soak
//! a step may be to draw a card of the deck. The executor owns the fleet while the load runs,
//! carries the steps out, and starts pods again that ended by themselves. At the end it undoes
//! everything: no pod stays paused or down, no fault stays unhealed.

mod cards;
mod deck;
mod executor;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

pub(super) use self::deck::{Card, Deck, NodeFault};
pub(super) use self::executor::{Executor, Soaked};

/// What is to happen, and how often.
#[derive(Clone, Debug, Default)]
pub struct Menace {
    /// Kill a pod this often.
    pub kill_every: Option<Duration>,
    /// How long a killed pod stays down.
    pub restart_after: Duration,
    /// Pause a pod this often.
    pub pause_every: Option<Duration>,
    /// How long a pause lasts.
    pub pause_for: Duration,
    /// Run the fault command this often.
    pub fault_every: Option<Duration>,
    /// How long until the heal command.
    pub fault_for: Duration,
    /// Draw a card of the deck this often.
    pub draw_every: Option<Duration>,
}

/// One step of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Step {
    /// When, from the start of the load.
    pub at: Duration,
    /// What.
    pub act: Act,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Act {
    /// SIGKILL a pod.
    Kill(usize),
    /// Start a killed pod again.
    Restart(usize),
    /// SIGSTOP a pod.
    Pause(usize),
    /// SIGCONT a pod.
    Resume(usize),
    /// Run the fault command.
    Fault,
    /// Run the heal command.
    Heal,
    /// Play the next card of the deck.
    Draw,
    /// SIGTERM a pod, which is started again when it has ended.
    Terminate(usize),
    /// Set a pod's wall clock off by so many ms.
    Shift(usize, i64),
    /// Demand that a pod refuses an update.
    ExpectShut(usize),
    /// Break the node of this number by the kind of this index, and mend it: one command.
    Break(usize, usize),
}

/// The commands that cause and undo a fault.
#[derive(Clone, Debug)]
pub(super) struct Commands {
    /// Causes the fault.
    pub fault: Option<String>,
    /// Undoes it.
    pub heal: Option<String>,
    /// Where their output goes.
    pub log: PathBuf,
}

/// What was done, for the report.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Diary {
    /// Pods killed.
    pub kills: u64,
    /// Pods paused.
    pub pauses: u64,
    /// Fault commands that ran.
    pub faults: u64,
    /// Pods that ended by themselves.
    pub exits: u64,
    /// Cards played, by kind.
    pub cards: BTreeMap<String, u64>,
    /// Everything in order.
    pub events: Vec<Event>,
    /// What kept the run from testing what it was asked to test.
    pub problems: Vec<String>,
}

/// One thing that happened.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Event {
    /// Seconds since the load began.
    pub at_s: f64,
    /// What it was.
    pub what: String,
}

/// Decides all steps of a run of this length.
pub(super) fn plan(menace: &Menace, pods: usize, length: Duration, seed: u64) -> Vec<Step> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut steps = Vec::new();
    let mut add = |at, act| steps.push(Step { at, act });
    for at in times(menace.kill_every, length) {
        let pod = rng.random_range(0..pods);
        add(at, Act::Kill(pod));
        add(at + menace.restart_after, Act::Restart(pod));
    }
    for at in times(menace.pause_every, length) {
        let pod = rng.random_range(0..pods);
        add(at, Act::Pause(pod));
        add(at + menace.pause_for, Act::Resume(pod));
    }
    for at in times(menace.fault_every, length) {
        add(at, Act::Fault);
        add(at + menace.fault_for, Act::Heal);
    }
    for at in times(menace.draw_every, length) {
        add(at, Act::Draw);
    }
    steps.sort_unstable();
    steps
}

/// The multiples of `every` that lie within `length`.
fn times(every: Option<Duration>, length: Duration) -> impl Iterator<Item = Duration> {
    let first = every.filter(|every| !every.is_zero());
    std::iter::successors(first, move |at| at.checked_add(first?))
        .take_while(move |at| *at < length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn menace() -> Menace {
        Menace {
            kill_every: Some(secs(7)),
            restart_after: secs(1),
            pause_every: Some(secs(11)),
            pause_for: secs(4),
            fault_every: Some(secs(20)),
            fault_for: secs(10),
            draw_every: Some(secs(20)),
        }
    }

    #[test]
    fn a_plan_follows_from_its_seed() {
        let once = plan(&menace(), 10, secs(60), 1);
        assert_eq!(once, plan(&menace(), 10, secs(60), 1));
        assert_ne!(once, plan(&menace(), 10, secs(60), 2));
    }

    #[test]
    fn a_plan_undoes_what_it_does_and_keeps_its_times() {
        let steps = plan(&menace(), 3, secs(60), 5);
        assert!(steps.is_sorted());
        let count = |wanted: fn(&Act) -> bool| steps.iter().filter(|s| wanted(&s.act)).count();
        assert_eq!(count(|act| matches!(act, Act::Kill(_))), 8);
        assert_eq!(count(|act| matches!(act, Act::Restart(_))), 8);
        assert_eq!(count(|act| matches!(act, Act::Pause(_))), 5);
        assert_eq!(count(|act| matches!(act, Act::Resume(_))), 5);
        assert_eq!(count(|act| matches!(act, Act::Fault)), 2);
        assert_eq!(count(|act| matches!(act, Act::Heal)), 2);
        assert_eq!(count(|act| matches!(act, Act::Draw)), 2);
        let heals = steps.iter().filter(|step| step.act == Act::Heal);
        assert_eq!(heals.map(|step| step.at).collect::<Vec<_>>(), [secs(30), secs(50)]);
    }

    #[test]
    fn nothing_asked_for_is_nothing_done() {
        assert_eq!(plan(&Menace::default(), 1, secs(60), 1), []);
    }
}
