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
use super::flow_order::Deferred;
use super::item::{Action, Actions, Item};
use crate::pipeline::copies::is_copied;

/// Pass 3: finds the flow of each packet, records the packet in it, and prefetches the backend. Prepares the choice of
/// a backend for packets without a flow.
#[inline(always)]
pub(super) fn find<const A: usize>(
    snapshot: &Snapshot,
    flows: &mut FlowTables,
    now: Now,
    items: &mut [Item<A>],
    actions: &mut Actions,
) where
    FlowTables: SteadyTables<A>,
    Families: Family<A>,
{
    let mut missing = 0;
    if actions.dsr {
        missing |= find_dsr(snapshot, flows, now, items);
    }
    if actions.to_backends | actions.to_clients {
        missing |= find_nat(snapshot, flows, now, items);
    }
    if missing != 0 {
        find_in_second_bucket(snapshot, flows, now, (items, missing), actions);
    }
    if actions.opening {
        find_openings(snapshot, flows, items, actions);
    }
}

/// Pass 3 for modes without translation. Returns the packets whose flow is not in its first hash bucket: bit n stands
/// for item n.
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
    let mut missing = 0_u32;
    for (n, item) in items.iter_mut().enumerate() {
        if item.action != Action::Dsr {
            continue;
        }
        let is_tcp = item.packet.proto == proto::TCP;
        match flows.steady_dsr(&item.client_key(), item.hash, Bucket::First, is_tcp, now) {
            First::Steady(backend) => {
                snapshot.prefetch_backend(backend);
                item.id = backend.raw();
            }
            First::Present => item.action = Action::Stages,
            First::Absent => {
                flows.prefetch_dsr(item.hash, Bucket::Second);
                missing |= 1 << (n % BURST);
            }
        }
    }
    missing
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
    let mut missing = 0_u32;
    for (n, item) in items.iter_mut().enumerate() {
        if !matches!(item.action, Action::ToBackend | Action::ToClient) {
            continue;
        }
        let is_tcp = item.packet.proto == proto::TCP;
        match flows.steady_nat(&item.key(), item.hash, Bucket::First, is_tcp, now) {
            First::Steady(hit) => store_hit(snapshot, item, &hit),
            First::Present => item.action = Action::Stages,
            First::Absent => {
                flows.prefetch_nat(item.hash, Bucket::Second);
                missing |= 1 << (n % BURST);
            }
        }
    }
    missing
}

/// Looks in the second hash bucket for flows that are not in the first: bit n stands for item n. Prepares the choice
/// for packets whose flow is in neither.
#[inline(never)]
fn find_in_second_bucket<const A: usize>(
    snapshot: &Snapshot,
    flows: &mut FlowTables,
    now: Now,
    (items, mut missing): (&mut [Item<A>], u32),
    actions: &mut Actions,
) where
    FlowTables: SteadyTables<A>,
    Families: Family<A>,
{
    while let Some(item) = items.get_mut(missing.trailing_zeros() as usize) {
        missing &= missing - 1;
        let is_tcp = item.packet.proto == proto::TCP;
        if item.action == Action::Dsr {
            match flows.steady_dsr(&item.key(), item.hash, Bucket::Second, is_tcp, now) {
                First::Steady(backend) => {
                    snapshot.prefetch_backend(backend);
                    item.id = backend.raw();
                }
                First::Present => item.action = Action::Stages,
                First::Absent => prepare_without_entry(snapshot, item, actions),
            }
        } else {
            match flows.steady_nat(&item.key(), item.hash, Bucket::Second, is_tcp, now) {
                First::Steady(hit) => store_hit(snapshot, item, &hit),
                First::Present => item.action = Action::Stages,
                First::Absent => prepare_pair(snapshot, item, actions),
            }
        }
    }
}

/// Pass 3 for flows that other workers own: uses this worker's copy. Defers packets that have no copy, or whose use of
/// the copy must be reported.
#[inline(never)]
pub(super) fn find_copies<const A: usize>(
    snapshot: &Snapshot,
    copies: &FlowCopies,
    now: Now,
    items: &mut [Item<A>],
    actions: &mut Actions,
) {
    for item in items.iter_mut() {
        let packet = &item.packet;
        let key = match item.action {
            Action::ToBackendByCopy => {
                FlowKey::flow(ServiceId::from_raw(item.id), addr(packet.src), packet.src_port())
            }
            Action::ToClientByCopy => {
                FlowKey::reply(EndpointId::from_raw(item.id), addr(packet.dst), packet.dst_port())
            }
            _ => continue,
        };
        item.action = Action::Stages;
        match copies.peek(&key, FlowHash::from_bits(item.hash), now) {
            Some(Copied::Request { backend, local }) => {
                (item.other, item.other_port) = match local {
                    Some(local) => (words(&local.addr), local.port),
                    None => (item.packet.src, item.packet.src_port()),
                };
                item.id = backend.raw();
                snapshot.prefetch_backend(*backend);
                item.action = Action::ToBackend;
                actions.to_backends = true;
            }
            Some(Copied::Reply { service, backend, client })
                if snapshot.service_by_id(*service).is_some_and(is_copied) =>
            {
                (item.other, item.other_port) = (words(&client.addr), client.port);
                (item.id, item.service) = (backend.raw(), service.raw());
                item.action = Action::ToClient;
                actions.to_clients = true;
            }
            Some(Copied::Reply { .. }) | None => {}
        }
    }
}

/// Pass 3 for SYNs: prepares the choice of a backend for SYNs whose flow has no entry in any state.
#[inline(never)]
fn find_openings<const A: usize>(
    snapshot: &Snapshot,
    flows: &FlowTables,
    items: &mut [Item<A>],
    actions: &mut Actions,
) where
    FlowTables: SteadyTables<A>,
    Families: Family<A>,
{
    for item in items.iter_mut().filter(|item| item.action == Action::Opening) {
        if flows.has_dsr_entry(&item.client_key(), item.hash, Bucket::First) {
            item.action = Action::Stages;
        } else {
            flows.prefetch_dsr(item.hash, Bucket::Second);
        }
    }
    // The stages create the flow if an earlier segment of the unknown connection is deferred to them.
    let mut deferred = Deferred::default();
    for item in items.iter_mut() {
        if item.action == Action::Stages {
            deferred.add(&item.packet);
        }
        if item.action != Action::Opening {
            continue;
        }
        if deferred.may_have(&item.packet)
            || flows.has_dsr_entry(&item.client_key(), item.hash, Bucket::Second)
        {
            item.action = Action::Stages;
        } else {
            prepare_without_entry(snapshot, item, actions);
        }
    }
}

#[inline(always)]
fn store_hit<const A: usize>(snapshot: &Snapshot, item: &mut Item<A>, hit: &SteadyHit<A>) {
    (item.other, item.other_port) = (hit.addr, hit.port);
    item.id = hit.backend.raw();
    if item.action == Action::ToClient {
        item.service = hit.owner;
    } else {
        snapshot.prefetch_backend(hit.backend);
    }
}
