//! `POST /v1/batch` and `POST /v1/query`: many keys in one request. Each has its own outcome.

use std::collections::BTreeMap;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, stream};
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::{Durability, Key, Outcome, Timestamp};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::engine::service::{ReadError, Sight};
use crate::http::api::by_key::ByKey;
use crate::http::api::read::{self, Substitute};
use crate::http::api::stream as lines;
use crate::http::body::bodies;
use crate::http::body::extract::{self, MediaType};
use crate::http::body::ids::{IdHeaders, IdParams, Place};
use crate::http::body::json;
use crate::http::body::parameters::{ACK, DEFAULT, Query, ValueParams, params};
use crate::http::body::requests::{self, BatchBody, LevelName, QueryBody, UpdateItem};
use crate::http::body::schemas::MaybeKey;
use crate::http::body::wire::{self, KeyValueView, KeyView, ValueView};
use crate::http::catalog::ProblemType;
use crate::http::observe;
use crate::http::problem::{OutcomeText, Problem, ProblemBody, Summary};
use crate::http::state::AppState;
use crate::http::state::Served;
use crate::http::state::Shared;
use crate::limits;
use crate::policy::{Caller, Verb};

const BATCH_EXAMPLE: &str =
    r#"{"updates":[{"kind":"counter","group":"site","name":"home","op":{"op":"add"}}]}"#;
pub(crate) const QUERY_EXAMPLE: &str =
    r#"{"keys":[{"kind":"counter","group":"site","name":"home"}]}"#;

/// The approximate size of one result whose key has short names.
const RESULT_BYTES: usize = 128;

params! {
    /// Query parameters of a batch.
    struct BatchParams {
        durability: Durability = ACK,
    }
}

/// The answer to a JSON batch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchView {
    /// One result per update, in the same order.
    results: Vec<UpdateResult>,
}

/// The outcome of one update of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UpdateResult {
    #[schema(value_type = OutcomeText)]
    outcome: Outcome,
    #[serde(flatten)]
    #[schema(value_type = MaybeKey)]
    key: Option<KeyView>,
    /// For last-writer-wins kinds: the time of the last op, in µs since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    timestamp: Option<i64>,
    /// Why the update was not acknowledged.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ProblemBody>)]
    problem: Option<Problem>,
}

/// Update many keys
///
/// As JSON: up to 1,000 updates of any kinds. The results are in the same order, one per update. As NDJSON:
/// one update per line, up to 64 MiB. The answer is a summary that names every line that was not
/// acknowledged. Lines are applied within about a second. If the stream ends early, for example because it
/// breaks off or is silent for 30 s, the answer is a problem with the summary of the lines before. Its detail
/// names the last one. If no line of a stream was applied, the answer is the problem of the first line, with
/// the summary. `application/ndjson`, `application/jsonl`, `application/x-jsonlines` and `text/x-ndjson` mean
/// the same as `application/x-ndjson`.
#[utoipa::path(
    post, path = "/v1/batch", tag = "many keys",
    params(BatchParams, IdParams),
    request_body(description = "Updates; the server accepts `Content-Encoding: gzip`", content(
        (BatchBody = "application/json", example = json!({"updates": [
            {"kind": "counter", "group": "site", "name": "home", "op": {"op": "add", "by": 5}},
            {"kind": "counter", "group": "site", "name": "about", "ops": [{"op": "add"}, {"op": "add"}]}
        ]})),
        (UpdateItem = "application/x-ndjson",
            example = json!("{\"kind\":\"counter\",\"group\":\"site\",\"name\":\"home\",\"op\":{\"op\":\"add\"}}\n")),
    )),
    responses(
        (status = 200, description = "The outcome of each update, or the summary of an NDJSON stream",
            content((BatchAnswer = "application/json", examples(
                ("JSON" = (value = json!({"results": [
                    {"outcome": "acked", "kind": "counter", "group": "site", "name": "home"},
                    {"outcome": "acked", "kind": "counter", "group": "site", "name": "about"}]}))),
                ("NDJSON" = (value = json!({"lines": 5, "acked": 3, "accepted": 0, "refused": 2,
                    "unknown": 0, "errors": [{"first": 2, "last": 3, "outcome": "refused",
                    "type": "/problems/bad-body", "title": "Malformed body",
                    "detail": "Missing field `name`."}]})))
            )))),
    )
)]
pub(crate) async fn batch(
    State(served): State<Served>,
    caller: Caller,
    Query(params): Query<BatchParams>,
    request: Request,
) -> Result<Response, Problem> {
    let Shared { app, bodies, turns, .. } = &*served;
    let (mut parts, body) = request.into_parts();
    let ids = extract::of_update(&parts.headers)?;
    let body = bodies::decoded(&mut parts.headers, body)?;
    match MediaType::of(&parts.headers) {
        MediaType::Json => {
            turns.expect_batch()?;
            let body = bodies.read(&parts.headers, body, limits::BODY_BYTES_MAX).await?;
            let _turn = turns.batch().await?;
            let body: BatchBody<'_> = json::read(json::text(&body)?, BATCH_EXAMPLE)?;
            let updates = body.updates.0;
            let bytes = updates.len() * RESULT_BYTES;
            // The request itself was already counted as one update.
            caller.pass_or_refuse(updates.len() - 1)?;
            let results = apply(app, &caller, &ids, updates, params.durability).await;
            Ok(wire::json(&BatchAnswer::Results(BatchView { results }), bytes))
        }
        MediaType::Ndjson(_) => {
            ids.refuse_for_lines()?;
            bodies::check_declared(&parts.headers, limits::NDJSON_BYTES_MAX)?;
            let _place = caller.stream_or_refuse()?;
            let (_room, for_summary) = bodies.stream(&body)?;
            let summary =
                lines::apply(app, &caller, &ids, body, params.durability, for_summary).await?;
            Ok(wire::json(&BatchAnswer::Summary(summary), RESULT_BYTES))
        }
        media => Err(media.refuse("application/json, or application/x-ndjson for a stream")),
    }
}

