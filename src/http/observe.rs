//! The layer around every request: it gives the request an id, checks its address, enforces a limit,
//! writes one log line, counts metrics and renders problems.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::{FutureExt, future};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use orderfree_core::protocol::Timestamp;
use tracing::Instrument;

use crate::engine::metrics::{DeniedLabel, Metrics, RequestLabel};
use crate::http::body::extract;
use crate::http::catalog::ProblemType;
use crate::http::guard::access;
use crate::http::guard::cors::Cors;
use crate::http::problem::{self, Problem};
use crate::http::state::Served;
use crate::http::trace::Trace;
use crate::limits;
use crate::net::linger::LeavesUnread;
use crate::policy::{self, Caller, Verb};
use crate::runtime::panics;
use crate::runtime::random;
use crate::runtime::tasks::{Task, TaskLabel, panic_point};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// The prefix of client routes.
const CLIENTS: &str = "/v1/";

/// The prefix of pictures that count. They need no token.
const PICTURES: &str = "/hit/";

const METRICS: &str = "/metrics";

/// The log target of audit lines about operators' requests.
pub(crate) const AUDIT: &str = "orderfree::audit";

/// Longest request id that the pod accepts from a client, in bytes.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// The state of the layer.
pub(crate) struct Observer {
    served: Served,
    limit: Limit,
    /// Whether users can reach operators' routes at this address. If so, these routes need a token too.
    is_shared: bool,
    /// Limits the log lines that clients can cause at will.
    lines: DefaultDirectRateLimiter,
}

impl Observer {
    pub(crate) fn new(served: &Served, is_shared: bool) -> Observer {
        Observer {
            served: served.clone(),
            limit: Limit::new(served.app.requests_max),
            is_shared,
            lines: RateLimiter::direct(Quota::per_second(limits::LOG_LINES_A_SECOND)),
        }
    }

    /// Passes a request on, unless its address is malformed or its caller is unknown. Requests to operators'
    /// routes are logged: all of known callers, and up to a rate those of unknown callers.
    async fn pass(
        &self,
        (method, route): (&'static str, &str),
        now: Timestamp,
        request_id: &HeaderValue,
        trace_id: Option<&str>,
        request: Request,
        next: Next,
    ) -> Result<Response, Problem> {
        extract::check_address(request.uri())?;
        extract::check_host(request.version(), request.headers())?;
        let caller = self.caller(route, request.headers(), now);
        let mut audit = (is_audited(request.method(), route) && (caller.is_ok() || self.may_log()))
            .then(|| Audit {
                caller: caller.as_ref().map_or(policy::UNAUTHENTICATED, Caller::name).to_owned(),
                method: request.method().clone(),
                uri: request.uri().clone(),
                request_id: request_id.to_str().unwrap_or_default(),
                trace_id,
                status: None,
            });
        let answer = match caller {
            Ok(caller) => self.admit((method, route), caller, request, next).await,
            Err(problem) => Err(problem),
        };
        if let Some(audit) = &mut audit {
            let status = answer.as_ref().map_or_else(Problem::status, Response::status);
            audit.status = Some(status.as_u16());
        }
        answer
    }

    /// Passes on a known caller's request, unless it exceeds the caller's rate or the limit on requests.
    async fn admit(
        &self,
        (method, route): (&'static str, &str),
        caller: Caller,
        mut request: Request,
        next: Next,
    ) -> Result<Response, Problem> {
        let _permit = self.limit.permit(route)?;
        caller.pass_or_refuse(1)?;
        request.extensions_mut().insert(caller);
        let may_be_shed = route.starts_with(CLIENTS) && is_read(method, route);
        if !may_be_shed {
            return Ok(next.run(request).await);
        }
        // The outcome of a change must always be reported, so only reads can be shed.
        let accepted = request.headers().get(header::ACCEPT_ENCODING).cloned();
        let answer = next.run(request).await;
        Ok(self.served.answers.hold(answer, accepted).await)
    }

    /// Whether one more such line may be written: the log must not cause an overload.
    fn may_log(&self) -> bool {
        self.lines.check().is_ok()
    }

    /// Authenticates the caller of a route. Probes and descriptions need no token.
    fn caller(&self, route: &str, headers: &HeaderMap, now: Timestamp) -> Result<Caller, Problem> {
        let is_metrics = route == METRICS && self.is_shared;
        if !route.starts_with(CLIENTS) && !is_metrics {
            return Ok(Caller::anonymous());
        }
        let caller = access::caller(&self.served.app.policies, headers, now)?;
        if is_metrics {
            caller.to(Verb::Admin).somewhere()?;
        }
        Ok(caller)
    }
}

/// A request to an operators' route. It is logged on drop, so that the log also has requests whose client
/// hung up or that hit a bug.
struct Audit<'a> {
    caller: String,
    method: Method,
    uri: Uri,
    request_id: &'a str,
    trace_id: Option<&'a str>,
    /// None if there was no answer. The request may still have taken effect.
    status: Option<u16>,
}

impl Drop for Audit<'_> {
    fn drop(&mut self) {
        let Audit { caller, method, uri, request_id, trace_id, status } = self;
        tracing::info!(
            target: AUDIT,
            caller,
            %method,
            path = &*policy::without_tokens(uri.path()),
            query = &*policy::without_tokens(uri.query().unwrap_or_default()),
            status,
            request_id,
            trace_id,
            "audit"
        );
    }
}

