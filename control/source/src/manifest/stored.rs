//! The fields of a Service that controllers write: finalizers, `status`, and their owner by `metadata.managedFields`.
//!
//! These fields are not written by hand, but a manifest that was exported from a cluster contains them. Only a wrong
//! type is therefore an error here, and there are no defaults.

use std::net::IpAddr;

use tidegate_model::objects::{Condition, Ingress, IngressPort, Service};
use tidegate_model::yaml::{Field, Fields, Unknown};

/// Fills [`Service::stored`] and [`Service::ingress_ips`].
pub(super) fn read(object: &Fields<'_>, service: &mut Service) {
    if let Some(metadata) = object.mapping("metadata") {
        let stored = &mut service.stored;
        stored.generation = number(&metadata, "generation");
        stored.finalizers = metadata.each("finalizers", owned);
        stored.ingress_managers = owners(&metadata, &INGRESS);
    }
    let Some(status) = object.mapping("status") else { return };
    service.stored.conditions = conditions(&status);
    let ingress = status.part("loadBalancer", |load_balancer| load_balancer.each("ingress", ingress));
    service.stored.ingress = ingress.unwrap_or_default();
    status.finish(Unknown::Warned);
    let mut ips: Vec<IpAddr> = Vec::new();
    for ip in service.stored.ingress.iter().filter_map(|i| i.ip) {
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    service.ingress_ips = ips;
}

/// The `conditions` of a status.
pub(super) fn conditions(status: &Fields<'_>) -> Vec<Condition> {
    status.each("conditions", condition)
}

fn condition(item: &Field<'_>) -> Option<Condition> {
    let fields = item.fields()?;
    let condition = Condition {
        kind: fields.text("type")?,
        status: fields.text("status").unwrap_or_default(),
        reason: fields.text("reason").unwrap_or_default(),
        message: fields.text("message").unwrap_or_default(),
        observed_generation: number(&fields, "observedGeneration"),
        last_transition: fields.read("lastTransitionTime", Field::time),
    };
    fields.finish(Unknown::Warned);
    Some(condition)
}

fn ingress(item: &Field<'_>) -> Option<Ingress> {
    let fields = item.fields()?;
    let ingress = Ingress {
        ip: fields.filled("ip").and_then(|f| f.ip()),
        hostname: fields.text("hostname"),
        ip_mode: fields.text("ipMode"),
        ports: fields.each("ports", port),
    };
    fields.finish(Unknown::Warned);
    Some(ingress)
}

fn port(item: &Field<'_>) -> Option<IngressPort> {
    let fields = item.fields()?;
    let port = fields.read("port", Field::port);
    let protocol = fields.text("protocol").unwrap_or_else(|| "TCP".to_owned());
    let error = fields.text("error");
    fields.finish(Unknown::Warned);
    Some(IngressPort { port: port?.get(), protocol, error })
}

/// `status.loadBalancer.ingress` in `managedFields`.
pub(crate) const INGRESS: [&str; 3] = ["f:status", "f:loadBalancer", "f:ingress"];
/// `status.addresses` in `managedFields`.
pub(crate) const ADDRESSES: [&str; 2] = ["f:status", "f:addresses"];

/// `status` in `managedFields`.
pub(crate) const STATUS: [&str; 1] = ["f:status"];

/// The managers in `managedFields` that own a field.
pub(super) fn owners(metadata: &Fields<'_>, field: &[&str]) -> Vec<String> {
    metadata.each("managedFields", |item| {
        let fields = item.fields()?;
        let manager = fields.text("manager");
        let owned = fields.get("fieldsV1")?.node;
        field.iter().try_fold(owned, |node, step| Some(&node.entry(step)?.node)).and(manager)
    })
}

/// A number that is not negative; 0 if it is absent.
pub(super) fn number(fields: &Fields<'_>, key: &'static str) -> i64 {
    fields.read(key, |f| f.integer(0..=i64::MAX)).unwrap_or(0)
}

fn owned(field: &Field<'_>) -> Option<String> {
    field.string().map(str::to_owned)
}
