//! Node ports on the gateway's own addresses, and own cluster IPs (kubernetes.md, sections 1 and 3).

use super::*;
use tidegate_core::snapshot::{ForwardingMode, NoEndpoints};

fn node_port(name: &str, number: u16) -> Service {
    let mut service = service(name);
    service.service_type = ServiceType::NodePort;
    service.ports[0].node_port = Some(port(number));
    service
}

fn serving_node_ports(services: Vec<Service>, networks: &[&str]) -> World {
    let mut world = World::new(services, vec![http("web", vec![endpoint("10.0.1.1")])]);
    world.settings.node_port_addresses = networks.iter().map(|n| n.parse().expect("a network")).collect();
    world
}

fn keys(outcome: &Outcome) -> Vec<String> {
    outcome.spec.services.iter().map(|s| s.key.to_string()).collect()
}

#[test]
fn node_ports_are_served_on_own_addresses_that_node_port_addresses_allows() {
    let web = node_port("web", 30_080);
    assert!(serving_node_ports(vec![web.clone()], &[]).look().services.is_empty(), "off by default");
    let outcome = serving_node_ports(vec![web.clone()], &["0.0.0.0/0"]).look();
    assert_eq!(keys(&outcome), ["TCP 10.0.0.1:30080"]);
    assert_eq!(states(only(&outcome)), ["10.0.1.1:8080 active"]);
    assert!(!only(&outcome).announced, "the kernel answers for the gateway's own addresses");
    let outcome = serving_node_ports(vec![web], &["10.0.0.0/8", "2001:db8::/64"]).look();
    assert_eq!(keys(&outcome), ["TCP 10.0.0.1:30080", "TCP [2001:db8::1]:30080"]);
    let kinds: Vec<&str> = outcome.services[0].vips.iter().map(|v| v.kind.as_str()).collect();
    assert_eq!(kinds, ["NodePort", "NodePort"]);
}

#[test]
fn a_load_balancer_of_any_class_has_its_node_ports_too() {
    let mut web = node_port("web", 30_080);
    web.service_type = ServiceType::LoadBalancer;
    web.load_balancer_class = Some("example.com/other".into());
    let of_another = annotated(web.clone(), "service.beta.kubernetes.io/aws-load-balancer-internal", "true");
    let outcome = serving_node_ports(vec![of_another], &["0.0.0.0/0"]).look();
    assert_eq!(keys(&outcome), ["TCP 10.0.0.1:30080"], "its address is another's to give");
    assert_eq!(messages(&outcome), [] as [String; 0], "and so are its annotations");
    web.load_balancer_class = None;
    assert_eq!(serving_node_ports(vec![web], &["0.0.0.0/0"]).look().spec.services.len(), 2);
}

#[test]
fn source_ranges_filter_load_balancer_vips_only_not_node_ports_external_ips_or_cluster_ips() {
    let mut web = node_port("web", 30_080);
    web.service_type = ServiceType::LoadBalancer;
    web.source_ranges = vec!["192.168.0.0/16".parse().expect("a network")];
    web.external_ips = vec![ip("198.51.100.1")];
    web.cluster_ips = vec![ip("10.96.0.10")];
    let mut world = serving_node_ports(vec![web], &["0.0.0.0/0"]);
    world.settings.own_cluster_ips = true;
    let outcome = world.look();
    assert_eq!(outcome.spec.services.len(), 4);
    for spec in &outcome.spec.services {
        let is_load_balancer = spec.key.vip.to_string().starts_with("203.0.113.");
        assert_eq!(spec.source_ranges.is_some(), is_load_balancer, "{}", spec.key);
    }
}

#[test]
fn node_ports_need_nat() {
    let web = annotated(node_port("web", 30_080), "tidegate.dev/forwarding", "dsr-l2");
    let outcome = serving_node_ports(vec![web.clone()], &["0.0.0.0/0"]).look();
    assert!(outcome.spec.services.is_empty());
    assert_eq!(
        messages(&outcome),
        [
            "error: node port 30080 of port http of Service default/web is not programmed: dsr-l2 would leave the \
          gateway's own address as destination, and nobody else has it; accepted: forwarding nat or fullnat"
        ]
    );
    let mut balanced = web;
    balanced.service_type = ServiceType::LoadBalancer;
    balanced.ports[0].target_port = TargetPort::Number(port(80));
    let mut world = serving_node_ports(vec![balanced], &["0.0.0.0/0"]);
    world.set_slices(vec![slice("web", "web", &[("http", Protocol::Tcp, 80)], vec![endpoint("10.0.1.1")])]);
    let outcome = world.look();
    assert_eq!(only(&outcome).key.port, 80);
    assert!(messages(&outcome)[0].starts_with("warning: node port 30080"), "{:?}", messages(&outcome));
    assert_eq!(outcome.services[0].ports.len(), 1, "and it is not shown as a port that is missing");
}

