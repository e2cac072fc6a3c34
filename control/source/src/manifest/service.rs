//! `Service`: defaults and validation of core/v1 (`docs/kubernetes.md`, sections 1 and 3).
//!
//! Each fault is reported with its location. A stored object is used without its invalid fields, ports and addresses.
//! An invalid object from a file is refused by the caller.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{
    IpFamily, IpFamilyPolicy, Labels, Metadata, Port, Protocol, Service, ServicePort, ServiceType,
    TargetPort, TrafficPolicy, refused_endpoint,
};
use tidegate_model::yaml::{Field, Fields, ScalarKind, Sheet, Unknown, Value, text};

use super::meta;
use super::object::Object;

/// The protocol of a port: TCP if it is absent or empty, `None` if it is invalid.
pub(super) fn protocol(port: &Fields<'_>) -> Option<Protocol> {
    port.filled("protocol").map_or(Some(Protocol::Tcp), |f| f.named())
}

/// Values of `trafficDistribution` (KEP-4444, KEP-3015).
const TRAFFIC_DISTRIBUTIONS: [(&str, ()); 3] =
    [("PreferClose", ()), ("PreferSameZone", ()), ("PreferSameNode", ())];

/// The ranges of clients, before Services had a field for them.
pub(super) const SOURCE_RANGES_ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

pub(super) fn read(object: &Fields<'_>, meta: Metadata) -> Option<Object> {
    let mut service = Service::new(meta);
    object.allow(&["status"]);
    if let Some(spec) = object.required("spec", "spec with ports").and_then(|f| f.fields()) {
        spec.whole(Unknown::Warned, |spec| read_spec(object, spec, &mut service));
    }
    super::stored::read(object, &mut service);
    Some(Object::Service(Arc::new(service)))
}

fn read_spec(object: &Fields<'_>, spec: &Fields<'_>, service: &mut Service) {
    let is_stored = object.itself().sheet.is_stored();
    service.service_type = match spec.filled("type") {
        Some(field) => field.named().unwrap_or(match is_stored {
            true => ServiceType::ClusterIp,
            // Assume the type that allows the most fields, so that only real faults follow.
            false => ServiceType::LoadBalancer,
        }),
        None => ServiceType::ClusterIp,
    };
    addresses(spec, service);
    service.ports = ports(spec, service);
    service.selector = spec.get("selector").map(|f| meta::labels(&f)).unwrap_or_default();
    load_balancer(spec, service, object);
    affinity(spec, service);
    policies(spec, service);
    spec.set("publishNotReadyAddresses", &mut service.publish_not_ready_addresses, Field::boolean);
    // The controller that writes the slices evaluates this field, and stores the result in their hints.
    if let Some(field) = spec.get("trafficDistribution").filter(|_| !is_stored) {
        field.one_of(&TRAFFIC_DISTRIBUTIONS);
    }
    external_name(spec, service);
}

/// `externalName`, which the gateway doesn't use.
fn external_name(spec: &Fields<'_>, service: &Service) {
    const ACCEPTED: &str = "a DNS name such as db.example.com";
    if service.service_type != ServiceType::ExternalName || spec.itself().sheet.is_stored() {
        spec.allow(&["externalName"]);
    } else if let Some(field) = spec.required("externalName", ACCEPTED) {
        let is_name = |name: &str| text::is_rfc1123_subdomain(name.strip_suffix('.').unwrap_or(name));
        field.string_where(is_name, ACCEPTED);
    }
}

/// `clusterIP(s)`, `ipFamilies`, `ipFamilyPolicy`, `externalIPs`.
fn addresses(spec: &Fields<'_>, service: &mut Service) {
    cluster_ips(spec, service);
    families(spec, service);
    for field in spec.items("externalIPs") {
        let Some(ip) = field.ip() else { continue };
        match refused_endpoint(ip) {
            Some(why) => field.error(format_args!("{ip} is {why}"), "a unicast address of a pool"),
            None => service.external_ips.push(ip),
        }
    }
}

