//! Handshakes during floods that replace all entries of a full flow table faster than a handshake takes.
//!
//! 40 new flows per millisecond replace all entries of a table for 4,096 flows every 0.1 s, as 150,000 flows a second
//! do with 16,384 entries. The real handshakes take 0.3 s.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use tidegate_spec::limits::AGEING_BUCKETS_PER_BURST;
use tidegate_spec::verdict::{TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, Protocol};
use tidegate_wire::tcp::flags::{ACK, SYN};

use super::connection::{Connection, ends};
use super::lab::{FrameResult, Lab, service};
use crate::pipeline::FlowNote;
use crate::testing::builder::Builder;

const SHOP: &str = "203.0.113.5:80";
const WEB: &str = "203.0.113.6:80";
const LOG: &str = "203.0.113.7:514";
const NAT: [ForwardingMode; 2] = [ForwardingMode::Nat, ForwardingMode::FullNat];
const FLOWS: usize = 4096;
const FLOOD_PER_MS: u32 = 40;
/// The time from a client's SYN-ACK to its ACK.
const CLIENT_MS: u32 = 300;

fn lab(mode: ForwardingMode) -> Lab {
    let tcp = |vip: &str, backends: &[&str]| service(mode, Protocol::Tcp, vip, backends);
    let services = vec![
        tcp(SHOP, &["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]),
        tcp(WEB, &["10.0.0.4:80", "10.0.0.5:80"]),
        service(mode, Protocol::Udp, LOG, &["10.0.0.6:514"]),
    ];
    Lab::new(services).with_entries(FLOWS)
}

/// A client in a different network for each number below 2^24.
fn anywhere(n: u32) -> SocketAddr {
    // The factor is odd, so the product modulo a power of two is a permutation.
    let network = n.wrapping_mul(0x9e_3779) & 0xf_ffff;
    SocketAddr::new(IpAddr::V4(Ipv4Addr::from(0x2000_0000 | network << 8 | (n >> 20) & 0xff)), 40_000)
}

/// A client in 198.51.100.0/24, with any port.
fn in_one_network(n: u32) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::from(0xc633_6400 | n & 0xff)), 1024 + (n >> 8) as u16)
}

fn genuine(n: u32) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::from(0x5000_0000 | n << 8)), 50_000)
}

fn is_sent(result: &FrameResult, why: TransmitReason) -> bool {
    result.verdict == Verdict::Transmit { interface: 0, why }
}

/// Handshakes with a Service, one every two milliseconds, and their failures.
struct Handshakes {
    vip: &'static str,
    backend_ms: u32,
    to_answer: VecDeque<(u32, Connection)>,
    to_confirm: VecDeque<(u32, Connection)>,
    succeeded: usize,
    lost: Vec<String>,
}

impl Handshakes {
    /// Creates handshakes with backends that need this time to answer.
    fn with(vip: &'static str, backend_ms: u32) -> Self {
        let (to_answer, to_confirm) = (VecDeque::new(), VecDeque::new());
        Self { vip, backend_ms, to_answer, to_confirm, succeeded: 0, lost: Vec::new() }
    }

    fn run_until(&mut self, lab: &mut Lab, ms: u32) {
        if ms.is_multiple_of(2) {
            match Connection::send_syn(lab, genuine(ms), self.vip) {
                Ok(connection) => self.to_answer.push_back((ms + self.backend_ms, connection)),
                Err(why) => self.lost.push(format!("{ms}: SYN: {why}")),
            }
        }
        while let Some((_, connection)) = self.to_answer.pop_front_if(|(due, _)| *due <= ms) {
            let result = connection.try_answer_tcp(lab, SYN | ACK);
            if is_sent(&result, TransmitReason::Reply) {
                self.to_confirm.push_back((ms + CLIENT_MS, connection));
            } else {
                self.lost.push(format!("{ms}: SYN-ACK: {:?}", result.verdict));
            }
        }
        while let Some((_, connection)) = self.to_confirm.pop_front_if(|(due, _)| *due <= ms) {
            let result = connection.try_tcp(lab, ACK);
            if result.note.flow == FlowNote::Known && is_sent(&result, TransmitReason::Forward) {
                self.succeeded += 1;
                connection.close(lab);
            } else {
                self.lost.push(format!("{ms}: ACK: {:?}", result.verdict));
            }
        }
    }

    /// Asserts that at most one of 200 was lost.
    fn assert_served(&self, what: &str) {
        assert!(
            self.lost.len() * 200 <= self.succeeded,
            "{what}: {} succeeded, lost {:?}",
            self.succeeded,
            self.lost
        );
        println!("{what}: {} succeeded, lost {:?}", self.succeeded, self.lost);
    }
}

/// Runs handshakes during a flood for one and a half seconds.
fn under(lab: &mut Lab, mut handshakes: Handshakes, flood: impl Fn(&mut Lab, u32)) -> Handshakes {
    for ms in 0..1_500 {
        lab.wait(Duration::from_millis(1));
        // As much ageing as with 30,000 bursts a second.
        lab.pipeline.flows_mut().age(lab.now, 30 * AGEING_BUCKETS_PER_BURST);
        (0..FLOOD_PER_MS).for_each(|n| flood(lab, FLOOD_PER_MS * ms + n));
        handshakes.run_until(lab, ms);
    }
    assert!(handshakes.succeeded + handshakes.lost.len() > 500, "there were handshakes");
    handshakes
}

