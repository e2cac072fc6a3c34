//! Limits of Services: what is refused, what is never refused, and that they apply to all workers together.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use tidegate_snapshot::service_limits::LimitDrop;
use tidegate_spec::limits::BANDWIDTH_BURST_MIN;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_spec::{BackendState, ForwardingMode, Protocol, ServiceLimits, ServiceSpec, SnapshotSpec};
use tidegate_wire::tcp::flags;

use super::lab::{FrameResult, Lab, ROUTER_MAC, backend_mac, service, spec};
use crate::forward::snat_ports::Steering;
use crate::pipeline::Pipeline;
use crate::testing::builder::{Builder, GATEWAY_MAC};

const VIP: &str = "203.0.113.5:80";
const VIP6: &str = "[2001:db8:1::5]:80";

fn connections(max: u32) -> ServiceLimits {
    ServiceLimits { connections: NonZeroU32::new(max), ..ServiceLimits::default() }
}

fn rate(per_second: u32) -> ServiceLimits {
    ServiceLimits { connection_rate: NonZeroU32::new(per_second), ..ServiceLimits::default() }
}

fn bandwidth(bits: u64) -> ServiceLimits {
    ServiceLimits { bandwidth: NonZeroU64::new(bits), ..ServiceLimits::default() }
}

/// One Service on two addresses, with these limits.
fn services(mode: ForwardingMode, protocol: Protocol, limits: ServiceLimits) -> Vec<ServiceSpec> {
    let of = |vip, backend| ServiceSpec { limits, ..service(mode, protocol, vip, &[backend]) };
    vec![of(VIP, "10.0.0.1:80"), of(VIP6, "[fd00::1]:80")]
}

fn lab(mode: ForwardingMode, protocol: Protocol, limits: ServiceLimits) -> Lab {
    Lab::new(services(mode, protocol, limits))
}

fn client(n: u32) -> String {
    format!("198.51.{}.{}:40000", n / 200, n % 200 + 1)
}

fn tcp(n: u32, flag: u8) -> Builder {
    Builder::tcp(&*client(n), VIP).flags(flag)
}

fn passes(result: &FrameResult) -> bool {
    matches!(result.verdict, Verdict::Transmit { why: TransmitReason::Forward, .. })
}

/// How many of these clients can open a connection.
fn opened(lab: &mut Lab, clients: std::ops::Range<u32>) -> usize {
    clients.filter(|&n| passes(&lab.send(tcp(n, flags::SYN)))).count()
}

#[test]
fn max_connections_limits_new_flows_and_established_ones_continue() {
    for mode in ForwardingMode::ALL {
        let mut lab = lab(mode, Protocol::Tcp, connections(10));
        assert_eq!(opened(&mut lab, 0..6), 6);
        // Both addresses of the Service count together.
        let v6 = |n: u32| Builder::tcp(&*format!("[2001:db8::{n}]:40000"), VIP6).flags(flags::SYN);
        assert!((1..=4).all(|n| passes(&lab.send(v6(n)))), "{mode}");
        for n in 0..20 {
            assert_eq!(lab.send(tcp(100 + n, flags::SYN)).refused(), Refusal::ServiceConnections, "{mode}");
            assert_eq!(lab.send(v6(100 + n)).refused(), Refusal::ServiceConnections, "{mode}");
        }
        assert!((0..6).all(|n| passes(&lab.send(tcp(n, flags::ACK)))), "{mode}: existing ones continue");
        assert!(passes(&lab.send(tcp(0, flags::SYN))), "{mode}: a repeated SYN is not a new flow");
        let limited = &lab.snapshot.limited_services()[0];
        assert_eq!(limited.refuses_new(lab.now), Some(LimitDrop::Connections));
        lab.pipeline.report_limits(&lab.snapshot);
        assert_eq!((lab.snapshot.limited_services()[0].connections(), limited_drops(&lab)), (10, [40, 0, 0]));
        // Ended flows release capacity.
        lab.wait(Duration::from_secs(1000));
        assert_eq!(opened(&mut lab, 200..220), 0, "they have not been removed yet");
        lab.pipeline.flows_mut().age(lab.now, usize::MAX);
        lab.pipeline.flows_mut().age(lab.now, usize::MAX);
        lab.pipeline.flows_mut().age(lab.now, usize::MAX);
        lab.pipeline.flows_mut().age(lab.now, usize::MAX);
        assert_eq!(opened(&mut lab, 0..20), 10, "{mode}");
    }
}

fn limited_drops(lab: &Lab) -> [u64; 3] {
    LimitDrop::ALL.map(|by| lab.snapshot.limited_services()[0].drops(by))
}

