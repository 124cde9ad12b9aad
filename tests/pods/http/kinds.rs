//! Every kind over HTTP: its example, its questions and bad input.

use std::sync::atomic::Ordering;

use orderfree_core::crdt::Kind;
use serde_json::{Value, json};

use crate::pod::{Pod, request};

const JSON: &str = "application/json";
const NDJSON: &str = "application/x-ndjson";
const TEXT: &str = "text/plain";

async fn post(pod: &Pod, path: &str, op: &Value) -> Value {
    let answer = pod.post(path, JSON, &op.to_string()).await;
    assert_eq!(answer.status, 200, "{path} {op}: {}", answer.json());
    answer.json()
}

async fn value(pod: &Pod, path: &str) -> Value {
    let answer = pod.get(path).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.json());
    answer.json()["value"].clone()
}

fn writes(pod: &Pod) -> usize {
    pod.writes.load(Ordering::SeqCst)
}

/// Without times and tokens, which differ between runs.
fn timeless(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            for name in ["timestamp", "seen", "context"] {
                fields.remove(name);
            }
            fields.values_mut().for_each(|field| *field = timeless(field.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = timeless(item.take())),
        _ => {}
    }
    value
}

#[tokio::test]
async fn the_examples_of_the_document_do_what_they_say() {
    let pod = Pod::new();
    let document = pod.get("/openapi.json").await.json();
    let address = &document["paths"]["/v1/{kind}/{group}/{name}"];
    let ops = &address["post"]["requestBody"]["content"][JSON]["examples"];
    let answers = &address["get"]["responses"]["200"]["content"][JSON]["examples"];
    for kind in Kind::ALL {
        let path = format!("/v1/{kind}/site/home");
        post(&pod, &path, &ops[kind.name()]["value"]).await;
        let read = pod.get(&path).await.json();
        let example = &answers[kind.name()]["value"];
        let shown = timeless(example["value"].clone());
        assert_eq!(timeless(read["value"].clone()), shown, "{kind}");
        assert_eq!(read["exact"], example["exact"], "{kind}");
    }
}

#[tokio::test]
async fn bare_text_is_an_op_of_every_kind() {
    let pod = Pod::new();
    for kind in Kind::ALL {
        let path = format!("/v1/{kind}/site/bare");
        let answer = pod.post(&path, TEXT, " 7\n").await;
        assert_eq!(answer.status, 200, "{kind}: {}", answer.json());
        assert_eq!(pod.get(&path).await.status, 200);
    }
    let items = value(&pod, "/v1/gset/site/bare?numbers=string").await["items"].clone();
    assert_eq!(items, json!([7]), "only an item beyond 2^53 is put in quotes");
    let refused = pod.post("/v1/stats/site/bare", TEXT, "NaN").await;
    assert!(refused.detail(400, "bad-op").contains("`value`"));
}

/// In a read, after an update and in a merge.
#[tokio::test]
async fn text_is_the_bare_value_of_each_kind_that_has_one() {
    let pod = Pod::new();
    let ask = async |method, path: &str, accept, media, body: &str| {
        let headers = [("accept", accept), ("content-type", media)];
        pod.send(request(method, path, &headers, body.to_owned())).await
    };
    for kind in Kind::ALL {
        let bare = match kind {
            Kind::Counter | Kind::Sum => Some("7\n"),
            Kind::Distinct | Kind::Audience => Some("1.0\n"),
            Kind::GSet | Kind::LwwSet | Kind::OrSet | Kind::Register => Some("7\n"),
            Kind::Stats | Kind::Extrema | Kind::Histogram | Kind::TopK => None,
        };
        let (path, second) = (format!("/v1/{kind}/site/bare"), format!("/v1/{kind}/site/second"));
        let answer = ask("POST", &second, TEXT, TEXT, "7").await;
        assert_eq!((answer.status.as_u16(), answer.text.as_str()), (200, "acked\n"), "{kind}");
        let merge = json!({"kind": kind.name(), "group": "site", "names": ["second"]}).to_string();
        let requests = [
            ("POST", &*format!("{path}?return=value"), TEXT, "7"),
            ("GET", &second, "", ""),
            ("POST", "/v1/merge", JSON, &merge),
        ];
        for (method, path, media, body) in requests {
            let answer = ask(method, path, TEXT, media, body).await;
            let Some(bare) = bare else {
                assert!(answer.detail(406, "not-acceptable").contains("no bare value"), "{kind}");
                continue;
            };
            assert_eq!(
                (answer.status.as_u16(), answer.text.as_str()),
                (200, bare),
                "{kind} {path}"
            );
            assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
        }
        let stored = pod.get(&path).await.status.as_u16();
        assert_eq!(stored, if bare.is_some() { 200 } else { 404 }, "{kind}: refused, not counted");
        for (method, path, media, body) in requests {
            let answer = ask(method, path, "text/plain, */*;q=0.1", media, body).await;
            assert_eq!(answer.status.as_u16(), 200, "{kind} {path}: {}", answer.text);
            let is_json = answer.header("content-type") == JSON;
            assert_eq!(is_json, bare.is_none(), "{kind} {path}");
        }
    }
}

