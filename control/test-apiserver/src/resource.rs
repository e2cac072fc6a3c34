//! The kinds that the server supports: a built-in table, and the kinds from CustomResourceDefinitions.
//!
//! A [`Resource`] describes how a kind is addressed and which parts of it are separate (status). It contains no objects.
//! `events.k8s.io` events and core events are one kind that is stored once; `event` converts between the two forms.

use std::sync::Arc;

use serde_json::Value;

use crate::schema::Schema;

/// One kind in one version.
#[derive(Debug, Clone)]
pub(crate) struct Resource {
    /// API group, empty for core.
    pub(crate) group: String,
    /// Version.
    pub(crate) version: String,
    /// Kind.
    pub(crate) kind: String,
    /// Kind of lists.
    pub(crate) list_kind: String,
    /// Plural in paths.
    pub(crate) plural: String,
    /// Singular for kubectl.
    pub(crate) singular: String,
    /// Short names for kubectl.
    pub(crate) short_names: Vec<String>,
    /// Categories for kubectl (`all`).
    pub(crate) categories: Vec<String>,
    /// Whether objects are in namespaces.
    pub(crate) namespaced: bool,
    /// Whether `/status` is a separate subresource: plain writes do not change the status, and writes to `/status`
    /// change nothing else.
    pub(crate) status: bool,
    /// The storage name. All versions of a kind share it.
    pub(crate) storage: Arc<str>,
    /// Set for custom resources.
    pub(crate) custom: Option<Arc<Custom>>,
}

/// One version of a CustomResourceDefinition.
#[derive(Debug)]
pub(crate) struct Custom {
    /// `schema.openAPIV3Schema`.
    pub(crate) schema: Schema,
    /// Whether the definition is being deleted, so that no objects can be created.
    pub(crate) terminating: bool,
}

impl Resource {
    /// Whether the definition of this kind is being deleted.
    pub(crate) fn is_terminating(&self) -> bool {
        self.custom.as_ref().is_some_and(|custom| custom.terminating)
    }

    /// `v1`, or `group/version`.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

/// A row of the built-in table.
type Row = (
    &'static str, // group
    &'static str, // version
    &'static str, // kind
    &'static str, // plural
    &'static str, // short names, comma separated
    bool,         // namespaced
    bool,         // status subresource
);

const BUILT_IN: &[Row] = &[
    ("", "v1", "Service", "services", "svc", true, true),
    ("", "v1", "Endpoints", "endpoints", "ep", true, false),
    ("", "v1", "Node", "nodes", "no", false, true),
    ("", "v1", "Namespace", "namespaces", "ns", false, true),
    ("", "v1", "Pod", "pods", "po", true, true),
    ("", "v1", "Event", "events", "ev", true, false),
    ("", "v1", "ServiceAccount", "serviceaccounts", "sa", true, false),
    ("", "v1", "ConfigMap", "configmaps", "cm", true, false),
    ("", "v1", "Secret", "secrets", "", true, false),
    ("apps", "v1", "Deployment", "deployments", "deploy", true, true),
    ("apps", "v1", "DaemonSet", "daemonsets", "ds", true, true),
    ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", "", true, false),
    ("events.k8s.io", "v1", "Event", "events", "ev", true, false),
    ("coordination.k8s.io", "v1", "Lease", "leases", "", true, false),
    ("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs", "", false, true),
    ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", "pdb", true, true),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", "", false, false),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", "", false, false),
    ("rbac.authorization.k8s.io", "v1", "Role", "roles", "", true, false),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", "", true, false),
    (
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
        "",
        false,
        true,
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        "",
        false,
        false,
    ),
    (
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        "crd,crds",
        false,
        true,
    ),
];

/// The built-in kinds.
pub(crate) fn built_in() -> Vec<Resource> {
    BUILT_IN
        .iter()
        .map(|&(group, version, kind, plural, short_names, namespaced, status)| {
            let storage =
                if kind == "Event" { "events".into() } else { crate::error::qualified(group, plural).into() };
            Resource {
                group: group.into(),
                version: version.into(),
                kind: kind.into(),
                list_kind: format!("{kind}List"),
                plural: plural.into(),
                singular: kind.to_lowercase(),
                short_names: split(short_names),
                categories: match kind {
                    "Service" | "Pod" | "Deployment" | "DaemonSet" => vec!["all".into()],
                    _ => Vec::new(),
                },
                namespaced,
                status,
                storage,
                custom: None,
            }
        })
        .collect()
}

fn split(list: &str) -> Vec<String> {
    list.split(',').filter(|word| !word.is_empty()).map(Into::into).collect()
}

/// The kinds that a CustomResourceDefinition adds, one for each served version.
///
/// # Errors
/// Returns the faults of its schemas, as (field, message).
pub(crate) fn custom(definition: &Value) -> Result<Vec<Resource>, Vec<(String, String)>> {
    let spec = &definition["spec"];
    let names = &spec["names"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let words = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|word| word.as_str().map(Into::into)).collect()
    };
    let (group, plural, kind) = (text(&spec["group"]), text(&names["plural"]), text(&names["kind"]));
    let mut found = Vec::new();
    let mut faults = Vec::new();
    for (index, version) in spec["versions"].as_array().into_iter().flatten().enumerate() {
        let at = format!("spec.versions[{index}].schema.openAPIV3Schema");
        let schema = match Schema::parse(&version["schema"]["openAPIV3Schema"], &at) {
            Ok(schema) => schema,
            Err(more) => {
                faults.extend(more);
                continue;
            }
        };
        if version["served"] != Value::Bool(true) {
            continue;
        }
        let or = |value: &Value, other: String| value.as_str().map_or(other, Into::into);
        found.push(Resource {
            group: group.clone(),
            version: text(&version["name"]),
            list_kind: or(&names["listKind"], format!("{kind}List")),
            singular: or(&names["singular"], kind.to_lowercase()),
            kind: kind.clone(),
            plural: plural.clone(),
            short_names: words(&names["shortNames"]),
            categories: words(&names["categories"]),
            namespaced: spec["scope"] == "Namespaced",
            status: version["subresources"]["status"].is_object(),
            storage: crate::error::qualified(&group, &plural).into(),
            custom: Some(Arc::new(Custom {
                schema,
                terminating: definition["metadata"]["deletionTimestamp"].is_string(),
            })),
        });
    }
    if faults.is_empty() { Ok(found) } else { Err(faults) }
}
