//! [`GatewayConfig`]: the validated configuration, section by section.

use std::net::SocketAddr;

use ipnet::IpNet;

use super::admin::AdminConfig;
use super::announce::AnnounceConfig;
use super::dataplane::DataplaneConfig;
use super::drain::DrainConfig;
use super::flow_log::FlowLogConfig;
use super::flow_sharing::{self, FlowSharing, FlowSharingConfig};
use super::health::HealthConfig;
use super::protection::ProtectionConfig;
use super::self_check::SelfCheckConfig;
use super::services::ServicesConfig;
use super::source::SourceConfig;
use crate::objects::{Labels, Origin, Pool};

/// `node`: the machine on which the gateway runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeConfig {
    /// `node.name`: the name of this machine in the cluster, if the gateway is also a node of the cluster. Default
    /// `""`: an appliance outside the cluster.
    pub name: Option<String>,
    /// `node.zone`: the zone for topology hints. Default `""`: the zone of the Node object, if there is one.
    pub zone: Option<String>,
}

/// A valid configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct GatewayConfig {
    /// `metadata.name`: the gateway's name in logs, metrics and events. Default `gateway`.
    pub name: String,
    /// `metadata.labels`: pools select gateways by them. Default none.
    pub labels: Labels,
    /// `node`.
    pub node: NodeConfig,
    /// `dataplane`.
    pub dataplane: DataplaneConfig,
    /// `source`.
    pub source: SourceConfig,
    /// `services`.
    pub services: ServicesConfig,
    /// `protection`. The lists and the rate are also in the network of `dataplane`; `selectionKey` is in its policy.
    pub protection: ProtectionConfig,
    /// `pools`, in the order written. Default none.
    pub pools: Vec<Pool>,
    /// `health`.
    pub health: HealthConfig,
    /// `announce`, and `bgp` of `pools`.
    pub announce: AnnounceConfig,
    /// `drain`.
    pub drain: DrainConfig,
    /// `admin`.
    pub admin: AdminConfig,
    /// `selfCheck`.
    pub self_check: SelfCheckConfig,
    /// `flowSharing`.
    pub flow_sharing: FlowSharingConfig,
    /// `flowLog`.
    pub flow_log: FlowLogConfig,
    /// The location of each key, such as `pools[0].addresses[1]`.
    pub origin: Origin,
}

impl GatewayConfig {
    /// Whether peers for flow sharing are discovered by their `GatewayStatus`.
    #[must_use]
    pub fn finds_flow_peers(&self) -> bool {
        let sharing = &self.flow_sharing;
        let has_gateway_status = matches!(self.source, SourceConfig::Kubernetes(_));
        sharing.mode != FlowSharing::None && sharing.peers.is_empty() && has_gateway_status
    }

    /// The socket that exchanges flows: `flowSharing.listen`. If other gateways discover it, an unspecified address
    /// is replaced with the first address of the interfaces that the socket can use.
    #[must_use]
    pub fn flow_sharing_socket(&self) -> SocketAddr {
        let listen = self.flow_sharing.listen;
        if !(listen.ip().is_unspecified() && self.finds_flow_peers()) {
            return listen;
        }
        let interfaces = &self.dataplane.network.interfaces;
        let own = interfaces.iter().flat_map(|interface| &interface.addresses).map(IpNet::addr);
        let usable = own.filter(|ip| flow_sharing::reaches(listen.ip(), *ip));
        usable.map(|ip| SocketAddr::new(ip, listen.port())).next().unwrap_or(listen)
    }
}
