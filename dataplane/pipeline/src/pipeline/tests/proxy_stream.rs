//! A TCP connection through the gateway with a PROXY protocol header or a TOA option, over a network that loses,
//! repeats and reorders segments on both sides. Both ends are small independent models: the server must read exactly
//! header and payload, and the client must see only acknowledgements of what it sent.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tidegate_spec::verdict::{TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, Protocol, ServiceSpec};
use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::tcp::flags::{ACK, FIN, PSH, SYN};
use tidegate_wire::{Parsed, parse};

use super::lab::{Lab, ROUTER_MAC, backend_mac, service};
use crate::testing::builder::{Builder, GATEWAY_MAC};

/// A segment as an end sees it.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    /// Kind and data of each option.
    pub(super) options: Vec<(u8, Vec<u8>)>,
    pub(super) data: Vec<u8>,
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}

/// The sum of RFC 1071, word by word.
fn naive_sum(parts: &[&[u8]]) -> u16 {
    let bytes: Vec<u8> = parts.concat();
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum = words.fold(0u32, |sum, word| {
        let sum = sum + word;
        (sum & 0xffff) + (sum >> 16)
    });
    sum as u16
}

/// Reads a frame with all its lengths and checksums, without the functions of the gateway.
pub(super) fn read(frame: &[u8]) -> Segment {
    let Ok(Parsed::Ip(h)) = parse(frame) else { panic!("{frame:02x?}") };
    let ip = &frame[14..];
    let (l4, end, addresses) = match ip[0] >> 4 {
        4 => {
            assert_eq!(naive_sum(&[&ip[..20]]), 0xffff, "the IPv4 header's checksum");
            (20, usize::from(be16(ip, 2)), &ip[12..20])
        }
        _ => (40, 40 + usize::from(be16(ip, 4)), &ip[8..40]),
    };
    let tcp = &ip[l4..end];
    let len = u32::try_from(tcp.len()).unwrap().to_be_bytes();
    assert_eq!(naive_sum(&[addresses, &len, &[0, 6], tcp]), 0xffff, "the TCP checksum: {frame:02x?}");
    let header_len = usize::from(tcp[12] >> 4) * 4;
    let (mut options, mut at) = (Vec::new(), 20);
    while at < header_len && tcp[at] != 0 {
        if tcp[at] == 1 {
            at += 1;
            continue;
        }
        let len = usize::from(tcp[at + 1]);
        options.push((tcp[at], tcp[at + 2..at + len].to_vec()));
        at += len;
    }
    Segment {
        from: SocketAddr::new(h.src.ip(), be16(tcp, 0)),
        to: SocketAddr::new(h.dst.ip(), be16(tcp, 2)),
        seq: be32(tcp, 4),
        ack: be32(tcp, 8),
        flags: tcp[13],
        options,
        data: tcp[header_len..].to_vec(),
    }
}

impl Segment {
    pub(super) fn option(&self, kind: u8) -> Option<&[u8]> {
        self.options.iter().find(|(k, _)| *k == kind).map(|(_, data)| data.as_slice())
    }

    pub(super) fn blocks(&self) -> Vec<(u32, u32)> {
        let blocks = self.option(5).unwrap_or_default();
        blocks.chunks(8).map(|block| (be32(block, 0), be32(block, 4))).collect()
    }
}

/// Random numbers from a seed (xorshift).
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

/// The server: receives bytes in any order and acknowledges what is complete.
#[derive(Default)]
struct Server {
    first: Option<u32>,
    bytes: BTreeMap<u32, u8>,
    /// The number of bytes without a gap.
    complete: u32,
    fin: Option<u32>,
    peer: Option<(SocketAddr, SocketAddr)>,
}

const SERVER_ISN: u32 = 0xffff_ff00;

impl Server {
    /// The ranges that are not acknowledged yet.
    fn unordered_ranges(&self) -> Vec<(u32, u32)> {
        let mut unordered_ranges: Vec<(u32, u32)> = Vec::new();
        for &at in self.bytes.range(self.complete..).map(|(at, _)| at) {
            match unordered_ranges.last_mut() {
                Some(last) if last.1 == at => last.1 += 1,
                _ => unordered_ranges.push((at, at + 1)),
            }
        }
        unordered_ranges
    }

