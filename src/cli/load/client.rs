//! One pod over HTTP, and what its answers mean for the count.
//!
//! The client never sends an update twice, never follows a redirect and never asks a proxy: what
//! it reports is what this pod said about this one request.

use std::time::Duration;

use anyhow::{Context, ensure};
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cli::connect::ConnectArgs;

use super::checker::Outcome;
use super::workload::{Key, Kind};

/// Time to connect. A refused or silent port shows long before the request's own time is over.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// Time for `/readyz`, which answers from memory.
const READY_WITHIN: Duration = Duration::from_secs(2);
/// Characters of an answer that are kept for the report.
const DETAIL_CHARS_MAX: usize = 300;

/// A pod, as a client sees it. Clones share one connection pool.
#[derive(Clone, Debug)]
pub(super) struct PodClient {
    http: Client,
    base: String,
}

/// What a pod said about one update.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    /// Counted, not counted, or in doubt.
    pub outcome: Outcome,
    /// Why it was not acknowledged.
    pub why: Option<Why>,
}

/// Why an update was not acknowledged.
#[derive(Clone, Debug)]
pub(super) struct Why {
    /// A short class, such as `503` or `connect`: the report counts by it.
    pub class: String,
    /// The answer or the error itself.
    pub detail: String,
}

/// The parts of an answer to an update that matter here. Other fields may come and go.
#[derive(Deserialize)]
struct UpdateAnswer {
    outcome: Option<Outcome>,
    results: Option<Vec<Value>>,
}

/// An address as it is shown: without the name and the password that may stand in it.
pub(super) fn shown(base: &str) -> &str {
    base.rsplit_once('@').map_or(base, |(_, host)| host)
}

impl PodClient {
    /// A client for the pod at `base`, such as `http://127.0.0.1:8080`.
    pub(super) fn new(
        base: &str,
        connect: &ConnectArgs,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let shown = shown(base);
        let url = Url::parse(base).with_context(|| format!("`{shown}` is not a URL"))?;
        ensure!(
            matches!(url.scheme(), "http" | "https") && url.has_host(),
            "`{shown}` is not the address of a pod: it must look like http://host:port"
        );
        let http = connect
            .builder(&url)?
            .no_proxy()
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .connect_timeout(CONNECT_WITHIN)
            .timeout(timeout)
            .build()
            .context("cannot build an HTTP client")?;
        Ok(Self { http, base: base.trim_end_matches('/').to_owned() })
    }

    /// The address that this client was given, as it is shown.
    pub(super) fn shown(&self) -> &str {
        shown(&self.base)
    }

    /// Adds to keys: one update by its own route, several as a batch. One reply per update.
    pub(super) async fn add(&self, ops: &[(&Key, u64)]) -> Vec<Reply> {
        let answer = match ops {
            [(key, weight)] => {
                self.ask(self.http.post(self.path(key)).json(&add(key, *weight))).await
            }
            _ => {
                let updates: Vec<_> = ops.iter().map(|(key, by)| batch_item(key, *by)).collect();
                let url = format!("{}/v1/batch", self.base);
                let body = json!({"updates": updates});
                self.ask(self.http.post(url).json(&body)).await
            }
        };
        match answer {
            Ok((status, body)) => replies(status, &body, ops.len()),
            Err(reply) => vec![reply; ops.len()],
        }
    }

    /// Sends an update and reads the answer. An error is the reply that it amounts to.
    async fn ask(&self, request: RequestBuilder) -> Result<(StatusCode, String), Reply> {
        answered(request).await.map_err(not_answered)
    }

    /// The value of a key, `None` where it is absent.
    pub(super) async fn value(&self, key: &Key, consistency: &str) -> anyhow::Result<Option<i128>> {
        let url = format!("{}?numbers=string&consistency={consistency}", self.path(key));
        let (status, body) = answered(self.http.get(url)).await?;
        match status {
            StatusCode::OK => parse_value(key.kind, &body).map(Some),
            StatusCode::NOT_FOUND if is_problem(&body) => Ok(None),
            _ => anyhow::bail!("{status}: {}", shortened(&body)),
        }
    }

    /// Folds a key now. Says how many shards were left because they are not final yet.
    pub(super) async fn fold(&self, key: &Key) -> anyhow::Result<u64> {
        #[derive(Deserialize)]
        struct FoldAnswer {
            kept: u64,
        }
        let request = self.http.post(format!("{}/fold", self.path(key)));
        let (status, body) = answered(request).await?;
        ensure!(status == StatusCode::OK, "{status}: {}", shortened(&body));
        let answer: FoldAnswer = serde_json::from_str(&body)
            .with_context(|| format!("not the report of a fold: {}", shortened(&body)))?;
        Ok(answer.kept)
    }

