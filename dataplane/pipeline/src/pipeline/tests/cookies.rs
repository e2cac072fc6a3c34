//! SYN cookies: which segments create a flow, and when cookies are used.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_spec::verdict::{Refusal, TransmitReason};
use tidegate_spec::{ForwardingMode, MssClamp, Protocol, ServiceSpec, SynCookies};
use tidegate_wire::proxy_header;
use tidegate_wire::tcp::flags::{ACK, PSH, RST, SYN};

use super::connection::{Connection, client};
use super::lab::{FrameResult, Lab, backend_mac, service, spec_with};
use super::proxy_stream::{Segment, read};
use crate::pipeline::FlowNote;
use crate::testing::builder::{Builder, GATEWAY_MAC};

const VIP: &str = "203.0.113.6:80";
const MODES: [ForwardingMode; 2] = [ForwardingMode::Nat, ForwardingMode::FullNat];
const ISN: u32 = 7000;
const SERVER_ISN: u32 = 900;

fn web(mode: ForwardingMode) -> ServiceSpec {
    service(mode, Protocol::Tcp, VIP, &["10.0.0.1:80", "10.0.0.2:80"])
}

fn lab_of(service: ServiceSpec, cookies: SynCookies) -> Lab {
    Lab::with_spec(spec_with(vec![service.into()], |network| network.policy.syn_cookies = cookies))
}

fn syn(client: SocketAddr) -> Builder {
    Builder::tcp(client, VIP).flags(SYN).seq_ack(ISN, 0).tcp_options(&[2, 4, 5, 180, 4, 2, 1, 1])
}

/// Sends a SYN and returns the cookie.
fn cookie(lab: &mut Lab, client: SocketAddr) -> u32 {
    let answer = read(lab.send(syn(client)).sent(TransmitReason::SynCookie));
    assert_eq!((answer.from, answer.to), (VIP.parse().unwrap(), client));
    assert_eq!((answer.flags, answer.ack), (SYN | ACK, ISN + 1));
    answer.seq
}

/// The client's next segment.
fn ack(client: SocketAddr, cookie: u32) -> Builder {
    Builder::tcp(client, VIP).seq_ack(ISN + 1, cookie.wrapping_add(1)).window(5000)
}

/// Sends the segment that returns a cookie, and reads the SYN that the backend gets.
fn returned(lab: &mut Lab, client: SocketAddr, cookie: u32) -> Segment {
    let result = lab.send(ack(client, cookie));
    assert_eq!(result.note.flow, FlowNote::New);
    read(result.sent(TransmitReason::Forward))
}

/// A segment of the backend that got this SYN.
fn answer(lab: &mut Lab, syn: &Segment, seq: u32, flags: u8) -> FrameResult {
    let mac = backend_mac(if syn.to.ip().to_string() == "10.0.0.1" { 1 } else { 2 });
    lab.receive(
        &Builder::tcp(syn.to, syn.from).flags(flags).seq_ack(seq, ISN + 1).mac(mac, GATEWAY_MAC).build(),
    )
}

fn open(lab: &mut Lab, client: SocketAddr) -> (u32, Segment) {
    let cookie = cookie(lab, client);
    let syn = returned(lab, client, cookie);
    answer(lab, &syn, SERVER_ISN, SYN | ACK).sent(TransmitReason::SynCookie);
    (cookie, syn)
}

#[test]
fn a_handshake_creates_state_only_when_the_cookie_is_returned() {
    for mode in MODES {
        let mut lab = lab_of(web(mode), SynCookies::Always);
        let cookie = cookie(&mut lab, client(1));
        assert_eq!(lab.pipeline.flows().live(), 0);
        let syn = returned(&mut lab, client(1), cookie);
        assert_eq!((syn.flags, syn.seq, syn.ack), (SYN, ISN, 0));
        assert_eq!(syn.options, [(2, vec![5, 180]), (4, vec![])]);
        assert_eq!(lab.pipeline.flows().live(), 1);
        // Until the backend has answered, data becomes the SYN.
        let again = lab.send(ack(client(1), cookie).flags(PSH | ACK).payload(b"GET /"));
        assert_eq!(read(again.sent(TransmitReason::Forward)).data, b"");
        let result = answer(&mut lab, &syn, SERVER_ISN, SYN | ACK);
        let confirmed = read(result.sent(TransmitReason::SynCookie));
        assert_eq!((confirmed.from, confirmed.to), (syn.from, syn.to));
        assert_eq!((confirmed.flags, confirmed.seq, confirmed.ack), (ACK, ISN + 1, SERVER_ISN + 1));
        let data = lab.send(ack(client(1), cookie).flags(PSH | ACK).payload(b"GET /"));
        let data = read(data.sent(TransmitReason::Forward));
        assert_eq!((data.ack, &data.data[..]), (SERVER_ISN + 1, &b"GET /"[..]));
        let reply = answer(&mut lab, &syn, SERVER_ISN + 1, ACK);
        assert_eq!(read(reply.sent(TransmitReason::Reply)).seq, cookie.wrapping_add(1));
        let counts = lab.pipeline.cookie_counts();
        assert_eq!((counts.sent, counts.accepted, counts.refused), (1, 1, 0));
    }
}

