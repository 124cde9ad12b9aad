mod ids;
mod memory;
mod resets;
mod rest;
mod scripted;
mod succession;

use std::sync::Mutex;

use orderfree_core::crdt::envelope::decode_state;
use orderfree_core::crdt::{Counter, CounterOp, GSetOp, Kind, OpError};
use orderfree_core::protocol::{
    Mutator, Name, Now, Overrides, ShardWrite, WriteError, WriteOutcome,
};

use super::*;
use crate::engine::metrics::RefusedLabel;
use crate::limits;
use crate::runtime::clock::{Clock, SystemClock};
use scripted::Scripted;
use tokio::spawn;

/// The machine's clock, shifted by the test.
#[derive(Default)]
struct Shifted(Mutex<Duration>);

impl Shifted {
    fn advance(&self, span: Duration) {
        *self.0.lock().unwrap() += span;
    }
}

impl Clock for Shifted {
    fn now(&self) -> Now {
        let (now, shift) = (SystemClock.now(), *self.0.lock().unwrap());
        Now { wall: now.wall.plus(shift), boot: now.boot + shift }
    }
}

struct Pod {
    store: Arc<Scripted>,
    clock: Arc<Shifted>,
    metrics: Arc<Metrics>,
    mutators: Arc<Mutators>,
}

fn pod_with(mutators_max: usize) -> Pod {
    pod_of(Bounds::awake(mutators_max), Policies::default())
}

fn pod_of(bounds: Bounds, policies: Policies) -> Pod {
    let (store, clock) = (Arc::new(Scripted::default()), Arc::new(Shifted::default()));
    let second = |seconds| Some(Duration::from_secs(seconds));
    let constants = Constants::resolve(Overrides {
        lifetime: second(60),
        drain_margin: second(10),
        cutoff: second(30),
        ..Overrides::default()
    });
    let constants = constants.expect("consistent");
    let context = Context::new(store.clone(), constants, clock.clone(), Random::system());
    let metrics = Arc::clone(&context.metrics);
    let mutators = Mutators::new(store.clone(), context, bounds, policies);
    Pod { store, clock, metrics, mutators }
}

/// No memory for rest: mutators that make room are evicted at once.
fn pod_without_rest(mutators_max: usize) -> Pod {
    pod_of(Bounds { resting_bytes: 0, ..Bounds::awake(mutators_max) }, Policies::default())
}

fn pod() -> Pod {
    pod_with(1_000)
}

impl Pod {
    /// Starts an update and returns when it is accepted or answered.
    async fn start(&self, name: &str, by: i64, durability: Durability) -> Update {
        let (mutators, key) = (Arc::clone(&self.mutators), key(name));
        let ops = vec![Op::Counter(CounterOp::Add { by })];
        let update = async move { mutators.update(&key, ops, durability).await.map(drop) };
        let update = tokio::spawn(update);
        // An update does not block before its wait, so its ops wait for a write now.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        Update(update)
    }
}

struct Update(tokio::task::JoinHandle<Result<(), UpdateError>>);

impl Update {
    async fn end(self) -> Result<(), UpdateError> {
        self.0.await.expect("no panic")
    }
}

fn key(name: &str) -> Key {
    let checked = |text| Name::new(text).expect("name");
    Key { kind: Kind::Counter, group: checked("g"), name: checked(name) }
}

fn total(write: &ShardWrite) -> i128 {
    let state = decode_state(write.seal(), Kind::Counter, write.state()).expect("own bytes");
    Counter::try_from(state).expect("a counter").total()
}

const STORED: Durability = Durability::Stored;

fn refused() -> WriteOutcome {
    Err(WriteError::Refused("down".into()))
}

fn unknown() -> WriteOutcome {
    Err(WriteError::Unknown("timeout".into()))
}

#[tokio::test(start_paused = true)]
async fn ops_that_arrive_during_a_write_share_the_next_one() {
    let pod = pod();
    let first = pod.start("n", 1, STORED).await;
    let mut others = Vec::new();
    for by in 2..=10 {
        others.push(pod.start("n", by, STORED).await);
    }
    assert_eq!(pod.store.answer(Ok(())).await, 1);
    assert_eq!(first.end().await, Ok(()));
    assert_eq!(pod.store.answer(Ok(())).await, 55);
    for other in others {
        assert_eq!(other.end().await, Ok(()));
    }
    assert_eq!(pod.metrics.births.get(), 1);
}

