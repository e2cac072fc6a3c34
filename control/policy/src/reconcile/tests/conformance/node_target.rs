//! Target `node` (sections 2 to 5): the chosen nodes, their addresses, ports and weights, and their health checks.

use tidegate_model::health::{Failure, HealthStatus};
use tidegate_pipeline::testing::builder::Builder;
use tidegate_pipeline::testing::lab::backend_mac;
use tidegate_spec::ForwardingMode;
use tidegate_spec::verdict::TransmitReason;
use tidegate_wire::{ethernet, tcp::flags};

use super::packets::{Gateways, headers};
use super::*;

const ENDPOINTS: [&str; 3] = [
    "addresses: [10.1.0.1], nodeName: a",
    "addresses: [10.1.0.2], nodeName: a",
    "addresses: [10.1.1.1], nodeName: b",
];
const LOCAL: &str = "  externalTrafficPolicy: Local\n  healthCheckNodePort: 30500\n";

fn nodes() -> String {
    node_yaml("a", &["10.0.1.1", "2001:db8::a"], "")
        + &node_yaml("b", &["10.0.1.2", "2001:db8::b"], "")
        + &node_yaml("c", &["10.0.1.3", "2001:db8::c"], "")
}

/// `web` with target `node` and this mode. `spec` is added to its spec, `more` to its annotations.
fn to_nodes(mode: &str, spec: &str, more: &str) -> String {
    let annotations = format!("tidegate.dev/target: node, tidegate.dev/forwarding: {mode}{more}");
    with_annotations(&web(spec), &annotations)
}

/// [`to_nodes`] with two endpoints on node a, one on node b, and none on node c.
fn cluster(mode: &str, spec: &str) -> Both {
    Both::new(&(to_nodes(mode, spec, "") + &slice_of_web("s", "IPv4", &ENDPOINTS) + &nodes()))
}

#[test]
fn dsr_to_nodes_keeps_vip_and_port_for_kube_proxy() {
    for mode in ["dsr-l2", "dsr-ipip"] {
        let both = cluster(mode, "  loadBalancerIP: 203.0.113.5\n");
        let outcome = both.look();
        let spec = only(&outcome);
        assert!(spec.mode.is_dsr());
        // The Pods have another target port, but only the node uses it.
        assert_eq!(weights(spec), ["10.0.1.1:80 1", "10.0.1.2:80 1", "10.0.1.3:80 1"]);
        assert_eq!(messages(&outcome), [] as [String; 0]);
        let mut gateways = Gateways::new(both);
        let result = gateways.send(Builder::tcp("198.51.100.7:40000", "203.0.113.5:80").flags(flags::SYN));
        let node = gateways.backend_of(&result);
        let sent = result.sent(TransmitReason::Forward);
        assert!(
            (1..=3)
                .any(|n| ip(&format!("10.0.1.{n}")) == node && backend_mac(n) == ethernet::destination(sent))
        );
        if mode == "dsr-l2" {
            let kept = headers(sent);
            assert_eq!((kept.dst.ip(), kept.dst_port, kept.src_port), (ip("203.0.113.5"), 80, 40_000));
        }
    }
}

#[test]
fn nat_to_nodes_sends_to_the_node_port() {
    for (mode, expected) in [("nat", ForwardingMode::Nat), ("fullnat", ForwardingMode::FullNat)] {
        let yaml = to_nodes(mode, "", "")
            .replace("targetPort: 8080}]", "targetPort: 8080, nodePort: 30080}]")
            .replace("  allocateLoadBalancerNodePorts: false\n", "");
        let outcome = Both::new(&(yaml + &slice_of_web("s", "IPv4", &ENDPOINTS) + &nodes())).look();
        assert_eq!(only(&outcome).mode, expected);
        assert_eq!(weights(only(&outcome)), ["10.0.1.1:30080 1", "10.0.1.2:30080 1", "10.0.1.3:30080 1"]);
    }
}

