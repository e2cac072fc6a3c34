//! `flowTracking: on-change`: which backend a packet without an entry goes to, and which flows are remembered.
//!
//! While the owner of a flow is settled, its hash gives the backend of each packet, and nothing is remembered. For a
//! window after a change, flows whose former owner is not the present one are in flux. A packet that begins a
//! connection then goes to the present owner, and any other unknown packet to the former one; both are remembered.
//! Datagrams have no beginning, so they go to the present owner at once.
//!
//! If such a service begins to track always, its flows without an entry are remembered with their former owners for the
//! rest of that window ([`FlowTracking::AlwaysAfter`]). So are those that another gateway had, if the gateways share flows.
//!
//! Gateways can tell each other about such flows ([`flow_replication`](super::flow_replication)).
//!
//! [`FlowTracking::AlwaysAfter`]: tidegate_spec::FlowTracking::AlwaysAfter
//!
//! Invariant: the decision is a function of the snapshot, the packet and the entry, so gateways that see the same
//! changes decide alike.

use tidegate_conntrack::Packet;
use tidegate_select::selector::Selector;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::backend::Backend;
use tidegate_snapshot::service::Service;
use tidegate_wire::tcp::flags;

use super::burst::{Burst, Packet as CheckedPacket};
use super::output::FlowNote;
use super::request::{Chosen, Found, Request, Requests};
use crate::frame::Frame;

/// The decision on a packet without an entry.
pub(super) struct Unremembered<'s> {
    pub(super) backend: &'s Backend,
    /// The first packet of the entry to create, if the flow is remembered.
    pub(super) remember: Option<Packet>,
}

/// The backend of a packet of this kind and selection hash; `None` if there is none.
pub(super) fn choose<'s>(
    snapshot: &'s Snapshot,
    service: &Service,
    kind: Packet,
    hash: u64,
) -> Option<Unremembered<'s>> {
    let present = || snapshot.backend(service.select(hash)?);
    let Packet::Tcp(bits) = kind else { return Some(Unremembered { backend: present()?, remember: None }) };
    let Some(former) = service.selector().former(hash) else {
        return Some(Unremembered { backend: present()?, remember: None });
    };
    if kind.is_opening() {
        return Some(Unremembered { backend: present()?, remember: Some(kind) });
    }
    // Its next packet shows that the connection exists, as after a SYN. A reset ends it, so nothing is remembered.
    let remember = (bits & flags::RST == 0).then_some(Packet::Tcp(flags::SYN));
    let backend = former.and_then(|id| snapshot.backend(id));
    Some(Unremembered { backend: backend.or_else(present)?, remember })
}

/// Finds the backends of flows that are settled and have no entry, and prefetches them.
#[inline(never)]
pub(super) fn settle(snapshot: &Snapshot, requests: &mut Requests<'_>) {
    for request in requests.iter_mut() {
        if request.found.is_known() || !request.service.on_change() {
            continue;
        }
        // With any other selector, something is in flux or warms up.
        let Selector::Rendezvous(seats) = request.service.selector() else { continue };
        if let Some(backend) = seats.owner(request.choice_hash) {
            request.found = Found::Settled(backend);
            snapshot.prefetch_backend(backend);
        }
    }
}

impl<'s, F: Frame> Burst<'s, '_, F> {
    /// The backend of a packet whose flow is settled and has no entry. `None` if it is no such flow, or if
    /// [`Pipeline::begin`] must decide because the packet may have to be refused or counted against a limit.
    #[inline(always)]
    pub(super) fn settled(&self, request: &Request<'_>) -> Option<Chosen<'s>> {
        let Found::Settled(id) = request.found else { return None };
        let (service, snapshot) = (request.service, self.view.snapshot);
        let CheckedPacket { headers: h, frame, .. } = &self.packets[request.index()];
        let opens = request.kind.is_opening();
        let is_limited = opens && (service.limited.of_new_flows() || snapshot.limits_sources());
        if is_limited
            || h.ttl <= 1
            || snapshot.denies(&h.src)
            || !snapshot.is_in_range(service, &h.src)
            || self.client_fault(usize::from(*frame), h, service.mode).is_some()
        {
            return None;
        }
        let backend = snapshot.backend(id)?;
        if opens {
            self.view.tallies.connected(backend.id);
        }
        let flow = if opens { FlowNote::New } else { FlowNote::None };
        Some(Chosen { backend, local: None, flow })
    }
}

/// The backend of a packet that begins no flow and has no entry, if the flow had another owner before a recent change; `None`
/// if it is the usual one.
#[cold]
#[inline(never)]
pub(super) fn former<'s>(snapshot: &'s Snapshot, service: &Service, hash: u64) -> Option<&'s Backend> {
    snapshot.backend(service.selector().former(hash)??)
}
