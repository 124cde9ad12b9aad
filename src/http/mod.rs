//! HTTP: the only module that knows status codes. In reading order:
//!
//! * `problem`, `catalog`: errors as `application/problem+json`, and every type there is;
//! * `body`, `extract`, `json`, `wire`: from requests to checked values, from values to answers;
//! * `update`, `read`, `batch`, `stream`: the use cases of clients;
//! * `inspect`, `operations`: those of operators;
//! * `observe`: what happens to every request;
//! * `openapi`, `schemas`: the document, made from the same routes that serve.

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
#[allow(dead_code, reason = "types of the document, read by its test only")]
mod schemas;
mod stream;
mod together;
mod update;
mod wire;

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRef;
use axum::middleware::from_fn_with_state;
use tower_http::decompression::RequestDecompressionLayer;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;

use crate::health::Health;
use crate::limits;
use crate::service::Service;

use body::Bodies;
use observe::Observer;

pub use catalog::{Entry, ProblemType};
pub use openapi::openapi;
pub use problem::{NotAcked, Problem};

/// What the handlers share.
#[derive(Clone)]
pub struct AppState {
    /// The use cases.
    pub service: Arc<Service>,
    /// Whether requests should come here.
    pub health: Arc<Health>,
    /// What runs here.
    pub build: Build,
}

/// The same, with what only this module needs: what the router's handlers take their state from.
#[derive(Clone)]
struct Served {
    app: AppState,
    bodies: Bodies,
}

impl FromRef<Served> for AppState {
    fn from_ref(served: &Served) -> AppState {
        served.app.clone()
    }
}

impl FromRef<Served> for Bodies {
    fn from_ref(served: &Served) -> Bodies {
        served.bodies.clone()
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
    let (keys, _) = key_routes().split_for_parts();
    let (operations, _) = operation_routes().split_for_parts();
    let observer = Observer::new(Arc::clone(&app.service), limits::REQUESTS_MAX);
    keys.merge(operations)
        .merge(others.with_state(()))
        .fallback(observe::unknown_route)
        .method_not_allowed_fallback(observe::method_not_allowed)
        .layer(from_fn_with_state(observer, observe::observe))
        .with_state(Served { app, bodies: Bodies::new(limits::BODIES_BYTES_MAX) })
}

/// What clients use.
fn key_routes() -> OpenApiRouter<Served> {
    OpenApiRouter::with_openapi(openapi::head())
        .routes(routes!(update::update, read::read))
        .routes(routes!(read::read_group))
        .routes(routes!(batch::batch).layer(RequestDecompressionLayer::new()))
        .routes(routes!(batch::query))
        .routes(routes!(merge::merge))
        .routes(routes!(inspect::shards))
        .routes(routes!(inspect::fold))
        .routes(routes!(inspect::kinds))
}

/// What probes and operators use.
fn operation_routes() -> OpenApiRouter<Served> {
    OpenApiRouter::default()
        .routes(routes!(operations::livez))
        .routes(routes!(operations::readyz))
        .routes(routes!(operations::metrics))
        .routes(routes!(operations::version))
        .routes(routes!(operations::openapi_json))
        .routes(routes!(operations::problems))
        .routes(routes!(operations::problem))
}
