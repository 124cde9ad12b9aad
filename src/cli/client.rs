//! `add`, `get` and `health`: small clients for a running server.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use orderfree_core::crdt::Kind;
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use serde_json::{Value, json};

use super::connect::{self, ConnectArgs};
use super::output::{note, say, show};

/// Exit code: the key does not exist.
const ABSENT: u8 = 3;
/// Exit code: the outcome of the update is unknown.
const UNKNOWN: u8 = 4;

/// Time limit of a request. It is longer than the server's own.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Options of the commands that call a server.
#[derive(Debug, Args)]
pub(super) struct ServerArgs {
    /// Base URL of the server.
    #[arg(long, env = "ORDERFREE_URL", default_value = "http://127.0.0.1:8080")]
    url: Url,
    #[command(flatten)]
    connect: ConnectArgs,
    /// How to print the answer: `text` prints only the value or the outcome, `json` the whole answer.
    #[arg(short, long, default_value = "text")]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// Arguments of `add`.
#[derive(Debug, Args)]
pub(super) struct AddArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The key, as `KIND/GROUP/NAME`. The name can contain slashes.
    key: String,
    /// What to add: an amount for a `counter` (default 1) or a `sum`, numbers, items, or a register's value.
    /// Several values are added together, all or none.
    #[arg(allow_negative_numbers = true)]
    what: Vec<String>,
    /// An op as JSON, instead of values, such as '{"op":"remove","item":"a"}'.
    #[arg(long, value_name = "JSON", conflicts_with = "what", value_parser = json_value)]
    op: Option<Value>,
}

/// Arguments of `get`.
#[derive(Debug, Args)]
pub(super) struct GetArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The key, as `KIND/GROUP/NAME`. The name can contain slashes.
    key: String,
    /// Consistency level of the read: one, local_one, local_quorum, quorum or all [default: the server's].
    #[arg(long)]
    consistency: Option<String>,
    /// A parameter of the read, such as `q=0.5,0.99` or `contains=a`. Can be repeated.
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = param)]
    params: Vec<(String, String)>,
}

/// Arguments of `health`.
#[derive(Debug, Args)]
pub(super) struct HealthArgs {
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn add(args: AddArgs) -> anyhow::Result<ExitCode> {
    let url = args.server.key_url(&args.key)?;
    let request = args.server.connect.client(&url)?.post(url);
    let request = match args.body()? {
        Some(body) => request.json(&body),
        None => request,
    };
    let answer = send(request).await;
    let (status, answer) = match answer {
        Ok(answer) => answer,
        Err(error)
            if error.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_connect) =>
        {
            return Err(args.server.explain(error));
        }
        Err(error) => {
            note(format_args!("orderfree: {error:#}; the update may or may not be counted"));
            return Ok(ExitCode::from(UNKNOWN));
        }
    };
    // A failed print does not change the exit code, which is the outcome of the update: after another code, a
    // caller would send the update again.
    if let Err(error) = args.server.print(&answer, "outcome") {
        note(format_args!("orderfree: {error:#}"));
    }
    Ok(match answer["outcome"].as_str() {
        Some("acked") => ExitCode::SUCCESS,
        Some("refused") => ExitCode::FAILURE,
        _ if status.is_client_error() => ExitCode::FAILURE,
        _ => ExitCode::from(UNKNOWN),
    })
}

pub(super) async fn get(args: GetArgs) -> anyhow::Result<ExitCode> {
    let mut url = args.server.key_url(&args.key)?;
    // Numbers as text, so that totals beyond 2^53 arrive exactly.
    url.query_pairs_mut().append_pair("numbers", "string");
    if let Some(level) = &args.consistency {
        url.query_pairs_mut().append_pair("consistency", level);
    }
    for (name, value) in &args.params {
        url.query_pairs_mut().append_pair(name, value);
    }
    let (status, answer) = send(args.server.connect.client(&url)?.get(url))
        .await
        .map_err(|error| args.server.explain(error))?;
    args.server.print(&answer, "value")?;
    Ok(match status {
        StatusCode::OK => ExitCode::SUCCESS,
        _ if answer["type"] == "/problems/key-absent" => ExitCode::from(ABSENT),
        _ => ExitCode::FAILURE,
    })
}

