//! Keeps the latest inputs of the control loop and runs its rounds.
//!
//! The daemon's loop owns the [`Controller`]; nothing else changes the desired state. Each [`Controller::apply`] is one
//! round, in the phases of [`round`](super::round): it collects the inputs ([`Gatherer`]), computes the desired state
//! ([`Decider`]), publishes it if it has changed ([`Publication`]), and passes it to everybody else ([`Reporter`]).
//!
//! Invariant: a round that fails changes nothing; the last good state stays in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_admin_api::DrainRequester;
use tidegate_announce::Announcer;
use tidegate_cluster::plan::LeaseHolders;
use tidegate_cluster::{ClusterWriter, DrainAnnotation, PeerReleases};
use tidegate_dataplane::gateway::Dataplane;
use tidegate_health::Checker;
use tidegate_health::health_check_node_port::{Bind, BindFailure, Clients};
use tidegate_model::config::GatewayConfig;
use tidegate_model::health::Verdicts;
use tidegate_model::objects::Objects;
use tidegate_policy::reconcile::Drains as Draining;
use tidegate_source::SourceUpdate;
use tokio::sync::watch;
use tokio::time::Instant;

use super::address_file::AddressFile;
use super::cluster::Cluster;
use super::command::{Command, Drained};
use super::configuration::{Configuration, Read, Reader, Reloaded};
use super::diff::{Trial, Trials};
use super::drains::Drains;
use super::layer2::Layer2;
use super::list_copies::{ListCopies, Lists};
use super::node_ports::NodePorts;
use super::publisher::Publisher;
use super::round::{Decider, Gatherer, Publication, Receivers, Reporter};
use super::state::State;

/// The controller of the gateway.
pub(super) struct Controller {
    reader: Reader,
    gatherer: Gatherer,
    decider: Decider,
    publication: Publication,
    reporter: Reporter,
    cluster: Cluster,
    trials: Trials,
    dataplane: Arc<Dataplane>,
    state: Arc<State>,
}

impl Controller {
    /// A controller that has published nothing yet.
    pub(super) fn new(
        config: GatewayConfig,
        path: &Path,
        dataplane: Arc<Dataplane>,
        state: Arc<State>,
        checker: Checker,
        (cluster, layer2): (Option<ClusterWriter>, Layer2),
        announcer: Arc<Announcer>,
    ) -> Self {
        let configuration = Configuration::new(path, config, &dataplane);
        let (config, settings) = (&configuration.config, &configuration.settings);
        let own = settings.network.interface_addresses().map(IpNet::addr);
        let bind = Bind::new(&config.services.node_port_addresses, own);
        let clients = Clients::of(&config.services.health_check_node_port_networks);
        let health = Arc::clone(&state);
        let copies = Arc::new(ListCopies::of(config));
        let drained = Drains::open(config);
        // A saved drain must be requested before the first announcement.
        state.request_drain(DrainRequester::Command, drained.gateway());
        state.request_drain(DrainRequester::Annotation, drained.gateway_annotated());
        let receivers = Receivers {
            checker,
            node_ports: NodePorts::new(&bind, clients, move || health.health()),
            layer2,
            announcer,
            dataplane: Arc::clone(&dataplane),
            state: Arc::clone(&state),
        };
        let publisher = Publisher::new(Arc::clone(&dataplane), Arc::clone(&state));
        Self {
            reader: configuration.reader(Arc::clone(&copies)),
            reporter: Reporter::new(receivers, config),
            gatherer: Gatherer::new(configuration, copies, drained),
            decider: Decider::new(Arc::clone(&state)),
            publication: Publication::new(publisher, Arc::clone(&state)),
            cluster: Cluster::new(cluster),
            trials: Trials::default(),
            dataplane,
            state,
        }
    }

    /// Keeps the backends that were removed since the last process, because their flows are restored with the first
    /// Services.
    pub(super) fn keep_earlier_backends(&mut self) {
        self.decider.keep_earlier(Draining::of_earlier(self.dataplane.take_earlier_ports()));
    }

