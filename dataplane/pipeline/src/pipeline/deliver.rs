//! The last stage: rewrites each packet by the mode of its service and sends it to its next hop, or answers with the
//! reason why it cannot.
//!
//! All checks that can refuse a packet are made before the first byte changes: hop limit, route, neighbour, size,
//! room. Costs per packet: the backend's line and the next hop's, both prefetched by the previous stage, and the
//! first lines of the frame.

use tidegate_snapshot::Interface;
use tidegate_snapshot::backend::{Backend, LastStage};
use tidegate_snapshot::counters::Direction;
use tidegate_snapshot::neighbors::NeighborSlot;
use tidegate_snapshot::path_mtu;
use tidegate_snapshot::service::Service;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::limits::FRAGMENTED;
use tidegate_spec::now::Now;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, Protocol};
use tidegate_wire::encapsulation::Encapsulation;
use tidegate_wire::icmp::Problem;
use tidegate_wire::quote;
use tidegate_wire::rewrite::{self, Endpoint};
use tidegate_wire::{Addr, Family, Headers, MacAddr, Parsed, proto, sctp};

use super::burst::{Burst, Destination, Packet};
use super::output::{BurstOutput, NeighborEvent, Oversized};
use super::segment_size;
use super::state::Pipeline;
use super::view::View;
use crate::forward::tunnel::{self, Tunnel};
use crate::forward::{self, Link, NoRoom};
use crate::frame::Frame;

/// A next hop whose link address is known, and the limits of packets to it.
pub(super) struct NextHop {
    pub(super) interface: InterfaceIndex,
    pub(super) link: Link,
    pub(super) mtu: usize,
}

/// The change of a packet's length on its way to a backend.
#[derive(Clone, Copy)]
struct Growth {
    /// Bytes of the headers that are added.
    overhead: usize,
    /// A packet whose length including them does not exceed this value fits every path. For longer packets the MTU of
    /// the path is looked up.
    passes: usize,
    /// Whether the segment size in a SYN is limited.
    clamps: bool,
}

impl Growth {
    /// The length does not change, and only the link limits it.
    const NONE: Self = Self { overhead: 0, passes: usize::MAX, clamps: false };
}

impl NextHop {
    /// Whether packets of this length fit.
    pub(super) fn takes(&self, ip_len: u16) -> bool {
        usize::from(ip_len) <= self.mtu
    }

    #[inline(always)]
    fn new(interface: &Interface, index: InterfaceIndex, destination: MacAddr) -> Self {
        let link = Link { source: interface.mac, destination, vlan: interface.vlan };
        Self { interface: index, link, mtu: usize::from(interface.mtu) }
    }
}

