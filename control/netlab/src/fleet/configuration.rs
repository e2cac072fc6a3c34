//! The configuration of the fleet's gateways, of their keepalived and of the router's BGP, as docs/fleet.md,
//! docs/flow-sharing.md and docs/bgp.md describe it. Timers are longer, because test machines are busy.

use super::addresses::{
    self, FleetService, GATEWAY_AS, HEALTHZ_PORT, ROUTER_AS, ROUTER_FOR_GATEWAYS, SERVICES,
};
use super::fleet_plan::{FleetPlan, RouterKind};
use crate::gateway::MEMORY_MIB;
use crate::keepalived::KeepalivedPlan;
use std::path::Path;

/// The configuration of gateway `n`, with its files in `directory` and its flow tables in `flows`.
pub(super) fn gateway_yaml(n: usize, directory: &Path, flows: &Path, plan: &FleetPlan) -> String {
    format!(
        r#"apiVersion: tidegate.dev/v1alpha1
kind: GatewayConfig
metadata: {{name: gateway-{n}}}
dataplane:
  cores: [{core}]
  idle: adaptive
  memory: {{hugepages: false, sizeMiB: {MEMORY_MIB}}}
  flowTable: {{entriesPerCore: {entries}, directory: "{flows}/gateway-{n}/flows"}}
  interfaces:
    - {{name: uplink, device: "net_af_packet0,iface=eth0", addresses: ["{address}/24"], mac: "02:00:00:00:02:{n:02x}"}}
  routes: [{{to: "0.0.0.0/0", via: "{ROUTER_FOR_GATEWAYS}"}}]
  snatAddresses: ["{snat}"]
source: {{directory: {{path: "{directory}/manifests", stateDirectory: "{directory}/gateway-{n}"}}}}
services: {{defaults: {{drainTimeout: 1h}}}}
pools:
  - {{name: everywhere, addresses: [{everywhere}], announce: [bgp]}}
  - {{name: one-gateway, addresses: [{one_gateway}], announce: [l2]}}
health: {{protocol: tcp, interval: 2s, timeout: 1s, healthyThreshold: 1, unhealthyThreshold: 3}}
drain: {{quiet: 1s, stopTimeout: 15s}}
admin: {{socket: "{directory}/gateway-{n}/tidegate.sock", listen: "", healthz: "127.0.0.1:{HEALTHZ_PORT}"}}
{announce}{sharing}"#,
        sharing = plan.sharing.map_or_else(String::new, |keys| sharing_yaml(
            plan.gateways,
            &keys[usize::from(n > 1)].to_string()
        )),
        everywhere = vips_of(|service| !service.is_nat()),
        one_gateway = vips_of(FleetService::is_nat),
        announce = announce(plan.router, &directory.join(format!("gateway-{n}/vrrp.fifo"))),
        // Two cores are enough for the lab, so gateways share them.
        core = (n - 1) % 2,
        entries = plan.flow_entries,
        address = addresses::gateway(n),
        snat = addresses::snat(n),
        directory = directory.display(),
        flows = flows.display(),
    )
}

fn sharing_yaml(gateways: usize, digit: &str) -> String {
    let peers: Vec<String> = (1..=gateways).map(|n| format!("\"{}:10358\"", addresses::gateway(n))).collect();
    let peers = peers.join(", ");
    format!("flowSharing: {{mode: nat, peers: [{peers}], key: {{value: \"{}\"}}}}\n", digit.repeat(64))
}

/// The VIPs of some of the Services, as items of a list.
fn vips_of(chosen: impl Fn(&FleetService) -> bool) -> String {
    let vips = SERVICES.iter().filter(|service| chosen(service));
    vips.map(|service| service.vip().ip().to_string()).collect::<Vec<_>>().join(", ")
}

