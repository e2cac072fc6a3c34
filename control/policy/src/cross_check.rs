//! Faults that show only when the configuration is compared with the objects.
//!
//! Only `check` reports them: most of these states are normal for a while, such as a Service without endpoints, and a
//! running gateway reports them in `status` and conditions.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use tidegate_model::config::{GatewayConfig, SourceConfig};
use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{
    AddressRange, EndpointIndex, EndpointShare, ObjectKey, Objects, PortEndpoints, Protocol, Service,
    ServicePort, ServiceType,
};
use tidegate_spec::ForwardingMode;

use crate::pools;
use crate::reconcile::Outcome;
use crate::reconcile::view::ServiceView;

/// The maximum number of Services for which one kind of warning is reported.
const NAMED_MAX: usize = 32;

/// All faults.
#[must_use]
pub fn faults(config: &GatewayConfig, objects: &Objects, outcome: &Outcome) -> Vec<Diagnostic> {
    let mut faults = aggregates(config, objects);
    if matches!(config.source, SourceConfig::Directory(_)) {
        faults.extend(backends_with_own_addresses(config, objects));
        faults.extend(of_other_classes(config, objects));
    } else {
        faults.extend(no_service_of_the_class(config, objects));
    }
    faults.extend(without_endpoints(objects, outcome));
    faults.extend(rejected_shares(objects));
    faults.extend(without_default_route(config, outcome));
    faults
}

/// Aggregates that attract traffic for addresses outside all pools.
fn aggregates(config: &GatewayConfig, objects: &Objects) -> Vec<Diagnostic> {
    let Some(bgp) = &config.announce.bgp else { return Vec::new() };
    let (pools, _) = pools::merge(&config.pools, &objects.address_pools);
    let ranges = || pools.iter().flat_map(|pool| &pool.ranges);
    let outside = bgp.aggregates.iter().enumerate().filter_map(|(i, net)| {
        let range = AddressRange::from(*net);
        let (first, count) = range.outside(ranges())?;
        let field = format!("announce.bgp.aggregates[{i}]");
        let fault = if count == range.size() {
            let what = format!("{field}: {net} contains no address of any pool, so it would only attract traffic for other hosts");
            Diagnostic::error(what).accepting("a prefix with addresses of pools")
        } else {
            Diagnostic::warning(format!(
                "{field}: the gateway attracts the traffic for all addresses of {net}, and {count} of them are in no \
                 pool, such as {first}"
            ))
            .accepting("a prefix with pool addresses only, or this prefix if no host uses its other addresses")
        };
        Some(fault.at(config.origin.field(&field)))
    });
    outside.collect()
}

/// Endpoints whose address is a SNAT or tunnel source address of the gateway, so that the gateway would receive their
/// traffic. This is checked only for a directory, where the operator also writes the endpoints; with an API server, an
/// endpoint cannot claim an address of a gateway.
fn backends_with_own_addresses(config: &GatewayConfig, objects: &Objects) -> Vec<Diagnostic> {
    let network = &config.dataplane.network;
    let own: BTreeSet<IpAddr> =
        network.interfaces.iter().flat_map(|i| i.addresses.iter().map(ipnet::IpNet::addr)).collect();
    let of_slices = objects.endpoint_slices.values().flat_map(|slice| {
        slice
            .endpoints
            .iter()
            .filter_map(move |e| Some((e.address?, format!("EndpointSlice {}", slice.meta.key))))
    });
    let of_legacy = objects.endpoints.values().flat_map(|endpoints| {
        let subsets = endpoints.subsets.iter();
        let addresses = subsets.flat_map(|s| s.addresses.iter().chain(&s.not_ready_addresses));
        addresses.map(move |address| (address.ip, format!("Endpoints {}", endpoints.meta.key)))
    });
    let mut faults = Vec::new();
    for (ip, object) in of_slices.chain(of_legacy) {
        let at = network.snat_addresses.iter().position(|snat| *snat == ip);
        let is_source = network.tunnel_sources().any(|source| source.contains(&ip.into()));
        let field = match at {
            Some(n) => format!("dataplane.snatAddresses[{n}]"),
            None if is_source && !own.contains(&ip) => "dataplane.tunnelSource".to_owned(),
            None => continue,
        };
        let what = format!("{field}: {ip} is also the address of an endpoint of {object}");
        let accepted = "an address that no other host has";
        faults.push(Diagnostic::error(what).accepting(accepted).at(config.origin.field(&field)));
    }
    faults
}

