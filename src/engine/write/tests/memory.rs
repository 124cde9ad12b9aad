//! Updates answered from memory, and their outcomes.

use super::*;

/// A mutator dies: its first write has an unknown outcome, and its lease ends before the next.
async fn dies_unsure(pod: &Pod, kind: Kind, op: Op) {
    let key = Key { kind, ..key("n") };
    let given = pod.mutators.update(&key, vec![op], Durability::Memory).await;
    given.expect("answered from memory");
    let (_, reply) = pod.store.write().await;
    reply.send(unknown()).expect("waits");
    tokio::task::yield_now().await;
    pod.clock.advance(Duration::from_secs(61));
    // It retries and finds its lease over.
    tokio::time::sleep(Duration::from_secs(2)).await;
}

#[tokio::test(start_paused = true)]
async fn what_may_be_stored_is_lost_rather_than_counted_twice() {
    let pod = pod();
    dies_unsure(&pod, Kind::Counter, Op::Counter(CounterOp::Add { by: 1 })).await;
    assert_eq!(pod.metrics.memory_lost.get(), 1);
    assert!(pod.store.requests.lock().unwrap().is_empty(), "no successor writes it");
}

#[tokio::test(start_paused = true)]
async fn what_may_be_stored_is_written_again_where_twice_is_once() {
    let pod = pod();
    let op = Kind::GSet.parse_op(&serde_json::json!({"op": "add", "item": "a"})).expect("an op");
    dies_unsure(&pod, Kind::GSet, op).await;
    let (write, _reply) = pod.store.write().await;
    let state = decode_state(write.seal(), Kind::GSet, write.state()).expect("own bytes");
    assert!(state.value(&Default::default()).to_string().contains("\"a\""));
    assert_eq!(pod.metrics.memory_lost.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_answered_from_memory_while_writes_hang() {
    let pod = pod();
    let memory = async || pod.start("n", 1, Durability::Memory).await.end().await;
    assert_eq!(memory().await, Ok(()));
    let (_, reply) = pod.store.write().await;
    assert_eq!(memory().await, Ok(()), "the write is in flight for less than a second");
    pod.clock.advance(Duration::from_millis(1_100));
    assert_eq!(memory().await, Err(Refused::Unacked.into()));
    reply.send(Ok(())).expect("waits");
    let again = pod.store.answer(Ok(()));
    assert_eq!(again.await, 2, "what was answered is written");
    tokio::task::yield_now().await;
    assert_eq!(memory().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_write_request_that_panics_is_noticed() {
    let pod = pod();
    pod.store.panics.store(true, Ordering::SeqCst);
    let _update = pod.start("n", 1, STORED).await;
    let reason = pod.mutators.failed().await;
    assert_eq!(reason, "its task \"write-request\" panicked: a test wanted it");
}
