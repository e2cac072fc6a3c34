//! The names that the gateway writes to a cluster and that programs match: reasons of events, types and reasons of
//! conditions, errors of ports.
//!
//! They are an interface. Each kind of name has its own type, and only this file creates its values, so no event or
//! condition can be written with a name that is not listed here. `docs/troubleshooting.md` explains every name, and
//! `control/tests/docs/troubleshooting.rs` compares it with the lists `ALL`.

use tidegate_policy::pools;
use tidegate_policy::reconcile::Reason;

macro_rules! names {
    ($(#[$doc:meta])* $type:ident in $(#[$mdoc:meta])* $module:ident { $($(#[$wdoc:meta])* $name:ident = $text:expr,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(&'static str);

        impl $type {
            /// All names of this kind.
            pub const ALL: &'static [Self] = &[$($module::$name,)+];

            /// The name as it is written.
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

names! {
    /// The reason of an event. For denied requests see [`Reason`].
    EventReason in
    /// Reasons of events about completed actions.
    event_reason {
        /// A Service got an address.
        IP_ALLOCATED = "IPAllocated",
        /// An AddressPool is being deleted, and Services use its addresses.
        POOL_IN_USE = "PoolInUse",
        /// A Service lost its address, or has a different one.
        CLEAR_ASSIGNMENT = "ClearAssignment",
        /// The gateway starts to serve a Service.
        ENSURING = "EnsuringLoadBalancer",
        /// All ports of a Service are served.
        ENSURED = "EnsuredLoadBalancer",
        /// The ports of a Service are served differently from before.
        UPDATED = "UpdatedLoadBalancer",
        /// No gateway serves a deleted Service anymore.
        DELETED = "DeletedLoadBalancer",
        /// Not all ports of a Service are served, or its status cannot be written.
        SYNC_FAILED = "SyncLoadBalancerFailed",
        /// A port has no backend.
        UNAVAILABLE = "UnAvailableLoadBalancer",
        /// Other gateways may still serve a released address.
        WAITING = "WaitingForGateways",
        /// No live gateway may announce an address of a Service.
        NO_GATEWAY = "NoGateway",
        /// No gateway leads, so no addresses are assigned.
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

names! {
    /// The type of a condition.
    ConditionType in
    /// Types of conditions of Services, AddressPools and GatewayStatuses.
    condition_type {
        /// Of a Service: it has the addresses that it requests.
        ALLOCATED = pools::ALLOCATED,
        /// Of a Service: its ports are served.
        PROGRAMMED = "tidegate.dev/Programmed",
        /// Of a Service: each port has a backend that accepts flows.
        HEALTHY = "tidegate.dev/Healthy",
        /// Of a Service: another Service or controller claims the same address, port or status.
        CONFLICTED = "tidegate.dev/Conflicted",
        /// Of a Service: a record of the addresses and ports that it owns.
        RECORD = pools::RECORD_CONDITION,
        /// Of an AddressPool: it is used as specified.
        ACCEPTED = "Accepted",
        /// Of an AddressPool: it overlaps with another pool.
        OVERLAPS = "Overlaps",
        /// Of an AddressPool: Services use its addresses.
        IN_USE = "InUse",
        /// Of a GatewayStatus: routers may send packets to the gateway.
        READY = "Ready",
        /// Of a GatewayStatus: the API server responds to the gateway.
        SOURCE_CONNECTED = "SourceConnected",
        /// Of a GatewayStatus: the newest state was published to the workers.
        PUBLISHED = "Published",
        /// Of a GatewayStatus: no other process has the gateway's name.
        NAME_UNIQUE = "NameUnique",
        /// Of a GatewayStatus: nothing prevents the gateway from leading once it gets the Lease.
        CAN_LEAD = "CanLead",
        /// Of a GatewayStatus: every interface has a link.
        INTERFACES_UP = "InterfacesUp",
        /// Of a GatewayStatus: its announcements are withdrawn, and it receives no packets anymore.
        DRAINED = "Drained",
    }
}

names! {
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
        /// No pool authorizes its external IPs.
        EXTERNAL_IP_DENIED = Reason::ExternalIpDenied.as_str(),
        /// There is no address to serve.
        NO_ADDRESS = "NoAddress",
        /// A port is refused.
        PORTS_NOT_PROGRAMMED = "PortsNotProgrammed",
        /// The workers have an older state.
        NOT_APPLIED = "NotApplied",
        /// Another ready gateway does not serve the Service.
        NOT_ON_EVERY_GATEWAY = "NotOnEveryGateway",
        /// Another ready gateway has not confirmed a change of the Service.
        GATEWAY_LAGGING = "GatewayLagging",
        /// No live gateway may announce an address.
        NO_GATEWAY = "NoGateway",
        /// Every port is served.
        PROGRAMMED = "Programmed",
        /// The Service is served, but client addresses are not preserved.
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
        /// No other Service or controller claims the same address, port or status.
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
        /// No Service uses an address from the pool.
        NOT_IN_USE = "NotInUse",
        /// The pool is being deleted and waits for the Services that use its addresses.
        DELETION_WAITS = "DeletionWaits",
        /// Services use addresses that were removed from the pool.
        HELD_OUTSIDE = "HeldOutside",
        /// Services use addresses from the pool.
        HELD = "Held",
        /// The gateway forwards.
        FORWARDING = "Forwarding",
        /// The gateway is not ready.
        NOT_READY = "NotReady",
        /// The gateway has stopped.
        STOPPED = "Stopped",
        /// The API server responds.
        CONNECTED = "Connected",
        /// The API server doesn't respond.
        DISCONNECTED = "Disconnected",
        /// The newest state was published to the workers.
        PUBLISHED = "Published",
        /// The newest state can't be published to the workers.
        PUBLISH_FAILED = "PublishFailed",
        /// No other process has the gateway's name.
        UNIQUE = "Unique",
        /// Another process has the gateway's name.
        NAME_TAKEN = "NameTaken",
        /// The gateway leads, or may lead.
        CANDIDATE = "Candidate",
        /// Something prevents the gateway from leading.
        CANNOT_LEAD = "CannotLead",
        /// Every interface has a link.
        UP = "Up",
        /// An interface, or its tap, has no link.
        LINK_LOST = "LinkLost",
        /// No drain of the gateway is requested.
        SERVING = "Serving",
        /// The gateway is draining: it announces nothing, but may still receive packets.
        DRAINING = "Draining",
        /// The gateway receives no packets anymore.
        DRAINED = "Drained",
        /// The gateway sends no heartbeat.
        NO_HEARTBEAT = "NoHeartbeat",
    }
}

names! {
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
