//! Packets that are not for a service port: ARP, neighbour discovery, pings, unmatched packets, and packets for the
//! kernel.
//!
//! This module is off the fast path. It sets the verdict of ARP packets and of IP packets that match no service.
//! Replies of backends never get here (`reply_flows`).

use tidegate_snapshot::Snapshot;
use tidegate_snapshot::addresses::{AddressKind, SourceFault};
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason, Verdict};
use tidegate_wire::arp::ArpOperation;
use tidegate_wire::icmp::Problem;
use tidegate_wire::ndp::{self, Ndp};
use tidegate_wire::{Addr, ArpPacket, Headers, L4Checksum, MacAddr, ethernet, icmp, proto};

use super::answered_frames;
use super::burst::Burst;
use super::output::{NeighborEvent, Sighting};
use super::reply_flows::may_be_reply;
use super::state::Pipeline;
use crate::frame::Frame;

/// Processes an ARP packet: answers requests for our addresses, and punts other packets that may concern the kernel.
/// Reports the sender to the resolver.
#[cold]
pub(super) fn arp<F: Frame>(burst: &mut Burst<'_, '_, F>, at: usize, packet: &ArpPacket) {
    if packet.vlan != burst.interface.vlan {
        return burst.set(at, Refusal::VlanMismatch);
    }
    let to = ethernet::destination(burst.frames[at].bytes());
    if to != burst.interface.mac && !to.is_multicast() {
        return burst.set(at, Refusal::OtherStation);
    }
    // A probe has no sender address, so it claims no address yet (RFC 5227 section 2.1.1).
    let is_probe = packet.sender_ip.is_unspecified() && packet.operation == ArpOperation::Request;
    if !packet.sender_mac.is_unicast() {
        return burst.set(at, Refusal::BadSource);
    }
    let target = burst.view.snapshot.address(&packet.target_ip.into());
    let gratuitous = packet.sender_ip == packet.target_ip;
    if !is_probe {
        let how = match packet.operation {
            ArpOperation::Request if target.is_some() && !gratuitous => Sighting::Request,
            ArpOperation::Reply if !gratuitous && packet.target_mac == burst.interface.mac => {
                Sighting::Answer { overrides: true }
            }
            _ => Sighting::Announcement { overrides: true },
        };
        if let Err(refusal) = observe_neighbor(burst, packet.sender_ip.into(), Some(packet.sender_mac), how) {
            return burst.set(at, refusal);
        }
    }
    let is_request = packet.operation == ArpOperation::Request && !gratuitous;
    let mac = burst.interface.mac;
    let answered = is_request
        && answers_for(burst, target, &packet.target_ip.into())
        && answered_frames::arp_reply(&mut burst.frames[at], packet, mac);
    burst.answer_or(at, answered, TransmitReason::ArpReply, Verdict::Punt(PuntReason::Local));
}

/// Whether the gateway answers a request for the link address of this address. It also answers for the interface's own
/// addresses, since the kernel's side of the tap has the same link address. For addresses of other interfaces, the
/// kernel decides. For a VIP of several gateways, only its owner answers; for a SNAT address, only the gateway that
/// replies must reach; for the next hop of a route, only the router.
fn answers_for<F: Frame>(burst: &Burst<'_, '_, F>, kind: Option<AddressKind>, address: &Addr) -> bool {
    let ownership = burst.view.neighbors.ownership();
    match kind {
        _ if burst.view.snapshot.is_next_hop(address) => false,
        Some(AddressKind::Vip) => ownership.answers(burst.view.snapshot.layer2(address)),
        Some(AddressKind::Snat) => ownership.answers_for_snat(),
        Some(AddressKind::Tunnel) => true,
        Some(AddressKind::Own(interface)) => interface == burst.arrival.interface(),
        None => ownership.has_taken_over(address),
    }
}