impl Pipeline {
    /// Rewrites and sends the packets, as the previous stages have decided.
    #[inline(never)]
    pub(super) fn deliver<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>) {
        // By position: taking the array out of the burst would copy all of it.
        for at in 0..burst.deliveries.len() {
            let delivery = &burst.deliveries[at];
            match delivery.destination {
                Destination::Backend { service, backend, .. } if backend.last_stage == LastStage::Link => {
                    let packet = delivery.packet;
                    self.send_on_link(burst, packet, service, backend);
                }
                Destination::Backend { service, backend, .. } if backend.last_stage == LastStage::IpInIp => {
                    let packet = delivery.packet;
                    self.send_in_tunnel(burst, packet, service, backend, Encapsulation::Ip, false);
                }
                Destination::Backend { service, backend, .. } if backend.last_stage == LastStage::Checks => {
                    let packet = delivery.packet;
                    self.send_with_checks(burst, packet, service, backend);
                }
                _ => {
                    let delivery = *delivery;
                    self.send_translated(burst, delivery.packet, &delivery.destination);
                }
            }
        }
    }

    /// Rewrites and sends one packet.
    pub(super) fn deliver_one<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        destination: &Destination<'_>,
    ) {
        match *destination {
            Destination::Backend { service, backend, .. } if backend.mode.is_dsr() => {
                self.send_with_checks(burst, packet, service, backend);
            }
            _ => self.send_translated(burst, packet, destination),
        }
    }

    /// The modes without translation, with all that a service may ask for.
    #[inline(never)]
    fn send_with_checks<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        service: &Service,
        backend: &Backend,
    ) {
        if !self.within_bandwidth(burst, packet, service, Direction::Request) {
            return;
        }
        match backend.encapsulation {
            None if backend.mode == ForwardingMode::DsrDscp => {
                self.send_marked(burst, packet, service, backend);
            }
            None => self.send_on_link(burst, packet, service, backend),
            Some(encapsulation) => {
                let clamps = service.mss_limit > 0;
                self.send_in_tunnel(burst, packet, service, backend, encapsulation, clamps);
            }
        }
    }

    /// `dsr-l2`.
    #[inline(always)]
    fn send_on_link<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        service: &Service,
        backend: &Backend,
    ) {
        self.send_as_it_is(
            burst,
            packet,
            service,
            backend,
            Growth::NONE,
            #[inline(always)]
            |frame, h, link| Ok(forward::dsr_l2::forward(frame, h, link)?),
        );
    }

    /// `dsr-dscp`.
    #[inline(never)]
    fn send_marked<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        service: &Service,
        backend: &Backend,
    ) {
        let view = &burst.view;
        let link_mtu = view.snapshot.interface(backend.interface).map_or(0, |interface| interface.mtu);
        let mtu = usize::from(link_mtu.min(burst.interface.mtu));
        self.send_as_it_is(burst, packet, service, backend, Growth::NONE, |frame, h, link| {
            let h = forward::dsr_dscp::forward(frame, h, link, backend.address, service.dscp)?;
            if service.mss_limit > 0 && segment_size::concerns(&h) {
                segment_size::limit(frame, &h, usize::from(h.l4), mtu, service.mss_limit);
            }
            Ok(())
        });
    }

    /// In an outer packet. `clamps` says whether its service limits the segment size. Both are constants in the short way
    /// of `dsr-ipip`.
    #[inline(always)]
    fn send_in_tunnel<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        service: &Service,
        backend: &Backend,
        encapsulation: Encapsulation,
        clamps: bool,
    ) {
        let source = burst.view.snapshot.tunnel_source(backend.family);
        let growth = Growth {
            overhead: tunnel::overhead(encapsulation, backend.family),
            passes: usize::from(path_mtu::minimum(backend.family)),
            clamps,
        };
        // Inlined always: one function for both callers would not know the constants.
        self.send_as_it_is(
            burst,
            packet,
            service,
            backend,
            growth,
            #[inline(always)]
            |frame, h, link| {
                let source = source.ok_or(Refusal::NoRoute)?;
                // One IPv4 source and no port leave nothing to choose.
                let hashed =
                    backend.family == Family::V6 || source.is_many() || encapsulation.port().is_some();
                let flow = if hashed { tunnel::flow_hash(frame.bytes(), h) } else { 0 };
                let (source, destination) = (source.pick(flow), backend.address);
                let tunnel = Tunnel { encapsulation, source, destination, flow_hash: flow as u32 };
                Ok(tunnel::forward(frame, h, link, &tunnel)?)
            },
        );
    }

    /// To a backend that has the VIP. Of the headers only what this needs is read, where the checks left it: copies
    /// and values that went through memory took as long as all the rest.
    #[inline(always)]
    fn send_as_it_is<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        service: &Service,
        backend: &Backend,
        Growth { overhead, passes, clamps }: Growth,
        rewrite: impl FnOnce(&mut F, &Headers, &Link) -> Result<(), Refusal>,
    ) {
        let Packet { headers: h, frame, .. } = &burst.packets[usize::from(packet)];
        let at = usize::from(*frame);
        let way = match way_by_slot(&burst.view, backend.interface, backend.neighbor) {
            Ok(way) => way,
            Err(no_next_hop) => return no_next_hop.report(burst, at),
        };
        let ip_len = usize::from(h.ip_len());
        // A small packet passes every path, so nothing is looked up for it.
        if h.ttl <= 1 || ip_len + overhead > way.mtu.min(passes) {
            let h = *h;
            if !self.passes_after_all(burst, at, &h, (service, backend), overhead, &way) {
                return;
            }
        }
        // Borrowed again: one call of `rewrite`, so that it is compiled into its place.
        let h = &burst.packets[usize::from(packet)].headers;
        if let Err(refusal) = rewrite(&mut burst.frames[at], h, &way.link) {
            return burst.set(at, refusal);
        }
        let why = if h.is_icmp_error() { TransmitReason::IcmpError } else { TransmitReason::Forward };
        if clamps && segment_size::concerns(h) {
            let h = *h;
            limit_in_tunnel(burst, at, &h, (service, backend), overhead, way.mtu);
        }
        burst.view.tallies.forwarded(service.id, Direction::Request, ip_len);
        burst.set(at, Verdict::Transmit { interface: way.interface, why });
    }

    /// Whether a packet is within the bandwidth of its Service, if that has a limit. If not, it has its verdict.
    #[cold]
    #[inline(never)]
    fn within_bandwidth<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        service: &Service,
        direction: Direction,
    ) -> bool {
        if !service.limited.of_bandwidth() {
            return true;
        }
        let Some(limited) = burst.view.snapshot.limited_service(service) else { return true };
        let Packet { headers, frame, .. } = &burst.packets[usize::from(packet)];
        let passes = self.limits.passes(limited, direction, usize::from(headers.ip_len()), burst.now);
        if !passes {
            burst.set(usize::from(*frame), Refusal::ServiceBandwidth);
        }
        passes
    }

    /// Whether a packet whose hop limit or size needs a further check is forwarded: it fits the path to its backend,
    /// or may be fragmented. If not, it has its verdict: it is answered, or its outer packet is fragmented.
    #[cold]
    #[inline(never)]
    fn passes_after_all<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        (service, backend): (&Service, &Backend),
        overhead: usize,
        way: &NextHop,
    ) -> bool {
        let mtu = mtu_to(&burst.view, backend, way.mtu, burst.now);
        if h.ttl > 1 && usize::from(h.ip_len()) + overhead <= mtu {
            return true;
        }
        let way = NextHop { interface: way.interface, link: way.link, mtu };
        let need_not_shrink =
            h.family == Family::V6 && h.ip_len() <= path_mtu::minimum(Family::V6) && overhead > 0;
        if h.ttl > 1 && need_not_shrink {
            self.send_outer_in_pieces(burst, at, h, service, backend, &way);
            return false;
        }
        self.passes_in_pieces(burst, at, h, overhead, &way)
    }

    /// Sends an IPv6 packet that every link must take whole (RFC 8200 section 5) through a tunnel that it does not fit:
    /// the outer packet is fragmented (RFC 2473 section 7.1, RFC 4213 section 3.2). Routers may fragment an outer IPv4
    /// packet further; pieces of an outer IPv6 packet are small enough for every path.
    #[cold]
    fn send_outer_in_pieces<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        service: &Service,
        backend: &Backend,
        way: &NextHop,
    ) {
        let source = burst.view.snapshot.tunnel_source(backend.family);
        let (Some(source), Some(encapsulation)) = (source, backend.encapsulation) else {
            return burst.set(at, Refusal::NoRoute);
        };
        let frame = &mut burst.frames[at];
        let flow = tunnel::flow_hash(frame.bytes(), h);
        let (source, destination) = (source.pick(flow), backend.address);
        let tunnel = Tunnel { encapsulation, source, destination, flow_hash: flow as u32 };
        let identification = self.outer_identifications.take();
        if let Err(no_room) = tunnel::forward_to_be_cut(frame, h, &way.link, &tunnel, identification) {
            return burst.set(at, Refusal::from(no_room));
        }
        let mtu = match backend.family {
            Family::V4 => way.mtu,
            Family::V6 => way.mtu.min(usize::from(path_mtu::minimum(Family::V6))),
        };
        // As above: the numbers are below 65,536, and there is room.
        let (packet, mtu) = (way.link.header_len() as u16, mtu as u16);
        let _ = burst.out.oversized.try_push(Oversized { frame: at as u8, packet, mtu });
        let why = if h.is_icmp_error() { TransmitReason::IcmpError } else { TransmitReason::Forward };
        let direction = Direction::Request;
        burst.view.tallies.forwarded(service.id, direction, usize::from(h.ip_len()));
        burst.set(at, Verdict::Transmit { interface: way.interface, why });
    }

    /// With other addresses: to a backend that must not see the VIP, or back to a client.
    #[inline(never)]
    fn send_translated<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        destination: &Destination<'_>,
    ) {
        // One branch for everything that few services ask for. Flows that began with a header keep it when their service
        // no longer asks for one.
        if !destination.service().is_plain | self.flows.nat.has_streams() {
            return self.send_translated_with_checks(burst, packet, destination);
        }
        self.send_translated_as_it_is(burst, packet, destination, 0);
    }

    /// Sends a packet of a flow that another worker holds, whose service asks for nothing but the translation.
    #[inline(never)]
    pub(super) fn send_by_copy<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        destination: &Destination<'_>,
    ) {
        self.send_translated_as_it_is(burst, packet, destination, 0);
    }

    /// The same, with all that a service may ask for.
    #[cold]
    #[inline(never)]
    fn send_translated_with_checks<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        destination: &Destination<'_>,
    ) {
        let service = destination.service();
        let direction = match destination {
            Destination::Backend { .. } => Direction::Request,
            Destination::Client { .. } => Direction::Reply,
        };
        if !self.within_bandwidth(burst, packet, service, direction) {
            return;
        }
        if service.proxy_protocol.is_some() || self.flows.nat.has_streams() {
            return self.send_proxied(burst, packet, destination);
        }
        self.send_translated_as_it_is(burst, packet, destination, service.mss_limit);
        if service.protocol == Protocol::Sctp && direction == Direction::Reply {
            list_further_vips(burst, packet, service);
        }
    }

    /// Translates and sends a packet. `mss_limit` is a constant for most services.
    #[inline(always)]
    fn send_translated_as_it_is<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        destination: &Destination<'_>,
        mss_limit: u16,
    ) {
        let Packet { headers: before, frame, .. } = &burst.packets[usize::from(packet)];
        let (at, mut h) = (usize::from(*frame), *before);
        let way = match way_of(&burst.view, destination) {
            Ok(way) => way,
            Err(no_next_hop) => return no_next_hop.report(burst, at),
        };
        let ip_len = usize::from(h.ip_len());
        if (h.ttl <= 1 || ip_len > way.mtu) && !self.passes_in_pieces(burst, at, &h, 0, &way) {
            return;
        }
        if !forward::nat::can_translate(&h) && changes_sctp(burst.frames[at].bytes(), &h, destination) {
            return burst.set(at, Refusal::SctpFragment);
        }
        if let Err(no_room) = translate(&mut burst.frames[at], &mut h, destination, &way.link) {
            return burst.set(at, Refusal::from(no_room));
        }
        // Only once it is certain that there is room: a frame that is refused must stay unchanged.
        if mss_limit > 0 {
            limit_segments(burst, at, &h, mss_limit, &way);
        }
        finish_translated(burst, at, &h, destination, &way, ip_len);
    }

    /// Whether a packet whose hop limit ends here, or that does not fit the path, may be forwarded in fragments because
    /// its sender has left DF clear (RFC 791). Otherwise it is answered, as it is if the policy or the limit of packets
    /// in fragments requires it.
    #[cold]
    pub(super) fn passes_in_pieces<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        overhead: usize,
        way: &NextHop,
    ) -> bool {
        // Room for the longest IPv4 header and 8 bytes of data.
        let room = way.mtu >= overhead + 60 + 8;
        let may_be_cut = !h.dont_fragment && room && burst.view.snapshot.policy().fragment_ipv4;
        if h.ttl <= 1 || !may_be_cut || !self.fragmenting.take(FRAGMENTED, burst.now) {
            self.cannot_pass(burst, at, h, overhead, way.mtu);
            return false;
        }
        // Offsets and MTUs are below 65,536. A frame is delivered once, so there is room.
        let (packet, mtu) = ((way.link.header_len() + overhead) as u16, way.mtu as u16);
        let _ = burst.out.oversized.try_push(Oversized { frame: at as u8, packet, mtu });
        true
    }

    /// Answers a packet whose hop limit ends here, or that does not fit the path.
    #[cold]
    pub(super) fn cannot_pass<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        overhead: usize,
        mtu: usize,
    ) {
        if h.ttl <= 1 {
            let answered = self.refuse(burst, at, h, Problem::TimeExceeded);
            return burst.answer_or(at, answered, TransmitReason::TtlExceeded, Refusal::TtlExceeded);
        }
        // At most 65,535, as a difference of such numbers. A tunnel over a link that is too small for it leaves 0.
        let mtu = (mtu.saturating_sub(overhead) as u16).max(match h.family {
            Family::V4 => 0,
            // Hosts ignore a smaller value (RFC 8201 section 4).
            Family::V6 => path_mtu::minimum(Family::V6),
        });
        let answered = self.refuse(burst, at, h, Problem::TooBig { mtu });
        burst.answer_or(at, answered, TransmitReason::PacketTooBig, Refusal::TooBig);
    }
}

