//! Forwards an ICMP error about a flow to the other end of that flow. The packet that the error quotes identifies the
//! flow.
//!
//! Path MTU discovery depends on these errors: the router that can't forward a packet sends the error to the VIP, or
//! to the backend, and only the gateway knows the sender of the packet (RFC 1191, RFC 8201). The quote decides
//! whether the error is admitted, not the error's source, which may be any router (`docs/kubernetes.md`, section 3).
//!
//! With several workers, the quote also identifies the worker that owns the flow ([`super::owners`]). With DSR and a
//! NIC port with an unknown distribution it doesn't: then the workers are tried in turn, with at most `workers - 1`
//! hand-overs, and the last one decides by the hash. `deliver` rewrites the quote together with the error's own
//! addresses.

use tidegate_conntrack::FlowKey;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::service::Service;
use tidegate_spec::ids::BackendId;
use tidegate_spec::verdict::{Refusal, Verdict};
use tidegate_wire::quote::{self, Quote};
use tidegate_wire::rewrite::Endpoint;
use tidegate_wire::{ipv6, proto};

use super::burst::{Burst, Delivery, Destination};
use super::output::{FlowNote, Note};
use super::owners::RssDistribution;
use super::request::local_of;
use super::state::Pipeline;
use crate::frame::Frame;

/// The destination of an error and its note, or the verdict that hands the error over or refuses it.
type Found<'s> = Result<(Destination<'s>, Note), Verdict>;

impl Pipeline {
    /// Forwards an ICMP error to the other end of its flow. Returns false if it is about no flow of ours.
    #[cold]
    pub(super) fn icmp_error<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>, packet: u8) -> bool {
        let at = burst.frame_of(packet);
        let headers = burst.packets[usize::from(packet)].headers;
        let quoted = match quote::parse(burst.frames[at].bytes(), &headers) {
            Ok(Some(quoted)) => quoted,
            Ok(None) => return false,
            Err(malformed) => {
                burst.set(at, Verdict::Drop(malformed.into()));
                return true;
            }
        };
        let found = match self.about_answer(burst, &quoted) {
            Some(found) => found,
            None => match self.about_request(burst, &quoted) {
                Some(found) => found,
                None if self.about_masquerade(burst, at, &headers, &quoted) => return true,
                None => return self.about_tunnel(burst, at, &headers, &quoted),
            },
        };
        match found {
            Ok((destination, _))
                if destination.is_translated()
                    && ipv6::is_authenticated(burst.frames[at].bytes(), &headers) =>
            {
                burst.set(at, Refusal::Authenticated);
            }
            Ok((Destination::Client { service, client, .. }, _))
                if service.passive
                    && self.is_retried_after_error(burst, packet, &quoted, service, client) => {}
            Ok((destination, note)) => {
                burst.out.notes[at] = note;
                burst.deliveries.push(Delivery { packet, destination });
            }
            Err(verdict) => burst.set(at, verdict),
        }
        true
    }

    /// For an error about a packet from a VIP to a client: finds the backend that sent the packet.
    fn about_answer<'s, F: Frame>(&self, burst: &Burst<'s, '_, F>, quoted: &Quote) -> Option<Found<'s>> {
        let snapshot = burst.view.snapshot;
        let hash = Snapshot::hash_service(&quoted.src, quoted.proto, quoted.src_port);
        let service = snapshot.service(hash, &quoted.src, quoted.proto, quoted.src_port)?;
        let owner = (self.workers > 1).then(|| {
            let (client, vip) = ((&quoted.dst, quoted.dst_port), (&quoted.src, quoted.src_port));
            self.owners().of_request(service, client, vip, quoted.proto, RssDistribution::Other)
        });
        if let Some(Some(owner)) = owner
            && let Err(verdict) = self.check_owner(owner, burst.arrival, proto::ICMP)
        {
            return Some(Err(verdict));
        }
        let key = FlowKey::flow(service.id, quoted.dst, quoted.dst_port);
        let hash = self.flows.hash(&key);
        if !service.mode.is_dsr() {
            let hit = self.flows.nat.peek(&key, hash, burst.now)?;
            let local = local_of(&hit, service.mode, &quoted.dst, quoted.dst_port);
            let backend = snapshot.backend(hit.backend)?;
            let note = note(service, backend.id, FlowNote::Known);
            return Some(Ok((Destination::Backend { service, backend, local }, note)));
        }
        let known = self.flows.dsr.peek(&key, hash, burst.now).map(|hit| hit.backend);
        if known.is_none()
            && let Some(None) = owner
            && let Some(next) = self.next_worker_to_try(burst.arrival)
        {
            return Some(Err(Verdict::HandOver(next)));
        }
        // An error about an unknown flow goes to the backend that the flow's packets would go to, if any.
        if known.is_none() && !snapshot.admits(service, &quoted.dst) {
            return Some(Err(Refusal::SourceRange.into()));
        }
        let (client, vip) = ((&quoted.dst, quoted.dst_port), (&quoted.src, quoted.src_port));
        let choice = || snapshot.choice_hash(service, client, vip, quoted.proto);
        // If the backend of the flow changed recently, the error is about a packet of the former backend.
        let chosen = || {
            let hash = choice();
            let former = service.selector().former(hash).flatten();
            former.filter(|&id| snapshot.backend(id).is_some()).or_else(|| service.select(hash))
        };
        let backend = snapshot.backend(known.or_else(chosen)?)?;
        let flow = if known.is_some() { FlowNote::Known } else { FlowNote::None };
        let note = note(service, backend.id, flow);
        Some(Ok((Destination::Backend { service, backend, local: None }, note)))
    }

    /// For an error about a translated packet that we sent to a backend: finds the client that sent the packet.
    fn about_request<'s, F: Frame>(&self, burst: &Burst<'s, '_, F>, quoted: &Quote) -> Option<Found<'s>> {
        let snapshot = burst.view.snapshot;
        let hash = Snapshot::hash_endpoint(&quoted.dst, quoted.proto, quoted.dst_port);
        let endpoint = snapshot.endpoint(hash, &quoted.dst, quoted.proto, quoted.dst_port)?;
        if self.workers > 1
            && let Some(owner) = {
                let (backend, to) = ((&quoted.dst, quoted.dst_port), (&quoted.src, quoted.src_port));
                self.owners().of_reply(snapshot, backend, to, quoted.proto, RssDistribution::Other)
            }
            && let Err(verdict) = self.check_owner(owner, burst.arrival, proto::ICMP)
        {
            return Some(Err(verdict));
        }
        let key = FlowKey::reply(endpoint, quoted.src, quoted.src_port);
        let hit = self.flows.nat.peek_reply(&key, self.flows.hash(&key), burst.now)?;
        let service = snapshot.service_by_id(hit.service)?;
        let client = Endpoint { addr: hit.client, port: hit.client_port };
        let note = note(service, hit.backend, FlowNote::Known);
        Some(Ok((Destination::Client { service, backend: hit.backend, client }, note)))
    }
}

fn note(service: &Service, backend: BackendId, flow: FlowNote) -> Note {
    Note { service: Some(service.id), backend: Some(backend), flow }
}