    /// How many rows a key has in the store: shards, and the tally if there is one.
    pub(super) async fn rows(&self, key: &Key) -> anyhow::Result<usize> {
        #[derive(Deserialize)]
        struct ShardsAnswer {
            tally: Option<Value>,
            shards: Vec<Value>,
        }
        let request = self.http.get(format!("{}/shards", self.path(key)));
        let (status, body) = answered(request).await?;
        if status == StatusCode::NOT_FOUND && is_problem(&body) {
            return Ok(0);
        }
        ensure!(status == StatusCode::OK, "{status}: {}", shortened(&body));
        let answer: ShardsAnswer = serde_json::from_str(&body)
            .with_context(|| format!("not the rows of a key: {}", shortened(&body)))?;
        Ok(answer.shards.len() + usize::from(answer.tally.is_some()))
    }

    /// What the pod counts about itself.
    pub(super) async fn metrics(&self) -> anyhow::Result<String> {
        let request = self.http.get(format!("{}/metrics", self.base)).timeout(READY_WITHIN);
        Ok(request.send().await?.error_for_status()?.text().await?)
    }

    /// Whether the pod says that it is ready.
    pub(super) async fn is_ready(&self) -> bool {
        let request = self.http.get(format!("{}/readyz", self.base)).timeout(READY_WITHIN);
        request.send().await.is_ok_and(|answer| answer.status() == StatusCode::OK)
    }

    fn path(&self, key: &Key) -> String {
        format!("{}/v1/{}/{}/{}", self.base, key.kind.name(), key.group, key.name)
    }
}

fn batch_item(key: &Key, weight: u64) -> Value {
    let Key { kind, group, name } = key;
    json!({"kind": kind.name(), "group": group, "name": name, "op": add(key, weight)})
}

fn add(key: &Key, weight: u64) -> Value {
    match key.kind {
        Kind::Counter => json!({"op": "add", "by": weight}),
        Kind::Set => json!({"op": "add", "item": weight}),
    }
}

/// The replies that an answer holds: its own outcome for all, or one for each. An answer that
/// cannot be read leaves every update in doubt.
fn replies(status: StatusCode, body: &str, count: usize) -> Vec<Reply> {
    let class = status.as_str();
    let Ok(answer) = serde_json::from_str::<UpdateAnswer>(body) else {
        return vec![reply(Outcome::Unknown, &format!("{class} unreadable"), body); count];
    };
    match (answer.outcome, answer.results) {
        (Some(Outcome::Acked), _) if status != StatusCode::OK => {
            vec![reply(Outcome::Unknown, &format!("{class} acked"), body); count]
        }
        (Some(outcome), _) => vec![reply(outcome, class, body); count],
        (None, Some(results)) if results.len() == count => results.iter().map(item_reply).collect(),
        (None, _) => vec![reply(Outcome::Unknown, &format!("{class} no outcome"), body); count],
    }
}

fn item_reply(item: &Value) -> Reply {
    let outcome = item.get("outcome").cloned().unwrap_or_default();
    let outcome = serde_json::from_value(outcome).unwrap_or(Outcome::Unknown);
    reply(outcome, "batch item", &item.to_string())
}

fn reply(outcome: Outcome, class: &str, detail: &str) -> Reply {
    let why = (outcome != Outcome::Acked)
        .then(|| Why { class: class.to_owned(), detail: shortened(detail) });
    Reply { outcome, why }
}

/// Sends a request and reads the whole answer.
async fn answered(request: RequestBuilder) -> reqwest::Result<(StatusCode, String)> {
    let answer = request.send().await?;
    let status = answer.status();
    Ok((status, answer.text().await?))
}

/// An update without an answer. Only a connection that never came about proves that nothing was
/// sent; after that, the pod may have counted it.
fn not_answered(error: reqwest::Error) -> Reply {
    let (outcome, class) = if error.is_connect() {
        (Outcome::Refused, "connect")
    } else if error.is_timeout() {
        (Outcome::Unknown, "timeout")
    } else {
        (Outcome::Unknown, "connection lost")
    };
    reply(outcome, class, &format!("{:#}", anyhow::Error::from(error)))
}

/// A missing key is told from a wrong address by the problem that comes with the 404.
fn is_problem(body: &str) -> bool {
    serde_json::from_str::<Value>(body).is_ok_and(|body| body.is_object())
}

