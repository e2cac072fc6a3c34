//! Health checks: the requested checks, refused values, the check that decides about each backend, and fail open.

use tidegate_model::health::{Failure, HealthStatus};

use super::*;

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

fn of_protocol(outcome: &Outcome, protocol: tidegate_spec::Protocol) -> Vec<String> {
    let found = outcome.spec.services.iter().find(|s| s.key.protocol == protocol);
    states(found.expect("the port is programmed"))
}

#[test]
fn what_the_configuration_says_goes_for_services_that_say_nothing_else() {
    let mut world = web(&[]);
    world.settings.health.protocol = tidegate_model::config::HealthProtocol::Https;
    world.settings.health.path = "/readyz".into();
    world.settings.health.rules.unhealthy_threshold = 7;
    let outcome = world.look();
    assert_eq!(urls(&outcome)[0], "https://10.0.1.1:8080/readyz");
    assert_eq!(outcome.targets.first().expect("two").probe.rules.unhealthy_threshold, 7);
    world.put(checked(service("web"), &[("protocol", "tcp")]));
    assert_eq!(urls(&world.look())[0], "tcp://10.0.1.1:8080");
}

#[test]
fn udp_ports_are_checked_by_datagram_on_request_and_tcp_ports_by_tcp() {
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
fn sctp_ports_are_checked_by_init_unless_the_service_says_otherwise() {
    let signalling = |options: &[(&str, &str)]| {
        let mut sig = checked(service("sig"), options);
        sig.ports = vec![
            service_port("tcp", Protocol::Tcp, 3868, 3868),
            service_port("sctp", Protocol::Sctp, 3868, 3868),
        ];
        let ports = [("tcp", Protocol::Tcp, 3868), ("sctp", Protocol::Sctp, 3868)];
        urls(&World::new(vec![sig], vec![slice("sig", "sig", &ports, vec![endpoint("10.0.1.1")])]).look())
    };
    let both = ["tcp://10.0.1.1:3868", "sctp://10.0.1.1:3868"];
    assert_eq!(signalling(&[]), both);
    assert_eq!(signalling(&[("protocol", "sctp")]), both);
    assert_eq!(signalling(&[("protocol", "http")]), ["http://10.0.1.1:3868/", "sctp://10.0.1.1:3868"]);
    let elsewhere = signalling(&[("protocol", "sctp"), ("port", "9053")]);
    assert_eq!(elsewhere, ["tcp://10.0.1.1:3868", "sctp://10.0.1.1:9053"]);
    assert_eq!(signalling(&[("port", "9053")]), ["tcp://10.0.1.1:9053"], "one check decides for all ports");
    assert_eq!(signalling(&[("protocol", "none")]), [] as [&str; 0]);
}

#[test]
fn udp_ports_without_a_check_use_the_result_of_the_tcp_ports() {
    use tidegate_spec::Protocol::Udp;
    let mut world = dns(&[]);
    assert_eq!(urls(&world.look()), ["tcp://10.0.1.1:5353", "tcp://10.0.1.2:5353"]);
    world.verdicts = world.look().targets.into_iter().take(1).collect();
    assert_eq!(of_protocol(&world.look(), Udp), ["10.0.1.1:5353 down", "10.0.1.2:5353 active"]);
    let view = &world.look().services[0].ports[1].backends[0];
    assert_eq!(
        view.health.failure.as_deref(),
        Some("the health checks of all TCP ports of this endpoint fail")
    );

    let mut own = dns(&[("protocol", "udp")]);
    own.verdicts = own.look().targets.into_iter().take(1).collect();
    assert_eq!(of_protocol(&own.look(), Udp), ["10.0.1.1:5353 active", "10.0.1.2:5353 active"]);
}

#[test]
fn if_all_backends_of_a_service_port_fail_at_once_none_is_excluded() {
    let mut world = web(&[]);
    let refused = HealthStatus { failure: Some(Failure::Refused), ..HealthStatus::default() };
    world.verdicts = world.look().targets.into_iter().map(|target| (target, refused)).collect();
    let outcome = world.look();
    assert_eq!(states(only(&outcome)), ["10.0.1.1:8080 active", "10.0.1.2:8080 active"]);
    assert!(outcome.services[0].ports[0].fail_open);
    let whys: Vec<_> = outcome.services[0].ports[0].backends.iter().map(|b| b.why).collect();
    assert_eq!(whys, [view::BackendWhy::FailOpen; 2]);
    assert_eq!(outcome.findings[0].reason, Reason::HealthFailOpen);
    assert_eq!(
        messages(&outcome),
        [
            "warning: every backend of port http of Service default/web on 203.0.113.12 fails its health check \
          (10.0.1.1: connection refused): all of them stay in use; accepted: a check that passes \
          (tidegate.dev/health-check-*), or health.failOpen false"
        ]
    );
}

#[test]
fn operator_limits_apply_to_services_and_violations_are_reported() {
    let mut world = web(&[("interval", "200ms"), ("timeout", "150ms")]);
    world.settings.health.interval_min = Duration::from_secs(1);
    world.settings.health.timeout_max = Duration::from_millis(100);
    let outcome = world.look();
    let rules = outcome.targets.first().expect("two").probe.rules;
    assert_eq!((rules.interval, rules.timeout), (Duration::from_secs(1), Duration::from_millis(100)));
    assert_eq!(
        messages(&outcome),
        [
            "error: annotation tidegate.dev/health-check-interval: 200ms is not allowed by the operator's \
          health.intervalMin; 1s is used; accepted: at least 1s",
            "error: annotation tidegate.dev/health-check-timeout: 150ms is not allowed by the operator's \
          health.timeoutMax; 100ms is used; accepted: at most 100ms"
        ]
    );
}

#[test]
fn the_default_for_an_invalid_timeout_or_interval_causes_no_finding() {
    let mut world = web(&[("interval", "500ms"), ("timeout", "9ms")]);
    let outcome = world.look();
    let rules = outcome.targets.first().expect("two").probe.rules;
    assert_eq!(rules.timeout, Duration::from_millis(500), "the default, 1 s, is cut to the interval");
    let reported = messages(&outcome);
    assert!(reported.len() == 1 && reported[0].contains("\"9ms\" is invalid"), "{reported:?}");

    world = web(&[("interval", "9ms")]);
    world.settings.health.interval_min = Duration::from_secs(3600);
    let reported = messages(&world.look());
    assert!(reported.len() == 1 && reported[0].contains("\"9ms\" is invalid"), "{reported:?}");
}

#[test]
fn checks_count_towards_the_share_of_the_service_s_namespace() {
    let outcome = web(&[]).look();
    assert!(outcome.targets.iter().all(|target| target.probe.namespace.as_deref() == Some("default")));
}

#[test]
fn endpoints_outside_the_networks_of_backends_are_not_checked() {
    let mut world = World::new(
        vec![checked(service("web"), &[("protocol", "http"), ("path", "/latest/meta-data")])],
        vec![http(
            "web",
            vec![endpoint("10.0.1.1"), endpoint("192.0.2.80"), on(endpoint("10.9.1.7"), "node-a")],
        )],
    );
    assert_eq!(urls(&world.look()).len(), 3, "those of a directory are the operator's");
    world.settings.endpoints_of_operator = false;
    let outcome = world.look();
    assert_eq!(urls(&outcome), ["http://10.0.1.1:8080/latest/meta-data"]);
    assert_eq!(
        states(only(&outcome)),
        ["10.0.1.1:8080 active", "10.9.1.7:8080 active", "192.0.2.80:8080 active"],
        "they are backends nevertheless"
    );
    assert_eq!(outcome.findings[0].reason, Reason::HealthCheckNotAllowed);
    let reported = "warning: endpoints of Service default/web are not health-checked and count as healthy, because the \
                operator does not allow checks in their networks: 10.9.1.7, 192.0.2.80; accepted: the networks of \
                these endpoints in health.allowedNetworks; without this key, also endpoints in a network of \
                dataplane.interfaces or dataplane.routes, or among the InternalIPs and podCIDRs of their node";
    assert_eq!(messages(&outcome), [reported]);

    // The Pod networks of a node are allowed for the endpoints on it.
    let mut node = node("node-a", &[]);
    node.pod_cidrs = vec!["10.9.1.0/24".parse().expect("a network")];
    world.put_node(node);
    assert_eq!(urls(&world.look()).len(), 2);
    // The destinations of routes are allowed too, except default routes.
    let route = |to: &str| RouteSpec { to: to.parse().expect("a network"), via: ip("10.0.0.254") };
    world.settings.network.routes = vec![route("0.0.0.0/0")];
    assert_eq!(urls(&world.look()).len(), 2);
    world.settings.network.routes.push(route("192.0.2.0/24"));
    assert_eq!(urls(&world.look()).len(), 3);
    assert!(world.look().findings.is_empty());

    // A list of the operator replaces these networks.
    world.settings.health.allowed_networks = Some(vec!["192.0.2.80/32".parse().expect("a network")]);
    assert_eq!(urls(&world.look()), ["http://192.0.2.80:8080/latest/meta-data"]);
}

#[test]
fn dsr_backends_are_checked_at_each_vip_and_others_at_their_addresses() {
    let mut world = World::new(
        vec![service("web")],
        vec![slice("web", "web", &[("http", Protocol::Tcp, 80)], vec![endpoint("10.0.1.1")])],
    );
    world.settings.health.dsr_destination = tidegate_model::config::DsrDestination::Vip;
    let with = |mode: &str| Service {
        ports: vec![service_port("http", Protocol::Tcp, 80, 80)],
        external_ips: vec![ip("198.51.100.1")],
        ..annotated(service("web"), "tidegate.dev/forwarding", mode)
    };
    for mode in ["dsr-l2", "dsr-ipip"] {
        world.put(with(mode));
        assert_eq!(
            urls(&world.look()),
            ["tcp://198.51.100.1:80 at 10.0.1.1", "tcp://203.0.113.12:80 at 10.0.1.1"],
            "{mode}"
        );
        // Each VIP has its own verdict.
        let failing = world.look().targets.into_iter().take(1).collect::<Vec<_>>();
        world.settings.health.fail_open = false;
        let not_on_vip = HealthStatus { failure: Some(Failure::NotOnVip), ..HealthStatus::default() };
        world.verdicts = failing.into_iter().map(|target| (target, not_on_vip)).collect();
        let outcome = world.look();
        let mut found: Vec<_> = outcome.spec.services.iter().flat_map(|service| states(service)).collect();
        found.sort();
        assert_eq!(found, ["10.0.1.1:80 active", "10.0.1.1:80 down"], "{mode}");
        world.verdicts = Verdicts::default();
        world.settings.health.dsr_destination = tidegate_model::config::DsrDestination::Backend;
        assert_eq!(urls(&world.look()), ["tcp://10.0.1.1:80"], "{mode}");
        world.settings.health.dsr_destination = tidegate_model::config::DsrDestination::Vip;
    }
    for mode in ["nat", "fullnat"] {
        world.put(with(mode));
        assert_eq!(urls(&world.look()), ["tcp://10.0.1.1:80"], "{mode}");
    }
}

#[test]
fn without_fail_open_the_last_failing_backend_is_excluded_too() {
    let mut world = web(&[]);
    world.settings.health.fail_open = false;
    world.verdicts = world.look().targets.into_iter().collect();
    let outcome = world.look();
    assert_eq!(states(only(&outcome)), ["10.0.1.1:8080 down", "10.0.1.2:8080 down"]);
    assert!(!outcome.services[0].ports[0].fail_open && outcome.findings.is_empty());
}

#[test]
fn a_backend_that_takes_no_flows_does_not_prevent_failing_open() {
    let mut world = web(&[]);
    world.drained = BTreeSet::from(["10.0.1.2".parse().expect("a drain target")]);
    world.verdicts = world.look().targets.into_iter().take(1).collect();
    assert_eq!(states(only(&world.look())), ["10.0.1.1:8080 active", "10.0.1.2:8080 draining"]);
}

#[test]
fn whether_an_endpoint_answers_is_decided_before_whether_it_terminates() {
    use view::BackendWhy::{Drained, NotReady, OtherNode, OtherZone, Ready, Terminating, Unhealthy};
    let leaves = |serving| Conditions { ready: Some(false), serving: Some(serving), terminating: Some(true) };
    let hinted = |zone: &str| Endpoint { hint_zones: vec![zone.into()], ..endpoint("10.0.1.2") };
    let on_node = |node: &str| Endpoint { hint_nodes: vec![node.into()], ..endpoint("10.0.1.2") };
    let second = |other: Endpoint, first: Endpoint, drained: &str, fails: bool| {
        let mut world = World::new(vec![service("web")], vec![http("web", vec![first, other])]);
        (world.settings.zone, world.settings.node) = (Some("a".into()), Some("n1".into()));
        world.drained = drained.parse().into_iter().collect();
        let at = ip("10.0.1.2");
        let target = world.look().targets.into_iter().find(|target| target.address.ip() == at);
        let is_checked = target.is_some();
        world.verdicts = target.into_iter().filter(|_| fails).collect();
        let outcome = world.look();
        let backends = &outcome.services[0].ports[0].backends;
        assert_eq!(backends[0].why, Ready);
        let backend = backends.iter().find(|backend| backend.address == at).expect("it is listed");
        (backend.state, backend.why, is_checked)
    };
    use view::BackendViewState::{Down, Draining};
    let terminating = |serving| Endpoint { conditions: leaves(serving), ..endpoint("10.0.1.2") };
    let unready = Conditions { ready: Some(false), ..Conditions::default() };
    let unready = Endpoint { conditions: unready, ..endpoint("10.0.1.2") };
    let first = endpoint("10.0.1.1");
    let in_a = Endpoint { hint_zones: vec!["a".into()], ..first.clone() };
    let on_n1 = Endpoint { hint_nodes: vec!["n1".into()], ..first.clone() };
    for (other, first, drained, why) in [
        (terminating(true), first.clone(), "", Terminating),
        (endpoint("10.0.1.2"), first.clone(), "10.0.1.2", Drained),
        (terminating(true), first.clone(), "10.0.1.2", Drained),
        (hinted("b"), in_a, "", OtherZone),
        (on_node("n2"), on_n1, "", OtherNode),
    ] {
        let with = |fails| second(other.clone(), first.clone(), drained, fails);
        assert_eq!(with(false), (Draining, why, true), "{other:?}");
        assert_eq!(with(true), (Down, Unhealthy, true), "{other:?}");
    }
    for (other, drained) in
        [(terminating(false), ""), (terminating(false), "10.0.1.2"), (unready, "10.0.1.2")]
    {
        assert_eq!(second(other, first.clone(), drained, false), (Down, NotReady, false));
    }
}

#[test]
fn an_appliances_health_check_node_port_counts_no_failing_endpoint() {
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
fn the_view_shows_failures_and_damping() {
    let mut world = web(&[]);
    let flaps = HealthStatus { failure: Some(Failure::Status(503)), damping: 2, weight: None };
    world.verdicts = world.look().targets.into_iter().take(1).map(|target| (target, flaps)).collect();
    let outcome = world.look();
    let health: Vec<_> = outcome.services[0].ports[0].backends.iter().map(|b| &b.health).collect();
    assert_eq!(health[0].state, view::HealthState::Failing);
    assert_eq!((health[0].failure.as_deref(), health[0].damping), (Some("HTTP status 503"), 2));
    assert_eq!(health[1].state, view::HealthState::Passing);
}
