//! Compiles a spec to a snapshot: checks it, programs all valid parts, keeps ids, builds tables.
//!
//! Runs on a control thread. If a fault concerns the whole spec, the spec is refused; a fault of one part becomes a
//! [`Problem`], and that part is left out. Everything is sorted by identity first, so the order of the spec doesn't
//! matter. The only side effects are on the neighbour table: next hops get entries, and fixed ones their link
//! addresses.
//!
//! Invariant: after an error the neighbour table is unchanged, because allocated entries are released.

mod changes;
mod identity;
mod limited;
mod network;
mod next_hop_shares;
mod records;
mod revise;
mod services;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use identity::Ids;
use records::{Common, finish};
use services::{Programmed, Sorted, at_most, sorted_services};
use tidegate_spec::limits;
use tidegate_spec::{CompileError, Problem, ServiceKey, SnapshotSpec};

use super::interface::Interface;
use super::lineage::{Lineage, Problems, sort_key};
use super::neighbor_references::NeighborReferences;
use super::network::Network;
use super::reusable_parts::ReusableParts;
use super::state::Snapshot;
use crate::backend::{Backends, Endpoints};
use crate::neighbors::{NeighborId, NeighborTable, References};
use crate::service::Services;
use crate::source_ranges::Sets;
use crate::source_rates::SourceRates;

impl Snapshot {
    /// Compiles a spec. Objects that exist in `previous` keep their ids, and unchanged Maglev tables are shared with
    /// it. Next hops get their entries in `neighbors`.
    ///
    /// If the mode of a service port changes from or to NAT, its backends get new ids: their flows are of a different
    /// kind.
    ///
    /// # Errors
    /// [`CompileError`]: the spec exceeds a limit or contradicts itself. Problems of single backends, routes and
    /// neighbours are in the result; those parts are left out, and the rest works.
    pub fn compile(
        spec: &SnapshotSpec,
        previous: Option<&Snapshot>,
        neighbors: &NeighborTable,
    ) -> Result<(Snapshot, Vec<Problem>), CompileError> {
        if let Some(revised) = previous.and_then(|previous| revise::revise(spec, previous, neighbors)) {
            return Ok(revised);
        }
        from_scratch(spec, previous, neighbors)
    }
}

impl Snapshot {
    /// Compiles everything from scratch. Only ids and the Maglev tables of equal backends are taken from `previous`.
    ///
    /// # Errors
    /// As for [`Self::compile`].
    pub fn compile_from_scratch(
        spec: &SnapshotSpec,
        previous: Option<&Snapshot>,
        neighbors: &NeighborTable,
    ) -> Result<(Snapshot, Vec<Problem>), CompileError> {
        from_scratch(spec, previous, neighbors)
    }
}

/// [`Snapshot::compile`] without an attempt to revise the previous snapshot.
pub(super) fn from_scratch(
    spec: &SnapshotSpec,
    previous: Option<&Snapshot>,
    neighbors: &NeighborTable,
) -> Result<(Snapshot, Vec<Problem>), CompileError> {
    let interfaces = interfaces(spec)?;
    check_network(spec)?;
    let services = sorted_services(spec)?;
    let mut problems = Problems::default();

    let mut references = neighbors.references();
    let network = Network::build(spec, &services, interfaces, &mut references, &mut problems.network);
    // Fixed neighbours come before backends, which must not take their entries.
    let static_neighbors = network.set_static(spec, previous, &mut references, &mut problems.neighbors);
    let mut of_backends = neighbors.references();
    let mut programmed = program(&network, &services, &mut of_backends, &mut problems);
    if problems.is_neighbor_table_full() {
        of_backends = neighbors.references();
        let taken = network.routers.iter().chain(&*static_neighbors).collect::<HashSet<_>>().len();
        let capacity = neighbors.usage().next_hops_max.saturating_sub(taken);
        of_backends.grant(Some(next_hop_shares::granted(spec, &network, &services, capacity)));
        programmed = program(&network, &services, &mut of_backends, &mut problems);
        of_backends.grant(None);
    }
    let ids = Ids::assign(&programmed, previous);
    let neighbor_references = NeighborReferences::of(references).and(of_backends);
    let snapshot = assemble(
        spec,
        previous,
        network,
        &programmed,
        ids,
        (static_neighbors, neighbor_references),
        problems,
    );
    let problems = snapshot.reusable.lineage.problems.all();
    Ok((snapshot, problems))
}

/// The backends that can be reached. The reasons why others can't are added to `problems`.
fn program<'a>(
    network: &Network,
    services: &[Sorted<'a>],
    references: &mut References,
    problems: &mut Problems,
) -> Vec<Programmed<'a>> {
    let one = |service: &Sorted<'a>| {
        let mut found = Vec::new();
        let programmed = network.program(service, references, &mut found);
        problems.left_out(sort_key(&service.spec.key), found);
        programmed
    };
    services.iter().map(one).collect()
}

fn interfaces(spec: &SnapshotSpec) -> Result<Arc<[Interface]>, CompileError> {
    at_most("interfaces", spec.network.interfaces.len(), limits::INTERFACES_MAX)?;
    let mut seen = HashSet::<IpAddr>::new();
    for address in spec.network.interfaces.iter().flat_map(|interface| &interface.addresses) {
        if !seen.insert(address.addr()) {
            return Err(CompileError::DuplicateAddress { address: address.addr() });
        }
    }
    let interface = |spec| {
        Interface::new(spec)
            .ok_or_else(|| CompileError::Vlan { interface: spec.name.clone(), vlan: spec.vlan.unwrap_or(0) })
    };
    spec.network.interfaces.iter().map(interface).collect()
}

