//! The state of the running daemon that other tasks read: the result of the last round, and the dataplane.
//!
//! The controller writes it after each round. The admin socket, metrics and health ports read it: each gets an [`Arc`]
//! and never delays a round.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use jiff::Timestamp;
use tidegate_admin_api::{DrainRequester, GatewayDrainState};
use tidegate_announce::Announcer;
use tidegate_announce::snat::SnatRoutes;
use tidegate_announce::status::Status as AnnounceStatus;
use tidegate_dataplane::flow_memory::Restoration;
use tidegate_dataplane::gateway::{Dataplane, Stats};
use tidegate_events::Recorder;
use tidegate_health::CheckCounts;
use tidegate_health::health_check_node_port::HealthReport;
use tidegate_model::config::{GatewayConfig, PageToken};
use tidegate_model::objects::{ObjectKey, Objects};
use tidegate_model::time::whole_seconds;
use tidegate_policy::reconcile::Outcome;
use tidegate_sharing::{Keys, Snat};
use tidegate_source::SourceState;
use tidegate_source::kubernetes::Connector;
use tidegate_spec::Problem;
use tokio::sync::watch;

use super::flow_log;
use super::flow_sharing::{self, Gap, Shown};
use super::gateway_drain::{Counted, GatewayDrain};
use super::last_round::{Round, Rounds};
use super::layer2::Layer2View;
use super::loop_watchdog::{Iteration, Progress};
use super::publications::{Publications, PublishFailure};
use super::readiness::Readiness;
use super::recent_changes::RecentChanges;
use super::self_check::Comparisons;
use super::service_events::{ServiceEvents, Since};
use super::symptoms::Symptoms;
use crate::telemetry::{Generations, Latencies};

/// The state that other tasks read.
#[derive(Debug)]
pub(super) struct State {
    /// `metadata.name` of the configuration.
    pub(super) name: String,
    pub(super) dataplane: Arc<Dataplane>,
    pub(super) started: Timestamp,
    /// The last events.
    pub(super) events: Arc<Recorder>,
    checks: Arc<CheckCounts>,
    /// The counts of comparisons between incremental results and results from scratch.
    pub(super) comparisons: Arc<Comparisons>,
    /// The drain of the gateway itself.
    pub(super) drain: GatewayDrain,
    /// Whether the daemon's loop is alive.
    pub(super) main_loop: Loop,
    /// Recent changes of backends, for other gateways.
    pub(super) recent_changes: Arc<RecentChanges>,
    readiness: Readiness,
    pub(super) publications: Publications,
    pub(super) rounds: Rounds,
    /// Changes of Services from round to round.
    pub(super) service_events: Mutex<ServiceEvents>,
    configured: Configured,
    on_disk: OnDisk,
    source: watch::Receiver<SourceState>,
    /// The connection to the API server, if the objects come from one.
    connector: Option<Arc<Connector>>,
    joined: Joined,
}

/// The daemon's loop.
#[derive(Debug, Default)]
pub(super) struct Loop {
    /// Its current iteration.
    pub(super) iteration: Iteration,
    /// Whether it makes progress.
    pub(super) progress: Progress,
}

/// The part of the configuration that is used here.
#[derive(Debug)]
struct Configured {
    /// `admin.metricsPerBackend`.
    metrics_per_backend: AtomicBool,
    /// The token of `admin.page`.
    page_token: RwLock<Option<PageToken>>,
    /// The keys of `flowSharing`.
    sharing_keys: watch::Sender<Option<Keys>>,
}

/// Problems with files.
#[derive(Debug, Default)]
struct OnDisk {
    /// Why the configuration on disk is not in use.
    refused_configuration: RwLock<Option<String>>,
    /// Why addresses of Services, drained targets and lists of `protection` are not saved on disk.
    unsaved: RwLock<[Option<String>; 3]>,
}

