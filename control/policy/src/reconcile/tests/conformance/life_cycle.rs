//! Section 5, as far as it depends on objects: classes, requested addresses, families, node ports, released addresses,
//! nodes.
//!
//! The conformance tests of `control/cluster/src/plan/tests/` cover the writes to an API server (status, conditions,
//! events, finalizer).

use super::*;
use crate::pools::Authority;

#[test]
fn our_class_is_served_and_no_class_only_if_configured() {
    for (class, unclassed, claimed) in [
        ("  loadBalancerClass: tidegate.dev/gateway\n", false, true),
        ("  loadBalancerClass: tidegate.dev/gateway\n", true, true),
        ("", true, true),
        ("", false, false),
        ("  loadBalancerClass: example.com/lb\n", true, false),
        ("  loadBalancerClass: example.com/lb\n", false, false),
    ] {
        let both = Both::new(&web(class)).with(|world| world.settings.claims.unclassed = unclassed);
        let outcome = both.look();
        assert_eq!(outcome.services.len(), usize::from(claimed), "{class:?} {unclassed}");
        assert_eq!(outcome.claimed.len(), usize::from(claimed), "{class:?} {unclassed}");
        assert_eq!(messages(&outcome), [] as [String; 0], "{class:?} {unclassed}");
    }
}

#[test]
fn the_class_that_is_ours_is_the_configured_one() {
    let both = Both::new(&web("  loadBalancerClass: example.com/edge\n")).with(|world| {
        world.settings.claims.unclassed = false;
        world.settings.claims.load_balancer_class = "example.com/edge".into();
    });
    assert_eq!(both.look().claimed.len(), 1);
}

fn requesting(addresses: &str, spec: &str) -> Outcome {
    let annotations = format!("name: web, annotations: {{tidegate.dev/load-balancer-ips: '{addresses}'}}");
    Both::new(&service_with(&annotations, spec)).look()
}

#[test]
fn the_annotation_overrides_load_balancer_ip_and_a_conflict_is_an_error() {
    assert_eq!(keys(&requesting("203.0.113.6", "")), ["TCP 203.0.113.6:80"]);
    assert_eq!(keys(&requesting("203.0.113.6", "  loadBalancerIP: 203.0.113.6\n")), ["TCP 203.0.113.6:80"]);
    let deprecated = Both::new(&web("  loadBalancerIP: 203.0.113.7\n")).look();
    assert_eq!(keys(&deprecated), ["TCP 203.0.113.7:80"], "it is used if it is the only request");
    let outcome = requesting("203.0.113.6", "  loadBalancerIP: 203.0.113.7\n");
    assert!(outcome.spec.services.is_empty(), "neither of the two addresses, nor any other");
    let contradiction = "spec.loadBalancerIP 203.0.113.7 contradicts the annotation \
                         tidegate.dev/load-balancer-ips: no new address is assigned";
    assert_eq!(
        finding(&outcome),
        (
            Reason::AllocationFailed,
            contradiction,
            "either the field or the annotation, or the same address in both"
        )
    );
    assert_eq!(pending(&outcome, "web"), Some(contradiction));
}

#[test]
fn requested_addresses_are_a_comma_list_with_one_per_family() {
    let dual = "  ipFamilyPolicy: RequireDualStack\n";
    let outcome = requesting("203.0.113.6, 2001:db8:1::6", dual);
    assert_eq!(keys(&outcome), ["TCP 203.0.113.6:80", "TCP [2001:db8:1::6]:80"]);
    for (addresses, spec, why, accepted) in [
        (
            "203.0.113.6,203.0.113.7",
            "",
            "the Service also requests 203.0.113.6, and can have only one IPv4",
            "one address for each family",
        ),
        (
            "203.0.113.6,2001:db8:1::6",
            "  ipFamilies: [IPv4]\n",
            "the Service can only have an IPv4 address",
            "an IPv4 address",
        ),
        ("192.0.2.1", "", "the address is in no pool", "public (203.0.113.0-203.0.113.15"),
        ("10.0.0.3", "", "an address of the gateway itself", "a free address of a pool"),
    ] {
        let outcome = requesting(addresses, spec);
        let (reason, what, reported) = finding(&outcome);
        assert_eq!(reason, Reason::AllocationFailed);
        assert!(what.contains(why) && reported.contains(accepted), "{what}; {reported}");
        assert!(pending(&outcome, "web").is_some_and(|p| p.contains(why)), "{addresses}");
    }
}