    /// Loads the addresses that Services had in the last run, and saves changes from now on.
    pub(super) fn resume(&mut self, addresses: AddressFile) {
        self.decider.resume(addresses);
    }

    /// Saves copies of the lists that were read at the start, and reports lists for which an old copy is used.
    pub(super) fn begin_with(&mut self, lists: Lists) {
        if let [first, rest @ ..] = &lists.copied[..] {
            let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
            let why = format!(
                "a list of prefixes is unreadable or has errors, so its last valid version is used: {}{more}",
                first.display()
            );
            tracing::error!("{why}");
            self.state.refuse_configuration(Some(why));
        }
        let (copies, named) = (Arc::clone(&self.gatherer.copies), self.config().protection.files.clone());
        // The disk may be slow, and nothing depends on the result.
        tokio::task::spawn_blocking(move || copies.save(&lists.read, &named));
    }

    /// Changes when a health-check node port can no longer be bound, or can be bound again.
    pub(super) fn unbound(&self) -> watch::Receiver<Vec<BindFailure>> {
        self.reporter.node_ports.failures()
    }

    /// Changes when a comparison of incremental results has ended; then call [`Self::heal`].
    pub(super) fn comparisons_end(&self) -> watch::Receiver<()> {
        self.decider.comparisons_end()
    }

    /// The configuration in use.
    pub(super) fn config(&self) -> &GatewayConfig {
        &self.gatherer.configuration.config
    }

    /// When a round is due even without a change.
    pub(super) fn due(&self) -> Option<Instant> {
        let has_objects = self.gatherer.objects().is_some();
        let decision = self.decider.due(&self.config().self_check, has_objects);
        let own = [decision, self.gatherer.drained.due(), self.publication.due(), self.reporter.due()];
        own.into_iter().chain([self.cluster.due()]).flatten().min()
    }

    /// Sets what is known about the other gateways.
    pub(super) fn set_peers(&mut self, peer_releases: &PeerReleases) {
        self.cluster.set_peers(peer_releases);
    }

    /// Sets whether the node has a kube-proxy, which then serves the health-check node ports.
    pub(super) fn share_node(&mut self, has_kube_proxy: bool) {
        self.reporter.node_ports.share_node(has_kube_proxy);
    }

    /// Sets the holders of the Leases of VIPs.
    pub(super) fn set_lease_holders(&mut self, holders: Arc<LeaseHolders>) {
        self.gatherer.lease_holders = holders;
    }

    /// Asks the cluster writer to shut down normally.
    pub(super) async fn leave_cluster(&mut self) {
        self.cluster.leave().await;
    }

    /// Releases all VIPs on layer 2 for good.
    pub(super) async fn leave_layer2(&self) {
        self.reporter.leave_layer2().await;
    }

    /// Sets the current state of the source; `None` until it is known.
    pub(super) fn take(&mut self, manifests: SourceUpdate) {
        self.gatherer.take(Some(manifests).filter(|update| update.revision > 0));
    }

    /// Sets the results of the health checks.
    pub(super) fn set_verdicts(&mut self, verdicts: Verdicts) {
        self.gatherer.verdicts = verdicts;
    }

    /// Sets whether the annotation of the gateway's `GatewayStatus` drains the gateway, if that is known.
    pub(super) fn set_drain_annotation(&mut self, annotation: &DrainAnnotation) {
        let is_requested = match annotation {
            DrainAnnotation::Unknown => return,
            DrainAnnotation::Absent | DrainAnnotation::Invalid(_) => false,
            DrainAnnotation::Drain => true,
        };
        self.gatherer.annotation_fault = annotation.fault();
        self.gatherer.drained.set_gateway_annotated(is_requested);
        self.state.request_drain(DrainRequester::Annotation, is_requested);
    }

