//! Updates with ids: their packs, and how many there can be.

use orderfree_core::protocol::Timestamp;
use orderfree_core::protocol::op_id::{ClientId, Window};

use super::*;
use crate::policy::Policy;

/// Adds 1 under an id of now.
fn named(pod: &Pod, id: &str, window: Window) -> super::super::Update {
    named_at(pod.clock.now().wall, id, window)
}

/// Adds 1 under an id of this time. The same id with the time of another millisecond is another one.
fn named_at(time: Timestamp, id: &str, window: Window) -> super::super::Update {
    let id = ClientId::parse(id).expect("an id");
    let name = NamedOp::new(id, 0, time, window);
    let ops = vec![Op::Counter(CounterOp::Add { by: 1 })];
    super::super::Update { ops, name: Some(name) }
}

/// A store that acknowledges everything.
fn acknowledge(pod: &Pod) {
    let store = Arc::clone(&pod.store);
    spawn(async move {
        loop {
            let (_, reply) = store.request().await;
            let _ = reply.send(Ok(()));
        }
    });
}

/// Clients choose the windows of their ids, and each window has packs of its own.
#[tokio::test]
async fn the_next_pack_of_a_key_is_no_new_key() {
    let quota = "[[quota]]\ngroup_prefix = \"\"\nnew_keys_per_minute = 1\n";
    let policy: Policy = quota.parse().expect("a policy");
    let pod = pod_of(Bounds::awake(1_000), policy.into());
    acknowledge(&pod);
    let add = async |name: &str, id: &str, window| {
        pod.mutators.update(&key(name), named(&pod, id, window), STORED).await.map(drop)
    };
    for minute in 0..5 {
        assert_eq!(add("n", &format!("a{minute}"), Window::Minute).await, Ok(()), "{minute}");
        assert_eq!(add("n", &format!("b{minute}"), Window::Short).await, Ok(()), "{minute}");
        pod.clock.advance(Duration::from_secs(60));
    }
    assert!(pod.metrics.births.get() >= 6, "{:?}", pod.metrics.births);
    let refused = add("other", "a", Window::Minute).await;
    assert!(matches!(refused, Err(UpdateError::Refused(Refused::Quota(_)))), "{refused:?}");
}

#[tokio::test]
async fn a_pod_limits_the_ids_of_a_key_and_a_window() {
    let pod = pod();
    acknowledge(&pod);
    let mut taken = Vec::new();
    for window in [Window::Short, Window::Long] {
        let mut count = 0;
        let refused = loop {
            let ids = (count..count + 1_000).map(|id| named(&pod, &format!("{id}"), window));
            let updates = Updates { key: key("n"), lists: ids.collect() };
            let outcomes = pod.mutators.update_all(vec![updates], STORED).await;
            count += outcomes.iter().filter(|outcome| outcome.is_ok()).count();
            if let Some(Err(error)) = outcomes.into_iter().find(Result::is_err) {
                break error;
            }
        };
        assert!(matches!(refused, UpdateError::Refused(Refused::TooManyIds { .. })), "{refused}");
        taken.push(count);
    }
    assert!(taken.iter().all(|count| (50_000..53_000).contains(count)), "{taken:?}");
    // The births of packs spend neither those of the key nor those of another expiry.
    assert!(pod.metrics.births.get() > limits::BIRTHS_MAX.into());
    let plain = vec![Op::Counter(CounterOp::Add { by: 1 })];
    assert_eq!(pod.mutators.update(&key("n"), plain, STORED).await, Ok(None));
}

/// A fold takes all packs of an expiry at once, so there may not be too many of them.
#[tokio::test]
async fn packs_that_are_forgotten_again_and_again_are_refused_at_last() {
    let pod = pod_of(Bounds { resting_bytes: 0, ..Bounds::awake(1) }, Policies::default());
    acknowledge(&pod);
    let add = async |name: &str, id: u8| {
        pod.mutators.update(&key(name), named(&pod, &id.to_string(), Window::Long), STORED).await
    };
    for id in 0..limits::BIRTHS_MAX {
        assert_eq!(add("a", id).await, Ok(None), "{id}");
        assert_eq!(add("b", id).await, Ok(None), "{id}");
    }
    let told = add("a", limits::BIRTHS_MAX).await;
    assert!(matches!(told, Err(UpdateError::Refused(Refused::TooManyIds { .. }))), "{told:?}");
    let minute = named(&pod, "a", Window::Minute);
    assert_eq!(pod.mutators.update(&key("a"), minute, STORED).await, Ok(None));
    let plain = vec![Op::Counter(CounterOp::Add { by: 1 })];
    assert_eq!(pod.mutators.update(&key("a"), plain, STORED).await, Ok(None));
}

/// A task can have read the clock before another one that was quicker, and a clock can be set back.
#[tokio::test]
async fn what_a_pack_leaves_for_its_successor_never_wakes() {
    let pod = pod_of(Bounds { little_bytes: 0, ..Bounds::awake(1_000) }, Policies::default());
    acknowledge(&pod);
    let add = async |id: &str| {
        pod.mutators.update(&key("n"), named(&pod, id, Window::Minute), STORED).await
    };
    let now = pod.clock.now().wall;
    let name = named(&pod, "a", Window::Minute).name.expect("an id");
    let until = name.expiry(&key("n").group, now, &pod.mutators.constants).expect("in its window");
    assert_eq!(add("a").await, Ok(None));
    let left = until.as_micros() - now.as_micros();
    pod.clock.advance(Duration::from_micros(left.unsigned_abs()));
    pod.mutators.table.tidy(pod.clock.now());
    assert_eq!(pod.mutators.table.at_rest().count, 1, "what it leaves");
    *pod.clock.0.lock().unwrap() = Duration::ZERO;
    assert_eq!(add("b").await, Ok(None));
    assert_eq!((pod.metrics.births.get(), pod.metrics.wakes.get()), (2, 0));
}

/// Reads of the key get slow. Other updates of it need no further room.
#[tokio::test]
async fn a_key_with_too_many_ids_takes_no_further_ones() {
    let pod = pod();
    acknowledge(&pod);
    let began = pod.clock.now().wall;
    let add = async |id: &str| {
        let update = named_at(began, id, Window::Short);
        pod.mutators.update(&key("n"), update, STORED).await.map(drop)
    };
    let seen = |ids| pod.mutators.gate.observe_ids(&key("n"), ids);
    assert_eq!(add("a").await, Ok(()));
    seen(limits::KEY_IDS_MAX);
    assert_eq!(add("b").await, Ok(()));
    seen(limits::KEY_IDS_MAX + 1);
    assert_eq!(add("c").await, Err(Refused::KeyHasTooManyIds.into()));
    assert_eq!(add("b").await, Ok(()), "a repeat");
    let plain = vec![Op::Counter(CounterOp::Add { by: 1 })];
    assert_eq!(pod.mutators.update(&key("n"), plain, STORED).await, Ok(None));
    seen(limits::KEY_IDS_MAX);
    assert_eq!(add("c").await, Ok(()));
    seen(limits::KEY_IDS_MAX + 1);
    assert_eq!(add("d").await, Err(Refused::KeyHasTooManyIds.into()));
    pod.clock.advance(limits::KEY_IDS_TIME_MAX);
    assert_eq!(add("d").await, Ok(()), "it is forgotten");
}
