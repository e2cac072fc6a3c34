//! Pools of addresses, from the configuration and from `AddressPool` objects (tidegate.dev/v1alpha1).
//!
//! Values only: `pools` decides which Service gets which address, `cluster` writes the status of the objects.

use std::net::IpAddr;

use super::{AddressRange, Condition, IpFamily, Labels, Metadata, Selector};
use crate::diagnostic::Diagnostic;

/// A pool of addresses, validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Its name, unique.
    pub name: String,
    /// Its addresses, in the order written.
    pub ranges: Vec<AddressRange>,
    /// Whether Services that name no pool get addresses from it.
    pub auto_assign: bool,
    /// Whether `spec.externalIPs` inside it are honoured.
    pub external_ips: bool,
    /// Disabled: there are no new assignments, existing ones stay.
    pub disabled: bool,
    /// Namespaces that may use it; the empty selector admits all.
    pub namespace_selector: Selector,
    /// Services that may use it; the empty selector admits all.
    pub service_selector: Selector,
    /// Addresses that one namespace may hold.
    pub quota_per_namespace: Option<u32>,
    /// Whether Services of different namespaces may share an address (they need the same sharing key as well).
    pub shared_across_namespaces: bool,
    /// Take addresses back from Services that the pool would not give them now: `forceRelease`.
    pub force_release: bool,
    /// Its own labels: `scope: internal` is what annotations that ask for an internal address choose by.
    pub labels: Labels,
}

impl Pool {
    /// A pool of which nothing is written but its name and addresses, with the defaults of the configuration.
    #[must_use]
    pub fn new(name: impl Into<String>, ranges: Vec<AddressRange>) -> Self {
        Self {
            name: name.into(),
            ranges,
            auto_assign: true,
            external_ips: false,
            disabled: false,
            namespace_selector: Selector::default(),
            service_selector: Selector::default(),
            quota_per_namespace: None,
            shared_across_namespaces: false,
            force_release: false,
            labels: Labels::new(),
        }
    }

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

    /// A range of its own that has an address in common with one of the other pool, and that one.
    #[must_use]
    pub fn overlap(&self, other: &Self) -> Option<(AddressRange, AddressRange)> {
        let pairs = self.ranges.iter().flat_map(|a| other.ranges.iter().map(move |b| (a, b)));
        pairs.into_iter().find(|(a, b)| a.overlaps(b)).map(|(a, b)| (*a, *b))
    }
}

/// An `AddressPool` object. It is cluster-wide; the pool's name is the object's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressPool {
    /// Name, labels, origin.
    pub meta: Metadata,
    /// The pool. Invalid ranges are left out and reported in `faults`; a pool that was valid before keeps its last
    /// valid state.
    pub pool: Pool,
    /// What of its spec cannot be used; only an API server without our schema lets such an object in.
    pub faults: Vec<Diagnostic>,
    /// `metadata.generation`, 0 where the source has none.
    pub generation: i64,
    /// Whether it carries [`FINALIZER`](super::FINALIZER): it does not go while Services hold addresses of it.
    pub is_finalized_by_us: bool,
    /// `status` as read.
    pub status: AddressPoolStatus,
}

/// The status of an `AddressPool` as the API server has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressPoolStatus {
    /// Addresses that it has.
    pub total: i64,
    /// Addresses that Services hold.
    pub used: i64,
    /// Addresses that can still be assigned.
    pub available: i64,
    /// `Accepted`, `Overlaps`, `InUse`.
    pub conditions: Vec<Condition>,
}
