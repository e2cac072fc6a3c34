//! Errors that refuse the whole spec.

use super::*;
use tidegate_spec::InterfaceSpec;

/// The error of a spec with one service after `change`. It must not change the neighbour table.
fn error(change: &dyn Fn(&mut SnapshotSpec)) -> CompileError {
    let mut spec = network(vec![service("203.0.113.1", 80, Nat, vec![backend("10.0.1.1", 80)])]);
    spec.network.neighbors = vec![NeighborSpec { ip: ip("10.0.0.9"), mac: MAC }];
    change(&mut spec);
    let neighbors = NeighborTable::with_capacity(16);
    let error = Snapshot::compile(&spec, None, &neighbors).expect_err("refused");
    assert!(neighbors.is_empty());
    error
}

/// The service of these specs.
fn key() -> ServiceKey {
    ServiceKey { vip: ip("203.0.113.1"), protocol: Protocol::Tcp, port: 80 }
}

#[test]
fn counts_above_a_limit_refuse_the_spec() {
    let service = key();
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
}

#[test]
fn duplicates_refuse_the_spec() {
    let service = key();
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
fn values_out_of_range_refuse_the_spec() {
    let service = key();
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
    let ppm = limits::REJECTED_PPM_MAX + 1;
    assert_eq!(
        error(&|spec| spec.services[0].rejected_ppm = ppm),
        CompileError::RejectedShare { service, ppm }
    );
    for vlan in [0, 4_095, u16::MAX] {
        assert_eq!(
            error(&|spec| spec.network.interfaces[0].vlan = Some(vlan)),
            CompileError::Vlan { interface: "uplink".into(), vlan }
        );
    }
}
