//! Packets that another gateway hands over in a tunnel (`dataplane.tunnelPeers`).
//!
//! Off the fast path: such packets go to an address of the gateway itself. The inner packet is processed as if it had
//! arrived without the tunnel, in a burst of its own after the stages of the burst that brought it. It is forwarded to a
//! backend or a client, answered, or dropped: nothing in a tunnel goes to the kernel or by a route of ours, and no tunnel in
//! a tunnel is opened. If the frame goes to another worker, or waits, it does so as it arrived.

use arrayvec::ArrayVec;
use tidegate_snapshot::addresses::AddressKind;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_wire::decapsulation::{self, Closed};
use tidegate_wire::ethernet::ether_type;
use tidegate_wire::{Family, Headers, Parsed, parse};

use super::burst::Burst;
use super::next_hop::way_by_route;
use super::output::{BurstOutput, Oversized, UnknownFragment, Unresolved};
use super::state::Pipeline;
use crate::forward::dsr_l2;
use crate::frame::Frame;

/// Bytes in front of an inner packet, and of its header as far as it changes. Geneve with all options that its header has
/// room for (260 bytes) fits, with the outer headers of either family. Longer headers are not opened.
const SAVED_MAX: usize = 384;

/// Bytes of the inner packet in which its ECN field and its header checksum are.
const CHANGED: usize = 12;

/// A frame without its outer headers.
struct Opened {
    /// The beginning of the frame as it arrived.
    saved: ArrayVec<u8, SAVED_MAX>,
    /// Bytes that were removed.
    removed: usize,
    /// Bytes of the whole frame.
    len: usize,
}

impl<F: Frame> Burst<'_, '_, F> {
    /// Whether a packet is a tunnel packet of a peer, to an address of the gateway itself.
    #[cold]
    pub(super) fn is_of_peer(&self, h: &Headers) -> bool {
        let snapshot = self.view.snapshot;
        decapsulation::is_tunnel(h)
            && snapshot.tunnel_peers().binary_search(&h.src).is_ok()
            && matches!(snapshot.address(&h.dst), Some(AddressKind::Own(_) | AddressKind::Tunnel))
    }
}

impl Pipeline {
    /// Opens the tunnel packets of a burst, and processes what is in them.
    #[cold]
    #[inline(never)]
    pub(super) fn open_tunnels<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>) {
        // It is there: packets in a tunnel do not come here again.
        let Some(mut out) = self.opened.take() else { return };
        for at in std::mem::take(&mut burst.of_peers) {
            let at = usize::from(at);
            let opened = match open(&mut burst.frames[at]) {
                Ok(opened) => opened,
                Err(closed) => {
                    burst.set(at, Refusal::from(closed));
                    continue;
                }
            };
            let frame = &mut burst.frames[at..=at];
            self.process(burst.view, burst.now, burst.arrival, frame, &mut out);
            self.report(burst, at, &mut out);
            if !matches!(burst.out.verdicts[at], Verdict::Transmit { .. }) {
                opened.restore(&mut burst.frames[at]);
            }
        }
        self.opened = Some(out);
    }

    /// Takes over the output for the packet in the tunnel.
    fn report<F: Frame>(&self, burst: &mut Burst<'_, '_, F>, at: usize, opened: &mut BurstOutput) {
        let frame = at as u8;
        burst.out.notes[at] = opened.notes[0];
        // Lists that are full: as for a burst without room.
        for event in opened.events.drain(..) {
            burst.out.report_neighbor(event);
        }
        for first in opened.first_fragments.drain(..) {
            let _ = burst.out.first_fragments.try_push(first);
        }
        for UnknownFragment { key, .. } in opened.unknown_fragments.drain(..) {
            let _ = burst.out.unknown_fragments.try_push(UnknownFragment { frame, key });
        }
        for Unresolved { interface, addr, .. } in opened.unresolved.drain(..) {
            let _ = burst.out.unresolved.try_push(Unresolved { frame, interface, addr });
        }
        for Oversized { packet, mtu, .. } in opened.oversized.drain(..) {
            let _ = burst.out.oversized.try_push(Oversized { frame, packet, mtu });
        }
        match opened.verdicts[0] {
            Verdict::Punt(_) => burst.set(at, Refusal::TunnelUnserved),
            Verdict::Transmit { why, .. } if is_answer(why) => answer(burst, at, why),
            verdict => burst.set(at, verdict),
        }
    }
}

