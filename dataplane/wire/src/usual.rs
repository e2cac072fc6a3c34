//! A fast path of the header checks for untagged, unfragmented TCP and UDP packets: IPv4 without options, and IPv6
//! without extension headers ([`check_v6`]).
//!
//! Nearly every packet matches. Its headers are at fixed offsets, so the checks of [`super::parse`] need no branch that
//! traffic could mispredict (TCP and UDP may alternate). They take a third of the instructions of the full parser,
//! which handles all other packets and all errors.
//!
//! Invariant: if this returns `Some`, `parse` returns the same headers (a property in `tests/checks.rs`).

use std::hint::select_unpredictable;

use super::addr::Addr;
use super::headers::{Family, Fragment, Headers, L4Checksum, proto};
use super::{ipv4, ipv6, tcp};

/// The length of the Ethernet and IPv4 headers and the TCP header up to its flags.
const LEN: usize = 48;
const L3: usize = 14;
const L4: usize = L3 + ipv4::HEADER_LEN;
/// The length of the Ethernet and IPv6 headers and the UDP header.
const LEN_V6: usize = L4_V6 + 8;
const L4_V6: usize = L3 + ipv6::HEADER_LEN;

/// The headers of a usual packet. `None` does not mean that the packet is invalid.
///
/// Always inlined, for the reason given at `transport::parse`.
#[inline(always)]
#[must_use]
pub fn parse(frame: &[u8]) -> Option<Headers> {
    let b: &[u8; LEN] = frame.first_chunk()?;
    let ip: &[u8; ipv4::HEADER_LEN] = b[L3..].first_chunk()?;
    let be16 = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
    // The ethertype of IPv4, then version 4 and a header of five words.
    if be16(12) != 0x0800 || ip[0] != 0x45 || ipv4::is_fragment(ip) {
        return None;
    }
    let is_tcp = ip[9] == proto::TCP;
    if !(is_tcp | (ip[9] == proto::UDP)) {
        return None;
    }
    let total_len = be16(L3 + 2);
    // The data offset of TCP and the length of UDP are at least the length of the header and at most the length of the
    // IP payload. So everything that is read here is within the packet.
    let tcp_len = u32::from(b[L4 + 12] >> 4) * 4;
    let len = select_unpredictable(is_tcp, tcp_len, u32::from(be16(L4 + 4)));
    let len_min = select_unpredictable(is_tcp, 20, 8);
    let ip_end = L3 + usize::from(total_len);
    if len < len_min
        || ipv4::HEADER_LEN as u32 + len > u32::from(total_len)
        || ip_end > frame.len()
        || frame.len() > usize::from(u16::MAX)
        || !ipv4::sum_ok(ip)
    {
        return None;
    }
    let udp = if be16(L4 + 6) == 0 { L4Checksum::UdpZero } else { L4Checksum::Udp };
    Some(Headers {
        src: Addr::v4([ip[12], ip[13], ip[14], ip[15]]),
        dst: Addr::v4([ip[16], ip[17], ip[18], ip[19]]),
        fragment: Fragment::None,
        l4: L4 as u16,
        ip_end: ip_end as u16,
        src_port: be16(L4),
        dst_port: be16(L4 + 2),
        vlan: None,
        l3: L3 as u8,
        family: Family::V4,
        proto: ip[9],
        tcp_flags: select_unpredictable(is_tcp, b[L4 + 13], 0),
        icmp_type: 0,
        icmp_code: 0,
        ttl: ip[8],
        tos: ip[1],
        dont_fragment: ipv4::dont_fragment(ip),
        l4_checksum: select_unpredictable(is_tcp, L4Checksum::Tcp, udp),
    })
}

/// A usual packet that [`check`] or [`check_v6`] accepts, as the pipeline's fast path needs it: addresses and ports are
/// bytes of the packet, read as little-endian numbers. `A` is the number of words of an address: 1 or 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usual<const A: usize> {
    /// Source address.
    pub src: [u32; A],
    /// Destination address.
    pub dst: [u32; A],
    /// Source port, then destination port.
    pub ports: u32,
    /// Bytes of the IP packet.
    pub ip_len: u16,
    /// [`proto::TCP`] or [`proto::UDP`].
    pub proto: u8,
    /// The flags of TCP; 0 with UDP.
    pub flags: u8,
}

impl<const A: usize> Default for Usual<A> {
    fn default() -> Self {
        Self { src: [0; A], dst: [0; A], ports: 0, ip_len: 0, proto: 0, flags: 0 }
    }
}

