//! Derives the next snapshot from the previous one if the services are the same and only some of them have different
//! backends or options.
//!
//! Unchanged parts are shared. Tables that packets read get new entries only for the changes (see [`crate::table`]). So
//! a change of one endpoint costs little, and not a compile of everything. All other cases (services that are added or
//! removed, other source ranges, another network, a refused spec, something left out of a full neighbour table) use the
//! compile from scratch.
//!
//! Invariant: the result equals that of a compile from scratch with the same previous snapshot (tested).

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::identity::same_kind_of_flow;
use super::records::finish;
use super::services::{Programmed, Sorted, sorted_service};
use crate::backend::{Backend, EndpointKey, Revision, Uses};
use crate::ids::{BackendId, EndpointId, ServiceId};
use crate::limits;
use crate::neighbors::NeighborTable;
use crate::routes::NextHop;
use crate::service::{Service, ServiceInfo};
use crate::snapshot::carried::Carried;
use crate::snapshot::indices::{Generations, Kind};
use crate::snapshot::lineage::{Fresh, Lineage, Problems};
use crate::snapshot::network::Network;
use crate::snapshot::problem::Problem;
use crate::snapshot::service_limits::ServiceLimits;
use crate::snapshot::spec::{NoEndpoints, Protocol, ServiceSpec, SnapshotSpec};
use crate::snapshot::state::Snapshot;

/// The snapshot of `spec`, with its problems; `None` if it must be compiled from scratch.
pub(super) fn revise(
    spec: &SnapshotSpec,
    previous: &Snapshot,
    neighbors: &NeighborTable,
) -> Option<(Snapshot, Vec<Problem>)> {
    let before = &previous.carried;
    // What was left out must be tried again: there may be room now. The holds of a chain of revisions would also keep
    // slots that nobody needs any more.
    if before.lineage.problems.lack_room() {
        return None;
    }
    let (changed, backends) = changed(spec, &before.lineage)?;
    let sorted: Vec<Sorted<'_>> =
        changed.iter().map(|&(_, at)| sorted_service(&spec.services[at]).ok()).collect::<Option<_>>()?;
    let mut problems = before.lineage.problems.clone();
    let mut hold = neighbors.hold();
    let revised: Vec<Revised<'_>> = changed
        .iter()
        .zip(&sorted)
        .map(|(&(rank, _), service)| {
            let mut found = Vec::new();
            let programmed = previous.network.program(service, &mut hold, &mut found);
            problems.left_out(rank, found);
            Revised::new(previous, rank, programmed)
        })
        .collect();
    // The compile from scratch divides the room among namespaces.
    if problems.lack_room() {
        return None;
    }
    let numbers = Numbers::of(previous, &revised);
    let (services, hot) = records(previous, &revised, &numbers, &mut problems);
    let services = previous.services.revised(services);
    let same_compared = revised
        .iter()
        .all(|r| r.info.scheduler.compares_loads() == r.service.spec.scheduler.compares_loads());
    let compared = if same_compared { Arc::clone(&previous.compared) } else { services.compared() };
    let has_sctp = revised.iter().any(|r| r.service.spec.key.protocol == Protocol::Sctp);
    let further_vips = if has_sctp { services.further_vips() } else { Arc::clone(&previous.further_vips) };
    before.tables.tidy();

    let same_outside = changed.iter().all(|&(_, at)| {
        let old = before.lineage.services.get(at);
        old.is_some_and(|old| is_same_outside(&previous.network, old, &spec.services[at]))
    });
    let mut held = before.lineage.services.clone();
    changed.iter().for_each(|&(_, at)| held.set(at, spec.services[at].clone()));
    let mut snapshot = Snapshot {
        generation: spec.generation,
        services,
        compared,
        further_vips,
        backends: previous.backends.revised(numbers.backends.len(), &numbers.gone, &hot),
        endpoints: previous.endpoints.revised(numbers.endpoints.len(), &numbers.revisions),
        network: previous.network.clone(),
        policy: spec.network.policy,
        source_ranges: previous.source_ranges.clone(),
        limited: previous.limited.clone(),
        sources: previous.sources.clone(),
        source_rates: previous.source_rates.clone(),
        admission: previous.admission,
        carried: Carried {
            generations: Generations {
                services: before.generations.services.clone(),
                backends: numbers.backends,
                endpoints: numbers.endpoints,
            },
            tables: before.tables.clone(),
            static_neighbors: Arc::clone(&before.static_neighbors),
            holds: before.holds.and(hold),
            lineage: Lineage {
                network: before.lineage.network.clone(),
                services: held,
                ranks: Arc::clone(&before.lineage.ranks),
                backends,
                problems,
                fresh: Fresh { services: Box::default(), backends: numbers.fresh.into() },
                same_outside,
            },
        },
    };
    if snapshot.carried.holds.is_long() {
        hold_anew(&mut snapshot);
    }
    let problems = snapshot.carried.lineage.problems();
    Some((snapshot, problems))
}

