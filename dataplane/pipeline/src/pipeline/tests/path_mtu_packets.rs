//! Packets for the tests of path MTU discovery in tunnels: segments of clients, errors of routers, and the answers to
//! clients.

use std::net::IpAddr;

use tidegate_spec::verdict::TransmitReason;
use tidegate_wire::tcp::flags;
use tidegate_wire::{Headers, Parsed, ethernet, icmp, parse};

use super::lab::{FrameResult, Lab, ip};
use crate::testing::builder::Builder;

pub(super) const CLIENT: &str = "198.51.100.7:40000";
pub(super) const VIP: &str = "203.0.113.5:80";
pub(super) const CLIENT6: &str = "[2001:db8::7]:40000";
pub(super) const VIP6: &str = "[2001:db8:1::5]:80";

pub(super) fn headers(frame: &[u8]) -> Headers {
    match parse(frame) {
        Ok(Parsed::Ip(h)) => h,
        other => panic!("{other:?}"),
    }
}

pub(super) fn segment(client: &str, vip: &str, ip_len: usize) -> Builder {
    let header = if vip.starts_with('[') { 40 } else { 20 };
    Builder::tcp(client, vip).flags(flags::ACK).payload_len(ip_len - header - 20)
}

/// A router's error about a frame of the gateway. It quotes the truncated IP packet.
pub(super) fn error(sent: &[u8], mtu: u32, quoted_len: usize) -> Builder {
    let packet = &sent[ethernet::HEADER_LEN..];
    about(headers(sent).src.ip(), mtu, &packet[..quoted_len.min(packet.len())])
}

/// A router's error about a packet of `to`, which it quotes.
pub(super) fn about(to: IpAddr, mtu: u32, quoted: &[u8]) -> Builder {
    match to {
        IpAddr::V4(_) => Builder::icmp(ip("10.9.9.9"), to, 3, 4, mtu.to_be_bytes()).payload(quoted),
        IpAddr::V6(_) => Builder::icmp(ip("fd00:9::9"), to, 2, 0, mtu.to_be_bytes()).payload(quoted),
    }
}

/// The MTU in the message to a client.
pub(super) fn answered_mtu(result: &FrameResult) -> usize {
    let sent = result.sent(TransmitReason::PacketTooBig);
    usize::from(icmp::reported_mtu(sent, &headers(sent)).expect("an error with an MTU"))
}

pub(super) fn path_mtu_count(lab: &Lab) -> usize {
    lab.neighbors.path_mtus().known(lab.now).count()
}
