//! `decapsulate`: the receiver of a tunnel for tests, written from the RFCs and independent of
//! [`crate::encapsulation`].
//!
//! It is stricter than a real receiver: a field with only one correct value must have it. Checksums are computed word
//! by word.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A tunnel packet without its outer headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decapsulated {
    /// The outer source.
    pub source: IpAddr,
    /// The outer destination.
    pub destination: IpAddr,
    /// The outer DSCP and ECN.
    pub traffic_class: u8,
    /// The outer TTL or hop limit.
    pub hop_limit: u8,
    /// DF of an outer IPv4 header; true for IPv6.
    pub dont_fragment: bool,
    /// The flow label of an outer IPv6 header, otherwise 0.
    pub flow_label: u32,
    /// The tunnel: `ipip`, `gue1 6080`, `gue0 6080`, `gre`, `gre 7`,
    /// `geneve 6081 VNI IDENTITY`.
    pub tunnel: String,
    /// The UDP source port, 0 if there is none.
    pub source_port: u16,
    /// The inner packet.
    pub packet: Vec<u8>,
}

/// Removes the outer headers of an IP packet.
///
/// # Errors
/// What is wrong with the headers.
pub fn decapsulate(packet: &[u8]) -> Result<Decapsulated, String> {
    let first = *packet.first().ok_or("no bytes")?;
    let (mut outer, protocol, payload) = match first >> 4 {
        4 => outer_v4(packet)?,
        6 => outer_v6(packet)?,
        version => return Err(format!("version {version}")),
    };
    let (name, inner): (String, &[u8]) = match protocol {
        4 => ("ipip".into(), of_version(payload, 4)?),
        41 => ("ipip".into(), of_version(payload, 6)?),
        47 => gre(payload)?,
        17 => {
            check_udp(packet, payload)?;
            outer.source_port = word(payload, 0);
            let (port, behind) = (word(payload, 2), &payload[8..]);
            // Only Geneve has 12 bytes of options here; GUE has none.
            if behind.first() == Some(&3) { geneve(port, behind)? } else { gue(port, behind)? }
        }
        other => return Err(format!("protocol {other}")),
    };
    outer.tunnel = name;
    outer.packet = inner.to_vec();
    Ok(outer)
}

fn outer_v4(packet: &[u8]) -> Result<(Decapsulated, u8, &[u8]), String> {
    if packet.len() < 20 || packet[0] != 0x45 {
        return Err("an IPv4 header with options, or a truncated one".into());
    }
    if sum(&packet[..20]) != 0xffff {
        return Err("the checksum of the outer IPv4 header is wrong".into());
    }
    if usize::from(word(packet, 2)) != packet.len() {
        return Err(format!("total length {} of {} bytes", word(packet, 2), packet.len()));
    }
    let flags = word(packet, 6);
    if flags & !0x4000 != 0 {
        return Err("the outer packet is a fragment".into());
    }
    let address = |at: usize| Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
    let outer = Decapsulated {
        source: address(12).into(),
        destination: address(16).into(),
        traffic_class: packet[1],
        hop_limit: packet[8],
        dont_fragment: flags == 0x4000,
        flow_label: 0,
        tunnel: String::new(),
        source_port: 0,
        packet: Vec::new(),
    };
    Ok((outer, packet[9], &packet[20..]))
}

fn outer_v6(packet: &[u8]) -> Result<(Decapsulated, u8, &[u8]), String> {
    if packet.len() < 40 || usize::from(word(packet, 4)) != packet.len() - 40 {
        return Err(format!("an IPv6 packet of {} bytes with a wrong length", packet.len()));
    }
    let address = |at: usize| {
        let bytes: [u8; 16] = packet[at..at + 16].try_into().expect("sixteen bytes");
        Ipv6Addr::from(bytes)
    };
    let outer = Decapsulated {
        source: address(8).into(),
        destination: address(24).into(),
        traffic_class: packet[0] << 4 | packet[1] >> 4,
        hop_limit: packet[7],
        dont_fragment: true,
        flow_label: u32::from(packet[1] & 0xf) << 16 | u32::from(word(packet, 2)),
        tunnel: String::new(),
        source_port: 0,
        packet: Vec::new(),
    };
    Ok((outer, packet[6], &packet[40..]))
}

