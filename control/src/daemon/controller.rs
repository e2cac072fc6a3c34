//! Runs one round of the control loop: collects the inputs, reconciles, and publishes the result to the workers.
//!
//! The daemon's loop owns it; nothing else changes the desired state. Each [`Controller::apply`] is one round: it
//! computes the desired state ([`Desired`]), publishes it if it differs from the last one ([`Publisher`]), sets the
//! targets of the health checks, logs every new fault ([`RoundLog`]), and passes the round to the cluster writer
//! ([`Cluster`]).
//!
//! Invariant: a round that fails changes nothing; the last good state stays in use.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use jiff::Timestamp;
use tidegate_admin_api::{DrainRequester, GatewayDrainState, ReloadAnswer};
use tidegate_announce::Announcer;
use tidegate_cluster::plan::{DrainPhase, Forwarding, LeaseHolders, Observation};
use tidegate_cluster::{ClusterWriter, DrainAnnotation, PeerReleases};
use tidegate_dataplane::gateway::Dataplane;
use tidegate_health::Checker;
use tidegate_health::health_check_node_port::{Bind, BindFailure, Clients};
use tidegate_model::config::GatewayConfig;
use tidegate_model::health::Verdicts;
use tidegate_model::objects::{ObjectKey, Objects};
use tidegate_policy::pools::{Allocations, Authority, Holdings};
use tidegate_policy::reconcile::{self, DrainTarget, Finding, Outcome};
use tidegate_source::{RefusedObject, SourceUpdate};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::address_file::AddressFile;
use super::announcements;
use super::cluster::Cluster;
use super::configuration::{Configuration, Read, Reader, Reloaded};
use super::desired::Desired;
use super::drains::Drains;
use super::layer2::{Layer2, Unable};
use super::left_out::Completion;
use super::list_copies::{ListCopies, Lists};
use super::moved_seats::Moved;
use super::node_ports::{NodePorts, unopened};
use super::publisher::Publisher;
use super::round_log::RoundLog;
use super::self_check::Layer;
use super::state::{Round, State};

/// A request of the operator or of another thread that changes the desired state. The answer is sent when it is decided.
#[derive(Debug)]
pub(super) enum Command {
    /// Drain a backend, or all backends of a node. The answer is the list of everything that is drained.
    Drain(DrainTarget, oneshot::Sender<Drained>),
    /// Undrain. The answer is the list of everything that is still drained, or `None` if the target was not drained.
    Undrain(DrainTarget, oneshot::Sender<Option<Drained>>),
    /// Drain the gateway itself. The answer is why a restart would lose that.
    DrainGateway(oneshot::Sender<Option<String>>),
    /// Undrain the gateway itself. The answer is like that of a drain, or `None` if the command did not drain it.
    UndrainGateway(oneshot::Sender<Option<Option<String>>>),
    /// Read the configuration again.
    Reload(oneshot::Sender<ReloadAnswer>),
    /// Learn which backends changed before this gateway started. The answer says that the workers know it.
    LearnSeats(Moved, oneshot::Sender<()>),
}

impl Command {
    /// Whether nobody waits for the answer to a request of the operator, who was then told that it failed.
    fn is_abandoned(&self) -> bool {
        match self {
            Self::Drain(_, answer) => answer.is_closed(),
            Self::Undrain(_, answer) => answer.is_closed(),
            Self::DrainGateway(answer) => answer.is_closed(),
            Self::UndrainGateway(answer) => answer.is_closed(),
            Self::Reload(answer) => answer.is_closed(),
            Self::LearnSeats(..) => false,
        }
    }
}

/// The result of a drain or undrain.
#[derive(Debug)]
pub(super) struct Drained {
    /// The drained targets.
    pub(super) targets: Vec<String>,
    /// Why a restart would lose them.
    pub(super) not_kept: Option<String>,
}

