//! A port of a Service on one address, and the frontends that are not on addresses of pools: node ports on the
//! gateway's own addresses, and ports on cluster IPs.

use std::net::IpAddr;

use tidegate_model::objects::{Port, Protocol, Service, ServicePort};
use tidegate_spec::{Protocol as CoreProtocol, ServiceKey};

use super::settings::Settings;
use super::view::VipKind;

/// A port of a Service on one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frontend {
    pub(super) vip: IpAddr,
    pub(super) protocol: Protocol,
    /// The port there, which is the node port for [`VipKind::NodePort`].
    pub(super) port: Port,
    pub(super) via: VipKind,
}

impl Frontend {
    pub(super) fn key(&self) -> ServiceKey {
        ServiceKey { vip: self.vip, protocol: core_protocol(self.protocol), port: self.port.get() }
    }

    /// The name of the port in messages: `node port 30080 of port http`.
    pub(super) fn describe(&self, port: &ServicePort) -> String {
        match self.via {
            VipKind::NodePort => format!("node port {} of port {}", self.port, port.label()),
            VipKind::LoadBalancer | VipKind::ExternalIp | VipKind::ClusterIp => {
                format!("port {}", port.label())
            }
        }
    }
}

/// The protocol as a type of the dataplane.
pub(super) fn core_protocol(protocol: Protocol) -> CoreProtocol {
    match protocol {
        Protocol::Tcp => CoreProtocol::Tcp,
        Protocol::Udp => CoreProtocol::Udp,
        Protocol::Sctp => CoreProtocol::Sctp,
    }
}

/// The cluster IPs that the gateway serves.
pub(super) fn cluster_ips<'a>(settings: &Settings, service: &'a Service) -> &'a [IpAddr] {
    if settings.services.own_cluster_ips { &service.cluster_ips } else { &[] }
}

/// The frontends of a port that are not on addresses of pools.
pub(super) fn own_frontends(
    node_port_vips: &[IpAddr],
    cluster_ips: &[IpAddr],
    port: &ServicePort,
) -> impl Iterator<Item = Frontend> {
    let frontend =
        |vip: &IpAddr, number, via| Frontend { vip: *vip, protocol: port.protocol, port: number, via };
    let by_node_port = port.node_port.into_iter().flat_map(move |number| {
        node_port_vips.iter().map(move |vip| frontend(vip, number, VipKind::NodePort))
    });
    by_node_port.chain(cluster_ips.iter().map(move |vip| frontend(vip, port.port, VipKind::ClusterIp)))
}

/// Whether a Service has frontends that are not on addresses of pools.
pub(super) fn asks_for_own(settings: &Settings, service: &Service) -> bool {
    let by_node_port = !settings.services.node_port_addresses.is_empty()
        && service.ports.iter().any(|port| port.node_port.is_some());
    by_node_port || !cluster_ips(settings, service).is_empty()
}
