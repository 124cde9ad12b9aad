//! The fuzz targets on the stable toolchain. Each target runs on its committed corpus, on arbitrary bytes and on
//! mutations of its corpus. `README.md` says how to search longer with libFuzzer.

mod kinds;
mod targets;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::{fmt, fs};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Bytes that mutations insert, because parsers treat them specially.
const TOKENS: &[&[u8]] = &[
    b"\n",
    b"\n---\n",
    b"\r\n",
    b"%",
    b"%2F",
    b"%00",
    b"%FF",
    b"/",
    b"?",
    b"&",
    b"=",
    b"+",
    b"\0",
    b"\x7f",
    b"\x80",
    b"\xff",
    "\u{85}".as_bytes(),
    "☃".as_bytes(),
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b":",
    b",",
    b"-",
    b"0",
    b"1",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"9223372036854775808",
    b"1e3",
    b"e-1",
    b".0",
    b"0.5",
    b"null",
    b"true",
    b"\\u0000",
    b"\"op\"",
    b"\"add\"",
    b"\"by\"",
    b"\"ops\"",
    b"\"item\"",
    b"\"items\"",
    b"\"value\"",
    b"\"label\"",
    b"\"count\"",
    b"\"seen\"",
    b"\"after\"",
    b"\"image\"",
    b"\"remove\"",
    b"\"clear\"",
    b"\"unset\"",
    b"\"merge\"",
    b"\"names\"",
    b"\"expression\"",
    b"\"not\"",
    b"\"and\"",
    b"sum",
    b"stats",
    b"extrema",
    b"histogram",
    b"topk",
    b"distinct",
    b"audience",
    b"gset",
    b"register",
    b"lww_set",
    b"or_set",
    b"counter",
    b"/v1/merge",
    b"/v1/query",
    b"max_staleness=",
    b"lg_k",
    b"scale",
    b"group_prefix",
    b"[[precision]]",
    b"advance 100\n---\n",
    b"GET ",
    b"POST ",
    b"DELETE ",
    b"HEAD ",
    b"/fold",
    b"/reset",
    b"?all=true",
    b"prefix=",
    b"/shards",
    b"ack=memory",
    b"numbers=string",
    b"content-type: application/json\n",
    b"idempotency-key: a\nidempotency-time: 1700000000\n",
    b"prefer: respond-async\n",
    b":chunk: 1\n",
    b":gzip: 1\n",
    b"ms",
    b"y",
    b"18446744073709551615",
    b"--",
];

/// Bytes that are printed as text, since most inputs are text.
#[derive(Clone)]
struct Input(Vec<u8>);

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

/// One change to an input. Places are relative, so that a change fits any input.
#[derive(Debug, Clone)]
enum Change {
    Flip(Index, u8),
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize),
    Splice(Index, Vec<u8>),
}

impl Change {
    fn apply(self, bytes: &mut Vec<u8>) {
        let end = |at: usize, length: usize| (at + length).min(bytes.len());
        match self {
            Change::Insert(at, new) => {
                let at = at.index(bytes.len() + 1);
                bytes.splice(at..at, new);
            }
            _ if bytes.is_empty() => {}
            Change::Flip(at, bit) => *at.get_mut(bytes) ^= 1 << (bit % 8),
            Change::Set(at, byte) => *at.get_mut(bytes) = byte,
            Change::Remove(at, length) => {
                let at = at.index(bytes.len());
                bytes.drain(at..end(at, length));
            }
            Change::Repeat(at, length) => {
                let at = at.index(bytes.len());
                let again = bytes[at..end(at, length)].to_vec();
                bytes.splice(at..at, again);
            }
            Change::Splice(at, other) => {
                bytes.truncate(at.index(bytes.len()));
                bytes.extend(other);
            }
        }
    }
}

fn home() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/harness/fuzz")
}

fn folder(target: &str) -> PathBuf {
    home().join("corpus").join(target)
}

/// The committed inputs of a target by file name.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder(target)).expect("a folder for each target");
    let mut found: Vec<_> = entries
        .map(|entry| {
            let path = entry.expect("a readable entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, fs::read(path).expect("a readable file"))
        })
        .collect();
    found.sort();
    found
}

/// Arbitrary bytes, and mutations of the corpus.
fn inputs(target: &str) -> impl Strategy<Value = Input> + use<> {
    let seeds: Vec<Vec<u8>> = corpus(target).into_iter().map(|(_, bytes)| bytes).collect();
    let token = prop_oneof![select(TOKENS).prop_map(<[u8]>::to_vec), vec(any::<u8>(), 1..4),];
    let change = prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, bit)| Change::Flip(at, bit)),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (any::<Index>(), token).prop_map(|(at, new)| Change::Insert(at, new)),
        (any::<Index>(), 1..40_usize).prop_map(|(at, length)| Change::Remove(at, length)),
        (any::<Index>(), 1..300_usize).prop_map(|(at, length)| Change::Repeat(at, length)),
        (any::<Index>(), select(seeds.clone())).prop_map(|(at, other)| Change::Splice(at, other)),
    ];
    let mutated = (select(seeds), vec(change, 0..8)).prop_map(|(mut bytes, changes)| {
        changes.into_iter().for_each(|change| change.apply(&mut bytes));
        bytes
    });
    prop_oneof![1 => vec(any::<u8>(), 0..300), 4 => mutated].prop_map(Input)
}

/// Defines a test over generated inputs for each target, with its number of cases.
macro_rules! generated {
    ($($target:ident: $cases:literal),+ $(,)?) => {
        mod generated {
            use super::*;

            $(proptest! {
                #![proptest_config(ProptestConfig::with_cases($cases))]

                #[test]
                fn $target(input in inputs(stringify!($target))) {
                    targets::run(stringify!($target), &input.0);
                }
            })+

            pub(super) const NAMES: &[&str] = &[$(stringify!($target)),+];
        }
    };
}

generated! {
    address: 3_000,
    config: 3_000,
    envelope: 20_000,
    group: 2_000,
    http: 1_000,
    name: 20_000,
    ndjson: 1_000,
    op: 20_000,
    payload: 20_000,
    policy: 5_000,
}

#[test]
fn every_target_holds_over_its_corpus() {
    for target in targets::NAMES {
        let inputs = corpus(target);
        assert!(inputs.len() >= 3, "{target} has {} inputs", inputs.len());
        for (file, input) in inputs {
            eprintln!("corpus/{target}/{file}");
            targets::run(target, &input);
        }
    }
}

#[test]
fn the_fuzz_crate_has_the_same_targets() {
    let targets: BTreeSet<String> = targets::NAMES.iter().map(|&name| name.to_owned()).collect();
    let generated: BTreeSet<String> =
        generated::NAMES.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(generated, targets);
    let crate_folder = home().join("libfuzzer");
    let names = |folder: PathBuf| -> BTreeSet<String> {
        let entries = fs::read_dir(folder).expect("a folder");
        entries
            .map(|entry| entry.expect("an entry").path())
            .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
            .collect()
    };
    assert_eq!(names(home().join("corpus")), targets);
    assert_eq!(names(crate_folder.join("fuzz_targets")), targets);
    let manifest = fs::read_to_string(crate_folder.join("Cargo.toml")).expect("a manifest");
    for name in &targets {
        assert!(
            manifest.contains(&format!("\nname = \"{name}\"\npath = \"fuzz_targets/{name}.rs\""))
        );
        let body =
            fs::read_to_string(crate_folder.join(format!("fuzz_targets/{name}.rs"))).expect("text");
        assert!(body.contains(&format!("run(\"{name}\", ")), "{name} runs another target");
    }
}
