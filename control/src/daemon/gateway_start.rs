//! Starts everything except the dataplane, and connects the components.
//!
//! Invariant: a component starts before those that need it. A failure ends everything started so far.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use tidegate_announce::Announcer;
use tidegate_cluster::{ClusterWriter, FlowPeers};
use tidegate_dataplane::gateway::Dataplane;
use tidegate_events::Recorder;
use tidegate_health::{Checker, Limits, NetworkProber};
use tidegate_model::config::GatewayConfig;
use tokio::sync::{mpsc, watch};

use super::command::Command;
use super::controller::Controller;
use super::flow_sharing::{ApplyChanges, FlowExchange};
use super::gateway::{Gateway, Guards};
use super::inputs::{FromCluster, Inputs, Signals};
use super::layer2::Layer2;
use super::list_copies::Lists;
use super::start::{self, Listeners, Source};
use super::state::State;
use super::task_watchdog::Vital;
use super::{announcements, drain_watch, flood_log, flow_log, kube_proxy, observer};

impl Gateway {
    /// Starts everything except the dataplane.
    pub(super) async fn start(
        path: &Path,
        config: GatewayConfig,
        lists: Lists,
        dataplane: &Arc<Dataplane>,
        events: &Arc<Recorder>,
        failures: watch::Receiver<Option<String>>,
        changes: watch::Receiver<()>,
    ) -> anyhow::Result<Self> {
        let source = Source::open(&config)?;
        let prober = NetworkProber::new().through(Arc::clone(dataplane.probes()));
        let checker = Checker::start(prober, Limits::for_this_process(), &config.name);
        let verdicts = checker.verdicts();
        let state = state(&config, dataplane, events, &checker, &source);
        let (operator, commands) = mpsc::channel(16);
        let flow_peers = Arc::default();
        let flow_exchange = share_flows(&config, dataplane, &state, operator.clone(), &flow_peers)?;
        let listeners = start::listeners(&config, &state, operator).await?;
        let cluster = start::cluster(&config, &source);
        if let Some(cluster) = &cluster {
            state.join_cluster(cluster.counts(), cluster.name_taken());
            let _ = flow_peers.set(cluster.flow_peers());
        }
        let from_cluster = FromCluster::of(cluster.as_ref());
        let mut vital = Vital::default();
        let kube_proxy = kube_proxy::follow(&config, &mut vital);
        vital.task("the task that logs SYN floods", flood_log::follow(dataplane));
        let flow_log = flow_log::start(&config, dataplane, |log| state.log_flows(log), &mut vital)?;
        let (symptoms, observer) = observer::follow(&state);
        vital.task("the task that looks for misconfigurations", observer);
        let addresses = start::address_file(&config);
        let announcer = announcements::start(&config, &state)?;
        let layer2 = layer2(&config, dataplane, &state, cluster.as_ref(), &source)?;
        let parts = Parts {
            source: &source,
            checker: &checker,
            listeners: &listeners,
            flow_exchange: flow_exchange.as_ref(),
            cluster: cluster.as_ref(),
            layer2: &layer2,
            announcer: &announcer,
        };
        parts.add_to(&mut vital);
        let lease_holders = layer2.holders();
        let mut controller = Controller::new(
            config,
            path,
            Arc::clone(dataplane),
            Arc::clone(&state),
            checker,
            (cluster, layer2),
            Arc::clone(&announcer),
        );
        controller.keep_earlier_backends();
        addresses.into_iter().for_each(|addresses| controller.resume(addresses));
        controller.begin_with(lists);
        let inputs = Inputs {
            manifests: source.updates(),
            seen: None,
            source,
            verdicts,
            unbound: controller.unbound(),
            symptoms,
            cluster: from_cluster,
            drain: state.drain.changes(),
            kube_proxy,
            lease_holders,
            commands,
            failures,
            changes,
            comparisons: controller.comparisons_end(),
            signals: Signals::receive()?,
        };
        vital.sender("the task that serves health-check node ports", controller.unbound());
        let drain_watch = drain_watch::follow(&state);
        vital.task("the task that counts packets during a drain", drain_watch.task());
        let guards = Guards::new(listeners, flow_exchange, drain_watch);
        Ok(Self { _guards: guards, controller, inputs, state, stops_at: None, announcer, flow_log, vital })
    }
}

