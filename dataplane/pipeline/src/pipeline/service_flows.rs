//! Packets from clients to service ports: finds the flow's backend, or chooses one (`new_flows.rs`).
//!
//! Stages 2 to 4 of the pipeline for this direction. The hash bucket of a packet's flow is prefetched, then read. A
//! hit prefetches the backend; a miss prefetches the data for the choice. Then the packet is delivered to the
//! backend, or it is answered because there is no backend.
//!
//! Plain packets take `fast_path/find.rs` instead.
//!
//! Promises: packets of one flow are recorded in order, and each request is delivered or gets a verdict.

use arrayvec::ArrayVec;
use tidegate_conntrack::{First, FlowKey, Packet};
use tidegate_snapshot::backend::Backend;
use tidegate_snapshot::service::{Entries, Service};
use tidegate_spec::ids::BackendId;
use tidegate_spec::limits::BURST;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_spec::{BackendState, NoEndpoints, Protocol};
use tidegate_wire::icmp::Problem;
use tidegate_wire::rewrite::Endpoint;
use tidegate_wire::{Headers, proto};

use super::burst::{Burst, Delivery, Destination};
use super::on_change;
use super::output::FlowNote;
use super::owners::RssDistribution;
use super::passive::Syn;
use super::request::{Chosen, Found, Known, Request, Requests, choice_hash, kind_of};
use super::state::Pipeline;
use super::view::Arrival;
use crate::frame::Frame;