#[tokio::test]
async fn the_bare_text_of_a_set_has_a_line_for_each_item() {
    let pod = Pod::new();
    let text = async |path: &str| {
        let answer = pod.send(request("GET", path, &[("accept", TEXT)], "")).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.text
    };
    for kind in ["gset", "lww_set", "or_set"] {
        let path = format!("/v1/{kind}/site/lines");
        post(&pod, &path, &json!({"op": "add", "items": [7, "7", "a b", "a\nb"]})).await;
        assert_eq!(text(&path).await, "7\n\"7\"\n\"a\\nb\"\na b\n", "{kind}");
        assert_eq!(text(&format!("{path}?contains=a%20b")).await, "true\n", "{kind}");
        assert_eq!(text(&format!("{path}?contains=b")).await, "false\n", "{kind}");
        assert_eq!(text(&format!("/v1/{kind}/site/none?default=empty")).await, "", "{kind}");
    }
    assert_eq!(text("/v1/register/site/none?default=empty").await, "null\n");
}

#[tokio::test]
async fn bad_ops_name_the_field_and_leave_the_state_as_it_was() {
    let long = "x".repeat(1025);
    let rows: &[(&str, Value, &str)] = &[
        ("sum", json!({"op": "add", "by": 0.1}), "`by` as a decimal number"),
        ("sum", json!({"op": "add", "by": "NaN"}), "`by` as a decimal number"),
        ("sum", json!({"op": "add", "by": "0.1234567890123456789"}), "at most 18"),
        ("stats", json!({"op": "record", "value": "NaN"}), "`value` as a finite"),
        ("stats", json!({"op": "record", "value": "Infinity"}), "`value` as a finite"),
        ("stats", json!({"op": "record", "value": null}), "`value` as a finite"),
        ("stats", json!({"op": "record", "value": 1, "count": 0}), "`count`"),
        ("extrema", json!({"op": "observe", "value": "inf"}), "`value` as a finite"),
        ("extrema", json!({"op": "observe", "value": 1, "label": ""}), "label"),
        ("extrema", json!({"op": "observe", "value": 1, "label": long}), "label"),
        ("histogram", json!({"op": "record", "value": "-inf"}), "`value` as a finite"),
        ("histogram", json!({"op": "record", "value": 1, "count": -1}), "`count`"),
        ("gset", json!({"op": "add", "item": ""}), "`item`"),
        ("gset", json!({"op": "add", "item": long}), "`item` has 1025 bytes"),
        ("gset", json!({"op": "add", "items": []}), "`items`"),
        ("gset", json!({"op": "remove", "item": "a"}), "remove"),
        ("lww_set", json!({"op": "add", "item": "a", "after": "x"}), "`after`"),
        (
            "lww_set",
            json!({"op": "add", "item": "a", "after": 9_000_000_000_000_000_u64}),
            "`after`",
        ),
        ("register", json!({"op": "set"}), "`value`"),
        ("register", json!({"op": "set", "value": 1, "after": -1}), "`after`"),
        ("topk", json!({"op": "add", "item": "x", "by": -3}), "`by`"),
        ("topk", json!({"op": "add", "item": "x", "by": 0}), "`by`"),
        ("distinct", json!({"op": "add", "item": ""}), "`item`"),
        ("distinct", json!({"op": "add", "items": ["a", long]}), "`item`"),
        ("distinct", json!({"op": "merge", "sketch": "!"}), "`sketch`"),
        ("distinct", json!({"op": "merge", "sketch": "AAAA"}), "`sketch`"),
        ("audience", json!({"op": "merge", "sketch": "AAAA"}), "`sketch`"),
        ("or_set", json!({"op": "remove", "item": "a"}), "`seen`"),
        ("or_set", json!({"op": "remove", "item": "a", "seen": "AAAA"}), "`seen`"),
        ("or_set", json!({"op": "clear", "context": "?"}), "`context`"),
        ("counter", json!({"op": "record", "value": 1}), "record"),
    ];
    let pod = Pod::new();
    for (kind, op, says) in rows {
        let path = format!("/v1/{kind}/site/bad");
        assert_eq!(pod.post(&path, TEXT, "7").await.status, 200);
        let shards = format!("{path}/shards");
        let before = pod.get(&shards).await.json()["shards"].clone();
        let answer = pod.post(&path, JSON, &op.to_string()).await;
        let detail = answer.detail(400, "bad-op");
        assert!(detail.contains(says), "{kind} {op}: {detail}");
        assert_eq!(pod.get(&shards).await.json()["shards"], before, "{kind} {op}");
    }
}

#[tokio::test]
async fn an_op_that_changes_nothing_writes_nothing() {
    let pod = Pod::new();
    for (kind, op) in [
        ("gset", json!({"op": "add", "items": ["a", "b"]})),
        ("distinct", json!({"op": "add", "items": ["a", "b"]})),
        ("audience", json!({"op": "add", "items": ["a", "b"]})),
        ("extrema", json!({"op": "observe", "value": 9, "label": "a"})),
        ("counter", json!({"op": "add", "by": 0})),
    ] {
        let path = format!("/v1/{kind}/site/again");
        post(&pod, &path, &op).await;
        let before = writes(&pod);
        post(&pod, &path, &op).await;
        assert_eq!(writes(&pod), before, "{kind}");
    }
    // A time increases with every op.
    post(&pod, "/v1/lww_set/site/again", &json!({"op": "add", "item": "a"})).await;
    let before = writes(&pod);
    post(&pod, "/v1/lww_set/site/again", &json!({"op": "add", "item": "a"})).await;
    assert_eq!(writes(&pod), before + 1);
}

