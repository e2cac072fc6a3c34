//! `flowTracking: on-change`: the backend of a packet without an entry, and the flows that need an entry.
//!
//! While a flow is stable, its hash determines the backend of each packet, and there is no entry. For a window after
//! a change, flows whose former owner differs from the current one are in flux. Then a packet that opens a connection
//! goes to the current owner, and any other unknown packet to the former one; both create an entry. UDP doesn't mark
//! the start of a flow, so datagrams go to the current owner at once.
//!
//! If such a service switches to tracking every flow, packets of flows without an entry create one with the former
//! owner for the rest of that window ([`FlowTracking::AlwaysAfter`]). So do flows of other gateways, if the gateways
//! share flows ([`flow_replication`](super::flow_replication)).
//!
//! `fast_path/choice.rs` decides the same while no flow is in flux.
//!
//! [`FlowTracking::AlwaysAfter`]: tidegate_spec::FlowTracking::AlwaysAfter
//!
//! Invariant: the decision depends only on the snapshot, the packet and the entry, so gateways that see the same
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
pub(super) struct Untracked<'s> {
    pub(super) backend: &'s Backend,
    /// The first packet of the entry, if an entry must be created.
    pub(super) to_insert: Option<Packet>,
}

/// The backend of a packet of this kind and selection hash; `None` if there is none.
pub(super) fn choose<'s>(
    snapshot: &'s Snapshot,
    service: &Service,
    kind: Packet,
    hash: u64,
) -> Option<Untracked<'s>> {
    let present = || snapshot.backend(service.select(hash)?);
    let Packet::Tcp(bits) = kind else { return Some(Untracked { backend: present()?, to_insert: None }) };
    let Some(former) = service.selector().former(hash) else {
        return Some(Untracked { backend: present()?, to_insert: None });
    };
    if kind.is_opening() {
        return Some(Untracked { backend: present()?, to_insert: Some(kind) });
    }
    // As after a SYN, the next packet confirms the connection. A reset ends it, so it needs no entry.
    let to_insert = (bits & flags::RST == 0).then_some(Packet::Tcp(flags::SYN));
    let backend = former.and_then(|id| snapshot.backend(id));
    Some(Untracked { backend: backend.or_else(present)?, to_insert })
}

/// Finds the backends of stable flows without an entry, and prefetches them.
#[inline(never)]
pub(super) fn find_stable(snapshot: &Snapshot, requests: &mut Requests<'_>) {
    for request in requests.iter_mut() {
        if request.found.is_known() || !request.service.on_change() {
            continue;
        }
        // Any other selector means that flows are in flux or a backend warms up.
        let Selector::Rendezvous(seats) = request.service.selector() else { continue };
        if let Some(backend) = seats.owner(request.choice_hash) {
            request.found = Found::Stable(backend);
            snapshot.prefetch_backend(backend);
        }
    }
}

impl<'s, F: Frame> Burst<'s, '_, F> {
    /// The backend of a packet of a stable flow without an entry. `None` for other flows, or if
    /// `Pipeline::choose_and_insert` must decide because the packet may have to be refused or counted against a limit.
    #[inline(always)]
    pub(super) fn stable_backend(&self, request: &Request<'_>) -> Option<Chosen<'s>> {
        let Found::Stable(id) = request.found else { return None };
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

/// The former owner of a flow without an entry, if it differs because of a recent change, for packets that don't
/// start a flow.
#[cold]
#[inline(never)]
pub(super) fn former<'s>(snapshot: &'s Snapshot, service: &Service, hash: u64) -> Option<&'s Backend> {
    snapshot.backend(service.selector().former(hash)??)
}
