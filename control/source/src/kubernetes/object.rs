//! Converts an object from JSON to the model: trims and decodes it, and adds its name to its faults.
//!
//! The trimmed JSON is stored beside the decoded object. It is saved to disk and read back by the same code. Comparing
//! it shows without decoding that nothing relevant changed. It needs about 200 bytes per endpoint.

use std::sync::Arc;

use serde_json::json;
use tidegate_model::diagnostic::Report;
use tidegate_model::objects::{AddressPool, EndpointSlice, LeftOut, NotKept, ObjectKey, ObjectVersion};
use tidegate_model::yaml::{Entry, Node, Value};

use super::kinds::{KINDS, Kind, SLICE};
use crate::manifest::{self, Object, stored};
use crate::slices;

/// The fields of `metadata` that are kept. `resourceVersion` is stored beside the object.
const METADATA: [&str; 10] = [
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "labels",
    "annotations",
    "generation",
    "finalizers",
    "managedFields",
];
/// The annotation with a copy of the applied object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The maximum number of reported faults of an EndpointSlice, which may have thousands.
const SLICE_REPORT_MAX: usize = 8;

/// The stored form of an object. Two are equal if they don't differ in anything relevant.
#[derive(Debug, Clone)]
pub(super) struct Content(Arc<(Box<[u8]>, Option<Object>)>);

impl Content {
    /// The trimmed JSON.
    pub(super) fn json(&self) -> &[u8] {
        &self.0.0
    }

    /// This JSON with another decoded object.
    fn with(self, object: Object) -> Self {
        Self(Arc::new((self.json().into(), Some(object))))
    }

    /// A pool whose spec has faults keeps the last valid spec, if there was one, so that Services keep their addresses.
    pub(super) fn after(self, last: Option<&Object>) -> Self {
        match (self.object(), last) {
            (Some(Object::AddressPool(new)), Some(Object::AddressPool(last))) if !new.faults.is_empty() => {
                let pool = AddressPool { pool: last.pool.clone(), ..AddressPool::clone(new) };
                self.with(Object::AddressPool(Arc::new(pool)))
            }
            _ => self,
        }
    }

    /// The object, if it is an EndpointSlice.
    pub(super) fn slice(&self) -> Option<&EndpointSlice> {
        match self.object() {
            Some(Object::EndpointSlice(slice)) => Some(slice),
            _ => None,
        }
    }

    /// A copy of an EndpointSlice without its endpoints; any other object unchanged.
    pub(super) fn left_out(&self, why: NotKept) -> Self {
        let Some(slice) = self.slice() else { return self.clone() };
        let slice = slices::left_out(slice, why);
        let json = serde_json::to_vec(&json_of(&slice)).unwrap_or_default();
        Self(Arc::new((json.into(), Some(Object::EndpointSlice(Arc::new(slice))))))
    }

    /// Marks an EndpointSlice that was read without its endpoints.
    pub(super) fn marked(self, left_out: LeftOut) -> Self {
        let Some(slice) = self.slice() else { return self };
        let slice = EndpointSlice { left_out: Some(left_out), ..slice.clone() };
        self.with(Object::EndpointSlice(Arc::new(slice)))
    }

    /// The object; `None` if it is meant for other proxies.
    pub(super) fn object(&self) -> Option<&Object> {
        self.0.1.as_ref()
    }
}

impl PartialEq for Content {
    fn eq(&self, other: &Self) -> bool {
        let left_out = |content: &Self| content.slice().and_then(|slice| slice.left_out);
        Arc::ptr_eq(&self.0, &other.0)
            || self.json() == other.json() && left_out(self) == left_out(other)
            || {
                let both = self.object().zip(other.object());
                both.is_some_and(|(one, other)| one == other)
            }
    }
}

/// An object as received.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) key: ObjectKey,
    /// `metadata.resourceVersion`; 0 if it is not a number.
    pub(super) version: u64,
    /// `metadata.uid`; empty if there is none.
    pub(super) uid: Box<str>,
    pub(super) content: Content,
    /// Faults that are not stored with the object. Each names the object.
    pub(super) report: Report,
}

impl Received {
    /// Trims and decodes an object.
    ///
    /// # Errors
    /// It is not an object with a name.
    pub(super) fn new(kind: &Kind, mut node: Node) -> Result<Self, String> {
        let Identity { key, uid, version } = identity(kind, &node)?;
        trim(kind, &mut node);
        let json = serde_json::to_vec(&node).map_err(|e| e.to_string())?;
        // If only the metadata of a kind is requested, the received objects have a different kind.
        let (mut object, report) = manifest::decode_stored(&node, kind.name, format!("{} {key}", kind.name));
        match &mut object {
            Some(Object::Service(service)) => {
                if let Some(service) = Arc::get_mut(service) {
                    service.stored.version = ObjectVersion(version);
                }
            }
            Some(Object::Gateway(gateway)) => {
                if let Some(gateway) = Arc::get_mut(gateway) {
                    gateway.version = ObjectVersion(version);
                }
            }
            _ => {}
        }
        let content = Content(Arc::new((json.into(), object)));
        let report = match content.slice() {
            Some(_) if report.len() > SLICE_REPORT_MAX => {
                report.iter().take(SLICE_REPORT_MAX).cloned().collect()
            }
            _ => report,
        };
        Ok(Self { key, version, uid, content, report })
    }
}

