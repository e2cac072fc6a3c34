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

use super::annotations::key;
use super::demand::Demand;
use super::frontends::Frontends;
use super::options::Options;
use super::planned::Plan;
use super::settings::Settings;
use super::too_large::TooLarge;

/// Service ports (VIP, protocol, port) of one Service.
pub(super) const FRONTENDS_MAX: usize = 32_768;

/// Backends of one Service: its endpoints, counted for each port and VIP that they serve. One VIP is the least, so this
/// bounds the endpoints over all ports too.
pub(super) const BACKENDS_MAX: usize = ENDPOINTS_MAX;

/// Backends of one service port: the packet path counts them in 16 bits.
pub(super) const BACKENDS_PER_PORT_MAX: usize = tidegate_core::limits::BACKENDS_PER_SERVICE_MAX;

/// Slots of the Maglev tables that one Service asks for by annotation, beyond what the configuration gives it anyway:
/// 128 tables of the usual size, 12 of the largest.
pub(super) const SLOTS_MAX: usize = 1 << 23;

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

/// How much a Service asks for on the addresses that it was granted, or what is too much about it.
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
    let mut demand = Demand::default();
    for (i, (port, resolved)) in plan.service.ports.iter().zip(&endpoints.ports).enumerate() {
        let candidates = match plan.options.target {
            Target::Pod => resolved.endpoints.len(),
            // Those that have an endpoint: how many nodes there are beside them must not matter.
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
        // Ports with the same backends share a table: those of one port on its addresses, of each family.
        let tables = if candidates == 0 { 0 } else { addresses.min(2) };
        let slots = tables * slots_beyond_default(settings, plan.options);
        demand += Demand { frontends: addresses, backends: addresses * candidates, slots };
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

/// Whether every port of a Service takes nodes with an endpoint alone, by the policy Local.
pub(super) fn is_local_alone(settings: &Settings, service: &Service) -> bool {
    let is_local = |policy: TrafficPolicy| policy == TrafficPolicy::Local;
    is_local(service.external_traffic_policy)
        && (!settings.own_cluster_ips || is_local(service.internal_traffic_policy))
}

/// Slots of a Maglev table of the Service, where it asks for a table, or a larger one, than the configuration gives it.
/// What the operator gives to all is the operator's to count.
fn slots_beyond_default(settings: &Settings, options: &Options) -> usize {
    let slots = |scheduler, size: u32| match scheduler {
        Scheduler::Maglev => size as usize,
        Scheduler::Rendezvous => 0,
    };
    let default = slots(settings.scheduler, settings.table_size);
    slots(options.scheduler, options.table_size).saturating_sub(default)
}

/// How many backends that have left one port of a Service are kept for their flows, beside those that are `listed`: as
/// many as the Service may have backends, shared by its ports and addresses. A few in any case.
pub(super) fn kept_max(service: &Service, listed: usize) -> usize {
    const KEPT_MIN: usize = 8;
    let frontends = service.ports.len() * (2 + service.external_ips.len());
    let share = (BACKENDS_MAX / frontends.max(1)).max(KEPT_MIN);
    share.min(BACKENDS_PER_PORT_MAX.saturating_sub(listed))
}
