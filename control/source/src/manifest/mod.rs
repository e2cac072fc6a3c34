//! Decodes Kubernetes objects from YAML trees, with the defaults and validation of an API server.
//!
//! [`decode`] takes one document and returns the objects in it (several for a `List`). An object with an error is
//! refused, the others stay; an EndpointSlice or Endpoints loses only the endpoint or port with the error. Unknown
//! fields cause warnings, as with an API server's strict validation, and so do kinds that the gateway doesn't use.
//! [`decode_stored`] takes an object that an API server has stored and never refuses it: only an invalid field is
//! ignored. Pure: no file is read here.
//!
//! Invariant: [`decode_stored`] reads every object that [`decode`] reads without an error, with the same result.

mod endpoints;
mod gateway_api;
mod limited;
mod meta;
mod object;
mod pod;
mod pool;
mod secret;
mod service;
pub(crate) mod stored;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use tidegate_model::diagnostic::Report;
use tidegate_model::objects::Metadata;
use tidegate_model::objects::gateway_api::API_VERSION;
use tidegate_model::yaml::{Field, Fields, Node, Position, Sheet, Unknown, Value, text};

use crate::slices::is_headless;
use crate::{Kinds, RefusedObject};
use object::service_of;

pub(crate) use object::Object;

type Read = fn(&Fields<'_>, Metadata) -> Option<Object>;

/// (kind, apiVersion, rule for its name, function that reads it)
type Kind = (&'static str, &'static str, meta::Scope, Read);

const KINDS: [Kind; 14] = [
    ("Service", "v1", meta::SERVICE, service::read),
    ("EndpointSlice", "discovery.k8s.io/v1", meta::NAMESPACED, endpoints::read_slice),
    ("Endpoints", "v1", meta::NAMESPACED, endpoints::read_legacy),
    ("Pod", "v1", meta::NAMESPACED, pod::read),
    ("Namespace", "v1", meta::NAMESPACE, pod::read_namespace),
    ("Node", "v1", meta::CLUSTER, pod::read_node),
    ("AddressPool", tidegate_model::config::API_VERSION, meta::CLUSTER, pool::read),
    ("ServiceCIDR", "networking.k8s.io/v1", meta::CLUSTER, pod::read_service_cidr),
    ("GatewayClass", API_VERSION, meta::CLUSTER, gateway_api::read_class),
    ("Gateway", API_VERSION, meta::NAMESPACED, gateway_api::read_gateway),
    ("ListenerSet", API_VERSION, meta::NAMESPACED, gateway_api::read_listener_set),
    ("TCPRoute", API_VERSION, meta::NAMESPACED, gateway_api::read_tcp_route),
    ("UDPRoute", API_VERSION, meta::NAMESPACED, gateway_api::read_udp_route),
    ("ReferenceGrant", API_VERSION, meta::NAMESPACED, gateway_api::read_grant),
];

/// The kind that only edges read.
const SECRET: Kind = ("Secret", "v1", meta::NAMESPACED, secret::read);

/// The kinds that this reader reads. Those of the Gateway API are always included.
fn known(kinds: Kinds) -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().chain(kinds.tls_secrets.then_some(&SECRET))
}

/// The contents of a document.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    /// The valid objects.
    pub(crate) objects: Vec<Object>,
    /// The objects with an error that have a name.
    pub(crate) refused: Vec<RefusedObject>,
}

/// The objects of a document that are of these kinds. Faults are added to the sheet.
pub(crate) fn decode(sheet: &Sheet, document: &Node, kinds: Kinds) -> Decoded {
    let mut decoded = Decoded::default();
    collect(&Field::document(sheet, document), None, kinds, &mut decoded);
    decoded
}

/// Whether the gateway reads the object at this position. A fault in the text of any other object, such as a Deployment
/// in the same file, doesn't concern the gateway.
pub(crate) fn is_read(document: &Node, place: Position, kinds: Kinds) -> bool {
    let text = |key| document.entry(key).and_then(|entry| entry.node.text());
    let Some(kind) = text("kind") else { return true };
    let items = document.entry("items").map(|entry| &entry.node.value);
    if let ("List", Some(Value::Sequence(items))) = (kind, items) {
        let item = items.iter().rev().find(|item| item.at <= place);
        return item.is_none_or(|item| is_read(item, place, kinds));
    }
    let group = text("apiVersion").map(group_of);
    // A near miss of one of our names is reported as an error of its own.
    let is_known = |kind: &str| known(kinds).any(|known| known.0 == kind) || !near_misses(kind).is_empty();
    let is_known = is_known(kind) || kind.strip_suffix("List").is_some_and(is_known);
    is_known && group.is_none_or(|group| KINDS.iter().any(|known| group_of(known.1) == group))
}

