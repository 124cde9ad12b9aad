//! Logs: for people on a terminal, JSON otherwise; `RUST_LOG` chooses what is logged. Traces: spans of
//! requests by OTLP over HTTP, to where the standard variables of OpenTelemetry say, such as
//! `OTEL_EXPORTER_OTLP_ENDPOINT`; none without them.

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

use crate::config;

/// The driver repeats what our own errors say, once per connection.
const DEFAULT_FILTER: &str = "info,scylla=off";

/// What spans of requests are found by. They are made for a collector alone.
pub(crate) const REQUESTS: &str = "orderfree::request";

static HAS_COLLECTOR: AtomicBool = AtomicBool::new(false);

/// What sends spans to the collector, if there is one.
#[must_use]
pub struct Telemetry(Option<SdkTracerProvider>);

/// Whether somebody takes spans.
#[must_use]
pub fn has_collector() -> bool {
    HAS_COLLECTOR.load(Ordering::Relaxed)
}

/// Starts logging to standard error, and tracing where that is configured.
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
    let collector = config::has_trace_collector().then(collector).transpose();
    let provider = collector.as_ref().ok().and_then(Clone::clone);
    let traces = provider.as_ref().map(|provider| {
        let spans = Targets::new().with_target(REQUESTS, LevelFilter::INFO);
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("orderfree"));
        layer.with_location(false).with_threads(false).with_filter(spans)
    });
    tracing_subscriber::registry().with(logs).with(traces).init();
    HAS_COLLECTOR.store(provider.is_some(), Ordering::Relaxed);
    if let Err(error) = collector {
        tracing::error!(%error, "no spans are sent: the collector's configuration can't be used");
    }
    Telemetry(provider)
}

fn collector() -> anyhow::Result<SdkTracerProvider> {
    let exporter = SpanExporter::builder().with_http();
    // Without TLS the system's authorities need not be there. A client that blocks can't be made where a
    // runtime runs, but on a thread of its own.
    let exporter = match config::is_trace_collector_plain() {
        false => exporter,
        true => {
            let client = || Client::builder().tls_certs_only([]).build();
            let client = thread::spawn(client).join();
            exporter.with_http_client(client.expect("invariant: making a client does not panic")?)
        }
    };
    let exporter = exporter.build()?;
    // OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say more.
    let mut resource = Resource::builder();
    if !config::has_service_name() {
        resource = resource.with_service_name("orderfree");
    }
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource.build())
        .build())
}

impl Telemetry {
    /// Sends what is left, for so long at most: a collector that is away must not keep the process.
    pub fn end(self, within: Duration) {
        if let Some(provider) = self.0 {
            let _ = provider.shutdown_with_timeout(within);
        }
    }
}
