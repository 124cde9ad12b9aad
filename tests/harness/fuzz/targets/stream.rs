//! Streams of updates: for any size of chunks, the summary counts every line once, and a line has the same outcome as
//! in a batch.

use axum::body::Body;
use serde_json::Value as Json;

use super::requests::chunked;
use super::surface::with_pod;

const BATCH: &str = "/v1/batch";
const NDJSON: &str = "application/x-ndjson";

/// Longer inputs only take more time.
const INPUT_BYTES_MAX: usize = 256 * 1024;

/// How many lines are also tried alone.
const ALONE_MAX: usize = 20;

/// The first byte is the size of the chunks, the rest is the stream.
pub(super) fn run(input: &[u8]) {
    let Some((&size, body)) = input.split_first() else { return };
    if body.len() > INPUT_BYTES_MAX {
        return;
    }
    let whole = summary(Body::from(body.to_vec()));
    assert_eq!(summary(chunked(body, usize::from(size).max(1))), whole, "chunks matter");
    let lines: Vec<(usize, &[u8])> = (1..)
        .zip(body.split(|&byte| byte == b'\n'))
        .filter(|(_, line)| !line.iter().all(u8::is_ascii_whitespace))
        .collect();
    let count = |field: &str| usize::try_from(whole[field].as_u64().expect("a count")).unwrap();
    assert_eq!(count("lines"), lines.len(), "{whole}");
    let refused = count("refused");
    assert_eq!(count("acked") + refused, lines.len(), "{whole}");
    let errors = whole["errors"].as_array().expect("errors");
    assert_eq!(errors.len(), refused.min(100), "{whole}");
    let numbers: Vec<u64> = errors.iter().map(|error| error["line"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{whole}");
    if refused > 100 {
        return;
    }
    for (number, line) in lines.into_iter().take(ALONE_MAX) {
        let is_refused = numbers.contains(&(number as u64));
        assert_eq!(is_refused, !is_acked_alone(line), "line {number}: {whole}");
    }
}

fn summary(body: Body) -> Json {
    let answer = with_pod(|pod| pod.post(BATCH, NDJSON, body));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
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
