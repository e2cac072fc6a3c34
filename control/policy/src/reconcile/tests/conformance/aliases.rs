//! Section 8, the aliases: manifests written for other load balancers work unchanged if their vendor is in
//! `services.compat`. One table has the meaning of every key, another the values that are refused.

use tidegate_spec::ForwardingMode;

use super::*;
use crate::reconcile::aliases::ALIASES;
use crate::reconcile::annotations::key;

const AWS: &str = "service.beta.kubernetes.io/aws-load-balancer-";

/// `default/web` with these annotations and an endpoint on node `n1`, which is labelled `disk: ssd`. There is another
/// node, and the pools `edge`, `internal` and `public`.
pub(super) fn compat(annotations: &[(&str, &str)], vendors: &[&str]) -> Both {
    let service = annotated_web(annotations)
        .replace("allocateLoadBalancerNodePorts: false", "externalTrafficPolicy: Cluster")
        .replace("targetPort: 8080}", "targetPort: 8080, nodePort: 30080}")
        .replace("addresses: [10.0.1.1]", "addresses: [10.0.1.1], nodeName: n1");
    let nodes = node_yaml("n1", &["10.0.2.1"], ", labels: {disk: ssd}") + &node_yaml("n2", &["10.0.2.2"], "");
    Both::new(&(service + &nodes)).with(|world| {
        let mut internal = pool("internal", &["192.168.0.0/28"]);
        internal.labels.insert("scope".into(), "internal".into());
        internal.auto_assign = false;
        world.settings.pools.push(internal);
        world.settings.services.compat = vendors.iter().map(|v| (*v).to_owned()).collect();
    })
}

