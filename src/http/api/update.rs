//! `POST /v1/{kind}/{group}/{name}`: applies one update and returns its outcome.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::{Durability, Outcome, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use crate::engine::write::Update;
use crate::http::body::extract::{self, JSON, MediaType, TEXT};
use crate::http::body::ids::{IdParams, Place};
use crate::http::body::parameters::{
    ACK, NUMBERS, Parameter, Query, ValueParams, Values, bad_query, params,
};
use crate::http::body::requests::{self, Ops, UpdateBody};
use crate::http::body::schemas::BareText;
use crate::http::body::wire::{self, KeyView, MaybeValue, ValueView};
use crate::http::catalog::ProblemType;
use crate::http::guard::access::KeyPath;
use crate::http::problem::{OutcomeText, Problem};
use crate::http::state::Served;
use crate::http::state::Shared;
use crate::limits;
use crate::policy::Verb;

/// The answer to an update.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UpdateView {
    #[schema(value_type = OutcomeText)]
    outcome: Outcome,
    #[serde(flatten)]
    key: KeyView,
    /// For last-writer-wins kinds: the time of the last op, in µs since 1970. Send it as `after` with the
    /// next op to make that op later, whichever pod takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    timestamp: Option<i64>,
    /// With `?return=value`, for last-writer-wins kinds: true if a write with a later timestamp won over
    /// this one. That write may really be older, because the clocks of pods can differ by up to twice the
    /// clock offset limit. Send the value's `timestamp` as `after` to win against it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    superseded: bool,
    /// With `?return=value`: the result of a read after the acknowledgement.
    #[serde(flatten)]
    #[schema(value_type = MaybeValue)]
    value: Option<ValueView>,
    /// With `?return=value`: why that read returned no value. The update is acknowledged nevertheless.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<crate::http::problem::ProblemBody>)]
    read_problem: Option<Problem>,
}

params! {
    /// Query parameters of an update.
    struct UpdateParams {
        durability: Durability = ACK,
        returns_value: bool = RETURN,
        as_digits: bool = NUMBERS,
    }
}

const RETURN: Parameter<bool> = Parameter {
    name: "return",
    description: "`none` (default), or `value`: read the key after the acknowledgement and return its \
                  value. Requires `ack=durable`, and a token that can also read",
    example: Some("value"),
    values: Values::OneOf(&[("none", false), ("value", true)]),
    absent: Some(false),
};

