//! Builds frames from short expressions: `Builder::tcp("192.0.2.1:1024", "203.0.113.5:443").flags(SYN).build()`.
//!
//! Lengths and checksums are correct unless a test falsifies one (`ip_len`, `l4_checksum`, ...). It shares only the
//! checksum functions with `wire`, so a bug in the header writers is detected. For tests and benches; it panics on
//! invalid input.

use crate::checksum::{Sum, checksum};
use crate::{Addr, Family, MacAddr, proto, sctp};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The default source of built frames.
pub const CLIENT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x01]);
/// The default destination of built frames.
pub const GATEWAY_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x02]);

/// An address and port, from text or from std's types.
pub trait IntoSocket {
    /// The pair.
    fn into_socket(self) -> SocketAddr;
}

impl IntoSocket for SocketAddr {
    fn into_socket(self) -> SocketAddr {
        self
    }
}

impl IntoSocket for &str {
    fn into_socket(self) -> SocketAddr {
        self.parse().unwrap_or_else(|_| panic!("not an address with port: {self:?}"))
    }
}

impl<A: Into<IpAddr>> IntoSocket for (A, u16) {
    fn into_socket(self) -> SocketAddr {
        SocketAddr::new(self.0.into(), self.1)
    }
}

/// An address, from text or from std's types.
pub trait IntoAddress {
    /// The address.
    fn into_address(self) -> IpAddr;
}

impl IntoAddress for IpAddr {
    fn into_address(self) -> IpAddr {
        self
    }
}

impl IntoAddress for Ipv4Addr {
    fn into_address(self) -> IpAddr {
        self.into()
    }
}

impl IntoAddress for Ipv6Addr {
    fn into_address(self) -> IpAddr {
        self.into()
    }
}

impl IntoAddress for &str {
    fn into_address(self) -> IpAddr {
        self.parse().unwrap_or_else(|_| panic!("not an address: {self:?}"))
    }
}

#[derive(Clone, Debug)]
enum Transport {
    Tcp { ports: (u16, u16), seq: u32, ack: u32, flags: u8, window: u16, options: Vec<u8> },
    Udp { ports: (u16, u16) },
    Sctp { ports: (u16, u16), tag: u32 },
    Icmp { kind: u8, code: u8, rest: [u8; 4] },
    Raw { proto: u8 },
}

#[derive(Clone, Copy, Debug)]
struct FragmentField {
    id: u32,
    offset: u16,
    more: bool,
}

/// The fields that a test falsifies.
#[derive(Clone, Debug, Default)]
struct Falsified {
    version_ihl: Option<u8>,
    ip_len: Option<u16>,
    ip_checksum: Option<u16>,
    l4_checksum: Option<u16>,
    data_offset: Option<u8>,
    udp_len: Option<u16>,
    ether_type: Option<u16>,
}

/// The link layer around a packet.
#[derive(Clone, Debug)]
struct Link {
    dst: MacAddr,
    src: MacAddr,
    tags: Vec<u16>,
    /// Bytes after the packet.
    trailer: usize,
}

/// The fields of the IP header, and the headers between it and the transport.
#[derive(Clone, Debug)]
struct IpHeader {
    src: IpAddr,
    dst: IpAddr,
    ttl: u8,
    tos: u8,
    id: u16,
    dont_fragment: bool,
    fragment: Option<FragmentField>,
    flow_label: u32,
    options: Vec<u8>,
    extensions: Vec<(u8, Vec<u8>)>,
}

/// A frame being built.
#[derive(Clone, Debug)]
pub struct Builder {
    link: Link,
    ip: IpHeader,
    transport: Transport,
    payload: Vec<u8>,
    falsified: Falsified,
}

impl Builder {
    fn new(src: IpAddr, dst: IpAddr, transport: Transport) -> Builder {
        assert_eq!(src.is_ipv4(), dst.is_ipv4(), "a packet has one family");
        let link = Link { dst: GATEWAY_MAC, src: CLIENT_MAC, tags: Vec::new(), trailer: 0 };
        let ip = IpHeader {
            src,
            dst,
            ttl: 64,
            tos: 0,
            id: 0,
            dont_fragment: true,
            fragment: None,
            flow_label: 0,
            options: Vec::new(),
            extensions: Vec::new(),
        };
        Builder { link, ip, transport, payload: Vec::new(), falsified: Falsified::default() }
    }

