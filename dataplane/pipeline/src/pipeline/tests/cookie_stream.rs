//! A TCP connection that began with a SYN cookie, over a network that loses, repeats and reorders segments on both
//! sides, with data in both directions. Both ends are small independent models: each must read exactly what the other
//! wrote, and see only acknowledgements of what it sent.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tidegate_spec::verdict::{TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, Protocol, ServiceSpec, SynCookies};
use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::tcp::flags::{ACK, PSH, SYN};

use super::lab::{Lab, ROUTER_MAC, backend_mac, service, spec_with};
use super::proxy_stream::{Dice, Segment, Wire, header_of, option_of, read};
use crate::testing::builder::{Builder, GATEWAY_MAC};

/// One end of a connection. Offsets count from its first byte.
struct End {
    own: SocketAddr,
    isn: u32,
    payload: Vec<u8>,
    /// The number of bytes that it has sent at least once, and the number that the other end has acknowledged.
    sent: u32,
    acknowledged: u32,
    /// Address and first sequence number of the other end.
    peer: Option<(SocketAddr, u32)>,
    bytes: BTreeMap<u32, u8>,
    /// The number of bytes without a gap.
    complete: u32,
}

impl End {
    fn new(own: SocketAddr, isn: u32, payload: Vec<u8>) -> Self {
        let (bytes, peer) = (BTreeMap::new(), None);
        Self { own, isn, payload, sent: 0, acknowledged: 0, peer, bytes, complete: 0 }
    }

    fn first(&self) -> u32 {
        self.isn.wrapping_add(1)
    }

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

    /// A segment with these bytes, which acknowledges what was received.
    fn segment(&mut self, from: u32, len: u32) -> Builder {
        let (peer, first) = self.peer.expect("the handshake is over");
        let mut options = Vec::new();
        let blocks: Vec<_> = self.unordered_ranges().into_iter().take(3).collect();
        if !blocks.is_empty() {
            options.extend([1, 1, 5, 2 + 8 * blocks.len() as u8]);
            for edge in blocks.iter().flat_map(|&(left, right)| [left, right]) {
                options.extend(first.wrapping_add(edge).to_be_bytes());
            }
        }
        self.sent = self.sent.max(from + len);
        let data = &self.payload[from as usize..(from + len) as usize];
        let flags = if len > 0 { PSH | ACK } else { ACK };
        let numbers = (self.first().wrapping_add(from), first.wrapping_add(self.complete));
        Builder::tcp(self.own, peer)
            .flags(flags)
            .seq_ack(numbers.0, numbers.1)
            .window(9000)
            .tcp_options(&options)
            .payload(data)
    }

    /// New or unacknowledged data. Until anything is acknowledged, only the first bytes.
    fn data(&mut self, dice: &mut Dice) -> Builder {
        let len = self.payload.len() as u32;
        let new = self.acknowledged > 0 && dice.below(2) == 0 && self.sent < len;
        let from = if new { self.sent } else { self.acknowledged };
        let count = (len - from).min(1 + dice.below(1000) as u32);
        self.segment(from, count)
    }

    fn receive(&mut self, s: &Segment) -> Option<Builder> {
        let (_, first) = self.peer.expect("the handshake is over");
        assert_ne!(s.flags & ACK, 0);
        let ack = s.ack.wrapping_sub(self.first());
        assert!(ack <= self.sent, "{ack} is acknowledged of {} bytes", self.sent);
        self.acknowledged = self.acknowledged.max(ack);
        for (left, right) in s.blocks() {
            let (left, right) = (left.wrapping_sub(self.first()), right.wrapping_sub(self.first()));
            assert!(left < right && right <= self.sent, "{left}..{right} of {} bytes", self.sent);
        }
        let offset = s.seq.wrapping_sub(first);
        for (at, byte) in (offset..).zip(&s.data) {
            let earlier = self.bytes.insert(at, *byte);
            assert!(earlier.is_none_or(|earlier| earlier == *byte), "byte {at} changed");
        }
        while self.bytes.contains_key(&self.complete) {
            self.complete += 1;
        }
        let from = if self.acknowledged > 0 { self.sent } else { 0 };
        (!s.data.is_empty()).then(|| self.segment(from, 0))
    }
}

