//! Compiled snapshots against the spec: look-ups, ids over chains of compiles, shared tables, every problem.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::addresses::AddressKind;
use crate::hash::{client_hash, selection_hash};
use crate::ids::BackendId;
use crate::limits;
use crate::neighbors::{NeighborState, NeighborTable};
use crate::routes::NextHop;
use crate::selector::Selector;
use crate::service::{Service, ServiceInfo};
use crate::wire::{Addr, Family, MacAddr};
use ForwardingMode::{DsrIpip, DsrL2, FullNat, Nat};

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn addr(text: &str) -> Addr {
    ip(text).into()
}

fn backend(address: &str, port: u16) -> BackendSpec {
    BackendSpec { address: ip(address), port, weight: 1, state: BackendState::Active }
}

fn service(vip: &str, port: u16, mode: ForwardingMode, backends: Vec<BackendSpec>) -> ServiceSpec {
    ServiceSpec {
        key: ServiceKey { vip: ip(vip), protocol: Protocol::Tcp, port },
        namespace: "default".into(),
        name: "web".into(),
        port_name: port.to_string(),
        mode,
        scheduler: Scheduler::Rendezvous,
        affinity: None,
        no_endpoints: NoEndpoints::Reject,
        idle_timeout_tcp: Duration::from_secs(900),
        idle_timeout_udp: Duration::from_secs(60),
        source_ranges: None,
        announced: true,
        backends,
    }
}

/// One interface with both families, a default route each, SNAT addresses and tunnel sources.
fn network(services: Vec<ServiceSpec>) -> SnapshotSpec {
    SnapshotSpec {
        generation: 1,
        network: NetworkSpec {
            interfaces: vec![InterfaceSpec {
                name: "uplink".into(),
                mac: MAC,
                mtu: 1500,
                vlan: None,
                addresses: vec!["10.0.0.1/16".parse().unwrap(), "2001:db8::1/64".parse().unwrap()],
            }],
            routes: vec![
                RouteSpec { to: "0.0.0.0/0".parse().unwrap(), via: ip("10.0.255.254") },
                RouteSpec { to: "::/0".parse().unwrap(), via: ip("fe80::1") },
            ],
            neighbors: Vec::new(),
            snat_addresses: vec![ip("10.0.0.2"), ip("2001:db8::2")],
            tunnel_source_v4: Some(Ipv4Addr::new(10, 0, 0, 1).into()),
            tunnel_source_v6: Some("2001:db8::1".parse().unwrap()),
            policy: Policy::default(),
        }
        .into(),
        services: services.into_iter().map(Into::into).collect(),
    }
}

const MAGLEV: Scheduler = Scheduler::Maglev { slots: 65_537 };

/// The Maglev table of a service that has one.
fn table_of(service: &Service) -> &Arc<[u16]> {
    match service.selector() {
        Selector::Maglev(slots) => slots.table(),
        Selector::Rendezvous(_) => panic!("a service with scheduler maglev"),
    }
}

fn compile(spec: &SnapshotSpec, previous: Option<&Snapshot>) -> (Snapshot, Vec<Problem>) {
    Snapshot::compile(spec, previous, &NeighborTable::with_capacity(40_000)).unwrap()
}

fn clean(spec: &SnapshotSpec, previous: Option<&Snapshot>) -> Snapshot {
    let (snapshot, problems) = compile(spec, previous);
    assert_eq!(problems, []);
    snapshot
}

fn find<'a>(snapshot: &'a Snapshot, key: &ServiceKey) -> Option<&'a Service> {
    let (vip, proto) = (Addr::from(key.vip), key.protocol.number());
    snapshot.service(Snapshot::hash_service(&vip, proto, key.port), &vip, proto, key.port)
}

