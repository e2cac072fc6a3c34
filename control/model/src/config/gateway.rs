//! [`GatewayConfig`]: the validated configuration, section by section.

use super::admin::AdminConfig;
use super::announce::AnnounceConfig;
use super::dataplane::DataplaneConfig;
use super::drain::DrainConfig;
use super::flow_sharing::FlowSharingConfig;
use super::health::HealthConfig;
use super::protection::ProtectionConfig;
use super::self_check::SelfCheckConfig;
use super::services::ServicesConfig;
use super::source::SourceConfig;
use crate::objects::{Labels, Origin, Pool};

/// A valid configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct GatewayConfig {
    /// `metadata.name`: the gateway's name in logs, metrics and events. Default `gateway`.
    pub name: String,
    /// `metadata.labels`: pools select gateways by them. Default none.
    pub labels: Labels,
    /// `node.name`: the cluster's name for this machine, if the gateway is also a node of the cluster. Default `""`: an
    /// appliance outside of the cluster.
    pub node_name: Option<String>,
    /// `node.zone`: the zone for topology hints. Default `""`: none.
    pub node_zone: Option<String>,
    /// `dataplane`.
    pub dataplane: DataplaneConfig,
    /// `source`.
    pub source: SourceConfig,
    /// `services`.
    pub services: ServicesConfig,
    /// `protection`. Lists and rate are also in the network of `dataplane`, and so is `selectionKey`, in its policy.
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
    /// The place of each key, such as `pools[0].addresses[1]`.
    pub origin: Origin,
}
