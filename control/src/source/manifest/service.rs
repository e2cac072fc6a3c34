//! `Service`: defaults and validation of core/v1 (kubernetes.md, Services and ports, and the policies).

use std::collections::BTreeMap;
use std::time::Duration;

use ipnet::IpNet;

use std::sync::Arc;

use super::{Object, meta};
use crate::model::{
    IpFamily, IpFamilyPolicy, Metadata, Port, Protocol, Service, ServicePort, ServiceType, TargetPort,
    TrafficPolicy, refused_endpoint,
};
use crate::yaml::{Field, Fields, ScalarKind, Unknown, Value, text};

/// The protocols of ports.
pub(super) const PROTOCOLS: [(&str, Protocol); 3] =
    [("TCP", Protocol::Tcp), ("UDP", Protocol::Udp), ("SCTP", Protocol::Sctp)];

const SOURCE_RANGES_ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

pub(super) fn read(object: &Fields<'_>, meta: Metadata) -> Option<Object> {
    object.allow(&["status"]);
    let spec = object.required("spec", "spec with ports")?.fields()?;
    let mut service = Service::new(meta);
    let types = [
        ("ClusterIP", ServiceType::ClusterIp),
        ("NodePort", ServiceType::NodePort),
        ("LoadBalancer", ServiceType::LoadBalancer),
        ("ExternalName", ServiceType::ExternalName),
    ];
    service.service_type = match spec.get("type") {
        // A faulty type stands in for the one that allows most, so that only real faults follow.
        Some(field) => field.one_of(&types).unwrap_or(ServiceType::LoadBalancer),
        None => ServiceType::ClusterIp,
    };
    addresses(&spec, &mut service);
    service.ports = ports(&spec, &service);
    service.selector = spec.get("selector").map(|f| meta::labels(&f)).unwrap_or_default();
    load_balancer(&spec, &mut service, object);
    affinity(&spec, &mut service);
    policies(&spec, &mut service);
    let published = spec.get("publishNotReadyAddresses").and_then(|f| f.boolean());
    service.publish_not_ready_addresses = published.unwrap_or(false);
    spec.allow(&["externalName", "trafficDistribution"]);
    spec.finish(Unknown::Warned);
    super::stored::read(object, &mut service);
    Some(Object::Service(Arc::new(service)))
}

/// `clusterIP(s)`, `ipFamilies`, `ipFamilyPolicy`, `externalIPs`.
fn addresses(spec: &Fields<'_>, service: &mut Service) {
    let one = spec.get("clusterIP").filter(|f| !meta::is_empty(f));
    let many = spec.items("clusterIPs");
    let written = if many.is_empty() { one.as_slice() } else { &many };
    if let (Some(one), Some(first)) = (&one, many.first())
        && one.string() != first.string()
    {
        first.error("differs from spec.clusterIP", "the same address in both");
    }
    for field in written {
        let Some(text) = field.string() else { continue };
        if text == "None" {
            service.headless = true;
            if matches!(service.service_type, ServiceType::LoadBalancer | ServiceType::NodePort) {
                let what = format_args!("None does not go with type {}", service.service_type);
                field.error(what, "an address, or leave it out");
            }
        } else if let Some(ip) = field.parsed(|t| t.parse().ok(), "an IPv4 or IPv6 address, or None") {
            service.cluster_ips.push(ip);
        }
    }
    if (service.headless && written.len() > 1) || service.cluster_ips.len() > 2 {
        written[1].error("too many cluster IPs", "one address of each family, or None alone");
    }
    if let [first, second] = service.cluster_ips[..]
        && IpFamily::of(first) == IpFamily::of(second)
    {
        written[1].error("a second cluster IP of the same family", "one address of each family");
    }
    let families = [("IPv4", IpFamily::V4), ("IPv6", IpFamily::V6)];
    let written_families = spec.items("ipFamilies");
    for field in &written_families {
        match field.one_of(&families) {
            Some(family) if service.ip_families.contains(&family) => {
                field.error(format_args!("{family} twice"), "each family once");
            }
            Some(family) => service.ip_families.push(family),
            None => {}
        }
    }
    for ((ip, family), field) in service.cluster_ips.iter().zip(&service.ip_families).zip(&written_families) {
        if IpFamily::of(*ip) != *family {
            field.error(
                format_args!("{family} does not fit the cluster IP {ip}"),
                "families in the order of clusterIPs",
            );
        }
    }
    let policies =
        [IpFamilyPolicy::SingleStack, IpFamilyPolicy::PreferDualStack, IpFamilyPolicy::RequireDualStack];
    let policy = spec.get("ipFamilyPolicy");
    let chosen = policy.as_ref().and_then(|f| f.one_of(&policies.map(|p| (p.as_str(), p))));
    service.ip_family_policy = chosen.unwrap_or(IpFamilyPolicy::SingleStack);
    if chosen == Some(IpFamilyPolicy::SingleStack)
        && service.ip_families.len() > 1
        && let Some(field) = policy
    {
        field.error("SingleStack with two families", "PreferDualStack or RequireDualStack, or one family");
    }
    if chosen.is_none() && service.ip_families.len() > 1 {
        // An API server defaults the policy of a Service that names two families to RequireDualStack.
        service.ip_family_policy = IpFamilyPolicy::RequireDualStack;
    }
    for field in spec.items("externalIPs") {
        let Some(ip) = field.ip() else { continue };
        match refused_endpoint(ip) {
            Some(why) => field.error(format_args!("{ip} is {why}"), "a unicast address of a pool"),
            None => service.external_ips.push(ip),
        }
    }
}

