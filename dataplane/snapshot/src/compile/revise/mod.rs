//! Derives the next snapshot from the previous one if only some services were added, removed or changed.
//!
//! Unchanged parts are shared, and tables that packets read get new entries only for the changes
//! ([`tidegate_structures::table`]). So changing one service is cheap. All other cases are compiled from scratch:
//! another network, other source ranges, another order of the spec, a refused spec, a part left out because the
//! neighbour table is full, or a backend that has or had the address of a VIP.
//!
//! Invariant: the result equals compiling from scratch with the same previous snapshot (tested).

mod effects;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use imbl::Vector;
use tidegate_spec::ids::{BackendId, EndpointId, ServiceId};
use tidegate_spec::{Problem, SharedService, SnapshotSpec};
use tidegate_wire::Addr;

use super::changes::Changes;
use super::identity::same_kind_of_flow;
use super::limited::limited_services;
use super::records::{Common, finish};
use super::services::{Programmed, Sorted, sorted_service};
use crate::backend::{Backend, EndpointKey, Revision, Uses};
use crate::indices::{Generations, Kind};
use crate::lineage::{Fresh, Lineage, Problems, sort_key};
use crate::neighbors::{NeighborTable, References};
use crate::network::Network;
use crate::reusable_parts::ReusableParts;
use crate::service::{Service, ServiceInfo};
use crate::state::Snapshot;

/// The snapshot of `spec`, with its problems; `None` if it must be compiled from scratch.
pub(super) fn revise(
    spec: &SnapshotSpec,
    previous: &Snapshot,
    neighbors: &NeighborTable,
) -> Option<(Snapshot, Vec<Problem>)> {
    let before = &previous.reusable;
    // Parts that were left out must be tried again, because entries may be free now. A chain of revisions would also
    // keep references to neighbours that are no longer needed.
    if before.lineage.problems.is_neighbor_table_full() {
        return None;
    }
    let changes = Changes::between(&before.lineage, spec)?;
    if effects::on_lists_of_all(&changes, previous) {
        return None;
    }
    let same_limits = effects::same_limits(&changes);
    // Limits are built from the services in the order of their keys.
    if !same_limits && before.lineage.ranks.is_some() {
        return None;
    }
    let network = network_with_vips(previous, &changes.vips)?;
    let new_services = changes.services.iter().filter_map(|change| change.new);
    let sorted: Vec<Sorted<'_>> =
        new_services.map(|new| sorted_service(new.spec).ok()).collect::<Option<_>>()?;
    let mut problems = before.lineage.problems.clone();
    let mut references = neighbors.references();
    let revised = revised(previous, &sorted, &network, &mut references, &mut problems);
    // Compiling from scratch divides the capacity among namespaces.
    if problems.is_neighbor_table_full() {
        return None;
    }
    let gone = gone(previous, &changes, &mut problems);
    let numbers = Numbers::of(previous, &revised, &gone);
    let (records, hot) = records(previous, &revised, &numbers, &mut problems);
    let by_key = by_key(previous.services.by_key(), &changes, &records);
    let gone: Vec<ServiceId> = gone.iter().map(|info| info.id).collect();
    let services = previous.services.revised(numbers.services.len(), &gone, records, by_key);
    let same_compared = effects::same_compared(&changes);
    let compared = if same_compared { Arc::clone(&previous.compared) } else { services.compared() };
    let has_sctp = effects::on_sctp(&changes);
    let further_vips = if has_sctp { services.further_vips() } else { Arc::clone(&previous.further_vips) };
    let limited = if same_limits {
        previous.limited.clone()
    } else {
        let ports = spec.services.iter().map(|service| &**service).zip(services.by_key().iter().copied());
        limited_services(spec.generation, Some(previous), ports, numbers.services.len())
    };
    before.tables.tidy();

    let same_outside = effects::same_outside(&changes, &network);
    let frees_next_hops = effects::frees_next_hops(&changes, &network);
    let backends = previous.backends.revised(numbers.backends.len(), &numbers.gone, &hot);
    let endpoints = previous.endpoints.revised(numbers.endpoints.len(), &numbers.revisions);
    let mut snapshot = Snapshot {
        generation: spec.generation,
        services,
        compared,
        further_vips,
        backends,
        endpoints,
        network,
        policy: spec.network.policy,
        source_ranges: previous.source_ranges.clone(),
        limited,
        sources: previous.sources.clone(),
        source_rates: previous.source_rates.clone(),
        admission: previous.admission,
        reusable: reusable(before, spec, &changes, numbers.into_ids(), references, problems, same_outside),
    };
    if frees_next_hops || snapshot.reusable.neighbor_references.is_long() {
        renew_references(&mut snapshot);
    }
    let problems = snapshot.reusable.lineage.problems();
    Some((snapshot, problems))
}

