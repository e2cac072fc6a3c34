//! Packets of NAT flows that another worker owns: they are sent by this worker's copy of the flow if it has one,
//! otherwise handed over. The owner gives copies to the workers that hand packets over, and confirms them
//! ([`flow_copies`](tidegate_conntrack::flow_copies) has the rules).

use tidegate_conntrack::flow_copies::{Copied, FlowCopy, FlowUse};
use tidegate_conntrack::{FlowHash, FlowKey, Packet};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::service::{FastPath, Service};
use tidegate_spec::BackendState;
use tidegate_spec::ids::{BackendId, WorkerIndex};
use tidegate_spec::now::Now;
use tidegate_spec::verdict::Verdict;
use tidegate_wire::rewrite::Endpoint;

use super::burst::{Burst, Destination, OwnedByOther};
use super::output::{FlowNote, Note};
use super::reply_flows::Replies;
use super::request::{Requests, kind_of, local_of};
use super::state::Pipeline;
use super::view::Arrival;
use crate::frame::Frame;

impl Pipeline {
    /// Hands over a client's packet of another worker's flow, unless this worker has a copy of the flow.
    #[inline(never)]
    pub(super) fn hand_over_request<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        service: &Service,
        verdict: Verdict,
    ) {
        let h = &burst.packets[usize::from(packet)].headers;
        let key = FlowKey::flow(service.id, h.src, h.src_port);
        if is_copied(service) {
            self.hand_over_reply(burst, packet, key, verdict);
        } else {
            burst.set(burst.frame_of(packet), verdict);
        }
    }

    /// Like [`Self::hand_over_request`], for a reply; `key` is the flow's key in that direction. Prefetches the copy.
    #[inline(never)]
    pub(super) fn hand_over_reply<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        key: FlowKey,
        verdict: Verdict,
    ) {
        burst.set(burst.frame_of(packet), verdict);
        let is_fragment = burst.packets[usize::from(packet)].headers.is_fragment();
        if let (Verdict::HandOver(owner), Arrival::Wire(_), false) = (verdict, burst.arrival, is_fragment) {
            let hash = self.flows.hash(&key);
            self.copies.prefetch(hash);
            burst.owned_by_others.push(OwnedByOther { packet, owner, key, hash });
        }
    }

    /// Sends the packets of flows of which this worker has copies. Other packets keep their verdict.
    #[inline(never)]
    pub(super) fn use_copies<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>) {
        let snapshot = burst.view.snapshot;
        for n in 0..burst.owned_by_others.len() {
            let OwnedByOther { packet, owner, key, hash } = burst.owned_by_others[n];
            let kind = kind_of(&burst.packets[usize::from(packet)].headers);
            let Some(used) = self.copies.find(&key, hash, kind, burst.now) else { continue };
            let Some((backend, destination)) = destination(snapshot, &key, &used.copied) else { continue };
            let (at, service) = (burst.frame_of(packet), destination.service().id);
            burst.out.notes[at] =
                Note { service: Some(service), backend: Some(backend), flow: FlowNote::Known };
            // Only plain packets are sent by copies, so the limit of segment sizes doesn't apply.
            self.translate_and_send(burst, packet, &destination, 0);
            if used.must_report {
                // There is at most one entry for each packet, so the list has capacity.
                let _ =
                    burst.out.flow_uses.try_push((owner, FlowUse { user: self.worker, key, packet: kind }));
            }
        }
    }

    /// Gives copies of the flows in this burst to the worker that handed the burst over.
    #[inline(never)]
    pub(super) fn copy_flows<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        to: WorkerIndex,
        requests: &Requests<'_>,
        replies: &Replies,
    ) {
        if to == self.worker {
            return;
        }
        let (now, snapshot) = (burst.now, burst.view.snapshot);
        let requests = requests.iter().map(|request| (request.kind, request.key, request.flow_hash));
        let replies = replies.iter().filter_map(|reply| {
            let (key, hash) = reply.flow?;
            Some((kind_of(&burst.packets[usize::from(reply.packet)].headers), key, hash))
        });
        for (kind, key, hash) in requests.chain(replies) {
            let copies = &mut burst.out.flow_copies;
            // Successive packets often belong to the same flow.
            if copies.last().is_none_or(|last| last.key != key)
                && let Some(copied) = self.copy(snapshot, &key, hash, kind, now)
            {
                // There is at most one entry for each packet, so the list has capacity.
                let _ = copies.try_push(FlowCopy { key, copied: Some(copied) });
            }
        }
    }

    /// What another worker needs to forward plain packets in this direction; `None` if it must hand them over.
    fn copy(
        &self,
        snapshot: &Snapshot,
        key: &FlowKey,
        hash: FlowHash,
        packet: Packet,
        now: Now,
    ) -> Option<Copied> {
        let nat = &self.flows.nat;
        let (service, copied) = if key.is_reply_key() {
            let hit = nat.reply_to_copy(key, hash, packet, now)?;
            let client = Endpoint { addr: hit.client, port: hit.client_port };
            let service = snapshot.service_by_id(hit.service)?;
            (service, Copied::Reply { service: hit.service, backend: hit.backend, client })
        } else {
            let service = snapshot.service_by_id(key.service())?;
            let hit = nat.to_copy(key, hash, packet, now)?;
            let local = local_of(&hit, service.mode, &key.addr(), key.port());
            (service, Copied::Request { backend: hit.backend, local })
        };
        is_copied(service).then_some(copied)
    }

    /// Stores or removes a copy of a flow, as its owner decided.
    pub fn store_copy(&mut self, copy: &FlowCopy, now: Now) {
        self.copies.update(copy, self.flows.hash(&copy.key), now);
    }

    /// Records the use of a copy in the flow, as if this worker had processed the packet. Returns the answer for the
    /// worker that uses it.
    pub fn confirm_copy(&mut self, snapshot: &Snapshot, used: &FlowUse, now: Now) -> FlowCopy {
        let FlowUse { key, packet, .. } = *used;
        let hash = self.flows.hash(&key);
        let copied = self.copy(snapshot, &key, hash, packet, now);
        if copied.is_some() {
            if key.is_reply_key() {
                self.flows.nat.lookup_reply(&key, hash, packet, now);
            } else {
                self.flows.nat.lookup(&key, hash, packet, now);
            }
        }
        FlowCopy { key, copied }
    }
}

/// Whether the flows of a service are copied, because their plain packets need only translation.
pub(super) fn is_copied(service: &Service) -> bool {
    service.fast_path != FastPath::Off && service.mode.changes_addresses()
}

/// Where a copy sends a packet with this key, and the backend of its flow; `None` if the owner must decide.
fn destination<'s>(
    snapshot: &'s Snapshot,
    key: &FlowKey,
    copied: &Copied,
) -> Option<(BackendId, Destination<'s>)> {
    let (backend, destination) = match *copied {
        Copied::Request { backend: id, local } => {
            let service = snapshot.service_by_id(key.service())?;
            let backend = snapshot.backend(id).filter(|backend| backend.state != BackendState::Down)?;
            (id, Destination::Backend { service, backend, local })
        }
        Copied::Reply { service, backend, client } => {
            (backend, Destination::Client { service: snapshot.service_by_id(service)?, backend, client })
        }
    };
    is_copied(destination.service()).then_some((backend, destination))
}