    fn syn_ack(&self) -> Builder {
        let (own, peer) = self.peer.unwrap();
        Builder::tcp(own, peer)
            .flags(SYN | ACK)
            .seq_ack(SERVER_ISN, self.first.unwrap())
            .tcp_options(&[2, 4, 0x04, 0xb0, 4, 2])
    }

    fn receive(&mut self, s: &Segment) -> Vec<Builder> {
        if s.flags & SYN != 0 {
            assert_eq!((&s.data[..], s.option(34)), (&[][..], None), "no data before the header");
            self.first = Some(s.seq.wrapping_add(1));
            self.peer = Some((s.to, s.from));
            return vec![self.syn_ack()];
        }
        let first = self.first.expect("a SYN was received first");
        let offset = s.seq.wrapping_sub(first);
        let before = self.complete;
        let end = offset.wrapping_add(s.data.len() as u32);
        for (at, byte) in (offset..).zip(&s.data) {
            let earlier = self.bytes.insert(at, *byte);
            assert!(earlier.is_none_or(|earlier| earlier == *byte), "byte {at} changed");
        }
        while self.bytes.contains_key(&self.complete) {
            self.complete += 1;
        }
        if s.flags & FIN != 0 {
            assert!(self.fin.is_none_or(|fin| fin == end));
            self.fin = Some(end);
        }
        if s.data.is_empty() && s.flags & FIN == 0 {
            return vec![];
        }
        vec![self.ack((offset < before).then_some((offset, end.min(before))))]
    }

    /// An acknowledgement, which first reports duplicate bytes (RFC 2883).
    fn ack(&self, twice: Option<(u32, u32)>) -> Builder {
        let (own, peer) = self.peer.unwrap();
        let (first, complete) = (self.first.unwrap(), self.complete);
        let fin = u32::from(self.fin == Some(complete));
        let blocks: Vec<_> = twice.into_iter().chain(self.unordered_ranges()).take(3).collect();
        let mut options = vec![1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 5];
        if !blocks.is_empty() {
            options.extend([1, 1, 5, 2 + 8 * blocks.len() as u8]);
            for edge in blocks.iter().flat_map(|&(left, right)| [left, right]) {
                options.extend(first.wrapping_add(edge).to_be_bytes());
            }
        }
        let ack = first.wrapping_add(complete + fin);
        Builder::tcp(own, peer).seq_ack(SERVER_ISN.wrapping_add(1), ack).tcp_options(&options)
    }
}

/// The client: sends its payload in segments, and repeats what is not acknowledged.
struct Client {
    own: SocketAddr,
    vip: SocketAddr,
    isn: u32,
    payload: Vec<u8>,
    mss: Option<usize>,
    acknowledged: u32,
    sent: u32,
}

impl Client {
    fn first(&self) -> u32 {
        self.isn.wrapping_add(1)
    }

    fn syn(&self) -> Builder {
        // Fast Open with data: the gateway removes both.
        Builder::tcp(self.own, self.vip)
            .flags(SYN)
            .seq_ack(self.isn, 0)
            .tcp_options(&[2, 4, 5, 180, 34, 6, 1, 2, 3, 4])
            .payload(&self.payload[..self.payload.len().min(9)])
    }

    fn ack(&self) -> Builder {
        let seq = self.first().wrapping_add(self.sent);
        Builder::tcp(self.own, self.vip).seq_ack(seq, SERVER_ISN.wrapping_add(1))
    }

    /// A segment from this offset on. Its options may claim another address.
    fn data(&mut self, from: u32, dice: &mut Dice) -> Builder {
        let rest = &self.payload[from as usize..];
        let len = rest.len().min(1 + dice.below(self.mss.unwrap() - 12));
        let (data, last) = (rest[..len].to_vec(), len == rest.len());
        let flags = if last { FIN | PSH | ACK } else { ACK };
        self.sent = self.sent.max(from + len as u32 + u32::from(last));
        let seq = self.first().wrapping_add(from);
        let timestamps = [1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];
        let forged: &[u8] = [&[][..], &[254, 8, 0, 80, 10, 9, 9, 9]][dice.below(2)];
        let options = [forged, &timestamps].concat();
        let segment = Builder::tcp(self.own, self.vip).seq_ack(seq, SERVER_ISN.wrapping_add(1));
        segment.flags(flags).tcp_options(&options).payload(&data)
    }