/// Services that have a different class than this gateway.
fn of_other_classes(config: &GatewayConfig, objects: &Objects) -> Vec<Diagnostic> {
    let own = config.source.load_balancer_class();
    let other = |service: &&Service| other_class(service, own).is_some();
    let services = objects.services.values().map(AsRef::as_ref).filter(other);
    let warning = |service: &Service| {
        let class = other_class(service, own).unwrap_or_default();
        let key = &service.meta.key;
        let what = format!("Service {key} gets no address: its loadBalancerClass is {class}");
        let accepted = format!("{own}, or no class");
        Diagnostic::warning(what).accepting(accepted).at(service.meta.origin.field("spec.loadBalancerClass"))
    };
    services.map(warning).take(NAMED_MAX).collect()
}

fn other_class<'a>(service: &'a Service, own: &str) -> Option<&'a str> {
    let class = service.load_balancer_class.as_deref().filter(|class| *class != own);
    class.filter(|_| service.service_type == ServiceType::LoadBalancer)
}

/// With an API server, Services of other classes are normal, so this warns only if no Service has the gateway's class.
fn no_service_of_the_class(config: &GatewayConfig, objects: &Objects) -> Option<Diagnostic> {
    let (own, takes_all) = (config.source.load_balancer_class(), config.source.claims_classless());
    let is_ours =
        |service: &Service| service.load_balancer_class.as_deref().map_or(takes_all, |class| class == own);
    let services = || objects.services.values().filter(|s| s.service_type == ServiceType::LoadBalancer);
    let (all, ours) = (services().count(), services().filter(|service| is_ours(service)).count());
    if all == 0 || ours > 0 {
        return None;
    }
    let what = format!("none of the {all} Services of type LoadBalancer has the loadBalancerClass {own}");
    let accepted = format!(
        "spec.loadBalancerClass: {own}, or source.kubernetes.default: true for Services without a class"
    );
    let location = config.origin.field("source.kubernetes.loadBalancerClass");
    Some(Diagnostic::warning(what).accepting(accepted).at(location))
}

/// Services without any endpoint. Endpoints that lack the ports of the Service are reported elsewhere.
fn without_endpoints(objects: &Objects, outcome: &Outcome) -> Vec<Diagnostic> {
    let index = EndpointIndex::new(objects);
    let is_empty = |view: &&ServiceView| view.ports.iter().all(|port| port.backends.is_empty());
    let views = outcome.services.iter().map(AsRef::as_ref).filter(is_empty);
    let key = |view: &ServiceView| ObjectKey::new(view.namespace.as_str(), view.name.as_str());
    let services = views.filter_map(|view| objects.services.get(&key(view)));
    let warning = |service: &Arc<Service>| {
        let resolved = index.resolve(service);
        let is_described = resolved.ports.iter().any(|port| !port.endpoints.is_empty())
            || !resolved.unmatched.is_empty()
            || resolved.too_many.is_some()
            || resolved.not_kept.is_some();
        if is_described || service.service_type == ServiceType::ExternalName {
            return None;
        }
        let (key, field) = (&service.meta.key, "spec.selector");
        let (object, accepted) = match key.gateway_name() {
            Some(name) => {
                let accepted = "a TCPRoute or UDPRoute to a Service that has endpoints".to_owned();
                (format!("Gateway {}/{name}", key.namespace), accepted)
            }
            None => {
                let (namespace, name) = (&key.namespace, &key.name);
                let label = format!("the label kubernetes.io/service-name: {name}");
                let accepted =
                    format!("an EndpointSlice of namespace {namespace} with endpoints and {label}");
                (format!("Service {key}"), accepted)
            }
        };
        let what = format!("{object} has no endpoint, so its clients are not served");
        Some(Diagnostic::warning(what).accepting(accepted).at(service.meta.origin.field(field)))
    };
    services.filter_map(warning).take(NAMED_MAX).collect()
}

