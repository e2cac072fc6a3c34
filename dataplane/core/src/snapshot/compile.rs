//! From a spec to a snapshot: check, program what can be, keep ids, make tables.
//!
//! Runs on a control thread. What cannot work at all refuses the spec; what cannot work alone becomes a
//! [`Problem`] and is left out. Everything is sorted by identity first, so the order of the spec does not
//! matter. Side effects are on the neighbour table alone: next hops get slots, fixed ones their addresses.
//!
//! Invariant: an error leaves the neighbour table as it was.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::indices::{Generations, Indices};
use super::problem::{BackendProblem, CompileError, Problem};
use super::spec::{BackendSpec, BackendState, ForwardingMode, ServiceSpec, SnapshotSpec, TableSize};
use super::{Interface, Snapshot};
use crate::addresses::{AddressKind, Addresses};
use crate::backend::{Backend, Backends, EndpointKey, Endpoints};
use crate::hash::key_hash;
use crate::ids::{BackendId, EndpointId, InterfaceIndex, ServiceId};
use crate::limits;
use crate::maglev::{self, Member, Tables};
use crate::neighbors::{NeighborSlot, NeighborTable};
use crate::routes::{NextHop, Route, Routes};
use crate::service::{BackendInfo, Service, ServiceInfo, Services};
use crate::wire::{Addr, Family};

impl Snapshot {
    /// Compiles a spec. Ids of what lives on are those of `previous`, and Maglev tables that did not change
    /// are its tables. Next hops get their slots in `neighbors`.
    ///
    /// The same service port whose mode goes from or to NAT has other backends than before: their flows are
    /// of another kind.
    ///
    /// # Errors
    /// [`CompileError`]: the spec breaks a limit or contradicts itself. Problems of single backends, routes
    /// and neighbours are in the result; those are left out, and the rest works.
    pub fn compile(
        spec: &SnapshotSpec,
        previous: Option<&Snapshot>,
        neighbors: &NeighborTable,
    ) -> Result<(Snapshot, Vec<Problem>), CompileError> {
        let interfaces = interfaces(spec)?;
        check_network(spec)?;
        let services = sorted_services(spec)?;
        let mut problems = Vec::new();

        let network = Network::build(spec, &services, interfaces, neighbors, &mut problems);
        let programmed: Vec<Programmed<'_>> =
            services.into_iter().map(|service| network.program(service, neighbors, &mut problems)).collect();
        let ids = Ids::assign(&programmed, previous);
        let static_neighbors = network.set_static(spec, previous, neighbors, &mut problems);
        let snapshot = assemble(spec, previous, network, &programmed, ids, static_neighbors, &mut problems);
        Ok((snapshot, problems))
    }
}

/// A service port with its backends by identity.
struct Sorted<'a> {
    spec: &'a ServiceSpec,
    vip: Addr,
    backends: Vec<(Addr, &'a BackendSpec)>,
}

/// What is left of it, and where each backend is.
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

fn interfaces(spec: &SnapshotSpec) -> Result<Box<[Interface]>, CompileError> {
    at_most("interfaces", spec.interfaces.len(), limits::INTERFACES_MAX)?;
    let mut seen = HashSet::<IpAddr>::new();
    for address in spec.interfaces.iter().flat_map(|interface| &interface.addresses) {
        if !seen.insert(address.addr()) {
            return Err(CompileError::DuplicateAddress { address: address.addr() });
        }
    }
    let interface = |spec| {
        Interface::new(spec)
            .ok_or_else(|| CompileError::Vlan { interface: spec.name.clone(), vlan: spec.vlan.unwrap_or(0) })
    };
    spec.interfaces.iter().map(interface).collect()
}

