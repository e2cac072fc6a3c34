//! SCTP packets off the fast path: checks their verification tags before the flow tables see them, and finds the
//! association of a path that has no flow yet.
//!
//! An association may have several paths. Each is a pair of a client address and a VIP of the same Service (RFC 9260
//! section 6.4). Each path has its own flow. Ports and verification tag identify the association of a further path
//! ([`tidegate_conntrack::associations`]), and the path's flow gets the backend of the association:
//!
//! - In DSR modes the gateway gets the server's tag from the client's COOKIE ECHO. The addresses listed in the INIT
//!   identify a COOKIE ECHO on another path, and the initiate tag identifies an INIT repeated on another path.
//! - In `nat` the backend sees the client's addresses, so either end may create a path.
//! - In `fullnat` the backend sees one address and port. Replies go to the client's last used address: the flow moves
//!   from path to path with the client's packets.
//!
//! Plain packets of established flows never get here.

use arrayvec::ArrayVec;
use tidegate_conntrack::associations::{Association, EndedPath, Path};
use tidegate_conntrack::flow_record::LocalFlow;
use tidegate_conntrack::{
    AssociationKey, FlowHash, FlowKey, NewFlow, Packet, PacketTags, ReplyHit, ReplyKey, Side, TagPair,
};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::backend::Backend;
use tidegate_snapshot::service::Service;
use tidegate_spec::ForwardingMode;
use tidegate_spec::ids::{BackendId, WorkerIndex};
use tidegate_spec::limits::ASSOCIATION_PATHS_MAX;
use tidegate_spec::now::Now;
use tidegate_wire::sctp::{self, Kind};
use tidegate_wire::sctp_parameters::addresses;
use tidegate_wire::{Addr, Headers};

use super::burst::Burst;
use super::request::{Known, Request};
use super::state::Pipeline;
use crate::frame::Frame;

