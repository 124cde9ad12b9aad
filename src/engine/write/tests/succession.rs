//! Mutators whose state is full, and their successors.

use std::collections::BTreeMap;

use orderfree_core::crdt::State;
use orderfree_core::protocol::KEY_STATES_BYTES_MAX;

use super::*;

const KINDS: [Kind; 3] = [Kind::GSet, Kind::LwwSet, Kind::OrSet];

fn key_of(kind: Kind) -> Key {
    Key { kind, ..key("n") }
}

fn item(at: usize) -> String {
    format!("{at:0>1000}")
}

/// The rows of a key, as a store has them after acknowledged writes.
#[derive(Default)]
struct Rows(BTreeMap<orderfree_core::protocol::MutatorId, State>);

impl Rows {
    fn take(&mut self, write: &ShardWrite) {
        let state = decode_state(write.seal(), write.key().kind, write.state()).expect("own bytes");
        assert!(write.state().len() < 257 * 1024);
        self.0.insert(write.mutator_id(), state);
    }

    fn read(&self, kind: Kind) -> serde_json::Value {
        let mut all = State::identity(kind);
        self.0.values().for_each(|state| all.merge(state).expect("one kind"));
        let question =
            orderfree_core::crdt::Question { key: Some(key_of(kind)), ..Default::default() };
        serde_json::to_value(all.value(&question).shown(false)).expect("JSON")
    }
}

/// Sends an op. The store acknowledges its write.
async fn send(
    pod: &Pod,
    kind: Kind,
    op: serde_json::Value,
    rows: &mut Rows,
) -> Result<(), UpdateError> {
    let (mutators, op) = (Arc::clone(&pod.mutators), kind.parse_op(&op).expect("an op"));
    let update = spawn(async move { mutators.update(&key_of(kind), vec![op], STORED).await });
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    if !update.is_finished() {
        let (write, reply) = pod.store.write().await;
        rows.take(&write);
        reply.send(Ok(())).expect("waits");
    }
    update.await.expect("no panic").map(drop)
}

fn add(from: usize, count: usize) -> serde_json::Value {
    let items: Vec<_> = (from..from + count).map(item).collect();
    serde_json::json!({"op": "add", "items": items})
}

#[tokio::test(start_paused = true)]
async fn a_key_takes_more_than_one_state_holds_and_four_at_most() {
    for kind in KINDS {
        let (pod, mut rows) = (pod(), Rows::default());
        let mut count = 0;
        let refused = loop {
            assert!(count < 2_000, "it is never refused");
            match send(&pod, kind, add(count, 50), &mut rows).await {
                Ok(()) => count += 50,
                Err(error) => break error,
            }
        };
        assert_eq!(refused, Refused::Op(OpError::KeyFull).into());
        assert!(refused.to_string().contains("another pod"), "{refused}");
        assert_eq!(rows.0.len(), 4, "{kind}");
        assert!(count > 800, "{kind}: {count} items of 1 kB");
        assert!(count * 1_000 < KEY_STATES_BYTES_MAX);
        assert_eq!(rows.read(kind)["size"], count, "{kind}: everything is there");
        let births = pod.metrics.births.get();
        assert_eq!((births, pod.metrics.evictions.get()), (4, 0));
        // An op that needs no room is still accepted.
        assert_eq!(send(&pod, kind, add(count - 1, 1), &mut rows).await, Ok(()));
    }
}

