//! The objects that concern one Gateway, and how a route is identified.

use std::sync::Arc;

use tidegate_model::objects::gateway_api::{GROUP, Gateway, ListenerSet, ParentRef, Route};
use tidegate_model::objects::{Metadata, ObjectKey, Objects, Protocol};

use crate::reconcile::ObjectKind;

/// A route: its protocol and key.
pub(super) type RouteId = (Protocol, ObjectKey);

/// A Gateway or ListenerSet that a route can attach to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Parent {
    Gateway(ObjectKey),
    ListenerSet(ObjectKey),
}

/// The objects that concern one Gateway.
pub(super) struct Members<'a> {
    pub(super) gateway: &'a Gateway,
    /// The ListenerSets that name the Gateway as their parent, in their order of precedence.
    pub(super) sets: Vec<&'a Arc<ListenerSet>>,
    /// The routes that name the Gateway, or one of these ListenerSets, as a parent, in their order of precedence.
    pub(super) routes: Vec<&'a Arc<Route>>,
}

impl<'a> Members<'a> {
    pub(super) fn new(
        gateway: &'a Gateway,
        mut sets: Vec<&'a Arc<ListenerSet>>,
        mut routes: Vec<&'a Arc<Route>>,
    ) -> Self {
        sets.sort_by(|a, b| precedence(&a.meta).cmp(&precedence(&b.meta)));
        routes.sort_by(|a, b| precedence(&a.meta).cmp(&precedence(&b.meta)));
        Self { gateway, sets, routes }
    }
}

/// The order in which objects of equal rights have precedence: the oldest first, then by namespace and name. Those
/// without a creation time come last, in the order in which they appeared.
fn precedence(meta: &Metadata) -> impl Ord + '_ {
    (meta.creation_time.is_none(), meta.creation_time, meta.arrival, &meta.key)
}

/// The route with this identity.
pub(super) fn route<'a>((protocol, key): &RouteId, objects: &'a Objects) -> Option<&'a Arc<Route>> {
    match protocol {
        Protocol::Udp => objects.udp_routes.get(key),
        Protocol::Tcp | Protocol::Sctp => objects.tcp_routes.get(key),
    }
}

/// The parent that a reference in an object of the namespace `own` names, if it is of a kind that this controller
/// implements.
pub(super) fn parent_of(parent: &ParentRef, own: &str) -> Option<Parent> {
    let key = parent.key(own);
    match (parent.group.as_str(), parent.kind.as_str()) {
        (GROUP, "Gateway") => Some(Parent::Gateway(key)),
        (GROUP, "ListenerSet") => Some(Parent::ListenerSet(key)),
        _ => None,
    }
}

/// The Gateway that a ListenerSet names as its parent.
pub(super) fn gateway_of_set(set: &ListenerSet) -> Option<ObjectKey> {
    match parent_of(&set.parent, &set.meta.key.namespace)? {
        Parent::Gateway(key) => Some(key),
        Parent::ListenerSet(_) => None,
    }
}

/// The kind of the routes of a protocol.
pub(super) fn kind_of(protocol: Protocol) -> ObjectKind {
    match protocol {
        Protocol::Udp => ObjectKind::UdpRoute,
        Protocol::Tcp | Protocol::Sctp => ObjectKind::TcpRoute,
    }
}
