//! Updates that count once under their ids.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use serde_json::{Value, json};

use orderfree::engine::write::Bounds;
use orderfree::policy::Policies;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::op_id::Window;
use orderfree_core::protocol::{Name, Timestamp};

use crate::pod::{Answer, Fault, Pod, request};

const KEY: &str = "/v1/counter/g/n";

/// The pod's clock when it starts, in ms since 1970.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(since.as_millis()).expect("small")
}

async fn send(pod: &Pod, headers: &[(&str, &str)], body: &str) -> Answer {
    let headers: Vec<_> = [("content-type", "text/plain")].iter().chain(headers).copied().collect();
    pod.send(request("POST", KEY, &headers, body.to_owned())).await
}

/// Sends an amount under an id with this time.
async fn add(pod: &Pod, id: &str, time_ms: u64, body: &str) -> Answer {
    let time = time_ms.to_string();
    send(pod, &[("idempotency-key", id), ("idempotency-time", &time)], body).await
}

async fn total(pod: &Pod) -> Option<String> {
    pod.value(KEY).await
}

fn kind_of(answer: &Answer) -> (StatusCode, String) {
    let body = answer.json();
    let kind = body["type"].as_str().unwrap_or_default().trim_start_matches("/problems/");
    (answer.status, kind.to_owned())
}

#[tokio::test]
async fn an_update_with_an_id_counts_once() {
    let (pod, now) = (Pod::new(), now_ms());
    for _ in 0..3 {
        let answer = add(&pod, "\"order 1\"", now, "5").await;
        assert_eq!((answer.status, &answer.json()["outcome"]), (StatusCode::OK, &json!("acked")));
    }
    assert_eq!(add(&pod, "order 1", now, "5").await.status, StatusCode::OK, "without quotes");
    add(&pod, "order 2", now, "7").await;
    send(&pod, &[], "100").await;
    assert_eq!(total(&pod).await.as_deref(), Some("112"));
    let uuid = pod.send(request("POST", "/v1/ids", &[], "")).await.json()["ids"][0].clone();
    let uuid = uuid.as_str().expect("an id").to_owned();
    for window in ["minute", "short", "minute"] {
        let headers = [("idempotency-key", &*uuid), ("idempotency-window", window)];
        assert_eq!(send(&pod, &headers, "1000").await.status, StatusCode::OK);
    }
    assert_eq!(total(&pod).await.as_deref(), Some("2112"), "in another window it is another op");
    let event = [("ce-source", "/a"), ("ce-id", "1"), ("ce-time", "2999-01-01T00:00:00Z")];
    assert_eq!(kind_of(&send(&pod, &event, "1").await).1, "id-ahead");
    let time = chrono::DateTime::from_timestamp_millis(now.cast_signed()).expect("a time");
    let time = time.to_rfc3339();
    let event = [("ce-source", "/a"), ("ce-id", "1"), ("ce-time", &*time)];
    for _ in 0..2 {
        assert_eq!(send(&pod, &event, "10000").await.status, StatusCode::OK);
    }
    assert_eq!(total(&pod).await.as_deref(), Some("12112"));
}

/// What is folded counts as what is not.
#[tokio::test]
async fn an_update_with_an_id_counts_once_after_a_fold() {
    let (pod, now) = (Pod::new(), now_ms());
    let headers = |id: &'static str| {
        let time = now.to_string();
        [
            ("idempotency-key", id.to_owned()),
            ("idempotency-time", time),
            ("idempotency-window", "minute".to_owned()),
        ]
    };
    let minute = async |id| {
        let headers = headers(id);
        let headers = headers.each_ref().map(|(name, value)| (*name, &**value));
        send(&pod, &headers, "5").await
    };
    assert_eq!(minute("a").await.status, StatusCode::OK);
    pod.advance(Duration::from_secs(40));
    assert_eq!(minute("a").await.status, StatusCode::OK);
    assert_eq!(minute("b").await.status, StatusCode::OK);
    // The window of a minute ends after two minutes at most, and then 30 s pass until the fold.
    pod.advance(Duration::from_secs(200));
    let fold = pod.post(&format!("{KEY}/fold"), "application/json", "").await;
    assert_eq!((fold.status, &fold.json()["folded"]), (StatusCode::OK, &json!(1)), "{}", fold.text);
    assert_eq!(total(&pod).await.as_deref(), Some("10"));
    let late = minute("a").await;
    assert_eq!(kind_of(&late), (StatusCode::UNPROCESSABLE_ENTITY, "id-expired".into()));
    assert_eq!(late.json()["outcome"], "unknown");
    assert_eq!(late.json()["retry_until"], Value::Null);
    assert_eq!(total(&pod).await.as_deref(), Some("10"));
}

