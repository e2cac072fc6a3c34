//! Target `node` (kubernetes.md, sections 2, 3 and 5): which nodes, by which address and port, with which weight.

use super::*;
use tidegate_core::snapshot::ForwardingMode;

/// Two endpoints on node a, one on node b, none on node c.
fn cluster(web: Service) -> World {
    let slices = vec![http(
        "web",
        vec![on(endpoint("10.1.0.1"), "a"), on(endpoint("10.1.0.2"), "a"), on(endpoint("10.1.1.1"), "b")],
    )];
    let mut world = World::new(vec![annotated(web, "tidegate.dev/target", "node")], slices);
    for (name, v4, v6) in
        [("a", "10.0.1.1", "2001:db8::a"), ("b", "10.0.1.2", "2001:db8::b"), ("c", "10.0.1.3", "2001:db8::c")]
    {
        world.put_node(node(name, &[v4, v6]));
    }
    world
}

fn by_dsr() -> Service {
    annotated(service("web"), "tidegate.dev/forwarding", "dsr-l2")
}

fn local(mut web: Service) -> Service {
    web.external_traffic_policy = TrafficPolicy::Local;
    web.health_check_node_port = Some(port(30_500));
    web
}

#[test]
fn dsr_to_nodes_keeps_vip_and_port_so_that_a_kube_proxy_serves_it_as_it_is() {
    for mode in ["dsr-l2", "dsr-ipip"] {
        let world = cluster(annotated(service("web"), "tidegate.dev/forwarding", mode));
        let outcome = world.look();
        let spec = only(&outcome);
        assert!(spec.mode.is_dsr());
        // The target port of the Pods is another one: that is the node's business.
        assert_eq!(weights(spec), ["10.0.1.1:80 1", "10.0.1.2:80 1", "10.0.1.3:80 1"]);
        assert_eq!(messages(&outcome), [] as [String; 0]);
    }
}

#[test]
fn nat_to_nodes_sends_to_the_node_port() {
    let mut web = service("web");
    web.ports[0].node_port = Some(port(30_080));
    for (mode, expected) in [("nat", ForwardingMode::Nat), ("fullnat", ForwardingMode::FullNat)] {
        let outcome = cluster(annotated(web.clone(), "tidegate.dev/forwarding", mode)).look();
        assert_eq!(only(&outcome).mode, expected);
        assert_eq!(weights(only(&outcome)), ["10.0.1.1:30080 1", "10.0.1.2:30080 1", "10.0.1.3:30080 1"]);
    }
}

#[test]
fn without_node_ports_nat_to_nodes_is_refused_by_name_and_dsr_works() {
    let mut web = service("web");
    web.allocate_node_ports = false;
    let outcome = cluster(web.clone()).look();
    assert!(outcome.spec.services.is_empty());
    assert_eq!(
        messages(&outcome),
        [
            "error: port http of Service default/web is not programmed: target node with fullnat sends to a node port, \
          and allocateLoadBalancerNodePorts is false; accepted: a nodePort, forwarding dsr-l2 or dsr-ipip, or target \
          pod"
        ]
    );
    let outcome = cluster(annotated(web, "tidegate.dev/forwarding", "dsr-l2")).look();
    assert_eq!(weights(only(&outcome)).len(), 3);
}

#[test]
fn target_node_can_be_the_default_of_all_services() {
    let mut world = cluster(by_dsr());
    let mut plain = by_dsr();
    plain.meta.annotations.remove("tidegate.dev/target");
    world.put(plain);
    assert!(world.look().spec.services.is_empty(), "Pods have another port");
    world.settings.target = crate::config::Target::Node;
    assert_eq!(weights(only(&world.look())).len(), 3);
}

#[test]
fn policy_cluster_sends_to_every_node_and_local_to_those_with_ready_endpoints_by_their_number() {
    let outcome = cluster(by_dsr()).look();
    assert_eq!(weights(only(&outcome)), ["10.0.1.1:80 1", "10.0.1.2:80 1", "10.0.1.3:80 1"]);
    let outcome = cluster(local(by_dsr())).look();
    assert_eq!(weights(only(&outcome)), ["10.0.1.1:80 2", "10.0.1.2:80 1"]);
}

