//! The answers of a pod whose store is still being opened: the pod is alive, and it reports its progress.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, header};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::http::api::operations;
use crate::http::catalog::ProblemType;
use crate::http::observe;
use crate::http::problem::{self, Problem};
use crate::net::linger::LeavesUnread;
use crate::store::embedded::Progress;

/// Answers `/livez` and refuses all other requests.
pub fn starting(progress: Arc<Progress>) -> Router {
    Router::new().route("/livez", get(operations::livez)).fallback(async move |request: Request| {
        let id = observe::request_id(request.headers());
        let detail = format!("started: verifying the store's file, {progress}.");
        let problem = Problem::new(ProblemType::NotReady, detail).into_response();
        let id = id.to_str().expect("invariant: printable ASCII");
        let is_update = request.method() == Method::POST;
        let (mut response, _) = problem::render(problem, id, is_update);
        // The next request must reach the pod after its start, and the rest of this request is never read.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        response.extensions_mut().insert(LeavesUnread);
        response
    })
}
