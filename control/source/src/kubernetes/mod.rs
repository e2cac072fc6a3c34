//! Reads objects from an API server: lists them, watches them, and keeps them while the API server fails.
//!
//! [`KubernetesSource::start`] watches every kind of `KINDS` on the current runtime, until it is dropped. An object
//! passes these stages: `reflect` lists and watches (`wire` sends the HTTP requests, `connect` provides the
//! credentials). `object` trims and decodes it with the same code as manifests in files. `retain` decides what to keep
//! when an API server returns after a loss (`history` distinguishes that from an expired watch). `health_probe` detects
//! when the API server stops responding, and `definition` when it deletes the definition of AddressPool. `hub` merges
//! the kinds and publishes updates. `disk` saves the last objects (`save` decides when).
//!
//! Whatever the API server does, the last known objects stay; [`KubernetesSource::state`] shows since when.
//!
//! Invariant: nothing is published before every kind was listed, or loaded from disk. Dropping the source ends it
//! immediately, without waiting for requests.

mod connect;
mod definition;
mod disk;
mod error_text;
mod first_end;
mod health_probe;
mod history;
mod hub;
mod kinds;
mod object;
mod reflect;
mod retain;
mod save;
mod slice_budget;
mod tuning;
mod wire;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tidegate_model::config::{GatewayApi, KubernetesConfig};
use tidegate_model::diagnostic::{Diagnostic, Report};
use tidegate_model::objects::Objects;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::{SourceState, SourceUpdate};
use crate::slices::{self, SliceBudget};
use disk::{Disk, Saved};
use first_end::first_end;
use health_probe::HealthProbe;
use history::Epoch;
use hub::Hub;
use kinds::{KINDS, Kind, KindIndex, SERVICE, SLICE, kind_for};
use reflect::{Event, Reflector, Shared};
use slice_budget::Slices;
use tuning::Tuning;

pub use connect::{ConnectError, Connection, Connector};
pub use error_text::causes;

/// The maximum number of events in the queue to the hub.
const EVENTS_MAX: usize = 1024;
/// How long the hub waits to identify the API server that the objects on disk belong to.
const IDENTIFY_MAX: Duration = Duration::from_secs(2);
/// The maximum time for which [`load`] waits for the API server.
const LOAD_MAX: Duration = Duration::from_secs(20);

/// A watched API server. Dropping it ends the watches.
#[derive(Debug)]
pub struct KubernetesSource {
    updates: watch::Receiver<SourceUpdate>,
    state: watch::Receiver<SourceState>,
    connector: Arc<Connector>,
    retry_now: Arc<Notify>,
    refresh: Arc<Notify>,
    saves: mpsc::Sender<oneshot::Sender<()>>,
    task: AbortHandle,
}

impl KubernetesSource {
    /// Starts to watch, on the runtime of the caller. `gateway` determines the name of the file with the last objects.
    ///
    /// # Panics
    /// Outside of a Tokio runtime with time and I/O.
    #[must_use]
    pub fn start(config: &KubernetesConfig, gateway: &str) -> Self {
        Self::start_with(config, gateway, Tuning::default())
    }

    fn start_with(config: &KubernetesConfig, gateway: &str, tuning: Tuning) -> Self {
        let (updates, updated) = watch::channel(SourceUpdate::nothing());
        let (states, state) = watch::channel(SourceState::unconnected_since(Timestamp::now()));
        let connector = Arc::new(Connector::new(config.kubeconfig.clone()));
        let retry_now = Arc::new(Notify::new());
        let refresh = Arc::new(Notify::new());
        let disk = config.state_directory.as_deref().map(|directory| Disk::new(directory, gateway));
        let (saves, to_save) = mpsc::channel(1);
        let slices = Slices::new(config.endpoint_slices_mib);
        let (events, received) = mpsc::channel(EVENTS_MAX);
        let (health_probe, probing) = HealthProbe::new(connector.clone(), tuning.health_probe);
        let definitions = definition::watch(connector.clone(), tuning, updated.clone(), events.clone());
        let mut tasks: Vec<Task> = vec![Box::pin(probing), Box::pin(definitions)];
        let refit = slices.refit.clone();
        let shared = Shared {
            connector: connector.clone(),
            tuning,
            events,
            retry_now: retry_now.clone(),
            health_probe,
            budget: slices.budget.clone(),
            epoch: Epoch::new(),
        };
        let mut hub = Hub::new(
            config.api_loss_grace,
            config.gateway_api,
            tuning,
            connector.clone(),
            disk.clone(),
            slices,
            updates,
            states,
            to_save,
        );
        for index in 0..KINDS.len() {
            let kind = kind_for(index, config.gateway_api);
            if !is_watched(config, kind) {
                hub.leave_out(index);
                continue;
            }
            let refresh = match index {
                SERVICE => refresh.clone(),
                SLICE => refit.clone(),
                _ => Arc::default(),
            };
            tasks.push(Box::pin(Reflector::new(index, kind, shared.clone(), refresh).run()));
        }
        let task = tokio::spawn(run(hub, received, disk, connector.clone(), tasks)).abort_handle();
        Self { updates: updated, state, connector, retry_now, refresh, saves, task }
    }

