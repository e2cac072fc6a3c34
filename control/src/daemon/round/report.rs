//! The last phase of a round: reports the published state to everything except the workers.
//!
//! The health checks get their targets and the health-check node ports are opened. The log, the cluster writer, the
//! owners on layer 2, the announcer and [`State`] get the round.
//!
//! Invariant: this happens only after the snapshot was published to the workers, because reporting may take time.

use std::net::SocketAddr;
use std::sync::Arc;

use jiff::Timestamp;
use tidegate_admin_api::GatewayDrainState;
use tidegate_announce::Announcer;
use tidegate_cluster::plan::{DrainPhase, Forwarding, Observation};
use tidegate_dataplane::gateway::Dataplane;
use tidegate_health::Checker;
use tidegate_model::config::GatewayConfig;
use tidegate_model::objects::Objects;
use tidegate_policy::reconcile::Finding;
use tokio::time::Instant;

use super::gather::Gatherer;
use super::publish::Published;
use crate::daemon::announcements;
use crate::daemon::cluster::Cluster;
use crate::daemon::last_round::Round;
use crate::daemon::layer2::{Layer2, Unable};
use crate::daemon::node_ports::{NodePorts, unopened};
use crate::daemon::round_log::RoundLog;
use crate::daemon::self_check::Subject;
use crate::daemon::state::State;

/// Everything that gets the rounds, except the cluster writer.
pub(in crate::daemon) struct Reporter {
    checker: Checker,
    pub(in crate::daemon) node_ports: NodePorts,
    layer2: Layer2,
    /// The VIPs that this gateway does not answer for.
    unable: Unable,
    log: RoundLog,
    announcer: Arc<Announcer>,
    /// The socket at which other gateways discover this one. It is fixed until the next start.
    flow_sharing: Option<SocketAddr>,
    /// The revision of the manifests of the last round.
    reconciled: u64,
    dataplane: Arc<Dataplane>,
    state: Arc<State>,
}

/// The components to which a [`Reporter`] passes rounds.
pub(in crate::daemon) struct Receivers {
    pub(in crate::daemon) checker: Checker,
    pub(in crate::daemon) node_ports: NodePorts,
    pub(in crate::daemon) layer2: Layer2,
    pub(in crate::daemon) announcer: Arc<Announcer>,
    pub(in crate::daemon) dataplane: Arc<Dataplane>,
    pub(in crate::daemon) state: Arc<State>,
}

impl Reporter {
    /// Nothing is reported yet.
    pub(in crate::daemon) fn new(receivers: Receivers, config: &GatewayConfig) -> Self {
        let Receivers { checker, node_ports, layer2, announcer, dataplane, state } = receivers;
        Self {
            checker,
            node_ports,
            layer2,
            unable: Unable::default(),
            log: RoundLog::default(),
            announcer,
            flow_sharing: config.finds_flow_peers().then(|| config.flow_sharing_socket()),
            reconciled: 0,
            dataplane,
            state,
        }
    }

    /// When there is something to log although nothing has changed.
    pub(in crate::daemon) fn due(&self) -> Option<Instant> {
        self.log.due()
    }

    /// Applies a change of the configuration of announcements.
    pub(in crate::daemon) fn configure(&self, config: &GatewayConfig) {
        self.announcer.configure(announcements::setup(config));
    }

    /// Releases all VIPs on layer 2 for good.
    pub(in crate::daemon) async fn leave_layer2(&self) {
        self.layer2.leave().await;
    }

