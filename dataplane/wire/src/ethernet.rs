//! Ethernet II: addresses, the header, and writing it with or without an 802.1Q tag.
//!
//! The NIC handles the frame check sequence, which is never in our buffers, and the padding to 60 bytes.

use super::vlan::{TAG_LEN, VlanId};
use core::fmt;
use core::str::FromStr;

/// A small frame that is built here rather than forwarded: ARP, neighbour discovery, RST.
pub type SmallFrame = arrayvec::ArrayVec<u8, 128>;

/// Bytes of the shortest frame, without the check sequence. The sender pads shorter frames.
pub const FRAME_LEN_MIN: usize = 60;
/// Bytes of an untagged header.
pub const HEADER_LEN: usize = 14;
/// Bytes of a header with one tag.
pub const HEADER_LEN_MAX: usize = HEADER_LEN + TAG_LEN;

/// Ethertypes.
pub mod ether_type {
    #![allow(missing_docs, reason = "the names are self-explanatory")]
    pub const IPV4: u16 = 0x0800;
    pub const ARP: u16 = 0x0806;
    pub const VLAN: u16 = 0x8100;
    pub const IPV6: u16 = 0x86dd;
}

/// A 48-bit Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);
    /// 00:00:00:00:00:00.
    pub const ZERO: MacAddr = MacAddr([0; 6]);

    /// True for group addresses, broadcast included.
    #[inline]
    pub const fn is_multicast(&self) -> bool {
        self.0[0] & 1 != 0
    }

    /// True when the address can belong to a single station: not a group address and not all zero.
    #[inline]
    pub fn is_unicast(&self) -> bool {
        !self.is_multicast() && *self != MacAddr::ZERO
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not six two-digit hexadecimal bytes joined by colons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an Ethernet address; accepted: six hexadecimal bytes such as 02:00:00:00:00:01")]
pub struct MacAddrError;

impl FromStr for MacAddr {
    type Err = MacAddrError;

    /// Reads `02:00:00:00:00:01`. Hyphens are accepted instead of colons, as some tools print them.
    fn from_str(s: &str) -> Result<MacAddr, MacAddrError> {
        let mut bytes = [0; 6];
        let mut parts = s.split([':', '-']);
        for b in &mut bytes {
            let part = parts.next().ok_or(MacAddrError)?;
            if part.len() != 2 || !part.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err(MacAddrError);
            }
            *b = u8::from_str_radix(part, 16).map_err(|_| MacAddrError)?;
        }
        if parts.next().is_some() { Err(MacAddrError) } else { Ok(MacAddr(bytes)) }
    }
}

/// The destination of a frame of at least 6 bytes.
///
/// # Panics
/// When the frame is shorter, and so was not parsed.
#[inline]
pub fn destination(frame: &[u8]) -> MacAddr {
    MacAddr(*frame.first_chunk().expect("a parsed frame has an Ethernet header"))
}

/// Whether a frame is addressed to this station alone.
#[inline]
pub fn is_to(frame: &[u8], station: &MacAddr) -> bool {
    frame.first_chunk() == Some(&station.0)
}

/// The source of a frame of at least 12 bytes.
///
/// # Panics
/// When the frame is shorter, and so was not parsed.
#[inline]
pub fn source(frame: &[u8]) -> MacAddr {
    MacAddr(*frame[6..].first_chunk().expect("a parsed frame has an Ethernet header"))
}

/// Overwrites both addresses. Tag and ethertype stay.
///
/// # Panics
/// When the frame is shorter than 12 bytes, and so was not parsed.
#[inline]
pub fn set_addresses(frame: &mut [u8], dst: MacAddr, src: MacAddr) {
    let head: &mut [u8; 12] = frame.first_chunk_mut().expect("a parsed frame has an Ethernet header");
    head[..6].copy_from_slice(&dst.0);
    head[6..].copy_from_slice(&src.0);
}

/// An Ethernet header to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetHeader {
    /// Destination.
    pub dst: MacAddr,
    /// Source.
    pub src: MacAddr,
    /// The 802.1Q tag, priority 0, or none.
    pub vlan: Option<VlanId>,
    /// The ethertype of the payload.
    pub ether_type: u16,
}

impl EthernetHeader {
    /// 14, or 18 with a tag.
    #[inline]
    pub const fn len(&self) -> usize {
        if self.vlan.is_some() { HEADER_LEN_MAX } else { HEADER_LEN }
    }

    /// Always false: a header has bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the header at the beginning of `out` and returns its length.
    ///
    /// # Panics
    /// When `out` is shorter than [`Self::len`].
    #[inline]
    pub fn write(&self, out: &mut [u8]) -> usize {
        set_addresses(out, self.dst, self.src);
        match self.vlan {
            None => {
                out[12..14].copy_from_slice(&self.ether_type.to_be_bytes());
                HEADER_LEN
            }
            Some(vlan) => {
                let [t, y] = ether_type::VLAN.to_be_bytes();
                let [v, l] = vlan.value().to_be_bytes();
                let [e, f] = self.ether_type.to_be_bytes();
                out[12..18].copy_from_slice(&[t, y, v, l, e, f]);
                HEADER_LEN_MAX
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_text_round_trips_and_refuses_other_shapes() {
        let mac: MacAddr = "02:00:5e:Ff:00:01".parse().unwrap();
        assert_eq!(mac.to_string(), "02:00:5e:ff:00:01");
        for bad in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "2:0:0:0:0:1",
            "+2:00:00:00:00:01",
            "02:00:00:00:00:0g",
        ] {
            assert_eq!(bad.parse::<MacAddr>(), Err(MacAddrError), "{bad:?}");
        }
    }

    #[test]
    fn group_and_zero_addresses_are_not_unicast() {
        assert!(MacAddr::BROADCAST.is_multicast());
        assert!(MacAddr([1, 0, 0x5e, 0, 0, 1]).is_multicast());
        assert!(!MacAddr::ZERO.is_unicast());
        assert!(MacAddr([2, 0, 0, 0, 0, 1]).is_unicast());
    }

    #[test]
    fn header_is_written_with_and_without_tag() {
        let mut h = EthernetHeader {
            dst: MacAddr([1, 2, 3, 4, 5, 6]),
            src: MacAddr([7, 8, 9, 10, 11, 12]),
            vlan: None,
            ether_type: ether_type::IPV6,
        };
        let mut out = [0; 18];
        assert_eq!(h.write(&mut out), 14);
        assert_eq!(out[..14], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x86, 0xdd]);
        h.vlan = VlanId::new(100);
        assert_eq!(h.write(&mut out), 18);
        assert_eq!(out[12..], [0x81, 0, 0, 100, 0x86, 0xdd]);
    }
}
