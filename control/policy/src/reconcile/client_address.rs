//! The forwarding mode of a Service without an annotation for it: the configured mode, or
//! `services.defaults.forwardingLocal` if the configured mode is `fullnat` and the Service requires its clients'
//! addresses (`externalTrafficPolicy: Local`).
//!
//! Only the operator knows which modes the backends are prepared for: with `nat` their route to clients must lead
//! through the gateway, and with DSR they need the VIP. So the gateway doesn't guess. If no mode that keeps addresses
//! is configured, a finding reports it.
//!
//! Pure. The result doesn't depend on the endpoints, because the mode of a Service must not change with them.

use tidegate_model::config::Target;
use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{IpFamily, Service, ServiceType, TargetPort, TrafficPolicy};
use tidegate_spec::ForwardingMode;

use super::finding::{Finding, Reason};
use super::settings::Settings;

/// What to configure for a Service whose clients' addresses are lost.
pub(super) const ACCEPTED: &str = "services.defaults.forwardingLocal or the annotation tidegate.dev/forwarding: nat, \
    dsr-l2 or dsr-ipip after you prepare the backends, or fullnat to accept that client addresses are lost";

/// The forwarding mode of a Service without an annotation. With `has_proxy_header`, backends receive client addresses
/// in the PROXY protocol, so packets needn't keep them. With `is_required`, an alias requires that addresses are kept.
pub(super) fn mode(
    service: &Service,
    settings: &Settings,
    target: Target,
    (has_proxy_header, is_required): (bool, bool),
    findings: &mut Vec<Finding>,
) -> ForwardingMode {
    if settings.services.defaults.forwarding != ForwardingMode::FullNat
        || has_proxy_header
        || !(is_required || requires_client_addresses(service))
    {
        return settings.services.defaults.forwarding;
    }
    let why_not = match settings.services.defaults.forwarding_local {
        None => String::new(),
        Some(mode) => match why_unserved(service, settings, target, mode) {
            None => return mode,
            Some(why) => {
                format!("; services.defaults.forwardingLocal {mode} cannot serve this Service: {why}")
            }
        },
    };
    if !requires_client_addresses(service) {
        // The caller refuses the alias, with its own reason.
        return settings.services.defaults.forwarding;
    }
    let what = format!(
        "Service {} has externalTrafficPolicy Local, and forwarding fullnat replaces its clients' addresses with the \
         gateway's{why_not}",
        service.meta.key
    );
    let diagnostic = Diagnostic::warning(what).accepting(ACCEPTED);
    findings.push(Finding::at(
        &service.meta,
        "spec.externalTrafficPolicy",
        Reason::ClientAddressLost,
        diagnostic,
    ));
    settings.services.defaults.forwarding
}

/// Whether clients outside the cluster use it and must be distinguishable.
fn requires_client_addresses(service: &Service) -> bool {
    let external = matches!(service.service_type, ServiceType::LoadBalancer | ServiceType::NodePort)
        || !service.external_ips.is_empty();
    external && service.external_traffic_policy == TrafficPolicy::Local
}

/// Why a mode can't serve every port of a Service, as far as this is known without its endpoints.
fn why_unserved(
    service: &Service,
    settings: &Settings,
    target: Target,
    mode: ForwardingMode,
) -> Option<String> {
    if !mode.is_dsr() {
        return None;
    }
    if service.service_type == ServiceType::NodePort {
        return Some("node ports are on the gateway's own addresses, which no backend can have".to_owned());
    }
    let has_source =
        [IpFamily::V4, IpFamily::V6].into_iter().any(|family| settings.has_tunnel_source(family));
    if mode.is_tunnel() && !has_source {
        return Some("dataplane.tunnelSource has no address".to_owned());
    }
    let keeps_ports = target == Target::Node;
    service.ports.iter().filter(|_| !keeps_ports).find_map(|port| match &port.target_port {
        TargetPort::Number(number) if *number == port.port => None,
        TargetPort::Number(number) => Some(format!(
            "port {} has target port {number}, but {mode} cannot change port {}",
            port.label(),
            port.port
        )),
        TargetPort::Name(name) => Some(format!(
            "port {} has the named target port {name}, but {mode} cannot change port {}",
            port.label(),
            port.port
        )),
    })
}
