//! Sections 3 and 4: affinity, source ranges, traffic policies, health-check node ports.

use super::*;

#[test]
fn session_affinity_client_ip_lasts_10800_seconds_where_no_timeout_is_written() {
    let affinity = |spec: &str| only(&Both::new(&web(spec)).look()).affinity.map(|t| t.as_secs());
    assert_eq!(affinity(""), None);
    assert_eq!(affinity("  sessionAffinity: ClientIP\n"), Some(10_800));
    for seconds in [1, 86_400] {
        let config = format!(
            "  sessionAffinity: ClientIP\n  sessionAffinityConfig: {{clientIP: {{timeoutSeconds: {seconds}}}}}\n"
        );
        assert_eq!(affinity(&config), Some(seconds));
    }
}

/// The ranges of the only service port, `None` for everyone.
fn ranges(both: &Both) -> Option<Vec<String>> {
    let outcome = both.look();
    only(&outcome).source_ranges.as_ref().map(|ranges| ranges.iter().map(ToString::to_string).collect())
}

#[test]
fn source_ranges_may_carry_white_space_and_a_prefix_of_0_means_everyone() {
    let written = |list: &str| ranges(&Both::new(&web(&format!("  loadBalancerSourceRanges: [{list}]\n"))));
    assert_eq!(
        written("' 10.0.0.0/8 ', 192.168.1.7/32"),
        Some(vec!["10.0.0.0/8".into(), "192.168.1.7/32".into()])
    );
    assert_eq!(written("10.0.0.0/8, 0.0.0.0/0"), None);
}

#[test]
fn the_legacy_annotation_counts_only_when_the_field_is_empty() {
    let legacy = "{name: web, annotations: {service.beta.kubernetes.io/load-balancer-source-ranges: '10.0.0.0/8, \
                  172.16.0.0/12'}}";
    let with = |spec: &str| ranges(&Both::new(&web(spec).replace("{name: web}", legacy)));
    assert_eq!(with(""), Some(vec!["10.0.0.0/8".into(), "172.16.0.0/12".into()]));
    assert_eq!(
        with("  loadBalancerSourceRanges: [192.0.2.0/24]\n"),
        Some(vec!["192.0.2.0/24".into()]),
        "the field is written"
    );
}

#[test]
fn ranges_of_one_family_deny_the_other_with_a_warning_or_allow_it_as_configured() {
    let spec = "  ipFamilyPolicy: RequireDualStack\n  loadBalancerSourceRanges: [10.0.0.0/8]\n";
    let both = Both::new(&web(spec));
    let outcome = both.look();
    assert!(outcome.spec.services.iter().all(|s| s.source_ranges.is_some()));
    assert!(outcome.findings.iter().any(|f| f.reason == Reason::SourceRangesOtherFamily));
    let allowing = both.with(|world| world.settings.source_ranges_allow_other_family = true);
    let outcome = allowing.look();
    let filtered: Vec<bool> = outcome.spec.services.iter().map(|s| s.source_ranges.is_some()).collect();
    assert_eq!(filtered, [true, false]);
    assert!(outcome.findings.is_empty());
}

#[test]
fn policy_local_takes_ready_ones_on_the_node_else_serving_and_terminating_ones_there_else_none() {
    let local = "  externalTrafficPolicy: Local\n  healthCheckNodePort: 30500\n";
    let backends = |endpoints: &[&str]| {
        web_with(local, endpoints).with(|world| world.settings.node = Some("a".into())).backends()
    };
    let terminating =
        "addresses: [10.1.0.2], nodeName: a, conditions: {ready: false, serving: true, terminating: true}";
    let elsewhere = "addresses: [10.1.0.3], nodeName: b";
    assert_eq!(
        backends(&["addresses: [10.1.0.1], nodeName: a", terminating, elsewhere]),
        ["10.1.0.1:8080 active", "10.1.0.2:8080 draining"]
    );
    assert_eq!(backends(&[terminating, elsewhere]), ["10.1.0.2:8080 active"]);
    assert_eq!(backends(&[elsewhere]), [] as [String; 0]);
}

