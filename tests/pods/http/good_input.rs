//! Valid requests and their answers.

use std::io::{Read, Write};
use std::pin::pin;
use std::time::Duration;

use axum::body::Body;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::json;

use crate::pod::{Fault, Pod, request};

const KEY: &str = "/v1/counter/site/home";
const JSON: &str = "application/json";
const NDJSON: &str = "application/x-ndjson";
const TEXT: &str = "text/plain";
const FORM: &str = "application/x-www-form-urlencoded";

#[tokio::test]
async fn every_body_that_is_an_op_counts() {
    let pod = Pod::new();
    let mut expected = 0;
    for (media, body, by) in [
        ("", "", 1),
        (FORM, "", 1),
        (TEXT, "5", 5),
        (TEXT, "-7\n", -7),
        ("text/plain; charset=utf-8", "+2", 2),
        (JSON, r#"{"op":"add"}"#, 1),
        ("Application/JSON;charset=utf-8", r#"{"op":"add","by":-3}"#, -3),
        (JSON, r#"{"op":"add","by":"4"}"#, 4),
        (JSON, r#"{"ops":[{"op":"add","by":10},{"op":"add"}]}"#, 11),
    ] {
        let headers = [("content-type", media)];
        let headers = if media.is_empty() { &[][..] } else { &headers[..] };
        let answer = pod.send(request("POST", KEY, headers, body)).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(
            answer.text,
            r#"{"outcome":"acked","kind":"counter","group":"site","name":"home"}"#
        );
        expected += by;
        assert_eq!(pod.value(KEY).await, Some(expected.to_string()), "{body}");
    }
}

#[tokio::test]
async fn an_update_can_wait_for_less_or_return_more() {
    let pod = Pod::new();
    let answer = pod.post(&format!("{KEY}?ack=memory"), TEXT, "5").await;
    assert_eq!((answer.status.as_u16(), &answer.json()["outcome"]), (202, &json!("accepted")));
    let answer = pod.post(&format!("{KEY}?return=value&numbers=string"), TEXT, "5").await;
    let answer = answer.json();
    assert_eq!((&answer["outcome"], &answer["value"]), (&json!("acked"), &json!("10")));
    assert_eq!(answer["exact"], true);
    let headers = [("accept", TEXT), ("content-type", TEXT)];
    for (query, status, says) in
        [("", 200, "acked\n"), ("?ack=memory", 202, "accepted\n"), ("?return=value", 200, "25\n")]
    {
        let answer = pod.send(request("POST", &format!("{KEY}{query}"), &headers, "5")).await;
        assert_eq!((answer.status.as_u16(), answer.text.as_str()), (status, says));
    }
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_nothing() {
    let pod = Pod::new();
    {
        let mut update = pin!(pod.post(KEY, TEXT, "5"));
        // Nothing before the wait for the store can block, so one poll is enough for the update to be accepted.
        assert!(futures::poll!(&mut update).is_pending(), "the store has not answered yet");
    }
    for _ in 0..200 {
        if pod.value(KEY).await.as_deref() == Some("5") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the update was lost");
}

#[tokio::test]
async fn values_beyond_64_bits_are_exact() {
    let pod = Pod::new();
    let body = format!(r#"{{"ops":[{0},{0},{0}]}}"#, r#"{"op":"add","by":9223372036854775807}"#);
    assert_eq!(pod.post(KEY, JSON, &body).await.status, 200);
    let answer = pod.get(KEY).await;
    assert!(answer.text.contains(r#""value":27670116110564327421,"#), "{}", answer.text);
    let answer = pod.get(&format!("{KEY}?numbers=string")).await;
    assert_eq!(answer.json()["value"], "27670116110564327421");
    assert_eq!(pod.value(KEY).await.as_deref(), Some("27670116110564327421"));
}

#[tokio::test]
async fn a_read_says_where_its_value_comes_from() {
    let pod = Pod::new();
    assert_eq!(pod.post(KEY, TEXT, "5").await.status, 200);
    for level in ["one", "local_one", "local_quorum", "quorum", "each_quorum", "all"] {
        let answer = pod.get(&format!("{KEY}?consistency={level}")).await.json();
        assert_eq!(answer["value"], 5);
        assert_eq!(answer["consistency"], level);
        assert_eq!(answer["shards"], 1);
        assert_eq!(answer["folded_through"], json!(null));
        assert!(answer["as_of"].as_str().is_some_and(|text| text.ends_with('Z')), "{answer}");
        assert!(answer.get("absent").is_none());
    }
    let absent = pod.get("/v1/counter/site/nowhere?default=-3&consistency=all").await.json();
    assert_eq!((&absent["value"], &absent["absent"]), (&json!(-3), &json!(true)));
    assert_eq!((&absent["shards"], &absent["consistency"]), (&json!(0), &json!("all")));
    let head = pod.send(request("HEAD", KEY, &[], "")).await;
    assert_eq!((head.status.as_u16(), head.text.as_str()), (200, ""));
}

#[tokio::test]
async fn with_several_data_centres_a_read_says_whose_updates_it_sees() {
    let pod = Pod::new();
    assert_eq!(pod.post(KEY, TEXT, "5").await.status, 200);
    pod.set(Fault::Regions);
    for path in [KEY.to_owned(), format!("{KEY}-absent?default=0")] {
        let at = async |level: &str| {
            let joint = if path.contains('?') { '&' } else { '?' };
            pod.get(&format!("{path}{joint}consistency={level}")).await.json()
        };
        let answer = at("local_quorum").await;
        assert_eq!((&answer["exact"], &answer["datacenter"]), (&json!(false), &json!("east")));
        // Four of six replicas can be without a quorum of the own data centre.
        for level in ["one", "local_one", "quorum"] {
            let answer = at(level).await;
            assert_eq!(
                (&answer["exact"], answer.get("datacenter")),
                (&json!(false), None),
                "{level}"
            );
        }
        for level in ["each_quorum", "all"] {
            let answer = at(level).await;
            assert_eq!((&answer["exact"], answer.get("datacenter")), (&json!(true), None));
        }
    }
    let body = json!({"kind": "counter", "group": "site", "names": ["home"]}).to_string();
    let merged = pod.post("/v1/merge", JSON, &body).await.json();
    assert_eq!((&merged["exact"], &merged["datacenter"]), (&json!(false), &json!("east")));
    let absent = pod.get(&format!("{KEY}-absent")).await;
    assert_eq!(absent.status, 404);
    assert!(absent.text.contains("each_quorum"), "{}", absent.text);
    let absent = pod.get(&format!("{KEY}-absent?consistency=each_quorum")).await;
    assert!(!absent.text.contains("each_quorum"), "{}", absent.text);
    let absent = pod.get(&format!("{KEY}-absent?consistency=one")).await;
    assert!(absent.text.contains("at one can miss updates"), "{}", absent.text);
    let of_absent = json!({"kind": "counter", "group": "site", "names": ["absent"]}).to_string();
    let absent = pod.post("/v1/merge", JSON, &of_absent).await;
    assert_eq!(absent.status, 404);
    assert!(absent.text.contains("in data centre east counted"), "{}", absent.text);
    let rows = pod.get(&format!("{KEY}-absent/shards")).await;
    let says = "counter/site/home-absent does not exist: this pod found no row of it. A read at local_quorum sees \
                what pods in data centre east counted; one at each_quorum sees all.";
    assert_eq!(rows.detail(404, "key-absent"), says);
    let body =
        json!({"keys": [{"kind": "counter", "group": "site", "name": "absent"}]}).to_string();
    let results = pod.post("/v1/query", JSON, &body).await.json();
    let known = ["absent", "exact", "datacenter"].map(|field| results["results"][0][field].clone());
    assert_eq!(known, [json!(true), json!(false), json!("east")]);
    let of_one = body.replacen('{', r#"{"consistency":"one","#, 1);
    let result = pod.post("/v1/query", JSON, &of_one).await.json()["results"][0].clone();
    assert_eq!((&result["exact"], result.get("datacenter")), (&json!(false), None));
}

#[tokio::test]
async fn in_one_data_centre_a_quorum_is_exact_and_one_replica_is_not() {
    let pod = Pod::new();
    assert_eq!(pod.post(KEY, TEXT, "5").await.status, 200);
    pod.set(Fault::OneRegion);
    for (level, is_exact) in [
        ("one", false),
        ("local_one", false),
        ("local_quorum", true),
        ("quorum", true),
        ("all", true),
    ] {
        let answer = pod.get(&format!("{KEY}?consistency={level}")).await.json();
        let seen = (&answer["exact"], answer.get("datacenter"));
        assert_eq!(seen, (&json!(is_exact), None), "{level}");
    }
}

#[tokio::test]
async fn entity_tags_change_with_what_is_shown() {
    let pod = Pod::new();
    assert_eq!(pod.post(KEY, TEXT, "5").await.status, 200);
    for (accept, query) in [(JSON, ""), (TEXT, ""), (JSON, "?numbers=string")] {
        let path = format!("{KEY}{query}");
        let tag = pod.send(request("GET", &path, &[("accept", accept)], "")).await;
        let tag = tag.header("etag").to_owned();
        let headers = [("accept", accept), ("if-none-match", tag.as_str())];
        let same = pod.send(request("GET", &path, &headers, "")).await;
        assert_eq!((same.status.as_u16(), same.text.as_str()), (304, ""));
        assert_eq!(same.header("etag"), tag);
        assert_eq!(pod.post(KEY, TEXT, "1").await.status, 200);
        assert_eq!(pod.send(request("GET", &path, &headers, "")).await.status, 200);
    }
    let json = pod.get(KEY).await;
    let text = pod.send(request("GET", KEY, &[("accept", TEXT)], "")).await;
    assert_ne!(json.header("etag"), text.header("etag"));
    // The same value has other bytes when it is compressed.
    assert!(json.header("etag").starts_with("W/") && text.header("etag").starts_with("W/"));
}

#[tokio::test]
async fn a_client_can_accept_an_old_value() {
    let pod = Pod::new();
    let (an_hour, a_moment) = (format!("{KEY}?max_staleness=1h"), "?max_staleness=1ms");
    assert_eq!(pod.get(&an_hour).await.status, 404);
    assert_eq!(pod.post(KEY, TEXT, "5").await.status, 200);
    assert_eq!(pod.get(&an_hour).await.status, 404, "the key was not read since");
    assert_eq!(pod.value(KEY).await.as_deref(), Some("5"));
    let before = pod.get(KEY).await.json();
    assert_eq!(pod.post(KEY, TEXT, "2").await.status, 200);
    let old = pod.get(&an_hour).await.json();
    assert_eq!((&old["value"], &old["as_of"]), (&json!(5), &before["as_of"]));
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(pod.value(&format!("{KEY}{a_moment}")).await.as_deref(), Some("7"));
    assert_eq!(pod.value(&an_hour).await.as_deref(), Some("7"), "the last one is kept");
    let metrics = pod.get("/metrics").await.text;
    for line in [r#"reads_total{from="store"} 4"#, r#"reads_total{from="recent"} 3"#] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}

#[tokio::test]
async fn names_may_hold_anything_but_control_characters() {
    let pod = Pod::new();
    for (path, name) in [
        ("/v1/counter/a%2Fb/c%2Fd", "c/d"),
        ("/v1/counter/a%2Fb/100%25", "100%"),
        ("/v1/counter/a%2Fb/%E2%98%83%20%3F", "☃ ?"),
        ("/v1/counter/a%2Fb/shards", "shards"),
        ("/v1/counter/a%2Fb/a+b", "a+b"),
        ("/v1/counter/a%2Fb/%2E%2Ea", "..a"),
    ] {
        let answer = pod.post(path, TEXT, "5").await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(
            (&answer.json()["group"], &answer.json()["name"]),
            (&json!("a/b"), &json!(name))
        );
        assert_eq!(pod.get(path).await.json()["value"], 5);
    }
    assert_eq!(pod.value("/v1/counter/a/b").await, None);
}

#[tokio::test]
async fn a_group_is_read_in_pages() {
    let pod = Pod::new();
    for (index, name) in ["a", "b1", "b2", "b3", "c"].into_iter().enumerate() {
        let answer = pod.post(&format!("/v1/counter/g/{name}"), TEXT, &index.to_string()).await;
        assert_eq!(answer.status, 200);
    }
    let names = |page: &serde_json::Value| -> Vec<String> {
        let keys = page["keys"].as_array().expect("keys").iter();
        keys.map(|key| key["name"].as_str().expect("name").to_owned()).collect()
    };
    let page = pod.get("/v1/counter/g").await.json();
    assert_eq!(names(&page), ["a", "b1", "b2", "b3", "c"]);
    assert_eq!((&page["next"], &page["keys"][4]["value"]), (&json!(null), &json!(4)));
    let page = pod.get("/v1/counter/g?prefix=b&from=b2").await.json();
    assert_eq!(names(&page), ["b2", "b3"]);
    assert_eq!(names(&pod.get("/v1/counter/g?to=b2").await.json()), ["a", "b1"]);
    let mut path = "/v1/counter/g?limit=2&prefix=b".to_owned();
    let first = pod.get(&path).await;
    assert_eq!(names(&first.json()), ["b1", "b2"]);
    let link = first.header("link").trim_start_matches('<').split('>').next().expect("a link");
    path = format!("/v1/counter/g{link}");
    let second = pod.get(&path).await;
    assert_eq!(names(&second.json()), ["b3"]);
    assert_eq!(second.json()["next"], json!(null));
    assert!(second.headers.get("link").is_none());
    let lines = pod.send(request("GET", "/v1/counter/g?limit=2", &[("accept", NDJSON)], "")).await;
    assert_eq!(lines.header("content-type"), NDJSON);
    let lines: Vec<&str> = lines.text.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[1].starts_with(r#"{"kind":"counter","group":"g","name":"b1","value":1,"#));
    assert_eq!(names(&pod.get("/v1/counter/empty").await.json()), [""; 0]);
}

#[tokio::test]
async fn each_item_of_a_batch_has_its_own_outcome() {
    let pod = Pod::new();
    // As text, because `json!` has no field twice and no number beyond a double.
    let update = |rest: &str| format!(r#"{{"kind":"counter","group":"g",{rest}}}"#);
    let updates = [
        update(r#""name":"a","op":{"op":"add","by":5}"#),
        update(r#""name":"a","ops":[{"op":"add"},{"op":"add"}]"#),
        update(r#""name":"b","ops":[{"op":"add"},{"op":"sub"}]"#),
        update(r#""name":"b","op":{"op":"add","by":1,"by":2}"#),
        update(r#""name":"b","op":{"op":"add","by":1e400}"#),
        update(r#""name":"b","op":{"op":"add"}"#).replace("counter", "gauge"),
        update(r#""name":"","op":{"op":"add"}"#),
        update(r#""name":"b""#),
        update(r#""name":"b","op":{"op":"add"},"ops":[{"op":"add"}]"#),
        update(r#""name":"b","name":"b","op":{"op":"add"}"#),
        update(r#""name":7,"op":{"op":"add"}"#),
        r#"["counter","g","b",{"op":"add"}]"#.to_owned(),
        "\"nonsense\"".to_owned(),
    ];
    let body = format!(r#"{{"updates":[{}]}}"#, updates.join(","));
    let answer = pod.post("/v1/batch", JSON, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let results = answer.json()["results"].clone();
    let results = results.as_array().expect("results");
    assert_eq!(results.len(), updates.len());
    for result in &results[..2] {
        assert_eq!(
            result,
            &json!({"outcome": "acked", "kind": "counter", "group": "g", "name": "a"})
        );
    }
    let slugs =
        [&["bad-op", "bad-op", "bad-body", "unknown-kind", "bad-name"][..], &["bad-body"; 6]]
            .concat();
    assert_eq!(results[2..].len(), slugs.len());
    for (result, slug) in results[2..].iter().zip(slugs) {
        assert_eq!(result["outcome"], "refused");
        assert_eq!(result["problem"]["outcome"], "refused");
        assert_eq!(result["problem"]["type"], format!("/problems/{slug}"), "{result}");
    }
    assert_eq!(pod.value("/v1/counter/g/a").await.as_deref(), Some("7"));
    assert_eq!(pod.value("/v1/counter/g/b").await, None, "not half of an item");
    pod.set(Fault::Silent);
    let body = json!({"updates": [
        {"kind": "counter", "group": "g", "name": "a", "op": {"op": "add"}}]});
    let answer = pod.post("/v1/batch", JSON, &body.to_string()).await.json();
    assert_eq!(answer["results"][0]["outcome"], "unknown");
    assert_eq!(answer["results"][0]["problem"]["status"], 504);
}

#[tokio::test]
async fn a_batch_takes_at_most_a_thousand_updates() {
    let pod = Pod::new();
    let item = json!({"kind": "counter", "group": "g", "name": "a", "op": {"op": "add"}});
    let body = |count| json!({"updates": vec![item.clone(); count]}).to_string();
    let answer = pod.post("/v1/batch", JSON, &body(1001)).await;
    assert_eq!(answer.problem(400, "bad-body").as_deref(), Some("refused"));
    assert_eq!(pod.value("/v1/counter/g/a").await, None);
    let answer = pod.post("/v1/batch", JSON, &body(1000)).await.json();
    assert_eq!(answer["results"].as_array().expect("results").len(), 1000);
    assert_eq!(pod.value("/v1/counter/g/a").await.as_deref(), Some("1000"));
}

fn line(name: &str, by: i64) -> String {
    let op = json!({"op": "add", "by": by});
    format!("{}\n", json!({"kind": "counter", "group": "g", "name": name, "op": op}))
}

fn unpack(bytes: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut all).expect("gzip");
    all
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).expect("memory");
    encoder.finish().expect("memory")
}

#[tokio::test]
async fn large_answers_to_reads_are_compressed_on_request() {
    let pod = Pod::new();
    let names: Vec<String> = (100..400).map(|name| format!("n{name}")).collect();
    let key = |name: &String| json!({"kind": "counter", "group": "g", "name": name});
    let with_op = |name: &String| {
        let mut update = key(name);
        update["op"] = json!({"op": "add", "by": 7});
        update
    };
    let updates: Vec<_> = names.iter().map(with_op).collect();
    let updates = json!({"updates": updates}).to_string();
    let keys: Vec<_> = names.iter().map(key).collect();
    let items: Vec<String> = (0..1_000).map(|item| format!("item-{item:0>200}")).collect();
    let add = json!({"op": "add", "items": items}).to_string();
    for path in ["/v1/gset/g/a", "/v1/audience/g/a"] {
        assert_eq!(pod.post(path, JSON, &add).await.status, 200);
    }
    let ask = async |method, path, accept, body: &str, encoding| {
        let headers = [("accept", accept), ("content-type", JSON), ("accept-encoding", encoding)];
        pod.send(request(method, path, &headers, body.to_owned())).await
    };
    // Reads differ in their times.
    let timeless = |text: &[u8]| {
        let text = String::from_utf8(text.to_vec()).expect("UTF-8");
        let times =
            text.split("\"as_of\":\"").map(|part| part.split_once('Z').map_or(part, |at| at.1));
        times.collect::<String>()
    };
    let accepting = "br, gzip";
    for (method, path, accept, body) in [
        ("GET", "/v1/counter/g", JSON, ""),
        ("GET", "/v1/counter/g", NDJSON, ""),
        ("GET", "/v1/gset/g/a", JSON, ""),
        ("GET", "/v1/gset/g/a", TEXT, ""),
        ("POST", "/v1/query", JSON, &json!({"keys": keys}).to_string()),
        (
            "POST",
            "/v1/merge",
            JSON,
            &json!({"kind": "gset", "group": "g", "names": ["a"]}).to_string(),
        ),
    ] {
        if path == "/v1/counter/g" && accept == JSON {
            let answer = ask("POST", "/v1/batch", JSON, &updates, accepting).await;
            assert!(answer.text.len() > 1024, "{}", answer.text);
            assert!(answer.headers.get("content-encoding").is_none(), "the answer to a change");
        }
        let plain = ask(method, path, accept, body, "identity").await;
        assert!(plain.headers.get("content-encoding").is_none(), "{path}");
        let packed = ask(method, path, accept, body, accepting).await;
        assert_eq!((packed.status.as_u16(), packed.header("content-encoding")), (200, "gzip"));
        assert!(packed.bytes.len() < plain.bytes.len() / 4, "{path}: {}", packed.bytes.len());
        assert_eq!(timeless(&unpack(&packed.bytes)), timeless(&plain.bytes), "{path}");
        for answer in [&plain, &packed] {
            let mut vary = answer.headers.get_all("vary").iter();
            assert!(vary.any(|vary| vary == "accept-encoding"), "{path}");
        }
        assert_eq!(packed.headers.get("etag"), plain.headers.get("etag"));
        if method == "GET" {
            let head = ask("HEAD", path, accept, body, accepting).await;
            assert_eq!((head.header("content-encoding"), head.text.as_str()), ("gzip", ""));
        }
    }
    let tag = ask("GET", "/v1/gset/g/a", JSON, "", accepting).await.header("etag").to_owned();
    let headers = [("if-none-match", tag.as_str()), ("accept-encoding", accepting)];
    assert_eq!(pod.send(request("GET", "/v1/gset/g/a", &headers, "")).await.status, 304);
    for (path, accept) in
        [("/v1/counter/g/n100", JSON), ("/v1/audience/g/a", "application/octet-stream")]
    {
        let answer = ask("GET", path, accept, "", accepting).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert!(answer.headers.get("content-encoding").is_none(), "{path}: small or dense");
    }
}

#[tokio::test]
async fn a_stream_is_answered_by_a_summary() {
    let pod = Pod::new();
    let mut text = String::new();
    for index in 0..2_500 {
        text += &line(&format!("k{}", index % 3), 1);
    }
    text += "\nnonsense\n";
    text += &line("k0", 1).replace("add", "sub");
    text += line("k0", 1).trim_end();
    let expected = json!({"lines": 2503, "acked": 2501, "accepted": 0, "refused": 2, "unknown": 0});
    let parts = [(false, text.clone().into_bytes()), (true, gzip(&text))];
    for (round, (is_gzip, bytes)) in parts.into_iter().enumerate() {
        let mut headers = vec![("content-type", NDJSON)];
        if is_gzip {
            headers.push(("content-encoding", "gzip"));
        }
        let chunks: Vec<Result<Vec<u8>, std::io::Error>> =
            bytes.chunks(1000).map(|chunk| Ok(chunk.to_vec())).collect();
        let body = Body::from_stream(futures::stream::iter(chunks));
        let answer = pod.send(request("POST", "/v1/batch", &headers, body)).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let mut answer = answer.json();
        let errors = answer.as_object_mut().expect("object").remove("errors").expect("errors");
        assert_eq!(answer, expected);
        let detail = errors[0]["detail"].clone();
        let first = json!({"first": 2502, "last": 2502, "outcome": "refused",
            "type": "/problems/bad-body", "title": "Malformed body", "detail": detail});
        assert_eq!(errors[0], first);
        assert_eq!((&errors[1]["first"], &errors[1]["last"]), (&json!(2503), &json!(2503)));
        assert_eq!(errors[1]["title"], "Not an op of this kind");
        let value = |name| format!("/v1/counter/g/{name}");
        let times = round + 1;
        assert_eq!(pod.value(&value("k0")).await, Some((835 * times).to_string()));
        assert_eq!(pod.value(&value("k1")).await, Some((833 * times).to_string()));
    }
}

#[tokio::test]
async fn a_stream_that_ends_early_says_what_was_counted() {
    let pod = Pod::new();
    let torn = |first: String| {
        let chunks = [Ok(first), Err(std::io::Error::other("torn"))];
        Body::from_stream(futures::stream::iter(chunks))
    };
    let headers = [("content-type", NDJSON)];
    let body = torn(line("a", 5) + line("a", 7).trim_end());
    let answer = pod.send(request("POST", "/v1/batch", &headers, body)).await;
    assert_eq!(answer.problem(400, "bad-body").as_deref(), Some("unknown"));
    assert_eq!(answer.json()["summary"]["acked"], 1);
    assert!(answer.text.contains("line 1"), "{}", answer.text);
    assert_eq!(pod.value("/v1/counter/g/a").await.as_deref(), Some("5"));
    let body = torn("{\"kind\"".to_owned());
    let answer = pod.send(request("POST", "/v1/batch", &headers, body)).await;
    assert_eq!(answer.problem(400, "bad-body").as_deref(), Some("refused"));
    let damaged = gzip(&line("a", 1));
    let headers = [("content-type", NDJSON), ("content-encoding", "gzip")];
    let body = damaged[..damaged.len() - 9].to_vec();
    let answer = pod.send(request("POST", "/v1/batch", &headers, body)).await;
    assert_eq!(answer.status, 400, "{}", answer.text);
}

#[tokio::test]
async fn a_stream_is_bounded_after_decompression() {
    let pod = Pod::new();
    let blank = " ".repeat(1023) + "\n";
    let text = blank.repeat(64 * 1024 + 1);
    let headers = [("content-type", NDJSON), ("content-encoding", "gzip")];
    let answer = pod.send(request("POST", "/v1/batch", &headers, gzip(&text))).await;
    assert_eq!(answer.problem(413, "body-too-large").as_deref(), Some("refused"));
}

#[tokio::test]
async fn a_query_keeps_its_order_and_tells_absent_from_zero() {
    let pod = Pod::new();
    assert_eq!(pod.post(KEY, TEXT, "5").await.status, 200);
    assert_eq!(pod.post("/v1/counter/site/zero", TEXT, "0").await.status, 200);
    let body = json!({"consistency": "all", "keys": [
        {"kind": "counter", "group": "site", "name": "zero"},
        {"kind": "counter", "group": "site", "name": "nowhere"},
        {"kind": "counter", "group": "site", "name": "home"},
        {"kind": "gauge", "group": "site", "name": "home"},
    ]});
    let answer = pod.post("/v1/query?numbers=string", JSON, &body.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let results = answer.json()["results"].clone();
    assert_eq!(results[0]["value"], "0");
    assert_eq!(
        results[1],
        json!({"kind": "counter", "group": "site", "name": "nowhere", "absent": true, "exact": true})
    );
    assert_eq!((&results[2]["value"], &results[2]["consistency"]), (&json!("5"), &json!("all")));
    assert_eq!(results[3]["problem"]["type"], "/problems/unknown-kind");
    pod.set(Fault::Down);
    let results = pod.post("/v1/query", JSON, &body.to_string()).await.json()["results"].clone();
    assert_eq!(results[0]["problem"]["status"], 503);
    assert_eq!(results[0]["name"], "zero");
}
