//! Runs one round of the control loop: collects the inputs, reconciles, and publishes the result to the workers.
//!
//! The daemon's loop owns it; nothing else changes the desired state. Each [`Controller::apply`] is one round: it
//! runs the [`Reconciler`], publishes if the outcome differs from the last one, sets the targets of the health
//! checks, and logs every new finding within the limits of [`FaultLog`].
//!
//! Invariant: a round that fails changes nothing; the last good state stays in use.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use jiff::Timestamp;
use tidegate_cluster::plan::{Forwarding, Observation};
use tidegate_cluster::{ClusterWriter, PeerReleases, ReleaseTracker};
use tidegate_core::snapshot::{Problem, SharedService, SnapshotSpec};
use tidegate_dataplane::gateway::Dataplane;
use tidegate_health::Checker;
use tidegate_health::health_check_node_port::{Bind, BindFailure, HealthCheckNodePorts};
use tidegate_model::config::{self, GatewayConfig};
use tidegate_model::diagnostic::{Diagnostic, Report, Severity};
use tidegate_model::health::{HealthCheckNodePort, Verdicts};
use tidegate_model::objects::ObjectKey;
use tidegate_policy::reconcile::{DrainTarget, Finding, Input, Memory, Outcome, Reconciler, Settings};
use tidegate_source::SourceUpdate;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::address_file::AddressFile;
use super::drains::Drains;
use super::fault_log::FaultLog;
use super::reload;
use super::self_check::{Layer, SelfCheck, Subject};
use super::state::{Round, State};
use crate::admin::api::ReloadAnswer;
use crate::assemble;
use crate::logging;

/// How long a round waits for the workers to apply its snapshot. Only a worker that hangs takes longer, and
/// `/healthz` then reports it.
const APPLY_MAX: Duration = Duration::from_millis(500);
/// How long the round polls the workers without yielding its thread.
const APPLY_SOON: Duration = Duration::from_millis(2);
const APPLY_POLL: Duration = Duration::from_micros(50);
/// If the workers did not apply a round in time, it is checked again after this time: other gateways may wait until
/// this one reports a withdrawal.
const APPLY_AGAIN: Duration = Duration::from_secs(1);

/// A request of the operator that changes the desired state. The answer is sent when it is decided.
#[derive(Debug)]
pub(super) enum Command {
    /// Drain a backend, or all backends of a node. The answer is the list of everything that is drained.
    Drain(DrainTarget, oneshot::Sender<Drained>),
    /// Undrain. The answer is the list of everything that is still drained, or `None` if the target was not drained.
    Undrain(DrainTarget, oneshot::Sender<Option<Drained>>),
    /// Read configuration and manifests again.
    Reload(oneshot::Sender<ReloadAnswer>),
}

/// The result of a drain or undrain.
#[derive(Debug)]
pub(super) struct Drained {
    /// All of it.
    pub(super) targets: Vec<String>,
    /// Why a restart would forget it.
    pub(super) not_kept: Option<String>,
}

/// See the module.
pub(super) struct Controller {
    path: PathBuf,
    config: GatewayConfig,
    settings: Settings,
    dataplane: Arc<Dataplane>,
    state: Arc<State>,
    checker: Checker,
    node_ports: HealthCheckNodePorts,
    manifests: Option<SourceUpdate>,
    /// The revision of the manifests that the last round was made from.
    reconciled: u64,
    verdicts: Verdicts,
    drained: Drains,
    memory: Memory,
    /// The file of the addresses of Services, if there is no API server.
    addresses: Option<AddressFile>,
    /// The round whose spec was last given to the workers.
    published: Option<Arc<Outcome>>,
    /// The last round that every worker has applied.
    applied: Option<Arc<Outcome>>,
    generation: u64,
    /// Since when the workers have a snapshot that is not known to be applied by each of them.
    handed_over: Option<std::time::Instant>,
    reconcile_at: Option<Duration>,
    /// The last settings of the health-check node ports.
    listening: Arc<[HealthCheckNodePort]>,
    /// The node has a kube-proxy, which serves these ports.
    has_kube_proxy: bool,
    reconciler: Reconciler,
    self_check: SelfCheck,
    /// The snapshot in use was revised wrongly: the next one is compiled from scratch, though its spec says the same.
    recompiles: bool,
    started: Instant,
    /// The writer to the cluster, if the objects come from an API server.
    cluster: Option<ClusterWriter>,
    fleet: PeerReleases,
    releases: ReleaseTracker,
    /// The version of the newest Services that all workers have applied.
    version_applied: u64,
    /// When to pass the last round to it again.
    offer_at: Option<Instant>,
    told: Logged,
}