impl Pipeline {
    /// The tags and chunks of an SCTP packet, and the packet's kind if its verification tag proves it. `flow` is the
    /// hash of the client's key.
    fn verify_tag<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        packet: u8,
        flow: FlowHash,
        side: Side,
    ) -> (PacketTags, Kind) {
        let shown = shown(burst, packet);
        let kind = match shown.kind {
            Kind::Plain => Kind::Plain,
            _ => self.flows.tags.proved(flow, side, &shown, burst.now),
        };
        (shown, kind)
    }

    /// Looks up the flow of a client's packet and records the packet in it. Creates the flow if the packet is on a
    /// further path of a known association.
    #[cold]
    #[inline(never)]
    pub(super) fn look_up_association<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        request: &Request<'_>,
    ) -> Option<Known> {
        let side = if request.service.mode.is_dsr() { Side::ClientAlone } else { Side::Client };
        let (shown, mut kind) = self.verify_tag(burst, request.packet, request.flow_hash, side);
        if shown.kind == Kind::CookieEcho
            && kind == Kind::Plain
            && self.restore_offer(request, &shown, burst.now)
        {
            (_, kind) = self.verify_tag(burst, request.packet, request.flow_hash, side);
        }
        let mut known = self.look_up_as(burst.view.snapshot, request, kind, burst.now);
        if known.is_none() {
            self.create_path(burst, request, &shown)?;
            // The new flow has the tags of the association.
            (_, kind) = self.verify_tag(burst, request.packet, request.flow_hash, side);
            known = self.look_up_as(burst.view.snapshot, request, kind, burst.now);
        }
        let known = known?;
        match kind {
            Kind::CookieEcho => self.store_confirmed(burst, request, known.backend),
            Kind::End => self.end_paths(burst, request.key, request.flow_hash, request.service, false),
            Kind::Shutdown if request.service.mode.is_dsr() => {
                self.end_paths(burst, request.key, request.flow_hash, request.service, true);
            }
            _ => {}
        }
        Some(known)
    }

    /// Restores the tags of an earlier INIT ACK if a COOKIE ECHO refers to it, and returns whether it does. A server
    /// answers a repeated INIT with another tag, and the client uses the answer that arrives first (RFC 9260 sections
    /// 5.1 and 5.2.3).
    fn restore_offer(&mut self, request: &Request<'_>, shown: &PacketTags, now: Now) -> bool {
        let Request { key, flow_hash, service, .. } = *request;
        if service.mode.is_dsr() {
            return false;
        }
        let found =
            self.associations.find(&AssociationKey::to_server((key.port(), service.port), shown.tag), now);
        let flow = self.flows.nat.peek(&key, flow_hash, now);
        let (Some(offer), Some(flow), Some(last)) = (found, flow, self.flows.tags.offered(flow_hash)) else {
            return false;
        };
        let is_earlier =
            !offer.confirmed && offer.tags.client == last.client && offer.backend == flow.backend;
        is_earlier && self.flows.tags.offer(flow_hash, offer.tags)
    }

    /// Looks up the flow of a request and records a packet of this kind in it.
    fn look_up_as(
        &mut self,
        snapshot: &Snapshot,
        request: &Request<'_>,
        kind: Kind,
        now: Now,
    ) -> Option<Known> {
        let Request { key, flow_hash, service, .. } = request;
        let kind = Packet::Sctp(kind);
        if service.mode.is_dsr() {
            self.flows.dsr.lookup(key, *flow_hash, kind, now).map(Known::from)
        } else {
            let hit = self.flows.nat.lookup(key, *flow_hash, kind, now)?;
            Some(Known::translated(&hit, service.mode, key, snapshot))
        }
    }

    /// The association of a packet without a flow.
    fn association_of(
        &self,
        service: &Service,
        h: &Headers,
        shown: &PacketTags,
        now: Now,
    ) -> Option<Association> {
        let ports = (h.src_port, service.port);
        let is_dsr = service.mode.is_dsr();
        let find = |key| self.associations.find(&key, now);
        match shown.kind {
            Kind::Init if is_dsr => find(AssociationKey::init(ports, shown.initiate)),
            // If both directions were seen, the tag of the INIT ACK identifies the handshake.
            Kind::Init => None,
            Kind::CookieEcho if is_dsr => find(AssociationKey::to_server(ports, shown.tag))
                .or_else(|| find(AssociationKey::of_address(ports, h.src))),
            _ => find(AssociationKey::to_server(ports, shown.tag)),
        }
    }

    /// Creates the flow of a further path, if the packet belongs to a known association.
    fn create_path<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        request: &Request<'_>,
        shown: &PacketTags,
    ) -> Option<()> {
        if !self.associations.is_prepared() {
            return None;
        }
        let (snapshot, now, service) = (burst.view.snapshot, burst.now, request.service);
        let h = &burst.packets[request.index()].headers;
        let association = self.association_of(service, h, shown, now)?;
        let is_refused = burst.client_fault(burst.frame_of(request.packet), h, service.mode).is_some()
            || !snapshot.admits(service, &h.src);
        if is_refused {
            return None;
        }
        let backend = equivalent_backend(snapshot, service, association.backend)?;
        let hash = request.flow_hash;
        let local = match service.mode.is_dsr() {
            true => None,
            false => Some(self.local_of_path(service, h, &association, backend)?),
        };
        let path = Path { service: service.id, client: h.src, worker: self.worker };
        if association.confirmed
            && !self.associations.add_path((h.src_port, service.port), association.tags.server, &path, now)
        {
            return None;
        }
        // A confirmed association can only have a limited number of paths. Anyone may have created an unconfirmed
        // association.
        if !association.confirmed && (service.limited.of_new_flows() || snapshot.limits_sources()) {
            self.admit(snapshot, request, &h.src, now).ok()?;
        }
        match local {
            None => self.flows.dsr.insert(&path_flow(request, backend.id, now)).ok()?,
            Some(local) => self.bind_path(request, association.tags, local, backend, now)?,
        }
        match shown.kind {
            Kind::Init => self.flows.tags.begin(hash, shown.initiate, now),
            _ => self.flows.tags.adopt(hash, association.tags, association.confirmed, now),
        }
        if association.confirmed {
            let _ = self.look_up_as(burst.view.snapshot, request, Kind::CookieEcho, now);
        }
        Some(())
    }

    /// The address and port that the backend sees on a further path, in a mode that translates.
    fn local_of_path(
        &self,
        service: &Service,
        h: &Headers,
        association: &Association,
        backend: &Backend,
    ) -> Option<(Addr, u16)> {
        let (local, port) = association.local;
        let local = match service.mode {
            // If the client's source is translated, the backend knows only one address.
            ForwardingMode::Nat if port != h.src_port || backend.address == h.src => return None,
            ForwardingMode::Nat => h.src,
            // The association was created in a mode without translation.
            _ if port == 0 || association.worker != self.worker => return None,
            _ => local,
        };
        (local.is_v4() == h.src.is_v4()).then_some((local, port))
    }

    /// Creates the flow of a further path in a mode that translates. If the association's flow has the same address and
    /// port towards the backend, it moves to this path.
    fn bind_path(
        &mut self,
        request: &Request<'_>,
        tags: TagPair,
        (local, port): (Addr, u16),
        backend: &Backend,
        now: Now,
    ) -> Option<()> {
        let reply = FlowKey::reply(backend.endpoint, local, port);
        let reply = (reply, self.flows.hash(&reply));
        let mut moved = None;
        if self.flows.nat.reply_key(&reply.0, reply.1, &request.key, now) > ReplyKey::Expired {
            let hit = self.flows.nat.peek_reply(&reply.0, reply.1, now)?;
            let former = FlowKey::flow(hit.service, hit.client, hit.client_port);
            let former = (former, self.flows.hash(&former));
            if self.flows.tags.pair(former.1) != Some(tags) {
                return None;
            }
            self.flows.nat.remove(&former.0, former.1);
            moved = Some((former, hit.backend));
        }
        let flow = path_flow(request, backend.id, now);
        let bound = self.flows.nat.insert_pair(&flow, &reply.0, reply.1).ok();
        if let (None, Some((former, backend))) = (bound, moved) {
            // The table has no capacity for the new path. Restore the former one, so that the association survives.
            let flow = NewFlow { key: former.0, hash: former.1, backend, ..flow };
            let _ = self.flows.nat.insert_pair(&flow, &reply.0, reply.1);
            let _ = self.flows.nat.lookup(&former.0, former.1, Packet::Sctp(Kind::CookieEcho), now);
        }
        bound
    }

    /// Records the INIT of a new association: the initiate tag and, in DSR modes, what identifies packets of the
    /// handshake on other paths.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_association<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        request: &Request<'_>,
        backend: BackendId,
    ) {
        let (h, now) = (&burst.packets[request.index()].headers, burst.now);
        let frame = burst.frames[burst.frame_of(request.packet)].bytes();
        let (_, initiate) = sctp::tags(frame, h);
        self.flows.tags.begin(request.flow_hash, initiate, now);
        if !request.service.mode.is_dsr() {
            return;
        }
        let ports = (h.src_port, request.service.port);
        let association = Association {
            backend,
            tags: TagPair { client: initiate, server: 0 },
            confirmed: false,
            client_port: h.src_port,
            local: (Addr::UNSPECIFIED, 0),
            worker: self.worker,
        };
        self.associations.remember(&AssociationKey::init(ports, initiate), &association, now);
        let listed = addresses(&frame[usize::from(h.l4)..usize::from(h.ip_end)]);
        for addr in listed.filter(|addr| *addr != h.src).take(usize::from(ASSOCIATION_PATHS_MAX)) {
            self.associations.remember(&AssociationKey::of_address(ports, addr), &association, now);
        }
    }

    /// Records an association whose COOKIE ECHO has arrived.
    fn store_confirmed<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        request: &Request<'_>,
        backend: BackendId,
    ) {
        let Request { service, key, flow_hash, .. } = *request;
        let Some(tags) = self.flows.tags.pair(flow_hash) else { return };
        self.store_path(service, burst.view.snapshot, (&key, flow_hash), backend, tags, burst.now);
    }

    /// Records a confirmed association, and the flow as one of its paths.
    fn store_path(
        &self,
        service: &Service,
        snapshot: &Snapshot,
        (key, hash): (&FlowKey, FlowHash),
        backend: BackendId,
        tags: TagPair,
        now: Now,
    ) {
        let client = (key.addr(), key.port());
        let association = self.association(service, client, hash, backend, (tags, true), now);
        self.store_association(service, snapshot, &association, now);
        let path = Path { service: service.id, client: client.0, worker: self.worker };
        let ports = (client.1, service.port);
        // The limit on paths applies only to further paths.
        let _ = self.associations.add_path(ports, tags.server, &path, now);
    }

    /// Records the tags that another gateway reported for a flow, so that this gateway recognises further paths and the
    /// end of the association. Tags from packets are newer and aren't replaced.
    #[cold]
    pub(super) fn adopt_association(
        &mut self,
        snapshot: &Snapshot,
        service: &Service,
        flow: &LocalFlow,
        tags: TagPair,
        now: Now,
    ) {
        let hash = self.flows.hash(&flow.name);
        let known = self.flows.tags.pair(hash);
        let is_untouched = || {
            let stored = self.flows.shared_flow(&flow.name, service.mode.is_dsr(), now);
            stored.is_some_and(|flow| flow.is_relayed)
        };
        if known == Some(tags) || known.is_some() && !is_untouched() {
            return;
        }
        self.flows.tags.adopt(hash, tags, true, now);
        self.store_path(service, snapshot, (&flow.name, hash), flow.backend, tags, now);
    }

    fn association(
        &self,
        service: &Service,
        client: (Addr, u16),
        flow: FlowHash,
        backend: BackendId,
        (tags, confirmed): (TagPair, bool),
        now: Now,
    ) -> Association {
        let local = if service.mode.is_dsr() {
            (Addr::UNSPECIFIED, 0)
        } else {
            let key = FlowKey::flow(service.id, client.0, client.1);
            let hit = self.flows.nat.peek(&key, flow, now);
            hit.map_or(client, |hit| (hit.source, hit.source_port))
        };
        Association { backend, tags, confirmed, client_port: client.1, local, worker: self.worker }
    }

    fn store_association(&self, service: &Service, snapshot: &Snapshot, association: &Association, now: Now) {
        let ports = (association.client_port, service.port);
        let key = AssociationKey::to_server(ports, association.tags.server);
        self.associations.remember(&key, association, now);
        if let Some(key) = key_from_server(service, snapshot, association) {
            self.associations.remember(&key, association, now);
        }
    }

    /// Ends the flows of all other paths of an association, after a packet has proved that the association ended.
    fn end_paths<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        key: FlowKey,
        hash: FlowHash,
        service: &Service,
        is_shutdown: bool,
    ) {
        let now = burst.now;
        let Some(tags) = self.flows.tags.pair(hash) else { return };
        let ports = (key.port(), service.port);
        let to_server = AssociationKey::to_server(ports, tags.server);
        if is_shutdown {
            // In DSR modes the server's last packet isn't seen. Until the client gets it, it may repeat its own packet
            // on another path.
            self.associations.unconfirm(&to_server, now);
        } else if let Some(ended) = self.associations.find(&to_server, now) {
            self.associations.forget(&to_server);
            if let Some(from_server) = key_from_server(service, burst.view.snapshot, &ended) {
                self.associations.forget(&from_server);
            }
        }
        let paths: ArrayVec<Path, { ASSOCIATION_PATHS_MAX as usize }> =
            self.associations.take_paths(ports, tags.server).collect();
        for path in paths {
            let other = FlowKey::flow(path.service, path.client, ports.0);
            let ended = EndedPath { worker: path.worker, key: other, is_shutdown };
            if other == key {
                continue;
            }
            if path.worker == self.worker {
                self.end_path(&ended, now);
            } else {
                // If the list is full, the flow ends with its idle timeout.
                let _ = self.ended_paths.try_push(ended);
            }
        }
    }

    /// Ends the flow of a path whose association has ended on another path.
    pub fn end_path(&mut self, ended: &EndedPath, now: Now) {
        let hash = self.flows.hash(&ended.key);
        let kind = Packet::Sctp(if ended.is_shutdown { Kind::Shutdown } else { Kind::End });
        // The mode of the service determines which of the tables has the key.
        let _ = self.flows.dsr.lookup(&ended.key, hash, kind, now);
        let _ = self.flows.nat.lookup(&ended.key, hash, kind, now);
    }

    /// Takes the paths of associations that have ended since the last call and whose flows other workers own.
    #[inline]
    pub fn take_ended_paths(&mut self) -> impl Iterator<Item = EndedPath> {
        std::mem::take(&mut self.ended_paths).into_iter()
    }

    /// Whether [`Self::take_ended_paths`] would return any.
    #[inline]
    #[must_use]
    pub fn has_ended_paths(&self) -> bool {
        !self.ended_paths.is_empty()
    }

    /// The worker that owns the flow of an association in `fullnat`, if it's not this worker.
    #[cold]
    pub(super) fn worker_of_association<F: Frame>(
        &self,
        burst: &Burst<'_, '_, F>,
        request: &Request<'_>,
    ) -> Option<WorkerIndex> {
        let (service, h) = (request.service, &burst.packets[request.index()].headers);
        if !matches!(request.kind, Packet::Sctp(_))
            || service.mode != ForwardingMode::FullNat
            || burst.arrival.hand_overs() > 1
        {
            return None;
        }
        let association = self.association_of(service, h, &shown(burst, request.packet), burst.now)?;
        (association.worker != self.worker && association.worker < self.workers).then_some(association.worker)
    }

    /// Looks up the flow of a backend's packet and records the packet in it. In `nat`, creates the flow if the packet
    /// is on a further path of a known association.
    #[cold]
    #[inline(never)]
    pub(super) fn reply_of_association<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        packet: u8,
        key: &FlowKey,
        hash: FlowHash,
    ) -> Option<ReplyHit> {
        let (snapshot, now) = (burst.view.snapshot, burst.now);
        let hit = match self.flows.nat.peek_reply(key, hash, now) {
            Some(hit) => hit,
            None => {
                self.create_path_from_server(burst, packet, key, hash)?;
                self.flows.nat.peek_reply(key, hash, now)?
            }
        };
        let client = (hit.client, hit.client_port);
        let flow = FlowKey::flow(hit.service, client.0, client.1);
        let flow_hash = self.flows.hash(&flow);
        let (shown, kind) = self.verify_tag(burst, packet, flow_hash, Side::Server);
        let hit = self.flows.nat.lookup_reply(key, hash, Packet::Sctp(kind), now);
        if let Some(service) = snapshot.service_by_id(flow.service()) {
            let offered = TagPair { client: shown.tag, server: shown.initiate };
            match (kind, hit) {
                (Kind::InitAck, Some(hit)) if self.flows.tags.offered(flow_hash) == Some(offered) => {
                    let tags = (offered, false);
                    let offer = self.association(service, client, flow_hash, hit.backend, tags, now);
                    self.store_association(service, snapshot, &offer, now);
                }
                (Kind::End, _) => self.end_paths(burst, flow, flow_hash, service, false),
                _ => {}
            }
        }
        hit
    }

    /// Creates the flow of a path that the backend creates, if the packet belongs to a known association.
    fn create_path_from_server<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        packet: u8,
        key: &FlowKey,
        hash: FlowHash,
    ) -> Option<()> {
        let (snapshot, now) = (burst.view.snapshot, burst.now);
        let h = &burst.packets[usize::from(packet)].headers;
        let shown = shown(burst, packet);
        let endpoint = snapshot.endpoint(
            Snapshot::hash_endpoint(&h.src, h.proto, h.src_port),
            &h.src,
            h.proto,
            h.src_port,
        )?;
        let from = AssociationKey::from_server(endpoint, h.dst_port, shown.tag);
        let association = self.associations.find(&from, now)?;
        let backend = snapshot.backend(association.backend).filter(|one| one.endpoint == endpoint)?;
        let service = snapshot.service_by_id(backend.service)?;
        let kept = association.confirmed && association.local.1 == association.client_port;
        if !kept || service.mode != ForwardingMode::Nat || !snapshot.admits(service, &h.dst) {
            return None;
        }
        let ports = (association.client_port, service.port);
        let path = Path { service: service.id, client: h.dst, worker: self.worker };
        if !self.associations.add_path(ports, association.tags.server, &path, now) {
            return None;
        }
        let flow = FlowKey::flow(service.id, h.dst, association.client_port);
        let flow_hash = self.flows.hash(&flow);
        let (packet, idle) = (Packet::Sctp(Kind::Init), service.idle);
        let new = NewFlow { key: flow, hash: flow_hash, backend: backend.id, packet, idle, now };
        self.flows.nat.insert_pair(&new, key, hash).ok()?;
        self.flows.tags.adopt(flow_hash, association.tags, true, now);
        let _ = self.flows.nat.lookup(&flow, flow_hash, Packet::Sctp(Kind::CookieEcho), now);
        Some(())
    }
}

