//! Decides which parts of the configuration can change at run time, and which need a restart.
//!
//! Ports, cores, memory and listeners are created once, at the start. A reload that changes them is refused as a whole,
//! and the error names them, so the gateway never runs with parts of two configurations.

use std::net::SocketAddr;
use std::path::Path;

use ipnet::IpNet;

use tidegate_model::config::{
    DataplaneConfig, EventsConfig, FlowLogCollector, FlowLogFile, FlowSharingConfig, GatewayConfig,
};
use tidegate_spec::NetworkSpec;

/// The keys of the configuration that differ and cannot change while the gateway runs.
pub(super) fn fixed_parts_that_differ(now: &GatewayConfig, new: &GatewayConfig) -> Vec<&'static str> {
    let (old_plane, new_plane) = (&now.dataplane, &new.dataplane);
    let parts = [
        // The gateway's identity in logs, metrics, its lease and its GatewayStatus.
        ("metadata.name", now.name != new.name),
        ("dataplane.cores", old_plane.cores != new_plane.cores),
        ("dataplane.idle", old_plane.idle != new_plane.idle),
        ("dataplane.memory", old_plane.memory != new_plane.memory),
        ("dataplane.flowTable", flow_table(old_plane) != flow_table(new_plane)),
        ("dataplane.interfaces", old_plane.network.interfaces != new_plane.network.interfaces),
        // Determines where the health-check node ports listen.
        ("services.nodePortAddresses", now.services.node_port_addresses != new.services.node_port_addresses),
        (
            "services.healthCheckNodePortNetworks",
            now.services.health_check_node_port_networks != new.services.health_check_node_port_networks,
        ),
        ("source", now.source != new.source.with_gateway_api(now.source.gateway_api())),
        ("gatewayApi", now.source.gateway_api() != new.source.gateway_api()),
        ("announce.l2", now.announce.l2 != new.announce.l2),
        ("flowSharing", sharing(now) != sharing(new)),
        ("flowLog", log_outputs(now) != log_outputs(new)),
        ("admin", listeners(now) != listeners(new)),
    ];
    parts.into_iter().filter_map(|(part, differs)| differs.then_some(part)).collect()
}

/// The sections of the configuration that differ and take effect with a reload. Parts of some others are fixed
/// ([`fixed_parts_that_differ`]).
pub(super) fn other_parts_that_differ(now: &GatewayConfig, new: &GatewayConfig) -> Vec<&'static str> {
    let network =
        |config: &GatewayConfig| NetworkSpec { interfaces: Vec::new(), ..config.dataplane.network.clone() };
    let keys =
        |config: &GatewayConfig| (config.flow_sharing.key.clone(), config.flow_sharing.accept_key.clone());
    let announce = |config: &GatewayConfig| (config.announce.bgp.clone(), config.announce.kernel_routes);
    let token = |config: &GatewayConfig| config.admin.page.as_ref().map(|page| page.token.clone());
    let parts = [
        ("metadata.labels", now.labels != new.labels),
        ("node", now.node != new.node),
        ("dataplane: routes, neighbors, addresses", network(now) != network(new)),
        ("services", now.services != new.services),
        ("protection", now.protection != new.protection),
        ("pools", now.pools != new.pools),
        ("health", now.health != new.health),
        ("announce", announce(now) != announce(new)),
        ("drain", now.drain != new.drain),
        ("admin.metricsPerBackend", now.admin.metrics_per_backend != new.admin.metrics_per_backend),
        ("admin.page.tokenFile", token(now) != token(new)),
        ("selfCheck", now.self_check != new.self_check),
        ("flowLog.services, flowLog.sample", now.flow_log.defaults != new.flow_log.defaults),
        ("flowSharing.key, flowSharing.acceptKey", keys(now) != keys(new)),
    ];
    parts.into_iter().filter_map(|(part, differs)| differs.then_some(part)).collect()
}

/// The settings with which flow tables are created.
fn flow_table(dataplane: &DataplaneConfig) -> (u32, u8, Option<&Path>) {
    let directory = dataplane.flow_directory.as_deref();
    (dataplane.flow_entries_per_core, dataplane.flow_service_percent, directory)
}

/// The outputs of the flow log, which are opened only once.
fn log_outputs(config: &GatewayConfig) -> (Option<&FlowLogFile>, Option<&FlowLogCollector>) {
    (config.flow_log.file.as_ref(), config.flow_log.ipfix.as_ref())
}

