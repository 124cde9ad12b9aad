//! Logs: for people on a terminal, JSON otherwise. `RUST_LOG` chooses what is logged.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

/// The driver repeats what our own errors say, once per connection.
const DEFAULT_FILTER: &str = "info,scylla=off";

/// Starts logging to standard error.
pub fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| DEFAULT_FILTER.into());
    let logs = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        logs.with_target(false).init();
    } else {
        logs.json().flatten_event(true).with_current_span(false).init();
    }
}
