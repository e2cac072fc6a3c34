//! The discovery endpoints: groups, resources and versions.

use serde_json::{Value, json};

use crate::resource::Resource;

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// The verbs of a kind whose definition is being deleted.
const VERBS_AT_THE_END: [&str; 5] = ["delete", "deletecollection", "get", "list", "watch"];

/// Answers a discovery path. `None` if the path is not one.
pub(crate) fn answer(path: &str, resources: &[Resource]) -> Option<Value> {
    let steps: Vec<&str> = path.split('/').filter(|step| !step.is_empty()).collect();
    match steps.as_slice() {
        ["api"] => Some(json!({"kind": "APIVersions", "versions": ["v1"]})),
        ["apis"] => {
            let mut names: Vec<&str> = Vec::new();
            for resource in resources {
                if !resource.group.is_empty() && !names.contains(&resource.group.as_str()) {
                    names.push(&resource.group);
                }
            }
            let groups: Vec<Value> = names
                .into_iter()
                .chain(["authorization.k8s.io"])
                .map(|group| self::group(group, resources))
                .collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["api", version] => resource_list("", version, resources),
        ["apis", group] => {
            let known =
                *group == "authorization.k8s.io" || resources.iter().any(|resource| resource.group == *group);
            known.then(|| {
                let mut answer = self::group(group, resources);
                answer["kind"] = "APIGroup".into();
                answer["apiVersion"] = "v1".into();
                answer
            })
        }
        ["apis", group, version] => resource_list(group, version, resources),
        ["version"] => Some(json!({
            "major": "1", "minor": "33", "gitVersion": "v1.33.0", "gitCommit": "0", "gitTreeState": "clean",
            "buildDate": "2025-01-01T00:00:00Z", "goVersion": "go1.24", "compiler": "gc", "platform": "linux/amd64",
        })),
        _ => None,
    }
}

fn group(name: &str, resources: &[Resource]) -> Value {
    let mut versions: Vec<&str> = Vec::new();
    for resource in resources.iter().filter(|resource| resource.group == name) {
        if !versions.contains(&resource.version.as_str()) {
            versions.push(&resource.version);
        }
    }
    if versions.is_empty() {
        versions.push("v1");
    }
    let versions: Vec<Value> = versions
        .into_iter()
        .map(|version| json!({"groupVersion": format!("{name}/{version}"), "version": version}))
        .collect();
    json!({"name": name, "preferredVersion": versions[0], "versions": versions})
}

fn resource_list(group: &str, version: &str, resources: &[Resource]) -> Option<Value> {
    let api_version = if group.is_empty() { version.to_string() } else { format!("{group}/{version}") };
    let mut list: Vec<Value> = Vec::new();
    for resource in resources.iter().filter(|one| one.group == group && one.version == version) {
        let mut entry = json!({
            "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": if resource.is_terminating() { &VERBS_AT_THE_END[..] } else { &VERBS[..] },
        });
        if !resource.short_names.is_empty() {
            entry["shortNames"] = json!(resource.short_names);
        }
        if !resource.categories.is_empty() {
            entry["categories"] = json!(resource.categories);
        }
        list.push(entry);
        if resource.status {
            list.push(json!({
                "name": format!("{}/status", resource.plural), "singularName": "",
                "namespaced": resource.namespaced, "kind": resource.kind, "verbs": ["get", "patch", "update"],
            }));
        }
    }
    if group == "authorization.k8s.io" && version == "v1" {
        for (name, kind) in [
            ("selfsubjectaccessreviews", "SelfSubjectAccessReview"),
            ("subjectaccessreviews", "SubjectAccessReview"),
        ] {
            list.push(json!({"name": name, "singularName": "", "namespaced": false, "kind": kind, "verbs": ["create"]}));
        }
    }
    (!list.is_empty())
        .then(|| json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": list}))
}