/// An address in the format of [`Usual`].
#[inline(always)]
#[must_use]
pub fn words<const A: usize>(addr: &Addr) -> [u32; A] {
    let (all, _) = addr.bytes().as_chunks::<4>();
    std::array::from_fn(|n| u32::from_le_bytes(all[4 - A + n]))
}

/// The network of an address in the format of [`Usual`]: its /24 or /56, as a number.
#[inline(always)]
#[must_use]
pub fn network<const A: usize>(address: &[u32; A]) -> u64 {
    // Masks the first three bytes of a word.
    const THREE: u32 = u32::from_le_bytes([0xff, 0xff, 0xff, 0]);
    match address[..] {
        [word] => u64::from(word & THREE),
        [first, second, ..] => u64::from(first) | u64::from(second & THREE) << 32,
        [] => 0,
    }
}

/// Undoes [`words`].
#[inline(always)]
#[must_use]
pub fn addr<const A: usize>(words: [u32; A]) -> Addr {
    if let [word] = words[..] {
        return Addr::v4(word.to_le_bytes());
    }
    let number = words.iter().fold(0_u128, |number, word| number << 32 | u128::from(word.swap_bytes()));
    Addr::v6(number.to_be_bytes())
}

impl<const A: usize> Usual<A> {
    /// The offset of the transport header.
    pub const L4: usize = if A == 1 { L4 } else { L4_V6 };

    /// Whether the packet may start or end a connection: a TCP segment with SYN, FIN or RST.
    #[inline(always)]
    #[must_use]
    pub fn controls(&self) -> bool {
        self.flags & (tcp::flags::SYN | tcp::flags::FIN | tcp::flags::RST) != 0
    }

    /// Source port, in host order.
    #[inline(always)]
    #[must_use]
    pub fn src_port(&self) -> u16 {
        (self.ports as u16).swap_bytes()
    }

    /// Destination port, in host order.
    #[inline(always)]
    #[must_use]
    pub fn dst_port(&self) -> u16 {
        ((self.ports >> 16) as u16).swap_bytes()
    }

    /// The headers of the packet, from the frame in which it was checked. DF is not read: it counts as set.
    ///
    /// # Panics
    /// If the frame is another, shorter one.
    #[inline(always)]
    #[must_use]
    pub fn headers(&self, frame: &[u8]) -> Headers {
        let b: &[u8] = &frame[..Self::L4 + 8];
        let udp = if b[Self::L4 + 6] | b[Self::L4 + 7] == 0 { L4Checksum::UdpZero } else { L4Checksum::Udp };
        let (ttl, tos) =
            if A == 1 { (b[L3 + 8], b[L3 + 1]) } else { (b[L3 + 7], b[L3] << 4 | b[L3 + 1] >> 4) };
        Headers {
            src: addr(self.src),
            dst: addr(self.dst),
            fragment: Fragment::None,
            l4: Self::L4 as u16,
            ip_end: L3 as u16 + self.ip_len,
            src_port: self.src_port(),
            dst_port: self.dst_port(),
            vlan: None,
            l3: L3 as u8,
            family: if A == 1 { Family::V4 } else { Family::V6 },
            proto: self.proto,
            tcp_flags: self.flags,
            icmp_type: 0,
            icmp_code: 0,
            ttl,
            tos,
            dont_fragment: true,
            l4_checksum: select_unpredictable(self.proto == proto::TCP, L4Checksum::Tcp, udp),
        }
    }
}