/// What has been logged.
#[derive(Default)]
struct Logged {
    /// The faults that still exist, and the budget of lines of each namespace.
    faults: FaultLog,
    /// What that was made of.
    findings: Arc<[Finding]>,
    report: Arc<Report>,
    unbound: Vec<BindFailure>,
    problems: Vec<Problem>,
}

impl Controller {
    /// A controller that has published nothing yet.
    pub(super) fn new(
        config: GatewayConfig,
        path: &Path,
        dataplane: Arc<Dataplane>,
        state: Arc<State>,
        checker: Checker,
        cluster: Option<ClusterWriter>,
    ) -> Self {
        let settings = settings(&config, &dataplane);
        let own = settings.network.interface_addresses().map(IpNet::addr);
        let bind = Bind::new(&config.services.node_port_addresses, own);
        let self_check = SelfCheck::new(Arc::clone(&state.comparisons));
        let health = Arc::clone(&state);
        let node_ports = HealthCheckNodePorts::start(&bind, move || health.health());
        Self {
            path: path.to_owned(),
            drained: Drains::open(&config),
            config,
            settings,
            dataplane,
            state,
            checker,
            node_ports,
            manifests: None,
            reconciled: 0,
            verdicts: Verdicts::default(),
            memory: Memory::default(),
            addresses: None,
            published: None,
            applied: None,
            generation: 0,
            handed_over: None,
            reconcile_at: None,
            reconciler: Reconciler::default(),
            self_check,
            recompiles: false,
            started: Instant::now(),
            cluster,
            fleet: PeerReleases::default(),
            releases: ReleaseTracker::default(),
            version_applied: 0,
            offer_at: None,
            told: Logged::default(),
            listening: Arc::default(),
            has_kube_proxy: false,
        }
    }

    /// Loads the addresses that Services had in the last run, and saves later ones.
    pub(super) fn resume(&mut self, mut addresses: AddressFile) {
        self.memory.allocations = addresses.load();
        self.addresses = Some(addresses);
    }

    /// Changes when a health-check node port cannot be bound, or can be again.
    pub(super) fn unbound(&self) -> watch::Receiver<Vec<BindFailure>> {
        self.node_ports.failures()
    }

    /// Changes when a comparison of incremental results has ended: [`Self::heal`] is to be called then.
    pub(super) fn comparisons_end(&self) -> watch::Receiver<()> {
        self.self_check.ends()
    }

    /// The configuration in force.
    pub(super) fn config(&self) -> &GatewayConfig {
        &self.config
    }

    /// When a round is due though nothing changes.
    pub(super) fn due(&self) -> Option<Instant> {
        let reconcile_at = self.reconcile_at.map(|at| self.started + at);
        let save_at = self.addresses.as_ref().and_then(AddressFile::due);
        // Before the first objects there is no round to compare.
        let compare_at = self.manifests.as_ref().and_then(|_| self.self_check.due(&self.config.self_check));
        let told_at = self.told.faults.due();
        let all = [reconcile_at, self.offer_at, save_at, self.drained.due(), compare_at, told_at];
        all.into_iter().flatten().min()
    }

    /// Sets what is known about the other gateways.
    pub(super) fn set_peers(&mut self, fleet: &PeerReleases) {
        if self.fleet != *fleet {
            self.fleet = fleet.clone();
        }
    }

