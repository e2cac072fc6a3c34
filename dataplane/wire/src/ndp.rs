//! Neighbour discovery (RFC 4861): solicitations and advertisements, read with the checks of section 7.1 and built.
//!
//! The kernel handles router discovery and redirects: the gateway's routes are configured.

use super::addr::Addr;
use super::checksum::Sum;
use super::ethernet::{EthernetHeader, MacAddr, SmallFrame, ether_type};
use super::headers::{Family, Headers, L4Checksum, proto};
use super::icmp;
use super::ipv6::Ipv6Header;
use super::malformed::Malformed;
use super::vlan::VlanId;
use core::net::Ipv6Addr;

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const OPTION_SOURCE: u8 = 1;
const OPTION_TARGET: u8 = 2;

/// One neighbour discovery message of the two kinds that the gateway handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ndp {
    /// A request for the link address of `target`.
    Solicitation {
        /// The requested address.
        target: Ipv6Addr,
        /// Source link-layer address option.
        source_mac: Option<MacAddr>,
    },
    /// The link address of `target`.
    Advertisement {
        /// The announced address.
        target: Ipv6Addr,
        /// Target link-layer address option. A unicast answer may omit it.
        target_mac: Option<MacAddr>,
        /// R flag.
        router: bool,
        /// S flag: an answer to a solicitation.
        solicited: bool,
        /// O flag: replaces a cached link address.
        overrides: bool,
    },
}

/// Reads a solicitation or an advertisement; `Ok(None)` when the packet is neither.
///
/// # Errors
/// `NdpTruncated`, `NdpInvalid`.
///
/// # Panics
/// When `h` does not belong to this frame.
pub fn parse(frame: &[u8], h: &Headers) -> Result<Option<Ndp>, Malformed> {
    if h.l4_checksum != L4Checksum::Icmpv6 || !matches!(h.icmp_type, SOLICITATION | ADVERTISEMENT) {
        return Ok(None);
    }
    let message = &frame[usize::from(h.l4)..usize::from(h.ip_end)];
    let (m, options) = message.split_first_chunk::<24>().ok_or(Malformed::NdpTruncated)?;
    // RFC 6980 5: fragmented neighbour discovery is ignored.
    if h.ttl != 255 || h.icmp_code != 0 || h.is_fragment() || !icmp::checksum_ok(frame, h) {
        return Err(Malformed::NdpInvalid);
    }
    // RFC 4291 2.7: a multicast address is never a source. An answer to it would flood the link.
    if h.src != Addr::UNSPECIFIED && !h.src.is_single_host() {
        return Err(Malformed::NdpInvalid);
    }
    let mut target = [0; 16];
    target.copy_from_slice(&m[8..24]);
    let target = Ipv6Addr::from(target);
    if target.is_multicast() {
        return Err(Malformed::NdpInvalid);
    }
    if h.icmp_type == SOLICITATION {
        let source_mac = link_layer_option(options, OPTION_SOURCE)?;
        // In duplicate address detection, the source is ::, the destination is the solicited-node group, and the
        // link-layer address option is absent.
        if h.src == Addr::UNSPECIFIED && (source_mac.is_some() || !is_solicited_node(&h.dst)) {
            return Err(Malformed::NdpInvalid);
        }
        return Ok(Some(Ndp::Solicitation { target, source_mac }));
    }
    let solicited = m[4] & 0x40 != 0;
    if solicited && h.dst.is_multicast() {
        return Err(Malformed::NdpInvalid);
    }
    Ok(Some(Ndp::Advertisement {
        target,
        target_mac: link_layer_option(options, OPTION_TARGET)?,
        router: m[4] & 0x80 != 0,
        solicited,
        overrides: m[4] & 0x20 != 0,
    }))
}

/// Walks the options. The walk is bounded, since each option is at least 8 bytes long.
fn link_layer_option(mut options: &[u8], wanted: u8) -> Result<Option<MacAddr>, Malformed> {
    let mut found = None;
    while !options.is_empty() {
        let o: &[u8; 8] = options.first_chunk().ok_or(Malformed::NdpTruncated)?;
        let len = usize::from(o[1]) * 8;
        if len == 0 || len > options.len() {
            return Err(Malformed::NdpTruncated);
        }
        if o[0] == wanted && len == 8 && found.is_none() {
            found = Some(MacAddr([o[2], o[3], o[4], o[5], o[6], o[7]]));
        }
        options = &options[len..];
    }
    Ok(found)
}

