//! One Service for each forwarding mode, and the paths of clients through them.
//!
//! There are four dual-stack Services for `dsr-l2`, `dsr-ipip`, `nat` and `fullnat`, and two of `dsr-ipip` whose
//! endpoints have the other family than the VIP: ten [`ModePath`]s ([`all_paths`]) that most tests use. The other
//! tunnels, `dsr-gue`, `dsr-gre` and `dsr-geneve` with their variants, have twenty more ([`tunnel_paths`]), `dsr-dscp`
//! two ([`dscp_paths`]), and the PROXY protocol two ([`proxy_paths`]). `dsr-l2` has VIPs on the clients' own link, the
//! others have routed ones. NAT modes also change the port of HTTP; modes that keep the VIP cannot.

use super::addresses::{
    self as plan, Family, HTTP_PORT, HTTP_TARGET_PORT, IPERF_PORT, PROXY_PORT, SCTP_PORT, SCTP_TARGET_PORT,
    TCP_ECHO_PORT, UDP_ECHO_PORT,
};
use super::envelope::Envelope;
use super::manifests::{EndpointSpec, Manifest, PortSpec};
use std::net::{IpAddr, SocketAddr};

/// A path of a client to servers: a Service as clients of one family see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModePath {
    /// The Service's name.
    pub service: &'static str,
    /// The forwarding mode.
    pub forwarding: &'static str,
    /// The family of the client and of the VIP.
    pub family: Family,
    /// The family of the endpoints.
    pub backends: Family,
    /// The VIP.
    pub vip: IpAddr,
}

impl ModePath {
    /// The address and port of HTTP for clients.
    #[must_use]
    pub fn http(&self) -> SocketAddr {
        SocketAddr::new(self.vip, HTTP_PORT)
    }

    /// The address and port of `tcp-echo` for clients.
    #[must_use]
    pub fn tcp_echo(&self) -> SocketAddr {
        SocketAddr::new(self.vip, TCP_ECHO_PORT)
    }

    /// The address and port of `udp-echo` for clients.
    #[must_use]
    pub fn udp_echo(&self) -> SocketAddr {
        SocketAddr::new(self.vip, UDP_ECHO_PORT)
    }

    /// The address and port of `sctp-echo` for clients.
    #[must_use]
    pub fn sctp(&self) -> SocketAddr {
        SocketAddr::new(self.vip, SCTP_PORT)
    }

    /// The address that a backend sees when the client is `client`.
    ///
    /// # Panics
    /// Never: the addresses of the plan are valid.
    #[must_use]
    pub fn seen_client(&self, client: IpAddr) -> IpAddr {
        if self.forwarding == "fullnat" && self.proxy_version().is_none() {
            plan::SNAT[self.backends as usize].parse().expect("the plan has addresses")
        } else {
            client
        }
    }

    /// The envelope of packets to the backend, if there is one.
    #[must_use]
    pub fn envelope(&self) -> Option<Envelope> {
        let tunnel = TUNNELS.iter().find(|tunnel| tunnel.services.contains(&self.service));
        tunnel.map(|tunnel| tunnel.envelope).or((self.forwarding == "dsr-ipip").then_some(Envelope::Ip))
    }

    /// The version of the PROXY protocol, if the Service uses it.
    #[must_use]
    pub fn proxy_version(&self) -> Option<&'static str> {
        PROXY_SERVICES.iter().find(|(service, _)| *service == self.service).map(|(_, version)| *version)
    }

    /// The name of the mode, with its options if they are not the defaults, and with both families if they differ.
    #[must_use]
    pub fn label(&self) -> String {
        let choice = match self.envelope() {
            Some(Envelope::GUE_HEADER) => " variant 0",
            Some(Envelope::GRE_KEYED) => " with a key",
            _ => "",
        };
        if let Some(version) = self.proxy_version() {
            return format!("{}, PROXY {version}", self.forwarding);
        }
        if self.family == self.backends {
            format!("{}{choice}", self.forwarding)
        } else {
            format!("{}{choice} ({} in {})", self.forwarding, self.family, self.backends)
        }
    }
}

/// The DSCP of the Service of `dsr-dscp`.
pub const DSCP: u8 = 46;

/// The Services of `fullnat` with the PROXY protocol: name and version.
const PROXY_SERVICES: [(&str, &str); 2] = [("proxy-v1", "v1"), ("proxy-v2", "v2")];

