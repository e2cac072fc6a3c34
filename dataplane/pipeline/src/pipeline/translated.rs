//! The last stage of `nat` and `fullnat`: translates a packet and sends it to a backend or to a client.
//! Plain packets take `fast_path/send.rs` instead.
//!
//! Promises: a refused frame is unchanged. The packet that an ICMP error quotes is translated back.

use tidegate_snapshot::counters::Direction;
use tidegate_snapshot::service::Service;
use tidegate_spec::Protocol;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_wire::rewrite::{self, Endpoint};
use tidegate_wire::{Headers, Parsed, proto, quote, sctp};

use super::burst::{Burst, Destination, Packet};
use super::next_hop::{NextHop, next_hop_of};
use super::segment_size;
use super::state::Pipeline;
use crate::forward::{self, Link, NoHeadroom};
use crate::frame::Frame;

impl Pipeline {
    /// Sends a packet in a mode with translation.
    #[inline(never)]
    pub(super) fn send_translated<F: Frame>(
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
        // Flows that began with a PROXY protocol header still need their stream adjusted after their service disables
        // headers.
        if service.proxy_protocol.is_some() | self.flows.nat.has_streams() {
            return self.send_proxied(burst, packet, destination);
        }
        self.translate_and_send(burst, packet, destination, service.mss_limit);
        if service.protocol == Protocol::Sctp && direction == Direction::Reply {
            list_further_vips(burst, packet, service);
        }
    }

    /// Translates and sends a packet, and limits the segment size in a SYN unless `mss_limit` is 0.
    #[inline(never)]
    pub(super) fn translate_and_send<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        destination: &Destination<'_>,
        mss_limit: u16,
    ) {
        let Packet { headers: before, frame, .. } = &burst.packets[usize::from(packet)];
        let (at, mut h) = (usize::from(*frame), *before);
        let hop = match next_hop_of(&burst.view, destination) {
            Ok(hop) => hop,
            Err(no_next_hop) => return no_next_hop.report(burst, at),
        };
        let ip_len = usize::from(h.ip_len());
        if (h.ttl <= 1 || ip_len > hop.mtu) && !self.passes_in_fragments(burst, at, &h, 0, &hop) {
            return;
        }
        if !forward::nat::can_translate(&h) && changes_sctp(burst.frames[at].bytes(), &h, destination) {
            return burst.set(at, Refusal::SctpFragment);
        }
        if let Err(no_headroom) = translate(&mut burst.frames[at], &mut h, destination, &hop.link) {
            return burst.set(at, Refusal::from(no_headroom));
        }
        // This comes after the translation, because a refused frame must stay unchanged.
        if mss_limit > 0 {
            limit_segments(burst, at, &h, mss_limit, &hop);
        }
        finish_translated(burst, at, &h, destination, &hop, ip_len);
    }
}

#[inline(always)]
pub(super) fn translate<F: Frame>(
    frame: &mut F,
    h: &mut Headers,
    destination: &Destination<'_>,
    link: &Link,
) -> Result<(), NoHeadroom> {
    match *destination {
        Destination::Backend { backend, local, .. } => {
            let backend = Endpoint { addr: backend.address, port: backend.port };
            match local {
                Some(local) => forward::fullnat::to_backend(frame, h, link, local, backend),
                None => forward::nat::to_backend(frame, h, link, backend),
            }
        }
        Destination::Client { service, client, .. } => {
            let vip = Endpoint { addr: service.vip, port: service.port };
            if client.addr == h.dst && client.port == h.dst_port {
                forward::nat::to_client(frame, h, link, vip)
            } else {
                forward::fullnat::to_client(frame, h, link, vip, client)
            }
        }
    }
}

/// Translates the packet that an ICMP error quotes back to the form in which it was sent, in the opposite direction.
#[cold]
fn translate_quote<F: Frame>(frame: &mut F, h: &Headers, destination: &Destination<'_>) {
    let Ok(Some(mut quoted)) = quote::parse(frame.bytes(), h) else { return };
    let (src, dst) = match *destination {
        // The backend sent it to the address that it sees as the client's.
        Destination::Backend { backend, local, .. } => {
            (Some(Endpoint { addr: backend.address, port: backend.port }), local)
        }
        // The client sent it to the VIP.
        Destination::Client { service, client, .. } => {
            (Some(client), Some(Endpoint { addr: service.vip, port: service.port }))
        }
    };
    quote::translate(frame.bytes_mut(), h, &mut quoted, src, dst);
}

/// Whether translation changes bytes of an SCTP packet other than its addresses.
#[cold]
pub(super) fn changes_sctp(frame: &[u8], h: &Headers, destination: &Destination<'_>) -> bool {
    let (hides_source, ports) = match destination {
        Destination::Backend { backend, local, .. } => {
            (local.is_some(), (local.map_or(h.src_port, |local| local.port), backend.port))
        }
        Destination::Client { service, client, .. } => (true, (service.port, client.port)),
    };
    rewrite::changes_sctp(frame, h, hides_source, ports)
}

/// Adds the further VIPs of a Service to a translated INIT ACK of its backend. The client then has a path to each VIP;
/// the backend isn't involved.
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
    // A tag of the new link may have moved the packet.
    if let Ok(Parsed::Ip(h)) = tidegate_wire::parse(frame.bytes()) {
        // If they don't fit, the client has only the path of this packet.
        let _ = forward::sctp_addresses::append(frame, &h, vips, mtu);
    }
}

/// Limits the segment size of a SYN to what fits both its links: answers use them in the other direction.
pub(super) fn limit_segments<F: Frame>(
    burst: &mut Burst<'_, '_, F>,
    at: usize,
    h: &Headers,
    mss_limit: u16,
    hop: &NextHop,
) {
    if segment_size::applies_to(h) {
        let mtu = hop.mtu.min(usize::from(burst.interface.mtu));
        segment_size::limit(&mut burst.frames[at], h, usize::from(h.l4), mtu, mss_limit);
    }
}

/// Sends a translated packet that arrived with `ip_len` bytes. Translates the quote of an ICMP error.
#[inline(always)]
pub(super) fn finish_translated<F: Frame>(
    burst: &mut Burst<'_, '_, F>,
    at: usize,
    h: &Headers,
    destination: &Destination<'_>,
    hop: &NextHop,
    ip_len: usize,
) {
    let (backend, direction, mut why) = match *destination {
        Destination::Backend { backend, .. } => (backend.id, Direction::Request, TransmitReason::Forward),
        Destination::Client { backend, .. } => (backend, Direction::Reply, TransmitReason::Reply),
    };
    if h.is_icmp_error() {
        translate_quote(&mut burst.frames[at], h, destination);
        why = TransmitReason::IcmpError;
    }
    burst.view.tallies.forwarded(backend, direction, ip_len);
    burst.set(at, Verdict::Transmit { interface: hop.interface, why });
}
