//! The words that programs match in what the gateway writes to a cluster: reasons of events, types and reasons of
//! conditions, errors of ports.
//!
//! They are an interface. Each kind of word is a type of its own, and only this file makes values of it, so an event or a
//! condition cannot be written with a word that is not listed here. `docs/troubleshooting.md` explains every word, and
//! `tests/docs.rs` compares it with the lists `ALL`.

use tidegate_policy::pools;
use tidegate_policy::reconcile::Reason;

macro_rules! words {
    ($(#[$doc:meta])* $type:ident in $(#[$mdoc:meta])* $module:ident { $($(#[$wdoc:meta])* $name:ident = $text:expr,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(&'static str);

        impl $type {
            /// Every word of this kind.
            pub const ALL: &'static [Self] = &[$($module::$name,)+];

            /// The word as it is written.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                self.0
            }
        }

        $(#[$mdoc])*
        pub mod $module {
            use super::*;
            $($(#[$wdoc])* pub const $name: $type = $type($text);)+
        }
    };
}

words! {
    /// The reason of an event. For requests that were not granted see [`Reason`].
    EventReason in
    /// Reasons of events that tell what was done.
    event_reason {
        /// A Service got an address.
        IP_ALLOCATED = "IPAllocated",
        /// An AddressPool is deleted, and Services hold addresses of it.
        POOL_IN_USE = "PoolInUse",
        /// A Service has no address any more, or another one.
        CLEAR_ASSIGNMENT = "ClearAssignment",
        /// The gateway begins to serve a Service.
        ENSURING = "EnsuringLoadBalancer",
        /// All ports of a Service are served.
        ENSURED = "EnsuredLoadBalancer",
        /// They are served in another way than before.
        UPDATED = "UpdatedLoadBalancer",
        /// No gateway serves a deleted Service any more.
        DELETED = "DeletedLoadBalancer",
        /// Not all ports of a Service are served, or its status cannot be written.
        SYNC_FAILED = "SyncLoadBalancerFailed",
        /// A port without a backend.
        UNAVAILABLE = "UnAvailableLoadBalancer",
        /// Other gateways may still serve what was given back.
        WAITING = "WaitingForGateways",
        /// No gateway leads, so none assigns addresses.
        NO_LEADER = "WaitingForLeader",
        /// Another controller writes the same status.
        CONFLICTING = "ConflictingController",
    }
}

impl From<Reason> for EventReason {
    fn from(reason: Reason) -> Self {
        Self(reason.as_str())
    }
}

words! {
    /// The type of a condition.
    ConditionType in
    /// Types of conditions, of Services, of AddressPools and of GatewayStatuses.
    condition_type {
        /// Of a Service: it has the addresses that it requests.
        ALLOCATED = pools::ALLOCATED,
        /// Of a Service: its ports are served.
        PROGRAMMED = "tidegate.dev/Programmed",
        /// Of a Service: each port has a backend that takes flows.
        HEALTHY = "tidegate.dev/Healthy",
        /// Of a Service: another Service or controller claims the same.
        CONFLICTED = "tidegate.dev/Conflicted",
        /// Of a Service: a record of what it holds.
        HOLDS = pools::HOLDS,
        /// Of an AddressPool: it is used as it is written.
        ACCEPTED = "Accepted",
        /// Of an AddressPool: it has addresses in common with another pool.
        OVERLAPS = "Overlaps",
        /// Of an AddressPool: Services hold addresses of it.
        IN_USE = "InUse",
        /// Of a GatewayStatus: routers may send packets to the gateway.
        READY = "Ready",
        /// Of a GatewayStatus: the API server answers the gateway.
        SOURCE_CONNECTED = "SourceConnected",
        /// Of a GatewayStatus: the newest state was given to the workers.
        PUBLISHED = "Published",
        /// Of a GatewayStatus: no other process has the gateway's name.
        NAME_UNIQUE = "NameUnique",
        /// Of a GatewayStatus: nothing keeps it from leading when it gets the Lease.
        CAN_LEAD = "CanLead",
        /// Of a GatewayStatus: every interface has its link.
        INTERFACES_UP = "InterfacesUp",
    }
}

words! {
    /// The reason of a condition.
    ConditionReason in
    /// Reasons of conditions.
    condition_reason {
        /// The Service waits for an address.
        PENDING = "Pending",
        /// It has its addresses.
        ALLOCATED = "Allocated",
        /// No address can be given.
        ALLOCATION_FAILED = Reason::AllocationFailed.as_str(),
        /// No pool authorises its external IPs.
        EXTERNAL_IP_DENIED = Reason::ExternalIpDenied.as_str(),
        /// There is no address to serve.
        NO_ADDRESS = "NoAddress",
        /// A port is refused.
        PORTS_NOT_PROGRAMMED = "PortsNotProgrammed",
        /// The workers forward by an older state.
        NOT_APPLIED = "NotApplied",
        /// Another gateway that is ready does not serve it.
        NOT_ON_EVERY_GATEWAY = "NotOnEveryGateway",
        /// Every port is served.
        PROGRAMMED = "Programmed",
        /// It is served, and clients' addresses are not kept.
        CLIENT_ADDRESS_LOST = Reason::ClientAddressLost.as_str(),
        /// No port is served, so there is no backend to speak of.
        NO_PORTS = "NoPorts",
        /// A port has no backend on some gateways.
        NO_BACKENDS_ON_SOME_GATEWAYS = "NoBackendsOnSomeGateways",
        /// Every port has a backend.
        BACKENDS_UP = "BackendsUp",
        /// A port has no backend.
        NO_BACKENDS = "NoBackends",
        /// Another controller writes the status.
        CONFLICTING_CONTROLLER = "ConflictingController",
        /// Another Service has the port.
        PORT_CONFLICT = "PortConflict",
        /// Nobody claims the same.
        NO_CONFLICT = "NoConflict",
        /// The record is written.
        RECORDED = "Recorded",
        /// The pool is used as it is written.
        ACCEPTED = "Accepted",
        /// The pool, or a part of it, is not used.
        NOT_ACCEPTED = "NotAccepted",
        /// It has no address in common with another pool.
        NO_OVERLAP = "NoOverlap",
        /// It has.
        OVERLAPS = "Overlaps",
        /// No Service holds an address of the pool.
        NOT_IN_USE = "NotInUse",
        /// The pool is deleted and waits for the Services that hold its addresses.
        DELETION_WAITS = "DeletionWaits",
        /// Services hold addresses that the pool had before.
        HELD_OUTSIDE = "HeldOutside",
        /// Services hold addresses of the pool.
        HELD = "Held",
        /// The gateway forwards.
        FORWARDING = "Forwarding",
        /// It is not ready.
        NOT_READY = "NotReady",
        /// It has stopped.
        STOPPED = "Stopped",
        /// The API server answers.
        CONNECTED = "Connected",
        /// It does not.
        DISCONNECTED = "Disconnected",
        /// The newest state was given to the workers.
        PUBLISHED = "Published",
        /// It cannot be.
        PUBLISH_FAILED = "PublishFailed",
        /// No other process has the name.
        UNIQUE = "Unique",
        /// Another process has it.
        NAME_TAKEN = "NameTaken",
        /// It leads, or may.
        CANDIDATE = "Candidate",
        /// Something keeps it from leading.
        CANNOT_LEAD = "CannotLead",
        /// Every interface has its link.
        UP = "Up",
        /// An interface, or its tap, has none.
        LINK_LOST = "LinkLost",
        /// The gateway sends no heartbeat.
        NO_HEARTBEAT = "NoHeartbeat",
    }
}

words! {
    /// The error of a port in the status of a Service (core/v1 `PortStatus`): words of providers have their domain in front.
    PortError in
    /// Errors of ports.
    port_error {
        /// The Service requests something that the gateway does not support yet.
        NOT_SUPPORTED = "tidegate.dev/NotSupported",
        /// Another Service has the port.
        CONFLICT = "tidegate.dev/Conflict",
        /// Any other reason.
        PORT_NOT_PROGRAMMED = "tidegate.dev/PortNotProgrammed",
    }
}
