//! Properties of every frame, checked with its bytes before and after, and with the snapshot.
//!
//! A frame that is not sent is unchanged. A frame that is sent can be parsed again, leaves through an interface with
//! the interface's address and tag, and matches its reason. A forwarded packet differs from the received one only in
//! the fields that its mode changes. Its checksums stay as they were, computed with the simple sum of RFC 1071 over all
//! of it: a correct one stays correct, and a wrong one keeps its error.

use tidegate_snapshot::{Interface, Snapshot};
use tidegate_spec::ForwardingMode;
use tidegate_spec::verdict::{TransmitReason, Verdict};
use tidegate_wire::arp::ArpOperation;
use tidegate_wire::checksum::Sum;
use tidegate_wire::cut::Cut;
use tidegate_wire::encapsulation;
use tidegate_wire::icmp::{ERROR_LEN_MAX_V4, ERROR_LEN_MAX_V6};
use tidegate_wire::ndp::{self, Ndp};
use tidegate_wire::tcp::flags;
use tidegate_wire::{Family, Headers, L4Checksum, Parsed, ethernet, icmp, parse, proto, sctp};

use crate::pipeline::{FlowNote, Note};
use crate::testing::{hexdump, summary};

pub(super) struct Seen<'a> {
    pub(super) before: &'a [u8],
    /// It arrived in the tunnel of another gateway; `before` excludes the tunnel.
    pub(super) handed_over: bool,
    pub(super) after: &'a [u8],
    pub(super) verdict: Verdict,
    pub(super) note: Note,
    /// The packet's offset and the MTU, if the frame is fragmented.
    pub(super) cut_to: Option<(u16, u16)>,
    /// Some flows of the worker have PROXY protocol headers.
    pub(super) streams: bool,
}

impl Seen<'_> {
    /// Fails and prints both frames.
    fn fail(&self, what: &str) -> ! {
        panic!(
            "{what}: {:?} {:?}\nbefore: {}\n{}after:  {}\n{}",
            self.verdict,
            self.note,
            summary(self.before),
            hexdump(self.before),
            summary(self.after),
            hexdump(self.after)
        )
    }

    fn assert(&self, condition: bool, what: &str) {
        if !condition {
            self.fail(what);
        }
    }

    fn packet(&self, frame: &[u8]) -> Headers {
        match parse(frame) {
            Ok(Parsed::Ip(h)) => h,
            other => self.fail(&format!("not a sound IP packet but {other:?}")),
        }
    }
}

pub(super) fn frame(snapshot: &Snapshot, seen: &Seen<'_>) {
    let Verdict::Transmit { interface, why } = seen.verdict else {
        seen.assert(seen.before == seen.after, "changed, though not sent");
        return;
    };
    let Some(interface) = snapshot.interface(interface) else {
        seen.fail("sent by an interface that is not there")
    };
    seen.assert(
        ethernet::source(seen.after) == interface.mac,
        "sent from another address than the interface's",
    );
    if why == TransmitReason::ArpReply {
        let reply = matches!(parse(seen.after), Ok(Parsed::Arp(p))
            if p.operation == ArpOperation::Reply && p.vlan == interface.vlan && p.sender_mac == interface.mac);
        return seen.assert(reply, "no ARP reply of this interface");
    }
    let h = seen.packet(seen.after);
    seen.assert(h.vlan == interface.vlan, "sent with another tag than the interface's");
    match why {
        TransmitReason::Forward
        | TransmitReason::Reply
        | TransmitReason::Routed
        | TransmitReason::Masqueraded
        | TransmitReason::IcmpError => {
            forwarded(snapshot, seen, why, interface, &h);
        }
        TransmitReason::Retried => retried(snapshot, seen, interface, &h),
        _ => answered(seen, why, &h),
    }
}

