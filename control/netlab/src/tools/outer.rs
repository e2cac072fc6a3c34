//! Parses the outer headers of a tunnel packet strictly: each field must have the value that docs/tunnels.md specifies.
//!
//! It is written from the RFCs and shares no code with the gateway. A kernel's tunnel device accepts more than this
//! (any source port, any checksum over IPv4), so a wrong field would pass there unnoticed.
//!
//! Invariant: nothing here panics, whatever the bytes are.

use crate::addresses::Family;
use crate::envelope::Envelope;
use crate::modes::geneve_services;
use std::net::IpAddr;

/// The protocol numbers of IPv4, UDP, IPv6 and GRE in IP.
pub(super) const IPV4: u8 = 4;
pub(super) const UDP: u8 = 17;
pub(super) const IPV6: u8 = 41;
pub(super) const GRE: u8 = 47;

/// The first UDP source port of a tunnel (RFC 6335 section 6).
const SOURCE_PORT_MIN: u16 = 49_152;

/// A packet of a tunnel, with its outer header removed by the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outer<'a> {
    /// The protocol number in the outer header.
    pub(super) protocol: u8,
    /// The outer source.
    pub(super) source: IpAddr,
    /// The outer destination.
    pub(super) destination: IpAddr,
    /// The fields of an outer IPv4 header. The kernel removes IPv6 headers before it delivers a packet (RFC 3542).
    pub(super) header: Option<HeaderV4>,
    /// Everything behind the outer IP header.
    pub(super) payload: &'a [u8],
}

/// The fields of the outer IPv4 header that the gateway chooses.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeaderV4 {
    tos: u8,
    is_df: bool,
    ttl: u8,
}

/// The packet in a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opened<'a> {
    /// Its envelope.
    pub(super) envelope: Envelope,
    /// Its destination, which is the VIP.
    pub(super) vip: IpAddr,
    /// The packet.
    pub(super) inner: &'a [u8],
}

/// Splits a packet at its IPv4 header: its fields, source, destination and the payload.
pub(super) fn split_v4(packet: &[u8]) -> Option<(HeaderV4, IpAddr, IpAddr, &[u8])> {
    let length = usize::from(packet.first()? & 0x0f) * 4;
    let header = packet.get(..length).filter(|header| header.len() >= 20)?;
    let fields = HeaderV4 { tos: header[1], is_df: header[6] & 0x40 != 0, ttl: header[8] };
    Some((fields, address(header, 12, 4)?, address(header, 16, 4)?, packet.get(length..)?))
}

/// Removes the headers of the tunnel.
///
/// # Errors
/// The field that is wrong.
pub(super) fn open<'a>(outer: &Outer<'a>) -> Result<Opened<'a>, &'static str> {
    let (envelope, announced, inner) = match outer.protocol {
        IPV4 => (Envelope::Ip, Family::V4, outer.payload),
        IPV6 => (Envelope::Ip, Family::V6, outer.payload),
        UDP => over_udp(outer)?,
        GRE => gre(outer.payload)?,
        _ => return Err("unknown outer protocol"),
    };
    if !Envelope::ALL.contains(&envelope) {
        return Err("no tunnel of this lab has this variant, port or key");
    }
    let (family, tos, vip) = inner_header(inner)?;
    if family != announced {
        return Err("the outer header names another address family than the inner packet has");
    }
    if let Some(header) = outer.header {
        if header.ttl != 64 {
            return Err("wrong outer TTL");
        }
        if header.tos != tos {
            return Err("wrong outer traffic class");
        }
        // IPv6 packets of at most 1,280 bytes may have to be fragmented outside.
        if !header.is_df && family == Family::V4 {
            return Err("the outer header lacks DF");
        }
    }
    Ok(Opened { envelope, vip, inner })
}

/// UDP, with GUE (draft-ietf-intarea-gue-09 sections 3 and 4) or Geneve behind it.
fn over_udp<'a>(outer: &Outer<'a>) -> Result<(Envelope, Family, &'a [u8]), &'static str> {
    let packet = outer.payload;
    let (header, data) = packet.split_at_checked(8).ok_or("UDP header cut off")?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    if word(0) < SOURCE_PORT_MIN {
        return Err("wrong UDP source port");
    }
    if usize::from(word(4)) != packet.len() {
        return Err("wrong UDP length");
    }
    match (outer.source, outer.destination) {
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let length = u32::from(word(4)).to_be_bytes();
            let pseudo = [&source.octets()[..], &destination.octets(), &length, &[0, 0, 0, UDP]].concat();
            if word(6) == 0 || sum(&pseudo, sum(packet, 0)) != 0xffff {
                return Err("wrong UDP checksum over IPv6");
            }
        }
        _ if word(6) != 0 => return Err("nonzero UDP checksum over IPv4"),
        _ => {}
    }
    let port = word(2);
    if Envelope::ALL
        .iter()
        .any(|envelope| matches!(envelope, Envelope::Geneve { port: its, .. } if *its == port))
    {
        return geneve(port, data);
    }
    let first = *data.first().ok_or("GUE header cut off")?;
    match first >> 6 {
        // Its first bits are those of the IP version: 0100 or 0110.
        1 => Ok((Envelope::Gue { variant: 1, port }, version(first)?, data)),
        0 => {
            let (head, inner) = data.split_at_checked(4).ok_or("GUE header cut off")?;
            if head[0] != 0 {
                return Err("wrong GUE control bit or header length");
            }
            let family = match head[1] {
                IPV4 => Family::V4,
                IPV6 => Family::V6,
                _ => return Err("wrong GUE protocol"),
            };
            if head[2..] != [0, 0] {
                return Err("wrong GUE flags");
            }
            Ok((Envelope::Gue { variant: 0, port }, family, inner))
        }
        _ => Err("wrong GUE variant"),
    }
}

