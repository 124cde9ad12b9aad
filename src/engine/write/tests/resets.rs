//! Updates of keys that are reset. The lease of a look is 2 s.

use orderfree_core::crdt::envelope;
use orderfree_core::protocol::Change;
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::reset::{LogRow, Shut, Side};
use uuid::Uuid;

use super::super::accept::{Offer, PendingOps};
use super::super::writer::Writer;
use super::*;

impl Pod {
    /// The pod looks at the log now. Returns the time.
    fn look(&self, rows: &[LogRow]) -> Now {
        let now = self.clock.now();
        self.mutators.resets.see(&key("n"), now, rows);
        now
    }

    /// The log shows a reset of the key at this time.
    fn look_at_reset(&self, generation: Timestamp) {
        let Key { kind, group, name } = key("n");
        let until = generation.plus(Duration::from_secs(3_600));
        let generation = Generation::at(generation);
        let (id, names, is_deletion) = (Uuid::nil(), vec![name], false);
        self.look(&[LogRow { id, kind, group, names, generation, until, is_deletion }]);
    }
}

impl Pod {
    /// Gives an op of this side to the mutator of the key, as an update does after it has looked at everything else.
    fn offer(&self, side: Side) -> Result<Option<PendingOps>, Refused> {
        let writer = Writer::of_state(&key("n"));
        let change = Change::Ops(vec![Op::Counter(CounterOp::Add { by: 4 })]);
        let offer = Offer { change, side, durability: STORED };
        let permit = |_| Ok(self.mutators.policies.uncounted_permit(&writer.key.group));
        self.mutators.admit(&writer, offer, self.clock.now(), None, permit)
    }
}

fn stamp_of(write: &ShardWrite) -> Option<Timestamp> {
    envelope::stamp(write.state()).map(Generation::time)
}

#[tokio::test(start_paused = true)]
async fn no_update_is_taken_without_a_look_at_the_log() {
    let pod = pod();
    pod.mutators.resets.see_nothing();
    let refused = pod.start("n", 1, STORED).await.end().await;
    let is_unread = |refused: &Result<(), UpdateError>| {
        let shut = |shut: &Shut| matches!(shut, Shut::Unread(_) | Shut::NeverRead);
        matches!(refused, Err(UpdateError::Refused(Refused::Resets(why))) if shut(why))
    };
    assert!(is_unread(&refused), "{refused:?}");
    pod.look(&[]);
    let taken = pod.start("n", 1, STORED).await;
    assert_eq!(pod.store.answer(Ok(())).await, 1);
    assert_eq!(taken.end().await, Ok(()));
    pod.clock.advance(Duration::from_secs(2));
    let refused = pod.start("n", 1, STORED).await.end().await;
    assert!(is_unread(&refused), "{refused:?}");
}