/// Whether a frame goes back to the station that it came from. The packet came from a peer, which is not on the way to
/// the client.
fn is_answer(why: TransmitReason) -> bool {
    match why {
        TransmitReason::Forward
        | TransmitReason::Reply
        | TransmitReason::IcmpError
        | TransmitReason::Retried
        | TransmitReason::Routed
        | TransmitReason::Masqueraded => false,
        TransmitReason::ArpReply
        | TransmitReason::NeighborAdvertisement
        | TransmitReason::EchoReply
        | TransmitReason::NoEndpoints
        | TransmitReason::NoFlow
        | TransmitReason::SynCookie
        | TransmitReason::NoService
        | TransmitReason::PacketTooBig
        | TransmitReason::TtlExceeded
        | TransmitReason::NotRouted => true,
    }
}

/// Sends an answer to the next hop of its destination. If the next hop's link address is not known yet, the answer goes to the
/// station that the packet came from.
fn answer<F: Frame>(burst: &mut Burst<'_, '_, F>, at: usize, why: TransmitReason) {
    let mut interface = burst.arrival.interface();
    if let Ok(Parsed::Ip(h)) = parse(burst.frames[at].bytes()) {
        match way_by_route(&burst.view, &h.dst) {
            Ok(way) if h.ttl > 1 && dsr_l2::forward(&mut burst.frames[at], &h, &way.link).is_ok() => {
                interface = way.interface;
            }
            Ok(_) => {}
            Err(unknown) => unknown.ask(burst.out),
        }
    }
    burst.set(at, Verdict::Transmit { interface, why });
}

/// Removes the outer headers of a frame.
fn open<F: Frame>(frame: &mut F) -> Result<Opened, Closed> {
    let Ok(Parsed::Ip(outer)) = parse(frame.bytes()) else { return Err(Closed::Headers) };
    let (inner, family) = decapsulation::inner(frame.bytes(), &outer)?;
    let link = usize::from(outer.l3);
    let saved = frame.bytes().get(..inner + CHANGED).ok_or(Closed::Headers)?;
    let saved: ArrayVec<u8, SAVED_MAX> = saved.try_into().map_err(|_| Closed::Headers)?;
    let opened = Opened { saved, removed: inner - link, len: frame.bytes().len() };
    let bytes = frame.bytes_mut();
    decapsulation::take_congestion(&mut bytes[inner..], family, outer.tos)?;
    bytes.copy_within(..link, opened.removed);
    let kind = match family {
        Family::V4 => ether_type::IPV4,
        Family::V6 => ether_type::IPV6,
    };
    bytes[inner - 2..inner].copy_from_slice(&kind.to_be_bytes());
    // Ethernet padding is no part of the inner packet.
    let shortened = frame.resize(usize::from(outer.ip_end));
    debug_assert!(shortened, "the packet is in the frame");
    frame.shrink_front(opened.removed);
    Ok(opened)
}

impl Opened {
    /// Makes the frame as it arrived. The packet in the tunnel is unchanged, apart from what is saved.
    fn restore<F: Frame>(&self, frame: &mut F) {
        let has_room = frame.grow_front(self.removed) && frame.resize(self.len);
        debug_assert!(has_room, "the frame was as long");
        if let Some(beginning) = frame.bytes_mut().get_mut(..self.saved.len()) {
            beginning.copy_from_slice(&self.saved);
        }
    }
}
