//! Bad input: each row is answered by a problem with a sentence, and applies nothing.

use std::time::Duration;

use axum::body::Body;
use futures::FutureExt;
use orderfree::limits;
use serde_json::{Value, json};

use crate::pod::{Answer, Fault, Pod, request};

const KEY: &str = "/v1/counter/site/home";
const RESET: &str = "/v1/counter/site/home/reset";
const JSON: &str = "application/json";
const NDJSON: &str = "application/x-ndjson";
const TEXT: &str = "text/plain";
const FORM: &str = "application/x-www-form-urlencoded";

/// A field given twice where a value can have any fields.
const TWICE_DEEP: &str = r#"{"op":"set","value":[{"a":{"b":1,"c":2,"b":3}}]}"#;

/// Method, path, content type and body, then the problem's status and slug.
type Row = (&'static str, &'static str, &'static str, &'static str, u16, &'static str);

const ROWS: &[Row] = &[
    // Unknown kind.
    ("POST", "/v1/gauge/site/home", "", "", 404, "unknown-kind"),
    ("POST", "/v1/Counter/site/home", "", "", 404, "unknown-kind"),
    // Bad name.
    ("POST", "/v1/counter/site/a%00b", "", "", 400, "bad-name"),
    ("POST", "/v1/counter/si%0Ate/home", "", "", 400, "bad-name"),
    ("POST", "/v1/counter/site/%FF", "", "", 400, "bad-address"),
    ("POST", "/v1/counter/site/%zz", "", "", 400, "bad-address"),
    ("POST", "/v1/counter/site/100%", "", "", 400, "bad-address"),
    ("POST", "/v1/counter/site/", "", "", 404, "unknown-route"),
    ("POST", "/v1/counter/site/home/", "", "", 404, "unknown-route"),
    ("POST", "/v1/counter/site/home/x", "", "", 404, "unknown-route"),
    // Wrong type of op.
    ("POST", KEY, JSON, r#"{"op":"set","by":1}"#, 400, "bad-op"),
    ("POST", KEY, JSON, r#"{"op":"add","by":"many"}"#, 400, "bad-op"),
    ("POST", KEY, JSON, r#"{"op":"add","by":1.5}"#, 400, "bad-op"),
    ("POST", KEY, JSON, r#"{"op":"add","by":null}"#, 400, "bad-op"),
    ("POST", KEY, JSON, r#"{"by":1}"#, 400, "bad-op"),
    ("POST", KEY, JSON, "5", 400, "bad-op"),
    ("POST", KEY, JSON, "[]", 400, "bad-op"),
    ("POST", KEY, TEXT, "five", 400, "bad-op"),
    ("POST", KEY, TEXT, "1.0", 400, "bad-op"),
    ("POST", KEY, TEXT, "5 6", 400, "bad-op"),
    ("POST", KEY, TEXT, " ", 400, "bad-op"),
    // Overflow.
    ("POST", KEY, JSON, r#"{"op":"add","by":9223372036854775808}"#, 400, "bad-op"),
    ("POST", KEY, JSON, r#"{"op":"add","by":1e400}"#, 400, "bad-body"),
    ("POST", KEY, TEXT, "-9223372036854775809", 400, "bad-op"),
    // Unknown field. One bad op of a list.
    ("POST", KEY, JSON, r#"{"op":"add","by":1,"unit":"x"}"#, 400, "bad-op"),
    ("POST", KEY, JSON, r#"{"ops":[{"op":"add"}],"by":1}"#, 400, "bad-body"),
    ("POST", KEY, JSON, r#"{"ops":[{"op":"add"},{"op":"sub"}]}"#, 400, "bad-op"),
    ("POST", KEY, JSON, r#"{"ops":[]}"#, 400, "bad-body"),
    ("POST", KEY, JSON, r#"{"op":"add","by":1,"by":2}"#, 400, "bad-op"),
    ("POST", KEY, JSON, r#"{"ops":[{"op":"add"}],"ops":[{"op":"add"}]}"#, 400, "bad-body"),
    ("POST", KEY, JSON, r#"{"ops":[{"op":"add"},{"op":"add","op":"add"}]}"#, 400, "bad-op"),
    ("POST", "/v1/register/site/home", JSON, TWICE_DEEP, 400, "bad-op"),
    ("POST", "/v1/register/site/home", TEXT, r#"[{"a":1,"a":2}]"#, 400, "bad-op"),
    ("POST", KEY, JSON, r#"{"op":0,"by":1}"#, 400, "bad-op"),
    // A key that has a meaning for a JSON library, in any place.
    ("POST", KEY, JSON, r#"{"op":{"$serde_json::private::RawValue":1}}"#, 400, "bad-op"),
    (
        "POST",
        "/v1/register/site/home",
        JSON,
        r#"{"op":"set","value":{"$serde_json::private::RawValue":"5"}}"#,
        400,
        "bad-op",
    ),
    (
        "POST",
        "/v1/register/site/home",
        TEXT,
        r#"{"$serde_json::private::RawValue":"5"}"#,
        400,
        "bad-op",
    ),
    // Malformed JSON.
    ("POST", KEY, JSON, r#"{"op":"add","by":"\ud800"}"#, 400, "bad-body"),
    ("POST", KEY, JSON, "{", 400, "bad-body"),
    ("POST", KEY, JSON, r#"{"op":"add"} x"#, 400, "bad-body"),
    // Wrong content type.
    ("POST", KEY, FORM, r#"{"op":"add","by":5}"#, 415, "content-type"),
    ("POST", KEY, "application/xml", "<add/>", 415, "content-type"),
    ("POST", KEY, "application/x-ndjson", "{}", 415, "content-type"),
    ("POST", KEY, "", "5", 415, "content-type"),
    ("POST", "/v1/batch", TEXT, "5", 415, "content-type"),
    // Query parameters.
    ("POST", "/v1/counter/site/home?by=5", "", "", 400, "bad-query"),
    ("POST", "/v1/counter/site/home?ack=maybe", "", "", 400, "bad-query"),
    ("POST", "/v1/counter/site/home?ack=memory&return=value", "", "", 400, "bad-query"),
    ("POST", "/v1/counter/site/home?ack=durable&ack=memory", "", "", 400, "bad-query"),
    ("POST", "/v1/counter/site/home?ack=%FF", "", "", 400, "bad-address"),
    // Wrong method, no route.
    ("PUT", KEY, TEXT, "5", 405, "method-not-allowed"),
    ("PATCH", KEY, JSON, "{}", 405, "method-not-allowed"),
    ("BREW", KEY, "", "", 405, "method-not-allowed"),
    ("POST", "/v1/counter/site", "", "", 405, "method-not-allowed"),
    ("POST", "/livez", "", "", 405, "method-not-allowed"),
    ("POST", "/", "", "", 405, "method-not-allowed"),
    // A reset with a body, and a deletion.
    ("POST", RESET, TEXT, "-5", 400, "bad-body"),
    ("POST", RESET, FORM, "-5", 400, "bad-body"),
    ("POST", RESET, JSON, r#"{"op":"add","by":-5}"#, 400, "bad-body"),
    ("POST", RESET, "", "[]", 400, "bad-body"),
    ("DELETE", KEY, JSON, r#"{"value":0}"#, 400, "bad-body"),
    ("DELETE", "/v1/counter/site?all=true&prefix=home", "", "", 400, "bad-query"),
    // Batches.
    ("POST", "/v1/batch", JSON, "{}", 400, "bad-body"),
    ("POST", "/v1/batch", JSON, r#"{"updates":[]}"#, 400, "bad-body"),
    ("POST", "/v1/batch", JSON, r#"{"updates":{}}"#, 400, "bad-body"),
    ("POST", "/v1/batch", JSON, "[]", 400, "bad-body"),
    ("POST", "/v1/batch", JSON, "[[1]]", 400, "bad-body"),
    ("POST", "/v1/batch", JSON, r#"{"updates":[1],"updates":[1]}"#, 400, "bad-body"),
    (
        "POST",
        "/v1/batch",
        JSON,
        r#"{"updates":[{"kind":"counter","group":"site","name":"home","op":{"op":"add"}}],"x":1}"#,
        400,
        "bad-body",
    ),
];

#[tokio::test]
async fn bad_updates_are_refused_with_a_sentence_and_apply_nothing() {
    let pod = Pod::new();
    for &(method, path, media, body, status, slug) in ROWS {
        let headers = [("content-type", media)];
        let headers = if media.is_empty() { &[][..] } else { &headers[..] };
        let answer = pod.send(request(method, path, headers, body)).await;
        eprintln!("{method} {path} {body}: {}", answer.text);
        assert_eq!(answer.problem(status, slug).as_deref(), Some("refused"), "{path} {body}");
        if status == 405 {
            assert!(!answer.header("allow").is_empty());
        }
    }
    nothing_was_applied(&pod).await;
}

/// Clients that declare JSON for each request send these bodies.
#[tokio::test]
async fn a_reset_takes_a_body_that_says_nothing() {
    let pod = Pod::new();
    for body in ["", " \r\n", "{}", " {}\n"] {
        assert_eq!(pod.post(KEY, TEXT, "5").await.status, 200);
        let refused = pod.post(RESET, JSON, r#"{"by":5}"#).await;
        let says = "A reset takes no body; to subtract an amount, POST it to the key.";
        assert_eq!(refused.detail(400, "bad-body"), says);
        assert_eq!(pod.value(KEY).await.as_deref(), Some("5"));
        assert_eq!(pod.post(RESET, JSON, body).await.json()["cleared"]["value"], 5, "{body:?}");
        assert_eq!(pod.post(KEY, TEXT, "7").await.status, 200);
        let deleted = pod.send(request("DELETE", KEY, &[("content-type", JSON)], body)).await;
        assert_eq!(deleted.json()["cleared"]["value"], 7, "{body:?}");
    }
}

#[tokio::test]
async fn a_bad_time_to_wait_for_a_reset_names_the_range() {
    let pod = Pod::new();
    assert_eq!(pod.post(KEY, TEXT, "5").await.status, 200);
    for wait in ["wait=61", "wait=abc", "wait=-1", "wait=1.5", "wait=", "wait"] {
        let refused = pod.send(request("POST", RESET, &[("prefer", wait)], "")).await;
        let says = format!("Prefer: {wait:?} is not `wait=` and whole seconds from 0 to 60.");
        assert_eq!(refused.detail(400, "unsupported-header"), says);
    }
    for wait in ["wait=0", "wait=60", "Wait = 1", "respond-async, wait=2"] {
        assert_eq!(pod.post(KEY, TEXT, "5").await.status, 200);
        let answer = pod.send(request("POST", RESET, &[("prefer", wait)], "")).await;
        assert!(answer.status.is_success(), "{wait}: {}", answer.text);
    }
}

#[tokio::test]
async fn a_deletion_of_keys_needs_one_of_its_parameters() {
    let pod = Pod::new();
    for (query, says) in [
        ("?all=true&prefix=home", "The request has both `prefix` and `all`"),
        ("", "Say which keys to delete"),
        ("?all=false", "Say which keys to delete"),
    ] {
        let path = format!("/v1/counter/site{query}");
        let refused = pod.send(request("DELETE", &path, &[], "")).await.detail(400, "bad-query");
        assert!(refused.starts_with(says), "{query}: {refused}");
    }
}

async fn nothing_was_applied(pod: &Pod) {
    let group = pod.get("/v1/counter/site").await.json();
    assert_eq!(group["keys"], serde_json::json!([]), "{group}");
}

#[tokio::test]
async fn bad_headers_and_sizes_are_refused() {
    let pod = Pod::new();
    let refused = |answer: &Answer, status, slug| {
        assert_eq!(answer.problem(status, slug).as_deref(), Some("refused"));
    };
    for (name, value) in [
        ("if-match", "\"x\""),
        ("if-none-match", "*"),
        ("if-modified-since", "Sat, 21 Nov 2026 08:00:00 GMT"),
        ("if-unmodified-since", "Sat, 21 Nov 2026 08:00:00 GMT"),
    ] {
        for path in [KEY, "/v1/batch"] {
            let answer = pod.send(request("POST", path, &[(name, value)], "")).await;
            refused(&answer, 400, "unsupported-header");
            assert!(answer.text.contains(name), "{}", answer.text);
        }
    }
    let large = " ".repeat(limits::BODY_BYTES_MAX + 1);
    refused(&pod.post(KEY, JSON, &large).await, 413, "body-too-large");
    refused(&pod.post("/v1/batch", JSON, &large).await, 413, "body-too-large");
    let declared = (limits::NDJSON_BYTES_MAX + 1).to_string();
    let headers = [("content-type", "application/x-ndjson"), ("content-length", &declared)];
    let answer = pod.send(request("POST", "/v1/batch", &headers, "")).await;
    refused(&answer, 413, "body-too-large");
    let headers = [("content-type", JSON)];
    let answer = pod.send(request("POST", KEY, &headers, &b"{\"op\":\"\xff\"}"[..])).await;
    refused(&answer, 400, "bad-body");
    let name = "x".repeat(257);
    let answer = pod.post(&format!("/v1/counter/site/{name}"), TEXT, "5").await;
    refused(&answer, 400, "bad-name");
    let long = format!("{KEY}?ack={}", "x".repeat(limits::URI_BYTES_MAX));
    refused(&pod.post(&long, TEXT, "5").await, 414, "uri-too-long");
    let torn = futures::stream::iter([Ok("{\"op\""), Err(std::io::Error::other("torn"))]);
    let headers = [("content-type", JSON)];
    let answer = pod.send(request("POST", KEY, &headers, Body::from_stream(torn))).await;
    refused(&answer, 400, "bad-body");
    nothing_was_applied(&pod).await;
}

#[tokio::test]
async fn bad_reads_are_problems_without_an_outcome() {
    let pod = Pod::new();
    for (path, status, slug) in [
        (KEY, 404, "key-absent"),
        ("/v1/counter/site/home/shards", 404, "key-absent"),
        ("/v1/gauge/site/home", 404, "unknown-kind"),
        ("/v1/gauge/site", 404, "unknown-kind"),
        ("/v1/gauge", 404, "unknown-kind"),
        ("/v1/%FF", 400, "bad-address"),
        ("/v1/counter/site/a%7Fb", 400, "bad-name"),
        ("/v1/counter/site/home?consistency=most", 400, "bad-query"),
        ("/v1/counter/site/home?max_staleness=soon", 400, "bad-query"),
        ("/v1/counter/site/home?max_staleness=61m", 400, "bad-query"),
        ("/v1/counter/site/home?default=zero", 400, "bad-query"),
        ("/v1/counter/site/home?numbers=roman", 400, "bad-query"),
        ("/v1/counter/site/home?fresh", 400, "bad-query"),
        ("/v1/counter/site?limit=0", 400, "bad-query"),
        ("/v1/counter/site?limit=10001", 400, "bad-query"),
        ("/v1/counter/site?cursor=%2A", 400, "bad-query"),
        ("/v1/counter/site?prefix=", 400, "bad-query"),
        ("/v1/counter/site/home/shards?x", 400, "bad-query"),
        ("/problems/nonsense", 404, "unknown-problem"),
        ("/problems/%FF", 400, "bad-address"),
        ("/v1", 404, "unknown-route"),
        ("/nonsense", 404, "unknown-route"),
    ] {
        assert_eq!(pod.get(path).await.problem(status, slug), None, "{path}");
    }
    for (body, slug) in [
        ("{}", "bad-body"),
        (r#"{"keys":[]}"#, "bad-body"),
        (r#"{"keys":[{}],"consistency":"most"}"#, "bad-body"),
        (r#"{"keys":[{}],"x":1}"#, "bad-body"),
        (r#"{"keys":[{}],"keys":[{}]}"#, "bad-body"),
        (r#"{"keys":[{}],"consistency":null}"#, "bad-body"),
    ] {
        assert_eq!(pod.post("/v1/query", JSON, body).await.problem(400, slug), None, "{body}");
    }
    assert_eq!(pod.post("/v1/query", TEXT, "x").await.problem(415, "content-type"), None);
}

#[tokio::test]
async fn clients_that_go_away_leave_a_bounded_number_of_reads() {
    let pod = Pod::new();
    pod.set(Fault::Hanging);
    for index in 0..limits::READS_MAX {
        let path = format!("/v1/counter/site/page{index}");
        assert!(pod.get(&path).now_or_never().is_none(), "{index}");
    }
    // Enough time for all of them to end, unless they hang.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let answer = pod.get(KEY).now_or_never().expect("no read is begun");
    assert_eq!(answer.problem(503, "overloaded"), None);
    assert!(answer.text.contains("reading too many keys"), "{}", answer.text);
    pod.set(Fault::None);
    assert_eq!(pod.post(KEY, TEXT, "5").await.status, 200);
    let again = async {
        while pod.get(KEY).await.status == 503 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), again).await.expect("reads work again");
    assert_eq!(pod.value(KEY).await.as_deref(), Some("5"));
}

#[tokio::test]
async fn updates_are_refused_while_the_store_is_down_and_then_work() {
    let pod = Pod::new();
    pod.set(Fault::Down);
    let answer = pod.post(KEY, TEXT, "5").await;
    assert_eq!(answer.status, 503, "{}", answer.text);
    assert_eq!(answer.json()["outcome"], "refused");
    assert!(!answer.header("retry-after").is_empty());
    let answer = pod.get(KEY).await;
    assert_eq!(answer.problem(503, "store-unavailable"), None);
    assert!(answer.text.contains("counter/site/home") && !answer.header("retry-after").is_empty());
    assert_eq!(pod.get("/v1/counter/site").await.problem(503, "store-unavailable"), None);
    assert_eq!(pod.get("/livez").await.status, 200);
    assert_eq!(pod.get("/readyz").await.status, 200);
    pod.set(Fault::None);
    assert_eq!(pod.post(KEY, TEXT, "7").await.status, 200);
    assert_eq!(pod.value(KEY).await.as_deref(), Some("7"));
}

#[tokio::test]
async fn a_write_without_an_answer_is_unknown_and_may_be_counted() {
    let pod = Pod::new();
    pod.set(Fault::Silent);
    let answer = pod.post(KEY, TEXT, "5").await;
    assert_eq!(answer.problem(504, "outcome-unknown").as_deref(), Some("unknown"));
    assert!(answer.headers.get("retry-after").is_none(), "a retry may count twice");
    assert_eq!(pod.value(KEY).await.as_deref(), Some("5"));
}

#[tokio::test]
async fn unreadable_data_is_never_a_number() {
    let pod = Pod::new();
    assert_eq!(pod.post(KEY, TEXT, "5").await.status, 200);
    assert_eq!(pod.post("/v1/counter/site/sound", TEXT, "6").await.status, 200);
    for (fault, slug) in [
        (Fault::TooManyRows, "too-many-rows"),
        (Fault::Corrupt, "corrupt"),
        (Fault::Damaged, "undecodable"),
    ] {
        pod.set(fault);
        let answer = pod.get(&format!("{KEY}?default=0")).await;
        assert_eq!(answer.problem(500, slug), None);
        assert!(answer.text.contains("counter/site/home"), "{}", answer.text);
    }
    let answer = pod.get(KEY).await;
    assert!(answer.text.contains("expires_at"), "names the row: {}", answer.text);
    let page = pod.get("/v1/counter/site").await.json();
    let [damaged, sound] = [0, 1].map(|index| page["keys"][index].clone());
    assert_eq!(damaged["problem"]["type"], "/problems/undecodable");
    assert_eq!((&damaged["name"], &damaged["value"]), (&json!("home"), &Value::Null));
    assert_eq!((&sound["name"], &sound["value"]), (&json!("sound"), &json!(6)));
    let lines = pod.send(request("GET", "/v1/counter/site", &[("accept", NDJSON)], "")).await.text;
    let lines: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((&lines[0]["name"], &lines[0]["problem"]["status"]), (&json!("home"), &json!(500)));
    assert_eq!((&lines[1]["group"], &lines[1]["value"]), (&json!("site"), &json!(6)));
    let shards = pod.get(&format!("{KEY}/shards")).await.json();
    assert_eq!(shards["shards"][0]["value"], Value::Null);
    assert!(shards["shards"][0]["error"].as_str().is_some(), "{shards}");
    let answer = pod.post(&format!("{KEY}?return=value"), TEXT, "2").await;
    assert_eq!(answer.status, 200, "acked anyway");
    assert_eq!(answer.json()["outcome"], "acked");
    assert_eq!(answer.json()["read_problem"]["type"], "/problems/undecodable");
    let headers = [("accept", TEXT), ("content-type", TEXT)];
    let answer = pod.send(request("POST", &format!("{KEY}?return=value"), &headers, "1")).await;
    assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, JSON), "no number");
    assert_eq!(answer.json()["read_problem"]["type"], "/problems/undecodable");
    pod.set(Fault::None);
    assert_eq!(pod.value(KEY).await.as_deref(), Some("8"));
}

#[tokio::test]
async fn a_panic_is_answered_too() {
    let pod = Pod::new();
    pod.set(Fault::Panic);
    assert_eq!(pod.get(KEY).await.problem(500, "internal"), None);
    let answer = pod.post(&format!("{KEY}?return=value"), TEXT, "5").await;
    assert_eq!(answer.status, 200, "the update is acked anyway");
    assert_eq!(answer.json()["read_problem"]["type"], "/problems/internal");
    pod.set(Fault::None);
    assert_eq!(pod.value(KEY).await.as_deref(), Some("5"));
}

#[tokio::test]
async fn a_clock_that_is_not_trusted_refuses_updates_only() {
    let pod = Pod::new();
    assert_eq!(pod.post(KEY, TEXT, "5").await.status, 200);
    assert_eq!(pod.get("/readyz").await.status, 200);
    for (fault, readyz) in [(Fault::Unmeasured, 200), (Fault::Moved, 503)] {
        pod.set(fault);
        let answer = pod.post(KEY, TEXT, "5").await;
        assert_eq!(answer.problem(503, "clock").as_deref(), Some("refused"));
        assert_eq!(pod.value(KEY).await.as_deref(), Some("5"));
        assert_eq!(pod.get("/readyz").await.status, readyz);
        assert_eq!(pod.get("/livez").await.status, 200);
        let answer = pod.post(&format!("{KEY}/fold"), "", "").await;
        assert_eq!(answer.problem(503, "fold-paused"), None);
    }
    assert_eq!(pod.get("/readyz?verbose").await.problem(503, "not-ready"), None);
}
