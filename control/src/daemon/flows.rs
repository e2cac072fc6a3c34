//! Lists and deletes flows: converts the query to the dataplane's types, and the result to names and addresses.
//!
//! A listing waits for workers up to a time limit, so it runs on a separate thread. Flows of Services that are removed
//! meanwhile are omitted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_admin_api::explain::{KnownFlow, Packet};
use tidegate_admin_api::{
    AdminError, BackendName, DeletedFlowsAnswer, FlowOrder, FlowRow, FlowRowKind, FlowState, FlowsQuery,
    ServiceName,
};
use tidegate_conntrack::{FlowKind, FlowView, Phase};
use tidegate_dataplane::gateway::Dataplane;
use tidegate_dataplane::worker::FlowFilter;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::service::{BackendInfo, ServiceInfo};
use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::limits::WORKERS_MAX;
use tidegate_wire::rewrite::Endpoint;
use tidegate_wire::{Addr, proto};

/// The maximum wait for the workers. A worker needs a tenth of it for a table of a million flows.
const LISTING_MAX: Duration = Duration::from_secs(2);

/// Why flows can't be sorted by their bytes.
const NO_BYTES: &str = "only flows in the flow log have a number of bytes, and this gateway has no flow log: set \
                        flowLog.file or flowLog.ipfix in its configuration, and restart it";

/// The result of a listing.
pub(super) struct Listing {
    /// In the requested order.
    pub(super) rows: Vec<FlowRow>,
    /// Whether there are more flows than the limit.
    pub(super) more: bool,
    /// The number of workers that have not answered in time.
    pub(super) silent_workers: usize,
}

/// Lists flows. May wait.
///
/// # Errors
/// If the given names are not served, or the order needs a flow log and there is none.
pub(super) fn list(dataplane: &Dataplane, query: &FlowsQuery) -> Result<Listing, AdminError> {
    let filter = dataplane.with_snapshot(|snapshot| filter(snapshot, query))?;
    // One more flow shows whether the limit was exceeded.
    let limit = query.limit.saturating_add(1);
    let (flows, silent_workers) = match query.order {
        FlowOrder::Service => dataplane.flows(&filter, limit, LISTING_MAX),
        FlowOrder::Bytes if dataplane.flow_logs().is_empty() => {
            return Err(AdminError::BadRequest(NO_BYTES.to_owned()));
        }
        FlowOrder::Bytes => dataplane.flows_with_most_bytes(&filter, limit, LISTING_MAX),
    };
    let more = flows.len() > query.limit;
    let named = |snapshot: &Snapshot| -> Vec<FlowRow> {
        flows.iter().take(query.limit).filter_map(|flow| row(snapshot, flow)).collect()
    };
    let mut rows = dataplane.with_snapshot(named);
    if query.order == FlowOrder::Service {
        rows.sort_by(|a, b| {
            let key = |row: &FlowRow| (row.vip, row.client, row.kind);
            (&a.namespace, &a.service, &a.port_name)
                .cmp(&(&b.namespace, &b.service, &b.port_name))
                .then(key(a).cmp(&key(b)))
        });
    }
    Ok(Listing { rows, more, silent_workers })
}

/// Deletes flows. May wait.
///
/// # Errors
/// If the given names are not served.
pub(super) fn delete(dataplane: &Dataplane, query: &FlowsQuery) -> Result<DeletedFlowsAnswer, AdminError> {
    let filter = dataplane.with_snapshot(|snapshot| filter(snapshot, query))?;
    let (deleted, silent_workers) = dataplane.remove_flows(&filter, LISTING_MAX);
    Ok(DeletedFlowsAnswer { deleted, silent_workers })
}

/// The entries of the flow tables for a packet: the flow of its 5-tuple, the backend that its client has by session
/// affinity, and the number of workers that did not answer in time. Waits for at most `timeout`.
pub(super) fn known(
    dataplane: &Dataplane,
    packet: &Packet,
    timeout: Duration,
) -> (Option<KnownFlow>, Option<SocketAddr>, usize) {
    let (to, proto) = (packet.destination, packet.protocol.0.number());
    let vip = Addr::from(to.ip());
    let hash = Snapshot::hash_service(&vip, proto, to.port());
    let service = |snapshot: &Snapshot| {
        snapshot.service(hash, &vip, proto, to.port()).map(|service| (service.id, service.affinity_ms))
    };
    let Some((service, affinity_ms)) = dataplane.with_snapshot(service) else { return (None, None, 0) };
    // So few entries match that the limit is never reached, however many flows the client has.
    let filter = FlowFilter {
        services: Some([service].into()),
        client: Some(packet.source.ip().into()),
        client_port: Some(packet.source.port()),
        ..FlowFilter::default()
    };
    let (flows, silent_workers) = dataplane.flows(&filter, KNOWN_MAX, timeout);
    let (client, flows): (Vec<_>, Vec<_>) =
        flows.into_iter().partition(|flow| flow.kind == FlowKind::Affinity);
    // If workers disagree, the one that the client reached last is right.
    let own = client.into_iter().min_by_key(|flow| flow.idle_ms).map(|flow| flow.backend);
    let shared = dataplane.shared_affinity(service, packet.source.ip().into(), affinity_ms);
    dataplane.with_snapshot(|snapshot| {
        let known_flow = flows.iter().find_map(|flow| address(snapshot, flow.backend));
        let affinity = [shared, own].into_iter().flatten().find_map(|id| address(snapshot, id));
        (known_flow.map(|backend| KnownFlow { backend }), affinity, silent_workers)
    })
}

