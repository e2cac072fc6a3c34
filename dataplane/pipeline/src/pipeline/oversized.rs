//! Packets that don't fit the path to their destination, or whose hop limit ends here: they are fragmented or answered.
//!
//! Off the fast path. Promises: a packet that may pass is unchanged; any other packet has its verdict.

use tidegate_snapshot::backend::Backend;
use tidegate_snapshot::counters::Direction;
use tidegate_snapshot::path_mtu;
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
    /// For a packet whose hop limit or size needs a further check: whether it fits the path to its backend, or may be
    /// fragmented. If not, this sets its verdict: the packet is answered, or its outer packet is fragmented.
    #[cold]
    #[inline(never)]
    pub(super) fn passes_full_check<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        backend: &Backend,
        overhead: usize,
        hop: &NextHop,
    ) -> bool {
        let mtu = mtu_to(&burst.view, backend, hop.mtu, burst.now);
        if h.ttl > 1 && usize::from(h.ip_len()) + overhead <= mtu {
            return true;
        }
        let hop = NextHop { interface: hop.interface, link: hop.link, mtu };
        let need_not_shrink =
            h.family == Family::V6 && h.ip_len() <= path_mtu::minimum(Family::V6) && overhead > 0;
        if h.ttl > 1 && need_not_shrink {
            self.send_outer_in_fragments(burst, at, h, backend, &hop);
            return false;
        }
        self.passes_in_fragments(burst, at, h, overhead, &hop)
    }

    /// Sends an IPv6 packet of at most 1280 bytes, which every link must take whole (RFC 8200 section 5), through a
    /// tunnel that it doesn't fit: the outer packet is fragmented (RFC 2473 section 7.1, RFC 4213 section 3.2). Routers
    /// may fragment an outer IPv4 packet further; fragments of an outer IPv6 packet are small enough for every path.
    #[cold]
    fn send_outer_in_fragments<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        backend: &Backend,
        hop: &NextHop,
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
        if let Err(no_headroom) = tunnel::forward_to_be_cut(frame, h, &hop.link, &tunnel, identification) {
            return burst.set(at, Refusal::from(no_headroom));
        }
        let mtu = match backend.family {
            Family::V4 => hop.mtu,
            Family::V6 => hop.mtu.min(usize::from(path_mtu::minimum(Family::V6))),
        };
        // The numbers are below 65,536, and a frame is delivered once, so the list has capacity.
        let (packet, mtu) = (hop.link.header_len() as u16, mtu as u16);
        let _ = burst.out.oversized.try_push(Oversized { frame: at as u8, packet, mtu });
        let why = if h.is_icmp_error() { TransmitReason::IcmpError } else { TransmitReason::Forward };
        let direction = Direction::Request;
        burst.view.tallies.forwarded(backend.id, direction, usize::from(h.ip_len()));
        burst.set(at, Verdict::Transmit { interface: hop.interface, why });
    }

    /// Whether a packet that doesn't fit the path may be forwarded in fragments: DF is clear (RFC 791), and the policy
    /// and the rate limit for fragmenting allow it. Otherwise it is answered, as is a packet whose hop limit ends here.
    #[cold]
    pub(super) fn passes_in_fragments<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        overhead: usize,
        hop: &NextHop,
    ) -> bool {
        // The longest IPv4 header and 8 bytes of data must fit.
        let fits = hop.mtu >= overhead + 60 + 8;
        let may_be_cut = !h.dont_fragment && fits && burst.view.snapshot.policy().fragment_ipv4;
        if h.ttl <= 1 || !may_be_cut || !FRAGMENTED.take(&mut self.fragmenting, burst.now) {
            self.refuse_undeliverable(burst, at, h, overhead, hop.mtu);
            return false;
        }
        // Offsets and MTUs are below 65,536. A frame is delivered once, so the list has capacity.
        let (packet, mtu) = ((hop.link.header_len() + overhead) as u16, hop.mtu as u16);
        let _ = burst.out.oversized.try_push(Oversized { frame: at as u8, packet, mtu });
        true
    }

    /// Answers a packet whose hop limit ends here, or that doesn't fit the path.
    #[cold]
    pub(super) fn refuse_undeliverable<F: Frame>(
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
        // The difference fits 16 bits, and is 0 for a tunnel over a link that is too small for it.
        let mtu = (mtu.saturating_sub(overhead) as u16).max(match h.family {
            Family::V4 => 0,
            // Hosts ignore a smaller value (RFC 8201 section 4).
            Family::V6 => path_mtu::minimum(Family::V6),
        });
        let answered = self.refuse(burst, at, h, Problem::TooBig { mtu });
        burst.answer_or(at, answered, TransmitReason::PacketTooBig, Refusal::TooBig);
    }
}

/// The largest packet, outer header included, that reaches a backend over a link with this MTU, given the path MTU
/// that routers on the path of a tunnel have reported.
#[inline(never)]
pub(super) fn mtu_to(view: &View<'_>, backend: &Backend, link_mtu: usize, now: Now) -> usize {
    if !backend.mode.is_tunnel() {
        return link_mtu;
    }
    let path = view.neighbors.path_mtus().get(&backend.address, now);
    path.map_or(link_mtu, |path| link_mtu.min(usize::from(path)))
}