#[test]
fn the_internal_policy_counts_for_cluster_ips_only() {
    let spec = "  clusterIP: 10.96.0.10\n  internalTrafficPolicy: Local\n";
    let both = web_with(spec, &["addresses: [10.1.0.1], nodeName: a", "addresses: [10.1.0.2], nodeName: b"])
        .with(|world| {
            world.settings.own_cluster_ips = true;
            world.settings.node = Some("a".into());
        });
    let outcome = both.look();
    let backends: Vec<(IpAddr, usize)> =
        outcome.spec.services.iter().map(|s| (s.key.vip, s.backends.len())).collect();
    assert_eq!(backends[0], (ip("10.96.0.10"), 1));
    assert_eq!(backends[1].1, 2);
}

#[test]
fn node_target_with_local_weights_each_node_by_its_number_of_ready_endpoints() {
    let annotations =
        "{name: web, annotations: {tidegate.dev/target: node, tidegate.dev/forwarding: dsr-l2}}";
    let local = web("  externalTrafficPolicy: Local\n  healthCheckNodePort: 30500\n");
    let node = |name: &str, address: &str, labels: &str| {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{{labels}}}}}\nspec: {{unschedulable: \
             true}}\nstatus: {{addresses: [{{type: InternalIP, address: {address}}}]}}\n---\n"
        )
    };
    let endpoints = [
        "addresses: [10.1.0.1], nodeName: a",
        "addresses: [10.1.0.2], nodeName: a",
        "addresses: [10.1.0.3], nodeName: a, conditions: {ready: false}",
        "addresses: [10.1.1.1], nodeName: b",
        "addresses: [10.1.3.1], nodeName: x",
    ];
    let excluded = "node.kubernetes.io/exclude-from-external-load-balancers: ''";
    let both = Both::new(
        &(local.replace("{name: web}", annotations)
            + &node("a", "10.0.1.1", "")
            + &node("b", "10.0.1.2", "")
            + &node("c", "10.0.1.3", "")
            + &node("x", "10.0.1.4", excluded)
            + &slice_of_web("s", "IPv4", &endpoints)),
    );
    assert_eq!(weights(only(&both.look())), ["10.0.1.1:80 2", "10.0.1.2:80 1"]);
}

#[test]
fn a_health_check_node_port_is_served_for_type_load_balancer_with_policy_local_and_a_port() {
    let ports = |spec: &str| Both::new(&web(spec)).look().health_check_node_ports.len();
    assert_eq!(ports("  externalTrafficPolicy: Local\n  healthCheckNodePort: 30500\n"), 1);
    assert_eq!(
        ports("  externalTrafficPolicy: Cluster\n"),
        0,
        "the port closes when the policy leaves Local"
    );
}

#[test]
fn local_endpoints_counts_distinct_ips_of_ready_endpoints_on_the_node_or_all_for_an_appliance() {
    let endpoints = [
        "addresses: [10.1.0.1], nodeName: a",
        "addresses: [10.1.0.2], nodeName: a, conditions: {ready: false, serving: true, terminating: true}",
        "addresses: [10.1.0.3], nodeName: b",
    ];
    let two_ports = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  type: LoadBalancer\n  \
                     allocateLoadBalancerNodePorts: false\n  externalTrafficPolicy: Local\n  healthCheckNodePort: \
                     30500\n  ports: [{name: http, port: 80}, {name: https, port: 443}]\n---\n";
    let slice = slice_of_web("s", "IPv4", &endpoints).replace(
        "[{name: http, protocol: TCP, port: 8080}]",
        "[{name: http, port: 80}, {name: https, port: 443}]",
    );
    let both = Both::new(&(two_ports.to_owned() + &slice));
    let count = |both: &Both| both.look().health_check_node_ports[0].local_endpoints;
    assert_eq!(count(&both), 2);
    assert_eq!(count(&both.with(|world| world.settings.node = Some("a".into()))), 1);
}