/// The meaning of a value of an alias.
enum Means {
    /// Equivalent to these annotations of ours.
    Ours(&'static [(&'static str, &'static str)]),
    /// The gateway's default behaviour.
    Nothing,
    /// An address of a pool labelled `scope: internal`.
    Internal,
    /// A warning that names it: the alias is known but not supported.
    Warning,
    /// No port is programmed: without the alias, the Service would be open to others, or its backends confused.
    Refused,
}

use Means::{Internal, Nothing, Ours, Refused, Warning};

/// (vendor, key, value, what it means)
const MEANINGS: &[(&str, &str, &str, Means)] = &[
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-proxy-protocol",
        "*",
        Ours(&[(key::PROXY_PROTOCOL, "v1")]),
    ),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-connection-draining-enabled", "true", Nothing),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-connection-draining-enabled",
        "false",
        Ours(&[(key::DRAIN_TIMEOUT, "0s")]),
    ),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-connection-draining-timeout", "60", Warning),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-connection-idle-timeout",
        "350",
        Ours(&[(key::IDLE_TIMEOUT_TCP, "350s")]),
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-healthcheck-protocol",
        "HTTP",
        Ours(&[(key::HEALTH_PROTOCOL, "http")]),
    ),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-healthcheck-port", "traffic-port", Nothing),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-healthcheck-port",
        "9000",
        Ours(&[(key::HEALTH_PORT, "9000")]),
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-target-node-labels",
        "disk=ssd",
        Ours(&[(key::BACKEND_NODE_SELECTOR, "disk=ssd")]),
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type",
        "instance",
        Ours(&[(key::TARGET, "node")]),
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type",
        "ip",
        Ours(&[(key::TARGET, "pod")]),
    ),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-internal", "true", Internal),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-internal", "0.0.0.0/0", Internal),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-internal", "false", Nothing),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-scheme", "internal", Internal),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-scheme", "internet-facing", Nothing),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes",
        "preserve_client_ip.enabled=false, proxy_protocol_v2.enabled=true",
        Ours(&[(key::PROXY_PROTOCOL, "v2")]),
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes",
        "stickiness.enabled=true,stickiness.type=source_ip",
        Ours(&[(key::HASH, "client")]),
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes",
        "deregistration_delay.timeout_seconds=7",
        Ours(&[(key::DRAIN_TIMEOUT, "7s")]),
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes",
        "proxy_protocol_v2.enabled=false",
        Nothing,
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes",
        "target_health_state.unhealthy.connection_termination.enabled=false",
        Warning,
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes",
        "preserve_client_ip.enabled=true",
        Refused,
    ),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-proxy-protocol-per-target-group", "80", Refused),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-ssl-cert", "arn:aws:acm:1", Refused),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-ssl-cert", "", Nothing),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-backend-protocol", "tcp", Nothing),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-backend-protocol", "ssl", Refused),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-security-groups", "sg-1", Refused),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-security-group-prefix-lists", "pl-1", Refused),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-type", "nlb", Nothing),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-type", "external", Nothing),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-type", "nlb-ip", Ours(&[(key::TARGET, "pod")])),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-access-log-enabled", "true", Warning),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-access-log-emit-interval", "5", Warning),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-access-log-s3-bucket-name", "logs", Warning),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-cross-zone-load-balancing-enabled",
        "true",
        Nothing,
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-cross-zone-load-balancing-enabled",
        "false",
        Warning,
    ),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-eip-allocations", "eipalloc-1", Warning),
    (
        "tke",
        "service.kubernetes.io/qcloud-loadbalancer-backends-label",
        "disk in (ssd, nvme)",
        Ours(&[(key::BACKEND_NODE_SELECTOR, "disk in (ssd, nvme)")]),
    ),
    ("tke", "service.kubernetes.io/local-svc-only-bind-node-with-pod", "true", Nothing),
    ("tke", "service.kubernetes.io/local-svc-only-bind-node-with-pod", "false", Warning),
    (
        "tke",
        "service.kubernetes.io/qcloud-loadbalancer-internet-max-bandwidth-out",
        "1",
        Ours(&[(key::MAX_BANDWIDTH, "1M")]),
    ),
    (
        "tke",
        "service.kubernetes.io/qcloud-loadbalancer-internet-max-bandwidth-out",
        "2000",
        Ours(&[(key::MAX_BANDWIDTH, "2000M")]),
    ),
    ("tke", "service.kubernetes.io/qcloud-loadbalancer-internal-subnetid", "subnet-1", Internal),
    ("tke", "service.kubernetes.io/qcloud-loadbalancer-internal-subnetid", "", Nothing),
    ("tke", "service.kubernetes.io/qcloud-loadbalancer-health-check-times", "3", Warning),
    ("gcp", "cloud.google.com/load-balancer-type", "Internal", Internal),
    ("gcp", "cloud.google.com/load-balancer-type", "External", Nothing),
    ("gcp", "networking.gke.io/load-balancer-type", "Internal", Internal),
    ("gcp", "networking.gke.io/load-balancer-ip-addresses", "a", Warning),
    ("azure", "service.beta.kubernetes.io/azure-load-balancer-internal", "true", Internal),
    ("azure", "service.beta.kubernetes.io/azure-load-balancer-internal", "false", Nothing),
    ("azure", "service.beta.kubernetes.io/azure-load-balancer-resource-group", "a", Warning),
    ("azure", "service.beta.kubernetes.io/azure-allowed-ip-ranges", "10.0.0.0/8", Refused),
    ("azure", "service.beta.kubernetes.io/azure-allowed-service-tags", "AzureCloud", Refused),
    (
        "ibm",
        "service.kubernetes.io/ibm-load-balancer-cloud-provider-enable-features",
        "proxy-protocol",
        Refused,
    ),
    ("ibm", "service.kubernetes.io/ibm-load-balancer-cloud-provider-enable-features", "nlb", Warning),
    ("ibm", "service.kubernetes.io/ibm-load-balancer-cloud-provider-ip-type", "private", Internal),
    ("ibm", "service.kubernetes.io/ibm-load-balancer-cloud-provider-ip-type", "public", Nothing),
    ("ibm", "service.kubernetes.io/ibm-load-balancer-cloud-provider-zone", "a", Warning),
    ("openstack", "service.beta.kubernetes.io/openstack-internal-load-balancer", "true", Internal),
    ("openstack", "service.beta.kubernetes.io/openstack-internal-load-balancer", "false", Nothing),
    ("openstack", "loadbalancer.openstack.org/flavor-id", "a", Warning),
    ("openstack", "loadbalancer.openstack.org/proxy-protocol", "v2", Ours(&[(key::PROXY_PROTOCOL, "v2")])),
    ("openstack", "loadbalancer.openstack.org/proxy-protocol", "true", Ours(&[(key::PROXY_PROTOCOL, "v1")])),
    ("openstack", "loadbalancer.openstack.org/proxy-protocol", "false", Nothing),
    ("openstack", "loadbalancer.openstack.org/x-forwarded-for", "true", Refused),
    ("openstack", "loadbalancer.openstack.org/x-forwarded-for", "false", Nothing),
    ("openstack", "loadbalancer.openstack.org/default-tls-container-ref", "https://barbican/1", Refused),
    ("baidu", "service.beta.kubernetes.io/cce-load-balancer-internal-vpc", "true", Internal),
    ("baidu", "service.beta.kubernetes.io/cce-load-balancer-internal-vpc", "false", Nothing),
    ("baidu", "service.beta.kubernetes.io/cce-load-balancer-id", "a", Warning),
    ("alibaba", "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-address-type", "intranet", Internal),
    ("alibaba", "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-address-type", "internet", Nothing),
    ("alibaba", "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-spec", "slb.s1.small", Warning),
    (
        "alibaba",
        "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-proxy-protocol",
        "on",
        Ours(&[(key::PROXY_PROTOCOL, "v2")]),
    ),
    ("alibaba", "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-proxy-protocol", "off", Nothing),
    ("alibaba", "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-acl-status", "on", Refused),
    ("alibaba", "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-acl-status", "off", Nothing),
    ("alibaba", "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-cert-id", "1", Refused),
    ("alibaba", "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-protocol-port", "tcp:80", Nothing),
    (
        "alibaba",
        "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-protocol-port",
        "https:443,tcp:80",
        Refused,
    ),
    (
        "metallb",
        "metallb.io/loadBalancerIPs",
        "203.0.113.9",
        Ours(&[(key::LOAD_BALANCER_IPS, "203.0.113.9")]),
    ),
    ("metallb", "metallb.io/address-pool", "edge", Ours(&[(key::ADDRESS_POOL, "edge")])),
    ("metallb", "metallb.io/allow-shared-ip", "k", Ours(&[(key::ALLOW_SHARED_IP, "k")])),
    ("metallb", "metallb.io/ip-allocated-from-pool", "edge", Warning),
    (
        "metallb",
        "metallb.universe.tf/loadBalancerIPs",
        "203.0.113.9",
        Ours(&[(key::LOAD_BALANCER_IPS, "203.0.113.9")]),
    ),
    ("metallb", "metallb.universe.tf/address-pool", "edge", Ours(&[(key::ADDRESS_POOL, "edge")])),
    ("metallb", "metallb.universe.tf/allow-shared-ip", "k", Ours(&[(key::ALLOW_SHARED_IP, "k")])),
    ("metallb", "metallb.universe.tf/ip-allocated-from-pool", "edge", Warning),
    ("cilium", "lbipam.cilium.io/ips", "203.0.113.9", Ours(&[(key::LOAD_BALANCER_IPS, "203.0.113.9")])),
    ("cilium", "lbipam.cilium.io/sharing-key", "k", Ours(&[(key::ALLOW_SHARED_IP, "k")])),
    ("cilium", "lbipam.cilium.io/sharing-cross-namespace", "*", Warning),
    ("cilium", "lbipam.cilium.io/sharing-mode", "x", Warning),
    ("cilium", "io.cilium/lb-ipam-sharing-mode", "x", Warning),
    ("cilium", "io.cilium/lb-ipam-ips", "203.0.113.9", Ours(&[(key::LOAD_BALANCER_IPS, "203.0.113.9")])),
    ("cilium", "io.cilium/lb-ipam-sharing-key", "k", Ours(&[(key::ALLOW_SHARED_IP, "k")])),
    ("cilium", "io.cilium/lb-ipam-sharing-cross-namespace", "*", Warning),
    ("cilium", "service.cilium.io/src-ranges-policy", "allow", Nothing),
    ("cilium", "service.cilium.io/src-ranges-policy", "deny", Refused),
    ("cilium", "service.cilium.io/global", "true", Warning),
    (
        "kube-vip",
        "kube-vip.io/loadbalancerIPs",
        "203.0.113.9",
        Ours(&[(key::LOAD_BALANCER_IPS, "203.0.113.9")]),
    ),
    ("kube-vip", "kube-vip.io/egress", "true", Warning),
];

