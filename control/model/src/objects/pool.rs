//! Pools of addresses, from the configuration and from `AddressPool` objects (tidegate.dev/v1alpha1).
//!
//! Values only: `pools` decides which Service gets which address, and `cluster` writes the status of the objects.

use std::net::IpAddr;

use super::{AddressRange, Condition, IpFamily, Labels, Metadata, PoolRoutes, Selector};
use crate::diagnostic::Diagnostic;

/// A pool of addresses, validated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pool {
    /// Its unique name.
    pub name: String,
    /// Its addresses, in the order written.
    pub ranges: Vec<AddressRange>,
    /// Whether Services that name no pool can get addresses from it.
    pub auto_assign: bool,
    /// Whether `spec.externalIPs` in it are honoured.
    pub external_ips: bool,
    /// Whether it is disabled: there are no new assignments, but existing ones stay.
    pub disabled: bool,
    /// Namespaces that may use it; the empty selector admits all.
    pub namespace_selector: Selector,
    /// Services that may use it; the empty selector admits all.
    pub service_selector: Selector,
    /// The number of addresses that one namespace may use.
    pub quota_per_namespace: Option<u32>,
    /// Whether Services of different namespaces may share an address. They also need the same sharing key.
    pub shared_across_namespaces: bool,
    /// `forceRelease`: take back addresses from Services to which the pool would no longer assign them.
    pub force_release: bool,
    /// The gateways that answer for its addresses and announce them; the empty selector admits all.
    pub gateway_selector: Selector,
    /// How its addresses are announced.
    pub announce: AnnounceMethods,
    /// `bgp`: the attributes of the routes to its addresses, and aggregation.
    pub routes: PoolRoutes,
    /// Its labels. Annotations that request an internal address select pools with `scope: internal`.
    pub labels: Labels,
}

impl Pool {
    /// A pool with only a name and addresses, and the defaults of the configuration.
    #[must_use]
    pub fn new(name: impl Into<String>, ranges: Vec<AddressRange>) -> Self {
        Self { name: name.into(), ranges, auto_assign: true, ..Self::default() }
    }

    /// Whether the pool contains the address.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.ranges.iter().any(|r| r.contains(ip))
    }

    /// Whether it has addresses of the family.
    #[must_use]
    pub fn has_family(&self, family: IpFamily) -> bool {
        self.ranges.iter().any(|r| r.family() == family)
    }

    /// Whether a Service with these labels, in a namespace with these labels, may use it.
    #[must_use]
    pub fn admits(&self, service: &Labels, namespace: &Labels) -> bool {
        self.service_selector.matches(service) && self.namespace_selector.matches(namespace)
    }

    /// A range of this pool and a range of the other pool that overlap.
    #[must_use]
    pub fn overlap(&self, other: &Self) -> Option<(AddressRange, AddressRange)> {
        let pairs = self.ranges.iter().flat_map(|a| other.ranges.iter().map(move |b| (a, b)));
        pairs.into_iter().find(|(a, b)| a.overlaps(b)).map(|(a, b)| (*a, *b))
    }
}

/// How the addresses of a pool are announced, if the gateway announces addresses at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnounceMethods {
    /// With ARP and neighbour discovery.
    pub l2: bool,
    /// With BGP.
    pub bgp: bool,
}

impl AnnounceMethods {
    /// Not at all: static routes on routers lead to the addresses.
    pub const NONE: Self = Self { l2: false, bgp: false };
}

impl Default for AnnounceMethods {
    fn default() -> Self {
        Self { l2: true, bgp: true }
    }
}

/// An `AddressPool` object. It is cluster-wide, and its name is the pool's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressPool {
    /// Name, labels, origin.
    pub meta: Metadata,
    /// The pool. Invalid ranges are left out and reported in `faults`. A pool that was valid before keeps its last
    /// valid state.
    pub pool: Pool,
    /// The parts of its spec that can't be used. Only an API server without our schema accepts such an object.
    pub faults: Vec<Diagnostic>,
    /// `metadata.generation`; 0 if the source has none.
    pub generation: i64,
    /// Whether it has the [`FINALIZER`](super::FINALIZER), which prevents its removal while Services use addresses
    /// from it.
    pub is_finalized_by_us: bool,
    /// `status` as read.
    pub status: AddressPoolStatus,
}

/// The status of an `AddressPool` in the API server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressPoolStatus {
    /// The number of its addresses.
    pub total: i64,
    /// The number of addresses that Services use.
    pub used: i64,
    /// The number of addresses that can still be assigned.
    pub available: i64,
    /// The live gateways that it selects.
    pub gateways: Vec<String>,
    /// `gateways` as a text for display.
    pub gateway_summary: String,
    /// Its addresses as a text for display.
    pub address_summary: String,
    /// `Accepted`, `Overlaps`, `InUse`.
    pub conditions: Vec<Condition>,
}