/// The key that identifies the association of a backend's packet on a path without a flow, which exists only in `nat`.
fn key_from_server(
    service: &Service,
    snapshot: &Snapshot,
    association: &Association,
) -> Option<AssociationKey> {
    let backend = snapshot.backend(association.backend).filter(|_| service.mode == ForwardingMode::Nat)?;
    Some(AssociationKey::from_server(backend.endpoint, association.local.1, association.tags.client))
}

/// The flow of a further path, which begins like an association.
fn path_flow(request: &Request<'_>, backend: BackendId, now: Now) -> NewFlow {
    NewFlow { packet: Packet::Sctp(Kind::Init), ..request.new_flow(backend, request.service.idle, now) }
}

/// What the packet reveals about its association.
fn shown<F: Frame>(burst: &Burst<'_, '_, F>, packet: u8) -> PacketTags {
    let h = &burst.packets[usize::from(packet)].headers;
    let frame = burst.frames[burst.frame_of(packet)].bytes();
    let (kind, reflected) = sctp::kind(&frame[usize::from(h.l4)..usize::from(h.ip_end)]);
    let (tag, initiate) = sctp::tags(frame, h);
    PacketTags { kind, tag, initiate, reflected }
}

/// The backend of `service` with the same endpoint as `id`, which is a backend of the same Service port at another VIP.
fn equivalent_backend<'s>(snapshot: &'s Snapshot, service: &Service, id: BackendId) -> Option<&'s Backend> {
    let backend = snapshot.backend(id)?;
    if backend.service == service.id {
        return Some(backend);
    }
    let (own, other) = (snapshot.service_info(service.id)?, snapshot.service_info(backend.service)?);
    let is_same = own.name == other.name
        && own.namespace == other.namespace
        && own.key.protocol == other.key.protocol
        && own.key.port == other.key.port
        && own.mode == other.mode;
    let place =
        own.backends.binary_search_by_key(&(backend.address, backend.port), |one| (one.address, one.port));
    let found = own.backends.get(place.ok().filter(|_| is_same)?)?;
    snapshot.backend(found.id)
}
