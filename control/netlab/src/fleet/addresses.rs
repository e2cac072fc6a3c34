//! The addresses of the fleet's lab, beyond those of [`crate::addresses`].

use crate::addresses::{Family, TCP_ECHO_PORT, routed_vip};
use std::net::{Ipv4Addr, SocketAddr};

/// The router on the link of the clients.
pub(super) const ROUTER_FOR_CLIENTS: &str = "198.51.100.1";
/// The router on the link of gateways and servers.
pub(super) const ROUTER_FOR_GATEWAYS: &str = "192.0.2.1";

/// The address that keepalived moves to the gateway that serves `nat`. It is the router's next hop to these VIPs, and
/// the servers' next hop to clients.
pub(super) const VIRTUAL_ROUTER: &str = "192.0.2.8";

/// The AS number of the gateways.
pub(super) const GATEWAY_AS: u32 = 64_512;
/// The AS number of the router.
pub(super) const ROUTER_AS: u32 = 64_513;

/// The port of `/readyz` of each gateway, on the loopback of its host.
pub(super) const HEALTHZ_PORT: u16 = 10356;

/// The maximum number of gateways.
pub const GATEWAYS_MAX: usize = 3;

/// The address of gateway `n`, from 1, which is a next hop of the router.
#[must_use]
pub fn gateway(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, [2, 4, 6][n - 1])
}

/// The SNAT address of gateway `n`.
#[must_use]
pub fn snat(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, [3, 5, 7][n - 1])
}

/// A Service of the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetService {
    /// Its name.
    pub name: &'static str,
    /// Its forwarding mode.
    pub forwarding: &'static str,
    /// `tidegate.dev/flow-tracking`.
    pub tracking: &'static str,
    /// The number of its VIP.
    number: u8,
}

/// The Services, one row of the table each.
pub const SERVICES: [FleetService; 5] = [
    FleetService { name: "dsr-l2", forwarding: "dsr-l2", tracking: "always", number: 1 },
    FleetService { name: "dsr-l2-on-change", forwarding: "dsr-l2", tracking: "on-change", number: 2 },
    FleetService { name: "nat", forwarding: "nat", tracking: "always", number: 3 },
    FleetService { name: "fullnat", forwarding: "fullnat", tracking: "always", number: 4 },
    FleetService { name: "dsr-ipip", forwarding: "dsr-ipip", tracking: "always", number: 5 },
];

impl FleetService {
    /// The address and port that clients connect to.
    #[must_use]
    pub fn vip(&self) -> SocketAddr {
        SocketAddr::new(routed_vip(Family::V4, self.number), TCP_ECHO_PORT)
    }

    /// The annotation with which other Services share its VIP.
    #[must_use]
    pub fn shares_its_vip(&self) -> (&'static str, String) {
        ("tidegate.dev/allow-shared-ip", self.name.to_owned())
    }

    /// Whether replies pass through a gateway because it is the servers' default route, so that one gateway at a time
    /// must have the packets of both directions.
    #[must_use]
    pub fn is_nat(&self) -> bool {
        self.forwarding == "nat"
    }
}