/// Checks the SYN that was sent to another backend in place of a refusal.
fn retried(snapshot: &Snapshot, seen: &Seen<'_>, out: &Interface, after: &Headers) {
    let backend = seen.note.backend.and_then(|id| snapshot.backend(id));
    let is_to = backend.is_some_and(|to| to.address == after.dst && to.port == after.dst_port);
    seen.assert(is_to, "not to the backend of the note");
    seen.assert(after.tcp_flags & (flags::SYN | flags::ACK | flags::RST) == flags::SYN, "no SYN");
    seen.assert(after.ip_len() <= out.mtu, "larger than the MTU");
    let before = seen.packet(seen.before);
    seen.assert(before.dst != after.dst || before.is_icmp_error(), "not caused by a backend");
}

/// Checks a frame that is sent in fragments: they can be created, are valid, and fit.
fn cut(seen: &Seen<'_>, packet: usize, mtu: u16) {
    let Some(cut) = Cut::new(seen.after, packet, usize::from(mtu)) else { seen.fail("cannot be fragmented") };
    seen.assert(cut.fragments() > 1, "fits, but is fragmented");
    for n in 0..cut.fragments() {
        let mut fragment = vec![0; cut.frame_len(n)];
        cut.write(seen.after, n, &mut fragment);
        seen.assert(seen.packet(&fragment).ip_len() <= mtu, "a fragment is larger than the MTU");
    }
}

fn forwarded(snapshot: &Snapshot, seen: &Seen<'_>, why: TransmitReason, out: &Interface, after: &Headers) {
    let before = seen.packet(seen.before);
    match seen.cut_to {
        None => seen.assert(after.ip_len() <= out.mtu, "larger than the MTU"),
        Some((packet, mtu)) => cut(seen, usize::from(packet), mtu),
    }
    let to = ethernet::destination(seen.after);
    seen.assert(to.is_unicast() && to != out.mac, "sent to no neighbour");
    if why == TransmitReason::Routed {
        return routed(snapshot, seen, &before, after);
    }
    if why == TransmitReason::Masqueraded {
        return masqueraded(snapshot, seen, &before, after);
    }
    let backend = seen.note.backend.and_then(|id| snapshot.backend(id));
    if let (TransmitReason::Forward, Some(backend)) = (why, backend) {
        seen.assert(Some(backend.service) == seen.note.service, "a backend of another service");
        let service = snapshot.service_by_id(backend.service);
        seen.assert(
            service.is_some_and(|service| snapshot.admits(service, &before.src)),
            "of a client outside the source ranges",
        );
        let fault = snapshot.source_fault(&before.src);
        seen.assert(
            fault.is_none() || seen.note.flow != FlowNote::New,
            "a flow begun by a source that is no client",
        );
    }
    // In a tunnel the packet starts after the outer headers. There is a tunnel only if source and mode indicate one.
    let outer_protocol = matches!(after.proto, proto::IPIP | proto::IPV6 | proto::GRE | proto::UDP);
    let from_tunnel = snapshot.is_tunnel_source(&after.src) && before.src != after.src;
    let tunnelled = outer_protocol && from_tunnel && why != TransmitReason::Reply
        || matches!(backend, Some(b) if b.mode.is_tunnel() && why == TransmitReason::Forward);
    let sent_before = packet(seen.before, &before);
    if tunnelled {
        let outer = packet(seen.after, after);
        let payload = &outer[usize::from(after.l4 - u16::from(after.l3))..];
        let between = encapsulation::read(after.proto, payload, payload.len() as u16);
        let Some(between) = between.filter(|between| between.family == Some(before.family)) else {
            seen.fail("headers of no tunnel, or of another family")
        };
        if let Some(encapsulation) = backend.and_then(|backend| backend.encapsulation) {
            seen.assert(between.encapsulation == Some(encapsulation), "another tunnel than the backend's");
        }
        let inner = &payload[between.len..];
        if let Some(backend) = backend {
            seen.assert(after.dst == backend.address, "tunnelled to another end than the backend");
        }
        let (mut wrapped, mut inner) = (sent_before.to_vec(), inner.to_vec());
        if is_limited(snapshot, seen, &before) && wrapped.len() == inner.len() {
            [&mut wrapped, &mut inner].into_iter().for_each(|packet| blank_options(packet, &before));
        }
        seen.assert(same_but_hop_limit(&wrapped, &inner, before.family), "changed inside the tunnel");
        return;
    }
    let sent_after = packet(seen.after, after);
    let service = seen.note.service.and_then(|id| snapshot.service_by_id(id));
    // A header may be added, and sequence numbers and options may change. Even then a wrong checksum keeps its error.
    let proxied = seen.streams || service.is_some_and(|service| service.proxy_protocol.is_some());
    seen.assert(proxied || sent_before.len() == sent_after.len(), "another length");
    seen.assert(after.ttl + 1 == before.ttl, "the hop limit goes down by one");
    if matches!(backend, Some(b) if b.mode == ForwardingMode::DsrL2 && why == TransmitReason::Forward) {
        seen.assert(same_but_hop_limit(sent_before, sent_after, before.family), "changed by dsr-l2");
        return;
    }
    if let (TransmitReason::Reply, Some(service)) =
        (why, seen.note.service.and_then(|id| snapshot.service_by_id(id)))
    {
        // Later fragments have no ports.
        let port = if after.is_later_fragment() { 0 } else { service.port };
        seen.assert((after.src, after.src_port) == (service.vip, port), "a reply from no VIP");
    }
    if let (TransmitReason::Forward, Some(backend)) = (why, backend) {
        let port = if after.is_later_fragment() { 0 } else { backend.port };
        let end = (after.dst, after.dst_port);
        seen.assert(end == (backend.address, port), "translated to another end than the backend");
        // `nat` may change the client's port if it is already used with the endpoint.
        let port_stays = after.src_port == before.src_port || backend.mode == ForwardingMode::Nat;
        let source = (after.src == before.src && port_stays)
            || snapshot.snat_addresses(after.family).contains(&after.src);
        seen.assert(source, "from neither the client nor a SNAT address");
    }
    let marked = service.filter(|service| service.mode == ForwardingMode::DsrDscp);
    if let (Some(service), TransmitReason::Forward) = (marked, why) {
        seen.assert(traffic_class(seen.after, after) >> 2 == service.dscp, "another DSCP than the service's");
        let ecn = |frame, h| traffic_class(frame, h) & 3;
        seen.assert(ecn(seen.before, &before) == ecn(seen.after, after), "the ECN bits changed");
    }
    if why != TransmitReason::IcmpError && !proxied {
        let limited = is_limited(snapshot, seen, &before);
        let masked = |frame, h: &Headers| {
            let mut packet = masked(packet(frame, h), h);
            if marked.is_some() {
                blank_traffic_class(&mut packet, h.family);
            }
            if limited {
                blank_options(&mut packet, h);
            }
            packet
        };
        seen.assert(masked(seen.before, &before) == masked(seen.after, after), "changed beyond translation");
    }
    // The SYN by which the gateway replaces a segment that returned a SYN cookie.
    let is_syn = after.proto == proto::TCP && after.tcp_flags == flags::SYN;
    if seen.streams && is_syn && before.tcp_flags & flags::ACK != 0 {
        return seen.assert(residual(seen.after, after) == Some(0), "a wrong checksum");
    }
    checksums_alike(seen, &before, after);
}