/// Components that start later than this state.
#[derive(Debug, Default)]
struct Joined {
    /// The state of the cluster, if the objects come from an API server.
    cluster: OnceLock<ClusterState>,
    announcer: OnceLock<Arc<Announcer>>,
    /// Who owns which VIPs on layer 2.
    layer2: OnceLock<Layer2View>,
    /// The state of flow sharing for display, if flows are shared.
    flow_sharing: OnceLock<Arc<Mutex<Shown>>>,
    /// The flow log, if it has an output.
    flow_log: OnceLock<flow_log::Shown>,
    /// Symptoms of misconfigurations in the traffic.
    symptoms: OnceLock<watch::Receiver<Arc<Symptoms>>>,
}

/// The state of the cluster writer.
#[derive(Debug)]
struct ClusterState {
    counts: Arc<tidegate_cluster::Counts>,
    /// The other gateway with the same name.
    name_taken: watch::Receiver<Option<String>>,
}

impl State {
    pub(super) fn new(
        name: String,
        dataplane: Arc<Dataplane>,
        events: Arc<Recorder>,
        checks: Arc<CheckCounts>,
        source: watch::Receiver<SourceState>,
        connector: Option<Arc<Connector>>,
    ) -> Self {
        let started = Timestamp::now();
        Self {
            name,
            dataplane,
            started,
            events,
            checks,
            comparisons: Arc::default(),
            drain: GatewayDrain::default(),
            main_loop: Loop::default(),
            recent_changes: Arc::default(),
            readiness: Readiness::new(started),
            publications: Publications::default(),
            rounds: Rounds::default(),
            service_events: Mutex::default(),
            configured: Configured {
                metrics_per_backend: AtomicBool::new(true),
                page_token: RwLock::default(),
                sharing_keys: watch::Sender::new(None),
            },
            on_disk: OnDisk::default(),
            source,
            connector,
            joined: Joined::default(),
        }
    }

    /// Sets the view of which gateway owns which VIPs on layer 2.
    pub(super) fn join_layer2(&self, view: Layer2View) {
        // Called once.
        let _ = self.joined.layer2.set(view);
    }

    /// Who owns which VIPs on layer 2; `None` before the start is complete.
    pub(super) fn layer2(&self) -> Option<&Layer2View> {
        self.joined.layer2.get()
    }

    /// Sets the source of the symptoms to show.
    pub(super) fn show_symptoms(&self, symptoms: watch::Receiver<Arc<Symptoms>>) {
        // Called once, at the start.
        let _ = self.joined.symptoms.set(symptoms);
    }

    /// The symptoms of misconfigurations in the traffic.
    pub(super) fn symptoms(&self) -> Arc<Symptoms> {
        self.joined.symptoms.get().map(|symptoms| Arc::clone(&symptoms.borrow())).unwrap_or_default()
    }

    /// Sets the counters of the cluster writer, and its information about a gateway with the same name.
    pub(super) fn join_cluster(
        &self,
        counts: Arc<tidegate_cluster::Counts>,
        name_taken: watch::Receiver<Option<String>>,
    ) {
        // Called once, at the start.
        let _ = self.joined.cluster.set(ClusterState { counts, name_taken });
    }

    /// Sets the announcer whose state is shown.
    pub(super) fn announce_with(&self, announcer: Arc<Announcer>) {
        // Called once, at the start.
        let _ = self.joined.announcer.set(announcer);
    }

    /// Announces these SNAT addresses. Returns false while there is no announcer yet.
    pub(super) fn announce_snat(&self, routes: SnatRoutes) -> bool {
        self.joined.announcer.get().map(|announcer| announcer.announce_snat(routes)).is_some()
    }

    /// The SNAT addresses that may move to another gateway, and whether this one should receive the replies; and the
    /// addresses of the interfaces, which never move. While backends are masqueraded, no address moves, because other
    /// gateways don't have those flows.
    pub(super) fn own_snat(&self) -> (Snat, BTreeSet<IpAddr>) {
        let Some(round) = self.last() else { return Default::default() };
        let network = &round.outcome.spec.network;
        let of_interfaces: BTreeSet<IpAddr> = network.interface_addresses().map(IpNet::addr).collect();
        let addresses = network.snat_addresses.iter().filter(|address| !of_interfaces.contains(address));
        let stays = !network.gateway.masquerade.is_empty();
        let is_serving = self.drain.phase() == GatewayDrainState::Serving;
        let addresses = addresses.copied().collect();
        (Snat { addresses, serves: self.can_forward() && (is_serving || stays) }, of_interfaces)
    }

