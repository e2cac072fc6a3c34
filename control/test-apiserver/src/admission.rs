//! The steps between decoding an object and storing it: unknown fields, defaults, validation, and the metadata that
//! only a server writes. Some steps depend on the kind.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::Api;
use crate::error::{ApiError, ApiResult};
use crate::request::Request;
use crate::resource::{Resource, custom};
use crate::service::{self, InUse};
use crate::typed;

/// The handling of unknown fields that `fieldValidation` requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unknown {
    Ignore,
    Warn,
    Strict,
}

impl Unknown {
    pub(crate) fn of(request: &Request) -> ApiResult<Self> {
        match request.param("fieldValidation") {
            "" | "Warn" => Ok(Self::Warn),
            "Ignore" => Ok(Self::Ignore),
            "Strict" => Ok(Self::Strict),
            other => Err(ApiError::bad_request(format!(
                "fieldValidation: Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
            ))),
        }
    }

    /// Drops unknown fields, and returns warnings or refuses the object.
    pub(crate) fn judge(self, resource: &Resource, object: &mut Value) -> ApiResult<Vec<String>> {
        let unknown: Vec<String> = drop_unknown(resource, object)?
            .into_iter()
            .map(|path| format!("unknown field {path:?}"))
            .collect();
        match self {
            Self::Ignore => Ok(Vec::new()),
            Self::Warn => Ok(unknown),
            Self::Strict if unknown.is_empty() => Ok(unknown),
            Self::Strict => Err(ApiError::bad_request(format!(
                "{} in version {:?} cannot be handled as a {}: strict decoding error: {}",
                resource.kind,
                resource.version,
                resource.kind,
                unknown.join(", ")
            ))),
        }
    }
}

/// Drops fields that the kind does not have. Returns 400 if a value has the wrong type.
pub(crate) fn drop_unknown(resource: &Resource, object: &mut Value) -> ApiResult<Vec<String>> {
    if let Some(custom) = &resource.custom {
        return Ok(custom.schema.prune(object));
    }
    // Events are stored in their core form, whichever endpoint a client uses.
    let group = if resource.kind == "Event" && object["apiVersion"] == "v1" { "" } else { &resource.group };
    typed::check(group, &resource.kind, object).map_err(|error| {
        ApiError::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: {error}",
            resource.kind, resource.version, resource.kind
        ))
    })
}

/// Whether the kind refuses an update without a resourceVersion.
pub(crate) fn needs_version(resource: &Resource) -> bool {
    resource.custom.is_some() || matches!(resource.kind.as_str(), "Lease" | "CustomResourceDefinition")
}

/// The current time in RFC 3339 with whole seconds, as in metadata.
pub(crate) fn now() -> String {
    Timestamp::from_second(Timestamp::now().as_second()).expect("now is in range").to_string()
}

/// Five characters that differ for each version.
pub(crate) fn suffix(version: u64) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    // This is a bijection of the version, so names do not repeat, and do not look sequential.
    let mut number = version.wrapping_mul(2_654_435_761) % 14_348_907;
    (0..5)
        .map(|_| {
            let letter = LETTERS[usize::try_from(number % 27).expect("below 27")];
            number /= 27;
            char::from(letter)
        })
        .collect()
}