#[tokio::test]
async fn an_unknown_outcome_is_resolved_by_a_retry() {
    let (pod, now) = (Pod::new(), now_ms());
    pod.set(Fault::Silent);
    let unknown = add(&pod, "a", now, "5").await;
    let body = unknown.json();
    assert_eq!(
        (unknown.status, &body["outcome"]),
        (StatusCode::GATEWAY_TIMEOUT, &json!("unknown"))
    );
    let until = body["retry_until"].as_str().expect("a time");
    let until = chrono::DateTime::parse_from_rfc3339(until).expect("RFC 3339").timestamp_millis();
    let left = until.cast_unsigned() - now;
    assert!((800_000..1_800_000).contains(&left), "{left} ms of 15 to 30 minutes");
    assert!(body["detail"].as_str().expect("a detail").ends_with("it counts once."), "{body}");
    pod.set(Fault::None);
    assert_eq!(add(&pod, "a", now, "5").await.status, StatusCode::OK);
    assert_eq!(total(&pod).await.as_deref(), Some("5"));
}

#[tokio::test]
async fn the_greatest_running_total_of_an_id_counts() {
    let (pod, now) = (Pod::new(), now_ms());
    let total_of = async |sequence: u64, by: i64| {
        let item = json!({"kind": "counter", "group": "g", "name": "n", "id": "sender 1", "time": now,
            "sequence": sequence, "op": {"op": "add", "by": by}});
        let body = json!({"updates": [item]}).to_string();
        pod.post("/v1/batch", "application/json", &body).await.json()["results"][0].clone()
    };
    for (sequence, by, expected) in [(1, 10, "10"), (3, 30, "30"), (3, 30, "30")] {
        let result = total_of(sequence, by).await;
        assert_eq!(result["outcome"], "acked", "{result}");
        assert_eq!(total(&pod).await.as_deref(), Some(expected));
    }
    // JSON has one type of number.
    let item = format!(
        r#"{{"updates":[{{"kind":"counter","group":"g","name":"n","id":"sender 1","time":{now}.0,"sequence":3.0,
            "op":{{"op":"add","by":30.0}}}}]}}"#
    );
    let answer = pod.post("/v1/batch", "application/json", &item).await.json();
    assert_eq!(answer["results"][0]["outcome"], "acked", "{answer}");
    assert_eq!(total(&pod).await.as_deref(), Some("30"));
    for (sequence, by, kind) in [
        (3, 31, "id-reused"),
        (2, 20, "sequence-behind"),
        (1, 10, "sequence-behind"),
        (0, 1, "bad-id"),
    ] {
        let other = total_of(sequence, by).await;
        assert_eq!(other["problem"]["type"], format!("/problems/{kind}"), "{other}");
        assert_eq!(total(&pod).await.as_deref(), Some("30"));
    }
}

/// Elsewhere a later total does not replace an earlier one.
#[tokio::test]
async fn only_kinds_with_amounts_have_running_totals() {
    let (pod, now) = (Pod::new(), now_ms());
    let mut taken = Vec::new();
    for kind in Kind::ALL {
        let op: Value = serde_json::from_str(kind.about().example_op).expect("JSON");
        let item = json!({"kind": kind.name(), "group": "g", "name": "n", "id": "sender 1", "time": now,
            "sequence": 1, "op": op});
        let body = json!({"updates": [item]}).to_string();
        let result =
            pod.post("/v1/batch", "application/json", &body).await.json()["results"][0].clone();
        if result["outcome"] == "acked" {
            taken.push(kind.name());
            continue;
        }
        assert_eq!(result["problem"]["type"], "/problems/bad-id", "{result}");
        let detail = result["problem"]["detail"].as_str().expect("a detail");
        assert!(detail.contains("leave out `sequence`"), "{detail}");
    }
    assert_eq!(taken, ["counter", "sum", "stats", "histogram", "topk"]);
}

