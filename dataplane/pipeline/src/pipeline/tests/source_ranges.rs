//! Source ranges of a service: they apply to new flows, and to known flows after a change.

use std::sync::Arc;

use ipnet::IpNet;
use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, Protocol, ServiceSpec};
use tidegate_wire::tcp::flags;

use super::lab::{FrameResult, Lab, ip, service};
use crate::pipeline::FlowNote;
use crate::testing::builder::Builder;

const VIP: &str = "203.0.113.5:80";
const VIP6: &str = "[2001:db8:1::5]:80";
const INSIDE: &str = "198.51.100.7:40000";
const OUTSIDE: &str = "192.0.2.7:40000";

fn ranges(nets: &[&str]) -> Option<Arc<[IpNet]>> {
    Some(nets.iter().map(|net| net.parse().unwrap()).collect())
}

fn closed(mode: ForwardingMode, vip: &str, nets: &[&str]) -> ServiceSpec {
    let backend = if vip.starts_with('[') { "[fd00::1]:80" } else { "10.0.0.1:80" };
    ServiceSpec { source_ranges: ranges(nets), ..service(mode, Protocol::Tcp, vip, &[backend]) }
}

fn lab(mode: ForwardingMode, nets: &[&str]) -> Lab {
    Lab::new(vec![closed(mode, VIP, nets)])
}

fn tcp(lab: &mut Lab, from: &str, flags: u8) -> FrameResult {
    lab.send(Builder::tcp(from, VIP).flags(flags))
}

#[test]
fn clients_outside_the_source_ranges_are_refused_without_a_flow() {
    for mode in ForwardingMode::ALL {
        let mut lab = lab(mode, &["198.51.100.0/24", "10.0.0.0/8"]);
        let result = tcp(&mut lab, OUTSIDE, flags::SYN);
        assert_eq!(result.refused(), Refusal::SourceRange, "{mode}");
        assert!(result.note.service.is_some(), "the note names the service");
        assert_eq!(tcp(&mut lab, OUTSIDE, flags::ACK).refused(), Refusal::SourceRange, "{mode}");
        assert_eq!(lab.pipeline.flows().live(), 0);
        assert_eq!(lab.counters.drops(Refusal::SourceRange.into()), 2);
        tcp(&mut lab, INSIDE, flags::SYN).sent(TransmitReason::Forward);
        assert_eq!(tcp(&mut lab, INSIDE, flags::ACK).note.flow, FlowNote::Known);
    }
}

#[test]
fn ranges_of_one_family_do_not_admit_the_other() {
    let nets = ["198.51.100.0/24"];
    let services =
        vec![closed(ForwardingMode::FullNat, VIP, &nets), closed(ForwardingMode::FullNat, VIP6, &nets)];
    let mut lab = Lab::new(services);
    let v6 = |port: u16| Builder::tcp(format!("[2001:db8::7]:{port}").as_str(), VIP6).flags(flags::SYN);
    assert_eq!(lab.send(v6(40_000)).refused(), Refusal::SourceRange);
    tcp(&mut lab, INSIDE, flags::SYN).sent(TransmitReason::Forward);
    lab.change(|spec| spec.services[1].source_ranges = ranges(&["198.51.100.0/24", "2001:db8::/64"]));
    lab.send(v6(40_001)).sent(TransmitReason::Forward);
}

#[test]
fn a_service_without_source_ranges_admits_everyone_beside_one_with_them() {
    let open = service(ForwardingMode::DsrL2, Protocol::Tcp, "203.0.113.5:443", &["10.0.0.1:443"]);
    let mut lab = Lab::new(vec![closed(ForwardingMode::DsrL2, VIP, &[]), open]);
    let to_open = Builder::tcp(OUTSIDE, "203.0.113.5:443").flags(flags::SYN);
    lab.send(to_open).sent(TransmitReason::Forward);
    assert_eq!(tcp(&mut lab, OUTSIDE, flags::SYN).refused(), Refusal::SourceRange);
}