/// The ancestor's defect 9: one lock around update and write.
#[tokio::test(start_paused = true)]
async fn regression_9_a_slow_write_of_one_key_delays_no_other() {
    let pod = pod();
    let slow = pod.start("slow", 1, STORED).await;
    let (_, slow_reply) = pod.store.write().await;
    let quick = pod.start("quick", 2, STORED).await;
    assert_eq!(pod.store.answer(Ok(())).await, 2);
    assert_eq!(quick.end().await, Ok(()));
    slow_reply.send(Ok(())).expect("waits");
    assert_eq!(slow.end().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn waiting_keys_share_a_request_and_each_has_its_outcome() {
    let pod = pod();
    let mut updates = Vec::new();
    for (by, name) in (1..).zip(["a", "b", "c", "d", "e"]) {
        updates.push(pod.start(name, by, STORED).await);
    }
    let (first, second) = (pod.store.write().await, pod.store.write().await);
    assert_eq!((total(&first.0), total(&second.0)), (1, 2));
    first.1.send(Ok(())).expect("waits");
    let (together, reply) = pod.store.request().await;
    assert_eq!(together.iter().map(total).collect::<Vec<_>>(), [3, 4, 5]);
    reply.send(refused()).expect("waits");
    second.1.send(Ok(())).expect("waits");
    let outcomes = futures::future::join_all(updates.into_iter().map(Update::end)).await;
    let is_ok: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(is_ok, [true, true, false, false, false]);
    assert_eq!(pod.mutators.flushing(), 3, "they retry after a while");
}

#[tokio::test(start_paused = true)]
async fn updates_of_one_client_share_a_request_and_have_own_outcomes() {
    let pod = pod();
    let stuck = [pod.start("a", 1, STORED).await, pod.start("b", 1, STORED).await];
    let hanging = [pod.store.write().await, pod.store.write().await];
    let add = |by| Op::Counter(CounterOp::Add { by });
    let updates = |name, lists: Vec<Vec<Op>>| {
        let lists = lists.into_iter().map(Into::into).collect();
        Updates { key: key(name), lists }
    };
    let bad = Op::GSet(GSetOp::Add { items: Vec::new() });
    let mixed = updates("d", vec![vec![add(5), bad], vec![add(6)]]);
    let all = [("c", 3), ("a", 4)].map(|(name, by)| updates(name, vec![vec![add(by)]]));
    let all: Vec<_> = all.into_iter().chain([mixed]).collect();
    let mutators = Arc::clone(&pod.mutators);
    let all = tokio::spawn(async move { mutators.update_all(all, STORED).await });
    tokio::task::yield_now().await;
    let [first, second] = hanging;
    second.1.send(Ok(())).expect("waits");
    let (writes, outcome) = pod.store.request().await;
    assert_eq!(writes.iter().map(total).collect::<Vec<_>>(), [3, 6], "free keys, good ops");
    outcome.send(Ok(())).expect("waits");
    let outcomes = all.await.expect("no panic");
    assert_eq!(outcomes[0], Ok(None));
    let refused = Refused::Deadline(Duration::from_secs(2));
    assert_eq!(outcomes[1], Err(refused.into()), "after a write that hangs");
    assert!(matches!(outcomes[2], Err(UpdateError::Refused(Refused::Op(_)))), "{outcomes:?}");
    assert_eq!(outcomes[3..], [Ok(None)], "in one request with a bad one");
    first.1.send(Ok(())).expect("waits");
    for update in stuck {
        assert!(matches!(update.end().await, Ok(()) | Err(UpdateError::Unknown(_))));
    }
}

/// A search for room looks at the oldest mutators, so the next search can find some where this one did not.
#[tokio::test(start_paused = true)]
async fn a_later_update_does_not_overtake_one_without_room() {
    const CLEAN: usize = 30;
    let pod = pod_with(table::EVICTION_LOOKS_MAX + CLEAN);
    let clean: Vec<String> = (0..CLEAN).map(|at| format!("clean {at}")).collect();
    for name in &clean {
        let update = pod.start(name, 1, STORED).await;
        pod.store.answer(Ok(())).await;
        assert_eq!(update.end().await, Ok(()));
    }
    for at in 0..table::EVICTION_LOOKS_MAX {
        pod.start(&format!("dirty {at}"), 1, STORED).await;
    }
    for name in &clean {
        // This writes nothing, but the mutator is the last that was used.
        assert_eq!(pod.start(name, 0, STORED).await.end().await, Ok(()));
    }
    let key = Key { kind: Kind::Register, ..key("r") };
    let set = |value| {
        let op = serde_json::json!({"op": "set", "value": value});
        vec![Kind::Register.parse_op(&op).expect("an op")]
    };
    let both = vec![Updates { key, lists: vec![set(1).into(), set(2).into()] }];
    let (outcomes, left) = pod.mutators.update_or_leave(both.clone(), STORED, true).await;
    assert_eq!((outcomes, left.len(), left[0].1.lists.len()), (vec![], 1, 2), "both wait");
    let refused = pod.metrics.refused.get_or_create(&RefusedLabel { reason: "limit" }).get();
    assert_eq!(refused, 0, "they have no outcome yet");
    // The clean ones are the oldest now; make them the last again.
    for name in &clean {
        assert_eq!(pod.start(name, 0, STORED).await.end().await, Ok(()));
    }
    let outcomes = pod.mutators.update_all(both.clone(), STORED).await;
    let is_full = |outcome: &Result<_, UpdateError>| {
        matches!(outcome, Err(UpdateError::Refused(Refused::Overloaded(_))))
    };
    assert!(outcomes.len() == 2 && outcomes.iter().all(is_full), "{outcomes:?}");
    let (outcomes, left) = pod.mutators.update_or_leave(both, Durability::Memory, true).await;
    let times: Vec<_> = outcomes.into_iter().map(|outcome| outcome.expect("room")).collect();
    assert!(times.len() == 2 && times[0] < times[1] && left.is_empty(), "{times:?}");
}

/// A node that hangs delays only the mutators in its requests.
#[tokio::test(start_paused = true)]
async fn overdue_requests_keep_no_others_from_being_sent() {
    let pod = pod();
    let stuck = [pod.start("a", 1, STORED).await, pod.start("b", 1, STORED).await];
    let hanging = [pod.store.write().await, pod.store.write().await];
    let other = pod.start("c", 5, STORED).await;
    let began = tokio::time::Instant::now();
    assert_eq!(pod.store.answer(Ok(())).await, 5);
    assert_eq!(began.elapsed().as_millis(), 20);
    assert_eq!(other.end().await, Ok(()));
    for (_, reply) in hanging {
        reply.send(Ok(())).expect("waits");
    }
    for update in stuck {
        assert_eq!(update.end().await, Ok(()));
    }
    assert_eq!(pod.mutators.flushing(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_refused_write_is_told_and_undone() {
    let pod = pod();
    let lost = pod.start("n", 1, STORED).await;
    let next = pod.start("n", 2, STORED).await;
    pod.store.answer(refused()).await;
    let error = lost.end().await.expect_err("refused");
    assert_eq!(error, Refused::Store("down".into()).into());
    assert_eq!(pod.store.answer(Ok(())).await, 2);
    assert_eq!(next.end().await, Ok(()));
}

/// The ancestor's defect 4: a failed write stayed in memory and was not reported.
#[tokio::test(start_paused = true)]
async fn regression_4_an_unknown_write_is_reported_and_repeated() {
    let pod = pod();
    let update = pod.start("n", 1, STORED).await;
    pod.store.answer(unknown()).await;
    let (again, reply) = pod.store.write().await;
    assert_eq!(total(&again), 1);
    let error = update.end().await.expect_err("the deadline passed");
    assert!(matches!(error, UpdateError::Unknown(_)), "{error}");
    reply.send(Ok(())).expect("waits");
    assert_eq!(pod.mutators.close(Duration::from_secs(1)).await, 0, "clean");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_write_that_is_acked_in_time_is_acked() {
    let pod = pod();
    let update = pod.start("n", 1, STORED).await;
    pod.store.answer(unknown()).await;
    pod.store.answer(Ok(())).await;
    assert_eq!(update.end().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn an_op_past_its_deadline_is_withdrawn_unsent_and_refused() {
    let pod = pod();
    let sent = pod.start("n", 1, STORED).await;
    let (_, reply) = pod.store.write().await;
    let waiting = pod.start("n", 2, STORED).await;
    assert!(matches!(sent.end().await, Err(UpdateError::Unknown(_))));
    let error = waiting.end().await.expect_err("never sent");
    assert_eq!(error, Refused::Deadline(Duration::from_secs(2)).into());
    reply.send(Ok(())).expect("waits");
    let third = pod.start("n", 4, STORED).await;
    assert_eq!(pod.store.answer(Ok(())).await, 5, "the withdrawn op is not there");
    assert_eq!(third.end().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_cancels_nothing() {
    let pod = pod();
    let first = pod.start("n", 1, STORED).await;
    let gone = pod.start("n", 2, STORED).await;
    gone.0.abort();
    pod.store.answer(Ok(())).await;
    assert_eq!(pod.store.answer(Ok(())).await, 3);
    assert_eq!(first.end().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn memory_answers_come_at_once_and_survive_refused_writes() {
    let pod = pod();
    let update = pod.start("n", 1, Durability::Memory).await;
    assert_eq!(update.end().await, Ok(()));
    pod.store.answer(refused()).await;
    pod.store.answer(refused()).await;
    assert_eq!(pod.store.answer(Ok(())).await, 1);
    assert_eq!(pod.mutators.close(Duration::from_secs(1)).await, 0);
    assert_eq!(pod.mutators.totals.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_ack_after_the_lease_is_unknown() {
    let pod = pod();
    let update = pod.start("n", 1, STORED).await;
    let (_, reply) = pod.store.write().await;
    pod.clock.advance(Duration::from_secs(60));
    reply.send(Ok(())).expect("waits");
    assert!(matches!(update.end().await, Err(UpdateError::Unknown(_))));
}

#[tokio::test(start_paused = true)]
async fn a_draining_mutator_is_followed_by_a_new_one() {
    let pod = pod();
    let first = pod.start("n", 1, STORED).await;
    let (old, reply) = pod.store.write().await;
    pod.clock.advance(Duration::from_secs(50));
    let second = pod.start("n", 2, STORED).await;
    let (new, new_reply) = pod.store.write().await;
    assert_ne!(old.mutator_id(), new.mutator_id());
    assert_eq!((total(&old), total(&new)), (1, 2));
    reply.send(Ok(())).expect("waits");
    new_reply.send(Ok(())).expect("waits");
    assert_eq!((first.end().await, second.end().await), (Ok(()), Ok(())));
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_mutator_never_sent_goes_to_its_successor() {
    let pod = pod();
    let blocker = pod.start("n", 1, STORED).await;
    let (_, reply) = pod.store.write().await;
    let kept = pod.start("n", 2, Durability::Memory).await;
    assert_eq!(kept.end().await, Ok(()));
    pod.clock.advance(Duration::from_secs(61));
    pod.store.shut.store(true, Ordering::SeqCst);
    reply.send(unknown()).expect("waits");
    tokio::time::sleep(Duration::from_secs(100)).await;
    pod.store.shut.store(false, Ordering::SeqCst); // the ops waited for the gate
    assert_eq!(pod.store.answer(Ok(())).await, 2);
    assert!(matches!(blocker.end().await, Err(UpdateError::Unknown(_))));
}

#[tokio::test(start_paused = true)]
async fn clean_mutators_make_room_and_dirty_ones_are_never_forgotten() {
    let pod = pod_without_rest(64); // one part of the map, kept exactly
    let mut open = Vec::new();
    let mut full = 0;
    for at in 0..100 {
        let update = pod.start(&format!("n{at}"), 1, STORED).await;
        match update.0.is_finished() {
            true => {
                full += u32::from(matches!(
                    update.end().await,
                    Err(UpdateError::Refused(Refused::Overloaded(_)))
                ))
            }
            false => open.push(update),
        }
    }
    assert_eq!((open.len(), full), (64, 36), "64 open writes, and a clear refusal beyond");
    let mut written = 0;
    while written < open.len() {
        let (writes, reply) = pod.store.request().await;
        written += writes.len();
        reply.send(Ok(())).expect("waits");
    }
    for update in open {
        assert_eq!(update.end().await, Ok(()));
    }
    let again = pod.start("another", 7, STORED).await;
    assert_eq!(pod.store.answer(Ok(())).await, 7);
    assert_eq!(again.end().await, Ok(()));
    assert_eq!(pod.metrics.evictions.get(), 1);
}

/// Longer than the pause after a search without result.
const SHED_AGAIN: Duration = Duration::from_millis(100);

/// Sets of 6 kB each, about 59 kB in memory, in a pod with 192 kB for large states and none for rest. Clean
/// ones make room, least recently used first. Unwritten ones are never evicted.
#[tokio::test(start_paused = true)]
async fn large_states_have_a_bound_in_bytes() {
    let pod = pod_without_rest(64);
    let add = |name: &str, item: u8| {
        let (mutators, key) = (Arc::clone(&pod.mutators), Key { kind: Kind::GSet, ..key(name) });
        let items: Vec<_> =
            (0..10).map(|n| format!("{n}{}", char::from(item)).repeat(293)).collect();
        let op = serde_json::json!({"op": "add", "items": items});
        let op = Kind::GSet.parse_op(&op).expect("an op");
        tokio::spawn(async move { mutators.update(&key, vec![op], STORED).await.map(drop) })
    };
    let acked = async |update: tokio::task::JoinHandle<_>| {
        let (write, reply) = pod.store.write().await;
        reply.send(Ok(())).expect("waits");
        assert_eq!(update.await.expect("no panic"), Ok(()));
        write.state().len()
    };
    for name in ["a", "b", "c", "d"] {
        acked(add(name, b'x')).await;
    }
    assert_eq!(pod.metrics.evictions.get(), 0, "no search since the last one grew");
    assert!(acked(add("d", b'y')).await > 11_000, "the youngest is still there");
    assert_eq!(pod.metrics.evictions.get(), 2, "a and b");
    assert!(acked(add("a", b'y')).await < 6_500, "a new mutator of a");
    assert!(acked(add("a", b'z')).await > 11_000, "the same one");
    assert_eq!(pod.metrics.evictions.get(), 4, "c and d");

    let open = [add("a", b'v'), add("d", b'v')];
    let writes = [pod.store.write().await, pod.store.write().await];
    let full = add("e", b'x').await.expect("no panic");
    assert!(matches!(full, Err(UpdateError::Refused(Refused::Overloaded(_)))), "{full:?}");
    let counted = pod.start("counter", 1, STORED).await;
    assert_eq!(pod.store.answer(Ok(())).await, 1);
    assert_eq!(counted.end().await, Ok(()), "counters go on");
    for (write, reply) in writes {
        assert!(write.state().len() < 18_500, "{}", write.state().len());
        reply.send(Ok(())).expect("waits");
    }
    for update in open {
        assert_eq!(update.await.expect("no panic"), Ok(()));
    }
    pod.clock.advance(SHED_AGAIN);
    assert!(acked(add("e", b'x')).await < 6_500, "once they are written, others have room");
}

#[tokio::test(start_paused = true)]
async fn clean_mutators_that_drain_are_forgotten_and_dirty_ones_kept() {
    let pod = pod();
    let clean = pod.start("clean", 1, STORED).await;
    pod.store.answer(Ok(())).await;
    assert_eq!(clean.end().await, Ok(()));
    let dirty = pod.start("dirty", 1, STORED).await;
    pod.clock.advance(Duration::from_secs(50));
    pod.mutators.table.tidy(pod.clock.now());
    assert_eq!(pod.mutators.table.len(), 1);
    pod.store.answer(Ok(())).await;
    assert_eq!(dirty.end().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn closing_writes_what_there_is_and_takes_no_more() {
    let pod = pod();
    let last = pod.start("n", 1, STORED).await;
    let closing = tokio::spawn({
        let mutators = Arc::clone(&pod.mutators);
        async move { mutators.close(Duration::from_secs(5)).await }
    });
    tokio::task::yield_now().await;
    let late = pod.start("n", 2, STORED).await.end().await;
    assert_eq!(late, Err(Refused::Stopping.into()));
    assert_eq!(pod.store.answer(Ok(())).await, 1);
    assert_eq!((last.end().await, closing.await.expect("no panic")), (Ok(()), 0));
}

#[tokio::test(start_paused = true)]
async fn closing_saves_what_a_dead_mutator_answered_from_memory() {
    let pod = pod();
    let kept = pod.start("n", 1, Durability::Memory).await;
    assert_eq!(kept.end().await, Ok(()));
    let (_, reply) = pod.store.write().await;
    pod.clock.advance(Duration::from_secs(61));
    let closing = tokio::spawn({
        let mutators = Arc::clone(&pod.mutators);
        async move { mutators.close(Duration::from_secs(5)).await }
    });
    tokio::task::yield_now().await;
    reply.send(refused()).expect("waits");
    let again = pod.store.answer(Ok(()));
    let again = tokio::time::timeout(Duration::from_secs(1), again).await;
    assert_eq!(again.expect("it is written again"), 1);
    assert_eq!((closing.await.expect("no panic"), pod.metrics.memory_lost.get()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn closing_counts_what_it_found_no_home_for() {
    let pod = pod();
    let kept = pod.start("n", 1, Durability::Memory).await;
    assert_eq!(kept.end().await, Ok(()));
    let (_, reply) = pod.store.write().await;
    pod.clock.advance(Duration::from_secs(61));
    pod.store.shut.store(true, Ordering::SeqCst);
    reply.send(refused()).expect("waits");
    assert_eq!(pod.mutators.close(Duration::from_secs(5)).await, 1);
}
