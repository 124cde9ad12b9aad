//! How a pod ends: first it becomes unready, then it serves for a while, then it stops, and nothing that it
//! acknowledged is lost.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use futures::future::join_all;
use rustix::process::Signal;
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::machine;
use crate::pod::{Pod, Setup};
use crate::wire::{Connection, request};

const KEY: &str = "/v1/counter/site/home";
const CLIENTS: usize = 8;

/// Longest time that a pod needs after its grace period, without clients that delay it.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Outcomes of the updates of one client, which counts as fast as it can until it can't connect.
#[derive(Debug, Default)]
struct Counted {
    acked: u64,
    unknown: u64,
    /// Answers that announced the end of the connection.
    told_to_close: u64,
}

impl Counted {
    async fn until_no_pod_listens(port: u16) -> Counted {
        let (mut counted, add) = (Counted::default(), request("POST", KEY, &[], ""));
        while let Ok(mut connection) = Connection::open(port).await {
            loop {
                match connection.ask(&add).await {
                    Ok(answer) if answer.status == 200 => {
                        counted.acked += 1;
                        if answer.header("connection") == "close" {
                            counted.told_to_close += 1;
                            break;
                        }
                    }
                    Ok(answer) => panic!("{}", answer.text()),
                    Err(_) => {
                        counted.unknown += 1;
                        break;
                    }
                }
            }
        }
        counted
    }
}

