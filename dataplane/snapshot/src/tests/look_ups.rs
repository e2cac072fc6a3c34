//! Tests of look-ups: services, backends, addresses, routes, endpoints.

use super::*;

#[test]
fn snapshots_are_read_by_many_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Snapshot>();
    shared::<NeighborTable>();
}

#[test]
fn a_packet_finds_its_service_backend_and_next_hop() {
    let mut spec = network(vec![service(
        "203.0.113.1",
        80,
        Nat,
        vec![backend("10.0.1.1", 8080), backend("172.16.0.1", 8080)],
    )]);
    spec.services[0].affinity = Some(Duration::from_secs(3));
    let neighbors = NeighborTable::new();
    let (snapshot, problems) = Snapshot::compile(&spec, None, &neighbors).unwrap();
    assert_eq!(problems, []);

    let service = find(&snapshot, &spec.services[0].key).unwrap();
    assert_eq!((service.affinity_ms, service.idle.millis()), (3_000, 900_000));
    assert_eq!(snapshot.service_info(service.id).unwrap().label(), "default/web:80");
    assert!(find(&snapshot, &ServiceKey { port: 81, ..spec.services[0].key }).is_none());
    assert!(find(&snapshot, &ServiceKey { protocol: Protocol::Udp, ..spec.services[0].key }).is_none());

    let mut seen = HashSet::new();
    for port in 0..200 {
        let hash = selection_hash(&addr("198.51.100.7"), port, &service.vip, 80, 6);
        service.prefetch_choice(hash);
        let id = service.select(hash).unwrap();
        snapshot.prefetch_backend(id);
        let backend = snapshot.backend(id).unwrap();
        let next_hop = neighbors.key(backend.neighbor).unwrap();
        let direct = backend.address == addr("10.0.1.1");
        assert_eq!(next_hop, (0, if direct { addr("10.0.1.1") } else { addr("10.0.255.254") }));
        assert_eq!((backend.service, backend.port, backend.mode), (service.id, 8080, Nat));
        let hash = Snapshot::hash_endpoint(&backend.address, 6, 8080);
        snapshot.prefetch_endpoint(hash);
        assert_eq!(snapshot.endpoint(hash, &backend.address, 6, 8080), Some(backend.endpoint));
        seen.insert(id);
    }
    assert_eq!(seen.len(), 2);
    let home = service.select(client_hash(&addr("198.51.100.7"))).unwrap();
    assert!(seen.contains(&home));
    assert_eq!(snapshot.next_hops().len(), 4 - 1, "one backend and two routers");
}

#[test]
fn addresses_and_routes_are_those_of_the_spec() {
    let spec = network(vec![service("203.0.113.1", 80, Nat, vec![]), service("10.0.0.1", 81, Nat, vec![])]);
    let neighbors = NeighborTable::new();
    let (snapshot, _) = Snapshot::compile(&spec, None, &neighbors).unwrap();
    assert_eq!(snapshot.address(&addr("203.0.113.1")), Some(AddressKind::Vip));
    assert_eq!(
        snapshot.address(&addr("10.0.0.1")),
        Some(AddressKind::Own(0)),
        "own, although it has a service port"
    );
    assert_eq!(snapshot.address(&addr("2001:db8::1")), Some(AddressKind::Own(0)));
    assert_eq!(snapshot.address(&addr("10.0.0.2")), Some(AddressKind::Snat));
    assert_eq!(snapshot.address(&addr("10.0.0.3")), None);
    assert_eq!(snapshot.snat_addresses(Family::V6), [addr("2001:db8::2")]);
    assert_eq!(snapshot.tunnel_source(Family::V4), Some(&"10.0.0.1".parse().unwrap()));
    assert_eq!(snapshot.interface(0).unwrap().source(Family::V6), Some(addr("2001:db8::1")));
    assert!(snapshot.interface(1).is_none());

    let on_link = snapshot.route(&addr("10.0.3.4")).unwrap();
    assert_eq!(on_link, NextHop { interface: 0, via: None, neighbor: None });
    let far = snapshot.route(&addr("198.51.100.1")).unwrap();
    assert_eq!(
        (far.via, far.neighbor),
        (Some(addr("10.0.255.254")), neighbors.lookup(0, &addr("10.0.255.254")))
    );
    let far = snapshot.route(&addr("2001:db8:9::1")).unwrap();
    assert_eq!(far.via, Some(addr("fe80::1")), "the only interface reaches link-local routers");
    assert_eq!(neighbors.key(far.neighbor.unwrap()), Some((0, addr("fe80::1"))));
}

