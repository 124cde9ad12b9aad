//! `POST /v1/batch` and `POST /v1/query`: many keys in one request, each with its own outcome.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, stream};
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::{Durability, Key, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use super::body;
use super::catalog::ProblemType;
use super::extract::{self, MediaType, Params, Query, QueryParams};
use super::json::{self, Fields, Tree};
use super::observe;
use super::problem::{NotAcked, Problem, ProblemBody};
use super::read;
use super::schemas::{BatchBody, MaybeKey, QueryBody, UpdateItem};
use super::stream::{self as lines, Summary};
use super::together::Together;
use super::update::{self, Outcome};
use super::wire::{self, Ask, KeyValueView, KeyView};
use super::{AppState, Served, Shared};
use crate::limits;
use crate::policy::{Caller, Verb};

const BATCH_EXAMPLE: &str =
    r#"{"updates":[{"kind":"counter","group":"site","name":"home","op":{"op":"add"}}]}"#;
const QUERY_EXAMPLE: &str = r#"{"keys":[{"kind":"counter","group":"site","name":"home"}]}"#;

/// About as much as one result has, with a key of short names.
const RESULT_BYTES: usize = 128;

/// Query parameters of a batch.
pub(super) struct BatchParams {
    durability: Durability,
}

impl Params for BatchParams {
    const NAMES: &'static [&'static str] = &["ack"];

    fn parse(query: &QueryParams<'_>) -> Result<BatchParams, Problem> {
        Ok(BatchParams { durability: update::durability(query)? })
    }
}

/// The answer to a JSON batch.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BatchView {
    /// One for each update, in their order.
    results: Vec<UpdateResult>,
}

/// What became of one update.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct UpdateResult {
    outcome: Outcome,
    #[serde(flatten)]
    #[schema(value_type = MaybeKey)]
    key: Option<KeyView>,
    /// For kinds whose last writer wins: the time of the last op, in µs since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    timestamp: Option<i64>,
    /// Why it was not acknowledged.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ProblemBody>)]
    problem: Option<Problem>,
}

/// Update many keys
///
/// As JSON: up to 1,000 updates of any kinds, each with its own outcome; the order is kept. As
/// NDJSON: one update a line, up to 64 MiB, answered by a summary with the first 100 errors. Lines
/// are applied within about a second; a stream that is torn, or silent for 30 s, is a problem with
/// the summary of the lines that were complete.
#[utoipa::path(
    post, path = "/v1/batch", tag = "many keys",
    params(
        ("ack" = Option<String>, Query, description = "`durable` (default) or `memory`"),
    ),
    request_body(description = "Updates; `Content-Encoding: gzip` is accepted", content(
        (BatchBody = "application/json", example = json!({"updates": [
            {"kind": "counter", "group": "site", "name": "home", "op": {"op": "add", "by": 5}},
            {"kind": "counter", "group": "site", "name": "about", "ops": [{"op": "add"}, {"op": "add"}]}
        ]})),
        (UpdateItem = "application/x-ndjson",
            example = json!("{\"kind\":\"counter\",\"group\":\"site\",\"name\":\"home\",\"op\":{\"op\":\"add\"}}\n")),
    )),
    responses(
        (status = 200, description = "Each update's outcome, or the summary of an NDJSON stream",
            content((BatchAnswer = "application/json", examples(
                ("JSON" = (value = json!({"results": [
                    {"outcome": "acked", "kind": "counter", "group": "site", "name": "home"},
                    {"outcome": "acked", "kind": "counter", "group": "site", "name": "about"}]}))),
                ("NDJSON" = (value = json!({"lines": 3, "acked": 2, "accepted": 0, "refused": 1,
                    "unknown": 0, "errors": [{"line": 2, "outcome": "refused",
                    "title": "Malformed body", "detail": "The field `name` is missing."}]})))
            )))),
    )
)]
pub(super) async fn batch(
    State(served): State<Served>,
    caller: Caller,
    Query(params): Query<BatchParams>,
    request: Request,
) -> Result<Response, Problem> {
    let Shared { app, bodies, turns, .. } = &*served;
    let (parts, body) = request.into_parts();
    extract::refuse_unsupported(&parts.headers)?;
    match MediaType::of(&parts.headers) {
        MediaType::Json => {
            turns.expect_batch()?;
            let body = bodies.read(&parts.headers, body, limits::BODY_BYTES_MAX).await?;
            let _turn = turns.batch().await?;
            let updates = items(&body, "updates", BATCH_EXAMPLE)?;
            let bytes = updates.len() * RESULT_BYTES;
            // The request itself has passed.
            caller.pass_or_refuse(updates.len() - 1)?;
            let results = apply(app, &caller, updates, params.durability).await;
            Ok(wire::json(&BatchAnswer::Results(BatchView { results }), bytes))
        }
        MediaType::Ndjson => {
            body::check_declared(&parts.headers, limits::NDJSON_BYTES_MAX)?;
            let _place = caller.stream_or_refuse()?;
            let _room = bodies.stream(&body)?;
            let summary = lines::apply(app, &caller, body, params.durability).await?;
            Ok(wire::json(&BatchAnswer::Summary(summary), RESULT_BYTES))
        }
        media => Err(media.refuse("application/json, or application/x-ndjson for a stream")),
    }
}