/// The findings with our key and value in place of the alias.
fn said_of(outcome: &Outcome, annotation: &str, value: &str) -> Vec<String> {
    let stand_in = |text: String| text.replace(annotation, "KEY").replace(&format!("{value:?}"), "VALUE");
    messages(outcome)
        .into_iter()
        .map(|text| stand_in(text.split_once("error: ").map_or(text.clone(), |(_, t)| t.to_owned())))
        .collect()
}

#[test]
fn manifests_written_for_other_balancers_work_unchanged() {
    let plain = compat(&[], &[]).look();
    for (vendor, annotation, value, means) in MEANINGS {
        let outcome = compat(&[(annotation, value)], &[vendor]).look();
        match means {
            Ours(ours) => {
                let expected = compat(ours, &[]).look();
                assert_eq!(
                    (&outcome.spec, &outcome.targets),
                    (&expected.spec, &expected.targets),
                    "{annotation}"
                );
                assert_eq!(outcome.services[0].vips, expected.services[0].vips, "{annotation}");
                // A request that is not granted yet is reported under the name that its author wrote.
                let [(key, ours)] = ours else { continue };
                assert_eq!(
                    said_of(&outcome, annotation, value),
                    said_of(&expected, key, ours),
                    "{annotation}"
                );
            }
            Nothing => {
                assert_eq!((&outcome.spec, &outcome.targets), (&plain.spec, &plain.targets), "{annotation}");
                assert_eq!(messages(&outcome), [] as [String; 0], "{annotation}: {value}");
            }
            Internal => {
                assert_eq!(outcome.services[0].vips[0].pool, "internal", "{annotation}");
                assert_eq!(messages(&outcome), [] as [String; 0], "{annotation}: {value}");
            }
            Warning => {
                assert_eq!((&outcome.spec, &outcome.targets), (&plain.spec, &plain.targets), "{annotation}");
                let (reason, what, accepted) = finding(&outcome);
                assert_eq!(reason, Reason::AliasIgnored);
                assert!(what.starts_with(&format!("annotation {annotation} has no effect: ")), "{what}");
                assert!(!accepted.is_empty(), "{what}");
            }
            Refused => {
                assert!(outcome.spec.services.is_empty(), "{annotation}");
                let (reason, what, accepted) = finding(&outcome);
                assert_eq!(reason, Reason::NotSupported);
                assert!(what.starts_with(&format!("annotation {annotation} is not supported: ")), "{what}");
                assert!(what.ends_with("; no port is programmed") && !accepted.is_empty(), "{what}");
            }
        }
    }
}

