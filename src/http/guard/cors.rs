//! Tells browsers which pages of other origins may read an answer (CORS, in the Fetch standard). The policy
//! says which. Operators' routes have none.
//!
//! No answer allows credentials, that is cookies and the like: tokens come in a header, which the page has to
//! set itself.

use axum::RequestExt;
use axum::extract::{RawPathParams, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use futures::FutureExt;

use crate::policy::Policies;

/// What the answer to a preflight allows. The headers are those that clients' routes read.
const PREFLIGHT: [(HeaderName, HeaderValue); 3] = [
    (header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("DELETE, GET, HEAD, POST")),
    (
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static(
            "authorization, content-encoding, content-type, idempotency-key, idempotency-time, \
             idempotency-window, if-none-match, last-event-id, prefer, traceparent, x-request-id",
        ),
    ),
    // Browsers keep it for two hours at most.
    (header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200")),
];

/// The headers of any other answer that a page may read, in addition to those that it always may.
const EXPOSED: HeaderValue =
    HeaderValue::from_static("etag, link, location, retry-after, x-request-id");

/// What to tell the browser about the answer to a request.
pub(crate) struct Cors {
    /// The origin of the page, or `*`, if it may read the answer.
    origin: Option<HeaderValue>,
    is_preflight: bool,
}

impl Cors {
    /// `None`: the answer is the same for any origin.
    pub(crate) fn of(policies: &Policies, request: &mut Request) -> Option<Cors> {
        let origin = request.headers().get(header::ORIGIN).cloned();
        // Answers to reads can be cached, and must not be taken for those to another origin.
        let can_be_cached = matches!(*request.method(), Method::GET | Method::HEAD);
        if (origin.is_none() && !can_be_cached) || !policies.has_origins() {
            return None;
        }
        let allowed = origin.as_ref().and_then(|origin| {
            let path = request.extract_parts::<RawPathParams>().now_or_never()?.ok();
            let mut parts = path.iter().flatten();
            let group = parts.find(|(name, _)| *name == "group").map(|(_, group)| group);
            let allowed = policies.allowed_origin(origin.to_str().ok()?, group)?;
            HeaderValue::from_str(allowed).ok()
        });
        let asks = request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        let is_preflight = allowed.is_some() && asks && request.method() == Method::OPTIONS;
        Some(Cors { origin: allowed, is_preflight })
    }

    /// Whether this is the question of a browser before a request. No handler answers it, and it has no token.
    pub(crate) fn is_preflight(&self) -> bool {
        self.is_preflight
    }

    pub(crate) fn write(self, headers: &mut HeaderMap) {
        headers.append(header::VARY, HeaderValue::from_static("origin"));
        let Some(origin) = self.origin else { return };
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        if self.is_preflight {
            headers.extend(PREFLIGHT);
        } else {
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
    }
}
