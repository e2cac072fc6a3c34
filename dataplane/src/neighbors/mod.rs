//! Link addresses of next hops: converts a forwarding state to the input of the state machine, and carries out its
//! actions.
//!
//! The state machine is [`resolver`]; the slow path drives it. This module converts a [`SnapshotSpec`] to its
//! [`ResolverContext`], and writes resolved link addresses to the table that workers read.
//!
//! Invariant: only the slow path writes link addresses; only the slow path and the snapshot compiler create entries.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use tidegate_snapshot::neighbors::{NeighborId, NeighborTable};
use tidegate_spec::SnapshotSpec;
use tidegate_spec::ownership::Layer2;
use tidegate_wire::{Addr, VlanId};

mod action;
mod announcements;
mod conflicts;
mod entries;
pub mod faults;
mod key;
mod lru_lists;
pub(crate) mod owned_addresses;
pub mod resolver;
mod resolver_context;
mod vip_probes;

use crate::punt;
use resolver::{Action, Known, Link, ResolverContext};

/// The part of a forwarding state that the resolver needs. With `announce`, VIPs and SNAT addresses are announced.
#[must_use]
pub fn resolver_context_of(spec: &SnapshotSpec, announce: bool) -> ResolverContext {
    let network = &spec.network;
    let links = network.interfaces.iter().map(|interface| Link {
        mac: interface.mac,
        vlan: interface.vlan.and_then(VlanId::new),
        addresses: interface.addresses.clone(),
    });
    let backends =
        spec.services.iter().flat_map(|service| service.backends.iter().map(|backend| backend.address));
    let mut vips: BTreeMap<IpAddr, Layer2> = BTreeMap::new();
    for service in &spec.services {
        let layer2 = vips.entry(service.key.vip).or_insert(service.layer2);
        *layer2 = service.layer2.min(*layer2);
    }
    // Most backends are Pods behind routers. They are skipped here, which saves a look-up for each.
    let networks: Vec<IpNet> = network.interface_addresses().copied().collect();
    let on_link = |address: &IpAddr| networks.iter().any(|net| net.contains(address));
    let own = |address: &IpAddr| network.interface_addresses().any(|net| net.addr() == *address);
    let routers: BTreeSet<IpAddr> = network.routes.iter().map(|route| route.via).collect();
    // The next hop of a route is another host, whatever else the spec says about its address.
    let is_announced = |address: &IpAddr| announce && !own(address) && !routers.contains(address);
    let always = vips.iter().filter(|(_, layer2)| **layer2 == Layer2::Always).map(|(vip, _)| *vip);
    let shared = vips.iter().filter_map(|(vip, layer2)| match layer2 {
        Layer2::Owned(key) => Some((*vip, *key)),
        _ => None,
    });
    let has_vip = spec.services.iter().filter(|service| service.mode.is_dsr());
    ResolverContext {
        probed: has_vip.map(|service| service.key.vip).collect(),
        interfaces: links.collect(),
        fixed: network.neighbors.iter().map(|neighbor| (neighbor.ip, neighbor.mac)).collect(),
        next_hops: routers
            .iter()
            .copied()
            .chain(backends)
            .filter(|address| on_link(address) && !own(address))
            .collect(),
        // The kernel answers for and announces the interfaces' own addresses on the tap.
        owned: always.chain(network.snat_addresses.iter().copied()).filter(is_announced).collect(),
        snat: network.snat_addresses.iter().copied().filter(is_announced).collect(),
        shared: shared.filter(|(address, _)| is_announced(address)).collect(),
    }
}

/// The routes of a forwarding state with the interface of their router, for the kernel's taps. A router outside all
/// interface networks has no route, as in the snapshot.
#[must_use]
pub fn tap_routes(spec: &SnapshotSpec, context: &ResolverContext) -> punt::routes::Routes {
    let next_hop = |via: IpAddr| Some((context.interface_of(via)?, via));
    spec.network.routes.iter().filter_map(|route| Some((route.to.trunc(), next_hop(route.via)?))).collect()
}

