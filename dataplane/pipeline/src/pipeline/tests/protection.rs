//! The gateway's own lists of sources, the rate of new flows of source prefixes, and the key of the choice.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_spec::source_lists::SourceLists;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_spec::{FlowTracking, ForwardingMode, Protocol, ServiceLimits, ServiceSpec, SourceRate};
use tidegate_structures::selection_key::{SelectionKey, client_selection_hash, flow_selection_hash};
use tidegate_wire::tcp::flags;

use super::lab::{FrameResult, Lab, ip, service, spec_with};
use crate::testing::builder::Builder;

const VIP: &str = "203.0.113.5:80";
const VIP6: &str = "[2001:db8:1::5]:80";
const RATE: SourceRate = SourceRate { per_second: 5, burst: 10, v4_len: 24, v6_len: 64 };

fn lists(deny: &[&str], allow: &[&str]) -> Arc<SourceLists> {
    let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
    Arc::new(SourceLists::new(&nets(deny), &nets(allow)))
}

fn services(mode: ForwardingMode, protocol: Protocol) -> Vec<ServiceSpec> {
    vec![service(mode, protocol, VIP, &["10.0.0.1:80"]), service(mode, protocol, VIP6, &["[fd00::1]:80"])]
}

fn lab(services: Vec<ServiceSpec>, sources: Arc<SourceLists>, rate: Option<SourceRate>) -> Lab {
    let services = services.into_iter().map(Into::into).collect();
    Lab::with_spec(spec_with(services, |network| (network.sources, network.source_rate) = (sources, rate)))
}

fn passes(result: &FrameResult) -> bool {
    matches!(result.verdict, Verdict::Transmit { why: TransmitReason::Forward, .. })
}

fn syn(client: &str) -> Builder {
    Builder::tcp(client, if client.starts_with('[') { VIP6 } else { VIP }).flags(flags::SYN)
}

#[test]
fn denied_sources_reach_the_kernel_but_no_service_or_vip() {
    for mode in ForwardingMode::ALL {
        let sources = lists(&["198.51.100.0/24", "2001:db8::/48"], &["198.51.100.9/32"]);
        let mut lab = lab(services(mode, Protocol::Tcp), sources, None);
        for client in ["198.51.100.7:40000", "[2001:db8::7]:40000"] {
            assert_eq!(lab.send(syn(client)).refused(), Refusal::SourceDenied, "{mode}");
            assert_eq!(lab.send(syn(client).flags(flags::ACK)).refused(), Refusal::SourceDenied, "{mode}");
        }
        assert_eq!(lab.pipeline.flows().live(), 0);
        let (client, vip) = (ip("198.51.100.7"), ip("203.0.113.5"));
        assert_eq!(lab.send(Builder::echo_request(client, vip, 7, 1)).refused(), Refusal::SourceDenied);
        assert_eq!(
            lab.send(Builder::udp("198.51.100.7:5", "203.0.113.5:99")).refused(),
            Refusal::SourceDenied
        );
        // Sources in a longer prefix of the other list, and in no prefix.
        assert!(passes(&lab.send(syn("198.51.100.9:40000"))) && passes(&lab.send(syn("198.51.101.7:40000"))));
        // The kernel decides on the gateway's own address, so that a list can't lock out its operator.
        let own = lab.send(Builder::tcp("198.51.100.7:40000", "192.0.2.2:22"));
        assert!(matches!(own.verdict, Verdict::Punt(_)), "{:?}", own.verdict);
    }
}

#[test]
fn a_source_that_becomes_denied_loses_its_flows() {
    for mode in ForwardingMode::ALL {
        let mut lab = lab(services(mode, Protocol::Tcp), Arc::default(), None);
        let clients = ["198.51.100.7:40000", "198.51.101.7:40000"];
        for client in clients {
            assert!(passes(&lab.send(syn(client))), "{mode}");
        }
        lab.change(|spec| spec.network.sources = lists(&["198.51.100.0/24"], &[]));
        let ack = |client: &str| Builder::tcp(client, VIP).flags(flags::ACK);
        assert_eq!(lab.send(ack(clients[0])).refused(), Refusal::SourceDenied, "{mode}");
        let continues = lab.send(ack(clients[1]));
        assert!(passes(&continues) && continues.note.flow == crate::pipeline::FlowNote::Known, "{mode}");
        lab.change(|spec| spec.network.sources = Arc::default());
        assert!(passes(&lab.send(syn(clients[0]))), "{mode}");
    }
}

