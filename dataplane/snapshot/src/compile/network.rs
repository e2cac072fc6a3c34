//! Compiles the network: interfaces, routes, addresses, and whether a backend can be reached.
//!
//! Runs after the spec was checked. [`Network::reach`] contains all rules that leave out a backend, with their reasons;
//! nothing here refuses a spec. Next hops get their entries in the neighbour table here.

use std::net::IpAddr;
use std::sync::Arc;

use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::ownership::Layer2;
use tidegate_spec::{
    BackendProblem, BackendSpec, ForwardingMode, GatewaySpec, NoEndpoints, Problem, ServiceSpec, SnapshotSpec,
};
use tidegate_wire::{Addr, Family};

use super::services::{Programmed, Reachable, Sorted, socket};
use crate::addresses::{AddressKind, Addresses, Meaning, SourceFault, not_one_host};
use crate::interface::Interface;
use crate::neighbors::{NeighborId, References};
use crate::network::{Network, Transit};
use crate::routes::{NextHop, Route, Routes};
use crate::source_ranges::SourceRanges;
use crate::state::Snapshot;

impl Network {
    pub(super) fn build(
        spec: &SnapshotSpec,
        services: &[Sorted<'_>],
        interfaces: Arc<[Interface]>,
        neighbors: &mut References,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let mut list = connected(&interfaces);
        let connected = Routes::build(&list);
        let links = list.len();
        let mut routers = Vec::new();
        let mut default_routers = Vec::new();
        let mut by_prefix: Vec<_> = spec.network.routes.iter().collect();
        by_prefix.sort_by_key(|route| route.to);
        for route in by_prefix {
            let (to, via) = (route.to, route.via);
            let Some(NextHop { interface, .. }) = connected.find(&via.into()) else {
                problems.push(Problem::RouterOffLink { to, via });
                continue;
            };
            let Ok(id) = neighbors.intern(interface, via.into()) else {
                problems.push(Problem::RouterTableFull { to, via });
                continue;
            };
            let route = Route::new(&to, NextHop { interface, via: Some(via.into()), neighbor: Some(id) });
            if list[..links].iter().any(|link| link.same_prefix(&route)) {
                problems.push(Problem::RouteShadowed { to, via });
                continue;
            }
            routers.push(id);
            if to.prefix_len() == 0 {
                default_routers.push((Addr::from(via), id));
            }
            list.push(route);
        }
        let snat = |family: Family| {
            let of_family = |addr: &&IpAddr| addr.is_ipv4() == (family == Family::V4);
            sorted(spec.network.snat_addresses.iter().filter(of_family))
        };
        let own = (0..).zip(&*interfaces).flat_map(|(index, interface)| {
            interface.addresses.iter().map(move |net| (net.addr().into(), AddressKind::Own(index)))
        });
        let served = || services.iter().filter(|service| service.spec.no_endpoints != NoEndpoints::Unserved);
        let vips = served().map(|service| service.vip);
        let snats = spec.network.snat_addresses.iter().map(|&addr| (addr.into(), AddressKind::Snat));
        let other_meanings = own.chain(snats).map(|(addr, kind)| (addr, Meaning::Kind(kind)));
        let other_meanings = other_meanings.chain(no_clients(spec, &default_routers));
        let addresses = Addresses::build(vips, other_meanings);
        Self {
            routes: Routes::build(&list),
            routers: routers.into(),
            router_addresses: sorted(spec.network.routes.iter().map(|route| &route.via)),
            default_routers: default_routers.into_iter().map(|(_, id)| id).collect(),
            addresses,
            layer2: layer2(served().map(|service| (service.vip, service.spec.layer2))),
            snat_v4: snat(Family::V4),
            snat_v6: snat(Family::V6),
            tunnel_source_v4: spec.network.tunnel_source_v4,
            tunnel_source_v6: spec.network.tunnel_source_v6,
            tunnel_peers: sorted(&spec.network.tunnel_peers),
            transit: transit(&spec.network.gateway),
            interfaces,
        }
    }

    pub(super) fn program<'a>(
        &self,
        service: &Sorted<'a>,
        neighbors: &mut References,
        problems: &mut Vec<Problem>,
    ) -> Programmed<'a> {
        let &Sorted { spec, vip, ref backends } = service;
        let reachable = |&(address, backend): &(Addr, &'a BackendSpec)| match self
            .reach(spec, vip, address, backend, neighbors)
        {
            Ok((interface, neighbor)) => Some(Reachable { spec: backend, address, interface, neighbor }),
            Err(reason) => {
                let (service, label) = (spec.key, spec.label());
                problems.push(Problem::Backend { service, label, backend: socket(backend), reason });
                None
            }
        };
        Programmed { spec, vip, backends: backends.iter().filter_map(reachable).collect() }
    }

