//! One pod over HTTP, and what its answers mean for the count.
//!
//! The client itself never sends an update twice, never follows a redirect and never uses a proxy. So each
//! answer that it reports is the answer of this pod to this one request.

use std::time::Duration;

use anyhow::{Context, ensure};
use reqwest::{Client, ClientBuilder, RequestBuilder, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::checker::Outcome;
use crate::workload::{Key, Kind, Window};

/// Time limit to connect. A port that refuses or does not answer shows long before the time limit of
/// the request is over.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// Time limit of `/readyz` and `/metrics`, which pods answer from memory.
const READY_WITHIN: Duration = Duration::from_secs(2);
/// Time limit of a reset. A pod looks at the log and reads the key before it answers, each for up to 10 s, and then
/// waits for [`RESET_WAIT`]. A client that gave up before that and asked another pod could order the reset twice.
const RESET_WITHIN: Duration = Duration::from_secs(30);
/// How long a pod waits for the end of a reset, as it is asked to.
const RESET_WAIT: &str = "wait=5";
/// Characters of an answer that are kept for the report.
const DETAIL_CHARS_MAX: usize = 300;

/// Makes the HTTP client builder for the address of a pod, with the token and the certificate
/// authority that the pod needs.
pub(crate) type Connect<'a> = &'a dyn Fn(&Url) -> anyhow::Result<ClientBuilder>;

/// A client of one pod. Clones share one connection pool.
#[derive(Clone, Debug)]
pub(crate) struct PodClient {
    http: Client,
    base: String,
}

/// An update to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Add<'a> {
    /// The key.
    pub key: &'a Key,
    /// The amount to add.
    pub weight: u64,
    /// The id under which the update counts once.
    pub id: Option<Uuid>,
}

/// The answer of a pod to one update.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// Whether the update was counted.
    pub outcome: Outcome,
    /// Why the update was not acknowledged.
    pub why: Option<Why>,
}

/// Why an update was not acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Why {
    /// A short class, such as `503` or `connect`. The report counts reasons by class.
    pub class: String,
    /// The answer or the error.
    pub detail: String,
    /// The last part of the type of the answer's problem, such as `id-expired`.
    pub problem: Option<String>,
}

/// The answer of a pod to a reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResetReply {
    /// The key begins again, and had this.
    Done(i128),
    /// The key has nothing.
    Absent,
    /// The reset runs.
    Running,
    /// This request changed nothing, for this reason.
    Refused(String),
    /// The reset may have taken effect.
    Unknown(String),
}

impl Reply {
    /// Whether the window of the update's id was over.
    pub(crate) fn has_expired(&self) -> bool {
        self.has_problem("id-expired")
    }

    /// Whether the pod knows the id with another update.
    pub(crate) fn is_conflict(&self) -> bool {
        self.has_problem("id-reused")
    }

    fn has_problem(&self, name: &str) -> bool {
        self.why.as_ref().is_some_and(|why| why.problem.as_deref() == Some(name))
    }
}

/// The fields of an answer to an update that matter here. The answer may have others.
#[derive(Deserialize)]
struct UpdateAnswer {
    #[serde(rename = "type")]
    problem: Option<String>,
    outcome: Option<Outcome>,
    results: Option<Vec<Value>>,
}

/// An address without the user name and the password that it may contain.
pub(crate) fn shown(base: &str) -> &str {
    base.rsplit_once('@').map_or(base, |(_, host)| host)
}