    /// A receiver of the newest state. `changed().await` waits for the next one. The revision is 0 until there is a
    /// first state.
    #[must_use]
    pub fn updates(&self) -> watch::Receiver<SourceUpdate> {
        self.updates.clone()
    }

    /// A receiver of the source's state.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<SourceState> {
        self.state.clone()
    }

    /// The connector for this API server, for code that writes to it.
    #[must_use]
    pub fn connector(&self) -> Arc<Connector> {
        self.connector.clone()
    }

    /// Notify it to trigger another list of the Services. It is for a caller that must know that all changes so far
    /// were received, and can't wait for a bookmark of the watch.
    #[must_use]
    pub fn refresh(&self) -> Arc<Notify> {
        self.refresh.clone()
    }

    /// Ends pauses between attempts (SIGHUP), so that the next attempt starts immediately.
    pub fn reload(&self) {
        self.retry_now.notify_waiters();
    }

    /// Saves the current objects to disk. Call it before shutdown, and wait with a limit.
    pub async fn save(&self) {
        let (done, saved) = oneshot::channel();
        if self.saves.send(done).await.is_ok() {
            // An error means that there was nothing to do.
            let _ = saved.await;
        }
    }
}

impl Drop for KubernetesSource {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether the configuration requires objects of the kind.
fn is_watched(config: &KubernetesConfig, kind: &Kind) -> bool {
    match kind {
        Kind { name: "Pod", .. } => config.pod_weights,
        Kind { is_gateway_api: true, .. } => config.gateway_api.is_read(),
        _ => true,
    }
}

/// A task beside the hub.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

async fn run(
    mut hub: Hub,
    events: mpsc::Receiver<(KindIndex, Event)>,
    disk: Option<Disk>,
    connector: Arc<Connector>,
    tasks: Vec<Task>,
) {
    if let Some(disk) = disk {
        let server = timeout(IDENTIFY_MAX, connector.connection()).await;
        let server = server.ok().and_then(Result::ok).map(|connection| connection.server);
        let (path, read) = (disk.path().to_owned(), tokio::task::spawn_blocking(move || disk.read()));
        match read.await.unwrap_or_else(|panic| Err(panic.to_string())) {
            Ok(Some(saved)) if server.as_ref().is_none_or(|server| *server == saved.server) => {
                hub.load(saved);
            }
            Ok(Some(saved)) => {
                tracing::warn!(
                    path = %path.display(),
                    server = saved.server,
                    "ignoring the saved objects because they are from another API server"
                );
            }
            Ok(None) => {}
            Err(why) => {
                tracing::warn!(path = %path.display(), error = why, "cannot use the saved objects");
                hub.load_failed();
            }
        }
    }
    // The tasks end with this task, even while they wait.
    let mut running = JoinSet::new();
    tasks.into_iter().for_each(|task| drop(running.spawn(task)));
    // If one of them ended, the objects of a kind would silently stay outdated. Ending the hub lets the receivers of
    // its updates notice.
    if let Some(why) = first_end(hub.run(events), &mut running).await {
        tracing::error!(reason = why, "a task that reads objects from the API server ended");
    }
}

/// The location of the API server for display: the kubeconfig, as far as it is configured.
#[must_use]
pub fn location(config: &KubernetesConfig) -> String {
    match &config.kubeconfig {
        Some(path) => path.display().to_string(),
        None => "(default kubeconfig or service account)".to_owned(),
    }
}

/// What [`load`] needs.
const REACHABLE: &str = "an API server that responds, and a valid kubeconfig for it";

/// Reads all objects once, for `check`, `replay` and `explain`: from the API server, or from disk if it can't be
/// reached. Faults are in the report, which has an error if there are no objects.
#[must_use]
pub fn load(config: &KubernetesConfig, gateway: &str) -> (Objects, Report) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return (Objects::default(), fault(Diagnostic::error(error.to_string()))),
    };
    let read = runtime.block_on(read_once(config, Tuning::default()));
    // Don't wait for a plugin that hangs.
    runtime.shutdown_background();
    let why = match read {
        Ok(read) => return read,
        Err(why) => why,
    };
    let disk = config.state_directory.as_deref().map(|directory| Disk::new(directory, gateway));
    match disk.as_ref().map(Disk::read) {
        Some(Ok(Some(saved))) => {
            let when = Timestamp::try_from(saved.confirmed).map(|t| t.strftime("%FT%TZ").to_string());
            let what = format!(
                "source.kubernetes: {why}; using the objects that were saved to disk at {}",
                when.as_deref().unwrap_or("an unknown time")
            );
            let (mut objects, mut report) = of_disk(saved);
            slices::leave_out(&mut objects, config.endpoint_slices_mib, &mut report);
            report.push(Diagnostic::warning(what).accepting(REACHABLE));
            (objects, report)
        }
        Some(Err(unread)) => {
            let what =
                format!("source.kubernetes: {why}; the objects saved to disk cannot be used: {unread}");
            (Objects::default(), fault(Diagnostic::error(what).accepting(REACHABLE)))
        }
        None | Some(Ok(None)) => {
            let what = format!("source.kubernetes: {why}");
            (Objects::default(), fault(Diagnostic::error(what).accepting(REACHABLE)))
        }
    }
}

