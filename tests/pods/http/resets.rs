//! Keys that begin again, and keys that are deleted. If the store is of this process alone, nothing waits.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::Response;
use futures::FutureExt;
use futures::future::{join_all, select_all};
use orderfree::engine::write::Bounds;
use orderfree::limits::{LOG_ROWS_MAX, RESETS_AT_ONCE_MAX, RESETS_REMEMBERED_MAX};
use orderfree::policy::Policies;
use orderfree::runtime::clock::{Clock, SystemClock};
use orderfree::runtime::random::update_id;
use orderfree::store::{Receipt, ResetLog};
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::reset::{CLEARED_IDS_MAX, LOG_NAMES_MAX, LogRow, bucket};
use orderfree_core::protocol::{Name, Timestamp};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tower::ServiceExt;
use uuid::Uuid;

use crate::log::Logged;
use crate::pod::{Answer, Fault, Ground, Pod, request};

const KEY: &str = "/v1/counter/site/home";

/// A UUID of version 7, with the time of the request.
fn new_id() -> String {
    update_id(SystemClock.now().wall).to_string()
}

async fn add(pod: &Pod, path: &str, by: &str) {
    let answer = pod.post(path, "text/plain", by).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
}

/// Adds to a counter under an id, again and again until it is acknowledged.
async fn add_once(pod: &Pod, path: &str, by: u32, id: &str) {
    let headers = [("content-type", "text/plain"), ("idempotency-key", id)];
    for _ in 0..100 {
        let answer = pod.send(request("POST", path, &headers, by.to_string())).await;
        match answer.status {
            StatusCode::OK => return,
            // On a busy machine the log can be unread for a moment.
            StatusCode::SERVICE_UNAVAILABLE => sleep(Duration::from_millis(50)).await,
            _ => panic!("{}", answer.text),
        }
    }
    panic!("{path} takes no update");
}

