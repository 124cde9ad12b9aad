//! Routes for operators and probes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::StatusCode;
use orderfree::http::ProblemType;
use orderfree::runtime::tasks::Tasks;
use serde_json::json;

use crate::pod::{Fault, Pod, request};

const KEY: &str = "/v1/counter/site/home";

#[tokio::test]
async fn probes_follow_the_pod_and_not_the_store() {
    let pod = Pod::new();
    assert_eq!(pod.get("/livez").await.text, r#"{"status":"alive"}"#);
    assert_eq!(pod.get("/readyz").await.text, r#"{"status":"ready"}"#);
    let verbose = pod.get("/readyz?verbose").await.json();
    let all = json!({
        "clock": "ok", "quorum": "ok", "resets": "ok", "serving": "ok", "started": "ok",
    });
    assert_eq!(verbose["checks"], all);
    pod.health.set_draining();
    let answer = pod.get("/readyz").await;
    assert_eq!(answer.problem(503, "not-ready"), None);
    assert!(answer.text.contains("shutting down"), "{}", answer.text);
    assert_eq!(pod.get("/livez").await.status, StatusCode::OK);
}

#[tokio::test]
async fn every_answer_has_an_id_and_a_time() {
    let pod = Pod::new();
    for path in ["/livez", "/nonsense", KEY] {
        let answer = pod.send(request("GET", path, &[("x-request-id", "id-1")], "")).await;
        assert_eq!(answer.header("x-request-id"), "id-1");
        assert!(answer.header("server-timing").starts_with("total;dur="));
        let answer = pod.send(request("GET", path, &[("x-request-id", "a b")], "")).await;
        assert_eq!(answer.header("x-request-id").len(), 36, "a new one");
    }
}

#[tokio::test]
async fn requests_are_counted_by_template_and_never_by_key() {
    let pod = Pod::new();
    pod.get(KEY).await;
    pod.get("/nonsense").await;
    pod.send(request("BREW", KEY, &[], "")).await;
    let metrics = pod.get("/metrics").await;
    assert!(metrics.header("content-type").starts_with("application/openmetrics-text"));
    let text = &metrics.text;
    for line in [
        r#"route="/v1/{kind}/{group}/{name}",method="GET",status="404""#,
        r#"route="/v1/{kind}/{group}/{name}",method="OTHER",status="405""#,
        r#"route="unmatched",method="GET",status="404""#,
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert!(!text.contains("home") && !text.contains("nonsense"));
}

/// The alert for a store that takes no writes must not fire on clients' mistakes.
#[tokio::test]
async fn refusals_inside_an_answer_of_200_are_counted_by_their_reason() {
    let pod = Pod::new();
    let add = |items: &[String]| {
        let op = json!({"op": "add", "items": items});
        json!({"kind": "gset", "group": "g", "name": "n", "op": op})
    };
    let send = async |updates: serde_json::Value| {
        let batch = json!({"updates": updates}).to_string();
        let answer = pod.post("/v1/batch", "application/json", &batch).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    };
    // No state can take that many.
    send(json!([add(&(0..270).map(|index| format!("{index:0>1000}")).collect::<Vec<_>>())])).await;
    for (fault, count) in [(Fault::Down, 2), (Fault::Unmeasured, 3)] {
        pod.set(fault);
        send((0..count).map(|_| add(&["a".to_owned()])).collect()).await;
    }
    let text = pod.get("/metrics").await.text;
    for (reason, count) in [("op", 1), ("store", 2), ("clock", 3), ("limit", 0), ("unsent", 0)] {
        let says = format!("orderfree_refused_total{{reason=\"{reason}\"}} {count}\n");
        assert!(text.contains(&says), "{says} in {text}");
    }
    assert!(text.contains("orderfree_updates_total{outcome=\"refused\"} 6\n"), "{text}");
}

#[tokio::test]
async fn only_reading_the_metrics_asks_for_the_clock_offset() {
    let pod = Pod::new();
    assert_eq!(pod.post(KEY, "text/plain", "5").await.status, StatusCode::OK);
    assert_eq!(pod.get(KEY).await.status, StatusCode::OK);
    assert_eq!(pod.offsets_asked.load(Ordering::Relaxed), 0);
    assert!(pod.get("/metrics").await.text.contains("orderfree_clock_offset_us"));
    assert_eq!(pod.offsets_asked.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn shards_explain_a_value_and_a_fold_reports() {
    let pod = Pod::new();
    assert_eq!(pod.post(KEY, "text/plain", "5").await.status, StatusCode::OK);
    let answer = pod.get(&format!("{KEY}/shards")).await.json();
    assert_eq!((&answer["name"], &answer["tally"]), (&json!("home"), &json!(null)));
    let shard = &answer["shards"][0];
    assert_eq!((&shard["value"], &shard["phase"]), (&json!(5), &json!("live")));
    assert_eq!(shard["in_tally"], false);
    assert!(shard["expires_at"].as_str() > answer["now"].as_str(), "{answer}");
    for (query, dry_run) in [("?dry_run=true", true), ("?dry_run", true), ("", false)] {
        let fold = pod.post(&format!("{KEY}/fold{query}"), "", "").await;
        assert_eq!(fold.status, StatusCode::OK, "{}", fold.text);
        let fold = fold.json();
        assert_eq!((&fold["dry_run"], &fold["written"]), (&json!(dry_run), &json!(false)));
        assert_eq!((&fold["folded"], &fold["kept"]), (&json!(0), &json!(1)));
    }
    let answer = pod.post(&format!("{KEY}/fold?dry_run=perhaps"), "", "").await;
    assert_eq!(answer.problem(400, "bad-query"), None);
}

#[tokio::test]
async fn a_fold_takes_what_fits_into_a_tally_and_says_that_it_is_full() {
    let pod = Pod::new();
    let path = "/v1/gset/site/home";
    pod.set(Fault::Huge);
    for (query, written) in [("?dry_run", false), ("", true)] {
        let fold = pod.post(&format!("{path}/fold{query}"), "", "").await;
        assert_eq!(fold.status, StatusCode::OK, "{}", fold.text);
        let fold = fold.json();
        assert_eq!((&fold["written"], &fold["folded"]), (&json!(written), &json!(16)), "{fold}");
        assert_eq!((&fold["full"], &fold["more"]), (&json!(true), &json!(false)), "{fold}");
    }
    pod.set(Fault::None);
    let folded = pod.get(path).await.json();
    assert_eq!(folded["value"]["size"], 16 * 250, "what fitted");
    assert_eq!(pod.get(&format!("{path}/shards")).await.json()["tally"]["full"], true);
    assert!(pod.get("/metrics").await.text.contains("orderfree_full_tallies 1\n"));
    let refused = pod.post(path, "text/plain", "new").await;
    assert!(refused.detail(409, "state-too-large").contains("remove items"), "{}", refused.text);
    let other = pod.post("/v1/gset/site/other", "text/plain", "new").await;
    assert_eq!(other.status, StatusCode::OK, "{}", other.text);
}

/// A fold at every read would cost a lot and change nothing.
#[tokio::test]
async fn reads_do_not_try_again_to_fold_a_blocked_key() {
    let (pod, tasks) = (Pod::new(), Tasks::new());
    pod.folder.start(&tasks);
    pod.set(Fault::Huge);
    let read = async || pod.get("/v1/gset/site/home").await.json()["value"]["size"].clone();
    assert_eq!(read().await, 17 * 250);
    // Until the first fold has reached the tally's limit.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for _ in 0..20 {
        assert_eq!(read().await, 17 * 250);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(pod.fold_reads.load(Ordering::SeqCst), 1);
    tasks.stop();
}

#[tokio::test]
async fn a_pod_says_its_data_centre_and_whether_it_has_a_quorum() {
    let pod = Pod::new();
    let quorum = async || {
        let ready = pod.get("/readyz?verbose").await;
        assert_eq!(ready.status, 200, "it does not count");
        let metrics = pod.get("/metrics").await.text;
        let gauge = metrics.lines().find(|line| line.starts_with("orderfree_store_quorum "));
        (ready.json()["checks"]["quorum"].to_string(), gauge.expect("a metric").to_owned())
    };
    assert_eq!(quorum().await, (r#""ok""#.to_owned(), "orderfree_store_quorum 1".to_owned()));
    assert!(pod.get("/version").await.json().get("datacenter").is_none());
    pod.set(Fault::Regions);
    let (says, gauge) = quorum().await;
    assert!(says.contains("east") && says.contains("ORDERFREE_READY_NEEDS_QUORUM"), "{says}");
    assert_eq!(gauge, "orderfree_store_quorum 0");
    let version = pod.get("/version").await.json();
    assert_eq!(
        (&version["datacenter"], &version["replication"]),
        (&json!("east"), &json!("east:3,west:3"))
    );
}

#[tokio::test]
async fn kinds_version_and_problems_explain_themselves() {
    let pod = Pod::new();
    let kinds = pod.get("/v1/kinds").await.json();
    assert_eq!(kinds["kinds"][0]["kind"], "counter");
    assert_eq!(kinds["kinds"][0]["example_op"], json!({"op": "add", "by": 5}));
    let version = pod.get("/version").await.json();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(version["store"], "embedded");
    let all = pod.get("/problems").await.text;
    for problem in ProblemType::ALL {
        let entry = problem.entry();
        let page = pod.get(&format!("/problems/{}", entry.slug)).await;
        assert_eq!(page.status, StatusCode::OK);
        assert!(page.text.contains(entry.meaning) && page.text.contains(entry.remedy));
        assert!(all.contains(&page.text));
    }
}

/// A bug in a fold once ended all folds of a pod, and no alert fired.
#[tokio::test]
async fn a_fold_that_panics_blocks_its_key_alone() {
    let pod = Pod::new();
    for seconds in [0, 90] {
        pod.advance(Duration::from_secs(seconds));
        for name in ["a", "home", "z"] {
            assert_eq!(pod.post(&format!("/v1/counter/site/{name}"), "", "").await.status, 200);
        }
    }
    pod.advance(Duration::from_secs(300));
    pod.set(Fault::FoldPanics);
    let report = pod.folder.sweep_once().await.expect("swept");
    assert_eq!((report.nominated, report.folded, report.blocked), (3, 2, 1));
    let metrics = pod.get("/metrics").await.text;
    for line in [
        "orderfree_folds_total{end=\"folded\"} 2",
        "orderfree_folds_total{end=\"blocked\"} 1",
        "orderfree_panics_total{task=\"fold\"} 2",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let report = pod.folder.sweep_once().await.expect("swept again");
    assert_eq!((report.nominated, report.blocked), (1, 1));
    assert_eq!(pod.post("/v1/counter/site/home/fold", "", "").await.problem(500, "internal"), None);
    pod.set(Fault::None);
    assert_eq!(pod.folder.sweep_once().await.expect("swept").folded, 1);
}
