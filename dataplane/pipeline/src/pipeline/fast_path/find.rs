//! Pass 3 of the fast path: the flow of each packet.

use tidegate_conntrack::flow_copies::{Copied, FlowCopies};
use tidegate_conntrack::{Bucket, First, FlowHash, FlowKey, FlowTables, SteadyHit, SteadyTables};
use tidegate_snapshot::Snapshot;
use tidegate_spec::ids::ServiceId;
use tidegate_spec::limits::BURST;
use tidegate_spec::now::Now;
use tidegate_wire::proto;
use tidegate_wire::usual::{addr, words};

use super::choice::prepare_unknown;
use super::family::{Families, Family};
use super::flow_order::BurstFlows;
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
        match flows.steady_dsr(&item.client_key(), item.flow_hash, Bucket::First, is_tcp, now) {
            First::Steady(backend) => {
                snapshot.prefetch_backend(backend);
                item.backend = backend;
            }
            First::Present => item.action = Action::Stages,
            First::Absent => {
                flows.prefetch_dsr(item.flow_hash, Bucket::Second);
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
        match flows.steady_nat(&item.key(), item.flow_hash, Bucket::First, is_tcp, now) {
            First::Steady(hit) => store_hit(snapshot, item, &hit),
            First::Present => item.action = Action::Stages,
            First::Absent => {
                flows.prefetch_nat(item.flow_hash, Bucket::Second);
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
            match flows.steady_dsr(&item.client_key(), item.flow_hash, Bucket::Second, is_tcp, now) {
                First::Steady(backend) => {
                    snapshot.prefetch_backend(backend);
                    item.backend = backend;
                }
                First::Present => item.action = Action::Stages,
                First::Absent => prepare_unknown(snapshot, item, actions),
            }
        } else {
            match flows.steady_nat(&item.key(), item.flow_hash, Bucket::Second, is_tcp, now) {
                First::Steady(hit) => store_hit(snapshot, item, &hit),
                First::Present => item.action = Action::Stages,
                First::Absent => prepare_unknown(snapshot, item, actions),
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
            Action::ToBackendByCopy => FlowKey::flow(item.service, addr(packet.src), packet.src_port()),
            Action::ToClientByCopy => FlowKey::reply(item.endpoint, addr(packet.dst), packet.dst_port()),
            _ => continue,
        };
        item.action = Action::Stages;
        match copies.peek(&key, FlowHash::from_bits(item.flow_hash), now) {
            Some(Copied::Request { backend, local }) => {
                (item.other, item.other_port) = match local {
                    Some(local) => (words(&local.addr), local.port),
                    None => (item.packet.src, item.packet.src_port()),
                };
                item.backend = *backend;
                snapshot.prefetch_backend(*backend);
                item.action = Action::ToBackend;
                actions.to_backends = true;
            }
            Some(Copied::Reply { service, backend, client })
                if snapshot.service_by_id(*service).is_some_and(is_copied) =>
            {
                (item.other, item.other_port) = (words(&client.addr), client.port);
                (item.backend, item.service) = (*backend, *service);
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
    for item in items.iter_mut() {
        match item.action {
            Action::Opening => flows.prefetch_dsr(item.flow_hash, Bucket::Second),
            Action::OpeningPair => flows.prefetch_nat(item.flow_hash, Bucket::Second),
            _ => continue,
        }
        if has_entry(flows, item, Bucket::First) {
            item.action = Action::Stages;
        }
    }
    // The stages create the flow if an earlier segment of the unknown connection is deferred to them.
    let mut deferred = BurstFlows::default();
    for item in items.iter_mut() {
        match item.action {
            Action::Stages => deferred.add(&item.packet),
            Action::Opening | Action::OpeningPair => {
                if deferred.may_have(&item.packet) || has_entry(flows, item, Bucket::Second) {
                    item.action = Action::Stages;
                } else {
                    prepare_unknown(snapshot, item, actions);
                }
            }
            _ => {}
        }
    }
}

/// Whether the flow of a SYN has an entry in a hash bucket, in any state.
#[inline(always)]
fn has_entry<const A: usize>(flows: &FlowTables, item: &Item<A>, bucket: Bucket) -> bool
where
    FlowTables: SteadyTables<A>,
{
    let key = item.client_key();
    if item.action == Action::OpeningPair {
        flows.has_nat_entry(&key, item.flow_hash, bucket)
    } else {
        flows.has_dsr_entry(&key, item.flow_hash, bucket)
    }
}

#[inline(always)]
fn store_hit<const A: usize>(snapshot: &Snapshot, item: &mut Item<A>, hit: &SteadyHit<A>) {
    (item.other, item.other_port) = (hit.addr, hit.port);
    item.backend = hit.backend;
    if item.action == Action::ToClient {
        item.service = ServiceId::from_raw(hit.owner);
    } else {
        snapshot.prefetch_backend(hit.backend);
    }
}
