//! Chooses the backend of a new flow after backends have failed, and records failures: see [`super::passive`].
//!
//! The next backend is the one that the flow would get if the backends that it has tried or that are set aside didn't
//! exist. So it's nearly always the backend that the flow gets once health checks have removed those.

use tidegate_conntrack::{FlowHash, FlowKey, Packet, Tried};
use tidegate_select::selector::Selector;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::backend::Backend;
use tidegate_snapshot::service::Service;
use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::limits::MAGLEV_TRIES;
use tidegate_spec::now::Now;
use tidegate_spec::{BackendState, PassiveHealth};
use tidegate_structures::hash::mix;
use tidegate_wire::Addr;
use tidegate_wire::tcp::flags;

use super::burst::{Burst, Packet as CheckedPacket};
use super::passive::ReceivedSyn;
use super::request::Request;
use super::state::Pipeline;
use crate::frame::Frame;
use crate::set_aside::SetAside;

impl Pipeline {
    /// Stores the SYN that a flow sends to its first backend, or, if it `is_known`, to another one.
    #[inline(never)]
    pub(super) fn store_syn<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        packet: usize,
        (flow, hash): (&FlowKey, FlowHash),
        is_known: bool,
        backend: &Backend,
    ) {
        let CheckedPacket { headers, frame, .. } = &burst.packets[packet];
        let frame = burst.frames[usize::from(*frame)].bytes();
        let syn = ReceivedSyn { frame, headers, interface: burst.arrival.interface(), flow, hash };
        self.passive.store_syn(&syn, is_known, backend.id);
    }

    /// The backend of a new flow: the usual one, unless it has failed.
    #[inline]
    pub(super) fn select_healthy(
        &mut self,
        snapshot: &Snapshot,
        service: &Service,
        choice_hash: u64,
        now: Now,
    ) -> Option<BackendId> {
        if !service.passive || self.passive.is_idle() {
            return self.select(service, choice_hash);
        }
        self.select_other(snapshot, service, choice_hash, now)
    }

    #[cold]
    #[inline(never)]
    fn select_other(
        &mut self,
        snapshot: &Snapshot,
        service: &Service,
        choice_hash: u64,
        now: Now,
    ) -> Option<BackendId> {
        let chosen = match self.passive.next.take() {
            Some(next) => next,
            None => {
                let usual = self.select(service, choice_hash)?;
                if self.passive.aside.blocks(usual, now) {
                    // If there is no other backend, the usual one may still answer.
                    self.next_backend(service, choice_hash, &[], now).unwrap_or(usual)
                } else {
                    usual
                }
            }
        };
        if let Some(rules) = rules(snapshot, service.id) {
            self.passive.aside.record_new_flow(chosen, &rules, now);
        }
        Some(chosen)
    }

    /// The backend that a flow would get if the backends that are in `tried` or set aside didn't exist.
    pub(super) fn next_backend(
        &mut self,
        service: &Service,
        choice_hash: u64,
        tried: &[BackendId],
        now: Now,
    ) -> Option<BackendId> {
        let Self { passive, schedule, flows, .. } = self;
        let usable = |id: BackendId| !tried.contains(&id) && !passive.aside.blocks(id, now);
        match service.selector().selector_for(choice_hash) {
            Selector::Rendezvous(seats) => seats.owner_where(choice_hash, usable),
            Selector::InFlux(both) => both.present.owner_where(choice_hash, usable),
            Selector::Maglev(maglev) => {
                let first = maglev.slot_of(choice_hash);
                let next = (0..maglev.len().min(MAGLEV_TRIES)).map(|n| (first + n) % maglev.len());
                next.filter_map(|slot| maglev.owner(slot)).find(|&id| usable(id))
            }
            Selector::RoundRobin(round_robin) => {
                let next = (0..round_robin.len().min(MAGLEV_TRIES))
                    .filter_map(|_| schedule.next_in_ring(service.id, round_robin));
                next.into_iter().find(|&id| usable(id))
            }
            Selector::Loads(loaded) => schedule.least_where(service, loaded, flows, usable),
            Selector::WarmUp(both) => both.all().seats()?.owner_where(choice_hash, usable),
        }
    }

    pub(super) fn failed(&mut self, snapshot: &Snapshot, backend: &Backend, client: &Addr, now: Now) {
        let Some(rules) = rules(snapshot, backend.service) else { return };
        let may_set_aside = |aside: &SetAside| may_set_aside(snapshot, backend.service, &rules, aside);
        self.passive.aside.failed(backend.id, source_of(client), &rules, now, may_set_aside);
    }

    /// Records that a backend has answered a SYN.
    #[cold]
    #[inline(never)]
    pub(super) fn note_answer(&mut self, kind: Packet, backend: BackendId) {
        const ANSWER: u8 = flags::SYN | flags::ACK;
        if matches!(kind, Packet::Tcp(f) if f & (ANSWER | flags::RST) == ANSWER) {
            self.passive.aside.answered(backend);
        }
    }

    /// Whether a flow leaves its backend because its client repeats the SYN and the backend hasn't answered.
    #[cold]
    #[inline(never)]
    pub(super) fn leaves_unresponsive<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        request: &Request<'_>,
        backend: &Backend,
    ) -> bool {
        let (snapshot, service, now) = (burst.view.snapshot, request.service, burst.now);
        let (key, hash) = (&request.key, request.flow_hash);
        // The backend's answer may be in this burst, since both ends retransmit after a second. The client gets that
        // answer, so the connection stays with this backend.
        if !service.passive || !self.flows.nat.awaits_answer(key, hash, now) {
            return false;
        }
        let h = &burst.packets[request.index()].headers;
        self.failed(snapshot, backend, &h.src, now);
        let tried = self.tried(key, hash, backend.id);
        let choice = request.choice_hash(snapshot, h);
        self.passive.next = self
            .next_backend(service, choice, &tried, now)
            // All backends have been tried, so any except the last one will do.
            .or_else(|| self.next_backend(service, choice, &[backend.id], now));
        self.passive.next.is_some()
    }

    /// The backends that a flow has tried.
    pub(super) fn tried(&self, flow: &FlowKey, hash: FlowHash, last: BackendId) -> Tried {
        match self.passive.syns.get(flow, hash) {
            Some((syn, _)) => syn.tried.clone(),
            None => [last].into_iter().collect(),
        }
    }
}

/// A hash of a client: of an IPv4 address, or of the /64 of an IPv6 address.
fn source_of(client: &Addr) -> u16 {
    let [first, second] = [0, 8].map(|at| {
        let half = client.bytes().get(at..).and_then(|bytes| bytes.first_chunk().copied());
        half.map_or(0, u64::from_be_bytes)
    });
    mix(if client.is_v4() { mix(first) ^ second } else { first }) as u16
}

/// The rules of a Service with passive health.
pub(super) fn rules(snapshot: &Snapshot, service: ServiceId) -> Option<PassiveHealth> {
    snapshot.service_info(service)?.passive_health
}

/// Whether one more backend of a Service may be set aside.
fn may_set_aside(snapshot: &Snapshot, service: ServiceId, rules: &PassiveHealth, aside: &SetAside) -> bool {
    let Some(info) = snapshot.service_info(service) else { return false };
    let accepting =
        info.backends.iter().filter(|one| one.state == BackendState::Active && one.weight > 0).count();
    let of_service = |id: &&BackendId| {
        aside.contains(**id) && snapshot.backend(**id).is_some_and(|backend| backend.service == service)
    };
    let set_aside = aside.marked().iter().filter(of_service).count();
    (set_aside + 1) * 100 <= accepting * usize::from(rules.share_max)
}
