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
use super::section::section;
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
    section(parent, "announce", |announce| {
        config.l2 = layer2::decode(announce);
        config.kernel_routes = section(announce, "kernelRoutes", |fields| {
            let number = |key, range, default: u32| {
                let number = fields.get(key).and_then(|f| f.integer(range));
                number.and_then(|n| u32::try_from(n).ok()).unwrap_or(default)
            };
            let table = number("table", 1..=i64::from(u32::MAX), 179);
            // 0 to 4 belong to the kernel.
            let protocol = u8::try_from(number("protocol", 5..=255, 179)).unwrap_or(179);
            Some(KernelRoutes { table, protocol })
        });
        config.bgp = bgp::decode(announce, files);
        Some(())
    });
    config
}