/// The identity and version of an object.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) key: ObjectKey,
    /// As in [`Received::uid`].
    pub(super) uid: Box<str>,
    pub(super) version: u64,
}

/// The identity and version of an object.
///
/// # Errors
/// It has no name.
pub(super) fn identity(kind: &Kind, node: &Node) -> Result<Identity, String> {
    let metadata = node.entry("metadata").map(|e| &e.node);
    let text = |key| metadata?.entry(key)?.node.text();
    let name = text("name").filter(|n| !n.is_empty());
    let name = name.ok_or_else(|| format!("an object of kind {} without a name", kind.name))?;
    let version = text("resourceVersion").map_or(0, version_number);
    let uid = text("uid").unwrap_or_default().into();
    Ok(Identity { key: ObjectKey::new(text("namespace").unwrap_or_default(), name), uid, version })
}

/// A `resourceVersion` as a number; 0 if it is not one.
pub(super) fn version_number(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

fn trim(kind: &Kind, node: &mut Node) {
    let Some(entries) = entries(node) else { return };
    // Lists omit these fields and watches don't. Remove them so that both give the same result.
    entries.retain(|e| {
        let kept =
            || kind.keep.is_empty() || e.key == "metadata" || kind.keep.iter().any(|(k, _)| *k == e.key);
        !matches!(&*e.key, "kind" | "apiVersion") && kept()
    });
    for entry in entries {
        if entry.key == "metadata" {
            let Some(metadata) = self::entries(&mut entry.node) else { continue };
            metadata.retain(|e| METADATA.contains(&&*e.key));
            let field = match kind.name {
                "Gateway" => &stored::ADDRESSES[..],
                "ListenerSet" => &stored::STATUS,
                _ => &stored::INGRESS,
            };
            metadata.retain_mut(|e| e.key != "managedFields" || trim_owners(&mut e.node, field));
            let annotations = metadata.iter_mut().find(|e| e.key == "annotations");
            if let Some(annotations) = annotations.and_then(|e| self::entries(&mut e.node)) {
                annotations.retain(|e| e.key != LAST_APPLIED);
            }
        } else if kind.name == KINDS[SLICE].name && entry.key == "endpoints" {
            trim_endpoints(&mut entry.node);
        } else if let Some((_, keys)) = kind.keep.iter().find(|(k, keys)| *k == entry.key && !keys.is_empty())
            && let Some(inner) = self::entries(&mut entry.node)
        {
            inner.retain(|e| keys.contains(&&*e.key));
        }
    }
}

/// Keeps only the fields of endpoints that the gateway reads. The unused addresses alone may take 100 times as much
/// memory.
fn trim_endpoints(endpoints: &mut Node) {
    let Value::Sequence(items) = &mut endpoints.value else { return };
    for endpoint in items {
        let Some(fields) = entries(endpoint) else { continue };
        fields.retain(|e| !matches!(&*e.key, "hostname" | "deprecatedTopology"));
        for field in fields {
            match (&*field.key, &mut field.node.value) {
                ("addresses", Value::Sequence(addresses)) => addresses.truncate(1),
                ("targetRef", Value::Mapping(target)) => {
                    target.retain(|e| matches!(&*e.key, "kind" | "namespace" | "name"));
                }
                _ => {}
            }
        }
    }
}

/// Removes the fields without a value.
fn without_nulls(mut object: serde_json::Value) -> serde_json::Value {
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    object
}

/// A slice that was left out, in the form in which an API server would return it.
fn json_of(slice: &EndpointSlice) -> serde_json::Value {
    let meta = &slice.meta;
    let ports = slice.ports.iter().map(|port| {
        without_nulls(json!({
            "name": port.name,
            "protocol": port.protocol.to_string(),
            "port": port.port,
            "appProtocol": port.app_protocol,
        }))
    });
    json!({
        "metadata": without_nulls(json!({
            "name": meta.key.name,
            "namespace": meta.key.namespace,
            "uid": meta.uid,
            "creationTimestamp": meta.creation_time.map(|at| at.to_string()),
            "deletionTimestamp": meta.deletion_time.map(|at| at.to_string()),
            "labels": meta.labels,
        })),
        "addressType": slice.address_type.as_str(),
        "ports": ports.collect::<Vec<_>>(),
        "endpoints": [],
    })
}

/// Keeps only the managers that own a field, and of each only this. Returns whether there are any.
fn trim_owners(owners: &mut Node, field: &[&str]) -> bool {
    let Value::Sequence(items) = &mut owners.value else { return false };
    items.retain_mut(|owner| {
        let Some(fields) = entries(owner) else { return false };
        fields.retain(|e| matches!(&*e.key, "manager" | "fieldsV1"));
        let Some(owned) = fields.iter_mut().find(|e| e.key == "fieldsV1") else { return false };
        let mut node = &mut owned.node;
        for step in field {
            let Some(below) = entries(node) else { return false };
            below.retain(|e| e.key == *step);
            let Some(next) = below.first_mut() else { return false };
            node = &mut next.node;
        }
        node.value = Value::Mapping(Vec::new());
        true
    });
    !items.is_empty()
}

fn entries(node: &mut Node) -> Option<&mut Vec<Entry>> {
    match &mut node.value {
        Value::Mapping(entries) => Some(entries),
        _ => None,
    }
}