/// Requests in progress. A counter is enough, because nothing waits for it.
struct Limit {
    requests: AtomicUsize,
    max: usize,
}

/// One request in progress.
#[derive(Debug)]
struct InProgress<'a>(&'a AtomicUsize);

impl Limit {
    fn new(max: usize) -> Limit {
        Limit { requests: AtomicUsize::new(0), max }
    }

    /// Sheds requests over the limit at once, without a queue. Probes and operators have no limit, so they
    /// get answers under any load.
    fn permit(&self, route: &str) -> Result<Option<InProgress<'_>>, Problem> {
        if !route.starts_with(CLIENTS) && !route.starts_with(PICTURES) {
            return Ok(None);
        }
        let before = self.requests.fetch_add(1, Ordering::Relaxed);
        let permit = InProgress(&self.requests);
        if before < self.max {
            return Ok(Some(permit));
        }
        drop(permit);
        let detail = format!(
            "{} requests are in progress here; send the request again in a second.",
            self.max
        );
        Err(Problem::new(ProblemType::Overloaded, detail))
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The only layer: each further layer would cost every request some allocations.
pub(crate) async fn observe(
    State(observer): State<Arc<Observer>>,
    mut request: Request,
    next: Next,
) -> Response {
    let app = &observer.served.app;
    let service = &app.service;
    let now = service.now();
    let id = request_id(request.headers());
    let method = method_label(request.method());
    let matched = request.extensions().get::<MatchedPath>();
    let route = matched.map_or("unmatched", MatchedPath::as_str).to_owned();
    let may_leave_much = has_large_body(request.headers());
    let trace = Trace::of(request.headers(), method, &route);
    let cors = Cors::of(&app.policies, &mut request).filter(|_| is_for_clients(&route));
    let pass = observer.pass((method, &route), now.wall, &id, trace.id.as_deref(), request, next);
    // A panic is a bug, but it gets an answer like any other error.
    let pass = future::lazy(|_| panic_point(Task::Request)).then(move |()| pass);
    let answer = AssertUnwindSafe(pass.instrument(trace.span.clone())).catch_unwind();
    let panicked = |panic| panicked(panic, service.metrics());
    let response = match &cors {
        Some(cors) if cors.is_preflight() => {
            drop(answer);
            StatusCode::NO_CONTENT.into_response()
        }
        _ => answer.await.map_or_else(panicked, IntoResponse::into_response),
    };
    let request_id = id.to_str().expect("invariant: printable ASCII");
    let (mut response, problem) = problem::render(response, request_id, is_update(method, &route));
    let took = service.now().boot.saturating_sub(now.boot);
    let ms = took.as_secs_f64() * 1e3;
    let timing = HeaderValue::try_from(format!("total;dur={ms:.3}"));
    let timing = timing.expect("invariant: printable ASCII");
    let status = response.status().as_u16();
    trace.ended(status);
    let trace_id = trace.id.as_deref();
    // At tens of thousands of answers a second, a line for each would cost more than the answers.
    if status >= 500 && observer.may_log() {
        tracing::warn!(method, route, status, ms, request_id, trace_id, "request");
    } else {
        tracing::debug!(method, route, status, ms, request_id, trace_id, "request");
    }
    // If the body was not fully read, the connection is closed. The answer announces that, because the next
    // request on the connection would get no answer.
    let ends_early = may_leave_much && (status >= 400 || method != "POST");
    if ends_early {
        response.extensions_mut().insert(LeavesUnread);
    }
    if ends_early || app.health.is_draining() {
        // After this announcement, a client never sends on a connection that is being closed, where it could
        // not learn the outcome of an update.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(cors) = cors {
        cors.write(response.headers_mut());
    }
    response.headers_mut().insert(REQUEST_ID, id);
    response.headers_mut().insert(SERVER_TIMING, timing);
    let metrics = service.metrics();
    if let Some(kind) = problem {
        count_denied(metrics, kind);
    }
    metrics.request_seconds.observe(took.as_secs_f64());
    let label = RequestLabel { route, method, status };
    metrics.requests.get_or_create(&label).inc();
    response
}

/// Whether a body can be longer than the part that is read ahead.
fn has_large_body(headers: &HeaderMap) -> bool {
    const AHEAD_BYTES: u64 = 8 * 1024;
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    match length.and_then(|length| length.parse::<u64>().ok()) {
        Some(length) => length > AHEAD_BYTES,
        None => headers.contains_key(header::TRANSFER_ENCODING),
    }
}

/// Counts a request or an update that was denied to its caller.
pub(crate) fn count_denied(metrics: &Metrics, problem: ProblemType) {
    let reason = match problem {
        ProblemType::Unauthenticated => "unauthenticated",
        ProblemType::Forbidden => "forbidden",
        ProblemType::TooFast => "rate",
        ProblemType::OverQuota => "quota",
        _ => return,
    };
    metrics.denied.get_or_create(&DeniedLabel { reason }).inc();
}

/// Whether a request is logged: it is for operators, or clears keys.
fn is_audited(method: &Method, route: &str) -> bool {
    is_for_operators(route) || method == Method::DELETE || route.ends_with("/reset")
}

/// Whether a route is for operators: it shows or changes rows of the store.
fn is_for_operators(route: &str) -> bool {
    const ADMIN: [&str; 3] = ["/shards", "/fold", "/discard"];
    route == "/v1/{kind}" || ADMIN.iter().any(|end| route.ends_with(end))
}

/// Whether a route is for clients and not for operators.
fn is_for_clients(route: &str) -> bool {
    route.starts_with(CLIENTS) && !is_for_operators(route)
}

/// The client's id if it is fit for a header, a log and a problem, otherwise a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_fit = |id: &&HeaderValue| {
        let is_printable = id.as_bytes().iter().all(u8::is_ascii_graphic);
        (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && is_printable
    };
    match headers.get(REQUEST_ID).filter(is_fit) {
        Some(given) => given.clone(),
        None => {
            let id = random::request_id().to_string();
            HeaderValue::try_from(id).expect("invariant: printable ASCII")
        }
    }
}