async fn is_refused(port: u16) -> bool {
    let connected = TcpStream::connect(("127.0.0.1", port)).await;
    connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// The positions of these lines in the log. All must be there.
fn order_of(pod: &Pod, texts: &[&str]) -> Vec<usize> {
    let log = pod.log();
    texts.iter().map(|text| log.find(text).unwrap_or_else(|| panic!("{text:?} in {log}"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_a_pod_in_order_and_nothing_acked_is_lost() {
    let _beside = machine::beside().await;
    const GRACE: Duration = Duration::from_secs(2);
    let setup = Setup::new().arg("--unready-grace", "2s");
    let mut pod = setup.start().await;
    let port = pod.port();
    let clients: Vec<_> =
        (0..CLIENTS).map(|_| tokio::spawn(Counted::until_no_pod_listens(port))).collect();
    sleep(Duration::from_millis(500)).await;
    assert_eq!(pod.get("/readyz").await.status, 200);
    assert_eq!(pod.get("/readyz").await.header("connection"), "", "nothing ends yet");

    pod.signal(Signal::TERM);
    let began = Instant::now();
    pod.logs("unready", Duration::from_secs(1)).await;
    let unready = pod.get("/readyz").await;
    assert_eq!((unready.status, unready.problem().as_str()), (503, "not-ready"));
    assert!(unready.text().contains("shutting down"), "{}", unready.text());
    for (method, path, body, status) in [
        ("GET", "/readyz", "", 503),
        ("GET", "/livez", "", 200),
        ("GET", "/metrics", "", 200),
        ("POST", KEY, "", 200),
        ("GET", KEY, "", 200),
        ("GET", "/nowhere", "", 404),
        ("PATCH", KEY, "", 405),
        ("POST", KEY, "no op", 415),
    ] {
        let answer = pod.ask(method, path, &[], body).await;
        let told = answer.header("connection");
        assert_eq!((answer.status, told), (status, "close"), "{method} {path}");
    }
    let one_more = pod.ask("POST", &format!("{KEY}?ack=memory"), &[], "").await;
    assert_eq!(one_more.status, 202, "{}", one_more.text());
    while !is_refused(port).await {
        sleep(Duration::from_millis(20)).await;
        assert!(began.elapsed() < GRACE + END_WITHIN, "it still listens");
    }
    let listened = began.elapsed();
    assert!(listened >= GRACE - Duration::from_millis(100), "it listened on for {listened:?} only");
    let (code, _) = pod.ended(END_WITHIN).await;
    assert_eq!(code, Some(0), "{}", pod.log());
    let places = order_of(
        &pod,
        &[
            "\"unready; serving on",
            "\"no more requests are taken",
            "\"everything is written; goodbye",
        ],
    );
    assert!(places.is_sorted(), "{places:?}: {}", pod.log());

    let clients = join_all(clients).await.into_iter().map(|client| client.expect("no panic"));
    // One of the loop above, and one that was acknowledged from memory.
    let mut all = Counted { acked: 2, ..Counted::default() };
    for client in clients {
        assert!(client.told_to_close > 0, "{client:?} never learned that the pod ends");
        all.acked += client.acked;
        all.unknown += client.unknown;
    }
    let value = setup.start().await.count(KEY).await;
    assert!((all.acked..=all.acked + all.unknown).contains(&value), "{value} of {all:?}");
    assert!(all.acked > 100, "{all:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_begun_before_the_end_are_answered() {
    let _beside = machine::beside().await;
    let setup = Setup::new().arg("--unready-grace", "100ms");
    let mut pod = setup.start().await;
    let mut slow = Connection::open(pod.port()).await.expect("a connection");
    let head = "POST /v1/counter/site/home HTTP/1.1\r\nhost: a\r\ncontent-type: text/plain\r\n\
                content-length: 1\r\n\r\n";
    slow.send(head.as_bytes()).await.expect("sent");
    sleep(Duration::from_millis(100)).await;
    pod.signal(Signal::TERM);
    pod.logs("no more requests", END_WITHIN).await;
    sleep(Duration::from_millis(500)).await;
    let answer = slow.ask(b"7").await.expect("an answer");
    assert_eq!((answer.status, answer.header("connection")), (200, "close"), "{}", answer.text());
    assert_eq!(pod.ended(END_WITHIN).await.0, Some(0));
    assert_eq!(setup.start().await.count(KEY).await, 7);
}

/// A long stream is told how many lines were counted: one that is silent at the moment, and one that never is.
#[tokio::test(flavor = "multi_thread")]
async fn streams_end_with_their_summary() {
    let _beside = machine::beside().await;
    let setup = Setup::new().arg("--unready-grace", "1s");
    let mut pod = setup.start().await;
    let line =
        r#"{"kind":"counter","group":"site","name":"home","op":{"op":"add"}}"#.to_owned() + "\n";
    let head = |framing: &str| {
        format!(
            "POST /v1/batch HTTP/1.1\r\nhost: a\r\ncontent-type: application/x-ndjson\r\n{framing}\r\n\r\n"
        )
    };
    let mut silent = Connection::open(pod.port()).await.expect("a connection");
    let chunk = format!("{:x}\r\n{}\r\n", 3 * line.len(), line.repeat(3));
    silent.send((head("transfer-encoding: chunked") + &chunk).as_bytes()).await.expect("sent");
    let mut busy = Connection::open(pod.port()).await.expect("a connection");
    let body = line.repeat(900_000);
    let busy = tokio::spawn(async move {
        let framing = format!("content-length: {}", body.len());
        busy.ask((head(&framing) + &body).as_bytes()).await.expect("an answer")
    });
    let began = Instant::now();
    while pod.count(KEY).await < 5_000 {
        assert!(began.elapsed() < Duration::from_secs(30), "the streams are not counted");
        sleep(Duration::from_millis(50)).await;
    }
    pod.signal(Signal::TERM);
    let mut acked = 0;
    for answer in [silent.answer().await.expect("an answer"), busy.await.expect("no panic")] {
        assert_eq!((answer.status, answer.problem().as_str()), (504, "outcome-unknown"));
        assert_eq!(answer.header("connection"), "close");
        let summary = &answer.json()["summary"];
        assert_eq!(summary["lines"], summary["acked"], "{}", answer.text());
        acked += summary["acked"].as_u64().expect("a number");
        let lines = summary["lines"].to_string();
        assert!(answer.text().contains(&format!("after line {lines}: This pod is shutting down")));
    }
    assert_eq!(pod.ended(END_WITHIN).await.0, Some(0));
    assert!((5_000..900_000).contains(&acked), "{acked} lines");
    assert_eq!(setup.start().await.count(KEY).await, acked);
}

/// Connections that never sent anything, and connections that wait for their next request.
#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_do_not_keep_a_pod() {
    let _beside = machine::beside().await;
    let mut pod = Setup::new().arg("--unready-grace", "100ms").start().await;
    let mut idle = Vec::new();
    for index in 0..100 {
        let mut connection = Connection::open(pod.port()).await.expect("a connection");
        if index % 2 == 0 {
            let answer = connection.ask(&request("GET", "/livez", &[], "")).await;
            assert_eq!(answer.expect("an answer").status, 200);
        }
        idle.push(connection);
    }
    pod.signal(Signal::TERM);
    let (code, took) = pod.ended(END_WITHIN).await;
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_a_pod_at_once_and_says_so() {
    let _beside = machine::beside().await;
    for second in [Signal::TERM, Signal::INT] {
        let mut pod = Setup::new().arg("--unready-grace", "60s").start().await;
        pod.signal(Signal::TERM);
        pod.logs("unready", END_WITHIN).await;
        // A signal that only reloads files does not count as a second one.
        pod.signal(Signal::HUP);
        sleep(Duration::from_millis(300)).await;
        assert_eq!(pod.get("/livez").await.status, 200);
        pod.signal(second);
        let (code, took) = pod.ended(END_WITHIN).await;
        assert_eq!(code, Some(1), "{}", pod.log());
        assert!(took < Duration::from_secs(2), "{took:?}");
        assert!(pod.log().contains("a second signal: ended without writing everything"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sigint_ends_a_pod_without_a_grace_and_nothing_acked_is_lost() {
    let _beside = machine::beside().await;
    let setup = Setup::new().arg("--unready-grace", "60s");
    let mut pod = setup.start().await;
    for expected in [200, 202] {
        let path = if expected == 202 { format!("{KEY}?ack=memory") } else { KEY.to_owned() };
        assert_eq!(pod.ask("POST", &path, &[], "").await.status, expected);
    }
    pod.signal(Signal::INT);
    assert_eq!(pod.ended(END_WITHIN).await.0, Some(0), "{}", pod.log());
    assert!(pod.log().contains("everything is written; goodbye"));
    assert_eq!(setup.start().await.count(KEY).await, 2);
}