fn check_network(spec: &SnapshotSpec) -> Result<(), CompileError> {
    at_most("routes", spec.network.routes.len(), limits::ROUTES_MAX)?;
    at_most("snatAddresses", spec.network.snat_addresses.len(), limits::SNAT_ADDRESSES_MAX)?;
    at_most("neighbors", spec.network.neighbors.len(), limits::NEXT_HOPS_MAX)?;
    let mut seen = HashSet::new();
    if let Some(neighbor) = spec.network.neighbors.iter().find(|neighbor| !seen.insert(neighbor.ip)) {
        return Err(CompileError::DuplicateNeighbor { ip: neighbor.ip });
    }
    let mut seen = HashSet::new();
    match spec.network.routes.iter().find(|route| !seen.insert(route.to.trunc())) {
        Some(route) => Err(CompileError::DuplicateRoute { to: route.to }),
        None => Ok(()),
    }
}

fn assemble(
    spec: &SnapshotSpec,
    previous: Option<&Snapshot>,
    network: Network,
    programmed: &[Programmed<'_>],
    ids: Ids,
    (static_neighbors, neighbor_references): (Arc<[NeighborId]>, NeighborReferences),
    mut problems: Problems,
) -> Snapshot {
    let tables = previous.map(|snapshot| snapshot.reusable.tables.clone()).unwrap_or_default();
    let common = Common { tables: &tables, network: &spec.network };
    let mut sets = Sets::default();
    let mut admission = previous.map_or(0, |snapshot| snapshot.admission);
    let mut services = Vec::with_capacity(programmed.len());
    let mut backends = Vec::with_capacity(ids.backends.len());
    for (service, &id) in programmed.iter().zip(&ids.services) {
        let start = backends.len();
        let end = start + service.backends.len();
        let endpoints = ids.backend_endpoints[start..end].iter().copied();
        let named = ids.backends[start..end].iter().copied().zip(endpoints);
        let admitted = service.spec.source_ranges.as_ref();
        let ranges = admitted.map(|nets| sets.intern(nets, previous.map(|snapshot| &snapshot.source_ranges)));
        let source_ranges = ranges.map(|at| Arc::clone(sets.get(at)));
        let before = previous.and_then(|snapshot| snapshot.services.info(id));
        if source_ranges.is_some() && before.is_some_and(|before| before.source_ranges != source_ranges) {
            admission = spec.generation;
        }
        let ranges = (ranges.map_or(0, |at| at + 1), source_ranges);
        let (hot, info, problem) = finish(service, id, named, ranges, &common, &mut backends);
        problems.selection(sort_key(&service.spec.key), problem);
        services.push((hot, info));
    }
    tables.tidy();
    let sources = (!spec.network.sources.is_empty()).then(|| Arc::clone(&spec.network.sources));
    if previous.is_some_and(|snapshot| snapshot.sources != sources) {
        admission = spec.generation;
    }
    let ports = programmed.iter().map(|service| service.spec).zip(ids.services.iter().copied());
    let limited = limited::limited_services(spec.generation, previous, ports, ids.generations.services.len());
    let lineage = Lineage {
        network: spec.network.clone(),
        ranks: ranks(spec, programmed),
        backends: spec.services.iter().map(|service| service.backends.len()).sum(),
        services: spec.services.iter().cloned().collect(),
        problems,
        fresh: ids.fresh,
        same_outside: false,
    };
    let services = Services::build(ids.generations.services.len(), services);
    Snapshot {
        generation: spec.generation,
        compared: services.compared(),
        further_vips: services.further_vips(),
        services,
        backends: Backends::build(ids.generations.backends.len(), backends.into_iter()),
        endpoints: Endpoints::build(ids.generations.endpoints.len(), &ids.endpoints),
        network,
        policy: spec.network.policy,
        source_ranges: sets,
        limited,
        sources,
        source_rates: source_rates(spec, previous),
        admission,
        reusable: ReusableParts {
            generations: ids.generations,
            tables,
            static_neighbors,
            neighbor_references,
            lineage,
        },
    }
}

/// The rates of source prefixes. An unchanged limit keeps its counts.
fn source_rates(spec: &SnapshotSpec, previous: Option<&Snapshot>) -> Option<Arc<SourceRates>> {
    let rate = spec.network.source_rate?;
    let kept =
        previous.and_then(|snapshot| snapshot.source_rates.as_ref()).filter(|rates| rates.rate == rate);
    Some(kept.map_or_else(|| Arc::new(SourceRates::new(rate)), Arc::clone))
}

/// The position of each service of the spec in the order of keys; `None` if that is the order of the spec.
fn ranks(spec: &SnapshotSpec, programmed: &[Programmed<'_>]) -> Option<Arc<[u32]>> {
    if spec.services.is_sorted_by_key(|service| sort_key(&service.key)) {
        return None;
    }
    let by_key: HashMap<ServiceKey, u32> =
        (0..).zip(programmed).map(|(rank, service)| (service.spec.key, rank)).collect();
    Some(spec.services.iter().map(|service| by_key[&service.key]).collect())
}
