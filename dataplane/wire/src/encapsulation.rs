//! `Encapsulation`: the headers between the outer IP header of a tunnel and the packet in it.
//!
//! | | headers | source |
//! |---|---|---|
//! | IP-in-IP | none | RFC 2003, RFC 2473, RFC 4213 |
//! | GUE variant 1 | UDP | draft-ietf-intarea-gue-09 section 4 |
//! | GUE variant 0 | UDP, 4 bytes of GUE | draft-ietf-intarea-gue-09 section 3 |
//! | GRE | 4 bytes, 8 with a key | RFC 2784, RFC 2890 |
//! | Geneve | UDP, 8 bytes of Geneve, an option of 12 bytes | RFC 8926 |
//!
//! The UDP source port depends on the flow and is in the ephemeral range (draft-ietf-intarea-gue-09 section 5.6.1, RFC
//! 6335).
//!
//! UDP over IPv4 has no checksum (RFC 768). UDP over IPv6 has a checksum: otherwise the receiver would have to be
//! configured to accept packets without one (RFC 6935), and a wrong outer address would go undetected (RFC 6936). The
//! sum of a TCP, UDP or ICMP packet with a correct checksum follows from its pseudo header, so the payload is not read.
//! If the packet's own checksum is wrong, the outer checksum is wrong too, and the receiver drops the packet at the
//! outer header instead of the inner one.
//!
//! The encapsulation and the destination are chosen elsewhere.

use super::addr::Addr;
use super::checksum::Sum;
use super::ethernet::ether_type;
use super::headers::{Family, Headers, L4Checksum, proto};
use super::udp::{self, UdpHeader};

/// The UDP port of GUE (IANA).
pub const GUE_PORT: u16 = 6080;

/// The UDP port of Geneve (RFC 8926 section 3.3).
pub const GENEVE_PORT: u16 = 6081;

/// Bytes of the longest headers.
pub const HEADER_LEN_MAX: usize = udp::HEADER_LEN + GENEVE_LEN;

/// The first of the 2^14 source ports of tunnels over UDP (RFC 6335 section 6).
const SOURCE_PORT_MIN: u16 = 0xc000;

/// Bytes of the Geneve header and its option.
const GENEVE_LEN: usize = 8 + 12;

/// Geneve: version 0, 12 bytes of options, no control packet, no critical option (RFC 8926 section 3.4).
const GENEVE_FIRST: [u8; 2] = [12 / 4, 0];

/// The header of the option that identifies the Service (RFC 8926 section 3.5): a class of the experimental range, a
/// type that is not critical, and 8 bytes of data.
const GENEVE_OPTION: [u8; 4] = [0xff, 0x54, 0x01, 8 / 4];

/// GRE: a key follows (RFC 2890 section 2).
const KEY_PRESENT: u16 = 0x2000;

/// The two formats of GUE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum GueVariant {
    /// A GUE header of 4 bytes without options, which names the protocol of the packet that follows.
    Header,
    /// The packet directly after the UDP header. Its first bits distinguish it from a GUE header.
    #[default]
    Direct,
}

impl GueVariant {
    /// The number of the variant: 0 or 1.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Header => 0,
            Self::Direct => 1,
        }
    }
}

/// The headers between the outer IP header and the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Encapsulation {
    /// IP-in-IP: none.
    Ip,
    /// Generic UDP encapsulation.
    Gue {
        /// The format.
        variant: GueVariant,
        /// The UDP destination port.
        port: u16,
    },
    /// Generic routing encapsulation.
    Gre {
        /// The key, if any.
        key: Option<u32>,
    },
    /// Generic network virtualization encapsulation, directly followed by the IP packet, with an option that identifies
    /// the Service.
    Geneve {
        /// The UDP destination port.
        port: u16,
        /// The virtual network identifier.
        vni: Vni,
        /// The data of the option.
        service: ServiceIdentity,
    },
}

