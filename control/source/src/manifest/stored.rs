//! The fields of a Service that controllers write: finalizers, `status`, and their owner by `metadata.managedFields`.
//!
//! These fields are not written by hand, but a manifest that was exported from a cluster contains them. Only a wrong
//! type is therefore an error here, and there are no defaults.

use std::net::IpAddr;

use tidegate_model::objects::{Condition, Ingress, IngressPort, Service};
use tidegate_model::yaml::{Field, Fields, Node, Unknown, Value};

use super::meta;

/// Fills [`Service::stored`] and [`Service::ingress_ips`].
pub(super) fn read(object: &Fields<'_>, service: &mut Service) {
    if let Some(metadata) = object.mapping("metadata") {
        let stored = &mut service.stored;
        stored.generation = metadata.get("generation").and_then(|f| f.integer(0..=i64::MAX)).unwrap_or(0);
        stored.finalizers = metadata.items("finalizers").iter().filter_map(owned).collect();
        stored.ingress_managers =
            metadata.items("managedFields").iter().filter_map(ingress_manager).collect();
    }
    let Some(status) = object.mapping("status") else { return };
    service.stored.conditions = conditions(&status);
    if let Some(load_balancer) = status.mapping("loadBalancer") {
        for item in load_balancer.items("ingress") {
            service.stored.ingress.extend(ingress(&item));
        }
        load_balancer.finish(Unknown::Warned);
    }
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
    status.items("conditions").iter().filter_map(condition).collect()
}

fn condition(item: &Field<'_>) -> Option<Condition> {
    let fields = item.fields()?;
    let condition = Condition {
        kind: text(&fields, "type")?,
        status: text(&fields, "status").unwrap_or_default(),
        reason: text(&fields, "reason").unwrap_or_default(),
        message: text(&fields, "message").unwrap_or_default(),
        observed_generation: fields
            .get("observedGeneration")
            .and_then(|f| f.integer(0..=i64::MAX))
            .unwrap_or(0),
        last_transition: fields.get("lastTransitionTime").and_then(|f| f.time()),
    };
    fields.finish(Unknown::Warned);
    Some(condition)
}

fn ingress(item: &Field<'_>) -> Option<Ingress> {
    let fields = item.fields()?;
    let ingress = Ingress {
        ip: fields.get("ip").filter(|f| !meta::is_empty(f)).and_then(|f| f.ip()),
        hostname: text(&fields, "hostname"),
        ip_mode: text(&fields, "ipMode"),
        ports: fields.items("ports").iter().filter_map(port).collect(),
    };
    fields.finish(Unknown::Warned);
    Some(ingress)
}

fn port(item: &Field<'_>) -> Option<IngressPort> {
    let fields = item.fields()?;
    let port = fields.get("port").and_then(|f| f.port());
    let protocol = text(&fields, "protocol").unwrap_or_else(|| "TCP".to_owned());
    let error = text(&fields, "error");
    fields.finish(Unknown::Warned);
    Some(IngressPort { port: port?.get(), protocol, error })
}

/// The manager of an entry of `managedFields` that owns `status.loadBalancer.ingress`.
fn ingress_manager(item: &Field<'_>) -> Option<String> {
    let fields = item.fields()?;
    let manager = text(&fields, "manager");
    let owned = fields.get("fieldsV1");
    let key = |node: &Node, key: &str| match &node.value {
        Value::Mapping(entries) => entries.iter().find(|e| e.key == key).map(|e| e.node.clone()),
        _ => None,
    };
    let ingress = ["f:status", "f:loadBalancer", "f:ingress"]
        .into_iter()
        .try_fold(owned?.node.clone(), |node, step| key(&node, step));
    ingress.and(manager)
}

fn text(fields: &Fields<'_>, key: &'static str) -> Option<String> {
    fields.get(key).filter(|f| !meta::is_empty(f)).as_ref().and_then(owned)
}

fn owned(field: &Field<'_>) -> Option<String> {
    field.string().map(str::to_owned)
}
