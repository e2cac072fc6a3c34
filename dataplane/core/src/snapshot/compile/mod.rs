//! Compiles a spec to a snapshot: checks it, programs what is possible, keeps ids, builds tables.
//!
//! Runs on a control thread. A fault that concerns everything refuses the spec; a fault of one part becomes a
//! [`Problem`], and that part is left out. Everything is sorted by identity first, so the order of the spec does not
//! matter. The only side effects are on the neighbour table: next hops get slots, fixed ones their addresses.
//!
//! Invariant: after an error the neighbour table is unchanged: slots that were taken are released.

mod holds;
mod identity;
mod network;
mod revise;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

pub(super) use holds::Holds;
use identity::Ids;
use network::Network;

use super::problem::{CompileError, Problem};
use super::spec::{
    BackendSpec, BackendState, Scheduler, ServiceKey, ServiceSpec, SharedService, SnapshotSpec,
};
use super::{Fresh, Interface, NetworkSpec, Shared, Snapshot};
use crate::backend::{Backend, Backends, Endpoints};
use crate::chunked::Chunked;
use crate::ids::{BackendId, EndpointId, InterfaceIndex, ServiceId};
use crate::limits;
use crate::maglev::{self, Tables};
use crate::neighbors::{NeighborSlot, NeighborTable};
use crate::rendezvous::{self, Identity, Rendezvous};
use crate::selector::{Selector, Slots};
use crate::service::{BackendInfo, Service, ServiceInfo, Services};
use crate::source_ranges::{Sets, SourceRanges};
use crate::wire::{Addr, Family};

impl Snapshot {
    /// Compiles a spec. Objects that exist in `previous` keep their ids, and unchanged Maglev tables are shared with
    /// it. Next hops get their slots in `neighbors`.
    ///
    /// If the mode of a service port changes from or to NAT, its backends get new ids: their flows are of a different
    /// kind.
    ///
    /// # Errors
    /// [`CompileError`]: the spec exceeds a limit or contradicts itself. Problems of single backends, routes and
    /// neighbours are in the result; those parts are left out, and the rest works.
    pub fn compile(
        spec: &SnapshotSpec,
        previous: Option<&Snapshot>,
        neighbors: &NeighborTable,
    ) -> Result<(Snapshot, Vec<Problem>), CompileError> {
        if let Some(revised) = previous.and_then(|previous| revise::revise(spec, previous, neighbors)) {
            return Ok(revised);
        }
        compile_anew(spec, previous, neighbors)
    }
}

impl Snapshot {
    /// Compiles everything from scratch. Only ids, and Maglev tables of equal backends, are those of `previous`.
    ///
    /// # Errors
    /// Same as for [`Self::compile`].
    pub fn compile_from_scratch(
        spec: &SnapshotSpec,
        previous: Option<&Snapshot>,
        neighbors: &NeighborTable,
    ) -> Result<(Snapshot, Vec<Problem>), CompileError> {
        compile_anew(spec, previous, neighbors)
    }
}

/// [`Snapshot::compile`] without an attempt to revise the previous snapshot.
pub(super) fn compile_anew(
    spec: &SnapshotSpec,
    previous: Option<&Snapshot>,
    neighbors: &NeighborTable,
) -> Result<(Snapshot, Vec<Problem>), CompileError> {
    let interfaces = interfaces(spec)?;
    check_network(spec)?;
    let services = sorted_services(spec)?;
    let mut problems = Problems::default();

    let mut hold = neighbors.hold();
    let network = Network::build(spec, &services, interfaces, &mut hold, &mut problems.network);
    let programmed: Vec<Programmed<'_>> = (0..)
        .zip(services)
        .map(|(rank, service)| {
            let mut found = Vec::new();
            let programmed = network.program(service, &mut hold, &mut found);
            problems.left_out(rank, found);
            programmed
        })
        .collect();
    let ids = Ids::assign(&programmed, previous);
    let static_neighbors = network.set_static(spec, previous, &mut hold, &mut problems.neighbors);
    let holds = Holds::of(hold);
    let snapshot = assemble(spec, previous, network, &programmed, ids, (static_neighbors, holds), problems);
    let problems = snapshot.lineage.problems.all();
    Ok((snapshot, problems))
}

