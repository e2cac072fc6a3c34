//! Compares the fast path with the stages: bursts with and without it result in equal verdicts, bytes, notes, counts
//! and flows.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use tidegate_conntrack::flow_record::Walks;
use tidegate_snapshot::counters::Tallies;
use tidegate_spec::limits::FAST_PATH_SKIPPED_BURSTS;
use tidegate_spec::source_lists::SourceLists;
use tidegate_spec::verdict::{TransmitReason, Verdict};
use tidegate_spec::{
    FlowTracking, ForwardingMode, MssClamp, NeighborSpec, Protocol, RouteSpec, ServiceSpec, SourceRate,
};
use tidegate_wire::tcp::flags;
use tidegate_wire::{MacAddr, Parsed, parse};

use super::lab::{Lab, ROUTER_MAC, backend_mac, ip, service, spec_with};
use super::options::{Change, change};
use crate::frame::{Frame, MemoryFrame};
use crate::pipeline::{Arrival, BurstOutput, FlowNote, SharedFlows, View};
use crate::testing::builder::{Builder, GATEWAY_MAC};
use crate::testing::summary;

/// Mode, protocol, VIP and backends of the services.
const SERVICES: [(ForwardingMode, Protocol, &str, &[&str]); 26] = [
    (ForwardingMode::DsrL2, Protocol::Tcp, "203.0.113.1:80", &["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]),
    (ForwardingMode::DsrL2, Protocol::Udp, "203.0.113.1:53", &["10.0.0.1:53", "10.0.0.2:53"]),
    (ForwardingMode::DsrIpip, Protocol::Tcp, "203.0.113.2:80", &["10.0.0.1:80", "10.0.0.2:80"]),
    (ForwardingMode::DsrIpip, Protocol::Udp, "203.0.113.3:53", &["[fd00::1]:53", "[fd00::2]:53"]),
    (ForwardingMode::DsrGue, Protocol::Tcp, "203.0.113.4:80", &["10.0.0.1:80", "10.0.0.2:80"]),
    (ForwardingMode::DsrGue, Protocol::Udp, "203.0.113.5:53", &["[fd00::1]:53", "[fd00::2]:53"]),
    (ForwardingMode::DsrGre, Protocol::Tcp, "203.0.113.6:80", &["10.0.0.1:80", "10.0.0.2:80"]),
    (ForwardingMode::DsrGeneve, Protocol::Udp, "203.0.113.7:53", &["10.0.0.1:53", "10.0.0.2:53"]),
    (ForwardingMode::Nat, Protocol::Tcp, "203.0.113.8:80", &["10.0.0.1:8080", "10.0.0.2:8080"]),
    (ForwardingMode::Nat, Protocol::Udp, "203.0.113.8:53", &["10.0.0.1:5353", "10.0.0.2:53"]),
    (ForwardingMode::FullNat, Protocol::Tcp, "203.0.113.9:80", &["10.0.0.1:8081", "10.0.0.2:80"]),
    (ForwardingMode::FullNat, Protocol::Udp, "203.0.113.9:53", &["10.0.0.1:5354", "10.0.0.2:53"]),
    (ForwardingMode::DsrDscp, Protocol::Tcp, "203.0.113.10:80", &["10.0.0.1:80", "10.0.0.2:80"]),
    (ForwardingMode::DsrL2, Protocol::Tcp, "203.0.113.20:80", &["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]),
    (ForwardingMode::DsrL2, Protocol::Udp, "203.0.113.20:53", &["10.0.0.1:53", "10.0.0.2:53"]),
    (ForwardingMode::DsrIpip, Protocol::Tcp, "203.0.113.21:80", &["10.0.0.1:80", "10.0.0.2:80"]),
    (ForwardingMode::DsrL2, Protocol::Tcp, "[2001:db8:1::1]:80", &["[fd00::1]:80", "[fd00::2]:80"]),
    (ForwardingMode::Nat, Protocol::Tcp, "[2001:db8:1::2]:80", &["[fd00::1]:8080", "[fd00::2]:80"]),
    (ForwardingMode::FullNat, Protocol::Udp, "[2001:db8:1::3]:53", &["[fd00::1]:5353", "[fd00::2]:53"]),
    (ForwardingMode::DsrIpip, Protocol::Tcp, "[2001:db8:1::4]:80", &["10.0.0.1:80", "10.0.0.2:80"]),
    (ForwardingMode::DsrIpip, Protocol::Udp, "[2001:db8:1::4]:53", &["[fd00::1]:53", "[fd00::2]:53"]),
    (ForwardingMode::DsrGue, Protocol::Tcp, "[2001:db8:1::5]:80", &["10.0.0.1:80", "10.0.0.2:80"]),
    (ForwardingMode::DsrGeneve, Protocol::Udp, "[2001:db8:1::6]:53", &["[fd00::1]:53", "[fd00::2]:53"]),
    (ForwardingMode::DsrL2, Protocol::Udp, "[2001:db8:1::20]:53", &["[fd00::1]:53", "[fd00::2]:53"]),
    (ForwardingMode::DsrL2, Protocol::Tcp, "203.0.113.11:80", &["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]),
    (ForwardingMode::Nat, Protocol::Sctp, "203.0.113.12:80", &["10.0.0.1:80", "10.0.0.2:80"]),
];

const COUNT: u8 = SERVICES.len() as u8;

const CLIENTS: u8 = 8;

/// The clients whose flows are established at first.
const ESTABLISHED: u8 = 3;

const ON_CHANGE: [u8; 4] = [13, 14, 15, 23];

const AFFINITY: u8 = 24;

#[derive(Debug, Clone)]
enum Step {
    /// A burst of packets: service, client, kind, and whether it is a reply.
    Burst(Vec<(u8, u8, u8, bool)>),
    /// Time passes, in milliseconds.
    Wait(u16),
    /// An option of a service changes.
    Change(u8, Change),
    Mtu(u16),
    /// Whether the second client of each family is behind another router.
    Route(bool),
    /// Whether the link address of a router is known.
    Router(u8, bool),
    /// Whether the gateway denies the second client of each family.
    Deny(bool),
    /// Whether the gateway limits the new flows of each source.
    SourceRate(bool),
    Share(bool),
}

fn step() -> impl Strategy<Value = Step> {
    // Mostly data, otherwise the fast path would defer most bursts.
    let kind = prop_oneof![12 => Just(5u8), 2 => 0u8..19];
    let service = prop_oneof![30 => 0..COUNT - 1, 1 => Just(COUNT - 1)];
    let packet = (service, 0..CLIENTS, kind, any::<bool>());
    // Bursts with few services create flows and continue them.
    let kinds = select(vec![0, 5, 5]);
    let packets = prop::collection::vec((0u8..2, 0u8..3, kinds, any::<bool>()), 1..33);
    let focused = (0..COUNT - 2, 0..CLIENTS - 2, packets);
    let focused = focused.prop_map(|(service, first, packets)| {
        let packet = |(more, client, kind, is_reply): (u8, u8, u8, bool)| {
            (service + more, first + client, kind, is_reply)
        };
        Step::Burst(packets.into_iter().map(packet).collect())
    });
    prop_oneof![
        20 => prop::collection::vec(packet, 1..33).prop_map(Step::Burst),
        10 => focused,
        3 => select(vec![1u16, 10, 240, 900, 1100, 40_000]).prop_map(Step::Wait),
        6 => (0..COUNT, change()).prop_map(|(service, change)| Step::Change(service, change)),
        1 => select(vec![1500u16, 1500, 1300, 576, 90]).prop_map(Step::Mtu),
        1 => any::<bool>().prop_map(Step::Route),
        1 => (0u8..2, select(vec![true, true, false])).prop_map(|(n, known)| Step::Router(n, known)),
        1 => any::<bool>().prop_map(Step::Deny),
        1 => select(vec![true, false, false]).prop_map(Step::SourceRate),
        1 => any::<bool>().prop_map(Step::Share),
    ]
}

fn services() -> Vec<ServiceSpec> {
    let of = |(n, &(mode, protocol, vip, backends)): (u8, &(_, _, &str, &[&str]))| {
        let mut service = service(mode, protocol, vip, backends);
        service.tunnel.dscp = 10;
        if n == 15 {
            service.mss_clamp = MssClamp::AtMost(1000);
        }
        service.name = vip.replace(['.', ':', '[', ']'], "-");
        if ON_CHANGE.contains(&n) {
            service.flow_tracking = FlowTracking::OnChange([].into());
        }
        if n == AFFINITY {
            service.affinity = Some(Duration::from_secs(600));
        }
        service
    };
    (0..).zip(&SERVICES).map(of).collect()
}

/// The routers of each family: the default router, and that of the second client.
const ROUTERS: [[&str; 2]; 2] = [["10.0.0.250", "fd00::fa"], ["10.0.0.251", "fd00::fb"]];

fn router_mac(n: usize) -> MacAddr {
    if n == 0 { ROUTER_MAC } else { MacAddr([2, 0, 0, 0, 0, 0xfb]) }
}

const SECOND_CLIENT: [&str; 2] = ["198.51.100.2/32", "2001:db8::2/128"];

/// Sets or removes the link address of a router of each family.
fn set_router(lab: &mut Lab, n: usize, is_known: bool) {
    lab.change(|spec| {
        let routers = ROUTERS[n].map(ip);
        spec.network.neighbors.retain(|neighbor| !routers.contains(&neighbor.ip));
        if is_known {
            spec.network.neighbors.extend(routers.map(|ip| NeighborSpec { ip, mac: router_mac(n) }));
        }
    });
}

/// Two gateways, one with the fast path and one without.
struct Both {
    labs: [Lab; 2],
    /// The last packet of each service and client, as sent: source and destination.
    sent: HashMap<(u8, u8), (SocketAddr, SocketAddr)>,
}

impl Both {
    fn new() -> Self {
        let lab = || {
            let mut lab = Lab::with_spec(spec_with(services().into_iter().map(Into::into).collect(), |_| {}));
            lab.now.0 += 1;
            lab
        };
        let mut labs = [lab(), lab()];
        for lab in &mut labs {
            lab.tallies = Tallies::with_capacity(256, 256);
            for n in 0..2 {
                set_router(lab, n, true);
            }
        }
        labs[0].pipeline.set_fast_path(true);
        labs[1].pipeline.set_fast_path(false);
        Self { labs, sent: HashMap::new() }
    }

    /// The frame of a packet, if there can be one.
    fn frame(&self, (service, client, kind, is_reply): (u8, u8, u8, bool)) -> Option<Vec<u8>> {
        let (_, protocol, vip, _) = SERVICES[usize::from(service)];
        let vip: SocketAddr = vip.parse().expect("an address and a port");
        let host = if vip.is_ipv4() { "198.51.100" } else { "2001:db8::" };
        let separator = if vip.is_ipv4() { "." } else { "" };
        let client_addr = format!("{host}{separator}{}", client + 1).parse().expect("an address and a port");
        let client_at = SocketAddr::new(client_addr, 40_000 + u16::from(client));
        let (from, to, mac) = if is_reply {
            let (source, backend) = self.sent.get(&(service, client))?;
            let number = backend.ip().to_string().bytes().last()? - b'0';
            (*backend, *source, backend_mac(number))
        } else {
            (client_at, vip, ROUTER_MAC)
        };
        let builder = match protocol {
            Protocol::Tcp => Builder::tcp(from, to).flags(match kind {
                0 => flags::SYN,
                1 => flags::SYN | flags::ACK,
                2 => flags::FIN | flags::ACK,
                3 => flags::RST,
                4 | 5 => flags::PSH | flags::ACK,
                _ => flags::ACK,
            }),
            Protocol::Udp => Builder::udp(from, to),
            Protocol::Sctp => Builder::sctp_init(from, to, 77),
        };
        let builder = match kind {
            6 => builder.ttl(1),
            7 => builder.payload_len(600).dont_fragment(client == 0),
            8 if vip.is_ipv4() => builder.ip_options(&[1, 1, 1, 1]),
            8 => builder.extension(60, &[1, 4, 0, 0, 0, 0]),
            9 => builder.trailer(20).payload_len(30),
            10 => builder.fragment(9, 0, true).payload_len(32),
            11 => builder.l4_checksum(0),
            12 => builder.tos(0xb9).payload_len(usize::from(client) * 3 + 1),
            13 => builder.ip_checksum(0x1234),
            14 => builder.l4_checksum(0xffff),
            16 => builder.payload_len(1_400 + 20 * usize::from(client % 3)),
            17 => builder.payload_len(24).ip_len(21 + u16::from(client)),
            18 if vip.is_ipv6() => builder.flow_label(0xb_abe5).tos(3).payload_len(9),
            _ => builder.payload_len(24),
        };
        let builder = if kind == 15 { builder.vlan(0) } else { builder };
        Some(builder.mac(mac, GATEWAY_MAC).build())
    }

    fn burst(&mut self, packets: &[(u8, u8, u8, bool)], fast: &mut BTreeMap<String, u32>) {
        let made: Vec<_> = packets.iter().filter_map(|&p| Some((p, self.frame(p)?))).collect();
        let [(with, out, exported), (without, expected, exported_without)] =
            self.labs.each_mut().map(|lab| {
                let mut frames: Vec<_> = made.iter().map(|(_, bytes)| MemoryFrame::new(bytes)).collect();
                let mut out = BurstOutput::default();
                let view = View { snapshot: &lab.snapshot, neighbors: &lab.neighbors, tallies: &lab.tallies };
                lab.pipeline.process(view, lab.now, Arrival::Wire(0), &mut frames, &mut out);
                // A flow that changes twice in a burst may be exported twice: the fast path changes flows before the stages
                // do.
                let mut exported = BTreeSet::new();
                while lab.pipeline.share(&lab.snapshot, Walks::default(), true, lab.now, |update| {
                    exported.insert(format!("{update:?}"));
                }) {}
                (frames, out, exported)
            });
        assert_eq!(expected.fast, 0);
        assert_eq!(exported, exported_without);
        assert_eq!((&out.events, &out.unresolved), (&expected.events, &expected.unresolved));
        assert_eq!(out.oversized, expected.oversized);
        for (n, ((service, client, kind, is_reply), before)) in made.iter().enumerate() {
            let what = format!("{n} {:?} {client} {kind} {is_reply}", SERVICES[usize::from(*service)]);
            assert_eq!(out.verdicts[n], expected.verdicts[n], "{what}: {}", summary(before));
            assert_eq!(out.notes[n], expected.notes[n], "{what}");
            assert_eq!(summary(with[n].bytes()), summary(without[n].bytes()), "{what}");
            assert_eq!(with[n].bytes(), without[n].bytes(), "{what}: {}", summary(with[n].bytes()));
            if out.fast >> n & 1 == 1 {
                let (mode, protocol, vip, backends) = SERVICES[usize::from(*service)];
                let action = match mode {
                    _ if ON_CHANGE.contains(service) && out.notes[n].flow == FlowNote::None => "stable",
                    _ if out.notes[n].flow == FlowNote::New => match mode {
                        ForwardingMode::Nat if protocol == Protocol::Tcp => "bound by SYN",
                        ForwardingMode::Nat => "bound",
                        ForwardingMode::FullNat if protocol == Protocol::Tcp => "bound by SYN fullnat",
                        ForwardingMode::FullNat => "bound fullnat",
                        _ if ON_CHANGE.contains(service) => "opened",
                        _ => "begun",
                    },
                    _ if *is_reply => "reply",
                    mode => mode.as_str(),
                };
                let family = match (vip.starts_with('['), backends[0].starts_with('[')) {
                    (false, false) => "",
                    (true, true) => " v6",
                    (false, true) => " in v6",
                    (true, false) => " v6 in v4",
                };
                *fast.entry(format!("{action}{family}")).or_default() += 1;
            }
            if let (Verdict::Transmit { why: TransmitReason::Forward, .. }, false) =
                (out.verdicts[n], *is_reply)
                && !SERVICES[usize::from(*service)].0.is_dsr()
                && let Ok(Parsed::Ip(h)) = parse(with[n].bytes())
                && h.src_port != 0
            {
                let ends = (SocketAddr::new(h.src.ip(), h.src_port), SocketAddr::new(h.dst.ip(), h.dst_port));
                self.sent.insert((*service, *client), ends);
            }
        }
        let [with, without] = &self.labs;
        for at in 0..with.tallies.capacity().1 {
            assert_eq!(with.tallies.traffic(at), without.tallies.traffic(at), "backend {at}");
            assert_eq!(with.tallies.connections(at), without.tallies.connections(at), "backend {at}");
        }
        let [with, without] = self.labs.each_ref().map(|lab| {
            let mut flows = Vec::new();
            lab.pipeline.flows().scan(0, u64::MAX, lab.now, |flow| flows.push(format!("{flow:?}")));
            flows
        });
        assert_eq!(with, without);
    }

    /// Creates a flow of each service and client, and establishes it.
    fn establish(&mut self, fast: &mut BTreeMap<String, u32>) {
        let flows: Vec<_> =
            (0..COUNT).flat_map(|service| (0..ESTABLISHED).map(move |client| (service, client))).collect();
        for (kind, is_reply) in [(0, false), (1, true), (5, false)] {
            for flows in flows.chunks(32) {
                let packet = |&(service, client): &(u8, u8)| (service, client, kind, is_reply);
                self.burst(&flows.iter().map(packet).collect::<Vec<_>>(), fast);
            }
        }
    }

    fn step(&mut self, step: &Step, fast: &mut BTreeMap<String, u32>) {
        match step {
            Step::Burst(packets) => self.burst(packets, fast),
            Step::Wait(ms) => self.labs.each_mut().into_iter().for_each(|lab| {
                lab.wait(Duration::from_millis(u64::from(*ms)));
            }),
            Step::Change(service, change) => {
                for lab in &mut self.labs {
                    lab.change(|spec| change.apply(&mut spec.services[usize::from(*service)]));
                }
            }
            Step::Mtu(mtu) => {
                for lab in &mut self.labs {
                    lab.change(|spec| spec.network.interfaces[0].mtu = *mtu);
                }
            }
            Step::Route(is_other) => {
                for lab in &mut self.labs {
                    lab.change(|spec| {
                        spec.network.routes.retain(|route| route.to.prefix_len() == 0);
                        if *is_other {
                            spec.network.routes.extend(
                                SECOND_CLIENT
                                    .map(|to| to.parse().expect("an address and a port"))
                                    .into_iter()
                                    .zip(ROUTERS[1])
                                    .map(|(to, via)| RouteSpec { to, via: ip(via) }),
                            );
                        }
                    });
                }
            }
            Step::Router(n, is_known) => {
                self.labs.each_mut().into_iter().for_each(|lab| set_router(lab, usize::from(*n), *is_known));
            }
            Step::Deny(second) => {
                let deny = if *second { &SECOND_CLIENT[..] } else { &[] };
                let deny: Vec<IpNet> =
                    deny.iter().map(|net| net.parse().expect("an address and a port")).collect();
                for lab in &mut self.labs {
                    lab.change(|spec| spec.network.sources = Arc::new(SourceLists::new(&deny, &[])));
                }
            }
            Step::SourceRate(is_on) => {
                let rate = SourceRate { per_second: 1, burst: 2, v4_len: 32, v6_len: 64 };
                for lab in &mut self.labs {
                    lab.change(|spec| spec.network.source_rate = is_on.then_some(rate));
                }
            }
            Step::Share(is_on) => {
                for lab in &mut self.labs {
                    lab.pipeline.set_shared_flows(is_on.then_some(SharedFlows::Nat), Walks::default());
                }
            }
        }
    }
}

#[test]
fn the_services_have_every_mode() {
    assert!(ForwardingMode::ALL.iter().all(|mode| SERVICES.iter().any(|service| service.0 == *mode)));
}

#[test]
fn the_fast_path_does_what_the_stages_do() {
    let fast = RefCell::new(BTreeMap::new());
    let config = Config { cases: 400, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&prop::collection::vec(step(), 1..40), |steps| {
            let mut both = Both::new();
            both.establish(&mut fast.borrow_mut());
            for step in &steps {
                both.step(step, &mut fast.borrow_mut());
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
    let fast = fast.into_inner();
    for action in [
        "dsr-l2",
        "dsr-ipip",
        "dsr-ipip in v6",
        "dsr-gue",
        "dsr-gue in v6",
        "dsr-gre",
        "dsr-geneve",
        "nat",
        "fullnat",
        "reply",
        "stable",
        "dsr-l2 v6",
        "dsr-ipip v6",
        "dsr-ipip v6 in v4",
        "dsr-gue v6 in v4",
        "dsr-geneve v6",
        "nat v6",
        "fullnat v6",
        "reply v6",
        "stable v6",
        "opened",
        "begun",
        "begun v6",
        "begun v6 in v4",
        "bound",
        "bound by SYN",
        "bound by SYN v6",
        "bound fullnat",
        "bound fullnat v6",
        "bound by SYN fullnat",
    ] {
        let least = if action.starts_with("bound by SYN") { 20 } else { 100 };
        assert!(fast.get(action).is_some_and(|&frames| frames > least), "few of {action}: {fast:?}");
    }
}

/// Two packets of one flow in one burst, the first of which is deferred.
#[test]
fn packets_of_one_flow_stay_in_order() {
    for first in [flags::FIN | flags::ACK, flags::RST, flags::SYN] {
        let mut both = Both::new();
        let mut fast = BTreeMap::new();
        for kind in [0, 15, 5] {
            both.burst(&[(0, 0, kind, false)], &mut fast);
        }
        let kind = match first {
            flags::RST => 3,
            flags::SYN => 0,
            _ => 2,
        };
        both.burst(&[(0, 0, kind, false), (0, 0, 4, false), (0, 1, 4, false)], &mut fast);
        both.burst(&[(0, 0, 10, false), (0, 0, 4, false)], &mut fast);
    }
}

#[test]
fn a_flood_of_new_flows_pauses_the_fast_path() {
    // With affinity, the stages process the first packets of flows.
    let mut lab = Lab::new(services().into_iter().skip(usize::from(AFFINITY)).take(1).collect());
    let flow = |client: u16, flags| {
        let from = format!("198.51.100.1:{client}");
        Builder::tcp(&*from, "203.0.113.11:80")
            .flags(flags)
            .payload_len(8)
            .mac(ROUTER_MAC, GATEWAY_MAC)
            .build()
    };
    for kind in [flags::SYN, flags::ACK] {
        lab.receive(&flow(1, kind));
    }
    let fast = |lab: &mut Lab, bytes: &[u8]| {
        let mut frames = [MemoryFrame::new(bytes)];
        let mut out = BurstOutput::default();
        let view = View { snapshot: &lab.snapshot, neighbors: &lab.neighbors, tallies: &lab.tallies };
        lab.pipeline.process(view, lab.now, Arrival::Wire(0), &mut frames, &mut out);
        out.fast == 1
    };
    // Until a burst tries the fast path, which then sends the packet of the established flow.
    let resumes = |lab: &mut Lab| (0..=FAST_PATH_SKIPPED_BURSTS).any(|_| fast(lab, &flow(1, flags::ACK)));
    assert!(resumes(&mut lab));
    assert!(fast(&mut lab, &flow(1, flags::ACK)), "each burst tries it while it sends packets");
    assert!(!fast(&mut lab, &flow(2, flags::SYN)));
    assert!(!fast(&mut lab, &flow(1, flags::ACK)), "it rests");
    assert!(resumes(&mut lab));
}