/// The records of the changed services, each after its position in the order of keys, and the records of their backends.
fn records(
    previous: &Snapshot,
    revised: &[Revised<'_>],
    numbers: &Numbers,
    problems: &mut Problems,
) -> (Vec<(usize, Service, ServiceInfo)>, Vec<Backend>) {
    let new_endpoints: HashMap<EndpointKey, EndpointId> =
        numbers.revisions.iter().map(|revision| (revision.key, revision.id)).collect();
    let endpoint = |key: &EndpointKey| match new_endpoints.get(key) {
        Some(&id) => id,
        None => previous.endpoints.known(key).expect("an endpoint that is not new is known").0,
    };
    let (mut unused, mut hot) = (numbers.fresh.iter().copied(), Vec::new());
    let mut services = Vec::with_capacity(revised.len());
    for Revised { rank, id, service, kept, record, info: before } in revised {
        let ids: Vec<BackendId> = kept
            .iter()
            .map(|kept| kept.unwrap_or_else(|| unused.next().expect("one for each that is not kept")))
            .collect();
        let named = ids.iter().copied().zip(keys(service).map(|key| endpoint(&key)));
        let ranges = (record.source_ranges, before.source_ranges.clone());
        let (record, info, problem) = finish(service, *id, named, ranges, &previous.carried.tables, &mut hot);
        problems.selection(*rank, problem);
        services.push((*rank, record, info));
    }
    (services, hot)
}

/// Whether a change of a service leaves the next hops and announced addresses as they are.
fn is_same_outside(network: &Network, old: &ServiceSpec, new: &ServiceSpec) -> bool {
    old.announced == new.announced && !on_link(network, old) && !on_link(network, new)
}

/// Holds what the snapshot names, and no more.
fn hold_anew(snapshot: &mut Snapshot) {
    let slots = snapshot.next_hops();
    let others = snapshot.carried.static_neighbors.iter().chain(&*snapshot.network.default_routers);
    let holds = snapshot.carried.holds.only(slots.iter().chain(others).copied());
    snapshot.carried.holds = holds;
}

/// The services that changed, each by its position in the order of keys and its position in the spec, and the number of
/// all backends.
fn changed(spec: &SnapshotSpec, lineage: &Lineage) -> Option<(Vec<(usize, usize)>, usize)> {
    if lineage.services.len() != spec.services.len() || lineage.network != spec.network {
        return None;
    }
    let (mut changed, mut backends) = (Vec::new(), lineage.backends);
    for (at, (old, new)) in lineage.services.iter().zip(&spec.services).enumerate() {
        if old.is_same(new) {
            continue;
        }
        if old.key != new.key
            || old.source_ranges != new.source_ranges
            || leaves(old) != leaves(new)
            || limits(old) != limits(new)
        {
            return None;
        }
        backends = backends - old.backends.len() + new.backends.len();
        changed.push((lineage.ranks[at] as usize, at));
    }
    changed.sort_unstable();
    (backends <= limits::BACKENDS_MAX).then_some((changed, backends))
}

/// The limits of a service port, and the Service to which they apply.
fn limits(service: &ServiceSpec) -> Option<(ServiceLimits, &str, &str)> {
    (!service.limits.is_none()).then_some((service.limits, &service.namespace, &service.name))
}

/// Whether the service does not make its VIP an address of the gateway.
fn leaves(service: &ServiceSpec) -> bool {
    service.no_endpoints == NoEndpoints::Unserved
}

/// Whether a backend of the service is a next hop itself, or is in a network of an interface. Such backends are
/// resolved ahead, even if a narrower route leads to them through a router.
fn on_link(network: &Network, service: &ServiceSpec) -> bool {
    let itself = |hop: NextHop| hop.via.is_none();
    let is_near = |address: &IpAddr| {
        network.interfaces.iter().flat_map(|interface| &interface.addresses).any(|net| net.contains(address))
    };
    let mut addresses = service.backends.iter().map(|backend| backend.address);
    addresses.any(|address| is_near(&address) || network.routes.find(&address.into()).is_some_and(itself))
}

/// A service that changed.
struct Revised<'a> {
    rank: usize,
    id: ServiceId,
    service: Programmed<'a>,
    /// The record of the service in the previous snapshot.
    record: &'a Service,
    info: &'a ServiceInfo,
    /// The id of each backend in the previous snapshot, if it had one.
    kept: Vec<Option<BackendId>>,
}

