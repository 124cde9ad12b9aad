//! The OpenAPI document says what the pod does.

use std::collections::HashSet;

use axum::http::StatusCode;
use orderfree::http::openapi;
use orderfree_core::crdt::Kind;

use crate::pod::{Pod, request};

#[tokio::test]
async fn the_document_has_exactly_the_methods_that_are_served() {
    let pod = Pod::new();
    let served = pod.get("/openapi.json").await.json();
    let document = serde_json::to_value(openapi()).expect("JSON");
    assert_eq!(served, document, "the program prints what the server serves");
    let paths = document["paths"].as_object().expect("paths");
    assert_eq!(paths.len(), 28);
    for (path, item) in paths {
        let address = path
            .replace("{kind}", "counter")
            .replace("{group}", "g")
            .replace("{name}", "n")
            .replace("{id}", "1-00000000000000000000000000000000")
            .replace("{slug}", "bad-op");
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            let answer = pod.send(request(method, &address, &[], "")).await;
            let is_documented = item.get(method.to_lowercase()).is_some();
            let is_served = answer.status != StatusCode::METHOD_NOT_ALLOWED;
            assert_eq!(is_documented, is_served, "{method} {path}: {}", answer.text);
            assert!(!answer.text.contains("/problems/unknown-route\""), "{path}");
            if is_documented {
                let responses = &item[method.to_lowercase()]["responses"];
                let status = answer.status.as_u16().to_string();
                assert!(responses.get(&status).is_some(), "{method} {path} answered {status}");
            }
        }
    }
}

#[tokio::test]
async fn every_documented_request_is_answered_as_documented() {
    let pod = Pod::new();
    let document = serde_json::to_value(openapi()).expect("JSON");
    // The keys that the examples of set operations use.
    pod.post("/v1/audience/site/mobile", "text/plain", "u1").await;
    let mut sent = 0;
    for (path, item) in document["paths"].as_object().expect("paths") {
        let content = item["post"]["requestBody"]["content"].as_object();
        let address = path.replace("{group}", "g").replace("{name}", "n");
        for (media, content) in content.into_iter().flatten() {
            let examples = content["examples"].as_object().into_iter().flatten();
            let examples = examples.map(|(name, example)| (name.as_str(), &example["value"]));
            let alone = content.get("example").map(|example| ("", example));
            for (name, example) in examples.chain(alone) {
                // The examples of ops belong to the kind in their name.
                let kind = Kind::from_name(name).unwrap_or(Kind::Counter);
                let address = address.replace("{kind}", kind.name());
                let text = example.as_str().map_or_else(|| example.to_string(), str::to_owned);
                let answer = pod.post(&address, media, &text).await;
                assert_eq!(answer.status, StatusCode::OK, "{address} {text}: {}", answer.text);
                assert!(!answer.text.contains("problem"), "{address} {text}: {}", answer.text);
                sent += 1;
            }
        }
    }
    assert_eq!(sent, 8 + Kind::ALL.len());
}

/// The refusal of an unknown parameter lists those that the endpoint reads.
#[tokio::test]
async fn every_query_parameter_is_described() {
    let pod = Pod::new();
    let document = openapi();
    let page = include_str!("../../../docs/reference/http.md");
    let mut with_parameters = 0;
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("methods") {
            let method = match method.as_str() {
                "get" => "GET",
                "post" => "POST",
                "delete" => "DELETE",
                other => panic!("{other} {path}"),
            };
            let described = operation["parameters"].as_array().into_iter().flatten();
            let all: Vec<_> =
                described.clone().map(|parameter| parameter["name"].as_str()).collect();
            let once: HashSet<_> = all.iter().collect();
            assert_eq!(once.len(), all.len(), "{method} {path}: {all:?}");
            let mut names = Vec::new();
            for parameter in described.filter(|parameter| parameter["in"] == "query") {
                let [name, text] =
                    ["name", "description"].map(|field| parameter[field].as_str().expect(field));
                assert!(page.contains(&format!("| `{name}` | {text}")), "{method} {path}: {name}");
                if let Some(most) = parameter["schema"]["maximum"].as_i64() {
                    let [least, default] =
                        ["minimum", "default"].map(|field| &parameter["schema"][field]);
                    let range = format!("{least} to {most} (default: {default})");
                    assert!(
                        text.contains(&range),
                        "{method} {path} {name}: {text:?} has no {range:?}"
                    );
                }
                names.push(name);
            }
            let address = path.replace("{kind}", "counter").replace("{slug}", "bad-op");
            let answer = pod.send(request(method, &format!("{address}?nonsense"), &[], "")).await;
            let read = answer.text.split_once("this endpoint has: ").map(|(_, names)| names);
            let read = read.and_then(|names| Some(names.split_once('.')?.0));
            let read: Vec<&str> = read.into_iter().flat_map(|names| names.split(", ")).collect();
            assert_eq!(names, read, "{method} {path}: {}", answer.text);
            with_parameters += usize::from(!names.is_empty());
        }
    }
    assert_eq!(with_parameters, 20);
}

#[test]
fn parameters_of_some_kinds_are_taken_by_every_read() {
    let document = openapi();
    let parameters = |method: &str, path: &str| -> Vec<String> {
        let all = document["paths"][path][method]["parameters"].as_array().expect("parameters");
        all.iter().map(|one| one["name"].as_str().expect("a name").to_owned()).collect()
    };
    for (method, path) in [
        ("get", "/v1/{kind}/{group}/{name}"),
        ("get", "/v1/{kind}/{group}"),
        ("post", "/v1/query"),
        ("post", "/v1/merge"),
    ] {
        let taken = parameters(method, path);
        for name in Kind::ALL.iter().flat_map(|kind| kind.about().parameters) {
            assert!(
                taken.iter().any(|taken| taken == name),
                "{method} {path} does not take {name}: make it a field of `ValueParams`"
            );
        }
    }
}
