//! What the summary of a stream says about its lines.

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use axum::body::Body;
use orderfree::engine::write::Bounds;
use orderfree::limits;
use orderfree::policy::Policies;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep};

use crate::pod::{Answer, Fault, Pod, request};

const BATCH: &str = "/v1/batch";
const NDJSON: &str = "application/x-ndjson";
const GOOD: &str = r#"{"kind":"counter","group":"g","name":"a","op":{"op":"add"}}"#;
const MALFORMED: &str = "x";
const NO_KIND: &str = r#"{"kind":"none","group":"g","name":"a","op":{"op":"add"}}"#;
const NO_OP: &str = r#"{"kind":"counter","group":"g","name":"a","op":{"op":"sub"}}"#;

/// The type of the problem of a line. `None`: it is acked.
fn type_of(line: &str) -> Option<&'static str> {
    match line {
        MALFORMED => Some("/problems/bad-body"),
        NO_KIND => Some("/problems/unknown-kind"),
        NO_OP => Some("/problems/bad-op"),
        _ => None,
    }
}

fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().expect("a number")).expect("a small number")
}

/// Checks that the summary tells exactly what became of these lines.
fn tells(summary: &Value, lines: &[&str]) {
    let ranges: Vec<(usize, usize, &str)> = summary["errors"]
        .as_array()
        .expect("errors")
        .iter()
        .map(|range| {
            assert_eq!(range["outcome"], "refused");
            let kind = range["type"].as_str().expect("a type");
            (number(&range["first"]), number(&range["last"]), kind)
        })
        .collect();
    assert!(ranges.iter().is_sorted_by(|one, other| one.1 < other.0), "{summary}");
    let (mut counted, mut acked, mut begun) = (0, 0, Vec::new());
    let mut before = None;
    for (number, line) in (1..).zip(lines) {
        let found: Vec<_> =
            ranges.iter().filter(|range| (range.0..=range.1).contains(&number)).collect();
        if line.trim().is_empty() {
            continue;
        }
        counted += 1;
        acked += usize::from(type_of(line).is_none());
        let types: Vec<&str> = found.iter().map(|range| range.2).collect();
        assert_eq!(types, Vec::from_iter(type_of(line)), "line {number}: {summary}");
        if type_of(line).is_some() && before != Some(type_of(line)) {
            begun.push(number);
        }
        before = Some(type_of(line));
    }
    let firsts: Vec<usize> = ranges.iter().map(|range| range.0).collect();
    assert_eq!(firsts, begun, "{summary}");
    let counts =
        ["lines", "acked", "refused", "accepted", "unknown"].map(|of| number(&summary[of]));
    assert_eq!(counts, [counted, acked, counted - acked, 0, 0], "{summary}");
}

