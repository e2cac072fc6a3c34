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
use tidegate_core::snapshot::{
    ForwardingMode, InterfaceSpec, NeighborSpec, NoEndpoints, Policy, RouteSpec, TunnelPrefix,
};
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
    /// `dataplane.interfaces`, with the MAC address in use.
    pub interfaces: Vec<InterfaceSpec>,
    /// `dataplane.routes`.
    pub routes: Vec<RouteSpec>,
    /// `dataplane.neighbors`.
    pub neighbors: Vec<NeighborSpec>,
    /// `dataplane.snatAddresses`.
    pub snat_addresses: Vec<IpAddr>,
    /// `dataplane.tunnelSource`, the IPv4 one.
    pub tunnel_source_v4: Option<TunnelPrefix>,
    /// `dataplane.tunnelSource`, the IPv6 one.
    pub tunnel_source_v6: Option<TunnelPrefix>,
    /// `dataplane.routersAsClients`, `dataplane.unknownFlows` and `services.unservedPorts`.
    pub policy: Policy,
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
            interfaces: Vec::new(),
            routes: Vec::new(),
            neighbors: Vec::new(),
            snat_addresses: Vec::new(),
            tunnel_source_v4: None,
            tunnel_source_v6: None,
            policy: Policy::default(),
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

    /// Addresses of the gateway itself, which no Service may have.
    #[must_use]
    pub fn own_addresses(&self) -> BTreeSet<IpAddr> {
        let interfaces = self.interfaces.iter().flat_map(|i| &i.addresses).map(ipnet::IpNet::addr);
        let tunnels = [&self.tunnel_source_v4, &self.tunnel_source_v6];
        let tunnels = tunnels.into_iter().flatten().flat_map(config::listed);
        interfaces.chain(self.snat_addresses.iter().copied()).chain(tunnels).collect()
    }

    /// The gateway's own addresses that serve node ports, sorted.
    pub(super) fn node_port_vips(&self) -> Vec<IpAddr> {
        let own = self.interfaces.iter().flat_map(|i| &i.addresses).map(IpNet::addr);
        let allowed = |ip: &IpAddr| self.node_port_addresses.iter().any(|net| net.contains(ip));
        own.filter(allowed).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Whether an address is on the link of one of the interfaces.
    #[must_use]
    pub(super) fn is_on_link(&self, ip: IpAddr) -> bool {
        self.interfaces.iter().flat_map(|i| &i.addresses).any(|net| net.contains(&ip))
    }

    /// Whether `fullnat` has a source address of the family.
    pub(super) fn has_snat(&self, family: IpFamily) -> bool {
        self.snat_addresses.iter().any(|ip| IpFamily::of(*ip) == family)
    }

    /// Whether tunnels whose outer header has this family have a source.
    pub(super) fn has_tunnel_source(&self, family: IpFamily) -> bool {
        match family {
            IpFamily::V4 => self.tunnel_source_v4.is_some(),
            IpFamily::V6 => self.tunnel_source_v6.is_some(),
        }
    }
}
