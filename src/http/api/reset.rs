//! Resets: `POST …/{name}/reset`, `DELETE …/{name}`, `DELETE …/{group}?prefix=`, and `GET …/resets/{id}`.

use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use orderfree_core::crdt::{self, Kind};
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::reset::{LOG_NAMES_MAX, LogRow, ResetError};
use orderfree_core::protocol::{Key, Name, Outcome, Timestamp};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::engine::resetter::{Order, Ordered, Progress, ResetFailure, Ticket};
use crate::engine::service::GroupQuery;
use crate::http::body::extract;
use crate::http::body::ids::{IdHeaders, IdParams};
use crate::http::body::parameters::{self, NumbersParams, Query, ValueParams, params};
use crate::http::body::wire::{KeyView, Shown};
use crate::http::catalog::ProblemType;
use crate::http::guard::access::{GroupPath, KeyPath, ResetPath};
use crate::http::problem::{OutcomeText, Problem};
use crate::http::state::{Served, Shared};
use crate::limits;
use crate::policy::Verb;

/// How long an answer waits for the reset if the client does not say it. A reset of the embedded store has ended by
/// then.
const WAIT: Duration = Duration::from_secs(1);

/// The longest time that an answer waits.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The pause between two looks at a reset that another pod makes.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A header of a reset.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[allow(dead_code, reason = "described, and read by `wait_of`")]
pub(crate) struct WaitParams {
    /// `wait=` and the seconds, up to 60, after which the answer is 202 if the reset has not ended. The default is 1;
    /// `respond-async` is `wait=0`.
    #[param(rename = "Prefer", example = "wait=60")]
    prefer: Option<String>,
}

/// A reset of a key.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResetView {
    #[schema(value_type = OutcomeText)]
    outcome: Outcome,
    #[serde(flatten)]
    key: KeyView,
    /// The address of this reset is `…/resets/` and this id.
    #[schema(example = "1795242600000417-5f0c4f5e2a0b4b6f9d533f4d3a9c1e77")]
    id: String,
    /// The key is absent afterwards.
    deleted: bool,
    /// What the key had, once the outcome is `acked`. Null if that is too large to be kept, and this is not the
    /// answer to the request that reset the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ClearedView>)]
    cleared: Option<Option<ClearedView>>,
}

/// What a reset cleared.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClearedView {
    value: Shown,
}

/// Reset a key
///
/// Empties the key. The answer has the value that the key had. Every acknowledged update is in the value or in what was
/// cleared, never in both and never in none, unless resets of the key overlap or have an unknown outcome. With Cassandra a
/// reset takes about ten seconds: `Prefer: wait=60` waits for its end, and otherwise the answer is 202. The reset continues
/// if the client disconnects. Send it again with the same `Idempotency-Key` to learn what became of it, and with the same
/// `Idempotency-Time` if you sent one: this works for about three days, whatever the window is.
#[utoipa::path(
    post, path = "/v1/{kind}/{group}/{name}/reset", tag = "keys",
    params(KeyPath, NumbersParams, WaitParams, IdParams),
    responses(
        (status = 200, description = "The key was reset", body = ResetView,
            example = json!({"outcome": "acked", "kind": "counter", "group": "site", "name": "home",
                "id": "1795242600000417-5f0c4f5e2a0b4b6f9d533f4d3a9c1e77", "deleted": false, "cleared": {"value": 42}})),
        (status = 202, description = "The reset runs; `Location` says where to ask", body = ResetView,
            headers(("Location" = String, description = "The address to ask for the reset"))),
    )
)]
pub(crate) async fn reset(
    State(served): State<Served>,
    path: KeyPath,
    Query(params): Query<NumbersParams>,
    request: Request,
) -> Result<Response, Problem> {
    one(&served, path, &params, request, false).await
}

/// Delete a key
///
/// Like a reset, but the key is absent until the next update. A deletion and a reset can't have the same id.
#[utoipa::path(
    delete, path = "/v1/{kind}/{group}/{name}", tag = "keys",
    params(KeyPath, NumbersParams, WaitParams, IdParams),
    responses(
        (status = 200, description = "The key was deleted", body = ResetView,
            example = json!({"outcome": "acked", "kind": "counter", "group": "site", "name": "home",
                "id": "1795242600000417-5f0c4f5e2a0b4b6f9d533f4d3a9c1e77", "deleted": true, "cleared": {"value": 42}})),
        (status = 202, description = "The deletion runs; `Location` says where to ask", body = ResetView,
            headers(("Location" = String, description = "The address to ask for the deletion"))),
    )
)]
pub(crate) async fn delete(
    State(served): State<Served>,
    path: KeyPath,
    Query(params): Query<NumbersParams>,
    request: Request,
) -> Result<Response, Problem> {
    one(&served, path, &params, request, true).await
}