/// Clients can invent methods. A metric's label must not follow them.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "OTHER",
    }
}

/// Whether a request changes nothing.
fn is_read(method: &str, route: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS")
        || matches!(route, "/v1/query" | "/v1/merge" | "/v1/watch")
}

/// Whether a request is an update, so that its problem must have an outcome.
fn is_update(method: &str, route: &str) -> bool {
    !is_read(method, route) && !is_for_operators(route)
}

fn panicked(panic: Box<dyn Any + Send>, metrics: &Metrics) -> Response {
    let label = TaskLabel { task: Task::Request.name() };
    metrics.panics.get_or_create(&label).inc();
    tracing::error!(panic = panics::text(&*panic), "a request hit a bug");
    let detail = "The server met an impossible state; see its log for this request's id.";
    Problem::new(ProblemType::Internal, detail).into_response()
}

/// The answer to paths without a route. An empty part is not left out: it can be a name that the client did
/// not fill in, and a gateway that checks paths would have read another one.
pub(crate) async fn unknown_route(uri: Uri) -> Problem {
    let path = uri.path();
    let detail = if path.contains("//") {
        "The path has two slashes in a row, so a part of it is empty. Leave one of them out or, if a group \
         or a name belongs there, give it at least one byte."
    } else if path.len() > 1 && path.ends_with('/') {
        "The path ends with a slash, so its last part is empty. Leave the slash out or, if a group or a name \
         belongs there, give it at least one byte."
    } else {
        "No endpoint has this path. Keys live at /v1/{kind}/{group}/{name}, with a / \
         inside a name as %2F; GET /openapi.json lists every endpoint. If operators have \
         a separate address, some endpoints are only there and the others only here."
    };
    Problem::new(ProblemType::UnknownRoute, detail)
}

