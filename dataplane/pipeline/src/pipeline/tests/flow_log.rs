//! The flow log: begin and end of flows with the packets and bytes of both directions, in every mode.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use tidegate_conntrack::flow_log::{EndReason, FlowEvent, FlowLog, FlowLogLoss, LoggedFlow};
use tidegate_spec::limits::FLOW_LOG_CLOSED_MS;
use tidegate_spec::verdict::TransmitReason;
use tidegate_spec::{BackendState, FlowTracking, ForwardingMode, Protocol, ServiceSpec};
use tidegate_wire::tcp::flags::{ACK, FIN, PSH, SYN};
use tidegate_wire::{Headers, Parsed};

use super::lab::{Lab, ROUTER_MAC, backend_mac, service, spec_with};
use crate::testing::builder::{self, Builder, GATEWAY_MAC};

const SIDES: [[&str; 3]; 2] = [
    ["198.51.100.7:40000", "203.0.113.5:80", "10.0.0.1:80"],
    ["[2001:db8::7]:40000", "[2001:db8:1::5]:80", "[fd00::1]:80"],
];

fn logged(every: u16, service: ServiceSpec) -> ServiceSpec {
    ServiceSpec { flow_log: NonZeroU16::new(every), ..service }
}

struct Logged {
    lab: Lab,
    log: Arc<FlowLog>,
    /// Bytes of the packets of each direction that were sent.
    bytes: [u64; 2],
    packets: [u64; 2],
}

impl Logged {
    fn new(service: ServiceSpec) -> Self {
        let mut lab = Lab::new(vec![service]);
        let log = Arc::new(FlowLog::new());
        lab.pipeline.log_flows_to(&log);
        Self { lab, log, bytes: [0; 2], packets: [0; 2] }
    }

    fn records(&self) -> Vec<LoggedFlow> {
        std::iter::from_fn(|| self.log.pop()).collect()
    }

    /// Sends a packet that must be forwarded, and returns it as it was sent.
    fn send(&mut self, is_reply: bool, packet: Builder) -> Headers {
        let (from, why) = if is_reply {
            (backend_mac(1), TransmitReason::Reply)
        } else {
            (ROUTER_MAC, TransmitReason::Forward)
        };
        let frame = packet.mac(from, GATEWAY_MAC).build();
        let result = self.lab.receive(&frame);
        assert!(!result.is_fast, "packets of logged flows take the stages");
        let sent = result.sent(why);
        self.bytes[usize::from(is_reply)] += frame.len() as u64 - 14;
        self.packets[usize::from(is_reply)] += 1;
        match tidegate_wire::parse(sent) {
            Ok(Parsed::Ip(headers)) => headers,
            other => panic!("{other:?}"),
        }
    }

    fn assert_counts(&self, record: &LoggedFlow) {
        assert_eq!(record.counts.map(|count| count.bytes), self.bytes);
        assert_eq!(record.counts.map(|count| count.packets), self.packets);
    }
}

#[test]
fn a_connection_is_logged_with_its_packets_in_every_mode() {
    for mode in ForwardingMode::ALL {
        for [client, vip, backend] in SIDES {
            if mode == ForwardingMode::DsrDscp && vip.starts_with('[') {
                continue;
            }
            let mut gateway = Logged::new(logged(1, service(mode, Protocol::Tcp, vip, &[backend])));
            let request = |bits| Builder::tcp(client, vip).flags(bits);
            let there = gateway.send(false, request(SYN));
            let [begin] = gateway.records()[..] else { panic!("{mode}: one record") };
            assert_eq!((begin.event, begin.begin_seen), (FlowEvent::Begin, true), "{mode}");
            let source = begin.source.map(|at| (at.addr, at.port));
            assert_eq!(source, (!mode.is_dsr()).then_some((there.src, there.src_port)), "{mode}");
            let back = std::net::SocketAddr::new(there.src.ip(), there.src_port);
            let reply = |bits| Builder::tcp(backend, back).flags(bits);
            if !mode.is_dsr() {
                gateway.send(true, reply(SYN | ACK));
            }
            for len in [0, 1, 700] {
                gateway.lab.wait(Duration::from_millis(250));
                gateway.send(false, request(ACK | PSH).payload_len(len));
                if !mode.is_dsr() {
                    gateway.send(true, reply(ACK).payload_len(2 * len));
                }
            }
            if !mode.is_dsr() {
                gateway.send(true, reply(ACK | FIN));
            }
            gateway.send(false, request(ACK | FIN));
            assert_eq!(gateway.records(), [], "{mode}");
            gateway.lab.wait(Duration::from_millis(FLOW_LOG_CLOSED_MS.into()));
            gateway.lab.pipeline.end_closed_flows(gateway.lab.now);
            let [end] = gateway.records()[..] else { panic!("{mode}: one record") };
            assert_eq!(end.event, FlowEvent::End(EndReason::Closed), "{mode}");
            assert_eq!(end.last.since(end.began), Duration::from_millis(750), "{mode}");
            assert_eq!(end.service, begin.service);
            gateway.assert_counts(&end);
        }
    }
}

