//! `orderfree demo`: every button is pressed at random, and every number is right.
//!
//! `DEMO_SECONDS` is for how long.

use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::machine;
use crate::pod::{MIB, free_port, memory_of};

/// How much more memory the demo may have at the end than after its first seconds.
const GROWTH_MAX: usize = 64 * MIB;

fn seconds() -> u64 {
    std::env::var("DEMO_SECONDS").map_or(20, |text| text.parse().expect("seconds"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demo_that_is_broken_all_the_time_counts_right() {
    let _others_too = machine::beside().await;
    let (port, span) = (free_port(), Duration::from_secs(seconds()));
    let mut demo = tokio::process::Command::new(env!("CARGO_BIN_EXE_orderfree"))
        .args(["demo", "--chaos", "--listen", &format!("127.0.0.1:{port}")])
        .args(["--for", &format!("{}s", span.as_secs())])
        .kill_on_drop(true)
        .spawn()
        .expect("a demo");
    let process = demo.id().expect("it runs");
    let url = format!("http://127.0.0.1:{port}/demo");
    let (began, mut first, mut last) = (Instant::now(), None, Value::Null);
    while began.elapsed() < span - Duration::from_secs(1) {
        sleep(Duration::from_millis(500)).await;
        let Ok(answer) = reqwest::get(&url).await else { continue };
        let status: Value = answer.json().await.expect("JSON");
        assert_eq!(status["wrong"], 0, "{status}");
        if began.elapsed() > Duration::from_secs(5) {
            first.get_or_insert_with(|| memory_of(process));
        }
        last = status;
    }
    assert!(last["acknowledged"].as_i64().expect("a number") > 500, "{last}");
    let growth = memory_of(process).saturating_sub(first.expect("it ran"));
    assert!(growth < GROWTH_MAX, "{growth} bytes more");
    let end = demo.wait().await.expect("an end");
    assert!(end.success(), "{end}: {last}");
    println!("after {span:?}: {last}, {growth} bytes more");
}
