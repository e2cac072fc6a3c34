//! Counts the forwarded packets of logged flows (`flowLog`).
//!
//! Packets of logged Services never take the fast path and are never sent by copies of flows, so the worker that owns a
//! flow counts all of its packets here, after the last stage. [`tidegate_conntrack::flow_log`] has the records.
//!
//! Which flows are logged depends only on the hash of the client's key, so all packets of a flow are counted or none.

use std::sync::Arc;

use tidegate_conntrack::flow_log::{FlowLog, LoggedPacket};
use tidegate_conntrack::{FlowKey, Packet};
use tidegate_spec::now::Now;
use tidegate_spec::verdict::{TransmitReason, Verdict};
use tidegate_wire::{proto, sctp};

use super::burst::{Burst, Destination};
use super::output::FlowNote;
use super::request::kind_of;
use super::state::Pipeline;
use crate::frame::Frame;

impl Pipeline {
    /// Reports the begin and the end of logged flows to this log, from now on.
    pub fn log_flows_to(&mut self, log: &Arc<FlowLog>) {
        if !self.flows.has_log() {
            self.flows.log_to(log);
        }
    }

    /// Counts the packets of logged flows in a burst that has its verdicts.
    #[cold]
    #[inline(never)]
    pub(super) fn log_deliveries<F: Frame>(&mut self, burst: &Burst<'_, '_, F>) {
        for delivery in &burst.deliveries {
            if delivery.destination.service().logged > 0 {
                let h = &burst.packets[usize::from(delivery.packet)].headers;
                let is_first = burst.out.notes[burst.frame_of(delivery.packet)].flow == FlowNote::New;
                self.log_packet(burst, delivery.packet, &delivery.destination, h.src_port, is_first);
            }
        }
    }

    /// Counts a packet in the account of its flow, if the flow is logged. `client_port` is the port of a packet from a
    /// client.
    pub(super) fn log_packet<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        packet: u8,
        destination: &Destination<'_>,
        client_port: u16,
        is_first: bool,
    ) {
        let (h, service) = (&burst.packets[usize::from(packet)].headers, destination.service());
        if h.is_icmp_error() || !self.flows.has_log() {
            return;
        }
        let (is_reply, key) = match destination {
            Destination::Backend { .. } => (false, FlowKey::flow(service.id, h.src, client_port)),
            Destination::Client { client, .. } => (true, FlowKey::flow(service.id, client.addr, client.port)),
        };
        let hash = self.flows.hash(&key);
        if !is_sampled(hash.bits(), service.logged) {
            return;
        }
        let verdict = burst.out.verdicts[burst.frame_of(packet)];
        let has_ports = !h.is_later_fragment();
        let counted = LoggedPacket {
            is_reply,
            // A reset of an unknown flow gets no entry.
            is_first: is_first && !kind_of(h).is_ending(),
            is_sent: matches!(
                verdict,
                Verdict::Transmit { why: TransmitReason::Forward | TransmitReason::Reply, .. }
            ),
            bytes: u32::from(h.ip_len()),
            tcp_flags: if h.proto == proto::TCP && has_ports { h.tcp_flags } else { 0 },
            ends_association: has_ports && kind_of(h) == Packet::Sctp(sctp::Kind::End),
        };
        self.flows.count_logged(service.mode.is_dsr(), &key, hash, &counted, burst.now);
    }

    /// Reports logged connections that have been closed for a while. Call it several times a second, even without
    /// packets.
    pub fn end_closed_flows(&mut self, now: Now) {
        if self.flows.has_log() {
            self.flows.end_closed(now);
        }
    }
}

/// Whether a flow with this hash is one of the logged ones, which are one in `every`; 0 for none.
fn is_sampled(hash: u64, every: u16) -> bool {
    // Bits that select neither the hash bucket nor the worker: those of the middle.
    every > 0 && (hash >> 20 & 0xffff_ffff).is_multiple_of(u64::from(every))
}
