//! What ordinary clients send: each of these is taken as it was meant, or refused with a sentence that says what
//! happened.

use std::io::Write;

use axum::http::Method;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::pod::{Pod, request};

const KEY: &str = "/v1/counter/g/n";
const BATCH: &str = "/v1/batch";
const JSON: &str = "application/json";
const NDJSON: &str = "application/x-ndjson";
const TEXT: &str = "text/plain";
const FORM: &str = "application/x-www-form-urlencoded";
const LINE: &str = r#"{"kind":"counter","group":"g","name":"n","op":{"op":"add"}}"#;

/// All names of NDJSON.
const LINES: [&str; 5] =
    [NDJSON, "application/ndjson", "application/jsonl", "application/x-jsonlines", "text/x-ndjson"];

fn add(by: &str) -> String {
    format!(r#"{{"op":"add","by":{by}}}"#)
}

/// A new key of each row gets the body. Kind, content type, body, and then the value as text.
#[tokio::test]
async fn a_body_is_taken_as_its_client_meant_it() {
    let rows: &[(&str, &str, &str, &str)] = &[
        // Clients that declare JSON for every request.
        ("counter", JSON, "", "1"),
        ("counter", JSON, " \r\n", "1"),
        ("counter", JSON, "\u{feff}", "1"),
        // `curl -d`.
        ("counter", FORM, "5", "5"),
        ("counter", FORM, "+5", "5"),
        ("counter", FORM, "-5\n", "-5"),
        ("sum", FORM, "12.50", "12.50"),
        ("gset", FORM, "a+b", "a+b"),
        ("gset", FORM, "a b@c/d", "a b@c/d"),
        // Text of an editor that writes a byte order mark.
        ("counter", JSON, "\u{feff}{\"op\":\"add\",\"by\":5}", "5"),
        ("counter", JSON, "\u{feff}\r\n{\"ops\":[{\"op\":\"add\"}]}", "1"),
        ("counter", TEXT, "\u{feff}5\r\n", "5"),
        ("counter", FORM, "\u{feff}5", "5"),
        ("gset", TEXT, "\u{feff}a", "a"),
        // JSON of a language without whole numbers.
        ("counter", JSON, r#"{"op":"add","by":1.0}"#, "1"),
        ("counter", JSON, r#"{"op":"add","by":-1e2}"#, "-100"),
        ("counter", JSON, r#"{"op":"add","by":-0.0}"#, "0"),
        ("counter", JSON, r#"{"op":"add","by":9007199254740993.0}"#, "9007199254740993"),
        ("counter", JSON, r#"{"op":"add","by":9.223372036854775807e18}"#, "9223372036854775807"),
        ("counter", JSON, r#"{"ops":[{"op":"add","by":2.0},{"op":"add","by":3E0}]}"#, "5"),
        ("sum", JSON, r#"{"op":"add","by":1e2}"#, "100"),
        ("gset", JSON, r#"{"op":"add","items":[7,7.0,70e-1]}"#, "7"),
    ];
    let pod = Pod::new();
    for (number, (kind, media, body, value)) in rows.iter().enumerate() {
        let path = format!("/v1/{kind}/g/n{number}");
        let answer = pod.post(&path, media, body).await;
        assert_eq!(answer.status, 200, "{kind} {media} {body:?}: {}", answer.text);
        assert_eq!(pod.value(&path).await.as_deref(), Some(*value), "{kind} {media} {body:?}");
    }
}

/// Path, content type and body, then status, slug and a part of the sentence.
type Refused<'a> = (&'a str, &'a str, &'a [u8], u16, &'a str, &'a str);

#[tokio::test]
async fn a_body_that_was_meant_otherwise_is_explained() {
    let (half, huge) = (add("1.5"), add("1e400"));
    let [beyond, pointed, short] =
        ["9223372036854775808", "9223372036854775808.0", "1e19"].map(add);
    let joined = format!("{LINE}{LINE}");
    let lines = format!("{LINE}\n{LINE}\n");
    let zipped = gzip(&lines);
    let rows: &[Refused<'_>] = &[
        ("/v1/sum/g/n", JSON, b"", 400, "bad-op", "An empty body is not an op of kind sum."),
        ("/v1/gset/g/n", JSON, b" \n", 400, "bad-op", "An empty body is not an op of kind gset."),
        (KEY, TEXT, b" ", 400, "bad-op", "whole number"),
        // Forms, and JSON whose content type was forgotten.
        (KEY, FORM, b"by=5", 415, "content-type", "curl's -d sends this type"),
        (KEY, FORM, b"5&6", 415, "content-type", "curl's -d sends this type"),
        (
            KEY,
            FORM,
            b"{\"op\":\"add\"}",
            415,
            "content-type",
            "-H 'content-type: application/json'",
        ),
        ("/v1/gset/g/n", FORM, b"user%40x", 415, "content-type", "text/plain"),
        ("/v1/register/g/n", FORM, b" [1]", 415, "content-type", "application/json"),
        (KEY, FORM, b"five", 400, "bad-op", "content-type: application/json"),
        // Numbers. Bare text is written by people, for whom 1.0 is no whole number.
        (
            KEY,
            JSON,
            half.as_bytes(),
            400,
            "bad-op",
            "floating point `1.5`, expected `by` as a whole",
        ),
        (KEY, JSON, huge.as_bytes(), 400, "bad-body", "number out of range"),
        (KEY, JSON, beyond.as_bytes(), 400, "bad-op", "integer `9223372036854775808`, expected"),
        (KEY, JSON, pointed.as_bytes(), 400, "bad-op", "9223372036854775808.0, expected `by`"),
        (KEY, JSON, short.as_bytes(), 400, "bad-op", "floating point `1e+19`, expected `by`"),
        (KEY, TEXT, b"1.0", 400, "bad-op", "whole number"),
        (KEY, TEXT, b"1e2", 400, "bad-op", "whole number"),
        // `curl -d @FILE` without and with a content type, and NDJSON that was declared as JSON.
        (BATCH, FORM, joined.as_bytes(), 415, "content-type", "--data-binary"),
        (BATCH, JSON, lines.as_bytes(), 400, "bad-body", "one per line"),
        (KEY, JSON, b"{\"op\":\"add\"}{\"op\":\"add\"}", 400, "bad-body", "POST /v1/batch"),
        // A compressed file.
        (BATCH, JSON, &zipped, 400, "bad-body", "content-encoding: gzip"),
        (BATCH, NDJSON, &zipped, 400, "bad-body", "content-encoding: gzip"),
        (KEY, JSON, &zipped, 400, "bad-body", "content-encoding: gzip"),
    ];
    let pod = Pod::new();
    for (path, media, body, status, slug, says) in rows {
        let headers = [("content-type", *media)];
        let answer = pod.send(request("POST", path, &headers, body.to_vec())).await;
        let shown = String::from_utf8_lossy(body);
        assert_eq!(answer.problem(*status, slug).as_deref(), Some("refused"), "{shown}");
        let detail = answer.detail(*status, slug);
        assert!(detail.contains(says), "{path} {media} {shown}: {detail}");
    }
    for group in ["/v1/counter/g", "/v1/gset/g", "/v1/register/g", "/v1/sum/g"] {
        assert_eq!(pod.get(group).await.json()["keys"], json!([]), "{group}");
    }
    // A line spoils only itself.
    let answer = pod.post(BATCH, NDJSON, &format!("{joined}\n{LINE}\n")).await.json();
    assert_eq!((&answer["acked"], &answer["refused"]), (&json!(1), &json!(1)), "{answer}");
    let says = answer["errors"][0]["detail"].as_str().expect("a sentence");
    assert!(says.contains("more than one JSON object") && says.contains("--data-binary"), "{says}");
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()).expect("memory")
}

#[tokio::test]
async fn ndjson_has_five_names_and_one_meaning() {
    let pod = Pod::new();
    for (media, count) in LINES.into_iter().zip(1..) {
        // The first line can have a byte order mark, and a number can be written in any way.
        let line = format!("\u{feff}{}\n", LINE.replace(r#""add""#, r#""add","by":1.0"#));
        let answer = pod.post(BATCH, media, &line).await;
        assert_eq!(answer.status, 200, "{media}: {}", answer.text);
        assert_eq!(answer.json()["acked"], 1, "{media}: {}", answer.text);
        assert_eq!(pod.value(KEY).await, Some(count.to_string()), "{media}");
        let page = pod.send(request("GET", "/v1/counter/g", &[("accept", media)], "")).await;
        assert_eq!(page.header("content-type"), NDJSON, "{media}");
        assert!(page.text.starts_with(r#"{"kind":"counter","group":"g","name":"n""#), "{media}");
        let detail = pod.post(KEY, media, &line).await.detail(415, "content-type");
        assert!(detail.contains(media) && detail.contains("POST /v1/batch"), "{detail}");
    }
    let other = "application/json-seq";
    pod.post(BATCH, other, LINE).await.problem(415, "content-type");
    let page = pod.send(request("GET", "/v1/counter/g", &[("accept", other)], "")).await;
    assert_eq!(page.header("content-type"), JSON);
    let detail = pod.post(BATCH, NDJSON, &format!("{LINE}\n\u{feff}{LINE}\n")).await.json();
    assert_eq!(detail["errors"][0]["first"], 2, "only a body begins with a mark: {detail}");
}

#[tokio::test]
async fn an_empty_part_of_a_path_is_explained() {
    let pod = Pod::new();
    let (ends, two) = ("ends with a slash", "two slashes in a row");
    let unknown = "unknown-route";
    for (method, path, status, slug, says) in [
        (Method::POST, "/v1/counter/g/n/", 404, unknown, ends),
        (Method::POST, "/v1/counter/g/", 404, unknown, ends),
        (Method::POST, "/v1/batch/", 404, unknown, ends),
        (Method::GET, "/v1/counter/g/n/", 404, unknown, ends),
        (Method::GET, "/v1/counter/g/", 404, unknown, ends),
        (Method::GET, "/v1/counter/g/n/shards/", 404, unknown, ends),
        (Method::GET, "/livez/", 404, unknown, ends),
        (Method::POST, "/v1/counter//n", 400, "bad-name", "The group is empty"),
        (Method::GET, "/v1//g/n", 404, "unknown-kind", "There is no kind \"\""),
        (Method::POST, "//v1/counter/g/n", 404, unknown, two),
        (Method::POST, "/v1/counter/g//", 404, unknown, two),
        (Method::GET, "/v1/counter/g/a/b", 404, unknown, "with a / inside a name as %2F"),
        (Method::GET, "/v2", 404, unknown, "lists every endpoint"),
    ] {
        let answer = pod.send(request(method.as_str(), path, &[], "")).await;
        let detail = answer.detail(status, slug);
        assert!(detail.contains(says), "{method} {path}: {detail}");
        let outcome = answer.problem(status, slug);
        assert_eq!(outcome.as_deref(), (method == Method::POST).then_some("refused"), "{path}");
    }
    assert_eq!(pod.get("/v1/counter/g").await.json()["keys"], json!([]));
}

#[tokio::test]
async fn names_that_addresses_lose_are_refused_everywhere() {
    let pod = Pod::new();
    let says = "can't be `.` or `..`";
    for path in [
        "/v1/counter/g/.",
        "/v1/counter/g/..",
        "/v1/counter/./n",
        "/v1/counter/%2e/n",
        "/v1/counter/%2E%2E/n",
        "/v1/counter/.%2e/n/shards",
        "/v1/counter/%2e",
    ] {
        let methods = if path.ends_with("/n") { &["GET", "POST"][..] } else { &["GET"] };
        for method in methods {
            let answer = pod.send(request(method, path, &[], "")).await;
            let detail = answer.detail(400, "bad-name");
            assert!(detail.contains(says), "{method} {path}: {detail}");
        }
    }
    let op = json!({"op": "add"});
    let item = json!({"kind": "counter", "group": "..", "name": "n", "op": op});
    let key = json!({"kind": "counter", "group": "g", "name": "."});
    let merge = json!({"kind": "counter", "group": "g", "names": ["a", ".."]});
    let expression = json!({"kind": "audience", "group": "g", "expression": {"or": ["a", "."]}});
    for (path, media, body, at) in [
        (BATCH, JSON, json!({"updates": [item]}), "/results/0/problem/detail"),
        (BATCH, NDJSON, item, "/summary/errors/0/detail"),
        ("/v1/query", JSON, json!({"keys": [key]}), "/results/0/problem/detail"),
        ("/v1/merge", JSON, merge, "/detail"),
        ("/v1/merge", JSON, expression, "/detail"),
    ] {
        let answer = pod.post(path, media, &body.to_string()).await.json();
        let detail = answer.pointer(at).and_then(Value::as_str).unwrap_or_default();
        assert!(detail.contains(says), "{path} {body}: {answer}");
    }
    // They are the beginnings of other names.
    for name in ["...", ".a", "..b"] {
        assert_eq!(pod.post(&format!("/v1/counter/g/{name}"), TEXT, "1").await.status, 200);
    }
    let page = pod.get("/v1/counter/g?prefix=.&from=..&to=..c").await.json();
    assert_eq!(page["keys"].as_array().map(Vec::len), Some(2), "{page}");
}

#[tokio::test]
async fn a_request_names_its_host_once() {
    let pod = Pod::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let router = pod.router();
    tokio::spawn(async move { axum::serve(listener, router).await });
    for (version, hosts, status, says) in [
        ("1.1", "host: a\r\n", 200, "acked"),
        ("1.1", "host:\r\n", 200, "acked"),
        ("1.0", "", 200, "acked"),
        ("1.0", "host: a\r\n", 200, "acked"),
        ("1.1", "", 400, "no Host header"),
        ("1.1", "host: a\r\nhost: b\r\n", 400, "more than one Host header"),
        ("1.1", "host: a\r\nHost: a\r\n", 400, "more than one Host header"),
        ("1.0", "host: a\r\nhost: a\r\n", 400, "more than one Host header"),
    ] {
        let mut socket = TcpStream::connect(address).await.expect("a connection");
        let head = format!("POST {KEY} HTTP/{version}\r\n{hosts}connection: close\r\n\r\n");
        socket.write_all(head.as_bytes()).await.expect("written");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer[9..].starts_with(&status.to_string()), "{head}: {answer}");
        assert!(answer.contains(says), "{head}: {answer}");
        if status == 400 {
            assert!(answer.contains("/problems/bad-request"), "{answer}");
            assert!(answer.contains(r#""outcome":"refused""#), "{answer}");
        }
    }
    assert_eq!(pod.value(KEY).await.as_deref(), Some("4"));
}