/// The answer to routes without this method. The router adds the `Allow` header.
pub(crate) async fn method_not_allowed(method: Method) -> Problem {
    let detail = match method {
        Method::PUT | Method::PATCH => {
            "Use one of the methods in the Allow header. A key can't be set, only updated: POST an op, such as {\"op\":\"add\",\"by\":5}."
        }
        _ => "Use one of the methods in the Allow header.",
    };
    Problem::new(ProblemType::MethodNotAllowed, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn only_fit_request_ids_are_taken_over() {
        let id = |bytes: &[u8]| {
            let value = HeaderValue::from_bytes(bytes).expect("header");
            request_id(&HeaderMap::from_iter([(REQUEST_ID, value)]))
        };
        assert_eq!(id(b"req-1:/a"), "req-1:/a");
        for bad in [&b""[..], b"a b", b"\xff", "ä".as_bytes(), &[b'x'; 129]] {
            let id = id(bad);
            assert!(Uuid::parse_str(id.to_str().expect("text")).is_ok(), "{bad:?}");
        }
    }

    #[test]
    fn updates_are_told_from_reads() {
        assert!(is_update("POST", "/v1/{kind}/{group}/{name}"));
        assert!(is_update("DELETE", "/v1/{kind}/{group}/{name}"));
        assert!(is_update("POST", "unmatched"));
        assert!(!is_update("GET", "/v1/{kind}/{group}/{name}"));
        assert!(!is_update("POST", "/v1/query"));
        assert!(!is_update("POST", "/v1/merge"));
        assert!(!is_update("POST", "/v1/{kind}/{group}/{name}/fold"));
    }

    #[test]
    fn requests_over_the_limit_are_shed_except_those_of_operators() {
        let limit = Limit::new(1);
        let first = limit.permit("/v1/batch").expect("room");
        let problem = limit.permit("/v1/query").expect_err("no room");
        let (response, _) = problem::render(problem.into_response(), "id", true);
        assert_eq!(response.status().as_u16(), 503);
        assert!(response.headers().contains_key("retry-after"));
        assert!(limit.permit("/livez").is_ok() && limit.permit("unmatched").is_ok());
        drop(first);
        assert!(limit.permit("/v1/query").is_ok());
    }
}
