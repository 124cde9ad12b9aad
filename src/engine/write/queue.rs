//! Step 2: the write queue. It holds the mutators that wait to be written, and decides which are written
//! together.
//!
//! For a database, a write request costs much and a row costs little. Rows of one group are one mutation, and
//! groups with the same first replica share at least a round trip. So a mutator with something to write is
//! queued for its first replica. A request takes the queued mutators of a replica, group by group, and while
//! it is in flight, the next one fills.
//!
//! Fewer requests are fuller requests, and the longer mutators wait, the more of them belong to one group. So
//! a further request is sent only if many mutators wait, or if the requests in flight are overdue. A node
//! that hangs delays only the mutators in its requests. States that can be large are written alone and at
//! once, because a request has a size limit in bytes. Packs know their size, so as many go together as fit.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use orderfree_core::crdt::Kind;
use orderfree_core::protocol::Name;

use super::Mutators;
use super::entry::{Entry, QueueId};
use super::writer::RowSize;
use crate::limits::{GROUP_PACK_BYTES_MAX, WRITE_REQUESTS_OF_REPLICA_MAX};
use crate::runtime::sync::{MutexGuard, PoisonError};
use crate::store::RequestLimits;

impl Mutators {
    /// Queues a mutator that no task has, and starts a request if one is due.
    pub(super) fn enqueue(self: &Arc<Self>, entry: Arc<Entry>) {
        let queue = entry.queue;
        if self.queue().push(entry) {
            self.start_sending(queue);
        }
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, WriteQueue> {
        self.write_queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One partition.
type Group = (Kind, Name);

/// The limits for states that can be large.
const ALONE: RequestLimits = RequestLimits {
    rows_max: 1,
    group_rows_max: 1,
    partitions_max: 1,
    bytes_max: usize::MAX,
    free: WRITE_REQUESTS_OF_REPLICA_MAX,
    backlog: 1,
};

/// See the [module documentation](self).
pub(super) struct WriteQueue {
    together: RequestLimits,
    queues: HashMap<QueueId, ReplicaQueue>,
}

/// The mutators that wait in one queue.
#[derive(Default)]
struct ReplicaQueue {
    /// The mutators of each group, in queue order.
    groups: HashMap<Group, VecDeque<Arc<Entry>>>,
    /// The groups, in the queue order of their first mutators.
    order: VecDeque<Group>,
    count: usize,
    /// Requests that were called for and have not taken their mutators yet.
    called: usize,
    /// Requests in flight that are not overdue, including the called ones.
    in_flight: usize,
    /// Requests in flight that are overdue.
    overdue: usize,
}

impl WriteQueue {
    pub(super) fn new(together: RequestLimits) -> WriteQueue {
        WriteQueue { together, queues: HashMap::new() }
    }

    /// Queues a mutator. True if this calls for another request.
    pub(super) fn push(&mut self, entry: Arc<Entry>) -> bool {
        let (queue, limits) = (entry.queue, self.limits(entry.queue));
        self.add(entry);
        self.of(queue).needs_request(limits)
    }

    /// Queues a mutator and calls for nothing: the task that has just written it sends the next request at
    /// once.
    pub(super) fn add(&mut self, entry: Arc<Entry>) {
        let waiting = self.queues.entry(entry.queue).or_default();
        let group = (entry.writer.key.kind, entry.writer.key.group.clone());
        let of_group = waiting.groups.entry(group.clone()).or_default();
        if of_group.is_empty() {
            waiting.order.push_back(group);
        }
        of_group.push_back(entry);
        waiting.count += 1;
    }

    /// Takes the mutators of one request, from the first groups. Also tells whether the remaining ones call
    /// for another request. If there are none, the task ends.
    pub(super) fn take(&mut self, queue: QueueId, is_first: bool) -> (Vec<Arc<Entry>>, bool) {
        let limits = self.limits(queue);
        let waiting = self.of(queue);
        waiting.called -= usize::from(is_first);
        let taken = waiting.take(limits);
        if taken.is_empty() {
            self.finished(queue, false);
            return (taken, false);
        }
        let calls = waiting.needs_request(limits);
        (taken, calls)
    }

    /// Marks a request in flight as overdue. It no longer holds others back. True if this calls for another
    /// request.
    pub(super) fn mark_overdue(&mut self, queue: QueueId) -> bool {
        let limits = self.limits(queue);
        let waiting = self.of(queue);
        waiting.in_flight -= 1;
        waiting.overdue += 1;
        waiting.needs_request(limits)
    }

    /// Ends a request in flight. True if this calls for another one.
    pub(super) fn finished(&mut self, queue: QueueId, was_overdue: bool) -> bool {
        let limits = self.limits(queue);
        let waiting = self.of(queue);
        let count = if was_overdue { &mut waiting.overdue } else { &mut waiting.in_flight };
        *count -= 1;
        if waiting.count + waiting.in_flight + waiting.overdue == 0 {
            self.queues.remove(&queue);
            return false;
        }
        waiting.needs_request(limits)
    }

    fn limits(&self, queue: QueueId) -> RequestLimits {
        if queue.row_size == RowSize::Large { ALONE } else { self.together }
    }

    fn of(&mut self, queue: QueueId) -> &mut ReplicaQueue {
        self.queues
            .get_mut(&queue)
            .expect("invariant: a queue stays while it has a request in flight")
    }
}

impl ReplicaQueue {
    /// Whether to call for another request. It then counts as in flight.
    fn needs_request(&mut self, limits: RequestLimits) -> bool {
        // Leave out the mutators that called requests will take. A request is full of rows or of groups.
        let left = |count: usize, max: usize| count.saturating_sub(max.saturating_mul(self.called));
        let rows = left(self.count, limits.rows_max);
        let groups = left(self.order.len(), limits.partitions_max);
        let full = (rows / limits.rows_max).max(groups / limits.partitions_max);
        let is_due = self.in_flight < limits.free + full / limits.backlog;
        let has_room = self.in_flight + self.overdue < WRITE_REQUESTS_OF_REPLICA_MAX;
        let is_called = rows.max(groups) > 0 && is_due && has_room;
        self.called += usize::from(is_called);
        self.in_flight += usize::from(is_called);
        is_called
    }

    fn take(&mut self, limits: RequestLimits) -> Vec<Arc<Entry>> {
        let of_first = self.order.front().map_or(0, |group| self.groups[group].len());
        // A group that fills a request goes alone: it is one mutation, however many rows it has.
        let (rows_max, partitions_max) = match of_first < limits.rows_max {
            true => (limits.rows_max, limits.partitions_max),
            false => (limits.group_rows_max, 1),
        };
        let (mut taken, mut bytes) = (Vec::new(), 0);
        for partition in 0..partitions_max {
            let Some(group) = self.order.pop_front() else { break };
            let of_group = self.groups.get_mut(&group).expect("invariant: it is in the order");
            let room = of_group.len().min(rows_max - taken.len());
            let most = if partition == 0 { GROUP_PACK_BYTES_MAX } else { limits.bytes_max };
            let is_first = taken.is_empty();
            let sizes = of_group.iter().take(room).enumerate().take_while(|(at, entry)| {
                bytes += entry.pack_bytes();
                bytes <= most || (is_first && *at == 0)
            });
            let rows = sizes.count();
            taken.extend(of_group.drain(..rows));
            if of_group.is_empty() {
                self.groups.remove(&group);
            } else {
                // To the end, or a group that always fills a request would starve the others.
                self.order.push_back(group);
            }
            if taken.len() == rows_max || bytes > limits.bytes_max {
                break;
            }
        }
        self.count -= taken.len();
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use orderfree_core::protocol::{Constants, Key, Mutator, MutatorId, Now, Overrides, Timestamp};
    use uuid::Uuid;

    use super::super::Bounds;
    use super::super::table::MutatorTable;
    use super::super::writer::Writer;
    use super::*;
    use crate::policy::Policies;
    use crate::store::FirstReplica;

    const LIMITS: RequestLimits = RequestLimits {
        rows_max: 3,
        group_rows_max: 5,
        partitions_max: 2,
        bytes_max: 1,
        free: 1,
        backlog: 1,
    };
    const SMALL: QueueId = QueueId { replica: FirstReplica(7), row_size: RowSize::Small };
    const LARGE: QueueId = QueueId { replica: FirstReplica(7), row_size: RowSize::Large };

    /// Queues the keys, each written as a kind's first letter, a group and a name. Returns which of them
    /// called for a request.
    fn push(queue_of: &mut WriteQueue, keys: &[&str]) -> Vec<bool> {
        let constants = Constants::resolve(Overrides::default()).expect("defaults");
        let now = Now { wall: Timestamp::from_micros(1), boot: Duration::ZERO };
        let name = |text| Name::new(text).expect("a name");
        let bounds = Bounds::awake(100);
        let table = MutatorTable::new(bounds, constants);
        let mut called = Vec::new();
        for text in keys {
            let kind = if text.starts_with('c') { Kind::Counter } else { Kind::GSet };
            let key = Key { kind, group: name(&text[1..2]), name: name(&text[2..]) };
            let id = MutatorId::new(Uuid::from_u128(1));
            let writer = Writer::of_state(&key);
            let queue = QueueId::of(FirstReplica(7), &writer);
            let born = || Mutator::born(key.clone(), id, None, now, &constants);
            let permit = |_| Ok(Policies::default().uncounted_permit(&key.group));
            let found = table.find_or_insert(&writer, now, None, permit, born, || queue);
            called.push(queue_of.push(found.expect("room").entry));
        }
        called
    }

    /// Takes the mutators of a request that was just called for.
    fn take(queue_of: &mut WriteQueue, queue: QueueId) -> (Vec<String>, bool) {
        let (taken, calls) = queue_of.take(queue, true);
        (taken.iter().map(|entry| entry.writer.key.to_string()).collect(), calls)
    }

    fn taken(keys: &[&str]) -> Vec<String> {
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    /// The task finds no mutators for its next request, and ends.
    fn takes_nothing(queue_of: &mut WriteQueue, queue: QueueId) -> bool {
        let (taken, calls) = queue_of.take(queue, false);
        taken.is_empty() && !calls
    }

    #[test]
    fn groups_go_together_as_far_as_there_is_room() {
        let mut of = WriteQueue::new(LIMITS);
        let keys = ["cax", "cbx", "cay", "ccx", "cbz", "caz"];
        assert_eq!(push(&mut of, &keys), [true, false, false, false, false, true]);
        let first = taken(&["counter/a/x", "counter/a/y", "counter/a/z"]);
        assert_eq!(take(&mut of, SMALL), (first, false));
        let second = taken(&["counter/b/x", "counter/b/z", "counter/c/x"]);
        assert_eq!(take(&mut of, SMALL), (second, false));
        assert!(takes_nothing(&mut of, SMALL), "one of both requests is done");
        assert!(!of.finished(SMALL, false));
        assert!(of.queues.is_empty());
    }

    #[test]
    fn a_group_that_fills_a_request_goes_alone_up_to_one_mutation() {
        let mut of = WriteQueue::new(LIMITS);
        let keys = ["cau", "cbx", "cav", "caw", "cax", "cay", "caz"];
        assert_eq!(push(&mut of, &keys)[..5], [true, false, false, false, false]);
        let five = ["counter/a/u", "counter/a/v", "counter/a/w", "counter/a/x", "counter/a/y"];
        assert_eq!(take(&mut of, SMALL).0, taken(&five));
        assert_eq!(take(&mut of, SMALL).0, taken(&["counter/b/x", "counter/a/z"]), "two are left");
    }

    #[test]
    fn a_long_queue_has_one_more_request() {
        let limits = RequestLimits { rows_max: 1, group_rows_max: 1, backlog: 3, ..LIMITS };
        let mut of = WriteQueue::new(limits);
        let keys = ["cau", "cav", "caw", "cax", "cay", "caz", "cat", "cas"];
        let called = push(&mut of, &keys);
        let expected = [true, false, false, true, false, false, false, true];
        assert_eq!(called, expected, "each takes one, and three more must wait");
        let mut of = WriteQueue::new(RequestLimits {
            rows_max: 100,
            group_rows_max: 100,
            backlog: 2,
            ..LIMITS
        });
        let called = push(&mut of, &["cax", "cbx", "ccx", "cdx", "cex", "cfx", "cgx", "chx"]);
        let expected = [true, false, false, false, false, true, false, false];
        assert_eq!(called, expected, "each takes two groups, and four more must wait");
    }

    #[test]
    fn a_group_that_always_fills_a_request_keeps_no_other_waiting() {
        let mut of = WriteQueue::new(LIMITS);
        push(&mut of, &["cau", "cav", "caw", "cax", "cay", "caz", "cbx"]);
        let mut requests = Vec::new();
        for is_first in [true, false, false] {
            let (taken, _) = of.take(SMALL, is_first);
            requests
                .push(taken.iter().map(|entry| entry.writer.key.to_string()).collect::<Vec<_>>());
            taken.into_iter().for_each(|entry| of.add(entry));
        }
        assert!(requests[1].contains(&"counter/b/x".to_owned()), "{requests:?}");
    }

    #[test]
    fn requeued_mutators_share_the_next_request_if_it_has_room() {
        let mut of = WriteQueue::new(RequestLimits { free: 2, ..LIMITS });
        assert_eq!(push(&mut of, &["cax", "cbx"]), [true, false], "both fit into one");
        let (entries, calls) = of.take(SMALL, true);
        assert_eq!((entries.len(), calls), (2, false));
        entries.into_iter().for_each(|entry| of.add(entry));
        assert_eq!(push(&mut of, &["ccx"]), [true], "a second one is free");
        assert_eq!(of.take(SMALL, false).0.len(), 2);
        assert_eq!(take(&mut of, SMALL), (taken(&["counter/c/x"]), false));

        let mut of = WriteQueue::new(RequestLimits { free: 2, ..LIMITS });
        assert_eq!(push(&mut of, &["cax"]), [true]);
        let (entries, _) = of.take(SMALL, true);
        entries.into_iter().for_each(|entry| of.add(entry));
        push(&mut of, &["cbx", "ccx"]);
        assert!(of.take(SMALL, false).0.len() == 2, "two groups have room");
        assert_eq!(take(&mut of, SMALL), (taken(&["counter/c/x"]), false));
    }

    #[test]
    fn states_that_may_be_large_go_alone_and_do_not_wait() {
        let mut of = WriteQueue::new(LIMITS);
        let called = push(&mut of, &["cax", "gbx", "gby", "cbx", "gcx"]);
        assert_eq!(called, [true, true, true, false, true]);
        assert_eq!(take(&mut of, LARGE), (taken(&["gset/b/x"]), false));
        assert_eq!(take(&mut of, LARGE), (taken(&["gset/c/x"]), false));
        assert_eq!(take(&mut of, LARGE), (taken(&["gset/b/y"]), false));
        assert!(takes_nothing(&mut of, LARGE));
        assert_eq!(take(&mut of, SMALL), (taken(&["counter/a/x", "counter/b/x"]), false));
    }

    #[test]
    fn an_overdue_request_makes_room_for_another() {
        let mut of = WriteQueue::new(LIMITS);
        assert_eq!(push(&mut of, &["cax"]), [true]);
        assert_eq!(take(&mut of, SMALL).0.len(), 1);
        assert_eq!(push(&mut of, &["cay"]), [false]);
        assert!(of.mark_overdue(SMALL));
        assert_eq!(take(&mut of, SMALL).0.len(), 1);
        assert!(!of.finished(SMALL, true) && !of.finished(SMALL, false));
        assert!(of.queues.is_empty());
    }

    #[test]
    fn requests_in_flight_have_a_maximum() {
        let mut of =
            WriteQueue::new(RequestLimits { rows_max: 1, group_rows_max: 1, backlog: 1, ..LIMITS });
        let keys: Vec<String> =
            (0..=2 * WRITE_REQUESTS_OF_REPLICA_MAX).map(|i| format!("ca{i}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let called = push(&mut of, &keys).into_iter().filter(|called| *called).count();
        assert_eq!(called, WRITE_REQUESTS_OF_REPLICA_MAX);
        assert_eq!(take(&mut of, SMALL).0.len(), 1);
        assert!(of.finished(SMALL, false), "one of the remaining mutators is written");
    }
}
