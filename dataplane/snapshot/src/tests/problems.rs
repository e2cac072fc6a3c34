//! Parts left out of a snapshot, with the reported reasons.

use super::*;

/// The reason why the only backend of the spec is left out.
fn reason(spec: &SnapshotSpec) -> BackendProblem {
    let (snapshot, problems) = compile(spec, None);
    let (service, info) = snapshot.services().next().unwrap();
    assert!(info.backends.is_empty() && service.selector().is_empty(), "left out, and its service stays");
    let [Problem::Backend { reason, label, .. }] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!(label, &spec.services[0].label());
    *reason
}

#[test]
fn each_backend_problem_leaves_that_backend_out_and_is_reported() {
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
fn tunnels_cross_families_and_a_problem_leaves_the_rest_working() {
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
fn problems_of_routes_neighbours_and_tables_are_reported() {
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
    let divided = Problem::WeightsDivided {
        service: key,
        label: "default/web:80".into(),
        sum,
        max: tidegate_spec::limits::RENDEZVOUS_SEATS_MAX,
        divisor: 2,
    };
    assert_eq!(problem(&spec, 16), divided);
    assert_eq!(
        divided.to_string(),
        "default/web:80 (TCP 203.0.113.1:80): the weights of the backends sum to 589815, but the maximum is \
         500000: every weight is divided by 2"
    );
}

/// Two services with backends on the link.
fn short(own: &[&str]) -> SnapshotSpec {
    let backends = |all: &[&str]| all.iter().map(|at| backend(at, 80)).collect();
    network(vec![
        service("203.0.113.1", 80, Nat, backends(own)),
        service("203.0.113.2", 80, Nat, backends(&["10.0.1.9"])),
    ])
}

#[test]
fn every_compile_retries_a_backend_left_out_of_a_full_table() {
    let mut spec = short(&["10.0.1.1", "10.0.1.2", "10.0.1.3"]);
    let routers = compile(&network(vec![]), None).0.next_hops().len();
    let neighbors = NeighborTable::with_capacity(routers + 3);
    let (first, problems) = Snapshot::compile(&spec, None, &neighbors).unwrap();
    assert!(problems.iter().all(Problem::is_neighbor_table_full) && problems.len() == 1, "{problems:?}");
    spec.services[0] = short(&["10.0.1.1"]).services.swap_remove(0);
    spec.generation += 1;
    let (second, _) = Snapshot::compile(&spec, Some(&first), &neighbors).unwrap();
    drop(first);
    spec.generation += 1;
    let (third, problems) = Snapshot::compile(&spec, Some(&second), &neighbors).unwrap();
    assert_eq!(problems, [], "the entries of the first snapshot are free");
    assert_eq!(third.services().map(|(_, info)| info.backends.len()).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn a_namespace_with_too_many_next_hops_takes_none_of_another() {
    let many: Vec<String> = (1..9).map(|n| format!("10.0.1.{n}")).collect();
    let mut spec = short(&many.iter().map(String::as_str).collect::<Vec<_>>());
    let mut other = ServiceSpec::clone(&spec.services[1]);
    other.namespace = "other".into();
    spec.services[1] = other.into();
    spec.network.neighbors = vec![NeighborSpec { ip: ip("10.0.0.77"), mac: MAC }];
    let fixed = compile(&network(vec![]), None).0.next_hops().len() + 1;
    let neighbors = NeighborTable::with_capacity(fixed + 4);
    let (snapshot, problems) = Snapshot::compile(&spec, None, &neighbors).unwrap();
    assert_eq!(snapshot.services().map(|(_, info)| info.backends.len()).collect::<Vec<_>>(), [3, 1]);
    assert!(problems.len() == 5 && problems.iter().all(Problem::is_neighbor_table_full), "{problems:?}");

    // A snapshot in use keeps its entries. Its share is free once it is dropped.
    let first = network(vec![ServiceSpec::clone(&spec.services[0])]);
    spec.network.neighbors.clear();
    let neighbors = NeighborTable::with_capacity(fixed + 2);
    let (before, _) = Snapshot::compile(&first, None, &neighbors).unwrap();
    spec.generation += 1;
    let (between, _) = Snapshot::compile(&spec, Some(&before), &neighbors).unwrap();
    drop(before);
    spec.generation += 1;
    let (after, _) = Snapshot::compile(&spec, Some(&between), &neighbors).unwrap();
    assert_eq!(after.services().map(|(_, info)| info.backends.len()).collect::<Vec<_>>(), [2, 1]);
}
