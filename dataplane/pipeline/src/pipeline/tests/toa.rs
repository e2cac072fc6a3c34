//! The TOA option: the packets that need further changes. `proxy_stream` and `cookie_stream` have whole connections
//! over a bad network.

use tidegate_spec::verdict::{Refusal, TransmitReason};
use tidegate_spec::{ForwardingMode, Protocol, ServiceSpec};
use tidegate_wire::icmp;
use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::tcp::flags::{ACK, RST, SYN};

use super::connection::{ends, headers};
use super::lab::{FrameResult, Lab, ROUTER_MAC, backend_mac, service};
use super::proxy_stream::read;
use crate::testing::builder::{Builder, GATEWAY_MAC};

const VIP: &str = "10.0.42.7:7";
const BACKEND: &str = "10.0.0.1:8080";
const CLIENT: &str = "192.0.2.202:12345";
/// Port and address of the client.
const OPTION: [u8; 6] = [0x30, 0x39, 192, 0, 2, 202];
const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];
const ISN: u32 = 1_000_000;

/// A connection that has seen the SYN ACK.
struct Open {
    lab: Lab,
    /// The client as the backend sees it.
    local: std::net::SocketAddr,
}

impl Open {
    fn new(mode: ForwardingMode) -> Self {
        let plain = service(mode, Protocol::Tcp, VIP, &[BACKEND]);
        let mut lab = Lab::new(vec![ServiceSpec { proxy_protocol: Some(ProxyVersion::Toa), ..plain }]);
        let result = lab.send(Builder::tcp(CLIENT, VIP).flags(SYN).seq_ack(ISN, 0));
        let (local, _) = ends(result.sent(TransmitReason::Forward));
        let mut open = Self { lab, local };
        let answer = open.answer(|b| b.flags(SYN | ACK).seq_ack(77, ISN + 1).tcp_options(&[2, 4, 5, 180]));
        let mss = if mode == ForwardingMode::FullNat { 1452_u16 } else { 1460 };
        let announced = read(answer.sent(TransmitReason::Reply));
        assert_eq!(announced.option(2), Some(&mss.to_be_bytes()[..]), "the option must fit too");
        open
    }

    fn query(&mut self, change: impl FnOnce(Builder) -> Builder) -> FrameResult {
        self.lab.send(change(Builder::tcp(CLIENT, VIP).seq_ack(ISN + 1, 78)))
    }

    fn answer(&mut self, change: impl FnOnce(Builder) -> Builder) -> FrameResult {
        let segment = change(Builder::tcp(BACKEND, self.local).seq_ack(78, ISN + 1));
        self.lab.receive(&segment.mac(backend_mac(1), GATEWAY_MAC).build())
    }
}

#[test]
fn segments_have_the_option_until_the_backend_has_acknowledged_data() {
    let mut open = Open::new(ForwardingMode::FullNat);
    let result = open.query(|b| b.trailer(6));
    let sent = read(result.sent(TransmitReason::Forward));
    assert_eq!((sent.seq, sent.ack, &sent.options[..]), (ISN + 1, 78, &[(254, OPTION.to_vec())][..]));
    open.answer(|b| b.payload(b"220 hello")).sent(TransmitReason::Reply);
    let result = open.query(|b| b.seq_ack(ISN + 6, 87).payload(b" you").tcp_options(&TIMESTAMPS));
    let sent = read(result.sent(TransmitReason::Forward));
    assert_eq!((sent.seq, &sent.data[..]), (ISN + 6, &b" you"[..]));
    assert_eq!(sent.options, [(254, OPTION.to_vec()), (8, TIMESTAMPS[4..].to_vec())]);
    let answer = open.answer(|b| b.seq_ack(87, ISN + 10));
    assert_eq!(read(answer.sent(TransmitReason::Reply)).ack, ISN + 10);
    let result = open.query(|b| b.seq_ack(ISN + 10, 87).payload(b"more").tcp_options(&TIMESTAMPS));
    let sent = read(result.sent(TransmitReason::Forward));
    assert_eq!((sent.seq, &sent.options[..]), (ISN + 10, &[(8, TIMESTAMPS[4..].to_vec())][..]));
}

#[test]
fn a_client_cannot_claim_another_address_nor_prevent_the_option() {
    let forged = [&[254, 8, 0, 80, 10, 9, 9, 9][..], &TIMESTAMPS].concat();
    let crowded = [&[30, 28][..], &[7; 26], &TIMESTAMPS].concat();
    for options in [forged, crowded] {
        let result = Open::new(ForwardingMode::FullNat).query(|b| b.payload(b"hello").tcp_options(&options));
        let sent = read(result.sent(TransmitReason::Forward));
        assert_eq!(sent.options, [(254, OPTION.to_vec()), (8, TIMESTAMPS[4..].to_vec())]);
        assert_eq!((sent.seq, &sent.data[..]), (ISN + 1, &b"hello"[..]));
    }
}

#[test]
fn a_reset_has_no_option() {
    let result = Open::new(ForwardingMode::FullNat).query(|b| b.flags(RST));
    assert_eq!(read(result.sent(TransmitReason::Forward)).options, []);
}

#[test]
fn nat_keeps_the_address_and_adds_no_option() {
    let result = Open::new(ForwardingMode::Nat).query(|b| b);
    let sent = read(result.sent(TransmitReason::Forward));
    assert_eq!((sent.from, &sent.options[..]), (CLIENT.parse().unwrap(), &[][..]));
}

#[test]
fn a_segment_that_does_not_fit_with_the_option_is_answered() {
    let mut open = Open::new(ForwardingMode::FullNat);
    let result = open.query(|b| b.payload_len(1453));
    let answer = result.sent(TransmitReason::PacketTooBig);
    assert_eq!(icmp::reported_mtu(answer, &headers(answer)), Some(1492));
    assert_eq!(open.query(|b| b.payload_len(1452)).sent(TransmitReason::Forward).len(), 1514);
}

#[test]
fn a_frame_without_headroom_for_the_option_is_refused_unchanged() {
    let mut open = Open::new(ForwardingMode::FullNat);
    let frame = Builder::tcp(CLIENT, VIP).seq_ack(ISN + 1, 78).mac(ROUTER_MAC, GATEWAY_MAC).build();
    assert_eq!(open.lab.receive_tight(&frame).refused(), Refusal::NoHeadroom);
}

#[test]
fn the_first_fragment_of_a_handshake_is_refused() {
    let result = Open::new(ForwardingMode::FullNat)
        .query(|b| b.payload(&[0; 68]).dont_fragment(false).fragment(7, 0, true));
    assert_eq!(result.refused(), Refusal::ProxyFragment);
}