#[test]
fn without_node_ports_nat_to_nodes_is_refused_by_name_and_dsr_works() {
    let outcome = cluster("fullnat", "").look();
    assert!(outcome.spec.services.is_empty());
    let reported = &outcome.findings[0].diagnostic;
    assert_eq!(
        reported.what,
        "port http of Service default/web is not programmed: tidegate.dev/target node with fullnat needs a node port, \
         but allocateLoadBalancerNodePorts is false"
    );
    assert_eq!(
        reported.accepted.as_deref(),
        Some("a nodePort, forwarding dsr-l2 or dsr-ipip, or tidegate.dev/target pod")
    );
    assert_eq!(weights(only(&cluster("dsr-l2", "").look())).len(), 3);
}

#[test]
fn target_node_can_be_the_default_of_all_services() {
    let plain = with_annotations(&web(""), "tidegate.dev/forwarding: dsr-l2");
    let both = Both::new(&(plain + &slice_of_web("s", "IPv4", &ENDPOINTS) + &nodes()));
    assert!(both.look().spec.services.is_empty(), "Pods have another port");
    let both =
        both.with(|world| world.settings.services.defaults.target = tidegate_model::config::Target::Node);
    assert_eq!(weights(only(&both.look())).len(), 3);
}

#[test]
fn policy_cluster_sends_to_every_node_and_local_to_those_with_endpoints() {
    assert_eq!(
        weights(only(&cluster("dsr-l2", "").look())),
        ["10.0.1.1:80 1", "10.0.1.2:80 1", "10.0.1.3:80 1"]
    );
    assert_eq!(weights(only(&cluster("dsr-l2", LOCAL).look())), ["10.0.1.1:80 2", "10.0.1.2:80 1"]);
}

#[test]
fn with_local_a_node_is_weighted_by_its_number_of_ready_endpoints() {
    let endpoints = [
        ENDPOINTS[0],
        ENDPOINTS[1],
        "addresses: [10.1.0.3], nodeName: a, conditions: {ready: false}",
        ENDPOINTS[2],
        "addresses: [10.1.3.1], nodeName: x",
    ];
    let excluded = ", labels: {node.kubernetes.io/exclude-from-external-load-balancers: ''}";
    let spec = LOCAL.to_owned() + "  loadBalancerIP: 203.0.113.5\n";
    let both = Both::new(
        &(to_nodes("dsr-l2", &spec, "")
            + &slice_of_web("s", "IPv4", &endpoints)
            + &nodes()
            + &node_yaml("x", &["10.0.1.4"], excluded)),
    );
    assert_eq!(weights(only(&both.look())), ["10.0.1.1:80 2", "10.0.1.2:80 1"]);
    let mut gateways = Gateways::new(both);
    let mut flows = std::collections::BTreeMap::new();
    for port in 10_000..13_000 {
        let client = format!("198.51.100.7:{port}");
        let result = gateways.send(Builder::tcp(client.as_str(), "203.0.113.5:80").flags(flags::SYN));
        *flows.entry(gateways.backend_of(&result)).or_insert(0_u32) += 1;
    }
    let (a, b) = (flows[&ip("10.0.1.1")], flows[&ip("10.0.1.2")]);
    assert_eq!(a + b, 3000);
    assert!((1900..2100).contains(&a), "two Pods of three, give or take the chance of 3000 flows: {a}");
}

#[test]
fn policy_local_falls_back_to_nodes_with_terminating_endpoints() {
    let leaving = |address: &str, node: &str| {
        format!(
            "addresses: [{address}], nodeName: {node}, conditions: {{ready: false, serving: true, terminating: true}}"
        )
    };
    let with = |endpoints: &[&str]| {
        Both::new(&(to_nodes("dsr-l2", LOCAL, "") + &slice_of_web("s", "IPv4", endpoints) + &nodes())).look()
    };
    let (one, two) = (leaving("10.1.0.1", "a"), leaving("10.1.0.2", "a"));
    assert_eq!(
        states(only(&with(&[&one, ENDPOINTS[2]]))),
        ["10.0.1.1:80 draining", "10.0.1.2:80 active"],
        "a ready endpoint elsewhere is better"
    );
    assert_eq!(weights(only(&with(&[&one, &two]))), ["10.0.1.1:80 2"]);
    let unready = "addresses: [10.1.0.1], nodeName: a, conditions: {ready: false, serving: false}";
    assert_eq!(states(only(&with(&[unready]))), [] as [String; 0]);
}

