//! Endpoints for machines and operators: probes, metrics, version, the description of the interface, and the
//! pages that explain problems.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::body::parameters::{self, NoParams, Query, params};
use crate::http::catalog::ProblemType;
use crate::http::guard::access;
use crate::http::openapi;
use crate::http::problem::Problem;
use crate::http::state::Served;

/// A probe's answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProbeView {
    #[schema(example = "ready")]
    status: &'static str,
    /// With `?verbose`: the result of every check.
    #[serde(skip_serializing_if = "Option::is_none")]
    checks: Option<BTreeMap<&'static str, String>>,
}

/// Is the process alive?
///
/// Does not depend on the store: a restart of the pod would not help if the store is down.
#[utoipa::path(
    get, path = "/livez", tag = "operations",
    responses((status = 200, description = "The process is alive", body = ProbeView,
        example = json!({"status": "alive"})))
)]
pub(crate) async fn livez() -> Json<ProbeView> {
    Json(ProbeView { status: "alive", checks: None })
}

params! {
    /// Query parameters of the readiness probe.
    struct ReadyParams {
        verbose: bool = parameters::flag("verbose", "Show every check"),
    }
}

/// Should requests come here?
///
/// Ready means that the pod has started, is not shutting down, its clock was not measured to be wrong, and it has
/// read the log of resets. By default this does not depend on the current state of the store, because then all pods
/// would drop out at once. A pod with `ORDERFREE_READY_NEEDS_QUORUM` is ready only while a quorum of its data centre
/// answers.
#[utoipa::path(
    get, path = "/readyz", tag = "operations",
    params(ReadyParams),
    responses((status = 200, description = "The pod is ready", body = ProbeView,
        example = json!({"status": "ready"})))
)]
pub(crate) async fn readyz(
    State(served): State<Served>,
    Query(params): Query<ReadyParams>,
) -> Result<Json<ProbeView>, Problem> {
    let app = &served.app;
    let readiness = app.health.readiness(
        app.service.check_clock(),
        app.resetter.check_log(),
        app.service.check_quorum(),
    );
    if !readiness.is_ready() {
        let reason = |(name, check): &(&str, Result<String, String>)| {
            check.as_ref().err().map(|why| format!("{name}: {why}"))
        };
        let reasons: Vec<String> = readiness.checks.iter().filter_map(reason).collect();
        return Err(Problem::new(ProblemType::NotReady, format!("{}.", reasons.join("; "))));
    }
    let checks = readiness.checks.into_iter().filter_map(|(name, check)| Some((name, check.ok()?)));
    let checks = params.verbose.then(|| checks.collect());
    Ok(Json(ProbeView { status: "ready", checks }))
}

/// Metrics
///
/// Metrics in the OpenMetrics text format. Keys are never labels.
#[utoipa::path(
    get, path = "/metrics", tag = "operations",
    responses((status = 200, description = "All metrics of this pod",
        content((String = "application/openmetrics-text"))))
)]
pub(crate) async fn metrics(State(served): State<Served>) -> Response {
    let app = &served.app;
    const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    app.resetter.refresh_metrics();
    ([(header::CONTENT_TYPE, OPENMETRICS)], app.service.refresh_metrics().encode()).into_response()
}

/// The version of this server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VersionView {
    #[schema(example = "0.1.0")]
    version: &'static str,
    /// The commit that the server was built from, if known.
    commit: Option<&'static str>,
    /// The store: `cassandra` or `embedded`.
    #[schema(example = "embedded")]
    store: &'static str,
    /// Only with replicas: the data centre of this pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "dc1")]
    datacenter: Option<String>,
    /// Only with replicas: their number in each data centre.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "dc1:3,dc2:3")]
    replication: Option<String>,
}

/// Version
#[utoipa::path(
    get, path = "/version", tag = "operations",
    responses((status = 200, description = "The version of this server", body = VersionView,
        example = json!({"version": "0.1.0", "commit": null, "store": "embedded"})))
)]
pub(crate) async fn version(
    State(served): State<Served>,
    _params: Query<NoParams>,
) -> Json<VersionView> {
    let app = &served.app;
    let crate::http::state::Build { version, commit } = app.build;
    let placement = app.service.placement();
    let datacenter = placement.as_ref().map(|placement| placement.local_datacenter.clone());
    let replication = placement.map(|placement| placement.replication.to_string());
    Json(VersionView { version, commit, store: app.store, datacenter, replication })
}

/// This document
#[utoipa::path(
    get, path = "/openapi.json", tag = "operations",
    responses((status = 200, description = "The interface as OpenAPI 3.1",
        body = serde_json::Value))
)]
pub(crate) async fn openapi_json() -> Response {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| openapi().to_string());
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str()).into_response()
}

/// List the types of problems
#[utoipa::path(
    get, path = "/problems", tag = "operations",
    responses((status = 200, description = "The pages of all types", content((String = "text/plain"))))
)]
pub(crate) async fn problems() -> String {
    let pages: Vec<String> = ProblemType::ALL.iter().map(|kind| kind.page()).collect();
    pages.join("\n----\n\n")
}

/// Explain a type of problem
#[utoipa::path(
    get, path = "/problems/{slug}", tag = "operations",
    params(("slug" = String, Path, description = "The last part of a problem's `type`",
        example = "bad-op")),
    responses((status = 200, description = "What the type means and what to do",
        content((String = "text/plain"))))
)]
pub(crate) async fn problem(slug: Result<Path<String>, PathRejection>) -> Result<String, Problem> {
    let Path(slug) = slug.map_err(|error| access::bad_path(error.status()))?;
    match ProblemType::from_slug(&slug) {
        Some(kind) => Ok(kind.page()),
        None => {
            let detail = format!("There is no problem type {slug:?}; GET /problems lists them.");
            Err(Problem::new(ProblemType::UnknownProblem, detail))
        }
    }
}
