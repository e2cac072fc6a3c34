//! The faults that compilation finds. With a [`Problem`], one part of the spec is left out, and the rest works. With a
//! [`CompileError`], the whole spec is refused, and the last good snapshot stays in use.
//!
//! Texts are for operators: what, where, why. The caller adds the location of the object.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::service::{ForwardingMode, ServiceKey};
use crate::limits;

/// A part of the spec that is left out, or works less well than requested, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A backend gets no packet.
    #[error("{label} ({service}): backend {backend} is left out: {reason}")]
    Backend {
        /// The service port.
        service: ServiceKey,
        /// The name of the service port for display.
        label: String,
        /// The backend.
        backend: SocketAddr,
        /// The reason.
        reason: BackendProblem,
    },
    /// The configured size of a Maglev table is below the number of backends: some get no new flow.
    #[error(
        "{label} ({service}): a Maglev table of {slots} slots is too small for {backends} backends: some of them \
         get no new flows"
    )]
    TableTooSmall {
        /// The service port.
        service: ServiceKey,
        /// The name of the service port for display.
        label: String,
        /// Slots of the table.
        slots: u32,
        /// Backends that take new flows.
        backends: usize,
    },
    /// The weights of a service with seats or a ring sum to more than the maximum. All are divided, so that shares are
    /// about as requested. With seats, a change of the divisor redistributes the flows of the service.
    #[error(
        "{label} ({service}): the weights of the backends sum to {sum}, but the maximum is {max}: every weight is \
         divided by {divisor}"
    )]
    WeightsDivided {
        /// The service port.
        service: ServiceKey,
        /// The name of the service port for display.
        label: String,
        /// Sum of the weights of the backends that take new flows.
        sum: u64,
        /// The maximum number of seats or ring positions.
        max: usize,
        /// The divisor of each weight.
        divisor: u32,
    },
    /// The router of a route is not in a connected network: the route is left out.
    #[error("route to {to} is left out: its router {via} is not in a network of any interface")]
    RouterOffLink {
        /// Destination prefix.
        to: IpNet,
        /// The router.
        via: IpAddr,
    },
    /// A route to a connected network: the route is left out.
    #[error("route to {to} via {via} is left out: {to} is a directly connected network")]
    RouteShadowed {
        /// Destination prefix.
        to: IpNet,
        /// The router.
        via: IpAddr,
    },
    /// The neighbour table has no free entry for the router of a route: the route is left out.
    #[error("route to {to} via {via} is left out: the neighbour table is full")]
    RouterTableFull {
        /// Destination prefix.
        to: IpNet,
        /// The router.
        via: IpAddr,
    },
    /// A fixed neighbour is not in a connected network: it is left out.
    #[error("neighbour {ip} is left out: the address is not in a network of any interface")]
    NeighborOffLink {
        /// The neighbour.
        ip: IpAddr,
    },
    /// The neighbour table has no free entry for a fixed neighbour: it is left out.
    #[error("neighbour {ip} is left out: the neighbour table is full")]
    NeighborTableFull {
        /// The neighbour.
        ip: IpAddr,
    },
}

impl Problem {
    /// Whether the part is left out only because the neighbour table was full. It can be programmed once entries are
    /// free.
    #[must_use]
    pub fn is_neighbor_table_full(&self) -> bool {
        match self {
            Self::RouterTableFull { .. } | Self::NeighborTableFull { .. } => true,
            Self::Backend { reason, .. } => *reason == BackendProblem::NeighborTableFull,
            _ => false,
        }
    }
}

