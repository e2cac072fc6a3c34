//! The formats that clients may request: whole objects, or only their metadata (`PartialObjectMetadata`).

use serde_json::{Value, json};

use crate::resource::Resource;

/// The format in which a client requests objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Whole,
    Metadata,
}

impl Form {
    /// Chooses from `Accept`: the first listed format that is supported.
    pub(crate) fn of(accept: &str) -> Self {
        for kind in accept.split(',') {
            if kind.contains("as=PartialObjectMetadata") && kind.contains("json") {
                return Self::Metadata;
            } else if !kind.contains("as=") && (kind.contains("json") || kind.contains("*/*")) {
                return Self::Whole;
            }
        }
        Self::Whole
    }

    /// Renders an object in this format.
    pub(crate) fn object(self, object: &Value) -> Value {
        match self {
            Self::Whole => object.clone(),
            Self::Metadata => metadata_of(object),
        }
    }

    /// Renders a list in this format. `metadata` is that of the list.
    pub(crate) fn list(self, resource: &Resource, items: &[Value], metadata: &Value) -> Value {
        match self {
            Self::Whole => json!({
                "kind": resource.list_kind, "apiVersion": resource.api_version(), "metadata": metadata,
                "items": items,
            }),
            Self::Metadata => json!({
                "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                // kube-apiserver writes null for an empty list in this format, but not in the others.
                "items": (!items.is_empty()).then(|| items.iter().map(metadata_of).collect::<Vec<_>>()),
            }),
        }
    }
}

fn metadata_of(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}
