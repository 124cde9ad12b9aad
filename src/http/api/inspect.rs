//! Shows the rows behind a value, and folds a key on request.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use orderfree_core::crdt::{Kind, Precision};
use orderfree_core::protocol::read::ShardView;
use orderfree_core::protocol::{Key, Phase};
use serde::Serialize;
use utoipa::ToSchema;

use crate::engine::fold::FoldResult;
use crate::engine::service::TallyView;
use crate::http::api::read;
use crate::http::body::extract;
use crate::http::body::parameters::{self, NoParams, NumbersParams, Query, ValueParams, params};
use crate::http::body::wire::{KeyView, Shown};
use crate::http::catalog::ProblemType;
use crate::http::guard::access::KeyPath;
use crate::http::problem::Problem;
use crate::http::state::Served;
use crate::http::time::rfc3339;
use crate::policy::{Caller, Verb};

/// A key's rows.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShardsView {
    #[serde(flatten)]
    key: KeyView,
    /// The server's time. The phases of the shards are relative to it.
    now: String,
    /// Shards that expired up to this time are final.
    cutoff: String,
    /// The shards that were folded so far. Null before the first fold.
    tally: Option<TallyRow>,
    /// All other rows, by expiry, the newest last.
    shards: Vec<ShardRow>,
    /// The number of ids in the rows that count. An id in several rows is one. Null if a row can't be decoded.
    ids: Option<usize>,
    /// The number of these ids that were used with several contents. One content of each counts. Null if a row
    /// can't be decoded.
    id_conflicts: Option<usize>,
}

/// The row of the tally.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TallyRow {
    /// Always null, because a tally never expires.
    expires_at: Option<String>,
    /// Every shard that expired up to this time is in the tally. Null if the tally can't be decoded.
    fence: Option<String>,
    /// The tally's part of the key's value. Null if the tally can't be decoded.
    value: Option<Shown>,
    /// True if the tally has its maximum size. Shards that do not fit stay, and the key accepts no additions.
    full: bool,
    /// True if the key was deleted, or forgotten after a time without updates. It is absent until a shard counts.
    forgotten: bool,
    /// Why the tally can't be decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The row of one shard.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShardRow {
    /// The mutator that wrote the row.
    #[schema(example = "5f0c4f5e-2a0b-4b6f-9d53-3f4d3a9c1e77")]
    mutator_id: String,
    /// When the mutator expires.
    expires_at: String,
    phase: PhaseName,
    /// True if the shard expired up to the tally's fence. It is then already in the tally, so its row does
    /// not count.
    in_tally: bool,
    /// True if a reset cleared the shard. It does not count.
    cleared: bool,
    /// The shard's part of the key's value. Null if the shard can't be decoded. Shards can have ids in common,
    /// which count once in the key's value.
    value: Option<Shown>,
    /// The number of ids in the shard, for shards of updates with ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    ids: Option<usize>,
    /// Why the shard can't be decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The phase of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PhaseName {
    /// Its mutator can take updates.
    Live,
    /// Its mutator takes no more updates, but can still write those that it has.
    Draining,
    /// Its mutator is dead, but late acknowledgements are not ruled out yet.
    Expired,
    /// A fold can move it into the tally.
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
    fn new(tally: &TallyView, params: &ValueParams) -> TallyRow {
        let (fence, value, error) = match &tally.content {
            Ok((fence, state)) => {
                (Some(rfc3339(*fence)), Some(Shown::of(state, None, params)), None)
            }
            Err(error) => (None, None, Some(error.to_string())),
        };
        TallyRow {
            expires_at: None,
            fence,
            value,
            full: tally.is_full,
            forgotten: tally.is_grave,
            error,
        }
    }
}

