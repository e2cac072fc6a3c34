//! What is asked for and not done: each refusal names what, where and what would be accepted.

use super::*;
use crate::diagnostic::Severity;
use crate::model::Origin;

#[test]
fn wishes_not_granted_yet_are_refused_port_by_port_and_other_services_go_on() {
    for (key, value, accepted) in [
        ("forwarding", "dsr-gue", "dsr-l2, dsr-ipip, nat, fullnat"),
        ("forwarding", "dsr-dscp", "dsr-l2, dsr-ipip, nat, fullnat"),
        ("scheduler", "wrr", "maglev"),
        ("hash", "source", "no annotation"),
        ("proxy-protocol", "v2", "none"),
        ("max-bandwidth", "10M", "0 (no limit)"),
        ("max-connection-rate", "100", "0 (no limit)"),
        ("max-connections", "100", "0 (no limit)"),
    ] {
        let key = format!("tidegate.dev/{key}");
        let world = World::new(
            vec![annotated(service("web"), &key, value), service("fine")],
            vec![http("web", vec![endpoint("10.0.1.1")]), http("fine", vec![endpoint("10.0.1.1")])],
        );
        let outcome = world.look();
        assert_eq!(only(&outcome).name, "fine", "{key}");
        let finding = &outcome.findings[0];
        assert_eq!((finding.reason, finding.diagnostic.severity), (Reason::NotSupported, Severity::Error));
        assert!(finding.diagnostic.what.contains(&key) && finding.diagnostic.what.contains(value));
        let said = finding.diagnostic.accepted.as_deref().expect("it says what is accepted");
        assert!(said.contains(accepted), "{said}");
        let web = outcome.services.iter().find(|s| s.name == "web").expect("it is shown all the same");
        assert!(
            web.ports[0].refused.as_ref().is_some_and(|r| r.contains(&key)),
            "{:?}",
            web.ports[0].refused
        );
        assert!(outcome.targets.len() == 1, "what is not programmed is not checked");
    }
}

#[test]
fn values_not_understood_are_named_and_the_default_goes_on() {
    for (key, value, accepted) in [
        ("forwarding", "dsr", "dsr-l2, dsr-ipip, nat, fullnat"),
        ("target", "pods", "pod, node"),
        ("scheduler", "round", "maglev"),
        ("table-size", "65536", "auto, or a prime from 251 to 655373 such as 65537"),
        ("table-size", "big", "auto, or a prime"),
        ("table-size", "655387", "auto, or a prime"),
        ("drain-timeout", "soon", "0ns to 86400s"),
        ("idle-timeout-tcp", "0s", "1s to"),
        ("idle-timeout-udp", "2d", "a duration such as"),
        ("address-pool", "", "the name of a pool"),
        ("allow-shared-ip", "", "any text"),
    ] {
        let key = format!("tidegate.dev/{key}");
        let world = World::new(
            vec![annotated(service("web"), &key, value)],
            vec![http("web", vec![endpoint("10.0.1.1")])],
        );
        let outcome = world.look();
        let plain = World::new(vec![service("web")], vec![http("web", vec![endpoint("10.0.1.1")])]).look();
        assert_eq!(outcome.spec, plain.spec, "{key}: {value}");
        let finding = &outcome.findings[0];
        assert_eq!((finding.reason, finding.diagnostic.severity), (Reason::InvalidValue, Severity::Error));
        assert!(finding.diagnostic.what.contains(&format!("{key}: {value:?}")), "{}", finding.diagnostic);
        let said = finding.diagnostic.accepted.as_deref().expect("it says what is accepted");
        assert!(said.contains(accepted), "{said}");
    }
}

#[test]
fn an_unknown_annotation_of_ours_is_a_warning_that_lists_the_known() {
    let outcome = World::new(vec![annotated(service("web"), "tidegate.dev/fowarding", "nat")], vec![]).look();
    assert!(
        messages(&outcome)[0]
            .starts_with("warning: annotation tidegate.dev/fowarding is not known; accepted: ")
    );
}

#[test]
fn findings_point_at_the_line_that_asks() {
    let mut web = annotated(service("web"), "tidegate.dev/forwarding", "dsr-gre");
    let field = "metadata.annotations[tidegate.dev/forwarding]";
    web.meta.origin = Origin::new("web.yaml", (1, 1), [(field, (7, 31)), ("spec", (9, 3))]);
    let outcome = World::new(vec![web], vec![]).look();
    assert_eq!(
        messages(&outcome)[0],
        "web.yaml:7:31: error: annotation tidegate.dev/forwarding: \"dsr-gre\" is not supported yet, no port is \
         programmed; accepted: dsr-l2, dsr-ipip, nat, fullnat"
    );
}