#[test]
fn one_address_per_family_prefer_falls_back_and_require_is_all_or_nothing() {
    let families = |spec: &str, pools: &[&str]| {
        let both = Both::new(&web(spec)).with(|world| world.settings.pools = vec![pool("public", pools)]);
        let outcome = both.look();
        let served: String =
            outcome.spec.services.iter().map(|s| if s.key.vip.is_ipv4() { '4' } else { '6' }).collect();
        let reasons: Vec<&str> = outcome.findings.iter().map(|f| f.reason.as_str()).collect();
        (served, reasons.join(" "))
    };
    let (both, v4, v6) =
        (&["203.0.113.0/28", "2001:db8:1::/124"][..], &["203.0.113.0/28"][..], &["2001:db8:1::/124"][..]);
    let expect = |served: &str, reasons: &str| (served.to_owned(), reasons.to_owned());
    for (spec, pools, expected) in [
        ("", both, expect("4", "")),
        ("", v6, expect("6", "")),
        ("  ipFamilyPolicy: SingleStack\n", both, expect("4", "")),
        ("  ipFamilies: [IPv6]\n", both, expect("6", "")),
        ("  ipFamilies: [IPv6]\n", v4, expect("", "AllocationFailed")),
        ("  ipFamilyPolicy: PreferDualStack\n", both, expect("46", "")),
        ("  ipFamilyPolicy: PreferDualStack\n", v4, expect("4", "FamilyFallback")),
        ("  ipFamilyPolicy: PreferDualStack\n", v6, expect("6", "FamilyFallback")),
        // As stored by a single-stack cluster, and by a dual-stack cluster.
        (
            "  ipFamilyPolicy: PreferDualStack\n  ipFamilies: [IPv4]\n  clusterIP: 10.96.0.9\n",
            both,
            expect("4", ""),
        ),
        (
            "  ipFamilyPolicy: PreferDualStack\n  ipFamilies: [IPv4, IPv6]\n  clusterIP: 10.96.0.9\n  clusterIPs: [10.96.0.9, 'fd00:96::9']\n",
            both,
            expect("46", ""),
        ),
        ("  ipFamilyPolicy: RequireDualStack\n", both, expect("46", "")),
        ("  ipFamilyPolicy: RequireDualStack\n", v4, expect("", "AllocationFailed")),
        ("  ipFamilyPolicy: RequireDualStack\n", v6, expect("", "AllocationFailed")),
        ("  ipFamilies: [IPv6, IPv4]\n", v4, expect("", "AllocationFailed")),
    ] {
        assert_eq!(families(spec, pools), expected, "{spec:?} of {pools:?}");
    }
}

#[test]
fn without_node_ports_pod_targets_and_dsr_to_nodes_work() {
    assert_eq!(web_with("", &["addresses: [10.1.0.1]"]).backends(), ["10.1.0.1:8080 active"]);
    let to_nodes = |forwarding: &str| {
        let annotations = format!("tidegate.dev/target: node, tidegate.dev/forwarding: {forwarding}");
        Both::new(&(with_annotations(&web(""), &annotations) + &node_yaml("n7", &["10.0.1.9"], "")))
    };
    for forwarding in ["dsr-l2", "dsr-ipip"] {
        assert_eq!(to_nodes(forwarding).backends(), ["10.0.1.9:80 active"]);
    }
    for forwarding in ["nat", "fullnat"] {
        let outcome = to_nodes(forwarding).look();
        assert!(outcome.spec.services.is_empty());
        let (reason, what, accepted) = finding(&outcome);
        assert_eq!(reason, Reason::PortNotProgrammed);
        assert!(what.contains("needs a node port, but allocateLoadBalancerNodePorts is false"), "{what}");
        assert_eq!(accepted, "a nodePort, forwarding dsr-l2 or dsr-ipip, or tidegate.dev/target pod");
    }
}

