//! The packet that an ICMP error quotes: reads it to find the flow, and rewrites it for NAT.
//!
//! A quote may be truncated at any length, and its checksums may be those of another hop, so only the fields that the
//! look-up needs are checked. RFC 792 guarantees 8 bytes after the IP header: ports for TCP, UDP and SCTP, the
//! identifier for echo.

use super::addr::Addr;
use super::checksum::{Delta, Sum};
use super::encapsulation;
use super::headers::{Family, Fragment, Headers, proto};
use super::ipv6;
use super::malformed::Malformed;
use super::rewrite::Endpoint;

/// The packet that an ICMP error quotes. It travelled in the opposite direction of the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quote {
    /// Source of the quoted packet.
    pub src: Addr,
    /// Destination of the quoted packet.
    pub dst: Addr,
    /// Fragmentation of the quoted packet; later fragments have no ports.
    pub fragment: Fragment,
    /// Offset of the quoted IP header in the frame.
    pub l3: u16,
    /// Offset of the quoted transport header in the frame.
    pub l4: u16,
    /// Source port or echo identifier; 0 if there is none.
    pub src_port: u16,
    /// Destination port or echo identifier; 0 if there is none.
    pub dst_port: u16,
    /// IP version of both the quote and the error.
    pub family: Family,
    /// The protocol of the quoted packet, after all extension headers.
    pub proto: u8,
}

/// Reads the quote of an ICMP error; `Ok(None)` if the packet is not an ICMP error.
///
/// # Errors
/// `QuoteTruncated`, `QuoteHeader`, and for IPv6 the errors of the extension headers.
///
/// # Panics
/// When `h` does not belong to this frame.
pub fn parse(frame: &[u8], h: &Headers) -> Result<Option<Quote>, Malformed> {
    if !h.is_icmp_error() {
        return Ok(None);
    }
    let l3 = h.l4 + 8;
    let packet = &frame[usize::from(l3)..usize::from(h.ip_end)];
    let mut q = match h.family {
        Family::V4 => ipv4_header(packet)?,
        Family::V6 => ipv6_header(packet)?,
    };
    q.l3 = l3;
    q.l4 += l3;
    if !matches!(q.fragment, Fragment::Later { .. }) {
        let l4 = &frame[usize::from(q.l4)..usize::from(h.ip_end)];
        let t: &[u8; 8] = l4.first_chunk().ok_or(Malformed::QuoteTruncated)?;
        (q.src_port, q.dst_port) = ports(&q, t);
    }
    Ok(Some(q))
}

/// The contents of a quoted tunnel packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnelled {
    /// Bytes of the quoted packet, including the outer header.
    pub ip_len: u16,
    /// The headers after the outer IP header.
    pub between: encapsulation::Read,
    /// The inner packet, if the quote includes its ports: RFC 792 guarantees only 8 bytes after the outer IP header.
    /// Offsets are not set.
    pub inner: Option<Quote>,
}

/// Reads the quote of a tunnel packet without options or extension headers that is not a fragment, has DF set in IPv4,
/// and has consistent lengths in all headers. `None` for other packets.
///
/// # Panics
/// When `h` and `q` do not belong to this frame.
pub fn tunnelled(frame: &[u8], h: &Headers, q: &Quote) -> Option<Tunnelled> {
    let outer = &frame[usize::from(q.l3)..usize::from(h.ip_end)];
    let payload = &frame[usize::from(q.l4)..usize::from(h.ip_end)];
    let word = |bytes: &[u8], at: usize| Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
    let (header_len, ip_len) = match q.family {
        Family::V4 if word(outer, 6)? == 0x4000 => (20, word(outer, 2)?),
        Family::V6 => (40, word(outer, 4)?.checked_add(40)?),
        Family::V4 => return None,
    };
    if q.l4 - q.l3 != header_len || q.fragment != Fragment::None {
        return None;
    }
    let between = encapsulation::read(q.proto, payload, ip_len.checked_sub(header_len)?)?;
    let headers_len = header_len + between.len as u16;
    let packet = payload.get(between.len..).unwrap_or_default();
    let inner = match between.family.filter(|_| packet.len() >= 8 || between.len == 0) {
        None => None,
        Some(family) => inner_packet(packet, family, ip_len.checked_sub(headers_len)?)?,
    };
    Some(Tunnelled { ip_len, between, inner })
}