#[test]
fn policy_local_falls_back_to_nodes_with_serving_and_terminating_endpoints_else_none() {
    let mut world = cluster(local(by_dsr()));
    let leaving = |address: &str, node: &str| on(with(endpoint(address), false, true, true), node);
    world.set_slices(vec![http("web", vec![leaving("10.1.0.1", "a"), on(endpoint("10.1.1.1"), "b")])]);
    assert_eq!(
        states(only(&world.look())),
        ["10.0.1.1:80 draining", "10.0.1.2:80 active"],
        "a ready one elsewhere is better"
    );
    world.set_slices(vec![http("web", vec![leaving("10.1.0.1", "a"), leaving("10.1.0.2", "a")])]);
    assert_eq!(weights(only(&world.look())), ["10.0.1.1:80 2"]);
    world.set_slices(vec![http("web", vec![on(with(endpoint("10.1.0.1"), false, false, false), "a")])]);
    assert_eq!(states(only(&world.look())), [] as [String; 0]);
}

#[test]
fn an_endpoint_with_two_ports_counts_once_for_its_node_and_only_in_the_family_of_the_vip() {
    let mut web = local(by_dsr());
    web.ip_family_policy = IpFamilyPolicy::RequireDualStack;
    let mut world = cluster(web);
    let mut two_ports = http("web", vec![on(endpoint("10.1.0.1"), "a")]);
    let mut again = two_ports.ports[0].clone();
    again.port = Some(port(8081));
    two_ports.ports.push(again);
    let v6 = slice(
        "v6",
        "web",
        &[("http", Protocol::Tcp, 8080)],
        vec![on(endpoint("2001:db8:9::1"), "b"), on(endpoint("2001:db8:9::2"), "b")],
    );
    world.set_slices(vec![two_ports, v6]);
    let outcome = world.look();
    let of = |v4: bool| {
        let spec = outcome.spec.services.iter().find(|s| s.key.vip.is_ipv4() == v4).expect("dual stack");
        weights(spec)
    };
    assert_eq!(of(true), ["10.0.1.1:80 1"]);
    assert_eq!(of(false), ["[2001:db8::b]:80 2"]);
}

#[test]
fn the_label_excludes_a_node_and_readiness_flips_and_cordons_do_not() {
    let mut world = cluster(by_dsr());
    let mut excluded = node("b", &["10.0.1.2"]);
    let label = "node.kubernetes.io/exclude-from-external-load-balancers";
    excluded.meta.labels.insert(label.into(), String::new());
    world.put_node(excluded);
    assert_eq!(weights(only(&world.look())), ["10.0.1.1:80 1", "10.0.1.3:80 1"]);

    let before = world.look().spec;
    let cordoned = read(
        "apiVersion: v1\nkind: Node\nmetadata: {name: a}\nspec: {unschedulable: true}\nstatus:\n  addresses: \
         [{type: InternalIP, address: 10.0.1.1}, {type: InternalIP, address: '2001:db8::a'}]\n  conditions: [{type: \
         Ready, status: 'False'}]\n",
    );
    world.objects.nodes.insert("a".into(), cordoned.nodes["a"].clone());
    assert_eq!(world.look().spec, before);
}

#[test]
fn the_backend_node_selector_chooses_nodes_and_with_target_pod_their_endpoints() {
    let selector = "tidegate.dev/backend-node-selector";
    let labelled = |world: &mut World| {
        let mut ssd = node("b", &["10.0.1.2"]);
        ssd.meta.labels.insert("disk".into(), "ssd".into());
        world.put_node(ssd);
    };
    let mut world = cluster(annotated(by_dsr(), selector, "disk in (ssd, nvme)"));
    labelled(&mut world);
    assert_eq!(weights(only(&world.look())), ["10.0.1.2:80 1"]);

    let mut pods = annotated(service("web"), selector, "disk=ssd");
    pods.meta.annotations.remove("tidegate.dev/target");
    world.put(pods);
    assert_eq!(weights(only(&world.look())), ["10.1.1.1:8080 1"]);

    world.put(annotated(service("web"), selector, "disk=ssd=fast"));
    let outcome = world.look();
    assert!(outcome.spec.services.is_empty(), "all nodes would be more than were meant");
    assert!(messages(&outcome)[0].contains("accepted: a label selector such as"), "{:?}", messages(&outcome));
}

#[test]
fn a_node_that_goes_keeps_its_flows_until_the_drain_timeout() {
    let mut world = cluster(by_dsr());
    world.step();
    world.objects.nodes.remove("c");
    let outcome = world.step();
    assert_eq!(states(only(&outcome)), ["10.0.1.1:80 active", "10.0.1.2:80 active", "10.0.1.3:80 down"]);
}

#[test]
fn the_operator_drains_a_node_that_is_a_target() {
    let mut world = cluster(by_dsr());
    world.drained = BTreeSet::from(["b".parse().expect("a node")]);
    assert_eq!(
        states(only(&world.look())),
        ["10.0.1.1:80 active", "10.0.1.2:80 draining", "10.0.1.3:80 active"]
    );
}