fn ports(spec: &Fields<'_>, service: &Service) -> Vec<ServicePort> {
    let list = spec.get("ports");
    let items = list.as_ref().map(Field::list).unwrap_or_default();
    let needs_ports = !service.headless && service.service_type != ServiceType::ExternalName;
    if needs_ports
        && items.is_empty()
        && list.as_ref().is_none_or(|f| matches!(f.node.value, Value::Sequence(_)))
    {
        let place = list.as_ref().unwrap_or(spec.itself());
        place.sheet.error(place.at(), "spec.ports: no port", "at least one port");
    }
    let mut seen = BTreeMap::new();
    let mut names = BTreeMap::new();
    let mut node_ports = BTreeMap::new();
    let mut ports = Vec::new();
    for item in &items {
        let Some(fields) = item.fields() else { continue };
        let port_field = fields.required("port", "a port number from 1 to 65535");
        let port = port_field.as_ref().and_then(Field::port);
        let protocol = match fields.get("protocol") {
            Some(field) => field.one_of(&PROTOCOLS),
            None => Some(Protocol::Tcp),
        };
        let name_field = fields.get("name").filter(|f| !meta::is_empty(f));
        let name = name_field.as_ref().and_then(|f| {
            f.string_where(
                text::is_rfc1123_label,
                "a name of a-z, 0-9 and -, alphanumeric at both ends, 63 at most",
            )
        });
        if let (Some(field), Some(name)) = (&name_field, name)
            && let Some(first) = names.insert(name, item.path.clone())
        {
            field
                .error(format_args!("{name} is also the name of {first}"), "a name of its own for each port");
        }
        if name_field.is_none() && items.len() > 1 {
            item.error("name is missing", "a name for each of several ports");
        }
        if let (Some(port), Some(protocol)) = (port, protocol)
            && let Some(first) = seen.insert((port, protocol), item.path.clone())
            && let Some(field) = &port_field
        {
            field.error(format_args!("{port}/{protocol} is also {first}"), "each port and protocol once");
        }
        let target_port = fields.get("targetPort").map(|f| target_port(&f));
        let node_port = fields.get("nodePort").and_then(|f| {
            let node_port = optional_port(&f)?;
            if !matches!(service.service_type, ServiceType::NodePort | ServiceType::LoadBalancer) {
                f.error(format_args!("does not go with type {}", service.service_type), "no nodePort");
            }
            if let Some(first) = protocol.and_then(|p| node_ports.insert((node_port, p), item.path.clone())) {
                f.error(format_args!("{node_port} is also at {first}"), "each nodePort and protocol once");
            }
            Some(node_port)
        });
        let app_protocol = fields.get("appProtocol").and_then(|f| {
            Some(
                f.string_where(text::is_qualified_name, "a name such as http or example.com/proto")?
                    .to_owned(),
            )
        });
        fields.finish(Unknown::Warned);
        let (Some(port), Some(protocol)) = (port, protocol) else { continue };
        let Some(target_port) = target_port.unwrap_or(Some(TargetPort::Number(port))) else { continue };
        let name = name.unwrap_or_default().to_owned();
        ports.push(ServicePort { name, protocol, app_protocol, port, target_port, node_port });
    }
    ports
}

/// A number or the name of a container port.
fn target_port(field: &Field<'_>) -> Option<TargetPort> {
    match &field.node.value {
        Value::Scalar(s) if s.kind == ScalarKind::Text => {
            let accepted = "a port number, or a name of at most 15 of a-z, 0-9 and - with a letter";
            let name = field.string_where(text::is_port_name, accepted)?;
            Some(TargetPort::Name(name.to_owned()))
        }
        _ => field.port().map(TargetPort::Number),
    }
}

/// A port where 0 means none.
fn optional_port(field: &Field<'_>) -> Option<Port> {
    field.integer(0..=65535).and_then(|n| u16::try_from(n).ok()).and_then(Port::new)
}