pub(super) async fn health(args: HealthArgs) -> anyhow::Result<ExitCode> {
    let url = args.server.url.join("readyz?verbose");
    let url = url.context("the URL can't be used; write http://HOST:PORT")?;
    // The request has no secrets, and the certificate is for the name that other clients use, so it is not
    // checked.
    let client =
        Client::builder().tls_certs_only([]).tls_danger_accept_invalid_certs(true).build()?;
    let response = client.get(url).timeout(TIMEOUT).send().await;
    let response = response.map_err(|error| args.server.explain(error.into()))?;
    let is_ready = response.status().is_success();
    say(response.text().await?.trim_end());
    Ok(if is_ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn json_value(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("the value is not JSON: {error}"))
}

fn param(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl AddArgs {
    /// The body of the request. `None`: without a body, which adds 1 to a counter.
    fn body(&self) -> anyhow::Result<Option<Value>> {
        if let Some(op) = &self.op {
            return Ok(Some(op.clone()));
        }
        let kind = self.key.split('/').next().unwrap_or_default();
        let Some(kind) = Kind::from_name(kind) else {
            let known: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            let known = known.join(", ");
            bail!("there is no kind `{kind}`; the kinds are {known}");
        };
        if kind == Kind::Register && self.what.len() > 1 {
            bail!("a register has only one value; put it in quotes");
        }
        let ops: Vec<Value> = self.what.iter().map(|text| kind.bare_op(text)).collect();
        Ok((!ops.is_empty()).then(|| json!({"ops": ops})))
    }
}

async fn send(request: RequestBuilder) -> anyhow::Result<(StatusCode, Value)> {
    let response = request.timeout(TIMEOUT).send().await?;
    let status = response.status();
    Ok((
        status,
        response.json().await.context(
            "the server's answer is not JSON; check that --url names an Orderfree server",
        )?,
    ))
}

impl ServerArgs {
    /// The error if no connection could be made.
    fn unreachable(&self) -> anyhow::Error {
        anyhow::anyhow!(
            "no server answers at {}, so nothing was sent; start one with `orderfree serve`, or set its \
             address with --url http://…",
            connect::shown(&self.url)
        )
    }

    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        match error.downcast_ref::<reqwest::Error>() {
            Some(cause) if cause.is_connect() => {
                let whole = format!("{error:#}");
                match whole.to_lowercase().contains("certificate") {
                    true => error.context(format!(
                        "the certificate of {} is not accepted, so nothing was sent; set its CA with --ca, and use \
                         an address that the certificate covers",
                        connect::shown(&self.url)
                    )),
                    false => self.unreachable(),
                }
            }
            _ => error,
        }
    }

    fn key_url(&self, key: &str) -> anyhow::Result<Url> {
        let parts: Vec<&str> = key.splitn(3, '/').collect();
        if parts.len() != 3 || parts.iter().any(|part| part.is_empty()) {
            bail!("`{key}` is not a key; write KIND/GROUP/NAME, such as counter/site/home");
        }
        let mut url = self.url.clone();
        url.path_segments_mut()
            .map_err(|()| {
                anyhow::anyhow!(
                    "{} is not an HTTP address; write http://HOST:PORT",
                    connect::shown(&self.url)
                )
            })?
            .pop_if_empty()
            .push("v1")
            .extend(parts);
        Ok(url)
    }

    /// Prints one field or a problem's sentence for people, or the whole answer as JSON with `--output json`.
    fn print(&self, answer: &Value, field: &str) -> anyhow::Result<()> {
        if self.output == Output::Json {
            return show(answer);
        }
        if let Some(value) = answer.get(field).filter(|_| answer["detail"].is_null()) {
            return match value.as_str() {
                Some(text) => show(text),
                None => show(value),
            };
        }
        let sentence = answer["detail"].as_str().or(answer["title"].as_str());
        note(format_args!(
            "orderfree: {}",
            sentence.unwrap_or("the server's answer does not say what is wrong")
        ));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        add: AddArgs,
    }

    #[test]
    fn arguments_become_ops_of_the_kind() {
        let body = |line: &str| {
            let line = ["add"].into_iter().chain(line.split(' '));
            let add = Line::try_parse_from(line).expect("arguments").add;
            add.body().map(|body| body.unwrap_or_default().to_string())
        };
        for (line, says) in [
            ("counter/a/b", "null"),
            ("counter/a/b -5", r#"{"ops":[{"by":"-5","op":"add"}]}"#),
            ("sum/a/b -12.30", r#"{"ops":[{"by":"-12.30","op":"add"}]}"#),
            ("gset/a/b u1 7", r#"{"ops":[{"item":"u1","op":"add"},{"item":7,"op":"add"}]}"#),
            (r#"lww_set/a/b --op {"op":"remove","item":"a"}"#, r#"{"item":"a","op":"remove"}"#),
        ] {
            assert_eq!(body(line).expect("a body"), says);
        }
        assert!(body("count/a/b").expect_err("no kind").to_string().contains("counter, sum,"));
        assert!(
            body("register/a/b x y").expect_err("two values").to_string().contains("one value")
        );
        assert_eq!(
            body("register/a/b x").expect("a body"),
            r#"{"ops":[{"op":"set","value":"x"}]}"#
        );
    }

    #[test]
    fn keys_become_paths_with_slashes_in_names_encoded() {
        let server = ServerArgs {
            url: "http://127.0.0.1:1/".parse().expect("url"),
            connect: ConnectArgs::default(),
            output: Output::Text,
        };
        let url = |key| server.key_url(key).map(|url| url.to_string());
        assert_eq!(
            url("counter/a b/x/y").expect("key"),
            "http://127.0.0.1:1/v1/counter/a%20b/x%2Fy"
        );
        assert!(url("counter/a").is_err());
        assert!(url("counter//x").is_err());
    }
}
