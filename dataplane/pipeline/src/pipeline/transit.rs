//! Traffic that backends themselves originate, if their default route leads to the gateway (`dataplane.gateway`).
//!
//! This is off the fast path: the packets match no service and no flow. They are forwarded by the routes of the
//! configuration, or refused with an answer. Only packets from the configured networks are forwarded, and only if they
//! arrive on the interface that leads to their source, so that the gateway is no open relay. Packets *to* these
//! networks from elsewhere are not forwarded.
//!
//! The pipeline has checked before that neither address is one of ours, and that the destination is a single host.

use tidegate_snapshot::Snapshot;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_wire::icmp::Problem;
use tidegate_wire::tcp::flags;
use tidegate_wire::{Headers, L4Checksum, ethernet};

use super::burst::Burst;
use super::next_hop::{NextHop, next_hop_by_route};
use super::state::Pipeline;
use crate::forward;
use crate::frame::Frame;

impl Pipeline {
    /// Whether a packet that is not for the gateway comes from the network of a backend.
    #[cold]
    pub(super) fn is_transit<F: Frame>(&self, burst: &Burst<'_, '_, F>, h: &Headers) -> bool {
        burst.view.snapshot.transit().is_some_and(|transit| transit.sources.admits(&h.src))
    }

    /// Forwards or refuses a packet of a backend's network.
    #[cold]
    pub(super) fn transit<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>, at: usize, h: &Headers) {
        let snapshot = burst.view.snapshot;
        if !self.leads_back(burst, at, h) {
            return burst.set(at, Refusal::BadSource);
        }
        let forwards = snapshot.transit().is_some_and(|transit| transit.forward);
        if !forwards || h.src.is_link_local() || h.dst.is_link_local() {
            return self.not_routed(burst, at, h, Problem::AdminProhibited);
        }
        if snapshot.masquerades(&h.src, &h.dst) {
            return self.masquerade(burst, at, h);
        }
        if is_answer_of_backend(burst, h) {
            let answered = snapshot.policy().reset_unknown_flows && self.reset(burst, at, h);
            return burst.answer_or(at, answered, TransmitReason::NoFlow, Refusal::NoFlow);
        }
        // The first fragment may belong to a flow.
        if h.is_later_fragment() {
            return burst.set(at, Refusal::FragmentUnknown);
        }
        self.route_on(burst, at, h);
    }

    /// Sends a packet of a backend's network to the next hop of its route.
    #[cold]
    pub(super) fn route_on<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>, at: usize, h: &Headers) {
        let hop = match next_hop_by_route(&burst.view, &h.dst) {
            Ok(hop) => hop,
            Err(none) if none.refusal == Refusal::NoRoute => {
                return self.not_routed(burst, at, h, Problem::NoRoute);
            }
            Err(unresolved) => return unresolved.report(burst, at),
        };
        // The packet would return to the station that sent it, and might loop.
        if returns_to_sender(burst, at, &hop) {
            return self.not_routed(burst, at, h, Problem::NoRoute);
        }
        if (h.ttl <= 1 || !hop.fits(h.ip_len())) && !self.passes_in_fragments(burst, at, h, 0, &hop) {
            return;
        }
        let verdict = match forward::dsr_l2::forward(&mut burst.frames[at], h, &hop.link) {
            Ok(()) => Verdict::Transmit { interface: hop.interface, why: TransmitReason::Routed },
            Err(no_headroom) => Refusal::from(no_headroom).into(),
        };
        burst.set(at, verdict);
    }

    /// Answers a packet that is not forwarded.
    pub(super) fn not_routed<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        problem: Problem,
    ) {
        let answered = self.refuse(burst, at, h, problem);
        burst.answer_or(at, answered, TransmitReason::NotRouted, Refusal::NotRouted);
    }
}

/// Whether the next hop of a packet is the station that sent it.
pub(super) fn returns_to_sender<F: Frame>(burst: &Burst<'_, '_, F>, at: usize, hop: &NextHop) -> bool {
    let sender = ethernet::source(burst.frames[at].bytes());
    hop.interface == burst.arrival.interface() && hop.link.destination == sender
}

/// Whether a segment belongs to a client's connection to a backend whose flow is lost. The client knows the VIP and
/// wouldn't recognise the backend's own address.
fn is_answer_of_backend<F: Frame>(burst: &Burst<'_, '_, F>, h: &Headers) -> bool {
    let opens = h.tcp_flags & (flags::SYN | flags::ACK) == flags::SYN;
    let hash = Snapshot::hash_endpoint(&h.src, h.proto, h.src_port);
    h.l4_checksum == L4Checksum::Tcp
        && !opens
        && burst.view.snapshot.endpoint(hash, &h.src, h.proto, h.src_port).is_some()
}