#[test]
fn an_endpoint_counts_once_for_its_node_and_only_in_the_vip_family() {
    let two_ports = slice_of_web("v4", "IPv4", &ENDPOINTS[..1])
        + &slice_of_web("more", "IPv4", &ENDPOINTS[..1]).replace("8080", "8081");
    let v6 = slice_of_web(
        "v6",
        "IPv6",
        &["addresses: ['2001:db8:9::1'], nodeName: b", "addresses: ['2001:db8:9::2'], nodeName: b"],
    );
    let spec = LOCAL.to_owned() + "  ipFamilyPolicy: RequireDualStack\n";
    let outcome = Both::new(&(to_nodes("dsr-l2", &spec, "") + &two_ports + &v6 + &nodes())).look();
    let of = |v4: bool| {
        let spec = outcome.spec.services.iter().find(|s| s.key.vip.is_ipv4() == v4).expect("dual stack");
        weights(spec)
    };
    assert_eq!(of(true), ["10.0.1.1:80 1"]);
    assert_eq!(of(false), ["[2001:db8::b]:80 2"]);
}

#[test]
fn a_removed_node_keeps_its_flows_until_the_drain_timeout() {
    let base = to_nodes("dsr-l2", "", "") + &slice_of_web("s", "IPv4", &ENDPOINTS);
    let (a, c) = (node_yaml("a", &["10.0.1.1"], ""), node_yaml("c", &["10.0.1.3"], ""));
    let mut both = Both::new(&(base.clone() + &a + &c));
    both.step();
    both.set(&(base + &a));
    assert_eq!(states(only(&both.step())), ["10.0.1.1:80 active", "10.0.1.3:80 down"]);
    both.both(|world| world.now += Duration::from_secs(300));
    assert_eq!(states(only(&both.step())), ["10.0.1.1:80 active"]);
}

#[test]
fn the_operator_drains_a_node_that_is_a_target() {
    let both =
        cluster("dsr-l2", "").with(|world| world.drained = BTreeSet::from(["b".parse().expect("a node")]));
    assert_eq!(
        states(only(&both.look())),
        ["10.0.1.1:80 active", "10.0.1.2:80 draining", "10.0.1.3:80 active"]
    );
}

#[test]
fn tunnels_reach_nodes_of_the_other_family_and_dsr_l2_does_not() {
    let rest = slice_of_web("s", "IPv4", &ENDPOINTS) + &node_yaml("d", &["10.0.1.4"], "");
    let of_v6 = |mode: &str| Both::new(&(to_nodes(mode, "  ipFamilies: [IPv6]\n", "") + &rest)).look();
    assert_eq!(weights(only(&of_v6("dsr-ipip"))), ["10.0.1.4:80 1"]);
    let outcome = of_v6("dsr-l2");
    assert_eq!(states(only(&outcome)), [] as [String; 0]);
    assert!(outcome.findings[0].diagnostic.what.contains("no IPv6 node"), "{:?}", messages(&outcome));
}

#[test]
fn nodes_are_probed_at_health_check_node_ports_or_the_proxys_healthz() {
    let shown = |both: &Both| both.look().targets.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        shown(&cluster("dsr-l2", "")),
        ["http://10.0.1.1:10256/healthz", "http://10.0.1.2:10256/healthz", "http://10.0.1.3:10256/healthz"]
    );
    assert_eq!(shown(&cluster("dsr-l2", LOCAL)), ["http://10.0.1.1:30500/", "http://10.0.1.2:30500/"]);
    let annotated = |more: &str| {
        Both::new(&(to_nodes("dsr-l2", "", more) + &slice_of_web("s", "IPv4", &ENDPOINTS) + &nodes()))
    };
    assert_eq!(
        shown(&annotated(", tidegate.dev/health-check-port: '22'")),
        ["tcp://10.0.1.1:22", "tcp://10.0.1.2:22", "tcp://10.0.1.3:22"]
    );
    assert_eq!(shown(&annotated(", tidegate.dev/health-check-protocol: none")), [] as [String; 0]);
}

