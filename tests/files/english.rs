//! Keeps the worst habits of our English out of documents, `--help`, problems, alerts, metrics, the OpenAPI document
//! and comments. CONTRIBUTING.md has the style guide.

use std::path::Path;
use std::process::Command as Process;

use clap::{Command, CommandFactory};
use orderfree::cli::Cli;
use orderfree::engine::metrics::Metrics;
use orderfree::http::{self, ProblemType};

/// Words and phrases, and what to write instead.
const BANNED: &[(&str, &str)] = &[
    ("amid", "during"),
    ("anew", "again, re-"),
    ("as many as there are", "all"),
    ("befall", "happen to"),
    ("befalls", "happens to"),
    ("besides", "also"),
    ("by turns", "in turn"),
    ("for ever", "forever, or say until when"),
    ("hence", "so"),
    ("how manieth", "the number of"),
    ("lest", "so that … not"),
    ("mend", "repair, fix"),
    ("mends", "repairs, fixes"),
    ("mended", "repaired, fixed"),
    ("nobody", "no pod, no client, not"),
    ("reckon", "calculate"),
    ("reckons", "calculates"),
    ("reckoned", "calculated"),
    ("somebody", "a client, an operator"),
    ("thereof", "of it"),
    ("whereof", "of which"),
    ("who asks", "requests that"),
    ("whoever", "name the subject"),
    ("whosoever", "name the subject"),
];

/// The place of a text, and the text.
type Text = (String, String);

/// The files in git that match these patterns.
fn files(patterns: &[&str]) -> Vec<Text> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let listed = Process::new("git")
        .arg("ls-files")
        .args(patterns)
        .current_dir(root)
        .output()
        .expect("git runs");
    let names = String::from_utf8(listed.stdout).expect("UTF-8");
    let read = |name: &str| {
        let bytes = std::fs::read(root.join(name)).expect("a readable file");
        (name.to_owned(), String::from_utf8_lossy(&bytes).into_owned())
    };
    names.lines().map(read).collect()
}

fn documents() -> Vec<Text> {
    // The guide quotes what it bans.
    let documents = files(&["*.md", "monitoring/alerts.yaml", ":!CONTRIBUTING.md"]);
    assert!(documents.len() > 15, "{}", documents.len());
    documents
}

/// The lines of comments in code and scripts.
fn comments() -> Vec<Text> {
    let mut found = files(&["*.rs", "*.py", "bench", "tests", ":!*.md"]);
    assert!(found.len() > 300, "{}", found.len());
    for (_, text) in &mut found {
        let is_comment = |line: &&str| line.starts_with("//") || line.starts_with("# ");
        let lines = text.lines().map(str::trim_start).filter(is_comment);
        let lines: Vec<_> = lines.map(|line| line.trim_start_matches(['/', '!', '#'])).collect();
        *text = lines.join("\n");
    }
    found
}

fn help(name: &str, command: &Command, texts: &mut Vec<Text>) {
    let text = command.clone().render_long_help().to_string();
    texts.push((format!("{name} --help"), text));
    for below in command.get_subcommands() {
        help(&format!("{name} {}", below.get_name()), below, texts);
    }
}

fn problems() -> impl Iterator<Item = Text> {
    ProblemType::ALL.iter().map(|kind| (format!("problem {}", kind.entry().slug), kind.page()))
}

/// The places where a text has a word or a phrase as a whole.
fn occurrences(text: &str, phrase: &str) -> Vec<usize> {
    let is_letter = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let is_whole = |at: &usize| {
        !(at.checked_sub(1).is_some_and(|before| is_letter(bytes.get(before)))
            || is_letter(bytes.get(at + phrase.len())))
    };
    text.match_indices(phrase).map(|(at, _)| at).filter(is_whole).collect()
}

#[test]
fn a_banned_word_is_found_as_a_word() {
    assert_eq!(occurrences("read it anew, lest", "anew"), [8]);
    assert!(occurrences("a canewood table", "anew").is_empty());
    assert!(occurrences("the latest", "lest").is_empty());
}

#[test]
fn no_text_has_banned_words() {
    let mut texts = documents();
    texts.extend(comments());
    help("orderfree", &Cli::command(), &mut texts);
    texts.extend(problems());
    texts.push(("the metrics".to_owned(), Metrics::new().encode()));
    let document = serde_json::to_string_pretty(&http::openapi()).expect("JSON");
    texts.push(("the OpenAPI document".to_owned(), document));
    let mut found = Vec::new();
    for (place, text) in texts {
        // Code is not checked, and a phrase can be split over two lines.
        let prose: String = text.split('`').step_by(2).collect::<Vec<_>>().join(" ");
        let text = prose.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
        for (phrase, instead) in BANNED {
            for at in occurrences(&text, phrase) {
                let start = text[..at].char_indices().rev().nth(40).map_or(0, |(start, _)| start);
                let end = text[at..].char_indices().nth(40).map_or(text.len(), |(end, _)| at + end);
                found
                    .push(format!("{place}: “{}”: {phrase} (write: {instead})", &text[start..end]));
            }
        }
    }
    assert!(found.is_empty(), "{} banned words:\n{}", found.len(), found.join("\n"));
}