#[test]
fn a_forged_altered_or_old_cookie_creates_no_flow() {
    for mode in MODES {
        let mut lab = lab_of(web(mode), SynCookies::Always);
        let cookie = cookie(&mut lab, client(1));
        let mut refused = 0;
        let mut is_refused = |lab: &mut Lab, segment: Builder| {
            let result = lab.send(segment);
            refused += 1;
            assert_ne!(read(result.sent(TransmitReason::NoFlow)).flags & RST, 0);
            assert_eq!(lab.pipeline.flows().live(), 0);
            assert_eq!(lab.pipeline.cookie_counts().refused, refused);
            lab.wait(Duration::from_millis(100));
        };
        for bit in 0..32 {
            is_refused(&mut lab, ack(client(1), cookie ^ 1 << bit));
        }
        is_refused(&mut lab, ack(client(2), cookie));
        is_refused(&mut lab, ack(client(1), cookie).seq_ack(ISN + 2, cookie.wrapping_add(1)));
        lab.wait(Duration::from_secs(124));
        is_refused(&mut lab, ack(client(1), cookie));
    }
}

#[test]
fn the_limits_count_a_connection_when_its_cookie_is_returned() {
    let mut web = web(ForwardingMode::FullNat);
    web.limits.connections = std::num::NonZeroU32::new(1);
    let mut lab = lab_of(web, SynCookies::Always);
    let cookies = [1, 2].map(|n| cookie(&mut lab, client(n)));
    returned(&mut lab, client(1), cookies[0]);
    assert_eq!(lab.send(ack(client(2), cookies[1])).refused(), Refusal::ServiceConnections);
    assert_eq!(lab.pipeline.flows().live(), 1);
}

#[test]
fn a_refusal_of_the_backend_resets_the_client_with_its_own_numbers() {
    for mode in MODES {
        let mut lab = lab_of(web(mode), SynCookies::Always);
        let cookie = cookie(&mut lab, client(1));
        let syn = returned(&mut lab, client(1), cookie);
        // An answer of an earlier connection doesn't count.
        assert_eq!(answer(&mut lab, &syn, 5, ACK).refused(), Refusal::NoFlow);
        let reset = answer(&mut lab, &syn, 0, RST | ACK);
        let reset = read(reset.sent(TransmitReason::Reply));
        assert_eq!((reset.flags, reset.seq), (RST | ACK, cookie.wrapping_add(1)));
    }
}

#[test]
fn an_icmp_error_about_a_reply_quotes_the_backends_sequence_number() {
    let mut lab = lab_of(web(ForwardingMode::FullNat), SynCookies::Always);
    let (_, syn) = open(&mut lab, client(1));
    let reply = answer(&mut lab, &syn, SERVER_ISN + 1, ACK);
    let quoted = &reply.sent(TransmitReason::Reply)[14..];
    let vip = VIP.parse::<SocketAddr>().unwrap().ip();
    let result = lab.send(Builder::icmp("198.18.0.1", vip, 3, 4, [0, 0, 5, 0]).payload(quoted));
    let sent = result.sent(TransmitReason::IcmpError);
    // Ethernet, outer IPv4, ICMP, quoted IPv4, ports.
    let at = 14 + 20 + 8 + 20 + 4;
    assert_eq!(sent[at..at + 4], (SERVER_ISN + 1).to_be_bytes());
}

#[test]
fn the_announced_segment_size_fits_the_links_the_limit_and_the_header() {
    let announced = |change: fn(&mut ServiceSpec)| {
        let mut web = web(ForwardingMode::FullNat);
        change(&mut web);
        let mut lab = lab_of(web, SynCookies::Always);
        let result = lab.send(syn(client(1)));
        read(result.sent(TransmitReason::SynCookie)).option(2).unwrap().to_vec()
    };
    assert_eq!(announced(|_| {}), 1460_u16.to_be_bytes());
    assert_eq!(announced(|web| web.mss_clamp = MssClamp::AtMost(1300)), 1300_u16.to_be_bytes());
    let proxied = |web: &mut ServiceSpec| web.proxy_protocol = Some(proxy_header::ProxyVersion::V2);
    assert_eq!(announced(proxied), (1460 - proxy_header::LEN_MAX as u16).to_be_bytes());
}

