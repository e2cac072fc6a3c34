//! The fields of a frame by name, in order, for comparison and display.
//!
//! It doesn't use [`crate::parse`], because tests use it to check the rewrites. Every byte belongs to exactly one
//! field; unnamed bytes are `payload`, `trailer` or `rest`.

use crate::MacAddr;
use core::net::{Ipv4Addr, Ipv6Addr};

/// A field: `ipv4.ttl`, `64`. Inside tunnels and ICMP errors the name has a prefix (`inner.`, `quoted.`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name of the field.
    pub name: String,
    /// The value. Bytes without a format of their own are hexadecimal.
    pub value: String,
}

/// All fields of a frame.
pub fn fields(frame: &[u8]) -> Vec<Field> {
    let mut w = Walk { rest: frame, prefix: String::new(), out: Vec::new() };
    w.ethernet();
    w.bytes("rest", usize::MAX);
    w.out
}

struct Walk<'a> {
    rest: &'a [u8],
    prefix: String,
    out: Vec<Field>,
}

impl<'a> Walk<'a> {
    fn push(&mut self, name: &str, value: String) {
        self.out.push(Field { name: format!("{}{name}", self.prefix), value });
    }

    /// The next `N` bytes, unless the frame ends earlier.
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }

    fn bytes(&mut self, name: &str, len: usize) {
        let (head, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        if !head.is_empty() {
            self.push(name, hex(head));
        }
    }

    fn be16(&mut self, name: &str) -> Option<u16> {
        let value = u16::from_be_bytes(self.take()?);
        let hexadecimal = name.ends_with("checksum") || name.ends_with("type");
        self.push(name, if hexadecimal { format!("{value:#06x}") } else { value.to_string() });
        Some(value)
    }

    fn be32(&mut self, name: &str) -> Option<()> {
        let value = u32::from_be_bytes(self.take()?);
        self.push(name, value.to_string());
        Some(())
    }

    fn be8(&mut self, name: &str) -> Option<u8> {
        let [value] = self.take()?;
        self.push(name, value.to_string());
        Some(value)
    }

    fn ethernet(&mut self) -> Option<()> {
        let dst = MacAddr(self.take()?);
        self.push("eth.dst", dst.to_string());
        let src = MacAddr(self.take()?);
        self.push("eth.src", src.to_string());
        let mut kind = self.be16("eth.type")?;
        while kind == 0x8100 {
            self.be16("vlan.tci")?;
            kind = self.be16("vlan.type")?;
        }
        match kind {
            0x0800 | 0x86dd => self.ip(),
            _ => None,
        }
    }

    fn ip(&mut self) -> Option<()> {
        match self.rest.first()? >> 4 {
            4 => self.ipv4(),
            6 => self.ipv6(),
            _ => None,
        }
    }

    fn ipv4(&mut self) -> Option<()> {
        let packet_len = self.rest.len();
        let [version_ihl, tos] = self.take()?;
        self.push("ipv4.version_ihl", format!("{version_ihl:#04x}"));
        self.push("ipv4.tos", format!("{tos:#04x}"));
        let total = usize::from(self.be16("ipv4.total_len")?);
        self.be16("ipv4.id")?;
        let fragment = u16::from_be_bytes(self.take()?);
        self.push("ipv4.fragment", format!("{fragment:#06x}"));
        self.be8("ipv4.ttl")?;
        let proto = self.be8("ipv4.proto")?;
        self.be16("ipv4.checksum")?;
        let src = Ipv4Addr::from(self.take::<4>()?);
        self.push("ipv4.src", src.to_string());
        let dst = Ipv4Addr::from(self.take::<4>()?);
        self.push("ipv4.dst", dst.to_string());
        let header_len = usize::from(version_ihl & 0xf) * 4;
        self.bytes("ipv4.options", header_len.saturating_sub(20));
        self.inside(total.min(packet_len).saturating_sub(header_len), |w| {
            if fragment & 0x1fff == 0 { w.transport(proto) } else { None }
        });
        Some(())
    }

    fn ipv6(&mut self) -> Option<()> {
        let first = u32::from_be_bytes(self.take()?);
        self.push("ipv6.version", (first >> 28).to_string());
        self.push("ipv6.traffic_class", format!("{:#04x}", first >> 20 & 0xff));
        self.push("ipv6.flow_label", format!("{:#07x}", first & 0xf_ffff));
        let len = usize::from(self.be16("ipv6.payload_len")?);
        let mut next = self.be8("ipv6.next_header")?;
        self.be8("ipv6.hop_limit")?;
        let src = Ipv6Addr::from(self.take::<16>()?);
        self.push("ipv6.src", src.to_string());
        let dst = Ipv6Addr::from(self.take::<16>()?);
        self.push("ipv6.dst", dst.to_string());
        self.inside(len, |w| {
            let mut later = false;
            while matches!(next, 0 | 43 | 44 | 51 | 60) && !later {
                let (kind, length) = (*w.rest.first()?, usize::from(*w.rest.get(1)?));
                later = next == 44 && w.rest.get(2..4)? != [0, 0] && w.rest.get(2..4)? != [0, 1];
                let bytes = match next {
                    44 => 8,
                    51 => (length + 2) * 4,
                    _ => (length + 1) * 8,
                };
                w.bytes(&format!("ipv6.extension_{next}"), bytes);
                next = kind;
            }
            if later { None } else { w.transport(next) }
        });
        Some(())
    }

    /// Runs `walk` on the next `len` bytes. Bytes that it doesn't consume are payload; bytes after them are the
    /// trailer.
    fn inside(&mut self, len: usize, walk: impl FnOnce(&mut Walk<'a>) -> Option<()>) {
        let (packet, trailer) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = packet;
        let prefix = self.prefix.clone();
        let _ended_early = walk(self);
        self.prefix = prefix;
        self.bytes("payload", usize::MAX);
        self.rest = trailer;
        self.bytes("trailer", usize::MAX);
    }

    fn transport(&mut self, proto: u8) -> Option<()> {
        match proto {
            4 | 41 => {
                self.prefix.push_str("inner.");
                self.ip()
            }
            6 => self.tcp(),
            17 => {
                self.be16("udp.src_port")?;
                self.be16("udp.dst_port")?;
                self.be16("udp.len")?;
                self.be16("udp.checksum").map(drop)
            }
            132 => {
                self.be16("sctp.src_port")?;
                self.be16("sctp.dst_port")?;
                self.be32("sctp.tag")?;
                let crc: [u8; 4] = self.take()?;
                self.push("sctp.checksum", hex(&crc));
                Some(())
            }
            1 => self.icmp("icmp", |kind| matches!(kind, 3 | 4 | 5 | 11 | 12)),
            58 => self.icmp("icmpv6", |kind| kind < 128),
            _ => None,
        }
    }

    fn tcp(&mut self) -> Option<()> {
        self.be16("tcp.src_port")?;
        self.be16("tcp.dst_port")?;
        self.be32("tcp.seq")?;
        self.be32("tcp.ack")?;
        let offset = self.be8("tcp.offset")?;
        let [flags] = self.take()?;
        self.push("tcp.flags", super::show::tcp_flags(flags));
        self.be16("tcp.window")?;
        self.be16("tcp.checksum")?;
        self.be16("tcp.urgent")?;
        self.bytes("tcp.options", (usize::from(offset >> 4) * 4).saturating_sub(20));
        Some(())
    }

    fn icmp(&mut self, layer: &str, is_error: impl Fn(u8) -> bool) -> Option<()> {
        let kind = self.be8(&format!("{layer}.type"))?;
        self.be8(&format!("{layer}.code"))?;
        self.be16(&format!("{layer}.checksum"))?;
        self.bytes(&format!("{layer}.rest"), 4);
        if !is_error(kind) {
            return None;
        }
        self.prefix.push_str("quoted.");
        self.ip()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