/// `clusterIP(s)`.
fn cluster_ips(spec: &Fields<'_>, service: &mut Service) {
    let one = spec.filled("clusterIP");
    let many = spec.items("clusterIPs");
    let written = if many.is_empty() { one.as_slice() } else { &many };
    if let (Some(one), Some(first)) = (&one, many.first())
        && one.string() != first.string()
    {
        first.error("differs from spec.clusterIP", "the same address in clusterIP and clusterIPs[0]");
    }
    if !spec.itself().sheet.is_stored() {
        if let (None, Some(first)) = (&one, many.first()) {
            first.error(
                "spec.clusterIP is missing",
                "the same address in clusterIP and clusterIPs[0]; or omit clusterIPs",
            );
        }
        if let (ServiceType::ExternalName, Some(first)) = (service.service_type, written.first()) {
            first.error("not allowed with type ExternalName", "no cluster IP");
        }
    }
    for field in written {
        let Some(text) = field.string() else { continue };
        if text == "None" {
            service.headless = true;
            if matches!(service.service_type, ServiceType::LoadBalancer | ServiceType::NodePort) {
                let what = format_args!("None is not allowed with type {}", service.service_type);
                field.error(what, "an address; or omit the field");
            }
        } else if let Some(ip) = field.ip_or("an IPv4 or IPv6 address, or None") {
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
        service.cluster_ips.truncate(1);
    }
    service.cluster_ips.truncate(2);
}

/// `ipFamilies` and `ipFamilyPolicy`, which must match the cluster IPs.
fn families(spec: &Fields<'_>, service: &mut Service) {
    let written_families = spec.items("ipFamilies");
    for field in &written_families {
        match field.named::<IpFamily>() {
            Some(family) if service.ip_families.contains(&family) => {
                field.error(format_args!("{family} is listed twice"), "each family once");
            }
            Some(family) => service.ip_families.push(family),
            None => {}
        }
    }
    for ((ip, family), field) in service.cluster_ips.iter().zip(&service.ip_families).zip(&written_families) {
        if IpFamily::of(*ip) != *family {
            field.error(
                format_args!("{family} is not the family of the cluster IP {ip}"),
                "families in the same order as clusterIPs",
            );
        }
    }
    let policy = spec.get("ipFamilyPolicy");
    let chosen = policy.as_ref().and_then(Field::named);
    service.ip_family_policy = chosen.unwrap_or(IpFamilyPolicy::SingleStack);
    if chosen == Some(IpFamilyPolicy::SingleStack)
        && service.ip_families.len() > 1
        && let Some(field) = policy
    {
        field.error("SingleStack with two families", "PreferDualStack or RequireDualStack, or one family");
    }
    if chosen.is_none() && service.ip_families.len() > 1 {
        // An API server defaults the policy of a Service with two families to RequireDualStack.
        service.ip_family_policy = IpFamilyPolicy::RequireDualStack;
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
        let field = list.as_ref().unwrap_or(spec.itself());
        field.sheet.error(field.at(), "spec.ports: the list is empty", "at least one port");
    }
    let mut taken = Taken::default();
    items.iter().filter_map(|item| port(item, items.len() > 1, service.service_type, &mut taken)).collect()
}

/// The properties of earlier ports that a further port of the Service may not share, each with the path of the first
/// port.
#[derive(Default)]
struct Taken<'a> {
    /// Names; the empty one stands for all ports without a name.
    names: BTreeMap<&'a str, String>,
    ports: BTreeMap<(Port, Protocol), String>,
    node_ports: BTreeMap<(Port, Protocol), String>,
}

/// Reads one port. `has_others`: whether the Service has several ports, so that each needs a name.
fn port<'a>(
    item: &Field<'a>,
    has_others: bool,
    service_type: ServiceType,
    taken: &mut Taken<'a>,
) -> Option<ServicePort> {
    let fields = item.fields()?;
    let port_field = fields.required("port", "a port number from 1 to 65535");
    let port = port_field.as_ref().and_then(Field::port);
    let protocol = protocol(&fields);
    if item.sheet.is_stored() && (port.is_none() || protocol.is_none()) {
        return None;
    }
    let (name, mut is_another) = port_name(item, &fields, has_others, taken);
    if let (Some(port), Some(protocol)) = (port, protocol)
        && let Some(first) = taken.ports.insert((port, protocol), item.path.clone())
        && let Some(field) = &port_field
    {
        field.error(
            format_args!("{port}/{protocol} is already used by {first}"),
            "each port and protocol once",
        );
        is_another = false;
    }
    let target_port = fields.read("targetPort", target_port);
    let node_port = fields.read("nodePort", |f| node_port(item, f, protocol, service_type, taken));
    let app_protocol = fields.read("appProtocol", |f| {
        let accepted = "a name such as http or example.com/proto";
        let check = |name: &str| f.sheet.is_stored() || text::is_qualified_name(name);
        Some(f.string_where(check, accepted)?.to_owned())
    });
    fields.finish(Unknown::Warned);
    let (port, protocol) = (port?, protocol?);
    // If two ports have the same identity, the first one is used.
    if !is_another {
        return None;
    }
    let target_port = target_port.unwrap_or(TargetPort::Number(port));
    let (name, routed) = (name.to_owned(), None);
    Some(ServicePort { name, protocol, app_protocol, port, target_port, node_port, routed })
}

