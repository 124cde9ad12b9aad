//! Inputs for every kind, made from the kind's example op. They are in the corpus of their target, so that mutations
//! start from something that each kind accepts, stores or returns.

use std::fs;
use std::time::Duration;

use orderfree_core::crdt::envelope::{encode_shard, encode_stamped_shard, encode_tally};
use orderfree_core::crdt::{Dot, Kind, State};
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::{MutatorId, Timestamp};
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::folder;
use super::targets::decoders;

/// An input and its place in the corpus.
struct Seed {
    target: &'static str,
    file: String,
    bytes: Vec<u8>,
}

fn seeds() -> Vec<Seed> {
    let of_kind = |&kind: &Kind| {
        let (state, fence) = (state(kind), Timestamp::from_micros(1_700_000_000_000_000));
        let (row, tally) = (decoders::row(kind), decoders::key(kind));
        let (shard, stamp) = (encode_shard(row, &state, 1), Some(Generation::at(fence)));
        let payload = decoders::payload_in(&shard).to_vec();
        [
            ("op", "", kind.about().example_op.as_bytes().to_vec()),
            ("payload", "", payload),
            ("envelope", "-shard", shard),
            ("envelope", "-stamped", encode_stamped_shard(row, &state, 1, stamp)),
            ("envelope", "-tally", encode_tally(tally, &state, fence)),
            ("ndjson", "", stream(kind).into_bytes()),
            ("http", "", requests(kind).into_bytes()),
        ]
        .map(|(target, suffix, bytes)| Seed {
            target,
            file: format!("kind-{kind}{suffix}"),
            bytes,
        })
    };
    Kind::ALL.iter().flat_map(of_kind).collect()
}

/// The state after the kind's example op.
fn state(kind: Kind) -> State {
    let mut op = kind.parse_op(&example(kind)).expect("an example is an op");
    let time = Timestamp::from_micros(1_700_000_000_000_000);
    let expires_at = time.plus(Duration::from_secs(60));
    let mutator_id = MutatorId::new(Uuid::from_u128(1));
    op.stamp(time);
    op.assign(&mut || Dot { expires_at, mutator_id, seq: 1 });
    let mut state = State::new(kind, None);
    state.apply(&op).expect("an example can be applied");
    state
}

fn example(kind: Kind) -> Json {
    serde_json::from_str(kind.about().example_op).expect("an example is JSON")
}

/// Two updates of one key, in chunks of 40 bytes.
fn stream(kind: Kind) -> String {
    let line = json!({"kind": kind.name(), "group": "g", "name": "n", "op": example(kind)});
    format!("({line}\n{line}\n")
}

/// An update in each form of body, reads with all parameters, merges, a fold and a read of the tally.
fn requests(kind: Kind) -> String {
    let (name, op, json) = (kind.name(), kind.about().example_op, "content-type: application/json");
    let value = |parameter: &&str| match *parameter {
        "q" => "q=0.5,0.99".to_owned(),
        "buckets" => "buckets=true".to_owned(),
        "as" => "as=prometheus".to_owned(),
        "contains" => "contains=a".to_owned(),
        other => panic!("give a value for {other}"),
    };
    let parameters: Vec<String> = kind.about().parameters.iter().map(value).collect();
    let asked = parameters.join("&");
    [
        format!("POST /v1/{name}/g/n\n{json}\n\n{op}"),
        format!("POST /v1/{name}/g/m?return=value\n{json}\n\n{{\"ops\":[{op},{op}]}}"),
        format!("POST /v1/{name}/g/n\ncontent-type: text/plain\n\n7"),
        format!("GET /v1/{name}/g/n?{asked}"),
        format!("GET /v1/{name}/g?numbers=string"),
        format!("POST /v1/merge\n{json}\n\n{{\"kind\":\"{name}\",\"group\":\"g\",\"names\":[\"n\",\"m\"]}}"),
        format!(
            "POST /v1/merge\n{json}\n\n{{\"kind\":\"{name}\",\"group\":\"g\",\"expression\":{{\"or\":[\"n\",\"m\"]}}}}"
        ),
        "advance 200".to_owned(),
        format!("POST /v1/{name}/g/n/fold"),
        format!("GET /v1/{name}/g/n/shards"),
        format!("GET /v1/{name}/g/n?max_staleness=1s"),
    ]
    .join("\n---\n")
}

/// `UPDATE_CORPUS=1` writes the inputs of a new kind.
#[test]
fn every_kind_is_in_the_corpus() {
    for Seed { target, file, bytes } in seeds() {
        let path = folder(target).join(&file);
        if std::env::var_os("UPDATE_CORPUS").is_some() {
            fs::write(&path, &bytes).expect("the corpus can be written");
        }
        let there = fs::read(&path).unwrap_or_default();
        assert!(there == bytes, "{} is not the example's: UPDATE_CORPUS=1", path.display());
    }
}