/// The value of a counter, or the sum of a set's items.
fn parse_value(kind: Kind, body: &str) -> anyhow::Result<i128> {
    #[derive(Deserialize)]
    struct ReadAnswer {
        value: Value,
    }
    let unreadable = || format!("not a value: {}", shortened(body));
    let answer: ReadAnswer = serde_json::from_str(body).with_context(unreadable)?;
    let number = |value: &Value| -> anyhow::Result<i128> {
        let digits = match value {
            Value::String(digits) => digits.clone(),
            other => other.to_string(),
        };
        digits.parse().with_context(unreadable)
    };
    match kind {
        Kind::Counter => number(&answer.value),
        Kind::Set => {
            let items = answer.value["items"].as_array().with_context(unreadable)?;
            items.iter().map(number).sum()
        }
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(DETAIL_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(status: u16, body: &str, count: usize) -> Vec<Outcome> {
        let status = StatusCode::from_u16(status).expect("a status");
        replies(status, body, count).iter().map(|reply| reply.outcome).collect()
    }

    #[test]
    fn an_answer_means_what_it_says() {
        let cases = [
            (200, r#"{"outcome":"acked","key":"x"}"#, Outcome::Acked),
            (503, r#"{"type":"/p","outcome":"refused"}"#, Outcome::Refused),
            (422, r#"{"type":"/p","outcome":"refused"}"#, Outcome::Refused),
            (504, r#"{"type":"/p","outcome":"unknown"}"#, Outcome::Unknown),
        ];
        for (status, body, expected) in cases {
            assert_eq!(outcomes(status, body, 1), [expected], "{status} {body}");
        }
    }

    #[test]
    fn an_unreadable_answer_is_unknown() {
        let cases = [
            (200, ""),
            (200, "<html>"),
            (200, "{}"),
            (200, r#"{"outcome":"accepted"}"#),
            (404, r#"{"title":"no outcome"}"#),
            (500, r#"{"outcome":"acked"}"#),
        ];
        for (status, body) in cases {
            assert_eq!(outcomes(status, body, 1), [Outcome::Unknown], "{status} {body}");
        }
    }

    #[test]
    fn a_batch_has_one_outcome_for_each_update() {
        use Outcome::{Acked, Refused, Unknown};
        let body = r#"{"results":[{"outcome":"acked"},{"outcome":"refused"},{"outcome":"?"}]}"#;
        assert_eq!(outcomes(200, body, 3), [Acked, Refused, Unknown]);
        assert_eq!(outcomes(200, body, 2), [Unknown, Unknown], "one result too many");
        assert_eq!(outcomes(503, r#"{"outcome":"refused"}"#, 2), [Refused, Refused]);
    }

    #[test]
    fn a_value_may_exceed_every_machine_number() {
        let text = r#"{"value":"1180591620717411303424"}"#;
        let counter = |text| parse_value(Kind::Counter, text);
        assert_eq!(counter(text).expect("a value"), 1_i128 << 70);
        assert_eq!(counter(r#"{"value":-5}"#).expect("a value"), -5);
        assert!(counter(r#"{"value":1.5}"#).is_err());
        assert!(counter("{}").is_err());
    }

    #[test]
    fn a_set_is_the_sum_of_its_items() {
        let set = |text| parse_value(Kind::Set, text);
        assert_eq!(set(r#"{"value":{"items":[1,"64",8]}}"#).expect("a value"), 73);
        assert_eq!(set(r#"{"value":{"items":[]}}"#).expect("a value"), 0);
        assert!(set(r#"{"value":{"items":["x"]}}"#).is_err());
        assert!(set(r#"{"value":5}"#).is_err());
    }

    #[tokio::test]
    async fn a_closed_port_refuses() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("an address");
        drop(free);
        let pod = PodClient::new(
            &format!("http://{address}"),
            &ConnectArgs::default(),
            Duration::from_secs(1),
        );
        let key = Key { kind: Kind::Counter, group: "g".to_owned(), name: "k".to_owned() };
        let replies = pod.expect("a client").add(&[(&key, 1)]).await;
        assert_eq!(replies[0].outcome, Outcome::Refused);
        assert_eq!(replies[0].why.as_ref().map(|why| why.class.as_str()), Some("connect"));
    }

    #[test]
    fn only_a_web_address_is_taken() {
        for base in ["127.0.0.1:8080", "ftp://a", "file:///a", "http://", "nonsense"] {
            assert!(
                PodClient::new(base, &ConnectArgs::default(), Duration::from_secs(1)).is_err(),
                "{base}"
            );
        }
    }
}
