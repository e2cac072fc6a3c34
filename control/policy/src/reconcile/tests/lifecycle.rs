//! Services and endpoints that are created, deleted, fail and drain.

use tidegate_spec::{ForwardingMode, NoEndpoints, Protocol as CoreProtocol};

use super::*;

#[test]
fn service_gets_an_address_and_its_ready_endpoints_take_flows() {
    let outcome =
        World::new(vec![service("web")], vec![http("web", vec![endpoint("10.0.1.2"), endpoint("10.0.1.1")])])
            .look();
    let spec = only(&outcome);
    assert!("203.0.113.0/28".parse::<ipnet::IpNet>().expect("a net").contains(&spec.key.vip));
    assert_eq!(
        (spec.key.port, spec.key.protocol, spec.mode),
        (80, CoreProtocol::Tcp, ForwardingMode::FullNat)
    );
    assert_eq!(spec.label(), "default/web:http");
    assert_eq!(states(spec), ["10.0.1.1:8080 active", "10.0.1.2:8080 active"]);
    assert_eq!(messages(&outcome), [] as [String; 0]);
    assert_eq!(outcome.targets.len(), 2);
    assert_eq!(outcome.services[0].vips[0].pool, "public");
}

#[test]
fn endpoints_shrink_to_zero_and_the_port_stays_to_refuse() {
    let mut world = World::new(vec![service("web")], vec![http("web", vec![endpoint("10.0.1.1")])]);
    world.step();
    world.set_slices(vec![]);
    let outcome = world.step();
    assert_eq!(
        states(only(&outcome)),
        ["10.0.1.1:8080 down"],
        "its TCP flows continue until the drain timeout"
    );
    assert_eq!(only(&outcome).no_endpoints, NoEndpoints::Reject);
    assert_eq!(outcome.reconcile_at, Some(Duration::from_secs(400)));
    world.now = Duration::from_secs(399);
    assert_eq!(states(only(&world.step())).len(), 1, "nothing extends or shortens the drain");
    world.now = Duration::from_secs(400);
    let outcome = world.step();
    assert_eq!(states(only(&outcome)), [] as [String; 0]);
    assert_eq!(outcome.reconcile_at, None);
}

#[test]
fn a_backend_that_fails_its_checks_is_out_until_it_passes() {
    let mut world =
        World::new(vec![service("web")], vec![http("web", vec![endpoint("10.0.1.1"), endpoint("10.0.1.2")])]);
    let failed = world.look().targets.first().expect("two targets").clone();
    world.verdicts = [failed].into_iter().collect();
    assert_eq!(states(only(&world.step())), ["10.0.1.1:8080 down", "10.0.1.2:8080 active"]);
    world.verdicts = Verdicts::default();
    assert_eq!(states(only(&world.step())), ["10.0.1.1:8080 active", "10.0.1.2:8080 active"]);
}

#[test]
fn services_that_need_the_same_check_share_it() {
    let mut other = http("api", vec![endpoint("10.0.1.1")]);
    other.meta.key.name = "api".into();
    let world = World::new(
        vec![
            service("web"),
            service("api"),
            annotated(service("slow"), "tidegate.dev/health-check-interval", "30s"),
        ],
        vec![http("web", vec![endpoint("10.0.1.1")]), other, http("slow", vec![endpoint("10.0.1.1")])],
    );
    let targets = world.look().targets;
    assert_eq!(targets.len(), 2, "{targets:?}");
}

#[test]
fn udp_ports_are_not_checked_by_tcp_unless_a_port_is_named() {
    let mut dns = service("dns");
    dns.ports = vec![service_port("dns", Protocol::Udp, 53, 5353)];
    let slices = || vec![slice("dns", "dns", &[("dns", Protocol::Udp, 5353)], vec![endpoint("10.0.1.1")])];
    assert!(World::new(vec![dns.clone()], slices()).look().targets.is_empty());
    let checked = annotated(dns, "tidegate.dev/health-check-port", "8181");
    let outcome = World::new(vec![checked], slices()).look();
    let addresses: Vec<String> = outcome.targets.iter().map(|t| t.address.to_string()).collect();
    assert_eq!(addresses, ["10.0.1.1:8181"]);
}

