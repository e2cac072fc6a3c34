//! Gateways with equal desired state choose the same backend for a new flow, whatever each has seen before.
//!
//! A gateway keeps removed backends in its spec for the drain timeout, as `Draining` or `Down`. Another gateway, or the
//! same one after a restart, doesn't know them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;
use tidegate_spec::{BackendSpec, BackendState, ForwardingMode, Protocol, Scheduler, ServiceSpec};
use tidegate_wire::tcp::flags;

use super::lab::{Lab, service};
use crate::testing::builder::Builder;

const VIP: &str = "203.0.113.5:80";

/// The desired state: weights by backend.
type Desired = BTreeMap<SocketAddr, u16>;

fn any_desired() -> impl Strategy<Value = Desired> {
    let backend = (1_u8..30, prop_oneof![4 => Just(80_u16), 1 => Just(8080), 1 => Just(8081)]);
    let at = backend.prop_map(|(host, port)| SocketAddr::from(([10, 0, 0, host], port)));
    proptest::collection::btree_map(at, prop_oneof![4 => Just(1_u16), 1 => 0_u16..40], 0..25)
}

fn backends(desired: &Desired) -> Vec<BackendSpec> {
    let spec = |(at, &weight): (&SocketAddr, &u16)| BackendSpec {
        address: at.ip(),
        port: at.port(),
        weight,
        state: BackendState::Active,
    };
    desired.iter().map(spec).collect()
}

fn web(scheduler: Scheduler, affine: bool, mode: ForwardingMode) -> ServiceSpec {
    let affinity = affine.then_some(Duration::from_secs(60));
    ServiceSpec { scheduler, affinity, ..service(mode, Protocol::Tcp, VIP, &[]) }
}

/// Brings a gateway to a desired state. Removed backends stay, with the state `removed`.
fn reach(gateway: &mut Lab, desired: &Desired, removed: BackendState) {
    gateway.change(|spec| {
        let had = std::mem::take(&mut spec.services[0].backends);
        let gone = had.into_iter().filter(|b| !desired.contains_key(&SocketAddr::new(b.address, b.port)));
        let gone = gone.map(|b| BackendSpec { state: removed, ..b });
        spec.services[0].backends = gone.chain(backends(desired)).collect();
    });
}

/// The backends of new connections of a client, by source port.
fn chosen(gateway: &mut Lab, client: u8) -> Vec<Option<SocketAddr>> {
    let backend_of = |port: u16| {
        let from = format!("198.51.100.{client}:{port}");
        let result = gateway.send(Builder::tcp(from.as_str(), VIP).flags(flags::SYN));
        let id = result.note.backend?;
        let backend = gateway.snapshot.backend(id).expect("a backend of a verdict is in the snapshot");
        Some(SocketAddr::new(backend.address.ip(), backend.port))
    };
    (20_000..20_040).map(backend_of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn gateways_of_different_histories_choose_the_same_backends(
        histories in proptest::collection::vec(
            proptest::collection::vec((any_desired(), any::<bool>()), 0..4), 2,
        ),
        desired in any_desired(),
        maglev in any::<bool>(),
        affine in any::<bool>(),
        mode in 0_usize..4,
    ) {
        let scheduler = if maglev { Scheduler::Maglev { slots: 1_009 } } else { Scheduler::Rendezvous };
        let service = web(scheduler, affine, ForwardingMode::ALL[mode]);
        let mut answers = Vec::new();
        for history in histories.iter().chain([&Vec::new()]) {
            let mut gateway = Lab::new(vec![service.clone()]);
            for (n, (seen, drains)) in (1..).zip(history) {
                let removed = if *drains { BackendState::Draining } else { BackendState::Down };
                reach(&mut gateway, seen, removed);
                // Flows of other clients, so that the flow table has a history.
                chosen(&mut gateway, 100 + n);
            }
            reach(&mut gateway, &desired, BackendState::Draining);
            answers.push(chosen(&mut gateway, 7));
        }
        prop_assert_eq!(&answers[0], &answers[2]);
        prop_assert_eq!(&answers[1], &answers[2]);
    }
}

#[test]
fn after_replacing_ten_backends_a_gateway_agrees_with_a_fresh_one() {
    let ten = |first: u8| -> Desired {
        (first..first + 10).map(|host| (SocketAddr::from(([10, 0, 0, host], 80)), 1)).collect()
    };
    for scheduler in [Scheduler::Rendezvous, Scheduler::Maglev { slots: 65_537 }] {
        let service = web(scheduler, false, ForwardingMode::DsrL2);
        let mut old = Lab::new(vec![service.clone()]);
        reach(&mut old, &ten(1), BackendState::Down);
        reach(&mut old, &ten(31), BackendState::Down);
        let mut fresh = Lab::new(vec![service]);
        reach(&mut fresh, &ten(31), BackendState::Down);
        for client in 1..16 {
            assert_eq!(chosen(&mut old, client), chosen(&mut fresh, client), "{scheduler:?}");
        }
    }
}
