//! Logs and traces. Logs are text on a terminal and JSON otherwise; `RUST_LOG` selects what is logged. Traces
//! are spans of requests, sent by OTLP over HTTP to the collector that OpenTelemetry's standard variables
//! name, such as `OTEL_EXPORTER_OTLP_ENDPOINT`. Without these variables there are no traces.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use reqwest::blocking::Client;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

/// The Cassandra driver is off: it repeats our own errors once per connection.
const DEFAULT_FILTER: &str = "info,scylla=off";

/// Target of the spans of requests. They exist only for a collector.
pub(crate) const REQUESTS: &str = "orderfree::request";

/// Variables that can name a trace collector.
const TRACE_COLLECTORS: [&str; 2] =
    ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

static HAS_COLLECTOR: AtomicBool = AtomicBool::new(false);

/// Sends spans to the collector, if there is one.
#[must_use]
pub struct Telemetry(Option<SdkTracerProvider>);

/// Whether a collector takes spans.
#[must_use]
pub fn has_collector() -> bool {
    HAS_COLLECTOR.load(Ordering::Relaxed)
}

/// Starts logging to standard error, and tracing if it is configured.
pub fn start() -> Telemetry {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| DEFAULT_FILTER.into());
    let no_spans =
        Targets::new().with_target(REQUESTS, LevelFilter::OFF).with_default(LevelFilter::TRACE);
    let logs = fmt::layer().with_writer(std::io::stderr);
    let logs = match std::io::stderr().is_terminal() {
        true => logs.with_target(false).boxed(),
        false => logs.json().flatten_event(true).with_current_span(false).boxed(),
    };
    let logs = logs.with_filter(filter).with_filter(no_spans);
    let collector = has_trace_collector().then(collector).transpose();
    let provider = collector.as_ref().ok().and_then(Clone::clone);
    let traces = provider.as_ref().map(|provider| {
        let spans = Targets::new().with_target(REQUESTS, LevelFilter::INFO);
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("orderfree"));
        layer.with_location(false).with_threads(false).with_filter(spans)
    });
    tracing_subscriber::registry().with(logs).with(traces).init();
    HAS_COLLECTOR.store(provider.is_some(), Ordering::Relaxed);
    if let Err(error) = collector {
        tracing::error!(%error, "the trace collector's configuration can't be used, so no spans are sent; check the OTEL_… variables");
    }
    Telemetry(provider)
}

fn collector() -> anyhow::Result<SdkTracerProvider> {
    let exporter = SpanExporter::builder().with_http();
    // Without TLS, the system's certificate authorities are not needed and can be missing. A blocking client
    // can't be built inside a runtime, so it is built on its own thread.
    let exporter = match is_trace_collector_plain() {
        false => exporter,
        true => {
            let client = || Client::builder().tls_certs_only([]).build();
            let client = thread::spawn(client).join();
            exporter.with_http_client(client.expect("invariant: making a client does not panic")?)
        }
    };
    let exporter = exporter.build()?;
    // `Resource` reads OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES.
    let mut resource = Resource::builder();
    if !has_service_name() {
        resource = resource.with_service_name("orderfree");
    }
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource.build())
        .build())
}

impl Telemetry {
    /// Sends the remaining spans, within this time: an unreachable collector must not keep the process alive.
    pub fn end(self, within: Duration) {
        if let Some(provider) = self.0 {
            let _ = provider.shutdown_with_timeout(within);
        }
    }
}

/// Whether the environment names a trace collector.
fn has_trace_collector() -> bool {
    TRACE_COLLECTORS.into_iter().any(is_set)
}

/// Whether the trace collector's address is without TLS.
fn is_trace_collector_plain() -> bool {
    let named = TRACE_COLLECTORS.into_iter().find_map(|name| std::env::var(name).ok());
    named.is_some_and(|address| address.starts_with("http://"))
}

/// Whether the environment names this service.
fn has_service_name() -> bool {
    is_set("OTEL_SERVICE_NAME")
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}
