//! Displays frames as one line or as a hexdump, for failing tests and reports.

use crate::arp::ArpOperation;
use crate::{Family, Fragment, Headers, Parsed, ethernet, parse, proto};
use core::fmt::Write;

/// One line: `02:00:00:00:00:01 > 02:00:00:00:00:02 192.0.2.1:1024 > 203.0.113.5:443 tcp [SYN] ttl 64 ip 40`.
pub fn summary(frame: &[u8]) -> String {
    match parse(frame) {
        Err(reason) => format!("malformed: {reason}, {} bytes", frame.len()),
        Ok(Parsed::Other) => {
            format!("{} ethertype {:02x}{:02x}, {} bytes", stations(frame), frame[12], frame[13], frame.len())
        }
        Ok(Parsed::Arp(arp)) => match arp.operation {
            ArpOperation::Reply => {
                format!("{} arp {} is at {}", stations(frame), arp.sender_ip, arp.sender_mac)
            }
            _ => format!("{} arp who has {}, from {}", stations(frame), arp.target_ip, arp.sender_ip),
        },
        Ok(Parsed::Ip(h)) => format!("{} {}", stations(frame), ip(&h)),
    }
}

fn stations(frame: &[u8]) -> String {
    format!("{} > {}", ethernet::source(frame), ethernet::destination(frame))
}

fn ip(h: &Headers) -> String {
    let mut line = h.vlan.map_or_else(String::new, |vlan| format!("vlan {vlan} "));
    let name = match h.proto {
        proto::TCP => "tcp".into(),
        proto::UDP => "udp".into(),
        proto::SCTP => "sctp".into(),
        proto::ICMP => "icmp".into(),
        proto::ICMPV6 => "icmpv6".into(),
        other => format!("proto {other}"),
    };
    if matches!(h.proto, proto::TCP | proto::UDP | proto::SCTP) && !h.is_later_fragment() {
        line += &format!("{} > {} {name}", socket(h, false), socket(h, true));
    } else {
        line += &format!("{} > {} {name}", h.src, h.dst);
    }
    match h.proto {
        proto::TCP if !h.is_later_fragment() => line += &format!(" [{}]", tcp_flags(h.tcp_flags)),
        proto::ICMP | proto::ICMPV6 => line += &format!(" {}/{}", h.icmp_type, h.icmp_code),
        _ => {}
    }
    match h.fragment {
        Fragment::None => {}
        Fragment::First { id } => line += &format!(" fragment {id}@0"),
        Fragment::Later { id, offset } => line += &format!(" fragment {id}@{offset}"),
    }
    line + &format!(" ttl {} ip {}", h.ttl, h.ip_len())
}

fn socket(h: &Headers, dst: bool) -> String {
    let (addr, port) = if dst { (h.dst, h.dst_port) } else { (h.src, h.src_port) };
    if h.family == Family::V6 { format!("[{addr}]:{port}") } else { format!("{addr}:{port}") }
}

/// `SYN,ACK`; `-` for none.
pub fn tcp_flags(flags: u8) -> String {
    let names = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
    let set: Vec<&str> =
        names.iter().enumerate().filter(|(bit, _)| flags >> bit & 1 != 0).map(|(_, name)| *name).collect();
    if set.is_empty() { "-".into() } else { set.join(",") }
}

/// Lines with the offset, 16 bytes, and their ASCII. Wireshark can import it.
pub fn hexdump(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (i, line) in bytes.chunks(16).enumerate() {
        let hex: Vec<String> = line.iter().map(|b| format!("{b:02x}")).collect();
        let ascii: String =
            line.iter().map(|b| if b.is_ascii_graphic() { char::from(*b) } else { '.' }).collect();
        writeln!(out, "{:06x}  {:<47}  {ascii}", i * 16, hex.join(" ")).expect("a String takes all");
    }
    out
}