impl Pipeline {
    /// Processes a packet that matches no service port and isn't a reply of a backend.
    #[cold]
    pub(super) fn unserved<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>, at: usize, h: &Headers) {
        if burst.opened {
            // Peers hand over only packets to services.
            return burst.set(at, Refusal::TunnelUnserved);
        }
        if !burst.view.snapshot.tunnel_peers().is_empty() && burst.is_of_peer(h) {
            // Each frame gets here once, so the list has capacity.
            return burst.of_peers.push(at as u8);
        }
        let verdict = verdict(burst, at, h);
        if verdict == Verdict::Punt(PuntReason::NotOurs) && self.is_transit(burst, h) {
            return self.transit(burst, at, h);
        }
        let may_return = verdict == Refusal::NoSnatFlow.into()
            || verdict == Refusal::IcmpUnsupported.into() && h.is_echo_reply();
        if may_return && self.returns_to_backend(burst, at, h) {
            return;
        }
        let policy = burst.view.snapshot.policy();
        let is_tcp = h.l4_checksum == L4Checksum::Tcp;
        let (answered, why) = if verdict == Refusal::NoService.into() && policy.reject_unserved_ports {
            let rejected = match is_tcp {
                true => self.reset(burst, at, h),
                false => self.refuse(burst, at, h, Problem::PortUnreachable),
            };
            (rejected, TransmitReason::NoService)
        } else {
            // A backend sent this on a connection whose state was lost. Without a reset it would retransmit for
            // minutes.
            let lost = verdict == Refusal::NoSnatFlow.into() && is_tcp && policy.reset_unknown_flows;
            (lost && self.reset(burst, at, h), TransmitReason::NoFlow)
        };
        burst.answer_or(at, answered, why, verdict);
    }
}

/// The verdict on an unmatched packet, before the decision whether a refusal is answered.
fn verdict<F: Frame>(burst: &mut Burst<'_, '_, F>, at: usize, h: &Headers) -> Verdict {
    match burst.view.snapshot.address(&h.dst) {
        kind if refused_source(burst, h, kind) => Refusal::BadSource.into(),
        // The kernel checks packets to the interface's own addresses.
        Some(AddressKind::Vip | AddressKind::Snat | AddressKind::Tunnel)
            if !answered_frames::is_from_one_station(&burst.frames[at]) =>
        {
            Refusal::BadSource.into()
        }
        Some(AddressKind::Vip | AddressKind::Snat | AddressKind::Tunnel) | None
            if h.is_redirect() && h.dst.is_single_host() =>
        {
            Refusal::IcmpRedirect.into()
        }
        Some(AddressKind::Vip | AddressKind::Tunnel) => to_vip(burst, at, h, Refusal::NoService),
        Some(AddressKind::Snat) => to_vip(burst, at, h, Refusal::NoSnatFlow),
        None if burst.view.neighbors.ownership().has_taken_over(&h.dst) => {
            to_vip(burst, at, h, Refusal::NoSnatFlow)
        }
        Some(AddressKind::Own(_)) if may_answer_probe(burst, h) => Verdict::Punt(PuntReason::ProbeAnswer),
        Some(AddressKind::Own(_)) => to_own(burst, at, h),
        None if h.dst.is_multicast() => to_group(burst, at, h),
        None if is_to_everyone(burst, h) => Verdict::Punt(PuntReason::Local),
        None => Verdict::Punt(PuntReason::NotOurs),
    }
}

/// Whether a packet to this kind of address has an invalid source. The kernel decides on multicast and broadcast
/// packets: hosts without an address send them (DHCP), and the kernel needs neighbour discovery to detect duplicates of
/// our addresses.
fn refused_source<F: Frame>(burst: &Burst<'_, '_, F>, h: &Headers, to: Option<AddressKind>) -> bool {
    match to {
        Some(AddressKind::Vip | AddressKind::Snat | AddressKind::Tunnel) => burst.sender_fault(h).is_some(),
        Some(AddressKind::Own(_)) => forged(burst, h) && !may_answer_probe(burst, h),
        None => h.dst.is_single_host() && forged(burst, h),
    }
}