/// Update a key
///
/// Applies one op or a list of ops. Either all ops of a list are applied or none. An empty body of any content
/// type adds one to a counter. Bare text that `curl -d` sends as a form is taken as `text/plain`. An update
/// does not read the key from the store, unless `return=value` requests its value afterwards. The update
/// continues if the client disconnects.
#[utoipa::path(
    post, path = "/v1/{kind}/{group}/{name}", tag = "keys",
    params(KeyPath, UpdateParams, IdParams),
    request_body(
        description = "Empty (adds one to a counter), a bare amount or item, an op, or a list of ops",
        content(
            (UpdateBody = "application/json", examples(
                ("a list, all or none" = (value = json!({"ops": [{"op": "add"}, {"op": "add", "by": -2}]})))
            )),
            (BareText = "text/plain", example = json!("5")),
        )
    ),
    responses(
        (status = 200, description = "Acknowledged by the store. As text: `acked`, or with `return=value` the \
            bare value", content(
            (UpdateView = "application/json",
                example = json!({"outcome": "acked", "kind": "counter", "group": "site", "name": "home"})),
            (String = "text/plain", example = json!("acked\n")),
        )),
        (status = 202, description = "In memory, because of `ack=memory`. The update is lost if the pod dies \
            before the next write of its key, and may be lost if the outcome of that write stays unknown", content(
            (UpdateView = "application/json",
                example = json!({"outcome": "accepted", "kind": "counter", "group": "site", "name": "home"})),
            (String = "text/plain", example = json!("accepted\n")),
        )),
    )
)]
pub(crate) async fn update(
    State(served): State<Served>,
    path: KeyPath,
    Query(params): Query<UpdateParams>,
    request: Request,
) -> Result<Response, Problem> {
    let Shared { app, bodies, .. } = &*served;
    if params.returns_value && params.durability == Durability::Memory {
        let detail = "return=value reads the stored value, so it requires ack=durable.";
        return Err(bad_query(detail.to_owned()));
    }
    let (key, caller) = path.to(Verb::Write)?;
    if params.returns_value {
        caller.to(Verb::Read).of(&key.group)?;
    }
    let (parts, body) = request.into_parts();
    let ids = extract::of_update(&parts.headers)?;
    ids.refuse_lone_window()?;
    let offered = [JSON, TEXT];
    let media = match params.returns_value {
        true => extract::negotiate_value(&parts.headers, &offered, key.kind)?,
        false => extract::negotiate(&parts.headers, &offered),
    };
    let body = bodies.read(&parts.headers, body, limits::BODY_BYTES_MAX).await?;
    let Ops { ops, sequence } = ops(key.kind, &parts.headers, &body)?;
    let name = ids.name(key.kind, Place::default(), sequence)?;
    let timed = params.returns_value && key.kind.is_timed();
    let asked = if timed { ops.clone() } else { Vec::new() };
    let update = app.service.update(&key, Update { ops, name }, params.durability);
    let time = update.await.map_err(|error| {
        let until = name.map(|name| app.service.retry_until(&name, &key.group));
        Problem::from(error).of_named(until)
    })?;
    let mut answer = UpdateView {
        outcome: Outcome::of(params.durability),
        key: (&key).into(),
        timestamp: time.map(Timestamp::as_micros),
        superseded: false,
        value: None,
        read_problem: None,
    };
    if params.returns_value {
        // Boxed, because otherwise every update's future would have space for a read that few updates need.
        match Box::pin(app.service.read(&key, None)).await {
            Ok(Some(read)) => {
                let is_later = |op| time.is_some_and(|time| read.state.supersedes(op, time));
                answer.superseded = asked.iter().any(is_later);
                let params = ValueParams::of_numbers(params.as_digits);
                answer.value = Some(ValueView::new(&read, &params));
            }
            Ok(None) => {
                let detail = match name.is_some() && app.resetter.was_reset(&key) {
                    true => {
                        "An update whose id was cleared with the key adds nothing to it. Or the replicas that answered do not \
                         have the update yet: read again."
                    }
                    false => "The replicas that answered do not have the update yet; read again.",
                };
                answer.read_problem = Some(Problem::new(ProblemType::KeyAbsent, detail));
            }
            Err(error) => answer.read_problem = Some(error.into()),
        }
    }
    let status = match params.durability {
        Durability::Stored => StatusCode::OK,
        Durability::Memory => StatusCode::ACCEPTED,
    };
    if media == TEXT
        && let Some(text) = answer.text(key.kind, params.returns_value)
    {
        return Ok((status, text).into_response());
    }
    Ok((status, Json(answer)).into_response())
}

impl UpdateView {
    /// The answer as text: the value if it was asked for and could be read, otherwise the outcome.
    fn text(&self, kind: Kind, returns_value: bool) -> Option<String> {
        match &self.value {
            Some(view) => view.value.bare(kind),
            None if returns_value => None,
            None => Some(format!("{}\n", self.outcome.name())),
        }
    }
}

/// Reads the ops of a body by its content type.
fn ops(kind: Kind, headers: &HeaderMap, body: &[u8]) -> Result<Ops, Problem> {
    const WANTED: &str = "application/json with an op, or text/plain with a bare amount or item";
    match MediaType::of(headers) {
        // Clients that send JSON declare it for every request, also for one without a body.
        MediaType::Json if !body.trim_ascii_start().is_empty() => requests::ops(kind, body),
        MediaType::Json => Ok(vec![wire::empty_op(kind)?].into()),
        _ if body.is_empty() => Ok(vec![wire::empty_op(kind)?].into()),
        MediaType::Text => Ok(vec![wire::text_op(kind, body)?].into()),
        MediaType::Form if is_bare(body) => Ok(vec![wire::text_op(kind, body)?].into()),
        media @ MediaType::Ndjson(_) => Err(media.refuse("it to POST /v1/batch")),
        media => Err(media.refuse(WANTED)),
    }
}

/// Whether a form's body is the bare text that `curl -d TEXT` sends. Names, values and percent-encodings are
/// those of a real form, and JSON is an op whose content type was forgotten.
fn is_bare(body: &[u8]) -> bool {
    let is_json = matches!(body.trim_ascii_start(), [b'{' | b'[', ..]);
    !is_json && !body.iter().any(|byte| matches!(byte, b'=' | b'&' | b'%'))
}
