//! The last pass of the fast path: finds the next hop of each packet, rewrites the packet and sets its verdict.
//!
//! All checks come before the first changed byte. A packet that fails one is deferred to the stages, which answer or
//! count it.

use tidegate_snapshot::Interface;
use tidegate_snapshot::backend::Backend;
use tidegate_snapshot::counters::Direction;
use tidegate_snapshot::neighbors::NeighborId;
use tidegate_snapshot::path_mtu;
use tidegate_snapshot::service::FastPath;
use tidegate_spec::ids::{InterfaceIndex, ServiceId};
use tidegate_spec::limits::BURST;
use tidegate_spec::verdict::{TransmitReason, Verdict};
use tidegate_spec::{BackendState, ForwardingMode};
use tidegate_structures::hash::{outer_hash, selection_hash};
use tidegate_wire::encapsulation::{Encapsulation, GueVariant};
use tidegate_wire::usual::{Usual, addr, station_bits, words};
use tidegate_wire::{Addr, MacAddr};

use super::family::{Families, Family};
use super::item::{Action, Actions, FlowEntry, Item};
use crate::forward::usual::{self as rewrite, LinkHead, OuterV4, Translation};
use crate::forward::{Link, tunnel};
use crate::frame::Frame;
use crate::pipeline::output::{BurstOutput, FlowNote, Note};
use crate::pipeline::view::View;

/// A resolved next hop on an untagged link.
pub(super) struct Hop<'s> {
    index: InterfaceIndex,
    interface: &'s Interface,
    destination: MacAddr,
}

impl Hop<'_> {
    #[inline(always)]
    fn head(&self) -> LinkHead {
        LinkHead::new(station_bits(&self.destination), station_bits(&self.interface.mac))
    }
}

/// The next hop of the last reply of the burst, and the range of clients that share it: replies to them need no route
/// look-up. It isn't kept beyond the burst, so it can't be outdated.
struct LastHop<'s, N> {
    /// The first and the last client of the range, as numbers.
    clients: (N, N),
    /// `None` if it is not resolved.
    hop: Option<Hop<'s>>,
}

/// Pass 4: rewrites the packets and sets their verdicts. Returns the frames that are sent.
#[inline(always)]
pub(super) fn send<F: Frame, const A: usize>(
    view: &View<'_>,
    frames: &mut [F],
    items: &[Item<A>],
    actions: &Actions,
    out: &mut BurstOutput,
) -> u32
where
    Families: Family<A>,
{
    let mut sent = 0;
    if actions.dsr {
        sent |= send_dsr(view, frames, items, out);
    }
    if actions.to_backends {
        sent |= send_to_backends(view, frames, items, out);
    }
    if actions.to_clients {
        sent |= send_to_clients(view, frames, items, out);
    }
    sent
}

/// Pass 4 for modes without translation.
#[inline(never)]
fn send_dsr<F: Frame, const A: usize>(
    view: &View<'_>,
    frames: &mut [F],
    items: &[Item<A>],
    out: &mut BurstOutput,
) -> u32 {
    let mut sent = 0_u32;
    for item in items {
        if item.action != Action::Dsr {
            continue;
        }
        let Some(frame) = frames.get_mut(usize::from(item.at)) else { continue };
        let Some(to) = to_backend(view, frame, item) else { continue };
        sent |= note_sent(view, item, to, Direction::Request, out);
    }
    sent
}

/// Pass 4 for clients' packets in modes with translation.
#[inline(never)]
fn send_to_backends<F: Frame, const A: usize>(
    view: &View<'_>,
    frames: &mut [F],
    items: &[Item<A>],
    out: &mut BurstOutput,
) -> u32 {
    let mut sent = 0_u32;
    for item in items {
        if item.action != Action::ToBackend {
            continue;
        }
        let Some(frame) = frames.get_mut(usize::from(item.at)) else { continue };
        let Some((backend, hop)) = reachable(view, item) else { continue };
        sent |= send_to_backend(view, frame, item, (backend, &hop), out);
    }
    sent
}

