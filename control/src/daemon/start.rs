//! The steps of starting up: the dataplane, the source, the listeners.
//!
//! The daemon calls them once, in this order. Each error names the step that failed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use tidegate_cluster::ClusterWriter;
use tidegate_dataplane::gateway::{Dataplane, DataplaneConfig};
use tidegate_events::Recorder;
use tidegate_health::health_check_node_port::Clients;
use tidegate_health::health_check_node_port::probes::Probes;
use tidegate_model::config::{EventsConfig, EventsDirectory, GatewayConfig, SourceConfig};
use tidegate_source::directory::{Changes, DirectorySource, Watch};
use tidegate_source::kubernetes::{self, Connector, KubernetesSource};
use tidegate_source::{SourceState, SourceUpdate};
use tokio::sync::{mpsc, watch};

use super::address_file::AddressFile;
use super::command::Command;
use super::operator::Operator;
use super::snat_exchange::SnatLinks;
use super::state::State;
use super::task_watchdog::Vital;
use crate::admin::{Server, status_page};
use crate::assemble;
use crate::listener::Listener;
use crate::telemetry;

/// The maximum wait for the disk at shutdown.
const SAVE_MAX: Duration = Duration::from_millis(1500);
/// A directory of manifests that takes longer to read counts as not answering.
const READING_MAX: Duration = Duration::from_secs(15);
/// How often that is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Starts ports and workers. `failed` gets the failure of a worker; `changed` is notified when an interface has changed
/// state, or a worker hangs or recovers.
pub(super) fn dataplane(
    config: &GatewayConfig,
    failed: watch::Sender<Option<String>>,
    changed: watch::Sender<()>,
) -> anyhow::Result<Dataplane> {
    let on_failure = move |failure: &tidegate_dataplane::gateway::WorkerFailure| {
        failed.send_replace(Some(format!("{} failed: {}", failure.thread, failure.message)));
    };
    // Two gateways of a host may have the default name, but not the same socket.
    let socket = std::path::absolute(&config.admin.socket).unwrap_or_else(|_| config.admin.socket.clone());
    let config = DataplaneConfig {
        tap_mark: Some(format!("tidegate {} {}", config.name, socket.display())),
        on_failure: Some(Arc::new(on_failure)),
        on_change: Some(Arc::new(move || changed.send_replace(()))),
        ..assemble::dataplane_config(config)
    };
    let dataplane = Dataplane::start(&config).context("the dataplane does not start")?;
    for interface in dataplane.interfaces() {
        tracing::info!(
            interface = interface.name,
            device = interface.device,
            driver = interface.driver,
            mac = %interface.mac,
            mtu = interface.mtu,
            tap = interface.tap.as_deref().unwrap_or("none"),
            "port up"
        );
    }
    Ok(dataplane)
}

/// Starts the recorder of events. Without its file, events are kept in memory only.
pub(super) fn recorder(config: &GatewayConfig) -> Arc<Recorder> {
    let EventsConfig { keep, directory } = &config.admin.events;
    let directory = match directory {
        EventsDirectory::State => config.source.state_directory(),
        EventsDirectory::None => None,
        EventsDirectory::At(path) => Some(path.as_path()),
    };
    let file = directory.map(|directory| directory.join(format!("{}.events", config.name)));
    let recorder = Recorder::new(*keep, file).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot start the thread that saves events: they are kept in memory only");
        Recorder::in_memory(*keep)
    });
    tidegate_events::install(recorder)
}

/// Restricts this thread, and the threads that it creates, to these CPUs. If that fails, they may run on any CPU.
pub(super) fn confine_to(cpus: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    cpus.iter().filter(|&&cpu| cpu < rustix::thread::CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
    if cpus.is_empty() {
        return;
    }
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(%error, "cannot keep the control plane off the workers' cores");
    }
}

/// The source of the objects: a directory of manifests, watched or read on request, or an API server.
pub(super) enum Source {
    /// A directory of manifests, with its state.
    Directory(Watch, watch::Receiver<SourceState>),
    /// An API server, whose changes are received as they happen.
    Watched(KubernetesSource),
}

