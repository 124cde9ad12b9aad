//! Whole pods on a real cluster, in one process: big keys and groups during folds, sweeps that start at the same
//! time, a node that dies and comes back, and a node that hangs.

#[path = "../cassandra/mod.rs"]
mod cassandra;
#[path = "../stores/contract/mod.rs"]
mod contract;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::http::Request;
use cassandra::{
    CLUSTER, DEFINING, Killed, Paused, cql, drop_keyspace, eventually, fresh, fresh_on_own,
};
use contract::{Subject, brief_constants, key, name, short_constants};
use futures::stream::{self, StreamExt};
use orderfree::engine::service::{DiscardError, GroupQuery};
use orderfree::engine::write::Bounds;
use orderfree::limits::STORE_ATTEMPT_TIME_MAX;
use orderfree::pod::node::{Node, Parts};
use orderfree::runtime::random::Random;
use orderfree::runtime::tasks::{Task, Tasks};
use orderfree::store::cassandra::CassandraConfig;
use orderfree::store::{Pause, StoreError, SweepPart};
use orderfree_core::crdt::{Counter, CounterOp, Kind, Op};
use orderfree_core::protocol::clock::ClockError;
use orderfree_core::protocol::consistency::{Level, Levels};
use orderfree_core::protocol::fold::{self, Fold, Plan};
use orderfree_core::protocol::group::From as Start;
use orderfree_core::protocol::high_water;
use orderfree_core::protocol::sweep::Nominator;
use orderfree_core::protocol::{Durability, Key, Timestamp, WriteError};
use serde_json::{Value, json};
use tower::ServiceExt;
use uuid::Uuid;

/// Keys of the group, and shards per key.
const GROUP_KEYS: usize = 2_000;
const GROUP_SHARDS: usize = 2;

/// Keys that several pods sweep, each in a group of its own: several times as many as a sweep looks ahead.
const SWEPT_KEYS: usize = 1_500;

/// Keys that are written and read while a node hangs, each in a group of its own.
const HANGING_KEYS: usize = 30;

/// Longest time until nodes know when reads of a new table are overdue. They calculate it once per read timeout,
/// which is 10 s in `tests/cassandra/conf`, and use half of that timeout before.
const SPECULATION_KNOWN: Duration = Duration::from_secs(12);

/// Shards of the big key.
const BIG_SHARDS: usize = 3_000;

fn pod(subject: &Subject) -> Node {
    pod_by(subject, Random::system())
}

fn pod_by(subject: &Subject, random: Random) -> Node {
    let (store, clock) = (Arc::clone(&subject.store), Arc::clone(&subject.clock));
    Node::new(Parts {
        random,
        bounds: Bounds::awake(1_000),
        ..Parts::new(store, subject.constants, clock)
    })
}

async fn total(pod: &Node, key: &Key) -> i128 {
    let read = pod.service().read(key, None).await.expect("readable");
    Counter::try_from(read.expect("present").state.clone()).expect("a counter").total()
}

async fn add(pod: &Node, key: &Key, by: i64) {
    // These pods have no background work.
    pod.resetter().look_if_due().await;
    add_unlooked(pod, key, by).await;
}

/// Adds on a pod that reads the log of resets in the background.
async fn add_unlooked(pod: &Node, key: &Key, by: i64) {
    let ops = vec![Op::Counter(CounterOp::Add { by })];
    pod.service().update(key, ops, Durability::Stored).await.expect("acked");
}

async fn group_totals(pod: &Node) -> Vec<i128> {
    let mut query = GroupQuery {
        kind: Kind::Counter,
        group: name("wide"),
        prefix: None,
        from: None,
        to: None,
        behind: None,
        limit: 700,
        level: None,
    };
    let mut totals = Vec::new();
    loop {
        let page = pod.service().read_group(&query, |_, value| {
            let state = value.expect("readable").state;
            totals.push(Counter::try_from(state).expect("a counter").total());
            0
        });
        match page.await.expect("readable") {
            Some(last) => query.behind = Some(last),
            None => return totals,
        }
    }
}

