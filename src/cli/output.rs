//! What the tools write. Both outputs can be a pipe whose reader has left, or a file on a full disk. The
//! standard library's macros end the program then, and the exit code with the outcome of an update would be
//! lost.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write, stderr, stdout};

use anyhow::Context;

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
/// Those of [`show_all`].
pub(super) fn show_more(text: &str) -> anyhow::Result<bool> {
    match stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        result => written(result).map(|()| true),
    }
}

fn written(result: io::Result<()>) -> anyhow::Result<()> {
    result.context("the standard output can't be written")
}