    /// Creates a TCP segment with ACK and without data.
    pub fn tcp(src: impl IntoSocket, dst: impl IntoSocket) -> Builder {
        let (src, dst) = (src.into_socket(), dst.into_socket());
        let transport = Transport::Tcp {
            ports: (src.port(), dst.port()),
            seq: 1,
            ack: 0,
            flags: crate::tcp::flags::ACK,
            window: 65_535,
            options: Vec::new(),
        };
        Builder::new(src.ip(), dst.ip(), transport)
    }

    /// Creates a UDP datagram without data.
    pub fn udp(src: impl IntoSocket, dst: impl IntoSocket) -> Builder {
        let (src, dst) = (src.into_socket(), dst.into_socket());
        Builder::new(src.ip(), dst.ip(), Transport::Udp { ports: (src.port(), dst.port()) })
    }

    /// Creates an SCTP packet without chunks. Chunks are payload.
    pub fn sctp(src: impl IntoSocket, dst: impl IntoSocket) -> Builder {
        let (src, dst) = (src.into_socket(), dst.into_socket());
        Builder::new(src.ip(), dst.ip(), Transport::Sctp { ports: (src.port(), dst.port()), tag: 1 })
    }

    /// Creates the INIT of an association whose packets to `src` have the tag `initiate`.
    pub fn sctp_init(src: impl IntoSocket, dst: impl IntoSocket, initiate: u32) -> Builder {
        let fields = [&initiate.to_be_bytes()[..], &[0, 0, 0x20, 0, 0, 1, 0, 1, 0, 0, 0, 1]].concat();
        Builder::sctp(src, dst).tag(0).chunk(sctp::chunk::INIT, 0, &fields)
    }

    /// Creates an ICMP message, or an ICMPv6 message for IPv6 addresses. `rest` is the second word of the header.
    pub fn icmp(src: impl IntoAddress, dst: impl IntoAddress, kind: u8, code: u8, rest: [u8; 4]) -> Builder {
        Builder::new(src.into_address(), dst.into_address(), Transport::Icmp { kind, code, rest })
    }

    /// Creates an echo request in the family of the addresses.
    pub fn echo_request(src: impl IntoAddress, dst: impl IntoAddress, id: u16, seq: u16) -> Builder {
        let (src, dst) = (src.into_address(), dst.into_address());
        let kind = if src.is_ipv4() { 8 } else { 128 };
        let ([a, b], [c, d]) = (id.to_be_bytes(), seq.to_be_bytes());
        Builder::icmp(src, dst, kind, 0, [a, b, c, d])
    }

    /// Creates a packet of another protocol. Everything after the IP headers is payload.
    pub fn ip(src: impl IntoAddress, dst: impl IntoAddress, proto: u8) -> Builder {
        Builder::new(src.into_address(), dst.into_address(), Transport::Raw { proto })
    }

    /// Sets the Ethernet addresses.
    pub fn mac(mut self, src: MacAddr, dst: MacAddr) -> Builder {
        (self.link.src, self.link.dst) = (src, dst);
        self
    }

    /// Adds an 802.1Q tag with this control information (priority and VLAN).
    pub fn vlan(mut self, tci: u16) -> Builder {
        self.link.tags.push(tci);
        self
    }

    /// Sets the TTL or hop limit. The default is 64.
    pub fn ttl(mut self, ttl: u8) -> Builder {
        self.ip.ttl = ttl;
        self
    }

    /// Sets the TOS or traffic class.
    pub fn tos(mut self, tos: u8) -> Builder {
        self.ip.tos = tos;
        self
    }

    /// Sets the IPv4 identification.
    pub fn id(mut self, id: u16) -> Builder {
        self.ip.id = id;
        self
    }

    /// Sets or clears the IPv4 DF flag. It is set by default.
    pub fn dont_fragment(mut self, df: bool) -> Builder {
        self.ip.dont_fragment = df;
        self
    }

    /// Sets the IPv6 flow label.
    pub fn flow_label(mut self, label: u32) -> Builder {
        self.ip.flow_label = label;
        self
    }

    /// Sets the IPv4 options, padded to whole words with end-of-options.
    pub fn ip_options(mut self, options: &[u8]) -> Builder {
        self.ip.options = options.to_vec();
        self.ip.options.resize(options.len().next_multiple_of(4), 0);
        self
    }

