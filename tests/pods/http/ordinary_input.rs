//! What ordinary clients send: each of these is taken as it was meant, or refused with a sentence that says what
//! happened.

use serde_json::{Value, json};

use crate::pod::{Pod, request};

const BATCH: &str = "/v1/batch";
const JSON: &str = "application/json";
const NDJSON: &str = "application/x-ndjson";
const TEXT: &str = "text/plain";

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
        (BATCH, NDJSON, item, "/errors/0/detail"),
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
