//! `EndpointSlice` (discovery.k8s.io/v1) and legacy `Endpoints` (v1).
//!
//! An endpoint or a port with an error is ignored and the others are used, although an API server would refuse the
//! whole object. The result doesn't depend on what was read before, so a gateway that starts serves the same endpoints
//! as one that has been running. Addresses that can't be endpoints (such as loopback) are kept here; the merge refuses
//! and reports them one by one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{
    AddressType, Conditions, Endpoint, EndpointAddress, EndpointPort, EndpointSlice, Endpoints, IpFamily,
    Metadata, ObjectKey, ObjectRef, Port, Protocol, SERVICE_NAME_LABEL, Subset,
};
use tidegate_model::yaml::{Field, Fields, Sheet, Unknown, text};

use super::limited::limited;
use super::object::{Object, first_faults};
use super::service::protocol;

/// The limits that an API server applies to a slice (discovery.k8s.io validation).
const ENDPOINTS_MAX: usize = 1_000;
const PORTS_MAX: usize = 20_000;
const ADDRESSES_MAX: usize = 100;
/// The maximum number of zone hints, and of node hints, of an endpoint.
const HINTS_MAX: usize = 8;

/// The label of slices that the gateway doesn't read, because their Service belongs to another proxy.
const OTHER_PROXY: &str = "service.kubernetes.io/service-proxy-name";

pub(super) fn read_slice(object: &Fields<'_>, meta: Metadata) -> Option<Object> {
    let types = [AddressType::V4, AddressType::V6, AddressType::Fqdn].map(|known| (known.as_str(), known));
    let address_type = object.required("addressType", "IPv4, IPv6, FQDN").and_then(|f| f.one_of(&types));
    let address_type = address_type.unwrap_or(AddressType::Unknown);
    // Watches filter these out (docs/kubernetes.md, section 2). In a file, they must be filtered here.
    if meta.labels.contains_key(OTHER_PROXY) {
        object.allow(&["ports", "endpoints"]);
        return None;
    }
    belongs_to_a_service(object, &meta);
    let mut faults = Vec::new();
    let ports = ports(&limited(object, "ports", PORTS_MAX), PortsOf::Slice, &mut faults);
    let namespace = meta.key.namespace.clone();
    let items = limited(object, "endpoints", ENDPOINTS_MAX);
    let endpoints = items
        .iter()
        .filter_map(|item| part(item.sheet, &mut faults, || endpoint(item, address_type, &namespace)))
        .collect();
    let meta = Metadata { faults: first_faults(faults.iter(), faults.len(), "EndpointSlice"), ..meta };
    Some(Object::EndpointSlice(Arc::new(EndpointSlice {
        meta,
        address_type,
        ports,
        endpoints,
        left_out: None,
    })))
}

/// Reads a part of an object. In a file, its errors are added to `faults`, and the object that contains the part stays
/// valid.
fn part<T>(sheet: &Sheet, faults: &mut Vec<Diagnostic>, read: impl FnOnce() -> T) -> T {
    let before = sheet.errors();
    let value = read();
    if !sheet.is_stored() {
        faults.extend(sheet.take_errors_since(before));
    }
    value
}

/// Warns if a slice has no Service label, because its endpoints are then unused.
fn belongs_to_a_service(object: &Fields<'_>, meta: &Metadata) {
    let document = object.itself();
    let labels = || document.node.entry("metadata")?.node.entry("labels")?.node.entry(SERVICE_NAME_LABEL);
    let (why, at) = match (meta.labels.get(SERVICE_NAME_LABEL), labels()) {
        (Some(name), Some(entry)) if name.is_empty() => ("is empty", entry.node.at),
        // The label exists, but was not read because of an error in the metadata.
        (Some(_), _) | (None, Some(_)) => return,
        (None, None) => ("is missing", document.at()),
    };
    let slice = match meta.key.name.as_str() {
        "" => "the EndpointSlice".to_owned(),
        _ => format!("EndpointSlice {}", meta.key),
    };
    let what = format!("{slice} belongs to no Service: the label {SERVICE_NAME_LABEL} {why}");
    let accepted = format!("the label {SERVICE_NAME_LABEL} with the name of a Service of the same namespace");
    document.sheet.warning(at, what, accepted);
}