#[tokio::test]
async fn a_pod_takes_a_megabyte_of_a_key_and_then_says_what_to_do() {
    let pod = Pod::new();
    let item = |n: usize| format!("{n:0>1000}");
    let mut refused = None;
    for chunk in 0..120 {
        let items: Vec<String> = (chunk * 10..chunk * 10 + 10).map(item).collect();
        let body = json!({"op": "add", "items": items}).to_string();
        let answer = pod.post("/v1/gset/site/full", JSON, &body).await;
        if answer.status != 200 {
            let detail = answer.detail(409, "state-too-large");
            assert!(detail.contains("send the op to another pod"), "{detail}");
            refused.get_or_insert(chunk);
        }
    }
    // Four states of 256 KiB each, none of them completely full.
    let refused = refused.expect("a megabyte is enough");
    assert!((90..105).contains(&refused), "{refused}");
    assert_eq!(value(&pod, "/v1/gset/site/full").await["size"], 10 * refused);
}

/// The limit counts for any number of keys of any size.
#[tokio::test]
async fn one_answer_holds_about_16_mib_of_rows() {
    let pod = Pod::new();
    let names: Vec<String> = (10..80).map(|number| format!("n{number}")).collect();
    for name in &names {
        let items: Vec<String> = (0..250).map(|item| format!("{name}{item:0>1000}")).collect();
        let items = json!({"op": "add", "items": items});
        post(&pod, &format!("/v1/gset/large/{name}"), &items).await;
    }
    // 250 items of 1,005 bytes are 251 KB: 67 keys are the first above 16 MiB.
    let key = |name: &String| json!({"kind": "gset", "group": "large", "name": name});
    let mut keys: Vec<Value> = names.iter().map(key).collect();
    keys.push(key(&String::new()));
    let answer = pod.post("/v1/query", JSON, &json!({"keys": keys}).to_string()).await.json();
    let results = answer["results"].as_array().expect("results");
    assert_eq!(results.len(), 71);
    for (index, result) in results.iter().enumerate() {
        let (size, slug) = (&result["value"]["size"], &result["problem"]["type"]);
        match index {
            0..67 => assert_eq!((size, slug), (&json!(250), &json!(null)), "{index}"),
            67..70 => assert_eq!((size, slug), (&json!(null), &json!("/problems/answer-full"))),
            _ => assert_eq!(slug, "/problems/bad-name"),
        }
    }

    let page = pod.get("/v1/gset/large").await.json();
    assert_eq!(page["keys"].as_array().map(Vec::len), Some(67));
    let path = format!("/v1/gset/large?cursor={}", page["next"].as_str().expect("a next page"));
    assert_eq!(pod.get(&path).await.json()["keys"].as_array().map(Vec::len), Some(3));

    let merge =
        |count| json!({"kind": "gset", "group": "large", "names": names[..count]}).to_string();
    // Their estimated memory is ten times their size, so 27 keys are the first above 64 MiB.
    let merged = pod.post("/v1/merge", JSON, &merge(26)).await;
    assert_eq!(merged.json()["value"]["size"], 26 * 250);
    let sparse = json!({"kind": "gset", "group": "same", "names": names}).to_string();
    let items: Vec<String> = (0..250).map(|item| format!("{item:0>1000}")).collect();
    for name in &names {
        post(&pod, &format!("/v1/gset/same/{name}"), &json!({"op": "add", "items": items})).await;
    }
    let merged = pod.post("/v1/merge", JSON, &sparse).await;
    assert_eq!(merged.json()["value"]["size"], 250, "what is read is much, what is merged is not");
    let refused = pod.post("/v1/merge", JSON, &merge(27)).await;
    assert!(refused.detail(422, "answer-full").contains("merge fewer"));
}

#[tokio::test]
async fn questions_are_answered_by_the_kinds_that_know_them() {
    let pod = Pod::new();
    let record = |value: u32| json!({"op": "record", "value": value});
    let ops: Vec<Value> = (1..=100).map(record).collect();
    post(&pod, "/v1/histogram/api/latency", &json!({"ops": ops})).await;
    let read = value(&pod, "/v1/histogram/api/latency?q=0.25,1&buckets=true").await;
    assert_eq!((&read["count"], &read["sum"]), (&json!(100), &json!(5050.0)));
    let quarter = read["quantiles"][0]["value"].as_f64().expect("a number");
    assert!((quarter - 25.0).abs() <= 25.0 * 0.0055, "{quarter}");
    assert_eq!(read["quantiles"][1], json!({"q": 1.0, "value": 100.0}));
    assert!(read["buckets"].as_array().expect("buckets").len() > 50);
    let data_point = value(&pod, "/v1/histogram/api/latency?as=opentelemetry").await;
    assert_eq!((&data_point["scale"], &data_point["count"]), (&json!(6), &json!("100")));
    let native = value(&pod, "/v1/histogram/api/latency?as=prometheus").await;
    assert_eq!(native["count"], "100");

    post(&pod, "/v1/gset/site/tags", &json!({"op": "add", "items": ["a", 7]})).await;
    for (asked, is_in) in [("a", true), ("7", true), ("%227%22", false), ("b", false)] {
        let read = value(&pod, &format!("/v1/gset/site/tags?contains={asked}")).await;
        assert_eq!(read["contains"], is_in, "{asked}");
    }
    for (path, says) in [
        ("/v1/gset/site/tags?q=0.5", "no parameter q; these kinds have it: histogram"),
        ("/v1/counter/site/tags?contains=a", "gset"),
        ("/v1/histogram/api/latency?q=1.5", "number from 0 to 1"),
        ("/v1/histogram/api/latency?q=", "number from 0 to 1"),
        ("/v1/histogram/api/latency?as=xml", "opentelemetry"),
        ("/v1/gset/site/tags?contains=", "0 bytes"),
        ("/v1/gset/site/tags?default=7", "neither `empty` nor"),
    ] {
        let answer = pod.get(path).await;
        let detail = answer.detail(400, "bad-query");
        assert!(detail.contains(says), "{path}: {detail}");
    }
    assert_eq!(
        value(&pod, "/v1/gset/site/none?default=empty").await,
        json!({"size": 0, "items": []})
    );
    let empty = value(&pod, "/v1/gset/site/none?default=empty&contains=a").await;
    assert_eq!(empty, json!({"size": 0, "item": "a", "contains": false}));
    assert_eq!(value(&pod, "/v1/sum/site/none?default=0.00").await, json!("0.00"));
}