impl Pipeline {
    /// Stage 2: builds the flow key of a packet to `service` and prefetches its hash bucket.
    ///
    /// # Errors
    /// The verdict, if another worker owns the flow.
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
                RssDistribution::of(h, self.snat_ports.steering()),
            ) {
                self.check_owner(owner, arrival, h.proto)?;
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
            if let Some(backend) = self.look_up_first(burst, request) {
                burst.view.snapshot.prefetch_backend(backend);
            }
        }
        let mut any_on_change = false;
        for request in requests.iter_mut().filter(|request| !request.found.is_known()) {
            // A service that tracks on change usually has no entries, so no table needs to be read.
            if !request.service.on_change() || self.flows.dsr.has_flows_of(&request.key) {
                request.found = self.look_up_second(burst, request).into();
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
            on_change::find_stable(burst.view.snapshot, requests);
        }
    }

    /// Stores the entry of the first hash bucket of the flow in the request, and returns the backend.
    #[inline(always)]
    fn look_up_first<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        request: &mut Request<'_>,
    ) -> Option<BackendId> {
        let Request { key, flow_hash, kind, service, .. } = request;
        match service.entries {
            Entries::Pairs => return self.look_up_first_nat(burst, request),
            Entries::InFlux if !self.flows.dsr.has_flows_of(key) => return None,
            Entries::EachFlow | Entries::InFlux => {}
        }
        match self.flows.dsr.lookup_first(key, *flow_hash, *kind, burst.now) {
            First::Steady(backend) => {
                request.found = Found::Known(Known { backend, local: None, syn: Syn::No });
                Some(backend)
            }
            First::Present => self.look_up_now(burst, request),
            First::Absent => None,
        }
    }

    #[inline(never)]
    fn look_up_first_nat<F: Frame>(
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
            First::Present => self.look_up_now(burst, request),
            First::Absent => None,
        }
    }

    /// Looks up the flow of a packet that changes it immediately: packets of one flow must be recorded in order.
    #[inline(never)]
    fn look_up_now<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        request: &mut Request<'_>,
    ) -> Option<BackendId> {
        request.found = self.look_up(burst, request).into();
        request.found.known().map(|known| known.backend)
    }

    /// Looks up the flow of a request and records the packet in it.
    pub(super) fn look_up<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        request: &Request<'_>,
    ) -> Option<Known> {
        let Request { key, flow_hash, kind, service, .. } = request;
        let (kind, now) = (*kind, burst.now);
        if let Packet::Sctp(_) = kind {
            return self.look_up_association(burst, request);
        }
        if service.mode.is_dsr() {
            self.flows.dsr.lookup(key, *flow_hash, kind, now).map(Known::from)
        } else {
            let hit = self.flows.nat.lookup(key, *flow_hash, kind, now)?;
            Some(Known::translated(&hit, service.mode, key, burst.view.snapshot))
        }
    }

    /// [`Self::look_up`] for a flow that is not in its first hash bucket.
    fn look_up_second<F: Frame>(&mut self, burst: &Burst<'_, '_, F>, request: &Request<'_>) -> Option<Known> {
        let Request { key, flow_hash, kind, service, .. } = request;
        let (kind, now) = (*kind, burst.now);
        if let Packet::Sctp(_) = kind {
            return self.look_up_association(burst, request);
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
        // Borrow from the snapshot, not from the burst, so that the burst stays mutable.
        let snapshot = burst.view.snapshot;
        // Known flows for which a packet of this burst opened a new connection: their later packets must look up the
        // new one.
        let mut reopened = ArrayVec::<FlowKey, BURST>::new();
        for request in requests {
            // The usual packet has its own branch, so that its backend stays in registers.
            if reopened.is_empty()
                && let Found::Known(Known { backend, local, syn: Syn::No }) = &request.found
                && let Some(backend) = snapshot.backend(*backend)
                && backend.state != BackendState::Down
            {
                burst.send_to(request, backend, *local, FlowNote::Known);
                continue;
            }
            let again = if reopened.is_empty() || !reopened.contains(&request.key) {
                None
            } else {
                Some(self.look_up(burst, request))
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
                    self.keep_or_retry(burst, request, found.copied())
                }
                None => match burst.stable_backend(request) {
                    Some(stable_backend) => Ok(stable_backend),
                    None => self.choose_and_insert(burst, request),
                },
            };
            let at = burst.frame_of(request.packet);
            match chosen {
                Ok(Chosen { backend, local, flow }) => {
                    if flow == FlowNote::New && request.found.is_known() {
                        reopened.push(request.key);
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
                    self.refuse_undeliverable(burst, at, &h, 0, 0);
                }
                Err(refusal) => burst.set(at, refusal),
            }
        }
    }

    /// Processes a repeated SYN: its flow gets another backend if there is one.
    #[cold]
    #[inline(never)]
    fn keep_or_retry<'s, F: Frame>(
        &mut self,
        burst: &mut Burst<'s, '_, F>,
        request: &Request<'s>,
        found: Option<Known>,
    ) -> Result<Chosen<'s>, Refusal> {
        if let Some(known) = found
            && let Some(backend) = burst.view.snapshot.backend(known.backend)
            && burst.keeps(backend, request, Syn::No)
            && !self.leaves_unresponsive(burst, request, backend)
        {
            return Ok(Chosen { backend, local: known.local, flow: FlowNote::Known });
        }
        let chosen = self.choose_and_insert(burst, request);
        self.passive.clear_choice();
        chosen
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

    /// Processes a packet of a connection that this gateway doesn't know: its state was lost, or never existed here.
    /// SCTP gets no answer: the packet may come from another address of a live association, which an ABORT would end.
    #[cold]
    fn no_flow<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>, at: usize, request: &Request<'_>) {
        if let Some(worker) = self.worker_of_association(burst, request) {
            return burst.set(at, Verdict::HandOver(worker));
        }
        let h = burst.packets[request.index()].headers;
        let may_reset = burst.view.snapshot.policy().reset_unknown_flows && h.proto == proto::TCP;
        let answered = may_reset && self.reset(burst, at, &h);
        burst.answer_or(at, answered, TransmitReason::NoFlow, Refusal::NoFlow);
    }
}

impl<'s, F: Frame> Burst<'s, '_, F> {
    /// Passes a packet to the last stage, and prefetches the next hop.
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

    /// Whether a known flow stays with its backend (see [`BackendState`]). A reopened connection is a new flow, and a
    /// repeated SYN may leave its backend. A SYN or INIT to a backend that is down belongs to no connection yet.
    #[inline]
    pub(super) fn keeps(&self, backend: &Backend, request: &Request<'_>, syn: Syn) -> bool {
        match backend.state {
            _ if syn != Syn::No => false,
            BackendState::Active | BackendState::Draining => true,
            BackendState::Down => self.keeps_to_down(backend, request),
        }
    }

    /// [`Self::keeps`] for a backend that is down.
    #[cold]
    fn keeps_to_down(&self, backend: &Backend, request: &Request<'_>) -> bool {
        match backend.protocol {
            Protocol::Tcp | Protocol::Sctp => !request.kind.is_opening(),
            Protocol::Udp => false,
        }
    }
}
