//! What the commands that call a running server share, and the small ones: `get` and `health`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use orderfree_core::protocol::Key;
use reqwest::header::RETRY_AFTER;
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use serde_json::Value;
use serde_json::value::RawValue;

use super::connect::{self, ConnectArgs, NoAnswer};
use super::key;
use super::output::{note, say, show};

/// Exit code: the key does not exist.
const ABSENT: u8 = 3;

/// Exit code: the outcome of an update or a reset is unknown.
pub(super) const UNKNOWN: u8 = 4;

/// Time limit of a request. It is longer than the server's own.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Words of the server's sentences about HTTP, and what they are on the command line.
const WORDS: &[(&str, &str)] = &[
    ("POST to it, or read with ?default=empty", "add to it, or read it with `get --default empty`"),
    ("POST to them first", "add to them first"),
    (
        "send `Authorization: Bearer orderfree_…`",
        "set --token-file (ORDERFREE_TOKEN_FILE) or --token (ORDERFREE_TOKEN)",
    ),
    ("Unknown query parameter", "Unknown parameter"),
];

fn base_url(text: &str) -> Result<Url, &'static str> {
    let url = Url::parse(text).ok().filter(Url::has_host);
    url.ok_or("write the whole URL, such as http://127.0.0.1:8080")
}

/// Options of the commands that call a server.
#[derive(Debug, Args)]
pub(super) struct ServerArgs {
    /// Base URL of the server.
    #[arg(long, env = "ORDERFREE_URL", default_value = "http://127.0.0.1:8080", value_parser = base_url)]
    url: Url,
    #[command(flatten)]
    connect: ConnectArgs,
    /// How to print the answer: `text` prints only the value or the outcome (`watch`: also a rate), `json` the whole answer.
    #[arg(short, long, default_value = "text")]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// Options of the commands that read values.
#[derive(Debug, Args)]
pub(super) struct ReadArgs {
    /// Consistency level of the read: one, local_one, local_quorum, quorum, each_quorum or all
    /// [default: the server's].
    #[arg(long, value_name = "LEVEL")]
    consistency: Option<String>,
    /// A parameter of the read, such as `q=0.5,0.99`, `contains=a` or `numbers=string`. Can be repeated.
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = param)]
    params: Vec<(String, String)>,
}

/// Arguments of `get`.
#[derive(Debug, Args)]
pub(super) struct GetArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The key, as `KIND/GROUP/NAME`. The name can contain slashes; write a slash in the group as `%2F`.
    #[arg(value_parser = key::key)]
    key: Key,
    #[command(flatten)]
    read: ReadArgs,
    /// Value to print if the key does not exist: `empty`, or a number for a `counter` or a `sum`.
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    default: Option<String>,
}