#[test]
fn a_node_port_that_two_services_name_belongs_to_the_one_created_first() {
    let mut late = node_port("a", 30_080);
    let mut early = node_port("web", 30_080);
    late.meta.creation_time = Some(jiff::Timestamp::from_second(200).expect("a time"));
    early.meta.creation_time = Some(jiff::Timestamp::from_second(100).expect("a time"));
    let outcome = serving_node_ports(vec![late, early], &["0.0.0.0/0"]).look();
    assert_eq!(only(&outcome).name, "web");
    let conflict = &outcome.findings[0];
    assert_eq!(conflict.reason, Reason::Conflict);
    assert_eq!(
        conflict.diagnostic.to_string(),
        "error: node port 30080 of port http of Service default/a is not programmed: it belongs to Service \
         default/web; accepted: a node port of its own"
    );
    let loser = outcome.services.iter().find(|s| s.name == "a").expect("it is shown");
    assert_eq!(loser.ports[0].refused.as_deref(), Some("another Service has this port on this address"));
}

#[test]
fn a_health_check_node_port_comes_before_a_node_port_of_the_same_number() {
    let mut checked = service("checked");
    checked.external_traffic_policy = TrafficPolicy::Local;
    checked.health_check_node_port = Some(port(30_080));
    let outcome = serving_node_ports(vec![node_port("web", 30_080), checked], &["0.0.0.0/0"]).look();
    assert!(outcome.spec.services.iter().all(|s| s.name == "checked"));
    assert!(outcome.findings.iter().any(|f| f.reason == Reason::Conflict));
}

#[test]
fn cluster_ips_are_served_when_own_cluster_ips_is_on_and_not_announced() {
    let mut web = service("web");
    web.service_type = ServiceType::ClusterIp;
    web.cluster_ips = vec![ip("10.96.0.10"), ip("2001:db8:96::10")];
    let mut world = World::new(vec![web], vec![http("web", vec![endpoint("10.0.1.1")])]);
    assert!(world.look().services.is_empty(), "off by default");
    world.settings.own_cluster_ips = true;
    let outcome = world.look();
    assert_eq!(keys(&outcome), ["TCP 10.96.0.10:80", "TCP [2001:db8:96::10]:80"]);
    assert!(outcome.spec.services.iter().all(|s| !s.announced && s.mode == ForwardingMode::FullNat));
    assert_eq!(states(&outcome.spec.services[0]), ["10.0.1.1:8080 active"]);
    assert_eq!(states(&outcome.spec.services[1]), [] as [String; 0], "nat does not cross families");
}

#[test]
fn the_internal_policy_counts_for_cluster_ips_only_and_local_is_the_gateways_own_node() {
    let mut web = service("web");
    web.cluster_ips = vec![ip("10.96.0.10")];
    web.internal_traffic_policy = TrafficPolicy::Local;
    let slices = vec![http("web", vec![on(endpoint("10.0.1.1"), "a"), on(endpoint("10.0.1.2"), "b")])];
    let mut world = World::new(vec![web], slices);
    world.settings.own_cluster_ips = true;
    let look = |world: &World| {
        let outcome = world.look();
        let spec = |cluster: bool| {
            let found = outcome.spec.services.iter().find(|s| (s.key.vip == ip("10.96.0.10")) == cluster);
            found.expect("both are served").clone()
        };
        (spec(true), spec(false))
    };
    let (cluster, balanced) = look(&world);
    assert_eq!((states(&cluster).len(), cluster.no_endpoints), (0, NoEndpoints::Drop), "no node is ours");
    assert_eq!(states(&balanced).len(), 2);
    world.settings.node = Some("a".into());
    let (cluster, balanced) = look(&world);
    assert_eq!(states(&cluster), ["10.0.1.1:8080 active"]);
    assert_eq!(states(&balanced).len(), 2, "its policy is the external one, Cluster");
}

#[test]
fn a_cluster_ip_that_two_services_name_belongs_to_the_one_created_first_and_a_pool_comes_before_both() {
    let cluster = |name: &str, address: &str| {
        let mut service = service(name);
        service.service_type = ServiceType::ClusterIp;
        service.cluster_ips = vec![ip(address)];
        service
    };
    let mut balanced = service("balanced");
    balanced.load_balancer_ip = Some(ip("203.0.113.5"));
    let services =
        vec![cluster("b", "10.96.0.10"), cluster("a", "10.96.0.10"), cluster("c", "203.0.113.5"), balanced];
    let mut world = World::new(services, vec![]);
    world.settings.own_cluster_ips = true;
    let outcome = world.look();
    let owners: Vec<String> =
        outcome.spec.services.iter().map(|s| format!("{} {}", s.key.vip, s.name)).collect();
    assert_eq!(owners, ["10.96.0.10 a", "203.0.113.5 balanced"]);
    let conflicts = outcome.findings.iter().filter(|f| f.reason == Reason::Conflict);
    assert_eq!(conflicts.map(|f| f.object.name.as_str()).collect::<Vec<_>>(), ["b", "c"]);
}

#[test]
fn an_endpoint_that_is_a_cluster_ip_of_ours_is_refused() {
    let mut web = external("web", "198.51.100.1");
    web.cluster_ips = vec![ip("10.96.0.10")];
    let slices = vec![http("web", vec![endpoint("10.96.0.10"), endpoint("10.0.1.1")])];
    let mut world = World::new(vec![web], slices);
    world.settings.own_cluster_ips = true;
    let outcome = world.look();
    assert!(outcome.spec.services.iter().all(|s| states(s) == ["10.0.1.1:8080 active"]));
}
