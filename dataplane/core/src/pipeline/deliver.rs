//! The last stage: rewrites each packet by the mode of its service and sends it to its next hop, or answers
//! why that cannot be.
//!
//! Everything that may refuse a packet is asked before the first byte changes: hop limit, route, neighbour,
//! size, room. Costs per packet: the backend's line and the next hop's, both asked for by the stage before,
//! and the first lines of the frame.

use super::{Burst, Delivery, Destination, NeighborEvent, Pipeline, answers};
use crate::forward::dsr_ipip::Tunnel;
use crate::forward::{self, Link, NoRoom};
use crate::fragments::Decision;
use crate::frame::Frame;
use crate::hash::selection_hash;
use crate::ids::InterfaceIndex;
use crate::neighbors::NeighborSlot;
use crate::snapshot::{ForwardingMode, Snapshot};
use crate::verdict::{Refusal, TransmitReason, Verdict};
use crate::wire::icmp::Problem;
use crate::wire::quote;
use crate::wire::rewrite::Endpoint;
use crate::wire::{Addr, Family, Fragment, Headers};

/// A next hop whose link address is known, and what may pass to it.
struct Way {
    interface: InterfaceIndex,
    link: Link,
    mtu: usize,
}

impl Pipeline {
    /// Rewrites and sends what the stages before have decided.
    #[inline(never)]
    pub(super) fn deliver<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>) {
        // By position: taking the array out of the burst would copy all of it.
        for at in 0..burst.deliveries.len() {
            let delivery = burst.deliveries[at];
            self.deliver_one(burst, &delivery);
        }
        burst.deliveries.clear();
    }

    #[inline]
    pub(super) fn deliver_one<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>, delivery: &Delivery<'_>) {
        let at = burst.frame_of(delivery.packet);
        let mut h = burst.packets[usize::from(delivery.packet)].headers;
        match way_of(burst, &delivery.destination) {
            Ok(way) => self.send(burst, at, &mut h, &delivery.destination, &way),
            Err(refusal) => burst.set(at, refusal),
        }
    }

    #[inline]
    fn send<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &mut Headers,
        destination: &Destination<'_>,
        way: &Way,
    ) {
        if h.ttl <= 1 {
            let answered = self.refuse(burst, at, h, Problem::TimeExceeded);
            burst.answer_or(at, answered, TransmitReason::TtlExceeded, Refusal::TtlExceeded);
            return;
        }
        let overhead = overhead(destination);
        let ip_len = h.ip_len();
        if usize::from(ip_len) + overhead > way.mtu {
            // At most 65,535, being a difference of such numbers; a tunnel over a link too small for it
            // leaves nothing.
            let mtu = way.mtu.saturating_sub(overhead) as u16;
            let answered = self.refuse(burst, at, h, Problem::TooBig { mtu });
            burst.answer_or(at, answered, TransmitReason::PacketTooBig, Refusal::TooBig);
            return;
        }
        // As it came: later fragments come like this too.
        let first = match h.fragment {
            Fragment::First { id } => Some((id, *h)),
            Fragment::None | Fragment::Later { .. } => None,
        };
        let (service, why) = match destination {
            Destination::Backend { service, .. } => (service, TransmitReason::Forward),
            Destination::Client { service, .. } => (service, TransmitReason::Reply),
        };
        let why = if h.is_icmp_error() { TransmitReason::IcmpError } else { why };
        if let Err(refusal) = rewrite(burst, at, h, destination, &way.link) {
            return burst.set(at, refusal);
        }
        if let Some((id, before)) = first {
            self.fragments.remember(&before, id, decision(destination), burst.now);
        }
        burst.view.tallies.forwarded(service.id, usize::from(ip_len));
        burst.set(at, Verdict::Transmit { interface: way.interface, why });
    }

    /// Makes the frame an ICMP error about its packet, if one may be sent now.
    #[cold]
    pub(super) fn refuse<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        problem: Problem,
    ) -> bool {
        // A router answers in its own name; "no such port" is the VIP's to say, and a link without an address
        // of the family leaves only the VIP.
        let from = match problem {
            Problem::PortUnreachable => h.dst,
            _ => burst.interface.source(h.family).unwrap_or(h.dst),
        };
        let mac = burst.interface.mac;
        self.reply_limit.take(burst.now) && answers::error(&mut burst.frames[at], h, problem, mac, from)
    }
}

/// The next hop of a destination.
#[inline]
fn way_of<F: Frame>(burst: &mut Burst<'_, '_, F>, destination: &Destination<'_>) -> Result<Way, Refusal> {
    match destination {
        Destination::Backend { backend, .. } => way_by_slot(burst, backend.interface, backend.neighbor),
        Destination::Client { client, .. } => way_by_route(burst, &client.addr),
    }
}

/// Bytes that the mode adds to the packet.
#[inline]
fn overhead(destination: &Destination<'_>) -> usize {
    match destination {
        Destination::Backend { backend, .. } if backend.mode == ForwardingMode::DsrIpip => {
            forward::dsr_ipip::overhead(backend.family)
        }
        _ => 0,
    }
}