/// The input of the next compile in addition to the tables. Workers do not read it.
#[derive(Debug)]
pub(super) struct Lineage {
    /// The network of the spec.
    network: Shared<NetworkSpec>,
    /// The services, in the order in which the spec listed them.
    services: Chunked<SharedService>,
    /// The position of each service in the order of keys.
    ranks: Arc<[u32]>,
    /// The number of backends in the spec, including those left out.
    backends: usize,
    problems: Problems,
    pub(super) fresh: Fresh,
    /// Whether next hops and announced addresses are those of the previous snapshot.
    pub(super) same_outside: bool,
}

impl Lineage {
    /// All problems of the spec.
    pub(super) fn problems(&self) -> Vec<Problem> {
        self.problems.all()
    }

    /// The parts of the stored spec that differ from `spec`, and the stored counts: for a comparison.
    pub(super) fn basis(&self, spec: &SnapshotSpec) -> impl Debug {
        let Self { network, services, ranks, backends, problems: _, fresh: _, same_outside: _ } = self;
        let other = services.iter().zip(&spec.services).find(|(known, given)| known != given);
        let other = other.map(|(known, _)| known.clone());
        (services.len(), other, *network == spec.network, *backends, Arc::clone(ranks))
    }
}

/// Problems by the objects that they concern, so that those of unchanged objects are kept.
#[derive(Debug, Clone, Default)]
struct Problems {
    network: Vec<Problem>,
    /// Problems of backends, by the position of their service in the order of keys.
    left_out: BTreeMap<usize, Vec<Problem>>,
    neighbors: Vec<Problem>,
    /// Problems of the selection, by the position of the service in the order of keys.
    selection: BTreeMap<usize, Problem>,
}

impl Problems {
    fn left_out(&mut self, rank: usize, found: Vec<Problem>) {
        if found.is_empty() {
            self.left_out.remove(&rank);
        } else {
            self.left_out.insert(rank, found);
        }
    }

    fn selection(&mut self, rank: usize, found: Option<Problem>) {
        match found {
            Some(problem) => self.selection.insert(rank, problem),
            None => self.selection.remove(&rank),
        };
    }

    fn all(&self) -> Vec<Problem> {
        let of_backends = self.left_out.values().flatten();
        let all =
            self.network.iter().chain(of_backends).chain(&self.neighbors).chain(self.selection.values());
        all.cloned().collect()
    }
}

/// A service port with its backends sorted by identity.
struct Sorted<'a> {
    spec: &'a ServiceSpec,
    vip: Addr,
    backends: Vec<(Addr, &'a BackendSpec)>,
}

/// The backends of a service port that can be reached, with their next hops.
struct Programmed<'a> {
    spec: &'a ServiceSpec,
    vip: Addr,
    backends: Vec<Reachable<'a>>,
}

struct Reachable<'a> {
    spec: &'a BackendSpec,
    address: Addr,
    interface: InterfaceIndex,
    neighbor: NeighborSlot,
}

fn at_most(what: &'static str, count: usize, max: usize) -> Result<(), CompileError> {
    if count > max { Err(CompileError::TooMany { what, count, max }) } else { Ok(()) }
}

fn interfaces(spec: &SnapshotSpec) -> Result<Arc<[Interface]>, CompileError> {
    at_most("interfaces", spec.network.interfaces.len(), limits::INTERFACES_MAX)?;
    let mut seen = HashSet::<IpAddr>::new();
    for address in spec.network.interfaces.iter().flat_map(|interface| &interface.addresses) {
        if !seen.insert(address.addr()) {
            return Err(CompileError::DuplicateAddress { address: address.addr() });
        }
    }
    let interface = |spec| {
        Interface::new(spec)
            .ok_or_else(|| CompileError::Vlan { interface: spec.name.clone(), vlan: spec.vlan.unwrap_or(0) })
    };
    spec.network.interfaces.iter().map(interface).collect()
}

