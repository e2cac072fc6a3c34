//! What is for no service port: ARP, neighbour discovery, pings, strays, and everything that is the kernel's.
//!
//! Off the fast path. Called by the pipeline for ARP packets and for IP packets that match no service; decides
//! and sets the verdict. Replies of backends are told apart before this (`reply_flows`).

use super::{Burst, NeighborEvent, Pipeline, answers};
use crate::addresses::{AddressKind, SourceFault};
use crate::frame::Frame;
use crate::verdict::{PuntReason, Refusal, TransmitReason, Verdict};
use crate::wire::arp::ArpOperation;
use crate::wire::icmp::Problem;
use crate::wire::ndp::{self, Ndp};
use crate::wire::{Addr, ArpPacket, Headers, L4Checksum, ethernet, icmp, proto};

/// An ARP packet: requests for VIPs, SNAT addresses and sources of tunnels are answered, everything else is the kernel's, which
/// holds the interface's own addresses. Whatever it tells of its sender, the resolver hears.
#[cold]
pub(super) fn arp<F: Frame>(burst: &mut Burst<'_, '_, F>, at: usize, packet: &ArpPacket) {
    let (index, interface) = (burst.arrival.interface(), burst.interface);
    if packet.vlan != interface.vlan {
        return burst.set(at, Refusal::VlanMismatch);
    }
    let to = ethernet::destination(burst.frames[at].bytes());
    if to != interface.mac && !to.is_multicast() {
        return burst.set(at, Refusal::OtherStation);
    }
    if !packet.sender_ip.is_unspecified() {
        let (addr, mac) = (packet.sender_ip.into(), packet.sender_mac);
        burst.out.tell(NeighborEvent::Seen { interface: index, addr, mac });
    }
    let ours = burst.view.snapshot.address(&packet.target_ip.into());
    let asked = packet.operation == ArpOperation::Request && packet.sender_ip != packet.target_ip;
    let answered = asked
        && matches!(ours, Some(AddressKind::Vip | AddressKind::Snat | AddressKind::Tunnel))
        && answers::arp_reply(&mut burst.frames[at], packet, interface.mac);
    burst.answer_or(at, answered, TransmitReason::ArpReply, Verdict::Punt(PuntReason::Local));
}

impl Pipeline {
    /// A packet that matches no service port and is no reply of a backend.
    #[cold]
    pub(super) fn unserved<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>, at: usize, h: &Headers) {
        let verdict = verdict(burst, at, h);
        let policy = burst.view.snapshot.policy();
        let is_tcp = h.l4_checksum == L4Checksum::Tcp;
        let (answered, why) = if verdict == Refusal::NoService.into() && policy.reject_unserved_ports {
            let rejected = match is_tcp {
                true => self.reset(burst, at, h),
                false => self.refuse(burst, at, h, Problem::PortUnreachable),
            };
            (rejected, TransmitReason::NoService)
        } else {
            // What a backend sends on a connection whose state was lost. Without a reset it would go on for minutes.
            let lost = verdict == Refusal::NoSnatFlow.into() && is_tcp && policy.reset_unknown_flows;
            (lost && self.reset(burst, at, h), TransmitReason::NoFlow)
        };
        burst.answer_or(at, answered, why, verdict);
    }
}

/// What becomes of such a packet, before it is asked whether a refusal is to be answered.
fn verdict<F: Frame>(burst: &mut Burst<'_, '_, F>, at: usize, h: &Headers) -> Verdict {
    match burst.view.snapshot.address(&h.dst) {
        kind if refused_source(burst, h, kind) => Refusal::BadSource.into(),
        Some(AddressKind::Vip | AddressKind::Snat | AddressKind::Tunnel) | None
            if h.is_redirect() && h.dst.is_single_host() =>
        {
            Refusal::IcmpRedirect.into()
        }
        Some(AddressKind::Vip | AddressKind::Tunnel) => to_vip(burst, at, h, Refusal::NoService),
        Some(AddressKind::Snat) => to_vip(burst, at, h, Refusal::NoSnatFlow),
        Some(AddressKind::Own(_)) => {
            learn_from_discovery(burst, at, h);
            Verdict::Punt(PuntReason::Local)
        }
        None if h.dst.is_multicast() => to_group(burst, at, h),
        None if is_to_everyone(burst, h) => Verdict::Punt(PuntReason::Local),
        None => Verdict::Punt(PuntReason::NotOurs),
    }
}

