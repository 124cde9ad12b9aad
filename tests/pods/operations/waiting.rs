//! A pod that starts before its store says what it waits for, at increasing intervals, and can be stopped.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::pod::Setup;

/// No node listens at this address.
const NO_NODE: &str = "127.0.0.1:1";

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_waits_for_its_store_and_ends_at_once_when_told() {
    let mut pod = Setup::new().arg("--cassandra", NO_NODE).spawn();
    let began = Instant::now();
    let waits = loop {
        let lines = pod.lines().into_iter();
        let waits = lines.filter(|line| {
            line["message"].as_str().is_some_and(|text| text.starts_with("waiting for the store: "))
        });
        let waits: Vec<_> = waits.collect();
        if waits.len() >= 4 {
            break waits;
        }
        assert!(began.elapsed() < Duration::from_secs(40), "{}", pod.log());
        sleep(Duration::from_millis(50)).await;
    };
    for wait in &waits {
        let message = wait["message"].as_str().expect("a text");
        assert!(message.contains(NO_NODE), "which store: {message}");
        assert_eq!(wait["level"], "WARN");
    }
    let pauses = waits.iter().map(|wait| {
        let pause = wait["again_in"].as_str().expect("a pause");
        humantime::parse_duration(pause).or_else(|_| seconds(pause)).expect("a pause")
    });
    let pauses: Vec<Duration> = pauses.collect();
    assert!(pauses.is_sorted_by(|a, b| a < b), "{pauses:?}");
    let said = waits.len();
    assert!(TcpStream::connect(("127.0.0.1", pod.port())).await.is_err(), "it can't serve yet");

    // SIGHUP does not stop it.
    pod.signal(Signal::HUP);
    sleep(Duration::from_millis(300)).await;
    pod.signal(Signal::TERM);
    let (code, took) = pod.ended(Duration::from_secs(10)).await;
    assert_eq!(code, Some(0), "{}", pod.log());
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(pod.log().matches("waiting for the store").count() <= said + 1, "{}", pod.log());
}

/// Durations as the log writes them: `1s`, `500ms`, `1.5s`.
fn seconds(text: &str) -> Result<Duration, std::num::ParseFloatError> {
    text.trim_end_matches('s').parse().map(Duration::from_secs_f64)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_has_waited_long_enough_ends_with_one_sentence() {
    let setup = Setup::new().arg("--cassandra", NO_NODE).arg("--store-wait", "1s");
    let mut pod = setup.spawn();
    let (code, took) = pod.ended(Duration::from_secs(20)).await;
    assert_eq!(code, Some(1), "{}", pod.log());
    assert!(took < Duration::from_secs(10), "{took:?}");
    let log = pod.log();
    let last: Vec<&str> = log.lines().filter(|line| line.starts_with("orderfree: ")).collect();
    assert_eq!(last.len(), 1, "{log}");
    assert!(last[0].contains(NO_NODE), "{log}");
    assert_eq!(log.lines().last(), Some(last[0]), "one line, and none behind it");
}

/// An error that waiting can't solve ends the pod at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_does_not_wait_after_a_permanent_error() {
    let setup = Setup::new();
    let no_folder = setup.path("nowhere").join("rows.redb");
    for setup in [
        setup.clone().arg("--data", no_folder.display()),
        setup.clone().arg("--cassandra", "localhost"),
        setup.arg("--cassandra", NO_NODE).arg("--cassandra-ca", "/nowhere/ca.pem"),
    ] {
        let mut pod = setup.spawn();
        let (code, took) = pod.ended(Duration::from_secs(20)).await;
        assert!(code.is_some_and(|code| code != 0), "{code:?} {}", pod.log());
        assert!(took < Duration::from_secs(2), "{took:?}");
        assert!(!pod.log().contains("waiting for the store"), "{}", pod.log());
    }
}