/// The Services of one tunnel.
struct Tunnel {
    envelope: Envelope,
    /// The dual-stack Service, the one with IPv4 in IPv6, and the one with IPv6 in IPv4.
    services: [&'static str; 3],
    /// The number of the first one's VIPs. The other two follow.
    vip: u8,
}

const TUNNELS: [Tunnel; 5] = [
    Tunnel { envelope: Envelope::GUE_DIRECT, services: ["gue-1", "gue-1-4in6", "gue-1-6in4"], vip: 20 },
    Tunnel { envelope: Envelope::GUE_HEADER, services: ["gue-0", "gue-0-4in6", "gue-0-6in4"], vip: 23 },
    Tunnel { envelope: Envelope::GRE_PLAIN, services: ["gre", "gre-4in6", "gre-6in4"], vip: 26 },
    Tunnel { envelope: Envelope::GRE_KEYED, services: ["gre-key", "gre-key-4in6", "gre-key-6in4"], vip: 29 },
    Tunnel { envelope: Envelope::GENEVE, services: ["geneve", "geneve-4in6", "geneve-6in4"], vip: 33 },
];

/// The names of the Services of `dsr-geneve`.
pub(super) fn geneve_services() -> impl Iterator<Item = &'static str> {
    TUNNELS.iter().filter(|tunnel| tunnel.envelope == Envelope::GENEVE).flat_map(|tunnel| tunnel.services)
}

/// The paths of `dsr-l2`, `dsr-ipip`, `nat` and `fullnat`, by mode and then by family.
#[must_use]
pub fn all_paths() -> Vec<ModePath> {
    let mut paths = Vec::new();
    for (number, forwarding) in (1..).zip(["dsr-l2", "dsr-ipip", "nat", "fullnat"]) {
        for family in Family::BOTH {
            let on_link = forwarding == "dsr-l2";
            let vip = if on_link { plan::on_link_vip(family, 1) } else { plan::routed_vip(family, number) };
            paths.push(ModePath { service: forwarding, forwarding, family, backends: family, vip });
        }
    }
    for (number, family) in (5..).zip(Family::BOTH) {
        let (service, backends) =
            if family == Family::V4 { ("ipip-4in6", Family::V6) } else { ("ipip-6in4", Family::V4) };
        let vip = plan::routed_vip(family, number);
        paths.push(ModePath { service, forwarding: "dsr-ipip", family, backends, vip });
    }
    paths
}

/// The paths of `dsr-gue`, `dsr-gre` and `dsr-geneve`, in all four combinations of families.
#[must_use]
pub fn tunnel_paths() -> Vec<ModePath> {
    let of_tunnel = |tunnel: &Tunnel| {
        let Tunnel { envelope, services: [dual, four_in_six, six_in_four], vip } = *tunnel;
        let path = |service, number, family, backends| ModePath {
            service,
            forwarding: envelope.forwarding(),
            family,
            backends,
            vip: plan::routed_vip(family, number),
        };
        [
            path(dual, vip, Family::V4, Family::V4),
            path(dual, vip, Family::V6, Family::V6),
            path(four_in_six, vip + 1, Family::V4, Family::V6),
            path(six_in_four, vip + 2, Family::V6, Family::V4),
        ]
    };
    TUNNELS.iter().flat_map(of_tunnel).collect()
}

/// The paths of `dsr-dscp`.
#[must_use]
pub fn dscp_paths() -> Vec<ModePath> {
    let path = |family| {
        let vip = plan::routed_vip(family, 36);
        ModePath { service: "dscp", forwarding: "dsr-dscp", family, backends: family, vip }
    };
    Family::BOTH.map(path).into()
}

