//! The changes that an API server makes to Services before it stores them: defaults, cluster IPs, node ports,
//! validation.
//!
//! Cluster IPs come from 10.96.0.0/12 and fd00:10:96::/112, node ports from 30000-32767. The lowest free value is used,
//! so tests can predict it; a real server chooses at random. Used values are read from the stored Services, so they are
//! correct immediately after a restart or restore.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use serde_json::{Value, json};

/// Faults, as (field, message).
type Faults = Vec<(String, String)>;

const NODE_PORTS: std::ops::RangeInclusive<u64> = 30_000..=32_767;

/// The addresses and ports that other Services use. They are read on the first allocation, because most writes allocate
/// nothing and there may be thousands of Services.
#[derive(Debug, Default)]
pub(crate) struct InUse {
    /// Services that have not been read yet.
    unread: Vec<Arc<Value>>,
    addresses: BTreeSet<String>,
    node_ports: BTreeSet<(u64, String)>,
    next_v4: u32,
}

impl InUse {
    /// The values used by `services`, except those of the Service that is being written.
    pub(crate) fn by(mut services: Vec<Arc<Value>>, namespace: &str, name: &str) -> Self {
        services.retain(|service| {
            let metadata = &service["metadata"];
            metadata["namespace"] != namespace || metadata["name"] != name
        });
        Self { unread: services, next_v4: 1, ..Self::default() }
    }

    fn read(&mut self) {
        for service in std::mem::take(&mut self.unread) {
            self.record(&service);
        }
    }

    /// Records the addresses and ports of a Service as used.
    pub(crate) fn record(&mut self, service: &Value) {
        let spec = &service["spec"];
        for ip in spec["clusterIPs"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            self.addresses.insert(ip.into());
        }
        for port in spec["ports"].as_array().into_iter().flatten() {
            if let Some(number) = port["nodePort"].as_u64() {
                self.node_ports.insert((number, port["protocol"].as_str().unwrap_or("TCP").into()));
            }
        }
        if let Some(number) = spec["healthCheckNodePort"].as_u64() {
            self.node_ports.insert((number, "TCP".into()));
        }
    }

    fn cluster_ip(&mut self, family: &str) -> String {
        self.read();
        loop {
            let offset = self.next_v4;
            self.next_v4 += 1;
            let ip = if family == "IPv6" {
                let base = u128::from(Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 0));
                IpAddr::V6(Ipv6Addr::from(base + u128::from(offset)))
            } else {
                IpAddr::V4(Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 0)) + offset))
            };
            if self.addresses.insert(ip.to_string()) {
                return ip.to_string();
            }
        }
    }

    fn node_port(&mut self, protocol: &str) -> Option<u64> {
        self.read();
        let free =
            NODE_PORTS.clone().find(|number| !self.node_ports.contains(&(*number, protocol.into())))?;
        self.node_ports.insert((free, protocol.into()));
        Some(free)
    }
}

/// Sets defaults and allocates. `old` is the stored Service on an update.
pub(crate) fn complete(service: &mut Value, old: Option<&Value>, in_use: &mut InUse) -> Result<(), Faults> {
    let spec = &mut service["spec"];
    if !spec.is_object() {
        *spec = json!({});
    }
    default(spec, "type", "ClusterIP".into());
    default(spec, "sessionAffinity", "None".into());
    if spec["sessionAffinity"] == "ClientIP" && spec["sessionAffinityConfig"].is_null() {
        spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": 10_800}});
    }
    let kind = spec["type"].as_str().unwrap_or_default().to_string();
    for port in spec["ports"].as_array_mut().into_iter().flatten() {
        default(port, "protocol", "TCP".into());
        let number = port["port"].clone();
        default(port, "targetPort", number);
    }
    drop_what_the_type_has_not(service, old, &kind);
    let spec = &mut service["spec"];
    if kind == "ExternalName" {
        return validate(service, old);
    }
    default(spec, "internalTrafficPolicy", "Cluster".into());
    let external = matches!(kind.as_str(), "LoadBalancer" | "NodePort")
        || spec["externalIPs"].as_array().is_some_and(|list| !list.is_empty());
    if external {
        default(spec, "externalTrafficPolicy", "Cluster".into());
    }
    if kind == "LoadBalancer" {
        default(spec, "allocateLoadBalancerNodePorts", true.into());
    }
    allocate_addresses(spec, old, in_use);
    validate(service, old)?;
    allocate_ports(&mut service["spec"], &kind, old, in_use)
}

