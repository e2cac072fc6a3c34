//! Tests of compiled snapshots: look-ups, ids over chains of compiles, shared tables, and every problem.

mod chains;
mod kept;
mod look_ups;
mod problems;
mod refusals;
mod sizes;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tidegate_select::selector::Selector;
use tidegate_spec::ForwardingMode::{DsrIpip, DsrL2, FullNat, Nat};
use tidegate_spec::ids::BackendId;
use tidegate_spec::limits;
use tidegate_spec::testing;
use tidegate_spec::{
    BackendProblem, BackendSpec, BackendState, CompileError, ForwardingMode, GatewaySpec, NeighborSpec,
    NetworkSpec, Policy, Problem, Protocol, RouteSpec, Scheduler, ServiceKey, ServiceSpec, SnapshotSpec,
};
use tidegate_structures::hash::{client_hash, selection_hash};
use tidegate_wire::{Addr, Family, MacAddr};

use super::*;
use crate::addresses::AddressKind;
use crate::neighbors::{NeighborState, NeighborTable};
use crate::routes::NextHop;
use crate::service::{Service, ServiceInfo};

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
    let vip = SocketAddr::new(ip(vip), port);
    ServiceSpec {
        idle_timeout_udp: Duration::from_secs(60),
        idle_timeout_sctp: Duration::from_secs(60),
        backends,
        ..testing::service(mode, Protocol::Tcp, &vip.to_string(), &[])
    }
}

/// One interface with both families, a default route each, SNAT addresses and tunnel sources.
fn network(services: Vec<ServiceSpec>) -> SnapshotSpec {
    SnapshotSpec {
        generation: 1,
        network: NetworkSpec {
            interfaces: vec![testing::interface(MAC, &["10.0.0.1/16", "2001:db8::1/64"])],
            routes: vec![testing::route("0.0.0.0/0", "10.0.255.254"), testing::route("::/0", "fe80::1")],
            neighbors: Vec::new(),
            snat_addresses: vec![ip("10.0.0.2"), ip("2001:db8::2")],
            tunnel_source_v4: Some(Ipv4Addr::new(10, 0, 0, 1).into()),
            tunnel_source_v6: Some("2001:db8::1".parse().unwrap()),
            gateway: GatewaySpec::default(),
            policy: Policy::default(),
            ..NetworkSpec::default()
        }
        .into(),
        services: services.into_iter().map(Into::into).collect(),
    }
}

const MAGLEV: Scheduler = Scheduler::Maglev { slots: 65_537 };

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

/// The backends of one snapshot by service, address and port.
fn backend_ids(snapshot: &Snapshot) -> BTreeMap<(ServiceKey, Addr, u16), BackendId> {
    let of = |info: &ServiceInfo| {
        let key = info.key;
        info.backends.iter().map(|b| ((key, b.address, b.port), b.id)).collect::<Vec<_>>()
    };
    snapshot.services().flat_map(|(_, info)| of(info)).collect()
}
