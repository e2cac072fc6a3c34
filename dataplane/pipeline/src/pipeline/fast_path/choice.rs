//! Fast path for packets whose flow has no entry: the hash of a packet selects its backend.
//!
//! If the service tracks on change (`flowTracking: on-change`) and none of its flows is in flux, no table is read and
//! no entry is needed. If the service has an entry for each flow, a datagram or a SYN creates one, unless a limit,
//! affinity or another rule applies. The entry is written after the packet is sent, so that a deferred packet has none.
//! With `nat`, a datagram creates a flow under the same conditions, if its client's own port is free and no other flow
//! must be evicted.
//!
//! Invariant: [`on_change`](crate::pipeline::on_change) and `Pipeline::choose_and_insert` would decide the same.

use tidegate_conntrack::{Bucket, FlowHash, FlowTables, NewFlow, Packet, SteadyKey, SteadyTables};
use tidegate_select::rendezvous::Rendezvous;
use tidegate_select::selector::Selector;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::service::{Entries, Service};
use tidegate_spec::ForwardingMode;
use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::now::Now;
use tidegate_wire::usual::{Usual, addr, words};
use tidegate_wire::{proto, tcp};

use super::family::{Families, Family};
use super::flow_order::Deferred;
use super::item::{Action, Actions, Item};
use super::send::reachable;
use crate::pipeline::view::View;

/// Pass 2 for a packet to a service that tracks on change. If the client's flows may have entries, the packet is looked
/// up. Otherwise no packet changes any state, even if it starts or ends a connection.
#[inline(never)]
pub(super) fn match_on_change<const A: usize>(
    snapshot: &Snapshot,
    flows: &FlowTables,
    service: &Service,
    deferred: &mut Deferred,
    item: &mut Item<A>,
    actions: &mut Actions,
) where
    FlowTables: SteadyTables<A>,
    Families: Family<A>,
{
    let packet = &item.packet;
    let key = SteadyKey::flow(service.id, packet.src, packet.src_port());
    let is_deferred = deferred.may_have(packet) || service.limited.of_bandwidth();
    if flows.has_dsr_flows_of(&key) {
        if deferred.admits(packet) && !is_deferred {
            item.hash = flows.steady_hash(&key);
            flows.prefetch_dsr(item.hash, Bucket::First);
            item.action = Action::Dsr;
            actions.dsr = true;
        }
        return;
    }
    // A SYN may count against a limit, and its segment size may have to be reduced.
    let is_checked = packet.flags & tcp::flags::SYN != 0
        && (service.mss_limit != 0 || service.limited.of_new_flows() || snapshot.limits_sources());
    if !(is_deferred || is_checked) {
        prepare_choice(snapshot, service, item, actions);
    }
    if item.action == Action::Stages && item.packet.controls() {
        deferred.add(&item.packet);
    }
}

/// Pass 2 for a packet that starts or ends a connection, to a service that doesn't track on change. Later packets of
/// the flow in the burst are deferred.
#[inline(never)]
pub(super) fn match_opening<const A: usize>(
    snapshot: &Snapshot,
    flows: &FlowTables,
    service: &Service,
    deferred: &mut Deferred,
    item: &mut Item<A>,
    actions: &mut Actions,
) where
    FlowTables: SteadyTables<A>,
{
    let packet = &item.packet;
    let is_deferred = deferred.may_have(packet);
    deferred.add(packet);
    let is_considered = service.entries == Entries::EachFlow && !service.limited.of_bandwidth();
    if is_deferred || !is_considered || !may_create(snapshot, service, packet) {
        return;
    }
    let key = SteadyKey::flow(service.id, packet.src, packet.src_port());
    item.hash = flows.steady_hash(&key);
    flows.prefetch_dsr(item.hash, Bucket::First);
    (item.id, item.action) = (service.id.raw(), Action::Opening);
    actions.opening = true;
}

/// The part of a packet that affects the state of its flow.
#[inline(always)]
fn kind_of<const A: usize>(packet: &Usual<A>) -> Packet {
    if packet.proto == proto::TCP { Packet::Tcp(packet.flags) } else { Packet::Datagram }
}

/// Whether a packet of an unknown flow creates one, and the hash alone determines its backend.
fn may_create<const A: usize>(snapshot: &Snapshot, service: &Service, packet: &Usual<A>) -> bool {
    let kind = kind_of(packet);
    (!kind.has_connection() || kind.is_opening() && service.mss_limit == 0)
        && service.affinity_ms == 0
        && !service.passive
        && !service.limited.of_new_flows()
        && !snapshot.limits_sources()
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
/// be a client. In the item, the hash for the choice replaces the hash of the flow.
#[inline(always)]
fn prepare_choice<const A: usize>(
    snapshot: &Snapshot,
    service: &Service,
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
        let hash = snapshot.choice_hash(service, from, to, packet.proto);
        (item.flow_hash, item.hash) = (item.hash, hash);
        seats.prefetch();
        item.action = Action::Chosen;
        actions.chosen = true;
    }
}

