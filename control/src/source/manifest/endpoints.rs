//! `EndpointSlice` (discovery.k8s.io/v1) and legacy `Endpoints` (v1).
//!
//! Addresses that may not be endpoints (loopback and the like) are kept here: the merge refuses them one by
//! one and says so, where an API server would refuse the whole object.

use std::collections::BTreeMap;
use std::net::IpAddr;

use std::sync::Arc;

use super::service::PROTOCOLS;
use super::{Object, meta};
use crate::model::{
    AddressType, Conditions, Endpoint, EndpointAddress, EndpointPort, EndpointSlice, Endpoints, Metadata,
    ObjectKey, ObjectRef, Protocol, SERVICE_NAME_LABEL, Subset,
};
use crate::yaml::{Field, Fields, Unknown, text};

/// Labels of slices that no proxy serves: of a headless Service, or of one that another proxy has.
const NOT_FOR_PROXIES: [&str; 2] =
    ["service.kubernetes.io/headless", "service.kubernetes.io/service-proxy-name"];

pub(super) fn read_slice(object: &Fields<'_>, meta: Metadata) -> Option<Object> {
    let types = [("IPv4", AddressType::V4), ("IPv6", AddressType::V6), ("FQDN", AddressType::Fqdn)];
    let address_type = object.required("addressType", "IPv4, IPv6, FQDN").and_then(|f| f.one_of(&types));
    // A faulty type stands in for names, so that no address is held against it.
    let address_type = address_type.unwrap_or(AddressType::Fqdn);
    // Watches leave these out (kubernetes.md, section 1); in a file nobody but us can.
    if NOT_FOR_PROXIES.iter().any(|label| meta.labels.contains_key(*label)) {
        object.allow(&["ports", "endpoints"]);
        return None;
    }
    if !meta.labels.contains_key(SERVICE_NAME_LABEL) {
        let what = format!("EndpointSlice {} belongs to no Service", meta.key);
        object.itself().warning(what, format!("the label {SERVICE_NAME_LABEL} with the name of the Service"));
    }
    let ports = ports(&object.items("ports"));
    let namespace = meta.key.namespace.clone();
    let items = object.items("endpoints");
    let endpoints = items.iter().filter_map(|item| endpoint(item, address_type, &namespace)).collect();
    Some(Object::EndpointSlice(Arc::new(EndpointSlice { meta, address_type, ports, endpoints })))
}

fn endpoint(item: &Field<'_>, address_type: AddressType, namespace: &str) -> Option<Endpoint> {
    let fields = item.fields()?;
    let list = fields.required("addresses", "1 to 100 addresses");
    let addresses = list.as_ref().map(Field::list).unwrap_or_default();
    if let Some(list) = &list
        && !(1..=100).contains(&addresses.len())
    {
        list.error(format_args!("{} addresses", addresses.len()), "1 to 100 addresses");
    }
    let parsed: Vec<Option<IpAddr>> = addresses.iter().map(|f| address(f, address_type)).collect();
    let mut conditions = Conditions::default();
    if let Some(written) = fields.mapping("conditions") {
        let condition = |key| written.get(key).and_then(|f| f.boolean());
        conditions.ready = condition("ready");
        conditions.serving = condition("serving");
        conditions.terminating = condition("terminating");
        written.finish(Unknown::Warned);
    }
    let node_name = node_name(&fields);
    let zone = fields.get("zone").filter(|f| !meta::is_empty(f)).and_then(|f| f.string()).map(str::to_owned);
    let mut hint_zones = Vec::new();
    if let Some(hints) = fields.mapping("hints") {
        for zone in hints.items("forZones") {
            let Some(zone) = zone.fields() else { continue };
            hint_zones.extend(zone.required("name", "a zone").and_then(|f| f.string()).map(str::to_owned));
            zone.finish(Unknown::Warned);
        }
        hints.allow(&["forNodes"]);
        hints.finish(Unknown::Warned);
    }
    let target_ref = target_ref(&fields, namespace);
    fields.allow(&["hostname", "deprecatedTopology"]);
    fields.finish(Unknown::Warned);
    let address = parsed.first().copied().flatten();
    Some(Endpoint { address, conditions, node_name, zone, hint_zones, target_ref })
}

