//! `announce`: how the gateway announces its VIPs to the network.
//!
//! [`bgp`] has the peers. [`attributes`] reads route attributes, for pools too.

mod attributes;
mod bgp;
mod check;

pub(super) use attributes::of_pool;
pub use bgp::{BgpConfig, Peer, Secret};
pub(super) use check::check;

use super::files::Files;
use super::layer2::{self, Layer2Config, Layer2Mode};
use crate::yaml::Fields;

/// How VIPs are announced to the network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnnounceConfig {
    /// `l2`: which gateway answers ARP and neighbour solicitations for VIPs.
    pub l2: Layer2Config,
    /// `kernelRoutes`: the VIPs are routes in a table of the kernel. Default none.
    pub kernel_routes: Option<KernelRoutes>,
    /// `bgp`: a BIRD that the gateway runs announces the VIPs. Default none.
    pub bgp: Option<BgpConfig>,
}

impl AnnounceConfig {
    /// Whether the gateway can withdraw its announcements, so that other gateways receive the packets. With ARP and
    /// neighbour discovery, this is possible only if another gateway can take over.
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
    /// `protocol`: the protocol number of the routes, by which the gateway recognises its own routes. Default 179.
    pub protocol: u8,
}

pub(super) fn decode(parent: &Fields<'_>, files: &Files<'_>) -> AnnounceConfig {
    let mut config = AnnounceConfig::default();
    parent.section("announce", |announce| {
        config.l2 = layer2::decode(announce);
        config.kernel_routes = announce.section("kernelRoutes", |fields| {
            let mut routes = KernelRoutes { table: 179, protocol: 179 };
            fields.set("table", &mut routes.table, |f| f.integer(1..=u32::MAX));
            // 0 to 4 belong to the kernel.
            fields.set("protocol", &mut routes.protocol, |f| f.integer(5..=255));
            routes
        });
        config.bgp = bgp::decode(announce, files);
    });
    config
}