    /// Adds an IPv6 extension header. The first two bytes are generated; `body` follows them and is padded to the unit
    /// of the kind.
    pub fn extension(mut self, kind: u8, body: &[u8]) -> Builder {
        let unit = if kind == proto::AH { 4 } else { 8 };
        let mut body = body.to_vec();
        body.resize((body.len() + 2).next_multiple_of(unit).max(8) - 2, 0);
        self.ip.extensions.push((kind, body));
        self
    }

    /// Makes this one fragment. The payload is all of its data, and the transport header precedes it only at offset 0.
    /// [`fragments`] splits a whole packet.
    pub fn fragment(mut self, id: u32, offset: u16, more: bool) -> Builder {
        self.ip.fragment = Some(FragmentField { id, offset, more });
        self.ip.dont_fragment = false;
        self
    }

    /// Sets the TCP flags.
    pub fn flags(mut self, new: u8) -> Builder {
        let Transport::Tcp { flags, .. } = &mut self.transport else { panic!("flags are TCP's") };
        *flags = new;
        self
    }

    /// Sets the TCP sequence and acknowledgment numbers.
    pub fn seq_ack(mut self, new_seq: u32, new_ack: u32) -> Builder {
        let Transport::Tcp { seq, ack, .. } = &mut self.transport else {
            panic!("sequence numbers are TCP's")
        };
        (*seq, *ack) = (new_seq, new_ack);
        self
    }

    /// Sets the TCP window. The default is 65,535.
    pub fn window(mut self, new: u16) -> Builder {
        let Transport::Tcp { window, .. } = &mut self.transport else { panic!("the window is TCP's") };
        *window = new;
        self
    }

    /// Sets the TCP options, padded to whole words with end-of-options.
    pub fn tcp_options(mut self, new: &[u8]) -> Builder {
        let Transport::Tcp { options, .. } = &mut self.transport else { panic!("TCP options are TCP's") };
        *options = new.to_vec();
        options.resize(new.len().next_multiple_of(4), 0);
        self
    }

    /// Sets the data after the transport header.
    pub fn payload(mut self, bytes: &[u8]) -> Builder {
        self.payload = bytes.to_vec();
        self
    }

    /// Sets the verification tag of SCTP.
    pub fn tag(mut self, value: u32) -> Builder {
        if let Transport::Sctp { tag, .. } = &mut self.transport {
            *tag = value;
        }
        self
    }

    /// Adds a chunk of SCTP with its padding to the payload.
    pub fn chunk(mut self, kind: u8, flags: u8, value: &[u8]) -> Builder {
        self.payload.extend([kind, flags]);
        self.payload.extend(((4 + value.len()) as u16).to_be_bytes());
        self.payload.extend(value);
        self.payload.resize(self.payload.len().next_multiple_of(4), 0);
        self
    }

    /// Sets a payload with this many bytes of a counting pattern.
    pub fn payload_len(mut self, len: usize) -> Builder {
        self.payload = (0..len).map(|i| (i % 251) as u8).collect();
        self
    }

    /// Adds this many bytes of Ethernet padding after the packet.
    pub fn trailer(mut self, len: usize) -> Builder {
        self.link.trailer = len;
        self
    }

    /// Falsifies the ethertype.
    pub fn ether_type(mut self, value: u16) -> Builder {
        self.falsified.ether_type = Some(value);
        self
    }

    /// Falsifies the first byte of the IP header.
    pub fn version_ihl(mut self, value: u8) -> Builder {
        self.falsified.version_ihl = Some(value);
        self
    }

    /// Falsifies the IPv4 total length or the IPv6 payload length.
    pub fn ip_len(mut self, value: u16) -> Builder {
        self.falsified.ip_len = Some(value);
        self
    }

    /// Falsifies the IPv4 header checksum.
    pub fn ip_checksum(mut self, value: u16) -> Builder {
        self.falsified.ip_checksum = Some(value);
        self
    }

    /// Falsifies the transport checksum. With 0, UDP has no checksum.
    pub fn l4_checksum(mut self, value: u16) -> Builder {
        self.falsified.l4_checksum = Some(value);
        self
    }

    /// Falsifies the TCP data offset, in words.
    pub fn data_offset(mut self, words: u8) -> Builder {
        self.falsified.data_offset = Some(words);
        self
    }

    /// Falsifies the UDP length.
    pub fn udp_len(mut self, value: u16) -> Builder {
        self.falsified.udp_len = Some(value);
        self
    }

