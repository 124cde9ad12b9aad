//! What operators do where something is wrong: list groups, and take out a row that nobody can decode.

use axum::Json;
use axum::extract::{Path, State};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use orderfree_core::protocol::MutatorId;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::Served;
use super::access::{self, KeyPath};
use super::catalog::ProblemType;
use super::extract::{self, Params, Query, QueryParams};
use super::problem::Problem;
use super::wire::{KeyView, rfc3339};
use crate::policy::{Caller, Verb};
use crate::service::{DiscardError, Discardable};
use crate::store::GroupCursor;

/// Query parameters of a list of groups.
pub(super) struct GroupsParams {
    limit: usize,
    behind: Option<GroupCursor>,
}

impl Params for GroupsParams {
    const NAMES: &'static [&'static str] = &["limit", "cursor"];

    fn parse(query: &QueryParams<'_>) -> Result<GroupsParams, Problem> {
        let limit = query.limit()?;
        let behind = query.read("cursor", |text| {
            let bytes = URL_SAFE_NO_PAD.decode(text).ok();
            let cursor = bytes.and_then(|bytes| String::from_utf8(bytes).ok()?.parse().ok());
            cursor
                .map(GroupCursor)
                .ok_or_else(|| format!("{text:?} is not the `next` of an earlier page"))
        })?;
        Ok(GroupsParams { limit, behind })
    }
}

/// Some of the groups of a kind.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct GroupsView {
    #[schema(example = "counter")]
    kind: &'static str,
    /// Those that the token may administer, in no order. A page may be short or empty, and others follow.
    groups: Vec<String>,
    /// What `cursor` gives the next page by; null at the end.
    next: Option<String>,
}

/// List the groups of a kind
///
/// Slow, as the store looks at every partition: for operators and for moving data.
#[utoipa::path(
    get, path = "/v1/{kind}", tag = "inspection",
    params(
        ("kind" = String, Path, description = "Data type", example = "counter"),
        ("limit" = Option<usize>, Query, description = "Most partitions to look at, 1 to 10000; 1000 without"),
        ("cursor" = Option<String>, Query, description = "`next` of the page before"),
    ),
    responses((status = 200, description = "A page of groups", body = GroupsView,
        example = json!({"kind": "counter", "groups": ["site"], "next": null})))
)]
pub(super) async fn groups(
    State(served): State<Served>,
    caller: Caller,
    Path(kind): Path<String>,
    Query(params): Query<GroupsParams>,
) -> Result<Json<GroupsView>, Problem> {
    let app = &served.app;
    let kind = access::parse_kind(&kind)?;
    caller.to(Verb::Admin).somewhere()?;
    let list = app.service.groups(kind, params.behind.as_ref(), params.limit).await?;
    let mine = list.groups.iter().filter(|group| caller.may(Verb::Admin, group));
    Ok(Json(GroupsView {
        kind: kind.name(),
        groups: mine.map(ToString::to_string).collect(),
        next: list.next.map(|cursor| URL_SAFE_NO_PAD.encode(cursor.0.to_string())),
    }))
}

/// Query parameters of a removal.
pub(super) struct DiscardParams {
    mutator_id: MutatorId,
    dry_run: bool,
}

impl Params for DiscardParams {
    const NAMES: &'static [&'static str] = &["mutator_id", "dry_run"];

    fn parse(query: &QueryParams<'_>) -> Result<DiscardParams, Problem> {
        let mutator_id = query.read("mutator_id", |text| {
            let id = Uuid::parse_str(text).map(MutatorId::new);
            id.map_err(|_| format!("{text:?} is no UUID; /shards shows those of the key's rows"))
        })?;
        let missing = "Say which row: ?mutator_id=, as the problem or the key's /shards shows it.";
        let mutator_id = mutator_id.ok_or_else(|| extract::bad_query(missing.to_owned()))?;
        Ok(DiscardParams { mutator_id, dry_run: query.flag("dry_run")? })
    }
}

/// A row that was removed, or would be.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DiscardView {
    #[serde(flatten)]
    key: KeyView,
    /// Nothing was removed because nothing should be.
    dry_run: bool,
    /// Whose row it is.
    #[schema(example = "5f0c4f5e-2a0b-4b6f-9d53-3f4d3a9c1e77")]
    mutator_id: String,
    /// When that mutator expired.
    expires_at: String,
    /// Why it can't be decoded.
    error: String,
    /// The row's bytes, in base64.
    state: String,
}

/// Remove a row that can't be decoded
///
/// The way out where a key can't be read or folded because of one row, once its mutator is dead: what it
/// counted is lost. Keep what is answered. A row that can be decoded stays, and so does a tally.
#[utoipa::path(
    post, path = "/v1/{kind}/{group}/{name}/discard", tag = "inspection",
    params(
        ("kind" = String, Path, description = "Data type", example = "counter"),
        ("group" = String, Path, description = "1 to 256 bytes of UTF-8; `/` as `%2F`", example = "site"),
        ("name" = String, Path, description = "1 to 256 bytes of UTF-8; `/` as `%2F`", example = "home"),
        ("mutator_id" = String, Query, description = "Which row, as `/shards` shows it",
            example = "5f0c4f5e-2a0b-4b6f-9d53-3f4d3a9c1e77"),
        ("dry_run" = Option<bool>, Query, description = "Only answer the row"),
    ),
    responses((status = 200, description = "The row", body = DiscardView, example = json!({
        "kind": "counter", "group": "site", "name": "home", "dry_run": false,
        "mutator_id": "5f0c4f5e-2a0b-4b6f-9d53-3f4d3a9c1e77",
        "expires_at": "2026-11-20T06:30:00.000417Z",
        "error": "row (expires_at 1795242600000417, mutator 5f0c4f5e-2a0b-4b6f-9d53-3f4d3a9c1e77) is \
            undecodable: unknown magic byte 0x00", "state": "AAE="})))
)]
pub(super) async fn discard(
    State(served): State<Served>,
    path: KeyPath,
    Query(params): Query<DiscardParams>,
) -> Result<Json<DiscardView>, Problem> {
    let app = &served.app;
    let (key, caller) = path.to(Verb::Admin)?;
    let DiscardParams { mutator_id, dry_run } = params;
    let problem = |error| problem_of(error).within(&key.to_string());
    let found = app.service.discardable(&key, mutator_id).await.map_err(problem)?;
    let Discardable { row, error } = &found;
    let (expires_at, state) = (rfc3339(row.expires_at), STANDARD.encode(&row.state));
    if !dry_run {
        // Before: whatever becomes of the removal and its answer, the bytes are here.
        tracing::warn!(
            target: super::AUDIT,
            caller = caller.name(),
            %key,
            %mutator_id,
            expires_at,
            state,
            "a row is discarded"
        );
        app.service.discard(&key, &found).await.map_err(problem)?;
    }
    Ok(Json(DiscardView {
        key: (&key).into(),
        dry_run,
        mutator_id: mutator_id.to_string(),
        expires_at,
        error: error.to_string(),
        state,
    }))
}

fn problem_of(error: DiscardError) -> Problem {
    let kind = match error {
        DiscardError::Read(error) => return error.into(),
        DiscardError::NoRow(_) => ProblemType::RowAbsent,
        DiscardError::Tally
        | DiscardError::Decodable
        | DiscardError::Newer
        | DiscardError::NotFinal(_) => ProblemType::NotDiscardable,
        DiscardError::Unknown(_) => ProblemType::DiscardUnknown,
    };
    Problem::new(kind, super::problem::sentence(&error.to_string()))
}