impl ShardRow {
    fn new(shard: &ShardView, params: &ValueParams) -> ShardRow {
        let (value, error) = match &shard.state {
            Ok(state) => (Some(Shown::of(state, None, params)), None),
            Err(error) => (None, Some(error.to_string())),
        };
        ShardRow {
            mutator_id: shard.mutator_id.to_string(),
            expires_at: rfc3339(shard.expires_at),
            phase: shard.phase.into(),
            in_tally: shard.is_zombie,
            cleared: shard.is_cleared,
            value,
            ids: shard.ids,
            error,
        }
    }
}

/// Show a key's shards
///
/// Returns every row of the key as it is in the store. They explain the key's value. On Cassandra, shards that a reset
/// cleared are listed until a fold deletes them, and do not count.
#[utoipa::path(
    get, path = "/v1/{kind}/{group}/{name}/shards", tag = "inspection",
    params(KeyPath, NumbersParams),
    responses((status = 200, description = "Every row of the key", body = ShardsView, example = json!({
        "kind": "counter", "group": "site", "name": "home",
        "now": "2026-11-21T08:00:00.123456Z", "cutoff": "2026-11-21T07:57:00.123456Z",
        "tally": {"expires_at": null, "fence": "2026-11-20T07:11:00.000000Z", "value": 1200,
            "full": false, "forgotten": false},
        "shards": [{"mutator_id": "5f0c4f5e-2a0b-4b6f-9d53-3f4d3a9c1e77",
            "expires_at": "2026-11-22T06:30:00.000417Z", "phase": "live", "in_tally": false,
            "cleared": false, "value": 34}], "ids": 0, "id_conflicts": 0})))
)]
pub(crate) async fn shards(
    State(served): State<Served>,
    path: KeyPath,
    Query(params): Query<NumbersParams>,
    headers: HeaderMap,
) -> Result<Json<ShardsView>, Problem> {
    extract::of_read(&headers)?;
    let app = &served.app;
    let (key, _) = path.to(Verb::Admin)?;
    let report = app.service.shards(&key).await;
    let report = report.map_err(|error| read::problem_of(error, &key.to_string()))?;
    if report.tally.is_none() && report.shards.is_empty() {
        let missed = read::what_is_missed(app, None);
        let detail = format!("{key} does not exist: this pod found no row of it.{missed}");
        return Err(Problem::new(ProblemType::KeyAbsent, detail));
    }
    let params = ValueParams::of_numbers(params.as_digits);
    Ok(Json(ShardsView {
        key: (&key).into(),
        now: rfc3339(report.now),
        cutoff: rfc3339(report.cutoff),
        tally: report.tally.map(|tally| TallyRow::new(&tally, &params)),
        shards: report.shards.iter().map(|shard| ShardRow::new(shard, &params)).collect(),
        ids: report.united.map(|united| united.ids),
        id_conflicts: report.united.map(|united| united.conflicts),
    }))
}

params! {
    /// Query parameters of a list of the hottest keys.
    struct HottestParams {
        limit: usize = parameters::limit("Maximum number of keys"),
    }
}

/// The keys that this pod updates most.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HottestView {
    /// The keys of groups that the token can administer, hottest first.
    keys: Vec<HotKey>,
}

/// A key that this pod updates.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HotKey {
    #[serde(flatten)]
    key: KeyView,
    /// Ops per second, over ten seconds that ended in the last ten.
    #[schema(example = 120.4)]
    ops_per_second: f64,
}

/// Show the hottest keys
///
/// Returns the keys that this pod adds the most ops to. Other pods have their own.
#[utoipa::path(
    get, path = "/v1/hottest", tag = "inspection",
    params(HottestParams),
    responses((status = 200, description = "Keys and their rates", body = HottestView, example = json!({
        "keys": [{"kind": "counter", "group": "site", "name": "home", "ops_per_second": 120.4}]})))
)]
pub(crate) async fn hottest(
    State(served): State<Served>,
    caller: Caller,
    Query(params): Query<HottestParams>,
) -> Result<Json<HottestView>, Problem> {
    caller.to(Verb::Admin).somewhere()?;
    let is_mine = |key: &Key| caller.may(Verb::Admin, &key.group);
    let keys = served.app.service.hottest(params.limit, is_mine).into_iter();
    let hot = |(key, ops_per_second)| HotKey { key: KeyView::from(&key), ops_per_second };
    Ok(Json(HottestView { keys: keys.map(hot).collect() }))
}