/// The packet of this family and length in a tunnel. The outer `None` means that the quote shows another packet, the
/// inner `None` that the quote doesn't include the ports.
fn inner_packet(packet: &[u8], family: Family, len: u16) -> Option<Option<Quote>> {
    let word = |at: usize| packet.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
    let (version, inner_len) = match family {
        Family::V4 => (4, word(2)),
        Family::V6 => (6, word(4).and_then(|len| len.checked_add(40))),
    };
    if *packet.first()? >> 4 != version || inner_len != Some(len) {
        return None;
    }
    let inner = match family {
        Family::V4 => ipv4_header(packet),
        Family::V6 => ipv6_header(packet),
    };
    Some(inner.ok().and_then(|mut inner| {
        if !matches!(inner.fragment, Fragment::Later { .. }) {
            let l4: &[u8; 8] = packet.get(usize::from(inner.l4)..)?.first_chunk()?;
            (inner.src_port, inner.dst_port) = ports(&inner, l4);
        }
        Some(inner)
    }))
}

fn ports(q: &Quote, t: &[u8; 8]) -> (u16, u16) {
    let identifier = u16::from_be_bytes([t[4], t[5]]);
    match (q.proto, q.family, t[0]) {
        (proto::TCP | proto::UDP | proto::SCTP, ..) => {
            (u16::from_be_bytes([t[0], t[1]]), u16::from_be_bytes([t[2], t[3]]))
        }
        (proto::ICMP, Family::V4, 0 | 8) | (proto::ICMPV6, Family::V6, 128 | 129) => (identifier, identifier),
        _ => (0, 0),
    }
}

fn ipv4_header(packet: &[u8]) -> Result<Quote, Malformed> {
    let p: &[u8; 20] = packet.first_chunk().ok_or(Malformed::QuoteTruncated)?;
    let header_len = u16::from(p[0] & 0xf) * 4;
    if p[0] >> 4 != 4 || header_len < 20 {
        return Err(Malformed::QuoteHeader);
    }
    if usize::from(header_len) > packet.len() {
        return Err(Malformed::QuoteTruncated);
    }
    let flags = u16::from_be_bytes([p[6], p[7]]);
    let id = u32::from(u16::from_be_bytes([p[4], p[5]]));
    let fragment = match (flags & 0x1fff, flags & 0x2000) {
        (0, 0) => Fragment::None,
        (0, _) => Fragment::First { id },
        (offset, _) => Fragment::Later { id, offset: offset * 8 },
    };
    Ok(Quote {
        src: Addr::v4([p[12], p[13], p[14], p[15]]),
        dst: Addr::v4([p[16], p[17], p[18], p[19]]),
        fragment,
        l3: 0,
        l4: header_len,
        src_port: 0,
        dst_port: 0,
        family: Family::V4,
        proto: p[9],
    })
}

fn ipv6_header(packet: &[u8]) -> Result<Quote, Malformed> {
    let (p, rest) = packet.split_first_chunk::<40>().ok_or(Malformed::QuoteTruncated)?;
    if p[0] >> 4 != 6 {
        return Err(Malformed::QuoteHeader);
    }
    let mut src = [0; 16];
    let mut dst = [0; 16];
    src.copy_from_slice(&p[8..24]);
    dst.copy_from_slice(&p[24..40]);
    let (src, dst) = (Addr::v6(src), Addr::v6(dst));
    if src.is_v4() || dst.is_v4() {
        return Err(Malformed::QuoteHeader);
    }
    let walk = ipv6::walk_quoted(p[6], rest)?;
    Ok(Quote {
        src,
        dst,
        fragment: walk.fragment,
        l3: 0,
        // The offset is inside a frame of at most 65,535 bytes.
        l4: 40 + walk.len as u16,
        src_port: 0,
        dst_port: 0,
        family: Family::V6,
        proto: walk.proto,
    })
}

/// Replaces source and/or destination of the quoted packet, as [`super::rewrite::translate`] does for a packet. Updates
/// the quoted IPv4 header checksum, the quoted transport checksum if the quote includes it, and the error's own
/// checksum. A quoted SCTP checksum is not updated: receivers check the verification tag (RFC 9260 10).
///
/// The addresses of the error itself do not change.
///
/// # Panics
/// When `h` or `q` do not belong to this frame, or an endpoint has the other family.
pub fn translate(frame: &mut [u8], h: &Headers, q: &mut Quote, src: Option<Endpoint>, dst: Option<Endpoint>) {
    for endpoint in [src, dst].into_iter().flatten() {
        assert_eq!(endpoint.addr.is_v4(), q.family == Family::V4, "endpoints have the family of the quote");
    }
    let (l3, l4, end) = (usize::from(q.l3), usize::from(q.l4), usize::from(h.ip_end));
    // Nothing after the first 20 transport bytes changes. The quote starts at an even offset of the ICMP message.
    let region = l3..end.min(l4 + 20);
    let before = Sum::new().bytes(&frame[region.clone()]);
    let addresses = replace_addresses(&mut frame[l3..], q, src, dst);
    if !matches!(q.fragment, Fragment::Later { .. }) {
        replace_transport(&mut frame[l4..end], q, addresses, src, dst);
    }
    let after = Sum::new().bytes(&frame[region]);
    let check: &mut [u8; 2] =
        frame[usize::from(h.l4) + 2..].first_chunk_mut().expect("parse saw 8 bytes of ICMP");
    *check = Delta::new().sums(before, after).apply(u16::from_be_bytes(*check)).to_be_bytes();
}

