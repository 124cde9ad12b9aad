//! `reset` and `delete`: a key begins again, or is absent, and what it had is printed. The request has an id, so it is
//! the same reset however often it is sent. Many keys are deleted by requests without an id: each deletes keys that are
//! still there.

use std::collections::HashSet;
use std::pin::pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{future, mem};

use anyhow::Context;
use clap::Args;
use clap::error::ErrorKind;
use orderfree_core::protocol::Key;
use orderfree_core::protocol::op_id::ClientId;
use reqwest::{Client, Method, RequestBuilder, StatusCode, Url};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::signal::unix::{self, SignalKind};
use tokio::time::timeout;

use super::client::{Answer, ServerArgs, UNKNOWN, is_passing, plain};
use super::output::{again, note, show};
use super::update::Id;
use super::{key, wrong_usage};

/// How long the command waits for the end of a reset.
const TIME_MAX: Duration = Duration::from_secs(120);

/// How long the server waits before it says that the reset still runs. Only a request that waits until the end gets a value
/// that is too large for the log.
const PREFER: &str = "wait=60";

/// Time limit of a request. The server answers earlier, within the minute that it may wait.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The time from one line about a reset that still runs to the next.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// The pause after an answer that can pass.
const PAUSE: Duration = Duration::from_secs(1);

/// Arguments of `reset`.
#[derive(Debug, Args)]
pub(super) struct ResetArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The key, as `KIND/GROUP/NAME`. The name can contain slashes; write a slash in the group as `%2F`.
    #[arg(value_parser = key::key)]
    key: Key,
    #[command(flatten)]
    id: IdArgs,
}

/// Arguments of `delete`.
#[derive(Debug, Args)]
pub(super) struct DeleteArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The key, as `KIND/GROUP/NAME`. With --prefix or --all the group, as `KIND/GROUP`. The name can contain slashes;
    /// write a slash in the group as `%2F`.
    target: String,
    /// Delete the keys of the group whose names begin with this text.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["all", "id"])]
    prefix: Option<String>,
    /// Delete all keys of the group.
    #[arg(long, conflicts_with = "id")]
    all: bool,
    #[command(flatten)]
    id: IdArgs,
}

#[derive(Debug, Args)]
struct IdArgs {
    /// Id of the request, with its time inside: a UUID of version 7. If the command was interrupted, run it again with the
    /// same id: the key is not reset or deleted a second time. Only for a single key, and not for both a reset and a
    /// deletion [default: a new id].
    #[arg(long, value_name = "ID", value_parser = id)]
    id: Option<String>,
}

fn id(text: &str) -> Result<String, String> {
    match ClientId::parse(text) {
        Err(bad) => Err(format!("the id {bad}")),
        Ok(id) if id.time().is_none() => {
            Err("the id has no time inside it; use a UUID of version 7".to_owned())
        }
        Ok(_) => Ok(text.to_owned()),
    }
}

/// The answer to a reset.
#[derive(Deserialize)]
struct Reset {
    cleared: Option<Cleared>,
}

#[derive(Deserialize)]
struct Cleared {
    value: Box<RawValue>,
}

/// The answer to a deletion of many keys.
#[derive(Deserialize)]
struct Deleted {
    deleted: usize,
    failed: Vec<NotDeleted>,
    more: bool,
}

#[derive(Deserialize)]
struct NotDeleted {
    name: String,
    problem: Value,
}

pub(super) async fn reset(args: ResetArgs) -> anyhow::Result<ExitCode> {
    let Key { kind, group, name } = &args.key;
    let url = args.server.address(&["v1", kind.name(), group.as_str(), name.as_str(), "reset"])?;
    send(&args.server, args.id.id, Method::POST, url).await
}

pub(super) async fn delete(args: DeleteArgs) -> anyhow::Result<ExitCode> {
    let is_one = args.prefix.is_none() && !args.all;
    let key = match (is_one, key::group(&args.target)) {
        (false, _) => return args.delete_many().await,
        (true, Ok(_)) => Err(format!(
            "`{}` is a group; write KIND/GROUP/NAME, or delete its keys with --prefix or --all",
            args.target
        )),
        (true, Err(_)) => key::key(&args.target),
    };
    let key = key.map_err(|error| wrong_usage(ErrorKind::InvalidValue, error))?;
    let url = args.server.url_of(&key)?;
    send(&args.server, args.id.id, Method::DELETE, url).await
}