/// Why there is no next hop to send to.
pub(super) struct NoNextHop {
    pub(super) refusal: Refusal,
    /// The next hop whose link address is not known.
    wanted: Option<(InterfaceIndex, Addr)>,
}

impl NoNextHop {
    const NO_ROUTE: Self = Self { refusal: Refusal::NoRoute, wanted: None };

    fn unresolved(wanted: Option<(InterfaceIndex, Addr)>) -> Self {
        Self { refusal: Refusal::NeighborUnresolved, wanted }
    }

    /// Sets the verdict of the frame, and requests the resolution of the next hop.
    #[cold]
    pub(super) fn report<F: Frame>(self, burst: &mut Burst<'_, '_, F>, at: usize) {
        if let Some((interface, addr)) = self.wanted {
            burst.out.wants(at, interface, addr);
        }
        burst.set(at, self.refusal);
    }

    /// Requests the resolution of the next hop, for later packets.
    #[cold]
    pub(super) fn ask(self, out: &mut BurstOutput) {
        if let Some((interface, addr)) = self.wanted {
            out.report_neighbor(NeighborEvent::Wanted { interface, addr });
        }
    }
}

/// The next hop of a destination.
#[inline(always)]
pub(super) fn way_of(view: &View<'_>, destination: &Destination<'_>) -> Result<NextHop, NoNextHop> {
    match destination {
        Destination::Backend { backend, .. } => way_by_slot(view, backend.interface, backend.neighbor),
        Destination::Client { client, .. } => way_by_route(view, &client.addr),
    }
}

