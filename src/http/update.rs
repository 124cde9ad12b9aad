//! `POST /v1/{kind}/{group}/{name}`: one update, answered by its outcome.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use orderfree_core::crdt::{Kind, Op};
use orderfree_core::protocol::{Durability, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use super::access::KeyPath;
use super::catalog::ProblemType;
use super::extract::{self, MediaType, Params, Query, QueryParams};
use super::json;
use super::problem::Problem;
use super::schemas::{BareText, MaybeValue, UpdateBody};
use super::wire::{self, Ask, KeyView, ValueView};
use super::{Served, Shared};
use crate::limits;
use crate::policy::Verb;

/// What became of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// Stored at the write consistency level.
    Acked,
    /// In memory, as `?ack=memory` asked. It is lost if the pod dies before the next write of its key,
    /// and may be lost if the store leaves the outcome of that write open until the mutator expires.
    Accepted,
    /// Certainly not counted.
    Refused,
    /// May be counted.
    Unknown,
}

/// The answer to an update.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct UpdateView {
    outcome: Outcome,
    #[serde(flatten)]
    key: KeyView,
    /// For kinds whose last writer wins: the time of the last op, in µs since 1970. Sent as `after`
    /// with the next op, it makes that one later, whichever pod takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    timestamp: Option<i64>,
    /// With `?return=value`, for kinds whose last writer wins: true if the value is not what was set,
    /// because a write with a later time is there. It may be older: pods' clocks may differ, by twice
    /// the clock offset limit at most. Send the value's `timestamp` as `after` to win against it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    superseded: bool,
    /// With `?return=value`: what a read after the acknowledgement answered.
    #[serde(flatten)]
    #[schema(value_type = MaybeValue)]
    value: Option<ValueView>,
    /// With `?return=value`: why that read did not answer. The update is acknowledged all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<super::problem::ProblemBody>)]
    read_problem: Option<Problem>,
}

/// Query parameters of an update.
pub(super) struct UpdateParams {
    durability: Durability,
    returns_value: bool,
    ask: Ask,
}

impl Params for UpdateParams {
    const NAMES: &'static [&'static str] = &["ack", "return", "numbers"];

    fn parse(query: &QueryParams<'_>) -> Result<UpdateParams, Problem> {
        let durability = durability(query)?;
        let returns_value = query.read("return", |text| match text {
            "value" => Ok(true),
            "none" => Ok(false),
            other => Err(format!("{other:?} is neither value nor none")),
        })?;
        let returns_value = returns_value.unwrap_or(false);
        if returns_value && durability == Durability::Memory {
            let detail = "return=value reads what was stored, so it needs ack=durable.";
            return Err(extract::bad_query(detail.to_owned()));
        }
        let ask = Ask::as_digits(wire::numbers(query)?);
        Ok(UpdateParams { durability, returns_value, ask })
    }
}

/// Reads the `ack` parameter.
pub(super) fn durability(query: &QueryParams<'_>) -> Result<Durability, Problem> {
    let durability = query.read("ack", |text| match text {
        "durable" => Ok(Durability::Stored),
        "memory" => Ok(Durability::Memory),
        other => Err(format!("{other:?} is neither durable nor memory")),
    })?;
    Ok(durability.unwrap_or(Durability::Stored))
}

impl Outcome {
    /// Of an update that succeeded.
    pub(super) fn of(durability: Durability) -> Outcome {
        match durability {
            Durability::Stored => Outcome::Acked,
            Durability::Memory => Outcome::Accepted,
        }
    }
}

