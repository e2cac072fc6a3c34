//! Health checks: what annotations ask for, what is refused, who is judged by what, and fail open.

use super::*;
use crate::diagnostic::Severity;
use crate::health::{Failure, Standing};

fn checked(mut service: Service, annotations: &[(&str, &str)]) -> Service {
    for (key, value) in annotations {
        service = annotated(service, &format!("tidegate.dev/health-check-{key}"), value);
    }
    service
}

fn urls(outcome: &Outcome) -> Vec<String> {
    outcome.targets.iter().map(ToString::to_string).collect()
}

fn web(annotations: &[(&str, &str)]) -> World {
    World::new(
        vec![checked(service("web"), annotations)],
        vec![http("web", vec![endpoint("10.0.1.1"), endpoint("10.0.1.2")])],
    )
}

/// 53 by TCP and UDP, to 5353.
fn dns(annotations: &[(&str, &str)]) -> World {
    let mut dns = checked(service("dns"), annotations);
    dns.ports =
        vec![service_port("tcp", Protocol::Tcp, 53, 5353), service_port("udp", Protocol::Udp, 53, 5353)];
    let ports = [("tcp", Protocol::Tcp, 5353), ("udp", Protocol::Udp, 5353)];
    World::new(vec![dns], vec![slice("dns", "dns", &ports, vec![endpoint("10.0.1.1"), endpoint("10.0.1.2")])])
}

fn of_protocol(outcome: &Outcome, protocol: tidegate_core::snapshot::Protocol) -> Vec<String> {
    let found = outcome.spec.services.iter().find(|s| s.key.protocol == protocol);
    states(found.expect("the port is programmed"))
}

#[test]
fn annotations_choose_what_is_asked_and_where() {
    for (annotations, expected) in [
        (&[][..], ["tcp://10.0.1.1:8080", "tcp://10.0.1.2:8080"]),
        (&[("port", "9000")], ["tcp://10.0.1.1:9000", "tcp://10.0.1.2:9000"]),
        (&[("protocol", "http")], ["http://10.0.1.1:8080/", "http://10.0.1.2:8080/"]),
        (
            &[("protocol", "https"), ("path", "/ready?full=1"), ("port", "8443")],
            ["https://10.0.1.1:8443/ready?full=1", "https://10.0.1.2:8443/ready?full=1"],
        ),
    ] {
        let outcome = web(annotations).look();
        assert_eq!(urls(&outcome), expected);
        assert_eq!(messages(&outcome), [] as [String; 0]);
    }
    let none = web(&[("protocol", "none")]).look();
    assert!(none.targets.is_empty() && none.findings.is_empty());
    assert_eq!(states(only(&none)), ["10.0.1.1:8080 active", "10.0.1.2:8080 active"]);
}

#[test]
fn what_the_configuration_says_goes_for_services_that_say_nothing_else() {
    let mut world = web(&[]);
    world.settings.health.protocol = crate::config::HealthProtocol::Https;
    world.settings.health.path = "/readyz".into();
    world.settings.health.rules.unhealthy_threshold = 7;
    let outcome = world.look();
    assert_eq!(urls(&outcome)[0], "https://10.0.1.1:8080/readyz");
    assert_eq!(outcome.targets.first().expect("two").probe.rules.unhealthy_threshold, 7);
    world.put(checked(service("web"), &[("protocol", "tcp")]));
    assert_eq!(urls(&world.look())[0], "tcp://10.0.1.1:8080");
}

