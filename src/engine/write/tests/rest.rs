//! Mutators that rest and wake.

use super::*;
use crate::engine::write::writer::Writer;

async fn acked(pod: &Pod, name: &str, by: i64) -> ShardWrite {
    let update = pod.start(name, by, STORED).await;
    assert!(!update.0.is_finished(), "{:?}", update.end().await);
    let (write, reply) = pod.store.write().await;
    reply.send(Ok(())).expect("waits");
    assert_eq!(update.end().await, Ok(()));
    write
}

fn bounds(mutators_max: usize, resting_bytes: usize) -> Bounds {
    Bounds { mutators_max, resting_bytes, ..Bounds::default() }
}

fn one_live_mutator() -> Policies {
    let quota = "[[quota]]\ngroup_prefix = \"\"\nlive_mutators = 1\n";
    Policies::from(quota.parse::<crate::policy::Policy>().expect("a policy"))
}

#[tokio::test(start_paused = true)]
async fn a_mutator_that_made_room_wakes_as_the_same_one() {
    for pod in [pod_with(1), pod_of(Bounds::awake(1_000), one_live_mutator())] {
        let (a, b) = (acked(&pod, "a", 1).await, acked(&pod, "b", 10).await);
        let (again, other) = (acked(&pod, "a", 2).await, acked(&pod, "b", 20).await);
        assert_eq!((total(&again), total(&other)), (3, 30));
        assert_eq!((again.mutator_id(), other.mutator_id()), (a.mutator_id(), b.mutator_id()));
        assert_eq!(again.expires_at(), a.expires_at());
        assert!(again.timestamp() > a.timestamp());
        let (births, wakes) = (pod.metrics.births.get(), pod.metrics.wakes.get());
        assert_eq!((births, wakes, pod.metrics.evictions.get()), (2, 2, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_mutator_that_is_not_used_rests_and_one_in_use_stays_awake() {
    let pod = pod();
    let first = acked(&pod, "idle", 1).await;
    acked(&pod, "busy", 1).await;
    pod.mutators.table.tidy(pod.clock.now());
    assert_eq!(pod.mutators.table.len(), 2, "both were used since the last look");
    acked(&pod, "busy", 1).await;
    pod.mutators.table.tidy(pod.clock.now());
    assert_eq!((pod.mutators.table.len(), pod.mutators.table.at_rest().count), (1, 1));
    acked(&pod, "busy", 1).await;
    assert_eq!(pod.metrics.wakes.get(), 0);
    assert_eq!(acked(&pod, "idle", 1).await.mutator_id(), first.mutator_id());
    assert_eq!((pod.metrics.wakes.get(), pod.mutators.table.at_rest().count), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_mutator_never_wakes_after_its_lease() {
    let pod = pod_with(1);
    let first = acked(&pod, "a", 1).await;
    acked(&pod, "b", 1).await;
    pod.clock.advance(Duration::from_secs(50));
    let next = acked(&pod, "a", 2).await;
    assert!(next.mutator_id() != first.mutator_id() && total(&next) == 2);
    assert_eq!(pod.metrics.wakes.get(), 0);
    pod.mutators.table.tidy(pod.clock.now());
    assert_eq!(pod.mutators.table.at_rest().count, 0, "b's is over");
}

#[tokio::test(start_paused = true)]
async fn a_mutator_with_open_writes_never_rests() {
    let pod = pod_with(1);
    let open = pod.start("a", 1, STORED).await;
    let other = pod.start("b", 1, STORED).await.end().await;
    assert!(matches!(other, Err(UpdateError::Refused(Refused::Overloaded(_)))), "{other:?}");
    assert_eq!(pod.mutators.table.at_rest().count, 0);
    pod.store.answer(Ok(())).await;
    assert_eq!(open.end().await, Ok(()));
}

/// A refusal for lack of room must not evict a mutator at rest.
#[tokio::test(start_paused = true)]
async fn a_mutator_that_finds_no_room_to_wake_rests_on() {
    let pod = pod_with(1);
    let first = acked(&pod, "a", 1).await;
    let open = pod.start("b", 1, STORED).await;
    let refused = pod.start("a", 1, STORED).await.end().await;
    assert!(matches!(refused, Err(UpdateError::Refused(Refused::Overloaded(_)))), "{refused:?}");
    pod.store.answer(Ok(())).await;
    assert_eq!(open.end().await, Ok(()));
    assert_eq!(acked(&pod, "a", 1).await.mutator_id(), first.mutator_id());
}

#[tokio::test(start_paused = true)]
async fn more_keys_than_fit_stay_within_the_bound_and_lose_the_oldest() {
    let pod = pod_of(bounds(1, 20_000), Policies::default());
    for at in 0..1_000 {
        acked(&pod, &format!("n{at}"), 1).await;
        assert!(pod.mutators.table.at_rest().bytes <= 20_000);
    }
    let left = pod.mutators.table.at_rest().count;
    assert!(left > 100, "{left}");
    assert_eq!(pod.metrics.evictions.get(), 999 - left as u64);
    assert_eq!(total(&acked(&pod, "n998", 1).await), 2, "it rested");
    assert_eq!(total(&acked(&pod, "n0", 1).await), 1, "it was forgotten");
}

/// Keys of one quota do not evict keys of another quota within its share, so those get no further rows.
#[tokio::test(start_paused = true)]
async fn a_state_of_another_quota_is_never_driven_out_of_its_share() {
    let quota = |prefix| format!("[[quota]]\ngroup_prefix = {prefix:?}\nlive_mutators = 1000\n");
    let policy: crate::policy::Policy =
        [quota("g"), quota("h")].concat().parse().expect("a policy");
    let pod = pod_of(bounds(1, 20_000), policy.into());
    let of = |group: &str, at: usize| {
        let checked = |text: &str| Name::new(text).expect("a name");
        Key { kind: Kind::Counter, group: checked(group), name: checked(&format!("n{at}")) }
    };
    let update = async |key: Key| {
        let (mutators, ops) =
            (Arc::clone(&pod.mutators), vec![Op::Counter(CounterOp::Add { by: 1 })]);
        let update = spawn(async move { mutators.update(&key, ops, STORED).await });
        let (write, reply) = pod.store.write().await;
        reply.send(Ok(())).expect("waits");
        update.await.expect("no panic").expect("acked");
        total(&write)
    };
    for at in 0..20 {
        update(of("h", at)).await;
    }
    for at in 0..1_000 {
        update(of("g", at)).await;
    }
    for at in 0..20 {
        assert_eq!(update(of("h", at)).await, 2, "{at} kept its place");
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_forgotten_again_and_again_is_refused_at_last() {
    let pod = pod_of(bounds(1, 0), Policies::default());
    for at in 0..u64::from(limits::BIRTHS_MAX) {
        acked(&pod, "a", 1).await;
        acked(&pod, "b", 1).await;
        assert_eq!(pod.metrics.births.get(), 2 * (at + 1));
    }
    let told = pod.start("a", 1, STORED).await.end().await;
    assert_eq!(told, Err(Refused::BornTooOften.into()));
    let sentence = told.expect_err("refused").to_string();
    assert!(sentence.contains("ORDERFREE_RESTING_BYTES"), "{sentence}");
    assert_eq!(total(&acked(&pod, "b", 1).await), 2, "the one that is awake goes on");
    acked(&pod, "c", 1).await;
    pod.clock.advance(Duration::from_secs(24 * 3600));
    acked(&pod, "a", 1).await;
}

/// A birth whose write was never sent adds no row.
#[tokio::test(start_paused = true)]
async fn births_without_a_row_do_not_count() {
    let pod = pod_of(bounds(1, 0), Policies::default());
    let key = key("bad");
    for at in 0..u64::from(limits::BIRTHS_MAX) + 1 {
        let bad = Op::GSet(GSetOp::Add { items: Vec::new() });
        let told = pod.mutators.update(&key, vec![bad], STORED).await;
        assert!(matches!(told, Err(UpdateError::Refused(Refused::Op(_)))), "{at}: {told:?}");
        acked(&pod, &format!("n{at}"), 1).await;
    }
    assert!(pod.metrics.births.get() > 2 * u64::from(limits::BIRTHS_MAX));
    acked(&pod, "bad", 1).await;
}

/// A key that was born often is not evicted.
#[tokio::test(start_paused = true)]
async fn a_key_that_was_born_often_keeps_its_place() {
    let pod = pod_of(bounds(1, 5_000), Policies::default());
    let now = pod.clock.now();
    let (table, often) = (&pod.mutators.table, Writer::of_state(&key("often")));
    (0..limits::BIRTHS_MAX).for_each(|_| table.count_birth(&often, false, now));
    // Its mutator must exist already: a birth would be refused.
    let id = pod.mutators.random.mutator_id();
    let born = || Mutator::born(key("often"), id, None, now, &pod.mutators.constants);
    let queue = || entry::QueueId::of(pod.store.first_replica(&key("often")), &often);
    let permit = |_| Ok(Policies::default().uncounted_permit(&key("often").group));
    table.find_or_insert(&often, now, None, permit, born, queue).expect("room");
    for at in 0..500 {
        acked(&pod, &format!("n{at}"), 1).await;
    }
    assert!(pod.metrics.evictions.get() > 400);
    acked(&pod, "often", 1).await;
    assert_eq!(pod.metrics.wakes.get(), 1);
}

/// Sets of about 59 kB in memory, with a limit of 192 kB. Those above the limit go to rest, and wake.
#[tokio::test(start_paused = true)]
async fn large_states_that_make_room_rest() {
    let pod = pod_with(64);
    let add = async |name: &str, item: &str| {
        let (mutators, key) = (Arc::clone(&pod.mutators), Key { kind: Kind::GSet, ..key(name) });
        let items: Vec<_> = (0..10).map(|n| format!("{n}{item}").repeat(293)).collect();
        let op = serde_json::json!({"op": "add", "items": items});
        let op = Kind::GSet.parse_op(&op).expect("an op");
        let update = spawn(async move { mutators.update(&key, vec![op], STORED).await });
        let (write, reply) = pod.store.write().await;
        reply.send(Ok(())).expect("waits");
        update.await.expect("no panic").expect("acked");
        write
    };
    let mut first = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        first.push(add(name, "x").await);
    }
    assert!(pod.metrics.rests.get() > 0);
    for (name, first) in ["a", "b", "c", "d", "e"].into_iter().zip(first) {
        let again = add(name, "y").await;
        assert_eq!(again.mutator_id(), first.mutator_id(), "{name}");
        assert!(again.state().len() > 11_000);
    }
    assert_eq!((pod.metrics.births.get(), pod.metrics.evictions.get()), (5, 0));
    let weight = pod.mutators.table.len() * 2 * 60_000;
    assert!(weight < 500_000, "{weight} bytes awake");
}

/// A task can hold an entry for a moment longer than its mutator needs it.
#[tokio::test(start_paused = true)]
async fn a_mutator_at_rest_holds_no_place_in_a_quota() {
    let pod = pod_of(Bounds::awake(1_000), one_live_mutator());
    acked(&pod, "a", 1).await;
    let (now, key) = (pod.clock.now(), key("a"));
    let writer = Writer::of_state(&key);
    let never = || -> Mutator { panic!("it is awake") };
    let queue = || entry::QueueId::of(pod.store.first_replica(&key), &writer);
    let permit = |arrival| Ok(pod.mutators.policies.permit(&key.group, arrival)?);
    let held = pod.mutators.table.find_or_insert(&writer, now, None, permit, never, queue);
    acked(&pod, "b", 1).await;
    assert_eq!(pod.mutators.table.at_rest().count, 1);
    drop(held);
    acked(&pod, "a", 1).await;
}