impl<'a> Revised<'a> {
    fn new(previous: &'a Snapshot, rank: usize, service: Programmed<'a>) -> Self {
        let id = previous.services.by_key()[rank];
        let (record, info) =
            previous.services.by_id(id).zip(previous.services.info(id)).expect("an id of its list");
        let known = |address, port| {
            let at = info.backends.binary_search_by_key(&(address, port), |b| (b.address, b.port)).ok()?;
            Some(info.backends[at].id)
        };
        let goes_on = same_kind_of_flow(info.mode, service.spec.mode);
        let kept = service.backends.iter();
        let kept = kept.map(|b| known(b.address, b.spec.port).filter(|_| goes_on)).collect();
        Self { rank, id, service, record, info, kept }
    }
}

/// The endpoint of each backend.
fn keys(service: &Programmed<'_>) -> impl Iterator<Item = EndpointKey> {
    let protocol = service.spec.key.protocol;
    service.backends.iter().map(move |b| EndpointKey { address: b.address, port: b.spec.port, protocol })
}

/// The ids after the change.
struct Numbers {
    backends: Kind,
    /// The ids of new backends, in their order.
    fresh: Vec<BackendId>,
    /// The ids of backends that are no longer there.
    gone: Vec<BackendId>,
    endpoints: Kind,
    /// The endpoints whose number of backends changes, in the order of their keys.
    revisions: Vec<Revision>,
}

