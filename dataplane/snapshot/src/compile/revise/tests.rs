//! Compares revised snapshots with snapshots compiled from scratch, over random histories.

use std::net::IpAddr;

use proptest::prelude::*;
use tidegate_spec::ownership::Layer2;
use tidegate_spec::testing as lab;
use tidegate_spec::{
    BackendSpec, BackendState, ForwardingMode, LoadRule, NoEndpoints, Protocol, Scheduler, ServiceSpec,
};
use tidegate_wire::Addr;

use super::*;

/// The possible changes of a service: its mode, its scheduler, its backends by (host, port), and the share of flows
/// that it rejects.
type Change = (usize, usize, BTreeMap<(u8, bool), (u16, u8)>, u32);

/// There are few hosts, so services share endpoints. Some hosts are unreachable or are VIPs.
fn any_change() -> impl Strategy<Value = (usize, Change)> {
    let backends = proptest::collection::btree_map((0_u8..9, any::<bool>()), (0_u16..3, 0_u8..3), 0..6);
    (0_usize..6, (0_usize..4, 0_usize..7, backends, 0_u32..3))
}

fn service(n: usize) -> ServiceSpec {
    let vip = if n < 4 { format!("203.0.113.{n}:80") } else { format!("[2001:db8:f::{n}]:80") };
    lab::service(ForwardingMode::FullNat, Protocol::Tcp, &vip, &[])
}

fn change(service: &mut ServiceSpec, (mode, table, backends, rejected_ppm): &Change) {
    service.rejected_ppm = *rejected_ppm;
    service.mode = ForwardingMode::ALL[*mode];
    let maglev = |slots| Scheduler::Maglev { slots };
    service.scheduler = [
        Scheduler::Rendezvous,
        maglev(2),
        maglev(1_009),
        Scheduler::WeightedRoundRobin,
        Scheduler::Loads(LoadRule::NeverQueue),
        Scheduler::SourceHash,
        Scheduler::DestinationHash,
    ][*table];
    let v6 = service.key.vip.is_ipv6();
    let backend = |(&(host, odd), &(weight, state)): (&(u8, bool), &(u16, u8))| {
        let address: IpAddr = match host {
            7 => "192.0.2.99".parse().expect("out of reach"),
            8 => "203.0.113.1".parse().expect("a VIP"),
            _ if v6 => format!("2001:db8::1{host}").parse().expect("an address"),
            _ => format!("10.0.0.1{host}").parse().expect("an address"),
        };
        let state = [BackendState::Active, BackendState::Draining, BackendState::Down][usize::from(state)];
        BackendSpec { address, port: if odd { 8080 } else { 80 }, weight, state }
    };
    service.backends = backends.iter().map(backend).collect();
}

