//! Tests every alias of `docs/compat.md`: the meaning of its values, and the values that are refused.

use super::*;

const AWS: &str = "service.beta.kubernetes.io/aws-load-balancer-";

fn meaning(annotation: &str, value: &str, others: &[(&str, &str)]) -> AliasValue<'static> {
    let annotations: Labels = others.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let alias = known(annotation).unwrap_or_else(|| panic!("{annotation} is known"));
    match alias.read(value, &annotations) {
        AliasValue::Ours(ours, translated) => AliasValue::Ours(ours, translated.into_owned().into()),
        AliasValue::Nothing => AliasValue::Nothing,
        AliasValue::Internal => AliasValue::Internal,
        AliasValue::Ignored(why, accepted) => AliasValue::Ignored(why, accepted),
        AliasValue::Invalid(accepted) => AliasValue::Invalid(accepted),
        AliasValue::InvalidPort(accepted) => AliasValue::InvalidPort(accepted),
        AliasValue::InvalidAddress(accepted) => AliasValue::InvalidAddress(accepted),
        AliasValue::Refused(why, accepted) => AliasValue::Refused(why, accepted),
        AliasValue::ClientAddress | AliasValue::Several(_) => {
            unreachable!("the conformance tests have these")
        }
    }
}

fn ours(key: &'static str, value: &'static str) -> AliasValue<'static> {
    AliasValue::Ours(key, value.into())
}

#[test]
fn an_exact_key_is_found_before_the_prefix_that_contains_it() {
    assert_eq!(meaning(&format!("{AWS}internal"), "true", &[]), AliasValue::Internal);
    assert!(matches!(meaning(&format!("{AWS}eip-allocations"), "x", &[]), AliasValue::Ignored(..)));
    assert_eq!(meaning("lbipam.cilium.io/ips", "192.0.2.1", &[]), ours(key::LOAD_BALANCER_IPS, "192.0.2.1"));
    assert!(known("kubectl.kubernetes.io/last-applied-configuration").is_none());
    assert!(known("tidegate.dev/forwarding").is_none());
}

#[test]
fn the_vendors_of_aliases_are_those_that_compat_accepts() {
    let of_aliases: std::collections::BTreeSet<&str> = ALIASES.iter().map(|a| a.vendor).collect();
    assert_eq!(of_aliases, tidegate_model::config::VENDORS.into_iter().collect());
}

#[test]
fn all_eight_spellings_of_internal_differ_from_their_negation() {
    for (key, yes, no, nonsense) in [
        ("cloud.google.com/load-balancer-type", "Internal", "External", "Inside"),
        ("networking.gke.io/load-balancer-type", "Internal", "External", "Inside"),
        ("service.beta.kubernetes.io/aws-load-balancer-internal", "true", "false", "maybe"),
        ("service.beta.kubernetes.io/aws-load-balancer-internal", "0.0.0.0/0", "", "10.0.0.0/8"),
        ("service.beta.kubernetes.io/azure-load-balancer-internal", "true", "false", "yes"),
        ("service.kubernetes.io/ibm-load-balancer-cloud-provider-ip-type", "private", "public", "secret"),
        ("service.beta.kubernetes.io/openstack-internal-load-balancer", "true", "false", "1"),
        ("service.beta.kubernetes.io/cce-load-balancer-internal-vpc", "true", "false", "vpc"),
        (
            "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-address-type",
            "intranet",
            "internet",
            "extranet",
        ),
    ] {
        assert_eq!(meaning(key, yes, &[]), AliasValue::Internal, "{key}");
        assert_eq!(meaning(key, no, &[]), AliasValue::Nothing, "{key}");
        assert!(matches!(meaning(key, nonsense, &[]), AliasValue::InvalidAddress(_)), "{key}: {nonsense}");
    }
    let subnet = "service.kubernetes.io/qcloud-loadbalancer-internal-subnetid";
    assert_eq!(meaning(subnet, "subnet-1", &[]), AliasValue::Internal);
    assert_eq!(meaning(subnet, "", &[]), AliasValue::Nothing);
}

#[test]
fn numbers_of_aws_have_the_ranges_of_aws() {
    for (rest, to, first, last, unit) in [
        ("connection-idle-timeout", key::IDLE_TIMEOUT_TCP, 1, 4000, "s"),
        ("healthcheck-healthy-threshold", key::HEALTHY_THRESHOLD, 2, 10, ""),
        ("healthcheck-unhealthy-threshold", key::UNHEALTHY_THRESHOLD, 2, 10, ""),
        ("healthcheck-interval", key::HEALTH_INTERVAL, 5, 300, "s"),
        ("connection-draining-timeout", key::DRAIN_TIMEOUT, 1, 3600, "s"),
    ] {
        let annotation = format!("{AWS}{rest}");
        let enabled = format!("{AWS}connection-draining-enabled");
        let others = [(enabled.as_str(), "true")];
        for fine in [first, last] {
            let expected = AliasValue::Ours(to, format!("{fine}{unit}").into());
            assert_eq!(meaning(&annotation, &fine.to_string(), &others), expected, "{annotation}");
        }
        let low = (first - 1).to_string();
        for faulty in [low.as_str(), &(last + 1).to_string(), "", "5s", "+5", "many"] {
            let result = meaning(&annotation, faulty, &others);
            assert!(
                matches!(&result, AliasValue::Invalid(accepted) if accepted.contains(&format!("{first} to {last}"))),
                "{annotation}: {faulty}: {result:?}"
            );
        }
    }
}