/// Two pods' clocks may differ by twice the limit. An acknowledged set may then not be visible, and must say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_that_a_later_time_hides_says_so() {
    let _others_too = CLUSTER.read().await;
    let config = fresh(brief_constants()).await;
    let subject = Subject::on_cluster(&config).await;
    let ahead = subject.now().wall.plus(subject.constants.clock_offset_max()).as_micros();
    for (kind, first, second) in [
        ("register", json!({"op": "set", "value": "old"}), json!({"op": "set", "value": "new"})),
        ("lww_set", json!({"op": "add", "item": "a"}), json!({"op": "remove", "item": "a"})),
    ] {
        // New pods, because a pod's clock follows the times that it has seen.
        let pods = [pod(&subject), pod(&subject)];
        let send = async |pod: &Node, op: &Value| {
            let request = Request::post(format!("/v1/{kind}/g/n?return=value"))
                .header("host", "pod")
                .header("content-type", "application/json")
                .body(Body::from(op.to_string()))
                .expect("a request");
            let answer = pod.router().oneshot(request).await.expect("infallible");
            assert_eq!(answer.status(), 200);
            let body = to_bytes(answer.into_body(), usize::MAX).await.expect("a body");
            serde_json::from_slice::<Value>(&body).expect("JSON")
        };
        let after = |op: &Value, time: &Value| {
            let mut op = op.clone();
            op["after"] = time.clone();
            op
        };
        let answer = send(&pods[0], &after(&first, &json!(ahead))).await;
        assert_eq!(answer.get("superseded"), None, "{answer}");
        let (time, value) = (answer["timestamp"].clone(), answer["value"].clone());
        let hidden = send(&pods[1], &second).await;
        assert_eq!((&hidden["superseded"], &hidden["value"]), (&json!(true), &value), "{hidden}");
        let shown = send(&pods[1], &after(&second, &time)).await;
        assert_eq!(shown.get("superseded"), None, "{shown}");
        assert_ne!(shown["value"], value, "{shown}");
    }
    subject.store.close().await;
    drop_keyspace(&config).await;
}

/// Cassandra orders ids by their version first, so rows with other ids are not where they are expected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_in_an_unexpected_order_are_an_error_of_their_key() {
    let _others_too = CLUSTER.read().await;
    let config = fresh(brief_constants()).await;
    let subject = Subject::on_cluster(&config).await;
    let keys = ["sound", "strange"].map(|name| key("g", name));
    for key in &keys {
        subject.put(key, 1).await;
    }
    for (version, first_digit) in [(4, 0), (1, 8)] {
        let id = Uuid::from_u128(first_digit << 124 | version << 76 | 0b10 << 62);
        cql(
            &config,
            &format!(
                "INSERT INTO {}.shards (kind, grp, name, expires_at, mutator_id, state) VALUES \
             ('counter', 'g', 'strange', 1, {id}, 0x00)",
                config.keyspace
            ),
        )
        .await;
    }
    let (sound, strange, level) = (&keys[0], &keys[1], subject.store.levels().read);
    let is_corrupt = |error: &StoreError| matches!(error, StoreError::Corrupt(_));
    let error = subject.store.read_key(strange, None, level).await.expect_err("out of order");
    assert!(is_corrupt(&error) && error.to_string().contains("table's order"), "{error}");
    assert!(is_corrupt(&subject.store.read_for_fold(strange).await.expect_err("out of order")));
    let both = subject.store.read_for_folds(&keys).await;
    assert!(is_corrupt(&both.expect_err("one of them")));
    assert_eq!(subject.total(sound).await, Some(1));
    let chunk = subject.store.read_chunk(sound.kind, &sound.group, &Start::Start, level).await;
    let found: Vec<_> =
        chunk.expect("a chunk").keys.into_iter().map(|(_, slice)| slice.is_ok()).collect();
    assert_eq!(found, [true, false], "it hinders no other key");
    subject.store.close().await;
    drop_keyspace(&config).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn big_keys_and_groups_are_read_right_while_folds_run() {
    let _others_too = CLUSTER.read().await;
    let config = fresh(brief_constants()).await;
    let subject = Subject::on_cluster(&config).await;
    let big = key("tall", "big");
    let member = |at: usize| key("wide", &format!("key-{at:04}"));
    subject.write_all((0..BIG_SHARDS).map(|_| subject.shard(&big, 7)).collect()).await;
    for _ in 0..GROUP_SHARDS {
        let writes = (0..GROUP_KEYS)
            .map(|at| subject.shard(&member(at), i64::try_from(at).expect("small") + 1));
        subject.write_all(writes.collect()).await;
    }
    let written = Instant::now();
    let pods: Vec<Node> = (0..3).map(|_| pod(&subject)).collect();
    let big_total = 7 * BIG_SHARDS as i128;
    let group_total: Vec<i128> = (1..=GROUP_KEYS).map(|at| (GROUP_SHARDS * at) as i128).collect();
    assert_eq!(total(&pods[0], &big).await, big_total);
    assert_eq!(group_totals(&pods[0]).await, group_total);
    for pod in &pods {
        pod.start();
    }
    let (mut reads, mut rows) = (0, usize::MAX);
    while rows > GROUP_KEYS + 1 {
        assert!(written.elapsed() < Duration::from_secs(150), "{rows} rows are left");
        let pod = &pods[reads % pods.len()];
        assert_eq!(total(pod, &big).await, big_total, "read {reads}");
        assert_eq!(group_totals(pod).await, group_total, "read {reads}");
        reads += 1;
        let subject = &subject;
        let all = (0..GROUP_KEYS).map(member).chain([big.clone()]);
        let counts = stream::iter(all).map(|key| async move { subject.rows(&key).await });
        let counts: Vec<_> = counts.buffer_unordered(64).collect().await;
        rows = counts.into_iter().map(|rows| rows.expect("readable")).sum();
    }
    println!("{reads} reads of both while folds ran; each key has one row now");
    assert_eq!(rows, GROUP_KEYS + 1, "one tally each");
    assert_eq!(total(&pods[1], &big).await, big_total);
    assert_eq!(group_totals(&pods[2]).await, group_total);
    for pod in pods {
        assert_eq!(pod.stop(Duration::from_secs(5)).await, 0);
    }
    drop_keyspace(&config).await;
}