#[test]
fn an_alias_for_client_addresses_is_honoured_or_no_port_is_programmed() {
    let keeps = (
        "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes",
        "preserve_client_ip.enabled=true",
    );
    let in_header = (keeps.0, "preserve_client_ip.enabled=true,proxy_protocol_v2.enabled=true");
    let mode = |outcome: &Outcome| outcome.spec.services.first().map(|service| service.mode);
    assert_eq!(mode(&compat(&[keeps], &["aws"]).look()), None, "the default is fullnat");
    let local = compat(&[keeps], &["aws"])
        .with(|world| world.settings.services.defaults.forwarding_local = Some(ForwardingMode::Nat));
    assert_eq!(mode(&local.look()), Some(ForwardingMode::Nat));
    assert_eq!(mode(&compat(&[in_header], &["aws"]).look()), Some(ForwardingMode::FullNat), "in the header");
    for message in ["nat", "dsr-ipip", "fullnat"] {
        let outcome = compat(&[keeps, (key::FORWARDING, message)], &["aws"]).look();
        assert!(outcome.findings.iter().all(|f| f.reason != Reason::NotSupported), "{message} overrides it");
    }
}

#[test]
fn a_known_but_unsupported_alias_is_a_warning_event_that_names_it() {
    for (vendor, annotation, value, _) in MEANINGS.iter().filter(|m| matches!(m.3, Warning)) {
        // There is always a finding, with or without the vendor.
        for vendors in [&[*vendor][..], &[]] {
            let outcome = compat(&[(annotation, value)], vendors).look();
            assert_eq!(outcome.findings[0].reason.as_str(), "AliasIgnored");
            assert_eq!(outcome.findings[0].diagnostic.severity, Severity::Warning);
            assert!(finding(&outcome).1.contains(annotation));
        }
    }
}

