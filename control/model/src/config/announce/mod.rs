//! `announce`: how the network learns that this gateway has the VIPs.
//!
//! [`bgp`] has the peers, [`attributes`] what a route can carry. The keys `bgp` of pools are read here too, because they
//! have the same form.

mod attributes;
mod bgp;
mod check;

use std::collections::BTreeMap;

pub use attributes::{
    COMMUNITY_ACCEPTED, Community, LOCAL_PREF_ACCEPTED, MED_ACCEPTED, PREPENDS_ACCEPTED, PREPENDS_MAX,
    RouteAttributes, communities,
};
pub use bgp::{BgpConfig, Peer, Secret};
pub(super) use check::check;

use super::files::Files;
use super::layer2::{self, Layer2Config, Layer2Mode};
use super::section::section;
use crate::yaml::Fields;

/// How VIPs are announced to the network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnnounceConfig {
    /// `l2`: which gateway answers ARP and neighbour solicitations for VIPs.
    pub l2: Layer2Config,
    /// `kernelRoutes`: the VIPs stand as routes in a table of the kernel. Default none.
    pub kernel_routes: Option<KernelRoutes>,
    /// `bgp`: a BIRD of the gateway's own announces the VIPs. Default none.
    pub bgp: Option<BgpConfig>,
    /// `pools[].bgp`, by the name of the pool. Only pools that have it.
    pub pools: BTreeMap<String, PoolAnnounce>,
}

impl AnnounceConfig {
    /// Whether the gateway announces addresses in a way that it can withdraw, so that their packets go to other gateways.
    /// Answers to ARP and neighbour solicitations are of this kind only if another gateway takes them over.
    #[must_use]
    pub fn is_withdrawable(&self) -> bool {
        let is_shared = matches!(self.l2.mode, Layer2Mode::Lease | Layer2Mode::Vrrp);
        is_shared || self.bgp.is_some() || self.kernel_routes.is_some()
    }
}

/// `announce.kernelRoutes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelRoutes {
    /// `table`: the number of the routing table. Default 179.
    pub table: u32,
    /// `protocol`: the protocol number of the routes, by which the gateway recognises its own. Default 179.
    pub protocol: u8,
}

/// `pools[].bgp`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolAnnounce {
    /// What the routes of the pool's VIPs carry.
    pub attributes: RouteAttributes,
    /// `aggregationLength`: IPv4 VIPs are announced as the prefixes of this length that contain them.
    pub aggregation_v4: Option<u8>,
    /// `aggregationLengthV6`: the same for IPv6.
    pub aggregation_v6: Option<u8>,
}

pub(super) fn decode(parent: &Fields<'_>, files: &Files<'_>) -> AnnounceConfig {
    let mut config = AnnounceConfig::default();
    section(parent, "announce", |announce| {
        config.l2 = layer2::decode(announce);
        config.kernel_routes = section(announce, "kernelRoutes", |fields| {
            let number = |key, range, default: u32| {
                let number = fields.get(key).and_then(|f| f.integer(range));
                number.and_then(|n| u32::try_from(n).ok()).unwrap_or(default)
            };
            let table = number("table", 1..=i64::from(u32::MAX), 179);
            // 0 to 4 are the kernel's own.
            let protocol = u8::try_from(number("protocol", 5..=255, 179)).unwrap_or(179);
            Some(KernelRoutes { table, protocol })
        });
        config.bgp = bgp::decode(announce, files);
        Some(())
    });
    config
}

/// Reads the key `bgp` of a pool.
pub(super) fn of_pool(pool: &Fields<'_>) -> Option<PoolAnnounce> {
    section(pool, "bgp", |fields| {
        let length =
            |key, range| fields.get(key).and_then(|f| f.integer(range)).and_then(|n| u8::try_from(n).ok());
        Some(PoolAnnounce {
            attributes: attributes::decode(fields),
            aggregation_v4: length("aggregationLength", 8..=32),
            aggregation_v6: length("aggregationLengthV6", 16..=128),
        })
    })
}