/// The configured neighbours of a forwarding state with their interface, for the kernel's taps, so that health checks
/// use the same link addresses as packets, even wrong ones.
#[must_use]
pub fn tap_neighbors(context: &ResolverContext) -> punt::fixed_neighbors::FixedNeighbors {
    let fixed = context.fixed.iter();
    fixed.filter_map(|&(address, mac)| Some(((context.interface_of(address)?, address), mac))).collect()
}

/// Applies an action to the table. Returns false, and logs it, if the table is full. The neighbour then stays
/// unresolved until another packet needs it.
#[must_use]
pub fn apply(table: &NeighborTable, action: &Action) -> bool {
    match *action {
        Action::Allocate { interface, address } => return intern(table, interface, address).is_some(),
        Action::Update { interface, address, mac, how } => {
            tracing::debug!(interface, %address, %mac, ?how, "neighbor resolved");
            let Some(id) = intern(table, interface, address) else { return false };
            match how {
                Known::Fixed => table.set_static(id, mac),
                Known::Confirmed => {
                    table.set_resolved(id, mac);
                }
                Known::Unconfirmed => {
                    table.set_resolved(id, mac);
                    table.mark_stale(id);
                }
            }
        }
        Action::Release { interface, address, fixed } => {
            tracing::debug!(interface, %address, "neighbor released");
            let address = Addr::from(address);
            if let Some(id) = table.lookup(interface, &address).filter(|_| fixed) {
                table.clear_static(id);
            }
            table.release(interface, &address);
        }
        Action::Send { .. } | Action::Conflict { .. } => {}
    }
    true
}