/// Sends one reset until it has ended, and prints what the key had.
async fn send(
    server: &ServerArgs,
    id: Option<String>,
    method: Method,
    url: Url,
) -> anyhow::Result<ExitCode> {
    let is_given = id.is_some();
    let id = id.map_or_else(Id::drawn, Id::with_time);
    let command = match is_given {
        true => again(""),
        false => again(&format!("--id {}", id.text())),
    };
    let client = server.client()?;
    let mut tries = Tries::begin(server, Some(&command));
    let ended = tokio::select! {
        biased;
        ended = tries.reset(&client, &method, &url, &id) => ended,
        () = interrupted() => Err(anyhow::anyhow!("interrupted")),
    };
    let printed = ended.and_then(|answer| print(server, &answer).map(|()| answer));
    let (code, is_done) = match &printed {
        Ok(answer) => (answer.exit_code(), answer.status == StatusCode::OK),
        Err(error) => {
            note(format_args!("orderfree: {error:#}"));
            (ExitCode::FAILURE, false)
        }
    };
    if !tries.is_unknown || is_done {
        return Ok(code);
    }
    let what = if method == Method::DELETE { "deletion" } else { "reset" };
    note(format_args!(
        "orderfree: the outcome of the {what} is unknown; to finish it, or to learn what it cleared, run: {command}"
    ));
    Ok(ExitCode::from(UNKNOWN))
}

/// Prints what a key had, or why it was not reset.
fn print(server: &ServerArgs, answer: &Answer) -> anyhow::Result<()> {
    let cleared = serde_json::from_str(&answer.text).ok().and_then(|reset: Reset| reset.cleared);
    match cleared {
        Some(Cleared { value }) if !server.wants_json() => show(plain(&value)),
        _ => server.print(answer, "cleared"),
    }
}

/// Waits for a signal that ends the command.
async fn interrupted() {
    let signals = [SignalKind::interrupt(), SignalKind::terminate()].map(unix::signal);
    let [Ok(mut interrupt), Ok(mut terminate)] = signals else {
        // Then a signal ends the process.
        return future::pending().await;
    };
    tokio::select! {
        biased;
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// The tries of one request, and what was said of them.
struct Tries<'a> {
    server: &'a ServerArgs,
    /// How users go on after an interruption.
    command: Option<&'a str>,
    begun: Instant,
    said: HashSet<String>,
    /// Whether a try may have reset the key, and no answer says so.
    is_unknown: bool,
}

impl Tries<'_> {
    fn begin<'a>(server: &'a ServerArgs, command: Option<&'a str>) -> Tries<'a> {
        Tries { server, command, begun: Instant::now(), said: HashSet::new(), is_unknown: false }
    }

    /// Prints a line, unless it was printed before.
    fn say(&mut self, line: String) {
        if !self.said.contains(&line) {
            note(format_args!("orderfree: {line}"));
            self.said.insert(line);
        }
    }

    fn say_running(&mut self) {
        self.say(format!("still running after {} s", self.begun.elapsed().as_secs()));
        if let Some(command) = self.command {
            self.say(format!("to go on after an interruption, run: {command}"));
        }
    }

    /// Sends a reset until it has ended.
    async fn reset(
        &mut self,
        client: &Client,
        method: &Method,
        url: &Url,
        id: &Id,
    ) -> anyhow::Result<Answer> {
        loop {
            let request = client.request(method.clone(), url.clone()).header("prefer", PREFER);
            let Some(answer) = self.ask(id.name(request)).await? else { continue };
            if answer.status != StatusCode::ACCEPTED {
                return Ok(answer);
            }
            let time = self.begun.elapsed();
            anyhow::ensure!(time <= TIME_MAX, "still running after {} s", time.as_secs());
            self.say_running();
        }
    }

    /// Sends a request. Returns its last answer, or none after a pause if it can have another one.
    async fn ask(&mut self, request: RequestBuilder) -> anyhow::Result<Option<Answer>> {
        // A signal can come before the answer.
        let was_unknown = mem::replace(&mut self.is_unknown, true);
        let mut sending = pin!(self.server.send_within(TIMEOUT, request));
        let sent = loop {
            match timeout(SAY_EVERY, &mut sending).await {
                Ok(sent) => break sent,
                Err(_) => self.say_running(),
            }
        };
        let is_unknown = match &sent {
            Ok(answer) if answer.field("outcome") == Some("refused") => false,
            // A 422 can be unknown, but another try of that id would not change this.
            Ok(answer) => !answer.status.is_client_error(),
            Err(no_answer) => no_answer.may_have_arrived,
        };
        self.is_unknown = was_unknown || is_unknown;
        let is_late = self.begun.elapsed() > TIME_MAX;
        let (said, pause) = match sent {
            Ok(answer) if is_late || !can_pass(&answer) => return Ok(Some(answer)),
            Ok(answer) => (answer.sentence(), answer.retry_after.unwrap_or(PAUSE)),
            Err(no_answer) if is_late || !no_answer.may_pass => return Err(no_answer.error),
            Err(no_answer) => (format!("{:#}", no_answer.error), PAUSE),
        };
        self.say(said);
        self.say(format!("trying again for up to {} s", TIME_MAX.as_secs()));
        tokio::time::sleep(pause).await;
        Ok(None)
    }
}