/// The paths of HTTP to nginx with the PROXY protocol: version 1 for IPv4, version 2 for IPv6.
#[must_use]
pub fn proxy_paths() -> Vec<ModePath> {
    let path = |((service, _), family): (&(&'static str, &str), Family)| {
        let vip = plan::routed_vip(family, 32);
        ModePath { service, forwarding: "fullnat", family, backends: family, vip }
    };
    PROXY_SERVICES.iter().zip(Family::BOTH).map(path).collect()
}

/// All paths of HTTP, `tcp-echo` and `udp-echo`.
#[must_use]
pub fn every_path() -> Vec<ModePath> {
    [all_paths(), tunnel_paths(), dscp_paths()].concat()
}

/// The paths that the demo shows: every mode with its defaults, IP-in-IP over the other family, and the PROXY protocol.
#[must_use]
pub fn demo_paths() -> Vec<ModePath> {
    let is_default = |path: &ModePath| {
        let defaults = [
            None,
            Some(Envelope::Ip),
            Some(Envelope::GUE_DIRECT),
            Some(Envelope::GRE_PLAIN),
            Some(Envelope::GENEVE),
        ];
        let is_plain = path.family == path.backends || path.envelope() == Some(Envelope::Ip);
        defaults.contains(&path.envelope()) && is_plain
    };
    every_path().into_iter().filter(is_default).chain(proxy_paths()).collect()
}

/// The VIPs that servers must accept packets for: those of the modes that keep the VIP as the destination.
#[must_use]
pub fn vips_on_servers() -> Vec<IpAddr> {
    every_path().iter().filter(|path| path.forwarding.starts_with("dsr")).map(|path| path.vip).collect()
}

/// The manifests of [`all_paths`], with `servers` as endpoints.
#[must_use]
pub fn manifests(servers: &[u8]) -> Vec<Manifest> {
    manifests_of(&all_paths(), servers)
}

/// The manifests of `paths`, with `servers` as endpoints.
#[must_use]
pub fn manifests_of(paths: &[ModePath], servers: &[u8]) -> Vec<Manifest> {
    let mut manifests: Vec<Manifest> = Vec::new();
    for path in paths {
        let endpoints = servers.iter().map(|n| EndpointSpec::ready(plan::server(path.backends, *n)));
        if let Some(dual) = manifests.iter_mut().find(|manifest| manifest.name == path.service) {
            dual.vips.push(path.vip);
            dual.endpoints.extend(endpoints);
            continue;
        }
        let http = PortSpec::tcp("http", HTTP_PORT);
        let http = if path.forwarding.contains("nat") { http.to(HTTP_TARGET_PORT) } else { http };
        let ports = match path.proxy_version() {
            // Only nginx reads the header.
            Some(_) => vec![http.to(PROXY_PORT)],
            None => {
                vec![http, PortSpec::tcp("tcp-echo", TCP_ECHO_PORT), PortSpec::udp("echo", UDP_ECHO_PORT)]
            }
        };
        let mut manifest = Manifest::new(path.service, path.forwarding, &[path.vip], ports);
        manifest.annotations = path.envelope().map(Envelope::annotations).unwrap_or_default();
        let version = path.proxy_version().map(|version| ("tidegate.dev/proxy-protocol", version.to_owned()));
        manifest.annotations.extend(version);
        if path.forwarding == "dsr-dscp" {
            manifest.annotations.push(("tidegate.dev/dscp", DSCP.to_string()));
        }
        manifests.push(manifest.with_endpoints(endpoints));
    }
    manifests
}

/// The manifests with an SCTP port, except those of the PROXY protocol.
#[must_use]
pub fn with_sctp(mut manifests: Vec<Manifest>) -> Vec<Manifest> {
    let has_proxy = |manifest: &Manifest| PROXY_SERVICES.iter().any(|(name, _)| *name == manifest.name);
    for manifest in manifests.iter_mut().filter(|manifest| !has_proxy(manifest)) {
        let port = PortSpec::sctp("sctp", SCTP_PORT);
        let is_nat = manifest.forwarding.contains("nat");
        manifest.ports.push(if is_nat { port.to(SCTP_TARGET_PORT) } else { port });
    }
    manifests
}

/// Like [`manifests`], with ports for iperf3 ([`super::server::Server::offer_iperf`]). The health check uses another
/// port: iperf3 treats a probe as a client that disconnected, and closes its listening socket with all waiting clients.
#[must_use]
pub fn manifests_for_bulk(servers: &[u8]) -> Vec<Manifest> {
    let mut manifests = manifests(servers);
    for manifest in &mut manifests {
        manifest.ports.extend([PortSpec::tcp("iperf", IPERF_PORT), PortSpec::udp("iperf-udp", IPERF_PORT)]);
        manifest.annotations.push(("tidegate.dev/health-check-port", TCP_ECHO_PORT.to_string()));
    }
    manifests
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::{VipRequest, node, put};
    use tidegate_source::directory::DirectorySource;

    #[test]
    fn every_manifest_of_the_lab_is_accepted_without_a_warning() {
        let directory = std::env::temp_dir().join(format!("tidegate-modes-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let mut services = manifests_of(&[every_path(), proxy_paths()].concat(), &[1, 2, 3]);
        services[0].endpoints[0].weight = Some(5);
        services[1].client_ip_affinity = true;
        services[2].health_check_node_port = Some(31_111);
        services[2].ports[0].node_port = Some(31_112);
        services[3].vip_request = VipRequest::ExternalIps;
        services[0].endpoints[1].node = Some("node-2".to_owned());
        services[1].source_ranges = vec!["198.51.100.0/24".to_owned(), "2001:db8:c::/64".to_owned()];
        services[5].vip_request = VipRequest::ClusterIps;
        services[5].spec.push("internalTrafficPolicy: Local".to_owned());
        for service in &services {
            service.write(&directory).unwrap();
        }
        put(&directory, "node.yaml", &node("node-2", &[plan::server(Family::V4, 2)])).unwrap();
        let (objects, report) = DirectorySource::load(&directory);
        let texts: Vec<_> = services.iter().map(Manifest::to_yaml).collect();
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(report.is_empty(), "{report}\n{}", texts.join("\n"));
        assert_eq!(objects.services.len(), services.len());
    }
}
