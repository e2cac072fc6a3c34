//! `Headers`: the result of the header checks for one frame, in one cache line, so that later stages don't parse again.
//!
//! Offsets count from the first byte of the frame. Ports and lengths are in host order. `parse` creates it, and every
//! stage reads it. Nothing here reads a frame.
//!
//! Invariant: for the frame it was parsed from, `l3 < l4 <= ip_end <= frame.len()`, and the transport header that
//! `l4_checksum` refers to is completely inside `l4..ip_end`.

use super::addr::Addr;
use super::vlan::VlanId;

/// IP protocol numbers (IANA "Protocol Numbers").
pub mod proto {
    #![allow(missing_docs, reason = "the names are the IANA keywords")]
    pub const HOP_BY_HOP: u8 = 0;
    pub const ICMP: u8 = 1;
    pub const IPIP: u8 = 4;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const IPV6: u8 = 41;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const GRE: u8 = 47;
    pub const ESP: u8 = 50;
    pub const AH: u8 = 51;
    pub const ICMPV6: u8 = 58;
    pub const NO_NEXT_HEADER: u8 = 59;
    pub const DESTINATION_OPTIONS: u8 = 60;
    pub const SCTP: u8 = 132;
}

/// IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Addr {
    /// The family of the address.
    #[inline]
    #[must_use]
    pub fn family(&self) -> Family {
        if self.is_v4() { Family::V4 } else { Family::V6 }
    }
}

/// The position of a packet in a fragmented one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fragment {
    /// The whole packet. An IPv6 "atomic" fragment (RFC 6946) counts as whole.
    None,
    /// The first fragment. It has the transport header, and more fragments follow.
    First {
        /// Identification: 16 bits in IPv4, 32 in IPv6.
        id: u32,
    },
    /// Any other fragment. It has no ports.
    Later {
        /// Identification: 16 bits in IPv4, 32 in IPv6.
        id: u32,
        /// Byte offset in the fragmented payload, a multiple of 8.
        offset: u16,
    },
}

/// The transport checksum that a rewrite of addresses or ports must keep correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum L4Checksum {
    /// No known checksum: a later fragment, or a protocol for which only the addresses are read.
    None,
    /// TCP: pseudo header, at offset 16.
    Tcp,
    /// UDP: pseudo header, at offset 6; a computed 0 is sent as 0xffff.
    Udp,
    /// UDP sent without a checksum (RFC 768; RFC 6936 for IPv6): zero stays zero.
    UdpZero,
    /// SCTP: CRC32c at offset 8, which covers the ports but no pseudo header.
    Sctp,
    /// ICMP: at offset 2, no pseudo header.
    Icmp,
    /// ICMPv6: at offset 2, with pseudo header.
    Icmpv6,
}

/// One checked IP packet in an Ethernet frame.
///
/// Fields that are equal in all usual packets are adjacent, so that they are written at once. They are not grouped into
/// structs by layer, because that would break this order and add padding to the cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Headers {
    /// Source address.
    pub src: Addr,
    /// Destination address.
    pub dst: Addr,
    /// Fragmentation.
    pub fragment: Fragment,
    /// Offset of the transport header, or of the bytes after the IP headers.
    pub l4: u16,
    /// The VLAN, `None` for untagged and for priority-tagged (VLAN 0) frames.
    pub vlan: Option<VlanId>,
    /// Offset of the IP header: 14, or 18 behind an 802.1Q tag.
    pub l3: u8,
    /// IP version.
    pub family: Family,
    /// ICMP or ICMPv6 type, 0 for other protocols.
    pub icmp_type: u8,
    /// ICMP or ICMPv6 code, 0 for other protocols.
    pub icmp_code: u8,
    /// Offset one past the IP packet. The bytes after it are Ethernet padding.
    pub ip_end: u16,
    /// Source port, or the identifier of an ICMP echo; 0 if there is none.
    pub src_port: u16,
    /// Destination port, or the identifier of an ICMP echo; 0 if there is none.
    pub dst_port: u16,
    /// The protocol of the header at `l4`. In a later fragment: the protocol that its fragment header names.
    pub proto: u8,
    /// TCP flags (`tcp::flags`); for SCTP the number of its `sctp::Kind`; 0 for other protocols.
    pub tcp_flags: u8,
    /// TTL or hop limit as received.
    pub ttl: u8,
    /// TOS or traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub tos: u8,
    /// IPv4 DF. Always true for IPv6, which routers never fragment.
    pub dont_fragment: bool,
    /// The transport checksum that a rewrite must keep correct.
    pub l4_checksum: L4Checksum,
}

const _: () = assert!(size_of::<Headers>() <= 64, "Headers is meant to fit one cache line");

impl Headers {
    /// Bytes of the IP packet, its header included: the length that is compared with an MTU.
    #[inline]
    pub const fn ip_len(&self) -> u16 {
        self.ip_end - self.l3 as u16
    }

    /// True when this packet is a fragment, the first one included.
    #[inline]
    pub const fn is_fragment(&self) -> bool {
        !matches!(self.fragment, Fragment::None)
    }

    /// True for a fragment other than the first: it has no ports.
    #[inline]
    pub const fn is_later_fragment(&self) -> bool {
        matches!(self.fragment, Fragment::Later { .. })
    }

    /// Whether this is an ICMP or ICMPv6 error, which quotes the packet that it is about. False for later fragments,
    /// whose type is not known.
    #[inline]
    pub const fn is_icmp_error(&self) -> bool {
        match self.l4_checksum {
            // RFC 792 / RFC 1122 3.2.2: unreachable, source quench, redirect, time exceeded, parameter problem.
            L4Checksum::Icmp => matches!(self.icmp_type, 3 | 4 | 5 | 11 | 12),
            // RFC 4443 2.1: the high bit is clear for errors.
            L4Checksum::Icmpv6 => self.icmp_type < 128,
            _ => false,
        }
    }

    /// True for an ICMP redirect (RFC 792, RFC 4861 4.5): a message from a router to a host on its own link.
    #[inline]
    pub const fn is_redirect(&self) -> bool {
        match self.l4_checksum {
            L4Checksum::Icmp => self.icmp_type == 5,
            L4Checksum::Icmpv6 => self.icmp_type == 137,
            _ => false,
        }
    }

    /// True for an echo request of the packet's own family.
    #[inline]
    pub const fn is_echo_request(&self) -> bool {
        match self.l4_checksum {
            L4Checksum::Icmp => self.icmp_type == 8 && self.icmp_code == 0,
            L4Checksum::Icmpv6 => self.icmp_type == 128 && self.icmp_code == 0,
            _ => false,
        }
    }

    /// Whether it is an ICMP or ICMPv6 echo reply.
    #[must_use]
    pub const fn is_echo_reply(&self) -> bool {
        match self.l4_checksum {
            L4Checksum::Icmp => self.icmp_type == 0 && self.icmp_code == 0,
            L4Checksum::Icmpv6 => self.icmp_type == 129 && self.icmp_code == 0,
            _ => false,
        }
    }
}
