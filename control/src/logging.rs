//! Logging to standard error: one line for each event, as text or as JSON.
//!
//! `RUST_LOG` selects the events by target and level; without it, or if it is empty, `info` and above are logged. If it
//! is invalid, or names neither a level nor a target of the gateway, the default applies, with a warning. The target of
//! an event is the module that logs it, for example `tidegate_source::kubernetes::hub`. The Kubernetes client's own
//! errors are off by default because the source reports them once.
//!
//! With [`LogFormat::Json`] every line of standard error is one JSON object. DPDK and its drivers write plain text to
//! file descriptor 2, so that descriptor becomes a pipe, and each line read from it becomes an event. [`end`] waits for
//! the last ones.
//!
//! Nothing is logged per packet: counters record what happens to packets. Logging never waits for a reader of standard
//! error, and never fails without one ([`log_sink`](crate::log_sink)). In text format, DPDK writes its own few lines
//! directly to standard error, and does wait.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, PipeReader, Write};
use std::os::fd::OwnedFd;
use std::panic::PanicHookInfo;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use clap::ValueEnum;
use jiff::Timestamp;
use tidegate_model::diagnostic::{Diagnostic, Severity};
use tidegate_model::time::whole_seconds;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::log_sink::LogSink;

/// Events that are logged when `RUST_LOG` is not set.
const DEFAULT_FILTER: &str = "info,kube_client=off";

/// The accepted values of `RUST_LOG`.
const FILTER_ACCEPTED: &str = "error, warn, info, debug, trace or off, for everything or for single targets: \
                               info,tidegate_source=debug";

/// Target of errors in the configuration and in manifests.
const DIAGNOSTICS_TARGET: &str = "tidegate::diagnostics";

/// Target of lines that DPDK or another library wrote to standard error.
const STDERR_TARGET: &str = "stderr";

/// The targets that `RUST_LOG` may name without a level: the crates of the gateway, the Kubernetes client, and the lines
/// of other libraries.
const TARGETS: [&str; 29] = [
    "dpdk",
    "kube_client",
    STDERR_TARGET,
    "tidegate",
    "tidegate_admin_api",
    "tidegate_announce",
    "tidegate_capture",
    "tidegate_cli",
    "tidegate_cluster",
    "tidegate_conntrack",
    "tidegate_dataplane",
    "tidegate_doctor",
    "tidegate_events",
    "tidegate_flow_log",
    "tidegate_health",
    "tidegate_host",
    "tidegate_http",
    "tidegate_import",
    "tidegate_model",
    "tidegate_pipeline",
    "tidegate_policy",
    "tidegate_probe",
    "tidegate_select",
    "tidegate_sharing",
    "tidegate_snapshot",
    "tidegate_source",
    "tidegate_spec",
    "tidegate_structures",
    "tidegate_wire",
];

/// How long the last lines of libraries may take to be logged.
const FORWARDING_END: Duration = Duration::from_secs(1);

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people: time, level, target, message, fields
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// Sends the events of this process to standard error. A second call has no effect.
///
/// # Errors
/// If standard error cannot be redirected for JSON.
pub(crate) fn start(format: LogFormat) -> io::Result<()> {
    let log = File::from(rustix::io::fcntl_dupfd_cloexec(io::stderr(), 3)?);
    let is_terminal = io::stderr().is_terminal();
    let note = match format {
        LogFormat::Text => lost_as_text,
        LogFormat::Json => lost_as_json,
    };
    if SINK.set(Mutex::new(LogSink::new(log, note))).is_err() {
        return Ok(());
    }
    let written = std::env::var_os(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let written = written.to_string_lossy();
    let (filter, fault) = match filter(&written) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new(DEFAULT_FILTER), Some(error)),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Log);
    match format {
        LogFormat::Text => {
            let _ = builder.with_ansi(is_terminal).try_init();
        }
        LogFormat::Json => {
            let (lines, written) = io::pipe()?;
            let _ = builder.json().with_current_span(false).with_span_list(false).try_init();
            let (running, ended) = channel::<()>();
            let stderr = rustix::io::fcntl_dupfd_cloexec(io::stderr(), 3)?;
            rustix::stdio::dup2_stderr(&written)?;
            let thread = move || {
                forward(lines);
                drop(running);
            };
            std::thread::Builder::new().name("tg-stderr".into()).spawn(thread)?;
            *redirection() = Some(Redirection { stderr, ended });
        }
    }
    // The default hook writes text to standard error, and waits for its reader.
    std::panic::set_hook(Box::new(panicked));
    if let Some(error) = fault {
        let accepted = FILTER_ACCEPTED;
        tracing::warn!(%error, accepted, "invalid RUST_LOG {written:?}; using the default: info");
    }
    Ok(())
}

/// Restores standard error, and waits until the lines in its pipe are logged: at most [`FORWARDING_END`]. Otherwise the
/// process could exit without the reason that DPDK gives for a failed start.
pub(crate) fn end() {
    let Some(Redirection { stderr, ended }) = redirection().take() else { return };
    // The pipe ends with its last writer, unless a child process has it too.
    if rustix::stdio::dup2_stderr(stderr).is_ok() {
        let _ = ended.recv_timeout(FORWARDING_END);
    }
}

/// Standard error as a pipe.
struct Redirection {
    /// The original standard error.
    stderr: OwnedFd,
    /// Closed when the thread has logged all lines of the pipe.
    ended: Receiver<()>,
}

fn redirection() -> MutexGuard<'static, Option<Redirection>> {
    static REDIRECTION: Mutex<Option<Redirection>> = Mutex::new(None);
    REDIRECTION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The filter for this value of `RUST_LOG`, or why it is invalid.
