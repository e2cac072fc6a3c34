//! Services and endpoints that are created, deleted, fail and drain.

use super::*;
use tidegate_core::snapshot::{ForwardingMode, NoEndpoints, Protocol as CoreProtocol};

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
    assert_eq!(states(only(&outcome)), ["10.0.1.1:8080 down"], "its TCP flows stay until the drain timeout");
    assert_eq!(only(&outcome).no_endpoints, NoEndpoints::Reject);
    assert_eq!(outcome.reconcile_at, Some(Duration::from_secs(400)));
    world.now = Duration::from_secs(399);
    assert_eq!(states(only(&world.step())).len(), 1, "nothing prolongs the drain, nothing cuts it");
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
fn services_that_want_the_same_check_share_it() {
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
        ("10.0.1.2", ["10.0.1.1:8080 active", "10.0.1.2:8080 draining"]),
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
fn services_that_are_not_ours_are_left_alone() {
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