/// The answer to a batch, by its content type.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum BatchAnswer {
    /// For JSON.
    Results(BatchView),
    /// For NDJSON.
    Summary(Summary),
}

/// Returns one result per item, in the same order.
async fn apply(
    app: &AppState,
    caller: &Caller,
    ids: &IdHeaders,
    items: Vec<&RawValue>,
    durability: Durability,
) -> Vec<UpdateResult> {
    let mut updates = ByKey::default();
    // Until when the updates with ids can be sent again.
    let mut again = BTreeMap::new();
    let mut ops_before = 0;
    let add = |(index, item): (usize, &RawValue)| {
        let place = Place { index, ops_before };
        if ids.has_id() {
            ops_before += requests::count_ops(item.get());
        }
        let (key, update) = match requests::update(caller.to(Verb::Write), ids, place, item.get()) {
            Ok(update) => update,
            Err(problem) => return not_acked(app, None, problem),
        };
        let view = KeyView::from(&key);
        if let Some(name) = &update.name {
            again.insert(index, app.service.retry_until(name, &key.group));
        }
        updates.add(index, key, update);
        let outcome = Outcome::of(durability);
        UpdateResult { outcome, key: Some(view), timestamp: None, problem: None }
    };
    let mut results: Vec<UpdateResult> = items.into_iter().enumerate().map(add).collect();
    for (place, result) in updates.apply(&app.service, durability).await {
        let of_item = &mut results[place];
        match result {
            Ok(time) => of_item.timestamp = time.map(Timestamp::as_micros),
            Err(error) => {
                let problem = Problem::from(error).of_named(again.get(&place).copied());
                *of_item = not_acked(app, of_item.key.take(), problem);
            }
        }
    }
    results
}

fn not_acked(app: &AppState, key: Option<KeyView>, problem: Problem) -> UpdateResult {
    observe::count_denied(app.service.metrics(), problem.kind());
    let (outcome, problem) = problem.of_update();
    UpdateResult { outcome, key, timestamp: None, problem: Some(problem) }
}

params! {
    /// Query parameters of a query.
    struct QueryParams {
        default: Option<String> = DEFAULT,
        value: ValueParams,
    }
}

/// What a query asks about each of its keys.
struct Asked {
    level: Option<Level>,
    value: ValueParams,
    /// The values of keys that do not exist.
    substitutes: BTreeMap<Kind, Substitute>,
}

/// The answer to a query.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "described, and written by `query`")]
pub(crate) struct QueryView {
    /// One result per key, in the same order.
    results: Vec<ReadResult>,
}

/// The result of one read of a query.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum ReadResult {
    /// The value, or the one of `?default=`.
    Found(KeyValueView),
    /// The key does not exist.
    Absent {
        #[serde(flatten)]
        key: KeyView,
        /// Always true.
        absent: bool,
        /// True if no acknowledged update of the key was missed.
        exact: bool,
        /// As in the answer to a read of one key.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        datacenter: Option<String>,
    },
    /// The key could not be read, or is not a valid key.
    Error {
        #[serde(flatten)]
        #[schema(value_type = MaybeKey)]
        key: Option<KeyView>,
        /// Why there is no value.
        #[schema(value_type = ProblemBody)]
        problem: Problem,
    },
}

