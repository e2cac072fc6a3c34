//! The `status` of Gateways, ListenerSets and routes. Controllers write it, so only a wrong type is an error.

use tidegate_model::objects::gateway_api::{
    GatewayAddress, GatewayStatus, ListenerSetStatus, ListenerStatus, RouteParentStatus,
};
use tidegate_model::yaml::{Field, Fields, Unknown};

use super::fields::intact;
use super::references::{parent_ref, route_kind};
use crate::manifest::stored;

pub(super) fn of_gateway(status: &Fields<'_>) -> GatewayStatus {
    GatewayStatus {
        addresses: status.each("addresses", |item| item.fields()?.whole(Unknown::Warned, address)),
        conditions: stored::conditions(status),
        listeners: status.each("listeners", listener),
        attached_listener_sets: status.read("attachedListenerSets", |f| f.integer(0..=i64::MAX)),
    }
}

pub(super) fn of_listener_set(status: &Fields<'_>) -> ListenerSetStatus {
    ListenerSetStatus {
        conditions: stored::conditions(status),
        listeners: status.each("listeners", listener),
    }
}

/// `status.parents`.
pub(super) fn of_route(status: &Fields<'_>) -> Vec<RouteParentStatus> {
    status.each("parents", |item| item.fields()?.whole(Unknown::Warned, parent))
}

fn parent(fields: &Fields<'_>) -> Option<RouteParentStatus> {
    let parent = fields.read("parentRef", |f| intact(f, parent_ref));
    let (controller, conditions) = (fields.text("controllerName"), stored::conditions(fields));
    Some(RouteParentStatus { parent: parent?, controller: controller?, conditions })
}

fn address(fields: &Fields<'_>) -> Option<GatewayAddress> {
    let (kind, value) = (fields.text("type"), fields.text("value"));
    Some(GatewayAddress { kind: kind.unwrap_or_else(|| "IPAddress".to_owned()), value: value? })
}

fn listener(item: &Field<'_>) -> Option<ListenerStatus> {
    item.fields()?.whole(Unknown::Warned, |fields| {
        let (name, conditions) = (fields.text("name"), stored::conditions(fields));
        let supported_kinds = fields.each("supportedKinds", |item| intact(item, route_kind));
        let attached_routes = stored::number(fields, "attachedRoutes");
        Some(ListenerStatus { name: name?, supported_kinds, attached_routes, conditions })
    })
}