/// What a batch answers, by its content type.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum BatchAnswer {
    /// To JSON.
    Results(BatchView),
    /// To NDJSON.
    Summary(Summary),
}

/// The only field of a JSON body that is a list of 1 to 1,000 items.
fn items<'a>(body: &'a [u8], name: &str, example: &str) -> Result<Vec<Tree<'a>>, Problem> {
    let mut fields = Fields::of(json::parse(body)?, example)?;
    let items = fields.list(name, limits::BATCH_ITEMS_MAX)?;
    fields.end()?;
    Ok(items)
}

/// One result for each item, in their order.
async fn apply(
    app: &AppState,
    caller: &Caller,
    items: Vec<Tree<'_>>,
    durability: Durability,
) -> Vec<UpdateResult> {
    let (mut updates, mut ops) = (Together::default(), Vec::new());
    let add = |(place, item)| {
        ops.clear();
        let key = match wire::update(caller.to(Verb::Write), item, &mut ops) {
            Ok(key) => key,
            Err(problem) => return not_acked(app, None, problem),
        };
        let view = KeyView::from(&key);
        updates.add(place, key, ops.drain(..));
        let outcome = Outcome::of(durability);
        UpdateResult { outcome, key: Some(view), timestamp: None, problem: None }
    };
    let mut results: Vec<UpdateResult> = items.into_iter().enumerate().map(add).collect();
    for (place, result) in updates.apply(&app.service, durability).await {
        let of_item = &mut results[place];
        match result {
            Ok(time) => of_item.timestamp = time.map(Timestamp::as_micros),
            Err(error) => *of_item = not_acked(app, of_item.key.take(), error.into()),
        }
    }
    results
}

fn not_acked(app: &AppState, key: Option<KeyView>, problem: Problem) -> UpdateResult {
    observe::count_denied(app.service.metrics(), problem.kind());
    let not_acked = problem.outcome().unwrap_or(NotAcked::Refused);
    let outcome = match not_acked {
        NotAcked::Refused => Outcome::Refused,
        NotAcked::Unknown => Outcome::Unknown,
    };
    let problem = Some(problem.with_outcome(not_acked));
    UpdateResult { outcome, key, timestamp: None, problem }
}

/// Query parameters of a query.
pub(super) struct ManyParams {
    ask: Ask,
}

impl Params for ManyParams {
    const NAMES: &'static [&'static str] = &["numbers"];

    fn parse(query: &QueryParams<'_>) -> Result<ManyParams, Problem> {
        Ok(ManyParams { ask: Ask::as_digits(wire::numbers(query)?) })
    }
}

/// The answer to a query. It is put together from the texts of its results.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "described, and written by `query`")]
pub(super) struct QueryView {
    /// One for each key, in their order.
    results: Vec<ReadResult>,
}

/// What one read of a query answered.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum ReadResult {
    /// The value.
    Found(KeyValueView),
    /// The key does not exist.
    Absent {
        #[serde(flatten)]
        key: KeyView,
        /// Always true.
        absent: bool,
    },
    /// The key could not be read, or is no key.
    Error {
        #[serde(flatten)]
        #[schema(value_type = MaybeKey)]
        key: Option<KeyView>,
        /// Why.
        #[schema(value_type = ProblemBody)]
        problem: Problem,
    },
}

