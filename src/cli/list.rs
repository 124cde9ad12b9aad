//! `ls` and `merge`: reads of several keys of a group.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::Name;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::client::{ReadArgs, ServerArgs, plain};
use super::key;
use super::output::{note, show_more};

/// Arguments of `ls`.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The group, as `KIND/GROUP`. Write a slash in it as `%2F`.
    #[arg(value_parser = key::group)]
    group: (Kind, Name),
    #[command(flatten)]
    read: ReadArgs,
    /// List only names that begin with this text.
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
}

/// Arguments of `merge`.
#[derive(Debug, Args)]
pub(super) struct MergeArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The group, as `KIND/GROUP`. Write a slash in it as `%2F`.
    #[arg(value_parser = key::group)]
    group: (Kind, Name),
    /// Names of the keys to merge.
    #[arg(required_unless_present = "expression")]
    names: Vec<String>,
    #[command(flatten)]
    read: ReadArgs,
    /// Set algebra over audiences, instead of names, such as '{"and":["mobile",{"not":"bots"}]}'.
    #[arg(long, value_name = "JSON", conflicts_with = "names", value_parser = key::json::<Value>)]
    expression: Option<Value>,
}

/// A page of a group.
#[derive(Deserialize)]
struct Page {
    keys: Vec<Box<RawValue>>,
    next: Option<String>,
}

/// A key of a page.
#[derive(Deserialize)]
struct Entry {
    name: String,
    value: Option<Box<RawValue>>,
    problem: Option<Value>,
}

pub(super) async fn ls(args: ListArgs) -> anyhow::Result<ExitCode> {
    let (kind, group) = &args.group;
    let mut first = args.server.address(&["v1", kind.name(), group.as_str()])?;
    args.read.ask(&mut first);
    if let Some(prefix) = &args.prefix {
        first.query_pairs_mut().append_pair("prefix", prefix);
    }
    let client = args.server.client()?;
    let (mut next, mut is_complete) = (None::<String>, true);
    loop {
        let mut url = first.clone();
        if let Some(cursor) = &next {
            url.query_pairs_mut().append_pair("cursor", cursor);
        }
        let answer =
            args.server.send(client.get(url)).await.map_err(|no_answer| no_answer.error)?;
        if !answer.status.is_success() {
            args.server.print(&answer, "keys")?;
            return Ok(answer.exit_code());
        }
        let page: Page = serde_json::from_str(&answer.text).context("the answer is not a page")?;
        let mut text = String::new();
        for key in page.keys {
            let entry: Entry =
                serde_json::from_str(key.get()).context("the answer is not a page")?;
            is_complete &= entry.problem.is_none();
            let line = match (&entry.value, &entry.problem) {
                _ if args.server.wants_json() => key.get().to_owned(),
                (Some(value), _) => format!("{}\t{}", entry.name, plain(value)),
                (None, problem) => {
                    let why = problem.as_ref().and_then(|problem| problem["detail"].as_str());
                    note(format_args!("orderfree: {}: {}", entry.name, why.unwrap_or("no value")));
                    continue;
                }
            };
            text += &line;
            text.push('\n');
        }
        next = page.next;
        if !show_more(&text)? || next.is_none() {
            return Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
    }
}

pub(super) async fn merge(args: MergeArgs) -> anyhow::Result<ExitCode> {
    let (kind, group) = &args.group;
    let mut url = args.server.address(&["v1", "merge"])?;
    let mut body = json!({"kind": kind.name(), "group": group.as_str()});
    match &args.expression {
        Some(expression) => body["expression"] = expression.clone(),
        None => body["names"] = json!(args.names),
    }
    args.read.ask_in_body(&mut url, &mut body);
    let request = args.server.client()?.post(url).json(&body);
    let answer = args.server.send(request).await.map_err(|no_answer| no_answer.error)?;
    args.server.print(&answer, "value")?;
    Ok(answer.exit_code())
}