fn can_pass(answer: &Answer) -> bool {
    answer.is_problem(&["reset-overtaken"])
        || is_passing(answer.status)
            && !answer.is_problem(&["reset-paused", "too-many-ids", "too-many-resets"])
}

impl DeleteArgs {
    /// Deletes the keys of a group, some at a time.
    async fn delete_many(&self) -> anyhow::Result<ExitCode> {
        let (kind, group) = key::group(&self.target)
            .map_err(|error| wrong_usage(ErrorKind::InvalidValue, error))?;
        let (server, client) = (&self.server, self.server.client()?);
        let mut url = server.address(&["v1", kind.name(), group.as_str()])?;
        match &self.prefix {
            Some(prefix) => url.query_pairs_mut().append_pair("prefix", prefix),
            None => url.query_pairs_mut().append_pair("all", "true"),
        };
        let (mut deleted, mut tries) = (0, Tries::begin(server, None));
        let last = loop {
            let answer = match tries.ask(client.delete(url.clone())).await {
                Ok(Some(answer)) => answer,
                Ok(None) => continue,
                Err(error) if tries.is_unknown => {
                    note(format_args!("orderfree: {error:#}"));
                    note(format_args!(
                        "orderfree: {deleted} keys were deleted, and perhaps more; run the command again to go on"
                    ));
                    return Ok(ExitCode::from(UNKNOWN));
                }
                Err(error) => return Err(error),
            };
            if answer.status != StatusCode::OK {
                if deleted > 0 {
                    note(format_args!("orderfree: {deleted} keys were deleted before this answer"));
                }
                server.print(&answer, "deleted")?;
                return Ok(answer.exit_code());
            }
            let some: Deleted = serde_json::from_str(&answer.text)
                .context("the answer is not the result of a deletion")?;
            deleted += some.deleted;
            if !some.more || some.deleted == 0 {
                break some;
            }
            note(format_args!("orderfree: deleted {deleted} keys so far"));
            tries.begun = Instant::now();
        };
        for NotDeleted { name, problem } in &last.failed {
            let why = problem["detail"].as_str().unwrap_or("the answer does not say why");
            note(format_args!("orderfree: {name} was not deleted: {why}"));
        }
        if last.more {
            note(
                "orderfree: keys that can't be deleted hide others behind them; delete these one by one",
            );
        }
        let failed: Vec<&str> = last.failed.iter().map(|failed| failed.name.as_str()).collect();
        let is_done = failed.is_empty() && !last.more;
        match server.wants_json() {
            true => show(json!({"deleted": deleted, "failed": failed, "more": last.more}))?,
            false => show(deleted)?,
        }
        Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