    /// Builds the frame.
    pub fn build(&self) -> Vec<u8> {
        let mut frame = Vec::new();
        frame.extend(self.link.dst.0);
        frame.extend(self.link.src.0);
        for tag in &self.link.tags {
            frame.extend(0x8100u16.to_be_bytes());
            frame.extend(tag.to_be_bytes());
        }
        let ether_type = if self.ip.src.is_ipv4() { 0x0800u16 } else { 0x86dd };
        frame.extend(self.falsified.ether_type.unwrap_or(ether_type).to_be_bytes());
        frame.extend(self.packet());
        frame.resize(frame.len() + self.link.trailer, 0);
        frame
    }

    /// Builds only the IP packet.
    pub fn packet(&self) -> Vec<u8> {
        let later = self.ip.fragment.is_some_and(|f| f.offset != 0);
        let body = if later { self.payload.clone() } else { self.transport_bytes() };
        match (self.ip.src, self.ip.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => self.ipv4(src.octets(), dst.octets(), &body),
            (IpAddr::V6(src), IpAddr::V6(dst)) => self.ipv6(src.octets(), dst.octets(), &body),
            _ => unreachable!("the constructor saw one family"),
        }
    }

    fn ipv4(&self, src: [u8; 4], dst: [u8; 4], body: &[u8]) -> Vec<u8> {
        let header_len = 20 + self.ip.options.len();
        assert!(header_len <= 60, "IPv4 allows 40 bytes of options");
        let total = u16::try_from(header_len + body.len()).expect("the packet is at most 65,535 bytes long");
        let mut p = vec![self.falsified.version_ihl.unwrap_or(0x40 | (header_len / 4) as u8), self.ip.tos];
        p.extend(self.falsified.ip_len.unwrap_or(total).to_be_bytes());
        let fragment =
            self.ip.fragment.unwrap_or(FragmentField { id: self.ip.id.into(), offset: 0, more: false });
        p.extend((fragment.id as u16).to_be_bytes());
        let flags = u16::from(self.ip.dont_fragment) << 14 | u16::from(fragment.more) << 13;
        p.extend((flags | (fragment.offset / 8)).to_be_bytes());
        p.extend([self.ip.ttl, self.proto(), 0, 0]);
        p.extend(src);
        p.extend(dst);
        p.extend(&self.ip.options);
        let sum = self.falsified.ip_checksum.unwrap_or_else(|| checksum(&p));
        p[10..12].copy_from_slice(&sum.to_be_bytes());
        p.extend(body);
        p
    }

    fn ipv6(&self, src: [u8; 16], dst: [u8; 16], body: &[u8]) -> Vec<u8> {
        let mut chain = self.ip.extensions.clone();
        if let Some(f) = self.ip.fragment {
            let mut bytes = (f.offset & 0xfff8 | u16::from(f.more)).to_be_bytes().to_vec();
            bytes.extend(f.id.to_be_bytes());
            chain.push((proto::FRAGMENT, bytes));
        }
        let mut extensions = Vec::new();
        for (i, (kind, bytes)) in chain.iter().enumerate() {
            let next = chain.get(i + 1).map_or(self.proto(), |(kind, _)| *kind);
            let len = match *kind {
                proto::FRAGMENT => 0,
                proto::AH => (bytes.len() + 2) / 4 - 2,
                _ => (bytes.len() + 2) / 8 - 1,
            };
            extensions.extend([next, u8::try_from(len).expect("an extension header fits its length field")]);
            extensions.extend(bytes);
        }
        let len =
            u16::try_from(extensions.len() + body.len()).expect("the payload is at most 65,535 bytes long");
        let mut first = (6 << 28 | u32::from(self.ip.tos) << 20 | self.ip.flow_label).to_be_bytes();
        first[0] = self.falsified.version_ihl.unwrap_or(first[0]);
        let mut p = first.to_vec();
        p.extend(self.falsified.ip_len.unwrap_or(len).to_be_bytes());
        p.extend([chain.first().map_or(self.proto(), |(kind, _)| *kind), self.ip.ttl]);
        p.extend(src);
        p.extend(dst);
        p.extend(extensions);
        p.extend(body);
        p
    }

    fn proto(&self) -> u8 {
        match self.transport {
            Transport::Tcp { .. } => proto::TCP,
            Transport::Udp { .. } => proto::UDP,
            Transport::Sctp { .. } => proto::SCTP,
            Transport::Icmp { .. } if self.ip.src.is_ipv4() => proto::ICMP,
            Transport::Icmp { .. } => proto::ICMPV6,
            Transport::Raw { proto } => proto,
        }
    }

