//! Streams of updates: for any size of chunks, the summary counts every line once, and a line has the same outcome as
//! in a batch.

use axum::body::Body;
use serde_json::Value as Json;

use super::requests::chunked;
use super::surface::with_pod;

const BATCH: &str = "/v1/batch";
const NDJSON: &str = "application/x-ndjson";

/// Longer inputs take more time, and their lines could need more ranges than a summary has.
const INPUT_BYTES_MAX: usize = 128 * 1024;

/// How many lines are also tried alone.
const ALONE_MAX: usize = 20;

/// The first byte is the size of the chunks, the rest is the stream.
pub(super) fn run(input: &[u8]) {
    let Some((&size, body)) = input.split_first() else { return };
    if body.len() > INPUT_BYTES_MAX {
        return;
    }
    if body.starts_with(b"\x1f\x8b") {
        let answer = with_pod(|pod| pod.post(BATCH, NDJSON, Body::from(body.to_vec())));
        assert_eq!(answer.status, 400, "gzip that does not say so: {answer:?}");
        return;
    }
    let whole = summary(Body::from(body.to_vec()));
    assert_eq!(summary(chunked(body, usize::from(size).max(1))), whole, "chunks matter");
    let text = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let lines: Vec<(usize, &[u8])> = (1..)
        .zip(text.split(|&byte| byte == b'\n'))
        .filter(|(_, line)| !line.iter().all(u8::is_ascii_whitespace))
        .collect();
    let count = |field: &str| usize::try_from(whole[field].as_u64().expect("a count")).unwrap();
    assert_eq!(count("lines"), lines.len(), "{whole}");
    let refused = count("refused");
    assert_eq!(count("acked") + refused, lines.len(), "{whole}");
    let number = |value: &Json| usize::try_from(value.as_u64().expect("a number")).unwrap();
    let ranges: Vec<(usize, usize)> = whole["errors"]
        .as_array()
        .expect("errors")
        .iter()
        .map(|range| (number(&range["first"]), number(&range["last"])))
        .collect();
    assert!(ranges.iter().is_sorted_by(|one, other| one.1 < other.0), "{whole}");
    let is_refused = |line: usize| ranges.iter().any(|range| (range.0..=range.1).contains(&line));
    let named = lines.iter().filter(|(number, _)| is_refused(*number)).count();
    assert_eq!(named, refused, "{whole}");
    for (number, line) in lines.into_iter().take(ALONE_MAX) {
        assert_eq!(is_refused(number), !is_acked_alone(line), "line {number}: {whole}");
    }
}

fn summary(body: Body) -> Json {
    let answer = with_pod(|pod| pod.post(BATCH, NDJSON, body));
    let json = answer.json();
    if answer.status == 200 {
        assert!(json["acked"] != 0 || json["lines"] == 0, "{json}");
        return json;
    }
    assert!(answer.status.is_client_error() && json["outcome"] == "refused", "{answer:?}");
    let summary = json["summary"].clone();
    assert_eq!((&summary["acked"], &summary["errors"][0]["type"]), (&0.into(), &json["type"]));
    summary
}

/// Whether a line is acknowledged if it is the only update of a JSON batch.
fn is_acked_alone(line: &[u8]) -> bool {
    // A line that is not one JSON text could close the list around it.
    if serde_json::from_slice::<Json>(line).is_err() {
        return false;
    }
    let batch = [br#"{"updates":["#, line, b"]}"].concat();
    let answer = with_pod(|pod| pod.post(BATCH, "application/json", Body::from(batch)));
    match answer.status.as_u16() {
        200 => answer.json()["results"][0]["outcome"] == "acked",
        400 => false,
        _ => panic!("{answer:?}"),
    }
}
