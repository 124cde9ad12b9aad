//! Bodies that are slow, many or cut off. They are limited in time and memory, and nothing acked is lost.

use std::time::Duration;

use axum::body::Body;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::poll;
use orderfree::limits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::pod::{Pod, request};

const KEY: &str = "/v1/counter/site/home";
const BATCH: &str = "/v1/batch";
const JSON: &str = "application/json";
const NDJSON: &str = "application/x-ndjson";
const TEXT: &str = "text/plain";
const LINE: &str = r#"{"kind":"counter","group":"site","name":"home","op":{"op":"add","by":5}}"#;

/// A body of unknown length, which ends when the sender is dropped.
fn open_body() -> (UnboundedSender<Result<String, std::io::Error>>, Body) {
    let (sender, chunks) = unbounded();
    (sender, Body::from_stream(chunks))
}

/// Polls for the value that an open stream will have counted.
async fn until_counted(pod: &Pod, value: &str) -> Duration {
    let began = Instant::now();
    while pod.value(KEY).await.as_deref() != Some(value) {
        assert!(began.elapsed() < Duration::from_secs(10), "{value} was not counted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    began.elapsed()
}

const ADD: &str = r#"{"op":"add"}"#;

#[tokio::test]
async fn all_bodies_together_are_limited() {
    let pod = Pod::new();
    let (mut senders, mut held) = (Vec::new(), Vec::new());
    for _ in 0..limits::BODIES_BYTES_MAX / limits::BODY_BYTES_MAX {
        let (sender, body) = open_body();
        senders.push(sender);
        let mut update = Box::pin(pod.send(request("POST", KEY, &[("content-type", JSON)], body)));
        assert!(poll!(update.as_mut()).is_pending(), "it waits for its body");
        let blank = " ".repeat(limits::BODY_BYTES_MAX - ADD.len());
        senders.last().expect("one").unbounded_send(Ok(blank)).expect("it is being read");
        assert!(poll!(update.as_mut()).is_pending(), "it waits for the rest of it");
        held.push(update);
    }
    for (path, media, body, outcome) in [
        (KEY, TEXT, "5", Some("refused")),
        (BATCH, JSON, "{}", Some("refused")),
        ("/v1/query", JSON, "{}", None),
    ] {
        let answer = pod.post(path, media, body).await;
        assert_eq!(answer.problem(503, "overloaded").as_deref(), outcome, "{path}");
        assert_eq!(answer.header("retry-after"), "1");
    }
    assert_eq!(pod.value(KEY).await, None, "reads need no room, and nothing was applied");
    assert_eq!(pod.post(KEY, "", "").await.status, 200, "an empty body needs none");
    drop(held.pop());
    assert_eq!(
        pod.post(KEY, TEXT, "5").await.status,
        200,
        "a client that goes away frees its room"
    );
    for (sender, update) in senders.into_iter().zip(held) {
        sender.unbounded_send(Ok(ADD.to_owned())).expect("it is being read");
        drop(sender);
        assert_eq!(update.await.status, 200);
    }
    // One of the held requests was cancelled, one added 1, another 5.
    let sum = (limits::BODIES_BYTES_MAX / limits::BODY_BYTES_MAX - 1) + 1 + 5;
    assert_eq!(pod.value(KEY).await, Some(sum.to_string()));
}

#[tokio::test]
async fn streams_take_the_room_of_a_window() {
    let pod = Pod::new();
    let (mut senders, mut held) = (Vec::new(), Vec::new());
    for _ in 0..limits::STREAMS_BYTES_MAX / limits::NDJSON_HELD_BYTES_MAX {
        let (sender, body) = open_body();
        senders.push(sender);
        let headers = [("content-type", NDJSON)];
        let mut stream = Box::pin(pod.send(request("POST", BATCH, &headers, body)));
        assert!(poll!(stream.as_mut()).is_pending(), "it waits for lines");
        held.push(stream);
    }
    let (_sender, body) = open_body();
    let answer = pod.send(request("POST", BATCH, &[("content-type", NDJSON)], body)).await;
    assert_eq!(answer.problem(503, "overloaded").as_deref(), Some("refused"));
    // A stream that declares its length fits in, but there is no room for many errors.
    let errors = format!("x\n{}\n", LINE.replace("counter", "none")).repeat(15_000);
    let answer = pod.post(BATCH, NDJSON, &errors[..900 * 1024]).await;
    assert_eq!(answer.problem(503, "overloaded").as_deref(), Some("refused"));
    let lines = answer.json()["summary"]["lines"].as_u64().expect("a number");
    assert!((1_000..10_000).contains(&lines), "{lines}");
    assert!(answer.text.contains(&format!("from line {} on", lines + 1)), "{:.500}", answer.text);
    assert_eq!(pod.post(KEY, TEXT, "5").await.status, 200, "whole bodies have their own room");
    drop(senders);
    for stream in held {
        assert_eq!(stream.await.json()["lines"], 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_in_time_is_refused() {
    let pod = Pod::new();
    for (path, media, outcome) in
        [(KEY, TEXT, Some("refused")), (BATCH, JSON, Some("refused")), ("/v1/query", JSON, None)]
    {
        let (sender, body) = open_body();
        sender.unbounded_send(Ok("5".to_owned())).expect("a receiver");
        let began = Instant::now();
        let answer = pod.send(request("POST", path, &[("content-type", media)], body)).await;
        assert_eq!(answer.problem(408, "body-too-slow").as_deref(), outcome, "{path}");
        assert_eq!(began.elapsed().as_secs(), limits::BODY_TIME_MAX.as_secs());
    }
}

#[tokio::test]
async fn a_live_stream_counts_as_it_comes_and_silence_loses_nothing() {
    let pod = Pod::new();
    let (sender, body) = open_body();
    let answer = pod.send(request("POST", BATCH, &[("content-type", NDJSON)], body));
    let watch = async {
        for value in ["5", "10"] {
            sender.unbounded_send(Ok(format!("{LINE}\n"))).expect("it is being read");
            let took = until_counted(&pod, value).await;
            assert!(took < 3 * limits::NDJSON_WINDOW_TIME_MAX, "{value} only after {took:?}");
        }
        sender.unbounded_send(Ok(LINE.to_owned())).expect("it is being read");
        tokio::time::pause();
    };
    let (answer, ()) = tokio::join!(answer, watch);
    tokio::time::resume();
    assert_eq!(answer.problem(400, "bad-body").as_deref(), Some("unknown"));
    assert!(answer.text.contains("after line 2: No data arrived for 30 s"), "{}", answer.text);
    assert_eq!(answer.json()["summary"]["acked"], 2);
    assert_eq!(answer.json()["summary"]["lines"], 2, "the last line was not complete");
    assert_eq!(pod.value(KEY).await.as_deref(), Some("10"));
}

/// Serves a pod on a port of its own and begins a request there.
async fn connect(pod: &Pod, path: &str, headers: &str) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let router = pod.router();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let mut socket = TcpStream::connect(address).await.expect("a connection");
    let head = format!("POST {path} HTTP/1.1\r\nhost: pod\r\n{headers}\r\n\r\n");
    socket.write_all(head.as_bytes()).await.expect("written");
    socket
}

/// The server's output until it closes the connection.
async fn rest(socket: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.expect("an answer and an end");
    String::from_utf8(answer).expect("UTF-8")
}

#[tokio::test(start_paused = true)]
async fn a_slow_body_is_answered_and_its_connection_closed() {
    let pod = Pod::new();
    let headers = "content-type: text/plain\r\ncontent-length: 100";
    let mut socket = connect(&pod, KEY, headers).await;
    let began = Instant::now();
    while began.elapsed() < limits::BODY_TIME_MAX - Duration::from_secs(1) {
        socket.write_all(b"1").await.expect("the server still reads");
        tokio::time::sleep(Duration::from_secs(4)).await;
    }
    let answer = rest(&mut socket).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains(r#""outcome":"refused""#), "{answer}");
    tokio::time::resume();
    assert_eq!(pod.value(KEY).await, None);
}

#[tokio::test]
async fn the_lines_before_a_tear_on_a_socket_are_counted() {
    let pod = Pod::new();
    let headers = "content-type: application/x-ndjson\r\ncontent-length: 9999";
    let mut socket = connect(&pod, BATCH, headers).await;
    socket.write_all(format!("{LINE}\n{LINE}\n{LINE}").as_bytes()).await.expect("written");
    socket.shutdown().await.expect("no more is written");
    let answer = rest(&mut socket).await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    assert!(head.starts_with("HTTP/1.1 400 "), "{answer}");
    let problem: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!((&problem["outcome"], &problem["summary"]["acked"]), (&json!("unknown"), &json!(2)));
    assert_eq!(pod.value(KEY).await.as_deref(), Some("10"));
}