/// Routes of which a part of the new flows, or all of them, are rejected although every reference is valid.
fn rejected_shares(objects: &Objects) -> Vec<Diagnostic> {
    let index = EndpointIndex::new(objects);
    let gateways = objects.services.values().filter(|service| service.meta.key.gateway_name().is_some());
    let of_port = |port: &ServicePort, endpoints: &PortEndpoints| -> Option<Vec<Diagnostic>> {
        let (routed, shares) = (port.routed.as_ref()?, endpoints.shares.as_ref()?);
        let (kind, key) = routed.route.as_ref()?.split_once(' ')?;
        let (namespace, name) = key.split_once('/')?;
        let key = ObjectKey::new(namespace, name);
        let route = match port.protocol {
            Protocol::Udp => objects.udp_routes.get(&key)?,
            Protocol::Tcp | Protocol::Sctp => objects.tcp_routes.get(&key)?,
        };
        let total: u64 = shares.iter().map(|share| u64::from(share.weight)).sum();
        if total == 0 {
            let what = format!("{kind} {key}: all weights are 0, so every new flow is rejected");
            let at = route.meta.origin.field("spec.rules[0].backendRefs");
            return Some(vec![Diagnostic::warning(what).accepting("a weight of 1 or more").at(at)]);
        }
        let is_served = |share: &EndpointShare| share.weight > 0 && !share.endpoints.is_empty();
        if !shares.iter().any(is_served) {
            // The whole Gateway is reported.
            return None;
        }
        let empty = routed.backends.iter().zip(shares).enumerate().filter_map(|(at, (backend, share))| {
            let (service, _) = backend.service.as_ref()?;
            if share.weight == 0 || !share.endpoints.is_empty() {
                return None;
            }
            let percent = u64::from(share.weight) * 100 / total;
            let what = format!(
                "{kind} {key}: Service {service} has no endpoint, so its share of new flows ({percent} %) is rejected"
            );
            let accepted = format!("an EndpointSlice with endpoints of Service {service}");
            let field = format!("spec.rules[0].backendRefs[{at}]");
            Some(Diagnostic::warning(what).accepting(accepted).at(route.meta.origin.field(&field)))
        });
        Some(empty.collect())
    };
    let warnings: BTreeSet<Diagnostic> = gateways
        .flat_map(|gateway| {
            let resolved = index.resolve(gateway);
            let ports = gateway.ports.iter().zip(&resolved.ports);
            ports.filter_map(|(port, endpoints)| of_port(port, endpoints)).flatten().collect::<Vec<_>>()
        })
        .collect();
    warnings.into_iter().take(NAMED_MAX).collect()
}

/// In `nat` and `fullnat` mode, replies to clients go through the gateway, which needs a route to them.
fn without_default_route(config: &GatewayConfig, outcome: &Outcome) -> Vec<Diagnostic> {
    let routes = &config.dataplane.network.routes;
    let mut warnings = Vec::new();
    for (is_v4, family, to) in [(true, "IPv4", "0.0.0.0/0"), (false, "IPv6", "::/0")] {
        let mut specs = outcome.spec.services.iter();
        let translates = |mode| matches!(mode, ForwardingMode::Nat | ForwardingMode::FullNat);
        let first = specs.find(|spec| spec.key.vip.is_ipv4() == is_v4 && translates(spec.mode));
        let has_route =
            routes.iter().any(|route| route.to.prefix_len() == 0 && route.to.addr().is_ipv4() == is_v4);
        let Some(spec) = first.filter(|_| !has_route) else { continue };
        let what = format!(
            "dataplane.routes: there is no {family} default route, so clients that no other route covers get no answer \
             from Services in mode {}, such as {}/{}",
            spec.mode, spec.namespace, spec.name
        );
        let accepted = format!("a route to {to}");
        warnings
            .push(Diagnostic::warning(what).accepting(accepted).at(config.origin.field("dataplane.routes")));
    }
    warnings
}