/// The changed and added services, with their reachable backends.
fn revised<'a>(
    previous: &'a Snapshot,
    sorted: &'a [Sorted<'a>],
    network: &Network,
    references: &mut References,
    problems: &mut Problems,
) -> Vec<Revised<'a>> {
    let programmed = sorted.iter().map(|service| {
        let mut found = Vec::new();
        let programmed = network.program(service, references, &mut found);
        problems.left_out(sort_key(&service.spec.key), found);
        Revised::new(previous, programmed)
    });
    programmed.collect()
}

/// The removed services. Their problems are dropped.
fn gone<'a>(previous: &'a Snapshot, changes: &Changes<'_>, problems: &mut Problems) -> Vec<&'a ServiceInfo> {
    let gone = changes.services.iter().filter(|change| change.new.is_none());
    gone.map(|change| {
        problems.left_out(change.sort_key, Vec::new());
        problems.selection(change.sort_key, None);
        previous.services.at(&change.sort_key).expect("it was programmed").1
    })
    .collect()
}

/// The input of the next compile.
fn reusable(
    before: &ReusableParts,
    spec: &SnapshotSpec,
    changes: &Changes<'_>,
    (generations, fresh): (Generations, Fresh),
    references: References,
    problems: Problems,
    same_outside: bool,
) -> ReusableParts {
    ReusableParts {
        generations,
        tables: before.tables.clone(),
        static_neighbors: Arc::clone(&before.static_neighbors),
        neighbor_references: before.neighbor_references.and(references),
        lineage: Lineage {
            network: before.lineage.network.clone(),
            services: listed(spec, before, changes),
            ranks: before.lineage.ranks.clone(),
            backends: changes.backends,
            problems,
            fresh,
            same_outside,
        },
    }
}

/// The services of the spec, in its order. Unchanged parts of the list are shared with the previous one.
fn listed(spec: &SnapshotSpec, before: &ReusableParts, changes: &Changes<'_>) -> Vector<SharedService> {
    if changes.is_structural {
        return spec.services.iter().cloned().collect();
    }
    let mut listed = before.lineage.services.clone();
    let new_services = changes.services.iter().filter_map(|change| change.new);
    new_services.for_each(|new| listed[new.at] = spec.services[new.at].clone());
    listed
}

/// The network with these VIPs added or removed; `None` if a backend has or had one of the addresses, because no
/// backend may have the address of a VIP.
fn network_with_vips(previous: &Snapshot, vips: &[(Addr, bool)]) -> Option<Network> {
    let mut network = previous.network.clone();
    if vips.is_empty() {
        return Some(network);
    }
    let is_left_out = |vip: &Addr| {
        let mut left_out = previous.reusable.lineage.problems.left_out.values().flatten();
        left_out.any(|problem| match problem {
            Problem::Backend { backend, .. } => Addr::from(backend.ip()) == *vip,
            _ => false,
        })
    };
    if vips.iter().any(|(vip, _)| previous.endpoints.has_address(vip) || is_left_out(vip)) {
        return None;
    }
    network.addresses = network.addresses.revised(vips);
    Some(network)
}