fn check_network(spec: &SnapshotSpec) -> Result<(), CompileError> {
    at_most("routes", spec.network.routes.len(), limits::ROUTES_MAX)?;
    at_most("snatAddresses", spec.network.snat_addresses.len(), limits::SNAT_ADDRESSES_MAX)?;
    at_most("neighbors", spec.network.neighbors.len(), limits::NEXT_HOPS_MAX)?;
    let mut seen = HashSet::new();
    if let Some(neighbor) = spec.network.neighbors.iter().find(|neighbor| !seen.insert(neighbor.ip)) {
        return Err(CompileError::DuplicateNeighbor { ip: neighbor.ip });
    }
    let mut seen = HashSet::new();
    match spec.network.routes.iter().find(|route| !seen.insert(route.to.trunc())) {
        Some(route) => Err(CompileError::DuplicateRoute { to: route.to }),
        None => Ok(()),
    }
}

fn sorted_services(spec: &SnapshotSpec) -> Result<Vec<Sorted<'_>>, CompileError> {
    at_most("service ports", spec.services.len(), limits::SERVICES_MAX)?;
    at_most(
        "backends",
        spec.services.iter().map(|service| service.backends.len()).sum(),
        limits::BACKENDS_MAX,
    )?;
    let mut services =
        spec.services.iter().map(|spec| sorted_service(spec)).collect::<Result<Vec<_>, _>>()?;
    let key = |service: &Sorted<'_>| (service.vip, service.spec.key.protocol, service.spec.key.port);
    services.sort_by_key(key);
    match services.windows(2).find(|pair| key(&pair[0]) == key(&pair[1])) {
        Some(pair) => Err(CompileError::DuplicateService { service: pair[0].spec.key }),
        None => Ok(services),
    }
}

fn sorted_service(spec: &ServiceSpec) -> Result<Sorted<'_>, CompileError> {
    let service = spec.key;
    if service.port == 0 {
        return Err(CompileError::ServicePortZero { service });
    }
    if let Scheduler::Maglev { slots: size } = spec.scheduler
        && !(size <= limits::MAGLEV_SLOTS_MAX && maglev::is_prime(size))
    {
        return Err(CompileError::TableSize { service, size });
    }
    if spec.backends.len() > limits::BACKENDS_PER_SERVICE_MAX {
        return Err(CompileError::TooManyBackends { service, count: spec.backends.len() });
    }
    if let Some(ranges) = &spec.source_ranges
        && ranges.len() > limits::SOURCE_RANGES_MAX
    {
        return Err(CompileError::TooManySourceRanges { service, count: ranges.len() });
    }
    let mut backends: Vec<_> =
        spec.backends.iter().map(|backend| (Addr::from(backend.address), backend)).collect();
    let key = |&(address, backend): &(Addr, &BackendSpec)| (address, backend.port);
    backends.sort_unstable_by_key(key);
    if let Some(pair) = backends.windows(2).find(|pair| key(&pair[0]) == key(&pair[1])) {
        return Err(CompileError::DuplicateBackend { service, backend: socket(pair[0].1) });
    }
    Ok(Sorted { spec, vip: service.vip.into(), backends })
}

fn socket(backend: &BackendSpec) -> SocketAddr {
    SocketAddr::new(backend.address, backend.port)
}

