//! Why a number is what it is, and folding by hand.

use axum::Json;
use axum::extract::State;
use orderfree_core::crdt::{Kind, Precision};
use orderfree_core::protocol::Phase;
use orderfree_core::protocol::read::ShardView;
use serde::Serialize;
use utoipa::ToSchema;

use super::Served;
use super::access::KeyPath;
use super::catalog::ProblemType;
use super::extract::{NoParams, Params, Query, QueryParams};
use super::problem::Problem;
use super::read;
use super::wire::{self, Ask, KeyView, Shown, rfc3339};
use crate::gc::FoldResult;
use crate::policy::Verb;
use crate::service::TallyView;

/// Query parameters of an inspection.
pub(super) struct InspectParams {
    ask: Ask,
}

impl Params for InspectParams {
    const NAMES: &'static [&'static str] = &["numbers"];

    fn parse(query: &QueryParams<'_>) -> Result<InspectParams, Problem> {
        Ok(InspectParams { ask: Ask::as_digits(wire::numbers(query)?) })
    }
}

/// A key's rows.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ShardsView {
    #[serde(flatten)]
    key: KeyView,
    /// The time that the phases go by.
    now: String,
    /// Shards that expired up to then are final.
    cutoff: String,
    /// Everything folded so far; null before the first fold.
    tally: Option<TallyRow>,
    /// Every other row, the newest expiry last.
    shards: Vec<ShardRow>,
}

/// The tally's row.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TallyRow {
    /// Always null: a tally never expires.
    expires_at: Option<String>,
    /// Every shard that expired up to then is in the tally; null if it can't be decoded.
    fence: Option<String>,
    /// Its part of the key's value; null if it can't be decoded.
    value: Option<Shown>,
    /// It is as large as a tally may be: shards stay beside it, and nothing can be added to the key.
    full: bool,
    /// Why it can't be decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// One shard.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ShardRow {
    /// Whose row it is.
    #[schema(example = "5f0c4f5e-2a0b-4b6f-9d53-3f4d3a9c1e77")]
    mutator_id: String,
    /// When that mutator expires.
    expires_at: String,
    phase: PhaseName,
    /// Whether it lies below the tally's fence: then it is in the tally, and does not count here.
    in_tally: bool,
    /// Its part of the key's value; null if it can't be decoded.
    value: Option<Shown>,
    /// Why it can't be decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Where a shard stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum PhaseName {
    /// Its mutator may take updates.
    Live,
    /// Its mutator takes no more updates, but may still write those it has.
    Draining,
    /// Its mutator is dead, but late acknowledgements are not ruled out yet.
    Expired,
    /// A fold may take it.
    Final,
}

impl From<Phase> for PhaseName {
    fn from(phase: Phase) -> PhaseName {
        match phase {
            Phase::Live => PhaseName::Live,
            Phase::Draining => PhaseName::Draining,
            Phase::Expired => PhaseName::Expired,
            Phase::Final => PhaseName::Final,
        }
    }
}

impl TallyRow {
    fn new(tally: &TallyView, ask: &Ask) -> TallyRow {
        let (fence, value, error) = match &tally.content {
            Ok((fence, state)) => (Some(rfc3339(*fence)), Some(Shown::of(state, None, ask)), None),
            Err(error) => (None, None, Some(error.to_string())),
        };
        TallyRow { expires_at: None, fence, value, full: tally.is_full, error }
    }
}

impl ShardRow {
    fn new(shard: &ShardView, ask: &Ask) -> ShardRow {
        let (value, error) = match &shard.state {
            Ok(state) => (Some(Shown::of(state, None, ask)), None),
            Err(error) => (None, Some(error.to_string())),
        };
        ShardRow {
            mutator_id: shard.mutator_id.to_string(),
            expires_at: rfc3339(shard.expires_at),
            phase: shard.phase.into(),
            in_tally: shard.is_zombie,
            value,
            error,
        }
    }
}

/// Show a key's shards
///
/// Every row of the key as it lies in the store: why the value is what it is.
#[utoipa::path(
    get, path = "/v1/{kind}/{group}/{name}/shards", tag = "inspection",
    params(
        ("kind" = String, Path, description = "Data type", example = "counter"),
        ("group" = String, Path, description = "1 to 256 bytes of UTF-8; `/` as `%2F`", example = "site"),
        ("name" = String, Path, description = "1 to 256 bytes of UTF-8; `/` as `%2F`", example = "home"),
        ("numbers" = Option<String>, Query, description = "`string` writes values in quotes"),
    ),
    responses((status = 200, description = "Every row of the key", body = ShardsView, example = json!({
        "kind": "counter", "group": "site", "name": "home",
        "now": "2026-11-21T08:00:00.123456Z", "cutoff": "2026-11-21T07:00:00.123456Z",
        "tally": {"expires_at": null, "fence": "2026-11-20T07:11:00.000000Z", "value": 1200,
            "full": false},
        "shards": [{"mutator_id": "5f0c4f5e-2a0b-4b6f-9d53-3f4d3a9c1e77",
            "expires_at": "2026-11-22T06:30:00.000417Z", "phase": "live", "in_tally": false,
            "value": 34}]})))
)]
pub(super) async fn shards(
    State(served): State<Served>,
    path: KeyPath,
    Query(params): Query<InspectParams>,
) -> Result<Json<ShardsView>, Problem> {
    let app = &served.app;
    let (key, _) = path.to(Verb::Admin)?;
    let report = app.service.shards(&key).await;
    let report = report.map_err(|error| read::problem_of(error, &key.to_string()))?;
    if report.tally.is_none() && report.shards.is_empty() {
        let detail = format!("{key} does not exist: the store has no row of it.");
        return Err(Problem::new(ProblemType::KeyAbsent, detail));
    }
    Ok(Json(ShardsView {
        key: (&key).into(),
        now: rfc3339(report.now),
        cutoff: rfc3339(report.cutoff),
        tally: report.tally.map(|tally| TallyRow::new(&tally, &params.ask)),
        shards: report.shards.iter().map(|shard| ShardRow::new(shard, &params.ask)).collect(),
    }))
}

