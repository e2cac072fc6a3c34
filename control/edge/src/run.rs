//! `tidegate-edge run`: the main loop.
//!
//! Everything is done by this thread, because HAProxy ends with the thread that started it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tidegate_edge::config::Config;
use tidegate_edge::edge::Edge;
use tidegate_edge::haproxy::process::Process;
use tidegate_edge::status::{Finding, Status};
use tidegate_model::config::ENDPOINT_SLICES_MIB;
use tidegate_model::diagnostic::Report;
use tidegate_source::Kinds;
use tidegate_source::directory::{Changes, DirectorySource, Watch};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{sleep, timeout};
use tracing_subscriber::EnvFilter;

use crate::input;

/// How often it is checked whether HAProxy has ended.
const END_POLL: Duration = Duration::from_millis(50);

pub(crate) fn run(path: &Path) -> Result<ExitCode, String> {
    let config = match input::load(path) {
        Ok(config) => config,
        Err(code) => return Ok(code),
    };
    // The standard output belongs to the access log.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(serve(config))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(config: Config) -> Result<(), String> {
    let directory = config.haproxy.directory.clone();
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    let mut edge = Edge::open(config.clone(), Instant::now()).map_err(failed)?;
    let signals = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    let [terminate, interrupt] = signals.map(|signal| signal.map_err(|error| format!("signals: {error}")));
    let mut stop = [terminate?, interrupt?];
    let mut hangup = signal(SignalKind::hangup()).map_err(|error| format!("signals: {error}"))?;
    let source = watch(&config).map_err(|error| format!("cannot watch the directory: {error}"))?;
    let mut updates = source.updates();
    let mut shown = Shown::default();
    let mut is_new = true;
    loop {
        let report = {
            let update = updates.borrow_and_update();
            if is_new {
                edge.set_objects(Arc::clone(&update.objects));
            }
            Arc::clone(&update.report)
        };
        let wait = edge.step(Instant::now());
        shown.show(&edge.status(Timestamp::now()), &report, &directory);
        tokio::select! {
            // The process ends with the thread, and its supervisor starts a new one. Otherwise nothing would show that
            // changes are no longer followed.
            changed = updates.changed() => {
                changed.map_err(|_| "the thread that reads the manifests has ended".to_owned())?;
                is_new = true;
            }
            () = sleep(wait) => is_new = false,
            _ = hangup.recv() => {
                source.reload();
                is_new = false;
            }
            () = either(&mut stop) => break,
        }
    }
    let Some(process) = edge.into_process() else { return Ok(()) };
    end(process, &mut stop, config.haproxy.max_drain).await;
    Ok(())
}

fn watch(config: &Config) -> std::io::Result<Watch> {
    let kinds = Kinds { tls_secrets: true, ..Kinds::default() };
    let directory = &config.source;
    DirectorySource::watch(
        &directory.path,
        Changes::Followed,
        directory.loss_grace,
        ENDPOINT_SLICES_MIB,
        kinds,
    )
}

async fn either([a, b]: &mut [Signal; 2]) {
    tokio::select! {
        _ = a.recv() => {}
        _ = b.recv() => {}
    }
}

/// Stops HAProxy. It accepts no connection any more, and ends with its last one. A second signal ends it at once.
async fn end(mut process: Process, stop: &mut [Signal; 2], max_drain: Duration) {
    tracing::info!("stopping: HAProxy finishes its connections");
    process.stop_gracefully();
    let ended = async {
        while process.ended().is_none() {
            sleep(END_POLL).await;
        }
    };
    tokio::select! {
        // HAProxy itself closes connections after this time.
        _ = timeout(max_drain + Duration::from_secs(5), ended) => {}
        () = either(stop) => {}
    }
    process.kill();
}

/// What was logged and written last, so that only changes are.
#[derive(Default)]
struct Shown {
    status: Status,
    findings: BTreeSet<Finding>,
    write_failed: bool,
}

impl Shown {
    fn show(&mut self, status: &Status, report: &Report, directory: &Path) {
        let mut status = status.clone();
        let of_files = report.iter().map(|fault| Finding {
            object: String::new(),
            reason: "Manifest".to_owned(),
            message: fault.to_string(),
        });
        status.findings.extend(of_files);
        if status == self.status && !self.write_failed {
            return;
        }
        let findings: BTreeSet<Finding> = status.findings.iter().cloned().collect();
        for finding in findings.difference(&self.findings) {
            let Finding { object, reason, message } = finding;
            tracing::warn!(object, reason, "{message}");
        }
        let written = status.write(directory);
        if let (Err(error), false) = (&written, self.write_failed) {
            tracing::warn!(%error, "cannot write the status file");
        }
        (self.status, self.findings, self.write_failed) = (status, findings, written.is_err());
    }
}