/// A virtual network identifier of Geneve: 24 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Vni([u8; 3]);

impl Vni {
    /// The identifier with this number; `None` above 2^24 - 1.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        match number.to_be_bytes() {
            [0, a, b, c] => Some(Self([a, b, c])),
            _ => None,
        }
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u32 {
        let [a, b, c] = self.0;
        u32::from_be_bytes([0, a, b, c])
    }
}

/// The identity of a Service in the option of Geneve: the 64-bit FNV-1a hash of `NAMESPACE/NAME`.
///
/// It depends only on the name, so every gateway and every backend computes the same identity, even after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ServiceIdentity([u8; 8]);

impl ServiceIdentity {
    /// The identity of a Service.
    #[must_use]
    pub fn of(namespace: &str, name: &str) -> Self {
        let bytes = namespace.bytes().chain([b'/']).chain(name.bytes());
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self(hash.to_be_bytes())
    }

    /// The identity with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }
}

impl std::fmt::Display for ServiceIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

/// The outer addresses and the flow hash, on which the headers depend.
#[derive(Debug, Clone, Copy)]
pub struct Ends<'a> {
    /// The outer source.
    pub source: &'a Addr,
    /// The outer destination.
    pub destination: &'a Addr,
    /// A hash of the flow; the low 14 bits select the UDP source port.
    pub flow_hash: u32,
}

impl Encapsulation {
    /// Bytes of the headers.
    #[inline(always)]
    #[must_use]
    pub const fn header_len(self) -> usize {
        match self {
            Self::Ip => 0,
            Self::Gue { variant: GueVariant::Direct, .. } => udp::HEADER_LEN,
            Self::Gue { variant: GueVariant::Header, .. } => udp::HEADER_LEN + 4,
            Self::Gre { key: None } => 4,
            Self::Gre { key: Some(_) } => 8,
            Self::Geneve { .. } => udp::HEADER_LEN + GENEVE_LEN,
        }
    }

    /// The protocol number in the outer IP header, for a packet of this family.
    #[inline(always)]
    #[must_use]
    pub const fn protocol(self, inner: Family) -> u8 {
        match (self, inner) {
            (Self::Ip, family) => ip_protocol(family),
            (Self::Gue { .. } | Self::Geneve { .. }, _) => proto::UDP,
            (Self::Gre { .. }, _) => proto::GRE,
        }
    }

    /// The UDP destination port, if it has one.
    #[inline(always)]
    #[must_use]
    pub const fn port(self) -> Option<u16> {
        match self {
            Self::Gue { port, .. } | Self::Geneve { port, .. } => Some(port),
            Self::Ip | Self::Gre { .. } => None,
        }
    }

    /// Writes the headers. `out` has [`Self::header_len`] bytes, and `inner` starts with the packet of `h` as it is
    /// sent.
    ///
    /// # Panics
    /// If `out` is shorter, or if `inner` is shorter than the packet.
    #[inline(always)]
    pub fn write(self, out: &mut [u8], inner: &[u8], h: &Headers, ends: &Ends<'_>) {
        match self {
            Self::Ip => {}
            Self::Gue { variant, port } => write_gue(out, variant, port, inner, h, ends),
            Self::Gre { key } => write_gre(out, key, h.family),
            Self::Geneve { port, vni, service } => write_geneve(out, port, vni, service, inner, h, ends),
        }
    }
}

/// The UDP source port of a flow.
#[inline]
#[must_use]
pub const fn source_port(flow_hash: u32) -> u16 {
    SOURCE_PORT_MIN | flow_hash as u16
}

const fn ip_protocol(family: Family) -> u8 {
    match family {
        Family::V4 => proto::IPIP,
        Family::V6 => proto::IPV6,
    }
}

const fn ether_type_of(family: Family) -> u16 {
    match family {
        Family::V4 => ether_type::IPV4,
        Family::V6 => ether_type::IPV6,
    }
}

