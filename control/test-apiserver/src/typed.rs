//! Decodes built-in kinds into their Go-like types, as an API server does with every body. Wrong types are refused.
//! Unknown fields are found, and then refused, reported or dropped, depending on `fieldValidation`.
//!
//! The types are those of k8s-openapi. A field is unknown if it is missing after decoding and encoding again.

use k8s_openapi::api::{
    admissionregistration::v1 as admission, apps::v1 as apps, coordination::v1 as coordination,
    core::v1 as core, discovery::v1 as discovery, events::v1 as events, policy::v1 as policy,
    rbac::v1 as rbac,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Decodes an object, removes unknown fields, and returns their paths.
///
/// # Errors
/// A value does not have the right type.
pub(crate) fn check(group: &str, kind: &str, object: &mut Value) -> Result<Vec<String>, String> {
    let round_trip: fn(&Value) -> Result<Value, String> = match (group, kind) {
        ("", "Service") => again::<core::Service>,
        ("", "Endpoints") => again::<core::Endpoints>,
        ("", "Node") => again::<core::Node>,
        ("", "Namespace") => again::<core::Namespace>,
        ("", "Pod") => again::<core::Pod>,
        ("", "Event") => again::<core::Event>,
        ("", "ServiceAccount") => again::<core::ServiceAccount>,
        ("", "ConfigMap") => again::<core::ConfigMap>,
        ("", "Secret") => again::<core::Secret>,
        ("apps", "Deployment") => again::<apps::Deployment>,
        ("apps", "DaemonSet") => again::<apps::DaemonSet>,
        ("discovery.k8s.io", "EndpointSlice") => again::<discovery::EndpointSlice>,
        ("events.k8s.io", "Event") => again::<events::Event>,
        ("coordination.k8s.io", "Lease") => again::<coordination::Lease>,
        ("policy", "PodDisruptionBudget") => again::<policy::PodDisruptionBudget>,
        ("rbac.authorization.k8s.io", "ClusterRole") => again::<rbac::ClusterRole>,
        ("rbac.authorization.k8s.io", "ClusterRoleBinding") => again::<rbac::ClusterRoleBinding>,
        ("rbac.authorization.k8s.io", "Role") => again::<rbac::Role>,
        ("rbac.authorization.k8s.io", "RoleBinding") => again::<rbac::RoleBinding>,
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => {
            again::<admission::ValidatingAdmissionPolicy>
        }
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding") => {
            again::<admission::ValidatingAdmissionPolicyBinding>
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => again::<extensions::CustomResourceDefinition>,
        _ => return Ok(Vec::new()),
    };
    let known = round_trip(object)?;
    let mut unknown = Vec::new();
    drop_unknown(object, &known, "", &mut unknown);
    Ok(unknown)
}

fn again<T: DeserializeOwned + Serialize>(object: &Value) -> Result<Value, String> {
    let typed = T::deserialize(object).map_err(|error| error.to_string())?;
    serde_json::to_value(typed).map_err(|error| error.to_string())
}

fn drop_unknown(given: &mut Value, known: &Value, at: &str, unknown: &mut Vec<String>) {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => {
            let names: Vec<String> = given.keys().cloned().collect();
            for name in names {
                let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                match known.get(&name) {
                    Some(below) => drop_unknown(&mut given[&name], below, &path, unknown),
                    None => {
                        // An explicit null counts as an absent field.
                        if given.remove(&name).is_some_and(|value| !value.is_null()) {
                            unknown.push(path);
                        }
                    }
                }
            }
        }
        (Value::Array(given), Value::Array(known)) => {
            for (index, (given, known)) in given.iter_mut().zip(known).enumerate() {
                drop_unknown(given, known, &format!("{at}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_fields_are_found_and_wrong_types_refused() {
        let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "uid": null},
            "spec": {"ports": [{"port": 80, "prot": "TCP"}], "typo": 1}});
        let unknown = check("", "Service", &mut service).expect("decodes");
        assert_eq!(unknown, ["spec.ports[0].prot", "spec.typo"]);
        assert_eq!(service["spec"], json!({"ports": [{"port": 80}]}));
        let mut service = json!({"metadata": {}, "spec": {"ports": [{"port": "eighty"}]}});
        assert!(check("", "Service", &mut service).is_err());
    }
}