/// The ids in the order of their keys, after services were added and removed.
fn by_key(
    before: &Arc<[ServiceId]>,
    changes: &Changes<'_>,
    records: &[(Service, ServiceInfo)],
) -> Arc<[ServiceId]> {
    if !changes.is_structural {
        return Arc::clone(before);
    }
    let (mut ids, mut from) = (Vec::with_capacity(before.len() + records.len()), 0);
    // There is a record for each service that is not gone.
    let mut records = records.iter();
    for change in &changes.services {
        let id = change.new.and_then(|_| records.next()).map(|(service, _)| service.id);
        match (change.old, change.new) {
            (Some(old), None) => {
                ids.extend_from_slice(&before[from..old.at]);
                from = old.at + 1;
            }
            (None, Some(new)) => {
                let kept = new.at - ids.len();
                ids.extend_from_slice(&before[from..from + kept]);
                from += kept;
                ids.extend(id);
            }
            _ => {}
        }
    }
    ids.extend_from_slice(&before[from..]);
    ids.into()
}

/// The records of the changed services that remain, and the records of their backends.
fn records(
    previous: &Snapshot,
    revised: &[Revised<'_>],
    numbers: &Numbers,
    problems: &mut Problems,
) -> (Vec<(Service, ServiceInfo)>, Vec<Backend>) {
    let new_endpoints: HashMap<EndpointKey, EndpointId> =
        numbers.revisions.iter().map(|revision| (revision.key, revision.id)).collect();
    let endpoint = |key: &EndpointKey| match new_endpoints.get(key) {
        Some(&id) => id,
        None => previous.endpoints.known(key).expect("an endpoint that is not new is known").0,
    };
    let mut unused_ids = numbers.fresh_services.iter().copied();
    let (mut unused, mut hot) = (numbers.fresh.iter().copied(), Vec::new());
    let reusable = &previous.reusable;
    let common = Common { tables: &reusable.tables, network: &reusable.lineage.network };
    let mut services = Vec::with_capacity(revised.len());
    for Revised { service, kept, before } in revised {
        let id = before.map(|(record, _)| record.id).or_else(|| unused_ids.next());
        let id = id.expect("there is an id for each new service");
        let ids: Vec<BackendId> = kept
            .iter()
            .map(|kept| kept.unwrap_or_else(|| unused.next().expect("there is an id for each new backend")))
            .collect();
        let named = ids.iter().copied().zip(keys(service).map(|key| endpoint(&key)));
        let ranges =
            before.map_or((0, None), |(record, info)| (record.source_ranges, info.source_ranges.clone()));
        let (record, info, problem) = finish(service, id, named, ranges, &common, &mut hot);
        problems.selection(sort_key(&service.spec.key), problem);
        services.push((record, info));
    }
    (services, hot)
}

/// Replaces the snapshot's references by one set for the neighbours that it names.
fn renew_references(snapshot: &mut Snapshot) {
    let next_hops = snapshot.next_hops();
    let others = snapshot.reusable.static_neighbors.iter().chain(&*snapshot.network.default_routers);
    let neighbor_references =
        snapshot.reusable.neighbor_references.only(next_hops.iter().chain(others).copied());
    snapshot.reusable.neighbor_references = neighbor_references;
}

/// A changed or added service.
struct Revised<'a> {
    service: Programmed<'a>,
    /// The records of the service in the previous snapshot.
    before: Option<(&'a Service, &'a ServiceInfo)>,
    /// The id of each backend in the previous snapshot, if it had one.
    kept: Vec<Option<BackendId>>,
}

impl<'a> Revised<'a> {
    fn new(previous: &'a Snapshot, service: Programmed<'a>) -> Self {
        let before = previous.services.at(&sort_key(&service.spec.key));
        let known = |address, port| {
            let (_, info) = before.filter(|(_, info)| same_kind_of_flow(info.mode, service.spec.mode))?;
            let at = info.backends.binary_search_by_key(&(address, port), |b| (b.address, b.port)).ok()?;
            Some(info.backends[at].id)
        };
        let kept = service.backends.iter().map(|b| known(b.address, b.spec.port)).collect();
        Self { service, before, kept }
    }
}

/// The endpoint of each backend.
fn keys(service: &Programmed<'_>) -> impl Iterator<Item = EndpointKey> {
    let protocol = service.spec.key.protocol;
    service.backends.iter().map(move |b| EndpointKey { address: b.address, port: b.spec.port, protocol })
}