/// `default/old` is deleted while it has 203.0.113.5 and this finalizer. `default/next` requests that address.
fn given_back(finalizer: &str) -> Both {
    let metadata = format!("name: old, deletionTimestamp: '2026-01-01T00:00:00Z', finalizers: [{finalizer}]");
    let status = "status: {loadBalancer: {ingress: [{ip: 203.0.113.5}]}}\n";
    Both::new(
        &(service_with(&metadata, status) + &service_with("name: next", "  loadBalancerIP: 203.0.113.5\n")),
    )
}

#[test]
fn an_address_stays_reserved_while_our_finalizer_is_on_its_service() {
    let mut both = given_back("tidegate.dev/cleanup");
    let outcome = both.step();
    assert!(outcome.spec.services.is_empty(), "a deleted Service is no longer served");
    assert_eq!(finding(&outcome).0, Reason::AllocationFailed);
    assert!(pending(&outcome, "next").is_some_and(|p| p.contains("belongs to Service default/old")));
    both.set(&service_with("name: next", "  loadBalancerIP: 203.0.113.5\n"));
    assert_eq!(owners(&both.step()), ["203.0.113.5 next"]);
    // The standard finalizer is not ours: any cloud controller removes it, whatever the class.
    let of_others = given_back("service.kubernetes.io/load-balancer-cleanup");
    assert_eq!(owners(&of_others.look()), ["203.0.113.5 next"]);
}

#[test]
fn an_address_is_reused_only_when_every_gateway_has_withdrawn_it() {
    let mut both = Both::new(&web("  loadBalancerIP: 203.0.113.5\n"));
    both.both(|world| {
        world.settings.authority = Authority::Decides { withheld: BTreeSet::from([ip("203.0.113.5")]) };
    });
    let outcome = both.step();
    assert!(outcome.spec.services.is_empty());
    let why = "another Service released it, and not every gateway has withdrawn it yet";
    assert!(pending(&outcome, "web").is_some_and(|p| p.contains(why)));
    assert_eq!(messages(&outcome), [] as [String; 0], "that is not a fault of the Service");
    // The address is also not chosen for a Service that accepts any address.
    both.set(&web(""));
    both.both(|world| world.settings.pools = vec![pool("public", &["203.0.113.4/31"])]);
    assert_eq!(keys(&both.look()), ["TCP 203.0.113.4:80"]);
    both.set(&web("  loadBalancerIP: 203.0.113.5\n"));
    both.both(|world| world.settings.authority = Authority::default());
    assert_eq!(keys(&both.step()), ["TCP 203.0.113.5:80"]);
}

/// A Service of another load balancer with this address in its status, as during a migration.
fn of_another_load_balancer(address: &str) -> String {
    let spec = format!(
        "  loadBalancerClass: example.com/lb\nstatus: {{loadBalancer: {{ingress: [{{ip: {address}}}]}}}}\n"
    );
    service_with("name: other", &spec)
}

#[test]
fn an_address_that_another_load_balancer_assigned_is_not_assigned() {
    let other = of_another_load_balancer("203.0.113.5");
    let mut both = Both::new(&(other.clone() + &web("  loadBalancerIP: 203.0.113.5\n")));
    both.both(|world| world.settings.pools = vec![pool("public", &["203.0.113.4/31"])]);
    let outcome = both.step();
    assert!(outcome.spec.services.is_empty());
    let (reason, what, _) = finding(&outcome);
    assert_eq!(reason, Reason::AllocationFailed);
    assert!(what.contains("Service default/other, which another load balancer serves"), "{what}");
    both.set(&(other.clone() + &web("")));
    assert_eq!(owners(&both.step()), ["203.0.113.4 web"], "nor chosen");
    both.set(&web("  loadBalancerIP: 203.0.113.5\n"));
    assert_eq!(owners(&both.step()), ["203.0.113.5 web"], "the other Service is gone");
    // The other load balancer assigns it again. The Service that has it here keeps it, and both are named.
    both.set(&(other + &web("  loadBalancerIP: 203.0.113.5\n")));
    let outcome = both.step();
    assert_eq!(owners(&outcome), ["203.0.113.5 web"]);
    let (reason, what, _) = finding(&outcome);
    assert_eq!(reason, Reason::Conflict);
    assert!(what.contains("default/other") && what.contains("default/web had the address first"), "{what}");
}