impl Numbers {
    fn of(previous: &Snapshot, revised: &[Revised<'_>]) -> Self {
        let (backends, fresh, gone) = backend_ids(previous, revised);
        let (endpoints, revisions) = endpoints(previous, revised);
        Self { backends, fresh, gone, endpoints, revisions }
    }
}

/// The indices of backends, the ids of new ones in their order, and the removed ids.
fn backend_ids(previous: &Snapshot, revised: &[Revised<'_>]) -> (Kind, Vec<BackendId>, Vec<BackendId>) {
    let mut gone = Vec::new();
    for Revised { info, kept, .. } in revised {
        let mut stay: Vec<BackendId> = kept.iter().flatten().copied().collect();
        stay.sort_unstable();
        gone.extend(info.backends.iter().map(|b| b.id).filter(|id| stay.binary_search(id).is_err()));
    }
    let new = revised.iter().flat_map(|service| &service.kept).filter(|kept| kept.is_none()).count();
    let (kind, fresh) = previous.carried.generations.backends.revised(gone.iter().map(|id| id.index()), new);
    let fresh = fresh.into_iter().map(|(index, generation)| BackendId::new(index, generation)).collect();
    (kind, fresh, gone)
}

/// The indices of endpoints, and the endpoints whose number of backends changes, in the order of their keys.
fn endpoints(previous: &Snapshot, revised: &[Revised<'_>]) -> (Kind, Vec<Revision>) {
    let mut counts: BTreeMap<EndpointKey, (i64, i64)> = BTreeMap::new();
    let mut count = |key, sign: i64, mode: crate::snapshot::ForwardingMode| {
        let (all, replies) = counts.entry(key).or_default();
        (*all, *replies) = (*all + sign, *replies + if mode.is_dsr() { 0 } else { sign });
    };
    for Revised { service, info, .. } in revised {
        let protocol = info.key.protocol;
        for b in &info.backends {
            count(EndpointKey { address: b.address, port: b.port, protocol }, -1, info.mode);
        }
        keys(service).for_each(|key| count(key, 1, service.spec.mode));
    }
    let moved = |count: u32, by: i64| {
        u32::try_from(i64::from(count) + by).expect("what is counted out was counted in")
    };
    let mut revisions = Vec::new();
    let mut new = Vec::new();
    for (key, (all, replies)) in counts.into_iter().filter(|(_, by)| *by != (0, 0)) {
        let known = previous.endpoints.known(&key);
        let (id, before) = known.unwrap_or((EndpointId::from_raw(0), Uses::default()));
        if known.is_none() {
            new.push(revisions.len());
        }
        let after = Uses { all: moved(before.all, all), replies: moved(before.replies, replies) };
        revisions.push(Revision { key, id, before, after });
    }
    let gone = revisions.iter().filter(|r| r.after.all == 0).map(|r| r.id.index());
    let (kind, fresh) = previous.carried.generations.endpoints.revised(gone, new.len());
    for (at, (index, generation)) in new.into_iter().zip(fresh) {
        revisions[at].id = EndpointId::new(index, generation);
    }
    (kind, revisions)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::loads::LoadRule;
    use crate::snapshot::{
        BackendSpec, BackendState, ForwardingMode, Protocol, Scheduler, ServiceSpec, SharedService,
    };
    use crate::testing::lab;
    use crate::wire::Addr;

    /// The possible changes of a service: its mode, its scheduler, and its backends by (host, port).
    type Change = (usize, usize, BTreeMap<(u8, bool), (u16, u8)>);

    /// There are few hosts, so that services share endpoints. Some hosts are out of reach or are VIPs.
    fn any_change() -> impl Strategy<Value = (usize, Change)> {
        let backends = proptest::collection::btree_map((0_u8..9, any::<bool>()), (0_u16..3, 0_u8..3), 0..6);
        (0_usize..6, (0_usize..4, 0_usize..7, backends))
    }

    fn service(n: usize) -> ServiceSpec {
        let vip = if n < 4 { format!("203.0.113.{n}:80") } else { format!("[2001:db8:f::{n}]:80") };
        lab::service(ForwardingMode::FullNat, Protocol::Tcp, &vip, &[])
    }

    fn change(service: &mut ServiceSpec, (mode, table, backends): &Change) {
        service.mode = ForwardingMode::ALL[*mode];
        let maglev = |slots| Scheduler::Maglev { slots };
        service.scheduler = [
            Scheduler::Rendezvous,
            maglev(2),
            maglev(1_009),
            Scheduler::WeightedRoundRobin,
            Scheduler::Loads(LoadRule::NeverQueue),
            Scheduler::SourceHash,
            Scheduler::DestinationHash,
        ][*table];
        let v6 = service.key.vip.is_ipv6();
        let backend = |(&(host, odd), &(weight, state)): (&(u8, bool), &(u16, u8))| {
            let address: IpAddr = match host {
                7 => "192.0.2.99".parse().expect("out of reach"),
                8 => "203.0.113.1".parse().expect("a VIP"),
                _ if v6 => format!("2001:db8::1{host}").parse().expect("an address"),
                _ => format!("10.0.0.1{host}").parse().expect("an address"),
            };
            let state =
                [BackendState::Active, BackendState::Draining, BackendState::Down][usize::from(state)];
            BackendSpec { address, port: if odd { 8080 } else { 80 }, weight, state }
        };
        service.backends = backends.iter().map(backend).collect();
    }

    /// Compares everything that a snapshot can be asked, and the input of the next compile.
    fn assert_same(revised: &Snapshot, anew: &Snapshot) {
        let services = |snapshot: &Snapshot| format!("{:#?}", snapshot.services().collect::<Vec<_>>());
        assert_eq!(services(revised), services(anew));
        assert_eq!(format!("{:?}", revised.backends), format!("{:?}", anew.backends));
        assert_eq!(revised.endpoints.listed(), anew.endpoints.listed());
        assert_eq!(format!("{:?}", revised.carried.generations), format!("{:?}", anew.carried.generations));
        assert_eq!(revised.next_hops(), anew.next_hops());
        assert_eq!(revised.admission, anew.admission);
        assert_eq!(revised.compared, anew.compared);
        assert_eq!(revised.further_vips, anew.further_vips);
        // The slow path's information is still valid.
        assert!(!anew.same_outside());
        assert_eq!(revised.carried.lineage.fresh, anew.carried.lineage.fresh);
        assert_eq!(revised.carried.lineage.ranks, anew.carried.lineage.ranks);
        assert_eq!(revised.carried.lineage.backends, anew.carried.lineage.backends);
        assert!(revised.carried.lineage.services.iter().eq(anew.carried.lineage.services.iter()));
        for (service, _) in anew.services() {
            let (proto, port) = (service.protocol.number(), service.port);
            let hash = Snapshot::hash_service(&service.vip, proto, port);
            let found = revised.service(hash, &service.vip, proto, port).map(|service| service.id);
            assert_eq!(found, Some(service.id));
        }
        for host in 0..8 {
            for address in [format!("10.0.0.1{host}"), format!("2001:db8::1{host}")] {
                let address = Addr::from(address.parse::<IpAddr>().expect("an address"));
                for port in [80, 8080] {
                    let hash = Snapshot::hash_endpoint(&address, 6, port);
                    let [a, b] = [revised, anew].map(|snapshot| snapshot.endpoint(hash, &address, 6, port));
                    assert_eq!(a, b);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn a_revised_snapshot_is_the_one_compiled_anew(
            turns in proptest::collection::vec(proptest::collection::vec(any_change(), 0..4), 1..8),
        ) {
            let neighbors = NeighborTable::with_capacity(64);
            let services = (0..6).map(|n| SharedService::from(service(n))).collect();
            let mut spec = SnapshotSpec { generation: 1, services, ..lab::spec() };
            let (mut previous, _) = super::super::compile_anew(&spec, None, &neighbors).expect("it compiles");
            for changes in turns {
                spec.generation += 1;
                for (at, what) in &changes {
                    change(&mut spec.services[*at], what);
                }
                let (revised, problems) = revise(&spec, &previous, &neighbors).expect("nothing else changed");
                let anew = super::super::compile_anew(&spec, Some(&previous), &neighbors);
                let (anew, same_problems) = anew.expect("it compiles");
                prop_assert_eq!(problems, same_problems);
                assert_same(&revised, &anew);
                prop_assert_eq!(revised.compare(&spec, &neighbors), Some(Vec::new()));
                prop_assert!(!revised.same_outside() || previous.next_hops() == anew.next_hops());
                previous = revised;
            }
        }
    }

    #[test]
    fn what_it_cannot_do_is_compiled_anew() {
        let neighbors = NeighborTable::with_capacity(64);
        let spec = SnapshotSpec { services: vec![service(0).into(), service(1).into()], ..lab::spec() };
        let (previous, _) = Snapshot::compile(&spec, None, &neighbors).expect("it compiles");
        let revises = |change: &dyn Fn(&mut SnapshotSpec)| {
            let mut changed = spec.clone();
            change(&mut changed);
            revise(&changed, &previous, &neighbors).is_some()
        };
        assert!(revises(&|spec| spec.services[0].no_endpoints = crate::snapshot::NoEndpoints::Drop));
        assert!(!revises(&|spec| drop(spec.services.pop())));
        assert!(!revises(&|spec| spec.services.swap(0, 1)));
        assert!(!revises(&|spec| spec.services[0].key.port = 81));
        assert!(!revises(
            &|spec| spec.services[0].source_ranges = Some(["10.0.0.0/8".parse().expect("a net")].into())
        ));
        assert!(!revises(&|spec| spec.network.routes.clear()));
        assert!(
            !revises(&|spec| spec.services[0].scheduler = Scheduler::Maglev { slots: 4 }),
            "it is refused"
        );
    }
}
