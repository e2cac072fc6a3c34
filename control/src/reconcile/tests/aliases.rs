//! Manifests written for other balancers (kubernetes.md, section 8): what they get, and what is said of them.

use super::*;
use tidegate_core::snapshot::ForwardingMode;

const AWS: &str = "service.beta.kubernetes.io/aws-load-balancer-";

fn compat(annotations: &[(&str, &str)], vendors: &[&str]) -> World {
    let web = annotations.iter().fold(service("web"), |web, (key, value)| annotated(web, key, value));
    let mut world = World::new(vec![web], vec![http("web", vec![endpoint("10.0.1.1")])]);
    world.settings.compat = vendors.iter().map(|v| (*v).to_owned()).collect();
    world
}

fn internal_pool() -> Pool {
    let mut internal = pool("internal", &["192.168.0.0/28"]);
    internal.labels.insert("scope".into(), "internal".into());
    internal.auto_assign = false;
    internal
}

#[test]
fn aliases_are_off_by_default_and_never_passed_over() {
    let metallb = [("metallb.io/loadBalancerIPs", "203.0.113.7")];
    let outcome = compat(&metallb, &[]).look();
    assert_eq!(
        messages(&outcome),
        ["warning: annotation metallb.io/loadBalancerIPs has no effect: metallb is not in services.compat; \
          accepted: services.compat with it, or annotations of tidegate.dev/"]
    );
    assert_eq!(outcome.findings[0].reason, Reason::AliasIgnored);
    let outcome = compat(&metallb, &["metallb"]).look();
    assert_eq!(outcome.services[0].vips[0].address, ip("203.0.113.7"));
    assert_eq!(messages(&outcome), [] as [String; 0]);
}

#[test]
fn addresses_of_metallb_cilium_and_kube_vip_are_requested_addresses() {
    for (vendor, annotation) in [
        ("metallb", "metallb.io/loadBalancerIPs"),
        ("metallb", "metallb.universe.tf/loadBalancerIPs"),
        ("cilium", "lbipam.cilium.io/ips"),
        ("kube-vip", "kube-vip.io/loadbalancerIPs"),
    ] {
        let outcome = compat(&[(annotation, "203.0.113.9")], &[vendor]).look();
        assert_eq!(outcome.services[0].vips[0].address, ip("203.0.113.9"), "{annotation}");
        let outcome = compat(&[(annotation, "203.0.113.900")], &[vendor]).look();
        assert!(outcome.services[0].vips.is_empty(), "another address than the one meant is worse than none");
        let message = &messages(&outcome)[0];
        assert!(message.contains(annotation) && message.contains("203.0.113.900"), "{message}");
    }
}

#[test]
fn an_annotation_of_ours_overrides_an_alias_and_two_aliases_that_differ_are_told() {
    let both = [("lbipam.cilium.io/ips", "203.0.113.4"), ("metallb.io/loadBalancerIPs", "203.0.113.5")];
    let outcome = compat(&both, &["cilium", "metallb"]).look();
    assert_eq!(outcome.services[0].vips[0].address, ip("203.0.113.4"));
    assert_eq!(
        messages(&outcome),
        ["warning: annotation metallb.io/loadBalancerIPs has no effect: it contradicts the annotation \
          lbipam.cilium.io/ips; accepted: one of the two"]
    );
    let ours = [both[0], ("tidegate.dev/load-balancer-ips", "203.0.113.6")];
    let outcome = compat(&ours, &["cilium"]).look();
    assert_eq!(outcome.services[0].vips[0].address, ip("203.0.113.6"));
}

#[test]
fn internal_chooses_a_pool_labelled_scope_internal_and_never_another() {
    for (vendor, annotation, value) in [
        ("gcp", "cloud.google.com/load-balancer-type", "Internal"),
        ("aws", "service.beta.kubernetes.io/aws-load-balancer-internal", "true"),
        ("azure", "service.beta.kubernetes.io/azure-load-balancer-internal", "true"),
        ("ibm", "service.kubernetes.io/ibm-load-balancer-cloud-provider-ip-type", "private"),
        ("openstack", "service.beta.kubernetes.io/openstack-internal-load-balancer", "true"),
        ("baidu", "service.beta.kubernetes.io/cce-load-balancer-internal-vpc", "true"),
        ("tke", "service.kubernetes.io/qcloud-loadbalancer-internal-subnetid", "subnet-1"),
        ("alibaba", "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-address-type", "intranet"),
    ] {
        let mut world = compat(&[(annotation, value)], &[vendor]);
        let outcome = world.look();
        assert!(outcome.services[0].vips.is_empty(), "a public address for an internal Service is unsafe");
        let pending = outcome.services[0].pending.as_deref().expect("it waits");
        assert!(pending.contains("a pool labelled scope: internal"), "{pending}");
        world.settings.pools.push(internal_pool());
        let outcome = world.look();
        assert_eq!(outcome.services[0].vips[0].pool, "internal", "{annotation}");
        assert_eq!(messages(&outcome), [] as [String; 0]);
    }
}

