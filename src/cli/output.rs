//! What the tools write. Both outputs may be a pipe whose reader has gone, or a file on a full disk: the
//! macros of the standard library end the program then, and an exit code would be lost that says what
//! became of an update.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write, stderr, stdout};

use anyhow::Context;

/// Writes a line for people that the exit code sums up: where nobody takes it, nothing is spoilt.
pub(super) fn say(line: impl Display) {
    let _ = writeln!(stdout(), "{line}");
}

/// Writes a line beside the answer: progress, and what went wrong.
pub fn note(line: impl Display) {
    let _ = writeln!(stderr(), "{line}");
}

/// Writes what was asked for, which nothing else says.
///
/// # Errors
/// It can't be written.
pub(super) fn show(text: impl Display) -> anyhow::Result<()> {
    written(writeln!(stdout(), "{text}"))
}

/// The same for a text of many lines, of which a reader such as `head` may have seen enough.
///
/// # Errors
/// It can't be written, but for a reader that has gone.
pub(super) fn show_all(text: &str) -> anyhow::Result<()> {
    match stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => written(result),
    }
}

fn written(result: io::Result<()>) -> anyhow::Result<()> {
    result.context("the standard output takes nothing")
}