#[test]
fn a_flood_at_one_service_breaks_no_handshake_with_another() {
    type Flood = fn(&mut Lab, u32);
    let floods: [(&str, Flood); 3] = [
        ("unanswered SYNs", |lab, n| {
            let _ = Connection::send_syn(lab, anywhere(n), SHOP);
        }),
        ("SYNs that the backend answers", |lab, n| {
            if let Ok(connection) = Connection::send_syn(lab, anywhere(n), SHOP) {
                connection.try_answer_tcp(lab, SYN | ACK);
            }
        }),
        ("two datagrams a flow", |lab, n| {
            let _ = Connection::query(lab, anywhere(n), LOG);
            let _ = Connection::query(lab, anywhere(n), LOG);
        }),
    ];
    for mode in NAT {
        for (what, flood) in floods {
            let seen = under(&mut lab(mode), Handshakes::with(WEB, 100), flood);
            seen.assert_served(&format!("{mode}, {what}"));
        }
    }
}

#[test]
fn an_answered_handshake_outranks_unanswered_ones() {
    for mode in NAT {
        let seen = under(&mut lab(mode), Handshakes::with(SHOP, 1), |lab, n| {
            let _ = Connection::send_syn(lab, anywhere(n), SHOP);
        });
        seen.assert_served(mode.as_str());
    }
}

#[test]
fn a_flood_from_one_network_breaks_no_handshake_of_other_networks() {
    for mode in NAT {
        let seen = under(&mut lab(mode), Handshakes::with(SHOP, 100), |lab, n| {
            if let Ok(connection) = Connection::send_syn(lab, in_one_network(n), SHOP) {
                connection.try_answer_tcp(lab, SYN | ACK);
            }
        });
        seen.assert_served(mode.as_str());
    }
}

#[test]
fn flows_that_are_over_are_evicted_before_a_handshake() {
    for mode in NAT {
        let seen = under(&mut lab(mode), Handshakes::with(SHOP, 1), |lab, n| {
            let connection = Connection::open(lab, anywhere(n), SHOP).unwrap();
            connection.close(lab);
        });
        seen.assert_served(mode.as_str());
    }
}

#[test]
fn a_dsr_handshake_is_established_despite_a_flood_at_another_service() {
    let mut lab = lab(ForwardingMode::DsrL2);
    let segment = |n: u32, flags| Builder::tcp(genuine(n), WEB).flags(flags);
    let mut lost = 0;
    for ms in 0..1_500 {
        lab.wait(Duration::from_millis(1));
        lab.pipeline.flows_mut().age(lab.now, 30 * AGEING_BUCKETS_PER_BURST);
        for n in 0..FLOOD_PER_MS {
            lab.send(Builder::tcp(anywhere(FLOOD_PER_MS * ms + n), SHOP).flags(SYN));
        }
        lab.send(segment(ms, SYN)).sent(TransmitReason::Forward);
        if let Some(begun) = ms.checked_sub(CLIENT_MS) {
            lost += u32::from(lab.send(segment(begun, ACK)).note.flow != FlowNote::Known);
        }
    }
    assert_eq!(lost, 0);
}

#[test]
fn a_dsr_flow_whose_entry_was_evicted_keeps_its_backend() {
    // 3,000 flows of the attacked Service, so that the flood evicts many of them.
    let mut lab = lab(ForwardingMode::DsrL2);
    let segment = |n: u32, flags| Builder::tcp(genuine(n), SHOP).flags(flags);
    let backends: Vec<_> = (0..3_000)
        .map(|n| {
            let result = lab.send(segment(n, SYN));
            lab.backend_of(&result)
        })
        .collect();
    for n in 0..30_000 {
        lab.send(Builder::tcp(anywhere(n), SHOP).flags(SYN));
    }
    let mut pushed_out = 0;
    for (n, backend) in (0..).zip(&backends) {
        let result = lab.send(segment(n, ACK));
        result.sent(TransmitReason::Forward);
        pushed_out += u32::from(result.note.flow == FlowNote::New);
        assert_eq!(lab.backend_of(&result), *backend);
    }
    assert!(pushed_out > 1_000, "{pushed_out}");
}

#[test]
fn an_answered_flow_keeps_its_snat_port_while_others_have_one() {
    let one = service(ForwardingMode::FullNat, Protocol::Tcp, WEB, &["10.0.0.1:80"]);
    let mut lab = Lab::new(vec![one]).with_entries(1 << 18);
    let ports = 0x1_0000 - u32::from(tidegate_spec::limits::SNAT_PORT_MIN);
    let mut answered = Vec::new();
    for n in 0..ports + ports / 4 {
        let connection =
            Connection::send_syn(&mut lab, anywhere(n), WEB).unwrap_or_else(|why| panic!("{why} at {n}"));
        if n < ports && n % 100 == 0 {
            connection.answer_tcp(&mut lab, SYN | ACK);
            answered.push(connection);
        }
        if n == ports {
            // The answered flows are idle as long as all others.
            lab.wait(Duration::from_secs(1));
        }
    }
    for connection in answered {
        let result = connection.try_tcp(&mut lab, ACK);
        assert_eq!(result.note.flow, FlowNote::Known);
        assert_eq!(ends(result.sent(TransmitReason::Forward)), (connection.local, connection.backend));
    }
}