#[test]
fn a_value_out_of_its_range_is_refused_with_what_is_accepted_and_the_default_goes_on() {
    let plain = web(&[]).look();
    for (key, value, accepted) in [
        ("interval", "99ms", "100ms to 1h"),
        ("interval", "61m", "100ms to 1h"),
        ("interval", "fast", "a duration such as 500ms"),
        ("timeout", "9ms", "10ms to 1h"),
        ("port", "0", "a port number, 1 to 65535"),
        ("port", "http", "a port number, 1 to 65535"),
        ("path", "healthz", "a path such as /healthz"),
        ("path", "/a b", "a path such as /healthz"),
        ("path", "/a#b", "a path such as /healthz"),
        ("healthy-threshold", "0", "1 to 100"),
        ("unhealthy-threshold", "101", "1 to 100"),
        ("protocol", "smtp", "tcp, http, https, udp, none"),
    ] {
        let outcome = web(&[(key, value)]).look();
        assert_eq!((&outcome.spec, &outcome.targets), (&plain.spec, &plain.targets), "{key}: {value}");
        let finding = &outcome.findings[0];
        assert_eq!((finding.reason, finding.diagnostic.severity), (Reason::InvalidValue, Severity::Error));
        let said = format!("annotation tidegate.dev/health-check-{key}: {value:?}");
        assert!(finding.diagnostic.what.starts_with(&said), "{}", finding.diagnostic);
        let list = finding.diagnostic.accepted.as_deref().expect("it says what is accepted");
        assert!(list.contains(accepted), "{list}");
    }
}

#[test]
fn checks_by_sctp_and_grpc_are_refused_and_the_default_goes_on() {
    for word in ["sctp", "SCTP", "grpc", "icmp"] {
        let outcome = web(&[("protocol", word)]).look();
        assert_eq!(urls(&outcome)[0], "tcp://10.0.1.1:8080");
        assert_eq!(
            messages(&outcome),
            [format!(
                "error: annotation tidegate.dev/health-check-protocol: {word:?} is not supported yet; tcp is \
                 used; accepted: tcp, http, https, udp, none"
            )]
        );
        assert_eq!(outcome.findings[0].reason, Reason::NotSupported);
    }
}

#[test]
fn a_timeout_longer_than_the_interval_is_cut() {
    let outcome = web(&[("timeout", "5s")]).look();
    assert_eq!(outcome.targets.first().expect("two").probe.rules.timeout, Duration::from_secs(2));
    assert!(
        messages(&outcome)[0].contains("5s is longer than the interval 2s; accepted: at most the interval")
    );
}

#[test]
fn a_path_without_http_and_udp_without_a_udp_port_are_said_to_have_no_effect() {
    for (annotations, said) in [
        (
            &[("path", "/healthz")][..],
            "annotation tidegate.dev/health-check-path has no effect: checks are by tcp",
        ),
        (
            &[("protocol", "udp")],
            "annotation tidegate.dev/health-check-protocol has no effect: the Service has no UDP port",
        ),
    ] {
        let outcome = web(annotations).look();
        assert!(messages(&outcome)[0].contains(said), "{:?}", messages(&outcome));
        assert_eq!(urls(&outcome)[0], "tcp://10.0.1.1:8080");
    }
}

#[test]
fn udp_ports_are_asked_by_datagram_when_the_service_says_so_and_tcp_ports_by_tcp() {
    let outcome = dns(&[("protocol", "udp")]).look();
    assert_eq!(
        urls(&outcome),
        ["tcp://10.0.1.1:5353", "udp://10.0.1.1:5353", "tcp://10.0.1.2:5353", "udp://10.0.1.2:5353"]
    );
    let elsewhere = dns(&[("protocol", "udp"), ("port", "9053")]).look();
    assert_eq!(
        urls(&elsewhere),
        ["tcp://10.0.1.1:5353", "udp://10.0.1.1:9053", "tcp://10.0.1.2:5353", "udp://10.0.1.2:9053"]
    );
}

#[test]
fn udp_ports_without_a_check_of_their_own_are_judged_by_the_checked_tcp_ports_beside_them() {
    use tidegate_core::snapshot::Protocol::Udp;
    let mut world = dns(&[]);
    assert_eq!(urls(&world.look()), ["tcp://10.0.1.1:5353", "tcp://10.0.1.2:5353"]);
    world.verdicts = world.look().targets.into_iter().take(1).collect();
    assert_eq!(of_protocol(&world.look(), Udp), ["10.0.1.1:5353 down", "10.0.1.2:5353 active"]);
    let view = &world.look().services[0].ports[1].backends[0];
    assert_eq!(view.health.failure.as_deref(), Some("the TCP ports beside it fail"));

    let mut own = dns(&[("protocol", "udp")]);
    own.verdicts = own.look().targets.into_iter().take(1).collect();
    assert_eq!(of_protocol(&own.look(), Udp), ["10.0.1.1:5353 active", "10.0.1.2:5353 active"]);
}