impl From<NoRoom> for Refusal {
    fn from(NoRoom: NoRoom) -> Self {
        Self::NoHeadroom
    }
}

#[inline(always)]
pub(super) fn translate<F: Frame>(
    frame: &mut F,
    h: &mut Headers,
    destination: &Destination<'_>,
    link: &Link,
) -> Result<(), NoRoom> {
    match *destination {
        Destination::Backend { backend, local, .. } => {
            let backend = Endpoint { addr: backend.address, port: backend.port };
            match local {
                Some(local) => forward::fullnat::to_backend(frame, h, link, local, backend),
                None => forward::nat::to_backend(frame, h, link, backend),
            }
        }
        Destination::Client { service, client } => {
            let vip = Endpoint { addr: service.vip, port: service.port };
            if client.addr == h.dst && client.port == h.dst_port {
                forward::nat::to_client(frame, h, link, vip)
            } else {
                forward::fullnat::to_client(frame, h, link, vip, client)
            }
        }
    }
}

/// Translates the packet that an ICMP error quotes back to the form in which its sender sent it. The packet travelled
/// in the opposite direction.
#[cold]
fn translate_quote<F: Frame>(frame: &mut F, h: &Headers, destination: &Destination<'_>) {
    let Ok(Some(mut quoted)) = quote::parse(frame.bytes(), h) else { return };
    let (src, dst) = match *destination {
        // The backend sent it, to the address that it sees as the client's.
        Destination::Backend { backend, local, .. } => {
            (Some(Endpoint { addr: backend.address, port: backend.port }), local)
        }
        // The client sent it, to the VIP.
        Destination::Client { service, client } => {
            (Some(client), Some(Endpoint { addr: service.vip, port: service.port }))
        }
    };
    quote::translate(frame.bytes_mut(), h, &mut quoted, src, dst);
}

