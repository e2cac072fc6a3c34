//! Packets from clients to service ports: finds the flow's backend, or chooses one.
//!
//! Stages 2 to 4 of the pipeline for this direction. The bucket of a packet's flow is prefetched, then read. A hit
//! prefetches the backend; a miss prefetches the data for the choice. Then the packet is delivered to the backend, or
//! it is answered because there is no backend.

use arrayvec::ArrayVec;
use tidegate_conntrack::{First, FlowHash, FlowKey, IdleTimeout, Packet, PairError, ReplyKey};
use tidegate_select::selector::Selector;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::backend::Backend;
use tidegate_snapshot::service::{Entries, Service};
use tidegate_spec::ids::BackendId;
use tidegate_spec::limits::{BURST, OPENING_IDLE_MIN_MS, SNAT_PORT_BATCH, SNAT_PORT_MIN, SNAT_PORT_PROBES};
use tidegate_spec::now::Now;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_spec::{BackendState, ForwardingMode, NoEndpoints, Protocol};
use tidegate_structures::hash::{key_hash, scale};
use tidegate_wire::icmp::Problem;
use tidegate_wire::rewrite::Endpoint;
use tidegate_wire::{Addr, Headers, proto, sctp};

use super::burst::{Burst, Delivery, Destination};
use super::on_change;
use super::output::FlowNote;
use super::owners::{Dealt, owner_of_client};
use super::passive::Syn;
use super::request::{Chosen, Found, Known, Request, Requests, choice_hash, kind_of};
use super::state::Pipeline;
use super::view::Arrival;
use crate::forward::snat_ports::Turn;
use crate::frame::Frame;