#[test]
fn sctp_is_refused_and_the_other_ports_go_on() {
    let mut web = service("web");
    web.ports.push(service_port("sig", Protocol::Sctp, 2905, 2905));
    let ports = [("http", Protocol::Tcp, 8080), ("sig", Protocol::Sctp, 2905)];
    let outcome = World::new(vec![web], vec![slice("s", "web", &ports, vec![endpoint("10.0.1.1")])]).look();
    assert_eq!(only(&outcome).port_name, "http");
    assert_eq!(
        messages(&outcome),
        [
            "error: port sig of Service default/web is not programmed: SCTP is not supported yet; accepted: TCP, UDP"
        ]
    );
}

#[test]
fn endpoints_that_a_mode_cannot_reach_are_refused_and_the_others_stay() {
    let mut web = annotated(service("web"), "tidegate.dev/forwarding", "dsr-l2");
    web.ports = vec![service_port("http", Protocol::Tcp, 8080, 8080)];
    let slices = vec![http("web", vec![endpoint("10.0.1.1"), endpoint("172.16.0.9")])];
    let outcome = World::new(vec![web], slices).look();
    assert_eq!(states(only(&outcome)), ["10.0.1.1:8080 active"]);
    assert!(
        messages(&outcome)[0]
            .starts_with("warning: endpoint 172.16.0.9 of Service default/web is refused: dsr-l2")
    );
}

#[test]
fn a_mode_without_its_source_address_is_refused_by_name() {
    for (mode, key) in [("fullnat", "dataplane.snatAddresses"), ("dsr-ipip", "dataplane.tunnelSource")] {
        let mut web = annotated(service("web"), "tidegate.dev/forwarding", mode);
        web.ports = vec![service_port("http", Protocol::Tcp, 8080, 8080)];
        let mut world = World::new(vec![web], vec![http("web", vec![endpoint("10.0.1.1")])]);
        world.settings.snat_addresses.retain(IpAddr::is_ipv6);
        world.settings.tunnel_source_v4 = None;
        let outcome = world.look();
        assert!(outcome.spec.services.is_empty());
        let message = &messages(&outcome)[0];
        assert!(message.contains(&format!("{mode} needs an IPv4 address in {key}")), "{message}");
        assert!(message.contains(&format!("accepted: an IPv4 entry in {key}")), "{message}");
    }
}

#[test]
fn an_external_ip_without_authority_is_denied_and_counted() {
    let mut web = external("web", "198.51.100.1");
    web.external_ips.push(ip("203.0.113.1"));
    web.external_ips.push(ip("10.0.0.3"));
    let outcome = World::new(vec![web], vec![]).look();
    assert_eq!(only(&outcome).key.vip, ip("198.51.100.1"));
    let denied = outcome.findings.iter().filter(|f| f.reason == Reason::ExternalIpDenied);
    assert_eq!(denied.count(), 2);
    assert!(messages(&outcome)[0].contains(
        "accepted: an address of a pool with externalIPs: true: edge (198.51.100.0-198.51.100.15, "
    ));
}

#[test]
fn endpoints_that_are_vips_or_the_gateway_itself_are_refused() {
    let slices =
        vec![http("web", vec![endpoint("198.51.100.1"), endpoint("10.0.0.3"), endpoint("10.0.1.1")])];
    let outcome = World::new(vec![external("web", "198.51.100.1")], slices).look();
    assert_eq!(states(only(&outcome)), ["10.0.1.1:8080 active"]);
    assert_eq!(outcome.findings.iter().filter(|f| f.reason == Reason::EndpointRefused).count(), 2);
}

#[test]
fn requested_addresses_that_contradict_or_do_not_parse_get_no_other_address() {
    let mut both = annotated(service("both"), "tidegate.dev/load-balancer-ips", "203.0.113.4");
    both.load_balancer_ip = Some(ip("203.0.113.5"));
    let faulty = annotated(service("faulty"), "tidegate.dev/load-balancer-ips", "203.0.113.400");
    let fine = annotated(service("fine"), "tidegate.dev/load-balancer-ips", " 203.0.113.6 ");
    let outcome = World::new(vec![both, faulty, fine], vec![]).look();
    let vips: Vec<usize> = outcome.services.iter().map(|s| s.vips.len()).collect();
    assert_eq!(vips, [0, 0, 1]);
    assert!(outcome.services[..2].iter().all(|s| s.pending.is_some()));
    let all = messages(&outcome).join("\n");
    assert!(all.contains("spec.loadBalancerIP 203.0.113.5 contradicts the annotation"), "{all}");
    assert!(all.contains("accepted: IP addresses separated by commas"), "{all}");
}
