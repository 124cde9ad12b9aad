//! What each card of the deck does to which pod or node.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::chaos::deck::{FaultCard, FaultDeck};
use crate::chaos::plan::{Act, Step};
use crate::checker::Outcome;
use crate::pods::Fleet;
use crate::run::Run;
use crate::soak::service;
use crate::soak::state::Soak;

/// Pods that stay without a fault, whichever card is played.
const FREE_PODS_MIN: usize = 2;
/// Time without a new fault for a pod after its fault: it has to start, connect and become ready.
const RECOVERY: Duration = Duration::from_secs(3);
/// Time for a pod to drain and end after SIGTERM.
const DRAIN: Duration = Duration::from_secs(8);
/// How long a clock is off.
const SHIFT_FOR: Duration = Duration::from_secs(8);
/// Time from the shift of a clock to the update that the pod must refuse.
const SHUT_AFTER: Duration = Duration::from_millis(200);
/// Shifts of a clock within the limit. The limit is 4 s with a drain margin of 10 s.
const WITHIN_MS: [i64; 2] = [-1_500, 1_500];
/// Shifts of a clock beyond the limit.
const BEYOND_MS: [i64; 2] = [-15_000, 15_000];
/// Time between two measurements of the memory of pods.
const WEIGH_EVERY: Duration = Duration::from_secs(2);

/// The cards of a soak, and what they have done so far.
#[derive(Debug)]
pub(crate) struct Soaked {
    /// The deck.
    pub deck: FaultDeck,
    /// The script that breaks nodes: `SCRIPT break KIND NODE SECONDS`.
    pub script: PathBuf,
    /// How long a fault of a node lasts.
    pub hold: Duration,
    /// How long a pod is paused.
    pub pause_for: Duration,
    /// How long a killed pod stays down.
    pub restart_after: Duration,
    /// When the load ends, from its start.
    pub length: Duration,
    /// The run that is soaked.
    pub run: Arc<Run>,
    /// When the fault of each pod is over, from the start.
    pub busy: Vec<Duration>,
    /// When the pause of a pod is over, from the start.
    pub paused: Duration,
    /// When the memory of the pods was last measured.
    pub weighed: Option<Instant>,
}

/// A card that was drawn.
#[derive(Debug)]
pub(super) struct Drawn {
    /// Its name in the report.
    pub(super) name: String,
    /// Whether it is the fault of a node.
    pub(super) is_of_node: bool,
    /// What it does.
    pub(super) steps: Vec<Step>,
}

impl Soaked {
    /// Draws the next card that can be played now. `None` if no card can.
    pub(super) fn draw(&mut self, now: Duration, node_is_broken: bool) -> Option<Drawn> {
        let pods = 0..self.busy.len();
        let free: Vec<usize> = pods.filter(|pod| self.busy[*pod] <= now).collect();
        let (pause_for, paused) = (self.pause_for, self.paused > now);
        let left = self.length.saturating_sub(now);
        let card = self.deck.draw(|card| match card {
            FaultCard::Node(_) => !node_is_broken,
            FaultCard::PodPause => !paused && free.len() > FREE_PODS_MIN && pause_for < left,
            _ => free.len() > FREE_PODS_MIN,
        })?;
        // The fault of a node needs no pod.
        let pod = self.deck.pick(&free).unwrap_or(0);
        let (acts, until) = self.acts(card, pod, now);
        if let Some(until) = until {
            self.busy[pod] = until + RECOVERY;
        }
        if card == FaultCard::PodPause {
            self.paused = now + pause_for;
        }
        Some(Drawn {
            name: self.deck.name(card),
            is_of_node: matches!(card, FaultCard::Node(_)),
            steps: acts.into_iter().map(|(after, act)| Step { at: now + after, act }).collect(),
        })
    }

