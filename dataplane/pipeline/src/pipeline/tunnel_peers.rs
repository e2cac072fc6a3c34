//! Packets that another gateway hands over in a tunnel (`dataplane.tunnelPeers`).
//!
//! This is off the fast path: such packets go to an address of the gateway itself. The inner packet is processed as if
//! it had arrived without the tunnel, in a burst of its own after the stages of the current burst. It is forwarded to a
//! backend or a client, answered, or dropped. It never goes to the kernel or along one of our routes, and nested
//! tunnels are not opened. A frame that is queued or handed over to another worker keeps its outer headers.

use arrayvec::ArrayVec;
use tidegate_snapshot::addresses::AddressKind;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_wire::decapsulation::{self, Closed};
use tidegate_wire::ethernet::ether_type;
use tidegate_wire::{Family, Headers, Parsed, parse};

use super::burst::Burst;
use super::next_hop::next_hop_by_route;
use super::output::{BurstOutput, Oversized, UnknownFragment, Unresolved};
use super::state::Pipeline;
use crate::forward::dsr_l2;
use crate::frame::Frame;

/// The longest headers in front of an inner packet, plus the part of the inner header that changes. Geneve with all
/// possible options (260 bytes) fits behind the outer headers of either family. Packets with longer headers are not
/// opened.
const SAVED_MAX: usize = 384;

/// The bytes of the inner packet that contain its ECN field and its header checksum.
const CHANGED: usize = 12;

/// A frame without its outer headers.
struct Opened {
    /// The beginning of the frame as it arrived.
    saved: ArrayVec<u8, SAVED_MAX>,
    removed: usize,
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
    /// Decapsulates the tunnel packets of a burst, and processes the inner packets.
    #[cold]
    #[inline(never)]
    pub(super) fn open_tunnels<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>) {
        // The output is always there, since nested tunnels are not opened.
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

    /// Merges the output for the inner packet into the burst's output.
    fn report<F: Frame>(&self, burst: &mut Burst<'_, '_, F>, at: usize, opened: &mut BurstOutput) {
        let frame = at as u8;
        burst.out.notes[at] = opened.notes[0];
        // If a list is full, entries are dropped, as in any burst.
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

/// Whether a frame would return to the station that it came from. That station is a peer, which is not on the path to
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

/// Sends an answer to the next hop of its destination. Until the next hop is resolved, the answer goes to the station
/// that sent the packet.
fn answer<F: Frame>(burst: &mut Burst<'_, '_, F>, at: usize, why: TransmitReason) {
    let mut interface = burst.arrival.interface();
    if let Ok(Parsed::Ip(h)) = parse(burst.frames[at].bytes()) {
        match next_hop_by_route(&burst.view, &h.dst) {
            Ok(hop) if h.ttl > 1 && dsr_l2::forward(&mut burst.frames[at], &h, &hop.link).is_ok() => {
                interface = hop.interface;
            }
            Ok(_) => {}
            Err(unknown) => unknown.request_resolution(burst.out),
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
    // Ethernet padding isn't part of the inner packet.
    let shortened = frame.resize(usize::from(outer.ip_end));
    debug_assert!(shortened, "the packet is in the frame");
    frame.shrink_front(opened.removed);
    Ok(opened)
}

impl Opened {
    /// Restores the frame as it arrived. The inner packet is unchanged, apart from the saved bytes.
    fn restore<F: Frame>(&self, frame: &mut F) {
        let fits = frame.grow_front(self.removed) && frame.resize(self.len);
        debug_assert!(fits, "the frame was as long before");
        if let Some(beginning) = frame.bytes_mut().get_mut(..self.saved.len()) {
            beginning.copy_from_slice(&self.saved);
        }
    }
}