/// Whether the destination is a broadcast address or another address that reaches all hosts on a network.
fn is_to_everyone<F: Frame>(burst: &Burst<'_, '_, F>, h: &Headers) -> bool {
    let fault = burst.view.snapshot.source_fault(&h.dst);
    matches!(fault, Some(SourceFault::NotOneHost | SourceFault::NotOneHostOfNetwork))
}

/// Whether the source is one of ours, or the network or broadcast address of a connected network.
fn forged<F: Frame>(burst: &Burst<'_, '_, F>, h: &Headers) -> bool {
    matches!(burst.sender_fault(h), Some(SourceFault::Ours | SourceFault::NotOneHostOfNetwork))
}

/// Whether a packet to an address of the gateway itself may be a backend's answer to a health check at the VIP: a DSR
/// backend answers from the VIP, or reports by ICMP that it isn't listening. The slow path decides whether there was
/// such a check.
fn may_answer_probe<F: Frame>(burst: &Burst<'_, '_, F>, h: &Headers) -> bool {
    let has_ports = may_be_reply(h);
    (has_ports || h.is_icmp_error()) && burst.view.snapshot.address(&h.src) == Some(AddressKind::Vip)
}

/// The verdict on a packet to an address that only the gateway answers for.
fn to_vip<F: Frame>(burst: &mut Burst<'_, '_, F>, at: usize, h: &Headers, no_port: Refusal) -> Verdict {
    match h.l4_checksum {
        L4Checksum::Icmp | L4Checksum::Icmpv6 => icmp_to_vip(burst, at, h),
        _ if burst.view.snapshot.denies(&h.src) => Refusal::SourceDenied.into(),
        L4Checksum::None if h.is_later_fragment() => Refusal::FragmentUnknown.into(),
        L4Checksum::None => Refusal::UnsupportedProtocol.into(),
        L4Checksum::Tcp | L4Checksum::Udp | L4Checksum::UdpZero | L4Checksum::Sctp => no_port.into(),
    }
}

fn icmp_to_vip<F: Frame>(burst: &mut Burst<'_, '_, F>, at: usize, h: &Headers) -> Verdict {
    let index = burst.arrival.interface();
    match ndp::parse(burst.frames[at].bytes(), h) {
        Ok(None) => {}
        Ok(Some(message)) => return discovery(burst, at, h, &message),
        Err(malformed) => return Verdict::Drop(malformed.into()),
    }
    // Neighbour discovery above works even for denied sources.
    if burst.view.snapshot.denies(&h.src) {
        return Refusal::SourceDenied.into();
    }
    if h.is_echo_request() && !h.is_fragment() && !icmp::checksum_ok(burst.frames[at].bytes(), h) {
        return Refusal::IcmpChecksum.into();
    }
    if answered_frames::echo_reply(burst, at, h) {
        Verdict::Transmit { interface: index, why: TransmitReason::EchoReply }
    } else if h.is_icmp_error() {
        Refusal::IcmpErrorUnknown.into()
    } else {
        Refusal::IcmpUnsupported.into()
    }
}

/// The verdict on a packet to a group: neighbour discovery about one of our addresses is answered, and everything else
/// is punted.
fn to_group<F: Frame>(burst: &mut Burst<'_, '_, F>, at: usize, h: &Headers) -> Verdict {
    if h.proto != proto::ICMPV6 {
        return Verdict::Punt(PuntReason::Local);
    }
    match ndp::parse(burst.frames[at].bytes(), h) {
        Ok(Some(message)) => discovery(burst, at, h, &message),
        Ok(None) => Verdict::Punt(PuntReason::Local),
        Err(malformed) => Verdict::Drop(malformed.into()),
    }
}

/// The verdict on a valid neighbour discovery message, to us or to a group.
fn discovery<F: Frame>(burst: &mut Burst<'_, '_, F>, at: usize, h: &Headers, message: &Ndp) -> Verdict {
    let index = burst.arrival.interface();
    if let Err(refusal) = observe_discovery(burst, h, message) {
        return refusal.into();
    }
    if let Ndp::Solicitation { target, .. } = *message
        && answers_for(burst, burst.view.snapshot.address(&Addr::from(target)), &Addr::from(target))
    {
        let mac = burst.interface.mac;
        if answered_frames::advertisement(&mut burst.frames[at], h, target, mac) {
            return Verdict::Transmit { interface: index, why: TransmitReason::NeighborAdvertisement };
        }
    }
    Verdict::Punt(PuntReason::Local)
}