fn write_gre(out: &mut [u8], key: Option<u32>, inner: Family) {
    let flags = if key.is_some() { KEY_PRESENT } else { 0 };
    out[..2].copy_from_slice(&flags.to_be_bytes());
    out[2..4].copy_from_slice(&ether_type_of(inner).to_be_bytes());
    if let Some(key) = key {
        out[4..8].copy_from_slice(&key.to_be_bytes());
    }
}

fn write_gue(out: &mut [u8], variant: GueVariant, port: u16, inner: &[u8], h: &Headers, ends: &Ends<'_>) {
    if variant == GueVariant::Header {
        // Variant 0, no control message, no options; the protocol; no flags.
        out[udp::HEADER_LEN..udp::HEADER_LEN + 4].copy_from_slice(&[0, ip_protocol(h.family), 0, 0]);
    }
    write_udp(out, port, inner, h, ends);
}

/// Geneve with one option, and the IP packet without an Ethernet header (RFC 8926 section 3.4).
fn write_geneve(
    out: &mut [u8],
    port: u16,
    vni: Vni,
    service: ServiceIdentity,
    inner: &[u8],
    h: &Headers,
    ends: &Ends<'_>,
) {
    let header = &mut out[udp::HEADER_LEN..udp::HEADER_LEN + GENEVE_LEN];
    header[..2].copy_from_slice(&GENEVE_FIRST);
    header[2..4].copy_from_slice(&ether_type_of(h.family).to_be_bytes());
    header[4..7].copy_from_slice(&vni.0);
    header[7] = 0;
    header[8..12].copy_from_slice(&GENEVE_OPTION);
    header[12..].copy_from_slice(&service.0);
    write_udp(out, port, inner, h, ends);
}

