//! The next hop of a packet: its interface, its link address and its MTU, or why there is none.
//! `fast_path/send.rs` finds the same for plain packets.
//!
//! Promises: nothing blocks. A next hop whose link address is not known is reported, and the packet is dropped or
//! queued.

use tidegate_snapshot::Interface;
use tidegate_snapshot::neighbors::NeighborId;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::verdict::Refusal;
use tidegate_wire::{Addr, MacAddr};

use super::burst::{Burst, Destination};
use super::output::{BurstOutput, NeighborEvent};
use super::view::View;
use crate::forward::Link;
use crate::frame::Frame;

/// A next hop whose link address is known, and the limits on packets to it.
pub(super) struct NextHop {
    pub(super) interface: InterfaceIndex,
    pub(super) link: Link,
    pub(super) mtu: usize,
}

impl NextHop {
    pub(super) fn fits(&self, ip_len: u16) -> bool {
        usize::from(ip_len) <= self.mtu
    }

    #[inline(always)]
    fn new(interface: &Interface, index: InterfaceIndex, destination: MacAddr) -> Self {
        let link = Link { source: interface.mac, destination, vlan: interface.vlan };
        Self { interface: index, link, mtu: usize::from(interface.mtu) }
    }
}

/// Why there is no next hop to send to.
pub(super) struct NoNextHop {
    pub(super) refusal: Refusal,
    /// A next hop whose link address is not known.
    unresolved_hop: Option<(InterfaceIndex, Addr)>,
}

impl NoNextHop {
    const NO_ROUTE: Self = Self { refusal: Refusal::NoRoute, unresolved_hop: None };

    fn unresolved(unresolved_hop: Option<(InterfaceIndex, Addr)>) -> Self {
        Self { refusal: Refusal::NeighborUnresolved, unresolved_hop }
    }

    /// Sets the verdict of the frame, and requests the resolution of the next hop.
    #[cold]
    pub(super) fn report<F: Frame>(self, burst: &mut Burst<'_, '_, F>, at: usize) {
        if let Some((interface, addr)) = self.unresolved_hop {
            burst.out.record_unresolved(at, interface, addr);
        }
        burst.set(at, self.refusal);
    }

    /// Requests the resolution of the next hop, for later packets.
    #[cold]
    pub(super) fn request_resolution(self, out: &mut BurstOutput) {
        if let Some((interface, addr)) = self.unresolved_hop {
            out.report_neighbor(NeighborEvent::Wanted { interface, addr });
        }
    }
}

#[inline(always)]
pub(super) fn next_hop_of(view: &View<'_>, destination: &Destination<'_>) -> Result<NextHop, NoNextHop> {
    match destination {
        Destination::Backend { backend, .. } => next_hop_by_id(view, backend.interface, backend.neighbor),
        Destination::Client { client, .. } => next_hop_by_route(view, &client.addr),
    }
}

#[inline(always)]
pub(super) fn next_hop_by_id(
    view: &View<'_>,
    index: InterfaceIndex,
    id: NeighborId,
) -> Result<NextHop, NoNextHop> {
    let interface = view.snapshot.interface(index).ok_or(NoNextHop::NO_ROUTE)?;
    match view.neighbors.mac(id) {
        Some(destination) => Ok(NextHop::new(interface, index, destination)),
        None => Err(NoNextHop::unresolved(view.neighbors.key(id))),
    }
}

/// The next hop to a client: the router of a route, or the client itself if it is on-link.
pub(super) fn next_hop_by_route(view: &View<'_>, client: &Addr) -> Result<NextHop, NoNextHop> {
    let route = view.snapshot.route(client).ok_or(NoNextHop::NO_ROUTE)?;
    if let Some(id) = route.neighbor {
        return next_hop_by_id(view, route.interface, id);
    }
    let addr = route.via.unwrap_or(*client);
    let interface = view.snapshot.interface(route.interface).ok_or(NoNextHop::NO_ROUTE)?;
    match view.neighbors.resolve(route.interface, &addr) {
        Some(destination) => Ok(NextHop::new(interface, route.interface, destination)),
        None => Err(NoNextHop::unresolved(Some((route.interface, addr)))),
    }
}
