//! The answers of a pod whose store is still being opened: it is alive, and it says what it is doing.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, header};
use axum::response::IntoResponse;
use axum::routing::get;

use super::catalog::ProblemType;
use super::problem::{self, Problem};
use super::{observe, operations};
use crate::linger::LeavesUnread;
use crate::store::embedded::Progress;

/// Answers probes, and refuses everything else.
pub fn starting(progress: Arc<Progress>) -> Router {
    Router::new().route("/livez", get(operations::livez)).fallback(async move |request: Request| {
        let id = observe::request_id(request.headers());
        let detail = format!("started: verifying the store's file, {progress}.");
        let problem = Problem::new(ProblemType::NotReady, detail).into_response();
        let id = id.to_str().expect("invariant: printable ASCII");
        let is_update = request.method() == Method::POST;
        let (mut response, _) = problem::render(problem, id, is_update);
        // The next request is for the pod that has started, and nobody reads the rest of this one.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        response.extensions_mut().insert(LeavesUnread);
        response
    })
}