/// Translates a client's packet for `nat` or `fullnat`, and sets its verdict. The item has the source; it may be the
/// client's own. Returns the frame.
#[inline(always)]
pub(super) fn send_to_backend<F: Frame, const A: usize>(
    view: &View<'_>,
    frame: &mut F,
    item: &Item<A>,
    (backend, hop): (&Backend, &Hop<'_>),
    out: &mut BurstOutput,
) -> u32 {
    let new = Translation::new((item.other, item.other_port), (words(&backend.address), backend.port));
    rewrite::translate(frame, &item.packet, hop.head(), &new);
    note_sent(view, item, (hop.index, backend.service), Direction::Request, out)
}

/// Pass 4 for replies.
#[inline(never)]
fn send_to_clients<F: Frame, const A: usize>(
    view: &View<'_>,
    frames: &mut [F],
    items: &[Item<A>],
    out: &mut BurstOutput,
) -> u32
where
    Families: Family<A>,
{
    let mut sent = 0_u32;
    // Initially the range is the address 0, which no host has.
    let mut last = LastHop { clients: Default::default(), hop: None };
    for item in items {
        if item.action != Action::ToClient {
            continue;
        }
        let Some(frame) = frames.get_mut(usize::from(item.at)) else { continue };
        let Some(to) = translate_to_client(view, frame, item, &mut last) else { continue };
        sent |= note_sent(view, item, to, Direction::Reply, out);
    }
    sent
}

/// Counts a packet that was rewritten, and sets its verdict. Returns its frame.
#[inline(always)]
fn note_sent<const A: usize>(
    view: &View<'_>,
    item: &Item<A>,
    (interface, service): (InterfaceIndex, ServiceId),
    direction: Direction,
    out: &mut BurstOutput,
) -> u32 {
    let at = usize::from(item.at);
    view.tallies.forwarded(item.backend, direction, usize::from(item.packet.ip_len));
    let why = match direction {
        Direction::Request => TransmitReason::Forward,
        Direction::Reply => TransmitReason::Reply,
    };
    out.verdicts[at] = Verdict::Transmit { interface, why };
    if out.takes_notes() {
        let flow = match item.entry {
            FlowEntry::Found => FlowNote::Known,
            FlowEntry::Unneeded => FlowNote::None,
            FlowEntry::UnneededByOpening | FlowEntry::Created | FlowEntry::CreatedPair => FlowNote::New,
        };
        out.notes[at] = Note { service: Some(service), backend: Some(item.backend), flow };
    }
    1 << (at % BURST)
}

/// The backend, if it accepts packets.
#[inline(always)]
fn backend_of<'s, const A: usize>(view: &View<'s>, item: &Item<A>) -> Option<&'s Backend> {
    let backend = view.snapshot.backend(item.backend)?;
    (backend.state != BackendState::Down).then_some(backend)
}

/// The backend and the next hop of a packet that needs only translation, if it can be sent.
#[inline(always)]
pub(super) fn reachable<'s, const A: usize>(
    view: &View<'s>,
    item: &Item<A>,
) -> Option<(&'s Backend, Hop<'s>)> {
    let backend = backend_of(view, item)?;
    let hop = hop_by_id(view, backend.interface, backend.neighbor)?;
    (item.packet.ip_len <= hop.interface.mtu).then_some((backend, hop))
}

/// Rewrites a packet in a mode without translation.
#[inline(always)]
fn to_backend<F: Frame, const A: usize>(
    view: &View<'_>,
    frame: &mut F,
    item: &Item<A>,
) -> Option<(InterfaceIndex, ServiceId)> {
    let backend = backend_of(view, item)?;
    let hop = hop_by_id(view, backend.interface, backend.neighbor)?;
    match backend.encapsulation {
        None if backend.mode == ForwardingMode::DsrL2 => {
            if item.packet.ip_len > hop.interface.mtu {
                return None;
            }
            rewrite::send_on_link::<F, A>(frame, item.packet.ip_len, hop.head());
        }
        None => return None,
        Some(Encapsulation::Ip) => wrap(view, frame, &item.packet, backend, &hop, Encapsulation::Ip)?,
        Some(Encapsulation::Gue { variant: GueVariant::Direct, port }) => {
            wrap_in_gue(view, frame, &item.packet, backend, &hop, port)?;
        }
        Some(encapsulation) => wrap_otherwise(view, frame, &item.packet, backend, &hop, encapsulation)?,
    }
    Some((hop.index, backend.service))
}

/// Wraps a packet for `dsr-gue` in its usual variant, without a GUE header.
#[inline(never)]
fn wrap_in_gue<F: Frame, const A: usize>(
    view: &View<'_>,
    frame: &mut F,
    packet: &Usual<A>,
    backend: &Backend,
    hop: &Hop<'_>,
    port: u16,
) -> Option<()> {
    wrap(view, frame, packet, backend, hop, Encapsulation::Gue { variant: GueVariant::Direct, port })
}