    /// Sets whether the node has a kube-proxy, which then serves the health-check node ports.
    pub(super) fn share_node(&mut self, has_kube_proxy: bool) {
        if self.has_kube_proxy == has_kube_proxy {
            return;
        }
        self.has_kube_proxy = has_kube_proxy;
        if has_kube_proxy {
            tracing::info!("this node runs kube-proxy: kube-proxy serves the health-check node ports");
        } else {
            tracing::info!(
                "this node no longer runs kube-proxy: Tidegate serves the health-check node ports"
            );
        }
    }

    /// Tells the cluster writer to shut down normally.
    pub(super) async fn leave_cluster(&mut self) {
        if let Some(cluster) = self.cluster.take() {
            cluster.leave().await;
        }
    }

    /// Sets the current state of the source; `None` before its first state.
    pub(super) fn take(&mut self, manifests: SourceUpdate) {
        self.manifests = Some(manifests).filter(|update| update.revision > 0);
    }

    /// Sets the results of the health checks.
    pub(super) fn set_verdicts(&mut self, verdicts: Verdicts) {
        self.verdicts = verdicts;
    }

    /// Carries out a request of the operator. It takes effect with the next round.
    pub(super) fn execute(&mut self, command: Command) {
        // Whoever asked may have gone: then nobody waits for the answer.
        match command {
            Command::Drain(target, answer) => {
                tracing::info!(%target, "draining");
                self.drained.insert(target);
                let _ = answer.send(self.drained());
            }
            Command::Undrain(target, answer) => {
                tracing::info!(%target, "no longer draining");
                let was_drained = self.drained.remove(&target);
                let _ = answer.send(was_drained.then(|| self.drained()));
            }
            Command::Reload(answer) => {
                let _ = answer.send(self.reload());
            }
        }
    }

    fn drained(&self) -> Drained {
        Drained {
            targets: self.drained.targets().iter().map(ToString::to_string).collect(),
            not_kept: self.drained.trouble().map(str::to_owned),
        }
    }

    /// Reads the configuration again. A configuration that is refused, or that needs a restart, changes nothing.
    pub(super) fn reload(&mut self) -> ReloadAnswer {
        let loaded = config::load(&self.path);
        loaded.report.iter().for_each(logging::diagnostic);
        let mut report: Vec<String> = loaded.report.iter().map(ToString::to_string).collect();
        let refused = match loaded.config {
            None => {
                tracing::error!("the new configuration is refused: keeping the previous one");
                let is_error = |one: &&Diagnostic| one.severity == Severity::Error;
                Some(loaded.report.iter().find(is_error).map_or_else(String::new, ToString::to_string))
            }
            Some(config) => {
                let fixed = reload::fixed_parts_that_differ(&self.config, &config).join(", ");
                if fixed.is_empty() {
                    self.settings = settings(&config, &self.dataplane);
                    self.state.configure(&config);
                    self.config = config;
                    tracing::info!("configuration reloaded");
                    None
                } else {
                    let refused =
                        format!("a change of {fixed} needs a restart: keeping the previous configuration");
                    tracing::error!("{refused}");
                    report.push(refused.clone());
                    Some(refused)
                }
            }
        };
        let accepted = refused.is_none();
        self.state.refuse_configuration(refused);
        ReloadAnswer { accepted, report }
    }

