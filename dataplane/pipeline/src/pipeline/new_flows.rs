//! Creates flows: chooses the backend of a packet whose flow is not known, and inserts the flow entry.
//!
//! It checks that the client is admitted, that the packet may create a flow, that the flow isn't in the share that the
//! service rejects, and that the limits on new flows allow it.
//! Then affinity or the scheduler of the service chooses the backend. Then it creates the entry, with a port from
//! `reply_ports.rs` if the source is translated.
//!
//! The first packets of simple flows take `fast_path/choice.rs` instead.
//!
//! Promises: a refused packet creates no entry, and a flow counts once against limits and as a connection.

use tidegate_conntrack::{NewFlow, Packet};
use tidegate_select::selector::Selector;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::backend::Backend;
use tidegate_snapshot::service::Service;
use tidegate_spec::ForwardingMode;
use tidegate_spec::ids::BackendId;
use tidegate_spec::now::Now;
use tidegate_spec::verdict::Refusal;
use tidegate_wire::{Addr, Headers, sctp};

use super::burst::Burst;
use super::on_change;
use super::output::FlowNote;
use super::passive::Syn;
use super::request::{Chosen, Found, Request};
use super::state::Pipeline;
use crate::frame::Frame;

impl Pipeline {
    /// Chooses a backend for a packet whose flow is not known, or whose backend no longer accepts it, and creates the
    /// flow entry. It is inlined into [`Self::choose_backends`], so that the result stays in registers.
    #[inline(always)]
    pub(super) fn choose_and_insert<'s, F: Frame>(
        &mut self,
        burst: &mut Burst<'s, '_, F>,
        request: &Request<'_>,
    ) -> Result<Chosen<'s>, Refusal> {
        let (snapshot, now, service) = (burst.view.snapshot, burst.now, request.service);
        let h = burst.packets[request.index()].headers;
        let found = match request.found.known() {
            // An earlier packet of this burst may have created the flow.
            None if burst.seen_flows.test_and_set(request.flow_hash) => self.look_up(burst, request),
            found => found.copied(),
        };
        if !request.found.is_known()
            && let Some(known) = found
            && let Some(backend) = snapshot.backend(known.backend)
            && burst.keeps(backend, request, known.syn)
        {
            return Ok(Chosen { backend, local: known.local, flow: FlowNote::Known });
        }
        // From here on, an unknown flow has no entry.
        let updated;
        let request = match found {
            Some(known) if !request.found.is_known() => {
                updated = Request { found: Found::Known(known), ..*request };
                &updated
            }
            _ => request,
        };
        if let Some(fault) = burst.client_fault(burst.frame_of(request.packet), &h, service.mode) {
            return Err(burst.refuse_client(service, fault));
        }
        if snapshot.denies(&h.src) {
            return Err(Refusal::SourceDenied);
        }
        if !snapshot.is_in_range(service, &h.src) {
            return Err(Refusal::SourceRange);
        }
        let stray = request.kind.has_connection() && !request.kind.is_opening();
        // A known flow isn't new, even if it loses its backend or a SYN reopens it.
        if service.limited.rejects_new_flows()
            && !stray
            && found.is_none()
            && snapshot.rejects(service, (&h.src, h.src_port), (&h.dst, h.dst_port), h.proto)
        {
            return Err(Refusal::NoEndpoints);
        }
        let has_backends = !service.selector().is_empty();
        if stray && !service.mode.is_dsr() {
            return if has_backends {
                self.begin_by_cookie(burst, request, &h)
            } else {
                Err(Refusal::NoEndpoints)
            };
        }
        // A packet whose hop limit ends here creates no flow. If there is no backend, the gateway itself is the
        // destination and answers.
        if h.ttl <= 1 && has_backends {
            return Err(Refusal::TtlExceeded);
        }
        if found.is_none() && has_backends && self.needs_cookie(service, now) {
            return Err(Refusal::SynCookie);
        }
        self.insert_flow(burst, request, &h)
    }

    /// Creates the flow of a packet, if the limits on new flows allow it.
    #[inline(always)]
    pub(super) fn insert_flow<'s, F: Frame>(
        &mut self,
        burst: &mut Burst<'s, '_, F>,
        request: &Request<'_>,
        h: &Headers,
    ) -> Result<Chosen<'s>, Refusal> {
        let (snapshot, now, service) = (burst.view.snapshot, burst.now, request.service);
        let stray = request.kind.has_connection() && !request.kind.is_opening();
        let has_backends = !service.selector().is_empty();
        if (service.limited.of_new_flows() || snapshot.limits_sources()) && !stray && has_backends
            // Without entries, only a SYN certainly starts a flow.
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
                // A reset of an unknown flow needs no entry. If the table is full and the hash chooses the backend, the
                // flow can only move when the owner of its hash changes. The table has counted the missing entry.
                if !request.kind.is_ending() {
                    let flow = request.new_flow(backend.id, idle, now);
                    let inserted = if request.found.is_known() {
                        self.flows.dsr.insert(&flow)
                    } else {
                        self.flows.dsr.insert_new(&flow)
                    };
                    // Without an entry, the next packet could go to another backend.
                    if inserted.is_err() && service.selector().depends_on_worker() {
                        return Err(Refusal::FlowTableFull);
                    }
                }
                None
            }
            // A backend that is its own client would answer itself directly, and not from the VIP. With one of our
            // addresses as the source, the answer returns through the gateway.
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
            self.store_syn(burst, request.index(), flow, request.found.is_known(), backend);
        }
        if request.kind == Packet::Sctp(sctp::Kind::Init) {
            self.begin_association(burst, request, backend.id);
        }
        burst.view.tallies.connected(backend.id);
        Ok(Chosen { backend, local, flow: FlowNote::New })
    }

    /// Creates the flow of a service that tracks on change, if it needs an entry: see [`on_change`].
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
        let on_change::Untracked { backend, to_insert } = chosen;
        if to_insert.is_none() && request.found.is_known() {
            // The entry of an earlier connection with the same ports would misdirect later packets.
            self.flows.dsr.remove(&request.key, request.flow_hash);
        }
        if let Some(first) = to_insert {
            // If the table is full, the flow moves at the end of the window after the change. The table has counted
            // the missing entry.
            let flow = request.new_flow(backend.id, service.idle, burst.now);
            let _ = self.flows.dsr.insert(&NewFlow { packet: first, ..flow });
            self.flows.dsr.journal_new_flow(&request.key);
        }
        if request.kind.is_opening() {
            burst.view.tallies.connected(backend.id);
            return Ok(Chosen { backend, local: None, flow: FlowNote::New });
        }
        let flow = if to_insert.is_some() { FlowNote::Known } else { FlowNote::None };
        Ok(Chosen { backend, local: None, flow })
    }

    /// Chooses the backend of a new flow: by the client's affinity, otherwise by the hash.
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
            return snapshot.backend(self.select_healthy(snapshot, service, choice_hash, now)?);
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

    /// [`Self::select`] for selectors other than rendezvous hashing.
    #[inline(never)]
    fn select_otherwise(&mut self, service: &Service, choice_hash: u64) -> Option<BackendId> {
        match service.selector() {
            Selector::Rendezvous(_) | Selector::InFlux(_) | Selector::Maglev(_) | Selector::WarmUp(_) => {
                service.select(choice_hash)
            }
            Selector::RoundRobin(round_robin) => self.schedule.next_in_ring(service.id, round_robin),
            Selector::Loads(loaded) => self.schedule.least(service, loaded, &mut self.flows),
        }
    }

    /// Counts a new flow against the limits of its source and of its Service. The source's limit is checked first, so
    /// that one source can't use up the rate of the Service. A flow that only changes its backend is not new.
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
}