/// Whether bytes of an SCTP packet change on the way to its destination, other than its addresses.
#[cold]
pub(super) fn changes_sctp(frame: &[u8], h: &Headers, destination: &Destination<'_>) -> bool {
    let (hides_source, ports) = match destination {
        Destination::Backend { backend, local, .. } => {
            (local.is_some(), (local.map_or(h.src_port, |local| local.port), backend.port))
        }
        Destination::Client { service, client } => (true, (service.port, client.port)),
    };
    rewrite::changes_sctp(frame, h, hides_source, ports)
}

/// Lists the further VIPs of a Service in the INIT ACK of its backend, if that has been translated and is sent. The client
/// then has a path to each, and the backend is not told.
#[cold]
fn list_further_vips<F: Frame>(burst: &mut Burst<'_, '_, F>, packet: u8, service: &Service) {
    let Packet { headers: before, frame, .. } = &burst.packets[usize::from(packet)];
    let (at, kind) = (usize::from(*frame), sctp::Kind::from_bits(before.tcp_flags));
    let vips = burst.view.snapshot.further_vips(service.id);
    if kind != sctp::Kind::InitAck || before.proto != proto::SCTP || vips.is_empty() {
        return;
    }
    let Verdict::Transmit { interface, why: TransmitReason::Reply } = burst.out.verdicts[at] else { return };
    let mtu = burst.view.snapshot.interface(interface).map_or(0, |interface| usize::from(interface.mtu));
    let frame = &mut burst.frames[at];
    // The frame may have moved by a tag of its new link.
    if let Ok(Parsed::Ip(h)) = tidegate_wire::parse(frame.bytes()) {
        // Without room for them, the client has the path of the packet.
        let _ = forward::sctp_addresses::append(frame, &h, vips, mtu);
    }
}