/// Writes the UDP header before the rest of `out` and the packet.
fn write_udp(out: &mut [u8], port: u16, inner: &[u8], h: &Headers, ends: &Ends<'_>) {
    // A packet that exceeds 65,535 bytes with its outer headers is fragmented, and each fragment gets its own length.
    let len = (out.len() as u16).wrapping_add(h.ip_len());
    let header = UdpHeader { src_port: source_port(ends.flow_hash), dst_port: port, len };
    out[..udp::HEADER_LEN].copy_from_slice(&header.bytes());
    if !ends.destination.is_v4() {
        let pseudo =
            Sum::pseudo_header(Family::V6, ends.source, ends.destination, proto::UDP, u32::from(len));
        let sum = pseudo.bytes(out).u16(sum_of(inner, h)).finish_udp();
        out[6..8].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The folded sum of a packet. If it has a correct checksum over its whole payload, only its headers are read: the sum
/// of the payload is the complement of the pseudo header's sum.
fn sum_of(packet: &[u8], h: &Headers) -> u16 {
    let (l4, len) = (usize::from(h.l4 - u16::from(h.l3)), usize::from(h.ip_len()));
    let l4_len = (len - l4) as u32;
    let pseudo = || Sum::pseudo_header(h.family, &h.src, &h.dst, h.proto, l4_len).folded();
    let headers = || Sum::new().bytes(&packet[..l4]);
    match h.l4_checksum {
        _ if h.is_fragment() => {}
        L4Checksum::Tcp | L4Checksum::Icmpv6 => return headers().u16(!pseudo()).folded(),
        // UDP options may follow the datagram; its checksum does not cover them.
        L4Checksum::Udp if usize::from(u16::from_be_bytes([packet[l4 + 4], packet[l4 + 5]])) == len - l4 => {
            return headers().u16(!pseudo()).folded();
        }
        L4Checksum::Icmp => return headers().folded(),
        L4Checksum::Udp | L4Checksum::UdpZero | L4Checksum::Sctp | L4Checksum::None => {}
    }
    Sum::new().bytes(&packet[..len]).folded()
}

/// The part of the headers after an outer IP header that a quote includes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// Bytes of the headers. The packet follows.
    pub len: usize,
    /// The encapsulation; `None` if the quote ends before the headers do.
    pub encapsulation: Option<Encapsulation>,
    /// The family of the packet; `None` if the quote ends before it is known.
    pub family: Option<Family>,
    /// The UDP destination port.
    pub port: Option<u16>,
}

/// Reads the headers that follow an outer IP header with this protocol number, as [`Encapsulation::write`] writes them.
/// `bytes` may be truncated; `len` is the length of all bytes that followed the outer header. `None` if the gateway
/// writes no such headers.
#[must_use]
pub fn read(protocol: u8, bytes: &[u8], len: u16) -> Option<Read> {
    let ip =
        |family| Read { len: 0, encapsulation: Some(Encapsulation::Ip), family: Some(family), port: None };
    match protocol {
        proto::IPIP => Some(ip(Family::V4)),
        proto::IPV6 => Some(ip(Family::V6)),
        proto::GRE => read_gre(bytes),
        proto::UDP => read_udp(bytes, len),
        _ => None,
    }
}

fn read_gre(bytes: &[u8]) -> Option<Read> {
    let word = |at: usize| Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
    let family = family_of(word(2)?)?;
    let key = match word(0)? {
        0 => None,
        KEY_PRESENT => Some(u32::from_be_bytes(*bytes.get(4..)?.first_chunk()?)),
        _ => return None,
    };
    let encapsulation = Encapsulation::Gre { key };
    let len = encapsulation.header_len();
    Some(Read { len, encapsulation: Some(encapsulation), family: Some(family), port: None })
}

fn family_of(ether_type: u16) -> Option<Family> {
    match ether_type {
        ether_type::IPV4 => Some(Family::V4),
        ether_type::IPV6 => Some(Family::V6),
        _ => None,
    }
}

fn read_udp(bytes: &[u8], len: u16) -> Option<Read> {
    let (header, behind) = bytes.split_first_chunk::<{ udp::HEADER_LEN }>()?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    if word(0) < SOURCE_PORT_MIN || word(4) != len {
        return None;
    }
    let port = word(2);
    let short = Read { len: udp::HEADER_LEN, encapsulation: None, family: None, port: Some(port) };
    let Some(&first) = behind.first() else { return Some(short) };
    // GUE variant 0 has no options here, and Geneve has one.
    if first == GENEVE_FIRST[0] {
        return if behind.len() < GENEVE_LEN { Some(short) } else { read_geneve(port, behind) };
    }
    let (variant, family) = match first >> 4 {
        4 => (GueVariant::Direct, Family::V4),
        6 => (GueVariant::Direct, Family::V6),
        _ => match behind.first_chunk() {
            Some(&[0, proto::IPIP, 0, 0]) => (GueVariant::Header, Family::V4),
            Some(&[0, proto::IPV6, 0, 0]) => (GueVariant::Header, Family::V6),
            Some(_) => return None,
            None => return Some(short),
        },
    };
    let encapsulation = Encapsulation::Gue { variant, port };
    let len = encapsulation.header_len();
    Some(Read { len, encapsulation: Some(encapsulation), family: Some(family), port: Some(port) })
}

fn read_geneve(port: u16, header: &[u8]) -> Option<Read> {
    let (&[first, control, kind_hi, kind_lo, a, b, c, 0], rest) = header.split_first_chunk()? else {
        return None;
    };
    let (option, rest) = rest.split_first_chunk()?;
    if [first, control] != GENEVE_FIRST || *option != GENEVE_OPTION {
        return None;
    }
    let family = family_of(u16::from_be_bytes([kind_hi, kind_lo]))?;
    let service = ServiceIdentity(*rest.first_chunk()?);
    let encapsulation = Encapsulation::Geneve { port, vni: Vni([a, b, c]), service };
    let len = encapsulation.header_len();
    Some(Read { len, encapsulation: Some(encapsulation), family: Some(family), port: Some(port) })
}