/// The times of ops follow from the id of the request.
#[tokio::test]
async fn the_items_of_a_batch_with_one_id_keep_their_order() {
    let (pod, now) = (Pod::new(), now_ms().to_string());
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", "a"),
        ("idempotency-time", &*now),
    ];
    let set = |value: &str| json!({"op": "set", "value": value});
    let item = |ops: Vec<Value>| json!({"kind": "register", "group": "g", "name": "n", "ops": ops});
    // A malformed item counts as it does on every other pod.
    let bad = json!({"kind": "register", "group": "g", "ops": [set("x"), set("y")]});
    let items = [item(vec![set("c"), set("b"), set("a")]), bad, item(vec![set("last")])];
    let body = json!({"updates": items}).to_string();
    for _ in 0..2 {
        let answer = pod.send(request("POST", "/v1/batch", &headers, body.clone())).await.json();
        let results = answer["results"].as_array().expect("a list").clone();
        let outcomes: Vec<_> = results.iter().map(|result| result["outcome"].clone()).collect();
        assert_eq!(outcomes, ["acked", "refused", "acked"], "{results:?}");
        let times = [0, 2].map(|at| results[at]["timestamp"].as_i64().expect("a time"));
        assert_eq!(times[1] - times[0], 3, "{times:?}");
        assert_eq!(pod.value("/v1/register/g/n").await.as_deref(), Some("last"));
    }
}

#[tokio::test]
async fn a_pack_is_live_while_it_takes_ids() {
    let (pod, now) = (Pod::new(), now_ms());
    assert_eq!(add(&pod, "a", now, "5").await.status, StatusCode::OK);
    let phase =
        async || pod.get(&format!("{KEY}/shards")).await.json()["shards"][0]["phase"].clone();
    assert_eq!(phase().await, "live");
    let until = pod.get(&format!("{KEY}/shards")).await.json()["shards"][0]["expires_at"].clone();
    let until = chrono::DateTime::parse_from_rfc3339(until.as_str().expect("a time"));
    let left = until.expect("RFC 3339").timestamp_millis().cast_unsigned() - now;
    pod.advance(Duration::from_millis(left - 1_000));
    assert_eq!(phase().await, "draining");
}

#[tokio::test]
async fn items_and_lines_have_ids_of_their_own() {
    let (pod, now) = (Pod::new(), now_ms());
    let item = |id: &str, by: i64| {
        json!({"kind": "counter", "group": "g", "name": "n", "id": id, "time": now,
            "op": {"op": "add", "by": by}})
    };
    let lines: String =
        [item("a", 1), item("b", 2), item("a", 1)].iter().map(|line| format!("{line}\n")).collect();
    for _ in 0..2 {
        let answer = pod.post("/v1/batch", "application/x-ndjson", &lines).await;
        assert_eq!(answer.json()["acked"], 3, "{}", answer.text);
    }
    assert_eq!(total(&pod).await.as_deref(), Some("3"));
    // A window in the headers is that of the items.
    let in_window = [("content-type", "application/x-ndjson"), ("idempotency-window", "short")];
    let answer = pod.send(request("POST", "/v1/batch", &in_window, lines.clone())).await;
    assert_eq!(answer.json()["acked"], 3, "{}", answer.text);
    assert_eq!(total(&pod).await.as_deref(), Some("3"));
    // The same id as of the line, but in a batch: one op.
    let batch = json!({"updates": [item("a", 1), item("c", 4)]}).to_string();
    pod.post("/v1/batch", "application/json", &batch).await;
    assert_eq!(total(&pod).await.as_deref(), Some("7"));
    // One id for a whole batch: each place is another op.
    let plain =
        json!({"kind": "counter", "group": "g", "name": "n", "op": {"op": "add", "by": 100}});
    let batch = json!({"updates": [plain, plain]}).to_string();
    let time = now.to_string();
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", "batch 1"),
        ("idempotency-time", &time),
    ];
    for _ in 0..2 {
        let answer = pod.send(request("POST", "/v1/batch", &headers, batch.clone())).await;
        assert_eq!(answer.status, StatusCode::OK);
    }
    assert_eq!(total(&pod).await.as_deref(), Some("207"));
    let headers = headers.map(|(name, value)| match name {
        "content-type" => (name, "application/x-ndjson"),
        _ => (name, value),
    });
    let refused = pod.send(request("POST", "/v1/batch", &headers, lines)).await;
    assert_eq!(kind_of(&refused), (StatusCode::UNPROCESSABLE_ENTITY, "bad-id".into()));
    assert_eq!(total(&pod).await.as_deref(), Some("207"));
}