/// RFC 768; over IPv6 the checksum is required (RFC 8200 section 8.1).
fn check_udp(packet: &[u8], udp: &[u8]) -> Result<(), String> {
    if udp.len() < 8 || usize::from(word(udp, 4)) != udp.len() {
        return Err(format!("a UDP datagram of {} bytes with a wrong length", udp.len()));
    }
    let is_v4 = packet[0] >> 4 == 4;
    if word(udp, 6) == 0 {
        return if is_v4 { Ok(()) } else { Err("UDP over IPv6 without a checksum".into()) };
    }
    let addresses = if is_v4 { &packet[12..20] } else { &packet[8..40] };
    let len = u16::try_from(udp.len()).map_err(|_| "a UDP datagram above 65,535 bytes")?;
    let pseudo = [addresses, &len.to_be_bytes()[..], &[0, 17], udp].concat();
    if sum(&pseudo) == 0xffff { Ok(()) } else { Err("the UDP checksum is wrong".into()) }
}

/// RFC 2784 and RFC 2890, with a key as the only option.
fn gre(bytes: &[u8]) -> Result<(String, &[u8]), String> {
    if bytes.len() < 4 {
        return Err("a truncated GRE header".into());
    }
    let (name, rest) = match word(bytes, 0) {
        0 => ("gre".into(), &bytes[4..]),
        0x2000 if bytes.len() >= 8 => {
            let key = u32::from(word(bytes, 4)) << 16 | u32::from(word(bytes, 6));
            (format!("gre {key}"), &bytes[8..])
        }
        flags => return Err(format!("GRE flags {flags:#06x}")),
    };
    match word(bytes, 2) {
        0x0800 => Ok((name, of_version(rest, 4)?)),
        0x86dd => Ok((name, of_version(rest, 6)?)),
        kind => Err(format!("GRE protocol type {kind:#06x}")),
    }
}

/// draft-ietf-intarea-gue-09 sections 3 and 4.
fn gue(port: u16, bytes: &[u8]) -> Result<(String, &[u8]), String> {
    let first = *bytes.first().ok_or("nothing behind the UDP header")?;
    match first >> 6 {
        1 if first >> 4 == 4 => Ok((format!("gue1 {port}"), of_version(bytes, 4)?)),
        1 if first >> 4 == 6 => Ok((format!("gue1 {port}"), of_version(bytes, 6)?)),
        0 if bytes.len() >= 4 && first == 0 && word(bytes, 2) == 0 => {
            let version = match bytes[1] {
                4 => 4,
                41 => 6,
                other => return Err(format!("GUE protocol {other}")),
            };
            Ok((format!("gue0 {port}"), of_version(&bytes[4..], version)?))
        }
        _ => Err(format!("GUE begins with {first:#04x}")),
    }
}

/// RFC 8926 sections 3.4 and 3.5, with the option of docs/tunnels.md.
fn geneve(port: u16, bytes: &[u8]) -> Result<(String, &[u8]), String> {
    if bytes.len() < 20 {
        return Err("a truncated Geneve header".into());
    }
    if bytes[0] != 3 || bytes[1] != 0 || bytes[7] != 0 {
        return Err(format!("Geneve begins with {:02x?}", &bytes[..8]));
    }
    if bytes[8..12] != [0xff, 0x54, 1, 2] {
        return Err(format!("the Geneve option begins with {:02x?}", &bytes[8..12]));
    }
    let vni = u32::from(bytes[4]) << 16 | u32::from(word(bytes, 5));
    let identity: String = bytes[12..20].iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("geneve {port} {vni} {identity}");
    match word(bytes, 2) {
        0x0800 => Ok((name, of_version(&bytes[20..], 4)?)),
        0x86dd => Ok((name, of_version(&bytes[20..], 6)?)),
        kind => Err(format!("Geneve protocol type {kind:#06x}")),
    }
}

fn of_version(bytes: &[u8], version: u8) -> Result<&[u8], String> {
    match bytes.first() {
        Some(first) if first >> 4 == version => Ok(bytes),
        _ => Err(format!("the inner packet does not begin with version {version}")),
    }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from(bytes[at]) << 8 | u16::from(bytes[at + 1])
}

/// RFC 1071, word by word; 0xffff over data with a correct checksum.
fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
