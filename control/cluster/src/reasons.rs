//! The words that programs match in what the gateway writes to a cluster: reasons of events, types and reasons of
//! conditions, errors of ports.
//!
//! They are an interface. Each kind of word has its own type, and only this file creates values of it, so an event or a
//! condition cannot be written with a word that is not listed here. `docs/troubleshooting.md` explains every word, and
//! `control/tests/docs/troubleshooting.rs` compares it with the lists `ALL`.

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
    /// Reasons of events about what was done.
    event_reason {
        /// A Service got an address.
        IP_ALLOCATED = "IPAllocated",
        /// An AddressPool is being deleted, and Services hold addresses from it.
        POOL_IN_USE = "PoolInUse",
        /// A Service lost its address, or has a different one.
        CLEAR_ASSIGNMENT = "ClearAssignment",
        /// The gateway begins to serve a Service.
        ENSURING = "EnsuringLoadBalancer",
        /// All ports of a Service are served.
        ENSURED = "EnsuredLoadBalancer",
        /// The ports of a Service are served in a different way from before.
        UPDATED = "UpdatedLoadBalancer",
        /// No gateway serves a deleted Service any more.
        DELETED = "DeletedLoadBalancer",
        /// Not all ports of a Service are served, or its status cannot be written.
        SYNC_FAILED = "SyncLoadBalancerFailed",
        /// A port without a backend.
        UNAVAILABLE = "UnAvailableLoadBalancer",
        /// Other gateways may still serve a released address.
        WAITING = "WaitingForGateways",
        /// No live gateway may announce an address of a Service.
        NO_GATEWAY = "NoGateway",
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
        /// Of a Service: another Service or controller claims the same address, port or status.
        CONFLICTED = "tidegate.dev/Conflicted",
        /// Of a Service: a record of its holdings.
        HOLDS = pools::HOLDS,
        /// Of an AddressPool: it is used as specified.
        ACCEPTED = "Accepted",
        /// Of an AddressPool: it overlaps with another pool.
        OVERLAPS = "Overlaps",
        /// Of an AddressPool: Services hold addresses from it.
        IN_USE = "InUse",
        /// Of a GatewayStatus: routers may send packets to the gateway.
        READY = "Ready",
        /// Of a GatewayStatus: the API server answers the gateway.
        SOURCE_CONNECTED = "SourceConnected",
        /// Of a GatewayStatus: the newest state was given to the workers.
        PUBLISHED = "Published",
        /// Of a GatewayStatus: no other process has the gateway's name.
        NAME_UNIQUE = "NameUnique",
        /// Of a GatewayStatus: nothing prevents the gateway from leading when it gets the Lease.
        CAN_LEAD = "CanLead",
        /// Of a GatewayStatus: every interface has a link.
        INTERFACES_UP = "InterfacesUp",
        /// Of a GatewayStatus: its announcements are withdrawn, and no packet comes to it any more.
        DRAINED = "Drained",
    }
}

words! {
    /// The reason of a condition.
    ConditionReason in
    /// Reasons of conditions.
    condition_reason {
        /// The Service waits for an address.
        PENDING = "Pending",
        /// The Service has its addresses.
        ALLOCATED = "Allocated",
        /// No address can be assigned.
        ALLOCATION_FAILED = Reason::AllocationFailed.as_str(),
        /// No pool authorises its external IPs.
        EXTERNAL_IP_DENIED = Reason::ExternalIpDenied.as_str(),
        /// There is no address to serve.
        NO_ADDRESS = "NoAddress",
        /// A port is refused.
        PORTS_NOT_PROGRAMMED = "PortsNotProgrammed",
        /// The workers have an older state.
        NOT_APPLIED = "NotApplied",
        /// Another gateway that is ready does not serve the Service.
        NOT_ON_EVERY_GATEWAY = "NotOnEveryGateway",
        /// Another gateway that is ready has not confirmed a change of the Service.
        GATEWAY_LAGGING = "GatewayLagging",
        /// No live gateway may announce an address.
        NO_GATEWAY = "NoGateway",
        /// Every port is served.
        PROGRAMMED = "Programmed",
        /// The Service is served, but clients' addresses are not kept.
        CLIENT_ADDRESS_LOST = Reason::ClientAddressLost.as_str(),
        /// No port is served, so there are no backends to check.
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
        /// No other Service or controller claims the same.
        NO_CONFLICT = "NoConflict",
        /// The record is written.
        RECORDED = "Recorded",
        /// The pool is used as specified.
        ACCEPTED = "Accepted",
        /// The pool, or a part of it, is not used.
        NOT_ACCEPTED = "NotAccepted",
        /// The pool does not overlap with another pool.
        NO_OVERLAP = "NoOverlap",
        /// The pool overlaps with another pool.
        OVERLAPS = "Overlaps",
        /// No Service holds an address from the pool.
        NOT_IN_USE = "NotInUse",
        /// The pool is being deleted and waits for the Services that hold its addresses.
        DELETION_WAITS = "DeletionWaits",
        /// Services hold addresses that were removed from the pool.
        HELD_OUTSIDE = "HeldOutside",
        /// Services hold addresses from the pool.
        HELD = "Held",
        /// The gateway forwards.
        FORWARDING = "Forwarding",
        /// The gateway is not ready.
        NOT_READY = "NotReady",
        /// The gateway has stopped.
        STOPPED = "Stopped",
        /// The API server answers.
        CONNECTED = "Connected",
        /// The API server does not answer.
        DISCONNECTED = "Disconnected",
        /// The newest state was given to the workers.
        PUBLISHED = "Published",
        /// The newest state cannot be given to the workers.
        PUBLISH_FAILED = "PublishFailed",
        /// No other process has the gateway's name.
        UNIQUE = "Unique",
        /// Another process has the gateway's name.
        NAME_TAKEN = "NameTaken",
        /// The gateway leads, or may.
        CANDIDATE = "Candidate",
        /// Something prevents the gateway from leading.
        CANNOT_LEAD = "CannotLead",
        /// Every interface has a link.
        UP = "Up",
        /// An interface, or its tap, has no link.
        LINK_LOST = "LinkLost",
        /// No drain of the gateway is requested.
        SERVING = "Serving",
        /// The gateway drains: it announces nothing, and packets may still come.
        DRAINING = "Draining",
        /// No packet comes to the gateway any more.
        DRAINED = "Drained",
        /// The gateway sends no heartbeat.
        NO_HEARTBEAT = "NoHeartbeat",
    }
}

words! {
    /// The error of a port in the status of a Service (core/v1 `PortStatus`). Errors of providers are prefixed with
    /// their domain.
    PortError in
    /// Errors of ports.
    port_error {
        /// The Service requests something that the gateway does not support.
        NOT_SUPPORTED = "tidegate.dev/NotSupported",
        /// Another Service has the port.
        CONFLICT = "tidegate.dev/Conflict",
        /// Any other reason.
        PORT_NOT_PROGRAMMED = "tidegate.dev/PortNotProgrammed",
    }
}
