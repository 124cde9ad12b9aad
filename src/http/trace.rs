//! The trace that a request belongs to (W3C Trace Context). Its id is in the log. If a collector is
//! configured, each request is a span.

use axum::http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::runtime::telemetry::{self, REQUESTS};

pub(crate) struct Trace {
    /// Does nothing without a collector.
    pub(crate) span: Span,
    /// None if the client sent no trace and there is no collector.
    pub(crate) id: Option<String>,
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|value| value.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|key| key.as_str()).collect()
    }
}

impl Trace {
    pub(crate) fn of(headers: &HeaderMap, method: &'static str, route: &str) -> Trace {
        if !telemetry::has_collector() && !headers.contains_key("traceparent") {
            return Trace { span: Span::none(), id: None };
        }
        let parent = TraceContextPropagator::new().extract(&Headers(headers));
        if !telemetry::has_collector() {
            let context = parent.span().span_context().clone();
            let id = context.is_valid().then(|| context.trace_id().to_string());
            return Trace { span: Span::none(), id };
        }
        let span = tracing::info_span!(
            target: REQUESTS,
            "request",
            otel.name = format!("{method} {route}"),
            otel.kind = "server",
            http.request.method = method,
            http.route = route,
            http.response.status_code = tracing::field::Empty,
            otel.status_code = tracing::field::Empty,
        );
        // On an error, the span is not recorded, which is acceptable.
        let _ = span.set_parent(parent);
        let id = span.context().span().span_context().trace_id().to_string();
        Trace { span, id: Some(id) }
    }

    /// Records the status that ended the request.
    pub(crate) fn ended(&self, status: u16) {
        self.span.record("http.response.status_code", status);
        if status >= 500 {
            self.span.record("otel.status_code", "ERROR");
        }
    }
}
