//! Section 9, and the routes to Pods.

use tidegate_model::config::PodRoutes;

use super::*;

#[test]
fn a_static_manifest_with_an_https_check_serves_the_control_plane_vip() {
    // The one file of a directory, before there is a cluster: no Node, no Namespace, no Pod.
    let manifest = "apiVersion: v1\nkind: Service\nmetadata: {name: api, namespace: kube-system, annotations: \
                    {tidegate.dev/health-check-protocol: https, tidegate.dev/health-check-path: /readyz}}\nspec: \
                    {externalIPs: [198.51.100.1], ports: [{name: https, port: 443, targetPort: \
                    6443}]}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: api, namespace: \
                    kube-system, labels: {kubernetes.io/service-name: api}}\naddressType: IPv4\nports: [{name: https, \
                    port: 6443}]\nendpoints: [{addresses: [10.0.0.11]}, {addresses: [10.0.0.12]}]\n";
    let mut both = Both::new(manifest);
    let outcome = both.step();
    assert_eq!(keys(&outcome), ["TCP 198.51.100.1:443"]);
    assert_eq!(outcome.services[0].vips[0].kind, view::VipKind::ExternalIp);
    assert_eq!(states(only(&outcome)), ["10.0.0.11:6443 active", "10.0.0.12:6443 active"]);
    let checks: Vec<String> = outcome.targets.iter().map(ToString::to_string).collect();
    assert_eq!(checks, ["https://10.0.0.11:6443/readyz", "https://10.0.0.12:6443/readyz"]);
    assert_eq!(messages(&outcome), [] as [String; 0]);
    let first = outcome.targets.first().expect("two").clone();
    both.both(|world| world.verdicts = [first.clone()].into_iter().collect());
    assert_eq!(both.backends(), ["10.0.0.11:6443 down", "10.0.0.12:6443 active"]);
}

/// A Node with InternalIPs and Pod networks, both as items of YAML flow sequences.
fn with_pods(name: &str, internal_ips: &[&str], pod_cidrs: &str) -> String {
    node_yaml(name, internal_ips, "")
        .replace("\nstatus:", &format!("\nspec: {{podCIDRs: [{pod_cidrs}]}}\nstatus:"))
}

fn routed(nodes: &[String]) -> Both {
    Both::new(&nodes.concat()).with(|world| world.settings.services.pod_routes = PodRoutes::Node)
}

fn routes(outcome: &Outcome) -> Vec<String> {
    outcome.spec.network.routes.iter().map(|r| format!("{} {}", r.to, r.via)).collect()
}

#[test]
fn pod_cidrs_are_routed_to_the_internal_ip_of_their_family() {
    let both = routed(&[
        with_pods("b", &["10.0.1.2"], "10.1.1.0/24"),
        with_pods("a", &["10.0.1.1", "2001:db8::a"], "10.1.0.0/24, '2001:db8:1::/64'"),
    ]);
    let outcome = both.look();
    assert_eq!(
        routes(&outcome),
        ["10.1.0.0/24 10.0.1.1", "10.1.1.0/24 10.0.1.2", "2001:db8:1::/64 2001:db8::a"]
    );
    assert_eq!(messages(&outcome), [] as [String; 0]);
    let both = both.with(|world| world.settings.services.pod_routes = PodRoutes::Route);
    assert_eq!(routes(&both.look()), [] as [String; 0], "by default the gateway's own routes");
}

#[test]
fn pod_cidrs_arrive_and_one_alone_counts_as_well() {
    for (spec, expected) in [
        ("podCIDR: 10.1.0.0/24, podCIDRs: [10.1.0.0/24, '2001:db8:1::/64']", 2),
        ("podCIDR: 10.1.0.0/24", 1),
        ("podCIDR: ''", 0),
    ] {
        let node = node_yaml("a", &["10.0.1.1", "2001:db8::a"], "")
            .replace("\nstatus:", &format!("\nspec: {{{spec}}}\nstatus:"));
        assert_eq!(routes(&routed(&[node]).look()).len(), expected, "{spec}");
    }
}

#[test]
fn configured_routes_take_precedence_and_own_pods_get_no_route() {
    let both = routed(&[
        with_pods("a", &["10.0.1.1"], "10.1.0.0/24"),
        with_pods("here", &["10.0.0.1"], "10.1.2.0/24"),
    ]);
    let both = both.with(|world| {
        world.settings.node = Some("here".into());
        world.settings.network.routes =
            vec![RouteSpec { to: "10.1.0.0/24".parse().expect("a network"), via: ip("10.0.9.9") }];
    });
    let outcome = both.look();
    assert_eq!(routes(&outcome), ["10.1.0.0/24 10.0.9.9"]);
    assert_eq!(messages(&outcome), [] as [String; 0]);
}

#[test]
fn invalid_pod_routes_are_reported_at_the_node_and_the_others_stay() {
    let both = routed(&[
        with_pods("a", &["10.0.1.1"], "10.1.0.0/24"),
        with_pods("b", &["10.0.1.2"], "10.1.0.0/24"),
        with_pods("far", &["172.16.0.1"], "10.1.3.0/24"),
        with_pods("other", &["10.0.1.4"], "'2001:db8:4::/64'"),
        with_pods("ours", &["10.0.0.1"], "10.1.5.0/24"),
    ]);
    let [directory, api] = both.each();
    assert_eq!(routes(&directory), ["10.1.0.0/24 10.0.1.1"]);
    let expected = [
        (
            "b",
            "Pods of node b in 10.1.0.0/24 get no route through the node: node a has the same podCIDR",
            "a podCIDR that no other node has",
        ),
        (
            "far",
            "Pods of node far in 10.1.3.0/24 get no route through the node: 172.16.0.1 is not on a link of the gateway",
            "an InternalIP in a prefix of dataplane.interfaces, or services.podRoutes: route with dataplane.routes to \
             the Pods",
        ),
        (
            "other",
            "Pods of node other in 2001:db8:4::/64 get no route through the node: the node has no IPv6 InternalIP",
            "an InternalIP of the family of the podCIDR",
        ),
        (
            "ours",
            "Pods of node ours in 10.1.5.0/24 get no route through the node: 10.0.0.1 is an address of the gateway itself",
            "the name of this node in node.name, if the gateway runs on it",
        ),
    ];
    assert_eq!(directory.findings.len(), expected.len(), "{:?}", messages(&directory));
    for (finding, (node, what, accepted)) in directory.findings.iter().zip(expected) {
        assert_eq!((finding.reason, finding.kind), (Reason::PodRouteRefused, ObjectKind::Node));
        assert_eq!(finding.object, ObjectKey::new("", node));
        assert_eq!(
            (finding.diagnostic.what.as_str(), finding.diagnostic.accepted.as_deref()),
            (what, Some(accepted))
        );
    }
    for finding in api.findings.iter() {
        let place = finding.diagnostic.location.as_ref().expect("the object is named").to_string();
        assert_eq!(place, format!("Node {}", finding.object.name));
    }
}
