//! Routes to Pods: by the gateway's own routes, or by the nodes (`services.podRoutes: node`).

use super::*;
use crate::config::PodRoutes;
use tidegate_core::snapshot::RouteSpec;

fn with_pods(name: &str, internal_ips: &[&str], pod_cidrs: &[&str]) -> Node {
    let mut node = node(name, internal_ips);
    node.pod_cidrs = pod_cidrs.iter().map(|cidr| cidr.parse().expect("a network")).collect();
    node
}

fn routed(nodes: Vec<Node>) -> World {
    let mut world = World::new(vec![], vec![]);
    nodes.into_iter().for_each(|node| world.put_node(node));
    world.settings.pod_routes = PodRoutes::Node;
    world
}

fn routes(outcome: &Outcome) -> Vec<String> {
    outcome.spec.routes.iter().map(|r| format!("{} {}", r.to, r.via)).collect()
}

#[test]
fn pod_cidrs_are_routed_to_the_internal_ip_of_their_family() {
    let mut world = routed(vec![
        with_pods("b", &["10.0.1.2"], &["10.1.1.0/24"]),
        with_pods("a", &["10.0.1.1", "2001:db8::a"], &["10.1.0.0/24", "2001:db8:1::/64"]),
    ]);
    let outcome = world.look();
    assert_eq!(
        routes(&outcome),
        ["10.1.0.0/24 10.0.1.1", "10.1.1.0/24 10.0.1.2", "2001:db8:1::/64 2001:db8::a"]
    );
    assert_eq!(messages(&outcome), [] as [String; 0]);
    world.settings.pod_routes = PodRoutes::Route;
    assert_eq!(routes(&world.look()), [] as [String; 0], "by default the gateway's own routes");
}

#[test]
fn a_prefix_that_the_configuration_routes_is_its_own_and_own_pods_are_behind_the_kernel() {
    let mut world = routed(vec![
        with_pods("a", &["10.0.1.1"], &["10.1.0.0/24"]),
        with_pods("here", &["10.0.0.1"], &["10.1.2.0/24"]),
    ]);
    world.settings.node = Some("here".into());
    world.settings.routes =
        vec![RouteSpec { to: "10.1.0.0/24".parse().expect("a network"), via: ip("10.0.9.9") }];
    let outcome = world.look();
    assert_eq!(routes(&outcome), ["10.1.0.0/24 10.0.9.9"]);
    assert_eq!(messages(&outcome), [] as [String; 0]);
}

#[test]
fn what_cannot_be_a_route_is_said_at_the_node_and_the_others_stay() {
    let world = routed(vec![
        with_pods("a", &["10.0.1.1"], &["10.1.0.0/24"]),
        with_pods("b", &["10.0.1.2"], &["10.1.0.0/24"]),
        with_pods("far", &["172.16.0.1"], &["10.1.3.0/24"]),
        with_pods("other", &["10.0.1.4"], &["2001:db8:4::/64"]),
        with_pods("ours", &["10.0.0.1"], &["10.1.5.0/24"]),
    ]);
    let outcome = world.look();
    assert_eq!(routes(&outcome), ["10.1.0.0/24 10.0.1.1"]);
    assert!(outcome.findings.iter().all(|f| f.reason == Reason::PodRouteRefused));
    assert_eq!(
        messages(&outcome),
        [
            "warning: Pods of node b in 10.1.0.0/24 get no route of their own: node a has it as well; accepted: a \
             podCIDR that no other node has",
            "warning: Pods of node far in 10.1.3.0/24 get no route of their own: 172.16.0.1 is on none of the \
             gateway's links; accepted: a node in a prefix of dataplane.interfaces, or podRoutes: route with routes \
             to the Pods",
            "warning: Pods of node other in 2001:db8:4::/64 get no route of their own: the node has no IPv6 \
             InternalIP; accepted: an InternalIP of the same family",
            "warning: Pods of node ours in 10.1.5.0/24 get no route of their own: 10.0.0.1 is an address of the \
             gateway itself; accepted: node.name with the name of this node",
        ]
    );
}

#[test]
fn pod_cidrs_of_a_manifest_arrive_and_one_alone_counts_as_well() {
    for (spec, expected) in [
        ("podCIDR: 10.1.0.0/24, podCIDRs: [10.1.0.0/24, 'fd00:1::/64']", 2),
        ("podCIDR: 10.1.0.0/24", 1),
        ("podCIDR: ''", 0),
    ] {
        let text = format!("apiVersion: v1\nkind: Node\nmetadata: {{name: a}}\nspec: {{{spec}}}\n");
        let objects = read(&text);
        let node = objects.nodes.get("a").expect("it is read");
        assert_eq!(node.pod_cidrs.len(), expected, "{spec}");
    }
}
