//! Keeps the worst habits of our English out of everything that people read: documents, `--help`, log lines, errors,
//! problems, alerts, metrics, the dashboard, the OpenAPI document, manifests, scripts, the page, comments and names of
//! tests. CONTRIBUTING.md has the style guide.

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
    ("anybody", "any client, any pod"),
    ("as many as there are", "all"),
    ("befall", "happen to"),
    ("befalls", "happens to"),
    ("besides", "also"),
    ("by turns", "in turn"),
    ("everybody", "all clients, all users"),
    ("for ever", "forever, or say until when"),
    ("hence", "so"),
    ("how manieth", "the number of"),
    ("lest", "so that … not"),
    ("mend", "repair, fix"),
    ("mends", "repairs, fixes"),
    ("mended", "repaired, fixed"),
    ("nobody", "no pod, no client, not"),
    ("none but", "only"),
    ("of before", "earlier, from before the …"),
    ("reckon", "calculate"),
    ("reckons", "calculates"),
    ("reckoned", "calculated"),
    ("somebody", "a client, an operator"),
    ("thereof", "of it"),
    ("whereof", "of which"),
    ("who asks", "requests that"),
    ("who sends", "a client that sends"),
    ("whoever", "name the subject"),
    ("whosoever", "name the subject"),
];

/// All files in git, except code in Rust, what others wrote, and what tools generate or damage.
const TEXTS: &[&str] = &[
    ".",
    ":!*.rs",
    // The guide quotes what it bans.
    ":!CONTRIBUTING.md",
    ":!LICENSE*",
    ":!*.lock",
    ":!page/package-lock.json",
    ":!page/dist",
    ":!tests/harness/fuzz/corpus",
];

/// The place of a text, and the text. Its paragraphs are checked one by one.
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

fn without_mark(line: &str) -> &str {
    line.trim().trim_start_matches(['/', '!', '#', '*', ' '])
}

/// Documents, manifests, scripts and the page, as a whole.
fn documents() -> Vec<Text> {
    let mut found = files(TEXTS);
    assert!(found.len() > 200, "{}", found.len());
    for (name, text) in &mut found {
        *text = text.lines().map(without_mark).collect::<Vec<_>>().join("\n");
        // Backticks in TypeScript enclose messages.
        if name.ends_with(".ts") || name.ends_with(".tsx") {
            *text = text.replace('`', "");
        }
    }
    found
}

/// What people read in Rust code.
fn code() -> Vec<Text> {
    let mut found = files(&["*.rs", ":!tests/files/english.rs"]);
    assert!(found.len() > 300, "{}", found.len());
    for (_, text) in &mut found {
        *text = prose(text);
    }
    found
}

/// The comments, string literals and names of functions in Rust code. Each is a paragraph.
fn prose(code: &str) -> String {
    let name = |text: &str| {
        let is_end = |letter: char| !letter.is_alphanumeric() && letter != '_';
        text.split(is_end).next().unwrap_or_default().replace('_', " ")
    };
    let names: Vec<_> = code.split("fn ").skip(1).map(name).collect();
    let mut found = names.join("\n\n");
    let (mut rest, mut was_comment) = (code, false);
    while let Some(start) = rest.find(['/', '\'', '"']) {
        let (before, from) = rest.split_at(start);
        let prefix = before.trim_end_matches('#');
        let is_comment = from.starts_with("//");
        let (text, length) = if is_comment {
            let line = from.lines().next().unwrap_or_default();
            (without_mark(line).to_owned(), line.len())
        } else if let Some(string) = from.strip_prefix('"').filter(|_| prefix.ends_with('r')) {
            let close = format!("\"{}", &before[prefix.len()..]);
            let end = string.find(&close).expect("the end of a raw string");
            (string[..end].to_owned(), 1 + end + close.len())
        } else if let Some(string) = from.strip_prefix('"') {
            let mut is_escaped = false;
            let is_end = |letter: char| {
                let was_escaped = is_escaped;
                is_escaped = letter == '\\' && !was_escaped;
                letter == '"' && !was_escaped
            };
            let end = string.find(is_end).expect("the end of a string");
            (string[..end].replace("\\n", " ").replace('\\', " "), end + 2)
        } else if from.starts_with("'\"'") || from.starts_with("'\\") {
            (String::new(), 3)
        } else {
            (String::new(), 1)
        };
        let continues = was_comment && is_comment && before.trim().is_empty();
        found += if continues { "\n" } else { "\n\n" };
        found += &text;
        (rest, was_comment) = (&from[length..], is_comment);
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
fn comments_strings_and_names_are_prose() {
    let code = r###"
        /// It is read
        /// by all.
        fn reads_all<'a>(text: &'a str) -> bool {
            let quoted = ['"', '\'', '/']; // A mark.
            text == "one \"two\" \
                three" || text == r#"a "raw" one"#
        }
    "###;
    let prose = prose(code);
    let found: Vec<_> = prose.split("\n\n").filter(|text| !text.is_empty()).collect();
    assert_eq!(found[..3], ["reads all", "It is read\nby all.", "A mark."]);
    let words: Vec<_> = found[3].split_whitespace().collect();
    assert_eq!(words, ["one", "\"two", "\"", "three"]);
    assert_eq!(found[4..], ["a \"raw\" one"]);
}

#[test]
fn no_text_has_banned_words() {
    let mut texts = documents();
    texts.extend(code());
    help("orderfree", &Cli::command(), &mut texts);
    texts.extend(problems());
    texts.push(("the metrics".to_owned(), Metrics::new().encode()));
    let document = serde_json::to_string_pretty(&http::openapi()).expect("JSON");
    texts.push(("the OpenAPI document".to_owned(), document));
    let mut found = Vec::new();
    let paragraphs = texts
        .iter()
        .flat_map(|(place, text)| text.split("\n\n").map(move |paragraph| (place, paragraph)));
    for (place, text) in paragraphs {
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
