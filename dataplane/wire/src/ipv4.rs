//! IPv4 (RFC 791): the header check, and writing an outer header.
//!
//! Options are valid and not changed, except for source routes, which are refused. Padding after the total length is
//! the Ethernet trailer and is ignored.

use super::addr::Addr;
use super::checksum::{Delta, Sum, checksum};
use super::headers::{Family, Fragment, Headers, proto};
use super::malformed::Malformed;
use super::transport::{self, Transport};
use super::vlan::VlanId;
use core::net::Ipv4Addr;

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET_MASK: u16 = 0x1fff;

/// Checks the packet that follows an Ethernet header of `l3` bytes.
///
/// # Errors
/// `Ipv4*`, `Fragment*`, and the errors of the transport header.
#[inline(always)]
pub fn parse(packet: &[u8], l3: u8, vlan: Option<VlanId>) -> Result<Headers, Malformed> {
    let p: &[u8; HEADER_LEN] = packet.first_chunk().ok_or(Malformed::Ipv4Truncated)?;
    if p[0] >> 4 != 4 {
        return Err(Malformed::Ipv4Version);
    }
    let header_len = usize::from(p[0] & 0xf) * 4;
    let total_len = usize::from(u16::from_be_bytes([p[2], p[3]]));
    if header_len < HEADER_LEN || header_len > packet.len() {
        return Err(Malformed::Ipv4HeaderLength);
    }
    if total_len < header_len || total_len > packet.len() {
        return Err(Malformed::Ipv4TotalLength);
    }
    let sum_ok = if header_len == HEADER_LEN { sum_ok(p) } else { checksum(&packet[..header_len]) == 0 };
    if !sum_ok {
        return Err(Malformed::Ipv4Checksum);
    }
    if header_len > HEADER_LEN {
        options(&packet[HEADER_LEN..header_len])?;
    }
    let payload = &packet[header_len..total_len];
    let flags = u16::from_be_bytes([p[6], p[7]]);
    let fragment = if !is_fragment(p) {
        Fragment::None
    } else {
        let id = u32::from(u16::from_be_bytes([p[4], p[5]]));
        fragment(
            (id, p[9]),
            (flags & OFFSET_MASK) * 8,
            flags & MORE_FRAGMENTS != 0,
            payload.len(),
            header_len,
        )?
    };
    let mut t = Transport::UNKNOWN;
    if flags & OFFSET_MASK == 0 {
        transport::parse(&mut t, p[9], Family::V4, flags & MORE_FRAGMENTS == 0, payload)?;
    }
    Ok(Headers {
        src: Addr::v4([p[12], p[13], p[14], p[15]]),
        dst: Addr::v4([p[16], p[17], p[18], p[19]]),
        fragment,
        // Both fit: the frame is at most 65,535 bytes, and the offsets are inside it.
        l4: u16::from(l3) + header_len as u16,
        ip_end: u16::from(l3) + total_len as u16,
        src_port: t.src_port,
        dst_port: t.dst_port,
        vlan,
        l3,
        family: Family::V4,
        proto: p[9],
        tcp_flags: t.tcp_flags,
        icmp_type: t.icmp_type,
        icmp_code: t.icmp_code,
        ttl: p[8],
        tos: p[1],
        dont_fragment: dont_fragment(p),
        l4_checksum: t.l4_checksum,
    })
}

/// Checks that options end within the header and that none of them is a source route. Their contents are not checked.
#[cold]
fn options(mut left: &[u8]) -> Result<(), Malformed> {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const LOOSE_SOURCE_ROUTE: u8 = 131;
    const STRICT_SOURCE_ROUTE: u8 = 137;
    while let Some((&kind, behind)) = left.split_first() {
        let len = match kind {
            END => break,
            NO_OPERATION => 1,
            LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => return Err(Malformed::SourceRoute),
            _ => match behind.first() {
                Some(&len) if len >= 2 => usize::from(len),
                _ => return Err(Malformed::Ipv4Options),
            },
        };
        left = left.get(len..).ok_or(Malformed::Ipv4Options)?;
    }
    Ok(())
}

/// Whether a header belongs to a fragment, the first one included.
#[inline(always)]
pub(super) fn is_fragment(p: &[u8; HEADER_LEN]) -> bool {
    u16::from_be_bytes([p[6], p[7]]) & (MORE_FRAGMENTS | OFFSET_MASK) != 0
}

/// Whether a header has DF.
#[inline(always)]
pub(super) fn dont_fragment(p: &[u8; HEADER_LEN]) -> bool {
    u16::from_be_bytes([p[6], p[7]]) & DONT_FRAGMENT != 0
}