#[tokio::test(start_paused = true)]
async fn an_op_that_no_state_has_room_for_is_refused_at_once() {
    for kind in KINDS {
        let (pod, mut rows) = (pod(), Rows::default());
        let refused = send(&pod, kind, add(0, 300), &mut rows).await;
        assert_eq!(refused, Err(Refused::Op(OpError::TooLarge).into()));
        assert_eq!(send(&pod, kind, add(0, 200), &mut rows).await, Ok(()));
        let refused = send(&pod, kind, add(200, 300), &mut rows).await;
        assert_eq!(refused, Err(Refused::Op(OpError::TooLarge).into()));
        assert_eq!((pod.metrics.births.get(), rows.0.len()), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_successor_removes_what_is_in_its_predecessor() {
    for kind in [Kind::LwwSet, Kind::OrSet] {
        let (pod, mut rows) = (pod(), Rows::default());
        send(&pod, kind, add(0, 200), &mut rows).await.expect("room");
        send(&pod, kind, add(200, 100), &mut rows).await.expect("a successor has room");
        assert_eq!((rows.0.len(), rows.read(kind)["size"].as_u64()), (2, Some(300)));
        let remove = match kind {
            Kind::OrSet => {
                let seen = rows.read(kind)["items"][0]["seen"].clone();
                serde_json::json!({"op": "remove", "item": item(0), "seen": seen})
            }
            _ => serde_json::json!({"op": "remove", "item": item(0)}),
        };
        send(&pod, kind, remove, &mut rows).await.expect("acked");
        assert_eq!(rows.read(kind)["size"], 299, "{kind}");
        send(&pod, kind, add(0, 1), &mut rows).await.expect("acked");
        assert_eq!(rows.read(kind)["size"], 300, "{kind}: added again");
    }
}

/// A predecessor is no longer in the map, but its ops are still written.
#[tokio::test(start_paused = true)]
async fn a_full_mutator_still_writes_while_its_successor_goes_on() {
    let pod = pod();
    let update = |from, count| {
        let (mutators, op) = (Arc::clone(&pod.mutators), add(from, count));
        let op = Kind::GSet.parse_op(&op).expect("an op");
        spawn(async move { mutators.update(&key_of(Kind::GSet), vec![op], STORED).await })
    };
    let mut rows = Rows::default();
    let first = update(0, 100);
    let (write, unknown_reply) = pod.store.write().await;
    rows.take(&write);
    let waits = update(100, 100);
    tokio::task::yield_now().await;
    let of_heir = update(200, 100);
    let (heir, reply) = pod.store.write().await;
    rows.take(&heir);
    assert_ne!(heir.mutator_id(), write.mutator_id());
    reply.send(Ok(())).expect("waits");
    of_heir.await.expect("no panic").expect("acked");
    unknown_reply.send(unknown()).expect("waits");
    let (again, reply) = pod.store.write().await;
    rows.take(&again);
    assert_eq!(again.mutator_id(), write.mutator_id(), "an unknown write is sent again");
    reply.send(Ok(())).expect("waits");
    first.await.expect("no panic").expect("acked");
    waits.await.expect("no panic").expect("acked");
    assert_eq!(rows.read(Kind::GSet)["size"], 300);
    assert_eq!(pod.mutators.close(Duration::from_secs(1)).await, 0, "nothing is left");
}

#[tokio::test(start_paused = true)]
async fn a_successor_needs_no_further_place_in_a_quota() {
    let quota = "[[quota]]\ngroup_prefix = \"\"\nlive_mutators = 1\nnew_keys_per_minute = 1\n";
    let policy: crate::policy::Policy = quota.parse().expect("a policy");
    let (pod, mut rows) = (pod_of(Bounds::awake(1_000), policy.into()), Rows::default());
    for from in [0, 200, 400] {
        send(&pod, Kind::GSet, add(from, 200), &mut rows).await.expect("it is not a new key");
    }
    assert_eq!(rows.0.len(), 3);
}

/// The size of a key's rows is known after a rest, and forgotten when folds can merge them.
#[tokio::test(start_paused = true)]
async fn unfolded_states_count_across_rests_until_they_can_be_folded() {
    let (pod, mut rows) = (pod_with(1), Rows::default());
    let rest = async || {
        let update = pod.start("other", 1, STORED).await;
        pod.store.answer(Ok(())).await;
        update.end().await.expect("acked");
    };
    for from in [0, 250, 500, 750] {
        send(&pod, Kind::GSet, add(from, 250), &mut rows).await.expect("room");
        rest().await;
    }
    let refused = send(&pod, Kind::GSet, add(1_000, 250), &mut rows).await;
    assert_eq!(refused, Err(Refused::Op(OpError::KeyFull).into()));
    // A new lease begins, but the rows are not final yet.
    pod.clock.advance(Duration::from_secs(55));
    send(&pod, Kind::GSet, add(1_000, 250), &mut rows).await.expect("a new mutator");
    let more = add(1_250, 250);
    let refused = send(&pod, Kind::GSet, more.clone(), &mut rows).await;
    assert_eq!(refused, Err(Refused::Op(OpError::KeyFull).into()));
    pod.clock.advance(Duration::from_secs(40));
    send(&pod, Kind::GSet, more, &mut rows).await.expect("the rows can be folded");
}

#[tokio::test(start_paused = true)]
async fn ops_answered_from_memory_stay_with_their_mutator() {
    let pod = pod();
    let mut rows = Rows::default();
    for from in [0, 100, 200, 300] {
        let op = Kind::GSet.parse_op(&add(from, 100)).expect("an op");
        let given = pod.mutators.update(&key_of(Kind::GSet), vec![op], Durability::Memory).await;
        given.expect("answered");
    }
    while pod.mutators.flushing() > 0 {
        let write = tokio::time::timeout(Duration::from_secs(1), pod.store.write()).await;
        let Ok((write, reply)) = write else { break };
        rows.take(&write);
        reply.send(Ok(())).expect("waits");
        tokio::task::yield_now().await;
    }
    assert_eq!(rows.read(Kind::GSet)["size"], 400);
    assert_eq!(pod.metrics.memory_lost.get(), 0);
}
