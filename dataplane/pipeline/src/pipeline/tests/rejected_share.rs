//! A service that rejects a share of its new flows: which flows, how they are answered, and that known flows are served.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use tidegate_snapshot::service::{Entries, FastPath};
use tidegate_spec::limits::FAST_PATH_SKIPPED_BURSTS;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_spec::{
    ChoiceOptions, FlowTracking, ForwardingMode, HashInput, LoadRule, NoEndpoints, Protocol, Scheduler,
    ServiceLimits, ServiceSpec, SynCookies,
};
use tidegate_wire::tcp::flags;
use tidegate_wire::{Parsed, parse, proto};

use super::lab::{FrameResult, Lab, ip, service};
use crate::pipeline::FlowNote;
use crate::testing::builder::Builder;

const VIP: &str = "203.0.113.5:80";
const VIP6: &str = "[2001:db8:1::5]:80";
const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
const MODES: [ForwardingMode; 3] = [ForwardingMode::DsrL2, ForwardingMode::Nat, ForwardingMode::FullNat];

/// A service with four backends that rejects this share.
fn web(mode: ForwardingMode, protocol: Protocol, vip: &str, rejected_ppm: u32) -> ServiceSpec {
    let v4 = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80"];
    let v6 = ["[fd00::1]:80", "[fd00::2]:80", "[fd00::3]:80", "[fd00::4]:80"];
    let backends = if vip == VIP { v4 } else { v6 };
    ServiceSpec { rejected_ppm, ..service(mode, protocol, vip, &backends) }
}

fn client(vip: &str, n: u8, port: u16) -> SocketAddr {
    let host = if vip == VIP { format!("198.51.100.{n}") } else { format!("2001:db8::{n}") };
    SocketAddr::new(ip(&host), port)
}

/// The first packet of a flow.
fn first(protocol: Protocol, from: SocketAddr, vip: &str) -> Builder {
    match protocol {
        Protocol::Tcp => Builder::tcp(from, vip).flags(flags::SYN),
        Protocol::Udp => Builder::udp(from, vip),
        Protocol::Sctp => Builder::sctp_init(from, vip, tag(from)),
    }
}

/// The initiate tag of a client. Two clients with equal ports and tags would be two paths of one association.
fn tag(from: SocketAddr) -> u32 {
    let host = match from.ip() {
        IpAddr::V4(host) => host.octets()[3],
        IpAddr::V6(host) => host.octets()[15],
    };
    u32::from(from.port()) << 8 | u32::from(host)
}

/// A later packet of an established flow.
fn later(protocol: Protocol, from: SocketAddr, vip: &str) -> Builder {
    match protocol {
        Protocol::Tcp => Builder::tcp(from, vip).flags(flags::ACK),
        Protocol::Udp => Builder::udp(from, vip),
        Protocol::Sctp => Builder::sctp(from, vip).chunk(tidegate_wire::sctp::chunk::DATA, 3, &[0; 16]),
    }
}

/// Whether the flow is rejected. The answers have a rate limit.
fn is_rejected(result: &FrameResult) -> bool {
    match result.verdict {
        Verdict::Transmit { why: TransmitReason::NoEndpoints, .. } => true,
        Verdict::Transmit { why: TransmitReason::Forward, .. } => false,
        _ => result.refused() == Refusal::NoEndpoints,
    }
}

/// Sends the first packets of 10,000 flows: whether each is rejected, and how many flows each backend gets.
fn decisions(service: ServiceSpec, vip: &str) -> (Vec<bool>, BTreeMap<IpAddr, u32>) {
    let protocol = service.key.protocol;
    let mut lab = Lab::new(vec![service]);
    let (mut rejected, mut backends) = (Vec::new(), BTreeMap::new());
    for (n, port) in (1..=100).flat_map(|n| (0..100).map(move |k| (n, 32_768 + 7 * k))) {
        let result = lab.send(first(protocol, client(vip, n, port), vip));
        rejected.push(is_rejected(&result));
        if !is_rejected(&result) {
            *backends.entry(lab.backend_of(&result)).or_default() += 1;
        }
    }
    (rejected, backends)
}