    /// What a card does and when, and until when its pod has the fault.
    fn acts(
        &mut self,
        card: FaultCard,
        pod: usize,
        now: Duration,
    ) -> (Vec<(Duration, Act)>, Option<Duration>) {
        let at_once = Duration::ZERO;
        match card {
            FaultCard::PodKill => (
                vec![(at_once, Act::Kill(pod)), (self.restart_after, Act::Restart(pod))],
                Some(now + self.restart_after),
            ),
            FaultCard::PodPause => (
                vec![(at_once, Act::Pause(pod)), (self.pause_for, Act::Resume(pod))],
                Some(now + self.pause_for),
            ),
            FaultCard::PodRestart => (vec![(at_once, Act::Terminate(pod))], Some(now + DRAIN)),
            FaultCard::ClockWithin => {
                let millis = self.deck.pick(&WITHIN_MS).unwrap_or_default();
                let acts =
                    vec![(at_once, Act::Shift(pod, millis)), (SHIFT_FOR, Act::Shift(pod, 0))];
                (acts, Some(now + SHIFT_FOR))
            }
            FaultCard::ClockBeyond => {
                let millis = self.deck.pick(&BEYOND_MS).unwrap_or_default();
                let acts = vec![
                    (at_once, Act::Shift(pod, millis)),
                    (SHUT_AFTER, Act::ExpectShut(pod)),
                    (SHIFT_FOR, Act::Shift(pod, 0)),
                ];
                (acts, Some(now + SHIFT_FOR))
            }
            FaultCard::Node(kind) => {
                let nodes = self.deck.node_fault(kind).nodes.clone();
                let acts = self.deck.pick(&nodes).map(|node| (at_once, Act::Break(kind, node)));
                (acts.into_iter().collect(), None)
            }
        }
    }

    /// Sends one update to a pod with a wrong clock. The pod must refuse it, or acknowledged updates
    /// might be lost. A pod that cannot ask most nodes for the time also refuses the update, but for
    /// another reason. Returns the event, or the problem if the pod did not refuse.
    pub(super) async fn expect_shut(&self, pod: usize) -> Result<String, String> {
        let reply = service::try_audited(self.soak(), &self.run.pods[pod]).await;
        match (reply.outcome, reply.why) {
            (Outcome::Refused, Some(why)) if why.detail.contains("/problems/clock") => {
                if why.detail.contains("clock differs") {
                    self.soak().count_shut_gate();
                }
                Ok(format!("pod {pod}: gate shut: {}", why.detail))
            }
            (outcome, why) => {
                Err(format!("pod {pod} has a wrong clock, and an update was {outcome:?}: {why:?}"))
            }
        }
    }

    /// The command that breaks a node and repairs it again.
    pub(super) fn break_command(&self, kind: usize, node: usize) -> String {
        let (script, seconds) = (self.script.display(), self.hold.as_secs());
        let kind = &self.deck.node_fault(kind).name;
        format!("'{script}' break {kind} {node} {seconds}")
    }

    /// Records that a node has this fault from now on. Returns the name of the fault's card.
    pub(super) fn begin_node_fault(&self, kind: usize) -> String {
        self.soak().set_node_down(self.deck.node_fault(kind).is_down);
        self.deck.name(FaultCard::Node(kind))
    }

    /// Records that no node has a fault.
    pub(super) fn end_node_fault(&self) {
        self.soak().set_node_down(false);
    }

    /// Measures the memory of the pods, if the last measurement is old enough.
    pub(super) fn weigh_pods(&mut self, fleet: &Fleet) {
        if self.weighed.is_some_and(|last| last.elapsed() < WEIGH_EVERY) {
            return;
        }
        self.weighed = Some(Instant::now());
        for (pod, process) in fleet.process_ids().into_iter().enumerate() {
            self.soak().weigh(pod, process);
        }
    }

    fn soak(&self) -> &Soak {
        self.run.soak.as_ref().expect("invariant: a deck is played in soaks only")
    }
}
