//! HTTP: the only module that knows status codes. From the bottom up:
//!
//! * `problem`, `catalog`: errors as `application/problem+json`, and all problem types;
//! * `guard`: authentication and permissions, the limits that large requests wait for, lists that streams share, and
//!   which pages may read an answer;
//! * `body`: turns bytes into checked values, and values into answers;
//! * `state`: what the handlers share; `observe`, `trace`: the layer around every request;
//! * `api`: the handlers;
//! * `openapi`: the OpenAPI document, built from the routes that serve.

mod api;
mod body;
mod catalog;
mod guard;
mod observe;
mod openapi;
mod problem;
mod state;
mod time;
mod trace;

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use api::{
    batch, ids, inspect, merge, operations, page, picture, read, repair, reset, update, watch,
};
use observe::Observer;
use state::Served;

pub use api::starting::starting;
pub use body::ids::id_time;
pub use catalog::{Entry, ProblemType};
pub use openapi::openapi;
pub use problem::Problem;
pub use state::{AppState, Build};

/// All routes of this pod.
pub fn router(app: AppState) -> Router {
    router_with(app, Router::new())
}

/// All routes of this pod and `others`, which get the same ids, log lines and metrics.
pub fn router_with(app: AppState, others: Router) -> Router {
    let page = page_routes(app.has_page);
    let routes = user_routes().merge(admin_routes()).merge(probe_routes()).merge(operator_routes());
    serve(Served::new(app), routes.merge(page), others, true)
}

/// The routes for users, and the routes for operators at a separate address. The live page is there, and needs the routes
/// for users at its own address.
pub fn routers_apart(app: AppState) -> (Router, Router) {
    let has_page = app.has_page;
    // Both share one limit on bodies.
    let served = Served::new(app);
    let users = user_routes().merge(probe_routes());
    let operators = admin_routes().merge(probe_routes()).merge(operator_routes());
    let operators = match has_page {
        true => operators.merge(user_routes()).merge(page_routes(true)),
        false => operators,
    };
    (
        serve(served.clone(), users, Router::new(), true),
        serve(served, operators, Router::new(), false),
    )
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

/// Every route, for the OpenAPI document.
fn all_routes() -> OpenApiRouter<Served> {
    let routes = user_routes().merge(admin_routes()).merge(probe_routes()).merge(operator_routes());
    routes.merge(page_routes(true))
}

fn page_routes(has_page: bool) -> OpenApiRouter<Served> {
    let routes = OpenApiRouter::default();
    match has_page {
        true => routes.routes(routes!(page::page)).routes(routes!(page::script)),
        false => routes,
    }
}

fn user_routes() -> OpenApiRouter<Served> {
    OpenApiRouter::with_openapi(openapi::head())
        .routes(routes!(update::update, read::read, reset::delete))
        .routes(routes!(read::read_group, reset::delete_group))
        .routes(routes!(reset::reset))
        .routes(routes!(reset::progress))
        .routes(routes!(batch::batch))
        .routes(routes!(batch::query))
        .routes(routes!(ids::ids))
        .routes(routes!(merge::merge))
        .routes(routes!(watch::watch, watch::watch_many))
        .routes(routes!(picture::badge))
        .routes(routes!(picture::hit))
        .routes(routes!(inspect::kinds))
}

/// Operators' routes for keys.
fn admin_routes() -> OpenApiRouter<Served> {
    OpenApiRouter::default()
        .routes(routes!(inspect::shards))
        .routes(routes!(inspect::fold))
        .routes(routes!(repair::discard))
        .routes(routes!(inspect::hottest))
        .routes(routes!(repair::groups))
}

/// Probes and descriptions of the interface.
fn probe_routes() -> OpenApiRouter<Served> {
    OpenApiRouter::default()
        .routes(routes!(operations::livez))
        .routes(routes!(operations::readyz))
        .routes(routes!(operations::openapi_json))
        .routes(routes!(page::docs))
        .routes(routes!(page::styles))
        .routes(routes!(operations::problems))
        .routes(routes!(operations::problem))
}

/// Operators' routes for the pod itself.
fn operator_routes() -> OpenApiRouter<Served> {
    OpenApiRouter::default()
        .routes(routes!(operations::metrics))
        .routes(routes!(operations::version))
}
