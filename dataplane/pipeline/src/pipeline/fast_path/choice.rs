//! Fast path for packets whose flow has no entry: the hash of a packet selects its backend.
//!
//! If the service tracks on change (`flowTracking: on-change`) and none of its flows is in flux, no table is read and
//! no entry is needed. If the service has an entry for each flow, a datagram or a SYN creates one, unless an option of
//! the service prevents it ([`FastPath`]). Without translation, the entry is written after the packet is sent, so that
//! a deferred packet has none. With translation, `bind.rs` creates the flow.
//!
//! Invariant: [`on_change`](crate::pipeline::on_change) and `Pipeline::choose_and_insert` would decide the same.

use tidegate_conntrack::{Bucket, FlowTables, SteadyKey, SteadyTables};
use tidegate_select::rendezvous::Rendezvous;
use tidegate_select::selector::Selector;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::service::{Entries, FastPath, Service};
use tidegate_spec::now::Now;
use tidegate_wire::usual::addr;
use tidegate_wire::{proto, tcp};

use super::family::{Families, Family};
use super::flow_locality::LocalWorker;
use super::flow_order::BurstFlows;
use super::item::{Action, Actions, FlowEntry, Item, kind_of};
use crate::pipeline::view::View;

/// Pass 2 for a packet to a service that tracks on change. If the client's flows may have entries, the packet is looked
/// up. Otherwise no packet changes any state, even if it starts or ends a connection.
#[inline(never)]
pub(super) fn match_on_change<const A: usize>(
    snapshot: &Snapshot,
    flows: &FlowTables,
    service: &Service,
    deferred: &mut BurstFlows,
    item: &mut Item<A>,
    actions: &mut Actions,
) where
    FlowTables: SteadyTables<A>,
    Families: Family<A>,
{
    let packet = &item.packet;
    let key = SteadyKey::flow(service.id, packet.src, packet.src_port());
    let is_deferred = deferred.may_have(packet) || service.fast_path == FastPath::Off;
    if flows.has_dsr_flows_of(&key) {
        if deferred.admits(packet) && !is_deferred {
            item.flow_hash = flows.steady_hash(&key);
            flows.prefetch_dsr(item.flow_hash, Bucket::First);
            item.action = Action::Dsr;
            actions.dsr = true;
        }
        return;
    }
    let is_checked = packet.flags & tcp::flags::SYN != 0 && service.fast_path != FastPath::New;
    if !(is_deferred || is_checked) {
        prepare_untracked(snapshot, service, item, actions);
    }
    if item.action == Action::Stages && item.packet.controls() {
        deferred.add(&item.packet);
    }
}

