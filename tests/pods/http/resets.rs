//! Keys that begin again, and keys that are deleted. If the store is of this process alone, nothing waits.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use futures::future::join_all;
use orderfree::runtime::clock::{Clock, SystemClock};
use orderfree::runtime::random::update_id;
use orderfree::store::Receipt;
use orderfree_core::crdt::Kind;
use serde_json::{Value, json};

use crate::log::Logged;
use crate::pod::{Answer, Fault, Pod, request};

const KEY: &str = "/v1/counter/site/home";

/// A UUID of version 7, with the time of the request.
fn new_id() -> String {
    update_id(SystemClock.now().wall).to_string()
}

async fn add(pod: &Pod, path: &str, by: &str) {
    let answer = pod.post(path, "text/plain", by).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
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
async fn an_update_that_was_cleared_counts_nothing_if_it_is_sent_again() {
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
    assert_eq!(done(&pod, "DELETE", "/v1/counter/site?all=true", &[]).await["deleted"], 2);
    assert_eq!(pod.get("/v1/counter/site").await.json()["keys"], json!([]));
}

/// The lease is 2 s here, so a reset takes a little more than that.
#[tokio::test]
async fn a_reset_that_takes_long_is_answered_with_a_place_to_ask_any_pod() {
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
    tokio::time::sleep(Duration::from_millis(2_100)).await;
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
    tokio::time::sleep(Duration::from_millis(300)).await;
    add(&pod, KEY, "1").await;
    assert_eq!(pod.get("/readyz?verbose").await.json()["checks"]["resets"], "ok");
    assert_eq!(new.get("/readyz").await.status, StatusCode::OK);
    assert!(age(&pod.get("/metrics").await.text) < 2.0);
}

/// A request for an absent key reads the store too.
#[tokio::test]
async fn a_pod_makes_only_so_many_resets_a_second() {
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
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(ask(&pod, "POST", path, &[]).await.status, StatusCode::NOT_FOUND);
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
async fn a_key_with_too_many_rows_is_not_resettable_and_stops_no_other() {
    let pod = Pod::new();
    for name in ["a", "home", "z"] {
        add(&pod, &format!("/v1/counter/site/{name}"), "1").await;
    }
    pod.set(Fault::LongKey);
    let refused = ask(&pod, "POST", &format!("{KEY}/reset"), &[]).await;
    let detail = refused.detail(409, "not-resettable");
    assert!(detail.starts_with("The key has more than 128 rows"), "{detail}");
    let deleted = done(&pod, "DELETE", "/v1/counter/site?all=true", &[]).await;
    assert_eq!((&deleted["deleted"], &deleted["failed"][0]["name"]), (&json!(2), &json!("home")));
    let problem = deleted["failed"][0]["problem"]["type"].as_str().expect("a problem");
    assert!(problem.ends_with("not-resettable"), "{problem}");
    pod.set(Fault::None);
    assert_eq!(done(&pod, "DELETE", "/v1/counter/site?all=true", &[]).await["deleted"], 1);
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
    tokio::time::sleep(Duration::from_millis(400)).await;
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
    tokio::time::sleep(Duration::from_secs(4)).await;
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