    fn reach(
        &self,
        service: &ServiceSpec,
        vip: Addr,
        address: Addr,
        backend: &BackendSpec,
        neighbors: &mut References,
    ) -> Result<(InterfaceIndex, NeighborId), BackendProblem> {
        let mode = service.mode;
        let (service_port, backend_port) = (service.key.port, backend.port);
        if backend_port == 0 {
            return Err(BackendProblem::PortZero);
        }
        let tunnel_sources = [&self.tunnel_source_v4, &self.tunnel_source_v6];
        let is_source = tunnel_sources.into_iter().flatten().any(|source| source.contains(&address));
        if is_source || self.addresses.find(&address).is_some() {
            return Err(BackendProblem::AddressIsOurs);
        }
        if mode.is_dsr() && service_port != backend_port {
            return Err(BackendProblem::PortDiffers { mode, service_port, backend_port });
        }
        if !mode.is_tunnel() && vip.is_v4() != address.is_v4() {
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
        if mode.is_tunnel() && tunnel_source.is_none() {
            return Err(BackendProblem::NoTunnelSource);
        }
        let hop = self.routes.find(&address).ok_or(BackendProblem::NoRoute)?;
        if mode == ForwardingMode::DsrL2 && hop.via.is_some() {
            return Err(BackendProblem::NotOnLink);
        }
        let id = match hop.neighbor {
            Some(id) => id,
            None => {
                neighbors.intern(hop.interface, address).map_err(|_| BackendProblem::NeighborTableFull)?
            }
        };
        Ok((hop.interface, id))
    }

    /// Stores the link addresses of fixed neighbours and clears those of formerly fixed ones.
    pub(super) fn set_static(
        &self,
        spec: &SnapshotSpec,
        previous: Option<&Snapshot>,
        neighbors: &mut References,
        problems: &mut Vec<Problem>,
    ) -> Arc<[NeighborId]> {
        let connected = Routes::build(&connected(&self.interfaces));
        let mut fixed = Vec::new();
        let mut by_address: Vec<_> = spec.network.neighbors.iter().collect();
        by_address.sort_by_key(|neighbor| neighbor.ip);
        for neighbor in by_address {
            let (ip, addr) = (neighbor.ip, neighbor.ip.into());
            let Some(hop) = connected.find(&addr) else {
                problems.push(Problem::NeighborOffLink { ip });
                continue;
            };
            let Ok(id) = neighbors.intern(hop.interface, addr) else {
                problems.push(Problem::NeighborTableFull { ip });
                continue;
            };
            neighbors.table().set_static(id, neighbor.mac);
            fixed.push(id);
        }
        fixed.sort_unstable();
        fixed.dedup();
        let before = previous.map_or(&[][..], |snapshot| &snapshot.reusable.static_neighbors);
        for &id in before.iter().filter(|id| fixed.binary_search(id).is_err()) {
            neighbors.table().clear_static(id);
        }
        fixed.into()
    }
}

/// The networks of backends whose own traffic arrives here.
fn sorted<'a>(addresses: impl IntoIterator<Item = &'a IpAddr>) -> Arc<[Addr]> {
    let mut addresses: Vec<Addr> = addresses.into_iter().map(|&addr| addr.into()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses.into()
}

fn transit(spec: &GatewaySpec) -> Option<Arc<Transit>> {
    let of = || {
        Arc::new(Transit {
            sources: SourceRanges::new(&spec.prefixes),
            forward: spec.forward,
            masquerade: SourceRanges::new(&spec.masquerade),
        })
    };
    (!spec.prefixes.is_empty()).then(of)
}

/// The VIPs whose link address is not always answered.
fn layer2(vips: impl Iterator<Item = (Addr, Layer2)>) -> Arc<[(Addr, Layer2)]> {
    let mut all: Vec<_> = vips.collect();
    all.sort_unstable();
    all.dedup_by_key(|(vip, _)| *vip);
    all.retain(|(_, layer2)| !matches!(layer2, Layer2::Always | Layer2::Answered));
    all.into()
}

/// Addresses that no client can have, although the gateway doesn't answer for them.
///
/// Of the routers, only those of default routes are included. The next hop of a more specific route may be a node of
/// the cluster, whose processes and masqueraded Pods are clients of VIPs like any other host.
fn no_clients<'a>(
    spec: &'a SnapshotSpec,
    default_routers: &'a [(Addr, NeighborId)],
) -> impl Iterator<Item = (Addr, Meaning)> + 'a {
    // The addresses of a prefix are checked by range instead.
    let tunnels = [spec.network.tunnel_source_v4, spec.network.tunnel_source_v6].into_iter().flatten();
    let tunnels = tunnels.filter(|source| !source.is_many());
    let tunnels = tunnels.map(|source| (source.pick(0), Meaning::Kind(AddressKind::Tunnel)));
    let nets = spec.network.interfaces.iter().flat_map(|interface| &interface.addresses);
    let ends = nets.flat_map(not_one_host).map(|addr| (addr, SourceFault::NotOneHostOfNetwork));
    let routers = default_routers.iter().filter(|_| !spec.network.policy.serve_routers);
    let routers = routers.map(|&(addr, _)| (addr, SourceFault::Router));
    tunnels.chain(ends.chain(routers).map(|(addr, fault)| (addr, Meaning::NoClient(fault))))
}

/// The networks of the interfaces' addresses. If there is only one interface, they include the network of IPv6
/// link-local addresses, so that routers may have such an address. With several, it wouldn't determine the interface.
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