/// Changes the sequence number of a quoted TCP segment that is not a later fragment. Updates the error's own checksum
/// and, if the quote includes it, the quoted one. Other errors stay unchanged.
///
/// # Panics
/// When `h` does not belong to this frame.
pub fn set_sequence(frame: &mut [u8], h: &Headers, change: impl FnOnce(u32) -> u32) {
    let Ok(Some(q)) = parse(frame, h) else { return };
    if q.proto != proto::TCP || matches!(q.fragment, Fragment::Later { .. }) {
        return;
    }
    let l4 = usize::from(q.l4);
    let region = l4..usize::from(h.ip_end).min(l4 + 20);
    let before = Sum::new().bytes(&frame[region.clone()]);
    let tcp = &mut frame[region.clone()];
    let seq: &mut [u8; 4] = tcp[4..].first_chunk_mut().expect("parse saw 8 bytes of the quoted segment");
    let old = u32::from_be_bytes(*seq);
    let new = change(old);
    *seq = new.to_be_bytes();
    if tcp.len() >= 18 {
        replace_check(tcp, 16, Delta::new().u32(old, new), false);
    }
    let after = Sum::new().bytes(&frame[region]);
    let check: &mut [u8; 2] =
        frame[usize::from(h.l4) + 2..].first_chunk_mut().expect("parse saw 8 bytes of ICMP");
    *check = Delta::new().sums(before, after).apply(u16::from_be_bytes(*check)).to_be_bytes();
}

/// Replaces addresses in the quoted IP header at the start of `ip`. Returns the delta for the pseudo header.
fn replace_addresses(ip: &mut [u8], q: &mut Quote, src: Option<Endpoint>, dst: Option<Endpoint>) -> Delta {
    let new_src = src.map_or(q.src, |e| e.addr);
    let new_dst = dst.map_or(q.dst, |e| e.addr);
    let delta = Delta::new().bytes16(q.src.bytes(), new_src.bytes()).bytes16(q.dst.bytes(), new_dst.bytes());
    match q.family {
        Family::V4 => {
            ip[12..16].copy_from_slice(&new_src.v4_bytes());
            ip[16..20].copy_from_slice(&new_dst.v4_bytes());
            let check = delta.apply(u16::from_be_bytes([ip[10], ip[11]]));
            ip[10..12].copy_from_slice(&check.to_be_bytes());
        }
        Family::V6 => {
            ip[8..24].copy_from_slice(new_src.bytes());
            ip[24..40].copy_from_slice(new_dst.bytes());
        }
    }
    (q.src, q.dst) = (new_src, new_dst);
    delta
}

/// Replaces ports in the quoted transport header at the start of `l4`, of which at least 8 bytes are present.
fn replace_transport(
    l4: &mut [u8],
    q: &mut Quote,
    addresses: Delta,
    src: Option<Endpoint>,
    dst: Option<Endpoint>,
) {
    let (old_src, old_dst) = (q.src_port, q.dst_port);
    match q.proto {
        proto::TCP | proto::UDP | proto::SCTP => {
            q.src_port = src.map_or(old_src, |e| e.port);
            q.dst_port = dst.map_or(old_dst, |e| e.port);
            l4[..2].copy_from_slice(&q.src_port.to_be_bytes());
            l4[2..4].copy_from_slice(&q.dst_port.to_be_bytes());
            let delta = addresses.u16(old_src, q.src_port).u16(old_dst, q.dst_port);
            match q.proto {
                proto::TCP if l4.len() >= 18 => replace_check(l4, 16, delta, false),
                proto::UDP if l4[6..8] != [0, 0] => replace_check(l4, 6, delta, true),
                _ => {}
            }
        }
        proto::ICMP | proto::ICMPV6 => {
            let identifier = match (q.family, l4[0]) {
                (Family::V4, 8) | (Family::V6, 128) => src,
                (Family::V4, 0) | (Family::V6, 129) => dst,
                _ => None,
            };
            let mut delta = if q.family == Family::V6 { addresses } else { Delta::new() };
            if let Some(new) = identifier {
                delta = delta.u16(old_src, new.port);
                l4[4..6].copy_from_slice(&new.port.to_be_bytes());
                (q.src_port, q.dst_port) = (new.port, new.port);
            }
            replace_check(l4, 2, delta, false);
        }
        _ => {}
    }
}

fn replace_check(l4: &mut [u8], at: usize, delta: Delta, udp: bool) {
    let old = u16::from_be_bytes([l4[at], l4[at + 1]]);
    let new = if udp { delta.apply_udp(old) } else { delta.apply(old) };
    l4[at..at + 2].copy_from_slice(&new.to_be_bytes());
}