    /// The transport header and the payload, including the checksum.
    fn transport_bytes(&self) -> Vec<u8> {
        let mut b = Vec::new();
        let check_at = match &self.transport {
            Transport::Tcp { ports, seq, ack, flags, window, options } => {
                b.extend(ports.0.to_be_bytes());
                b.extend(ports.1.to_be_bytes());
                b.extend(seq.to_be_bytes());
                b.extend(ack.to_be_bytes());
                let words = self.falsified.data_offset.unwrap_or((5 + options.len() / 4) as u8);
                b.extend([words << 4, *flags]);
                b.extend(window.to_be_bytes());
                b.extend([0; 4]);
                b.extend(options);
                16
            }
            Transport::Udp { ports } => {
                b.extend(ports.0.to_be_bytes());
                b.extend(ports.1.to_be_bytes());
                let len = (8 + self.payload.len()) as u16;
                b.extend(self.falsified.udp_len.unwrap_or(len).to_be_bytes());
                b.extend([0; 2]);
                6
            }
            Transport::Sctp { ports, tag } => {
                b.extend(ports.0.to_be_bytes());
                b.extend(ports.1.to_be_bytes());
                b.extend(tag.to_be_bytes());
                b.extend([0; 4]);
                8
            }
            Transport::Icmp { kind, code, rest } => {
                b.extend([*kind, *code, 0, 0]);
                b.extend(rest);
                2
            }
            Transport::Raw { .. } => return self.payload.clone(),
        };
        b.extend(&self.payload);
        if let Some(sum) = self.falsified.l4_checksum {
            b[check_at..check_at + 2].copy_from_slice(&sum.to_be_bytes());
        } else if matches!(self.transport, Transport::Sctp { .. }) {
            let crc = sctp::crc32c(&b);
            b[8..12].copy_from_slice(&crc);
        } else {
            let sum = self.pseudo_header(b.len()).bytes(&b);
            let sum =
                if matches!(self.transport, Transport::Udp { .. }) { sum.finish_udp() } else { sum.finish() };
            b[check_at..check_at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        b
    }

    fn pseudo_header(&self, len: usize) -> Sum {
        let family = if self.ip.src.is_ipv4() { Family::V4 } else { Family::V6 };
        if family == Family::V4 && matches!(self.transport, Transport::Icmp { .. }) {
            return Sum::new();
        }
        Sum::pseudo_header(
            family,
            &Addr::from(self.ip.src),
            &Addr::from(self.ip.dst),
            self.proto(),
            len as u32,
        )
    }
}

/// Splits a built, unfragmented and untagged frame without extension headers into fragments with `step` bytes each.
/// `step` is a multiple of 8.
pub fn fragments(frame: &[u8], id: u32, step: usize) -> Vec<Vec<u8>> {
    assert!(step > 0 && step.is_multiple_of(8), "fragments are multiples of 8 bytes long");
    let v4 = frame[12..14] == [0x08, 0x00];
    let header_end = 14 + if v4 { usize::from(frame[14] & 0xf) * 4 } else { 40 };
    let (header, body) = frame.split_at(header_end);
    let count = body.len().div_ceil(step);
    let cut = |(i, part): (usize, &[u8])| {
        let (offset, more) = ((i * step) as u16, i + 1 < count);
        let mut f = header.to_vec();
        if v4 {
            let total = (header_end - 14 + part.len()) as u16;
            f[16..18].copy_from_slice(&total.to_be_bytes());
            f[18..20].copy_from_slice(&(id as u16).to_be_bytes());
            f[20..22].copy_from_slice(&((u16::from(more) << 13) | (offset / 8)).to_be_bytes());
            f[24..26].fill(0);
            let sum = checksum(&f[14..]);
            f[24..26].copy_from_slice(&sum.to_be_bytes());
        } else {
            f[18..20].copy_from_slice(&((part.len() + 8) as u16).to_be_bytes());
            let next = std::mem::replace(&mut f[20], proto::FRAGMENT);
            f.extend([next, 0]);
            f.extend((offset | u16::from(more)).to_be_bytes());
            f.extend(id.to_be_bytes());
        }
        f.extend(part);
        f
    };
    body.chunks(step).enumerate().map(cut).collect()
}