/// True for ff02::1:ff00:0/104.
fn is_solicited_node(a: &Addr) -> bool {
    a.bytes()[..13] == [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff]
}

/// The solicited-node multicast address of `target` (RFC 4291 2.7.1).
pub fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let [.., x, y, z] = target.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, x, y, z])
}

/// The Ethernet group of an IPv6 multicast address (RFC 2464 7).
pub fn multicast_mac(group: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = group.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}

/// All nodes of the link, ff02::1.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The advertisement that answers a solicitation for `target`, one of our addresses, at `mac`. The caller has parsed
/// `frame` to [`Ndp::Solicitation`] and checked that the target is ours. A probe from `::` is answered to all nodes
/// (RFC 4861 7.2.4).
///
/// # Panics
/// When `h` does not belong to this frame.
pub fn answer(frame: &[u8], h: &Headers, target: Ipv6Addr, mac: MacAddr) -> SmallFrame {
    if h.src == Addr::UNSPECIFIED {
        return advertisement(mac, target, h.vlan, ALL_NODES, multicast_mac(ALL_NODES), false);
    }
    let to = Ipv6Addr::from(*h.src.bytes());
    advertisement(mac, target, h.vlan, to, super::ethernet::source(frame), true)
}

/// An unsolicited advertisement of `target` at `mac` to all nodes, after a move of the address (RFC 4861 7.2.6).
pub fn announcement(mac: MacAddr, target: Ipv6Addr, vlan: Option<VlanId>) -> SmallFrame {
    advertisement(mac, target, vlan, ALL_NODES, multicast_mac(ALL_NODES), false)
}

fn advertisement(
    mac: MacAddr,
    target: Ipv6Addr,
    vlan: Option<VlanId>,
    to: Ipv6Addr,
    to_mac: MacAddr,
    solicited: bool,
) -> SmallFrame {
    // Override is set. Router is not set: the gateway is not a default router for hosts.
    let flags = if solicited { 0x60 } else { 0x20 };
    let ethernet = EthernetHeader { dst: to_mac, src: mac, vlan, ether_type: ether_type::IPV6 };
    message(ethernet, ADVERTISEMENT, flags, target, to, target, Some((OPTION_TARGET, mac)))
}

/// A solicitation for `target` from `ip` at `mac`, sent to the solicited-node group, or to `known` to check whether a
/// neighbour is still there (RFC 4861 7.3.3).
pub fn solicitation(
    mac: MacAddr,
    ip: Ipv6Addr,
    target: Ipv6Addr,
    vlan: Option<VlanId>,
    known: Option<MacAddr>,
) -> SmallFrame {
    let to = if known.is_some() { target } else { solicited_node(target) };
    let to_mac = known.unwrap_or_else(|| multicast_mac(to));
    let ethernet = EthernetHeader { dst: to_mac, src: mac, vlan, ether_type: ether_type::IPV6 };
    let option = (!ip.is_unspecified()).then_some((OPTION_SOURCE, mac));
    message(ethernet, SOLICITATION, 0, ip, to, target, option)
}

fn message(
    ethernet: EthernetHeader,
    icmp_type: u8,
    flags: u8,
    src: Ipv6Addr,
    dst: Ipv6Addr,
    target: Ipv6Addr,
    option: Option<(u8, MacAddr)>,
) -> SmallFrame {
    let mut icmp = [0; 32];
    icmp[0] = icmp_type;
    icmp[4] = flags;
    icmp[8..24].copy_from_slice(&target.octets());
    let len = match option {
        None => 24,
        Some((kind, mac)) => {
            icmp[24] = kind;
            icmp[25] = 1;
            icmp[26..32].copy_from_slice(&mac.0);
            32
        }
    };
    let icmp = &mut icmp[..len];
    let sum = Sum::pseudo_header(Family::V6, &src.into(), &dst.into(), proto::ICMPV6, len as u32);
    let check = sum.bytes(icmp).finish();
    icmp[2..4].copy_from_slice(&check.to_be_bytes());

    let mut out = [0; 18 + 40];
    let l2 = ethernet.write(&mut out);
    let l3 = Ipv6Header {
        traffic_class: 0,
        flow_label: 0,
        payload_len: len as u16,
        next_header: proto::ICMPV6,
        hop_limit: 255,
        src,
        dst,
    }
    .write(&mut out[l2..]);
    let mut frame = SmallFrame::try_from(&out[..l2 + l3]).expect("58 bytes at most, the frame has 128");
    frame.try_extend_from_slice(icmp).expect("90 bytes at most, the frame has 128");
    frame
}
