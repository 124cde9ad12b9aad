//! House rules that the compiler does not check: what each room may use, and how each file begins.

use std::fs;
use std::path::{Path, PathBuf};

/// Words, and the only places that may contain them. Comments count too, because they teach. The demo plays nodes, clients
/// and what stands before the pods.
const ONLY_IN: &[(&str, &[&str])] = &[
    ("scylla::", &["src/store/cassandra", "src/demo", "tests/", "src/runtime/telemetry.rs"]),
    ("redb::", &["src/store/embedded", "tests/"]),
    (
        "axum::",
        &[
            "src/http",
            "src/net/listen.rs",
            "src/pod/node.rs",
            "src/demo",
            "load/src/stub.rs",
            "tests/",
        ],
    ),
    ("SystemTime", &["src/runtime/clock.rs", "load/src/ids.rs", "tests/"]),
    ("rand::", &["src/runtime/random.rs", "load/", "tests/", "core/tests/", "core/examples/"]),
    ("tokio::spawn", &["src/runtime/tasks.rs", "src/demo", "load/", "tests/", "tests.rs"]),
    (
        "std::env::var",
        &[
            "src/pod/config.rs",
            "src/runtime/telemetry.rs",
            "tests/",
            "core/tests/",
            "or_set/schedules.rs",
        ],
    ),
    ("at_fold_level(", &["core/", "src/store", "src/demo", "tests/"]),
    ("thread::spawn", &["src/store/embedded", "src/runtime/telemetry.rs", "tests/"]),
];

/// `(room, what it must not use)`: the arrow cli > demo > pod > http > engine > policy, store > runtime > core.
/// Within the engine, writes and folds meet only in the store, as those of different pods do.
const ARROWS: &[(&str, &[&str])] = &[
    ("core/src", &["tokio", "orderfree::", "tracing", "rand::"]),
    (
        "src/runtime",
        &[
            "crate::store",
            "crate::policy",
            "crate::engine",
            "crate::net",
            "crate::http",
            "crate::pod",
        ],
    ),
    ("src/store", &["crate::policy", "crate::engine", "crate::net", "crate::http", "crate::pod"]),
    ("src/policy", &["crate::engine", "crate::net", "crate::http", "crate::pod", "axum"]),
    ("src/engine", &["crate::net", "crate::http", "crate::pod", "axum", "StatusCode"]),
    ("src/engine/write", &["crate::engine::fold", "crate::engine::read", "crate::engine::service"]),
    ("src/engine/read", &["crate::engine::write", "crate::engine::service"]),
    ("src/engine/fold", &["crate::engine::write", "crate::engine::read", "crate::engine::service"]),
    ("src/net", &["crate::http", "crate::pod"]),
    ("src/http", &["crate::engine::write::Mutators", "crate::pod", "crate::demo", "crate::cli"]),
    ("src/pod", &["crate::demo", "crate::cli"]),
    ("src/demo", &["crate::cli"]),
    ("load/src", &["orderfree::", "orderfree_core"]),
];

/// Marks of unfinished work, spelled apart so that this file does not contain them.
fn unfinished() -> Vec<String> {
    [("to", "do!"), ("unimple", "mented!"), ("FIX", "ME"), ("#[ign", "ore"), ("db", "g!(")]
        .iter()
        .map(|(head, tail)| format!("{head}{tail}"))
        .collect()
}

fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let folders = ["src", "core", "load", "replicas", "bench/src", "tests"];
    let mut folders: Vec<PathBuf> = folders.map(|name| root.join(name)).into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a readable folder") {
            let path = entry.expect("a readable entry").path();
            if path.is_dir() {
                // Skip what cargo builds in the folder of the fuzz crate.
                if !path.ends_with("target") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("UTF-8");
                let name = path.strip_prefix(root).expect("inside").to_string_lossy().into_owned();
                found.push((name, text));
            }
        }
    }
    assert!(found.len() > 30, "the walk found the sources");
    found
}

#[test]
fn words_stay_where_they_belong() {
    // The benchmark is a client with its own clock and random numbers.
    for (name, text) in sources().into_iter().filter(|(name, _)| !name.starts_with("bench/")) {
        for (word, places) in ONLY_IN {
            let is_allowed =
                places.iter().any(|place| name.starts_with(place) || name.ends_with(place));
            assert!(is_allowed || !text.contains(word), "{name} names {word}; only {places:?} may");
        }
    }
}

#[test]
fn modules_rely_only_on_those_before_them() {
    for (name, text) in sources() {
        for (module, foreign) in ARROWS.iter().filter(|(module, _)| name.starts_with(module)) {
            for word in *foreign {
                assert!(!text.contains(word), "{name}, in {module}, uses {word}");
            }
        }
    }
}

/// Without `biased`, `select!` chooses a branch at random: a simulation could not repeat what a pod did, and a stop
/// would sometimes have to wait for work.
#[test]
fn every_select_is_biased() {
    let mut seen = 0;
    for (name, text) in sources() {
        if !name.starts_with("src/") {
            continue;
        }
        for (at, _) in text.match_indices("select! {") {
            let branches = text[at + "select! {".len()..].trim_start();
            assert!(branches.starts_with("biased;"), "{name} has a `select!` that is not biased");
            seen += 1;
        }
    }
    assert!(seen > 5, "the search found the uses");
}

#[test]
fn nothing_is_unfinished() {
    for (name, text) in sources() {
        for mark in unfinished() {
            assert!(!text.contains(&mark), "{name} contains {mark}");
        }
    }
}

#[test]
fn files_begin_with_their_purpose() {
    for (name, text) in sources() {
        let is_part_of_a_test = name.ends_with("tests.rs");
        assert!(is_part_of_a_test || text.starts_with("//!"), "{name} does not say what it is for");
    }
}

/// Cargo finds tests by itself only at the top of `tests/`; others that are not listed would never run.
#[test]
fn every_test_is_listed_in_the_manifest() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("a manifest");
    let mut listed = 0;
    for (name, _) in sources() {
        let parts: Vec<_> = name.split('/').collect();
        let is_test = match parts[..] {
            ["tests", "cassandra", ..] => false,
            ["tests", _, _] => true,
            ["tests", _, _, file] => file == "main.rs",
            _ => false,
        };
        if is_test {
            assert!(manifest.contains(&format!("path = \"{name}\"")), "Cargo.toml lacks {name}");
            listed += 1;
        }
    }
    assert!(listed > 20, "{listed}");
}