/// Pods do not divide the sweep among themselves. Each begins in another place and skips keys that others folded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_sweeps_share_the_folds() {
    let _others_too = CLUSTER.read().await;
    let config = fresh(brief_constants()).await;
    let subject = Subject::on_cluster(&config).await;
    let swept = |at: usize| key(&format!("swept-{at}"), "n");
    let shards = (0..SWEPT_KEYS).flat_map(|at| [3, 4].map(|by| subject.shard(&swept(at), by)));
    subject.write_all(shards.collect()).await;
    let is_final = brief_constants().lifetime() + brief_constants().cutoff();
    tokio::time::sleep(is_final + Duration::from_secs(1)).await;
    // The random places are the same in each run: two pods that begin in one place would continue side by side.
    let pods = [1, 2, 3].map(|seed| pod_by(&subject, Random::seeded(seed)));
    let sweeps = pods.each_ref().map(|pod| pod.folder().sweep_once());
    let reports = {
        // Folds pause while nodes disagree on the schema, which happens when another test changes it. A pod sees the
        // end of it a moment later.
        let _defining = DEFINING.lock().await;
        eventually("one schema", async || subject.store.fold_time(subject.now()).map(drop)).await;
        futures::future::try_join_all(sweeps).await.expect("swept")
    };
    println!("{reports:?}");
    let folded: usize = reports.iter().map(|report| report.folded).sum();
    let looked_at: usize = reports.iter().map(|report| report.nominated).sum();
    // Where two pods meet, both fold the keys that one has read and the other has not written yet. The
    // slower the machine, the more. Without any sharing, the pods would fold three times as many.
    assert!((SWEPT_KEYS..SWEPT_KEYS * 5 / 4).contains(&folded), "{reports:?}");
    // Each pod looks ahead, at keys that another one is about to fold.
    assert!(looked_at < 5 * SWEPT_KEYS / 2, "alone they look at {}: {looked_at}", 3 * SWEPT_KEYS);
    assert!(reports.iter().all(|report| report.folded > SWEPT_KEYS / 10), "{reports:?}");
    for at in (0..SWEPT_KEYS).step_by(10) {
        assert_eq!(total(&pods[0], &swept(at)).await, 7);
        assert_eq!(subject.rows(&swept(at)).await.expect("readable"), 1);
    }
    for pod in pods {
        assert_eq!(pod.stop(Duration::from_secs(5)).await, 0);
    }
    drop_keyspace(&config).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn background_folds_wait_for_a_dead_node_and_then_catch_up() {
    let _alone = CLUSTER.write().await;
    let config = fresh_on_own(brief_constants()).await;
    let subject = Subject::on_cluster(&config).await;
    let pods: Vec<Node> = (0..3).map(|_| pod(&subject)).collect();
    let key = key("g", "n");
    for pod in &pods {
        add(pod, &key, 5).await;
    }
    let killed = Killed::nodes(&["3"]);
    for pod in &pods {
        pod.start();
        add(pod, &key, 7).await;
    }
    let is_final = brief_constants().lifetime() + brief_constants().cutoff();
    tokio::time::sleep(is_final + Duration::from_secs(1)).await;
    for pod in &pods {
        assert_eq!(total(pod, &key).await, 36, "updates and reads still work");
    }
    for pod in &pods {
        add(pod, &key, 1).await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let report = pods[0].service().shards(&key).await.expect("readable");
    assert_eq!((report.tally, report.shards.len()), (None, 6), "nothing was folded");
    // The dead node could have the row whole, whatever the level of folds.
    let levels = Levels { fold: Level::Quorum, ..config.levels };
    let other = Subject::on_cluster(&CassandraConfig { levels, ..config.clone() }).await;
    let row = pod(&other).service().discardable(&key, report.shards[0].mutator_id).await;
    assert!(matches!(&row, Err(DiscardError::Read(StoreError::Unavailable(_)))), "{row:?}");
    other.store.close().await;
    drop(killed);
    eventually("the folds catch up", async || {
        assert_eq!(total(&pods[0], &key).await, 39);
        match subject.rows(&key).await {
            Ok(4) => Ok(()),
            Ok(rows) => Err(format!("{rows} rows")),
            Err(error @ StoreError::Unavailable(_)) => Err(error.to_string()),
            Err(error) => panic!("{error}"),
        }
    })
    .await;
    for pod in pods {
        assert_eq!(total(&pod, &key).await, 39);
        assert_eq!(pod.stop(Duration::from_secs(5)).await, 0);
    }
    drop_keyspace(&config).await;
}

/// The fold of a key by a clock that is ahead by this much.
async fn fold_ahead(subject: &Subject, key: &Key, ahead: Duration) -> Fold {
    let read = subject.store.read_for_fold(key).await.expect("readable");
    let now = subject.now().wall.plus(ahead);
    match fold::plan(&read, now, &subject.constants).expect("a plan") {
        Plan::Fold(fold) => fold,
        Plan::Nothing(report) => panic!("nothing to fold: {report:?}"),
    }
}

const TWO_DAYS: Duration = Duration::from_secs(2 * 24 * 3600);

/// All clocks were ahead, folded, and were set back. A pod that starts now has never seen the key, whose fence would
/// swallow its updates.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_from_the_future_shuts_pods_that_start_later() {
    let _others_too = CLUSTER.read().await;
    let config = fresh(brief_constants()).await;
    let (subject, other) = (Subject::on_cluster(&config).await, Subject::on_cluster(&config).await);
    let key = key("g", "n");
    subject.put(&key, 7).await;
    let fold = fold_ahead(&subject, &key, TWO_DAYS).await;
    assert_eq!(other.store.check_clock(other.now()), Ok(()));
    assert_eq!(subject.store.write_fold(&fold).await, Ok(()));
    let later = Subject::on_cluster(&config).await;
    let moved = Err(ClockError::Moved);
    assert_eq!(later.store.check_clock(later.now()), moved);
    let pause = later.store.fold_time(later.now()).expect_err("no fold either");
    assert!(matches!(pause, Pause::Clock(ClockError::Moved)), "{pause}");
    eventually("a pod that runs hears of it", async || {
        let trusted = other.store.check_clock(other.now());
        if trusted == moved { Ok(()) } else { Err(format!("{trusted:?}")) }
    })
    .await;
    let caught_up = later.now().wall.plus(TWO_DAYS + Duration::from_secs(60));
    let then = orderfree_core::protocol::Now { wall: caught_up, ..later.now() };
    assert_ne!(later.store.check_clock(then), moved, "time alone opens it");

    // Everything that walks the table skips the row.
    assert_eq!(later.total(&key).await, Some(7));
    for &kind in Kind::ALL {
        let list = later.store.groups(kind, None, 1_000).await.expect("a list");
        assert_eq!(list.groups.len(), usize::from(kind == Kind::Counter), "{kind}");
    }
    let of = later.store.sweep_parts();
    for index in 0..of {
        let (found, mut nominated) = tokio::sync::mpsc::channel(10);
        let now = later.now().wall.plus(2 * TWO_DAYS);
        later
            .store
            .sweep(SweepPart { index, of }, Nominator::new(now, later.constants), found)
            .await
            .expect("swept");
        assert_eq!(nominated.recv().await.map(|found| found.key), None);
    }
    for subject in [subject, other, later] {
        subject.store.close().await;
    }
    drop_keyspace(&config).await;
}

