//! Decides which Service has which address: a pure function of pools, Services and the Services' previous addresses.
//!
//! [`Ledger`] records claims on (address, port, protocol). It is filled in passes (`allocate`): Services keep what they
//! have and still request; then externalIPs and requested addresses are claimed; then an address is chosen for each
//! Service that still lacks one; then Gateways get the ports that ListenerSets add. Within a pass, Services are ordered
//! by creation time, then UID, then name, so the order in which files are read has no effect. [`Allocator`] keeps the
//! result and recomputes only what a change can affect. `reconcile` calls it, and adds locations to the [`Problem`]s of
//! refused requests.
//!
//! The addresses of a Service are remembered port by port ([`OwnedAddress`]). They survive restarts in the Service's
//! status or, with a directory source, in a file of the daemon. A change of a pool never takes an address from a
//! Service, unless the pool has `forceRelease` (`keep`).
//!
//! All addresses of a CIDR can be assigned, including the first and the last: a VIP is a host route, not a subnet.
//!
//! Invariant: two Services never own the same (address, port, protocol). Invariant: a Service that has an (address,
//! port, protocol) and still requests it never loses it to a later request. Invariant: without previous addresses, the
//! choice depends on a Service's name, so a new Service changes the address of another Service only if their hashes
//! collide.

mod allocate;
mod allocator;
mod authority;
mod choose;
mod cluster_ips;
mod external;
mod keep;
mod ledger;
mod merge;
mod owned;
mod problems;
mod range;
mod requested;
mod usage;

#[cfg(test)]
mod tests;

pub use allocate::{Applicant, Granted};
pub use allocator::Allocator;
pub use authority::{ALLOCATED, Authority, FIELD_MANAGER, PreviousAddresses, adopted};
pub use cluster_ips::without_cluster_ips;
pub use ledger::{Claim, ClaimConflict, ClaimKind, Ledger};
pub use merge::{PoolFault, merge};
pub use owned::{Holdings, OwnedAddress, RECORD_CONDITION, record, recorded};
pub use problems::{DESCRIBED_MAX, Problems};
pub use range::{Band, Span};
pub use usage::PoolUsage;

use std::net::IpAddr;

use tidegate_model::diagnostic::Severity;
use tidegate_model::objects::{ObjectKey, Pool, Protocol};
use tidegate_model::shared_map::SharedMap;
use tidegate_model::yaml::text;

/// The label of pools whose addresses are not reachable from the internet, with its value.
pub const INTERNAL_LABEL: (&str, &str) = ("scope", "internal");

/// The pools that a Service restricts its addresses to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolRequest {
    /// The pools.
    pub wanted: RequestedPool,
    /// The path of the field that selects them.
    pub field: String,
}

/// The pools that a [`PoolRequest`] selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestedPool {
    /// The pool of this name (`tidegate.dev/address-pool`).
    Named(String),
    /// All pools with [`INTERNAL_LABEL`].
    Internal,
}

impl RequestedPool {
    /// Whether the pool is selected.
    #[must_use]
    pub fn is(&self, pool: &Pool) -> bool {
        match self {
            Self::Named(name) => pool.name == *name,
            Self::Internal => {
                pool.labels.get(INTERNAL_LABEL.0).is_some_and(|value| value == INTERNAL_LABEL.1)
            }
        }
    }
}

impl std::fmt::Display for RequestedPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Named(name) => write!(f, "pool {}", text::shown(name)),
            Self::Internal => write!(f, "a pool labelled {}: {}", INTERNAL_LABEL.0, INTERNAL_LABEL.1),
        }
    }
}

/// The owner of a reserved address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReservedBy {
    /// This gateway.
    Gateway,
    /// The other gateway with this name.
    OtherGateway(String),
    /// The node with this name.
    Node(String),
    /// An API server, or the cluster IP in front of it.
    ApiServer,
    /// A router of this gateway, or a fixed neighbour.
    Router,
    /// A Service of another load balancer with the address in its status.
    OtherLoadBalancer(ObjectKey),
    /// A peer of this gateway in the configuration: a BGP router, or another gateway.
    Peer,
}

impl std::fmt::Display for ReservedBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gateway => f.write_str("an address of the gateway itself"),
            Self::OtherGateway(name) => write!(f, "an address of gateway {name}"),
            Self::Node(name) => write!(f, "an address of node {name}"),
            Self::ApiServer => f.write_str("an address of the API server"),
            Self::Router => {
                f.write_str("an address of a router or neighbour in dataplane.routes or dataplane.neighbors")
            }
            Self::OtherLoadBalancer(service) => {
                write!(f, "an address of Service {service}, which another load balancer serves")
            }
            Self::Peer => {
                f.write_str("an address of a peer in announce.bgp, flowSharing or dataplane.tunnelPeers")
            }
        }
    }
}

/// An address that a Service owns, and its pool.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Assigned {
    /// The address.
    pub address: IpAddr,
    /// The pool's name.
    pub pool: String,
}

/// A port of an address that a Service can own.
pub type PortKey = (Protocol, u16);

/// The current addresses of Services. The daemon keeps them across reloads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocations {
    /// By Service.
    pub by_service: SharedMap<ObjectKey, Holdings>,
    /// The addresses of removed Services. A Service that returns gets the same addresses if they are free.
    pub of_removed: SharedMap<ObjectKey, Holdings>,
}

/// Why a request was not granted. Users see these names as events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProblemKind {
    /// No address: full pool, quota, no matching pool, refused request.
    AllocationFailed,
    /// Addresses of only one of two preferred families.
    FamilyFallback,
    /// An external IP that no pool authorises.
    ExternalIpDenied,
    /// The (address, port, protocol) belongs to another Service.
    Conflict,
    /// The Service got its own address instead of sharing one with older Services that have the same key.
    NotShared,
}

/// A request of a Service that was not granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Its kind.
    pub kind: ProblemKind,
    /// `Warning` if the Service got a usable alternative.
    pub severity: Severity,
    /// Path of the field with the request (`spec.externalIPs[0]`).
    pub field: String,
    /// What was refused, and why.
    pub what: String,
    /// What would have been granted.
    pub accepted: Option<String>,
}