/// A usual packet with a hop limit above 1, in a frame to the station with this link address ([`station_bits`]). `None`
/// doesn't mean that the frame is invalid.
///
/// It accepts a subset of the frames that [`parse`] accepts, for the same reasons (a property in `tests/checks.rs`),
/// and keeps only what the fast path needs.
#[inline(always)]
#[must_use]
pub fn check(frame: &[u8], station: u64) -> Option<Usual<1>> {
    let b: &[u8; LEN] = frame.first_chunk()?;
    // The ethertype of IPv4, then version 4 and a header of five words; neither MF nor an offset.
    let kind = (u32_at(b, 12) ^ 0x0045_0008) << 8;
    let fragment_field = u32::from(u16_at(b, L3 + 6) & 0xff3f);
    let other = (u64_at(b, 0) ^ station) << 16;
    if u64::from(kind | fragment_field) | other != 0 {
        return None;
    }
    let (ttl, proto) = (b[L3 + 8], b[L3 + 9]);
    let is_tcp = proto == proto::TCP;
    // As in `parse`.
    let tcp_len = u32::from(b[L4 + 12] >> 4) * 4;
    let len = select_unpredictable(is_tcp, tcp_len, u32::from(u16_at(b, L4 + 4).swap_bytes()));
    let len_min = select_unpredictable(is_tcp, 20, 8);
    let ip_len = u16_at(b, L3 + 2).swap_bytes();
    let (src, dst) = (u32_at(b, L3 + 12), u32_at(b, L3 + 16));
    let sum = u64::from(u32_at(b, L3)) + u64::from(u32_at(b, L3 + 4)) + u64::from(u32_at(b, L3 + 8));
    let sum = sum + u64::from(src) + u64::from(dst);
    if !(is_tcp | (proto == proto::UDP))
        || ttl <= 1
        || len < len_min
        || ipv4::HEADER_LEN as u32 + len > u32::from(ip_len)
        || L3 + usize::from(ip_len) > frame.len()
        || frame.len() > usize::from(u16::MAX)
        || !sum.is_multiple_of(0xffff)
    {
        return None;
    }
    let flags = select_unpredictable(is_tcp, b[L4 + 13], 0);
    Some(Usual { src: [src], dst: [dst], ports: u32_at(b, L4), ip_len, proto, flags })
}

/// [`check`] for IPv6: a usual packet has no extension header.
#[inline(always)]
#[must_use]
pub fn check_v6(frame: &[u8], station: u64) -> Option<Usual<4>> {
    let b: &[u8; LEN_V6] = frame.first_chunk()?;
    // The ethertype of IPv6, then version 6.
    let kind = (u32_at(b, 12) ^ 0x0060_dd86) & 0x00f0_ffff;
    let other = (u64_at(b, 0) ^ station) << 16;
    if u64::from(kind) | other != 0 {
        return None;
    }
    let (proto, hop_limit) = (b[L3 + 6], b[L3 + 7]);
    let is_tcp = proto == proto::TCP;
    // The data offset and flags of TCP, or the length of UDP. A UDP frame may be too short for the TCP fields.
    let at = select_unpredictable(is_tcp, L4_V6 + 12, L4_V6 + 4);
    let &[first, second] = frame.get(at..)?.first_chunk()?;
    // As in `parse`.
    let udp_len = u32::from(u16::from_be_bytes([first, second]));
    let len = select_unpredictable(is_tcp, u32::from(first >> 4) * 4, udp_len);
    let len_min = select_unpredictable(is_tcp, 20, 8);
    let payload_len = u16_at(b, L3 + 4).swap_bytes();
    let src: [u32; 4] = std::array::from_fn(|n| u32_at(b, L3 + 8 + 4 * n));
    let dst: [u32; 4] = std::array::from_fn(|n| u32_at(b, L3 + 24 + 4 * n));
    // IPv4-mapped addresses.
    let is_mapped = |a: &[u32; 4]| a[0] | a[1] | (a[2] ^ 0xffff_0000) == 0;
    if !(is_tcp | (proto == proto::UDP))
        || hop_limit <= 1
        || len < len_min
        || len > u32::from(payload_len)
        || L4_V6 + usize::from(payload_len) > frame.len()
        || frame.len() > usize::from(u16::MAX)
        || is_mapped(&src) | is_mapped(&dst)
    {
        return None;
    }
    let flags = select_unpredictable(is_tcp, second, 0);
    // The packet is within a frame of at most 65,535 bytes.
    let ip_len = payload_len + ipv6::HEADER_LEN as u16;
    Some(Usual { src, dst, ports: u32_at(b, L4_V6), ip_len, proto, flags })
}

/// A link address as [`check`] compares it: its bytes as a little-endian number.
#[inline(always)]
#[must_use]
pub fn station_bits(mac: &super::MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from(u32::from_le_bytes([a, b, c, d])) | u64::from(u16::from_le_bytes([e, f])) << 32
}

#[inline(always)]
fn u16_at<const N: usize>(b: &[u8; N], at: usize) -> u16 {
    u16::from_le_bytes(*b[at..].first_chunk().expect("a constant offset within the headers"))
}

#[inline(always)]
fn u32_at<const N: usize>(b: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes(*b[at..].first_chunk().expect("a constant offset within the headers"))
}

#[inline(always)]
fn u64_at<const N: usize>(b: &[u8; N], at: usize) -> u64 {
    u64::from_le_bytes(*b[at..].first_chunk().expect("a constant offset within the headers"))
}