#[test]
fn the_weight_header_in_a_nodes_answer_is_the_nodes_weight() {
    let both = cluster("dsr-l2", LOCAL);
    let first = both.look().targets.first().expect("there are two").clone();
    let with_status = |status: HealthStatus| {
        let first = first.clone();
        cluster("dsr-l2", LOCAL)
            .with(move |world| world.verdicts = [(first.clone(), status)].into_iter().collect())
            .look()
    };
    let reports = |weight| HealthStatus { weight: Some(weight), ..Default::default() };
    assert_eq!(weights(only(&with_status(reports(5)))), ["10.0.1.1:80 5", "10.0.1.2:80 1"]);
    let failing = HealthStatus { failure: Some(Failure::Status(503)), ..reports(0) };
    assert_eq!(states(only(&with_status(failing))), ["10.0.1.1:80 down", "10.0.1.2:80 active"]);
}

#[test]
fn if_all_nodes_report_no_endpoint_terminating_ones_keep_their_weights() {
    let leaving = |address: &str, node: &str| {
        format!(
            "addresses: [{address}], nodeName: {node}, conditions: {{ready: false, serving: true, terminating: true}}"
        )
    };
    let all = [leaving("10.1.0.1", "a"), leaving("10.1.0.2", "a"), leaving("10.1.1.1", "b")];
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let mut both = Both::new(&(to_nodes("dsr-l2", LOCAL, "") + &slice_of_web("s", "IPv4", &all) + &nodes()));
    let none = HealthStatus { weight: Some(0), ..Default::default() };
    let failing = HealthStatus { failure: Some(Failure::Status(503)), ..none };
    let targets: Vec<_> = both.look().targets.iter().cloned().collect();
    let with_status = |status: HealthStatus, of: &[tidegate_model::health::Target]| -> Verdicts {
        of.iter().map(|target| (target.clone(), status)).collect()
    };
    // kube-proxy counts ready endpoints, and continues with those that serve.
    for status in [none, failing] {
        both.both(|world| world.verdicts = with_status(status, &targets));
        assert_eq!(weights(only(&both.look())), ["10.0.1.1:80 2", "10.0.1.2:80 1"]);
    }
    // A node that reports nothing is preferred to nodes that report no endpoints.
    both.both(|world| world.verdicts = with_status(none, &targets[..1]));
    assert_eq!(states(only(&both.look())), ["10.0.1.1:80 draining", "10.0.1.2:80 active"]);
    both.both(|world| {
        world.settings.health.fail_open = false;
        world.verdicts = with_status(none, &targets);
    });
    assert_eq!(states(only(&both.look())), ["10.0.1.1:80 draining", "10.0.1.2:80 draining"]);
}

#[test]
fn a_new_local_service_warns_only_after_its_nodes_failed_their_checks() {
    let mut both = Both::new(
        &(to_nodes("dsr-l2", LOCAL, "")
            + &slice_of_web(
                "s",
                "IPv4",
                &["addresses: [10.1.0.1], nodeName: a", "addresses: [10.1.1.1], nodeName: b"],
            )
            + &nodes()),
    );
    let targets: Vec<_> = both.look().targets.iter().cloned().collect();
    let with_status = |status: HealthStatus| -> Verdicts {
        targets.iter().map(|target| (target.clone(), status)).collect()
    };
    let warns = |both: &Both| both.look().findings.iter().any(|f| f.reason == Reason::HealthFailOpen);
    // The proxies do not know the Service yet.
    let none = HealthStatus { weight: Some(0), ..Default::default() };
    both.both(|world| world.verdicts = with_status(none));
    assert!(both.look().services[0].ports[0].fail_open && !warns(&both));
    // This also applies after enough failed checks.
    both.both(|world| {
        world.verdicts = with_status(HealthStatus { failure: Some(Failure::Status(503)), ..none });
    });
    assert!(warns(&both));
}