#[test]
fn a_source_prefix_opens_flows_at_its_rate_and_known_ones_continue() {
    for mode in ForwardingMode::ALL {
        let mut lab = lab(services(mode, Protocol::Tcp), lists(&[], &["198.51.102.0/24"]), Some(RATE));
        // Long after the start, when every token bucket is full.
        lab.wait(Duration::from_secs(60));
        let opened = |lab: &mut Lab, net: &str, ports: std::ops::Range<u16>| {
            ports.filter(|port| passes(&lab.send(syn(&format!("{net}:{port}"))))).count()
        };
        assert_eq!(opened(&mut lab, "198.51.100.7", 1000..1100), 10, "{mode}");
        assert_eq!(lab.send(syn("198.51.100.8:1")).refused(), Refusal::SourceConnectionRate, "{mode}");
        assert_eq!(opened(&mut lab, "198.51.101.7", 1000..1010), 10, "{mode}: another prefix");
        assert_eq!(opened(&mut lab, "[2001:db8::1]", 1000..1100), 10, "{mode}");
        assert_eq!(
            opened(&mut lab, "198.51.102.7", 1000..1100),
            100,
            "{mode}: protection.allow has no limit"
        );
        for port in 1000..1010 {
            let ack = Builder::tcp(&*format!("198.51.100.7:{port}"), VIP).flags(flags::ACK);
            assert!(passes(&lab.send(ack)), "{mode}");
        }
        lab.wait(Duration::from_secs(1));
        assert_eq!(opened(&mut lab, "198.51.100.7", 2000..2100), 5, "{mode}");
        // A new snapshot with an equal limit keeps the state.
        lab.change(|spec| spec.services.truncate(1));
        assert_eq!(opened(&mut lab, "198.51.100.7", 3000..3100), 0, "{mode}");
    }
}

#[test]
fn in_every_mode_a_flood_costs_no_established_flow_with_limits_on() {
    for mode in ForwardingMode::ALL {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let limits = ServiceLimits {
                connections: std::num::NonZeroU32::new(500),
                connection_rate: std::num::NonZeroU32::new(200),
                ..ServiceLimits::default()
            };
            let mut services = services(mode, protocol);
            services.iter_mut().for_each(|service| service.limits = limits);
            let rate = SourceRate { per_second: 50, burst: 60, v4_len: 32, v6_len: 64 };
            let mut lab = lab(services, lists(&["198.18.0.0/15"], &[]), Some(rate)).with_entries(1000);
            let packet = |client: &str, begins: bool| match protocol {
                Protocol::Udp => Builder::udp(client, VIP),
                _ => Builder::tcp(client, VIP).flags(if begins { flags::SYN } else { flags::ACK }),
            };
            let client = |n: u32| format!("192.0.{}.{}:40000", 8 + n / 50, n % 50 + 1);
            for n in 0..100 {
                assert!(passes(&lab.send(packet(&client(n), true))), "{mode} {protocol} {n}");
                assert!(passes(&lab.send(packet(&client(n), false))), "{mode} {protocol} {n}");
            }
            establish(&mut lab);
            // For ten seconds: spoofed sources, one source with many ports, denied sources, and ACKs of no connection.
            for n in 0..60_000_u32 {
                if n % 6 == 0 {
                    lab.wait(Duration::from_millis(1));
                }
                let [_, b, c, d] = n.to_be_bytes();
                let source = match n % 4 {
                    0 => format!("20.{b}.{c}.{d}:999"),
                    1 => format!("20.0.0.1:{}", 1024 + n % 60_000),
                    2 => format!("198.18.{c}.{d}:999"),
                    _ => format!("21.{b}.{c}.{d}:999"),
                };
                lab.send(packet(&source, n % 4 != 3));
                if n % 600 == 0 {
                    lab.pipeline.age(lab.now);
                    for n in 0..100 {
                        let result = lab.send(packet(&client(n), false));
                        let known = result.note.flow == crate::pipeline::FlowNote::Known;
                        assert!(passes(&result) && known, "{mode} {protocol}: {:?}", result.verdict);
                    }
                }
            }
        }
    }
}

/// Answers of the backend to all flows, so that they are established in the modes that see answers.
fn establish(lab: &mut Lab) {
    let mut answers = Vec::new();
    lab.pipeline.flows().scan(0, u64::MAX, lab.now, |flow| {
        if let tidegate_conntrack::FlowKind::Nat { source, source_port, .. } = flow.kind {
            answers.push((source.ip(), source_port));
        }
    });
    let protocol = lab.spec.services[0].key.protocol;
    for to in answers {
        let answer = match protocol {
            Protocol::Udp => Builder::udp("10.0.0.1:80", to),
            _ => Builder::tcp("10.0.0.1:80", to).flags(flags::SYN | flags::ACK),
        };
        let mac = super::lab::backend_mac(1);
        let result = lab.receive(&answer.mac(mac, crate::testing::builder::GATEWAY_MAC).build());
        assert!(
            matches!(result.verdict, Verdict::Transmit { why: TransmitReason::Reply, .. }),
            "{:?}",
            result.verdict
        );
    }
}

