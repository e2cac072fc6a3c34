//! `TCPRoute` and `UDPRoute`, which have the same fields.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_model::objects::gateway_api::{BackendRef, ParentRef, Route, RouteRule};
use tidegate_model::objects::{Metadata, Protocol};
use tidegate_model::yaml::{Field, Fields, Unknown};

use super::fields::{generation, intact, required_items};
use super::references::parent_ref;
use super::rules::{API_GROUP, KIND, NAME, NAMESPACE, SECTION};
use super::status;
use crate::manifest::{limited::limited, object::Object};

/// The limits of the definitions.
const PARENTS_MAX: usize = 32;
const RULES_MAX: usize = 1;
const BACKENDS_MAX: usize = 16;
const WEIGHT_MAX: u32 = 1_000_000;

pub(crate) fn read_tcp(object: &Fields<'_>, meta: Metadata) -> Option<Object> {
    Some(Object::TCPRoute(Arc::new(read(object, meta, Protocol::Tcp))))
}

pub(crate) fn read_udp(object: &Fields<'_>, meta: Metadata) -> Option<Object> {
    Some(Object::UDPRoute(Arc::new(read(object, meta, Protocol::Udp))))
}

fn read(object: &Fields<'_>, meta: Metadata, protocol: Protocol) -> Route {
    let (parents, rules, status) = (Vec::new(), Vec::new(), Vec::new());
    let mut route = Route { meta, generation: generation(object), protocol, parents, rules, status };
    let spec = object.required("spec", "spec with parentRefs and rules").and_then(|f| f.fields());
    if let Some(spec) = spec {
        spec.whole(Unknown::Warned, |spec| {
            route.parents = parents_of(spec);
            let rules = required_items(spec, "rules", RULES_MAX, "rule");
            route.rules =
                rules.iter().filter_map(|item| Some(item.fields()?.whole(Unknown::Warned, rule))).collect();
        });
    }
    route.status = object.part("status", status::of_route).unwrap_or_default();
    route
}

fn parents_of(spec: &Fields<'_>) -> Vec<ParentRef> {
    let items = limited(spec, "parentRefs", PARENTS_MAX);
    // The first reference to each parent.
    let mut firsts: BTreeMap<ParentRef, (bool, String)> = BTreeMap::new();
    let mut sections: BTreeMap<ParentRef, String> = BTreeMap::new();
    let mut parents = Vec::new();
    for item in &items {
        let Some(parent) = intact(item, parent_ref) else { continue };
        parents.push(parent.clone());
        if item.sheet.is_stored() {
            continue;
        }
        let section = ParentRef { port: None, ..parent };
        let whole = ParentRef { section_name: None, ..section.clone() };
        let has_section = section.section_name.is_some();
        if let Some(first) = sections.get(&section) {
            item.error(
                format_args!("the same parent and sectionName as {first}"),
                "each section of a parent once",
            );
        } else if let Some((_, first)) = firsts.get(&whole).filter(|first| first.0 != has_section) {
            let what = format_args!("the same parent as {first}, and only one of them has a sectionName");
            item.error(what, "a sectionName in each of several references to one parent");
        }
        sections.entry(section).or_insert_with(|| item.path.clone());
        firsts.entry(whole).or_insert_with(|| (has_section, item.path.clone()));
    }
    parents
}

fn rule(fields: &Fields<'_>) -> RouteRule {
    let name = SECTION.optional(fields, "name");
    let items = required_items(fields, "backendRefs", BACKENDS_MAX, "backend");
    RouteRule { name, backends: items.iter().map(backend).collect() }
}

/// Reads a backend. Without an invalid one, the others would get its share, so it stays, as one that doesn't exist.
fn backend(item: &Field<'_>) -> BackendRef {
    let mut weight = 1;
    let reference = intact(item, |fields| {
        fields.set("weight", &mut weight, |f| f.integer(0..=WEIGHT_MAX));
        let (group, kind) = (API_GROUP.or(fields, "group", ""), KIND.or(fields, "kind", "Service"));
        let (namespace, name) = (NAMESPACE.optional(fields, "namespace"), NAME.required(fields, "name"));
        let port = fields.read("port", Field::port);
        let (group, kind) = (group?, kind?);
        if fields.get("port").is_none() && !item.sheet.is_stored() && group.is_empty() && kind == "Service" {
            item.error("port is missing", "the port of the Service");
        }
        Some(BackendRef { group, kind, namespace, name: name?, port, weight: 1 })
    });
    let invalid = || BackendRef {
        group: String::new(),
        kind: String::new(),
        namespace: None,
        name: String::new(),
        port: None,
        weight: 1,
    };
    BackendRef { weight, ..reference.unwrap_or_else(invalid) }
}