/// Geneve (RFC 8926 section 3.4) with one option: the class, type and length that docs/tunnels.md names. The identity
/// in it must be that of a Service of the lab.
fn geneve(port: u16, data: &[u8]) -> Result<(Envelope, Family, &[u8]), &'static str> {
    let (header, inner) = data.split_at_checked(20).ok_or("Geneve header cut off")?;
    if header[0] != 3 {
        return Err("wrong Geneve version or length of options");
    }
    if header[1] != 0 || header[7] != 0 {
        return Err("wrong Geneve flags or reserved bits");
    }
    let family = ether_type(header[2], header[3]).ok_or("wrong Geneve protocol type")?;
    if header[8..12] != [0xff, 0x54, 1, 2] {
        return Err("wrong Geneve option");
    }
    let is_known = geneve_services().any(|service| fnv_1a(service).to_be_bytes() == header[12..]);
    if !is_known {
        return Err("the Geneve identity belongs to no Service of the lab");
    }
    let vni = u32::from_be_bytes([0, header[4], header[5], header[6]]);
    Ok((Envelope::Geneve { port, vni }, family, inner))
}

/// The 64-bit FNV-1a hash of the name of a Service in the lab's namespace.
fn fnv_1a(service: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for byte in "lab/".bytes().chain(service.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash
}

fn ether_type(high: u8, low: u8) -> Option<Family> {
    match [high, low] {
        [0x08, 0x00] => Some(Family::V4),
        [0x86, 0xdd] => Some(Family::V6),
        _ => None,
    }
}

/// GRE (RFC 2784) with or without a key (RFC 2890).
fn gre(packet: &[u8]) -> Result<(Envelope, Family, &[u8]), &'static str> {
    let (header, rest) = packet.split_at_checked(4).ok_or("GRE header cut off")?;
    let family = ether_type(header[2], header[3]).ok_or("wrong GRE protocol type")?;
    match [header[0], header[1]] {
        [0, 0] => Ok((Envelope::Gre { key: None }, family, rest)),
        [0x20, 0] => {
            let (key, inner) = rest.split_first_chunk().ok_or("GRE key cut off")?;
            Ok((Envelope::Gre { key: Some(u32::from_be_bytes(*key)) }, family, inner))
        }
        _ => Err("wrong GRE flags or version"),
    }
}

/// The family, traffic class and destination of the inner packet, which must be as long as its header says.
fn inner_header(packet: &[u8]) -> Result<(Family, u8, IpAddr), &'static str> {
    let cut = "inner header cut off";
    let family = version(*packet.first().ok_or(cut)?)?;
    let word = |at: usize| packet.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    let (length, tos, destination) = match family {
        Family::V4 => {
            let header = packet.get(..usize::from(packet[0] & 0x0f) * 4).filter(|header| header.len() >= 20);
            if sum(header.ok_or(cut)?, 0) != 0xffff {
                return Err("wrong inner header checksum");
            }
            (word(2), packet[1], address(packet, 16, 4))
        }
        Family::V6 => {
            let class = word(0).map_or(0, |first| (first >> 4) as u8);
            (word(4).and_then(|payload| payload.checked_add(40)), class, address(packet, 24, 16))
        }
    };
    if usize::from(length.ok_or(cut)?) != packet.len() {
        return Err("wrong inner length");
    }
    Ok((family, tos, destination.ok_or(cut)?))
}

fn version(first: u8) -> Result<Family, &'static str> {
    match first >> 4 {
        4 => Ok(Family::V4),
        6 => Ok(Family::V6),
        _ => Err("wrong inner version"),
    }
}

fn address(bytes: &[u8], at: usize, length: usize) -> Option<IpAddr> {
    let octets = bytes.get(at..at + length)?;
    if let Ok(v4) = <[u8; 4]>::try_from(octets) {
        return Some(IpAddr::from(v4));
    }
    <[u8; 16]>::try_from(octets).ok().map(IpAddr::from)
}

