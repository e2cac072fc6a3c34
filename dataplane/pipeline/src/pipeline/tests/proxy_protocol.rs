//! The PROXY protocol header: its bytes, and the packets that need further changes. `proxy_stream` has whole
//! connections over a bad network.

use tidegate_spec::verdict::{Refusal, TransmitReason};
use tidegate_spec::{ForwardingMode, Protocol, ServiceSpec};
use tidegate_wire::checksum::Sum;
use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::proxy_tlvs::{ProxyTlvs, VpceId};
use tidegate_wire::tcp::flags::{ACK, FIN, PSH, RST, SYN, URG};
use tidegate_wire::{Family, icmp, proto};

use super::connection::{Connection, client, ends, headers};
use super::lab::{FrameResult, Lab, ROUTER_MAC, backend_mac, service};
use crate::testing::builder::{Builder, GATEWAY_MAC};

const VIP: &str = "10.0.42.7:7";
const BACKEND: &str = "10.0.0.1:8080";
const CLIENT: &str = "192.0.2.202:12345";
const LINE: &[u8] = b"PROXY TCP4 192.0.2.202 10.0.42.7 12345 7\r\n";
const ISN: u32 = 1_000_000;

fn proxied(mode: ForwardingMode, protocol: Protocol, vip: &str, backend: &str, version: ProxyVersion) -> Lab {
    let spec = ServiceSpec { proxy_protocol: Some(version), ..service(mode, protocol, vip, &[backend]) };
    Lab::new(vec![spec])
}

fn lab() -> Lab {
    proxied(ForwardingMode::FullNat, Protocol::Tcp, VIP, BACKEND, ProxyVersion::V1)
}

/// The bytes behind the TCP header, after a check of lengths and checksum.
fn data(frame: &[u8]) -> Vec<u8> {
    let h = headers(frame);
    let segment = &frame[usize::from(h.l4)..usize::from(h.ip_end)];
    let sum = Sum::pseudo_header(h.family, &h.src, &h.dst, h.proto, segment.len() as u32).bytes(segment);
    assert_eq!(sum.finish(), 0, "the checksum is right");
    let header_len = if h.proto == proto::TCP { usize::from(segment[12] >> 4) * 4 } else { 8 };
    segment[header_len..].to_vec()
}

fn word(frame: &[u8], at: usize) -> u32 {
    let l4 = usize::from(headers(frame).l4);
    u32::from_be_bytes(frame[l4 + at..l4 + at + 4].try_into().unwrap())
}

fn seq(frame: &[u8]) -> u32 {
    word(frame, 4)
}

fn ack(frame: &[u8]) -> u32 {
    word(frame, 8)
}

/// A connection that has seen the SYN ACK.
struct Open {
    lab: Lab,
    local: std::net::SocketAddr,
}

impl Open {
    fn new(mut lab: Lab) -> Self {
        let result = lab.send(Builder::tcp(CLIENT, VIP).flags(SYN).seq_ack(ISN, 0));
        let (local, _) = ends(result.sent(TransmitReason::Forward));
        let mut open = Self { lab, local };
        let answer = open.answer(|b| b.flags(SYN | ACK).seq_ack(77, ISN + 1).tcp_options(&[2, 4, 5, 180]));
        assert_eq!(ack(answer.sent(TransmitReason::Reply)), ISN + 1);
        open
    }

    fn query(&mut self, change: impl FnOnce(Builder) -> Builder) -> FrameResult {
        self.lab.send(change(Builder::tcp(CLIENT, VIP).seq_ack(ISN + 1, 78)))
    }

    fn answer(&mut self, change: impl FnOnce(Builder) -> Builder) -> FrameResult {
        let segment = change(Builder::tcp(BACKEND, self.local).seq_ack(78, ISN + 1));
        self.lab.receive(&segment.mac(backend_mac(1), GATEWAY_MAC).build())
    }

    /// The backend acknowledges this many bytes of its stream. Returns the acknowledgement that the client sees.
    fn acknowledges(&mut self, bytes: u32) -> u32 {
        let result = self.answer(|b| b.seq_ack(78, ISN + 1 + bytes));
        ack(result.sent(TransmitReason::Reply)) - ISN - 1
    }
}