/// Why packets cannot be forwarded to a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum BackendProblem {
    /// No connected network and no route contains it.
    #[error("no route leads to its address")]
    NoRoute,
    /// `dsr-l2` reaches backends on the same link only.
    #[error("dsr-l2 needs a backend in a network of an interface")]
    NotOnLink,
    /// DSR keeps the destination port.
    #[error("{mode} cannot change the port: {service_port} differs from {backend_port}")]
    PortDiffers {
        /// The mode.
        mode: ForwardingMode,
        /// Port of the service.
        service_port: u16,
        /// Port of the backend.
        backend_port: u16,
    },
    /// Only modes with an outer header can forward to the other family.
    #[error("{mode} cannot serve a VIP of one address family with a backend of the other")]
    FamilyDiffers {
        /// The mode.
        mode: ForwardingMode,
    },
    /// `fullnat` has no source address of the family.
    #[error("dataplane.snatAddresses has no address of the backend's family")]
    NoSnatAddress,
    /// A tunnel has no outer source address of the family.
    #[error("dataplane.tunnelSource has no address of the backend's family")]
    NoTunnelSource,
    /// Packets would return to the gateway.
    #[error("its address belongs to the gateway")]
    AddressIsOurs,
    /// Nothing listens on port 0.
    #[error("its port is 0")]
    PortZero,
    /// The neighbour table has no free entry for its next hop, or its namespace has more next hops than its share.
    #[error(
        "the neighbour table is full ({} next hops), or this namespace has used up its share",
        limits::NEXT_HOPS_MAX
    )]
    NeighborTableFull,
}

/// Why a spec cannot be compiled at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// A count exceeds its limit.
    #[error("{count} {what}; accepted: at most {max}")]
    TooMany {
        /// The things counted, in the plural.
        what: &'static str,
        /// The actual number.
        count: usize,
        /// The maximum number.
        max: usize,
    },
    /// One service port has more backends than a Maglev table can number.
    #[error("{service}: {count} backends; accepted: at most {}", limits::BACKENDS_PER_SERVICE_MAX)]
    TooManyBackends {
        /// The service port.
        service: ServiceKey,
        /// The actual number.
        count: usize,
    },
    /// One service port has too many source ranges.
    #[error("{service}: {count} source ranges; accepted: at most {}", limits::SOURCE_RANGES_MAX)]
    TooManySourceRanges {
        /// The service port.
        service: ServiceKey,
        /// The actual number.
        count: usize,
    },
    /// Two services have the same (VIP, protocol, port).
    #[error("{service} belongs to two services")]
    DuplicateService {
        /// The key that they share.
        service: ServiceKey,
    },
    /// A service port lists a backend twice.
    #[error("{service}: backend {backend} is listed twice")]
    DuplicateBackend {
        /// The service port.
        service: ServiceKey,
        /// The backend.
        backend: SocketAddr,
    },
    /// A service has port 0.
    #[error("{service}: port 0; accepted: 1 to 65535")]
    ServicePortZero {
        /// The service port.
        service: ServiceKey,
    },
    /// The configured size of a Maglev table is invalid.
    #[error("{service}: Maglev table size {size}; accepted: a prime, at most {}", limits::MAGLEV_SLOTS_MAX)]
    TableSize {
        /// The service port.
        service: ServiceKey,
        /// The size.
        size: u32,
    },
    /// A service rejects more than all new flows.
    #[error("{service}: {ppm} rejected flows per million; accepted: at most {}", limits::REJECTED_PPM_MAX)]
    RejectedShare {
        /// The service port.
        service: ServiceKey,
        /// The share.
        ppm: u32,
    },
    /// An 802.1Q tag is invalid.
    #[error("interface {interface}: vlan {vlan}; accepted: 1 to 4094")]
    Vlan {
        /// Name of the interface.
        interface: String,
        /// The tag.
        vlan: u16,
    },
    /// Two interfaces have the same address.
    #[error("address {address} belongs to two interfaces")]
    DuplicateAddress {
        /// The address.
        address: IpAddr,
    },
    /// Two fixed neighbours have the same address.
    #[error("neighbour {ip} is listed twice")]
    DuplicateNeighbor {
        /// The address.
        ip: IpAddr,
    },
    /// Two routes have the same prefix.
    #[error("route to {to} is listed twice")]
    DuplicateRoute {
        /// The prefix.
        to: IpNet,
    },
}
