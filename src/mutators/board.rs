//! The board: which mutators wait to be written, and which of them go together.
//!
//! A write costs a database much and a row little. Rows of one group are one mutation, and groups with
//! the same first replica share at least a round trip. So mutators with something to write board, in
//! the lane of their first replica; a flight takes whoever has boarded there, group by group, and while
//! it is out the next one fills. Few flights are full flights, and the longer mutators wait the more of
//! them are of one group: a further one departs only if many wait, or if those that are out are overdue,
//! so that a node that hangs holds up those whom it carries and nobody else. States that may be large go
//! alone, and at once: a batch has a limit of bytes.

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
const ALONE: Flights = Flights {
    rows_max: 1,
    group_rows_max: 1,
    partitions_max: 1,
    free: FLIGHTS_OF_LANE_MAX,
    backlog: 1,
};

/// Where to wait: in one lane, apart from states of another size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Queue {
    lane: Lane,
    pub(super) is_small: bool,
}

impl Queue {
    pub(super) fn of(lane: Lane, key: &Key) -> Queue {
        Queue { lane, is_small: key.kind.about().is_small() }
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
    pub(super) fn board(&mut self, slot: Arc<Slot>) -> bool {
        let (queue, rules) = (slot.queue, self.rules(slot.queue));
        self.wait(slot);
        self.of(queue).call(rules)
    }

    /// A mutator waits for the flight that it just came with, which departs again at once.
    pub(super) fn wait(&mut self, slot: Arc<Slot>) {
        let waiting = self.queues.entry(slot.queue).or_default();
        let group = (slot.key.kind, slot.key.group.clone());
        let of_group = waiting.groups.entry(group.clone()).or_default();
        if of_group.is_empty() {
            waiting.order.push_back(group);
        }
        of_group.push_back(slot);
        waiting.count += 1;
    }

    /// Takes a load off the queue: those of its first groups; also says whether a flight is called for
    /// those who are left. An empty load ends the flight.
    pub(super) fn take(&mut self, queue: Queue, is_first: bool) -> (Vec<Arc<Slot>>, bool) {
        let rules = self.rules(queue);
        let waiting = self.of(queue);
        waiting.called -= usize::from(is_first);
        let load = waiting.take(rules);
        if load.is_empty() {
            self.landed(queue, false);
            return (load, false);
        }
        let calls = waiting.call(rules);
        (load, calls)
    }

    /// A flight is out for too long: it no longer keeps others from departing. True if one is called
    /// in its place.
    pub(super) fn overdue(&mut self, queue: Queue) -> bool {
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
        // But for those whom called flights will take. A load is full of rows or of groups.
        let left = |count: usize, max: usize| count.saturating_sub(max.saturating_mul(self.called));
        let rows = left(self.count, rules.rows_max);
        let groups = left(self.order.len(), rules.partitions_max);
        let loads = (rows / rules.rows_max).max(groups / rules.partitions_max);
        let is_due = self.out < rules.free + loads / rules.backlog;
        let has_room = self.out + self.overdue < FLIGHTS_OF_LANE_MAX;
        let departs = rows.max(groups) > 0 && is_due && has_room;
        self.called += usize::from(departs);
        self.out += usize::from(departs);
        departs
    }

    fn take(&mut self, rules: Flights) -> Vec<Arc<Slot>> {
        let of_first = self.order.front().map_or(0, |group| self.groups[group].len());
        // A group that fills a load goes alone: it is one mutation, however many rows it has.
        let (rows_max, partitions_max) = match of_first < rules.rows_max {
            true => (rules.rows_max, rules.partitions_max),
            false => (rules.group_rows_max, 1),
        };
        let mut load = Vec::new();
        for _ in 0..partitions_max {
            let Some(group) = self.order.pop_front() else { break };
            let of_group = self.groups.get_mut(&group).expect("invariant: it is in the order");
            let room = rows_max - load.len();
            load.extend(of_group.drain(..room.min(of_group.len())));
            if of_group.is_empty() {
                self.groups.remove(&group);
            } else {
                // Behind the others, who would wait for ever for a group that always fills a load.
                self.order.push_back(group);
            }
            if load.len() == rows_max {
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

    use super::super::Bounds;
    use super::super::slots::Slots;
    use super::*;
    use crate::policy::Policies;

    const RULES: Flights =
        Flights { rows_max: 3, group_rows_max: 5, partitions_max: 2, free: 1, backlog: 1 };
    const SMALL: Queue = Queue { lane: Lane(7), is_small: true };
    const LARGE: Queue = Queue { lane: Lane(7), is_small: false };

    /// Boards the keys, each a kind's first letter, a group and a name; says for which of them a flight
    /// was called.
    fn board(board: &mut Board, keys: &[&str]) -> Vec<bool> {
        let constants = Constants::resolve(Overrides::default()).expect("defaults");
        let now = Now { wall: Timestamp::from_micros(1), boot: Duration::ZERO };
        let name = |text| Name::new(text).expect("a name");
        let bounds = Bounds::awake(100);
        let slots = Slots::new(bounds, constants);
        let mut called = Vec::new();
        for text in keys {
            let kind = if text.starts_with('c') { Kind::Counter } else { Kind::GSet };
            let key = Key { kind, group: name(&text[1..2]), name: name(&text[2..]) };
            let id = MutatorId::new(Uuid::from_u128(1));
            let queue = Queue::of(Lane(7), &key);
            let born = || Mutator::born(key.clone(), id, None, now, &constants);
            let seat = |_| Ok(Policies::default().uncounted_seat(&key.group));
            let found = slots.find_or_insert(&key, now, None, seat, born, || queue);
            called.push(board.board(found.expect("room").slot));
        }
        called
    }

    /// Takes the load of a flight that was just called.
    fn take(board: &mut Board, queue: Queue) -> (Vec<String>, bool) {
        let (load, calls) = board.take(queue, true);
        (load.iter().map(|slot| slot.key.to_string()).collect(), calls)
    }

    fn load(keys: &[&str]) -> Vec<String> {
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    /// The flight that came back takes nothing, and is over.
    fn takes_nothing(board: &mut Board, queue: Queue) -> bool {
        let (load, calls) = board.take(queue, false);
        load.is_empty() && !calls
    }

    #[test]
    fn groups_go_together_as_far_as_there_is_room() {
        let mut of = Board::new(RULES);
        let keys = ["cax", "cbx", "cay", "ccx", "cbz", "caz"];
        assert_eq!(board(&mut of, &keys), [true, false, false, false, false, true]);
        let first = load(&["counter/a/x", "counter/a/y", "counter/a/z"]);
        assert_eq!(take(&mut of, SMALL), (first, false));
        let second = load(&["counter/b/x", "counter/b/z", "counter/c/x"]);
        assert_eq!(take(&mut of, SMALL), (second, false));
        assert!(takes_nothing(&mut of, SMALL), "one of both flights is over");
        assert!(!of.landed(SMALL, false));
        assert!(of.queues.is_empty());
    }

    #[test]
    fn a_group_that_fills_a_load_goes_alone_as_far_as_one_mutation_may_go() {
        let mut of = Board::new(RULES);
        let keys = ["cau", "cbx", "cav", "caw", "cax", "cay", "caz"];
        assert_eq!(board(&mut of, &keys)[..5], [true, false, false, false, false]);
        let five = ["counter/a/u", "counter/a/v", "counter/a/w", "counter/a/x", "counter/a/y"];
        assert_eq!(take(&mut of, SMALL).0, load(&five));
        assert_eq!(take(&mut of, SMALL).0, load(&["counter/b/x", "counter/a/z"]), "two are left");
    }

    #[test]
    fn so_many_who_wait_have_one_more_flight() {
        let rules = Flights { rows_max: 1, group_rows_max: 1, backlog: 3, ..RULES };
        let mut of = Board::new(rules);
        let keys = ["cau", "cav", "caw", "cax", "cay", "caz", "cat", "cas"];
        let called = board(&mut of, &keys);
        let expected = [true, false, false, true, false, false, false, true];
        assert_eq!(called, expected, "each takes one, and three more must wait");
        let mut of =
            Board::new(Flights { rows_max: 100, group_rows_max: 100, backlog: 2, ..RULES });
        let called = board(&mut of, &["cax", "cbx", "ccx", "cdx", "cex", "cfx", "cgx", "chx"]);
        let expected = [true, false, false, false, false, true, false, false];
        assert_eq!(called, expected, "each takes two groups, and four more must wait");
    }

    #[test]
    fn a_group_that_always_fills_a_load_keeps_no_other_waiting() {
        let mut of = Board::new(RULES);
        board(&mut of, &["cau", "cav", "caw", "cax", "cay", "caz", "cbx"]);
        let mut loads = Vec::new();
        for is_first in [true, false, false] {
            let (load, _) = of.take(SMALL, is_first);
            loads.push(load.iter().map(|slot| slot.key.to_string()).collect::<Vec<_>>());
            load.into_iter().for_each(|slot| of.wait(slot));
        }
        assert!(loads[1].contains(&"counter/b/x".to_owned()), "{loads:?}");
    }

    #[test]
    fn those_who_came_with_a_flight_go_with_it_again_and_call_none_but_for_whom_it_has_no_room() {
        let mut of = Board::new(Flights { free: 2, ..RULES });
        assert_eq!(board(&mut of, &["cax", "cbx"]), [true, false], "both fit into one");
        let (slots, calls) = of.take(SMALL, true);
        assert_eq!((slots.len(), calls), (2, false));
        slots.into_iter().for_each(|slot| of.wait(slot));
        assert_eq!(board(&mut of, &["ccx"]), [true], "a second one is free");
        assert_eq!(of.take(SMALL, false).0.len(), 2);
        assert_eq!(take(&mut of, SMALL), (load(&["counter/c/x"]), false));

        let mut of = Board::new(Flights { free: 2, ..RULES });
        assert_eq!(board(&mut of, &["cax"]), [true]);
        let (slots, _) = of.take(SMALL, true);
        slots.into_iter().for_each(|slot| of.wait(slot));
        board(&mut of, &["cbx", "ccx"]);
        assert!(of.take(SMALL, false).0.len() == 2, "two groups have room");
        assert_eq!(take(&mut of, SMALL), (load(&["counter/c/x"]), false));
    }

    #[test]
    fn states_that_may_be_large_go_alone_and_wait_for_nobody() {
        let mut of = Board::new(RULES);
        let called = board(&mut of, &["cax", "gbx", "gby", "cbx", "gcx"]);
        assert_eq!(called, [true, true, true, false, true]);
        assert_eq!(take(&mut of, LARGE), (load(&["gset/b/x"]), false));
        assert_eq!(take(&mut of, LARGE), (load(&["gset/c/x"]), false));
        assert_eq!(take(&mut of, LARGE), (load(&["gset/b/y"]), false));
        assert!(takes_nothing(&mut of, LARGE));
        assert_eq!(take(&mut of, SMALL), (load(&["counter/a/x", "counter/b/x"]), false));
    }

    #[test]
    fn an_overdue_flight_makes_room_for_another() {
        let mut of = Board::new(RULES);
        assert_eq!(board(&mut of, &["cax"]), [true]);
        assert_eq!(take(&mut of, SMALL).0.len(), 1);
        assert_eq!(board(&mut of, &["cay"]), [false]);
        assert!(of.overdue(SMALL));
        assert_eq!(take(&mut of, SMALL).0.len(), 1);
        assert!(!of.landed(SMALL, true) && !of.landed(SMALL, false));
        assert!(of.queues.is_empty());
    }

    #[test]
    fn there_is_an_end_to_flights() {
        let mut of = Board::new(Flights { rows_max: 1, group_rows_max: 1, backlog: 1, ..RULES });
        let keys: Vec<String> = (0..=2 * FLIGHTS_OF_LANE_MAX).map(|i| format!("ca{i}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let called = board(&mut of, &keys).into_iter().filter(|called| *called).count();
        assert_eq!(called, FLIGHTS_OF_LANE_MAX);
        assert_eq!(take(&mut of, SMALL).0.len(), 1);
        assert!(of.landed(SMALL, false), "one of those who are left departs");
    }
}