#[test]
fn entries_of_session_affinity_do_not_count_as_connections() {
    for mode in ForwardingMode::ALL {
        let limited = services(mode, Protocol::Tcp, connections(10)).into_iter();
        let affinity = Some(Duration::from_secs(600));
        let mut lab = Lab::new(limited.map(|one| ServiceSpec { affinity, ..one }).collect());
        assert_eq!(opened(&mut lab, 0..20), 10, "{mode}");
    }
}

#[test]
fn a_rate_allows_a_burst_of_one_second() {
    for mode in ForwardingMode::ALL {
        let mut lab = lab(mode, Protocol::Tcp, rate(50));
        assert_eq!(opened(&mut lab, 0..200), 50, "{mode}");
        assert_eq!(lab.send(tcp(300, flags::SYN)).refused(), Refusal::ServiceConnectionRate);
        assert!((0..50).all(|n| passes(&lab.send(tcp(n, flags::ACK)))), "{mode}");
        lab.wait(Duration::from_millis(200));
        assert_eq!(opened(&mut lab, 300..400), 10, "{mode}");
    }
}

#[test]
fn limits_of_new_flows_never_refuse_connections_of_another_gateway() {
    for mode in [ForwardingMode::DsrL2, ForwardingMode::DsrIpip] {
        let limits = ServiceLimits { connection_rate: NonZeroU32::new(1), ..connections(1) };
        let mut lab = lab(mode, Protocol::Tcp, limits);
        assert_eq!(opened(&mut lab, 0..5), 1);
        assert!((10..60).all(|n| passes(&lab.send(tcp(n, flags::ACK)))), "{mode}");
    }
}

#[test]
fn a_known_flow_that_changes_its_backend_is_not_new() {
    for mode in [ForwardingMode::DsrL2, ForwardingMode::FullNat] {
        let limits = ServiceLimits { connection_rate: NonZeroU32::new(1), ..connections(1) };
        let backends = ["10.0.0.1:80", "10.0.0.2:80"];
        let mut lab = Lab::new(vec![ServiceSpec { limits, ..service(mode, Protocol::Udp, VIP, &backends) }]);
        let datagram = || Builder::udp(&*client(1), VIP);
        let first = lab.send(datagram());
        let before = lab.backend_of(&first);
        lab.change(|spec| {
            let backend = spec.services[0].backends.iter_mut().find(|backend| backend.address == before);
            backend.expect("it is one of them").state = BackendState::Down;
        });
        let result = lab.send(datagram());
        assert!(passes(&result) && lab.backend_of(&result) != before, "{mode}");
    }
}

#[test]
fn a_service_without_a_backend_answers_as_without_limits() {
    let limits = ServiceLimits { connection_rate: NonZeroU32::new(1), ..connections(1) };
    let mut lab =
        Lab::new(vec![ServiceSpec { limits, ..service(ForwardingMode::Nat, Protocol::Tcp, VIP, &[]) }]);
    for n in 0..5 {
        lab.send(tcp(n, flags::SYN)).sent(TransmitReason::NoEndpoints);
    }
}

#[test]
fn bandwidth_is_limited_in_each_direction_through_the_gateway() {
    for mode in ForwardingMode::ALL {
        // 8 Mbit/s is a megabyte a second: the smallest burst is larger than 100 ms of it.
        let mut lab = lab(mode, Protocol::Udp, bandwidth(8_000_000));
        let question = || Builder::udp(&*client(1), VIP).payload_len(1172);
        let sent = (0..1000).filter(|_| passes(&lab.send(question()))).count();
        assert_eq!(sent, BANDWIDTH_BURST_MIN as usize / 1200, "{mode}");
        assert_eq!(lab.send(question()).refused(), Refusal::ServiceBandwidth);
        if !mode.is_dsr() {
            // The answers have their own token bucket.
            let answer = answer(&mut lab);
            let answered = (0..1000).filter(|_| is_reply(&lab.receive(&answer))).count();
            assert_eq!(answered, BANDWIDTH_BURST_MIN as usize / 1200, "{mode}");
            assert_eq!(lab.receive(&answer).refused(), Refusal::ServiceBandwidth);
        }
        // A second adds a megabyte, but the token bucket is limited to the burst.
        let mut sent = 0;
        for _ in 0..100 {
            lab.wait(Duration::from_millis(10));
            sent += (0..1000).filter(|_| passes(&lab.send(question()))).count();
        }
        assert!((830..=834).contains(&sent), "{mode}: {sent} packets of 1,200 bytes in a second");
    }
}

fn is_reply(result: &FrameResult) -> bool {
    matches!(result.verdict, Verdict::Transmit { why: TransmitReason::Reply, .. })
}

/// A datagram of 1,200 bytes from the backend of the only flow to its client.
fn answer(lab: &mut Lab) -> Vec<u8> {
    let mut to = None;
    lab.pipeline.flows().scan(0, u64::MAX, lab.now, |flow| {
        if let tidegate_conntrack::FlowKind::Nat { source, source_port, .. } = flow.kind {
            to = Some((source.ip(), source_port));
        }
    });
    let to = to.expect("there is one flow");
    Builder::udp("10.0.0.1:80", to).payload_len(1172).mac(backend_mac(1), GATEWAY_MAC).build()
}