fn intern(table: &NeighborTable, interface: u8, address: IpAddr) -> Option<NeighborId> {
    let id = table.intern(interface, Addr::from(address));
    id.map_err(|error| tracing::debug!(%address, interface, %error, "cannot store the neighbor")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Duration;
    use tidegate_spec::testing;
    use tidegate_spec::{BackendSpec, BackendState, ForwardingMode, NetworkSpec, Protocol, ServiceSpec};
    use tidegate_wire::MacAddr;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn service(vip: &str, layer2: Layer2, backend: &str) -> ServiceSpec {
        let vip = SocketAddr::new(ip(vip), 80);
        ServiceSpec {
            port_name: "http".into(),
            idle_timeout_udp: Duration::from_secs(60),
            idle_timeout_sctp: Duration::from_secs(60),
            source_ranges: Some(Arc::from([])),
            layer2,
            backends: vec![BackendSpec {
                address: ip(backend),
                port: 80,
                weight: 1,
                state: BackendState::Active,
            }],
            ..testing::service(ForwardingMode::FullNat, Protocol::Tcp, &vip.to_string(), &[])
        }
    }

    fn spec() -> SnapshotSpec {
        SnapshotSpec {
            network: NetworkSpec {
                interfaces: vec![testing::interface(MacAddr([2, 0, 0, 0, 0, 2]), &["192.0.2.2/24"])],
                routes: vec![
                    testing::route("10.244.0.9/24", "192.0.2.10"),
                    testing::route("0.0.0.0/0", "198.51.100.1"),
                ],
                ..NetworkSpec::default()
            }
            .into(),
            services: vec![
                service("203.0.113.1", Layer2::Always, "10.244.0.7").into(),
                service("10.96.0.10", Layer2::Answered, "192.0.2.20").into(),
                service("192.0.2.2", Layer2::Always, "192.0.2.20").into(),
            ],
            ..SnapshotSpec::default()
        }
    }

    #[test]
    fn routed_vips_are_not_announced_and_own_addresses_belong_to_the_kernel() {
        assert_eq!(Vec::from_iter(resolver_context_of(&spec(), true).owned), [ip("203.0.113.1")]);
        assert!(resolver_context_of(&spec(), false).owned.is_empty());
    }

    #[test]
    fn the_next_hop_of_a_route_is_announced_only_by_its_router() {
        use tidegate_spec::ownership::OwnerKey;
        let mut spec = spec();
        spec.network.snat_addresses = vec![ip("192.0.2.10"), ip("192.0.2.3")];
        spec.services.push(service("192.0.2.10", Layer2::Always, "192.0.2.20").into());
        spec.services.push(service("198.51.100.1", Layer2::Owned(OwnerKey::new(7)), "192.0.2.20").into());
        let context = resolver_context_of(&spec, true);
        assert_eq!(Vec::from_iter(context.owned), [ip("192.0.2.3"), ip("203.0.113.1")]);
        assert!(context.shared.is_empty());
    }

    #[test]
    fn a_shared_vip_is_announced_by_its_owner_and_a_silent_one_by_no_gateway() {
        use tidegate_spec::ownership::OwnerKey;
        let (key, mut spec) = (OwnerKey::new(7), spec());
        spec.services.push(service("203.0.113.5", Layer2::Silent, "192.0.2.20").into());
        spec.services.push(service("203.0.113.6", Layer2::Answered, "192.0.2.20").into());
        spec.services.push(service("203.0.113.6", Layer2::Owned(key), "192.0.2.20").into());
        let context = resolver_context_of(&spec, true);
        assert_eq!(Vec::from_iter(context.owned), [ip("203.0.113.1")]);
        assert_eq!(Vec::from_iter(context.shared), [(ip("203.0.113.6"), key)]);
    }

    #[test]
    fn next_hops_are_the_routers_and_backends_on_a_link() {
        assert_eq!(
            Vec::from_iter(resolver_context_of(&spec(), true).next_hops),
            [ip("192.0.2.10"), ip("192.0.2.20")]
        );
    }

    #[test]
    fn the_kernel_gets_the_routes_whose_router_is_on_a_link() {
        let spec = spec();
        let routes = tap_routes(&spec, &resolver_context_of(&spec, true));
        assert_eq!(Vec::from_iter(routes), [("10.244.0.0/24".parse().unwrap(), (0, ip("192.0.2.10")))]);
    }

    #[test]
    fn a_client_refused_by_a_full_table_is_stored_later_at_its_next_packet() {
        use tidegate_pipeline::pipeline::Sighting;
        use tidegate_spec::now::Now;
        let table = NeighborTable::with_capacity(1);
        let (client, other) = (ip("192.0.2.77"), ip("192.0.2.78"));
        let mac = MacAddr([2, 0, 0, 0, 0, 9]);
        let mut resolver = resolver::Resolver::default();
        assert!(resolver.configure(Now(0), resolver_context_of(&spec(), false)).len() > 1);
        assert!(apply(&table, &Action::Allocate { interface: 0, address: other }));
        let unused = |_, _| false;
        let wanted = resolver.wanted(Now(1), 0, client);
        assert!(!wanted.iter().all(|action| apply(&table, action)), "the table is full");
        let sighting = Sighting::Request;
        let seen = resolver.seen(Now(2), (0, client), Some(mac), sighting, &unused);
        assert!(!seen.iter().all(|action| apply(&table, action)), "the table is full");
        assert!(apply(&table, &Action::Release { interface: 0, address: other, fixed: false }));
        let again = resolver.wanted(Now(3), 0, client);
        assert!(!again.is_empty() && again.iter().all(|action| apply(&table, action)));
        assert_eq!(table.resolve(0, &Addr::from(client)), Some(mac));
    }

    #[test]
    fn a_backend_left_out_of_the_snapshot_is_no_next_hop_but_a_router_stays() {
        use tidegate_spec::{BackendProblem, Problem};
        let spec = spec();
        let left_out = |address| Problem::Backend {
            service: spec.services[0].key,
            label: String::new(),
            backend: std::net::SocketAddr::new(ip(address), 80),
            reason: BackendProblem::NeighborTableFull,
        };
        let problems = [left_out("192.0.2.20"), left_out("192.0.2.10")];
        let outside = crate::slow_path::SlowPathState::of(&spec, true).without_left_out(&spec, &problems);
        assert_eq!(Vec::from_iter(outside.context.next_hops), [ip("192.0.2.10")]);
    }
}