/// The fold is not written even if its batch would succeed: after a restart, no pod would know of its fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fold_is_not_written_if_its_fence_can_not_be_stored() {
    let _alone = CLUSTER.write().await;
    let config = fresh_on_own(brief_constants()).await;
    let subject = Subject::on_cluster(&config).await;
    let key = key("g", "n");
    subject.put(&key, 7).await;
    let fold = fold_ahead(&subject, &key, TWO_DAYS).await;
    let killed = Killed::nodes(&["2", "3"]);
    let outcome = subject.store.write_fold(&fold).await;
    let is_refused = matches!(&outcome, Err(WriteError::Refused(why)) if why.contains("its fence"));
    assert!(is_refused, "{outcome:?}");
    drop(killed);
    let read = subject.store.read_key(&key, None, subject.store.levels().read).await;
    assert!(read.expect("readable").tally().is_none(), "it was written");
    subject.store.close().await;
    drop_keyspace(&config).await;
}

/// One write of the row is enough for all folds of a minute, or of a cutoff that is shorter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folds_at_nearly_one_time_share_one_write_of_their_fence() {
    let _others_too = CLUSTER.read().await;
    let config = fresh(brief_constants()).await;
    let quantum = high_water::quantum(&brief_constants());
    let subject = Subject::on_cluster(&config).await;
    let session = cassandra::session(&config).await;
    let stored = async || {
        let cql = format!(
            "SELECT WRITETIME(state) FROM {}.shards WHERE kind = '!fence' AND grp = '!'",
            config.keyspace
        );
        let answer = session.query_unpaged(cql, ()).await.expect("an answer");
        let rows = answer.into_rows_result().expect("rows");
        let (time,) = rows.single_row::<(i64,)>().expect("one row");
        Timestamp::from_micros(time)
    };
    let mut fences = Vec::new();
    let later = [Duration::ZERO, quantum / 3, 2 * quantum];
    for (name, later) in ["a", "b", "c"].into_iter().zip(later) {
        let key = key("g", name);
        subject.put(&key, 1).await;
        let fold = fold_ahead(&subject, &key, Duration::from_secs(60) + later).await;
        assert_eq!(subject.store.write_fold(&fold).await, Ok(()));
        fences.push((fold.fence(), stored().await));
    }
    let [(first, at_first), (_, at_second), (third, at_third)] = fences[..] else { panic!() };
    assert_eq!((at_first, at_second, at_third), (first, first, third));
    subject.store.close().await;
    drop_keyspace(&config).await;
}