/// The gateways' `announce`. GoBGP has no BFD, so there the hold time ends the session of a dead gateway.
fn announce(router: RouterKind, fifo: &Path) -> String {
    let peer = match router {
        RouterKind::Lab => return String::new(),
        RouterKind::Frr => "bfd: true, holdTime: 30s".to_owned(),
        RouterKind::GoBgp => format!("holdTime: {GOBGP_HOLD_SECONDS}s"),
    };
    format!(
        r#"announce:
  l2: {{mode: vrrp, vrrp: {{fifo: "{fifo}", heartbeatTimeout: {HEARTBEAT_SECONDS}s}}}}
  bgp:
    asn: {GATEWAY_AS}
    bfdInterval: 500ms
    bfdMultiplier: 10
    peers: [{{address: "{ROUTER_FOR_GATEWAYS}", asn: {ROUTER_AS}, {peer}}}]
"#,
        fifo = fifo.display(),
    )
}

/// `announce.l2.vrrp.heartbeatTimeout`.
const HEARTBEAT_SECONDS: u32 = 10;
/// The hold time of sessions with GoBGP.
const GOBGP_HOLD_SECONDS: u32 = 6;

/// The keepalived of gateway `n`. Gateway 1 has the virtual router address whenever it can.
pub(super) fn keepalived<'a>(n: u32, address: &'a str) -> KeepalivedPlan<'a> {
    KeepalivedPlan {
        priority: 110 - 10 * n,
        // Longer than a gateway of this lab needs to catch up.
        preempt: "preempt_delay 5",
        advert_int: "1",
        check_timeout: 5,
        address,
    }
}

/// FRR's configuration of BGP.
pub(super) fn bgpd(gateways: usize) -> String {
    let mut text = format!(
        "router bgp {ROUTER_AS}\n bgp router-id {ROUTER_FOR_GATEWAYS}\n no bgp ebgp-requires-policy\n timers bgp 10 30\n"
    );
    for n in 1..=gateways {
        let peer = addresses::gateway(n);
        text += &format!(
            " neighbor {peer} remote-as {GATEWAY_AS}\n neighbor {peer} timers connect 1\n neighbor {peer} bfd 10 500 500\n"
        );
    }
    text + &format!(" address-family ipv4 unicast\n  maximum-paths {gateways}\n exit-address-family\n")
}

/// GoBGP's configuration. Without `idle-hold-time-after-reset` it would refuse sessions for 30 s after the end of one.
pub(super) fn gobgpd(gateways: usize) -> String {
    let mut text = format!(
        "[global.config]\nas = {ROUTER_AS}\nrouter-id = \"{ROUTER_FOR_GATEWAYS}\"\n[global.use-multiple-paths.config]\nenabled = true\n"
    );
    for n in 1..=gateways {
        text += &format!(
            "[[neighbors]]\n[neighbors.config]\nneighbor-address = \"{peer}\"\npeer-as = {GATEWAY_AS}\n\
             [neighbors.transport.config]\npassive-mode = true\n\
             [neighbors.timers.config]\nhold-time = {GOBGP_HOLD_SECONDS}\nidle-hold-time-after-reset = 1\n",
            peer = addresses::gateway(n),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn the_configuration_of_all_gateways_is_accepted_without_a_warning() {
        let sharing = Some(['a', 'a']);
        let (tidegate, flow_entries) = (PathBuf::new(), 65_536);
        let plan = |router| FleetPlan {
            gateways: addresses::GATEWAYS_MAX,
            servers: 4,
            tidegate: tidegate.clone(),
            flow_entries,
            flow_files: false,
            router,
            sharing,
        };
        let routers = [RouterKind::Lab, RouterKind::Frr, RouterKind::GoBgp];
        for (n, router) in (1..=addresses::GATEWAYS_MAX).flat_map(|n| routers.map(|router| (n, router))) {
            let plan = plan(router);
            let text = gateway_yaml(n, Path::new("/run/lab"), Path::new("/run/lab"), &plan);
            let loaded = tidegate_model::config::parse(&text, "gateway.yaml", Path::new("/run/lab"), 2);
            assert!(loaded.config.is_some() && loaded.report.is_empty(), "{}\n{text}", loaded.report);
        }
    }
}
