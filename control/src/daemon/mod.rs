//! The daemon behind `tidegate run`, from reading the configuration to shutdown.
//!
//! One loop ([`Gateway::run`]) waits for everything that can change the desired state: manifests, health, drains that
//! end, the operator, signals. It batches changes, and has the [`Controller`](controller::Controller) reconcile and
//! publish. [`State`](state::State) contains what other tasks read: the admin socket, metrics, health ports.
//!
//! Invariant: after any failure at run time, the last good state keeps forwarding. The process ends only on a signal,
//! if a worker or the slow path hangs for good, or if a vital thread or task has ended.

mod address_file;
mod announcements;
mod catch_up;
mod cluster;
mod command;
mod configuration;
mod controller;
mod degraded;
mod desired;
mod diff;
mod drain_watch;
mod drains;
mod drops_view;
mod fault_log;
mod flood_log;
mod flow_log;
mod flow_sharing;
mod flows;
mod found_peers;
mod gateway;
mod gateway_drain;
mod gateway_start;
mod inputs;
mod kube_proxy;
mod last_round;
mod layer2;
mod list_copies;
mod loop_watchdog;
mod low_priority;
mod metrics_page;
mod network_view;
mod node_ports;
mod observer;
mod operator;
mod pace;
mod packet_detail;
mod publications;
mod publisher;
mod readiness;
mod recent_changes;
mod refused;
mod reload;
mod round;
mod round_log;
mod self_check;
mod service_events;
mod snat_exchange;
mod snat_owners;
mod start;
mod state;
mod supervisor;
mod symptoms;
mod task_watchdog;
mod unprogrammed_backends;
mod vrrp;
mod vrrp_faults;
mod watches;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use gateway::{End, Gateway};
use list_copies::Lists;
use tidegate_dataplane::gateway::Dataplane;
use tidegate_events::Recorder;
use tidegate_model::config::{self, GatewayConfig};
use tokio::sync::watch;

/// Exit code for a configuration that is refused.
const REFUSED: u8 = 2;
/// Exit code if only files that the configuration names are refused: other programs write them, so a later start may
/// succeed.
const FILES_REFUSED: u8 = 4;
/// How long everything except the dataplane may take to end, after the grace period. The limits of its steps add up to
/// some seconds, but the kernel may not let a thread or BIRD end.
const CONTROL_ENDS: Duration = Duration::from_secs(20);

/// How long answers in progress may use the dataplane after everything else has stopped.
const ANSWERS_END: Duration = Duration::from_secs(1);
/// How long the last events may take to reach the disk when the gateway stops.
const EVENTS_FLUSH: Duration = Duration::from_millis(500);

/// Runs the gateway of the configuration at `path` until a signal ends it.
///
/// # Errors
/// If the dataplane, the source or a listener cannot be started.
pub fn run(path: &Path) -> anyhow::Result<ExitCode> {
    let began = std::time::Instant::now();
    // Programs that the daemon starts don't inherit its capabilities. The threads inherit the empty set.
    let _ = rustix::thread::clear_ambient_capability_set();
    let loaded = config::load_at_start(path);
    loaded.report.iter().for_each(crate::logging::diagnostic);
    let Some(config) = loaded.config else {
        if loaded.only_files_refused {
            supervisor::delay_retry(began);
        }
        return Ok(ExitCode::from(if loaded.only_files_refused { FILES_REFUSED } else { REFUSED }));
    };
    let ended = run_with(path, config, Lists { read: loaded.lists, copied: loaded.copied });
    if ended.is_err() {
        supervisor::delay_retry(began);
    }
    ended
}

fn run_with(path: &Path, config: GatewayConfig, lists: Lists) -> anyhow::Result<ExitCode> {
    let (failed, failures) = watch::channel(None);
    let (changed, changes) = watch::channel(());
    let dataplane = start::dataplane(&config, failed, changed)?;
    // The threads of the runtime inherit this, and so stay off the workers' cores.
    start::confine_to(dataplane.main_cpus());
    let events = start::recorder(&config);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("tg-control")
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let code = runtime.block_on(serve(path, config, lists, Arc::new(dataplane), events, failures, changes));
    // Only checks and connections may still be in progress, and nothing waits for them.
    runtime.shutdown_timeout(Duration::from_millis(200));
    code
}

async fn serve(
    path: &Path,
    config: GatewayConfig,
    lists: Lists,
    dataplane: Arc<Dataplane>,
    events: Arc<Recorder>,
    failures: watch::Receiver<Option<String>>,
    changes: watch::Receiver<()>,
) -> anyhow::Result<ExitCode> {
    let mut gateway = Gateway::start(path, config, lists, &dataplane, &events, failures, changes).await?;
    let End { code, grace, threads_end } = gateway.run().await;
    exit_if_it_hangs("the shutdown of the control plane", grace + CONTROL_ENDS);
    // From the end of this call until the next process starts, packets are lost, so nothing may delay the exit.
    gateway.shut_down(grace).await;
    stop(dataplane, threads_end).await;
    // A disk that hangs must not delay the next start; everything older is already written.
    let _ = events.flush(EVENTS_FLUSH);
    tracing::info!("stopped");
    Ok(code)
}

/// Exits the process if it has not ended in time: joining a hung thread would wait forever.
fn exit_if_it_hangs(what: &'static str, within: Duration) {
    let exit = move || {
        std::thread::sleep(within);
        tracing::error!("{what} hangs: exiting without waiting for it");
        std::process::exit(1);
    };
    if let Err(error) = std::thread::Builder::new().name("tg-exit".to_owned()).spawn(exit) {
        tracing::warn!(%error, "cannot start a watchdog: the process will not exit if {what} hangs");
    }
}

/// Ends the threads of the dataplane, which restores what it has changed on interfaces.
async fn stop(dataplane: Arc<Dataplane>, within: Duration) {
    exit_if_it_hangs("a thread of the dataplane", within);
    let Some(dataplane) = last_owner(dataplane, ANSWERS_END).await else {
        tracing::error!(
            "the dataplane is still in use: exiting without restoring interfaces; the next start does it"
        );
        return;
    };
    if let Err(error) = tokio::task::spawn_blocking(move || dataplane.stop()).await {
        tracing::error!(%error, "the dataplane did not stop cleanly");
    }
}

/// The value, once nothing else owns it; `None` if that takes longer than `within`. Other owners are answers in progress,
/// and aborted tasks that the runtime has not dropped yet.
async fn last_owner<T>(mut shared: Arc<T>, within: Duration) -> Option<T> {
    let until = tokio::time::Instant::now() + within;
    loop {
        shared = match Arc::try_unwrap(shared) {
            Ok(value) => return Some(value),
            Err(shared) => shared,
        };
        if tokio::time::Instant::now() >= until {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_dataplane_ends_when_the_last_answer_has_ended() {
        let (shared, answer) = (Arc::new(7), Arc::new(7));
        let _never_ends = Arc::clone(&answer);
        let in_progress = Arc::clone(&shared);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            drop(in_progress);
        });
        assert_eq!(last_owner(shared, ANSWERS_END).await, Some(7));
        assert_eq!(last_owner(answer, ANSWERS_END).await, None);
    }
}
