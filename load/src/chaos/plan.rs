//! The plan of a run: which step happens when.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Which faults happen, and how often.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultPlan {
    /// Time between two kills of a pod.
    pub kill_every: Option<Duration>,
    /// How long a killed pod stays down.
    pub restart_after: Duration,
    /// Time between two pauses of a pod.
    pub pause_every: Option<Duration>,
    /// How long a pause lasts.
    pub pause_for: Duration,
    /// Time between two runs of the fault command.
    pub fault_every: Option<Duration>,
    /// Time from the fault command to the heal command.
    pub fault_for: Duration,
    /// Time between two draws of a card from the deck.
    pub draw_every: Option<Duration>,
}

/// One step of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Step {
    /// When it happens, from the start of the load.
    pub at: Duration,
    /// What happens.
    pub act: Act,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Act {
    /// Send SIGKILL to a pod.
    Kill(usize),
    /// Start a killed pod again.
    Restart(usize),
    /// Send SIGSTOP to a pod.
    Pause(usize),
    /// Send SIGCONT to a pod.
    Resume(usize),
    /// Run the fault command.
    Fault,
    /// Run the heal command.
    Heal,
    /// Play the next card of the deck.
    Draw,
    /// Send SIGTERM to a pod. It is started again when it has ended.
    Terminate(usize),
    /// Set the wall clock of a pod off by this number of ms.
    Shift(usize, i64),
    /// Check that a pod refuses an update.
    ExpectShut(usize),
    /// Cause the fault of the first index at the node of the second number, and undo it. One command
    /// does both.
    Break(usize, usize),
}

impl FaultPlan {
    /// All steps of a run of this length.
    pub(crate) fn steps(&self, pods: usize, length: Duration, seed: u64) -> Vec<Step> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut steps = Vec::new();
        let mut add = |at, act| steps.push(Step { at, act });
        for at in times(self.kill_every, length) {
            let pod = rng.random_range(0..pods);
            add(at, Act::Kill(pod));
            add(at + self.restart_after, Act::Restart(pod));
        }
        for at in times(self.pause_every, length) {
            let pod = rng.random_range(0..pods);
            add(at, Act::Pause(pod));
            add(at + self.pause_for, Act::Resume(pod));
        }
        for at in times(self.fault_every, length) {
            add(at, Act::Fault);
            add(at + self.fault_for, Act::Heal);
        }
        for at in times(self.draw_every, length) {
            add(at, Act::Draw);
        }
        steps.sort_unstable();
        steps
    }
}

/// The multiples of `every` within `length`.
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

    fn fault_plan() -> FaultPlan {
        FaultPlan {
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
        let once = fault_plan().steps(10, secs(60), 1);
        assert_eq!(once, fault_plan().steps(10, secs(60), 1));
        assert_ne!(once, fault_plan().steps(10, secs(60), 2));
    }

    #[test]
    fn a_plan_undoes_what_it_does_and_keeps_its_times() {
        let steps = fault_plan().steps(3, secs(60), 5);
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
        assert_eq!(FaultPlan::default().steps(1, secs(60), 1), []);
    }
}