/// Removes fields of the old type after a change of type, unless the same write changed them. Also removes the
/// LoadBalancer status.
fn drop_what_the_type_has_not(service: &mut Value, old: Option<&Value>, kind: &str) {
    let Some(old) = old else { return };
    let is_balancer = kind == "LoadBalancer";
    let has_external_ips = service["spec"]["externalIPs"].as_array().is_some_and(|list| !list.is_empty());
    let external = is_balancer || kind == "NodePort" || has_external_ips;
    for (name, stays) in [
        ("loadBalancerClass", is_balancer),
        ("allocateLoadBalancerNodePorts", is_balancer),
        ("healthCheckNodePort", is_balancer),
        ("externalTrafficPolicy", external),
    ] {
        if !stays && service["spec"][name] == old["spec"][name] {
            service["spec"].as_object_mut().map(|spec| spec.remove(name));
        }
    }
    if !is_balancer && old["spec"]["type"] == "LoadBalancer" {
        service["status"]["loadBalancer"] = json!({});
    }
}

fn default(object: &mut Value, name: &str, value: Value) {
    if object[name].is_null() && !value.is_null() {
        object[name] = value;
    }
}

fn allocate_addresses(spec: &mut Value, old: Option<&Value>, in_use: &mut InUse) {
    if let Some(old) = old {
        for name in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            let before = old["spec"][name].clone();
            default(spec, name, before);
        }
    }
    let headless = spec["clusterIP"] == "None";
    default(spec, "ipFamilyPolicy", "SingleStack".into());
    let requested =
        spec["clusterIP"].as_str().filter(|ip| !ip.is_empty() && !headless).map(ToString::to_string);
    if spec["ipFamilies"].as_array().is_none_or(Vec::is_empty) {
        let first = if requested.as_ref().is_some_and(|ip| ip.contains(':')) { "IPv6" } else { "IPv4" };
        spec["ipFamilies"] = json!([first]);
    }
    let two = matches!(spec["ipFamilyPolicy"].as_str(), Some("PreferDualStack" | "RequireDualStack"));
    let mut families = spec["ipFamilies"].as_array().cloned().unwrap_or_default();
    if two && families.len() == 1 {
        let other = if families[0] == "IPv4" { "IPv6" } else { "IPv4" };
        families.push(other.into());
        spec["ipFamilies"] = json!(families);
    }
    if headless {
        spec["clusterIPs"] = json!(["None"]);
        return;
    }
    let mut addresses: Vec<String> = spec["clusterIPs"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|ip| ip.as_str().map(Into::into))
        .collect();
    if addresses.is_empty() {
        addresses.extend(requested);
    }
    addresses.truncate(families.len());
    for family in &families[addresses.len()..] {
        addresses.push(in_use.cluster_ip(family.as_str().unwrap_or_default()));
    }
    spec["clusterIP"] = addresses[0].clone().into();
    spec["clusterIPs"] = json!(addresses);
}

fn allocate_ports(
    spec: &mut Value,
    kind: &str,
    old: Option<&Value>,
    in_use: &mut InUse,
) -> Result<(), Faults> {
    let wanted =
        kind == "NodePort" || (kind == "LoadBalancer" && spec["allocateLoadBalancerNodePorts"] == true);
    let old_ports = old.map(|old| old["spec"]["ports"].clone()).unwrap_or_default();
    let keeps = matches!(kind, "NodePort" | "LoadBalancer");
    let full = || vec![("spec.ports".to_string(), "Internal error: the node port range is full".to_string())];
    for port in spec["ports"].as_array_mut().into_iter().flatten() {
        if !keeps {
            port.as_object_mut().map(|port| port.remove("nodePort"));
            continue;
        }
        let protocol = port["protocol"].as_str().unwrap_or("TCP").to_string();
        let before = old_ports
            .as_array()
            .into_iter()
            .flatten()
            .find(|one| one["port"] == port["port"] && one["protocol"] == protocol.as_str())
            .map(|one| one["nodePort"].clone());
        if wanted {
            default(port, "nodePort", before.unwrap_or_default());
        }
        if wanted && port["nodePort"].is_null() {
            port["nodePort"] = in_use.node_port(&protocol).ok_or_else(full)?.into();
        }
    }
    if kind == "LoadBalancer" && spec["externalTrafficPolicy"] == "Local" {
        let before = old.map(|old| old["spec"]["healthCheckNodePort"].clone()).unwrap_or_default();
        default(spec, "healthCheckNodePort", before);
        if spec["healthCheckNodePort"].is_null() {
            spec["healthCheckNodePort"] = in_use.node_port("TCP").ok_or_else(full)?.into();
        }
    } else {
        spec.as_object_mut().map(|spec| spec.remove("healthCheckNodePort"));
    }
    Ok(())
}