fn endpoint(item: &Field<'_>, address_type: AddressType, namespace: &str) -> Option<Endpoint> {
    let errors_before = item.sheet.errors();
    let fields = item.fields()?;
    let list = fields.required("addresses", "1 to 100 addresses");
    let mut addresses = list.as_ref().map(Field::list).unwrap_or_default();
    let is_stored = item.sheet.is_stored();
    if let Some(list) = &list
        && (addresses.is_empty() || (addresses.len() > ADDRESSES_MAX && !is_stored))
    {
        list.error(format_args!("{} addresses", addresses.len()), format!("1 to {ADDRESSES_MAX} addresses"));
    }
    if is_stored {
        // The other addresses are never used, so they are not checked.
        addresses.truncate(1);
    }
    let parsed: Vec<Option<IpAddr>> = addresses.iter().map(|f| address(f, address_type)).collect();
    let conditions = fields.part("conditions", |written| Conditions {
        ready: written.read("ready", Field::boolean),
        serving: written.read("serving", Field::boolean),
        terminating: written.read("terminating", Field::boolean),
    });
    let conditions = conditions.unwrap_or_default();
    let (node_name, zone) = (fields.text("nodeName"), fields.text("zone"));
    let hints = fields
        .part("hints", |hints| (named(hints, "forZones", "a zone"), named(hints, "forNodes", "a node")));
    let (hint_zones, hint_nodes) = hints.unwrap_or_default();
    let target_ref = target_ref(&fields, namespace);
    fields.allow(&["hostname", "deprecatedTopology"]);
    fields.finish(Unknown::Warned);
    // An endpoint without an address is not used. It stays in the list, because messages refer to its index.
    let is_usable = is_stored || item.sheet.errors() == errors_before;
    let address = parsed.first().copied().flatten().filter(|_| is_usable);
    Some(Endpoint { address, conditions, node_name, zone, hint_zones, hint_nodes, target_ref })
}

/// The names in a list of hints.
fn named(hints: &Fields<'_>, key: &'static str, accepted: &str) -> Vec<String> {
    let name = |fields: &Fields<'_>| fields.required("name", accepted)?.string().map(str::to_owned);
    let items = limited(hints, key, HINTS_MAX);
    items.iter().filter_map(|item| item.fields()?.whole(Unknown::Warned, name)).collect()
}

fn address(field: &Field<'_>, address_type: AddressType) -> Option<IpAddr> {
    let (is_of_type, accepted): (fn(&IpAddr) -> bool, _) = match address_type {
        AddressType::V4 => (IpAddr::is_ipv4, "an IPv4 address"),
        AddressType::V6 => (IpAddr::is_ipv6, "an IPv6 address"),
        AddressType::Fqdn => {
            field.string();
            return None;
        }
        // The invalid type is reported. The addresses are not checked.
        AddressType::Unknown => return None,
    };
    let ip = field.ip_or(accepted)?;
    if !is_of_type(&ip) {
        let (type_name, ip_family) = (address_type.as_str(), IpFamily::of(ip));
        field.error(format_args!("{ip} is {ip_family}, but addressType is {type_name}"), accepted);
        return None;
    }
    Some(ip)
}

/// The object that a list of ports belongs to. An API server validates the ports of the two differently.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PortsOf {
    /// Names are unique, and an empty protocol is an error.
    Slice,
    /// A name may be reused with another protocol, and an empty protocol means TCP.
    Subset,
}

/// Identifies a port in a list.
type PortId<'a> = (&'a str, Option<Protocol>);