    /// Reports the round. Returns the subject of a comparison, if one is due: nothing waits for it.
    pub(in crate::daemon) fn report(
        &mut self,
        published: Published<'_>,
        cluster: &mut Cluster,
    ) -> Option<Subject> {
        let (inputs, manifests) = (published.gathered.inputs, published.gathered.manifests);
        let (settings, outcome) = (&inputs.configuration.settings, &published.outcome);
        let change = (manifests.revision != self.reconciled).then(|| published.gathered.since_change());
        self.reconciled = manifests.revision;
        self.checker.set_targets(outcome.targets.clone());
        self.node_ports.set(&outcome.health_check_node_ports);
        // An API server lists every Node; a directory of manifests may omit some.
        let eligible = manifests.objects.is_eligible(settings.node.as_deref(), cluster.is_used());
        self.state.set_node_eligible(eligible);
        let own_findings = self.own_findings(&manifests.objects);
        let left_out = self.log.log(manifests, outcome, &own_findings, &published.problems);
        self.state.count_suppressed_lines(left_out);
        self.state.record_changes(outcome, &manifests.objects);
        self.dataplane.reclaim();
        let can_forward = self.state.health().ready;
        self.layer2.round(outcome, &settings.labels, can_forward);
        self.unable.log(outcome, settings.layer2.mode);
        self.offer(&published, &own_findings, cluster);
        let Published { gathered, outcome, problems, unapplied, subject, .. } = published;
        let (drained, ended) = (inputs.drained.targets().clone(), Timestamp::now());
        let manifests = manifests.clone();
        let round = Round { outcome, own_findings, unapplied, problems, manifests, drained, ended };
        self.announcer.offer(announcements::round(&round));
        self.state.round(round, gathered.took(), change);
        subject
    }

    /// The findings of this gateway alone: health-check node ports that it cannot bind, and symptoms in its traffic.
    fn own_findings(&self, objects: &Objects) -> Vec<Finding> {
        let failures = self.node_ports.failures();
        let unopened = failures.borrow().iter().map(|failure| unopened(failure, objects)).collect::<Vec<_>>();
        unopened.into_iter().chain(self.state.symptoms().findings.iter().cloned()).collect()
    }

    /// Passes the round to the cluster writer.
    fn offer(&self, published: &Published<'_>, own_findings: &[Finding], cluster: &mut Cluster) {
        let (inputs, manifests) = (published.gathered.inputs, published.gathered.manifests);
        let settings = &inputs.configuration.settings;
        let generations = self.state.generations();
        let drain_message = self.drain_message(inputs);
        cluster.offer(generations, |decides, waits_for| Observation {
            objects: Arc::clone(&manifests.objects),
            gateway_states: Arc::clone(inputs.gateway_api.states()),
            version: manifests.version,
            outcome: Arc::clone(&published.outcome),
            comparisons: published.comparisons,
            decides,
            waits_for,
            own_labels: settings.labels.clone(),
            own_addresses: settings.network.own_addresses(),
            own_flow_sharing: self.flow_sharing,
            forwarding: Forwarding {
                generation_desired: generations.desired,
                generation_applied: generations.applied,
                version_applied: published.version_applied(),
                keeps_services: manifests.keeps_services,
                unapplied: Arc::clone(&published.unapplied),
                publish_failure: self.state.publish_failure().map(|failure| failure.why),
                ready: self.state.health().ready,
                drain: drain_phase(&self.state),
                drain_message,
                links_lost: self.state.link_troubles(),
                hung: self.state.hung(),
            },
            source_connected: true,
            lease_holders: Arc::clone(&inputs.lease_holders),
            own_findings: own_findings.to_vec(),
        });
    }

    /// Who drains the gateway, and what is wrong with the annotation.
    fn drain_message(&self, inputs: &Gatherer) -> String {
        let by = self.state.drain.view().by;
        let by: Vec<&str> = by.iter().map(|by| by.as_str()).collect();
        let by = (!by.is_empty()).then(|| format!("requested by: {}", by.join(", ")));
        by.into_iter().chain(inputs.annotation_fault.clone()).collect::<Vec<_>>().join("; ")
    }
}

/// The drain of the gateway, for its `GatewayStatus`.
fn drain_phase(state: &State) -> DrainPhase {
    match state.drain.phase() {
        GatewayDrainState::Serving => DrainPhase::Serving,
        GatewayDrainState::Draining => DrainPhase::Draining,
        GatewayDrainState::Drained => DrainPhase::Drained,
    }
}