/// Ask for a reset
///
/// What became of a reset or of the deletion of a key, whichever pod made it. The log keeps it for about three days.
#[utoipa::path(
    get, path = "/v1/{kind}/{group}/{name}/resets/{id}", tag = "keys",
    params(ResetPath, NumbersParams),
    responses((status = 200, description = "The reset", body = ResetView,
        example = json!({"outcome": "acked", "kind": "counter", "group": "site", "name": "home",
            "id": "1795242600000417-5f0c4f5e2a0b4b6f9d533f4d3a9c1e77", "deleted": false, "cleared": {"value": 42}})))
)]
pub(crate) async fn progress(
    State(served): State<Served>,
    path: ResetPath,
    Query(params): Query<NumbersParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    extract::of_read(&headers)?;
    let (key, id) = path.to(Verb::Reset)?;
    let absent = || {
        let detail = format!("No reset of {key} has the id {id:?}.");
        Problem::new(ProblemType::ResetAbsent, detail)
    };
    let (generation, uuid) = read_id(&id).ok_or_else(absent)?;
    let found = served.app.resetter.find(&key, generation, uuid).await?.ok_or_else(absent)?;
    let end = end_of(&served, found, Duration::ZERO, &key).await?;
    Ok(Json(view(&key, end, &params)).into_response())
}

params! {
    /// Query parameters of a deletion of keys.
    struct DeleteParams {
        prefix: Option<Name> =
            parameters::name("prefix", "Delete the keys whose names begin with this text"),
        is_all: bool = parameters::flag("all", "Delete all keys of the group"),
    }
}

/// A key that was not deleted.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NotDeleted {
    #[schema(example = "home")]
    name: String,
    #[schema(value_type = crate::http::problem::ProblemBody)]
    problem: Problem,
}

/// A deletion of keys of a group.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeletedView {
    #[schema(example = "counter")]
    kind: &'static str,
    #[schema(example = "site")]
    group: String,
    /// The number of keys that were deleted.
    deleted: usize,
    /// Keys that were not deleted, and why.
    failed: Vec<NotDeleted>,
    /// There are more keys; send the request again.
    more: bool,
}

/// Delete keys of a group
///
/// Those with a `prefix`, or with `all=true` the whole group: up to 1,000 keys at once, in about the time of one. The request
/// waits for the end. Keys that get their first update meanwhile stay. What was cleared is not returned: delete keys one
/// by one if you need it.
#[utoipa::path(
    delete, path = "/v1/{kind}/{group}", tag = "keys",
    params(GroupPath, DeleteParams),
    responses((status = 200, description = "The keys that were there were deleted", body = DeletedView,
        example = json!({"kind": "counter", "group": "site", "deleted": 2, "failed": [], "more": false})))
)]
pub(crate) async fn delete_group(
    State(served): State<Served>,
    path: GroupPath,
    Query(params): Query<DeleteParams>,
    request: Request,
) -> Result<Json<DeletedView>, Problem> {
    let caller = path.caller().clone();
    let (kind, group) = path.to(Verb::Reset)?;
    let (parts, body) = request.into_parts();
    let ids = extract::of_update(&parts.headers)?;
    ids.refuse_lone_window()?;
    let says = "A deletion takes no body; say which keys to delete by `?prefix=` or `?all=true`.";
    refuse_body(&served, &parts.headers, body, says).await?;
    if ids.has_id() {
        let detail = "A deletion of many keys takes no id; send it again as it is, and it deletes what is there.";
        return Err(Problem::new(ProblemType::BadId, detail));
    }
    if params.prefix.is_some() && params.is_all {
        let detail = "The request has both `prefix` and `all`; leave one of them out.";
        return Err(Problem::new(ProblemType::BadQuery, detail));
    }
    if params.prefix.is_none() && !params.is_all {
        let detail = "Say which keys to delete: `?prefix=` and text with which their names begin, or `?all=true` \
                      for the whole group.";
        return Err(Problem::new(ProblemType::BadQuery, detail));
    }
    let names = names(&served, kind, &group, params.prefix).await?;
    let more = names.len() > LOG_NAMES_MAX;
    let of = |name: &Name| Key { kind, group: group.clone(), name: name.clone() };
    let keys: Vec<Key> = names.iter().take(LOG_NAMES_MAX).map(of).collect();
    let empty = DeletedView {
        kind: kind.name(),
        group: group.to_string(),
        deleted: 0,
        failed: Vec::new(),
        more,
    };
    if keys.is_empty() {
        return Ok(Json(empty));
    }
    caller.pass_or_refuse(keys.len() - 1)?;
    let order = Order { keys, is_deletion: true, id: None };
    let mut ticket = match served.app.resetter.order(order).await {
        Ok(Ok(Ordered::Here(ticket))) => ticket,
        Ok(_) => return Err(Problem::new(ProblemType::Internal, "The order has no id.")),
        Err(ResetFailure::Refused(ResetError::Absent)) => return Ok(Json(empty)),
        Err(failure) => return Err(failure.into()),
    };
    ticket.wait().await;
    let ends = ticket.ends();
    let ends = match ends.as_deref() {
        Some(Ok(ends)) => ends.clone(),
        Some(Err(failure)) => return Err(failure.clone().into()),
        None => return Err(unknown()),
    };
    let left_out = ticket.left_out.iter().cloned();
    let failed = ends.iter().filter_map(|(key, end)| Some((key.clone(), end.clone().err()?)));
    let failed = failed
        .chain(left_out)
        .filter(|(_, failure)| !matches!(failure, ResetFailure::Refused(ResetError::Absent)));
    let failed = failed
        .map(|(key, failure)| NotDeleted { name: key.name.to_string(), problem: failure.into() });
    let deleted = ends.iter().filter(|(_, end)| end.is_ok()).count();
    Ok(Json(DeletedView { deleted, failed: failed.collect(), ..empty }))
}

