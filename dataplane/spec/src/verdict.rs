//! The verdict on a frame and its reason: every frame ends with exactly one verdict, and every reason has a counter.
//!
//! Reasons are the values of `tidegate_drops_total{reason}`, of `replay --json` and of `drops`, so their snake_case
//! names are an interface.

use tidegate_wire::Malformed;
use tidegate_wire::decapsulation::Closed;

use crate::ids::{InterfaceIndex, WorkerIndex};

/// The result for one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Send the frame, as rewritten, out of this interface.
    Transmit {
        /// The egress interface.
        interface: InterfaceIndex,
        /// Whether the frame is forwarded or answered by the gateway.
        why: TransmitReason,
    },
    /// Hand the frame, unchanged, to the kernel.
    Punt(PuntReason),
    /// Hand the frame, unchanged, to the worker that owns its flow.
    HandOver(WorkerIndex),
    /// Drop the frame.
    Drop(DropReason),
}

macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($(#[doc = $vdoc:literal])+ $variant:ident => $text:literal,)+ }) => {
        tidegate_wire::documented! {
            $(#[$doc])*
            #[derive(PartialOrd, Ord, Hash)]
            #[repr(u8)]
            pub enum $name { $($(#[doc = $vdoc])+ $variant => $text,)+ }
        }

        impl $name {
            /// Position in [`Self::ALL`].
            #[inline]
            #[must_use]
            pub fn index(self) -> usize {
                self as usize
            }
        }
    };
}

reasons! {
    /// Why a frame is sent.
    TransmitReason {
        /// To a backend.
        Forward => "forward",
        /// From a backend to its client.
        Reply => "reply",
        /// An answer to an ARP request for an address of the gateway.
        ArpReply => "arp_reply",
        /// An answer to a neighbour solicitation for an address of the gateway (RFC 4861).
        NeighborAdvertisement => "neighbor_advertisement",
        /// An answer to a ping of a VIP.
        EchoReply => "echo_reply",
        /// TCP RST or ICMP port unreachable: the service has no backend.
        NoEndpoints => "no_endpoints",
        /// TCP RST: the segment belongs to no known flow, in a mode that needs state.
        NoFlow => "no_flow",
        /// The gateway's own part in a handshake with a SYN cookie: the SYN ACK to a client of a service under flood,
        /// and the acknowledgement of the backend's SYN ACK.
        SynCookie => "syn_cookie",
        /// TCP RST or ICMP port unreachable: the VIP does not serve this port.
        NoService => "no_service",
        /// Packet too big, to the sender of a packet that does not fit the path to its backend or client.
        PacketTooBig => "packet_too_big",
        /// Time exceeded: the packet's TTL or hop limit ends here.
        TtlExceeded => "ttl_exceeded",
        /// From a backend's network to the outside, by a route (`dataplane.gateway`).
        Routed => "routed",
        /// Routed with a SNAT address as the source, or an answer to such a packet (`dataplane.gateway.masquerade`).
        Masqueraded => "masqueraded",
        /// ICMP "administratively prohibited" or "no route": traffic of a backend's network that is not forwarded.
        NotRouted => "not_routed",
        /// An ICMP error about a flow, forwarded to the flow's other end.
        IcmpError => "icmp_error",
        /// The SYN of a connection that a backend refused, sent to another backend instead of forwarding the refusal.
        Retried => "retried",
    }
}

reasons! {
    /// Why a frame goes to the kernel.
    PuntReason {
        /// Neither IP nor ARP for an address of the gateway.
        NotIp => "not_ip",
        /// To an address of the gateway itself, to a group, or to everyone.
        Local => "local",
        /// From a VIP to an address of the gateway itself: a backend's answer to a check at the VIP. Packets that
        /// answer no check are dropped as `bad_source` instead.
        ProbeAnswer => "probe_answer",
        /// Between other hosts: neither to an address of the gateway nor from a backend.
        NotOurs => "not_ours",
    }
}

reasons! {
    /// The kinds of answers that are rate limited (`reply_limit`), each separately.
    AnswerKind {
        /// ICMP "fragmentation needed" and ICMPv6 "packet too big".
        PacketTooBig => "packet_too_big",
        /// ICMP and ICMPv6 "time exceeded".
        TimeExceeded => "time_exceeded",
        /// TCP RST.
        Reset => "reset",
        /// ICMP and ICMPv6 "destination unreachable" with any code.
        Unreachable => "unreachable",
    }
}

reasons! {
    /// Why a frame with valid headers is dropped.
    Refusal {
        /// A source that no packet from the wire may have: unspecified, loopback, multicast, broadcast, the network or
        /// broadcast address of a connected network, or an address of the gateway; for new flows also the next hop of a
        /// default route, and link-local from beyond the link.
        BadSource => "bad_source",
        /// An ARP or neighbour discovery packet in which another station claims an address of the gateway.
        AddressConflict => "address_conflict",
        /// To another station's link address.
        OtherStation => "other_station",
        /// A unicast packet in a multicast or broadcast frame (RFC 1812 5.3.4, RFC 1122 3.3.6). If it were answered,
        /// every station of the group would answer.
        GroupFrame => "group_frame",
        /// The 802.1Q tag differs from the interface's.
        VlanMismatch => "vlan_mismatch",
        /// To a VIP, but to a port that it does not serve, and no answer may be sent.
        NoService => "no_service",
        /// From a client that the service's source ranges do not admit.
        SourceRange => "source_range",
        /// From a source that the gateway's own list refuses (`protection.deny`).
        SourceDenied => "source_denied",
        /// A new flow of a source prefix that exceeds the rate of `protection.newConnections`.
        SourceConnectionRate => "source_connection_rate",
        /// A new flow of a Service that has reached its `max-connections`.
        ServiceConnections => "service_connections",
        /// A new flow of a Service beyond its `max-connection-rate`.
        ServiceConnectionRate => "service_connection_rate",
        /// A packet of a Service beyond its `max-bandwidth` in this direction.
        ServiceBandwidth => "service_bandwidth",
        /// A protocol that VIPs do not serve.
        UnsupportedProtocol => "unsupported_protocol",
        /// The service has no backend and is configured to drop, or the answer is over the rate limit.
        NoEndpoints => "no_endpoints",
        /// The TTL or hop limit is exceeded, and no answer may be sent.
        TtlExceeded => "ttl_exceeded",
        /// The packet does not fit the path, and no answer may be sent.
        TooBig => "too_big",
        /// Traffic that a backend's network originates and that is not forwarded, and no answer may be sent.
        NotRouted => "not_routed",
        /// No route to the next hop.
        NoRoute => "no_route",
        /// The link address of the next hop is not known (yet).
        NeighborUnresolved => "neighbor_unresolved",
        /// A TCP segment that is not a SYN, of an unknown flow, in a mode that needs state, and no answer may be sent.
        NoFlow => "no_flow",
        /// A segment of a handshake with a SYN cookie that cannot be answered or replaced: it is in fragments, or from
        /// a link-layer group.
        SynCookie => "syn_cookie",
        /// To a SNAT address, but to none of its flows, and no answer may be sent.
        NoSnatFlow => "no_snat_flow",
        /// The client's address and port already reach the same backend through another service port, and no other port
        /// of the client was found free towards it.
        NatConflict => "nat_conflict",
        /// The chosen backend is the client itself, in mode `nat` and without a SNAT address of the family: its answer
        /// would not return through the gateway.
        Hairpin => "hairpin",
        /// Every flow that could be evicted is established and in use, in a mode that needs state.
        FlowTableFull => "flow_table_full",
        /// The service has reached its share of a full flow table, in a mode that needs state.
        ServiceFlowShare => "service_flow_share",
        /// A backend's refusal of a connection, which is not forwarded because the client's next SYN goes to another
        /// backend.
        BackendRefused => "backend_refused",
        /// No free SNAT port towards this backend: all ports that were examined belong to established flows.
        SnatPortsExhausted => "snat_ports_exhausted",
        /// A new masqueraded flow of a backend's network: the table of these flows, or the share of its source, is full
        /// of established ones.
        MasqueradeFull => "masquerade_full",
        /// A fragment whose first fragment was not seen.
        FragmentUnknown => "fragment_unknown",
        /// An SCTP packet in fragments, in a mode that changes its ports: its checksum spans the fragments.
        SctpFragment => "sctp_fragment",
        /// A client's packet in fragments that must carry a header of the PROXY protocol: the offsets of the later
        /// fragments would change.
        ProxyFragment => "proxy_fragment",
        /// An ICMP error about an unknown flow.
        IcmpErrorUnknown => "icmp_error_unknown",
        /// An ICMP or ICMPv6 redirect that is not for the kernel: redirects are never forwarded.
        IcmpRedirect => "icmp_redirect",
        /// An echo request with a wrong checksum, to an address that the gateway answers for.
        IcmpChecksum => "icmp_checksum",
        /// An authentication header in a packet that would be translated: its integrity check covers the addresses.
        Authenticated => "authenticated",
        /// An ICMP error about a packet in one of the gateway's tunnels. Its path MTU, if it has one, was used; the
        /// error is not forwarded.
        TunnelError => "tunnel_error",
        /// An ICMP or ICMPv6 message to a VIP that is neither an echo request nor an error.
        IcmpUnsupported => "icmp_unsupported",
        /// The headroom of the frame is too small for the headers to add.
        NoHeadroom => "no_headroom",
        /// A fragment of a tunnel packet from a peer.
        TunnelFragment => "tunnel_fragment",
        /// A tunnel packet from a peer, with headers that cannot be read.
        TunnelHeaders => "tunnel_headers",
        /// A tunnel packet from a peer whose outer header reports congestion although the inner packet doesn't use ECN
        /// (RFC 6040 section 4.2).
        TunnelCongestion => "tunnel_congestion",
        /// In the tunnel of a peer, but neither to a service nor from a backend.
        TunnelUnserved => "tunnel_unserved",
        /// Handed over by a worker, but this worker does not own the flow either.
        HandOverLoop => "hand_over_loop",
        /// The frame consists of several buffers.
        NotContiguous => "not_contiguous",
        /// No packet buffer for the fragments of a packet that does not fit its link.
        NoBuffer => "no_buffer",
        /// The transmit queue was full.
        TxQueueFull => "tx_queue_full",
        /// The interface has no link, or its device is gone.
        LinkDown => "link_down",
        /// The queue to the kernel was full.
        PuntQueueFull => "punt_queue_full",
        /// For the kernel, but over the rate limit of its class.
        PuntRateLimited => "punt_rate_limited",
        /// The ring to the other worker was full.
        HandOverRingFull => "hand_over_ring_full",
    }
}

/// Why a frame is dropped: its headers are malformed, or the packet is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// The header checks failed.
    Malformed(Malformed),
    /// The headers are valid, and the packet is refused.
    Refused(Refusal),
}

impl DropReason {
    /// The number of reasons.
    pub const COUNT: usize = Refusal::COUNT + Malformed::ALL.len();

    /// Every reason, in the order of [`Self::index`].
    pub fn all() -> impl Iterator<Item = Self> {
        let refused = Refusal::ALL.iter().copied().map(Self::Refused);
        refused.chain(Malformed::ALL.iter().copied().map(Self::Malformed))
    }

    /// The name in metrics and output.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed(malformed) => malformed.as_str(),
            Self::Refused(refusal) => refusal.as_str(),
        }
    }

    /// What it means, for operators.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Malformed(malformed) => malformed.meaning(),
            Self::Refused(refusal) => refusal.meaning(),
        }
    }

    /// A number below [`Self::COUNT`].
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Refused(refusal) => refusal.index(),
            Self::Malformed(malformed) => Refusal::COUNT + malformed as usize,
        }
    }
}