/// The settings of flow sharing, without its keys.
fn sharing(config: &GatewayConfig) -> FlowSharingConfig {
    FlowSharingConfig { key: None, accept_key: None, ..config.flow_sharing.clone() }
}

/// The listeners and the file of events, which are opened only once.
fn listeners(config: &GatewayConfig) -> (&Path, [Option<SocketAddr>; 3], &[IpNet], &EventsConfig) {
    let admin = &config.admin;
    let page = admin.page.as_ref().map(|page| page.listen);
    (&admin.socket, [admin.listen, admin.healthz, page], &admin.healthz_networks, &admin.events)
}

#[cfg(test)]
mod tests {
    use tidegate_model::config::keys::{Change, KEYS};

    use super::*;

    fn config(rest: &str) -> GatewayConfig {
        let text = format!(
            "apiVersion: tidegate.dev/v1alpha1\nkind: GatewayConfig\nmetadata: {{name: edge}}\n\
             dataplane:\n  cores: [0]\n  interfaces: [{{name: up, device: net_null0, addresses: [10.0.0.1/24]}}]\n{rest}"
        );
        let loaded = tidegate_model::config::parse(&text, "gateway.yaml", std::path::Path::new("."), 2);
        loaded.config.unwrap_or_else(|| panic!("{}", loaded.report))
    }

    #[test]
    fn pools_defaults_routes_neighbors_and_health_checks_may_change() {
        let changed = config(
            "  routes: [{to: 0.0.0.0/0, via: 10.0.0.254}]\n  neighbors: [{ip: 10.0.0.9, mac: '02:00:00:00:00:09'}]\n\
             pools: [{name: public, addresses: [203.0.113.0/28]}]\nservices: {defaults: {drainTimeout: 5s}}\n\
             health: {protocol: https, path: /readyz, interval: 5s, failOpen: false}\n\
             admin: {metricsPerBackend: false}\nselfCheck: {interval: 1m}\n",
        );
        assert_eq!(fixed_parts_that_differ(&config(""), &changed), Vec::<&str>::new());
        let parts = other_parts_that_differ(&config(""), &changed);
        let network = "dataplane: routes, neighbors, addresses";
        assert_eq!(parts, [network, "services", "pools", "health", "admin.metricsPerBackend", "selfCheck"]);
        assert_eq!(other_parts_that_differ(&changed, &changed), Vec::<&str>::new());
    }

    #[test]
    fn a_changed_name_is_refused_by_reload() {
        let changed = GatewayConfig { name: "other".to_owned(), ..config("") };
        assert_eq!(fixed_parts_that_differ(&config(""), &changed), ["metadata.name"]);
    }

    #[test]
    fn parts_created_at_the_start_are_named() {
        let changed = config("  idle: poll\nadmin: {listen: '127.0.0.1:9999'}\n");
        assert_eq!(fixed_parts_that_differ(&config(""), &changed), ["dataplane.idle", "admin"]);
    }

    /// Everything else in `admin` is opened at the start, and the other keys of `flowSharing` need a new socket.
    const RELOADED: [&str; 8] = [
        "admin.metricsPerBackend",
        "admin.page.tokenFile",
        "flowLog.services",
        "flowLog.sample",
        "flowSharing.key.value",
        "flowSharing.key.file",
        "flowSharing.acceptKey.value",
        "flowSharing.acceptKey.file",
    ];

    #[test]
    fn the_table_of_keys_documents_which_changes_need_a_restart() {
        let full = include_str!("../../model/tests/fixtures/config/full.yaml");
        let full = tidegate_model::config::parse(full, "gateway.yaml", std::path::Path::new("."), 2).config;
        let parts = fixed_parts_that_differ(&config(""), &full.expect("the fixture is valid"));
        assert_eq!(parts.len(), 14, "every part differs: {parts:?}");
        for key in KEYS.iter().filter(|key| !["apiVersion", "kind"].contains(&key.path)) {
            let is_below = |part: &&str| {
                key.path.strip_prefix(*part).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
            };
            let is_fixed = parts.iter().any(is_below) && !RELOADED.contains(&key.path);
            assert_eq!(key.change == Change::Restart, is_fixed, "{}", key.path);
        }
    }
}