#[test]
fn all_checked_backends_of_a_service_port_failing_at_once_means_none_is_set_aside() {
    let mut world = web(&[]);
    let refused = Standing { failure: Some(Failure::Refused), ..Standing::default() };
    world.verdicts = world.look().targets.into_iter().map(|target| (target, refused)).collect();
    let outcome = world.look();
    assert_eq!(states(only(&outcome)), ["10.0.1.1:8080 active", "10.0.1.2:8080 active"]);
    assert!(outcome.services[0].ports[0].fail_open);
    let whys: Vec<_> = outcome.services[0].ports[0].backends.iter().map(|b| b.why).collect();
    assert_eq!(whys, [view::BackendWhy::FailOpen; 2]);
    assert_eq!(outcome.findings[0].reason, Reason::HealthFailOpen);
    assert_eq!(
        messages(&outcome),
        ["warning: every backend of port http of Service default/web on 203.0.113.8 fails its health check \
          (10.0.1.1: connection refused): none is set aside; accepted: a check that passes \
          (tidegate.dev/health-check-*), or health.failOpen false"]
    );
}

#[test]
fn without_fail_open_the_last_failing_backend_is_set_aside_too() {
    let mut world = web(&[]);
    world.settings.health.fail_open = false;
    world.verdicts = world.look().targets.into_iter().collect();
    let outcome = world.look();
    assert_eq!(states(only(&outcome)), ["10.0.1.1:8080 down", "10.0.1.2:8080 down"]);
    assert!(!outcome.services[0].ports[0].fail_open && outcome.findings.is_empty());
}

#[test]
fn a_backend_that_takes_no_flows_anyway_does_not_keep_the_others_from_failing_open() {
    let mut world = web(&[]);
    world.drained = BTreeSet::from(["10.0.1.2".parse().expect("a drain target")]);
    world.verdicts = world.look().targets.into_iter().take(1).collect();
    assert_eq!(states(only(&world.look())), ["10.0.1.1:8080 active", "10.0.1.2:8080 draining"]);
}

#[test]
fn the_health_check_node_port_of_an_appliance_counts_no_endpoint_that_fails_open() {
    let mut world = web(&[]);
    world.put(Service {
        external_traffic_policy: TrafficPolicy::Local,
        health_check_node_port: Some(port(30_500)),
        ..service("web")
    });
    assert_eq!(world.look().health_check_node_ports[0].local_endpoints, 2);
    world.verdicts = world.look().targets.into_iter().collect();
    let outcome = world.look();
    assert_eq!(states(only(&outcome)), ["10.0.1.1:8080 active", "10.0.1.2:8080 active"]);
    assert_eq!(outcome.health_check_node_ports[0].local_endpoints, 0);
}

#[test]
fn the_view_tells_failures_and_damping() {
    let mut world = web(&[]);
    let flaps = Standing { failure: Some(Failure::Status(503)), damping: 2, weight: None };
    world.verdicts = world.look().targets.into_iter().take(1).map(|target| (target, flaps)).collect();
    let outcome = world.look();
    let health: Vec<_> = outcome.services[0].ports[0].backends.iter().map(|b| &b.health).collect();
    assert_eq!(health[0].state, view::HealthState::Failing);
    assert_eq!((health[0].failure.as_deref(), health[0].damping), (Some("status 503"), 2));
    assert_eq!(health[1].state, view::HealthState::Passing);
}

/// kubernetes.md, section 9.
#[test]
fn the_control_planes_own_vip_is_checked_by_https_on_readyz() {
    let mut api = external("api", "198.51.100.1");
    api.ports = vec![service_port("https", Protocol::Tcp, 443, 6443)];
    let api = checked(api, &[("protocol", "https"), ("path", "/readyz")]);
    let endpoints = vec![endpoint("10.0.0.11"), endpoint("10.0.0.12")];
    let outcome =
        World::new(vec![api], vec![slice("api", "api", &[("https", Protocol::Tcp, 6443)], endpoints)]).look();
    assert_eq!(urls(&outcome), ["https://10.0.0.11:6443/readyz", "https://10.0.0.12:6443/readyz"]);
    assert_eq!(states(only(&outcome)), ["10.0.0.11:6443 active", "10.0.0.12:6443 active"]);
}
