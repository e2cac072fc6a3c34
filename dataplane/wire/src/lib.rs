//! Frames: checked once, then read and rewritten through plain offsets.
//!
//! [`parse`] checks every header up to the transport header in one pass and returns a [`Headers`] of one cache line;
//! later stages don't parse again. Other functions rewrite a frame ([`rewrite`]), write outer headers ([`ipv4`],
//! [`ipv6`], [`ethernet`]) or convert a frame to its answer ([`icmp`], [`tcp::reset`], [`arp`], [`ndp`]). Policy,
//! look-ups and counters are elsewhere. Used by the pipeline and the forwarding modes.
//!
//! `parse` refuses frames that no receiver could use, and source routes, which no receiver should follow. It checks the
//! IPv4 header checksum. Only end hosts check transport checksums: rewrites are incremental, so a wrong checksum stays
//! wrong.
//!
//! Invariant: no allocation, and no panic for any input. Functions that take a frame with its `Headers` panic only if
//! the two don't belong together, which is a bug of the caller.
//!
//! May depend on: nothing of Tidegate. The feature `testing` adds code shared by tests, benches and fuzz runs.
#![deny(unsafe_code)]

// First, because the other modules use its macro.
#[macro_use]
mod names;

pub mod addr;
pub mod arp;
pub mod checksum;
pub mod cut;
pub mod decapsulation;
pub mod encapsulation;
pub mod ethernet;
pub mod headers;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod malformed;
pub mod mss;
pub mod ndp;
pub mod partial_checksum;
pub mod proxy_header;
pub mod proxy_tlvs;
pub mod quote;
pub mod rewrite;
pub mod sctp;
pub mod sctp_parameters;
pub mod tcp;
pub mod tcp_options;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod transport;
pub mod udp;
pub mod usual;
pub mod vlan;

pub use addr::Addr;
pub use arp::ArpPacket;
pub use ethernet::{EthernetHeader, MacAddr, SmallFrame};
pub use headers::{Family, Fragment, Headers, L4Checksum, proto};
pub use malformed::Malformed;
pub use names::Named;
pub use vlan::VlanId;

use ethernet::ether_type;

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "the large variant is nearly every packet")]
pub enum Parsed {
    /// IPv4 or IPv6.
    Ip(Headers),
    /// ARP for IPv4 over Ethernet.
    Arp(ArpPacket),
    /// Another ethertype, including stacked VLAN tags. The kernel handles it.
    Other,
}

/// Checks all headers of an Ethernet frame.
///
/// Always inlined into its few callers, so that the `Headers` are written once, where the caller keeps them. A call and
/// a copy double the time (see `transport`). About 12 ns for a TCP or UDP packet of either family in cache.
///
/// # Errors
/// The first error found, from the outermost header inwards.
///
/// # Examples
/// ```
/// use tidegate_wire::{Parsed, parse, tcp, testing::Builder};
/// let frame = Builder::tcp("192.0.2.1:1024", "203.0.113.5:443").flags(tcp::flags::SYN).build();
/// let Ok(Parsed::Ip(h)) = parse(&frame) else { panic!("not IP") };
/// assert_eq!((h.dst.to_string().as_str(), h.dst_port, h.tcp_flags), ("203.0.113.5", 443, tcp::flags::SYN));
/// ```
#[inline(always)]
pub fn parse(frame: &[u8]) -> Result<Parsed, Malformed> {
    if frame.len() > usize::from(u16::MAX) {
        return Err(Malformed::FrameTooLong);
    }
    let (header, rest) =
        frame.split_first_chunk::<{ ethernet::HEADER_LEN }>().ok_or(Malformed::EthernetTruncated)?;
    let outer = u16::from_be_bytes([header[12], header[13]]);
    let (packet, l3, vlan, ether_type) = if outer == ether_type::VLAN {
        let (vlan, inner) = vlan::parse(rest)?;
        (&rest[vlan::TAG_LEN..], ethernet::HEADER_LEN_MAX as u8, vlan, inner)
    } else {
        (rest, ethernet::HEADER_LEN as u8, None, outer)
    };
    match ether_type {
        ether_type::IPV4 => ipv4::parse(packet, l3, vlan).map(Parsed::Ip),
        ether_type::IPV6 => ipv6::parse(packet, l3, vlan).map(Parsed::Ip),
        ether_type::ARP => arp::parse(packet, vlan).map(Parsed::Arp),
        _ => Ok(Parsed::Other),
    }
}

#[cfg(test)]
mod tests;
