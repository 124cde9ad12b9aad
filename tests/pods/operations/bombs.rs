//! Bodies that grow when they are decompressed. They are refused at their limits, and other clients are served
//! meanwhile.

use std::io::Write;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use futures::future::join_all;
use serde_json::json;
use tokio::time::sleep;

use crate::bystanders::Bystander;
use crate::machine;
use crate::pod::{MIB, Setup};
use crate::wire::{self, Answer, request};

const AT_ONCE: usize = 16;

/// Memory that all of them together may cost a pod.
const MEMORY: usize = 128 * MIB;

/// How long other clients may wait for their answers meanwhile.
const OTHERS_WAIT: Duration = Duration::from_millis(500);

/// This many MiB of one byte.
fn packed(byte: u8, mib: usize) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    for _ in 0..mib {
        encoder.write_all(&[byte; MIB]).expect("written");
    }
    encoder.finish().expect("packed")
}

async fn send(port: u16, kind: &str, body: &[u8]) -> Answer {
    let headers = [("content-type", kind), ("content-encoding", "gzip")];
    wire::ask(port, &request("POST", "/v1/batch", &headers, body)).await.expect("an answer")
}

/// Sends this many requests concurrently. Returns the answers and the growth of the pod's memory.
async fn burst(port: u16, process: u32, kind: &str, body: &[u8]) -> (Vec<Answer>, usize) {
    let before = crate::pod::memory_of(process);
    let mut most = before;
    let answers = join_all((0..AT_ONCE).map(|_| send(port, kind, body)));
    let watch = async {
        loop {
            most = most.max(crate::pod::memory_of(process));
            sleep(Duration::from_millis(20)).await;
        }
    };
    let answers = tokio::select! {
        biased;
        answers = answers => answers,
        () = watch => unreachable!("the watch never ends"),
    };
    (answers, most - before)
}

async fn is_defused(kind: &str, body: Vec<u8>) {
    let _beside = machine::beside().await;
    let pod = Setup::new().start().await;
    let (bystander, began) = (Bystander::start(pod.port()), Instant::now());
    sleep(Duration::from_millis(200)).await;
    let (answers, grown) = burst(pod.port(), pod.process(), kind, &body).await;
    println!("{AT_ONCE} bombs of {kind}: {:?}, {} MiB", began.elapsed(), grown / MIB);
    for answer in answers {
        assert_eq!((answer.status, answer.problem().as_str()), (413, "body-too-large"));
    }
    sleep(Duration::from_millis(200)).await;
    bystander.was_served(OTHERS_WAIT).await;
    assert!(grown <= MEMORY, "{} MiB more", grown / MIB);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gibibyte_of_zeros_is_refused_after_one_mebibyte_as_json() {
    is_defused("application/json", packed(0, 1_024)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gibibyte_stream_of_zeros_is_refused_after_64_mebibytes() {
    is_defused("application/x-ndjson", packed(0, 1_024)).await;
}

/// Each byte is a line, which costs more than a byte of a long line.
#[tokio::test(flavor = "multi_thread")]
async fn a_gibibyte_of_line_breaks_delays_no_other_client() {
    is_defused("application/x-ndjson", packed(b'\n', 1_024)).await;
}

/// Each member is small, and so is all of them that is sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_gibibyte_in_a_thousand_members_is_refused_as_well() {
    is_defused("application/x-ndjson", packed(0, 1).repeat(1_024)).await;
}

/// Members of nothing cost time, but give no text that would reach a limit.
#[tokio::test(flavor = "multi_thread")]
async fn members_of_nothing_delay_no_other_client() {
    let _beside = machine::beside().await;
    let pod = Setup::new().start().await;
    let body = packed(0, 0).repeat(100_000);
    let (bystander, began) = (Bystander::start(pod.port()), Instant::now());
    let (answers, grown) = burst(pod.port(), pod.process(), "application/x-ndjson", &body).await;
    println!("{AT_ONCE} bodies of nothing: {:?}, {} MiB", began.elapsed(), grown / MIB);
    for answer in answers {
        assert_eq!((answer.status, &answer.json()["lines"]), (200, &json!(0)));
    }
    bystander.was_served(OTHERS_WAIT).await;
    assert!(grown <= MEMORY, "{} MiB more", grown / MIB);
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_and_nested_archives_are_refused() {
    let pod = Setup::new().start().await;
    let whole = packed(b' ', 1);
    let mut twice = GzEncoder::new(Vec::new(), Compression::best());
    twice.write_all(&whole).expect("written");
    for (name, body) in [
        ("cut off", whole[..whole.len() / 2].to_vec()),
        ("no archive", vec![0x42; 1_000]),
        ("an archive in an archive", twice.finish().expect("packed")),
    ] {
        for kind in ["application/json", "application/x-ndjson"] {
            let answer = send(pod.port(), kind, &body).await;
            let is_refused = (400..500).contains(&answer.status) || answer.json()["refused"] == 1;
            assert!(is_refused, "{name}: {}", answer.text());
        }
    }
    assert_eq!(pod.get("/readyz").await.status, 200);
}
