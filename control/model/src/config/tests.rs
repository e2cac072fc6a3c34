//! Tests of the configuration: every key, its default, and every fault with its place.

mod keys;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use tidegate_core::snapshot::{NeighborSpec, Policy, RouteSpec};
use tidegate_core::wire::MacAddr;

use super::*;
use crate::health::Rules;
use crate::objects::{Expression, Labels, Operator};

const FULL: &str = include_str!("../../tests/fixtures/config/full.yaml");
const DESIGN: &str = include_str!("../../tests/fixtures/config/design.yaml");
const HEAD: &str = "apiVersion: tidegate.dev/v1alpha1\nkind: GatewayConfig\n";
/// The head and an interface on 192.0.2.0/24 and 2001:db8::/64, in 7 lines. Further keys of `dataplane` can follow.
const BASE: &str = "apiVersion: tidegate.dev/v1alpha1\nkind: GatewayConfig\ndataplane:\n  interfaces:\n  - name: uplink\n    device: net_null0\n    addresses: [192.0.2.2/24, '2001:db8::2/64']\n";

fn read(text: &str) -> Loaded {
    parse(text, "gateway.yaml", Path::new("/etc/tidegate"), 2)
}

fn valid(text: &str) -> GatewayConfig {
    let loaded = read(text);
    loaded.config.unwrap_or_else(|| panic!("{}", loaded.report))
}

fn lines(text: &str) -> Vec<String> {
    read(text).report.iter().map(ToString::to_string).collect()
}

#[test]
fn every_key_arrives_in_the_validated_configuration() {
    let config = valid(FULL);
    assert_eq!(read(FULL).report.to_string(), "");
    assert_eq!(config.name, "edge-1");
    assert_eq!((config.node_name.as_deref(), config.node_zone.as_deref()), (Some("node-a"), Some("zone-1")));
    let dataplane = &config.dataplane;
    assert_eq!(dataplane.cores, [2, 3]);
    assert_eq!(dataplane.idle, Idle::Poll);
    assert_eq!(dataplane.memory, Memory { hugepages: false, size_mib: 512 });
    assert_eq!((dataplane.flow_entries_per_core, dataplane.flow_service_percent), (65536, 40));
    let network = &dataplane.network;
    assert_eq!(
        network.interfaces,
        [
            Interface {
                name: "uplink".into(),
                device: "net_af_packet,iface=eth1".into(),
                addresses: vec!["192.0.2.2/24".parse().unwrap(), "2001:db8::2/64".parse().unwrap()],
                mac: Some(MacAddr([2, 0, 0, 0, 0, 2])),
                mtu: 9000,
                vlan: Some(100),
            },
            Interface {
                name: "inside".into(),
                device: "0000:3b:00.0".into(),
                addresses: vec!["10.0.0.1/16".parse().unwrap()],
                mac: None,
                mtu: 1500,
                vlan: None,
            },
        ]
    );
    assert_eq!(
        network.routes[1],
        RouteSpec { to: "::/0".parse().unwrap(), via: "2001:db8::1".parse().unwrap() }
    );
    assert_eq!(
        network.neighbors,
        [NeighborSpec { ip: "192.0.2.1".parse().unwrap(), mac: MacAddr([2, 0, 0, 0, 0, 1]) }]
    );
    assert_eq!(network.snat_addresses.len(), 2);
    assert_eq!(network.tunnel_source_v4, Some("10.0.0.1".parse().unwrap()));
    assert_eq!(network.tunnel_source_v6, Some("2001:db8::2".parse().unwrap()), "the default of its family");
    assert_eq!(
        network.policy,
        Policy { reset_unknown_flows: false, reject_unserved_ports: false, serve_routers: true }
    );
    assert_eq!(valid(BASE).dataplane.network.policy, Policy::default());
    assert_eq!(
        config.source,
        SourceConfig::Directory(DirectoryConfig {
            path: PathBuf::from("/etc/tidegate/objects"),
            watch: false,
            loss_grace: Duration::from_secs(60),
            state_directory: Some(PathBuf::from("/var/lib/tidegate")),
            endpoint_slices_mib: 512,
        })
    );
    assert_eq!(
        config.services.defaults,
        ServiceDefaults {
            forwarding: ForwardingMode::DsrIpip,
            forwarding_local: Some(ForwardingMode::Nat),
            target: Target::Pod,
            scheduler: Scheduler::Maglev,
            table_size: 65537,
            drain_timeout: Duration::from_secs(90),
            no_endpoints: NoEndpoints::Drop,
        }
    );
    assert_eq!(config.services.node_port_addresses.len(), 1);
    assert_eq!(config.services.source_ranges_other_family, OtherFamily::Allow);
    let pool = &config.pools[0];
    assert_eq!((pool.name.as_str(), pool.ranges.len()), ("public", 3));
    assert_eq!(pool.ranges[1].to_string(), "203.0.113.32-203.0.113.40");
    assert!(!pool.auto_assign && pool.external_ips && pool.disabled && pool.shared_across_namespaces);
    assert_eq!(pool.quota_per_namespace, Some(3));
    assert_eq!(pool.namespace_selector.match_labels, Labels::from([("team".into(), "a".into())]));
    assert_eq!(
        pool.service_selector.match_expressions,
        [
            Expression { key: "app".into(), operator: Operator::In(vec!["web".into(), "api".into()]) },
            Expression { key: "legacy".into(), operator: Operator::DoesNotExist },
        ]
    );
    assert_eq!(pool.labels.get("scope").map(String::as_str), Some("internal"));
    assert_eq!(
        config.health,
        HealthConfig {
            protocol: HealthProtocol::Https,
            path: "/readyz?verbose".into(),
            rules: Rules {
                interval: Duration::from_secs(5),
                timeout: Duration::from_millis(500),
                healthy_threshold: 4,
                unhealthy_threshold: 5,
                damping: false,
            },
            fail_open: false,
            dsr_destination: DsrDestination::Backend,
            interval_min: Duration::from_secs(1),
            timeout_max: Duration::from_secs(10),
            allowed_networks: Some(vec!["10.0.0.0/8".parse().unwrap(), "2001:db8::/32".parse().unwrap()]),
        }
    );
    assert!(config.announce.l2);
    assert_eq!(
        config.admin,
        AdminConfig {
            socket: "/tmp/t.sock".into(),
            listen: None,
            healthz: Some("[::]:10357".parse().unwrap()),
            metrics_per_backend: false,
        }
    );
    assert_eq!(
        config.self_check,
        SelfCheckConfig { enabled: false, interval: Duration::from_secs(600), changes: 100 }
    );
}

