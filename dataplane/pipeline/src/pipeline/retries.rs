//! Retries a refused connection with another backend, instead of forwarding the refusal: see [`super::passive`].
//!
//! Invariant: a refusal that isn't replaced by a SYN is forwarded or dropped unchanged.

use arrayvec::ArrayVec;
use tidegate_conntrack::{FlowHash, FlowKey, Packet};
use tidegate_snapshot::backend::Backend;
use tidegate_snapshot::service::Service;
use tidegate_spec::ids::{BackendId, InterfaceIndex};
use tidegate_spec::limits::STORED_SYN_LEN;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_wire::quote::Quote;
use tidegate_wire::rewrite::Endpoint;
use tidegate_wire::tcp::segment;
use tidegate_wire::{Family, Headers, L4Checksum, Parsed};

use super::burst::{Burst, Destination};
use super::next_backend::rules;
use super::next_hop::next_hop_of;
use super::output::{FlowNote, Note};
use super::passive::may_refuse;
use super::request::{Chosen, Request};
use super::state::Pipeline;
use crate::frame::Frame;

/// The largest frame that is saved while a SYN replaces it: an ICMP error that quotes a SYN.
const REFUSAL_LEN: usize = 256;

impl Pipeline {
    /// Whether another backend is tried instead of forwarding a backend's reset that answers a SYN. If so, the packet
    /// has its verdict.
    #[inline]
    pub(super) fn is_retried_after_reset<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        reply: &FlowKey,
        hash: FlowHash,
    ) -> bool {
        let h = &burst.packets[usize::from(packet)].headers;
        if h.l4_checksum != L4Checksum::Tcp || !may_refuse(Packet::Tcp(h.tcp_flags)) {
            return false;
        }
        self.is_retried_after_this_reset(burst, packet, reply, hash)
    }

    #[cold]
    #[inline(never)]
    fn is_retried_after_this_reset<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        reply: &FlowKey,
        hash: FlowHash,
    ) -> bool {
        let h = burst.packets[usize::from(packet)].headers;
        let Some(hit) = self.flows.nat.peek_reply(reply, hash, burst.now) else { return false };
        let Some(service) = burst.view.snapshot.service_by_id(hit.service).filter(|one| one.passive) else {
            return false;
        };
        let Some(reset) = segment(burst.frames[burst.frame_of(packet)].bytes(), &h) else { return false };
        let client = Endpoint { addr: hit.client, port: hit.client_port };
        self.is_retried(burst, packet, service, client, reset.ack.wrapping_sub(1))
    }

    /// [`Self::is_retried_after_reset`] for an ICMP error that quotes `quoted`.
    #[cold]
    #[inline(never)]
    pub(super) fn is_retried_after_error<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        quoted: &Quote,
        service: &Service,
        client: Endpoint,
    ) -> bool {
        let h = &burst.packets[usize::from(packet)].headers;
        let is_unreachable = match h.family {
            // Every "destination unreachable" except "fragmentation needed".
            Family::V4 => h.icmp_type == 3 && h.icmp_code != 4,
            Family::V6 => h.icmp_type == 1,
        };
        let frame = burst.frames[burst.frame_of(packet)].bytes();
        let at = usize::from(quoted.l4) + 4;
        let Some(sequence) = frame.get(at..).and_then(|bytes| bytes.first_chunk().copied()) else {
            return false;
        };
        is_unreachable && self.is_retried(burst, packet, service, client, u32::from_be_bytes(sequence))
    }

    /// Whether the refusal of a SYN with this sequence number is dropped, or replaced by a try of another backend.
    fn is_retried<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        service: &Service,
        client: Endpoint,
        sequence: u32,
    ) -> bool {
        // The connection of a client that returned a cookie is already established.
        if self.splice(service, client).is_some() {
            return false;
        }
        let (snapshot, now) = (burst.view.snapshot, burst.now);
        let key = FlowKey::flow(service.id, client.addr, client.port);
        let hash = self.flows.hash(&key);
        let (Some(hit), true) =
            (self.flows.nat.peek(&key, hash, now), self.flows.nat.awaits_answer(&key, hash, now))
        else {
            return false;
        };
        let (Some(backend), Some(rules)) = (snapshot.backend(hit.backend), rules(snapshot, service.id))
        else {
            return false;
        };
        if backend.interface != burst.arrival.interface() {
            return false;
        }
        let kept = self.passive.syns.get(&key, hash).map(|(syn, _)| syn.sequence);
        if kept.is_some_and(|kept| kept != sequence) {
            return false;
        }
        if kept.is_some() {
            self.failed(snapshot, backend, &client.addr, now);
        }
        let tried = self.tried(&key, hash, backend.id);
        if tried.len() > usize::from(rules.retries) {
            return false;
        }
        let vip = (&service.vip, service.port);
        let choice =
            snapshot.choice_hash(service, (&client.addr, client.port), vip, service.protocol.number());
        let Some(next) = self.next_backend(service, choice, &tried, now) else { return false };
        let at = burst.frame_of(packet);
        let backend =
            match kept.is_some() && self.send_again(burst, packet, service, (key, hash), backend, next) {
                true => next,
                false => {
                    burst.set(at, Refusal::BackendRefused);
                    backend.id
                }
            };
        burst.out.notes[at] =
            Note { service: Some(service.id), backend: Some(backend), flow: FlowNote::Known };
        true
    }

    /// Sends the stored SYN of a flow to the backend `next`, in the frame of the refusal. If this returns false, the
    /// frame is unchanged.
    fn send_again<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        service: &Service,
        (key, hash): (FlowKey, FlowHash),
        refused_by: &Backend,
        next: BackendId,
    ) -> bool {
        let snapshot = burst.view.snapshot;
        let Some(backend) = snapshot.backend(next) else { return false };
        // Without a resolved next hop the caller would queue the frame, which isn't the client's.
        if next_hop_of(&burst.view, &Destination::Backend { service, backend, local: None }).is_err() {
            return false;
        }
        let Some(taken) = self.take_syn(&key, hash) else { return false };
        let Some(interface) = snapshot.interface(taken.interface) else { return false };
        let at = burst.frame_of(packet);
        let mut refusal = ArrayVec::<u8, REFUSAL_LEN>::new();
        if refusal.try_extend_from_slice(burst.frames[at].bytes()).is_err()
            || !replace(&mut burst.frames[at], &taken.bytes)
        {
            return false;
        }
        let headers = std::mem::replace(&mut burst.packets[usize::from(packet)].headers, taken.headers);
        // The segment size that the SYN may announce depends on the link on which the SYN arrived.
        let arrived_by = std::mem::replace(&mut burst.interface, interface);
        self.passive.next = Some(next);
        let request = Request::again(service, packet, (key, hash), refused_by.id);
        if let Ok(Chosen { backend, local, .. }) = self.choose_and_insert(burst, &request) {
            let destination = Destination::Backend { service, backend, local };
            self.deliver_one(burst, packet, &destination);
            if service.logged > 0 {
                self.log_packet(burst, packet, &destination, key.port(), true);
            }
        }
        self.passive.clear_choice();
        burst.interface = arrived_by;
        if let Verdict::Transmit { interface, why: TransmitReason::Forward } = burst.out.verdicts[at] {
            burst.set(at, Verdict::Transmit { interface, why: TransmitReason::Retried });
            return true;
        }
        burst.packets[usize::from(packet)].headers = headers;
        let restored = replace(&mut burst.frames[at], &refusal);
        debug_assert!(restored, "the frame contained these bytes before");
        false
    }

    /// A copy of the stored SYN of a flow.
    fn take_syn(&self, flow: &FlowKey, hash: FlowHash) -> Option<TakenSyn> {
        let (syn, bytes) = self.passive.syns.get(flow, hash)?;
        let Ok(Parsed::Ip(headers)) = tidegate_wire::parse(bytes) else { return None };
        Some(TakenSyn { headers, interface: syn.interface, bytes: bytes.try_into().ok()? })
    }
}

/// A copy of a stored SYN.
struct TakenSyn {
    headers: Headers,
    interface: InterfaceIndex,
    bytes: ArrayVec<u8, STORED_SYN_LEN>,
}

/// Replaces the contents of a frame, and returns whether they fit.
fn replace<F: Frame>(frame: &mut F, bytes: &[u8]) -> bool {
    let fits = frame.resize(bytes.len());
    if fits {
        frame.bytes_mut().copy_from_slice(bytes);
    }
    fits
}