/// The parameters that only some kinds have mean the same in a query and in a merge.
#[tokio::test]
async fn a_query_and_a_merge_take_the_questions_of_a_read() {
    let pod = Pod::new();
    let ops: Vec<Value> = (1..=9).map(|value| json!({"op": "record", "value": value})).collect();
    post(&pod, "/v1/histogram/site/a", &json!({"ops": ops})).await;
    post(&pod, "/v1/counter/site/a", &json!({"op": "add", "by": 5})).await;
    let key = |kind: &str, name: &str| json!({"kind": kind, "group": "site", "name": name});
    let query = async |asked: &str, keys: &[Value]| {
        let body = json!({"keys": keys, "consistency": "one"}).to_string();
        pod.post(&format!("/v1/query?{asked}"), JSON, &body).await
    };
    let merge = async |asked: &str, kind: &str, names: &[&str]| {
        let body = json!({"kind": kind, "group": "site", "names": names}).to_string();
        pod.post(&format!("/v1/merge?{asked}"), JSON, &body).await
    };
    let keys = [key("histogram", "a"), key("counter", "a"), key("histogram", "none")];
    let answer = query("q=0.5,1&default=empty", &keys).await.json();
    let path = |name: &str| format!("/v1/histogram/site/{name}?q=0.5,1&default=empty");
    assert_eq!(answer["results"][0]["value"], value(&pod, &path("a")).await);
    assert_eq!(answer["results"][1]["value"], 5, "a counter has no quantiles");
    let absent = &answer["results"][2];
    assert_eq!(absent["value"], value(&pod, &path("none")).await);
    assert_eq!((&absent["absent"], &absent["consistency"]), (&json!(true), &json!("one")));
    assert_eq!((&absent["shards"], &absent["name"]), (&json!(0), &json!("none")));
    let counters = [key("counter", "none"), key("sum", "none"), key("counter", "a")];
    let answer = query("default=-3&numbers=string", &counters).await.json();
    let values: Vec<&Value> = (0..3).map(|at| &answer["results"][at]["value"]).collect();
    assert_eq!(values, ["-3", "-3", "5"]);
    for (asked, keys, says) in [
        ("q=0.5", &counters[..], "no parameter q; these kinds have it: histogram"),
        ("default=0", &keys[..], "neither `empty` nor a bare value of kind histogram"),
        ("default=0.5", &counters[..], "neither `empty` nor a bare value of kind counter"),
    ] {
        let detail = query(asked, keys).await.detail(400, "bad-query");
        assert!(detail.contains(says), "{asked}: {detail}");
    }

    merge("", "counter", &["none", "nowhere"]).await.problem(404, "key-absent");
    let absent = merge("default=7", "counter", &["none", "nowhere"]).await.json();
    assert_eq!((&absent["value"], &absent["exact"]), (&json!(7), &json!(true)), "{absent}");
    assert_eq!((&absent["absent"], &absent["shards"]), (&json!(["none", "nowhere"]), &json!(0)));
    let found = merge("default=7", "counter", &["none", "a"]).await.json();
    assert_eq!((&found["value"], &found["absent"]), (&json!(5), &json!(["none"])));
    let empty = merge("default=empty&q=0.5,1", "histogram", &["none"]).await.json();
    assert_eq!(empty["value"], value(&pod, &path("none")).await);
    let refused = merge("default=7", "histogram", &["none"]).await.detail(400, "bad-query");
    assert!(refused.contains("neither `empty` nor"), "{refused}");
    let expression =
        json!({"kind": "audience", "group": "site", "expression": {"and": ["a", "b"]}});
    let answer = pod.post("/v1/merge?default=empty", JSON, &expression.to_string()).await.json();
    let read = value(&pod, "/v1/audience/site/none?default=empty").await;
    assert_eq!(answer["value"], read, "{answer}");
}