    /// Runs one round; `seen` is when its first change was seen. Reconcile and compile run here, on the thread of the
    /// daemon's loop. Listeners, checks and sources run on other threads and do not wait for it.
    pub(super) async fn apply(&mut self, seen: Option<std::time::Instant>) {
        let Some(manifests) = self.manifests.clone() else { return };
        let began = Instant::now();
        self.check_surroundings(&manifests);
        self.heal();
        let (outcome, subject) = self.reconcile(&manifests);
        self.reconcile_at = outcome.reconcile_at;
        self.memory = outcome.memory.clone();
        if let Some(addresses) = &mut self.addresses {
            // Before anybody can use one of them: a restart gives them to the same Services.
            addresses.save(&self.memory.allocations).await;
        }
        self.drained.keep_again();
        let addresses = self.addresses.as_ref().and_then(AddressFile::trouble);
        self.state.leave_unsaved(addresses, self.drained.trouble().map(str::to_owned));
        let problems = self.publish(&outcome).await.unwrap_or_else(|| self.state.problems());
        // A worker may have been slow in an earlier round.
        self.note_applied();
        let is_forwarded = self.is_published(&outcome.spec);
        if is_forwarded && self.dataplane.applied_generation() >= self.generation {
            self.version_applied = manifests.version;
            self.applied = Some(Arc::clone(&outcome));
        }
        let unapplied = Arc::new(unapplied(self.applied.as_deref(), &outcome));
        let seen = seen.map_or(manifests.seen, |seen| seen.min(manifests.seen));
        let change = (manifests.revision != self.reconciled).then(|| seen.elapsed());
        self.reconciled = manifests.revision;
        // Only now, when the workers have it: what others are told may take its time.
        self.checker.set_targets(outcome.targets.clone());
        let listening = match self.has_kube_proxy {
            true => Arc::default(),
            false => Arc::clone(&outcome.health_check_node_ports),
        };
        if !Arc::ptr_eq(&self.listening, &listening) {
            self.listening = listening;
            self.node_ports.set(self.listening.to_vec());
        }
        // An API server has every Node; a directory need not.
        let eligible = manifests.objects.is_eligible(self.settings.node.as_deref(), self.cluster.is_some());
        self.state.set_node_eligible(eligible);
        self.tell(&manifests, &outcome, &problems);
        self.dataplane.reclaim();
        self.offer(&manifests, &outcome, &unapplied);
        let (drained, ended) = (self.drained.targets().clone(), Timestamp::now());
        let round = Round { outcome, unapplied, problems, manifests, drained, ended };
        self.state.round(round, began.elapsed(), change);
        // After all that others wait for.
        if let Some(mut subject) = subject {
            let published = self.published.as_ref();
            subject.snapshot = published.map(|last| (self.dataplane.keep_snapshot(), Arc::clone(last)));
            self.self_check.begin(subject);
        }
    }

    /// Which gateway decides on addresses in this round, and which addresses are withheld because other gateways may
    /// still serve them.
    fn check_surroundings(&mut self, manifests: &SourceUpdate) {
        if self.cluster.is_none() {
            return;
        }
        let (services, given) = (&manifests.objects.services, &self.memory.allocations);
        self.releases.see(services, given, manifests.version, &self.fleet);
        self.settings.authority = self.releases.authority(&self.fleet);
        self.settings.other_gateways = Arc::clone(&self.fleet.addresses);
    }

    /// Passes the round to the cluster writer.
    fn offer(
        &mut self,
        manifests: &SourceUpdate,
        outcome: &Arc<Outcome>,
        unapplied: &Arc<BTreeSet<ObjectKey>>,
    ) {
        let generations = self.state.generations();
        // Also where nobody is told: what is shown of the Services follows.
        let is_behind = generations.applied < generations.desired;
        self.offer_at = is_behind.then(|| Instant::now() + APPLY_AGAIN);
        let Some(cluster) = &self.cluster else { return };
        let failures = self.node_ports.failures();
        let own = failures.borrow();
        let own = own.iter().map(|failure| {
            let service = manifests.objects.services.get(&failure.service);
            Finding::of_unopened_port(
                &failure.service,
                failure.address,
                &failure.error,
                service.map(AsRef::as_ref),
            )
        });
        cluster.offer(Observation {
            objects: Arc::clone(&manifests.objects),
            version: manifests.version,
            outcome: Arc::clone(outcome),
            comparisons: self.self_check.due_count(),
            decides: self.fleet.leads,
            waits_for: self.releases.waits_for(&self.fleet),
            own_addresses: self.settings.network.own_addresses(),
            forwarding: Forwarding {
                generation_desired: generations.desired,
                generation_applied: generations.applied,
                version_applied: self.version_applied,
                keeps_services: manifests.keeps_services,
                unapplied: Arc::clone(unapplied),
                publish_failure: self.state.publish_failure().map(|failure| failure.why),
                ready: self.state.health().ready,
                links_lost: self.state.link_troubles(),
            },
            source_connected: true,
            own_findings: own.collect(),
        });
    }