/// A pod that does not know of the log would not stamp its rows.
#[tokio::test(start_paused = true)]
async fn no_update_is_taken_if_a_log_can_have_appeared() {
    let pod = pod();
    pod.mutators.resets.see_no_log(pod.clock.now());
    let taken = pod.start("n", 1, STORED).await;
    assert_eq!(pod.store.answer(Ok(())).await, 1);
    assert_eq!(taken.end().await, Ok(()));
    pod.clock.advance(Duration::from_secs(60));
    let refused = pod.start("n", 1, STORED).await.end().await;
    assert!(
        matches!(refused, Err(UpdateError::Refused(Refused::Resets(Shut::Unread(_))))),
        "{refused:?}"
    );
    pod.mutators.resets.see_no_log(pod.clock.now());
    let taken = pod.start("n", 1, STORED).await;
    // The earlier mutator is draining.
    assert_eq!(pod.store.answer(Ok(())).await, 1);
    assert_eq!(taken.end().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn an_update_after_a_reset_begins_a_new_row() {
    let pod = pod();
    pod.look(&[]);
    let before = pod.start("n", 1, STORED).await;
    let (old, reply) = pod.store.write().await;
    reply.send(Ok(())).expect("the flusher waits");
    assert_eq!(before.end().await, Ok(()));
    assert_eq!(stamp_of(&old), None);
    let reset = pod.clock.now().wall;
    pod.look_at_reset(reset);
    let after = pod.start("n", 2, STORED).await;
    let (new, reply) = pod.store.write().await;
    reply.send(Ok(())).expect("the flusher waits");
    assert_eq!(after.end().await, Ok(()));
    assert_ne!(new.mutator_id(), old.mutator_id());
    assert_eq!((total(&new), stamp_of(&new)), (2, Some(reset)));
}

/// The write can have come too late for what the reset returns. What was never sent begins the new life.
#[tokio::test(start_paused = true)]
async fn a_write_stored_long_after_a_reset_was_seen_is_unknown() {
    let pod = pod();
    pod.look(&[]);
    let sent = pod.start("n", 1, STORED).await;
    let (_, reply) = pod.store.write().await;
    assert_eq!(pod.start("n", 2, Durability::Memory).await.end().await, Ok(()));
    let reset = pod.clock.now().wall;
    pod.look_at_reset(reset);
    pod.clock.advance(Duration::from_secs(3));
    pod.look(&[]);
    reply.send(Ok(())).expect("the flusher waits");
    let (new, reply) = pod.store.write().await;
    assert_eq!((total(&new), stamp_of(&new)), (2, Some(reset)));
    reply.send(Ok(())).expect("the flusher waits");
    let outcome = sent.end().await;
    assert!(matches!(outcome, Err(UpdateError::Unknown(_))), "{outcome:?}");
}

/// Without a reset, the next look says that the write stands.
#[tokio::test(start_paused = true)]
async fn a_write_waits_for_the_next_look() {
    let pod = pod();
    pod.look(&[]);
    let update = pod.start("n", 1, STORED).await;
    let (_, reply) = pod.store.write().await;
    pod.clock.advance(Duration::from_secs(3));
    reply.send(Ok(())).expect("the flusher waits");
    let (again, reply) = pod.store.write().await;
    assert_eq!(total(&again), 1);
    pod.look(&[]);
    reply.send(Ok(())).expect("the flusher waits");
    assert_eq!(update.end().await, Ok(()));
    assert_eq!(pod.metrics.births.get(), 1);
}

/// The pod learns of the reset after it has looked at the id, and before a mutator takes the op.
#[tokio::test(start_paused = true)]
async fn an_id_is_compared_with_the_reset_of_the_row_that_takes_it() {
    let pod = pod();
    pod.look(&[]);
    let id = Side::OfId(pod.clock.now().wall);
    let taken = pod.offer(id).expect("no reset is known");
    assert!(taken.is_some());
    let (old, reply) = pod.store.write().await;
    reply.send(Ok(())).expect("the flusher waits");
    pod.look_at_reset(pod.clock.now().wall);
    let refused = pod.offer(id).map(drop);
    assert_eq!(refused, Err(Refused::Resets(Shut::OtherSide)));
    let stored = Side::Stored(stamp_of(&old).map(Generation::at));
    assert_eq!(pod.offer(stored).map(drop), Err(Refused::Resets(Shut::OtherSide)));
    assert!(pod.offer(Side::Any).is_ok());
    assert!(stamp_of(&pod.store.write().await.0).is_some());
}

/// Otherwise a key that is reset often would be refused for the rest of the day.
#[tokio::test(start_paused = true)]
async fn a_row_that_begins_after_a_reset_is_no_birth() {
    let pod = pod();
    pod.look(&[]);
    for _ in 0..=limits::BIRTHS_MAX {
        let update = pod.start("n", 1, STORED).await;
        assert_eq!(pod.store.answer(Ok(())).await, 1, "in a row of its own");
        assert_eq!(update.end().await, Ok(()));
        pod.clock.advance(Duration::from_millis(1));
        pod.look_at_reset(pod.clock.now().wall);
    }
    let writer = Writer::of_state(&key("n"));
    assert!(!pod.mutators.table.is_born_too_often(&writer, pod.clock.now()));
}

/// A mutator that has ended leaves no permit to take over.
#[tokio::test(start_paused = true)]
async fn a_row_that_follows_one_that_a_reset_buried_is_no_birth() {
    let pod = pod();
    for _ in 0..=limits::BIRTHS_MAX {
        pod.look(&[]);
        let update = pod.start("n", 1, STORED).await;
        let (_, reply) = pod.store.write().await;
        pod.clock.advance(Duration::from_millis(1));
        pod.look_at_reset(pod.clock.now().wall);
        pod.clock.advance(Duration::from_secs(3));
        pod.look(&[]);
        reply.send(Ok(())).expect("the flusher waits");
        assert!(matches!(update.end().await, Err(UpdateError::Unknown(_))));
    }
    let writer = Writer::of_state(&key("n"));
    assert!(!pod.mutators.table.is_born_too_often(&writer, pod.clock.now()));
}

/// A copy with its id may be stored by another pod, on the other side of the reset.
#[tokio::test(start_paused = true)]
async fn ops_in_memory_of_kinds_without_ids_do_not_cross_a_reset() {
    let pod = pod();
    pod.look(&[]);
    let of_set = Key { kind: Kind::GSet, ..key("n") };
    let add = |item| {
        let op = serde_json::json!({"op": "add", "item": item});
        vec![Kind::GSet.parse_op(&op).expect("an op")]
    };
    let look = |rows: &[LogRow]| pod.mutators.resets.see(&of_set, pod.clock.now(), rows);
    look(&[]);
    let answered = pod.mutators.update(&of_set, add("a"), Durability::Memory).await;
    answered.expect("answered from memory");
    let (_, reply) = pod.store.write().await;
    let answered = pod.mutators.update(&of_set, add("b"), Durability::Memory).await;
    answered.expect("answered from memory");
    let now = pod.clock.now().wall;
    let row = LogRow {
        id: Uuid::nil(),
        kind: Kind::GSet,
        group: of_set.group.clone(),
        names: vec![of_set.name.clone()],
        generation: Generation::at(now),
        until: now.plus(Duration::from_secs(3_600)),
        is_deletion: false,
    };
    look(&[row]);
    pod.clock.advance(Duration::from_secs(3));
    look(&[]);
    reply.send(Ok(())).expect("the flusher waits");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(pod.store.requests.lock().unwrap().is_empty(), "no row of after the reset holds them");
    assert_eq!(pod.metrics.memory_lost.get(), 2);
}
