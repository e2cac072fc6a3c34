//! Answers requests on the admin socket: queries about the running daemon, drains and reloads.
//!
//! Queries read [`State`] and the dataplane's counters. Changes go to the controller's loop as a [`Command`], which is
//! answered when it has been decided.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_admin_api::explain::{Explanation, Packet};
use tidegate_admin_api::{self as api, AdminError, FlowsQuery, WatchQuery};
use tidegate_cluster::DRAIN_ANNOTATION;
use tidegate_conntrack::NotRestored;
use tidegate_dataplane::gateway::{
    BackendFlowStats, InterfaceState, LinkState, LinkStatus, NegotiatedPort, PortReport, Restored,
    WorkerState,
};
use tidegate_model::diagnostic::Severity;
use tidegate_model::objects::ObjectKey;
use tidegate_model::time::whole_seconds;
use tidegate_policy::pools::PoolUsage;
use tidegate_policy::reconcile::{DrainTarget, Reason};
use tidegate_sharing::PeerStatus;
use tidegate_source::SourceState;
use tidegate_spec::ids::BackendId;
use tidegate_spec::ownership::BootTime;
use tidegate_structures::histogram::Durations;
use tokio::sync::{mpsc, oneshot};

use super::announcements;
use super::command::{Command, Drained};
use super::drops_view;
use super::flow_sharing::Shown;
use super::flows::{self, Listing};
use super::last_round::Round;
use super::layer2::Layer2View;
use super::network_view;
use super::refused;
use super::state::{State, timestamp};
use super::watches::Watches;
use crate::admin::AdminBackend;
use crate::explain::{Circumstances, explain, pool_of, refusal};

/// How long a listing waits for a worker.
const FLOWS_WAIT: Duration = Duration::from_millis(200);

/// The implementation of the admin socket.
#[derive(Debug)]
pub(super) struct Operator {
    pub(super) state: Arc<State>,
    pub(super) commands: mpsc::Sender<Command>,
    /// The kind of source, and its location for display.
    pub(super) source: (&'static str, String),
    /// `dataplane.flowTable.entriesPerCore`.
    pub(super) flow_entries: u64,
    /// The running traces and captures.
    pub(super) watches: Arc<Watches>,
}

impl Operator {
    /// Sends a command and waits for its answer.
    async fn request<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, AdminError> {
        let ending = || AdminError::Unavailable("the daemon is shutting down".to_owned());
        let (answer, answered) = oneshot::channel();
        self.commands.send(command(answer)).await.map_err(|_| ending())?;
        answered.await.map_err(|_| ending())
    }

    /// Lists flows on a thread that may block.
    async fn listing(&self, query: FlowsQuery) -> Result<Listing, AdminError> {
        let state = Arc::clone(&self.state);
        let listing = tokio::task::spawn_blocking(move || flows::list(&state.dataplane, &query)).await;
        listing.unwrap_or_else(|panic| {
            Err(AdminError::Unavailable(format!("listing the flows failed: {panic}")))
        })
    }

    /// A Service, with whether the workers have applied the shown state.
    fn shown(&self, round: &Round, service: &api::ServiceView) -> api::ServiceView {
        let key = ObjectKey::new(service.namespace.as_str(), service.name.as_str());
        let unapplied = round.unapplied.contains(&key).then(|| match self.state.publish_failure() {
            Some(failure) => failure.to_string(),
            None => "the workers have not applied the latest state yet".to_owned(),
        });
        let mut shown = api::ServiceView { unapplied, ..service.clone() };
        let since = self.state.since(&key);
        let text = |at: Option<Timestamp>| at.map(|at| whole_seconds(at).to_string());
        shown.since = text(since.state);
        shown.created = shown.created.take().or_else(|| text(since.seen));
        let own = round.own_findings.iter().filter(|finding| finding.object == key);
        shown.warnings.extend(own.map(|finding| finding.diagnostic.what.clone()));
        if let Some(layer2) = self.state.layer2() {
            layer2.complete(&mut shown);
        }
        shown
    }