/// Update a key
///
/// An empty body adds one to a counter. Applies one op, or a list of ops all or none. Never reads
/// the database, unless `return=value` asks for the value after it. A client that goes away cancels
/// nothing.
#[utoipa::path(
    post, path = "/v1/{kind}/{group}/{name}", tag = "keys",
    params(
        ("kind" = String, Path, description = "Data type", example = "counter"),
        ("group" = String, Path, description = "1 to 256 bytes of UTF-8; `/` as `%2F`", example = "site"),
        ("name" = String, Path, description = "1 to 256 bytes of UTF-8; `/` as `%2F`", example = "home"),
        ("ack" = Option<String>, Query, description = "`durable` (default): after the store \
            acknowledged; `memory`: at once, with 202", example = "durable"),
        ("return" = Option<String>, Query, description = "`value` reads the key after the \
            acknowledgement, so it needs `ack=durable`", example = "value"),
        ("numbers" = Option<String>, Query, description = "`string` writes values in quotes"),
    ),
    request_body(
        description = "Nothing (adds one to a counter), a bare amount or item, an op, or a list of ops",
        content(
            (UpdateBody = "application/json", examples(
                ("a list, all or none" = (value = json!({"ops": [{"op": "add"}, {"op": "add", "by": -2}]})))
            )),
            (BareText = "text/plain", example = json!("5")),
        )
    ),
    responses(
        (status = 200, description = "Acknowledged by the store", body = UpdateView,
            example = json!({"outcome": "acked", "kind": "counter", "group": "site", "name": "home"})),
        (status = 202, description = "In memory, as `ack=memory` asked. It is lost if the pod dies \
            before its next write, and may be lost if the store never says what became of that write", body = UpdateView,
            example = json!({"outcome": "accepted", "kind": "counter", "group": "site", "name": "home"})),
    )
)]
pub(super) async fn update(
    State(served): State<Served>,
    path: KeyPath,
    Query(params): Query<UpdateParams>,
    request: Request,
) -> Result<Response, Problem> {
    let Shared { app, bodies, .. } = &*served;
    let (key, caller) = path.to(Verb::Write)?;
    if params.returns_value {
        caller.to(Verb::Read).of(&key.group)?;
    }
    let (parts, body) = request.into_parts();
    extract::refuse_unsupported(&parts.headers)?;
    let body = bodies.read(&parts.headers, body, limits::BODY_BYTES_MAX).await?;
    let ops = ops(key.kind, &parts.headers, &body)?;
    let timed = params.returns_value && key.kind.is_timed();
    let asked = if timed { ops.clone() } else { Vec::new() };
    let time = app.service.update(&key, ops, params.durability).await?;
    let mut answer = UpdateView {
        outcome: Outcome::of(params.durability),
        key: (&key).into(),
        timestamp: time.map(Timestamp::as_micros),
        superseded: false,
        value: None,
        read_problem: None,
    };
    if params.returns_value {
        // In a box: all updates would carry the room that few of them need.
        match Box::pin(app.service.read(&key, None)).await {
            Ok(Some(read)) => {
                let is_later = |op| time.is_some_and(|time| read.state.supersedes(op, time));
                answer.superseded = asked.iter().any(is_later);
                answer.value = Some(ValueView::new(&read, &params.ask));
            }
            Ok(None) => {
                let detail = "The replicas that answered have not seen the update yet; read again.";
                answer.read_problem = Some(Problem::new(ProblemType::KeyAbsent, detail));
            }
            Err(error) => answer.read_problem = Some(error.into()),
        }
    }
    let status = match params.durability {
        Durability::Stored => StatusCode::OK,
        Durability::Memory => StatusCode::ACCEPTED,
    };
    Ok((status, Json(answer)).into_response())
}

/// The ops of a body, by its content type.
fn ops(kind: Kind, headers: &HeaderMap, body: &[u8]) -> Result<Vec<Op>, Problem> {
    const WANTED: &str = "application/json with an op, or text/plain with a bare amount or item";
    match MediaType::of(headers) {
        MediaType::Json => wire::ops(kind, json::parse(body)?),
        _ if body.is_empty() => Ok(vec![wire::empty_op(kind)?]),
        MediaType::Text => Ok(vec![wire::text_op(kind, body)?]),
        MediaType::Other(other) if other == "application/x-www-form-urlencoded" => {
            Err(MediaType::Other(other).refuse(
                "application/json with an op, or text/plain with a bare one. curl's -d says \
                 form data unless told otherwise: add -H 'content-type: application/json' or \
                 -H 'content-type: text/plain'",
            ))
        }
        media @ MediaType::Ndjson => Err(media.refuse("it to POST /v1/batch")),
        media @ (MediaType::Other(_) | MediaType::Missing) => Err(media.refuse(WANTED)),
    }
}
