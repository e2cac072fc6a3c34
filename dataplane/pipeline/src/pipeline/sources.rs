//! Decides which source addresses are accepted: other packets are dropped as `bad_source`.
//!
//! Packets of a known flow are not checked again, so the fast path has no extra cost. The check applies to packets
//! that would create a flow, in every mode, and to packets that match no flow and no service: pings of VIPs, ICMP
//! errors, packets for the kernel, and packets that would be answered with a reset or an error.
//!
//! Without this check one forged datagram from a VIP to another VIP would loop forever: each answer is again a packet
//! from a VIP to a VIP. If a client's address becomes one of the gateway's during a flow, the flow continues until it
//! is idle. That is harmless: packets that the gateway sends to that address return from a VIP, and are refused here.

use tidegate_snapshot::addresses::SourceFault;
use tidegate_snapshot::service::Service;
use tidegate_spec::ForwardingMode;
use tidegate_spec::verdict::Refusal;
use tidegate_wire::{Headers, ethernet};

use super::burst::Burst;
use crate::frame::Frame;

impl<F: Frame> Burst<'_, '_, F> {
    /// Why this packet, in the frame at this position, may not create a flow to a service of this mode.
    #[inline(always)]
    pub(super) fn client_fault(&self, at: usize, h: &Headers, mode: ForwardingMode) -> Option<SourceFault> {
        let snapshot = self.view.snapshot;
        let fault = snapshot.source_fault(&h.src);
        let link_local = fault.is_none() && h.src.is_link_local();
        if link_local && (!snapshot.answers_on_link(&h.src, mode) || self.arrived_from_default_router(at)) {
            return Some(SourceFault::LinkLocal);
        }
        fault
    }

    /// Refuses a client. If it is a default router, the packet counts for the service, so that a finding can report it.
    #[cold]
    pub(super) fn refuse_client(&self, service: &Service, fault: SourceFault) -> Refusal {
        if fault == SourceFault::Router {
            self.view.tallies.count_from_router(service.id);
        }
        Refusal::BadSource
    }

    /// Why this packet must not be answered and an ICMP error must not be trusted. Routers may ping, and may send
    /// ICMP errors.
    #[cold]
    pub(super) fn sender_fault(&self, h: &Headers) -> Option<SourceFault> {
        self.view.snapshot.source_fault(&h.src).filter(|fault| *fault != SourceFault::Router)
    }

    /// Whether the frame came from the link address of a default router on this link, and so from beyond the link.
    #[cold]
    fn arrived_from_default_router(&self, at: usize) -> bool {
        let (interface, from) = (self.arrival.interface(), ethernet::source(self.frames[at].bytes()));
        let neighbors = self.view.neighbors;
        // There is at most one router for each family: a spec has each route once.
        self.view.snapshot.default_routers().iter().any(|&router| {
            neighbors.key(router).is_some_and(|(link, _)| link == interface)
                && neighbors.mac(router) == Some(from)
        })
    }
}