/// Every kind takes ids. For those whose ops can be repeated anyway, they change nothing.
#[tokio::test]
async fn every_kind_takes_ids() {
    let (pod, now) = (Pod::new(), now_ms().to_string());
    let kinds = pod.get("/v1/kinds").await.json();
    for kind in kinds["kinds"].as_array().expect("a list") {
        let name = kind["kind"].as_str().expect("a name");
        let (path, op) = (format!("/v1/{name}/g/n"), kind["example_op"].to_string());
        let headers = [
            ("content-type", "application/json"),
            ("idempotency-key", "a"),
            ("idempotency-time", &now),
        ];
        let mut values = Vec::new();
        for _ in 0..2 {
            let answer = pod.send(request("POST", &path, &headers, op.clone())).await;
            assert_eq!(answer.status, StatusCode::OK, "{name}: {}", answer.text);
            values.push(pod.get(&path).await.json()["value"].clone());
        }
        assert_eq!(values[0], values[1], "{name}");
    }
}

#[tokio::test]
async fn bad_ids_are_refused_with_a_sentence() {
    let (pod, now) = (Pod::new(), now_ms().to_string());
    let long = "x".repeat(256);
    let (unicode, version_4) = ("2026-11-27 early", "919108f7-52d1-4320-9bac-f847db4148a8");
    let at = ("idempotency-time", &*now);
    for (headers, kind, says) in [
        (vec![("idempotency-key", "a")], "id-without-time", "send its time in Idempotency-Time"),
        (vec![("idempotency-key", version_4)], "id-without-time", "version 7"),
        (vec![("idempotency-key", ""), at], "bad-id", "is empty"),
        (vec![("idempotency-key", "\"\""), at], "bad-id", "is empty"),
        (vec![("idempotency-key", &*long), at], "bad-id", "256 bytes"),
        (vec![("idempotency-key", "\"a"), at], "bad-id", "no closing quote"),
        (vec![("idempotency-key", "\"a\"b\""), at], "bad-id", "write \\\" or"),
        (vec![("idempotency-key", "a"), ("idempotency-key", "b"), at], "bad-id", "twice"),
        (vec![("idempotency-key", "a"), ("idempotency-time", unicode)], "bad-id", "digits"),
        (vec![("idempotency-key", "a"), ("idempotency-time", "12345")], "bad-id", "digits"),
        (vec![("idempotency-key", "a"), at, ("idempotency-window", "hour")], "bad-id", "minute"),
        (vec![at], "bad-id", "no Idempotency-Key"),
        (vec![("idempotency-window", "long")], "bad-id", "no Idempotency-Key"),
        (vec![("ce-id", "b"), ("ce-source", "")], "bad-id", "ce-source is empty"),
        (vec![("ce-id", "b"), ("ce-source", &*long)], "bad-id", "ce-source has 256 bytes"),
        (vec![("ce-id", ""), ("ce-source", "/a")], "bad-id", "ce-id is empty"),
        (vec![("idempotency-key", "a"), at, ("ce-id", "b")], "bad-id", "one of them"),
        (vec![("idempotency-key", "a"), at, ("ce-time", "1795752000")], "bad-id", "one of them"),
        (vec![("ce-id", "b")], "bad-id", "ce-source"),
        (vec![("ce-source", "/a")], "bad-id", "ce-id"),
        (vec![("ce-time", "1795752000")], "bad-id", "ce-id"),
        (vec![("ce-id", "b"), ("ce-source", "/a")], "id-without-time", "ce-time"),
        (
            vec![("idempotency-key", "a"), ("idempotency-time", "9999999999")],
            "id-ahead",
            "Otherwise",
        ),
        (
            vec![("idempotency-key", "a"), ("idempotency-time", "1000000000")],
            "id-expired",
            "until 2001-09-09T0",
        ),
    ] {
        let answer = send(&pod, &headers, "1").await;
        let body = answer.json();
        assert_eq!(kind_of(&answer).1, kind, "{headers:?}: {}", answer.text);
        let detail = body["detail"].as_str().expect("a detail");
        assert!(detail.contains(says), "{headers:?}: {detail}");
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    }
    let item = |more: Value| {
        let mut item = json!({"kind": "counter", "group": "g", "name": "n", "op": {"op": "add"}});
        item.as_object_mut()
            .expect("an object")
            .extend(more.as_object().expect("an object").clone());
        json!({"updates": [item]}).to_string()
    };
    for (more, kind) in [
        (json!({"id": "a"}), "id-without-time"),
        (json!({"id": ""}), "bad-id"),
        (json!({"time": 1_795_752_000}), "bad-id"),
        (json!({"sequence": 1}), "bad-id"),
        (json!({"id": "a", "time": true}), "bad-body"),
        (json!({"id": 5, "time": 1_795_752_000}), "bad-body"),
    ] {
        let answer = pod.post("/v1/batch", "application/json", &item(more.clone())).await;
        let problem = &answer.json()["results"][0]["problem"];
        assert_eq!(problem["type"], format!("/problems/{kind}"), "{more}: {problem}");
    }
    assert_eq!(total(&pod).await, None);
    for header in ["idempotency-key", "idempotency-window", "ce-id", "ce-source", "ce-time"] {
        let headers = [("content-type", "application/json"), (header, "a")];
        for (method, path) in [
            ("GET", KEY),
            ("GET", "/v1/counter/g"),
            ("GET", "/v1/counter/g/n/shards"),
            ("POST", "/v1/query"),
            ("POST", "/v1/merge"),
            ("POST", "/v1/ids"),
        ] {
            let answer = pod.send(request(method, path, &headers, "{}")).await;
            assert_eq!(kind_of(&answer).1, "unsupported-header", "{path} with {header}");
        }
    }
}

