//! Pass 3 of the fast path: the flow of each packet.

use tidegate_conntrack::flow_copies::{Copied, FlowCopies};
use tidegate_conntrack::{Bucket, First, FlowHash, FlowKey, FlowTables, SteadyHit, SteadyTables};
use tidegate_snapshot::Snapshot;
use tidegate_spec::ids::{EndpointId, ServiceId};
use tidegate_spec::limits::BURST;
use tidegate_spec::now::Now;
use tidegate_wire::proto;
use tidegate_wire::usual::{addr, words};

use super::choice::{prepare_pair, prepare_without_entry};
use super::family::{Families, Family};
use super::flow_order::Left;
use super::item::{Item, Way, Ways};
use crate::pipeline::copies::is_copied;

/// Pass 3: finds the flow of each packet, records the packet in it, and prefetches the backend. Prepares the choice for packets
/// without a flow.
#[inline(always)]
pub(super) fn find<const A: usize>(
    snapshot: &Snapshot,
    flows: &mut FlowTables,
    now: Now,
    items: &mut [Item<A>],
    ways: &mut Ways,
) where
    FlowTables: SteadyTables<A>,
    Families: Family<A>,
{
    let mut elsewhere = 0;
    if ways.dsr {
        elsewhere |= find_dsr(snapshot, flows, now, items);
    }
    if ways.to_backends | ways.to_clients {
        elsewhere |= find_nat(snapshot, flows, now, items);
    }
    if elsewhere != 0 {
        find_elsewhere(snapshot, flows, now, (items, elsewhere), ways);
    }
    if ways.opening {
        find_openings(snapshot, flows, items, ways);
    }
}

/// Pass 3 for modes without translation. Returns the packets whose flow is not in its first bucket: bit n stands for item n.
#[inline(never)]
fn find_dsr<const A: usize>(
    snapshot: &Snapshot,
    flows: &mut FlowTables,
    now: Now,
    items: &mut [Item<A>],
) -> u32
where
    FlowTables: SteadyTables<A>,
{
    let mut elsewhere = 0_u32;
    for (n, item) in items.iter_mut().enumerate() {
        if item.way != Way::Dsr {
            continue;
        }
        let is_tcp = item.packet.proto == proto::TCP;
        match flows.steady_dsr(&item.client_key(), item.hash, Bucket::First, is_tcp, now) {
            First::Steady(backend) => {
                snapshot.prefetch_backend(backend);
                item.id = backend.raw();
            }
            First::There => item.way = Way::Stages,
            First::Absent => {
                flows.prefetch_dsr(item.hash, Bucket::Second);
                elsewhere |= 1 << (n % BURST);
            }
        }
    }
    elsewhere
}

/// Pass 3 for modes with translation, in both directions.
#[inline(never)]
fn find_nat<const A: usize>(
    snapshot: &Snapshot,
    flows: &mut FlowTables,
    now: Now,
    items: &mut [Item<A>],
) -> u32
where
    FlowTables: SteadyTables<A>,
{
    let mut elsewhere = 0_u32;
    for (n, item) in items.iter_mut().enumerate() {
        if !matches!(item.way, Way::ToBackend | Way::ToClient) {
            continue;
        }
        let is_tcp = item.packet.proto == proto::TCP;
        match flows.steady_nat(&item.key(), item.hash, Bucket::First, is_tcp, now) {
            First::Steady(hit) => settle(snapshot, item, &hit),
            First::There => item.way = Way::Stages,
            First::Absent => {
                flows.prefetch_nat(item.hash, Bucket::Second);
                elsewhere |= 1 << (n % BURST);
            }
        }
    }
    elsewhere
}