/// Compares all look-ups of both snapshots, and the input of the next compile.
fn assert_same(revised: &Snapshot, full: &Snapshot) {
    let services = |snapshot: &Snapshot| format!("{:#?}", snapshot.services().collect::<Vec<_>>());
    assert_eq!(services(revised), services(full));
    assert_eq!(format!("{:?}", revised.backends), format!("{:?}", full.backends));
    assert_eq!(revised.endpoints.listed(), full.endpoints.listed());
    assert_eq!(format!("{:?}", revised.reusable.generations), format!("{:?}", full.reusable.generations));
    assert_eq!(revised.next_hops(), full.next_hops());
    assert_eq!(revised.admission, full.admission);
    assert_eq!(revised.compared, full.compared);
    assert!(revised.addresses().eq(full.addresses()));
    assert_eq!(revised.services.by_key(), full.services.by_key());
    let limited = |snapshot: &Snapshot| {
        let ports = snapshot.services().map(|(service, info)| {
            let limited = snapshot.limited_service(service).map(|limited| {
                (limited.namespace().to_owned(), limited.name().to_owned(), *limited.limits())
            });
            (info.key, limited)
        });
        ports.collect::<Vec<_>>()
    };
    assert_eq!(limited(revised), limited(full));
    assert_eq!(revised.further_vips, full.further_vips);
    // Only a revision can show that the slow path's information is still valid.
    assert!(!full.same_outside());
    assert_eq!(revised.reusable.lineage.fresh, full.reusable.lineage.fresh);
    assert_eq!(revised.reusable.lineage.ranks, full.reusable.lineage.ranks);
    assert_eq!(revised.reusable.lineage.backends, full.reusable.lineage.backends);
    assert!(revised.reusable.lineage.services.iter().eq(full.reusable.lineage.services.iter()));
    for (service, _) in full.services() {
        let (proto, port) = (service.protocol.number(), service.port);
        let hash = Snapshot::hash_service(&service.vip, proto, port);
        let found = revised.service(hash, &service.vip, proto, port).map(|service| service.id);
        assert_eq!(found, Some(service.id));
    }
    for host in 0..8 {
        for address in [format!("10.0.0.1{host}"), format!("2001:db8::1{host}")] {
            let address = Addr::from(address.parse::<IpAddr>().expect("an address"));
            for port in [80, 8080] {
                let hash = Snapshot::hash_endpoint(&address, 6, port);
                let [a, b] = [revised, full].map(|snapshot| snapshot.endpoint(hash, &address, 6, port));
                assert_eq!(a, b);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_revised_snapshot_equals_one_compiled_from_scratch(
        steps in proptest::collection::vec(proptest::collection::vec(any_change(), 0..4), 1..8),
    ) {
        let neighbors = NeighborTable::with_capacity(64);
        let services = (0..6).map(|n| SharedService::from(service(n))).collect();
        let mut spec = SnapshotSpec { generation: 1, services, ..lab::spec() };
        let (mut previous, _) = super::super::from_scratch(&spec, None, &neighbors).expect("it compiles");
        for changes in steps {
            spec.generation += 1;
            for (at, what) in &changes {
                change(&mut spec.services[*at], what);
            }
            let (revised, problems) = revise(&spec, &previous, &neighbors).expect("nothing else changed");
            let full = super::super::from_scratch(&spec, Some(&previous), &neighbors);
            let (full, full_problems) = full.expect("it compiles");
            prop_assert_eq!(problems, full_problems);
            assert_same(&revised, &full);
            prop_assert_eq!(revised.compare(&spec, &neighbors), Some(Vec::new()));
            prop_assert!(!revised.same_outside() || previous.next_hops() == full.next_hops());
            previous = revised;
        }
    }
}

#[test]
fn other_changes_are_compiled_from_scratch() {
    let neighbors = NeighborTable::with_capacity(64);
    let spec = SnapshotSpec { services: vec![service(0).into(), service(1).into()], ..lab::spec() };
    let (previous, _) = Snapshot::compile(&spec, None, &neighbors).expect("it compiles");
    let revises = |change: &dyn Fn(&mut SnapshotSpec)| {
        let mut changed = spec.clone();
        change(&mut changed);
        revise(&changed, &previous, &neighbors).is_some()
    };
    assert!(revises(&|spec| spec.services[0].no_endpoints = NoEndpoints::Drop));
    assert!(revises(&|spec| drop(spec.services.pop())));
    assert!(revises(&|spec| spec.services[1].key.port = 81));
    assert!(!revises(&|spec| spec.services.push(spec.services[0].clone())), "it is refused");
    assert!(!revises(&|spec| spec.services.swap(0, 1)));
    assert!(revises(&|spec| spec.services[0].key.port = 81));
    assert!(!revises(&|spec| spec.services[0].key.port = 0), "it is refused");
    assert!(!revises(
        &|spec| spec.services[0].source_ranges = Some(["10.0.0.0/8".parse().expect("a net")].into())
    ));
    assert!(!revises(&|spec| spec.network.routes.clear()));
    assert!(!revises(&|spec| spec.services[0].scheduler = Scheduler::Maglev { slots: 4 }), "it is refused");
}

/// Eight services in the order of their keys, some with a VIP in common.
fn one_of_eight(n: usize) -> ServiceSpec {
    let vip = ["203.0.113.0:80", "203.0.113.1:80", "203.0.113.1:81", "203.0.113.1:82"];
    let vip = [vip, ["203.0.113.7:80", "[2001:db8:f::4]:80", "[2001:db8:f::4]:81", "[2001:db8:f::5]:80"]];
    let vip = vip[n / 4][n % 4];
    let mut service = lab::service(ForwardingMode::FullNat, Protocol::Tcp, vip, &[]);
    // Each Service has two ports.
    service.name = format!("service-{}", n / 2);
    service
}

/// A service that is added or changed, or removed (`None`): whether it has limits, and whether only its flows remain.
fn any_step() -> impl Strategy<Value = (usize, Option<(Change, bool, bool)>)> {
    let what = (any_change().prop_map(|(_, change)| change), any::<bool>(), proptest::bool::weighted(0.2));
    (0_usize..8, proptest::option::of(what))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn revisions_with_added_and_removed_services_equal_a_full_compile(
        steps in proptest::collection::vec(proptest::collection::vec(any_step(), 0..5), 1..25),
    ) {
        let neighbors = NeighborTable::with_capacity(64);
        let mut services: BTreeMap<usize, SharedService> = BTreeMap::new();
        let spec = |generation, services: &BTreeMap<usize, SharedService>| {
            SnapshotSpec { generation, services: services.values().cloned().collect(), ..lab::spec() }
        };
        let network = spec(1, &services).network;
        let (mut previous, _) =
            super::super::from_scratch(&SnapshotSpec { network: network.clone(), ..spec(1, &services) }, None, &neighbors)
                .expect("it compiles");
        for (generation, step) in (2..).zip(steps) {
            for (n, what) in step {
                let Some((how, is_limited, leaves)) = what else {
                    services.remove(&n);
                    continue;
                };
                let service = services.entry(n).or_insert_with(|| one_of_eight(n).into());
                change(service, &how);
                service.limits.connections = is_limited.then_some(std::num::NonZeroU32::MIN);
                service.no_endpoints =
                    if leaves { NoEndpoints::Unserved } else { NoEndpoints::Reject };
                service.layer2 = if leaves { Layer2::Answered } else { Layer2::Always };
            }
            let spec = SnapshotSpec { network: network.clone(), ..spec(generation, &services) };
            let (full, full_problems) =
                super::super::from_scratch(&spec, Some(&previous), &neighbors).expect("it compiles");
            let Some((revised, problems)) = revise(&spec, &previous, &neighbors) else {
                // Some backends have this address.
                let vip = Addr::v4([203, 0, 113, 1]);
                prop_assert_ne!(previous.address(&vip), full.address(&vip));
                previous = full;
                continue;
            };
            prop_assert_eq!(problems, full_problems);
            assert_same(&revised, &full);
            prop_assert_eq!(revised.compare(&spec, &neighbors), Some(Vec::new()));
            prop_assert!(!revised.same_outside() || previous.next_hops() == full.next_hops());
            previous = revised;
        }
    }
}

#[test]
fn tables_grow_with_services_and_never_shrink() {
    let neighbors = NeighborTable::with_capacity(64);
    let service = |n: usize| -> SharedService {
        let [high, low] = u16::try_from(n).expect("a small number").to_be_bytes();
        let vip = format!("198.18.{high}.{low}:80");
        let backends = ["10.0.0.11:80", "10.0.0.12:80"];
        lab::service(ForwardingMode::FullNat, Protocol::Tcp, &vip, &backends).into()
    };
    let all: Vec<SharedService> = (0..1_100).map(service).collect();
    let mut spec = SnapshotSpec { generation: 1, services: all[..1_000].to_vec(), ..lab::spec() };
    let (mut previous, _) = Snapshot::compile(&spec, None, &neighbors).expect("it compiles");
    for count in (1_001..1_100).chain((990..1_100).rev()) {
        spec.generation += 1;
        spec.services = all[1_100 - count..].to_vec();
        let (revised, problems) = revise(&spec, &previous, &neighbors).expect("it is a revision");
        assert!(problems.is_empty());
        if count % 27 == 0 || (1_020..1_028).contains(&count) {
            assert_eq!(revised.compare(&spec, &neighbors), Some(Vec::new()), "{count}");
        }
        previous = revised;
    }
    assert_eq!((previous.services().len(), previous.service_indices()), (990, 1_099));
}