/// Sends lines in two chunks. A torn stream breaks off after half a line more.
async fn send(pod: &Pod, lines: &[&str], cut: usize, is_torn: bool) -> Answer {
    let mut text: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
    text += if is_torn { r#"{"kind":"count"# } else { "" };
    let (begin, end) = text.split_at(cut.min(text.len()));
    let tear = is_torn.then(|| Err(io::Error::other("torn")));
    let chunks = [Ok(begin.to_owned()), Ok(end.to_owned())].into_iter().chain(tear);
    let body = Body::from_stream(futures::stream::iter(chunks));
    pod.send(request("POST", BATCH, &[("content-type", NDJSON)], body)).await
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_line_is_acked_or_in_exactly_one_range(
        lines in vec(prop::sample::select(vec![GOOD, MALFORMED, NO_KIND, NO_OP, "", " "]), 0..40),
        cut in 0..2_000_usize,
        is_torn in any::<bool>(),
    ) {
        static SERVER: OnceLock<(Runtime, Pod)> = OnceLock::new();
        let (runtime, pod) = SERVER.get_or_init(|| {
            let runtime = Runtime::new().expect("a runtime");
            let pod = runtime.block_on(async { Pod::new() });
            (runtime, pod)
        });
        // A line before makes sure that something is acked.
        let lines: Vec<&str> = [GOOD].into_iter().chain(lines).collect();
        let answer = runtime.block_on(send(pod, &lines, cut, is_torn)).json();
        if is_torn {
            let detail = answer["detail"].as_str().expect("a detail");
            let end = format!("Lines 1 to {} are done", lines.len());
            assert!(detail.contains(&end), "{detail}");
            assert!(detail.contains(&format!("from line {} on", lines.len() + 1)), "{detail}");
            tells(&answer["summary"], &lines);
        } else {
            tells(&answer, &lines);
        }
    }
}

#[tokio::test]
async fn a_stream_with_too_many_errors_ends_before_they_are_lost() {
    let pod = Pod::new();
    let mut lines = vec![GOOD];
    // Each of them is a range.
    lines.extend([MALFORMED, NO_KIND].into_iter().cycle().take(limits::ERROR_RANGES_MAX));
    let whole = &lines[..limits::ERROR_RANGES_MAX];
    let answer = send(&pod, whole, 0, false).await;
    assert_eq!(answer.status, 200, "{:.300}", answer.text);
    tells(&answer.json(), whole);
    let errors = answer.json()["errors"].clone();
    let errors = errors.as_array().expect("errors");
    let details: Vec<usize> =
        errors.iter().filter_map(|e| e["detail"].as_str()).map(str::len).collect();
    let bytes: usize = details.iter().sum();
    assert!(details.len() < errors.len() && bytes <= limits::ERROR_DETAILS_BYTES_MAX, "{bytes}");
    assert!(details.len() > 2_000 && errors[0]["detail"].is_string(), "{} details", details.len());
    lines.extend([GOOD; 10]);
    let answer = send(&pod, &lines, 0, false).await;
    assert_eq!(answer.problem(422, "answer-full").as_deref(), Some("unknown"));
    let summary = &answer.json()["summary"];
    let done = number(&summary["lines"]);
    assert_eq!(done, limits::ERROR_RANGES_MAX);
    assert!(answer.text.contains(&format!("Send the lines from line {} on", done + 1)));
    tells(summary, &lines[..done]);
    assert_eq!(pod.value("/v1/counter/g/a").await.as_deref(), Some("2"));
}

#[tokio::test]
async fn lines_of_unknown_outcome_are_ranges_too() {
    let pod = Pod::new();
    pod.set(Fault::Silent);
    let answer = send(&pod, &[GOOD, "", GOOD, MALFORMED, GOOD], 0, false).await.json();
    let ranges = answer["errors"].as_array().expect("errors").iter();
    let ranges: Vec<_> = ranges.map(|e| json!([e["first"], e["last"], e["outcome"]])).collect();
    let expected = [json!([1, 3, "unknown"]), json!([4, 4, "refused"]), json!([5, 5, "unknown"])];
    assert_eq!(ranges, expected);
    assert_eq!((&answer["lines"], &answer["unknown"]), (&json!(4), &json!(3)));
}

#[tokio::test]
async fn a_stream_without_an_applied_line_is_no_success() {
    let pod = Pod::new();
    for (lines, status, slug) in [
        (vec!["", MALFORMED, NO_KIND], 400, "bad-body"),
        (vec![NO_KIND, MALFORMED], 404, "unknown-kind"),
        (vec![NO_OP; 2_500], 400, "bad-op"),
    ] {
        let answer = send(&pod, &lines, 0, false).await;
        assert_eq!(answer.problem(status, slug).as_deref(), Some("refused"));
        let first = 1 + lines.iter().position(|line| !line.is_empty()).expect("a line");
        let says = format!("No line of the stream was applied; line {first}: ");
        assert!(answer.text.contains(&says), "{}", answer.text);
        tells(&answer.json()["summary"], &lines);
    }
    // An op that could be applied: its own outcome is not known before.
    pod.set(Fault::Down);
    let answer = send(&pod, &[GOOD, GOOD], 0, false).await;
    assert_eq!(answer.problem(503, "store-refused").as_deref(), Some("refused"));
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(answer.json()["summary"]["errors"][0]["last"], 2);
    pod.set(Fault::Silent);
    let answer = send(&pod, &[GOOD, MALFORMED], 0, false).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["unknown"]), (200, &json!(1)));
    pod.set(Fault::None);
    for lines in [&[][..], &["", " "]] {
        let answer = send(&pod, lines, 0, false).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["lines"]), (200, &json!(0)));
    }
    // A batch has a result for each of its updates.
    let batch = format!(r#"{{"updates":[{NO_OP},{NO_KIND}]}}"#);
    let answer = pod.post(BATCH, "application/json", &batch).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

/// A pod whose table of mutators is full, until its store writes again.
async fn full_pod() -> Pod {
    let pod = Pod::of(Policies::default(), Bounds::awake(2));
    pod.set(Fault::Stalled);
    for name in ["x", "y"] {
        let answer = pod.post(&format!("/v1/counter/g/{name}?ack=memory"), "", "").await;
        assert_eq!(answer.status, 202, "{}", answer.text);
    }
    pod.post("/v1/counter/g/z", "", "").await.problem(503, "overloaded");
    pod
}

fn line(kind: &str, name: &str, op: &Value) -> String {
    json!({"kind": kind, "group": "g", "name": name, "op": op}).to_string()
}

#[tokio::test]
async fn lines_wait_for_room_and_each_counts_once_in_order() {
    let pod = full_pod().await;
    let mut lines = Vec::new();
    for round in 0..20 {
        for name in ["a", "b", "c", "x"] {
            lines.push(line("counter", name, &json!({"op": "add"})));
        }
        lines.push(line("register", "r", &json!({"op": "set", "value": round})));
        lines.push(MALFORMED.to_owned());
    }
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let recover = async {
        sleep(Duration::from_millis(300)).await;
        pod.set(Fault::None);
    };
    let (answer, ()) = tokio::join!(send(&pod, &lines, 0, false), recover);
    assert_eq!(answer.status, 200, "{}", answer.text);
    tells(&answer.json(), &lines);
    for (name, value) in [("a", "20"), ("b", "20"), ("c", "20"), ("x", "21")] {
        let found = pod.value(&format!("/v1/counter/g/{name}")).await;
        assert_eq!(found.as_deref(), Some(value), "{name}");
    }
    assert_eq!(pod.get("/v1/register/g/r").await.json()["value"]["value"], 19);
    // Only the update before the stream was refused by a limit.
    let metrics = pod.get("/metrics").await.text;
    assert!(metrics.contains("orderfree_refused_total{reason=\"limit\"} 1\n"), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn lines_that_find_no_room_in_time_are_refused_and_named() {
    let pod = full_pod().await;
    let lines = [GOOD; 5];
    let began = Instant::now();
    let answer = send(&pod, &lines, 0, false).await;
    assert_eq!(began.elapsed().as_secs(), limits::BODY_TIME_MAX.as_secs());
    assert_eq!(answer.problem(503, "overloaded").as_deref(), Some("refused"));
    let range = &answer.json()["summary"]["errors"][0];
    assert_eq!((&range["first"], &range["last"]), (&json!(1), &json!(5)), "{range}");
    assert_eq!(range["type"], "/problems/overloaded");
    let metrics = pod.get("/metrics").await.text;
    assert!(metrics.contains("orderfree_refused_total{reason=\"limit\"} 6\n"), "{metrics}");
}

#[tokio::test]
async fn a_pod_that_drains_keeps_no_line_waiting() {
    let pod = full_pod().await;
    let began = Instant::now();
    let drain = async {
        sleep(Duration::from_millis(100)).await;
        pod.health.set_draining();
    };
    let lines = [GOOD; 5];
    let (answer, ()) = tokio::join!(send(&pod, &lines, 0, false), drain);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(answer.problem(503, "overloaded").as_deref(), Some("refused"));
    assert_eq!(answer.json()["summary"]["errors"][0]["last"], 5);
}
