//! The result for each object of the Gateway API: what its status says, except for what depends on addresses and on the
//! workers (`status.addresses`, and the condition `Programmed` of Gateways, ListenerSets and listeners).

use std::sync::Arc;

use tidegate_model::objects::gateway_api::{ParentRef, RouteKind};
use tidegate_model::objects::{ObjectKey, Port, Protocol};
use tidegate_model::shared_map::SharedMap;

/// The states of all objects that this controller is responsible for. A copy shares the contents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GatewayStates {
    /// GatewayClasses of this controller, by name.
    pub classes: SharedMap<String, Arc<ConditionState>>,
    /// Gateways of these classes.
    pub gateways: SharedMap<ObjectKey, Arc<GatewayState>>,
    /// ListenerSets of these Gateways.
    pub listener_sets: SharedMap<ObjectKey, Arc<ListenerSetState>>,
    /// TCPRoutes with a parent among these Gateways and ListenerSets.
    pub tcp_routes: SharedMap<ObjectKey, Arc<[ParentState]>>,
    /// UDPRoutes with a parent among these Gateways and ListenerSets.
    pub udp_routes: SharedMap<ObjectKey, Arc<[ParentState]>>,
}

/// A condition without the generation that it refers to and without the time of its last transition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionState {
    /// `type`, such as `Accepted`.
    pub kind: &'static str,
    /// `status`: `True` or `False`.
    pub is_true: bool,
    /// `reason`, one of those of the specification.
    pub reason: &'static str,
    /// `message`; may be empty.
    pub message: String,
}

/// The state of a Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayState {
    /// Its condition `Accepted`.
    pub accepted: ConditionState,
    /// Its own listeners, in their order.
    pub listeners: Vec<ListenerState>,
    /// The number of its accepted ListenerSets.
    pub attached_listener_sets: usize,
}

/// The state of a ListenerSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerSetState {
    /// The Gateway that it belongs to.
    pub gateway: ObjectKey,
    /// Its condition `Accepted`.
    pub accepted: ConditionState,
    /// Its listeners, in their order.
    pub listeners: Vec<ListenerState>,
}

/// The state of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerState {
    /// `name`.
    pub name: String,
    /// Port and protocol on the addresses of the Gateway; `None` if the listener is not served, because it is not
    /// accepted or conflicts with another listener.
    pub served: Option<(Port, Protocol)>,
    /// The kinds of routes that may attach.
    pub supported_kinds: Vec<RouteKind>,
    /// The number of attached routes.
    pub attached_routes: usize,
    /// `Accepted`, `Conflicted` and `ResolvedRefs`.
    pub conditions: Vec<ConditionState>,
}

/// The state of a route at one of its parents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentState {
    /// The reference as in the route's spec.
    pub parent: ParentRef,
    /// `Accepted` and `ResolvedRefs`.
    pub conditions: Vec<ConditionState>,
}
