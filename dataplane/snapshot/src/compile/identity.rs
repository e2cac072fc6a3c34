//! Assigns ids to everything that is programmed. Objects of the previous snapshot keep their ids; new ones get free
//! ids.
//!
//! A service is identified by (VIP, protocol, port), a backend by its service and (address, port), an endpoint by
//! (address, port, protocol). Snapshot compilation calls it; [`super::super::indices`] allocates indices.
//!
//! Invariant: objects are numbered in the order of their keys, so equal histories give equal ids.

use tidegate_spec::ForwardingMode;
use tidegate_spec::ids::{BackendId, EndpointId, ServiceId};

use super::services::Programmed;
use crate::backend::{EndpointKey, Uses};
use crate::indices::{Generations, Indices, Kind};
use crate::lineage::{Fresh, sort_key};
use crate::state::Snapshot;

/// Ids of everything programmed: services and backends in their order, endpoints by key.
pub(super) struct Ids {
    pub(super) services: Vec<ServiceId>,
    /// The backends of all services, in order.
    pub(super) backends: Vec<BackendId>,
    /// The endpoint of each backend.
    pub(super) backend_endpoints: Vec<EndpointId>,
    /// Sorted by key.
    pub(super) endpoints: Vec<(EndpointKey, EndpointId, Uses)>,
    pub(super) generations: Generations,
    /// The ids that the previous snapshot did not have.
    pub(super) fresh: Fresh,
}

impl Ids {
    pub(super) fn assign(programmed: &[Programmed<'_>], previous: Option<&Snapshot>) -> Self {
        let before = previous.map(|snapshot| snapshot.reusable.generations.clone()).unwrap_or_default();

        let kept_services: Vec<_> = programmed
            .iter()
            .map(|service| Some(previous?.services.at(&sort_key(&service.spec.key))?.1))
            .collect();
        let (services, service_generations, fresh_services) = assign(
            &before.services,
            kept_services.iter().map(|known| known.map(|known| known.id)),
            ServiceId::index,
            ServiceId::new,
        );

        let kept_backends = programmed.iter().zip(&kept_services).flat_map(|(service, known)| {
            let known = known.filter(|known| same_kind_of_flow(known.mode, service.spec.mode));
            service.backends.iter().map(move |backend| {
                let backends = &known?.backends;
                let key = (backend.address, backend.spec.port);
                let at = backends.binary_search_by_key(&key, |known| (known.address, known.port)).ok()?;
                Some(backends[at].id)
            })
        });
        let (backends, backend_generations, fresh_backends) =
            assign(&before.backends, kept_backends, BackendId::index, BackendId::new);

        let keyed = endpoint_keys(programmed);
        let groups: Vec<_> = keyed.chunk_by(|a, b| a.0 == b.0).collect();
        let kept_endpoints = groups.iter().map(|group| Some(previous?.endpoints.known(&group[0].0)?.0));
        let (endpoint_ids, endpoint_generations, _) =
            assign(&before.endpoints, kept_endpoints, EndpointId::index, EndpointId::new);
        let mut backend_endpoints = vec![EndpointId::from_raw(0); keyed.len()];
        let mut endpoints = Vec::with_capacity(groups.len());
        for (group, &id) in groups.iter().zip(&endpoint_ids) {
            for &(_, backend, _) in *group {
                backend_endpoints[backend] = id;
            }
            let count = |count: usize| u32::try_from(count).expect("below limits::BACKENDS_MAX");
            let replies = group.iter().filter(|&&(.., replies)| replies).count();
            endpoints.push((group[0].0, id, Uses { all: count(group.len()), replies: count(replies) }));
        }
        let fresh = Fresh { services: fresh_services, backends: fresh_backends };
        Self {
            services,
            backends,
            backend_endpoints,
            endpoints,
            generations: Generations {
                services: service_generations,
                backends: backend_generations,
                endpoints: endpoint_generations,
            },
            fresh,
        }
    }
}

/// Whether flows of one mode can continue in the other: DSR modes don't differ in the inner packet.
pub(super) fn same_kind_of_flow(a: ForwardingMode, b: ForwardingMode) -> bool {
    a == b || a.is_dsr() && b.is_dsr()
}

/// The ids of a list of objects, given the ids that some of them already have.
fn assign<Id: Copy>(
    generations: &Kind,
    kept: impl Iterator<Item = Option<Id>>,
    index: impl Fn(Id) -> usize,
    new: impl Fn(usize, u32) -> Id,
) -> (Vec<Id>, Kind, Box<[Id]>) {
    let mut indices = Indices::resume(generations);
    let kept: Vec<Option<Id>> =
        kept.inspect(|id| id.iter().for_each(|&id| indices.keep(index(id)))).collect();
    let mut fresh = Vec::new();
    let mut allocate = || {
        let (index, generation) = indices.fresh();
        fresh.push(new(index, generation));
        new(index, generation)
    };
    let ids = kept.into_iter().map(|id| id.unwrap_or_else(&mut allocate)).collect();
    (ids, indices.finish(), fresh.into())
}

/// The endpoint of every backend, with the backend's number over all services, sorted by endpoint.
fn endpoint_keys(programmed: &[Programmed<'_>]) -> Vec<(EndpointKey, usize, bool)> {
    let of_service = |service: &'_ Programmed<'_>| {
        let (protocol, replies) = (service.spec.key.protocol, !service.spec.mode.is_dsr());
        service
            .backends
            .iter()
            .map(move |backend| {
                (EndpointKey { address: backend.address, port: backend.spec.port, protocol }, replies)
            })
            .collect::<Vec<_>>()
    };
    let all = programmed.iter().flat_map(of_service).enumerate();
    let mut keyed: Vec<_> = all.map(|(at, (key, replies))| (key, at, replies)).collect();
    keyed.sort_unstable();
    keyed
}