/// Wraps a packet in outer headers other than a bare IP header.
#[inline(never)]
fn wrap_otherwise<F: Frame, const A: usize>(
    view: &View<'_>,
    frame: &mut F,
    packet: &Usual<A>,
    backend: &Backend,
    hop: &Hop<'_>,
    encapsulation: Encapsulation,
) -> Option<()> {
    wrap(view, frame, packet, backend, hop, encapsulation)
}

/// Wraps a packet in an outer packet if it certainly fits the path. Otherwise returns `None` and changes nothing.
#[inline(always)]
fn wrap<F: Frame, const A: usize>(
    view: &View<'_>,
    frame: &mut F,
    packet: &Usual<A>,
    backend: &Backend,
    hop: &Hop<'_>,
    encapsulation: Encapsulation,
) -> Option<()> {
    let overhead = tunnel::overhead(encapsulation, backend.family);
    let passes = hop.interface.mtu.min(path_mtu::minimum(backend.family));
    if usize::from(packet.ip_len) + overhead > usize::from(passes) {
        return None;
    }
    let source = view.snapshot.tunnel_source(backend.family)?;
    // A tunnel with a single IPv4 source and no UDP port doesn't use the hash.
    let hashed =
        backend.family == tidegate_wire::Family::V6 || source.is_many() || encapsulation.port().is_some();
    let flow = if hashed { flow_hash(packet) } else { 0 };
    let (source, destination) = (source.pick(flow), backend.address);
    if backend.family == tidegate_wire::Family::V4 {
        let ([source], [destination]) = (words(&source), words(&destination));
        let outer = OuterV4 { encapsulation, source, destination, flow_hash: flow as u32 };
        return rewrite::wrap_in_ipv4(frame, packet, hop.head(), &outer).ok();
    }
    let h = packet.headers(frame.bytes());
    let tunnel = tunnel::Tunnel { encapsulation, source, destination, flow_hash: flow as u32 };
    let link = Link { source: hop.interface.mac, destination: hop.destination, vlan: None };
    tunnel::forward(frame, &h, &link, &tunnel).ok()
}

/// [`tunnel::flow_hash`] of a packet that is neither a fragment nor an ICMP error.
#[inline(always)]
fn flow_hash<const A: usize>(packet: &Usual<A>) -> u64 {
    let (src, dst) = (addr(packet.src), addr(packet.dst));
    outer_hash(selection_hash(&src, packet.src_port(), &dst, packet.dst_port(), packet.proto))
}

/// Translates a reply for `nat` or `fullnat`.
#[inline(always)]
fn translate_to_client<'s, F: Frame, const A: usize>(
    view: &View<'s>,
    frame: &mut F,
    item: &Item<A>,
    last: &mut LastHop<'s, <Families as Family<A>>::Number>,
) -> Option<(InterfaceIndex, ServiceId)>
where
    Families: Family<A>,
{
    let service = view.snapshot.service_by_id(item.service)?;
    let client = Families::number(item.other);
    if client < last.clients.0 || client > last.clients.1 {
        *last = hop_to(view, client, &addr(item.other))?;
    }
    let hop = last.hop.as_ref()?;
    if item.packet.ip_len > hop.interface.mtu || service.fast_path == FastPath::Off {
        return None;
    }
    let new = Translation::new((words(&service.vip), service.port), (item.other, item.other_port));
    rewrite::translate(frame, &item.packet, hop.head(), &new);
    Some((hop.index, service.id))
}

#[inline(always)]
fn hop_by_id<'s>(view: &View<'s>, index: InterfaceIndex, id: NeighborId) -> Option<Hop<'s>> {
    let interface = view.snapshot.interface(index).filter(|interface| interface.vlan.is_none())?;
    let destination = view.neighbors.mac(id)?;
    Some(Hop { index, interface, destination })
}

#[inline(never)]
fn hop_to<'s, const A: usize>(
    view: &View<'s>,
    number: <Families as Family<A>>::Number,
    client: &Addr,
) -> Option<LastHop<'s, <Families as Family<A>>::Number>>
where
    Families: Family<A>,
{
    let (route, clients) = Families::route(view.snapshot, number)?;
    if let Some(id) = route.neighbor {
        return Some(LastHop { clients, hop: hop_by_id(view, route.interface, id) });
    }
    // Each client on the link is its own next hop, and the look-up marks it as in use.
    let destination = view.neighbors.resolve(route.interface, client)?;
    let interface = view.snapshot.interface(route.interface).filter(|interface| interface.vlan.is_none())?;
    let hop = Hop { index: route.interface, interface, destination };
    Some(LastHop { clients: (number, number), hop: Some(hop) })
}