    fn receive(&mut self, s: &Segment, growth: usize) -> Vec<Builder> {
        assert_eq!((s.from, s.to), (self.vip, self.own));
        if s.flags & SYN != 0 {
            assert_eq!((s.seq, s.ack), (SERVER_ISN, self.first()));
            let mss = usize::from(be16(s.option(2).expect("an MSS"), 0));
            assert_eq!(mss, 1200 - growth, "the header must fit too");
            self.mss = Some(mss);
            return vec![self.ack()];
        }
        let ack = s.ack.wrapping_sub(self.first());
        assert!(ack <= self.sent, "{ack} is acknowledged of {} bytes", self.sent);
        for (left, right) in s.blocks() {
            let (left, right) = (left.wrapping_sub(self.first()), right.wrapping_sub(self.first()));
            assert!(left < right && right <= self.sent, "{left}..{right} of {} bytes", self.sent);
        }
        assert_eq!(s.option(8), Some(&[0, 0, 0, 9, 0, 0, 0, 5][..]), "timestamps are untouched");
        self.acknowledged = self.acknowledged.max(ack);
        vec![]
    }

    fn is_done(&self) -> bool {
        self.acknowledged as usize == self.payload.len() + 1
    }
}

/// The frames on one side in one direction.
#[derive(Default)]
pub(super) struct Wire(Vec<Vec<u8>>);

impl Wire {
    pub(super) fn put(&mut self, frame: &[u8], dice: &mut Dice) {
        let copies = match dice.below(10) {
            0 | 1 => 0,
            2 => 2,
            _ => 1,
        };
        self.0.extend((0..copies).map(|_| frame.to_vec()));
    }

    /// Any of the frames, so that they overtake each other.
    pub(super) fn take(&mut self, dice: &mut Dice) -> Option<Vec<u8>> {
        (!self.0.is_empty()).then(|| self.0.swap_remove(dice.below(self.0.len())))
    }
}

struct World {
    lab: Lab,
    dice: Dice,
    client: Client,
    server: Server,
    to_gateway: Wire,
    to_server: Wire,
    from_server: Wire,
    to_client: Wire,
    header: Vec<u8>,
    /// The contents of the TOA option that segments have until the handshake has ended.
    option: Option<Vec<u8>>,
}

impl World {
    fn new(seed: u64, mode: ForwardingMode, version: ProxyVersion, v6: bool) -> Self {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (client, vip, backend) = if v6 {
            ("[2001:db8::7]:40000", "[2001:db8:1::5]:80", "[fd00::1]:8080")
        } else {
            ("192.0.2.202:12345", "10.0.42.7:7", "10.0.0.1:8080")
        };
        let spec =
            ServiceSpec { proxy_protocol: Some(version), ..service(mode, Protocol::Tcp, vip, &[backend]) };
        let payload = (0..dice.below(6000)).map(|n| (n * 7 % 251) as u8).collect();
        // Some streams start just before their sequence numbers wrap around.
        let isn =
            if dice.below(2) == 0 { u32::MAX - dice.below(3000) as u32 } else { dice.below(1 << 31) as u32 };
        let client = Client {
            own: client.parse().unwrap(),
            vip: vip.parse().unwrap(),
            isn,
            payload,
            mss: None,
            acknowledged: 0,
            sent: 0,
        };
        let (lab, server) = (Lab::new(vec![spec]), Server::default());
        let header = header_of(version, v6);
        let option = (version == ProxyVersion::Toa).then(|| option_of(v6));
        let [to_gateway, to_server, from_server, to_client] = [(); 4].map(|()| Wire::default());
        Self { lab, dice, client, server, to_gateway, to_server, from_server, to_client, header, option }
    }

    fn run(mut self) {
        for step in 0.. {
            assert!(step < 200_000, "the connection makes progress");
            if self.client.is_done() {
                break;
            }
            self.step();
        }
        let bytes: Vec<u8> = self.server.bytes.values().copied().collect();
        assert_eq!(bytes.len(), self.server.complete as usize);
        assert_eq!(bytes, [&self.header[..], &self.client.payload].concat());
        assert_eq!(self.server.fin, Some(bytes.len() as u32));
    }

