//! The path of the backend's reply: what the gateway does with it, and where it goes.
//!
//! Calls the same functions of the snapshot as the pipeline. Invariant: pure.

use std::net::SocketAddr;

use tidegate_admin_api::explain::{Packet, Step};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::backend::Backend;
use tidegate_snapshot::neighbors::{NeighborState, NeighborTable};
use tidegate_snapshot::service::Service;
use tidegate_spec::ForwardingMode;
use tidegate_wire::Addr;

use super::text;

/// The steps of the reply to a packet that was forwarded to `backend`. `assumes_neighbors`: unknown link addresses are
/// assumed to be known.
pub(super) fn walk(
    snapshot: &Snapshot,
    (neighbors, assumes_neighbors): (&NeighborTable, bool),
    packet: &Packet,
    (service, backend): (&Service, &Backend),
) -> Vec<Step> {
    let step = |step: &str, found: String| Step { step: step.to_owned(), found };
    let (client, vip) = (packet.source, packet.destination);
    if service.mode.is_dsr() {
        let found = format!("the backend sends it from {vip} straight to {client}, past the gateway");
        return vec![step("reply", found)];
    }
    let from = SocketAddr::new(backend.address.ip(), backend.port);
    let source = Addr::from(client.ip());
    let is_masqueraded = service.mode == ForwardingMode::FullNat || backend.address == source;
    let to = match is_masqueraded {
        true => "the SNAT address and port of the flow".to_owned(),
        false => format!("{client}; the backend's route to the client must lead to the gateway"),
    };
    let mut steps = vec![
        step("reply", format!("{from} answers to {to}")),
        step("rewrite", format!("the source becomes {vip}, the destination {client}")),
    ];
    let Some(route) = snapshot.route(&source) else {
        let found = format!("no route leads to {client}: the reply is dropped as no_route");
        steps.push(step("next hop", found));
        return steps;
    };
    let hop = route.via.unwrap_or(source);
    let known = neighbors.lookup(route.interface, &hop);
    let state = known.map_or(NeighborState::Unresolved, |id| neighbors.state(id));
    let interface = snapshot.interface(route.interface);
    let name = interface.map_or("?", |interface| interface.name.as_str());
    let found = text::hop(name, Some(hop.ip()), route.via.is_none(), state, assumes_neighbors);
    steps.push(step("next hop", found));
    let mtu = interface.map_or(0, |interface| interface.mtu);
    steps.push(step("mtu", format!("{mtu} of {name}: a longer reply is fragmented or refused")));
    steps
}