#[test]
fn every_key_has_the_default_of_the_contract() {
    let written = valid(DESIGN);
    let left_out = valid(HEAD);
    assert_eq!(left_out.name, "gateway");
    assert_eq!((&left_out.node_name, &left_out.node_zone), (&written.node_name, &written.node_zone));
    assert_eq!(left_out.source, written.source);
    assert_eq!(left_out.services, written.services);
    assert_eq!(left_out.health, written.health);
    assert_eq!(left_out.announce, written.announce);
    assert_eq!(left_out.admin, written.admin);
    assert_eq!(left_out.self_check, SelfCheckConfig::default());
    assert!(left_out.self_check.enabled);
    let (left_out, written) = (left_out.dataplane, written.dataplane);
    assert_eq!(left_out.cores, written.cores);
    assert_eq!(left_out.memory, written.memory);
    assert_eq!(left_out.flow_entries_per_core, written.flow_entries_per_core);
    assert_eq!(left_out.flow_service_percent, written.flow_service_percent);
    let base = valid(BASE).dataplane;
    assert_eq!(base.network.interfaces[0].mtu, 1500);
    let sources = |plane: &DataplaneConfig| (plane.network.tunnel_source_v4, plane.network.tunnel_source_v6);
    assert_eq!(sources(&base), sources(&written), "defaults to the interface's addresses");
    let pool = valid(&format!("{HEAD}pools: [{{name: p, addresses: [203.0.113.1]}}]\n")).pools.remove(0);
    assert!(pool.auto_assign && !pool.external_ips && !pool.disabled && !pool.shared_across_namespaces);
    assert_eq!(pool.quota_per_namespace, None);
    assert!(pool.admits(&Labels::new(), &Labels::new()));
}

#[test]
fn workers_idle_adaptively_by_default_on_fewer_than_four_cores() {
    for (cores, idle) in [(1, Idle::Adaptive), (3, Idle::Adaptive), (4, Idle::Poll)] {
        let loaded = parse(HEAD, "g", Path::new(""), cores);
        assert_eq!(loaded.config.expect("valid").dataplane.idle, idle);
    }
}

#[test]
fn a_configuration_without_interfaces_is_warned_about() {
    assert_eq!(
        lines(HEAD),
        [
            "gateway.yaml:1:1: warning: dataplane.interfaces: no interface is configured, so nothing can be forwarded; accepted: at least one interface with name and device"
        ]
    );
}