    fn with_round<T: Default>(&self, read: impl FnOnce(&Round) -> T) -> T {
        self.state.last().map(|round| read(&round)).unwrap_or_default()
    }
}

impl AdminBackend for Operator {
    fn vrrp_check(&self, began: BootTime) -> Result<(), AdminError> {
        let health = self.state.health();
        let not_ready = (!health.ready).then(|| "the gateway is not ready to forward".to_owned());
        let layer2 = self
            .state
            .layer2()
            .ok_or_else(|| AdminError::Unavailable("the gateway is starting".to_owned()))?;
        layer2.vrrp_check(began, not_ready, self.state.is_cut_off()).map_err(AdminError::Unavailable)
    }

    fn status(&self) -> api::Status {
        let (health, generations) = (self.state.health(), self.state.generations());
        let stats = self.state.dataplane.stats();
        let neighbors = neighbors(&stats);
        let candidate = self.state.candidate();
        let announced = self.state.announcements();
        let sharing = self.state.flow_sharing();
        let mut status = api::Status {
            name: self.state.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started: self.state.started.to_string(),
            uptime_seconds: self.state.uptime().as_secs(),
            healthy: health.healthy,
            ready: health.ready,
            degraded: self.state.degraded(),
            flow_sharing: sharing.as_ref().map(flow_sharing),
            flow_log: self.state.flow_log().map(|log| log.status(&self.state.dataplane)),
            restored: stats.restored.as_ref().map(restored),
            selection_key: self.state.dataplane.selection_key().map(|key| key.fingerprint()),
            layer2: self.state.layer2().map(Layer2View::groups).unwrap_or_default(),
            generation_desired: generations.desired,
            generation_applied: generations.applied,
            cluster: self.state.cluster().map(|cluster| api::ClusterStatus {
                leads: cluster.leads,
                leader: candidate.leader.clone(),
                writes_pending: cluster.pending,
                writes_failed: cluster.writes_failed(),
            }),
            announce: announced.as_deref().and_then(announcements::shown),
            workers: stats.workers.iter().map(worker).collect(),
            latencies: self.state.latencies(&stats).named().map(latency).into(),
            interfaces: self.interfaces(&stats),
            neighbors,
            source: source(&self.source, &self.state.source_state()),
            drain: self.state.drain.view(),
            ..api::Status::default()
        };
        if let Some(round) = self.state.last() {
            let outcome = &round.outcome;
            let ports = || outcome.services.iter().flat_map(|service| &service.ports);
            status.services = outcome.services.len();
            status.services_pending = outcome.services.iter().filter(|s| s.pending.is_some()).count();
            status.backends_active = ports().map(|port| port.count(api::BackendViewState::Active)).sum();
            status.backends = ports().map(|port| port.backends.len()).sum();
            status.drained = round.drained.iter().map(ToString::to_string).collect();
            status.findings = round.findings().map(Into::into).collect();
            status.source.last_read = Some(round.ended.to_string());
            let faults = round.manifests.report.iter();
            let errors = faults.filter(|fault| fault.severity == Severity::Error);
            status.source.errors = errors.map(ToString::to_string).collect();
            status.refused = round.manifests.refused.iter().map(refused::described).collect();
        }
        if let Some(message) = self.state.refused_configuration() {
            status.findings.insert(0, refused_configuration(&status.name, message));
        }
        status
    }

    fn services(&self) -> api::ServicesAnswer {
        let flooded = self.state.dataplane.flooded_services();
        let shown = |round: &Round, service: &api::ServiceView| {
            let mut shown = self.shown(round, service);
            let ports = flooded
                .iter()
                .filter(|(namespace, name, _)| (namespace, name) == (&service.namespace, &service.name));
            shown
                .warnings
                .extend(ports.map(|(.., key)| format!("{key}: SYN flood, answered by SYN cookies")));
            shown
        };
        self.with_round(|round| api::ServicesAnswer {
            services: refused::services(
                round.outcome.services.iter().map(|service| shown(round, service)).collect(),
                &round.manifests.refused,
            ),
            findings: round.findings().map(Into::into).collect(),
        })
    }