/// The folded one's complement sum (RFC 1071) of `bytes` and `start`: 0xffff over data with a correct checksum.
fn sum(bytes: &[u8], start: u16) -> u16 {
    let word = |pair: &[u8]| u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    let mut sum = bytes.chunks(2).map(word).sum::<u64>() + u64::from(start);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An inner IPv4 header with a correct checksum, and four bytes.
    const INNER: [u8; 24] =
        [0x45, 0, 0, 24, 0, 1, 0, 0, 64, 17, 0x14, 0x82, 198, 51, 100, 10, 203, 0, 113, 20, 1, 2, 3, 4];
    const DESTINATIONS: [(&str, &str); 2] = [("192.0.2.2", "192.0.2.101"), ("2001:db8::2", "2001:db8::101")];

    /// The headers of each tunnel in front of [`INNER`].
    fn packets(is_v6: bool) -> Vec<(Envelope, u8, Vec<u8>)> {
        let udp = |port: u16, rest: &[u8]| {
            let data = [rest, &INNER].concat();
            let length = (8 + data.len() as u16).to_be_bytes();
            let mut packet = [&[0xc0, 1][..], &port.to_be_bytes(), &length, &[0, 0], &data].concat();
            if is_v6 {
                let (from, to) = DESTINATIONS[1];
                let octets = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
                let pseudo = [&octets(from)[..], &octets(to), &[0, 0], &length, &[0, 0, 0, UDP]].concat();
                let whole = !sum(&pseudo, sum(&packet, 0));
                packet[6..8].copy_from_slice(&whole.to_be_bytes());
            }
            packet
        };
        let key = [0x20, 0, 8, 0, 0x0a, 0x1b, 0x2c, 0x3d];
        let identity = fnv_1a("geneve").to_be_bytes();
        let geneve = [&[3, 0, 8, 0, 0x1a, 0x2b, 0x3c, 0, 0xff, 0x54, 1, 2][..], &identity].concat();
        vec![
            (Envelope::Ip, IPV4, INNER.to_vec()),
            (Envelope::GUE_DIRECT, UDP, udp(6080, &[])),
            (Envelope::GUE_HEADER, UDP, udp(6081, &[0, IPV4, 0, 0])),
            (Envelope::GRE_PLAIN, GRE, [&[0, 0, 8, 0][..], &INNER].concat()),
            (Envelope::GRE_KEYED, GRE, [&key[..], &INNER].concat()),
            (Envelope::GENEVE, UDP, udp(6082, &geneve)),
        ]
    }

    fn outer(protocol: u8, is_v6: bool, payload: &[u8]) -> Outer<'_> {
        let (source, destination) = DESTINATIONS[usize::from(is_v6)];
        let header = (!is_v6).then_some(HeaderV4 { tos: 0, is_df: true, ttl: 64 });
        let [source, destination] = [source, destination].map(|text| text.parse().unwrap());
        Outer { protocol, source, destination, header, payload }
    }

    #[test]
    fn every_envelope_is_opened_and_no_length_of_it_panics() {
        for is_v6 in [false, true] {
            for (envelope, protocol, packet) in packets(is_v6) {
                let opened = open(&outer(protocol, is_v6, &packet)).unwrap();
                let vip: IpAddr = "203.0.113.20".parse().unwrap();
                assert_eq!(opened, Opened { envelope, vip, inner: &INNER });
                for length in 0..packet.len() {
                    assert!(open(&outer(protocol, is_v6, &packet[..length])).is_err(), "{envelope} {length}");
                }
            }
        }
    }

    #[test]
    fn every_bit_of_the_headers_counts() {
        for is_v6 in [false, true] {
            for (envelope, protocol, packet) in packets(is_v6) {
                for bit in 0..(packet.len() - INNER.len()) * 8 {
                    // The low 14 bits of the UDP source port are free, and only over IPv6 does the checksum cover them.
                    let is_free = protocol == UDP && (2..16).contains(&bit) && !is_v6;
                    let mut changed = packet.clone();
                    changed[bit / 8] ^= 0x80 >> (bit % 8);
                    let is_seen =
                        open(&outer(protocol, is_v6, &changed)).map(|opened| opened.envelope) != Ok(envelope);
                    assert_eq!(is_seen, !is_free, "{envelope} over IPv6 {is_v6}: bit {bit}");
                }
            }
        }
    }

    #[test]
    fn the_outer_ipv4_header_is_that_of_the_gateway() {
        let right = outer(IPV4, false, &INNER);
        assert!(open(&right).is_ok());
        for (tos, is_df, ttl, fault) in [
            (1, true, 64, "wrong outer traffic class"),
            (0, false, 64, "the outer header lacks DF"),
            (0, true, 63, "wrong outer TTL"),
        ] {
            let wrong = Outer { header: Some(HeaderV4 { tos, is_df, ttl }), ..right };
            assert_eq!(open(&wrong), Err(fault));
        }
    }
}