/// Checks a packet of a backend's network to another host.
fn routed(snapshot: &Snapshot, seen: &Seen<'_>, before: &Headers, after: &Headers) {
    let allowed = snapshot.transit().is_some_and(|t| t.forward && t.sources.admits(&before.src));
    seen.assert(allowed, "forwarded for a source that is in no network of backends");
    let ours = [before.src, before.dst].iter().any(|addr| snapshot.address(addr).is_some());
    seen.assert(!ours, "forwarded from or to an address of ours");
    let (sent_before, sent_after) = (packet(seen.before, before), packet(seen.after, after));
    seen.assert(same_but_hop_limit(sent_before, sent_after, before.family), "changed on its route");
}

/// Checks a masqueraded packet of a backend's network, or an answer to one.
fn masqueraded(snapshot: &Snapshot, seen: &Seen<'_>, before: &Headers, after: &Headers) {
    let is_snat = |addr| snapshot.snat_addresses(before.family).contains(addr);
    let outward = is_snat(&after.src) && before.dst == after.dst;
    let inward = is_snat(&before.dst) && before.src == after.src;
    seen.assert(outward != inward, "neither from nor to a SNAT address");
    let (source, peer) = if outward { (&before.src, &before.dst) } else { (&after.dst, &after.src) };
    seen.assert(snapshot.masquerades(source, peer), "of a source that is not masqueraded");
    let bytes = |frame: &[u8], h: &Headers| {
        let mut packet = masked(packet(frame, h), h);
        if matches!(h.l4_checksum, L4Checksum::Icmp | L4Checksum::Icmpv6) {
            // The identifier.
            let l4 = usize::from(h.l4) - usize::from(h.l3);
            packet[l4 + 4..l4 + 6].fill(0);
        }
        packet
    };
    seen.assert(bytes(seen.before, before) == bytes(seen.after, after), "changed beyond translation");
    checksums_alike(seen, before, after);
}