#[tokio::test]
async fn the_value_of_an_absent_key_is_shown_as_a_stored_one() {
    let pod = Pod::new();
    let fields = |value: &Value| -> Vec<String> {
        value.as_object().expect("a record").keys().cloned().collect()
    };
    let or_set = "/v1/or_set/cart/cleared";
    post(&pod, or_set, &json!({"op": "add", "item": "milk"})).await;
    let context = value(&pod, or_set).await["context"].clone();
    post(&pod, or_set, &json!({"op": "clear", "context": context})).await;
    post(&pod, "/v1/histogram/api/latency", &json!({"op": "record", "value": 1})).await;
    post(&pod, "/v1/gset/site/tags", &json!({"op": "add", "item": "a"})).await;
    for (stored, query) in [
        (or_set, ""),
        (or_set, "&contains=milk"),
        ("/v1/histogram/api/latency", "&q=0.5&buckets"),
        ("/v1/histogram/api/latency", "&as=prometheus"),
        ("/v1/gset/site/tags", "&contains=b"),
    ] {
        let group = stored.rsplit_once('/').expect("a path").0;
        let there = value(&pod, &format!("{stored}?default=empty{query}")).await;
        let absent = value(&pod, &format!("{group}/none?default=empty{query}")).await;
        assert_eq!(fields(&absent), fields(&there), "{stored} {query}");
    }
    for (path, shown) in [("counter/site/none?default=7", "7"), ("sum/site/none?default=7", "7")] {
        assert_eq!(value(&pod, &format!("/v1/{path}&numbers=string")).await, shown);
    }
    let empty = value(&pod, "/v1/gset/site/none?default=empty&numbers=string").await;
    assert_eq!(empty["size"], "0");
    for (path, status) in [
        ("/v1/distinct/site/none?default=empty", 200),
        ("/v1/audience/site/none?default=empty", 200),
        ("/v1/counter/site/none?default=empty", 406),
        ("/v1/counter/site/none?default=7", 406),
    ] {
        let accept = [("accept", "application/octet-stream")];
        let answer = pod.send(request("GET", path, &accept, "")).await;
        assert_eq!(answer.status.as_u16(), status, "{path}: {}", answer.text);
        let is_sketch = answer.header("content-type") == "application/octet-stream";
        assert_eq!(is_sketch, status == 200, "{path}");
    }
}

#[tokio::test]
async fn a_client_that_sends_the_time_it_saw_gets_a_later_one() {
    let pod = Pod::new();
    let path = "/v1/register/user/theme";
    let first = post(&pod, path, &json!({"op": "set", "value": "dark"})).await;
    let seen = first["timestamp"].as_i64().expect("µs");
    let ahead = seen + 1_000_000;
    let next = post(&pod, path, &json!({"op": "set", "value": "light", "after": ahead})).await;
    assert_eq!(next["timestamp"], ahead + 1);
    let read = value(&pod, path).await;
    assert_eq!((&read["value"], &read["timestamp"]), (&json!("light"), &json!(ahead + 1)));
    let later = post(&pod, path, &json!({"op": "unset"})).await;
    assert_eq!(later["timestamp"], ahead + 2, "the pod's own clock follows");
    assert_eq!(value(&pod, path).await["is_set"], false);
    let batch = json!({"updates": [
        {"kind": "lww_set", "group": "g", "name": "n", "op": {"op": "add", "item": "a"}},
        {"kind": "counter", "group": "g", "name": "n", "op": {"op": "add"}}]});
    let results = pod.post("/v1/batch", JSON, &batch.to_string()).await.json()["results"].clone();
    assert_eq!(results[0]["timestamp"], ahead + 3);
    assert_eq!(results[1]["timestamp"], Value::Null);
    assert_eq!(post(&pod, "/v1/counter/g/n", &json!({"op": "add"})).await.get("timestamp"), None);
}

#[tokio::test]
async fn an_observed_remove_takes_what_was_seen_and_no_more() {
    let pod = Pod::new();
    let path = "/v1/or_set/cart/7";
    post(&pod, path, &json!({"op": "add", "items": ["milk", "tea"]})).await;
    let read = value(&pod, path).await;
    let seen = read["items"][0]["seen"].as_str().expect("a token").to_owned();
    // Another client adds it again, which this one has not seen.
    post(&pod, path, &json!({"op": "add", "item": "milk"})).await;
    post(&pod, path, &json!({"op": "remove", "item": "milk", "seen": seen})).await;
    assert_eq!(value(&pod, path).await["size"], 2);
    let context = value(&pod, path).await["context"].as_str().expect("a token").to_owned();
    post(&pod, path, &json!({"op": "add", "item": "jam"})).await;
    post(&pod, path, &json!({"op": "clear", "context": context})).await;
    let left = value(&pod, path).await;
    assert_eq!((&left["size"], &left["items"][0]["item"]), (&json!(1), &json!("jam")));
    // A token is valid only for its key.
    let other = json!({"op": "remove", "item": "milk", "seen": seen}).to_string();
    let answer = pod.post("/v1/or_set/cart/8", JSON, &other).await;
    let detail = answer.detail(400, "bad-op");
    assert!(detail.contains("`seen`") && detail.contains("key"), "{detail}");
}