/// Checks the rules that tests depend on. A real server has more rules.
fn validate(service: &Value, old: Option<&Value>) -> Result<(), Faults> {
    let spec = &service["spec"];
    let mut faults = Faults::new();
    let kind = spec["type"].as_str().unwrap_or_default();
    if !matches!(kind, "ClusterIP" | "NodePort" | "LoadBalancer" | "ExternalName") {
        faults.push((
            "spec.type".into(),
            format!("Unsupported value: {kind:?}: supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\""),
        ));
    }
    let ports = spec["ports"].as_array().map_or(&[][..], Vec::as_slice);
    if ports.is_empty() && kind != "ExternalName" && spec["clusterIP"] != "None" {
        faults.push(("spec.ports".into(), "Required value".into()));
    }
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let at = format!("spec.ports[{index}]");
        validate_port(port, ports.len(), &at, &mut faults);
        if !seen.insert((port["port"].as_u64(), port["protocol"].as_str())) {
            faults.push((at, format!("Duplicate value: {port}")));
        }
    }
    for (index, ip) in spec["externalIPs"].as_array().into_iter().flatten().enumerate() {
        if ip.as_str().is_none_or(|ip| ip.parse::<IpAddr>().is_err()) {
            faults.push((
                format!("spec.externalIPs[{index}]"),
                format!("Invalid value: {ip}: must be a valid IP address"),
            ));
        }
    }
    if !spec["loadBalancerClass"].is_null() && kind != "LoadBalancer" {
        faults.push((
            "spec.loadBalancerClass".into(),
            "Forbidden: may only be used when `type` is 'LoadBalancer'".into(),
        ));
    }
    if let Some(old) = old {
        let changed = |name: &str| old["spec"][name] != spec[name];
        if kind != "ExternalName" && old["spec"]["type"] != "ExternalName" && changed("clusterIP") {
            faults.push((
                "spec.clusterIP".into(),
                format!("Invalid value: {}: field is immutable", spec["clusterIP"]),
            ));
        }
        if kind == "LoadBalancer" && old["spec"]["type"] == "LoadBalancer" && changed("loadBalancerClass") {
            faults.push((
                "spec.loadBalancerClass".into(),
                format!("Invalid value: {}: may not change once set", spec["loadBalancerClass"]),
            ));
        }
    }
    if kind != "LoadBalancer"
        && service["status"]["loadBalancer"]["ingress"].as_array().is_some_and(|list| !list.is_empty())
    {
        faults.push((
            "status.loadBalancer.ingress".into(),
            "Forbidden: may only be used when `spec.type` is \"LoadBalancer\"".into(),
        ));
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

fn validate_port(port: &Value, ports: usize, at: &str, faults: &mut Faults) {
    let name = port["name"].as_str().unwrap_or_default();
    if ports > 1 && name.is_empty() {
        faults.push((format!("{at}.name"), "Required value".into()));
    }
    let legal = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    if !name.chars().all(legal) || name.starts_with('-') || name.ends_with('-') {
        faults.push((
            format!("{at}.name"),
            format!("Invalid value: {name:?}: a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character"),
        ));
    }
    if port["port"].as_u64().is_none_or(|number| !(1..=65_535).contains(&number)) {
        faults.push((
            format!("{at}.port"),
            format!("Invalid value: {}: must be between 1 and 65535, inclusive", port["port"]),
        ));
    }
    if !matches!(port["protocol"].as_str(), Some("TCP" | "UDP" | "SCTP")) {
        faults.push((
            format!("{at}.protocol"),
            format!("Unsupported value: {}: supported values: \"SCTP\", \"TCP\", \"UDP\"", port["protocol"]),
        ));
    }
}
