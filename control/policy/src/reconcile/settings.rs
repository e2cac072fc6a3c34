//! The part of the configuration that reconcile needs, as plain values.
//!
//! `assemble` fills it from the validated configuration and from values that only the running gateway knows (the MAC
//! addresses of its ports). Tests create it directly. Nothing here reads a file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_model::config::{
    FlowLogDefaults, HealthConfig, LOAD_BALANCER_CLASS, Layer2Config, ServicesConfig,
};
use tidegate_model::objects::{IpFamily, Labels, Pool, Service, ServiceType};
use tidegate_spec::{NetworkSpec, Shared};

use super::demand::Demand;
use crate::pools::Authority;

/// The settings of the gateway that the desired state depends on.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `node.name`: the gateway runs on this node, and the endpoints on it are local.
    pub node: Option<String>,
    /// `node.zone`, for topology hints; `None`: the zone of the node.
    pub zone: Option<String>,
    /// `metadata.labels`, by which pools select gateways.
    pub labels: Labels,
    /// `announce.l2`: which gateway answers ARP and neighbour discovery for a VIP.
    pub layer2: Layer2Config,
    /// The network of `dataplane`, with the link addresses of the running ports.
    pub network: Shared<NetworkSpec>,
    /// `pools`, in their order.
    pub pools: Vec<Pool>,
    /// `services`.
    pub services: ServicesConfig,
    /// `health`, the defaults for Services.
    pub health: HealthConfig,
    /// Which LoadBalancer Services belong to this gateway.
    pub claims: Claims,
    /// Whether endpoints belong to the operator, as with the directory source. They are then checked in all networks.
    pub endpoints_of_operator: bool,
    /// Which gateway decides on LoadBalancer addresses: this gateway, unless another gateway is the leader at the API
    /// server.
    pub authority: Authority,
    /// The limit on the shared tables for all Services together; [`Demand::MAX`] except in tests.
    pub limits: Demand,
    /// The peers of `announce.bgp` and `flowSharing`. No Service may get their addresses.
    pub peers: BTreeSet<IpAddr>,
    /// Whether gateways share flows in flux (`flowSharing.mode`).
    pub shares_flows: bool,
    /// `flowLog`: which Services are logged; `None` if there is no log.
    pub flow_log: Option<FlowLogDefaults>,
    /// The addresses of the other gateways at the API server, with their names. No Service may get them.
    pub other_gateways: Arc<BTreeMap<IpAddr, String>>,
}

/// The LoadBalancer Services that belong to a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// `source.kubernetes.loadBalancerClass`: the `spec.loadBalancerClass` of Services that belong to this gateway.
    pub load_balancer_class: String,
    /// Whether a Service without `loadBalancerClass` belongs to this gateway: always for the directory source, whose
    /// objects were written for this gateway; `source.kubernetes.default` for the API server.
    pub unclassed: bool,
}

impl Default for Claims {
    /// The default class, and Services without a class.
    fn default() -> Self {
        Self { load_balancer_class: LOAD_BALANCER_CLASS.to_owned(), unclassed: true }
    }
}

impl Default for Settings {
    /// The defaults of the configuration, without interfaces, pools and addresses.
    fn default() -> Self {
        Self {
            node: None,
            zone: None,
            labels: Labels::new(),
            layer2: Layer2Config::default(),
            network: Shared::default(),
            pools: Vec::new(),
            services: ServicesConfig::default(),
            health: HealthConfig::default(),
            claims: Claims::default(),
            endpoints_of_operator: true,
            authority: Authority::default(),
            limits: Demand::MAX,
            peers: BTreeSet::new(),
            shares_flows: false,
            flow_log: None,
            other_gateways: Arc::default(),
        }
    }
}

impl Settings {
    /// Whether both are equal, except for which gateway decides on LoadBalancer addresses.
    pub(super) fn equals_except_authority(&self, other: &Self) -> bool {
        self == other || Self { authority: other.authority.clone(), ..self.clone() } == *other
    }

    /// Whether this gateway assigns the LoadBalancer address of a Service: the Service has our class, or it has none
    /// and such Services are ours too.
    pub(super) fn claims(&self, service: &Service) -> bool {
        service.service_type == ServiceType::LoadBalancer
            && match service.load_balancer_class.as_deref() {
                _ if service.meta.key.gateway_name().is_some() => true,
                Some(class) => class == self.claims.load_balancer_class,
                None => self.claims.unclassed,
            }
    }

    /// The gateway's own addresses that serve node ports, sorted.
    pub(super) fn node_port_vips(&self) -> Vec<IpAddr> {
        let own = self.network.interface_addresses().map(IpNet::addr);
        let allowed = |ip: &IpAddr| self.services.node_port_addresses.iter().any(|net| net.contains(ip));
        own.filter(allowed).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Whether `fullnat` has a source address of the family.
    pub(super) fn has_snat(&self, family: IpFamily) -> bool {
        self.network.snat_addresses.iter().any(|ip| IpFamily::of(*ip) == family)
    }

    /// Whether tunnels with an outer header of this family have a source address.
    pub(super) fn has_tunnel_source(&self, family: IpFamily) -> bool {
        match family {
            IpFamily::V4 => self.network.tunnel_source_v4.is_some(),
            IpFamily::V6 => self.network.tunnel_source_v6.is_some(),
        }
    }
}