fn address(field: &Field<'_>, address_type: AddressType) -> Option<IpAddr> {
    match address_type {
        AddressType::V4 => field.parsed(|t| t.parse().ok().map(IpAddr::V4), "an IPv4 address"),
        AddressType::V6 => field.parsed(|t| t.parse().ok().map(IpAddr::V6), "an IPv6 address"),
        AddressType::Fqdn => {
            field.string();
            None
        }
    }
}

/// Ports of a slice or of a subset; names are unique.
fn ports(items: &[Field<'_>]) -> Vec<EndpointPort> {
    let mut names = BTreeMap::new();
    let mut ports = Vec::new();
    for item in items {
        let Some(fields) = item.fields() else { continue };
        let name = fields.get("name").filter(|f| !meta::is_empty(f));
        let name = name.and_then(|f| f.string_where(text::is_rfc1123_label, "the name of a Service port"));
        let name = name.unwrap_or_default();
        if let Some(first) = names.insert(name, item.path.clone()) {
            item.error(
                format_args!("the name {name:?} is also that of {first}"),
                "a name of its own for each port",
            );
        }
        let protocol = fields.get("protocol").map_or(Some(Protocol::Tcp), |f| f.one_of(&PROTOCOLS));
        let port_field = fields.get("port");
        let port = port_field.as_ref().and_then(Field::port);
        let app_protocol = fields.get("appProtocol").and_then(|f| f.string()).map(str::to_owned);
        fields.finish(Unknown::Warned);
        if let Some(protocol) = protocol {
            ports.push(EndpointPort { name: name.to_owned(), protocol, port, app_protocol });
        }
    }
    ports
}

fn node_name(fields: &Fields<'_>) -> Option<String> {
    fields.get("nodeName").filter(|f| !meta::is_empty(f)).and_then(|f| f.string()).map(str::to_owned)
}

fn target_ref(fields: &Fields<'_>, namespace: &str) -> Option<ObjectRef> {
    let target = fields.mapping("targetRef")?;
    let text = |key| target.get(key).and_then(|f| f.string()).map(str::to_owned);
    let (kind, name, own_namespace) = (text("kind"), text("name"), text("namespace"));
    target.allow(&["apiVersion", "uid", "resourceVersion", "fieldPath"]);
    target.finish(Unknown::Warned);
    let namespace = own_namespace.unwrap_or_else(|| namespace.to_owned());
    Some(ObjectRef { kind: kind?, key: ObjectKey::new(namespace, name?) })
}

pub(super) fn read_legacy(object: &Fields<'_>, meta: Metadata) -> Option<Object> {
    let mut subsets = Vec::new();
    for item in object.items("subsets") {
        let Some(fields) = item.fields() else { continue };
        let addresses = |key| {
            let items: Vec<Field<'_>> = fields.items(key);
            items.iter().filter_map(|f| legacy_address(f, &meta.key.namespace)).collect()
        };
        let subset = Subset {
            addresses: addresses("addresses"),
            not_ready_addresses: addresses("notReadyAddresses"),
            ports: ports(&fields.items("ports")),
        };
        fields.finish(Unknown::Warned);
        subsets.push(subset);
    }
    Some(Object::Endpoints(Arc::new(Endpoints { meta, subsets })))
}

fn legacy_address(item: &Field<'_>, namespace: &str) -> Option<EndpointAddress> {
    let fields = item.fields()?;
    let ip = fields.required("ip", text::IP).and_then(|f| f.ip());
    let node_name = node_name(&fields);
    let target_ref = target_ref(&fields, namespace);
    fields.allow(&["hostname"]);
    fields.finish(Unknown::Warned);
    Some(EndpointAddress { ip: ip?, node_name, target_ref })
}
