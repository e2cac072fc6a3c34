//! The output of a plan: writes and events.

use jiff::Timestamp;
use tidegate_model::objects::gateway_api::{
    GatewayClassStatus, GatewayStatus, ListenerSetStatus, RouteParentStatus, route_kind,
};
use tidegate_model::objects::{Condition, Ingress, ObjectKey, Protocol};

use crate::crd;
use crate::event::Event;

/// A write.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Write {
    /// Our finalizer on a Service or Gateway.
    Finalizer {
        service: ObjectKey,
        /// Its uid, so that another object with the same name is not changed.
        uid: String,
        present: bool,
    },
    /// Our part of a Service's status.
    ServiceStatus {
        service: ObjectKey,
        uid: String,
        /// `loadBalancer.ingress`; `None` leaves it unchanged.
        ingress: Option<Vec<Ingress>>,
        /// Our conditions.
        conditions: Vec<Condition>,
    },
    /// Our finalizer on an AddressPool.
    PoolFinalizer {
        pool: String,
        /// Its uid, so that another object with the same name is not changed.
        uid: String,
        present: bool,
    },
    /// The status of an AddressPool.
    PoolStatus {
        pool: String,
        /// The complete status.
        status: crd::AddressPoolStatus,
    },
    /// Our part of the status of an object of the Gateway API.
    GatewayApiStatus {
        /// Its own namespace and name, also for a Gateway.
        object: ObjectKey,
        /// Its uid, so that another object with the same name is not changed.
        uid: String,
        status: WrittenStatus,
    },
}

/// The status of an object of the Gateway API, without the conditions of others.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum WrittenStatus {
    GatewayClass(GatewayClassStatus),
    /// `None` leaves nothing of ours.
    Gateway(Option<GatewayStatus>),
    ListenerSet(Option<ListenerSetStatus>),
    /// The parents of ours, which replace the stored ones of ours.
    Route(Protocol, Vec<RouteParentStatus>),
}

impl WrittenStatus {
    /// The kind of the object.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::GatewayClass(_) => "GatewayClass",
            Self::Gateway(_) => "Gateway",
            Self::ListenerSet(_) => "ListenerSet",
            Self::Route(protocol, _) => route_kind(*protocol),
        }
    }
}

impl Write {
    /// Its rank among the writes of a plan; the lowest comes first.
    pub(super) fn urgency(&self) -> u8 {
        match self {
            Self::Finalizer { present: false, .. } | Self::PoolFinalizer { .. } => 0,
            Self::ServiceStatus { ingress: None, .. } => 1,
            Self::GatewayApiStatus { status: WrittenStatus::Gateway(None), .. } => 1,
            Self::ServiceStatus { .. } | Self::PoolStatus { .. } | Self::GatewayApiStatus { .. } => 2,
            Self::Finalizer { present: true, .. } => 3,
        }
    }
}

/// The writes and events of a plan.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Plan {
    /// The writes, most urgent first: releases, then changes, then additions.
    pub(crate) writes: Vec<Write>,
    pub(crate) events: Vec<Event>,
    /// When to plan again even if nothing changes.
    pub(crate) plan_again_at: Option<Timestamp>,
    /// Whether something waits for other gateways to withdraw.
    pub(crate) waits_for_peers: bool,
}
