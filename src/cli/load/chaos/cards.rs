//! How the executor plays the cards of a soak.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::checker::Outcome;
use super::super::drive::Run;
use super::super::soak::Soak;
use super::executor::Executor;
use super::{Act, Card, Deck, Step};

/// Pods that stay free of trouble, whatever is played.
const FREE_PODS_MIN: usize = 2;
/// How long a pod is left alone after its fault is over: it has to start, connect and get ready.
const RECOVERY: Duration = Duration::from_secs(3);
/// Time for a pod to drain and end after SIGTERM.
const DRAIN: Duration = Duration::from_secs(8);
/// How long a clock is off.
const SHIFT_FOR: Duration = Duration::from_secs(8);
/// When the gate of a pod with a wrong clock is tried.
const SHUT_AFTER: Duration = Duration::from_millis(200);
/// How far off a clock is, within the limit that follows from a drain margin of 10 s: 4 s.
const WITHIN_MS: [i64; 2] = [-1_500, 1_500];
/// The same beyond the limit.
const BEYOND_MS: [i64; 2] = [-15_000, 15_000];
/// How often the memory of pods is looked up.
const WEIGH_EVERY: Duration = Duration::from_secs(2);

/// What the executor needs for a soak.
#[derive(Debug)]
pub(in super::super) struct Soaked {
    /// The deck.
    pub deck: Deck,
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
    /// Until when each pod has trouble, from the start.
    pub busy: Vec<Duration>,
    /// Until when a pod is paused.
    pub paused: Duration,
    /// When the memory of the pods was looked up.
    pub weighed: Option<Instant>,
}

impl Soaked {
    fn soak(&self) -> &Soak {
        self.run.soak.as_ref().expect("invariant: a deck is played in soaks only")
    }
}

impl Executor {
    /// Plays the next card that can be played now.
    pub(super) fn draw(&mut self) {
        let now = self.start.elapsed();
        let no_node_is_broken = self.running.is_none() && self.waiting.is_empty();
        let Some(soaked) = &mut self.soaked else { return };
        let pods = 0..soaked.busy.len();
        let free: Vec<usize> = pods.filter(|pod| soaked.busy[*pod] <= now).collect();
        let (pause_for, paused) = (soaked.pause_for, soaked.paused > now);
        let left = soaked.length.saturating_sub(now);
        let card = soaked.deck.draw(|card| match card {
            Card::Node(_) => no_node_is_broken,
            Card::PodPause => !paused && free.len() > FREE_PODS_MIN && pause_for < left,
            _ => free.len() > FREE_PODS_MIN,
        });
        let Some(card) = card else {
            self.note("no card could be played".to_owned());
            return;
        };
        // A fault of a node needs no pod.
        let pod = soaked.deck.pick(&free).unwrap_or(0);
        let name = soaked.deck.name(card);
        let (acts, until) = soaked.acts(card, pod, now);
        if let Some(until) = until {
            soaked.busy[pod] = until + RECOVERY;
        }
        if card == Card::PodPause {
            soaked.paused = now + pause_for;
        }
        self.note(format!("card: {name}"));
        // A node's fault counts when it starts: at the end of the load it may not come to that.
        if !matches!(card, Card::Node(_)) {
            *self.diary.cards.entry(name).or_default() += 1;
        }
        for (after, act) in acts {
            self.later(Step { at: now + after, act });
        }
    }

    fn later(&mut self, step: Step) {
        let place = self.steps.partition_point(|other| *other <= step);
        self.steps.insert(place, step);
    }

    /// Sends one update to a pod whose clock is wrong. It has to be refused, or acks might be lost;
    /// a pod that cannot ask most nodes for the time refuses it as well, and finds nothing wrong.
    pub(super) async fn expect_shut(&mut self, pod: usize) {
        let Some(soaked) = &self.soaked else { return };
        let reply = soaked.soak().try_twin(&soaked.run.pods[pod]).await;
        match (reply.outcome, reply.why) {
            (Outcome::Refused, Some(why)) if why.detail.contains("/problems/clock") => {
                if why.detail.contains("clock differs") {
                    soaked.soak().gate_was_shut();
                }
                self.note(format!("pod {pod}: gate shut: {}", why.detail));
            }
            (outcome, why) => self.problem(format!(
                "pod {pod} has a wrong clock, and an update was {outcome:?}: {why:?}"
            )),
        }
    }

    /// The command that breaks a node and mends it again.
    pub(super) fn break_command(&self, kind: usize, node: usize) -> Option<String> {
        let soaked = self.soaked.as_ref()?;
        let (script, seconds) = (soaked.script.display(), soaked.hold.as_secs());
        let kind = &soaked.deck.node_fault(kind).name;
        Some(format!("'{script}' break {kind} {node} {seconds}"))
    }

    /// From now on a node is in trouble.
    pub(super) fn node_in_trouble(&mut self, kind: usize) {
        if let Some(soaked) = &self.soaked {
            soaked.soak().set_node_down(soaked.deck.node_fault(kind).is_down);
            let name = soaked.deck.name(Card::Node(kind));
            *self.diary.cards.entry(name).or_default() += 1;
        }
    }

    /// All nodes are well again.
    pub(super) fn node_mended(&self) {
        if let Some(soaked) = &self.soaked {
            soaked.soak().set_node_down(false);
        }
    }

    /// Looks up the memory of the pods now and then.
    pub(super) fn weigh_pods(&mut self) {
        let Some(soaked) = &mut self.soaked else { return };
        if soaked.weighed.is_some_and(|last| last.elapsed() < WEIGH_EVERY) {
            return;
        }
        soaked.weighed = Some(Instant::now());
        for (pod, process) in self.fleet.process_ids().into_iter().enumerate() {
            soaked.soak().weigh(pod, process);
        }
    }
}

impl Soaked {
    /// What a card does when, and until when its pod has trouble.
    fn acts(
        &mut self,
        card: Card,
        pod: usize,
        now: Duration,
    ) -> (Vec<(Duration, Act)>, Option<Duration>) {
        let at_once = Duration::ZERO;
        match card {
            Card::PodKill => (
                vec![(at_once, Act::Kill(pod)), (self.restart_after, Act::Restart(pod))],
                Some(now + self.restart_after),
            ),
            Card::PodPause => (
                vec![(at_once, Act::Pause(pod)), (self.pause_for, Act::Resume(pod))],
                Some(now + self.pause_for),
            ),
            Card::PodRestart => (vec![(at_once, Act::Terminate(pod))], Some(now + DRAIN)),
            Card::ClockWithin => {
                let millis = self.deck.pick(&WITHIN_MS).unwrap_or_default();
                let acts =
                    vec![(at_once, Act::Shift(pod, millis)), (SHIFT_FOR, Act::Shift(pod, 0))];
                (acts, Some(now + SHIFT_FOR))
            }
            Card::ClockBeyond => {
                let millis = self.deck.pick(&BEYOND_MS).unwrap_or_default();
                let acts = vec![
                    (at_once, Act::Shift(pod, millis)),
                    (SHUT_AFTER, Act::ExpectShut(pod)),
                    (SHIFT_FOR, Act::Shift(pod, 0)),
                ];
                (acts, Some(now + SHIFT_FOR))
            }
            Card::Node(kind) => {
                let nodes = self.deck.node_fault(kind).nodes.clone();
                let acts = self.deck.pick(&nodes).map(|node| (at_once, Act::Break(kind, node)));
                (acts.into_iter().collect(), None)
            }
        }
    }
}