#[test]
fn the_ack_of_the_handshake_and_its_repetition_carry_the_line() {
    let mut open = Open::new(lab());
    for _ in 0..2 {
        let result = open.query(|b| b.trailer(6));
        let sent = result.sent(TransmitReason::Forward);
        assert_eq!((seq(sent), data(sent)), (ISN + 1, LINE.to_vec()));
        assert_eq!(sent.len(), usize::from(headers(sent).ip_end), "Ethernet padding is removed");
    }
    let result = open.query(|b| b.flags(PSH | ACK).payload(b"hello"));
    assert_eq!(data(result.sent(TransmitReason::Forward)), [LINE, b"hello"].concat());
    assert_eq!(open.acknowledges(LINE.len() as u32 + 5), 5);
    let result = open.query(|b| b.seq_ack(ISN + 6, 78).payload(b" you"));
    let sent = result.sent(TransmitReason::Forward);
    assert_eq!((seq(sent), data(sent)), (ISN + 6 + LINE.len() as u32, b" you".to_vec()));
}

#[test]
fn a_segment_that_overtakes_the_first_one_follows_the_header() {
    let mut open = Open::new(lab());
    let result = open.query(|b| b.seq_ack(ISN + 101, 78).payload(b"later"));
    let sent = result.sent(TransmitReason::Forward);
    assert_eq!((seq(sent), data(sent)), (ISN + 101 + LINE.len() as u32, b"later".to_vec()));
}

#[test]
fn a_fin_without_data_carries_the_header_and_a_later_reset_does_not() {
    let mut open = Open::new(lab());
    let result = open.query(|b| b.flags(RST));
    let sent = result.sent(TransmitReason::Forward);
    assert_eq!((seq(sent), data(sent)), (ISN + 1, vec![]), "the backend has received nothing yet");
    let mut open = Open::new(lab());
    let result = open.query(|b| b.flags(FIN | ACK));
    assert_eq!(data(result.sent(TransmitReason::Forward)), LINE);
    let result = open.query(|b| b.flags(RST));
    let sent = result.sent(TransmitReason::Forward);
    assert_eq!((seq(sent), data(sent)), (ISN + 1 + LINE.len() as u32, vec![]));
    open.acknowledges(LINE.len() as u32);
    let result = open.query(|b| b.flags(RST));
    assert_eq!(seq(result.sent(TransmitReason::Forward)), ISN + 1 + LINE.len() as u32);
}

#[test]
fn acknowledgements_of_a_part_of_the_header_are_hidden_from_the_client() {
    let mut open = Open::new(lab());
    let seen: Vec<u32> = [0, 1, 20, 41].map(|bytes| open.acknowledges(bytes)).into();
    assert_eq!(seen, [0; 4]);
    let result = open.query(|b| b);
    assert_eq!(data(result.sent(TransmitReason::Forward)), LINE, "the backend has not all of it");
}

#[test]
fn blocks_of_the_header_are_removed_from_selective_acknowledgements() {
    let mut open = Open::new(lab());
    let len = LINE.len() as u32;
    let blocks = |edges: &[u32]| {
        let mut option = vec![1, 1, 5, 2 + 4 * edges.len() as u8];
        edges.iter().for_each(|edge| option.extend((ISN + 1 + edge).to_be_bytes()));
        option
    };
    let seen = |open: &mut Open, bytes, edges: &[u32]| {
        let result = open.answer(|b| b.seq_ack(78, ISN + 1 + bytes).tcp_options(&blocks(edges)));
        let sent = result.sent(TransmitReason::Reply);
        assert_eq!(data(sent), []);
        sent[usize::from(headers(sent).l4) + 20..usize::from(headers(sent).ip_end)].to_vec()
    };
    assert_eq!(seen(&mut open, 0, &[len + 10, len + 20]), blocks(&[10, 20]));
    // A duplicate header is hidden from the client, unlike the block after it.
    let mut one = blocks(&[10, 20]);
    one.extend([1; 8]);
    assert_eq!(seen(&mut open, len, &[0, len, len + 10, len + 20]), one);
    assert_eq!(seen(&mut open, len, &[0, len]), [1; 12]);
    assert_eq!(seen(&mut open, len + 30, &[5, len + 7]), blocks(&[0, 7]));
}

