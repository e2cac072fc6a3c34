//! The last stage of `nat` and `fullnat` for services whose backends get a PROXY protocol header or a TOA option:
//! inserts the header or option, and shifts sequence numbers.
//!
//! A stream starts with the backend's SYN ACK. Until the backend has acknowledged the whole header, every segment that
//! starts at the client's first byte carries the header, with or without data: the last segment of the handshake, a
//! retransmission, a FIN. So the client's retransmissions also repair the loss of the header, without a timer or
//! buffer. Each datagram has its own header.
//!
//! When a service changes or disables headers, its existing flows continue as they began.

use core::ops::ControlFlow;

use tidegate_conntrack::{FlowHash, FlowKey, Placement, Stream};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::service::Service;
use tidegate_spec::Protocol;
use tidegate_spec::verdict::Refusal;
use tidegate_structures::selection_key::SelectionKey;
use tidegate_wire::proxy_header::{ProxyHeader, ProxyVersion, proxy_header};
use tidegate_wire::proxy_tlvs::{ProxyTlvs, UniqueId, VpceId};
use tidegate_wire::rewrite::Endpoint;
use tidegate_wire::tcp::flags;
use tidegate_wire::{Headers, L4Checksum};

use super::burst::{Burst, Destination, Packet};
use super::next_hop::{NextHop, next_hop_of};
use super::state::Pipeline;
use super::translated::{changes_sctp, finish_translated, limit_segments, translate};
use crate::forward::{NoHeadroom, proxy_protocol, spliced, toa};
use crate::frame::Frame;

/// The change of one packet, apart from its addresses.
pub(super) enum Change {
    /// The packet doesn't change.
    Nothing,
    /// Removes the data of a client's SYN.
    TrimSyn,
    /// Inserts the header in front of the data.
    Insert(ProxyHeader),
    /// Inserts the option in front of the client's options.
    InsertOption(ProxyHeader),
    /// Increases the sequence number of a client's segment.
    Shift(Stream),
    /// Reduces the segment size in a backend's SYN ACK.
    SynAck(Stream),
    /// Translates a backend's acknowledgements to the client's stream.
    ToClient(Stream),
    /// Restores the sequence number that an ICMP error to a client quotes, and reduces the error's MTU by the header's
    /// length.
    Quote(Stream),
    /// Reduces the MTU in an ICMP error to a client by this length of a datagram's header.
    QuoteDatagram(u16),
}

impl Change {
    fn growth(&self) -> usize {
        match self {
            Self::Insert(header) | Self::InsertOption(header) => header.len(),
            _ => 0,
        }
    }

