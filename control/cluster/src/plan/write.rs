//! The output of a plan: writes and events.

use jiff::Timestamp;
use tidegate_model::objects::{Condition, Ingress, ObjectKey};

use crate::crd;
use crate::event::Event;

/// A write.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Write {
    /// Our finalizer on a Service.
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
}

impl Write {
    /// Its rank among the writes of a plan; the lowest comes first.
    pub(super) fn urgency(&self) -> u8 {
        match self {
            Self::Finalizer { present: false, .. } | Self::PoolFinalizer { .. } => 0,
            Self::ServiceStatus { ingress: None, .. } => 1,
            Self::ServiceStatus { .. } | Self::PoolStatus { .. } => 2,
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