#[test]
fn tunnels_reach_nodes_of_the_other_family_and_dsr_l2_does_not() {
    let mut web = annotated(service("web"), "tidegate.dev/forwarding", "dsr-ipip");
    web.ip_families = vec![IpFamily::V6];
    let mut world = cluster(web);
    for name in ["a", "b", "c"] {
        world.objects.nodes.remove(name);
    }
    world.put_node(node("d", &["10.0.1.4"]));
    assert_eq!(weights(only(&world.look())), ["10.0.1.4:80 1"]);
    let mut l2 = annotated(by_dsr(), "tidegate.dev/target", "node");
    l2.ip_families = vec![IpFamily::V6];
    world.put(l2);
    let outcome = world.look();
    assert_eq!(states(only(&outcome)), [] as [String; 0]);
    assert!(messages(&outcome)[0].contains("no IPv6 node"), "{:?}", messages(&outcome));
}

#[test]
fn nodes_are_checked_by_the_health_check_node_port_or_by_their_proxy_and_tell_their_weight() {
    let shown = |world: &World| world.look().targets.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        shown(&cluster(by_dsr())),
        ["http://10.0.1.1:10256/healthz", "http://10.0.1.2:10256/healthz", "http://10.0.1.3:10256/healthz"]
    );
    let mut world = cluster(local(by_dsr()));
    assert_eq!(shown(&world), ["http://10.0.1.1:30500/", "http://10.0.1.2:30500/"]);
    let tells = |weight| crate::health::Standing { weight: Some(weight), ..Default::default() };
    let first = world.look().targets.first().expect("there are two").clone();
    world.verdicts = [(first.clone(), tells(5))].into_iter().collect();
    assert_eq!(weights(only(&world.look())), ["10.0.1.1:80 5", "10.0.1.2:80 1"]);
    let failing = crate::health::Standing { failure: Some(crate::health::Failure::Status(503)), ..tells(0) };
    world.verdicts = [(first, failing)].into_iter().collect();
    assert_eq!(states(only(&world.look())), ["10.0.1.1:80 down", "10.0.1.2:80 active"]);
    world.put(annotated(
        annotated(by_dsr(), "tidegate.dev/target", "node"),
        "tidegate.dev/health-check-port",
        "22",
    ));
    assert_eq!(shown(&world), ["tcp://10.0.1.1:22", "tcp://10.0.1.2:22", "tcp://10.0.1.3:22"]);
    world.put(annotated(
        annotated(by_dsr(), "tidegate.dev/target", "node"),
        "tidegate.dev/health-check-protocol",
        "none",
    ));
    assert_eq!(shown(&world), [] as [String; 0]);
}

#[test]
fn nodes_that_all_say_they_have_no_endpoint_keep_the_weights_of_those_that_terminate() {
    let mut world = cluster(local(by_dsr()));
    let leaving = |address: &str, node: &str| on(with(endpoint(address), false, true, true), node);
    world.set_slices(vec![http(
        "web",
        vec![leaving("10.1.0.1", "a"), leaving("10.1.0.2", "a"), leaving("10.1.1.1", "b")],
    )]);
    let none = crate::health::Standing { weight: Some(0), ..Default::default() };
    let failing = crate::health::Standing { failure: Some(crate::health::Failure::Status(503)), ..none };
    let targets: Vec<_> = world.look().targets.iter().cloned().collect();
    // kube-proxy counts ready ones, and goes on with those that serve.
    for standing in [&none, &failing] {
        world.verdicts = targets.iter().map(|target| (target.clone(), *standing)).collect();
        assert_eq!(weights(only(&world.look())), ["10.0.1.1:80 2", "10.0.1.2:80 1"]);
    }
    // One that says nothing of the kind is better than those that say it.
    world.verdicts = [(targets[0].clone(), none)].into_iter().collect();
    assert_eq!(states(only(&world.look())), ["10.0.1.1:80 draining", "10.0.1.2:80 active"]);
    world.settings.health.fail_open = false;
    world.verdicts = targets.iter().map(|target| (target.clone(), none)).collect();
    assert_eq!(states(only(&world.look())), ["10.0.1.1:80 draining", "10.0.1.2:80 draining"]);
}

#[test]
fn an_appliance_counts_ready_endpoints_on_nodes_that_it_can_forward_to() {
    let world = cluster(local(by_dsr()));
    assert_eq!(world.look().health_check_node_ports[0].local_endpoints, 3);
}
