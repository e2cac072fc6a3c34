//! The backend that a flow is assigned to, and keeps, while backends are added and removed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tidegate_spec::verdict::{TransmitReason, Verdict};
use tidegate_spec::{
    BackendSpec, BackendState, ChoiceOptions, FlowTracking, ForwardingMode, HashInput, Protocol, Scheduler,
    ServiceSpec,
};
use tidegate_wire::tcp::flags;

use super::lab::{FrameResult, Lab, backend, ip, service};
use crate::pipeline::FlowNote;
use crate::testing::builder::Builder;

const VIP: &str = "203.0.113.5:80";
const THREE: [&str; 3] = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"];

fn three(mode: ForwardingMode, protocol: Protocol) -> Lab {
    Lab::new(vec![service(mode, protocol, VIP, &THREE)])
}

/// Opens connections from 100 ports and returns the backend of each.
fn open(lab: &mut Lab) -> BTreeMap<u16, IpAddr> {
    (40_000..40_100)
        .map(|port| {
            let result = tcp(lab, port, flags::SYN);
            result.sent(TransmitReason::Forward);
            tcp(lab, port, flags::ACK);
            (port, lab.backend_of(&result))
        })
        .collect()
}

fn tcp(lab: &mut Lab, port: u16, flags: u8) -> FrameResult {
    lab.send(Builder::tcp(format!("198.51.100.7:{port}").as_str(), VIP).flags(flags))
}

fn udp(lab: &mut Lab, port: u16) -> FrameResult {
    lab.send(Builder::udp(format!("198.51.100.7:{port}").as_str(), VIP))
}

fn set_state(lab: &mut Lab, at: usize, state: BackendState) {
    lab.change(|spec| spec.services[0].backends[at].state = state);
}

#[test]
fn the_hash_determines_the_backend() {
    let mut lab = three(ForwardingMode::FullNat, Protocol::Tcp);
    let (service, _) = lab.snapshot.services().next().unwrap();
    let expected: BTreeMap<u16, IpAddr> = (40_000..40_100)
        .map(|port| {
            let (src, dst) = (ip("198.51.100.7").into(), ip("203.0.113.5").into());
            let hash = tidegate_structures::hash::selection_hash(&src, port, &dst, 80, 6);
            let id = service.select(hash).unwrap();
            (port, lab.snapshot.backend(id).unwrap().address.ip())
        })
        .collect();
    assert_eq!(open(&mut lab), expected);
}

#[test]
fn draining_backend_keeps_established_flows_and_gets_no_new_ones() {
    for mode in ForwardingMode::ALL {
        let mut lab = three(mode, Protocol::Tcp);
        let flows = open(&mut lab);
        set_state(&mut lab, 0, BackendState::Draining);
        for (&port, &had) in &flows {
            let result = tcp(&mut lab, port, flags::ACK);
            assert_eq!((lab.backend_of(&result), result.note.flow), (had, FlowNote::Known), "{mode}");
        }
        for port in 50_000..50_100 {
            let result = tcp(&mut lab, port, flags::SYN);
            assert_ne!(lab.backend_of(&result), ip("10.0.0.1"), "{mode}");
        }
    }
}

#[test]
fn established_flows_survive_the_removal_of_another_backend() {
    for mode in ForwardingMode::ALL {
        let mut lab = three(mode, Protocol::Tcp);
        let flows = open(&mut lab);
        lab.change(|spec| spec.services[0].backends.retain(|b| b.address != ip("10.0.0.2")));
        for (&port, &had) in flows.iter().filter(|(_, had)| **had != ip("10.0.0.2")) {
            let result = tcp(&mut lab, port, flags::ACK);
            assert_eq!(lab.backend_of(&result), had, "{mode}");
        }
    }
}

#[test]
fn flows_keep_their_backend_while_all_others_are_replaced() {
    for mode in ForwardingMode::ALL {
        let mut lab = three(mode, Protocol::Tcp);
        let flows = open(&mut lab);
        for (n, old) in [(4, 1), (5, 2)] {
            lab.change(|spec| {
                let backends = &mut spec.services[0].backends;
                backends.push(backend(&format!("10.0.0.{n}:80"), BackendState::Active));
                backends.retain(|b| b.address != ip(&format!("10.0.0.{old}")));
            });
        }
        for (&port, &had) in flows.iter().filter(|(_, had)| **had == ip("10.0.0.3")) {
            let result = tcp(&mut lab, port, flags::ACK);
            assert_eq!(lab.backend_of(&result), had, "{mode}");
        }
    }
}

