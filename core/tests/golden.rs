//! The bytes of every kind and format, kept permanently. A release that can't read them loses data. A release
//! that writes other bytes could be unreadable for pods that still run the previous one.
//!
//! A file holds ops, and the shard, the tally and the value that they give. `GOLDEN=write` writes missing
//! files, and never changes one.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use orderfree_core::crdt::envelope::{
    KeySeal, decode_state, decode_tally, encode_shard, encode_tally,
};
use orderfree_core::crdt::{Dot, Kind, Question, State};
use orderfree_core::protocol::{Key, MutatorId, Name, Timestamp};
use serde_json::{Value as Json, json};
use uuid::Uuid;

const WRITES: u64 = 3;

fn fence() -> Timestamp {
    Timestamp::from_micros(1_795_248_000_000_000)
}

/// The rows' address, which their checksums cover: key `site/home`, and the shard's expiry and mutator.
fn seal(kind: Kind) -> KeySeal {
    let name = |text| Name::new(text).expect("a name");
    KeySeal::of(&Key { kind, group: name("site"), name: name("home") })
}

fn writer() -> (Timestamp, MutatorId) {
    (fence().next(), MutatorId::new(Uuid::from_u128(7)))
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// A few ops of each kind that reach the edge cases of its format.
fn ops(kind: Kind) -> Json {
    match kind {
        Kind::Counter => {
            json!([{"op": "add", "by": -9_223_372_036_854_775_808_i64}, {"op": "add"}])
        }
        Kind::Sum => json!([{"op": "add", "by": "-0.000000000000000001"}, {"op": "add", "by": 12}]),
        Kind::Stats | Kind::Histogram => json!([
            {"op": "record", "value": 0.1, "count": 3}, {"op": "record", "value": -1e300},
            {"op": "record", "value": 0}, {"op": "record", "value": 5e-324},
        ]),
        Kind::Extrema => json!([
            {"op": "observe", "value": 9, "label": "eu-1"}, {"op": "observe", "value": -0.5},
        ]),
        Kind::TopK => json!([
            {"op": "add", "item": "x", "by": 300}, {"op": "add", "item": -7},
        ]),
        Kind::Register => json!([
            {"op": "set", "value": {"b": [1, 0.1, null], "a": "é"}},
        ]),
        Kind::LwwSet => json!([
            {"op": "add", "items": ["a", 7]}, {"op": "remove", "item": "a"},
        ]),
        Kind::Distinct | Kind::Audience | Kind::GSet | Kind::OrSet => json!([
            {"op": "add", "items": ["a", "é", 7, -1]}, {"op": "add", "item": "a"},
        ]),
    }
}

/// The state that these ops give, with fixed times and dots.
fn state(kind: Kind, ops: &Json) -> State {
    let mut state = State::new(kind, None);
    let mut micros = fence().as_micros();
    let (expires_at, mutator_id) = writer();
    let mut seq = 0;
    for op in ops.as_array().expect("a list") {
        let mut op = kind.parse_op(op).expect("an op");
        micros += 1;
        op.stamp(Timestamp::from_micros(micros));
        op.assign(&mut || {
            seq += 1;
            Dot { expires_at, mutator_id, seq }
        });
        state.apply(&op).expect("applied");
    }
    state
}

fn hex(bytes: &[u8]) -> Json {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
}

fn bytes(hex: &Json) -> Vec<u8> {
    let digits = hex.as_str().expect("hexadecimal digits");
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn shown(state: &State) -> Json {
    serde_json::to_value(state.value(&Question::default()).shown(false)).expect("JSON")
}

fn record(kind: Kind, ops: Json) -> Json {
    let state = state(kind, &ops);
    json!({
        "shard": hex(&encode_shard(seal(kind).row(writer().0, writer().1), &state, WRITES)),
        "tally": hex(&encode_tally(seal(kind), &state, fence())),
        "value": shown(&state),
        "ops": ops,
    })
}

#[test]
fn every_format_is_written_and_read_as_it_always_was() {
    let mut known = BTreeSet::new();
    for &kind in Kind::ALL {
        let file = format!("{}-{}.json", kind.name(), kind.format());
        let path = directory().join(&file);
        if std::env::var("GOLDEN").is_ok_and(|mode| mode == "write") && !path.exists() {
            let text = serde_json::to_string_pretty(&record(kind, ops(kind))).expect("JSON");
            fs::write(&path, text + "\n").expect("written");
        }
        known.insert(file);
    }
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory()).expect("the directory") {
        let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        let text = fs::read_to_string(directory().join(&name)).expect("readable");
        let golden: Json = serde_json::from_str(&text).expect("JSON");
        let (kind, format) = name.trim_end_matches(".json").rsplit_once('-').expect("KIND-FORMAT");
        let kind = Kind::from_name(kind).expect("a kind");
        let row = seal(kind).row(writer().0, writer().1);
        let shard = decode_state(row, kind, &bytes(&golden["shard"])).expect("readable");
        assert_eq!(shown(&shard), golden["value"], "{name}");
        let tally = bytes(&golden["tally"]);
        let tally = decode_tally(seal(kind), kind, &tally).expect("readable");
        assert_eq!((tally.0, shown(&tally.1)), (fence(), golden["value"].clone()), "{name}");
        if format == kind.format().to_string() {
            assert_eq!(record(kind, golden["ops"].clone()), golden, "{name}");
        }
        found.insert(name);
    }
    let missing: Vec<_> = known.difference(&found).collect();
    assert!(missing.is_empty(), "run with GOLDEN=write: {missing:?}");
}

/// The bytes must not depend on the process, such as on addresses or the random state of a hash map.
#[test]
fn two_processes_write_the_same_bytes() {
    const CHILD: &str = "ORDERFREE_GOLDEN_CHILD";
    let all: Vec<Json> = Kind::ALL.iter().map(|&kind| record(kind, many(kind))).collect();
    if std::env::var_os(CHILD).is_some() {
        println!("bytes: {}", Json::from(all));
        return;
    }
    let own = format!("bytes: {}", Json::from(all));
    let child = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["two_processes_write_the_same_bytes", "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("a second process");
    let printed = String::from_utf8(child.stdout).expect("UTF-8");
    assert!(printed.lines().any(|line| line.ends_with(&own)), "other bytes: {printed}");
}

/// Enough ops to grow every structure beyond its smallest form.
fn many(kind: Kind) -> Json {
    let (op, field) = kind.about().bare;
    (1..=3_000).map(|number| json!({"op": op, field: number * 7 % 1_999})).collect()
}
