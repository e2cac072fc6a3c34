//! Packets from backends back to clients, in the modes that translate: finds the client of the flow.
//!
//! Stages 2 to 4 of the pipeline for this direction. Every packet that is not for a service port may be a reply: its
//! source is looked up among the endpoints, then the flow between the endpoint and the packet's destination. Packets
//! without such a flow continue in `local`.
//!
//! Plain packets take `fast_path/find.rs` instead.

use arrayvec::ArrayVec;
use tidegate_conntrack::{First, FlowHash, FlowKey, Packet, ReplyHit};
use tidegate_snapshot::Snapshot;
use tidegate_spec::limits::BURST;
use tidegate_wire::rewrite::Endpoint;
use tidegate_wire::{Headers, L4Checksum};

use super::burst::{Burst, Delivery, Destination};
use super::output::FlowNote;
use super::owners::RssDistribution;
use super::passive::may_refuse;
use super::request::kind_of;
use super::state::Pipeline;
use crate::frame::Frame;

pub(super) type Replies = ArrayVec<Reply, BURST>;

/// A packet that may come from a backend, with its state between the stages.
pub(super) struct Reply {
    pub(super) packet: u8,
    endpoint_hash: u64,
    pub(super) flow: Option<(FlowKey, FlowHash)>,
    found: Option<ReplyHit>,
}

/// Whether a packet has ports, and so may belong to a flow.
#[inline]
pub(super) fn may_be_reply(h: &Headers) -> bool {
    matches!(h.l4_checksum, L4Checksum::Tcp | L4Checksum::Udp | L4Checksum::UdpZero | L4Checksum::Sctp)
}

impl Pipeline {
    /// Stage 2: prefetches the endpoint that the packet may come from.
    #[inline]
    pub(super) fn reply(&self, snapshot: &Snapshot, packet: u8, h: &Headers) -> Reply {
        let endpoint_hash = Snapshot::hash_endpoint(&h.src, h.proto, h.src_port);
        snapshot.prefetch_endpoint(endpoint_hash);
        Reply { packet, endpoint_hash, flow: None, found: None }
    }

    /// Stage 3: finds the endpoint, prefetches the hash bucket of the flow and reads it. Packets that are not from an
    /// endpoint get their verdict here.
    #[inline(never)]
    pub(super) fn find_reply_flows<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>, replies: &mut Replies) {
        let snapshot = burst.view.snapshot;
        for reply in replies.iter_mut() {
            let at = burst.frame_of(reply.packet);
            let h = &burst.packets[usize::from(reply.packet)].headers;
            let Some(endpoint) = snapshot.endpoint(reply.endpoint_hash, &h.src, h.proto, h.src_port) else {
                let h = *h;
                self.unserved(burst, at, &h);
                continue;
            };
            if self.workers > 1
                && let Some(owner) = {
                    let (backend, to) = ((&h.src, h.src_port), (&h.dst, h.dst_port));
                    self.owners().of_reply(
                        snapshot,
                        backend,
                        to,
                        h.proto,
                        RssDistribution::of(h, self.snat_ports.steering()),
                    )
                }
                && let Err(verdict) = self.check_owner(owner, burst.arrival, h.proto)
            {
                let key = FlowKey::reply(endpoint, h.dst, h.dst_port);
                self.hand_over_reply(burst, reply.packet, key, verdict);
                continue;
            }
            let key = FlowKey::reply(endpoint, h.dst, h.dst_port);
            let hash = self.flows.hash(&key);
            self.flows.nat.prefetch(&key, hash);
            reply.flow = Some((key, hash));
        }
        for reply in replies.iter_mut() {
            let Some((key, hash)) = &reply.flow else { continue };
            let kind = kind_of(&burst.packets[usize::from(reply.packet)].headers);
            reply.found = match self.flows.nat.lookup_reply_first(key, *hash, kind, burst.now) {
                First::Steady(hit) => Some(hit),
                // The next stage may retry the connection with another backend.
                First::Present if may_refuse(kind) && self.flows.nat.awaits_answer(key, *hash, burst.now) => {
                    None
                }
                // Look the flow up now, not in the next stage: packets of one flow must be recorded in order.
                First::Present => self.reply_flow(burst, reply.packet, key, *hash),
                First::Absent => None,
            };
        }
    }

    /// Looks up the flow of a reply and records the packet in it.
    fn reply_flow<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        packet: u8,
        key: &FlowKey,
        hash: FlowHash,
    ) -> Option<ReplyHit> {
        let kind = kind_of(&burst.packets[usize::from(packet)].headers);
        if let Packet::Sctp(_) = kind {
            return self.reply_of_association(burst, packet, key, hash);
        }
        let hit = self.flows.nat.lookup_reply(key, hash, kind, burst.now);
        if let Some(hit) = hit.filter(|_| !self.passive.is_idle()) {
            self.note_answer(kind, hit.backend);
        }
        hit
    }

    /// Stage 4: finds the client of each reply.
    #[inline(never)]
    pub(super) fn choose_clients<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>, replies: &Replies) {
        let snapshot = burst.view.snapshot;
        for reply in replies {
            let Some((key, hash)) = &reply.flow else { continue };
            let at = burst.frame_of(reply.packet);
            let hit = match reply.found {
                Some(hit) => Some(hit),
                None if self.is_retried_after_reset(burst, reply.packet, key, *hash) => continue,
                // The flow is in its other hash bucket, or a request of this burst created it.
                None => self.reply_flow(burst, reply.packet, key, *hash),
            };
            let Some((hit, service)) = hit.and_then(|hit| Some((hit, snapshot.service_by_id(hit.service)?)))
            else {
                let h = burst.packets[usize::from(reply.packet)].headers;
                self.unserved(burst, at, &h);
                continue;
            };
            let note = &mut burst.out.notes[at];
            (note.service, note.backend, note.flow) = (Some(service.id), Some(hit.backend), FlowNote::Known);
            let client = Endpoint { addr: hit.client, port: hit.client_port };
            let destination = Destination::Client { service, backend: hit.backend, client };
            burst.deliveries.push(Delivery { packet: reply.packet, destination });
        }
    }
}