#[test]
fn fragments_without_ports_are_counted_in_the_flow_of_their_first() {
    for mode in ForwardingMode::ALL {
        for [client, vip, backend] in SIDES {
            if mode == ForwardingMode::DsrDscp && vip.starts_with('[') {
                continue;
            }
            let mut gateway = Logged::new(logged(1, service(mode, Protocol::Udp, vip, &[backend])));
            let whole = Builder::udp(client, vip).payload_len(1400).dont_fragment(false);
            let parts = builder::fragments(&whole.mac(ROUTER_MAC, GATEWAY_MAC).build(), 77, 512);
            assert!(parts.len() > 2);
            for part in &parts {
                gateway.lab.receive(part).sent(TransmitReason::Forward);
                gateway.bytes[0] += part.len() as u64 - 14;
                gateway.packets[0] += 1;
            }
            assert_eq!(gateway.records().len(), 1, "{mode}: its begin");
            gateway.lab.wait(Duration::from_secs(3_600));
            gateway.lab.pipeline.flows_mut().age_each(gateway.lab.now, usize::MAX);
            let [end] = gateway.records()[..] else { panic!("{mode}: one record") };
            assert_eq!(end.event, FlowEvent::End(EndReason::Idle), "{mode}");
            gateway.assert_counts(&end);
        }
    }
}

#[test]
fn a_sample_has_whole_flows_and_about_the_requested_part() {
    let [_, vip, backend] = SIDES[0];
    let mut gateway = Logged::new(logged(4, service(ForwardingMode::Nat, Protocol::Udp, vip, &[backend])));
    for round in 0..3 {
        for port in 0..800_u16 {
            let client = format!("198.51.100.7:{}", 20_000 + port);
            gateway.send(false, Builder::udp(client.as_str(), vip));
            if round > 0 {
                gateway.send(true, Builder::udp(backend, client.as_str()));
            }
        }
    }
    let begins = gateway.records();
    assert!((120..280).contains(&begins.len()), "{}", begins.len());
    gateway.lab.pipeline.flows_mut().retain(gateway.lab.now, |_| false);
    let ends = gateway.records();
    assert_eq!(ends.len(), begins.len());
    for end in &ends {
        assert_eq!(end.event, FlowEvent::End(EndReason::Removed));
        assert_eq!(end.counts.map(|count| count.packets), [3, 2]);
    }
}

#[test]
fn a_logged_flow_has_an_entry_although_its_service_tracks_on_change() {
    let [client, vip, backend] = SIDES[0];
    let spec = service(ForwardingMode::DsrL2, Protocol::Tcp, vip, &[backend]);
    let spec = ServiceSpec { flow_tracking: FlowTracking::OnChange([].into()), ..spec };
    let mut gateway = Logged::new(spec.clone());
    let send = |gateway: &mut Logged, bits| {
        let frame = Builder::tcp(client, vip).flags(bits).mac(ROUTER_MAC, GATEWAY_MAC).build();
        gateway.lab.receive(&frame).sent(TransmitReason::Forward);
    };
    send(&mut gateway, SYN);
    assert_eq!((gateway.lab.pipeline.flows().live(), gateway.records().len()), (0, 0));
    // From now on it is logged: the flow gets an entry, and its begin was not seen.
    gateway.lab.change(|spec| spec.services[0].flow_log = NonZeroU16::new(1));
    send(&mut gateway, ACK);
    assert_eq!(gateway.lab.pipeline.flows().live(), 1);
    send(&mut gateway, ACK | FIN);
    gateway.lab.wait(Duration::from_millis(FLOW_LOG_CLOSED_MS.into()));
    gateway.lab.pipeline.end_closed_flows(gateway.lab.now);
    let ends: Vec<_> =
        gateway.records().into_iter().filter(|record| record.event != FlowEvent::Begin).collect();
    let [end] = ends[..] else { panic!("one record") };
    assert_eq!((end.event, end.counts[0].packets), (FlowEvent::End(EndReason::Closed), 2));
}

#[test]
fn a_flow_that_moves_to_another_backend_ends_and_begins_again() {
    let [client, vip, _] = SIDES[0];
    let spec = service(ForwardingMode::Nat, Protocol::Udp, vip, &["10.0.0.1:80", "10.0.0.2:80"]);
    let mut gateway = Logged::new(logged(1, spec));
    gateway.send(false, Builder::udp(client, vip));
    let [first] = gateway.records()[..] else { panic!("one record") };
    let chosen = gateway.lab.snapshot.backend(first.backend).expect("it exists").address.ip();
    gateway.lab.change(|spec| {
        let backends = &mut spec.services[0].backends;
        backends
            .iter_mut()
            .filter(|one| one.address == chosen)
            .for_each(|one| one.state = BackendState::Down);
    });
    gateway.send(false, Builder::udp(client, vip));
    let records = gateway.records();
    let events: Vec<_> = records.iter().map(|record| record.event).collect();
    assert_eq!(events, [FlowEvent::End(EndReason::Removed), FlowEvent::Begin]);
    assert_eq!((records[0].backend, records[0].counts[0].packets), (first.backend, 1));
    assert_ne!(records[1].backend, first.backend);
}

#[test]
fn a_packet_that_is_not_sent_begins_a_flow_but_is_not_counted() {
    let [client, vip, backend] = SIDES[0];
    let service = logged(1, service(ForwardingMode::Nat, Protocol::Udp, vip, &[backend]));
    let spec = spec_with(vec![service.into()], |network| network.neighbors.clear());
    let mut lab = Lab::with_spec(spec);
    let log = Arc::new(FlowLog::new());
    lab.pipeline.log_flows_to(&log);
    let frame = Builder::udp(client, vip).mac(ROUTER_MAC, GATEWAY_MAC).build();
    let _ = lab.receive(&frame).refused();
    assert_eq!(log.pop().map(|record| record.event), Some(FlowEvent::Begin));
    lab.pipeline.flows_mut().retain(lab.now, |_| false);
    let end = log.pop().expect("its end");
    assert_eq!((end.counts[0].packets, end.begin_seen), (0, true));
    assert_eq!(log.lost(FlowLogLoss::NoEntry), 0);
}