/// The checksum check for a header without options: five words, without a loop and independent of byte order (RFC 1071,
/// 2 (B)).
#[inline(always)]
pub(super) fn sum_ok(p: &[u8; HEADER_LEN]) -> bool {
    let (words, _) = p.as_chunks::<4>();
    let sum: u64 = words.iter().map(|w| u64::from(u32::from_ne_bytes(*w))).sum();
    // Division by 0xffff is equivalent to end-around carries, and takes fewer steps than folding to 16 bits. The sum is
    // zero only for a header of zeros, whose version is wrong.
    sum.is_multiple_of(0xffff)
}

/// Classifies a fragment of `len` bytes of `proto` at `offset`; `headers_len` bytes precede the payload after
/// reassembly.
#[cold]
pub fn fragment(
    (id, proto): (u32, u8),
    offset: u16,
    more: bool,
    len: usize,
    headers_len: usize,
) -> Result<Fragment, Malformed> {
    if more && (len == 0 || !len.is_multiple_of(8)) {
        return Err(Malformed::FragmentLength);
    }
    if usize::from(offset) + len + headers_len > usize::from(u16::MAX) {
        return Err(Malformed::FragmentBeyondEnd);
    }
    let header = match proto {
        proto::TCP => 20,
        proto::SCTP => 12,
        _ => 0,
    };
    match offset {
        0 => Ok(Fragment::First { id }),
        1.. if offset < header => Err(Malformed::FragmentInHeader),
        _ => Ok(Fragment::Later { id, offset }),
    }
}

/// An IPv4 header without options, to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Header {
    /// Header and payload in bytes.
    pub total_len: u16,
    /// DSCP and ECN.
    pub tos: u8,
    /// Identification. It has no meaning with `dont_fragment` (RFC 6864).
    pub id: u16,
    /// DF.
    pub dont_fragment: bool,
    /// Time to live.
    pub ttl: u8,
    /// The protocol of the payload.
    pub proto: u8,
    /// Source.
    pub src: Ipv4Addr,
    /// Destination.
    pub dst: Ipv4Addr,
}

impl Ipv4Header {
    /// The 20 bytes, checksum included.
    #[inline]
    pub fn bytes(&self) -> [u8; HEADER_LEN] {
        // The header is summed while it is written as five words: a sum over bytes that were stored one by one would
        // wait for the stores.
        let flags = if self.dont_fragment { DONT_FRAGMENT } else { 0 };
        let [src, dst] = [self.src.to_bits(), self.dst.to_bits()];
        let mut words = [
            0x4500_0000 | u32::from(self.tos) << 16 | u32::from(self.total_len),
            u32::from(self.id) << 16 | u32::from(flags),
            u32::from(self.ttl) << 24 | u32::from(self.proto) << 16,
            src,
            dst,
        ];
        words[2] |= u32::from(words.iter().fold(Sum::new(), |sum, &word| sum.u32(word)).finish());
        let mut b = [0; HEADER_LEN];
        for (bytes, word) in b.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes = word.to_be_bytes();
        }
        b
    }

    /// Writes the header at the beginning of `out` and returns its length, 20.
    ///
    /// # Panics
    /// When `out` is shorter than 20 bytes.
    #[inline]
    pub fn write(&self, out: &mut [u8]) -> usize {
        out[..HEADER_LEN].copy_from_slice(&self.bytes());
        HEADER_LEN
    }
}

/// Clears DF in a header that [`Ipv4Header::write`] wrote, and sets its identification, so that the packet may be
/// fragmented.
///
/// # Panics
/// When `header` is shorter than 20 bytes.
pub fn identify(header: &mut [u8], identification: u16) {
    let header = &mut header[..HEADER_LEN];
    header[4..6].copy_from_slice(&identification.to_be_bytes());
    header[6..8].fill(0);
    header[10..12].fill(0);
    let sum = checksum(header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Applies `delta` to the checksum field. `header` begins with the IPv4 header.
#[inline]
pub fn apply_delta(header: &mut [u8; HEADER_LEN], delta: Delta) {
    let check = delta.apply(u16::from_be_bytes([header[10], header[11]]));
    header[10..12].copy_from_slice(&check.to_be_bytes());
}

/// Clears DF in a checked packet.
///
/// # Panics
/// When `h` does not describe this frame as IPv4.
pub fn allow_fragments(frame: &mut [u8], h: &Headers) {
    let header: &mut [u8; HEADER_LEN] =
        frame[usize::from(h.l3)..].first_chunk_mut().expect("parse saw a whole IPv4 header");
    let flags = u16::from_be_bytes([header[6], header[7]]);
    header[6..8].copy_from_slice(&(flags & !DONT_FRAGMENT).to_be_bytes());
    apply_delta(header, Delta::new().u16(flags, flags & !DONT_FRAGMENT));
}

/// The identification field of a checked packet.
///
/// # Panics
/// When `h` does not describe this frame as IPv4.
#[inline]
pub fn identification(frame: &[u8], h: &Headers) -> u16 {
    let at = usize::from(h.l3) + 4;
    u16::from_be_bytes([frame[at], frame[at + 1]])
}
