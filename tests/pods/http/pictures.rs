//! Badges of keys, and pictures that count.

use axum::http::StatusCode;
use orderfree::policy::{Policies, Policy, Verb};

use crate::access::{Guarded, grant};
use crate::pod::{Pod, request};

const PIXELS: &str = "[[pixel]]\ngroup_prefix = 'site'\nper_second = 5\n";

#[tokio::test]
async fn a_badge_shows_the_value_of_its_key() {
    let pod = Pod::new();
    let badge = async |path: &str| pod.get(&format!("/v1/{path}/badge.svg")).await;
    assert!(badge("counter/site/home").await.text.contains("<title>home: 0</title>"));
    assert!(badge("distinct/site/users").await.text.contains("<title>users: none</title>"));
    pod.post("/v1/counter/site/home", "text/plain", "1234").await;
    let answer = badge("counter/site/home").await;
    assert_eq!(answer.header("content-type"), "image/svg+xml; charset=utf-8");
    assert_eq!(answer.header("cache-control"), "no-cache");
    assert!(answer.text.contains("<title>home: 1234</title>"), "{}", answer.text);
    let named = pod.get("/v1/counter/site/home/badge.svg?label=page%20%3Cviews%3E").await;
    assert!(named.text.contains("<title>page &lt;views&gt;: 1234</title>"), "{}", named.text);
    for item in ["a", "b", "c"] {
        pod.post("/v1/distinct/site/users", "text/plain", item).await;
    }
    let estimate = badge("distinct/site/users").await;
    assert!(estimate.text.contains("<title>users: 3</title>"), "{}", estimate.text);
    pod.post("/v1/gset/site/tags", "text/plain", "a").await;
    let detail = badge("gset/site/tags").await.detail(406, "not-acceptable");
    assert!(detail.contains("kind gset"), "{detail}");
    let long = format!("/v1/counter/site/home/badge.svg?label={}", "x".repeat(61));
    pod.get(&long).await.problem(400, "bad-query");
}

#[tokio::test]
async fn a_picture_counts_without_a_token_where_the_policy_allows_it() {
    let guarded = Guarded::new([("a", grant("", &[Verb::Read]))], PIXELS);
    let json = guarded.pod.get("/hit/site/home.json").await;
    assert_eq!((json.text.as_str(), json.header("cache-control")), ("{\"value\":1}", "no-store"));
    let gif = guarded.pod.get("/hit/site/home.gif").await;
    assert_eq!(gif.header("content-type"), "image/gif");
    assert!(gif.bytes.starts_with(b"GIF89a") && gif.bytes.ends_with(b";"), "{:?}", gif.bytes);
    let svg = guarded.pod.get("/hit/site/home.svg").await;
    assert!(svg.text.contains("<title>home: 3</title>"), "{}", svg.text);
    let value = guarded.ask("a", "GET", "/v1/counter/site/home", "").await.json()["value"].clone();
    assert_eq!(value, 3);
    guarded.pod.get("/hit/shop/home.json").await.problem(403, "forbidden");
    let head = guarded.pod.send(request("HEAD", "/hit/site/home.gif", &[], "")).await;
    assert_eq!(head.status, StatusCode::OK);
    let value = guarded.ask("a", "GET", "/v1/counter/site/home", "").await.json()["value"].clone();
    assert_eq!(value, 3, "HEAD counts nothing");
}

#[tokio::test]
async fn pictures_count_no_faster_than_the_policy_says() {
    let policy: Policy = PIXELS.parse().expect("a policy");
    let pod = Pod::with(Policies::from(policy));
    let mut counted = 0;
    let answer = loop {
        let answer = pod.get("/hit/site/a.b.gif").await;
        if answer.status != StatusCode::OK {
            break answer;
        }
        counted += 1;
        assert!(counted < 100, "no limit");
    };
    answer.problem(429, "too-fast");
    assert_eq!(pod.value("/v1/counter/site/a.b").await, Some(counted.to_string()));
}

#[tokio::test]
async fn without_a_policy_no_picture_counts() {
    let pod = Pod::new();
    pod.get("/hit/site/home.svg").await.problem(403, "forbidden");
    assert_eq!(pod.value("/v1/counter/site/home").await, None);
    for path in ["/hit/site/home", "/hit/site/home.png", "/hit/site/.svg"] {
        pod.get(path)
            .await
            .problem(400, if path.ends_with(".svg") { "bad-name" } else { "bad-address" });
    }
}

#[test]
fn a_pixel_table_that_makes_no_sense_is_refused() {
    for (text, says) in [
        ("[[pixel]]\ngroup_prefix = 'a'\nper_second = 0\n", "write 1 or more"),
        ("[[pixel]]\ngroup_prefix = 'a'\n", "per_second"),
        (
            "[[pixel]]\ngroup_prefix = 'a'\nper_second = 1\n[[pixel]]\ngroup_prefix = 'a'\nper_second = 2\n",
            "two pixel tables",
        ),
    ] {
        let error = text.parse::<Policy>().expect_err(text).to_string();
        assert!(error.contains(says), "{error}");
    }
}