/// Backends of one snapshot by what they are.
fn backend_ids(snapshot: &Snapshot) -> BTreeMap<(ServiceKey, Addr, u16), BackendId> {
    let of = |info: &ServiceInfo| {
        let key = info.key;
        info.backends.iter().map(|b| ((key, b.address, b.port), b.id)).collect::<Vec<_>>()
    };
    snapshot.services().flat_map(|(_, info)| of(info)).collect()
}

#[test]
fn snapshots_are_read_by_many_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Snapshot>();
    shared::<NeighborTable>();
}

#[test]
fn a_packet_finds_its_service_its_backend_and_the_way_there() {
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
    assert_eq!((service.affinity_ms, service.idle_tcp_ms, service.idle_udp_ms), (3_000, 900_000, 60_000));
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
        "own, though it has a service port"
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
    assert_eq!(far.via, Some(addr("fe80::1")), "link-local routers are reached by the only interface");
    assert_eq!(neighbors.key(far.neighbor.unwrap()), Some((0, addr("fe80::1"))));
}

#[test]
fn endpoints_of_dsr_services_are_not_told_as_sources_of_replies() {
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
    let holders =
        snapshot.services().flat_map(|(_, info)| info.backends.iter()).filter(|b| b.endpoint == shared);
    assert_eq!(holders.count(), 2, "one endpoint behind two services has one id");
    assert_eq!(snapshot.endpoint_key(shared).unwrap().address, addr("10.0.1.2"));
}