/// The state that other tasks read. From now on, health checks count failures only while the gateway can forward.
fn state(
    config: &GatewayConfig,
    dataplane: &Arc<Dataplane>,
    events: &Arc<Recorder>,
    checker: &Checker,
    source: &Source,
) -> Arc<State> {
    let state = State::new(
        config.name.clone(),
        Arc::clone(dataplane),
        Arc::clone(events),
        checker.counts(),
        source.state(),
        source.connector(),
    );
    let state = Arc::new(state);
    let of_checks = Arc::downgrade(&state);
    checker.fail_only_while(move || of_checks.upgrade().is_none_or(|state| state.can_forward()));
    state.configure(config);
    state
}

/// Starts sharing flows with other gateways, if configured.
fn share_flows(
    config: &GatewayConfig,
    dataplane: &Arc<Dataplane>,
    state: &Arc<State>,
    commands: mpsc::Sender<Command>,
    flow_peers: &Arc<OnceLock<FlowPeers>>,
) -> anyhow::Result<Option<FlowExchange>> {
    let for_exchange = Arc::clone(state);
    let can_import = move || for_exchange.forwards();
    let changes = (&state.recent_changes, apply_changes(commands));
    let links = (state.sharing_keys(), start::snat_links(dataplane, state));
    let flow_exchange = FlowExchange::start(config, dataplane, can_import, changes, flow_peers, links)?;
    if let Some(exchange) = &flow_exchange {
        state.share_flows(exchange.shown());
    }
    Ok(flow_exchange)
}

/// Returns a function that passes changes of backends from other gateways to the controller.
fn apply_changes(commands: mpsc::Sender<Command>) -> ApplyChanges {
    Box::new(move |moved, answer| match commands.try_send(Command::ImportChanges(moved, answer)) {
        Err(mpsc::error::TrySendError::Full(Command::ImportChanges(moved, _))) => Some(moved),
        // Either the controller has them, or the gateway is stopping.
        _ => None,
    })
}

/// Starts the keeper of the VIPs on layer 2.
fn layer2(
    config: &GatewayConfig,
    dataplane: &Arc<Dataplane>,
    state: &Arc<State>,
    cluster: Option<&ClusterWriter>,
    source: &Source,
) -> anyhow::Result<Layer2> {
    let of_layer2 = Arc::clone(state);
    let is_cut_off = move || of_layer2.is_cut_off();
    let ownership = dataplane.neighbors().ownership();
    let (layer2, view) = Layer2::start(config, cluster.zip(source.connector()), ownership, is_cut_off)?;
    state.join_layer2(view);
    Ok(layer2)
}

/// The components whose tasks and threads must not end.
struct Parts<'a> {
    source: &'a Source,
    checker: &'a Checker,
    listeners: &'a Listeners,
    flow_exchange: Option<&'a FlowExchange>,
    cluster: Option<&'a ClusterWriter>,
    layer2: &'a Layer2,
    announcer: &'a Arc<Announcer>,
}

impl Parts<'_> {
    fn add_to(&self, vital: &mut Vital) {
        vital.sender("the task that reads the objects", self.source.updates());
        vital.sender("the task that reports whether the objects can be read", self.source.state());
        vital.sender("the task that runs the health checks", self.checker.verdicts());
        self.listeners.add_to(vital);
        if let Some(exchange) = self.flow_exchange {
            vital.sender("flow sharing", exchange.lives());
        }
        for task in self.cluster.into_iter().flat_map(ClusterWriter::tasks) {
            vital.task("the task that writes to the API server", task.clone());
        }
        if let Some(task) = self.layer2.task() {
            vital.task("the task that decides which VIPs this gateway owns on layer 2", task);
        }
        let of_announcements = Arc::clone(self.announcer);
        vital.add("the announcer thread", move || of_announcements.has_ended());
    }
}