#[test]
fn an_internal_that_is_neither_yes_nor_no_gives_no_address_and_a_pool_by_name_wins() {
    let annotation = "service.beta.kubernetes.io/azure-load-balancer-internal";
    let mut world = compat(&[(annotation, "yes")], &["azure"]);
    world.settings.pools.push(internal_pool());
    let outcome = world.look();
    assert!(outcome.services[0].vips.is_empty());
    assert_eq!(
        messages(&outcome),
        [
            "error: annotation service.beta.kubernetes.io/azure-load-balancer-internal: \"yes\" is not understood, \
          no address is given; accepted: true, false"
        ]
    );
    let named = [(annotation, "true"), ("tidegate.dev/address-pool", "public")];
    assert_eq!(compat(&named, &["azure"]).look().services[0].vips[0].pool, "public", "the operator chose");
}

#[test]
fn health_checks_of_aws_have_the_defaults_of_aws() {
    let probe = |annotations: &[(&str, &str)]| {
        let keyed: Vec<_> = annotations.iter().map(|(k, v)| (format!("{AWS}healthcheck-{k}"), *v)).collect();
        let keyed: Vec<_> = keyed.iter().map(|(k, v)| (k.as_str(), *v)).collect();
        let outcome = compat(&keyed, &["aws"]).look();
        let probe = outcome.targets.first().expect("one target").probe.rules;
        let seconds = (probe.interval.as_secs(), probe.timeout.as_secs());
        (seconds, (probe.healthy_threshold, probe.unhealthy_threshold), outcome.findings.len())
    };
    assert_eq!(probe(&[("healthy-threshold", "3")]), ((10, 5), (3, 6), 0));
    assert_eq!(probe(&[("interval", "30"), ("timeout", "20")]), ((30, 20), (2, 6), 0));
    assert_eq!(probe(&[("interval", "5")]), ((5, 4), (2, 6), 0), "a check ends before the next begins");
    assert_eq!(probe(&[("timeout", "10")]), ((10, 5), (2, 6), 1));
    assert_eq!(probe(&[("unhealthy-threshold", "11")]), ((10, 5), (2, 6), 1));
}

#[test]
fn draining_and_idle_timeouts_of_aws_reach_the_spec() {
    let (enabled, timeout, idle) = (
        format!("{AWS}connection-draining-enabled"),
        format!("{AWS}connection-draining-timeout"),
        format!("{AWS}connection-idle-timeout"),
    );
    let mut world =
        compat(&[(enabled.as_str(), "true"), (timeout.as_str(), "60"), (idle.as_str(), "350")], &["aws"]);
    let outcome = world.step();
    assert_eq!(messages(&outcome), [] as [String; 0]);
    assert_eq!(only(&outcome).idle_timeout_tcp, Duration::from_secs(350));
    world.set_slices(vec![]);
    assert_eq!(world.step().reconcile_at, Some(world.now + Duration::from_secs(60)));
    let mut world = compat(&[(enabled.as_str(), "false")], &["aws"]);
    world.step();
    world.set_slices(vec![]);
    assert_eq!(world.step().reconcile_at, None, "no draining");
}

#[test]
fn what_an_alias_asks_for_and_is_not_granted_yet_refuses_the_ports_by_its_own_name() {
    for (vendor, annotation, value) in [
        ("aws", format!("{AWS}proxy-protocol"), "*"),
        ("aws", format!("{AWS}proxy-protocol"), "80"),
        ("tke", "service.kubernetes.io/qcloud-loadbalancer-internet-max-bandwidth-out".to_owned(), "100"),
        ("tke", "service.kubernetes.io/qcloud-loadbalancer-internet-max-bandwidth-out".to_owned(), "2001"),
        ("tke", "service.kubernetes.io/qcloud-loadbalancer-backends-label".to_owned(), "disk of ssd"),
    ] {
        let outcome = compat(&[(&annotation, value)], &[vendor]).look();
        assert!(outcome.spec.services.is_empty(), "{annotation}: {value}");
        let message = &messages(&outcome)[0];
        assert!(message.contains(&format!("{annotation}: {value:?}")), "{message}");
        assert!(message.contains("accepted: "), "{message}");
    }
}

#[test]
fn an_alias_that_is_known_and_not_supported_is_a_warning_event_that_names_it() {
    for (vendor, annotation) in [
        ("aws", format!("{AWS}eip-allocations")),
        ("aws", format!("{AWS}access-log-enabled")),
        ("tke", "service.kubernetes.io/qcloud-loadbalancer-health-check-times".to_owned()),
        ("azure", "service.beta.kubernetes.io/azure-load-balancer-resource-group".to_owned()),
        ("alibaba", "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-spec".to_owned()),
        ("cilium", "lbipam.cilium.io/sharing-cross-namespace".to_owned()),
        ("kube-vip", "kube-vip.io/egress".to_owned()),
    ] {
        for vendors in [&[vendor][..], &[]] {
            let outcome = compat(&[(&annotation, "x")], vendors).look();
            let finding = outcome.findings.first().expect("it is named");
            assert_eq!(finding.reason, Reason::AliasIgnored);
            assert!(
                finding.diagnostic.to_string().starts_with(&format!("warning: annotation {annotation} "))
            );
            assert_eq!(only(&outcome).mode, ForwardingMode::FullNat, "the Service goes on");
        }
    }
}