fn filter(written: &str) -> Result<EnvFilter, String> {
    // `EnvFilter` treats a blank before or after a level as a part of it, and so takes the level for a target.
    let directives: Vec<&str> =
        written.split(',').map(str::trim).filter(|directive| !directive.is_empty()).collect();
    // An empty filter would log nothing, not even why the configuration is refused.
    if directives.is_empty() {
        return Ok(EnvFilter::new(DEFAULT_FILTER));
    }
    match directives.iter().find(|directive| !is_known(directive)) {
        Some(unknown) => Err(format!("{unknown:?} is neither a level nor a target of the gateway")),
        None => EnvFilter::try_new(directives.join(",")).map_err(|error| error.to_string()),
    }
}

/// Whether a directive that is a single word is a level or one of [`TARGETS`]. `EnvFilter` reads any other word as a
/// target: a misspelt level would turn off the log of all existing targets. Other directives are not checked here.
fn is_known(directive: &str) -> bool {
    let is_word = !directive.contains(['=', '[']) && !directive.contains("::");
    !is_word || directive.parse::<LevelFilter>().is_ok() || TARGETS.contains(&directive)
}

/// The output of all events. It is set once.
static SINK: OnceLock<Mutex<LogSink>> = OnceLock::new();

/// Writes to [`SINK`].
struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        sink().map_or(Ok(line.len()), |mut sink| sink.write(line))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn sink() -> Option<MutexGuard<'static, LogSink>> {
    Some(SINK.get()?.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Prints why the command failed. If events are logged, it waits no longer than a line of the log.
pub(crate) fn last_words(text: &str) {
    let line = format!("error: {text}\n");
    // If this fails, nobody reads it.
    let _ = match sink() {
        Some(mut sink) => sink.write_all(line.as_bytes()),
        None => io::stderr().write_all(line.as_bytes()),
    };
}

/// The number of log lines that were lost because standard error was full.
pub(crate) fn lost_lines() -> u64 {
    sink().map_or(0, |sink| sink.lost_in_total())
}

/// Whether log lines are being lost, as text for display.
pub(crate) fn trouble() -> Option<String> {
    let (lines, since) = sink()?.trouble()?;
    Some(format!(
        "{lines} log lines have been lost since {}: no program reads standard error",
        whole_seconds(since)
    ))
}

/// The message of [`SINK`] when lines were lost.
const LOST: &str = "log lines were lost: no program read standard error";

fn lost_as_text(lines: u64) -> String {
    format!("{}  WARN {}: {LOST} lines={lines}\n", Timestamp::now(), module_path!())
}

fn lost_as_json(lines: u64) -> String {
    let line = serde_json::json!({
        "timestamp": Timestamp::now().to_string(),
        "level": "WARN",
        "fields": {"message": LOST, "lines": lines},
        "target": module_path!(),
    });
    format!("{line}\n")
}

/// Logs a panic, with a backtrace if `RUST_BACKTRACE` requests it.
fn panicked(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let message = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
    let location = panic.location().map(ToString::to_string);
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    let thread = std::thread::current();
    if tracing::enabled!(tracing::Level::ERROR) {
        tracing::error!(thread = thread.name(), location, backtrace, "panic: {message}");
    } else {
        // `RUST_LOG` excludes this module.
        last_words(&format!("panic: {message} at {}", location.unwrap_or_default()));
    }
}

/// Logs each line that a library writes to standard error, until the last writer closes it.
fn forward(lines: PipeReader) {
    for line in BufReader::new(lines).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        if !line.trim().is_empty() {
            tracing::warn!(target: STDERR_TARGET, "{}", line.trim_end());
        }
    }
}

/// Logs for each namespace how many of its faults were suppressed.
pub(crate) fn suppressed(namespaces: &[(String, u64)]) {
    for (namespace, suppressed) in namespaces {
        tracing::warn!(
            target: DIAGNOSTICS_TARGET,
            namespace,
            suppressed,
            "too many log lines about objects of this namespace: some were suppressed; `tidegate services` and events \
             show all faults"
        );
    }
}

/// Logs an error in the configuration or in a manifest, with its position and the accepted values as fields.
pub(crate) fn diagnostic(diagnostic: &Diagnostic) {
    let place = diagnostic.location.as_ref().map(tracing::field::display);
    let (what, accepted) = (&diagnostic.what, diagnostic.accepted.as_deref());
    match diagnostic.severity {
        Severity::Error => tracing::error!(target: DIAGNOSTICS_TARGET, place, accepted, "{what}"),
        Severity::Warning => tracing::warn!(target: DIAGNOSTICS_TARGET, place, accepted, "{what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_of_the_gateway_is_a_target() {
        let manifest = include_str!("../../Cargo.toml");
        let named = manifest.lines().filter_map(|line| line.split_once(" = { path = "));
        let crates: Vec<String> = named.map(|(name, _)| name.replace('-', "_")).collect();
        let ours: Vec<&String> = crates
            .iter()
            .filter(|name| name.starts_with("tidegate") && name.as_str() != "tidegate_netlab")
            .collect();
        assert!(ours.len() > 5, "{crates:?}");
        for name in ours {
            assert!(TARGETS.contains(&name.as_str()), "{name}");
        }
    }

    #[test]
    fn a_word_is_a_level_or_a_target_and_the_parser_checks_the_rest() {
        for known in ["info", "WARN", "off", "3", "tidegate_source", "tidegate::daemon", "hyper=debug", "[a]"]
        {
            assert!(is_known(known), "{known}");
        }
        for unknown in ["inof", "debgu", "9", "hyper", "tidegate_sorce"] {
            assert!(!is_known(unknown), "{unknown}");
        }
    }
}