    fn backends(&self) -> api::BackendsAnswer {
        let active = active_flows(&self.state.backend_flows());
        let mut counted = BTreeMap::new();
        for service in self.state.dataplane.service_stats() {
            for backend in service.backends {
                let key = (service.key.vip, service.key.protocol, service.key.port);
                counted.insert((key, backend.address.ip(), backend.port), backend);
            }
        }
        let dataplane = &self.state.dataplane;
        let known = dataplane.neighbors().path_mtus().known(dataplane.now());
        let paths: BTreeMap<IpAddr, u16> = known.map(|path| (path.backend.ip(), path.mtu)).collect();
        let mut answer = self.with_round(|round| api::BackendsAnswer {
            backends: api::BackendRow::of_services(&round.outcome.services, |port, backend| {
                let key = (port.vip, port.protocol, port.port);
                let path_mtu = paths.get(&backend.address).copied();
                let counts = counted.get(&(key, backend.address, backend.port));
                api::BackendForwarding {
                    connections: counts.map(|counts| counts.connections),
                    active: counts.map(|counts| active.get(&counts.id).copied().unwrap_or(0)),
                    packets: counts.map(|counts| counts.traffic.iter().map(|one| one.packets).sum()),
                    bytes: counts.map(|counts| counts.traffic.iter().map(|one| one.bytes).sum()),
                    set_aside_workers: counts.map(|counts| counts.set_aside).filter(|&workers| workers > 0),
                    path_mtu: path_mtu.filter(|_| port.mode.is_tunnel()),
                }
            }),
        });
        // The rows of a Service follow each other.
        for rows in
            answer.backends.chunk_by_mut(|a, b| (&a.namespace, &a.service) == (&b.namespace, &b.service))
        {
            let since =
                self.state.since(&ObjectKey::new(rows[0].namespace.as_str(), rows[0].service.as_str()));
            for row in rows {
                row.since = since.backend(&row.backend).map(|at| whole_seconds(at).to_string());
            }
        }
        answer
    }

    async fn flows(&self, query: FlowsQuery) -> Result<api::FlowsAnswer, AdminError> {
        let listing = match query.limit {
            0 => None,
            _ => Some(self.listing(query).await?),
        };
        let stats = self.state.dataplane.stats();
        let worker = |worker: &tidegate_dataplane::gateway::WorkerStats| api::WorkerFlows {
            worker: worker.worker,
            flows: worker.flows,
            capacity: self.flow_entries,
        };
        let counts = api::FlowsAnswer {
            workers: stats.workers.iter().map(worker).collect(),
            evictions: stats.evictions.iter().map(|(why, n)| reason(why.as_str(), *n)).collect(),
            refused: stats.flows_refused,
            ..api::FlowsAnswer::default()
        };
        Ok(match listing {
            None => counts,
            Some(Listing { rows, more, silent_workers }) => {
                api::FlowsAnswer { flows: rows, more, silent_workers, ..counts }
            }
        })
    }

    async fn delete_flows(&self, query: FlowsQuery) -> Result<api::DeletedFlowsAnswer, AdminError> {
        let state = Arc::clone(&self.state);
        let deleting = move || flows::delete(&state.dataplane, &query);
        let deleted = tokio::task::spawn_blocking(deleting).await;
        deleted.unwrap_or_else(|panic| {
            Err(AdminError::Unavailable(format!("deleting the flows failed: {panic}")))
        })
    }

    fn neighbors(&self) -> api::NeighborsAnswer {
        let routes = self.with_round(|round| round.outcome.spec.network.routes.clone());
        network_view::neighbors(&self.state.dataplane, &routes)
    }

    fn routes(&self) -> api::RoutesAnswer {
        let dataplane = &self.state.dataplane;
        self.with_round(|round| network_view::routes(dataplane, &round.outcome.spec.network))
    }

    fn drops(&self) -> api::DropsAnswer {
        drops_view::drops(&self.state.dataplane)
    }

    fn events(&self, selection: &api::EventsSelection) -> api::EventsAnswer {
        let events = self.state.events.select(selection);
        api::EventsAnswer { events: events.iter().map(|event| api::EventRow::from(&**event)).collect() }
    }

    fn pools(&self) -> api::PoolsAnswer {
        self.with_round(|round| api::PoolsAnswer {
            pools: round.outcome.pools.iter().map(|usage| pool(round, usage)).collect(),
        })
    }