#[test]
fn udp_flows_leave_a_backend_that_is_down_and_tcp_flows_stay() {
    for mode in ForwardingMode::ALL {
        let mut lab = three(mode, Protocol::Udp);
        let had: BTreeMap<u16, IpAddr> = (40_000..40_060)
            .map(|port| {
                let result = udp(&mut lab, port);
                (port, lab.backend_of(&result))
            })
            .collect();
        set_state(&mut lab, 2, BackendState::Down);
        for (port, had) in had {
            let result = udp(&mut lab, port);
            result.sent(TransmitReason::Forward);
            let moved = had == ip("10.0.0.3");
            assert_eq!(lab.backend_of(&result) != had, moved, "{mode}");
            assert_eq!(result.note.flow, if moved { FlowNote::New } else { FlowNote::Known });
        }
        let mut lab = three(mode, Protocol::Tcp);
        let flows = open(&mut lab);
        set_state(&mut lab, 2, BackendState::Down);
        for (port, had) in flows {
            let result = tcp(&mut lab, port, flags::ACK);
            assert_eq!(lab.backend_of(&result), had, "{mode}");
        }
    }
}

#[test]
fn datagrams_of_one_burst_move_together_from_a_backend_that_is_down() {
    for mode in ForwardingMode::ALL {
        let mut lab = three(mode, Protocol::Udp);
        let on_third = |lab: &mut Lab, port: u16| {
            let result = udp(lab, port);
            lab.backend_of(&result) == ip("10.0.0.3")
        };
        let port = (40_000..).find(|&port| on_third(&mut lab, port)).unwrap();
        set_state(&mut lab, 2, BackendState::Down);
        let datagram = Builder::udp(format!("198.51.100.7:{port}").as_str(), VIP).build();
        let results = lab.receive_burst(&[datagram.clone(), datagram.clone(), datagram]);
        let notes: Vec<_> = results.iter().map(|result| result.note.flow).collect();
        assert_eq!(notes, [FlowNote::New, FlowNote::Known, FlowNote::Known], "{mode}");
        assert!(
            results.iter().all(|result| result.frame == results[0].frame),
            "{mode}: one backend, one local port"
        );
    }
}

#[test]
fn a_connection_that_is_still_opening_leaves_a_backend_that_is_down() {
    for mode in ForwardingMode::ALL {
        let mut lab = three(mode, Protocol::Tcp);
        let port = (40_000..)
            .find(|&port| {
                let result = tcp(&mut lab, port, flags::SYN);
                lab.backend_of(&result) == ip("10.0.0.3")
            })
            .unwrap();
        set_state(&mut lab, 2, BackendState::Down);
        let result = tcp(&mut lab, port, flags::SYN);
        result.sent(TransmitReason::Forward);
        assert_ne!(lab.backend_of(&result), ip("10.0.0.3"), "{mode}");
    }
}

#[test]
fn reused_ports_create_a_new_flow() {
    let mut lab = three(ForwardingMode::DsrIpip, Protocol::Tcp);
    tcp(&mut lab, 40_000, flags::SYN);
    tcp(&mut lab, 40_000, flags::ACK);
    tcp(&mut lab, 40_000, flags::FIN | flags::ACK);
    let had = {
        let result = tcp(&mut lab, 40_000, flags::ACK);
        lab.backend_of(&result)
    };
    let at = lab.spec.services[0].backends.iter().position(|b| b.address == had).unwrap();
    set_state(&mut lab, at, BackendState::Draining);
    let result = tcp(&mut lab, 40_000, flags::SYN);
    assert_ne!(lab.backend_of(&result), had);
    assert_eq!(result.note.flow, FlowNote::New);
}

#[test]
fn without_a_live_backend_new_flows_are_refused_and_known_ones_kept() {
    let mut lab = three(ForwardingMode::DsrL2, Protocol::Tcp);
    let flows = open(&mut lab);
    lab.change(|spec| spec.services[0].backends.iter_mut().for_each(|b| b.state = BackendState::Draining));
    for (port, had) in flows {
        let result = tcp(&mut lab, port, flags::ACK);
        assert_eq!(lab.backend_of(&result), had);
    }
    tcp(&mut lab, 50_000, flags::SYN).sent(TransmitReason::NoEndpoints);
}

#[test]
fn idle_flows_expire_after_the_timeout_of_their_service() {
    let mut lab = three(ForwardingMode::DsrL2, Protocol::Udp);
    udp(&mut lab, 40_000);
    lab.wait(Duration::from_secs(119));
    assert_eq!(udp(&mut lab, 40_000).note.flow, FlowNote::Known);
    lab.wait(Duration::from_secs(121));
    assert_eq!(udp(&mut lab, 40_000).note.flow, FlowNote::New);
}