fn count(rejected: &[bool]) -> usize {
    rejected.iter().filter(|&&is| is).count()
}

#[test]
fn the_share_is_exact_and_the_served_flows_spread_evenly() {
    for (protocol, vip) in PROTOCOLS.into_iter().flat_map(|protocol| [(protocol, VIP), (protocol, VIP6)]) {
        let [dsr, full_nat] = [ForwardingMode::DsrL2, ForwardingMode::FullNat]
            .map(|mode| decisions(web(mode, protocol, vip, 800_000), vip));
        assert!((7_900..=8_100).contains(&count(&dsr.0)), "{protocol} {vip}: {}", count(&dsr.0));
        assert_eq!(dsr, full_nat, "{protocol} {vip}: the mode has no effect");
        for (backend, flows) in dsr.1 {
            assert!((420..=580).contains(&flows), "{protocol} {vip}: {backend} has {flows} of 2,000");
        }
    }
}

#[test]
fn neither_the_scheduler_nor_affinity_changes_which_flows_are_rejected() {
    let plain = web(ForwardingMode::Nat, Protocol::Tcp, VIP, 800_000);
    let (expected, _) = decisions(plain.clone(), VIP);
    let schedulers = [
        Scheduler::Maglev { slots: 251 },
        Scheduler::WeightedRoundRobin,
        Scheduler::Loads(LoadRule::LeastConnections),
        Scheduler::Loads(LoadRule::ShortestDelay),
        Scheduler::Loads(LoadRule::NeverQueue),
        Scheduler::SourceHash,
        Scheduler::DestinationHash,
    ];
    let scheduled = schedulers.map(|scheduler| ServiceSpec { scheduler, ..plain.clone() });
    let choice = ChoiceOptions { hash: HashInput::Client, ..ChoiceOptions::default() };
    let by_client = ServiceSpec { choice, ..plain.clone() };
    let sticky = ServiceSpec { affinity: Some(Duration::from_secs(600)), ..plain };
    for service in scheduled.into_iter().chain([by_client, sticky]) {
        let what = (service.scheduler, service.affinity);
        assert!(decisions(service, VIP).0 == expected, "{what:?}");
    }
}

#[test]
fn a_larger_share_also_rejects_what_a_smaller_one_rejects() {
    let of = |ppm| decisions(web(ForwardingMode::DsrL2, Protocol::Tcp, VIP, ppm), VIP).0;
    let shares = [0, 1, 200_000, 500_000, 999_999, 1_000_000].map(of);
    assert_eq!([count(&shares[0]), count(&shares[5])], [0, 10_000]);
    for pair in shares.windows(2) {
        assert!(pair[0].iter().zip(&pair[1]).all(|(smaller, larger)| larger | !smaller));
    }
}

/// A client port whose flow is rejected or not.
fn port(lab: &mut Lab, is: bool) -> u16 {
    let rejects = |port: &u16| {
        let (service, info) = lab.snapshot.services().next().expect("there is one service");
        let (src, dst) = (client(VIP, 1, 0).ip().into(), service.vip);
        let number = info.key.protocol.number();
        lab.snapshot.rejects(service, (&src, *port), (&dst, info.key.port), number) == is
    };
    (1024..2048).find(rejects).expect("half of the ports")
}

