//! How much one Service may take of the tables that all Services share.
//!
//! Each limit is checked by arithmetic on counts, before anything of that size is built. A Service above a limit is
//! refused whole, with a finding and a view that says why; every other Service is programmed as usual.
//!
//! The limits are far above what a Service of the Kubernetes API needs, and far below what would slow a round down for
//! the others.

use super::finding::{Finding, Reason};
use super::settings::Settings;
use crate::diagnostic::Diagnostic;
use crate::model::{ENDPOINTS_MAX, Service, ServiceEndpoints};

/// Service ports (VIP, protocol, port) of one Service.
pub(super) const FRONTENDS_MAX: usize = 32_768;

/// Backends of one Service: its endpoints, counted for each port and VIP that they serve. One VIP is the least, so this
/// bounds the endpoints over all ports too.
pub(super) const BACKENDS_MAX: usize = ENDPOINTS_MAX;

/// Backends of one service port: the packet path counts them in 16 bits.
pub(super) const BACKENDS_PER_PORT_MAX: usize = tidegate_core::limits::BACKENDS_PER_SERVICE_MAX;

/// What is wrong with the size of a Service, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TooLarge {
    pub(super) why: String,
    field: String,
    accepted: String,
}

impl TooLarge {
    /// The finding about it.
    pub(super) fn finding(&self, service: &Service) -> Finding {
        let what = format!("Service {} is not programmed: {}", service.meta.key, self.why);
        let diagnostic = Diagnostic::error(what).accepting(self.accepted.clone());
        Finding::at(&service.meta, &self.field, Reason::LimitExceeded, diagnostic)
    }
}

/// Whether the ports and addresses that a Service names are too many. Addresses that it may be given are counted too.
pub(super) fn too_many_frontends(settings: &Settings, service: &Service) -> Option<TooLarge> {
    // One LoadBalancer address of each family.
    let pools = 2 + service.external_ips.len();
    let cluster_ips = if settings.own_cluster_ips { service.cluster_ips.len() } else { 0 };
    let numbered = service.ports.iter().filter(|port| port.node_port.is_some()).count();
    let node_ports =
        if settings.node_port_addresses.is_empty() { 0 } else { settings.node_port_vips().len() };
    let frontends = service.ports.len() * (pools + cluster_ips) + numbered * node_ports;
    (frontends > FRONTENDS_MAX).then(|| TooLarge {
        why: format!("its ports and addresses make up to {frontends} service ports"),
        field: "spec.ports".to_owned(),
        accepted: format!("at most {FRONTENDS_MAX} for one Service"),
    })
}

/// Whether the endpoints of a Service are too many on `frontends` service ports.
pub(super) fn too_many_backends(endpoints: &ServiceEndpoints, addresses: usize) -> Option<TooLarge> {
    let largest = endpoints.ports.iter().enumerate().max_by_key(|(_, port)| port.endpoints.len());
    if let Some((i, port)) = largest
        && port.endpoints.len() > BACKENDS_PER_PORT_MAX
    {
        return Some(TooLarge {
            why: format!("port {}/{} has {} endpoints", port.port, port.protocol, port.endpoints.len()),
            field: format!("spec.ports[{i}]"),
            accepted: format!("at most {BACKENDS_PER_PORT_MAX} for one port"),
        });
    }
    let backends = match endpoints.too_many {
        Some(count) => count,
        None => endpoints.ports.iter().map(|port| port.endpoints.len()).sum::<usize>() * addresses,
    };
    (backends > BACKENDS_MAX).then(|| TooLarge {
        why: format!("its endpoints make {backends} backends over all of its ports and addresses"),
        field: "spec.ports".to_owned(),
        accepted: format!("at most {BACKENDS_MAX} for one Service"),
    })
}