#[test]
fn a_check_of_aws_ends_before_the_next_begins() {
    let (timeout, interval) = (format!("{AWS}healthcheck-timeout"), format!("{AWS}healthcheck-interval"));
    assert_eq!(meaning(&timeout, "9", &[]), ours(key::HEALTH_TIMEOUT, "9s"));
    assert!(
        matches!(meaning(&timeout, "10", &[]), AliasValue::Invalid(_)),
        "the interval is 10 where none is written"
    );
    assert_eq!(meaning(&timeout, "60", &[(&interval, "61")]), ours(key::HEALTH_TIMEOUT, "60s"));
    assert!(matches!(meaning(&timeout, "61", &[(&interval, "300")]), AliasValue::Invalid(_)));
    assert!(matches!(meaning(&timeout, "1", &[]), AliasValue::Invalid(_)));
}

#[test]
fn draining_counts_where_it_is_enabled() {
    let (enabled, timeout) =
        (format!("{AWS}connection-draining-enabled"), format!("{AWS}connection-draining-timeout"));
    assert_eq!(meaning(&enabled, "false", &[]), ours(key::DRAIN_TIMEOUT, "0s"));
    assert_eq!(meaning(&enabled, "true", &[]), AliasValue::Nothing);
    assert!(matches!(meaning(&enabled, "yes", &[]), AliasValue::Invalid(_)));
    for others in [&[][..], &[(enabled.as_str(), "false")]] {
        assert!(matches!(meaning(&timeout, "60", others), AliasValue::Ignored(..)));
    }
}

#[test]
fn aws_annotations_have_the_meaning_of_ours() {
    let aws = |rest: &str, value: &str| meaning(&format!("{AWS}{rest}"), value, &[]);
    assert_eq!(aws("proxy-protocol", "*"), ours(key::PROXY_PROTOCOL, "v1"));
    assert!(matches!(aws("proxy-protocol", "80"), AliasValue::InvalidPort(_)));
    let labels = "disk=ssd, zone=a";
    assert_eq!(aws("target-node-labels", labels), ours(key::BACKEND_NODE_SELECTOR, labels));
    assert!(matches!(aws("target-node-labels", "disk"), AliasValue::InvalidPort(_)));
    assert_eq!(aws("type", "nlb"), AliasValue::Nothing);
    assert_eq!(aws("type", "nlb-ip"), ours(key::TARGET, "pod"));
    assert!(matches!(aws("type", "clb"), AliasValue::Invalid(_)));
    assert_eq!(aws("nlb-target-type", "instance"), ours(key::TARGET, "node"));
    assert_eq!(aws("access-log-enabled", "true"), ours(key::FLOW_LOG, "true"));
    assert_eq!(aws("access-log-enabled", "false"), ours(key::FLOW_LOG, "false"));
    for log in ["access-log-emit-interval", "access-log-s3-bucket-name"] {
        assert!(matches!(aws(log, "true"), AliasValue::Ignored(..)), "{log}");
    }
    assert_eq!(aws("cross-zone-load-balancing-enabled", "true"), AliasValue::Nothing);
    assert!(matches!(aws("cross-zone-load-balancing-enabled", "false"), AliasValue::Ignored(..)));
    assert_eq!(aws("healthcheck-protocol", "HTTP"), ours(key::HEALTH_PROTOCOL, "http"));
    assert_eq!(aws("healthcheck-port", "traffic-port"), AliasValue::Nothing);
}

#[test]
fn tke_annotations_have_the_meaning_of_ours() {
    let tke = |rest: &str, value: &str| meaning(&format!("service.kubernetes.io/{rest}"), value, &[]);
    let selector = "disk in (ssd, nvme)";
    assert_eq!(
        tke("qcloud-loadbalancer-backends-label", selector),
        ours(key::BACKEND_NODE_SELECTOR, selector)
    );
    assert_eq!(tke("local-svc-only-bind-node-with-pod", "true"), AliasValue::Nothing);
    assert!(matches!(tke("local-svc-only-bind-node-with-pod", "false"), AliasValue::Ignored(..)));
    assert!(matches!(tke("local-svc-only-bind-node-with-pod", "1"), AliasValue::Invalid(_)));
    assert_eq!(
        tke("qcloud-loadbalancer-internet-max-bandwidth-out", "2000"),
        ours(key::MAX_BANDWIDTH, "2000M")
    );
    for faulty in ["0", "2001", "10M"] {
        let result = tke("qcloud-loadbalancer-internet-max-bandwidth-out", faulty);
        assert!(matches!(result, AliasValue::InvalidPort(_)), "{faulty}");
    }
}

#[test]
fn addresses_pools_and_sharing_keys_of_the_other_three_pass_as_they_are() {
    for (annotation, to) in [
        ("metallb.io/loadBalancerIPs", key::LOAD_BALANCER_IPS),
        ("metallb.universe.tf/loadBalancerIPs", key::LOAD_BALANCER_IPS),
        ("metallb.io/address-pool", key::ADDRESS_POOL),
        ("metallb.io/allow-shared-ip", key::ALLOW_SHARED_IP),
        ("lbipam.cilium.io/ips", key::LOAD_BALANCER_IPS),
        ("lbipam.cilium.io/sharing-key", key::ALLOW_SHARED_IP),
        ("kube-vip.io/loadbalancerIPs", key::LOAD_BALANCER_IPS),
    ] {
        assert_eq!(meaning(annotation, "value", &[]), ours(to, "value"), "{annotation}");
    }
    for annotation in [
        "metallb.io/ip-allocated-from-pool",
        "lbipam.cilium.io/sharing-cross-namespace",
        "kube-vip.io/egress",
    ] {
        assert!(matches!(meaning(annotation, "x", &[]), AliasValue::Ignored(..)), "{annotation}");
    }
}
