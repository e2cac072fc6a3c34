//! Logs: one line an event to standard error, `RUST_LOG` chooses which (default `info`).
//!
//! The client library's own errors are off by default: the source tells of them, once.
//!
//! Nothing is logged per packet anywhere; what happens to packets is counted.

use std::io::IsTerminal;

use tidegate_model::diagnostic::{Diagnostic, Severity};
use tracing_subscriber::EnvFilter;

/// Sends the process's events to standard error. Once in a process; again is without effect.
pub(super) fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,kube_client=off"));
    let colours = std::io::stderr().is_terminal();
    // Fails only if somebody has set another subscriber, whose business logs then are.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_target(false)
        .with_writer(std::io::stderr)
        .try_init();
}

/// Logs a fault in the words of `check`.
pub(super) fn diagnostic(diagnostic: &Diagnostic) {
    match diagnostic.severity {
        Severity::Error => tracing::error!("{diagnostic}"),
        Severity::Warning => tracing::warn!("{diagnostic}"),
    }
}