/// Whether the segment size in a packet may be lowered.
fn is_limited(snapshot: &Snapshot, seen: &Seen<'_>, h: &Headers) -> bool {
    let service = seen.note.service.and_then(|id| snapshot.service_by_id(id));
    h.proto == proto::TCP
        && h.tcp_flags & flags::SYN != 0
        && service.is_some_and(|service| service.mss_limit > 0)
}

/// The DSCP and the ECN bits.
fn traffic_class(frame: &[u8], h: &Headers) -> u8 {
    match (h.family, packet(frame, h)) {
        (Family::V4, packet) => packet[1],
        (Family::V6, packet) => packet[0] << 4 | packet[1] >> 4,
    }
}

fn blank_traffic_class(packet: &mut [u8], family: Family) {
    match family {
        Family::V4 => packet[1] = 0,
        Family::V6 => {
            packet[0] &= 0xf0;
            packet[1] &= 0x0f;
        }
    }
}

/// Clears the checksum and the options of a TCP packet.
fn blank_options(packet: &mut [u8], h: &Headers) {
    let segment = &mut packet[usize::from(h.l4 - u16::from(h.l3))..];
    let header_len = usize::from(segment[12] >> 4) * 4;
    segment[16..18].fill(0);
    segment[20..header_len].fill(0);
}

/// The IP packet of a frame, without link header and trailer.
fn packet<'a>(frame: &'a [u8], h: &Headers) -> &'a [u8] {
    &frame[usize::from(h.l3)..usize::from(h.ip_end)]
}

fn same_but_hop_limit(before: &[u8], after: &[u8], family: Family) -> bool {
    let blank = |packet: &[u8]| {
        let mut packet = packet.to_vec();
        match family {
            Family::V4 => {
                packet[8] = 0;
                packet[10..12].fill(0);
            }
            Family::V6 => packet[7] = 0,
        }
        packet
    };
    let hop = if family == Family::V4 { 8 } else { 7 };
    let framed = |packet: &[u8]| {
        let kind: [u8; 2] = if family == Family::V4 { [8, 0] } else { [0x86, 0xdd] };
        [&[2; 12][..], &kind, packet].concat()
    };
    before.len() == after.len()
        && blank(before) == blank(after)
        && after[hop] + 1 == before[hop]
        && parse(&framed(after)).is_ok()
}

/// The packet with zeros in all fields that translation may change.
fn masked(packet: &[u8], h: &Headers) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let l4 = usize::from(h.l4 - u16::from(h.l3));
    match h.family {
        Family::V4 => {
            packet[8] = 0;
            packet[10..20].fill(0);
        }
        Family::V6 => {
            packet[7] = 0;
            packet[8..40].fill(0);
        }
    }
    let (ports, check) = match h.l4_checksum {
        L4Checksum::Tcp => (4, 16..18),
        L4Checksum::Udp => (4, 6..8),
        L4Checksum::UdpZero => (4, 0..0),
        L4Checksum::Sctp => (4, 8..12),
        L4Checksum::Icmp | L4Checksum::Icmpv6 => (0, 2..4),
        L4Checksum::None => (0, 0..0),
    };
    packet[l4..l4 + ports].fill(0);
    packet[l4..][check].fill(0);
    packet
}