struct World {
    lab: Lab,
    dice: Dice,
    vip: SocketAddr,
    client: End,
    server: End,
    to_gateway: Wire,
    to_server: Wire,
    from_server: Wire,
    to_client: Wire,
    header: Vec<u8>,
    /// The contents of the TOA option that segments have until the handshake has ended.
    option: Option<Vec<u8>>,
}

impl World {
    fn new(seed: u64, mode: ForwardingMode, version: Option<ProxyVersion>, v6: bool) -> Self {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (client, vip, backend) = if v6 {
            ("[2001:db8::7]:40000", "[2001:db8:1::5]:80", "[fd00::1]:8080")
        } else {
            ("192.0.2.202:12345", "10.0.42.7:7", "10.0.0.1:8080")
        };
        let spec = ServiceSpec { proxy_protocol: version, ..service(mode, Protocol::Tcp, vip, &[backend]) };
        let lab = Lab::with_spec(spec_with(vec![spec.into()], |network| {
            network.policy.syn_cookies = SynCookies::Always;
        }));
        // Some streams start just before their sequence numbers wrap around.
        let mut isn = || {
            if dice.below(2) == 0 { u32::MAX - dice.below(3000) as u32 } else { dice.below(1 << 31) as u32 }
        };
        let isns = [isn(), isn()];
        let mut payload = |factor| (0..dice.below(5000)).map(|n| (n * factor % 251) as u8).collect();
        let client = End::new(client.parse().unwrap(), isns[0], payload(7));
        let server = End::new(backend.parse().unwrap(), isns[1], payload(11));
        let header = version.map(|version| header_of(version, v6)).unwrap_or_default();
        let option = (version == Some(ProxyVersion::Toa)).then(|| option_of(v6));
        let [to_gateway, to_server, from_server, to_client] = [(); 4].map(|()| Wire::default());
        let vip = vip.parse().unwrap();
        Self { lab, dice, vip, client, server, to_gateway, to_server, from_server, to_client, header, option }
    }

    fn is_done(&self) -> bool {
        let (client, server) = (&self.client, &self.server);
        client.acknowledged as usize == client.payload.len()
            && server.acknowledged as usize == server.payload.len()
            && server.complete as usize == client.payload.len() + self.header.len()
            && client.complete as usize == server.payload.len()
    }

    fn run(mut self) {
        for step in 0.. {
            assert!(step < 400_000, "the connection makes progress");
            if self.is_done() {
                break;
            }
            self.step();
        }
        let read = |end: &End| end.bytes.values().copied().collect::<Vec<u8>>();
        assert_eq!(read(&self.server), [&self.header[..], &self.client.payload].concat());
        assert_eq!(read(&self.client), self.server.payload);
    }

    fn step(&mut self) {
        match self.dice.below(10) {
            0 => self.client_sends(),
            1 => self.server_sends(),
            2 | 3 => {
                if let Some(frame) = self.to_gateway.take(&mut self.dice) {
                    self.forward(&frame, true);
                }
            }
            4 | 5 => {
                if let Some(frame) = self.to_server.take(&mut self.dice) {
                    self.server_receives(&read(&frame));
                }
            }
            6 | 7 => {
                if let Some(frame) = self.from_server.take(&mut self.dice) {
                    self.forward(&frame, false);
                }
            }
            _ => {
                if let Some(frame) = self.to_client.take(&mut self.dice) {
                    self.client_receives(&read(&frame));
                }
            }
        }
    }

    fn forward(&mut self, frame: &[u8], from_client: bool) {
        let result = self.lab.receive(frame);
        let Verdict::Transmit { interface: 0, why } = result.verdict else { panic!("{:?}", result.verdict) };
        let to_client = match why {
            TransmitReason::Forward => false,
            TransmitReason::Reply => true,
            TransmitReason::SynCookie => from_client,
            other => panic!("{other}"),
        };
        let wire = if to_client { &mut self.to_client } else { &mut self.to_server };
        wire.put(&result.frame, &mut self.dice);
    }