#[test]
fn the_operator_drains_a_backend_or_a_whole_node() {
    let mut world = World::new(
        vec![service("web")],
        vec![http("web", vec![on(endpoint("10.0.1.1"), "a"), on(endpoint("10.0.1.2"), "b")])],
    );
    for (drained, expected) in [
        ("10.0.1.1:8080", ["10.0.1.1:8080 draining", "10.0.1.2:8080 active"]),
        ("10.0.1.1:80", ["10.0.1.1:8080 active", "10.0.1.2:8080 active"]),
        ("[::ffff:10.0.1.1]:8080", ["10.0.1.1:8080 draining", "10.0.1.2:8080 active"]),
        ("10.0.1.2", ["10.0.1.1:8080 active", "10.0.1.2:8080 draining"]),
        ("::ffff:10.0.1.2", ["10.0.1.1:8080 active", "10.0.1.2:8080 draining"]),
        ("b", ["10.0.1.1:8080 active", "10.0.1.2:8080 draining"]),
    ] {
        world.drained = BTreeSet::from([drained.parse().expect("a drain target")]);
        assert_eq!(states(only(&world.look())), expected, "drain {drained}");
    }
    assert!("no such thing".parse::<DrainTarget>().expect_err("refused").contains("accepted: ADDRESS:PORT"));
}

#[test]
fn dual_stack_service_serves_each_vip_by_endpoints_of_its_family() {
    let mut web = service("web");
    web.ip_family_policy = IpFamilyPolicy::RequireDualStack;
    let v6 = slice("v6", "web", &[("http", Protocol::Tcp, 8080)], vec![endpoint("2001:db8::a")]);
    let outcome = World::new(vec![web], vec![http("web", vec![endpoint("10.0.1.1")]), v6]).look();
    assert_eq!(outcome.spec.services.len(), 2);
    for spec in &outcome.spec.services {
        let expected =
            if spec.key.vip.is_ipv4() { "10.0.1.1:8080 active" } else { "[2001:db8::a]:8080 active" };
        assert_eq!(states(spec), [expected]);
    }
}

#[test]
fn the_address_stays_when_other_services_come_and_the_service_changes() {
    let mut world = World::new(vec![service("web")], vec![]);
    let before = world.step().services[0].vips.clone();
    for i in 0..15 {
        world.put(service(&format!("other{i}")));
    }
    world.put(annotated(service("web"), "tidegate.dev/forwarding", "nat"));
    let after = world.step();
    let web = after.services.iter().find(|s| s.name == "web").expect("it is listed");
    assert_eq!(web.vips, before);
}

#[test]
fn services_that_are_not_ours_are_ignored() {
    let mut headless = service("headless");
    headless.headless = true;
    let mut other_proxy = service("other-proxy");
    other_proxy.meta.labels.insert("service.kubernetes.io/service-proxy-name".into(), "x".into());
    let mut other_class = service("other-class");
    other_class.load_balancer_class = Some("example.com/lb".into());
    let mut name = service("name");
    name.service_type = ServiceType::ExternalName;
    let mut deleted = service("deleted");
    deleted.meta.deletion_time = Some(jiff::Timestamp::UNIX_EPOCH);
    let mut plain = service("plain");
    plain.service_type = ServiceType::ClusterIp;
    let mut world = World::new(vec![headless, other_proxy, other_class, name, deleted, plain], vec![]);
    let outcome = world.look();
    assert!(outcome.services.is_empty() && outcome.spec.services.is_empty() && outcome.findings.is_empty());
    world.settings.claims.unclassed = false;
    world.put(service("unclassed"));
    let mut ours = service("ours");
    ours.load_balancer_class = Some(world.settings.claims.load_balancer_class.clone());
    world.put(ours);
    let names: Vec<String> = world.look().services.iter().map(|s| s.name.clone()).collect();
    assert_eq!(names, ["ours"]);
}

