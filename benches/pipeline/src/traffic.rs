//! Frames of flows: chooses the next packet and writes its bytes to reused memory.
//!
//! A flow is a number. Its addresses and ports are computed from the number, so a million flows need no list. [`Wire`]
//! writes the frame of a 5-tuple over a template, including checksums. The lab calls it between the timed parts.
//!
//! Invariant: the same seed gives the same packets in the same order, on every machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tidegate_pipeline::frame::{Frame, MemoryFrame};
use tidegate_pipeline::testing::{Builder, builder::GATEWAY_MAC};
use tidegate_wire::checksum::{Sum, checksum};
use tidegate_wire::{Addr, Family, MacAddr, proto, tcp::flags};

/// The router that all packets come from and that is the next hop of all replies.
pub const ROUTER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xfe]);

/// The shortest Ethernet frame without its check sequence. IPv6 with TCP is longer because of its headers.
const FRAME_LEN: usize = 60;

/// A pseudo-random sequence: xorshift64* (Vigna 2016), random enough to defeat caches and prefetchers.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Creates a sequence from a seed. Seed 0 gives the same sequence as seed 1.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.max(1))
    }

    /// The next number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        ((u128::from(bits) * end as u128) >> 64) as usize
    }
}

/// The source and destination of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple {
    /// Sender.
    pub src: SocketAddr,
    /// Receiver.
    pub dst: SocketAddr,
    /// TCP rather than UDP.
    pub tcp: bool,
}

/// The VIP and port of a service.
#[must_use]
pub fn vip(service: usize, v6: bool, tcp: bool) -> SocketAddr {
    let port = if tcp { 80 } else { 53 };
    // Addresses start in 203.0.112.0/20. Each service has one VIP.
    let n = service as u32 + 1;
    SocketAddr::new(address(v6, u32::from(Ipv4Addr::new(203, 0, 112, 0)), 0xb1b, n), port)
}

/// The address of backend `n` of all backends. It is on the gateway's own link.
#[must_use]
pub fn backend(n: usize, v6: bool) -> IpAddr {
    address(v6, u32::from(Ipv4Addr::new(10, 1, 0, 0)), 0xbac, n as u32 + 1)
}

/// The client of a flow. Each of the first four million flows has its own address; later flows use the next port.
#[must_use]
pub fn client(flow: usize, v6: bool) -> SocketAddr {
    let addr = address(v6, u32::from(Ipv4Addr::new(100, 64, 0, 0)), 0xc11, flow as u32 & 0x003f_ffff);
    // 65,000 ports of four million clients are enough for every run.
    SocketAddr::new(addr, 1024 + (flow >> 22) as u16)
}

fn address(v6: bool, base: u32, net: u128, n: u32) -> IpAddr {
    if v6 {
        Ipv6Addr::from(0x2001_0db8_u128 << 96 | net << 64 | u128::from(n)).into()
    } else {
        Ipv4Addr::from(base + n).into()
    }
}

/// Writes frames.
#[derive(Debug)]
pub struct Wire {
    tcp: Vec<u8>,
    udp: Vec<u8>,
    v6: bool,
}

impl Wire {
    /// Creates templates of 60-byte frames (74 bytes for TCP over IPv6, the minimum).
    #[must_use]
    pub fn new(v6: bool) -> Self {
        let template = |builder: Builder| {
            let bare = builder.build().len();
            builder.payload_len(FRAME_LEN.saturating_sub(bare)).mac(ROUTER_MAC, GATEWAY_MAC).build()
        };
        let any = SocketAddr::new(address(v6, 1, 1, 1), 1);
        Self { tcp: template(Builder::tcp(any, any)), udp: template(Builder::udp(any, any)), v6 }
    }

    /// The length of a frame in bytes.
    #[must_use]
    pub fn len(&self, tcp: bool) -> usize {
        if tcp { self.tcp.len() } else { self.udp.len() }
    }

    /// Writes a packet of the tuple to `frame`. The flags are for TCP.
    pub fn write(&self, frame: &mut MemoryFrame, tuple: &Tuple, tcp_flags: u8) {
        frame.refill(if tuple.tcp { &self.tcp } else { &self.udp });
        let bytes = frame.bytes_mut();
        let ip = &mut bytes[14..];
        let l4 = match (tuple.src.ip(), tuple.dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..20].copy_from_slice(&dst.octets());
                ip[10..12].fill(0);
                let sum = checksum(&ip[..20]);
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
                20
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                ip[8..24].copy_from_slice(&src.octets());
                ip[24..40].copy_from_slice(&dst.octets());
                40
            }
            _ => panic!("both ends of a flow are of one family"),
        };
        let payload = &mut ip[l4..];
        payload[..2].copy_from_slice(&tuple.src.port().to_be_bytes());
        payload[2..4].copy_from_slice(&tuple.dst.port().to_be_bytes());
        let (number, at) = if tuple.tcp {
            payload[13] = tcp_flags;
            (proto::TCP, 16)
        } else {
            (proto::UDP, 6)
        };
        payload[at..at + 2].fill(0);
        let family = if self.v6 { Family::V6 } else { Family::V4 };
        let (src, dst) = (Addr::from(tuple.src.ip()), Addr::from(tuple.dst.ip()));
        let pseudo = Sum::pseudo_header(family, &src, &dst, number, payload.len() as u32);
        let sum = pseudo.bytes(payload).finish();
        payload[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The flags of a packet of an established connection.
pub const DATA: u8 = flags::ACK;
/// The flags of the first packet.
pub const FIRST: u8 = flags::SYN;

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_wire::{Parsed, parse};

    #[test]
    fn frames_match_the_packet_builder() {
        for (v6, tcp) in [(false, true), (false, false), (true, true), (true, false)] {
            let tuple = Tuple { src: client(4_300_000, v6), dst: vip(7, v6, tcp), tcp };
            let wire = Wire::new(v6);
            let mut frame = MemoryFrame::with_capacity(256);
            wire.write(&mut frame, &tuple, DATA);
            let Ok(Parsed::Ip(h)) = parse(frame.bytes()) else { panic!("a frame that is no packet") };
            assert_eq!((h.src_port, h.dst_port), (tuple.src.port(), tuple.dst.port()));
            let bare = if tcp {
                Builder::tcp(tuple.src, tuple.dst).flags(DATA)
            } else {
                Builder::udp(tuple.src, tuple.dst)
            };
            let padding = FRAME_LEN.saturating_sub(bare.build().len());
            let built = bare.payload_len(padding).mac(ROUTER_MAC, GATEWAY_MAC).build();
            assert_eq!(frame.bytes(), built);
        }
    }

    #[test]
    fn every_flow_has_its_own_tuple() {
        let mut seen: Vec<_> = [0, 1, 4_194_303, 4_194_304, 8_388_609].map(|flow| client(flow, false)).into();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 5);
    }
}
