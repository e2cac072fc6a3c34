//! Specs from short expressions, for tests, benches and fuzz runs: a gateway with one link, service ports and backends.
//!
//! Only the feature `testing` compiles it, and only dev-dependencies, the benches and `fuzz/` enable that feature.
//! Invalid texts panic.

use std::net::IpAddr;
use std::time::Duration;

use tidegate_wire::MacAddr;
use tidegate_wire::proxy_tlvs::ProxyTlvs;
use tidegate_wire::testing::builder::GATEWAY_MAC;

use crate::ownership::Layer2;
use crate::{
    BackendSpec, BackendState, ChoiceOptions, FlowTracking, ForwardingMode, GatewaySpec, InterfaceSpec,
    MssClamp, NeighborSpec, NetworkSpec, NoEndpoints, Policy, Protocol, RouteSpec, Scheduler, ServiceKey,
    ServiceLimits, ServiceSpec, SharedService, SnapshotSpec, TunnelOptions,
};

/// The router that is the next hop for all off-link addresses.
pub const ROUTER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xfe]);

/// The link address of backend `n` (1, 2, ...), which has addresses `10.0.0.n` and `fd00::n`.
#[must_use]
pub fn backend_mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, n])
}

/// Parses an address.
///
/// # Panics
/// If the text is not an address.
#[must_use]
pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address in a test")
}

/// The interface `uplink`, with these addresses ("10.0.0.254/24").
///
/// # Panics
/// If a text is not an address with its prefix.
#[must_use]
pub fn interface(mac: MacAddr, addresses: &[&str]) -> InterfaceSpec {
    let addresses = addresses.iter().map(|text| text.parse().expect("a prefix in a test")).collect();
    InterfaceSpec { name: "uplink".into(), mac, mtu: 1500, vlan: None, addresses }
}

/// A route to a network ("0.0.0.0/0").
///
/// # Panics
/// If a text is not a network or an address.
#[must_use]
pub fn route(to: &str, via: &str) -> RouteSpec {
    RouteSpec { to: to.parse().expect("a network in a test"), via: ip(via) }
}

/// The spec of a gateway at 10.0.0.254 and fd00::fe with SNAT addresses 10.0.0.253 and fd00::fd. Its backends are on
/// its only link, and its clients are behind a router.
#[must_use]
pub fn spec() -> SnapshotSpec {
    let neighbors = (1..=9).flat_map(|n| {
        [ip(&format!("10.0.0.{n}")), ip(&format!("fd00::{n}"))]
            .map(|ip| NeighborSpec { ip, mac: backend_mac(n) })
    });
    let routers = [ip("10.0.0.250"), ip("fd00::fa")].map(|ip| NeighborSpec { ip, mac: ROUTER_MAC });
    SnapshotSpec {
        generation: 1,
        network: NetworkSpec {
            interfaces: vec![interface(GATEWAY_MAC, &["10.0.0.254/24", "fd00::fe/64"])],
            routes: vec![route("0.0.0.0/0", "10.0.0.250"), route("::/0", "fd00::fa")],
            neighbors: neighbors.chain(routers).collect(),
            snat_addresses: vec![ip("10.0.0.253"), ip("fd00::fd")],
            tunnel_source_v4: Some("10.0.0.254".parse().expect("a valid prefix")),
            tunnel_source_v6: Some("fd00::fe".parse().expect("a valid prefix")),
            gateway: GatewaySpec::default(),
            policy: Policy::default(),
            ..NetworkSpec::default()
        }
        .into(),
        services: Vec::new(),
    }
}

/// [`spec`] with these services, and with its network changed.
pub fn spec_with(services: Vec<SharedService>, change: impl FnOnce(&mut NetworkSpec)) -> SnapshotSpec {
    let mut spec = SnapshotSpec { services, ..spec() };
    change(&mut spec.network);
    spec
}

/// A service port on `vip` ("203.0.113.5:80") with these backends ("10.0.0.1:80"), all active.
#[must_use]
pub fn service(mode: ForwardingMode, protocol: Protocol, vip: &str, backends: &[&str]) -> ServiceSpec {
    let vip: std::net::SocketAddr = vip.parse().expect("a VIP in a test");
    ServiceSpec {
        key: ServiceKey { vip: vip.ip(), protocol, port: vip.port() },
        namespace: "default".into(),
        name: "web".into(),
        port_name: vip.port().to_string(),
        mode,
        tunnel: TunnelOptions::default(),
        scheduler: Scheduler::Rendezvous,
        affinity: None,
        no_endpoints: NoEndpoints::Reject,
        rejected_ppm: 0,
        mss_clamp: MssClamp::Off,
        choice: ChoiceOptions::default(),
        flow_tracking: FlowTracking::Always,
        idle_timeout_tcp: Duration::from_secs(900),
        idle_timeout_udp: Duration::from_secs(120),
        idle_timeout_sctp: Duration::from_secs(120),
        source_ranges: None,
        limits: ServiceLimits::default(),
        proxy_protocol: None,
        proxy_tlvs: ProxyTlvs::NONE,
        vpce_id: Default::default(),
        syn_cookies: None,
        passive_health: None,
        flow_log: None,
        layer2: Layer2::Always,
        backends: backends.iter().map(|text| backend(text, BackendState::Active)).collect(),
    }
}

/// A backend of weight 1, given as "10.0.0.1:80".
///
/// # Panics
/// If the text is not an address and port.
#[must_use]
pub fn backend(text: &str, state: BackendState) -> BackendSpec {
    let at: std::net::SocketAddr = text.parse().expect("a backend in a test");
    BackendSpec { address: at.ip(), port: at.port(), weight: 1, state }
}