    /// If a comparison has found a difference, the next round is computed from scratch. Returns whether that round is
    /// due now. Addresses and draining flows are in `memory` and stay.
    pub(super) fn heal(&mut self) -> bool {
        let different = self.self_check.collect();
        for layer in &different {
            match layer {
                Layer::Reconcile | Layer::Allocation => self.reconciler = Reconciler::default(),
                Layer::Snapshot => self.recompiles = true,
            }
        }
        !different.is_empty()
    }

    /// The desired state, and the subject of a comparison if one is due.
    fn reconcile(&mut self, manifests: &SourceUpdate) -> (Arc<Outcome>, Option<Subject>) {
        let input = Input {
            settings: &self.settings,
            objects: &manifests.objects,
            verdicts: &self.verdicts,
            drained: self.drained.targets(),
            memory: &self.memory,
            generation: self.generation + 1,
            now: self.started.elapsed(),
        };
        let outcome = Arc::new(self.reconciler.reconcile(&input));
        if self.reconciler.taken_up() > 0 {
            self.self_check.changed();
        }
        let is_due = self.self_check.is_due(&self.config.self_check);
        if is_due {
            self.self_check.takes_round();
        }
        let subject =
            is_due.then(|| Subject { round: self.reconciler.round(&input, &outcome), snapshot: None });
        (outcome, subject)
    }

    /// Publishes a spec that differs from the last one, and waits for the workers to apply it. Returns the problems
    /// of parts that are left out; `None` if nothing was published.
    async fn publish(&mut self, outcome: &Arc<Outcome>) -> Option<Vec<Problem>> {
        let spec = &outcome.spec;
        if self.is_published(spec) && !self.recompiles {
            // What could not be published is no longer asked for.
            self.state.published();
            return None;
        }
        let published = match self.recompiles {
            true => self.dataplane.publish_from_scratch(spec),
            false => self.dataplane.publish(spec),
        };
        let published = match published {
            Ok(published) => published,
            Err(error) => {
                let why = error.to_string();
                if self.state.publish_failed(&why) {
                    tracing::error!(
                        reason = why,
                        "cannot publish the desired state: the last good state keeps forwarding"
                    );
                }
                return None;
            }
        };
        if self.state.published() {
            tracing::info!("the desired state is published again");
        }
        self.recompiles = false;
        self.published = Some(Arc::clone(outcome));
        self.generation = spec.generation;
        self.handed_over.get_or_insert(published.handed_over);
        self.state.desire(spec.generation);
        self.wait_for_workers().await;
        self.note_applied();
        let (generation, services) = (published.generation, spec.services.len());
        tracing::debug!(generation, services, "published");
        Some(published.problems)
    }

    /// Whether the workers already have an equal spec.
    fn is_published(&self, spec: &SnapshotSpec) -> bool {
        self.published.as_ref().is_some_and(|last| last.spec.says_the_same(spec))
    }

    /// Records how long the workers took to apply a snapshot, when each of them has applied it. If another snapshot
    /// followed meanwhile, both count as one.
    fn note_applied(&mut self) {
        if self.dataplane.applied_generation() >= self.generation
            && let Some(since) = self.handed_over.take()
        {
            self.state.applied(since.elapsed());
        }
    }

