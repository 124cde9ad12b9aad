//! Repairs by operators: list groups, and remove a row that can't be decoded.

use axum::Json;
use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use orderfree_core::protocol::MutatorId;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::SchemaFormat;
use uuid::Uuid;

use crate::engine::service::{DiscardError, Discardable};
use crate::http::body::parameters::{self, Parameter, Query, Values, params};
use crate::http::body::schemas::text;
use crate::http::body::wire::KeyView;
use crate::http::catalog::ProblemType;
use crate::http::guard::access::{KeyPath, KindPath};
use crate::http::problem::Problem;
use crate::http::state::Served;
use crate::http::time::rfc3339;
use crate::policy::{Caller, Verb};
use crate::store::GroupCursor;

params! {
    /// Query parameters of a list of groups.
    struct GroupsParams {
        limit: usize = parameters::limit(
            "Maximum number of partitions to scan",
        ),
        behind: Option<GroupCursor> = parameters::cursor(read_cursor),
    }
}

fn read_cursor(text: &str) -> Result<Option<GroupCursor>, String> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok();
    match bytes.and_then(|bytes| String::from_utf8(bytes).ok()?.parse().ok()) {
        Some(cursor) => Ok(Some(GroupCursor(cursor))),
        None => Err(format!("{text:?} is not the `next` of an earlier page")),
    }
}

/// A page of the groups of a kind.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GroupsView {
    #[schema(example = "counter")]
    kind: &'static str,
    /// The groups that the token may administer, in no particular order. A page can be short or empty even if
    /// others follow.
    groups: Vec<String>,
    /// The `cursor` of the next page. Null on the last page.
    next: Option<String>,
}

/// List the groups of a kind
///
/// For operators and for moving data. It is slow, because the store scans every partition.
#[utoipa::path(
    get, path = "/v1/{kind}", tag = "inspection",
    params(KindPath, GroupsParams),
    responses((status = 200, description = "A page of groups", body = GroupsView,
        example = json!({"kind": "counter", "groups": ["site"], "next": null})))
)]
pub(crate) async fn groups(
    State(served): State<Served>,
    caller: Caller,
    path: KindPath,
    Query(params): Query<GroupsParams>,
) -> Result<Json<GroupsView>, Problem> {
    let app = &served.app;
    let kind = path.kind()?;
    caller.to(Verb::Admin).somewhere()?;
    let list = app.service.groups(kind, params.behind.as_ref(), params.limit).await?;
    let mine = list.groups.iter().filter(|group| caller.may(Verb::Admin, group));
    Ok(Json(GroupsView {
        kind: kind.name(),
        groups: mine.map(ToString::to_string).collect(),
        next: list.next.map(|cursor| URL_SAFE_NO_PAD.encode(cursor.0.to_string())),
    }))
}

params! {
    /// Query parameters of a removal.
    struct DiscardParams {
        mutator_id: MutatorId = MUTATOR_ID,
        dry_run: bool = parameters::flag("dry_run", "Return the row but do not remove it"),
    }
}

const MUTATOR_ID: Parameter<MutatorId> = Parameter {
    name: "mutator_id",
    description: "The row to remove, as a read's problem and `/shards` show it",
    example: Some("5f0c4f5e-2a0b-4b6f-9d53-3f4d3a9c1e77"),
    values: Values::Text {
        schema: || text().format(Some(SchemaFormat::Custom("uuid".into()))),
        parse: |text| {
            let id = Uuid::parse_str(text).map(MutatorId::new);
            id.map_err(|_| {
                format!("{text:?} is not a UUID; /shards shows the mutators of the key's rows")
            })
        },
    },
    absent: None,
};

/// A row that was removed, or would be.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DiscardView {
    #[serde(flatten)]
    key: KeyView,
    /// True if this was a dry run, which removes nothing.
    dry_run: bool,
    /// The mutator that wrote the row.
    #[schema(example = "5f0c4f5e-2a0b-4b6f-9d53-3f4d3a9c1e77")]
    mutator_id: String,
    /// When that mutator expired.
    expires_at: String,
    /// Why the row can't be decoded.
    error: String,
    /// The row's bytes, in base64.
    state: String,
}

/// Remove a row that can't be decoded
///
/// For a key that can't be read or folded because of one row whose mutator is dead. The updates in the row
/// are lost, so keep the answer. Decodable rows and tallies can't be removed.
#[utoipa::path(
    post, path = "/v1/{kind}/{group}/{name}/discard", tag = "inspection",
    params(KeyPath, DiscardParams),
    responses((status = 200, description = "The row, which is now removed unless `dry_run` is set",
        body = DiscardView, example = json!({
        "kind": "counter", "group": "site", "name": "home", "dry_run": false,
        "mutator_id": "5f0c4f5e-2a0b-4b6f-9d53-3f4d3a9c1e77",
        "expires_at": "2026-11-20T06:30:00.000417Z",
        "error": "row (expires_at 1795242600000417, mutator 5f0c4f5e-2a0b-4b6f-9d53-3f4d3a9c1e77) is \
            undecodable: unknown magic byte 0x00", "state": "AAE="})))
)]
pub(crate) async fn discard(
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
        // Log the bytes before the removal: if the removal or its answer goes wrong, they are in the log.
        tracing::warn!(
            target: crate::http::observe::AUDIT,
            caller = caller.name(),
            %key,
            %mutator_id,
            expires_at,
            state,
            "discarding a row"
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
    Problem::new(kind, crate::http::problem::sentence(&error.to_string()))
}