#[test]
fn endpoints_of_dsr_services_are_no_sources_of_replies() {
    let spec = network(vec![
        service("203.0.113.1", 80, DsrL2, vec![backend("10.0.1.1", 80), backend("10.0.1.2", 80)]),
        service("203.0.113.2", 80, Nat, vec![backend("10.0.1.2", 80)]),
    ]);
    let snapshot = clean(&spec, None);
    let endpoint = |text: &str| {
        let address = addr(text);
        snapshot.endpoint(Snapshot::hash_endpoint(&address, 6, 80), &address, 6, 80)
    };
    assert_eq!(endpoint("10.0.1.1"), None);
    let shared = endpoint("10.0.1.2").unwrap();
    let users =
        snapshot.services().flat_map(|(_, info)| info.backends.iter()).filter(|b| b.endpoint == shared);
    assert_eq!(users.count(), 2, "one endpoint behind two services has one id");
    assert_eq!(snapshot.endpoint_key(shared).unwrap().address, addr("10.0.1.2"));
}

#[test]
fn draining_backends_and_those_of_weight_0_take_no_new_flow_but_exist() {
    let mut backends: Vec<_> = (1..=4).map(|n| backend(&format!("10.0.1.{n}"), 80)).collect();
    backends[0].state = BackendState::Draining;
    backends[1].state = BackendState::Down;
    backends[2].weight = 0;
    let spec = network(vec![service("203.0.113.1", 80, Nat, backends)]);
    let snapshot = clean(&spec, None);
    let (service, info) = snapshot.services().next().unwrap();
    assert_eq!(snapshot.shares(service), [0, 0, 0, 1]);
    assert!(info.backends.iter().all(|b| snapshot.backend(b.id).is_some_and(|hot| hot.state == b.state)));
}

#[test]
fn a_service_without_a_backend_that_takes_flows_selects_none() {
    let mut down = backend("10.0.1.1", 80);
    down.state = BackendState::Down;
    for backends in [vec![], vec![down]] {
        let snapshot = clean(&network(vec![service("203.0.113.1", 80, Nat, backends)]), None);
        let (service, _) = snapshot.services().next().unwrap();
        service.prefetch_choice(0);
        assert!(service.selector().is_empty());
        assert_eq!(service.select(u64::MAX), None);
    }
}

#[test]
fn several_ports_of_a_service_choose_the_same_endpoint_for_a_client() {
    let backends = |port: u16| (1..=5).map(|n| backend(&format!("10.0.1.{n}"), port + n)).collect();
    let mut spec = network(vec![
        service("203.0.113.1", 80, Nat, backends(8000)),
        service("203.0.113.1", 443, Nat, backends(9000)),
    ]);
    spec.services.iter_mut().for_each(|service| service.affinity = Some(Duration::from_secs(60)));
    let snapshot = clean(&spec, None);
    let services: Vec<_> = snapshot.services().map(|(service, _)| service).collect();
    for n in 0..100 {
        let hash = client_hash(&Addr::v4([198, 51, 100, n]));
        let chosen = |s: &Service| snapshot.backend(s.select(hash).unwrap()).unwrap().address;
        assert_eq!(chosen(services[0]), chosen(services[1]));
    }
}