fn assemble(
    spec: &SnapshotSpec,
    previous: Option<&Snapshot>,
    network: Network,
    programmed: &[Programmed<'_>],
    ids: Ids,
    (static_neighbors, holds): (Arc<[NeighborSlot]>, Holds),
    mut problems: Problems,
) -> Snapshot {
    let tables = previous.map(|snapshot| snapshot.tables.clone()).unwrap_or_default();
    let mut sets = Sets::default();
    let mut admission = previous.map_or(0, |snapshot| snapshot.admission);
    let mut services = Vec::with_capacity(programmed.len());
    let mut backends = Vec::with_capacity(ids.backends.len());
    for (rank, (service, &id)) in programmed.iter().zip(&ids.services).enumerate() {
        let start = backends.len();
        let end = start + service.backends.len();
        let endpoints = ids.backend_endpoints[start..end].iter().copied();
        let named = ids.backends[start..end].iter().copied().zip(endpoints);
        let admitted = service.spec.source_ranges.as_ref();
        let ranges = admitted.map(|nets| sets.place(nets, previous.map(|snapshot| &snapshot.source_ranges)));
        let source_ranges = ranges.map(|at| Arc::clone(sets.get(at)));
        let before = previous.and_then(|snapshot| snapshot.services.info(id));
        if source_ranges.is_some() && before.is_some_and(|before| before.source_ranges != source_ranges) {
            admission = spec.generation;
        }
        let ranges = (ranges.map_or(0, |at| at + 1), source_ranges);
        let (hot, info, problem) = finish(service, id, named, ranges, &tables, &mut backends);
        problems.selection(rank, problem);
        services.push((hot, info));
    }
    tables.tidy();
    let lineage = Lineage {
        network: spec.network.clone(),
        ranks: ranks(spec, programmed),
        backends: spec.services.iter().map(|service| service.backends.len()).sum(),
        services: spec.services.iter().cloned().collect(),
        problems,
        fresh: ids.fresh,
        same_outside: false,
    };
    Snapshot {
        generation: spec.generation,
        services: Services::build(ids.generations.services.len(), services),
        backends: Backends::build(ids.generations.backends.len(), backends.into_iter()),
        endpoints: Endpoints::build(ids.generations.endpoints.len(), &ids.endpoints),
        addresses: network.addresses,
        routes: network.routes,
        interfaces: network.interfaces,
        snat_v4: network.snat_v4,
        snat_v6: network.snat_v6,
        tunnel_source_v4: network.tunnel_source_v4,
        tunnel_source_v6: network.tunnel_source_v6,
        policy: spec.network.policy,
        default_routers: network.default_routers,
        generations: ids.generations,
        tables,
        source_ranges: sets,
        admission,
        routers: network.routers.into(),
        static_neighbors,
        holds,
        lineage,
    }
}

/// The position of each service of the spec in the order of keys.
fn ranks(spec: &SnapshotSpec, programmed: &[Programmed<'_>]) -> Arc<[u32]> {
    let by_key: HashMap<ServiceKey, u32> =
        (0..).zip(programmed).map(|(rank, service)| (service.spec.key, rank)).collect();
    spec.services.iter().map(|service| by_key[&service.key]).collect()
}

/// The records of a service whose backends have ids: for packets and for display, and the problem of its selection, if
/// any. Appends the records of its backends to `hot`. `ranges` is the position of its source ranges (from 1, 0 for
/// none) and the ranges.
fn finish(
    service: &Programmed<'_>,
    id: ServiceId,
    named: impl Iterator<Item = (BackendId, EndpointId)>,
    ranges: (u32, Option<Arc<SourceRanges>>),
    tables: &Tables,
    hot: &mut Vec<Backend>,
) -> (Service, ServiceInfo, Option<Problem>) {
    let infos = backends_of(service, id, named, hot);
    let (selector, problem) = selector(service, &infos, tables);
    let record = hot_service(service, id, ranges.0, selector);
    (record, info(service.spec, id, ranges.1, infos), problem)
}

/// The backends of a service for display. Appends their records for packets to `hot`.
fn backends_of(
    service: &Programmed<'_>,
    id: ServiceId,
    named: impl Iterator<Item = (BackendId, EndpointId)>,
    hot: &mut Vec<Backend>,
) -> Vec<BackendInfo> {
    let named = service.backends.iter().zip(named);
    named
        .map(|(backend, (id_of_backend, endpoint))| {
            hot.push(hot_backend(service, id, backend, id_of_backend, endpoint));
            BackendInfo {
                id: id_of_backend,
                endpoint,
                address: backend.address,
                port: backend.spec.port,
                weight: backend.spec.weight,
                state: backend.spec.state,
            }
        })
        .collect()
}

/// The selector of a service. It depends only on the backends that take new flows.
fn selector(
    service: &Programmed<'_>,
    backends: &[BackendInfo],
    tables: &Tables,
) -> (Selector, Option<Problem>) {
    // In the order of (address, port), like all backends.
    let takers: Vec<&BackendInfo> =
        backends.iter().filter(|b| b.state == BackendState::Active && b.weight > 0).collect();
    if takers.is_empty() {
        return (Selector::default(), None);
    }
    match service.spec.scheduler {
        Scheduler::Rendezvous => seats(service, &takers),
        Scheduler::Maglev { slots } => maglev_table(service, &takers, slots, tables),
    }
}

/// Seats by rendezvous. With client affinity, ports do not count, so that a client has the same backend on all ports of
/// a Service.
fn seats(service: &Programmed<'_>, takers: &[&BackendInfo]) -> (Selector, Option<Problem>) {
    let protocol = service.spec.key.protocol.number();
    let by_address = service.spec.affinity.is_some();
    let mut before: Option<(Addr, u32)> = None;
    let mut identity = |backend: &BackendInfo| {
        if !by_address {
            return Identity::of_port(backend.address, backend.port, protocol);
        }
        let occurrence = before.filter(|&(address, _)| address == backend.address).map_or(0, |(_, n)| n + 1);
        before = Some((backend.address, occurrence));
        Identity::of_address(backend.address, occurrence)
    };
    let member = |backend: &&BackendInfo| rendezvous::Member {
        identity: identity(backend),
        weight: backend.weight,
        owner: backend.id,
    };
    let members: Vec<_> = takers.iter().map(member).collect();
    let built = Rendezvous::build(&members);
    let problem = (built.divisor > 1).then(|| Problem::WeightsDivided {
        service: service.spec.key,
        label: service.spec.label(),
        sum: takers.iter().map(|backend| u64::from(backend.weight)).sum(),
        divisor: built.divisor,
    });
    (Selector::Rendezvous(built.rendezvous), problem)
}

/// The Maglev table, shared by all services with equal backends.
fn maglev_table(
    service: &Programmed<'_>,
    takers: &[&BackendInfo],
    slots: u32,
    tables: &Tables,
) -> (Selector, Option<Problem>) {
    let member = |backend: &&BackendInfo| maglev::Member { address: backend.address, weight: backend.weight };
    let table = tables.table(takers.iter().map(member).collect(), slots);
    let problem = ((slots as usize) < takers.len()).then(|| Problem::TableTooSmall {
        service: service.spec.key,
        label: service.spec.label(),
        slots,
        backends: takers.len(),
    });
    let owners = takers.iter().map(|backend| backend.id).collect();
    (Selector::Maglev(Arc::new(Slots::new(table, owners))), problem)
}

fn hot_backend(
    service: &Programmed<'_>,
    service_id: ServiceId,
    backend: &Reachable<'_>,
    id: BackendId,
    endpoint: EndpointId,
) -> Backend {
    Backend {
        address: backend.address,
        id,
        service: service_id,
        endpoint,
        neighbor: backend.neighbor,
        port: backend.spec.port,
        interface: backend.interface,
        family: if backend.address.is_v4() { Family::V4 } else { Family::V6 },
        state: backend.spec.state,
        mode: service.spec.mode,
        protocol: service.spec.key.protocol,
    }
}

fn hot_service(service: &Programmed<'_>, id: ServiceId, source_ranges: u32, selector: Selector) -> Service {
    Service {
        vip: service.vip,
        id,
        affinity_ms: service.spec.affinity.map_or(0, |timeout| millis(timeout).max(1)),
        idle_tcp_ms: millis(service.spec.idle_timeout_tcp),
        idle_udp_ms: millis(service.spec.idle_timeout_udp),
        source_ranges,
        port: service.spec.key.port,
        protocol: service.spec.key.protocol,
        mode: service.spec.mode,
        no_endpoints: service.spec.no_endpoints,
        selector,
    }
}

fn info(
    spec: &ServiceSpec,
    id: ServiceId,
    source_ranges: Option<Arc<SourceRanges>>,
    backends: Vec<BackendInfo>,
) -> ServiceInfo {
    ServiceInfo {
        id,
        key: spec.key,
        namespace: spec.namespace.clone(),
        name: spec.name.clone(),
        port_name: spec.port_name.clone(),
        mode: spec.mode,
        scheduler: spec.scheduler,
        source_ranges,
        backends: backends.into(),
    }
}

/// Whole milliseconds, below 2^31: ages are differences modulo 2^32.
fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX).min(i32::MAX as u32)
}
