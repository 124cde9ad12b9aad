//! Idle keys are forgotten.

use std::time::Duration;

use axum::http::StatusCode;
use orderfree::policy::Policy;
use serde_json::{Value, json};

use crate::pod::Pod;

const IDLE: &str = "/v1/counter/session:a/old";
const KEPT: &str = "/v1/counter/site/old";

/// Longer than lifetime, cutoff and an hour.
const IDLE_TTL: Duration = Duration::from_secs(2 * 3600);

/// A mutator's lifetime.
const ROW_LIVES: Duration = MINUTE;

const MINUTE: Duration = Duration::from_secs(60);

fn pod() -> Pod {
    let policy = "[[lifecycle]]\ngroup_prefix = 'session:'\nidle_ttl = '2h'\n";
    Pod::with(policy.parse::<Policy>().expect("a policy").into())
}

async fn add(pod: &Pod, path: &str) {
    assert_eq!(pod.post(path, "text/plain", "5").await.status, StatusCode::OK);
}

async fn fold(pod: &Pod, path: &str, query: &str) -> Value {
    let fold = pod.post(&format!("{path}/fold{query}"), "", "").await;
    assert_eq!(fold.status, StatusCode::OK, "{}", fold.text);
    fold.json()
}

async fn names(pod: &Pod, group: &str) -> Vec<String> {
    let page = pod.get(&format!("/v1/counter/{group}")).await.json();
    let items = page["keys"].as_array().expect("a list");
    items.iter().map(|item| item["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test]
async fn an_idle_key_is_absent_everywhere_until_it_is_updated() {
    let pod = pod();
    for path in [IDLE, KEPT, "/v1/counter/session:a/used"] {
        add(&pod, path).await;
    }
    let idle_from = ROW_LIVES + IDLE_TTL;
    pod.advance(idle_from - MINUTE);
    add(&pod, "/v1/counter/session:a/used").await;
    assert_eq!(fold(&pod, IDLE, "?dry_run").await["forgotten"], false, "too early");
    pod.advance(idle_from + MINUTE);
    assert_eq!(pod.value(IDLE).await.as_deref(), Some("5"), "until a fold forgets it");
    let planned = fold(&pod, IDLE, "?dry_run").await;
    assert_eq!((&planned["forgotten"], &planned["written"]), (&json!(true), &json!(false)));
    assert_eq!(pod.value(IDLE).await.as_deref(), Some("5"), "a dry run writes nothing");

    let swept = pod.folder.sweep_once().await.expect("swept");
    assert_eq!((swept.forgotten, swept.postponed), (1, 0), "{swept:?}");
    assert_eq!(pod.value(KEPT).await.as_deref(), Some("5"), "no rule applies");
    assert_eq!(pod.get(IDLE).await.problem(404, "key-absent"), None);
    assert_eq!(names(&pod, "session:a").await, ["used"]);
    let shards = pod.get(&format!("{IDLE}/shards")).await.json();
    assert_eq!((&shards["tally"]["forgotten"], &shards["shards"]), (&json!(true), &json!([])));
    assert_eq!(fold(&pod, IDLE, "").await["forgotten"], false, "it is forgotten already");

    add(&pod, IDLE).await;
    assert_eq!(pod.value(IDLE).await.as_deref(), Some("5"), "it begins again");
    assert_eq!(names(&pod, "session:a").await, ["old", "used"]);
    assert_eq!(pod.get(&format!("{IDLE}/shards")).await.json()["tally"]["forgotten"], true);
    pod.advance(idle_from + 4 * MINUTE);
    assert_eq!(fold(&pod, IDLE, "").await["folded"], 1);
    assert_eq!(pod.get(&format!("{IDLE}/shards")).await.json()["tally"]["forgotten"], false);
    assert_eq!(pod.value(IDLE).await.as_deref(), Some("5"));
}

/// A scan of primary keys does not show how old a tally is.
#[tokio::test]
async fn an_idle_key_is_forgotten_and_its_old_grave_is_removed() {
    let pod = pod();
    for rows in 1..=2 {
        add(&pod, IDLE).await;
        pod.advance(2 * MINUTE * rows);
    }
    assert_eq!(pod.folder.sweep_once().await.expect("swept").folded, 1);
    let nominated = async |pod: &Pod| pod.folder.sweep_once().await.expect("swept").nominated;
    assert_eq!(nominated(&pod).await, 0, "its fence is known");
    pod.advance(IDLE_TTL + 6 * MINUTE);
    let swept = pod.folder.sweep_once().await.expect("swept");
    assert_eq!((swept.nominated, swept.forgotten), (1, 1));
    assert_eq!(pod.get(IDLE).await.problem(404, "key-absent"), None);
    let text = pod.get("/metrics").await.text;
    assert!(text.contains("orderfree_folds_total{end=\"forgotten\"} 1\n"), "{text}");
    assert_eq!(nominated(&pod).await, 0, "the grave was written just now");
    pod.advance(10 * 60 * MINUTE);
    assert_eq!(pod.folder.sweep_once().await.expect("swept").folded, 1, "it is written again");
    pod.advance(40 * 60 * MINUTE);
    assert_eq!(pod.get(&format!("{IDLE}/shards")).await.status, StatusCode::OK);
    assert_eq!(nominated(&pod).await, 1);
    assert_eq!(pod.get(&format!("{IDLE}/shards")).await.problem(404, "key-absent"), None);
    assert_eq!(nominated(&pod).await, 0);
}