impl Source {
    /// Opens the source. The first state of a directory is available on return. The first state of an API server
    /// arrives later; until then the revision is 0.
    pub(super) fn open(config: &GatewayConfig) -> anyhow::Result<Self> {
        match &config.source {
            SourceConfig::Directory(directory) => {
                let changes = if directory.watch { Changes::Followed } else { Changes::AtReload };
                let (path, mib) = (&directory.path, directory.endpoint_slices_mib);
                let gateway_api = directory.gateway_api;
                let source = DirectorySource::watch(path, changes, directory.loss_grace, mib, gateway_api)
                    .context("cannot start the thread that reads the directory of manifests")?;
                let reading = source.reading();
                let state = directory_state(move || reading.takes(), directory.path.display().to_string());
                Ok(Self::Directory(source, state))
            }
            SourceConfig::Kubernetes(server) => {
                Ok(Self::Watched(KubernetesSource::start(server, &config.name)))
            }
        }
    }

    /// A receiver of the latest state and the following ones.
    pub(super) fn updates(&self) -> watch::Receiver<SourceUpdate> {
        match self {
            Self::Directory(source, _) => source.updates(),
            Self::Watched(source) => source.updates(),
        }
    }

    /// The state of the source.
    pub(super) fn state(&self) -> watch::Receiver<SourceState> {
        match self {
            Self::Directory(_, state) => state.clone(),
            Self::Watched(source) => source.state(),
        }
    }

    /// Saves the latest objects to disk, up to a time limit.
    pub(super) async fn save(&self) {
        if let Self::Watched(source) = self
            && tokio::time::timeout(SAVE_MAX, source.save()).await.is_err()
        {
            tracing::warn!("timed out saving the objects to disk at shutdown");
        }
    }

    /// The connection to the API server; `None` for a directory.
    pub(super) fn connector(&self) -> Option<Arc<Connector>> {
        match self {
            Self::Directory(..) => None,
            Self::Watched(source) => Some(source.connector()),
        }
    }

    /// Reads the directory again, or sends the next request to the API server immediately.
    pub(super) fn reload(&self) {
        match self {
            Self::Directory(source, _) => source.reload(),
            Self::Watched(source) => source.reload(),
        }
    }
}

/// The state of a directory: it is connected, unless the current read takes too long.
fn directory_state(
    takes: impl Fn() -> Option<Duration> + Send + 'static,
    path: String,
) -> watch::Receiver<SourceState> {
    let (state, shown) = watch::channel(SourceState::connected_since(Timestamp::now()));
    tokio::spawn(async move {
        while !state.is_closed() {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let hangs = takes().is_some_and(|takes| takes >= READING_MAX);
            if state.borrow().connected != hangs {
                continue;
            }
            let now = Timestamp::now();
            if hangs {
                tracing::error!(
                    path,
                    "reading the directory of manifests hangs: changes in it have no effect"
                );
                let last_error = Some(format!("reading {path} hangs"));
                let last_sync = Some(now - READING_MAX);
                state.send_replace(SourceState {
                    last_error,
                    last_sync,
                    ..SourceState::unconnected_since(now)
                });
            } else {
                tracing::info!(path, "the directory of manifests can be read again");
                state.send_replace(SourceState::connected_since(now));
            }
        }
    });
    shown
}

/// The connections that flow sharing needs to move SNAT addresses between gateways.
pub(super) fn snat_links(dataplane: &Arc<Dataplane>, state: &Arc<State>) -> SnatLinks {
    let (own, announce) = (Arc::clone(state), Arc::clone(state));
    SnatLinks {
        dataplane: Arc::clone(dataplane),
        own: Box::new(move || own.own_snat()),
        announce: Box::new(move |routes| announce.announce_snat(routes)),
    }
}

/// The file with the addresses of Services, if the objects come from a directory. With an API server, the statuses of
/// the Services contain them.
pub(super) fn address_file(config: &GatewayConfig) -> Option<AddressFile> {
    let SourceConfig::Directory(directory) = &config.source else { return None };
    let state = directory.state_directory.as_deref()?;
    Some(AddressFile::new(state, &config.name, &directory.path))
}