    /// The state of the announcements, if any are configured.
    pub(super) fn announcements(&self) -> Option<Arc<AnnounceStatus>> {
        Some(self.joined.announcer.get()?.status()).filter(|status| status.is_configured)
    }

    /// Whether the gateway can forward: the workers run and have a snapshot, and every interface carries packets.
    pub(super) fn can_forward(&self) -> bool {
        let dataplane = &self.dataplane;
        self.generations().applied > 0
            && !self.restores()
            && dataplane.healthy()
            && dataplane.links().faults().is_empty()
    }

    /// Whether workers are still restoring the flows of the previous process, and forward nothing meanwhile.
    pub(super) fn restores(&self) -> bool {
        self.dataplane.restoration().is_some_and(Restoration::is_in_progress)
    }

    /// Whether the latest state is published and every worker uses it.
    fn is_applied(&self) -> bool {
        let Generations { desired, applied } = self.generations();
        desired > 0 && applied >= desired && self.publish_failure().is_none() && !self.restores()
    }

    /// Sets what is shown about the flow log.
    pub(super) fn log_flows(&self, shown: flow_log::Shown) {
        // Called once, at the start.
        let _ = self.joined.flow_log.set(shown);
    }

    /// What is shown about the flow log, if it has an output.
    pub(super) fn flow_log(&self) -> Option<&flow_log::Shown> {
        self.joined.flow_log.get()
    }

    /// Sets the source of the state of flow sharing.
    pub(super) fn share_flows(&self, shown: Arc<Mutex<Shown>>) {
        // Called once, at the start.
        let _ = self.joined.flow_sharing.set(shown);
    }