/// Ports of a slice or of a subset.
fn ports(items: &[Field<'_>], of: PortsOf, faults: &mut Vec<Diagnostic>) -> Vec<EndpointPort> {
    let mut taken = BTreeMap::new();
    items.iter().filter_map(|item| part(item.sheet, faults, || port(item, of, &mut taken))).collect()
}

/// Reads a port, unless an earlier one has the same name. `taken` contains the ids of earlier ports, each with its
/// path.
fn port<'a>(item: &Field<'a>, of: PortsOf, taken: &mut BTreeMap<PortId<'a>, String>) -> Option<EndpointPort> {
    let fields = item.fields()?;
    let name = match fields.filled("name") {
        Some(f) if f.sheet.is_stored() => f.string().unwrap_or_default(),
        // Without its name, it would count as the unnamed port, which is a different port.
        Some(f) => f.string_where(text::is_rfc1123_label, "the name of a Service port")?,
        None => "",
    };
    let protocol = match fields.get("protocol") {
        Some(field) if of == PortsOf::Slice => field.named(),
        _ => protocol(&fields),
    };
    let id = (name, protocol.filter(|_| of == PortsOf::Subset));
    let mut is_another = true;
    if let Some(first) = taken.get(&id) {
        item.error(
            format_args!("the name {name:?} is already used by {first}"),
            "a different name for each port",
        );
        is_another = false;
    }
    taken.entry(id).or_insert_with(|| item.path.clone());
    let port = fields.get("port").and_then(|f| {
        let port = f.integer(0..=u16::MAX)?;
        if port == 0 {
            f.warning("port 0 is ignored", "a port number from 1 to 65535");
        }
        Port::new(port)
    });
    let app_protocol = fields.read("appProtocol", Field::string).map(str::to_owned);
    fields.finish(Unknown::Warned);
    let protocol = protocol.filter(|_| is_another)?;
    Some(EndpointPort { name: name.to_owned(), protocol, port, app_protocol })
}

fn target_ref(fields: &Fields<'_>, namespace: &str) -> Option<ObjectRef> {
    let target = fields.mapping("targetRef")?;
    let text = |key| target.read(key, Field::string).map(str::to_owned);
    let (kind, name, own_namespace) = (text("kind"), text("name"), text("namespace"));
    target.allow(&["apiVersion", "uid", "resourceVersion", "fieldPath"]);
    target.finish(Unknown::Warned);
    let namespace = own_namespace.unwrap_or_else(|| namespace.to_owned());
    Some(ObjectRef { kind: kind?, key: ObjectKey::new(namespace, name?) })
}

pub(super) fn read_legacy(object: &Fields<'_>, meta: Metadata) -> Option<Object> {
    // The report of the file already contains these faults.
    let mut faults = Vec::new();
    let mut subsets = Vec::new();
    for item in object.items("subsets") {
        let Some(fields) = item.fields() else { continue };
        let mut addresses = |key| {
            let items: Vec<Field<'_>> = fields.items(key);
            let namespace = &meta.key.namespace;
            items.iter().filter_map(|f| part(f.sheet, &mut faults, || legacy_address(f, namespace))).collect()
        };
        let (addresses, not_ready_addresses) = (addresses("addresses"), addresses("notReadyAddresses"));
        let ports = ports(&fields.items("ports"), PortsOf::Subset, &mut faults);
        let subset = Subset { addresses, not_ready_addresses, ports };
        fields.finish(Unknown::Warned);
        subsets.push(subset);
    }
    Some(Object::Endpoints(Arc::new(Endpoints { meta, subsets })))
}

fn legacy_address(item: &Field<'_>, namespace: &str) -> Option<EndpointAddress> {
    let fields = item.fields()?;
    let ip = fields.required("ip", text::IP).and_then(|f| f.ip());
    let node_name = fields.text("nodeName");
    let target_ref = target_ref(&fields, namespace);
    fields.allow(&["hostname"]);
    fields.finish(Unknown::Warned);
    Some(EndpointAddress { ip: ip?, node_name, target_ref })
}