/// Two workers of one gateway, which share its snapshot and its next hops.
struct TwoWorkers {
    /// The gateway with the worker `at`.
    lab: Lab,
    other: Pipeline,
    at: usize,
}

impl TwoWorkers {
    fn new(mode: ForwardingMode, protocol: Protocol, limits: ServiceLimits) -> Self {
        let services = services(mode, protocol, limits).into_iter().map(Into::into).collect();
        let spec = SnapshotSpec { services, ..spec() };
        let other = Lab::worker(spec.clone(), 1, 2, Steering::Partition).pipeline;
        Self { lab: Lab::worker(spec, 0, 2, Steering::Partition), other, at: 0 }
    }

    /// The gateway with one of its workers.
    fn on(&mut self, worker: usize) -> &mut Lab {
        if worker != self.at {
            std::mem::swap(&mut self.lab.pipeline, &mut self.other);
            self.at = worker;
        }
        &mut self.lab
    }

    /// Sends a frame to a worker, and to the other one if that owns its flow.
    fn send(&mut self, first: usize, builder: &Builder) -> FrameResult {
        let frame = builder.clone().mac(ROUTER_MAC, GATEWAY_MAC).build();
        let result = self.on(first).receive(&frame);
        match result.verdict {
            Verdict::HandOver(to) => self.on(usize::from(to)).receive(&frame),
            _ => result,
        }
    }
}

#[test]
fn two_workers_together_obey_the_limits_however_flows_are_distributed() {
    for mode in ForwardingMode::ALL {
        // All flows at one worker, one in ten at the other, and half at each.
        for every in [u32::MAX, 10, 2] {
            let at = |n: u32| usize::from(n % every == 1);
            let mut gateway = TwoWorkers::new(mode, Protocol::Tcp, connections(100));
            let opened = (0..400).filter(|&n| passes(&gateway.send(at(n), &tcp(n, flags::SYN)))).count();
            assert_eq!(opened, 100, "{mode} {every}");

            let mut gateway = TwoWorkers::new(mode, Protocol::Tcp, rate(100));
            let opened = (0..400).filter(|&n| passes(&gateway.send(at(n), &tcp(n, flags::SYN)))).count();
            assert_eq!(opened, 100, "{mode} {every}");

            // 1 Gbit/s: 125 kB a millisecond, 12.5 MB at once.
            let mut gateway = TwoWorkers::new(mode, Protocol::Udp, bandwidth(1_000_000_000));
            let datagram = |n: u32| Builder::udp(&*client(n % 100), VIP).payload_len(1172);
            let bytes = 1200 * (0..20_000).filter(|&n| passes(&gateway.send(at(n), &datagram(n)))).count();
            // Each worker may keep tokens for a millisecond, and the last packet may not fit.
            let (most, least) = (12_500_000, 12_500_000 - 2 * (125_000 + 1200));
            assert!((least..=most).contains(&bytes), "{mode} {every}: {bytes}");
        }
    }
}

#[test]
fn flows_that_end_at_one_worker_release_capacity_at_the_other() {
    let mut gateway = TwoWorkers::new(ForwardingMode::DsrL2, Protocol::Tcp, connections(10));
    assert_eq!(opened(gateway.on(0), 0..20), 10);
    assert_eq!(opened(gateway.on(1), 50..60), 0);
    let now = gateway.lab.now;
    gateway.on(0).pipeline.flows_mut().retain(now, |_| false);
    assert_eq!(opened(gateway.on(1), 50..60), 0, "not yet reported");
    let first = gateway.on(0);
    first.pipeline.report_limits(&first.snapshot);
    assert_eq!(opened(gateway.on(1), 50..70), 10);
}

#[test]
fn changed_limits_keep_the_count_and_removed_limits_reset_it() {
    let mut lab = lab(ForwardingMode::DsrL2, Protocol::Tcp, connections(5));
    let set = |lab: &mut Lab, limits: ServiceLimits| {
        lab.change(|spec| spec.services.iter_mut().for_each(|service| service.limits = limits));
    };
    assert_eq!(opened(&mut lab, 0..10), 5);
    set(&mut lab, connections(8));
    assert_eq!(opened(&mut lab, 10..20), 3);
    set(&mut lab, connections(2));
    assert_eq!(opened(&mut lab, 20..30), 0);
    assert!((0..5).all(|n| passes(&lab.send(tcp(n, flags::ACK)))), "a lower limit ends no flow");
    set(&mut lab, ServiceLimits::default());
    assert_eq!(opened(&mut lab, 30..40), 10);
    set(&mut lab, connections(20));
    assert_eq!(opened(&mut lab, 40..50), 2, "the flows begun without a limit count");
}