#[test]
fn json_is_a_configuration_too() {
    let text =
        r#"{"apiVersion": "tidegate.dev/v1alpha1", "kind": "GatewayConfig", "metadata": {"name": "j"}}"#;
    assert_eq!(valid(text).name, "j");
}

/// (the text appended to the base of 7 lines, the one expected error without its file)
const FAULTS: &[(&str, &str)] = &[
    ("metdata: {}", "8:1: error: unknown key \"metdata\"; accepted: metadata"),
    (
        "metadata: {name: Edge_1}",
        "8:18: error: metadata.name: the text \"Edge_1\" is not accepted; accepted: a name of a-z, 0-9, - and . (RFC 1123)",
    ),
    ("metadata: {labels: {}}", "8:12: error: unknown key \"labels\" in metadata; accepted: name"),
    (
        "node: {name: 7}",
        "8:14: error: node.name: the number 7 is not accepted; accepted: text; put it in quotes: \"7\"",
    ),
    ("node: []", "8:7: error: node: a list is not accepted; accepted: a mapping of keys to values"),
    ("node: {}\nnode: {}", "9:1: error: duplicate key \"node\"; accepted: each key once"),
    ("  cores: []", "8:10: error: dataplane.cores: 0 cores; accepted: 1 to 64 core numbers"),
    ("  cores: 1", "8:10: error: dataplane.cores: the number 1 is not accepted; accepted: a list"),
    (
        "  cores: [1, 1]",
        "8:14: error: dataplane.cores[1]: 1 is already at dataplane.cores[0]; accepted: each value once",
    ),
    (
        "  cores: [-1]",
        "8:11: error: dataplane.cores[0]: the number -1 is not accepted; accepted: a whole number from 0 to 1023",
    ),
    (
        "  idle: lazy",
        "8:9: error: dataplane.idle: the text \"lazy\" is not accepted; accepted: poll, adaptive",
    ),
    (
        "  memory: {hugepages: maybe}",
        "8:23: error: dataplane.memory.hugepages: the text \"maybe\" is not accepted; accepted: true or false",
    ),
    (
        "  memory: {sizeMiB: 1}",
        "8:21: error: dataplane.memory.sizeMiB: the number 1 is not accepted; accepted: a whole number from 64 to 1048576",
    ),
    ("  memory: {sizeMB: 64}", "8:12: error: unknown key \"sizeMB\" in dataplane.memory; accepted: sizeMiB"),
    (
        "  flowTable: {entriesPerCore: 5}",
        "8:31: error: dataplane.flowTable.entriesPerCore: the number 5 is not accepted; accepted: a whole number from 1024 to 268435456",
    ),
    (
        "  flowTable: {servicePercent: 0}",
        "8:31: error: dataplane.flowTable.servicePercent: the number 0 is not accepted; accepted: a whole number from 1 to 100",
    ),
    (
        "  flowTable: {servicePercent: 101}",
        "8:31: error: dataplane.flowTable.servicePercent: the number 101 is not accepted; accepted: a whole number from 1 to 100",
    ),
    (
        "  flowTable: {servicePercent: 50%}",
        "8:31: error: dataplane.flowTable.servicePercent: the text \"50%\" is not accepted; accepted: a whole number from 1 to 100",
    ),
    (
        "  - {device: net_null1}",
        "8:5: error: dataplane.interfaces[1].name is missing; accepted: a name such as uplink",
    ),
    (
        "  - {name: a b, device: x}",
        "8:12: error: dataplane.interfaces[1].name: the text \"a b\" is not accepted; accepted: a name of 1 to 32 letters, digits, -, _ and .",
    ),
    (
        "  - {name: uplink, device: net_null1}",
        "8:12: error: dataplane.interfaces[1].name: uplink is already at dataplane.interfaces[0].name; accepted: each value once",
    ),
    (
        "  - {name: b, device: ''}",
        "8:23: error: dataplane.interfaces[1].device: the text \"\" is not accepted; accepted: a DPDK virtual device such as net_af_packet,iface=eth1, or a PCI address such as 0000:3b:00.0",
    ),
    (
        "  - {name: b, device: '0:1.0'}\n  - {name: c, device: '0:1.0'}",
        "9:23: error: dataplane.interfaces[2].device: 0:1.0 is already at dataplane.interfaces[1].device; accepted: each value once",
    ),
    (
        "    mtu: 500",
        "8:10: error: dataplane.interfaces[0].mtu: the number 500 is not accepted; accepted: a whole number from 576 to 9216",
    ),
    (
        "    mtu: 1000",
        "8:10: error: dataplane.interfaces[0].mtu: 1000 is too small for IPv6 (RFC 8200); accepted: 1280 to 9216 with IPv6 addresses",
    ),
    (
        "    vlan: 4095",
        "8:11: error: dataplane.interfaces[0].vlan: the number 4095 is not accepted; accepted: a whole number from 1 to 4094",
    ),
    (
        "    mac: 02:00:00:00:00",
        "8:10: error: dataplane.interfaces[0].mac: the text \"02:00:00:00:00\" is not accepted; accepted: a unicast MAC address such as 02:00:00:00:00:01",
    ),
    (
        "  - {name: b, device: d, addresses: [10.0.0.1]}",
        "8:38: error: dataplane.interfaces[1].addresses[0]: the text \"10.0.0.1\" is not accepted; accepted: an address with its prefix length such as 192.0.2.2/24 or 2001:db8::2/64",
    ),
    (
        "  - {name: b, device: d, addresses: [10.0.0.0/24]}",
        "8:38: error: dataplane.interfaces[1].addresses[0]: 10.0.0.0/24 is not a host address; accepted: a host address with the prefix length of its network",
    ),
    (
        "  - {name: b, device: d, addresses: [192.0.2.2/32]}",
        "8:38: error: dataplane.interfaces[1].addresses[0]: 192.0.2.2 is also on uplink; accepted: each address on one interface",
    ),
    (
        "  routes: [{to: 0.0.0.0/0, via: 198.51.100.1}]",
        "8:33: error: dataplane.routes[0].via: 198.51.100.1 is not on-link; accepted: an address in 192.0.2.0/24 (uplink), 2001:db8::/64 (uplink)",
    ),
    (
        "  routes: [{to: 0.0.0.0/0, via: 192.0.2.2}]",
        "8:33: error: dataplane.routes[0].via: 192.0.2.2 is an address of the gateway itself; accepted: the address of a router",
    ),
    (
        "  routes: [{to: 10.1.0.0/8, via: 192.0.2.1}]",
        "8:17: error: dataplane.routes[0].to: 10.1.0.0/8 has bits set after its prefix; accepted: 10.0.0.0/8",
    ),
    (
        "  routes: [{to: 10.0.0.0/8}]",
        "8:12: error: dataplane.routes[0].via is missing; accepted: the address of a router on-link",
    ),
    (
        "  routes: [{to: '::/0', via: '2001:db8::1'}, {to: '::/0', via: '2001:db8::5'}]",
        "8:51: error: dataplane.routes[1].to: ::/0 is already at dataplane.routes[0].to; accepted: each value once",
    ),
    (
        "  neighbors: [{ip: 192.0.2.1}]",
        "8:15: error: dataplane.neighbors[0].mac is missing; accepted: a unicast MAC address such as 02:00:00:00:00:01",
    ),
    (
        "  neighbors: [{ip: 224.0.0.1, mac: '02:00:00:00:00:01'}]",
        "8:20: error: dataplane.neighbors[0].ip: 224.0.0.1 cannot be the address of a host here; accepted: a unicast address, not loopback",
    ),
    (
        "  snatAddresses: [192.0.2.3, 192.0.2.3]",
        "8:30: error: dataplane.snatAddresses[1]: 192.0.2.3 is already at dataplane.snatAddresses[0]; accepted: each value once",
    ),
    (
        "  snatAddresses: [192.0.2.300]",
        "8:19: error: dataplane.snatAddresses[0]: the text \"192.0.2.300\" is not accepted; accepted: an IPv4 or IPv6 address",
    ),
    (
        "  tunnelSource: [192.0.2.2, 192.0.2.3]",
        "8:29: error: dataplane.tunnelSource[1]: a second entry of the family of 192.0.2.2; accepted: one address or prefix of each family",
    ),
    (
        "  tunnelSource: [192.0.0.0/16]",
        "8:18: error: dataplane.tunnelSource[0]: 192.0.0.0/16 cannot be the source of tunnels; accepted: an IPv4 prefix of /24 to /32, or an IPv6 prefix of /48 to /128",
    ),
    (
        "  tunnelSource: [192.0.2.65/28]",
        "8:18: error: dataplane.tunnelSource[0]: 192.0.2.65/28 has bits set after its prefix; accepted: 192.0.2.64/28",
    ),
    (
        "source: {}",
        "8:9: error: source: neither directory nor kubernetes is set; accepted: exactly one of them",
    ),
    (
        "source: {directory: {path: ''}}",
        "8:28: error: source.directory.path: the text \"\" is not accepted; accepted: the path of a directory",
    ),
    (
        "source: {directory: {watch: 1}}",
        "8:29: error: source.directory.watch: the number 1 is not accepted; accepted: true or false",
    ),
    (
        "source: {kubernetes: {loadBalancerClass: 'a b'}}",
        "8:42: error: source.kubernetes.loadBalancerClass: the text \"a b\" is not accepted; accepted: a name such as tidegate.dev/gateway",
    ),
    (
        "source: {kubernetes: {apiLossGrace: 8d}}",
        "8:37: error: source.kubernetes.apiLossGrace: the text \"8d\" is not accepted; accepted: a duration such as 500ms, 2s, 1m30s or 1h",
    ),
    (
        "source: {kubernetes: {token: x}}",
        "8:23: error: unknown key \"token\" in source.kubernetes; accepted: kubeconfig, loadBalancerClass, apiLossGrace, stateDirectory, leaseNamespace, default, podWeights, endpointSlicesMiB",
    ),
    ("source: {files: {}}", "8:10: error: unknown key \"files\" in source; accepted: directory, kubernetes"),
    (
        "services: {defaults: {forwarding: dsr-gue}}",
        "8:35: error: services.defaults.forwarding: dsr-gue is not supported yet; accepted: dsr-l2, dsr-ipip, nat, fullnat",
    ),
    (
        "services: {defaults: {forwarding: dsr-gre}}",
        "8:35: error: services.defaults.forwarding: dsr-gre is not supported yet; accepted: dsr-l2, dsr-ipip, nat, fullnat",
    ),
    (
        "services: {defaults: {forwarding: dsr-geneve}}",
        "8:35: error: services.defaults.forwarding: dsr-geneve is not supported yet; accepted: dsr-l2, dsr-ipip, nat, fullnat",
    ),
    (
        "services: {defaults: {forwarding: dsr-dscp}}",
        "8:35: error: services.defaults.forwarding: dsr-dscp is not supported yet; accepted: dsr-l2, dsr-ipip, nat, fullnat",
    ),
    (
        "services: {defaults: {forwarding: full-nat}}",
        "8:35: error: services.defaults.forwarding: \"full-nat\" is not known (nearest: fullnat); accepted: dsr-l2, dsr-ipip, nat, fullnat",
    ),
    (
        "services: {defaults: {target: nod}}",
        "8:31: error: services.defaults.target: \"nod\" is not known (nearest: node, pod); accepted: pod, node",
    ),
    (
        "services: {defaults: {scheduler: wrr}}",
        "8:34: error: services.defaults.scheduler: wrr is not supported yet; accepted: rendezvous, maglev",
    ),
    (
        "services: {defaults: {scheduler: rr}}",
        "8:34: error: services.defaults.scheduler: \"rr\" is not known; accepted: rendezvous, maglev",
    ),
    (
        "services: {defaults: {tableSize: 65536}}",
        "8:34: error: services.defaults.tableSize: the number 65536 is not accepted; accepted: a prime from 251 to 655373 such as 65521 or 65537",
    ),
    (
        "services: {defaults: {drainTimeout: 25h}}",
        "8:37: error: services.defaults.drainTimeout: the text \"25h\" is not accepted; accepted: a duration from 0s to 24h",
    ),
    (
        "services: {defaults: {drainTimeout: 300}}",
        "8:37: error: services.defaults.drainTimeout: the number 300 is not accepted; accepted: a duration such as 500ms, 2s, 1m30s or 1h",
    ),
    (
        "services: {defaults: {noEndpoints: rst}}",
        "8:36: error: services.defaults.noEndpoints: the text \"rst\" is not accepted; accepted: reject, drop",
    ),
    (
        "services: {nodePortAddresses: [primary]}",
        "8:32: error: services.nodePortAddresses[0]: the text \"primary\" is not accepted; accepted: a CIDR such as 192.0.2.0/24 or 2001:db8::/64",
    ),
    (
        "services: {ownClusterIPs: ''}",
        "8:27: error: services.ownClusterIPs: the text \"\" is not accepted; accepted: true or false",
    ),
    (
        "services: {podRoutes: nodes}",
        "8:23: error: services.podRoutes: the text \"nodes\" is not accepted; accepted: route, node",
    ),
    (
        "services: {sourceRangesOtherFamily: maybe}",
        "8:37: error: services.sourceRangesOtherFamily: the text \"maybe\" is not accepted; accepted: deny, allow",
    ),
    (
        "services: {compat: [awss]}",
        "8:21: error: services.compat[0]: \"awss\" is not known (nearest: aws); accepted: alibaba, aws, azure, baidu, cilium, gcp, ibm, kube-vip, metallb, openstack, tke",
    ),
    (
        "services: {compat: [f5]}",
        "8:21: error: services.compat[0]: \"f5\" is not known; accepted: alibaba, aws, azure, baidu, cilium, gcp, ibm, kube-vip, metallb, openstack, tke",
    ),
    (
        "pools: [{addresses: [203.0.113.0/28]}]",
        "8:9: error: pools[0].name is missing; accepted: a name of a-z, 0-9, - and . (RFC 1123)",
    ),
    (
        "pools: [{name: p}]",
        "8:9: error: pools[0].addresses is missing; accepted: an address, a CIDR such as 203.0.113.0/28, or a range such as 203.0.113.10-203.0.113.20",
    ),
    (
        "pools: [{name: p, addresses: []}]",
        "8:30: error: pools[0].addresses: the list is empty; accepted: an address, a CIDR such as 203.0.113.0/28, or a range such as 203.0.113.10-203.0.113.20",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.9-203.0.113.1]}]",
        "8:31: error: pools[0].addresses[0]: \"203.0.113.9-203.0.113.1\" is not a range; accepted: an address, a CIDR such as 203.0.113.0/28, or a range such as 203.0.113.10-203.0.113.20",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.9-2001:db8::1]}]",
        "8:31: error: pools[0].addresses[0]: \"203.0.113.9-2001:db8::1\" is not a range; accepted: an address, a CIDR such as 203.0.113.0/28, or a range such as 203.0.113.10-203.0.113.20",
    ),
    (
        "pools: [{name: p, addresses: [127.0.0.0/30]}]",
        "8:31: error: pools[0].addresses[0]: 127.0.0.0/30 contains loopback addresses; accepted: unicast addresses that clients can send to",
    ),
    (
        "pools: [{name: p, addresses: [a]}]",
        "8:31: error: pools[0].addresses[0]: the text \"a\" is not accepted; accepted: an address, a CIDR such as 203.0.113.0/28, or a range such as 203.0.113.10-203.0.113.20",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.1]}, {name: p, addresses: [203.0.113.2]}]",
        "8:53: error: pools[1].name: p is already at pools[0].name; accepted: each value once",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.1], autoAssign: 1}]",
        "8:57: error: pools[0].autoAssign: the number 1 is not accepted; accepted: true or false",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.1], externalIps: true}]",
        "8:45: error: unknown key \"externalIps\" in pools[0]; accepted: externalIPs",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.1], quotaPerNamespace: 0}]",
        "8:64: error: pools[0].quotaPerNamespace: the number 0 is not accepted; accepted: a whole number from 1 to 4294967295",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.1], labels: {scope: 1}}]",
        "8:61: error: pools[0].labels[scope]: the number 1 is not accepted; accepted: text; put it in quotes: \"1\"",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.1], serviceSelector: {matchExpressions: [{key: a, operator: Is}]}}]",
        "8:101: error: pools[0].serviceSelector.matchExpressions[0].operator: the text \"Is\" is not accepted; accepted: In, NotIn, Exists, DoesNotExist",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.1], serviceSelector: {matchExpressions: [{key: a, operator: In}]}}]",
        "8:82: error: pools[0].serviceSelector.matchExpressions[0]: values is missing; accepted: at least one value with In and NotIn",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.1], namespaceSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}]",
        "8:119: error: pools[0].namespaceSelector.matchExpressions[0].values: the number of values does not fit the operator; accepted: at least one value with In and NotIn, no values with Exists and DoesNotExist",
    ),
    (
        "health: {interval: 10ms}",
        "8:20: error: health.interval: the text \"10ms\" is not accepted; accepted: a duration from 100ms to 1h",
    ),
    (
        "health: {timeout: 3s}",
        "8:19: error: health.timeout: timeout 3s is longer than interval 2s; accepted: a timeout of at most the interval, 2s",
    ),
    (
        "health: {intervalMin: 5s, interval: 2s}",
        "8:37: error: health.interval: interval 2s is shorter than intervalMin 5s; accepted: an interval of at least 5s",
    ),
    (
        "health: {timeoutMax: 500ms, timeout: 1s}",
        "8:38: error: health.timeout: timeout 1s is longer than timeoutMax 500ms; accepted: a timeout of at most 500ms",
    ),
    (
        "health: {intervalMin: 10ms}",
        "8:23: error: health.intervalMin: the text \"10ms\" is not accepted; accepted: a duration from 100ms to 1h",
    ),
    (
        "health: {healthyThreshold: 0}",
        "8:28: error: health.healthyThreshold: the number 0 is not accepted; accepted: a whole number from 1 to 100",
    ),
    (
        "health: {unhealthyThreshold: 101}",
        "8:30: error: health.unhealthyThreshold: the number 101 is not accepted; accepted: a whole number from 1 to 100",
    ),
    (
        "health: {protocol: sctp}",
        "8:20: error: health.protocol: sctp is not supported yet; accepted: tcp, http, https, udp, none",
    ),
    (
        "health: {protocol: http, path: healthz}",
        "8:32: error: health.path: the text \"healthz\" is not accepted; accepted: a path such as /healthz, at most 1024 bytes",
    ),
    (
        "health: {failOpen: maybe}",
        "8:20: error: health.failOpen: the text \"maybe\" is not accepted; accepted: true or false",
    ),
    (
        "health: {protocol: ping}",
        "8:20: error: health.protocol: the text \"ping\" is not accepted; accepted: tcp, http, https, udp, none",
    ),
    (
        "announce: {bgp: {asn: 64512}}",
        "8:17: error: announce.bgp: announce.bgp is not supported yet; accepted: bgp: {}, with static routes to the VIPs on the router",
    ),
    (
        "announce: {l2: {interfaces: []}}",
        "8:17: error: unknown key \"interfaces\" in announce.l2; accepted: no key",
    ),
    (
        "admin: {socket: ''}",
        "8:17: error: admin.socket: the text \"\" is not accepted; accepted: a path of 1 to 107 bytes",
    ),
    (
        "admin: {listen: '9469'}",
        "8:17: error: admin.listen: the text \"9469\" is not accepted; accepted: an address and port such as 127.0.0.1:9469 or [::]:9469, or \"\" for none",
    ),
    (
        "admin: {healthz: 127.0.0.1:9469}",
        "8:18: error: admin.healthz: 127.0.0.1:9469 is taken by admin.listen; accepted: another address or port",
    ),
    ("---\nkind: X", "9:1: error: the file has a second document; accepted: one GatewayConfig in each file"),
];

