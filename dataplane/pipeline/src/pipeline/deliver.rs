//! The last stage: rewrites each packet for the mode of its service and sends it to its next hop, or answers a packet
//! that can't be sent. The modes without translation are here, the others in `translated.rs`.
//!
//! All checks that can refuse a packet come before the first changed byte: hop limit, route, neighbour, size,
//! headroom. Each packet reads the cache lines of its backend and next hop, both prefetched by the previous stage,
//! and the first lines of the frame.
//!
//! Plain packets take `fast_path/send.rs` instead.

use tidegate_snapshot::backend::{Backend, LastStage};
use tidegate_snapshot::counters::Direction;
use tidegate_snapshot::path_mtu;
use tidegate_snapshot::service::Service;
use tidegate_spec::ForwardingMode;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_wire::encapsulation::Encapsulation;
use tidegate_wire::{Family, Headers};

use super::burst::{Burst, Destination, Packet};
use super::next_hop::next_hop_by_id;
use super::oversized::mtu_to;
use super::segment_size;
use super::state::Pipeline;
use crate::forward::tunnel::{self, Tunnel};
use crate::forward::{self, Link, NoHeadroom};
use crate::frame::Frame;

/// By how much a packet to a backend grows, and the checks that follow from it.
#[derive(Clone, Copy)]
struct Growth {
    /// Bytes of the headers that are added.
    overhead: usize,
    /// A packet of at most this length, added headers included, fits every path. For longer packets the path MTU is
    /// looked up.
    passes: usize,
    /// Whether the segment size in a SYN is limited.
    clamps: bool,
}

impl Growth {
    /// No header is added, and only the link limits the length.
    const NONE: Self = Self { overhead: 0, passes: usize::MAX, clamps: false };
}

impl Pipeline {
    /// Rewrites and sends the packets to their destinations.
    #[inline(never)]
    pub(super) fn deliver<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>) {
        // Loop by index: taking the array out of the burst would copy it.
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

    /// Sends a packet in a mode without translation, with all optional features of a service.
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

    /// Sends a packet in mode `dsr-l2`.
    #[inline(always)]
    fn send_on_link<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        service: &Service,
        backend: &Backend,
    ) {
        self.rewrite_and_send(
            burst,
            packet,
            service,
            backend,
            Growth::NONE,
            #[inline(always)]
            |frame, h, link| Ok(forward::dsr_l2::forward(frame, h, link)?),
        );
    }

    /// Sends a packet in mode `dsr-dscp`.
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
        self.rewrite_and_send(burst, packet, service, backend, Growth::NONE, |frame, h, link| {
            let h = forward::dsr_dscp::forward(frame, h, link, backend.address, service.dscp)?;
            if service.mss_limit > 0 && segment_size::applies_to(&h) {
                segment_size::limit(frame, &h, usize::from(h.l4), mtu, service.mss_limit);
            }
            Ok(())
        });
    }

    /// Sends a packet inside an outer packet. `clamps` says whether the service limits the segment size. For
    /// `dsr-ipip`, the caller passes constants.
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
        // Always inlined, so that both callers get the benefit of their constants.
        self.rewrite_and_send(
            burst,
            packet,
            service,
            backend,
            growth,
            #[inline(always)]
            |frame, h, link| {
                let source = source.ok_or(Refusal::NoRoute)?;
                // A tunnel with a single IPv4 source and no UDP port doesn't use the hash.
                let hashed =
                    backend.family == Family::V6 || source.is_many() || encapsulation.port().is_some();
                let flow = if hashed { tunnel::flow_hash(frame.bytes(), h) } else { 0 };
                let (source, destination) = (source.pick(flow), backend.address);
                let tunnel = Tunnel { encapsulation, source, destination, flow_hash: flow as u32 };
                Ok(tunnel::forward(frame, h, link, &tunnel)?)
            },
        );
    }

    /// Sends a packet to a backend that has the VIP. The headers are read in place: copying them would take as long as
    /// everything else.
    #[inline(always)]
    fn rewrite_and_send<F: Frame>(
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
        let hop = match next_hop_by_id(&burst.view, backend.interface, backend.neighbor) {
            Ok(hop) => hop,
            Err(no_next_hop) => return no_next_hop.report(burst, at),
        };
        let ip_len = usize::from(h.ip_len());
        // A small packet fits every path, so it needs no look-up.
        if h.ttl <= 1 || ip_len + overhead > hop.mtu.min(passes) {
            let h = *h;
            if !self.passes_full_check(burst, at, &h, backend, overhead, &hop) {
                return;
            }
        }
        // Borrow again, so that `rewrite`, which is inlined, is called in one place only.
        let h = &burst.packets[usize::from(packet)].headers;
        if let Err(refusal) = rewrite(&mut burst.frames[at], h, &hop.link) {
            return burst.set(at, refusal);
        }
        let why = if h.is_icmp_error() { TransmitReason::IcmpError } else { TransmitReason::Forward };
        if clamps && segment_size::applies_to(h) {
            let h = *h;
            limit_in_tunnel(burst, at, &h, (service, backend), overhead, hop.mtu);
        }
        burst.view.tallies.forwarded(backend.id, Direction::Request, ip_len);
        burst.set(at, Verdict::Transmit { interface: hop.interface, why });
    }

    /// Whether a packet is within the bandwidth limit of its Service, if there is one. If not, this sets its verdict.
    #[cold]
    #[inline(never)]
    pub(super) fn within_bandwidth<F: Frame>(
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
}

impl From<NoHeadroom> for Refusal {
    fn from(NoHeadroom: NoHeadroom) -> Self {
        Self::NoHeadroom
    }
}

/// Limits the segment size of a SYN that is already encapsulated, and so is at the end of the frame.
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