/// Prepares the choice of a backend for a packet whose flow has no entry, if its service tracks on change or the packet
/// creates the flow ([`match_opening`] has checked SYNs). Defers other packets.
pub(super) fn prepare_without_entry<const A: usize>(
    snapshot: &Snapshot,
    item: &mut Item<A>,
    actions: &mut Actions,
) where
    Families: Family<A>,
{
    let is_checked = item.action == Action::Opening;
    item.action = Action::Stages;
    let Some(service) = snapshot.service_by_id(ServiceId::from_raw(item.id)) else { return };
    if service.on_change() {
        prepare_choice(snapshot, service, item, actions);
    } else if is_checked || may_create(snapshot, service, &item.packet) {
        item.service = Item::<A>::CREATES;
        prepare_choice(snapshot, service, item, actions);
    }
}

/// Prepares the choice of a backend for a datagram that creates a `nat` flow. Defers other packets.
pub(super) fn prepare_pair<const A: usize>(snapshot: &Snapshot, item: &mut Item<A>, actions: &mut Actions)
where
    Families: Family<A>,
{
    let is_request = item.action == Action::ToBackend;
    item.action = Action::Stages;
    if !is_request || item.packet.proto != proto::UDP {
        return;
    }
    let service = snapshot.service_by_id(ServiceId::from_raw(item.id));
    let Some(service) = service.filter(|service| service.mode == ForwardingMode::Nat) else { return };
    if may_create(snapshot, service, &item.packet) {
        item.service = Item::<A>::CREATES_PAIR;
        prepare_choice(snapshot, service, item, actions);
    }
}

/// Pass 3 for packets without an entry: stores the backend that the hash selects.
#[inline(never)]
pub(super) fn choose<const A: usize>(snapshot: &Snapshot, items: &mut [Item<A>], actions: &mut Actions) {
    let mut created = Deferred::default();
    for item in items.iter_mut().filter(|item| item.action == Action::Chosen) {
        item.action = Action::Stages;
        let service = snapshot.service_by_id(ServiceId::from_raw(item.id));
        let Some(seats) = service.and_then(deciding_seats) else { continue };
        let Some(backend) = seats.owner(item.hash) else { continue };
        if item.service >= Item::<A>::CREATES {
            // The stages find the entry of an earlier packet of the flow.
            if created.may_have(&item.packet) {
                continue;
            }
            created.add(&item.packet);
        } else {
            let opens = kind_of(&item.packet).is_opening();
            item.service = if opens { Item::<A>::OPENS } else { Item::<A>::WITHOUT_ENTRY };
        }
        snapshot.prefetch_backend(backend);
        item.id = backend.raw();
        if item.service == Item::<A>::CREATES_PAIR {
            item.action = Action::Binding;
            actions.binding = true;
        } else {
            item.action = Action::Dsr;
            actions.dsr = true;
        }
    }
}

/// Pass 3 for datagrams that create a `nat` flow: inserts the flow if the packet can be sent and the client's own port
/// is free towards the endpoint. Defers other packets.
#[inline(never)]
pub(super) fn bind<const A: usize>(
    view: &View<'_>,
    flows: &mut FlowTables,
    items: &mut [Item<A>],
    now: Now,
    actions: &mut Actions,
) where
    FlowTables: SteadyTables<A>,
{
    for item in items.iter_mut().filter(|item| item.action == Action::Binding) {
        let packet = &item.packet;
        // A backend that is its own client needs another source.
        match reachable(view, item).filter(|backend| words::<A>(&backend.address) != packet.src) {
            Some(backend) => {
                let reply = SteadyKey::reply(backend.endpoint, packet.src, packet.src_port());
                item.hash = flows.steady_hash(&reply);
                // A free key is in neither hash bucket, so both are searched.
                flows.prefetch_nat(item.hash, Bucket::First);
                flows.prefetch_nat(item.hash, Bucket::Second);
            }
            None => item.action = Action::Stages,
        }
    }
    for item in items.iter_mut().filter(|item| item.action == Action::Binding) {
        item.action = Action::Stages;
        let Some(backend) = view.snapshot.backend(BackendId::from_raw(item.id)) else { continue };
        let Some(service) = view.snapshot.service_by_id(backend.service) else { continue };
        let (client, port) = (item.packet.src, item.packet.src_port());
        let key = SteadyKey::flow(service.id, client, port);
        let (hash, packet) = (FlowHash::from_bits(item.flow_hash), Packet::Datagram);
        let flow = NewFlow { key, hash, backend: backend.id, packet, idle: service.idle, now };
        let reply = SteadyKey::reply(backend.endpoint, client, port);
        if flows.create_nat(&flow, &reply, item.hash) {
            (item.other, item.other_port, item.action) = (client, port, Action::ToBackend);
            actions.to_backends = true;
        }
    }
}

/// Counts the flows whose first packet was sent, and inserts those that need an entry.
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
    for item in items.iter().filter(|item| item.is_new()) {
        if sent >> (u32::from(item.at) % u32::BITS) & 1 == 0 {
            continue;
        }
        let backend = BackendId::from_raw(item.id);
        view.tallies.connected(backend);
        let service = view.snapshot.backend(backend).map(|backend| backend.service);
        if item.service == Item::<A>::CREATES
            && let Some(service) = service.and_then(|id| view.snapshot.service_by_id(id))
        {
            let packet = &item.packet;
            let key = SteadyKey::flow(service.id, packet.src, packet.src_port());
            let (hash, packet) = (FlowHash::from_bits(item.flow_hash), kind_of(packet));
            // If the table is full, the flow may move when the owner of its hash changes. The table has counted the
            // missing entry.
            let _ = flows.create_dsr(&NewFlow { key, hash, backend, packet, idle: service.idle, now });
        }
    }
}
