//! Step 1: whether a Service concerns this gateway, and what its annotations request.

use std::sync::Arc;

use tidegate_model::objects::Service;

use super::finding::{Finding, ObjectKind};
use super::frontend::asks_for_own;
use super::options::options;
use super::planned::Planned;
use super::settings::Settings;
use super::size_limits;
use super::told::told;

/// The plan of a Service; `None` if it requests nothing from this gateway.
pub(super) fn plan(service: &Arc<Service>, settings: &Settings) -> Option<Planned> {
    let wants_load_balancer = settings.claims(service);
    let asks = wants_load_balancer || !service.external_ips.is_empty() || asks_for_own(settings, service);
    if !asks || service.not_for_proxies().is_some() || service.meta.deletion_time.is_some() {
        return None;
    }
    let mut findings = Vec::new();
    findings.extend(Finding::of_faults(ObjectKind::Service, &service.meta));
    let options = options(service, settings, &mut findings);
    let findings = told(&service.meta, findings, &[]);
    let too_large = size_limits::too_many_frontends(settings, service);
    // A Service that is too large is planned without its details. It keeps its assigned addresses.
    let service = match &too_large {
        None => Arc::clone(service),
        Some(_) => {
            Arc::new(Service { ports: Vec::new(), external_ips: Vec::new(), ..Service::clone(service) })
        }
    };
    Some(Planned { service, options, wants_load_balancer, findings, too_large })
}