/// The ids after the change.
struct Numbers {
    services: Kind,
    /// The ids of new services, in their order.
    fresh_services: Vec<ServiceId>,
    backends: Kind,
    /// The ids of new backends, in their order.
    fresh: Vec<BackendId>,
    /// The ids of removed backends.
    gone: Vec<BackendId>,
    endpoints: Kind,
    /// The endpoints whose number of backends changes, in the order of their keys.
    revisions: Vec<Revision>,
}

impl Numbers {
    /// `gone` are the removed services.
    fn of(previous: &Snapshot, revised: &[Revised<'_>], gone: &[&ServiceInfo]) -> Self {
        let generations = &previous.reusable.generations;
        let new = revised.iter().filter(|service| service.before.is_none()).count();
        let (services, fresh) = generations.services.revised(gone.iter().map(|info| info.id.index()), new);
        let fresh_services =
            fresh.into_iter().map(|(index, generation)| ServiceId::new(index, generation)).collect();
        let (backends, fresh, gone_backends) = backend_ids(previous, revised, gone);
        let (endpoints, revisions) = endpoints(previous, revised, gone);
        Self { services, fresh_services, backends, fresh, gone: gone_backends, endpoints, revisions }
    }

    /// The ids in use, and which of them are new.
    fn into_ids(self) -> (Generations, Fresh) {
        let fresh = Fresh { services: self.fresh_services.into(), backends: self.fresh.into() };
        let Self { services, backends, endpoints, .. } = self;
        (Generations { services, backends, endpoints }, fresh)
    }
}

/// The indices of backends, the ids of new ones in their order, and the removed ids.
fn backend_ids(
    previous: &Snapshot,
    revised: &[Revised<'_>],
    gone: &[&ServiceInfo],
) -> (Kind, Vec<BackendId>, Vec<BackendId>) {
    let mut gone: Vec<BackendId> =
        gone.iter().flat_map(|info| &info.backends).map(|backend| backend.id).collect();
    for Revised { before, kept, .. } in revised {
        let Some((_, info)) = before else { continue };
        let mut stay: Vec<BackendId> = kept.iter().flatten().copied().collect();
        stay.sort_unstable();
        gone.extend(info.backends.iter().map(|b| b.id).filter(|id| stay.binary_search(id).is_err()));
    }
    let new = revised.iter().flat_map(|service| &service.kept).filter(|kept| kept.is_none()).count();
    let (kind, fresh) = previous.reusable.generations.backends.revised(gone.iter().map(|id| id.index()), new);
    let fresh = fresh.into_iter().map(|(index, generation)| BackendId::new(index, generation)).collect();
    (kind, fresh, gone)
}

/// The indices of endpoints, and the endpoints whose number of backends changes, in the order of their keys.
fn endpoints(previous: &Snapshot, revised: &[Revised<'_>], gone: &[&ServiceInfo]) -> (Kind, Vec<Revision>) {
    let mut counts: BTreeMap<EndpointKey, (i64, i64)> = BTreeMap::new();
    let mut count = |key, sign: i64, mode: tidegate_spec::ForwardingMode| {
        let (all, replies) = counts.entry(key).or_default();
        (*all, *replies) = (*all + sign, *replies + if mode.is_dsr() { 0 } else { sign });
    };
    let before = revised.iter().filter_map(|service| service.before).map(|(_, info)| info);
    for info in before.chain(gone.iter().copied()) {
        let protocol = info.key.protocol;
        for b in &info.backends {
            count(EndpointKey { address: b.address, port: b.port, protocol }, -1, info.mode);
        }
    }
    for Revised { service, .. } in revised {
        keys(service).for_each(|key| count(key, 1, service.spec.mode));
    }
    let moved =
        |count: u32, by: i64| u32::try_from(i64::from(count) + by).expect("only counted uses are subtracted");
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
    let (kind, fresh) = previous.reusable.generations.endpoints.revised(gone, new.len());
    for (at, (index, generation)) in new.into_iter().zip(fresh) {
        revisions[at].id = EndpointId::new(index, generation);
    }
    (kind, revisions)
}

#[cfg(test)]
mod tests;