    /// The state of flow sharing, if flows are shared.
    pub(super) fn flow_sharing(&self) -> Option<Shown> {
        Some(self.joined.flow_sharing.get()?.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Records that the gateway doesn't forward. When it does again, it must first import the flows of its peers.
    pub(super) fn interrupt(&self) {
        if let Some(shown) = self.joined.flow_sharing.get() {
            let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
            shown.gap = Gap { catches_up: true, was_interrupted: true, is_cut_off: true };
        }
    }

    /// Whether the gateway has started or was interrupted, and has not yet received the flows of its peers.
    pub(super) fn catches_up(&self) -> bool {
        let shown = self.joined.flow_sharing.get();
        shown.is_some_and(|shown| shown.lock().unwrap_or_else(PoisonError::into_inner).gap.catches_up)
    }

    /// Whether it is catching up, and other gateways may have served its VIPs since its start or the interruption.
    pub(super) fn is_cut_off(&self) -> bool {
        let shown = self.joined.flow_sharing.get();
        shown.is_some_and(|shown| shown.lock().unwrap_or_else(PoisonError::into_inner).gap.is_cut_off)
    }

    /// The other gateway with the same name.
    pub(super) fn name_taken(&self) -> Option<String> {
        self.joined.cluster.get()?.name_taken.borrow().clone()
    }

    /// The counters of the cluster writer, if the objects come from an API server.
    pub(super) fn cluster(&self) -> Option<tidegate_cluster::Reading> {
        self.joined.cluster.get().map(|cluster| cluster.counts.read())
    }

    /// The state of the election, if the objects come from an API server.
    pub(super) fn candidate(&self) -> tidegate_cluster::Candidate {
        self.joined.cluster.get().map(|cluster| cluster.counts.candidate()).unwrap_or_default()
    }

    /// The state of the source.
    pub(super) fn source_state(&self) -> SourceState {
        self.source.borrow().clone()
    }

    /// When the credentials for the API server expire.
    pub(super) fn credentials_expire(&self) -> Option<Timestamp> {
        self.connector.as_ref()?.credentials_expire()
    }

    /// Records that this generation was published to the workers.
    pub(super) fn desire(&self, generation: u64) {
        self.publications.desire(generation);
        self.readiness.update_queued();
    }

    /// Records why the latest configuration is refused, or that it is in use.
    pub(super) fn refuse_configuration(&self, why: Option<String>) {
        *self.on_disk.refused_configuration.write().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Why the latest configuration is not in use.
    pub(super) fn refused_configuration(&self) -> Option<String> {
        self.on_disk.refused_configuration.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records why the addresses of Services, the drained targets and the lists of `protection` are not saved on disk.
    pub(super) fn leave_unsaved(&self, unsaved: [Option<String>; 3]) {
        *self.on_disk.unsaved.write().unwrap_or_else(PoisonError::into_inner) = unsaved;
    }

    /// State that a restart would lose, by its name in metrics, with the reason.
    pub(super) fn unsaved(&self) -> [(&'static str, Option<String>); 5] {
        let [addresses, drained, lists] =
            self.on_disk.unsaved.read().unwrap_or_else(PoisonError::into_inner).clone();
        let objects = self.source_state().unsaved;
        let flows = self.dataplane.flows_not_kept();
        [
            ("addresses", addresses),
            ("drained", drained),
            ("flows", flows),
            ("lists", lists),
            ("objects", objects),
        ]
    }

    /// Records that a publication failed. Returns whether the failure is new: the first in a row, or with another
    /// reason than the last.
    pub(super) fn publish_failed(&self, why: &str) -> bool {
        self.readiness.update_queued();
        self.publications.failed(why)
    }

    /// Records that the latest desired state is published. Returns whether publishing failed before.
    pub(super) fn published(&self) -> bool {
        self.publications.succeeded()
    }

    /// Why the latest desired state is not published, if it isn't.
    pub(super) fn publish_failure(&self) -> Option<PublishFailure> {
        self.publications.failure()
    }

    /// Sets whether load balancers may send to the gateway's own node.
    pub(super) fn set_node_eligible(&self, eligible: bool) {
        self.readiness.set_node_eligible(eligible);
    }

    /// Counts suppressed log lines.
    pub(super) fn count_suppressed_lines(&self, count: u64) {
        self.rounds.count_suppressed_lines(count);
    }

    /// Records a round; `took` is the time from its start until it was applied, `change` the time since the change of
    /// the manifests was noticed.
    pub(super) fn round(&self, round: Round, took: Duration, change: Option<Duration>) {
        self.publications.timings().observe_sync(took);
        if let Some(change) = change {
            self.publications.timings().observe_programming(change);
        }
        self.rounds.replace(round);
    }

    /// Records how long it took until every worker had applied a snapshot. Only the daemon's loop calls this.
    pub(super) fn applied(&self, took: Duration) {
        self.publications.timings().observe_publication(took);
    }

    /// Durations recorded by each part of the gateway.
    pub(super) fn latencies(&self, stats: &Stats) -> Latencies {
        Latencies::merge(stats, self.checks.round_trips(), self.publications.timings())
    }

    /// Records what changed in this round.
    pub(super) fn record_changes(&self, outcome: &Outcome, objects: &Objects) {
        let is_deleted = |key: &ObjectKey| !objects.services.contains_key(key);
        let mut services = self.service_events.lock().unwrap_or_else(PoisonError::into_inner);
        let events = services.update(&outcome.services, is_deleted, Timestamp::now());
        drop(services);
        events.into_iter().for_each(tidegate_events::record);
    }

    /// Since when a Service and its backends are in their states.
    pub(super) fn since(&self, key: &ObjectKey) -> Since {
        self.service_events.lock().unwrap_or_else(PoisonError::into_inner).since(key)
    }

    /// The last round.
    pub(super) fn last(&self) -> Option<Arc<Round>> {
        self.rounds.last()
    }

    /// The parts of the last round that the dataplane ignores.
    pub(super) fn problems(&self) -> Vec<Problem> {
        self.last().map(|round| round.problems.clone()).unwrap_or_default()
    }

    /// The generations of the latest snapshot, and of the oldest one that a worker still uses.
    pub(super) fn generations(&self) -> Generations {
        let desired = self.publications.desired();
        Generations { desired, applied: self.dataplane.applied_generation() }
    }

    /// Sets the part of the configuration that is used here.
    pub(super) fn configure(&self, config: &GatewayConfig) {
        self.configured.metrics_per_backend.store(config.admin.metrics_per_backend, Ordering::Relaxed);
        let token = config.admin.page.as_ref().and_then(|page| page.token.clone());
        *self.configured.page_token.write().unwrap_or_else(PoisonError::into_inner) = token;
        self.drain.configure(&config.drain);
        self.configured.sharing_keys.send_replace(flow_sharing::keys(&config.flow_sharing));
    }

    /// Whether `/metrics` has series for each backend.
    pub(super) fn shows_backends(&self) -> bool {
        self.configured.metrics_per_backend.load(Ordering::Relaxed)
    }

    /// The token of the status page.
    pub(super) fn page_token(&self) -> Option<PageToken> {
        self.configured.page_token.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The results of health checks.
    pub(super) fn checks(&self) -> &CheckCounts {
        &self.checks
    }

    /// The keys of `flowSharing`, also after a reload.
    pub(super) fn sharing_keys(&self) -> watch::Receiver<Option<Keys>> {
        self.configured.sharing_keys.subscribe()
    }

    /// Sets whether `by` requests a drain of the gateway.
    pub(super) fn request_drain(&self, by: DrainRequester, is_requested: bool) {
        let counted = Counted::of(&self.dataplane.stats());
        self.drain.request(by, is_requested, counted, tokio::time::Instant::now());
    }

    /// The time since the start, independent of changes of the system clock.
    pub(super) fn uptime(&self) -> Duration {
        self.readiness.uptime()
    }

    /// The current answer of health ports and probes.
    pub(super) fn health(&self) -> HealthReport {
        let is_draining = self.drain.phase() != GatewayDrainState::Serving;
        let (is_applied, workers_run) = (self.is_applied(), self.dataplane.healthy());
        let report = self.readiness.report(is_applied, workers_run, is_draining, self.troubles());
        HealthReport { loop_alive: self.main_loop.progress.loop_alive(), ..report }
    }

    /// Whether every worker has a snapshot and every interface a link, so that packets are forwarded. Unlike readiness,
    /// this does not depend on a drain.
    pub(super) fn forwards(&self) -> bool {
        self.readiness.report(self.is_applied(), self.dataplane.healthy(), false, self.troubles()).ready
    }

    /// Interfaces that cannot carry packets, and hung threads, as text for display.
    fn troubles(&self) -> Vec<String> {
        self.link_troubles().into_iter().chain(self.hung()).collect()
    }

    /// Interfaces that cannot carry packets, as text for display.
    pub(super) fn link_troubles(&self) -> Vec<String> {
        with_times(self.dataplane.links().faults())
    }

    /// Devices that were renamed in the kernel, as text for display.
    pub(super) fn renamed_devices(&self) -> Vec<String> {
        with_times(self.dataplane.links().renamed())
    }

    /// Taps that another program has deleted, as text for display.
    pub(super) fn recreated_taps(&self) -> Vec<String> {
        with_times(self.dataplane.links().recreated_taps())
    }

    /// Why the routes of the taps cannot be changed, as text for display.
    pub(super) fn route_fault(&self) -> Vec<String> {
        with_times(self.dataplane.links().route_fault().into_iter().collect())
    }

    /// Hung workers, and the slow path if it hangs, as text for display.
    pub(super) fn hung(&self) -> Vec<String> {
        with_times(self.dataplane.hung())
    }
}

fn with_times(troubles: Vec<(String, SystemTime)>) -> Vec<String> {
    troubles.into_iter().map(|(what, since)| format!("{what}, since {}", timestamp(since))).collect()
}

/// The time in whole seconds, as in conditions.
pub(super) fn timestamp(at: SystemTime) -> Timestamp {
    whole_seconds(Timestamp::try_from(at).unwrap_or_default())
}
