//! The Services with limits, for a compile from scratch and for a revision.

use tidegate_spec::ids::ServiceId;
use tidegate_spec::{NoEndpoints, ServiceSpec};

use crate::service_limits::LimitedServices;
use crate::state::Snapshot;

/// The Services with limits, from the ports in the order of their keys. `indices` is the number of ids.
pub(super) fn limited_services<'a>(
    generation: u64,
    previous: Option<&Snapshot>,
    ports: impl Iterator<Item = (&'a ServiceSpec, ServiceId)>,
    indices: usize,
) -> LimitedServices {
    let limited = ports.filter(|(service, _)| !service.limits.is_none());
    // The limits of the last port count. A port that remains only for its flows may have outdated limits, so such ports
    // come first.
    let (left, served): (Vec<_>, Vec<_>) =
        limited.partition(|(service, _)| service.no_endpoints == NoEndpoints::Unserved);
    let ports = left
        .into_iter()
        .chain(served)
        .map(|(service, id)| (id, (service.namespace.as_str(), service.name.as_str()), service.limits));
    LimitedServices::build(ports, indices, generation, previous.map(|snapshot| &snapshot.limited))
}