#[test]
fn no_pool_assigns_addresses_of_a_service_cidr() {
    let cidr = |cidrs: &str| {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {{name: kubernetes}}\nspec: {{cidrs: [{cidrs}]}}\n---\n"
        )
    };
    let mut both = Both::new(&web(""));
    both.both(|world| world.settings.pools = vec![pool("public", &["10.96.0.4/31"])]);
    let before = both.step();
    assert_eq!(before.spec.services.len(), 1);
    assert_eq!(messages(&before), [] as [String; 0]);
    // An assigned address stays.
    both.set(&(cidr("10.96.0.0/16") + &web("")));
    let outcome = both.step();
    assert_eq!(owners(&outcome), owners(&before));
    let (reason, what, _) = finding(&outcome);
    assert_eq!(reason, Reason::PoolsOverlap);
    assert!(what.starts_with("10.96.0.4-10.96.0.5 of pool public is in ServiceCIDR kubernetes: "), "{what}");
    // A new one is not assigned.
    both.set(&(cidr("10.96.0.0/16") + &service_with("name: next", "")));
    let outcome = both.step();
    assert!(
        pending(&outcome, "next").is_some_and(|why| why.contains("pool public")),
        "{:?}",
        messages(&outcome)
    );
    both.set(&(cidr("10.97.0.0/16, fd00:96::/112") + &service_with("name: next", "")));
    assert_eq!(both.step().spec.services.len(), 1);
}

#[test]
fn an_external_ip_in_the_status_of_its_own_service_is_not_one_of_another() {
    let spec = "  loadBalancerClass: example.com/lb\n  externalIPs: [203.0.113.5]\n\
                status: {loadBalancer: {ingress: [{ip: 203.0.113.5}]}}\n";
    let both = Both::new(&service_with("name: other", spec));
    let outcome = both.with(|world| world.settings.pools[0].external_ips = true).look();
    assert_eq!(owners(&outcome), ["203.0.113.5 other"]);
    assert_eq!(messages(&outcome), [] as [String; 0]);
}

#[test]
fn the_leader_decides_on_addresses_and_followers_serve_the_status() {
    let with_status = |name: &str| {
        service_with(&format!("name: {name}"), "status: {loadBalancer: {ingress: [{ip: 203.0.113.9}]}}\n")
    };
    let both = Both::new(&(with_status("had") + &service_with("name: new", "")))
        .with(|world| world.settings.authority = Authority::Follows);
    let outcome = both.look();
    assert_eq!(owners(&outcome), ["203.0.113.9 had"]);
    let waits = "Service default/new waits for the leader to assign an address";
    assert_eq!(pending(&outcome, "new"), Some(waits));
    assert_eq!(messages(&outcome), [] as [String; 0], "that is not a fault of the Service");
}

#[test]
fn the_label_excludes_a_node_and_readiness_flips_and_cordons_do_not() {
    let service = with_annotations(&web(""), "tidegate.dev/target: node, tidegate.dev/forwarding: dsr-l2");
    let nodes = |more: &str| node_yaml("a", &["10.0.1.1"], "") + &node_yaml("b", &["10.0.1.2"], more);
    let plain = Both::new(&(service.clone() + &nodes(""))).look();
    assert_eq!(states(only(&plain)), ["10.0.1.1:80 active", "10.0.1.2:80 active"]);
    for value in ["''", "'true'", "'false'"] {
        let label = format!(", labels: {{node.kubernetes.io/exclude-from-external-load-balancers: {value}}}");
        let both = Both::new(&(service.clone() + &nodes(&label)));
        assert_eq!(both.backends(), ["10.0.1.1:80 active"], "{value}");
    }
    let cordoned = nodes("").replace(
        "status: {",
        "spec: {unschedulable: true, taints: [{key: node.kubernetes.io/unschedulable, effect: NoSchedule}]}\n\
         status: {conditions: [{type: Ready, status: 'False'}], ",
    );
    assert_eq!(Both::new(&(service + &cordoned)).look().spec, plain.spec, "health checks decide");
}
