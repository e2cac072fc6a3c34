//! Backends that warm up get a growing share of the flows that they would own, and no other flow moves.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tidegate_spec::{
    BackendState, ForwardingMode, LoadRule, Protocol, Scheduler, ServiceSpec, WARM_UP_STEPS, Warming,
};
use tidegate_wire::tcp::flags;

use super::lab::{Lab, ip, service};
use crate::testing::builder::Builder;

const VIP: &str = "203.0.113.5:80";
const FLOWS: u16 = 3_000;
const COLD: &str = "10.0.0.4";

/// A gateway with four backends, with these backends at these steps of warming up.
fn lab(scheduler: Scheduler, cold: &[(&str, u8)]) -> Lab {
    let backends = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80"];
    let web = service(ForwardingMode::DsrL2, Protocol::Tcp, VIP, &backends);
    let mut lab = Lab::new(vec![ServiceSpec { scheduler, ..web }]);
    warm_to(&mut lab, cold);
    lab
}

fn warm_to(lab: &mut Lab, cold: &[(&str, u8)]) {
    let warming = cold.iter().map(|&(address, step)| Warming { address: ip(address), port: 80, step });
    lab.change(|spec| spec.services[0].choice.warming = warming.collect());
}

fn open(lab: &mut Lab, ports: std::ops::Range<u16>) -> BTreeMap<u16, IpAddr> {
    let one = |port: u16| {
        let result = lab.send(Builder::tcp(&*format!("198.51.100.7:{port}"), VIP).flags(flags::SYN));
        (port, lab.backend_of(&result))
    };
    ports.map(one).collect()
}

/// The backends that a gateway chooses just after its start.
fn choices(scheduler: Scheduler, cold: &[(&str, u8)]) -> BTreeMap<u16, IpAddr> {
    open(&mut lab(scheduler, cold), 0..FLOWS)
}

fn count(choices: &BTreeMap<u16, IpAddr>, backend: &str) -> usize {
    choices.values().filter(|at| **at == ip(backend)).count()
}

#[test]
fn a_warming_backend_gets_a_growing_share_of_its_own_flows() {
    for scheduler in [Scheduler::Rendezvous, Scheduler::Maglev { slots: 65_537 }] {
        let warm = choices(scheduler, &[]);
        let without = {
            let mut lab = lab(scheduler, &[]);
            lab.change(|spec| spec.services[0].backends[3].state = BackendState::Draining);
            open(&mut lab, 0..FLOWS)
        };
        let mut before: Vec<u16> = vec![];
        for step in 1..WARM_UP_STEPS {
            let now = choices(scheduler, &[(COLD, step)]);
            let mut taken = vec![];
            for (port, at) in &now {
                match (*at == ip(COLD), warm[port] == ip(COLD)) {
                    (true, true) => taken.push(*port),
                    (true, false) => panic!("a flow that another backend owns"),
                    (false, true) => assert_eq!(*at, without[port], "as if the backend were not there"),
                    (false, false) => assert_eq!(*at, warm[port], "flows of warm backends never move"),
                }
            }
            let due = count(&warm, COLD) * usize::from(step) / usize::from(WARM_UP_STEPS);
            assert!(taken.len().abs_diff(due) < 60, "{scheduler:?} step {step}: {} of {due}", taken.len());
            assert!(before.iter().all(|port| taken.contains(port)), "{scheduler:?} step {step}");
            before = taken;
        }
    }
}

#[test]
fn a_flow_stays_when_the_next_step_selects_another_backend() {
    let mut lab = lab(Scheduler::Rendezvous, &[(COLD, 1)]);
    let first = open(&mut lab, 0..FLOWS);
    warm_to(&mut lab, &[]);
    for (port, had) in &first {
        let result = lab.send(Builder::tcp(&*format!("198.51.100.7:{port}"), VIP).flags(flags::ACK));
        assert_eq!(lab.backend_of(&result), *had);
    }
    assert!(count(&open(&mut lab, 20_000..20_000 + FLOWS), COLD) > count(&first, COLD) * 5);
}

#[test]
fn backends_that_all_warm_up_share_the_flows_as_if_all_were_warm() {
    for scheduler in [
        Scheduler::Rendezvous,
        Scheduler::Maglev { slots: 251 },
        Scheduler::WeightedRoundRobin,
        Scheduler::SourceHash,
    ] {
        let all = [("10.0.0.1", 1), ("10.0.0.2", 5), ("10.0.0.3", 9), ("10.0.0.4", 1)];
        assert_eq!(choices(scheduler, &all), choices(scheduler, &[]), "{scheduler:?}");
    }
}

#[test]
fn wrr_and_lc_scale_the_weight_of_a_warming_backend() {
    for (scheduler, slack) in [
        (Scheduler::WeightedRoundRobin, 0),
        (Scheduler::Loads(LoadRule::LeastConnections), 2),
        (Scheduler::Loads(LoadRule::ShortestDelay), 2),
    ] {
        let mut lab = lab(scheduler, &[(COLD, 5)]);
        let chosen = open(&mut lab, 0..700);
        for (backend, due) in [("10.0.0.1", 200), ("10.0.0.2", 200), ("10.0.0.3", 200), (COLD, 100)] {
            let count = count(&chosen, backend);
            assert!(count.abs_diff(due) <= slack, "{scheduler:?} {backend}: {count}");
        }
    }
}