/// The verdict on a packet to the interface's own address: neighbour discovery is processed, and everything else is
/// punted to the kernel, which also checks malformed messages.
fn to_own<F: Frame>(burst: &mut Burst<'_, '_, F>, at: usize, h: &Headers) -> Verdict {
    if h.proto == proto::ICMPV6
        && let Ok(Some(message)) = ndp::parse(burst.frames[at].bytes(), h)
    {
        return discovery(burst, at, h, &message);
    }
    Verdict::Punt(PuntReason::Local)
}

fn observe_discovery<F: Frame>(
    burst: &mut Burst<'_, '_, F>,
    h: &Headers,
    message: &Ndp,
) -> Result<(), Refusal> {
    match *message {
        // Duplicate address detection: the sender has no address yet.
        Ndp::Solicitation { .. } if h.src == Addr::UNSPECIFIED => Ok(()),
        Ndp::Solicitation { source_mac: None, .. } => Ok(()),
        Ndp::Solicitation { target, source_mac } => {
            let ours = burst.view.snapshot.address(&Addr::from(target)).is_some();
            let how = if ours { Sighting::Request } else { Sighting::Announcement { overrides: true } };
            observe_neighbor(burst, h.src, source_mac, how)
        }
        Ndp::Advertisement { target, target_mac, solicited, overrides, .. } => {
            let how =
                if solicited { Sighting::Answer { overrides } } else { Sighting::Announcement { overrides } };
            observe_neighbor(burst, target.into(), target_mac, how)
        }
    }
}

/// Reports a neighbour's link address to the resolver, if it is new. Returns an error if the packet's claim is invalid.
fn observe_neighbor<F: Frame>(
    burst: &mut Burst<'_, '_, F>,
    addr: Addr,
    mac: Option<MacAddr>,
    how: Sighting,
) -> Result<(), Refusal> {
    let (interface, snapshot) = (burst.arrival.interface(), burst.view.snapshot);
    if !addr.is_single_host() || mac.is_some_and(|mac| !mac.is_unicast()) {
        return Err(Refusal::BadSource);
    }
    if let Some(kind) = snapshot.address(&addr).filter(|_| !snapshot.is_next_hop(&addr)) {
        // Ignore our own packet that was looped back, perhaps through another interface on the same link.
        let own = mac.is_some_and(|mac| snapshot.interfaces().iter().any(|interface| interface.mac == mac));
        if own {
            return Ok(());
        }
        // The owner of the VIP, or the gateway that took over the SNAT address, announces it.
        let may_be_of_another = matches!(kind, AddressKind::Vip | AddressKind::Snat);
        if may_be_of_another && !answers_for(burst, Some(kind), &addr) {
            return Ok(());
        }
        burst.out.report_neighbor(NeighborEvent::Conflict { interface, addr, mac });
        return Err(Refusal::AddressConflict);
    }
    let is_new = match (burst.view.neighbors.peek(interface, &addr), how) {
        // Nobody needs this neighbour yet. An on-link host that requests our address is about to send to us.
        (None, Sighting::Request) => is_on_link(snapshot, interface, &addr),
        (None, _) => false,
        (Some(known), Sighting::Answer { .. }) => known.is_some() || mac.is_some(),
        (Some(known), _) => mac.is_some() && known != mac,
    };
    if is_new {
        burst.out.report_neighbor(NeighborEvent::Seen { interface, addr, mac, how });
    }
    Ok(())
}

fn is_on_link(snapshot: &Snapshot, interface: InterfaceIndex, addr: &Addr) -> bool {
    snapshot.route(addr).is_some_and(|hop| hop.interface == interface && hop.via.is_none())
}
