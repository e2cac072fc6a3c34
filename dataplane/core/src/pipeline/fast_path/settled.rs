//! Packets to services that track on change (`flowTracking: on-change`), in the fast path: if a packet has no entry and its
//! backend is settled, its hash selects the backend, and no table is read.
//!
//! Invariant: the decisions are those of [`on_change`](crate::pipeline::on_change).

use super::family::{Families, Family};
use super::item::{Item, Way, Ways};
use super::left::Left;
use crate::conntrack::{Bucket, FlowTables, Packet, SteadyKey, SteadyTables};
use crate::ids::{BackendId, ServiceId};
use crate::pipeline::view::View;
use crate::selector::Selector;
use crate::service::Service;
use crate::snapshot::Snapshot;
use crate::wire::usual::addr;
use crate::wire::{proto, tcp};

/// Pass 2 for a packet to a service that tracks on change: if it has any entry, this packet may have one. If not, even a packet
/// that begins or ends a connection changes nothing.
#[inline(never)]
pub(super) fn seek_on_change<const A: usize>(
    snapshot: &Snapshot,
    flows: &FlowTables,
    service: &Service,
    left: &mut Left,
    item: &mut Item<A>,
    ways: &mut Ways,
) where
    FlowTables: SteadyTables<A>,
    Families: Family<A>,
{
    let packet = &item.packet;
    let key = SteadyKey::flow(service.id, packet.src, packet.src_port());
    let is_left = left.may_have(packet) || service.limited.of_bandwidth();
    if flows.has_dsr_flows_of(&key) {
        if left.admits(packet) && !is_left {
            item.hash = flows.steady_hash(&key);
            flows.prefetch_dsr(item.hash, Bucket::First);
            item.way = Way::Dsr;
            ways.dsr = true;
        }
        return;
    }
    // A SYN may be counted against a limit, and the segment size in it may have to be lowered.
    let is_checked = packet.flags & tcp::flags::SYN != 0
        && (service.mss_limit != 0 || service.limited.of_new_flows() || snapshot.limits_sources());
    if !(is_left || is_checked) {
        prepare_choice(snapshot, service, item);
    }
    if item.way == Way::Stages && item.packet.controls() {
        left.add(&item.packet);
    }
}

/// Prefetches what the choice of a backend reads for a packet without an entry, if its hash decides and its source is a
/// client's.
#[inline(always)]
fn prepare_choice<const A: usize>(snapshot: &Snapshot, service: &Service, item: &mut Item<A>)
where
    Families: Family<A>,
{
    let packet = &item.packet;
    // With any other selector, something is in flux or warms up.
    let Selector::Rendezvous(seats) = service.selector() else { return };
    let (src, dst) = (addr(packet.src), addr(packet.dst));
    if snapshot.admits(service, &src) && Families::is_client_of_any(snapshot, packet.src) {
        let (from, to) = ((&src, packet.src_port()), (&dst, packet.dst_port()));
        item.hash = snapshot.choice_hash(service, from, to, packet.proto);
        seats.prefetch();
        item.way = Way::Settled;
    }
}

/// Pass 3 for packets without an entry: stores the backend that the hash selects.
#[inline(never)]
pub(super) fn choose<const A: usize>(snapshot: &Snapshot, items: &mut [Item<A>], ways: &mut Ways) {
    for item in items.iter_mut().filter(|item| item.way == Way::Settled) {
        let service = snapshot.service_by_id(ServiceId::from_raw(item.id));
        let backend = match service.map(Service::selector) {
            Some(Selector::Rendezvous(seats)) => seats.owner(item.hash),
            _ => None,
        };
        item.way = Way::Stages;
        if let Some(backend) = backend {
            snapshot.prefetch_backend(backend);
            let opens = item.packet.proto == proto::TCP && Packet::Tcp(item.packet.flags).is_opening();
            item.service = if opens { Item::<A>::OPENS } else { Item::<A>::WITHOUT_ENTRY };
            (item.id, item.way) = (backend.raw(), Way::Dsr);
            ways.dsr = true;
        }
    }
}

/// Counts the connections that packets without an entry have opened.
#[inline(never)]
pub(super) fn count_openings<const A: usize>(view: &View<'_>, items: &[Item<A>], sent: u32) {
    for item in items.iter().filter(|item| item.way == Way::Dsr && item.service == Item::<A>::OPENS) {
        if sent >> (u32::from(item.at) % u32::BITS) & 1 == 1 {
            view.tallies.connected(BackendId::from_raw(item.id));
        }
    }
}

/// Prepares the choice for a packet whose flow was not found, if its service has entries for flows in flux only, and none for
/// this one.
pub(super) fn prepare_without_entry<const A: usize>(
    snapshot: &Snapshot,
    flows: &FlowTables,
    item: &mut Item<A>,
) where
    FlowTables: SteadyTables<A>,
    Families: Family<A>,
{
    let service = snapshot.service_by_id(ServiceId::from_raw(item.id));
    let has_entry = flows.has_dsr_entry(&item.key(), item.hash);
    item.way = Way::Stages;
    if let Some(service) = service.filter(|service| service.on_change() && !has_entry) {
        prepare_choice(snapshot, service, item);
    }
}