#[tokio::test]
async fn ids_are_made_by_the_pods_clock() {
    let pod = Pod::new();
    let before = now_ms();
    let made = pod.send(request("POST", "/v1/ids?count=1000", &[], "")).await.json();
    let ids = made["ids"].as_array().expect("a list");
    let distinct: std::collections::BTreeSet<&str> =
        ids.iter().map(|id| id.as_str().expect("text")).collect();
    assert_eq!(distinct.len(), 1_000);
    for id in distinct {
        let millis = u64::from_str_radix(&id.replace('-', "")[..12], 16).expect("hexadecimal");
        assert!((before..=now_ms()).contains(&millis) && &id[14..15] == "7", "{id}");
    }
    for count in ["0", "1001", "x", "-1"] {
        let refused = pod.send(request("POST", &format!("/v1/ids?count={count}"), &[], "")).await;
        assert_eq!(kind_of(&refused).1, "bad-query", "{count}");
    }
    pod.set(Fault::Unmeasured);
    let refused = pod.send(request("POST", "/v1/ids", &[], "")).await;
    assert_eq!(kind_of(&refused).1, "clock");
}

/// The value of a metric.
async fn metric(pod: &Pod, name: &str) -> String {
    let text = pod.get("/metrics").await.text;
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("orderfree_{name} ")));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
}

