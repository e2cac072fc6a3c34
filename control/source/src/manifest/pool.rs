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
        Some(spec) => {
            let pool = config::pool(&spec, name, &mut Vec::new());
            spec.finish(Unknown::Warned);
            pool
        }
        None => Pool::new(name, Vec::new()),
    };
    pool.labels.clone_from(&meta.labels);
    let mut read = AddressPool {
        meta,
        pool,
        faults: Vec::new(),
        generation: 0,
        is_finalized_by_us: false,
        status: AddressPoolStatus::default(),
    };
    let metadata = object.mapping("metadata");
    let finalizers = metadata.as_ref().map(|m| m.items("finalizers")).unwrap_or_default();
    read.is_finalized_by_us = finalizers.iter().any(|finalizer| finalizer.string() == Some(FINALIZER));
    let generation = metadata.and_then(|m| m.get("generation")).and_then(|f| f.integer(0..=i64::MAX));
    read.generation = generation.unwrap_or(0);
    if let Some(status) = object.mapping("status") {
        let count = |key| status.get(key).and_then(|f| f.integer(0..=i64::MAX)).unwrap_or(0);
        let text = |key| status.get(key).and_then(|f| f.string()).unwrap_or_default().to_owned();
        let names = |key| status.items(key).iter().filter_map(|f| Some(f.string()?.to_owned())).collect();
        read.status = AddressPoolStatus {
            total: count("total"),
            used: count("used"),
            available: count("available"),
            gateways: names("gateways"),
            gateway_summary: text("gatewaySummary"),
            address_summary: text("addressSummary"),
            conditions: stored::conditions(&status),
        };
        status.finish(Unknown::Ignored);
    }
    read
}