#[test]
fn data_in_a_syn_waits_for_the_handshake() {
    for option in [&[34, 6, 1, 2, 3, 4][..], &[254, 4, 0xf9, 0x89], &[34, 2]] {
        let mut lab = lab();
        let options: Vec<u8> = [&[2, 4, 5, 180][..], option].concat();
        let syn = Builder::tcp(CLIENT, VIP).flags(SYN).seq_ack(ISN, 0);
        let result = lab.send(syn.tcp_options(&options).payload(&[7; 100]));
        let sent = result.sent(TransmitReason::Forward);
        assert_eq!(data(sent), []);
        assert_eq!(sent.len(), usize::from(headers(sent).ip_end).max(60));
        let l4 = usize::from(headers(sent).l4);
        assert_eq!(sent[l4 + 20..l4 + 24], [2, 4, 5, 180]);
        assert_eq!(sent[l4 + 24..l4 + 24 + option.len()], vec![1; option.len()]);
        assert!(sent[usize::from(headers(sent).ip_end)..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn the_announced_segment_size_leaves_space_for_the_header() {
    let mut open = Open::new(lab());
    let mut mss = |announced: u16| {
        let [high, low] = announced.to_be_bytes();
        let options = [1, 2, 4, high, low, 4, 2];
        let result = open.answer(|b| b.flags(SYN | ACK).seq_ack(77, ISN + 1).tcp_options(&options));
        let sent = result.sent(TransmitReason::Reply);
        data(sent);
        let at = usize::from(headers(sent).l4) + 23;
        u16::from_be_bytes([sent[at], sent[at + 1]])
    };
    assert_eq!([1460, 88, 40, 0].map(&mut mss), [1418, 64, 40, 0]);
}

#[test]
fn a_segment_that_does_not_fit_with_its_header_is_answered() {
    let mut open = Open::new(lab());
    let fit = 1500 - 40 - LINE.len();
    assert_eq!(open.query(|b| b.payload_len(fit)).sent(TransmitReason::Forward).len(), 1514);
    let result = open.query(|b| b.payload_len(fit + 1));
    let sent = result.sent(TransmitReason::PacketTooBig);
    let l4 = usize::from(headers(sent).l4);
    assert_eq!(usize::from(u16::from_be_bytes([sent[l4 + 6], sent[l4 + 7]])), 1500 - LINE.len());
    let result = open.query(|b| b.payload_len(fit + 1).dont_fragment(false));
    assert_eq!(result.fragments.len(), 2);
    open.acknowledges(LINE.len() as u32);
    open.query(|b| b.payload_len(1460)).sent(TransmitReason::Forward);
}

#[test]
fn urgent_data_stays_urgent() {
    let mut open = Open::new(lab());
    let mut frame = Builder::tcp(CLIENT, VIP)
        .seq_ack(ISN + 1, 78)
        .flags(ACK | URG)
        .payload(b"now")
        .mac(ROUTER_MAC, GATEWAY_MAC)
        .build();
    let l4 = usize::from(headers(&frame).l4);
    frame[l4 + 18..l4 + 20].copy_from_slice(&3u16.to_be_bytes());
    let check = u16::from_be_bytes([frame[l4 + 16], frame[l4 + 17]]);
    let check = tidegate_wire::checksum::Delta::new().u16(0, 3).apply(check);
    frame[l4 + 16..l4 + 18].copy_from_slice(&check.to_be_bytes());
    let result = open.lab.receive(&frame);
    let sent = result.sent(TransmitReason::Forward);
    assert_eq!(data(sent), [LINE, b"now"].concat());
    assert_eq!(u32::from(u16::from_be_bytes([sent[l4 + 18], sent[l4 + 19]])), LINE.len() as u32 + 3);
}

#[test]
fn an_icmp_error_to_the_client_quotes_its_own_sequence_numbers() {
    let mut open = Open::new(lab());
    let local = open.local;
    let mut error = |acknowledged: bool| {
        if acknowledged {
            open.acknowledges(LINE.len() as u32 + 100);
        }
        let quoted =
            Builder::tcp(local, BACKEND).seq_ack(ISN + 1 + LINE.len() as u32 + 100, 78).payload_len(900);
        let router = "10.0.0.9".parse::<std::net::IpAddr>().unwrap();
        let error = Builder::icmp(router, local.ip(), 3, 4, [0, 0, 3, 0xe8]).payload(&quoted.packet()[..40]);
        let result = open.lab.send(error);
        let sent = result.sent(TransmitReason::IcmpError).to_vec();
        let h = headers(&sent);
        let icmp = &sent[usize::from(h.l4)..usize::from(h.ip_end)];
        assert_eq!((h.family, Sum::new().bytes(icmp).finish()), (Family::V4, 0));
        let word = |at: usize| u32::from_be_bytes(icmp[at..at + 4].try_into().unwrap());
        (word(8 + 20 + 4), word(4))
    };
    assert_eq!(error(false), (ISN + 101, 1000 - LINE.len() as u32));
    assert_eq!(error(true), (ISN + 101, 1000));
}

#[test]
fn a_connection_keeps_its_header_when_the_service_changes() {
    let set = |open: &mut Open, version| {
        open.lab.change(|spec| spec.services[0].proxy_protocol = version);
    };
    let mut open = Open::new(lab());
    let later = |open: &mut Open| {
        let result = open.query(|b| b.seq_ack(ISN + 51, 78).payload(b"x"));
        seq(result.sent(TransmitReason::Forward)) - ISN - 51
    };
    for version in [Some(ProxyVersion::V2), None] {
        set(&mut open, version);
        assert_eq!(data(open.query(|b| b).sent(TransmitReason::Forward)), LINE);
        assert_eq!(later(&mut open), LINE.len() as u32);
    }
    // A connection from before the change gets no header.
    let plain = ServiceSpec {
        proxy_protocol: None,
        ..service(ForwardingMode::FullNat, Protocol::Tcp, VIP, &[BACKEND])
    };
    let mut open = Open::new(Lab::new(vec![plain]));
    set(&mut open, Some(ProxyVersion::V1));
    assert_eq!((data(open.query(|b| b).sent(TransmitReason::Forward)), later(&mut open)), (vec![], 0));
    assert_eq!(open.acknowledges(10), 10);
}

fn with_tlvs(protocol: Protocol, tlvs: ProxyTlvs) -> Lab {
    let plain = service(ForwardingMode::FullNat, protocol, VIP, &[BACKEND]);
    let proxy_protocol = Some(ProxyVersion::V2);
    Lab::new(vec![ServiceSpec { proxy_protocol, proxy_tlvs: tlvs, ..plain }])
}

/// The identifier in a version 2 header for IPv4, and the other bytes of the header.
fn id_of(header: &[u8]) -> (Vec<u8>, Vec<u8>) {
    assert_eq!(header[28..31], [5, 0, 16]);
    (header[31..47].to_vec(), [&header[..31], &header[47..]].concat())
}

#[test]
fn a_repeated_header_is_unchanged_after_a_change_of_the_tlvs() {
    let both = ProxyTlvs::UNIQUE_ID.and(ProxyTlvs::CRC32C);
    let mut open = Open::new(with_tlvs(Protocol::Tcp, both));
    let header = data(open.query(|b| b).sent(TransmitReason::Forward));
    assert_eq!((header.len(), &header[14..16]), (28 + 19 + 7, &[0, 38][..]));
    for tlvs in [both, ProxyTlvs::NONE, ProxyTlvs::CRC32C] {
        open.lab.change(|spec| spec.services[0].proxy_tlvs = tlvs);
        let sent = data(open.query(|b| b.flags(PSH | ACK).payload(b"hello")).sent(TransmitReason::Forward));
        assert_eq!(sent, [&header[..], b"hello"].concat());
    }
    assert_eq!(open.acknowledges(header.len() as u32 + 5), 5);
}

#[test]
fn the_length_of_a_tlv_stays_when_its_text_changes_during_a_handshake() {
    let text = |text: &str| VpceId::new(text).expect("it is short");
    let change = |lab: &mut Lab, id: VpceId| lab.change(move |spec| spec.services[0].vpce_id = id);
    let mut lab = with_tlvs(Protocol::Tcp, ProxyTlvs::VPCE_ID);
    change(&mut lab, text("vpce-1"));
    let mut open = Open::new(lab);
    let query = |open: &mut Open| {
        data(open.query(|b| b.flags(PSH | ACK).payload(b"hello")).sent(TransmitReason::Forward))
    };
    let header = query(&mut open);
    assert_eq!(header[28..38], *b"\xea\0\x07\x01vpce-1");
    change(&mut open.lab, text("vpce-08d2bf15fac5001c9"));
    let again = query(&mut open);
    assert_eq!((again.len(), &again[32..54]), (header.len(), &b"vpce-08d2bf15fac5001c9"[..]));
    open.lab.change(|spec| spec.services[0].proxy_tlvs = ProxyTlvs::NONE);
    assert_eq!(query(&mut open), again);
    assert_eq!(open.acknowledges(28 + 29 + 5), 5);
}

#[test]
fn the_syn_ack_leaves_space_for_the_tlvs() {
    let mut lab = with_tlvs(Protocol::Tcp, ProxyTlvs::UNIQUE_ID);
    let result = lab.send(Builder::tcp(CLIENT, VIP).flags(SYN).seq_ack(ISN, 0));
    let (local, _) = ends(result.sent(TransmitReason::Forward));
    let answer =
        Builder::tcp(BACKEND, local).flags(SYN | ACK).seq_ack(77, ISN + 1).tcp_options(&[2, 4, 5, 180]);
    let result = lab.receive(&answer.mac(backend_mac(1), GATEWAY_MAC).build());
    let sent = result.sent(TransmitReason::Reply);
    let at = usize::from(headers(sent).l4) + 20;
    assert_eq!(sent[at..at + 2], [2, 4]);
    assert_eq!(u16::from_be_bytes([sent[at + 2], sent[at + 3]]), 1460 - 47);
}

#[test]
fn only_the_identifier_differs_between_connections_and_gateways() {
    let header = |isn: u32, seed: u64| {
        let mut lab = with_tlvs(Protocol::Tcp, ProxyTlvs::UNIQUE_ID).with_seed(seed);
        let result = lab.send(Builder::tcp(CLIENT, VIP).flags(SYN).seq_ack(isn, 0));
        let (local, _) = ends(result.sent(TransmitReason::Forward));
        let answer = Builder::tcp(BACKEND, local).flags(SYN | ACK).seq_ack(77, isn + 1);
        lab.receive(&answer.mac(backend_mac(1), GATEWAY_MAC).build()).sent(TransmitReason::Reply);
        let result = lab.send(Builder::tcp(CLIENT, VIP).seq_ack(isn + 1, 78));
        id_of(&data(result.sent(TransmitReason::Forward)))
    };
    let (first, rest) = header(ISN, 1);
    assert_eq!(header(ISN, 1), (first.clone(), rest.clone()));
    for (isn, seed) in [(ISN + 1, 1), (ISN, 2)] {
        let (other, same) = header(isn, seed);
        assert_eq!(same, rest);
        let shared = first.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(shared < 8, "{first:?} {other:?}");
    }
}

#[test]
fn a_datagram_has_the_checksum_and_no_identifier() {
    let mut lab = with_tlvs(Protocol::Udp, ProxyTlvs::UNIQUE_ID.and(ProxyTlvs::CRC32C));
    let result = lab.send(Builder::udp(CLIENT, VIP).payload(b"get"));
    let sent = data(result.sent(TransmitReason::Forward));
    assert_eq!((sent.len(), &sent[14..16], &sent[28..31]), (28 + 7 + 3, &[0, 19][..], &[3, 0, 4][..]));
    assert_eq!(sent[35..], *b"get");
}

#[test]
fn the_next_connection_of_the_ports_has_a_new_stream() {
    let mut open = Open::new(lab());
    open.query(|b| b);
    open.acknowledges(LINE.len() as u32);
    // The client's new sequence number is within the old stream.
    let isn = ISN + 500;
    open.query(|b| b.flags(RST));
    open.answer(|b| b.flags(RST | ACK));
    open.query(|b| b.flags(SYN).seq_ack(isn, 0));
    let result = open.query(|b| b.flags(SYN).seq_ack(isn, 0));
    (open.local, _) = ends(result.sent(TransmitReason::Forward));
    let result = open.answer(|b| b.flags(SYN | ACK).seq_ack(5, isn + 1));
    assert_eq!(ack(result.sent(TransmitReason::Reply)), isn + 1);
    let result = open.query(|b| b.seq_ack(isn + 1, 6));
    let sent = result.sent(TransmitReason::Forward);
    assert_eq!((seq(sent), data(sent)), (isn + 1, LINE.to_vec()));
}

#[test]
fn a_crowded_table_keeps_the_stream_of_each_flow() {
    let mut lab = lab().with_entries(512);
    let connections: Vec<Connection> = (0..400)
        .map(|n| {
            let connection = Connection::send_syn(&mut lab, client(n), VIP).expect("the table isn't full");
            let answer =
                Builder::tcp(connection.backend, connection.local).flags(SYN | ACK).seq_ack(9, ISN + n);
            lab.receive(&answer.mac(backend_mac(1), GATEWAY_MAC).build()).sent(TransmitReason::Reply);
            connection
        })
        .collect();
    for (n, connection) in (0..).zip(&connections) {
        let result = lab.send(Builder::tcp(connection.client, connection.vip).seq_ack(ISN + n, 10));
        let line =
            format!("PROXY TCP4 {} 10.0.42.7 {} 7\r\n", connection.client.ip(), connection.client.port());
        assert_eq!(data(result.sent(TransmitReason::Forward)), line.as_bytes());
    }
}

#[test]
fn each_datagram_has_a_header_of_version_2() {
    for (from, vip, backend, header_len) in
        [(CLIENT, VIP, BACKEND, 28), ("[2001:db8::7]:40000", "[2001:db8:1::5]:53", "[fd00::1]:53", 52)]
    {
        let mut lab = proxied(ForwardingMode::FullNat, Protocol::Udp, vip, backend, ProxyVersion::V2);
        for payload in [&b"question"[..], b"", b"odd"] {
            let result = lab.send(Builder::udp(from, vip).payload(payload));
            let sent = result.sent(TransmitReason::Forward);
            let (h, sent_data) = (headers(sent), data(sent));
            let l4 = usize::from(h.l4);
            let udp_len = usize::from(u16::from_be_bytes([sent[l4 + 4], sent[l4 + 5]]));
            assert_eq!(udp_len, 8 + header_len + payload.len());
            assert_eq!((&sent_data[..12], &sent_data[header_len..]), (&b"\r\n\r\n\0\r\nQUIT\n"[..], payload));
        }
        let too_long = lab.send(Builder::udp(from, vip).payload_len(1500 - 48));
        too_long.sent(TransmitReason::PacketTooBig);
    }
    let mut lab = proxied(ForwardingMode::Nat, Protocol::Udp, VIP, BACKEND, ProxyVersion::V2);
    let unchecked = Builder::udp(CLIENT, VIP).payload(b"x").l4_checksum(0);
    let result = lab.send(unchecked);
    let sent = result.sent(TransmitReason::Forward);
    let l4 = usize::from(headers(sent).l4);
    assert_eq!(sent[l4 + 6..l4 + 8], [0, 0], "no checksum stays none");
}

#[test]
fn a_path_mtu_is_reported_to_the_client_minus_the_datagrams_header() {
    for (from, vip, backend, header_len) in
        [(CLIENT, VIP, BACKEND, 28), ("[2001:db8::7]:40000", "[2001:db8:1::5]:53", "[fd00::1]:53", 52)]
    {
        let mut lab = proxied(ForwardingMode::FullNat, Protocol::Udp, vip, backend, ProxyVersion::V2);
        let result = lab.send(Builder::udp(from, vip).payload_len(1350));
        let sent = result.sent(TransmitReason::Forward).to_vec();
        let h = headers(&sent);
        let (kind, code) = if h.family == Family::V4 { (3, 4) } else { (2, 0) };
        let router = if h.family == Family::V4 { "10.0.0.9" } else { "fd00::9" };
        let quoted = &sent[usize::from(h.l3)..][..80];
        let router: std::net::IpAddr = router.parse().unwrap();
        let error = Builder::icmp(router, h.src.ip(), kind, code, 1400_u32.to_be_bytes());
        let result = lab.send(error.payload(quoted));
        let sent = result.sent(TransmitReason::IcmpError);
        assert_eq!(icmp::reported_mtu(sent, &headers(sent)), Some(1400 - header_len), "{from}");
    }
}

#[test]
fn a_frame_without_headroom_for_the_header_is_refused_unchanged() {
    let mut open = Open::new(lab());
    let frame = Builder::tcp(CLIENT, VIP).seq_ack(ISN + 1, 78).mac(ROUTER_MAC, GATEWAY_MAC).build();
    assert_eq!(open.lab.receive_tight(&frame).refused(), Refusal::NoHeadroom);
}
