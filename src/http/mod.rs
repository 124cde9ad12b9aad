//! HTTP: the only module that knows status codes. In reading order:
//!
//! * `problem`, `catalog`: errors as `application/problem+json`, and every type there is;
//! * `access`: who asks, and whether they may;
//! * `body`, `extract`, `json`, `wire`: from requests to checked values, from values to answers;
//! * `update`, `read`, `batch`, `stream`: the use cases of clients;
//! * `inspect`, `repair`, `operations`: those of operators;
//! * `starting`: what a pod answers before it can serve;
//! * `observe`, `trace`, `answers`, `turns`: what happens to every request, and to large ones;
//! * `openapi`, `schemas`: the document, made from the same routes that serve.

mod access;
mod answers;
mod batch;
mod body;
mod catalog;
mod extract;
mod inspect;
mod json;
mod merge;
mod observe;
mod openapi;
mod operations;
mod problem;
mod read;
mod repair;
#[allow(dead_code, reason = "types of the document, read by its test only")]
mod schemas;
mod starting;
mod stream;
mod together;
mod trace;
mod turns;
mod update;
mod wire;

use std::ops::Deref;
use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use tower_http::decompression::RequestDecompressionLayer;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;

use crate::health::Health;
use crate::limits;
use crate::policy::Policies;
use crate::room::Space;
use crate::service::Service;

use answers::Answers;
use body::Bodies;
use observe::Observer;
use turns::Turns;

pub use catalog::{Entry, ProblemType};
pub use openapi::openapi;
pub use problem::{NotAcked, Problem};
pub use starting::starting;

/// What lines in the log about operators' requests are found by.
const AUDIT: &str = "orderfree::audit";

/// What the handlers share.
#[derive(Clone)]
pub struct AppState {
    /// The use cases.
    pub service: Arc<Service>,
    /// Whether requests should come here.
    pub health: Arc<Health>,
    /// Who may do what.
    pub policies: Policies,
    /// What runs here.
    pub build: Build,
    /// Requests in progress at once, of each address.
    pub requests_max: usize,
}

/// The state of the handlers, which each request takes anew: one count of references, as all threads write
/// to it.
#[derive(Clone)]
struct Served(Arc<Shared>);

/// What the handlers share, with what only this module needs.
struct Shared {
    app: AppState,
    bodies: Bodies,
    answers: Answers,
    turns: Turns,
    /// For what merges make of the values that they read.
    merged: Space,
}

impl Deref for Served {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// What `/version` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Build {
    /// The release.
    pub version: &'static str,
    /// The commit it was built from, if known.
    pub commit: Option<&'static str>,
}

impl Build {
    /// Of this program.
    pub const THIS: Build =
        Build { version: env!("CARGO_PKG_VERSION"), commit: option_env!("ORDERFREE_COMMIT") };
}

/// Everything that this pod answers.
pub fn router(app: AppState) -> Router {
    router_with(app, Router::new())
}

/// The same, and `others` with the same ids, log lines and metrics.
pub fn router_with(app: AppState, others: Router) -> Router {
    serve(served(app), all_routes(), others, true)
}

/// What users reach, and what operators reach at an address of their own.
pub fn routers_apart(app: AppState) -> (Router, Router) {
    // One bound on bodies for both.
    let served = served(app);
    let users = user_routes().merge(probe_routes());
    let operators = admin_routes().merge(probe_routes()).merge(operator_routes());
    (
        serve(served.clone(), users, Router::new(), true),
        serve(served, operators, Router::new(), false),
    )
}

fn served(app: AppState) -> Served {
    let bodies = Bodies::new(limits::BODIES_BYTES_MAX, limits::STREAMS_BYTES_MAX);
    Served(Arc::new(Shared {
        app,
        bodies,
        answers: Answers::default(),
        turns: Turns::default(),
        merged: Space::new(limits::MERGED_BYTES_MAX),
    }))
}

fn serve(served: Served, routes: OpenApiRouter<Served>, others: Router, is_shared: bool) -> Router {
    let (routes, _) = routes.split_for_parts();
    let observer = Arc::new(Observer::new(&served, is_shared));
    routes
        .merge(others.with_state(()))
        .fallback(observe::unknown_route)
        .method_not_allowed_fallback(observe::method_not_allowed)
        .layer(from_fn_with_state(observer, observe::observe))
        .with_state(served)
}

/// Every route, for the document.
fn all_routes() -> OpenApiRouter<Served> {
    user_routes().merge(admin_routes()).merge(probe_routes()).merge(operator_routes())
}

/// What clients use.
fn user_routes() -> OpenApiRouter<Served> {
    OpenApiRouter::with_openapi(openapi::head())
        .routes(routes!(update::update, read::read))
        .routes(routes!(read::read_group))
        .routes(routes!(batch::batch).layer(RequestDecompressionLayer::new()))
        .routes(routes!(batch::query))
        .routes(routes!(merge::merge))
        .routes(routes!(inspect::kinds))
}

/// What operators do with keys.
fn admin_routes() -> OpenApiRouter<Served> {
    OpenApiRouter::default()
        .routes(routes!(inspect::shards))
        .routes(routes!(inspect::fold))
        .routes(routes!(repair::discard))
        .routes(routes!(repair::groups))
}

/// Probes, and what the interface says about itself.
fn probe_routes() -> OpenApiRouter<Served> {
    OpenApiRouter::default()
        .routes(routes!(operations::livez))
        .routes(routes!(operations::readyz))
        .routes(routes!(operations::openapi_json))
        .routes(routes!(operations::docs))
        .routes(routes!(operations::docs_script))
        .routes(routes!(operations::problems))
        .routes(routes!(operations::problem))
}

/// What operators look at.
fn operator_routes() -> OpenApiRouter<Served> {
    OpenApiRouter::default()
        .routes(routes!(operations::metrics))
        .routes(routes!(operations::version))
}