/// Decodes an object of this kind that an API server has stored. `name` is its name in messages. `None` if the gateway
/// doesn't read it. Its invalid parts are in its [`Metadata::faults`] (those of an AddressPool in
/// [`AddressPool::faults`]), for the code that reports them. The report contains the faults that would not be reported
/// otherwise.
pub(crate) fn decode_stored(
    object: &Node,
    kind: &str,
    name: impl Into<Arc<str>>,
) -> (Option<Object>, Report) {
    let sheet = Sheet::of_stored(name);
    let decoded = KINDS.iter().find(|known| known.0 == kind).and_then(|(_, _, scope, read)| {
        let fields = Field::document(&sheet, object).fields()?;
        let read = read(&fields, meta::read(&fields, kind, scope));
        fields.finish(Unknown::Ignored);
        read
    });
    match decoded {
        Some(object) => object.with_faults(sheet.into_report()),
        None => (None, sheet.into_report()),
    }
}

/// Kinds that exist and aren't read, although their names are similar to those of kinds that are.
const OTHER_KINDS: [&str; 3] = ["HTTPRoute", "GRPCRoute", "TLSRoute"];

/// The kinds that may be meant by an unknown kind.
fn near_misses(kind: &str) -> Vec<&'static str> {
    if OTHER_KINDS.contains(&kind) { Vec::new() } else { text::nearest(kind, &KINDS.map(|known| known.0)) }
}

/// The API group of an `apiVersion`; empty for the core group.
fn group_of(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

/// Reports a kind that the gateway doesn't use, or one of its own kinds that is misspelled: a similar name in the same
/// group.
fn not_read(document: &Field<'_>, kind: &str, group: Option<&str>) {
    let names = KINDS.map(|k| k.0);
    let near = near_misses(kind).into_iter().find(|name| {
        let own = KINDS.iter().find(|(n, ..)| n == name).map(|(_, version, ..)| group_of(version));
        group.is_none() || own == group
    });
    match near {
        Some(near) => document.error(
            format_args!("kind {kind} is not known; the nearest known kind is {near}"),
            names.join(", "),
        ),
        None => {
            document.warning(format_args!("the gateway does not read kind {kind}"), names.join(", "));
        }
    }
}

/// Reads an object, or the items of a list. `assumed` is the kind that a typed list gives to its items.
fn collect(document: &Field<'_>, assumed: Option<&str>, kinds: Kinds, decoded: &mut Decoded) {
    let names = || KINDS.map(|k| k.0).join(", ");
    let Some(fields) = document.fields() else { return };
    let written = fields.get("kind").map(|f| f.string());
    let kind = match (written, assumed) {
        (Some(Some(kind)), _) => kind,
        (Some(None), _) => return,
        (None, Some(kind)) => kind,
        (None, None) => {
            document.error("kind is missing", names());
            return;
        }
    };
    let list_of = kind.strip_suffix("List").filter(|k| k.is_empty() || known(kinds).any(|(n, ..)| n == k));
    if let Some(of) = list_of {
        fields.allow(&["apiVersion", "metadata"]);
        for item in fields.items("items") {
            // A path within an item of a list is relative to the item.
            let item = Field { path: String::new(), ..item };
            collect(&item, (!of.is_empty()).then_some(of), kinds, decoded);
        }
        fields.finish(Unknown::Warned);
        return;
    }
    let group = fields.get("apiVersion").and_then(|f| f.string()).map(group_of);
    let Some((name, api_version, scope, read)) = known(kinds).find(|(name, ..)| *name == kind) else {
        not_read(document, kind, group);
        return;
    };
    // Other groups have kinds with the same name: a Service of serving.knative.dev is ignored.
    if let Some(group) = group
        && !KINDS.iter().any(|(_, version, ..)| group_of(version) == group)
    {
        document.warning(format_args!("the gateway does not read kind {kind} of {group}"), names());
        fields.finish(Unknown::Ignored);
        return;
    }
    if *api_version == API_VERSION && !kinds.gateway_api.is_read() {
        let what = format_args!("the gateway does not read kind {kind}: gatewayApi.enabled is false");
        document.warning(what, "gatewayApi.enabled: auto or true");
        fields.finish(Unknown::Ignored);
        return;
    }
    let sheet = document.sheet;
    let errors_before = sheet.errors();
    let version = match assumed {
        Some(_) => fields.get("apiVersion"),
        None => fields.required("apiVersion", api_version),
    };
    version.and_then(|f| f.one_of(&[(api_version, ())]));
    let meta = meta::read(&fields, kind, scope);
    let refused = RefusedObject {
        kind: name,
        key: meta.key.clone(),
        service: service_of(kind, &meta),
        faults: Vec::new(),
    };
    // Only routes use the slices of headless Services.
    let object = if kind == "EndpointSlice" && is_headless(&meta) && !kinds.gateway_api.is_read() {
        fields.allow(&["addressType", "ports", "endpoints"]);
        None
    } else {
        read(&fields, meta)
    };
    // Few fields of Pods and Nodes are read; other fields are not a fault.
    let open = matches!(kind, "Pod" | "Node" | "Namespace");
    fields.finish(if open { Unknown::Ignored } else { Unknown::Warned });
    let faults = sheet.errors_since(errors_before);
    if faults.is_empty() {
        decoded.objects.extend(object);
    } else if !refused.key.name.is_empty() {
        decoded.refused.push(RefusedObject { faults, ..refused });
    }
}
