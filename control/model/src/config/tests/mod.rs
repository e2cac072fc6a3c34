//! Tests of the configuration: every key, its default, and every fault with its location.

mod faults;
mod keys;
mod values;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;

use super::*;

const FULL: &str = include_str!("../../../tests/fixtures/config/full.yaml");
const DESIGN: &str = include_str!("../../../tests/fixtures/config/design.yaml");
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
fn a_configuration_without_interfaces_causes_a_warning() {
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

#[test]
fn kubernetes_source_keys_have_defaults_and_paths_relative_to_the_file() {
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
        gateway_api: GatewayApi::Auto,
    };
    assert_eq!(written, SourceConfig::Kubernetes(expected));
    assert!(written.claims_classless());
    assert_eq!(written.load_balancer_class(), "example.com/lb");
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
            "gateway.yaml:9:19: warning: dataplane.snatAddresses[0]: 192.0.2.2 is also an address of the interface uplink, so SNAT ports may collide with ports of this host; accepted: an address that no interface has",
            "gateway.yaml:12:25: warning: pools[1].addresses[0]: overlaps 203.0.113.0-203.0.113.15 at pools[0].addresses[0]; accepted: ranges that do not overlap",
        ]
    );
}

#[test]
fn duplicate_networks_and_unreachable_addresses_cause_warnings() {
    let text = format!(
        "{BASE}  - {{name: b, device: net_null1, addresses: [192.0.2.9/24, 10.0.0.1/32]}}\n  snatAddresses: [198.51.100.3]\n  tunnelSource: [198.51.100.64/28]\n"
    );
    let warned = |text: &str| -> Vec<String> {
        let all = read(text).report;
        all.iter()
            .map(|fault| fault.with_location().split_once(": ").expect("a place").1.to_owned())
            .collect()
    };
    let lost = "is in no network of an interface, so";
    let route = "get lost unless routers have a route to";
    let gateway = "through this gateway";
    assert_eq!(
        warned(&text),
        [
            "dataplane.interfaces[1].addresses[0]: 192.0.2.0/24 is also a network of the interface uplink, so packets to this network leave on uplink only".to_owned(),
            format!("dataplane.snatAddresses[0]: 198.51.100.3 {lost} answers of backends {route} 198.51.100.3 {gateway}"),
            format!(
                "dataplane.tunnelSource: 198.51.100.64/28 {lost} ICMP errors about tunnel packets {route} 198.51.100.64/28 \
                 {gateway}"
            ),
        ]
    );
    // A daemon, or BIRD, can announce them to routers.
    let announced = text + "announce: {kernelRoutes: {}}\n";
    assert_eq!(warned(&announced).len(), 1, "{:?}", warned(&announced));
}

#[test]
fn fullnat_without_snat_addresses_causes_a_warning() {
    let report = lines(BASE);
    assert!(report.len() == 1 && report[0].contains("Services in this mode cannot be served"), "{report:?}");
    assert!(lines(&format!("{BASE}services: {{defaults: {{forwarding: nat}}}}\n")).is_empty());
}

#[test]
fn node_port_addresses_without_a_gateway_address_cause_a_warning() {
    let text = |networks: &str| {
        format!("{BASE}services: {{nodePortAddresses: [{networks}], defaults: {{forwarding: nat}}}}\n")
    };
    assert_eq!(
        lines(&text("198.51.100.0/24")),
        [
            "gateway.yaml:8:12: warning: services.nodePortAddresses: no address of dataplane.interfaces is in these networks, so node ports and health-check node ports are not served; accepted: a network with an address of dataplane.interfaces, or an empty list"
        ]
    );
    for networks in ["", "192.0.2.0/24", "198.51.100.0/24, '2001:db8::/32'"] {
        assert_eq!(lines(&text(networks)), [] as [String; 0], "{networks}");
    }
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
        let loaded = super::parse_in(
            &environment,
            super::Copies::Ignored,
            None,
            &text,
            "gateway.yaml",
            Path::new("."),
            4,
        );
        loaded.config.unwrap_or_else(|| panic!("{}", loaded.report))
    };
    let (one, two) = (on_node("a", "192.0.2.7,2001:db8::7"), on_node("b", "192.0.2.8,2001:db8::8"));
    assert_eq!((one.name.as_str(), one.node.name.as_deref()), ("a", Some("a")));
    assert_eq!(two.name, "b");
    let addresses = |config: &GatewayConfig| {
        let interfaces = config.dataplane.network.interfaces.iter();
        interfaces.flat_map(|interface| interface.addresses.clone()).collect::<Vec<IpNet>>()
    };
    assert_eq!(addresses(&one), ["192.0.2.7/24", "2001:db8::7/64"].map(|net| net.parse().expect("a prefix")));
    assert!(addresses(&two).iter().all(|net| !addresses(&one).contains(net)));
}