#[test]
fn client_affinity_outlasts_a_change_of_backends_until_its_timeout() {
    let sticky = ServiceSpec {
        affinity: Some(Duration::from_secs(100)),
        ..service(ForwardingMode::DsrL2, Protocol::Tcp, VIP, &["10.0.0.2:80", "10.0.0.3:80"])
    };
    let mut lab = Lab::new(vec![sticky]);
    let results: Vec<_> = (40_000..40_020).map(|port| tcp(&mut lab, port, flags::SYN)).collect();
    let had = lab.backend_of(&results[0]);
    assert!(results.iter().all(|result| lab.backend_of(result) == had), "one client, one backend");
    // Extend the list until the client's hash selects another backend.
    let moved = (4..=9).any(|n| {
        // The weight is high, so that a few backends are enough.
        let added = BackendSpec { weight: 20, ..backend(&format!("10.0.0.{n}:80"), BackendState::Active) };
        lab.change(|spec| spec.services[0].backends.push(added));
        let result = tcp(&mut lab, 50_000 + n, flags::SYN);
        assert_eq!(lab.backend_of(&result), had);
        let (service, _) = lab.snapshot.services().next().unwrap();
        let id = service.select(tidegate_structures::hash::client_hash(&ip("198.51.100.7").into())).unwrap();
        lab.snapshot.backend(id).unwrap().address.ip() != had
    });
    assert!(moved, "the test needs a hash whose owner changes");
    lab.wait(Duration::from_secs(101));
    let result = tcp(&mut lab, 51_000, flags::SYN);
    assert_ne!(lab.backend_of(&result), had);
}

#[test]
fn with_hash_client_all_connections_of_a_client_reach_one_backend() {
    let choice = ChoiceOptions { hash: HashInput::Client, ..ChoiceOptions::default() };
    let rendezvous = (Scheduler::Rendezvous, FlowTracking::Always);
    let maglev = (Scheduler::Maglev { slots: 251 }, FlowTracking::Always);
    let on_change = (Scheduler::Rendezvous, FlowTracking::OnChange([].into()));
    for (scheduler, flow_tracking) in [rendezvous, maglev, on_change] {
        let port = |vip: &str, at: u16| {
            let backends: Vec<String> = (1..=6).map(|n| format!("10.0.0.{n}:{at}")).collect();
            let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
            let spec = service(ForwardingMode::DsrL2, Protocol::Tcp, vip, &backends);
            let (choice, flow_tracking) = (choice.clone(), flow_tracking.clone());
            ServiceSpec { choice, scheduler, flow_tracking, ..spec }
        };
        let mut lab = Lab::new(vec![port("203.0.113.5:80", 80), port("203.0.113.5:443", 443)]);
        let mut used = std::collections::BTreeSet::new();
        for client in 1..40 {
            let mut homes = std::collections::BTreeSet::new();
            for (source, vip) in (1024..1044).zip(["203.0.113.5:80", "203.0.113.5:443"].into_iter().cycle()) {
                let from = format!("198.51.100.{client}:{source}");
                let result = lab.send(Builder::tcp(from.as_str(), vip).flags(flags::SYN));
                homes.insert(lab.backend_of(&result));
            }
            assert_eq!(homes.len(), 1, "{scheduler:?} {homes:?}");
            used.extend(homes);
        }
        assert!(used.len() > 3, "{scheduler:?} {used:?}");
    }
}

#[test]
fn affinity_leaves_a_backend_that_accepts_no_new_flows() {
    let sticky = ServiceSpec {
        affinity: Some(Duration::from_secs(10_800)),
        ..service(ForwardingMode::FullNat, Protocol::Tcp, VIP, &THREE)
    };
    let mut lab = Lab::new(vec![sticky]);
    let result = tcp(&mut lab, 40_000, flags::SYN);
    let had = lab.backend_of(&result);
    lab.change(|spec| {
        spec.services[0]
            .backends
            .iter_mut()
            .filter(|b| b.address == had)
            .for_each(|b| b.state = BackendState::Draining);
    });
    let result = tcp(&mut lab, 40_001, flags::SYN);
    assert_ne!(lab.backend_of(&result), had);
}

#[test]
fn a_removed_service_loses_its_flows() {
    let mut lab = three(ForwardingMode::FullNat, Protocol::Tcp);
    open(&mut lab);
    lab.change(|spec| spec.services.clear());
    assert!(!matches!(tcp(&mut lab, 40_000, flags::ACK).verdict, Verdict::Transmit { .. }));
    lab.change(|spec| {
        spec.services = vec![service(ForwardingMode::FullNat, Protocol::Tcp, VIP, &THREE).into()];
    });
    // Entries of a removed service don't apply to a new one.
    tcp(&mut lab, 40_000, flags::ACK).sent(TransmitReason::NoFlow);
}
