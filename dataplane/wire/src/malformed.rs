//! Every reason why the header checks refuse a frame, one variant each.
//!
//! Users see the names (`drops_total{reason}`, `replay --json`), so they are stable snake_case. Packets that are valid
//! but unwanted (an unknown service, a port of zero) are refused by policy and have no variant here. Source routes do
//! have a variant, because no node should follow them.
//!
//! Invariant: each variant is produced by at least one test (`tests/checks.rs`).

documented! {
    /// Why a frame failed the header checks. `ALL[m as usize] == m`.
    #[derive(PartialOrd, Ord, Hash)]
    #[repr(u8)]
    pub enum Malformed {
        /// The frame is longer than 65,535 bytes; our offsets are 16 bits wide.
        FrameTooLong => "frame_too_long",
        /// Fewer than 14 bytes.
        EthernetTruncated => "ethernet_truncated",
        /// An 802.1Q ethertype followed by fewer than 4 bytes.
        VlanTruncated => "vlan_truncated",
        /// VLAN 4095, which IEEE 802.1Q table 9-2 reserves.
        VlanReserved => "vlan_reserved",
        /// ARP shorter than the 28 bytes of Ethernet/IPv4 ARP.
        ArpTruncated => "arp_truncated",
        /// ARP for another hardware or protocol type, or with other address lengths (RFC 826).
        ArpFormat => "arp_format",
        /// An IPv4 ethertype followed by fewer than 20 bytes.
        Ipv4Truncated => "ipv4_truncated",
        /// IPv4 ethertype, but the version field is not 4.
        Ipv4Version => "ipv4_version",
        /// The IHL is below 5 words, or the header exceeds the packet.
        Ipv4HeaderLength => "ipv4_header_length",
        /// The total length is below the header length or beyond the frame.
        Ipv4TotalLength => "ipv4_total_length",
        /// The IPv4 header checksum is wrong (RFC 1812, 5.2.2).
        Ipv4Checksum => "ipv4_checksum",
        /// An IPv4 option that exceeds the header, or has a length below 2.
        Ipv4Options => "ipv4_options",
        /// An IPv4 source route (LSRR, SSRR: RFC 7126 4.3, 4.4), or an IPv6 routing header with segments left (RFC 5095). A
        /// sender could use it to bypass filters, and the destination in the header is not the final one.
        SourceRoute => "source_route",
        /// An IPv6 ethertype followed by fewer than 40 bytes.
        Ipv6Truncated => "ipv6_truncated",
        /// IPv6 ethertype, but the version field is not 6.
        Ipv6Version => "ipv6_version",
        /// The payload length is beyond the frame.
        Ipv6PayloadLength => "ipv6_payload_length",
        /// An IPv4-mapped address (`::ffff:0:0/96`) in an IPv6 header. Such an address identifies no host on a network (RFC
        /// 6890).
        Ipv6MappedAddress => "ipv6_mapped_address",
        /// An extension header exceeds the packet.
        Ipv6ExtensionTruncated => "ipv6_extension_truncated",
        /// More extension headers than `ipv6::EXTENSION_HEADERS_MAX`.
        Ipv6ExtensionChain => "ipv6_extension_chain",
        /// Hop-by-hop options anywhere but directly after the IPv6 header (RFC 8200, 4.1).
        Ipv6HopByHopPosition => "ipv6_hop_by_hop_position",
        /// A fragment other than the last one whose length is not a positive multiple of 8 bytes (RFC 791, RFC 8200 4.5).
        FragmentLength => "fragment_length",
        /// The fragment ends beyond byte 65,535 of the packet it belongs to.
        FragmentBeyondEnd => "fragment_beyond_end",
        /// A later fragment starts within the TCP or SCTP header. The first fragment contains all of that header, so the
        /// later one could overwrite the flags (RFC 1858 section 3, RFC 3128).
        FragmentInHeader => "fragment_in_header",
        /// Fewer than 20 bytes of TCP.
        TcpTruncated => "tcp_truncated",
        /// A TCP data offset below 5 words or beyond the packet.
        TcpDataOffset => "tcp_data_offset",
        /// Fewer than 8 bytes of UDP.
        UdpTruncated => "udp_truncated",
        /// A UDP length below 8 or beyond the packet.
        UdpLength => "udp_length",
        /// Fewer than the 12 bytes of the SCTP common header.
        SctpTruncated => "sctp_truncated",
        /// Fewer than 8 bytes of ICMP.
        IcmpTruncated => "icmp_truncated",
        /// Fewer than 8 bytes of ICMPv6.
        Icmpv6Truncated => "icmpv6_truncated",
        /// An ICMP error quotes less than an IP header and 8 bytes (RFC 792).
        QuoteTruncated => "quote_truncated",
        /// The packet quoted by an ICMP error has a bad version or header length.
        QuoteHeader => "quote_header",
        /// Neighbour discovery shorter than its fixed part, or an option of length zero or past the end.
        NdpTruncated => "ndp_truncated",
        /// Neighbour discovery that receivers must discard (RFC 4861 7.1: hop limit, code, checksum, addresses).
        NdpInvalid => "ndp_invalid",
    }
}

impl core::error::Error for Malformed {}