    async fn wait_for_workers(&self) {
        let began = Instant::now();
        // A worker that is busy comes by within microseconds, one that sleeps within a millisecond.
        while began.elapsed() < APPLY_SOON {
            if self.dataplane.applied_generation() >= self.generation {
                return;
            }
            std::thread::sleep(APPLY_POLL);
        }
        let latest = began + APPLY_MAX;
        while self.dataplane.applied_generation() < self.generation && Instant::now() < latest {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Logs new faults. A fault that ended is logged again if it returns.
    fn tell(&mut self, manifests: &SourceUpdate, outcome: &Outcome, problems: &[Problem]) {
        let unbound = self.node_ports.failures().borrow().clone();
        let (told, now) = (&mut self.told, Instant::now());
        if Arc::ptr_eq(&told.findings, &outcome.findings)
            && (Arc::ptr_eq(&told.report, &manifests.report) || told.report == manifests.report)
            && (&*told.problems, &told.unbound) == (problems, &unbound)
        {
            logging::left_out(&told.faults.summaries(now));
            return;
        }
        let of_namespaces = manifests.faults_of_namespaces.iter();
        let of_namespaces = of_namespaces
            .flat_map(|(namespace, report)| report.iter().map(|fault| (namespace.clone(), fault.clone())));
        let theirs: BTreeSet<&Diagnostic> =
            manifests.faults_of_namespaces.values().flat_map(Report::iter).collect();
        let others = manifests.report.iter().filter(|fault| !theirs.contains(fault));
        let others = others.map(|fault| (String::new(), fault.clone()));
        let findings = outcome
            .findings
            .iter()
            .map(|finding| (finding.object.namespace.clone(), finding.diagnostic.clone()));
        let unbound_findings = unbound.iter().map(|failure| {
            let service = manifests.objects.services.get(&failure.service);
            let finding = Finding::of_unopened_port(
                &failure.service,
                failure.address,
                &failure.error,
                service.map(AsRef::as_ref),
            );
            (failure.service.namespace.clone(), finding.diagnostic)
        });
        let left_out = problems.iter().map(|problem| {
            let namespace = namespace_of(problem, &outcome.spec.services).unwrap_or_default();
            (namespace.to_owned(), Diagnostic::warning(problem.to_string()))
        });
        let faults = of_namespaces.chain(others).chain(findings).chain(unbound_findings).chain(left_out);
        let news = told.faults.news(faults.collect(), now);
        news.faults.iter().for_each(logging::diagnostic);
        logging::left_out(&news.left_out);
        self.state.log_lines_left_out(news.left_out_now);
        told.findings = Arc::clone(&outcome.findings);
        told.report = Arc::clone(&manifests.report);
        told.unbound = unbound;
        told.problems = problems.to_vec();
    }
}

/// The namespace of the Service that a problem is about; `services` are sorted by key.
fn namespace_of<'a>(problem: &Problem, services: &'a [SharedService]) -> Option<&'a str> {
    let key = match problem {
        Problem::Backend { service, .. }
        | Problem::TableTooSmall { service, .. }
        | Problem::WeightsDivided { service, .. } => service,
        Problem::RouterOffLink { .. }
        | Problem::RouteShadowed { .. }
        | Problem::RouterTableFull { .. }
        | Problem::NeighborOffLink { .. }
        | Problem::NeighborTableFull { .. } => return None,
    };
    let at = services.binary_search_by(|service| service.key.cmp(key)).ok()?;
    Some(&services[at].namespace)
}

/// The Services whose newest state the workers have not applied yet: their service ports differ from those of the
/// last applied round.
fn unapplied(applied: Option<&Outcome>, newest: &Outcome) -> BTreeSet<ObjectKey> {
    let before = applied.map_or(&[][..], |outcome| &outcome.spec.services);
    let now = &newest.spec.services[..];
    let named = |spec: &SharedService| ObjectKey::new(spec.namespace.as_str(), spec.name.as_str());
    let mut found = BTreeSet::new();
    let (mut i, mut j) = (0, 0);
    // Both are sorted by key.
    while i < before.len() || j < now.len() {
        match (before.get(i), now.get(j)) {
            (Some(was), Some(is)) if was.key == is.key => {
                if !was.is_same(is) && was != is {
                    found.extend([named(was), named(is)]);
                }
                (i, j) = (i + 1, j + 1);
            }
            (Some(was), Some(is)) if was.key > is.key => {
                found.insert(named(is));
                j += 1;
            }
            (None, Some(is)) => {
                found.insert(named(is));
                j += 1;
            }
            (Some(was), _) => {
                found.insert(named(was));
                i += 1;
            }
            (None, None) => break,
        }
    }
    found
}

/// The settings of reconcile, with the values that the ports report.
fn settings(config: &GatewayConfig, dataplane: &Dataplane) -> Settings {
    let ports = assemble::dataplane_config(config);
    let interfaces = tidegate_dataplane::gateway::interface_specs(&ports, dataplane.interfaces());
    assemble::settings(config, interfaces)
}
