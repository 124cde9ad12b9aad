//! The board: which mutators wait to be written, and which of them go together.
//!
//! A write costs a database much and a row little. Rows of one group are one mutation, and groups with
//! the same first replica share at least a round trip. So mutators with something to write board, in
//! the lane of their first replica; a flight takes whoever has boarded there, group by group, and while
//! it is out the next one fills. Few flights are full flights: a further one departs only if a whole
//! load waits for it, or if those that are out are overdue, so that a node that hangs holds up those
//! whom it carries and nobody else. States that may be large go alone, and at once: a batch has a limit
//! of bytes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use orderfree_core::crdt::Kind;
use orderfree_core::protocol::{Key, Name};

use super::slots::Slot;
use crate::limits::FLIGHTS_OF_LANE_MAX;
use crate::store::{Flights, Lane};

/// One partition.
type Group = (Kind, Name);

/// How states that may be large go.
const ALONE: Flights = Flights { rows_max: 1, partitions_max: 1, free: FLIGHTS_OF_LANE_MAX };

/// Where to wait: in one lane, apart from states of another size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Queue {
    lane: Lane,
    is_small: bool,
}

impl Queue {
    pub(super) fn of(lane: Lane, key: &Key) -> Queue {
        Queue { lane, is_small: key.kind.about().is_small }
    }
}

/// See the [module documentation](self).
pub(super) struct Board {
    together: Flights,
    queues: HashMap<Queue, Waiting>,
}

/// Who waits in one queue.
#[derive(Default)]
struct Waiting {
    /// Those of each group, in the order in which they boarded.
    groups: HashMap<Group, VecDeque<Arc<Slot>>>,
    /// The groups, in the order in which the first of each boarded.
    order: VecDeque<Group>,
    count: usize,
    /// Flights that were called and have not taken their load yet.
    called: usize,
    /// Flights that are out, called ones included, and not overdue.
    out: usize,
    overdue: usize,
}

impl Board {
    /// Nobody waits yet.
    pub(super) fn new(together: Flights) -> Board {
        Board { together, queues: HashMap::new() }
    }

    /// A mutator waits for a flight. True if one is called for it.
    pub(super) fn board(&mut self, queue: Queue, key: &Key, slot: Arc<Slot>) -> bool {
        let rules = self.rules(queue);
        let waiting = self.queues.entry(queue).or_default();
        let group = (key.kind, key.group.clone());
        let of_group = waiting.groups.entry(group.clone()).or_default();
        if of_group.is_empty() {
            waiting.order.push_back(group);
        }
        of_group.push_back(slot);
        waiting.count += 1;
        waiting.call(rules)
    }

    /// Takes a load off the queue: those of its first groups. An empty load ends the flight.
    pub(super) fn take(&mut self, queue: Queue, is_first: bool) -> Vec<Arc<Slot>> {
        let rules = self.rules(queue);
        let waiting = self.of(queue);
        waiting.called -= usize::from(is_first);
        let load = waiting.take(rules);
        if load.is_empty() {
            self.landed(queue, false);
        }
        load
    }

    /// A flight is out for too long: it no longer keeps others from departing. True if one is called
    /// in its place.
    pub(super) fn is_overdue(&mut self, queue: Queue) -> bool {
        let rules = self.rules(queue);
        let waiting = self.of(queue);
        waiting.out -= 1;
        waiting.overdue += 1;
        waiting.call(rules)
    }

    /// A flight is over. True if one is called in its place.
    pub(super) fn landed(&mut self, queue: Queue, was_overdue: bool) -> bool {
        let rules = self.rules(queue);
        let waiting = self.of(queue);
        let flights = if was_overdue { &mut waiting.overdue } else { &mut waiting.out };
        *flights -= 1;
        if waiting.count + waiting.out + waiting.overdue == 0 {
            self.queues.remove(&queue);
            return false;
        }
        waiting.call(rules)
    }

    fn rules(&self, queue: Queue) -> Flights {
        if queue.is_small { self.together } else { ALONE }
    }

    fn of(&mut self, queue: Queue) -> &mut Waiting {
        self.queues.get_mut(&queue).expect("invariant: a queue stays while it has a flight")
    }
}

impl Waiting {
    /// Whether a further flight departs; it counts as out then.
    fn call(&mut self, rules: Flights) -> bool {
        let is_due = self.out < rules.free || self.count >= rules.rows_max * (self.called + 1);
        let has_room = self.out + self.overdue < FLIGHTS_OF_LANE_MAX;
        let departs = self.count > 0 && is_due && has_room;
        self.called += usize::from(departs);
        self.out += usize::from(departs);
        departs
    }