impl Api {
    /// Sets defaults, allocates and validates. `old` is the stored object on an update.
    pub(crate) fn complete(
        &mut self,
        resource: &Resource,
        object: &mut Value,
        old: Option<&Arc<Value>>,
    ) -> ApiResult<()> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_string();
        let invalid =
            |faults: &[(String, String)]| ApiError::invalid(&resource.group, &resource.kind, &name, faults);
        if old.is_none() {
            check_name(resource, &name).map_err(|words| invalid(&[("metadata.name".into(), words)]))?;
            self.new_metadata(resource, object);
        }
        if let Some(custom) = &resource.custom {
            custom.schema.set_defaults(object);
            let faults = custom.schema.validate(object);
            return if faults.is_empty() { Ok(()) } else { Err(invalid(&faults)) };
        }
        match resource.kind.as_str() {
            "Service"
                if old
                    .is_none_or(|old| old["spec"] != object["spec"] || old["status"] != object["status"]) =>
            {
                let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_string();
                let mut in_use = InUse::by(self.store.list("services", ""), &namespace, &name);
                service::complete(object, old.map(|old| &**old), &mut in_use)
                    .map_err(|faults| invalid(&faults))?;
                if object["status"].is_null() {
                    object["status"] = json!({"loadBalancer": {}});
                }
            }
            "Namespace" => {
                if object["status"]["phase"].is_null() {
                    object["status"]["phase"] = "Active".into();
                }
                object["spec"]["finalizers"] = json!(["kubernetes"]);
                object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name.into();
            }
            "CustomResourceDefinition" => complete_definition(object).map_err(|faults| invalid(&faults))?,
            "EndpointSlice" => {
                for port in object["ports"].as_array_mut().into_iter().flatten() {
                    if port["protocol"].is_null() {
                        port["protocol"] = "TCP".into();
                    }
                    if port["name"].is_null() {
                        port["name"] = "".into();
                    }
                }
                if object["endpoints"].is_null() {
                    object["endpoints"] = json!([]);
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn new_metadata(&self, resource: &Resource, object: &mut Value) {
        let has_generation = resource.custom.is_some()
            || matches!(
                resource.kind.as_str(),
                "Deployment"
                    | "DaemonSet"
                    | "EndpointSlice"
                    | "PodDisruptionBudget"
                    | "CustomResourceDefinition"
                    | "ValidatingAdmissionPolicy"
                    | "ValidatingAdmissionPolicyBinding"
            );
        let metadata = &mut object["metadata"];
        let version = self.store.version() + 1;
        metadata["uid"] = uid(version).into();
        metadata["creationTimestamp"] = now().into();
        for name in
            ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion", "generation"]
        {
            metadata.as_object_mut().map(|metadata| metadata.remove(name));
        }
        if has_generation {
            metadata["generation"] = 1.into();
        }
    }
}

/// A version-4 UUID. It is unique because it contains the version at which the object was created, and the time.
fn uid(version: u64) -> String {
    let time = Timestamp::now().as_nanosecond().cast_unsigned();
    let low = version.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        (time >> 16) & 0xffff_ffff,
        time & 0xffff,
        (low >> 52) & 0xfff,
        (low >> 40) & 0xfff,
        version & 0xffff_ffff_ffff
    )
}

fn check_name(resource: &Resource, name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("Required value: name or generateName is required".into());
    }
    let rbac = resource.group == "rbac.authorization.k8s.io";
    let label = matches!(resource.kind.as_str(), "Service" | "Namespace");
    let max = if label { 63 } else { 253 };
    let edge =
        |letter: Option<char>| letter.is_some_and(|one| one.is_ascii_lowercase() || one.is_ascii_digit());
    let legal = |letter: char| edge(Some(letter)) || letter == '-' || (letter == '.' && !label);
    let fits = name.len() <= max
        && name.chars().all(legal)
        && edge(name.chars().next())
        && edge(name.chars().last());
    let fits = fits && !(resource.kind == "Service" && name.starts_with(|one: char| one.is_ascii_digit()));
    if fits || rbac {
        return Ok(());
    }
    let rule = match resource.kind.as_str() {
        "Service" => {
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character"
        }
        "Namespace" => {
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character"
        }
        _ => {
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"
        }
    };
    Err(format!("Invalid value: {name:?}: {rule}"))
}

/// Checks a CustomResourceDefinition and sets the status conditions that report it as served.
fn complete_definition(object: &mut Value) -> Result<(), Vec<(String, String)>> {
    let spec = &object["spec"];
    let (group, plural) =
        (spec["group"].as_str().unwrap_or_default(), spec["names"]["plural"].as_str().unwrap_or_default());
    let full = format!("{plural}.{group}");
    if object["metadata"]["name"] != full.as_str() {
        return Err(vec![(
            "metadata.name".into(),
            format!(
                "Invalid value: {}: must be spec.names.plural+\".\"+spec.group",
                object["metadata"]["name"]
            ),
        )]);
    }
    custom(object)?;
    let kind = spec["names"]["kind"].as_str().unwrap_or_default().to_string();
    for (name, value) in [("singular", kind.to_lowercase()), ("listKind", format!("{kind}List"))] {
        if object["spec"]["names"][name].is_null() {
            object["spec"]["names"][name] = value.into();
        }
    }
    if object["spec"]["conversion"].is_null() {
        object["spec"]["conversion"] = json!({"strategy": "None"});
    }
    let versions = object["spec"]["versions"].as_array();
    let stored: Vec<Value> = versions
        .into_iter()
        .flatten()
        .filter(|version| version["storage"] == true)
        .map(|version| version["name"].clone())
        .collect();
    if stored.len() != 1 {
        return Err(vec![(
            "spec.versions".into(),
            "Invalid value: must have exactly one version marked as storage version".into(),
        )]);
    }
    if object["status"]["conditions"].is_null() {
        let condition = |kind: &str, reason: &str, message: &str| json!({"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now()});
        object["status"]["conditions"] = json!([
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ]);
    }
    object["status"]["acceptedNames"] = object["spec"]["names"].clone();
    object["status"]["storedVersions"] = stored.into();
    Ok(())
}