#[test]
fn aliases_are_off_by_default() {
    let plain = compat(&[], &[]).look();
    for (vendor, annotation, value, means) in MEANINGS {
        let outcome = compat(&[(annotation, value)], &[]).look();
        assert_eq!((&outcome.spec, &outcome.targets), (&plain.spec, &plain.targets), "{annotation}");
        if matches!(means, Ours(_) | Internal | Refused) {
            let what = format!("annotation {annotation} has no effect: {vendor} is not in services.compat");
            let accepted = format!("{vendor} in services.compat, or tidegate.dev/ annotations");
            assert_eq!(finding(&outcome), (Reason::AliasIgnored, what.as_str(), accepted.as_str()));
        }
    }
}

/// The effect of an invalid value.
#[derive(Clone, Copy, PartialEq)]
enum Serves {
    /// As without the annotation.
    Default,
    /// No port.
    NoPort,
    /// No address.
    NoAddress,
}

/// (vendor, key, value, what is served, what would be accepted)
const NOT_UNDERSTOOD: &[(&str, &str, &str, Serves, &str)] = &[
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-proxy-protocol", "80", Serves::NoPort, "\"*\""),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-connection-draining-enabled",
        "yes",
        Serves::Default,
        "true, false",
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-connection-idle-timeout",
        "0",
        Serves::Default,
        "1 to 4000",
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-connection-idle-timeout",
        "4001",
        Serves::Default,
        "1 to 4000",
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-healthcheck-protocol",
        "smtp",
        Serves::Default,
        "tcp, http",
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-healthcheck-port",
        "0",
        Serves::Default,
        "1 to 65535",
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-healthcheck-path",
        "ping",
        Serves::Default,
        "such as /healthz",
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-target-node-labels",
        "disk",
        Serves::NoPort,
        "labels of nodes",
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type",
        "pod",
        Serves::Default,
        "ip, instance",
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-internal",
        "maybe",
        Serves::NoAddress,
        "true, false",
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-type",
        "clb",
        Serves::Default,
        "nlb, nlb-ip, external",
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-cross-zone-load-balancing-enabled",
        "1",
        Serves::Default,
        "true, false",
    ),
    (
        "tke",
        "service.kubernetes.io/qcloud-loadbalancer-backends-label",
        "disk of ssd",
        Serves::NoPort,
        "a label selector such as",
    ),
    ("tke", "service.kubernetes.io/local-svc-only-bind-node-with-pod", "1", Serves::Default, "true, false"),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-scheme",
        "private",
        Serves::NoAddress,
        "internal, internet-facing",
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes",
        "proxy_protocol_v2.enabled",
        Serves::NoPort,
        "proxy_protocol_v2.enabled=true",
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes",
        "preserve_client_ip.enabled=yes",
        Serves::NoPort,
        "true or false",
    ),
    (
        "aws",
        "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes",
        "stickiness.enabled=true,stickiness.type=lb_cookie",
        Serves::NoPort,
        "source_ip",
    ),
    ("aws", "service.beta.kubernetes.io/aws-load-balancer-backend-protocol", "smtp", Serves::NoPort, "tcp"),
    ("openstack", "loadbalancer.openstack.org/proxy-protocol", "v3", Serves::NoPort, "true, v1, v2, false"),
    ("openstack", "loadbalancer.openstack.org/x-forwarded-for", "1", Serves::NoPort, "false"),
    (
        "alibaba",
        "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-proxy-protocol",
        "true",
        Serves::NoPort,
        "on, off",
    ),
    (
        "alibaba",
        "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-acl-status",
        "true",
        Serves::NoPort,
        "off",
    ),
    (
        "alibaba",
        "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-protocol-port",
        "smtp:25",
        Serves::NoPort,
        "protocols and ports",
    ),
    ("cilium", "service.cilium.io/src-ranges-policy", "none", Serves::NoPort, "allow"),
    (
        "tke",
        "service.kubernetes.io/qcloud-loadbalancer-internet-max-bandwidth-out",
        "0",
        Serves::NoPort,
        "a whole number of Mbit/s, 1 to 2000",
    ),
    (
        "tke",
        "service.kubernetes.io/qcloud-loadbalancer-internet-max-bandwidth-out",
        "2001",
        Serves::NoPort,
        "a whole number of Mbit/s, 1 to 2000",
    ),
    ("gcp", "cloud.google.com/load-balancer-type", "Inside", Serves::NoAddress, "Internal, External"),
    ("gcp", "networking.gke.io/load-balancer-type", "Inside", Serves::NoAddress, "Internal, External"),
    (
        "azure",
        "service.beta.kubernetes.io/azure-load-balancer-internal",
        "yes",
        Serves::NoAddress,
        "true, false",
    ),
    (
        "ibm",
        "service.kubernetes.io/ibm-load-balancer-cloud-provider-ip-type",
        "secret",
        Serves::NoAddress,
        "private, public",
    ),
    (
        "openstack",
        "service.beta.kubernetes.io/openstack-internal-load-balancer",
        "1",
        Serves::NoAddress,
        "true, false",
    ),
    (
        "baidu",
        "service.beta.kubernetes.io/cce-load-balancer-internal-vpc",
        "vpc",
        Serves::NoAddress,
        "true, false",
    ),
    (
        "alibaba",
        "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-address-type",
        "extranet",
        Serves::NoAddress,
        "intranet, internet",
    ),
    (
        "metallb",
        "metallb.io/loadBalancerIPs",
        "203.0.113.900",
        Serves::NoAddress,
        "one IPv4 address, one IPv6 address",
    ),
    ("metallb", "metallb.io/address-pool", "", Serves::Default, "the name of a pool"),
    (
        "metallb",
        "metallb.io/allow-shared-ip",
        "",
        Serves::Default,
        "any text that is the same on all Services",
    ),
    (
        "metallb",
        "metallb.universe.tf/loadBalancerIPs",
        "a",
        Serves::NoAddress,
        "one IPv4 address, one IPv6 address",
    ),
    ("metallb", "metallb.universe.tf/address-pool", "", Serves::Default, "the name of a pool"),
    (
        "metallb",
        "metallb.universe.tf/allow-shared-ip",
        "",
        Serves::Default,
        "any text that is the same on all Services",
    ),
    ("cilium", "lbipam.cilium.io/ips", "a", Serves::NoAddress, "one IPv4 address, one IPv6 address"),
    (
        "cilium",
        "lbipam.cilium.io/sharing-key",
        "",
        Serves::Default,
        "any text that is the same on all Services",
    ),
    ("cilium", "io.cilium/lb-ipam-ips", "a", Serves::NoAddress, "one IPv4 address, one IPv6 address"),
    (
        "cilium",
        "io.cilium/lb-ipam-sharing-key",
        "",
        Serves::Default,
        "any text that is the same on all Services",
    ),
    ("kube-vip", "kube-vip.io/loadbalancerIPs", "a", Serves::NoAddress, "one IPv4 address, one IPv6 address"),
];

