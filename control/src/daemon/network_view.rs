//! The answers of `neighbors` and `routes`: what the running gateway knows about its links.

use std::net::IpAddr;

use tidegate_admin_api::{NeighborView, NeighborViewState, NeighborsAnswer, RouteView, RoutesAnswer};
use tidegate_dataplane::gateway::Dataplane;
use tidegate_snapshot::neighbors::{NeighborState, NeighborTable};
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::{InterfaceSpec, NetworkSpec, RouteSpec};
use tidegate_wire::{Addr, MacAddr};

/// The neighbours that packets need or the configuration names.
pub(super) fn neighbors(dataplane: &Dataplane, routes: &[RouteSpec]) -> NeighborsAnswer {
    let (table, interfaces) = (dataplane.neighbors(), dataplane.interfaces());
    let view = |(interface, addr): (InterfaceIndex, Addr)| {
        let (state, mac) = state(table, interface, &addr);
        let to = routes.iter().filter(|route| route.via == addr.ip());
        NeighborView {
            address: addr.ip(),
            interface: interfaces
                .get(usize::from(interface))
                .map_or_else(String::new, |one| one.name.clone()),
            mac: mac.map(|mac| mac.to_string()),
            state,
            routes: to.map(|route| route.to.to_string()).collect(),
        }
    };
    let mut neighbors: Vec<NeighborView> =
        table.ids().into_iter().filter_map(|id| table.key(id)).map(view).collect();
    neighbors.sort_by(|a, b| (&a.interface, a.address).cmp(&(&b.interface, b.address)));
    NeighborsAnswer { neighbors }
}

/// The connected networks and the routes.
pub(super) fn routes(dataplane: &Dataplane, network: &NetworkSpec<InterfaceSpec>) -> RoutesAnswer {
    let table = dataplane.neighbors();
    let connected = network.interfaces.iter().flat_map(|interface| {
        interface.addresses.iter().map(|net| RouteView {
            to: net.trunc().to_string(),
            via: None,
            interface: Some(interface.name.clone()),
            mac: None,
            state: None,
        })
    });
    let configured = network.routes.iter().map(|route| {
        let on = on_link(network, route.via);
        let known = on.map(|(index, _)| state(table, index, &route.via.into()));
        RouteView {
            to: route.to.to_string(),
            via: Some(route.via),
            interface: on.map(|(_, interface)| interface.name.clone()),
            mac: known.and_then(|(_, mac)| mac).map(|mac| mac.to_string()),
            state: known.map(|(state, _)| state),
        }
    });
    RoutesAnswer { routes: connected.chain(configured).collect() }
}

/// The interface on whose link a next hop is.
fn on_link(network: &NetworkSpec<InterfaceSpec>, via: IpAddr) -> Option<(InterfaceIndex, &InterfaceSpec)> {
    let mut interfaces = (0..).zip(&network.interfaces);
    interfaces.find(|(_, interface)| interface.addresses.iter().any(|net| net.contains(&via)))
}

fn state(
    table: &NeighborTable,
    interface: InterfaceIndex,
    addr: &Addr,
) -> (NeighborViewState, Option<MacAddr>) {
    match table.lookup(interface, addr).map(|id| table.state(id)) {
        Some(NeighborState::Static(mac)) => (NeighborViewState::Static, Some(mac)),
        Some(NeighborState::Resolved(mac)) => (NeighborViewState::Reachable, Some(mac)),
        Some(NeighborState::Stale(mac)) => (NeighborViewState::Stale, Some(mac)),
        Some(NeighborState::Unresolved) | None => (NeighborViewState::Unresolved, None),
    }
}