/// The names of keys that are there, one more than an order can have.
async fn names(
    served: &Shared,
    kind: Kind,
    group: &Name,
    prefix: Option<Name>,
) -> Result<Vec<Name>, Problem> {
    let query = GroupQuery {
        kind,
        group: group.clone(),
        prefix,
        from: None,
        to: None,
        behind: None,
        limit: LOG_NAMES_MAX + 1,
        level: None,
    };
    let (mut names, mut query) = (Vec::new(), query);
    loop {
        let left = LOG_NAMES_MAX + 1 - names.len();
        query.limit = left;
        let behind = served.app.service.read_group(&query, |name, _| {
            names.push(name);
            0
        });
        query.behind = behind.await?;
        if query.behind.is_none() || names.len() > LOG_NAMES_MAX {
            return Ok(names);
        }
    }
}

/// Refuses a body that says something, with this detail.
async fn refuse_body(
    served: &Shared,
    headers: &HeaderMap,
    body: Body,
    detail: &str,
) -> Result<(), Problem> {
    let body = served.bodies.read(headers, body, limits::BODY_BYTES_MAX).await?;
    match body.trim_ascii() {
        b"" | b"{}" => Ok(()),
        _ => Err(Problem::new(ProblemType::BadBody, detail)),
    }
}

async fn one(
    served: &Shared,
    path: KeyPath,
    params: &NumbersParams,
    request: Request,
    is_deletion: bool,
) -> Result<Response, Problem> {
    let (key, _) = path.to(Verb::Reset)?;
    let (parts, body) = request.into_parts();
    let wait = wait_of(&parts.headers)?;
    let ids: IdHeaders = extract::of_update(&parts.headers)?;
    ids.refuse_lone_window()?;
    let says = match is_deletion {
        true => "A deletion takes no body; leave it out.",
        false => "A reset takes no body; to subtract an amount, POST it to the key.",
    };
    refuse_body(served, &parts.headers, body, says).await?;
    let order = Order { keys: vec![key.clone()], is_deletion, id: ids.of_reset() };
    let ordered = served.app.resetter.order(order).await;
    let Ok(ordered) = ordered.map_err(|failure| problem_of(&key, failure))? else {
        let detail = "The id belongs to another reset of this kind and group; send that one again, or use a new \
                      id.";
        return Err(Problem::new(ProblemType::IdReused, detail));
    };
    let end = end_of(served, ordered, wait, &key).await?;
    let is_over = end.cleared.is_some();
    let answer = view(&key, end, params);
    if is_over {
        return Ok(Json(answer).into_response());
    }
    let part = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let (kind, group, name) = (key.kind, part(key.group.as_str()), part(key.name.as_str()));
    let location = format!("/v1/{kind}/{group}/{name}/resets/{}", answer.id);
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(answer)).into_response())
}

/// A reset that has not failed.
struct End {
    row: LogRow,
    /// None while it runs; then what the key had, unless that was too much to be kept.
    cleared: Option<Option<crdt::State>>,
}