#[test]
fn an_invalid_alias_value_is_named_and_has_no_unsafe_effect() {
    let plain = compat(&[], &[]).look();
    for (vendor, annotation, value, serves, accepted) in NOT_UNDERSTOOD {
        let outcome = compat(&[(annotation, value)], &[vendor]).look();
        let (reason, what, message) = finding(&outcome);
        assert_eq!(reason, Reason::InvalidValue, "{annotation}");
        assert!(what.contains(&format!("{annotation}: {value:?} is invalid")), "{what}");
        assert!(message.contains(accepted), "{annotation}: {message}");
        let view = &outcome.services[0];
        match serves {
            Serves::Default => {
                assert_eq!((&outcome.spec, &outcome.targets), (&plain.spec, &plain.targets), "{annotation}");
            }
            Serves::NoPort => {
                assert!(outcome.spec.services.is_empty() && !view.vips.is_empty(), "{annotation}");
            }
            Serves::NoAddress => assert!(view.vips.is_empty() && view.pending.is_some(), "{annotation}"),
        }
    }
}

#[test]
fn aws_network_load_balancers_send_proxy_v2_and_classic_ones_v1() {
    let alias = ("service.beta.kubernetes.io/aws-load-balancer-proxy-protocol", "*");
    let kind = |value| ("service.beta.kubernetes.io/aws-load-balancer-type", value);
    let look = |annotations: &[(&str, &str)]| {
        let world = Both::new(&annotated_web(annotations));
        world.with(|world| world.settings.services.compat = ["aws".to_owned()].into()).look().spec
    };
    let [v1, v2] = ["v1", "v2"].map(|version| look(&[(key::PROXY_PROTOCOL, version)]));
    assert_ne!(v1, v2);
    for value in ["nlb", "nlb-ip", "external"] {
        assert_eq!(look(&[alias, kind(value)]), v2, "{value}");
    }
    assert_eq!((look(&[alias]), look(&[alias, kind("clb")])), (v1.clone(), v1));
}