impl PodClient {
    /// A client for the pod at `base`, such as `http://127.0.0.1:8080`.
    pub(crate) fn new(base: &str, connect: Connect<'_>, timeout: Duration) -> anyhow::Result<Self> {
        let shown = shown(base);
        let url = Url::parse(base).with_context(|| format!("`{shown}` is not a URL"))?;
        ensure!(
            matches!(url.scheme(), "http" | "https") && url.has_host(),
            "`{shown}` is not the address of a pod: it must look like http://host:port"
        );
        let http = connect(&url)?
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

    /// The address of the pod, without the user name and the password.
    pub(crate) fn shown(&self) -> &str {
        shown(&self.base)
    }

    /// Adds to keys. A single update goes to the route of its key, several go to `/v1/batch`. Their ids,
    /// if they have some, are of this window. Returns one reply per update.
    pub(crate) async fn add(&self, window: Window, ops: &[Add<'_>]) -> Vec<Reply> {
        let request = match ops {
            [op] => {
                let request = self.http.post(self.path(op.key)).json(&add(op));
                match op.id {
                    Some(id) => request.header("Idempotency-Key", id.to_string()),
                    None => request,
                }
            }
            _ => {
                let updates: Vec<_> = ops.iter().map(batch_item).collect();
                let url = format!("{}/v1/batch", self.base);
                self.http.post(url).json(&json!({"updates": updates}))
            }
        };
        let request = match ops.iter().any(|op| op.id.is_some()) {
            true => request.header("Idempotency-Window", window.name()),
            false => request,
        };
        match self.ask(request).await {
            Ok((status, body)) => replies(status, &body, ops.len()),
            Err(reply) => vec![reply; ops.len()],
        }
    }

    /// Sends updates and reads the answer. An error is turned into the reply for each update.
    async fn ask(&self, request: RequestBuilder) -> Result<(StatusCode, String), Reply> {
        answered(request).await.map_err(not_answered)
    }

    /// The value of a key, or `None` if the key is absent.
    pub(crate) async fn value(&self, key: &Key, consistency: &str) -> anyhow::Result<Option<i128>> {
        let url = format!("{}?numbers=string&consistency={consistency}", self.path(key));
        let (status, body) = answered(self.http.get(url)).await?;
        match status {
            StatusCode::OK => parse_value(key.kind, &body).map(Some),
            StatusCode::NOT_FOUND if is_problem(&body) => Ok(None),
            _ => anyhow::bail!("{status}: {}", shortened(&body)),
        }
    }

    /// Resets a key, or deletes it. Sent again with the same id, it is the same reset.
    pub(crate) async fn reset(&self, key: &Key, id: Uuid, is_deletion: bool) -> ResetReply {
        let path = self.path(key);
        let request = match is_deletion {
            true => self.http.delete(format!("{path}?numbers=string")),
            false => self.http.post(format!("{path}/reset?numbers=string")),
        };
        let request = request
            .header("Idempotency-Key", id.to_string())
            .header("Prefer", RESET_WAIT)
            .timeout(RESET_WITHIN);
        match answered(request).await {
            Ok((status, body)) => reset_reply(key.kind, status, &body),
            Err(error) if error.is_connect() => ResetReply::Refused("connect".to_owned()),
            Err(error) if error.is_timeout() => ResetReply::Unknown("timeout".to_owned()),
            Err(_) => ResetReply::Unknown("connection lost".to_owned()),
        }
    }

    /// Folds a key now. Returns the number of shards that were not folded because they are not final.
    pub(crate) async fn fold(&self, key: &Key) -> anyhow::Result<u64> {
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

    /// The number of rows of a key in the store: its shards, and the tally if there is one.
    pub(crate) async fn rows(&self, key: &Key) -> anyhow::Result<usize> {
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

    /// The metrics of the pod.
    pub(crate) async fn metrics(&self) -> anyhow::Result<String> {
        let request = self.http.get(format!("{}/metrics", self.base)).timeout(READY_WITHIN);
        Ok(request.send().await?.error_for_status()?.text().await?)
    }

    /// Whether the pod is ready.
    pub(crate) async fn is_ready(&self) -> bool {
        let request = self.http.get(format!("{}/readyz", self.base)).timeout(READY_WITHIN);
        request.send().await.is_ok_and(|answer| answer.status() == StatusCode::OK)
    }

    fn path(&self, key: &Key) -> String {
        format!("{}/v1/{}/{}/{}", self.base, key.kind.name(), key.group, key.name)
    }
}

fn batch_item(op: &Add<'_>) -> Value {
    let Key { kind, group, name } = op.key;
    let mut item = json!({"kind": kind.name(), "group": group, "name": name, "op": add(op)});
    if let Some(id) = op.id {
        item["id"] = json!(id.to_string());
    }
    item
}

fn add(op: &Add<'_>) -> Value {
    match op.key.kind {
        Kind::Counter | Kind::Sum => json!({"op": "add", "by": op.weight}),
        Kind::Stats | Kind::Histogram => json!({"op": "record", "value": 1, "count": op.weight}),
        Kind::TopK => json!({"op": "add", "item": "a", "by": op.weight}),
        Kind::Set | Kind::OrSet | Kind::LwwSet => json!({"op": "add", "item": op.weight}),
    }
}

/// The replies in an answer. It has one outcome for all updates, or one for each. If it cannot be
/// read, the outcome of every update is unknown.
fn replies(status: StatusCode, body: &str, count: usize) -> Vec<Reply> {
    let class = status.as_str();
    let Ok(answer) = serde_json::from_str::<UpdateAnswer>(body) else {
        return vec![reply(Outcome::Unknown, &format!("{class} unreadable"), body); count];
    };
    match (answer.outcome, answer.results) {
        (Some(Outcome::Acked), _) if status != StatusCode::OK => {
            vec![reply(Outcome::Unknown, &format!("{class} acked"), body); count]
        }
        (Some(outcome), _) => {
            let mut reply = reply(outcome, class, body);
            if let Some(why) = &mut reply.why {
                why.problem = answer.problem.as_deref().map(problem_name);
            }
            vec![reply; count]
        }
        (None, Some(results)) if results.len() == count => results.iter().map(item_reply).collect(),
        (None, _) => vec![reply(Outcome::Unknown, &format!("{class} no outcome"), body); count],
    }
}

fn item_reply(item: &Value) -> Reply {
    let outcome = item.get("outcome").cloned().unwrap_or_default();
    let outcome = serde_json::from_value(outcome).unwrap_or(Outcome::Unknown);
    let mut reply = reply(outcome, "batch item", &item.to_string());
    if let Some(why) = &mut reply.why {
        why.problem = item["problem"]["type"].as_str().map(problem_name);
    }
    reply
}

/// The last part of the type of a problem.
fn problem_name(kind: &str) -> String {
    kind.rsplit('/').next().unwrap_or(kind).to_owned()
}

fn reply(outcome: Outcome, class: &str, detail: &str) -> Reply {
    let why = (outcome != Outcome::Acked).then(|| Why {
        class: class.to_owned(),
        detail: shortened(detail),
        problem: None,
    });
    Reply { outcome, why }
}

/// Sends a request and reads the whole answer.
async fn answered(request: RequestBuilder) -> reqwest::Result<(StatusCode, String)> {
    let answer = request.send().await?;
    let status = answer.status();
    Ok((status, answer.text().await?))
}

/// The reply for an update without an answer. Only a failure to connect proves that nothing was sent.
/// After any other error, the pod may have counted the update.
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

/// Whether a body is a JSON object. A 404 for a missing key has one, a 404 for a wrong address does
/// not.
fn is_problem(body: &str) -> bool {
    serde_json::from_str::<Value>(body).is_ok_and(|body| body.is_object())
}

/// What the answer to a reset says.
fn reset_reply(kind: Kind, status: StatusCode, body: &str) -> ResetReply {
    let answer: Value = serde_json::from_str(body).unwrap_or_default();
    let problem = answer["type"].as_str().map(problem_name);
    let why = || problem.clone().unwrap_or_else(|| format!("{status}: {}", shortened(body)));
    match (status, answer["outcome"].as_str(), problem.as_deref()) {
        (StatusCode::OK, Some("acked"), _) => match total(kind, &answer["cleared"]["value"]) {
            Some(cleared) => ResetReply::Done(cleared),
            None => ResetReply::Unknown(format!("not told what was cleared: {}", shortened(body))),
        },
        (StatusCode::ACCEPTED, ..) => ResetReply::Running,
        (_, _, Some("key-absent")) => ResetReply::Absent,
        (_, Some("refused"), _) => ResetReply::Refused(why()),
        _ => ResetReply::Unknown(why()),
    }
}

/// The total in the answer to a read.
fn parse_value(kind: Kind, body: &str) -> anyhow::Result<i128> {
    #[derive(Deserialize)]
    struct ReadAnswer {
        value: Value,
    }
    let unreadable = || format!("not a value: {}", shortened(body));
    let answer: ReadAnswer = serde_json::from_str(body).with_context(unreadable)?;
    total(kind, &answer.value).with_context(unreadable)
}

/// The total of a value: the weights of all updates in it.
fn total(kind: Kind, value: &Value) -> Option<i128> {
    let number = |value: &Value| match value {
        Value::String(digits) => digits.parse().ok(),
        other => other.to_string().parse().ok(),
    };
    match kind {
        Kind::Counter | Kind::Sum => number(value),
        Kind::Stats | Kind::Histogram => number(&value["count"]),
        Kind::TopK => number(&value["total"]),
        Kind::Set | Kind::LwwSet => value["items"].as_array()?.iter().map(number).sum(),
        Kind::OrSet => value["items"].as_array()?.iter().map(|seen| number(&seen["item"])).sum(),
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
    fn the_problem_of_an_id_is_found() {
        let expired = r#"{"type":"https://a/problems/id-expired","outcome":"unknown"}"#;
        let reply = replies(StatusCode::UNPROCESSABLE_ENTITY, expired, 1).swap_remove(0);
        assert!(reply.has_expired() && !reply.is_conflict(), "{reply:?}");
        let body = r#"{"results":[{"outcome":"refused","problem":{"type":"/problems/id-reused"}},
                                  {"outcome":"acked"}]}"#;
        let replies = replies(StatusCode::OK, body, 2);
        assert_eq!(replies.iter().map(Reply::is_conflict).collect::<Vec<_>>(), [true, false]);
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
    fn each_kind_has_a_total() {
        for (kind, body) in [
            (Kind::Sum, r#"{"value":"1180591620717411303424"}"#),
            (Kind::Stats, r#"{"value":{"count":"1180591620717411303424","sum":1e21}}"#),
            (Kind::Histogram, r#"{"value":{"count":"1180591620717411303424","quantiles":[]}}"#),
            (Kind::TopK, r#"{"value":{"total":"1180591620717411303424","items":[]}}"#),
        ] {
            assert_eq!(parse_value(kind, body).expect("a total"), 1_i128 << 70, "{kind:?}");
            assert!(parse_value(kind, r#"{"value":{"size":1}}"#).is_err(), "{kind:?}");
        }
    }

    #[test]
    fn the_answer_to_a_reset_means_what_it_says() {
        let refused = |why: &str| ResetReply::Refused(why.to_owned());
        for (status, body, expected) in [
            (200, r#"{"outcome":"acked","cleared":{"value":"7"}}"#, ResetReply::Done(7)),
            (202, r#"{"outcome":"accepted"}"#, ResetReply::Running),
            (404, r#"{"type":"/problems/key-absent","outcome":"refused"}"#, ResetReply::Absent),
            (
                409,
                r#"{"type":"/problems/reset-overtaken","outcome":"refused"}"#,
                refused("reset-overtaken"),
            ),
            (503, r#"{"type":"/problems/clock","outcome":"refused"}"#, refused("clock")),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(reset_reply(Kind::Counter, status, body), expected, "{body}");
        }
        for (status, body) in [
            (200, r#"{"outcome":"acked","cleared":null}"#),
            (200, "<html>"),
            (504, r#"{"type":"/problems/reset-unknown","outcome":"unknown"}"#),
            (500, r#"{"outcome":"acked","cleared":{"value":"7"}}"#),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            let reply = reset_reply(Kind::Counter, status, body);
            assert!(matches!(reply, ResetReply::Unknown(_)), "{body}: {reply:?}");
        }
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
            &|_| Ok(Client::builder()),
            Duration::from_secs(1),
        );
        let key = Key { kind: Kind::Counter, group: "g".to_owned(), name: "k".to_owned() };
        let op = Add { key: &key, weight: 1, id: None };
        let replies = pod.expect("a client").add(Window::None, &[op]).await;
        assert_eq!(replies[0].outcome, Outcome::Refused);
        assert_eq!(replies[0].why.as_ref().map(|why| why.class.as_str()), Some("connect"));
    }

    #[test]
    fn only_a_web_address_is_taken() {
        for base in ["127.0.0.1:8080", "ftp://a", "file:///a", "http://", "nonsense"] {
            assert!(
                PodClient::new(base, &|_| Ok(Client::builder()), Duration::from_secs(1)).is_err(),
                "{base}"
            );
        }
    }
}
