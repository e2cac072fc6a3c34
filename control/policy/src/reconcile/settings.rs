//! The part of the configuration that reconcile needs, as plain values.
//!
//! `assemble` fills it from the validated configuration and from values that only the running gateway has (the MAC
//! addresses of its ports); tests write it by hand. No file, and no default except [`Settings::default`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tidegate_core::limits::MAGLEV_SLOTS_DEFAULT;
use tidegate_core::snapshot::{ForwardingMode, NetworkSpec, NoEndpoints, Shared};
use tidegate_model::config::{self, HealthConfig, LOAD_BALANCER_CLASS, PodRoutes};
use tidegate_model::objects::{IpFamily, Pool, Service, ServiceType};

use super::demand::Demand;
use crate::pools::Authority;

/// The settings of the gateway that the desired state depends on.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `node.name`: the gateway runs on this node, and its endpoints are the local ones.
    pub node: Option<String>,
    /// `node.zone`, for topology hints.
    pub zone: Option<String>,
    /// The network of `dataplane`, with the link addresses of the running ports.
    pub network: Shared<NetworkSpec>,
    /// `pools`, in their order.
    pub pools: Vec<Pool>,
    /// `services.defaults.forwarding`.
    pub forwarding: ForwardingMode,
    /// `services.defaults.forwardingLocal`.
    pub forwarding_local: Option<ForwardingMode>,
    /// `services.defaults.target`.
    pub target: config::Target,
    /// `services.defaults.scheduler`.
    pub scheduler: config::Scheduler,
    /// `services.defaults.tableSize`.
    pub table_size: u32,
    /// `services.defaults.drainTimeout`.
    pub drain_timeout: Duration,
    /// `services.defaults.noEndpoints`.
    pub no_endpoints: NoEndpoints,
    /// `services.nodePortAddresses`: the gateway's own addresses within these networks serve node ports.
    pub node_port_addresses: Vec<IpNet>,
    /// `services.ownClusterIPs`: cluster IPs are routed to the gateway, which serves them.
    pub own_cluster_ips: bool,
    /// `services.podRoutes`.
    pub pod_routes: PodRoutes,
    /// `services.sourceRangesOtherFamily: allow`.
    pub source_ranges_allow_other_family: bool,
    /// `services.compat`: vendors whose annotations are read.
    pub compat: BTreeSet<String>,
    /// `health`, the defaults for Services.
    pub health: HealthConfig,
    /// `source.kubernetes.loadBalancerClass`: the `spec.loadBalancerClass` of Services that belong to this gateway.
    pub load_balancer_class: String,
    /// Whether endpoints belong to the operator, as with the directory source. They are then checked in all networks.
    pub endpoints_of_operator: bool,
    /// Whether a Service without `loadBalancerClass` belongs to this gateway: always for the directory source, whose
    /// objects were written for this gateway; `source.kubernetes.default` for the API server.
    pub claims_unclassed: bool,
    /// Which gateway decides on LoadBalancer addresses: this one, unless another one leads at the API server.
    pub authority: Authority,
    /// The limit for all Services together on the shared tables; [`Demand::MAX`] except in tests.
    pub limits: Demand,
    /// The addresses of the other gateways at the API server, with their names: no Service may have them.
    pub other_gateways: Arc<BTreeMap<IpAddr, String>>,
}

impl Default for Settings {
    /// The defaults of the configuration, without interfaces, pools and addresses.
    fn default() -> Self {
        Self {
            node: None,
            zone: None,
            network: Shared::default(),
            pools: Vec::new(),
            forwarding: ForwardingMode::FullNat,
            forwarding_local: None,
            target: config::Target::Pod,
            scheduler: config::Scheduler::Rendezvous,
            table_size: MAGLEV_SLOTS_DEFAULT,
            drain_timeout: Duration::from_secs(300),
            no_endpoints: NoEndpoints::Reject,
            node_port_addresses: Vec::new(),
            own_cluster_ips: false,
            pod_routes: PodRoutes::Route,
            source_ranges_allow_other_family: false,
            compat: BTreeSet::new(),
            health: HealthConfig::default(),
            load_balancer_class: LOAD_BALANCER_CLASS.to_owned(),
            endpoints_of_operator: true,
            claims_unclassed: true,
            authority: Authority::default(),
            limits: Demand::MAX,
            other_gateways: Arc::default(),
        }
    }
}

impl Settings {
    /// Whether both are equal except for which gateway decides on LoadBalancer addresses.
    pub(super) fn says_the_same_but_for_authority(&self, other: &Self) -> bool {
        self == other || Self { authority: other.authority.clone(), ..self.clone() } == *other
    }

    /// Whether this gateway assigns the LoadBalancer address of a Service: it has our class, or none if such Services
    /// are ours too.
    pub(super) fn claims(&self, service: &Service) -> bool {
        service.service_type == ServiceType::LoadBalancer
            && match service.load_balancer_class.as_deref() {
                Some(class) => class == self.load_balancer_class,
                None => self.claims_unclassed,
            }
    }

    /// The gateway's own addresses that serve node ports, sorted.
    pub(super) fn node_port_vips(&self) -> Vec<IpAddr> {
        let own = self.network.interface_addresses().map(IpNet::addr);
        let allowed = |ip: &IpAddr| self.node_port_addresses.iter().any(|net| net.contains(ip));
        own.filter(allowed).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Whether `fullnat` has a source address of the family.
    pub(super) fn has_snat(&self, family: IpFamily) -> bool {
        self.network.snat_addresses.iter().any(|ip| IpFamily::of(*ip) == family)
    }

    /// Whether tunnels whose outer header has this family have a source.
    pub(super) fn has_tunnel_source(&self, family: IpFamily) -> bool {
        match family {
            IpFamily::V4 => self.network.tunnel_source_v4.is_some(),
            IpFamily::V6 => self.network.tunnel_source_v6.is_some(),
        }
    }
}