/// Whether a packet to this kind of address has a source that it may not have. What is to a group or to everyone is
/// the kernel's to judge: hosts without an address send it (DHCP), and neighbour discovery tells the kernel who else
/// claims an address of ours.
fn refused_source<F: Frame>(burst: &Burst<'_, '_, F>, h: &Headers, to: Option<AddressKind>) -> bool {
    match to {
        Some(AddressKind::Vip | AddressKind::Snat | AddressKind::Tunnel) => burst.sender_fault(h).is_some(),
        Some(AddressKind::Own(_)) => forged(burst, h),
        None => h.dst.is_single_host() && forged(burst, h),
    }
}

/// Whether the destination is everyone on a network.
fn is_to_everyone<F: Frame>(burst: &Burst<'_, '_, F>, h: &Headers) -> bool {
    let fault = burst.view.snapshot.source_fault(&h.dst);
    matches!(fault, Some(SourceFault::NotOneHost | SourceFault::NotOneHostOfNetwork))
}

/// Whether the source is ours, or an end of a connected network.
fn forged<F: Frame>(burst: &Burst<'_, '_, F>, h: &Headers) -> bool {
    matches!(burst.sender_fault(h), Some(SourceFault::Ours | SourceFault::NotOneHostOfNetwork))
}

/// To an address that only we answer for.
fn to_vip<F: Frame>(burst: &mut Burst<'_, '_, F>, at: usize, h: &Headers, no_port: Refusal) -> Verdict {
    match h.l4_checksum {
        L4Checksum::Icmp | L4Checksum::Icmpv6 => icmp_to_vip(burst, at, h),
        L4Checksum::None if h.is_later_fragment() => Refusal::FragmentUnknown.into(),
        L4Checksum::None => Refusal::UnsupportedProtocol.into(),
        L4Checksum::Tcp | L4Checksum::Udp | L4Checksum::UdpZero | L4Checksum::Sctp => no_port.into(),
    }
}

fn icmp_to_vip<F: Frame>(burst: &mut Burst<'_, '_, F>, at: usize, h: &Headers) -> Verdict {
    let (index, mac) = (burst.arrival.interface(), burst.interface.mac);
    match ndp::parse(burst.frames[at].bytes(), h) {
        Ok(None) => {}
        Ok(Some(message)) => return discovery(burst, at, h, &message),
        Err(malformed) => return Verdict::Drop(malformed.into()),
    }
    if h.is_echo_request() && !h.is_fragment() && !icmp::checksum_ok(burst.frames[at].bytes(), h) {
        return Refusal::IcmpChecksum.into();
    }
    if answers::echo_reply(&mut burst.frames[at], h, mac) {
        Verdict::Transmit { interface: index, why: TransmitReason::EchoReply }
    } else if h.is_icmp_error() {
        Refusal::IcmpErrorUnknown.into()
    } else {
        Refusal::IcmpUnsupported.into()
    }
}

/// To a group: neighbour discovery about an address of ours is answered, all else is the kernel's.
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

/// A sound neighbour discovery message, to us or to a group.
fn discovery<F: Frame>(burst: &mut Burst<'_, '_, F>, at: usize, h: &Headers, message: &Ndp) -> Verdict {
    let index = burst.arrival.interface();
    hear(burst, h, message);
    if let Ndp::Solicitation { target, .. } = *message
        && let Some(AddressKind::Vip | AddressKind::Snat | AddressKind::Tunnel) =
            burst.view.snapshot.address(&Addr::from(target))
    {
        let mac = burst.interface.mac;
        if answers::advertisement(&mut burst.frames[at], h, target, mac) {
            return Verdict::Transmit { interface: index, why: TransmitReason::NeighborAdvertisement };
        }
    }
    Verdict::Punt(PuntReason::Local)
}

/// Tells the resolver what a message to the kernel says; a malformed one is the kernel's to judge.
fn learn_from_discovery<F: Frame>(burst: &mut Burst<'_, '_, F>, at: usize, h: &Headers) {
    if h.proto == proto::ICMPV6
        && let Ok(Some(message)) = ndp::parse(burst.frames[at].bytes(), h)
    {
        hear(burst, h, &message);
    }
}

fn hear<F: Frame>(burst: &mut Burst<'_, '_, F>, h: &Headers, message: &Ndp) {
    let (addr, mac) = match *message {
        Ndp::Solicitation { source_mac, .. } => (h.src, source_mac),
        Ndp::Advertisement { target, target_mac, .. } => (Addr::from(target), target_mac),
    };
    if let Some(mac) = mac {
        let interface = burst.arrival.interface();
        burst.out.tell(NeighborEvent::Seen { interface, addr, mac });
    }
}