/// Read many keys
///
/// Up to 1,000 keys of any kinds. The results are in the same order. A parameter that only some kinds have
/// changes only the values of keys of these kinds. Each value is correct, but the values together are not a
/// snapshot. After about 16 MiB of rows or of text, the remaining keys get the problem
/// `answer-full`: request them again.
#[utoipa::path(
    post, path = "/v1/query", tag = "many keys",
    params(QueryParams),
    request_body(description = "Keys, and a consistency level (default: the server's setting)",
        content((QueryBody = "application/json", example = json!({
            "keys": [{"kind": "counter", "group": "site", "name": "home"},
                     {"kind": "counter", "group": "site", "name": "nowhere"}],
            "consistency": "quorum"})))),
    responses(
        (status = 200, description = "The value, absence or problem of each key", body = QueryView,
            example = json!({"results": [
                {"kind": "counter", "group": "site", "name": "home", "value": 1234, "exact": true,
                 "as_of": "2026-11-21T08:00:00.123456Z", "consistency": "quorum", "shards": 7,
                 "folded_through": null},
                {"kind": "counter", "group": "site", "name": "nowhere", "absent": true, "exact": true}]})),
    )
)]
pub(crate) async fn query(
    State(served): State<Served>,
    caller: Caller,
    Query(params): Query<QueryParams>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Problem> {
    let Shared { app, bodies, turns, .. } = &*served;
    match MediaType::of(&headers) {
        MediaType::Json => {}
        media => return Err(media.refuse("application/json")),
    }
    extract::of_read(&headers)?;
    let body = bodies.read(&headers, request.into_body(), limits::BODY_BYTES_MAX).await?;
    let body: QueryBody<'_> = json::read(json::text(&body)?, QUERY_EXAMPLE)?;
    let (keys, level) = (body.keys.0, body.consistency.map(|LevelName(level)| level));
    caller.pass_or_refuse(keys.len() - 1)?;
    let to_read = caller.to(Verb::Read);
    let keys: Vec<_> = keys.into_iter().map(|item| requests::key(to_read, item.get())).collect();
    for problem in keys.iter().filter_map(|key| key.as_ref().err()) {
        observe::count_denied(app.service.metrics(), problem.kind());
    }
    let mut kinds: Vec<Kind> = keys.iter().flatten().map(|key| key.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    params.value.check(&kinds)?;
    let mut substitutes = BTreeMap::new();
    for &kind in &kinds {
        if let Some(substitute) = Substitute::given(params.default.as_deref(), kind)? {
            substitutes.insert(kind, substitute);
        }
    }
    let asked = Asked { level, value: params.value, substitutes };
    let largest = kinds.into_iter().max_by_key(|kind| !kind.about().is_small());
    let _turn = match largest {
        Some(kind) => turns.keys(kind, keys.len()).await?,
        None => None,
    };
    let reads = keys.clone().into_iter().map(|key| read_one(app, key, &asked));
    let mut reads = stream::iter(reads).buffered(reads_at_once(&keys));
    // Each result becomes text at once, because its value can be much larger than the text.
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
    // Remove the comma after the last result. There is at least one key.
    text.pop();
    text.extend_from_slice(b"]}");
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

/// Concurrent reads of a query. Fewer if any of the keys can be large.
fn reads_at_once(keys: &[Result<Key, Problem>]) -> usize {
    if keys.iter().flatten().all(|key| key.kind.about().is_small()) {
        limits::QUERY_READS_AT_ONCE
    } else {
        limits::LARGE_READS_AT_ONCE
    }
}

/// Returns the result as text, and the bytes of the rows that were read.
async fn read_one(app: &AppState, key: Result<Key, Problem>, asked: &Asked) -> (Vec<u8>, usize) {
    let (mut text, mut bytes) = (Vec::new(), 0);
    let mut write = |result: &ReadResult| wire::write_json(&mut text, result);
    match key {
        Err(problem) => write(&ReadResult::Error { key: None, problem }),
        Ok(key) => {
            // Take the time before the read: the answer includes every update acknowledged before it.
            let as_of = app.service.now().wall;
            match app.service.read(&key, asked.level).await {
                Ok(Some(read)) => {
                    write(&ReadResult::Found(KeyValueView::new(&read, &asked.value)));
                    bytes = read.bytes;
                }
                Ok(None) => write(&match asked.substitutes.get(&key.kind) {
                    None => ReadResult::absent(&key, &app.service.sight(asked.level).1),
                    Some(substitute) => {
                        let sight = app.service.sight(asked.level);
                        let value = substitute.shown(Some(&key), &asked.value);
                        let value = ValueView::absent(key.kind, value, as_of, sight);
                        ReadResult::Found(KeyValueView { key: (&key).into(), value })
                    }
                }),
                Err(error) => write(&ReadResult::failed(&key, error)),
            }
        }
    }
    (text, bytes)
}

impl ReadResult {
    pub(crate) fn absent(key: &Key, sight: &Sight) -> ReadResult {
        ReadResult::Absent {
            key: key.into(),
            absent: true,
            exact: *sight == Sight::All,
            datacenter: wire::datacenter(sight),
        }
    }

    pub(crate) fn failed(key: &Key, error: ReadError) -> ReadResult {
        let problem = read::problem_of(error, &key.to_string());
        ReadResult::Error { key: Some(key.into()), problem }
    }

    /// The result for a key that no longer fits into the answer.
    fn left_out(key: &Result<Key, Problem>) -> ReadResult {
        let detail = "The keys before this one filled the answer; request this key again.";
        let problem = match key {
            Ok(_) => Problem::new(ProblemType::AnswerFull, detail),
            Err(problem) => problem.clone(),
        };
        ReadResult::Error { key: key.as_ref().ok().map(Into::into), problem }
    }
}
