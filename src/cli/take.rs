//! `take`: reads a total and subtracts it, for bills and quotas.
//!
//! The amount comes from the read, and the update that subtracts it has an id. So the same amount can be sent
//! again, also after a crash, and it is taken once. Updates that come between the read and the update stay.
//! A server that reads and subtracts in one request could not promise that: its second try would compute
//! another amount.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use clap::error::ErrorKind;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::op_id::{ClientId, Window};
use orderfree_core::protocol::{Key, Outcome};
use serde_json::{Value, json};

use super::client::ServerArgs;
use super::output::{again, note, show};
use super::update::{Id, Target, UpdateArgs};
use super::{add, key, wrong_usage};
use crate::limits::OPS_MAX;

/// A run can be resumed for as long as the servers take the id.
const WINDOW: Window = Window::Long;

/// Arguments of `take`.
#[derive(Debug, Args)]
pub(super) struct TakeArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The key of a `counter` or a `sum`, as `KIND/GROUP/NAME`. The name can contain slashes; write a slash in the
    /// group as `%2F`.
    #[arg(value_parser = key::key)]
    key: Key,
    /// Go on with what an earlier run began and did not finish. Run exactly the command that it printed: with another
    /// key or amount, what is taken is not what is printed.
    #[arg(long, num_args = 2, value_names = ["ID", "AMOUNT"], allow_negative_numbers = true)]
    resume: Option<Vec<String>>,
}

/// What is taken, and the id under which it is taken once.
struct Taking {
    id: Id,
    amount: String,
}

pub(super) async fn take(args: TakeArgs) -> anyhow::Result<ExitCode> {
    args.check()?;
    let update = UpdateArgs::default();
    let target = Target {
        url: args.server.url_of(&args.key)?,
        client: args.server.client()?,
        kind: args.key.kind,
        server: &args.server,
        args: &update,
    };
    let taking = match &args.resume {
        Some(given) => {
            let id = Id::with_time(given[0].clone()).within(WINDOW);
            Taking { id, amount: given[1].clone() }
        }
        None => match args.begin(&target).await? {
            Ok(taking) => taking,
            Err(exit) => return Ok(exit),
        },
    };
    let body = subtraction(args.key.kind, &taking.amount)?;
    let sent = target.update_as(Some(taking.id.clone()), Some(&body)).await;
    let why = match sent.is_problem(&["id-reused"]) {
        true => "this id was used with another amount; use the amount that was printed",
        false => sent.why.as_str(),
    };
    let mut outcome = json!({
        "outcome": sent.outcome.name(), "id": taking.id.text(), "amount": taking.amount,
    });
    if sent.outcome == Outcome::Acked {
        args.print(&outcome, &taking.amount);
    } else {
        outcome["detail"] = why.into();
        note(format_args!("orderfree: {why}"));
        if sent.can_change() {
            note(format_args!("orderfree: {}", args.resumption(&taking)));
        }
        if args.server.wants_json() {
            args.print(&outcome, "");
        }
    }
    Ok(add::exit_code(sent.outcome))
}

impl TakeArgs {
    fn check(&self) -> anyhow::Result<()> {
        let kind = self.key.kind;
        if !matches!(kind, Kind::Counter | Kind::Sum) {
            return Err(wrong_usage(
                ErrorKind::InvalidValue,
                format!("nothing can be subtracted from a {kind}; `take` needs a counter or a sum"),
            ));
        }
        let Some(given) = &self.resume else { return Ok(()) };
        if !ClientId::parse(&given[0]).is_ok_and(|id| id.time().is_some()) {
            return Err(wrong_usage(
                ErrorKind::InvalidValue,
                format!("`{}` is not an id that `take` printed", given[0]),
            ));
        }
        subtraction(kind, &given[1])
            .map_err(|error| wrong_usage(ErrorKind::InvalidValue, error))?;
        match is_zero(&given[1]) {
            true => Err(wrong_usage(ErrorKind::InvalidValue, "the amount can't be 0")),
            false => Ok(()),
        }
    }

