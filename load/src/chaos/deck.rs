//! The deck of a soak: which fault comes next.
//!
//! Every kind of fault is a card. The deck is shuffled by the seed, played to its end, and shuffled
//! again, so all kinds occur about equally often. Some cards cannot be played now, because a node
//! already has a fault or a pod is already paused. Such a card waits in the deck, and the next card
//! that can be played comes first.

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultCard {
    /// A pod gets SIGKILL, and is started soon after.
    PodKill,
    /// A pod gets SIGSTOP for longer than a mutator lives and its row stays unfolded.
    PodPause,
    /// A pod gets SIGTERM: it drains, ends and is started again.
    PodRestart,
    /// The wall clock of a pod is set off by less than the limit: the pod must go on.
    ClockWithin,
    /// The wall clock of a pod is set off by more than the limit: the pod must refuse updates.
    ClockBeyond,
    /// A node gets the fault of this index.
    Node(usize),
}

/// A kind of fault of a node. The script causes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeFault {
    /// Its name in the script.
    pub name: String,
    /// Whether the node is as good as down during the fault.
    pub is_down: bool,
    /// The numbers of the nodes that can get the fault.
    pub nodes: Vec<usize>,
}

/// The cards of pods, which every machine can play.
const POD_CARDS: [FaultCard; 5] = [
    FaultCard::PodPause,
    FaultCard::PodKill,
    FaultCard::PodRestart,
    FaultCard::ClockWithin,
    FaultCard::ClockBeyond,
];

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct FaultDeck {
    kinds: Vec<NodeFault>,
    cards: Vec<FaultCard>,
    rng: SmallRng,
}

impl FaultDeck {
    /// A deck with every kind once. The pause of a pod comes first, because it lasts longest: a short
    /// run would otherwise end before the pause does.
    pub(crate) fn new(kinds: Vec<NodeFault>, rng: SmallRng) -> Self {
        let mut deck = Self { kinds, cards: Vec::new(), rng };
        deck.shuffle();
        if let Some(pause) = deck.cards.iter().position(|card| *card == FaultCard::PodPause) {
            deck.cards.swap(0, pause);
        }
        deck
    }

    /// Takes the next card that can be played. `None` if no kind can.
    pub(super) fn draw(&mut self, can_play: impl Fn(FaultCard) -> bool) -> Option<FaultCard> {
        let mut found = self.cards.iter().position(|card| can_play(*card));
        if found.is_none() {
            self.shuffle();
            found = self.cards.iter().position(|card| can_play(*card));
        }
        found.map(|index| self.cards.remove(index))
    }

    /// Puts every kind that is not in the deck under the cards that are. A card that has waited for a
    /// long time is in the deck only once, so it cannot fill the deck.
    fn shuffle(&mut self) {
        let nodes = (0..self.kinds.len()).map(FaultCard::Node);
        let mut cards: Vec<FaultCard> = POD_CARDS.into_iter().chain(nodes).collect();
        cards.retain(|card| !self.cards.contains(card));
        cards.shuffle(&mut self.rng);
        self.cards.extend(cards);
    }

    /// The name of a card in the report.
    pub(super) fn name(&self, card: FaultCard) -> String {
        match card {
            FaultCard::PodKill => "pod-kill".to_owned(),
            FaultCard::PodPause => "pod-pause".to_owned(),
            FaultCard::PodRestart => "pod-restart".to_owned(),
            FaultCard::ClockWithin => "pod-clock-within".to_owned(),
            FaultCard::ClockBeyond => "pod-clock-beyond".to_owned(),
            FaultCard::Node(kind) => format!("node-{}", self.kinds[kind].name),
        }
    }

    /// The names of all cards.
    pub(crate) fn names(&self) -> Vec<String> {
        let nodes = (0..self.kinds.len()).map(FaultCard::Node);
        POD_CARDS.into_iter().chain(nodes).map(|card| self.name(card)).collect()
    }

    /// The fault of a node with this index.
    pub(super) fn node_fault(&self, kind: usize) -> &NodeFault {
        &self.kinds[kind]
    }

    /// A random item of a slice.
    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.rng.random_range(0..from.len())])
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn deck(seed: u64) -> FaultDeck {
        let kinds = ["kill", "pause", "cut"];
        let kinds = kinds.map(|name| NodeFault {
            name: name.to_owned(),
            is_down: true,
            nodes: vec![1, 2, 3],
        });
        FaultDeck::new(kinds.into(), SmallRng::seed_from_u64(seed))
    }

    fn drawn(mut deck: FaultDeck, count: usize) -> Vec<String> {
        (0..count)
            .map(|_| {
                let card = deck.draw(|_| true).expect("a card");
                deck.name(card)
            })
            .collect()
    }

    #[test]
    fn every_kind_comes_once_in_each_round_in_an_order_of_the_seed() {
        let mut all = deck(1).names();
        all.sort();
        for round in drawn(deck(1), 16).chunks(8) {
            let mut round = round.to_vec();
            round.sort();
            assert_eq!(round, all);
        }
        assert_eq!(drawn(deck(1), 16), drawn(deck(1), 16));
        assert_ne!(drawn(deck(1), 16), drawn(deck(2), 16));
        assert_eq!(drawn(deck(3), 1), ["pod-pause"]);
    }

    #[test]
    fn a_card_that_cannot_be_played_waits_for_its_time() {
        let mut deck = deck(1);
        for _ in 0..50 {
            let card = deck.draw(|card| !matches!(card, FaultCard::Node(_))).expect("a card");
            assert!(POD_CARDS.contains(&card));
        }
        assert!(deck.cards.len() <= 8, "{:?}", deck.cards);
        let first = deck.draw(|card| matches!(card, FaultCard::Node(_)));
        assert!(first.is_some());
        assert_eq!(deck.draw(|_| false), None);
    }
}