/// Limits the segment size of a SYN that leaves by `way`: answers take both links in the other direction.
pub(super) fn limit_segments<F: Frame>(
    burst: &mut Burst<'_, '_, F>,
    at: usize,
    h: &Headers,
    mss_limit: u16,
    way: &NextHop,
) {
    if segment_size::concerns(h) {
        let mtu = way.mtu.min(usize::from(burst.interface.mtu));
        segment_size::limit(&mut burst.frames[at], h, usize::from(h.l4), mtu, mss_limit);
    }
}

/// Translates what an ICMP error quotes, and sends a packet that is translated. It had `ip_len` bytes when it arrived.
#[inline(always)]
pub(super) fn finish_translated<F: Frame>(
    burst: &mut Burst<'_, '_, F>,
    at: usize,
    h: &Headers,
    destination: &Destination<'_>,
    way: &NextHop,
    ip_len: usize,
) {
    let (service, direction, mut why) = match destination {
        Destination::Backend { service, .. } => (service, Direction::Request, TransmitReason::Forward),
        Destination::Client { service, .. } => (service, Direction::Reply, TransmitReason::Reply),
    };
    if h.is_icmp_error() {
        translate_quote(&mut burst.frames[at], h, destination);
        why = TransmitReason::IcmpError;
    }
    burst.view.tallies.forwarded(service.id, direction, ip_len);
    burst.set(at, Verdict::Transmit { interface: way.interface, why });
}

/// Limits the segment size of a SYN that is in a tunnel already: the frame ends with its packet.
#[cold]
#[inline(never)]
fn limit_in_tunnel<F: Frame>(
    burst: &mut Burst<'_, '_, F>,
    at: usize,
    h: &Headers,
    (service, backend): (&Service, &Backend),
    overhead: usize,
    link_mtu: usize,
) {
    let path = mtu_to(&burst.view, backend, link_mtu, burst.now).saturating_sub(overhead);
    let mtu = path.min(usize::from(burst.interface.mtu));
    let frame = &mut burst.frames[at];
    let l4 = frame.bytes().len() - usize::from(h.ip_end - h.l4);
    segment_size::limit(frame, h, l4, mtu, service.mss_limit);
}

/// Bytes of the largest packet, outer header included, that reaches a backend over a link with this MTU, taking into
/// account the path MTU that a router on the path of a tunnel has reported.
#[inline(never)]
fn mtu_to(view: &View<'_>, backend: &Backend, link_mtu: usize, now: Now) -> usize {
    if !backend.mode.is_tunnel() {
        return link_mtu;
    }
    let path = view.neighbors.path_mtus().get(&backend.address, now);
    path.map_or(link_mtu, |path| link_mtu.min(usize::from(path)))
}

#[inline(always)]
fn way_by_slot(view: &View<'_>, index: InterfaceIndex, slot: NeighborSlot) -> Result<NextHop, NoNextHop> {
    let interface = view.snapshot.interface(index).ok_or(NoNextHop::NO_ROUTE)?;
    match view.neighbors.mac(slot) {
        Some(destination) => Ok(NextHop::new(interface, index, destination)),
        None => Err(NoNextHop::unresolved(view.neighbors.key(slot))),
    }
}

/// The next hop to a client: the router of a route, or the client itself if it is on-link.
pub(super) fn way_by_route(view: &View<'_>, client: &Addr) -> Result<NextHop, NoNextHop> {
    let route = view.snapshot.route(client).ok_or(NoNextHop::NO_ROUTE)?;
    if let Some(slot) = route.neighbor {
        return way_by_slot(view, route.interface, slot);
    }
    let addr = route.via.unwrap_or(*client);
    let interface = view.snapshot.interface(route.interface).ok_or(NoNextHop::NO_ROUTE)?;
    match view.neighbors.resolve(route.interface, &addr) {
        Some(destination) => Ok(NextHop::new(interface, route.interface, destination)),
        None => Err(NoNextHop::unresolved(Some((route.interface, addr)))),
    }
}