async fn read_once(config: &KubernetesConfig, tuning: Tuning) -> Result<(Objects, Report), String> {
    let limit = || format!("the API server has not responded within {} s", LOAD_MAX.as_secs());
    let until = tokio::time::Instant::now() + LOAD_MAX;
    let connector = Connector::new(config.kubeconfig.clone());
    let connection = tokio::time::timeout_at(until, connector.connection()).await.map_err(|_| limit())?;
    let connection = connection.map_err(|e| e.to_string())?;
    let requests = wire::Requests { connection: &connection, wait: tuning.response };
    let (mut objects, mut report) = (Objects::default(), Report::new());
    objects.api_servers.clone_from(&connector.addresses());
    let kinds = (0..KINDS.len()).map(|index| kind_for(index, config.gateway_api));
    for kind in kinds.filter(|kind| is_watched(config, kind)) {
        let budget = (kind.name == KINDS[SLICE].name).then(|| SliceBudget::new(config.endpoint_slices_mib));
        let listed = reflect::list_all(requests, kind, budget);
        let received = match tokio::time::timeout_at(until, listed).await.map_err(|_| limit())? {
            Ok((received, _)) => received,
            Err(fault) if requests.is_absence(&fault, kind).await => {
                if kind.is_gateway_api && config.gateway_api == GatewayApi::Required {
                    report.push(hub::missing_definition(kind.name));
                }
                Vec::new()
            }
            Err(fault) if kind.optional && fault.is_forbidden() => {
                let what = format!("source.kubernetes: {} objects are not read: {fault}", kind.name);
                report.push(Diagnostic::warning(what).accepting("the RBAC rules in deploy/kubernetes"));
                Vec::new()
            }
            Err(fault) => {
                return Err(format!("{}{}: {}", connection.server, kind.path, fault.of_old_server(kind)));
            }
        };
        for one in received {
            report.merge(&one.report);
            if let Some(object) = one.content.object() {
                (kind.put)(&mut objects, &one.key, object);
            }
        }
    }
    slices::leave_out(&mut objects, config.endpoint_slices_mib, &mut report);
    Ok((objects, report))
}

fn of_disk(saved: Saved) -> (Objects, Report) {
    let (mut objects, mut report) = (Objects::default(), Report::new());
    for one in saved.objects {
        report.merge(&one.received.report);
        if let Some(object) = one.received.content.object() {
            (KINDS[one.kind].put)(&mut objects, &one.received.key, object);
        }
    }
    (objects, report)
}

fn fault(diagnostic: Diagnostic) -> Report {
    [diagnostic].into_iter().collect()
}

impl SourceUpdate {
    /// The state before the first update: revision 0, no objects.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            revision: 0,
            objects: Arc::default(),
            version: 0,
            keeps_services: false,
            gateways_unknown: false,
            report: Arc::default(),
            faults_of_namespaces: Arc::default(),
            stale: Arc::from([]),
            refused: Arc::from([]),
            slices_left_out: 0,
            seen: Instant::now(),
        }
    }
}