#[test]
fn a_flood_opens_no_more_flows_than_the_limit_and_ends() {
    for mode in MODES {
        // The limit is 2 * 4096 / 8 opening entries.
        let mut lab = lab_of(web(mode), SynCookies::Auto);
        let before: Vec<Connection> =
            (0..500).map(|n| Connection::open(&mut lab, client(n), VIP).unwrap()).collect();
        assert_eq!(lab.pipeline.cookie_counts().sent, 0, "no flood, no cookie");
        for n in 0..100_000 {
            lab.wait(Duration::from_micros(10));
            lab.send(syn(client(1_000_000 + n)));
            if n % 1000 == 999 {
                let (cookie, syn) = open(&mut lab, client(900_000 + n));
                let data = lab.send(ack(client(900_000 + n), cookie).payload(b"x"));
                assert_eq!(read(data.sent(TransmitReason::Forward)).to, syn.to);
            }
        }
        let flows = lab.pipeline.flows().live();
        assert!(flows <= 500 + 512 + 100, "{flows}");
        assert_eq!(lab.pipeline.report_floods(&lab.snapshot, &lab.tallies, lab.now), 1);
        let service = lab.snapshot.services().next().unwrap().0.id.index();
        assert!(lab.tallies.is_flooded(service));
        for connection in &before {
            connection.continues(&mut lab);
        }
        // The flows of the flood expire after a minute.
        lab.wait(Duration::from_secs(61));
        while lab.pipeline.flows_mut().age(lab.now, usize::MAX) > 0 {}
        assert_eq!(lab.pipeline.report_floods(&lab.snapshot, &lab.tallies, lab.now), 0);
        assert!(!lab.tallies.is_flooded(service));
        let sent = lab.pipeline.cookie_counts().sent;
        Connection::open(&mut lab, client(42_000), VIP).unwrap();
        assert_eq!(lab.pipeline.cookie_counts().sent, sent);
    }
}

#[test]
fn without_cookies_and_in_dsr_modes_a_syn_is_forwarded() {
    for (mode, cookies) in [
        (ForwardingMode::FullNat, SynCookies::Off),
        (ForwardingMode::Nat, SynCookies::Off),
        (ForwardingMode::DsrL2, SynCookies::Always),
    ] {
        let mut lab = lab_of(web(mode), cookies);
        lab.send(syn(client(1))).sent(TransmitReason::Forward);
    }
}

#[test]
fn a_service_can_override_the_setting() {
    let own = |choice| ServiceSpec { syn_cookies: Some(choice), ..web(ForwardingMode::FullNat) };
    cookie(&mut lab_of(own(SynCookies::Always), SynCookies::Off), client(1));
    let mut lab = lab_of(own(SynCookies::Off), SynCookies::Always);
    lab.send(syn(client(1))).sent(TransmitReason::Forward);
    // A change of this setting alone applies to new connections at once.
    lab.change(|spec| spec.services[0].syn_cookies = Some(SynCookies::Always));
    cookie(&mut lab, client(2));
    lab.change(|spec| spec.services[0].syn_cookies = Some(SynCookies::Auto));
    lab.send(syn(client(3))).sent(TransmitReason::Forward);
}

#[test]
fn a_syn_of_a_known_flow_stays_with_its_backend() {
    let mut lab = lab_of(web(ForwardingMode::FullNat), SynCookies::Off);
    let connection = Connection::send_syn(&mut lab, client(1), VIP).unwrap();
    lab.change(|spec| spec.network.policy.syn_cookies = SynCookies::Always);
    assert_eq!(Connection::send_syn(&mut lab, client(1), VIP), Ok(connection));
}

#[test]
fn the_next_connection_of_the_same_ports_has_no_splice() {
    for mode in MODES {
        let mut lab = lab_of(web(mode), SynCookies::Always);
        let (cookie, syn) = open(&mut lab, client(1));
        lab.send(ack(client(1), cookie)).sent(TransmitReason::Forward);
        answer(&mut lab, &syn, SERVER_ISN + 1, RST | ACK).sent(TransmitReason::Reply);
        // The flow is known to be over, so the SYN goes to a backend at once.
        let again = Connection::send_syn(&mut lab, client(1), VIP).unwrap();
        let mac = backend_mac(if again.backend.ip().to_string() == "10.0.0.1" { 1 } else { 2 });
        let reply = Builder::tcp(again.backend, again.local).flags(SYN | ACK).seq_ack(77, 1);
        let result = lab.receive(&reply.mac(mac, GATEWAY_MAC).build());
        assert_eq!(read(result.sent(TransmitReason::Reply)).seq, 77);
    }
}