/// Numbers of more digits than a double has: as they were sent, or refused.
#[tokio::test]
async fn a_register_gives_back_every_digit() {
    let pod = Pod::new();
    let path = "/v1/register/user/ids";
    for number in [
        "10769150350006150715113082367",
        "100000000000000000000",
        "0.1000000000000000055511151231257827",
        "1e-400",
        "-18446744073709551615",
        "12345678901234567890123456789012345678901234567890",
    ] {
        let value = format!("{{\"id\":[7,{number}]}}");
        for (media, body) in [
            (JSON, format!("{{\"op\":\"set\",\"value\":{value}}}")),
            (JSON, format!("{{\"ops\":[{{\"op\":\"set\",\"value\":{value}}}]}}")),
            (TEXT, value.clone()),
        ] {
            let answer = pod.post(path, media, &body).await;
            assert_eq!(answer.status, 200, "{body}: {}", answer.json());
            let read = pod.get(path).await.text;
            assert!(read.contains(&format!("\"value\":{value}")), "{body}: {read}");
        }
        let read = pod.get(&format!("{path}?numbers=string")).await.text;
        assert!(read.contains(&format!("\"value\":{{\"id\":[7,\"{number}\"]}}")), "{read}");
    }
    let answer = pod.post(path, JSON, "{\"op\":\"set\",\"value\":1e400}").await;
    assert!(answer.detail(400, "bad-body").contains("out of range"));
    for (kind, op) in
        [("counter", "add\",\"by"), ("gset", "add\",\"item"), ("stats", "record\",\"value")]
    {
        let body = format!("{{\"op\":\"{op}\":10769150350006150715113082367}}");
        let answer = pod.post(&format!("/v1/{kind}/user/ids"), JSON, &body).await;
        let detail = answer.detail(400, "bad-op");
        assert!(detail.contains("10769150350006150715113082367"), "{detail}");
        assert!(!detail.contains("byte"), "{detail}");
    }
    let answer = pod.post("/v1/extrema/user/ids", TEXT, "10769150350006150715113082367").await;
    assert!(answer.detail(400, "bad-op").contains("10769150350006150715113082367"));
}

#[tokio::test]
async fn a_result_without_a_double_is_null_and_not_exact() {
    let pod = Pod::new();
    for (name, values, field) in [
        ("large", ["1e200", "-1e200", "3e200"], "variance"),
        ("small", ["1e-200", "2e-200", "3e-200"], "variance"),
        ("sum", ["1e308", "1e308", "1e308"], "sum"),
    ] {
        let path = format!("/v1/stats/api/{name}");
        for value in values {
            let body = format!("{{\"op\":\"record\",\"value\":{value}}}");
            assert_eq!(pod.post(&path, JSON, &body).await.status, 200);
        }
        let merge = json!({"kind": "stats", "group": "api", "names": [name]}).to_string();
        let merged = pod.post("/v1/merge", JSON, &merge).await.json();
        for read in [pod.get(&path).await.json(), merged] {
            assert_eq!(read["value"][field], Value::Null, "{read}");
            assert_eq!(read["exact"], false, "{read}");
            assert!(read["value"]["mean"].is_number(), "{read}");
        }
    }
    post(&pod, "/v1/stats/api/same", &json!({"op": "record", "value": 1e-200, "count": 3})).await;
    let read = pod.get("/v1/stats/api/same").await.json();
    assert_eq!((&read["value"]["variance"], &read["exact"]), (&json!(0.0), &json!(true)));
}

/// Every kind's whole numbers beyond those of JavaScript.
#[tokio::test]
async fn numbers_as_strings_hide_no_digit_from_javascript() {
    let pod = Pod::new();
    let large = i64::MAX - 1;
    for kind in Kind::ALL {
        let path = format!("/v1/{kind}/js/large");
        let ops: &[Value] = match kind {
            Kind::Counter => &[json!({"op": "add", "by": large})],
            Kind::Sum => &[json!({"op": "add", "by": large})],
            Kind::Stats | Kind::Histogram => {
                &[json!({"op": "record", "value": 0.5, "count": large})]
            }
            Kind::Extrema => &[json!({"op": "observe", "value": i64::MIN})],
            Kind::Register => &[json!({"op": "set", "value": {"a": [large, -large, 1e300]}})],
            _ => &[json!({"op": "add", "item": large})],
        };
        for op in ops {
            post(&pod, &path, op).await;
        }
        for ask in
            ["", "&contains=7", "&contains=9223372036854775806", "&buckets=true", "&as=prometheus"]
        {
            let answer = pod.get(&format!("{path}?numbers=string{ask}")).await;
            if answer.status == 200 {
                check_numbers(&answer.json()["value"]);
            }
        }
        let op = ops[0].to_string();
        let key = json!({"kind": kind.name(), "group": "js", "name": "large"});
        let query = json!({"keys": [key]}).to_string();
        let merge = json!({"kind": kind.name(), "group": "js", "names": ["large"]}).to_string();
        for (method, path, body) in [
            ("GET", format!("/v1/{kind}/js?"), String::new()),
            ("GET", format!("{path}/shards?"), String::new()),
            ("POST", "/v1/query?".to_owned(), query),
            ("POST", "/v1/merge?".to_owned(), merge),
            ("POST", format!("{path}?return=value&"), op),
            ("POST", format!("{path}/reset?"), String::new()),
        ] {
            let address = format!("{path}numbers=string");
            let headers = [("content-type", JSON)];
            let answer = pod.send(request(method, &address, &headers, body)).await;
            assert_eq!(answer.status, 200, "{method} {address}: {}", answer.text);
            check_numbers(&answer.json());
        }
    }
}

fn check_numbers(value: &Value) {
    match value {
        Value::Number(number) => {
            let is_held = number.as_i64().is_none_or(|whole| whole.unsigned_abs() < 1 << 53);
            assert!(is_held && (number.is_i64() || number.is_f64()), "{number}");
        }
        Value::Array(items) => items.iter().for_each(check_numbers),
        Value::Object(fields) => fields.values().for_each(check_numbers),
        _ => {}
    }
}

#[tokio::test]
async fn white_space_around_bare_text_is_no_part_of_it() {
    let pod = Pod::new();
    let path = "/v1/gset/site/bare-text";
    for body in [" a b\n", "\"\\tc \"\r\n", "7 "] {
        assert_eq!(pod.post(path, TEXT, body).await.status, 200);
    }
    assert_eq!(value(&pod, path).await["items"], json!([7, "\tc ", "a b"]));
    for asked in ["%20a%20b%0A", "a%20b", "%09%22%5Ctc%20%22", "%207%0A"] {
        let read = value(&pod, &format!("{path}?contains={asked}")).await;
        assert_eq!(read["contains"], true, "{asked}: {read}");
    }
}