#[test]
fn a_spec_shares_the_network_of_the_settings() {
    let mut world = World::new(vec![service("web")], vec![http("web", vec![endpoint("10.0.1.1")])]);
    let network = world.settings.network.clone();
    assert!(world.step().spec.network.is_same(&network));
    world.settings.network.policy.serve_routers = true;
    let spec = world.step().spec;
    assert!(!spec.network.is_same(&network) && spec.network == world.settings.network);
}

/// This many Services of a namespace, each with `backends` endpoints from 10.0.1.`first` on.
fn of_namespace(
    namespace: &str,
    services: u8,
    first: u8,
    backends: u8,
) -> (Vec<Service>, Vec<EndpointSlice>) {
    let service = |n: u8| {
        let mut one = service(&format!("{namespace}-{n}"));
        namespace.clone_into(&mut one.meta.key.namespace);
        one
    };
    let services: Vec<Service> = (0..services).map(service).collect();
    let slice = |of: &Service| {
        let endpoints = (first..first + backends).map(|n| endpoint(&format!("10.0.1.{n}"))).collect();
        let mut slice = http(&of.meta.key.name, endpoints);
        namespace.clone_into(&mut slice.meta.key.namespace);
        slice
    };
    let slices = services.iter().map(slice).collect();
    (services, slices)
}

/// A world with the Services of both, which all get an address.
fn world_of(both: [(Vec<Service>, Vec<EndpointSlice>); 2]) -> World {
    let [(mut services, mut slices), (more, more_slices)] = both;
    services.extend(more);
    slices.extend(more_slices);
    let mut world = World::new(services, slices);
    world.settings.pools[0].ranges =
        vec!["203.0.113.0/24".parse::<ipnet::IpNet>().expect("a network").into()];
    world
}

/// The number of service ports of a namespace.
fn ports_of(outcome: &Outcome, namespace: &str) -> usize {
    outcome.spec.services.iter().filter(|spec| spec.namespace == namespace).count()
}

#[test]
fn a_namespace_that_removes_many_services_ends_no_flows_of_others() {
    let mut world = world_of([of_namespace("greedy", 20, 1, 1), of_namespace("victim", 2, 1, 1)]);
    // Ten ports of removed Services fit.
    world.settings.limits = Demand { frontends: 160, ..Demand::MAX };
    let outcome = world.step();
    assert_eq!((ports_of(&outcome, "greedy"), ports_of(&outcome, "victim")), (20, 2));
    world.objects.services.clear();
    let outcome = world.step();
    assert_eq!((ports_of(&outcome, "greedy"), ports_of(&outcome, "victim")), (8, 2));
    // This also applies to their backends.
    let mut world = world_of([of_namespace("greedy", 4, 1, 2), of_namespace("victim", 1, 1, 3)]);
    world.settings.limits = Demand { backends: 30, ..Demand::MAX };
    world.step();
    world.objects.services.clear();
    let outcome = world.step();
    assert_eq!((ports_of(&outcome, "greedy"), ports_of(&outcome, "victim")), (1, 1), "five backends fit");
}

#[test]
fn a_namespace_that_constantly_removes_backends_ends_no_flows_of_others() {
    let mut world = world_of([of_namespace("greedy", 6, 1, 4), of_namespace("victim", 1, 1, 6)]);
    // 40 backends fit into the tables.
    world.settings.limits = Demand { backends: 30, ..Demand::MAX };
    world.step();
    let (_, mut slices) = of_namespace("greedy", 6, 11, 4);
    slices.extend(of_namespace("victim", 1, 11, 6).1);
    world.set_slices(slices);
    // Of 30 removed backends 10 fit. One port of the victim has more of them than any other.
    let outcome = world.step();
    let left = |namespace: &str| {
        let specs = outcome.spec.services.iter().filter(|spec| spec.namespace == namespace);
        let backends = specs.flat_map(|spec| &spec.backends);
        backends.filter(|backend| backend.state == BackendState::Down).count()
    };
    assert_eq!((left("greedy"), left("victim")), (4, 6));
    assert_eq!(
        states(outcome.spec.services.iter().find(|s| s.namespace == "victim").expect("it is served")).len(),
        12
    );
}