/// The name of a port, which may be empty, and whether it differs from those of earlier ports.
fn port_name<'a>(
    item: &Field<'a>,
    fields: &Fields<'a>,
    has_others: bool,
    taken: &mut Taken<'a>,
) -> (&'a str, bool) {
    let mut is_another = true;
    let field = fields.filled("name");
    let name = field.as_ref().and_then(|f| {
        let accepted = "a name of at most 63 characters of a-z, 0-9 and -, alphanumeric at both ends";
        f.string_where(|name| f.sheet.is_stored() || text::is_rfc1123_label(name), accepted)
    });
    if let (Some(field), Some(name)) = (&field, name)
        && let Some(first) = taken.names.get(name)
    {
        let what = format_args!("the name {name} is already used by {first}");
        field.error(what, "a different name for each port");
        is_another = false;
    }
    if field.is_none() && has_others {
        item.error("name is missing", "a name for each port if there are several");
        is_another &= !taken.names.contains_key("");
    }
    let name = name.unwrap_or_default();
    taken.names.entry(name).or_insert_with(|| item.path.clone());
    (name, is_another)
}

/// The node port, if a Service of this type may have it and no other port has it.
fn node_port(
    item: &Field<'_>,
    field: &Field<'_>,
    protocol: Option<Protocol>,
    service_type: ServiceType,
    taken: &mut Taken<'_>,
) -> Option<Port> {
    let node_port = optional_port(field)?;
    if !matches!(service_type, ServiceType::NodePort | ServiceType::LoadBalancer) {
        field.error(format_args!("not allowed with type {service_type}"), "no nodePort");
        return None;
    }
    if let Some(first) = protocol.and_then(|p| taken.node_ports.insert((node_port, p), item.path.clone())) {
        field
            .error(format_args!("{node_port} is already used at {first}"), "each nodePort and protocol once");
        return None;
    }
    Some(node_port)
}

/// A number or the name of a container port; `None` for 0 and the empty text, which an API server treats as `port`.
fn target_port(field: &Field<'_>) -> Option<TargetPort> {
    match &field.node.value {
        Value::Scalar(s) if s.text.is_empty() => None,
        Value::Scalar(s) if s.kind == ScalarKind::Text => {
            let accepted = "a port number, or a name of at most 15 characters of a-z, 0-9 and -, with at least one \
                letter";
            let check = |name: &str| field.sheet.is_stored() || text::is_port_name(name);
            Some(TargetPort::Name(field.string_where(check, accepted)?.to_owned()))
        }
        _ => optional_port(field).map(TargetPort::Number),
    }
}

/// A port for which 0 means none.
fn optional_port(field: &Field<'_>) -> Option<Port> {
    field.integer(0..=u16::MAX).and_then(Port::new)
}

/// The fields that only Services of type LoadBalancer may have, and their source ranges.
fn load_balancer(spec: &Fields<'_>, service: &mut Service, object: &Fields<'_>) {
    let is_load_balancer = service.service_type == ServiceType::LoadBalancer;
    let only = |field: &Field<'_>| {
        if !is_load_balancer {
            field.error("valid only with type LoadBalancer", "type: LoadBalancer; or omit the field");
        }
    };
    if let Some(field) = spec.filled("loadBalancerIP") {
        service.load_balancer_ip = field.ip();
        service.unreadable_load_balancer_ip = service.load_balancer_ip.is_none();
    }
    if let Some(field) = spec.get("loadBalancerClass") {
        only(&field);
        let is_stored = field.sheet.is_stored();
        let check = |class: &str| is_stored || text::is_qualified_name(class);
        let class = field.string_where(check, "a name such as tidegate.dev/gateway");
        // An unreadable class is treated as different from ours, not as absent.
        let class = if is_stored { Some(class.unwrap_or_default()) } else { class };
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
    let mut is_whole = true;
    let mut ranges: Vec<IpNet> = Vec::new();
    for item in &items {
        let range = item.parsed(|written| source_range(item.sheet, written), text::CIDR);
        is_whole &= range.is_some();
        ranges.extend(range);
    }
    service.source_ranges = if is_whole { ranges } else { restricted(ranges) };
    // The legacy annotation is used only if the field is empty.
    let sheet = object.itself().sheet;
    let report = |what: &str, accepted: &str| {
        let path = format!("metadata.annotations[{SOURCE_RANGES_ANNOTATION}]");
        let fault = Diagnostic::error(format!("{path}: {what}")).accepting(accepted);
        sheet.push(fault.at(service.meta.origin.field(&path)));
    };
    if items.is_empty() && is_load_balancer {
        service.source_ranges = annotated_source_ranges(&service.meta.annotations, sheet, report);
    } else if items.is_empty()
        && !sheet.is_stored()
        && service.meta.annotations.contains_key(SOURCE_RANGES_ANNOTATION)
    {
        report("valid only with type LoadBalancer", "type: LoadBalancer; or omit the annotation");
    }
}

