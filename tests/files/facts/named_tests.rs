//! Documents name tests, broken rules, files and recipes as evidence. All of them must exist.

use std::collections::BTreeSet;
use std::path::Path;

use super::{after, files, quoted, read};

/// All Rust code.
fn code() -> String {
    let sources = ["src", "core/src", "tests"].into_iter().flat_map(files);
    sources.filter(|name| name.ends_with(".rs")).map(|name| read(&name)).collect()
}

#[test]
fn the_architecture_lists_exactly_the_tested_cassandra_facts() {
    let architecture = read("ARCHITECTURE.md");
    let table = after(&architecture, "### Facts about Cassandra, tested", |_| false)[0];
    let table = table.split("\n## ").next().expect("a section");
    let is_test = |name: &&str| name.contains('_') && !name.contains(['/', ' ', '.']);
    let listed: BTreeSet<String> = quoted(table).filter(is_test).map(str::to_owned).collect();
    let written: BTreeSet<String> = files("tests/harness/conformance")
        .iter()
        .map(|name| read(name))
        .flat_map(|text| {
            let tests = text.split("#[tokio::test").skip(1);
            let names = tests.map(|test| after(test, "async fn ", |c| c == '(')[0].to_owned());
            names.collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(listed, written);
}

/// Every test, broken rule and file that the argument names exists.
#[test]
fn the_safety_argument_names_what_exists() {
    let argument = read("docs/correctness.md");
    let (code, rules) = (code(), read("tests/harness/sim/sabotage.rs"));
    let mut checked = 0;
    for name in quoted(&argument).filter(|name| !name.contains([' ', ':'])) {
        let exists = if name.contains('/') {
            Path::new(env!("CARGO_MANIFEST_DIR")).join(name).exists()
        } else if let Some(beginning) = name.strip_suffix('…') {
            code.contains(&format!("fn {beginning}"))
        } else if name.matches('_').count() > 1 {
            code.contains(&format!("fn {name}("))
        } else if name.starts_with(|first: char| first.is_ascii_uppercase()) {
            rules.contains(&format!("    {name} "))
        } else {
            continue;
        };
        assert!(exists, "docs/correctness.md names `{name}`");
        checked += 1;
    }
    assert!(checked > 40, "{checked}");
}

#[test]
fn the_regression_tests_are_those_of_the_architectures_table() {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let names = |text: &str, mark: &str| -> BTreeSet<String> {
        let named = after(text, mark, |c| !is_name(c)).into_iter();
        named
            .filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            .map(str::to_owned)
            .collect()
    };
    let listed = names(&read("ARCHITECTURE.md"), "`regression_");
    assert_eq!(listed, names(&code(), "fn regression_"));
}

/// The last column of the table of risks names tests, files and recipes that exist.
#[test]
fn the_table_of_risks_names_what_exists() {
    let (security, code, recipes) = (read("docs/operate/security.md"), code(), read("Makefile"));
    let section = after(&security, "\n## OWASP API Security Top 10\n", |_| false)[0];
    let section = section.split("\n## ").next().expect("a section");
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| API")).collect();
    for (index, row) in rows.iter().enumerate() {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [risk, _, tests] = cells[..] else { panic!("{} cells: {row}", cells.len()) };
        assert!(risk.starts_with(&format!("API{} ", index + 1)), "the order of {risk}");
        for name in quoted(tests) {
            let exists = if let Some(recipe) = name.strip_prefix("make ") {
                recipes.contains(&format!("\n{recipe}:"))
            } else if name.contains('/') {
                Path::new(env!("CARGO_MANIFEST_DIR")).join(name).exists()
            } else {
                code.contains(&format!("fn {name}("))
            };
            assert!(exists, "docs/operate/security.md, {risk}: `{name}`");
        }
        let needs_none = tests.starts_with("none is needed");
        assert!(needs_none || quoted(tests).next().is_some(), "nothing shows {risk}");
    }
    assert_eq!(rows.len(), 10);
}