/// Read many keys
///
/// Up to 1,000 keys of any kinds; the order is kept. Each value is right by itself; together they
/// are not one snapshot. Keys behind some 16 MiB of rows or of text have the problem `answer-full`: ask for
/// them again.
#[utoipa::path(
    post, path = "/v1/query", tag = "many keys",
    params(("numbers" = Option<String>, Query, description = "`string` writes values in quotes")),
    request_body(description = "Keys, and a consistency level if it shall not be the server's choice",
        content((QueryBody = "application/json", example = json!({
            "keys": [{"kind": "counter", "group": "site", "name": "home"},
                     {"kind": "counter", "group": "site", "name": "nowhere"}],
            "consistency": "quorum"})))),
    responses(
        (status = 200, description = "Each key's value, absence or problem", body = QueryView,
            example = json!({"results": [
                {"kind": "counter", "group": "site", "name": "home", "value": 1234, "exact": true,
                 "as_of": "2026-11-21T08:00:00.123456Z", "consistency": "quorum", "shards": 7,
                 "folded_through": null},
                {"kind": "counter", "group": "site", "name": "nowhere", "absent": true}]})),
    )
)]
pub(super) async fn query(
    State(served): State<Served>,
    caller: Caller,
    Query(params): Query<ManyParams>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Problem> {
    let Shared { app, bodies, turns, .. } = &*served;
    match MediaType::of(&headers) {
        MediaType::Json => {}
        media => return Err(media.refuse("application/json")),
    }
    let body = bodies.read(&headers, request.into_body(), limits::BODY_BYTES_MAX).await?;
    let mut fields = Fields::of(json::parse(&body)?, QUERY_EXAMPLE)?;
    let keys = fields.list("keys", limits::BATCH_ITEMS_MAX)?;
    let level = wire::consistency(&mut fields)?;
    fields.end()?;
    caller.pass_or_refuse(keys.len() - 1)?;
    let to_read = caller.to(Verb::Read);
    let keys: Vec<_> = keys.into_iter().map(|item| wire::key(to_read, item)).collect();
    for problem in keys.iter().filter_map(|key| key.as_ref().err()) {
        observe::count_denied(app.service.metrics(), problem.kind());
    }
    // The largest of them.
    let kinds = keys.iter().flatten().map(|key| key.kind);
    let _turn = match kinds.max_by_key(|kind| !kind.about().is_small()) {
        Some(kind) => turns.keys(kind, keys.len()).await?,
        None => None,
    };
    let reads = keys.clone().into_iter().map(|key| read_one(app, key, level, &params.ask));
    let mut reads = stream::iter(reads).buffered(reads_at_once(&keys));
    // Each result becomes text at once, as its value may be much larger.
    let mut text = br#"{"results":["#.to_vec();
    let (mut read, mut rows_bytes) = (0, 0);
    while rows_bytes.max(text.len()) <= limits::ANSWER_BYTES_MAX
        && let Some((result, bytes)) = reads.next().await
    {
        text.extend_from_slice(&result);
        text.push(b',');
        read += 1;
        rows_bytes += bytes;
    }
    for key in &keys[read..] {
        wire::write_json(&mut text, &ReadResult::left_out(key));
        text.push(b',');
    }
    // The comma behind the last one: there is a key at least.
    text.pop();
    text.extend_from_slice(b"]}");
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

/// Fewer if any of the keys may be large.
fn reads_at_once(keys: &[Result<Key, Problem>]) -> usize {
    if keys.iter().flatten().all(|key| key.kind.about().is_small()) {
        limits::QUERY_READS_AT_ONCE
    } else {
        limits::LARGE_READS_AT_ONCE
    }
}

/// The result as text, and the bytes of the rows that were read.
async fn read_one(
    app: &AppState,
    key: Result<Key, Problem>,
    level: Option<Level>,
    ask: &Ask,
) -> (Vec<u8>, usize) {
    let (mut text, mut bytes) = (Vec::new(), 0);
    let mut write = |result: &ReadResult| wire::write_json(&mut text, result);
    match key {
        Err(problem) => write(&ReadResult::Error { key: None, problem }),
        Ok(key) => match app.service.read(&key, level).await {
            Ok(Some(read)) => {
                write(&ReadResult::Found(KeyValueView::new(&read, ask)));
                bytes = read.bytes;
            }
            Ok(None) => write(&ReadResult::Absent { key: (&key).into(), absent: true }),
            Err(error) => {
                let problem = read::problem_of(error, &key.to_string());
                write(&ReadResult::Error { key: Some((&key).into()), problem });
            }
        },
    }
    (text, bytes)
}

impl ReadResult {
    /// For a key that comes behind as much as one answer holds.
    fn left_out(key: &Result<Key, Problem>) -> ReadResult {
        let detail = "The keys before took all the room of this answer; ask for this one again.";
        let problem = match key {
            Ok(_) => Problem::new(ProblemType::AnswerFull, detail),
            Err(problem) => problem.clone(),
        };
        ReadResult::Error { key: key.as_ref().ok().map(Into::into), problem }
    }
}
