//! Looks at a sample of the packets that arrive: whether RSS has brought a packet to the worker that the gateway computes, and
//! whether its sender left the checksum to a NIC.
//!
//! Neither changes what happens to a packet. Both cost as much as a tenth of a packet's forwarding, so under load only one
//! packet in [`BURSTS_PER_CHECK`] bursts is looked at.

use tidegate_pipeline::frame::Frame;
use tidegate_snapshot::Snapshot;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_wire::{Parsed, parse, partial_checksum};

use super::Worker;
use crate::drivers::PortQueue;

/// One packet in so many bursts is looked at.
const BURSTS_PER_CHECK: u32 = 64;
/// In a burst of at most so many packets, one packet's checksum is looked at: a worker with little to do has the time, and finds
/// a sender that leaves its checksums to a NIC by its first packets.
const FEW: usize = 2;

impl<Q: PortQueue> Worker<Q> {
    /// Looks at the burst that was received.
    #[inline]
    pub(super) fn sample(&mut self, interface: InterfaceIndex) {
        self.bursts = self.bursts.wrapping_add(1);
        if self.bursts.is_multiple_of(BURSTS_PER_CHECK) {
            self.check_arrival();
            self.check_checksum(interface);
        } else if self.received.len() <= FEW {
            self.check_checksum(interface);
        }
    }

    /// Counts whether a packet of the burst has arrived at the worker that RSS computes, as the ports report it.
    #[cold]
    fn check_arrival(&mut self) {
        if !self.parts.pipeline.computes_arrivals() {
            return;
        }
        let arrived =
            self.received.first().and_then(|frame| self.parts.pipeline.arrives_as_computed(frame.bytes()));
        match arrived {
            Some(true) => self.parts.shared.turns.arrivals_as_computed.add(1),
            Some(false) => self.parts.shared.turns.arrivals_elsewhere.add(1),
            None => {}
        }
    }

    /// Counts whether the sender of a packet of the burst left its checksum to a NIC.
    #[cold]
    fn check_checksum(&mut self, interface: InterfaceIndex) {
        let Some(frame) = self.received.first() else { return };
        let Ok(Parsed::Ip(h)) = parse(frame.bytes()) else { return };
        let Some(is_partial) = partial_checksum::is_partial(frame.bytes(), &h) else { return };
        let counters = self.parts.shared.counters.interface(interface);
        counters.checksums_sampled.add(1);
        if !is_partial {
            return;
        }
        counters.checksums_partial.add(1);
        let forwarding = self.parts.forwarding.get();
        let hash = Snapshot::hash_service(&h.dst, h.proto, h.dst_port);
        if let Some(service) = forwarding.snapshot.service(hash, &h.dst, h.proto, h.dst_port) {
            forwarding.tallies[usize::from(self.parts.worker)].count_partial(service.id);
        }
    }
}
