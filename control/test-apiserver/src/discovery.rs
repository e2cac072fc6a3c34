//! The discovery endpoints: groups, resources, versions, and as much OpenAPI as kubectl needs.
//!
//! OpenAPI v3 lists for each group the kinds that have PATCH with `fieldValidation`, so that kubectl leaves validation
//! to the server (see `typed` and `schema`). OpenAPI v2 is for old versions of kubectl, which request it as protocol
//! buffers. It is a document without definitions, so those versions skip their own validation, and it has `dryRun`
//! everywhere.

use serde_json::{Map, Value, json};

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
        ["openapi", "v3"] => {
            let mut paths = Map::new();
            for resource in resources {
                let path = group_path(resource);
                let url = format!("/openapi/v3/{path}?hash={}", resources.len());
                paths.insert(path, json!({"serverRelativeURL": url}));
            }
            Some(json!({"paths": paths}))
        }
        ["openapi", "v3", rest @ ..] => {
            let wanted = rest.join("/");
            let of_group: Vec<&Resource> = resources.iter().filter(|one| group_path(one) == wanted).collect();
            (!of_group.is_empty()).then(|| open_api(&of_group))
        }
        _ => None,
    }
}

/// The OpenAPI v2 document as protocol buffers (gnostic's `openapi.v2.Document`). It has a PATCH with `dryRun` for each
/// kind, which kubectl before 1.27 looks for, and no definitions.
pub(crate) fn open_api_v2_protobuf(resources: &[Resource]) -> Vec<u8> {
    let paths: Vec<u8> = resources.iter().flat_map(|resource| field(2, &patch_path(resource))).collect();
    let info = [field(1, b"Kubernetes"), field(2, b"v1.33.0")].concat();
    [field(1, b"2.0"), field(2, &info), field(8, &paths)].concat()
}

/// A `NamedPathItem` with its PATCH.
fn patch_path(resource: &Resource) -> Vec<u8> {
    let kind =
        format!("group: {:?}\nversion: {}\nkind: {}\n", resource.group, resource.version, resource.kind);
    // NamedAny{name, Any{yaml}}
    let extension =
        [field(1, b"x-kubernetes-group-version-kind"), field(2, &field(2, kind.as_bytes()))].concat();
    // ParametersItem{Parameter{NonBodyParameter{QueryParameterSubSchema{in, name}}}}
    let query = [field(2, b"query"), field(4, b"dryRun")].concat();
    let parameter = field(1, &field(2, &field(3, &query)));
    let patch = [field(8, &parameter), field(13, &extension)].concat();
    let path = format!("/{}/{}/{{name}}", group_path(resource), resource.plural);
    [field(1, path.as_bytes()), field(2, &field(8, &patch))].concat()
}

/// A length-delimited field.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut encoded = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        encoded.push(u8::try_from(length & 0x7f).expect("seven bits") | 0x80);
        length >>= 7;
    }
    encoded.push(u8::try_from(length).expect("seven bits"));
    encoded.extend_from_slice(bytes);
    encoded
}

fn group_path(resource: &Resource) -> String {
    if resource.group.is_empty() {
        format!("api/{}", resource.version)
    } else {
        format!("apis/{}/{}", resource.group, resource.version)
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

fn open_api(resources: &[&Resource]) -> Value {
    let mut paths = Map::new();
    let mut schemas = Map::new();
    for resource in resources {
        let kind = json!([{"group": resource.group, "version": resource.version, "kind": resource.kind}]);
        let scope = if resource.namespaced { "namespaces/{namespace}/" } else { "" };
        let path = format!("/{}/{scope}{}/{{name}}", group_path(resource), resource.plural);
        let query = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
        let parameters: Vec<Value> =
            ["dryRun", "fieldManager", "fieldValidation"].into_iter().map(query).collect();
        let operation = |action: &str| {
            json!({
                "x-kubernetes-action": action, "x-kubernetes-group-version-kind": kind[0], "parameters": parameters,
                "responses": {"200": {"description": "OK"}},
            })
        };
        paths.insert(path, json!({"patch": operation("patch"), "put": operation("put")}));
        let mut schema =
            resource.custom.as_ref().map_or(json!({"type": "object"}), |custom| custom.document.clone());
        if !schema.is_object() {
            schema = json!({"type": "object"});
        }
        schema["x-kubernetes-group-version-kind"] = kind;
        schemas.insert(format!("{}.{}.{}", resource.group, resource.version, resource.kind), schema);
    }
    json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.33.0"}, "paths": paths,
        "components": {"schemas": schemas},
    })
}