/// The simple sum, which is 0 if the transport checksum is correct. For a fragment, the contribution of its bytes.
fn residual(frame: &[u8], h: &Headers) -> Option<u16> {
    let bytes = &frame[usize::from(h.l4)..usize::from(h.ip_end)];
    // The checksum of UDP does not cover what follows the datagram (RFC 9868).
    let covered = match (h.l4_checksum, bytes) {
        (L4Checksum::Udp, &[_, _, _, _, a, b, ..]) => {
            usize::from(u16::from_be_bytes([a, b])).min(bytes.len())
        }
        _ => bytes.len(),
    };
    let bytes = &bytes[..covered];
    let sum = match h.l4_checksum {
        L4Checksum::None | L4Checksum::UdpZero | L4Checksum::Sctp => return None,
        L4Checksum::Icmp => Sum::new(),
        L4Checksum::Tcp | L4Checksum::Udp | L4Checksum::Icmpv6 => {
            Sum::pseudo_header(h.family, &h.src, &h.dst, h.proto, bytes.len() as u32)
        }
    };
    // In one's complement, 0 and 0xffff are equal.
    Some(sum.bytes(bytes).folded() % 0xffff)
}

fn checksums_alike(seen: &Seen<'_>, before: &Headers, after: &Headers) {
    seen.assert(before.l4_checksum == after.l4_checksum, "another kind of checksum");
    let residuals = (residual(seen.before, before), residual(seen.after, after));
    seen.assert(residuals.0 == residuals.1, &format!("the transport checksum went from {residuals:x?}"));
    if before.l4_checksum == L4Checksum::Sctp && sctp::checksum_ok(seen.before, before) {
        seen.assert(sctp::checksum_ok(seen.after, after), "the SCTP checksum was right and is wrong");
    }
}

/// Checks that an answer of the gateway returns to the sender and has correct checksums.
fn answered(seen: &Seen<'_>, why: TransmitReason, after: &Headers) {
    let before = seen.packet(seen.before);
    if why == TransmitReason::NeighborAdvertisement {
        let is_of_interface = matches!(ndp::parse(seen.after, after), Ok(Some(Ndp::Advertisement { target_mac, .. }))
            if target_mac == Some(ethernet::source(seen.after)));
        return seen.assert(is_of_interface, "no advertisement of this interface");
    }
    seen.assert(after.dst == before.src, "an answer to someone else");
    let station = ethernet::destination(seen.after);
    let is_back = station == ethernet::source(seen.before);
    seen.assert(is_back || seen.handed_over && station.is_unicast(), "an answer to another station");
    if why == TransmitReason::EchoReply {
        seen.assert(after.src == before.dst, "another VIP answers the ping");
        let damaged = !icmp::checksum_ok(seen.before, &before);
        return seen
            .assert(damaged || icmp::checksum_ok(seen.after, after), "the checksum was right and is wrong");
    }
    if why == TransmitReason::SynCookie {
        // The SYN ACK for a client, or the acknowledgement of a backend's SYN ACK.
        let wanted = if before.tcp_flags & flags::ACK == 0 { flags::SYN | flags::ACK } else { flags::ACK };
        seen.assert(after.proto == proto::TCP && after.tcp_flags & !flags::PSH == wanted, "no handshake");
        return seen.assert(residual(seen.after, after) == Some(0), "a wrong checksum");
    }
    if after.proto == proto::TCP {
        let reasons = [TransmitReason::NoEndpoints, TransmitReason::NoFlow, TransmitReason::NoService];
        seen.assert(reasons.contains(&why), "a reset for another reason");
        return seen.assert(residual(seen.after, after) == Some(0), "a wrong checksum");
    }
    seen.assert(after.is_icmp_error(), "neither reset nor ICMP error");
    seen.assert(icmp::checksum_ok(seen.after, after), "a wrong checksum");
    let (longest, quote_at) = match after.family {
        Family::V4 => (ERROR_LEN_MAX_V4, usize::from(after.l4) + 8),
        Family::V6 => (ERROR_LEN_MAX_V6, usize::from(after.l4) + 8),
    };
    seen.assert(usize::from(after.ip_len()) <= longest, "an error longer than the RFC allows");
    let quoted = &seen.after[quote_at..usize::from(after.ip_end)];
    seen.assert(packet(seen.before, &before).starts_with(quoted), "quotes something else");
}
