//! Requests that are invalid or too large. They are refused at once in bounded memory, and do no harm to other clients.

use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use crate::bystanders::Bystander;
use crate::machine;
use crate::pod::{MIB, Pod, Setup};
use crate::wire::{Connection, request};

/// Memory that all of these together may cost a pod.
const MEMORY: usize = 96 * MIB;

/// How long other clients may wait for their answers meanwhile.
const OTHERS_WAIT: Duration = Duration::from_millis(500);

const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const KEY: &str = "/v1/counter/g/n";

/// Sends bytes. Returns the status of the first answer, or 0 if the connection was closed without one.
async fn first_status(pod: &Pod, bytes: &[u8]) -> u16 {
    let mut connection = Connection::open(pod.port()).await.expect("a connection");
    // A server may close the connection before it has read everything.
    let _ = connection.send(bytes).await;
    let answer = timeout(ANSWER_WITHIN, connection.answer()).await;
    answer.expect("answered or ended in time").map_or(0, |answer| answer.status)
}

/// A request with these header lines.
fn with_lines(lines: &str, body: &str) -> Vec<u8> {
    format!("POST {KEY} HTTP/1.1\r\nhost: a\r\ncontent-type: text/plain\r\n{lines}\r\n{body}")
        .into()
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_not_http_are_refused_and_do_no_harm() {
    let _beside = machine::beside().await;
    let pod = Setup::new().start().await;
    let (bystander, before) = (Bystander::start(pod.port()), pod.memory());
    let garbage: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    let hello = [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], &[0; 505]].concat();
    let cases: Vec<(&str, Vec<u8>, &[u16])> = vec![
        ("every byte", garbage, &[400]),
        ("words", b"how do you do\r\n\r\n".to_vec(), &[400]),
        ("the preface of HTTP/2", preface.to_vec(), &[0, 400]),
        ("a TLS handshake", hello, &[400]),
        (
            "CONNECT",
            b"CONNECT a.example:443 HTTP/1.1\r\nhost: a.example:443\r\n\r\n".to_vec(),
            &[404],
        ),
        ("a proxy's GET", b"GET http://a.example/x HTTP/1.1\r\nhost: a\r\n\r\n".to_vec(), &[404]),
        ("OPTIONS *", b"OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n".to_vec(), &[404]),
        ("HTTP/0.9", b"GET /livez\r\n\r\n".to_vec(), &[400]),
        ("HTTP/3.0", b"GET /livez HTTP/3.0\r\n\r\n".to_vec(), &[400]),
        ("a NUL in the address", b"GET /liv\0ez HTTP/1.1\r\n\r\n".to_vec(), &[400]),
        ("a NUL in a header", with_lines("x: a\0b\r\n", ""), &[400]),
        ("a folded header", with_lines("x: a\r\n b\r\n", ""), &[400]),
        ("two lengths", with_lines("content-length: 1\r\ncontent-length: 2\r\n", "11"), &[400]),
        ("a negative length", with_lines("content-length: -1\r\n", "1"), &[400]),
        (
            "a length beyond 64 bits",
            with_lines("content-length: 99999999999999999999\r\n", "1"),
            &[400],
        ),
        ("a length of a terabyte", with_lines("content-length: 1099511627776\r\n", "1"), &[413]),
        ("an unknown transfer coding", with_lines("transfer-encoding: banana\r\n", "1"), &[400]),
        (
            "a chunk without a length",
            with_lines("transfer-encoding: chunked\r\n", "zz\r\n"),
            &[400],
        ),
        (
            "a body of an unknown encoding",
            with_lines("content-encoding: br\r\ncontent-length: 1\r\n", "1"),
            &[415],
        ),
        (
            "an upgrade",
            b"GET /livez HTTP/1.1\r\nhost: a\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"
                .to_vec(),
            &[200],
        ),
        ("HTTP/1.1 without a host", b"GET /livez HTTP/1.1\r\n\r\n".to_vec(), &[400]),
        ("two hosts", b"GET /livez HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n".to_vec(), &[400]),
        ("HTTP/1.0 without a host", b"GET /livez HTTP/1.0\r\n\r\n".to_vec(), &[200]),
        ("HTTP/1.0 with a host", b"GET /livez HTTP/1.0\r\nhost: a\r\n\r\n".to_vec(), &[200]),
    ];
    for (name, bytes, expected) in &cases {
        for _ in 0..20 {
            let status = first_status(&pod, bytes).await;
            assert!(expected.contains(&status), "{name}: {status}, not {expected:?}");
        }
    }
    // The end of the request can be read in two ways. A second request hidden in the first must not be served.
    let smuggled = with_lines(
        "content-length: 4\r\ntransfer-encoding: chunked\r\n",
        "0\r\n\r\nPOST /v1/counter/g/smuggled HTTP/1.1\r\nhost: a\r\n\r\n",
    );
    let mut connection = Connection::open(pod.port()).await.expect("a connection");
    connection.send(&smuggled).await.expect("sent");
    timeout(ANSWER_WITHIN, connection.ended()).await.expect("such a connection is ended");
    assert_eq!(pod.count("/v1/counter/g/smuggled").await, 0);
    is_unharmed(&pod, before, bystander).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_requests_are_refused_and_do_no_harm() {
    let _beside = machine::beside().await;
    let pod = Setup::new().start().await;
    let (bystander, before) = (Bystander::start(pod.port()), pod.memory());
    let long = |bytes: usize| "a".repeat(bytes);
    let headers: String = (0..100_000).map(|index| format!("x{index}: y\r\n")).collect();
    let get = |path: &str| request("GET", path, &[], "");
    let cases: Vec<(&str, Vec<u8>, &[u16])> = vec![
        ("a name of 300 bytes", get(&format!("/v1/counter/g/{}", long(300))), &[400]),
        ("a name of 10 KiB", get(&format!("/v1/counter/g/{}", long(10 << 10))), &[414]),
        ("a name of 1 MiB", get(&format!("/v1/counter/g/{}", long(1 << 20))), &[414, 431]),
        ("an address of 1 MiB", get(&format!("/{}", long(1 << 20))), &[414, 431]),
        ("a query of 1 MiB", get(&format!("{KEY}?a={}", long(1 << 20))), &[414, 431]),
        ("a header of 1 MiB", with_lines(&format!("x: {}\r\n", long(1 << 20)), ""), &[431]),
        ("a method of 1 MiB", format!("{} / HTTP/1.1\r\n\r\n", long(1 << 20)).into(), &[400, 431]),
        ("100,000 headers", with_lines(&headers, ""), &[431]),
        ("100,000 line breaks", "\r\n".repeat(100_000).into(), &[400, 431]),
        ("200 headers", with_lines(&headers[..2_000], ""), &[431]),
    ];
    for (name, bytes, expected) in &cases {
        for _ in 0..20 {
            let status = first_status(&pod, bytes).await;
            assert!(expected.contains(&status), "{name}: {status}, not {expected:?}");
        }
    }
    is_unharmed(&pod, before, bystander).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_bodies_are_refused_and_do_no_harm() {
    let _beside = machine::beside().await;
    let pod = Setup::new().start().await;
    let (bystander, before) = (Bystander::start(pod.port()), pod.memory());
    let deep = "[".repeat(10_000);
    let closed = format!("{deep}{}", "]".repeat(10_000));
    let name = |bytes: usize| {
        let update = json!({"kind": "counter", "group": "g", "name": "a".repeat(bytes), "op": {"op": "add"}});
        json!({"updates": [update]}).to_string()
    };
    for (text, path, body, expected) in [
        ("deep and open", "/v1/register/g/n", deep.clone(), (400, "bad-body")),
        ("deep and closed", "/v1/register/g/n", closed.clone(), (400, "bad-op")),
        (
            "a deep value",
            "/v1/register/g/n",
            format!(r#"{{"op":"set","value":{closed}}}"#),
            (400, "bad-body"),
        ),
        ("deep objects", "/v1/query", r#"{"a":"#.repeat(10_000), (400, "bad-body")),
        (
            "deep algebra",
            "/v1/merge",
            format!(
                r#"{{"kind":"audience","group":"g","expression":{}"a"{}}}"#,
                r#"{"not":"#.repeat(10_000),
                "}".repeat(10_000)
            ),
            (400, "bad-body"),
        ),
        ("a name of 1 MiB", "/v1/batch", name(MIB), (413, "body-too-large")),
        (
            "a long number",
            "/v1/counter/g/n",
            format!(r#"{{"op":"add","by":{}}}"#, "9".repeat(900_000)),
            (400, ""),
        ),
    ] {
        for _ in 0..20 {
            let answer =
                pod.ask("POST", path, &[("content-type", "application/json")], &body).await;
            let (status, problem) = expected;
            assert_eq!(answer.status, status, "{text}: {}", answer.text());
            assert!(problem.is_empty() || answer.problem() == problem, "{text}: {}", answer.text());
            assert!(
                answer.body.len() < 8 * 1024,
                "{text}: much is repeated, {}",
                answer.body.len()
            );
        }
    }
    let headers = [("content-type", "application/json")];
    let answer = pod.ask("POST", "/v1/batch", &headers, &name(900_000)).await.json();
    assert_eq!(answer["results"][0]["problem"]["type"], "/problems/bad-name", "{answer}");
    // A deep update is refused, and the rest of its batch is not.
    let deep = format!(r#"{{"updates":{closed}}}"#);
    let answer = pod.ask("POST", "/v1/batch", &headers, &deep).await.json();
    assert_eq!(answer["results"][0]["problem"]["type"], "/problems/bad-body", "{answer}");
    // As plain text, brackets are a string, which is longer here than a state may be.
    let bare = [("content-type", "text/plain")];
    let answer = pod.ask("POST", "/v1/register/g/n", &bare, &"[".repeat(500_000)).await;
    assert_eq!((answer.status, answer.problem().as_str()), (409, "state-too-large"));
    for (path, kind) in
        [(KEY, "text/plain"), ("/v1/batch", "application/json"), ("/v1/merge", "application/json")]
    {
        endless(&pod, path, kind).await;
    }
    is_unharmed(&pod, before, bystander).await;
}

/// A body without an end is refused after 1 MiB.
async fn endless(pod: &Pod, path: &str, kind: &str) {
    let mut connection = Connection::open(pod.port()).await.expect("a connection");
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    connection.send(head.as_bytes()).await.expect("sent");
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(1 << 16));
    let mut sent = 0;
    // The rest is not read. Sending it fails sooner or later, because the connection is closed.
    while sent < 64 * MIB && connection.send(chunk.as_bytes()).await.is_ok() {
        sent += 1 << 16;
    }
    assert!(sent < 16 * MIB, "{path} took {sent} bytes");
    let answer = timeout(ANSWER_WITHIN, connection.answer()).await.expect("in time");
    // The data on their way may have made the system drop the answer.
    if let Ok(answer) = answer {
        assert_eq!((answer.status, answer.problem().as_str()), (413, "body-too-large"), "{path}");
    }
}

async fn is_unharmed(pod: &Pod, before: usize, bystander: Bystander) {
    bystander.was_served(OTHERS_WAIT).await;
    let grown = pod.memory().saturating_sub(before);
    assert!(grown <= MEMORY, "{} MiB more", grown / MIB);
    assert_eq!(pod.get("/readyz").await.status, 200);
    assert_eq!(pod.log().lines().count(), 1, "strangers can't fill the log: {}", pod.log());
}