    fn take(&mut self, rules: Flights) -> Vec<Arc<Slot>> {
        let mut load = Vec::new();
        for _ in 0..rules.partitions_max {
            let Some(group) = self.order.pop_front() else { break };
            let of_group = self.groups.get_mut(&group).expect("invariant: it is in the order");
            let room = rules.rows_max - load.len();
            load.extend(of_group.drain(..room.min(of_group.len())));
            if of_group.is_empty() {
                self.groups.remove(&group);
            } else {
                self.order.push_front(group);
            }
            if load.len() == rules.rows_max {
                break;
            }
        }
        self.count -= load.len();
        load
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use orderfree_core::protocol::{Constants, Mutator, MutatorId, Now, Overrides, Timestamp};
    use uuid::Uuid;

    use super::super::slots::Slots;
    use super::*;

    const RULES: Flights = Flights { rows_max: 3, partitions_max: 2, free: 1 };
    const SMALL: Queue = Queue { lane: Lane(7), is_small: true };
    const LARGE: Queue = Queue { lane: Lane(7), is_small: false };

    /// Boards the keys, each a kind's first letter, a group and a name; says for which of them a flight
    /// was called.
    fn board(board: &mut Board, keys: &[&str]) -> Vec<bool> {
        let constants = Constants::resolve(Overrides::default()).expect("defaults");
        let now = Now { wall: Timestamp::from_micros(1), boot: Duration::ZERO };
        let name = |text| Name::new(text).expect("a name");
        let slots = Slots::new(100);
        let mut called = Vec::new();
        for text in keys {
            let kind = if text.starts_with('c') { Kind::Counter } else { Kind::GSet };
            let key = Key { kind, group: name(&text[1..2]), name: name(&text[2..]) };
            let id = MutatorId::new(Uuid::from_u128(1));
            let born = || Mutator::born(key.clone(), id, None, now, &constants);
            let (slot, _) = slots.find_or_insert(&key, born).expect("room");
            called.push(board.board(Queue::of(Lane(7), &key), &key, slot));
        }
        called
    }

    fn names(load: &[Arc<Slot>]) -> Vec<String> {
        load.iter().map(|slot| slot.lock().mutator.key().to_string()).collect()
    }

    #[test]
    fn groups_go_together_as_far_as_there_is_room() {
        let mut of = Board::new(RULES);
        let keys = ["cax", "cbx", "cay", "ccx", "cbz", "caz"];
        assert_eq!(board(&mut of, &keys), [true, false, false, false, false, true]);
        let first = of.take(SMALL, true);
        assert_eq!(names(&first), ["counter/a/x", "counter/a/y", "counter/a/z"]);
        assert_eq!(names(&of.take(SMALL, true)), ["counter/b/x", "counter/b/z", "counter/c/x"]);
        assert!(of.take(SMALL, false).is_empty(), "one of both flights is over");
        assert!(!of.landed(SMALL, false));
        assert!(of.queues.is_empty());
    }

    #[test]
    fn states_that_may_be_large_go_alone_and_wait_for_nobody() {
        let mut of = Board::new(RULES);
        let called = board(&mut of, &["cax", "gbx", "gby", "cbx", "gcx"]);
        assert_eq!(called, [true, true, true, false, true]);
        assert_eq!(names(&of.take(LARGE, true)), ["gset/b/x"]);
        assert_eq!(names(&of.take(LARGE, true)), ["gset/b/y"]);
        assert_eq!(names(&of.take(LARGE, true)), ["gset/c/x"]);
        assert!(of.take(LARGE, false).is_empty());
        assert_eq!(names(&of.take(SMALL, true)), ["counter/a/x", "counter/b/x"]);
    }

    #[test]
    fn an_overdue_flight_makes_room_for_another() {
        let mut of = Board::new(RULES);
        assert_eq!(board(&mut of, &["cax"]), [true]);
        assert_eq!(of.take(SMALL, true).len(), 1);
        assert_eq!(board(&mut of, &["cay"]), [false]);
        assert!(of.is_overdue(SMALL));
        assert_eq!(of.take(SMALL, true).len(), 1);
        assert!(!of.landed(SMALL, true) && !of.landed(SMALL, false));
        assert!(of.queues.is_empty());
    }

    #[test]
    fn there_is_an_end_to_flights() {
        let mut of = Board::new(Flights { rows_max: 1, ..RULES });
        let keys: Vec<String> = (0..=FLIGHTS_OF_LANE_MAX).map(|i| format!("ca{i}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let called = board(&mut of, &keys).into_iter().filter(|called| *called).count();
        assert_eq!(called, FLIGHTS_OF_LANE_MAX);
        assert_eq!(of.take(SMALL, true).len(), 1);
        assert!(of.landed(SMALL, false), "the one that is left departs");
    }
}
