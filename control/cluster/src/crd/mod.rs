//! The gateway's own kinds, group `tidegate.dev`, version `v1alpha1`: their schemas and manifests.
//!
//! Operators write [`AddressPool`] objects, which correspond to the pools of the configuration. Every gateway writes a
//! [`GatewayStatus`] about itself. The files in `deploy/kubernetes/crds/` are generated from the types ([`manifests`],
//! `tidegate crds`), and a test compares them with the types.
//!
//! Invariant: schemas are structural, and every list and text is bounded, so that CEL rules stay within their cost
//! limit.

mod address_pool;
#[cfg(test)]
mod case_tests;
mod condition;
mod gateway_status;

pub use address_pool::{AddressPool, AddressPoolSpec, AddressPoolStatus, Requirement, Selector};
pub use condition::Condition;
pub use gateway_status::{GatewayStatus, GatewayStatusSpec, GatewayStatusStatus};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use tidegate_model::yaml;

/// (file name, definition) of each kind.
#[must_use]
pub fn definitions() -> Vec<(&'static str, CustomResourceDefinition)> {
    vec![
        ("tidegate.dev_addresspools.yaml", AddressPool::crd()),
        ("tidegate.dev_gatewaystatuses.yaml", GatewayStatus::crd()),
    ]
}

/// (file name, text) of each manifest.
#[must_use]
pub fn manifests() -> Vec<(&'static str, String)> {
    let written = |(file, crd): (&'static str, CustomResourceDefinition)| {
        let text = yaml::emit::to_string(&crd).expect("a definition is JSON");
        (file, format!("# Written by `tidegate crds`; do not edit.\n{text}"))
    };
    definitions().into_iter().map(written).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::Value;

    use super::*;

    fn files() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes/crds")
    }

    #[test]
    fn the_files_in_deploy_match_the_types() {
        for (file, written) in manifests() {
            let path = files().join(file);
            if std::env::var_os("UPDATE_DOCS").is_some() {
                std::fs::write(&path, &written).expect("the definition is written");
            }
            let there = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                there == written,
                "{} doesn't match the types: run `UPDATE_DOCS=1 cargo test -p tidegate-cluster the_files_in_deploy`",
                path.display()
            );
        }
    }

    /// Visits every subschema with its path.
    fn walk(path: &str, schema: &Value, seen: &mut impl FnMut(&str, &Value)) {
        seen(path, schema);
        for (name, below) in schema["properties"].as_object().into_iter().flatten() {
            walk(&format!("{path}.{name}"), below, seen);
        }
        for key in ["items", "additionalProperties"] {
            if schema[key].is_object() {
                walk(&format!("{path}[]"), &schema[key], seen);
            }
        }
    }

    #[test]
    fn schemas_are_structural_and_every_list_and_text_has_a_bound() {
        for (_, crd) in definitions() {
            let crd = serde_json::to_value(crd).expect("JSON");
            let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            assert_eq!(crd["spec"]["versions"][0]["subresources"], serde_json::json!({"status": {}}));
            let below = ["spec", "status"].map(|part| (part, &schema["properties"][part]));
            for (part, schema) in below {
                walk(part, schema, &mut |path, schema| {
                    let kind = schema["type"].as_str();
                    assert!(kind.is_some(), "{path} has no type: {schema}");
                    for word in ["anyOf", "oneOf", "allOf", "$ref", "not"] {
                        assert!(schema[word].is_null(), "{path} has {word}");
                    }
                    let bounded = match kind {
                        Some("array") => schema["maxItems"].is_u64(),
                        Some("string") => {
                            ["maxLength", "enum", "format"].iter().any(|word| !schema[*word].is_null())
                        }
                        _ => true,
                    };
                    assert!(bounded, "{path} has no bound: {schema}");
                });
            }
        }
    }

    #[test]
    fn operators_find_both_kinds_by_short_names_and_category() {
        let names: Vec<(String, Vec<String>, Vec<String>)> = definitions()
            .into_iter()
            .map(|(_, crd)| {
                let names = crd.spec.names;
                (names.plural, names.short_names.unwrap_or_default(), names.categories.unwrap_or_default())
            })
            .collect();
        let tidegate = vec!["tidegate".to_owned()];
        assert_eq!(
            names,
            [
                ("addresspools".to_owned(), vec!["tgpool".to_owned()], tidegate.clone()),
                ("gatewaystatuses".to_owned(), vec!["tggw".to_owned()], tidegate),
            ]
        );
    }
}