#[test]
fn rejected_flows_are_answered_as_without_endpoints_and_leave_no_entry() {
    for (mode, protocol) in MODES.into_iter().flat_map(|mode| PROTOCOLS.map(|protocol| (mode, protocol))) {
        let mut lab = Lab::new(vec![web(mode, protocol, VIP, 500_000)]);
        let from = client(VIP, 1, port(&mut lab, true));
        for _ in 0..2 {
            let result = lab.send(first(protocol, from, VIP));
            let Ok(Parsed::Ip(h)) = parse(result.sent(TransmitReason::NoEndpoints)) else { panic!("not IP") };
            let answered = if protocol == Protocol::Tcp { proto::TCP } else { proto::ICMP };
            assert_eq!((h.src, h.proto), (ip("203.0.113.5").into(), answered), "{mode} {protocol}");
        }
        let flows = lab.pipeline.flows();
        assert_eq!((flows.dsr.live(), flows.nat.live()), (0, 0), "{mode} {protocol}");
        let from = client(VIP, 1, port(&mut lab, false));
        assert!(!is_rejected(&lab.send(first(protocol, from, VIP))), "{mode} {protocol}");
        lab.change(|spec| spec.services[0].no_endpoints = NoEndpoints::Drop);
        let from = client(VIP, 1, port(&mut lab, true));
        assert_eq!(lab.send(first(protocol, from, VIP)).refused(), Refusal::NoEndpoints, "{mode} {protocol}");
    }
}

#[test]
fn known_flows_are_served_while_the_share_rises_to_all() {
    for (mode, protocol) in ForwardingMode::ALL.into_iter().flat_map(|mode| PROTOCOLS.map(|p| (mode, p))) {
        let mut lab = Lab::new(vec![web(mode, protocol, VIP, 0)]);
        let flows: Vec<_> = (0..100).map(|n| client(VIP, 1, 40_000 + n)).collect();
        let open = |lab: &mut Lab, &from: &SocketAddr| {
            let result = lab.send(first(protocol, from, VIP));
            lab.send(later(protocol, from, VIP));
            lab.backend_of(&result)
        };
        let had: Vec<_> = flows.iter().map(|from| open(&mut lab, from)).collect();
        for ppm in [1, 500_000, 1_000_000] {
            lab.change(|spec| spec.services[0].rejected_ppm = ppm);
            for (&from, had) in flows.iter().zip(&had) {
                // A repeated first packet belongs to its flow.
                for packet in [later(protocol, from, VIP), first(protocol, from, VIP)] {
                    let result = lab.send(packet);
                    assert_eq!(result.note.flow, FlowNote::Known, "{mode} {protocol} {from}");
                    assert_eq!(lab.backend_of(&result), *had, "{mode} {protocol} {from}");
                }
            }
        }
        assert!(is_rejected(&lab.send(first(protocol, client(VIP, 1, 50_000), VIP))), "{mode} {protocol}");
        // A flow that loses its backend is not new either.
        lab.change(|spec| drop(spec.services[0].backends.drain(..3)));
        for &from in flows.iter().filter(|_| protocol == Protocol::Udp || mode.is_dsr()) {
            assert!(!is_rejected(&lab.send(later(protocol, from, VIP))), "{mode} {protocol} {from}");
        }
    }
}

#[test]
fn packets_in_the_middle_of_unknown_connections_are_not_rejected() {
    for mode in MODES {
        let mut lab = Lab::new(vec![web(mode, Protocol::Tcp, VIP, 1_000_000)]);
        let result = lab.send(later(Protocol::Tcp, client(VIP, 1, 40_000), VIP));
        result.sent(if mode.is_dsr() { TransmitReason::Forward } else { TransmitReason::NoFlow });
    }
}

#[test]
fn a_connection_is_reopened_as_long_as_its_entry_exists() {
    for mode in MODES {
        let mut lab = Lab::new(vec![web(mode, Protocol::Tcp, VIP, 0)]);
        let from = client(VIP, 1, 40_000);
        for flag in [flags::SYN, flags::ACK, flags::RST] {
            lab.send(Builder::tcp(from, VIP).flags(flag)).sent(TransmitReason::Forward);
        }
        lab.change(|spec| spec.services[0].rejected_ppm = 1_000_000);
        lab.send(first(Protocol::Tcp, from, VIP)).sent(TransmitReason::Forward);
        lab.wait(Duration::from_secs(1000));
        lab.send(first(Protocol::Tcp, from, VIP)).sent(TransmitReason::NoEndpoints);
    }
}

