//! `add`: updates of one key, from the arguments or from the lines of the standard input.

use std::io::{self, BufRead, Read};
use std::ops::RangeInclusive;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use clap::error::ErrorKind;
use orderfree_core::crdt::{Kind, STATE_BYTES_MAX};
use orderfree_core::protocol::{Key, Outcome};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::client::{ServerArgs, UNKNOWN};
use super::input::{self, Input};
use super::output::{note, show};
use super::update::{Target, UpdateArgs};
use super::{key, wrong_usage};
use crate::limits::OPS_MAX;

/// Bytes of the ops of one request. A list of ops must fit into one state.
const BATCH_BYTES_MAX: usize = STATE_BYTES_MAX / 4;

/// After this many lines that were not acked, the rest of the input is not sent.
const FAULTS_MAX: usize = 100;

/// Problems of single ops: the others of the same request may have none.
const PROBLEMS_OF_OPS: &[&str] = &["bad-op", "out-of-range", "state-too-large", "body-too-large"];

/// Arguments of `add`.
#[derive(Debug, Args)]
pub(super) struct AddArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The key, as `KIND/GROUP/NAME`. The name can contain slashes; write a slash in the group as `%2F`.
    #[arg(value_parser = key::key)]
    key: Key,
    /// What to add: an amount for a `counter` (default 1) or a `sum`, numbers, items, or a register's value.
    /// Up to 1000 values are added together, all or none; more are added like lines, the first as line 1. `-` adds
    /// each line of the standard input, in batches; a register takes the whole input as its value.
    #[arg(allow_negative_numbers = true)]
    what: Vec<String>,
    /// An op as JSON, instead of values, such as '{"op":"remove","item":"a"}'.
    #[arg(long, value_name = "JSON", conflicts_with = "what", value_parser = key::json::<Box<RawValue>>)]
    op: Option<Box<RawValue>>,
    #[command(flatten)]
    update: UpdateArgs,
}

pub(super) async fn add(args: AddArgs) -> anyhow::Result<ExitCode> {
    args.check()?;
    let target = Target {
        url: args.server.url_of(&args.key)?,
        client: args.server.client()?,
        kind: args.key.kind,
        server: &args.server,
        args: &args.update,
    };
    let body = if args.what == ["-"] {
        let input = input::open().context(UNREADABLE)?;
        if args.has_lines() {
            return add_lines(&target, input).await;
        }
        args.body(&[whole(input).context(UNREADABLE)?])
    } else if args.has_lines() {
        return add_lines(&target, input::of_lines(&args.what)).await;
    } else {
        args.body(&args.what)
    };
    let sent = target.update(body.as_deref()).await;
    // A failed print does not change the exit code, which is the outcome of the update: after another code, a
    // caller would send the update again.
    match &sent.answer {
        Some(answer) if args.server.wants_json() || sent.outcome == Outcome::Acked => {
            if let Err(error) = args.server.print(answer, "outcome") {
                note(format_args!("orderfree: {error:#}"));
            }
        }
        _ => note(format_args!("orderfree: {}", sent.why)),
    }
    if let Some(hint) = &sent.hint {
        note(format_args!("orderfree: {hint}"));
    }
    Ok(exit_code(sent.outcome))
}

const UNREADABLE: &str = "the standard input can't be read";

/// The whole input, without the line break at its end.
fn whole(mut input: Input) -> io::Result<String> {
    let mut text = String::new();
    input.read_to_string(&mut text)?;
    let length = text
        .strip_suffix('\n')
        .map_or(&*text, |text| text.strip_suffix('\r').unwrap_or(text))
        .len();
    text.truncate(length);
    Ok(text)
}

impl AddArgs {
    /// Refuses arguments that can't be meant.
    fn check(&self) -> anyhow::Result<()> {
        let kind = self.key.kind;
        if self.what.len() > 1 {
            if self.what.iter().any(|text| text == "-") {
                return Err(wrong_usage(
                    ErrorKind::ArgumentConflict,
                    "`-` reads the values from the standard input; leave out the others",
                ));
            }
            if kind == Kind::Register {
                return Err(wrong_usage(
                    ErrorKind::TooManyValues,
                    "a register has only one value; put it in quotes",
                ));
            }
        }
        let is_no_line = |text: &String| text.trim().is_empty() || text.contains('\n');
        if self.what.len() > OPS_MAX && self.what.iter().any(is_no_line) {
            return Err(wrong_usage(
                ErrorKind::TooManyValues,
                format!(
                    "more than {OPS_MAX} values are added as lines, so none of them can be empty or contain a line \
                     break; leave it out, or add the values in parts"
                ),
            ));
        }
        self.update.check(!self.has_lines())?;
        if !self.what.is_empty() || self.op.is_some() {
            return Ok(());
        }
        if kind.empty_op().is_none() {
            return Err(wrong_usage(
                ErrorKind::MissingRequiredArgument,
                format!(
                    "say what to add to a {kind}, or write `-` to add the lines of the standard input"
                ),
            ));
        }
        if input::is_piped() {
            return Err(wrong_usage(
                ErrorKind::MissingRequiredArgument,
                "something is piped into this command; write `-` after the key to add its lines, or the amount \
                 to ignore it",
            ));
        }
        Ok(())
    }

