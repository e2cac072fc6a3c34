//! `spec.externalIPs` with authorisation (kubernetes.md, section 7).

use super::*;

fn denied(world: &World) -> String {
    let outcome = world.look();
    assert!(outcome.spec.services.is_empty(), "{:?}", outcome.spec.services);
    let finding = outcome.findings.iter().find(|f| f.reason == Reason::ExternalIpDenied);
    let finding = finding.unwrap_or_else(|| panic!("denied: {:?}", messages(&outcome)));
    assert_eq!(finding.reason.as_str(), "ExternalIPDenied");
    finding.diagnostic.to_string()
}

#[test]
fn external_ips_are_honoured_only_inside_a_pool_that_authorises_them() {
    assert_eq!(World::new(vec![external("web", "198.51.100.1")], vec![]).look().spec.services.len(), 1);
    let of_no_pool = denied(&World::new(vec![external("web", "192.0.2.77")], vec![]));
    assert!(
        of_no_pool.contains("192.0.2.77 of Service default/web is denied: it is in no pool"),
        "{of_no_pool}"
    );
    let of_another = denied(&World::new(vec![external("web", "203.0.113.4")], vec![]));
    assert!(of_another.contains("pool public does not authorise external IPs"), "{of_another}");
}

#[test]
fn the_selectors_of_the_pool_decide_whose_external_ips_are_honoured() {
    let mut world = World::new(vec![external("web", "198.51.100.1")], vec![]);
    let edge = world.settings.pools.iter_mut().find(|p| p.name == "edge").expect("there is one");
    edge.service_selector.match_labels.insert("edge".into(), "yes".into());
    assert!(denied(&world).contains("the selectors of pool edge do not match"));
    let mut web = external("web", "198.51.100.1");
    web.meta.labels.insert("edge".into(), "yes".into());
    world.put(web);
    assert_eq!(only(&world.look()).key.vip, ip("198.51.100.1"));
}

#[test]
fn any_service_type_may_carry_external_ips_and_the_port_is_the_service_port() {
    for service_type in [ServiceType::ClusterIp, ServiceType::NodePort, ServiceType::LoadBalancer] {
        let mut web = external("web", "198.51.100.1");
        web.service_type = service_type;
        web.load_balancer_class = Some("example.com/other".into());
        web.ports[0].node_port = Some(port(30_080));
        let outcome = World::new(vec![web], vec![]).look();
        assert_eq!((only(&outcome).key.vip, only(&outcome).key.port), (ip("198.51.100.1"), 80));
    }
}

/// Every address that nobody may take, each inside a pool that would authorise it.
#[test]
fn never_a_gateways_own_address_a_nodes_an_api_servers_loopback_link_local_or_multicast() {
    for (address, whose) in [
        ("10.0.0.1", "an address of the gateway itself"),
        ("10.0.0.3", "an address of the gateway itself"),
        ("10.0.1.7", "an address of node n7"),
        ("192.0.2.7", "an address of node n7"),
        ("10.96.0.1", "an address of the API server"),
        ("10.0.2.1", "an address of the API server"),
        ("10.0.2.2", "an address of the API server"),
        ("10.0.2.3", "an address of the API server"),
        ("10.0.2.4", "an address of the API server"),
        ("127.0.0.1", "a loopback address"),
        ("169.254.1.1", "a link-local address"),
        ("224.0.0.5", "a multicast address"),
        ("2001:db8::1", "an address of the gateway itself"),
        ("::1", "a loopback address"),
        ("fe80::1", "a link-local address"),
        ("ff02::1", "a multicast address"),
    ] {
        let mut world = World::new(vec![external("web", address)], vec![]);
        let mut everything = pool("everything", &["0.0.0.0/0", "::/0"]);
        everything.external_ips = true;
        world.settings.pools = vec![everything];
        let mut n7 = node("n7", &["10.0.1.7"]);
        n7.external_ips = vec![ip("192.0.2.7")];
        world.put_node(n7);
        let mut kubernetes = service("kubernetes");
        kubernetes.service_type = ServiceType::ClusterIp;
        kubernetes.cluster_ips = vec![ip("10.96.0.1")];
        world.put(kubernetes);
        let mut api =
            slice("kubernetes", "kubernetes", &[("https", Protocol::Tcp, 6443)], vec![endpoint("10.0.2.1")]);
        api.meta.key = ObjectKey::new("default", "kubernetes");
        let mut second = slice(
            "kubernetes-x7k2p",
            "kubernetes",
            &[("https", Protocol::Tcp, 6443)],
            vec![endpoint("10.0.2.3")],
        );
        second.meta.key = ObjectKey::new("default", "kubernetes-x7k2p");
        world.set_slices(vec![api, second]);
        world.objects.api_servers.insert(ip("10.0.2.4"));
        let legacy = crate::model::Endpoints {
            meta: Metadata::new(ObjectKey::new("default", "kubernetes")),
            subsets: vec![crate::model::Subset {
                addresses: vec![crate::model::EndpointAddress {
                    ip: ip("10.0.2.2"),
                    node_name: None,
                    target_ref: None,
                }],
                not_ready_addresses: vec![],
                ports: vec![],
            }],
        };
        world.objects.endpoints.insert(legacy.meta.key.clone(), Arc::new(legacy));
        let message = denied(&world);
        assert!(message.contains(&format!("is denied: {whose}")), "{address}: {message}");
    }
}

#[test]
fn an_address_of_a_pool_that_is_a_nodes_is_given_to_nobody() {
    let mut world = World::new(vec![], vec![]);
    world.put_node(node("n7", &["203.0.113.4"]));
    for i in 0..16 {
        world.put(service(&format!("s{i}")));
    }
    let outcome = world.look();
    let given: BTreeSet<IpAddr> = outcome.spec.services.iter().map(|s| s.key.vip).collect();
    assert_eq!((given.len(), given.contains(&ip("203.0.113.4"))), (15, false));
    let mut asks = service("s0");
    asks.load_balancer_ip = Some(ip("203.0.113.4"));
    let mut world = World::new(vec![asks], vec![]);
    world.put_node(node("n7", &["203.0.113.4"]));
    assert!(messages(&world.look())[0].contains("an address of node n7"));
}
