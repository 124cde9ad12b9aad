//! Answers that come before the request is complete. A client that sends its next request on that connection must get
//! an answer there, or must know that the connection ends. Otherwise an update could be lost, and nothing would show
//! whether it counts.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::pod::{Setup, token};
use crate::wire::{Connection, bearer, request};

const ANSWER_WITHIN: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_before_the_body_says_whether_the_connection_ends() {
    let (all, lines) = token("all", &[("", &["read", "write", "admin"])], "");
    let (slow, more) = token("slow", &[("", &["read", "write"])], "rate = 1");
    let pod = Setup::new().policy(&(lines + &more)).start().await;
    let (all, slow) = (bearer(&all), bearer(&slow));
    // Uses up the rate.
    let item = r#"{"kind":"counter","group":"g","name":"n","op":{"op":"add"}}"#;
    let batch = format!(r#"{{"updates":[{}]}}"#, vec![item; 1_000].join(","));
    let headers = [("authorization", slow.as_str()), ("content-type", "application/json")];
    for status in [200, 429] {
        let answer = pod.ask("POST", "/v1/batch", &headers, &batch).await;
        assert_eq!(answer.status, status, "{}", answer.text());
    }

    let mut silent = Vec::new();
    for (method, path, caller, length, expected) in [
        ("POST", "/v1/counter/g/n", &all, 1_500_000, 413),
        ("POST", "/v1/batch", &all, 1_500_000, 413),
        ("POST", "/v1/counter/g/n", &String::new(), 300_000, 401),
        ("POST", "/v1/batch", &slow, 300_000, 429),
        ("POST", "/v1/counter/g/n?no=such", &all, 300_000, 400),
        ("POST", "/v1/nokind/g/n", &all, 300_000, 404),
        ("POST", "/nowhere", &all, 300_000, 404),
        ("PATCH", "/v1/counter/g/n", &all, 300_000, 405),
        ("PUT", "/v1/counter/g/n", &all, 300_000, 405),
        ("GET", "/livez", &all, 300_000, 200),
    ] {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: a\r\nauthorization: {caller}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n"
        );
        let mut connection = Connection::open(pod.port()).await.expect("a connection");
        connection.send(head.as_bytes()).await.expect("sent");
        connection.send(&[b' '; 1_000]).await.expect("sent");
        let answer = timeout(ANSWER_WITHIN, connection.answer()).await.expect("before the body");
        let answer = answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        assert_eq!(answer.status, expected, "{method} {path}: {}", answer.text());
        sleep(Duration::from_millis(100)).await;
        let rest = vec![b' '; length - 1_000];
        let next = request("GET", "/livez", &[], "");
        let sent = connection.send(&[rest, next].concat()).await;
        let second = timeout(ANSWER_WITHIN, connection.answer()).await;
        let goes_on = sent.is_ok() && second.is_ok_and(|second| second.is_ok());
        if !goes_on && answer.header("connection") != "close" {
            silent.push(format!("{method} {path}: {expected}"));
        }
    }
    assert!(silent.is_empty(), "connections end that were not said to: {silent:#?}");
}

/// A connection reset while the client sends would destroy the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_all_before_reading_gets_the_answer_too() {
    const PIECES: usize = 20;
    static PIECE: [u8; 64 * 1024] = [b' '; 64 * 1024];
    let pod = Setup::new().start().await;
    let length = PIECES * PIECE.len();
    for path in ["/v1/counter/g/n", "/v1/batch"] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n"
        );
        let mut connection = Connection::open(pod.port()).await.expect("a connection");
        connection.send(head.as_bytes()).await.expect("sent");
        for _ in 0..PIECES {
            sleep(Duration::from_millis(20)).await;
            connection.send(&PIECE).await.expect("taken in, though refused already");
        }
        let answer = timeout(ANSWER_WITHIN, connection.answer()).await.expect("in time");
        assert_eq!(answer.expect("an answer").status, 413, "{path}");
        let end = timeout(ANSWER_WITHIN, connection.answer()).await.expect("in time");
        assert!(end.is_err(), "{path}: the connection is over");
    }
}