#[test]
fn backends_that_drain_or_weigh_nothing_take_no_new_flow_and_are_still_there() {
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
fn ids_stay_with_what_lives_and_stale_ones_find_nothing() {
    let one = network(vec![
        service(
            "203.0.113.1",
            80,
            Nat,
            vec![backend("10.0.1.1", 80), backend("10.0.1.2", 80), backend("10.0.1.3", 80)],
        ),
        service("203.0.113.2", 80, Nat, vec![backend("10.0.1.1", 80)]),
    ]);
    let first = clean(&one, None);
    let before = backend_ids(&first);

    let mut two = one.clone();
    two.services[0].backends.remove(1);
    two.services[0].backends.push(backend("10.0.1.9", 80));
    two.services.remove(1);
    two.services.push(service("203.0.113.0", 80, Nat, vec![backend("10.0.1.1", 80)]).into());
    let second = clean(&two, Some(&first));
    let after = backend_ids(&second);

    for (what, id) in &after {
        match before.get(what) {
            Some(old) => assert_eq!(id, old, "{what:?}"),
            None => assert!(!before.values().any(|old| old == id), "{what:?}"),
        }
    }
    let gone: Vec<_> = before.iter().filter(|(what, _)| !after.contains_key(what)).collect();
    assert_eq!(gone.len(), 2);
    assert!(gone.iter().all(|(_, id)| second.backend(**id).is_none()));
    assert_eq!(second.backend_indices(), 4, "free indices are used again");
    let old = find(&first, &one.services[1].key).unwrap().id;
    assert!(second.service_by_id(old).is_none() && second.service_info(old).is_none());
    assert_eq!(second.service_indices(), 2);

    // Nothing left, then everything again: the indices come back, the ids do not.
    let empty = clean(&network(vec![]), Some(&second));
    assert!(after.values().all(|id| empty.backend(*id).is_none()));
    let again = clean(&one, Some(&empty));
    assert!(
        backend_ids(&again).values().all(|id| first.backend(*id).is_none() && second.backend(*id).is_none())
    );
    assert_eq!(again.backend_indices(), 4);
}

#[test]
fn a_change_from_or_to_nat_makes_other_backends_and_one_between_dsr_modes_does_not() {
    let spec = |mode| network(vec![service("203.0.113.1", 80, mode, vec![backend("10.0.1.1", 80)])]);
    let id = |snapshot: &Snapshot| *backend_ids(snapshot).values().next().unwrap();
    let l2 = clean(&spec(DsrL2), None);
    let ipip = clean(&spec(DsrIpip), Some(&l2));
    assert_eq!(id(&ipip), id(&l2));
    let nat = clean(&spec(Nat), Some(&ipip));
    let fullnat = clean(&spec(FullNat), Some(&nat));
    assert!(id(&nat) != id(&ipip) && id(&fullnat) != id(&nat));
    assert_eq!(fullnat.services().next().unwrap().0.id, l2.services().next().unwrap().0.id);
}

#[test]
fn equal_tables_are_one_over_services_ports_and_snapshots() {
    let backends = |port| vec![backend("10.0.1.1", port), backend("10.0.1.2", port)];
    let mut spec = network(vec![
        service("203.0.113.1", 80, Nat, backends(8080)),
        service("203.0.113.1", 443, Nat, backends(8443)),
        service("203.0.113.2", 80, Nat, vec![backend("10.0.1.1", 80)]),
    ]);
    spec.services.iter_mut().for_each(|service| service.scheduler = MAGLEV);
    let first = clean(&spec, None);
    let tables = |snapshot: &Snapshot| {
        snapshot.services().map(|(service, _)| Arc::clone(table_of(service))).collect::<Vec<_>>()
    };
    let before = tables(&first);
    assert!(Arc::ptr_eq(&before[0], &before[1]) && !Arc::ptr_eq(&before[0], &before[2]));
    assert_eq!(first.tables(), 2);

    spec.services[2].backends.push(backend("10.0.1.3", 80));
    let second = clean(&spec, Some(&first));
    let after = tables(&second);
    assert!(Arc::ptr_eq(&before[0], &after[0]) && !Arc::ptr_eq(&before[2], &after[2]));
    assert_eq!(second.tables(), 2, "tables that nobody uses are not carried on");
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

#[test]
fn fixed_neighbours_are_set_and_taken_back() {
    let neighbors = NeighborTable::with_capacity(16);
    let mut spec = network(vec![]);
    spec.network.neighbors = vec![
        NeighborSpec { ip: ip("10.0.255.254"), mac: MAC },
        NeighborSpec { ip: ip("192.0.2.1"), mac: MAC },
    ];
    let (first, problems) = Snapshot::compile(&spec, None, &neighbors).unwrap();
    assert_eq!(problems, [Problem::NeighborOffLink { ip: ip("192.0.2.1") }]);
    let slot = first.route(&addr("198.51.100.1")).unwrap().neighbor.unwrap();
    assert_eq!(neighbors.state(slot), NeighborState::Static(MAC));
    spec.network.neighbors.clear();
    Snapshot::compile(&spec, Some(&first), &neighbors).unwrap();
    assert_eq!(neighbors.state(slot), NeighborState::Unresolved);
}

/// The reason for which the only backend of the spec is left out.
fn reason(spec: &SnapshotSpec) -> BackendProblem {
    let (snapshot, problems) = compile(spec, None);
    let (service, info) = snapshot.services().next().unwrap();
    assert!(info.backends.is_empty() && service.selector().is_empty(), "left out, and its service stays");
    let [Problem::Backend { reason, label, .. }] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!(label, &spec.services[0].label());
    *reason
}

#[test]
fn each_backend_problem_leaves_that_backend_out_and_says_why() {
    let with = |vip, mode, address, port| network(vec![service(vip, 80, mode, vec![backend(address, port)])]);
    let v4 = |mode, address, port| with("203.0.113.1", mode, address, port);
    assert_eq!(reason(&v4(DsrL2, "172.16.0.1", 80)), BackendProblem::NotOnLink);
    for mode in [DsrL2, DsrIpip] {
        assert_eq!(
            reason(&v4(mode, "10.0.1.1", 8080)),
            BackendProblem::PortDiffers { mode, service_port: 80, backend_port: 8080 }
        );
    }
    for mode in [DsrL2, Nat, FullNat] {
        assert_eq!(reason(&v4(mode, "2001:db8::9", 80)), BackendProblem::FamilyDiffers { mode });
        assert_eq!(
            reason(&with("2001:db8:1::1", mode, "10.0.1.1", 80)),
            BackendProblem::FamilyDiffers { mode }
        );
    }
    for own in ["10.0.0.1", "10.0.0.2", "203.0.113.1"] {
        assert_eq!(reason(&v4(Nat, own, 80)), BackendProblem::AddressIsOurs);
    }
    assert_eq!(reason(&v4(Nat, "10.0.1.1", 0)), BackendProblem::PortZero);

    let mut spec = v4(FullNat, "10.0.1.1", 80);
    spec.network.snat_addresses.retain(IpAddr::is_ipv6);
    assert_eq!(reason(&spec), BackendProblem::NoSnatAddress);
    let mut spec = v4(DsrIpip, "10.0.1.1", 80);
    spec.network.tunnel_source_v4 = None;
    assert_eq!(reason(&spec), BackendProblem::NoTunnelSource);
    let mut spec = v4(Nat, "172.16.0.1", 80);
    spec.network.routes.clear();
    assert_eq!(reason(&spec), BackendProblem::NoRoute);

    let spec = v4(Nat, "10.0.1.1", 80);
    let (_, problems) = Snapshot::compile(&spec, None, &NeighborTable::with_capacity(2)).unwrap();
    assert!(matches!(problems[..], [Problem::Backend { reason: BackendProblem::NeighborTableFull, .. }]));
}

#[test]
fn tunnels_cross_families_and_the_rest_of_a_service_works_beside_a_problem() {
    let backends = vec![backend("2001:db8::9", 80), backend("10.0.1.1", 80), backend("10.0.1.2", 8080)];
    let (snapshot, problems) = compile(&network(vec![service("203.0.113.1", 80, DsrIpip, backends)]), None);
    let (_, info) = snapshot.services().next().unwrap();
    let addresses: Vec<_> = info.backends.iter().map(|b| b.address).collect();
    assert_eq!(addresses, [addr("10.0.1.1"), addr("2001:db8::9")]);
    assert_eq!(problems.len(), 1);
    assert_eq!(
        problems[0].to_string(),
        "default/web:80 (TCP 203.0.113.1:80): backend 10.0.1.2:8080 is left out: \
         dsr-ipip cannot change the port: 80 differs from 8080"
    );
}

#[test]
fn problems_of_routes_neighbours_and_tables_are_told() {
    let route = |to: &str, via: &str| RouteSpec { to: to.parse().unwrap(), via: ip(via) };
    let problem = |spec: &SnapshotSpec, capacity| {
        let mut problems = Snapshot::compile(spec, None, &NeighborTable::with_capacity(capacity)).unwrap().1;
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems.pop().unwrap()
    };
    let mut spec = network(vec![]);
    spec.network.routes = vec![route("10.9.0.0/16", "192.0.2.1")];
    let (to, via) = (spec.network.routes[0].to, ip("192.0.2.1"));
    assert_eq!(problem(&spec, 9), Problem::RouterOffLink { to, via });
    spec.network.routes = vec![route("10.0.0.0/16", "10.0.0.9")];
    let (to, via) = (spec.network.routes[0].to, ip("10.0.0.9"));
    assert_eq!(problem(&spec, 9), Problem::RouteShadowed { to, via });
    spec.network.routes = vec![route("0.0.0.0/0", "10.0.0.9")];
    let to = spec.network.routes[0].to;
    assert_eq!(problem(&spec, 0), Problem::RouterTableFull { to, via });
    spec.network.routes.clear();
    spec.network.neighbors = vec![NeighborSpec { ip: via, mac: MAC }];
    assert_eq!(problem(&spec, 0), Problem::NeighborTableFull { ip: via });

    let mut spec = network(vec![service(
        "203.0.113.1",
        80,
        Nat,
        vec![backend("10.0.1.1", 80), backend("10.0.1.2", 80), backend("10.0.1.3", 80)],
    )]);
    spec.services[0].scheduler = Scheduler::Maglev { slots: 2 };
    let key = spec.services[0].key;
    assert_eq!(
        problem(&spec, 9),
        Problem::TableTooSmall { service: key, label: "default/web:80".into(), slots: 2, backends: 3 }
    );
    let heavy = |n| BackendSpec { weight: u16::MAX, ..backend(&format!("10.0.1.{n}"), 80) };
    let spec = network(vec![service("203.0.113.1", 80, Nat, (1..=9).map(heavy).collect())]);
    let sum = 9 * u64::from(u16::MAX);
    let divided = Problem::WeightsDivided { service: key, label: "default/web:80".into(), sum, divisor: 2 };
    assert_eq!(problem(&spec, 16), divided);
    assert_eq!(
        divided.to_string(),
        "default/web:80 (TCP 203.0.113.1:80): the weights of its backends sum to 589815, above 500000, and are divided \
         by 2"
    );
}

#[test]
fn each_compile_error_refuses_the_spec_and_leaves_the_neighbour_table_alone() {
    let error = |change: &dyn Fn(&mut SnapshotSpec)| {
        let mut spec = network(vec![service("203.0.113.1", 80, Nat, vec![backend("10.0.1.1", 80)])]);
        spec.network.neighbors = vec![NeighborSpec { ip: ip("10.0.0.9"), mac: MAC }];
        change(&mut spec);
        let neighbors = NeighborTable::with_capacity(16);
        let error = Snapshot::compile(&spec, None, &neighbors).expect_err("refused");
        assert!(neighbors.is_empty());
        error
    };
    let service = ServiceKey { vip: ip("203.0.113.1"), protocol: Protocol::Tcp, port: 80 };
    let too_many = |what, max| CompileError::TooMany { what, count: max + 1, max };

    assert_eq!(
        error(&|spec| spec.network.interfaces =
            vec![
                InterfaceSpec { addresses: vec![], ..spec.network.interfaces[0].clone() };
                limits::INTERFACES_MAX + 1
            ]),
        too_many("interfaces", limits::INTERFACES_MAX)
    );
    assert_eq!(
        error(&|spec| spec.network.routes = vec![spec.network.routes[0].clone(); limits::ROUTES_MAX + 1]),
        too_many("routes", limits::ROUTES_MAX)
    );
    assert_eq!(
        error(&|spec| spec.network.snat_addresses = vec![ip("10.0.0.2"); limits::SNAT_ADDRESSES_MAX + 1]),
        too_many("snatAddresses", limits::SNAT_ADDRESSES_MAX)
    );
    assert_eq!(
        error(&|spec| spec.network.neighbors =
            vec![spec.network.neighbors[0].clone(); limits::NEXT_HOPS_MAX + 1]),
        too_many("neighbors", limits::NEXT_HOPS_MAX)
    );
    assert_eq!(
        error(&|spec| spec.services = vec![spec.services[0].clone(); limits::SERVICES_MAX + 1]),
        too_many("service ports", limits::SERVICES_MAX)
    );
    assert_eq!(
        error(&|spec| spec.services[0].backends = vec![backend("10.0.1.1", 80); limits::BACKENDS_MAX + 1]),
        too_many("backends", limits::BACKENDS_MAX)
    );
    assert_eq!(
        error(&|spec| spec.services[0].backends =
            vec![backend("10.0.1.1", 80); limits::BACKENDS_PER_SERVICE_MAX + 1]),
        CompileError::TooManyBackends { service, count: limits::BACKENDS_PER_SERVICE_MAX + 1 }
    );
    assert_eq!(
        error(&|spec| spec
            .services
            .push(ServiceSpec { name: "other".into(), ..ServiceSpec::clone(&spec.services[0]) }.into())),
        CompileError::DuplicateService { service }
    );
    assert_eq!(
        error(&|spec| spec.services[0].backends.push(BackendSpec { weight: 7, ..backend("10.0.1.1", 80) })),
        CompileError::DuplicateBackend { service, backend: "10.0.1.1:80".parse().unwrap() }
    );
    assert_eq!(
        error(&|spec| spec.services[0].key.port = 0),
        CompileError::ServicePortZero { service: ServiceKey { port: 0, ..service } }
    );
    for size in [0, 1, 1_000, 655_379] {
        assert_eq!(
            error(&|spec| spec.services[0].scheduler = Scheduler::Maglev { slots: size }),
            CompileError::TableSize { service, size }
        );
    }
    for vlan in [0, 4_095, u16::MAX] {
        assert_eq!(
            error(&|spec| spec.network.interfaces[0].vlan = Some(vlan)),
            CompileError::Vlan { interface: "uplink".into(), vlan }
        );
    }
    assert_eq!(
        error(&|spec| spec.network.interfaces.extend_from_within(..1)),
        CompileError::DuplicateAddress { address: ip("10.0.0.1") }
    );
    assert_eq!(
        error(&|spec| spec.network.neighbors.extend_from_within(..1)),
        CompileError::DuplicateNeighbor { ip: ip("10.0.0.9") }
    );
    assert_eq!(
        error(&|spec| spec
            .network
            .routes
            .push(RouteSpec { to: "0.0.0.0/0".parse().unwrap(), via: ip("10.0.0.8") })),
        CompileError::DuplicateRoute { to: "0.0.0.0/0".parse().unwrap() }
    );
}

#[test]
fn ten_thousand_backends_of_one_service_all_take_part() {
    let backends =
        (0..10_000_u16).map(|n| backend(&format!("10.0.{}.{}", 1 + n / 250, n % 250), 80)).collect();
    let mut spec = network(vec![service("203.0.113.1", 80, Nat, backends)]);
    let started = Instant::now();
    let first = clean(&spec, None);
    let built = started.elapsed();
    let (service, _) = first.services().next().unwrap();
    assert!(first.shares(service).iter().all(|&seats| seats == 1));
    spec.generation = 2;
    let started = Instant::now();
    let second = clean(&spec, Some(&first));
    println!("10,000 backends: {built:?}, again {:?}", started.elapsed());
    assert_eq!(backend_ids(&first), backend_ids(&second));
}

#[test]
fn prints_how_long_a_thousand_services_of_ten_backends_take() {
    let services = (0..1_000_u16)
        .map(|n| {
            let backends =
                (0..10).map(|b| backend(&format!("10.0.{}.{}", 1 + n / 25, n % 25 * 10 + b), 8080));
            service(&format!("203.0.{}.{}", n / 250, n % 250), 80, Nat, backends.collect())
        })
        .collect();
    let mut spec = network(services);
    let neighbors = NeighborTable::new();
    let started = Instant::now();
    let (first, problems) = Snapshot::compile(&spec, None, &neighbors).unwrap();
    let built = started.elapsed();
    assert_eq!(problems, []);
    let bytes = |service: &Service| match service.selector() {
        Selector::Rendezvous(seats) => seats.bytes(),
        Selector::Maglev(_) => panic!("not asked for"),
    };
    let bytes: usize = first.services().map(|(service, _)| bytes(service)).sum();
    assert!(bytes <= 500_000, "{bytes} bytes to choose by: 10,000 services stay below 5 MB");
    spec.services[500].backends.pop();
    let started = Instant::now();
    let (second, _) = Snapshot::compile(&spec, Some(&first), &neighbors).unwrap();
    println!("1,000 services of 10 backends: {built:?}; one changed: {:?}", started.elapsed());
    assert_eq!((first.services().len(), second.backend_indices()), (1_000, 10_000));
}

/// Few distinct keys, so that chains of specs meet the same things again.
fn any_services() -> impl Strategy<Value = Vec<ServiceSpec>> {
    let state = prop_oneof![
        3 => Just(BackendState::Active), 1 => Just(BackendState::Draining), 1 => Just(BackendState::Down)
    ];
    let backends = proptest::collection::hash_map((1_u8..8, 80_u16..83), (0_u16..4, state), 0..8);
    let key = (0_u8..4, 80_u16..82, any::<bool>(), any::<bool>());
    let services = proptest::collection::hash_map(key, (backends, 0_usize..4), 0..8);
    services.prop_map(|services| {
        type Listed = HashMap<(u8, u16), (u16, BackendState)>;
        let one = |((vip, port, udp, v6), (backends, mode)): ((u8, u16, bool, bool), (Listed, usize))| {
            let (vip, base) = if v6 {
                (format!("2001:db8:1::{vip}"), "2001:db8::10")
            } else {
                (format!("203.0.113.{vip}"), "10.0.1.")
            };
            let backends = backends.into_iter().map(|((host, port), (weight, state))| BackendSpec {
                weight,
                state,
                ..backend(&format!("{base}{host}"), port)
            });
            let mut service = service(&vip, port, ForwardingMode::ALL[mode], backends.collect());
            service.scheduler =
                [Scheduler::Rendezvous, Scheduler::Maglev { slots: 251 }][usize::from(port % 2)];
            service.key.protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
            service
        };
        services.into_iter().map(one).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn look_ups_agree_with_maps_of_the_spec_over_chains_of_compiles(chain in proptest::collection::vec(any_services(), 1..4)) {
        let neighbors = NeighborTable::with_capacity(256);
        let mut previous: Option<Snapshot> = None;
        let mut all_ids: HashMap<BackendId, (ServiceKey, Addr, u16)> = HashMap::new();
        for services in chain {
            let spec = network(services);
            let (snapshot, problems) = Snapshot::compile(&spec, previous.as_ref(), &neighbors).unwrap();

            let oracle: HashMap<ServiceKey, &ServiceSpec> = spec.services.iter().map(|s| (s.key, &**s)).collect();
            for vip in 0..4 {
                for vip in [ip(&format!("203.0.113.{vip}")), ip(&format!("2001:db8:1::{vip}"))] {
                    for port in 79..83 {
                        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                            let key = ServiceKey { vip, protocol, port };
                            let found = find(&snapshot, &key);
                            prop_assert_eq!(found.is_some(), oracle.contains_key(&key));
                            if let Some(service) = found {
                                prop_assert_eq!(snapshot.service_info(service.id).unwrap().key, key);
                                prop_assert_eq!(snapshot.service_by_id(service.id).unwrap().id, service.id);
                            }
                        }
                    }
                }
            }

            let mut replies = HashMap::new();
            let programmed: usize = snapshot.services().map(|(_, info)| info.backends.len()).sum();
            let listed: usize = spec.services.iter().map(|s| s.backends.len()).sum();
            prop_assert_eq!(programmed + problems.len(), listed);
            let mut ids = HashSet::new();
            for (service, info) in snapshot.services() {
                for (position, b) in info.backends.iter().enumerate() {
                    prop_assert!(ids.insert(b.id));
                    let hot = snapshot.backend(b.id).unwrap();
                    prop_assert_eq!((hot.address, hot.port, hot.service, hot.endpoint), (b.address, b.port, service.id, b.endpoint));
                    let wanted = oracle[&info.key].backends.iter().find(|w| Addr::from(w.address) == b.address && w.port == b.port).unwrap();
                    prop_assert_eq!((b.weight, b.state), (wanted.weight, wanted.state));
                    if b.weight == 0 || b.state != BackendState::Active {
                        prop_assert_eq!(snapshot.shares(service)[position], 0);
                    }
                    if !info.mode.is_dsr() {
                        replies.insert((b.address, info.key.protocol.number(), b.port), b.endpoint);
                    }
                    // An id means one thing over the whole chain.
                    let what = (info.key, b.address, b.port);
                    prop_assert_eq!(*all_ids.entry(b.id).or_insert(what), what);
                }
                for hash in (0..50).map(crate::hash::mix) {
                    let takes = |b: &&crate::service::BackendInfo| b.state == BackendState::Active && b.weight > 0;
                    let chosen = service.select(hash);
                    prop_assert_eq!(chosen.is_some(), info.backends.iter().any(|b| takes(&b)));
                    prop_assert!(chosen.is_none_or(|id| info.backends.iter().filter(takes).any(|b| b.id == id)));
                }
            }
            for id in all_ids.keys() {
                prop_assert_eq!(snapshot.backend(*id).is_some(), ids.contains(id));
            }
            for host in 1..8 {
                for address in [addr(&format!("10.0.1.{host}")), addr(&format!("2001:db8::10{host}"))] {
                    for (port, proto) in (79..84).flat_map(|port| [6, 17, 132].map(|proto| (port, proto))) {
                        let found = snapshot.endpoint(Snapshot::hash_endpoint(&address, proto, port), &address, proto, port);
                        prop_assert_eq!(found, replies.get(&(address, proto, port)).copied());
                    }
                }
            }
            previous = Some(snapshot);
        }
    }

    #[test]
    fn the_order_of_the_spec_does_not_matter(services in any_services(), seed in any::<u64>()) {
        let spec = network(services);
        let mut shuffled = spec.clone();
        shuffle(&mut shuffled.services, seed);
        shuffled.services.iter_mut().for_each(|service| shuffle(&mut service.backends, seed));
        shuffled.network.routes.reverse();
        shuffled.network.snat_addresses.reverse();
        let (one, problems) = compile(&spec, None);
        let (other, other_problems) = compile(&shuffled, None);
        prop_assert_eq!(problems, other_problems);
        for ((a, a_info), (b, b_info)) in one.services().zip(other.services()) {
            prop_assert_eq!(a_info, b_info);
            for hash in (0..50).map(crate::hash::mix) {
                prop_assert_eq!(a.select(hash), b.select(hash));
            }
        }
        prop_assert_eq!(one.services().len(), other.services().len());
        prop_assert_eq!(one.addresses().collect::<Vec<_>>(), other.addresses().collect::<Vec<_>>());
        prop_assert_eq!(one.snat_addresses(Family::V4), other.snat_addresses(Family::V4));
    }
}

fn shuffle<T>(list: &mut [T], seed: u64) {
    for at in (1..list.len()).rev() {
        let hash = client_hash(&Addr::v6((u128::from(seed) << 64 | at as u128).to_be_bytes()));
        list.swap(at, (hash % (at as u64 + 1)) as usize);
    }
}

#[test]
fn next_hops_that_no_snapshot_names_any_more_give_their_slots_up() {
    let neighbors = NeighborTable::with_capacity(64);
    let mut spec = network(vec![service("203.0.113.1", 80, Nat, vec![backend("10.0.1.1", 80)])]);
    let (mut snapshot, _) = Snapshot::compile(&spec, None, &neighbors).unwrap();
    for n in 0..1_000_u32 {
        spec.generation += 1;
        let [.., c, d] = n.to_be_bytes();
        let mut changed = ServiceSpec::clone(&spec.services[0]);
        changed.backends = vec![backend(&format!("10.0.{}.{d}", 100 + c), 80)];
        spec.services = vec![changed.into()];
        // Now and then from scratch, most often revised.
        if n % 100 == 99 {
            spec.network.routes.reverse();
        }
        let (next, problems) = Snapshot::compile(&spec, Some(&snapshot), &neighbors).unwrap();
        assert_eq!(problems, [], "after {n} changes");
        for slot in next.next_hops() {
            let (interface, addr) = neighbors.key(slot).expect("it is held");
            assert_eq!(neighbors.lookup(interface, &addr), Some(slot));
        }
        snapshot = next;
    }
    drop(snapshot);
    assert!(neighbors.is_empty(), "{:?}", neighbors.usage());
}