#[tokio::test]
async fn a_token_is_good_for_its_item_alone() {
    let pod = Pod::new();
    let path = "/v1/or_set/cart/9";
    post(&pod, path, &json!({"op": "add", "items": ["milk", "tea"]})).await;
    let read = value(&pod, path).await;
    let (milk, context) = (&read["items"][0]["seen"], &read["context"]);
    let before = writes(&pod);
    let remove = json!({"op": "remove", "item": "tea", "seen": milk}).to_string();
    let detail = pod.post(path, JSON, &remove).await.detail(409, "other-item");
    assert!(detail.contains("`seen`") && detail.contains("`context`"), "{detail}");
    let clear = json!({"op": "clear", "context": milk}).to_string();
    let detail = pod.post(path, JSON, &clear).await.detail(409, "other-item");
    assert!(detail.contains("`context`"), "{detail}");
    assert_eq!(writes(&pod), before);
    // The token of the whole set is good for each item.
    post(&pod, path, &json!({"op": "remove", "item": "tea", "seen": context})).await;
    post(&pod, path, &json!({"op": "remove", "item": "milk", "seen": milk})).await;
    assert_eq!(value(&pod, path).await["size"], 0);
}

#[tokio::test]
async fn concurrent_updates_of_a_key_have_own_outcomes_and_times() {
    let pod = Pod::new();
    post(&pod, "/v1/or_set/cart/7", &json!({"op": "add", "item": "milk"})).await;
    let seen = value(&pod, "/v1/or_set/cart/7").await["items"][0]["seen"].clone();
    let items = [
        json!({"op": "add", "item": "tea"}),
        json!({"op": "remove", "item": "tea", "seen": seen}),
        json!({"op": "add", "item": "jam"}),
    ]
    .map(|op| json!({"kind": "or_set", "group": "cart", "name": "8", "op": op}));
    let batch = json!({"updates": items}).to_string();
    let results = pod.post("/v1/batch", JSON, &batch).await.json()["results"].clone();
    let outcomes: Vec<_> = (0..3).map(|at| results[at]["outcome"].clone()).collect();
    assert_eq!(outcomes, ["acked", "refused", "acked"], "the token is another key's");
    assert_eq!(value(&pod, "/v1/or_set/cart/8").await["size"], 2);
    let lines = items.map(|item| item.to_string()).join("\n");
    let summary = pod.post("/v1/batch", NDJSON, &lines).await.json();
    assert_eq!((&summary["acked"], &summary["refused"]), (&json!(2), &json!(1)), "{summary}");
    assert_eq!(summary["errors"][0]["first"], 2);

    let items = ["dark", "light"].map(|text| {
        let op = json!({"op": "set", "value": text});
        json!({"kind": "register", "group": "user", "name": "theme", "op": op})
    });
    let batch = json!({"updates": items}).to_string();
    let results = pod.post("/v1/batch", JSON, &batch).await.json()["results"].clone();
    let [first, last] = [0, 1].map(|at| results[at]["timestamp"].as_i64().expect("a time"));
    assert!(first < last, "{first} {last}");
    let read = value(&pod, "/v1/register/user/theme").await;
    assert_eq!((&read["value"], &read["timestamp"]), (&json!("light"), &json!(last)));

    let registers: Vec<_> = (0..20)
        .map(|name| {
            let op = json!({"op": "set", "value": "x"});
            json!({"kind": "register", "group": "many", "name": name.to_string(), "op": op})
        })
        .collect();
    let batch = json!({"updates": registers}).to_string();
    let results = pod.post("/v1/batch", JSON, &batch).await.json()["results"].clone();
    let times: Vec<_> = (0..20).map(|at| results[at]["timestamp"].as_i64()).collect();
    assert!(times.is_sorted_by(|one, next| one < next), "keys are taken in order: {times:?}");

    let item = json!({"kind": "counter", "group": "g", "name": "n", "op": {"op": "add"}});
    let batch = json!({"updates": vec![item; 100]}).to_string();
    assert_eq!(pod.post("/v1/batch", JSON, &batch).await.status, 200);
    let metrics = pod.get("/metrics").await.text;
    for line in [r#"updates_total{outcome="acked"} 127"#, r#"updates_total{outcome="refused"} 2"#] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}

#[tokio::test]
async fn keys_are_merged_into_one_value() {
    let pod = Pod::new();
    for (kind, ops) in [
        ("counter", [json!({"op": "add", "by": 5}), json!({"op": "add", "by": 7})]),
        (
            "distinct",
            [json!({"op": "add", "items": ["a", "b"]}), json!({"op": "add", "items": ["b", "c"]})],
        ),
        (
            "or_set",
            [json!({"op": "add", "items": ["a", "b"]}), json!({"op": "add", "items": ["b", "c"]})],
        ),
        ("histogram", [json!({"op": "record", "value": 1}), json!({"op": "record", "value": 3})]),
        ("topk", [json!({"op": "add", "item": "x", "by": 2}), json!({"op": "add", "item": "x"})]),
    ] {
        for (name, op) in ["d1", "d2"].iter().zip(&ops) {
            post(&pod, &format!("/v1/{kind}/month/{name}"), op).await;
        }
        let body = json!({"kind": kind, "group": "month", "names": ["d1", "d2", "d3"]});
        let merged = post(&pod, "/v1/merge", &body).await;
        assert_eq!(merged["absent"], json!(["d3"]), "{kind}");
        let (at, expected) = match kind {
            "counter" => ("", json!(12)),
            "distinct" => ("/estimate", json!(3.0)),
            "or_set" => ("/items", json!(["a", "b", "c"])),
            "histogram" => ("/sum", json!(4.0)),
            _ => ("/items/0/at_least", json!(3)),
        };
        let found = merged["value"].pointer(at).expect("a field");
        match (found.as_f64(), expected.as_f64()) {
            (Some(found), Some(expected)) => assert!((found - expected).abs() < 0.01, "{merged}"),
            _ => assert_eq!(*found, expected, "{merged}"),
        }
    }
    let none = json!({"kind": "counter", "group": "month", "names": ["d8", "d9"]});
    let answer = pod.post("/v1/merge", JSON, &none.to_string()).await;
    answer.problem(404, "key-absent");
    for names in [json!(["d1", "d1"]), json!(["d1", {"x": 1}])] {
        let body = json!({"kind": "counter", "group": "month", "names": names});
        let answer = pod.post("/v1/merge", JSON, &body.to_string()).await;
        answer.problem(400, "bad-body");
    }
}

#[tokio::test]
async fn audiences_have_set_algebra() {
    let pod = Pod::new();
    for (name, items) in [("mobile", 0..600), ("paying", 400..800), ("bots", 500..550)] {
        let items: Vec<i32> = items.collect();
        let path = format!("/v1/audience/site/{name}");
        post(&pod, &path, &json!({"op": "add", "items": items})).await;
    }
    for (expression, size) in [
        (json!("mobile"), 600.0),
        (json!({"and": ["mobile", "paying"]}), 200.0),
        (json!({"or": ["mobile", "paying", "absent"]}), 800.0),
        (json!({"and": ["mobile", {"or": ["paying", "bots"]}, {"not": "bots"}]}), 150.0),
    ] {
        let body = json!({"kind": "audience", "group": "site", "expression": expression});
        let merged = post(&pod, "/v1/merge", &body).await;
        let estimate = merged["value"]["estimate"].as_f64().expect("a number");
        assert!((estimate - size).abs() < 1e-6, "{expression}: {merged}");
    }
    for expression in [json!({"not": "a"}), json!({"and": []}), json!({"nand": ["a"]}), json!(7)] {
        let body = json!({"kind": "audience", "group": "site", "expression": expression});
        let answer = pod.post("/v1/merge", JSON, &body.to_string()).await;
        let detail = answer.detail(400, "bad-body");
        assert!(detail.contains("`expression`"), "{detail}");
    }
}

#[tokio::test]
async fn sketches_go_out_and_come_in_as_bytes() {
    use base64::Engine as _;
    let pod = Pod::new();
    for kind in ["distinct", "audience"] {
        let items: Vec<i32> = (0..900).collect();
        post(&pod, &format!("/v1/{kind}/site/ours"), &json!({"op": "add", "items": items})).await;
        let accept = [("accept", "application/octet-stream")];
        let answer = pod.send(request("GET", &format!("/v1/{kind}/site/ours"), &accept, "")).await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("content-type")),
            (200, "application/octet-stream")
        );
        let sketch = base64::engine::general_purpose::STANDARD.encode(&answer.bytes);
        post(&pod, &format!("/v1/{kind}/site/theirs"), &json!({"op": "merge", "sketch": sketch}))
            .await;
        let estimate = |name: &'static str| {
            let path = format!("/v1/{kind}/site/{name}");
            let pod = &pod;
            async move { value(pod, &path).await }
        };
        assert_eq!(estimate("ours").await, estimate("theirs").await, "{kind}");
        let other = if kind == "distinct" { "audience" } else { "distinct" };
        let wrong = json!({"op": "merge", "sketch": sketch}).to_string();
        let answer = pod.post(&format!("/v1/{other}/site/wrong"), JSON, &wrong).await;
        let detail = answer.detail(400, "bad-op");
        assert!(detail.contains("`sketch`"), "{detail}");
    }
    let path = "/v1/counter/site/home";
    post(&pod, path, &json!({"op": "add"})).await;
    for (accept, status) in
        [("application/octet-stream", 406), ("application/octet-stream, */*;q=0.1", 200)]
    {
        let answer = pod.send(request("GET", path, &[("accept", accept)], "")).await;
        assert_eq!(answer.status.as_u16(), status, "{accept}: {}", answer.text);
    }
}

#[tokio::test]
async fn every_kind_says_what_it_is() {
    let pod = Pod::new();
    let kinds = pod.get("/v1/kinds").await.json()["kinds"].clone();
    let kinds = kinds.as_array().expect("a list");
    assert_eq!(kinds.len(), Kind::ALL.len());
    for kind in kinds {
        for text in ["summary", "bound"] {
            assert!(kind[text].as_str().is_some_and(|text| text.ends_with('.')), "{kind}");
        }
        for flag in ["exact", "idempotent"] {
            assert!(kind[flag].is_boolean(), "{kind}");
        }
    }
    let topk = kinds.iter().find(|kind| kind["kind"] == "topk").expect("a kind");
    assert_eq!(topk["precision"], json!({"name": "k", "min": 1, "max": 4096, "default": 256}));
}
