//! Bodies with a `Content-Encoding`.

use std::io::Write;

use axum::body::Body;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use crate::pod::{Answer, Pod, request};

const KEY: &str = "/v1/counter/g/a";
const BATCH: &str = "/v1/batch";
const JSON: &str = "application/json";
const NDJSON: &str = "application/x-ndjson";
const LINE: &str = r#"{"kind":"counter","group":"g","name":"a","op":{"op":"add"}}"#;

fn packed(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).expect("memory");
    encoder.finish().expect("memory")
}

/// Sends a gzip body, in chunks of this size.
async fn send(pod: &Pod, media: &str, body: &[u8], chunk: usize) -> Answer {
    let chunks: Vec<_> =
        body.chunks(chunk).map(<[u8]>::to_vec).map(Ok::<_, std::io::Error>).collect();
    let headers = [("content-type", media), ("content-encoding", "gzip")];
    pod.send(request("POST", BATCH, &headers, Body::from_stream(futures::stream::iter(chunks))))
        .await
}

#[tokio::test]
async fn all_members_of_a_gzip_body_are_read() {
    let pod = Pod::new();
    let whole = format!("{LINE}\n").repeat(500);
    // A line can begin in one member and end in the next.
    let (begin, end) = LINE.split_at(20);
    let members = [packed(&whole), packed(begin), packed(""), packed(&format!("{end}\n"))].concat();
    for (round, chunk) in (1..).zip([usize::MAX, 1_000, 18, 1]) {
        let answer = send(&pod, NDJSON, &members.repeat(5), chunk).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(answer.json()["acked"], 2_505, "in chunks of {chunk}");
        assert_eq!(pod.value(KEY).await, Some((2_505 * round).to_string()));
    }
    let halves = [packed(r#"{"updates":["#), packed(&format!("{LINE}]}}"))].concat();
    let answer = send(&pod, JSON, &halves, usize::MAX).await;
    assert_eq!(answer.json()["results"][0]["outcome"], "acked", "{}", answer.text);
}

#[tokio::test]
async fn anything_but_members_ends_a_gzip_stream() {
    let pod = Pod::new();
    let (first, second) = (packed(&format!("{LINE}\n")), packed(&format!("{LINE}\n{LINE}\n")));
    let mut wrong_sum = second.clone();
    let at = wrong_sum.len() - 8;
    wrong_sum[at] ^= 1;
    let all = |last: &[u8]| [&first[..], &second, last].concat();
    for (name, body, acked) in [
        ("text after the last member", all(LINE.as_bytes()), 3),
        ("zeros after the last member", all(&[0; 512]), 3),
        ("one byte after the last member", all(&[0x1f]), 3),
        ("half a header", all(&second[..5]), 3),
        ("half a member", all(&second[..second.len() / 2]), 3),
        ("half a checksum", all(&second[..second.len() - 4]), 5),
        ("a wrong checksum", all(&wrong_sum), 5),
    ] {
        for chunk in [usize::MAX, 7, 1] {
            let answer = send(&pod, NDJSON, &body, chunk).await;
            assert_eq!(answer.problem(400, "bad-body").as_deref(), Some("unknown"), "{name}");
            assert_eq!(answer.json()["summary"]["acked"], acked, "{name} in chunks of {chunk}");
        }
    }
    for body in [&b""[..], b"{}", &first[..first.len() - 1]] {
        let answer = send(&pod, JSON, body, 5).await;
        assert_eq!(answer.problem(400, "bad-body").as_deref(), Some("refused"));
    }
}

#[tokio::test]
async fn encodings_that_are_not_read_are_refused() {
    let pod = Pod::new();
    let send = async |path: &str, media: &str, encodings: &[&str]| {
        let mut headers = vec![("content-type", media)];
        headers.extend(encodings.iter().map(|encoding| ("content-encoding", *encoding)));
        pod.send(request("POST", path, &headers, packed(LINE))).await
    };
    let all: &[&[&str]] = &[
        &["br"],
        &["gzip, gzip"],
        &["gzip", "gzip"],
        &["gzip, br"],
        &["identity", "deflate"],
        &["zstd,identity"],
        &["gzip;q=1"],
    ];
    for encodings in all {
        for media in [JSON, NDJSON, "text/plain"] {
            let answer = send(BATCH, media, encodings).await;
            assert_eq!(answer.problem(415, "content-type").as_deref(), Some("refused"));
            assert!(answer.text.contains("gzip, applied once"), "{encodings:?}: {}", answer.text);
            assert_eq!(answer.header("accept-encoding"), "gzip");
        }
    }
    for encodings in [&["GZIP"][..], &["x-gzip"], &["identity, gzip"], &["identity", ",gzip ,"]] {
        let answer = send(BATCH, NDJSON, encodings).await;
        assert_eq!(answer.json()["acked"], 1, "{encodings:?}: {}", answer.text);
    }
    let elsewhere = [&["gzip"][..], &["identity", "gzip"], &["br"]];
    for (path, media) in
        [(KEY, JSON), (KEY, "text/plain"), ("/v1/query", JSON), ("/v1/merge", JSON)]
    {
        for encodings in elsewhere {
            let answer = send(path, media, encodings).await;
            answer.problem(415, "content-type");
            assert!(answer.text.contains("POST /v1/batch accepts gzip"), "{}", answer.text);
            assert_eq!(answer.header("accept-encoding"), "identity");
        }
    }
    let headers = [("content-type", JSON), ("content-encoding", "identity, ,identity")];
    let answer = pod.send(request("POST", KEY, &headers, json!({"op": "add"}).to_string())).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(pod.value(KEY).await.as_deref(), Some("5"));
}
