//! `ReferenceGrant`.

use std::sync::Arc;

use tidegate_model::objects::Metadata;
use tidegate_model::objects::gateway_api::{GrantFrom, GrantTo, ReferenceGrant};
use tidegate_model::yaml::{Fields, Unknown};

use super::fields::{intact, required_items};
use super::rules::{API_GROUP, KIND, NAME, NAMESPACE};
use crate::manifest::object::Object;

/// The maximum number of items of `from`, and of `to`.
const ITEMS_MAX: usize = 16;

/// Reads a ReferenceGrant. An item with an error grants nothing.
pub(crate) fn read(object: &Fields<'_>, meta: Metadata) -> Option<Object> {
    let mut grant = ReferenceGrant { meta, ..ReferenceGrant::default() };
    if let Some(spec) = object.required("spec", "spec with from and to").and_then(|f| f.fields()) {
        spec.whole(Unknown::Warned, |spec| {
            let items = required_items(spec, "from", ITEMS_MAX, "kind and namespace");
            grant.from = items.iter().filter_map(|item| intact(item, from)).collect();
            let items = required_items(spec, "to", ITEMS_MAX, "kind");
            grant.to = items.iter().filter_map(|item| intact(item, to)).collect();
        });
    }
    Some(Object::ReferenceGrant(Arc::new(grant)))
}

fn from(fields: &Fields<'_>) -> Option<GrantFrom> {
    let (group, kind) = (API_GROUP.required(fields, "group"), KIND.required(fields, "kind"));
    let namespace = NAMESPACE.required(fields, "namespace");
    Some(GrantFrom { group: group?, kind: kind?, namespace: namespace? })
}

fn to(fields: &Fields<'_>) -> Option<GrantTo> {
    let (group, kind) = (API_GROUP.required(fields, "group"), KIND.required(fields, "kind"));
    let name = NAME.optional(fields, "name");
    Some(GrantTo { group: group?, kind: kind?, name })
}