impl std::fmt::Display for DropReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<Closed> for Refusal {
    fn from(closed: Closed) -> Self {
        match closed {
            Closed::Fragment => Self::TunnelFragment,
            Closed::Headers => Self::TunnelHeaders,
            Closed::Congestion => Self::TunnelCongestion,
        }
    }
}

impl From<Malformed> for DropReason {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl From<Refusal> for DropReason {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Refusal> for Verdict {
    fn from(refusal: Refusal) -> Self {
        Self::Drop(DropReason::Refused(refusal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_reasons_are_unique_and_snake_case() {
        let names: Vec<_> = DropReason::all().map(DropReason::as_str).collect();
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(names.len(), unique.len());
        let snake = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(names.iter().all(|name| name.chars().all(snake)));
    }

    #[test]
    fn the_meaning_of_a_reason_is_its_documentation_in_one_line() {
        assert_eq!(Refusal::NoRoute.meaning(), "No route to the next hop.");
        assert_eq!(
            DropReason::from(Refusal::GroupFrame).meaning(),
            "A unicast packet in a multicast or broadcast frame (RFC 1812 5.3.4, RFC 1122 3.3.6). If it were answered, \
             every station of the group would answer."
        );
        assert_eq!(DropReason::from(Malformed::EthernetTruncated).meaning(), "Fewer than 14 bytes.");
    }

    #[test]
    fn indices_of_reasons_are_dense() {
        assert!(DropReason::all().enumerate().all(|(n, reason)| reason.index() == n));
        assert_eq!(DropReason::all().count(), DropReason::COUNT);
    }
}