    fn traffic(&self) -> api::TrafficAnswer {
        let services = self.state.dataplane.service_stats().into_iter();
        let services = services.map(|service| api::ServiceTraffic {
            vip: SocketAddr::new(service.key.vip, service.key.port),
            protocol: service.key.protocol.to_string(),
            packets: service.traffic.iter().map(|one| one.packets).sum(),
            bytes: service.traffic.iter().map(|one| one.bytes).sum(),
            connections: service.backends.iter().map(|backend| backend.connections).sum(),
            namespace: service.namespace,
            service: service.name,
            port_name: service.port_name,
        });
        api::TrafficAnswer { services: services.collect() }
    }

    fn watch(&self, query: WatchQuery) -> Result<api::WatchAnswer, AdminError> {
        self.watches.begin(&self.state.dataplane, &query)
    }

    async fn watched(&self, id: u64) -> Result<api::WatchedAnswer, AdminError> {
        self.watches.take(&self.state.dataplane, id).await
    }

    fn unwatch(&self, id: u64) -> Result<api::UnwatchAnswer, AdminError> {
        self.watches.end(id)
    }

    fn metrics(&self) -> String {
        self.state.metrics()
    }

    fn explain(&self, packet: &Packet) -> Result<Explanation, AdminError> {
        let dataplane = &self.state.dataplane;
        let (known_flow, affinity, silent_workers) = flows::known(dataplane, packet, FLOWS_WAIT);
        let (refused, pool) = self.with_round(|round| {
            let pool = pool_of(&round.outcome.pools, packet).map(str::to_owned);
            (refusal(&round.outcome.services, packet), pool)
        });
        let (refused, pool) = (refused.as_deref(), pool.as_deref());
        let set_aside = dataplane.set_aside();
        Ok(dataplane.with_snapshot(|snapshot| {
            let (neighbors, now) = (dataplane.neighbors(), dataplane.now());
            let about = Circumstances {
                neighbors,
                now,
                refused,
                pool,
                assumes_neighbors: false,
                known_flow,
                affinity,
                silent_workers,
                set_aside: &set_aside,
            };
            explain(snapshot, about, packet)
        }))
    }

    async fn drain(&self, target: DrainTarget) -> Result<api::DrainAnswer, AdminError> {
        let (backends, is_node) =
            self.with_round(|round| (covered(round, &target), is_node_object(round, &target)));
        if backends == 0 && !is_node {
            return Err(AdminError::NotFound(format!(
                "no backend or node {target}; accepted: an entry of `tidegate backends`"
            )));
        }
        let Drained { targets, not_kept } =
            self.request(|answer| Command::Drain(target.clone(), answer)).await?;
        Ok(api::DrainAnswer { target: target.to_string(), backends, drained: targets, not_kept })
    }

    async fn undrain(&self, target: DrainTarget) -> Result<api::DrainAnswer, AdminError> {
        let backends = self.with_round(|round| covered(round, &target));
        match self.request(|answer| Command::Undrain(target.clone(), answer)).await? {
            Some(Drained { targets, not_kept }) => {
                Ok(api::DrainAnswer { target: target.to_string(), backends, drained: targets, not_kept })
            }
            None => Err(AdminError::NotFound(format!(
                "{target} is not drained; accepted: a target that `tidegate status` lists as drained"
            ))),
        }
    }

    async fn drain_gateway(&self) -> Result<api::GatewayDrainAnswer, AdminError> {
        let not_kept = self.request(Command::DrainGateway).await?;
        Ok(self.gateway_drain(not_kept))
    }

    async fn undrain_gateway(&self) -> Result<api::GatewayDrainAnswer, AdminError> {
        let name = &self.state.name;
        let answer = self.request(Command::UndrainGateway).await?;
        let drain = &self.state.drain;
        if drain.is_requested(api::DrainRequester::Signal) {
            return Err(AdminError::Conflict(format!(
                "gateway {name} is stopping, so its drain cannot be cancelled"
            )));
        }
        if drain.is_requested(api::DrainRequester::Annotation) {
            return Err(AdminError::Conflict(format!(
                "gateway {name} still drains because its GatewayStatus has the annotation {DRAIN_ANNOTATION}; accepted: \
                 `kubectl annotate gatewaystatus {name} {DRAIN_ANNOTATION}-`, which takes effect within ten seconds"
            )));
        }
        match answer {
            Some(not_kept) => Ok(self.gateway_drain(not_kept)),
            None => Err(AdminError::NotFound(format!(
                "gateway {name} is not drained; accepted: `tidegate drain --gateway` first"
            ))),
        }
    }