/// How long each of these takes if they run concurrently.
async fn times<Work: Future<Output = ()>>(tasks: impl Iterator<Item = Work>) -> Vec<Duration> {
    let timed = tasks.map(|task| async {
        let begun = Instant::now();
        task.await;
        begun.elapsed()
    });
    futures::future::join_all(timed).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_hangs_delays_no_request() {
    let _alone = CLUSTER.write().await;
    let constants = short_constants();
    let config = fresh_on_own(constants).await;
    // Each on its own connection, so that what one learns about the node does not help the other.
    let (writer, reader) =
        (pod(&Subject::on_cluster(&config).await), pod(&Subject::on_cluster(&config).await));
    let tasks = Tasks::new();
    tasks.spawn(Task::ResetPoll, Arc::clone(writer.resetter()).poll(tasks.clone()));
    eventually("the log of resets is read", async || writer.resetter().check_log()).await;
    let keys: Vec<Key> = (0..HANGING_KEYS).map(|at| key(&format!("g{at}"), "n")).collect();
    let write = || times(keys.iter().map(|key| add_unlooked(&writer, key, 1)));
    let read = || {
        times(keys.iter().map(|key| async {
            total(&reader, key).await;
        }))
    };
    // The typical latency is learned from a few hundred answers.
    let (begun, mut rounds) = (Instant::now(), 0);
    while rounds < 20 || begun.elapsed() < SPECULATION_KNOWN {
        write().await;
        read().await;
        rounds += 1;
    }
    let paused = Paused::node("3");
    let (writes, reads) = (write().await, read().await);
    drop(paused);
    for key in &keys {
        assert_eq!(total(&reader, key).await, rounds + 1);
    }
    // Without hedges, a third of them would wait for the timeout of an attempt.
    let slowest = |times: &[Duration]| times.iter().max().copied().unwrap_or_default();
    println!("while a node hung: writes {:?}, reads {:?}", slowest(&writes), slowest(&reads));
    assert!(slowest(&writes) < constants.attempt_budget(), "{writes:?}");
    assert!(slowest(&reads) < STORE_ATTEMPT_TIME_MAX, "{reads:?}");
    tasks.stop();
    for pod in [writer, reader] {
        assert_eq!(pod.stop(Duration::from_secs(5)).await, 0);
    }
    drop_keyspace(&config).await;
}
