//! Kubernetes objects from YAML trees: defaulted and validated as an API server does it.
//!
//! [`decode`] takes one document and gives the objects in it (several for a `List`). An object with an error
//! is left out, the others stay. Unknown fields are warnings, as with an API server's strict validation;
//! kinds that the gateway has no use for are warnings too. Pure: no file is read here.

mod endpoints;
mod meta;
mod pod;
mod pool;
mod service;
mod stored;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::diagnostic::Report;
use crate::model::{
    AddressPool, EndpointSlice, Endpoints, Metadata, Namespace, Node as ClusterNode, Pod, Service,
};
use crate::yaml::{Field, Fields, Node, Sheet, Unknown, text};

/// An object of a kind that the gateway reads; shared, so that putting files together copies none.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Object {
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
    Endpoints(Arc<Endpoints>),
    Pod(Arc<Pod>),
    Namespace(Arc<Namespace>),
    Node(Arc<ClusterNode>),
    AddressPool(Arc<AddressPool>),
}

impl Object {
    /// The kind as written in manifests.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Service(_) => "Service",
            Self::EndpointSlice(_) => "EndpointSlice",
            Self::Endpoints(_) => "Endpoints",
            Self::Pod(_) => "Pod",
            Self::Namespace(_) => "Namespace",
            Self::Node(_) => "Node",
            Self::AddressPool(_) => "AddressPool",
        }
    }

    pub(crate) fn meta(&self) -> &Metadata {
        match self {
            Self::Service(o) => &o.meta,
            Self::EndpointSlice(o) => &o.meta,
            Self::Endpoints(o) => &o.meta,
            Self::Pod(o) => &o.meta,
            Self::Namespace(o) => &o.meta,
            Self::Node(o) => &o.meta,
            Self::AddressPool(o) => &o.meta,
        }
    }
}

type Read = fn(&Fields<'_>, Metadata) -> Option<Object>;

/// (kind, apiVersion, rule for its name, how to read it)
const KINDS: [(&str, &str, meta::Scope, Read); 7] = [
    ("Service", "v1", meta::SERVICE, service::read),
    ("EndpointSlice", "discovery.k8s.io/v1", meta::NAMESPACED, endpoints::read_slice),
    ("Endpoints", "v1", meta::NAMESPACED, endpoints::read_legacy),
    ("Pod", "v1", meta::NAMESPACED, pod::read),
    ("Namespace", "v1", meta::NAMESPACE, pod::read_namespace),
    ("Node", "v1", meta::CLUSTER, pod::read_node),
    ("AddressPool", crate::config::API_VERSION, meta::CLUSTER, pool::read),
];

/// The sound objects of a document; faults go to the sheet.
pub(crate) fn decode(sheet: &Sheet, document: &Node) -> Vec<Object> {
    let mut objects = Vec::new();
    collect(&Field::document(sheet, document), None, &mut objects);
    objects
}

/// The object of an API server that is of this kind, if it is sound; faults go to the sheet.
pub(crate) fn decode_as(sheet: &Sheet, object: &Node, kind: &str) -> Option<Object> {
    let mut objects = Vec::new();
    collect(&Field::document(sheet, object), Some(kind), &mut objects);
    objects.pop()
}

/// The object of an API server that is of this kind and has these errors, where its kind is one that we tell of by a
/// condition of its own.
pub(crate) fn decode_faulty(object: &Node, kind: &str, errors: &Report) -> Option<Object> {
    (kind == "AddressPool").then(|| pool::read_faulty(object, errors)).flatten()
}

/// The API group of an `apiVersion`; empty for the core group.
fn group_of(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

/// A kind that the gateway has no use for, or one of its own that is misspelt: nearly the name, and the same group.
fn not_read(document: &Field<'_>, kind: &str, group: Option<&str>) {
    let names = KINDS.map(|k| k.0);
    let near = text::nearest(kind, &names).into_iter().find(|name| {
        let own = KINDS.iter().find(|(n, ..)| n == name).map(|(_, version, ..)| group_of(version));
        group.is_none() || own == group
    });
    match near {
        Some(near) => document.error(format_args!("kind {kind} is not known, {near} is"), names.join(", ")),
        None => {
            document.warning(format_args!("kind {kind} is not read by the gateway"), names.join(", "));
        }
    }
}

/// Reads an object, or the items of a list. `assumed` is the kind that a typed list gives to its items.
fn collect(document: &Field<'_>, assumed: Option<&str>, objects: &mut Vec<Object>) {
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
    let list_of = kind.strip_suffix("List").filter(|k| k.is_empty() || KINDS.iter().any(|(n, ..)| n == k));
    if let Some(of) = list_of {
        fields.allow(&["apiVersion", "metadata"]);
        for item in fields.items("items") {
            // A path inside of a list is that of the item, as if it stood alone.
            let item = Field { path: String::new(), ..item };
            collect(&item, (!of.is_empty()).then_some(of), objects);
        }
        fields.finish(Unknown::Warned);
        return;
    }
    let group = fields.get("apiVersion").and_then(|f| f.string()).map(group_of);
    let Some((_, api_version, scope, read)) = KINDS.iter().find(|(name, ..)| *name == kind) else {
        not_read(document, kind, group);
        return;
    };
    // Others have kinds of the same name: a Service of serving.knative.dev is none of ours.
    if let Some(group) = group
        && !KINDS.iter().any(|(_, version, ..)| group_of(version) == group)
    {
        document.warning(format_args!("kind {kind} of {group} is not read by the gateway"), names());
        fields.finish(Unknown::Ignored);
        return;
    }
    let errors_before = document.sheet.errors();
    let version = match assumed {
        Some(_) => fields.get("apiVersion"),
        None => fields.required("apiVersion", api_version),
    };
    version.and_then(|f| f.one_of(&[(api_version, ())]));
    let object = read(&fields, meta::read(&fields, kind, scope));
    // Of Pods and Nodes little is read: what else they have is no fault.
    let open = matches!(kind, "Pod" | "Node" | "Namespace");
    fields.finish(if open { Unknown::Ignored } else { Unknown::Warned });
    if document.sheet.errors() == errors_before {
        objects.extend(object);
    }
}