/// What only Services of type LoadBalancer may have, and their source ranges.
fn load_balancer(spec: &Fields<'_>, service: &mut Service, object: &Fields<'_>) {
    let is_load_balancer = service.service_type == ServiceType::LoadBalancer;
    let only = |field: &Field<'_>| {
        if !is_load_balancer {
            field.error("goes with type LoadBalancer only", "type: LoadBalancer, or leave it out");
        }
    };
    if let Some(field) = spec.get("loadBalancerIP").filter(|f| !meta::is_empty(f)) {
        service.load_balancer_ip = field.ip();
    }
    if let Some(field) = spec.get("loadBalancerClass") {
        only(&field);
        let class = field.string_where(text::is_qualified_name, "a name such as tidegate.dev/gateway");
        service.load_balancer_class = class.map(str::to_owned);
    }
    if let Some(field) = spec.get("allocateLoadBalancerNodePorts") {
        only(&field);
        service.allocate_node_ports = field.boolean().unwrap_or(true);
    }
    let ranges = spec.get("loadBalancerSourceRanges");
    let items = ranges.as_ref().map(Field::list).unwrap_or_default();
    if let Some(field) = ranges.as_ref().filter(|_| !items.is_empty()) {
        only(field);
    }
    for item in &items {
        service.source_ranges.extend(item.parsed(source_range, text::CIDR));
    }
    if !items.is_empty() || !is_load_balancer {
        return;
    }
    // The legacy annotation counts only where the field is empty.
    if let Some(list) =
        service.meta.annotations.get(SOURCE_RANGES_ANNOTATION).filter(|l| !l.trim().is_empty())
    {
        for part in list.split(',') {
            match source_range(part) {
                Some(range) => service.source_ranges.push(range),
                None => {
                    let path = format!("metadata.annotations[{SOURCE_RANGES_ANNOTATION}]");
                    let sheet = object.itself().sheet;
                    sheet.push(
                        crate::diagnostic::Diagnostic::error(format!("{path}: {part:?} is not accepted"))
                            .accepting(format!("{}, several with commas", text::CIDR))
                            .at(service.meta.origin.field(&path)),
                    );
                }
            }
        }
    }
}

/// A CIDR with white space around it; bits after the prefix do not count.
fn source_range(written: &str) -> Option<IpNet> {
    text::cidr(written.trim()).map(|net| net.trunc())
}

fn affinity(spec: &Fields<'_>, service: &mut Service) {
    let by_client =
        spec.get("sessionAffinity").and_then(|f| f.one_of(&[("None", false), ("ClientIP", true)]));
    let mut seconds = 10_800;
    if let Some(field) = spec.get("sessionAffinityConfig")
        && let Some(config) = field.fields()
    {
        if by_client != Some(true) {
            field.error(
                "goes with sessionAffinity: ClientIP only",
                "sessionAffinity: ClientIP, or leave it out",
            );
        }
        if let Some(client) = config.mapping("clientIP") {
            let written = client.get("timeoutSeconds").and_then(|f| f.integer(1..=86_400));
            seconds = written.and_then(|n| u64::try_from(n).ok()).unwrap_or(seconds);
            client.finish(Unknown::Warned);
        }
        config.finish(Unknown::Warned);
    }
    service.session_affinity = (by_client == Some(true)).then(|| Duration::from_secs(seconds));
}

fn policies(spec: &Fields<'_>, service: &mut Service) {
    let choices = [("Cluster", TrafficPolicy::Cluster), ("Local", TrafficPolicy::Local)];
    let external = matches!(service.service_type, ServiceType::NodePort | ServiceType::LoadBalancer)
        || (service.service_type == ServiceType::ClusterIp && !service.external_ips.is_empty());
    if let Some(field) = spec.get("externalTrafficPolicy").filter(|f| !meta::is_empty(f)) {
        if external {
            service.external_traffic_policy = field.one_of(&choices).unwrap_or(TrafficPolicy::Cluster);
        } else {
            let what = format_args!("does not go with type {} without externalIPs", service.service_type);
            field.error(what, "type: LoadBalancer or NodePort, or externalIPs, or leave it out");
        }
    }
    let internal = spec.get("internalTrafficPolicy").and_then(|f| f.one_of(&choices));
    service.internal_traffic_policy = internal.unwrap_or(TrafficPolicy::Cluster);
    if let Some(field) = spec.get("healthCheckNodePort")
        && let Some(port) = optional_port(&field)
    {
        let fits = service.service_type == ServiceType::LoadBalancer
            && service.external_traffic_policy == TrafficPolicy::Local;
        if fits {
            service.health_check_node_port = Some(port);
        } else {
            let accepted = "type: LoadBalancer with externalTrafficPolicy: Local, or leave it out";
            field.error("goes with type LoadBalancer and externalTrafficPolicy Local only", accepted);
        }
    }
}