impl Pipeline {
    /// Stage 2: builds the flow key of a packet to `service` and prefetches its bucket.
    ///
    /// # Errors
    /// The verdict, if another worker holds the flow.
    #[inline]
    pub(super) fn request<'s>(
        &self,
        service: &'s Service,
        packet: u8,
        h: &Headers,
        arrival: Arrival,
    ) -> Result<Request<'s>, Verdict> {
        if self.workers > 1 {
            let (client, vip) = ((&h.src, h.src_port), (&h.dst, h.dst_port));
            if let Some(owner) = self.owners().of_request(
                service,
                client,
                vip,
                h.proto,
                Dealt::of(h, self.snat_ports.steering()),
            ) {
                self.at_home(owner, arrival, h.proto)?;
            }
        }
        let key = FlowKey::flow(service.id, h.src, h.src_port);
        let flow_hash = self.flows.hash(&key);
        match service.entries {
            Entries::Pairs => self.flows.nat.prefetch(&key, flow_hash),
            Entries::InFlux if !self.flows.dsr.has_flows_of(&key) => {}
            Entries::EachFlow | Entries::InFlux => self.flows.dsr.prefetch(&key, flow_hash),
        }
        let (kind, found) = (kind_of(h), Found::Unknown);
        Ok(Request { packet, service, key, flow_hash, kind, choice_hash: 0, found })
    }

    /// Stage 3: reads the flow entries; prefetches the backend of each hit, and the data for the choice of each miss.
    #[inline(never)]
    pub(super) fn find_service_flows<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        requests: &mut Requests<'_>,
    ) {
        for request in requests.iter_mut() {
            if let Some(backend) = self.known_first(burst, request) {
                burst.view.snapshot.prefetch_backend(backend);
            }
        }
        let mut any_on_change = false;
        for request in requests.iter_mut().filter(|request| !request.found.is_known()) {
            // A service that remembers only flows in flux usually has no entry, and then no table need be read.
            if !request.service.on_change() || self.flows.dsr.has_flows_of(&request.key) {
                request.found = self.known_second(burst, request).into();
                if let Found::Known(known) = request.found {
                    burst.view.snapshot.prefetch_backend(known.backend);
                    continue;
                }
            }
            let (h, service) = (&burst.packets[request.index()].headers, request.service);
            request.choice_hash = choice_hash(burst.view.snapshot, service, h);
            service.prefetch_choice(request.choice_hash);
            any_on_change |= service.on_change();
        }
        if any_on_change {
            on_change::settle(burst.view.snapshot, requests);
        }
    }

    /// Stores in the request what the first bucket of its flow contains, and returns the backend.
    #[inline(always)]
    fn known_first<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        request: &mut Request<'_>,
    ) -> Option<BackendId> {
        let Request { key, flow_hash, kind, service, .. } = request;
        match service.entries {
            Entries::Pairs => return self.known_first_translated(burst, request),
            Entries::InFlux if !self.flows.dsr.has_flows_of(key) => return None,
            Entries::EachFlow | Entries::InFlux => {}
        }
        match self.flows.dsr.lookup_first(key, *flow_hash, *kind, burst.now) {
            First::Steady(backend) => {
                request.found = Found::Known(Known { backend, local: None, syn: Syn::No });
                Some(backend)
            }
            First::There => self.known_now(burst, request),
            First::Absent => None,
        }
    }

    #[inline(never)]
    fn known_first_translated<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        request: &mut Request<'_>,
    ) -> Option<BackendId> {
        let Request { key, flow_hash, kind, service, .. } = request;
        match self.flows.nat.lookup_first(key, *flow_hash, *kind, burst.now) {
            First::Steady(hit) => {
                let known = Known::translated(&hit, service.mode, key, burst.view.snapshot);
                request.found = Found::Known(known);
                Some(hit.backend)
            }
            First::There => self.known_now(burst, request),
            First::Absent => None,
        }
    }

    /// Looks up the flow of a packet that changes it at once: packets of one flow must be recorded in their order.
    #[inline(never)]
    fn known_now<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        request: &mut Request<'_>,
    ) -> Option<BackendId> {
        request.found = self.known(burst, request).into();
        request.found.known().map(|known| known.backend)
    }

    /// Looks up the flow of a request and records the packet in it.
    fn known<F: Frame>(&mut self, burst: &Burst<'_, '_, F>, request: &Request<'_>) -> Option<Known> {
        let Request { key, flow_hash, kind, service, .. } = request;
        let (kind, now) = (*kind, burst.now);
        if let Packet::Sctp(_) = kind {
            return self.known_association(burst, request);
        }
        if service.mode.is_dsr() {
            self.flows.dsr.lookup(key, *flow_hash, kind, now).map(Known::from)
        } else {
            let hit = self.flows.nat.lookup(key, *flow_hash, kind, now)?;
            Some(Known::translated(&hit, service.mode, key, burst.view.snapshot))
        }
    }

    /// [`Self::known`] for a flow that is not in the first of its buckets.
    fn known_second<F: Frame>(&mut self, burst: &Burst<'_, '_, F>, request: &Request<'_>) -> Option<Known> {
        let Request { key, flow_hash, kind, service, .. } = request;
        let (kind, now) = (*kind, burst.now);
        if let Packet::Sctp(_) = kind {
            return self.known_association(burst, request);
        }
        if service.mode.is_dsr() {
            self.flows.dsr.lookup_second(key, *flow_hash, kind, now).map(Known::from)
        } else {
            let hit = self.flows.nat.lookup_second(key, *flow_hash, kind, now)?;
            Some(Known::translated(&hit, service.mode, key, burst.view.snapshot))
        }
    }

    /// Stage 4: determines the backend of each request.
    #[inline(never)]
    pub(super) fn choose_backends<'s, F: Frame>(
        &mut self,
        burst: &mut Burst<'s, '_, F>,
        requests: &Requests<'s>,
    ) {
        // Borrowed from the snapshot, not from the burst, so that the burst stays mutable.
        let snapshot = burst.view.snapshot;
        // Known flows for which a packet of this burst began a new connection: their later packets must look up the new
        // one.
        let mut renewed = ArrayVec::<FlowKey, BURST>::new();
        for request in requests {
            // The usual packet. Merged with the other ways, its backend would go through memory.
            if renewed.is_empty()
                && let Found::Known(Known { backend, local, syn: Syn::No }) = &request.found
                && let Some(backend) = snapshot.backend(*backend)
                && backend.state != BackendState::Down
            {
                burst.send_to(request, backend, *local, FlowNote::Known);
                continue;
            }
            let again = if renewed.is_empty() || !renewed.contains(&request.key) {
                None
            } else {
                Some(self.known(burst, request))
            };
            let found = match &again {
                Some(known) => known.as_ref(),
                None => request.found.known(),
            };
            let known = found.and_then(|known| {
                let backend = snapshot.backend(known.backend)?;
                burst.keeps(backend, request, known.syn).then_some((backend, known.local))
            });
            let chosen = match known {
                Some((backend, local)) => Ok(Chosen { backend, local, flow: FlowNote::Known }),
                None if found.is_some_and(|known| known.syn == Syn::Repeats) => {
                    self.stay_or_begin(burst, request, found.copied())
                }
                None => match burst.settled(request) {
                    Some(settled) => Ok(settled),
                    None => self.begin(burst, request),
                },
            };
            let at = burst.frame_of(request.packet);
            match chosen {
                Ok(Chosen { backend, local, flow }) => {
                    if flow == FlowNote::New && request.found.is_known() {
                        renewed.push(request.key);
                    }
                    burst.send_to(request, backend, local, flow);
                }
                Err(Refusal::NoEndpoints) => self.no_endpoints(burst, at, request),
                Err(Refusal::NoFlow) => self.no_flow(burst, at, request),
                Err(Refusal::SynCookie) => {
                    let h = burst.packets[request.index()].headers;
                    self.answer_with_cookie(burst, at, &h, request.service);
                }
                Err(Refusal::TtlExceeded) => {
                    let h = burst.packets[request.index()].headers;
                    self.cannot_pass(burst, at, &h, 0, 0);
                }
                Err(refusal) => burst.set(at, refusal),
            }
        }
    }

    /// Processes a repeated SYN: its flow gets another backend, unless there is none to go to.
    #[cold]
    #[inline(never)]
    fn stay_or_begin<'s, F: Frame>(
        &mut self,
        burst: &mut Burst<'s, '_, F>,
        request: &Request<'s>,
        found: Option<Known>,
    ) -> Result<Chosen<'s>, Refusal> {
        if let Some(known) = found
            && let Some(backend) = burst.view.snapshot.backend(known.backend)
            && burst.keeps(backend, request, Syn::No)
            && !self.leaves_silent(burst, request, backend)
        {
            return Ok(Chosen { backend, local: known.local, flow: FlowNote::Known });
        }
        let begun = self.begin(burst, request);
        self.passive.choice_is_made();
        begun
    }

    /// Chooses a backend for a packet whose flow is not known, or whose backend no longer takes it, and creates the
    /// flow entry. It is a part of [`Self::choose_backends`]: the result of a call would go through memory.
    #[inline(always)]
    pub(super) fn begin<'s, F: Frame>(
        &mut self,
        burst: &mut Burst<'s, '_, F>,
        request: &Request<'_>,
    ) -> Result<Chosen<'s>, Refusal> {
        let (snapshot, now, service) = (burst.view.snapshot, burst.now, request.service);
        let h = burst.packets[request.index()].headers;
        let found = match request.found.known() {
            // An earlier packet of this burst may have begun the same flow.
            None if burst.begun.was_there(request.flow_hash) => self.known(burst, request),
            found => found.copied(),
        };
        if !request.found.is_known()
            && let Some(known) = found
            && let Some(backend) = snapshot.backend(known.backend)
            && burst.keeps(backend, request, known.syn)
        {
            return Ok(Chosen { backend, local: known.local, flow: FlowNote::Known });
        }
        // From here on, a flow that is not known has no entry.
        let began;
        let request = match found {
            Some(known) if !request.found.is_known() => {
                began = Request { found: Found::Known(known), ..*request };
                &began
            }
            _ => request,
        };
        if burst.client_fault(burst.frame_of(request.packet), &h, service.mode).is_some() {
            return Err(Refusal::BadSource);
        }
        if snapshot.denies(&h.src) {
            return Err(Refusal::SourceDenied);
        }
        if !snapshot.is_in_range(service, &h.src) {
            return Err(Refusal::SourceRange);
        }
        let stray = request.kind.has_connection() && !request.kind.is_opening();
        let has_backends = !service.selector().is_empty();
        if stray && !service.mode.is_dsr() {
            return if has_backends {
                self.begin_by_cookie(burst, request, &h)
            } else {
                Err(Refusal::NoEndpoints)
            };
        }
        // The packet ends here, so it begins no flow. Without a backend, the gateway itself is its destination.
        if h.ttl <= 1 && has_backends {
            return Err(Refusal::TtlExceeded);
        }
        if found.is_none() && has_backends && self.asks_for_cookie(snapshot, service, &h, now) {
            return Err(Refusal::SynCookie);
        }
        self.open(burst, request, &h)
    }

    /// Creates the flow of a packet that may begin one, if the limits of new flows allow it.
    #[inline(always)]
    pub(super) fn open<'s, F: Frame>(
        &mut self,
        burst: &mut Burst<'s, '_, F>,
        request: &Request<'_>,
        h: &Headers,
    ) -> Result<Chosen<'s>, Refusal> {
        let (snapshot, now, service) = (burst.view.snapshot, burst.now, request.service);
        let stray = request.kind.has_connection() && !request.kind.is_opening();
        let has_backends = !service.selector().is_empty();
        if (service.limited.of_new_flows() || snapshot.limits_sources()) && !stray && has_backends
            // Without entries, only a SYN is known to begin a flow.
            && (!service.on_change() || request.kind.is_opening())
        {
            self.admit(snapshot, request, &h.src, now)?;
        }
        if service.on_change() {
            return self.begin_on_change(burst, request, h);
        }
        let former =
            if stray { on_change::former(snapshot, service, request.choice_hash(snapshot, h)) } else { None };
        let backend =
            former.or_else(|| self.choose(snapshot, request, h, now)).ok_or(Refusal::NoEndpoints)?;
        let idle = service.idle;
        let local = match service.mode {
            ForwardingMode::DsrL2
            | ForwardingMode::DsrIpip
            | ForwardingMode::DsrGue
            | ForwardingMode::DsrGre
            | ForwardingMode::DsrGeneve
            | ForwardingMode::DsrDscp => {
                // A reset ends a flow that is not known, so there is no flow to remember. If the table is full, the
                // only cost of a choice by hash is that the flow may move when the owner of its slot changes. The table
                // has counted that.
                if !request.kind.is_ending() {
                    let (key, hash) = (&request.key, request.flow_hash);
                    let inserted = if request.found.is_known() {
                        self.flows.dsr.insert(key, hash, backend.id, request.kind, idle, now)
                    } else {
                        self.flows.dsr.insert_new(key, hash, backend.id, request.kind, idle, now)
                    };
                    // Without an entry, the next packet could go to another backend.
                    if inserted.is_err() && service.selector().is_of_worker() {
                        return Err(Refusal::FlowTableFull);
                    }
                }
                None
            }
            // The client expects the answer from the VIP, and would reject an answer that its own server sends
            // directly. With a source of ours, the answer returns through the gateway.
            ForwardingMode::Nat if backend.address == h.src => {
                if snapshot.snat_addresses(h.family).is_empty() {
                    return Err(Refusal::Hairpin);
                }
                Some(self.bind_local(snapshot, request, h, backend, idle, now)?)
            }
            ForwardingMode::Nat => self.bind_client(request, h, backend, idle, now)?,
            ForwardingMode::FullNat => Some(self.bind_local(snapshot, request, h, backend, idle, now)?),
        };
        if service.passive && request.kind.is_opening() {
            let flow = (&request.key, request.flow_hash);
            self.keep_syn(burst, request.index(), flow, request.found.is_known(), backend);
        }
        if request.kind == Packet::Sctp(sctp::Kind::Init) {
            self.begin_association(burst, request, backend.id);
        }
        burst.view.tallies.connected(backend.id);
        Ok(Chosen { backend, local, flow: FlowNote::New })
    }

    /// The same for a service that remembers only flows in flux: see [`on_change`].
    #[inline(never)]
    fn begin_on_change<'s, F: Frame>(
        &mut self,
        burst: &mut Burst<'s, '_, F>,
        request: &Request<'_>,
        h: &Headers,
    ) -> Result<Chosen<'s>, Refusal> {
        let (snapshot, service) = (burst.view.snapshot, request.service);
        let hash = request.choice_hash(snapshot, h);
        let chosen = on_change::choose(snapshot, service, request.kind, hash).ok_or(Refusal::NoEndpoints)?;
        let on_change::Unremembered { backend, remember } = chosen;
        if remember.is_none() && request.found.is_known() {
            // The entry of an earlier connection with the same ports would divert the packets after this one.
            self.flows.dsr.remove(&request.key, request.flow_hash);
        }
        if let Some(first) = remember {
            // If the table is full, the flow moves when its former owner's window ends. The table has counted that.
            let _ = self.flows.dsr.insert(
                &request.key,
                request.flow_hash,
                backend.id,
                first,
                service.idle,
                burst.now,
            );
            self.flows.dsr.note_beginning(&request.key);
        }
        if request.kind.is_opening() {
            burst.view.tallies.connected(backend.id);
            return Ok(Chosen { backend, local: None, flow: FlowNote::New });
        }
        let flow = if remember.is_some() { FlowNote::Known } else { FlowNote::None };
        Ok(Chosen { backend, local: None, flow })
    }

    /// The backend of a new flow: the one that its client has by affinity, otherwise the one that its hash selects.
    fn choose<'s>(
        &mut self,
        snapshot: &'s Snapshot,
        request: &Request<'_>,
        h: &Headers,
        now: Now,
    ) -> Option<&'s Backend> {
        let service = request.service;
        let choice_hash = request.choice_hash(snapshot, h);
        if service.affinity_ms == 0 {
            return snapshot.backend(self.select_sound(snapshot, service, choice_hash, now)?);
        }
        self.choose_for_client(snapshot, service, h.src, choice_hash, now)
    }

    /// The backend that the scheduler of the service chooses.
    #[inline(always)]
    pub(super) fn select(&mut self, service: &Service, choice_hash: u64) -> Option<BackendId> {
        match service.selector() {
            Selector::Rendezvous(seats) => seats.owner(choice_hash),
            _ => self.select_otherwise(service, choice_hash),
        }
    }

    /// The same, without seats.
    #[inline(never)]
    fn select_otherwise(&mut self, service: &Service, choice_hash: u64) -> Option<BackendId> {
        match service.selector() {
            Selector::Rendezvous(_) | Selector::InFlux(_) | Selector::Maglev(_) | Selector::WarmUp(_) => {
                service.select(choice_hash)
            }
            Selector::Turns(turns) => self.schedule.turn(service.id, turns),
            Selector::Loads(loaded) => self.schedule.least(service, loaded, &mut self.flows),
        }
    }

    /// Counts a new flow against the limits of its source and of its Service. The source comes first, so that one source
    /// does not use up the rate of the Service. A flow that only changes its backend is not new.
    #[cold]
    pub(super) fn admit(
        &mut self,
        snapshot: &Snapshot,
        request: &Request<'_>,
        source: &Addr,
        now: Now,
    ) -> Result<(), Refusal> {
        if request.found.known().is_some_and(|known| known.syn != Syn::Reopens) {
            return Ok(());
        }
        if snapshot.source_rates(source).is_some_and(|rates| !rates.take(source, self.seed, now)) {
            return Err(Refusal::SourceConnectionRate);
        }
        match snapshot.limited_service(request.service) {
            Some(limited) => self.limits.admit(limited, snapshot, &self.flows, now),
            None => Ok(()),
        }
    }

    /// Finds a local address and port for a new flow whose source is translated, such that replies arrive at this
    /// worker. It prefers a port that no other flow to the same endpoint has, then one whose flow is over, then one
    /// whose flow is opening, then one whose flow one side has ended. An established flow keeps its port. If handshakes
    /// hold most of the ports, there is a flood of them: the search then ends early, since a longer one finds more of
    /// the same.
    fn bind_local(
        &mut self,
        snapshot: &Snapshot,
        request: &Request<'_>,
        h: &Headers,
        backend: &Backend,
        idle: IdleTimeout,
        now: Now,
    ) -> Result<Endpoint, Refusal> {
        let addresses = snapshot.snat_addresses(h.family);
        let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        // The hash has a secret, so clients cannot choose the address.
        let first = scale(request.flow_hash.bits(), count) as usize;
        // If there are more addresses than batches, each flow examines some of them, and the first one varies.
        let looked_at = addresses.len().min(SNAT_PORT_PROBES / SNAT_PORT_BATCH);
        let mut best = (ReplyKey::Taken, None);
        for &addr in addresses.iter().cycle().skip(first).take(looked_at) {
            // Usually the first address has a free port.
            if best.0 <= ReplyKey::Over {
                break;
            }
            let pair = self.snat_ports.pair(addr, (backend.address, backend.port), h.proto);
            // Only one port is examined first: it is free unless ports are short.
            let (mut left, mut probes) = (SNAT_PORT_PROBES / looked_at, 1);
            let (mut looked, mut handshakes) = (0, 0);
            while left > 0 && best.0 > ReplyKey::Over {
                if looked > SNAT_PORT_BATCH && 2 * handshakes > looked {
                    break;
                }
                let mut batch = ArrayVec::<(FlowKey, FlowHash, Turn), SNAT_PORT_BATCH>::new();
                for (port, turn) in (0..probes).filter_map(|_| self.snat_ports.next(&pair)) {
                    let reply = FlowKey::reply(backend.endpoint, addr, port);
                    let hash = self.flows.hash(&reply);
                    self.flows.nat.prefetch(&reply, hash);
                    batch.push((reply, hash, turn));
                }
                for &(reply, hash, turn) in &batch {
                    let found = self.flows.nat.reply_key(&reply, hash, &request.key, now);
                    let found = self.or_masqueraded(found, &reply, backend, h.proto);
                    looked += 1;
                    handshakes +=
                        usize::from(matches!(found, ReplyKey::Opening { .. } | ReplyKey::Answered { .. }));
                    if is_better(found, best.0) {
                        best = (found, Some((reply, hash, turn)));
                    }
                }
                left -= probes;
                probes = SNAT_PORT_BATCH.min(left);
            }
        }
        let (found, Some((reply, hash, turn))) = best else { return Err(Refusal::SnatPortsExhausted) };
        // The ports after it were only examined, so the rotation continues with them.
        self.snat_ports.resume_after(turn);
        self.claim(request, found, &(reply, hash), backend, idle, now)?;
        self.take_from_masquerade(&reply, backend, h.proto);
        Ok(Endpoint { addr: reply.addr(), port: reply.port() })
    }

    /// Creates a `nat` flow with the client's own port. If another flow that is not over has that port towards the same
    /// endpoint, this chooses and returns a different port. Linux does the same (`nf_nat_used_tuple`).
    fn bind_client(
        &mut self,
        request: &Request<'_>,
        h: &Headers,
        backend: &Backend,
        idle: IdleTimeout,
        now: Now,
    ) -> Result<Option<Endpoint>, Refusal> {
        let own = FlowKey::reply(backend.endpoint, h.src, h.src_port);
        let own = (own, self.flows.hash(&own));
        let found = self.flows.nat.reply_key(&own.0, own.1, &request.key, now);
        let gives_way = match found {
            ReplyKey::Free | ReplyKey::Expired | ReplyKey::Over => true,
            // A handshake may be in progress.
            ReplyKey::Opening { idle_ms } => idle_ms >= OPENING_IDLE_MIN_MS,
            ReplyKey::Answered { .. } | ReplyKey::Doubtful { .. } | ReplyKey::Taken => false,
        };
        if gives_way {
            self.claim(request, found, &own, backend, idle, now)?;
            return Ok(None);
        }
        let (reply, found) = self.other_port(request, h, backend, now).ok_or(Refusal::NatConflict)?;
        self.claim(request, found, &reply, backend, idle, now)?;
        Ok(Some(Endpoint { addr: h.src, port: reply.0.port() }))
    }

    /// A port for a `nat` client that no other flow to the endpoint has, except one that is over, and whose flows this
    /// worker holds.
    #[cold]
    fn other_port(
        &self,
        request: &Request<'_>,
        h: &Headers,
        backend: &Backend,
        now: Now,
    ) -> Option<((FlowKey, FlowHash), ReplyKey)> {
        let range = u32::from(u16::MAX - SNAT_PORT_MIN) + 1;
        let spread =
            key_hash(&h.dst, h.proto, h.dst_port) ^ key_hash(&h.src, h.proto, h.src_port) ^ self.seed;
        // The range is 2^10 * 63, so an odd step repeats a port only after 1,024 or more.
        let (first, step) = (scale(spread, range), (spread as u32 % range) | 1);
        let ports = (0..).map(|n: u32| {
            let at = (u64::from(first) + u64::from(n) * u64::from(step)) % u64::from(range);
            // The offset is below the range, so the port is at most 65,535.
            SNAT_PORT_MIN + at as u16
        });
        let at_home = |port: &u16| owner_of_client((&h.src, *port), h.proto, self.workers) == self.worker;
        let looked_at = 4 * SNAT_PORT_PROBES * usize::from(self.workers);
        let ports = ports.take(looked_at).filter(at_home).take(SNAT_PORT_PROBES);
        ports.filter(|port| *port != request.key.port()).find_map(|port| {
            let reply = FlowKey::reply(backend.endpoint, h.src, port);
            let hash = self.flows.hash(&reply);
            let found = self.flows.nat.reply_key(&reply, hash, &request.key, now);
            matches!(found, ReplyKey::Free | ReplyKey::Expired | ReplyKey::Over)
                .then_some(((reply, hash), found))
        })
    }

    /// Creates a flow with this reply key. A flow that has the key is removed.
    fn claim(
        &mut self,
        request: &Request<'_>,
        found: ReplyKey,
        (reply, hash): &(FlowKey, FlowHash),
        backend: &Backend,
        idle: IdleTimeout,
        now: Now,
    ) -> Result<(), Refusal> {
        if found > ReplyKey::Expired {
            self.flows.nat.take_reply_key(reply, *hash);
        }
        let flow = (&request.key, request.flow_hash);
        let inserted = if request.found.is_known() || found == ReplyKey::Expired {
            self.flows.nat.insert_pair(flow, (reply, *hash), backend.id, request.kind, idle, now)
        } else {
            self.flows.nat.insert_new_pair(flow, (reply, *hash), backend.id, request.kind, idle, now)
        };
        inserted.map_err(|error| match error {
            PairError::Conflict => Refusal::NatConflict,
            PairError::Full => Refusal::FlowTableFull,
            PairError::Share => Refusal::ServiceFlowShare,
        })
    }

    /// Answers a packet for which there is no backend: with a reset, with ICMP port unreachable, or not at all.
    #[cold]
    fn no_endpoints<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>, at: usize, request: &Request<'_>) {
        let h = burst.packets[request.index()].headers;
        let answered = match (request.service.no_endpoints, request.kind) {
            (NoEndpoints::Unserved, _) => return self.unserved(burst, at, &h),
            (NoEndpoints::Drop, _) => false,
            (NoEndpoints::Reject, Packet::Tcp(_)) => self.reset(burst, at, &h),
            (NoEndpoints::Reject, Packet::Sctp(_) | Packet::Datagram) => {
                self.refuse(burst, at, &h, Problem::PortUnreachable)
            }
        };
        burst.answer_or(at, answered, TransmitReason::NoEndpoints, Refusal::NoEndpoints);
    }

    /// Processes a packet of a connection that this gateway does not know: its state was lost, or never existed here.
    /// Nothing answers SCTP: the packet may come from another address of a client whose association lives, and an ABORT
    /// would end that.
    #[cold]
    fn no_flow<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>, at: usize, request: &Request<'_>) {
        if let Some(worker) = self.worker_of_association(burst, request) {
            return burst.set(at, Verdict::HandOver(worker));
        }
        let h = burst.packets[request.index()].headers;
        let wanted = burst.view.snapshot.policy().reset_unknown_flows && h.proto == proto::TCP;
        let answered = wanted && self.reset(burst, at, &h);
        burst.answer_or(at, answered, TransmitReason::NoFlow, Refusal::NoFlow);
    }
}

