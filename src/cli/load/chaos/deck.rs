//! The deck of a soak: which fault comes next.
//!
//! Every kind of fault is a card. The deck is shuffled by the seed, played to its end and shuffled
//! again, so that each kind occurs about as often as any other. A card that can't be played now,
//! because a node is in trouble already or a pod is paused already, waits in the deck, and the next
//! one that can be played goes before it.

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Card {
    /// SIGKILL, and a start soon after.
    PodKill,
    /// SIGSTOP for longer than a mutator lives and its row stays unfolded.
    PodPause,
    /// SIGTERM: the pod drains, ends and is started again.
    PodRestart,
    /// A pod's wall clock is set off by less than the limit: it has to go on.
    ClockWithin,
    /// A pod's wall clock is set off by more than the limit: it has to refuse updates.
    ClockBeyond,
    /// Something happens to a node: the kind of this index.
    Node(usize),
}

/// A kind of fault of a node, as the script that causes it names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct NodeFault {
    /// Its name.
    pub name: String,
    /// Whether the node is as good as down meanwhile.
    pub is_down: bool,
    /// The numbers of the nodes that it may befall.
    pub nodes: Vec<usize>,
}

/// The cards of pods: these any machine can play.
const POD_CARDS: [Card; 5] =
    [Card::PodPause, Card::PodKill, Card::PodRestart, Card::ClockWithin, Card::ClockBeyond];

/// See the [module documentation](self).
#[derive(Debug)]
pub(in super::super) struct Deck {
    kinds: Vec<NodeFault>,
    cards: Vec<Card>,
    rng: SmallRng,
}

impl Deck {
    /// A deck with every kind once. A pod's pause comes first, since it lasts longest: a short run
    /// would otherwise end before it does.
    pub(in super::super) fn new(kinds: Vec<NodeFault>, rng: SmallRng) -> Self {
        let mut deck = Self { kinds, cards: Vec::new(), rng };
        deck.shuffle();
        if let Some(pause) = deck.cards.iter().position(|card| *card == Card::PodPause) {
            deck.cards.swap(0, pause);
        }
        deck
    }

    /// Takes the next card that can be played. `None` if no kind can.
    pub(super) fn draw(&mut self, can_play: impl Fn(Card) -> bool) -> Option<Card> {
        let mut found = self.cards.iter().position(|card| can_play(*card));
        if found.is_none() {
            self.shuffle();
            found = self.cards.iter().position(|card| can_play(*card));
        }
        found.map(|index| self.cards.remove(index))
    }

    /// Puts every kind once under the cards that are left. Those that wait are not doubled: a kind
    /// that can't be played for long must not fill the deck.
    fn shuffle(&mut self) {
        let nodes = (0..self.kinds.len()).map(Card::Node);
        let mut cards: Vec<Card> = POD_CARDS.into_iter().chain(nodes).collect();
        cards.retain(|card| !self.cards.contains(card));
        cards.shuffle(&mut self.rng);
        self.cards.extend(cards);
    }

    /// What a card is called in the report.
    pub(super) fn name(&self, card: Card) -> String {
        match card {
            Card::PodKill => "pod-kill".to_owned(),
            Card::PodPause => "pod-pause".to_owned(),
            Card::PodRestart => "pod-restart".to_owned(),
            Card::ClockWithin => "pod-clock-within".to_owned(),
            Card::ClockBeyond => "pod-clock-beyond".to_owned(),
            Card::Node(kind) => format!("node-{}", self.kinds[kind].name),
        }
    }

    /// The names of all kinds.
    pub(in super::super) fn names(&self) -> Vec<String> {
        let nodes = (0..self.kinds.len()).map(Card::Node);
        POD_CARDS.into_iter().chain(nodes).map(|card| self.name(card)).collect()
    }

    /// A kind of fault of a node.
    pub(super) fn node_fault(&self, kind: usize) -> &NodeFault {
        &self.kinds[kind]
    }

    /// One of these, by chance.
    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.rng.random_range(0..from.len())])
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn deck(seed: u64) -> Deck {
        let kinds = ["kill", "pause", "cut"];
        let kinds = kinds.map(|name| NodeFault {
            name: name.to_owned(),
            is_down: true,
            nodes: vec![1, 2, 3],
        });
        Deck::new(kinds.into(), SmallRng::seed_from_u64(seed))
    }

    fn drawn(mut deck: Deck, count: usize) -> Vec<String> {
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
            let card = deck.draw(|card| !matches!(card, Card::Node(_))).expect("a card");
            assert!(POD_CARDS.contains(&card));
        }
        assert!(deck.cards.len() <= 8, "{:?}", deck.cards);
        let first = deck.draw(|card| matches!(card, Card::Node(_)));
        assert!(first.is_some());
        assert_eq!(deck.draw(|_| false), None);
    }
}