/// The same in the second bucket, for flows that are not in the first: bit n stands for item n. Prepares the choice for packets
/// whose flow is in neither.
#[inline(never)]
fn find_elsewhere<const A: usize>(
    snapshot: &Snapshot,
    flows: &mut FlowTables,
    now: Now,
    (items, mut elsewhere): (&mut [Item<A>], u32),
    ways: &mut Ways,
) where
    FlowTables: SteadyTables<A>,
    Families: Family<A>,
{
    while let Some(item) = items.get_mut(elsewhere.trailing_zeros() as usize) {
        elsewhere &= elsewhere - 1;
        let is_tcp = item.packet.proto == proto::TCP;
        if item.way == Way::Dsr {
            match flows.steady_dsr(&item.key(), item.hash, Bucket::Second, is_tcp, now) {
                First::Steady(backend) => {
                    snapshot.prefetch_backend(backend);
                    item.id = backend.raw();
                }
                First::There => item.way = Way::Stages,
                First::Absent => prepare_without_entry(snapshot, item, ways),
            }
        } else {
            match flows.steady_nat(&item.key(), item.hash, Bucket::Second, is_tcp, now) {
                First::Steady(hit) => settle(snapshot, item, &hit),
                First::There => item.way = Way::Stages,
                First::Absent => prepare_pair(snapshot, item, ways),
            }
        }
    }
}

/// Pass 3 for flows that other workers hold: stores what the copy says. Leaves packets without a copy, or whose use of it must be
/// reported, to the stages.
#[inline(never)]
pub(super) fn find_copies<const A: usize>(
    snapshot: &Snapshot,
    copies: &FlowCopies,
    now: Now,
    items: &mut [Item<A>],
    ways: &mut Ways,
) {
    for item in items.iter_mut() {
        let packet = &item.packet;
        let key = match item.way {
            Way::ToBackendByCopy => {
                FlowKey::flow(ServiceId::from_raw(item.id), addr(packet.src), packet.src_port())
            }
            Way::ToClientByCopy => {
                FlowKey::reply(EndpointId::from_raw(item.id), addr(packet.dst), packet.dst_port())
            }
            _ => continue,
        };
        item.way = Way::Stages;
        match copies.peek(&key, FlowHash::from_bits(item.hash), now) {
            Some(Copied::Request { backend, local }) => {
                (item.other, item.other_port) = match local {
                    Some(local) => (words(&local.addr), local.port),
                    None => (item.packet.src, item.packet.src_port()),
                };
                item.id = backend.raw();
                snapshot.prefetch_backend(*backend);
                item.way = Way::ToBackend;
                ways.to_backends = true;
            }
            Some(Copied::Reply { service, backend, client })
                if snapshot.service_by_id(*service).is_some_and(is_copied) =>
            {
                (item.other, item.other_port) = (words(&client.addr), client.port);
                (item.id, item.service) = (backend.raw(), service.raw());
                item.way = Way::ToClient;
                ways.to_clients = true;
            }
            Some(Copied::Reply { .. }) | None => {}
        }
    }
}

/// Pass 3 for SYNs: prepares the choice for those that have no entry in any state.
#[inline(never)]
fn find_openings<const A: usize>(
    snapshot: &Snapshot,
    flows: &FlowTables,
    items: &mut [Item<A>],
    ways: &mut Ways,
) where
    FlowTables: SteadyTables<A>,
    Families: Family<A>,
{
    for item in items.iter_mut().filter(|item| item.way == Way::Opening) {
        if flows.has_dsr_entry(&item.client_key(), item.hash, Bucket::First) {
            item.way = Way::Stages;
        } else {
            flows.prefetch_dsr(item.hash, Bucket::Second);
        }
    }
    // An earlier segment of an unknown connection begins its flow in the stages.
    let mut left = Left::default();
    for item in items.iter_mut() {
        if item.way == Way::Stages {
            left.add(&item.packet);
        }
        if item.way != Way::Opening {
            continue;
        }
        if left.may_have(&item.packet) || flows.has_dsr_entry(&item.client_key(), item.hash, Bucket::Second) {
            item.way = Way::Stages;
        } else {
            prepare_without_entry(snapshot, item, ways);
        }
    }
}

/// Stores what the entry of a NAT flow says.
#[inline(always)]
fn settle<const A: usize>(snapshot: &Snapshot, item: &mut Item<A>, hit: &SteadyHit<A>) {
    (item.other, item.other_port) = (hit.addr, hit.port);
    item.id = hit.backend.raw();
    if item.way == Way::ToClient {
        item.service = hit.owner;
    } else {
        snapshot.prefetch_backend(hit.backend);
    }
}