    /// Carries out a request. It takes effect with the next round.
    pub(super) async fn execute(&mut self, command: Command) {
        if command.is_abandoned() {
            tracing::warn!("ignored a request through the admin socket: its sender no longer waits for it");
            return;
        }
        // The caller may stop waiting for the answer at any time.
        match command {
            Command::Drain(target, answer) => {
                self.gatherer.drained.insert(target);
                self.gatherer.drained.save().await;
                let _ = answer.send(self.drained());
            }
            Command::Undrain(target, answer) => {
                let was_drained = self.gatherer.drained.remove(&target);
                self.gatherer.drained.save().await;
                let _ = answer.send(was_drained.then(|| self.drained()));
            }
            Command::DrainGateway(answer) => {
                self.gatherer.drained.set_gateway(true);
                self.state.request_drain(DrainRequester::Command, true);
                self.gatherer.drained.save().await;
                let _ = answer.send(self.gatherer.drained.trouble().map(str::to_owned));
            }
            Command::UndrainGateway(answer) => {
                let was_drained = self.gatherer.drained.set_gateway(false);
                self.state.request_drain(DrainRequester::Command, false);
                self.gatherer.drained.save().await;
                let _ = answer.send(was_drained.then(|| self.gatherer.drained.trouble().map(str::to_owned)));
            }
            Command::Reload(answer) => self.reader.request(Some(answer)),
            Command::Diff(path, answer) => {
                let trial = self.trial(path);
                self.trials.begin(trial, answer);
            }
            Command::ImportChanges(moved, answer) => {
                tracing::info!(changes = moved.len(), "imported recent backend changes from other gateways");
                self.decider.import_changes(&moved);
                self.publication.answer_after_next(answer);
            }
        }
    }

    /// A trial of the configuration in this file with the current inputs.
    fn trial(&self, path: Option<PathBuf>) -> Trial {
        let Configuration { path: own, config, settings } = &self.gatherer.configuration;
        let (memory, now) = self.decider.memory();
        Trial {
            path,
            own: own.clone(),
            config: config.clone(),
            settings: settings.clone(),
            dataplane: Arc::clone(&self.dataplane),
            objects: self.gatherer.objects().map(|objects| Objects::clone(objects)).unwrap_or_default(),
            verdicts: self.gatherer.verdicts.clone(),
            drained: self.gatherer.drained.targets().clone(),
            memory,
            now,
        }
    }

    fn drained(&self) -> Drained {
        Drained {
            targets: self.gatherer.drained.targets().iter().map(ToString::to_string).collect(),
            not_kept: self.gatherer.drained.trouble().map(str::to_owned),
        }
    }

    /// Requests a read of the configuration.
    pub(super) fn request_reload(&mut self) {
        self.reader.request(None);
    }

    /// Waits until a requested configuration has been read; then call [`Self::reload`]. Cancelling the wait loses
    /// nothing.
    pub(super) async fn read(&mut self) -> Read {
        self.reader.next().await
    }

    /// Uses a configuration that was read, and answers the requests.
    pub(super) fn reload(&mut self, mut read: Read) {
        let Reloaded { answer, refused } =
            self.gatherer.configuration.replace(read.loaded.take(), &self.dataplane);
        if answer.accepted {
            self.state.configure(&self.gatherer.configuration.config);
            self.reporter.configure(&self.gatherer.configuration.config);
        }
        self.state.refuse_configuration(refused);
        read.answer(&answer);
    }

    /// Runs one round; `seen` is when its first change was noticed. Reconcile and compile run here, on the thread of
    /// the daemon's loop. Listeners, checks and sources run on other threads and do not wait for it.
    pub(super) async fn apply(&mut self, seen: Option<std::time::Instant>) {
        self.gatherer.drained.save().await;
        self.decider.show_unsaved(&self.gatherer);
        let gathered = self.gatherer.gather(seen, &self.decider.given(), &mut self.cluster);
        let Some(gathered) = gathered else { return };
        let decided = self.decider.decide(gathered, self.publication.next_generation()).await;
        let published = self.publication.publish(decided).await;
        let subject = self.reporter.report(published, &mut self.cluster);
        // The comparison starts last because nothing waits for it.
        if let Some(subject) = subject {
            self.decider.compare(subject);
        }
    }

    /// If a comparison has found a difference, the next round is computed from scratch. Returns whether that round is
    /// due now.
    pub(super) fn heal(&mut self) -> bool {
        self.decider.heal()
    }
}