#[test]
fn rejection_comes_before_cookies_limits_and_affinity() {
    let limits = ServiceLimits { connections: NonZeroU32::new(1), ..ServiceLimits::default() };
    let plain = web(ForwardingMode::FullNat, Protocol::Tcp, VIP, 500_000);
    let cookies = ServiceSpec { syn_cookies: Some(SynCookies::Always), ..plain.clone() };
    let mut lab = Lab::new(vec![cookies]);
    for (is, why) in [(true, TransmitReason::NoEndpoints), (false, TransmitReason::SynCookie)] {
        let from = client(VIP, 1, port(&mut lab, is));
        lab.send(first(Protocol::Tcp, from, VIP)).sent(why);
    }
    let affinity = Some(Duration::from_secs(600));
    let mut lab = Lab::new(vec![ServiceSpec { limits, affinity, ..plain }]);
    let [rejected, served] = [true, false].map(|is| client(VIP, 1, port(&mut lab, is)));
    lab.send(first(Protocol::Tcp, rejected, VIP)).sent(TransmitReason::NoEndpoints);
    assert_eq!(lab.pipeline.flows().dsr.live(), 0, "a rejected flow starts no affinity");
    lab.send(first(Protocol::Tcp, served, VIP)).sent(TransmitReason::Forward);
    assert_eq!(lab.pipeline.flows().dsr.live(), 1);
    lab.send(first(Protocol::Tcp, rejected, VIP)).sent(TransmitReason::NoEndpoints);
}

#[test]
fn a_service_that_rejects_flows_tracks_all_flows() {
    let flow_tracking = FlowTracking::OnChange([].into());
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let plain = web(ForwardingMode::DsrL2, protocol, VIP, 0);
        let mut lab = Lab::new(vec![ServiceSpec { flow_tracking: flow_tracking.clone(), ..plain }]);
        let entries = |lab: &Lab| lab.snapshot.services().next().expect("there is one service").0.entries;
        assert_eq!(entries(&lab), Entries::InFlux);
        let untracked = client(VIP, 1, 40_000);
        let before = lab.send(first(protocol, untracked, VIP));
        lab.change(|spec| spec.services[0].rejected_ppm = 500_000);
        assert_eq!(entries(&lab), Entries::EachFlow);
        if protocol == Protocol::Tcp {
            let after = lab.send(later(protocol, untracked, VIP));
            assert_eq!(lab.backend_of(&after), lab.backend_of(&before), "connections without an entry stay");
        }
        let from = client(VIP, 1, port(&mut lab, false));
        lab.send(first(protocol, from, VIP)).sent(TransmitReason::Forward);
        lab.change(|spec| spec.services[0].rejected_ppm = 1_000_000);
        assert_eq!(lab.send(later(protocol, from, VIP)).note.flow, FlowNote::Known, "{protocol}");
    }
}

#[test]
fn only_known_flows_take_the_fast_path() {
    let mut lab = Lab::new(vec![web(ForwardingMode::DsrL2, Protocol::Tcp, VIP, 500_000)]);
    assert_eq!(lab.snapshot.services().next().expect("one").0.fast_path, FastPath::Known);
    let from = client(VIP, 1, port(&mut lab, false));
    assert!(!lab.send(first(Protocol::Tcp, from, VIP)).is_fast);
    // After a burst without packets for the fast path, some bursts skip it.
    let mut packets = (0..2 * FAST_PATH_SKIPPED_BURSTS).map(|_| lab.send(later(Protocol::Tcp, from, VIP)));
    assert!(packets.any(|result| result.is_fast));
}
