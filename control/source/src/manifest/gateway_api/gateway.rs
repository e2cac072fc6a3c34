//! `Gateway`.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_model::objects::gateway_api::{FromNamespaces, Gateway, GatewayAddress};
use tidegate_model::objects::{Labels, Metadata};
use tidegate_model::yaml::{Field, Fields, Unknown, text};

use super::fields::{generation, limited_labels};
use super::listeners::{allowed_namespaces, listeners};
use super::references::has_parameters;
use super::rules::{HOSTNAME, NAME, Rule, is_domain_prefixed, is_path_character};
use super::status;
use crate::manifest::{limited::limited, meta, object::Object, service, stored};

/// The limits of the definition.
const ADDRESSES_MAX: usize = 16;
const LABELS_MAX: usize = 8;
const ANNOTATIONS_MAX: usize = 16;
const ANNOTATION_CHARACTERS_MAX: usize = 4096;

const IP_ADDRESS: &str = "IPAddress";
const HOST: &str = "Hostname";

const ADDRESS_TYPE: Rule = Rule {
    check: |kind| {
        matches!(kind, IP_ADDRESS | HOST | "NamedAddress")
            || kind.len() <= 253 && is_domain_prefixed(kind, is_path_character)
    },
    accepted: "IPAddress, Hostname, NamedAddress, or a name with a domain",
};

const ADDRESS_VALUE: Rule =
    Rule { check: |value| value.chars().count() <= 253, accepted: "at most 253 characters" };

pub(crate) fn read(object: &Fields<'_>, meta: Metadata) -> Option<Object> {
    let mut gateway = Gateway { meta, generation: generation(object), ..Gateway::default() };
    if let Some(metadata) = object.mapping("metadata") {
        gateway.finalizers = metadata.each("finalizers", |f| f.string().map(str::to_owned));
        gateway.address_managers = stored::owners(&metadata, &stored::ADDRESSES);
    }
    let spec = object.required("spec", "spec with gatewayClassName and listeners").and_then(|f| f.fields());
    if let Some(spec) = spec {
        spec.whole(Unknown::Warned, |spec| read_spec(spec, &mut gateway));
    }
    gateway.status = object.part("status", status::of_gateway).unwrap_or_default();
    Some(Object::Gateway(Arc::new(gateway)))
}

fn read_spec(spec: &Fields<'_>, gateway: &mut Gateway) {
    gateway.class = NAME.required(spec, "gatewayClassName").unwrap_or_default();
    gateway.listeners = listeners(spec);
    gateway.addresses = addresses(spec);
    spec.part("infrastructure", |infrastructure| {
        let labels = limited_labels(infrastructure, "labels", LABELS_MAX, meta::labels);
        gateway.infrastructure_labels = labels;
        let annotations = limited_labels(infrastructure, "annotations", ANNOTATIONS_MAX, annotations);
        gateway.source_ranges = infrastructure.get("annotations").map_or_else(Vec::new, |field| {
            let report = |what: &str, accepted: &str| {
                meta::error_at(&field, service::SOURCE_RANGES_ANNOTATION, what, accepted);
            };
            service::annotated_source_ranges(&annotations, field.sheet, report)
        });
        gateway.infrastructure_annotations = annotations;
        gateway.has_parameters = has_parameters(infrastructure);
    });
    let choices = [("All", ()), ("Selector", ()), ("Same", ()), ("None", ())];
    let none = FromNamespaces::None;
    let allowed = spec.part("allowedListeners", |f| allowed_namespaces(f, &choices, none.clone()));
    gateway.allowed_listeners = allowed.unwrap_or(none);
    spec.allow(&["tls"]);
}

fn annotations(field: &Field<'_>) -> Labels {
    let annotations = meta::keyed(field, text::is_qualified_name);
    let is_long = |value: &String| value.chars().count() > ANNOTATION_CHARACTERS_MAX;
    for (key, _) in annotations.iter().filter(|(_, value)| is_long(value) && !field.sheet.is_stored()) {
        let accepted = format!("at most {ANNOTATION_CHARACTERS_MAX} characters");
        meta::error_at(field, key, "the value is too long", &accepted);
    }
    annotations
}

fn addresses(spec: &Fields<'_>) -> Vec<GatewayAddress> {
    let mut taken = BTreeMap::new();
    let mut addresses = Vec::new();
    for item in limited(spec, "addresses", ADDRESSES_MAX) {
        let Some(address) = item.fields().map(|f| f.whole(Unknown::Warned, address)) else { continue };
        let is_unique = matches!(&*address.kind, IP_ADDRESS | HOST) && !address.value.is_empty();
        match taken.get(&address) {
            Some(first) if is_unique && !item.sheet.is_stored() => {
                item.error(format_args!("the same address as {first}"), "each address once");
            }
            _ => {}
        }
        taken.entry(address.clone()).or_insert_with(|| item.path.clone());
        addresses.push(address);
    }
    addresses
}

/// One of `spec.addresses`. An invalid value of a stored Gateway stays as written: without it, any address would be
/// requested.
fn address(fields: &Fields<'_>) -> GatewayAddress {
    let kind = ADDRESS_TYPE.or(fields, "type", IP_ADDRESS).unwrap_or_default();
    let value = fields.filled("value").and_then(|field| {
        let written = ADDRESS_VALUE.read(&field)?;
        match &*kind {
            IP_ADDRESS => field.ip().map(|ip| ip.to_string()).or(Some(written)),
            HOST => HOSTNAME.read(&field),
            _ => Some(written),
        }
    });
    GatewayAddress { kind, value: value.unwrap_or_default() }
}