    fn step(&mut self) {
        match self.dice.below(9) {
            0 => self.client_sends(),
            // The server's own timers.
            1 if self.dice.below(4) == 0 && self.server.first.is_some() => {
                let again =
                    if self.server.bytes.is_empty() { self.server.syn_ack() } else { self.server.ack(None) };
                self.from_server.put(&again.mac(backend_mac(1), GATEWAY_MAC).build(), &mut self.dice);
            }
            2 | 3 => {
                if let Some(frame) = self.to_gateway.take(&mut self.dice) {
                    let sent = self.forward(&frame, TransmitReason::Forward);
                    self.to_server.put(&sent, &mut self.dice);
                }
            }
            4 | 5 => {
                if let Some(frame) = self.to_server.take(&mut self.dice) {
                    let segment = read(&frame);
                    let in_handshake = self.server.bytes.is_empty() && segment.flags & SYN == 0;
                    if let Some(option) = self.option.as_ref().filter(|_| in_handshake) {
                        assert_eq!(segment.options.first(), Some(&(254, option.clone())));
                        assert_eq!(segment.options.iter().filter(|(kind, _)| *kind == 254).count(), 1);
                    }
                    for answer in self.server.receive(&segment) {
                        let answer = answer.mac(backend_mac(1), GATEWAY_MAC).build();
                        self.from_server.put(&answer, &mut self.dice);
                    }
                }
            }
            6 | 7 => {
                if let Some(frame) = self.from_server.take(&mut self.dice) {
                    let sent = self.forward(&frame, TransmitReason::Reply);
                    self.to_client.put(&sent, &mut self.dice);
                }
            }
            _ => {
                if let Some(frame) = self.to_client.take(&mut self.dice) {
                    let growth = self.option.as_ref().map_or(self.header.len(), |option| option.len() + 2);
                    for answer in self.client.receive(&read(&frame), growth) {
                        let answer = answer.mac(ROUTER_MAC, GATEWAY_MAC).build();
                        self.to_gateway.put(&answer, &mut self.dice);
                    }
                }
            }
        }
    }

    fn client_sends(&mut self) {
        let segment = match self.client.mss {
            None => self.client.syn(),
            Some(_) => {
                // New or unacknowledged data.
                let len = self.client.payload.len() as u32;
                let new = self.dice.below(2) == 0 && self.client.sent < len;
                let from = if new { self.client.sent } else { self.client.acknowledged };
                self.client.data(from.min(len), &mut self.dice)
            }
        };
        self.to_gateway.put(&segment.mac(ROUTER_MAC, GATEWAY_MAC).build(), &mut self.dice);
    }

    fn forward(&mut self, frame: &[u8], why: TransmitReason) -> Vec<u8> {
        let result = self.lab.receive(frame);
        assert_eq!(result.verdict, Verdict::Transmit { interface: 0, why });
        result.frame
    }
}

/// The bytes of the header, as specified.
pub(super) fn header_of(version: ProxyVersion, v6: bool) -> Vec<u8> {
    match (version, v6) {
        (ProxyVersion::V1, false) => b"PROXY TCP4 192.0.2.202 10.0.42.7 12345 7\r\n".to_vec(),
        (ProxyVersion::V1, true) => b"PROXY TCP6 2001:db8::7 2001:db8:1::5 40000 80\r\n".to_vec(),
        (ProxyVersion::Toa, _) => vec![],
        (ProxyVersion::V2, false) => {
            [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..], &[192, 0, 2, 202, 10, 0, 42, 7, 0x30, 0x39, 0, 7]]
                .concat()
        }
        (ProxyVersion::V2, true) => {
            let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
            let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24".to_vec();
            header.extend(address("2001:db8::7").iter().chain(&address("2001:db8:1::5")));
            header.extend([0x9c, 0x40, 0, 80]);
            header
        }
    }
}

/// Port and address of the client.
pub(super) fn option_of(v6: bool) -> Vec<u8> {
    match v6 {
        false => vec![0x30, 0x39, 192, 0, 2, 202],
        true => {
            let address = "2001:db8::7".parse::<std::net::Ipv6Addr>().unwrap().octets();
            [&[0x9c, 0x40][..], &address].concat()
        }
    }
}

#[test]
fn the_server_reads_header_and_payload_and_the_client_its_own_acks() {
    for seed in 1..=60 {
        for mode in [ForwardingMode::Nat, ForwardingMode::FullNat] {
            for version in [ProxyVersion::V1, ProxyVersion::V2] {
                World::new(seed, mode, version, seed % 3 == 0).run();
            }
        }
        World::new(seed, ForwardingMode::FullNat, ProxyVersion::Toa, seed % 3 == 0).run();
    }
}
