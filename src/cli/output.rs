//! What the tools write. Both outputs can be a pipe whose reader has left, or a file on a full disk. The
//! standard library's macros end the program then, and the exit code with the outcome of an update would be
//! lost.

use std::env;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write, stderr, stdout};

use anyhow::Context;
use reqwest::Url;

use super::connect;

/// Writes a line for people. The exit code says the same in short, so a failed write does no harm.
pub(super) fn say(line: impl Display) {
    let _ = writeln!(stdout(), "{line}");
}

/// Writes a line to standard error: progress, and what went wrong.
pub fn note(line: impl Display) {
    let _ = writeln!(stderr(), "{line}");
}

/// Writes the result of a command, which nothing else shows.
///
/// # Errors
/// The standard output can't be written.
pub(super) fn show(text: impl Display) -> anyhow::Result<()> {
    written(writeln!(stdout(), "{text}"))
}

/// Writes a long text. It is not an error if a reader such as `head` leaves early.
///
/// # Errors
/// The standard output can't be written for another reason.
pub(super) fn show_all(text: &str) -> anyhow::Result<()> {
    show_more(text).map(drop)
}

/// Writes a part of a long text. `false`: the reader has left.
///
/// # Errors
/// As for [`show_all`].
pub(super) fn show_more(text: &str) -> anyhow::Result<bool> {
    match stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        result => written(result).map(|()| true),
    }
}

fn written(result: io::Result<()>) -> anyhow::Result<()> {
    result.context("the standard output can't be written")
}

/// The text as one word of a POSIX shell.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Options of clients that a user can have set in the environment, and not in the shell of the next command.
const FROM_ENVIRONMENT: [(&str, &str); 3] = [
    ("--url", "ORDERFREE_URL"),
    ("--token-file", "ORDERFREE_TOKEN_FILE"),
    ("--ca", "ORDERFREE_CA"),
];

/// The command line of this process with more words, for a user to run again. Secrets are left out.
pub(super) fn again(more: &str) -> String {
    let mut words: Vec<String> =
        env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    for (option, variable) in FROM_ENVIRONMENT {
        let is_given = words.iter().any(|word| word.split('=').next() == Some(option));
        if let (false, Ok(value)) = (is_given, env::var(variable)) {
            words.extend([option.to_owned(), value]);
        }
    }
    again_of(words.into_iter(), more)
}

fn again_of(words: impl Iterator<Item = String>, more: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "%+,-./:=@_".contains(letter);
    let (mut line, mut is_token) = (Vec::new(), false);
    for word in words {
        let (option, value) = match word.split_once('=') {
            Some((option, value)) if option.starts_with("--") => (format!("{option}="), value),
            _ => (String::new(), word.as_str()),
        };
        let value = match Url::parse(value) {
            _ if is_token || option == "--token=" => "…".to_owned(),
            Ok(url) if !url.username().is_empty() || url.password().is_some() => {
                connect::shown(&url).to_string()
            }
            _ => value.to_owned(),
        };
        is_token = word == "--token";
        let shown = option + &value;
        line.push(match !shown.is_empty() && shown.chars().all(is_plain) {
            true => shown,
            false => quoted(&shown),
        });
    }
    if !more.is_empty() {
        line.push(more.to_owned());
    }
    line.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_to_run_again_can_be_pasted_and_has_no_secrets() {
        for (words, says) in [
            (&["take", "sum/g%2Fh/n", "-o", "json"][..], "take sum/g%2Fh/n -o json --id x"),
            (&["take", "sum/g/it's a"], r"take 'sum/g/it'\''s a' --id x"),
            (&["reset", "--token", "T0", "--ca", "c"], "reset --token '…' --ca c --id x"),
            (&["reset", "--token=T0"], "reset '--token=…' --id x"),
            (&["reset", "--url", "http://u:T0@h:1/"], "reset --url http://h:1/ --id x"),
            (&["reset", "--url=http://u:T0@h:1/"], "reset --url=http://h:1/ --id x"),
        ] {
            let words = words.iter().map(|word| (*word).to_owned());
            assert_eq!(again_of(words, "--id x"), says);
        }
        assert_eq!(again_of(["orderfree".to_owned()].into_iter(), ""), "orderfree");
    }
}