/// The rewrite of the service's mode. On a refusal the frame is as it came.
#[inline]
fn rewrite<F: Frame>(
    burst: &mut Burst<'_, '_, F>,
    at: usize,
    h: &mut Headers,
    destination: &Destination<'_>,
    link: &Link,
) -> Result<(), Refusal> {
    let snapshot = burst.view.snapshot;
    let frame = &mut burst.frames[at];
    let sent = match *destination {
        Destination::Backend { backend, .. } if backend.mode == ForwardingMode::DsrL2 => {
            forward::dsr_l2::forward(frame, h, link)
        }
        Destination::Backend { backend, .. } if backend.mode == ForwardingMode::DsrIpip => {
            let source = snapshot.tunnel_source(backend.family).ok_or(Refusal::NoRoute)?;
            // Only an IPv6 header has a flow label for it. The high half chose the slot and is much the same for all
            // flows of a backend.
            let flow_hash = match backend.family {
                Family::V4 => 0,
                Family::V6 => selection_hash(&h.src, h.src_port, &h.dst, h.dst_port, h.proto) as u32,
            };
            let tunnel = Tunnel { source, destination: backend.address, flow_hash };
            forward::dsr_ipip::forward(frame, h, link, &tunnel)
        }
        Destination::Backend { .. } | Destination::Client { .. } => {
            if !forward::nat::can_translate(h) {
                return Err(Refusal::SctpFragment);
            }
            let sent = translate(frame, h, destination, link);
            // Not before there is known to be room: a frame that is refused stays as it came.
            if sent.is_ok() && h.is_icmp_error() {
                translate_quote(frame, h, destination);
            }
            sent
        }
    };
    sent.map_err(|NoRoom| Refusal::NoHeadroom)
}

#[inline]
fn translate<F: Frame>(
    frame: &mut F,
    h: &mut Headers,
    destination: &Destination<'_>,
    link: &Link,
) -> Result<(), NoRoom> {
    match *destination {
        Destination::Backend { backend, local, .. } => {
            let backend = Endpoint { addr: backend.address, port: backend.port };
            match local {
                Some(local) => forward::fullnat::to_backend(frame, h, link, local, backend),
                None => forward::nat::to_backend(frame, h, link, backend),
            }
        }
        Destination::Client { service, client } => {
            let vip = Endpoint { addr: service.vip, port: service.port };
            if client.addr == h.dst && client.port == h.dst_port {
                forward::nat::to_client(frame, h, link, vip)
            } else {
                forward::fullnat::to_client(frame, h, link, vip, client)
            }
        }
    }
}

/// Translates the packet that an ICMP error quotes back to how its sender knew it: it went the other way.
#[cold]
fn translate_quote<F: Frame>(frame: &mut F, h: &Headers, destination: &Destination<'_>) {
    let Ok(Some(mut quoted)) = quote::parse(frame.bytes(), h) else { return };
    let (src, dst) = match *destination {
        // The backend sent it, to what it takes for the client.
        Destination::Backend { backend, local, .. } => {
            (Some(Endpoint { addr: backend.address, port: backend.port }), local)
        }
        // The client sent it, to the VIP.
        Destination::Client { service, client } => {
            (Some(client), Some(Endpoint { addr: service.vip, port: service.port }))
        }
    };
    quote::translate(frame.bytes_mut(), h, &mut quoted, src, dst);
}

#[inline]
fn way_by_slot<F: Frame>(
    burst: &mut Burst<'_, '_, F>,
    index: InterfaceIndex,
    slot: NeighborSlot,
) -> Result<Way, Refusal> {
    let interface = burst.view.snapshot.interface(index).ok_or(Refusal::NoRoute)?;
    match burst.view.neighbors.mac(slot) {
        Some(destination) => Ok(Way {
            interface: index,
            link: Link { source: interface.mac, destination, vlan: interface.vlan },
            mtu: usize::from(interface.mtu),
        }),
        None => {
            if let Some((interface, addr)) = burst.view.neighbors.key(slot) {
                burst.out.tell(NeighborEvent::Wanted { interface, addr });
            }
            Err(Refusal::NeighborUnresolved)
        }
    }
}

/// To a client: by a route, or on the link itself.
fn way_by_route<F: Frame>(burst: &mut Burst<'_, '_, F>, client: &Addr) -> Result<Way, Refusal> {
    let route = burst.view.snapshot.route(client).ok_or(Refusal::NoRoute)?;
    let addr = route.via.unwrap_or(*client);
    let slot = match route.neighbor {
        Some(slot) => Some(slot),
        None => burst.view.neighbors.lookup(route.interface, &addr),
    };
    match slot {
        Some(slot) => way_by_slot(burst, route.interface, slot),
        None => {
            burst.out.tell(NeighborEvent::Wanted { interface: route.interface, addr });
            Err(Refusal::NeighborUnresolved)
        }
    }
}

/// What later fragments of the same packet follow.
fn decision(destination: &Destination<'_>) -> Decision {
    match *destination {
        Destination::Backend { service, backend, local } => {
            Decision::ToBackend { service: service.id, backend: backend.id, local }
        }
        Destination::Client { service, client } => Decision::ToClient { service: service.id, client },
    }
}

/// The service and backend that a remembered decision names, if both are still there.
pub(super) fn recalled(snapshot: &Snapshot, decision: Decision) -> Option<Destination<'_>> {
    Some(match decision {
        Decision::ToBackend { service, backend, local } => Destination::Backend {
            service: snapshot.service_by_id(service)?,
            backend: snapshot.backend(backend)?,
            local,
        },
        Decision::ToClient { service, client } => {
            Destination::Client { service: snapshot.service_by_id(service)?, client }
        }
        Decision::Elsewhere(_) => return None,
    })
}
