//! Converts the validated configuration to the inputs of the dataplane and of `reconcile`. It makes no decisions.
//!
//! The daemon passes its ports with the values that the drivers report. `check`, `replay` and `explain` have no ports
//! and use the values of the configuration ([`offline_interfaces`]).

use std::net::SocketAddr;

use tidegate_dataplane::gateway::{self, Memory};
use tidegate_dataplane::topology;
use tidegate_model::config::{FlowSharing, GatewayConfig, Idle, Interface, SourceConfig};
use tidegate_policy::reconcile::{Claims, Demand, Settings};
use tidegate_spec::InterfaceSpec;
use tidegate_wire::MacAddr;

/// The dataplane settings of a configuration, without callbacks and without the tap mark.
#[must_use]
pub fn dataplane_config(config: &GatewayConfig) -> gateway::DataplaneConfig {
    let dataplane = &config.dataplane;
    let mib = dataplane.memory.size_mib;
    gateway::DataplaneConfig {
        cores: dataplane.cores.iter().copied().map(usize::from).collect(),
        idle: match dataplane.idle {
            Idle::Poll => topology::Idle::Poll,
            Idle::Adaptive => topology::Idle::Adaptive,
        },
        memory: if dataplane.memory.hugepages { Memory::Hugepages { mib } } else { Memory::NoHuge { mib } },
        flow_entries_per_core: dataplane.flow_entries_per_core as usize,
        flow_service_percent: dataplane.flow_service_percent,
        flow_store: dataplane.flow_directory.as_ref().map(|directory| directory.join(&config.name)),
        interfaces: dataplane.network.interfaces.iter().map(interface_config).collect(),
        routes: dataplane.network.routes.clone(),
        taps: true,
        tap_mark: None,
        announce: true,
        snat_is_released: config.flow_sharing.mode == FlowSharing::Nat,
        on_failure: None,
        on_change: None,
    }
}

fn interface_config(interface: &Interface) -> gateway::InterfaceConfig {
    gateway::InterfaceConfig {
        name: interface.name.clone(),
        device: interface.device.clone(),
        mac: interface.mac,
        mtu: Some(interface.mtu),
        vlan: interface.vlan,
        addresses: interface.addresses.clone(),
    }
}

/// The interfaces according to the configuration. If it gives no `mac`, interface n gets `02:00:00:00:00:n`, so that a
/// capture can be replayed on any machine.
#[must_use]
pub fn offline_interfaces(config: &GatewayConfig) -> Vec<InterfaceSpec> {
    let spec = |(n, interface): (usize, &Interface)| InterfaceSpec {
        name: interface.name.clone(),
        // There are at most `limits::INTERFACES_MAX` interfaces, so `n` fits.
        mac: interface.mac.unwrap_or(MacAddr([2, 0, 0, 0, 0, n as u8])),
        mtu: interface.mtu,
        vlan: interface.vlan,
        addresses: interface.addresses.clone(),
    };
    config.dataplane.network.interfaces.iter().enumerate().map(spec).collect()
}

/// The settings for `reconcile` from a configuration and its interfaces.
#[must_use]
pub fn settings(config: &GatewayConfig, interfaces: Vec<InterfaceSpec>) -> Settings {
    let bgp = config.announce.bgp.iter().flat_map(|bgp| bgp.peers.iter().map(|peer| peer.address));
    Settings {
        node: config.node.name.clone(),
        zone: config.node.zone.clone(),
        labels: config.labels.clone(),
        layer2: config.announce.l2.clone(),
        network: config.dataplane.network.with_interfaces(interfaces).into(),
        pools: config.pools.clone(),
        services: config.services.clone(),
        health: config.health.clone(),
        claims: Claims {
            load_balancer_class: config.source.load_balancer_class().to_owned(),
            unclassed: config.source.claims_classless(),
        },
        endpoints_of_operator: matches!(config.source, SourceConfig::Directory(_)),
        authority: tidegate_policy::pools::Authority::default(),
        limits: Demand::MAX,
        peers: bgp.chain(config.flow_sharing.peers.iter().map(SocketAddr::ip)).collect(),
        shares_flows: config.flow_sharing.mode != FlowSharing::None,
        flow_log: config.flow_log.enabled(),
        other_gateways: std::sync::Arc::default(),
    }
}