/// Arguments of `health`.
#[derive(Debug, Args)]
pub(super) struct HealthArgs {
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn get(args: GetArgs) -> anyhow::Result<ExitCode> {
    let mut url = args.server.url_of(&args.key)?;
    args.read.ask(&mut url);
    if let Some(default) = &args.default {
        url.query_pairs_mut().append_pair("default", default);
    }
    let client = args.server.client()?;
    let answer = args.server.send(client.get(url)).await.map_err(|no_answer| no_answer.error)?;
    args.server.print(&answer, "value")?;
    Ok(answer.exit_code())
}

pub(super) async fn health(args: HealthArgs) -> anyhow::Result<ExitCode> {
    let url = args.server.url.join("readyz?verbose");
    let url = url.context("the URL can't be used; write http://HOST:PORT")?;
    // The request has no secrets, and the certificate is for the name that other clients use.
    let sent = connect::unchecked()?.get(url).timeout(TIMEOUT).send().await;
    let response = match sent {
        Ok(response) => response,
        Err(error) => return Err(connect::explain(&args.server.url, error).await.error),
    };
    let is_ready = response.status().is_success();
    say(response.text().await?.trim_end());
    Ok(if is_ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn param(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl ReadArgs {
    /// Adds everything to an address.
    pub(super) fn ask(&self, url: &mut Url) {
        if let Some(level) = &self.consistency {
            url.query_pairs_mut().append_pair("consistency", level);
        }
        self.add_params(url);
    }

    /// Adds the parameters to an address, and the consistency level to a body.
    pub(super) fn ask_in_body(&self, url: &mut Url, body: &mut Value) {
        if let Some(level) = &self.consistency {
            body["consistency"] = level.as_str().into();
        }
        self.add_params(url);
    }

    fn add_params(&self, url: &mut Url) {
        for (name, value) in &self.params {
            url.query_pairs_mut().append_pair(name, value);
        }
    }
}

/// A server's answer. Its text is kept, because the order of its fields and the digits of its numbers are the
/// server's.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) text: String,
    /// How long the server asks clients to wait.
    pub(super) retry_after: Option<Duration>,
    value: Value,
}

impl Answer {
    /// The answer's first id, if it has ids.
    pub(super) fn first_id(&self) -> Option<&str> {
        self.value["ids"][0].as_str()
    }

    /// A field that is text.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.value[name].as_str()
    }

    /// Whether the answer is a problem of one of these types.
    pub(super) fn is_problem(&self, slugs: &[&str]) -> bool {
        let slug = self.field("type").and_then(|address| address.strip_prefix("/problems/"));
        slug.is_some_and(|slug| slugs.contains(&slug))
    }

    /// What a problem says, in the words of the command line.
    pub(super) fn sentence(&self) -> String {
        let said = self.field("detail").or(self.field("title"));
        let said = said.unwrap_or("the server's answer does not say what is wrong");
        WORDS.iter().fold(said.to_owned(), |said, (http, ours)| said.replace(http, ours))
    }

    /// The exit code of a read.
    pub(super) fn exit_code(&self) -> ExitCode {
        match self.status {
            StatusCode::OK => ExitCode::SUCCESS,
            _ if self.is_problem(&["key-absent"]) => ExitCode::from(ABSENT),
            _ => ExitCode::FAILURE,
        }
    }
}

/// Whether a request with this status can have another one later. A server of another sort answers 501.
pub(super) fn is_passing(status: StatusCode) -> bool {
    status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED
        || status == StatusCode::TOO_MANY_REQUESTS
}

/// A value as text for people: a string without its quotes, anything else as the server wrote it.
pub(super) fn plain(value: &RawValue) -> String {
    serde_json::from_str(value.get()).unwrap_or_else(|_| value.get().to_owned())
}

impl ServerArgs {
    /// A client for this server.
    pub(super) fn client(&self) -> anyhow::Result<Client> {
        self.connect.client(&self.url)
    }

    /// The address of a key.
    pub(super) fn url_of(&self, key: &Key) -> anyhow::Result<Url> {
        self.address(&["v1", key.kind.name(), key.group.as_str(), key.name.as_str()])
    }

    /// The address with these parts.
    pub(super) fn address(&self, parts: &[&str]) -> anyhow::Result<Url> {
        let mut url = self.url.clone();
        url.path_segments_mut()
            .map_err(|()| {
                anyhow::anyhow!(
                    "{} is not an HTTP address; write http://HOST:PORT",
                    connect::shown(&self.url)
                )
            })?
            .pop_if_empty()
            .extend(parts);
        Ok(url)
    }

    /// Sends a request and reads its answer.
    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Answer, NoAnswer> {
        self.send_within(TIMEOUT, request).await
    }

    /// Sends a request and reads its answer, within a time limit of its own.
    pub(super) async fn send_within(
        &self,
        limit: Duration,
        request: RequestBuilder,
    ) -> Result<Answer, NoAnswer> {
        let read = async {
            let response = request.timeout(limit).send().await?;
            let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            let after = after.and_then(|text| text.parse().ok()).map(Duration::from_secs);
            Ok((response.status(), after, response.text().await?))
        };
        let (status, retry_after, text) = match read.await {
            Ok(answer) => answer,
            Err(error) => return Err(connect::explain(&self.url, error).await),
        };
        match serde_json::from_str(&text) {
            Ok(value) => Ok(Answer { status, text, retry_after, value }),
            Err(_) if is_passing(status) => {
                let error =
                    anyhow::anyhow!("the answer is {status} without JSON, as proxies send it");
                Err(NoAnswer { error, may_have_arrived: true, may_pass: true })
            }
            Err(error) => {
                let error = anyhow::Error::from(error).context(
                    "the server's answer is not JSON; check that --url names an Orderfree server, and its http:// or https://",
                );
                Err(NoAnswer { error, may_have_arrived: true, may_pass: false })
            }
        }
    }

    pub(super) fn wants_json(&self) -> bool {
        self.output == Output::Json
    }

    /// Prints one field or a problem's sentence for people, or the whole answer as JSON with `--output json`.
    pub(super) fn print(&self, answer: &Answer, field: &str) -> anyhow::Result<()> {
        if self.wants_json() {
            return show(answer.text.trim_end());
        }
        let fields: BTreeMap<String, Box<RawValue>> =
            serde_json::from_str(&answer.text).unwrap_or_default();
        match fields.get(field) {
            Some(value) if answer.field("detail").is_none() => show(plain(value)),
            _ => {
                note(format_args!("orderfree: {}", answer.sentence()));
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_paths_with_slashes_in_names_encoded() {
        let server = ServerArgs {
            url: "http://127.0.0.1:1/".parse().expect("url"),
            connect: ConnectArgs::default(),
            output: Output::Text,
        };
        let key = key::key("counter/a b%2Fc/x/y%").expect("a key");
        let url = server.url_of(&key).expect("an address").to_string();
        assert_eq!(url, "http://127.0.0.1:1/v1/counter/a%20b%2Fc/x%2Fy%25");
    }
}