fn key(text: &str) -> SelectionKey {
    SelectionKey::from_hex(text).expect("32 digits")
}

const KEY: &str = "000102030405060708090a0b0c0d0e0f";
const OTHER_KEY: &str = "ffffffffffffffffffffffffffffffff";

#[test]
fn a_key_determines_the_choice_and_a_change_moves_only_new_flows() {
    let backends = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80"];
    for affinity in [None, Some(Duration::from_secs(600))] {
        let web = ServiceSpec { affinity, ..service(ForwardingMode::DsrL2, Protocol::Tcp, VIP, &backends) };
        let with = |key: Option<SelectionKey>| {
            Lab::with_spec(spec_with(vec![web.clone().into()], |network| network.policy.selection_key = key))
        };
        let client = |n: u32| format!("198.51.{}.{}:40000", n / 200, n % 200 + 1);
        let choices = |lab: &mut Lab, flag: u8| -> Vec<IpAddr> {
            (0..400)
                .map(|n| {
                    let result = lab.send(Builder::tcp(&*client(n), VIP).flags(flag));
                    lab.backend_of(&result)
                })
                .collect()
        };
        let (mut none, mut one, mut same, mut other) =
            (with(None), with(Some(key(KEY))), with(Some(key(KEY))), with(Some(key(OTHER_KEY))));
        let public = choices(&mut none, flags::SYN);
        let keyed = choices(&mut one, flags::SYN);
        assert_eq!(keyed, choices(&mut same, flags::SYN));
        for others in [&public, &choices(&mut other, flags::SYN)] {
            let equal = keyed.iter().zip(others).filter(|(a, b)| a == b).count();
            assert!((60..140).contains(&equal), "a quarter by chance: {equal} of 400");
        }
        // Clients can't predict their backend: any set of clients is distributed evenly.
        for backend in backends {
            let count = keyed.iter().filter(|chosen| backend.starts_with(&format!("{chosen}:"))).count();
            assert!((60..140).contains(&count), "{backend}: {count} of 400");
        }
        one.change(|spec| spec.network.policy.selection_key = Some(key(OTHER_KEY)));
        assert_eq!(choices(&mut one, flags::ACK), keyed, "known flows stay");
    }
}

#[test]
fn a_service_that_tracks_on_change_chooses_by_the_key() {
    let backends = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80"];
    let choices = |flow_tracking: FlowTracking| -> Vec<IpAddr> {
        let web = service(ForwardingMode::DsrL2, Protocol::Tcp, VIP, &backends);
        let web = ServiceSpec { flow_tracking, ..web };
        let mut lab = Lab::with_spec(spec_with(vec![web.into()], |network| {
            network.policy.selection_key = Some(key(KEY));
        }));
        let port = |n: u16| format!("198.51.100.7:{n}");
        (1000..1050)
            .map(|n| lab.send(Builder::tcp(&*port(n), VIP).flags(flags::SYN)))
            .collect::<Vec<_>>()
            .iter()
            .map(|result| lab.backend_of(result))
            .collect()
    };
    assert_eq!(choices(FlowTracking::OnChange([].into())), choices(FlowTracking::Always));
}

#[test]
fn an_icmp_error_about_an_unknown_flow_goes_where_the_key_sends_the_flow() {
    let backends = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80"];
    let web = service(ForwardingMode::DsrL2, Protocol::Tcp, VIP, &backends);
    let keyed = Some(key(KEY));
    let mut lab = Lab::with_spec(spec_with(vec![web.into()], |network| network.policy.selection_key = keyed));
    for port in 1000..1050 {
        let quoted = Builder::tcp(VIP, &*format!("198.51.100.7:{port}")).packet();
        let error = Builder::icmp(ip("192.0.2.99"), ip("203.0.113.5"), 3, 4, [0, 0, 5, 0]).payload(&quoted);
        let result = lab.send(error);
        let (src, dst) = (ip("198.51.100.7").into(), ip("203.0.113.5").into());
        let (found, _) = lab.snapshot.services().next().expect("the service");
        let expected = found.select(flow_selection_hash(keyed.as_ref(), &src, port, &dst, 80, 6));
        assert_eq!(result.note.backend, expected);
        assert_ne!(client_selection_hash(keyed.as_ref(), &src), client_selection_hash(None, &src));
    }
}
