//! `ListenerSet`, and the listeners that it has in common with `Gateway`.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_model::config;
use tidegate_model::objects::gateway_api::{FromNamespaces, Listener, ListenerSet, RouteKind};
use tidegate_model::objects::{Metadata, Port, Selector};
use tidegate_model::yaml::{Field, Fields, Unknown, text};

use super::fields::{generation, intact, required_items};
use super::references::{parent_ref, route_kind};
use super::rules::{HOSTNAME, Rule, SECTION, is_domain_prefixed};
use super::status;
use crate::manifest::{limited::limited, object::Object, stored};

/// The limits of the definitions.
const LISTENERS_MAX: usize = 64;
const ROUTE_KINDS_MAX: usize = 8;

const PROTOCOL: Rule =
    Rule { check: is_protocol, accepted: "TCP, UDP, TLS, HTTP, HTTPS, or a name such as example.com/proto" };

fn is_protocol(protocol: &str) -> bool {
    protocol.len() <= 255
        && (is_domain_prefixed(protocol, |b| b.is_ascii_alphanumeric())
            || text::is_rfc1123_label(&protocol.to_ascii_lowercase()))
}

pub(crate) fn read_set(object: &Fields<'_>, meta: Metadata) -> Option<Object> {
    let mut set = ListenerSet { meta, generation: generation(object), ..ListenerSet::default() };
    let metadata = object.mapping("metadata");
    set.status_managers = metadata.map_or_else(Vec::new, |of| stored::owners(&of, &stored::STATUS));
    let spec = object.required("spec", "spec with parentRef and listeners").and_then(|f| f.fields());
    if let Some(spec) = spec {
        spec.whole(Unknown::Warned, |spec| {
            let parent = spec.required("parentRef", "the Gateway of the listeners");
            set.parent = parent.and_then(|f| intact(&f, parent_ref)).unwrap_or_default();
            set.listeners = listeners(spec);
        });
    }
    set.status = object.part("status", status::of_listener_set).unwrap_or_default();
    Some(Object::ListenerSet(Arc::new(set)))
}

/// The properties of earlier listeners that a further one may not share, each with the path of the first listener.
#[derive(Default)]
struct Taken {
    names: BTreeMap<String, String>,
    /// Port, protocol and hostname.
    points: BTreeMap<(Port, String, Option<String>), String>,
}

/// `spec.listeners`.
pub(super) fn listeners(spec: &Fields<'_>) -> Vec<Listener> {
    let mut taken = Taken::default();
    let items = required_items(spec, "listeners", LISTENERS_MAX, "listener");
    items.iter().filter_map(|item| listener(item, &mut taken)).collect()
}

fn listener(item: &Field<'_>, taken: &mut Taken) -> Option<Listener> {
    let fields = item.fields()?;
    let is_stored = item.sheet.is_stored();
    let name = SECTION.required(&fields, "name");
    let port = fields.required("port", "a port number from 1 to 65535").and_then(|f| f.port());
    let protocol = PROTOCOL.required(&fields, "protocol");
    let hostname = hostname(&fields, protocol.as_deref());
    let tls = fields.get("tls").filter(|_| !is_stored);
    if let (Some(field), Some(protocol @ ("HTTP" | "TCP" | "UDP"))) = (tls, protocol.as_deref()) {
        field.error(format_args!("not allowed with protocol {protocol}"), "no tls");
    }
    let (allowed_kinds, allowed_namespaces) = allowed_routes(&fields);
    fields.finish(Unknown::Warned);
    let (name, port, protocol) = (name?, port?, protocol?);
    if let Some(first) = taken.names.get(&name) {
        let what = format_args!("the name {name} is already used by {first}");
        item.error(what, "a different name for each listener");
        return None;
    }
    taken.names.insert(name.clone(), item.path.clone());
    let point = (port, protocol.clone(), hostname.clone());
    if let Some(first) = taken.points.get(&point).filter(|_| !is_stored) {
        item.error(
            format_args!("port, protocol and hostname are those of {first}"),
            "each combination of port, protocol and hostname once",
        );
    }
    taken.points.entry(point).or_insert_with(|| item.path.clone());
    Some(Listener { name, hostname, port, protocol, allowed_kinds, allowed_namespaces })
}

fn hostname(listener: &Fields<'_>, protocol: Option<&str>) -> Option<String> {
    let field = listener.get("hostname")?;
    let hostname = HOSTNAME.read(&field)?;
    if let Some(protocol @ ("TCP" | "UDP")) = protocol {
        if !field.sheet.is_stored() {
            field.error(format_args!("not allowed with protocol {protocol}"), "no hostname");
        }
        return None;
    }
    Some(hostname)
}

/// `allowedRoutes`: kinds and namespaces.
fn allowed_routes(listener: &Fields<'_>) -> (Vec<RouteKind>, FromNamespaces) {
    let Some(field) = listener.get("allowedRoutes") else { return (Vec::new(), FromNamespaces::Same) };
    let Some(fields) = field.fields() else { return (Vec::new(), FromNamespaces::None) };
    fields.whole(Unknown::Warned, |fields| {
        let kinds = limited(fields, "kinds", ROUTE_KINDS_MAX);
        // An empty list allows all kinds, so an invalid kind stays in the list, as one that no route has.
        let invalid = || RouteKind { group: String::new(), kind: String::new() };
        let kinds = kinds.iter().map(|item| intact(item, route_kind).unwrap_or_else(invalid)).collect();
        let choices = [("All", ()), ("Selector", ()), ("Same", ())];
        (kinds, allowed_namespaces(fields, &choices, FromNamespaces::Same))
    })
}

/// `namespaces`, with the choices for `from`. With an error it allows no namespace.
pub(super) fn allowed_namespaces(
    of: &Fields<'_>,
    choices: &[(&str, ())],
    default: FromNamespaces,
) -> FromNamespaces {
    let Some(field) = of.get("namespaces") else { return default };
    let read = intact(&field, |fields| {
        let selector = fields.get("selector");
        let from = match fields.get("from") {
            None => return Some(default),
            Some(from) => {
                from.one_of(choices)?;
                from
            }
        };
        Some(match from.string()? {
            "All" => FromNamespaces::All,
            "Same" => FromNamespaces::Same,
            "Selector" => FromNamespaces::Selector(match selector {
                Some(_) => config::selector(selector),
                None => {
                    from.warning(
                        "Selector without a selector matches no namespace",
                        "selector, or from: All",
                    );
                    Selector::none()
                }
            }),
            _ => FromNamespaces::None,
        })
    });
    read.unwrap_or_default()
}