/// Enough for the flow and the affinity entry of a packet on each worker.
const KNOWN_MAX: usize = 2 * WORKERS_MAX;

fn address(snapshot: &Snapshot, id: BackendId) -> Option<SocketAddr> {
    snapshot.backend(id).map(|backend| SocketAddr::new(backend.address.ip(), backend.port))
}

/// Converts names to ids.
fn filter(snapshot: &Snapshot, query: &FlowsQuery) -> Result<FlowFilter, AdminError> {
    Ok(FlowFilter {
        services: query.service.as_ref().map(|name| service_ids(snapshot, name)).transpose()?,
        backends: query.backend.map(|name| backend_ids(snapshot, name)).transpose()?,
        client: query.client.map(Into::into),
        client_port: query.client_port,
        phase: query.state.map(|state| match state {
            FlowState::Opening => Phase::Opening,
            FlowState::Established => Phase::Established,
            FlowState::Closing => Phase::Closing,
            FlowState::Closed => Phase::Closed,
        }),
        idle_ms_min: query.idle_seconds_min.saturating_mul(1000),
    })
}

/// The service ports with this name.
///
/// # Errors
/// None of them is served.
pub(super) fn service_ids(snapshot: &Snapshot, name: &ServiceName) -> Result<Arc<[ServiceId]>, AdminError> {
    let infos = snapshot.services().map(|(_, info)| info);
    found(
        infos.filter(|info| is_service(name, info)).map(|info| info.id).collect(),
        &format!("Service {name}"),
    )
}

/// The backends with this name, at all service ports.
///
/// # Errors
/// None of them is served.
pub(super) fn backend_ids(snapshot: &Snapshot, name: BackendName) -> Result<Arc<[BackendId]>, AdminError> {
    let all = snapshot.services().flat_map(|(_, info)| &info.backends);
    found(all.filter(|one| is_backend(name, one)).map(|one| one.id).collect(), &format!("backend {name}"))
}

fn found<T>(ids: Arc<[T]>, what: &str) -> Result<Arc<[T]>, AdminError> {
    if ids.is_empty() {
        return Err(AdminError::NotFound(format!("{what} is not served")));
    }
    Ok(ids)
}

fn is_service(name: &ServiceName, info: &ServiceInfo) -> bool {
    name.name == info.name
        && name.namespace.as_ref().is_none_or(|namespace| *namespace == info.namespace)
        && name.port.as_ref().is_none_or(|port| *port == info.port_name || *port == info.key.port.to_string())
}

fn is_backend(name: BackendName, info: &BackendInfo) -> bool {
    info.address.ip() == name.address && name.port.is_none_or(|port| port == info.port)
}

fn row(snapshot: &Snapshot, flow: &FlowView) -> Option<FlowRow> {
    let (kind, source) = match flow.kind {
        FlowKind::Masquerade { proto, peer, local } => return Some(masquerade(flow, proto, peer, local)),
        FlowKind::Dsr => (FlowRowKind::Dsr, None),
        FlowKind::Affinity => (FlowRowKind::Affinity, None),
        FlowKind::Nat { source, source_port, .. } => {
            (FlowRowKind::Nat, Some(SocketAddr::new(source.ip(), source_port)))
        }
    };
    let info = snapshot.service_info(flow.service)?;
    Some(FlowRow {
        namespace: info.namespace.clone(),
        service: info.name.clone(),
        port_name: info.port_name.clone(),
        protocol: info.key.protocol.to_string(),
        client: SocketAddr::new(flow.client.ip(), flow.client_port),
        vip: SocketAddr::new(info.key.vip, info.key.port),
        backend: address(snapshot, flow.backend),
        mode: info.mode.to_string(),
        kind,
        source: source.filter(|source| source.ip() != flow.client.ip()),
        state: flow.phase.as_str().to_owned(),
        idle_seconds: flow.idle_ms / 1000,
        packets: flow.traffic.map(|traffic| traffic.packets),
        bytes: flow.bytes(),
    })
}

/// A masqueraded flow, which belongs to no Service.
fn masquerade(flow: &FlowView, proto: u8, peer: Endpoint, local: Endpoint) -> FlowRow {
    let socket = |end: Endpoint| SocketAddr::new(end.addr.ip(), end.port);
    FlowRow {
        namespace: String::new(),
        service: String::new(),
        port_name: String::new(),
        protocol: protocol_name(proto).to_owned(),
        client: SocketAddr::new(flow.client.ip(), flow.client_port),
        vip: socket(peer),
        backend: None,
        mode: FlowRowKind::Masquerade.as_str().to_owned(),
        kind: FlowRowKind::Masquerade,
        source: Some(socket(local)),
        state: flow.phase.as_str().to_owned(),
        idle_seconds: flow.idle_ms / 1000,
        packets: None,
        bytes: None,
    }
}

/// The name of the protocol of a masqueraded flow.
fn protocol_name(number: u8) -> &'static str {
    match number {
        proto::TCP => "TCP",
        proto::UDP => "UDP",
        _ => "ICMP",
    }
}
