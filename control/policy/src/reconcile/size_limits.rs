//! Limits how much of the shared tables one Service may use.
//!
//! Each limit is checked by arithmetic on counts, before anything of that size is built. A Service above a limit is
//! refused as a whole, with a finding and a view that show the reason; every other Service is programmed as usual.
//!
//! The limits are far above the needs of a Service of the Kubernetes API, and far below sizes that would slow down a
//! round for the others.

use std::collections::HashSet;

use tidegate_model::config::{Scheduler, Target};
use tidegate_model::objects::{ENDPOINTS_MAX, Service, ServiceEndpoints, TrafficPolicy};
use tidegate_spec::limits::SOURCE_RANGES_MAX;

use super::annotations::key;
use super::demand::Demand;
use super::frontends::Frontends;
use super::options::Options;
use super::planned::Plan;
use super::settings::Settings;
use super::source_ranges;
use super::too_large::TooLarge;

/// The maximum number of service ports (VIP, protocol, port) of one Service.
pub(super) const FRONTENDS_MAX: usize = 32_768;

/// The maximum number of backends of one Service: its endpoints, counted for each port and VIP that they serve. There
/// is at least one VIP, so this also limits the endpoints over all ports.
pub(super) const BACKENDS_MAX: usize = ENDPOINTS_MAX;

/// The maximum number of backends of one service port: the packet path counts them in 16 bits.
pub(super) const BACKENDS_PER_PORT_MAX: usize = tidegate_spec::limits::BACKENDS_PER_SERVICE_MAX;

/// The maximum number of slots of the Maglev tables that one Service requests by annotation, in addition to those of
/// the configuration: 128 tables of the default size, or 12 of the largest.
pub(super) const SLOTS_MAX: usize = 1 << 23;

/// The maximum number of external IPs of one Service. Each is compared with the others.
const EXTERNAL_IPS_MAX: usize = 1_024;

/// Whether a Service names too many ports and addresses. Addresses that it may still get are counted too.
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
        why: format!("its ports and addresses make up to {frontends} service ports"),
        field: "spec.ports".to_owned(),
        accepted: format!("at most {FRONTENDS_MAX} for one Service"),
    })
}

/// The demand of a Service with its granted addresses, or the reason why it is too large.
pub(super) fn demand(
    settings: &Settings,
    plan: Plan<'_>,
    frontends: &Frontends<'_>,
    endpoints: &ServiceEndpoints,
    nodes: usize,
) -> Result<Demand, TooLarge> {
    if let Some(too_large) = plan.too_large {
        return Err(too_large.clone());
    }
    if let Some(not_kept) = endpoints.not_kept {
        return Err(TooLarge::of_slices(plan.service, not_kept));
    }
    let ranges = plan.service.source_ranges.len();
    if ranges > SOURCE_RANGES_MAX {
        return Err(TooLarge {
            why: format!("it has {ranges} source ranges"),
            field: source_ranges::field(plan.service),
            accepted: format!("at most {SOURCE_RANGES_MAX} for one Service"),
        });
    }
    let mut demand = Demand { ranges, ..Demand::default() };
    for (i, (port, resolved)) in plan.service.ports.iter().zip(&endpoints.ports).enumerate() {
        let candidates = match plan.options.target {
            Target::Pod => resolved.endpoints.len(),
            // Nodes that have an endpoint. The number of other nodes must not matter.
            Target::Node if is_local_alone(settings, plan.service) => {
                resolved.endpoints.iter().map(|endpoint| &endpoint.node).collect::<HashSet<_>>().len()
            }
            Target::Node => nodes,
        };
        if candidates > BACKENDS_PER_PORT_MAX {
            return Err(TooLarge {
                why: format!("port {}/{} has {candidates} endpoints", resolved.port, resolved.protocol),
                field: format!("spec.ports[{i}]"),
                accepted: format!("at most {BACKENDS_PER_PORT_MAX} for one port"),
            });
        }
        let addresses = frontends.addresses_of(port);
        // Ports with the same backends share a table. A port needs one for each family of its addresses.
        let tables = if candidates == 0 { 0 } else { addresses.min(2) };
        let slots = tables * slots_beyond_default(settings, plan.options);
        demand += Demand { frontends: addresses, backends: addresses * candidates, slots, ranges: 0 };
    }
    if demand.slots > SLOTS_MAX {
        return Err(TooLarge {
            why: format!(
                "its annotations ask for {} slots of Maglev tables over all of its ports",
                demand.slots
            ),
            field: format!("metadata.annotations[{}]", key::TABLE_SIZE),
            accepted: format!(
                "at most {SLOTS_MAX} for one Service: fewer ports, smaller tables, or {} rendezvous",
                key::SCHEDULER
            ),
        });
    }
    if let Some(count) = endpoints.too_many {
        demand.backends = count;
    }
    if demand.backends <= BACKENDS_MAX {
        return Ok(demand);
    }
    Err(TooLarge {
        why: format!("its endpoints make {} backends over all of its ports and addresses", demand.backends),
        field: "spec.ports".to_owned(),
        accepted: format!("at most {BACKENDS_MAX} for one Service"),
    })
}

/// Whether all ports of a Service use only nodes with an endpoint, because of policy Local.
pub(super) fn is_local_alone(settings: &Settings, service: &Service) -> bool {
    let is_local = |policy: TrafficPolicy| policy == TrafficPolicy::Local;
    is_local(service.external_traffic_policy)
        && (!settings.services.own_cluster_ips || is_local(service.internal_traffic_policy))
}

/// The slots of a Maglev table of the Service, if the Service requests a table, or a larger one than that of the
/// configuration. Slots that the configuration gives to all Services are not counted.
fn slots_beyond_default(settings: &Settings, options: &Options) -> usize {
    let slots = |scheduler, size: u32| match scheduler {
        Scheduler::Maglev => size as usize,
        _ => 0,
    };
    let default = slots(settings.services.defaults.scheduler, settings.services.defaults.table_size);
    slots(options.scheduler, options.table_size).saturating_sub(default)
}

/// The maximum number of removed backends of one port of a Service that are kept for their flows, in addition to the
/// `listed` ones: as many as the Service may have backends, shared by its ports and addresses, but at least a few.
pub(super) fn kept_max(service: &Service, listed: usize) -> usize {
    const KEPT_MIN: usize = 8;
    let frontends = service.ports.len() * (2 + service.external_ips.len());
    let share = (BACKENDS_MAX / frontends.max(1)).max(KEPT_MIN);
    share.min(BACKENDS_PER_PORT_MAX.saturating_sub(listed))
}