    /// Whether values are added in batches: the lines of the standard input, or more than fit into one request.
    fn has_lines(&self) -> bool {
        self.what.len() > OPS_MAX || self.what == ["-"] && self.key.kind != Kind::Register
    }

    /// The body of a request that adds these. `None`: without a body, which adds 1 to a counter.
    fn body(&self, what: &[String]) -> Option<String> {
        if let Some(op) = &self.op {
            return Some(op.get().to_owned());
        }
        let ops: Vec<String> = what.iter().map(|text| self.key.kind.bare_op(text)).collect();
        (!ops.is_empty()).then(|| list(&ops))
    }
}

/// The body for a list of ops. It is put together as text, so that no digit is lost.
pub(super) fn list(ops: &[impl AsRef<str>]) -> String {
    let ops: Vec<&str> = ops.iter().map(AsRef::as_ref).collect();
    format!(r#"{{"ops":[{}]}}"#, ops.join(","))
}

pub(super) fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Outcome::Acked | Outcome::Accepted => ExitCode::SUCCESS,
        Outcome::Refused => ExitCode::FAILURE,
        Outcome::Unknown => ExitCode::from(UNKNOWN),
    }
}

/// An op, and the number of its line.
type Line = (usize, String);

/// The lines of the input, and what became of them.
struct Lines {
    kind: Kind,
    input: Input,
    /// Number of the last line that was read.
    at: usize,
    acked: usize,
    refused: usize,
    unknown: usize,
    /// The lines that were not acked, for JSON.
    errors: Vec<Value>,
    /// The first line that was not sent, if an error ended the input.
    unsent_from: Option<usize>,
}

async fn add_lines(target: &Target<'_>, input: Input) -> anyhow::Result<ExitCode> {
    let mut lines = Lines {
        kind: target.kind,
        input,
        at: 0,
        acked: 0,
        refused: 0,
        unknown: 0,
        errors: Vec::new(),
        unsent_from: None,
    };
    loop {
        let batch = lines.batch();
        if batch.is_empty() {
            break;
        }
        lines.send(target, batch).await;
    }
    lines.tell(target.server)
}

impl Lines {
    /// The next lines, as many as are there and fit into one request. Empty at the end.
    fn batch(&mut self) -> Vec<Line> {
        let (mut batch, mut bytes, mut line) = (Vec::new(), 0, Vec::new());
        while batch.len() < OPS_MAX
            && bytes < BATCH_BYTES_MAX
            && self.unsent_from.is_none()
            && (batch.is_empty() || self.input.buffer().contains(&b'\n'))
        {
            line.clear();
            match self.input.read_until(b'\n', &mut line) {
                Ok(0) => break,
                Ok(_) => self.at += 1,
                Err(error) => {
                    self.at += 1;
                    let why = format!("{UNREADABLE}: {error}");
                    self.fault(self.at..=self.at, Outcome::Refused, 1, &why);
                    self.stop_before(self.at);
                    break;
                }
            }
            match self.op(&line) {
                Ok(None) => {}
                Ok(Some(op)) => {
                    bytes += op.len();
                    batch.push((self.at, op));
                }
                Err(why) => self.fault(self.at..=self.at, Outcome::Refused, 1, &why),
            }
        }
        batch
    }

    /// The op of a line. `None`: the line is blank.
    fn op(&self, line: &[u8]) -> Result<Option<String>, String> {
        let text =
            std::str::from_utf8(line).map_err(|_| "the line is not UTF-8".to_owned())?.trim();
        if text.is_empty() {
            return Ok(None);
        }
        match self.kind.read_bare_op(text) {
            Ok(_) => Ok(Some(self.kind.bare_op(text))),
            Err(error) => Err(format!("this is not an op of kind {}: {error}", self.kind)),
        }
    }