/// Adds what keeps faulty ranges from admitting all clients, by an empty list or in the other family.
fn restricted(mut ranges: Vec<IpNet>) -> Vec<IpNet> {
    for none in ADMITS_NONE {
        if !ranges.iter().any(|range| range.addr().is_ipv4() == none.addr().is_ipv4()) {
            ranges.push(none);
        }
    }
    ranges
}

/// Source ranges that admit no client: one per family, with an address that no packet can have as its source.
const ADMITS_NONE: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::BROADCAST, 32)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 128)),
];

/// The source ranges of the legacy annotation. `report` gets each fault, and what would be accepted.
pub(super) fn annotated_source_ranges(
    annotations: &Labels,
    sheet: &Sheet,
    report: impl Fn(&str, &str),
) -> Vec<IpNet> {
    let list = annotations.get(SOURCE_RANGES_ANNOTATION);
    let Some(list) = list.filter(|l| !l.trim().is_empty()) else { return Vec::new() };
    let read: Vec<Option<IpNet>> = list.split(',').map(|part| source_range(sheet, part)).collect();
    for (part, _) in list.split(',').zip(&read).filter(|(_, range)| range.is_none()) {
        let accepted = format!("{}; separate several with commas", text::CIDR);
        report(&format!("{part:?} is not accepted"), &accepted);
    }
    let is_whole = read.iter().all(Option::is_some);
    let ranges = read.into_iter().flatten().collect();
    if is_whole { ranges } else { restricted(ranges) }
}

/// A CIDR, possibly surrounded by white space. Bits after the prefix are ignored. No packet has an IPv4-mapped IPv6
/// address, so a range of them would admit no client. Such a range is refused, but in a stored object it is read as
/// the IPv4 range.
fn source_range(sheet: &Sheet, written: &str) -> Option<IpNet> {
    let written = written.trim();
    let net = if sheet.is_stored() {
        text::stored_cidr(written)
    } else {
        text::cidr(written).filter(|net| text::unmapped(*net) == *net)
    };
    net.map(|net| net.trunc())
}

fn affinity(spec: &Fields<'_>, service: &mut Service) {
    let affinity = spec.filled("sessionAffinity");
    let by_client = affinity.and_then(|f| f.one_of(&[("None", false), ("ClientIP", true)]));
    let mut seconds = 10_800;
    let config = spec.get("sessionAffinityConfig");
    if let Some(field) = config.as_ref().filter(|f| by_client != Some(true) && !f.sheet.is_stored()) {
        // An API server removes the field before it validates the Service.
        field.warning(
            "has no effect without sessionAffinity: ClientIP",
            "sessionAffinity: ClientIP; or omit the field",
        );
    }
    if let Some(config) = config.filter(|_| by_client == Some(true)).and_then(|f| f.fields()) {
        config
            .part("clientIP", |client| client.set("timeoutSeconds", &mut seconds, |f| f.integer(1..=86_400)));
        config.finish(Unknown::Warned);
    }
    service.session_affinity = (by_client == Some(true)).then(|| Duration::from_secs(seconds));
}

fn policies(spec: &Fields<'_>, service: &mut Service) {
    let external = matches!(service.service_type, ServiceType::NodePort | ServiceType::LoadBalancer)
        || (service.service_type == ServiceType::ClusterIp && !service.external_ips.is_empty());
    if let Some(field) = spec.filled("externalTrafficPolicy") {
        if external {
            service.external_traffic_policy = field.named().unwrap_or(TrafficPolicy::Cluster);
        } else {
            let what = format_args!("not allowed with type {} without externalIPs", service.service_type);
            field.error(what, "type: LoadBalancer or NodePort, or externalIPs; or omit the field");
        }
    }
    spec.set("internalTrafficPolicy", &mut service.internal_traffic_policy, Field::named);
    if let Some(field) = spec.get("healthCheckNodePort")
        && let Some(port) = optional_port(&field)
    {
        let fits = service.service_type == ServiceType::LoadBalancer
            && service.external_traffic_policy == TrafficPolicy::Local;
        let duplicate =
            service.ports.iter().position(|p| p.protocol == Protocol::Tcp && p.node_port == Some(port));
        if let Some(duplicate) = duplicate {
            let what = format_args!("{port} is already spec.ports[{duplicate}].nodePort");
            field.error(what, "a port that is not a nodePort; or omit the field");
        } else if fits {
            service.health_check_node_port = Some(port);
        } else {
            let accepted = "type: LoadBalancer with externalTrafficPolicy: Local; or omit the field";
            field.error("valid only with type LoadBalancer and externalTrafficPolicy Local", accepted);
        }
    }
}