#[test]
fn a_client_excluded_later_loses_its_flows_and_others_keep_theirs() {
    for mode in ForwardingMode::ALL {
        let mut lab = lab(mode, &["198.51.100.0/24"]);
        let neighbour = "198.51.100.200:40000";
        for client in [INSIDE, neighbour] {
            tcp(&mut lab, client, flags::SYN).sent(TransmitReason::Forward);
            tcp(&mut lab, client, flags::ACK).sent(TransmitReason::Forward);
        }
        lab.change(|spec| spec.services[0].source_ranges = ranges(&["198.51.100.128/25"]));
        assert_eq!(tcp(&mut lab, INSIDE, flags::ACK).refused(), Refusal::SourceRange, "{mode}");
        let kept = tcp(&mut lab, neighbour, flags::ACK);
        assert_eq!(kept.note.flow, FlowNote::Known, "{mode}");
        assert_eq!(lab.pipeline.flows().live(), 1, "{mode}");
        if !mode.is_dsr() {
            let answer = Builder::tcp("10.0.0.1:80", INSIDE).flags(flags::ACK);
            assert_eq!(
                lab.send(answer).verdict,
                Verdict::Punt(PuntReason::NotOurs),
                "{mode}: there is no flow for it"
            );
        }
    }
}

#[test]
fn new_ranges_end_the_flows_of_clients_outside() {
    let mut lab = lab(ForwardingMode::DsrL2, &["0.0.0.0/0"]);
    tcp(&mut lab, OUTSIDE, flags::SYN).sent(TransmitReason::Forward);
    lab.change(|spec| spec.services[0].source_ranges = None);
    assert_eq!(tcp(&mut lab, OUTSIDE, flags::ACK).note.flow, FlowNote::Known);
    lab.change(|spec| spec.services[0].source_ranges = ranges(&["198.51.100.0/24"]));
    assert_eq!(tcp(&mut lab, OUTSIDE, flags::ACK).refused(), Refusal::SourceRange);
    lab.change(|spec| spec.services[0].source_ranges = None);
    tcp(&mut lab, OUTSIDE, flags::SYN).sent(TransmitReason::Forward);
}

#[test]
fn flows_are_rechecked_incrementally_and_only_when_ranges_change() {
    let mut lab = lab(ForwardingMode::FullNat, &["198.51.100.0/24"]).with_entries(100_000);
    for port in 1..=500 {
        tcp(&mut lab, &format!("198.51.100.7:{port}"), flags::SYN).sent(TransmitReason::Forward);
    }
    assert!(!lab.pipeline.recheck(&lab.snapshot, lab.now), "nothing has changed");
    lab.spec.services[0].source_ranges = ranges(&["10.0.0.0/8"]);
    lab.spec.generation += 1;
    let compiled = tidegate_snapshot::Snapshot::compile(&lab.spec, Some(&lab.snapshot), &lab.neighbors);
    lab.snapshot = compiled.unwrap().0;
    let mut live = vec![lab.pipeline.flows().live()];
    while lab.pipeline.recheck(&lab.snapshot, lab.now) {
        live.push(lab.pipeline.flows().live());
    }
    assert_eq!((live[0], lab.pipeline.flows().live()), (500, 0));
    let most = live.windows(2).map(|pair| pair[0] - pair[1]).max().unwrap();
    assert!(most < 100, "{most} flows in one iteration");
    assert!(!lab.pipeline.recheck(&lab.snapshot, lab.now), "it is done");
}

#[test]
fn the_flow_that_an_icmp_error_quotes_determines_its_admission() {
    for mode in ForwardingMode::ALL {
        let mut lab = lab(mode, &["198.51.100.0/24"]);
        tcp(&mut lab, INSIDE, flags::SYN).sent(TransmitReason::Forward);
        let router_outside = |quoted: &[u8]| {
            Builder::icmp(ip("192.0.2.1"), ip("203.0.113.5"), 3, 4, [0, 0, 5, 0]).payload(quoted)
        };
        let answer = Builder::tcp(VIP, INSIDE).flags(flags::ACK).packet();
        lab.send(router_outside(&answer)).sent(TransmitReason::IcmpError);
        let stranger = Builder::tcp(VIP, OUTSIDE).flags(flags::ACK).packet();
        let refused = lab.send(router_outside(&stranger)).refused();
        // Without an admitted client there is no flow.
        let expected = if mode.is_dsr() { Refusal::SourceRange } else { Refusal::IcmpErrorUnknown };
        assert_eq!(refused, expected, "{mode}");
    }
}

#[test]
fn a_client_outside_the_ranges_gets_no_answer_about_missing_backends() {
    let empty = service(ForwardingMode::FullNat, Protocol::Tcp, VIP, &[]);
    let mut lab = Lab::new(vec![ServiceSpec { source_ranges: ranges(&["198.51.100.0/24"]), ..empty }]);
    tcp(&mut lab, INSIDE, flags::SYN).sent(TransmitReason::NoEndpoints);
    assert_eq!(tcp(&mut lab, OUTSIDE, flags::SYN).refused(), Refusal::SourceRange);
}
