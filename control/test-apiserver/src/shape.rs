//! The merge rules for lists and maps of a kind: `x-kubernetes-list-type` and `patchMergeKey` of built-in kinds, and
//! the corresponding schema fields of custom kinds. A [`Shape`] is a cursor that moves along with a value. Server-side
//! apply and strategic merge patch share it. The built-in table covers the kinds of `resource`; it uses field names,
//! not full paths.

use serde_json::Value;

use crate::resource::Resource;
use crate::schema::Schema;

/// A position in a kind.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape<'a> {
    BuiltIn {
        kind: &'a str,
        /// The name of the nearest parent field.
        field: &'a str,
    },
    Custom(Option<&'a Schema>),
}

/// The merge rule of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListShape {
    Atomic,
    Set,
    Map(Vec<String>),
}

impl<'a> Shape<'a> {
    /// The root of a kind.
    pub(crate) fn of(resource: &'a Resource) -> Self {
        match &resource.custom {
            Some(custom) => Self::Custom(Some(&custom.schema)),
            None => Self::BuiltIn { kind: &resource.kind, field: "" },
        }
    }

    /// Moves to a field.
    pub(crate) fn field(self, name: &'a str) -> Self {
        match self {
            // metadata is the same in every kind.
            Self::Custom(_) if name == "metadata" => Self::BuiltIn { kind: "", field: "metadata" },
            Self::Custom(schema) => Self::Custom(schema.and_then(|schema| schema.property(name))),
            Self::BuiltIn { kind, .. } => Self::BuiltIn { kind, field: name },
        }
    }

    /// Moves to an item of a list.
    pub(crate) fn item(self) -> Self {
        match self {
            Self::Custom(schema) => Self::Custom(schema.and_then(Schema::item)),
            built_in @ Self::BuiltIn { .. } => built_in,
        }
    }

    /// The merge rule of the list at this position.
    pub(crate) fn list(self) -> ListShape {
        let (kind, field) = match self {
            Self::Custom(schema) => {
                return match schema.and_then(|schema| schema.list_type.as_deref().map(|kind| (kind, schema)))
                {
                    Some(("map", schema)) => ListShape::Map(schema.list_keys.clone()),
                    Some(("set", _)) => ListShape::Set,
                    _ => ListShape::Atomic,
                };
            }
            Self::BuiltIn { kind, field } => (kind, field),
        };
        let keys: &[&str] = match (kind, field) {
            (_, "finalizers") | ("Node", "podCIDRs") => return ListShape::Set,
            ("Service", "ports") => &["port", "protocol"],
            ("EndpointSlice" | "Endpoints", "ports" | "addresses") => return ListShape::Atomic,
            (_, "ports") => &["containerPort", "protocol"],
            (_, "conditions") | ("Node", "addresses") => &["type"],
            (_, "ownerReferences") => &["uid"],
            (_, "volumeMounts") => &["mountPath"],
            ("Pod", "podIPs") => &["ip"],
            (
                "Pod" | "Deployment" | "DaemonSet" | "ServiceAccount",
                "containers" | "initContainers" | "volumes" | "env" | "imagePullSecrets" | "secrets",
            ) => &["name"],
            _ => return ListShape::Atomic,
        };
        ListShape::Map(keys.iter().map(|&key| key.into()).collect())
    }

    /// Whether the map at this position is replaced as a whole.
    pub(crate) fn map_is_atomic(self) -> bool {
        match self {
            Self::Custom(schema) => schema.is_some_and(|schema| schema.map_atomic),
            Self::BuiltIn { field, .. } => matches!(
                field,
                "selector"
                    | "nodeSelector"
                    | "roleRef"
                    | "involvedObject"
                    | "paramKind"
                    | "paramRef"
                    | "targetRef"
            ),
        }
    }
}

/// The values of the merge keys of a list item. A port without a protocol is TCP.
pub(crate) fn item_key(item: &Value, keys: &[String]) -> Vec<Value> {
    keys.iter()
        .map(|key| match &item[key] {
            Value::Null if key == "protocol" => "TCP".into(),
            value => value.clone(),
        })
        .collect()
}