    async fn reload(&self) -> Result<api::ReloadAnswer, AdminError> {
        self.request(Command::Reload).await
    }

    async fn diff(&self, config: Option<PathBuf>) -> Result<api::DiffAnswer, AdminError> {
        let answer = self.request(|answer| Command::Diff(config, answer)).await?;
        answer.ok_or_else(|| AdminError::Conflict("another `tidegate diff` is in progress".to_owned()))
    }
}

impl Operator {
    fn gateway_drain(&self, not_kept: Option<String>) -> api::GatewayDrainAnswer {
        api::GatewayDrainAnswer { gateway: self.state.name.clone(), drain: self.state.drain.view(), not_kept }
    }

    fn interfaces(&self, stats: &tidegate_dataplane::gateway::Stats) -> Vec<api::InterfaceStatus> {
        let interfaces = self.state.dataplane.interfaces().iter().zip(&stats.interfaces);
        let links = self.state.dataplane.links().report();
        let reports = self.state.dataplane.links().port_reports();
        interfaces
            .zip(links)
            .zip(reports)
            .map(|(((interface, counts), link), report)| api::InterfaceStatus {
                name: interface.name.clone(),
                device: interface.device.clone(),
                mac: interface.mac.to_string(),
                link_up: link.port.state == LinkState::Up,
                link: link_status(link.port),
                tap: link.tap.map(|(name, tap)| api::TapStatus { name, link: link_status(tap) }),
                port: port_status(interface, &report),
                rx_packets: counts.rx_packets,
                rx_bytes: counts.rx_bytes,
                tx_packets: counts.tx_packets,
                tx_bytes: counts.tx_bytes,
            })
            .collect()
    }
}

/// The finding that the latest configuration is not in use.
fn refused_configuration(name: &str, message: String) -> api::FindingView {
    api::FindingView {
        object: format!("GatewayConfig/{name}"),
        reason: api::CONFIGURATION_REFUSED.to_owned(),
        severity: "error".to_owned(),
        location: None,
        message,
        accepted: None,
    }
}

fn port_status(interface: &InterfaceState, report: &PortReport) -> api::PortStatus {
    let NegotiatedPort { queues, rx_descriptors, tx_descriptors, rss, .. } = interface.negotiated;
    let missed = report.stats.iter().find(|(name, _)| name == "rx_missed_errors");
    api::PortStatus {
        driver: interface.driver.clone(),
        mtu: interface.mtu,
        speed_mbps: report.mbps,
        queues,
        rx_descriptors,
        tx_descriptors,
        rss: rss.to_string(),
        rx_offloads: interface.negotiated.rx_offloads.clone(),
        tx_offloads: interface.negotiated.tx_offloads.clone(),
        rx_missed: missed.map_or(0, |(_, value)| *value),
    }
}

fn link_status(link: LinkStatus) -> api::LinkStatus {
    api::LinkStatus {
        state: link.state.to_string(),
        since: timestamp(link.since).to_string(),
        transitions: link.transitions,
    }
}

/// A pool, with its object if it has one.
fn pool(round: &Round, usage: &PoolUsage) -> api::PoolView {
    let objects = &round.manifests.objects.address_pools;
    // A pool of the configuration takes precedence over an object with the same name.
    let is_object = objects.get(&usage.pool).is_some_and(|object| {
        let own = round.outcome.findings.iter().filter(|finding| finding.object == object.meta.key);
        !own.into_iter().any(|finding| finding.reason == Reason::PoolNotAccepted) || !object.faults.is_empty()
    });
    let object = is_object.then(|| format!("AddressPool/{}", usage.pool));
    api::PoolView { object, ..api::PoolView::from(usage) }
}

fn worker(worker: &tidegate_dataplane::gateway::WorkerStats) -> api::WorkerStatus {
    let state = match worker.state {
        WorkerState::Starting => "starting",
        WorkerState::Running => "running",
        WorkerState::Stopped => "stopped",
        WorkerState::Failed => "failed",
        WorkerState::Hung => "hung",
    };
    api::WorkerStatus {
        worker: worker.worker,
        core: worker.core,
        state: state.to_owned(),
        busy_ratio: worker.busy_ratio,
        cycles_per_packet: worker.cycles_per_packet,
        flows: worker.flows,
        flow_table_pages: worker.flow_memory.pages.as_str().to_owned(),
        flow_table_bytes: worker.flow_memory.bytes as u64,
    }
}

fn restored(found: &Restored) -> api::RestoredStatus {
    let reasons = NotRestored::ALL.iter().zip(found.counts.not_restored).filter(|(_, count)| *count > 0);
    api::RestoredStatus {
        done: found.is_done,
        flows: found.counts.restored,
        not_restored: reasons.map(|(why, count)| (why.as_str().to_owned(), count)).collect(),
        refused_tables: found.refused_tables,
        milliseconds: u64::try_from(found.took.as_millis()).unwrap_or(u64::MAX),
    }
}

fn latency((name, latency): (&'static str, &Durations)) -> api::LatencyStatus {
    let micros = |nanos: u64| nanos as f64 / 1000.0;
    api::LatencyStatus {
        name: name.to_owned(),
        count: latency.count(),
        p50_us: micros(latency.quantile(0.5)),
        p99_us: micros(latency.quantile(0.99)),
        max_us: micros(latency.quantile(1.0)),
    }
}

pub(super) fn neighbors(stats: &tidegate_dataplane::gateway::Stats) -> api::NeighborsStatus {
    let tidegate_dataplane::gateway::NeighborUsage { next_hops, next_hops_max, on_demand, on_demand_max } =
        stats.neighbors;
    api::NeighborsStatus { next_hops, next_hops_max, on_demand, on_demand_max }
}

fn flow_sharing(shown: &Shown) -> api::FlowSharingStatus {
    let peer = |peer: &PeerStatus| api::FlowPeerStatus {
        address: peer.address.to_string(),
        name: peer.name.clone(),
        state: if shown.is_absent(peer) { "absent" } else { peer.state.as_str() }.to_owned(),
        heard_ago_milliseconds: peer.silent_for.map(|ago| u64::try_from(ago.as_millis()).unwrap_or(u64::MAX)),
        waiting: peer.waiting,
        unacknowledged: peer.in_flight,
        key: peer.key.clone(),
    };
    api::FlowSharingStatus {
        mode: shown.mode.to_owned(),
        key: shown.keys.own.clone(),
        accepted_key: shown.keys.accepted.clone(),
        finds_peers: shown.finds_peers,
        peers: shown.peers.iter().map(peer).collect(),
    }
}

fn source((kind, location): &(&'static str, String), state: &SourceState) -> api::SourceStatus {
    api::SourceStatus {
        kind: (*kind).to_owned(),
        location: location.clone(),
        connected: state.connected,
        since: Some(state.since.to_string()),
        last_sync: state.last_sync(Timestamp::now()).map(|at| at.to_string()),
        last_error: state.last_error.clone(),
        from_disk: state.from_disk,
        kept: state.kept.iter().map(ToString::to_string).collect(),
        ..api::SourceStatus::default()
    }
}

/// Backends of service ports that a drain covers.
fn covered(round: &Round, target: &DrainTarget) -> usize {
    let ports = round.outcome.services.iter().flat_map(|service| &service.ports);
    let backends = ports.flat_map(|port| &port.backends);
    backends.filter(|b| target.covers(b.address, b.port, b.node.as_deref())).count()
}

/// Whether the target is a Node that the gateway knows. It can be drained before it has endpoints.
fn is_node_object(round: &Round, target: &DrainTarget) -> bool {
    matches!(target, DrainTarget::Node(name) if round.manifests.objects.nodes.contains_key(name))
}

fn reason(reason: &str, count: u64) -> api::ReasonCount {
    api::ReasonCount { reason: reason.to_owned(), count }
}

/// The established flows of each backend that has any.
fn active_flows(flows: &[BackendFlowStats]) -> BTreeMap<BackendId, u64> {
    let mut active = BTreeMap::new();
    for one in flows {
        *active.entry(one.backend).or_default() += one.established();
    }
    active
}