#[test]
fn each_fault_names_its_place_and_what_is_accepted() {
    let mut wrong = String::new();
    for (appended, expected) in FAULTS {
        let loaded = read(&format!("{BASE}{appended}\n"));
        assert!(loaded.config.is_none(), "{appended}");
        let errors: Vec<String> = loaded.report.errors().map(ToString::to_string).collect();
        if errors != [format!("gateway.yaml:{expected}")] {
            wrong.push_str(&format!("{appended}\n  want {expected}\n   got {errors:#?}\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn the_head_of_the_file_is_checked() {
    assert_eq!(
        lines("kind: Gateway\n")[..2],
        [
            "gateway.yaml:1:1: error: apiVersion is missing; accepted: tidegate.dev/v1alpha1",
            "gateway.yaml:1:7: error: kind: the text \"Gateway\" is not accepted; accepted: GatewayConfig",
        ]
    );
    assert_eq!(
        lines("# nothing\n"),
        [
            "gateway.yaml:1:1: error: no configuration in the file; accepted: apiVersion: tidegate.dev/v1alpha1 and kind: GatewayConfig"
        ]
    );
    assert_eq!(
        lines("- a\n"),
        ["gateway.yaml:1:1: error: a list is not accepted; accepted: a mapping of keys to values"]
    );
}

#[test]
fn the_kubernetes_source_has_defaults_for_every_key_and_paths_relative_to_the_file() {
    let source = |rest: &str| {
        let loaded = parse(&format!("{BASE}{rest}"), "gateway.yaml", Path::new("/etc/tidegate"), 2);
        loaded.config.unwrap_or_else(|| panic!("{}", loaded.report)).source
    };
    for defaults in ["source: {kubernetes: {}}\n", "source:\n  kubernetes:\n"] {
        assert_eq!(source(defaults), SourceConfig::Kubernetes(KubernetesConfig::default()));
    }
    assert!(!source("source: {kubernetes: {}}\n").claims_classless());
    let written = source(
        "source: {kubernetes: {kubeconfig: kc, loadBalancerClass: example.com/lb, default: true, \
         apiLossGrace: 90s, podWeights: true, stateDirectory: '', leaseNamespace: edge, endpointSlicesMiB: 64}}\n",
    );
    let expected = KubernetesConfig {
        kubeconfig: Some("/etc/tidegate/kc".into()),
        load_balancer_class: "example.com/lb".into(),
        default: true,
        api_loss_grace: Duration::from_secs(90),
        pod_weights: true,
        state_directory: None,
        lease_namespace: "edge".to_owned(),
        endpoint_slices_mib: 64,
    };
    assert_eq!(written, SourceConfig::Kubernetes(expected));
    assert!(written.claims_classless());
    assert_eq!(written.load_balancer_class(), "example.com/lb");
}

#[test]
fn both_sources_at_once_are_refused() {
    let text = format!("{BASE}source: {{directory: {{}}, kubernetes: {{}}}}\n");
    let errors: Vec<String> = read(&text).report.errors().map(|e| e.what.clone()).collect();
    assert!(errors.contains(&"source: both directory and kubernetes are set".to_owned()), "{errors:?}");
}

#[test]
fn all_faults_of_a_file_are_in_one_report_and_the_source_is_known_nevertheless() {
    let text = format!(
        "{BASE}  cores: [x]\nhealth: {{interval: 1}}\nadmin: {{socet: /a}}\nsource: {{directory: {{path: m}}}}\n"
    );
    let loaded = read(&text);
    let places: Vec<_> = loaded.report.errors().filter_map(|e| e.location.as_ref()).map(|l| l.line).collect();
    assert_eq!(places, [8, 9, 10]);
    assert!(loaded.config.is_none());
    let Some(SourceConfig::Directory(directory)) = loaded.source else { panic!("not a directory") };
    assert_eq!((directory.path, directory.watch), ("/etc/tidegate/m".into(), true));
}

#[test]
fn overlapping_pools_and_odd_addresses_are_warnings() {
    let text = format!(
        "{BASE}  neighbors: [{{ip: 198.51.100.1, mac: '02:00:00:00:00:01'}}]\n  snatAddresses: [192.0.2.2]\npools:\n- {{name: a, addresses: [203.0.113.0/28]}}\n- {{name: b, addresses: [203.0.113.15-203.0.113.20]}}\n"
    );
    assert!(read(&text).config.is_some());
    assert_eq!(
        lines(&text),
        [
            "gateway.yaml:8:20: warning: dataplane.neighbors[0].ip: 198.51.100.1 is not on-link, so the gateway never uses this entry; accepted: an address in 192.0.2.0/24 (uplink), 2001:db8::/64 (uplink)",
            "gateway.yaml:9:19: warning: dataplane.snatAddresses[0]: 192.0.2.2 is also the address of uplink: local ports may collide with the host's; accepted: an address that no interface has",
            "gateway.yaml:12:25: warning: pools[1].addresses[0]: overlaps 203.0.113.0-203.0.113.15 at pools[0].addresses[0]; accepted: ranges that do not overlap",
        ]
    );
}

#[test]
fn fullnat_without_snat_addresses_is_warned_about() {
    let report = lines(BASE);
    assert!(report.len() == 1 && report[0].contains("Services in this mode cannot be served"), "{report:?}");
    assert!(lines(&format!("{BASE}services: {{defaults: {{forwarding: nat}}}}\n")).is_empty());
}

#[test]
fn an_unreadable_file_is_a_fault_of_the_report() {
    let loaded = load(Path::new("no/such/gateway.yaml"));
    assert!(loaded.config.is_none());
    let report = loaded.report.to_string();
    assert!(report.starts_with("no/such/gateway.yaml:1:1: error: cannot be read: No such file"), "{report}");
}

#[test]
fn the_daemonset_gives_every_node_a_gateway_of_its_own_name_and_addresses() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes/daemonset/gateway.yaml");
    let text = std::fs::read_to_string(path).expect("readable");
    let on_node = |name: &'static str, ips: &'static str| {
        let environment = move |variable: &str| match variable {
            "NODE_NAME" => Some(name.to_owned()),
            "NODE_IPS" => Some(ips.to_owned()),
            _ => None,
        };
        let loaded = super::parse_in(&environment, &text, "gateway.yaml", Path::new("."), 4);
        loaded.config.unwrap_or_else(|| panic!("{}", loaded.report))
    };
    let (one, two) = (on_node("a", "192.0.2.7,2001:db8::7"), on_node("b", "192.0.2.8,2001:db8::8"));
    assert_eq!((one.name.as_str(), one.node_name.as_deref()), ("a", Some("a")));
    assert_eq!(two.name, "b");
    let addresses = |config: &GatewayConfig| {
        let interfaces = config.dataplane.network.interfaces.iter();
        interfaces.flat_map(|interface| interface.addresses.clone()).collect::<Vec<IpNet>>()
    };
    assert_eq!(addresses(&one), ["192.0.2.7/24", "2001:db8::7/64"].map(|net| net.parse().expect("a prefix")));
    assert!(addresses(&two).iter().all(|net| !addresses(&one).contains(net)));
}
