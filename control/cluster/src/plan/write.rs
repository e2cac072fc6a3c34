//! What is to be done: writes and events.

use jiff::Timestamp;
use tidegate_model::objects::{Condition, Ingress, ObjectKey};

use crate::crd;
use crate::event::Event;

/// Something to write.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    /// Our finalizer on a Service.
    Finalizer {
        /// Whose.
        service: ObjectKey,
        /// Its uid: another object of the name is not meant.
        uid: String,
        /// On it, or off.
        present: bool,
    },
    /// Our part of a Service's status.
    ServiceStatus {
        /// Whose.
        service: ObjectKey,
        /// Its uid.
        uid: String,
        /// `loadBalancer.ingress`; `None` leaves it to others.
        ingress: Option<Vec<Ingress>>,
        /// Our conditions.
        conditions: Vec<Condition>,
    },
    /// Our finalizer on an AddressPool.
    PoolFinalizer {
        /// Its name.
        pool: String,
        /// Its uid: another object of the name is not meant.
        uid: String,
        /// On it, or off.
        present: bool,
    },
    /// The status of an AddressPool.
    PoolStatus {
        /// Its name.
        pool: String,
        /// The whole of it.
        status: crd::AddressPoolStatus,
    },
}

impl Write {
    /// Its place among the writes of a plan: least first.
    pub(super) fn urgency(&self) -> u8 {
        match self {
            Self::Finalizer { present: false, .. } | Self::PoolFinalizer { .. } => 0,
            Self::ServiceStatus { ingress: None, .. } => 1,
            Self::ServiceStatus { .. } | Self::PoolStatus { .. } => 2,
            Self::Finalizer { present: true, .. } => 3,
        }
    }
}

/// What is to be done.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Writes, the most urgent first: what is given back, then what changed, then what is new.
    pub writes: Vec<Write>,
    /// Events that are new.
    pub events: Vec<Event>,
    /// When to plan again though nothing changes.
    pub again_at: Option<Timestamp>,
    /// Whether something waits for other gateways to withdraw.
    pub waits_for_peers: bool,
}
