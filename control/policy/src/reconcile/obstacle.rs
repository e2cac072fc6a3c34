//! The reasons why a forwarding mode cannot reach an endpoint.

use std::net::SocketAddr;

use tidegate_model::objects::IpFamily;
use tidegate_spec::ForwardingMode;

use super::frontend::Frontend;
use super::settings::Settings;

/// Why a mode cannot forward packets to an endpoint.
#[derive(Debug, Clone)]
pub(super) struct Obstacle {
    pub(super) why: String,
    /// The field below `spec.ports[i]`.
    pub(super) field: &'static str,
    pub(super) accepted: String,
}

/// Why the mode cannot reach a candidate, if it cannot.
pub(super) fn obstacle(
    settings: &Settings,
    mode: ForwardingMode,
    frontend: &Frontend,
    candidate: SocketAddr,
) -> Option<Obstacle> {
    let ip = candidate.ip();
    let family = IpFamily::of(ip);
    let not_here = |why: String, accepted: String| Some(Obstacle { why, field: "", accepted });
    if mode.is_dsr() && candidate.port() != frontend.port.get() {
        return Some(port_differs(mode, frontend, candidate.port()));
    }
    match mode {
        ForwardingMode::DsrL2 if !settings.network.is_on_link(ip) => not_here(
            format!("dsr-l2 reaches endpoints on the gateway's links only, and {ip} is on none"),
            "an endpoint in a prefix of dataplane.interfaces, or another forwarding mode".to_owned(),
        ),
        ForwardingMode::FullNat if !settings.has_snat(family) => not_here(
            format!("fullnat needs an {family} address in dataplane.snatAddresses to reach {ip}"),
            format!("an {family} entry in dataplane.snatAddresses, or another forwarding mode"),
        ),
        _ if mode.is_tunnel() && !settings.has_tunnel_source(family) => not_here(
            format!("{mode} needs an {family} address in dataplane.tunnelSource to reach {ip}"),
            format!("an {family} entry in dataplane.tunnelSource, or another forwarding mode"),
        ),
        _ => None,
    }
}

pub(super) fn port_differs(mode: ForwardingMode, frontend: &Frontend, endpoint_port: u16) -> Obstacle {
    let port = frontend.port;
    Obstacle {
        why: format!("{mode} keeps the destination port {port}, and the target port is {endpoint_port}"),
        field: "targetPort",
        accepted: format!("targetPort {port}, or forwarding nat or fullnat"),
    }
}
