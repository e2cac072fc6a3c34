//! The objects whose status needed no write, which are skipped.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_model::objects::gateway_api::{GatewayClass, ListenerSet, Route};
use tidegate_model::objects::{ObjectKey, Objects, Protocol};
use tidegate_policy::gateway_api::{ConditionState, ListenerSetState, ParentState};

use super::programming::Programming;

/// A ListenerSet with its state and what its Gateway serves.
type OfListenerSet = (Arc<ListenerSet>, Arc<ListenerSetState>, Option<Arc<Programming>>);

/// A route with its states; `None` if it has no parent of ours.
type OfRoute = (Arc<Route>, Option<Arc<[ParentState]>>);

/// Objects whose status needed no write, each with all inputs of that decision, which are compared by identity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct UpToDateStatuses {
    pub(super) classes: BTreeMap<String, (Arc<GatewayClass>, Arc<ConditionState>)>,
    pub(super) listener_sets: BTreeMap<ObjectKey, OfListenerSet>,
    pub(super) routes: BTreeMap<(Protocol, ObjectKey), OfRoute>,
}

impl UpToDateStatuses {
    /// Removes objects that no longer exist.
    pub(in super::super) fn forget(&mut self, objects: &Objects) {
        let Self { classes, listener_sets, routes } = self;
        if classes.len() > objects.gateway_classes.len() {
            classes.retain(|name, _| objects.gateway_classes.contains_key(name));
        }
        if listener_sets.len() > objects.listener_sets.len() {
            listener_sets.retain(|key, _| objects.listener_sets.contains_key(key));
        }
        if routes.len() > objects.tcp_routes.len() + objects.udp_routes.len() {
            routes.retain(|(protocol, key), _| match protocol {
                Protocol::Udp => objects.udp_routes.contains_key(key),
                Protocol::Tcp | Protocol::Sctp => objects.tcp_routes.contains_key(key),
            });
        }
    }
}

#[cfg(test)]
impl UpToDateStatuses {
    pub(in super::super) fn routes(&self) -> &BTreeMap<(Protocol, ObjectKey), OfRoute> {
        &self.routes
    }
}