    /// Sends a batch. If it is refused because of single ops, it sends the halves, until it knows which.
    async fn send(&mut self, target: &Target<'_>, batch: Vec<Line>) {
        let mut waiting = vec![batch];
        while let Some(mut part) = waiting.pop() {
            let ops: Vec<&String> = part.iter().map(|(_, op)| op).collect();
            let sent = target.update(Some(&list(&ops))).await;
            let is_of_an_op = sent.is_problem(PROBLEMS_OF_OPS);
            match sent.outcome {
                Outcome::Acked => self.acked += part.len(),
                Outcome::Refused if is_of_an_op && part.len() > 1 => {
                    let second = part.split_off(part.len() / 2);
                    waiting.extend([second, part]);
                }
                outcome => {
                    let (first, last, count) = (part[0].0, part[part.len() - 1].0, part.len());
                    self.fault(first..=last, outcome, count, &sent.why);
                    // The next request would most likely end as this one did.
                    if !is_of_an_op || self.errors.len() >= FAULTS_MAX {
                        self.stop_before(last + 1);
                        return;
                    }
                }
            }
        }
    }

    /// Leaves out this line and those after it.
    fn stop_before(&mut self, line: usize) {
        self.unsent_from = Some(self.unsent_from.map_or(line, |from| from.min(line)));
    }

    /// Says that lines were not acked, and why.
    fn fault(&mut self, lines: RangeInclusive<usize>, outcome: Outcome, count: usize, why: &str) {
        let (first, last, name) = (lines.start(), lines.end(), outcome.name());
        match first == last {
            true => note(format_args!("orderfree: line {first}: {name}: {why}")),
            false => note(format_args!("orderfree: lines {first} to {last}: {name}: {why}")),
        }
        self.errors
            .push(json!({"first_line": first, "last_line": last, "outcome": name, "detail": why}));
        match outcome {
            Outcome::Acked | Outcome::Accepted => {}
            Outcome::Refused => self.refused += count,
            Outcome::Unknown => self.unknown += count,
        }
        if self.errors.len() >= FAULTS_MAX {
            self.stop_before(last + 1);
        }
    }

    /// Says what became of all lines.
    fn tell(mut self, server: &ServerArgs) -> anyhow::Result<ExitCode> {
        // Only if there is such a line.
        let is_over = self.input.fill_buf().is_ok_and(<[u8]>::is_empty);
        let unsent_from = self.unsent_from.filter(|from| *from <= self.at || !is_over);
        let outcome = match (self.unknown, self.refused, unsent_from) {
            (0, 0, None) => Outcome::Acked,
            (0, ..) => Outcome::Refused,
            _ => Outcome::Unknown,
        };
        let Lines { acked, refused, unknown, errors, .. } = self;
        let printed = if server.wants_json() {
            show(json!({
                "outcome": outcome.name(), "acked": acked, "refused": refused, "unknown": unknown,
                "unsent_from_line": unsent_from, "errors": errors,
            }))
        } else if outcome == Outcome::Acked {
            show(outcome.name())
        } else {
            note(format_args!(
                "orderfree: {acked} lines acked, {refused} refused, {unknown} unknown"
            ));
            if let Some(line) = unsent_from {
                note(format_args!("orderfree: line {line} and all lines after it were not sent"));
            }
            Ok(())
        };
        if let Err(error) = printed {
            note(format_args!("orderfree: {error:#}"));
        }
        Ok(exit_code(outcome))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        add: AddArgs,
    }

    #[test]
    fn arguments_become_ops_of_the_kind() {
        let add = |line: &str| {
            let line = ["add"].into_iter().chain(line.split(' '));
            Command::try_parse_from(line).map(|command| command.add)
        };
        for (line, says) in [
            ("counter/a/b", ""),
            ("counter/a/b -5", r#"{"ops":[{"op":"add","by":"-5"}]}"#),
            ("sum/a/b -12.30", r#"{"ops":[{"op":"add","by":"-12.30"}]}"#),
            ("gset/a/b u1 7", r#"{"ops":[{"op":"add","item":"u1"},{"op":"add","item":7}]}"#),
            ("register/a/b x", r#"{"ops":[{"op":"set","value":"x"}]}"#),
            (r#"lww_set/a/b --op {"op":"remove","item":"a"}"#, r#"{"op":"remove","item":"a"}"#),
            ("register/a/b [1e-400]", r#"{"ops":[{"op":"set","value":[1e-400]}]}"#),
            (r#"register/a/b --op {"op":"set","value":1e-400}"#, r#"{"op":"set","value":1e-400}"#),
        ] {
            let add = add(line).expect("arguments");
            let body = add.body(&add.what);
            assert_eq!(body.unwrap_or_default(), says);
        }
        for (line, says) in [
            ("register/a/b x y", "one value"),
            ("gset/a/b x -", "leave out the others"),
            ("gset/a/b", "`-`"),
        ] {
            let error = add(line).expect("arguments").check().expect_err(line);
            assert!(error.to_string().contains(says), "{line}: {error}");
        }
    }
}
