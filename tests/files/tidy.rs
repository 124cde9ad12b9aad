//! House rules that the compiler does not check: what each room may use, and how each file begins.

use std::collections::{BTreeMap, BTreeSet};
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

/// The paths of the `use` items in a text, and whether other modules can use them from there: `a::{b, c::d}` is `a::b` and
/// `a::c::d`.
fn uses_in(text: &str) -> Vec<(bool, Vec<String>)> {
    fn expand(tree: &str, before: &[String], paths: &mut Vec<Vec<String>>) {
        let (head, list) = match tree.split_once('{') {
            Some((head, list)) => (head, list.trim_end().strip_suffix('}')),
            None => (tree, None),
        };
        let names = head.split("::").map(|name| name.split(" as ").next().unwrap_or(name).trim());
        let mut path = before.to_vec();
        path.extend(names.filter(|name| !name.is_empty()).map(str::to_owned));
        let Some(list) = list else { return paths.push(path) };
        let (mut depth, mut start) = (0, 0);
        for (at, letter) in list.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    expand(&list[start..at], &path, paths);
                    start = at + 1;
                }
                _ => {}
            }
        }
        expand(&list[start..], &path, paths);
    }
    let mut found = Vec::new();
    for lines in text.split(";\n") {
        let is_use = |line: &str| line.starts_with("use ") || is_shared(line);
        let item = lines.lines().skip_while(|line| !is_use(line)).collect::<Vec<_>>().join(" ");
        if let Some((_, tree)) = item.split_once("use ") {
            let mut paths = Vec::new();
            expand(tree, &[], &mut paths);
            found.extend(paths.into_iter().map(|path| (is_shared(&item), path)));
        }
    }
    found.retain(|(_, path)| !path.is_empty());
    found
}

fn is_shared(line: &str) -> bool {
    line.starts_with("pub use ") || line.starts_with("pub(crate) use ")
}

#[test]
fn lists_of_uses_are_read() {
    let text = "mod a;\nuse crate::{a::B, c::{self, D as E}};\npub use super::f;\n\nfn g() {}\n";
    let uses: Vec<_> =
        uses_in(text).into_iter().map(|(all, path)| (all, path.join("::"))).collect();
    let path = |text: &str| text.to_owned();
    assert_eq!(
        uses,
        [
            (false, path("crate::a::B")),
            (false, path("crate::c::self")),
            (false, path("crate::c::D")),
            (true, path("super::f")),
        ]
    );
}

/// The modules of a crate by their path, such as `src/engine/read`, with what each uses.
struct Modules(BTreeMap<String, Vec<(bool, Vec<String>)>>);

impl Modules {
    /// The files that each file uses.
    fn uses(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (module, paths) in &self.0 {
            for used in paths.iter().filter_map(|(_, path)| self.resolve(module, path)) {
                if *module != used && !module.starts_with(&format!("{used}/")) {
                    uses.entry(module.clone()).or_default().insert(used);
                }
            }
        }
        uses
    }

    /// The module that defines what a module knows by this path, unless it is a name that a folder shares.
    fn resolve(&self, module: &str, path: &[String]) -> Option<String> {
        let root = &module[..module.find("src/")? + 3];
        let mut at = match path[0].as_str() {
            "crate" => root.to_owned(),
            "self" | "super" => module.to_owned(),
            child => {
                Some(format!("{module}/{child}")).filter(|child| self.0.contains_key(child))?
            }
        };
        let known = usize::from(path[0] != "super");
        for name in &path[known..] {
            let child = format!("{at}/{name}");
            if name == "super" {
                at.truncate(at.rfind('/')?);
            } else if self.0.contains_key(&child) {
                at = child;
            } else {
                // A name that a folder shares from one of its files is the folder's vocabulary.
                let is_shared =
                    |(all, path): &(bool, Vec<String>)| *all && path.last() == Some(name);
                return (!self.0.get(&at)?.iter().any(is_shared)).then_some(at);
            }
        }
        Some(at)
    }
}

/// The files that are in a circle, or between two, and which of these each uses.
fn in_circles(mut uses: BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    // A file that uses none of the others, or that none of them uses, is in no circle.
    loop {
        let files: BTreeSet<String> = uses.keys().cloned().collect();
        let used: BTreeSet<String> = uses.values().flatten().cloned().collect();
        uses.values_mut().for_each(|of| of.retain(|file| files.contains(file)));
        uses.retain(|file, of| used.contains(file) && !of.is_empty());
        if uses.len() == files.len() {
            return uses;
        }
    }
}

/// A file that uses another one can be understood after it, so no two files may need each other. Two uses do not count: of
/// what the folder's own file defines, by the files in the folder; and of the names that a folder shares.
#[test]
fn no_files_use_each_other_in_a_circle() {
    let module = |(name, text): (String, String)| {
        let module = name.strip_suffix(".rs")?;
        let is_product =
            !name.contains("tests") && !name.contains("/examples/") && name.contains("src/");
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        is_product
            .then(|| (module.strip_suffix("/mod").unwrap_or(module).to_owned(), uses_in(text)))
    };
    let modules = Modules(sources().into_iter().filter_map(module).collect());
    let uses = modules.uses();
    assert!(uses.len() > 100, "{} files use others", uses.len());
    let circle = in_circles(uses);
    assert!(circle.is_empty(), "these files use each other in a circle: {circle:#?}");
}

#[test]
fn a_circle_of_files_is_found() {
    let module = |(name, text): (&str, &str)| (name.to_owned(), uses_in(text));
    let of = [
        ("src/a", "mod b;\npub use b::B;\n"),
        ("src/a/b", "use super::c::C;\nuse crate::e::E;\n"),
        ("src/a/c", "use crate::a::d::{self, D};\n"),
        ("src/a/d", "use super::b;\n"),
        ("src/e", "use crate::a::B;\n"),
        ("src/f", "use crate::a::d;\n"),
    ];
    let circle = in_circles(Modules(of.map(module).into()).uses());
    assert_eq!(Vec::from_iter(circle.keys()), ["src/a/b", "src/a/c", "src/a/d"]);
}

#[test]
fn names_of_functions_fit_in_60_characters() {
    for (name, text) in sources() {
        for line in text.lines() {
            let function = line.split_once("fn ").map(|(_, rest)| rest.split(['(', '<']).next());
            let function = function.flatten().unwrap_or_default();
            let is_name = function.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            assert!(!is_name || function.len() <= 60, "{name}: shorten {function}");
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