/// Starts to write to the cluster, if the objects come from one.
pub(super) fn cluster(config: &GatewayConfig, source: &Source) -> Option<ClusterWriter> {
    let (Source::Watched(watched), SourceConfig::Kubernetes(server)) = (source, &config.source) else {
        return None;
    };
    let (connector, namespace) = (watched.connector(), &server.lease_namespace);
    let node = config.node.name.as_deref();
    let (state, refresh) = (watched.state(), watched.refresh());
    Some(ClusterWriter::start(&connector, &config.name, node, namespace, state, refresh))
}

/// The listeners. Each ends when it is dropped.
#[derive(Debug)]
pub(super) struct Listeners {
    admin: Server,
    probes: Option<Probes>,
    metrics: Option<Listener>,
    page: Option<Listener>,
}

impl Listeners {
    /// Adds the server tasks.
    pub(super) fn add_to(&self, vital: &mut Vital) {
        vital.task("the admin socket", self.admin.task());
        if let Some(probes) = &self.probes {
            vital.task("the listener of admin.healthz", probes.task());
        }
        if let Some(metrics) = &self.metrics {
            vital.task("the listener of admin.listen", metrics.task());
        }
        if let Some(page) = &self.page {
            vital.task("the listener of admin.page.listen", page.task());
        }
    }
}

/// Opens the configured listeners.
pub(super) async fn listeners(
    config: &GatewayConfig,
    state: &Arc<State>,
    commands: mpsc::Sender<Command>,
) -> anyhow::Result<Listeners> {
    let admin = &config.admin;
    let (kind, location) = match &config.source {
        SourceConfig::Directory(directory) => ("directory", directory.path.display().to_string()),
        SourceConfig::Kubernetes(server) => ("kubernetes", kubernetes::location(server)),
    };
    let operator = Operator {
        state: Arc::clone(state),
        commands,
        source: (kind, location),
        flow_entries: u64::from(config.dataplane.flow_entries_per_core),
        watches: Arc::default(),
    };
    let operator = Arc::new(operator);
    let server = Server::start(&admin.socket, Arc::clone(&operator))
        .with_context(|| format!("admin.socket: cannot listen on {}", admin.socket.display()))?;
    let probes = match admin.healthz {
        None => None,
        Some(address) => {
            let state = Arc::clone(state);
            let started =
                Probes::start(address, Clients::of(&admin.healthz_networks), move || state.health()).await;
            Some(started.with_context(|| format!("admin.healthz: cannot listen on {address}"))?)
        }
    };
    let metrics = match admin.listen {
        None => None,
        Some(address) => {
            let state = Arc::clone(state);
            let started = telemetry::serve(address, move || state.metrics()).await;
            Some(started.with_context(|| format!("admin.listen: cannot listen on {address}"))?)
        }
    };
    let page = match &admin.page {
        None => None,
        Some(page) => {
            let state = Arc::clone(state);
            let started = status_page::serve(page.listen, move || state.page_token(), operator).await;
            Some(started.with_context(|| format!("admin.page.listen: cannot listen on {}", page.listen))?)
        }
    };
    Ok(Listeners { admin: server, probes, metrics, page })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_directory_that_does_not_answer_is_not_connected_until_it_does() {
        let seconds = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&seconds);
        let takes = move || Some(Duration::from_secs(read.load(Ordering::Relaxed)));
        let mut state = directory_state(takes, "/srv/manifests".to_owned());
        seconds.store(READING_MAX.as_secs() - 1, Ordering::Relaxed);
        tokio::time::sleep(CHECK_INTERVAL * 3).await;
        assert!(state.borrow_and_update().connected);
        seconds.store(READING_MAX.as_secs(), Ordering::Relaxed);
        state.changed().await.expect("it is followed");
        let shown = state.borrow_and_update().clone();
        assert_eq!(
            (shown.connected, shown.last_error.as_deref()),
            (false, Some("reading /srv/manifests hangs"))
        );
        seconds.store(0, Ordering::Relaxed);
        state.changed().await.expect("it is followed");
        assert!(state.borrow().connected && state.borrow().last_error.is_none());
    }
}
