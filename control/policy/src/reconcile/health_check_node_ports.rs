//! Step 5: health-check node ports, and the owner of each of them.

use std::collections::BTreeMap;

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::health::HealthCheckNodePort;
use tidegate_model::objects::{Port, Service, ServiceType, TrafficPolicy};

use super::finding::{Finding, Reason};

/// The health-check node port of a Service, if the API has assigned one and the Service has policy Local.
pub(super) fn health_check_node_port(service: &Service) -> Option<Port> {
    let applies = service.service_type == ServiceType::LoadBalancer
        && service.external_traffic_policy == TrafficPolicy::Local;
    service.health_check_node_port.filter(|_| applies)
}

/// Step 5: the health-check node ports to listen on. If two Services have the same port, the Service that was created
/// first gets it, as with addresses.
pub(super) fn one_owner_each(
    mut listeners: Vec<(&Service, &HealthCheckNodePort)>,
    findings: &mut Vec<Finding>,
) -> Vec<HealthCheckNodePort> {
    listeners.sort_by(|(a, _), (b, _)| a.meta.seniority().cmp(&b.meta.seniority()));
    let mut by_port: BTreeMap<Port, &HealthCheckNodePort> = BTreeMap::new();
    for (service, listener) in listeners {
        if let Some(owner) = by_port.get(&listener.port) {
            let what = format!(
                "healthCheckNodePort {} of Service {} is not served: the port belongs to Service {}",
                listener.port, listener.service, owner.service
            );
            let diagnostic = Diagnostic::error(what).accepting("a port that no other Service uses");
            let field = "spec.healthCheckNodePort";
            let reason = Reason::FailedToStartServiceHealthcheck;
            findings.push(Finding::at(&service.meta, field, reason, diagnostic));
        } else {
            by_port.insert(listener.port, listener);
        }
    }
    by_port.into_values().cloned().collect()
}