/// Waits for the end of a reset. Its failure is a problem.
async fn end_of(
    served: &Shared,
    ordered: Ordered,
    wait: Duration,
    key: &Key,
) -> Result<End, Problem> {
    let mut logged = match ordered {
        Ordered::Here(mut ticket) => {
            if tokio::time::timeout(wait, ticket.wait()).await.is_err() {
                // Before that, no other pod could find it.
                ticket.wait_until_logged().await;
            }
            return end_of_ticket(served, &ticket, key).await;
        }
        Ordered::Logged(logged) => logged,
    };
    let (resetter, until) = (&served.app.resetter, Instant::now() + wait);
    loop {
        let cleared = match resetter.progress(&logged).await {
            Progress::Running if Instant::now() >= until => None,
            Progress::Running => {
                tokio::time::sleep(LOOK_EVERY).await;
                let (generation, id) = (logged.row.generation, logged.row.id);
                if let Some(Ordered::Logged(now)) = resetter.find(key, generation, id).await? {
                    logged = now;
                }
                continue;
            }
            Progress::Done(cleared) => Some(of_key(key, cleared)),
            Progress::Refused => {
                let refused = ResetFailure::Store("its pod ended, or its time was over".to_owned());
                return Err(refused.into());
            }
            Progress::Unknown => return Err(unknown()),
        };
        return Ok(End { row: logged.row, cleared });
    }
}

/// The state of one of these keys, if they were kept.
fn of_key(key: &Key, cleared: Option<Vec<(Key, crdt::State)>>) -> Option<crdt::State> {
    cleared?.into_iter().find(|(of, _)| of == key).map(|(_, state)| state)
}

async fn end_of_ticket(served: &Shared, ticket: &Ticket, key: &Key) -> Result<End, Problem> {
    let row = (*ticket.row).clone();
    let Some(ends) = ticket.ends() else { return Ok(End { row, cleared: None }) };
    let ends = ends.as_ref().as_ref().map_err(|failure| problem_of(key, failure.clone()))?;
    let done = match ends.iter().find(|(of, _)| of == key) {
        Some((_, Ok(done))) => done,
        Some((_, Err(failure))) => return Err(problem_of(key, failure.clone())),
        None => return Err(unknown()),
    };
    let cleared = match &done.cleared {
        None if done.kept_bytes > 0 => {
            let all = served.app.resetter.cleared(&row).await.map_err(|error| {
                let detail = format!(
                    "The key is reset. What it had can't be read now ({error}); ask again."
                );
                Problem::new(ProblemType::ResetUnknown, detail)
            })?;
            of_key(key, all)
        }
        cleared => cleared.clone(),
    };
    Ok(End { row, cleared: Some(cleared) })
}

/// Names the key that does not exist.
fn problem_of(key: &Key, failure: ResetFailure) -> Problem {
    match failure {
        ResetFailure::Refused(ResetError::Absent) => {
            Problem::new(ProblemType::KeyAbsent, format!("{key} does not exist."))
        }
        _ => failure.into(),
    }
}

fn unknown() -> Problem {
    ResetFailure::Unknown("its markers were not acknowledged in time".to_owned()).into()
}

fn view(key: &Key, end: End, params: &NumbersParams) -> ResetView {
    let End { row, cleared } = end;
    let params = ValueParams::of_numbers(params.as_digits);
    let shown = |state: crdt::State| Shown::of(&state, Some(key), &params);
    ResetView {
        outcome: if cleared.is_some() { Outcome::Acked } else { Outcome::Accepted },
        key: key.into(),
        id: format!("{}-{}", row.generation.time().as_micros(), row.id.simple()),
        deleted: row.is_deletion,
        cleared: cleared.map(|cleared| cleared.map(|state| ClearedView { value: shown(state) })),
    }
}

/// The parts of a reset's id.
fn read_id(text: &str) -> Option<(Generation, Uuid)> {
    let (at, id) = text.split_once('-')?;
    let at = Timestamp::from_micros(at.parse().ok()?);
    Some((Generation::at(at), Uuid::try_parse(id).ok()?))
}

/// How long the client wants to wait (RFC 7240). Other preferences are ignored, as that document says.
fn wait_of(headers: &HeaderMap) -> Result<Duration, Problem> {
    let mut wait = WAIT;
    for value in headers.get_all("prefer") {
        let text = value.to_str().unwrap_or_default();
        for preference in text.split(',').map(str::trim) {
            let (name, given) = preference.split_once('=').unwrap_or((preference, ""));
            match name.trim() {
                name if name.eq_ignore_ascii_case("respond-async") => wait = Duration::ZERO,
                name if name.eq_ignore_ascii_case("wait") => {
                    let seconds = given.trim().parse().ok().map(Duration::from_secs);
                    wait = seconds.filter(|wait| *wait <= WAIT_MAX).ok_or_else(|| {
                        let most = WAIT_MAX.as_secs();
                        let detail = format!(
                            "Prefer: {preference:?} is not `wait=` and whole seconds from 0 to {most}."
                        );
                        Problem::new(ProblemType::BadHeader, detail)
                    })?;
                }
                _ => {}
            }
        }
    }
    Ok(wait)
}
