//! Effects of changed services on other state: limits, next hops, announcements, and lists that are built from all
//! services.
//!
//! Invariant: pure functions of the changes and the network.

use std::net::IpAddr;

use tidegate_spec::ownership::Layer2;
use tidegate_spec::{NoEndpoints, Protocol, ServiceLimits, ServiceSpec};

use crate::compile::changes::Changes;
use crate::network::Network;
use crate::routes::NextHop;
use crate::state::Snapshot;

/// Whether lists that are built from all services differ: source ranges, or the VIPs that are not always answered.
pub(super) fn on_lists_of_all(changes: &Changes<'_>, previous: &Snapshot) -> bool {
    let listed = |service: &ServiceSpec| {
        let is_usual = matches!(service.layer2, Layer2::Always | Layer2::Answered);
        (!is_usual || !previous.network.layer2.is_empty()).then_some(service.layer2)
    };
    let differs_in_ranges =
        changes.services.iter().any(|change| change.differs(|service| service.source_ranges.as_ref()));
    differs_in_ranges || changes.services.iter().any(|change| change.differs(listed))
}

/// Whether all limits are unchanged and apply to the same services.
pub(super) fn same_limits(changes: &Changes<'_>) -> bool {
    let limits_of = |service| limits(service).map(|limits| (limits, leaves(service)));
    !changes.services.iter().any(|change| change.differs(limits_of))
}

/// Whether the same services compare loads.
pub(super) fn same_compared(changes: &Changes<'_>) -> bool {
    let compares = |service: &ServiceSpec| service.scheduler.compares_loads().then_some(());
    !changes.services.iter().any(|change| change.differs(compares))
}

/// Whether an SCTP service changed.
pub(super) fn on_sctp(changes: &Changes<'_>) -> bool {
    let is_sctp = |service: &ServiceSpec| service.key.protocol == Protocol::Sctp;
    changes.services.iter().any(|change| change.any(is_sctp))
}

/// Whether next hops and announced addresses are unchanged.
pub(super) fn same_outside(changes: &Changes<'_>, network: &Network) -> bool {
    changes.services.iter().all(|change| {
        !change.differs(|service| (service.layer2 != Layer2::Answered).then_some(service.layer2))
            && !change.any(|service| on_link(network, service))
    })
}

/// Whether a removed service had next hops, which then become free at once.
pub(super) fn frees_next_hops(changes: &Changes<'_>, network: &Network) -> bool {
    let mut gone = changes.services.iter().filter(|change| change.new.is_none());
    gone.any(|change| change.any(|service| on_link(network, service)))
}

/// The limits of a service port, and the Service to which they apply.
fn limits(service: &ServiceSpec) -> Option<(ServiceLimits, &str, &str)> {
    (!service.limits.is_none()).then_some((service.limits, &service.namespace, &service.name))
}

/// Whether the service was removed and keeps only its flows, so its VIP is not an address of the gateway.
fn leaves(service: &ServiceSpec) -> bool {
    service.no_endpoints == NoEndpoints::Unserved
}

/// Whether a backend of the service is a next hop itself, or is in a network of an interface. Such backends are
/// resolved in advance, even if a more specific route leads to them through a router.
fn on_link(network: &Network, service: &ServiceSpec) -> bool {
    let itself = |hop: NextHop| hop.via.is_none();
    let is_near = |address: &IpAddr| {
        network.interfaces.iter().flat_map(|interface| &interface.addresses).any(|net| net.contains(address))
    };
    let mut addresses = service.backends.iter().map(|backend| backend.address);
    addresses.any(|address| is_near(&address) || network.routes.find(&address.into()).is_some_and(itself))
}
