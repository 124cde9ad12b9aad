//! Repairs by operators.

use std::time::Duration;

use axum::http::StatusCode;
use orderfree::policy::{NewToken, Policies, Policy};
use serde_json::json;

use crate::pod::{Fault, Pod, request};

const KEY: &str = "/v1/counter/site/home";

/// The mutator of the only shard.
async fn mutator(pod: &Pod) -> String {
    let shards = pod.get(&format!("{KEY}/shards")).await.json();
    shards["shards"][0]["mutator_id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn an_unreadable_row_is_discarded_after_its_mutator_is_dead() {
    let pod = Pod::new();
    pod.post(KEY, "text/plain", "5").await;
    let id = mutator(&pod).await;
    let discard = format!("{KEY}/discard?mutator_id={id}");
    let post = |path: String| {
        let pod = &pod;
        async move { pod.send(request("POST", &path, &[], "")).await }
    };
    assert_eq!(post(discard.clone()).await.problem(409, "not-discardable"), None);
    assert!(post(discard.clone()).await.text.contains("it counts"), "it can be decoded");
    pod.set(Fault::Damaged);
    pod.get(KEY).await.problem(500, "undecodable");
    let alive = post(discard.clone()).await.detail(409, "not-discardable");
    assert!(alive.contains("can still write it"), "{alive}");
    // The lifetime is 60 s, and the cutoff is 30 s.
    pod.advance(Duration::from_secs(95));
    let dry = post(format!("{discard}&dry_run")).await;
    assert_eq!(dry.status, StatusCode::OK, "{}", dry.text);
    assert_eq!(dry.json()["dry_run"], true);
    assert!(!dry.json()["state"].as_str().expect("bytes").is_empty());
    pod.get(KEY).await.problem(500, "undecodable");
    let done = post(discard.clone()).await.json();
    assert_eq!((&done["dry_run"], &done["state"]), (&json!(false), &dry.json()["state"]));
    assert!(done["error"].as_str().expect("a reason").contains("undecodable"));
    post(discard).await.problem(404, "row-absent");
    pod.get(KEY).await.problem(404, "key-absent");
}

#[tokio::test]
async fn a_tally_is_never_discarded() {
    let pod = Pod::new();
    pod.post(KEY, "text/plain", "5").await;
    pod.advance(Duration::from_secs(95));
    assert_eq!(
        pod.send(request("POST", &format!("{KEY}/fold"), &[], "")).await.json()["written"],
        true
    );
    pod.set(Fault::Damaged);
    let tally = format!("{KEY}/discard?mutator_id=00000000-0000-0000-0000-000000000000");
    let detail = pod.send(request("POST", &tally, &[], "")).await.detail(409, "not-discardable");
    assert!(detail.contains("runbook"), "{detail}");
    pod.set(Fault::None);
    assert_eq!(pod.value(KEY).await.as_deref(), Some("5"));
}

#[tokio::test]
async fn a_removal_without_an_answer_is_unknown() {
    let pod = Pod::new();
    pod.post(KEY, "text/plain", "5").await;
    let id = mutator(&pod).await;
    pod.set(Fault::Damaged);
    pod.advance(Duration::from_secs(95));
    pod.set(Fault::Down);
    let discard = format!("{KEY}/discard?mutator_id={id}");
    pod.send(request("POST", &discard, &[], "")).await.problem(503, "store-unavailable");
    for bad in ["", "?mutator_id=7", "?mutator_id", "?dry_run"] {
        pod.send(request("POST", &format!("{KEY}/discard{bad}"), &[], ""))
            .await
            .problem(400, "bad-query");
    }
}

#[tokio::test]
async fn groups_are_listed_as_far_as_a_token_may_administer_them() {
    let (mine, other) = (NewToken::draw(), NewToken::draw());
    let policy: Policy = format!(
        "[[token]]\nname = \"mine\"\nsha256 = {:?}\n\
         [[token.grant]]\ngroup_prefix = \"\"\nverbs = [\"write\"]\n\
         [[token.grant]]\ngroup_prefix = \"shop:\"\nverbs = [\"admin\"]\n\
         [[token]]\nname = \"other\"\nsha256 = {:?}\n",
        mine.sha256, other.sha256
    )
    .parse()
    .expect("a policy");
    let pod = Pod::with(Policies::from(policy));
    let ask = |token: &NewToken, method: &'static str, path: String| {
        let (pod, bearer) = (&pod, format!("Bearer {}", token.token));
        async move { pod.send(request(method, &path, &[("authorization", &bearer)], "")).await }
    };
    for group in ["shop:a", "other", "shop:b", "shop"] {
        let answer = ask(&mine, "POST", format!("/v1/counter/{group}/n")).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    }
    let (mut found, mut next) = (Vec::new(), String::new());
    for _ in 0..10 {
        let page = ask(&mine, "GET", format!("/v1/counter?limit=1{next}")).await.json();
        found.extend(page["groups"].as_array().expect("groups").clone());
        match page["next"].as_str() {
            Some(cursor) => next = format!("&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(found, [json!("shop:a"), json!("shop:b")]);
    assert_eq!(ask(&mine, "GET", "/v1/sum".to_owned()).await.json()["groups"], json!([]));
    ask(&other, "GET", "/v1/counter".to_owned()).await.problem(403, "forbidden");
    ask(&mine, "GET", "/v1/nothing".to_owned()).await.problem(404, "unknown-kind");
    for bad in ["limit=0", "limit=10001", "limit=x", "cursor=", "cursor=%00", "page=1"] {
        ask(&mine, "GET", format!("/v1/counter?{bad}")).await.problem(400, "bad-query");
    }
}
