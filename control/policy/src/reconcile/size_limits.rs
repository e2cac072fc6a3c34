//! The limits on the size of one Service, and why a Service above one of them is refused ([`TooLarge`]).
//!
//! Each limit is checked by arithmetic on counts, before anything of that size is built. A Service above a limit is
//! refused as a whole, with a finding and a view that show the reason. Every other Service is programmed as usual.
//!
//! The limits are far above what a Service in Kubernetes needs, and far below sizes that would slow down a round for
//! others. `table_shares` limits what all Services need together.

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{ENDPOINTS_MAX, NotKept, Service, TrafficPolicy};

use super::demand::Demand;
use super::finding::{Finding, Reason};
use super::settings::Settings;

/// The maximum number of service ports (VIP, protocol, port) of one Service.
const FRONTENDS_MAX: usize = 32_768;

/// The maximum number of backends of one Service: its endpoints, counted for each port and VIP that they serve. There
/// is at least one VIP, so this also limits the endpoints over all ports.
pub(super) const BACKENDS_MAX: usize = ENDPOINTS_MAX;

/// The maximum number of backends of one service port. The packet path counts them in 16 bits.
pub(super) const BACKENDS_PER_PORT_MAX: usize = tidegate_spec::limits::BACKENDS_PER_SERVICE_MAX;

/// The maximum number of external IPs of one Service. Every pair of them is compared.
const EXTERNAL_IPS_MAX: usize = 1_024;

/// Whether a Service has too many ports and addresses. Addresses that it may get later count too.
pub(super) fn too_many_frontends(settings: &Settings, service: &Service) -> Option<TooLarge> {
    if service.external_ips.len() > EXTERNAL_IPS_MAX {
        return Some(TooLarge {
            why: format!("it has {} external IPs", service.external_ips.len()),
            field: "spec.externalIPs".to_owned(),
            accepted: format!("at most {EXTERNAL_IPS_MAX} for one Service"),
        });
    }
    // One LoadBalancer address of each family.
    let pools = 2 + service.external_ips.len();
    let cluster_ips = if settings.services.own_cluster_ips { service.cluster_ips.len() } else { 0 };
    let numbered = service.ports.iter().filter(|port| port.node_port.is_some()).count();
    let node_ports =
        if settings.services.node_port_addresses.is_empty() { 0 } else { settings.node_port_vips().len() };
    let frontends = service.ports.len() * (pools + cluster_ips) + numbered * node_ports;
    (frontends > FRONTENDS_MAX).then(|| TooLarge {
        why: format!("its ports and addresses result in up to {frontends} service ports"),
        field: "spec.ports".to_owned(),
        accepted: format!("at most {FRONTENDS_MAX} for one Service"),
    })
}

/// Whether all ports of a Service use only nodes with an endpoint, because of policy Local.
pub(super) fn is_local_only(settings: &Settings, service: &Service) -> bool {
    let is_local = |policy: TrafficPolicy| policy == TrafficPolicy::Local;
    is_local(service.external_traffic_policy)
        && (!settings.services.own_cluster_ips || is_local(service.internal_traffic_policy))
}

/// How many removed backends one service port may keep for their flows, beyond the `listed` ones: its share of the
/// Service's [`BACKENDS_MAX`], but at least `KEPT_MIN`.
pub(super) fn kept_max(service: &Service, listed: usize) -> usize {
    const KEPT_MIN: usize = 8;
    let frontends = service.ports.len() * (2 + service.external_ips.len());
    let share = (BACKENDS_MAX / frontends.max(1)).max(KEPT_MIN);
    share.min(BACKENDS_PER_PORT_MAX.saturating_sub(listed))
}

/// Why a Service is too large, and which field to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TooLarge {
    pub(super) why: String,
    pub(super) field: String,
    pub(super) accepted: String,
}

impl TooLarge {
    /// All Services together request more than `max`, and the Services of this namespace request the most.
    pub(super) fn of_all(namespace: &str, max: &Demand) -> Self {
        let Demand { frontends, backends, slots, ranges } = max;
        Self {
            why: format!(
                "all Services together need more than fits in the gateway's tables, and namespace {namespace} needs \
                 the most: its newest Services are not programmed"
            ),
            field: "spec.ports".to_owned(),
            accepted: format!(
                "at most {frontends} service ports, {backends} backends, {slots} slots of Maglev tables \
                 requested by annotations, and {ranges} source ranges of all Services together"
            ),
        }
    }

    /// The source does not keep the endpoints of the Service.
    pub(super) fn of_slices(service: &Service, not_kept: NotKept) -> Self {
        let namespace = &service.meta.key.namespace;
        let why = match not_kept {
            NotKept::TooManyEndpoints => {
                "its EndpointSlices list more endpoints than one Service may have".to_owned()
            }
            NotKept::NamespaceShare => format!(
                "the EndpointSlices of all namespaces together exceed endpointSlicesMiB, and namespace {namespace} \
                 exceeds its share: the EndpointSlices of this namespace's newest Services are ignored"
            ),
            NotKept::Awaited => {
                "its EndpointSlices were too large; they fit again and will be read within 60 s".to_owned()
            }
        };
        Self {
            why,
            field: "metadata.namespace".to_owned(),
            accepted: format!(
                "at most {ENDPOINTS_MAX} endpoints for one Service, and EndpointSlices of all namespaces together up \
                 to the size of endpointSlicesMiB in the configuration of the gateway"
            ),
        }
    }

    pub(super) fn finding(&self, service: &Service) -> Finding {
        let what = format!("Service {} is not programmed: {}", service.meta.key, self.why);
        let diagnostic = Diagnostic::error(what).accepting(self.accepted.clone());
        Finding::at(&service.meta, &self.field, Reason::LimitExceeded, diagnostic)
    }
}