params! {
    /// Query parameters of a fold.
    struct FoldParams {
        dry_run: bool = parameters::flag("dry_run", "Report what a fold would do, but do nothing"),
    }
}

/// The result of a fold or of a dry run.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FoldView {
    #[serde(flatten)]
    key: KeyView,
    /// True if this was a dry run, which writes nothing.
    dry_run: bool,
    /// True if the fold wrote a tally.
    written: bool,
    /// The fence before the fold. Null without a tally.
    fence_before: Option<String>,
    /// The fence after the fold. Null without a tally.
    fence: Option<String>,
    /// The number of final shards that go into the tally.
    folded: usize,
    /// The number of shards that a reset cleared. They are deleted and do not count.
    cleared: usize,
    /// The number of rows below the old fence that reappeared. They do not count and are deleted again.
    zombies: usize,
    /// The number of shards that stay because they are not final yet.
    kept: usize,
    /// True if there are more final shards than one fold takes. Fold again.
    more: bool,
    /// True if the tally has its maximum size. The oldest final shard does not fit and stays.
    full: bool,
    /// True if the fold forgets the key, because it had no update for the policy's `idle_ttl`.
    forgotten: bool,
}

/// Fold a key now
///
/// Merges the key's final shards into its tally. The value stays the same, unless the fold forgets an idle
/// key. Folds also run in the background; this endpoint is for operators.
#[utoipa::path(
    post, path = "/v1/{kind}/{group}/{name}/fold", tag = "inspection",
    params(KeyPath, FoldParams),
    responses((status = 200, description = "What the fold did", body = FoldView, example = json!({
        "kind": "counter", "group": "site", "name": "home", "dry_run": false, "written": true,
        "fence_before": null, "fence": "2026-11-20T07:11:00.000000Z", "folded": 12, "cleared": 0, "zombies": 0,
        "kept": 3, "more": false, "full": false, "forgotten": false})))
)]
pub(crate) async fn fold(
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
        cleared: report.cleared,
        zombies: report.zombies,
        kept: report.kept,
        more: report.has_more,
        full: report.is_full,
        forgotten: report.forgotten,
    }))
}

/// A kind of key.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KindView {
    /// The name of the kind in addresses.
    #[schema(example = "counter")]
    kind: &'static str,
    /// What a key of this kind holds.
    summary: &'static str,
    /// The error bound and the size of a value.
    bound: &'static str,
    /// True if values are exact, false if they are estimates.
    exact: bool,
    /// True if an op that is sent again after an unknown outcome has the same effect as if it were sent once.
    idempotent: bool,
    /// An example op.
    example_op: serde_json::Value,
    /// An example value.
    example_value: serde_json::Value,
    /// The query parameters of reads that are specific to this kind.
    parameters: &'static [&'static str],
    /// The precision that the policy file can set. Null if the kind has none.
    precision: Option<PrecisionView>,
    /// What an empty body does. Null if an empty body is not an op of this kind.
    empty_body: Option<&'static str>,
}

/// The precision of a kind.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PrecisionView {
    /// The name of the precision parameter.
    #[schema(example = "lg_k")]
    name: &'static str,
    /// The lowest precision.
    min: u16,
    /// The highest precision.
    max: u16,
    /// The precision without a policy.
    default: u16,
}

/// The kinds that this server supports.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KindsView {
    kinds: Vec<KindView>,
}

/// List the kinds of keys
#[utoipa::path(
    get, path = "/v1/kinds", tag = "inspection",
    responses((status = 200, description = "Every kind, with its bounds and examples",
        body = KindsView))
)]
pub(crate) async fn kinds(_params: Query<NoParams>) -> Json<KindsView> {
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
