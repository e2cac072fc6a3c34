//! Service ports during compilation: checked and sorted, then reduced to reachable backends.

use std::net::SocketAddr;

use tidegate_select::maglev;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::limits;
use tidegate_spec::{BackendSpec, CompileError, Scheduler, ServiceSpec, SnapshotSpec};
use tidegate_wire::Addr;

use crate::neighbors::NeighborId;

/// A service port with its backends sorted by identity.
pub(super) struct Sorted<'a> {
    pub(super) spec: &'a ServiceSpec,
    pub(super) vip: Addr,
    pub(super) backends: Vec<(Addr, &'a BackendSpec)>,
}

/// The backends of a service port that can be reached, with their next hops.
pub(super) struct Programmed<'a> {
    pub(super) spec: &'a ServiceSpec,
    pub(super) vip: Addr,
    pub(super) backends: Vec<Reachable<'a>>,
}

pub(super) struct Reachable<'a> {
    pub(super) spec: &'a BackendSpec,
    pub(super) address: Addr,
    pub(super) interface: InterfaceIndex,
    pub(super) neighbor: NeighborId,
}

pub(super) fn at_most(what: &'static str, count: usize, max: usize) -> Result<(), CompileError> {
    if count > max { Err(CompileError::TooMany { what, count, max }) } else { Ok(()) }
}

pub(super) fn sorted_services(spec: &SnapshotSpec) -> Result<Vec<Sorted<'_>>, CompileError> {
    at_most("service ports", spec.services.len(), limits::SERVICES_MAX)?;
    at_most(
        "backends",
        spec.services.iter().map(|service| service.backends.len()).sum(),
        limits::BACKENDS_MAX,
    )?;
    let mut services =
        spec.services.iter().map(|spec| sorted_service(spec)).collect::<Result<Vec<_>, _>>()?;
    let key = |service: &Sorted<'_>| (service.vip, service.spec.key.protocol, service.spec.key.port);
    services.sort_by_key(key);
    match services.windows(2).find(|pair| key(&pair[0]) == key(&pair[1])) {
        Some(pair) => Err(CompileError::DuplicateService { service: pair[0].spec.key }),
        None => Ok(services),
    }
}

pub(super) fn sorted_service(spec: &ServiceSpec) -> Result<Sorted<'_>, CompileError> {
    let service = spec.key;
    if service.port == 0 {
        return Err(CompileError::ServicePortZero { service });
    }
    if let Scheduler::Maglev { slots: size } = spec.scheduler
        && !(size <= limits::MAGLEV_SLOTS_MAX && maglev::is_prime(size))
    {
        return Err(CompileError::TableSize { service, size });
    }
    if spec.rejected_ppm > limits::REJECTED_PPM_MAX {
        return Err(CompileError::RejectedShare { service, ppm: spec.rejected_ppm });
    }
    if spec.backends.len() > limits::BACKENDS_PER_SERVICE_MAX {
        return Err(CompileError::TooManyBackends { service, count: spec.backends.len() });
    }
    if let Some(ranges) = &spec.source_ranges
        && ranges.len() > limits::SOURCE_RANGES_MAX
    {
        return Err(CompileError::TooManySourceRanges { service, count: ranges.len() });
    }
    let mut backends: Vec<_> =
        spec.backends.iter().map(|backend| (Addr::from(backend.address), backend)).collect();
    let key = |&(address, backend): &(Addr, &BackendSpec)| (address, backend.port);
    backends.sort_unstable_by_key(key);
    if let Some(pair) = backends.windows(2).find(|pair| key(&pair[0]) == key(&pair[1])) {
        return Err(CompileError::DuplicateBackend { service, backend: socket(pair[0].1) });
    }
    Ok(Sorted { spec, vip: service.vip.into(), backends })
}

pub(super) fn socket(backend: &BackendSpec) -> SocketAddr {
    SocketAddr::new(backend.address, backend.port)
}