fn check_network(spec: &SnapshotSpec) -> Result<(), CompileError> {
    at_most("routes", spec.routes.len(), limits::ROUTES_MAX)?;
    at_most("snatAddresses", spec.snat_addresses.len(), limits::SNAT_ADDRESSES_MAX)?;
    at_most("neighbors", spec.neighbors.len(), limits::NEXT_HOPS_MAX)?;
    let mut seen = HashSet::new();
    if let Some(neighbor) = spec.neighbors.iter().find(|neighbor| !seen.insert(neighbor.ip)) {
        return Err(CompileError::DuplicateNeighbor { ip: neighbor.ip });
    }
    let mut seen = HashSet::new();
    match spec.routes.iter().find(|route| !seen.insert(route.to.trunc())) {
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
    let mut services = spec.services.iter().map(sorted_service).collect::<Result<Vec<_>, _>>()?;
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
    if let TableSize::Fixed(size) = spec.table_size
        && !(size <= limits::MAGLEV_SLOTS_MAX && maglev::is_prime(size))
    {
        return Err(CompileError::TableSize { service, size });
    }
    if spec.backends.len() > limits::BACKENDS_PER_SERVICE_MAX {
        return Err(CompileError::TooManyBackends { service, count: spec.backends.len() });
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

/// Everything but services: what decides whether a backend can be reached.
struct Network {
    interfaces: Box<[Interface]>,
    connected: Routes,
    routes: Routes,
    routers: Vec<NeighborSlot>,
    addresses: Addresses,
    snat_v4: Box<[Addr]>,
    snat_v6: Box<[Addr]>,
    tunnel_source_v4: Option<Addr>,
    tunnel_source_v6: Option<Addr>,
}

impl Network {
    fn build(
        spec: &SnapshotSpec,
        services: &[Sorted<'_>],
        interfaces: Box<[Interface]>,
        neighbors: &NeighborTable,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let mut list = connected(&interfaces);
        let connected = Routes::build(&list);
        let mut routers = Vec::new();
        let mut by_prefix: Vec<_> = spec.routes.iter().collect();
        by_prefix.sort_by_key(|route| route.to);
        for route in by_prefix {
            let (to, via) = (route.to, route.via);
            let Some(NextHop { interface, .. }) = connected.find(&via.into()) else {
                problems.push(Problem::RouterOffLink { to, via });
                continue;
            };
            let Ok(slot) = neighbors.intern(interface, via.into()) else {
                problems.push(Problem::RouterTableFull { to, via });
                continue;
            };
            let route = Route::new(&to, NextHop { interface, via: Some(via.into()), neighbor: Some(slot) });
            if list.iter().any(|known| known.hop.via.is_none() && known.same_prefix(&route)) {
                problems.push(Problem::RouteShadowed { to, via });
                continue;
            }
            routers.push(slot);
            list.push(route);
        }
        let snat = |family: Family| {
            let of_family = |addr: &Addr| addr.is_v4() == (family == Family::V4);
            let mut addrs: Vec<Addr> =
                spec.snat_addresses.iter().map(|&addr| addr.into()).filter(of_family).collect();
            addrs.sort_unstable();
            addrs.dedup();
            addrs.into_boxed_slice()
        };
        let own = (0..).zip(&interfaces).flat_map(|(index, interface)| {
            interface.addresses.iter().map(move |net| (net.addr().into(), AddressKind::Own(index)))
        });
        let vips = services.iter().map(|service| (service.vip, AddressKind::Vip));
        let snats = spec.snat_addresses.iter().map(|&addr| (addr.into(), AddressKind::Snat));
        let addresses = Addresses::build(own.chain(vips).chain(snats));
        Self {
            connected,
            routes: Routes::build(&list),
            routers,
            addresses,
            snat_v4: snat(Family::V4),
            snat_v6: snat(Family::V6),
            tunnel_source_v4: spec.tunnel_source_v4.map(Addr::from),
            tunnel_source_v6: spec.tunnel_source_v6.map(Addr::from),
            interfaces,
        }
    }

    fn program<'a>(
        &self,
        service: Sorted<'a>,
        neighbors: &NeighborTable,
        problems: &mut Vec<Problem>,
    ) -> Programmed<'a> {
        let Sorted { spec, vip, backends } = service;
        let reachable = |(address, backend): (Addr, &'a BackendSpec)| match self
            .reach(spec, vip, address, backend, neighbors)
        {
            Ok((interface, neighbor)) => Some(Reachable { spec: backend, address, interface, neighbor }),
            Err(reason) => {
                let (service, label) = (spec.key, spec.label());
                problems.push(Problem::Backend { service, label, backend: socket(backend), reason });
                None
            }
        };
        Programmed { spec, vip, backends: backends.into_iter().filter_map(reachable).collect() }
    }

    fn reach(
        &self,
        service: &ServiceSpec,
        vip: Addr,
        address: Addr,
        backend: &BackendSpec,
        neighbors: &NeighborTable,
    ) -> Result<(InterfaceIndex, NeighborSlot), BackendProblem> {
        let mode = service.mode;
        let (service_port, backend_port) = (service.key.port, backend.port);
        if backend_port == 0 {
            return Err(BackendProblem::PortZero);
        }
        if self.addresses.find(&address).is_some() {
            return Err(BackendProblem::AddressIsOurs);
        }
        if mode.is_dsr() && service_port != backend_port {
            return Err(BackendProblem::PortDiffers { mode, service_port, backend_port });
        }
        if mode != ForwardingMode::DsrIpip && vip.is_v4() != address.is_v4() {
            return Err(BackendProblem::FamilyDiffers { mode });
        }
        let (snat, tunnel_source) = if address.is_v4() {
            (&self.snat_v4, self.tunnel_source_v4)
        } else {
            (&self.snat_v6, self.tunnel_source_v6)
        };
        if mode == ForwardingMode::FullNat && snat.is_empty() {
            return Err(BackendProblem::NoSnatAddress);
        }
        if mode == ForwardingMode::DsrIpip && tunnel_source.is_none() {
            return Err(BackendProblem::NoTunnelSource);
        }
        let hop = self.routes.find(&address).ok_or(BackendProblem::NoRoute)?;
        if mode == ForwardingMode::DsrL2 && hop.via.is_some() {
            return Err(BackendProblem::NotOnLink);
        }
        let slot = match hop.neighbor {
            Some(slot) => slot,
            None => {
                neighbors.intern(hop.interface, address).map_err(|_| BackendProblem::NeighborTableFull)?
            }
        };
        Ok((hop.interface, slot))
    }

    /// Gives fixed neighbours their link addresses, and takes them from those that are fixed no longer.
    fn set_static(
        &self,
        spec: &SnapshotSpec,
        previous: Option<&Snapshot>,
        neighbors: &NeighborTable,
        problems: &mut Vec<Problem>,
    ) -> Box<[NeighborSlot]> {
        let mut fixed = Vec::new();
        let mut by_address: Vec<_> = spec.neighbors.iter().collect();
        by_address.sort_by_key(|neighbor| neighbor.ip);
        for neighbor in by_address {
            let (ip, addr) = (neighbor.ip, neighbor.ip.into());
            let Some(hop) = self.connected.find(&addr) else {
                problems.push(Problem::NeighborOffLink { ip });
                continue;
            };
            let Ok(slot) = neighbors.intern(hop.interface, addr) else {
                problems.push(Problem::NeighborTableFull { ip });
                continue;
            };
            neighbors.set_static(slot, neighbor.mac);
            fixed.push(slot);
        }
        fixed.sort_unstable();
        fixed.dedup();
        let before = previous.map_or(&[][..], |snapshot| &snapshot.static_neighbors);
        for &slot in before.iter().filter(|slot| fixed.binary_search(slot).is_err()) {
            neighbors.clear_static(slot);
        }
        fixed.into()
    }
}

/// The networks of the interfaces' addresses; and, where there is one interface only, that of IPv6 link-local
/// addresses, which routers have: a route names no interface.
fn connected(interfaces: &[Interface]) -> Vec<Route> {
    let on = |interface| NextHop { interface, via: None, neighbor: None };
    let mut list: Vec<Route> = (0..)
        .zip(interfaces)
        .flat_map(|(index, interface)| interface.addresses.iter().map(move |net| Route::new(net, on(index))))
        .collect();
    if interfaces.len() == 1 {
        list.push(Route::new(&"fe80::/64".parse().expect("a prefix"), on(0)));
    }
    list
}

/// Ids of everything programmed: services and backends in their order, endpoints by key.
struct Ids {
    services: Vec<ServiceId>,
    /// Of all services one after the other.
    backends: Vec<BackendId>,
    /// Of each backend.
    backend_endpoints: Vec<EndpointId>,
    /// By key; whether it is behind a service whose replies come back through the gateway.
    endpoints: Vec<(EndpointKey, EndpointId, bool)>,
    generations: Generations,
}

impl Ids {
    fn assign(programmed: &[Programmed<'_>], previous: Option<&Snapshot>) -> Self {
        let before = previous.map(|snapshot| snapshot.generations.clone()).unwrap_or_default();

        let kept_services: Vec<_> =
            programmed.iter().map(|service| previous?.services.known(service)).collect();
        let (services, service_generations) = assign(
            &before.services,
            kept_services.iter().map(|known| known.map(|known| known.id)),
            ServiceId::index,
            ServiceId::new,
        );

        let kept_backends = programmed.iter().zip(&kept_services).flat_map(|(service, known)| {
            let known = known.filter(|known| same_kind_of_flow(known.mode, service.spec.mode));
            service.backends.iter().map(move |backend| {
                let backends = &known?.backends;
                let key = (backend.address, backend.spec.port);
                let at = backends.binary_search_by_key(&key, |known| (known.address, known.port)).ok()?;
                Some(backends[at].id)
            })
        });
        let (backends, backend_generations) =
            assign(&before.backends, kept_backends, BackendId::index, BackendId::new);

        let keyed = endpoint_keys(programmed);
        let groups: Vec<_> = keyed.chunk_by(|a, b| a.0 == b.0).collect();
        let known = previous.map_or(&[][..], |snapshot| snapshot.endpoints.by_key());
        let kept_endpoints = groups.iter().map(|group| {
            let at = known.binary_search_by_key(&group[0].0, |&(key, _)| key).ok()?;
            Some(known[at].1)
        });
        let (endpoint_ids, endpoint_generations) =
            assign(&before.endpoints, kept_endpoints, EndpointId::index, EndpointId::new);
        let mut backend_endpoints = vec![EndpointId::from_raw(0); keyed.len()];
        let mut endpoints = Vec::with_capacity(groups.len());
        for (group, &id) in groups.iter().zip(&endpoint_ids) {
            for &(_, backend, _) in *group {
                backend_endpoints[backend] = id;
            }
            endpoints.push((group[0].0, id, group.iter().any(|&(.., replies)| replies)));
        }
        Self {
            services,
            backends,
            backend_endpoints,
            endpoints,
            generations: Generations {
                services: service_generations,
                backends: backend_generations,
                endpoints: endpoint_generations,
            },
        }
    }
}

/// Whether flows of one mode can go on in the other: between DSR modes the packet inside stays the same.
fn same_kind_of_flow(a: ForwardingMode, b: ForwardingMode) -> bool {
    a == b || a.is_dsr() && b.is_dsr()
}

/// The ids of a list of things, given those that they have already.
fn assign<Id: Copy>(
    generations: &[u32],
    kept: impl Iterator<Item = Option<Id>>,
    index: impl Fn(Id) -> usize,
    new: impl Fn(usize, u32) -> Id,
) -> (Vec<Id>, Box<[u32]>) {
    let mut indices = Indices::resume(generations);
    let kept: Vec<Option<Id>> =
        kept.inspect(|id| id.iter().for_each(|&id| indices.keep(index(id)))).collect();
    let mut fresh = || {
        let (index, generation) = indices.fresh();
        new(index, generation)
    };
    let ids = kept.into_iter().map(|id| id.unwrap_or_else(&mut fresh)).collect();
    (ids, indices.finish())
}

/// The endpoint of every backend, with the backend's number over all services, sorted by endpoint.
fn endpoint_keys(programmed: &[Programmed<'_>]) -> Vec<(EndpointKey, usize, bool)> {
    let of_service = |service: &'_ Programmed<'_>| {
        let (protocol, replies) = (service.spec.key.protocol, !service.spec.mode.is_dsr());
        service
            .backends
            .iter()
            .map(move |backend| {
                (EndpointKey { address: backend.address, port: backend.spec.port, protocol }, replies)
            })
            .collect::<Vec<_>>()
    };
    let all = programmed.iter().flat_map(of_service).enumerate();
    let mut keyed: Vec<_> = all.map(|(at, (key, replies))| (key, at, replies)).collect();
    keyed.sort_unstable();
    keyed
}

impl Services {
    /// The same service port in this, the previous snapshot.
    fn known(&self, service: &Programmed<'_>) -> Option<&ServiceInfo> {
        let (proto, port) = (service.spec.key.protocol.number(), service.spec.key.port);
        self.info(self.find(key_hash(&service.vip, proto, port), &service.vip, proto, port)?.id)
    }
}

fn assemble(
    spec: &SnapshotSpec,
    previous: Option<&Snapshot>,
    network: Network,
    programmed: &[Programmed<'_>],
    ids: Ids,
    static_neighbors: Box<[NeighborSlot]>,
    problems: &mut Vec<Problem>,
) -> Snapshot {
    let mut tables = Tables::default();
    let mut next_hops = network.routers;
    let mut services = Vec::with_capacity(programmed.len());
    let mut backends = Vec::with_capacity(ids.backends.len());
    for (service, &id) in programmed.iter().zip(&ids.services) {
        let start = backends.len();
        let mut infos = Vec::with_capacity(service.backends.len());
        for (offset, backend) in service.backends.iter().enumerate() {
            let (id_of_backend, endpoint) =
                (ids.backends[start + offset], ids.backend_endpoints[start + offset]);
            next_hops.push(backend.neighbor);
            backends.push(hot_backend(service, id, backend, id_of_backend, endpoint));
            infos.push(BackendInfo {
                id: id_of_backend,
                endpoint,
                address: backend.address,
                port: backend.spec.port,
                weight: backend.spec.weight,
                state: backend.spec.state,
            });
        }
        let table = table(service, &mut tables, previous, problems);
        services.push((hot_service(service, id, start, table), info(service.spec, id, infos)));
    }
    next_hops.sort_unstable();
    next_hops.dedup();
    Snapshot {
        generation: spec.generation,
        services: Services::build(ids.generations.services.len(), services),
        backends: Backends::build(ids.generations.backends.len(), backends.into_iter()),
        backend_ids: ids.backends.into(),
        endpoints: Endpoints::build(ids.generations.endpoints.len(), &ids.endpoints),
        addresses: network.addresses,
        routes: network.routes,
        interfaces: network.interfaces,
        snat_v4: network.snat_v4,
        snat_v6: network.snat_v6,
        tunnel_source_v4: network.tunnel_source_v4,
        tunnel_source_v6: network.tunnel_source_v6,
        generations: ids.generations,
        tables,
        next_hops: next_hops.into(),
        static_neighbors,
    }
}

/// The Maglev table. Backends that take no new flow keep their positions, so that a drain moves no other one.
fn table(
    service: &Programmed<'_>,
    tables: &mut Tables,
    previous: Option<&Snapshot>,
    problems: &mut Vec<Problem>,
) -> std::sync::Arc<[u16]> {
    let weight =
        |backend: &BackendSpec| if backend.state == BackendState::Active { backend.weight } else { 0 };
    let members: Vec<Member> = service
        .backends
        .iter()
        .map(|backend| Member { address: backend.address, weight: weight(backend.spec) })
        .collect();
    let taking_part = members.iter().filter(|member| member.weight > 0).count();
    let size = match service.spec.table_size {
        TableSize::Auto => maglev::auto_size(members.len()),
        TableSize::Fixed(size) => size,
    };
    if (size as usize) < taking_part {
        let (key, label) = (service.spec.key, service.spec.label());
        problems.push(Problem::TableTooSmall { service: key, label, slots: size, backends: taking_part });
    }
    tables.table(members, size, previous.map(|snapshot| &snapshot.tables))
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

fn hot_service(
    service: &Programmed<'_>,
    id: ServiceId,
    start: usize,
    table: std::sync::Arc<[u16]>,
) -> Service {
    Service {
        vip: service.vip,
        id,
        affinity_ms: service.spec.affinity.map_or(0, |timeout| millis(timeout).max(1)),
        idle_tcp_ms: millis(service.spec.idle_timeout_tcp),
        idle_udp_ms: millis(service.spec.idle_timeout_udp),
        backends_start: u32::try_from(start).expect("below limits::BACKENDS_MAX"),
        backends_len: u16::try_from(service.backends.len())
            .expect("at most limits::BACKENDS_PER_SERVICE_MAX"),
        port: service.spec.key.port,
        protocol: service.spec.key.protocol,
        mode: service.spec.mode,
        no_endpoints: service.spec.no_endpoints,
        table,
    }
}

fn info(spec: &ServiceSpec, id: ServiceId, backends: Vec<BackendInfo>) -> ServiceInfo {
    ServiceInfo {
        id,
        key: spec.key,
        namespace: spec.namespace.clone(),
        name: spec.name.clone(),
        port_name: spec.port_name.clone(),
        mode: spec.mode,
        table_size: spec.table_size,
        backends: backends.into(),
    }
}

/// Whole milliseconds, below 2^31: ages are differences modulo 2^32.
fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX).min(i32::MAX as u32)
}
