//! Packets that do not fit the path to their destination, or whose hop limit ends here: fragmented, or answered.
//!
//! Promises: a packet that may pass is unchanged; any other has its verdict, also one that was sent in a fragmented outer
//! packet. Everything here is off the usual way.

use tidegate_snapshot::backend::Backend;
use tidegate_snapshot::counters::Direction;
use tidegate_snapshot::path_mtu;
use tidegate_snapshot::service::Service;
use tidegate_spec::limits::FRAGMENTED;
use tidegate_spec::now::Now;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_wire::icmp::Problem;
use tidegate_wire::{Family, Headers};

use super::burst::Burst;
use super::next_hop::NextHop;
use super::output::Oversized;
use super::state::Pipeline;
use super::view::View;
use crate::forward::tunnel::{self, Tunnel};
use crate::frame::Frame;

impl Pipeline {
    /// Whether a packet whose hop limit or size needs a further check is forwarded: it fits the path to its backend,
    /// or may be fragmented. If not, it has its verdict: it is answered, or its outer packet is fragmented.
    #[cold]
    #[inline(never)]
    pub(super) fn passes_after_all<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        (service, backend): (&Service, &Backend),
        overhead: usize,
        way: &NextHop,
    ) -> bool {
        let mtu = mtu_to(&burst.view, backend, way.mtu, burst.now);
        if h.ttl > 1 && usize::from(h.ip_len()) + overhead <= mtu {
            return true;
        }
        let way = NextHop { interface: way.interface, link: way.link, mtu };
        let need_not_shrink =
            h.family == Family::V6 && h.ip_len() <= path_mtu::minimum(Family::V6) && overhead > 0;
        if h.ttl > 1 && need_not_shrink {
            self.send_outer_in_pieces(burst, at, h, service, backend, &way);
            return false;
        }
        self.passes_in_pieces(burst, at, h, overhead, &way)
    }

    /// Sends an IPv6 packet that every link must take whole (RFC 8200 section 5) through a tunnel that it does not fit:
    /// the outer packet is fragmented (RFC 2473 section 7.1, RFC 4213 section 3.2). Routers may fragment an outer IPv4
    /// packet further; pieces of an outer IPv6 packet are small enough for every path.
    #[cold]
    fn send_outer_in_pieces<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        service: &Service,
        backend: &Backend,
        way: &NextHop,
    ) {
        let source = burst.view.snapshot.tunnel_source(backend.family);
        let (Some(source), Some(encapsulation)) = (source, backend.encapsulation) else {
            return burst.set(at, Refusal::NoRoute);
        };
        let frame = &mut burst.frames[at];
        let flow = tunnel::flow_hash(frame.bytes(), h);
        let (source, destination) = (source.pick(flow), backend.address);
        let tunnel = Tunnel { encapsulation, source, destination, flow_hash: flow as u32 };
        let identification = self.outer_identifications.take();
        if let Err(no_room) = tunnel::forward_to_be_cut(frame, h, &way.link, &tunnel, identification) {
            return burst.set(at, Refusal::from(no_room));
        }
        let mtu = match backend.family {
            Family::V4 => way.mtu,
            Family::V6 => way.mtu.min(usize::from(path_mtu::minimum(Family::V6))),
        };
        // As above: the numbers are below 65,536, and there is room.
        let (packet, mtu) = (way.link.header_len() as u16, mtu as u16);
        let _ = burst.out.oversized.try_push(Oversized { frame: at as u8, packet, mtu });
        let why = if h.is_icmp_error() { TransmitReason::IcmpError } else { TransmitReason::Forward };
        let direction = Direction::Request;
        burst.view.tallies.forwarded(service.id, direction, usize::from(h.ip_len()));
        burst.set(at, Verdict::Transmit { interface: way.interface, why });
    }

    /// Whether a packet whose hop limit ends here, or that does not fit the path, may be forwarded in fragments because
    /// its sender has left DF clear (RFC 791). Otherwise it is answered, as it is if the policy or the limit of packets
    /// in fragments requires it.
    #[cold]
    pub(super) fn passes_in_pieces<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        overhead: usize,
        way: &NextHop,
    ) -> bool {
        // Room for the longest IPv4 header and 8 bytes of data.
        let room = way.mtu >= overhead + 60 + 8;
        let may_be_cut = !h.dont_fragment && room && burst.view.snapshot.policy().fragment_ipv4;
        if h.ttl <= 1 || !may_be_cut || !self.fragmenting.take(FRAGMENTED, burst.now) {
            self.cannot_pass(burst, at, h, overhead, way.mtu);
            return false;
        }
        // Offsets and MTUs are below 65,536. A frame is delivered once, so there is room.
        let (packet, mtu) = ((way.link.header_len() + overhead) as u16, way.mtu as u16);
        let _ = burst.out.oversized.try_push(Oversized { frame: at as u8, packet, mtu });
        true
    }

    /// Answers a packet whose hop limit ends here, or that does not fit the path.
    #[cold]
    pub(super) fn cannot_pass<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        overhead: usize,
        mtu: usize,
    ) {
        if h.ttl <= 1 {
            let answered = self.refuse(burst, at, h, Problem::TimeExceeded);
            return burst.answer_or(at, answered, TransmitReason::TtlExceeded, Refusal::TtlExceeded);
        }
        // At most 65,535, as a difference of such numbers. A tunnel over a link that is too small for it leaves 0.
        let mtu = (mtu.saturating_sub(overhead) as u16).max(match h.family {
            Family::V4 => 0,
            // Hosts ignore a smaller value (RFC 8201 section 4).
            Family::V6 => path_mtu::minimum(Family::V6),
        });
        let answered = self.refuse(burst, at, h, Problem::TooBig { mtu });
        burst.answer_or(at, answered, TransmitReason::PacketTooBig, Refusal::TooBig);
    }
}

/// Bytes of the largest packet, outer header included, that reaches a backend over a link with this MTU, taking into
/// account the path MTU that a router on the path of a tunnel has reported.
#[inline(never)]
pub(super) fn mtu_to(view: &View<'_>, backend: &Backend, link_mtu: usize, now: Now) -> usize {
    if !backend.mode.is_tunnel() {
        return link_mtu;
    }
    let path = view.neighbors.path_mtus().get(&backend.address, now);
    path.map_or(link_mtu, |path| link_mtu.min(usize::from(path)))
}
