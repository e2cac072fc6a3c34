//! Which Service has which address: a pure function of pools, Services and what they had before.
//!
//! [`Ledger`] records claims on (address, port, protocol); [`allocate`] fills it in three passes: Services that
//! already have an address keep it, then externalIPs and requested addresses are claimed, then the rest get one
//! chosen. Within a pass the order is creation time, then UID, then name, so the order in which files are read
//! never shows. Called by `reconcile`; what it refuses comes back as [`Problem`]s, which `reconcile` places.
//!
//! All addresses of a CIDR may be given out, the first and the last too: a VIP is a host route, no subnet.
//!
//! Invariant: two Services never own the same (address, port, protocol).
//! Invariant: without memory the choice follows from a Service's name, so a Service that is added moves another
//! one only where both hash to the same address.

mod allocate;
mod ledger;
mod range;

#[cfg(test)]
mod tests;

pub use allocate::{Allocated, Applicant, Granted, PoolUsage, allocate};
pub use ledger::{Claim, ClaimKind, Ledger, Taken};
pub use range::{AddressRange, Band, Span};

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::diagnostic::Severity;
use crate::model::{IpFamily, Labels, ObjectKey, Selector};

/// A pool of addresses, validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Its name, unique.
    pub name: String,
    /// What it has, in the order written.
    pub ranges: Vec<AddressRange>,
    /// Whether Services that name no pool get addresses from it.
    pub auto_assign: bool,
    /// Whether `spec.externalIPs` inside it are honoured.
    pub external_ips: bool,
    /// Being emptied: nothing new is given out, what is given stays.
    pub disabled: bool,
    /// Namespaces that may use it; the empty selector admits all.
    pub namespace_selector: Selector,
    /// Services that may use it; the empty selector admits all.
    pub service_selector: Selector,
    /// Addresses that one namespace may hold.
    pub quota_per_namespace: Option<u32>,
    /// Whether Services of different namespaces may share an address (they need the same sharing key as well).
    pub shared_across_namespaces: bool,
    /// Its own labels: `scope: internal` is what annotations that ask for an internal address choose by.
    pub labels: Labels,
}

/// The label of pools whose addresses are not reachable from the internet, with its value.
pub const INTERNAL_LABEL: (&str, &str) = ("scope", "internal");

/// The pools that a Service takes addresses from, where it does not leave the choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolWish {
    /// Which.
    pub wanted: WantedPool,
    /// Path of the field that says so.
    pub field: String,
}

/// Which pools a [`PoolWish`] is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WantedPool {
    /// The one of this name (`tidegate.dev/address-pool`).
    Named(String),
    /// Those with [`INTERNAL_LABEL`].
    Internal,
}

impl WantedPool {
    /// Whether it is such a pool.
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

impl std::fmt::Display for WantedPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Named(name) => write!(f, "pool {name}"),
            Self::Internal => write!(f, "a pool labelled {}: {}", INTERNAL_LABEL.0, INTERNAL_LABEL.1),
        }
    }
}

impl Pool {
    /// Whether the address is one of its own.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.ranges.iter().any(|r| r.contains(ip))
    }

    /// Whether it has addresses of the family.
    #[must_use]
    pub fn has_family(&self, family: IpFamily) -> bool {
        self.ranges.iter().any(|r| r.family() == family)
    }

    /// Whether a Service with these labels in a namespace with those may use it.
    #[must_use]
    pub fn admits(&self, service: &Labels, namespace: &Labels) -> bool {
        self.service_selector.matches(service) && self.namespace_selector.matches(namespace)
    }

    /// Its addresses of one family, laid end to end.
    #[must_use]
    pub fn span(&self, family: IpFamily) -> Span {
        Span::new(self.ranges.iter().filter(|r| r.family() == family).copied())
    }
}

/// An address that a Service holds, and the pool that it is from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Assigned {
    /// The address.
    pub address: IpAddr,
    /// The pool's name.
    pub pool: String,
}

/// What Services held after the last call: kept by the daemon from reload to reload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocations {
    /// LoadBalancer addresses by Service.
    pub by_service: BTreeMap<ObjectKey, Vec<Assigned>>,
}

/// Why something was not granted: the names of the events that users know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProblemKind {
    /// No address: full pool, quota, nothing that fits, request refused.
    AllocationFailed,
    /// One of two families only, where both were preferred.
    FamilyFallback,
    /// An external IP that no pool authorises.
    ExternalIpDenied,
    /// The (address, port, protocol) belongs to another Service.
    Conflict,
}

/// Something that a Service asked for and did not get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Its kind.
    pub kind: ProblemKind,
    /// `Warning` where the Service got something that serves as well.
    pub severity: Severity,
    /// Path of the field that asked for it (`spec.externalIPs[0]`).
    pub field: String,
    /// What was refused and why.
    pub what: String,
    /// What would have been granted.
    pub accepted: Option<String>,
}