#[tokio::test]
async fn metrics_and_shards_tell_of_ids_and_their_conflicts() {
    // It forgets an id as soon as it writes another key.
    let pod = Pod::of(Policies::default(), Bounds { resting_bytes: 0, ..Bounds::awake(1) });
    let now = now_ms();
    let shards = async || pod.get(&format!("{KEY}/shards")).await.json();
    for (id, body) in [("a", "1"), ("a", "1"), ("b", "2")] {
        assert_eq!(add(&pod, id, now, body).await.status, StatusCode::OK);
    }
    assert_eq!(kind_of(&add(&pod, "b", now, "3").await).1, "id-reused");
    pod.post("/v1/counter/g/other", "text/plain", "1").await;
    for (id, body) in [("a", "5"), ("c", "1")] {
        assert_eq!(add(&pod, id, now, body).await.status, StatusCode::OK);
    }
    let shown = shards().await;
    assert_eq!((&shown["ids"], &shown["id_conflicts"]), (&json!(3), &json!(1)), "{shown}");
    assert_eq!(shown["shards"].as_array().expect("a list").len(), 2);
    assert!(shown["shards"].as_array().expect("a list").iter().all(|row| row["ids"] == 2));
    for _ in 0..2 {
        assert_eq!(total(&pod).await.as_deref(), Some("8"), "the greater bytes of a, 2 and 1");
    }
    for (name, expected) in [
        ("id_updates_total", "5"),
        ("id_repeats_total", "1"),
        ("id_conflicts_total{by=\"update\"}", "1"),
        ("id_conflicts_total{by=\"read\"}", "2"),
        ("id_conflicts_total{by=\"fold\"}", "0"),
        ("ids_alive", "4"),
    ] {
        assert_eq!(metric(&pod, name).await, expected, "{name}");
    }
    // Two windows of 15 minutes, and 30 s until the fold.
    pod.advance(Duration::from_secs(30 * 60 + 40));
    assert_eq!(metric(&pod, "ids_alive").await, "0");
    let fold = pod.post(&format!("{KEY}/fold"), "application/json", "").await;
    assert_eq!(fold.json()["folded"], 2, "{}", fold.text);
    assert_eq!(metric(&pod, "id_conflicts_total{by=\"fold\"}").await, "1");
    let shown = shards().await;
    assert_eq!((&shown["ids"], &shown["id_conflicts"]), (&json!(0), &json!(0)), "{shown}");
}

#[tokio::test]
async fn a_range_of_lines_says_until_when_all_of_it_can_be_sent_again() {
    let (pod, mut now) = (Pod::new(), now_ms());
    // Not at the end of a window: ids of the one before would just have expired.
    let (time, minute) = (Timestamp::from_micros(now.cast_signed() * 1_000), 60_000);
    let ends = Window::Short.expires_at(time, &Name::new("g").expect("a name"));
    if ends.since(time) < Window::Short.length() + Duration::from_millis(minute) {
        pod.advance(Duration::from_millis(minute));
        now += minute;
    }
    let line = |id: Option<&str>, time: u64| {
        let mut line = json!({"kind": "counter", "group": "g", "name": "n", "op": {"op": "add"}});
        if let Some(id) = id {
            line["id"] = json!(id);
            line["time"] = json!(time);
        }
        format!("{line}\n")
    };
    // Another window ends earlier by its length, 15 minutes.
    let before = now - 15 * 60 * 1_000;
    let lines = [
        line(Some("a"), now),
        line(Some("b"), before),
        line(Some("c"), now),
        line(None, 0),
        line(Some("d"), now - 10_000_000),
    ];
    pod.set(Fault::Silent);
    let answer = pod.post("/v1/batch", "application/x-ndjson", &lines.concat()).await.json();
    let errors = answer["errors"].as_array().expect("a list");
    let ranges: Vec<_> = errors.iter().map(|range| (&range["first"], &range["last"])).collect();
    assert_eq!(ranges, [(&json!(1), &json!(3)), (&json!(4), &json!(4)), (&json!(5), &json!(5))]);
    let until = |range: usize| {
        let text = errors[range]["retry_until"].as_str()?;
        let time = chrono::DateTime::parse_from_rfc3339(text).expect("RFC 3339");
        Some(time.timestamp_millis().cast_unsigned())
    };
    let earliest = until(0).expect("lines with ids");
    assert!((now - 20_000..now + 900_000).contains(&earliest), "that of line 2: {answer}");
    assert_eq!((until(1), until(2)), (None, None), "without an id, and too late: {answer}");
}