/// Pass 2 for a packet that starts or ends a connection, to a service that doesn't track on change. Later packets of
/// the flow in the burst are deferred. `translates` is whether NAT flows may take the fast path.
#[inline(never)]
pub(super) fn match_opening<const A: usize>(
    flows: &FlowTables,
    service: &Service,
    (local_worker, translates): (&LocalWorker<'_>, bool),
    deferred: &mut BurstFlows,
    item: &mut Item<A>,
    actions: &mut Actions,
) where
    FlowTables: SteadyTables<A>,
{
    let packet = &item.packet;
    let is_deferred = deferred.may_have(packet);
    deferred.add(packet);
    if is_deferred || service.fast_path != FastPath::New || !kind_of(packet).is_opening() {
        return;
    }
    let hash = flows.steady_hash(&SteadyKey::flow(service.id, packet.src, packet.src_port()));
    if service.entries == Entries::Pairs {
        if !(translates && local_worker.owns_request(service, packet)) {
            return;
        }
        flows.prefetch_nat(hash, Bucket::First);
        item.action = Action::OpeningPair;
    } else {
        flows.prefetch_dsr(hash, Bucket::First);
        item.action = Action::Opening;
    }
    (item.service, item.flow_hash) = (service.id, hash);
    actions.opening = true;
}

/// The seats that determine the backend of a packet without an entry. While flows are in flux, a service with an entry
/// for each flow uses the seats of new flows. `None` if a flow in flux may have no entry, or a backend warms up.
#[inline(always)]
fn deciding_seats(service: &Service) -> Option<&Rendezvous> {
    match service.selector() {
        Selector::Rendezvous(seats) => Some(seats),
        _ => seats_in_flux(service),
    }
}

#[cold]
#[inline(never)]
fn seats_in_flux(service: &Service) -> Option<&Rendezvous> {
    match service.selector() {
        Selector::InFlux(both) if !service.on_change() => Some(&both.present),
        _ => None,
    }
}

/// Prefetches what the choice of a backend reads for a packet without an entry, if the hash decides and the source may
/// be a client.
#[inline(always)]
fn prepare_choice<const A: usize>(
    snapshot: &Snapshot,
    service: &Service,
    entry: FlowEntry,
    item: &mut Item<A>,
    actions: &mut Actions,
) where
    Families: Family<A>,
{
    let packet = &item.packet;
    let Some(seats) = deciding_seats(service) else { return };
    let (src, dst) = (addr(packet.src), addr(packet.dst));
    if snapshot.admits(service, &src) && Families::is_client_of_any(snapshot, packet.src) {
        let (from, to) = ((&src, packet.src_port()), (&dst, packet.dst_port()));
        item.choice_hash = snapshot.choice_hash(service, from, to, packet.proto);
        seats.prefetch();
        (item.entry, item.action, item.idle) = (entry, Action::Chosen, service.idle);
        actions.chosen = true;
    }
}

/// [`prepare_choice`] for a packet whose flow needs no entry.
#[inline(always)]
fn prepare_untracked<const A: usize>(
    snapshot: &Snapshot,
    service: &Service,
    item: &mut Item<A>,
    actions: &mut Actions,
) where
    Families: Family<A>,
{
    let opens = kind_of(&item.packet).is_opening();
    let entry = if opens { FlowEntry::UnneededByOpening } else { FlowEntry::Unneeded };
    prepare_choice(snapshot, service, entry, item, actions);
}

/// Prepares the choice of a backend for a packet whose flow has no entry, if its service tracks on change or the packet
/// creates the flow ([`match_opening`] has checked SYNs). Defers other packets.
#[inline(always)]
pub(super) fn prepare_unknown<const A: usize>(snapshot: &Snapshot, item: &mut Item<A>, actions: &mut Actions)
where
    Families: Family<A>,
{
    let action = std::mem::take(&mut item.action);
    if action == Action::ToClient {
        return;
    }
    let Some(service) = snapshot.service_by_id(item.service) else { return };
    let is_opening = matches!(action, Action::Opening | Action::OpeningPair);
    if service.on_change() {
        prepare_untracked(snapshot, service, item, actions);
    } else if is_opening || item.packet.proto == proto::UDP && service.fast_path == FastPath::New {
        let is_pair = service.entries == Entries::Pairs;
        let entry = if is_pair { FlowEntry::CreatedPair } else { FlowEntry::Created };
        prepare_choice(snapshot, service, entry, item, actions);
    }
}

/// Pass 3 for packets without an entry: stores the backend that the hash selects.
#[inline(never)]
pub(super) fn choose<const A: usize>(snapshot: &Snapshot, items: &mut [Item<A>], actions: &mut Actions) {
    let mut created = BurstFlows::default();
    for item in items.iter_mut().filter(|item| item.action == Action::Chosen) {
        item.action = Action::Stages;
        let service = snapshot.service_by_id(item.service);
        let Some(seats) = service.and_then(deciding_seats) else { continue };
        let Some(backend) = seats.owner(item.choice_hash) else { continue };
        // A second SYN of a flow is deferred in pass 2.
        if item.entry >= FlowEntry::Created && item.packet.proto == proto::UDP {
            // The stages find the entry of an earlier packet of the flow.
            if created.may_have(&item.packet) {
                continue;
            }
            created.add(&item.packet);
        }
        snapshot.prefetch_backend(backend);
        item.backend = backend;
        if item.entry == FlowEntry::CreatedPair {
            item.action = Action::Binding;
            actions.binding = true;
        } else {
            item.action = Action::Dsr;
            actions.dsr = true;
        }
    }
}

/// Counts the flows without translation whose first packet was sent, and inserts those that need an entry.
#[inline(never)]
pub(super) fn insert_flows<const A: usize>(
    view: &View<'_>,
    flows: &mut FlowTables,
    items: &[Item<A>],
    sent: u32,
    now: Now,
) where
    FlowTables: SteadyTables<A>,
{
    for item in items.iter().filter(|item| item.action == Action::Dsr && item.is_new()) {
        if sent >> (u32::from(item.at) % u32::BITS) & 1 == 0 {
            continue;
        }
        view.tallies.connected(item.backend);
        if item.entry == FlowEntry::Created {
            // If the table is full, the flow may move when the owner of its hash changes. The table has counted the
            // missing entry.
            let _ = flows.create_dsr(&item.new_flow(now));
        }
    }
}