/// Waits until this is so.
async fn until(is_so: impl AsyncFn() -> bool) {
    for _ in 0..1_500 {
        if is_so().await {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("it is not so after half a minute");
}

async fn ask(pod: &Pod, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    pod.send(request(method, path, headers, "")).await
}

async fn done(pod: &Pod, method: &str, path: &str, headers: &[(&str, &str)]) -> Value {
    let answer = ask(pod, method, path, headers).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    answer.json()
}

#[tokio::test]
async fn a_reset_returns_what_the_key_had_and_the_key_begins_again() {
    let pod = Pod::new();
    let reset = format!("{KEY}/reset");
    let absent = ask(&pod, "POST", &reset, &[]).await;
    assert_eq!(absent.problem(404, "key-absent").as_deref(), Some("refused"));
    assert_eq!(absent.json()["detail"], "counter/site/home does not exist.");
    add(&pod, KEY, "5").await;
    add(&pod, KEY, "7").await;
    let first = done(&pod, "POST", &reset, &[]).await;
    assert_eq!((&first["outcome"], &first["cleared"]), (&json!("acked"), &json!({"value": 12})));
    assert_eq!((&first["name"], &first["deleted"]), (&json!("home"), &json!(false)));
    assert_eq!(pod.value(KEY).await.as_deref(), Some("0"));
    add(&pod, KEY, "3").await;
    assert_eq!(pod.value(KEY).await.as_deref(), Some("3"));
    let second = done(&pod, "POST", &format!("{reset}?numbers=string"), &[]).await;
    assert_eq!(second["cleared"]["value"], "3");
    assert_ne!(second["id"], first["id"]);
    for (reset, cleared) in [(&first, 12), (&second, 3)] {
        let id = reset["id"].as_str().expect("an id");
        let asked = done(&pod, "GET", &format!("{KEY}/resets/{id}"), &[]).await;
        assert_eq!(asked["cleared"]["value"], cleared, "{asked}");
    }
    let id = first["id"].as_str().expect("an id");
    for path in [format!("{KEY}/resets/1-x"), format!("/v1/counter/site/other/resets/{id}")] {
        ask(&pod, "GET", &path, &[]).await.problem(404, "reset-absent");
    }
    let text = pod.get("/metrics").await.text;
    assert!(text.contains("orderfree_resets_total{end=\"done\"} 2\n"), "{text}");
}

#[tokio::test]
async fn a_deleted_key_is_absent_until_it_is_updated() {
    let pod = Pod::new();
    add(&pod, KEY, "5").await;
    let deleted = done(&pod, "DELETE", KEY, &[]).await;
    assert_eq!((&deleted["cleared"], &deleted["deleted"]), (&json!({"value": 5}), &json!(true)));
    assert_eq!(pod.value(KEY).await, None);
    assert_eq!(pod.get("/v1/counter/site").await.json()["keys"], json!([]));
    ask(&pod, "DELETE", KEY, &[]).await.problem(404, "key-absent");
    add(&pod, KEY, "2").await;
    assert_eq!(pod.value(KEY).await.as_deref(), Some("2"));
}

#[tokio::test]
async fn a_key_of_any_kind_says_what_it_had_and_begins_again() {
    let pod = Pod::new();
    // Tokens of items and times of reads are left out.
    let plain = async |path: &str| {
        let accept = [("accept", "text/plain, application/json;q=0.5")];
        let answer = pod.send(request("GET", path, &accept, "")).await;
        match answer.header("content-type") {
            "application/json" => answer.json()["value"].to_string(),
            _ => answer.text,
        }
    };
    for kind in Kind::ALL {
        let [path, fresh] = ["home", "fresh"].map(|name| format!("/v1/{kind}/site/{name}"));
        for op in ["5", "7"] {
            add(&pod, &path, op).await;
        }
        let before = pod.get(&path).await.json()["value"].clone();
        let reset = done(&pod, "POST", &format!("{path}/reset"), &[]).await;
        assert_eq!(reset["cleared"]["value"], before, "{kind}");
        for path in [&path, &fresh] {
            add(&pod, path, "9").await;
        }
        assert_eq!(plain(&path).await, plain(&fresh).await, "{kind}");
        let before = pod.get(&path).await.json()["value"].clone();
        let deleted = done(&pod, "DELETE", &path, &[]).await;
        assert_eq!(deleted["cleared"]["value"], before, "{kind}");
        pod.get(&path).await.problem(404, "key-absent");
    }
}

#[tokio::test]
async fn no_key_is_reset_while_the_clock_is_not_trusted() {
    let pod = Pod::new();
    add(&pod, KEY, "5").await;
    for fault in [Fault::Unmeasured, Fault::Moved] {
        pod.set(fault);
        for (method, path) in [("POST", format!("{KEY}/reset")), ("DELETE", KEY.to_owned())] {
            let refused = ask(&pod, method, &path, &[]).await;
            assert_eq!(refused.problem(503, "clock").as_deref(), Some("refused"));
        }
    }
    pod.set(Fault::None);
    assert_eq!(pod.value(KEY).await.as_deref(), Some("5"));
}

#[tokio::test]
async fn a_reset_that_is_sent_again_with_its_id_is_the_same_reset() {
    let pod = Pod::new();
    let (reset, id) = (format!("{KEY}/reset"), new_id());
    let named = [("idempotency-key", id.as_str())];
    add(&pod, KEY, "5").await;
    let first = done(&pod, "POST", &reset, &named).await;
    add(&pod, KEY, "3").await;
    assert_eq!(done(&pod, "POST", &reset, &named).await, first);
    assert_eq!(pod.value(KEY).await.as_deref(), Some("3"), "what came since stays");
    let other = ask(&pod, "DELETE", KEY, &named).await;
    assert_eq!(other.problem(422, "id-reused").as_deref(), Some("refused"));
    let without_time = [("idempotency-key", "x")];
    ask(&pod, "POST", &reset, &without_time).await.problem(422, "id-without-time");
    let bad = [("prefer", "wait=soon")];
    ask(&pod, "POST", &reset, &bad).await.problem(400, "unsupported-header");
}

/// The retry of an op that was cleared adds nothing, and is acknowledged.
#[tokio::test]
async fn a_cleared_update_counts_nothing_if_it_is_sent_again() {
    let pod = Pod::new();
    let id = new_id();
    let named = [("idempotency-key", id.as_str())];
    let headers = [named[0], ("content-type", "application/json")];
    let update = async || {
        let sent = pod.send(request("POST", KEY, &headers, r#"{"op":"add","by":5}"#)).await;
        assert_eq!(sent.status, StatusCode::OK, "{}", sent.text);
    };
    update().await;
    assert_eq!(done(&pod, "POST", &format!("{KEY}/reset"), &[]).await["cleared"]["value"], 5);
    update().await;
    assert_eq!(pod.value(KEY).await.as_deref(), Some("0"));
    add(&pod, KEY, "1").await;
    assert_eq!(pod.value(KEY).await.as_deref(), Some("1"));
}

/// Updates do not wait for a reset, and their outcome is known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_during_resets_are_acked_and_on_one_side_of_each() {
    let pod = Pod::new();
    add(&pod, KEY, "1").await;
    let (is_over, reset) = (Cell::new(false), format!("{KEY}/reset"));
    let updates = async || {
        let mut acked = 0;
        while !is_over.get() {
            add(&pod, KEY, "1").await;
            acked += 1;
        }
        acked
    };
    let resets = async {
        let mut cleared = 0;
        for _ in 0..100 {
            let done = done(&pod, "POST", &reset, &[]).await;
            cleared += done["cleared"]["value"].as_i64().expect("a number");
            sleep(Duration::from_millis(3)).await;
        }
        is_over.set(true);
        cleared
    };
    let (acked, cleared) = futures::join!(join_all((0..8).map(|_| updates())), resets);
    let left: i64 = pod.value(KEY).await.expect("a value").parse().expect("a number");
    assert_eq!(cleared + left, 1 + acked.iter().sum::<i64>());
}

#[tokio::test]
async fn a_retry_does_not_bring_a_deleted_key_back() {
    let (pod, id) = (Pod::new(), new_id());
    add_once(&pod, KEY, 5, &id).await;
    assert_eq!(done(&pod, "DELETE", KEY, &[]).await["cleared"]["value"], 5);
    let headers = [("content-type", "application/json"), ("idempotency-key", id.as_str())];
    let path = format!("{KEY}?return=value");
    let again = pod.send(request("POST", &path, &headers, r#"{"op":"add","by":5}"#)).await.json();
    assert_eq!(again["outcome"], "acked", "{again}");
    let why = again["read_problem"]["detail"].as_str().expect("a problem");
    assert!(why.starts_with("An update whose id was cleared"), "{why}");
    assert_eq!(pod.value(KEY).await, None);
    assert_eq!(pod.get("/v1/counter/site").await.json()["keys"], json!([]));
    let shards = pod.get(&format!("{KEY}/shards")).await.json();
    assert_eq!(shards["shards"][0]["cleared"], true, "{shards}");
    add(&pod, KEY, "1").await;
    assert_eq!(pod.value(KEY).await.as_deref(), Some("1"));
}

/// Pods remember for ten minutes that the folded part of a key is full.
#[tokio::test]
async fn a_full_key_takes_updates_right_after_its_reset() {
    let (pod, path) = (Pod::new(), "/v1/gset/site/home");
    pod.set(Fault::Huge);
    let fold = pod.post(&format!("{path}/fold"), "", "").await;
    assert_eq!(fold.json()["full"], true, "{}", fold.text);
    pod.set(Fault::None);
    pod.post(path, "text/plain", "new").await.problem(409, "state-too-large");
    assert_eq!(done(&pod, "DELETE", path, &[]).await["outcome"], "acked");
    add(&pod, path, "new").await;
    assert_eq!(pod.get(path).await.json()["value"]["size"], 1);
}

#[tokio::test]
async fn keys_with_a_prefix_are_deleted_together() {
    let pod = Pod::new();
    for name in ["2026-10-31", "2026-11-01", "2026-11-02", "total"] {
        add(&pod, &format!("/v1/counter/site/{name}"), "1").await;
    }
    let path = "/v1/counter/site?prefix=2026-11-";
    let deleted = done(&pod, "DELETE", path, &[]).await;
    let expected =
        json!({"kind": "counter", "group": "site", "deleted": 2, "failed": [], "more": false});
    assert_eq!(deleted, expected);
    let page = pod.get("/v1/counter/site").await.json();
    let names: Vec<_> =
        page["keys"].as_array().expect("keys").iter().map(|key| key["name"].clone()).collect();
    assert_eq!(names, ["2026-10-31", "total"]);
    assert_eq!(done(&pod, "DELETE", path, &[]).await["deleted"], 0);
    for query in ["", "?prefix=", "?prefix=2026&all=true", "?all=false"] {
        let path = format!("/v1/counter/site{query}");
        let refused = ask(&pod, "DELETE", &path, &[]).await.problem(400, "bad-query");
        assert_eq!(refused.as_deref(), Some("refused"), "{query}");
    }
    let all = "/v1/counter/site?all=true";
    let refused = pod.send(request("DELETE", all, &[], r#"{"names":["total"]}"#)).await;
    assert_eq!(refused.problem(400, "bad-body").as_deref(), Some("refused"));
    assert_eq!(done(&pod, "DELETE", all, &[]).await["deleted"], 2);
    assert_eq!(pod.get("/v1/counter/site").await.json()["keys"], json!([]));
}

/// The lease is 2 s here, so a reset takes a little more than that.
#[tokio::test]
async fn a_long_reset_is_answered_with_a_place_to_ask_any_pod() {
    let log = Logged::new();
    let (one, other) = (Pod::with_log(&log).await, Pod::with_log(&log).await);
    let (reset, id) = (format!("{KEY}/reset"), new_id());
    let named = [("idempotency-key", id.as_str())];
    add(&one, KEY, "5").await;
    add(&other, KEY, "7").await;
    let begun = Instant::now();
    let running = ask(&one, "POST", &reset, &named).await;
    assert_eq!(running.status, StatusCode::ACCEPTED, "{}", running.text);
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(
        (&running.json()["outcome"], running.json().get("cleared")),
        (&json!("accepted"), None)
    );
    let place = running.header("location").to_owned();
    let asked = done(&other, "GET", &place, &[]).await;
    assert_eq!(asked["outcome"], "accepted", "{asked}");
    // Sent again to another pod, it is the same reset, and this request waits for its end.
    let patient = [named[0], ("prefer", "wait=60")];
    let end = done(&other, "POST", &reset, &patient).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!((&end["outcome"], &end["cleared"]), (&json!("acked"), &json!({"value": 12})));
    assert_eq!(end["id"], running.json()["id"]);
    for pod in [&one, &other] {
        assert_eq!(done(pod, "GET", &place, &[]).await, end);
        assert_eq!(pod.value(KEY).await.as_deref(), Some("0"));
    }
    for pod in [&one, &other] {
        add(pod, KEY, "1").await;
    }
    assert_eq!(one.value(KEY).await.as_deref(), Some("2"));
    assert_eq!(log.rows().len(), 1);
}

/// A client that has the place can ask any pod at once, and also after this one has crashed.
#[tokio::test]
async fn a_reset_has_a_place_only_when_the_log_has_it() {
    let log = Logged::new();
    let (one, other) = (Pod::with_log(&log).await, Pod::with_log(&log).await);
    add(&one, KEY, "5").await;
    log.set_slow(true);
    let path = format!("{KEY}/reset");
    let mut asked = pin!(ask(&one, "POST", &path, &[("prefer", "respond-async")]));
    assert!(timeout(Duration::from_millis(500), &mut asked).await.is_err(), "no answer yet");
    log.set_slow(false);
    let running = asked.await;
    assert_eq!(running.status, StatusCode::ACCEPTED, "{}", running.text);
    let place = running.header("location").to_owned();
    assert_eq!(done(&other, "GET", &place, &[]).await["outcome"], "accepted");
}

/// The log has one row for all of them.
#[tokio::test]
async fn many_keys_are_deleted_in_the_time_of_one() {
    let log = Logged::new();
    let pod = Pod::with_log(&log).await;
    for number in 0..20 {
        add(&pod, &format!("/v1/counter/site/2026-11-{number:02}"), "1").await;
    }
    let begun = Instant::now();
    let deleted = done(&pod, "DELETE", "/v1/counter/site?prefix=2026-11-", &[]).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!((&deleted["deleted"], &deleted["more"]), (&json!(20), &json!(false)));
    assert_eq!(pod.get("/v1/counter/site").await.json()["keys"], json!([]));
    let rows = log.rows();
    assert_eq!((rows.len(), rows[0].0.names.len(), rows[0].1.done), (1, 20, Some(true)));
}

/// It answers reads, and stays ready for them.
#[tokio::test]
async fn a_pod_that_cant_read_the_log_takes_no_updates_and_says_why() {
    let log = Logged::new();
    let pod = Pod::with_log(&log).await;
    add(&pod, KEY, "5").await;
    log.set_down(true);
    sleep(Duration::from_millis(2_100)).await;
    let refused = pod.post(KEY, "text/plain", "1").await;
    assert_eq!(refused.problem(503, "reset-log-unread").as_deref(), Some("refused"));
    assert_eq!(pod.value(KEY).await.as_deref(), Some("5"));
    let ready = pod.get("/readyz?verbose").await;
    assert_eq!(ready.status, StatusCode::OK);
    let says = ready.json()["checks"]["resets"].as_str().expect("a check").to_owned();
    assert!(says.starts_with("the log of resets was not read for "), "{says}");
    let age = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("orderfree_reset_log_age_seconds"));
        line.and_then(|line| line.split(' ').nth(1)?.parse::<f64>().ok()).expect("an age")
    };
    assert!(age(&pod.get("/metrics").await.text) >= 2.0);
    let reset = ask(&pod, "POST", &format!("{KEY}/reset"), &[]).await;
    assert_eq!(reset.problem(503, "store-unavailable").as_deref(), Some("refused"));
    // A new pod knows nothing yet.
    let new = Pod::with_log(&log).await;
    let detail = new.get("/readyz").await.detail(503, "not-ready");
    assert_eq!(detail, "resets: the log of resets was not read yet.");
    log.set_down(false);
    sleep(Duration::from_millis(300)).await;
    add(&pod, KEY, "1").await;
    assert_eq!(pod.get("/readyz?verbose").await.json()["checks"]["resets"], "ok");
    assert_eq!(new.get("/readyz").await.status, StatusCode::OK);
    assert!(age(&pod.get("/metrics").await.text) < 2.0);
}

/// A request for an absent key reads the store too.
#[tokio::test]
async fn a_pod_limits_resets_per_second() {
    let log = Logged::new();
    let pod = Pod::with_log(&log).await;
    let path = "/v1/counter/site/absent/reset";
    let mut passed = 0;
    let limited = loop {
        let answers = join_all((0..500).map(|_| ask(&pod, "POST", path, &[]))).await;
        let (absent, others): (Vec<_>, Vec<_>) =
            answers.into_iter().partition(|answer| answer.status == StatusCode::NOT_FOUND);
        passed += absent.len();
        if let Some(limited) = others.into_iter().next() {
            break limited;
        }
        assert!(passed < 20_000, "no limit");
    };
    assert!(passed >= 1_000, "{passed}");
    let detail = limited.detail(429, "resets-too-fast");
    let says = "This pod resets 100 keys a second on average; send the request again in 1 s.";
    assert_eq!(detail, says);
    assert_eq!(limited.header("retry-after"), "10");
    let text = pod.get("/metrics").await.text;
    let limited = "orderfree_resets_total{end=\"limited\"} ";
    assert!(text.contains(limited) && !text.contains(&format!("{limited}0\n")), "{text}");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(ask(&pod, "POST", path, &[]).await.status, StatusCode::NOT_FOUND);
}

/// With ORDERFREE_RESETS=off a pod makes no resets, and follows those of others.
#[tokio::test]
async fn a_pod_without_resets_counts_after_those_of_others() {
    let log = Logged::new();
    let resets = Pod::with_log(&log).await;
    let off = Pod::build(
        &log.ground,
        log.clone(),
        Policies::default(),
        Bounds::default(),
        Some("resets are off"),
    );
    off.resetter.look().await;
    add(&off, KEY, "5").await;
    let path = format!("{KEY}/reset");
    let refused = ask(&off, "POST", &path, &[]).await;
    assert_eq!(refused.detail(503, "reset-paused"), "Keys can't be reset: resets are off.");
    let look_and_reset = async {
        let reset = done(&resets, "POST", &path, &[("prefer", "wait=60")]);
        let mut reset = pin!(reset);
        loop {
            match timeout(Duration::from_millis(100), &mut reset).await {
                Ok(reset) => break reset,
                Err(_) => off.resetter.look().await,
            }
        }
    };
    assert_eq!(look_and_reset.await["cleared"]["value"], 5);
    add(&off, KEY, "3").await;
    assert_eq!(off.value(KEY).await.as_deref(), Some("3"));
}

#[tokio::test]
async fn no_key_is_reset_while_folds_wait_for_the_replication() {
    let pod = Pod::new();
    add(&pod, KEY, "5").await;
    pod.set(Fault::Altered);
    let refused = ask(&pod, "POST", &format!("{KEY}/reset"), &[]).await;
    let says = "Keys can't be reset: folding waits because of the keyspace's replication: folds can \
                miss updates.";
    assert_eq!(refused.detail(503, "reset-paused"), says);
    assert_eq!(refused.problem(503, "reset-paused").as_deref(), Some("refused"));
    assert_eq!(pod.value(KEY).await.as_deref(), Some("5"));
}

/// Both would change a key without the one that sent the request first.
#[tokio::test]
async fn an_id_must_be_of_a_time_that_the_log_surely_covers() {
    let pod = Pod::new();
    add(&pod, KEY, "5").await;
    let reset = format!("{KEY}/reset");
    let send = async |hours: i64| {
        let time = SystemClock.now().wall.shifted(hours * 3_600_000_000).as_micros().to_string();
        let named = [("idempotency-key", "x"), ("idempotency-time", time.as_str())];
        ask(&pod, "POST", &reset, &named).await
    };
    assert_eq!(send(1).await.problem(422, "id-ahead").as_deref(), Some("refused"));
    assert_eq!(send(-96).await.problem(422, "id-expired").as_deref(), Some("unknown"));
    assert_eq!(pod.value(KEY).await.as_deref(), Some("5"));
    assert_eq!(send(-48).await.json()["cleared"]["value"], 5);
}

#[tokio::test]
async fn a_key_that_is_not_resettable_keeps_all_and_stops_no_other() {
    for (fault, says) in
        [(Fault::LongKey, "The key has more than 128 rows"), (Fault::Damaged, "undecodable")]
    {
        let pod = Pod::new();
        for name in ["a", "home", "z"] {
            add(&pod, &format!("/v1/counter/site/{name}"), "1").await;
        }
        pod.set(fault);
        for (method, path) in [("POST", format!("{KEY}/reset")), ("DELETE", KEY.to_owned())] {
            let refused = ask(&pod, method, &path, &[]).await;
            assert!(refused.detail(409, "not-resettable").contains(says), "{}", refused.text);
            assert_eq!(refused.problem(409, "not-resettable").as_deref(), Some("refused"));
        }
        let deleted = done(&pod, "DELETE", "/v1/counter/site?all=true", &[]).await;
        let failed = &deleted["failed"][0];
        assert_eq!((&deleted["deleted"], &failed["name"]), (&json!(2), &json!("home")));
        let problem = failed["problem"]["type"].as_str().expect("a problem");
        assert!(problem.ends_with("not-resettable"), "{problem}");
        pod.set(Fault::None);
        assert_eq!(pod.value(KEY).await.as_deref(), Some("1"));
        assert_eq!(done(&pod, "DELETE", "/v1/counter/site?all=true", &[]).await["deleted"], 1);
    }
}

#[tokio::test]
async fn a_key_with_more_ids_than_a_reset_can_carry_keeps_all() {
    let pod = Pod::new();
    let now = SystemClock.now().wall.as_micros() / 1_000;
    let line = |id: usize| {
        let op = json!({"kind": "counter", "group": "site", "name": "home", "id": id.to_string(),
            "time": now, "op": {"op": "add", "by": 1}});
        format!("{op}\n")
    };
    // A pod takes about half as many with one window.
    let all = CLEARED_IDS_MAX + 1;
    for (window, ids) in [("short", 0..all / 2), ("long", all / 2..all)] {
        let headers = [("content-type", "application/x-ndjson"), ("idempotency-window", window)];
        let (count, lines) = (ids.len(), ids.map(line).collect::<String>());
        let answer = pod.send(request("POST", "/v1/batch", &headers, lines)).await;
        assert_eq!(answer.json()["acked"], count, "{}", answer.text);
    }
    for (method, path) in [("POST", format!("{KEY}/reset")), ("DELETE", KEY.to_owned())] {
        let refused = ask(&pod, method, &path, &[]).await;
        let says = "The key has more than 100000 ops with ids that can come again";
        assert!(refused.detail(429, "too-many-ids").starts_with(says), "{}", refused.text);
        assert_eq!(refused.problem(429, "too-many-ids").as_deref(), Some("refused"));
    }
    assert_eq!(pod.value(KEY).await, Some(all.to_string()));
}

#[tokio::test]
async fn a_pod_limits_resets_at_once() {
    let pod = Pod::new();
    add(&pod, KEY, "5").await;
    pod.set(Fault::Hanging);
    let asked = (0..=RESETS_AT_ONCE_MAX).map(|at| {
        let name = if at < RESETS_AT_ONCE_MAX { "other" } else { "home" };
        let (pod, path) = (&pod, format!("/v1/counter/site/{name}/reset"));
        async move { ask(pod, "POST", &path, &[]).await }.boxed_local()
    });
    let first = timeout(Duration::from_secs(30), select_all(asked)).await;
    let (refused, at, others) = first.expect("one is refused");
    assert_eq!(at, RESETS_AT_ONCE_MAX, "{}", refused.text);
    let says = "This pod makes 1000 resets at once; send the request again in a few seconds.";
    assert_eq!(refused.detail(429, "too-many-resets"), says);
    assert_eq!(refused.problem(429, "too-many-resets").as_deref(), Some("refused"));
    // Their clients go away before their resets begin.
    drop(others);
    pod.set(Fault::None);
    assert_eq!(done(&pod, "POST", &format!("{KEY}/reset"), &[]).await["cleared"]["value"], 5);
}

/// Rows of resets that have this number of names together, and each up to `of_row`.
fn log_rows(group: &str, names: usize, of_row: usize, until: Timestamp) -> Vec<LogRow> {
    let name = |text: &str| Name::new(text).expect("a name");
    let names: Vec<Name> = (0..names).map(|number| name(&format!("n{number}"))).collect();
    let generation = Generation::at(SystemClock.now().wall);
    let row = |names: &[Name]| LogRow {
        id: Uuid::new_v4(),
        kind: Kind::Counter,
        group: name(group),
        names: names.to_vec(),
        generation,
        until,
        is_deletion: false,
    };
    names.chunks(of_row).map(row).collect()
}

/// Rows and names of the key's part of the log count for as long as the log has them, and names of any part for as long
/// as pods need them.
#[tokio::test]
async fn no_key_is_reset_if_the_log_has_too_much() {
    let part = |group: &str| bucket(Kind::Counter, &Name::new(group).expect("a name"));
    let groups = ["a", "b", "c", "d", "e"];
    let far = groups.into_iter().find(|group| part(group) != part("site")).expect("another part");
    let now = SystemClock.now().wall;
    let (over, needed) = (now.minus(Duration::from_secs(1)), now.plus(Duration::from_secs(3_600)));
    for (group, names, of_row, end) in [
        ("site", LOG_ROWS_MAX - 1, 1, over),
        ("site", RESETS_REMEMBERED_MAX - 1, LOG_NAMES_MAX, over),
        (far, RESETS_REMEMBERED_MAX - 1, LOG_NAMES_MAX, needed),
    ] {
        let log = Logged::new();
        let pod = Pod::on(&log.ground, log.clone(), Policies::default(), Bounds::default());
        let last = "/v1/counter/site/last";
        for path in [KEY, last] {
            pod.resetter.look().await;
            add(&pod, path, "5").await;
        }
        for row in log_rows(group, names, of_row, end) {
            log.write_reset(&row, &Receipt::default()).await.expect("written");
        }
        pod.resetter.look().await;
        let fits =
            ask(&pod, "POST", &format!("{last}/reset"), &[("prefer", "respond-async")]).await;
        assert_eq!(fits.status, StatusCode::ACCEPTED, "{group} {of_row}: {}", fits.text);
        until(async || log.rows().len() > names.div_ceil(of_row)).await;
        pod.resetter.look().await;
        let rows = log.rows().len();
        let refused = ask(&pod, "POST", &format!("{KEY}/reset"), &[]).await;
        let says = refused.detail(429, "too-many-resets");
        assert!(says.starts_with("Pods remember 200000 keys that were reset, and 15000"), "{says}");
        assert_eq!(refused.problem(429, "too-many-resets").as_deref(), Some("refused"));
        assert_eq!((pod.value(KEY).await.as_deref(), log.rows().len()), (Some("5"), rows));
    }
}

#[tokio::test]
async fn no_key_is_reset_if_the_file_has_too_many_names() {
    let ground = Ground::new();
    let store = &ground.store;
    let pod = Pod::on(&ground, store.clone(), Policies::default(), Bounds::default());
    let reset = format!("{KEY}/reset");
    add(&pod, KEY, "5").await;
    // Pods need these no more. The file keeps them for their clients.
    let over = SystemClock.now().wall.minus(Duration::from_secs(1));
    let rows = log_rows("site", RESETS_REMEMBERED_MAX - 1, LOG_NAMES_MAX, over);
    let nothing = Receipt::default();
    for written in join_all(rows.iter().map(|row| store.write_reset(row, &nothing))).await {
        written.expect("written");
    }
    assert_eq!(done(&pod, "POST", &reset, &[]).await["cleared"]["value"], 5);
    add(&pod, KEY, "3").await;
    let refused = ask(&pod, "POST", &reset, &[]).await;
    let says = refused.detail(503, "reset-paused");
    assert!(says.starts_with("Keys can't be reset: the file keeps 200000 names of keys"), "{says}");
    assert_eq!(refused.problem(503, "reset-paused").as_deref(), Some("refused"));
    assert_eq!(pod.value(KEY).await.as_deref(), Some("3"));
}

/// Each update adds a number that says when it was sent, so values tell which updates they have.
#[tokio::test]
async fn a_group_is_deleted_while_two_pods_count_in_it() {
    let log = Logged::new();
    let pods = [Pod::with_log(&log).await, Pod::with_log(&log).await];
    let paths: Vec<String> = (0..10).map(|name| format!("/v1/counter/site/{name}")).collect();
    // Path, amount and id of each update, and the pod that gets it last.
    let sent = RefCell::new(Vec::new());
    let count = async |at: usize, path: &str, by: u32| {
        let id = new_id();
        add_once(&pods[at], path, by, &id).await;
        sent.borrow_mut().push((path.to_owned(), by, id, 1 - at));
    };
    let again = async || {
        let all = sent.borrow().clone();
        for (path, by, id, at) in &all {
            add_once(&pods[*at], path, *by, id).await;
        }
    };
    let values = async |pod: &Pod| {
        let values = join_all(paths.iter().map(|path| pod.value(path))).await;
        let number = |value: Option<String>| value.expect("a key").parse().expect("a number");
        values.into_iter().map(number).collect::<Vec<usize>>()
    };
    let (before, meanwhile, after) = (1, 1_000_000, 1_000);
    for path in &paths {
        for at in [0, 1] {
            count(at, path, before).await;
        }
    }
    let (is_over, rounds) = (Cell::new(false), Cell::new(0));
    let counting = async |at: usize| {
        while !is_over.get() {
            for path in &paths {
                count(at, path, meanwhile).await;
            }
            // Clients repeat earlier updates while the keys are deleted.
            let (path, by, id, _) = sent.borrow()[rounds.get() % 20].clone();
            add_once(&pods[at], &path, by, &id).await;
            rounds.set(rounds.get() + 1);
            sleep(Duration::from_millis(50)).await;
        }
    };
    let deletion = async {
        let deleted = done(&pods[0], "DELETE", "/v1/counter/site?all=true", &[]).await;
        is_over.set(true);
        deleted
    };
    let (deleted, (), ()) = futures::join!(deletion, counting(0), counting(1));
    assert_eq!((&deleted["deleted"], &deleted["failed"]), (&json!(10), &json!([])));
    for path in &paths {
        for at in [0, 1] {
            count(at, path, after).await;
        }
    }
    let counted = values(&pods[0]).await;
    for value in &counted {
        let (before, after, meanwhile) = (value % 1_000, value / 1_000 % 1_000, value / 1_000_000);
        assert_eq!((before, after), (0, 2), "{counted:?}");
        assert!(meanwhile <= rounds.get(), "{counted:?}, {} rounds", rounds.get());
    }
    again().await;
    for pod in &pods {
        assert_eq!(values(pod).await, counted);
    }
}

/// A pod with a runtime of its own. If it is dropped, its tasks end as in a crash.
struct Mortal {
    pod: Pod,
    runtime: Option<Runtime>,
}

impl Mortal {
    async fn with_log(log: &Arc<Logged>) -> Mortal {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let (runtime, log) = (runtime.expect("a runtime"), log.clone());
        let pod = runtime.spawn(async move { Pod::with_log(&log).await }).await.expect("a pod");
        Mortal { pod, runtime: Some(runtime) }
    }

    /// Sends a request. It goes on without anyone who waits for the answer.
    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> JoinHandle<Response> {
        let (router, request) = (self.pod.router(), request(method, path, headers, ""));
        let runtime = self.runtime.as_ref().expect("a runtime");
        runtime.spawn(async move { router.oneshot(request).await.expect("infallible") })
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// The markers of some keys are stored, and those of the others never.
#[tokio::test]
async fn a_group_deletion_that_a_crash_cut_short_is_run_again() {
    let log = Logged::new();
    let (one, other) = (Mortal::with_log(&log).await, Pod::with_log(&log).await);
    let paths: Vec<String> = (10..30).map(|name| format!("/v1/counter/site/{name}")).collect();
    let delete = "/v1/counter/site?all=true";
    let mut earlier = Vec::new();
    for path in &paths {
        for pod in [&one.pod, &other] {
            let id = new_id();
            add_once(pod, path, 1, &id).await;
            earlier.push((path, id));
        }
    }
    let again = async || {
        for (path, id) in &earlier {
            add_once(&other, path, 1, id).await;
        }
    };
    log.set_silent(true);
    let _answer = one.send("DELETE", delete, &[]);
    until(async || other.value(&paths[0]).await.is_none()).await;
    drop(one);
    log.set_silent(false);
    let mut deleted = 0;
    for path in &paths {
        let left = other.value(path).await;
        deleted += usize::from(left.is_none());
        assert!(matches!(left.as_deref(), None | Some("2")), "{path}: {left:?}");
        add_once(&other, path, 1_000, &new_id()).await;
        let expected = left.map_or(1_000, |_| 1_002).to_string();
        assert_eq!(other.value(path).await, Some(expected), "{path}");
    }
    assert!((1..paths.len()).contains(&deleted), "{deleted}");
    again().await;
    let values = join_all(paths.iter().map(|path| other.value(path))).await;
    let whole = values.iter().filter(|value| value.as_deref() == Some("1002")).count();
    assert_eq!(whole, paths.len() - deleted, "{values:?}");
    let all = done(&other, "DELETE", delete, &[]).await;
    assert_eq!((&all["deleted"], &all["failed"]), (&json!(paths.len()), &json!([])));
    for path in &paths {
        assert_eq!(other.value(path).await, None, "{path}");
        add_once(&other, path, 3, &new_id()).await;
    }
    again().await;
    for path in &paths {
        assert_eq!(other.value(path).await.as_deref(), Some("3"), "{path}");
    }
}

/// The marker is stored, but its pod does not learn that.
#[tokio::test]
async fn another_pod_says_what_a_pod_cleared_that_crashed() {
    let log = Logged::on(Ground::with_cutoff(Duration::from_secs(60)));
    let (one, other) = (Mortal::with_log(&log).await, Pod::with_log(&log).await);
    let (reset, id) = (format!("{KEY}/reset"), new_id());
    let named = [("idempotency-key", id.as_str()), ("prefer", "respond-async")];
    add(&one.pod, KEY, "5").await;
    add(&other, KEY, "7").await;
    log.set_silent(true);
    let running = one.send("POST", &reset, &named).await.expect("an answer");
    assert_eq!(running.status(), StatusCode::ACCEPTED);
    let place = running.headers()["location"].to_str().expect("ASCII").to_owned();
    until(async || other.value(KEY).await.as_deref() == Some("0")).await;
    drop(one);
    log.set_silent(false);
    // While the first pod can still send its marker, the other one leaves the reset to it.
    assert_eq!(done(&other, "GET", &place, &[]).await["outcome"], "accepted");
    other.advance(Duration::from_secs(10));
    let end = done(&other, "GET", &place, &[]).await;
    assert_eq!((&end["outcome"], &end["cleared"]), (&json!("acked"), &json!({"value": 12})));
    assert_eq!(done(&other, "POST", &reset, &named).await, end);
    assert_eq!(log.rows()[0].1.done, Some(true));
    add(&other, KEY, "1").await;
    assert_eq!(other.value(KEY).await.as_deref(), Some("1"));
}

/// The pod that made the reset keeps small values, until the log drops them.
#[tokio::test]
async fn what_was_cleared_is_told_again_as_long_as_the_log_has_it() {
    let log = Logged::new();
    let pod = Pod::with_log(&log).await;
    let mut places = Vec::new();
    for size in [10, 1_000] {
        let (path, item) = (format!("/v1/gset/site/{size}"), "x".repeat(size));
        let body = json!({"op": "add", "item": item}).to_string();
        let answer = pod.post(&path, "application/json", &body).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        let (reset, id) = (format!("{path}/reset"), new_id());
        let named = ("idempotency-key", id.as_str());
        let running = ask(&pod, "POST", &reset, &[named, ("prefer", "respond-async")]).await;
        assert_eq!(running.status, StatusCode::ACCEPTED, "{}", running.text);
        let end = done(&pod, "POST", &reset, &[named, ("prefer", "wait=60")]).await;
        assert_eq!(end["cleared"]["value"]["items"], json!([item]));
        places.push(running.header("location").to_owned());
        assert_eq!(done(&pod, "GET", &places[places.len() - 1], &[]).await, end);
    }
    log.clear();
    // The small value is still told, from memory.
    let small = done(&pod, "GET", &places[0], &[]).await;
    assert_eq!(small["cleared"]["value"]["items"], json!(["x".repeat(10)]));
    assert_eq!(done(&pod, "GET", &places[1], &[]).await["cleared"], Value::Null);
    pod.advance(Duration::from_secs(4 * 86_400));
    // Pods forget every ten seconds.
    until(async || {
        pod.resetter.look().await;
        ask(&pod, "GET", &places[0], &[]).await.status == StatusCode::NOT_FOUND
    })
    .await;
}

/// Its marker was not sent, and never will be.
#[tokio::test]
async fn a_reset_whose_pod_crashed_early_changes_nothing() {
    let log = Logged::new();
    let (one, other) = (Mortal::with_log(&log).await, Pod::with_log(&log).await);
    let (reset, id) = (format!("{KEY}/reset"), new_id());
    let named = ("idempotency-key", id.as_str());
    add(&other, KEY, "5").await;
    let running = one.send("POST", &reset, &[named, ("prefer", "respond-async")]);
    let running = running.await.expect("an answer");
    assert_eq!(running.status(), StatusCode::ACCEPTED);
    let place = running.headers()["location"].to_str().expect("ASCII").to_owned();
    until(async || !log.rows().is_empty()).await;
    drop(one);
    assert_eq!(done(&other, "GET", &place, &[]).await["outcome"], "accepted");
    other.advance(Duration::from_secs(20));
    let asked = ask(&other, "GET", &place, &[]).await;
    let says = "The key could not be reset: its pod ended, or its time was over; reset it again.";
    assert_eq!(asked.detail(503, "store-unavailable"), says);
    assert_eq!(other.value(KEY).await.as_deref(), Some("5"));
    let made = done(&other, "POST", &reset, &[named, ("prefer", "wait=60")]).await;
    assert_eq!(made["cleared"], json!({"value": 5}));
}

#[tokio::test]
async fn orders_with_one_id_at_once_are_one_reset() {
    let log = Logged::new();
    let pod = Pod::with_log(&log).await;
    let (reset, id) = (format!("{KEY}/reset"), new_id());
    add(&pod, KEY, "5").await;
    let named = [("idempotency-key", id.as_str()), ("prefer", "wait=60")];
    let answers = join_all((0..5).map(|_| done(&pod, "POST", &reset, &named))).await;
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!((&answers[0]["cleared"], log.rows().len()), (&json!({"value": 5}), 1));
}

/// Each looks for the other when its own reset is logged. Which of them goes on depends on who logged it first, and both
/// can give way.
#[tokio::test]
async fn orders_with_one_id_at_two_pods_reset_the_key_once() {
    let log = Logged::new();
    let (one, other) = (Pod::with_log(&log).await, Pod::with_log(&log).await);
    let (reset, id) = (format!("{KEY}/reset"), new_id());
    add(&one, KEY, "5").await;
    let named = [("idempotency-key", id.as_str()), ("prefer", "wait=60")];
    let both = [ask(&one, "POST", &reset, &named), ask(&other, "POST", &reset, &named)];
    let mut answers = join_all(both).await;
    for pod in [&one, &other, &one] {
        answers.push(ask(pod, "POST", &reset, &named).await);
    }
    let (made, refused): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|answer| answer.status == StatusCode::OK);
    for answer in &refused {
        assert_eq!(answer.problem(409, "reset-overtaken").as_deref(), Some("refused"));
    }
    let first = made.first().expect("one of them was made").json();
    assert_eq!(first["cleared"], json!({"value": 5}));
    assert!(made.iter().all(|answer| answer.json() == first), "{made:?}");
    let is_made = |receipt: &Receipt| receipt.cleared.is_some();
    assert_eq!(log.rows().iter().filter(|(_, receipt)| is_made(receipt)).count(), 1);
}

/// Its id can be used again, at any pod.
#[tokio::test]
async fn a_reset_that_gave_way_is_refused_by_every_pod() {
    let log = Logged::new();
    let (one, other) = (Pod::with_log(&log).await, Pod::with_log(&log).await);
    let (reset, id) = (format!("{KEY}/reset"), new_id());
    let (named, soon) = (("idempotency-key", id.as_str()), ("prefer", "respond-async"));
    let patient = [named, ("prefer", "wait=60")];
    add(&one, KEY, "5").await;
    let running = ask(&one, "POST", &reset, &[named, soon]).await;
    assert_eq!(running.status, StatusCode::ACCEPTED, "{}", running.text);
    let later = ask(&other, "POST", &reset, &[soon]).await;
    assert_eq!(later.status, StatusCode::ACCEPTED, "{}", later.text);
    sleep(Duration::from_millis(400)).await;
    add(&one, KEY, "3").await;
    let end = ask(&one, "POST", &reset, &patient).await;
    assert_eq!(end.problem(409, "reset-overtaken").as_deref(), Some("refused"));
    let asked = ask(&other, "GET", running.header("location"), &[]).await;
    asked.problem(503, "store-unavailable");
    let rows = log.rows();
    let (_, receipt) = rows.iter().min_by_key(|(row, _)| row.generation).expect("two resets");
    assert_eq!((&receipt.cleared, receipt.done), (&None, Some(false)));
    let again = done(&other, "POST", &reset, &patient).await;
    assert_eq!(again["cleared"]["value"], 3, "{again}");
}

/// One replica can have it alone, and a fold that does not know of it wins later.
#[tokio::test]
async fn a_marker_that_a_read_finds_is_no_proof_of_a_reset() {
    let log = Logged::new();
    let (one, other) = (Pod::with_log(&log).await, Pod::with_log(&log).await);
    let (reset, id) = (format!("{KEY}/reset"), new_id());
    let named = ("idempotency-key", id.as_str());
    add(&one, KEY, "5").await;
    log.set_silent(true);
    let running = ask(&one, "POST", &reset, &[named, ("prefer", "respond-async")]).await;
    let place = running.header("location").to_owned();
    sleep(Duration::from_secs(4)).await;
    assert_eq!(other.value(KEY).await.as_deref(), Some("0"), "the marker is there");
    assert_eq!(done(&other, "GET", &place, &[]).await["outcome"], "accepted");
    let end = ask(&one, "POST", &reset, &[named, ("prefer", "wait=60")]).await;
    assert_eq!(end.problem(504, "reset-unknown").as_deref(), Some("unknown"));
    // By now a fold can have a fence above the marker, so no acknowledgement proves anything.
    log.set_silent(false);
    other.advance(Duration::from_secs(20));
    for _ in 0..2 {
        ask(&other, "GET", &place, &[]).await.problem(504, "reset-unknown");
    }
    assert!(log.rows().iter().all(|(_, receipt)| receipt.done != Some(true)));
}

/// Looks of other pods do not reach far back.
#[tokio::test]
async fn a_lost_reset_is_logged_at_the_time_of_its_new_row() {
    let log = Logged::new();
    let (one, other) = (Pod::with_log(&log).await, Pod::with_log(&log).await);
    add(&one, KEY, "5").await;
    done(&one, "POST", &format!("{KEY}/reset"), &[("prefer", "wait=60")]).await;
    log.clear();
    let reader = Pod::with_log(&log).await;
    // A reset of the last moments looks like one that is not logged yet.
    reader.advance(Duration::from_secs(60));
    reader.resetter.look().await;
    log.set_down(true);
    assert_eq!(reader.value(KEY).await.as_deref(), Some("0"));
    let later = Duration::from_secs(180);
    reader.advance(later);
    let found_by = SystemClock.now().wall.plus(later);
    log.set_down(false);
    until(async || !log.rows().is_empty()).await;
    let rows = log.rows();
    assert!(rows[0].0.generation.time() >= found_by, "{rows:?}");
    other.resetter.look().await;
    add(&other, KEY, "3").await;
    assert_eq!(other.value(KEY).await.as_deref(), Some("3"));
}