#[test]
fn a_port_that_cannot_have_an_aliased_header_names_another_annotation() {
    let alias = ("service.beta.kubernetes.io/aws-load-balancer-proxy-protocol", "*");
    for (protocol, version, accepted) in [
        ("UDP", "v2", "tidegate.dev/proxy-protocol: v2, or a Service without UDP ports"),
        ("SCTP", "none", "tidegate.dev/proxy-protocol: none, or a Service without SCTP ports"),
    ] {
        let look = |annotations: &[(&str, &str)]| {
            let yaml = annotated_web(annotations)
                .replace("port: 80,", &format!("port: 80, protocol: {protocol},"))
                .replace("protocol: TCP", &format!("protocol: {protocol}"));
            Both::new(&yaml).with(|world| world.settings.services.compat = ["aws".to_owned()].into()).look()
        };
        let refused = look(&[alias]);
        assert_eq!((refused.spec.services.len(), finding(&refused).2), (0, accepted));
        let followed = look(&[alias, (key::PROXY_PROTOCOL, version)]);
        assert_eq!(followed.spec.services.len(), 1, "{protocol}");
    }
}

#[test]
fn every_alias_has_its_meaning_and_its_error_path() {
    let with_meaning: BTreeSet<&str> = MEANINGS.iter().map(|m| m.1).collect();
    let with_error: BTreeSet<&str> = NOT_UNDERSTOOD.iter().map(|m| m.1).collect();
    for alias in ALIASES {
        // The file `aws` tests the health checks of AWS. A subnet key accepts any text.
        let elsewhere =
            alias.key.starts_with(&format!("{AWS}healthcheck-")) || alias.key.ends_with("draining-timeout");
        if alias.key.ends_with(['-', '.', '/']) {
            assert!(with_meaning.iter().any(|m| m.starts_with(alias.key)), "{}", alias.key);
        } else if !elsewhere {
            assert!(with_meaning.contains(alias.key), "{}", alias.key);
            let is_free =
                |m: &&(&str, &str, &str, Means)| m.1 == alias.key && matches!(m.3, Refused | Warning);
            let takes_any = alias.key.ends_with("-subnetid") || MEANINGS.iter().any(|m| is_free(&m));
            assert!(with_error.contains(alias.key) || takes_any, "{}", alias.key);
        }
    }
}

