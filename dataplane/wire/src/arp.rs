//! ARP for IPv4 over Ethernet (RFC 826): reading, requests, replies.

use super::ethernet::{EthernetHeader, MacAddr, SmallFrame, ether_type};
use super::malformed::Malformed;
use super::vlan::VlanId;
use core::net::Ipv4Addr;

/// Bytes of an Ethernet/IPv4 ARP packet.
pub const PACKET_LEN: usize = 28;

/// Hardware type 1, protocol 0x0800, address lengths 6 and 4.
const FORMAT: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// `ar$op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpOperation {
    /// Operation 1.
    Request,
    /// Operation 2.
    Reply,
    /// Any other value. Such packets are ignored.
    Other(u16),
}

/// One ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpPacket {
    /// Request or reply.
    pub operation: ArpOperation,
    /// Sender hardware address.
    pub sender_mac: MacAddr,
    /// Sender protocol address; unspecified in a probe (RFC 5227).
    pub sender_ip: Ipv4Addr,
    /// Target hardware address; meaningless in a request.
    pub target_mac: MacAddr,
    /// Target protocol address.
    pub target_ip: Ipv4Addr,
    /// The VLAN of the frame.
    pub vlan: Option<VlanId>,
}

/// Parses and checks the bytes that follow the Ethernet header.
#[inline(never)]
pub fn parse(packet: &[u8], vlan: Option<VlanId>) -> Result<ArpPacket, Malformed> {
    let p: &[u8; PACKET_LEN] = packet.first_chunk().ok_or(Malformed::ArpTruncated)?;
    if p[..6] != FORMAT {
        return Err(Malformed::ArpFormat);
    }
    let operation = match u16::from_be_bytes([p[6], p[7]]) {
        1 => ArpOperation::Request,
        2 => ArpOperation::Reply,
        other => ArpOperation::Other(other),
    };
    let mac = |at: usize| MacAddr([p[at], p[at + 1], p[at + 2], p[at + 3], p[at + 4], p[at + 5]]);
    let ip = |at: usize| Ipv4Addr::new(p[at], p[at + 1], p[at + 2], p[at + 3]);
    Ok(ArpPacket {
        operation,
        sender_mac: mac(8),
        sender_ip: ip(14),
        target_mac: mac(18),
        target_ip: ip(24),
        vlan,
    })
}

impl ArpPacket {
    /// The frame with this packet, from `sender_mac` to `to`.
    pub fn frame(&self, to: MacAddr) -> SmallFrame {
        let ethernet =
            EthernetHeader { dst: to, src: self.sender_mac, vlan: self.vlan, ether_type: ether_type::ARP };
        let mut out = [0; 18 + PACKET_LEN];
        let at = ethernet.write(&mut out);
        let operation: u16 = match self.operation {
            ArpOperation::Request => 1,
            ArpOperation::Reply => 2,
            ArpOperation::Other(op) => op,
        };
        let p = &mut out[at..at + PACKET_LEN];
        p[..6].copy_from_slice(&FORMAT);
        p[6..8].copy_from_slice(&operation.to_be_bytes());
        p[8..14].copy_from_slice(&self.sender_mac.0);
        p[14..18].copy_from_slice(&self.sender_ip.octets());
        p[18..24].copy_from_slice(&self.target_mac.0);
        p[24..28].copy_from_slice(&self.target_ip.octets());
        SmallFrame::try_from(&out[..at + PACKET_LEN]).expect("46 bytes at most, the frame has 128")
    }
}

/// The answer that one of our addresses is at `mac`. The caller has checked that the packet is a request and that
/// `request.target_ip` is ours.
pub fn reply(request: &ArpPacket, mac: MacAddr) -> SmallFrame {
    let answer = ArpPacket {
        operation: ArpOperation::Reply,
        sender_mac: mac,
        sender_ip: request.target_ip,
        target_mac: request.sender_mac,
        target_ip: request.sender_ip,
        vlan: request.vlan,
    };
    answer.frame(request.sender_mac)
}

/// A request for `target`, sent to broadcast, or to `known` to check whether a neighbour is still there (unicast poll
/// of RFC 1122 2.3.2.1).
pub fn request(
    mac: MacAddr,
    ip: Ipv4Addr,
    target: Ipv4Addr,
    vlan: Option<VlanId>,
    known: Option<MacAddr>,
) -> SmallFrame {
    let query = ArpPacket {
        operation: ArpOperation::Request,
        sender_mac: mac,
        sender_ip: ip,
        target_mac: MacAddr::ZERO,
        target_ip: target,
        vlan,
    };
    query.frame(known.unwrap_or(MacAddr::BROADCAST))
}

/// A gratuitous announcement of `ip` (RFC 5227 3): a broadcast request for our own address.
pub fn announcement(mac: MacAddr, ip: Ipv4Addr, vlan: Option<VlanId>) -> SmallFrame {
    request(mac, ip, ip, vlan, None)
}