    /// Reads the value, gets an id, and says both. `Err`: there is nothing to take.
    async fn begin(&self, target: &Target<'_>) -> anyhow::Result<Result<Taking, ExitCode>> {
        let mut url = target.url.clone();
        url.query_pairs_mut().append_pair("numbers", "string");
        let read = self.server.send(target.client.get(url)).await;
        let read = read.map_err(|no_answer| no_answer.error)?;
        if read.is_problem(&["key-absent"]) && !self.server.wants_json() {
            note(format_args!("orderfree: {} does not exist; nothing was taken", self.key));
            return Ok(Err(read.exit_code()));
        }
        let Some(amount) = read.field("value").map(str::to_owned) else {
            self.server.print(&read, "value")?;
            return Ok(Err(read.exit_code()));
        };
        if is_zero(&amount) {
            self.print(&json!({"outcome": "acked", "id": null, "amount": amount}), &amount);
            return Ok(Err(ExitCode::SUCCESS));
        }
        let id = match target.new_id().await {
            Ok(id) => id.within(WINDOW),
            Err(sent) => {
                note(format_args!("orderfree: {}; nothing was taken", sent.why));
                return Ok(Err(ExitCode::FAILURE));
            }
        };
        let taking = Taking { id, amount };
        note(format_args!("orderfree: {}", self.resumption(&taking)));
        Ok(Ok(taking))
    }

    /// Says how to go on. A run that goes on already is run again as it is.
    fn resumption(&self, Taking { id, amount }: &Taking) -> String {
        let more = match self.resume {
            Some(_) => String::new(),
            None => format!("--resume {} {amount}", id.text()),
        };
        format!("taking {amount}; to go on after an interruption, run: {}", again(&more))
    }

    /// A failed print does not change the exit code: after another code, a caller would take again.
    fn print(&self, answer: &Value, amount: &str) {
        let printed = match self.server.wants_json() {
            true => show(answer),
            false => show(amount),
        };
        if let Err(error) = printed {
            note(format_args!("orderfree: {error:#}"));
        }
    }
}

fn is_zero(amount: &str) -> bool {
    !amount.contains(|digit| matches!(digit, '1'..='9'))
}

/// The body of an update that subtracts `amount`. A total can be larger than one op.
fn subtraction(kind: Kind, amount: &str) -> anyhow::Result<String> {
    let wrong = || anyhow::anyhow!("`{amount}` is not an amount of a {kind}");
    if kind == Kind::Sum {
        let negated = match amount.strip_prefix('-') {
            Some(positive) => positive.to_owned(),
            None => format!("-{amount}"),
        };
        kind.read_bare_op(amount).with_context(wrong)?;
        return Ok(kind.bare_op(&negated));
    }
    let mut left = amount.parse::<i128>().map_err(|_| wrong())?.checked_neg().ok_or_else(wrong)?;
    let mut ops = Vec::new();
    while left != 0 && ops.len() < OPS_MAX {
        let by = left.clamp(i64::MIN.into(), i64::MAX.into());
        ops.push(kind.bare_op(&by.to_string()));
        left -= by;
    }
    match left {
        0 => Ok(add::list(&ops)),
        _ => Err(anyhow::anyhow!(
            "{amount} is too much for one update; subtract a part of it with `add`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_subtracted_digit_by_digit() {
        let by = |ops: &str| ops.matches("\"op\"").count();
        for (kind, amount, says) in [
            (Kind::Counter, "5", r#"{"ops":[{"op":"add","by":"-5"}]}"#),
            (Kind::Counter, "-5", r#"{"ops":[{"op":"add","by":"5"}]}"#),
            (Kind::Sum, "12.30", r#"{"op":"add","by":"-12.30"}"#),
            (Kind::Sum, "-0.10", r#"{"op":"add","by":"0.10"}"#),
        ] {
            assert_eq!(subtraction(kind, amount).expect(amount), says);
        }
        let large = subtraction(Kind::Counter, "18446744073709551616").expect("two of i64::MIN");
        assert_eq!((by(&large), large.matches("-9223372036854775808").count()), (2, 2), "{large}");
        for (kind, amount) in [
            (Kind::Counter, "5.5"),
            (Kind::Counter, "x"),
            (Kind::Sum, "--5"),
            (Kind::Counter, "170141183460469231731687303715884105727"),
        ] {
            assert!(subtraction(kind, amount).is_err(), "{kind} {amount}");
        }
    }

    #[test]
    fn nothing_but_zeros_is_zero() {
        for (amount, expected) in [("0", true), ("0.00", true), ("-0.01", false), ("10", false)] {
            assert_eq!(is_zero(amount), expected, "{amount}");
        }
    }
}