#[test]
fn internal_chooses_a_pool_labelled_scope_internal_and_never_another() {
    for (vendor, annotation, value, _) in MEANINGS.iter().filter(|m| matches!(m.3, Internal)) {
        let both = compat(&[(annotation, value)], &[vendor])
            .with(|world| world.settings.pools.retain(|pool| pool.name != "internal"));
        let outcome = both.look();
        assert!(outcome.services[0].vips.is_empty(), "a public address for an internal Service is unsafe");
        let what = "Service default/web requests a pool labelled scope: internal, but no pool has this label";
        let accepted = "tidegate.dev/address-pool with the name of a pool, or a pool with this label";
        assert_eq!(finding(&outcome), (Reason::AllocationFailed, what, accepted));
        let named = [(*annotation, *value), (key::ADDRESS_POOL, "public")];
        let outcome = compat(&named, &[vendor]).look();
        assert_eq!(outcome.services[0].vips[0].pool, "public", "a pool by name wins: the operator chose");
    }
}

#[test]
fn our_annotations_override_aliases_and_conflicting_aliases_are_reported() {
    let two = [("lbipam.cilium.io/ips", "203.0.113.4"), ("metallb.io/loadBalancerIPs", "203.0.113.5")];
    let outcome = compat(&two, &["cilium", "metallb"]).look();
    assert_eq!(owners(&outcome), ["203.0.113.4 web"]);
    let what =
        "annotation metallb.io/loadBalancerIPs has no effect: it contradicts annotation lbipam.cilium.io/ips";
    assert_eq!(finding(&outcome), (Reason::AliasIgnored, what, "only one of the two annotations"));
    let same = [two[0], ("metallb.io/loadBalancerIPs", "203.0.113.4")];
    assert_eq!(messages(&compat(&same, &["cilium", "metallb"]).look()), [] as [String; 0]);
    let ours = [two[0], (key::LOAD_BALANCER_IPS, "203.0.113.6")];
    assert_eq!(owners(&compat(&ours, &["cilium"]).look()), ["203.0.113.6 web"]);
}

#[test]
fn sharing_keys_of_other_load_balancers_put_services_on_one_address() {
    let other = service_with("name: other, annotations: {lbipam.cilium.io/sharing-key: k}", "")
        .replace("port: 80,", "port: 81,");
    let both = Both::new(&(annotated_web(&[("metallb.io/allow-shared-ip", "k")]) + &other))
        .with(|world| world.settings.services.compat = ["metallb", "cilium"].map(String::from).into());
    let vips: BTreeSet<IpAddr> = both.look().spec.services.iter().map(|s| s.key.vip).collect();
    assert_eq!(vips.len(), 1);
}

#[test]
fn an_egress_limit_is_refused_if_replies_bypass_the_gateway() {
    let bandwidth = ("service.kubernetes.io/qcloud-loadbalancer-internet-max-bandwidth-out", "10");
    let dsr = (key::FORWARDING, "dsr-ipip");
    let outcome = compat(&[bandwidth, dsr], &["tke"]).look();
    assert_eq!(outcome.spec.services.len(), 0);
    let (reason, what, accepted) = finding(&outcome);
    assert_eq!(reason, Reason::InvalidValue);
    assert!(what.contains("replies do not pass through the gateway") && what.contains(bandwidth.0), "{what}");
    assert!(accepted.contains("nat or fullnat"), "{accepted}");
    // Ours says which direction it means, and overrides the alias.
    let outcome = compat(&[bandwidth, dsr, (key::MAX_BANDWIDTH, "20M")], &["tke"]).look();
    assert!(messages(&outcome).iter().all(|text| !text.contains("bandwidth")), "{:?}", messages(&outcome));
}