/// The controller of the gateway.
pub(super) struct Controller {
    configuration: Configuration,
    reader: Reader,
    /// The copies of the lists of `protection`.
    copies: Arc<ListCopies>,
    dataplane: Arc<Dataplane>,
    state: Arc<State>,
    checker: Checker,
    node_ports: NodePorts,
    manifests: Option<SourceUpdate>,
    /// The revision of the manifests that the last round was made from.
    reconciled: u64,
    verdicts: Verdicts,
    drained: Drains,
    /// What is wrong with the annotation that drains the gateway.
    annotation_fault: Option<String>,
    /// The file of the addresses of Services, if there is no API server.
    addresses: Option<AddressFile>,
    /// The Services that were refused in the last round because of an error in their manifest.
    refused: BTreeSet<ObjectKey>,
    desired: Desired,
    /// Who waits until the workers know what [`Command::LearnSeats`] has brought.
    seats_learnt: Vec<oneshot::Sender<()>>,
    completion: Completion,
    publisher: Publisher,
    /// The socket at which other gateways find this one. It stays as it is until the next start.
    flow_sharing: Option<SocketAddr>,
    cluster: Cluster,
    layer2: Layer2,
    lease_holders: Arc<LeaseHolders>,
    unable: Unable,
    log: RoundLog,
    announcer: Arc<Announcer>,
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
        let flow_sharing = config.finds_flow_peers().then(|| config.flow_sharing_socket());
        let health = Arc::clone(&state);
        let copies = Arc::new(ListCopies::of(config));
        let drained = Drains::open(config);
        // Before anything is announced.
        state.request_drain(DrainRequester::Command, drained.gateway());
        state.request_drain(DrainRequester::Annotation, drained.gateway_annotated());
        Self {
            drained,
            annotation_fault: None,
            reader: configuration.reader(Arc::clone(&copies)),
            copies,
            configuration,
            checker,
            node_ports: NodePorts::new(&bind, clients, move || health.health()),
            manifests: None,
            reconciled: 0,
            verdicts: Verdicts::default(),
            addresses: None,
            refused: BTreeSet::new(),
            desired: Desired::new(Arc::clone(&state.comparisons)),
            seats_learnt: Vec::new(),
            completion: Completion::default(),
            publisher: Publisher::new(Arc::clone(&dataplane), Arc::clone(&state)),
            flow_sharing,
            cluster: Cluster::new(cluster),
            layer2,
            lease_holders: Arc::default(),
            unable: Unable::default(),
            log: RoundLog::default(),
            announcer,
            dataplane,
            state,
        }
    }

    /// Keeps the backends of the last process that have left since, because their flows are restored with the first
    /// Services.
    pub(super) fn keep_earlier_backends(&mut self) {
        self.desired.earlier = Some(reconcile::Drains::of_earlier(self.dataplane.take_earlier_ports()));
    }

    /// Loads the addresses that Services had in the last run, and saves later ones.
    pub(super) fn resume(&mut self, mut addresses: AddressFile) {
        self.desired.memory.allocations = addresses.load();
        self.addresses = Some(addresses);
    }

    /// Saves copies of the lists that were read at the start, and reports those whose copies are used.
    pub(super) fn begin_with(&mut self, lists: Lists) {
        if let [first, rest @ ..] = &lists.copied[..] {
            let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
            let why = format!(
                "{}{more}: the list has faults, and its last prefixes without a fault are in force",
                first.display()
            );
            tracing::error!("{why}");
            self.state.refuse_configuration(Some(why));
        }
        let (copies, named) = (Arc::clone(&self.copies), self.config().protection.files.clone());
        // The disk may be slow, and nothing waits for it.
        tokio::task::spawn_blocking(move || copies.save(&lists.read, &named));
    }

    /// Changes when a health-check node port cannot be bound, or can be again.
    pub(super) fn unbound(&self) -> watch::Receiver<Vec<BindFailure>> {
        self.node_ports.failures()
    }

    /// Changes when a comparison of incremental results has ended: [`Self::heal`] is to be called then.
    pub(super) fn comparisons_end(&self) -> watch::Receiver<()> {
        self.desired.comparisons_end()
    }

    /// The configuration in use.
    pub(super) fn config(&self) -> &GatewayConfig {
        &self.configuration.config
    }

    /// When a round is due even without a change.
    pub(super) fn due(&self) -> Option<Instant> {
        let save_at = self.addresses.as_ref().and_then(AddressFile::due);
        // Before the first objects there is no round to compare.
        let self_check = &self.configuration.config.self_check;
        let compare_at = self.manifests.as_ref().and_then(|_| self.desired.comparison_due(self_check));
        let own = [save_at, compare_at, self.drained.due(), self.log.due(), self.publisher.due()];
        own.into_iter().chain([self.desired.due(), self.cluster.due()]).flatten().min()
    }

    /// Sets what is known about the other gateways.
    pub(super) fn set_peers(&mut self, peer_releases: &PeerReleases) {
        self.cluster.set_peers(peer_releases);
    }

    /// Sets whether the node has a kube-proxy, which then serves the health-check node ports.
    pub(super) fn share_node(&mut self, has_kube_proxy: bool) {
        self.node_ports.share_node(has_kube_proxy);
    }

    /// Sets the holders of the Leases of VIPs.
    pub(super) fn set_lease_holders(&mut self, holders: Arc<LeaseHolders>) {
        self.lease_holders = holders;
    }

    /// Tells the cluster writer to shut down normally.
    pub(super) async fn leave_cluster(&mut self) {
        self.cluster.leave().await;
    }

    /// Owns no VIP on layer 2 from now on.
    pub(super) async fn leave_layer2(&self) {
        self.layer2.leave().await;
    }

    /// Sets the current state of the source; `None` before its first state.
    pub(super) fn take(&mut self, manifests: SourceUpdate) {
        self.manifests = Some(manifests).filter(|update| update.revision > 0);
    }

    /// Sets the results of the health checks.
    pub(super) fn set_verdicts(&mut self, verdicts: Verdicts) {
        self.verdicts = verdicts;
    }

    /// Sets whether the annotation of the gateway's `GatewayStatus` drains the gateway, as far as that is known.
    pub(super) fn set_drain_annotation(&mut self, annotation: &DrainAnnotation) {
        let is_requested = match annotation {
            DrainAnnotation::Unknown => return,
            DrainAnnotation::Absent | DrainAnnotation::Invalid(_) => false,
            DrainAnnotation::Drain => true,
        };
        self.annotation_fault = annotation.fault();
        self.drained.set_gateway_annotated(is_requested);
        self.state.request_drain(DrainRequester::Annotation, is_requested);
    }

    /// Carries out a request of the operator. It takes effect with the next round.
    pub(super) async fn execute(&mut self, command: Command) {
        if command.is_abandoned() {
            tracing::warn!("ignoring a request through the admin socket: its sender no longer waits for it");
            return;
        }
        // The caller may stop waiting for the answer at any time.
        match command {
            Command::Drain(target, answer) => {
                tracing::info!(%target, "draining");
                self.drained.insert(target);
                self.drained.save().await;
                let _ = answer.send(self.drained());
            }
            Command::Undrain(target, answer) => {
                tracing::info!(%target, "no longer draining");
                let was_drained = self.drained.remove(&target);
                self.drained.save().await;
                let _ = answer.send(was_drained.then(|| self.drained()));
            }
            Command::DrainGateway(answer) => {
                self.drained.set_gateway(true);
                self.state.request_drain(DrainRequester::Command, true);
                self.drained.save().await;
                let _ = answer.send(self.drained.trouble().map(str::to_owned));
            }
            Command::UndrainGateway(answer) => {
                let was_drained = self.drained.set_gateway(false);
                self.state.request_drain(DrainRequester::Command, false);
                self.drained.save().await;
                let _ = answer.send(was_drained.then(|| self.drained.trouble().map(str::to_owned)));
            }
            Command::Reload(answer) => self.reader.request(Some(answer)),
            Command::LearnSeats(moved, answer) => {
                tracing::info!(
                    changes = moved.len(),
                    "other gateways have told which backends changed lately"
                );
                self.desired.learn_seats(&moved);
                self.seats_learnt.push(answer);
            }
        }
    }

    fn drained(&self) -> Drained {
        Drained {
            targets: self.drained.targets().iter().map(ToString::to_string).collect(),
            not_kept: self.drained.trouble().map(str::to_owned),
        }
    }

    /// Requests to read the configuration again.
    pub(super) fn request_reload(&mut self) {
        self.reader.request(None);
    }

    /// Waits until a requested configuration has been read: [`Self::reload`] is to be called then. Nothing is lost if the
    /// wait is ended early.
    pub(super) async fn read(&mut self) -> Read {
        self.reader.next().await
    }

    /// Uses a configuration that was read, and answers who requested it.
    pub(super) fn reload(&mut self, mut read: Read) {
        let Reloaded { answer, refused } = self.configuration.replace(read.loaded.take(), &self.dataplane);
        if answer.accepted {
            self.state.configure(&self.configuration.config);
            self.announcer.configure(announcements::setup(&self.configuration.config));
        }
        self.state.refuse_configuration(refused);
        read.answer(&answer);
    }

    /// Shows what could not be saved.
    fn tell_unsaved(&self) {
        let addresses = self.addresses.as_ref().and_then(AddressFile::trouble);
        let drained = self.drained.trouble().map(str::to_owned);
        self.state.leave_unsaved([addresses, drained, self.copies.trouble()]);
    }

    /// Runs one round; `seen` is when its first change was seen. Reconcile and compile run here, on the thread of the
    /// daemon's loop. Listeners, checks and sources run on other threads and do not wait for it.
    pub(super) async fn apply(&mut self, seen: Option<std::time::Instant>) {
        self.drained.save().await;
        self.tell_unsaved();
        let Some(manifests) = self.manifests.clone() else { return };
        let began = Instant::now();
        let given = &self.desired.memory.allocations;
        self.cluster.check_peers(&manifests, given, &mut self.configuration.settings);
        if self.addresses.is_some() {
            let withheld = waiting(given, &manifests.refused);
            self.configuration.settings.authority = Authority::Decides { withheld };
            let refused = manifests.refused.iter().filter(|refused| refused.kind == "Service");
            let refused = refused.map(|refused| refused.key.clone()).collect();
            let before = std::mem::replace(&mut self.refused, refused);
            let is_mended = |key: &&ObjectKey| {
                !self.refused.contains(*key) && manifests.objects.services.contains_key(*key)
            };
            self.desired.give_back(before.iter().filter(is_mended));
        }
        self.heal();
        let (outcome, subject) = self.desired.reconcile(
            &self.configuration,
            &manifests.objects,
            &self.verdicts,
            self.drained.targets(),
            self.publisher.next_generation(),
        );
        self.desired.leave_seats(&self.state.moved_seats);
        if let Some(addresses) = &mut self.addresses {
            // Before anybody can use one of them: a restart gives them to the same Services.
            addresses.save(&self.desired.memory.allocations).await;
        }
        self.tell_unsaved();
        let problems = self.publisher.publish(&outcome).await.unwrap_or_else(|| self.state.problems());
        for answer in self.seats_learnt.drain(..) {
            // Nobody waits if the exchange has ended.
            let _ = answer.send(());
        }
        let unapplied = Arc::new(self.publisher.check_applied(&outcome, manifests.version));
        let outcome = self.completion.complete(outcome, &problems, &manifests.objects);
        let seen = seen.map_or(manifests.seen, |seen| seen.min(manifests.seen));
        let change = (manifests.revision != self.reconciled).then(|| seen.elapsed());
        self.reconciled = manifests.revision;
        // Only after the workers have the snapshot, because informing others may take time.
        self.checker.set_targets(outcome.targets.clone());
        self.node_ports.set(&outcome.health_check_node_ports);
        // An API server has every Node; a directory need not.
        let eligible = manifests
            .objects
            .is_eligible(self.configuration.settings.node.as_deref(), self.cluster.is_used());
        self.state.set_node_eligible(eligible);
        let own_findings = self.own_findings(&manifests.objects);
        self.state.log_lines_left_out(self.log.log(&manifests, &outcome, &own_findings, &problems));
        self.dataplane.reclaim();
        let can_forward = self.state.health().ready;
        self.layer2.round(&outcome, &self.configuration.settings.labels, can_forward);
        self.unable.log(&outcome, self.configuration.settings.layer2.mode);
        self.offer(&manifests, &outcome, &own_findings, &unapplied);
        let (drained, ended) = (self.drained.targets().clone(), Timestamp::now());
        let round = Round { outcome, own_findings, unapplied, problems, manifests, drained, ended };
        self.announcer.offer(announcements::round(&round));
        self.state.round(round, began.elapsed(), change);
        // Last, because nothing waits for it.
        if let Some(mut subject) = subject {
            subject.snapshot = self.publisher.in_use();
            self.desired.compare(subject);
        }
    }

    /// What this gateway found, whatever the others do: health-check node ports that it cannot bind, and symptoms in its
    /// traffic.
    fn own_findings(&self, objects: &Objects) -> Vec<Finding> {
        let failures = self.node_ports.failures();
        let unopened = failures.borrow().iter().map(|failure| unopened(failure, objects)).collect::<Vec<_>>();
        unopened.into_iter().chain(self.state.symptoms().findings.iter().cloned()).collect()
    }

    /// Passes the round to the cluster writer.
    fn offer(
        &mut self,
        manifests: &SourceUpdate,
        outcome: &Arc<Outcome>,
        own_findings: &[Finding],
        unapplied: &Arc<BTreeSet<ObjectKey>>,
    ) {
        let generations = self.state.generations();
        let drain_message = self.drain_message();
        self.cluster.offer(generations, |decides, waits_for| Observation {
            objects: Arc::clone(&manifests.objects),
            version: manifests.version,
            outcome: Arc::clone(outcome),
            comparisons: self.desired.comparisons_due(),
            decides,
            waits_for,
            own_labels: self.configuration.settings.labels.clone(),
            own_addresses: self.configuration.settings.network.own_addresses(),
            own_flow_sharing: self.flow_sharing,
            forwarding: Forwarding {
                generation_desired: generations.desired,
                generation_applied: generations.applied,
                version_applied: self.publisher.version_applied(),
                keeps_services: manifests.keeps_services,
                unapplied: Arc::clone(unapplied),
                publish_failure: self.state.publish_failure().map(|failure| failure.why),
                ready: self.state.health().ready,
                drain: drain_phase(&self.state),
                drain_message,
                links_lost: self.state.link_troubles(),
                hung: self.state.hung(),
            },
            source_connected: true,
            lease_holders: Arc::clone(&self.lease_holders),
            own_findings: own_findings.to_vec(),
        });
    }

    /// Who drains the gateway, and what is wrong with the annotation.
    fn drain_message(&self) -> String {
        let by = self.state.drain.view().by;
        let by: Vec<&str> = by.iter().map(|by| by.as_str()).collect();
        let by = (!by.is_empty()).then(|| format!("requested by: {}", by.join(", ")));
        by.into_iter().chain(self.annotation_fault.clone()).collect::<Vec<_>>().join("; ")
    }

    /// If a comparison has found a difference, the next round is computed from scratch. Returns whether that round is
    /// due now. Addresses and draining flows are in `memory` and stay.
    pub(super) fn heal(&mut self) -> bool {
        let different = self.desired.heal();
        if different.contains(&Layer::Snapshot) {
            self.publisher.recompile();
        }
        !different.is_empty()
    }
}

