//! `AddressPool` (tidegate.dev/v1alpha1): the pools of the configuration as objects.

use std::sync::Arc;

use tidegate_model::config;
use tidegate_model::objects::{AddressPool, AddressPoolStatus, FINALIZER, Metadata, Pool};
use tidegate_model::yaml::{Fields, Unknown};

use super::object::Object;
use super::stored;

/// Reads an AddressPool. The keys of its `spec` are those of a pool in the configuration.
pub(super) fn read(object: &Fields<'_>, meta: Metadata) -> Option<Object> {
    Some(Object::AddressPool(Arc::new(read_pool(object, meta))))
}

fn read_pool(object: &Fields<'_>, meta: Metadata) -> AddressPool {
    object.allow(&["status"]);
    let spec = object.required("spec", "spec with addresses").and_then(|f| f.fields());
    let name = meta.key.name.clone();
    let mut pool = match spec {
        Some(spec) => spec.whole(Unknown::Warned, |spec| config::pool(spec, name, &mut Vec::new())),
        None => Pool::new(name, Vec::new()),
    };
    pool.labels.clone_from(&meta.labels);
    let mut read = AddressPool { meta, pool, ..AddressPool::default() };
    let metadata = object.mapping("metadata");
    let finalizers = metadata.as_ref().map(|m| m.items("finalizers")).unwrap_or_default();
    read.is_finalized_by_us = finalizers.iter().any(|finalizer| finalizer.string() == Some(FINALIZER));
    read.generation = metadata.map_or(0, |metadata| stored::number(&metadata, "generation"));
    if let Some(status) = object.mapping("status") {
        read.status = AddressPoolStatus {
            total: stored::number(&status, "total"),
            used: stored::number(&status, "used"),
            available: stored::number(&status, "available"),
            gateways: status.each("gateways", |f| f.string().map(str::to_owned)),
            gateway_summary: status.text("gatewaySummary").unwrap_or_default(),
            address_summary: status.text("addressSummary").unwrap_or_default(),
            conditions: stored::conditions(&status),
        };
    }
    read
}
