//! Samples received packets: did RSS deliver the packet to the expected worker, and did its sender leave the checksum
//! to a NIC?
//!
//! Neither changes how a packet is handled. Both cost up to a tenth of forwarding it, so under load only one packet in
//! [`BURSTS_PER_CHECK`] bursts is sampled.

use tidegate_pipeline::frame::Frame;
use tidegate_snapshot::Snapshot;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_wire::{Parsed, parse, partial_checksum};

use super::Worker;
use crate::drivers::PortQueue;

/// One packet in this many bursts is sampled.
const BURSTS_PER_CHECK: u32 = 64;
/// In a burst of at most this many packets, the checksum of one packet is always sampled. A worker with little work can
/// afford that, and detects senders that leave checksums to a NIC by their first packets.
const SMALL_BURST: usize = 2;

impl<Q: PortQueue> Worker<Q> {
    /// Samples the received burst.
    #[inline]
    pub(super) fn sample(&mut self, interface: InterfaceIndex) {
        self.bursts = self.bursts.wrapping_add(1);
        if self.bursts.is_multiple_of(BURSTS_PER_CHECK) {
            self.check_arrival();
            self.check_checksum(interface);
        } else if self.received.len() <= SMALL_BURST {
            self.check_checksum(interface);
        }
    }

    /// Counts whether a packet of the burst arrived at the worker that RSS computes, as the ports report it.
    #[cold]
    fn check_arrival(&mut self) {
        if !self.parts.pipeline.computes_arrivals() {
            return;
        }
        let arrived =
            self.received.first().and_then(|frame| self.parts.pipeline.arrives_as_computed(frame.bytes()));
        match arrived {
            Some(true) => self.parts.shared.loop_counters.arrivals_as_computed.add(1),
            Some(false) => self.parts.shared.loop_counters.arrivals_elsewhere.add(1),
            None => {}
        }
    }

    /// Counts whether the sender of a packet left its checksum to a NIC.
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