/// Query parameters of a fold.
pub(super) struct FoldParams {
    dry_run: bool,
}

impl Params for FoldParams {
    const NAMES: &'static [&'static str] = &["dry_run"];

    fn parse(query: &QueryParams<'_>) -> Result<FoldParams, Problem> {
        Ok(FoldParams { dry_run: query.flag("dry_run")? })
    }
}

/// What a fold did, or would do.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FoldView {
    #[serde(flatten)]
    key: KeyView,
    /// Nothing was written because nothing should be.
    dry_run: bool,
    /// Whether a tally was written.
    written: bool,
    /// The fence before; null without a tally.
    fence_before: Option<String>,
    /// The fence after; null without a tally.
    fence: Option<String>,
    /// Final shards that go into the tally.
    folded: usize,
    /// Rows below the old fence that came back and are deleted again, uncounted.
    zombies: usize,
    /// Shards that are not final yet and stay.
    kept: usize,
    /// There are more final shards than one fold takes: fold again.
    more: bool,
    /// The tally is as large as one may be: the oldest final shard does not fit, and stays.
    full: bool,
}

/// Fold a key now
///
/// Merges the key's final shards into its tally. Folds run in the background anyway; this one is
/// for operators. It changes no value.
#[utoipa::path(
    post, path = "/v1/{kind}/{group}/{name}/fold", tag = "inspection",
    params(
        ("kind" = String, Path, description = "Data type", example = "counter"),
        ("group" = String, Path, description = "1 to 256 bytes of UTF-8; `/` as `%2F`", example = "site"),
        ("name" = String, Path, description = "1 to 256 bytes of UTF-8; `/` as `%2F`", example = "home"),
        ("dry_run" = Option<bool>, Query, description = "Only say what a fold would do"),
    ),
    responses((status = 200, description = "What was done", body = FoldView, example = json!({
        "kind": "counter", "group": "site", "name": "home", "dry_run": false, "written": true,
        "fence_before": null, "fence": "2026-11-20T07:11:00.000000Z", "folded": 12, "zombies": 0,
        "kept": 3, "more": false, "full": false})))
)]
pub(super) async fn fold(
    State(served): State<Served>,
    path: KeyPath,
    Query(params): Query<FoldParams>,
) -> Result<Json<FoldView>, Problem> {
    let app = &served.app;
    let (key, _) = path.to(Verb::Admin)?;
    let result = app.service.fold(&key, params.dry_run).await;
    let FoldResult { report, fence, written } =
        result.map_err(|failure| Problem::from(failure).within(&key.to_string()))?;
    Ok(Json(FoldView {
        key: (&key).into(),
        dry_run: params.dry_run,
        written,
        fence_before: report.fence_before.map(rfc3339),
        fence: fence.map(rfc3339),
        folded: report.folded,
        zombies: report.zombies,
        kept: report.kept,
        more: report.has_more,
        full: report.is_full,
    }))
}

/// A kind of key.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct KindView {
    /// Its name in addresses.
    #[schema(example = "counter")]
    kind: &'static str,
    /// What it holds.
    summary: &'static str,
    /// Its error bound and size.
    bound: &'static str,
    /// Whether its value is exact, not an estimate.
    exact: bool,
    /// Whether an op that is sent again after an unknown outcome leaves the value as if sent once.
    idempotent: bool,
    /// An op as JSON.
    example_op: serde_json::Value,
    /// The value that follows.
    example_value: serde_json::Value,
    /// What its reads can be asked besides, as query parameters.
    parameters: &'static [&'static str],
    /// What of it can be configured by the policy file; null if nothing can.
    precision: Option<PrecisionView>,
    /// What an empty body does; null if it is no op of this kind.
    empty_body: Option<&'static str>,
}

/// How precise a kind is.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PrecisionView {
    /// The parameter's name.
    #[schema(example = "lg_k")]
    name: &'static str,
    /// The coarsest.
    min: u16,
    /// The finest.
    max: u16,
    /// Without a policy.
    default: u16,
}

/// The kinds of this server.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct KindsView {
    kinds: Vec<KindView>,
}

/// List the kinds of keys
#[utoipa::path(
    get, path = "/v1/kinds", tag = "inspection",
    responses((status = 200, description = "Every kind, with its bounds and an example op",
        body = KindsView))
)]
pub(super) async fn kinds(_params: Query<NoParams>) -> Json<KindsView> {
    let view = |&kind: &Kind| {
        let about = kind.about();
        let parse = |text| serde_json::from_str(text).expect("invariant: a test reads it");
        let precision = kind.precision().map(|precision| {
            let Precision { name, min, max, default } = precision;
            PrecisionView { name, min, max, default }
        });
        KindView {
            kind: kind.name(),
            summary: about.summary,
            bound: about.bound,
            exact: about.is_exact,
            idempotent: about.is_idempotent,
            example_op: parse(about.example_op),
            example_value: parse(about.example_value),
            parameters: about.parameters,
            precision,
            empty_body: kind.empty_op().map(|_| "adds 1"),
        }
    };
    Json(KindsView { kinds: Kind::ALL.iter().map(view).collect() })
}