/// Whether the reply key `found` is better for a new flow than `than`. Among flows that are opening, answered or
/// doubtful, the one that is idle for longest is best.
pub(super) fn is_better(found: ReplyKey, than: ReplyKey) -> bool {
    match (found, than) {
        (ReplyKey::Opening { idle_ms }, ReplyKey::Opening { idle_ms: than })
        | (ReplyKey::Answered { idle_ms }, ReplyKey::Answered { idle_ms: than })
        | (ReplyKey::Doubtful { idle_ms }, ReplyKey::Doubtful { idle_ms: than }) => idle_ms > than,
        _ => found < than,
    }
}

impl<'s, F: Frame> Burst<'s, '_, F> {
    /// Passes a packet on to the stage that sends it, and prefetches the next hop.
    #[inline(always)]
    fn send_to(
        &mut self,
        request: &Request<'s>,
        backend: &'s Backend,
        local: Option<Endpoint>,
        flow: FlowNote,
    ) {
        self.view.neighbors.prefetch(backend.neighbor);
        let at = self.frame_of(request.packet);
        let note = &mut self.out.notes[at];
        (note.backend, note.flow) = (Some(backend.id), flow);
        let destination = Destination::Backend { service: request.service, backend, local };
        self.deliveries.push(Delivery { packet: request.packet, destination });
    }

    /// Whether a known flow stays with its backend (see [`BackendState`]). A connection that is opened again is a new
    /// flow, and a repeated SYN may leave its backend. A SYN or INIT to a backend that is down belongs to no connection yet.
    #[inline]
    fn keeps(&self, backend: &Backend, request: &Request<'_>, syn: Syn) -> bool {
        match backend.state {
            _ if syn != Syn::No => false,
            BackendState::Active | BackendState::Draining => true,
            BackendState::Down => self.keeps_to_down(backend, request),
        }
    }

    /// The same, for a backend that is down.
    #[cold]
    fn keeps_to_down(&self, backend: &Backend, request: &Request<'_>) -> bool {
        match backend.protocol {
            Protocol::Tcp | Protocol::Sctp => !request.kind.is_opening(),
            Protocol::Udp => false,
        }
    }
}