    fn client_sends(&mut self) {
        let segment = match self.client.peer {
            None => Builder::tcp(self.client.own, self.vip)
                .flags(SYN)
                .seq_ack(self.client.isn, 0)
                .tcp_options(&[2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 7, 0, 0, 0, 0, 1, 3, 3, 7]),
            Some(_) => self.client.data(&mut self.dice),
        };
        self.to_gateway.put(&segment.mac(ROUTER_MAC, GATEWAY_MAC).build(), &mut self.dice);
    }

    fn client_receives(&mut self, s: &Segment) {
        assert_eq!((s.from, s.to), (self.vip, self.client.own));
        let answer = if s.flags & SYN != 0 {
            assert_eq!(s.ack, self.client.first());
            assert!(s.option(2).is_some() && s.option(4).is_some(), "segment size and SACK");
            assert!(s.option(3).is_none() && s.option(8).is_none(), "neither scale nor timestamps");
            let before = self.client.peer.replace((self.vip, s.seq.wrapping_add(1)));
            assert!(before.is_none_or(|(_, first)| first == s.seq.wrapping_add(1)), "one cookie");
            let from = if self.client.acknowledged > 0 { self.client.sent } else { 0 };
            Some(self.client.segment(from, 0))
        } else {
            self.client.receive(s)
        };
        if let Some(answer) = answer {
            self.to_gateway.put(&answer.mac(ROUTER_MAC, GATEWAY_MAC).build(), &mut self.dice);
        }
    }

    fn syn_ack(&self) -> Builder {
        let (peer, first) = self.server.peer.expect("a SYN was received");
        Builder::tcp(self.server.own, peer)
            .flags(SYN | ACK)
            .seq_ack(self.server.isn, first)
            .tcp_options(&[2, 4, 5, 180, 4, 2, 1, 1])
    }

    fn server_sends(&mut self) {
        // Its timers: the SYN ACK until it is acknowledged, then data.
        let segment = match self.server.peer {
            None => return,
            Some(_) if self.server.bytes.is_empty() && self.dice.below(4) != 0 => return,
            Some(_)
                if self.server.bytes.is_empty() && self.server.acknowledged == 0 && self.server.sent == 0 =>
            {
                self.syn_ack()
            }
            Some(_) => self.server.data(&mut self.dice),
        };
        self.from_server.put(&segment.mac(backend_mac(1), GATEWAY_MAC).build(), &mut self.dice);
    }

    fn server_receives(&mut self, s: &Segment) {
        let answer = if s.flags & SYN != 0 {
            assert_eq!(s.seq, self.client.isn);
            if self.server.peer.is_none() {
                assert!(s.option(2).is_some() && s.option(4).is_some(), "segment size and SACK");
                assert!(s.option(3).is_none() && s.option(8).is_none(), "neither scale nor timestamps");
                assert!(s.data.is_empty());
            }
            self.server.peer = Some((s.from, s.seq.wrapping_add(1)));
            Some(self.syn_ack())
        } else {
            if let Some(option) = self.option.as_ref().filter(|_| self.server.bytes.is_empty()) {
                assert_eq!(s.options.first(), Some(&(254, option.clone())));
            }
            let answer = self.server.receive(s);
            // The handshake is over: send data.
            let sends = answer.is_none() && self.server.acknowledged == 0 && !self.server.payload.is_empty();
            if sends { Some(self.server.data(&mut self.dice)) } else { answer }
        };
        if let Some(answer) = answer {
            self.from_server.put(&answer.mac(backend_mac(1), GATEWAY_MAC).build(), &mut self.dice);
        }
    }
}

#[test]
fn both_ends_read_what_the_other_wrote_after_a_cookie() {
    for seed in 1..=60 {
        for mode in [ForwardingMode::Nat, ForwardingMode::FullNat] {
            for version in [None, Some(ProxyVersion::V1), Some(ProxyVersion::V2)] {
                World::new(seed, mode, version, seed % 3 == 0).run();
            }
        }
        World::new(seed, ForwardingMode::FullNat, Some(ProxyVersion::Toa), seed % 3 == 0).run();
    }
}