/// The addresses of Services that are refused because of an error in their manifest: no other Service gets them, so that
/// the Service has them again when the error is mended.
fn waiting(given: &Allocations, refused: &[RefusedObject]) -> BTreeSet<IpAddr> {
    let refused = refused.iter().filter(|refused| refused.kind == "Service");
    let holdings = refused.filter_map(|refused| {
        given.by_service.get(&refused.key).or_else(|| given.departed.get(&refused.key))
    });
    holdings.flat_map(Holdings::load_balancer).collect()
}

/// The drain of the gateway, for its `GatewayStatus`.
fn drain_phase(state: &State) -> DrainPhase {
    match state.drain.phase() {
        GatewayDrainState::Serving => DrainPhase::Serving,
        GatewayDrainState::Draining => DrainPhase::Draining,
        GatewayDrainState::Drained => DrainPhase::Drained,
    }
}

#[cfg(test)]
mod tests {
    use tidegate_policy::pools::Held;

    use super::*;

    #[test]
    fn a_change_whose_sender_no_longer_waits_is_not_made() {
        let (answer, waits) = oneshot::channel();
        let command = Command::DrainGateway(answer);
        assert!(!command.is_abandoned());
        drop(waits);
        assert!(command.is_abandoned());
        let (answer, waits) = oneshot::channel();
        drop(waits);
        assert!(Command::Drain("node-a".parse().expect("a node"), answer).is_abandoned());
    }

    #[test]
    fn addresses_of_refused_services_wait_for_them_before_and_after_a_restart() {
        let address = |n: u8| IpAddr::from([203, 0, 113, n]);
        let holds = |name: &str, n: u8| {
            (ObjectKey::new("shop", name), Holdings::new("", vec![Held::of_status(address(n))]))
        };
        let given = Allocations {
            by_service: [holds("served", 1), holds("just-loaded", 2)].into_iter().collect(),
            departed: [holds("known-before", 3), holds("deleted", 4)].into_iter().collect(),
        };
        let refused = |kind, name: &str| RefusedObject {
            kind,
            key: ObjectKey::new("shop", name),
            service: None,
            faults: Vec::new(),
        };
        let all = ["just-loaded", "known-before", "never-seen"].map(|name| refused("Service", name));
        assert_eq!(waiting(&given, &all), [address(2), address(3)].into());
        assert_eq!(waiting(&given, &[refused("EndpointSlice", "served")]), [].into());
    }
}