    /// Inserts the header or option, and ensures headroom for `spare` more bytes of the new link. A frame with too
    /// little headroom stays unchanged.
    fn insert<F: Frame>(&self, frame: &mut F, h: &mut Headers, spare: usize) -> Result<(), NoHeadroom> {
        match self {
            Self::Insert(header) => proxy_protocol::insert(frame, h, header, spare),
            Self::InsertOption(option) => toa::insert(frame, h, option, spare),
            _ if spare > 0 => {
                if !frame.grow_front(spare) {
                    return Err(NoHeadroom);
                }
                frame.shrink_front(spare);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Makes the changes that need no headroom.
    fn rewrite<F: Frame>(&self, frame: &mut F, h: &mut Headers) {
        match self {
            Self::TrimSyn => proxy_protocol::trim_syn(frame, h),
            Self::Shift(stream) => proxy_protocol::shift(frame.bytes_mut(), h, stream),
            Self::SynAck(stream) => proxy_protocol::announce_smaller_segments(frame.bytes_mut(), h, stream),
            Self::ToClient(stream) => proxy_protocol::to_client(frame.bytes_mut(), h, stream),
            Self::Quote(stream) => proxy_protocol::error_to_client(frame.bytes_mut(), h, stream),
            Self::QuoteDatagram(len) => proxy_protocol::reduce_mtu(frame.bytes_mut(), h, *len),
            Self::Nothing | Self::Insert(_) | Self::InsertOption(_) => {}
        }
    }
}

impl Pipeline {
    /// Sends a packet of a service that uses headers, or any translated packet while some flows have headers or began
    /// with a SYN cookie.
    #[cold]
    #[inline(never)]
    pub(super) fn send_proxied<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        destination: &Destination<'_>,
    ) {
        let ControlFlow::Continue(splice) = self.follow_splice(burst, packet, destination) else { return };
        let Packet { headers: before, frame, .. } = &burst.packets[usize::from(packet)];
        let (at, mut h) = (usize::from(*frame), *before);
        let change = match self.change_of(burst.view.snapshot, burst.frames[at].bytes(), &h, destination) {
            Ok(change) => change,
            Err(refusal) => return burst.set(at, refusal),
        };
        let hop = match next_hop_of(&burst.view, destination) {
            Ok(hop) => hop,
            Err(no_next_hop) => return no_next_hop.report(burst, at),
        };
        let ip_len = usize::from(h.ip_len());
        if h.ttl <= 1 || ip_len + change.growth() > hop.mtu {
            // The MTU reported to the sender excludes the inserted bytes.
            let mtu = hop.mtu.saturating_sub(change.growth());
            let hop = NextHop { interface: hop.interface, link: hop.link, mtu };
            if !self.passes_in_fragments(burst, at, &h, 0, &hop) {
                return;
            }
        }
        if !crate::forward::nat::can_translate(&h) && changes_sctp(burst.frames[at].bytes(), &h, destination)
        {
            return burst.set(at, Refusal::SctpFragment);
        }
        let spare = hop.link.header_len().saturating_sub(usize::from(h.l3));
        if let Err(no_headroom) = change.insert(&mut burst.frames[at], &mut h, spare) {
            return burst.set(at, Refusal::from(no_headroom));
        }
        // Apply the limit of the path first: the header must fit within it.
        let mss_limit = destination.service().mss_limit;
        if mss_limit > 0 {
            limit_segments(burst, at, &h, mss_limit, &hop);
        }
        let frame = &mut burst.frames[at];
        change.rewrite(frame, &mut h);
        match (splice, destination) {
            (None, _) => {}
            (Some(splice), Destination::Client { .. }) => {
                spliced::to_client(frame.bytes_mut(), &h, &splice);
            }
            (Some(splice), Destination::Backend { .. }) if h.is_icmp_error() => {
                spliced::error_to_backend(frame.bytes_mut(), &h, &splice);
            }
            (Some(splice), Destination::Backend { .. }) => {
                spliced::to_backend(frame.bytes_mut(), &h, &splice);
            }
        }
        if let Err(no_headroom) = translate(frame, &mut h, destination, &hop.link) {
            return burst.set(at, Refusal::from(no_headroom));
        }
        finish_translated(burst, at, &h, destination, &hop, ip_len);
    }

    /// Determines the change of a packet, and updates the state of its stream.
    fn change_of(
        &mut self,
        snapshot: &Snapshot,
        frame: &[u8],
        h: &Headers,
        destination: &Destination<'_>,
    ) -> Result<Change, Refusal> {
        match *destination {
            Destination::Backend { service, .. } => match h.l4_checksum {
                L4Checksum::Tcp => self.change_to_backend(snapshot, frame, h, service),
                L4Checksum::Udp | L4Checksum::UdpZero => datagram(snapshot, h, service),
                _ => Ok(Change::Nothing),
            },
            Destination::Client { service, client, .. } => Ok(match h.l4_checksum {
                L4Checksum::Tcp => self.change_to_client(frame, h, service, client),
                L4Checksum::Icmp | L4Checksum::Icmpv6 if h.is_icmp_error() => {
                    self.change_of_error(service, client)
                }
                _ => Change::Nothing,
            }),
        }
    }

    /// The change of an ICMP error about a packet to the backend.
    fn change_of_error(&self, service: &Service, client: Endpoint) -> Change {
        match service.protocol {
            Protocol::Udp if service.proxy_protocol == Some(ProxyVersion::V2) => {
                // The length is at most `LEN_MAX`.
                let len = header_len(service, client, ProxyVersion::V2, service.proxy_tlvs);
                Change::QuoteDatagram(len as u16)
            }
            _ => self.stream(service, client).map_or(Change::Nothing, |(stream, _)| Change::Quote(stream)),
        }
    }

    fn change_to_backend(
        &mut self,
        snapshot: &Snapshot,
        frame: &[u8],
        h: &Headers,
        service: &Service,
    ) -> Result<Change, Refusal> {
        if h.tcp_flags & flags::SYN != 0 {
            let trims = service.proxy_protocol.is_some() && !h.is_fragment();
            return Ok(if trims { Change::TrimSyn } else { Change::Nothing });
        }
        let client = Endpoint { addr: h.src, port: h.src_port };
        let Some((stream, hash)) = self.stream(service, client) else { return Ok(Change::Nothing) };
        let carries = h.tcp_flags & flags::RST == 0;
        match stream.placement(proxy_protocol::sequence(frame, h), carries) {
            Placement::Before => Ok(Change::Nothing),
            Placement::After if stream.version == ProxyVersion::Toa => Ok(Change::Nothing),
            Placement::After => Ok(Change::Shift(stream)),
            Placement::First if h.is_fragment() => Err(Refusal::ProxyFragment),
            Placement::First if stream.version == ProxyVersion::Toa => {
                Ok(Change::InsertOption(self.stream_header(snapshot, service, client, &stream)))
            }
            Placement::First => {
                if !stream.sent {
                    let now = Stream { sent: true, ..stream };
                    self.flows.nat.set_stream(service.id, &key_of(service, client), hash, now);
                }
                Ok(Change::Insert(self.stream_header(snapshot, service, client, &stream)))
            }
        }
    }

    /// The change of a backend's segment, which may start a stream or acknowledge its header.
    pub(super) fn change_to_client(
        &mut self,
        frame: &[u8],
        h: &Headers,
        service: &Service,
        client: Endpoint,
    ) -> Change {
        let ack = proxy_protocol::acknowledgement(frame, h);
        let known = self.stream(service, client);
        if h.tcp_flags & (flags::SYN | flags::ACK) == flags::SYN | flags::ACK {
            return match (known, service.proxy_protocol) {
                // The SYN ACK is a retransmission.
                (Some((stream, _)), _) if stream.first == ack => Change::SynAck(stream),
                (_, Some(version)) => {
                    let stream = self.begin_stream(service, client, ack, version, service.proxy_tlvs);
                    Change::SynAck(stream)
                }
                // The service no longer uses headers, so the next connection with these ports has none.
                (Some((_, hash)), None) => {
                    self.flows.nat.forget_stream(&key_of(service, client), hash);
                    Change::Nothing
                }
                (None, None) => Change::Nothing,
            };
        }
        let Some((stream, hash)) = known else { return Change::Nothing };
        if h.tcp_flags & flags::ACK == 0 {
            return Change::Nothing;
        }
        let now = stream.acknowledge(ack);
        if now != stream {
            self.flows.nat.set_stream(service.id, &key_of(service, client), hash, now);
        }
        Change::ToClient(now)
    }

    /// Records the stream that a backend's SYN ACK starts.
    fn begin_stream(
        &mut self,
        service: &Service,
        client: Endpoint,
        first: u32,
        version: ProxyVersion,
        tlvs: ProxyTlvs,
    ) -> Stream {
        let plain = Stream::new(first, version, tlvs, 0);
        // `LEN_MAX` fits a byte.
        let header_len = header_len(service, client, version, tlvs) as u8;
        let stream = Stream { header_len, ..plain };
        let key = key_of(service, client);
        let hash = self.flows.hash(&key);
        self.flows.nat.set_stream(service.id, &key, hash, stream);
        stream
    }

    /// The header of a stream. Every call returns the same bytes, unless the Service's TLV value changes.
    pub(super) fn stream_header(
        &self,
        snapshot: &Snapshot,
        service: &Service,
        client: Endpoint,
        stream: &Stream,
    ) -> ProxyHeader {
        let vip = Endpoint { addr: service.vip, port: service.port };
        let mut header = proxy_header(stream.version, service.protocol.number(), client, vip);
        if !stream.tlvs.is_empty() {
            let key = SelectionKey::of_worker(self.seed);
            let id = key.connection_id(&client.addr, client.port, &vip.addr, vip.port, stream.first);
            stream.tlvs.append(&mut header, &id, &vpce_id(snapshot, service));
        }
        header
    }

    /// The stream of a client's flow, and the hash of the flow.
    fn stream(&self, service: &Service, client: Endpoint) -> Option<(Stream, FlowHash)> {
        if !self.flows.nat.may_stream(service.id) {
            return None;
        }
        let key = key_of(service, client);
        let hash = self.flows.hash(&key);
        Some((self.flows.nat.stream(&key, hash)?, hash))
    }
}

pub(super) fn key_of(service: &Service, client: Endpoint) -> FlowKey {
    FlowKey::flow(service.id, client.addr, client.port)
}

/// The change of a client's datagram. Version 1 is for TCP only.
fn datagram(snapshot: &Snapshot, h: &Headers, service: &Service) -> Result<Change, Refusal> {
    if service.proxy_protocol != Some(ProxyVersion::V2) {
        return Ok(Change::Nothing);
    }
    if h.is_fragment() {
        return Err(Refusal::ProxyFragment);
    }
    Ok(Change::Insert(datagram_header(snapshot, service, Endpoint { addr: h.src, port: h.src_port })))
}

/// The length of a client's header.
fn header_len(service: &Service, client: Endpoint, version: ProxyVersion, tlvs: ProxyTlvs) -> usize {
    let vip = Endpoint { addr: service.vip, port: service.port };
    proxy_header(version, service.protocol.number(), client, vip).len() + tlvs.len()
}

/// The value of the TLV [`ProxyTlvs::VPCE_ID`].
fn vpce_id(snapshot: &Snapshot, service: &Service) -> VpceId {
    snapshot.service_info(service.id).map_or_else(VpceId::default, |info| info.vpce_id)
}

/// The header of each datagram of a client.
fn datagram_header(snapshot: &Snapshot, service: &Service, client: Endpoint) -> ProxyHeader {
    let vip = Endpoint { addr: service.vip, port: service.port };
    let mut header = proxy_header(ProxyVersion::V2, service.protocol.number(), client, vip);
    if !service.proxy_tlvs.is_empty() {
        // Datagrams have no identifier: the snapshot allows it for TCP only.
        service.proxy_tlvs.append(&mut header, &UniqueId::default(), &vpce_id(snapshot, service));
    }
    header
}
